"""An echo over both ends of a connection, whose server waits with epoll and then reads until there is nothing."""

import select
import socket
import sys

ROUNDS = int(sys.argv[1])

listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
server.setblocking(False)
waits = select.epoll()
waits.register(server, select.EPOLLIN)

right = 0
for n in range(ROUNDS):
    client.sendall(b"question %d" % n)
    waits.poll()
    answer = b""
    while True:
        try:
            answer += server.recv(4096)
        except BlockingIOError:
            break
    server.sendall(answer)
    right += client.recv(4096) == b"question %d" % n
print(f"right={right}")
