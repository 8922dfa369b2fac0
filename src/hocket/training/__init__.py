"""Training across ranks, readable from end to end: data, a small NumPy network, data parallelism, one demonstration.

The communicator is the only thing of Hocket that the training step knows. Left out so far: buckets, sharded weights,
tensor, pipeline and expert parallelism.
"""

from typing import TYPE_CHECKING

from hocket.lazy import lazy_names

if TYPE_CHECKING:
    from hocket.training.demonstration import Demonstration as Demonstration
    from hocket.training.demonstration import Start as Start
    from hocket.training.demonstration import demonstrate as demonstrate
    from hocket.training.loop import AfterEpoch as AfterEpoch
    from hocket.training.loop import History as History
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "demonstration": ["Demonstration", "Start", "demonstrate"],
            "loop": ["AfterEpoch", "History"],
        },
    )
