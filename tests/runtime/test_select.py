"""Which algorithm runs: the table, HOCKET_ALGO, rules, and the order that is asked for."""

import itertools
import math
import re
from pathlib import Path

import pytest

from hocket.algorithms import ALGORITHMS, algorithm
from hocket.errors import ScheduleError
from hocket.runtime.select import DEFAULTS, ORDERS, Policy, choose, defaults, has_label, required_label
from hocket.runtime.tuner_file import Rule
from hocket.schedule.builder import Builder
from hocket.schedule.collective import COLLECTIVES

REDUCING = [one.name for one in COLLECTIVES.values() if one.counts_contributions]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tuner file of the working directory is read."""
    monkeypatch.chdir(tmp_path)


def heeding(text: str) -> Policy:
    return Policy.from_environment({"HOCKET_ALGO": text})


# --- the table -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_the_table_has_every_collective_rank_count_and_size(order: str) -> None:
    table = defaults(order)
    assert set(table) == set(COLLECTIVES)
    for collective, lines in table.items():
        assert lines[-1][:2] == (math.inf, math.inf), collective
        assert all((collective, name) in ALGORITHMS for _, _, name in lines)
        for p, num_bytes in itertools.product((1, 2, 3, 8, 64, 1000), (0, 1, 2**12, 2**12 + 1, 2**20, 2**40)):
            assert ALGORITHMS[collective, choose(collective, p, num_bytes, order)].allows(p)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("collective", REDUCING)
def test_what_the_table_chooses_has_the_label(collective: str, order: str) -> None:
    for p in (1, 2, 3, 4, 5, 7, 8, 16, 33):
        for max_ranks, _, name in defaults(order)[collective]:
            assert p > max_ranks or has_label(collective, name, p, order), (name, p)


def test_the_table_that_was_measured() -> None:
    sizes = (8 << 10, (8 << 10) + 1, 1 << 20)
    assert [choose("all_reduce", 2, size) for size in sizes] == ["direct", "direct_two_shot", "direct_two_shot"]
    sizes = (0, 64 << 10, (64 << 10) + 1)
    assert [choose("all_reduce", 4, size) for size in sizes] == ["direct", "direct", "direct_two_shot"]
    assert [choose("all_reduce", 8, size) for size in (8 << 10, (8 << 10) + 1, 256 << 10, (256 << 10) + 1)] == [
        "direct",
        "parameter_server",
        "parameter_server",
        "direct_two_shot",
    ]
    sizes = (32 << 10, (32 << 10) + 1)
    assert [choose("all_reduce", 9, size) for size in sizes] == ["direct", "direct_two_shot"]
    assert [choose("broadcast", p, size) for p in (2, 16) for size in (8, 1 << 20)] == ["direct"] * 4
    assert [choose("broadcast", 17, size) for size in (8, 1 << 20)] == ["binomial"] * 2
    assert [choose("reduce", p, 2 << 20) for p in (2, 4, 5)] == ["binomial"] * 3
    assert [choose("reduce", p, 4 << 20) for p in (2, 4, 5)] == ["direct", "direct", "binomial"]
    assert [choose("barrier", p, 1) for p in (2, 8, 9)] == ["direct", "direct", "dissemination"]


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


@pytest.mark.parametrize(
    ("text", "collective", "expected"),
    [
        ("", "all_reduce", "direct"),
        (" ; ", "all_reduce", "direct"),
        # What is allowed: the table's choice if it is among them, else the first.
        ("ring", "all_reduce", "ring"),
        ("ring,tree", "all_reduce", "ring"),
        ("tree,ring", "all_reduce", "tree"),
        ("tree,ring,direct", "all_reduce", "direct"),
        # The rest of a list does not concern a collective that lacks it.
        ("tree,ring", "all_gather", "ring"),
        # What is excluded, and what then is first.
        ("^ring", "all_reduce", "direct"),
        ("^direct", "all_gather", "ring"),
        ("^direct,direct_two_shot", "all_reduce", "ring"),
        ("^ring,direct,direct_two_shot", "all_reduce", "tree"),
        ("^direct,pairwise", "all_to_all", "bruck"),
        # A list for a collective replaces that for all; of two the last stays.
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
        ("own.py:mine", "expected names of algorithms; found 'own.py:mine'; one in a file of yours is .* algorithm="),
        ("all_reduce:^own.py", "expected names of algorithms"),
    ],
)
def test_algo_that_cannot_be_understood_is_refused_at_once(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        heeding(text)


def test_a_list_that_leaves_nothing_refuses_the_call() -> None:
    for text, collective, there in (
        ("ring", "broadcast", "binomial, chain, direct, .*, split_binary"),
        ("barrier:^direct,dissemination,recursive_doubling", "barrier", "direct, dissemination, recursive_doubling"),
        ("gather_v:^direct", "gather_v", "direct"),
        # Neither takes 3 ranks, and neither is offered, nor is the third that does not.
        (
            "hypercube,neighbor_exchange",
            "all_gather",
            "bidirectional_ring, bruck, direct, hierarchical, knomial, non.*",
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
    # A list for all that leaves nothing of an all_to_all leaves its rules, too.
    rule = (Rule("all_to_all", 0, -1, "pairwise"),)
    assert choose("all_to_all", 4, 100, "fast", Policy(rule, heeding("ring").algo)) == "pairwise"


def policies_about(collective: str) -> list[Policy]:
    """Each algorithm allowed alone, excluded alone, and asked for by a rule, also beside a list that leaves nothing."""
    names = [name for kind, name in ALGORITHMS if kind == collective]
    policies = [heeding(f"{collective}:{caret}{name}") for name in names for caret in ("", "^")]
    for name in names:
        rules = (Rule(collective, 0, -1, name),)
        policies += [Policy(rules), Policy(rules, heeding("dissemination,torus_3d").algo)]
    return policies


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_no_policy_yields_an_algorithm_that_does_not_take_the_rank_count(collective: str) -> None:
    """Whatever the environment says, a call is refused, with only such as take the rank count offered, or what runs
    takes it."""
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
    """Whatever the environment says, a call is refused, or what runs has the label in its certificate."""
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
            heeding("all_reduce:^direct,direct_two_shot,knomial,parameter_server"),
            r"allows all_reduce:\^direct,direct_two_shot,knomial,parameter_server, without",
        ),
    ):
        expected = "expected one of direct, direct_two_shot, knomial, parameter_server$"
        with pytest.raises(ValueError, match=rf"^all_reduce: .*{message}.*{expected}"):
            choose("all_reduce", 4, 100, "rank", policy)
    assert choose("all_reduce", 4, 100, "rank", Policy((Rule("all_reduce", 0, -1, "ring"),))) == "direct"
    # Two ranks have one tree, whoever folds; and what lacks the label stands back if something else has it.
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
