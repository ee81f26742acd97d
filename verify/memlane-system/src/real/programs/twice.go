package main

import "log"

// Added to a program: a second copy of the runtime's function for system calls (twice.s), as no compiler makes one. Nothing
// calls it.
func copyOfSyscall6()

var kept = copyOfSyscall6

func init() {
	if kept == nil {
		log.Fatal("no copy")
	}
}
