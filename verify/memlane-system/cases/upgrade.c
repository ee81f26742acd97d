/* The very moment of the upgrade: one side opens and the other does not; signal handlers that use
 * the connection while it moves. These cases make their own connections. */
#include "common.h"

/* --- one side opens, the other finds that its counts are wrong ------------------ */

/* Reads in a way that nobody can see who stands between a program and its libc. */
static long unseen_read(int fd, void *buf, size_t n) {
    long r;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(r) : "a"(SYS_read), "D"(fd), "S"(buf), "d"(n) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x0 __asm__("x0") = fd;
    register void *x1 __asm__("x1") = buf;
    register size_t x2 __asm__("x2") = n;
    register long x8 __asm__("x8") = SYS_read;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x1), "r"(x2), "r"(x8) : "memory");
    r = x0;
#endif
    return r;
}

enum { GO_ON = 0, DONE = 1, ROUNDS = 60, LONG_ENOUGH = 40 };

/* One byte at a time, all in the direction of the side that opens: it opens after a call that reads,
 * and has no reason to send (and to look at the peer's words) before it is told to. */
static void stream_to_opener(int fd, bool opener) {
    for (int i = 0; i < ROUNDS; i++) {
        char byte = (char)i, got = 0;
        if (opener) {
            if (recv_all(fd, &got, 1) != 1 || got != byte) say("round %d: wrong byte", i);
            post(DONE);
        } else {
            send_all(fd, &byte, 1);
            await(DONE);
        }
    }
}

/* Both directions in turn; the receiver is told out of band, so that it does not sleep. */
static void exchange_awake(int fd, bool starts) {
    for (int i = 0; i < LONG_ENOUGH; i++)
        for (int half = 0; half < 2; half++) {
            char out[64], in[64];
            fill(out, sizeof out, (unsigned)(i * 2 + half));
            if (starts == (half == 0)) {
                send_all(fd, out, sizeof out);
                post(starts ? 2 : 3);
            } else {
                await(starts ? 3 : 2);
                if (recv_all(fd, in, sizeof in) != sizeof in || memcmp(in, out, sizeof in)) say("exchange %d: WRONG", i);
            }
        }
}

enum { PIECE = 500, PIECES = 20 };

/* The two connections carry different bytes, in turn, and none of the receivers sleeps. */
static void two_streams(const int fds[2], bool sends) {
    for (int i = 0; i < 2 * PIECES; i++) {
        char out[PIECE], in[PIECE];
        memset(out, i % 2 ? 'n' : 'o', sizeof out);
        if (sends) {
            if (send_all(fds[i % 2], out, sizeof out) < 0) say("piece %d: send %s", i, errname(errno));
            post(4);
            await(5);
        } else {
            await(4);
            long n = recv_all(fds[i % 2], in, sizeof in);
            if (n != sizeof in || memcmp(in, out, sizeof in)) say("piece %d: WRONG, %ld bytes %s", i, n, errname(errno));
            post(5);
        }
    }
}

static void opener(int port) {
    int fds[2];
    fds[0] = connect_port(port);
    send_text(fds[0], "a question");
    stream_to_opener(fds[0], true);
    await(GO_ON);
    fds[1] = connect_port(port);
    exchange_awake(fds[1], true);
    two_streams(fds, true);
    for (int i = 0; i < 2; i++) R(shutdown(fds[i], SHUT_WR));
    for (int i = 0; i < 2; i++) drain(fds[i]);
    say("opener is done");
}

static void a_side_that_could_not_open_keeps_its_memory_to_itself(void) {
    int listener = listen_any(), fds[2];
    int child = fork_actor(1, opener, bound_port(listener));
    fds[0] = accept_one(listener);
    char text[11] = "";
    settle(fds[0], 10);
    say("unseen: %ld", unseen_read(fds[0], text, 2));
    recv_all(fds[0], text + 2, 8);
    say("text '%s'", text);
    stream_to_opener(fds[0], false);
    post(GO_ON);
    fds[1] = accept_one(listener);
    exchange_awake(fds[1], false);
    two_streams(fds, false);
    for (int i = 0; i < 2; i++) R(shutdown(fds[i], SHUT_WR));
    for (int i = 0; i < 2; i++) drain(fds[i]);
    say_wait("opener", child);
}

/* --- handlers that use a connection while it moves --------------------------------- */

enum { CONNECTIONS = 150, MAIN_BYTES = 40, HANDLER_BYTES = 5 };

static _Atomic int handler_fd = -1;
static _Atomic int from_main, from_handler, handler_sent, odd;

/* Takes all that comes, and sends a little of its own: all of the reading is done here. */
static void use_the_connection(int sig) {
    int fd = handler_fd, kept = errno;
    char buf[32];
    if (fd < 0) return;
    ssize_t n = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) odd++;
    for (ssize_t i = 0; i < n; i++) {
        if (buf[i] == 'm') from_main++;
        else if (buf[i] == 'h') from_handler++;
        else odd++;
    }
    if (handler_sent < HANDLER_BYTES) {
        n = send(fd, "h", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n == 1) handler_sent++;
        else if (errno != EAGAIN) odd++;
    }
    errno = kept;
}

/* The handler runs in step with the timer, and what it lets us do would be too. */
static void out_of_step(int i) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const long long end = t.tv_sec * 1000000000ll + t.tv_nsec + i * 7919ll % 100 * 1000;
    do clock_gettime(CLOCK_MONOTONIC, &t);
    while (t.tv_sec * 1000000000ll + t.tv_nsec < end);
}

static void one_connection_under_a_timer(int fd) {
    static int turn;
    from_main = from_handler = handler_sent = 0;
    handler_fd = fd;
    for (int i = 0; i < MAIN_BYTES; i++) {
        out_of_step(turn++);
        while (send(fd, "m", 1, MSG_NOSIGNAL) < 0)
            if (errno != EINTR && errno != EAGAIN) die("send");
        while (from_main <= i) {}
    }
    const long deadline = now_ms() + PATIENCE_MS;
    while (from_handler < HANDLER_BYTES && now_ms() < deadline) {}
    handler_fd = -1;
    if (from_main != MAIN_BYTES || from_handler != HANDLER_BYTES)
        say("%d of main's bytes, %d of the handler's", from_main, from_handler);
}

static void echo_all(int fd) {
    char buf[256];
    ssize_t n;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
        if (send_all(fd, buf, (size_t)n) < 0) break;
    close(fd);
}

/* Even ones are connected from this side, odd ones from the other. */
static int next_connection(int i, bool even, int listener, int port) {
    return even == (i % 2 == 0) ? connect_port(port) : accept_one(listener);
}

static void echoes_connections(int listener) {
    await(0);
    for (int i = 0; i < CONNECTIONS; i++) echo_all(next_connection(i, false, listener, (int)arena->values[0]));
}

static void a_handler_may_use_a_connection_while_it_moves(void) {
    int own = listen_any(), other = listen_any();
    arena->values[0] = bound_port(own);
    int child = fork_actor(1, echoes_connections, other);
    post(0);
    struct sigaction a = {.sa_handler = use_the_connection, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &a, NULL);
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = next_connection(i, true, own, bound_port(other));
        one_connection_under_a_timer(fd);
        close(fd);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    say("odd answers: %d", odd);
    say_wait("echo", child);
}

const struct one_case cases[] = {
#define CASE(name) {#name, name, NO_THREAD | ONCE | LANE}
    CASE(a_side_that_could_not_open_keeps_its_memory_to_itself),
    CASE(a_handler_may_use_a_connection_while_it_moves),
    {NULL, NULL, 0},
};
