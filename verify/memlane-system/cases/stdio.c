/* FILE streams over a connection: libc's own reads and writes pass no hook. */
#include "common.h"

#include <aio.h>

static void fgets_line(FILE *f) {
    char line[200] = "";
    if (!fgets(line, sizeof line, f)) say("fgets: %s", feof(f) ? "EOF" : errname(errno));
    else say_bytes("fgets", line, (long)strlen(line));
}

static void fdopen_to_read(void) {
    int fd = pair();
    FILE *f = fdopen(fd, "r");
    tell_text("first line\nsecond line\n");
    fgets_line(f);
    fgets_line(f);
    tell_text("third\n");
    fgets_line(f);
    tell(P_SHUT, SHUT_WR);
    fgets_line(f);
    R(fclose(f));
    finish();
}

static void fdopen_with_unread_bytes(void) {
    int fd = pair();
    tell_text("waiting line\n");
    settle(fd, 13);
    tell_text("another\n");
    settle(fd, 21);
    FILE *f = fdopen(fd, "r+");
    fgets_line(f);
    fgets_line(f);
    tell(P_SHUT, SHUT_WR);
    fgets_line(f);
    R(fclose(f));
    finish();
}

static void fdopen_after_some_was_read(void) {
    int fd = pair();
    tell_text("raw bytes then a line\n");
    settle(fd, 22);
    take(fd, 10);
    FILE *f = fdopen(fd, "r");
    fgets_line(f);
    order(P_SEND, 50000);
    char *big = malloc(50000);
    size_t n = fread(big, 1, 50000, f);
    done();
    say_bytes("fread", big, (long)n);
    free(big);
    finish();
}

static void fdopen_to_write(void) {
    int fd = pair();
    FILE *f = fdopen(fd, "w");
    fprintf(f, "number %d\n", 42);
    R(fflush(f));
    tell(P_TAKE, 10);
    char big[20000];
    fill(big, sizeof big, 5);
    order(P_TAKE, 20000);
    R(fwrite(big, 1, sizeof big, f));
    R(fflush(f));
    done();
    fputs("unflushed end", f);
    order(P_DRAIN, 0);
    R(fclose(f));
    done();
    finish();
}

static void one_stream_both_ways(void) {
    int fd = pair();
    FILE *f = fdopen(fd, "r+");
    setvbuf(f, NULL, _IOLBF, 4096);
    for (int i = 0; i < 3; i++) {
        fprintf(f, "request %d\n", i);
        fflush(f);
        tell(P_TAKE, 10);
        tell_text("response\n");
        fgets_line(f);
    }
    R(fclose(f));
    finish();
}

static void two_streams_over_a_dup(void) {
    int fd = pair();
    FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
    for (int i = 0; i < 3; i++) {
        fprintf(out, "%d\n", i);
        fflush(out);
        tell(P_TAKE, 2);
        tell_text("ok\n");
        fgets_line(in);
    }
    R(fclose(out));
    tell_text("more\n");
    fgets_line(in);
    order(P_DRAIN, 0);
    R(fclose(in));
    done();
    finish();
}

static void unbuffered_stream(void) {
    int fd = pair();
    FILE *f = fdopen(fd, "r+");
    setvbuf(f, NULL, _IONBF, 0);
    fputs("unbuffered", f);
    tell(P_TAKE, 10);
    tell_text("ab");
    R(fgetc(f));
    R(fgetc(f));
    exchange(fd); /* the descriptor beside the stream */
    finish();
}

static void getline_and_ungetc(void) {
    int fd = pair();
    FILE *f = fdopen(fd, "r");
    tell_text("a long enough line to get\nx");
    char *line = NULL;
    size_t room = 0;
    long n = R(getline(&line, &room, f));
    say_bytes("getline", line, n);
    free(line);
    R(ungetc('y', f));
    R(fgetc(f));
    R(fgetc(f));
    finish();
}

static void peer_uses_stdio(int fd) {
    FILE *f = fdopen(dup(fd), "r+");
    fgets_line(f);
    fprintf(f, "answer\n");
    fclose(f);
}

static void peer_switches_to_stdio(void) {
    int fd = pair();
    order_call(peer_uses_stdio);
    send_text(fd, "question\n");
    take(fd, 7);
    done();
    exchange(fd);
    finish();
}

static void peer_switches_with_unread_bytes(void) {
    int fd = pair();
    send_text(fd, "question\n");
    tell_call(peer_uses_stdio);
    take(fd, 7);
    exchange(fd);
    finish();
}

static void dprintf_to_it(void) {
    int fd = pair();
    R(dprintf(fd, "text %d and %s", 5, "words"));
    tell(P_TAKE, 16);
    exchange(fd);
    send_text(fd, "before ");
    R(dprintf(fd, "between "));
    send_text(fd, "after");
    tell(P_TAKE, 20);
    exchange(fd);
    finish();
}

static void stream_and_descriptor_mixed(void) {
    int fd = pair();
    FILE *f = fdopen(fd, "w");
    send_text(fd, "1 ");
    fputs("2 ", f);
    fflush(f);
    send_text(fd, "3 ");
    fputs("4 ", f);
    fflush(f);
    send_text(fd, "5");
    tell(P_TAKE, 9);
    exchange(fd);
    finish();
}

static void freopen_of_dev_fd_style_close(void) {
    int fd = pair();
    FILE *f = fdopen(fd, "r+");
    order(P_DRAIN, 0);
    OK(freopen("/dev/null", "r", f) ? 0 : -1); /* closes the connection */
    done();
    finish();
}

static struct aiocb request_for(int fd, char *buf, size_t len) {
    struct aiocb cb;
    memset(&cb, 0, sizeof cb);
    cb.aio_fildes = fd;
    cb.aio_buf = buf;
    cb.aio_nbytes = len;
    return cb;
}

static void posix_aio_on_it(void) {
    int fd = pair();
    char buf[32];
    struct aiocb cb = request_for(fd, buf, sizeof buf);
    cb.aio_sigevent.sigev_notify = SIGEV_NONE;
    tell_text("read by aio");
    settle(fd, 11);
    const struct aiocb *list[] = {&cb};
    R(aio_read(&cb));
    while (aio_error(&cb) == EINPROGRESS) aio_suspend(list, 1, NULL);
    long n = R(aio_return(&cb));
    say_bytes("aio_read", buf, n);
    strcpy(buf, "written by aio");
    cb.aio_nbytes = 14;
    R(aio_write(&cb));
    while (aio_error(&cb) == EINPROGRESS) aio_suspend(list, 1, NULL);
    R(aio_return(&cb));
    tell(P_TAKE, 14);
    exchange(fd);
    finish();
}

/* Two requests in one list; a signal says when each is done. */
static void posix_aio_tells_by_a_signal(void) {
    int fd = pair();
    char buf[32];
    sigset_t set;
    siginfo_t got;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    struct aiocb cb = request_for(fd, buf, sizeof buf);
    cb.aio_sigevent.sigev_notify = SIGEV_SIGNAL;
    cb.aio_sigevent.sigev_signo = SIGUSR2;
    cb.aio_sigevent.sigev_value.sival_int = 77;
    tell_text("read by aio");
    settle(fd, 11);
    R(aio_read(&cb));
    struct timespec limit = {5, 0};
    int signo = sigtimedwait(&set, &got, &limit);
    say("signal %d, value %d, code %d", signo == SIGUSR2, got.si_value.sival_int, got.si_code == SI_ASYNCIO);
    R(aio_error(&cb));
    say_bytes("aio_read", buf, R(aio_return(&cb)));
    exchange(fd);
    finish();
}

const struct one_case cases[] = {
#define CASE(name) {#name, name, 0}
    CASE(fdopen_to_read),
    CASE(fdopen_with_unread_bytes),
    CASE(fdopen_after_some_was_read),
    CASE(fdopen_to_write),
    CASE(one_stream_both_ways),
    CASE(two_streams_over_a_dup),
    CASE(unbuffered_stream),
    CASE(getline_and_ungetc),
    CASE(peer_switches_to_stdio),
    CASE(peer_switches_with_unread_bytes),
    CASE(dprintf_to_it),
    CASE(stream_and_descriptor_mixed),
    CASE(freopen_of_dev_fd_style_close),
    CASE(posix_aio_on_it),
    {"posix_aio_tells_by_a_signal", posix_aio_tells_by_a_signal, NO_THREAD},
    {NULL, NULL, 0},
};
