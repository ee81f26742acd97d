/* The ends of a stream: shutdown, close, linger, reset, broken pipes. */
#include "common.h"

static char scratch[65536];

static void recv_says(int fd, size_t n) {
    long r = R(recv(fd, scratch, n, 0));
    if (r > 0) say_bytes("got", scratch, r);
}

/* Until the kernel knows of the peer's end; which way it ended. */
static void until_ended(int fd, unsigned want) { say("poll: %s", events(poll_for(fd, want))); }

static void half_close_then_answer(void) {
    int fd = pair();
    send_text(fd, "request");
    R(shutdown(fd, SHUT_WR));
    tell(P_DRAIN, 0);
    tell_text("answer");
    tell(P_CLOSE, 0);
    drain(fd);
    finish();
}

static void half_close_with_much_pending(void) {
    int fd = pair();
    send_n(fd, 60000, 1);
    R(shutdown(fd, SHUT_WR));
    tell(P_DRAIN, 0);
    tell(P_SEND, 60000);
    tell(P_SHUT, SHUT_WR);
    drain(fd);
    R(close(fd));
    finish();
}

static void half_close_under_a_slow_reader(void) {
    int fd = pair();
    order(P_DRAIN, 0);
    send_n(fd, 3000000, 1);
    R(shutdown(fd, SHUT_WR));
    done();
    tell_text("after");
    take(fd, 5);
    finish();
}

static void both_half_close_at_once(void) {
    int fd = pair();
    send_text(fd, "A's end");
    tell_text("B's end");
    R(shutdown(fd, SHUT_WR));
    tell(P_SHUT, SHUT_WR);
    tell(P_DRAIN, 0);
    drain(fd);
    R(recv(fd, scratch, 1, 0));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    until_ended(fd, POLLHUP);
    finish();
}

static void shutdown_read_with_unread_bytes(void) {
    int fd = pair();
    tell_text("unread");
    settle(fd, 6);
    R(shutdown(fd, SHUT_RD));
    recv_says(fd, 100);
    recv_says(fd, 100);
    tell_text("later");
    settle(fd, 5);
    recv_says(fd, 100);
    recv_says(fd, 100);
    send_text(fd, "still can");
    tell(P_TAKE, 9);
    finish();
}

static void shutdown_both_at_once(void) {
    int fd = pair();
    tell_text("unread");
    settle(fd, 6);
    send_text(fd, "sent");
    R(shutdown(fd, SHUT_RDWR));
    recv_says(fd, 100);
    recv_says(fd, 100);
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    tell(P_DRAIN, 0);
    finish();
}

static void shutdown_twice_and_in_pieces(void) {
    int fd = pair();
    R(shutdown(fd, SHUT_WR));
    R(shutdown(fd, SHUT_WR));
    R(shutdown(fd, SHUT_RD));
    R(shutdown(fd, SHUT_RDWR));
    R(shutdown(fd, 5));
    tell(P_DRAIN, 0);
    tell(P_CLOSE, 0);
    until_ended(fd, POLLHUP);
    R(shutdown(fd, SHUT_RDWR));
    finish();
}

static void write_after_half_close(void) {
    int fd = pair();
    signal(SIGPIPE, SIG_IGN);
    R(shutdown(fd, SHUT_WR));
    R(send(fd, "x", 1, 0));
    R(write(fd, "x", 1));
    R(send(fd, "", 0, 0));
    tell_text("in");
    recv_says(fd, 2);
    finish();
}

static void peer_closes_cleanly(void) {
    int fd = pair();
    tell_text("goodbye");
    tell(P_CLOSE, 0);
    until_ended(fd, POLLIN | POLLRDHUP);
    recv_says(fd, 3);
    recv_says(fd, 100);
    recv_says(fd, 100);
    recv_says(fd, 100);
    finish();
}

static void asleep_in_recv_when_peer_closes(void) {
    int fd = pair();
    order(P_RECV, 10);
    until_peer_asleep();
    R(close(fd));
    done();
    tell(P_RECV, 10);
    finish();
}

static void asleep_in_recv_when_peer_half_closes(void) {
    int fd = pair();
    order(P_DRAIN, 0);
    until_peer_asleep();
    send_text(fd, "bytes, then ");
    until_peer_asleep();
    send_text(fd, "the end");
    R(shutdown(fd, SHUT_WR));
    done();
    finish();
}

static void close_with_unread_bytes_resets(void) {
    int fd = pair();
    tell(P_SEND, 100);
    settle(fd, 100);
    send_text(fd, "ten bytes.");
    tell(P_SETTLE, 10);
    R(close(fd));
    tell(P_RECV, 4);
    tell(P_RECV, 100);
    tell(P_RECV, 100);
    tell(P_RECV, 100);
    finish();
}

static void peer_closes_with_unread_bytes(void) {
    int fd = pair();
    send_n(fd, 5000, 1);
    tell(P_SETTLE, 5000);
    tell_text("answer");
    settle(fd, 6);
    tell(P_CLOSE, 0);
    until_ended(fd, POLLERR | POLLHUP);
    int e = -1;
    recv_says(fd, 3);
    recv_says(fd, 100);
    recv_says(fd, 100);
    recv_says(fd, 100);
    socklen_t len = sizeof e;
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len));
    say("SO_ERROR %d", e);
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    finish();
}

static void so_error_takes_the_reset(void) {
    int fd = pair();
    send_n(fd, 5000, 1);
    tell(P_SETTLE, 5000);
    tell(P_CLOSE, 0);
    until_ended(fd, POLLERR | POLLHUP);
    int e = -1;
    socklen_t len = sizeof e;
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len));
    say("SO_ERROR %s", errname(e));
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len));
    say("SO_ERROR %d", e);
    recv_says(fd, 10);
    finish();
}

static void peer_read_part_and_closed(void) {
    int fd = pair();
    send_n(fd, 5000, 1);
    tell(P_TAKE, 4999);
    tell(P_SETTLE, 1);
    tell(P_CLOSE, 0);
    until_ended(fd, POLLERR | POLLHUP);
    recv_says(fd, 10);
    recv_says(fd, 10);
    finish();
}

static void peer_read_all_and_closed(void) {
    int fd = pair();
    send_n(fd, 5000, 1);
    tell(P_TAKE, 5000);
    tell(P_CLOSE, 0);
    until_ended(fd, POLLRDHUP);
    recv_says(fd, 10);
    recv_says(fd, 10);
    finish();
}

static void linger_zero_resets(void) {
    int fd = pair();
    tell(P_RESET, 0);
    until_ended(fd, POLLERR | POLLHUP);
    recv_says(fd, 10);
    recv_says(fd, 10);
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    finish();
}

static void linger_zero_after_data(void) {
    int fd = pair();
    tell_text("data before");
    settle(fd, 11);
    tell(P_RESET, 0);
    until_ended(fd, POLLERR | POLLHUP);
    recv_says(fd, 4);
    recv_says(fd, 100);
    recv_says(fd, 100);
    recv_says(fd, 100);
    finish();
}

static void linger_zero_wakes_a_sleeper(void) {
    int fd = pair();
    order(P_RECV, 10);
    until_peer_asleep();
    reset_close(fd);
    done();
    finish();
}

static void timed_linger_waits_for_the_data(void) {
    int fd = pair();
    struct linger l = {1, 10};
    R(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    memset(&l, 0, sizeof l);
    socklen_t len = sizeof l;
    R(getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &len));
    say("linger %d %d", l.l_onoff, l.l_linger);
    order(P_DRAIN, 0);
    send_n(fd, 500000, 1);
    R(close(fd));
    done();
    finish();
}

static void close_right_after_a_big_send(void) {
    int fd = pair();
    order(P_DRAIN, 0);
    send_n(fd, 2000000, 1);
    R(close(fd));
    done();
    finish();
}

static void sends_and_exits(int fd) {
    send_n(fd, 1000000, 2);
    report_lane();
    exit(0);
}
static void peer_exits_right_after_a_big_send(void) {
    int fd = pair();
    order_call(sends_and_exits);
    drain(fd);
    R(recv(fd, scratch, 1, 0));
    join_at(0);
}

static void send_to_a_closed_peer(void) {
    int fd = pair();
    tell(P_CLOSE, 0);
    until_ended(fd, POLLRDHUP);
    R(send(fd, "first", 5, MSG_NOSIGNAL)); /* brings the reset */
    until_ended(fd, POLLERR | POLLHUP);
    R(send(fd, "second", 6, MSG_NOSIGNAL));
    R(send(fd, "third", 5, MSG_NOSIGNAL));
    recv_says(fd, 10);
    finish();
}

static _Atomic int sigpipes;
static void on_sigpipe(int sig) { sigpipes++; }

static void sigpipe_is_raised(void) {
    int fd = pair();
    signal(SIGPIPE, on_sigpipe);
    tell(P_CLOSE, 0);
    until_ended(fd, POLLRDHUP);
    R(write(fd, "first", 5));
    until_ended(fd, POLLERR | POLLHUP);
    struct iovec v = {"x", 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    R(write(fd, "x", 1));
    say("signals %d", sigpipes);
    R(send(fd, "x", 1, 0));
    say("signals %d", sigpipes);
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    say("signals %d", sigpipes);
    R(writev(fd, &v, 1));
    say("signals %d", sigpipes);
    R(sendmsg(fd, &m, 0));
    say("signals %d", sigpipes);
    R(sendmsg(fd, &m, MSG_NOSIGNAL));
    say("signals %d", sigpipes);
    finish();
}

static void writes_until_killed(int fd) {
    signal(SIGPIPE, SIG_DFL);
    for (;;)
        if (write(fd, "x", 1) < 0 && errno != ECONNRESET) break;
    say("survived: %s", errname(errno));
}

static void sigpipe_kills_by_default(void) {
    int fd = pair();
    tell_text("x");
    settle(fd, 1);
    R(close(fd)); /* unread: resets */
    order_call(writes_until_killed);
    join_at(0);
}

static void sigpipe_blocked_stays_pending(void) {
    int fd = pair();
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    sigprocmask(SIG_BLOCK, &set, NULL);
    tell(P_CLOSE, 0);
    until_ended(fd, POLLRDHUP);
    R(write(fd, "first", 5));
    until_ended(fd, POLLERR | POLLHUP);
    R(write(fd, "x", 1));
    sigpending(&set);
    say("pending: %d", sigismember(&set, SIGPIPE));
    struct timespec zero = {0, 0};
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    R(sigtimedwait(&set, NULL, &zero) == SIGPIPE);
    finish();
}

static void half_closed_peer_still_takes_much(void) {
    int fd = pair();
    tell(P_SHUT, SHUT_WR);
    drain(fd);
    order(P_DRAIN, 0);
    send_n(fd, 1000000, 6);
    R(shutdown(fd, SHUT_WR));
    done();
    finish();
}

static void reset_while_peer_sends(void) {
    int fd = pair();
    set_nonblocking(fd, true);
    memset(scratch, 'x', sizeof scratch);
    while (send(fd, scratch, sizeof scratch, MSG_NOSIGNAL) > 0) {}
    say("full: %s", errname(errno));
    tell(P_RESET, 0);
    until_ended(fd, POLLERR | POLLHUP);
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    finish();
}

static void sends_until_error(int fd) {
    char piece[5000];
    memset(piece, 'y', sizeof piece);
    long r;
    while ((r = send(fd, piece, sizeof piece, MSG_NOSIGNAL)) > 0) {}
    say("blocked send ended: %s", errname(errno));
}

static void reset_wakes_a_blocked_sender(void) {
    int fd = pair();
    order_call(sends_until_error);
    until_peer_asleep();
    reset_close(fd);
    done();
    finish();
}

static void end_is_seen_again_and_again(void) {
    int fd = pair();
    tell_text("xy");
    tell(P_SHUT, SHUT_WR);
    until_ended(fd, POLLIN | POLLRDHUP);
    R(recv(fd, scratch, 10, MSG_PEEK));
    R(recv(fd, scratch, 1, 0));
    R(recv(fd, scratch, 10, MSG_WAITALL));
    R(recv(fd, scratch, 10, MSG_PEEK));
    R(recv(fd, scratch, 10, MSG_DONTWAIT));
    R(read(fd, scratch, 10));
    struct iovec v = {scratch, 10};
    R(readv(fd, &v, 1));
    send_text(fd, "out");
    tell(P_TAKE, 3);
    finish();
}

static void connect_to_nothing_disconnects(void) {
    int fd = pair();
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    R(connect(fd, &none, sizeof none));
    tell(P_RECV, 10);
    R(recv(fd, scratch, 1, MSG_DONTWAIT));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    /* The same descriptor may connect anew. */
    int listener = listen_any();
    union address a = loopback(AF_INET, bound_port(listener));
    R(connect(fd, &a.any, address_len(&a)));
    int other = accept_one(listener);
    for (int i = 0; i < 12; i++) {
        if (send(fd, "ping", 4, 0) != 4 || recv(other, scratch, 4, MSG_WAITALL) != 4) say("ping failed");
        if (send(other, "pong", 4, 0) != 4 || recv(fd, scratch, 4, MSG_WAITALL) != 4) say("pong failed");
    }
    R(close(other));
    recv_says(fd, 10);
    finish();
}

const struct one_case cases[] = {
#define CASE(name) {#name, name, 0}
#define ALONE(name) {#name, name, NO_THREAD}
    CASE(half_close_then_answer),
    CASE(half_close_with_much_pending),
    CASE(half_close_under_a_slow_reader),
    CASE(both_half_close_at_once),
    CASE(shutdown_read_with_unread_bytes),
    CASE(shutdown_both_at_once),
    CASE(shutdown_twice_and_in_pieces),
    CASE(write_after_half_close),
    CASE(peer_closes_cleanly),
    CASE(asleep_in_recv_when_peer_closes),
    CASE(asleep_in_recv_when_peer_half_closes),
    CASE(close_with_unread_bytes_resets),
    CASE(peer_closes_with_unread_bytes),
    CASE(so_error_takes_the_reset),
    CASE(peer_read_part_and_closed),
    CASE(peer_read_all_and_closed),
    CASE(linger_zero_resets),
    CASE(linger_zero_after_data),
    CASE(linger_zero_wakes_a_sleeper),
    CASE(timed_linger_waits_for_the_data),
    CASE(close_right_after_a_big_send),
    ALONE(peer_exits_right_after_a_big_send),
    CASE(send_to_a_closed_peer),
    ALONE(sigpipe_is_raised),
    ALONE(sigpipe_kills_by_default),
    ALONE(sigpipe_blocked_stays_pending),
    CASE(half_closed_peer_still_takes_much),
    CASE(reset_while_peer_sends),
    CASE(reset_wakes_a_blocked_sender),
    CASE(end_is_seen_again_and_again),
    CASE(connect_to_nothing_disconnects),
    {NULL, NULL, 0},
};
