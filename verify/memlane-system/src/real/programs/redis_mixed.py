"""Pipelines, MULTI, pub/sub and big values on several connections at once.

redis_mixed.py PORT SECONDS [bgsave]
"""
import hashlib
import random
import sys
import threading
import time

from resp import Redis

port, seconds, bgsave = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:] == ["bgsave"]
end = time.monotonic() + seconds
totals = {"pipelined": 0, "multi": 0, "published": 0, "values": 0, "saves": 0}
failures = []


def part(function):
    def run():
        try:
            function()
        except BaseException as error:
            failures.append(f"{function.__name__}: {error!r}")
    return threading.Thread(target=run)


def pipelines():
    redis, n = Redis(port), 0
    while time.monotonic() < end or n < 3:
        keys = [f"p{n}-{i}" for i in range(500)]
        for key in keys:
            redis.send("SET", key, key * 9)
        for key in keys:
            redis.send("GET", key)
        assert [redis.answer() for _ in keys] == [b"OK"] * 500
        assert [redis.answer() for _ in keys] == [(key * 9).encode() for key in keys]
        n += 1
        totals["pipelined"] += 1000


def transactions():
    redis, n = Redis(port), 0
    while time.monotonic() < end or n < 20:
        assert redis.ask("MULTI") == b"OK"
        assert redis.ask("INCR", "counter") == b"QUEUED"
        assert redis.ask("LPUSH", "list", n) == b"QUEUED"
        assert redis.ask("LRANGE", "list", 0, 0) == b"QUEUED"
        n += 1
        assert redis.ask("EXEC") == [n, n, [str(n - 1).encode()]]
        totals["multi"] += 1


def publish_and_subscribe():
    publisher, subscribers = Redis(port), [Redis(port) for _ in range(3)]
    for subscriber in subscribers:
        assert subscriber.ask("SUBSCRIBE", "news")[0] == b"subscribe"
    n = 0
    while time.monotonic() < end or n < 20:
        text = hashlib.sha256(b"%d" % n).hexdigest().encode() * (1 + n % 50)
        assert publisher.ask("PUBLISH", "news", text) == 3
        for subscriber in subscribers:
            assert subscriber.answer() == [b"message", b"news", text]
        n += 1
        totals["published"] += 1


def big_values(seed):
    def values():
        redis, rng, n = Redis(port), random.Random(seed), 0
        while time.monotonic() < end or n < 3:
            value = rng.randbytes(rng.choice([100_000, 1_000_000, 3_000_001]))
            assert redis.ask("SET", f"big{seed}", value) == b"OK"
            back = redis.ask("GET", f"big{seed}")
            assert hashlib.sha256(back).digest() == hashlib.sha256(value).digest()
            n += 1
            totals["values"] += 1
    values.__name__ = f"big_values_{seed}"
    return values


def saves():
    redis = Redis(port)
    while time.monotonic() < end or totals["saves"] < 2:
        before = redis.ask("LASTSAVE")
        redis.ask("BGSAVE")
        while b"rdb_bgsave_in_progress:1" in redis.ask("INFO", "persistence"):
            time.sleep(0.02)
        assert b"rdb_last_bgsave_status:ok" in redis.ask("INFO", "persistence")
        assert redis.ask("LASTSAVE") >= before
        totals["saves"] += 1


parts = [pipelines, transactions, publish_and_subscribe, big_values(1), big_values(2)]
threads = [part(function) for function in parts + [saves] * bgsave]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*(f"{key}={value}" for key, value in totals.items()))
sys.exit("\n".join(failures) or 0)
