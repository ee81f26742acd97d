/* The part of the preload library that must be C: functions with "..." in
 * their prototypes, and one thread-local block reached without a call to
 * __tls_get_addr. No logic: each function unpacks its arguments and hands them
 * to Rust. The names that programs call are defined in lib.rs and jump here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

extern char **environ;

/* What follows is between this file and Rust: the loader need not look for it in other libraries. */
#pragma GCC visibility push(hidden)
int memlane_fcntl(int fd, int cmd, size_t arg);
int memlane_ioctl(int fd, unsigned long request, size_t arg);
int memlane_prctl(int option, size_t a, size_t b, size_t c, size_t d);
long memlane_syscall(size_t nr, size_t a, size_t b, size_t c, size_t d, size_t e, size_t f);
int memlane_execve(const char *path, char *const argv[], char *const envp[]);
int memlane_execvpe(const char *file, char *const argv[], char *const envp[]);
int memlane_is_conn(int fd);
ssize_t memlane_write_all(int fd, const void *buf, size_t len);
int memlane_real_vdprintf(int fd, const char *format, va_list args);
void *memlane_search(int behind_us, const char *name);
#pragma GCC visibility pop

/* Room for struct Thread of memlane-socket (its size is asserted in lib.rs). */
static __thread struct { unsigned char bytes[2048]; } state __attribute__((aligned(64), tls_model("initial-exec")));

void *memlane_thread(void) { return &state; }

/* `errno` of a program without libc (alone/names.rs). */
static __thread int error __attribute__((tls_model("initial-exec")));

__attribute__((visibility("hidden"))) int *memlane_errno(void) { return &error; }

/* The stack on which a thread of a Go program serves its system calls (golang/stack.rs); the door reads it too. */
__attribute__((visibility("hidden"), tls_model("initial-exec"))) __thread void *memlane_go_stack;

void memlane_forget_go_stack(void) { memlane_go_stack = NULL; }

/* A build without optimisation keeps functions of Rust's own library that refer
 * to this one; without it, no program could start with such a library. Only a
 * cancelled thread unwinds here, and our frames have nothing to clean up
 * (_URC_CONTINUE_UNWIND). */
__attribute__((visibility("hidden"))) int rust_eh_personality(void) { return 8; }

/* The library is inherited by every program that its user's programs start, so it must load under any libc. It wants no
 * library but libc. Its symbols are those of glibc 2.14 and of musl. What one of the two lacks is weak, and so is dlsym:
 * glibc has it in libc since 2.34 (where its oldest version is still found), and before in libdl, which not every process
 * loads. */
#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
#else
#error "which is the oldest version of dlsym here?"
#endif

__attribute__((weak)) void *dlsym(void *restrict handle, const char *restrict name);

void *memlane_dlsym(void *handle, const char *name)
{
#ifndef SEARCH_ALWAYS /* as the builds with fault points do, so that tests go that way */
    if (dlsym)
        return dlsym(handle, name);
#endif
    return memlane_search(handle == RTLD_NEXT, name);
}

__attribute__((weak)) void __chk_fail(void);
__attribute__((weak)) int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
/* A step of musl's loader, which looks it up by this name. */
__attribute__((weak)) void __dls3(void);

int memlane_is_musl(void) { return __dls3 != NULL; }

/* Is this thread of a program with musl certainly the only one? musl's block of a thread begins with its own address, has
 * those of the threads before and behind it at the third word and the fourth, and all are in a circle. */
int memlane_is_alone_in_musl(void)
{
#if defined(__x86_64__)
    void *volatile *self;
    __asm__ volatile("mov %%fs:0, %0" : "=r"(self));
    return self[0] == self && self[2] == self && self[3] == self;
#else
    return 0; /* the blocks' length is not known */
#endif
}

__attribute__((noreturn)) void memlane_chk_fail(void)
{
    if (__chk_fail)
        __chk_fail();
    abort();
}

/* glibc's pthread_atfork is linked into each program and calls __register_atfork; musl exports it. */
int memlane_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
    int (*atfork)(void (*)(void), void (*)(void), void (*)(void));
    if (__register_atfork)
        return __register_atfork(prepare, parent, child, NULL);
    atfork = (int (*)(void (*)(void), void (*)(void), void (*)(void)))memlane_dlsym(RTLD_NEXT, "pthread_atfork");
    return atfork ? atfork(prepare, parent, child) : -1;
}

int memlane_c_fcntl(int fd, int cmd, ...)
{
    va_list ap;
    va_start(ap, cmd);
    size_t arg = va_arg(ap, size_t);
    va_end(ap);
    return memlane_fcntl(fd, cmd, arg);
}

int memlane_c_ioctl(int fd, unsigned long request, ...)
{
    va_list ap;
    va_start(ap, request);
    size_t arg = va_arg(ap, size_t);
    va_end(ap);
    return memlane_ioctl(fd, request, arg);
}

int memlane_c_prctl(int option, ...)
{
    va_list ap;
    size_t a[4];
    va_start(ap, option);
    for (int i = 0; i < 4; i++)
        a[i] = va_arg(ap, size_t);
    va_end(ap);
    return memlane_prctl(option, a[0], a[1], a[2], a[3]);
}

long memlane_c_syscall(long nr, ...)
{
    va_list ap;
    size_t a[6];
    va_start(ap, nr);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(ap, size_t);
    va_end(ap);
    return memlane_syscall((size_t)nr, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* dprintf writes from inside libc, where no hook sees it. */
int memlane_vdprintf(int fd, const char *format, va_list args)
{
    if (!memlane_is_conn(fd))
        return memlane_real_vdprintf(fd, format, args);
    char *text = NULL;
    int len = vasprintf(&text, format, args);
    if (len < 0)
        return -1;
    ssize_t done = memlane_write_all(fd, text, (size_t)len);
    free(text);
    return done < 0 ? -1 : len;
}

int memlane_c_dprintf(int fd, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int r = memlane_vdprintf(fd, format, ap);
    va_end(ap);
    return r;
}

int memlane_c_dprintf_chk(int fd, int flag, const char *format, ...)
{
    (void)flag;
    va_list ap;
    va_start(ap, format);
    int r = memlane_vdprintf(fd, format, ap);
    va_end(ap);
    return r;
}

/* Collects "arg, ..., NULL" of execl and its relatives on the stack. */
#define COLLECT(argv, first, ap)                                  \
    va_list count_ap;                                             \
    va_copy(count_ap, ap);                                        \
    size_t argc = 1;                                              \
    while (va_arg(count_ap, char *) != NULL)                      \
        argc++;                                                   \
    va_end(count_ap);                                             \
    char *argv[argc + 1];                                         \
    argv[0] = (char *)(first);                                    \
    for (size_t i = 1; i <= argc; i++)                            \
        argv[i] = va_arg(ap, char *)

int memlane_c_execl(const char *path, const char *arg, ...)
{
    va_list ap;
    va_start(ap, arg);
    COLLECT(argv, arg, ap);
    va_end(ap);
    return memlane_execve(path, argv, environ);
}

int memlane_c_execlp(const char *file, const char *arg, ...)
{
    va_list ap;
    va_start(ap, arg);
    COLLECT(argv, arg, ap);
    va_end(ap);
    return memlane_execvpe(file, argv, environ);
}

int memlane_c_execle(const char *path, const char *arg, ...)
{
    va_list ap;
    va_start(ap, arg);
    COLLECT(argv, arg, ap);
    char **envp = va_arg(ap, char **);
    va_end(ap);
    return memlane_execve(path, argv, envp);
}
