"""Training across ranks, readable from end to end: strategies, and what they are made of.

    coordinator/     ranks agree which tensors are ready, and communicate them in one order
    buckets/         where tensors lie, so that one collective communicates many; compression
    strategies/      data parallelism, sharded state (ZeRO), parameter servers, local steps
    loop.py ...      data, a small NumPy network, its training loop and the demonstration
    pipeline/        pipelines as tables: written, proved, timed and run

Left out so far: tensor and expert parallelism.
"""

from typing import TYPE_CHECKING

from hocket.lazy import lazy_names

if TYPE_CHECKING:
    from hocket.training.buckets.compression import half as half
    from hocket.training.buckets.compression import top_k as top_k
    from hocket.training.coordinator.coordinator import Coordinator as Coordinator
    from hocket.training.demonstration import Demonstration as Demonstration
    from hocket.training.demonstration import Start as Start
    from hocket.training.demonstration import demonstrate as demonstrate
    from hocket.training.loop import AfterEpoch as AfterEpoch
    from hocket.training.loop import History as History
    from hocket.training.strategies.data_parallel import DataParallel as DataParallel
    from hocket.training.strategies.local import DiLoCo as DiLoCo
    from hocket.training.strategies.local import LocalSGD as LocalSGD
    from hocket.training.strategies.momentum import Momentum as Momentum
    from hocket.training.strategies.server import ParameterServer as ParameterServer
    from hocket.training.strategies.sharded import Sharded as Sharded
    from hocket.training.strategies.sharded import sharded as sharded
    from hocket.training.trial import Trial as Trial
    from hocket.training.trial import TrialOptions as TrialOptions
    from hocket.training.trial import try_strategy as try_strategy
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "buckets.compression": ["half", "top_k"],
            "coordinator.coordinator": ["Coordinator"],
            "demonstration": ["Demonstration", "Start", "demonstrate"],
            "loop": ["AfterEpoch", "History"],
            "strategies.data_parallel": ["DataParallel"],
            "strategies.local": ["DiLoCo", "LocalSGD"],
            "strategies.momentum": ["Momentum"],
            "strategies.server": ["ParameterServer"],
            "strategies.sharded": ["Sharded", "sharded"],
            "trial": ["Trial", "TrialOptions", "try_strategy"],
        },
    )
