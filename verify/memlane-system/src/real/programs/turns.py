"""A server whose clients come and go, each a program of its own.

    turns.py server ADDRESS PORT     sends back what each connection brings, until its input ends
    turns.py client ADDRESS PORT     exchanges 400 messages in about a second, and says "done" if they came back right
"""

import socket
import sys
import threading
import time


def answer(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


def accept(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=[connection], daemon=True).start()


def server(address, port):
    with socket.create_server((address, port), backlog=64) as listener:
        print("listens", flush=True)
        threading.Thread(target=accept, args=[listener], daemon=True).start()
        sys.stdin.read()


def client(address, port):
    with socket.create_connection((address, port)) as connection:
        for i in range(400):
            message = b"%0100d" % i
            connection.sendall(message)
            assert connection.recv(100, socket.MSG_WAITALL) == message
            time.sleep(0.001)
    print("done", flush=True)


{"server": server, "client": client}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
