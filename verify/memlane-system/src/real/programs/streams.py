#!/usr/bin/env python3
"""Many streams at once to one process.

streams.py server WAIT PORT STREAMS BYTES: takes BYTES from each of STREAMS connections, which it serves in turns by WAIT (epoll,
poll or select) or with a thread for each (recv), and compares them. Prints how many of the streams were right.
streams.py client PORT STREAMS BYTES: sends, with a thread for each stream. Prints how many threads have sent all.
"""
import os
import random
import select
import socket
import sys
import threading

PIECE = 128 * 1024
ROUND = 1 << 20
# What a stream sends, again and again; two of them, so that each piece is one slice.
CONTENT = random.Random(7).randbytes(ROUND) * 2
VIEW = memoryview(CONTENT)


class Stream:
    def __init__(self, conn):
        self.conn, self.taken, self.right = conn, 0, True
        self.room = bytearray(PIECE)

    def take(self):
        """Takes what there is. Returns whether there may be more later."""
        n = self.conn.recv_into(self.room)
        at = self.taken % ROUND
        self.right &= self.room[:n] == CONTENT[at : at + n]
        self.taken += n
        return n > 0


def in_turns(wait, streams):
    by_fd = {s.conn.fileno(): s for s in streams}
    if wait == "select":
        while by_fd:
            for fd in select.select(list(by_fd), [], [])[0]:
                if not by_fd[fd].take():
                    del by_fd[fd]
        return
    waiting = {"epoll": select.epoll, "poll": select.poll}[wait]()
    for fd in by_fd:
        waiting.register(fd, select.POLLIN)
    while by_fd:
        for fd, _ in waiting.poll():
            if not by_fd[fd].take():
                waiting.unregister(fd)
                del by_fd[fd]


def in_threads(streams):
    def to_end(stream):
        while stream.take():
            pass

    threads = [threading.Thread(target=to_end, args=(s,)) for s in streams]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def server(wait, port, count, size):
    with socket.create_server(("127.0.0.1", port), backlog=count) as listener:
        streams = [Stream(listener.accept()[0]) for _ in range(count)]
    if wait == "recv":
        in_threads(streams)
    else:
        in_turns(wait, streams)
    print(f"right={sum(s.right and s.taken == size for s in streams)}")


def client(port, count, size):
    sent = []

    def send():
        with socket.create_connection(("127.0.0.1", port)) as conn:
            for at in range(0, size, PIECE):
                conn.sendall(VIEW[at % ROUND : at % ROUND + min(PIECE, size - at)])
        sent.append(1)

    threads = [threading.Thread(target=send) for _ in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print(f"sent={len(sent)}")


if sys.argv[1] == "server":
    server(sys.argv[2], *map(int, sys.argv[3:]))
else:
    client(*map(int, sys.argv[2:]))
sys.stdout.flush()
os._exit(0)
