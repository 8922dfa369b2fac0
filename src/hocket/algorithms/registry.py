"""Algorithms by collective and name: what each of them promises, and how to get its schedule.

An algorithm is a function that writes one schedule for a rank count and root, or a composition of algorithms. Its
promises (`steps`, `sent`, `labels`) are data, and `verify` checks them.
"""

import contextlib
import functools
import operator
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from hocket.algorithms.layout import Constraint, GroupsOfRanks, Layout, Parameter, partition, ranks_in_order
from hocket.algorithms.promise import Formula, Promise, parse
from hocket.algorithms.user_code import (
    blamed_on,
    check_arguments,
    default_partition,
    number,
    whole_number,
)
from hocket.errors import ScheduleError, VerifyError, did_you_mean, name_count
from hocket.schedule import COLLECTIVES, Builder, Certificate, Declared, Schedule, compose, find_collective, verify

_CACHED_SCHEDULES = 64
_MOST_DRAWN = 64  # ranks; `hocket show` lists the steps of more

_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")


@dataclass(frozen=True, eq=False, repr=False)
class Algorithm:
    """How to do a collective, for any rank count that `ranks` allows, and any root.

    `produce(layout)` makes a schedule; use `build`, which checks its arguments and remembers. `source` is "file:line".
    Promises are None for a composition that has not been registered. `groups` and `dims` give the default of a
    parameter by the rank count; None if the algorithm does not take it. `composed` says how it is composed.
    """

    collective: str
    name: str
    doc: str
    source: str
    produce: Callable[[Layout], Schedule]
    write: Callable[[Builder], None] | None = None
    chunks: Parameter | None = None
    steps: Parameter | None = None
    sent: Parameter | None = None
    labels: frozenset[str] = frozenset()
    ranks: Constraint | None = None
    groups: Parameter | None = None
    dims: Parameter | None = None
    composed: str = ""
    _build: Callable[[Layout], Schedule] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_build", functools.lru_cache(_CACHED_SCHEDULES)(self.produce))

    def __call__(self, schedule: Builder) -> None:
        """Write all steps of this algorithm into a schedule that is being written."""
        if self.write is not None:
            self.write(schedule)
        else:
            parameters = {name: getattr(schedule, name) for name in ("groups", "dims") if getattr(self, name)}
            schedule.include(self.build(schedule.num_ranks, schedule.root, **parameters))

    def build(
        self,
        num_ranks: int,
        root: int = 0,
        *,
        groups: GroupsOfRanks | None = None,
        dims: Sequence[int] | None = None,
    ) -> Schedule:
        """The schedule for this many ranks. It is remembered, so a second call costs little.

        groups: the sizes of groups of consecutive ranks, or the ranks of each group; dims: the lengths of a grid of all
        ranks, the last one fastest. Give them only to an algorithm that takes them; it has a default. ValueError if
        there is no such schedule; ScheduleError, with the line, if the program that writes it has a mistake.
        """
        layout = self.layout(num_ranks, root, groups=groups, dims=dims)
        try:
            with self._in_its_code(num_ranks):
                made = self._build(replace(layout, order=None))
                return made if layout.order is None else compose.on(made, layout.order, layout.num_ranks)
        except ScheduleError as error:
            named = str(layout)
            if named not in str(error):
                error.args = (f"{error.args[0]}{named}",)
            raise

    def layout(
        self,
        num_ranks: int,
        root: int = 0,
        *,
        groups: GroupsOfRanks | None = None,
        dims: Sequence[int] | None = None,
    ) -> Layout:
        """What the program is told about the ranks, checked, with the algorithm's defaults."""
        try:
            num_ranks, root = operator.index(num_ranks), operator.index(root)
        except TypeError:
            raise TypeError(f"{self}: expected num_ranks and root as ints, found {num_ranks!r} and {root!r}") from None
        if num_ranks < 1:
            raise ValueError(f"{self}: expected at least 1 rank, found {num_ranks}")
        if self.ranks is not None and not self.allows(num_ranks):
            other = f"; {self.ranks[2]} takes any number" if len(self.ranks) > 2 else ""
            raise ValueError(f"{self}: expected {self.ranks[0]} ranks, found {num_ranks}{other}")
        if not 0 <= root < num_ranks:
            raise ValueError(f"{self}: expected a root from 0 to {num_ranks - 1}, found {root}")
        told: dict[str, tuple[int, ...]] = {}
        order: tuple[int, ...] | None = None
        for name, default, given in (("groups", self.groups, groups), ("dims", self.dims, dims)):
            if default is None and given is not None:
                raise ValueError(f"{self}: expected no {name}, which it does not take; found {given}")
            if given is not None:
                expected = f"{self}: expected {name}"
                if name == "groups":
                    given, order = ranks_in_order(expected, given, num_ranks)
                told[name] = partition(expected, name, given, num_ranks)
            elif default is not None:
                with self._in_its_code(num_ranks):
                    told[name] = default_partition(name, default(num_ranks), num_ranks)
        root = 0 if not find_collective(self.collective).rooted else root if order is None else order.index(root)
        return Layout(num_ranks, root, **told, order=order)

    def allows(self, num_ranks: int) -> bool:
        """Whether there is a schedule for this many ranks."""
        if num_ranks < 1 or self.ranks is None:
            return num_ranks >= 1
        with self._in_its_code(num_ranks):
            return bool(self.ranks[1](num_ranks))

    def declared(
        self,
        num_ranks: int,
        root: int = 0,
        *,
        groups: GroupsOfRanks | None = None,
        dims: Sequence[int] | None = None,
    ) -> Declared:
        """The promises for these arguments of build."""
        layout = self.layout(num_ranks, root, groups=groups, dims=dims)
        with self._in_its_code(num_ranks):
            steps = None if self.steps is None else whole_number("steps", layout.call(self.steps))
            sent = None if self.sent is None else number("sent", layout.call(self.sent))
        return Declared(steps, sent, self.labels_in(layout))

    def labels_in(self, layout: Layout) -> frozenset[str]:
        """The promised labels that hold for this layout: in another order of ranks, none that is about rank numbers."""
        return self.labels if layout.order is None else self.labels - {"rank_order", "balanced_tree"}

    def verify(
        self,
        num_ranks: int,
        root: int = 0,
        *,
        groups: GroupsOfRanks | None = None,
        dims: Sequence[int] | None = None,
        **options: Any,
    ) -> Certificate:
        """Prove the schedule for these arguments of build, promises included; VerifyError if it breaks a law.

        Options are those of schedule.verify.verify.
        """
        declared = self.declared(num_ranks, root, groups=groups, dims=dims)
        return self.prove(self.build(num_ranks, root, groups=groups, dims=dims), declared, **options)

    def prove(self, schedule: Schedule, declared: Declared, **options: Any) -> Certificate:
        """Check one of its schedules against the laws and its promises; VerifyError, with the line at fault."""
        try:
            return verify(schedule, declared=declared, **options)
        except VerifyError as error:
            site = "" if error.step is None else schedule.site(error.step)
            # If a user's algorithm uses a built-in one, a wrong step of that one is the fault of its use.
            known = site and (not is_built_in(site) or is_built_in(self.source))
            error.locate(site if known else self.source)
            if self.composed:
                error.args = (f"{error.args[0]}; in {self.composed}",)
            if error.law == 2 and (command := self._command_that_draws(schedule)):
                error.suggest(f"`{command}` draws where")
            error.add_note(f"in the schedule of {self} for {schedule.num_ranks} ranks, root {schedule.root}")
            raise

    def _command_that_draws(self, schedule: Schedule) -> str:
        """The `hocket show` command for one of its schedules; "" if there is none, or if it would be a list."""
        file = self.source.rpartition(":")[0]
        if ALGORITHMS.get((self.collective, self.name)) is not self or not file.endswith(".py"):
            return ""
        with contextlib.suppress(ScheduleError, ValueError):  # a default layout that does not exist
            if (
                schedule.num_ranks > _MOST_DRAWN
                or self.build(schedule.num_ranks, schedule.root).digest != schedule.digest
            ):
                return ""
            several = sum(name == self.name for _, name in ALGORITHMS) > 1
            collective = f" --collective {self.collective}" if several else ""
            root = f" --root {schedule.root}" if schedule.root else ""
            return f"hocket show {shlex.quote(f'{file}:{self.name}')} -n {schedule.num_ranks}{root}{collective}"
        return ""

    def then(self, other: "Algorithm", *, collective: str | None = None) -> "Algorithm":
        """This algorithm, then the other one: compose.then for every rank count and root."""
        result = compose.collective_of_then(self.collective, _collective_of("then", other), collective)
        return _composed(
            result,
            f"{self.name}.then({other.name})",
            lambda first, second: compose.then(first, second, collective=collective),
            self,
            other,
        )

    def beside(self, other: "Algorithm", *, collective: str | None = None) -> "Algorithm":
        """Both algorithms at once: compose.beside for every rank count and root."""
        result = compose.collective_of_beside(self.collective, _collective_of("beside", other), collective)
        return _composed(
            result,
            f"{self.name}.beside({other.name})",
            lambda first, second: compose.beside(first, second, collective=collective),
            self,
            other,
        )

    def refine(self, chunks: int) -> "Algorithm":
        """This algorithm with every chunk cut in `chunks`: compose.refine."""
        name = f"{self.name}.refine({chunks})"
        return _composed(self.collective, name, lambda made: compose.refine(made, chunks), self)

    def reversed(self) -> "Algorithm":
        """This algorithm run backwards: compose.reversed."""
        result = compose.collective_of_reversed(self.collective)
        return _composed(result, f"{self.name}.reversed()", compose.reversed, self)

    def taken(self, groups: GroupsOfRanks | None = None, dims: Sequence[int] | None = None) -> dict[str, Any]:
        """Those of these groups and dims that this algorithm takes, as arguments of build; the others are None."""
        return {"groups": groups if self.groups else None, "dims": dims if self.dims else None}

    def _made(self, layout: Layout) -> Schedule:
        """The schedule for a layout that a composition was given."""
        return self.build(layout.num_ranks, layout.root, **self.taken(layout.groups, layout.dims))

    def __str__(self) -> str:
        return f"{self.collective} {self.name} ({self.source})"

    def __repr__(self) -> str:
        return f"<Algorithm: {self}>"

    def _in_its_code(self, num_ranks: int) -> AbstractContextManager[None]:
        what = f" ({self.name}, {name_count(num_ranks, 'rank')})"
        return blamed_on(self.source.rpartition(":")[0], self.source, what)


REGISTERED: dict[tuple[str, str], Algorithm] = {}  # only this file and loading.py change it
ALGORITHMS: Mapping[tuple[str, str], Algorithm] = MappingProxyType(REGISTERED)
"""Every algorithm by (collective, name)."""

on_replaced: list[Callable[[], None]] = []
"""Functions to call when a name gets another algorithm, so that caches by name forget the old one."""


def _named_arguments(function: Callable[_Arguments, _Returned]) -> Callable[_Arguments, _Returned]:
    """The function, with a suggestion in the error for a keyword that it does not take."""
    code = function.__code__
    known = code.co_varnames[: code.co_kwonlyargcount]

    @functools.wraps(function)
    def checked(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Returned:
        for word in keywords:
            if word not in known:
                near, takes = did_you_mean(word, known), "=, ".join(known)
                raise TypeError(f"{function.__name__}: expected arguments {takes}=; found {word}={near}")
        return function(*arguments, **keywords)

    return checked


@_named_arguments
def algorithm(
    *collectives: str,
    name: str | None = None,
    chunks: Promise | None = None,
    steps: Promise | None = None,
    sent: Promise | None = None,
    labels: tuple[str, ...] = (),
    ranks: Constraint | None = None,
    groups: Parameter | None = None,
    dims: Parameter | None = None,
    doc: str | None = None,
) -> Callable[[Callable[[Builder], None] | Algorithm], Algorithm]:
    """Register a function that writes a schedule, or a composition of algorithms, under (collective, name).

    Without a name, that of the function is taken; a composition needs one.
    One function may serve several collectives: it is registered for each, and the Algorithm for the first one is
    returned. A later definition replaces an earlier one with the same name, from the next call on, also in a
    communicator that has used the earlier one. Built-in algorithms cannot be replaced: ValueError. Any other wrong
    argument is a ScheduleError with the line.

    chunks (how many `data` is cut into; not for a composition), steps, and sent (the most that a rank sends, in units
    of the whole vector, for all_to_all of what one rank gives) are formulas such as "2 * (P - 1)" (see promise.py), or
    functions of the rank count p, and of root, groups and dims if they have parameters with these names. labels are
    those labels of the certificate that must hold for every rank count. ranks is ("an even number of", predicate) if
    not every rank count is allowed; the name of an algorithm that takes any number may follow. An algorithm that works
    with groups or with a grid has groups= or dims=, functions of p that give the default: sizes of groups of
    consecutive ranks, or lengths of the grid, the last one fastest.
    """
    caller = sys._getframe(2)  # the one of the call, behind _named_arguments
    source = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    for collective in collectives:
        find_collective(collective)
    if not collectives:
        raise ScheduleError(f"{source}: expected a collective, one of {', '.join(COLLECTIVES)}; found none")
    formulas = {"chunks": chunks, "steps": steps, "sent": sent}
    promises = {key: parse(key, one, source) if isinstance(one, str) else one for key, one in formulas.items()}
    check_arguments(source, {"name": name, "doc": doc}, promises, {"groups": groups, "dims": dims}, labels, ranks)

    def register(program: Callable[[Builder], None] | Algorithm) -> Algorithm:
        if not (isinstance(program, Algorithm) or callable(program)):
            raise ScheduleError(
                f"{source}: expected a function that writes a schedule, or a composition of algorithms; found "
                f"{program!r}"
            )
        called = name or getattr(program, "__name__", None)
        if called in (None, "<lambda>"):
            raise ScheduleError(f"{source}: expected name=, because {program} has no name of its own; found none")
        made = [
            replace(
                one,
                name=called,
                doc=doc or one.doc,
                source=source,
                chunks=promises["chunks"],
                steps=promises["steps"],
                sent=promises["sent"],
                labels=frozenset(labels),
                ranks=ranks or one.ranks,
                groups=groups or one.groups,
                dims=dims or one.dims,
            )
            for one in (_made_of(program, collective, called, promises["chunks"], source) for collective in collectives)
        ]
        for one in made:
            _check_needs(one)
            before = ALGORITHMS.get((one.collective, called))
            if before is not None and is_built_in(before.source):
                raise ValueError(f"{one}: {before} is built in; choose another name")
        add_algorithms(*made)
        return made[0]

    return register


def _made_of(
    program: Callable[[Builder], None] | Algorithm, collective: str, name: str, chunks: Parameter | None, source: str
) -> Algorithm:
    """The algorithm for one collective, from a function that writes its schedule or from a composition for it."""
    if isinstance(program, Algorithm):
        if program.collective != collective:
            raise ScheduleError(f"{source}: expected a composition for {collective}, found {program}")
        return program
    write, cut = program, chunks
    if cut is None:
        raise ScheduleError(f"{source}: expected chunks=, the number of chunks for p ranks; found none")

    def produce(layout: Layout) -> Schedule:
        chunks = whole_number("chunks", layout.call(cut))
        builder = Builder(collective, layout.num_ranks, chunks, layout.root, layout.groups, layout.dims)
        returned: object = write(builder)
        if returned is not None:  # Most often a generator, which a stray `yield` makes: it has not run.
            raise ScheduleError(f"expected a program that writes into schedule and returns nothing; found {returned!r}")
        return builder.finish()

    return Algorithm(collective, name, write.__doc__ or "", source, produce, write)


def _check_needs(one: Algorithm) -> None:
    """ScheduleError if a formula uses groups or a grid that the algorithm does not take."""
    for name in ("chunks", "steps", "sent"):
        promise = getattr(one, name)
        for needed in sorted(promise.needs) if isinstance(promise, Formula) else ():
            if getattr(one, needed) is None:
                raise ScheduleError(
                    f"{one.source}: expected {needed}=, which {name}={promise.text!r} needs; found none"
                )


def add_algorithms(*made: Algorithm) -> None:
    """Register each under its name as it is, in the place of an earlier one with this name."""
    is_replacing = any((one.collective, one.name) in ALGORITHMS for one in made)
    REGISTERED.update({(one.collective, one.name): one for one in made})
    if is_replacing:
        tell_replaced()


def tell_replaced() -> None:
    """Call the functions of on_replaced."""
    for forget in on_replaced:
        forget()


def _composed(collective: str, name: str, operate: Callable[..., Schedule], *parts: Algorithm) -> Algorithm:
    def produce(layout: Layout) -> Schedule:
        made = [part._made(layout) for part in parts]
        try:
            return operate(*made)
        except ScheduleError as error:
            raise ScheduleError(f"{error}; in {name}") from None

    groups = next((part.groups for part in parts if part.groups), None)
    dims = next((part.dims for part in parts if part.dims), None)
    ranks = functools.reduce(_both, (part.ranks for part in parts))
    return Algorithm(collective, name, "", "composed", produce, composed=name, ranks=ranks, groups=groups, dims=dims)


def check_taken(collective: str, asked: Sequence[Algorithm], **given: Sequence[int] | None) -> None:
    """ValueError if groups or dims are given, and none of the algorithms that are asked for takes them."""
    for name, value in given.items():
        if value is not None and not any(getattr(one, name) for one in asked):
            able = [one.name for one in ALGORITHMS.values() if one.collective == collective and getattr(one, name)]
            if not able:
                raise ValueError(f"{name}: no algorithm of {collective} takes them; leave them out")
            raise ValueError(
                f"{name}: expected an algorithm of {collective} that takes them, one of {', '.join(able)}; "
                f"found {', '.join(one.name for one in asked) or 'no algorithm'}"
            )


def _collective_of(method: str, other: Algorithm) -> str:
    if not isinstance(other, Algorithm):
        raise TypeError(
            f"{method}: expected an algorithm, such as hocket.algorithms(collective)[name]; found {other!r}"
        )
    return other.collective


def _both(left: Constraint | None, right: Constraint | None) -> Constraint | None:
    if left is None or right is None or left == right:
        return left or right
    return f"{left[0]} and {right[0]}", lambda p: left[1](p) and right[1](p)


def is_built_in(place: str) -> bool:
    """Whether this "file:line" is a part of Hocket."""
    return Path(place.rpartition(":")[0]).is_relative_to(Path(__file__).parent)
