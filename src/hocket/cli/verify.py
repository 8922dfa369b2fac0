"""`hocket verify`: proves algorithms for every requested rank count, every root and both alias modes, or a pipeline."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket verify`."""
    from hocket.cli.argument_types import add_layout, add_pipeline, collective_name, rank_counts
    from hocket.cli.network_arguments import OneNetwork

    parser.add_argument(
        "algorithm",
        nargs="?",
        metavar="NAME",
        help="a built-in algorithm, FILE.py, FILE.py:NAME, FILE.xml or FILE.json",
    )
    parser.add_argument("--all", action="store_true", help="all built-in algorithms (the default without NAME)")
    parser.add_argument("--collective", type=collective_name, help="only algorithms for this collective")
    parser.add_argument(
        "-p",
        "--ranks",
        type=rank_counts,
        metavar="1-16",
        help="rank counts (default 1-16, or that of --groups or --dims)",
    )
    add_layout(parser)
    parser.add_argument(
        "--topology", action=OneNetwork, metavar="KIND:ARGS", help="the network for which `synthesised` is made"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    pipeline = parser.add_argument_group("pipelines")
    pipeline.add_argument(
        "--pipeline",
        metavar="FILE",
        help="prove a pipeline instead: FILE.csv of PyTorch, FILE.py, FILE.py:NAME, or a built-in schedule such as "
        "1f1b, for one count of ranks (default 4)",
    )
    add_pipeline(pipeline)


def run(arguments: argparse.Namespace) -> int:
    """Proves and reports. Returns 0 if all proofs hold, 1 if one fails, 2 if an algorithm file cannot be run."""
    from hocket.answers import verify

    if arguments.pipeline is not None:
        return _prove_pipeline(arguments)
    for option in ("microbatches", "chunks"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"--{option} belongs to --pipeline; found none; leave it out")
    if arguments.algorithm and arguments.all:
        raise ValueError(f"--all and {arguments.algorithm!r} exclude each other")
    proof = verify(
        arguments.algorithm,
        arguments.ranks,
        collective=arguments.collective,
        groups=arguments.groups,
        dims=arguments.dims,
        topology=arguments.topology,
        progress=_with_progress,
    )
    if not proof.algorithms:
        from hocket.view import print_aside

        print_aside(f"hocket verify: {proof.failures[0].message}")
    if arguments.json:
        print(json.dumps(proof.as_json()))
    elif proof.algorithms:
        from hocket.view import Terminal

        proof.print(Terminal())
    return 0 if proof else 1 if proof.algorithms else 2


def _prove_pipeline(arguments: argparse.Namespace) -> int:
    """Proves one pipeline. Returns 0 if the laws hold, 1 if one is broken."""
    from hocket.answers import pipeline
    from hocket.view import Terminal

    for option in ("algorithm", "all", "collective", "groups", "dims", "topology"):
        value = getattr(arguments, option)
        if value:
            given = repr(value) if option == "algorithm" else f"--{option}"
            raise ValueError(f"--pipeline and {given} exclude each other; leave one out")
    counts = arguments.ranks
    if counts is not None and len(counts) != 1:
        raise ValueError(f"--pipeline: expected one rank count; found {len(counts)}, {counts[0]} to {counts[-1]}")
    shown = pipeline(arguments.pipeline, counts and counts[0], arguments.microbatches, arguments.chunks)
    if arguments.json:
        print(json.dumps(shown.as_json()))
    else:
        shown.print_proof(Terminal())
    return 0 if shown else 1


def _with_progress(results: Iterator[Any], count: int) -> Iterator[Any]:
    if not sys.stderr.isatty():
        yield from results
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("proving", total=count)
        for result in results:
            progress.advance(task)
            yield result
