"""Arrays of other libraries, on the bytes of a memlane.Tensor. None of them is imported before it is needed."""

import functools
import importlib.util

_NAMES = ("torch", "numpy", "memlane")


@functools.cache
def _best():
    """PyTorch, else NumPy, else ours."""
    for name in ("torch", "numpy"):
        if importlib.util.find_spec(name) is not None:
            return name
    return "memlane"


def check(framework):
    """Is it one?"""
    if framework is not None and framework not in _NAMES:
        raise ValueError(f"framework: {framework!r} is none of {', '.join(_NAMES)}")


def convert(tensor, framework):
    """As the user wants it."""
    name = framework or _best()
    if name == "torch":
        return to_torch(tensor)
    if name == "numpy":
        return to_numpy(tensor)
    return tensor


def to_numpy(tensor):
    """By the buffer protocol: writable, and of every NumPy that there is."""
    import numpy

    return numpy.asarray(tensor)


def to_torch(tensor):
    """By DLPack."""
    import torch

    if tensor.dtype == "bool":
        # Older ones read no bool there.
        return torch.from_dlpack(tensor.view("uint8", tensor.shape)).view(torch.bool)
    return torch.from_dlpack(tensor)
