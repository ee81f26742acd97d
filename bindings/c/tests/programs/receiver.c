/* Receives a stream into a region that is much shorter, and looks at every byte: receiver REGION CHUNK [PATH]. */
#include "check.h"

int main(int argc, char **argv)
{
    static unsigned char seen[1 << 20];
    memlane_region *region;
    memlane_listener *listener;
    memlane_devmem *stream;
    memlane_fragment got[7];
    memlane_counts counts;
    char address[64];
    uint64_t total = 0;

    memlane_terms terms = {.size = sizeof terms};

    CHECK(argc >= 3);
    terms.require = argc > 3 ? argv[3] : NULL;
    CHECK(memlane_abi() == MEMLANE_ABI);
    CHECK(memlane_region_create(argv[1], (uint32_t)atoi(argv[2]), &region) == 0);
    CHECK(memlane_listen("127.0.0.1:0", &listener) == 0);
    CHECK(memlane_listener_address(listener, address, sizeof address) > 0);
    puts(address);
    fflush(stdout);
    CHECK(memlane_devmem_accept(listener, region, &terms, 60000, &stream) == 0);
    CHECK(memlane_listener_close(listener) == 0);

    for (;;) {
        int n = memlane_devmem_receive(stream, got, sizeof got / sizeof got[0]);
        if (n == MEMLANE_AGAIN) {
            CHECK(memlane_devmem_wait(stream, MEMLANE_WAIT_PAYLOAD, 60000) == 1);
            continue;
        }
        CHECK(n >= 0);
        if (n == 0)
            break;
        for (int i = 0; i < n; i++) {
            CHECK(got[i].len > 0 && got[i].len <= sizeof seen);
            CHECK(memlane_devmem_read(stream, got[i].token, 0, seen, got[i].len) == 0);
            for (uint32_t at = 0; at < got[i].len; at++, total++)
                CHECK(seen[at] == byte_at(total));
        }
        CHECK(memlane_devmem_release_all(stream, got, (size_t)n) == n);
    }
    CHECK(memlane_devmem_counts(stream, &counts, sizeof counts) == 0);
    CHECK(counts.received == total && counts.out == 0 && counts.released == counts.fragments);
    printf("%llu bytes by %s, bounced %llu\n", (unsigned long long)total, memlane_devmem_path(stream),
           (unsigned long long)counts.bounced);
    CHECK(memlane_devmem_close(stream) == 0);
    CHECK(memlane_region_destroy(region) == 0);
    return 0;
}
