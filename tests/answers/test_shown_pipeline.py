"""hocket.pipeline: what it takes, and what it says of a table that breaks a law."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.training.pipeline import backward, build_table, forward, full, table_of, write_torch_csv


def of_users(rank: int, p: int, m: int, v: int) -> list[Any]:
    return [forward(rank, m).take(), full(backward(rank, m).take())]


def test_names_functions_tables_and_files_are_the_same(tmp_path: Path) -> None:
    write_torch_csv(build_table("gpipe", 3, 5), tmp_path / "gpipe.csv")
    by_name = hocket.pipeline("gpipe", 3, 5)
    for other in (of_users, build_table("gpipe", 3, 5), tmp_path / "gpipe.csv"):
        shown = hocket.pipeline(other, 3, 5)
        assert shown.as_json() | {"name": ""} == by_name.as_json() | {"name": ""}
        assert shown and shown.holds
    assert by_name.timing is not None and by_name.timing.end.max() == by_name.makespan == 21


def test_a_broken_table_is_false_and_says_why() -> None:
    forwards, backwards = forward(0, 2).take(), full(backward(0, 2).take())
    whole = table_of("mine", 2, np.array([[0]]), [np.concatenate([backwards, forwards])])
    shown = hocket.pipeline(whole)
    assert not shown and shown.law == 2 and shown.breach and "deadlock of 1 operation" in shown.breach
    assert shown.timing is shown.makespan is shown.fewest_messages is None
    assert "The operations stand in the order of the table" in str(shown) and "<svg" in shown._repr_html_()


def test_a_notebook_shows_text_if_the_picture_is_too_large() -> None:
    shown = hocket.pipeline("gpipe", 65, 1)
    assert shown.svg() == "" and "The picture is not shown" in shown._repr_html_()


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (TypeError, "found int 3", {"schedule": 3}),
        (ValueError, "expected microbatches of 1 or more, found True", {"schedule": "1f1b", "microbatches": True}),
        (ValueError, "for B; found '2'", {"schedule": "1f1b", "times": {"B": "2"}}),
        (ValueError, "expected chunks=1, as in the table", {"schedule": build_table("1f1b", 2, 2), "chunks": 2}),
    ],
)
def test_bad_arguments_are_refused(error: type[Exception], words: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=words):
        hocket.pipeline(**arguments)
