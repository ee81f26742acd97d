/* epoll: levels, edges, one shot, nesting, sets shared over fork and between threads. */
#include "common.h"

static char scratch[65536];

static int ctl(int ep, int op, int fd, unsigned ev, unsigned tag) {
    struct epoll_event e = {ev, {.u32 = tag}};
    return epoll_ctl(ep, op, fd, &e);
}
static void add(int ep, int fd, unsigned ev, unsigned tag) {
    if (ctl(ep, EPOLL_CTL_ADD, fd, ev, tag) < 0) say("ADD: %s", errname(errno));
}
static void mod(int ep, int fd, unsigned ev, unsigned tag) {
    if (ctl(ep, EPOLL_CTL_MOD, fd, ev, tag) < 0) say("MOD: %s", errname(errno));
}

/* One wait; ready entries in order of their tag, so that the set's own order doesn't matter. */
static int wait_says(int ep, int timeout) {
    struct epoll_event ev[16];
    int n = epoll_wait(ep, ev, 16, timeout);
    if (n < 0) say("epoll_wait %s", errname(errno));
    if (n == 0) say("epoll_wait: nothing");
    for (unsigned tag = 0; tag < 100; tag++)
        for (int i = 0; i < n; i++)
            if (ev[i].data.u32 == tag) say("ready: #%u %s", tag, events(ev[i].events));
    return n;
}

static void level_reports_until_read(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN, 1);
    wait_says(ep, 0);
    tell_text("abcdef");
    settle(fd, 6);
    wait_says(ep, 1000);
    wait_says(ep, 0);
    take(fd, 3);
    wait_says(ep, 0);
    take(fd, 3);
    wait_says(ep, 0);
    tell_text("x");
    wait_says(ep, 2000);
    take(fd, 1);
    exchange(fd);
    finish();
}

static void edge_reports_once(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN | EPOLLET, 1);
    tell_text("abcdef");
    settle(fd, 6);
    wait_says(ep, 1000);
    wait_says(ep, 0);
    take(fd, 3); /* part of it: no new edge */
    wait_says(ep, 0);
    tell_text("gh"); /* new bytes: new edge, though some were unread */
    settle(fd, 5);
    wait_says(ep, 1000);
    wait_says(ep, 0);
    take(fd, 5);
    wait_says(ep, 0);
    tell_text("i");
    settle(fd, 1);
    wait_says(ep, 1000);
    take(fd, 1);
    wait_says(ep, 0);
    finish();
}

static void edge_of_bytes_behind_unread_ones(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN | EPOLLET, 1);
    wait_says(ep, 0);
    nap_ms(5); /* nobody looks: these bytes may come another way than the next ones */
    tell_text("abcdef");
    settle(fd, 6);
    wait_says(ep, 1000);
    take(fd, 3);
    wait_says(ep, 0);
    tell_text("gh");
    settle(fd, 5);
    wait_says(ep, 1000);
    wait_says(ep, 0);
    take(fd, 5);
    wait_says(ep, 0);
    finish();
}

static void edge_rearmed_by_mod(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN | EPOLLET, 1);
    tell_text("abcdef");
    settle(fd, 6);
    wait_says(ep, 1000);
    wait_says(ep, 0);
    mod(ep, fd, EPOLLIN | EPOLLET, 2);
    wait_says(ep, 1000);
    wait_says(ep, 0);
    take(fd, 2);
    mod(ep, fd, EPOLLIN | EPOLLET, 3);
    wait_says(ep, 1000);
    take(fd, 4);
    mod(ep, fd, EPOLLIN | EPOLLET, 4);
    wait_says(ep, 0);
    finish();
}

static void edge_both_directions(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, 1);
    wait_says(ep, 1000); /* OUT at once */
    wait_says(ep, 0);
    tell_text("abc");
    settle(fd, 3);
    wait_says(ep, 1000); /* IN, and OUT as it stands */
    wait_says(ep, 0);
    take(fd, 3);
    tell(P_SHUT, SHUT_WR);
    poll_for(fd, POLLRDHUP);
    wait_says(ep, 1000);
    wait_says(ep, 0);
    finish();
}

static void edge_added_with_bytes_waiting(void) {
    int fd = pair(), ep = epoll_create1(0);
    tell_text("early");
    settle(fd, 5);
    add(ep, fd, EPOLLIN | EPOLLET, 1);
    wait_says(ep, 1000);
    wait_says(ep, 0);
    take(fd, 5);
    finish();
}

static void edge_output_after_it_was_full(void) {
    int fd = pair(), ep = epoll_create1(0);
    set_nonblocking(fd, true);
    add(ep, fd, EPOLLOUT | EPOLLET, 1);
    wait_says(ep, 1000);
    memset(scratch, 'x', sizeof scratch);
    long total = 0, r;
    while ((r = send(fd, scratch, sizeof scratch, MSG_NOSIGNAL)) > 0) total += r;
    say("full %s", errname(errno));
    wait_says(ep, 0);
    order(P_DRAIN, 0);
    wait_says(ep, 5000);
    R(shutdown(fd, SHUT_WR));
    done(); /* the amount varies: so its own transcript would too */
    arena->actors[1].len = 0;
    finish();
}

static void one_shot_needs_rearming(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN | EPOLLONESHOT, 1);
    tell_text("abcdef");
    settle(fd, 6);
    wait_says(ep, 1000);
    wait_says(ep, 0);
    tell_text("gh");
    settle(fd, 8);
    wait_says(ep, 0);
    mod(ep, fd, EPOLLIN | EPOLLONESHOT, 2);
    wait_says(ep, 1000);
    wait_says(ep, 0);
    take(fd, 8);
    mod(ep, fd, EPOLLIN | EPOLLONESHOT, 3);
    wait_says(ep, 0);
    tell_text("i");
    wait_says(ep, 2000);
    take(fd, 1);
    finish();
}

static void one_shot_edge(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 1);
    for (int i = 0; i < 4; i++) {
        tell_text("data");
        settle(fd, 4);
        wait_says(ep, 1000);
        wait_says(ep, 0);
        if (i % 2) take(fd, 4);
        mod(ep, fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 1);
        wait_says(ep, 0);
        if (!(i % 2)) {
            take(fd, 4);
            mod(ep, fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 1);
        }
    }
    finish();
}

/* A pool of workers on one set, as one-shot is meant: whoever gets a connection
 * has it alone until it arms it again. */
enum { POOL = 4, SHOTS = 12, SHOT_ROUNDS = 60 };
static int shot_set;
static _Atomic int shot_busy[1024], shot_clashes, shots_over;

static void *shoots(void *arg) {
    (void)arg;
    struct epoll_event ev;
    char buf[512];
    while (shots_over < SHOTS) {
        if (epoll_wait(shot_set, &ev, 1, 100) != 1) continue;
        int fd = ev.data.fd;
        shot_clashes += atomic_exchange(&shot_busy[fd], 1);
        long r;
        while ((r = recv(fd, buf, sizeof buf, MSG_DONTWAIT)) > 0) send_all(fd, buf, (size_t)r);
        atomic_store(&shot_busy[fd], 0);
        if (r == 0) {
            close(fd);
            shots_over++;
            continue;
        }
        struct epoll_event again = {EPOLLIN | EPOLLONESHOT, {.fd = fd}};
        epoll_ctl(shot_set, EPOLL_CTL_MOD, fd, &again);
    }
    return NULL;
}

static void asks_the_pool(int port) {
    static int fds[SHOTS];
    char want[300], got[300];
    int wrong = 0;
    for (int i = 0; i < SHOTS; i++) fds[i] = connect_port(port);
    for (int round = 0; round < SHOT_ROUNDS; round++) {
        size_t n = (size_t)(round * 7 % 299 + 1);
        for (int i = 0; i < SHOTS; i++) {
            fill(want, n, (unsigned)(round + i));
            send_all(fds[i], want, n);
        }
        for (int i = 0; i < SHOTS; i++) {
            fill(want, n, (unsigned)(round + i));
            wrong += recv_all(fds[i], got, n) != (long)n || memcmp(want, got, n) != 0;
        }
    }
    for (int i = 0; i < SHOTS; i++) close(fds[i]);
    say("wrong answers: %d", wrong);
}

static void one_shot_worker_pool(void) {
    pthread_t pool[POOL];
    int listener = listen_any();
    int client = fork_actor(5, asks_the_pool, bound_port(listener));
    shot_set = epoll_create1(0);
    for (int i = 0; i < POOL; i++) pthread_create(&pool[i], NULL, shoots, NULL);
    for (int i = 0; i < SHOTS; i++) {
        int fd = accept(listener, NULL, NULL);
        struct epoll_event ev = {EPOLLIN | EPOLLONESHOT, {.fd = fd}};
        epoll_ctl(shot_set, EPOLL_CTL_ADD, fd, &ev);
    }
    for (int i = 0; i < POOL; i++) pthread_join(pool[i], NULL);
    say("two workers at once: %d", shot_clashes);
    say_wait("client", client);
}

static void masks_of_a_half_close(void) {
    int fd = pair();
    int a = epoll_create1(0), b = epoll_create1(0), c = epoll_create1(0);
    add(a, fd, EPOLLIN, 1);
    add(b, fd, EPOLLIN | EPOLLRDHUP, 2);
    add(c, fd, 0, 3);
    tell_text("x");
    tell(P_SHUT, SHUT_WR);
    poll_for(fd, POLLRDHUP);
    wait_says(a, 1000);
    wait_says(b, 1000);
    wait_says(c, 0);
    take(fd, 1);
    wait_says(a, 0);
    wait_says(b, 0);
    mod(a, fd, EPOLLRDHUP, 1);
    wait_says(a, 0);
    mod(a, fd, EPOLLOUT, 1);
    wait_says(a, 0);
    R(shutdown(fd, SHUT_WR));
    tell(P_CLOSE, 0);
    poll_for(fd, POLLHUP);
    wait_says(a, 0);
    wait_says(b, 0);
    wait_says(c, 0); /* HUP comes unasked */
    finish();
}

static void masks_of_a_reset(void) {
    int fd = pair(), a = epoll_create1(0), b = epoll_create1(0);
    add(a, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1);
    add(b, fd, 0, 2);
    tell_text("data");
    settle(fd, 4);
    tell(P_RESET, 0);
    poll_for(fd, POLLERR | POLLHUP);
    wait_says(a, 1000);
    wait_says(b, 1000);
    take(fd, 4);
    R(recv(fd, scratch, 1, 0));
    wait_says(a, 0);
    finish();
}

static void added_before_connecting(void) {
    int listener = listen_any(), ep = epoll_create1(0);
    union address a = loopback(AF_INET, bound_port(listener));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    add(ep, fd, EPOLLIN | EPOLLOUT, 1);
    wait_says(ep, 0); /* OUT|HUP: not connected */
    int r = connect(fd, &a.any, address_len(&a));
    say("connect %s", r < 0 ? errname(errno) : "0");
    int other = accept_one(listener);
    poll_for(fd, POLLOUT);
    wait_says(ep, 1000);
    mod(ep, fd, EPOLLIN, 1);
    for (int i = 0; i < 20; i++) {
        if (send(other, "ping", 4, 0) != 4) say("send");
        struct epoll_event ev;
        if (epoll_wait(ep, &ev, 1, 2000) != 1) say("no event in round %d", i);
        if (recv(fd, scratch, 10, 0) != 4) say("recv");
        if (epoll_wait(ep, &ev, 1, 0) != 0) say("event without bytes in round %d", i);
        if (send(fd, "pong", 4, 0) != 4 || recv(other, scratch, 4, MSG_WAITALL) != 4) say("pong");
    }
    R(close(other));
    wait_says(ep, 2000);
    R(recv(fd, scratch, 1, 0));
}

static void nested_sets(void) {
    int fd = pair(), inner = epoll_create1(0), outer = epoll_create1(0);
    add(inner, fd, EPOLLIN, 1);
    add(outer, inner, EPOLLIN, 2);
    wait_says(outer, 0);
    tell_text("abc");
    settle(fd, 3);
    wait_says(outer, 1000);
    wait_says(inner, 1000);
    wait_says(outer, 0);
    take(fd, 3);
    wait_says(inner, 0);
    wait_says(outer, 0);
    struct pollfd p = {inner, POLLIN, 0};
    R(poll(&p, 1, 0));
    tell_text("d");
    R(poll(&p, 1, 2000));
    wait_says(outer, 2000);
    take(fd, 1);
    exchange(fd);
    finish();
}

static void sleeps_in_set(int ep) { wait_says(ep, -1); }

static void asleep_in_a_nested_set(void) {
    int fd = pair(), inner = epoll_create1(0), outer = epoll_create1(0);
    add(inner, fd, EPOLLIN, 1);
    add(outer, inner, EPOLLIN, 2);
    for (int i = 0; i < 3; i++) {
        pthread_t t = thread_actor(5, sleeps_in_set, outer);
        until_asleep(5);
        tell_text("abc");
        pthread_join(t, NULL);
        take(fd, 3);
    }
    finish();
}

static void polls_the_set(int ep) {
    struct pollfd p = {ep, POLLIN, 0};
    R(poll(&p, 1, -1));
    wait_says(ep, 0);
}
static void set_polled_by_poll(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN, 1);
    pthread_t t = thread_actor(5, polls_the_set, ep);
    until_asleep(5);
    tell_text("abc");
    pthread_join(t, NULL);
    take(fd, 3);
    finish();
}

/* A sleeper that lost sight of the other half would find it when it looks by itself, after half a second. */
static void wakes_and_reads_half(int ep) {
    int fd = (int)arena->values[0];
    for (int i = 0; i < 3; i++) {
        wait_says(ep, -1);
        take(fd, 2);
        wait_says(ep, 200);
        take(fd, 2);
    }
    wait_says(ep, 0);
}
static void half_of_what_woke_a_sleeper_is_reported_again(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN, 1);
    arena->values[0] = fd;
    pthread_t t = thread_actor(5, wakes_and_reads_half, ep);
    for (int i = 0; i < 3; i++) {
        until_asleep(5);
        tell_text("abcd");
        nap_ms(30);
    }
    pthread_join(t, NULL);
    finish();
}

static void child_waits_and_reads(int ep) {
    wait_says(ep, 5000);
    take((int)arena->values[0], 3);
    wait_says(ep, 0);
}
static void set_used_by_a_forked_child(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN, 1);
    arena->values[0] = fd;
    int pid = fork_actor(4, child_waits_and_reads, ep);
    tell_text("abc");
    say_wait("child", pid);
    wait_says(ep, 0);
    tell_text("de");
    wait_says(ep, 2000);
    take(fd, 2);
    finish();
}

static void child_adds_and_parent_waits_body(int ep) { add(ep, (int)arena->values[0], EPOLLIN, 9); }
static void child_adds_and_parent_waits(void) {
    int fd = pair(), ep = epoll_create1(0);
    arena->values[0] = fd;
    say_wait("child", fork_actor(4, child_adds_and_parent_waits_body, ep));
    tell_text("abc");
    settle(fd, 3);
    wait_says(ep, 2000);
    take(fd, 3);
    wait_says(ep, 0);
    finish();
}

static void set_inherited_and_the_parent_closes(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN, 1);
    arena->values[0] = fd;
    int pid = fork_actor(4, child_waits_and_reads, ep);
    R(close(fd));
    tell_text("abc");
    say_wait("child", pid);
    finish();
}

static void child_keeps_the_socket(int go) {
    char word;
    OK(read(go, &word, 1));
}
/* The kernel reports a socket for as long as anybody has it, unless it was taken out of the set. */
static void deleted_and_closed_while_a_child_has_it(void) {
    int fd = pair(), ep = epoll_create1(0), go[2];
    OK(pipe(go));
    add(ep, fd, EPOLLIN, 1);
    send_text(fd, "x");
    tell(P_TAKE, 1);
    int pid = fork_actor(4, child_keeps_the_socket, go[0]);
    R(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
    R(close(fd));
    tell(P_CLOSE, 0);
    wait_says(ep, 100);
    OK(write(go[1], "x", 1));
    say_wait("child", pid);
    finish();
}

/* Registrations of a closed descriptor go; a reused number is not in the set. */
static void closed_and_reused_number_is_not_in_the_set(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN, 1);
    R(close(fd));
    tell(P_CLOSE, 0);
    wait_says(ep, 0);
    int two = pair();
    if (two != fd) {
        OK(dup2(two, fd));
        close(two);
        two = fd;
    }
    send_text(two, "x");
    tell_at(1, P_TEXT, 0);
    wait_says(ep, 0);
    R(ctl(ep, EPOLL_CTL_MOD, two, EPOLLIN, 2));
    R(ctl(ep, EPOLL_CTL_ADD, two, EPOLLIN, 2));
    R(ctl(ep, EPOLL_CTL_ADD, two, EPOLLIN, 2));
    send_text(two, "y");
    tell_at(1, P_TAKE, 2);
    R(ctl(ep, EPOLL_CTL_DEL, two, 0, 0));
    R(ctl(ep, EPOLL_CTL_DEL, two, 0, 0));
    finish();
}

static void in_two_sets(void) {
    int fd = pair(), a = epoll_create1(0), b = epoll_create1(0);
    add(a, fd, EPOLLIN, 1);
    add(b, fd, EPOLLIN | EPOLLET, 2);
    tell_text("abc");
    settle(fd, 3);
    wait_says(a, 1000);
    wait_says(b, 1000);
    wait_says(a, 0);
    wait_says(b, 0);
    take(fd, 3);
    wait_says(a, 0);
    pthread_t t = thread_actor(5, sleeps_in_set, a), u = thread_actor(6, sleeps_in_set, b);
    until_asleep(5);
    until_asleep(6);
    tell_text("def");
    pthread_join(t, NULL);
    pthread_join(u, NULL);
    take(fd, 3);
    finish();
}

static void added_while_another_thread_sleeps(void) {
    int fd = pair(), ep = epoll_create1(0);
    tell_text("already here");
    settle(fd, 12);
    pthread_t t = thread_actor(5, sleeps_in_set, ep);
    until_asleep(5);
    add(ep, fd, EPOLLIN, 1);
    pthread_join(t, NULL);
    take(fd, 12);
    R(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
    t = thread_actor(5, sleeps_in_set, ep);
    until_asleep(5);
    add(ep, fd, EPOLLIN | EPOLLET, 2);
    until_asleep(5);
    tell_text("later");
    pthread_join(t, NULL);
    take(fd, 5);
    finish();
}

static void child_adds_while_its_thread_sleeps(int ep) {
    int fd = (int)arena->values[0];
    pthread_t t = thread_actor(5, sleeps_in_set, ep);
    until_asleep(5);
    add(ep, fd, EPOLLIN, 3);
    pthread_join(t, NULL);
    take(fd, 5);
}
static void added_while_a_thread_of_a_child_sleeps(void) {
    int fd = pair(), ep = epoll_create1(0);
    tell_text("already here");
    settle(fd, 12);
    pthread_t t = thread_actor(5, sleeps_in_set, ep);
    until_asleep(5);
    add(ep, fd, EPOLLIN, 1);
    pthread_join(t, NULL);
    take(fd, 12);
    R(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
    tell_text("again");
    settle(fd, 5);
    arena->values[0] = fd;
    say_wait("child", fork_actor(4, child_adds_while_its_thread_sleeps, ep));
    finish();
}

static void modified_while_another_thread_sleeps(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, 0, 1);
    tell_text("here");
    settle(fd, 4);
    pthread_t t = thread_actor(5, sleeps_in_set, ep);
    until_asleep(5);
    mod(ep, fd, EPOLLIN, 2);
    pthread_join(t, NULL);
    take(fd, 4);
    mod(ep, fd, 0, 3);
    t = thread_actor(5, sleeps_in_set, ep);
    until_asleep(5);
    mod(ep, fd, EPOLLIN, 4);
    until_asleep(5);
    tell_text("later");
    pthread_join(t, NULL);
    take(fd, 5);
    finish();
}

static void deleted_while_another_thread_sleeps(void) {
    int fd = pair(), ep = epoll_create1(0), ev = eventfd(0, EFD_CLOEXEC);
    add(ep, fd, EPOLLIN, 1);
    add(ep, ev, EPOLLIN, 2);
    pthread_t t = thread_actor(5, sleeps_in_set, ep);
    until_asleep(5);
    R(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
    tell_text("unseen");
    settle(fd, 6);
    eventfd_write(ev, 1);
    pthread_join(t, NULL);
    take(fd, 6);
    exchange(fd);
    finish();
}

static void echo_by_edges(int fd) { /* until EOF, as an edge-triggered server does */
    int ep = epoll_create1(0);
    set_nonblocking(fd, true);
    add(ep, fd, EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, 1);
    long total = 0, pending = 0;
    bool ended = false, broken = false;
    while (!broken && (!ended || pending)) {
        struct epoll_event ev;
        if (epoll_wait(ep, &ev, 1, 8000) != 1) {
            say("edge echo: no event; pending %ld", pending);
            break;
        }
        for (bool moved = true; moved && !broken;) {
            moved = false;
            if (!pending && !ended) {
                ssize_t r = recv(fd, scratch, sizeof scratch, 0);
                if (r > 0) pending = r, total += r, moved = true;
                else if (r == 0) ended = true;
                else if (errno != EAGAIN) broken = true;
            }
            static long at;
            if (pending) {
                ssize_t r = send(fd, scratch + at, (size_t)pending, MSG_NOSIGNAL);
                if (r > 0) at += r, pending -= r, moved = true;
                else if (errno != EAGAIN) broken = true;
                if (!pending) at = 0;
            }
        }
    }
    say("edge echo: %ld bytes%s", total, broken ? " broken" : "");
    close(ep);
}

static void edge_triggered_echo_of_much(void) {
    int fd = pair();
    order_call(echo_by_edges);
    pthread_t t = thread_actor(5, drain, fd);
    send_n(fd, 2000000, 5);
    R(shutdown(fd, SHUT_WR));
    nap_ms(1);
    tell_at(0, P_SHUT, SHUT_WR);
    pthread_join(t, NULL);
    finish();
}

static void takes_all(int fd) {
    char buf[60000];
    while (recv(fd, buf, sizeof buf, 0) > 0) {}
    say("took all");
}

/* Fills the connection, then lets the peer read all: the set must say "not now", then "now", as often as it takes. */
static void writable_again(uint32_t kind, bool rearmed) {
    int fd = pair(), ep = epoll_create1(0);
    struct epoll_event ev;
    add(ep, fd, EPOLLOUT | kind, 7);
    say("at first: %d", epoll_wait(ep, &ev, 1, 5000));
    memset(scratch, 'w', sizeof scratch);
    uint64_t at = 0;
    for (long r; (r = send(fd, scratch, 9000, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0;) at += (uint64_t)r;
    say("full: %s", errname(errno));
    if (rearmed) mod(ep, fd, EPOLLOUT | kind, 7);
    /* An edge may be told twice, but nothing can be sent. */
    int more = 0;
    for (int i = 0; i < 5 && epoll_wait(ep, &ev, 1, 0) == 1; i++)
        if (send(fd, scratch, 9000, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) more++;
    say("not now: %d", more);
    order_call(takes_all);
    const uint64_t enough = at + 3000000;
    int outs = 0;
    while (at < enough) {
        if (epoll_wait(ep, &ev, 1, 8000) != 1 || ev.events != EPOLLOUT || ev.data.u64 != 7) {
            say("stuck, or another event");
            break;
        }
        outs++;
        for (long r; at < enough && (r = send(fd, scratch, 9000, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0;) at += (uint64_t)r;
        if (rearmed) mod(ep, fd, EPOLLOUT | kind, 7);
    }
    say("now: %d", outs > 0);
    R(shutdown(fd, SHUT_WR));
    done();
    finish();
}
static void writable_again_by_level(void) { writable_again(0, false); }
static void writable_again_by_edge(void) { writable_again(EPOLLET, false); }
static void writable_again_once(void) { writable_again(EPOLLONESHOT, true); }

/* One thread sleeps on the set, another finds the connection full: the sleeper must hear of room. */
static atomic_int heard;
static void *hears_of_room(void *arg) {
    struct epoll_event ev;
    heard = epoll_wait((int)(intptr_t)arg, &ev, 1, 8000) == 1 && ev.events & EPOLLOUT ? 1 : -1;
    return NULL;
}
static void a_sleeper_hears_of_room(void) {
    int fd = pair(), ep = epoll_create1(0);
    struct epoll_event ev;
    add(ep, fd, EPOLLOUT | EPOLLET, 7);
    say("at first: %d", epoll_wait(ep, &ev, 1, 5000));
    pthread_t t;
    pthread_create(&t, NULL, hears_of_room, (void *)(intptr_t)ep);
    nap_ms(20);
    memset(scratch, 'w', sizeof scratch);
    while (send(fd, scratch, 9000, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {}
    say("full: %s", errname(errno));
    nap_ms(20);
    order_call(takes_all);
    pthread_join(t, NULL);
    say("heard: %d", heard);
    R(shutdown(fd, SHUT_WR));
    done();
    finish();
}

static void interest_toggles_each_request(void) {
    int fd = pair(), ep = epoll_create1(0);
    add(ep, fd, EPOLLIN, 1);
    order(P_ECHO, 30 * 10);
    int outs = 0, ins = 0;
    for (int i = 0; i < 30; i++) { /* as wrk does: OUT, send, IN, receive */
        struct epoll_event ev;
        mod(ep, fd, EPOLLOUT, 1);
        if (epoll_wait(ep, &ev, 1, 5000) == 1 && ev.events == EPOLLOUT) outs++;
        send_text(fd, "ten bytes!");
        mod(ep, fd, EPOLLIN, 1);
        int have = 0;
        while (have < 10) {
            if (epoll_wait(ep, &ev, 1, 5000) != 1) break;
            long r = recv(fd, scratch, 10 - (size_t)have, 0);
            if (r <= 0) break;
            have += (int)r;
        }
        ins += have == 10;
    }
    say("outs %d ins %d", outs, ins);
    done();
    finish();
}

static void fairness_with_timer_and_eventfd(void) {
    int fd = pair(), ep = epoll_create1(0), ev = eventfd(0, EFD_CLOEXEC);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    struct itimerspec when = {{0, 2000000}, {0, 2000000}};
    timerfd_settime(timer, 0, &when, NULL);
    eventfd_write(ev, 1);
    add(ep, fd, EPOLLIN, 1);
    add(ep, timer, EPOLLIN, 2);
    add(ep, ev, EPOLLIN, 3);
    order(P_ECHO, 1000000);
    send_text(fd, "x");
    /* Never idle: the next request goes out as the answer arrives. Others must get their turn. */
    long rounds = 0, ticks = 0, rings = 0;
    while ((ticks < 20 || rings < 50) && rounds < 900000) {
        struct epoll_event got[1];
        if (epoll_wait(ep, got, 1, 5000) != 1) {
            say("no event");
            break;
        }
        uint64_t n;
        if (got->data.u32 == 1) {
            if (recv(fd, scratch, 1, 0) != 1 || send(fd, "x", 1, 0) != 1) say("round %ld", rounds);
            rounds++;
        } else if (got->data.u32 == 2) ticks += read(timer, &n, 8) == 8;
        else if (read(ev, &n, 8) == 8) rings++, eventfd_write(ev, 1);
    }
    say("timer came: %d, eventfd came: %d", ticks >= 20, rings >= 50);
    R(shutdown(fd, SHUT_WR));
    done();
    arena->actors[1].len = 0; /* how far the echo got depends on time */
    finish();
}

static void more_ready_than_asked_for(void) {
    int a = pair(), b = pair(), c = pair(), ep = epoll_create1(0);
    int fds[] = {a, b, c};
    for (int i = 0; i < 3; i++) {
        add(ep, fds[i], EPOLLIN, (unsigned)i + 1);
        snprintf(peer_at(i)->text, 10, "abc");
        tell_at(i, P_TEXT, 0);
        settle(fds[i], 3);
    }
    /* One at a time: each gets its turn though none is read. */
    int seen[4] = {0};
    for (int i = 0; i < 9; i++) {
        struct epoll_event ev;
        if (epoll_wait(ep, &ev, 1, 1000) == 1 && ev.data.u32 <= 3) seen[ev.data.u32]++;
    }
    say("turns %d %d %d", seen[1], seen[2], seen[3]);
    wait_says(ep, 0);
    for (int i = 0; i < 3; i++) take(fds[i], 3);
    wait_says(ep, 0);
    finish();
}

static volatile int minus_one = -1;

static void wrong_calls(void) {
    int fd = pair(), ep = epoll_create1(0);
    struct epoll_event ev;
    R(epoll_wait(ep, &ev, 0, 0));
    R(epoll_wait(ep, &ev, minus_one, 0));
    R(epoll_wait(fd, &ev, 1, 0));
    R(epoll_wait(-1, &ev, 1, 0));
    R(ctl(ep, EPOLL_CTL_ADD, ep, EPOLLIN, 0));
    R(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 0));
    R(ctl(ep, EPOLL_CTL_DEL, fd, EPOLLIN, 0));
    R(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE, 0));
    R(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 0));
    R(ctl(ep, 9, fd, EPOLLIN, 0));
    exchange(fd);
    finish();
}

static void exclusive_waiters(void) {
    int fd = pair(), a = epoll_create1(0), b = epoll_create1(0);
    add(a, fd, EPOLLIN | EPOLLEXCLUSIVE, 1);
    add(b, fd, EPOLLIN | EPOLLEXCLUSIVE, 2);
    tell_text("abc");
    settle(fd, 3);
    wait_says(a, 1000);
    wait_says(b, 1000);
    take(fd, 3);
    wait_says(a, 0);
    wait_says(b, 0);
    exchange(fd);
    finish();
}

static void pwait2_and_timeouts(void) {
    int fd = pair(), ep = epoll_create1(0);
    struct epoll_event ev;
    struct timespec t = {0, 3000000};
    add(ep, fd, EPOLLIN, 1);
    R(epoll_pwait2(ep, &ev, 1, &t, NULL));
    long before = now_ms();
    R(epoll_wait(ep, &ev, 1, 30));
    say("waited at least: %d", now_ms() - before >= 29);
    tell_text("x");
    settle(fd, 1);
    R(epoll_pwait2(ep, &ev, 1, NULL, NULL));
    R(epoll_pwait(ep, &ev, 1, -1, NULL));
    take(fd, 1);
    finish();
}

const struct one_case cases[] = {
#define CASE(name) {#name, name, 0}
#define ALONE(name) {#name, name, NO_THREAD}
    CASE(level_reports_until_read),
    CASE(edge_reports_once),
    CASE(edge_of_bytes_behind_unread_ones),
    CASE(edge_rearmed_by_mod),
    CASE(edge_both_directions),
    CASE(edge_added_with_bytes_waiting),
    CASE(edge_output_after_it_was_full),
    CASE(one_shot_needs_rearming),
    CASE(one_shot_edge),
    {"one_shot_worker_pool", one_shot_worker_pool, ONCE | LANE},
    CASE(masks_of_a_half_close),
    CASE(masks_of_a_reset),
    {"added_before_connecting", added_before_connecting, ONCE | LANE},
    CASE(nested_sets),
    CASE(asleep_in_a_nested_set),
    CASE(set_polled_by_poll),
    CASE(half_of_what_woke_a_sleeper_is_reported_again),
    ALONE(set_used_by_a_forked_child),
    ALONE(child_adds_and_parent_waits),
    ALONE(set_inherited_and_the_parent_closes),
    ALONE(deleted_and_closed_while_a_child_has_it),
    ALONE(closed_and_reused_number_is_not_in_the_set),
    CASE(in_two_sets),
    CASE(added_while_another_thread_sleeps),
    CASE(added_while_a_thread_of_a_child_sleeps),
    CASE(modified_while_another_thread_sleeps),
    CASE(deleted_while_another_thread_sleeps),
    CASE(edge_triggered_echo_of_much),
    CASE(writable_again_by_level),
    CASE(writable_again_by_edge),
    CASE(writable_again_once),
    CASE(a_sleeper_hears_of_room),
    CASE(interest_toggles_each_request),
    CASE(fairness_with_timer_and_eventfd),
    CASE(more_ready_than_asked_for),
    CASE(wrong_calls),
    CASE(exclusive_waiters),
    CASE(pwait2_and_timeouts),
    {NULL, NULL, 0},
};
