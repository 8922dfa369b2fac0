"""Elements of an SVG, written with the standard library alone."""

from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring


def document(width: float, height: float, **attributes: Any) -> Element:
    """An empty picture of this size in pixels. Attributes are those of add."""
    size = {"width": width, "height": height, "viewBox": f"0 0 {number(width)} {number(height)}"}
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg"})
    _set(root, size | attributes)
    return root


def add(parent: Element, tag: str, text: str | None = None, /, **attributes: Any) -> Element:
    """A new element in another. Attributes have underscores for hyphens, `kind` for class; None leaves one out."""
    element = SubElement(parent, tag)
    element.text = text
    _set(element, attributes)
    return element


def number(value: float) -> str:
    """A length to a tenth, without zeros at its end."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def pair(point: tuple[float, float]) -> str:
    """A point as paths and transformations have it."""
    return f"{number(point[0])} {number(point[1])}"


def written(root: Element) -> str:
    """The document as text, one element a line, ending in a newline."""
    indent(root, " ")
    return tostring(root, encoding="unicode") + "\n"


def _set(element: Element, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if value is not None:
            name = "class" if name == "kind" else name.replace("_", "-")
            element.set(name, number(value) if isinstance(value, float) else str(value))
