/* MSG_* flags, urgent data, cork, zero copy, bad arguments. */
#include "common.h"

#include <linux/errqueue.h>

static char scratch[262144];

static void got(long r) {
    if (r > 0) say_bytes("got", scratch, r);
}
static void recv_flags(int fd, size_t n, int flags) {
    memset(scratch, '#', n);
    errno = 0;
    long r = recv(fd, scratch, n, flags);
    say_result("recv", r, errno);
    got(r);
}

static void peek_then_read(void) {
    int fd = pair();
    tell_text("peek at this");
    settle(fd, 12);
    recv_flags(fd, 4, MSG_PEEK);
    recv_flags(fd, 100, MSG_PEEK);
    recv_flags(fd, 4, 0);
    recv_flags(fd, 100, MSG_PEEK);
    recv_flags(fd, 100, 0);
    recv_flags(fd, 100, MSG_PEEK | MSG_DONTWAIT);
    finish();
}

static void peek_across_several_sends(void) {
    int fd = pair();
    tell_text("first ");
    tell_text("second ");
    tell_text("third");
    settle(fd, 18);
    recv_flags(fd, 10, MSG_PEEK);
    recv_flags(fd, 18, MSG_PEEK);
    take(fd, 8);
    recv_flags(fd, 10, MSG_PEEK);
    take(fd, 10);
    finish();
}

static void peek_grows_as_bytes_come(void) {
    int fd = pair();
    for (int i = 1; i <= 4; i++) {
        tell_text("1234567");
        settle(fd, 7 * i);
        recv_flags(fd, 100, MSG_PEEK);
    }
    take(fd, 28);
    finish();
}

static void peek_waits_for_bytes(int fd) {
    recv_flags(fd, 100, MSG_PEEK);
    recv_flags(fd, 100, MSG_PEEK | MSG_DONTWAIT);
    take(fd, 5);
}
static void peek_while_asleep(void) {
    int fd = pair();
    order_call(peek_waits_for_bytes);
    until_peer_asleep();
    send_text(fd, "awake");
    done();
    exchange(fd);
    finish();
}

static void peek_with_waitall(void) {
    int fd = pair();
    tell_text("abc");
    settle(fd, 3);
    tell_text("defgh");
    settle(fd, 8);
    recv_flags(fd, 8, MSG_PEEK | MSG_WAITALL);
    take(fd, 8);
    finish();
}

static void peek_much(void) {
    int fd = pair();
    tell(P_SEND, 50000);
    settle(fd, 50000);
    recv_flags(fd, 50000, MSG_PEEK);
    recv_flags(fd, 30000, MSG_PEEK);
    take(fd, 20000);
    recv_flags(fd, 50000, MSG_PEEK);
    take(fd, 30000);
    finish();
}

static void waitall_body(int fd) { recv_flags(fd, 15, MSG_WAITALL); }
static void waitall_over_several_sends(void) {
    int fd = pair();
    order_call(waitall_body);
    until_peer_asleep();
    send_text(fd, "five.");
    until_peer_asleep();
    send_text(fd, "six...");
    until_peer_asleep();
    send_text(fd, "last and more");
    done();
    tell(P_TAKE, 9);
    finish();
}

static void waitall_ends_short(void) {
    int fd = pair();
    order_call(waitall_body);
    until_peer_asleep();
    send_text(fd, "short");
    R(shutdown(fd, SHUT_WR));
    done();
    tell(P_RECV, 5);
    finish();
}

static void waitall_much(void) {
    int fd = pair();
    order(P_SEND, 250000);
    recv_flags(fd, 250000, MSG_WAITALL);
    done();
    finish();
}

static void waitall_without_waiting(void) {
    int fd = pair();
    tell_text("abc");
    settle(fd, 3);
    recv_flags(fd, 10, MSG_WAITALL | MSG_DONTWAIT);
    recv_flags(fd, 10, MSG_WAITALL | MSG_DONTWAIT);
    set_nonblocking(fd, true);
    tell_text("abc");
    settle(fd, 3);
    recv_flags(fd, 10, MSG_WAITALL);
    recv_flags(fd, 10, MSG_WAITALL);
    finish();
}

static void dontwait(void) {
    int fd = pair();
    recv_flags(fd, 10, MSG_DONTWAIT);
    tell_text("here");
    settle(fd, 4);
    recv_flags(fd, 10, MSG_DONTWAIT);
    recv_flags(fd, 10, MSG_DONTWAIT);
    R(send(fd, "there", 5, MSG_DONTWAIT));
    tell(P_TAKE, 5);
    recv_flags(fd, 10, MSG_DONTWAIT);
    exchange(fd);
    finish();
}

static void trunc_discards(void) {
    int fd = pair();
    tell_text("skipped, kept");
    settle(fd, 13);
    memset(scratch, '#', 20);
    R(recv(fd, scratch, 9, MSG_TRUNC));
    say("buffer untouched: %d", scratch[0] == '#');
    take(fd, 4);
    tell(P_SEND, 20000);
    settle(fd, 20000);
    R(recv(fd, NULL, 19000, MSG_TRUNC));
    take(fd, 1000);
    finish();
}

static void urgent_byte_by_itself(void) {
    int fd = pair();
    int mark = -1;
    R(recv(fd, scratch, 1, MSG_OOB));
    tell_text("normal");
    tell(P_OOB, 0);
    say("poll %s", events(poll_for(fd, POLLPRI | POLLIN)));
    R(ioctl(fd, SIOCATMARK, &mark));
    say("at mark %d", mark);
    recv_flags(fd, 1, MSG_OOB);
    recv_flags(fd, 1, MSG_OOB);
    recv_flags(fd, 100, 0);
    R(ioctl(fd, SIOCATMARK, &mark));
    say("at mark %d", mark);
    tell_text("after");
    recv_flags(fd, 100, 0);
    R(ioctl(fd, SIOCATMARK, &mark));
    say("at mark %d", mark);
    finish();
}

static void reads_stop_at_the_urgent_mark(void) {
    int fd = pair();
    tell_text("before");
    settle(fd, 6);
    tell(P_OOB, 0);
    poll_for(fd, POLLPRI);
    tell_text("after");
    nap_ms(5);
    recv_flags(fd, 100, 0);
    recv_flags(fd, 1, MSG_OOB | MSG_PEEK);
    recv_flags(fd, 1, MSG_OOB);
    take(fd, 5);
    exchange(fd);
    finish();
}

static void urgent_byte_in_line(void) {
    int fd = pair(), on = 1, mark = -1;
    R(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    tell_text("ab");
    settle(fd, 2);
    tell(P_OOB, 0);
    poll_for(fd, POLLPRI);
    tell_text("cd");
    settle(fd, 5);
    recv_flags(fd, 1, MSG_OOB);
    recv_flags(fd, 100, 0);
    R(ioctl(fd, SIOCATMARK, &mark));
    say("at mark %d", mark);
    recv_flags(fd, 100, 0);
    R(ioctl(fd, SIOCATMARK, &mark));
    say("at mark %d", mark);
    exchange(fd);
    finish();
}

static _Atomic int sigurgs;
static void on_sigurg(int sig) { sigurgs++; }
static void urgent_byte_raises_sigurg(void) {
    int fd = pair();
    signal(SIGURG, on_sigurg);
    R(fcntl(fd, F_SETOWN, getpid()));
    tell(P_OOB, 0);
    for (int i = 0; i < 1000 && !sigurgs; i++) nap_ms(1);
    say("signals %d", sigurgs);
    recv_flags(fd, 1, MSG_OOB);
    exchange(fd);
    finish();
}

static void urgent_in_select(void) {
    int fd = pair();
    fd_set bad;
    FD_ZERO(&bad);
    FD_SET(fd, &bad);
    struct timeval zero = {0, 0}, second = {2, 0};
    R(select(fd + 1, NULL, NULL, &bad, &zero));
    tell(P_OOB, 0);
    FD_SET(fd, &bad);
    R(select(fd + 1, NULL, NULL, &bad, &second));
    recv_flags(fd, 1, MSG_OOB);
    finish();
}

static void we_send_urgent(void) {
    int fd = pair();
    send_text(fd, "abc");
    tell(P_TAKE, 3);
    R(send(fd, "xyz", 3, MSG_OOB)); /* z is the urgent one */
    tell(P_RECV, 10);
    exchange(fd);
    finish();
}

static void more_then_the_rest(void) {
    int fd = pair();
    R(send(fd, "header ", 7, MSG_MORE));
    R(send(fd, "body ", 5, MSG_MORE));
    R(send(fd, "end", 3, 0));
    tell(P_TAKE, 15);
    exchange(fd);
    finish();
}

static void more_without_an_end_is_still_sent(void) {
    int fd = pair();
    R(send(fd, "corked", 6, MSG_MORE));
    tell(P_TAKE, 6); /* after 200 ms at the latest */
    exchange(fd);
    finish();
}

static void cork_and_uncork(void) {
    int fd = pair(), on = 1, off = 0;
    R(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    for (int i = 0; i < 5; i++) send_text(fd, "piece ");
    R(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
    tell(P_TAKE, 30);
    int value = -1;
    socklen_t len = sizeof value;
    R(getsockopt(fd, IPPROTO_TCP, TCP_CORK, &value, &len));
    say("cork %d", value);
    exchange(fd);
    finish();
}

static void cork_then_close(void) {
    int fd = pair(), on = 1;
    R(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    send_text(fd, "corked to the end");
    order(P_DRAIN, 0);
    R(close(fd));
    done();
    finish();
}

static void cork_around_sendfile_style_writes(void) {
    int fd = pair(), on = 1, off = 0;
    for (int round = 0; round < 3; round++) {
        setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
        send_text(fd, "HTTP header\r\n");
        send_n(fd, 5000, 4);
        setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
        tell(P_TAKE, 5013);
    }
    finish();
}

static void nodelay_is_kept(void) {
    int fd = pair();
    for (int on = 1; on >= 0; on--) {
        int value = -1;
        socklen_t len = sizeof value;
        R(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
        R(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len));
        say("nodelay %d", value != 0);
        send_text(fd, "a");
        send_text(fd, "b");
        tell(P_TAKE, 2);
    }
    exchange(fd);
    finish();
}

static void read_notices(int fd, int sends) {
    int completed = 0;
    for (int i = 0; i < 2000 && completed < sends; i++) {
        char control[256];
        struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(fd, &m, MSG_ERRQUEUE) < 0) {
            nap_ms(1);
            continue;
        }
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
            struct sock_extended_err *e = (void *)CMSG_DATA(c);
            if (e->ee_origin == SO_EE_ORIGIN_ZEROCOPY) completed += (int)(e->ee_data - e->ee_info + 1);
        }
    }
    say("completed %d", completed);
}

static void zerocopy_sends_are_acknowledged(void) {
    int fd = pair(), on = 1;
    R(recv(fd, scratch, 1, MSG_ERRQUEUE));
    R(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
    fill(scratch, 30000, 8);
    for (int i = 0; i < 3; i++) {
        R(send(fd, scratch, 10000, MSG_ZEROCOPY));
        tell(P_TAKE, 10000);
    }
    say("poll %s", events(poll_for(fd, POLLERR)));
    read_notices(fd, 3);
    say("poll %s", events(poll_for(fd, POLLOUT)));
    exchange(fd);
    finish();
}

static void zerocopy_flag_without_the_option(void) {
    int fd = pair();
    R(send(fd, "copied", 6, MSG_ZEROCOPY));
    tell(P_TAKE, 6);
    exchange(fd);
    finish();
}

static void nothing_to_do(void) {
    int fd = pair();
    R(send(fd, "", 0, 0));
    R(write(fd, "", 0));
    R(recv(fd, scratch, 0, MSG_DONTWAIT));
    R(read(fd, scratch, 0));
    tell_text("x");
    settle(fd, 1);
    R(recv(fd, scratch, 0, 0));
    R(read(fd, scratch, 0));
    take(fd, 1);
    exchange(fd);
    finish();
}

static void *volatile nowhere = (void *)16; /* hides it from the compiler */
static volatile size_t three = 3;
static volatile int minus_one = -1, five_thousand = 5000;

static void bad_pointers(void) {
    int fd = pair();
    R(send(fd, nowhere, three, 0));
    R(write(fd, nowhere, three));
    tell_text("abc");
    settle(fd, 3);
    R(recv(fd, nowhere, three, 0));
    R(read(fd, nowhere, three));
    take(fd, 3);
    struct iovec v = {nowhere, 3};
    R(writev(fd, &v, 1));
    R(readv(fd, &v, minus_one));
    R(writev(fd, &v, five_thousand));
#ifdef __GLIBC__ /* musl reads the header itself */
    R(sendmsg(fd, nowhere, 0));
#endif
    exchange(fd);
    finish();
}

static void addresses_are_ignored(void) {
    int fd = pair();
    union address a = loopback(AF_INET, 9), from;
    R(sendto(fd, "to", 2, 0, &a.any, sizeof a.v4));
    tell(P_TAKE, 2);
    tell_text("from");
    settle(fd, 4);
    memset(&from, 0x55, sizeof from);
    socklen_t len = sizeof from;
    long r = R(recvfrom(fd, scratch, 10, 0, &from.any, &len));
    got(r);
    say("address length %u", len);
    finish();
}

static void connected_sockets_refuse(void) {
    int fd = pair();
    union address a = loopback(AF_INET, 9);
    R(connect(fd, &a.any, sizeof a.v4));
    R(listen(fd, 1));
    R(accept(fd, NULL, NULL));
    a.v4.sin_port = 0;
    R(bind(fd, &a.any, sizeof a.v4));
    R(lseek(fd, 0, SEEK_SET));
    R(pread(fd, scratch, 1, 0));
    R(pwrite(fd, scratch, 1, 0));
    R(ftruncate(fd, 0));
    R(fsync(fd));
    R(isatty(fd));
    struct stat st;
    R(fstat(fd, &st));
    say("socket %d", S_ISSOCK(st.st_mode));
    exchange(fd);
    finish();
}

const struct one_case cases[] = {
#define CASE(name) {#name, name, 0}
#define ALONE(name) {#name, name, NO_THREAD}
    CASE(peek_then_read),
    CASE(peek_across_several_sends),
    CASE(peek_grows_as_bytes_come),
    CASE(peek_while_asleep),
    CASE(peek_with_waitall),
    CASE(peek_much),
    CASE(waitall_over_several_sends),
    CASE(waitall_ends_short),
    CASE(waitall_much),
    CASE(waitall_without_waiting),
    CASE(dontwait),
    CASE(trunc_discards),
    CASE(urgent_byte_by_itself),
    CASE(reads_stop_at_the_urgent_mark),
    CASE(urgent_byte_in_line),
    ALONE(urgent_byte_raises_sigurg),
    CASE(urgent_in_select),
    CASE(we_send_urgent),
    CASE(more_then_the_rest),
    CASE(more_without_an_end_is_still_sent),
    CASE(cork_and_uncork),
    CASE(cork_then_close),
    CASE(cork_around_sendfile_style_writes),
    CASE(nodelay_is_kept),
    CASE(zerocopy_sends_are_acknowledged),
    CASE(zerocopy_flag_without_the_option),
    CASE(nothing_to_do),
    CASE(bad_pointers),
    CASE(addresses_are_ignored),
    CASE(connected_sockets_refuse),
    {NULL, NULL, 0},
};
