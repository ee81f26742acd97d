/* Two programs in a dialogue over three connections, of which one may die, stop or dawdle at any moment.
 *
 *   mortal survivor FILE       says "port N beside M", takes one connection at M and exchanges a few bytes on it for
 *                              ever, and does one dialogue for each line of its input ("serve", or "join PORT")
 *   mortal serve FILE          says "port N", does one dialogue as the accepting side
 *   mortal join FILE PORT      … as the connecting side
 *   mortal echo PORT           sends back whatever comes
 *
 * It listens at all addresses, and connects to $MORTAL_AT, or to 127.0.0.1.
 *
 * FILE is mapped: how far the dialogue (or the exchange beside it) has come, for whoever looks when the program is gone.
 * A dialogue that ends early is followed by what a program can still find out about its connection; then a line says
 * "conn K sent S taken T doing WHAT end E after A": errors as numbers, 0 = end of stream, "whole" if nothing was wrong. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 40, PIECE = 50000, BULK = 1 << 20 };

struct progress {
    _Atomic uint64_t conn, sent, taken, receiving, rounds;
};

static struct progress *progress;

static void die(const char *what) {
    fprintf(stderr, "mortal: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void rest(long ms) {
    struct timespec t = {0, ms * 1000000};
    nanosleep(&t, NULL);
}

/* ---- one connection ------------------------------------------------------- */

struct stream {
    int fd, conn, client;
    uint64_t sent, taken;
    const char *doing;
    int end, wrong; /* end: -1 = not ended */
};

/* Byte `at` of what the client (or the server) says on connection `conn`. */
static unsigned char byte(int conn, int client, uint64_t at) {
    return (unsigned char)(at * 31 + (at >> 8) * 17 + (at >> 16) * 3 + (unsigned)client * 101 + (unsigned)conn * 7);
}

static int ended(struct stream *s, const char *doing, int end) {
    s->doing = doing;
    s->end = end;
    return -1;
}

static ssize_t send_piece(struct stream *s, size_t most) {
    static unsigned char piece[PIECE];
    size_t len = most < PIECE ? most : PIECE;
    for (size_t i = 0; i < len; i++) piece[i] = byte(s->conn, s->client, s->sent + i);
    ssize_t n = send(s->fd, piece, len, MSG_NOSIGNAL);
    if (n > 0) progress->sent = s->sent += (uint64_t)n;
    return n;
}

static ssize_t take_piece(struct stream *s, size_t most) {
    static unsigned char piece[PIECE];
    progress->receiving = 1;
    ssize_t n = recv(s->fd, piece, most < PIECE ? most : PIECE, 0);
    for (ssize_t i = 0; i < n; i++)
        if (piece[i] != byte(s->conn, !s->client, s->taken + (uint64_t)i)) s->wrong = 1;
    if (n > 0) progress->taken = s->taken += (uint64_t)n;
    progress->receiving = 0;
    return n;
}

static int give(struct stream *s, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = send_piece(s, bytes);
        if (n < 0) return ended(s, "give", errno);
        bytes -= (size_t)n;
    }
    return 0;
}

static int take(struct stream *s, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = take_piece(s, bytes);
        if (n <= 0) return ended(s, "take", n < 0 ? errno : 0);
        bytes -= (size_t)n;
    }
    return 0;
}

static int take_end(struct stream *s) {
    ssize_t n = take_piece(s, 1);
    if (n > 0) s->wrong = 1;
    return n == 0 ? 0 : ended(s, "end", n < 0 ? errno : -1);
}

/* Both directions at once, without blocking. */
static int both(struct stream *s, size_t bytes) {
    size_t out = bytes, in = bytes;
    fcntl(s->fd, F_SETFL, O_NONBLOCK);
    while (out > 0 || in > 0) {
        struct pollfd p = {s->fd, (short)((out ? POLLOUT : 0) | (in ? POLLIN : 0)), 0};
        if (poll(&p, 1, -1) < 0) die("poll");
        if (out > 0) {
            ssize_t n = send_piece(s, out);
            if (n < 0 && errno != EAGAIN) return ended(s, "both", errno);
            out -= n > 0 ? (size_t)n : 0;
        }
        if (in > 0) {
            ssize_t n = take_piece(s, in);
            if (n == 0 || (n < 0 && errno != EAGAIN)) return ended(s, "both", n < 0 ? errno : 0);
            in -= n > 0 ? (size_t)n : 0;
        }
    }
    fcntl(s->fd, F_SETFL, 0);
    return 0;
}

/* The client asks a number of questions, each after a rest of some milliseconds, and the server answers each. */
static int exchange(struct stream *s, int times, long ms) {
    for (int i = 0; i < times; i++) {
        if (ms) rest(ms);
        if (s->client ? give(s, 100) : take(s, 100)) return -1;
        if (s->client ? take(s, 100) : give(s, 100)) return -1;
    }
    return 0;
}

/* The client pours (or the server), the other one says that it has everything. */
static int pour(struct stream *s, int by_client, size_t bytes) {
    if (s->client == by_client) return give(s, bytes) || take(s, 1);
    if (take(s, bytes / 2)) return -1;
    rest(4);
    return take(s, bytes - bytes / 2) || give(s, 1);
}

/* Both wait for the other in turn, for so long that rings give their pages back; then these fill again. */
static int idle(struct stream *s, long ms) {
    for (int by_client = 1; by_client >= 0; by_client--) {
        if (s->client == by_client) rest(ms);
        if (s->client == by_client ? give(s, 1) : take(s, 1)) return -1;
    }
    return pour(s, 1, BULK / 8) || pour(s, 0, BULK / 8);
}

/* An option that the memory lane does not carry. */
static int back_to_tcp(struct stream *s) {
    int on = 1;
    if (setsockopt(s->fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) != 0) die("setsockopt");
    return 0;
}

static int whole_life(struct stream *s) {
    if (exchange(s, 20, 0) || pour(s, 1, BULK) || pour(s, 0, BULK)) return -1;
    if (both(s, BULK / 4) || exchange(s, 4, 2) || idle(s, 16)) return -1;
    if (s->client) back_to_tcp(s);
    if (exchange(s, 5, 0) || pour(s, 1, 200000) || pour(s, 0, 200000)) return -1;
    if (!s->client) return take_end(s) || give(s, 10000);
    if (shutdown(s->fd, SHUT_WR) != 0) return ended(s, "shutdown", errno);
    return take(s, 10000) || take_end(s);
}

/* What is asked for lies in the ring when the server goes back to TCP. */
static int turned_away(struct stream *s) {
    if (exchange(s, 20, 0)) return -1;
    if (s->client) return give(s, 1) || take(s, 100000) || exchange(s, 5, 0) || take_end(s);
    return take(s, 1) || give(s, 50000) || back_to_tcp(s) || give(s, 50000) || exchange(s, 5, 0);
}

static int closed_open(struct stream *s) {
    if (exchange(s, 20, 0) || pour(s, 1, 300000) || pour(s, 0, 300000)) return -1;
    return s->client ? 0 : take_end(s);
}

/* ---- a dialogue ----------------------------------------------------------- */

/* The stream has ended early: what else can be found out, and is anything there to be read? */
static int look_after(struct stream *s) {
    int sends = 0;
    for (int i = 0; i < 2000; i++) {
        ssize_t n = take_piece(s, PIECE);
        if (n == 0 || (n < 0 && errno != EINTR)) break;
    }
    for (; sends < 2000; sends++) {
        if (send(s->fd, "?", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) return errno;
        rest(1);
    }
    return 0;
}

static int port_of(int fd) {
    struct sockaddr_in home;
    socklen_t len = sizeof home;
    if (getsockname(fd, (struct sockaddr *)&home, &len) != 0) die("getsockname");
    return ntohs(home.sin_port);
}

static struct sockaddr_in address(const char *at, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, at, &address.sin_addr) != 1) die(at);
    return address;
}

static int listener(void) {
    struct sockaddr_in home = address("0.0.0.0", 0);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&home, sizeof home) != 0 || listen(fd, 8) != 0) die("listen");
    return fd;
}

static int connected_to(const char *at, int port) {
    struct sockaddr_in home = address(at ? at : "127.0.0.1", port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&home, sizeof home) == 0) return fd;
    close(fd);
    return -1;
}

/* One is gone before all three connections were made: nobody will come. */
static int came(int listening) {
    struct pollfd p = {listening, POLLIN, 0};
    return poll(&p, 1, 500) == 1 ? accept(listening, NULL, NULL) : -1;
}

static int dialogue(int listening, int port) {
    int (*const lives[])(struct stream *) = {whole_life, turned_away, closed_open};
    for (int conn = 0; conn < 3; conn++) {
        struct stream s = {.conn = conn, .client = listening < 0, .doing = "connect", .end = -1};
        progress->sent = progress->taken = 0;
        progress->conn = (uint64_t)conn;
        s.fd = listening < 0 ? connected_to(getenv("MORTAL_AT"), port) : conn == 0 ? accept(listening, NULL, NULL) : came(listening);
        int after = 0;
        if (s.fd < 0) s.end = errno;
        if (s.fd >= 0 && lives[conn](&s) == 0) {
            close(s.fd);
            if (!s.wrong) continue;
        } else if (s.fd >= 0) {
            after = look_after(&s);
            close(s.fd);
        }
        printf("conn %d sent %" PRIu64 " taken %" PRIu64 " doing %s end %d after %d%s\n", conn, s.sent, s.taken,
               s.doing, s.end, after, s.wrong ? " WRONG" : "");
        return -1;
    }
    printf("whole\n");
    return 0;
}

/* ---- beside it ------------------------------------------------------------- */

static void *beside(void *arg) {
    int fd = accept(*(int *)arg, NULL, NULL);
    for (uint64_t round = 1;; round++) {
        uint64_t back = 0;
        if (send(fd, &round, sizeof round, MSG_NOSIGNAL) != sizeof round) break;
        if (recv(fd, &back, sizeof back, MSG_WAITALL) != sizeof back || back != round) break;
        progress->rounds = round;
        rest(1);
    }
    printf("BESIDE: %s\n", strerror(errno));
    exit(1);
}

static void echo(int port) {
    char bytes[64];
    int fd = connected_to(NULL, port);
    for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, 0)) > 0;)
        if (send(fd, bytes, (size_t)n, MSG_NOSIGNAL) != n) break;
}

static void survive(void) {
    int listening = listener(), aside = listener(), port;
    char line[100];
    pthread_t thread;
    printf("port %d beside %d\n", port_of(listening), port_of(aside));
    if (pthread_create(&thread, NULL, beside, &aside) != 0) die("thread");
    while (fgets(line, sizeof line, stdin)) {
        alarm(SECONDS);
        if (sscanf(line, "join %d", &port) == 1)
            dialogue(-1, port);
        else
            dialogue(listening, 0);
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(SECONDS);
    if (argc == 3 && strcmp(argv[1], "echo") == 0) {
        alarm(0);
        echo(atoi(argv[2]));
        return 0;
    }
    int file = argc > 2 ? open(argv[2], O_RDWR) : -1;
    progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || progress == MAP_FAILED) die("file");
    close(file);
    if (argc == 3 && strcmp(argv[1], "survivor") == 0) {
        survive();
    } else if (argc == 3 && strcmp(argv[1], "serve") == 0) {
        int listening = listener();
        printf("port %d\n", port_of(listening));
        return dialogue(listening, 0) ? 2 : 0;
    } else if (argc == 4 && strcmp(argv[1], "join") == 0) {
        return dialogue(-1, atoi(argv[3])) ? 2 : 0;
    }
    return 0;
}
