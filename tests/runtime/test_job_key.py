"""The key of a job: where it comes from, and what is refused."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.errors import RendezvousError
from hocket.runtime.network import job_key as source
from hocket.runtime.network.job_key import job_key, no_key

KEY = bytes(range(100, 132))
OTHER = bytes(range(32))


@pytest.fixture(autouse=True)
def no_descriptor_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_read", {})


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            assert end == ends[0]  # which the reader of a key closes


def written(folder: Path, data: bytes, mode: int = 0o600) -> str:
    file = folder / "hocket.key"
    file.write_bytes(data)
    file.chmod(mode)
    return str(file)


def test_without_a_source_there_is_no_key() -> None:
    assert job_key({}) is None


@pytest.mark.parametrize(
    "data", [KEY, KEY.hex().encode(), KEY.hex().upper().encode() + b"\n", KEY.hex().encode() + b"\r\n"]
)
@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_has_bytes_or_digits(tmp_path: Path, data: bytes, mode: int) -> None:
    file = written(tmp_path, data, mode)
    assert job_key({"HOCKET_KEY_FILE": file}) == (KEY, f"HOCKET_KEY_FILE {file}")


def test_a_descriptor_is_read_once_closed_and_remembered(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, KEY)
    for _ in range(2):
        assert job_key({"HOCKET_KEY_FD": str(reader)}) == (KEY, f"HOCKET_KEY_FD {reader}")
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(reader)


def test_the_first_source_is_taken(tmp_path: Path, pipe: tuple[int, int]) -> None:
    os.write(pipe[1], OTHER)
    digits = {"HOCKET_KEY": KEY.hex()}
    file = digits | {"HOCKET_KEY_FILE": written(tmp_path, bytes(32))}
    descriptor = file | {"HOCKET_KEY_FD": str(pipe[0])}
    found = [job_key(one) for one in (digits, file, descriptor)]
    assert [one and one.key for one in found] == [KEY, bytes(32), OTHER]
    assert found[0] is not None and found[0].told_by == "HOCKET_KEY"


@pytest.mark.parametrize(
    ("data", "mode", "words"),
    [
        (KEY, 0o640, "has mode 0640, which lets others use it; expected 0600: chmod 600"),
        (KEY, 0o604, "has mode 0604, which lets others use it"),
        (KEY, 0o620, "has mode 0620, which lets others use it"),
        (b"", 0o600, "has 0 bytes; expected 32 bytes, or 64 hex digits; make one for all hosts: (umask 077;"),
        (KEY[:31], 0o600, "has 31 bytes"),
        (KEY + b"\n", 0o600, "has 33 bytes"),
        (KEY.hex().encode()[:63], 0o600, "has 63 bytes"),
        (KEY.hex().encode()[:63] + b"g", 0o600, "has 64 bytes"),
        (b" " + KEY.hex().encode(), 0o600, "has 65 bytes"),
        (KEY.hex().encode() * 1000, 0o600, "has 64000 bytes"),
        (b"6 " * 32, 0o600, "has 64 bytes"),
    ],
)
def test_a_file_that_is_no_secret_key_is_refused(tmp_path: Path, data: bytes, mode: int, words: str) -> None:
    with pytest.raises(RendezvousError, match=re.escape(words)) as caught:
        job_key({"HOCKET_KEY_FILE": written(tmp_path, data, mode)})
    assert KEY.hex()[:8] not in str(caught.value) and repr(KEY)[4:12] not in str(caught.value)


def test_a_file_of_another_user_is_refused_but_that_of_root_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, KEY)
    mine = os.stat(file).st_uid  # noqa: PTH116 - as the reader does
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    if mine == 0:
        assert job_key({"HOCKET_KEY_FILE": file}) is not None
        os.chown(file, 12345, -1)
    with pytest.raises(RendezvousError, match=rf"belongs to user \d+; expected user {mine + 1}, who runs this rank"):
        job_key({"HOCKET_KEY_FILE": file})


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name, words in (("fifo", "is no regular file"), ("", "is no regular file"), ("none", "No such file")):
        with pytest.raises(RendezvousError, match=words):
            job_key({"HOCKET_KEY_FILE": str(tmp_path / name)})
    with pytest.raises(
        RendezvousError, match=f"which host {os.uname().nodename} cannot read: embedded null byte; copy"
    ):
        job_key({"HOCKET_KEY_FILE": "a\0b"})


@pytest.mark.parametrize(
    "digits", ["", "00", KEY.hex()[:-1], KEY.hex() + "0", KEY.hex()[:-1] + "g", "6 " * 32, "٣" * 64]
)
def test_digits_that_are_no_key_are_refused(digits: str) -> None:
    with pytest.raises(RendezvousError, match=f"HOCKET_KEY has {len(digits)} characters; expected 64 hex digits"):
        job_key({"HOCKET_KEY": digits})


@pytest.mark.parametrize("number", ["", "x", "-1", "3.0", "٣"])
def test_what_is_no_descriptor_is_refused(number: str) -> None:
    with pytest.raises(RendezvousError, match="expected the number of a descriptor"):
        job_key({"HOCKET_KEY_FD": number})


def test_a_descriptor_without_a_key_is_refused_in_time(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_FD_SECONDS", 0.05)
    variables = {"HOCKET_KEY_FD": str(pipe[0])}
    os.write(pipe[1], KEY[:5])
    with pytest.raises(RendezvousError, match=r"gave 5 bytes in 0\.05 s, not a key; start the ranks with"):
        job_key(variables)
    ends = os.pipe()
    os.write(ends[1], KEY[:7])
    os.close(ends[1])
    with pytest.raises(RendezvousError, match="ends after 7 bytes; expected 32"):
        job_key({"HOCKET_KEY_FD": str(ends[0])})
    os.close(ends[0])
    for number in (ends[0], 1 << 70):
        with pytest.raises(RendezvousError, match="a descriptor that cannot be read"):
            job_key({"HOCKET_KEY_FD": str(number)})


def test_programs_that_inherit_one_descriptor_read_its_key_in_turn() -> None:
    memory = os.memfd_create("key")
    os.write(memory, KEY)
    inherited = [os.dup(memory) for _ in range(2)]  # as by two children of one shell: they share the place in the file
    os.close(memory)
    assert [job_key({"HOCKET_KEY_FD": str(one)}) for one in inherited] == [
        (KEY, f"HOCKET_KEY_FD {n}") for n in inherited
    ]


def test_nothing_shows_a_key() -> None:
    found = job_key({"HOCKET_KEY": KEY.hex()})
    assert repr(found) == str(found) == "<key of HOCKET_KEY>"


def test_the_error_without_a_key_says_how_to_give_one() -> None:
    said = str(no_key("rank 1 of 2", "hxa:29500 (told by HOCKET_ADDRESS)"))
    assert said.startswith("rank 1 of 2 on host ") and "hxa:29500 (told by HOCKET_ADDRESS) carries none" in said
    assert "set HOCKET_KEY_FILE" in said
