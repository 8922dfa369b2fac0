"""By which ways the data of a call travels between the ranks of this host."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hocket.answers.answer import Answer

if TYPE_CHECKING:
    from hocket.view import Terminal


@dataclass(frozen=True)
class Travel:
    """Messages of one call that travel alike: in `steps`, `num_messages` of `num_bytes` each.

    registered: the way of data in memory of hocket.empty. huge_pages, small_pages: the way of data in other memory, in
    such pages. docs/reports/routes.md explains the ways. "put or lend": the second way is taken if the reader has not
    let the sender write by then.
    """

    steps: tuple[int, ...]
    num_messages: int
    num_bytes: int
    registered: str
    huge_pages: str
    small_pages: str


@dataclass(frozen=True, repr=False)
class Ways(Answer):
    """How the data of a call travels on this host, in the order of steps."""

    collective: str
    algorithm: str
    num_ranks: int
    num_bytes: int
    shares_cores: bool
    travels: tuple[Travel, ...]

    def _print(self, console: "Terminal") -> None:
        """Prints a line for all messages that travel alike."""
        from hocket.view import print_ways

        print_ways(console, self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values."""
        return asdict(self)


def ways_of(collective: str, algorithm: str, num_ranks: int, num_bytes: int) -> Ways:
    """Returns how the float32 data of a call without `out=` travels between ranks of this host.

    It counts on ranks that may read each other's private memory, and whose cores share a cache. Raises ValueError if
    HOCKET_PROFILE is wrong.
    """
    from hocket.runtime import call_routes
    from hocket.runtime.ranks import cores

    travels = tuple(
        Travel(tuple(dict.fromkeys(one.steps)), len(one.steps), one.num_bytes, *one.ways)
        for one in call_routes.routes_of(collective, algorithm, num_ranks, num_bytes)
    )
    return Ways(collective, algorithm, num_ranks, num_bytes, cores.shared_by(num_ranks), travels)
