/* memlane: streams whose payload goes straight into a region of memory (docs/guides/c.md).
 *
 *   memlane_region *region;
 *   memlane_devmem *stream;
 *   memlane_fragment got[64];
 *   if (memlane_region_create("udmabuf:64M", 0, &region) < 0) die(memlane_last_error());
 *   if (memlane_devmem_connect("192.0.2.1:5201", region, NULL, 5000, &stream) < 0) die(...);
 *   for (;;) {
 *       int n = memlane_devmem_receive(stream, got, 64);
 *       if (n == MEMLANE_AGAIN) { memlane_devmem_wait(stream, MEMLANE_WAIT_PAYLOAD, -1); continue; }
 *       if (n <= 0) break;                              // 0: the end
 *       compute_on_the_device(got, n);                  // got[i].offset, got[i].len
 *       memlane_devmem_release_all(stream, got, n);
 *   }
 *
 * Functions that can fail return a negative error number (enum memlane_error); memlane_last_error() has words for it,
 * of the calling thread. A handle that is NULL, of another kind or destroyed is MEMLANE_HANDLE, and nothing else happens.
 * Any thread may call anything; of one stream, one thread at a time receives, sends and waits (else MEMLANE_BUSY), while
 * others may release, read, keep, ask for counts, and close. */
#ifndef MEMLANE_H
#define MEMLANE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when functions are added; another soname when old programs would break. */
#define MEMLANE_ABI 1

enum memlane_error {
    MEMLANE_AGAIN = -1,     /* nothing is there yet, or no room in the socket: wait */
    MEMLANE_NO_ROOM = -2,   /* all chunks, or all tokens, are out: release some */
    MEMLANE_TIMED_OUT = -3, /* time was up */
    MEMLANE_INVALID = -4,   /* an argument that cannot be */
    MEMLANE_HANDLE = -5,    /* no such handle, or of another kind, or destroyed */
    MEMLANE_MISSING = -6,   /* this machine has no such memory: the words say what to do */
    MEMLANE_PATH = -7,      /* the path that was required is not to be had */
    MEMLANE_SYSTEM = -8,    /* the kernel refused: memlane_last_errno() */
    MEMLANE_TOKEN = -9,     /* no fragment that is out has this token */
    MEMLANE_OUTSIDE = -10,  /* beyond the end of a fragment or region */
    MEMLANE_TOO_MANY = -11, /* more than fits, or than one call takes */
    MEMLANE_BUSY = -12,     /* another thread is at it */
    MEMLANE_BUG = -13,      /* a bug in memlane */
    MEMLANE_DEVICE = -14    /* the device, or its driver, refused: the stream is over */
};

uint32_t memlane_abi(void);            /* the library's MEMLANE_ABI */
const char *memlane_version(void);
const char *memlane_last_error(void);  /* never NULL; valid until this thread's next failure */
int memlane_last_errno(void);          /* 0: the kernel had no part in it */
const char *memlane_error_name(int code);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct memlane_region memlane_region;

/* memfd:SIZE, hugetlb:SIZE, udmabuf:SIZE, dmaheap:NAME:SIZE (64M, 1G), in chunks of `chunk` bytes: a power of two, 4096
 * to 64 MiB; 0: 64 KiB. */
int memlane_region_create(const char *what, uint32_t chunk, memlane_region **out);
/* The memory itself goes when its streams and kept fragments are gone, too. */
int memlane_region_destroy(memlane_region *region);
int64_t memlane_region_size(memlane_region *region);
/* A descriptor of the memory, for mmap or a device; the caller's to close. */
int memlane_region_fd(memlane_region *region);
int memlane_region_is_dma_buf(memlane_region *region); /* 1 or 0 */
int memlane_region_read(memlane_region *region, uint64_t offset, void *into, size_t len);
int memlane_region_write(memlane_region *region, uint64_t offset, const void *from, size_t len);

/* ---- connections ------------------------------------------------------------------------------------------------- */

typedef struct memlane_listener memlane_listener;

int memlane_listen(const char *address, memlane_listener **out); /* HOST:PORT; port 0: any */
/* Where it listens, as text with a 0 at its end; its length. */
int memlane_listener_address(memlane_listener *listener, char *into, size_t len);
int memlane_listener_fd(memlane_listener *listener);    /* for poll; not to be closed */
int memlane_listener_close(memlane_listener *listener);

/* ---- streams into a region --------------------------------------------------------------------------------------- */

typedef struct memlane_devmem memlane_devmem;
typedef struct memlane_kept memlane_kept;

/* What a stream is to be like; NULL instead, or a 0: as memlane likes it. */
typedef struct memlane_terms {
    uint32_t size;       /* sizeof(memlane_terms) */
    uint32_t fragments;  /* that may be out at a time */
    uint32_t burst;      /* bytes of one receive, at most */
    uint32_t reserved;   /* 0 */
    const char *require; /* this path (memlane devmem probe) or none: MEMLANE_PATH */
} memlane_terms;

/* Payload: where in the region, how much, and the token by which it is given back. */
typedef struct memlane_fragment {
    uint64_t offset;
    uint32_t len;
    uint32_t token;
} memlane_fragment;

typedef struct memlane_range {
    uint32_t start;
    uint32_t count;
} memlane_range;

typedef struct memlane_counts {
    uint64_t received;     /* bytes */
    uint64_t fragments;    /* in which these bytes came */
    uint64_t released;     /* of these, given back */
    uint64_t bounced;      /* bytes that were copied between two places of host memory on their way */
    uint64_t no_room;      /* receives that found no chunk or no token */
    uint64_t sent;         /* bytes */
    uint32_t out;          /* fragments that are not back */
    uint32_t chunk_bytes;  /* of the region, for all its streams: */
    uint32_t chunks;
    uint32_t chunks_free;
} memlane_counts;

/* Waiting: milliseconds, -1 for ever. */
int memlane_devmem_accept(memlane_listener *listener, memlane_region *region, const memlane_terms *terms,
                          int32_t milliseconds, memlane_devmem **out);
int memlane_devmem_connect(const char *address, memlane_region *region, const memlane_terms *terms,
                           int32_t milliseconds, memlane_devmem **out);
/* A connected stream socket of the program's; memlane closes it from now on, if this succeeds. */
int memlane_devmem_adopt(int socket, memlane_region *region, const memlane_terms *terms, memlane_devmem **out);
/* What is out is given back; fragments that are kept are not. */
int memlane_devmem_close(memlane_devmem *stream);

/* For poll, after memlane_devmem_wait(stream, MEMLANE_WAIT_PAYLOAD, 0) has said 0; not to be closed. */
int memlane_devmem_fd(memlane_devmem *stream);
const char *memlane_devmem_path(memlane_devmem *stream); /* "mapped"; NULL: no such stream */

enum memlane_wait {
    MEMLANE_WAIT_PAYLOAD = 0, /* bytes, or the end */
    MEMLANE_WAIT_ROOM = 1,    /* chunks that come back, after MEMLANE_NO_ROOM */
    MEMLANE_WAIT_SOCKET = 2,  /* room in the socket, to send */
    MEMLANE_WAIT_SENT = 3     /* nothing is read any more of what was sent: the region's bytes may change */
};
/* 1: it is there; 0: time is up. */
int memlane_devmem_wait(memlane_devmem *stream, int until, int32_t milliseconds);

/* What has come, in order: how many fragments, at most `room`; 0: the stream's end. Never waits (MEMLANE_AGAIN). */
int memlane_devmem_receive(memlane_devmem *stream, memlane_fragment *fragments, size_t room);
/* As the kernel's SO_DEVMEM_DONTNEED: at most 128 ranges, of which 1024 tokens are looked at; what is not out is passed
 * over. How many were out. */
int memlane_devmem_release(memlane_devmem *stream, const memlane_range *ranges, size_t count);
/* The tokens of these fragments, as many as they are. */
int64_t memlane_devmem_release_all(memlane_devmem *stream, const memlane_fragment *fragments, size_t count);
/* Copies bytes of a fragment out, for who looks at them by the CPU. */
int memlane_devmem_read(memlane_devmem *stream, uint32_t token, uint32_t at, void *into, size_t len);
/* From now on the fragment is its handle's, also after the stream's end. */
int memlane_devmem_keep(memlane_devmem *stream, const memlane_fragment *fragment, memlane_kept **out);
int memlane_kept_release(memlane_kept *kept);

/* Bytes of the region to the other side; how many went. Never waits (MEMLANE_AGAIN). A stream puts what comes anywhere
 * into its region: send fragments that are out, or from a region into which nothing is received. */
int64_t memlane_devmem_send(memlane_devmem *stream, uint64_t offset, uint32_t len);
int memlane_devmem_shutdown(memlane_devmem *stream);     /* nothing more is sent */

int memlane_devmem_counts(memlane_devmem *stream, memlane_counts *into, size_t size /* sizeof(memlane_counts) */);

/* ---- TCP over memory, without a region --------------------------------------------------------------------------- */

/* A TCP connection, and it stays one. If the other end is a process of this host that has memlane, too (this library, or
 * a program under `memlane run`), bytes go through memory from an agreed byte on. No call waits but those with a limit. */
typedef struct memlane_stream memlane_stream;

typedef struct memlane_stream_counted {
    uint64_t sent_in_memory;
    uint64_t sent_by_tcp;
    uint64_t received_in_memory;
    uint64_t received_by_tcp;
} memlane_stream_counted;

enum memlane_lane {
    MEMLANE_LANE_PENDING = 0, /* TCP; both ends may still agree */
    MEMLANE_LANE_MEMORY = 1,
    MEMLANE_LANE_TCP = 2      /* for good */
};

int memlane_stream_connect(const char *address, int32_t milliseconds, memlane_stream **out);
int memlane_stream_accept(memlane_listener *listener, int32_t milliseconds, memlane_stream **out);
/* A connected TCP socket of the program's, from accept (1) or connect (0); memlane closes it from now on. */
int memlane_stream_adopt(int socket, int accepted, memlane_stream **out);
int memlane_stream_close(memlane_stream *stream);

int64_t memlane_stream_read(memlane_stream *stream, void *into, size_t len); /* 0: the end */
int64_t memlane_stream_write(memlane_stream *stream, const void *from, size_t len);

/* A place for up to `want` bytes, in the other side's memory if the lane is open; how many there are. Fill it soon, and
 * commit it in the same thread. Until then all other calls are MEMLANE_BUSY. */
int64_t memlane_stream_reserve(memlane_stream *stream, size_t want, void **place);
int memlane_stream_commit(memlane_stream *stream, size_t len);               /* 0: nothing is sent */
/* What is next, where it lies; how many bytes, 0: the end, and nothing to consume. The other side may change them until
 * they are consumed: copy first what you are to believe. Until then all other calls are MEMLANE_BUSY. */
int64_t memlane_stream_peek(memlane_stream *stream, const void **place);
int memlane_stream_consume(memlane_stream *stream, size_t len);              /* 0: they stay */
int memlane_stream_flush(memlane_stream *stream);    /* MEMLANE_AGAIN: what was committed has not all gone yet */
int memlane_stream_shutdown(memlane_stream *stream); /* nothing more is sent */

int memlane_stream_wait(memlane_stream *stream, int until /* PAYLOAD or SOCKET */, int32_t milliseconds);
int memlane_stream_arm(memlane_stream *stream); /* 1: now poll on the descriptor; 0: there is something already */
int memlane_stream_fd(memlane_stream *stream);

int memlane_stream_lane(memlane_stream *stream); /* enum memlane_lane */
int memlane_stream_negotiate(memlane_stream *stream, int32_t milliseconds);
int memlane_stream_counts(memlane_stream *stream, void *into /* memlane_stream_counted */, size_t size);

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
_Static_assert(sizeof(memlane_fragment) == 16 && offsetof(memlane_fragment, token) == 12, "memlane_fragment");
_Static_assert(sizeof(memlane_range) == 8 && offsetof(memlane_range, count) == 4, "memlane_range");
_Static_assert(sizeof(memlane_terms) == 24 && offsetof(memlane_terms, require) == 16, "memlane_terms");
_Static_assert(sizeof(memlane_stream_counted) == 32, "memlane_stream_counted");
_Static_assert(sizeof(memlane_counts) == 64 && offsetof(memlane_counts, out) == 48, "memlane_counts");
#endif

#ifdef __cplusplus
}
#endif

#endif
