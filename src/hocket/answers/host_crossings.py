"""Which algorithm runs among ranks on several hosts, and what each algorithm carries between the hosts."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hocket.answers.answer import Answer
from hocket.answers.limits import check_ranks

if TYPE_CHECKING:
    from hocket.algorithms import Algorithm
    from hocket.schedule import Schedule
    from hocket.view import Terminal


@dataclass(frozen=True)
class Crossing:
    """An algorithm that could do a call on several hosts; sizes in bytes.

    twins: algorithms with the same schedule. steps_across: those that carry something between hosts. sent: by the
    busiest rank. across: what the busiest host sends to others, or receives from them. messages: how many of these it
    sends or receives, each between two ranks in one step.
    """

    algorithm: str
    twins: tuple[str, ...]
    steps: int
    steps_across: int
    sent: int
    across: int
    messages: int


@dataclass(frozen=True, repr=False)
class HostsExplanation(Answer):
    """Which algorithm runs for a call among ranks on several hosts, and why.

    hosts: the number of ranks on each. by: what decided, "table", "tuner file" or HOCKET_ALGO. table: what the table
    alone says. on_one_host: what the table says where all these ranks are on one host. asked: the algorithms that the
    call named. candidates: the one that carries least between hosts first.
    """

    collective: str
    num_ranks: int
    num_bytes: int
    hosts: tuple[int, ...]
    algorithm: str
    by: str
    table: str
    tuner_file_lines: int
    algo: str
    on_one_host: str
    asked: tuple[str, ...]
    candidates: tuple[Crossing, ...]

    @property
    def why(self) -> str:
        """What the algorithm carries between hosts, and what algorithms that know no hosts would carry."""
        from hocket.view import hosts_text

        return " ".join(hosts_text.reasons(self.as_json()))

    def _print(self, console: "Terminal") -> None:
        """Prints the candidates, and why one of them runs."""
        from hocket.view import print_hosts_explanation

        print_hosts_explanation(console, self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket explain --hosts ... --json` does."""
        return asdict(self)


def explain_on_hosts(
    collective: str, num_bytes: int, hosts: Sequence[int], own: "dict[str, Algorithm]"
) -> HostsExplanation:
    """Returns the explanation of a call, by the host of each rank; own: algorithms of the user, as they were given."""
    from hocket.runtime import Policy, choose
    from hocket.runtime.choice import select
    from hocket.runtime.ranks import cores

    num_ranks = len(hosts)
    check_ranks(num_ranks)
    sizes = tuple(map(list(hosts).count, dict.fromkeys(hosts)))
    policy = Policy.from_environment(os.environ, shares_cores=cores.shared_by(max(sizes))).on_hosts(hosts)
    algorithm, by = select.choose_by(collective, num_ranks, num_bytes, "fast", policy)
    alone = policy.table_alone()
    by_table, flat = (choose(collective, num_ranks, num_bytes, "fast", one) for one in (alone, alone.on_hosts(())))
    rows: dict[str, Crossing] = {}
    for name, one in _candidates(collective, num_ranks, (algorithm, by_table, flat), own).items():
        made = one.build(num_ranks, groups=policy.groups_for(one))
        if made.digest in rows:
            known = rows[made.digest]
            rows[made.digest] = Crossing(**asdict(known) | {"twins": (*known.twins, name)})
        else:
            rows[made.digest] = _crossing(name, made, hosts, num_bytes)
    return HostsExplanation(
        collective,
        num_ranks,
        num_bytes,
        sizes,
        algorithm,
        by,
        by_table,
        len(policy.rules),
        str(policy.allowed(collective) or ""),
        flat,
        tuple(own),
        tuple(sorted(rows.values(), key=lambda row: (row.across, row.steps_across, row.messages, row.steps))),
    )


def _candidates(
    collective: str, num_ranks: int, first: Sequence[str], own: "dict[str, Algorithm]"
) -> "dict[str, Algorithm]":
    """Returns the algorithms that take the rank count: those that decide come first, so that rows have their names."""
    from hocket.algorithms import ALGORITHMS

    names = [*dict.fromkeys(first), *sorted(name for kind, name in ALGORITHMS if kind == collective)]
    given = {one.name: called for called, one in own.items()}
    found = {name: ALGORITHMS[collective, name] for name in dict.fromkeys(names)}
    return {given.get(name, name): one for name, one in found.items() if one.allows(num_ranks)}


def _crossing(name: str, schedule: "Schedule", hosts: Sequence[int], num_bytes: int) -> Crossing:
    import numpy as np

    host, num_hosts = np.array(hosts), max(hosts) + 1
    chunks, messages = np.zeros((2, num_hosts), np.int64), np.zeros((2, num_hosts), np.int64)
    steps_across = 0
    for step in schedule.steps():
        out = host[step.src] != host[step.dst]
        steps_across += bool(out.any())
        pairs = np.unique(np.stack([step.src[out], step.dst[out]]), axis=1)
        for way, ends in enumerate((step.src[out], step.dst[out])):
            chunks[way] += np.bincount(host[ends], step.count[out], num_hosts).astype(np.int64)
            messages[way] += np.bincount(host[pairs[way]], minlength=num_hosts)
    sent, across = float(schedule.most_sent()), int(chunks.max()) / schedule.vector_chunks
    return Crossing(
        name,
        (),
        schedule.num_steps,
        steps_across,
        round(sent * num_bytes),
        round(across * num_bytes),
        int(messages.max()),
    )
