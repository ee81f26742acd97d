"""A server whose child goes on with a connection when the parent is gone, and its client.

    parting.py server ADDRESS PORT     says "done HASH" of what it has read
    parting.py client ADDRESS PORT     says "waits", and sends the rest when it gets a line; "done HASH" of all that it has sent
    parting.py leaving ADDRESS PORT    a client that sends no rest
"""

import hashlib
import os
import socket
import sys
import time

UNREAD = 24 << 10
REST = 1 << 20


def pattern(count, seed):
    return hashlib.shake_128(bytes([seed])).digest(count)


def server(address, port):
    with socket.create_server((address, port)) as listener:
        connection, _ = listener.accept()
    heard = hashlib.sha256()
    for _ in range(400):
        heard.update(connection.recv(100, socket.MSG_WAITALL))
        connection.sendall(b"y" * 100)
    # Unread bytes lie in the ring when the parent ends. The child reads them when memory of the dead has been given to others.
    time.sleep(0.3)
    if os.fork():
        os._exit(0)
    sys.stdin.readline()
    while data := connection.recv(65536):
        heard.update(data)
    print("done", heard.hexdigest(), flush=True)


def client(address, port, rest=REST):
    connection = socket.create_connection((address, port))
    said = hashlib.sha256()

    def send(data):
        said.update(data)
        connection.sendall(data)

    for _ in range(400):
        send(b"x" * 100)
        connection.recv(100, socket.MSG_WAITALL)
    send(pattern(UNREAD, 1))
    print("waits", flush=True)
    sys.stdin.readline()
    send(pattern(rest, 2))
    connection.close()
    print("done", said.hexdigest(), flush=True)


def leaving(address, port):
    client(address, port, rest=0)


{"server": server, "client": client, "leaving": leaving}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
