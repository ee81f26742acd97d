/* io_uring as a program without liburing uses it: by syscall(2), with its queues mapped by itself. liburing.c has the same cases
 * by liburing. */
#include "common.h"
#ifdef BY_LIBURING
#include <liburing.h>
#else
#include <linux/io_uring.h>
#endif

static char scratch[65536];

/* --- an instance ------------------------------------------------------------------- */

#ifdef BY_LIBURING

struct uring {
    int fd;
    struct io_uring ring;
};

/* liburing's functions return errors as negative numbers. */
static long told(int result) {
    if (result >= 0) return result;
    errno = -result;
    return -1;
}

static struct uring open_uring(unsigned flags) {
    struct uring u;
    u.fd = (int)told(io_uring_queue_init(16, &u.ring, flags));
    if (u.fd < 0) say("no io_uring here");
    return u;
}

static void close_uring(struct uring *u) { io_uring_queue_exit(&u->ring); }

/* The next entry, all zero. It is the kernel's after `submit`. */
static struct io_uring_sqe *empty(struct uring *u) {
    struct io_uring_sqe *e = io_uring_get_sqe(&u->ring);
    if (!e) die("io_uring_get_sqe");
    memset(e, 0, sizeof *e);
    return e;
}

static long submit(struct uring *u, unsigned count, unsigned wait_for) {
    return told(wait_for ? io_uring_submit_and_wait(&u->ring, wait_for) : io_uring_submit(&u->ring));
}

static struct io_uring_cqe completion(struct uring *u) {
    struct io_uring_cqe *c, taken;
    while (told(io_uring_wait_cqe(&u->ring, &c)) < 0)
        if (errno != EINTR) die("io_uring_wait_cqe");
    taken = *c;
    io_uring_cqe_seen(&u->ring, c);
    return taken;
}

static long register_file(struct uring *u, const int *fd) { return told(io_uring_register_files(&u->ring, fd, 1)); }

static long unregister_file(struct uring *u) { return told(io_uring_unregister_files(&u->ring)); }

#else

struct uring {
    int fd;
    struct io_uring_params params;
    char *words;
    size_t words_len, entries_len;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *completions;
};

static _Atomic unsigned *word(struct uring *u, unsigned at) { return (_Atomic unsigned *)(u->words + at); }

static struct uring open_uring(unsigned flags) {
    struct uring u = {.params = {.flags = flags}};
    u.fd = (int)syscall(SYS_io_uring_setup, 16, &u.params);
    if (u.fd < 0) {
        say("no io_uring here");
        return u;
    }
    size_t submit = u.params.sq_off.array + u.params.sq_entries * sizeof(unsigned);
    size_t complete = u.params.cq_off.cqes + u.params.cq_entries * sizeof(struct io_uring_cqe);
    u.words_len = submit > complete ? submit : complete;
    u.entries_len = u.params.sq_entries * sizeof(struct io_uring_sqe);
    u.words = mmap(NULL, u.words_len, PROT_READ | PROT_WRITE, MAP_SHARED, u.fd, IORING_OFF_SQ_RING);
    u.entries = mmap(NULL, u.entries_len, PROT_READ | PROT_WRITE, MAP_SHARED, u.fd, IORING_OFF_SQES);
    if (u.words == MAP_FAILED || (void *)u.entries == MAP_FAILED) die("mmap");
    u.completions = (struct io_uring_cqe *)(u.words + u.params.cq_off.cqes);
    return u;
}

static void close_uring(struct uring *u) {
    munmap(u->words, u->words_len);
    munmap(u->entries, u->entries_len);
    close(u->fd);
}

/* The next entry, all zero. It is the kernel's after `submit`. */
static struct io_uring_sqe *empty(struct uring *u) {
    unsigned tail = atomic_load(word(u, u->params.sq_off.tail)), mask = *word(u, u->params.sq_off.ring_mask);
    struct io_uring_sqe *e = &u->entries[tail & mask];
    memset(e, 0, sizeof *e);
    *word(u, u->params.sq_off.array + 4 * (tail & mask)) = tail & mask;
    atomic_store(word(u, u->params.sq_off.tail), tail + 1);
    return e;
}

static long submit(struct uring *u, unsigned count, unsigned wait_for) {
    return syscall(SYS_io_uring_enter, u->fd, count, wait_for, wait_for ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
}

static struct io_uring_cqe completion(struct uring *u) {
    unsigned head = atomic_load(word(u, u->params.cq_off.head));
    while (atomic_load(word(u, u->params.cq_off.tail)) == head)
        if (submit(u, 0, 1) < 0 && errno != EINTR) die("io_uring_enter");
    struct io_uring_cqe taken = u->completions[head & *word(u, u->params.cq_off.ring_mask)];
    atomic_store(word(u, u->params.cq_off.head), head + 1);
    return taken;
}

static long register_file(struct uring *u, const int *fd) {
    return syscall(SYS_io_uring_register, u->fd, IORING_REGISTER_FILES, fd, 1);
}

static long unregister_file(struct uring *u) {
    return syscall(SYS_io_uring_register, u->fd, IORING_UNREGISTER_FILES, NULL, 0);
}

#endif

static struct io_uring_sqe *entry(struct uring *u, int op, int fd, const void *addr, unsigned len, uint64_t number) {
    struct io_uring_sqe *e = empty(u);
    e->opcode = (uint8_t)op;
    e->fd = fd;
    e->addr = (uint64_t)(uintptr_t)addr;
    e->len = len;
    e->user_data = number;
    return e;
}

/* Takes `count` completions, and writes them down in the order of their numbers. */
static void completions(struct uring *u, unsigned count) {
    int results[32];
    bool known[32] = {false};
    for (unsigned i = 0; i < count; i++) {
        struct io_uring_cqe c = completion(u);
        if (c.user_data >= 32) die("a completion of nothing");
        results[c.user_data] = c.res;
        known[c.user_data] = true;
    }
    for (int i = 0; i < 32; i++)
        if (known[i]) say("  %d: %d %s", i, results[i] < 0 ? -1 : results[i], results[i] < 0 ? errname(-results[i]) : "");
}

static void one(struct uring *u) {
    R(submit(u, 1, 1));
    completions(u, 1);
}

/* Five bytes wait to be read, wherever they lie. */
static void five_bytes(int fd) {
    tell_text("bytes");
    settle(fd, 5);
}

static void with_uring(void (*what)(struct uring *u, int fd)) {
    int fd = pair();
    struct uring u = open_uring(0);
    if (u.fd >= 0) {
        what(&u, fd);
        close_uring(&u);
    }
    exchange(fd);
    finish();
}

/* --- sets ----------------------------------------------------------------------------- */

static void ctl(struct uring *u, int ep, int op, int fd, struct epoll_event *event, uint64_t number) {
    entry(u, IORING_OP_EPOLL_CTL, ep, event, (unsigned)op, number)->off = (uint64_t)fd;
}

static void report(int ep, int limit) {
    struct epoll_event got[4];
    int n = (int)R(epoll_wait(ep, got, 4, limit));
    for (int i = 0; i < n; i++) say("%d: %s", got[i].data.fd, events(got[i].events));
}

static void changes_of_a_set(struct uring *u, int fd) {
    int ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event in = {EPOLLIN, {.fd = 1}}, both = {EPOLLIN | EPOLLOUT, {.fd = 2}};
    ctl(u, ep, EPOLL_CTL_ADD, fd, &in, 0);
    ctl(u, ep, EPOLL_CTL_ADD, fd, &in, 1);
    ctl(u, ep, EPOLL_CTL_MOD, fd, &both, 2);
    R(submit(u, 3, 3));
    completions(u, 3);
    report(ep, 1000);
    ctl(u, ep, EPOLL_CTL_DEL, fd, NULL, 3);
    ctl(u, ep, EPOLL_CTL_DEL, fd, NULL, 4);
    ctl(u, ep, EPOLL_CTL_MOD, fd, &in, 5);
    ctl(u, ep, EPOLL_CTL_ADD, -1, &in, 6);
    ctl(u, ep, EPOLL_CTL_ADD, fd, &in, 7);
    R(submit(u, 5, 5));
    completions(u, 5);
    report(ep, 0);
    five_bytes(fd);
    report(ep, 1000);
    take(fd, 5);
    report(ep, 0);
    close(ep);
}

/* What libuv does: changes by io_uring, waits by epoll, bytes by read and write. */
static void a_loop(struct uring *u, int fd) {
    int ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN, {.fd = fd}}, got;
    ctl(u, ep, EPOLL_CTL_ADD, fd, &event, 0);
    one(u);
    for (int i = 0; i < 200; i++) {
        if (write(fd, "question", 8) != 8) die("write");
        order(P_ECHO, 8);
        for (int have = 0; have < 8;) {
            if (epoll_wait(ep, &got, 1, PATIENCE_MS) != 1) die("epoll_wait");
            have += (int)read(fd, scratch, sizeof scratch);
        }
        done();
        event.events = i % 2 ? EPOLLIN : EPOLLIN | EPOLLRDHUP;
        ctl(u, ep, EPOLL_CTL_MOD, fd, &event, 0);
        if (submit(u, 1, 1) != 1) die("io_uring_enter");
        completion(u);
    }
    say("200 answers");
    ctl(u, ep, EPOLL_CTL_DEL, fd, NULL, 1);
    one(u);
    close(ep);
}

static void a_set_that_io_uring_waits_for(struct uring *u, int fd) {
    int ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN, {.fd = 5}};
    R(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
    entry(u, IORING_OP_POLL_ADD, ep, NULL, 0, 0)->poll32_events = POLLIN;
    R(submit(u, 1, 0));
    tell_text("bytes");
    completions(u, 1);
    report(ep, 1000);
    take(fd, 5);
    close(ep);
}

/* --- bytes ----------------------------------------------------------------------------- */

static void bytes_that_wait(struct uring *u, int fd) {
    five_bytes(fd);
    entry(u, IORING_OP_RECV, fd, scratch, 2, 0);
    one(u);
    say_bytes("received", scratch, 2);
    entry(u, IORING_OP_RECV, fd, scratch, 100, 1)->msg_flags = MSG_PEEK;
    one(u);
    say_bytes("peeked", scratch, 3);
    entry(u, IORING_OP_READ, fd, scratch, 1, 2);
    one(u);
    say_bytes("read", scratch, 1);
    char rest[100];
    struct iovec v[2] = {{scratch, 1}, {rest, sizeof rest}};
    entry(u, IORING_OP_READV, fd, v, 2, 3);
    one(u);
    say_bytes("read in two", rest, 1);
    five_bytes(fd);
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    entry(u, IORING_OP_RECVMSG, fd, &m, 1, 4);
    one(u);
    say("flags %x name %u control %zu", m.msg_flags, m.msg_namelen, (size_t)m.msg_controllen);
    say_bytes("received in two", rest, 4);
}

static void bytes_that_come_later(struct uring *u, int fd) {
    entry(u, IORING_OP_RECV, fd, scratch, 100, 0);
    R(submit(u, 1, 0));
    tell_text("later");
    completions(u, 1);
    say_bytes("received", scratch, 5);
}

static void many_bytes(struct uring *u, int fd) {
    tell(P_SEND, 60000);
    settle(fd, 60000);
    long all = 0;
    while (all < 60000) {
        entry(u, IORING_OP_RECV, fd, scratch + all, 7000, 0);
        if (submit(u, 1, 1) != 1) die("io_uring_enter");
        int n = completion(u).res;
        if (n <= 0) die("recv");
        all += n;
    }
    say_bytes("all", scratch, all);
}

static void sent_bytes(struct uring *u, int fd) {
    if (write(fd, "first ", 6) != 6) die("write");
    entry(u, IORING_OP_SEND, fd, "second ", 7, 0);
    one(u);
    struct iovec v[2] = {{"third ", 6}, {"fourth ", 7}};
    entry(u, IORING_OP_WRITEV, fd, v, 2, 1);
    one(u);
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 1};
    entry(u, IORING_OP_SENDMSG, fd, &m, 1, 2);
    one(u);
    if (write(fd, "last", 4) != 4) die("write");
    tell(P_TAKE, 36);
}

static void a_chain(struct uring *u, int fd) {
    five_bytes(fd);
    entry(u, IORING_OP_SEND, fd, "sent", 4, 0)->flags = IOSQE_IO_LINK;
    entry(u, IORING_OP_RECV, fd, scratch, 5, 1)->flags = IOSQE_IO_LINK;
    entry(u, IORING_OP_NOP, -1, NULL, 0, 2);
    R(submit(u, 3, 3));
    completions(u, 3);
    say_bytes("received", scratch, 5);
    tell(P_TAKE, 4);
}

static void a_registered_descriptor(struct uring *u, int fd) {
    five_bytes(fd);
    R(register_file(u, &fd));
    take(fd, 5);
    entry(u, IORING_OP_SEND, 0, "by index", 8, 0)->flags = IOSQE_FIXED_FILE;
    one(u);
    tell(P_TAKE, 8);
    entry(u, IORING_OP_RECV, 0, scratch, 100, 1)->flags = IOSQE_FIXED_FILE;
    R(submit(u, 1, 0));
    tell_text("answer");
    completions(u, 1);
    say_bytes("received", scratch, 6);
    R(unregister_file(u));
}

/* --- waiting, ending --------------------------------------------------------------------- */

static void polls(struct uring *u, int fd) {
    entry(u, IORING_OP_POLL_ADD, fd, NULL, 0, 0)->poll32_events = POLLIN | POLLOUT;
    R(submit(u, 1, 1));
    completions(u, 1);
    entry(u, IORING_OP_POLL_ADD, fd, NULL, 0, 1)->poll32_events = POLLIN;
    R(submit(u, 1, 0));
    tell_text("later");
    completions(u, 1);
    take(fd, 5);
}

static void a_poll_for_bytes_that_wait(struct uring *u, int fd) {
    five_bytes(fd);
    entry(u, IORING_OP_POLL_ADD, fd, NULL, 0, 0)->poll32_events = POLLIN;
    one(u);
    take(fd, 5);
}

static void another_instance_for_files(struct uring *u, int fd) {
    int file = memfd_create("file", MFD_CLOEXEC);
    if (write(file, "in a file", 9) != 9) die("write");
    struct uring wide = open_uring(IORING_SETUP_SQE128);
    entry(u, IORING_OP_READ, file, scratch, 9, 0);
    one(u);
    say_bytes("read", scratch, 9);
    close(file);
    exchange(fd);
    if (wide.fd >= 0) close_uring(&wide);
}

static void an_end_by(int op) {
    int fd = pair();
    struct uring u = open_uring(0);
    if (u.fd < 0) {
        finish();
        return;
    }
    if (write(fd, "the last bytes", 14) != 14) die("write");
    entry(&u, op, fd, NULL, op == IORING_OP_SHUTDOWN ? SHUT_WR : 0, 0);
    one(&u);
    tell(P_DRAIN, 0);
    if (op == IORING_OP_CLOSE) {
        R(write(fd, "x", 1));
    } else {
        tell_text("an answer");
        take(fd, 9);
    }
    close_uring(&u);
    finish();
}

#define CASE(name) static void name##_case(void) { with_uring(name); }
CASE(changes_of_a_set)
CASE(a_loop)
CASE(a_set_that_io_uring_waits_for)
CASE(bytes_that_wait)
CASE(bytes_that_come_later)
CASE(many_bytes)
CASE(sent_bytes)
CASE(a_chain)
CASE(a_registered_descriptor)
CASE(polls)
CASE(a_poll_for_bytes_that_wait)
CASE(another_instance_for_files)
static void a_close_case(void) { an_end_by(IORING_OP_CLOSE); }
static void a_shutdown_case(void) { an_end_by(IORING_OP_SHUTDOWN); }

const struct one_case cases[] = {
    {"changes-of-a-set", changes_of_a_set_case, 0},
    {"a-loop", a_loop_case, 0},
    {"a-set-that-io-uring-waits-for", a_set_that_io_uring_waits_for_case, 0},
    {"bytes-that-wait", bytes_that_wait_case, 0},
    {"bytes-that-come-later", bytes_that_come_later_case, 0},
    {"many-bytes", many_bytes_case, 0},
    {"sent-bytes", sent_bytes_case, 0},
    {"a-chain", a_chain_case, 0},
    {"a-registered-descriptor", a_registered_descriptor_case, 0},
    {"polls", polls_case, 0},
    {"a-poll-for-bytes-that-wait", a_poll_for_bytes_that_wait_case, 0},
    {"another-instance-for-files", another_instance_for_files_case, 0},
    {"a-close", a_close_case, 0},
    {"a-shutdown", a_shutdown_case, 0},
    {NULL, NULL, 0},
};
