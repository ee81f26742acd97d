#!/usr/bin/env python3
"""A crowd of messages for a program that sleeps and then gets no CPU for a while.

stopped.py server PORT: says its process's number on each connection, then echoes, with one epoll set, until all are closed.
stopped.py client PORT CONNECTIONS ROUNDS: talks over each connection until their lanes should be open. Then, ROUNDS times, it waits
until the server sleeps, stops it, sends a message over each connection, and lets it go on. Prints how many answers were right, and
how many crowds were sent within a millisecond.
"""
import os
import select
import signal
import socket
import sys
import time

SIZE = 100


def whole(conn, size=SIZE):
    data = b""
    while len(data) < size:
        data += conn.recv(size - len(data))
    return data


def server(port):
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    waits = select.epoll()
    waits.register(listener, select.EPOLLIN)
    conns = {}
    had_one = False
    while conns or not had_one:
        for fd, _ in waits.poll():
            if fd == listener.fileno():
                conn = listener.accept()[0]
                conns[conn.fileno()] = conn
                waits.register(conn, select.EPOLLIN)
                conn.sendall(os.getpid().to_bytes(8, "little"))
                had_one = True
                continue
            data = conns[fd].recv(65536)
            if data:
                conns[fd].sendall(data)
            else:
                waits.unregister(fd)
                conns.pop(fd).close()


def state_of(process):
    with open(f"/proc/{process}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def wait_for_state(process, state):
    until = time.monotonic() + 10
    while state_of(process) != state:
        assert time.monotonic() < until, f"process {process} is not in state {state}"
        time.sleep(0.001)


def client(port, connections, rounds):
    conns = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    for conn in conns:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    process = [int.from_bytes(whole(conn, 8), "little") for conn in conns][0]
    request = bytes(range(SIZE))
    right = quick = 0
    for _ in range(40):
        for conn in conns:
            conn.sendall(request)
            right += whole(conn) == request
    for _ in range(rounds):
        # Longer than the time after which a receiver that does not look counts as away.
        time.sleep(0.01)
        wait_for_state(process, "S")
        os.kill(process, signal.SIGSTOP)
        wait_for_state(process, "T")
        begin = time.monotonic()
        for conn in conns:
            conn.sendall(request)
        quick += time.monotonic() - begin < 0.001
        os.kill(process, signal.SIGCONT)
        for conn in conns:
            right += whole(conn) == request
    print(f"right={right} quick={quick}")


if __name__ == "__main__":
    main = {"server": server, "client": client}[sys.argv[1]]
    main(*map(int, sys.argv[2:]))
