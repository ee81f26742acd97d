#include <stdio.h>
#include <stdlib.h>

#include "memlane.h"

/* Ends the program with a sentence when something is not as it must be. */
#define CHECK(what)                                                                                 \
    do {                                                                                            \
        if (!(what)) {                                                                              \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, memlane_last_error());   \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

/* The byte at a place of a stream: no period that a chunk's size could hide. */
static inline unsigned char byte_at(uint64_t at)
{
    return (unsigned char)((at * UINT64_C(0x9e3779b97f4a7c15)) >> 56);
}
