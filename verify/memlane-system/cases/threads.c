/* Several threads on one connection. */
#include "common.h"

static char scratch[65536];
enum { T = 5, U = 6, GO = 0 };

static void recv_says(int fd) {
    char buf[100];
    errno = 0;
    long r = recv(fd, buf, sizeof buf, 0);
    say_result("recv", r, errno);
    if (r > 0) say_bytes("got", buf, r);
}

static void one_sleeps_in_recv_while_another_sends(void) {
    int fd = pair();
    for (int i = 0; i < 5; i++) {
        pthread_t t = thread_actor(T, recv_says, fd);
        until_asleep(T);
        send_text(fd, "request");
        tell(P_TAKE, 7);
        tell_text("reply");
        pthread_join(t, NULL);
    }
    exchange(fd);
    finish();
}

static void poll_says(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    R(poll(&p, 1, -1));
}

static void one_sleeps_in_poll_another_reads(void) {
    int fd = pair();
    for (int i = 0; i < 3; i++) {
        pthread_t t = thread_actor(T, poll_says, fd);
        until_asleep(T);
        tell_text("bytes");
        pthread_join(t, NULL);
        take(fd, 5);
    }
    finish();
}

static void epoll_forever(int fd) { /* readiness only; the main thread reads */
    int ep = epoll_create1(0);
    struct epoll_event ev = {EPOLLIN | EPOLLRDHUP | EPOLLET, {.fd = fd}};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
    for (;;) {
        int n = epoll_wait(ep, &ev, 1, -1);
        if (n == 1 && ev.events & EPOLLRDHUP) break;
        if (n == 1) post(GO);
    }
    say("saw the end");
    close(ep);
}

static void one_waits_and_another_reads(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, epoll_forever, fd);
    for (int i = 0; i < 10; i++) {
        if (i % 2) until_asleep(T);
        tell_text("bytes");
        await(GO);
        take(fd, 5);
    }
    tell(P_SHUT, SHUT_WR);
    pthread_join(t, NULL);
    finish();
}

static void reads_all(int fd) { drain(fd); }
static void writes_all(int fd) { send_n(fd, 1500000, 3); }

static void reader_and_writer_threads(void) {
    int fd = pair();
    order(P_ECHO, 1500000);
    pthread_t t = thread_actor(T, reads_all, fd), u = thread_actor(U, writes_all, fd);
    pthread_join(u, NULL);
    done();
    tell(P_SHUT, SHUT_WR);
    pthread_join(t, NULL);
    finish();
}

/* Whole records from two threads must never be torn: send() of up to a segment is atomic in practice. */
static void writes_t(int fd) {
    for (int i = 0; i < 3000; i++)
        if (send(fd, "TTTTTTTTTTTTTTTT", 16, 0) != 16) say("send");
}
static void writes_u(int fd) {
    for (int i = 0; i < 3000; i++)
        if (send(fd, "UUUUUUUUUUUUUUUU", 16, 0) != 16) say("send");
}
static void counts_records(int fd) {
    char r[16];
    long t = 0, u = 0;
    while (recv_all(fd, r, 16) == 16) {
        for (int i = 1; i < 16; i++)
            if (r[i] != r[0]) {
                say("WRONG: torn record");
                return;
            }
        if (r[0] == 'T') t++;
        else if (r[0] == 'U') u++;
    }
    say("T %ld U %ld", t, u);
}
static void two_writers_of_records(void) {
    int fd = pair();
    order_call(counts_records);
    pthread_t t = thread_actor(T, writes_t, fd), u = thread_actor(U, writes_u, fd);
    pthread_join(t, NULL);
    pthread_join(u, NULL);
    R(shutdown(fd, SHUT_WR));
    done();
    finish();
}

static _Atomic uint64_t sum;
static _Atomic long count;
static void reads_bytes(int fd) {
    unsigned char buf[777];
    long r;
    while ((r = recv(fd, buf, sizeof buf, 0)) > 0)
        for (long i = 0; i < r; i++) {
            sum += buf[i];
            count++;
        }
}
static void two_readers_share_a_stream(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, reads_bytes, fd), u = thread_actor(U, reads_bytes, fd);
    tell(P_SEND, 500000);
    tell(P_SHUT, SHUT_WR);
    pthread_join(t, NULL);
    pthread_join(u, NULL);
    say("count %ld sum %llu", count, (unsigned long long)sum);
    finish();
}

static void closed_in_one_thread_while_another_reads(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, recv_says, fd);
    until_asleep(T);
    R(close(fd)); /* the sleeper keeps the connection open */
    tell_text("wakes it");
    pthread_join(t, NULL);
    R(recv(fd, scratch, 1, 0));
    finish();
}

static void exchange_by_recv(int fd) { /* the thread that will sleep in recv reads, so the lane is open and awake */
    for (int i = 0; i < 40; i++) {
        send_text(fd, "ping");
        tell(P_TAKE, 4);
        tell_text("pong");
        take(fd, 4);
    }
}
static void talks_then_reads(int fd) {
    exchange_by_recv(fd);
    post(GO);
    recv_says(fd);
}
static void closed_right_after_an_exchange_while_another_reads(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, talks_then_reads, fd);
    await(GO);
    until_asleep(T);
    R(close(fd)); /* the sleeper keeps the connection open, though its number is gone */
    int other = (int)R(socket(AF_UNIX, SOCK_STREAM, 0)); /* … and may be another file's */
    say(other == fd ? "the same number" : "another number");
    tell_text("wakes it");
    pthread_join(t, NULL);
    R(recv(fd, scratch, 1, MSG_DONTWAIT));
    finish();
}
static void closed_in_a_forked_child_while_another_thread_reads(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, talks_then_reads, fd);
    await(GO);
    int child = fork();
    if (child == 0) { /* there is nobody to wait for: the thread is the parent's */
        close(fd);
        _exit(clock() > CLOCKS_PER_SEC / 50);
    }
    say_wait("child", child);
    tell_text("wakes it");
    pthread_join(t, NULL);
    finish();
}
static void shutdown_right_after_an_exchange_wakes_a_reader(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, talks_then_reads, fd);
    await(GO);
    until_asleep(T);
    R(shutdown(fd, SHUT_RD));
    pthread_join(t, NULL);
    finish();
}
static void reads_one_after_the_other(int fd) {
    exchange_by_recv(fd);
    for (int i = 0; i < 60; i++) { /* pauses around the longest that the lane stays awake for a read */
        struct timespec pause = {0, (i % 20) * 1000000};
        send_text(fd, "ping");
        tell(P_TAKE, 4);
        nanosleep(&pause, NULL);
        tell_text("pong");
        take(fd, 4);
    }
}
static void one_reads_after_pauses_of_any_length(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, reads_one_after_the_other, fd);
    pthread_join(t, NULL);
    finish();
}

static void polls_long(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    const long begin = now_ms();
    R(poll(&p, 1, 700));
    const long took = now_ms() - begin;
    say("%s, %s", events((unsigned short)p.revents), took < 700 ? "early" : took < 5000 ? "in time" : "late");
}
static void exchange_by_poll(int fd) { /* the thread that will sleep in poll reads, so the sender knows whom to wake */
    for (int i = 0; i < 40; i++) {
        send_text(fd, "ping");
        tell(P_TAKE, 4);
        tell_text("pong");
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 5000) != 1) say("no pong %d", i);
        take(fd, 4);
    }
}
static void talks_then_polls_long(int fd) {
    exchange_by_poll(fd);
    post(GO);
    polls_long(fd);
}
static void a_long_sleep_in_poll_ends_in_time(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, talks_then_polls_long, fd);
    await(GO);
    pthread_join(t, NULL);
    finish();
}
static void talks_then_polls(int fd) {
    exchange_by_poll(fd);
    post(GO);
    poll_says(fd);
}
static void closed_in_one_thread_while_another_polls(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, talks_then_polls, fd);
    await(GO);
    until_asleep(T);
    R(close(fd)); /* the sleeper keeps the connection open */
    tell_text("wakes it");
    pthread_join(t, NULL);
    R(recv(fd, scratch, 1, 0));
    finish();
}
/* What a thread waits for, beside its connection. */
static int beside[2];
static void talks_then_polls_with_a_pipe(int fd) {
    exchange_by_poll(fd);
    post(GO);
    struct pollfd list[2] = {{beside[0], POLLIN, 0}, {fd, POLLIN, 0}};
    R(poll(list, 2, 10000));
    say("%s, %s", events((unsigned short)list[0].revents), events((unsigned short)list[1].revents));
}
static void talks_then_selects_with_a_pipe(int fd) {
    exchange_by_poll(fd);
    post(GO);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(beside[0], &set);
    FD_SET(fd, &set);
    struct timeval limit = {10, 0};
    R(select((fd > beside[0] ? fd : beside[0]) + 1, &set, NULL, NULL, &limit));
    say("%d, %d", FD_ISSET(beside[0], &set), FD_ISSET(fd, &set));
}
static void sleeps_with_a_pipe(void (*sleeper)(int), void (*meanwhile)(void)) {
    int fd = pair();
    R(pipe(beside));
    pthread_t t = thread_actor(T, sleeper, fd);
    await(GO);
    until_asleep(T);
    meanwhile();
    nap_ms(650); /* longer than the lane relies on bells */
    tell_text("wakes it");
    pthread_join(t, NULL);
    take(fd, 8);
    finish();
}
static void nothing(void) {}
static void closes_the_pipe(void) { R(close(beside[0])); }
static void replaces_the_pipe(void) {
    int full[2];
    R(pipe(full));
    R(write(full[1], "x", 1));
    R(dup2(full[0], beside[0]) == beside[0]);
}
static void writes_to_the_pipe(void) {
    nap_ms(600);
    R(write(beside[1], "x", 1));
}
static void fails_to_replace_the_pipe(void) {
    R(dup2(9999, beside[0]));
    R(dup3(beside[1], beside[0], 1));
    writes_to_the_pipe();
}
static void a_pipe_beside_a_connection_in_poll(void) { sleeps_with_a_pipe(talks_then_polls_with_a_pipe, nothing); }
static void a_pipe_closed_while_a_thread_polls(void) { sleeps_with_a_pipe(talks_then_polls_with_a_pipe, closes_the_pipe); }
static void a_pipe_replaced_while_a_thread_polls(void) { sleeps_with_a_pipe(talks_then_polls_with_a_pipe, replaces_the_pipe); }
static void a_pipe_written_while_a_thread_polls(void) { sleeps_with_a_pipe(talks_then_polls_with_a_pipe, writes_to_the_pipe); }
static void a_pipe_not_replaced_while_a_thread_polls(void) { sleeps_with_a_pipe(talks_then_polls_with_a_pipe, fails_to_replace_the_pipe); }
static void a_pipe_closed_while_a_thread_selects(void) { sleeps_with_a_pipe(talks_then_selects_with_a_pipe, closes_the_pipe); }
static void a_pipe_written_while_a_thread_selects(void) { sleeps_with_a_pipe(talks_then_selects_with_a_pipe, writes_to_the_pipe); }
static void what_comes_late_wakes_a_sleeper_in_poll(void) {
    int fd = pair();
    for (int ms = 0; ms <= 540; ms += 180) {
        pthread_t t = thread_actor(T, talks_then_polls, fd);
        await(GO);
        until_asleep(T);
        nap_ms(ms);
        tell_text("late");
        pthread_join(t, NULL);
        take(fd, 4);
    }
    finish();
}

static void shutdown_wakes_a_reader(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, recv_says, fd);
    until_asleep(T);
    R(shutdown(fd, SHUT_RD));
    pthread_join(t, NULL);
    send_text(fd, "still");
    tell(P_TAKE, 5);
    finish();
}

static void shutdown_wakes_a_poller(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, poll_says, fd);
    until_asleep(T);
    R(shutdown(fd, SHUT_RDWR));
    pthread_join(t, NULL);
    tell(P_DRAIN, 0);
    finish();
}

static void writes_until_error(int fd) {
    while (send(fd, scratch, sizeof scratch, MSG_NOSIGNAL) > 0) {}
    say("blocked send: %s", errname(errno));
}
static void shutdown_wakes_a_blocked_writer(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, writes_until_error, fd);
    until_asleep(T);
    R(shutdown(fd, SHUT_WR));
    pthread_join(t, NULL);
    tell_call(reads_bytes);
    finish();
}

static void echoes_until_eof(int fd) {
    char buf[4096];
    long r;
    while ((r = recv(fd, buf, sizeof buf, 0)) > 0)
        if (send_all(fd, buf, (size_t)r) < 0) break;
}
static void handed_to_a_worker_thread(void) {
    int fd = pair();
    pthread_t t = thread_actor(T, echoes_until_eof, fd);
    for (int i = 0; i < 30; i++) tell(P_SEND, 40), tell(P_TAKE, 40);
    tell(P_SHUT, SHUT_WR);
    pthread_join(t, NULL);
    finish();
}

static void both_ends_in_one_thread(void) {
    int listener = listen_any(), port = bound_port(listener);
    int c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    union address a = loopback(AF_INET, port);
    int r = connect(c, &a.any, address_len(&a));
    say("connect %s", r < 0 ? errname(errno) : "0");
    int s = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    poll_for(c, POLLOUT);
    uint64_t h = HASH_START;
    for (int i = 0; i < 100; i++) {
        int n = 1 + i * 37 % 3000, from = i % 2 ? c : s, to = i % 2 ? s : c, have = 0;
        fill(scratch, (size_t)n, (unsigned)i);
        if (send(from, scratch, (size_t)n, 0) != n) say("send in round %d", i);
        memset(scratch, 0, (size_t)n);
        for (int tries = 0; have < n && tries < 2000; tries++) {
            long got = recv(to, scratch + have, (size_t)(n - have), 0);
            if (got > 0) have += (int)got;
            else poll(&(struct pollfd){to, POLLIN, 0}, 1, 5);
        }
        if (have != n) say("recv in round %d", i);
        h = hash_more(h, scratch, (size_t)n);
    }
    say("hash %016llx", (unsigned long long)h);
    R(close(c));
    say("%s", events(poll_for(s, POLLRDHUP)));
    R(recv(s, scratch, 1, 0));
}

static void both_ends_in_one_epoll_set(void) {
    int listener = listen_any(), ep = epoll_create1(0);
    int c = connect_port(bound_port(listener)), s = accept_one(listener);
    int fds[2] = {c, s};
    for (int i = 0; i < 2; i++) {
        struct epoll_event ev = {EPOLLIN, {.u32 = (unsigned)i}};
        set_nonblocking(fds[i], true);
        epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &ev);
    }
    send_text(c, "ball");
    int passes = 0;
    while (passes < 2000) {
        struct epoll_event ev[2];
        int n = epoll_wait(ep, ev, 2, 5000);
        if (n <= 0) {
            say("no event after %d", passes);
            break;
        }
        for (int i = 0; i < n; i++) {
            int at = fds[ev[i].data.u32];
            if (recv(at, scratch, 10, 0) == 4 && send(at, scratch, 4, 0) == 4) passes++;
            else say("pass %d", passes);
        }
    }
    say("passes %d '%.4s'", passes, scratch);
}

static void many_threads_many_connections_body(int port) {
    int fd = connect_port(port);
    char out[100], in[100];
    bool ok = true;
    for (int i = 0; i < 100; i++) {
        fill(out, sizeof out, (unsigned)i);
        ok = ok && send_all(fd, out, 100) == 100 && recv_all(fd, in, 100) == 100 && !memcmp(in, out, 100);
    }
    say("ok %d", ok);
    close(fd);
}
static void *thread_echo(void *fd) {
    echoes_until_eof((int)(intptr_t)fd);
    close((int)(intptr_t)fd);
    return NULL;
}
static void polls_and_talks(int port) {
    int fd = connect_port(port);
    char out[100], in[100];
    bool ok = true;
    for (int i = 0; i < 200; i++) {
        fill(out, sizeof out, (unsigned)i);
        struct pollfd p = {fd, POLLIN, 0};
        ok = ok && send_all(fd, out, 100) == 100 && poll(&p, 1, 5000) == 1;
        ok = ok && recv_all(fd, in, 100) == 100 && !memcmp(in, out, 100);
    }
    say("ok %d", ok);
    close(fd);
}
static void *poll_echo(void *arg) { /* three connections, one of which naps before it answers */
    const int *fds = arg;
    struct pollfd p[3];
    for (int i = 0; i < 3; i++) p[i] = (struct pollfd){fds[i], POLLIN, 0};
    for (int open = 3; open > 0;) {
        if (poll(p, 3, 5000) <= 0) break;
        for (int i = 0; i < 3; i++) {
            char buf[4096];
            if (!p[i].revents) continue;
            long n = recv(p[i].fd, buf, sizeof buf, 0);
            if (i == 0) nap_ms(1);
            if (n > 0 && send_all(p[i].fd, buf, (size_t)n) == n) continue;
            close(p[i].fd);
            p[i].fd = -1;
            open--;
        }
    }
    return NULL;
}
static void a_poll_for_three_connections_in_each_thread(void) {
    int listener = listen_any(), port = bound_port(listener);
    pthread_t clients[6], servers[2];
    int fds[6];
    for (int i = 0; i < 6; i++) {
        clients[i] = thread_actor(2 + i, polls_and_talks, port);
        fds[i] = accept_one(listener);
    }
    for (int i = 0; i < 2; i++) pthread_create(&servers[i], NULL, poll_echo, &fds[3 * i]);
    for (int i = 0; i < 6; i++) pthread_join(clients[i], NULL);
    for (int i = 0; i < 2; i++) pthread_join(servers[i], NULL);
}

static void a_thread_per_connection(void) {
    int listener = listen_any(), port = bound_port(listener);
    pthread_t clients[4], servers[4];
    for (int i = 0; i < 4; i++) clients[i] = thread_actor(3 + i, many_threads_many_connections_body, port);
    for (int i = 0; i < 4; i++) pthread_create(&servers[i], NULL, thread_echo, (void *)(intptr_t)accept_one(listener));
    for (int i = 0; i < 4; i++) pthread_join(clients[i], NULL), pthread_join(servers[i], NULL);
}

const struct one_case cases[] = {
#define CASE(name) {#name, name, 0}
    CASE(one_sleeps_in_recv_while_another_sends),
    CASE(one_sleeps_in_poll_another_reads),
    CASE(one_waits_and_another_reads),
    CASE(reader_and_writer_threads),
    CASE(two_writers_of_records),
    CASE(two_readers_share_a_stream),
    CASE(closed_in_one_thread_while_another_reads),
    CASE(closed_right_after_an_exchange_while_another_reads),
    CASE(closed_in_a_forked_child_while_another_thread_reads),
    CASE(shutdown_right_after_an_exchange_wakes_a_reader),
    {"one_reads_after_pauses_of_any_length", one_reads_after_pauses_of_any_length, LONG},
    {"a_long_sleep_in_poll_ends_in_time", a_long_sleep_in_poll_ends_in_time, LONG},
    CASE(closed_in_one_thread_while_another_polls),
    CASE(a_pipe_beside_a_connection_in_poll),
    CASE(a_pipe_closed_while_a_thread_polls),
    CASE(a_pipe_replaced_while_a_thread_polls),
    CASE(a_pipe_not_replaced_while_a_thread_polls),
    CASE(a_pipe_written_while_a_thread_polls),
    CASE(a_pipe_closed_while_a_thread_selects),
    CASE(a_pipe_written_while_a_thread_selects),
    {"what_comes_late_wakes_a_sleeper_in_poll", what_comes_late_wakes_a_sleeper_in_poll, LONG},
    CASE(shutdown_wakes_a_reader),
    CASE(shutdown_wakes_a_poller),
    CASE(shutdown_wakes_a_blocked_writer),
    CASE(handed_to_a_worker_thread),
    {"both_ends_in_one_thread", both_ends_in_one_thread, ONCE | LANE},
    {"both_ends_in_one_epoll_set", both_ends_in_one_epoll_set, ONCE | LANE},
    {"a_poll_for_three_connections_in_each_thread", a_poll_for_three_connections_in_each_thread, ONCE | LANE},
    {"a_thread_per_connection", a_thread_per_connection, ONCE | LANE},
    {NULL, NULL, 0},
};
