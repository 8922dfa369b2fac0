"""Writes a fitted machine as a machine file, which states what differs from its base, with errors and limits beside."""

import json
from pathlib import Path

from hocket.network.calibration.machine_fit import NIC_BANDWIDTH, FittedConstant, MachineFit
from hocket.network.links import name_seconds
from hocket.network.machines.machine_file import MACHINES

_SHARES = ("bandwidth_share", "switch_share")
_FABRIC = "measured"  # the name of the fitted fabric


def fitted_text(fit: MachineFit, base: str, sources: list[str]) -> str:
    """Returns the YAML of a machine file. base: the machine of the fit, a name or a file. sources: names of logs."""
    found = base if base in MACHINES else str(Path(base).resolve())
    title = f"{fit.base.title}, calibrated from {', '.join(sources)}"
    lines = [
        f"base: {found if base in MACHINES else json.dumps(found)}",
        f"title: {json.dumps(title)}",
    ]
    for one in fit.constants:
        beside = (
            f" # standard error {named_constant(one.key, one.error)}; base: {named_constant(one.key, one.before)}"
            if one.error is not None
            else ""
        )
        if one.undetermined:
            lines.append(
                f"# {one.key}: {named_constant(one.key, one.value)} as in the base, because {one.undetermined}"
            )
        elif one.key == NIC_BANDWIDTH:
            lines.append(f"topology: {_with_nic(fit.base.topology, one)}{beside}")
        elif one.key == "fabric":
            lines += [f"fabric: {_FABRIC}", f"fabrics: {{{_FABRIC}: {_written(one)}}}{beside}"]
        else:
            lines.append(f"{one.key}: {_written(one)}{beside}")
    return "\n".join(lines) + "\n"


def named_constant(key: str, value: float | None) -> str:
    """Returns a constant's value for readers, such as "8.44 us", "0.926" or "23.5 GB/s"."""
    if value is None:
        return "-"
    if key in _SHARES:
        return f"{value:.3g}"
    return f"{value / 1e9:.3g} GB/s" if key == NIC_BANDWIDTH else name_seconds(value)


def _written(one: FittedConstant) -> str:
    return f"{one.value:.4g}" if one.key in _SHARES else f"{one.value * 1e6:.4g}us"


def _with_nic(topology: str, one: FittedConstant) -> str:
    kept = [part for part in topology.split(",") if not part.startswith(f"{NIC_BANDWIDTH}=")]
    return ",".join([*kept, f"{NIC_BANDWIDTH}={one.value / 1e9:.4g}GB/s"])
