import pytest

from tests.network.goldens_simulator import entries

ALL = list(entries())


@pytest.mark.parametrize(("ours", "published", "tolerance"), [pytest.param(*entry[1:4], id=entry[0]) for entry in ALL])
def test_figures_of_other_simulators_come_out(ours: float, published: float, tolerance: float) -> None:
    assert ours == pytest.approx(published, rel=tolerance, abs=0)
