"""The output of ranks under `hocket run`: merges whole lines of many sources into one sink, and finds tracebacks."""

import os
import re

_MAX_LINE_BYTES = 65536  # an unfinished line longer than this is passed on in parts
_MAX_TAIL_BYTES = 65536
_MAX_WRITE_BYTES = 4096  # a ready pipe accepts that much without blocking
_MAX_PENDING_BYTES = 1 << 20

_TRACEBACK = re.compile(r"^(  \+ Exception Group )?Traceback \(most recent call last\):$|^Fatal Python error: ", re.M)
_CHAINS = (
    "\n\nDuring handling of the above exception, another exception occurred:\n\n",
    "\n\nThe above exception was the direct cause of the following exception:\n\n",
)
_FOLLOWING = re.compile(r"^hocket\.errors\.(PeerDied|PeerAborted)\b", re.M)


class Sink:
    """An output descriptor that is written only when it is ready, so that a stopped reader blocks nothing."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.pending = bytearray()
        self.broken = False

    @property
    def full(self) -> bool:
        """Whether sources should wait before they read more."""
        return len(self.pending) > _MAX_PENDING_BYTES

    def put(self, data: bytes) -> None:
        """Adds whole lines."""
        if not self.broken:
            self.pending += data

    def write(self) -> None:
        """Writes a part of the pending bytes. Call it when the descriptor is ready."""
        try:
            del self.pending[: os.write(self.descriptor, self.pending[:_MAX_WRITE_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            self.broken = True
            self.pending.clear()


class Source:
    """One output stream of one rank. It owns its descriptor and remembers the last part of the output."""

    def __init__(self, descriptor: int, sink: Sink, label: bytes) -> None:
        self.descriptor, self.sink, self.label = descriptor, sink, label
        self.ended = False
        self.tail = bytearray()
        self._line = bytearray()

    def read(self) -> None:
        """Reads what is there and passes whole lines on. Call it when the descriptor is ready."""
        data = os.read(self.descriptor, 65536)
        self.tail += data
        del self.tail[:-_MAX_TAIL_BYTES]
        self._line += data
        is_rest = not data or len(self._line) > _MAX_LINE_BYTES
        length = len(self._line) if is_rest else self._line.rfind(b"\n") + 1
        whole = bytes(self._line[:length])
        del self._line[:length]
        if self.label and whole:
            lines = whole.removesuffix(b"\n").split(b"\n")
            whole = b"".join(self.label + line + b"\n" for line in lines)
        self.sink.put(whole)
        if not data:
            self.close()

    def close(self) -> None:
        """Ends the source without reading the rest."""
        if not self.ended:
            self.ended = True
            os.close(self.descriptor)


def last_traceback(text: str) -> str:
    """Returns the last traceback in the output of a rank, with the exceptions that caused it; "" if there is none."""
    starts = [match.start() for match in _TRACEBACK.finditer(text)]
    if not starts:
        return ""
    start = starts.pop()
    while starts and text[:start].endswith(_CHAINS):
        start = starts.pop()
    return text[start:].rstrip("\n")


def reports_another(traceback: str) -> bool:
    """Returns whether the traceback only reports that another rank failed."""
    return _FOLLOWING.search(traceback) is not None
