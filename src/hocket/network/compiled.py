"""The compiled part of the simulator (csrc/simulator), or None. Without it everything works, only slower."""

from types import ModuleType

simulator: ModuleType | None
try:
    from hocket import _simulator as simulator
except ImportError:
    simulator = None
