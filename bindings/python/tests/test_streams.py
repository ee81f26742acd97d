"""Streams: what comes, in time and out of it; ends; threads, forks, signals, exits; what is sent and what is refused."""

import array
import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
import unittest

import memlane
from support import LIMIT, Case, has

NUMPY = has("numpy")
TORCH = has("torch")
if NUMPY:
    import numpy
if TORCH:
    import torch


class Comes(Case):
    def test_what_is_sent_comes_in_order_whatever_it_is_asked_for_as(self):
        receiver, sender = self.tcp("memfd:1M", chunk=65536)
        data = bytes(i * 7 % 251 for i in range(3_000_000))

        def send():
            self.assertEqual(sender.send(data), len(data))
            sender.finish_sending()

        came = bytearray()
        with self.thread(send):
            while len(came) < 1_000_000:
                came += memoryview(receiver.receive_tensor(33_333, "uint8", framework="memlane", timeout=LIMIT))
            for record in receiver.records(1000, "uint8", framework="memlane", timeout=LIMIT):
                came += memoryview(record)
                if len(came) > 2_000_000:
                    break
            del record
            while fragments := receiver.receive(timeout=LIMIT):
                for fragment in fragments:
                    came += memoryview(fragment)
                del fragments, fragment
        self.assertEqual(bytes(came), data)
        counts = receiver.counts()
        self.assertEqual((counts["received"], counts["bounced"]), (len(data), 0))
        self.assertEqual(sender.counts()["sent"], len(data))
        self.is_whole(receiver)

    def test_records_lie_in_one_piece_also_when_chunks_are_no_multiple_of_them(self):
        receiver, sender = self.tcp("memfd:1M", chunk=65536)
        size, count = 9999, 500

        def send():
            for n in range(count):
                sender.send(bytes([n % 256]) * size)
            sender.finish_sending()

        with self.thread(send):
            seen = 0
            for batch in receiver.records(size, "uint8", framework="memlane", timeout=LIMIT):
                self.assertEqual(set(bytes(memoryview(batch))), {seen % 256})
                seen += 1
        self.assertEqual(seen, count)
        self.assertEqual(receiver.counts()["gathered"], 0)
        del batch
        self.is_whole(receiver)

    def test_each_tensor_that_is_asked_for_alone_is_aligned(self):
        stream, there = self.pair()
        there.sendall(bytes(300))
        for size in (1, 3, 65, 7, 100):
            tensor = stream.receive_tensor(size, "uint8", framework="memlane", timeout=LIMIT)
            self.assertEqual(tensor.address % 64, 0)

    def test_what_does_not_lie_in_one_piece_is_copied_and_counted(self):
        stream, there = self.pair("memfd:64K", chunk=4096)
        data = bytes(i % 251 for i in range(8192))
        there.sendall(data)
        records = stream.records(1000, "uint8", framework="memlane", timeout=LIMIT)
        first = next(records)
        # It has received ahead, by thousands: a tensor of another length lies in two chunks.
        tensor = stream.receive_tensor(4000, "uint8", framework="memlane", timeout=LIMIT)
        self.assertEqual(bytes(memoryview(tensor)), data[1000:5000])
        self.assertEqual(stream.counts()["gathered"], 4000)
        self.assertIsNone(tensor.offset)
        self.assertEqual(tensor.fragments, [])
        self.assertIn("copied", repr(tensor))
        del first, tensor

    def test_batches_and_what_is_left(self):
        for drop_last, expected in [(False, [4, 4, 2]), (True, [4, 4])]:
            stream, there = self.pair()
            there.sendall(struct.pack("=30i", *range(30)))
            there.close()
            seen = list(
                stream.records(3, "int32", batch=4, drop_last=drop_last, framework="memlane", timeout=LIMIT)
            )
            self.assertEqual([len(batch) for batch in seen], expected)
            self.assertEqual([batch.shape for batch in seen], [(n, 3) for n in expected])
            flat = [n for batch in seen for row in memoryview(batch).tolist() for n in row]
            self.assertEqual(flat, list(range(3 * sum(expected))))
            del seen

    def test_a_stream_that_ends_within_a_record_says_so_and_keeps_what_came(self):
        stream, there = self.pair()
        there.sendall(b"abcdefgh")
        there.close()
        records = stream.records(3, "uint8", framework="memlane", timeout=LIMIT)
        self.assertEqual(bytes(memoryview(next(records))), b"abc")
        self.assertEqual(bytes(memoryview(next(records))), b"def")
        for _ in range(2):
            with self.assertRaisesRegex(memlane.EndOfStream, "2 of 3 bytes"):
                next(records)
        with self.assertRaisesRegex(EOFError, "2 of 7 bytes"):
            stream.receive_tensor(7, "uint8", timeout=LIMIT)
        self.assertEqual([bytes(memoryview(f)) for f in stream.receive()], [b"gh"])
        self.assertEqual(stream.receive(), [])
        with self.assertRaisesRegex(memlane.EndOfStream, "has ended"):
            stream.receive_tensor(1, "uint8")
        self.is_whole(stream)

    def test_a_call_that_runs_out_of_time_loses_nothing(self):
        stream, there = self.pair()
        there.sendall(b"abc")
        for _ in range(3):
            with self.assertRaises(memlane.Timeout):
                stream.receive_tensor(6, "uint8", timeout=0.01)
        with self.assertRaises(TimeoutError):
            stream.receive_tensor(6, "uint8", timeout=0)
        there.sendall(b"def")
        tensor = stream.receive_tensor(6, "uint8", framework="memlane", timeout=LIMIT)
        self.assertEqual(bytes(memoryview(tensor)), b"abcdef")
        self.assertIsNotNone(tensor.offset, "in one piece all the same")
        with self.assertRaises(memlane.Timeout):
            stream.receive(timeout=0)
        for wrong in (-1, float("nan"), 1e300):
            with self.subTest(wrong), self.assertRaises(ValueError):
                stream.receive(timeout=wrong)

    def test_a_limit_is_kept(self):
        stream, there = self.pair()
        there.sendall(b"abcdef")
        got = stream.receive(4)
        self.assertEqual(b"".join(bytes(memoryview(f)) for f in got), b"abcd")
        got = stream.receive(1)
        self.assertEqual(b"".join(bytes(memoryview(f)) for f in got), b"e")

    def test_each_path_by_its_name(self):
        for path, bounced in [("mapped", 0), ("staged", 6)]:
            stream, there = self.pair(path=path)
            there.sendall(b"abcdef")
            stream.receive_tensor(6, "uint8", framework="memlane", timeout=LIMIT)
            self.assertEqual(stream.path, path)
            self.assertEqual(stream.counts()["bounced"], bounced)
        for path in ("by-pigeon", "kernel", ""):
            with self.subTest(path), self.assertRaises(memlane.PathError):
                self.pair(path=path)

    def test_a_peer_that_resets_is_an_oserror_behind_what_came_before(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            stream = memlane.connect("127.0.0.1:%d" % listener.getsockname()[1], "memfd:64K")
            there, _ = listener.accept()
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        there.sendall(b"abc")
        select.select([stream], [], [], LIMIT)
        there.close()
        time.sleep(0.05)
        self.assertEqual([bytes(memoryview(f)) for f in stream.receive(timeout=LIMIT)], [b"abc"])
        # It never looks like an end.
        for call in (stream.receive, lambda: stream.receive_tensor(3), lambda: next(stream.records(3))):
            with self.assertRaises(memlane.PeerError) as caught:
                call()
            self.assertIsInstance(caught.exception, OSError)
            self.assertEqual(caught.exception.errno, 104)
        self.is_gone(stream)

    def is_gone(self, stream):
        gc.collect()
        self.assertEqual(stream.counts()["out"], 0)
        stream.close()


class Room(Case):
    def test_all_chunks_out_is_an_error_that_goes_away(self):
        stream, there = self.pair("memfd:16K", chunk=4096)
        there.sendall(bytes(20000))
        held = [stream.receive_tensor(4096, "uint8", framework="memlane", timeout=LIMIT) for _ in range(4)]
        for _ in range(2):
            with self.assertRaisesRegex(memlane.NoRoom, "drop tensors"):
                stream.receive_tensor(3616, "uint8", timeout=LIMIT)
        self.assertGreater(stream.counts()["no_room"], 0)
        held.pop()
        tensor = stream.receive_tensor(3616, "uint8", framework="memlane", timeout=LIMIT)
        self.assertEqual(stream.counts()["received"], 20000)
        del held, tensor
        self.is_whole(stream)

    def test_garbage_in_cycles_does_not_count(self):
        stream, there = self.pair("memfd:16K", chunk=4096)
        there.sendall(bytes(16384 * 3))
        gc.disable()
        try:
            for _ in range(12):
                cycle = [stream.receive_tensor(4096, "uint8", framework="memlane", timeout=LIMIT)]
                cycle.append(cycle)
                del cycle
        finally:
            gc.enable()
        self.is_whole(stream)

    def test_a_patient_one_waits_for_other_threads(self):
        stream, there = self.pair("memfd:16K", chunk=4096, patience=LIMIT)
        there.sendall(bytes(16384) + b"\x01" * 4096)
        held = [stream.receive_tensor(4096, "uint8", framework="memlane", timeout=LIMIT) for _ in range(4)]

        def later():
            time.sleep(0.3)
            held.clear()

        with self.thread(later):
            tensor = stream.receive_tensor(4096, "uint8", framework="memlane", timeout=LIMIT)
        self.assertEqual(memoryview(tensor)[0], 1)
        del tensor
        self.is_whole(stream)

    def test_who_holds_all_holds_the_sender_up(self):
        receiver, sender = self.tcp("memfd:64K", chunk=4096)
        held = []
        with self.assertRaises(memlane.Timeout):
            # Nobody receives: sockets' buffers are all the memory that it takes.
            sender.send(bytes(64 << 20), timeout=1)
        with self.assertRaises(memlane.NoRoom):
            while True:
                held += receiver.receive(timeout=LIMIT)
        self.assertEqual(sum(len(f) for f in held), 65536)

    def test_a_tensor_longer_than_a_chunk_is_refused_with_what_to_do(self):
        stream, there = self.pair("memfd:64K", chunk=4096)
        with self.assertRaisesRegex(ValueError, "chunk=8192"):
            stream.receive_tensor(4097, "uint8", timeout=0)
        with self.assertRaisesRegex(ValueError, "chunk=8192"):
            next(stream.records(1000, "uint8", batch=5))
        self.assertEqual(stream.counts()["received"], 0)

    def test_regions_are_shared_and_refused(self):
        one, there = self.pair("memfd:64K", chunk=8192)
        two, other = self.pair(self.region)
        self.assertEqual(self.region.counts(), {"chunk": 8192, "chunks": 8, "free": 8})
        there.sendall(b"one")
        other.sendall(b"two")
        first = one.receive_tensor(3, "uint8", framework="memlane", timeout=LIMIT)
        second = two.receive_tensor(3, "uint8", framework="memlane", timeout=LIMIT)
        self.assertEqual(self.region.counts()["free"], 6)
        self.assertEqual(bytes(memoryview(first)) + bytes(memoryview(second)), b"onetwo")
        with self.assertRaisesRegex(ValueError, "8192"):
            self.pair(self.region, chunk=4096)
        del first, second
        one.close()
        self.is_whole(two)

    def test_regions_that_cannot_be(self):
        for text in ["", "memfd", "memfd:0", "memfd:x", "ram:1M", "memfd:-1", "memfd:99999999G"]:
            with self.subTest(text), self.assertRaises(memlane.RegionError):
                memlane.Region(text)
        with self.assertRaisesRegex(memlane.RegionMissing, "dma_heap"):
            memlane.Region("dmaheap:no-such-heap:1M")
        region = memlane.Region("memfd:64K")
        for chunk in (0, 1, 4095, 5000, 131072):
            with self.subTest(chunk), self.assertRaisesRegex(ValueError, "power of two"):
                self.pair(region, chunk=chunk)
        # It is as good as before.
        self.pair(region, chunk=4096)
        with self.assertRaises(TypeError):
            self.pair(5)

    def test_a_region_is_read_and_written_within_it(self):
        region = memlane.Region("memfd:8K")
        region.write(8190, b"ab")
        self.assertEqual(region.read(8190, 2), b"ab")
        for offset, length in [(8191, 2), (8192, 1), (1 << 63, 1), (0, 1 << 40)]:
            with self.subTest(offset), self.assertRaises(IndexError):
                region.read(offset, length)
        for offset in (8191, 1 << 63):
            with self.subTest(offset), self.assertRaises(IndexError):
                region.write(offset, b"ab")
        with self.assertRaises(OverflowError):
            region.read(-1, 1)
        self.assertEqual(region.counts(), {"chunk": 0, "chunks": 0, "free": 0})
        self.assertEqual(repr(region), "<memlane.Region memfd:8192>")


class Sends(Case):
    def sent(self, data):
        receiver, sender = self.tcp()
        count = sender.send(data, timeout=LIMIT)
        if count == 0:
            return b""
        tensor = receiver.receive_tensor(count, "uint8", framework="memlane", timeout=LIMIT)
        return bytes(memoryview(tensor))

    def test_whatever_has_bytes(self):
        numbers = array.array("i", [1, 2, 3])
        grid = memoryview(bytes(range(6))).cast("B", (2, 3))
        for data in [b"bytes", bytearray(b"bytes"), memoryview(b"bytes")[1:4], numbers, grid, b""]:
            self.assertEqual(self.sent(data), bytes(data))
        if NUMPY:
            grid = numpy.arange(6.0).reshape(2, 3)
            self.assertEqual(self.sent(grid), grid.tobytes())
            self.assertEqual(self.sent(numpy.float32(1.5)), struct.pack("=f", 1.5))
            self.assertEqual(self.sent(numpy.zeros((0, 3))), b"")
        if TORCH:
            grid = torch.arange(6.0).reshape(2, 3)
            self.assertEqual(self.sent(grid), struct.pack("=6f", *range(6)))
            self.assertEqual(self.sent(grid[1]), struct.pack("=3f", 3, 4, 5))
            self.assertEqual(self.sent(torch.zeros(0)), b"")

    def test_what_does_not_lie_in_one_piece_is_refused(self):
        wrong = [memoryview(b"abcdef")[::2]]
        if NUMPY:
            wrong += [numpy.arange(6).reshape(2, 3).T, numpy.arange(6)[::2]]
        if TORCH:
            wrong += [torch.arange(6).reshape(2, 3).t(), torch.arange(6)[::2], torch.zeros(1).expand(4)]
        for data in wrong:
            with self.subTest(data), self.assertRaisesRegex(ValueError, "one piece"):
                self.sent(data)

    def test_what_has_none_is_refused(self):
        for data in ["text", 5, None, object(), [1, 2]]:
            with self.subTest(data), self.assertRaisesRegex(TypeError, "DLPack"):
                self.sent(data)
        if TORCH:
            # Its gradient would be lost: PyTorch's own refusal.
            with self.assertRaises((RuntimeError, BufferError)):
                self.sent(torch.zeros(3, requires_grad=True))

    def test_tensors_of_others_that_lie(self):
        class Device:
            def __dlpack_device__(self):
                return (2, 0)

            def __dlpack__(self, **_):
                raise AssertionError("it was asked all the same")

        class NoCapsule:
            def __dlpack_device__(self):
                return (1, 0)

            def __dlpack__(self, **_):
                return "capsule"

        class Strange:
            def __dlpack_device__(self):
                return "here"

        class Angry(NoCapsule):
            def __dlpack__(self, **_):
                raise RuntimeError("not today")

        with self.assertRaisesRegex(ValueError, "device"):
            self.sent(Device())
        with self.assertRaisesRegex(TypeError, "capsule"):
            self.sent(NoCapsule())
        # Without __dlpack__ it is none.
        with self.assertRaises(TypeError):
            self.sent(Strange())
        with self.assertRaisesRegex(RuntimeError, "not today"):
            self.sent(Angry())

    def test_the_region_is_sent_from_where_it_lies(self):
        receiver, sender = self.tcp()
        region = memlane.Region("memfd:64K")
        region.write(100, b"from the device")
        back = memlane.adopt(sender, region)
        self.assertEqual(back.send_region(100, 15), 15)
        tensor = receiver.receive_tensor(15, "uint8", framework="memlane", timeout=LIMIT)
        self.assertEqual(bytes(memoryview(tensor)), b"from the device")
        for offset, length in [(65536, 1), (65530, 7), (1 << 63, 1 << 63)]:
            with self.subTest(offset), self.assertRaises(IndexError):
                back.send_region(offset, length)
        with self.assertRaises(OverflowError):
            back.send_region(-1, 1)
        with self.assertRaisesRegex(memlane.Error, "without a region"):
            sender.send_region(0, 1)

    def test_a_peer_that_never_reads_costs_time_and_nothing_else(self):
        receiver, sender = self.tcp()
        with self.assertRaisesRegex(memlane.Timeout, "of 67108864 bytes"):
            sender.send(bytes(64 << 20), timeout=0.3)
        sent = sender.counts()["sent"]
        self.assertTrue(0 < sent < 64 << 20)
        # It can go on from there.
        receiver.close()
        with self.assertRaises(memlane.PeerError):
            while True:
                sender.send(bytes(1 << 20), timeout=LIMIT)

    def test_a_stream_without_a_region_only_sends(self):
        _, sender = self.tcp()
        with self.assertRaisesRegex(memlane.Error, "only sends"):
            sender.receive(timeout=0)
        self.assertIsNone(sender.path)
        with self.assertRaises(ValueError):
            memlane.adopt(sender, chunk=4096)

    def test_sockets_that_are_none(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            with self.assertRaises(ValueError):
                memlane.adopt(datagrams)
        with self.assertRaises(ValueError):
            memlane.adopt(datagrams)
        with open(os.devnull, "rb") as file, self.assertRaises(OSError):
            memlane.adopt(file)
        for wrong in (-1, 1 << 20):
            with self.subTest(wrong), self.assertRaises((ValueError, OSError)):
                memlane.adopt(wrong)
        with self.assertRaises((AttributeError, TypeError)):
            memlane.adopt(object())


class Threads(Case):
    def test_who_closes_ends_a_call_of_another_thread(self):
        for region, call in [
            ("memfd:64K", lambda stream: stream.receive()),
            ("memfd:64K", lambda stream: stream.receive_tensor(5, "uint8")),
            ("memfd:64K", lambda stream: next(stream.records(5, "uint8"))),
            ("memfd:64K", lambda stream: stream.send(bytes(64 << 20))),
        ]:
            stream, there = self.pair(region)
            began = threading.Event()
            errors = []

            def work(call=call, stream=stream, began=began, errors=errors):
                began.set()
                try:
                    call(stream)
                except memlane.Error as error:
                    errors.append(error)

            with self.thread(work):
                began.wait(LIMIT)
                time.sleep(0.1)
                stream.close()
            self.assertIsInstance(errors[0], memlane.Closed)
            self.assertTrue(stream.closed)
            stream.close()
            for late in (lambda: call(stream), stream.fileno, stream.finish_sending):
                with self.assertRaises(memlane.Closed):
                    late()
            self.is_whole(stream)

    def test_the_interpreter_s_lock_is_free_meanwhile(self):
        stream, there = self.pair()
        turns = []

        def others():
            for _ in range(20):
                turns.append(stream.counts()["received"])
                time.sleep(0.005)
            there.sendall(b"abc")

        with self.thread(others):
            stream.receive_tensor(3, "uint8", timeout=LIMIT)
        self.assertEqual(len(turns), 20)

    def test_one_sends_while_another_receives(self):
        one, two = socket.socketpair()
        with one, two:
            left, right = memlane.adopt(one, "memfd:64K"), memlane.adopt(two, "memfd:64K")

        def echo():
            for _ in range(200):
                right.send(right.receive_tensor(100, "uint8", framework="memlane", timeout=LIMIT))

        with self.thread(echo):
            for n in range(200):
                left.send(bytes([n]) * 100)
                back = left.receive_tensor(100, "uint8", framework="memlane", timeout=LIMIT)
                self.assertEqual(memoryview(back)[99], n)

    def test_two_that_send_at_once_are_told_apart(self):
        stream, there = self.pair()
        with self.thread(lambda: self.assertRaises(memlane.Closed, stream.send, bytes(64 << 20))):
            told, begin = "", time.monotonic()
            while "another thread" not in told and time.monotonic() - begin < LIMIT:
                try:
                    stream.send(b"me too", timeout=0)
                except memlane.Error as error:
                    told = str(error)
            self.assertIn("another thread", told)
            stream.close()

    def test_many_threads_drop_what_one_receives(self):
        receiver, sender = self.tcp("memfd:1M", chunk=65536, patience=LIMIT)
        count = 2000
        queue, done = [], threading.Event()

        def drop():
            while not done.is_set() or queue:
                try:
                    queue.pop()
                except IndexError:
                    time.sleep(0.0005)

        def send():
            for n in range(count):
                sender.send(struct.pack("=I", n) * 4096)
            sender.finish_sending()

        droppers = [threading.Thread(target=drop) for _ in range(3)]
        for dropper in droppers:
            dropper.start()
        seen = 0
        with self.thread(send):
            for record in receiver.records(4096, "uint32", framework="memlane", timeout=LIMIT):
                self.assertEqual(memoryview(record)[4095], seen)
                seen += 1
                queue.append(record)
                del record
        done.set()
        for dropper in droppers:
            dropper.join(LIMIT)
        self.assertEqual(seen, count)
        self.is_whole(receiver)

    def test_it_can_be_waited_for_with_select(self):
        stream, there = self.pair()
        self.assertEqual(select.select([stream], [], [], 0)[0], [])
        there.sendall(b"abc")
        self.assertEqual(select.select([stream], [], [], LIMIT)[0], [stream])
        self.assertEqual(len(stream.receive(timeout=0)[0]), 3)

    def test_a_signal_ends_a_call_that_waits(self):
        class Alarm(Exception):
            pass

        def ring(*_):
            raise Alarm

        stream, there = self.pair()
        listener = memlane.listen("127.0.0.1:0", "memfd:64K")
        before = signal.signal(signal.SIGALRM, ring)
        try:
            for wait in (
                lambda: stream.receive(),
                lambda: stream.receive_tensor(6, "uint8"),
                lambda: stream.send(bytes(64 << 20)),
                lambda: listener.accept(),
            ):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with self.assertRaises(Alarm):
                    wait()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        # And nothing is the worse for it.
        there.sendall(b"abc")
        self.assertEqual(len(stream.receive_tensor(3, "uint8", framework="memlane", timeout=LIMIT)), 3)


class Listens(Case):
    def test_connections_one_after_another(self):
        with memlane.listen("127.0.0.1:0", "memfd:64K") as listener:
            with self.assertRaises(memlane.Timeout):
                listener.accept(timeout=0.01)
            self.assertIn(listener.address, repr(listener))
            senders = [memlane.connect(listener.address) for _ in range(3)]
            for sender, stream in zip(senders, listener):
                with sender, stream:
                    sender.send(b"abc")
                    self.assertEqual(len(stream.receive(timeout=LIMIT)[0]), 3)
        for late in (listener.accept, listener.fileno):
            with self.assertRaises(memlane.Closed):
                late()
        self.assertEqual(list(listener), [])

    def test_who_closes_ends_the_wait_of_another_thread(self):
        listener = memlane.listen("[::1]:0" if socket.has_ipv6 else "127.0.0.1:0", "memfd:64K")
        with self.thread(lambda: self.assertEqual(list(listener), [])):
            time.sleep(0.1)
            listener.close()

    def test_addresses_that_cannot_be(self):
        for address in ["", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "192.0.2.1:0"]:
            with self.subTest(address), self.assertRaises(OSError):
                memlane.listen(address, "memfd:64K")
        with memlane.listen("127.0.0.1:0", "memfd:64K") as listener:
            gone = listener.address
        with self.assertRaises(memlane.PeerError) as caught:
            memlane.connect(gone)
        self.assertEqual(caught.exception.errno, 111)


class Processes(Case):
    def program(self, text, expected=0, **environment):
        """Runs it by an interpreter of its own."""
        ran = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(text)],
            timeout=LIMIT,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
        self.assertEqual(ran.returncode, expected, ran.stderr)
        return ran

    def test_an_interpreter_ends_with_tensors_alive(self):
        self.program(
            """
            import memlane, socket, threading, atexit
            here, there = socket.socketpair()
            stream = memlane.adopt(here, "memfd:1M")
            there.sendall(bytes(300))
            tensor = stream.receive_tensor(100, "uint8", framework="memlane")
            view = memoryview(stream.receive_tensor(100, "uint8", framework="memlane"))
            capsule = tensor.__dlpack__()
            best = stream.receive_tensor(100, "uint8")
            class Late:
                def __del__(self):
                    global tensor
                    bytes(tensor)
            cycle = [tensor, Late()]
            cycle.append(cycle)
            # In a call at the interpreter's end.
            threading.Thread(target=stream.receive, daemon=True).start()
            threading.Thread(target=stream.send, args=(bytes(64 << 20),), daemon=True).start()
            atexit.register(lambda: memoryview(tensor)[0])
            """
        )

    def test_a_copy_that_finds_no_memory_is_an_exception(self):
        self.program(
            """
            import memlane, resource, socket, threading
            here, there = socket.socketpair()
            stream = memlane.adopt(here, "memfd:32M", chunk=16 << 20)
            sender = threading.Thread(target=lambda: there.sendall(bytes(16 << 20)))
            sender.start()
            tensor = stream.receive_tensor(16 << 20, "uint8", framework="memlane")
            # What it sent is not mapped any more.
            sender.join()
            with open("/proc/self/statm") as pages:
                mapped = int(pages.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + (4 << 20), -1))
            try:
                tensor.__dlpack__(copy=True)
            except MemoryError:
                pass
            else:
                raise SystemExit("there was memory")
            assert len(memoryview(tensor)) == 16 << 20
            """,
            # Other arenas have address space in reserve.
            MALLOC_ARENA_MAX="1",
        )

    def test_a_child_of_a_fork_reads_what_there_is_and_uses_nothing(self):
        self.program(
            """
            import memlane, os, socket, sys, threading, time
            here, there = socket.socketpair()
            region = memlane.Region("memfd:64K")
            stream = memlane.adopt(here, region)
            listener = memlane.listen("127.0.0.1:0", region)
            there.sendall(b"abc")
            tensor = stream.receive_tensor(3, "uint8", framework="memlane")
            threading.Thread(target=stream.receive, daemon=True).start()
            time.sleep(0.05)
            child = os.fork()
            if child == 0:
                assert bytes(memoryview(tensor)) == b"abc"
                for use in (stream.receive, stream.counts, stream.close, stream.finish_sending,
                            lambda: stream.send(b"x"), listener.accept):
                    try:
                        use()
                    except memlane.Error as error:
                        assert "fork" in str(error), error
                    else:
                        os._exit(3)
                listener.close()
                # Must not wait for locks that a thread of the parent's has.
                del tensor, stream, listener, use
                import gc
                gc.collect()
                # A region of its own is as good as any.
                assert len(memlane.Region("memfd:4K")) == 4096
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
            assert stream.counts()["out"] == 1
            there.sendall(b"and on")
            while stream.counts()["received"] < 9:
                time.sleep(0.01)
            assert memlane.connect(listener.address).closed is False
            stream.close()
            """
        )

    def test_no_descriptor_and_no_mapping_is_left(self):
        def held():
            with open("/proc/self/maps", encoding="ascii") as maps:
                return len(os.listdir("/proc/self/fd")), maps.read().count("memlane-device")

        def once():
            here, there = socket.socketpair()
            stream = memlane.adopt(here, "memfd:64K")
            there.sendall(b"abcdef")
            tensor = stream.receive_tensor(6, "uint8", framework="memlane", timeout=LIMIT)
            there.close()
            stream.close()
            here.close()
            return bytes(memoryview(tensor))

        once()
        before = held()
        for _ in range(50):
            once()
        gc.collect()
        self.assertEqual(held(), before)


if __name__ == "__main__":
    sys.exit(unittest.main())
