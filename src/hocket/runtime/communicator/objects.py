"""Calls that move Python objects: pickled by the sender, made again by the receiver.

Whoever unpickles bytes runs what they say. So these calls exist only between ranks that the kernel has authenticated as
processes of one user, which the rendezvous sees to, and no array call ever unpickles anything. Large buffers of an
object, such as the data of a NumPy array, travel beside the pickle and are not copied into it.
"""

import pickle
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket import _core
from hocket.runtime.communicator.arguments import RESIZABLE, refused_rank
from hocket.runtime.communicator.calls import calling, explained
from hocket.runtime.communicator.point_to_point import ANY_SOURCE, PointToPoint
from hocket.runtime.communicator.uneven import UnevenCollectives
from hocket.runtime.streams.stream import current_stream

Bytes = NDArray[np.uint8]

_LEAST_APART = 4096  # bytes; a smaller buffer is copied into the pickle
_HEAD_BYTES = 1024  # of the message that comes first and has small objects in it
_ALIGNMENT = 64
_MOST_TAG, _MOST_NUMBER = (1 << 31) - 1, (1 << 40) - 1
_PARTS = 1 << 63  # tags of what follows the first message of an object, which has the tag of the program
_numbers = count()  # of objects that this process sends as messages


class Objects(UnevenCollectives, PointToPoint):
    """The calls of a communicator that take and return Python objects. They block, and cannot run in a stream.

    An object that cannot be pickled raises TypeError before anything is sent. The receiver needs the modules that
    define its classes. Objects come only from ranks of this job, which are processes of one user.
    """

    @explained
    def broadcast_object(self, x: Any = None, root: int = 0, *, timeout: float | None = None) -> Any:
        """Returns the root's object on every rank; the root gets x itself, and the others' x is ignored."""
        root = self._check_root("broadcast_object", root)
        _check_host("broadcast_object")
        if self._rank != root:
            head = np.empty(_HEAD_BYTES, np.uint8)
            with calling("broadcast_object"):
                self.broadcast(head, root, timeout=timeout)
                arriving = _Arriving(head)
                for part in arriving.missing():
                    self.broadcast(part, root, timeout=timeout)
            return arriving.object()
        head, rest = _split(_pickled("broadcast_object", x))
        with calling("broadcast_object"):
            for part in (head, *rest):
                self.broadcast(part, root, timeout=timeout)
        return x

    @explained
    def all_gather_object(self, x: Any, *, timeout: float | None = None) -> list[Any]:
        """Returns the objects of all ranks, in rank order, on every rank."""
        _check_host("all_gather_object")
        mine = _packed("all_gather_object", x)
        with calling("all_gather_object"):
            counts = self.all_gather(np.array([len(mine)]), timeout=timeout).tolist()
            found = self.all_gather_v(mine, counts, timeout=timeout)
        return _unpacked(found, counts)

    @explained
    def gather_object(self, x: Any, root: int = 0, *, timeout: float | None = None) -> list[Any] | None:
        """Returns the objects of all ranks, in rank order, at the root; None on the others."""
        root = self._check_root("gather_object", root)
        _check_host("gather_object")
        number = next(_numbers) & _MOST_NUMBER
        head, rest = _split(_pickled("gather_object", x), number)
        with calling("gather_object"):
            heads = self.gather(head, root, timeout=timeout)
        if heads is None:
            self._send_parts("gather_object", [(root, number, rest)], timeout)
            return None
        found = list(map(_Arriving, heads.reshape(self._size, _HEAD_BYTES)))
        return [
            x if rank == root else self._receive_parts("gather_object", rank, one, timeout)
            for rank, one in enumerate(found)
        ]

    @explained
    def scatter_object(self, x: Sequence[Any] | None = None, root: int = 0, *, timeout: float | None = None) -> Any:
        """Returns object `rank` of the root's x, a sequence with one object for each rank; x is ignored elsewhere."""
        root = self._check_root("scatter_object", root)
        _check_host("scatter_object")
        head = np.empty(_HEAD_BYTES, np.uint8)
        if self._rank != root:
            with calling("scatter_object"):
                self.scatter(None, root, out=head, timeout=timeout)
            return self._receive_parts("scatter_object", root, _Arriving(head), timeout)
        if not isinstance(x, Sequence) or len(x) != self._size:
            found = f"{len(x)} of them" if isinstance(x, Sequence) else f"a {type(x).__name__}"
            raise ValueError(f"scatter_object: expected a sequence of {self._size} objects at the root, found {found}")
        heads, parts = [], []
        for rank, one in enumerate(x):
            number = next(_numbers) & _MOST_NUMBER
            first, rest = _split(_pickled(f"scatter_object: x[{rank}]", one), number)
            heads.append(first)
            parts.append((rank, number, rest))
        with calling("scatter_object"):
            self.scatter(np.concatenate(heads), root, out=head, timeout=timeout)
        self._send_parts("scatter_object", [one for one in parts if one[0] != root], timeout)
        return x[root]

    @explained
    def send_object(self, x: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> None:
        """Sends an object to rank dst, which calls recv_object. Only recv_object can receive it."""
        number = next(_numbers) & _MOST_NUMBER
        head, rest = _split(_pickled("send_object", x), number)
        group = self._group("send_object")
        self._add(group, True, head, dst, tag, "send_object")
        self._exchange(group, "send_object", timeout)
        self._send_parts("send_object", [(dst, number, rest)], timeout)

    @explained
    def recv_object(self, src: int = ANY_SOURCE, *, tag: int = 0, timeout: float | None = None) -> tuple[Any, int, int]:
        """Receives an object that rank src, or any rank, has sent with send_object; returns (object, source, tag)."""
        head = np.empty(_HEAD_BYTES, np.uint8)
        group = self._group("recv_object")
        self._add(group, False, head, src, tag, "recv_object")
        [(_, source, _)] = self._exchange(group, "recv_object", timeout)
        return self._receive_parts("recv_object", source, _Arriving(head), timeout), source, tag

    def _send_parts(self, name: str, objects: Iterable[tuple[int, int, list[Bytes]]], timeout: float | None) -> None:
        """Sends what follows the first messages of objects: for each its destination, number and arrays."""
        group, some = self._group(name), False
        for peer, number, parts in objects:
            for part in parts:
                group.add_object(True, part, peer, _PARTS | number, name)
                some = True
        if some:
            self._exchange(group, name, timeout)

    def _receive_parts(self, name: str, source: int, arriving: "_Arriving", timeout: float | None) -> Any:
        """Receives what follows the first message of an object, and returns the object."""
        for part in arriving.missing():
            group = self._group(name)
            group.add_object(False, part, source, _PARTS | arriving.number, name)
            self._exchange(group, name, timeout)
        return arriving.object()

    def _add(self, group: _core.MessageGroup, sends: bool, head: Bytes, peer: int, tag: int, name: str) -> None:
        """Adds the first message of an object to a group."""
        number = _checked_tag(name, tag)
        try:
            group.add_object(sends, head, peer, number, name)
        except ValueError as error:
            raise refused_rank(error, self._size) from None

    def _group(self, name: str) -> _core.MessageGroup:
        _check_host(name)
        return _core.MessageGroup(self._size, RESIZABLE)


# --- bytes of an object --------------------------------------------------------------------------------------------
#
# An object is a body and large buffers. The body is the number of buffers, the length of each, and the pickle.

_HEAD = struct.Struct("<QQ")  # number of the object, length of the body
_LENGTH = struct.Struct("<Q")
_IN_HEAD = _HEAD_BYTES - _HEAD.size  # bytes of the body


def _check_host(name: str) -> None:
    if current_stream() is not None:
        raise RuntimeError(
            f"{name}: expected a call outside of a stream, because it blocks; leave `with hocket.stream`"
        )


def _checked_tag(name: str, tag: int) -> int:
    if not isinstance(tag, int) or not 0 <= tag <= _MOST_TAG:
        raise ValueError(f"{name}: expected tag from 0 to {_MOST_TAG}, found {tag!r}")
    return tag


def _pickled(name: str, x: Any) -> tuple[bytes, list[Bytes]]:
    """Returns the body of an object, and its large buffers."""
    buffers: list[Bytes] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < _LEAST_APART:
            return True
        buffers.append(np.frombuffer(raw, np.uint8))
        return False

    try:
        stream = pickle.dumps(x, 5, buffer_callback=is_small)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise TypeError(
            f"{name}: expected an object that can be pickled, found a {type(x).__name__}: {error}"
        ) from error
    lengths = [len(buffers), *map(len, buffers)]
    return struct.pack(f"<{len(lengths)}Q", *lengths) + stream, buffers


def _split(pickled: tuple[bytes, list[Bytes]], number: int = 0) -> tuple[Bytes, list[Bytes]]:
    """Returns the message that comes first, of _HEAD_BYTES, and the arrays that follow it."""
    body, buffers = pickled
    first = np.zeros(_HEAD_BYTES, np.uint8)
    head = _HEAD.pack(number, len(body)) + body[:_IN_HEAD]
    first[: len(head)] = np.frombuffer(head, np.uint8)
    rest = [np.frombuffer(body, np.uint8)[_IN_HEAD:]] if len(body) > _IN_HEAD else []
    return first, rest + buffers


class _Arriving:
    """An object whose first message is here."""

    def __init__(self, first: Bytes) -> None:
        self.number, length = _HEAD.unpack_from(first.data)
        self._body = np.empty(length, np.uint8)
        self._body[:_IN_HEAD] = first[_HEAD.size :][:length]
        self._buffers: list[Bytes] = []

    def missing(self) -> Iterator[Bytes]:
        """Yields the arrays that have to be filled, one after the other."""
        if len(self._body) > _IN_HEAD:
            yield self._body[_IN_HEAD:]
        self._buffers = [np.empty(length, np.uint8) for length in _lengths(self._body)]
        yield from self._buffers

    def object(self) -> Any:
        """Returns the object, once all arrays are filled."""
        return _unpickled(self._body, self._buffers)


def _packed(name: str, x: Any) -> Bytes:
    """Returns an object as one array: the length of the body, the body, and the buffers, each aligned."""
    body, buffers = _pickled(name, x)
    parts = [np.frombuffer(_LENGTH.pack(len(body)) + body, np.uint8), *buffers]
    ends = list(accumulate(_aligned(len(part)) for part in parts))
    packed = np.zeros(ends[-1], np.uint8)
    for end, part in zip(ends, parts, strict=True):
        packed[end - _aligned(len(part)) :][: len(part)] = part
    return packed


def _unpacked(packed: Bytes, counts: Sequence[int]) -> list[Any]:
    """Returns the objects of several arrays of _packed that follow each other."""
    found = []
    for begin, end in pairwise(accumulate(counts, initial=0)):
        one = packed[begin:end]
        [length] = _LENGTH.unpack_from(one.data)
        body = one[_LENGTH.size :][:length]
        at, buffers = _aligned(_LENGTH.size + length), []
        for size in _lengths(body):
            buffers.append(one[at : at + size])
            at += _aligned(size)
        found.append(_unpickled(body, buffers))
    return found


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _lengths(body: Bytes) -> tuple[int, ...]:
    """Returns the lengths of an object's buffers."""
    [num_buffers] = _LENGTH.unpack_from(body.data)
    return struct.unpack_from(f"<{num_buffers}Q", body.data, _LENGTH.size)


def _unpickled(body: Bytes, buffers: Sequence[Bytes]) -> Any:
    return pickle.loads(body[_LENGTH.size * (1 + len(buffers)) :].data, buffers=buffers)
