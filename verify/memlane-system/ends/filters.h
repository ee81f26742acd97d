/* Seccomp filters, and limits, of an end: what a program may lose in the middle of its life. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* A system call by an instruction of our own: no library sees it. */
static long unseen(long number, long a, long b, long c) {
    long got;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(got) : "0"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
#else
    register long n __asm__("x8") = number;
    register long first __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(n), "r"(second), "r"(third) : "memory");
    got = first;
#endif
    return got;
}

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ANSWER(what) BPF_STMT(BPF_RET | BPF_K, what)

/* From now on call `number` (of `first` argument, if that is not -1) fails with `error`. The library has not seen it. */
static void fail_unseen(int number, int first, int error) {
    struct sock_filter code[] = {
        LOAD(nr),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 4),
        LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)first, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JA, first == -1 ? 0 : 1, 0, 0),
        ANSWER(SECCOMP_RET_ERRNO | (unsigned)error),
        ANSWER(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) die("no_new_privs");
    if (unseen(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&program) != 0) die("seccomp");
}

/* What `send`, `take` and the orders themselves need, and death for everything else. */
static void strict(void) {
    static const unsigned needed[] = {SYS_read, SYS_write, SYS_sendto, SYS_recvfrom, SYS_exit_group};
    enum { CALLS = sizeof needed / sizeof *needed };
    struct sock_filter code[CALLS + 3] = {LOAD(nr)};
    for (unsigned i = 0; i < CALLS; i++)
        code[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, needed[i], CALLS - i, 0);
    code[CALLS + 1] = (struct sock_filter)ANSWER(SECCOMP_RET_KILL_PROCESS);
    code[CALLS + 2] = (struct sock_filter)ANSWER(SECCOMP_RET_ALLOW);
    struct sock_fprog program = {CALLS + 3, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) die("no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0) die("seccomp");
}

static void limit(int what, rlim_t to) {
    struct rlimit limit = {to, to};
    if (setrlimit(what, &limit) != 0) die("setrlimit");
}
