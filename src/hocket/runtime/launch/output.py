"""The output of ranks under `hocket run`: merges whole lines of many sources into one sink, and holds tracebacks."""

import os
import time

from hocket.runtime.launch.tracebacks import split_stalls, start_of_failure

_MAX_LINE_BYTES = 65536  # an unfinished line longer than this is passed on in parts
_MAX_TAIL_BYTES = 65536
_MAX_HELD_BYTES = 65536
_MAX_WRITE_BYTES = 4096  # a ready pipe accepts that much without blocking
_MAX_PENDING_BYTES = 1 << 20


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
    """One output stream of one rank. It remembers the last part of the output.

    holds: a failure and what comes after it are held until `release` or `take`: the rank may have ended with it.
    Then `stalls` are the reports of a wait, which are taken out, as other ranks may report the same.
    """

    def __init__(self, sink: Sink, label: bytes, *, holds: bool = False) -> None:
        self.sink, self.label, self.holds = sink, label, holds
        self.tail = bytearray()
        self.held = bytearray()
        self.stalls: list[str] = []
        self.held_since = 0.0
        self.read_at = 0.0  # when the last output came
        self._line = bytearray()

    def take_in(self, data: bytes) -> None:
        """Takes output, b"" at its end, and passes whole lines on."""
        self.read_at = time.monotonic() if data else self.read_at
        self.tail += data
        del self.tail[:-_MAX_TAIL_BYTES]
        self._line += data
        is_rest = not data or len(self._line) > _MAX_LINE_BYTES
        length = len(self._line) if is_rest else self._line.rfind(b"\n") + 1
        whole = bytes(self._line[:length])
        del self._line[:length]
        if self.holds and not self.label:
            stalls, whole = split_stalls(whole)
            self.stalls += stalls
        start = 0 if self.held else start_of_failure(whole) if self.holds else len(whole)
        self.put(whole[:start])
        if start < len(whole):
            self.held_since = self.held_since if self.held else self.read_at
            self.held += whole[start:]
            if len(self.held) > _MAX_HELD_BYTES:
                self.release()

    def put(self, whole: bytes) -> None:
        """Passes whole lines on, with the label in front of each."""
        if self.label and whole:
            lines = whole.removesuffix(b"\n").split(b"\n")
            whole = b"".join(self.label + line + b"\n" for line in lines)
        self.sink.put(whole)

    def take(self) -> str:
        """Returns what is held, which is then no longer passed on."""
        held = self.held.decode(errors="replace")
        self.held.clear()
        return held

    def release(self) -> None:
        """Passes on what is held."""
        held = bytes(self.held)
        self.held.clear()
        self.put(held)
