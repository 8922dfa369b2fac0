"""What tests of training share."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def one_thread_per_rank() -> Iterator[None]:
    """Ranks are threads of this process and share its cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
