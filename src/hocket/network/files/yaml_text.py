"""Reads YAML texts strictly: an entry by name, each name once. PyYAML comes with: pip install hocket[yaml]."""

import re
from typing import Any

from hocket.errors import TopologyError

EACH_NAME = (
    "write each name, as in gpu: [g0, g1], or a range as g0..g7, in links as each:; or begin with topology: KIND:ARGS, "
    "which names its nodes"
)
_RANGE = re.compile(r"\d\.\.+[\w-]*\d|[\[{]\d+(-|\.\.+)\d+[]}]")


def read_yaml(text: str, name: str) -> dict[str, Any]:
    """Returns the entries of a YAML text; `name` of the file appears in errors.

    Raises TopologyError for text that is no YAML with entries by name, and without PyYAML.
    """
    try:
        import yaml
    except ImportError as error:
        raise TopologyError(
            f"{name}: reading YAML needs PyYAML; install it with: pip install 'hocket[yaml]'"
        ) from error
    try:
        entries = yaml.load(text, _strict(yaml))
    except yaml.YAMLError as error:
        raise TopologyError(f"{name} is not YAML: {error}{ranges_in(text)}") from error
    except RecursionError:
        raise TopologyError(f"{name}: expected YAML of a few levels, found entries nested too deeply") from None
    if isinstance(entries, list) and all(isinstance(one, dict) and "topology" in one for one in entries):
        raise TopologyError(
            f"{name}: Slurm's topology.yaml is not read; give topology.conf, or a file with the output of "
            "`scontrol show topology`"
        )
    if not isinstance(entries, dict):
        raise TopologyError(f"{name}: expected YAML with entries by name, found {type(entries).__name__}")
    return entries


def _strict(yaml: Any) -> Any:
    """Returns PyYAML's safe loader, extended to report the line of a repeated name and of an invalid date or number."""

    class Strict(yaml.SafeLoader):  # type: ignore[misc]
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen = set()
            for key, _ in node.value:
                if str(key.value) in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} appears twice", problem_mark=key.start_mark)
                seen.add(str(key.value))
            return node

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep=deep)
            except ValueError as error:
                raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from None

    return Strict


def ranges_in(text: str) -> str:
    """Returns what to do about a range of nodes in a text, such as g0..7 or g[0-7]; "" if there is none."""
    found = _RANGE.search(text)
    return f"; ranges such as {found[0]!r} are not read: {EACH_NAME}" if found else ""
