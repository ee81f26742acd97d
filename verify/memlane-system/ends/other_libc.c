/* A program that somebody under memlane starts, and that may have been linked with another libc.
 *
 *   other_libc pair           a connection of its own, threads, a child; says what came
 *   other_libc read FD        what waits on a descriptor that it inherits
 *   other_libc hand OTHER     a connection with unread bytes, handed to OTHER by exec
 *   other_libc maps           what is mapped
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TURNS = 200 };
static int client, server;

static int fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void connects(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    if (bind(listener, (void *)&at, len) || listen(listener, 4) || getsockname(listener, (void *)&at, &len)) fail("listen");
    client = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client, (void *)&at, len)) fail("connect");
    server = accept(listener, NULL, NULL);
    if (server < 0) fail("accept");
    close(listener);
}

static void *asks(void *arg) {
    char got[8];
    for (int i = 0; i < TURNS; i++)
        if (write(client, "hello", 5) != 5 || read(client, got, 5) != 5) fail("ask");
    return arg;
}

static void answers(void) {
    pthread_t thread;
    struct epoll_event ready = {.events = EPOLLIN};
    int set = epoll_create1(0), sum = 0;
    char got[8];
    if (epoll_ctl(set, EPOLL_CTL_ADD, server, &ready)) fail("epoll_ctl");
    pthread_create(&thread, NULL, asks, NULL);
    for (int i = 0; i < TURNS; i++) {
        if (epoll_wait(set, &ready, 1, 5000) != 1) fail("epoll_wait");
        sum += (int)read(server, got, 5);
        if (write(server, "world", 5) != 5) fail("answer");
    }
    pthread_join(thread, NULL);
    printf("bytes: %d\n", sum);
}

static void has_a_child(void) {
    int status = -1, child = fork();
    if (child == 0) {
        execlp("true", "true", (char *)NULL);
        _exit(9);
    }
    waitpid(child, &status, 0);
    printf("child: %d\n", status);
}

static void hands_over(const char *other) {
    char number[16];
    if (write(client, "unread", 6) != 6) fail("write");
    snprintf(number, sizeof number, "%d", server);
    fflush(stdout);
    execl(other, other, "read", number, (char *)NULL);
    printf("exec: %s\n", strerror(errno));
    char got[16];
    printf("kept: %d\n", (int)read(server, got, sizeof got));
}

static int shows_maps(void) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) fputs(line, stdout);
    return !maps;
}

int main(int count, char **words) {
    const char *verb = count > 1 ? words[1] : "";
    if (!strcmp(verb, "read") && count > 2) {
        char got[16];
        ssize_t n = read(atoi(words[2]), got, sizeof got);
        printf("read: %d\n", (int)n);
        return 0;
    }
    if (!strcmp(verb, "maps")) return shows_maps();
    connects();
    answers();
    if (!strcmp(verb, "hand") && count > 2) hands_over(words[2]);
    else has_a_child();
    return 0;
}
