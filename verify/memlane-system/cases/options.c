/* Socket options, time limits, counts, flags, and what the kernel says of the connection. */
#include "common.h"

static char scratch[65536];
enum { W = 5 };

static void set_int(int fd, int level, int name, int value) {
    if (setsockopt(fd, level, name, &value, sizeof value) < 0) say("setsockopt: %s", errname(errno));
}
static int get_int(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    if (getsockopt(fd, level, name, &value, &len) < 0) say("getsockopt: %s", errname(errno));
    return value;
}
static void time_limit(int fd, int name, long us) {
    struct timeval t = {us / 1000000, us % 1000000};
    if (setsockopt(fd, SOL_SOCKET, name, &t, sizeof t) < 0) say("time limit: %s", errname(errno));
}

static void receive_time_limit(void) {
    int fd = pair();
    time_limit(fd, SO_RCVTIMEO, 30000);
    long before = now_ms();
    R(recv(fd, scratch, 10, 0));
    say("waited at least: %d", now_ms() - before >= 29);
    R(read(fd, scratch, 10));
    tell_text("abc");
    settle(fd, 3);
    R(recv(fd, scratch, 10, MSG_WAITALL)); /* what there was, when time is up */
    R(recv(fd, scratch, 10, MSG_WAITALL));
    struct timeval t = {9, 9};
    socklen_t len = sizeof t;
    R(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, &len));
    say("limit %ld s %d", (long)t.tv_sec, t.tv_usec > 0 && t.tv_usec <= 40000);
    time_limit(fd, SO_RCVTIMEO, 5000000);
    exchange(fd);
    finish();
}

static void limited_recv(int fd) {
    time_limit(fd, SO_RCVTIMEO, 8000000);
    long r = R(recv(fd, scratch, 10, 0));
    if (r > 0) say_bytes("got", scratch, r);
}
static void receive_limit_is_not_reached(void) {
    int fd = pair();
    pthread_t t = thread_actor(W, limited_recv, fd);
    until_asleep(W);
    tell_text("in time");
    pthread_join(t, NULL);
    finish();
}

static void send_time_limit(void) {
    int fd = pair();
    time_limit(fd, SO_SNDTIMEO, 30000);
    memset(scratch, 'x', sizeof scratch);
    long total = 0, r;
    while ((r = send(fd, scratch, sizeof scratch, 0)) > 0) total += r;
    say("full: %s", errname(errno));
    order(P_TAKE, total);
    poll_for(fd, POLLOUT);
    send_all(fd, "z", 1);
    done();
    arena->actors[1].len = 0; /* the amount varies */
    tell(P_TAKE, 1);
    exchange(fd);
    finish();
}

static void low_water_mark(void) {
    int fd = pair(), ep = epoll_create1(0);
    struct epoll_event ev = {EPOLLIN, {.fd = fd}};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
    set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 10);
    say("mark %d", get_int(fd, SOL_SOCKET, SO_RCVLOWAT));
    struct pollfd p = {fd, POLLIN, 0};
    tell_text("12345");
    settle(fd, 5);
    R(poll(&p, 1, 0));
    R(epoll_wait(ep, &ev, 1, 0));
    R(recv(fd, scratch, 2, MSG_DONTWAIT));
    tell_text("67890ab");
    settle(fd, 10);
    R(poll(&p, 1, 1000));
    R(epoll_wait(ep, &ev, 1, 1000));
    R(recv(fd, scratch, 4, 0));
    R(poll(&p, 1, 0));
    R(recv(fd, scratch, 10, MSG_DONTWAIT));
    set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    exchange(fd);
    finish();
}

static void marked_recv(int fd) {
    long r = R(recv(fd, scratch, 100, 0));
    if (r > 0) say_bytes("got", scratch, r);
}
static void low_water_mark_holds_a_recv(void) {
    int fd = pair();
    set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 10);
    pthread_t t = thread_actor(W, marked_recv, fd);
    until_asleep(W);
    tell_text("12345");
    until_asleep(W);
    tell_text("67890");
    pthread_join(t, NULL);
    set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    exchange(fd);
    finish();
}

static void unread_and_unsent_counts(void) {
    int fd = pair(), n = -1;
    R(ioctl(fd, FIONREAD, &n));
    say("unread %d", n);
    tell(P_SEND, 7000);
    settle(fd, 7000);
    R(ioctl(fd, SIOCINQ, &n));
    say("unread %d", n);
    take(fd, 3000);
    R(ioctl(fd, FIONREAD, &n));
    say("unread %d", n);
    take(fd, 4000);
    R(ioctl(fd, FIONREAD, &n));
    say("unread %d", n);
    send_n(fd, 5000, 1);
    /* The peer's kernel has it: nothing is unacknowledged, though nobody has read it. */
    for (int i = 0; i < 2000 && (ioctl(fd, SIOCOUTQ, &n) < 0 || n); i++) nap_ms(1);
    say("unsent %d", n);
    R(ioctl(fd, SIOCOUTQNSD, &n));
    say("not sent %d", n);
    tell(P_TAKE, 5000);
    tell(P_SHUT, SHUT_WR);
    poll_for(fd, POLLRDHUP);
    R(ioctl(fd, FIONREAD, &n));
    say("unread at the end %d", n);
    finish();
}

/* Receives some bytes, with room for some control data, and tells what came. */
static void received_with_count(int fd, size_t bytes, size_t room, int flags) {
    char control[64];
    memset(control, 'c', sizeof control);
    struct iovec v = {scratch, bytes};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
    R(recvmsg(fd, &m, flags));
    int left = -1;
    memcpy(&left, control + sizeof(struct cmsghdr), sizeof left);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    say("flags %x, control %zu, of %zu", m.msg_flags, (size_t)m.msg_controllen, c ? (size_t)c->cmsg_len : 0);
    if (c) say("level %d, type %d, left %x", c->cmsg_level, c->cmsg_type, (unsigned)left);
}

static void count_in_a_control_message(void) {
    int fd = pair();
    set_int(fd, IPPROTO_TCP, TCP_INQ, 2);
    set_int(fd, IPPROTO_TCP, TCP_INQ, 1);
    tell_text("0123456789abcdefghij");
    settle(fd, 20);
    received_with_count(fd, 4, 64, 0);
    received_with_count(fd, 4, 64, MSG_PEEK);
    received_with_count(fd, 1, 24, 0);
    received_with_count(fd, 1, 20, 0);
    received_with_count(fd, 1, 18, 0);
    received_with_count(fd, 1, 16, 0);
    received_with_count(fd, 1, 8, 0);
    received_with_count(fd, 1, 0, 0);
    received_with_count(fd, 100, 64, 0);
    received_with_count(fd, 100, 64, MSG_DONTWAIT);
    exchange(fd);
    tell_text("more");
    settle(fd, 4);
    set_int(fd, IPPROTO_TCP, TCP_INQ, 0);
    received_with_count(fd, 1, 64, 0);
    set_int(fd, IPPROTO_TCP, TCP_INQ, 1);
    received_with_count(fd, 1, 64, 0);
    tell(P_SHUT, SHUT_WR);
    poll_for(fd, POLLRDHUP);
    received_with_count(fd, 1, 64, 0);
    received_with_count(fd, 100, 64, 0);
    received_with_count(fd, 100, 64, 0);
    finish();
}

/* A hundred bytes, to and fro, so that the lane opens. */
static void to_and_fro(int fd, bool starts) {
    char byte;
    for (int i = 0; i < 100; i++) {
        byte = (char)i;
        if (starts == (i % 2 == 0)) send_all(fd, &byte, 1);
        else if (recv_all(fd, &byte, 1) != 1 || byte != (char)i) say("byte %d: wrong", i);
    }
}

/* A connection whose listener has this option, with an open lane. */
static int accept_from_listener_with(int level, int option, int value, void (*peer)(int), int *child) {
    int listener = listen_any();
    set_int(listener, level, option, value);
    *child = fork_actor(1, peer, bound_port(listener));
    int fd = accept_one(listener);
    to_and_fro(fd, false);
    return fd;
}

static void sends_ten(int port) {
    int fd = connect_port(port);
    to_and_fro(fd, true);
    send_text(fd, "0123456789");
    if (recv_all(fd, scratch, 1) != 1) die("recv");
    close(fd);
}

static void count_that_comes_from_the_listener(void) {
    int child, fd = accept_from_listener_with(IPPROTO_TCP, TCP_INQ, 1, sends_ten, &child);
    settle(fd, 10);
    received_with_count(fd, 4, 64, 0);
    take(fd, 6);
    send_text(fd, "!");
    say_wait("child", child);
}

/* Receives some bytes, with room for some control data, and tells what came with them: the time is that of now. */
static void received_with_time(int fd, size_t bytes, size_t room, int flags) {
    struct {
        struct cmsghdr header;
        long seconds, rest;
        char more[40];
    } control;
    memset(&control, 'c', sizeof control);
    struct iovec v = {scratch, bytes};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = room};
    struct timespec now;
    R(recvmsg(fd, &m, flags));
    clock_gettime(CLOCK_REALTIME, &now);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    say("flags %x, control %zu, of %zu", m.msg_flags, (size_t)m.msg_controllen, c ? (size_t)c->cmsg_len : 0);
    if (!c) return;
    say("level %d, type %d", c->cmsg_level, c->cmsg_type);
    if (c->cmsg_len < CMSG_LEN(16) || c->cmsg_level != SOL_SOCKET) return;
    bool is_whole = c->cmsg_type == SO_TIMESTAMP;
    long limit = is_whole ? 1000000 : 1000000000, ago = now.tv_sec - control.seconds;
    say("recent %d, rest %d", ago >= 0 && ago < 10, control.rest >= 0 && control.rest < limit);
    if ((c = CMSG_NXTHDR(&m, c))) say("then level %d, type %d, of %zu", c->cmsg_level, c->cmsg_type, (size_t)c->cmsg_len);
}

/* The kernel notes times only while a socket asks for them, and begins a little later. */
static void have_times_noted(void) {
    set_int(socket(AF_INET, SOCK_STREAM, 0), SOL_SOCKET, SO_TIMESTAMP, 1);
    nap_ms(200);
}

static void times_in_control_messages(void) {
    int fd = pair();
    tell_text("a");
    settle(fd, 1);
    received_with_time(fd, 1, 64, 0); /* nobody has asked */
    set_int(fd, SOL_SOCKET, SO_TIMESTAMP, 1);
    have_times_noted();
    tell_text("0123456789");
    settle(fd, 10);
    say("asked %d %d", get_int(fd, SOL_SOCKET, SO_TIMESTAMP), get_int(fd, SOL_SOCKET, SO_TIMESTAMPNS));
    received_with_time(fd, 1, 64, MSG_PEEK);
    received_with_time(fd, 1, 64, 0);
    received_with_time(fd, 1, 32, 0);
    received_with_time(fd, 1, 31, 0);
    received_with_time(fd, 1, 20, 0);
    received_with_time(fd, 1, 16, 0);
    received_with_time(fd, 1, 8, 0);
    received_with_time(fd, 1, 0, 0);
    set_int(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
    set_int(fd, IPPROTO_TCP, TCP_INQ, 1);
    received_with_time(fd, 1, 80, 0);
    received_with_time(fd, 1, 40, 0);
    set_int(fd, SOL_SOCKET, SO_TIMESTAMPNS, 0);
    received_with_time(fd, 1, 80, 0);
    exchange(fd);
    set_int(fd, SOL_SOCKET, SO_TIMESTAMP, 1);
    tell_text("more");
    settle(fd, 4);
    received_with_time(fd, 1, 80, 0);
    received_with_time(fd, 100, 80, 0);
    received_with_time(fd, 100, 80, MSG_DONTWAIT);
    tell(P_SHUT, SHUT_WR);
    poll_for(fd, POLLRDHUP);
    received_with_time(fd, 100, 80, 0);
    finish();
}

static void times_that_come_from_the_listener(void) {
    have_times_noted();
    int child, fd = accept_from_listener_with(SOL_SOCKET, SO_TIMESTAMPNS, 1, sends_ten, &child);
    settle(fd, 10);
    received_with_time(fd, 4, 64, 0);
    take(fd, 6);
    send_text(fd, "!");
    say_wait("child", child);
}

/* As iperf 2 does. */
static void asks_for_times(int port) {
    int fd = connect_port(port);
    set_int(fd, SOL_SOCKET, SO_TIMESTAMP, 1);
    to_and_fro(fd, true);
    if (recv_all(fd, scratch, 1) != 1) die("recv");
    close(fd);
}

static void times_that_nobody_reads(void) {
    int child, fd = accept_from_listener_with(SOL_SOCKET, SO_TIMESTAMP, 1, asks_for_times, &child);
    send_text(fd, "!");
    say_wait("child", child);
}

static void names_of_both_ends(void) {
    int fd = pair();
    union address own, other;
    socklen_t a = sizeof own, b = sizeof other;
    R(getsockname(fd, &own.any, &a));
    R(getpeername(fd, &other.any, &b));
    say("%s %s %u %u ports differ %d", inet_ntoa(own.v4.sin_addr), inet_ntoa(other.v4.sin_addr), a, b,
        own.v4.sin_port != other.v4.sin_port && own.v4.sin_port && other.v4.sin_port);
    tell(P_CLOSE, 0);
    poll_for(fd, POLLRDHUP);
    R(getpeername(fd, &other.any, &b));
    finish();
}

static void what_the_kernel_says(void) {
    int fd = pair();
    say("type %d domain %d protocol %d listening %d error %d", get_int(fd, SOL_SOCKET, SO_TYPE),
        get_int(fd, SOL_SOCKET, SO_DOMAIN), get_int(fd, SOL_SOCKET, SO_PROTOCOL),
        get_int(fd, SOL_SOCKET, SO_ACCEPTCONN), get_int(fd, SOL_SOCKET, SO_ERROR));
    struct tcp_info info;
    socklen_t len = sizeof info;
    R(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("state %d", info.tcpi_state);
    tell(P_SHUT, SHUT_WR);
    poll_for(fd, POLLRDHUP);
    len = sizeof info;
    R(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("state %d", info.tcpi_state);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 7);
    say("keepalive %d %d", get_int(fd, SOL_SOCKET, SO_KEEPALIVE), get_int(fd, IPPROTO_TCP, TCP_KEEPIDLE));
    set_int(fd, SOL_SOCKET, SO_SNDBUF, 20000);
    set_int(fd, SOL_SOCKET, SO_RCVBUF, 20000);
    say("buffers %d %d", get_int(fd, SOL_SOCKET, SO_SNDBUF), get_int(fd, SOL_SOCKET, SO_RCVBUF));
    R(setsockopt(fd, SOL_SOCKET, 9999, &len, sizeof len));
    send_text(fd, "x");
    tell(P_TAKE, 1);
    finish();
}

static void small_buffers_carry_much(void) {
    int fd = pair();
    set_int(fd, SOL_SOCKET, SO_SNDBUF, 32768);
    set_int(fd, SOL_SOCKET, SO_RCVBUF, 32768);
    order(P_ECHO, 200000);
    pthread_t t = thread_actor(W, drain, fd);
    send_n(fd, 200000, 4);
    done();
    tell(P_SHUT, SHUT_WR);
    pthread_join(t, NULL);
    finish();
}

static void nonblocking_toggled_in_midway(void) {
    int fd = pair();
    for (int i = 0; i < 3; i++) {
        set_nonblocking(fd, true);
        R(recv(fd, scratch, 1, 0));
        R(fcntl(fd, F_GETFL) == (O_RDWR | O_NONBLOCK));
        tell_text("x");
        settle(fd, 1);
        R(recv(fd, scratch, 1, 0));
        set_nonblocking(fd, false);
        R(fcntl(fd, F_GETFL) == O_RDWR);
        pthread_t t = thread_actor(W, marked_recv, fd);
        until_asleep(W);
        tell_text("y");
        pthread_join(t, NULL);
    }
    exchange(fd);
    finish();
}

static void nonblocking_by_ioctl(void) {
    int fd = pair(), on = 1, off = 0;
    R(ioctl(fd, FIONBIO, &on));
    R(recv(fd, scratch, 1, 0));
    R(fcntl(fd, F_GETFL) & O_NONBLOCK);
    R(ioctl(fd, FIONBIO, &off));
    pthread_t t = thread_actor(W, marked_recv, fd);
    until_asleep(W);
    tell_text("y");
    pthread_join(t, NULL);
    R(ioctl(fd, FIOCLEX));
    R(fcntl(fd, F_GETFD));
    R(ioctl(fd, FIONCLEX));
    R(ioctl(fd, TIOCGWINSZ, scratch));
    exchange(fd);
    finish();
}

static _Atomic int sigios;
static void on_sigio(int sig) { sigios++; }

static void sigio_on_arrival(void) {
    int fd = pair();
    signal(SIGIO, on_sigio);
    R(fcntl(fd, F_SETOWN, getpid()));
    R(fcntl(fd, F_GETOWN) == getpid());
    R(fcntl(fd, F_SETFL, O_RDWR | O_ASYNC | O_NONBLOCK));
    for (int round = 0; round < 3; round++) {
        int before = sigios;
        tell_text("x");
        for (int i = 0; i < 2000 && sigios == before; i++) nap_ms(1);
        say("signal came: %d", sigios > before);
        R(recv(fd, scratch, 10, 0));
    }
    R(fcntl(fd, F_SETFL, O_RDWR));
    exchange(fd);
    finish();
}

static void sigio_by_ioctl(void) {
    int fd = pair(), on = 1, pid = getpid();
    signal(SIGIO, on_sigio);
    R(ioctl(fd, FIOSETOWN, &pid));
    R(ioctl(fd, FIOASYNC, &on));
    tell_text("x");
    for (int i = 0; i < 2000 && !sigios; i++) nap_ms(1);
    say("signal came: %d", sigios > 0);
    take(fd, 1);
    finish();
}

static void quickack_and_friends(void) {
    int fd = pair();
    set_int(fd, IPPROTO_TCP, TCP_QUICKACK, 1);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
    set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16384);
    set_int(fd, SOL_SOCKET, SO_PRIORITY, 1);
    say("%d %d", get_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), get_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT));
    exchange(fd);
    finish();
}

/* Single bytes: at its first larger segments, the kernel sets the clamp anew, whoever has set it. */
static void single_bytes(int fd, int times) {
    for (int i = 0; i < times; i++) {
        send_text(fd, "x");
        tell(P_TAKE, 1);
        tell_text("y");
        take(fd, 1);
    }
}

/* Only TCP has time stamps of what is sent: whatever carried the bytes until now, TCP does from here on. */
static void let_tcp_alone_carry(int fd) {
    set_int(fd, SOL_SOCKET, SO_TIMESTAMPING, 1 << 4); /* SOF_TIMESTAMPING_SOFTWARE */
    set_int(fd, SOL_SOCKET, SO_TIMESTAMPING, 0);
}
static void go_on_by_tcp(int fd) {
    let_tcp_alone_carry(fd);
    single_bytes(fd, 3);
}

/* The value could be the kernel's own. Played cold, it is set before the lane opens. Played after much data, the kernel would
 * set the clamp anew, with and without memlane: its measure of that data ends at a read some time later. */
static void window_clamp_that_the_program_sets(void) {
    int fd = pair();
    set_int(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, 60000);
    say("clamp %d", get_int(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP));
    single_bytes(fd, 30);
    go_on_by_tcp(fd);
    say("clamp %d", get_int(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP));
    finish();
}

static void sends_bytes(int port) {
    int fd = connect_port(port);
    to_and_fro(fd, true);
    if (recv_all(fd, scratch, 1) != 1) die("recv");
    close(fd);
}

static void window_clamp_that_comes_from_the_listener(void) {
    int child, fd = accept_from_listener_with(IPPROTO_TCP, TCP_WINDOW_CLAMP, 20000, sends_bytes, &child);
    say("clamp %d", get_int(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP));
    let_tcp_alone_carry(fd);
    send_text(fd, "!");
    say("clamp %d", get_int(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP));
    say_wait("child", child);
}

/* Nobody sets it: the kernel has it follow the receive buffer, and a stream is slow where it does not. */
static void window_clamp_that_the_kernel_sets(void) {
    int fd = pair();
    go_on_by_tcp(fd);
    say("a third of the buffer: %d",
        get_int(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP) >= get_int(fd, SOL_SOCKET, SO_RCVBUF) / 3);
    finish();
}

const struct one_case cases[] = {
#define CASE(name) {#name, name, 0}
#define ALONE(name) {#name, name, NO_THREAD}
    CASE(receive_time_limit),
    CASE(receive_limit_is_not_reached),
    CASE(send_time_limit),
    CASE(low_water_mark),
    CASE(low_water_mark_holds_a_recv),
    CASE(unread_and_unsent_counts),
    CASE(count_in_a_control_message),
    {"count_that_comes_from_the_listener", count_that_comes_from_the_listener, NO_THREAD | ONCE | LANE},
    CASE(times_in_control_messages),
    {"times_that_come_from_the_listener", times_that_come_from_the_listener, NO_THREAD | ONCE | LANE},
    {"times_that_nobody_reads", times_that_nobody_reads, NO_THREAD | ONCE | LANE},
    CASE(names_of_both_ends),
    CASE(what_the_kernel_says),
    CASE(small_buffers_carry_much),
    CASE(nonblocking_toggled_in_midway),
    CASE(nonblocking_by_ioctl),
    ALONE(sigio_on_arrival),
    ALONE(sigio_by_ioctl),
    CASE(quickack_and_friends),
    {"window_clamp_that_the_program_sets", window_clamp_that_the_program_sets, NO_BULK},
    {"window_clamp_that_comes_from_the_listener", window_clamp_that_comes_from_the_listener, NO_THREAD | ONCE | LANE},
    CASE(window_clamp_that_the_kernel_sets),
    {NULL, NULL, 0},
};
