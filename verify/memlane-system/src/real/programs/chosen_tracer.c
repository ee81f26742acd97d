/* chosen_tracer PROGRAM ARGUMENT…: allows a child to trace it (Yama, PR_SET_PTRACER), starts the program by posix_spawn, and says
 * whether the child can still trace it. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int ended(pid_t pid) {
    int status;
    if (waitpid(pid, &status, 0) != pid) exit(9);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

int main(int count, char **arguments) {
    int go[2];
    if (count < 2 || pipe(go)) return 9;
    pid_t tracer = fork();
    if (tracer == 0) {
        char byte;
        if (read(go[0], &byte, 1) != 1) _exit(9);
        _exit(ptrace(PTRACE_SEIZE, getppid(), 0, 0) ? 1 : 0);
    }
    if (prctl(PR_SET_PTRACER, tracer, 0, 0, 0)) perror("prctl");
    pid_t program;
    if (posix_spawn(&program, arguments[1], NULL, NULL, arguments + 1, environ)) return 9;
    int result = ended(program);
    if (write(go[1], "", 1) != 1) return 9;
    printf("the chosen tracer %s trace\n", ended(tracer) ? "cannot" : "can");
    return result;
}
