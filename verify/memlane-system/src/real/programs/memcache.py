"""Several threads store binary blobs in memcached and compare what comes back.

memcache.py PORT SECONDS THREADS
"""
import hashlib
import random
import socket
import sys
import threading
import time

port, seconds, threads = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
end = time.monotonic() + seconds
failures, values, batches = [], [0] * threads, [0] * threads


def stored(file):
    line = file.readline()
    assert line == b"STORED\r\n", line


def value_of(file, key):
    line = file.readline().split()
    assert line[:2] == [b"VALUE", key], line
    length = int(line[3])
    data = file.read(length + 2)
    assert len(data) == length + 2 and data.endswith(b"\r\n")
    return data[:-2]


def blobs(number, sock, file, rng):
    value = rng.randbytes(rng.choice([1, 100, 4096, 70_000, 1_000_000]))
    key = b"blob%d" % number
    sock.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
    stored(file)
    sock.sendall(b"get %s\r\n" % key)
    back = value_of(file, key)
    assert file.readline() == b"END\r\n"
    assert hashlib.sha256(back).digest() == hashlib.sha256(value).digest()
    values[number] += 1


def pipeline(number, sock, file, rng):
    pairs = {b"k%d-%d" % (number, n): rng.randbytes(rng.randrange(1, 3000)) for n in range(100)}
    commands = [b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value) for key, value in pairs.items()]
    sock.sendall(b"".join(commands))
    for _ in pairs:
        stored(file)
    sock.sendall(b"get %s\r\n" % b" ".join(pairs))
    for key, value in pairs.items():
        assert value_of(file, key) == value
    assert file.readline() == b"END\r\n"
    batches[number] += 1


def client(number):
    try:
        rng = random.Random(number)
        sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        file = sock.makefile("rb")
        while time.monotonic() < end or batches[number] < 3:
            blobs(number, sock, file, rng)
            pipeline(number, sock, file, rng)
    except BaseException as error:
        failures.append(f"client {number}: {error!r}")


workers = [threading.Thread(target=client, args=(number,)) for number in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(f"values={sum(values)} batches={sum(batches)}")
sys.exit("\n".join(failures) or 0)
