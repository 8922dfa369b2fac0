"""`hocket show NAME`: the steps of an algorithm, readable in a terminal; `hocket show VIEW`: other pictures.

A view is a module hocket.cli.show.show_VIEW with `add_arguments(parser)` for options of its own, and `run(arguments)`.
"""

import argparse
import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

from hocket.view import saving

if TYPE_CHECKING:
    from hocket.schedule import Schedule, Step

_VIEWS = {
    "choice": "which algorithm runs, by collective, rank count and size",
    "mesh": "who is in which group of a mesh, and on which node",
    "topology": "what a network is made of, and how its devices reach each other",
}
_ALGORITHMS = "algorithms"
_OPTIONS = {  # which of them have an option, where not all do
    "collective": (_ALGORITHMS, "choice"),
    "ranks": (_ALGORITHMS, "choice"),
    "root": (_ALGORITHMS,),
    "groups": (_ALGORITHMS,),
    "dims": (_ALGORITHMS,),
    "svg": (_ALGORITHMS,),
    "msccl": (_ALGORITHMS,),
    "order": ("choice",),
    "tuner_file": ("choice",),
    "axes": ("mesh",),
    "nodes": ("mesh",),
    "topology": ("topology",),
}
_DEFAULT_RANKS = 4
_MAX_JSON_ROWS = 1 << 22


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket show`."""
    from hocket.cli.argument_types import add_layout, collective_name

    views = "; ".join(f"{name}: {summary}" for name, summary in _VIEWS.items())
    parser.add_argument(
        "algorithm",
        metavar="NAME",
        help=f"a built-in algorithm, as ring; or FILE.py, FILE.py:NAME, FILE.xml. Or a view: {views}",
    )
    parser.add_argument(
        "--collective", type=collective_name, help="which, where several have an algorithm of this name"
    )
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help=f"how many ranks (default {_DEFAULT_RANKS})")
    parser.add_argument("--root", type=int, metavar="R", help="the root, where there is one (default 0)")
    add_layout(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--svg", metavar="FILE", help="draw the steps instead of printing them; - for standard output")
    parser.add_argument("--msccl", metavar="FILE.xml", help="also write it as MSCCL XML")
    for name in _VIEWS:
        _view(name).add_arguments(parser.add_argument_group(f"hocket show {name}"))


def run(arguments: argparse.Namespace) -> int:
    """Prints the steps. Returns 1 if the schedule breaks a law, which is then said below the steps."""
    _check_options(arguments)
    if arguments.algorithm in _VIEWS:
        shown: int = _view(arguments.algorithm).run(arguments)
        return shown
    if arguments.json and arguments.svg == "-":
        raise ValueError("--json and --svg - exclude each other: both are for standard output")
    from hocket.algorithms import find, only
    from hocket.cli.argument_types import ranks_of_layout, root_of
    from hocket.cli.limits import laws_asked
    from hocket.errors import VerifyError
    from hocket.schedule import msccl

    found = find(arguments.algorithm, arguments.collective, prove=False)
    kinds = [one.collective for one in found]
    kind = "all_reduce" if "all_reduce" in kinds else kinds[0]
    one = only(arguments.algorithm, [one for one in found if one.collective == kind])
    root, num_ranks = root_of(one.collective, arguments.root), arguments.ranks
    if num_ranks is None:
        allowed = filter(one.allows, (_DEFAULT_RANKS, *range(2, 65)))  # a file may be for one count only
        num_ranks = ranks_of_layout(arguments) or next(allowed, _DEFAULT_RANKS)
    layout = one.layout(num_ranks, root, groups=arguments.groups, dims=arguments.dims)
    told = {"root": root, "groups": arguments.groups, "dims": arguments.dims}
    schedule = one.build(num_ranks, **told)
    if arguments.msccl is not None:
        saving.write(arguments.msccl, msccl.write(schedule, one.name))
    breach, labels = None, list[str]()
    laws = laws_asked(schedule)
    try:
        if laws:
            labels = sorted(one.verify(num_ranks, **told, laws=laws).labels)
    except VerifyError as error:
        breach = error
    facts: dict[str, Any] = {
        "name": one.name,
        "collective": one.collective,
        "num_ranks": schedule.num_ranks,
        "root": schedule.root,
        "groups": layout.groups,
        "dims": layout.dims,
        "num_chunks": schedule.num_chunks,
        "num_steps": schedule.num_steps,
        "sent": float(schedule.sent().max()) / schedule.num_chunks,
        "labels": labels,
        "source": one.source,
        "laws": laws,
        "breach": None if breach is None else str(breach),
    }
    others = sorted(other.collective for other in found if other is not one and other.name == one.name)
    in_file = sorted({f"{arguments.algorithm}:{other.name}" for other in found if other.name != one.name})
    if arguments.svg is not None:
        _write_svg(arguments.svg, schedule, facts, one.doc)
    if arguments.json:
        if schedule.num_rows > _MAX_JSON_ROWS:
            raise ValueError(f"--json: expected at most {_MAX_JSON_ROWS:,} rows, found {schedule.num_rows:,}")
        print(json.dumps(facts | {"steps": [_as_json(step) for step in schedule.steps()]}))
    elif arguments.svg is None:
        from hocket.view import print_schedule

        print_schedule(schedule, facts, one.doc, others, in_file)
    elif breach:
        print(f"hocket show: {breach}", file=sys.stderr)
    return 1 if breach else 0


def _check_options(arguments: argparse.Namespace) -> None:
    """ValueError for an option that would change nothing of what is shown."""
    shown = arguments.algorithm if arguments.algorithm in _VIEWS else _ALGORITHMS
    for option, places in _OPTIONS.items():
        if shown not in places and getattr(arguments, option) is not None:
            names = " and ".join(place if place == _ALGORITHMS else f"`hocket show {place}`" for place in places)
            raise ValueError(
                f"--{option.replace('_', '-')} belongs to {names}; found {arguments.algorithm!r}; leave it out"
            )


def _view(name: str) -> Any:
    return importlib.import_module(f"hocket.cli.show.show_{name}")


def _write_svg(file: str, schedule: "Schedule", facts: dict[str, Any], doc: str) -> None:
    from hocket.view.schedules import schedule_picture

    picture = schedule_picture.draw(schedule, facts, doc)
    if file == "-":
        print(picture, end="")
    else:
        saving.write(file, picture)


def _as_json(step: "Step") -> list[dict[str, Any]]:
    from hocket.schedule import COLUMNS

    columns = {name: getattr(step, name).tolist() for name in COLUMNS}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
