"""The page of `hocket trace view`, as text and in a browser."""

import html
import json
import re
import shutil
import subprocess
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.cli import main
from hocket.runtime.traces import trace_file
from hocket.training.datasets import load
from hocket.training.demonstration import new_network
from hocket.training.loop import TrainingSettings, train
from hocket.training.strategies.data import DataParallelTraining
from hocket.view import Timeline
from tests.cli.traces import HOST, event

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def test_page_has_all_and_needs_no_network(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nasty = tmp_path / "nasty.json"
    events = [*trace_file.read(trace).events, event(0, HOST, 300, 301, "</script><script>alert(1)", "compute")]
    trace_file.write(nasty, "run", events)
    assert main(["trace", "view", str(nasty)]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(tmp_path / "nasty.html") and "in a browser" in printed.err
    page = (tmp_path / "nasty.html").read_text()
    assert "http" not in page.replace("http-equiv", "") and "src=" not in page and "</script><script>alert" not in page
    data = json.loads(page.split('type="application/json">')[1].split("</script>")[0])
    assert [lane["title"] for lane in data["lanes"]] == ["host", "collectives, ranks 0-1"] * 2
    assert Counter(len(lane["slices"]) for lane in data["lanes"]) == Counter([5, 2, 2, 2])
    assert len(data["arrows"]) == 1


def browse(page: Path, *options: str) -> str:
    assert BROWSER is not None
    profile = page.with_suffix(".profile")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", *options]
    command += ["--window-size=1200,800", "--virtual-time-budget=5000", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


def pixels(picture: bytes) -> Any:
    """Rows of (red, green, blue) of a PNG of 8 bits a channel, without interlacing."""
    width, height = int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])
    depth = {2: 3, 6: 4}[picture[25]]
    place, packed = 8, b""
    while place < len(picture):
        size = int.from_bytes(picture[place : place + 4])
        if picture[place + 4 : place + 8] == b"IDAT":
            packed += picture[place + 8 : place + 8 + size]
        place += 12 + size
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * depth)
    image = np.zeros((height + 1, (width + 1) * depth), np.int64)
    for number, row in enumerate(rows.tolist()):
        above, here = image[number], image[number + 1]
        if row[0] in (0, 2):
            here[depth:] = (np.array(row[1:]) + (above[depth:] if row[0] == 2 else 0)) % 256
            continue
        before, up = [0] * (len(row) - 1 + depth), above.tolist()
        for at, value in enumerate(row[1:], depth):
            left, over, corner = before[at - depth], up[at], up[at - depth]
            guess = left + over - corner
            nearest = min((left, over, corner), key=lambda one: abs(guess - one))
            before[at] = (value + {1: left, 3: (left + over) // 2, 4: nearest}[row[0]]) % 256
        here[:] = before
    return image[1:, depth:].reshape(height, width, depth)[:, :, :3]


@pytest.fixture
def page(trace: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The page of the trace, with a moment of rank 0 at 30."""
    said = {"ph": "i", "s": "t", "name": "record event", "cat": "event", "args": {"event": 7}}
    moment = {"pid": 0, "tid": HOST, "ts": 1e9 + 30} | said
    trace_file.write(trace, "run", [*trace_file.read(trace).events, moment])
    assert main(["trace", "view", str(trace)]) == 0
    return Path(capsys.readouterr().out.strip())


ACTS = """
canvas.setPointerCapture = () => {};
const box = canvas.getBoundingClientRect();
const at = (time, lane) => ({ clientX: across(time) + box.left, clientY: data.lanes[lane].top + ROW / 2 + box.top });
const point = (kind, time, lane, more) =>
  canvas.dispatchEvent(new PointerEvent(`pointer${kind}`, { pointerId: 1, ...at(time, lane), ...more }));
const drag = (one, other, more) => {
  point("down", one, 0, more); point("move", other, 1, more); point("up", other, 1, more);
};
const press = (key, more) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, ...more }));
const rows = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent));
const told = () => [...byId("about").querySelectorAll("table")].map(rows);
"""


def acted(page: Path, script: str) -> Any:
    """What the script, which acts as a user with the functions of ACTS, returns in a browser."""
    act = f"document.title = JSON.stringify((() => {{ {ACTS} {script} }})());"
    page.write_text(page.read_text().replace("</body>", f"<script>{act}</script></body>"))
    title = re.search("<title>(.*)</title>", browse(page, "--dump-dom"))
    assert title is not None
    return json.loads(html.unescape(title[1]))


in_a_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium (apt-get install chromium)")


@in_a_browser
def test_a_marked_range_shows_how_long_each_lane_is_busy_and_each_name_takes(page: Path) -> None:
    lanes, names = acted(page, "drag(90e-6, 10e-6); return told();")  # from right to left is a range, too
    assert lanes == [
        ["lane, of 80 us", "busy", "share"],
        ["rank 0, host", "80 us", "100 %"],
        ["rank 0, collectives, ranks 0-1", "70 us", "88 %"],
        ["rank 1, host", "80 us", "100 %"],
        ["rank 1, collectives, ranks 0-1", "40 us", "50 %"],
    ]
    assert names == [
        ["name", "category", "time", "times"],
        ["forward", "compute", "160 us", "2"],
        ["all_reduce", "communication", "110 us", "2"],
        ["all_reduce", "blocking", "40 us", "1"],
        ["inner", "compute", "30 us", "1"],
        ["launch all_reduce", "launch", "1 us", "1"],
    ]


@in_a_browser
def test_keys_and_mouse_move_the_page_as_they_do_in_perfetto(page: Path) -> None:
    views = acted(
        page,
        """
        const views = [], view = () => views.push([from * 1e6, to * 1e6]);
        point("move", 50e-6, 0);
        for (const key of ["w", "S", "d", "a"]) { press(key); view(); }
        press("s", { ctrlKey: true }); view();
        drag(100e-6, 50e-6, { shiftKey: true }); view();
        return [...views, marked];
        """,
    )
    assert views[:-1] == [pytest.approx(one) for one in ([10, 170], [0, 200], [25, 225], [0, 200], [0, 200], [50, 250])]
    assert views[-1] is None


@in_a_browser
def test_a_moment_is_drawn_and_told(page: Path) -> None:
    text, drawn, [table] = acted(
        page,
        """
        point("down", 30.5e-6, 0); point("up", 30.5e-6, 0); draw();
        return [byId("about").textContent, document.body.dataset.instants, told()];
        """,
    )
    assert table == [["is at", "30 us"], ["event", "7"]] and "record event (event), rank 0, host" in text
    assert drawn == "1"


def _train(file: str) -> None:
    dataset, settings = load(), TrainingSettings(num_epochs=2)
    with hocket.init() as communicator, hocket.trace(file):
        train(new_network(dataset, seed=0), dataset, settings, DataParallelTraining(communicator))


@in_a_browser
@pytest.mark.slow(reason="trains a network on two processes, and starts a browser twice")
def test_a_browser_shows_a_training(tmp_path: Path) -> None:
    file, page, picture = tmp_path / "training.json", tmp_path / "training.html", tmp_path / "training.png"
    hocket.run_ranks(_train, 2, args=(str(file),), kind="process")
    timeline = Timeline.read(file)
    assert main(["trace", "view", str(file), "-o", str(page)]) == 0
    shown = browse(page, "--dump-dom")
    assert f'data-lanes="{len(timeline.lanes)}"' in shown and 'data-drawn="0"' not in shown
    for lane in timeline.lanes:
        assert f">{lane.title}</div>" in shown and f">rank {lane.process}</div>" in shown
    assert "communicating" in shown
    browse(page, f"--screenshot={picture}")
    image = pixels(picture.read_bytes())
    for colour in ("e69f00", "f6d59b"):  # communication, and calls that wait for it; the rest may be too short to see
        assert (image == list(bytes.fromhex(colour))).all(axis=2).sum() > 500
