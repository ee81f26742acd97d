/*
 * Gives a program SMC sockets where it asks for TCP sockets, as smc_run of smc-tools does. It is preloaded into the
 * programs of the column `smc` of `memlane-bench run counted`.
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef AF_SMC
#define AF_SMC 43
#endif
/* The two protocols of that family, from the kernel's net/smc/smc.h: over IPv4 and over IPv6. */
#define SMCPROTO_SMC 0
#define SMCPROTO_SMC6 1

int socket(int domain, int type, int protocol)
{
    int internet = domain == AF_INET || domain == AF_INET6;
    int stream = (type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK)) == SOCK_STREAM;

    if (internet && stream && (protocol == 0 || protocol == IPPROTO_TCP)) {
        protocol = domain == AF_INET6 ? SMCPROTO_SMC6 : SMCPROTO_SMC;
        domain = AF_SMC;
    }
    return (int)syscall(SYS_socket, domain, type, protocol);
}
