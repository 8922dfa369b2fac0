"""The key of a job that spans hosts: 32 secret bytes that all its ranks are given at their start, and by what.

The sources, first one first: HOCKET_KEY_FD, a descriptor that `hocket run` leaves open; HOCKET_KEY_FILE, a file that
only its owner can read; HOCKET_KEY, hex digits, which all children inherit. No message names a key or a part of it; its
fingerprint may be told.
"""

import contextlib
import hmac
import os
import select
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hocket.errors import RendezvousError
from hocket.runtime.network.handshake import KEY_BYTES
from hocket.runtime.variables import KEY, KEY_FD, KEY_FILE

_HEX_DIGITS = 2 * KEY_BYTES
_FD_SECONDS = 5.0  # the launcher writes the key before it starts the rank
_READABLE_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_lock = threading.Lock()
_read: dict[str, bytes] = {}  # what this process has read from descriptors, which it closed, by their numbers


class JobKey(NamedTuple):
    """A key, and the variable that told it, with its file or descriptor."""

    key: bytes
    told_by: str

    def __repr__(self) -> str:
        return f"<key of {self.told_by}>"

    @property
    def fingerprint(self) -> str:
        """Eight hex digits, by which one sees whether two hosts have the same key; they do not lead back to it."""
        return hmac.digest(self.key, b"hocket fingerprint", "sha256")[:4].hex()


def job_key(variables: Mapping[str, str] | None = None) -> JobKey | None:
    """Returns the key that this process was given, None if it was given none. variables replaces os.environ.

    A descriptor is read once and closed; its key is kept for the next call. Raises RendezvousError if a source has no
    key, or if others could read it.
    """
    variables = os.environ if variables is None else variables
    number, file, digits = (variables.get(name) for name in (KEY_FD, KEY_FILE, KEY))
    if number is not None:
        return JobKey(_from_descriptor(number), f"{KEY_FD} {number}")
    if file is not None:
        return JobKey(_from_file(file), f"{KEY_FILE} {file}")
    if digits is not None:
        key = _from_digits(digits)
        if key is None:
            raise RendezvousError(
                f"{KEY} has {len(digits)} characters; expected {_HEX_DIGITS} hex digits, as `openssl rand -hex "
                f"{KEY_BYTES}` prints"
            )
        return JobKey(key, KEY)
    return None


def no_key(rank: str, where: str) -> RendezvousError:
    """Returns the error of a rank that has no key and cannot get one. rank: in words; where: the board, in words."""
    return RendezvousError(
        f"{rank} on host {_host()} may have to reach other hosts, but has no key of the job, and {where} carries none; "
        f"make a file, (umask 077; head -c {KEY_BYTES} /dev/urandom > hocket.key), copy it to every host, or to a "
        f"folder that all hosts share, and set {KEY_FILE} to its path on all ranks; or start them with `hocket run`"
    )


def _from_descriptor(number: str) -> bytes:
    if not (number.isascii() and number.isdecimal()):
        raise RendezvousError(f"{KEY_FD} is {number!r}; expected the number of a descriptor")
    with _lock:
        if number not in _read:
            _read[number] = _read_descriptor(int(number))
        return _read[number]


def _read_descriptor(descriptor: int) -> bytes:
    wrong = f"{KEY_FD} is {descriptor}, a descriptor"
    advice = "start the ranks with `hocket run`, and do not pass its variables on to other programs"
    data, deadline = b"", time.monotonic() + _FD_SECONDS
    try:
        with contextlib.suppress(OSError):  # a pipe has no beginning to which one could go back
            os.lseek(descriptor, 0, os.SEEK_SET)  # a program before this one may have read it, too
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while len(data) < KEY_BYTES:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise RendezvousError(f"{wrong} that gave {len(data)} bytes in {_FD_SECONDS:g} s, not a key; {advice}")
            more = os.read(descriptor, KEY_BYTES - len(data))
            if not more:
                raise RendezvousError(f"{wrong} that ends after {len(data)} bytes; expected {KEY_BYTES}; {advice}")
            data += more
        os.close(descriptor)
    except (OSError, OverflowError) as error:
        raise RendezvousError(f"{wrong} that cannot be read ({error}); {advice}") from error
    return data


def _from_file(name: str) -> bytes:
    try:
        # A FIFO without a writer must not hold up the start.
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            _check_owner(name, status)
            data = os.read(descriptor, _HEX_DIGITS + 3)  # with an end of line, and one byte that is too much
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RendezvousError(
            f"{KEY_FILE} is {name!r}, which host {_host()} cannot read: {why}; copy the key of the job there, or "
            f"correct {KEY_FILE}"
        ) from error
    key = data if len(data) == KEY_BYTES else _from_digits(data.decode("latin-1").rstrip("\r\n"))
    if key is None:
        raise RendezvousError(
            f"{KEY_FILE} {name} on host {_host()} has {status.st_size} bytes; expected {KEY_BYTES} bytes, or "
            f"{_HEX_DIGITS} hex digits; make one for all hosts: (umask 077; head -c {KEY_BYTES} /dev/urandom > "
            f"{Path(name).name})"
        )
    return key


def _check_owner(name: str, status: os.stat_result) -> None:
    """Raises RendezvousError unless the file is one that only this user, and root, can read."""
    file = f"{KEY_FILE} {name} on host {_host()}"
    if not stat.S_ISREG(status.st_mode):
        raise RendezvousError(f"{file} is no regular file; expected one with the key of the job; correct {KEY_FILE}")
    if status.st_uid not in (os.geteuid(), 0):
        raise RendezvousError(
            f"{file} belongs to user {status.st_uid}; expected user {os.geteuid()}, who runs this rank: chown it"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & _READABLE_BY_OTHERS:
        raise RendezvousError(f"{file} has mode {mode:04o}, which lets others use it; expected 0600: chmod 600 {name}")


def _host() -> str:
    return os.uname().nodename


def _from_digits(digits: str) -> bytes | None:
    """Returns the key of 64 hex digits, None for any other text."""
    if len(digits) != _HEX_DIGITS or not (digits.isascii() and digits.isalnum()):
        return None
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return None
