/* Calls that musl does not have, or not in all its versions, by their numbers (part of common.h). */
#ifndef __GLIBC__
#include <linux/close_range.h>
#define close_range(first, last, flags) ((int)syscall(SYS_close_range, first, last, flags))
#define closefrom(first) ((void)close_range(first, ~0u, 0))
#define epoll_pwait2(ep, events, max, timeout, mask) \
    ((int)syscall(SYS_epoll_pwait2, ep, events, max, timeout, mask, (size_t)8))
#define preadv2(fd, list, count, offset, flags) \
    ((ssize_t)syscall(SYS_preadv2, fd, list, count, (long)(offset), 0L, flags))
#define pwritev2(fd, list, count, offset, flags) \
    ((ssize_t)syscall(SYS_pwritev2, fd, list, count, (long)(offset), 0L, flags))
#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif
#endif
