"""Tensors whose bytes land in device memory.

What a stream receives lies in a *region* (a GPU's memory, a dma-buf, or pages of this process) and is read there: tensors are
made of it without a copy, and its memory goes back to the stream when the last of them is gone.

>>> import memlane
>>> listener = memlane.listen("127.0.0.1:0", region="memfd:1M")
>>> sender = memlane.connect(listener.address)
>>> receiver = listener.accept()
>>> sender.send(memoryview(bytes(range(12))))
12
>>> batch = receiver.receive_tensor((3, 4), "uint8", framework="memlane")
>>> memoryview(batch).tolist()
[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
>>> receiver.counts()["bounced"], receiver.counts()["gathered"]
(0, 0)
"""

from ._errors import (
    Closed,
    EndOfStream,
    Error,
    NoRoom,
    PathError,
    PeerError,
    RegionError,
    RegionMissing,
    Timeout,
)
from ._memlane import (
    Listener,
    Records,
    Region,
    Stream,
    Tensor,
    __version__,
    adopt,
    connect,
    listen,
    probe,
)

__all__ = [
    "Closed",
    "EndOfStream",
    "Error",
    "Listener",
    "NoRoom",
    "PathError",
    "PeerError",
    "Records",
    "Region",
    "RegionError",
    "RegionMissing",
    "Stream",
    "Tensor",
    "Timeout",
    "__version__",
    "adopt",
    "connect",
    "listen",
    "probe",
]
