/* fork, vfork, posix_spawn, exec, system, popen with a live connection. */
#include "common.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { C = 4, D = 5 }; /* actors beside A and the peers */
enum { GO = 0, BACK = 1 };

static void child_talks(int fd) {
    send_text(fd, "from the child");
    take(fd, 5);
}

/* Death to whoever makes a memory file, as in a sandbox that knows what its program needs. */
static void forbid_memory_files(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    R(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    R(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
}

static void makes_a_socket_in_a_sandbox(int fd) {
    forbid_memory_files();
    int made = socket(AF_INET, SOCK_STREAM, 0);
    send_text(fd, made >= 0 ? "made" : "not made");
    close(made);
}

static void sandboxed_child_makes_a_socket(void) {
    int fd = pair();
    int pid = fork_actor(C, makes_a_socket_in_a_sandbox, fd);
    say_wait("child", pid);
    tell(P_TAKE, 4);
    exchange(fd);
    finish();
}

static void child_uses_it(void) {
    int fd = pair();
    int pid = fork_actor(C, child_talks, fd);
    tell(P_TAKE, 14);
    tell_text("reply");
    say_wait("child", pid);
    exchange(fd);
    finish();
}

static void waits_for_go(int fd) { await(GO); }

static void parent_uses_it_while_child_holds_it(void) {
    int fd = pair();
    int pid = fork_actor(C, waits_for_go, fd);
    exchange(fd);
    exchange(fd);
    post(GO);
    say_wait("child", pid);
    exchange(fd);
    finish();
}

static void alternates(int fd) {
    for (int i = 0; i < 10; i++) {
        await(GO);
        char text[16];
        snprintf(text, sizeof text, "child %02d..", i);
        send_text(fd, text);
        if (i % 3 == 0) take(fd, 3);
        post(BACK);
    }
}

static void parent_and_child_take_turns(void) {
    int fd = pair();
    int pid = fork_actor(C, alternates, fd);
    for (int i = 0; i < 10; i++) {
        char text[16];
        snprintf(text, sizeof text, "parent %02d.", i);
        send_text(fd, text);
        if (i % 3 == 0) tell_text("abc");
        post(GO);
        await(BACK);
        if (i % 3 == 1) {
            tell_text("xyz");
            take(fd, 3);
        }
    }
    tell(P_TAKE, 200);
    say_wait("child", pid);
    exchange(fd);
    finish();
}

static void closes(int fd) { R(close(fd)); }
static void nothing(int fd) {}

static void child_closes_and_exits(void) {
    int fd = pair();
    say_wait("child", fork_actor(C, closes, fd));
    exchange(fd);
    order(P_DRAIN, 0);
    R(close(fd));
    done();
    finish();
}

static void child_just_exits(void) {
    int fd = pair();
    say_wait("child", fork_actor(C, nothing, fd));
    exchange(fd);
    order(P_DRAIN, 0);
    R(close(fd));
    done();
    finish();
}

static void sends_last_words(int fd) {
    await(GO);
    send_text(fd, "last words");
}

static void parent_closes_and_child_goes_on(void) {
    int fd = pair();
    int pid = fork_actor(C, sends_last_words, fd);
    send_text(fd, "first ");
    R(close(fd));
    order(P_DRAIN, 0); /* ends only when the child has gone too */
    until_peer_asleep();
    post(GO);
    say_wait("child", pid);
    done();
    finish();
}

static void forks_again(int fd) {
    int pid = fork_actor(D, child_talks, fd);
    close(fd);
    say_wait("grandchild", pid);
}

static void grandchild_uses_it(void) {
    int fd = pair();
    int pid = fork_actor(C, forks_again, fd);
    tell(P_TAKE, 14);
    tell_text("reply");
    say_wait("child", pid);
    exchange(fd);
    finish();
}

static void takes_five(int fd) { take(fd, 5); }

static void unread_bytes_are_shared(void) {
    int fd = pair();
    tell_text("fiverest of it");
    settle(fd, 14);
    tell_text(" and more");
    settle(fd, 23);
    say_wait("child", fork_actor(C, takes_five, fd));
    take(fd, 18);
    exchange(fd);
    finish();
}

static void drains(int fd) { drain(fd); }

static void child_takes_over_a_stream(void) {
    int fd = pair();
    order(P_SEND, 1000000);
    take(fd, 300000);
    int pid = fork_actor(C, drains, fd);
    done();
    tell(P_SHUT, SHUT_WR);
    say_wait("child", pid);
    send_text(fd, "thanks");
    tell(P_TAKE, 6);
    finish();
}

static void streams_out(int fd) { send_n(fd, 400000, 9); }

static void one_process_per_direction(void) {
    int fd = pair();
    int pid = fork_actor(C, streams_out, fd);
    order(P_ECHO, 400000);
    take(fd, 400000);
    done();
    say_wait("child", pid);
    exchange(fd);
    finish();
}

static void peer_forks(int fd) {
    int pid = fork_actor(D, child_talks, fd);
    say_wait("peer's child", pid);
}

static void child_of_the_peer_uses_it(void) {
    int fd = pair();
    order_call(peer_forks);
    take(fd, 14);
    send_text(fd, "reply");
    done();
    exchange(fd);
    finish();
}

static void raw_fork_child_uses_it(void) {
    int fd = pair();
    int pid = (int)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        as_actor(C);
        child_talks(fd);
        _exit(0);
    }
    tell(P_TAKE, 14);
    tell_text("reply");
    say_wait("child", pid);
    finish();
}

static void underscore_fork_child_uses_it(void) {
    int fd = pair();
    int pid = _Fork();
    if (pid == 0) {
        as_actor(C);
        child_talks(fd);
        _exit(0);
    }
    tell(P_TAKE, 14);
    tell_text("reply");
    say_wait("child", pid);
    finish();
}

static void vfork_and_exec(void) {
    int fd = pair();
    for (int i = 0; i < 3; i++) {
        int pid = vfork();
        if (pid == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(127);
        }
        say_wait("true", pid);
        exchange(fd);
    }
    finish();
}

static void vfork_and_exit(void) {
    int fd = pair();
    int pid = vfork();
    if (pid == 0) _exit(3);
    say_wait("child", pid);
    exchange(fd);
    finish();
}

static void vfork_child_closes_then_execs(void) {
    int fd = pair();
    int pid = vfork();
    if (pid == 0) {
        close(fd); /* its own table: the parent's stays open */
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    say_wait("true", pid);
    exchange(fd);
    finish();
}

static void _talks_on_arg(void) { child_talks((int)exec_arg()); }

static void vfork_exec_inherits_it(void) {
    int fd = pair();
    set_exec_env(C, fd);
    const char *path = self_path();
    int pid = vfork();
    if (pid == 0) {
        execl(path, "case", "_talks_on_arg", (char *)NULL);
        _exit(127);
    }
    tell(P_TAKE, 14);
    tell_text("reply");
    say_wait("child", pid);
    exchange(fd);
    finish();
}

static int spawn(char **args, posix_spawn_file_actions_t *actions) {
    int pid = -1, e = posix_spawnp(&pid, args[0], actions, NULL, args, environ);
    if (e) say("posix_spawn: %s", errname(e));
    return pid;
}

static void posix_spawn_inherits_it(void) {
    int fd = pair();
    set_exec_env(C, fd);
    char *args[] = {(char *)self_path(), "_talks_on_arg", NULL};
    int pid = spawn(args, NULL);
    tell(P_TAKE, 14);
    tell_text("reply");
    say_wait("child", pid);
    exchange(fd);
    finish();
}

static void leaves_early_bytes(int fd) {
    tell_text("early bytes, ");
    settle(fd, 13);
}
static void talks_through_cat(int fd, int pid, bool early_bytes) {
    R(close(fd));
    tell_text("a line through cat\n");
    tell(P_TAKE, early_bytes ? 32 : 19);
    tell(P_SEND, 100000);
    tell(P_SHUT, SHUT_WR);
    tell(P_DRAIN, 0);
    say_wait("cat", pid);
    finish();
}

/* As inetd does: the connection becomes another program's standard input and output. */
static void serve_with_cat(bool unread_first) {
    int fd = pair();
    if (unread_first) leaves_early_bytes(fd);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    posix_spawn_file_actions_addclose(&actions, fd);
    char *args[] = {"cat", NULL};
    int pid = spawn(args, &actions);
    posix_spawn_file_actions_destroy(&actions);
    talks_through_cat(fd, pid, unread_first);
}
static void posix_spawn_onto_stdin_and_stdout(void) { serve_with_cat(false); }
static void posix_spawn_onto_stdin_with_unread_bytes(void) { serve_with_cat(true); }

static void system_and_popen_beside_it(void) {
    int fd = pair();
    R(system("exit 3") >> 8);
    exchange(fd);
    FILE *f = popen("echo hello from sh", "r");
    char line[64] = "";
    if (!fgets(line, sizeof line, f)) say("popen: nothing");
    say_bytes("popen", line, (long)strlen(line));
    exchange(fd);
    R(pclose(f));
    exchange(fd);
    finish();
}

static void shell_writes_to_it(void) {
    int fd = pair();
    char command[64];
    snprintf(command, sizeof command, "echo words from sh >&%d", fd);
    if (fd > 9) say("descriptor %d is too high for sh", fd);
    R(system(command));
    tell(P_TAKE, 14);
    exchange(fd);
    finish();
}

/* As Python's subprocess does it: vfork, dup2, exec; the descriptor itself is close-on-exec. */
static void serve_with_cat_by_vfork(bool unread_first) {
    int fd = pair();
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (unread_first) leaves_early_bytes(fd);
    char *args[] = {"cat", NULL};
    pid_t pid = vfork();
    if (pid == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        execvp("cat", args);
        _exit(90);
    }
    talks_through_cat(fd, pid, unread_first);
}
static void vfork_dup2_exec(void) { serve_with_cat_by_vfork(false); }
static void vfork_dup2_exec_with_unread_bytes(void) { serve_with_cat_by_vfork(true); }

/* The shell is not interested in what we have not read yet. */
static void system_and_popen_with_unread_bytes(void) {
    int fd = pair();
    tell(P_SEND, 7000);
    settle(fd, 7000);
    R(system("exit 3") >> 8);
    take(fd, 100);
    FILE *f = popen("echo hello from sh", "r");
    char line[64] = "";
    if (!f || !fgets(line, sizeof line, f)) say("popen: nothing");
    say_bytes("popen", line, (long)strlen(line));
    take(fd, 6900);
    if (f) R(pclose(f));
    exchange(fd);
    finish();
}

/* The shell reads a part, a child of the shell another, and we the rest. */
static void shell_and_its_child_read_from_it(void) {
    int fd = pair();
    char command[200];
    tell_text("first line\nsecond line\n3456789rest");
    settle(fd, 34);
    if (fd > 9) say("descriptor %d is too high for sh", fd);
    snprintf(command, sizeof command,
             "read -r a <&%d; dd bs=1 count=12 <&%d 2>/dev/null >/tmp/memlane-case-%d; test \"$a\" = 'first line'", fd, fd,
             (int)getpid());
    R(system(command) >> 8);
    snprintf(command, sizeof command, "/tmp/memlane-case-%d", (int)getpid());
    char text[64] = "";
    int file = open(command, O_RDONLY);
    say_bytes("dd", text, read(file, text, sizeof text));
    close(file);
    unlink(command);
    take(fd, 11);
    exchange(fd);
    finish();
}

static void _reads_stdin_by_stdio(void) {
    char line[100];
    peer_count = 1;
    while (fgets(line, sizeof line, stdin)) say_bytes("fgets", line, (long)strlen(line));
    finish();
}
static void exec_onto_stdin_of_a_stdio_program(void) {
    int fd = pair();
    tell_text("one\ntwo\n");
    settle(fd, 8);
    tell_text("three\n");
    tell(P_SHUT, SHUT_WR);
    R(dup2(fd, 0));
    exec_self("_reads_stdin_by_stdio", 0, fd);
}

/* A child reads what came long ago, while its parent and the same peer go on
 * with other connections: nothing may be written where the old bytes lie. */
enum { OLD = 100000, NEW = 700000 };
static void sends_old_then_new(int port) {
    char byte;
    for (int round = 0; round < 4; round++) {
        int fd = connect_port(port);
        for (int i = 0; i < 40; i++)
            if (send_all(fd, "x", 1) < 0 || recv_all(fd, &byte, 1) != 1) say("warm-up");
        send_n(fd, round == 0 ? OLD : NEW, (unsigned)round);
        shutdown(fd, SHUT_WR);
        if (round > 0) recv_all(fd, &byte, 1);
        close(fd);
    }
}
static int accepts_and_warms_up(int listener) {
    char byte;
    int fd = accept(listener, NULL, NULL);
    for (int i = 0; i < 40; i++)
        if (recv_all(fd, &byte, 1) != 1 || send_all(fd, "x", 1) < 0) say("warm-up");
    return fd;
}
static void child_reads_late_what_came_early(void) {
    int listener = listen_any(), go[2];
    int peer = fork_actor(5, sends_old_then_new, bound_port(listener));
    int old = accepts_and_warms_up(listener);
    settle(old, OLD);
    R(pipe(go));
    int child = fork();
    if (child == 0) {
        char byte;
        self_actor = 6;
        close(go[1]);
        if (read(go[0], &byte, 1) != 1) say("pipe");
        drain(old);
        _exit(0);
    }
    R(close(old));
    for (int round = 1; round < 4; round++) {
        int fd = accepts_and_warms_up(listener);
        drain(fd);
        send_all(fd, ".", 1);
        close(fd);
    }
    R((long)write(go[1], ".", 1));
    say_wait("child", child);
    say_wait("peer", peer);
}

static void exec_and_go_on(void) {
    int fd = pair();
    exec_self("_goes_on_and_orders", 0, fd);
}

static void _goes_on_and_orders(void) {
    int fd = (int)exec_arg();
    peer_count = 1;
    send_text(fd, "new program");
    tell(P_TAKE, 11);
    tell_text("bytes");
    take(fd, 5);
    exchange(fd);
    order(P_SEND, 100000);
    take(fd, 100000);
    done();
    order(P_DRAIN, 0);
    R(close(fd));
    done();
    finish();
}

static void exec_with_more_unread_bytes(void) {
    int fd = pair();
    tell_text("bytes");
    settle(fd, 5);
    tell(P_SEND, 9000);
    settle(fd, 9005);
    exec_self("_goes_on_with_9000", 0, fd);
}

static void _goes_on_with_9000(void) {
    int fd = (int)exec_arg(), n = -1;
    peer_count = 1;
    R(ioctl(fd, FIONREAD, &n));
    say("unread: %d", n);
    take(fd, 9005);
    exchange(fd);
    finish();
}

static void exec_in_mid_stream(void) {
    int fd = pair();
    order(P_SEND, 1500000);
    take(fd, 200000);
    exec_self("_takes_the_rest", 0, fd);
}

static void _takes_the_rest(void) {
    int fd = (int)exec_arg();
    peer_count = 1;
    take(fd, 1300000);
    done();
    exchange(fd);
    finish();
}

static void exec_closes_it(void) {
    int fd = pair();
    R(fcntl(fd, F_SETFD, FD_CLOEXEC));
    send_text(fd, "before exec");
    order(P_DRAIN, 0);
    exec_self("_waits_for_peer", 0, fd);
}

static void _waits_for_peer(void) {
    peer_count = 1;
    done();
    R(fcntl((int)exec_arg(), F_GETFD));
    finish();
}

static void exec_fails_and_it_goes_on(void) {
    int fd = pair();
    R(execl("/nonexistent/program", "program", (char *)NULL));
    exchange(fd);
    finish();
}

static void threads_child_talks(int fd) {
    say_wait("child", fork_actor(C, child_talks, fd));
}

static void thread_forks_while_another_reads(void) {
    int fd = pair();
    pthread_t t = thread_actor(D, threads_child_talks, fd);
    tell(P_TAKE, 14);
    tell_text("reply");
    pthread_join(t, NULL);
    exchange(fd);
    finish();
}

static void many_forks_under_traffic(void) {
    int fd = pair();
    for (int i = 0; i < 10; i++) {
        int pid = fork_actor(C, nothing, fd);
        exchange(fd);
        say_wait("child", pid);
    }
    finish();
}

/* A server that forks for each connection and closes its own copy. */
static void serves_and_exits(int fd) {
    peer_echo(fd, 64);
    send_text(fd, "bye");
}
static void forking_server_closes_its_copy(void) {
    int fd = pair();
    int pid = fork_actor(C, serves_and_exits, fd);
    R(close(fd));
    tell(P_SEND, 64);
    tell(P_DRAIN, 0);
    say_wait("child", pid);
    finish();
}

const struct one_case cases[] = {
#define CASE(name) {#name, name, NO_THREAD}
    CASE(child_uses_it),
    CASE(sandboxed_child_makes_a_socket),
    CASE(parent_uses_it_while_child_holds_it),
    CASE(parent_and_child_take_turns),
    CASE(child_closes_and_exits),
    CASE(child_just_exits),
    CASE(parent_closes_and_child_goes_on),
    CASE(grandchild_uses_it),
    CASE(unread_bytes_are_shared),
    CASE(child_takes_over_a_stream),
    CASE(one_process_per_direction),
    CASE(child_of_the_peer_uses_it),
    CASE(raw_fork_child_uses_it),
    CASE(underscore_fork_child_uses_it),
    CASE(vfork_and_exec),
    CASE(vfork_and_exit),
    CASE(vfork_child_closes_then_execs),
    CASE(vfork_exec_inherits_it),
    CASE(posix_spawn_inherits_it),
    CASE(posix_spawn_onto_stdin_and_stdout),
    CASE(posix_spawn_onto_stdin_with_unread_bytes),
    CASE(system_and_popen_beside_it),
    CASE(shell_writes_to_it),
    CASE(vfork_dup2_exec),
    CASE(vfork_dup2_exec_with_unread_bytes),
    CASE(system_and_popen_with_unread_bytes),
    CASE(shell_and_its_child_read_from_it),
    CASE(exec_onto_stdin_of_a_stdio_program),
    CASE(_reads_stdin_by_stdio),
    {"child_reads_late_what_came_early", child_reads_late_what_came_early, ONCE | LANE},
    CASE(exec_and_go_on),
    CASE(exec_with_more_unread_bytes),
    CASE(exec_in_mid_stream),
    CASE(exec_closes_it),
    CASE(exec_fails_and_it_goes_on),
    CASE(thread_forks_while_another_reads),
    CASE(many_forks_under_traffic),
    CASE(forking_server_closes_its_copy),
    CASE(_talks_on_arg),
    CASE(_goes_on_and_orders),
    CASE(_goes_on_with_9000),
    CASE(_takes_the_rest),
    CASE(_waits_for_peer),
    {NULL, NULL, 0},
};
