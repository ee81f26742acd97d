// Says what it was started with: facts [TEXT…]. Then it copies standard input to standard output.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
)

func status(names ...string) {
	bytes, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(bytes), "\n") {
		for _, name := range names {
			if strings.HasPrefix(line, name+":") {
				fmt.Println(strings.Join(strings.Fields(line), " "))
			}
		}
	}
}

func environment() {
	var given []string
	for _, entry := range os.Environ() {
		if strings.HasPrefix(entry, "FACT") {
			given = append(given, entry)
		}
	}
	sort.Strings(given)
	fmt.Println("environment", given)
}

func main() {
	exe, err := os.Executable()
	fmt.Println("executable", filepath.Base(exe), err)
	fmt.Println("arguments", os.Args[1:])
	dir, _ := os.Getwd()
	fmt.Println("directory", filepath.Base(dir))
	fmt.Println("leads a group", syscall.Getpgrp() == os.Getpid())
	priority, _ := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	fmt.Println("priority", priority)
	// Not SigPnd: Go interrupts its own threads by signals.
	status("ShdPnd", "SigBlk", "SigIgn", "TracerPid", "Uid", "NoNewPrivs")
	environment()
	for fd := 0; fd < 10; fd++ {
		var stat syscall.Stat_t
		if syscall.Fstat(fd, &stat) == nil {
			fmt.Printf("descriptor %d %o\n", fd, stat.Mode&syscall.S_IFMT)
		}
	}
	io.Copy(os.Stdout, os.Stdin)
	if len(os.Args) > 9 {
		net.Dial("tcp", "")
	}
}
