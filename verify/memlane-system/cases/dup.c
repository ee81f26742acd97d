/* dup, dup2, dup3, F_DUPFD, close_range, closefrom, descriptor numbers, stdin/stdout as sockets. */
#include "common.h"

static int spare(void) { return open("/dev/null", O_RDWR | O_CLOEXEC); }

static void both_copies_read_and_write(void) {
    int fd = pair(), copy = dup(fd);
    send_text(fd, "one ");
    send_text(copy, "two ");
    send_text(fd, "three");
    tell(P_TAKE, 13);
    tell_text("abcdefghij");
    take(fd, 3);
    take(copy, 3);
    take(fd, 4);
    exchange(copy);
    R(close(copy));
    exchange(fd);
    finish();
}

static void original_closes_and_copy_goes_on(void) {
    int fd = pair(), copy = dup(fd);
    tell_text("unread");
    settle(fd, 6);
    R(close(fd));
    take(copy, 6);
    exchange(copy);
    order(P_DRAIN, 0);
    send_text(copy, "end");
    R(close(copy)); /* only now the end */
    done();
    finish();
}

static void copies_by_fcntl(void) {
    int fd = pair();
    int a = fcntl(fd, F_DUPFD, 100), b = fcntl(fd, F_DUPFD_CLOEXEC, 100), c = fcntl(fd, F_DUPFD, 500);
    say("numbers %d %d %d", a, b, c);
    R(fcntl(a, F_GETFD));
    R(fcntl(b, F_GETFD));
    exchange(a);
    R(close(a));
    exchange(b);
    R(close(fd));
    exchange(c);
    R(close(b));
    exchange(c);
    finish();
}

static void dup2_onto_an_unused_number(void) {
    int fd = pair();
    R(dup2(fd, 77));
    exchange(77);
    R(close(fd));
    exchange(77);
    R(dup2(77, 77));
    exchange(77);
    R(dup2(fd, 78)); /* closed */
    finish();
}

static void dup3_with_cloexec(void) {
    int fd = pair();
    R(dup3(fd, 77, O_CLOEXEC));
    R(fcntl(77, F_GETFD));
    exchange(77);
    R(dup3(fd, fd, 0));
    R(dup3(fd, 78, 1));
    exchange(fd);
    finish();
}

static void dup2_of_a_file_over_the_connection(void) {
    int fd = pair(), null = spare();
    send_text(fd, "last bytes");
    order(P_DRAIN, 0);
    OK(dup2(null, fd));
    done();
    char c;
    R(read(fd, &c, 1)); /* /dev/null now */
    R(write(fd, "x", 1));
    R(recv(fd, &c, 1, 0));
    finish();
}

static void dup2_of_a_file_over_unread_bytes(void) {
    int fd = pair(), null = spare();
    tell_text("never read");
    settle(fd, 10);
    OK(dup2(null, fd));
    tell(P_RECV, 10);
    finish();
}

static void dup2_of_one_connection_over_another(void) {
    int one = pair(), two = pair();
    send_text(two, "bye");
    order_at(1, P_DRAIN, 0);
    OK(dup2(one, two));
    done_at(1);
    exchange(two);
    exchange(one);
    R(close(one));
    exchange(two);
    finish();
}

static void swap_two_connections(void) {
    int one = pair(), two = pair();
    int keep = dup(one);
    OK(dup2(two, one));
    OK(dup2(keep, two));
    R(close(keep));
    /* `two` is now the first peer's, `one` the second's. */
    exchange(two);
    send_text(one, "to second");
    tell_at(1, P_TAKE, 9);
    exchange(two);
    finish();
}

static void copy_stays_in_the_epoll_set(void) {
    int fd = pair(), copy = dup(fd), ep = epoll_create1(0);
    struct epoll_event ev = {EPOLLIN, {.u32 = 7}};
    R(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
    R(close(fd));
    /* epoll(7): the registration lives as long as the description. */
    tell_text("x");
    settle(copy, 1);
    say("epoll_wait: %d", epoll_wait(ep, &ev, 1, 1000));
    say("data %u %s", ev.data.u32, events(ev.events));
    take(copy, 1);
    R(epoll_wait(ep, &ev, 1, 0));
    R(close(copy));
    R(epoll_wait(ep, &ev, 1, 0));
    finish();
}

static void shutdown_through_a_copy(void) {
    int fd = pair(), copy = dup(fd);
    send_text(fd, "end of it");
    R(shutdown(copy, SHUT_WR));
    tell(P_DRAIN, 0);
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    tell_text("still readable");
    take(fd, 14);
    finish();
}

static void flags_belong_to_the_description(void) {
    int fd = pair(), copy = dup(fd);
    char c;
    set_nonblocking(copy, true);
    R(recv(fd, &c, 1, 0));
    set_nonblocking(fd, false);
    order(P_TEXT, 0); /* empty text */
    done();
    tell_text("x");
    R(recv(copy, &c, 1, 0));
    finish();
}

static void copy_across_fork_and_close(void) {
    int fd = pair(), copy = dup(fd);
    int pid = fork();
    if (pid == 0) {
        as_actor(4);
        R(close(fd));
        send_text(copy, "from child");
        _exit(0);
    }
    R(close(copy));
    tell(P_TAKE, 10);
    say_wait("child", pid);
    exchange(fd);
    finish();
}

/* --- sweeps -------------------------------------------------------------- */

static int low_copy(int fd) { /* the connection at 5, nothing else above 2 */
    if (fd != 5) {
        if (dup2(fd, 5) != 5) say("dup2: %s", errname(errno));
        close(fd);
    }
    return 5;
}

static void closefrom_above_it(void) {
    int fd = low_copy(pair());
    closefrom(6);
    exchange(fd);
    exchange(fd);
    finish();
}

static void close_range_above_it(void) {
    int fd = low_copy(pair());
    R(close_range(6, ~0u, 0));
    exchange(fd);
    R(close_range(3, 4, 0));
    exchange(fd);
    finish();
}

static void close_range_with_cloexec_flag(void) {
    int fd = low_copy(pair());
    R(close_range(3, ~0u, CLOSE_RANGE_CLOEXEC));
    R(fcntl(fd, F_GETFD));
    exchange(fd);
    finish();
}

static void close_range_unshared(void) {
    int fd = low_copy(pair());
    R(close_range(6, ~0u, CLOSE_RANGE_UNSHARE));
    exchange(fd);
    finish();
}

static void loop_of_close_as_daemons_do(void) {
    int fd = low_copy(pair());
    for (int i = 3; i < 1024; i++)
        if (i != fd) close(i);
    exchange(fd);
    exchange(fd);
    finish();
}

static void raw_close_range_above_it(void) {
    int fd = low_copy(pair());
    R(syscall(SYS_close_range, 6, ~0u, 0));
    exchange(fd);
    exchange(fd);
    finish();
}

static void sweep_takes_it_too(void) {
    int fd = pair();
    send_text(fd, "gone");
    order(P_DRAIN, 0);
    closefrom(3);
    done();
    R(fcntl(fd, F_GETFD));
    finish();
}

static void sweep_by_proc_self_fd(void) {
    int fd = low_copy(pair());
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d));) {
        int n = atoi(e->d_name);
        if (n > 5 && n != dirfd(d)) close(n);
    }
    closedir(d);
    exchange(fd);
    exchange(fd);
    finish();
}

static void sweep_then_new_connections(void) {
    int fd = low_copy(pair());
    closefrom(6);
    int other = pair();
    exchange(fd);
    send_text(other, "second");
    tell_at(1, P_TAKE, 6);
    exchange(fd);
    finish();
}

/* --- numbers -------------------------------------------------------------- */

/* POSIX: the lowest free number. Shells and daemons count on it. */
static void new_descriptors_get_the_lowest_number(void) {
    int before = spare();
    close(before);
    int fd = pair();
    int next = spare(), p[2];
    if (pipe(p)) say("pipe: %s", errname(errno));
    say("free before %d, connection %d, next %d, pipe %d %d", before, fd, next, p[0], p[1]);
    R(close(fd));
    say("reused: %d", spare());
    finish();
}

static void a_file_takes_the_closed_number(void) {
    int fd = pair(), p[2];
    tell_text("unread");
    settle(fd, 6);
    R(close(fd));
    if (pipe(p)) say("pipe: %s", errname(errno));
    say("pipe read end has its number: %d", p[0] == fd);
    char buf[10];
    R(write(p[1], "pipe", 4));
    long n = R(read(p[0], buf, sizeof buf));
    say_bytes("read", buf, n);
    R(recv(p[0], buf, 1, MSG_DONTWAIT));
    finish();
}

static void a_new_connection_takes_the_closed_number(void) {
    int fd = pair();
    R(close(fd));
    int two = pair();
    if (two != fd) {
        OK(dup2(two, fd));
        close(two);
        two = fd;
    }
    send_text(two, "second life");
    tell_at(1, P_TAKE, 11);
    finish();
}

static void calls_on_a_closed_number(void) {
    int fd = pair();
    char c;
    R(close(fd));
    R(close(fd));
    R(read(fd, &c, 1));
    R(recv(fd, &c, 1, 0));
    R(send(fd, &c, 1, 0));
    R(shutdown(fd, SHUT_RDWR));
    struct pollfd p = {fd, POLLIN, 0};
    R(poll(&p, 1, 0));
    say("%s", events((unsigned short)p.revents));
    finish();
}

/* --- standard input and output --------------------------------------------- */

static void read_and_write_on_0_and_1(void) {
    int fd = pair();
    R(dup2(fd, 0));
    R(dup2(fd, 1));
    R(close(fd));
    tell_text("line\n");
    char buf[16];
    long n = R(read(0, buf, sizeof buf));
    say_bytes("read", buf, n);
    R(write(1, "answer", 6));
    tell(P_TAKE, 6);
    exchange(0);
    finish();
}

static void scanf_and_printf_on_0_and_1(void) {
    int fd = pair();
    R(dup2(fd, 0));
    R(dup2(fd, 1));
    R(close(fd));
    tell_text("12 apples\n34 pears\n");
    for (int i = 0; i < 2; i++) {
        int count = 0;
        char what[20] = "";
        R(scanf("%d %19s", &count, what));
        say("%d %s", count, what);
        printf("got %d\n", count);
        fflush(stdout);
        tell(P_TAKE, 7);
    }
    R(getchar());
    exchange(0);
    finish();
}

static void puts_on_2(void) {
    int fd = pair(), keep = dup(2);
    R(dup2(fd, 2));
    fputs("error text", stderr);
    tell(P_TAKE, 10);
    errno = ENOENT;
    perror("perror");
    tell(P_TAKE, 34);
    OK(dup2(keep, 2));
    exchange(fd);
    finish();
}

static void connection_is_descriptor_1(void) {
    close(0);
    close(1);
    int fd = pair(); /* the listener was 0 for a while */
    say("connection is %d", fd);
    exchange(fd);
    say("next is %d", spare());
    tell_text("word\n");
    char buf[16];
    long n = R(read(1, buf, sizeof buf));
    say_bytes("read", buf, n);
    exchange(fd);
    finish();
}

const struct one_case cases[] = {
#define CASE(name) {#name, name, 0}
#define ALONE(name) {#name, name, NO_THREAD} /* closes descriptors the peer would need */
    CASE(both_copies_read_and_write),
    CASE(original_closes_and_copy_goes_on),
    CASE(copies_by_fcntl),
    CASE(dup2_onto_an_unused_number),
    CASE(dup3_with_cloexec),
    CASE(dup2_of_a_file_over_the_connection),
    CASE(dup2_of_a_file_over_unread_bytes),
    CASE(dup2_of_one_connection_over_another),
    CASE(swap_two_connections),
    CASE(copy_stays_in_the_epoll_set),
    CASE(shutdown_through_a_copy),
    CASE(flags_belong_to_the_description),
    ALONE(copy_across_fork_and_close),
    ALONE(closefrom_above_it),
    ALONE(close_range_above_it),
    ALONE(close_range_with_cloexec_flag),
    ALONE(close_range_unshared),
    ALONE(loop_of_close_as_daemons_do),
    ALONE(raw_close_range_above_it),
    ALONE(sweep_takes_it_too),
    ALONE(sweep_by_proc_self_fd),
    ALONE(sweep_then_new_connections),
    ALONE(new_descriptors_get_the_lowest_number),
    ALONE(a_file_takes_the_closed_number),
    ALONE(a_new_connection_takes_the_closed_number),
    ALONE(calls_on_a_closed_number),
    ALONE(read_and_write_on_0_and_1),
    ALONE(scanf_and_printf_on_0_and_1),
    ALONE(puts_on_2),
    ALONE(connection_is_descriptor_1),
    {NULL, NULL, 0},
};
