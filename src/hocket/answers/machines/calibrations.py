"""hocket.calibrate: a machine fitted to the times in logs of benchmarks, and how well it predicts them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.answers.answer import Answer

if TYPE_CHECKING:
    from hocket.network import FittedConstant, MachineFit, MeasuredTable
    from hocket.view import Terminal


@dataclass(frozen=True)
class FittedCall:
    """A measured call and its prediction by the fitted machine: bytes of the whole vector, seconds.

    log, where: the file and its line. error: the prediction divided by the measured time, minus 1. algorithm,
    protocol: what the prediction says that the library ran.
    """

    log: str
    where: str
    collective: str
    num_ranks: int
    num_bytes: int
    measured_seconds: float
    predicted_seconds: float
    error: float
    algorithm: str
    protocol: str


@dataclass(frozen=True, repr=False)
class Calibration(Answer):
    """A fitted machine. base: the machine that the fit started from. yaml: its machine file, as text.

    constants: those of the file, and those that the logs do not determine, with the reason. median_error: of all calls,
    without its sign; worst: the call with the largest error.
    """

    base: str
    constants: "tuple[FittedConstant, ...]"
    calls: tuple[FittedCall, ...]
    yaml: str
    fit: "MachineFit" = field(compare=False)

    @property
    def median_error(self) -> float:
        """Half of the calls are predicted with a smaller relative error."""
        import numpy as np

        return float(np.median([abs(one.error) for one in self.calls]))

    @property
    def worst(self) -> FittedCall:
        """The call with the largest relative error."""
        return max(self.calls, key=lambda one: abs(one.error))

    def write(self, file: str | Path) -> None:
        """Writes the machine file. Raises ValueError if it cannot be written, or is a file that it is based on."""
        from hocket.view import saving

        check_no_base(self.base, file)
        saving.write(file, self.yaml)

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket calibrate --json` does."""
        return {
            "base": self.base,
            "constants": [asdict(one) for one in self.constants],
            "median_error": self.median_error,
            "calls": [asdict(one) for one in self.calls],
            "yaml": self.yaml,
        }

    def _print(self, console: "Terminal") -> None:
        """Prints the constants, and each call with its prediction."""
        from hocket.view import print_calibration

        print_calibration(console, self.as_json())

    def svg(self) -> str:
        """Returns measured and predicted times over sizes as SVG."""
        from hocket.view import draw_measured

        return draw_measured([asdict(one) for one in self.calls])


def check_no_base(machine: str, file: str | Path) -> None:
    """Raises ValueError if a file is that of the machine, or of one of its bases."""
    from hocket.network import machine_files

    if Path(file).resolve() in machine_files(machine):
        raise ValueError(f"expected another file than {file}, on which the fitted machine {machine} is based")


def calibrate(
    logs: str | Path | Sequence[str | Path], *, machine: str, ranks: int | None = None, hosts: int | None = None
) -> Calibration:
    """Fits a machine to the times of one log or several: of nccl-tests, OSU, or `hocket bench`.

    machine: from which the fit starts, a name such as "h100" or a file; it says the network and the library. ranks,
    hosts: for logs that do not say them. Fitted are bandwidth_share, nic-bandwidth, launch, fabric, hop_latency and
    switch_share, as far as the logs determine them. Raises ValueError with the line of a log that is damaged, and for
    fewer than three calls; TopologyError for an unknown machine.
    """
    from hocket.network import fit_machine, fitted_text, load_machine

    base, tables = load_machine(machine), tables_of(logs, machine, ranks, hosts)
    fit = fit_machine(base, tables)
    calls = tuple(
        FittedCall(
            table.source,
            call.where,
            table.collective,
            table.num_ranks,
            call.num_bytes,
            call.seconds,
            predicted.seconds,
            predicted.seconds / call.seconds - 1,
            predicted.algorithm,
            predicted.protocol,
        )
        for table, times in zip(tables, fit.predicted, strict=True)
        for call, predicted in zip(table.calls, times, strict=True)
    )
    sources = list(dict.fromkeys(table.source for table in tables))
    return Calibration(machine, fit.constants, calls, fitted_text(fit, machine, sources), fit)


def tables_of(
    logs: str | Path | Sequence[str | Path], machine: str, ranks: int | None, hosts: int | None
) -> "list[MeasuredTable]":
    """Returns the tables of all logs, with their ranks placed on hosts of the machine. Raises as `calibrate`."""
    from hocket.network import load_machine, placed_on, read_log

    host_size = placed_on(load_machine(machine), 1).num_ranks
    files = [logs] if isinstance(logs, str | Path) else logs
    if not files:
        raise ValueError("expected a log or several; found none")
    return [table.placed(ranks, hosts, host_size) for file in files for table in read_log(file)]
