"""`hocket show choice`: prints which algorithm runs when the caller names none.

Without --ranks it prints the built-in table. With --ranks it prints what runs on this machine, which depends on
HOCKET_ALGO and the tuner file too.
"""

import argparse
import json
import math
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.runtime import Policy

_ORDERS = (
    "fast",
    "rank",
    "invariant",
)  # those of select, repeated here because --help does not load that module
_TABLE_NOTE = (
    "The first line from the top that fits decides. Sizes are bytes of the whole vector. Under cores, "
    '"shared" is for jobs whose ranks share cores, "one each" for all others; for ranks on 2 or more hosts the lines '
    '"on hosts" go first. HOCKET_ALGO, a tuner file, configure() and algorithm= decide before the table; --ranks N '
    "shows what runs in this environment, --hosts N on so many hosts."
)
_RANKS_NOTE = "{} Sizes are bytes of the whole vector. configure() and algorithm= decide first."
_CORES = {None: "", True: "shared", False: "one each"}
_ON_HOSTS = "on hosts"


def add_arguments(parser: "argparse._ArgumentGroup") -> None:
    """Declares the options of this view, in addition to those of `hocket show`."""
    from hocket.cli.argument_types import add_hosts

    parser.add_argument(
        "--order",
        choices=_ORDERS,
        help="only this order of reduction (default: fast, and where the others differ from it)",
    )
    add_hosts(parser, "with --ranks")
    parser.add_argument(
        "--tuner-file", metavar="FILE", help="with --ranks: write these choices as a tuner file, for you to change"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the table. Returns 1 if the environment leaves a collective without an algorithm, else 0."""
    from hocket.answers import check_ranks, read_hosts
    from hocket.runtime import Policy
    from hocket.runtime.ranks import cores
    from hocket.schedule import find_collective

    if arguments.collective is not None:
        find_collective(arguments.collective)
    hosts: tuple[int, ...] = ()
    if arguments.hosts is not None:
        hosts = read_hosts(arguments.hosts, arguments.ranks)
        arguments.ranks = len(hosts)
    if arguments.ranks is not None:
        check_ranks(arguments.ranks)
    orders = _ORDERS if arguments.order is None else (arguments.order,)
    here = max(map(hosts.count, hosts), default=arguments.ranks)
    shares_cores = None if arguments.ranks is None else cores.shared_by(here)
    if shares_cores is None:
        lines = _table(orders)
    else:
        policy = Policy.from_environment(os.environ, shares_cores=shares_cores).on_hosts(hosts)
        lines = _chosen(orders, arguments.ranks, policy)
    lines = [line for line in lines if arguments.collective in (None, line["collective"])]
    if arguments.tuner_file is not None:
        _write(arguments.tuner_file, lines, arguments.ranks, len(set(hosts)) or 1, orders[0])
    if arguments.json:
        sizes = [hosts.count(host) for host in sorted(set(hosts))]
        found = {"num_ranks": arguments.ranks, "hosts": sizes, "shares_cores": shares_cores, "choices": lines}
        print(json.dumps(found))
    else:
        _print(lines, shares_cores, len(set(hosts)))
    return 1 if any(line.get("refused") for line in lines) else 0


def _write(file: str, lines: list[dict[str, Any]], num_ranks: int | None, num_hosts: int, order: str) -> None:
    """Writes the lines of one order as a tuner file, which cannot express orders."""
    from hocket.cli.writable import say_written
    from hocket.runtime import Rule
    from hocket.runtime.choice import tuner_file
    from hocket.view import saving

    if num_ranks is None:
        raise ValueError("--tuner-file: expected --ranks, because a tuner file is for one rank count; found none")
    rules = [
        Rule(
            line["collective"],
            line["min_bytes"],
            -1 if line["max_bytes"] is None else line["max_bytes"],
            line["algorithm"],
            num_nodes=num_hosts,
            num_ranks=num_ranks,
        )
        for line in lines
        if line["order"] == order and not line.get("refused")
    ]
    with saving.writing(file):
        tuner_file.write(file, rules)
    say_written(file)


def _table(orders: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns the lines of the table: all of the first order, and of each other order only its own entries.

    A collective has two sets of lines if ranks that share cores use other algorithms than ranks with a core each, and
    one more for ranks on several hosts, whose lines have max_hosts.
    """
    from hocket.runtime.choice import select

    lines: list[dict[str, Any]] = []
    for order in orders:
        tables = {shares_cores: select.defaults(order, shares_cores=shares_cores) for shares_cores in (True, False)}
        for collective in tables[False] if order == orders[0] else select.DEFAULTS[order]:
            alike = tables[True][collective] == tables[False][collective]
            lines += [
                {
                    "order": order,
                    "collective": collective,
                    "shares_cores": None if alike else shares_cores,
                    "max_ranks": None if math.isinf(ranks) else ranks,
                    "several_hosts": False,
                    "max_hosts": None,
                    "max_bytes": None if math.isinf(limit) else limit,
                    "algorithm": algorithm,
                }
                for shares_cores in ((False,) if alike else (True, False))
                for ranks, limit, algorithm in tables[shares_cores][collective]
            ]
            lines += [
                {
                    "order": order,
                    "collective": collective,
                    "shares_cores": None,
                    "max_ranks": None,
                    "several_hosts": True,
                    "max_hosts": None if math.isinf(hosts) else hosts,
                    "max_bytes": None if math.isinf(limit) else limit,
                    "algorithm": algorithm,
                }
                for hosts, limit, algorithm in select.host_rows(collective, order)
            ]
    return lines


def _chosen(orders: tuple[str, ...], num_ranks: int, policy: "Policy") -> list[dict[str, Any]]:
    """Returns what runs on num_ranks ranks, for every range of sizes, and what decided it."""
    from hocket.runtime.choice import select

    lines: list[dict[str, Any]] = []
    for order in orders:
        for collective in select.DEFAULTS["fast"] if order == orders[0] else select.DEFAULTS[order]:
            begins = _begins(collective, order, policy)
            ends: list[int | None] = [*(begin - 1 for begin in begins[1:]), None]
            for begin, end in zip(begins, ends, strict=True):
                line = {"order": order, "collective": collective, "min_bytes": begin, "max_bytes": end}
                line |= _choice(collective, num_ranks, begin, order, policy)
                before = lines[-1] if lines else line
                if line | {"min_bytes": 0, "max_bytes": 0} == before | {"min_bytes": 0, "max_bytes": 0} and begin:
                    before["max_bytes"] = end
                else:
                    lines.append(line)
    return lines


def _choice(collective: str, num_ranks: int, num_bytes: int, order: str, policy: "Policy") -> dict[str, Any]:
    from hocket.runtime.choice import select

    try:
        algorithm, by = select.choose_by(collective, num_ranks, num_bytes, order, policy)
    except ValueError as error:
        return {"algorithm": None, "by": None, "refused": str(error)}
    return {"algorithm": algorithm, "by": by, "refused": None}


def _begins(collective: str, order: str, policy: "Policy") -> list[int]:
    """Returns the sizes at which the choice may change, 0 first."""
    from hocket.runtime.choice import select
    from hocket.schedule import find_collective

    if not find_collective(collective).known_by_all:
        return [0]
    entries = select.defaults(order, shares_cores=policy.shares_cores)[collective]
    entries = (*(select.host_rows(collective, order) if policy.hosts else ()), *entries)
    begins = {0} | {int(limit) + 1 for _, limit, _ in entries if not math.isinf(limit)}
    for rule in policy.rules:
        if rule.collective == collective:
            begins |= {rule.min_bytes} | ({rule.max_bytes + 1} if rule.max_bytes != -1 else set())
    return sorted(begins)


def _print(lines: list[dict[str, Any]], shares_cores: bool | None, num_hosts: int) -> None:
    from rich.markup import escape
    from rich.table import Table

    from hocket.view import Terminal, name_bytes, name_range

    console = Terminal()
    ranked = shares_cores is not None
    columns = ("size", "algorithm", "chosen by") if ranked else ("cores", "ranks", "size", "algorithm")
    table = Table("order", "collective", *columns, box=None)
    seen, seen_cores = ("", ""), ""
    for line in lines:
        name, cores = (line["order"], line["collective"]), _CORES[line.get("shares_cores")]
        kind, most = "", line.get("max_ranks")
        if line.get("several_hosts"):
            cores, kind, most = _ON_HOSTS, " hosts", line["max_hosts"]
        algorithm = escape(line["algorithm"] or "")
        shown = (name[0] if name[0] != seen[0] else "", name[1] if name != seen else "")
        if ranked:
            size = name_range(line["min_bytes"], line["max_bytes"])
            table.add_row(*shown, size, algorithm or "[red]none[/]", line["by"])
        else:
            ranks = "any" if most is None else f"up to {most}{kind}"
            size = "any" if line["max_bytes"] is None else f"up to {name_bytes(line['max_bytes'])}"
            table.add_row(*shown, cores if (name, cores) != (seen, seen_cores) else "", ranks, size, algorithm)
        seen, seen_cores = name, cores
    console.print_table(table)
    for line in lines:
        if line.get("refused"):
            console.print(line["refused"], style="red", markup=False)
    console.print()
    place = f"The ranks are on {num_hosts} hosts." if num_hosts > 1 else "On this machine, ranks {}."
    here = _RANKS_NOTE.format(place.format("share cores" if shares_cores else "have a core each"))
    console.print(here if ranked else _TABLE_NOTE, style="dim")
