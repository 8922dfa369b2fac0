"""Reads networks from files: Hocket's YAML, ASTRA-sim's network.yml, SimAI's topology text, Slurm's topology.conf.

The text itself shows which format it is. YAML needs PyYAML: pip install hocket[yaml].
"""

import re
from pathlib import Path

from hocket.errors import TopologyError, did_you_mean
from hocket.network.files.astra import from_astra
from hocket.network.files.simai import from_simai
from hocket.network.files.slurm import from_slurm
from hocket.network.files.topology_file import from_description
from hocket.network.files.yaml_text import read_yaml
from hocket.network.kinds.by_name import KINDS, parse
from hocket.network.kinds.composition import compose
from hocket.network.topology import Topology

_SIMAI = re.compile(r"\s*(\d+\s+){5}[A-Za-z]")
_SLURM = re.compile(r"^\s*(SwitchName|BlockName)\s*=", re.MULTILINE | re.IGNORECASE)


def load(source: str | Path, folder: Path = Path()) -> Topology:
    """Returns the network of a file, of the text of such a file, of "KIND:ARGS", or of two of these as "INNER@OUTER".

    folder: where files lie whose names are not absolute. Raises a TopologyError that names the wrong line or entry.
    """
    text = str(source)
    if "\n" not in text and (isinstance(source, Path) or _is_file(folder, text)):
        try:
            path = folder / text
            # Editors on Windows may begin the file with a byte-order mark.
            return _from_text(path.read_text(encoding="utf-8-sig"), path.name, path.parent)
        except (OSError, UnicodeDecodeError) as error:
            raise TopologyError(f"cannot read the topology file {text!r}: {error}") from error
    if "\n" not in text and "@" in text:
        inner, _, beyond = text.partition("@")
        if not inner or not beyond:
            raise TopologyError(f"expected INNER@OUTER, each KIND:ARGS or a file; found {text!r}")
        outer = load(beyond, folder)
        return compose(outer, [load(inner, folder)] * outer.num_ranks, name=text)
    if "\n" not in text and text.partition(":")[0] in KINDS:
        return parse(text)
    if "\n" not in text:
        near = did_you_mean(text.partition(":")[0], KINDS)
        raise TopologyError(f"{text!r} is neither a file nor KIND:ARGS with KIND one of {', '.join(KINDS)}{near}")
    return _from_text(text, "text", folder)


def _is_file(folder: Path, text: str) -> bool:
    """Whether there is something to read: a file, or a pipe such as /dev/stdin."""
    try:
        return (folder / text).exists() and not (folder / text).is_dir()
    except (OSError, ValueError):  # KIND:ARGS may be longer than any file name
        return False


def _from_text(text: str, name: str, folder: Path) -> Topology:
    """folder: in which files lie that the text names."""
    if _SIMAI.match(text):
        return from_simai(text, name)
    if _SLURM.search(text):
        return from_slurm(text, name)
    entries = read_yaml(text, name)
    if "npus_count" in entries:
        return from_astra(entries, name)
    return from_description(entries, name, lambda part: load(part, folder))
