"""The table has all environment variables, and the files that read them."""

import re
from pathlib import Path

from hocket.runtime import variables
from tests.runtime.variables_table import DOCUMENT, page

ROOT = Path(__file__).parents[2]
MACROS = {  # names of the C++ preprocessor: nothing reads them from the environment
    "HOCKET_KERNELS",
    "HOCKET_SANITIZE",
    "HOCKET_VECTOR_BYTES",
    "HOCKET_X86",
}


def sources() -> dict[Path, str]:
    found = [*(ROOT / "src").rglob("*.py"), *(ROOT / "csrc").rglob("*.h"), *(ROOT / "csrc").rglob("*.cpp")]
    return {path: path.read_text() for path in found}


def test_every_variable_is_in_the_table_and_no_other() -> None:
    table = (ROOT / "src" / "hocket" / "runtime" / "variables.py").read_text()
    listed = [one.name for one in variables.VARIABLES]
    named = {name for text in sources().values() for name in re.findall(r"HOCKET_[A-Z_]*[A-Z0-9]+", text)}
    assert named - MACROS == set(listed) == set(re.findall(r'= "(HOCKET_[A-Z_]+)"', table))
    assert len(listed) == len(set(listed)) and named >= MACROS


def test_names_stand_in_the_table_alone() -> None:
    quoted = re.compile("|".join(rf'["\']{one.name}["\']' for one in variables.VARIABLES))
    assert [path.name for path, text in sources().items() if quoted.search(text)] == ["variables.py"]


def test_each_reader_reads_its_variable() -> None:
    constants = {value: name for name, value in vars(variables).items() if isinstance(value, str)}
    for one in variables.VARIABLES:
        text = (ROOT / "src" / f"{one.reader.replace('.', '/')}.py").read_text()
        assert re.search(rf"from hocket.runtime.variables import .*\b{constants[one.name]}\b", text), one
        assert len(re.findall(rf"\b{constants[one.name]}\b", text)) > 1, one


def test_the_document_has_the_table_of_today() -> None:
    assert DOCUMENT.read_text() == page(), "run `python -m tests.runtime.variables_table`"


def test_each_variable_is_told_in_one_sentence() -> None:
    for one in variables.VARIABLES:
        assert one.sentence.endswith(".") and one.default and "|" not in one.sentence + one.default, one
