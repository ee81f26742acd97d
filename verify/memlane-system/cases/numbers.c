/* The same calls, by their numbers: syscall(2). */
#include "common.h"

#define N(name, ...) syscall(SYS_##name, __VA_ARGS__)

static char scratch[65536];

/* Five bytes wait to be read, wherever they lie. */
static void five_bytes(int fd) {
    tell_text("bytes");
    settle(fd, 5);
}

static void end_well(int fd) {
    exchange(fd);
    finish();
}

/* --- bytes ------------------------------------------------------------------------ */

static void mmsg_by_number(int fd) {
    struct iovec v[2] = {{"first, ", 7}, {"second", 6}};
    struct mmsghdr out[2] = {{.msg_hdr = {.msg_iov = &v[0], .msg_iovlen = 1}},
                             {.msg_hdr = {.msg_iov = &v[1], .msg_iovlen = 1}}};
    R(N(sendmmsg, fd, out, 2, 0));
    say("%u and %u", out[0].msg_len, out[1].msg_len);
    tell(P_TAKE, 13);
    five_bytes(fd);
    struct iovec w[2] = {{scratch, 3}, {scratch + 3, 100}};
    struct mmsghdr in[2] = {{.msg_hdr = {.msg_iov = &w[0], .msg_iovlen = 1}},
                            {.msg_hdr = {.msg_iov = &w[1], .msg_iovlen = 1}}};
    R(N(recvmmsg, fd, in, 2, MSG_DONTWAIT, NULL));
    say("%u and %u", in[0].msg_len, in[1].msg_len);
    say_bytes("got", scratch, 5);
}

static void addressed_by_number(int fd) {
    union address a;
    socklen_t len = sizeof a;
    five_bytes(fd);
    long n = R(N(recvfrom, fd, scratch, 100, MSG_DONTWAIT, &a, &len));
    say_bytes("got", scratch, n);
    a = loopback(AF_INET, 9);
    R(N(sendto, fd, "addressed", 9, 0, &a, sizeof a.v4));
    tell(P_TAKE, 9);
}

static void vectors_at_by_number(int fd) {
    struct iovec v[2] = {{"pwrite", 6}, {"v2", 2}}, w = {scratch, 100};
    R(N(pwritev2, fd, v, 2, -1L, -1L, 0));
    tell(P_TAKE, 8);
    five_bytes(fd);
    long n = R(N(preadv2, fd, &w, 1, -1L, -1L, 0));
    say_bytes("got", scratch, n);
}

static void sendfile_by_number(int fd) {
    int file = memfd_create("file", MFD_CLOEXEC);
    fill(scratch, 40000, 5);
    if (write(file, scratch, 40000) != 40000) die("write");
    off_t at = 100;
    R(N(sendfile, fd, file, &at, 30000L));
    say("offset %ld", (long)at);
    tell(P_TAKE, 30000);
    close(file);
}

static void splice_by_number(int fd) {
    int pipes[2];
    if (pipe(pipes) < 0) die("pipe");
    five_bytes(fd);
    R(N(splice, fd, NULL, pipes[1], NULL, 100L, SPLICE_F_NONBLOCK));
    long n = R(read(pipes[0], scratch, 100));
    say_bytes("through the pipe", scratch, n);
    if (write(pipes[1], "back again", 10) != 10) die("write");
    R(N(splice, pipes[0], NULL, fd, NULL, 10L, 0));
    tell(P_TAKE, 10);
    close(pipes[0]);
    close(pipes[1]);
}

/* --- waiting: what is there already, wherever it lies, is seen ----------------------- */

static struct timespec soon(void) { return (struct timespec){1, 0}; }

static void ppoll_by_number(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    struct timespec t = soon();
    five_bytes(fd);
    R(N(ppoll, &p, 1L, &t, NULL, 8L));
    say("%s", events((unsigned)p.revents));
}

static void ppoll_with_a_mask_by_number(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    struct timespec t = soon();
    unsigned long mask = 0;
    five_bytes(fd);
    R(N(ppoll, &p, 1L, &t, &mask, 8L));
    say("%s", events((unsigned)p.revents));
}

static void pselect_by_number(int fd) {
    fd_set set;
    struct timespec t = soon();
    unsigned long mask = 0, both[2] = {(unsigned long)&mask, 8};
    FD_ZERO(&set);
    FD_SET(fd, &set);
    five_bytes(fd);
    R(N(pselect6, (long)fd + 1, &set, NULL, NULL, &t, NULL));
    say("set: %d", FD_ISSET(fd, &set) != 0);
    t = soon();
    R(N(pselect6, (long)fd + 1, &set, NULL, NULL, &t, both));
    say("set: %d", FD_ISSET(fd, &set) != 0);
}

static void epoll_waits(int ep, int fd) {
    struct epoll_event ev = {EPOLLIN, {.fd = 77}};
    struct timespec t = soon();
    R(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
    five_bytes(fd);
    memset(&ev, 0, sizeof ev);
    R(epoll_wait(ep, &ev, 1, 1000));
    say("%d: %s", ev.data.fd, events(ev.events));
    memset(&ev, 0, sizeof ev);
    R(N(epoll_pwait2, ep, &ev, 1L, &t, NULL, 8L));
    say("%d: %s", ev.data.fd, events(ev.events));
    take(fd, 5);
    t = (struct timespec){0, 2000000};
    R(N(epoll_pwait2, ep, &ev, 1L, &t, NULL, 8L));
    close(ep);
}

static void epoll_by_number(int fd) { epoll_waits((int)N(epoll_create1, (long)EPOLL_CLOEXEC), fd); }

#ifdef __x86_64__
static void old_waits_by_number(int fd) {
    fd_set set;
    struct timeval t = {1, 0};
    FD_ZERO(&set);
    FD_SET(fd, &set);
    five_bytes(fd);
    R(N(select, (long)fd + 1, &set, NULL, NULL, &t));
    say("set: %d", FD_ISSET(fd, &set) != 0);
    take(fd, 5);
    epoll_waits((int)N(epoll_create, 1L), fd);
}
#endif

/* --- descriptors, ends, modes, options ------------------------------------------------- */

static void says_what_a_copy_reads(int copy) {
    long n = R(recv(copy, scratch, 100, MSG_DONTWAIT));
    if (n > 0) say_bytes("by the copy", scratch, n);
    close(copy);
}

static void copies_by_number(int fd) {
    five_bytes(fd);
    says_what_a_copy_reads((int)N(fcntl, fd, (long)F_DUPFD, 50L));
    five_bytes(fd);
    says_what_a_copy_reads((int)N(fcntl, fd, (long)F_DUPFD_CLOEXEC, 50L));
#ifdef __x86_64__
    five_bytes(fd);
    says_what_a_copy_reads((int)N(dup2, fd, 60L));
#endif
}

static void modes_by_number(int fd) {
    int n = 0, on = 1;
    five_bytes(fd);
    R(N(ioctl, fd, (long)FIONREAD, &n));
    say("FIONREAD %d", n);
    take(fd, 5);
    long flags = N(fcntl, fd, (long)F_GETFL);
    R(N(fcntl, fd, (long)F_SETFL, flags | O_NONBLOCK));
    R(recv(fd, scratch, 10, 0));
    R(N(fcntl, fd, (long)F_SETFL, flags));
    R(N(ioctl, fd, (long)FIONBIO, &on));
    R(recv(fd, scratch, 10, 0));
    on = 0;
    R(N(ioctl, fd, (long)FIONBIO, &on));
}

/* While a lane is open, the kernel's value of this option is not the program's. */
static void options_by_number(int fd) {
    int value = 1;
    socklen_t len = sizeof value;
    R(N(setsockopt, fd, (long)IPPROTO_TCP, (long)TCP_NODELAY, &value, (long)sizeof value));
    value = 7;
    R(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len));
    say("TCP_NODELAY %d", value);
    value = 0;
    R(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value));
    value = 7;
    R(N(getsockopt, fd, (long)IPPROTO_TCP, (long)TCP_NODELAY, &value, &len));
    say("TCP_NODELAY %d", value);
}

#define ON_A_PAIR(name) \
    static void name##_case(void) { \
        int fd = pair(); \
        name(fd); \
        end_well(fd); \
    }
ON_A_PAIR(mmsg_by_number)
ON_A_PAIR(addressed_by_number)
ON_A_PAIR(vectors_at_by_number)
ON_A_PAIR(sendfile_by_number)
ON_A_PAIR(splice_by_number)
static void shutdown_by_number_case(void) {
    int fd = pair();
    R(N(shutdown, fd, (long)SHUT_WR));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    tell(P_DRAIN, 0);
    five_bytes(fd);
    take(fd, 5);
    finish();
}

#define TAKING_FIVE(name) \
    static void name##_case(void) { \
        int fd = pair(); \
        name(fd); \
        take(fd, 5); \
        end_well(fd); \
    }
TAKING_FIVE(ppoll_by_number)
TAKING_FIVE(ppoll_with_a_mask_by_number)
TAKING_FIVE(pselect_by_number)
ON_A_PAIR(epoll_by_number)
#ifdef __x86_64__
ON_A_PAIR(old_waits_by_number)
#endif
ON_A_PAIR(copies_by_number)
ON_A_PAIR(modes_by_number)
ON_A_PAIR(options_by_number)

/* --- connections that were made by numbers ------------------------------------------------ */

static void rounds(int fd, bool starts) {
    char byte;
    for (int i = 0; i < 100; i++) {
        byte = (char)i;
        if (starts == (i % 2 == 0)) send_all(fd, &byte, 1);
        else if (recv_all(fd, &byte, 1) != 1 || byte != (char)i) say("round %d: wrong", i);
    }
}

static void connects_by_number(int port) {
    union address a = loopback(AF_INET, port);
    int fd = (int)N(socket, (long)AF_INET, (long)SOCK_STREAM, 0L);
    R(N(connect, fd, &a, (long)sizeof a.v4));
    rounds(fd, true);
    close(fd);
}

static void made_by_number(void) {
    int listener = (int)N(socket, (long)AF_INET, (long)SOCK_STREAM, 0L);
    union address a = loopback(AF_INET, 0);
    if (bind(listener, &a.any, sizeof a.v4) < 0) die("bind");
    R(N(listen, listener, 5L));
    int child = fork_actor(1, connects_by_number, bound_port(listener));
    int fd = (int)N(accept, listener, NULL, NULL);
    rounds(fd, false);
    say_wait("child", child);
}

const struct one_case cases[] = {
#define CASE(name) {#name, name##_case, 0}
    CASE(mmsg_by_number),
    CASE(addressed_by_number),
    CASE(vectors_at_by_number),
    CASE(sendfile_by_number),
    CASE(splice_by_number),
    CASE(shutdown_by_number),
    CASE(ppoll_by_number),
    CASE(ppoll_with_a_mask_by_number),
    CASE(pselect_by_number),
    CASE(epoll_by_number),
#ifdef __x86_64__
    CASE(old_waits_by_number),
#endif
    CASE(copies_by_number),
    CASE(modes_by_number),
    CASE(options_by_number),
    {"made_by_number", made_by_number, NO_THREAD | ONCE | LANE},
    {NULL, NULL, 0},
};
