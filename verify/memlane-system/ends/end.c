/* One end of a connection, which does what it is told: one command a line on
 * standard input, one answer a line on standard output.
 *
 *   end listen [ADDRESS]         says "port N", then takes one connection
 *   end connect PORT [ADDRESS]   connects; the address is 127.0.0.1 unless another is named
 *
 *   send SEED BYTES           "done HASH-SENT 0"
 *   take BYTES                "done 0 HASH-TAKEN"
 *   both SEED BYTES TAKEN     sends and takes at the same time: "done HASH-SENT HASH-TAKEN"
 *   wait                      until the other end has sent something: "done 0 0"
 *   spoil numbers             takes all descriptor numbers of the library by dup2: "done 0 0"
 *   spoil looked              fails unless those are the program's, and nobody has read from them: "done 0 0"
 *   spoil WHAT                does what the memory lane does not carry (below): "done 0 0"
 *
 * It ends with its input. What is wrong ends it with a message, a hang after a minute, or after END_SECONDS. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SECONDS = 60, PIECE = 50000 };

static int fd;

static void die(const char *what) {
    fprintf(stderr, "end: %s: %s\n", what, strerror(errno));
    exit(1);
}

#include "filters.h"

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

/* A copy of the connection, on its way to somebody else. */
static void pass_on(void) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) die("socketpair");
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof fd)];
    } control = {0};
    char byte = 0;
    struct iovec iov = {&byte, 1};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    control.header.cmsg_len = CMSG_LEN(sizeof fd);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    if (sendmsg(pair[0], &message, 0) != 1) die("sendmsg");
}

/* A child that holds the connection too, for as long as we live. */
static void share(void) {
    int pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
}

/* A hundred bytes that no library sees. */
static void send_unseen(void) {
    static char bytes[100];
    if (unseen(SYS_write, fd, (long)bytes, sizeof bytes) != (long)sizeof bytes) die("write");
}

/* A filter that allows everything. */
static void sandbox(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) die("no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0) die("seccomp");
}

static void send_signals(void) {
    if (signal(SIGIO, SIG_IGN) == SIG_ERR || fcntl(fd, F_SETOWN, getpid()) != 0) die("F_SETOWN");
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC) != 0) die("O_ASYNC");
}

/* Not one descriptor more than there are. */
static void no_descriptors(void) {
    int next = dup(0);
    struct rlimit limit;
    if (next < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) die("dup");
    close(next);
    limit.rlim_cur = (rlim_t)next;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) die("setrlimit");
}

/* Eight megabytes more than there are: enough for a thread, not for 64 rings. */
static void no_memory(void) {
    unsigned long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu", &pages) != 1) die("statm");
    fclose(file);
    rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (8 << 20);
    struct rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) die("setrlimit");
}

/* Nonsense into all words that the other end reads, and into our own. */
static void scribble(void) {
    enum { WORDS = 64 << 10 };
    char line[400];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) die("maps");
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (!strstr(line, "/memfd:memlane-dmb") || sscanf(line, "%lx-%lx", &start, &end) != 2) continue;
        memset((void *)start, 0xff, end - start < WORDS ? end - start : WORDS);
        found++;
    }
    fclose(maps);
    if (found == 0) die("no rings");
}

/* Numbers that the library had, and that are ours now: at each of them a message waits. */
enum { MOST_NUMBERS = 64 };
static int numbers[MOST_NUMBERS], number_count;

static void take_numbers(void) {
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) die("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(dir)) && number_count < MOST_NUMBERS;) {
        int n = atoi(entry->d_name);
        if (n > 2 && n != fd && n != dirfd(dir)) numbers[number_count++] = n;
    }
    closedir(dir);
    for (int i = 0; i < number_count; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0) die("socketpair");
        if (send(pair[0], "mine", 4, 0) != 4) die("send");
        if (dup2(pair[1], numbers[i]) != numbers[i]) die("dup2");
        close(pair[0]); /* what it has said waits */
        close(pair[1]);
    }
}

/* Each message is still there, and so is each number. */
static void look_at_numbers(void) {
    char bytes[8];
    if (number_count == 0) die("no numbers");
    for (int i = 0; i < number_count; i++) {
        if (recv(numbers[i], bytes, sizeof bytes, MSG_DONTWAIT) != 4) die("somebody else has read from it");
        if (close(numbers[i]) != 0) die("somebody else has closed it");
    }
    number_count = 0;
}

/* A thread of the kernel takes what is submitted: no call tells which descriptors. */
static void polled_by_the_kernel(void) {
    struct io_uring_params params = {.flags = IORING_SETUP_SQPOLL};
    /* Where setting it up is forbidden, entering one that nobody knows says as much. */
    if (syscall(SYS_io_uring_setup, 1, &params) < 0) syscall(SYS_io_uring_enter, -1, 1, 0, 0, NULL, 0);
}

/* Asks for one poll of the connection. */
static void poll_by_uring(void) {
    struct io_uring_params params = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 1, &params);
    if (ring < 0) die("io_uring_setup");
    size_t len = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    char *words = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entry = mmap(NULL, sizeof *entry, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (words == MAP_FAILED || (void *)entry == MAP_FAILED) die("mmap");
    *entry = (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = fd, .poll32_events = POLLOUT};
    *(unsigned *)(words + params.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(words + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1) die("io_uring_enter");
    close(ring);
}

static void spoil(const char *what) {
    int on = 1;
    if (strcmp(what, "option") == 0) {
        if (setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) != 0) die("setsockopt");
    } else if (strcmp(what, "times") == 0) {
        char byte;
        struct iovec v = {&byte, 1};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) != 0) die("setsockopt");
        recvmsg(fd, &m, MSG_PEEK | MSG_DONTWAIT);
    } else if (strcmp(what, "urgent") == 0) {
        if (send(fd, "!", 1, MSG_OOB) != 1) die("send");
    } else if (strcmp(what, "fork") == 0) {
        share();
    } else if (strcmp(what, "pass") == 0) {
        pass_on();
    } else if (strcmp(what, "stdio") == 0) {
        if (dup2(fd, 2) != 2) die("dup2");
    } else if (strcmp(what, "signals") == 0) {
        send_signals();
    } else if (strcmp(what, "unseen") == 0) {
        send_unseen();
    } else if (strcmp(what, "sandbox") == 0) {
        sandbox();
    } else if (strcmp(what, "uring") == 0) {
        polled_by_the_kernel();
    } else if (strcmp(what, "uring-op") == 0) {
        poll_by_uring();
    } else if (strcmp(what, "descriptors") == 0) {
        no_descriptors();
    } else if (strcmp(what, "memory") == 0) {
        no_memory();
    } else if (strcmp(what, "strict") == 0) {
        strict();
    } else if (strcmp(what, "nomemfd") == 0) {
        fail_unseen(SYS_memfd_create, -1, EPERM);
    } else if (strcmp(what, "nounix") == 0) {
        fail_unseen(SYS_socket, AF_UNIX, EPERM);
    } else if (strcmp(what, "noproc") == 0) {
        fail_unseen(SYS_openat, -1, ENOENT);
    } else if (strcmp(what, "norandom") == 0) {
        fail_unseen(SYS_getrandom, -1, ENOSYS);
    } else if (strcmp(what, "fsize") == 0) {
        limit(RLIMIT_FSIZE, 4096);
    } else if (strcmp(what, "scribble") == 0) {
        scribble();
    } else if (strcmp(what, "numbers") == 0) {
        take_numbers();
    } else if (strcmp(what, "looked") == 0) {
        look_at_numbers();
    } else if (strcmp(what, "end") == 0) {
        if (shutdown(fd, SHUT_WR) != 0) die("shutdown");
    } else {
        errno = EINVAL;
        die(what);
    }
}

/* An address of either family; without one, 127.0.0.1. */
static socklen_t address(const char *text, int port, struct sockaddr_storage *to) {
    struct sockaddr_in *v4 = (struct sockaddr_in *)to;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;
    memset(to, 0, sizeof *to);
    if (text && inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        return sizeof *v6;
    }
    v4->sin_family = AF_INET;
    v4->sin_port = htons((uint16_t)port);
    v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (text && inet_pton(AF_INET, text, &v4->sin_addr) != 1) die(text);
    return sizeof *v4;
}

static void open_end(int argc, char **argv) {
    struct sockaddr_storage at;
    if (argc >= 3 && strcmp(argv[1], "connect") == 0) {
        socklen_t len = address(argc > 3 ? argv[3] : NULL, atoi(argv[2]), &at);
        fd = socket(at.ss_family, SOCK_STREAM, 0);
        if (fd < 0) die("socket");
        if (connect(fd, (struct sockaddr *)&at, len) != 0) die("connect");
        printf("port 0\n");
        return;
    }
    socklen_t len = address(argc > 2 ? argv[2] : NULL, 0, &at);
    int s = socket(at.ss_family, SOCK_STREAM, 0);
    if (s < 0) die("socket");
    if (bind(s, (struct sockaddr *)&at, len) != 0 || listen(s, 1) != 0) die("listen");
    if (getsockname(s, (struct sockaddr *)&at, &len) != 0) die("getsockname");
    printf("port %d\n", ntohs(((struct sockaddr_in *)&at)->sin_port));
    fd = accept(s, NULL, NULL);
    if (fd < 0) die("accept");
    close(s);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *seconds = getenv("END_SECONDS");
    alarm(seconds ? (unsigned)atoi(seconds) : SECONDS);
    open_end(argc, argv);
    char line[200];
    while (fgets(line, sizeof line, stdin)) {
        struct order sent = {0}, taken = {0};
        char what[20];
        if (strcmp(line, "wait\n") == 0) {
            if (recv(fd, what, 1, MSG_PEEK) < 0) die("recv");
        } else if (sscanf(line, "spoil %19s", what) == 1) {
            spoil(what);
        } else if (sscanf(line, "send %" SCNu64 " %zu", &sent.seed, &sent.bytes) == 2) {
            send_all(&sent);
        } else if (sscanf(line, "take %zu", &taken.bytes) == 1) {
            take_all(&taken);
        } else if (sscanf(line, "both %" SCNu64 " %zu %zu", &sent.seed, &sent.bytes, &taken.bytes) == 3) {
            pthread_t sender;
            pthread_attr_t small;
            pthread_attr_init(&small);
            pthread_attr_setstacksize(&small, 256 << 10);
            if (pthread_create(&sender, &small, send_all, &sent) != 0) die("thread");
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
