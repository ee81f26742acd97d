/* Ways to come by a connection: connect, accept, address families, ports. */
#include "common.h"

static char scratch[4096];
enum { C = 4 };

/* 30 echoes between two descriptors of this process, so that an upgrade has its chance. */
static void ping(int a, int b) {
    for (int i = 0; i < 30; i++) {
        if (send_all(a, "ping", 4) != 4 || recv_all(b, scratch, 4) != 4 || memcmp(scratch, "ping", 4)) say("ping %d", i);
        if (send_all(b, "pong!", 5) != 5 || recv_all(a, scratch, 5) != 5 || memcmp(scratch, "pong!", 5)) say("pong %d", i);
    }
    say("pinged");
}

static void nonblocking_connect(void) {
    int listener = listen_any();
    union address a = loopback(AF_INET, bound_port(listener));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    R(connect(fd, &a.any, address_len(&a)));
    say("%s", events(poll_for(fd, POLLOUT)));
    int e = -1;
    socklen_t len = sizeof e;
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len));
    say("SO_ERROR %d", e);
    R(connect(fd, &a.any, address_len(&a)));
    R(connect(fd, &a.any, address_len(&a)));
    int other = accept_one(listener);
    ping(fd, other);
    R(fcntl(fd, F_GETFL) == (O_RDWR | O_NONBLOCK));
}

static void nonblocking_connect_with_epoll(void) {
    int listener = listen_any(), ep = epoll_create1(0);
    union address a = loopback(AF_INET, bound_port(listener));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    R(connect(fd, &a.any, address_len(&a)));
    struct epoll_event ev = {EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, {.fd = fd}};
    R(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
    R(epoll_wait(ep, &ev, 1, 2000));
    say("%s", events(ev.events));
    int other = accept_one(listener);
    ping(fd, other);
}

static void refused(void) {
    int listener = listen_any();
    union address a = loopback(AF_INET, bound_port(listener));
    close(listener);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    R(connect(fd, &a.any, address_len(&a)));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(recv(fd, scratch, 1, 0));
    int nb = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    R(connect(nb, &a.any, address_len(&a)));
    say("%s", events(poll_for(nb, POLLERR)));
    int e = -1;
    socklen_t len = sizeof e;
    R(getsockopt(nb, SOL_SOCKET, SO_ERROR, &e, &len));
    say("SO_ERROR %s", errname(e));
    /* The same descriptor, once somebody listens. */
    listener = listen_at(a, 5);
    R(connect(fd, &a.any, address_len(&a)));
    ping(fd, accept_one(listener));
}

static void before_connecting(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    union address a;
    socklen_t len = sizeof a;
    R(recv(fd, scratch, 1, 0));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(shutdown(fd, SHUT_RDWR));
    R(getpeername(fd, &a.any, &len));
    struct pollfd p = {fd, POLLIN | POLLOUT, 0};
    R(poll(&p, 1, 0));
    say("%s", events((unsigned short)p.revents));
    R(connect(fd, &a.any, 3));
    R(close(fd));
}

static void accept_and_its_flags(void) {
    int listener = listen_any(), port = bound_port(listener);
    int a = connect_port(port);
    union address from;
    socklen_t len = sizeof from;
    int b = accept4(listener, &from.any, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    say("len %u from %s port right %d", len, inet_ntoa(from.v4.sin_addr), ntohs(from.v4.sin_port) == bound_port(a));
    R(fcntl(b, F_GETFD));
    R(fcntl(b, F_GETFL) == (O_RDWR | O_NONBLOCK));
    R(recv(b, scratch, 1, 0));
#ifdef __GLIBC__ /* musl tries again without flags */
    R(accept4(listener, NULL, NULL, 1));
#endif
    ping(a, b);
    int c = connect_port(port), d = accept4(listener, NULL, NULL, 0);
    R(fcntl(d, F_GETFD));
    R(fcntl(d, F_GETFL) == O_RDWR);
    ping(c, d);
    set_nonblocking(listener, true);
    R(accept(listener, NULL, NULL));
    R(read(listener, scratch, 1));
    R(send(listener, "x", 1, MSG_NOSIGNAL));
}

static void bytes_before_accept(void) {
    int listener = listen_any();
    int a = connect_port(bound_port(listener));
    for (int i = 0; i < 20; i++) send_text(a, "sent before anybody accepted. ");
    int b = accept_one(listener);
    take(b, 600);
    ping(a, b);
    ping(b, a);
}

static void closed_before_accept(void) {
    int listener = listen_any();
    int a = connect_port(bound_port(listener));
    send_text(a, "hit and run");
    close(a);
    int b = accept_one(listener);
    drain(b);
}

static void client_of_ipv6(void) {
    int listener = listen_at(loopback(AF_INET6, 0), 5);
    int a = connect_at(loopback(AF_INET6, bound_port(listener))), b = accept_one(listener);
    union address name;
    socklen_t len = sizeof name;
    char text[64] = "";
    R(getpeername(a, &name.any, &len));
    inet_ntop(AF_INET6, &name.v6.sin6_addr, text, sizeof text);
    say("%u %s", len, text);
    ping(a, b);
}

static void ipv4_client_of_an_ipv6_server(void) {
    union address any;
    memset(&any, 0, sizeof any);
    any.v6.sin6_family = AF_INET6;
    int listener = listen_at(any, 5);
    int a = connect_port(bound_port(listener)), b = accept_one(listener);
    union address name;
    socklen_t len = sizeof name;
    char text[64] = "";
    R(getpeername(b, &name.any, &len));
    inet_ntop(AF_INET6, &name.v6.sin6_addr, text, sizeof text);
    say("%u %s", len, text);
    ping(a, b);
}

static void ipv6_socket_to_a_mapped_address(void) {
    int listener = listen_any();
    union address a = loopback(AF_INET6, bound_port(listener));
    inet_pton(AF_INET6, "::ffff:127.0.0.1", &a.v6.sin6_addr);
    int fd = connect_at(a), other = accept_one(listener);
    union address name;
    socklen_t len = sizeof name;
    R(getsockname(fd, &name.any, &len));
    say("%u", len);
    ping(fd, other);
}

static void other_loopback_addresses(void) {
    union address a = loopback(AF_INET, 0), from = loopback(AF_INET, 0);
    a.v4.sin_addr.s_addr = inet_addr("127.1.2.3");
    from.v4.sin_addr.s_addr = inet_addr("127.9.9.9");
    int listener = listen_at(a, 5);
    a.v4.sin_port = htons((uint16_t)bound_port(listener));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    R(bind(fd, &from.any, sizeof from.v4));
    R(connect(fd, &a.any, sizeof a.v4));
    ping(fd, accept_one(listener));
}

static int reuseport_listener(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    union address a = loopback(AF_INET, port);
    if (bind(fd, &a.any, sizeof a.v4) || listen(fd, 64)) say("reuseport: %s", errname(errno));
    return fd;
}

static void two_listeners_on_one_port(void) {
    int one = reuseport_listener(0), two = reuseport_listener(bound_port(one));
    struct pollfd p[2] = {{one, POLLIN, 0}, {two, POLLIN, 0}};
    int accepted = 0;
    for (int i = 0; i < 16; i++) {
        int a = connect_port(bound_port(one));
        poll(p, 2, 2000);
        int b = accept_one(p[0].revents & POLLIN ? one : two);
        for (int k = 0; k < 12; k++) {
            if (send_all(a, "abc", 3) != 3 || recv_all(b, scratch, 3) != 3) say("no");
            if (send_all(b, "de", 2) != 2 || recv_all(a, scratch, 2) != 2) say("no");
        }
        accepted++;
        close(a);
        close(b);
    }
    say("accepted %d", accepted);
}

static void accepts_and_pings(int listener) {
    int fd = accept_one(listener);
    for (int i = 0; i < 30; i++) {
        if (recv_all(fd, scratch, 4) != 4) break;
        send_all(fd, scratch, 4);
    }
    close(fd);
}
/* nginx: workers that share a listener made before the fork. */
static void workers_share_a_listener(void) {
    int listener = listen_any(), port = bound_port(listener), pids[2];
    for (int i = 0; i < 2; i++) pids[i] = fork_actor(C + i, accepts_and_pings, listener);
    for (int i = 0; i < 2; i++) {
        int fd = connect_port(port);
        bool ok = true;
        for (int k = 0; k < 30; k++)
            ok = ok && send_all(fd, "ping", 4) == 4 && recv_all(fd, scratch, 4) == 4;
        say("ok %d", ok);
        R(recv(fd, scratch, 1, 0));
        close(fd);
    }
    for (int i = 0; i < 2; i++) say_wait("worker", pids[i]);
}

/* The same two addresses and ports again and again, as short connections on a busy machine meet them. */
static void same_ports_again(void) {
    int listener = listen_any(), port = bound_port(listener), own = 0, good = 0, on = 1;
    for (int i = 0; i < 30; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        union address a = loopback(AF_INET, own);
        if (bind(fd, &a.any, sizeof a.v4)) say("bind: %s", errname(errno));
        a = loopback(AF_INET, port);
        if (connect(fd, &a.any, sizeof a.v4)) {
            say("connect %d: %s", i, errname(errno));
            break;
        }
        own = bound_port(fd);
        int other = accept_one(listener);
        for (int k = 0; k < i % 15; k++) {
            if (send_all(fd, "abc", 3) != 3 || recv_all(other, scratch, 3) != 3) say("no");
            if (send_all(other, "de", 2) != 2 || recv_all(fd, scratch, 2) != 2) say("no");
        }
        good++;
        reset_close(i % 2 ? fd : other); /* no TIME_WAIT: the port pair is free at once */
        close(i % 2 ? other : fd);
    }
    say("good %d", good);
}

static void churn_of_short_connections(void) {
    int listener = listen_any(), port = bound_port(listener);
    uint64_t h = HASH_START;
    for (int i = 0; i < 200; i++) {
        int a = connect_port(port), b = accept_one(listener);
        for (int k = 0; k <= i % 12; k++) {
            char text[16];
            int n = snprintf(text, sizeof text, "%d/%d", i, k);
            if (send_all(a, text, (size_t)n) != n || recv_all(b, scratch, (size_t)n) != n) say("no");
            h = hash_more(h, scratch, (size_t)n);
            if (send_all(b, text, (size_t)n) != n || recv_all(a, scratch, (size_t)n) != n) say("no");
        }
        if (i % 3 == 0) send_text(a, "unread");
        close(i % 2 ? a : b);
        close(i % 2 ? b : a);
    }
    say("hash %016llx", (unsigned long long)h);
}

static void other_kinds_of_socket(void) {
    int p[2];
    R(socketpair(AF_UNIX, SOCK_STREAM, 0, p));
    ping(p[0], p[1]);
    int a = socket(AF_INET, SOCK_DGRAM, 0), b = socket(AF_INET, SOCK_DGRAM, 0);
    union address to = loopback(AF_INET, 0);
    R(bind(a, &to.any, sizeof to.v4));
    to = loopback(AF_INET, bound_port(a));
    R(connect(b, &to.any, sizeof to.v4));
    R(send(b, "datagram", 8, 0));
    R(recv(a, scratch, 4, MSG_TRUNC));
}

const struct one_case cases[] = {
#define PINGS(name) {#name, name, ONCE | LANE}
#define PLAIN(name) {#name, name, ONCE}
    PINGS(nonblocking_connect),
    PINGS(nonblocking_connect_with_epoll),
    PINGS(refused),
    PLAIN(before_connecting),
    PINGS(accept_and_its_flags),
    PINGS(bytes_before_accept),
    PLAIN(closed_before_accept),
    PINGS(client_of_ipv6),
    PINGS(ipv4_client_of_an_ipv6_server),
    PINGS(ipv6_socket_to_a_mapped_address),
    PINGS(other_loopback_addresses),
    PLAIN(two_listeners_on_one_port),
    PLAIN(workers_share_a_listener),
    PLAIN(same_ports_again),
    PLAIN(churn_of_short_connections),
    PLAIN(other_kinds_of_socket),
    {NULL, NULL, 0},
};
