/* readv/writev, messages, several messages, sendfile, splice, raw system calls, fortified names. */
#include "common.h"

static char scratch[262144];

static void writev_and_readv(void) {
    int fd = pair();
    struct iovec out[] = {{"one ", 4}, {"", 0}, {"two ", 4}, {"three", 5}};
    R(writev(fd, out, 4));
    tell(P_TAKE, 13);
    tell_text("abcdefghij");
    settle(fd, 10);
    char a[3], b[4], c[20];
    struct iovec in[] = {{a, 3}, {b, 0}, {b, 4}, {c, 20}};
    R(readv(fd, in, 4));
    say("%.3s %.4s %.3s", a, b, c);
    R(writev(fd, out, 0));
    R(readv(fd, in, 0));
    exchange(fd);
    finish();
}

static void big_vectors(void) {
    int fd = pair();
    static struct iovec v[512];
    fill(scratch, 200000, 3);
    for (int i = 0; i < 512; i++) v[i] = (struct iovec){scratch + i * 300, 300};
    order(P_TAKE, 153600);
    R(writev(fd, v, 512));
    done();
    tell(P_SEND, 50000);
    settle(fd, 50000);
    memset(scratch, 0, 200000);
    R(readv(fd, v, 512));
    say_bytes("all", scratch, 50000);
    finish();
}

static void sendmsg_and_recvmsg(void) {
    int fd = pair();
    struct iovec out[] = {{"part one, ", 10}, {"part two", 8}};
    struct msghdr m = {.msg_iov = out, .msg_iovlen = 2};
    R(sendmsg(fd, &m, 0));
    R(sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT));
    tell(P_TAKE, 36);
    tell_text("answer in two");
    settle(fd, 13);
    char a[7], b[50], control[100];
    union address from;
    struct iovec in[] = {{a, 7}, {b, 50}};
    m = (struct msghdr){.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = in, .msg_iovlen = 2,
                        .msg_control = control, .msg_controllen = sizeof control, .msg_flags = -1};
    R(recvmsg(fd, &m, MSG_PEEK));
    say("flags %x name %u control %zu", m.msg_flags, m.msg_namelen, (size_t)m.msg_controllen);
    R(recvmsg(fd, &m, 0));
    say("flags %x name %u control %zu '%.7s' '%.6s'", m.msg_flags, m.msg_namelen, (size_t)m.msg_controllen, a, b);
    R(recvmsg(fd, &m, MSG_DONTWAIT));
    m.msg_iovlen = 0;
    R(sendmsg(fd, &m, 0));
    finish();
}

/* musl has padding there. */
static void junk_between_the_fields_of_a_header(void) {
    int fd = pair();
    struct iovec out = {"clean", 5}, in = {scratch, 20};
    struct msghdr m;
    memset(&m, 0xa5, sizeof m);
    m.msg_name = m.msg_control = NULL;
    m.msg_namelen = 0;
    m.msg_controllen = 0;
    m.msg_iov = &out;
    m.msg_iovlen = 1;
    R(sendmsg(fd, &m, 0));
    tell(P_TAKE, 5);
    tell_text("as clean");
    settle(fd, 8);
    m.msg_iov = &in;
    long n = R(recvmsg(fd, &m, 0));
    say_bytes("came", scratch, n);
    say("flags %x control %zu", m.msg_flags, (size_t)m.msg_controllen);
    exchange(fd);
    finish();
}

static void sendmmsg_and_recvmmsg(void) {
    int fd = pair();
    struct iovec v[] = {{"first,", 6}, {"second,", 7}, {"third", 5}};
    struct mmsghdr m[3];
    memset(m, 0, sizeof m);
    for (int i = 0; i < 3; i++) m[i].msg_hdr = (struct msghdr){.msg_iov = &v[i], .msg_iovlen = 1};
    R(sendmmsg(fd, m, 3, 0));
    say("lengths %u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
    tell(P_TAKE, 18);
    tell_text("0123456789");
    settle(fd, 10);
    char bufs[3][4];
    struct iovec in[3];
    for (int i = 0; i < 3; i++) {
        in[i] = (struct iovec){bufs[i], 4};
        m[i].msg_hdr = (struct msghdr){.msg_iov = &in[i], .msg_iovlen = 1};
    }
    R(recvmmsg(fd, m, 3, MSG_DONTWAIT, NULL));
    say("lengths %u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
    R(recvmmsg(fd, m, 3, MSG_DONTWAIT, NULL));
    tell_text("abcd");
    settle(fd, 4);
    R(recvmmsg(fd, m, 3, MSG_WAITFORONE, NULL));
    exchange(fd);
    finish();
}

static int file_of(size_t n) {
    int f = memfd_create("content", MFD_CLOEXEC);
    char *buf = malloc(n);
    fill(buf, n, 11);
    if (write(f, buf, n) != (ssize_t)n) say("file: %s", errname(errno));
    free(buf);
    lseek(f, 0, SEEK_SET);
    return f;
}

static long send_whole_file(int fd, int f, off_t *offset, size_t n) {
    size_t left = n;
    while (left > 0) {
        ssize_t r = sendfile(fd, f, offset, left);
        if (r <= 0) break;
        left -= (size_t)r;
    }
    return (long)(n - left);
}

static void sendfile_by_position(void) {
    int fd = pair(), f = file_of(10000);
    R(lseek(f, 1000, SEEK_SET));
    R(sendfile(fd, f, NULL, 4000));
    R(lseek(f, 0, SEEK_CUR));
    tell(P_TAKE, 4000);
    R(sendfile(fd, f, NULL, 10000));
    R(sendfile(fd, f, NULL, 10));
    tell(P_TAKE, 5000);
    exchange(fd);
    finish();
}

static void sendfile_by_offset(void) {
    int fd = pair(), f = file_of(10000);
    off_t offset = 2500;
    R(sendfile(fd, f, &offset, 5000));
    say("offset %ld", (long)offset);
    R(lseek(f, 0, SEEK_CUR));
    tell(P_TAKE, 5000);
    off64_t offset64 = 9990;
    R(sendfile64(fd, f, &offset64, 5000));
    say("offset %ld", (long)offset64);
    tell(P_TAKE, 10);
    offset = -1;
    R(sendfile(fd, f, &offset, 5));
    exchange(fd);
    finish();
}

static void sendfile_of_much(void) {
    int fd = pair(), f = file_of(3000000);
    order(P_TAKE, 3000000);
    R(send_whole_file(fd, f, NULL, 3000000));
    done();
    off_t offset = 0;
    send_text(fd, "header ");
    order(P_TAKE, 500007);
    R(send_whole_file(fd, f, &offset, 500000));
    done();
    exchange(fd);
    finish();
}

static void sendfile_without_blocking(void) {
    int fd = pair(), f = file_of(8000000);
    off_t offset = 0;
    set_nonblocking(fd, true);
    bool full = false;
    while (offset < 8000000) {
        ssize_t r = sendfile(fd, f, &offset, (size_t)(8000000 - offset));
        if (r < 0 && errno == EAGAIN) {
            if (!full) order(P_TAKE, 8000000);
            full = true;
            poll_for(fd, POLLOUT);
        } else if (r <= 0) {
            say("sendfile %s", errname(errno));
            break;
        }
    }
    say("was full: %d", full);
    done();
    finish();
}

static void sendfile_to_a_closed_peer(void) {
    int fd = pair(), f = file_of(1000);
    signal(SIGPIPE, SIG_IGN);
    tell(P_CLOSE, 0);
    poll_for(fd, POLLRDHUP);
    R(sendfile(fd, f, NULL, 10));
    poll_for(fd, POLLHUP);
    R(sendfile(fd, f, NULL, 10));
    finish();
}

static void sendfile_from_a_socket_fails(void) {
    int fd = pair(), f = file_of(10);
    tell_text("bytes");
    settle(fd, 5);
    R(sendfile(f, fd, NULL, 5));
    off64_t at = 0;
    R(copy_file_range(f, &at, fd, NULL, 5, 0));
    take(fd, 5);
    exchange(fd);
    finish();
}

static void splice_to_a_pipe(void) {
    int fd = pair(), p[2];
    if (pipe(p)) die("pipe");
    tell_text("through the pipe");
    settle(fd, 16);
    R(splice(fd, NULL, p[1], NULL, 7, 0));
    R(splice(fd, NULL, p[1], NULL, 100, SPLICE_F_MOVE));
    long n = R(read(p[0], scratch, 100));
    say_bytes("pipe", scratch, n);
    set_nonblocking(fd, true);
    R(splice(fd, NULL, p[1], NULL, 100, SPLICE_F_NONBLOCK));
    set_nonblocking(fd, false);
    exchange(fd);
    tell(P_SHUT, SHUT_WR);
    R(splice(fd, NULL, p[1], NULL, 100, 0));
    finish();
}

static void splice_from_a_pipe(void) {
    int fd = pair(), p[2];
    if (pipe(p)) die("pipe");
    R(write(p[1], "from the pipe", 13));
    R(splice(p[0], NULL, fd, NULL, 4, 0));
    R(splice(p[0], NULL, fd, NULL, 100, SPLICE_F_MORE));
    R(close(p[1]));
    R(splice(p[0], NULL, fd, NULL, 100, 0));
    send_text(fd, ".");
    tell(P_TAKE, 14);
    exchange(fd);
    finish();
}

/* A proxy's way: connection to connection through a pipe. */
static void splice_between_connections(void) {
    int one = pair(), two = pair(), p[2];
    if (pipe(p)) die("pipe");
    order_at(0, P_SEND, 700000);
    order_at(1, P_TAKE, 700000);
    long left = 700000;
    while (left > 0) {
        long n = splice(one, NULL, p[1], NULL, (size_t)left, SPLICE_F_MOVE);
        if (n <= 0) break;
        left -= n;
        while (n > 0) {
            long m = splice(p[0], NULL, two, NULL, (size_t)n, SPLICE_F_MOVE | SPLICE_F_MORE);
            if (m <= 0) {
                say("splice out: %s", errname(errno));
                break;
            }
            n -= m;
        }
    }
    say("left %ld", left);
    send_text(two, "!");
    done_at(0);
    done_at(1);
    tell_at(1, P_TAKE, 1);
    exchange(one);
    finish();
}

/* The bytes lie on both lanes, and no step of a buffer ends where the ring does. */
static void splice_where_the_ring_ends(void) {
    int fd = pair(), p[2];
    if (pipe(p)) die("pipe");
    tell(P_SEND, 20000);
    settle(fd, 20000);
    R(splice(fd, NULL, p[1], NULL, 10, 0));
    R(read(p[0], scratch, 10));
    tell(P_SEND, 20000);
    settle(fd, 39990);
    uint64_t hash = HASH_START;
    for (long left = 39990; left > 0;) {
        long n = splice(fd, NULL, p[1], NULL, (size_t)left, SPLICE_F_MOVE);
        if (n <= 0) break;
        left -= n;
        for (long m; n > 0 && (m = read(p[0], scratch, (size_t)n)) > 0; n -= m)
            hash = hash_more(hash, scratch, (size_t)m);
    }
    say("hash %016llx", (unsigned long long)hash);
    exchange(fd);
    finish();
}

static void splice_asleep_body(int fd) {
    int p[2];
    if (pipe(p)) die("pipe");
    long n = R(splice(fd, NULL, p[1], NULL, 100, 0));
    if (n > 0 && read(p[0], scratch, (size_t)n) == n) say_bytes("spliced", scratch, n);
}
static void splice_while_asleep(void) {
    int fd = pair();
    order_call(splice_asleep_body);
    until_peer_asleep();
    send_text(fd, "wake");
    done();
    exchange(fd);
    finish();
}

static void raw_system_calls(void) {
    int fd = pair();
    R(syscall(SYS_write, fd, "raw write", 9));
    R(syscall(SYS_sendto, fd, " raw send", 9, 0, NULL, 0));
    tell(P_TAKE, 18);
    tell_text("for raw reads");
    settle(fd, 13);
    long n = R(syscall(SYS_read, fd, scratch, 4));
    say_bytes("read", scratch, n);
    n = R(syscall(SYS_recvfrom, fd, scratch, 100, 0, NULL, NULL));
    say_bytes("recvfrom", scratch, n);
    exchange(fd);
    finish();
}

static void raw_reads_mixed_with_hooked(void) {
    int fd = pair();
    for (int i = 0; i < 4; i++) {
        tell_text("eight.. ");
        settle(fd, 8);
        take(fd, 3);
        long n = R(syscall(SYS_read, fd, scratch, 5));
        say_bytes("read", scratch, n);
        send_text(fd, "a");
        R(syscall(SYS_write, fd, "b", 1));
        send_text(fd, "c");
        tell(P_TAKE, 3);
    }
    finish();
}

static void raw_poll_and_epoll(void) {
    int fd = pair();
    tell_text("x");
    settle(fd, 1);
    struct pollfd p = {fd, POLLIN, 0};
    R(syscall(SYS_poll, &p, 1, 2000));
    say("%s", events((unsigned short)p.revents));
    int ep = (int)syscall(SYS_epoll_create1, 0);
    struct epoll_event ev = {EPOLLIN, {.fd = fd}};
    R(syscall(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, fd, &ev));
    R(syscall(SYS_epoll_pwait, ep, &ev, 1, 2000, NULL, 8));
    take(fd, 1);
    exchange(fd);
    finish();
}

static void preadv2_as_readv(void) {
    int fd = pair();
    tell_text("vector");
    settle(fd, 6);
    struct iovec v = {scratch, 3};
    long n = R(preadv2(fd, &v, 1, -1, 0));
    say_bytes("got", scratch, n);
    n = R(preadv2(fd, &v, 1, -1, RWF_NOWAIT));
    say_bytes("got", scratch, n);
    struct iovec o = {"out", 3};
    R(pwritev2(fd, &o, 1, -1, 0));
    tell(P_TAKE, 3);
    R(preadv(fd, &v, 1, 0));
    exchange(fd);
    finish();
}

/* In the fortified program these are __read_chk, __recv_chk, __recvfrom_chk, __poll_chk, __ppoll_chk, __fread_chk. */
static volatile size_t some = 5;
static volatile nfds_t one_fd = 1;

static void fortified_names(void) {
    int fd = pair();
    char buf[64];
    tell_text("abcdefghijklmnopqrst");
    settle(fd, 20);
    R(read(fd, buf, some));
    R(recv(fd, buf, some, 0));
    R(recvfrom(fd, buf, some, 0, NULL, NULL));
    struct pollfd p[2] = {{fd, POLLIN, 0}, {-1, 0, 0}};
    R(poll(p, one_fd, 1000));
    struct timespec second = {1, 0};
    R(ppoll(p, one_fd, &second, NULL));
    R(read(fd, buf, some));
    say_bytes("last", buf, 5);
    R(poll(p, one_fd, 0));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set); /* __fdelt_chk */
    struct timeval zero = {0, 0};
    R(select(fd + 1, &set, NULL, NULL, &zero));
    dprintf(fd, "%s", "printed"); /* __dprintf_chk */
    tell(P_TAKE, 7);
    exchange(fd);
    finish();
}

static void one_byte_reads_of_many(void) {
    int fd = pair();
    tell(P_SEND, 3000);
    uint64_t h = HASH_START;
    char c;
    for (int i = 0; i < 3000; i++) {
        if (read(fd, &c, 1) != 1) say("read %d failed", i);
        h = hash_more(h, &c, 1);
    }
    say("hash %016llx", (unsigned long long)h);
    R(recv(fd, &c, 1, MSG_DONTWAIT));
    finish();
}

static void sizes_around_powers_of_two(void) {
    int fd = pair();
    static const int sizes[] = {1, 63, 64, 65, 4095, 4096, 4097, 16383, 16384, 16385, 65535, 65536, 65537};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        order(P_ECHO, sizes[i]);
        send_n(fd, (size_t)sizes[i], (unsigned)i);
        take(fd, (size_t)sizes[i]);
        done();
    }
    finish();
}

const struct one_case cases[] = {
#define CASE(name) {#name, name, 0}
    CASE(writev_and_readv),
    CASE(big_vectors),
    CASE(sendmsg_and_recvmsg),
    CASE(junk_between_the_fields_of_a_header),
    CASE(sendmmsg_and_recvmmsg),
    CASE(sendfile_by_position),
    CASE(sendfile_by_offset),
    CASE(sendfile_of_much),
    CASE(sendfile_without_blocking),
    CASE(sendfile_to_a_closed_peer),
    CASE(sendfile_from_a_socket_fails),
    CASE(splice_to_a_pipe),
    CASE(splice_from_a_pipe),
    CASE(splice_between_connections),
    CASE(splice_where_the_ring_ends),
    CASE(splice_while_asleep),
    CASE(raw_system_calls),
    CASE(raw_reads_mixed_with_hooked),
    CASE(raw_poll_and_epoll),
    CASE(preadv2_as_readv),
    CASE(fortified_names),
    CASE(one_byte_reads_of_many),
    CASE(sizes_around_powers_of_two),
    {NULL, NULL, 0},
};
