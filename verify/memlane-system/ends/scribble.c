/* Somebody who has a file mapped, and writes nonsense into all of it, again and again, until a signal ends it.
 *
 *   scribble FILE             says "scribbles" after the first pass
 *
 * One pass writes zeros, the next one ones, the others random words. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* xorshift64 */
static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

int main(int argc, char **argv) {
    enum { PASSES = 8, PAUSE_US = 2000 };
    struct stat about;
    int fd = open(argc > 1 ? argv[1] : "", O_RDWR);
    if (fd < 0 || fstat(fd, &about) != 0) die("open");
    size_t words = (size_t)about.st_size / sizeof(uint64_t);
    volatile uint64_t *all = mmap(NULL, words * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (all == MAP_FAILED) die("mmap");
    uint64_t state = 1;
    for (unsigned pass = 0;; pass++) {
        for (size_t i = 0; i < words; i++)
            all[i] = pass % PASSES == 0 ? 0 : pass % PASSES == 1 ? UINT64_MAX : next(&state);
        if (pass == 0 && puts("scribbles") > 0) fflush(stdout);
        usleep(PAUSE_US);
    }
}
