"""Keeps torch.compile from compiling the methods of the backend.

If a compiled program runs code that is not compiled, such as a step of DDP, PyTorch tries to compile every Python
function that this code calls. The backend's functions gain nothing, and torch.compile cannot handle a process group.
"""

from types import FunctionType
from typing import TypeVar

import torch

_Class = TypeVar("_Class", bound=type)


def as_they_are(kind: _Class) -> _Class:
    """Decorates a class: torch.compile compiles neither its methods nor the functions that they call."""
    # This is what torch.compiler.disable() does for functions, but that would load the compiler, which takes seconds.
    frames = torch._C._dynamo.eval_frame
    never = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for member in vars(kind).values():
        function = getattr(member, "__wrapped__", member)
        if isinstance(function, FunctionType):
            frames.set_code_exec_strategy(function.__code__, never)
    return kind
