/* The cases of uring.c by liburing, which makes its system calls itself. */
#define BY_LIBURING
#include "uring.c"
