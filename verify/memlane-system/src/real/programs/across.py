"""A program that asks its machine's agent for the other end of a connection, and does nothing else.

across.py connect DIR ADDRESS PORT
across.py accept DIR ADDRESS PORT

Says "met OWN THEIRS RING SERIAL GIVEN", or "refused N". Then each line of input is an order:
say TEXT     over the channel; answers "said"
hear         answers with what comes
write N      writes a byte at N of the other's chunk; answers "written"
read N       the byte at N of its own chunk
line         "holds" or "ended"
wait         "ended", when the life line has
part         answers "parted"
"""

import array
import mmap
import os
import select
import socket
import struct
import sys

ACROSS = 4


def connection(role, address, port):
    if role == "connect":
        return socket.create_connection((address, port), 10)
    listener = socket.create_server((address, port))
    return listener.accept()[0]


def ask(agent, about, role):
    inode = os.fstat(about).st_ino
    agent.send(struct.pack(">4sBBHiB3xQQ", b"MLAG", 1, 1, 32, about, role, inode, 7))
    answer, given, _, _ = agent.recvmsg(64, socket.CMSG_SPACE(4 * 4))
    fds = array.array("i")
    for _, _, data in given:
        fds.frombytes(data)
    return answer, list(fds)


role, directory, address, port = sys.argv[1:5]
about = connection(role, address, int(port))
agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
agent.connect(f"{directory}/agent.sock")
answer, fds = ask(agent, about.fileno(), 1 if role == "accept" else 0)
if answer[5] != ACROSS:
    print("refused", struct.unpack(">I", answer[8:12])[0], flush=True)
    sys.exit()
serial, ring, peer = struct.unpack(">IIQ", answer[8:24])
own, theirs = struct.unpack(">QQ", answer[32:48])
print("met", own, theirs, ring, serial, len(fds), flush=True)
channel = socket.socket(fileno=fds[0])
channel.setblocking(True)
chunk = 69632 + 64 * ring
chunks = {at: mmap.mmap(fds[1], chunk, offset=at) for at in (own, theirs)}
for order in sys.stdin:
    match order.split():
        case ["say", text]:
            channel.send(text.encode())
            print("said", flush=True)
        case ["hear"]:
            print(channel.recv(448).decode(), flush=True)
        case ["write", at]:
            chunks[theirs][int(at)] = 42
            print("written", flush=True)
        case ["read", at]:
            print(chunks[own][int(at)], flush=True)
        case ["line"]:
            print("ended" if select.select([fds[2]], [], [], 0)[0] else "holds", flush=True)
        case ["wait"]:
            select.select([fds[2]], [], [])
            print("ended", flush=True)
        case ["part"]:
            agent.send(struct.pack(">4sBBHI4xQQ", b"MLAG", 1, 5, 32, serial, peer, 0))
            print("parted", flush=True)
