"""The import law of ARCHITECTURE.md: a layer imports only what stands left of it, also inside functions."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

# errors <- schedule <- { algorithms, network } <- runtime <- { torch_backend, testing, ray } <- training <- view
#        <- answers <- hocket <- { cli, explorer }
# Layers of the same level do not know each other. "hocket" is the package's own __init__, the door that users open.
LEVELS = {
    "errors": 0,
    "lazy": 0,
    "overloads": 0,
    "schedule": 1,
    "algorithms": 2,
    "network": 2,
    "runtime": 3,
    "torch_backend": 4,
    "testing": 4,
    "ray": 4,
    "training": 5,
    "view": 6,
    "answers": 7,
    "hocket": 8,
    "cli": 9,
    "explorer": 9,
    "__main__": 10,
}
# Compiled modules and packages that only these layers may import. All layers may import everything else.
ONLY_IN = {
    "hocket._core": {"runtime"},
    "hocket._simulator": {"network"},
    "torch": {"torch_backend", "training"},
    "ml_dtypes": {"schedule"},
    "argparse": {"cli", "explorer", "__main__"},  # a view also runs in notebooks
    "rich": {"view", "cli", "explorer"},
    "matplotlib": {"view"},
    "joblib": {"cli"},
    "ray": {"runtime", "cli"},
    "distributed": {"cli"},
    "yaml": {"network"},
    "z3": {"network"},
}
THIRD_PARTY = {
    "numpy",
    "msgspec",
    "ml_dtypes",
    "rich",
    "torch",
    "matplotlib",
    "joblib",
    "ray",
    "distributed",
    "yaml",
    "z3",
}


def layer_of(module: str) -> str:
    """Return the layer of a module of Hocket: the name below the package, or "hocket" for the door."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "hocket"


def is_module(name: str) -> bool:
    """Return whether a dotted name of Hocket is a module, compiled or not, rather than a name inside a module."""
    path = SOURCE.joinpath(*name.split("."))
    return name in ONLY_IN or path.is_dir() or path.with_suffix(".py").is_file()


def imports_of(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, imported module) of every import, at any depth, import_module("...") and __import__("...") too."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                below = f"{source}.{alias.name}"
                if below == "hocket.__version__":
                    continue  # a constant of the door, which all may read
                yield node.lineno, below if source.startswith("hocket") and is_module(below) else source
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value
            if called in ("import_module", "__import__") and isinstance(name, str):
                yield node.lineno, ".".join(package) + name if name.startswith(".") else name


def breaches(text: str, module: str, *, is_package: bool = False) -> list[str]:
    """Return one line for each import in the source `text` of `module` that the law forbids."""
    found = []
    layer = layer_of(module)
    for line, name in imports_of(ast.parse(text), module, is_package=is_package):
        where = f"{module}, line {line}: "
        for guarded, layers in ONLY_IN.items():
            if (name == guarded or name.startswith(guarded + ".")) and layer not in layers:
                found.append(f"{where}{guarded} is only for {sorted(layers)}")
        root = name.split(".")[0]
        if root == "hocket":
            other = layer_of(name)
            if name in ONLY_IN or other == layer:
                continue
            if other not in LEVELS:
                found.append(f"{where}{other} has no place in the law: add it to LEVELS, and to ARCHITECTURE.md")
            elif LEVELS[other] >= LEVELS[layer]:
                found.append(f"{where}{layer} must not import {other}")
        elif root not in sys.stdlib_module_names and root not in THIRD_PARTY:
            found.append(f"{where}{root} is neither the standard library nor a declared dependency")
    return found


def modules() -> list[tuple[str, Path]]:
    """Return (dotted name, path) of every module under src."""
    found = []
    for path in sorted((SOURCE / "hocket").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


@pytest.mark.parametrize(("module", "path"), [pytest.param(*entry, id=entry[0]) for entry in modules()])
def test_module_keeps_the_law(module: str, path: Path) -> None:
    assert layer_of(module) in LEVELS, f"{module} is a new layer: say in LEVELS and in ARCHITECTURE.md where it stands"
    assert breaches(path.read_text(), module, is_package=path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("hocket.schedule.ir", "import hocket.runtime.plans"),  # upwards
        ("hocket.schedule.ir", "from hocket import runtime"),  # upwards, by the package
        ("hocket.schedule.ir", "from hocket import init"),  # through the door
        ("hocket.schedule.ir", "import hocket"),
        ("hocket.training.strategies.data", "import hocket"),
        ("hocket.schedule.ir", "from ..algorithms import registry"),  # relative
        ("hocket.schedule.ir", "from .. import algorithms"),
        ("hocket.algorithms.programs.ring", "from hocket.network import cost"),  # the same level
        ("hocket.runtime.choice.select", "def late():\n    from hocket.training import data"),  # inside a function
        ("hocket.runtime.choice.select", "import importlib\nimportlib.import_module('hocket.cli.demo')"),
        ("hocket.runtime.choice.select", "__import__('hocket.cli')"),
        ("hocket.cli.demo", "from hocket._core import Context"),  # the compiled core
        ("hocket.schedule.ir", "import hocket._core"),
        ("hocket.cli.demo", "from .. import _core"),
        ("hocket.runtime.memory", "from hocket import _simulator"),
        ("hocket.runtime.memory", "import torch.cuda"),
        ("hocket.runtime.launch.launcher", "from rich.console import Console"),
        ("hocket.errors", "from hocket.schedule import ir"),
        ("hocket.schedule.ir", "import scipy"),  # undeclared
        ("hocket.schedule.ir", "import hocket.utils"),  # no such layer
    ],
)
def test_breach_is_seen(module: str, text: str) -> None:
    assert len(breaches(text, module)) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            "hocket.schedule.proof.verify",
            "from hocket.schedule import races\nfrom . import lower\nfrom ..errors import VerifyError",
        ),
        ("hocket.runtime.plans", "from hocket import __version__"),
        (
            "hocket.runtime.communicator.communicator",
            "from hocket import _core\nfrom hocket.algorithms.registry import ALGORITHMS",
        ),
        ("hocket.cli.demo", "import hocket"),
        ("hocket.cli.demo", "import json, numpy, rich.console\nfrom hocket.training import data"),
    ],
)
def test_lawful_import_passes(module: str, text: str) -> None:
    assert breaches(text, module) == []


def run_alone(program: str) -> str:
    """Run a program in a fresh interpreter and return what it printed."""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_hocket_loads_nothing_heavy() -> None:
    # N ranks start at once, and each pays for what `import hocket` loads.
    loaded = set(run_alone("import sys, hocket; print(*sys.modules)").split())
    heavy = {"hocket._core", "torch", "numpy", "msgspec", "rich", "multiprocessing", "asyncio", "hocket.cli"}
    assert loaded & heavy == set()


LAYERS = ("schedule", "network", "runtime", "training", "view", "answers")
LAZY_FACES = ("hocket", *(f"hocket.{layer}" for layer in LAYERS))


def face_of(package: str) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]:
    """Return (module, name there) by name, for a package's face: as type checkers read it, and as it is loaded."""
    tree = ast.parse((SOURCE.joinpath(*package.split(".")) / "__init__.py").read_text())
    read, loaded = {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for imported in node.body:
                assert isinstance(imported, ast.ImportFrom) and imported.module
                read |= {alias.asname or alias.name: (imported.module, alias.name) for alias in imported.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy_names":
            for module, names in ast.literal_eval(node.args[1]).items():
                for name in names if module else ():
                    inner, _, outer = name.partition(" as ")
                    loaded[outer or inner] = (f"{package}.{module}", inner)
    return read, loaded


@pytest.mark.parametrize("package", LAZY_FACES)
def test_a_face_loads_what_type_checkers_read(package: str) -> None:
    read, loaded = face_of(package)
    if package == "hocket":  # a module that is called: see test_the_algorithms_of_a_collective_are_one_call_away
        assert read.pop("algorithms") == ("hocket.algorithms", "list_algorithms")
    assert read == loaded and len(loaded) > 3
    # Importing a file sets the file's name in the package, and so hides a name of the face.
    assert [name for name in loaded if is_module(f"{package}.{name}")] == []
    face = importlib.import_module(package)
    for name in loaded:
        assert getattr(face, name) is not None and name in dir(face) and name in face.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(face, "nothing")  # noqa: B009 - a look-up alone


def names_taken_past_a_face(text: str, module: str, *, is_package: bool) -> list[str]:
    """Return one line for each name that this source imports from a file of another layer.

    It may import names from another layer's face, and whole modules from its rooms; other files belong to the layer.
    """
    layer, found = layer_of(module), []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hocket."):
            other = layer_of(node.module)
            deep = node.module.count(".") > 1
            if deep and other != layer and not all(is_module(f"{node.module}.{alias.name}") for alias in node.names):
                found.append(f"{module}, line {node.lineno}: from {node.module} import ...; expected hocket.{other}")
    return found


@pytest.mark.parametrize(("module", "path"), [pytest.param(*entry, id=entry[0]) for entry in modules()])
def test_other_layers_are_entered_by_their_faces(module: str, path: Path) -> None:
    assert names_taken_past_a_face(path.read_text(), module, is_package=path.name == "__init__.py") == []


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(one: str) -> None:
        number[one] = low[one] = len(number)
        stack.append(one)
        for other in sorted(arrows.get(one, ())):
            if other not in number:
                visit(other)
                low[one] = min(low[one], low[other])
            elif other in stack:
                low[one] = min(low[one], number[other])
        if low[one] == number[one]:
            at = stack.index(one)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                found.append(sorted(component))

    for one in sorted(arrows):
        if one not in number:
            visit(one)
    return found


def test_no_circle_inside_a_layer() -> None:
    # Files only: a face passes names on, so an import through it is an arrow to a file, not to the face.
    faces = {name for name, path in modules() if path.name == "__init__.py"}
    arrows: dict[str, set[str]] = {}
    for name, path in modules():
        if name not in faces:
            tree = ast.parse(path.read_text())
            named = {target for _, target in imports_of(tree, name, is_package=False)}
            arrows[name] = {one for one in named - faces if one != name and layer_of(one) == layer_of(name)}
    assert sum(map(len, arrows.values())) > 300
    assert circles(arrows) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [["b", "c"]]


def test_what_is_not_compiled_works_before_compiling() -> None:
    names = [name for name, _ in modules() if layer_of(name) in ("errors", "schedule", "algorithms", "network")]
    run_alone(
        "import sys, importlib\n"
        "sys.modules.update({'hocket._core': None, 'hocket._simulator': None, 'torch': None, 'rich': None})\n"
        f"for name in {names}: importlib.import_module(name)"
    )
