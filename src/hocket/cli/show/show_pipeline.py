"""`hocket show pipeline`: which rank of a pipeline runs which operation, and when; times, memory and messages."""

import argparse
import json


def add_arguments(pipeline: argparse._ArgumentGroup) -> None:
    """Declares what `hocket show pipeline` takes besides --ranks, --svg and --json."""
    from hocket.cli.argument_types import add_pipeline, operation_times

    pipeline.description = (
        "a pipeline schedule by name, FILE.csv of PyTorch, FILE.py or FILE.py:NAME, for example: "
        "hocket show pipeline zb-h1 -p 4 -m 8"
    )
    add_pipeline(pipeline)
    pipeline.add_argument(
        "--times",
        type=operation_times,
        metavar="F=,B=,W=,message=",
        help="how long a forward, an input backward, a weight backward and a message take, in one unit (default "
        "F=1,B=1,W=1,message=0)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the picture and the numbers, or one JSON object. Returns 1 if the table breaks a law."""
    from hocket.answers import pipeline
    from hocket.cli.writable import say_written
    from hocket.view import Terminal, print_aside, saving

    if arguments.subject is None:
        _print_schedules(as_json=arguments.json)
        return 0
    shown = pipeline(arguments.subject, arguments.ranks, arguments.microbatches, arguments.chunks, arguments.times)
    if arguments.svg is not None:
        picture = shown.svg()
        if not picture:
            raise ValueError("--svg: expected a table whose picture is readable; found too many ranks or operations")
        if arguments.svg == "-":
            print(picture, end="")
        else:
            saving.write(arguments.svg, picture)
            say_written(arguments.svg)
    if arguments.json:
        print(json.dumps(shown.as_json()))
    elif arguments.svg is None:
        shown.print(Terminal())
    elif shown.breach:
        print_aside(f"hocket show: {shown.breach}")
    return 0 if shown else 1


def _print_schedules(*, as_json: bool) -> None:
    from hocket.training import pipeline as pipelines
    from hocket.view import Terminal

    about = {name: (one.write.__doc__ or "").partition("\n")[0] for name, one in pipelines.SCHEDULES.items()}
    if as_json:
        print(json.dumps({"schedules": about}))
        return
    for name, line in about.items():
        Terminal().print(f"{name}\n    {line}", markup=False)
