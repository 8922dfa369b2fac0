"""The simulator's compiled half (csrc/simulator), or None: everything works before it is compiled, only slower."""

from types import ModuleType

simulator: ModuleType | None
try:
    from hocket import _simulator as simulator
except ImportError:
    simulator = None
