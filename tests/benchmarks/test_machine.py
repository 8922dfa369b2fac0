"""What benchmarks/compare.py says about the machine, the command and the versions."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import compare
from comparison import machine, report
from comparison.measuring import QUICK
from comparison.results import Row, Run

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
flags\t\t: fpu avx avx2 bmi2 avx512f avx512bw avx512_bf16 fsrm

processor\t: 1
model name\t: another
"""


@pytest.mark.parametrize(
    ("cpuinfo", "words"),
    [
        (CPUINFO, "AMD EPYC (family 25 model 17 stepping 1; avx2 avx512f avx512bw avx512_bf16)"),
        (
            "CPU implementer : 0x41\nCPU part : 0xd40\nFeatures : fp asimd sve bf16\n",
            "0x41 (part 0xd40; sve asimd bf16)",
        ),
        ("", "unknown processor"),
    ],
)
def test_a_processor_is_more_than_its_name(cpuinfo: str, words: str) -> None:
    assert machine.processor(cpuinfo) == words


def test_caches(tmp_path: Path) -> None:
    said = [("1", "Data", "32K", "0"), ("1", "Instruction", "32K", "0"), ("3", "Unified", "32768K", "0-1")]
    for number, values in enumerate(said):
        (folder := tmp_path / f"index{number}").mkdir()
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            (folder / name).write_text(value + "\n")
    assert machine.caches(tmp_path) == "L1 32K, L3 32768K of cores 0-1"
    assert machine.caches(tmp_path / "missing") == ""


def test_versions_are_those_installed(tmp_path: Path) -> None:
    for name, version in (("mpi4py", "4.1.2"), ("impi_rt", "2021.18")):
        (folder := tmp_path / f"{name}-{version}.dist-info").mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    assert machine.versions(["impi-rt", "numpy", "mpi4py==4"], [str(tmp_path)]) == "impi-rt 2021.18, mpi4py 4.1.2"
    assert machine.versions([], [str(tmp_path)]) == ""


def test_a_result_names_machine_command_and_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measure(arguments: object, effort: object, run: Run) -> None:
        assert effort == QUICK
        run.settings = {2: {"hocket": "default", "impi": "default"}}

    monkeypatch.setattr(compare, "compare", measure)
    monkeypatch.setattr(machine, "of_peer", lambda peer: f"versions of {peer}")
    monkeypatch.setattr(sys, "argv", ["compare.py", "--quick", "--settings", "shared memory"])
    run = compare.measured(compare.parsed())
    assert "`python benchmarks/compare.py --quick --settings 'shared memory'`" in run.machine
    assert f"numpy {np.__version__}" in run.machine
    assert run.machine.endswith("; versions of impi")
    assert report.text(run, []).splitlines()[0] == f"# {run.machine}"
    report.write_json(tmp_path / "result", run, [])
    assert report.read_json(str(tmp_path / "result")).machine == run.machine


@pytest.mark.parametrize("ending", [SystemExit(130), RuntimeError("a defect")])
def test_a_run_that_ends_early_keeps_what_it_has(
    ending: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(arguments: object, effort: object, run: Run) -> None:
        times = {name: {"touched": [1.0]} for name in ("hocket", "registered", "no cma", "impi")}
        run.rows = [Row("all_reduce", 8, "float32", 2, times), Row("all_reduce", 64, "float32", 2)]
        raise ending

    monkeypatch.setattr(compare, "compare", measure)
    monkeypatch.setattr(sys, "argv", ["compare.py", "--json", str(tmp_path / "result")])
    with pytest.raises(type(ending)):
        compare.main()
    found = report.read_json(str(tmp_path / "result"))
    assert ", ended early, 5 rounds, 0 s, " in found.machine
    assert found.rows[0].times("hocket") == [1.0]
    assert not any(outcome.reached for outcome in compare.judged(found) if outcome.goal.cells)
