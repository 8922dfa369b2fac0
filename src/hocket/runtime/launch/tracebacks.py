"""Tracebacks of ranks, as text: finds the last one, leaves out Hocket's own frames, joins equal ones."""

import re
from collections.abc import Mapping

from hocket.runtime.ranks.program_frames import debugging, is_of_program, short_site, without_own
from hocket.runtime.ranks.rank_names import name_ranks

_HEAD = "Traceback (most recent call last):"
# PyTorch puts the rank in front of each line of an uncaught exception, once for each init_process_group.
# Python, and argparse, also end programs with words that are no traceback.
_START = re.compile(
    rf"^(?P<prefix>(?:\[rank\d+\]: )*)((  \+ Exception Group )?{re.escape(_HEAD)}$|Fatal Python error: "
    r'|(?P<syntax>  File ".*", line \d+$)|usage: |\S*python[\d.]*: )',
    re.M,
)
_CLOSING = re.compile(r"^hocket: rank \d+[:,] .*\n?", re.M)  # a failure that a rank finds as it closes
_STALL = re.compile(rb"^hocket: rank \d+ has waited .*\n", re.M)
_HELD_BYTES = re.compile(f"{_START.pattern}|{_CLOSING.pattern}".encode(), re.M)
_CHAINS = (
    "\n\nDuring handling of the above exception, another exception occurred:\n\n",
    "\n\nThe above exception was the direct cause of the following exception:\n\n",
)
_BETWEEN = re.compile("(" + "|".join(map(re.escape, _CHAINS)) + ")")
_FRAME = re.compile(r'  File "(.+)", line (\d+), in ')
_OF_FRAME = ("    ", "  [Previous line repeated ")
_OF_HOCKET = re.compile(r"hocket(\.\w+)*: ")  # how a message of Hocket begins
_SUBJECT = re.compile(
    r"(hocket(?:\.\w+)*: (?:(?!ranks? \d)[a-z ]+: )*)"  # the type, and what PyTorch's face says before the subject
    r"(ranks? \d.*?): (?:rank \d+ was (?=not done))?"
)
_FOLLOWING = re.compile(r"^hocket\.errors\.(PeerDied|PeerAborted)\b", re.M)


def start_of_failure(lines: bytes) -> int:
    """Returns where a traceback, or a failure found as a rank closes, begins in whole lines; else their length."""
    found = _HELD_BYTES.search(lines)
    return len(lines) if found is None else found.start()


def split_stalls(lines: bytes) -> tuple[list[str], bytes]:
    """Returns the reports of a rank that waits, among whole lines of output, and the other lines."""
    found = [line.decode(errors="replace").rstrip("\n") for line in _STALL.findall(lines)]
    return found, _STALL.sub(b"", lines) if found else lines


def joined_stalls(lines: Mapping[int, str]) -> list[str]:
    """Returns the reports of ranks that wait, one line for all that wait for the same."""
    return [
        line.replace(" has waited ", " have waited ", 1) if len(ranks) > 1 else line for ranks, line in joined(lines)
    ]


def split_closing(text: str) -> tuple[str, str]:
    """Returns the first line with a failure that the rank found as it closed, and the text without such lines."""
    found = _CLOSING.search(text)
    return ("", text) if found is None else (found[0].rstrip("\n"), _CLOSING.sub("", text))


def split_at_last(text: str) -> tuple[str, str, str]:
    """Returns what comes before the last traceback, the traceback with the exceptions that caused it, and the rest.

    Without PyTorch's prefix, nothing shows where a message ends: then the traceback reaches to the end.
    """
    starts = [start for start in _START.finditer(text) if not (start["syntax"] and _is_inside(text[: start.start()]))]
    if not starts:
        return text, "", ""
    last = starts.pop()
    start, prefix = last.start(), last["prefix"]
    while starts and text[:start].replace(prefix, "").endswith(_CHAINS):
        start = starts.pop().start()
    lines = text[start:].splitlines(keepends=True)
    num_lines = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith(prefix)), len(lines))
    found = "".join(line.removeprefix(prefix) for line in lines[:num_lines])
    return text[:start], found.rstrip("\n"), "".join(lines[num_lines:])


def _is_inside(before: str) -> bool:
    """Returns whether a traceback goes on after this text: its head ends with a colon, and its frames are indented."""
    line = before.removesuffix("\n").rpartition("\n")[2]
    return line.startswith("  ") or line.endswith("):")


def last_traceback(text: str) -> str:
    """Returns the last traceback in the output of a rank, with the exceptions that caused it; "" if there is none."""
    return split_at_last(text)[1]


def reports_another(traceback: str) -> bool:
    """Returns whether the traceback only reports that another rank failed."""
    return _FOLLOWING.search(traceback) is not None


def _parse(part: str) -> tuple[list[str], str] | None:
    """Returns the frames of one exception of a traceback, and its message; None for other text, such as a group."""
    head, _, rest = part.partition("\n")
    if head != _HEAD:
        return None
    frames: list[str] = []
    lines = rest.split("\n")
    while lines and (_FRAME.match(lines[0]) or (frames and lines[0].startswith(_OF_FRAME))):
        if _FRAME.match(lines[0]):
            frames.append(lines.pop(0))
        else:
            frames[-1] += "\n" + lines.pop(0)
    return frames, "\n".join(lines)


def _file_of(frame: str) -> str:
    found = _FRAME.match(frame)
    return found[1] if found else ""


def shortened(traceback: str) -> str:
    """Returns the traceback without the frames inside Hocket, and without a cause that has no others and is repeated.

    One frame stays at the end where all are Hocket's. With HOCKET_DEBUG=1 the traceback stays as it is.
    """
    if debugging():
        return traceback
    *causes, last = _BETWEEN.split(traceback)
    kept = ""
    for cause, between in zip(causes[::2], causes[1::2], strict=True):
        parsed = _parse(cause)
        if parsed is None:
            kept += cause + between
            continue
        frames, message = parsed
        others = without_own(frames, _file_of)
        if others or not frames or message.partition(": ")[2] not in last:
            kept += "\n".join([_HEAD, *others, message]) + between
    parsed = _parse(last)
    if parsed is not None:
        frames, message = parsed
        last = "\n".join([_HEAD, *(without_own(frames, _file_of) or frames[-1:]), message])
    return kept + last


def compact(traceback: str) -> str:
    """Returns the traceback without the blank lines between its exceptions."""
    return _BETWEEN.sub(lambda between: f"\n{between[0].strip()}\n", traceback)


def place_in(traceback: str) -> str:
    """Returns the traceback without the head and the message of its last exception, which another text says."""
    kept, between, last = traceback.rpartition(next((c for c in reversed(_CHAINS) if c in traceback), "\0"))
    parsed = _parse(last)
    return kept + between + ("\n".join(parsed[0]) if parsed is not None else last)


def joined(texts: Mapping[int, str]) -> list[tuple[list[int], str]]:
    """Returns the different texts among tracebacks or messages of ranks, each with the ranks that have it.

    Texts of Hocket's errors are equal too if they differ only in the rank's own number, the first that the message
    names: then all ranks stand in its place. The words of a program's own errors are not changed.
    """
    equal: dict[str, list[int]] = {}
    for rank, text in texts.items():
        equal.setdefault(text, []).append(rank)
    found = [(ranks, text) for text, ranks in equal.items() if len(ranks) > 1]
    alike: dict[tuple[str, str], list[int]] = {}
    for text, (rank, *others) in equal.items():
        if not others:
            alike.setdefault(_around_name(text, rank), []).append(rank)
    for (before, after), ranks in alike.items():
        found.append((ranks, before + name_ranks(ranks) + after if len(ranks) > 1 else texts[ranks[0]]))
    return found


def _around_name(text: str, rank: int) -> tuple[str, str]:
    """Returns what stands before and after the name of the rank in a message of Hocket; else the text and ""."""
    message = message_of(text)
    start = len(text) - len(message)
    name = re.compile(rf"\brank {rank}\b").search(text, start) if _OF_HOCKET.match(message) else None
    return (text, "") if name is None else (text[: name.start()], text[name.end() :])


def message_of(traceback: str) -> str:
    """Returns the message of the last exception of a traceback, with its type."""
    parsed = _parse(_BETWEEN.split(traceback)[-1])
    return traceback if parsed is None else parsed[1]


def site_in(traceback: str) -> str:
    """Returns the innermost line of the program in the last exception of a traceback, as "file:line"; "" if none."""
    parsed = _parse(_BETWEEN.split(traceback)[-1])
    for frame in reversed(parsed[0] if parsed is not None else ()):
        found = _FRAME.match(frame)
        if found and is_of_program(found[1]):
            return short_site(f"{found[1]}:{found[2]}")
    return ""


def cause_in(traceback: str) -> str:
    """Returns the message of a traceback without its subject, so that ranks with one cause have one text."""
    return _SUBJECT.sub(r"\1", message_of(traceback), count=1)


def reason_in(traceback: str) -> str:
    """Returns the first line of `cause_in` without its type, as a rank tells it when it closes."""
    return cause_in(traceback).partition("\n")[0].partition(": ")[2]
