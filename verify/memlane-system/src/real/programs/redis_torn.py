"""Asks redis for a big value, reads a little of it, and waits for redis to be killed.

redis_torn.py PORT MEGABYTES READYFILE KILLEDFILE

Then reads what is left and prints how much came and how it ended.
"""
import os
import random
import sys
import time

from resp import Redis

port, length, ready, killed = int(sys.argv[1]), int(sys.argv[2]) << 20, sys.argv[3], sys.argv[4]
value = random.Random(5).randbytes(length)
redis = Redis(port)
for n in range(200):
    assert redis.ask("SET", "n", n) == b"OK"
assert redis.ask("SET", "big", value) == b"OK"
redis.send("GET", "big")

head = b"$%d\r\n" % length
expected = head + value + b"\r\n"
got = bytearray(redis.sock.recv(len(head)))
while len(got) < 1 << 20:
    got += redis.sock.recv(65536)
open(ready, "w").close()
while not os.path.exists(killed):
    time.sleep(0.01)

redis.sock.settimeout(30)
while True:
    try:
        data = redis.sock.recv(1 << 20)
    except ConnectionResetError:
        ending = "reset"
        break
    except TimeoutError:
        ending = "stall"
        break
    if not data:
        ending = "end"
        break
    got += data
right = expected.startswith(bytes(got))
print(f"got={len(got)} of={len(expected)} right={int(right)} ending {ending}")
