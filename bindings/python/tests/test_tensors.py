"""Tensors: whose the bytes are, how long, and what other libraries make of them."""

import ctypes
import gc
import struct
import sys
import threading
import unittest

import memlane
from support import LIMIT, Case, has, mapped

NUMPY = has("numpy")
TORCH = has("torch")
if NUMPY:
    import numpy
if TORCH:
    import torch


class Whose(Case):
    def received(self, data, shape, dtype, **terms):
        stream, there = self.pair(**terms)
        there.sendall(data)
        return stream, stream.receive_tensor(shape, dtype, framework="memlane", timeout=LIMIT)

    def test_bytes_lie_in_the_region_and_their_token_comes_back_with_the_tensor(self):
        stream, tensor = self.received(b"abcdef", (2, 3), "uint8")
        self.assertTrue(mapped(tensor.address))
        self.assertEqual(self.region.read(tensor.offset, 6), b"abcdef")
        self.assertEqual(memoryview(tensor).tolist(), [[97, 98, 99], [100, 101, 102]])
        self.assertEqual([length for _, length, _ in tensor.fragments], [6])
        self.assertEqual(stream.counts()["out"], 1)
        del tensor
        self.is_whole(stream)

    def test_views_keep_the_bytes_when_the_tensor_is_gone(self):
        stream, tensor = self.received(b"abcdef", 6, "uint8")
        view = memoryview(tensor)
        tensor.release()
        with self.assertRaisesRegex(memlane.Error, "released"):
            memoryview(tensor)
        self.assertIn("released", repr(tensor))
        del tensor
        self.assertEqual(stream.counts()["out"], 1)
        self.assertEqual(bytes(view[2:4]), b"cd")
        part = view[1:3]
        view.release()
        self.assertEqual(bytes(part), b"bc")
        self.assertEqual(stream.counts()["out"], 1, "a view of a view")
        part.release()
        self.is_whole(stream)

    def test_it_outlives_the_stream_and_the_region(self):
        stream, tensor = self.received(b"abcdef", 6, "uint8")
        stream.close()
        self.assertEqual(stream.counts()["out"], 1)
        region, self.region = self.region, None
        del region
        gc.collect()
        self.assertEqual(bytes(memoryview(tensor)), b"abcdef")
        self.assertTrue(mapped(tensor.address))
        del tensor
        self.assertEqual(stream.counts()["out"], 0)

    def test_a_tensor_that_comes_in_parts_lies_in_one_piece_on_each_path(self):
        """Asked for while its first part is already under way into the region, too."""
        for path in "mapped", "staged":
            with self.subTest(path):
                stream, there = self.pair(path=path)
                for _ in range(3):
                    there.sendall(bytes(700))
                    with self.assertRaises(TimeoutError):
                        stream.receive_tensor(1500, "uint8", timeout=0.02)
                    there.sendall(bytes(800))
                    tensor = stream.receive_tensor(1500, "uint8", framework="memlane", timeout=LIMIT)
                    self.assertIsNotNone(tensor.offset)
                    del tensor
                self.assertEqual(stream.counts()["gathered"], 0)
                self.is_whole(stream)

    def test_tensors_of_two_lengths_by_turns_lie_in_one_piece_on_each_path(self):
        for path in "mapped", "staged":
            with self.subTest(path):
                stream, there = self.pair("memfd:1M", path=path)
                work = lambda: [there.sendall(bytes(5000 + 16)) for _ in range(200)]
                with self.thread(work):
                    for length in [5000, 16] * 200:
                        tensor = stream.receive_tensor(length, "uint8", framework="memlane", timeout=LIMIT)
                        self.assertIsNotNone(tensor.offset)
                        del tensor
                self.assertEqual(stream.counts()["gathered"], 0)
                self.is_whole(stream)

    def test_any_thread_may_drop_the_last_one(self):
        stream, tensor = self.received(b"abcdef", 6, "uint8")
        box = [memoryview(tensor)]
        del tensor
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
        self.is_whole(stream)

    def test_tensors_of_one_fragment_give_it_back_together(self):
        stream, there = self.pair()
        there.sendall(bytes(range(8)) * 4)
        records = stream.records(4, "uint8", framework="memlane", timeout=LIMIT)
        first, second = next(records), next(records)
        self.assertEqual(first.fragments, second.fragments)
        self.assertEqual(second.address - first.address, 4)
        there.close()
        rest = list(records)
        self.assertEqual(len(rest), 6)
        self.assertEqual(stream.counts()["out"], 1)
        del first, rest
        self.assertEqual(stream.counts()["out"], 1)
        self.assertEqual(memoryview(second).tolist(), [4, 5, 6, 7])
        del second
        self.is_whole(stream)

    def test_a_user_may_write_and_nobody_else_sees_another_s_bytes(self):
        stream, there = self.pair()
        there.sendall(b"oneTWO")
        one = stream.receive_tensor(3, "uint8", framework="memlane", timeout=LIMIT)
        two = stream.receive_tensor(3, "uint8", framework="memlane", timeout=LIMIT)
        view = memoryview(one)
        self.assertFalse(view.readonly)
        view[:] = b"NEW"
        self.assertEqual(bytes(memoryview(one)), b"NEW")
        self.assertEqual(bytes(memoryview(two)), b"TWO")

    def test_each_kind_of_element_is_read_as_it_was_written(self):
        for dtype, letter, values in [
            ("bool", "?", [True, False]),
            ("int8", "b", [-1, 2]),
            ("int16", "h", [-300, 2]),
            ("int32", "i", [-70000, 2]),
            ("int64", "q", [-(1 << 40), 2]),
            ("uint8", "B", [255, 2]),
            ("uint16", "H", [65535, 2]),
            ("uint32", "I", [1 << 31, 2]),
            ("uint64", "Q", [1 << 63, 2]),
            ("float16", "e", [0.5, -2.0]),
            ("float32", "f", [0.25, -2.0]),
            ("float64", "d", [0.1, -2.0]),
        ]:
            with self.subTest(dtype):
                data = struct.pack("=2" + letter, *values)
                stream, tensor = self.received(data, 2, dtype)
                self.assertEqual((tensor.nbytes, tensor.dtype), (len(data), dtype))
                if letter != "e":
                    self.assertEqual(memoryview(tensor).tolist(), values)
                if NUMPY:
                    self.assertEqual(tensor.numpy().tolist(), values)
                    self.assertEqual(tensor.numpy().dtype.name, dtype)
                if TORCH and hasattr(torch, dtype) and dtype not in ("uint16", "uint32", "uint64"):
                    self.assertEqual(tensor.torch().tolist(), values)
                    self.assertEqual(str(tensor.torch().dtype), "torch." + dtype)
                del tensor
                self.is_whole(stream)

    def test_strange_shapes(self):
        stream, tensor = self.received(b"\x07\x00", (), "int16")
        self.assertEqual(memoryview(tensor).tolist(), 7)
        self.assertEqual(tensor.shape, ())
        with self.assertRaises(TypeError):
            len(tensor)
        if NUMPY:
            self.assertEqual(int(tensor.numpy()), 7)
        if TORCH:
            self.assertEqual(int(tensor.torch()), 7)
        del tensor
        self.is_whole(stream)
        stream, empty = self.received(b"", (3, 0, 2), "float32")
        self.assertEqual((empty.nbytes, empty.fragments), (0, []))
        if NUMPY:
            self.assertEqual(numpy.asarray(empty).shape, (3, 0, 2))
            self.assertEqual(numpy.from_dlpack(empty).shape, (3, 0, 2))
        if TORCH:
            self.assertEqual(tuple(empty.torch().shape), (3, 0, 2))
        for wrong, error in [
            (-1, ValueError),
            ((2, -3), ValueError),
            ((1 << 40, 1 << 40), ValueError),
            ((1,) * 33, ValueError),
            ("ab", TypeError),
            (1.5, TypeError),
            (None, TypeError),
            (1 << 70, (TypeError, OverflowError)),
        ]:
            with self.subTest(wrong), self.assertRaises(error):
                stream.receive_tensor(wrong, "uint8", timeout=0)

    def test_dtypes_by_what_others_call_them(self):
        names = ["float32", "torch.float32"]
        if NUMPY:
            names += [numpy.float32, numpy.dtype("float32")]
            with self.assertRaisesRegex(ValueError, "byte order"):
                self.received(b"", 0, numpy.dtype(">f4"))
        if TORCH:
            names.append(torch.float32)
        for name in names:
            stream, tensor = self.received(struct.pack("=f", 1.5), 1, name)
            self.assertEqual(memoryview(tensor).tolist(), [1.5])
        for wrong in ["float33", "", object(), 5]:
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, "float32"):
                self.received(b"", 0, wrong)

    def test_a_kind_that_has_no_letter_goes_by_dlpack_or_as_bits(self):
        stream, tensor = self.received(b"\x80\x3f\x00\x40", 2, "bfloat16")
        with self.assertRaisesRegex(BufferError, "bfloat16"):
            memoryview(tensor)
        bits = tensor.view("uint16")
        self.assertEqual(memoryview(bits).tolist(), [0x3F80, 0x4000])
        with self.assertRaisesRegex(ValueError, "4 bytes"):
            tensor.view("uint64")
        if TORCH:
            self.assertEqual(tensor.torch().float().tolist(), [1.0, 2.0])
        del tensor
        self.assertEqual(stream.counts()["out"], 1, "the view has it")
        del bits
        self.is_whole(stream)

    def test_who_wants_columns_first_is_refused(self):
        get = ctypes.pythonapi.PyObject_GetBuffer
        get.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
        release = ctypes.pythonapi.PyBuffer_Release
        release.argtypes = [ctypes.c_void_p]
        simple, strided, fortran, any_order = 0, 0x10 | 0x8, 0x40 | 0x18, 0x80 | 0x18
        stream, tensor = self.received(b"abcdef", (2, 3), "uint8")
        room = ctypes.create_string_buffer(256)
        with self.assertRaises(BufferError):
            get(tensor, room, fortran)
        for flags in (simple, strided, any_order):
            self.assertEqual(get(tensor, room, flags), 0)
            release(room)
        del tensor
        self.is_whole(stream)


class Dlpack(Case):
    def setUp(self):
        self.stream, there = self.pair()
        there.sendall(struct.pack("=6f", *range(6)))
        self.tensor = self.stream.receive_tensor((2, 3), "float32", framework="memlane", timeout=LIMIT)

    @staticmethod
    def name(capsule):
        get = ctypes.pythonapi.PyCapsule_GetName
        get.restype, get.argtypes = ctypes.c_char_p, [ctypes.py_object]
        return get(capsule)

    @staticmethod
    def words(capsule, count):
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        return (ctypes.c_uint64 * count).from_address(get(capsule, Dlpack.name(capsule)))

    def test_a_capsule_is_of_the_version_that_was_asked_for(self):
        tensor = self.tensor
        self.assertEqual(tensor.__dlpack_device__(), (1, 0))
        for asked, name in [
            ({}, b"dltensor"),
            ({"max_version": None}, b"dltensor"),
            ({"max_version": (0, 8)}, b"dltensor"),
            ({"max_version": (1, 0)}, b"dltensor_versioned"),
            ({"max_version": (9, 9), "copy": False, "dl_device": (1, 0)}, b"dltensor_versioned"),
        ]:
            with self.subTest(asked):
                self.assertEqual(self.name(tensor.__dlpack__(**asked)), name)
        versioned = self.words(tensor.__dlpack__(max_version=(1, 3)), 10)
        # Version 1.0; no flag: it may be written to, and is no copy; the first byte.
        self.assertEqual((versioned[0], versioned[3], versioned[4]), (1, 0, tensor.address))
        self.assertEqual(self.words(tensor.__dlpack__(), 1)[0], tensor.address)

    def test_capsules_that_nobody_takes_keep_nothing(self):
        capsules = [self.tensor.__dlpack__(max_version=v) for v in (None, (1, 0))]
        self.tensor = None
        self.assertEqual(self.stream.counts()["out"], 1)
        del capsules[0]
        self.assertEqual(self.stream.counts()["out"], 1)
        capsules.clear()
        self.is_whole(self.stream)

    def test_what_cannot_be_had_is_refused(self):
        for asked in [{"stream": 1}, {"dl_device": (2, 0)}, {"dl_device": (1, 1)}]:
            with self.subTest(asked), self.assertRaises(BufferError):
                self.tensor.__dlpack__(**asked)
        for asked in [{"max_version": "1.0"}, {"max_version": (-1, 0)}, {"copy": "no"}]:
            with self.subTest(asked), self.assertRaises((TypeError, OverflowError)):
                self.tensor.__dlpack__(**asked)
        with self.assertRaises(TypeError):
            self.tensor.__dlpack__(None)
        self.tensor.release()
        with self.assertRaisesRegex(memlane.Error, "released"):
            self.tensor.__dlpack__()

    def test_a_copy_is_one_and_says_so(self):
        capsule = self.tensor.__dlpack__(copy=True, max_version=(1, 0))
        words = self.words(capsule, 10)
        self.assertEqual(words[3], 2, "IS_COPIED")
        self.assertNotEqual(words[4], self.tensor.address)
        self.assertEqual(ctypes.string_at(words[4], 24), bytes(memoryview(self.tensor).cast("B")))
        self.tensor = None
        self.is_whole(self.stream)
        del capsule

    @unittest.skipUnless(NUMPY, "SKIPPED: no NumPy")
    def test_numpy_reads_it_where_it_lies(self):
        for make in (numpy.asarray, numpy.from_dlpack, memlane.Tensor.numpy):
            array = make(self.tensor)
            self.assertEqual(array.tolist(), [[0, 1, 2], [3, 4, 5]])
            self.assertEqual(array.ctypes.data, self.tensor.address)
        array = numpy.asarray(self.tensor)[1:, ::2]
        self.assertTrue(array.flags.writeable)
        self.tensor = None
        self.assertEqual(self.stream.counts()["out"], 1)
        self.assertEqual(array.tolist(), [[3, 5]])
        del array
        self.is_whole(self.stream)

    @unittest.skipUnless(TORCH, "SKIPPED: no PyTorch")
    def test_torch_reads_it_where_it_lies(self):
        tensor = self.tensor.torch()
        self.assertEqual(tensor.data_ptr(), self.tensor.address)
        self.assertEqual(tensor.tolist(), [[0, 1, 2], [3, 4, 5]])
        tensor.mul_(2)
        self.assertEqual(memoryview(self.tensor).tolist()[1], [6, 8, 10])
        part = tensor[1:].t()
        self.tensor = None
        del tensor
        self.assertEqual(self.stream.counts()["out"], 1)
        self.assertEqual(part.tolist(), [[6], [8], [10]])
        box = [part]
        del part
        # Its deleter is called by a thread that has not the interpreter's lock.
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
        self.is_whole(self.stream)

    @unittest.skipUnless(TORCH, "SKIPPED: no PyTorch")
    def test_a_capsule_is_taken_once(self):
        capsule = self.tensor.__dlpack__()
        taken = torch.utils.dlpack.from_dlpack(capsule)
        self.assertEqual(self.name(capsule), b"used_dltensor")
        with self.assertRaises((RuntimeError, ValueError)):
            torch.utils.dlpack.from_dlpack(capsule)
        del capsule
        self.tensor = None
        self.assertEqual(taken.tolist(), [[0, 1, 2], [3, 4, 5]], "the capsule's end is not the tensor's")
        del taken
        self.is_whole(self.stream)

    def test_it_is_sent_from_where_it_lies(self):
        receiver, sender = self.tcp()
        self.assertEqual(sender.send(self.tensor), 24)
        self.assertEqual(sender.send(self.tensor.view("int16")), 24)
        came = b""
        while len(came) < 48:
            came += b"".join(bytes(memoryview(f)) for f in receiver.receive(timeout=LIMIT))
        self.assertEqual(came, struct.pack("=6f", *range(6)) * 2)


if __name__ == "__main__":
    sys.exit(unittest.main())
