/* What a program can do wrong, and what others can do to it: each is a number, and nothing is lost. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

static memlane_region *fresh(const char *what, uint32_t chunk)
{
    memlane_region *region;
    CHECK(memlane_region_create(what, chunk, &region) == 0);
    return region;
}

/* A stream into the region, and the other end of its socket. */
static memlane_devmem *pair(memlane_region *region, const memlane_terms *terms, int *there)
{
    int ends[2];
    memlane_devmem *stream;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(memlane_devmem_adopt(ends[0], region, terms, &stream) == 0);
    *there = ends[1];
    return stream;
}

static memlane_counts counted(memlane_devmem *stream)
{
    memlane_counts counts;
    CHECK(memlane_devmem_counts(stream, &counts, sizeof counts) == 0);
    return counts;
}

static void words(void)
{
    memlane_region *region;
    CHECK(memlane_region_create("memfd:none", 0, &region) == MEMLANE_INVALID);
    CHECK(strstr(memlane_last_error(), "memfd:SIZE") != NULL);
    CHECK(memlane_region_create("memfd:1M", 5000, &region) == MEMLANE_INVALID);
    CHECK(strstr(memlane_last_error(), "power of two") != NULL);
    CHECK(memlane_region_create("dmaheap:no-such-heap:1M", 0, &region) == MEMLANE_MISSING);
    CHECK(memlane_region_create(NULL, 0, &region) == MEMLANE_INVALID);
    CHECK(memlane_region_create("memfd:1M", 0, NULL) == MEMLANE_INVALID);
    CHECK(strcmp(memlane_error_name(MEMLANE_NO_ROOM), "MEMLANE_NO_ROOM") == 0);
    CHECK(strcmp(memlane_error_name(-4711), "?") == 0);
    CHECK(strlen(memlane_version()) >= 5);
}

static void handles(void)
{
    memlane_region *region = fresh("memfd:64K", 4096), *gone = fresh("memfd:64K", 4096);
    memlane_listener *listener;
    memlane_devmem *stream, *closed;
    memlane_fragment got[1];
    int there, local = 0;

    CHECK(memlane_region_destroy(gone) == 0);
    CHECK(memlane_region_destroy(gone) == MEMLANE_HANDLE);
    CHECK(memlane_region_size(gone) == MEMLANE_HANDLE);
    CHECK(memlane_region_size(NULL) == MEMLANE_HANDLE);
    CHECK(strstr(memlane_last_error(), "NULL") != NULL);
    CHECK(memlane_region_size((memlane_region *)(void *)&local) == MEMLANE_HANDLE);
    CHECK(memlane_region_size(region) == 65536);

    stream = pair(region, NULL, &there);
    CHECK(memlane_region_size((memlane_region *)(void *)stream) == MEMLANE_HANDLE);
    CHECK(memlane_devmem_close((memlane_devmem *)(void *)region) == MEMLANE_HANDLE);
    CHECK(memlane_devmem_receive(NULL, got, 1) == MEMLANE_HANDLE);
    CHECK(memlane_devmem_receive(stream, NULL, 1) == MEMLANE_INVALID);
    CHECK(memlane_devmem_receive(stream, got, 0) == MEMLANE_INVALID);
    CHECK(memlane_devmem_receive(stream, got, SIZE_MAX) == MEMLANE_INVALID);
    CHECK(memlane_devmem_receive(stream, (memlane_fragment *)(void *)((char *)got + 1), 1) == MEMLANE_INVALID);
    CHECK(memlane_devmem_receive(stream, got, 1) == MEMLANE_AGAIN);
    CHECK(memlane_devmem_wait(stream, 7, 0) == MEMLANE_INVALID);
    CHECK(memlane_devmem_wait(stream, MEMLANE_WAIT_PAYLOAD, 1) == 0);
    CHECK(strcmp(memlane_devmem_path(stream), "mapped") == 0);
    CHECK(memlane_devmem_path(NULL) == NULL);
    CHECK(memlane_devmem_close(stream) == 0);
    CHECK(memlane_devmem_close(stream) == MEMLANE_HANDLE);
    CHECK(memlane_devmem_fd(stream) == MEMLANE_HANDLE);
    CHECK(write(there, "x", 1) == -1 && errno == EPIPE);
    close(there);

    CHECK(memlane_devmem_adopt(-1, region, NULL, &closed) == MEMLANE_INVALID);
    CHECK(memlane_devmem_adopt(9999, region, NULL, &closed) == MEMLANE_SYSTEM);
    CHECK(memlane_last_errno() == EBADF);
    CHECK(memlane_devmem_adopt(STDERR_FILENO, region, NULL, &closed) == MEMLANE_SYSTEM);
    CHECK(memlane_listen("127.0.0.1:0", &listener) == 0);
    CHECK(memlane_devmem_adopt(memlane_listener_fd(listener), region, NULL, &closed) == MEMLANE_SYSTEM);
    CHECK(memlane_last_errno() == ENOTCONN);
    CHECK(memlane_devmem_accept(listener, region, NULL, 1, &closed) == MEMLANE_TIMED_OUT);
    CHECK(memlane_listener_address(listener, (char *)&local, 4) == MEMLANE_TOO_MANY);
    CHECK(memlane_listener_close(listener) == 0);
    CHECK(memlane_listener_close(listener) == MEMLANE_HANDLE);
    CHECK(memlane_listen("nonsense", &listener) == MEMLANE_INVALID);
    CHECK(memlane_listen("192.0.2.1:1", &listener) == MEMLANE_SYSTEM);
    CHECK(memlane_region_destroy(region) == 0);
}

static void terms(void)
{
    memlane_region *region = fresh("memfd:64K", 4096);
    memlane_terms asked = {0};
    memlane_devmem *stream;
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(memlane_devmem_adopt(ends[0], region, &asked, &stream) == MEMLANE_INVALID);
    asked.size = sizeof asked;
    asked.require = "by carrier pigeon";
    CHECK(memlane_devmem_adopt(ends[0], region, &asked, &stream) == MEMLANE_PATH);
    asked.require = "kernel"; /* takes more than a socket */
    CHECK(memlane_devmem_adopt(ends[0], region, &asked, &stream) == MEMLANE_PATH);
    asked.require = "staged";
    asked.reserved = 1;
    CHECK(memlane_devmem_adopt(ends[0], region, &asked, &stream) == MEMLANE_INVALID);
    asked.reserved = 0;
    /* A refusal has left the socket to the program. */
    CHECK(memlane_devmem_adopt(ends[0], region, &asked, &stream) == 0);
    CHECK(strcmp(memlane_devmem_path(stream), "staged") == 0);
    CHECK(memlane_devmem_close(stream) == 0);
    CHECK(fcntl(ends[0], F_GETFD) == -1);
    close(ends[1]);
    CHECK(memlane_region_destroy(region) == 0);
}

static void tokens(void)
{
    memlane_region *region = fresh("memfd:64K", 4096);
    memlane_fragment got[64], other[64];
    memlane_range many[129];
    memlane_devmem *one, *two;
    unsigned char seen[101];
    int one_there, two_there;

    one = pair(region, NULL, &one_there);
    two = pair(region, NULL, &two_there);
    memset(seen, 1, sizeof seen);
    CHECK(write(one_there, seen, 100) == 100 && write(two_there, seen, 100) == 100);
    CHECK(memlane_devmem_receive(one, got, 64) == 1);
    CHECK(memlane_devmem_receive(two, other, 64) == 1);

    for (size_t i = 0; i < 129; i++)
        many[i] = (memlane_range){(uint32_t)(1000 + i), UINT32_MAX};
    CHECK(memlane_devmem_release(one, many, 129) == MEMLANE_TOO_MANY);
    CHECK(memlane_devmem_release(one, many, 128) == 0);
    CHECK(memlane_devmem_release(one, NULL, 1) == MEMLANE_INVALID);
    CHECK(memlane_devmem_release(one, NULL, 0) == 0);
    CHECK(memlane_devmem_read(one, got[0].token, 50, seen, 51) == MEMLANE_OUTSIDE);
    CHECK(memlane_devmem_read(one, got[0].token, UINT32_MAX, seen, 1) == MEMLANE_OUTSIDE);
    CHECK(memlane_devmem_read(one, got[0].token + 1, 0, seen, 1) == MEMLANE_TOKEN);
    CHECK(memlane_devmem_read(one, got[0].token, 0, seen, SIZE_MAX) == MEMLANE_OUTSIDE);
    CHECK(memlane_devmem_read(one, got[0].token, 0, seen, 100) == 0 && seen[99] == 1);
    CHECK(memlane_devmem_release_all(one, got, 1) == 1);
    CHECK(memlane_devmem_release_all(one, got, 1) == 0);
    CHECK(memlane_devmem_read(one, got[0].token, 0, seen, 1) == MEMLANE_TOKEN);
    CHECK(counted(one).out == 0 && counted(two).out == 1);

    CHECK(memlane_region_read(region, 65530, seen, 7) == MEMLANE_OUTSIDE);
    CHECK(memlane_region_write(region, UINT64_MAX, seen, 1) == MEMLANE_OUTSIDE);
    CHECK(memlane_devmem_send(one, 65530, 7) == MEMLANE_OUTSIDE);
    CHECK(memlane_devmem_counts(one, NULL, 64) == MEMLANE_INVALID);
    CHECK(memlane_devmem_close(two) == 0);
    CHECK(counted(one).chunks_free >= 15);
    CHECK(memlane_devmem_close(one) == 0);
    CHECK(memlane_region_destroy(region) == 0);
    close(one_there);
    close(two_there);
}

/* A short array gets the fragments one by one; none is lost. */
static void short_array(void)
{
    memlane_region *region = fresh("memfd:64K", 4096);
    memlane_fragment got;
    unsigned char bytes[20000];
    uint64_t total = 0;
    int there;
    memlane_devmem *stream = pair(region, NULL, &there);
    memset(bytes, 5, sizeof bytes);
    CHECK(write(there, bytes, sizeof bytes) == sizeof bytes);
    close(there);
    while (memlane_devmem_wait(stream, MEMLANE_WAIT_PAYLOAD, 10000) == 1) {
        int n = memlane_devmem_receive(stream, &got, 1);
        CHECK(n == 0 || n == 1);
        if (n == 0)
            break;
        CHECK(got.offset + got.len <= 65536 && got.len <= 4096);
        total += got.len;
    }
    CHECK(total == sizeof bytes);
    CHECK(memlane_devmem_close(stream) == 0);
    CHECK(memlane_region_destroy(region) == 0);
}

struct freer {
    memlane_devmem *stream;
    memlane_fragment *held;
    size_t count;
};

static void *frees(void *argument)
{
    struct freer *freer = argument;
    memlane_fragment none;
    usleep(50000);
    /* The other thread waits: this one may give back, and not receive. */
    CHECK(memlane_devmem_receive(freer->stream, &none, 1) == MEMLANE_BUSY);
    CHECK(memlane_devmem_release_all(freer->stream, freer->held, freer->count) == (int64_t)freer->count);
    return NULL;
}

static void back_pressure(void)
{
    memlane_region *region = fresh("memfd:64K", 4096);
    static unsigned char bytes[100000];
    static memlane_fragment held[4096];
    size_t count = 0;
    uint64_t total = 0;
    int there, n;
    pthread_t thread;
    struct freer freer;
    memlane_devmem *stream = pair(region, NULL, &there);
    CHECK(fcntl(there, F_SETFL, O_NONBLOCK) == 0);
    for (;;) {
        ssize_t sent = write(there, bytes, sizeof bytes);
        CHECK(sent > 0 || errno == EAGAIN);
        n = memlane_devmem_receive(stream, held + count, 4096 - count);
        if (n == MEMLANE_NO_ROOM)
            break;
        CHECK(n > 0);
        for (int i = 0; i < n; i++)
            total += held[count + (size_t)i].len;
        count += (size_t)n;
    }
    CHECK(total == 65536);
    CHECK(counted(stream).no_room == 1 && counted(stream).chunks_free == 0);
    CHECK(memlane_devmem_wait(stream, MEMLANE_WAIT_ROOM, 0) == 0);
    freer = (struct freer){stream, held, count};
    CHECK(pthread_create(&thread, NULL, frees, &freer) == 0);
    CHECK(memlane_devmem_wait(stream, MEMLANE_WAIT_ROOM, 30000) == 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(memlane_devmem_receive(stream, held, 4096) > 0);
    CHECK(memlane_devmem_close(stream) == 0);
    CHECK(memlane_region_destroy(region) == 0);
    close(there);
}

/* The region's handle goes first, then the stream, then what was kept: the memory stays until then. */
static void ends_in_any_order(void)
{
    memlane_region *region = fresh("memfd:64K", 4096);
    memlane_fragment got, forged;
    memlane_kept *kept, *again;
    unsigned char *mapped;
    int there, memory = memlane_region_fd(region);
    memlane_devmem *stream = pair(region, NULL, &there);
    CHECK(memory >= 0 && memlane_region_is_dma_buf(region) == 0);
    CHECK(write(there, "kept", 4) == 4);
    CHECK(memlane_devmem_receive(stream, &got, 1) == 1);
    CHECK(memlane_region_destroy(region) == 0);
    CHECK(memlane_devmem_send(stream, got.offset, 4) == 4);
    CHECK(memlane_devmem_wait(stream, MEMLANE_WAIT_SENT, 10000) == 1);
    forged = got;
    forged.len++;
    CHECK(memlane_devmem_keep(stream, &forged, &kept) == MEMLANE_TOKEN);
    CHECK(memlane_devmem_keep(stream, &got, NULL) == MEMLANE_INVALID);
    CHECK(memlane_devmem_keep(stream, &got, &kept) == 0);
    CHECK(memlane_devmem_keep(stream, &got, &again) == MEMLANE_TOKEN);
    CHECK(memlane_devmem_release_all(stream, &got, 1) == 0);
    CHECK(memlane_devmem_close(stream) == 0);
    mapped = mmap(NULL, 65536, PROT_READ, MAP_SHARED, memory, 0);
    CHECK(mapped != MAP_FAILED && memcmp(mapped + got.offset, "kept", 4) == 0);
    CHECK(munmap(mapped, 65536) == 0);
    CHECK(memlane_kept_release(kept) == 0);
    CHECK(memlane_kept_release(kept) == MEMLANE_HANDLE);
    close(memory);
    close(there);
}

static void *commits(void *stream)
{
    CHECK(memlane_stream_commit(stream, 0) == MEMLANE_BUSY);
    CHECK(memlane_stream_close(stream) == MEMLANE_BUSY);
    return NULL;
}

/* What is lent has to come back before anything else happens, from the thread that has it. */
static void places(void)
{
    memlane_listener *listener;
    memlane_stream *one, *two, *none;
    memlane_stream_counted counts;
    pthread_t thread;
    char address[64], seen[8];
    const void *shown;
    void *place;
    int64_t len;

    CHECK(memlane_listen("127.0.0.1:0", &listener) == 0);
    CHECK(memlane_listener_address(listener, address, sizeof address) > 0);
    CHECK(memlane_stream_accept(listener, 1, &none) == MEMLANE_TIMED_OUT);
    CHECK(memlane_stream_connect(address, 10000, &one) == 0);
    CHECK(memlane_stream_accept(listener, 10000, &two) == 0);
    CHECK(memlane_stream_adopt(STDERR_FILENO, 0, &none) == MEMLANE_SYSTEM);
    CHECK(memlane_stream_read(one, seen, sizeof seen) == MEMLANE_AGAIN);
    CHECK(memlane_stream_read(one, NULL, 1) == MEMLANE_INVALID);
    CHECK(memlane_stream_read(one, seen, 0) == MEMLANE_INVALID);
    CHECK(memlane_stream_write(one, NULL, 1) == MEMLANE_INVALID);
    CHECK(memlane_stream_wait(one, MEMLANE_WAIT_ROOM, 0) == MEMLANE_INVALID);
    CHECK(memlane_stream_wait(one, MEMLANE_WAIT_PAYLOAD, 1) == 0);
    CHECK(memlane_stream_commit(one, 1) == MEMLANE_INVALID);
    CHECK(memlane_stream_consume(one, 1) == MEMLANE_INVALID);
    CHECK(memlane_stream_reserve(one, 100, NULL) == MEMLANE_INVALID);

    len = memlane_stream_reserve(one, 100, &place);
    CHECK(len > 0 && len <= 100);
    CHECK(memlane_stream_write(one, "x", 1) == MEMLANE_BUSY);
    CHECK(memlane_stream_reserve(one, 100, &place) == MEMLANE_BUSY);
    CHECK(memlane_stream_consume(one, 1) == MEMLANE_INVALID);
    CHECK(memlane_stream_commit(one, (size_t)len + 1) == MEMLANE_OUTSIDE);
    CHECK(pthread_create(&thread, NULL, commits, one) == 0 && pthread_join(thread, NULL) == 0);
    memcpy(place, "hello", 5);
    CHECK(memlane_stream_commit(one, 5) == 0);
    CHECK(memlane_stream_commit(one, 5) == MEMLANE_INVALID);
    CHECK(memlane_stream_reserve(one, 100, &place) > 0);
    CHECK(memlane_stream_commit(one, 0) == 0);

    CHECK(memlane_stream_wait(two, MEMLANE_WAIT_PAYLOAD, 10000) == 1);
    CHECK(memlane_stream_peek(two, &shown) == 5 && memcmp(shown, "hello", 5) == 0);
    CHECK(memlane_stream_read(two, seen, sizeof seen) == MEMLANE_BUSY);
    CHECK(memlane_stream_consume(two, 6) == MEMLANE_OUTSIDE);
    CHECK(memlane_stream_consume(two, 0) == 0);
    CHECK(memlane_stream_peek(two, &shown) == 5);
    CHECK(memlane_stream_consume(two, 2) == 0);
    CHECK(memlane_stream_read(two, seen, sizeof seen) == 3 && memcmp(seen, "llo", 3) == 0);
    CHECK(memlane_stream_lane(two) >= MEMLANE_LANE_PENDING && memlane_stream_lane(two) <= MEMLANE_LANE_TCP);
    CHECK(memlane_stream_counts(two, &counts, sizeof counts) == 0);
    CHECK(memlane_stream_counts(two, NULL, sizeof counts) == MEMLANE_INVALID);

    /* A place that is never committed goes with its stream, and nothing of it is sent. */
    CHECK(memlane_stream_reserve(one, 100, &place) > 0);
    CHECK(memlane_stream_close(one) == 0);
    CHECK(memlane_stream_commit(one, 1) == MEMLANE_HANDLE);
    CHECK(memlane_stream_wait(two, MEMLANE_WAIT_PAYLOAD, 10000) == 1);
    CHECK(memlane_stream_peek(two, &shown) == 0);
    CHECK(memlane_stream_read(two, seen, sizeof seen) == 0);
    CHECK(memlane_stream_close(two) == 0);
    CHECK(memlane_stream_close(two) == MEMLANE_HANDLE);
    CHECK(memlane_listener_close(listener) == 0);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    words();
    handles();
    terms();
    tokens();
    short_array();
    back_pressure();
    ends_in_any_order();
    places();
    puts("right");
    return 0;
}
