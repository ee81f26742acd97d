/* main(): the supervisor (part of common.h). */

extern const struct one_case cases[]; /* ends with a NULL name */

EXPORT const char *self_path(void) {
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0) die("/proc/self/exe");
    path[n] = 0;
    return path;
}

/* Runs the hidden case `name` of this program in place of this one, as the same or another actor. */
EXPORT void exec_self(const char *name, int actor, long arg) {
    set_exec_env(actor, arg);
    report_lane();
    execl(self_path(), "case", name, (char *)NULL);
    die("exec");
}

EXPORT long exec_arg(void) {
    const char *arg = getenv("CASE_ARG");
    return arg ? atol(arg) : -1;
}

static void map_arena(int fd) {
    arena_fd = fd;
    arena = mmap(NULL, sizeof *arena, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (arena == MAP_FAILED) die("mmap");
}

static void new_arena(void) {
    int fd = memfd_create("case-arena", 0);
    if (fd < 0 || ftruncate(fd, sizeof *arena) < 0) die("memfd");
    /* Out of the way of low descriptor numbers. */
    int high = fcntl(fd, F_DUPFD, 900);
    if (high < 0) die("F_DUPFD");
    close(fd);
    map_arena(high);
}

static void print_transcript(void) {
    uint64_t tx = 0, rx = 0;
    for (int i = 0; i < ACTORS; i++) {
        struct actor *a = &arena->actors[i];
        unsigned len = a->len < TEXT ? a->len : TEXT;
        for (char *line = a->text, *end = a->text + len; line < end;) {
            char *stop = memchr(line, '\n', (size_t)(end - line));
            if (!stop) stop = end;
            dprintf(1, "[%c] %.*s\n", 'A' + i, (int)(stop - line), line);
            line = stop + 1;
        }
        tx += a->tx_ring;
        rx += a->rx_ring;
        if (a->tx_ring || a->rx_ring)
            dprintf(2, "actor %c tx_ring=%llu rx_ring=%llu\n", 'A' + i,
                    (unsigned long long)a->tx_ring, (unsigned long long)a->rx_ring);
    }
    dprintf(2, "lane tx_ring=%llu rx_ring=%llu\n", (unsigned long long)tx, (unsigned long long)rx);
}

static void run_case(const struct one_case *c) {
    as_actor(0);
    c->run();
    report_lane();
    _exit(0);
}

static int supervise(const struct one_case *c) {
    new_arena();
    int seconds = getenv("CASE_SECONDS") ? atoi(getenv("CASE_SECONDS")) : DEFAULT_SECONDS;
    int pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        setpgid(0, 0);
        run_case(c);
    }
    setpgid(pid, pid);
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {pidfd, POLLIN, 0};
    bool hung = poll(&p, 1, seconds * 1000) == 0;
    /* Also what the case left behind; its end of it first, if it is still there. */
    kill(-pid, SIGKILL);
    int status = 0;
    waitpid(pid, &status, 0);
    print_transcript();
    if (hung) {
        dprintf(1, "HANG: no end after %d s\n", seconds);
        return 124;
    }
    if (WIFSIGNALED(status)) {
        dprintf(1, "CRASH: signal %d\n", WTERMSIG(status));
        return 128 + WTERMSIG(status);
    }
    return WEXITSTATUS(status);
}

static const struct one_case *find_case(const char *name) {
    for (const struct one_case *c = cases; c->name; c++)
        if (!strcmp(c->name, name)) return c;
    return NULL;
}

static void list_cases(void) {
    for (const struct one_case *c = cases; c->name; c++)
        if (c->name[0] != '_')
            printf("%s%s%s%s%s%s%s\n", c->name, c->flags & NEEDS_ROOT ? " root" : "",
                   c->flags & NO_THREAD ? " no-thread" : "", c->flags & ONCE ? " once" : "",
                   c->flags & LANE ? " lane" : "", c->flags & LONG ? " long" : "",
                   c->flags & NO_BULK ? " no-bulk" : "");
}

static bool parse_options(int argc, char **argv) {
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--swap")) opt_swap = true;
        else if (!strcmp(argv[i], "--thread")) opt_thread = true;
        else if (!strcmp(argv[i], "--warm") && i + 1 < argc) {
            opt_bulk = !strcmp(argv[++i], "bulk");
            opt_warm = atoi(argv[i]);
        } else {
            dprintf(2, "what is %s?\n", argv[i]);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc < 2 || !strcmp(argv[1], "--list")) {
        list_cases();
        return 0;
    }
    if (!strcmp(argv[1], PEER)) { /* exec'ed by another build of this program */
        if (!parse_options(argc, argv)) return 2;
        map_arena(atoi(getenv("CASE_ARENA")));
        peer_main(peer_at((int)exec_arg()));
    }
    const struct one_case *c = find_case(argv[1]);
    if (!c) {
        dprintf(2, "no case '%s'; --list names them\n", argv[1]);
        return 2;
    }
    if (getenv("CASE_ARENA")) { /* exec'ed by a case */
        map_arena(atoi(getenv("CASE_ARENA")));
        as_actor(atoi(getenv("CASE_ACTOR")));
        c->run();
        report_lane();
        _exit(0);
    }
    if (!parse_options(argc, argv)) return 2;
    if (opt_thread && (c->flags & NO_THREAD)) {
        dprintf(2, "%s: needs the peer in a process of its own\n", c->name);
        return 2;
    }
    return supervise(c);
}
