"""A directive that documents a module from its docstrings, which are Markdown: `public-names` with the module's name.

It shows what `__all__` lists, or, in a module that has none, the public names that the module defines itself.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy.typing
from docutils import nodes
from docutils.utils import new_document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx
from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import stringify_annotation

import hocket

_SHORT_TYPES = {
    stringify_annotation(written, "smart"): short
    for written, short in ((numpy.typing.DTypeLike, "DTypeLike"), (numpy.typing.NDArray[Any], "ndarray"))
}


class PublicNames(SphinxDirective):
    """The docstring of a module, a table of its public names, and then each of them in full."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Writes the page as Markdown, with autodoc's directives in it, and parses that."""
        module = importlib.import_module(self.arguments[0])
        names = list(public_names(module))
        lines = [inspect.getdoc(module) or "", "", f"```{{py:module}} {module.__name__}\n```", ""]
        if names:
            lines += ["| name | what it is |", "|---|---|", *(_row(module, name) for name in names), ""]
        lines += ["```{eval-rst}", *(line for name in names for line in _directive(module, name)), "```"]
        return self.parse_text_to_nodes("\n".join(lines))


class Markdown(SphinxDirective):
    """Markdown inside reStructuredText: how a docstring is put where autodoc expects the latter."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Parses the content with MyST."""
        document = new_document(self.get_source_info()[0], self.state.document.settings)
        MystParser().parse("\n".join(self.content), document)
        return document.children


def public_names(module: ModuleType) -> Iterator[str]:
    """Yields what a module offers, in the order in which a reader should meet it."""
    if names := getattr(module, "__all__", None):
        yield from names
        return
    for name, value in vars(module).items():
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__:
            yield name


def _row(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    lines = _text_of_data(name, value) if _kind(value) == "data" else (inspect.getdoc(value) or "").splitlines()
    paragraph = " ".join(lines[: lines.index("")] if "" in lines else lines)
    sentence = re.sub(r"(?<=\.) .*", "", paragraph).replace("|", r"\|") or f"`{type(value).__name__}`"
    return f"| {{py:obj}}`{name} <{_full_name(module, name)}>` | {sentence} |"


def _full_name(module: ModuleType, name: str) -> str:
    """Returns under which name it is documented: once only, as a name of hocket if it is one."""
    value = getattr(module, name)
    if inspect.ismodule(value):
        return value.__name__
    for public in hocket.__all__:
        if getattr(hocket, public) is value and (public == name or _kind(value) != "data"):
            return f"hocket.{public}"
    return f"{module.__name__}.{name}"


def _kind(value: Any) -> str:
    """Returns how autodoc calls it."""
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    if inspect.ismodule(value):
        return "module"
    return "function" if inspect.isroutine(value) else "data"


def _directive(module: ModuleType, name: str) -> Iterator[str]:
    value = getattr(module, name)
    kind = _kind(value)
    full_name = f"{module.__name__}.{name}"
    if kind == "module" or full_name != _full_name(module, name):  # it stands on another page
        return
    yield f".. auto{kind}:: {full_name}"
    if inspect.isclass(value):
        foreign = [base.__name__ for base in value.__mro__ if not base.__module__.startswith("hocket")]
        yield "   :members:"
        yield f"   :inherited-members: {', '.join(foreign)}"  # all but those of these bases
    elif kind == "data" and not isinstance(value, int | float | str):
        yield "   :no-value:"
    yield ""


def _text_of_data(name: str, value: Any) -> list[str]:
    """Returns the text below an assignment, from the module that makes it: a value does not know where that stands."""
    for module_name, module in sorted(sys.modules.items()):
        if module_name.startswith("hocket.") and vars(module).get(name) is value and hasattr(module, "__file__"):
            try:
                texts = ModuleAnalyzer.for_module(module_name).find_attr_docs()
            except PycodeError:  # a compiled module has no source
                continue
            if text := texts.get(("", name)):
                return text
    return []


def wrap_docstring(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Has a docstring parsed as Markdown."""
    if what == "data":
        lines[:] = _text_of_data(name.rpartition(".")[2], value)
    if any(lines):
        lines[:] = [".. markdown::", "", *("   " + line for line in lines), ""]


def shorten_types(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Writes NumPy's types by their names, which Python itself does not remember."""
    for long, short in _SHORT_TYPES.items():
        signature, returned = (text and text.replace(long, short) for text in (signature, returned))
    return signature, returned


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("public-names", PublicNames)
    app.add_directive("markdown", Markdown)
    app.connect("autodoc-process-docstring", wrap_docstring)
    app.connect("autodoc-process-signature", shorten_types)
    return {"parallel_read_safe": True}
