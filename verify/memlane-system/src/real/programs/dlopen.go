package main

// Added to a program: its C code opens a library.

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>

static int opens(void)
{
	return dlopen("libc.so.6", RTLD_NOW) != 0;
}
*/
import "C"

import "log"

func init() {
	if C.opens() == 0 {
		log.Fatal("dlopen")
	}
}
