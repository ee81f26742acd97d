"""A server that outlives its clients, and clients that are killed.

outlive.py server ADDRESS
    says "port N", and for each line "WHAT" of its input takes connections until a line "over", serves them until they end,
    and says for each of them "WHAT id taken=BYTES end=ERRNO after=ERRNO" (0: end of stream), then "done".
outlive.py client ADDRESS PORT WHAT FILE ID...
    makes a connection for each ID, and writes how many bytes it has sent on it to 8 bytes of FILE at 8 * ID.

WHAT: take = the server takes what the clients send; give = the clients take a little of what the server sends; idle =
nobody says anything. A few exchanges come first.
"""

import errno
import mmap
import random
import select
import socket
import struct
import sys
import threading
import time

PERIOD = 1 << 18
PIECE = 50000


def stream_of(number):
    """What client `number` sends: for ever."""
    once = random.Random(number).randbytes(PERIOD)
    return once + once[:PIECE]


def exactly(conn, size):
    got = b""
    while len(got) < size:
        part = conn.recv(size - len(got))
        if not part:
            raise OSError(0, "end of stream")
        got += part
    return got


def take(conn, stream):
    """How many bytes came, and how they ended."""
    taken = 0
    while True:
        try:
            part = conn.recv(PIECE)
        except OSError as error:
            return taken, error.errno
        if not part:
            return taken, 0
        at = taken % PERIOD
        if part != stream[at : at + len(part)]:
            sys.exit(f"other bytes at {taken}")
        taken += len(part)


def send_until_it_fails(conn):
    """What is sent after the end: when does it fail, and how?"""
    for _ in range(2000):
        try:
            conn.send(b"?", socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError as error:
            return error.errno
        time.sleep(0.001)
    return 0


def serve_one(conn, what, say):
    number, taken, end = -1, 0, 0
    try:
        number = struct.unpack("<Q", exactly(conn, 8))[0]
        for _ in range(20):
            conn.sendall(exactly(conn, 100))
        if what == "give":
            while True:
                conn.sendall(b"x" * PIECE)
        taken, end = take(conn, stream_of(number))
    except OSError as error:
        end = error.errno
    after = send_until_it_fails(conn)
    conn.close()
    say(f"{what} {number} taken={taken} end={end} after={after}")


def serve(address):
    listener = socket.create_server((address, 0))
    print("port", listener.getsockname()[1], flush=True)
    lock = threading.Lock()

    def say(line):
        with lock:
            print(line, flush=True)

    # No line may lie in a buffer where select does not see it.
    orders = open(0, "rb", buffering=0)
    while what := orders.readline().decode().strip():
        threads = []
        while True:
            ready, _, _ = select.select([listener, orders], [], [])
            if listener not in ready:
                break
            conn = listener.accept()[0]
            threads.append(threading.Thread(target=serve_one, args=(conn, what, say)))
            threads[-1].start()
        orders.readline()
        for thread in threads:
            thread.join()
        say("done")


def call(address, port, what, progress, number):
    conn = socket.create_connection((address, port))
    conn.sendall(struct.pack("<Q", number))
    for _ in range(20):
        conn.sendall(b"e" * 100)
        exactly(conn, 100)
    stream, sent = stream_of(number), 1
    struct.pack_into("<Q", progress, 8 * number, sent)
    while what == "take":
        at = (sent - 1) % PERIOD
        sent += conn.send(stream[at : at + PIECE])
        struct.pack_into("<Q", progress, 8 * number, sent)
    if what == "give":
        exactly(conn, 300000)
        struct.pack_into("<Q", progress, 8 * number, 300001)
    time.sleep(60)


def main():
    if sys.argv[1] == "server":
        return serve(sys.argv[2])
    address, port, what, name = sys.argv[2:6]
    with open(name, "r+b") as file:
        progress = mmap.mmap(file.fileno(), 0)
    for number in sys.argv[6:]:
        args = (address, int(port), what, progress, int(number))
        threading.Thread(target=call, args=args).start()


main()
