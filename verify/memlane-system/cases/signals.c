/* poll and select; signals while waiting; time limits; cancellation. */
#include "common.h"

#include <sys/resource.h>

static char scratch[65536];
static _Atomic int caught;
static _Atomic int stop;
static void on_signal(int sig) { caught++; }
static void on_alarm(int sig) { stop = 1; }

static void handle(int sig, void (*fn)(int), int flags) {
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = fn;
    a.sa_flags = flags;
    sigaction(sig, &a, NULL);
}

/* --- one call, interrupted --------------------------------------------------- */

enum { W = 5, GO = 0 };
static pthread_t waiter;

static void interrupt_sleeper(void) {
    until_asleep(W);
    pthread_kill(waiter, SIGUSR1);
}

static void recv_waits(int fd) {
    long r = R(recv(fd, scratch, 10, 0));
    if (r > 0) say_bytes("got", scratch, r);
}
static void read_waits(int fd) {
    long r = R(read(fd, scratch, 10));
    if (r > 0) say_bytes("got", scratch, r);
}
static void recvmsg_waits(int fd) {
    struct iovec v = {scratch, 10};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    R(recvmsg(fd, &m, 0));
}
static void waitall_waits(int fd) {
    long r = R(recv(fd, scratch, 10, MSG_WAITALL));
    if (r > 0) say_bytes("got", scratch, r);
}
static void poll_waits(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    R(poll(&p, 1, 5000));
}
static void ppoll_waits(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    R(ppoll(&p, 1, NULL, NULL));
}
static void select_waits(int fd) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    R(select(fd + 1, &set, NULL, NULL, NULL));
}
static void epoll_waits(int fd) {
    int ep = epoll_create1(0);
    struct epoll_event ev = {EPOLLIN, {.fd = fd}};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
    R(epoll_wait(ep, &ev, 1, 5000));
    close(ep);
}
static void timed_recv_waits(int fd) {
    struct timeval t = {5, 0}, none = {0, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    R(recv(fd, scratch, 10, 0));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
}

/* Interrupts `wait`, then sends bytes: a restarted call returns them, an interrupted one left them. */
static void interrupted_as_set(void (*wait)(int), bool restarts) {
    int fd = pair();
    waiter = thread_actor(W, wait, fd);
    interrupt_sleeper();
    if (restarts) {
        while (!caught) nap_ms(1);
        until_asleep(W);
        tell_text("bytes");
    }
    pthread_join(waiter, NULL);
    say("caught %d", caught);
    if (!restarts) {
        tell_text("bytes");
        settle(fd, 5);
        take(fd, 5);
    }
    exchange(fd);
    finish();
}
static void interrupted(void (*wait)(int), int flags, bool restarts) {
    handle(SIGUSR1, on_signal, flags);
    interrupted_as_set(wait, restarts);
}

#define EINTR_CASE(wait) static void eintr_##wait(void) { interrupted(wait, 0, false); }
#define RESTART_CASE(wait) static void restart_##wait(void) { interrupted(wait, SA_RESTART, true); }
#define NEVER_CASE(wait) static void never_restarts_##wait(void) { interrupted(wait, SA_RESTART, false); }
EINTR_CASE(recv_waits)
EINTR_CASE(read_waits)
EINTR_CASE(recvmsg_waits)
EINTR_CASE(waitall_waits)
EINTR_CASE(poll_waits)
EINTR_CASE(ppoll_waits)
EINTR_CASE(select_waits)
EINTR_CASE(epoll_waits)
RESTART_CASE(recv_waits)
RESTART_CASE(read_waits)
RESTART_CASE(recvmsg_waits)
NEVER_CASE(poll_waits)
NEVER_CASE(select_waits)
NEVER_CASE(epoll_waits)
NEVER_CASE(timed_recv_waits)

/* The functions that are older than sigaction() set the mask and the flags as their libc does. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void says_action(const char *of, int sig) {
    struct sigaction a;
    R(sigaction(sig, NULL, &a));
    say("%s: ignored %d, default %d, ours %d", of, a.sa_handler == SIG_IGN, a.sa_handler == SIG_DFL,
        a.sa_handler == on_signal);
    say("%s: masks itself %d, another %d; restarts %d, tells more %d", of, sigismember(&a.sa_mask, sig),
        sigismember(&a.sa_mask, SIGHUP), !!(a.sa_flags & SA_RESTART), !!(a.sa_flags & SA_SIGINFO));
}
static void signal_sets_what_libc_sets(void) {
    int fd = pair();
    says_action("at first", SIGUSR2);
    say("was default %d", signal(SIGUSR2, SIG_IGN) == SIG_DFL);
    says_action("ignored", SIGUSR2);
    say("was ignored %d", signal(SIGUSR2, on_signal) == SIG_IGN);
    says_action("handled", SIGUSR2);
    raise(SIGUSR2);
    say("caught %d", caught);
    R(siginterrupt(SIGUSR2, 1));
    says_action("interrupts", SIGUSR2);
    say("was ours %d", signal(SIGUSR2, on_signal) == on_signal);
    says_action("handled again", SIGUSR2);
    say("was ours %d", signal(SIGUSR2, SIG_DFL) == on_signal);
    says_action("in the end", SIGUSR2);
    say("no signal: %d", signal(1000, SIG_IGN) == SIG_ERR);
    say("may not: %d", signal(SIGKILL, SIG_IGN) == SIG_ERR);
    exchange(fd);
    finish();
}
/* One function says which handler was there before, and another one puts it back. */
static void a_handler_is_put_back_by_signal(void) {
    int fd = pair();
    handle(SIGUSR2, on_signal, SA_RESTART);
    void (*before)(int) = sigset(SIGUSR2, SIG_IGN);
    raise(SIGUSR2);
    say("caught %d", caught);
    signal(SIGUSR2, before);
    raise(SIGUSR2);
    say("caught %d", caught);
    before = sigset(SIGUSR2, SIG_DFL);
    handle(SIGUSR2, before, 0);
    raise(SIGUSR2);
    say("caught %d", caught);
    exchange(fd);
    finish();
}
static void signal_restarts_recv(void) {
    signal(SIGUSR1, on_signal);
    interrupted_as_set(recv_waits, true);
}
static void signal_that_interrupts_ends_recv(void) {
    signal(SIGUSR1, on_signal);
    siginterrupt(SIGUSR1, 1);
    interrupted_as_set(recv_waits, false);
}

static void waitall_keeps_what_it_had(void) {
    int fd = pair();
    handle(SIGUSR1, on_signal, 0);
    tell_text("five.");
    settle(fd, 5);
    waiter = thread_actor(W, waitall_waits, fd);
    interrupt_sleeper();
    pthread_join(waiter, NULL);
    exchange(fd);
    finish();
}

static void sends_much(int fd) {
    char *big = calloc(1, 30000000);
    long r = send(fd, big, 30000000, 0);
    say("send was cut short: %d", r > 0 && r < 30000000);
    arena->values[1] = r;
    free(big);
}
static void drains_quietly(int fd) {
    static char buf[65536];
    long r, n = 0;
    while ((r = recv(fd, buf, sizeof buf, 0)) > 0) n += r;
    arena->values[2] = n;
}
static void blocked_send_is_cut_short(void) {
    int fd = pair();
    handle(SIGUSR1, on_signal, 0);
    waiter = thread_actor(W, sends_much, fd);
    interrupt_sleeper();
    pthread_join(waiter, NULL);
    R(shutdown(fd, SHUT_WR));
    tell_call(drains_quietly);
    say("all arrived: %d", arena->values[1] == arena->values[2]);
    finish();
}

/* --- signals that must stop a program -------------------------------------------- */

static void alarm_stops_a_recv_loop(void) {
    int fd = pair();
    handle(SIGALRM, on_alarm, 0);
    struct itimerval t = {{0, 0}, {0, 30000}};
    setitimer(ITIMER_REAL, &t, NULL);
    while (!stop) {
        ssize_t r = recv(fd, scratch, 10, 0);
        if (r >= 0) say("recv %zd", r);
    }
    say("stopped");
    exchange(fd);
    finish();
}

/* Ends within the handler's time though bytes never stop coming. */
static void alarm_stops_a_busy_echo(void) {
    int fd = pair();
    handle(SIGALRM, on_alarm, SA_RESTART);
    order(P_ECHO, 1 << 30);
    struct itimerval t = {{0, 0}, {0, 30000}};
    setitimer(ITIMER_REAL, &t, NULL);
    bool ok = true;
    while (!stop) ok = ok && send_all(fd, "ping", 4) == 4 && recv_all(fd, scratch, 4) == 4;
    say("stopped, all rounds ok: %d", ok);
    R(shutdown(fd, SHUT_WR));
    done();
    arena->actors[1].len = 0; /* how far it came depends on time */
    finish();
}

/* Again and again at the very moment when the wait begins: none may be lost. */
static void storm_body(int fd) {
    for (int i = 0; i < 300; i++) {
        char c;
        while (recv(fd, &c, 1, 0) < 0)
            if (errno != EINTR) say("recv %s", errname(errno));
        if (c != (char)i) say("WRONG byte in round %d", i);
        if (send_all(fd, &c, 1) < 0) say("send %s", errname(errno));
    }
}
static _Atomic int storm_over;
static void peer_counts(int fd) {
    for (int i = 0; i < 300; i++) {
        char c = (char)i, back = 0;
        if (send_all(fd, &c, 1) < 0 || recv_all(fd, &back, 1) != 1 || back != c) say("WRONG echo %d", i);
    }
}
static void stormer(int unused) {
    while (!storm_over) {
        pthread_kill(waiter, SIGUSR1);
        usleep(100);
    }
}
static void signal_storm(int flags) {
    int fd = pair();
    handle(SIGUSR1, on_signal, flags);
    order_call(peer_counts);
    waiter = pthread_self();
    pthread_t t = thread_actor(W, stormer, 0);
    storm_body(fd);
    storm_over = 1;
    pthread_join(t, NULL);
    done();
    say("some were caught: %d", caught > 0);
    finish();
}
static void signal_storm_under_echo(void) { signal_storm(0); }
static void signal_storm_with_restart(void) { signal_storm(SA_RESTART); }

/* --- handlers that use the connection ---------------------------------------------- */

static int handler_fd;
static _Atomic int handler_sent;
static void handler_sends(int sig) {
    int kept = errno;
    if (send(handler_fd, "HHHHHHHHHH", 10, MSG_NOSIGNAL) == 10) handler_sent++;
    errno = kept;
}

static void reads_records(int fd) { /* records of 10 equal bytes: M and H */
    char r[10];
    long m = 0, h = 0;
    for (;;) {
        long n = recv_all(fd, r, 10);
        if (n == 0) break;
        for (int i = 1; i < 10; i++)
            if (n != 10 || r[i] != r[0]) {
                say("WRONG: torn record after %ld M and %ld H", m, h);
                return;
            }
        if (r[0] == 'M') m++;
        else if (r[0] == 'H') h++;
        else say("WRONG: record of '%c'", r[0]);
    }
    say("M records %ld", m);
    arena->values[3] = h;
}

static void handler_sends_on_the_same_descriptor(void) {
    int fd = pair();
    handler_fd = fd;
    handle(SIGALRM, handler_sends, SA_RESTART);
    order_call(reads_records);
    struct itimerval t = {{0, 300}, {0, 300}}, off = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &t, NULL);
    for (int i = 0; i < 20000 || handler_sent < 20; i++) {
        if (i >= 20000) { /* slow machine: let the handler have its turns */
            nap_ms(1);
            continue;
        }
        if (send(fd, "MMMMMMMMMM", 10, 0) != 10) say("send %s", errname(errno));
    }
    setitimer(ITIMER_REAL, &off, NULL);
    R(shutdown(fd, SHUT_WR));
    done();
    say("H records all arrived: %d", arena->values[3] == handler_sent);
    finish();
}

static void handler_sends_while_we_sleep(void) {
    int fd = pair();
    handler_fd = fd;
    handle(SIGUSR1, handler_sends, SA_RESTART);
    waiter = thread_actor(W, recv_waits, fd);
    interrupt_sleeper();
    tell(P_TAKE, 10);
    tell_text("reply");
    pthread_join(waiter, NULL);
    exchange(fd);
    finish();
}

static sigjmp_buf jump;
static void handler_jumps(int sig) { siglongjmp(jump, 1); }

static void longjmp_out_of_recv(void) {
    int fd = pair();
    handle(SIGALRM, handler_jumps, 0);
    for (volatile int i = 0; i < 3; i++) {
        if (sigsetjmp(jump, 1) == 0) {
            struct itimerval t = {{0, 0}, {0, 15000}};
            setitimer(ITIMER_REAL, &t, NULL);
            R(recv(fd, scratch, 10, 0));
        } else say("jumped");
        tell_text("x");
        settle(fd, 1);
        take(fd, 1);
        exchange(fd);
    }
    finish();
}

static void longjmp_out_of_recv_right_after_an_exchange_and_close(void) {
    int fd = pair();
    handle(SIGALRM, handler_jumps, 0);
    for (int i = 0; i < 40; i++) exchange(fd); /* the lane is open and awake */
    if (sigsetjmp(jump, 1) == 0) {
        struct itimerval t = {{0, 0}, {0, 4000}};
        setitimer(ITIMER_REAL, &t, NULL);
        R(recv(fd, scratch, 10, 0));
    } else say("jumped");
    R(close(fd));
    tell(P_RECV, 10); /* the end */
    finish();
}

static void longjmp_out_of_epoll_wait(void) {
    int fd = pair(), ep = epoll_create1(0);
    struct epoll_event ev = {EPOLLIN, {.fd = fd}};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
    handle(SIGALRM, handler_jumps, 0);
    for (volatile int i = 0; i < 3; i++) {
        if (sigsetjmp(jump, 1) == 0) {
            struct itimerval t = {{0, 0}, {0, 15000}};
            setitimer(ITIMER_REAL, &t, NULL);
            R(epoll_wait(ep, &ev, 1, -1));
        } else say("jumped");
        tell_text("x");
        R(epoll_wait(ep, &ev, 1, 2000));
        take(fd, 1);
    }
    exchange(fd);
    finish();
}

/* --- masks --------------------------------------------------------------------------- */

static void ppoll_opens_the_mask(void) {
    int fd = pair(), ep = epoll_create1(0);
    struct epoll_event ev = {EPOLLIN, {.fd = fd}};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
    handle(SIGUSR1, on_signal, 0);
    sigset_t blocked, open;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, &open);
    struct pollfd p = {fd, POLLIN, 0};
    struct timespec second = {2, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    raise(SIGUSR1);
    R(poll(&p, 1, 5));
    say("caught %d", caught);
    R(ppoll(&p, 1, &second, &open));
    say("caught %d", caught);
    raise(SIGUSR1);
    R(epoll_wait(ep, &ev, 1, 5));
    R(epoll_pwait(ep, &ev, 1, 2000, &open));
    say("caught %d", caught);
    raise(SIGUSR1);
    R(pselect(fd + 1, &set, NULL, NULL, &second, &open));
    say("caught %d", caught);
    exchange(fd);
    finish();
}

/* Bytes are there and a signal is pending: the kernel looks at the bytes first. */
static void ready_beats_a_pending_signal(void) {
    int fd = pair(), ep = epoll_create1(0);
    struct epoll_event ev = {EPOLLIN, {.fd = fd}};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
    handle(SIGUSR1, on_signal, 0);
    sigset_t blocked, open;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, &open);
    tell_text("bytes");
    settle(fd, 5);
    raise(SIGUSR1);
    struct pollfd p = {fd, POLLIN, 0};
    struct timespec second = {2, 0};
    R(ppoll(&p, 1, &second, &open));
    say("caught %d", caught);
    R(epoll_pwait(ep, &ev, 1, 2000, &open));
    say("caught %d", caught);
    sigset_t pending;
    sigpending(&pending);
    say("pending %d", sigismember(&pending, SIGUSR1));
    R(recv(fd, scratch, 10, 0));
    exchange(fd);
    finish();
}

/* --- poll and select proper --------------------------------------------------------------- */

static void poll_many_kinds(void) {
    int a = pair(), b = pair(), p[2], timer = timerfd_create(CLOCK_MONOTONIC, 0);
    if (pipe(p)) die("pipe");
    struct pollfd set[6] = {{a, POLLIN | POLLOUT, 0}, {b, POLLIN | POLLRDHUP, 0}, {p[0], POLLIN, 0},
                            {timer, POLLIN, 0}, {-1, POLLIN, 0}, {999, POLLIN, 0}};
    R(poll(set, 6, 1000));
    for (int i = 0; i < 6; i++) say("%d: %s", i, events((unsigned short)set[i].revents));
    tell_text("x");
    settle(a, 1);
    R(write(p[1], "y", 1));
    struct itimerspec when = {{0, 0}, {0, 1}};
    timerfd_settime(timer, 0, &when, NULL);
    nap_ms(2);
    tell_at(1, P_SHUT, SHUT_WR);
    poll_for(b, POLLRDHUP);
    R(poll(set, 5, 1000));
    for (int i = 0; i < 6; i++) say("%d: %s", i, events((unsigned short)set[i].revents));
    take(a, 1);
    set[0].events = POLLIN | POLLRDNORM | POLLWRNORM;
    R(poll(set, 1, 0));
    say("%s", events((unsigned short)set[0].revents));
    set[0].events = 0;
    R(poll(set, 1, 0));
    finish();
}

static void poll_sleeper(int fd) {
    struct pollfd p[2] = {{fd, POLLIN, 0}, {(int)arena->values[0], POLLIN, 0}};
    R(poll(p, 2, -1));
    say("%s and %s", events((unsigned short)p[0].revents), events((unsigned short)p[1].revents));
}
static void poll_wakes_for_either(void) {
    int fd = pair(), p[2];
    if (pipe(p)) die("pipe");
    arena->values[0] = p[0];
    waiter = thread_actor(W, poll_sleeper, fd);
    until_asleep(W);
    tell_text("abc");
    pthread_join(waiter, NULL);
    take(fd, 3);
    waiter = thread_actor(W, poll_sleeper, fd);
    until_asleep(W);
    R(write(p[1], "x", 1));
    pthread_join(waiter, NULL);
    exchange(fd);
    finish();
}

static void select_with_several(void) {
    int a = pair(), b = pair(), p[2];
    if (pipe(p)) die("pipe");
    fd_set in, out;
    struct timeval t = {0, 0};
    int top = (p[1] > b ? p[1] : b) + 1;
    for (int round = 0; round < 4; round++) {
        FD_ZERO(&in);
        FD_ZERO(&out);
        FD_SET(a, &in);
        FD_SET(b, &in);
        FD_SET(p[0], &in);
        if (round == 3) FD_SET(a, &out);
        t = (struct timeval){round ? 2 : 0, 0};
        R(select(top, &in, &out, NULL, &t));
        say("a %d b %d pipe %d out %d", FD_ISSET(a, &in), FD_ISSET(b, &in), FD_ISSET(p[0], &in), FD_ISSET(a, &out));
        if (round == 0) {
            tell_text("x");
            settle(a, 1);
        } else if (round == 1) {
            R(write(p[1], "y", 1));
            take(a, 1);
        } else if (round == 2) tell_at(1, P_SHUT, SHUT_WR), poll_for(b, POLLRDHUP);
    }
    t = (struct timeval){0, 5000};
    FD_ZERO(&in);
    FD_SET(a, &in);
    R(select(a + 1, &in, NULL, NULL, &t));
    say("left %ld.%06ld", (long)t.tv_sec, (long)t.tv_usec);
    FD_SET(a, &in);
    R(pselect(a + 1, &in, NULL, NULL, &(struct timespec){0, 1000000}, NULL));
    close(p[0]);
    FD_ZERO(&in);
    FD_SET(p[0], &in);
    R(select(top, &in, NULL, NULL, &t));
    finish();
}

enum { SLOW_MESSAGES = 20, WITH_FEW = 10 };
static void sends_slowly(int fd) {
    for (int i = 0; i < SLOW_MESSAGES; i++) {
        nap_ms(3);
        send_all(fd, "abc", 3);
    }
}
/* Poll tells of a hang-up that nobody has asked for; select only in the set for reading. */
static void select_sleeps_beside_a_hang_up(void) {
    int fd = pair(), p[2], right = 0, hung_up = 0, told_time = 0;
    char in[3];
    if (pipe(p)) die("pipe");
    close(p[1]);
    order_call(sends_slowly);
    for (int i = 0; i < SLOW_MESSAGES; i++) {
        fd_set reads, writes;
        struct timeval left = {5, 0};
        FD_ZERO(&reads);
        FD_ZERO(&writes);
        FD_SET(fd, &reads);
        FD_SET(p[0], &writes);
        right += select((fd > p[0] ? fd : p[0]) + 1, &reads, &writes, NULL, &left) == 1 && FD_ISSET(fd, &reads);
        hung_up += FD_ISSET(p[0], &writes) != 0;
        told_time += left.tv_sec == 4;
        recv_all(fd, in, 3);
    }
    say("right %d, hung up %d, most told the time: %d", right, hung_up, told_time > SLOW_MESSAGES / 2);
    done();
    exchange(fd);
    finish();
}

/* The library asks the kernel about more than the program does, which may be more than it may ask about. */
static void waits_at_the_limit_of_descriptors(int (*wait)(int)) {
    int fd = pair(), right = 0;
    struct rlimit was, one;
    char in[3];
    R(getrlimit(RLIMIT_NOFILE, &was));
    one = (struct rlimit){1, was.rlim_max};
    order_call(sends_slowly);
    for (int i = 0; i < SLOW_MESSAGES; i++) {
        if (i == WITH_FEW) R(setrlimit(RLIMIT_NOFILE, &one));
        right += wait(fd) == 1 && recv_all(fd, in, 3) == 3;
    }
    R(setrlimit(RLIMIT_NOFILE, &was));
    say("right %d", right);
    done();
    exchange(fd);
    finish();
}
static int polls_one(int fd) { return poll(&(struct pollfd){fd, POLLIN, 0}, 1, 5000); }
static int selects_one(int fd) {
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    return select(fd + 1, &in, NULL, NULL, &(struct timeval){5, 0});
}
static void poll_at_the_limit_of_descriptors(void) { waits_at_the_limit_of_descriptors(polls_one); }
static void select_at_the_limit_of_descriptors(void) { waits_at_the_limit_of_descriptors(selects_one); }

/* --- cancellation --------------------------------------------------------------------------- */

static void cancelled(void (*wait)(int)) {
    int fd = pair();
    waiter = thread_actor(W, wait, fd);
    until_asleep(W);
    R(pthread_cancel(waiter));
    void *result = NULL;
    R(pthread_join(waiter, &result));
    say("cancelled %d", result == PTHREAD_CANCELED);
    tell_text("after");
    settle(fd, 5);
    take(fd, 5);
    exchange(fd);
    finish();
}
static void cancel_in_recv(void) { cancelled(recv_waits); }
static void cancel_in_read(void) { cancelled(read_waits); }
static void cancel_in_epoll_wait(void) { cancelled(epoll_waits); }
static void cancel_in_poll(void) { cancelled(poll_waits); }

static void cancel_disabled_body(int fd) {
    int old;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    recv_waits(fd);
}
static void cancel_disabled_in_recv(void) {
    int fd = pair();
    waiter = thread_actor(W, cancel_disabled_body, fd);
    until_asleep(W);
    R(pthread_cancel(waiter));
    tell_text("go on");
    pthread_join(waiter, NULL);
    exchange(fd);
    finish();
}

const struct one_case cases[] = {
#define CASE(name) {#name, name, 0}
#define ALONE(name) {#name, name, NO_THREAD}
    CASE(eintr_recv_waits),
    CASE(eintr_read_waits),
    CASE(eintr_recvmsg_waits),
    CASE(eintr_waitall_waits),
    CASE(eintr_poll_waits),
    CASE(eintr_ppoll_waits),
    CASE(eintr_select_waits),
    CASE(eintr_epoll_waits),
    CASE(restart_recv_waits),
    CASE(restart_read_waits),
    CASE(restart_recvmsg_waits),
    CASE(never_restarts_poll_waits),
    CASE(never_restarts_select_waits),
    CASE(never_restarts_epoll_waits),
    CASE(never_restarts_timed_recv_waits),
    CASE(signal_sets_what_libc_sets),
    CASE(a_handler_is_put_back_by_signal),
    CASE(signal_restarts_recv),
    CASE(signal_that_interrupts_ends_recv),
    CASE(waitall_keeps_what_it_had),
    CASE(blocked_send_is_cut_short),
    ALONE(alarm_stops_a_recv_loop),
    ALONE(alarm_stops_a_busy_echo),
    ALONE(signal_storm_under_echo),
    ALONE(signal_storm_with_restart),
    ALONE(handler_sends_on_the_same_descriptor),
    CASE(handler_sends_while_we_sleep),
    ALONE(longjmp_out_of_recv),
    ALONE(longjmp_out_of_recv_right_after_an_exchange_and_close),
    ALONE(longjmp_out_of_epoll_wait),
    ALONE(ppoll_opens_the_mask),
    ALONE(ready_beats_a_pending_signal),
    CASE(poll_many_kinds),
    CASE(poll_wakes_for_either),
    CASE(select_with_several),
    CASE(select_sleeps_beside_a_hang_up),
    CASE(poll_at_the_limit_of_descriptors),
    CASE(select_at_the_limit_of_descriptors),
    CASE(cancel_in_recv),
    CASE(cancel_in_read),
    CASE(cancel_in_epoll_wait),
    CASE(cancel_in_poll),
    CASE(cancel_disabled_in_recv),
    {NULL, NULL, 0},
};
