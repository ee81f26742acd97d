"""Sends bytes to an echo server and compares what comes back.

echo_client.py PORT CONNECTIONS ROUNDS MAXBYTES [CERTIFICATE]

Each connection writes and reads at the same time, so that messages may be
larger than what the path can hold, and ends with a half-close.
"""
import asyncio
import hashlib
import random
import ssl
import sys

port, connections, rounds, most = map(int, sys.argv[1:5])
context = None
if len(sys.argv) > 5:
    context = ssl.create_default_context(cafile=sys.argv[5])
    context.check_hostname = False
totals = {"rounds": 0, "bytes": 0, "ends": 0}


async def one_round(reader, writer, message):
    async def send():
        writer.write(message)
        await writer.drain()

    sending = asyncio.create_task(send())
    back = await reader.readexactly(len(message))
    await sending
    assert hashlib.sha256(back).digest() == hashlib.sha256(message).digest(), "other bytes"
    totals["rounds"] += 1
    totals["bytes"] += len(message)


async def client(number):
    rng = random.Random(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    for turn in range(rounds):
        size = most if turn == rounds - 1 else rng.randint(1, 2000 if turn % 2 else most)
        await one_round(reader, writer, rng.randbytes(size))
    if context is None:
        writer.write_eof()
        assert await reader.read() == b"", "more than was sent"
        totals["ends"] += 1
    writer.close()


async def main():
    await asyncio.wait_for(asyncio.gather(*map(client, range(connections))), 60)


asyncio.run(main())
print(*(f"{key}={value}" for key, value in totals.items()))
