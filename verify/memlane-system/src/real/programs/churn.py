"""Opens and closes connections to an echo server, many at once, in every way there is.

churn.py PORT CONNECTIONS AT_ONCE SEED

Each sends a few messages and compares what comes back; then it closes, resets,
half-closes, or closes with bytes unread, by turns.
"""
import asyncio
import random
import socket
import struct
import sys

port, connections, at_once, seed = map(int, sys.argv[1:5])
totals = {"opened": 0, "bytes": 0}


async def one(number):
    rng = random.Random(seed * 1_000_003 + number)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    totals["opened"] += 1
    for _ in range(rng.choice([0, 1, 2, 12])):
        message = rng.randbytes(rng.randint(1, 3000))
        writer.write(message)
        assert await reader.readexactly(len(message)) == message, "other bytes"
        totals["bytes"] += len(message)
    end = number % 4
    if end == 1:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    elif end == 2:
        writer.write_eof()
        assert await reader.read() == b"", "more than was sent"
    elif end == 3:
        writer.write(b"never read")
        await writer.drain()
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        pass


async def worker(numbers):
    for number in numbers:
        await one(number)


async def main():
    numbers = iter(range(connections))
    await asyncio.wait_for(asyncio.gather(*(worker(numbers) for _ in range(at_once))), 90)


asyncio.run(main())
print(*(f"{key}={value}" for key, value in totals.items()))
