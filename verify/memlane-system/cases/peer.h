/* Connections, warm-up, and the scripted peer (part of common.h). */

enum op {
    P_SEND,      /* arg patterned bytes, seed = arg & 255 */
    P_TEXT,      /* text */
    P_TAKE,      /* exactly arg bytes, written down */
    P_RECV,      /* one recv of up to arg bytes, written down */
    P_ECHO,      /* arg bytes back as they come */
    P_SETTLE,    /* until arg bytes wait unread (Nagle may hold them back for a while) */
    P_DRAIN,     /* to the end */
    P_SHUT,      /* shutdown(arg) */
    P_CLOSE,
    P_RESET,     /* SO_LINGER 0 and close */
    P_OOB,       /* one urgent byte */
    P_CALL,      /* call(fd) */
    P_KILL,      /* SIGKILL to itself */
    P_EXIT,
};

/* --- connecting -------------------------------------------------------------- */

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

EXPORT socklen_t address_len(const union address *a) {
    return a->any.sa_family == AF_INET ? sizeof a->v4 : sizeof a->v6;
}

EXPORT union address loopback(int family, int port) {
    union address a;
    memset(&a, 0, sizeof a);
    a.any.sa_family = (sa_family_t)family;
    if (family == AF_INET) {
        a.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        a.v4.sin_port = htons((uint16_t)port);
    } else {
        a.v6.sin6_addr = in6addr_loopback;
        a.v6.sin6_port = htons((uint16_t)port);
    }
    return a;
}

EXPORT int bound_port(int fd) {
    union address a;
    socklen_t len = sizeof a;
    if (getsockname(fd, &a.any, &len) < 0) die("getsockname");
    return ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
}

EXPORT int listen_at(union address a, int backlog) {
    int fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0) die("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, &a.any, address_len(&a)) < 0) die("bind");
    if (listen(fd, backlog) < 0) die("listen");
    return fd;
}

EXPORT int listen_any(void) { return listen_at(loopback(AF_INET, 0), 128); }

EXPORT int connect_at(union address a) {
    int fd = socket(a.any.sa_family, SOCK_STREAM, 0);
    if (fd < 0) die("socket");
    if (connect(fd, &a.any, address_len(&a)) < 0) die("connect");
    return fd;
}

EXPORT int connect_port(int port) { return connect_at(loopback(AF_INET, port)); }

EXPORT int accept_one(int listener) {
    int fd;
    while ((fd = accept(listener, NULL, NULL)) < 0 && errno == EINTR) {}
    if (fd < 0) die("accept");
    return fd;
}

/* --- warm-up: so that what comes next happens on an upgraded connection --------- */

EXPORT void warm_round(struct peer *p, int fd, bool starts, int round, bool told) {
    char out[64], in[64];
    fill(out, sizeof out, (unsigned)round);
    for (int half = 0; half < 2; half++) {
        struct semaphore *arrived = half ? &p->warm_from : &p->warm_to;
        if (starts == (half == 0)) {
            if (send_all(fd, out, sizeof out) < 0) die("warm-up send");
            if (told) sem_give(arrived);
        } else {
            /* Told rounds: the receiver does not wait in the kernel when bytes come. */
            if (told) sem_take(arrived);
            if (recv_all(fd, in, sizeof in) != sizeof in) die("warm-up recv");
            if (memcmp(in, out, sizeof in)) say("warm-up round %d: wrong bytes", round);
        }
    }
}

EXPORT void warm_bulk(int fd, bool starts) {
    enum { PIECE = 4096, PIECES = 24 };
    char out[PIECE], in[PIECE];
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < PIECES; i++) {
            fill(out, PIECE, (unsigned)i);
            if (starts == (half == 0)) {
                if (send_all(fd, out, PIECE) < 0) die("bulk warm-up send");
            } else {
                if (recv_all(fd, in, PIECE) != PIECE) die("bulk warm-up recv");
                if (memcmp(in, out, PIECE)) say("bulk warm-up piece %d: wrong bytes", i);
            }
        }
}

EXPORT void warm_up(struct peer *p, int fd, bool starts) {
    if (opt_bulk) {
        warm_bulk(fd, starts);
        for (int i = 0; i < 6; i++) warm_round(p, fd, starts, i, true);
        return;
    }
    for (int i = 0; i < opt_warm; i++) warm_round(p, fd, starts, i, i % 2 == 1);
}

/* --- the peer ------------------------------------------------------------------ */

EXPORT void peer_echo(int fd, long total) {
    char buf[8192];
    while (total > 0) {
        ssize_t r = recv(fd, buf, total < (long)sizeof buf ? (size_t)total : sizeof buf, 0);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) {
            say("echo: ended with %ld to go, %s", total, r < 0 ? errname(errno) : "EOF");
            return;
        }
        if (send_all(fd, buf, (size_t)r) < 0) {
            say("echo: %s", errname(errno));
            return;
        }
        total -= r;
    }
}

EXPORT void reset_close(int fd) {
    struct linger l = {1, 0};
    if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l) < 0) say("SO_LINGER: %s", errname(errno));
    if (close(fd) < 0) say("close: %s", errname(errno));
}

EXPORT void peer_recv_once(int fd, long max) {
    char *buf = malloc((size_t)max + 1);
    errno = 0;
    ssize_t r = recv(fd, buf, (size_t)max, 0);
    if (r < 0) say("peer recv = %s", errname(errno));
    else say_bytes("peer recv", buf, r);
    free(buf);
}

EXPORT void peer_obey(struct peer *p, int op, long arg) {
    switch (op) {
    case P_SEND: send_n(p->fd, (size_t)arg, (unsigned)arg & 255); break;
    case P_TEXT: send_text(p->fd, p->text); break;
    case P_TAKE: take(p->fd, (size_t)arg); break;
    case P_RECV: peer_recv_once(p->fd, arg); break;
    case P_ECHO: peer_echo(p->fd, arg); break;
    case P_SETTLE: settle(p->fd, (int)arg); break;
    case P_DRAIN: drain(p->fd); break;
    case P_SHUT:
        if (shutdown(p->fd, (int)arg) < 0) say("peer shutdown %ld: %s", arg, errname(errno));
        break;
    case P_CLOSE:
        report_lane();
        if (close(p->fd) < 0) say("peer close: %s", errname(errno));
        p->fd = -1;
        break;
    case P_RESET: reset_close(p->fd); p->fd = -1; break;
    case P_OOB:
        if (send(p->fd, "!", 1, MSG_OOB) != 1) say("peer MSG_OOB: %s", errname(errno));
        break;
    case P_CALL: p->call(p->fd); break;
    case P_KILL: report_lane(); kill(getpid(), SIGKILL); pause(); break;
    }
}

EXPORT void *peer_main(void *which) {
    struct peer *p = which;
    as_actor(p->actor);
    p->fd = opt_swap ? accept_one(p->listener) : connect_port(bound_port(p->listener));
    if (!p->is_thread) close(p->listener);
    warm_up(p, p->fd, !opt_swap);
    sem_give(&p->done);
    for (;;) {
        sem_take(&p->order);
        int op = p->op;
        peer_obey(p, op, p->arg);
        if (op == P_EXIT) break;
        sem_give(&p->done);
    }
    report_lane();
    if (!p->is_thread) _exit(0);
    if (p->fd >= 0) close(p->fd);
    return NULL;
}

/* What an exec'ed program finds: it is this actor, and this is its argument. */
EXPORT void set_exec_env(int actor, long arg) {
    char text[32];
    snprintf(text, sizeof text, "%d", arena_fd);
    setenv("CASE_ARENA", text, 1);
    snprintf(text, sizeof text, "%d", actor);
    setenv("CASE_ACTOR", text, 1);
    snprintf(text, sizeof text, "%ld", arg);
    setenv("CASE_ARG", text, 1);
}

/* The peer as the forked process that this is, or as another build of this program. */
EXPORT void be_peer(struct peer *p) {
    const char *program = getenv("CASE_PEER");
    char warm[32];
    if (!program) peer_main(p);
    for (int fd = 3; fd < 900; fd++)
        if (fd != p->listener) close(fd);
    if (fcntl(p->listener, F_SETFD, 0) < 0) die("F_SETFD");
    set_exec_env(p->actor, p - arena->peers);
    snprintf(warm, sizeof warm, opt_bulk ? "bulk" : "%d", opt_warm);
    execl(program, "case", PEER, "--warm", warm, opt_swap ? "--swap" : (char *)NULL, (char *)NULL);
    die(program);
}

/* A new connection to a new peer (the first one is actor 1); our end. */
EXPORT int pair(void) {
    struct peer *p = &arena->peers[peer_count];
    p->actor = ++peer_count;
    p->is_thread = opt_thread;
    p->listener = listen_any();
    if (p->is_thread) {
        if (pthread_create(&p->thread, NULL, peer_main, p)) die("pthread_create");
    } else {
        int pid = fork();
        if (pid < 0) die("fork");
        if (pid == 0) be_peer(p);
        p->pid = pid; /* here only: the peer shares this memory */
    }
    int fd = opt_swap ? connect_port(bound_port(p->listener)) : accept_one(p->listener);
    warm_up(p, fd, opt_swap);
    sem_take(&p->done);
    close(p->listener);
    return fd;
}

EXPORT struct peer *peer_at(int i) { return &arena->peers[i]; }

EXPORT void order_at(int i, int op, long arg) {
    struct peer *p = peer_at(i);
    p->op = op;
    p->arg = arg;
    sem_give(&p->order);
}
EXPORT void done_at(int i) { sem_take(&peer_at(i)->done); }
EXPORT void tell_at(int i, int op, long arg) {
    order_at(i, op, arg);
    done_at(i);
}

/* To the first peer: start something; wait until it is done; both. */
EXPORT void order(int op, long arg) { order_at(0, op, arg); }
EXPORT void done(void) { done_at(0); }
EXPORT void tell(int op, long arg) { tell_at(0, op, arg); }
EXPORT void tell_text(const char *text) {
    snprintf(peer_at(0)->text, sizeof peer_at(0)->text, "%s", text);
    tell(P_TEXT, 0);
}
EXPORT void order_call(void (*call)(int)) {
    if (getenv("CASE_PEER") && !peer_at(0)->is_thread) _exit(NEEDS_OWN_PEER); /* another program: another address */
    peer_at(0)->call = call;
    order(P_CALL, 0);
}
EXPORT void tell_call(void (*call)(int)) {
    order_call(call);
    done();
}
EXPORT void until_peer_asleep(void) { until_asleep(1); }

EXPORT void say_wait(const char *who, int pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) {
            say("%s: waitpid %s", who, errname(errno));
            return;
        }
    if (WIFSIGNALED(status)) say("%s: signal %d", who, WTERMSIG(status));
    else say("%s: exit %d", who, WEXITSTATUS(status));
}

/* After P_KILL, or when the peer was told to exit. */
EXPORT void join_at(int i) {
    struct peer *p = peer_at(i);
    if (p->is_thread) pthread_join(p->thread, NULL);
    else say_wait("peer", p->pid);
    p->actor = 0;
}

/* Ends all peers. Also proves that they still follow orders. */
EXPORT void finish(void) {
    for (int i = 0; i < peer_count; i++)
        if (peer_at(i)->actor) {
            order_at(i, P_EXIT, 0);
            join_at(i);
        }
}

/* A request and its answer, both ways, to prove that the connection is as it was. */
EXPORT void exchange(int fd) {
    char out[100], in[100];
    fill(out, sizeof out, 3);
    order(P_ECHO, sizeof out);
    if (send_all(fd, out, sizeof out) < 0) say("exchange: send %s", errname(errno));
    long n = recv_all(fd, in, sizeof in);
    say("exchange: %s", n == sizeof in && !memcmp(in, out, sizeof in) ? "ok" : "WRONG");
    done();
}

/* Runs fn(fd) as a forked process, as `actor`. */
EXPORT int fork_actor(int actor, void (*fn)(int), int fd) {
    int pid = fork();
    if (pid < 0) die("fork");
    if (pid) return pid;
    as_actor(actor);
    fn(fd);
    report_lane();
    _exit(0);
}

struct thread_start { int actor; void (*fn)(int); int fd; };

EXPORT void *thread_entry(void *arg) {
    struct thread_start s = *(struct thread_start *)arg;
    free(arg);
    as_actor(s.actor);
    s.fn(s.fd);
    return NULL;
}

EXPORT pthread_t thread_actor(int actor, void (*fn)(int), int fd) {
    struct thread_start *s = malloc(sizeof *s);
    *s = (struct thread_start){actor, fn, fd};
    pthread_t t;
    arena->actors[actor].tid = 0;
    if (pthread_create(&t, NULL, thread_entry, s)) die("pthread_create");
    while (!arena->actors[actor].tid) nap_ms(0);
    return t;
}
