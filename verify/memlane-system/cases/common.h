/* What all case programs share: transcripts, a scripted peer, warm-up, waiting.
 *
 *   FAMILY --list                    names of the cases, one a line, with flags
 *   FAMILY CASE [--warm N|bulk] [--swap] [--thread]
 *   CASE_PEER=PROGRAM FAMILY …       the peers run that program, another build of the family
 *
 * `main` forks once: the parent supervises (and prints the transcript, also of a
 * hang), the child runs the case as actor A. Each actor writes its lines into
 * memory shared by all, so that the order of lines within an actor is all that
 * counts and a killed actor's lines are kept. Actor B is the scripted peer: A
 * tells it, out of band, what to do with its end of the connection. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "musl.h"

enum { ACTORS = 8, PEERS = 4, SEMS = 32, TEXT = 48 * 1024 };
enum { DEFAULT_SECONDS = 20, PATIENCE_MS = 3000 };
enum { NEEDS_OWN_PEER = 77 }; /* exit code: the case cannot be played with a peer of another build */
#define PEER "_peer"          /* the word that makes a program such a peer */

enum case_flags {
    NEEDS_ROOT = 1,
    NO_THREAD = 2, /* the peer must be a process (signals, fork, death) */
    ONCE = 4,      /* makes its own connections: warm-up and role don't apply */
    LANE = 8,      /* … but it is long enough that the lane must have been used */
    LONG = 16,     /* time must pass in it: played in few variants */
    NO_BULK = 32,  /* much data before it would have the kernel tune the socket during the case */
};

struct one_case {
    const char *name;
    void (*run)(void);
    int flags;
};

/* --- shared memory ---------------------------------------------------- */

struct actor {
    _Atomic unsigned len;
    _Atomic int tid;
    _Atomic uint64_t tx_ring, rx_ring;
    char text[TEXT];
};

/* A semaphore that programs of different libcs can share. */
struct semaphore { _Atomic int count; };

struct peer {
    struct semaphore order, done, warm_to, warm_from;
    int op;
    long arg;
    char text[256]; /* copied: after an exec, addresses differ */
    void (*call)(int fd);
    int fd; /* its own end */
    int pid;
    int actor;
    bool is_thread;
    pthread_t thread;
    int listener;
};

struct arena {
    struct semaphore sems[SEMS];
    _Atomic long values[32];
    struct peer peers[PEERS];
    struct actor actors[ACTORS];
};

static struct arena *arena;
static int arena_fd = -1;
static __thread int self_actor;
static int peer_count;
static int opt_warm = 20;
static bool opt_bulk, opt_swap, opt_thread;

#define EXPORT static __attribute__((unused))

EXPORT void die(const char *what) {
    dprintf(2, "case program: %s: %s\n", what, strerror(errno));
    _exit(99);
}

/* --- transcript -------------------------------------------------------- */

EXPORT __attribute__((format(printf, 1, 2))) void say(const char *format, ...) {
    int kept = errno;
    char line[600];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (len > (int)sizeof line - 2) len = sizeof line - 2;
    line[len++] = '\n';
    struct actor *me = &arena->actors[self_actor];
    unsigned at = atomic_fetch_add(&me->len, (unsigned)len);
    if (at + (unsigned)len <= TEXT) memcpy(me->text + at, line, (size_t)len);
    errno = kept;
}

EXPORT const char *errname(int e) {
#define NAME(n) case n: return #n
    switch (e) {
        NAME(E2BIG); NAME(EACCES); NAME(EADDRINUSE); NAME(EADDRNOTAVAIL); NAME(EAFNOSUPPORT); NAME(EAGAIN);
        NAME(EALREADY); NAME(EBADF); NAME(EBUSY); NAME(ECANCELED); NAME(ECHILD); NAME(ECONNABORTED);
        NAME(ECONNREFUSED); NAME(ECONNRESET); NAME(EDESTADDRREQ); NAME(EEXIST); NAME(EFAULT); NAME(EFBIG);
        NAME(EHOSTUNREACH); NAME(EINPROGRESS); NAME(EINTR); NAME(EINVAL); NAME(EIO); NAME(EISCONN); NAME(ELOOP);
        NAME(EMFILE); NAME(EMSGSIZE); NAME(ENETUNREACH); NAME(ENFILE); NAME(ENOBUFS); NAME(ENODEV); NAME(ENOENT);
        NAME(ENOEXEC); NAME(ENOMEM); NAME(ENOPROTOOPT); NAME(ENOSPC); NAME(ENOSYS); NAME(ENOTCONN); NAME(ENOTSOCK);
        NAME(ENOTTY); NAME(EOPNOTSUPP); NAME(EPERM); NAME(EPIPE); NAME(EPROTO); NAME(EPROTONOSUPPORT); NAME(ERANGE);
        NAME(ESPIPE); NAME(ESRCH); NAME(ETIME); NAME(ETIMEDOUT);
    case 0: return "";
    default: return "E?";
    }
#undef NAME
}

EXPORT void say_result(const char *what, long r, int e) {
    if (r < 0) say("%s = %ld %s", what, r, errname(e));
    else say("%s = %ld", what, r);
}

/* Evaluates a call and writes down the call as it stands in the source, its value and errno. */
#define R(call) ({ errno = 0; long r_ = (long)(call); int e_ = errno; say_result(#call, r_, e_); errno = e_; r_; })
/* Likewise, only whether it worked (descriptor numbers, amounts that may vary). */
#define OK(call) ({ errno = 0; long r_ = (long)(call); int e_ = errno; \
    say("%s: %s", #call, r_ < 0 ? errname(e_) : "ok"); errno = e_; r_; })

EXPORT uint64_t hash_more(uint64_t h, const void *data, size_t n) {
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}
#define HASH_START 0xcbf29ce484222325ull

EXPORT void say_bytes(const char *what, const void *data, long n) {
    if (n < 0) say("%s n=%ld", what, n);
    else if (n <= 64) {
        char text[65];
        for (long i = 0; i < n; i++) {
            unsigned char c = ((const unsigned char *)data)[i];
            text[i] = c >= 32 && c < 127 ? (char)c : '.';
        }
        text[n > 0 ? n : 0] = 0;
        say("%s n=%ld '%s'", what, n, text);
    } else say("%s n=%ld hash=%016llx", what, n, (unsigned long long)hash_more(HASH_START, data, (size_t)n));
}

EXPORT const char *events(unsigned ev) {
    static __thread char text[4][128];
    static __thread int turn;
    static const struct { unsigned bit; const char *name; } names[] = {
        {POLLIN, "IN"}, {POLLPRI, "PRI"}, {POLLOUT, "OUT"}, {POLLERR, "ERR"}, {POLLHUP, "HUP"},
        {POLLRDHUP, "RDHUP"}, {POLLNVAL, "NVAL"}, {POLLRDNORM, "RDNORM"}, {POLLWRNORM, "WRNORM"}, {POLLRDBAND, "RDBAND"}};
    char *out = text[turn++ % 4];
    *out = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (ev & names[i].bit) {
            if (*out) strcat(out, "|");
            strcat(out, names[i].name);
        }
    return *out ? out : "none";
}

/* --- waiting out of band ------------------------------------------------ */

EXPORT void sem_give(struct semaphore *s) {
    int kept = errno;
    atomic_fetch_add(&s->count, 1);
    syscall(SYS_futex, &s->count, FUTEX_WAKE, 1, NULL, NULL, 0);
    errno = kept;
}
EXPORT void sem_take(struct semaphore *s) {
    int kept = errno;
    for (;;) {
        int n = s->count;
        while (n > 0)
            if (atomic_compare_exchange_weak(&s->count, &n, n - 1)) {
                errno = kept;
                return;
            }
        syscall(SYS_futex, &s->count, FUTEX_WAIT, 0, NULL, NULL, 0);
    }
}
EXPORT void post(int sem) { sem_give(&arena->sems[sem]); }
EXPORT void await(int sem) { sem_take(&arena->sems[sem]); }

EXPORT void nap_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) < 0 && errno == EINTR) {}
}

EXPORT long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

EXPORT void as_actor(int actor) {
    self_actor = actor;
    arena->actors[actor].tid = (int)syscall(SYS_gettid);
}

/* Until `actor` (which is about to block) has been seen asleep several times running.
 * Gives up after a while: what follows must be right in any case, this only aims it. */
EXPORT void until_asleep(int actor) {
    int seen = 0;
    for (int i = 0; i < 300 && seen < 5; i++) {
        char path[64], buf[256] = "";
        int tid = arena->actors[actor].tid;
        snprintf(path, sizeof path, "/proc/%d/stat", tid);
        int f = open(path, O_RDONLY | O_CLOEXEC);
        if (f >= 0) {
            if (read(f, buf, sizeof buf - 1) < 0) buf[0] = 0;
            close(f);
        }
        char *state = strrchr(buf, ')');
        seen = state && state[2] == 'S' ? seen + 1 : 0;
        nap_ms(1);
    }
}

/* Until exactly n bytes wait to be read on fd. */
EXPORT void settle(int fd, int n) {
    int have = -1;
    const long deadline = now_ms() + PATIENCE_MS;
    for (int i = 0; now_ms() < deadline; i++) {
        have = -1;
        if (ioctl(fd, FIONREAD, &have) < 0 || have == n) break;
        nap_ms(i < 20 ? 0 : 1);
    }
    if (have != n) say("settle: %d bytes waiting instead of %d", have, n);
}

/* Until poll() reports at least `want`; what it reports. */
EXPORT unsigned poll_for(int fd, unsigned want) {
    struct pollfd p = {fd, (short)(POLLIN | POLLPRI | POLLOUT | POLLRDHUP), 0};
    const long deadline = now_ms() + PATIENCE_MS;
    while (now_ms() < deadline) {
        p.revents = 0;
        poll(&p, 1, 2);
        if (((unsigned short)p.revents & want) == want) break;
        nap_ms(1);
    }
    return (unsigned short)p.revents;
}

/* --- moving bytes --------------------------------------------------------- */

EXPORT void fill(void *buf, size_t n, unsigned seed) {
    unsigned char *p = buf;
    for (size_t i = 0; i < n; i++) p[i] = (unsigned char)(seed + i * 7 + (i >> 8) * 13 + (i >> 16));
}

/* Byte `at` of the endless pattern that peers stream. */
EXPORT unsigned char pattern(uint64_t at) { return (unsigned char)(at * 7 + (at >> 8) * 13 + (at >> 16) * 3); }

EXPORT long send_all(int fd, const void *data, size_t n) {
    size_t sent = 0;
    while (sent < n) {
        ssize_t r = send(fd, (const char *)data + sent, n - sent, MSG_NOSIGNAL);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0 && errno == EAGAIN) {
            struct pollfd p = {fd, POLLOUT, 0};
            poll(&p, 1, -1);
            continue;
        }
        if (r < 0) return -1;
        sent += (size_t)r;
    }
    return (long)n;
}

/* Reads n bytes unless the stream ends; how many it got. errno tells an error (0 = end). */
EXPORT long recv_all(int fd, void *data, size_t n) {
    size_t got = 0;
    errno = 0;
    while (got < n) {
        ssize_t r = recv(fd, (char *)data + got, n - got, 0);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0 && errno == EAGAIN) {
            struct pollfd p = {fd, POLLIN, 0};
            poll(&p, 1, -1);
            continue;
        }
        if (r == 0) errno = 0;
        if (r <= 0) break;
        got += (size_t)r;
    }
    return (long)got;
}

/* Sends n patterned bytes. */
EXPORT void send_n(int fd, size_t n, unsigned seed) {
    char *buf = malloc(n + 1);
    fill(buf, n, seed);
    errno = 0;
    long r = send_all(fd, buf, n);
    if (r < 0) say("send_n %zu: %s", n, errname(errno));
    free(buf);
}
EXPORT void send_text(int fd, const char *text) {
    if (send_all(fd, text, strlen(text)) < 0) say("send '%s': %s", text, errname(errno));
}

/* Reads exactly n bytes and writes down what came. */
EXPORT void take(int fd, size_t n) {
    char *buf = malloc(n + 1);
    long got = recv_all(fd, buf, n);
    int e = errno;
    say_bytes("take", buf, got);
    if (got < (long)n) say("take: ended early, %s", e ? errname(e) : "EOF");
    free(buf);
}

/* Reads to the end and writes down how much, its hash, and how it ended. */
EXPORT void drain(int fd) {
    char buf[16384];
    uint64_t hash = HASH_START, total = 0;
    for (;;) {
        ssize_t r = recv(fd, buf, sizeof buf, 0);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0 && errno == EAGAIN) {
            struct pollfd p = {fd, POLLIN, 0};
            poll(&p, 1, -1);
            continue;
        }
        if (r <= 0) {
            say("drain: %llu bytes hash=%016llx end=%s", (unsigned long long)total,
                (unsigned long long)hash, r < 0 ? errname(errno) : "EOF");
            return;
        }
        hash = hash_more(hash, buf, (size_t)r);
        total += (uint64_t)r;
    }
}

EXPORT void set_nonblocking(int fd, bool on) {
    int flags = fcntl(fd, F_GETFL);
    if (fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) < 0) say("F_SETFL: %s", errname(errno));
}

/* --- the stats page ---------------------------------------------------------- */

EXPORT uint64_t page_u64(const char *page, size_t at) {
    uint64_t v;
    memcpy(&v, page + at, sizeof v);
    return v;
}

/* Bytes that this process has moved by ring, from its own stats page (docs/formats). */
EXPORT void report_lane(void) {
    enum { HEADER = 4096, ENTRY = 192, CONN_HIGH = 72, COUNTERS = 256, TX_RING = 7, RX_RING = 9, E_TX = 96, E_RX = 112 };
    char path[64], target[128], header[HEADER], entry[ENTRY];
    int kept = errno;
    DIR *fds = opendir("/proc/self/fd");
    for (struct dirent *d; fds && (d = readdir(fds));) {
        snprintf(path, sizeof path, "/proc/self/fd/%.20s", d->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n < 0) continue;
        target[n] = 0;
        if (strncmp(target, "/memfd:memlane-stats", 20)) continue;
        int page = open(path, O_RDONLY | O_CLOEXEC);
        if (page < 0) continue;
        uint32_t pid = 0, high = 0;
        if (pread(page, header, HEADER, 0) == HEADER) {
            memcpy(&pid, header + 24, 4);
            memcpy(&high, header + CONN_HIGH, 4);
        }
        if (pid == (uint32_t)getpid()) {
            uint64_t tx = page_u64(header, COUNTERS + 8 * TX_RING), rx = page_u64(header, COUNTERS + 8 * RX_RING);
            for (uint32_t i = 0; i < high && i < 65536; i++)
                if (pread(page, entry, ENTRY, HEADER + (off_t)i * ENTRY) == ENTRY) {
                    tx += page_u64(entry, E_TX);
                    rx += page_u64(entry, E_RX);
                }
            struct actor *me = &arena->actors[self_actor];
            if (tx > me->tx_ring) me->tx_ring = tx;
            if (rx > me->rx_ring) me->rx_ring = rx;
        }
        close(page);
    }
    if (fds) closedir(fds);
    errno = kept;
}

#include "peer.h"
#include "supervise.h"
