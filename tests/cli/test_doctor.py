import json
import re
import resource
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.cli.doctor import diagnosis
from hocket.cli.doctor.diagnosis import Finding, diagnose
from hocket.runtime import variables


def finding(name: str) -> Finding:
    (found,) = [one for one in diagnose() if one.name == name]
    return found


def test_each_line_has_a_status_and_a_fix_where_one_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("SET")]
    assert len(lines) == len(diagnosis._CHECKS)
    for line in lines:
        assert re.fullmatch(r"OK    [^:]+: .+|(WARN|FAIL)  [^:]+: .+  -> .+", line), line
    assert code == any(line.startswith("FAIL") for line in lines)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] == (code == 0)
    assert {one["name"] for one in report["findings"]} == set(diagnosis._CHECKS)
    assert {one["status"] for one in report["findings"]} <= {"OK", "WARN", "FAIL"}


def test_variables_that_are_set_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_ALGO", "ring")
    monkeypatch.delenv("HOCKET_TRACE", raising=False)
    main(["doctor"])
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("SET")]
    assert [line for line in shown if line.startswith("SET   HOCKET_ALGO=ring: The algorithms that may run")]
    assert not any("HOCKET_TRACE" in line for line in shown)
    main(["doctor", "--json"])
    values = {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)["variables"]}
    assert set(values) == {one.name for one in variables.VARIABLES}
    assert values["HOCKET_ALGO"] == "ring" and values["HOCKET_TRACE"] is None


def test_the_key_of_a_job_is_never_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    key = "5e" * 32
    monkeypatch.setenv("HOCKET_KEY", key)
    for more in ([], ["--json"], ["--address", "127.0.0.1:1"], ["--address", "127.0.0.1:1", "--json"]):
        main(["doctor", *more])
        out = capsys.readouterr().out
        assert "HOCKET_KEY" in out and "64 characters, not shown" in out and key[:8] not in out, more


def test_what_this_very_test_needs_is_ok() -> None:
    findings = {one.name: one for one in diagnose()}
    for name in ("python", "dependencies", "sealed memory", "sockets", "processes"):
        assert findings[name].status == "OK", findings[name]


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> tuple[str, str, str]:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(diagnosis, "_CHECKS", {"one": fail, "two": lambda: ("OK", "fine", "")})
    first, second = diagnose()
    assert first.status == "WARN" and "ZeroDivisionError: oops" in first.found and first.fix
    assert second.status == "OK"


def test_a_missing_core_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> object:
        raise ImportError(f"no {name}")

    monkeypatch.setattr("importlib.import_module", refuse)
    assert finding("compiled core").status == "FAIL"
    assert finding("dependencies").status == "FAIL"


def test_contradicting_variables_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RANK", "5")
    monkeypatch.setenv("HOCKET_SIZE", "2")
    monkeypatch.setenv("HOCKET_ADDRESS", "x")
    assert finding("place").status == "FAIL"


def test_refused_system_calls_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr("os.memfd_create", refuse)
    monkeypatch.setattr("socket.socket", refuse)
    monkeypatch.setattr("os.pidfd_open", refuse)
    for name in ("sealed memory", "sockets", "processes"):
        assert finding(name).status == "FAIL", name
        assert "not permitted" in finding(name).found


def test_attaching_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding("attach").status in ("OK", "WARN")  # as the kernel here permits
    monkeypatch.setattr("hocket.cli.doctor.diagnosis._ATTACH", "import sys; sys.exit('Operation not permitted')")
    assert finding("attach").status == "WARN" and "not permitted" in finding("attach").found
    monkeypatch.setenv("HOCKET_CMA", "0")
    assert finding("attach") == Finding("attach", "OK", "switched off by HOCKET_CMA=0")
    monkeypatch.setenv("HOCKET_CMA", "off")
    assert finding("attach").status == "FAIL"


@pytest.mark.parametrize(
    ("limit", "expected", "fix"),
    [
        ("NOFILE", "open files 256,", "ulimit -n 1024"),
        ("AS", "hocket.empty() has at most ", "ulimit -v unlimited"),
        ("FSIZE", "file size 1073742000, .*; hocket.empty() has at most 1024 MiB on each rank", "ulimit -f unlimited"),
    ],
)
def test_tight_limits_are_a_warning(monkeypatch: pytest.MonkeyPatch, limit: str, expected: str, fix: str) -> None:
    tight = {"NOFILE": (256, 4096), "AS": (8 << 30, resource.RLIM_INFINITY), "FSIZE": (1073742000, 1073742000)}
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    given = {getattr(resource, f"RLIMIT_{limit}"): tight[limit]}
    monkeypatch.setattr("resource.getrlimit", lambda number: given.get(number, unlimited))
    found = finding("limits")
    assert (found.status, found.fix) == ("WARN", fix)
    assert re.search(expected.replace("()", r"\(\)"), found.found)


def test_few_cores_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert finding("cores").status == "WARN"


@pytest.mark.parametrize("folder", ["/proc/hocket", "/dev/null/hocket", "/sys/hocket"])
def test_a_cache_that_cannot_be_written_is_a_warning(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_CACHE", folder)
    found = finding("cache")
    assert found.status == "WARN" and f"{folder}/proofs is not writable" in found.found
    assert found.fix.startswith("set HOCKET_CACHE")


def test_looking_at_the_cache_leaves_nothing_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOCKET_CACHE", str(tmp_path / "cache"))
    assert finding("cache").status == "OK"
    assert list(tmp_path.iterdir()) == []
