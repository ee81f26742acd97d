/* Forks, one child after the other, with a listener and a connection open. Each child prints how many pages it has written to: those
 * that it has copied from its parent, and those that were new. One number a line.
 *
 *   forks N         N children that exit at once
 *   forks N starts  N children that start this program, as `forks 0`: it makes a listener and a connection, and ends */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int fail(const char *what)
{
    perror(what);
    return 1;
}

/* Not by page faults: how many of them a mapped file needs depends on how the kernel caches it. */
static int print_written_pages(void)
{
    static const char name[] = "\nPrivate_Dirty:";
    char text[4096];
    int fd = open("/proc/self/smaps_rollup", O_RDONLY);
    ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (len < 0)
        return fail("smaps_rollup");
    text[len] = 0;
    const char *line = strstr(text, name);
    return line ? dprintf(1, "%ld\n", atol(line + sizeof name - 1) / 4) < 0 : 1;
}

int main(int argc, char **argv)
{
    int children = argc > 1 ? atoi(argv[1]) : 1;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, len) || listen(listener, 1) || getsockname(listener, (void *)&at, &len))
        return fail("listen");
    if (connect(client, (void *)&at, len) || accept(listener, NULL, NULL) < 0)
        return fail("connect");
    for (int i = 0; i < children; i++) {
        pid_t child = fork();
        if (child == 0 && argc > 2)
            execl("/proc/self/exe", argv[0], "0", (char *)NULL);
        if (child == 0)
            _exit(argc > 2 || print_written_pages());
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            return fail("fork");
    }
    return children == 0 && print_written_pages();
}
