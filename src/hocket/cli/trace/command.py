"""`hocket trace`: summarises, draws or converts the files that hocket.trace and HOCKET_TRACE write.

Summary and pictures also take other files in Chrome's Trace Event Format: of hocket simulate, of PyTorch's profiler.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

_ACTIONS = {
    "summary": "print the times, the share of communication hidden behind computation, and the late ranks",
    "plot": "draw the timeline as a picture (needs matplotlib)",
    "view": "write a page that shows the timeline in any browser, offline",
    "merge": "merge several files into one",
    "export": "write files for another tool",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket trace`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    made = {name: actions.add_parser(name, help=text, description=_sentence(text)) for name, text in _ACTIONS.items()}
    for name in ("summary", "plot", "view", "export"):
        others = ", hocket simulate --trace or PyTorch's profiler" if name != "export" else ""
        text = f"a trace, written by hocket.trace(FILE), HOCKET_TRACE{others}"
        made[name].add_argument("file", type=Path, metavar="FILE", help=text)
    made["merge"].add_argument("files", type=Path, nargs="+", metavar="FILE", help="traces of different ranks")
    made["merge"].add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the file to write")
    made["summary"].add_argument("--json", action="store_true", help="print one JSON object")
    for name, ending in (("plot", ".svg, .png or .pdf"), ("view", ".html")):
        text = f"the file to write (default: next to the trace, with the ending {ending.split(',')[0]})"
        made[name].add_argument("-o", "--output", type=Path, metavar=f"FILE{ending.split(',')[0]}", help=text)
    made["export"].add_argument(
        "--hta", type=Path, required=True, metavar="FOLDER", help="write a file per rank for Holistic Trace Analysis"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the action and prints the name of the written file, alone on standard output."""
    written: Path | None = None
    match arguments.action:
        case "summary":
            _summarise(arguments.file, arguments.json)
        case "merge":
            from hocket.runtime.traces import trace_file
            from hocket.view import saving

            written = arguments.output
            events = trace_file.merge(arguments.files).events
            with saving.writing(written):
                trace_file.write(written, "merged", events)
        case "plot":
            from hocket.view.traces import trace_plot

            written = trace_plot.plot(_timeline(arguments.file), arguments.output or _beside(arguments.file, ".svg"))
        case "view":
            from hocket.view import write_page

            written = write_page(_timeline(arguments.file), arguments.output or _beside(arguments.file, ".html"))
        case "export":
            from hocket.cli.trace.hta import export

            written = export(_timeline(arguments.file), arguments.hta)
    if written is not None:
        print(written)
    if arguments.action == "view":
        print("Open this page in a browser.", file=sys.stderr)
    return 0


def _summarise(file: Path, as_json: bool) -> None:
    from hocket.view import summarise

    summary = summarise(_timeline(file))
    if as_json:
        print(json.dumps(summary))
        return
    from hocket.view import print_summary

    print_summary(summary)


def _timeline(file: Path) -> Any:
    from hocket.view import Timeline

    return Timeline.read(file)


def _beside(file: Path, ending: str) -> Path:
    name = file.name.removesuffix(".gz").removesuffix(".json")
    return file.with_name(name + ending)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
