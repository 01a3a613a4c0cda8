"""Every consistency level that `check` offers, against brute force on tiny histories.

Brute force knows nothing of the kernels.  It tries every choice of happened transactions of unknown outcome and every
order of the versions of every key, builds the dependencies, adds the order of processes or real time, and looks for the
cycles that the level forbids.  A level that some choice satisfies must never be ruled out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise, permutations, product
from math import factorial, prod
from random import Random
from typing import Any

import networkx as nx
import pytest
from toy_transactions import ISOLATIONS, shows_nothing, simulate

from checkers.base.history import Event, Type
from checkers.base.verdict import VIOLATIONS_BY_KIND, Validity
from checkers.transactions.anomalies import BASE_MODELS, MODELS, PROCESS, REALTIME, model_name, parts_of
from checkers.transactions.judge import judge_transactions
from checkers.transactions.read import Model

NEVER = 10**9


@dataclass(frozen=True, eq=False)
class Txn:
    process: int
    status: Type
    invoked: int
    completed: int
    steps: tuple[tuple[str, str, Any], ...]

    def last_writes(self) -> dict[str, Any]:
        return {key: value for f, key, value in self.steps if f != "r"}

    def external_reads(self) -> dict[str, Any]:
        """The first micro-operation on a key, where it is a read."""
        first: dict[str, tuple[str, Any]] = {}
        for f, key, value in self.steps:
            first.setdefault(key, (f, value))
        return {key: value for key, (f, value) in first.items() if f == "r"}


def transactions(events: Sequence[Event]) -> list[Txn]:
    found: list[Txn] = []
    open_by: dict[int, int] = {}
    for e in events:
        steps = tuple((f, k, v) for f, k, v in json.loads(e.payload or "[]"))
        if e.type is Type.INVOKE:
            open_by[e.process] = len(found)
            found.append(Txn(e.process, Type.INFO, e.index, NEVER, steps))
        else:
            at = open_by.pop(e.process)
            done = steps if e.type is Type.OK else found[at].steps
            ended = NEVER if e.type is Type.INFO else e.index
            found[at] = Txn(e.process, e.type, found[at].invoked, ended, done)
    return found


def satisfied(txns: Sequence[Txn], model: Model) -> set[str]:
    """The levels that some choice of version orders satisfies."""
    sure = [t for t in txns if t.status is Type.OK]
    perhaps = [t for t in txns if t.status is Type.INFO]
    levels: set[str] = set()
    contradicted = contradicting_lists(txns) if model == "list-append" else frozenset()
    for chosen in chain.from_iterable(combinations(perhaps, n) for n in range(len(perhaps) + 1)):
        happened = [*sure, *chosen]
        for orders in version_orders(happened):
            left = [level for level in MODELS if level not in levels]
            if model == "list-append" and not lists_show(happened, orders):
                if not lists_show(happened, orders, contradicted):
                    continue
                left = [level for level in left if parts_of(level)[0] == "read-uncommitted"]
            levels |= {level for level in left if fits(happened, orders, txns, level, model)}
            if len(levels) == len(MODELS):
                return levels
    return levels


def version_orders(happened: Sequence[Txn]) -> Iterator[dict[str, list[Txn]]]:
    """Every order of the writers of every key."""
    writers: dict[str, list[Txn]] = {}
    for t in happened:
        for key in t.last_writes():
            writers.setdefault(key, []).append(t)
    for orders in product(*(permutations(some) for some in writers.values())):
        yield {key: list(order) for key, order in zip(writers, orders, strict=True)}


def contradicting_lists(txns: Sequence[Txn]) -> frozenset[str]:
    """Keys of which two lists were read and neither begins with the other.

    One of them shows an aborted version (Kingsbury & Alvaro 2020: incompatible orders imply G1a).  That is forbidden
    from read-committed on.  Read-uncommitted (Adya's PL-1) forbids only G0, so there such lists prove no order.
    """
    lists: dict[str, list[Any]] = {}
    for t in txns:
        for f, key, shown in t.steps if t.status is Type.OK else ():
            if f == "r" and shown:
                lists.setdefault(key, []).append(shown)
    return frozenset(
        key for key, some in lists.items() if any(a[: len(b)] != b[: len(a)] for a, b in combinations(some, 2))
    )


def lists_show(happened: Sequence[Txn], orders: dict[str, list[Txn]], besides: frozenset[str] = frozenset()) -> bool:
    """A list shows all that was appended before: every append that it lacks comes later.

    This holds from read-committed on (lists are traceable: Kingsbury & Alvaro 2020, section 4.3): a committed version
    holds each append of the versions before it.  besides: keys whose lists are left out.
    """
    for t in happened:
        for f, key, shown in t.steps if t.status is Type.OK else ():
            if f != "r" or not shown or key in besides:
                continue
            order = orders.get(key, [])
            places = [at for v in shown for at, w in enumerate(order) if v in appended(w, key)]
            before = order[: max(places, default=0)]
            if places != sorted(places) or any(v not in shown for w in before for v in appended(w, key)):
                return False
    return True


def fits(happened: Sequence[Txn], orders: dict[str, list[Txn]], txns: Sequence[Txn], level: str, model: Model) -> bool:
    base, variant = parts_of(level)
    edges = dependencies(happened, orders, model)
    if edges is None or not reads_fit(happened, txns, base, model):
        return False
    for a, b in permutations(happened, 2):
        in_process = a.process == b.process and a.invoked < b.invoked
        in_time = a.status is Type.OK and a.completed < b.invoked
        if (variant != "" and in_process) or (variant == REALTIME and in_time):
            edges.append((a, b, "order"))
    if base in ("read-atomic", "causal"):
        edges = [*(e for e in edges if e[2] != "rw"), *commits_before(happened, orders, edges, base, model)]
    return not forbidden(edges, base)


def commits_before(
    happened: Sequence[Txn], orders: dict[str, list[Txn]], edges: Sequence[Edge], base: str, model: Model
) -> Iterator[Edge]:
    """A transaction reads the last of the visible writers of a key.  The first of a contradiction reads itself."""
    visible = nx.DiGraph([(a, b) for a, b, kind in edges if kind in ("wr", "order")])
    if base == "causal":
        visible = nx.transitive_closure(visible)
    for t in happened:
        for key, shown in (t.external_reads() if t.status is Type.OK else {}).items():
            order = orders.get(key, [])
            at = version_read(order, key, shown, model)
            for w in order:
                if at is not None and w is not t and visible.has_edge(w, t) and (at < 0 or w is not order[at]):
                    yield (w, order[at], "ww") if at >= 0 else (t, t, "ww")


Edge = tuple[Txn, Txn, str]


def dependencies(happened: Sequence[Txn], orders: dict[str, list[Txn]], model: Model) -> list[Edge] | None:
    """ww, wr, rw; None where a read shows no version of these orders.  Reads of what a transaction wrote are left to
    `reads_fit`.  Every read gives a wr, also the second one of a key; only the first one gives an rw."""
    edges: list[Edge] = []
    for order in orders.values():
        edges += [(a, b, "ww") for a, b in pairwise(order)]
    for t in happened:
        if t.status is not Type.OK:
            continue
        for key, shown in t.external_reads().items():
            order = orders.get(key, [])
            at = version_read(order, key, shown, model)
            if at is None:
                continue  # not a version: `reads_fit` judges intermediate, aborted and unwritten data
            if at >= 0 and order[at] is not t:
                edges.append((order[at], t, "wr"))
            following = [w for w in order[at + 1 :] if w is not t]
            edges += [(t, following[0], "rw")] if following else []
        for f, key, shown in t.steps:
            foreign = [v for v in elements_of(f, shown, model) if (key, v) not in written_by(t)]
            edges += [(w, t, "wr") for w in orders.get(key, []) if foreign and (key, foreign[-1]) in written_by(w)]
    return edges


def elements_of(f: str, shown: Any, model: Model) -> list[Any]:
    """What a micro-operation shows, if it is a read."""
    if f != "r" or shown is None:
        return []
    return [shown] if model == "rw-register" else shown


def version_read(order: Sequence[Txn], key: str, shown: Any, model: Model) -> int | None:
    """Place of the writer whose version was read, -1 for the initial state, None where it is no version."""
    if shown is None or shown == []:
        return -1
    for at, writer in enumerate(order):
        if model == "rw-register":
            if writer.last_writes()[key] == shown:
                return at
        elif list(chain.from_iterable(appended(w, key) for w in order[: at + 1])) == shown:
            return at
    return None


def appended(t: Txn, key: str) -> list[Any]:
    return [v for f, k, v in t.steps if f != "r" and k == key]


def reads_fit(happened: Sequence[Txn], txns: Sequence[Txn], base: str, model: Model) -> bool:
    """What a level demands of the values that were read."""
    everything = {(key, v) for t in txns for f, key, v in t.steps if f != "r"}
    if base == "read-uncommitted":
        return all((k, v) in everything for t in happened if t.status is Type.OK for k, v in elements(t, model))
    return all(_reads_committed(t, happened, base, model) for t in happened if t.status is Type.OK)


def elements(t: Txn, model: Model) -> list[tuple[str, Any]]:
    read = [(key, v) for f, key, v in t.steps if f == "r" and v is not None]
    return read if model == "rw-register" else [(key, each) for key, some in read for each in some]


def _reads_committed(t: Txn, happened: Sequence[Txn], base: str, model: Model) -> bool:
    """No read shows what never happened (G1a) or parts of another transaction (G1b).  None shows what its own
    transaction writes only later (a circle of information flow, G1c).

    Adya defines G1a and G1b for every read of a committed transaction, the second read of a key too.  What a read must
    show of its own transaction is left to `internally_consistent`, but that a list holds what was appended before.
    Two reads of one key that show two versions make a cycle with one rw, so repeatable-read forbids them, too.
    """
    written = {(key, v) for w in happened for f, key, v in w.steps if f != "r"}
    if any(element not in written for element in elements(t, model)):
        return False
    own: set[tuple[str, Any]] = set()
    to_come = {(key, v) for f, key, v in t.steps if f != "r"}
    for f, key, value in t.steps:
        if f != "r":
            own.add((key, value))
            to_come.discard((key, value))
            continue
        shown = [] if value is None else [value] if model == "rw-register" else value
        foreign = [v for v in shown if (key, v) not in own]
        if any((key, v) in to_come for v in foreign):
            return False
        if model == "rw-register":
            others = [w for w in happened if w is not t]
            if any(not any(w.last_writes().get(key) == v for w in others) for v in foreign):
                return False
        elif not _final(foreign, key, t, happened) or not _begins(shown, [v for k, v in written_by(t) if k == key]):
            return False
    return base == "read-committed" or internally_consistent(t, model)


def written_by(t: Txn) -> list[tuple[str, Any]]:
    return [(key, v) for f, key, v in t.steps if f != "r"]


def _begins(shown: Sequence[Any], own: Sequence[Any]) -> bool:
    """Whether a list holds the first of these appends, in their order, and no later one without all before it."""
    part = [v for v in shown if v in own]
    return part == list(own)[: len(part)]


def _final(shown: Sequence[Any], key: str, t: Txn, happened: Sequence[Txn]) -> bool:
    """Whether a list consists of whole transactions that happened, other than its reader."""
    left = list(shown)
    while left:
        writer = next((w for w in happened if w is not t and left[0] in appended(w, key)), None)
        if writer is None or left[: len(appended(writer, key))] != appended(writer, key):
            return False
        left = left[len(appended(writer, key)) :]
    return True


def internally_consistent(t: Txn, model: Model) -> bool:
    known: dict[str, Any] = {}
    unknown_before: dict[str, list[Any]] = {}
    for f, key, value in t.steps:
        if model == "rw-register":
            if f == "r" and key in known and known[key] != value:
                return False
            known[key] = value
        elif f != "r":
            if key in known:
                known[key] = [*known[key], value]
            else:
                unknown_before.setdefault(key, []).append(value)
        else:
            shown, own = list(value or []), unknown_before.get(key, [])
            if (key in known and known[key] != shown) or (own and shown[-len(own) :] != own):
                return False
            known[key] = shown
    return True


def forbidden(edges: Sequence[Edge], base: str) -> bool:
    """Whether there is a cycle that the level forbids."""
    weak = {"ww", "wr"}
    kinds = {"read-uncommitted": {"ww"}, "read-committed": weak, "read-atomic": weak, "causal": weak}.get(
        base, {"ww", "wr", "rw"}
    ) | {"order"}
    chosen = [e for e in edges if e[2] in kinds]
    if base != "snapshot-isolation":
        return not nx.is_directed_acyclic_graph(nx.DiGraph([(a, b) for a, b, _ in chosen]))
    graph = nx.DiGraph()  # snapshot isolation: a cycle in which no two rw are adjacent, as a cycle of (node, after rw)
    for a, b, kind in chosen:
        if kind == "rw":
            graph.add_edge((a, False), (b, True))
        else:
            graph.add_edge((a, False), (b, False))
            graph.add_edge((a, True), (b, False))
    return not nx.is_directed_acyclic_graph(graph)


ORDERS_MAX = 4_000
"""Histories with more orders of versions are left out; brute force would take minutes for one of them."""


def tiny_history(rng: Random, model: Model) -> list[Event]:
    """A history of up to 5 transactions and 3 keys, often with one answer replaced by another."""
    while True:
        events = simulate(
            rng,
            model,
            rng.choice(ISOLATIONS),
            transactions=rng.randint(2, 5),
            processes=rng.randint(1, 3),
            keys=rng.randint(1, 3),
            operations_max=rng.randint(1, 3),
            trouble=rng.choice([0, 0.2]),
        )
        writers = Counter(key for t in transactions(events) if t.status is not Type.FAIL for key in t.last_writes())
        if prod(map(factorial, writers.values())) <= ORDERS_MAX:
            break
    if rng.random() < 0.6:
        events = with_another_answer(rng, events, model)
    return events


def with_another_answer(rng: Random, events: list[Event], model: Model) -> list[Event]:
    answered = [json.loads(e.payload or "[]") for e in events]
    reads = [
        (i, j) for i, e in enumerate(events) if e.type is Type.OK for j, m in enumerate(answered[i]) if m[0] == "r"
    ]
    if not reads:
        return events
    i, j = rng.choice(reads)
    values = sorted({m[2] for some in answered for m in some if m[0] != "r" and m[1] == answered[i][j][1]})
    if model == "list-append":
        answered[i][j][2] = rng.sample(values, rng.randint(0, len(values)))
    else:
        answered[i][j][2] = rng.choice([None, *values])
    return [
        Event(e.index, e.time_ns, e.process, e.type, e.f, payload=json.dumps(answered[at])) if at == i else e
        for at, e in enumerate(events)
    ]


def compare(model: Model, rng: Random, cases: int) -> Counter[str]:
    """Raises AssertionError where a verdict and brute force differ, in either direction."""
    seen = Counter[str]()
    for _ in range(cases):
        events = tiny_history(rng, model)
        possible = satisfied(transactions(events), model)
        if shows_nothing(events):
            assert judge_transactions(events, model).validity is Validity.UNKNOWN
            assert possible == set(MODELS)
            continue
        for level in MODELS:
            verdict = judge_transactions(events, model, consistency=level)
            assert verdict.validity is not Validity.UNKNOWN, verdict.reason
            wrong = sorted(possible & set(verdict.details["ruled_out"]))
            assert not wrong, (level, wrong, verdict.details["anomalies"], [e.payload for e in events], events)
            found = verdict.validity is Validity.INVALID
            assert not (found and level in possible), (level, events)
            assert found or level in possible, (level, events)
            assert verdict.validity is Validity.INVALID or verdict.details["decided"]
            seen["violated" if found else "satisfied"] += 1
            seen[verdict.witnesses[0].kind if found else "an order"] += 1
    return seen


@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_a_level_is_valid_if_and_only_if_some_order_of_versions_satisfies_it(model: Model) -> None:
    seen = compare(model, Random(model), 60)
    assert seen["violated"] > 50 and seen["satisfied"] > 50, seen


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(50))
@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_100_000_histories_at_every_level(model: Model, part: int, night: Random) -> None:
    print(compare(model, night, 2_000))


def test_all_levels_are_compared() -> None:
    every = {model_name(b, v) for b in BASE_MODELS for v in ("", PROCESS, REALTIME)}
    assert set(MODELS) == every - {"strong-read-atomic", "strong-causal"} and len(MODELS) == 19


def test_what_a_read_shows_of_an_order_is_not_certain_where_reads_may_show_anything() -> None:
    """Process 0 reads 2 and writes 1, then writes 2.  Read-uncommitted allows the order 1, 2, and that read of 2."""
    invoked = [[["r", "k0", 2], ["w", "k0", 1]], [["w", "k0", 2]]]
    events = [
        Event(2 * at + done, at, 0, Type.OK if done else Type.INVOKE, "txn", payload=json.dumps(steps))
        for at, steps in enumerate(invoked)
        for done in (0, 1)
    ]
    assert "strong-session-read-uncommitted" in satisfied(transactions(events), "rw-register")
    uncommitted = judge_transactions(events, "rw-register", consistency="strong-session-read-uncommitted")
    assert uncommitted.validity is Validity.VALID
    committed = judge_transactions(events, "rw-register", consistency="strong-session-read-committed")
    assert list(committed.details["anomalies"]) == ["G1c-process"]


def test_a_second_read_of_a_key_may_not_show_intermediate_data() -> None:
    invoked = [[["append", "k0", 1], ["append", "k0", 2]], [["r", "k0", []], ["r", "k0", [1]]]]
    events = [
        Event(2 * at + done, at, at, Type.OK if done else Type.INVOKE, "txn", payload=json.dumps(steps))
        for at, steps in enumerate(invoked)
        for done in (0, 1)
    ]
    verdict = judge_transactions(events, "list-append", consistency="read-committed")
    assert list(verdict.details[VIOLATIONS_BY_KIND]) == ["G1b"]


def test_a_read_of_a_later_append_of_ones_own_counts_also_if_a_later_read_lacks_it() -> None:
    steps = [["r", "k0", [1]], ["r", "k0", []], ["append", "k0", 1]]
    events = [
        Event(done, done, 0, Type.OK if done else Type.INVOKE, "txn", payload=json.dumps(steps)) for done in (0, 1)
    ]
    assert "read-committed" not in satisfied(transactions(events), "list-append")
    verdict = judge_transactions(events, "list-append", consistency="read-committed")
    assert list(verdict.details[VIOLATIONS_BY_KIND]) == ["future-read"]


def test_a_list_read_after_an_append_of_ones_own_shows_what_was_visible() -> None:
    """T2 read the append of T1, which had read that of T0; so T0 was visible to T2, which did not see it."""
    steps = [
        [["append", "k1", 1]],
        [["r", "k1", [1]], ["append", "k0", 1]],
        [["append", "k0", 2], ["r", "k0", [1, 2]], ["r", "k1", []]],
    ]
    events = [
        Event(3 * done + at, at, at, Type.OK if done else Type.INVOKE, "txn", payload=json.dumps(steps[at]))
        for done in (0, 1)
        for at in range(3)
    ]
    assert "causal" not in satisfied(transactions(events), "list-append")
    assert judge_transactions(events, "list-append", consistency="read-atomic").validity is Validity.VALID
    assert judge_transactions(events, "list-append", consistency="causal").validity is Validity.INVALID
