"""The face of a package: names that are loaded when they are first used.

Many ranks start at once, so importing a layer must be cheap. A face lists its names twice: in imports under
TYPE_CHECKING, which type checkers read, and in the table of `lazy_names`, which the interpreter uses. A test compares
the two.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, listed: Mapping[str, Sequence[str]], instead: Callable[[str], str] = lambda _: ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns the functions `__getattr__` and `__dir__` of a package, and its `__all__`.

    listed: the names that each module below the package gives, by the module's dotted name without the package. A name
    "inner as outer" is called `outer` in the package. Under "" are modules of the package themselves. instead: the end
    of the error for another name.
    """
    modules: dict[str, tuple[str, str]] = {}
    for module, names in listed.items():
        for name in names:
            inner, _, outer = name.partition(" as ")
            modules[outer or inner] = (f"{package}.{module}" if module else package, inner)

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{instead(name)}")
        module, inner = modules[name]
        if module == package:
            return importlib.import_module(f"{package}.{inner}")
        value = getattr(importlib.import_module(module), inner)
        setattr(sys.modules[package], name, value)  # the next look-up does not come here
        return value

    def names_of_package() -> list[str]:
        hidden = {"TYPE_CHECKING", "lazy", "lazy_names", "_"}  # what a face needs for itself
        return sorted({*vars(sys.modules[package]), *modules} - hidden)

    return load, names_of_package, list(modules)
