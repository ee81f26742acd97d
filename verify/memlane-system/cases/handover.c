/* A live connection goes to another process by SCM_RIGHTS; root and user id change. */
#include "common.h"

#include <grp.h>
#include <sys/resource.h>

enum { C = 4, D = 5, GO = 0, BACK = 1 };
static char scratch[4096];

static void pass_fd(int channel, int fd) {
    char control[CMSG_SPACE(sizeof fd)];
    memset(control, 0xa5, sizeof control); /* musl has padding in the header */
    struct iovec v = {"f", 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    R(sendmsg(channel, &m, 0));
}

static int take_fd(int channel) {
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    R(recvmsg(channel, &m, 0));
    int fd = -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

static void receives_and_talks(int channel) {
    int fd = take_fd(channel);
    await(GO);
    send_text(fd, "from the receiver");
    take(fd, 12);
    drain(fd);
    R(close(fd));
}

/* Starts the receiver before the connection exists, so that it can only get it through the channel. */
static int receiver(int *channel, void (*fn)(int)) {
    int p[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, p)) die("socketpair");
    int pid = fork_actor(C, fn, p[1]);
    close(p[1]);
    *channel = p[0];
    return pid;
}

static void passed_and_closed_here(void) {
    int channel, pid = receiver(&channel, receives_and_talks);
    int fd = pair();
    pass_fd(channel, fd);
    R(close(fd));
    post(GO);
    tell(P_TAKE, 17);
    tell_text("to receiver.");
    tell(P_SEND, 20000);
    tell(P_SHUT, SHUT_WR);
    say_wait("receiver", pid);
    finish();
}

static void passed_with_unread_bytes(void) {
    int channel, pid = receiver(&channel, receives_and_talks);
    int fd = pair();
    tell_text("to receiver.");
    settle(fd, 12);
    tell(P_SEND, 20000);
    settle(fd, 20012);
    pass_fd(channel, fd);
    R(close(fd));
    post(GO);
    tell(P_TAKE, 17);
    tell(P_SHUT, SHUT_WR);
    say_wait("receiver", pid);
    finish();
}

static void passed_in_mid_stream(void) {
    int channel, pid = receiver(&channel, receives_and_talks);
    int fd = pair();
    order(P_SEND, 2000000);
    take(fd, 100000);
    pass_fd(channel, fd);
    R(close(fd));
    post(GO);
    done();
    tell(P_SHUT, SHUT_WR);
    tell(P_TAKE, 17);
    say_wait("receiver", pid);
    finish();
}

static void receives_and_says_one_thing(int channel) {
    int fd = take_fd(channel);
    await(GO);
    send_text(fd, "receiver");
    post(BACK);
    await(GO);
    take(fd, 5);
    post(BACK);
    close(fd);
}
static void passed_and_used_by_both(void) {
    int channel, pid = receiver(&channel, receives_and_says_one_thing);
    int fd = pair();
    pass_fd(channel, fd);
    exchange(fd);
    post(GO);
    await(BACK);
    send_text(fd, " sender");
    tell(P_TAKE, 15);
    tell_text("hello");
    post(GO);
    await(BACK);
    exchange(fd);
    say_wait("receiver", pid);
    exchange(fd);
    finish();
}

static void passed_to_itself(void) {
    int p[2], fd = pair();
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, p)) die("socketpair");
    pass_fd(p[0], fd);
    int copy = take_fd(p[1]);
    R(close(fd));
    exchange(copy);
    tell_text("x");
    settle(copy, 1);
    take(copy, 1);
    finish();
}

static void passed_while_in_flight_and_closed(void) {
    int p[2], fd = pair();
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, p)) die("socketpair");
    send_text(fd, "end");
    pass_fd(p[0], fd);
    R(close(fd));
    order(P_DRAIN, 0);
    until_peer_asleep(); /* the message holds the connection open */
    R(close(p[1]));
    R(close(p[0]));
    done();
    finish();
}

static void peer_passes_its_end_body(int fd) {
    int p[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, p)) die("socketpair");
    pass_fd(p[0], fd);
    int copy = take_fd(p[1]);
    send_text(copy, "by the copy");
    take(copy, 4);
    close(copy);
}
static void peer_passes_its_end(void) {
    int fd = pair();
    order_call(peer_passes_its_end_body);
    take(fd, 11);
    send_text(fd, "back");
    done();
    exchange(fd);
    finish();
}

static void listener_is_passed_body(int channel) {
    int listener = take_fd(channel), fd = accept_one(listener);
    for (int i = 0; i < 30; i++) {
        if (recv_all(fd, scratch, 4) != 4) break;
        send_all(fd, scratch, 4);
    }
    say("served");
}
static void listener_is_passed(void) {
    int channel, pid = receiver(&channel, listener_is_passed_body);
    int listener = listen_any(), port = bound_port(listener);
    pass_fd(channel, listener);
    close(listener);
    int fd = connect_port(port);
    bool ok = true;
    for (int i = 0; i < 30; i++) ok = ok && send_all(fd, "ping", 4) == 4 && recv_all(fd, scratch, 4) == 4;
    say("ok %d", ok);
    say_wait("server", pid);
}

/* --- root, user, limits after start ------------------------------------------------ */

static void into_an_empty_root(void) {
    char dir[] = "/tmp/memlane-case-XXXXXX";
    if (!mkdtemp(dir) || chdir(dir) || rmdir(dir)) die("mkdtemp"); /* gone, but we are in it */
    R(chroot("."));
    R(chdir("/"));
}

static void chroot_after_upgrade(void) {
    int fd = pair();
    into_an_empty_root();
    exchange(fd);
    exchange(fd);
    finish();
}

static void new_connection_in_a_chroot(void) {
    into_an_empty_root();
    int fd = pair();
    exchange(fd);
    send_n(fd, 5000, 2);
    tell(P_TAKE, 5000);
    finish();
}

static void setuid_after_upgrade(void) {
    int fd = pair();
    R(setgroups(0, NULL));
    R(setgid(65534));
    R(setuid(65534));
    exchange(fd);
    send_n(fd, 5000, 2);
    tell(P_TAKE, 5000);
    finish();
}

static void setuid_before_the_connection(void) {
    R(setgroups(0, NULL));
    R(setgid(65534));
    R(setuid(65534));
    int fd = pair();
    exchange(fd);
    finish();
}

static void becomes_nobody(int fd) {
    R(setgid(65534));
    R(setuid(65534));
    send_text(fd, "nobody");
}
static void peer_becomes_another_user(void) {
    int fd = pair();
    tell_call(becomes_nobody);
    take(fd, 6);
    exchange(fd);
    finish();
}

static void no_more_descriptors(void) {
    struct rlimit l;
    int fd = pair();
    getrlimit(RLIMIT_NOFILE, &l);
    l.rlim_cur = (rlim_t)fd + 1;
    R(setrlimit(RLIMIT_NOFILE, &l));
    R(dup(fd));
    exchange(fd);
    exchange(fd);
    finish();
}

static void no_more_memory(void) {
    struct rlimit l;
    int fd = pair();
    getrlimit(RLIMIT_AS, &l);
    l.rlim_cur = 1;
    R(setrlimit(RLIMIT_AS, &l));
    char out[100] = "x";
    order(P_ECHO, 100);
    R(send(fd, out, 100, 0));
    R(recv(fd, out, 100, MSG_WAITALL));
    done();
    finish();
}

const struct one_case cases[] = {
#define ALONE(name) {#name, name, NO_THREAD}
#define ROOT(name) {#name, name, NO_THREAD | NEEDS_ROOT}
    ALONE(passed_and_closed_here),
    ALONE(passed_with_unread_bytes),
    ALONE(passed_in_mid_stream),
    ALONE(passed_and_used_by_both),
    ALONE(passed_to_itself),
    ALONE(passed_while_in_flight_and_closed),
    ALONE(peer_passes_its_end),
    {"listener_is_passed", listener_is_passed, ONCE},
    ROOT(chroot_after_upgrade),
    ROOT(new_connection_in_a_chroot),
    ROOT(setuid_after_upgrade),
    ROOT(setuid_before_the_connection),
    ROOT(peer_becomes_another_user),
    ALONE(no_more_descriptors),
    ALONE(no_more_memory),
    {NULL, NULL, 0},
};
