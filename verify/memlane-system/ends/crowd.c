/* Many connections between two processes, or between one and many.
 *
 *   crowd serve        says "port N"; answers each byte with its complement, until its input ends
 *   crowd call PORT    does what it is told: one order a line on standard input, one answer a
 *                      line on standard output
 *   crowd alone        both, in one thread: which instructions it executes does not depend on time
 *   crowd many PORT N  N processes that call; each does each order, and the answer is the sum of theirs
 *
 *   open N                         has N connections open: opens more, or closes the newest
 *   talk WAY FIRST COUNT SIZE N    N times: sends SIZE bytes on each of COUNT connections, then waits for
 *                                  the answers by WAY (epoll, poll, select, read) and compares them
 *   measure WAY FIRST COUNT SIZE N  the same, in a function of its own, for tools that count what it executes
 *   rest                           waits until nothing has come for 20 ms
 *   short N AT-ONCE TIMES          N connections, AT-ONCE of them open at a time, each of which talks TIMES
 *   fork HOW N                     N times a child (below), and a talk on all connections after each
 *
 * The server is at $CROWD_AT, or at 127.0.0.1.
 *
 * Each order is answered by "done WAITS", the number of waits for answers. What is wrong ends the
 * program with a message; so does a hang. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 300, MOST = 70000, BATCH = 256, LARGEST = 1 << 16 };

/* One connection of the calling side, and how far its answer has come. */
struct caller {
    int fd;
    uint32_t id;
    uint32_t turn;
    size_t missing;
};

static struct caller callers[MOST];
static int open_now, next_id;
static int port;
static int set = -1;     /* the callers' */
static int serving = -1; /* the server's */
static int alone;
static unsigned long waits;

static void die(const char *what) {
    fprintf(stderr, "crowd: %s: %s\n", what, strerror(errno));
    exit(1);
}

static in_addr_t home_address(void) {
    const char *at = getenv("CROWD_AT");
    return at ? inet_addr(at) : htonl(INADDR_LOOPBACK);
}

static void wrong(const char *what, const struct caller *c) {
    fprintf(stderr, "crowd: %s: connection %u, turn %u, %zu bytes missing\n", what, c->id, c->turn, c->missing);
    exit(1);
}

/* As many descriptors as are allowed. */
static void want_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void no_waiting(int fd) {
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) die("fcntl");
}

/* Byte `at` of what a connection says in its turn. */
static unsigned char word(const struct caller *c, size_t at) {
    uint32_t mix = (c->id * 2654435761u) ^ (c->turn * 40503u) ^ (uint32_t)at;
    return (unsigned char)(mix ^ mix >> 8 ^ mix >> 16 ^ mix >> 24);
}

static void put(int fd, const unsigned char *bytes, size_t len) {
    for (size_t at = 0; at < len;) {
        ssize_t n = send(fd, bytes + at, len - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd room = {.fd = fd, .events = POLLOUT};
            if (poll(&room, 1, SECONDS * 1000) != 1) die("no room to send");
        } else if (n < 0) {
            die("send");
        } else {
            at += (size_t)n;
        }
    }
}

/* ---- the server --------------------------------------------------------- */

static int listener;

static void watch(int epoll, int fd, uint64_t data) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = data};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) die("epoll_ctl");
}

static void listen_here(void) {
    struct sockaddr_in home = {.sin_family = AF_INET, .sin_addr.s_addr = home_address()};
    socklen_t len = sizeof home;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (listener < 0) die("socket");
    if (bind(listener, (struct sockaddr *)&home, len) != 0 || listen(listener, 4096) != 0) die("listen");
    if (getsockname(listener, (struct sockaddr *)&home, &len) != 0) die("getsockname");
    port = ntohs(home.sin_port);
    serving = epoll_create1(EPOLL_CLOEXEC);
    watch(serving, listener, (uint64_t)listener);
}

static void take_new(void) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EAGAIN || errno == ECONNABORTED)) return;
        if (fd < 0) die("accept");
        watch(serving, fd, (uint64_t)fd);
    }
}

static void answer(int fd) {
    static unsigned char bytes[LARGEST];
    ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        if (n < 0 && errno != ECONNRESET) die("recv");
        close(fd);
        return;
    }
    for (ssize_t i = 0; i < n; i++) bytes[i] = (unsigned char)~bytes[i];
    put(fd, bytes, (size_t)n);
}

/* Answers what there is; returns 0 when its input has ended. */
static int serve_once(int timeout) {
    struct epoll_event events[BATCH];
    int n = epoll_wait(serving, events, BATCH, timeout);
    if (n < 0 && errno == EINTR) return 1;
    if (n < 0) die("epoll_wait");
    for (int i = 0; i < n; i++) {
        int fd = (int)events[i].data.u64;
        if (fd == 0) return 0;
        if (fd == listener) {
            take_new();
        } else {
            answer(fd);
        }
    }
    return n + 1;
}

static int serve(void) {
    listen_here();
    watch(serving, 0, 0);
    printf("port %d\n", port);
    while (serve_once(-1)) {
    }
    return 0;
}

/* ---- the calling side --------------------------------------------------- */

static void open_one(void) {
    struct caller *c = &callers[open_now];
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = home_address()};
    *c = (struct caller){.id = (uint32_t)next_id++};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0) die("socket");
    while (connect(c->fd, (struct sockaddr *)&to, sizeof to) != 0) {
        /* All ports are taken by connections that have just ended. */
        if (errno != EADDRNOTAVAIL) die("connect");
        usleep(10000);
    }
    no_waiting(c->fd);
    watch(set, c->fd, (uint64_t)open_now);
    open_now++;
    if (alone) serve_once(0);
}

static void have_open(int many) {
    if (many > MOST) die("too many");
    while (open_now < many) open_one();
    while (open_now > many) {
        close(callers[--open_now].fd);
        if (alone) serve_once(0);
    }
}

static void say(struct caller *c, size_t size) {
    static unsigned char bytes[LARGEST];
    if (size > sizeof bytes || c->missing != 0) wrong("cannot say that", c);
    c->turn++;
    for (size_t i = 0; i < size; i++) bytes[i] = word(c, i);
    c->missing = size;
    put(c->fd, bytes, size);
}

/* Takes what has come of an answer; returns 1 when it is whole. */
static int hear(struct caller *c, size_t size) {
    static unsigned char bytes[LARGEST];
    ssize_t n = recv(c->fd, bytes, c->missing + 1 < sizeof bytes ? c->missing + 1 : sizeof bytes, 0);
    if (n < 0 && errno == EAGAIN) return 0;
    if (n < 0) die("recv");
    if (n == 0 || (size_t)n > c->missing) wrong("the answer has another length", c);
    for (ssize_t i = 0; i < n; i++) {
        if (bytes[i] != (unsigned char)~word(c, size - c->missing + (size_t)i)) wrong("a wrong byte", c);
    }
    c->missing -= (size_t)n;
    return c->missing == 0;
}

enum way { EPOLL, POLL, SELECT, READ };

static int hear_if_due(struct caller *c, size_t size) {
    return c->missing != 0 && hear(c, size);
}

static int by_epoll(size_t size, int timeout) {
    struct epoll_event events[BATCH];
    int heard = 0, n = epoll_wait(set, events, BATCH, timeout);
    if (n < 0 && errno != EINTR) die("epoll_wait");
    if (n == 0 && timeout != 0) die("no answer by epoll");
    for (int i = 0; i < n; i++) heard += hear(&callers[events[i].data.u64], size);
    return heard;
}

/* On all connections, as a program does that has nothing better. */
static int by_poll(size_t size, int timeout) {
    static struct pollfd all[MOST];
    int heard = 0;
    for (int i = 0; i < open_now; i++) all[i] = (struct pollfd){.fd = callers[i].fd, .events = POLLIN};
    int n = poll(all, (nfds_t)open_now, timeout);
    if (n < 0 && errno != EINTR) die("poll");
    if (n == 0 && timeout != 0) die("no answer by poll");
    for (int i = 0; i < open_now && n > 0; i++) {
        if (all[i].revents != 0) heard += hear(&callers[i], size);
    }
    return heard;
}

static int by_select(size_t size, int timeout) {
    fd_set in;
    int heard = 0, most = 0;
    struct timeval limit = {.tv_sec = timeout / 1000};
    FD_ZERO(&in);
    for (int i = 0; i < open_now && callers[i].fd < FD_SETSIZE; i++) {
        FD_SET(callers[i].fd, &in);
        if (callers[i].fd > most) most = callers[i].fd;
    }
    int n = select(most + 1, &in, NULL, NULL, &limit);
    if (n < 0 && errno != EINTR) die("select");
    if (n == 0 && timeout != 0) die("no answer by select");
    for (int i = 0; i < open_now && n > 0 && callers[i].fd < FD_SETSIZE; i++) {
        if (FD_ISSET(callers[i].fd, &in)) heard += hear(&callers[i], size);
    }
    return heard;
}

static int by_read(int first, int count, size_t size) {
    int heard = 0;
    for (int i = first; i < first + count; i++) heard += hear_if_due(&callers[i], size);
    return heard;
}

static void talk(enum way way, int first, int count, size_t size, int times) {
    if (first < 0 || count < 0 || first + count > open_now) die("no such connections");
    while (times-- > 0) {
        for (int i = first; i < first + count; i++) say(&callers[i], size);
        for (int heard = 0; heard < count; waits++) {
            int timeout = alone ? 0 : SECONDS * 1000;
            if (alone) serve_once(0);
            if (way == EPOLL) heard += by_epoll(size, timeout);
            if (way == POLL) heard += by_poll(size, timeout);
            if (way == SELECT) heard += by_select(size, timeout);
            if (way == READ) heard += by_read(first, count, size);
        }
    }
}

static __attribute__((noinline)) void talk_measured(enum way way, int first, int count, size_t size, int times) {
    talk(way, first, count, size, times);
    __asm__ volatile(""); /* no tail call */
}

static void rest(void) {
    struct epoll_event event;
    while (alone && serve_once(20) > 1) {
    }
    if (epoll_wait(set, &event, 1, 20) != 0) die("something came unasked");
}

/* Connections come and go; those that were open stay. */
static void many_short(int number, int at_once, int times) {
    int before = open_now;
    while (number > 0) {
        int now = at_once < number ? at_once : number;
        have_open(before + now);
        talk(EPOLL, before, now, 200, times);
        have_open(before);
        number -= now;
    }
}

/* A child that
 *   exit     does nothing
 *   use      talks on the first connection, which the parent leaves alone meanwhile
 *   exec     becomes another program, which does not get our connections
 *   inherit  becomes a shell that holds the first connection for a moment */
static void child(const char *how) {
    if (strcmp(how, "use") == 0) talk(READ, 0, 1, 300, 3);
    if (strcmp(how, "inherit") == 0) fcntl(callers[0].fd, F_SETFD, 0);
    if (strcmp(how, "exec") == 0) execl("/bin/true", "true", NULL);
    if (strcmp(how, "inherit") == 0) execl("/bin/sh", "sh", "-c", "exit 0", NULL);
    if (strcmp(how, "exec") == 0 || strcmp(how, "inherit") == 0) die("exec");
    _exit(0);
}

static void forks(const char *how, int times) {
    while (times-- > 0) {
        int status, pid = fork();
        if (pid < 0) die("fork");
        if (pid == 0) child(how);
        if (waitpid(pid, &status, 0) != pid || status != 0) die("a child failed");
        if (strcmp(how, "use") == 0) callers[0].turn += 3;
        talk(EPOLL, 0, open_now, 100, 1);
    }
}

static enum way way_of(const char *name) {
    if (strcmp(name, "poll") == 0) return POLL;
    if (strcmp(name, "select") == 0) return SELECT;
    if (strcmp(name, "read") == 0) return READ;
    return EPOLL;
}

static void take_orders(void) {
    char line[200], name[20];
    int a, b, c, d;
    while (fgets(line, sizeof line, stdin)) {
        alarm(SECONDS);
        waits = 0;
        if (sscanf(line, "open %d", &a) == 1) {
            have_open(a);
        } else if (sscanf(line, "talk %19s %d %d %d %d", name, &a, &b, &c, &d) == 5) {
            talk(way_of(name), a, b, (size_t)c, d);
        } else if (sscanf(line, "measure %19s %d %d %d %d", name, &a, &b, &c, &d) == 5) {
            talk_measured(way_of(name), a, b, (size_t)c, d);
        } else if (strcmp(line, "rest\n") == 0) {
            rest();
        } else if (sscanf(line, "short %d %d %d", &a, &b, &c) == 3) {
            many_short(a, b, c);
        } else if (sscanf(line, "fork %19s %d", name, &a) == 2) {
            forks(name, a);
        } else {
            errno = EINVAL;
            die(line);
        }
        alarm(0);
        printf("done %lu\n", waits);
    }
}

/* ---- many that call ------------------------------------------------------ */

struct process {
    FILE *orders, *answers;
};

static struct process start_one(char *self, char *to) {
    int orders[2], answers[2];
    if (pipe2(orders, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0) die("pipe");
    int pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        dup2(orders[0], 0);
        dup2(answers[1], 1);
        execl(self, self, "call", to, NULL);
        die("exec");
    }
    close(orders[0]);
    close(answers[1]);
    struct process p = {fdopen(orders[1], "w"), fdopen(answers[0], "r")};
    if (!p.orders || !p.answers) die("fdopen");
    return p;
}

static int many(char *self, char *to, int number) {
    struct process *all = calloc((size_t)number, sizeof *all);
    char line[200], said[200];
    for (int i = 0; i < number; i++) all[i] = start_one(self, to);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long sum = 0, one;
        for (int i = 0; i < number; i++) {
            if (fputs(line, all[i].orders) < 0 || fflush(all[i].orders) != 0) die("an order");
        }
        for (int i = 0; i < number; i++) {
            if (!fgets(said, sizeof said, all[i].answers) || sscanf(said, "done %lu", &one) != 1) die("an answer");
            sum += one;
        }
        printf("done %lu\n", sum);
    }
    for (int i = 0; i < number; i++) fclose(all[i].orders);
    for (int i = 0; i < number; i++) {
        int status;
        if (wait(&status) < 0 || status != 0) die("a process failed");
    }
    return 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    want_descriptors();
    if (argc == 2 && strcmp(argv[1], "serve") == 0) return serve();
    if (argc == 4 && strcmp(argv[1], "many") == 0) return many("/proc/self/exe", argv[2], atoi(argv[3]));
    set = epoll_create1(EPOLL_CLOEXEC);
    if (argc == 2 && strcmp(argv[1], "alone") == 0) {
        alone = 1;
        listen_here();
    } else if (argc == 3 && strcmp(argv[1], "call") == 0) {
        port = atoi(argv[2]);
    } else {
        fprintf(stderr, "crowd serve | call PORT | many PORT N | alone\n");
        return 2;
    }
    take_orders();
    return 0;
}
