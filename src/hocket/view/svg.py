"""Builds SVG documents with the standard library alone."""

from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring


def document(width: float, height: float, **attributes: Any) -> Element:
    """Returns an empty picture of this size in pixels. Takes attributes as `add` does."""
    size = {"width": width, "height": height, "viewBox": f"0 0 {number(width)} {number(height)}"}
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg"})
    _set(root, size | attributes)
    return root


def add(parent: Element, tag: str, text: str | None = None, /, **attributes: Any) -> Element:
    """Adds an element to another and returns it.

    In attribute names an underscore stands for a hyphen, and `kind` for class; an attribute that is None is left out.
    """
    element = SubElement(parent, tag)
    element.text = text
    _set(element, attributes)
    return element


def number(value: float) -> str:
    """Returns a length, rounded to a tenth, without a trailing zero."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def pair(point: tuple[float, float]) -> str:
    """Returns a point in the syntax of paths and transformations."""
    return f"{number(point[0])} {number(point[1])}"


def written(root: Element) -> str:
    """Returns the document as text, one element per line, ending in a newline."""
    indent(root, " ")
    return tostring(root, encoding="unicode") + "\n"


def _set(element: Element, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if value is not None:
            name = "class" if name == "kind" else name.replace("_", "-")
            element.set(name, number(value) if isinstance(value, float) else str(value))
