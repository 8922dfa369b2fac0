"""What ranks tell each other as they meet: what all have to have alike, and what rank 0 decides for all."""

import os
import secrets
from collections.abc import Sequence
from typing import Any

from hocket.errors import RendezvousError
from hocket.runtime.choice.profile import read_profiles
from hocket.runtime.choice.select import Policy


def check_builds(builds: Sequence[tuple[str, int]]) -> None:
    """Raises RendezvousError, the same on all ranks, unless all run one build: others would misread shared memory."""
    for rank, build in enumerate(builds):
        if build != builds[0]:
            (ours, our_layout), (theirs, their_layout) = builds[0], build
            raise RendezvousError(
                f"rank 0 runs Hocket {ours}, layout {our_layout:016x}, rank {rank} Hocket {theirs}, layout "
                f"{their_layout:016x}, which cannot read each other's memory; install one build for all ranks "
                f"(hocket.__file__ says where each rank has its own)"
            )


def check_links(links: Sequence[Sequence[float] | None]) -> None:
    """Raises RendezvousError, the same on all ranks, unless all use the same paced link or none uses one."""
    for rank, link in enumerate(links):
        said = ["no paced link" if one is None else f"a paced link {tuple(one)}" for one in (links[0], link)]
        if said[0] != said[1]:
            raise RendezvousError(
                f"rank 0 has {said[0]} (bytes per second, seconds), rank {rank} {said[1]}; call hocket.init() on all "
                "ranks inside the same hocket.testing.paced_link(), or on all ranks outside of one"
            )


def configuration() -> dict[str, Any]:
    """Returns what rank 0 sends to all: a name for the job, and the policy and profiles of its environment."""
    job = secrets.token_hex(4)
    try:
        policy, profiles = Policy.from_environment(os.environ).encode(), read_profiles(os.environ)
    except (ValueError, OSError) as error:
        return {"policy": "", "profiles": read_profiles({}), "error": str(error), "job": job}
    return {"policy": policy, "profiles": profiles, "error": "", "job": job}
