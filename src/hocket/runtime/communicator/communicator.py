"""The communicator: a group of ranks that exchange data; how it is made, configured and closed.

Its operations are in its base classes: collectives.py, uneven.py, point_to_point.py.
"""

import contextlib
import operator
import sys
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hocket import _core
from hocket.algorithms import Algorithm, registry
from hocket.algorithms import find as find_algorithms
from hocket.errors import CollectiveMismatch, CommunicationError, did_you_mean
from hocket.runtime.choice.select import Policy
from hocket.runtime.communicator import groups
from hocket.runtime.communicator.call_settings import CallSettings, check_algorithm, check_order, check_timeout
from hocket.runtime.communicator.calls import calling, explained
from hocket.runtime.communicator.cartesian import Cartesian
from hocket.runtime.communicator.context import Context, contexts
from hocket.runtime.communicator.lower_face import LowerFace
from hocket.runtime.communicator.objects import Objects
from hocket.runtime.communicator.refusals import no_attribute
from hocket.runtime.network.doorkeeper import await_agents
from hocket.runtime.plans import find
from hocket.runtime.ranks.environment import DEFAULT_TIMEOUT_SECONDS, Environment, discover, here
from hocket.runtime.ranks.failure_reports import reason_of, tell_uncaught
from hocket.runtime.ranks.process_end import at_process_end, fail_process, watch_process
from hocket.runtime.ranks.start_report import tell_start
from hocket.runtime.rendezvous.hello import meet
from hocket.runtime.streams.stream import stream
from hocket.runtime.streams.work import InFlight
from hocket.runtime.traces import trace
from hocket.schedule import COLLECTIVES

_MESSAGES = ("send", "recv", "sendrecv", "batch")
_FAREWELL_SECONDS = 2.0  # so long a leader that has failed tells other hosts of it
_ALIKE = {"isend": "send", "irecv": "recv"}

# Every communicator of the process, by id: one thread may add a communicator while another iterates.
_known: "weakref.WeakValueDictionary[int, Communicator]" = weakref.WeakValueDictionary()


def init(
    rank: int | None = None,
    size: int | None = None,
    *,
    address: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
) -> "Communicator":
    """Meets the other ranks and returns the communicator of all of them; every rank calls it.

    Without arguments, rank and size come from the program that started the process: `hocket run`, run_ranks, torchrun,
    MPI or Slurm. Without any of them the process is one rank alone. `address` is any text that only these ranks share,
    or HOST:PORT, where rank 0 listens for ranks of other hosts; timeout is in seconds. Rank 0 reads HOCKET_ALGO,
    HOCKET_PROFILE and the tuner file for all ranks; HOCKET_TRACE names a file to trace into. Raises RendezvousError (on
    all ranks that came; it names the missing ones), ResourceError, OSError if the trace cannot be written, and
    ValueError or TypeError for bad arguments or a bad configuration of rank 0.
    """
    return init_in(discover(rank, size, address, timeout=check_timeout("init", timeout)))


def init_in(environment: Environment) -> "Communicator":
    """Does what `init` does, for a caller that knows the environment."""
    tell_start(environment)
    met = meet(environment)
    try:
        trace.joined(met.rank, met.size, met.job)
        context = Context(
            met.core, met.rank, met.size, met.has_core, met.num_cores, environment.cancel, met.door, met.hosts
        )
    except BaseException:
        if met.door is not None:
            met.door.close()
        raise
    watch_process()
    context.end_with_rank()
    communicator = Communicator(context, tuple(range(met.size)), met.rank, met.endpoints)
    communicator._apply(replace(Policy.decode(met.policy), shares_cores=met.shares_cores))
    return communicator


class Communicator(Objects):
    """Collectives and messages among `size` ranks; this process is rank `rank`. hocket.init() makes the first one.

    All ranks call the same collectives in the same order with arguments that agree; ranks that differ get
    CollectiveMismatch. Of shapes only the number of elements has to agree, as in MPI and NCCL. A collective returns its
    output array, or with async_op=True a Work at once.

    op: a name (sum, prod, min, max, avg, land, lor, lxor, band, bor, bxor), hocket.premul_sum(factor), a NumPy ufunc or
    hocket.op(function). algorithm: a registered name or "FILE.py:NAME", equal on all ranks; None uses the one that
    configure() fixed, else the choice by size; "" always uses the choice by size. order: "fast", "rank" (the left fold
    over ranks) or "invariant" (the balanced tree over ranks); the bits of the last two depend on nothing else. timeout:
    seconds, 300 by default.

    Arguments are checked before anything is sent: ValueError, TypeError, or VerifyError if the proof of the algorithm
    fails. After a CommunicationError or ResourceError from a collective or message, the communicator can only be
    closed. Threads may share it: a lock orders their calls.

    Attributes: group (the number in the job of each rank), context (the state that all communicators of this rank
    share), topology (a Cartesian; one axis "rank" unless cartesian() or Mesh made it). Algorithms that take a grid,
    such as "torus", use the topology if it has several axes; those that take groups, such as "hierarchical", use the
    hosts if there are several.
    """

    def __init__(
        self, context: Context, group: tuple[int, ...], rank: int, endpoints: Sequence[tuple[int, int]]
    ) -> None:
        self.context, self.group = context, group
        self._rank, self._size = rank, len(group)
        self._core: Any = None
        self._plans: dict[tuple[Algorithm, str, int, bool], _core.Launched] = {}  # str: the name in the call
        self._works = InFlight()
        self._token = np.zeros(1, np.uint8)  # what a barrier moves
        self._policy = Policy()
        self._default, self._settings = CallSettings(), dict[str, CallSettings]()
        self.topology = Cartesian({"rank": self._size})
        context._communicators.add(self)
        _known[id(self)] = self
        # Last: Ctrl-C can come between any two lines. The context then ends a communicator that has all other fields.
        # A core that is not yet assigned here ends itself.
        connections = None if context._door is None else context._door.connections
        offsets, generations = map(list, zip(*endpoints, strict=True))
        self._core = _core.Communicator(
            context._core, list(group), rank, offsets, context.has_core, connections, generations
        )

    if not TYPE_CHECKING:  # which refuses unknown names by itself

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    def _apply(self, policy: Policy) -> None:
        """Lets this policy of the job choose algorithms, for the hosts of these ranks."""
        self._policy = policy.on_hosts([self.context.hosts[rank] for rank in self.group])

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    # Configuration ---------------------------------------------------------------------------------------------------

    @property
    def lower(self) -> LowerFace:
        """The interface for the layers above (PyTorch's process groups, the demonstration). Programs do not need it."""
        return LowerFace(self)

    @explained
    def configure(
        self,
        collective: str | None = None,
        *,
        algorithm: str | None = None,
        order: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Sets the defaults of one collective, or of all, for calls that do not give algorithm, order or timeout.

        All ranks make the same call; None leaves a default unchanged. Without `collective`, an `algorithm` applies to
        the collectives that have one of this name; "" restores the choice by size. "send" (also isend), "recv" (also
        irecv), "sendrecv" and "batch" have only a timeout, in seconds. Communicators made later from this one inherit
        the defaults. Raises ValueError or TypeError.
        """
        names = [*COLLECTIVES, *_MESSAGES]
        if collective is not None and collective not in names:
            near = did_you_mean(collective, names)
            raise ValueError(f"configure: expected a collective, one of {', '.join(names)}; found {collective!r}{near}")
        if collective in _MESSAGES and (algorithm is not None or order is not None):
            raise ValueError(f"configure: expected only timeout= for {collective}, which has no algorithm and no order")
        if order is not None and collective is not None and not COLLECTIVES[collective].counts_contributions:
            raise ValueError(f"configure: expected no order= for {collective}, which reduces nothing; found {order!r}")
        changes: dict[str, Any] = {}
        if algorithm is not None:
            check_algorithm("configure", algorithm)
        if order is not None:
            changes["order"] = check_order("configure", order)
        if timeout is not None:
            changes["timeout"] = check_timeout("configure", timeout)
        default, settings = self._default, dict(self._settings)
        if collective is None:
            serving = _serving(algorithm) if algorithm is not None else ()
            default = replace(default, **changes)
            for name in {*settings, *serving}:
                chosen = changes | ({"algorithm": algorithm} if name in serving else {})
                settings[name] = replace(settings.get(name, default), **chosen)
        else:
            if algorithm:
                find(collective, algorithm)
            if algorithm is not None:
                changes["algorithm"] = algorithm
            settings[collective] = replace(settings.get(collective, default), **changes)
        for name, one in settings.items():
            self._check_kept(name, one)
        try:
            self._default, self._settings = default, settings
        finally:  # also if the exception of a signal comes in between
            _core.forget_calls(self)

    def _check_kept(self, name: str, settings: CallSettings) -> None:
        """Raises ValueError if the fixed algorithm does not keep the fixed order."""
        if settings.algorithm and name in COLLECTIVES:
            reduces = COLLECTIVES[name].counts_contributions
            order = settings.order if reduces else "fast"
            self._find(name, settings.algorithm, order, "sum" if reduces else "max", 0, 0, 0, False, None)

    def _timeout_of(self, name: str) -> float:
        return self._settings.get(_ALIKE.get(name, name), self._default).timeout

    # Groups ----------------------------------------------------------------------------------------------------------

    @explained
    def split(self, color: int | None, key: int = 0) -> "Communicator | None":
        """Returns the communicator of the ranks that gave the same color, ordered by key and then by rank.

        All members call it. A rank with color None joins no group and gets None. Raises ValueError unless color and key
        fit into int64, and ResourceError, on all members of a new group, if one of them has no memory for it.
        """
        try:
            mine = [color is not None, 0 if color is None else operator.index(color), operator.index(key)]
            with stream(None), calling("split"):  # the host reads the result
                # Named, so that no default of the program changes it.
                said = self.all_gather(np.array([mine], np.int64), algorithm="direct")
        except (TypeError, OverflowError):
            raise ValueError(f"split: expected whole numbers below 2**63, found color {color!r}, key {key!r}") from None
        return None if color is None else self._made(groups.members_of_color(said, self._rank))

    @explained
    def subgroup(self, ranks: Sequence[int]) -> "Communicator | None":
        """Returns a communicator of these ranks, in the order given. Only they take part; other ranks get None at once.

        Raises ValueError unless they are different ranks of this communicator. Members that give other ranks, or the
        same in another order, end this communicator: CollectiveMismatch or PeerAborted names both lists, or, if one
        waits for a rank that makes no group with it, CollectiveTimeout names that. ResourceError as in split.
        """
        members = groups.check_ranks("subgroup", ranks, self._size)
        return self._made(members) if self._rank in members else None

    def dup(self) -> "Communicator":
        """Returns a communicator of the same ranks with traffic of its own. All members call it."""
        made = self._made(list(range(self._size)))
        made.topology = self.topology
        return made

    @explained
    def cartesian(self, dims: Mapping[str, int], periodic: Collection[str] = ()) -> "Communicator":
        """Returns a communicator of the same ranks, arranged in a grid: its `topology`. All members call it.

        dims: axis -> size, the last axis varies fastest; periodic: axes that are rings. Raises ValueError unless the
        product of the sizes is the number of ranks.
        """
        grid = Cartesian(dims, periodic)
        grid.check_size(self._size)
        made = self._made(list(range(self._size)), repr(grid))
        made.topology = grid
        return made

    def _made(self, members: list[int], grid: str = "") -> "Communicator":
        new_rank, timeout = members.index(self._rank), self._default.timeout
        group = tuple(self.group[member] for member in members)
        core, parent = self.context._core, self._usable()
        intent = groups.Intent(members, self.group, grid)
        with groups.endpoints(core, parent, intent, self._rank, timeout) as endpoints:
            made = Communicator(self.context, group, new_rank, endpoints)
        made._apply(self._policy)
        made._default, made._settings = self._default, dict(self._settings)
        return made

    # Life ------------------------------------------------------------------------------------------------------------

    @explained
    def abort(self, reason: str) -> None:
        """Aborts: on every rank, the present or next call raises PeerAborted with this rank and reason."""
        if not isinstance(reason, str):
            raise TypeError(f"abort: expected a reason as text, found {reason!r}")
        self._abort(reason)

    def _abort(self, reason: str, only_later: bool = False) -> None:
        """Aborts as `abort` does; only_later: other ranks can still finish the calls that this rank has finished."""
        self._usable().abort(reason.encode(errors="replace").decode(), only_later)

    def _finish(self) -> None:
        """Does the first half of close(): waits for all operations, and tells the other ranks that no more come."""
        if self._core is not None:
            self._core.finish()

    def close(self) -> None:
        """Waits for all operations, then leaves. If another rank then makes a call that needs this rank, it raises
        PeerAborted.

        A receive in which another thread waits ends with PeerAborted, unless its message has come.
        It may be called again. Raises an error that another rank has reported and this rank has not raised yet.
        """
        if self._core is None:
            return
        self._core.check_not_on_stream()  # else the stream would be the last to hold the core, and destroy itself
        core, self._core = self._core, None
        if core is None:  # another thread was faster
            return
        try:
            _core.forget_calls(self)  # from here on no call finds the core, on any thread
            self.context._communicators.discard(self)
        finally:
            try:
                core.close()
            finally:
                self._works.clear()
                if self.context._door is not None and self.context.num_communicators == 0:
                    self.context._door.close()  # nothing leads to a communicator any more that could need it
                self._plans.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(error)

    @property
    def statistics(self) -> dict[str, Any]:
        """Counts so far: "calls", "seconds" (wall time inside collectives), "algorithms" (calls by name)."""
        algorithms: dict[str, int] = {}
        for (algorithm, name, _, _), prepared in self._plans.items():
            if prepared.num_calls:
                key = f"{algorithm.collective}:{name}"
                algorithms[key] = algorithms.get(key, 0) + prepared.num_calls
        return {"calls": sum(algorithms.values()), "seconds": self._usable().busy_seconds, "algorithms": algorithms}

    def __repr__(self) -> str:
        of = "" if self.group == tuple(range(self.context.size)) else f", ranks {self.group} of the job"
        return f"<hocket.Communicator rank {self._rank} of {self._size}{of}{' (closed)' if self._core is None else ''}>"

    def _usable(self) -> Any:
        if self._core is None:
            raise CommunicationError(
                f"rank {self.context.rank}: the communicator is closed; use it inside its `with` block, or make "
                "another one with hocket.init()"
            )
        return self._core

    def _end(self, error: BaseException | None) -> None:
        """Closes. After an exception, tells the other ranks about it, and raises no other error that would hide it."""
        if self._core is None:
            return
        if error is None:
            self.close()
            return
        with contextlib.suppress(CommunicationError):
            try:
                self.abort(reason_of(error))
            finally:
                self.close()

    def __del__(self) -> None:
        # The core's destructor would wait for the peers with the GIL held, and Ctrl-C would not interrupt it.
        if getattr(self, "_core", None) is None:
            return
        if _core.is_own_thread():  # as of an op: close() would wait for the op, so another thread closes
            threading.Thread(target=self._close_unwatched, name="hocket close").start()
        else:
            self._close_unwatched()

    def _close_unwatched(self) -> None:
        try:
            self.close()
        except Exception as failure:  # no caller can catch it here
            _tell(failure)


def _tell(failure: Exception) -> None:
    """Says what was found as a communicator closed while no caller could catch it.

    A difference makes the process fail, because this rank may have used wrong data. For a rank that gave up or died,
    its own exit code speaks.
    """
    print(f"hocket: {failure}", file=sys.stderr)
    ends_with_process = here.scope.environment is None
    if isinstance(failure, CollectiveMismatch) and ends_with_process:
        tell_uncaught(failure)
        fail_process()


def _serving(algorithm: str) -> set[str]:
    """Returns the collectives that have an algorithm of this name, all of them for ""; ValueError if there are none."""
    if not algorithm:
        return set(COLLECTIVES)
    serving = {one.collective for one in find_algorithms(algorithm)}
    for collective in serving:
        find(collective, algorithm)  # raises as a call would if the file has several and none is named
    return serving


def _forget_calls() -> None:
    """Clears the caches of calls, because a name now means another algorithm."""
    for reference in _known.valuerefs():
        communicator = reference()
        if communicator is not None:
            _core.forget_calls(communicator)


registry.on_replaced.append(_forget_calls)


def abort_threads(cancel: threading.Event, reason: str) -> bool:
    """Aborts the open communicators of the ranks that share `cancel`; returns False if there are none.

    The caller is none of these ranks.
    """
    known = [communicator for reference in _known.valuerefs() if (communicator := reference()) is not None]
    communicators = [communicator for communicator in known if communicator.context._cancel is cancel]
    for communicator in communicators:
        with contextlib.suppress(CommunicationError):  # its rank may just have closed it
            communicator.abort(reason)
    return bool(communicators)


@at_process_end
def _close_all(error: BaseException | None) -> None:
    """Closes all communicators of the process; other ranks get an uncaught exception as the reason."""
    if error is not None:
        tell_uncaught(error)
    else:
        for context in list(contexts):
            context._finish()
    for context in list(contexts):
        try:
            context._end(error)
        except Exception as failure:  # if one cannot be closed, the others are closed all the same
            _tell(failure)
    for context in list(contexts):
        context.close_door()
    await_agents(None if error is None else _FAREWELL_SECONDS)
