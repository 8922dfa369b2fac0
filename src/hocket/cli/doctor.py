"""`hocket doctor`: looks at this host and says what is in the way, with what to do about it.

It never ends in a traceback: a check that itself fails is a finding. The checks are in `diagnosis`.
"""

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.cli.diagnosis import Finding

_COLORS = {"OK": "\033[32m", "WARN": "\033[33m", "FAIL": "\033[31m"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket doctor`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Checks and reports. Returns 1 if something must be repaired before Hocket can work."""
    from dataclasses import asdict

    from hocket.cli.diagnosis import diagnose

    findings = diagnose()
    failed = any(finding.status == "FAIL" for finding in findings)
    if arguments.json:
        print(json.dumps({"healthy": not failed, "findings": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            print(_line(finding, color=sys.stdout.isatty()))
    return 1 if failed else 0


def _line(finding: "Finding", *, color: bool) -> str:
    status = f"{finding.status:<4}"
    if color:
        status = f"{_COLORS[finding.status]}{status}\033[0m"
    return f"{status}  {finding.name}: {finding.found}" + (f"  -> {finding.fix}" if finding.fix else "")
