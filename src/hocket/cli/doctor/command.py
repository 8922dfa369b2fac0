"""`hocket doctor`: checks this machine and suggests fixes; with an address, whether its ranks reach rank 0 there.

The command never ends in a traceback: a check that crashes is reported as a finding. The checks are in `diagnosis` and
`reachability`.
"""

import argparse
import json
import os
from typing import TYPE_CHECKING

from hocket.cli.argument_types import host_and_port

if TYPE_CHECKING:
    from hocket.cli.doctor.diagnosis import Finding

_COLORS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket doctor`."""
    address_help = "check instead whether ranks of this host reach rank 0 at HOST:PORT, or could listen there"
    parser.add_argument("--address", type=host_and_port, metavar="HOST:PORT", help=address_help)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Runs all checks and prints the findings. Returns 1 if something must be fixed before Hocket can work."""
    from dataclasses import asdict

    from hocket.cli.doctor.diagnosis import diagnose
    from hocket.cli.doctor.reachability import diagnose_address
    from hocket.runtime import variables
    from hocket.view import Terminal

    findings = diagnose_address(*arguments.address) if arguments.address else diagnose()
    failed = any(finding.status == "FAIL" for finding in findings)
    if arguments.json:
        known = [{**one._asdict(), "value": _shown(one.name)} for one in variables.VARIABLES]
        found = [asdict(finding) for finding in findings]
        print(json.dumps({"healthy": not failed, "findings": found, "variables": known}))
    else:
        console = Terminal()
        for finding in findings:
            console.print(_line(finding))
        for one in variables.VARIABLES:
            if one.name in os.environ:
                console.print(f"SET   {one.name}={_shown(one.name)}: {one.sentence}", markup=False)
    return 1 if failed else 0


def _shown(name: str) -> str | None:
    """Returns what to print of a variable: its value, but that of a key never."""
    from hocket.runtime import variables

    value = os.environ.get(name)
    return f"({len(value)} characters, not shown)" if name == variables.KEY and value is not None else value


def _line(finding: "Finding") -> str:
    from rich.markup import escape

    text = f"  {finding.name}: {finding.found}" + (f"  -> {finding.fix}" if finding.fix else "")
    return f"[{_COLORS[finding.status]}]{finding.status:<4}[/]{escape(text)}"
