/* Event loops: several sets in one process, and in which turn a set reports what is ready.
 *
 * Each case makes its own connections, both ends in this process, and warms them up so that they have their lane. */
#include "common.h"

static char scratch[4096];

struct ends { int client, server; };

/* A connected pair that has exchanged `warm` messages each way. */
static struct ends ends(int warm) {
    int listener = listen_any(), one = 1;
    struct ends e;
    e.client = connect_port(bound_port(listener));
    e.server = accept(listener, NULL, NULL);
    close(listener);
    setsockopt(e.client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(e.server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (int i = 0; i < warm; i++) {
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

enum { WARM = 200, RUN_MS = 1500, LOST_MS = 5000 };

/* --- two loops, of which one takes its connection out and puts it back ---------------- */

static struct ends one, other;
static atomic_bool over;
static atomic_long turns, twice;

static void *pours(void *arg) {
    const struct ends *e = arg;
    char block[2000] = {0};
    while (!over && send(e->client, block, sizeof block, MSG_NOSIGNAL) > 0) {}
    return NULL;
}

static void *takes_out_and_puts_back(void *arg) {
    int ep = epoll_create1(0);
    struct epoll_event got[64];
    char block[3000];
    (void)arg;
    ctl(ep, EPOLL_CTL_ADD, one.server, EPOLLIN, 1);
    while (!over) {
        if (epoll_wait(ep, got, 64, 100) > 1) twice++;
        for (int i = 0; i < 3; i++) recv(one.server, block, sizeof block, MSG_DONTWAIT);
        ctl(ep, EPOLL_CTL_DEL, one.server, 0, 0);
        epoll_wait(ep, got, 64, 0);
        ctl(ep, EPOLL_CTL_ADD, one.server, EPOLLIN, 1);
        turns++;
    }
    return NULL;
}

static void *only_waits(void *arg) {
    int ep = epoll_create1(0);
    struct epoll_event got[64];
    char block[3000];
    (void)arg;
    ctl(ep, EPOLL_CTL_ADD, other.server, EPOLLIN, 1);
    while (!over) {
        epoll_wait(ep, got, 64, 0);
        recv(other.server, block, sizeof block, MSG_DONTWAIT);
    }
    return NULL;
}

static void a_loop_is_not_lost_when_another_loop_looks_around(void) {
    pthread_t threads[4];
    void *(*const run[])(void *) = {pours, pours, takes_out_and_puts_back, only_waits};
    one = ends(WARM);
    other = ends(WARM);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, run[i], i == 0 ? &one : &other);
    nap_ms(RUN_MS);
    over = true;
    shutdown(one.client, SHUT_RDWR); /* ends a send that waits for room */
    shutdown(other.client, SHUT_RDWR);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL); /* a loop that hangs is seen by the supervisor */
    say("turns: %d, reported twice at a time: %d", turns > 0, twice > 0);
    report_lane();
}

/* --- one thread waits while another takes the connection out and puts it back ---------- */

static int shared_set;
static atomic_long arrived;

static void *waits_and_reads(void *arg) {
    struct epoll_event got[8];
    unsigned seed = 1;
    (void)arg;
    while (!over) {
        int n = epoll_wait(shared_set, got, 8, rand_r(&seed) % 50 ? 0 : 5);
        for (int i = 0; i < n; i++) {
            ssize_t r = recv(one.server, scratch, 64, MSG_DONTWAIT);
            if (r > 0) arrived += r;
        }
    }
    return NULL;
}

static void put_back_while_another_thread_waits(void) {
    pthread_t waiter;
    unsigned seed = 2;
    long sent = 0, begin = now_ms();
    bool wrong = false;
    one = ends(WARM);
    shared_set = epoll_create1(0);
    ctl(shared_set, EPOLL_CTL_ADD, one.server, EPOLLIN, 1);
    pthread_create(&waiter, NULL, waits_and_reads, NULL);
    while (!wrong && now_ms() - begin < RUN_MS) {
        for (int i = 0; i < 3 && !wrong; i++) {
            if (ctl(shared_set, EPOLL_CTL_DEL, one.server, 0, 0)) say("DEL: %s", errname(errno)), wrong = true;
            for (volatile int pause = rand_r(&seed) % 300; pause > 0; pause--) {}
            if (ctl(shared_set, EPOLL_CTL_ADD, one.server, EPOLLIN, 1)) say("ADD: %s", errname(errno)), wrong = true;
        }
        if (send(one.client, "z", 1, 0) != 1) say("send: %s", errname(errno)), wrong = true;
        sent++;
        for (long since = now_ms(); !wrong && arrived != sent;)
            if (now_ms() - since > LOST_MS) say("a byte is not reported"), wrong = true;
    }
    say("wrong: %d", wrong);
    over = true;
    pthread_join(waiter, NULL);
    report_lane();
}

/* --- connections that are always readable ------------------------------------------------- */

enum { BUSY_MOST = 16, TIMER_MS = 10, PATIENT_MS = 700 };
static struct ends busy[BUSY_MOST];
static int busy_count;
static atomic_long busy_read[BUSY_MOST];

/* A few KiB ahead of the reader: always readable, never full. */
static void *floods(void *arg) {
    static long sent[BUSY_MOST];
    char block[1024];
    (void)arg;
    memset(block, 'x', sizeof block);
    while (!over) {
        bool idle = true;
        for (int i = 0; i < busy_count; i++)
            while (!over && sent[i] - busy_read[i] < 6000) {
                if (send(busy[i].client, block, sizeof block, MSG_NOSIGNAL) <= 0) return NULL;
                sent[i] += sizeof block;
                idle = false;
            }
        if (idle) sched_yield();
    }
    return NULL;
}

static void timer_pipe_and_listener_get_their_turn(int most) {
    int ep = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), pipes[2];
    int listener = listen_any();
    struct itimerspec every = {{0, TIMER_MS * 1000000}, {0, TIMER_MS * 1000000}};
    pthread_t flooder;
    for (int i = 0; i < busy_count; i++) {
        busy[i] = ends(WARM);
        ctl(ep, EPOLL_CTL_ADD, busy[i].server, EPOLLIN, 3 + (unsigned)i);
    }
    if (pipe(pipes)) die("pipe");
    int others[] = {timer, pipes[0], listener};
    for (unsigned i = 0; i < 3; i++) ctl(ep, EPOLL_CTL_ADD, others[i], EPOLLIN, i);
    pthread_create(&flooder, NULL, floods, NULL);
    nap_ms(20);
    int late = connect_port(bound_port(listener));
    if (write(pipes[1], "z", 1) != 1) die("pipe");
    timerfd_settime(timer, 0, &every, NULL);
    long begin = now_ms(), first[3] = {-1, -1, -1}, ticked = begin, gap = 0;
    while (now_ms() - begin < RUN_MS) {
        struct epoll_event got[BUSY_MOST + 3];
        int n = epoll_wait(ep, got, most, 1000);
        for (int i = 0; i < n; i++) {
            unsigned who = got[i].data.u32;
            uint64_t count;
            if (who < 3 && first[who] < 0) first[who] = now_ms() - begin;
            if (who >= 3) {
                ssize_t r = recv(busy[who - 3].server, scratch, 16, MSG_DONTWAIT);
                if (r > 0) busy_read[who - 3] += r;
            } else if (who == 0 && read(timer, &count, sizeof count) == sizeof count) {
                if (now_ms() - ticked > gap) gap = now_ms() - ticked;
                ticked = now_ms();
            } else if (who == 1 && read(pipes[0], scratch, 1) != 1) say("the pipe is empty");
            else if (who == 2) close(accept(listener, NULL, NULL));
        }
    }
    for (int i = 0; i < 3; i++) say("descriptor %d in time: %d", i, first[i] >= 0 && first[i] < PATIENT_MS);
    say("the timer came in time: %d", gap < PATIENT_MS);
    over = true;
    for (int i = 0; i < busy_count; i++) shutdown(busy[i].client, SHUT_RDWR);
    pthread_join(flooder, NULL);
    close(late);
    report_lane();
}

static void one_event_at_a_time_starves_nobody(void) {
    busy_count = 8;
    timer_pipe_and_listener_get_their_turn(1);
}

static void more_busy_connections_than_events_starve_nobody(void) {
    busy_count = 16;
    timer_pipe_and_listener_get_their_turn(8);
}

/* Nobody reads: all of them stay ready, and take turns. */
static void what_is_always_ready_takes_turns(void) {
    enum { WAITS = 20000, LEAST = WAITS / 40 };
    int ep = epoll_create1(0), always = eventfd(1, EFD_CLOEXEC);
    long reports[BUSY_MOST + 1] = {0};
    busy_count = 8;
    for (int i = 0; i < busy_count; i++) {
        busy[i] = ends(WARM);
        ctl(ep, EPOLL_CTL_ADD, busy[i].server, EPOLLIN, 1 + (unsigned)i);
        send_all(busy[i].client, "z", 1);
    }
    ctl(ep, EPOLL_CTL_ADD, always, EPOLLIN, 0);
    for (int i = 0; i < WAITS; i++) {
        struct epoll_event got;
        if (epoll_wait(ep, &got, 1, 1000) == 1) reports[got.data.u32]++;
    }
    for (int i = 0; i <= busy_count; i++) say("descriptor %d had its turns: %d", i, reports[i] >= LEAST);
    report_lane();
}

/* --- the order of arrival ------------------------------------------------------------------- */

enum { MANY = 8, APART_MS = 3 };

/* Waits once and writes down who was reported, in which order; `fds[i]` has tag i. */
static void says_the_order(int ep, const int *fds, int count) {
    struct epoll_event got[MANY + 2];
    char line[64] = "";
    int n = epoll_wait(ep, got, MANY + 2, 1000);
    for (int i = 0; i < n; i++) sprintf(line + strlen(line), " %u", got[i].data.u32);
    say("reported:%s", line);
    for (int i = 0; i < n; i++) {
        int fd = fds[got[i].data.u32];
        if (got[i].data.u32 < (unsigned)count && read(fd, scratch, 8) < 1) say("nothing to read");
    }
    epoll_wait(ep, got, MANY + 2, 0); /* what has been read leaves the kernel's list */
}

/* Something becomes readable in each of `orders`, `APART_MS` apart. */
static void arrivals(int fresh, int foreign) {
    static const signed char orders[][MANY + 3] = {
        {7, 0, -1}, {7, 6, 5, 4, 3, 2, 1, 0, -1}, {3, 1, 7, 2, -1}, {0, 1, 2, 3, 4, 5, 6, 7, -1},
        {0, 8, 3, -1}, {8, 7, 9, 1, -1}, {5, 9, 4, 8, 6, -1}};
    struct ends all[MANY];
    int readable[MANY + 2], writable[MANY + 2], ep = epoll_create1(0);
    for (int i = 0; i < MANY; i++) {
        all[i] = ends(i < MANY - fresh ? WARM : 0);
        readable[i] = all[i].server;
        writable[i] = all[i].client;
    }
    for (int i = MANY; i < MANY + 2; i++) {
        int ends_of_pipe[2];
        if (pipe(ends_of_pipe)) die("pipe");
        readable[i] = ends_of_pipe[0];
        writable[i] = ends_of_pipe[1];
    }
    for (unsigned i = 0; i < MANY + 2; i++) ctl(ep, EPOLL_CTL_ADD, readable[i], EPOLLIN, i);
    struct epoll_event none[MANY + 2];
    epoll_wait(ep, none, MANY + 2, 0);
    for (int round = 0; round < 3; round++)
        for (size_t k = 0; k < sizeof orders / sizeof *orders - (foreign ? 0 : 3); k++) {
            for (int i = 0; orders[k][i] >= 0; i++) {
                if (write(writable[orders[k][i]], "z", 1) != 1) die("write");
                nap_ms(APART_MS);
            }
            says_the_order(ep, readable, MANY + 2);
        }
    report_lane();
}

static void connections_are_reported_in_the_order_of_arrival(void) { arrivals(0, 0); }
static void a_fresh_connection_keeps_its_place_among_others(void) { arrivals(1, 0); }
static void pipes_keep_their_place_among_connections(void) { arrivals(0, 1); }

/* While nobody waits, groups of connections become readable, `APART_MS` apart, each followed by a pipe. */
static void groups_keep_their_place_among_pipes(void) {
    enum { GROUPS = 4, PIPES = 2, EACH = MANY / GROUPS };
    struct ends all[MANY];
    int readable[MANY + PIPES], pipes[PIPES], ep = epoll_create1(0);
    for (int i = 0; i < MANY; i++) {
        all[i] = ends(WARM);
        readable[i] = all[i].server;
    }
    for (int i = 0; i < PIPES; i++) {
        int ends_of_pipe[2];
        if (pipe(ends_of_pipe)) die("pipe");
        readable[MANY + i] = ends_of_pipe[0];
        pipes[i] = ends_of_pipe[1];
    }
    for (unsigned i = 0; i < MANY + PIPES; i++) ctl(ep, EPOLL_CTL_ADD, readable[i], EPOLLIN, i);
    struct epoll_event none[MANY + PIPES];
    epoll_wait(ep, none, MANY + PIPES, 0);
    for (int round = 0; round < 10; round++) {
        for (int group = 0; group < GROUPS; group++) {
            nap_ms(APART_MS);
            for (int i = EACH; i-- > 0;) send_all(all[(group + round) % GROUPS * EACH + i].client, "z", 1);
            nap_ms(APART_MS);
            if (group < PIPES && write(pipes[group], "z", 1) != 1) die("write");
        }
        says_the_order(ep, readable, MANY + PIPES);
    }
    report_lane();
}

/* Without a pause between arrivals: whoever was first is reported first, among connections of one kind. */
static void arrivals_in_quick_succession(void) {
    struct ends all[MANY];
    int readable[MANY], ep = epoll_create1(0), wrong = 0;
    unsigned seed = 3;
    struct epoll_event got[MANY];
    for (int i = 0; i < MANY; i++) {
        all[i] = ends(WARM);
        readable[i] = all[i].server;
        ctl(ep, EPOLL_CTL_ADD, readable[i], EPOLLIN, (unsigned)i);
    }
    epoll_wait(ep, got, MANY, 0);
    for (int round = 0; round < 300; round++) {
        unsigned order[MANY];
        for (unsigned i = 0; i < MANY; i++) order[i] = i;
        for (unsigned i = MANY - 1; i > 0; i--) {
            unsigned j = (unsigned)rand_r(&seed) % (i + 1), kept = order[i];
            order[i] = order[j];
            order[j] = kept;
        }
        for (int i = 0; i < MANY; i++) send_all(all[order[i]].client, "z", 1);
        int seen = 0;
        while (seen < MANY) {
            int n = epoll_wait(ep, got, MANY, 1000);
            if (n < 1) break;
            for (int i = 0; i < n; i++) {
                wrong += got[i].data.u32 != order[seen + i];
                recv(readable[got[i].data.u32], scratch, 8, MSG_DONTWAIT);
            }
            seen += n;
        }
        wrong += seen != MANY;
        epoll_wait(ep, got, MANY, 0);
    }
    say("out of order: %d", wrong);
    report_lane();
}

const struct one_case cases[] = {
#define LONG_LOOP(name) {#name, name, ONCE | LANE | LONG}
#define LOOP(name) {#name, name, ONCE | LANE}
    LONG_LOOP(a_loop_is_not_lost_when_another_loop_looks_around),
    LONG_LOOP(put_back_while_another_thread_waits),
    LONG_LOOP(one_event_at_a_time_starves_nobody),
    LONG_LOOP(more_busy_connections_than_events_starve_nobody),
    LOOP(what_is_always_ready_takes_turns),
    LOOP(connections_are_reported_in_the_order_of_arrival),
    LOOP(a_fresh_connection_keeps_its_place_among_others),
    LOOP(pipes_keep_their_place_among_connections),
    LOOP(groups_keep_their_place_among_pipes),
    LOOP(arrivals_in_quick_succession),
    {NULL, NULL, 0},
};
