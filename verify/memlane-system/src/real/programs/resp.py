"""A redis client over plain sockets: just enough for the tests."""
import socket


class Redis:
    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.file = self.sock.makefile("rb", buffering=65536)

    def send(self, *words):
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            word = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
        self.sock.sendall(b"".join(parts))

    def answer(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError("connection closed in an answer")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.exactly(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        if kind == b":":
            return int(rest)
        if kind == b"-":
            raise RuntimeError(rest.decode())
        return rest

    def exactly(self, length):
        data = self.file.read(length)
        if len(data) != length:
            raise EOFError("connection closed in an answer")
        return data

    def ask(self, *words):
        self.send(*words)
        return self.answer()
