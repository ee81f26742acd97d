/* Connections that are driven hard, and then not at all: who holds how much memory?
 *
 *   idle serve       says "port N"; takes requests and answers them, until its input ends
 *   idle call PORT   does what it is told: one order a line on standard input, "done" for each
 *
 *   open N           has N connections open: opens more, or closes the newest
 *   send SIZE TIMES  TIMES times, on each connection: SIZE bytes there, then as many back, all compared
 *   sleep HOW MS     waits on all connections for so long, with epoll, poll, select or a read of the first one
 *                    (a signal handler may end that: then "interrupted"); answers with the ms that it took
 *
 * A request is its length (4 bytes), its seed (4) and the bytes. Both sides block; one thread each. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 20000, LARGEST = 1 << 20 };
static int conns[MOST];
static int have;
static unsigned char bytes[LARGEST], wanted[LARGEST];

static void die(const char *what) {
    fprintf(stderr, "idle: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void all(int fd, int out, unsigned char *at, size_t n) {
    while (n > 0) {
        ssize_t r = out ? send(fd, at, n, MSG_NOSIGNAL) : recv(fd, at, n, 0);
        if (r <= 0) die(out ? "send" : "recv");
        at += r;
        n -= (size_t)r;
    }
}

static void fill(unsigned char *at, uint32_t n, uint32_t seed) {
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        at[i] = (unsigned char)(seed >> 24);
    }
}

/* Takes what was filled from `seed`, and compares it. */
static void take(int fd, uint32_t n, uint32_t seed) {
    all(fd, 0, bytes, n);
    fill(wanted, n, seed);
    if (memcmp(bytes, wanted, n) != 0) die("wrong bytes");
}

static void answer(int fd) {
    uint32_t head[2];
    all(fd, 0, (unsigned char *)head, sizeof head);
    if (head[0] > LARGEST) die("length");
    take(fd, head[0], head[1]);
    fill(bytes, head[0], ~head[1]);
    all(fd, 1, bytes, head[0]);
}

static void serve(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0);
    if (bind(listener, (void *)&a, len) || listen(listener, 1024) || getsockname(listener, (void *)&a, &len)) die("listen");
    printf("port %d\n", ntohs(a.sin_port));
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener};
    if (epoll_ctl(set, EPOLL_CTL_ADD, listener, &e)) die("epoll_ctl");
    e.data.fd = 0;
    if (epoll_ctl(set, EPOLL_CTL_ADD, 0, &e)) die("epoll_ctl");
    for (;;) {
        if (epoll_wait(set, &e, 1, -1) < 0) die("epoll_wait");
        if (e.data.fd == 0) exit(0);
        if (e.data.fd == listener) {
            e.data.fd = accept(listener, NULL, NULL);
            if (e.data.fd < 0 || epoll_ctl(set, EPOLL_CTL_ADD, e.data.fd, &e)) die("accept");
            continue;
        }
        char one;
        if (recv(e.data.fd, &one, 1, MSG_PEEK) <= 0)
            close(e.data.fd);
        else
            answer(e.data.fd);
    }
}

static void have_open(int n, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    while (have > n) close(conns[--have]);
    while (have < n) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (void *)&a, sizeof a)) die("connect");
        conns[have++] = fd;
    }
}

static void send_all(uint32_t size, int times) {
    static uint32_t seed;
    for (int t = 0; t < times; t++)
        for (int i = 0; i < have; i++) {
            uint32_t head[2] = {size, ++seed};
            all(conns[i], 1, (unsigned char *)head, sizeof head);
            fill(bytes, size, seed);
            all(conns[i], 1, bytes, size);
            take(conns[i], size, ~seed);
        }
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int wait_all(const char *how, int ms) {
    static struct pollfd list[MOST];
    fd_set in;
    struct timeval tv = {ms / 1000, ms % 1000 * 1000};
    struct epoll_event e = {.events = EPOLLIN};
    if (strcmp(how, "poll") == 0) {
        for (int i = 0; i < have; i++) list[i] = (struct pollfd){.fd = conns[i], .events = POLLIN};
        return poll(list, (nfds_t)have, ms);
    }
    if (strcmp(how, "select") == 0) {
        FD_ZERO(&in);
        for (int i = 0; i < have; i++) FD_SET(conns[i], &in);
        return select(conns[have - 1] + 1, &in, NULL, NULL, &tv);
    }
    if (strcmp(how, "read") == 0) return (int)recv(conns[0], bytes, 1, 0);
    int set = epoll_create1(0);
    for (int i = 0; i < have; i++)
        if (epoll_ctl(set, EPOLL_CTL_ADD, conns[i], &e)) die("epoll_ctl");
    int r = epoll_wait(set, &e, 1, ms), keep = errno;
    close(set);
    errno = keep;
    return r;
}

static void handler(int sig) { (void)sig; }

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (argc == 2 && strcmp(argv[1], "serve") == 0) serve();
    if (argc != 3) return 2;
    struct sigaction act = {.sa_handler = handler};
    sigaction(SIGUSR1, &act, NULL);
    char line[100], how[16];
    int n, m;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "open %d", &n) == 1 && n <= MOST)
            have_open(n, atoi(argv[2]));
        else if (sscanf(line, "send %d %d", &n, &m) == 2 && n <= LARGEST)
            send_all((uint32_t)n, m);
        else if (sscanf(line, "sleep %15s %d", how, &n) == 2) {
            double start = now_ms();
            int r = wait_all(how, n);
            printf("%s %d\n", r < 0 && errno == EINTR ? "interrupted" : r == 0 ? "done" : "wrong", (int)(now_ms() - start));
            continue;
        } else
            return 2;
        puts("done");
    }
    return 0;
}
