// Says how long the kernel's table of this process's descriptors is. It reads with bare system calls: package os would make an
// epoll set.
package main

import (
	"fmt"
	"net"
	"strings"
	"syscall"
)

func main() {
	fd, err := syscall.Open("/proc/self/status", syscall.O_RDONLY, 0)
	if err != nil {
		panic(err)
	}
	bytes := make([]byte, 8192)
	n, err := syscall.Read(fd, bytes)
	if err != nil {
		panic(err)
	}
	for _, line := range strings.Split(string(bytes[:n]), "\n") {
		if rest, found := strings.CutPrefix(line, "FDSize:"); found {
			fmt.Println(strings.TrimSpace(rest))
		}
	}
	if false {
		net.Dial("tcp", "")
	}
}
