/* What calls on a TCP connection take on cold caches: `cold [TIMES]`. Before each call, the program goes through 6 MiB of data and
 * 1 MiB of code, as a process does that finds its CPU's caches full of others' memory. Both ends are in this process.
 *
 * It prints the median of each call in ticks of the CPU's clock. decisions/0045 has its figures. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#if defined __x86_64__
#include <x86intrin.h>
#endif

enum { DATA = 6 << 20, CODE = 1 << 20, LINE = 64, MESSAGE = 64, WARM = 200 };
enum { SEND, EPOLL_WAIT, RECV, RECV_IN_VAIN, POLL, CALLS };

static unsigned char *data, *code;
static volatile unsigned sink;

static unsigned long ticks(void) {
#if defined __x86_64__
    unsigned cpu;
    return __rdtscp(&cpu);
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ul + t.tv_nsec;
#endif
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* Fills CODE with returns. */
static void make_code(void) {
    code = mmap(NULL, CODE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) die("mmap");
#if defined __x86_64__
    memset(code, 0xc3, CODE);
#elif defined __aarch64__
    for (size_t i = 0; i < CODE; i += 4) memcpy(code + i, &(unsigned){0xd65f03c0}, 4);
#endif
    if (mprotect(code, CODE, PROT_READ | PROT_EXEC)) die("mprotect");
    __builtin___clear_cache((char *)code, (char *)code + CODE);
}

static void cool(void) {
    unsigned sum = 0;
    for (size_t i = 0; i < DATA; i += LINE) sum += data[i]++;
    sink = sum;
#if defined __x86_64__ || defined __aarch64__
    for (size_t i = 0; i < CODE; i += LINE) ((void (*)(void))(code + i))();
#endif
}

static void connect_to_self(int *client, int *server) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, len) || listen(listener, 1)) die("listen");
    getsockname(listener, (void *)&at, &len);
    *client = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(*client, (void *)&at, len)) die("connect");
    *server = accept(listener, NULL, NULL);
    setsockopt(*client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(*server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* Long enough for a lane to open, where one may. */
static void warm_up(int client, int server) {
    char bytes[MESSAGE] = {0};
    for (int i = 0; i < WARM; i++) {
        send(client, bytes, MESSAGE, 0);
        while (recv(server, bytes, MESSAGE, MSG_DONTWAIT) < 0) usleep(50);
        send(server, bytes, MESSAGE, 0);
        while (recv(client, bytes, MESSAGE, MSG_DONTWAIT) < 0) usleep(50);
    }
}

static int by_size(const void *a, const void *b) {
    unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static const char *const names[CALLS] = {"send", "epoll_wait", "recv", "recv in vain", "poll in vain"};
    int times = argc > 1 ? atoi(argv[1]) : 1000, client, server;
    if (times < 1) return fprintf(stderr, "usage: cold [TIMES]\n"), 2;
    data = malloc(DATA);
    memset(data, 1, DATA);
    make_code();
    connect_to_self(&client, &server);
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    if (epoll_ctl(set, EPOLL_CTL_ADD, server, &event)) die("epoll_ctl");
    warm_up(client, server);
    unsigned long *took[CALLS];
    for (int call = 0; call < CALLS; call++) took[call] = calloc(times, sizeof *took[call]);
    char bytes[MESSAGE] = {0};
    struct pollfd one = {server, POLLIN, 0};
    for (int i = 0; i < times; i++)
        for (int call = 0; call < CALLS; call++) {
            cool();
            unsigned long begin = ticks();
            switch (call) {
            case SEND: send(client, bytes, MESSAGE, 0); break;
            case EPOLL_WAIT: epoll_wait(set, &event, 1, 100); break;
            case RECV: recv(server, bytes, MESSAGE, 0); break;
            case RECV_IN_VAIN: recv(server, bytes, MESSAGE, MSG_DONTWAIT); break;
            case POLL: poll(&one, 1, 0); break;
            }
            took[call][i] = ticks() - begin;
        }
    for (int call = 0; call < CALLS; call++) {
        qsort(took[call], times, sizeof *took[call], by_size);
        printf("%s %lu%s", names[call], took[call][times / 2], call + 1 < CALLS ? ", " : "\n");
    }
    return 0;
}
