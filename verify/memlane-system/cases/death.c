/* kill -9 of the other end: what the survivor sees. */
#include "common.h"

static char scratch[65536];
enum { W = 5 };

static void recv_says(int fd, size_t n) {
    long r = R(recv(fd, scratch, n, 0));
    if (r > 0) say_bytes("got", scratch, r);
}

static void kill_peer(void) {
    order(P_KILL, 0);
    join_at(0);
}

static void killed_while_idle(void) {
    int fd = pair();
    kill_peer();
    say("poll: %s", events(poll_for(fd, POLLIN | POLLRDHUP)));
    recv_says(fd, 10);
    recv_says(fd, 10);
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    say("poll: %s", events(poll_for(fd, POLLHUP)));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
}

static void killed_while_asleep_in_recv(void) {
    int fd = pair();
    order(P_RECV, 10);
    until_peer_asleep();
    kill(peer_at(0)->pid, SIGKILL);
    join_at(0);
    recv_says(fd, 10);
}

static void killed_with_unread_bytes(void) {
    int fd = pair();
    send_n(fd, 3000, 1);
    tell(P_SETTLE, 3000);
    kill_peer();
    say("poll: %s", events(poll_for(fd, POLLIN | POLLRDHUP)));
    recv_says(fd, 10);
    recv_says(fd, 10);
}

/* The lane may open while it waits. */
static void wait_for_an_answer(int fd) { recv_says(fd, 10); }
static void a_thread_that_waits_from_the_beginning_sees_the_death(void) {
    int fd = pair();
    pthread_t waiter = thread_actor(W, wait_for_an_answer, fd);
    until_asleep(W);
    for (int i = 0; i < 40; i++) {
        send_text(fd, "x");
        tell(P_TAKE, 1);
    }
    send_n(fd, 3000, 1);
    tell(P_SETTLE, 3000);
    kill_peer();
    pthread_join(waiter, NULL);
}

static void killed_after_reading_all(void) {
    int fd = pair();
    send_n(fd, 3000, 1);
    tell(P_TAKE, 3000);
    kill_peer();
    recv_says(fd, 10);
}

static void killed_after_an_answer(void) {
    int fd = pair();
    tell_text("last answer");
    kill_peer();
    say("poll: %s", events(poll_for(fd, POLLIN | POLLRDHUP)));
    recv_says(fd, 4);
    recv_says(fd, 100);
    recv_says(fd, 100);
}

static void killed_after_a_big_answer(void) {
    int fd = pair();
    tell(P_SEND, 60000);
    kill_peer();
    drain(fd);
}

static void killed_after_an_answer_with_unread_bytes(void) {
    int fd = pair();
    send_text(fd, "unread question");
    tell(P_SETTLE, 15);
    tell_text("answer");
    settle(fd, 6);
    kill_peer();
    say("poll: %s", events(poll_for(fd, POLLIN | POLLRDHUP)));
    recv_says(fd, 100);
    recv_says(fd, 100);
    recv_says(fd, 100);
}

static void streams_forever(int fd) {
    char piece[3000];
    uint64_t at = 0;
    for (;;) {
        for (size_t i = 0; i < sizeof piece; i++) piece[i] = (char)pattern(at + i);
        long n = send(fd, piece, sizeof piece, MSG_NOSIGNAL);
        if (n < 0) break;
        at += (uint64_t)n;
    }
    say("stream ended: %s", errname(errno));
}

/* Reads a pattern to its end; the amount depends on the moment, the bytes must not. */
static void check_pattern_to_the_end(int fd, uint64_t at) {
    for (;;) {
        long r = recv(fd, scratch, sizeof scratch, 0);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) {
            say("pattern held to the end: %s", r ? errname(errno) : "EOF");
            return;
        }
        for (long i = 0; i < r; i++, at++)
            if ((unsigned char)scratch[i] != pattern(at)) {
                say("WRONG byte in the pattern");
                return;
            }
    }
}

static uint64_t check_pattern(int fd, uint64_t n) {
    uint64_t at = 0;
    while (at < n) {
        long r = recv(fd, scratch, sizeof scratch, 0);
        if (r <= 0) {
            say("pattern ended early");
            return at;
        }
        for (long i = 0; i < r; i++, at++)
            if ((unsigned char)scratch[i] != pattern(at)) say("WRONG byte in the pattern");
    }
    return at;
}

static void killed_in_mid_stream(void) {
    int fd = pair();
    order_call(streams_forever);
    uint64_t at = check_pattern(fd, 2000000);
    kill(peer_at(0)->pid, SIGKILL);
    join_at(0);
    check_pattern_to_the_end(fd, at);
}

static void killed_while_blocked_in_send(void) {
    int fd = pair();
    order_call(streams_forever);
    until_peer_asleep();
    kill(peer_at(0)->pid, SIGKILL);
    join_at(0);
    check_pattern_to_the_end(fd, 0);
}

static void killed_while_we_sleep_in_recv_body(int fd) {
    long r = R(recv(fd, scratch, 10, 0));
    (void)r;
}

static void we_sleep_in_recv_when_it_is_killed(void) {
    int fd = pair();
    pthread_t t = thread_actor(5, killed_while_we_sleep_in_recv_body, fd);
    until_asleep(5);
    kill_peer();
    pthread_join(t, NULL);
}

static void we_sleep_in_epoll_when_it_is_killed_body(int ep) {
    struct epoll_event ev;
    int n = epoll_wait(ep, &ev, 1, -1);
    say("epoll_wait %d %s", n, events(ev.events));
}

static void we_sleep_in_epoll_when_it_is_killed(void) {
    int fd = pair(), ep = epoll_create1(0);
    struct epoll_event ev = {EPOLLIN | EPOLLRDHUP, {.fd = fd}};
    R(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
    pthread_t t = thread_actor(5, we_sleep_in_epoll_when_it_is_killed_body, ep);
    until_asleep(5);
    kill_peer();
    pthread_join(t, NULL);
    recv_says(fd, 10);
}

/* Reads until there is nothing, as programs do that wait for edges. Returns what ended it: 0, or an error. */
static int read_to_the_end(int fd) {
    for (;;) {
        long r = recv(fd, scratch, sizeof scratch, 0);
        if (r > 0)
            say_bytes("got", scratch, r);
        else
            return r == 0 ? 0 : errno;
    }
}

static int in_a_set(int fd, unsigned how) {
    int ep = epoll_create1(0);
    struct epoll_event ev = {EPOLLIN | EPOLLRDHUP | how, {.fd = fd}};
    R(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
    set_nonblocking(fd, true);
    return ep;
}

static void wait_and_read_to_the_end(int ep, int fd) {
    struct epoll_event ev[8]; /* more than one, or the kernel's news may have to wait for their turn */
    int n = epoll_wait(ep, ev, 8, 5000);
    say("epoll_wait %d %s", n, n == 1 ? events(ev[0].events) : "");
    int end = read_to_the_end(fd);
    say("read until %s", end ? errname(end) : "EOF");
}

static void answers(int ep, int fd, int n) {
    for (int i = 0; i < n; i++) {
        tell_text("answer");
        settle(fd, 6);
        wait_and_read_to_the_end(ep, fd);
    }
}

/* The only edge that tells of the death comes together with the last bytes. */
static void one_edge_tells_of_an_answer_and_of_the_death(void) {
    int fd = pair(), ep = in_a_set(fd, EPOLLET);
    answers(ep, fd, 5);
    tell_text("last answer");
    kill_peer();
    wait_and_read_to_the_end(ep, fd);
}

static void killed_when_its_last_answer_has_been_read_to_the_end(unsigned how) {
    int fd = pair(), ep = in_a_set(fd, how);
    answers(ep, fd, 5);
    kill_peer();
    wait_and_read_to_the_end(ep, fd);
}

static void an_edge_tells_of_the_death_of_a_peer_that_was_read_to_the_end(void) {
    killed_when_its_last_answer_has_been_read_to_the_end(EPOLLET);
}

static void a_level_tells_of_the_death_of_a_peer_that_was_read_to_the_end(void) {
    killed_when_its_last_answer_has_been_read_to_the_end(0);
}

static void one_shot_tells_of_the_death_of_a_peer_that_was_read_to_the_end(void) {
    int fd = pair(), ep = in_a_set(fd, EPOLLONESHOT);
    tell_text("answer");
    settle(fd, 6);
    wait_and_read_to_the_end(ep, fd);
    kill_peer();
    int end = read_to_the_end(fd);
    say("disarmed: read until %s", end ? errname(end) : "EOF");
}

/* The program does not wait again: its reads alone must find out. */
static void reads_that_never_wait_see_the_death(void) {
    int fd = pair(), ep = in_a_set(fd, 0), end = EAGAIN;
    answers(ep, fd, 5);
    kill_peer();
    for (int i = 0; i < 5000 && end == EAGAIN; i++) {
        end = read_to_the_end(fd);
        usleep(1000);
    }
    say("read until %s", end ? errname(end) : "EOF");
}

static void a_peek_sees_the_death_at_once(void) {
    int fd = pair(), ep = in_a_set(fd, 0);
    answers(ep, fd, 5);
    kill_peer();
    R(recv(fd, scratch, 1, MSG_PEEK));
}

static void we_are_blocked_in_send_when_it_is_killed(void) {
    int fd = pair();
    pthread_t t = thread_actor(5, streams_forever, fd);
    until_asleep(5);
    kill_peer();
    pthread_join(t, NULL);
}

static void streams_until_either_error(int fd) {
    char piece[3000];
    memset(piece, 'z', sizeof piece);
    while (send(fd, piece, sizeof piece, MSG_NOSIGNAL) > 0) {}
    /* Which one depends on whether the peer had unread bytes at that moment. */
    say("stream ended by EPIPE or ECONNRESET: %d", errno == EPIPE || errno == ECONNRESET);
}

static void killed_in_mid_reading(void) {
    int fd = pair();
    order(P_DRAIN, 0);
    pthread_t t = thread_actor(5, streams_until_either_error, fd);
    nap_ms(20);
    kill(peer_at(0)->pid, SIGKILL);
    join_at(0);
    pthread_join(t, NULL);
}

static void stopped_and_continued_in_mid_stream(void) {
    int fd = pair();
    order(P_SEND, 4000000);
    char *buf = malloc(4000000);
    long got = recv_all(fd, buf, 500000);
    kill(peer_at(0)->pid, SIGSTOP);
    nap_ms(20);
    kill(peer_at(0)->pid, SIGCONT);
    got += recv_all(fd, buf + got, 3500000);
    say_bytes("all", buf, got);
    done();
    exchange(fd);
    finish();
}

static void stopped_peer_does_not_stop_us(void) {
    int fd = pair();
    kill(peer_at(0)->pid, SIGSTOP);
    R(send(fd, "while you were away", 19, 0));
    R(recv(fd, scratch, 10, MSG_DONTWAIT));
    struct pollfd p = {fd, POLLIN, 0};
    R(poll(&p, 1, 30));
    kill(peer_at(0)->pid, SIGCONT);
    tell(P_TAKE, 19);
    exchange(fd);
    finish();
}

static void killed_after_half_close(void) {
    int fd = pair();
    tell_text("all I had");
    tell(P_SHUT, SHUT_WR);
    kill_peer();
    drain(fd);
}

static void abort_like_crash(int fd) { kill(getpid(), SIGSEGV); }

static void peer_crashes(void) {
    int fd = pair();
    tell_text("before the crash");
    order_call(abort_like_crash);
    join_at(0);
    drain(fd);
}

static void next_peer_is_as_good_as_new(void) {
    int fd = pair();
    kill_peer();
    recv_says(fd, 10);
    close(fd);
    int two = pair();
    send_text(two, "hello");
    tell_at(1, P_TAKE, 5);
    finish();
}

/* --- a writer that dies while it writes, again and again ------------------------- */

enum { DEATHS = 24, BIG_PIECE = 120000, WARM_ROUNDS = 20 };

static void exchanges(int fd, bool starts) {
    char byte = 'w';
    for (int i = 0; i < 2 * WARM_ROUNDS; i++) {
        if (starts == (i % 2 == 0)) send_all(fd, &byte, 1);
        else if (recv_all(fd, &byte, 1) != 1) die("warm-up");
    }
}

static void writes_big_pieces(int port) {
    int fd = connect_port(port);
    exchanges(fd, true);
    char *piece = malloc(BIG_PIECE);
    for (uint64_t at = 0;; at += BIG_PIECE) {
        for (size_t i = 0; i < BIG_PIECE; i++) piece[i] = (char)pattern(at + i);
        if (send_all(fd, piece, BIG_PIECE) < 0) return;
    }
}

struct killer { int pid; long after_us; };

static void *kills_later(void *arg) {
    struct killer *k = arg;
    struct timespec t = {0, k->after_us * 1000};
    nanosleep(&t, NULL);
    kill(k->pid, SIGKILL);
    return NULL;
}

enum way { BY_RECV, BY_POLL, BY_EPOLL, LEAVING };

/* Without the kernel's help a program that only looks would look for ever. */
static void wait_for_bytes(enum way way, int fd, int ep) {
    struct pollfd p = {fd, POLLIN, 0};
    struct epoll_event ev;
    if (way == BY_POLL) poll(&p, 1, -1);
    else if (way == BY_EPOLL) epoll_wait(ep, &ev, 1, -1);
}

static bool pattern_held_to_the_end(enum way way, int fd, int ep, uint64_t at) {
    for (;;) {
        wait_for_bytes(way, fd, ep);
        const bool looks = way == BY_POLL || way == BY_EPOLL;
        long r = recv(fd, scratch, sizeof scratch, looks ? MSG_DONTWAIT : 0);
        if (r < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (r <= 0) return true;
        for (long i = 0; i < r; i++, at++)
            if ((unsigned char)scratch[i] != pattern(at)) {
                say("WRONG byte in the pattern");
                return false;
            }
    }
}

/* The reader kills the writer, then asks for what only TCP can do: the lane ends while its
 * writer, perhaps, has been stopped for ever in the middle of a write. */
static uint64_t kill_and_leave_the_lane(int pid, int fd, long pieces) {
    uint64_t at = 0;
    for (long i = 0; i <= pieces; i++) {
        long r = recv(fd, scratch, sizeof scratch, 0);
        if (i == pieces) kill(pid, SIGKILL); /* it has just found room, and fills it */
        for (long k = 0; k < r; k++, at++)
            if ((unsigned char)scratch[k] != pattern(at)) say("WRONG byte in the pattern");
    }
    waitpid(pid, NULL, 0);
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on);
    return at;
}

static void writers_die(enum way way) {
    int listener = listen_any(), held = 0;
    for (int i = 0; i < DEATHS; i++) {
        int pid = fork_actor(1, writes_big_pieces, bound_port(listener));
        int fd = accept_one(listener), ep = epoll_create1(0);
        exchanges(fd, false);
        report_lane();
        struct epoll_event ev = {EPOLLIN | EPOLLRDHUP, {.fd = fd}};
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
        struct killer killer = {pid, 3000 + i * 617 % 5000};
        pthread_t t;
        uint64_t at = 0;
        if (way == LEAVING) at = kill_and_leave_the_lane(pid, fd, 20 + i * 3);
        else if (pthread_create(&t, NULL, kills_later, &killer)) die("pthread_create");
        held += pattern_held_to_the_end(way, fd, ep, at);
        if (way != LEAVING) {
            pthread_join(t, NULL);
            waitpid(pid, NULL, 0);
        }
        close(ep);
        close(fd);
    }
    say("%d of %d streams held their pattern and ended", held, DEATHS);
}

static void writers_die_under_a_reader(void) { writers_die(BY_RECV); }
static void writers_die_under_poll(void) { writers_die(BY_POLL); }
static void writers_die_under_epoll(void) { writers_die(BY_EPOLL); }
static void writers_die_before_the_reader_leaves_the_lane(void) { writers_die(LEAVING); }

const struct one_case cases[] = {
#define CASE(name) {#name, name, NO_THREAD}
    CASE(killed_while_idle),
    CASE(killed_while_asleep_in_recv),
    CASE(killed_with_unread_bytes),
    CASE(killed_after_reading_all),
    CASE(killed_after_an_answer),
    CASE(a_thread_that_waits_from_the_beginning_sees_the_death),
    CASE(killed_after_a_big_answer),
    CASE(killed_after_an_answer_with_unread_bytes),
    CASE(killed_in_mid_stream),
    CASE(killed_while_blocked_in_send),
    CASE(we_sleep_in_recv_when_it_is_killed),
    CASE(we_sleep_in_epoll_when_it_is_killed),
    CASE(one_edge_tells_of_an_answer_and_of_the_death),
    CASE(an_edge_tells_of_the_death_of_a_peer_that_was_read_to_the_end),
    CASE(a_level_tells_of_the_death_of_a_peer_that_was_read_to_the_end),
    CASE(one_shot_tells_of_the_death_of_a_peer_that_was_read_to_the_end),
    CASE(reads_that_never_wait_see_the_death),
    CASE(a_peek_sees_the_death_at_once),
    CASE(we_are_blocked_in_send_when_it_is_killed),
    CASE(killed_in_mid_reading),
    CASE(stopped_and_continued_in_mid_stream),
    CASE(stopped_peer_does_not_stop_us),
    CASE(killed_after_half_close),
    CASE(peer_crashes),
    CASE(next_peer_is_as_good_as_new),
#define MANY(name) {#name, name, NO_THREAD | ONCE | LANE}
    MANY(writers_die_under_a_reader),
    MANY(writers_die_under_poll),
    MANY(writers_die_under_epoll),
    MANY(writers_die_before_the_reader_leaves_the_lane),
    {NULL, NULL, 0},
};
