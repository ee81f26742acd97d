/* As much of CUDA's driver as the lane calls, without a device. Its "device memory" has addresses at which nothing is
 * mapped, so that a byte that the CPU copies there ends the test; asynchronous copies are done when somebody waits for
 * them and not before. What it exports is that memory, though no dma-buf. What is built in by -D: VERSION, DEVICES, INIT (cuInit's answer), DMA_BUF (an attribute),
 * LACKING (no events), OLD (no export). What a test sets: fake_fail_copy, fake_fail_wait, fake_room; what it reads:
 * fake_live (handles and memory that are not given back). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION 12040
#endif
#ifndef DEVICES
#define DEVICES 2
#endif
#ifndef INIT
#define INIT 0
#endif
#ifndef DMA_BUF
#define DMA_BUF 1
#endif

/* No process has anything there. */
#define FAR 0x7000000000000000ull

typedef int R;
struct copy { char *to; const char *from; size_t len; struct copy *next; };
struct stream { struct copy *first, **last; };
struct event { struct stream *of; };
/* The page before memory: what it is, which others may map. */
struct head { size_t len; int fd; };

int fake_fail_copy, fake_fail_wait, fake_live, fake_copies, fake_waits, fake_registered;
size_t fake_room = 1ull << 30;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int depth;
static int retained;

static void *near(uint64_t at) { return (void *)(uintptr_t)(at - FAR); }

R cuInit(unsigned flags) { return flags ? 1 : INIT; }
R cuDriverGetVersion(int *v) { *v = VERSION; return 0; }
R cuDeviceGetCount(int *n) { *n = DEVICES; return 0; }
R cuDeviceGet(int *d, int n) { *d = n + 40; return n < DEVICES ? 0 : 101; }
R cuDeviceGetName(char *name, int len, int d) { (void)d; strncpy(name, "Fake H0", len); return 0; }
R cuDeviceGetAttribute(int *v, int what, int d) { (void)d; *v = what == 124 ? DMA_BUF : 0; return 0; }
R cuDevicePrimaryCtxRetain(uintptr_t *c, int d) {
    pthread_mutex_lock(&lock);
    retained++; fake_live++;
    pthread_mutex_unlock(&lock);
    *c = d;
    return 0;
}
R cuDevicePrimaryCtxRelease_v2(int d) {
    (void)d;
    pthread_mutex_lock(&lock);
    retained--; fake_live--;
    pthread_mutex_unlock(&lock);
    return 0;
}
R cuCtxPushCurrent_v2(uintptr_t c) { if (c < 40 || !retained) return 201; depth++; return 0; }
R cuCtxPopCurrent_v2(uintptr_t *c) { if (!depth) return 201; depth--; *c = 40; return 0; }

static void count(int by) { __atomic_fetch_add(&fake_live, by, __ATOMIC_SEQ_CST); }

R cuMemAlloc_v2(uint64_t *at, size_t len) {
    if (!depth) return 201;
    if (len > fake_room) return 2;
    int fd = memfd_create("fake", 1);
    if (fd < 0 || ftruncate(fd, (len + 4095) & ~4095ul)) return 2;
    char *p = mmap(0, len + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return 2;
    if (mmap(p + 4096, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) return 2;
    *(struct head *)p = (struct head){len, fd};
    *at = (uintptr_t)p + 4096 + FAR;
    count(1);
    return 0;
}
R cuMemFree_v2(uint64_t at) {
    char *p = (char *)near(at) - 4096;
    struct head head = *(struct head *)p;
    close(head.fd);
    munmap(p, head.len + 4096);
    count(-1);
    return 0;
}
R cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t len) {
    if (!depth) return 201;
    memcpy(near(to), from, len);
    return 0;
}
R cuMemcpyDtoH_v2(void *to, uint64_t from, size_t len) {
    if (!depth) return 201;
    memcpy(to, near(from), len);
    return 0;
}
R cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t len, struct stream *s) {
    if (!depth) return 201;
    pthread_mutex_lock(&lock);
    if (fake_fail_copy && ++fake_copies == fake_fail_copy) {
        pthread_mutex_unlock(&lock);
        return 700;
    }
    struct copy *c = malloc(sizeof *c);
    *c = (struct copy){near(to), from, len, 0};
    *s->last = c;
    s->last = &c->next;
    pthread_mutex_unlock(&lock);
    return 0;
}
R cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t len, struct stream *s) {
    return cuMemcpyHtoDAsync_v2(to, near(from), len, s);
}
R cuStreamCreate(struct stream **s, unsigned flags) {
    if (!depth || flags != 1) return 1;
    *s = calloc(1, sizeof **s);
    (*s)->last = &(*s)->first;
    count(1);
    return 0;
}
static R drain(struct stream *s) {
    pthread_mutex_lock(&lock);
    while (s->first) {
        struct copy *c = s->first;
        memcpy(c->to, c->from, c->len);
        s->first = c->next;
        if (!s->first) s->last = &s->first;
        free(c);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
R cuStreamSynchronize(struct stream *s) { return drain(s); }
R cuStreamDestroy_v2(struct stream *s) { R r = s->first ? 999 : 0; free(s); count(-1); return r; }
#ifndef LACKING
R cuEventCreate(struct event **e, unsigned flags) {
    if (!depth || flags != 3) return 1;
    *e = calloc(1, sizeof **e);
    count(1);
    return 0;
}
#endif
R cuEventRecord(struct event *e, struct stream *s) { e->of = s; return 0; }
R cuEventSynchronize(struct event *e) {
    pthread_mutex_lock(&lock);
    int fails = fake_fail_wait && ++fake_waits == fake_fail_wait;
    pthread_mutex_unlock(&lock);
    /* A device takes its time. */
    usleep(300);
    return fails ? 719 : drain(e->of);
}
R cuEventDestroy_v2(struct event *e) { free(e); count(-1); return 0; }
R cuMemHostRegister_v2(void *at, size_t len, unsigned flags) {
    if (!depth || flags != 1 || ((uintptr_t)at | len) & 4095) return 1;
    fake_registered++;
    count(1);
    return 0;
}
R cuMemHostUnregister(void *at) { (void)at; count(-1); return 0; }
#ifndef OLD
R cuMemGetHandleForAddressRange(int *fd, uint64_t at, size_t len, int kind, unsigned long long flags) {
    if (!depth || kind != 1 || flags || ((at | len) & 4095)) return 1;
    *fd = dup(((struct head *)((char *)near(at) - 4096))->fd);
    return *fd < 0 ? 999 : 0;
}
#endif
