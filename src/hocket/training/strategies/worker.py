"""A worker's half of a parameter server: what it asks the servers, as strategies/serving.py describes it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.runtime import Recv, Send
from hocket.training.strategies.flat import FlatParameters
from hocket.training.strategies.serving import (
    ANSWER,
    CLOSE,
    ENTER,
    GRADIENT,
    LEAVE,
    PULL,
    PUSH,
    REQUEST,
    SHARD,
    TimedMessages,
)
from hocket.training.strategies.strategy import Floats


class ShardWorker:
    """One worker: its step, and what the servers have last answered. Its methods are those of ParameterServer.

    shards: by server, the part of the vector that it holds; the first server leads. who: the name in errors.
    """

    def __init__(
        self,
        messages: TimedMessages,
        parameters: FlatParameters,
        shards: Mapping[int, slice],
        num_workers: int,
        who: str,
    ) -> None:
        self._messages, self._parameters, self._shards, self._who = messages, parameters, shards, who
        self._leader, *self._others = shards
        self._step = 0
        self._is_present, self._is_closed = True, False
        self.num_present = num_workers
        self.versions = dict.fromkeys(shards, 0)

    def push(self, gradients: Any) -> None:
        """Brings a gradient and waits for fresh parameters."""
        self._check("push", present=True)
        self._ask(PUSH, list(self._shards), self._parameters.flat(gradients, "ParameterServer.push"))

    def pull(self) -> None:
        """Waits for fresh parameters."""
        self._check("pull")
        self._ask(PULL, list(self._shards))

    def enter(self) -> None:
        """Becomes present: first for the leader, then it waits until the other servers have reached the same step."""
        self._check("enter", present=False)
        self._ask(ENTER, [self._leader])
        self._is_present = True
        self._ask(PULL, self._others)

    def leave(self) -> None:
        """Becomes absent, and waits for nothing."""
        self._check("leave", present=True)
        self._is_present = False
        self._tell(LEAVE)

    def close(self) -> None:
        """Leaves if it is present, and asks for nothing more."""
        if self._is_closed:
            return
        if self._is_present:
            self.leave()
        self._is_closed = True
        self._tell(CLOSE)

    def _ask(self, kind: int, servers: Sequence[int], gradient: Floats | None = None) -> None:
        """Sends the servers a request, waits for all answers, and writes the parameters."""
        request = self._request(kind)
        answers = {server: np.zeros(3, np.int64) for server in servers}
        messages: list[Send | Recv] = []
        for server, answer in answers.items():
            shard = self._shards[server]
            messages += [Send(request, server, REQUEST), Recv(answer, server, ANSWER)]
            messages.append(Recv(self._parameters.vector[shard], server, SHARD))
            if gradient is not None:
                messages.append(Send(gradient[shard], server, GRADIENT))
        self._messages.exchange(messages)
        self._parameters.write()
        self.versions |= {server: int(answer[0]) for server, answer in answers.items()}
        if kind in (PUSH, ENTER):  # only the leader knows step and members
            _, self._step, self.num_present = answers[self._leader].tolist()

    def _tell(self, kind: int) -> None:
        request = self._request(kind)
        self._messages.exchange([Send(request, server, REQUEST) for server in self._shards])

    def _request(self, kind: int) -> NDArray[np.int64]:
        return np.array([kind, self._step, self.num_present], np.int64)

    def _check(self, call: str, *, present: bool | None = None) -> None:
        """Raises ValueError if this worker has closed, or is present where it must be absent, or the reverse."""
        if self._is_closed:
            raise ValueError(f"{self._who}, {call}: expected a worker that has not closed; close is the last call")
        if present is not None and present != self._is_present:
            expected, found, next_step = (
                ("a present", "absent", "enter") if present else ("an absent", "present", "leave")
            )
            raise ValueError(
                f"{self._who}, {call}: expected {expected} worker, found it {found}; call {next_step} before"
            )
