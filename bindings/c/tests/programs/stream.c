/* A TCP connection over memory: stream receive WAY | stream send WAY HOST:PORT BYTES; WAY is copy or place. */
#include <string.h>

#include "check.h"

static void receive(const char *way)
{
    static unsigned char seen[50000];
    memlane_listener *listener;
    memlane_stream *stream;
    memlane_stream_counted counts;
    char address[64];
    uint64_t total = 0;

    CHECK(memlane_listen("127.0.0.1:0", &listener) == 0);
    CHECK(memlane_listener_address(listener, address, sizeof address) > 0);
    puts(address);
    fflush(stdout);
    CHECK(memlane_stream_accept(listener, 60000, &stream) == 0);
    for (;;) {
        const void *place = seen;
        int64_t n = *way == 'c' ? memlane_stream_read(stream, seen, sizeof seen)
                                : memlane_stream_peek(stream, &place);
        if (n == MEMLANE_AGAIN) {
            CHECK(memlane_stream_wait(stream, MEMLANE_WAIT_PAYLOAD, 60000) == 1);
            continue;
        }
        CHECK(n >= 0);
        if (n == 0)
            break;
        for (int64_t at = 0; at < n; at++, total++)
            CHECK(((const unsigned char *)place)[at] == byte_at(total));
        if (*way != 'c')
            CHECK(memlane_stream_consume(stream, (size_t)n) == 0);
    }
    CHECK(memlane_stream_counts(stream, &counts, sizeof counts) == 0);
    CHECK(counts.received_in_memory + counts.received_by_tcp <= total);
    CHECK(memlane_stream_lane(stream) == MEMLANE_LANE_MEMORY);
    /* How many depends on who has a CPU when: who sleeps is woken by TCP. */
    printf("%llu bytes, %s\n", (unsigned long long)total,
           counts.received_in_memory > 0 ? "some in memory" : "all by TCP");
    CHECK(memlane_stream_close(stream) == 0);
    CHECK(memlane_listener_close(listener) == 0);
}

static int64_t send_some(memlane_stream *stream, const char *way, uint64_t at, uint64_t left)
{
    static unsigned char part[70001];
    size_t want = left < sizeof part ? (size_t)left : sizeof part;
    void *place = part;
    int64_t n = (int64_t)want;
    if (*way != 'c') {
        n = memlane_stream_reserve(stream, want, &place);
        if (n < 0)
            return n;
        CHECK(n > 0 && (size_t)n <= want);
    }
    for (int64_t i = 0; i < n; i++)
        ((unsigned char *)place)[i] = byte_at(at + (uint64_t)i);
    if (*way == 'c')
        return memlane_stream_write(stream, part, want);
    CHECK(memlane_stream_commit(stream, (size_t)n) == 0);
    return n;
}

static void send(const char *way, const char *address, uint64_t total)
{
    memlane_stream *stream;
    uint64_t at = 0;
    int flushed;

    CHECK(memlane_stream_connect(address, 60000, &stream) == 0);
    CHECK(memlane_stream_negotiate(stream, 10000) == MEMLANE_LANE_MEMORY);
    while (at < total) {
        int64_t n = send_some(stream, way, at, total - at);
        if (n == MEMLANE_AGAIN) {
            CHECK(memlane_stream_wait(stream, MEMLANE_WAIT_SOCKET, 60000) == 1);
            continue;
        }
        CHECK(n > 0);
        at += (uint64_t)n;
    }
    while ((flushed = memlane_stream_flush(stream)) == MEMLANE_AGAIN)
        CHECK(memlane_stream_wait(stream, MEMLANE_WAIT_SOCKET, 60000) == 1);
    CHECK(flushed == 0);
    CHECK(memlane_stream_shutdown(stream) == 0);
    CHECK(memlane_stream_close(stream) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3);
    if (strcmp(argv[1], "receive") == 0) {
        receive(argv[2]);
        return 0;
    }
    CHECK(argc == 5);
    send(argv[2], argv[3], strtoull(argv[4], NULL, 10));
    return 0;
}
