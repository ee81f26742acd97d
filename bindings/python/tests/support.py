"""What the tests share."""

import contextlib
import gc
import socket
import threading
import unittest

import memlane

LIMIT = 30.0


def has(name):
    """Can it be imported?"""
    try:
        __import__(name)
    except ImportError:
        return False
    return True


class Case(unittest.TestCase):
    """Pairs of a stream and a plain socket, and nothing left of them."""

    def pair(self, region="memfd:1M", **terms):
        """A stream that receives into ``region``, and the socket at its other end."""
        here, there = socket.socketpair()
        there.settimeout(LIMIT)
        self.addCleanup(there.close)
        if isinstance(region, str):
            region = memlane.Region(region)
        with here:
            stream = memlane.adopt(here, region, **terms)
        self.region = region
        self.addCleanup(stream.close)
        return stream, there

    def tcp(self, region="memfd:4M", **terms):
        """Likewise, over TCP, and both ends memlane's."""
        region = memlane.Region(region) if isinstance(region, str) else region
        self.region = region
        with memlane.listen("127.0.0.1:0", region, **terms) as listener:
            sender = memlane.connect(listener.address)
            receiver = listener.accept(timeout=LIMIT)
        self.addCleanup(sender.close)
        self.addCleanup(receiver.close)
        return receiver, sender

    def is_whole(self, stream):
        """No token is out, and once the stream is closed, each chunk is free."""
        gc.collect()
        self.assertEqual(stream.counts()["out"], 0, "tokens are out")
        stream.close()
        counts = self.region.counts()
        self.assertEqual(counts["free"], counts["chunks"], "chunks were lost")

    @contextlib.contextmanager
    def thread(self, work):
        """Runs ``work`` meanwhile; what it raises is raised here."""
        raised = []

        def run():
            try:
                work()
            except BaseException as error:  # noqa: BLE001  All of them are told.
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield thread
        thread.join(LIMIT)
        self.assertFalse(thread.is_alive(), "it still runs")
        if raised:
            raise raised[0]


def mapped(address):
    """Does it lie in a region of this process?"""
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            if "memlane-device" in line:
                begin, end = (int(n, 16) for n in line.split()[0].split("-"))
                if begin <= address < end:
                    return True
    return False
