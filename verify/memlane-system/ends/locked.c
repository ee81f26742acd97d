/* A program that wants its memory never to be swapped out, as those with deadlines do. Prints the KiB that it has in
 * memory, and those of them that are locked, once it has a connection.
 *
 *   locked          all of its memory
 *   locked onfault  each page once it is used */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

static int fail(const char *what)
{
    perror(what);
    return 1;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int how = argc > 1 && !strcmp(argv[1], "onfault") ? MCL_ONFAULT : 0;
    if (mlockall(MCL_CURRENT | MCL_FUTURE | how)) return fail("mlockall");
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, len) || listen(listener, 1) || getsockname(listener, (void *)&at, &len))
        return fail("listen");
    if (connect(client, (void *)&at, len) || accept(listener, NULL, NULL) < 0) return fail("connect");
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) {
        long kib;
        if (sscanf(line, "VmRSS: %ld", &kib) == 1) printf("resident=%ld\n", kib);
        if (sscanf(line, "VmLck: %ld", &kib) == 1) printf("locked=%ld\n", kib);
    }
    return 0;
}
