"""Which algorithm runs: the table, HOCKET_ALGO, rules, and the requested order."""

import itertools
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.algorithms import ALGORITHMS, algorithm
from hocket.errors import ScheduleError
from hocket.runtime import Policy, Rule, choose
from hocket.runtime.choice.select import DEFAULTS, ORDERS, SHARED, choose_by, defaults, has_label, required_label
from hocket.runtime.rendezvous import hello
from hocket.schedule import COLLECTIVES, Builder

REDUCING = [one.name for one in COLLECTIVES.values() if one.counts_contributions]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads no tuner file of the working directory."""
    monkeypatch.chdir(tmp_path)


def heeding(text: str) -> Policy:
    return Policy.from_environment({"HOCKET_ALGO": text})


# --- the table -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares_cores", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_the_table_has_every_collective_rank_count_and_size(order: str, shares_cores: bool) -> None:
    table, policy = defaults(order, shares_cores=shares_cores), Policy(shares_cores=shares_cores)
    assert set(table) == set(COLLECTIVES)
    for collective, lines in table.items():
        assert lines[-1][:2] == (math.inf, math.inf), collective
        assert all((collective, name) in ALGORITHMS for _, _, name in lines)
        for p, num_bytes in itertools.product((1, 2, 3, 8, 64, 1000), (0, 1, 2**12, 2**12 + 1, 2**20, 2**40)):
            assert ALGORITHMS[collective, choose(collective, p, num_bytes, order, policy)].allows(p)


@pytest.mark.parametrize("shares_cores", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("collective", REDUCING)
def test_what_the_table_chooses_has_the_label(collective: str, order: str, shares_cores: bool) -> None:
    for p in (1, 2, 3, 4, 5, 7, 8, 16, 33):
        for max_ranks, _, name in defaults(order, shares_cores=shares_cores)[collective]:
            assert p > max_ranks or has_label(collective, name, p, order), (name, p)


@pytest.mark.parametrize("shares_cores", [False, True])
def test_the_first_row_that_covers_ranks_and_size_decides(shares_cores: bool) -> None:
    """The limits of a row are part of it."""
    policy = Policy(shares_cores=shares_cores)
    for collective, rows in defaults("fast", shares_cores=shares_cores).items():
        ranks, sizes = ([limit for limit in {row[at] for row in rows} if limit < math.inf] for at in (0, 1))
        for p in {2, 100, *ranks, *(limit + 1 for limit in ranks)}:
            for size in {0, 1 << 40, *sizes, *(limit + 1 for limit in sizes)}:
                expected = next(name for max_ranks, most, name in rows if p <= max_ranks and size <= most)
                assert choose(collective, int(p), int(size), "fast", policy) == expected, (collective, p, size)


@pytest.mark.parametrize("order", ["fast", "rank"])
def test_ranks_that_share_cores_have_rows_of_their_own(order: str) -> None:
    def chosen(p: int, *sizes: int, shares_cores: bool) -> list[str]:
        return [choose("all_reduce", p, size, order, Policy(shares_cores=shares_cores)) for size in sizes]

    for p in (3, 4):
        sizes = (0, 16 << 10, (16 << 10) + 1, 64 << 10, (64 << 10) + 1)
        expected = ["direct", "direct", "parameter_server", "parameter_server", "direct_two_shot"]
        assert chosen(p, *sizes, shares_cores=True) == expected
    for p in (5, 8):
        sizes = (0, 2 << 10, (2 << 10) + 1, 4 << 20, (4 << 20) + 1)
        assert chosen(p, *sizes, shares_cores=True) == expected
    for p in (3, 4, 5, 8):
        sizes = (0, 32 << 10, (32 << 10) + 1, 4 << 20)
        assert chosen(p, *sizes, shares_cores=False) == ["direct", "direct", "direct_two_shot", "direct_two_shot"]
    reduces = [
        choose("reduce", p, size, order, Policy(shares_cores=shares_cores))
        for shares_cores in (True, False)
        for p in (5, 8)
        for size in (0, 4 << 20)
    ]
    assert reduces == (["direct"] * 4 + ["binomial"] * 4 if order == "fast" else ["direct"] * 8)


def test_what_differs_where_cores_are_shared_is_in_the_table_of_the_order_anyhow() -> None:
    """Otherwise rows of "fast" would be used for an order that they do not keep."""
    assert set(SHARED) == set(DEFAULTS) == set(ORDERS)
    for order in ORDERS:
        assert set(SHARED[order]) <= set(DEFAULTS[order])


def test_the_table_decides_wherever_cores_are_shared() -> None:
    shared = Policy(shares_cores=True)
    assert choose_by("all_reduce", 8, 1 << 20, "fast", shared) == ("parameter_server", "table")
    assert choose_by("all_reduce", 8, 1 << 20, "fast", Policy()) == ("direct_two_shot", "table")
    rules = replace(shared, rules=(Rule("all_reduce", 0, -1, "direct_two_shot"),))
    assert choose_by("all_reduce", 8, 1 << 20, "fast", rules) == ("direct_two_shot", "tuner file")
    assert rules.table_alone() == shared
    algo = replace(heeding("^parameter_server"), shares_cores=True)
    assert choose_by("all_reduce", 8, 1 << 20, "fast", algo) == ("direct", "HOCKET_ALGO")
    assert choose_by("all_reduce", 8, 1 << 20, "fast", replace(algo, rules=rules.rules))[1] == "tuner file"


def test_collectives_that_reduce_nothing_do_not_care_about_the_order() -> None:
    for order in ("rank", "invariant"):
        assert set(DEFAULTS[order]) == set(REDUCING)
        assert choose("broadcast", 4, 100, order) == choose("broadcast", 4, 100)
        assert choose("barrier", 4, 100, order, heeding("barrier:dissemination")) == "dissemination"


def test_a_size_that_not_every_rank_knows_does_not_matter() -> None:
    large = Policy((Rule("gather_v", 1000, -1, "direct"), Rule("all_to_all_v", 1000, -1, "pairwise")))
    assert choose("all_to_all_v", 4, 10**9, "fast", large) == choose("all_to_all_v", 4, 0) == "direct"
    known = Policy((Rule("all_gather_v", 1000, -1, "ring"),))
    assert [choose("all_gather_v", 4, size, "fast", known) for size in (0, 1000)] == ["direct", "ring"]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            ("all_reduce", 2, 0, "fastest"),
            ValueError,
            "expected order to be one of fast, rank, invariant; found 'fastest'",
        ),
        (("allreduce", 2, 0), ScheduleError, "expected a collective, one of all_reduce"),
    ],
)
def test_what_there_is_not(arguments: tuple[str, int, int], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        choose(*arguments)


# --- HOCKET_ALGO ---------------------------------------------------------------------------------------------------


def test_a_later_definition_is_chosen_for_what_it_does_itself() -> None:
    for allows, expected in ((True, "own"), (False, "dissemination")):
        algorithm("barrier", name="own", chunks=lambda p: 1, ranks=("some", lambda p, allows=allows: allows))(
            ALGORITHMS["barrier", "direct"].write
        )
        assert choose("barrier", 3, 1, policy=heeding("own,dissemination")) == expected


@pytest.mark.parametrize(
    ("text", "collective", "expected"),
    [
        ("", "all_reduce", "direct"),
        (" ; ", "all_reduce", "direct"),
        # Allowed algorithms: the table's choice if it is one of them, else the first.
        ("ring", "all_reduce", "ring"),
        ("ring,tree", "all_reduce", "ring"),
        ("tree,ring", "all_reduce", "tree"),
        ("tree,ring,direct", "all_reduce", "direct"),
        # Names in a list that a collective lacks do not matter for it.
        ("tree,ring", "all_gather", "ring"),
        # Excluded algorithms, and the first remaining one.
        ("^ring", "all_reduce", "direct"),
        ("^direct", "all_gather", "ring"),
        ("^direct,direct_two_shot", "all_reduce", "ring"),
        ("^ring,direct,direct_two_shot", "all_reduce", "tree"),
        ("^direct,pairwise", "all_to_all", "bruck"),
        # A list for a collective replaces the list for all; of two, the last one counts.
        ("ring;all_reduce:tree", "all_reduce", "tree"),
        ("ring;all_reduce:tree", "all_gather", "ring"),
        ("all_reduce:tree", "all_gather", "direct"),
        ("all_reduce:^direct;broadcast:direct", "broadcast", "direct"),
        ("all_reduce:tree;all_reduce:ring", "all_reduce", "ring"),
        ("ring;all_gather:direct", "all_gather_v", "ring"),
        # NCCL's spellings, in any case, and spaces.
        ("allreduce:Tree", "all_reduce", "tree"),
        ("AllGather: ^ Direct ; ReduceScatter : ring", "all_gather", "ring"),
        ("AllGather:^Direct;ReduceScatter: ring", "reduce_scatter", "ring"),
        ("alltoall:pairwise", "all_to_all", "pairwise"),
        ("RING;AllReduce:HalvingDoubling", "all_reduce", "halving_doubling"),
        ("tree", "broadcast", "binomial"),
        ("reduce:tree", "reduce", "binomial"),
        # A list for all does not forbid what NCCL has no list for.
        ("ring", "barrier", "direct"),
        ("ring", "all_to_all", "direct"),
        ("pairwise,direct", "all_to_all_v", "direct"),
        ("^direct", "gather_v", "direct"),
        ("^direct", "gather", "binomial"),
    ],
)
def test_algo(text: str, collective: str, expected: str) -> None:
    assert choose(collective, 4, 100, "fast", heeding(text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rnig", r"HOCKET_ALGO: expected an algorithm, one of bidirectional_ring, .*, tree; found 'rnig' in 'rnig'"),
        ("ring,nvls", "found 'nvls' in 'ring,nvls'"),
        ("^rnig", "found 'rnig'"),
        ("ring,", "found '' in 'ring,'"),
        ("allreduce:", "expected an algorithm for all_reduce, one of bidirectional_ring, .*, tree; found ''"),
        (
            "broadcast:ring",
            "expected an algorithm for broadcast, one of binomial, chain, direct, .*, split_binary; found 'ring'",
        ),
        ("allredcue:ring", "expected a collective, one of all_reduce, .*; found 'allredcue'"),
        ("all_reduce:ring;ring", r"expected COLLECTIVE:ALGORITHM,... in all lists but the first; found 'ring'"),
        (
            "own.py:mine",
            "expected names of algorithms; found 'own.py:mine'; .* in a file, use algorithm=",
        ),
        ("all_reduce:^own.py", "expected names of algorithms"),
    ],
)
def test_algo_that_cannot_be_understood_is_refused_at_once(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        heeding(text)


def test_a_list_that_leaves_nothing_refuses_the_call() -> None:
    for text, collective, there in (
        ("ring", "broadcast", "binomial, chain, direct, .*, split_binary"),
        (
            "barrier:^direct,dissemination,hierarchical_leaders,recursive_doubling",
            "barrier",
            "direct, dissemination, hierarchical_leaders, recursive_doubling",
        ),
        ("gather_v:^direct", "gather_v", "direct"),
        # Neither takes 3 ranks; neither is suggested, nor the third one that does not take 3 ranks.
        (
            "hypercube,neighbor_exchange",
            "all_gather",
            "bidirectional_ring, bruck, direct, hierarchical, hierarchical_direct, knomial, non.*",
        ),
    ):
        message = (
            rf"{collective}: HOCKET_ALGO allows .*, which leaves no algorithm for 3 ranks; expected .* of {there}$"
        )
        with pytest.raises(ValueError, match=message):
            choose(collective, 3, 100, "fast", heeding(text))


def write_nothing(schedule: Builder) -> None:
    """For rank counts of 1 only: it does nothing."""


def test_what_does_not_do_the_rank_count_is_passed_over() -> None:
    algorithm("broadcast", name="alone", chunks=lambda p: 1, ranks=("one", lambda p: p == 1))(write_nothing)
    policy = heeding("broadcast:alone,chain")
    assert [choose("broadcast", p, 0, "fast", policy) for p in (1, 2)] == ["alone", "chain"]
    rules = Policy((Rule("broadcast", 0, -1, "alone"), Rule("broadcast", 0, -1, "direct")))
    assert [choose("broadcast", p, 0, "fast", rules) for p in (1, 2)] == ["alone", "direct"]
    with pytest.raises(ValueError, match="leaves no algorithm for 2 ranks"):
        choose("broadcast", 2, 0, "fast", heeding("broadcast:alone"))


# --- rules ---------------------------------------------------------------------------------------------------------


def test_the_first_rule_that_matches_decides() -> None:
    policy = Policy(
        (
            Rule("all_reduce", 100, 199, "tree"),
            Rule("all_reduce", 0, -1, "ring", num_ranks=8),
            Rule("all_reduce", 150, 299, "halving_doubling", num_nodes=1),
            Rule("all_reduce", 0, -1, "ring", num_nodes=2),
        )
    )
    sizes = (99, 100, 199, 200, 299, 300)
    names = ["direct", "tree", "tree", "halving_doubling", "halving_doubling", "direct"]
    assert [choose("all_reduce", 4, size, "fast", policy) for size in sizes] == names
    assert [choose("all_reduce", 8, size, "fast", policy) for size in sizes] == ["ring", "tree", "tree", *["ring"] * 3]
    assert choose("all_gather", 8, 100, "fast", policy) == "direct"


def test_rules_choose_among_what_algo_allows() -> None:
    rules = (Rule("all_reduce", 0, -1, "ring"), Rule("all_reduce", 0, -1, "tree"))
    allowing = {text: Policy(rules, heeding(text).algo) for text in ("", "direct,ring", "direct,tree", "^ring,tree")}
    chosen = {text: choose("all_reduce", 4, 100, "fast", policy) for text, policy in allowing.items()}
    assert chosen == {"": "ring", "direct,ring": "ring", "direct,tree": "tree", "^ring,tree": "direct"}
    # A list for all that has no all_to_all algorithm does not change the rules of all_to_all, either.
    rule = (Rule("all_to_all", 0, -1, "pairwise"),)
    assert choose("all_to_all", 4, 100, "fast", Policy(rule, heeding("ring").algo)) == "pairwise"


def policies_about(collective: str) -> list[Policy]:
    """Each algorithm allowed alone, excluded alone, and requested by a rule, also with a list that leaves none."""
    names = [name for kind, name in ALGORITHMS if kind == collective]
    policies = [heeding(f"{collective}:{caret}{name}") for name in names for caret in ("", "^")]
    for name in names:
        rules = (Rule(collective, 0, -1, name),)
        policies += [Policy(rules), Policy(rules, heeding("dissemination,torus_3d").algo)]
    return policies


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_no_policy_yields_an_algorithm_that_does_not_take_the_rank_count(collective: str) -> None:
    """For every environment, the algorithm that runs takes the rank count, or the call is refused with suggestions that
    take it."""
    for policy, p in itertools.product(policies_about(collective), (1, 2, 3, 4, 6, 8)):
        fitting = {name for kind, name in ALGORITHMS if kind == collective and ALGORITHMS[kind, name].allows(p)}
        try:
            assert choose(collective, p, 100, "fast", policy) in fitting
        except ValueError as error:
            offered = str(error).partition("at least one of ")[2].split(", ")
            assert set(offered) == fitting and offered == sorted(offered)


# --- the order -----------------------------------------------------------------------------------------------------


def test_labels_of_orders() -> None:
    assert [required_label(order) for order in ORDERS] == [None, "rank_order", "balanced_tree"]
    for collective, name in ALGORITHMS:
        assert has_label(collective, name, 5, "fast"), "nothing is asked for, so nothing is proved"
        if collective in REDUCING:
            assert all(has_label(collective, name, 1, order) for order in ORDERS), "one rank has any order"


@pytest.mark.parametrize("collective", REDUCING)
@pytest.mark.parametrize("order", ["rank", "invariant"])
def test_no_policy_yields_an_algorithm_without_the_label(collective: str, order: str) -> None:
    """For every environment, a call is refused, or the algorithm that runs has the label in its certificate."""
    refused = 0
    for policy, p in itertools.product(policies_about(collective), (1, 2, 3, 4, 8)):
        try:
            chosen = choose(collective, p, 100, order, policy)
        except ValueError as error:
            (allowed,) = policy.algo
            if any(ALGORITHMS[collective, name].allows(p) for name in allowed.names_for(collective)):
                refused += 1
                assert p > 1 and f"label {required_label(order)}" in str(error)
            else:
                assert f"leaves no algorithm for {p} ranks" in str(error)
        else:
            assert ALGORITHMS[collective, chosen].allows(p)
            for root in range(p if COLLECTIVES[collective].rooted else 1):
                assert required_label(order) in ALGORITHMS[collective, chosen].verify(p, root, laws=(4,)).labels
    assert refused > 0


def test_who_wanted_what_lacks_the_label_is_told() -> None:
    for policy, message in (
        (heeding("ring,tree"), "HOCKET_ALGO allows ring,tree, without the label rank_order for 4 ranks"),
        (
            heeding("all_reduce:^direct,direct_two_shot,hierarchical_gather,knomial,parameter_server"),
            r"allows all_reduce:\^direct,direct_two_shot,hierarchical_gather,knomial,parameter_server, without",
        ),
    ):
        expected = "expected one of direct, direct_two_shot, hierarchical_gather, knomial, parameter_server$"
        with pytest.raises(ValueError, match=rf"^all_reduce: .*{message}.*{expected}"):
            choose("all_reduce", 4, 100, "rank", policy)
    assert choose("all_reduce", 4, 100, "rank", Policy((Rule("all_reduce", 0, -1, "ring"),))) == "direct"
    # Two ranks have only one tree. An algorithm without the label is not chosen if another one has it.
    assert choose("all_reduce", 2, 100, "invariant", heeding("direct")) == "direct"
    assert choose("all_reduce", 4, 100, "invariant", heeding("ring,tree")) == "tree"


def test_a_certificate_counts_without_a_promise() -> None:
    direct = ALGORITHMS["all_reduce", "direct"]
    silent = algorithm("all_reduce", name="silent", chunks=lambda p: 1)(direct.write)
    assert silent.labels == frozenset()
    assert [has_label("all_reduce", "silent", 4, order) for order in ORDERS] == [True, True, False]
    assert choose("all_reduce", 4, 0, "rank", heeding("silent")) == "silent"


# --- policies travel -----------------------------------------------------------------------------------------------


def test_a_policy_is_equal_after_its_journey(tmp_path: Path) -> None:
    file = tmp_path / "tuner.conf"
    file.write_text("allreduce,0,65536,tree,simple,2,1,-1,-1,1\nbroadcast,0,-1,tree,ll,-1,-1,8\n")
    environment = {"HOCKET_ALGO": "^ring;allreduce:tree,ring", "HOCKET_TUNER_CONFIG_FILE": str(file)}
    policy = Policy.from_environment(environment)
    assert len(policy.rules) == 2 and len(policy.algo) == 2
    arrived = Policy.decode(policy.encode())
    assert arrived == policy and hash(arrived) == hash(policy) and arrived is not policy
    assert Policy.from_environment({}) == Policy() and policy != Policy()
    assert not arrived.shares_cores and replace(policy, shares_cores=True) != policy


def run_on(cores: set[int], num_ranks: int, monkeypatch: pytest.MonkeyPatch) -> list[list[bool]]:
    """Returns what ranks on these cores know about sharing: in their first communicator, and in those made from it."""

    def main() -> list[bool]:
        with hocket.init() as first:
            mesh = hocket.Mesh(first, {"rows": 1, "columns": num_ranks})
            made = (
                first.dup(),
                first.split(first.rank),
                first.subgroup([first.rank]),
                first.cartesian({"x": num_ranks}),
            )
            return [one._policy.shares_cores for one in (first, *made, made[0].dup(), mesh["columns"])]

    said = {"cores": bytes([sum(1 << core for core in cores)]), "quota": None}
    monkeypatch.setattr(hello, "own_cores", lambda: said)
    return hocket.run_ranks(main, num_ranks, kind="thread")


@pytest.mark.parametrize(
    ("cores", "num_ranks", "expected"), [({0, 1}, 3, True), ({0, 1, 2}, 3, False), ({0, 1}, 2, False), ({0}, 1, False)]
)
def test_all_ranks_know_whether_any_share_a_core_in_all_communicators(
    cores: set[int], num_ranks: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_on(cores, num_ranks, monkeypatch) == [[expected] * 7] * num_ranks


def on_two_cores() -> list[str]:
    """Returns the algorithms of a rank if all ranks share at most two cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(os.getppid()))[:2])
    with hocket.init() as comm:
        comm.all_reduce(np.ones(10_000, "f4"))
        return list(comm.statistics["algorithms"])


def test_processes_that_share_cores_go_by_their_rows() -> None:
    assert hocket.run_ranks(on_two_cores, 3, kind="process") == [["all_reduce:parameter_server"]] * 3
    assert hocket.run_ranks(on_two_cores, 1, kind="process") == [["all_reduce:direct_two_shot"]]


def test_an_empty_name_of_a_tuner_file_means_none(tmp_path: Path) -> None:
    (tmp_path / "hocket_tuner.conf").write_text("allreduce,0,-1,ring,simple,-1,-1,-1\n")
    assert choose("all_reduce", 4, 1, "fast", Policy.from_environment({})) == "ring"
    assert Policy.from_environment({"HOCKET_TUNER_CONFIG_FILE": ""}) == Policy()
    with pytest.raises(ValueError, match=r"HOCKET_TUNER_CONFIG_FILE: .* found no file '/no/such/file'"):
        Policy.from_environment({"HOCKET_TUNER_CONFIG_FILE": "/no/such/file"})


# --- what is written about it --------------------------------------------------------------------------------------


def test_the_examples_of_the_manual_mean_something(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text()
    examples = re.findall(r'^    HOCKET_ALGO=("[^"]+"|\S+)', manual, re.MULTILINE)
    assert len(examples) == 4
    chosen = [choose("all_reduce", 4, 1 << 20, "fast", heeding(text.strip('"'))) for text in examples]
    assert chosen == ["ring", "direct_two_shot", "tree", "direct_two_shot"]
    lines = re.findall(r"^    (allreduce,.*)$", manual, re.MULTILINE)
    (tmp_path / "hocket_tuner.conf").write_text("\n".join(lines))
    policy = Policy.from_environment({})
    found = [choose("all_reduce", p, size, "fast", policy) for p, size in ((4, 1), (8, 1 << 20), (4, 1 << 20))]
    assert found == ["tree", "ring", "direct_two_shot"]
