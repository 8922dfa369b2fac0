"""torch.compile takes the methods that PyTorch calls here as they are.

Where a compiled program runs something that is not compiled, such as a step of DDP, PyTorch tries to compile every
Python function below it. Ours gain nothing by that, and a process group is none of the objects that it can look into.
"""

from types import FunctionType
from typing import TypeVar

import torch

_Class = TypeVar("_Class", bound=type)


def as_they_are(kind: _Class) -> _Class:
    """The decorator, of a class: neither its methods are compiled nor what they call."""
    # What torch.compiler.disable() does for functions; that would load the compiler, which takes seconds.
    frames = torch._C._dynamo.eval_frame
    never = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for member in vars(kind).values():
        function = getattr(member, "__wrapped__", member)
        if isinstance(function, FunctionType):
            frames.set_code_exec_strategy(function.__code__, never)
    return kind
