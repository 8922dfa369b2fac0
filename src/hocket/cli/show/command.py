"""`hocket show NAME`: prints the steps of an algorithm, or what a collective does; `hocket show VIEW`: another view.

A view is a module hocket.cli.show.show_VIEW with `add_arguments(parser)` for its own options, and `run(arguments)`.
"""

import argparse
import importlib
import json
from typing import Any

from hocket.view import saving

_VIEWS = {
    "choice": "which algorithm runs for each collective, rank count and size",
    "mesh": "the groups of a mesh, their ranks and nodes",
    "pipeline": "which rank of a pipeline runs which operation, and when",
    "topology": "the devices and links of a network, and how devices reach each other",
}
_ALGORITHMS = "algorithms"
_OPTIONS = {  # the views that accept an option, if not all do
    "collective": (_ALGORITHMS, "choice"),
    "ranks": (_ALGORITHMS, "choice", "pipeline"),
    "root": (_ALGORITHMS,),
    "groups": (_ALGORITHMS,),
    "dims": (_ALGORITHMS,),
    "svg": (_ALGORITHMS, "topology", "pipeline"),
    "msccl": (_ALGORITHMS,),
    "mscclpp": (_ALGORITHMS,),
    "hosts": ("choice",),
    "order": ("choice",),
    "tuner_file": ("choice",),
    "axes": ("mesh",),
    "nodes": ("mesh",),
    "topology": (_ALGORITHMS, "topology"),
    "subject": ("topology", "pipeline"),
    "microbatches": ("pipeline",),
    "chunks": ("pipeline",),
    "times": ("pipeline",),
}
_DEFAULT_RANKS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket show`."""
    from hocket.cli.argument_types import add_layout, collective_name

    views = "; ".join(f"{name}: {summary}" for name, summary in _VIEWS.items())
    parser.add_argument(
        "algorithm",
        metavar="NAME",
        help="a built-in algorithm, for example ring; or FILE.py, FILE.py:NAME, FILE.xml, FILE.json; or a collective, "
        f"for example broadcast: what each rank holds before and after; or a view: {views}",
    )
    parser.add_argument(
        "subject",
        nargs="?",
        metavar="KIND:ARGS",
        help="the network of `hocket show topology`, or the schedule of `hocket show pipeline`",
    )
    parser.add_argument(
        "--collective", type=collective_name, help="the collective, if several have an algorithm of this name"
    )
    parser.add_argument(
        "-n", "-p", "--ranks", type=int, metavar="N", help=f"number of ranks (default {_DEFAULT_RANKS})"
    )
    parser.add_argument("--root", type=int, metavar="R", help="the root of a rooted collective (default 0)")
    add_layout(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--svg", metavar="FILE", help="draw the picture to FILE instead; - is standard output")
    parser.add_argument("--msccl", metavar="FILE.xml", help="also write the schedule as MSCCL XML")
    parser.add_argument("--mscclpp", metavar="FILE.json", help="also write the schedule as a plan of MSCCL++")
    for name in _VIEWS:
        _view(name).add_arguments(parser.add_argument_group(f"hocket show {name}"))


def run(arguments: argparse.Namespace) -> int:
    """Prints the steps, or what a collective does. Returns 1 if the schedule breaks a law, which is printed, too."""
    _check_options(arguments)
    if arguments.json and arguments.svg == "-":
        raise ValueError("--json and --svg - exclude each other: both write to standard output")
    if arguments.algorithm in _VIEWS:
        returned: int = _view(arguments.algorithm).run(arguments)
        return returned
    from hocket.answers import ShownCollective, show
    from hocket.cli.writable import say_written
    from hocket.schedule import msccl, mscclpp

    names = ("collective", "ranks", "root", "groups", "dims", "topology")
    shown = show(arguments.algorithm, **{name: getattr(arguments, name) for name in names})
    breach = None if isinstance(shown, ShownCollective) else shown.breach
    for option, file in (("--msccl", arguments.msccl), ("--mscclpp", arguments.mscclpp)):
        if file is not None:
            if isinstance(shown, ShownCollective):
                raise ValueError(f"{option} belongs to algorithms; found {arguments.algorithm!r}; leave it out")
            if option == "--msccl":
                text = msccl.write(shown.schedule, shown.name)
            else:
                text = mscclpp.write(shown.schedule, f"{shown.schedule.collective}_{shown.name}")
            saving.write(file, text)
            say_written(file)
    if arguments.svg == "-":
        print(shown.svg(), end="")
    elif arguments.svg is not None:
        saving.write(arguments.svg, shown.svg())
        say_written(arguments.svg)
    if arguments.json:
        print(json.dumps(shown.as_json()))
    elif arguments.svg is None:
        from hocket.view import Terminal

        shown.print(Terminal())
    elif breach:
        from hocket.view import print_aside

        print_aside(f"hocket show: {breach}")
    return 1 if breach else 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Raises ValueError for an option that does not belong to the chosen view."""
    shown = arguments.algorithm if arguments.algorithm in _VIEWS else _ALGORITHMS
    for option, places in _OPTIONS.items():
        if shown not in places and getattr(arguments, option) is not None:
            *others, last = (place if place == _ALGORITHMS else f"`hocket show {place}`" for place in places)
            names = f"{', '.join(others)} and {last}" if others else last
            given = "KIND:ARGS" if option == "subject" else f"--{option.replace('_', '-')}"
            raise ValueError(f"{given} belongs to {names}; found {arguments.algorithm!r}; leave it out")


def _view(name: str) -> Any:
    return importlib.import_module(f"hocket.cli.show.show_{name}")
