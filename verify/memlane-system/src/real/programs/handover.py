"""A server that hands its live connection to other programs, and takes it back.

handover.py server PORT | client PORT | child FD | late FD

The conversation is lines: "N TEXT" is answered by "WHO N SHA256(TEXT)". The
server answers the first 50, a Python child 50, the server one, a shell sends 5
back as they are, the server answers 50, a child left alone with it the rest.
"""
import hashlib
import socket
import subprocess
import sys


def lines(sock, count):
    """Reads byte-exactly: what comes after belongs to the next reader."""
    data = b""
    for _ in range(count):
        while not data.endswith(b"\n"):
            byte = sock.recv(1)
            if not byte:
                return
            data += byte
        yield data
        data = b""


def answer(sock, who, count):
    for line in lines(sock, count):
        number, text = line.split()
        digest = hashlib.sha256(text).hexdigest().encode()
        sock.sendall(b"%s %s %s\n" % (who, number, digest))


def child(who, fd, count):
    with socket.socket(fileno=fd) as sock:
        answer(sock, who, count)


def spawn(role, sock):
    arguments = [sys.executable, __file__, role, str(sock.fileno())]
    return subprocess.Popen(arguments, pass_fds=[sock.fileno()])


def server(port):
    with socket.create_server(("127.0.0.1", port)) as listener:
        sock, _ = listener.accept()
    answer(sock, b"server", 50)
    assert spawn("child", sock).wait(30) == 0
    answer(sock, b"server", 1)
    # A shell reads byte by byte from what it can't seek in.
    arguments = ["sh", "-c", "for i in 1 2 3 4 5; do IFS= read -r line; echo \"$line\"; done"]
    assert subprocess.run(arguments, stdin=sock, stdout=sock, timeout=30).returncode == 0
    answer(sock, b"server", 50)
    last = spawn("late", sock)
    sock.close()
    assert last.wait(30) == 0


def client(port):
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    file = sock.makefile("rb")
    number = 0

    def converse(who, count):
        nonlocal number
        for _ in range(count):
            number += 1
            text = hashlib.sha512(b"%d" % number).hexdigest().encode() * (1 + number % 40)
            line = b"%d %s\n" % (number, text)
            sock.sendall(line)
            digest = hashlib.sha256(text).hexdigest().encode()
            expected = line if who is None else b"%s %d %s\n" % (who, number, digest)
            back = file.readline()
            assert back == expected, (who, number, back[:100])

    converse(b"server", 50)
    converse(b"child", 50)
    converse(b"server", 1)
    converse(None, 5)
    converse(b"server", 50)
    converse(b"late", 50)
    sock.shutdown(socket.SHUT_WR)
    assert file.read() == b""
    print(f"lines={number}")


role, number = sys.argv[1], int(sys.argv[2])
if role in ("child", "late"):
    child(role.encode(), number, 50 if role == "child" else 1 << 30)
else:
    {"server": server, "client": client}[role](number)
