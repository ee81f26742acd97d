#!/usr/bin/env python3
"""Two programs that sleep most of the time, each in epoll, poll or select with many connections, or in blocking reads.

sleepers.py server WAIT PORT: echoes what comes over any of its connections, until all are closed.
sleepers.py client WAIT PORT CONNECTIONS ROUNDS: talks over each connection until their lanes should be open; then ROUNDS requests
over the connections in turn, with a few milliseconds of sleep before each; then all sleep for three seconds; then one request over
each connection. Prints how many answers were right.
sleepers.py crowd PORT CONNECTIONS ROUNDS SERVER: talks over each connection until their lanes should be open; then, ROUNDS times,
waits until the process SERVER sleeps, stops it, sends a request over each connection, and lets it go on. Prints how many answers
were right, and how many crowds of requests were sent within a millisecond.
sleepers.py busy PORT CONNECTIONS ROUNDS: the same, but the server computes for a while instead of being stopped: it has answered
a request over one more connection that told it to.
sleepers.py turns-server PORT CONNECTIONS: two threads with an epoll set each take turns: one connection after the other, each has
the next thread, which echoes what comes until it is closed. Prints how many descriptors were seen in the set of the thread that had
no connection, once the lane should be open.
sleepers.py turns PORT CONNECTIONS ROUNDS: makes these connections, one after the other, and talks over each until its lane should be
open; then ROUNDS requests, with a few milliseconds of sleep before each. Prints how many answers were right, and how many were late.
WAIT: epoll, poll, select, or recv: the server has a thread for each connection, and neither side waits for several at once. With
threaded-poll and threaded-select, each side has another thread, and waits for a pipe, too. With pool, one thread of the server waits with
epoll, and another reads: no events are asked for meanwhile. With selectors, as in Java, two threads wait, with a set each; they take a
connection out of the set meanwhile, and the reader tells them when to put it back. With deaf-epoll and deaf-poll, the kernel
refuses shutdown(2), by which a bell rings at an edge.
"""
import ctypes
import errno
import os
import platform
import queue
import select
import signal
import socket
import struct
import sys
import threading
import time

SIZE = 100
COMPUTE = b"c" * SIZE
COMPUTE_SECONDS = 0.02
IDLE_SECONDS = 3  # a sleeper looks at its rings by itself twice a second, and parks what two looks in a row have found idle
LATE_SECONDS = 0.4
UNTIL_LANE = 40  # requests over a connection until its lane should be open


def whole(conn):
    data = b""
    while len(data) < SIZE:
        data += conn.recv(SIZE - len(data))
    return data


class Poll:
    """poll with epoll's methods."""

    def __init__(self):
        self.list = select.poll()

    def register(self, conn, events):
        self.list.register(conn, events)

    def unregister(self, fd):
        self.list.unregister(fd)

    def poll(self, seconds=None):
        return self.list.poll(None if seconds is None else seconds * 1000)


class Select:
    """select with epoll's methods."""

    def __init__(self):
        self.list = []

    def register(self, conn, events):
        self.list.append(conn.fileno())

    def unregister(self, fd):
        self.list.remove(fd)

    def poll(self, seconds=None):
        return [(fd, select.EPOLLIN) for fd in select.select(self.list, [], [], seconds)[0]]


class Recv:
    """No wait at all: the read that follows sleeps."""

    def register(self, conn, events):
        self.last = conn

    def poll(self, seconds=None):
        time.sleep(seconds)
        return []


WAITS = {
    "epoll": select.epoll,
    "poll": Poll,
    "select": Select,
    "recv": Recv,
    "pool": select.epoll,
    "selectors": select.epoll,
}


def way_to_wait(wait):
    kind = wait.removeprefix("threaded-")
    waits = WAITS[kind]()
    if wait.startswith("threaded-"):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        pipe = socket.socketpair()
        waits.register(pipe[0], select.EPOLLIN)
        waits.beside = pipe
    return waits


def thread_for_each(port):
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    live = []

    def echo(conn):
        while data := conn.recv(65536):
            conn.sendall(data)
        conn.close()

    while not live or any(thread.is_alive() for thread in live):
        listener.settimeout(None if not live else 0.1)
        try:
            conn = listener.accept()[0]
        except TimeoutError:
            continue
        conn.settimeout(None)
        live.append(threading.Thread(target=echo, args=(conn,)))
        live[-1].start()


class Waiter:
    """A thread of a pool that waits with epoll, and gives what can be read to the thread that reads."""

    def __init__(self, takes_out):
        self.takes_out = takes_out
        self.waits = select.epoll()
        self.read = queue.SimpleQueue()
        self.told, self.tell = socket.socketpair()
        self.waits.register(self.told, select.EPOLLIN)

    def rest(self, fd):
        if self.takes_out:
            self.waits.unregister(fd)
        else:
            self.waits.modify(fd, 0)

    def ask_again(self, fd):
        if self.takes_out:
            self.read.put(fd)
            self.tell.send(b"read")
        else:
            self.waits.modify(fd, select.EPOLLIN)

    def closes(self, fd):
        if not self.takes_out:
            self.waits.unregister(fd)

    def run(self, is_ready):
        while True:
            for fd, _ in self.waits.poll():
                if fd != self.told.fileno():
                    is_ready(self, fd)
                    continue
                if not self.told.recv(64):
                    return
                while not self.read.empty():
                    self.waits.register(self.read.get(), select.EPOLLIN)


def pool(port, takes_out, waiters):
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    waiters = [Waiter(takes_out) for _ in range(waiters)]
    waiters[0].waits.register(listener, select.EPOLLIN)
    conns, jobs, came = {}, queue.SimpleQueue(), 0

    def is_ready(waiter, fd):
        nonlocal came
        if fd != listener.fileno():
            waiter.rest(fd)
            return jobs.put(fd)
        conn, own = listener.accept()[0], waiters[came % len(waiters)]
        came += 1
        conns[conn.fileno()] = (conn, own)
        own.waits.register(conn, select.EPOLLIN)

    def work():
        while True:
            fd = jobs.get()
            conn, waiter = conns[fd]
            time.sleep(0.001)  # by now, the thread that waits sleeps
            if data := conn.recv(65536):
                waiter.ask_again(fd)
                conn.sendall(data)
                continue
            waiter.closes(fd)
            del conns[fd]
            conn.close()
            if not conns:
                return [waiter.tell.close() for waiter in waiters]

    threads = [threading.Thread(target=waiter.run, args=(is_ready,)) for waiter in waiters]
    threads.append(threading.Thread(target=work))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def compute(until):
    while time.monotonic() < until:
        pass


def server(wait, port):
    if wait == "recv":
        return thread_for_each(port)
    if wait == "pool":
        return pool(port, takes_out=False, waiters=1)
    if wait == "selectors":
        return pool(port, takes_out=True, waiters=2)
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    waits = way_to_wait(wait)
    waits.register(listener, select.EPOLLIN)
    conns = {}
    had_one = False
    while conns or not had_one:
        for fd, _ in waits.poll():
            if fd == listener.fileno():
                conn = listener.accept()[0]
                conns[conn.fileno()] = conn
                waits.register(conn, select.EPOLLIN)
                had_one = True
                continue
            data = conns[fd].recv(65536)
            if data:
                conns[fd].sendall(data)
                if data == COMPUTE:
                    compute(time.monotonic() + COMPUTE_SECONDS)
            else:
                waits.unregister(fd)
                conns.pop(fd).close()


def connect(port, connections):
    conns = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    for conn in conns:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return conns


def client(wait, port, connections, rounds):
    waits = way_to_wait(wait)
    conns = connect(port, connections)
    for conn in conns:
        waits.register(conn, select.EPOLLIN)
    right = 0

    def ask(number):
        nonlocal right
        conn = conns[number % connections]
        request = number.to_bytes(8, "little") * (SIZE // 8) + b"1234"
        conn.sendall(request)
        ready = [(conn.fileno(), select.EPOLLIN)] if wait == "recv" else waits.poll(10)
        right += ready == [(conn.fileno(), select.EPOLLIN)] and whole(conn) == request

    for number in range(connections * UNTIL_LANE):
        ask(number)
    for number in range(rounds):
        assert not waits.poll(0.003), "an event without a request"
        ask(number)
    begin = time.monotonic()
    assert not waits.poll(IDLE_SECONDS), "an event without a request"
    late = time.monotonic() - begin - IDLE_SECONDS
    assert 0 <= late < LATE_SECONDS, f"a wait ended {late} s late"
    for number in range(connections):
        ask(number)
    print(f"right={right}")


def wait_for_state(process, state):
    until = time.monotonic() + 10
    while True:
        with open(f"/proc/{process}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] == state:
                return
        assert time.monotonic() < until, f"process {process} is not in state {state}"
        time.sleep(0.001)


def crowds(conns, rounds, begin_of_crowd, end_of_crowd):
    request = bytes(range(SIZE))
    right = quick = 0
    for _ in range(UNTIL_LANE):
        for conn in conns:
            conn.sendall(request)
            right += whole(conn) == request
    for _ in range(rounds):
        begin_of_crowd()
        begin = time.monotonic()
        for conn in conns:
            conn.sendall(request)
        quick += time.monotonic() - begin < 0.001
        end_of_crowd()
        for conn in conns:
            right += whole(conn) == request
    print(f"right={right} quick={quick}")


AWAY_SECONDS = 0.01  # longer than a receiver may look away


def crowd(port, connections, rounds, process):
    def stop():
        time.sleep(AWAY_SECONDS)
        wait_for_state(process, "S")
        os.kill(process, signal.SIGSTOP)
        wait_for_state(process, "T")

    crowds(connect(port, connections), rounds, stop, lambda: os.kill(process, signal.SIGCONT))


def busy(port, connections, rounds):
    teller, *conns = connect(port, connections + 1)

    def keep_busy():
        teller.sendall(COMPUTE)
        whole(teller)
        time.sleep(AWAY_SECONDS)

    crowds(conns, rounds, keep_busy, lambda: None)


def descriptors_in(waits):
    with open(f"/proc/self/fdinfo/{waits.fileno()}") as info:
        return sum(line.startswith("tfd:") for line in info)


def turns_server(port, connections):
    listener = socket.create_server(("127.0.0.1", port))
    sets = [select.epoll(), select.epoll()]
    conns, asked = {}, {}
    seen = 0

    def serve(mine, other):
        nonlocal seen
        while True:
            for fd, _ in mine.poll():
                if data := conns[fd].recv(65536):
                    asked[fd] += 1
                    if asked[fd] > UNTIL_LANE:
                        seen += descriptors_in(other)
                    conns[fd].sendall(data)
                else:
                    mine.unregister(fd)
                    conns.pop(fd).close()
                    ended.release()

    ended = threading.Semaphore(0)
    for mine, other in (sets, sets[::-1]):
        threading.Thread(target=serve, args=(mine, other), daemon=True).start()
    for number in range(connections):
        conn = listener.accept()[0]
        conns[conn.fileno()] = conn
        asked[conn.fileno()] = 0
        sets[number % 2].register(conn, select.EPOLLIN)
        ended.acquire()
    print(f"seen={seen}")


def turns(port, connections, rounds):
    request = bytes(range(SIZE))
    right = late = 0
    for _ in range(connections):
        [conn] = connect(port, 1)
        for number in range(UNTIL_LANE + rounds):
            time.sleep(0.003 if number >= UNTIL_LANE else 0)
            begin = time.monotonic()
            conn.sendall(request)
            right += whole(conn) == request
            late += time.monotonic() - begin > LATE_SECONDS / 8
        conn.close()
    print(f"right={right} late={late}")


def become_deaf():
    """Begins anew as a program in which shutdown(2) fails: a filter of system calls outlives exec."""
    refused = {"x86_64": 48, "aarch64": 210}[platform.machine()]
    load, unless, answer = 0x20, 0x15, 0x06
    fails, is_allowed = 0x00050000 | errno.EPERM, 0x7FFF0000
    code = [(load, 0, 0, 0), (unless, 0, 1, refused), (answer, 0, 0, fails), (answer, 0, 0, is_allowed)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    described = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(program)))
    no_new_privileges, set_filter, by_program = 38, 22, 2
    prctl = ctypes.CDLL(None).prctl
    assert prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert prctl(set_filter, by_program, described, 0, 0) == 0
    os.execv(sys.executable, [sys.executable, *[word.removeprefix("deaf-") for word in sys.argv]])


NUMBERED = {"crowd": crowd, "busy": busy, "turns-server": turns_server, "turns": turns}

if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if rest[0].startswith("deaf-"):
        become_deaf()
    if role in NUMBERED:
        NUMBERED[role](*map(int, rest))
    else:
        {"server": server, "client": client}[role](rest[0], *map(int, rest[1:]))
