package main

// Added to a program: it imports dlopen, as those that load plugins do.

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
