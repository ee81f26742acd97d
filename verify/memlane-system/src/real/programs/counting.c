/* A library to preload beside memlane's, as profilers and sandboxes are: it counts the calls of connect, send and recv that reach
 * it, and says so when the program ends. With INDIRECT, the loader asks it for the address of connect. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static unsigned connects, sends, receives;

static int counted_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    __atomic_fetch_add(&connects, 1, __ATOMIC_RELAXED);
    return next(fd, address, length);
}

#ifdef INDIRECT
static void *choose(void) { return (void *)counted_connect; }
int connect(int, const struct sockaddr *, socklen_t) __attribute__((ifunc("choose")));
#else
int connect(int fd, const struct sockaddr *address, socklen_t length) { return counted_connect(fd, address, length); }
#endif

ssize_t send(int fd, const void *bytes, size_t length, int flags)
{
    ssize_t (*next)(int, const void *, size_t, int) = dlsym(RTLD_NEXT, "send");
    __atomic_fetch_add(&sends, 1, __ATOMIC_RELAXED);
    return next(fd, bytes, length, flags);
}

ssize_t recv(int fd, void *bytes, size_t length, int flags)
{
    ssize_t (*next)(int, void *, size_t, int) = dlsym(RTLD_NEXT, "recv");
    __atomic_fetch_add(&receives, 1, __ATOMIC_RELAXED);
    return next(fd, bytes, length, flags);
}

__attribute__((destructor)) static void tell(void)
{
    dprintf(2, "counted: connect %u, send %u, recv %u\n", connects, sends, receives);
}
