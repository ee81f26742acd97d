/* Sets in sets, sets that poll and select wait on, exclusive waits, connections in many sets.
 *
 * Each case makes its own connections, both ends in this process, and warms them up so that they have their lane. What
 * follows must go by memory, too. */
#include "common.h"

static char scratch[65536];

struct ends { int client, server; };

enum { WARM = 200, APART_MS = 3 };

/* A connected pair that has exchanged messages. */
static struct ends ends(void) {
    int listener = listen_any(), one = 1;
    struct ends e;
    e.client = connect_port(bound_port(listener));
    e.server = accept(listener, NULL, NULL);
    close(listener);
    setsockopt(e.client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(e.server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (int i = 0; i < WARM; i++) {
        send_all(e.client, "x", 1);
        recv_all(e.server, scratch, 1);
        send_all(e.server, "y", 1);
        recv_all(e.client, scratch, 1);
    }
    return e;
}

static int ctl(int ep, int op, int fd, unsigned ev, unsigned tag) {
    struct epoll_event e = {ev, {.u32 = tag}};
    return epoll_ctl(ep, op, fd, &e);
}
static void add(int ep, int fd, unsigned ev, unsigned tag) {
    if (ctl(ep, EPOLL_CTL_ADD, fd, ev, tag) < 0) say("ADD: %s", errname(errno));
}

/* A new set with one member. */
static int set_of(int fd, unsigned ev, unsigned tag) {
    int ep = epoll_create1(EPOLL_CLOEXEC);
    add(ep, fd, ev, tag);
    return ep;
}

/* One wait, and what it reports, in its order. */
static int says(const char *who, int ep, int timeout) {
    struct epoll_event got[16];
    char line[400] = "";
    int n = epoll_wait(ep, got, 16, timeout);
    for (int i = 0; i < n; i++) sprintf(line + strlen(line), " #%u %s", got[i].data.u32, events(got[i].events));
    if (n < 0) sprintf(line, " %s", errname(errno));
    say("%s:%s", who, n ? line : " nothing");
    return n;
}

static void gives(int fd, const char *text) {
    if (send_all(fd, text, strlen(text)) < 0) say("send: %s", errname(errno));
}
static void takes(int fd, size_t n) {
    long got = recv_all(fd, scratch, n);
    say_bytes("took", scratch, got);
}

static uint64_t by_ring(void) {
    report_lane();
    return arena->actors[self_actor].tx_ring + arena->actors[self_actor].rx_ring;
}
/* At least this many bytes have been sent or received by memory since `before`. On plain TCP, none are. */
static void says_by_memory(uint64_t before, uint64_t least) {
    uint64_t now = by_ring();
    say("by memory: %d", now == 0 || now - before >= least);
}

/* --- a set in a set ---------------------------------------------------------------- */

static void a_set_is_readable_while_it_has_something(void) {
    enum { ROUNDS = 500 };
    struct ends e = ends();
    int inner = set_of(e.server, EPOLLIN, 1), outer = set_of(inner, EPOLLIN, 2);
    uint64_t before = by_ring();
    says("outer", outer, 0);
    for (int i = 0; i < ROUNDS; i++) {
        struct epoll_event got;
        gives(e.client, "abc");
        if (epoll_wait(outer, &got, 1, 2000) != 1 || got.data.u32 != 2) say("outer: wrong in round %d", i);
        if (epoll_wait(outer, &got, 1, 0) != 1) say("outer: no level in round %d", i);
        if (epoll_wait(inner, &got, 1, 0) != 1 || got.data.u32 != 1) say("inner: wrong in round %d", i);
        if (recv(e.server, scratch, 2, 0) != 2) say("recv in round %d", i);
        if (epoll_wait(outer, &got, 1, 0) != 1) say("outer: nothing, with a byte left, in round %d", i);
        if (recv(e.server, scratch, 2, 0) != 1) say("recv in round %d", i);
        if (epoll_wait(outer, &got, 1, 0) != 0) say("outer: reports an empty set in round %d", i);
        if (epoll_wait(inner, &got, 1, 0) != 0) say("inner: not empty in round %d", i);
    }
    says_by_memory(before, 3 * ROUNDS / 2);
    says("outer", outer, 20);
    gives(e.client, "d");
    says("outer", outer, 2000);
    takes(e.server, 1);
}

static void edges_of_a_set(void) {
    struct ends e = ends();
    int inner = set_of(e.server, EPOLLIN, 1), outer = set_of(inner, EPOLLIN | EPOLLET, 2);
    says("outer", outer, 0);
    for (int i = 0; i < 20; i++) {
        gives(e.client, "abc");
        says("outer", outer, 2000);
        says("outer, once more", outer, 0);
        says("outer, asleep", outer, 5);
        gives(e.client, "de");
        says("outer, new bytes", outer, 2000);
        says("outer, once more", outer, 0);
        says("inner", inner, 0);
        takes(e.server, 5);
        says("inner", inner, 0);
        says("outer", outer, 0);
    }
}

/* Nobody looks for a while before the first bytes come: they may come another way than the next ones, which lie behind them. */
static void edges_of_bytes_behind_unread_ones_in_a_set(void) {
    struct ends e = ends();
    int inner = set_of(e.server, EPOLLIN, 1), outer = set_of(inner, EPOLLIN | EPOLLET, 2);
    says("outer", outer, 0);
    for (int i = 0; i < 5; i++) {
        nap_ms(APART_MS);
        gives(e.client, "abc");
        says("outer", outer, 2000);
        says("outer, once more", outer, 0);
        gives(e.client, "de");
        says("outer, new bytes", outer, 2000);
        says("outer, once more", outer, 0);
        says("outer, asleep", outer, 5);
        gives(e.client, "f");
        says("outer, new bytes", outer, 0);
        says("outer, once more", outer, 0);
        says("inner", inner, 0);
        takes(e.server, 4);
        says("outer, no new bytes", outer, 0);
        says("inner", inner, 0);
        takes(e.server, 2);
        says("inner", inner, 0);
        says("outer", outer, 0);
    }
    report_lane();
}

/* The edge is on a set that has another one in it. */
static void edges_of_a_set_with_a_set_in_it(void) {
    struct ends e = ends();
    int third = set_of(e.server, EPOLLIN, 1), second = set_of(third, EPOLLIN, 2);
    int first = set_of(second, EPOLLIN | EPOLLET, 3);
    says("first", first, 0);
    for (int i = 0; i < 6; i++) {
        if (i % 2) nap_ms(APART_MS);
        gives(e.client, "abc");
        settle(e.server, 3);
        says("first", first, 0);
        says("first, once more", first, 0);
        gives(e.client, "de");
        settle(e.server, 5);
        says("first, new bytes", first, 0);
        says("first, once more", first, 0);
        says("second", second, 0);
        says("third", third, 0);
        takes(e.server, 5);
        says("first", first, 0);
    }
}

static void edges_in_a_set(void) {
    struct ends e = ends();
    int inner = set_of(e.server, EPOLLIN | EPOLLET, 1), outer = set_of(inner, EPOLLIN, 2);
    for (int i = 0; i < 20; i++) {
        gives(e.client, "abc");
        says("outer", outer, 2000);
        says("outer", outer, 0);
        says("inner", inner, 0);
        says("outer, the edge is over", outer, 0);
        says("outer, asleep", outer, 5);
        gives(e.client, "de");
        says("outer, new bytes", outer, 2000);
        says("inner", inner, 0);
        takes(e.server, 5);
        says("outer", outer, 0);
    }
}

static void one_shot_in_a_set(void) {
    struct ends e = ends();
    int inner = set_of(e.server, EPOLLIN | EPOLLONESHOT, 1), outer = set_of(inner, EPOLLIN, 2);
    for (int i = 0; i < 20; i++) {
        gives(e.client, "abc");
        says("outer", outer, 2000);
        says("inner", inner, 0);
        says("outer, disarmed", outer, 0);
        says("outer, asleep", outer, 5);
        R(ctl(inner, EPOLL_CTL_MOD, e.server, EPOLLIN | EPOLLONESHOT, 1));
        says("outer, armed anew", outer, 2000);
        says("inner", inner, 0);
        takes(e.server, 3);
        R(ctl(inner, EPOLL_CTL_MOD, e.server, EPOLLIN | EPOLLONESHOT, 1));
        says("outer", outer, 0);
    }
}

static void a_set_that_is_reported_once(void) {
    struct ends e = ends();
    int inner = set_of(e.server, EPOLLIN, 1), outer = set_of(inner, EPOLLIN | EPOLLONESHOT, 2);
    for (int i = 0; i < 5; i++) {
        gives(e.client, "abc");
        says("outer", outer, 2000);
        says("outer", outer, 0);
        R(ctl(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLONESHOT, 2));
        says("outer", outer, 2000);
        takes(e.server, 3);
        R(ctl(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLONESHOT, 2));
        says("outer", outer, 0);
    }
}

static void sets_in_sets_in_sets(void) {
    struct ends e = ends(), f = ends();
    int third = set_of(e.server, EPOLLIN, 1), second = set_of(third, EPOLLIN | EPOLLET, 2);
    int first = set_of(second, EPOLLIN, 3), top = set_of(first, EPOLLIN, 4);
    add(second, f.server, EPOLLIN, 5);
    for (int i = 0; i < 20; i++) {
        gives(e.client, "abc");
        says("top", top, 2000);
        says("first", first, 0);
        says("second", second, 0);
        says("second, the edge is over", second, 0);
        says("top", top, 0);
        gives(f.client, "de");
        says("top", top, 2000);
        says("second", second, 0);
        says("third", third, 0);
        takes(e.server, 3);
        takes(f.server, 2);
        says("top", top, 0);
        says("top, asleep", top, 3);
    }
    R(ctl(third, EPOLL_CTL_ADD, top, EPOLLIN, 9));
}

/* --- poll and select ----------------------------------------------------------------- */

static void a_set_that_poll_and_select_wait_on(void) {
    struct ends e = ends(), f = ends();
    int ep = set_of(e.server, EPOLLIN, 1), outer = set_of(ep, EPOLLIN, 2), pipes[2];
    if (pipe(pipes)) die("pipe");
    for (int i = 0; i < 50; i++) {
        struct pollfd list[3] = {{ep, POLLIN, 0}, {f.server, POLLIN, 0}, {pipes[0], POLLIN, 0}};
        struct pollfd *p = &list[i % 2 ? 0 : 1];
        int who = i % 2 ? e.client : f.client, from = i % 2 ? e.server : f.server;
        struct timespec second = {1, 0};
        fd_set reads;
        R(poll(list, 3, 0));
        gives(who, "abc");
        R(poll(list, 3, 1000));
        say("poll: %s", events((unsigned short)p->revents));
        R(ppoll(list, 3, &second, NULL));
        say("ppoll: %s", events((unsigned short)p->revents));
        FD_ZERO(&reads);
        FD_SET(ep, &reads);
        FD_SET(outer, &reads);
        FD_SET(f.server, &reads);
        R(select(1000, &reads, NULL, NULL, &(struct timeval){1, 0}));
        say("select: %d %d %d", !!FD_ISSET(ep, &reads), !!FD_ISSET(outer, &reads), !!FD_ISSET(f.server, &reads));
        takes(from, 3);
        R(poll(list, 3, i % 5 ? 0 : 3));
        FD_ZERO(&reads);
        FD_SET(ep, &reads);
        R(select(ep + 1, &reads, NULL, NULL, &(struct timeval){0, 0}));
        struct pollfd only = {ep, POLLIN, 0};
        R(poll(&only, 1, 0));
        only.events = POLLOUT;
        R(poll(&only, 1, 0));
    }
}

static void a_set_that_poll_waits_on_keeps_its_lane(void) {
    enum { ROUNDS = 500 };
    struct ends e = ends();
    int ep = set_of(e.server, EPOLLIN, 1);
    struct pollfd p = {ep, POLLIN, 0};
    uint64_t before = by_ring();
    for (int i = 0; i < ROUNDS; i++) {
        struct epoll_event got;
        gives(e.client, "abc");
        if (poll(&p, 1, 2000) != 1 || p.revents != POLLIN) say("poll: wrong in round %d", i);
        if (epoll_wait(ep, &got, 1, 0) != 1 || got.data.u32 != 1) say("the set: wrong in round %d", i);
        if (recv(e.server, scratch, 8, 0) != 3) say("recv in round %d", i);
        if (poll(&p, 1, 0) != 0) say("poll: reports an empty set in round %d", i);
    }
    says_by_memory(before, 3 * ROUNDS / 2);
}

/* --- sleepers -------------------------------------------------------------------------- */

enum { MESSAGES = 3000 };
static struct ends talk;
static void (*waits_for)(int set);
static int waited_set, inner_set;
static atomic_bool over;

static void *answers(void *arg) {
    (void)arg;
    waits_for(waited_set);
    return NULL;
}

static bool takes_and_answers(int set) {
    struct epoll_event got;
    char in[16];
    if (epoll_wait(set, &got, 1, 0) != 1) return say("the set is empty"), false;
    ssize_t n = recv(talk.server, in, sizeof in, MSG_DONTWAIT);
    return n > 0 && send(talk.server, in, (size_t)n, MSG_NOSIGNAL) == n;
}
static void by_epoll(int set) {
    struct epoll_event got;
    for (int i = 0; i < MESSAGES; i++)
        if (epoll_wait(set, &got, 1, -1) != 1 || !takes_and_answers(inner_set)) say("wrong in turn %d", i);
}
static void by_poll(int set) {
    struct pollfd p = {set, POLLIN, 0};
    for (int i = 0; i < MESSAGES; i++)
        if (poll(&p, 1, -1) != 1 || !takes_and_answers(inner_set)) say("wrong in turn %d", i);
}
static void by_select(int set) {
    for (int i = 0; i < MESSAGES; i++) {
        fd_set reads;
        FD_ZERO(&reads);
        FD_SET(set, &reads);
        if (select(set + 1, &reads, NULL, NULL, NULL) != 1 || !takes_and_answers(inner_set)) say("wrong in turn %d", i);
    }
}

/* A thread that waits on a set answers each message; now and then it has time to fall asleep. */
static void talks(void (*waits)(int), bool nested) {
    pthread_t t;
    talk = ends();
    inner_set = set_of(talk.server, EPOLLIN, 1);
    waited_set = nested ? set_of(inner_set, EPOLLIN, 2) : inner_set;
    waits_for = waits;
    uint64_t before = by_ring();
    pthread_create(&t, NULL, answers, NULL);
    for (int i = 0; i < MESSAGES; i++) {
        char in[16];
        if (i % 500 == 0) nap_ms(5);
        if (send(talk.client, "question", 8, 0) != 8) say("send");
        if (recv_all(talk.client, in, 8) != 8) say("no answer to %d", i);
    }
    pthread_join(t, NULL);
    says_by_memory(before, MESSAGES);
}
static void asleep_in_epoll_of_a_set(void) { talks(by_epoll, true); }
static void asleep_in_poll_of_a_set(void) { talks(by_poll, false); }
static void asleep_in_poll_of_a_set_in_a_set(void) { talks(by_poll, true); }
static void asleep_in_select_of_a_set(void) { talks(by_select, true); }

static void sleeps_in(int ep) { says("sleeper", ep, 5000); }
static void polls(int ep) {
    struct pollfd p = {ep, POLLIN, 0};
    R(poll(&p, 1, 5000));
}

static void *actor_main(void *arg) {
    void (*const *run)(int) = arg;
    as_actor(5);
    (*run)(waited_set);
    return NULL;
}
/* While a thread sleeps on a set: `change` makes it readable. */
static void wakes(void (*sleeper)(int), int set, void (*change)(void)) {
    static void (*run)(int);
    pthread_t t;
    run = sleeper;
    waited_set = set;
    pthread_create(&t, NULL, actor_main, &run);
    until_asleep(5);
    change();
    pthread_join(t, NULL);
}

static struct ends late;
static int late_set, outer_set;
static void adds_a_connection(void) { add(inner_set, late.server, EPOLLIN, 7); }
static void adds_a_set(void) { add(outer_set, late_set, EPOLLIN, 8); }
static void says_hello(void) { gives(late.client, "hello"); }
static void arms(void) { R(ctl(inner_set, EPOLL_CTL_MOD, late.server, EPOLLIN, 7)); }

static void changes_under_a_sleeper(void) {
    for (int kind = 0; kind < 2; kind++) {
        void (*sleeper)(int) = kind ? polls : sleeps_in;
        talk = ends();
        late = ends();
        inner_set = set_of(talk.server, EPOLLIN, 1);
        outer_set = set_of(inner_set, EPOLLIN, 2);
        gives(late.client, "early");
        wakes(sleeper, outer_set, adds_a_connection);
        says("inner", inner_set, 0);
        takes(late.server, 5);
        wakes(sleeper, outer_set, says_hello);
        R(ctl(inner_set, EPOLL_CTL_MOD, late.server, 0, 7));
        says("outer", outer_set, 0);
        wakes(sleeper, outer_set, arms);
        R(ctl(inner_set, EPOLL_CTL_DEL, late.server, 0, 0));
        says("outer", outer_set, 0);
        late_set = set_of(late.server, EPOLLIN, 3);
        wakes(sleeper, outer_set, adds_a_set);
        takes(late.server, 5);
        says("outer", outer_set, 0);
        wakes(sleeper, outer_set, says_hello);
        takes(late.server, 5);
    }
}

static void gives_more(void) { gives(talk.client, "de"); }

/* A thread that has been told of bytes leaves them unread and falls asleep. More bytes wake it. */
static void asleep_with_bytes_unread(void) {
    enum { EDGE_OUTSIDE, EDGE_INSIDE, TWO_SETS, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        talk = ends();
        inner_set = set_of(talk.server, kind == EDGE_INSIDE ? EPOLLIN | EPOLLET : EPOLLIN, 1);
        outer_set = kind == TWO_SETS ? set_of(talk.server, EPOLLIN | EPOLLET, 2)
                                     : set_of(inner_set, kind == EDGE_INSIDE ? EPOLLIN : EPOLLIN | EPOLLET, 2);
        says("inner", inner_set, 0);
        says("outer", outer_set, 0);
        for (int i = 0; i < 3; i++) {
            if (i || kind == TWO_SETS) nap_ms(APART_MS); /* the bytes may come another way than the next ones */
            gives(talk.client, "abc");
            says("outer", outer_set, 2000);
            says("inner", inner_set, 2000);
            says("outer, the edge is over", outer_set, 0);
            wakes(sleeps_in, outer_set, gives_more);
            says("inner", inner_set, 0);
            if (kind == EDGE_INSIDE) wakes(polls, inner_set, gives_more);
            takes(talk.server, kind == EDGE_INSIDE ? 7 : 5);
        }
    }
}

static void *waits_on_the_inner_set(void *arg) {
    struct epoll_event got;
    long *count = arg;
    while (!over)
        if (epoll_wait(inner_set, &got, 1, 20) == 1 && recv(talk.server, scratch, 8, MSG_DONTWAIT) > 0) ++*count;
    return NULL;
}
static void *waits_on_the_outer_set(void *arg) {
    struct epoll_event got;
    long *count = arg;
    char in[8];
    while (!over)
        if (epoll_wait(outer_set, &got, 1, 20) == 1 && epoll_wait(inner_set, &got, 1, 0) == 1 &&
            recv(talk.server, in, 8, MSG_DONTWAIT) > 0)
            ++*count;
    return NULL;
}

/* Whoever of the two comes first takes the message: none is lost. */
static void waits_on_both_sets_at_once(void) {
    pthread_t threads[2];
    static long counts[2];
    talk = ends();
    inner_set = set_of(talk.server, EPOLLIN, 1);
    outer_set = set_of(inner_set, EPOLLIN, 2);
    pthread_create(&threads[0], NULL, waits_on_the_inner_set, &counts[0]);
    pthread_create(&threads[1], NULL, waits_on_the_outer_set, &counts[1]);
    for (long i = 0; i < 2000; i++) {
        gives(talk.client, "question");
        for (long since = now_ms(); *(volatile long *)&counts[0] + *(volatile long *)&counts[1] <= i;)
            if (now_ms() - since > 3000) {
                say("message %ld is not reported", i);
                break;
            }
        if (i % 100 == 0) nap_ms(2);
    }
    over = true;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    say("all: %d", counts[0] + counts[1] == 2000);
}

/* --- order ---------------------------------------------------------------------------- */

static void sets_keep_their_place_among_connections(void) {
    enum { MANY = 6 };
    static const signed char orders[][MANY + 1] = {
        {0, 3, 1, -1}, {3, 0, -1}, {5, 1, 3, -1}, {4, 3, 2, 1, -1}, {2, 5, -1}, {5, 2, 0, -1}};
    /* 0, 1, 2: in the outer set; 3 and 4: in a set in it, 5 in another. */
    struct ends all[MANY];
    for (int i = 0; i < MANY; i++) all[i] = ends();
    int outer = epoll_create1(0), a = set_of(all[3].server, EPOLLIN, 3), b = set_of(all[5].server, EPOLLIN, 5);
    add(a, all[4].server, EPOLLIN, 4);
    for (int i = 0; i < 3; i++) add(outer, all[i].server, EPOLLIN, (unsigned)i);
    add(outer, a, EPOLLIN, 10);
    add(outer, b, EPOLLIN, 11);
    says("outer", outer, 0);
    for (int round = 0; round < 5; round++)
        for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
            for (int i = 0; orders[k][i] >= 0; i++) {
                gives(all[orders[k][i]].client, "z");
                if (round) nap_ms(APART_MS);
            }
            says("outer", outer, 1000);
            says("a", a, 0);
            says("b", b, 0);
            for (int i = 0; orders[k][i] >= 0; i++) takes(all[orders[k][i]].server, 1);
            says("outer", outer, 0);
        }
    report_lane();
}

/* --- beginnings and ends --------------------------------------------------------------- */

static void what_is_taken_out_or_closed(void) {
    struct ends e = ends(), f = ends();
    int inner = set_of(e.server, EPOLLIN, 1), outer = set_of(inner, EPOLLIN, 2), copy = dup(inner);
    R(ctl(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 3));
    R(ctl(outer, EPOLL_CTL_ADD, copy, EPOLLIN, 4));
    gives(e.client, "abc");
    says("outer", outer, 1000);
    R(ctl(outer, EPOLL_CTL_DEL, inner, 0, 0));
    R(ctl(outer, EPOLL_CTL_DEL, inner, 0, 0));
    says("outer, by the copy", outer, 1000);
    R(ctl(outer, EPOLL_CTL_MOD, copy, 0, 4));
    says("outer, not asked for", outer, 0);
    R(ctl(outer, EPOLL_CTL_MOD, copy, EPOLLIN, 6));
    says("outer, asked for again", outer, 0);
    R(close(inner));
    says("outer, one of two closed", outer, 0);
    R(ctl(copy, EPOLL_CTL_DEL, e.server, 0, 0));
    says("outer, the connection is out", outer, 0);
    add(copy, e.server, EPOLLIN, 7);
    says("outer, it is back", outer, 0);
    R(close(copy));
    says("outer, closed", outer, 0);
    inner = set_of(f.server, EPOLLIN, 1);
    add(outer, inner, EPOLLIN, 8);
    gives(f.client, "de");
    says("outer", outer, 1000);
    R(close(f.server));
    says("outer, the connection is closed", outer, 0);
    add(inner, e.server, EPOLLIN, 9);
    says("outer, another one", outer, 0);
    R(close(outer));
    says("inner", inner, 0);
    takes(e.server, 3);
    gives(e.client, "g");
    says("inner", inner, 1000);
    takes(e.server, 1);
    R(close(e.client));
    says("inner, the end", inner, 1000);
}

static void the_end_of_a_connection_in_a_set(void) {
    struct ends e = ends(), f = ends();
    int inner = set_of(e.server, EPOLLIN | EPOLLRDHUP, 1), outer = set_of(inner, EPOLLIN, 2);
    add(inner, f.server, EPOLLIN, 3);
    gives(e.client, "last");
    R(shutdown(e.client, SHUT_WR));
    says("outer", outer, 1000);
    takes(e.server, 4);
    says("outer", outer, 1000);
    says("inner", inner, 1000);
    R(close(e.server));
    says("outer", outer, 0);
    reset_close(f.client);
    says("outer", outer, 1000);
    says("inner", inner, 1000);
}

static void a_child_waits_on_a_set_in_a_set(void) {
    struct ends e = ends();
    int inner = set_of(e.server, EPOLLIN, 1), outer = set_of(inner, EPOLLIN, 2);
    gives(e.client, "abc");
    says("outer", outer, 1000);
    int pid = fork();
    if (pid == 0) {
        as_actor(4);
        struct pollfd p = {inner, POLLIN, 0};
        says("child", outer, 2000);
        R(poll(&p, 1, 0));
        takes(e.server, 3);
        says("child", outer, 0);
        R(poll(&p, 1, 0));
        _exit(0);
    }
    say_wait("child", pid);
    says("outer", outer, 0);
    gives(e.client, "de");
    says("outer", outer, 1000);
    takes(e.server, 2);
}

static void room_in_a_ring_of_a_set(void) {
    struct ends e = ends();
    int inner = set_of(e.server, EPOLLIN | EPOLLOUT, 1), outer = set_of(inner, EPOLLIN, 2);
    size_t sent = 0;
    ssize_t n;
    says("outer", outer, 0);
    while ((n = send(e.server, scratch, sizeof scratch, MSG_DONTWAIT)) > 0) sent += (size_t)n;
    say("full: %s", errname(errno));
    says("outer, full", outer, 0);
    says("inner, full", inner, 0);
    size_t taken = 0;
    while (taken < sent && (n = recv(e.client, scratch, sizeof scratch, 0)) > 0) taken += (size_t)n;
    say("all: %d", taken == sent);
    says("outer, room", outer, 2000);
    says("inner, room", inner, 2000);
    report_lane();
}

/* --- exclusive waits ----------------------------------------------------------------------- */

static void exclusive_registrations(void) {
    enum { ROUNDS = 300 };
    struct ends e = ends();
    int a = set_of(e.server, EPOLLIN | EPOLLEXCLUSIVE, 1), b = set_of(e.server, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET, 2);
    uint64_t before = by_ring();
    for (int i = 0; i < ROUNDS; i++) {
        struct epoll_event got;
        gives(e.client, "abc");
        if (epoll_wait(a, &got, 1, 2000) != 1 || got.data.u32 != 1) say("a: wrong in round %d", i);
        if (epoll_wait(b, &got, 1, 2000) != 1 || got.data.u32 != 2) say("b: wrong in round %d", i);
        if (epoll_wait(a, &got, 1, 0) != 1) say("a: no level in round %d", i);
        if (epoll_wait(b, &got, 1, 0) != 0) say("b: no edge in round %d", i);
        if (recv(e.server, scratch, 8, 0) != 3) say("recv in round %d", i);
        if (epoll_wait(a, &got, 1, 0) != 0) say("a: not empty in round %d", i);
    }
    says_by_memory(before, 3 * ROUNDS / 2);
    R(ctl(a, EPOLL_CTL_MOD, e.server, EPOLLIN, 1));
    R(ctl(a, EPOLL_CTL_MOD, e.server, EPOLLIN | EPOLLEXCLUSIVE, 1));
    R(ctl(a, EPOLL_CTL_ADD, e.server, EPOLLIN | EPOLLEXCLUSIVE, 1));
    R(ctl(a, EPOLL_CTL_DEL, e.server, 0, 0));
    R(ctl(a, EPOLL_CTL_MOD, e.server, EPOLLIN | EPOLLEXCLUSIVE, 1));
    R(ctl(a, EPOLL_CTL_MOD, e.server, EPOLLIN, 1));
    R(ctl(a, EPOLL_CTL_ADD, e.server, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1));
    R(ctl(a, EPOLL_CTL_ADD, e.server, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP, 1));
    R(ctl(a, EPOLL_CTL_ADD, b, EPOLLIN | EPOLLEXCLUSIVE, 1));
    R(ctl(a, EPOLL_CTL_ADD, e.server, EPOLLIN, 3));
    R(ctl(a, EPOLL_CTL_MOD, e.server, EPOLLIN | EPOLLEXCLUSIVE, 4));
    R(ctl(a, EPOLL_CTL_MOD, e.server, EPOLLIN, 4));
    gives(e.client, "d");
    says("a", a, 1000);
    says("b", b, 1000);
    R(ctl(a, EPOLL_CTL_DEL, e.server, 0, 0));
    R(ctl(a, EPOLL_CTL_ADD, e.server, EPOLLIN | EPOLLEXCLUSIVE, 5));
    says("a", a, 0);
    takes(e.server, 1);
    says("a", a, 3);
    says("b", b, 3);
    gives(e.client, "f");
    says("a", a, 1000);
    says("b", b, 1000);
}

static void wakes_one(int actor, int set) {
    say("wait of actor %d", actor);
    says("sleeper", set, 5000);
    takes(talk.server, 3);
}
static int exclusive_sets[3];
static void *exclusive_sleeper(void *arg) {
    int which = (int)(long)arg;
    as_actor(4 + which);
    wakes_one(which, exclusive_sets[which]);
    return NULL;
}

/* Three threads sleep, each on its own set: one message wakes one thread, the one that came first. */
static void one_message_wakes_one_exclusive_sleeper(void) {
    pthread_t threads[3];
    talk = ends();
    for (long i = 0; i < 3; i++) {
        exclusive_sets[i] = set_of(talk.server, EPOLLIN | EPOLLEXCLUSIVE, (unsigned)i);
        pthread_create(&threads[i], NULL, exclusive_sleeper, (void *)i);
        until_asleep(4 + (int)i);
    }
    for (int i = 0; i < 3; i++) {
        gives(talk.client, "abc");
        pthread_join(threads[i], NULL);
        nap_ms(3);
        for (int k = 0; k <= i; k++) says("set", exclusive_sets[k], 0);
    }
    report_lane();
}

static void room_in_a_ring_of_an_exclusive_registration(void) {
    struct ends e = ends();
    int ep = set_of(e.server, EPOLLIN | EPOLLOUT | EPOLLEXCLUSIVE, 1);
    size_t sent = 0;
    ssize_t n;
    says("set", ep, 0);
    for (int round = 0; round < 3; round++) {
        sent = 0;
        while ((n = send(e.server, scratch, sizeof scratch, MSG_DONTWAIT)) > 0) sent += (size_t)n;
        say("full: %s", errname(errno));
        says("full", ep, 0);
        size_t taken = 0;
        while (taken < sent && (n = recv(e.client, scratch, sizeof scratch, 0)) > 0) taken += (size_t)n;
        say("all: %d", taken == sent);
        says("room", ep, 2000);
    }
    report_lane();
}

/* --- one connection in many sets --------------------------------------------------------------- */

enum { SETS = 8 };
static int many_sets[SETS];
static const unsigned kinds[SETS] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN, EPOLLIN | EPOLLONESHOT,
                                     EPOLLIN | EPOLLET, EPOLLIN, EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLET};

static void a_connection_in_many_sets(void) {
    enum { ROUNDS = 200 };
    struct ends e = ends();
    for (unsigned i = 0; i < SETS; i++) many_sets[i] = set_of(e.server, kinds[i], i);
    uint64_t before = by_ring();
    for (int round = 0; round < ROUNDS; round++) {
        struct epoll_event got;
        gives(e.client, "abc");
        for (unsigned i = 0; i < SETS; i++) {
            if (epoll_wait(many_sets[i], &got, 1, 2000) != 1 || got.data.u32 != i || !(got.events & EPOLLIN))
                say("set %u: wrong in round %d", i, round);
            bool again = epoll_wait(many_sets[i], &got, 1, 0) == 1;
            if (again == !!(kinds[i] & (EPOLLET | EPOLLONESHOT))) say("set %u: wrong level in round %d", i, round);
        }
        if (recv(e.server, scratch, 8, 0) != 3) say("recv in round %d", round);
        for (unsigned i = 0; i < SETS; i++) {
            if (epoll_wait(many_sets[i], &got, 1, 0) != 0) say("set %u: not empty in round %d", i, round);
            if (kinds[i] & EPOLLONESHOT && ctl(many_sets[i], EPOLL_CTL_MOD, e.server, kinds[i], i))
                say("MOD: %s", errname(errno));
        }
    }
    says_by_memory(before, 3 * ROUNDS / 2);
    for (unsigned i = 0; i < SETS; i++) R(ctl(many_sets[i], EPOLL_CTL_ADD, e.server, kinds[i], i));
    for (unsigned i = 0; i < SETS; i += 2) R(ctl(many_sets[i], EPOLL_CTL_DEL, e.server, 0, 0));
    gives(e.client, "de");
    for (unsigned i = 0; i < SETS; i++) says("half of them", many_sets[i], i % 2 ? 1000 : 0);
    for (unsigned i = 0; i < SETS; i += 2) R(ctl(many_sets[i], EPOLL_CTL_ADD, e.server, EPOLLIN, 10 + i));
    for (unsigned i = 0; i < SETS; i++) says("all of them", many_sets[i], 0);
    for (unsigned i = 4; i < SETS; i++) R(close(many_sets[i]));
    int outer = set_of(many_sets[2], EPOLLIN, 20);
    says("outer", outer, 0);
    takes(e.server, 2);
    says("outer", outer, 0);
    R(close(e.server));
    for (unsigned i = 0; i < 4; i++) says("closed", many_sets[i], 0);
}

static void *many_sleeper(void *arg) {
    int which = (int)(long)arg;
    as_actor(4 + which);
    says("sleeper", many_sets[which], 5000);
    return NULL;
}
static void threads_that_sleep_on_many_sets(void) {
    enum { SLEEPERS = 4 };
    talk = ends();
    for (unsigned i = 0; i < SETS; i++) many_sets[i] = set_of(talk.server, EPOLLIN, i);
    for (int round = 0; round < 3; round++) {
        pthread_t threads[SLEEPERS];
        for (long i = 0; i < SLEEPERS; i++) pthread_create(&threads[i], NULL, many_sleeper, (void *)i);
        for (int i = 0; i < SLEEPERS; i++) until_asleep(4 + i);
        gives(talk.client, "abc");
        for (int i = 0; i < SLEEPERS; i++) pthread_join(threads[i], NULL);
        for (unsigned i = SLEEPERS; i < SETS; i++) says("awake", many_sets[i], 1000);
        takes(talk.server, 3);
        for (unsigned i = 0; i < SETS; i++) says("all", many_sets[i], 0);
    }
    report_lane();
}

/* Connections come and go. */
static void many_connections_in_many_sets(void) {
    for (unsigned i = 0; i < SETS; i++) many_sets[i] = epoll_create1(EPOLL_CLOEXEC);
    for (int round = 0; round < 30; round++) {
        struct ends some[3];
        for (int k = 0; k < 3; k++) some[k] = ends();
        for (int k = 0; k < 3; k++)
            for (unsigned i = 0; i < SETS; i++) add(many_sets[i], some[k].server, EPOLLIN, (unsigned)k);
        for (unsigned i = 0; i < SETS; i++) says("set", many_sets[i], 0);
        for (int k = 2; k >= 0; k--) gives(some[k].client, "x");
        if (round % 10 == 0) for (unsigned i = 0; i < SETS; i++) says("set", many_sets[i], 1000);
        for (int k = 0; k < 3; k++) {
            takes(some[k].server, 1);
            close(some[k].server);
            close(some[k].client);
        }
        for (unsigned i = 0; i < SETS; i++) says("set", many_sets[i], 0);
    }
    report_lane();
}

const struct one_case cases[] = {
#define OWN(name) {#name, name, ONCE | LANE}
    OWN(a_set_is_readable_while_it_has_something),
    OWN(edges_of_a_set),
    OWN(edges_of_bytes_behind_unread_ones_in_a_set),
    OWN(edges_of_a_set_with_a_set_in_it),
    OWN(edges_in_a_set),
    OWN(one_shot_in_a_set),
    OWN(a_set_that_is_reported_once),
    OWN(sets_in_sets_in_sets),
    OWN(a_set_that_poll_and_select_wait_on),
    OWN(a_set_that_poll_waits_on_keeps_its_lane),
    OWN(asleep_in_epoll_of_a_set),
    OWN(asleep_in_poll_of_a_set),
    OWN(asleep_in_poll_of_a_set_in_a_set),
    OWN(asleep_in_select_of_a_set),
    OWN(changes_under_a_sleeper),
    OWN(asleep_with_bytes_unread),
    OWN(waits_on_both_sets_at_once),
    OWN(sets_keep_their_place_among_connections),
    OWN(what_is_taken_out_or_closed),
    OWN(the_end_of_a_connection_in_a_set),
    OWN(a_child_waits_on_a_set_in_a_set),
    OWN(room_in_a_ring_of_a_set),
    OWN(exclusive_registrations),
    OWN(one_message_wakes_one_exclusive_sleeper),
    OWN(room_in_a_ring_of_an_exclusive_registration),
    OWN(a_connection_in_many_sets),
    OWN(threads_that_sleep_on_many_sets),
    OWN(many_connections_in_many_sets),
    {NULL, NULL, 0},
};
