// What a wake-up costs two processes that sleep by turns, by what the waker does and how the sleeper waits. For a person, without
// memlane: docs/decisions/0046-bells-ring-by-edges.md has figures.
//
//     cc -O2 verify/memlane-system/ends/bell.c -o /tmp/bell && /tmp/bell 100000
//
// Prints the time of a round trip and the CPU time of both processes for it, in microseconds: with both processes on CPU 0, and with
// one of them on CPU 1.
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum how { BYTE, EDGE, EVENTFD };
enum wait { IN_EPOLL, IN_POLL };

static const char *const HOWS[] = {"byte", "edge", "eventfd"};
static const char *const WAITS[] = {"epoll", "poll"};

// One end of a pair of bells: what is rung, what is heard, and a set in which that lies.
struct end {
    int theirs, ours, set, rings;
};

static void ring(const struct end *end, enum how how) {
    long one = 1;
    if (how == BYTE)
        send(end->theirs, &one, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    else if (how == EDGE)
        shutdown(end->theirs, SHUT_RD);
    else if (write(end->theirs, &one, sizeof one) < 0)
        exit(1);
}

// As memlane does: poll takes each byte, epoll those of eight rings at a time. The edge of a bell that is polled is kept by its set.
static void hear(struct end *end, enum how how, enum wait wait) {
    struct epoll_event event;
    char bytes[64];
    if (wait == IN_POLL) {
        struct pollfd one = {.fd = how == EDGE ? end->set : end->ours, .events = POLLIN};
        poll(&one, 1, -1);
        if (how == EDGE)
            epoll_wait(end->set, &event, 1, 0);
    } else {
        epoll_wait(end->set, &event, 1, -1);
    }
    if (how == BYTE && (wait == IN_POLL || ++end->rings % 8 == 0))
        recv(end->ours, bytes, sizeof bytes, MSG_DONTWAIT);
    if (how == EVENTFD && wait == IN_POLL && read(end->ours, bytes, 8) < 0)
        exit(1);
}

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static double child_seconds(void) {
    struct rusage use;
    getrusage(RUSAGE_CHILDREN, &use);
    return use.ru_utime.tv_sec + use.ru_stime.tv_sec + (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static void run(enum how how, enum wait wait_by, int cpu, int rounds) {
    int there[2], back[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, there);
    socketpair(AF_UNIX, SOCK_STREAM, 0, back);
    if (how == EVENTFD) {
        there[0] = there[1] = eventfd(0, EFD_NONBLOCK);
        back[0] = back[1] = eventfd(0, EFD_NONBLOCK);
    }
    double before = child_seconds(), own = seconds(CLOCK_PROCESS_CPUTIME_ID);
    int child = fork();
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(child ? 0 : cpu, &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    struct end end = {.theirs = child ? there[0] : back[0], .ours = child ? back[1] : there[1], .set = epoll_create1(0)};
    struct epoll_event event = {.events = (how == EDGE ? EPOLLOUT : EPOLLIN) | EPOLLET};
    epoll_ctl(end.set, EPOLL_CTL_ADD, end.ours, &event);
    if (how == EDGE)
        epoll_wait(end.set, &event, 1, 0); // it is reported once when it comes into the set
    usleep(50000);
    double start = seconds(CLOCK_MONOTONIC);
    for (int n = 0; n < rounds; n++) {
        if (child)
            ring(&end, how);
        hear(&end, how, wait_by);
        if (!child)
            ring(&end, how);
    }
    if (!child)
        _exit(0);
    double took = seconds(CLOCK_MONOTONIC) - start;
    waitpid(child, NULL, 0);
    double cpu_time = seconds(CLOCK_PROCESS_CPUTIME_ID) - own + child_seconds() - before;
    printf("%-7s %-5s CPU 0 and %d: %6.2f us, CPU time %6.2f us\n", HOWS[how], WAITS[wait_by], cpu, took / rounds * 1e6,
           cpu_time / rounds * 1e6);
    close(end.set);
    for (int n = 0; n < 2; n++)
        close(there[n]), close(back[n]);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 100000;
    for (int cpu = 0; cpu < 2; cpu++)
        for (enum wait wait_by = IN_EPOLL; wait_by <= IN_POLL; wait_by++)
            for (enum how how = BYTE; how <= EVENTFD; how++)
                run(how, wait_by, cpu, rounds);
}
