"""A process that means the agent no good.

hostile.py forge DIR ROLE SENDS RECEIVES     makes a socket that claims to be one end (ROLE 0: connected, 1: accepted) of a
                                             connection with these sequence numbers, and asks for the other end of it
hostile.py flood DIR SECONDS                 asks as fast as it can
hostile.py crowd DIR COUNT                   connects COUNT times
hostile.py lock DIR                          locks the directory

Each begins with a line of input. forge says "meet" or "refused N"; flood "answers=N"; crowd "kept=N"; lock "locked". The last
two keep what they have until their input ends.
"""

import errno
import fcntl
import os
import socket
import struct
import sys
import time

TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ = 19, 20, 21
RECV_QUEUE, SEND_QUEUE = 1, 2
MEET = 2


def connect(directory):
    asks = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asks.connect(f"{directory}/agent.sock")
    return asks


def question(about, role, number=7, lie=0):
    inode = os.fstat(about).st_ino + lie
    return struct.pack(">4sBBHiB3xQQ", b"MLAG", 1, 1, 32, about, role, inode, number)


def forged(sends, receives):
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    for queue, number in ((SEND_QUEUE, sends), (RECV_QUEUE, receives)):
        made.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
        made.setsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ, struct.pack("I", number))
    made.bind(("127.0.0.1", 0))
    made.connect(("127.0.0.1", 9))
    made.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, -1)
    return made


def forge(directory, role, sends, receives):
    # The connecting end has counted its SYN as acknowledged.
    made = forged((sends - (role == 0)) % 2**32, receives)
    asks = connect(directory)
    asks.settimeout(5)
    asks.send(question(made.fileno(), role))
    answer = asks.recv(64)
    said = struct.unpack(">4sBBHI4xQQ", answer)
    print("meet" if said[2] == MEET else f"refused {said[4]}", flush=True)


def flood(directory, seconds):
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    asks = connect(directory)
    asks.setblocking(False)
    # About another inode: each is answered at once.
    one, answers = question(client.fileno(), 0, lie=1), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            while True:
                asks.send(one)
        except BlockingIOError:
            pass
        try:
            while True:
                asks.recv(64)
                answers += 1
        except BlockingIOError:
            time.sleep(0.0005)
    print(f"answers={answers}", flush=True)


def crowd(directory, count):
    kept = []
    for _ in range(count):
        try:
            kept.append(connect(directory))
        except BlockingIOError:
            time.sleep(0.01)
    time.sleep(0.5)
    alive = 0
    for one in kept:
        one.setblocking(False)
        try:
            one.recv(1)
        except OSError as error:
            alive += error.errno == errno.EAGAIN
    print(f"kept={alive}", flush=True)
    sys.stdin.read()


def lock(directory):
    fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_EX)
    print("locked", flush=True)
    sys.stdin.read()


sys.stdin.readline()
what, where = sys.argv[1:3]
{"forge": forge, "flood": flood, "crowd": crowd, "lock": lock}[what](where, *map(int, sys.argv[3:]))
