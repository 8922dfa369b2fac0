"""Compiles touch.cpp, which every rank loads, and lab/floor.cpp."""

import subprocess
import sysconfig
from pathlib import Path

SOURCES = Path(__file__).parents[1]
LAB = SOURCES / "lab"
COMPILE = ("g++", "-std=c++20", "-O3", "-march=native", "-Wall", "-Wextra")


def compiled(source: Path, target: Path, *flags: str) -> Path:
    """Returns the target, compiled again if the source or a header is newer. Raises subprocess.CalledProcessError."""
    newest = max(path.stat().st_mtime for path in (source, *SOURCES.glob("comparison/*.h"), *LAB.glob("floor/*.h")))
    if not target.exists() or target.stat().st_mtime < newest:
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*COMPILE, *flags, source, "-o", target], check=True)
    return target


def touch_module(build: Path) -> Path:
    """Returns the folder with the module `touch`."""
    include = sysconfig.get_path("include")
    compiled(SOURCES / "comparison" / "touch.cpp", build / "touch.so", "-shared", "-fPIC", "-I", include)
    return build


def floor_program(build: Path) -> Path:
    return compiled(LAB / "floor.cpp", build / "floor", "-pthread")
