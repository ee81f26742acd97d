package main

// Added to many.go: C code of the program, which calls libc, uses a connection of its own or one of Go's.

/*
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int by_libc(int fd, int rounds)
{
	for (int n = 0; n < rounds; n++) {
		unsigned char sent[200], got[200];
		memset(sent, n, sizeof sent);
		if (write(fd, sent, sizeof sent) != sizeof sent)
			return -1;
		for (size_t have = 0; have < sizeof got;) {
			ssize_t more = read(fd, got + have, sizeof got - have);
			if (more > 0) {
				have += more;
				continue;
			}
			if (more == 0 || errno != EAGAIN)
				return -2;
			struct pollfd wait = { fd, POLLIN, 0 };
			if (poll(&wait, 1, 30000) != 1)
				return -3;
		}
		if (memcmp(sent, got, sizeof sent) != 0)
			return -4;
	}
	return 0;
}

static int dial_by_libc(int port)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in to = { AF_INET, htons(port), { htonl(INADDR_LOOPBACK) }, { 0 } };
	return fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0 ? fd : -1;
}
*/
import "C"

import (
	"log"
	"strconv"
)

func rounds(fd uintptr) {
	if failed := C.by_libc(C.int(fd), 300); failed != 0 {
		log.Fatal("by libc: ", failed)
	}
}

func init() {
	extra["libc"] = func(port string) {
		number, err := strconv.Atoi(port)
		must(err)
		fd := C.dial_by_libc(C.int(number))
		if fd < 0 {
			log.Fatal("not connected")
		}
		rounds(uintptr(fd))
	}
	extra["both"] = func(port string) {
		conn := dial(port)
		r := random()
		raw, err := conn.SyscallConn()
		must(err)
		for n := 0; n < 10; n++ {
			converse(conn, r, 30, 2000)
			must(raw.Control(rounds))
		}
		end(conn)
	}
}
