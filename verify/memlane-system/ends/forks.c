/* Forks, one child after the other, with a listener and a connection open. Prints the page faults of each, one number a line.
 *
 *   forks N         N children that exit at once
 *   forks N starts  N children that start this program, as `forks 0`: it makes a listener and a connection, and ends */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int fail(const char *what)
{
    perror(what);
    return 1;
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
            _exit(argc > 2);
        int status;
        struct rusage used;
        if (child < 0 || wait4(child, &status, 0, &used) != child || status != 0)
            return fail("fork");
        printf("%ld\n", used.ru_minflt);
    }
    return 0;
}
