"""A parameter server: some ranks hold the parameters and own the optimizer, and workers bring them gradients.

The parameters are cut in contiguous shards, one for each server, whose sizes differ by at most one element. A worker
sends every server its part of the gradient, and gets the fresh shard, in one exchange. Left out: sparse gradients,
replicas of shards, two parameter servers at a time on one communicator.

References: Li et al. 2014, "Scaling distributed machine learning with the parameter server"; Ho et al. 2013, "More
effective distributed ML via a stale synchronous parallel parameter server".
"""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hocket.runtime import Recv, Send
from hocket.training.strategies.data import share
from hocket.training.strategies.flat import FlatParameters
from hocket.training.strategies.serving import SHARD, RoundServer, ShardServer, StreamServer, TimedMessages
from hocket.training.strategies.strategy import Floats, Indices, Numbers, Optimizer
from hocket.training.strategies.worker import ShardWorker

if TYPE_CHECKING:
    from hocket.runtime import Communicator


class ParameterServer:
    """A parameter server among the ranks of a communicator. The ranks of `servers` serve; all others are workers.

    | staleness | when a server updates its shard | which workers wait in `push` |
    |---|---|---|
    | 0 | once in a round, with the sum of the gradients of all present workers | all, until the round ends |
    | s > 0 | with every gradient, as it comes | those more than s steps ahead of the slowest present worker |
    | None | with every gradient, as it comes | none |

    A server applies gradients as they are and divides by nothing. With staleness 0 it adds them in rank order, in their
    own type: if workers divide by the size of the whole batch, or by `num_present`, the update is by the mean.

    All ranks call `begin`, and all workers are present then. Then servers call `serve`; workers call `push` for each
    step, `leave` and `enter` at any time, and `close` at the end. The training loop does all this by itself: the class
    is also a strategy. The last 4 tags of the communicator belong to it. Calls block; they raise CommunicationError if
    a rank dies, and ValueError on a wrong rank or if `servers` leaves no worker. For one thread only.
    """

    def __init__(self, communicator: "Communicator", servers: Sequence[int] = (0,), staleness: int | None = 0) -> None:
        self._communicator = communicator
        self.servers = _checked_servers(servers, communicator.size)
        self.workers = tuple(rank for rank in range(communicator.size) if rank not in self.servers)
        self.staleness = _checked_staleness(staleness)
        self._messages = TimedMessages(communicator)
        self._shards: dict[int, slice] = {}  # by server, its part of the vector
        self._parameters: FlatParameters | None = None
        self._role: ShardServer | ShardWorker | None = None

    @property
    def serves(self) -> bool:
        """Whether this rank is a server."""
        return self._communicator.rank in self.servers

    @property
    def num_present(self) -> int:
        """The number of workers in the step of this worker, with those that leave during the step.

        If staleness is not 0, workers may also enter during the step.
        """
        return self._worker("num_present").num_present

    @property
    def versions(self) -> tuple[int, ...]:
        """The number of updates in the parameters of this worker, for each server's shard; at a server, of its own."""
        if self.serves:
            return (self._server("versions").version,)
        return tuple(self._worker("versions").versions.values())

    def begin(self, parameters: Any) -> None:
        """Gives all ranks the parameters of the first server. All ranks call it, once.

        parameters: as in FlatParameters; calls of a worker change them in place. Raises ValueError on all ranks if
        parameters, servers or staleness differ between ranks.
        """
        held = FlatParameters(parameters, "ParameterServer")
        held.agree(self._communicator, f"servers={self.servers}, staleness={self.staleness}")
        self._communicator.broadcast(held.vector, root=self.servers[0])
        held.write()
        self._parameters = held
        size, num, rank = held.vector.size, len(self.servers), self._communicator.rank
        self._shards = {one: slice(size * at // num, size * (at + 1) // num) for at, one in enumerate(self.servers)}
        if not self.serves:
            who = f"ParameterServer on rank {rank}"
            self._role = ShardWorker(self._messages, held, self._shards, len(self.workers), who)
        elif self.staleness == 0:
            self._role = RoundServer(self._messages, held.vector[self._shards[rank]], self.workers)
        else:
            bound = self.staleness if rank == self.servers[0] else None  # the leader's answer is enough to wait for
            self._role = StreamServer(self._messages, held.vector[self._shards[rank]], self.workers, bound)

    def serve(self, optimizer: Optimizer) -> None:
        """Serves until all workers have closed; then the parameters of this server are the final ones.

        optimizer: for this server's shard, a flat NumPy array, also if the parameters are tensors.
        """
        if not callable(getattr(optimizer, "step", None)):
            raise TypeError(f"ParameterServer.serve: expected an optimizer such as Momentum(0.1), found {optimizer!r}")
        self._server("serve").serve(optimizer)
        assert self._parameters is not None
        rank, vector = self._communicator.rank, self._parameters.vector
        others = [(one, vector[shard]) for one, shard in self._shards.items() if one != rank]
        sends = [Send(vector[self._shards[rank]], one, SHARD) for one, _ in others]
        self._messages.exchange([*sends, *(Recv(shard, one, SHARD) for one, shard in others)])
        self._parameters.write()

    def push(self, gradients: Any) -> None:
        """Brings the servers one gradient and waits for fresh parameters, which it writes in place.

        gradients: one for each parameter, of its shape and type; None counts as zeros.
        """
        self._worker("push").push(gradients)

    def pull(self) -> None:
        """Writes fresh parameters in place. A worker that is absent may call it, too.

        Of several servers, the shards may have different versions while other workers push.
        """
        self._worker("pull").pull()

    def enter(self) -> None:
        """Makes this worker present again, and writes fresh parameters in place.

        With staleness 0 it waits for the end of the round, and is in the next one. Else its step is that of the slowest
        present worker.
        """
        self._worker("enter").enter()

    def leave(self) -> None:
        """Makes this worker absent: no other one waits for it. It does not wait itself, and its parameters stay."""
        self._worker("leave").leave()

    def close(self) -> None:
        """Says that this worker asks for nothing more; it leaves if it is present. A second call does nothing."""
        self._worker("close").close()

    # --- the strategy of the training loop: begin, and ---------------------------------------------------------------

    def own(self, items: Indices) -> Indices:
        """Returns this worker's part of the items, as `share` does among workers; a server has none."""
        rank = self._communicator.rank
        return items[:0] if self.serves else share(items, self.workers.index(rank), len(self.workers))

    def update(self, parameters: Floats, message: Floats, optimizer: Optimizer) -> None:
        """Pushes the gradient; a server serves as many pushes as there are workers."""
        if self.serves:
            self._server("update").serve(optimizer, len(self.workers))
        else:
            self.push(message[:-1])

    def settle(self, parameters: Floats, losses: NDArray[np.float64]) -> None:
        """Sums the losses of all workers' parts, each at its own weights, and gives all ranks the servers' shards."""
        self._communicator.all_reduce(losses)
        for server, shard in self._shards.items():
            self._communicator.broadcast(parameters[shard], root=server)

    def sum(self, numbers: Numbers) -> None:
        """Sums the numbers over all ranks, in place."""
        self._communicator.all_reduce(numbers)

    def seconds(self) -> float:
        """Returns the seconds inside messages and collectives; at a server they include waits for requests."""
        return self._messages.seconds + float(self._communicator.statistics["seconds"])

    # --- refusals ----------------------------------------------------------------------------------------------------

    def _server(self, call: str) -> ShardServer:
        if not isinstance(self._role, ShardServer):
            raise self._wrong(call, f"a server, one of ranks {self.servers}, after begin")
        return self._role

    def _worker(self, call: str) -> ShardWorker:
        if not isinstance(self._role, ShardWorker):
            raise self._wrong(call, f"a worker, one of ranks {self.workers}, after begin")
        return self._role

    def _wrong(self, call: str, expected: str) -> ValueError:
        if self._role is None:
            found, next_step = "a rank before begin", "call begin(parameters) on all ranks"
        elif self.serves:
            found, next_step = "a server", "call serve(optimizer)"
        else:
            found, next_step = "a worker", "call push(gradients)"
        who = f"ParameterServer.{call} on rank {self._communicator.rank}"
        return ValueError(f"{who}: expected {expected}, found {found}; {next_step}")


def _checked_servers(servers: Sequence[int], size: int) -> tuple[int, ...]:
    try:
        found = tuple(operator.index(rank) for rank in servers)
    except TypeError:
        found = ()
    if not found or len(set(found)) < len(found) or min(found) < 0 or max(found) >= size:
        expected = f"servers as a list of different ranks from 0 to {size - 1}, for example [0]"
        raise ValueError(f"ParameterServer: expected {expected}, found {servers!r}")
    if len(found) == size:
        found_text = f"{size} servers among {size} ranks; name fewer servers or start more ranks"
        raise ValueError(f"ParameterServer: expected at least one worker, found {found_text}")
    return found


def _checked_staleness(staleness: Any) -> int | None:
    try:
        steps = None if staleness is None else operator.index(staleness)
    except TypeError:
        steps = -1
    if steps is not None and steps < 0:
        raise ValueError(f"ParameterServer: expected staleness, steps from 0 on or None, found {staleness!r}")
    return steps
