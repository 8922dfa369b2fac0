"""`hocket trace`: what to do with the files that hocket.trace and HOCKET_TRACE have written."""

import argparse
import json
from pathlib import Path
from typing import Any

_ACTIONS = {
    "summary": "what took how long, what was hidden behind computing, who came late",
    "plot": "draw the timeline as a picture (needs matplotlib)",
    "view": "write a page that shows the timeline in any browser, without a network",
    "merge": "make one file of several",
    "export": "write files that another tool reads",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket trace`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    made = {name: actions.add_parser(name, help=text, description=_sentence(text)) for name, text in _ACTIONS.items()}
    for name in ("summary", "plot", "view", "export"):
        made[name].add_argument("file", type=Path, metavar="FILE", help="a trace, as in hocket.trace(FILE)")
    made["merge"].add_argument("files", type=Path, nargs="+", metavar="FILE", help="traces of different ranks")
    made["merge"].add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="where to write")
    made["summary"].add_argument("--json", action="store_true", help="print one JSON object")
    for name, ending in (("plot", ".svg, .png or .pdf"), ("view", ".html")):
        text = f"where to write (default: beside the trace, with the ending {ending.split(',')[0]})"
        made[name].add_argument("-o", "--output", type=Path, metavar=f"FILE{ending.split(',')[0]}", help=text)
    made["export"].add_argument(
        "--hta", type=Path, required=True, metavar="FOLDER", help="a file for each rank, for Holistic Trace Analysis"
    )


def run(arguments: argparse.Namespace) -> int:
    """Does it, and says what was written."""
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
