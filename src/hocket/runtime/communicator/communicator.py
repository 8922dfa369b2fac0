"""The communicator: a group of ranks that talk among themselves, what it was told to use, how it is made and ended.

What it does stands in the parts that it is made of: collectives.py, uneven.py, point_to_point.py.
"""

import contextlib
import operator
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from hocket import _core
from hocket.algorithms import Algorithm, registry
from hocket.algorithms import find as find_algorithms
from hocket.errors import CommunicationError, RendezvousError
from hocket.runtime import memory
from hocket.runtime.choice.select import Policy
from hocket.runtime.communicator import groups
from hocket.runtime.communicator.call_settings import Settings, check_algorithm, check_order, check_timeout
from hocket.runtime.communicator.cartesian import Cartesian
from hocket.runtime.communicator.collectives import Collectives
from hocket.runtime.communicator.lower_face import LowerFace
from hocket.runtime.communicator.point_to_point import PointToPoint
from hocket.runtime.communicator.uneven import UnevenCollectives
from hocket.runtime.plans import find
from hocket.runtime.ranks.cores import beside, have_cores, neighbours, num_cores, own_cores
from hocket.runtime.ranks.environment import DEFAULT_TIMEOUT_SECONDS, at_rank_end, discover, link_here, may_attach
from hocket.runtime.ranks.process_end import at_process_end, watch_process
from hocket.runtime.rendezvous.join import join
from hocket.runtime.streams.stream import stream
from hocket.runtime.streams.work import InFlight
from hocket.runtime.traces import trace
from hocket.schedule import COLLECTIVES

_MESSAGES = ("send", "recv", "sendrecv", "batch")
_ALIKE = {"isend": "send", "irecv": "recv"}

_contexts: "weakref.WeakSet[Context]" = weakref.WeakSet()

# Every communicator of the process, by its id: while one thread goes through them, another may make one.
_known: "weakref.WeakValueDictionary[int, Communicator]" = weakref.WeakValueDictionary()


def init(
    rank: int | None = None,
    size: int | None = None,
    *,
    address: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
) -> "Communicator":
    """Meets the other ranks and returns the communicator of all of them; every rank calls it.

    Without arguments the place comes from whoever started the process: `hocket run`, run_ranks, torchrun, MPI, Slurm,
    and else it is one rank alone. `address` is any text that only these ranks share; timeout is in seconds. HOCKET_ALGO
    and the tuner file are read by rank 0, for all; HOCKET_TRACE names a file to trace into. Raises RendezvousError (on
    all ranks that came, naming those that did not), ResourceError, OSError for a trace that cannot be written, and
    ValueError or TypeError for bad arguments or a bad configuration of rank 0.
    """
    environment = discover(rank, size, address, timeout=check_timeout("init", timeout))
    arena = memory.arena()
    link = link_here()
    core = _core.Context(arena, trace.recorder(), may_attach=may_attach(), link=link)
    hello = {
        "presence": core.presence_offset,
        "endpoint": core.add_endpoint(environment.size),
        "piece_bytes": _core.PIECE_BYTES,
        "cores": own_cores(),
        "link": link,
    }
    members = join(environment, arena.descriptor, hello, _configuration() if environment.rank == 0 else None)
    try:
        _check_links([said["link"] for said in members.hellos])
        cores = [said["cores"] for said in members.hellos]
        with_core, near = have_cores(cores), (neighbours(cores, members.rank), beside(cores, members.rank))
        presences = [said["presence"] for said in members.hellos]
        core.join(members.rank, members.descriptors, presences, not all(with_core), *near)
    finally:
        for descriptor in members.descriptors:
            os.close(descriptor)
    if members.config["error"]:
        raise ValueError(f"rank 0 cannot use its configuration: {members.config['error']}")
    trace.joined(members.rank, members.size, members.config["job"])
    context = Context(core, members.rank, members.size, with_core[members.rank], num_cores(cores), environment.cancel)
    watch_process()
    _end_with_rank(context)
    endpoints = [said["endpoint"] for said in members.hellos]
    communicator = Communicator(context, tuple(range(members.size)), members.rank, endpoints)
    communicator._policy = replace(Policy.decode(members.config["policy"]), shares_cores=not all(with_core))
    return communicator


def _end_with_rank(context: "Context") -> None:
    """Ends it with its rank, if it is still there: a closed one has given its thread and its mappings back before."""
    alive = weakref.ref(context)

    def end(error: BaseException | None) -> None:
        still = alive()
        if still is not None:
            still._end(error)

    at_rank_end(end)


def _check_links(links: Sequence[Sequence[float] | None]) -> None:
    """RendezvousError, on all ranks alike, unless all are under the same paced link, or under none."""
    for rank, link in enumerate(links):
        said = ["no paced link" if one is None else f"a paced link {tuple(one)}" for one in (links[0], link)]
        if said[0] != said[1]:
            raise RendezvousError(
                f"rank 0 has {said[0]} (bytes per second, seconds), rank {rank} {said[1]}; call hocket.init() on all "
                "ranks inside the same hocket.testing.paced_link(), or outside"
            )


def _configuration() -> dict[str, str]:
    """What rank 0 says for all: what its environment fixes, or why that cannot be read; and a name for the job."""
    job = secrets.token_hex(4)
    try:
        return {"policy": Policy.from_environment(os.environ).encode(), "error": "", "job": job}
    except (ValueError, OSError) as error:
        return {"policy": "", "error": str(error), "job": job}


class Context:
    """What all communicators of one rank share: its memory, and its place among all ranks of the job.

    Attributes: rank and size in the job; has_core: whether it has a core of its own, so that it spins where it waits;
    num_cores: on how many all ranks of the job run together.
    """

    def __init__(
        self,
        core: Any,
        rank: int,
        size: int,
        has_core: bool,
        num_cores: int,
        cancel: threading.Event | None = None,
    ) -> None:
        self._core, self.rank, self.size, self.has_core, self.num_cores = core, rank, size, has_core, num_cores
        self._cancel = cancel  # of the ranks that are threads of one run_ranks
        self._communicators: weakref.WeakSet[Communicator] = weakref.WeakSet()
        _contexts.add(self)

    @property
    def num_communicators(self) -> int:
        """How many communicators of this rank are open."""
        return len(self._communicators)

    def _finish(self) -> None:
        for communicator in list(self._communicators):
            communicator._finish()

    def _end(self, error: BaseException | None) -> None:
        """Closes all that is open, parts first; if because of an exception, tells the others so."""
        if error is None:
            self._finish()
        with contextlib.ExitStack() as ends:  # what one of them raises does not keep the others open
            for communicator in sorted(self._communicators, key=lambda one: -len(one.group)):
                ends.callback(communicator._end, error)

    def __repr__(self) -> str:
        return f"<hocket.Context rank {self.rank} of {self.size}, {self.num_communicators} communicators>"


class Communicator(Collectives, UnevenCollectives, PointToPoint):
    """Collectives and messages among `size` ranks, of which this one is `rank`. hocket.init() makes the first one.

    A collective is called by all ranks in the same order with arguments that agree; ranks that differ get
    CollectiveMismatch. It returns its output array, or with async_op=True a Work at once. `op` is a name (sum, prod,
    min, max, avg, land, lor, lxor, band, bor, bxor), hocket.premul_sum(factor), a NumPy ufunc or hocket.op(function).
    `algorithm` is a registered name or "FILE.py:NAME", equal on all ranks; without it the size decides, unless
    configure() said another, and with "" the size. `order` is "fast", "rank" (the left fold over ranks) or "invariant"
    (the balanced tree over ranks): the bits of the last two depend on nothing else. `timeout` is in seconds (default
    300). Arguments are checked before anything is sent: ValueError, TypeError; VerifyError for an algorithm that is not
    right. Any CommunicationError or ResourceError from a collective or message leaves a communicator that can only be
    closed. Threads may share it: a lock orders their calls.

    Attributes: group (of each rank here its number in the job), context (what all communicators of this rank share),
    topology (a Cartesian; one axis "rank" unless cartesian() or Mesh made it). A grid of several axes is that of
    algorithms that take one, such as "torus".
    """

    def __init__(self, context: Context, group: tuple[int, ...], rank: int, endpoints: Sequence[int]) -> None:
        self.context, self.group = context, group
        self._rank, self._size = rank, len(group)
        self._core: Any = None
        self._plans: dict[tuple[Algorithm, str, int, bool], _core.Launched] = {}  # with the name that it was called by
        self._works = InFlight()
        self._token = np.zeros(1, np.uint8)  # what a barrier moves
        self._policy = Policy()
        self._default, self._settings = Settings(), dict[str, Settings]()
        self.topology = Cartesian({"rank": self._size})
        context._communicators.add(self)
        _known[id(self)] = self
        # Last: Ctrl-C can come between any two lines, and the context then ends what has all else. Before the core has
        # got its name here it ends itself.
        self._core = _core.Communicator(context._core, list(group), rank, list(endpoints), context.has_core)

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    # Configuration ---------------------------------------------------------------------------------------------------

    @property
    def lower(self) -> LowerFace:
        """What the layers above use: PyTorch's process groups, the demonstration. Programs have no need of it."""
        return LowerFace(self)

    def configure(
        self,
        collective: str | None = None,
        *,
        algorithm: str | None = None,
        order: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """What calls use that do not say it themselves: of one collective, or of all.

        To be called alike on all ranks; None leaves things as they are. An `algorithm` for all collectives serves those
        that have one of this name, and "" is the table again. "send" (isend too), "recv" (irecv too), "sendrecv" and
        "batch" have a timeout only. Communicators made from this one later start with the same. ValueError, TypeError.
        """
        names = [*COLLECTIVES, *_MESSAGES]
        if collective is not None and collective not in names:
            raise ValueError(f"configure: expected a collective, one of {', '.join(names)}; found {collective!r}")
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
        finally:  # wherever a signal's exception comes in between
            _core.forget_calls(self)

    def _check_kept(self, name: str, settings: Settings) -> None:
        """ValueError if an algorithm and an order are fixed that do not go together."""
        if settings.algorithm and name in COLLECTIVES:
            reduces = COLLECTIVES[name].counts_contributions
            order = settings.order if reduces else "fast"
            self._find(name, settings.algorithm, order, "sum" if reduces else "max", 0, 0, 0, False, None)

    def _timeout_of(self, name: str) -> float:
        return self._settings.get(_ALIKE.get(name, name), self._default).timeout

    # Groups ----------------------------------------------------------------------------------------------------------

    def split(self, color: int | None, key: int = 0) -> "Communicator | None":
        """A communicator for each color, of the ranks that gave it, ordered by key and then by rank here.

        All members call it. A rank with color None takes part in none, and gets None. ValueError for what is no int64;
        ResourceError, on all that would be members, where one of them has no room.
        """
        try:
            mine = [color is not None, 0 if color is None else operator.index(color), operator.index(key)]
            with stream(None):  # the host reads what is gathered
                # whatever algorithm is fixed for the program
                said = self.all_gather(np.array([mine], np.int64), algorithm="direct")
        except (TypeError, OverflowError):
            raise ValueError(f"split: expected whole numbers below 2**63, found color {color!r}, key {key!r}") from None
        return None if color is None else self._made(groups.members_of_color(said, self._rank))

    def subgroup(self, ranks: Sequence[int]) -> "Communicator | None":
        """A communicator of these ranks, in the order given. Only they take part; others get None at once.

        ValueError unless they are different ranks of this communicator. Members must give the same ranks in the same
        order: others wait for each other in vain, and CollectiveTimeout ends this communicator. ResourceError as split.
        """
        members = groups.check_ranks("subgroup", ranks, self._size)
        return self._made(members) if self._rank in members else None

    def dup(self) -> "Communicator":
        """A communicator of the same ranks whose traffic has nothing to do with this one's. All members call it."""
        made = self._made(list(range(self._size)))
        made.topology = self.topology
        return made

    def cartesian(self, dims: Mapping[str, int], periodic: Collection[str] = ()) -> "Communicator":
        """A communicator of the same ranks, arranged in a grid: its `topology`. All members call it.

        dims: axis -> size, the last axis varying fastest; periodic: axes whose ends meet. ValueError unless the sizes
        multiply to the number of ranks.
        """
        grid = Cartesian(dims, periodic)
        grid.check_size(self._size)
        made = self._made(list(range(self._size)))
        made.topology = grid
        return made

    def _made(self, members: list[int]) -> "Communicator":
        place, timeout = members.index(self._rank), self._default.timeout
        group = tuple(self.group[member] for member in members)
        with groups.endpoints(self.context._core, self._usable(), members, self._rank, timeout) as endpoints:
            made = Communicator(self.context, group, place, endpoints)
        made._policy, made._default, made._settings = self._policy, self._default, dict(self._settings)
        return made

    # Life ------------------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Gives up: every rank's present or next call raises PeerAborted with this rank and reason."""
        if not isinstance(reason, str):
            raise TypeError(f"abort: expected a reason as text, found {reason!r}")
        self._abort(reason)

    def _abort(self, reason: str, only_later: bool = False) -> None:
        """As abort; only_later: others can still end calls that this rank is done with."""
        self._usable().abort(reason.encode(errors="replace").decode(), only_later)

    def _finish(self) -> None:
        """The first half of close(): waits for what was launched or begun, and tells the others that it was all."""
        if self._core is not None:
            self._core.finish()

    def close(self) -> None:
        """Waits for what was launched or begun and leaves; the others can go on without this rank only to close.

        May be called again. Raises what another rank has reported and this one had not noticed yet.
        """
        core, self._core = self._core, None
        if core is None:
            return
        try:
            _core.forget_calls(self)  # from here on a call finds no core, in this thread and in others
            self.context._communicators.discard(self)
        finally:
            try:
                core.close()
            finally:
                self._works.clear()
                self._plans.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(error)

    @property
    def statistics(self) -> dict[str, Any]:
        """What was done so far: "calls", "seconds" (wall time inside collectives), "algorithms" (calls by name)."""
        algorithms: dict[str, int] = {}
        for (algorithm, name, _, _), prepared in self._plans.items():
            if prepared.num_calls:
                key = f"{algorithm.collective}:{name}"
                algorithms[key] = algorithms.get(key, 0) + prepared.num_calls
        return {"calls": sum(algorithms.values()), "seconds": self._usable().busy_seconds, "algorithms": algorithms}

    def __repr__(self) -> str:
        return f"<hocket.Communicator rank {self._rank} of {self._size}{' (closed)' if self._core is None else ''}>"

    def _usable(self) -> Any:
        if self._core is None:
            raise CommunicationError(f"rank {self._rank}: the communicator is closed; make a new one")
        return self._core

    def _end(self, error: BaseException | None) -> None:
        """Closes; if because of an exception, tells the others so, and does not hide it behind another one."""
        if self._core is None:
            return
        if error is None:
            self.close()
            return
        with contextlib.suppress(CommunicationError):
            try:
                self.abort(f"{type(error).__name__}: {error}")
            finally:
                self.close()

    def __del__(self) -> None:
        # The core's own end would wait for the peers with the interpreter locked, and without hearing Ctrl-C.
        if getattr(self, "_core", None) is not None:
            try:
                self.close()
            except Exception as failure:  # nobody can catch it here
                print(f"hocket: {failure}", file=sys.stderr)


def _serving(algorithm: str) -> set[str]:
    """The collectives that have an algorithm of this name, all of them for ""; ValueError if there is none."""
    if not algorithm:
        return set(COLLECTIVES)
    serving = {one.collective for one in find_algorithms(algorithm)}
    for collective in serving:
        find(collective, algorithm)  # as a call does: one of a file has to be named where it has several
    return serving


def _forget_calls() -> None:
    """A name has come to mean another algorithm, so what calls have come to by it is not used again."""
    for reference in _known.valuerefs():
        communicator = reference()
        if communicator is not None:
            _core.forget_calls(communicator)


registry.on_replaced.append(_forget_calls)


def abort_threads(cancel: threading.Event, reason: str) -> bool:
    """Aborts what ranks that share `cancel` have open, called by none of them; False where nothing is."""
    known = [communicator for reference in _known.valuerefs() if (communicator := reference()) is not None]
    communicators = [communicator for communicator in known if communicator.context._cancel is cancel]
    for communicator in communicators:
        with contextlib.suppress(CommunicationError):  # its rank has just closed it
            communicator.abort(reason)
    return bool(communicators)


@at_process_end
def _close_all(error: BaseException | None) -> None:
    """An uncaught exception is told to the others as the reason."""
    if error is None:
        for context in list(_contexts):
            context._finish()
    for context in list(_contexts):
        try:
            context._end(error)
        except Exception as failure:  # one that cannot be closed must not keep the others open
            print(f"hocket: {failure}", file=sys.stderr)
