/* Sends BYTES bytes of a pattern out of a region: sender HOST:PORT BYTES. */
#include "check.h"

int main(int argc, char **argv)
{
    static unsigned char part[300007];
    memlane_region *region;
    memlane_devmem *stream;
    uint64_t total, at = 0;

    CHECK(argc == 3);
    total = strtoull(argv[2], NULL, 10);
    CHECK(memlane_region_create("memfd:1M", 4096, &region) == 0);
    CHECK(memlane_devmem_connect(argv[1], region, NULL, 60000, &stream) == 0);
    while (at < total) {
        uint32_t len = total - at < sizeof part ? (uint32_t)(total - at) : (uint32_t)sizeof part;
        uint32_t sent = 0;
        for (uint32_t i = 0; i < len; i++)
            part[i] = byte_at(at + i);
        CHECK(memlane_region_write(region, 4097, part, len) == 0);
        while (sent < len) {
            int64_t n = memlane_devmem_send(stream, 4097 + sent, len - sent);
            if (n == MEMLANE_AGAIN) {
                CHECK(memlane_devmem_wait(stream, MEMLANE_WAIT_SOCKET, 60000) == 1);
                continue;
            }
            CHECK(n > 0);
            sent += (uint32_t)n;
        }
        at += len;
    }
    CHECK(memlane_devmem_shutdown(stream) == 0);
    CHECK(memlane_devmem_close(stream) == 0);
    CHECK(memlane_region_destroy(region) == 0);
    return 0;
}
