"""Receives records from one connection in a way that Python has, and prints one line of JSON: what came, and what it cost.

    receive.py --way tensor --listen 127.0.0.1:0 --bytes 4G --record 1M
    receive.py --way recv_into --own-sender

Ways: ``tensor`` (Stream.receive_tensor), ``records`` (Stream.records), ``fragments`` (Stream.receive), ``recv_into`` (a socket,
one array that is used again and again), ``recv_into_fresh`` (a new array for each record, which may be kept, as memlane's)
and ``recv_into_cuda`` (a socket, one pinned tensor, and a copy of it on the first device for each record).
With ``--listen`` the address is said on standard error, and whoever connects sends; ``--own-sender`` starts one.
"""

import argparse
import importlib
import json
import os
import resource
import socket
import subprocess
import sys
import time

WAYS = ("tensor", "records", "fragments", "recv_into", "recv_into_fresh", "recv_into_cuda")


def size(text):
    """4096, 64K, 1M, 4G."""
    units = {"K": 10, "M": 20, "G": 30}
    shift = units.get(text[-1:], 0)
    return int(text[:-1] if shift else text) << shift


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=WAYS, default="tensor")
    parser.add_argument("--framework", choices=("torch", "numpy", "memlane"), help="[default: the first that is installed]")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    parser.add_argument("--own-sender", action="store_true", help="start a sender, too")
    parser.add_argument("--bytes", type=size, default=size("4G"), help="of the own sender [default: 4G]")
    parser.add_argument("--record", type=size, default=size("1M"), help="bytes of a tensor [default: 1M]")
    parser.add_argument("--region", default="memfd:64M")
    parser.add_argument("--chunk", type=size, help="[default: a sixteenth of the region]")
    parser.add_argument("--path", help="this path or none")
    parser.add_argument("--send-to", metavar="HOST:PORT", help=argparse.SUPPRESS)
    return parser.parse_args()


def send(address, total):
    """What the own sender does."""
    host, port = address.rsplit(":", 1)
    block = memoryview(bytes(range(256)) * 4096)
    with socket.create_connection((host, int(port))) as there:
        left = total
        while left:
            part = block[: min(left, len(block))]
            there.sendall(part)
            left -= len(part)


def chosen(framework):
    """The first that is installed, if nothing else is said."""
    if framework is None:
        from memlane import _frameworks

        framework = _frameworks._best()
    return framework


def by_memlane(asked, listener):
    """Each record is dropped before the next one is asked for, as a loop over batches does."""
    stream = listener.accept(timeout=60)
    begin = now()
    total = 0
    if asked.way == "fragments":
        while came := stream.receive():
            total += sum(len(fragment) for fragment in came)
            del came
    elif asked.way == "records":
        for record in stream.records(asked.record, "uint8", framework=asked.framework):
            total += len(record)
            del record
    else:
        import memlane

        try:
            while True:
                record = stream.receive_tensor(asked.record, "uint8", framework=asked.framework)
                total += len(record)
                del record
        except memlane.EndOfStream:
            # What is less than a record.
            while came := stream.receive():
                total += sum(len(fragment) for fragment in came)
    counts = stream.counts()
    return total, begin, counts["bounced"] + counts["gathered"], counts["out"], counts["path"]


def by_socket(asked, listener):
    """The same without memlane. The kernel's copy out of its buffers is one in every way, and counted in none."""
    import numpy

    torch = None
    cuda = asked.way == "recv_into_cuda"
    if asked.framework == "torch" or cuda:
        import torch
    connection, _ = listener.accept()
    begin = now()
    total = 0
    fresh = asked.way == "recv_into_fresh"
    array = numpy.empty(asked.record, dtype=numpy.uint8)
    if cuda:
        array = torch.empty(asked.record, dtype=torch.uint8, pin_memory=True).numpy()
    while True:
        if fresh:
            array = numpy.empty(asked.record, dtype=numpy.uint8)
        came = connection.recv_into(array, asked.record, socket.MSG_WAITALL)
        if came == 0:
            break
        record = torch.from_numpy(array) if torch else array
        if cuda:
            record = record.to("cuda:0")
        total += came
        del record
    return total, begin, 0, 0, "socket"


def now():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.monotonic(), used.ru_utime + used.ru_stime


def main():
    asked = arguments()
    if asked.send_to:
        return send(asked.send_to, asked.bytes)
    asked.framework = chosen(asked.framework)
    host, port = asked.listen.rsplit(":", 1)
    if asked.way.startswith("recv_into"):
        listener = socket.create_server((host, int(port)))
        address = "%s:%d" % listener.getsockname()[:2]
        receive = by_socket
    else:
        import memlane

        listener = memlane.listen(asked.listen, asked.region, chunk=asked.chunk, path=asked.path)
        address = listener.address
        receive = by_memlane
    if asked.framework != "memlane":
        # Before the clock runs.
        importlib.import_module(asked.framework)
    print(f"listening on {address}", file=sys.stderr, flush=True)
    sender = None
    if asked.own_sender:
        sender = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--send-to", address, "--bytes", str(asked.bytes)]
        )
    total, begin, copied, out, path = receive(asked, listener)
    end = now()
    if sender and sender.wait(60) != 0:
        sys.exit("the sender failed")
    told = {
        "schema": "memlane.bench.python/1",
        "way": asked.way,
        "framework": asked.framework,
        "path": path,
        "record": asked.record,
        "bytes": total,
        "seconds": end[0] - begin[0],
        "cpu_seconds": end[1] - begin[1],
        "copied": copied,
        "out": out,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
