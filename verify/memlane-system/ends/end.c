/* One end of a connection, which does what it is told: one command a line on
 * standard input, one answer a line on standard output.
 *
 *   end listen         says "port N", then takes one connection
 *   end connect PORT   connects to 127.0.0.1
 *
 *   send SEED BYTES           "done HASH-SENT 0"
 *   take BYTES                "done 0 HASH-TAKEN"
 *   both SEED BYTES TAKEN     sends and takes at the same time: "done HASH-SENT HASH-TAKEN"
 *   close                     closes the connection, waits for nothing: "done 0 0"
 *
 * It ends with its input. What is wrong ends it with a message, a hang after a minute. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SECONDS = 60, PIECE = 50000 };

static int fd;

static void die(const char *what) {
    fprintf(stderr, "end: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* FNV-1a, over everything since `hash` was FNV. */
static const uint64_t FNV = 0xcbf29ce484222325u;

static uint64_t add(uint64_t hash, const unsigned char *bytes, size_t len) {
    for (size_t i = 0; i < len; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

/* xorshift64: the same bytes for the same seed. */
static void fill(uint64_t *state, unsigned char *bytes, size_t len) {
    for (size_t i = 0; i < len; i++) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        bytes[i] = (unsigned char)(*state >> 24);
    }
}

struct order {
    uint64_t seed;
    size_t bytes;
    uint64_t hash;
};

static void *send_all(void *arg) {
    struct order *order = arg;
    static unsigned char piece[PIECE];
    uint64_t state = order->seed * 2 + 1;
    order->hash = FNV;
    for (size_t left = order->bytes; left > 0;) {
        size_t len = left < PIECE ? left : PIECE;
        fill(&state, piece, len);
        order->hash = add(order->hash, piece, len);
        for (size_t at = 0; at < len;) {
            ssize_t n = send(fd, piece + at, len - at, MSG_NOSIGNAL);
            if (n < 0) die("send");
            at += (size_t)n;
        }
        left -= len;
    }
    return NULL;
}

static void take_all(struct order *order) {
    static unsigned char piece[PIECE];
    order->hash = FNV;
    for (size_t left = order->bytes; left > 0;) {
        ssize_t n = recv(fd, piece, left < PIECE ? left : PIECE, 0);
        if (n < 0) die("recv");
        if (n == 0) die("end of stream");
        order->hash = add(order->hash, piece, (size_t)n);
        left -= (size_t)n;
    }
}

static void open_end(int argc, char **argv) {
    struct sockaddr_in home = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof home;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (s < 0) die("socket");
    if (argc == 3 && strcmp(argv[1], "connect") == 0) {
        home.sin_port = htons((uint16_t)atoi(argv[2]));
        if (connect(s, (struct sockaddr *)&home, len) != 0) die("connect");
        fd = s;
        printf("port 0\n");
        return;
    }
    if (bind(s, (struct sockaddr *)&home, len) != 0 || listen(s, 1) != 0) die("listen");
    if (getsockname(s, (struct sockaddr *)&home, &len) != 0) die("getsockname");
    printf("port %d\n", ntohs(home.sin_port));
    fd = accept(s, NULL, NULL);
    if (fd < 0) die("accept");
    close(s);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(SECONDS);
    open_end(argc, argv);
    char line[200];
    while (fgets(line, sizeof line, stdin)) {
        struct order sent = {0}, taken = {0};
        if (strcmp(line, "close\n") == 0) {
            close(fd);
        } else if (sscanf(line, "send %" SCNu64 " %zu", &sent.seed, &sent.bytes) == 2) {
            send_all(&sent);
        } else if (sscanf(line, "take %zu", &taken.bytes) == 1) {
            take_all(&taken);
        } else if (sscanf(line, "both %" SCNu64 " %zu %zu", &sent.seed, &sent.bytes, &taken.bytes) == 3) {
            pthread_t sender;
            if (pthread_create(&sender, NULL, send_all, &sent) != 0) die("thread");
            take_all(&taken);
            pthread_join(sender, NULL);
        } else {
            errno = EINVAL;
            die(line);
        }
        printf("done %" PRIx64 " %" PRIx64 "\n", sent.hash, taken.hash);
    }
    return 0;
}
