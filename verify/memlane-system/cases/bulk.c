/* Much data, slow readers, many connections. */
#include "common.h"

static char scratch[262144];
enum { T = 5, U = 6, MANY = 300 };

static void reads_all(int fd) { drain(fd); }
static void writes_3m(int fd) {
    send_n(fd, 3000000, 7);
    shutdown(fd, SHUT_WR);
}
static void reads_and_writes(int fd) {
    pthread_t t = thread_actor(U, writes_3m, fd);
    drain(fd);
    pthread_join(t, NULL);
}

static void both_ways_at_once(void) {
    int fd = pair();
    order_call(reads_and_writes);
    pthread_t t = thread_actor(T, reads_all, fd);
    send_n(fd, 4000000, 2);
    R(shutdown(fd, SHUT_WR));
    pthread_join(t, NULL);
    done();
    finish();
}

static void both_ways_in_one_poll_loop(void) {
    int fd = pair();
    order_call(reads_and_writes);
    set_nonblocking(fd, true);
    uint64_t at = 0, hash = HASH_START, got = 0;
    bool ended = false;
    const uint64_t total = 3000000;
    while (!ended || at < total) {
        struct pollfd p = {fd, (short)((ended ? 0 : POLLIN) | (at < total ? POLLOUT : 0)), 0};
        if (poll(&p, 1, 8000) <= 0) {
            say("stuck: got %llu sent %llu", (unsigned long long)got, (unsigned long long)at);
            break;
        }
        if (p.revents & POLLIN) {
            long r = recv(fd, scratch, 5000, 0);
            if (r == 0) ended = true;
            if (r > 0) hash = hash_more(hash, scratch, (size_t)r), got += (uint64_t)r;
        }
        if (p.revents & POLLOUT && at < total) {
            char piece[7000];
            size_t n = total - at < sizeof piece ? total - at : sizeof piece;
            for (size_t i = 0; i < n; i++) piece[i] = (char)pattern(at + i);
            long r = send(fd, piece, n, 0);
            if (r > 0) at += (uint64_t)r;
            if (at == total) R(shutdown(fd, SHUT_WR));
        }
    }
    say("got %llu %016llx", (unsigned long long)got, (unsigned long long)hash);
    done();
    finish();
}

/* Small writes pile up with nobody reading; then everything is read. */
static void flood_of_tiny_writes(void) {
    int fd = pair();
    for (int i = 0; i < 3000; i++) {
        char c = (char)i;
        if (send(fd, &c, 1, 0) != 1) say("write %d", i);
    }
    R(shutdown(fd, SHUT_WR));
    tell(P_DRAIN, 0);
    tell_text("answer");
    take(fd, 6);
    finish();
}

/* Until `fd` takes no more, or `most` bytes have gone in all: a reader may take them as fast as they come. */
static void pours_until_full(int fd, uint64_t *at, uint64_t most) {
    char piece[4000];
    while (*at < most) {
        for (size_t i = 0; i < sizeof piece; i++) piece[i] = (char)pattern(*at + i);
        long r = send(fd, piece, sizeof piece, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (r < 0) break;
        *at += (uint64_t)r;
    }
}
static void checks_pattern(int fd) {
    uint64_t at = 0;
    for (long r; (r = recv(fd, scratch, (at / 1000 % 7 + 1) * 999, 0)) != 0;) {
        if (r < 0) {
            say("recv %s", errname(errno));
            return;
        }
        for (long i = 0; i < r; i++, at++)
            if ((unsigned char)scratch[i] != pattern(at)) {
                say("WRONG byte");
                return;
            }
    }
    arena->values[5] = (long)at;
    say("pattern held to the end");
}

static void full_then_out_again(void) {
    int fd = pair(), size = 100000;
    uint64_t at = 0;
    R(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    pours_until_full(fd, &at, UINT64_MAX);
    say("full: %s, much went in: %d", errname(errno), at > 16000);
    struct pollfd p = {fd, POLLOUT, 0};
    R(poll(&p, 1, 0));
    order_call(checks_pattern);
    int again = 0;
    const uint64_t enough = at + 2000000;
    while (at < enough) {
        if (poll(&p, 1, 8000) != 1) {
            say("stuck");
            break;
        }
        pours_until_full(fd, &at, enough);
        again++;
    }
    say("out again: %d", again > 0);
    R(shutdown(fd, SHUT_WR));
    done();
    say("all: %d", arena->values[5] == (long)at);
    finish();
}

/* The same with select, beside a descriptor that is always ready. */
static void full_beside_a_ready_one(void) {
    int fd = pair(), own[2];
    uint64_t at = 0;
    R(pipe(own));
    R(write(own[1], "!", 1));
    pours_until_full(fd, &at, UINT64_MAX);
    say("full: %s", errname(errno));
    fd_set in, out;
    struct timeval now = {0, 0};
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(own[0], &in);
    FD_SET(fd, &out);
    int n = select((own[0] > fd ? own[0] : fd) + 1, &in, &out, NULL, &now);
    say("select: %d, ready %d, writable %d", n, FD_ISSET(own[0], &in), FD_ISSET(fd, &out));
    order_call(checks_pattern);
    const uint64_t enough = at + 3000000;
    while (at < enough) {
        struct timeval most = {8, 0};
        FD_ZERO(&out);
        FD_SET(fd, &out);
        if (select(fd + 1, NULL, &out, NULL, &most) != 1) {
            say("stuck");
            break;
        }
        pours_until_full(fd, &at, enough);
    }
    R(shutdown(fd, SHUT_WR));
    done();
    say("all: %d", arena->values[5] == (long)at);
    finish();
}

static void reads_slowly(int fd) {
    char buf[3000];
    uint64_t h = HASH_START, n = 0;
    long r;
    while ((r = recv(fd, buf, sizeof buf, 0)) > 0) {
        h = hash_more(h, buf, (size_t)r);
        n += (uint64_t)r;
        if (n % 5 == 0) usleep(50);
    }
    say("%llu %016llx", (unsigned long long)n, (unsigned long long)h);
}
static void slow_reader(void) {
    int fd = pair();
    order_call(reads_slowly);
    send_n(fd, 2000000, 6);
    R(shutdown(fd, SHUT_WR));
    done();
    finish();
}

static void writes_with_pauses(int fd) {
    char piece[1234];
    uint64_t at = 0;
    for (int i = 0; i < 200; i++) {
        for (size_t k = 0; k < sizeof piece; k++) piece[k] = (char)pattern(at + k);
        if (send_all(fd, piece, sizeof piece) < 0) say("send");
        at += sizeof piece;
        if (i % 10 == 0) usleep(500);
    }
    shutdown(fd, SHUT_WR);
}
static void writer_with_pauses(void) {
    int fd = pair();
    order_call(writes_with_pauses);
    drain(fd);
    done();
    finish();
}

static void ping_pong_of_every_size(void) {
    int fd = pair();
    order(P_ECHO, 1000 * 1001 / 2);
    uint64_t h = HASH_START;
    for (int n = 1; n <= 1000; n++) {
        fill(scratch, (size_t)n, (unsigned)n);
        if (send_all(fd, scratch, (size_t)n) < 0 || recv_all(fd, scratch, (size_t)n) != n) say("size %d", n);
        h = hash_more(h, scratch, (size_t)n);
    }
    say("%016llx", (unsigned long long)h);
    done();
    finish();
}

/* Answers of 300,000 bytes to requests of one, written as a server does it: as
 * much as goes, and on when there is room. */
enum { ANSWERS = 300, ANSWER = 300000 };
static void answers_in_pieces(int fd) {
    static char answer[ANSWER];
    char ask;
    set_nonblocking(fd, true);
    struct pollfd in = {fd, POLLIN, 0}, out = {fd, POLLOUT, 0};
    for (int i = 0; i < ANSWERS; i++) {
        if (poll(&in, 1, 8000) != 1 || recv(fd, &ask, 1, 0) != 1) say("request %d: %s", i, errname(errno));
        for (size_t at = 0; at < ANSWER;) {
            long r = send(fd, answer + at, ANSWER - at, MSG_NOSIGNAL);
            if (r > 0) at += (size_t)r;
            else if (errno != EAGAIN) return;
            else if (poll(&out, 1, 8000) != 1) say("no room for answer %d", i);
        }
    }
}

/* A reader that takes epoll and FIONREAD at their word, as wrk does. */
static void what_is_said_to_be_there_can_be_read(void) {
    int fd = pair(), ep = epoll_create1(0), refused = 0, short_of = 0;
    order_call(answers_in_pieces);
    set_nonblocking(fd, true);
    struct epoll_event ev = {EPOLLIN, {.fd = fd}};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
    for (int i = 0; i < ANSWERS; i++) {
        if (send_all(fd, "?", 1) < 0) say("send");
        for (size_t got = 0; got < ANSWER;) {
            if (epoll_wait(ep, &ev, 1, 8000) != 1) {
                say("stuck in answer %d at %zu", i, got);
                break;
            }
            int there = 1;
            do {
                long r = recv(fd, scratch, 8192, 0);
                refused += r < 0;
                short_of += r >= 0 && r < 8192 && r < there;
                got += r > 0 ? (size_t)r : 0;
                ioctl(fd, FIONREAD, &there);
            } while (there > 0 && got < ANSWER);
        }
    }
    say("reads refused: %d, shorter than promised: %d", refused, short_of);
    done();
    finish();
}

/* --- many connections ------------------------------------------------------------ */

static void serves_many(int listener) {
    int ep = epoll_create1(0), open = 0, ended = 0;
    struct epoll_event ev = {EPOLLIN, {.fd = listener}}, got[64];
    set_nonblocking(listener, true);
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &ev);
    while (ended < MANY) {
        int n = epoll_wait(ep, got, 64, 8000);
        if (n <= 0) {
            say("server: no event; open %d ended %d", open, ended);
            return;
        }
        for (int i = 0; i < n; i++) {
            int fd = got[i].data.fd;
            if (fd == listener) {
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    ev = (struct epoll_event){EPOLLIN, {.fd = fd}};
                    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
                    open++;
                }
                continue;
            }
            char buf[256];
            long r = recv(fd, buf, sizeof buf, 0);
            if (r > 0) send_all(fd, buf, (size_t)r);
            else close(fd), ended++;
        }
    }
    say("server: open %d ended %d", open, ended);
}

static void three_hundred_connections(void) {
    static int fds[MANY], left[MANY];
    int listener = listen_any(), ep = epoll_create1(0), port = bound_port(listener), finished = 0;
    int pid = fork_actor(T, serves_many, listener);
    close(listener);
    enum { ROUNDS = 12 };
    for (int i = 0; i < MANY; i++) {
        fds[i] = connect_port(port);
        struct epoll_event ev = {EPOLLIN, {.u32 = (unsigned)i}};
        epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &ev);
        left[i] = ROUNDS;
        fill(scratch, 100, (unsigned)i);
        send_all(fds[i], scratch, 100);
    }
    while (finished < MANY) {
        struct epoll_event ev[32];
        int n = epoll_wait(ep, ev, 32, 8000);
        if (n <= 0) {
            say("client: no event; finished %d", finished);
            break;
        }
        for (int k = 0; k < n; k++) {
            unsigned i = ev[k].data.u32;
            char want[100];
            fill(want, 100, i + (unsigned)(ROUNDS - left[i]));
            if (recv_all(fds[i], scratch, 100) != 100 || memcmp(want, scratch, 100)) say("WRONG on %u", i);
            if (--left[i] == 0) {
                close(fds[i]);
                finished++;
                continue;
            }
            fill(want, 100, i + (unsigned)(ROUNDS - left[i]));
            send_all(fds[i], want, 100);
        }
    }
    say("finished %d", finished);
    say_wait("server", pid);
}

const struct one_case cases[] = {
#define CASE(name) {#name, name, 0}
    CASE(both_ways_at_once),
    CASE(both_ways_in_one_poll_loop),
    CASE(flood_of_tiny_writes),
    CASE(full_then_out_again),
    CASE(full_beside_a_ready_one),
    CASE(slow_reader),
    CASE(writer_with_pauses),
    CASE(ping_pong_of_every_size),
    CASE(what_is_said_to_be_there_can_be_read),
    {"three_hundred_connections", three_hundred_connections, ONCE | LANE},
    {NULL, NULL, 0},
};
