/* One connection between two processes, and a stream over it. Prints "right", or what is wrong.
 *
 *   duplex MIB       each sends that many MiB in one thread, and compares what comes in another
 *   duplex MIB wait  one sends; it has a thread that waits for an answer, and learns in the end that none comes */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 128 << 10 };

static int fd;
static uint64_t all;

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* Both ends send this, again and again: its length divides no power of two. */
enum { PERIOD = 251 };
static uint8_t pattern[BLOCK + PERIOD];

static void *send_all(void *unused) {
    for (uint64_t at = 0; at < all;) {
        ssize_t n = send(fd, pattern + at % PERIOD, BLOCK, 0);
        if (n < 0) die("send");
        at += (uint64_t)n;
    }
    return unused;
}

static void receive_all(void) {
    static uint8_t block[BLOCK];
    for (uint64_t at = 0; at < all;) {
        ssize_t n = recv(fd, block, BLOCK, 0);
        if (n <= 0) die("recv");
        if (memcmp(block, pattern + at % PERIOD, (size_t)n) != 0) {
            fprintf(stderr, "wrong bytes, in %zd from %llu on\n", n, (unsigned long long)at);
            exit(1);
        }
        at += (uint64_t)n;
    }
}

static void *wait_for_an_answer(void *unused) {
    char byte;
    if (recv(fd, &byte, 1, 0) != 0) die("an answer");
    return unused;
}

/* A thread that sends, and one that receives. */
static void send_and_receive(void) {
    pthread_t sender;
    if (pthread_create(&sender, NULL, send_all, NULL)) die("thread");
    receive_all();
    pthread_join(sender, NULL);
}

/* A thread that sends after another one has fallen asleep. */
static void send_and_wait(void) {
    pthread_t waiter;
    if (pthread_create(&waiter, NULL, wait_for_an_answer, NULL)) die("thread");
    usleep(100000);
    send_all(NULL);
    pthread_join(waiter, NULL);
}

int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), status = 0;
    all = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) << 20;
    if (bind(listener, (void *)&at, len) || listen(listener, 1) || getsockname(listener, (void *)&at, &len)) die("listen");
    pid_t child = fork();
    if (child < 0) die("fork");
    fd = child == 0 ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, NULL, NULL);
    if (fd < 0 || (child == 0 && connect(fd, (void *)&at, len))) die("connect");
    for (int i = 0; i < BLOCK + PERIOD; i++) pattern[i] = (uint8_t)(i % PERIOD);
    if (argc == 2) send_and_receive();
    else if (child == 0) send_and_wait();
    else {
        receive_all();
        shutdown(fd, SHUT_WR);
    }
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0)) die("child");
    if (child > 0) puts("right");
    return 0;
}
