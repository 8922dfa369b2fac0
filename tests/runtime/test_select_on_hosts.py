"""Which algorithm runs among ranks on several hosts, and what it carries between them."""

import itertools
import math

import numpy as np
import pytest

import hocket
from hocket.algorithms import ALGORITHMS, groups_by_host
from hocket.runtime import Policy, Rule, choose
from hocket.runtime.choice.select import HOSTS, ORDERS, choose_by, required_label
from hocket.schedule import COLLECTIVES, Schedule, find_collective

PAIRS, FOURS = (0, 0, 1, 1), (0,) * 4 + (1,) * 4
IN_TURN, UNEVEN = (0, 1, 0, 1), (0, 0, 0, 1)
EIGHT_OF_EIGHT = tuple(rank // 8 for rank in range(64))
LAYOUTS = [PAIRS, FOURS, IN_TURN, UNEVEN, (0, 1), (0, 1, 2), (0, 1, 1, 0, 2, 1), EIGHT_OF_EIGHT]
LONG = 64 << 20


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads no tuner file of the working directory."""
    monkeypatch.chdir(tmp_path)


def on(hosts: tuple[int, ...], policy: Policy | None = None) -> Policy:
    return (policy or Policy()).on_hosts(hosts)


def chosen(collective: str, hosts: tuple[int, ...], num_bytes: int, order: str = "fast") -> str:
    return choose(collective, len(hosts), num_bytes, order, on(hosts))


def schedule_of(collective: str, name: str, hosts: tuple[int, ...], root: int = 0) -> Schedule:
    one = ALGORITHMS[collective, name]
    return one.build(len(hosts), root, groups=on(hosts).groups_for(one))


def leaving(schedule: Schedule, hosts: tuple[int, ...]) -> np.ndarray:
    """Returns what each host sends to others, in units of the whole vector."""
    host, sent = np.array(hosts), np.zeros(max(hosts) + 1)
    for step in schedule.steps():
        out = host[step.src] != host[step.dst]
        np.add.at(sent, host[step.src[out]], step.count[out] / schedule.vector_chunks)
    return sent


def delays(schedule: Schedule, hosts: tuple[int, ...]) -> int:
    """Returns the number of steps that carry anything between hosts."""
    host = np.array(hosts)
    return sum(bool((host[step.src] != host[step.dst]).any()) for step in schedule.steps())


# --- what is chosen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [PAIRS, FOURS, IN_TURN, UNEVEN, (0, 1, 2)])
def test_a_short_all_reduce_takes_one_delay_between_hosts(hosts: tuple[int, ...]) -> None:
    for collective in ("all_reduce", "barrier"):
        name = chosen(collective, hosts, 8)
        assert name == "hierarchical_leaders"
        schedule = schedule_of(collective, name, hosts)
        assert delays(schedule, hosts) == 1
        assert leaving(schedule, hosts) == pytest.approx(max(hosts)), "one message to each other host"


@pytest.mark.parametrize(
    ("hosts", "of_flat_ring"), [(PAIRS, 1.5), (FOURS, 1.75), (UNEVEN, 1.5), (IN_TURN, 3), (EIGHT_OF_EIGHT, 63 / 56)]
)
def test_a_long_all_reduce_carries_what_the_cut_needs(hosts: tuple[int, ...], of_flat_ring: float) -> None:
    """Of G hosts, each sends 2 (G - 1) / G of the vector; a ring in the order of ranks sends more."""
    num_hosts = max(hosts) + 1
    schedule = schedule_of("all_reduce", chosen("all_reduce", hosts, LONG), hosts)
    assert leaving(schedule, hosts) == pytest.approx(2 * (num_hosts - 1) / num_hosts)
    ring = leaving(schedule_of("all_reduce", "ring", hosts), hosts).max()
    assert ring / leaving(schedule, hosts).max() == pytest.approx(of_flat_ring)


@pytest.mark.parametrize("hosts", LAYOUTS)
@pytest.mark.parametrize("num_bytes", [8, 16 << 10, LONG])
def test_every_block_crosses_once(hosts: tuple[int, ...], num_bytes: int) -> None:
    sizes = np.bincount(hosts)
    p = len(hosts)
    for collective, expected in (
        ("all_gather", sizes * max(hosts) / p),
        ("all_gather_v", sizes * max(hosts) / p),
        ("reduce_scatter", (p - sizes) / p),
        ("reduce_scatter_v", (p - sizes) / p),
        ("gather", np.where(np.arange(len(sizes)) == 0, 0, sizes / p)),
        ("scatter", np.where(np.arange(len(sizes)) == 0, 1 - sizes[0] / p, 0)),
    ):
        schedule = schedule_of(collective, chosen(collective, hosts, num_bytes), hosts)
        assert leaving(schedule, hosts) == pytest.approx(expected), collective


def test_one_vector_for_all_leaves_each_host_once_when_it_is_long() -> None:
    hosts = (0, 0, 1, 1, 2, 2, 3, 3)
    for collective in ("broadcast", "reduce"):
        long, short = (schedule_of(collective, chosen(collective, hosts, size), hosts) for size in (LONG, 8))
        assert leaving(long, hosts).max() == 1 and leaving(long, hosts).sum() == 3
        assert delays(short, hosts) == 1 and delays(long, hosts) == 3


def test_short_blocks_for_all_cross_in_few_messages() -> None:
    def messages(num_bytes: int) -> int:
        schedule = schedule_of("all_to_all", chosen("all_to_all", FOURS, num_bytes), FOURS)
        pairs = {pair for step in schedule.steps() for pair in zip(step.src.tolist(), step.dst.tolist(), strict=True)}
        return sum(FOURS[source] != FOURS[target] for source, target in pairs)

    assert (messages(8 << 10), messages(LONG)) == (8, 32)


@pytest.mark.parametrize("hosts", LAYOUTS)
def test_what_is_chosen_holds_the_law_in_every_order(hosts: tuple[int, ...]) -> None:
    p, known = len(hosts), set[tuple[str, str]]()
    for collective, order, num_bytes in itertools.product(COLLECTIVES, ORDERS, (0, 4 << 10, 32 << 10, LONG)):
        name, kind = chosen(collective, hosts, num_bytes, order), find_collective(collective)
        label = required_label(order) if kind.counts_contributions else None
        if (collective, name, label) in known:
            continue
        known.add((collective, name, label))
        one = ALGORITHMS[collective, name]
        for root in {0, p - 1} if kind.rooted else {0}:
            certificate = one.verify(p, root, groups=on(hosts).groups_for(one))
            assert label is None or label in certificate.labels, (collective, name, order)


def test_among_64_ranks_on_8_hosts_no_schedule_is_larger_than_a_flat_one() -> None:
    """So that the proof, which counts rows, takes no longer."""
    for collective in HOSTS["fast"]:
        flat = ALGORITHMS["all_reduce", "direct_two_shot"].build(64).num_rows
        for num_bytes in (8, 32 << 10, LONG):
            schedule = schedule_of(collective, chosen(collective, EIGHT_OF_EIGHT, num_bytes), EIGHT_OF_EIGHT)
            assert schedule.num_rows <= 1.1 * flat, collective


# --- orders --------------------------------------------------------------------------------------------------------


def test_the_balanced_tree_carries_as_little_where_hosts_have_a_power_of_two() -> None:
    for hosts in (PAIRS, FOURS):
        name = chosen("all_reduce", hosts, LONG, "invariant")
        assert leaving(schedule_of("all_reduce", name, hosts), hosts) == pytest.approx(1)


def test_a_fold_in_rank_order_sends_sums_to_each_host_once_if_ranks_of_hosts_follow_each_other() -> None:
    assert chosen("all_reduce", FOURS, LONG, "rank") == "hierarchical_gather"
    carried = [
        leaving(schedule_of("all_reduce", name, FOURS), FOURS).max()
        for name in ("hierarchical_gather", "direct_two_shot")
    ]
    assert carried == pytest.approx([2.5, 4])
    assert chosen("all_reduce", IN_TURN, LONG, "rank") == "direct_two_shot", "nothing else has the label"


# --- what else decides ---------------------------------------------------------------------------------------------


def test_on_one_host_nothing_changes_whatever_its_number() -> None:
    assert on((7, 7, 7)) == Policy() and on((7, 7, 7)).num_hosts == 1
    assert chosen("all_reduce", (7, 7, 7), LONG) == choose("all_reduce", 3, LONG)


def test_numbers_of_hosts_do_not_matter_but_who_shares_one() -> None:
    assert on((5, 5, 2, 2)) == on(PAIRS) != on(IN_TURN)
    assert hash(on((5, 5, 2, 2))) == hash(on(PAIRS))
    assert on(PAIRS, on(IN_TURN)) == on(PAIRS), "for a communicator made from another one"


def test_groups_are_the_ranks_of_each_host() -> None:
    assert [groups_by_host(hosts) for hosts in (PAIRS, UNEVEN, (0, 1, 2))] == [(2, 2), (3, 1), (1, 1, 1)]
    assert groups_by_host(IN_TURN) == ((0, 2), (1, 3))
    assert on(PAIRS).groups_for(ALGORITHMS["all_reduce", "ring"]) is None, "which takes none"
    assert Policy().groups_for(ALGORITHMS["all_reduce", "hierarchical"]) is None, "its own default"


def test_hosts_of_very_different_sizes_do_not_shred_the_vector() -> None:
    sizes = (13, 11, 8)
    hosts = tuple(host for host, size in enumerate(sizes) for _ in range(size))
    assert math.lcm(*sizes) > 1000
    assert chosen("all_reduce", hosts, LONG) == "ring"
    assert chosen("all_reduce", hosts, 8) == "hierarchical_leaders"


def test_rules_for_a_number_of_hosts_apply_there_only() -> None:
    policy = Policy((Rule("all_reduce", 0, -1, "ring", num_nodes=2), Rule("all_reduce", 0, -1, "tree", num_nodes=1)))
    names = [choose("all_reduce", 4, 8, "fast", on(hosts, policy)) for hosts in (PAIRS, (0, 0, 0, 0), (0, 1, 2, 2))]
    assert names == ["ring", "tree", "hierarchical_leaders"]
    assert choose_by("all_reduce", 4, 8, "fast", on(PAIRS, policy)) == ("ring", "tuner file")
    assert choose_by("all_reduce", 4, 8, "fast", on((0, 1, 2, 2), policy)) == ("hierarchical_leaders", "table")


def test_what_may_run_is_limited_on_hosts_too() -> None:
    policy = Policy.from_environment({"HOCKET_ALGO": "ring,hierarchical"})
    assert choose("all_reduce", 4, 8, "fast", on(PAIRS, policy)) == "ring"
    without = Policy.from_environment({"HOCKET_ALGO": "^hierarchical_leaders"})
    assert choose_by("all_reduce", 4, 8, "fast", on(PAIRS, without)) == ("direct", "HOCKET_ALGO")


def test_a_policy_with_hosts_is_equal_after_its_journey() -> None:
    assert Policy.decode(on(IN_TURN).encode()) == on(IN_TURN)


# --- what ranks do -------------------------------------------------------------------------------------------------


def place(comm: hocket.Communicator, hosts: tuple[int, ...]) -> None:
    """Lets the communicator of all ranks believe that they are on these hosts."""
    comm.context.hosts = hosts
    comm._apply(comm._policy)


def everything(hosts: tuple[int, ...], length: int) -> list[str]:
    """Calls each collective once on this rank, and returns the algorithms that ran."""
    p = len(hosts)
    vectors = np.random.default_rng(0).integers(-9, 9, (p, p * length)).astype("f4")
    total = vectors.sum(0)
    with hocket.init() as comm:
        place(comm, hosts)
        mine, share = vectors[comm.rank], slice(comm.rank * length, (comm.rank + 1) * length)
        root = p - 1
        assert (comm.all_reduce(mine.copy()) == total).all()
        assert (comm.reduce_scatter(mine) == total[share]).all()
        diagonal = np.concatenate([one[rank * length :][:length] for rank, one in enumerate(vectors)])
        assert (comm.all_gather(mine[share]) == diagonal).all()
        assert (comm.broadcast(mine.copy(), root=root) == vectors[root]).all()
        reduced, gathered = comm.reduce(mine.copy(), root=root), comm.gather(mine[share], root=root)
        assert comm.rank != root or ((reduced == total).all() and (gathered == diagonal).all())
        part = comm.scatter(mine if comm.rank == root else None, root=root, out=mine[share].copy())
        assert (part == vectors[root][share]).all()
        assert (comm.all_to_all(mine) == np.concatenate([one[share] for one in vectors])).all()
        comm.barrier()
        return sorted(comm.statistics["algorithms"])


@pytest.mark.parametrize("hosts", [PAIRS, IN_TURN, UNEVEN])
@pytest.mark.parametrize("length", [2, 20_000])
def test_ranks_that_are_told_their_hosts_get_the_same_sums(hosts: tuple[int, ...], length: int) -> None:
    ran = hocket.run_ranks(everything, 4, args=(hosts, length), kind="thread")
    assert ran == [ran[0]] * 4
    hierarchical = {name for name in ran[0] if "hierarchical" in name}
    assert "all_reduce:hierarchical_leaders" in hierarchical or "all_reduce:hierarchical_direct" in hierarchical
    assert len(hierarchical) >= 6


def parts() -> list[list[str]]:
    with hocket.init() as comm:
        place(comm, FOURS[2:6])
        by_host, across, again = comm.split(comm.rank // 2), comm.split(comm.rank % 2), comm.dup()
        assert by_host is not None and across is not None
        for one in (by_host, across, again):
            one.all_reduce(np.ones(4, "f4"))
        again.all_reduce(np.ones(4, "f4"), algorithm="hierarchical")
        return [sorted(one.statistics["algorithms"]) for one in (by_host, across, again)]


def test_a_communicator_knows_the_hosts_of_its_own_ranks() -> None:
    inside = ["all_reduce:direct"]
    across, again = ["all_reduce:hierarchical_leaders"], ["all_reduce:hierarchical", "all_reduce:hierarchical_leaders"]
    assert hocket.run_ranks(parts, 4, kind="thread") == [[inside, across, again]] * 4


def refused() -> str:
    with hocket.init() as comm:
        place(comm, IN_TURN)
        with pytest.raises(ValueError, match="'hierarchical_gather' does not with 4 ranks on 2 hosts") as caught:
            comm.all_reduce(np.ones(4, "f4"), algorithm="hierarchical_gather", order="rank")
        return str(caught.value)


def test_an_algorithm_that_loses_the_order_on_these_hosts_is_refused_and_not_suggested() -> None:
    (text, *_) = hocket.run_ranks(refused, 4, kind="thread")
    assert text.endswith("take one of direct, direct_two_shot, knomial, parameter_server")
