#!/usr/bin/env python3
"""Two workers that accept at one address, and a client of both.

workers.py server PORT HOW: the first worker takes the first connection, the second one all others. HOW: the first worker waits in
`select` (looking at its connection again and again while a pipe is busy) or in `recv` (asleep).
workers.py client PORT COUNT SECONDS: one connection that talks until it has its lane, then COUNT others that talk for so long.
"""
import os
import select
import socket
import sys
import time


def serve(conn):
    while data := conn.recv(65536):
        conn.sendall(data)


def first_worker(listener, how):
    conn, _ = listener.accept()
    if how == "recv":
        serve(conn)
        return
    while True:
        ready, _, _ = select.select([conn], [], [], 0.01)
        if ready:
            data = conn.recv(65536)
            if not data:
                return
            conn.sendall(data)


def second_worker(listener):
    conns = [listener]
    while True:
        ready, _, _ = select.select(conns, [], [])
        for one in ready:
            if one is listener:
                conns.append(listener.accept()[0])
                continue
            data = one.recv(65536)
            if data:
                one.sendall(data)
            else:
                conns.remove(one)
                one.close()


def server(port, how):
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    told, tell = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(told)
        conn_of = listener.accept

        def accept_and_tell():
            made = conn_of()
            os.write(tell, b"!")
            return made

        class Listener:
            accept = staticmethod(accept_and_tell)

        first_worker(Listener, how)
        os._exit(0)
    os.close(tell)
    os.read(told, 1)
    second_worker(listener)


def talk(conn):
    conn.sendall(b"x" * 100)
    left = 100
    while left:
        left -= len(conn.recv(left))


def connect(port):
    conn = socket.create_connection(("127.0.0.1", port))
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return conn


def client(port, count, seconds):
    first = connect(port)
    for _ in range(100):
        talk(first)
    others = [connect(port) for _ in range(count)]
    until = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < until:
        for conn in others:
            talk(conn)
        rounds += 1
    talk(first)
    print(f"rounds={rounds}")


if sys.argv[1] == "server":
    server(int(sys.argv[2]), sys.argv[3])
else:
    client(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
