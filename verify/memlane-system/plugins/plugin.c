/* A library that a program loads late. It has a function of its own with a name of liburing's, which gets what looks like
 * liburing's structure, with nothing prepared. */
static unsigned mask = 7;
static char entries[512];
static struct {
    void *kernels[2];
    unsigned *mask;
    void *words[4];
    char *entries;
    unsigned head, tail;
    void *rest[64];
} ring = {.mask = &mask, .entries = entries};

int io_uring_submit(void *ring) { return 42; }

int ask(void) { return io_uring_submit(&ring); }
