"""What can go wrong. The extension raises these."""


class Error(Exception):
    """All of memlane's."""


class RegionError(Error):
    """There is no such region: its text names none, or the kernel refused."""


class RegionMissing(RegionError):
    """This machine has no such memory; the text says what is missing."""


class PathError(Error, ValueError):
    """There is no such path."""


class NoRoom(Error):
    """All chunks of the region are out. Nothing is lost: drop tensors of it, and call again."""


class EndOfStream(Error, EOFError):
    """The stream ended before as many bytes had come as were asked for. Those that came are there for receive()."""


class Closed(Error):
    """The stream, or the listener, was closed here."""


class Timeout(Error, TimeoutError):
    """Nothing came in time, or not all of it. Nothing is lost: call again."""


class PeerError(Error, OSError):
    """The kernel's word on a connection: errno and text, as of any OSError."""


for _class in list(globals().values()):
    if isinstance(_class, type) and issubclass(_class, Error):
        # As their users see them.
        _class.__module__ = "memlane"
del _class
