"""HOCKET_DEBUG=INIT: what each rank knows of itself before it looks for the others, one line from each rank.

A start that does not end is found by comparing ranks: a rank without a line did not come to hocket.init, and one whose
line differs looks elsewhere. So all ranks tell it, also if there are many; `grep` and `sort` do the rest.
"""

import os
import socket
import sys
from collections.abc import Mapping, Sequence

from hocket.errors import RendezvousError, ResourceError
from hocket.runtime.network.interfaces import choose, named_interfaces
from hocket.runtime.network.job_key import job_key
from hocket.runtime.ranks.environment import Environment
from hocket.runtime.ranks.program_frames import debugging_start
from hocket.runtime.variables import SOCKET_IFNAME


def tell_start(environment: Environment) -> None:
    """Prints the line of this rank on standard error, in one write, if HOCKET_DEBUG has the word INIT."""
    if debugging_start():
        sys.stderr.write(f"hocket INIT: {describe_start(environment, os.environ)}\n")
        sys.stderr.flush()


def describe_start(environment: Environment, variables: Mapping[str, str]) -> str:
    """Returns rank and size, host, board, key and interfaces, each with the variable or argument that told it.

    A key is told by its fingerprint, and interfaces only if a variable chooses them.
    """
    one = environment
    said = [
        f"rank {one.rank} of {one.size} ({_told_by(one, one.names[:2], variables)})",
        f"process {os.getpid()} on {socket.gethostname()}",
        f"local rank {one.local_rank} of {one.local_size} ({_told_by(one, one.names[2:], variables)})",
    ]
    if one.board is None:
        said += [f"all ranks on this host, at the name {one.address}"]
    else:
        said += [f"rank 0 by {one.board.where}", _describe_key(one.board.carries_key, variables)]
        pattern = named_interfaces(variables)
        said += [] if pattern is None else [_describe_interfaces(pattern)]
    return "; ".join(said)


def _told_by(environment: Environment, names: Sequence[str], variables: Mapping[str, str]) -> str:
    return ", ".join(name if name in variables else f"{name} is not set" for name in names) or environment.source


def _describe_key(carried: bool, variables: Mapping[str, str]) -> str:
    try:
        found = job_key(variables)
    except RendezvousError as error:
        return f"no key: {error}"
    if found is not None:
        return f"key {found.fingerprint} by {found.told_by}"
    return "key of rank 0, by the same way" if carried else "no key"


def _describe_interfaces(pattern: str) -> str:
    try:
        chosen = choose(pattern, None)
    except (RendezvousError, ResourceError, ValueError) as error:  # hocket.init raises it, if it comes so far
        return f"no interface: {error}"
    return f"interfaces {', '.join(map(str, chosen))} by {SOCKET_IFNAME} {pattern}"
