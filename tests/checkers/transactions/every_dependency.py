"""The levels that a tiny history fits, by its dependencies under every order of versions.

It tries every choice of happened transactions of unknown outcome and every order of the versions of every key, builds
the dependencies, adds the order of processes or real time, and looks for the cycles that the level forbids.  Values
that repeat are told apart in every possible way.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, pairwise, permutations, product
from math import factorial, prod
from typing import Any

import networkx as nx
from every_execution import Executed, executed

from checkers.base.history import Event, Type
from checkers.transactions.anomalies import MODELS, REALTIME, parts_of
from checkers.transactions.read import Model

ORDERS_MAX, CHOICES_MAX = 4_000, 300
"""Histories with more orders of versions, or more choices of writers, are left out; they would take minutes."""

Edge = tuple[Executed, Executed, str]


def last_writes(t: Executed) -> dict[str, Any]:
    return {key: value for f, key, value in t.steps if f != "r"}


def external_reads(t: Executed) -> dict[str, Any]:
    """The first micro-operation on a key, where it is a read."""
    first: dict[str, tuple[str, Any]] = {}
    for f, key, value in t.steps:
        first.setdefault(key, (f, value))
    return {key: value for key, (f, value) in first.items() if f == "r"}


def levels_of_choices(events: list[Event], model: Model) -> set[str] | None:
    """The levels that some choice of writers and of version orders satisfies; None if there are too many."""
    choices = distinct(events, model)
    writers = Counter(key for t in executed(events, model) if t.status is not Type.FAIL for key in t.keys_written())
    if not choices or prod(map(factorial, writers.values())) * len(choices) > ORDERS_MAX:
        return None
    return set[str]().union(*(satisfied(executed(one, model), model) for one in choices))


def satisfied(txns: Sequence[Executed], model: Model) -> set[str]:
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


def version_orders(happened: Sequence[Executed]) -> Iterator[dict[str, list[Executed]]]:
    """Every order of the writers of every key."""
    writers: dict[str, list[Executed]] = {}
    for t in happened:
        for key in last_writes(t):
            writers.setdefault(key, []).append(t)
    for orders in product(*(permutations(some) for some in writers.values())):
        yield {key: list(order) for key, order in zip(writers, orders, strict=True)}


def contradicting_lists(txns: Sequence[Executed]) -> frozenset[str]:
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


def lists_show(
    happened: Sequence[Executed], orders: dict[str, list[Executed]], besides: frozenset[str] = frozenset()
) -> bool:
    """A list shows all that was appended before: every append that it lacks comes later.

    This holds from read-committed on (lists are traceable: Kingsbury & Alvaro 2020, section 4.3): a committed version
    holds each append of the versions before it.  besides: keys whose lists are left out.
    """
    for t in happened:
        for f, key, shown in t.steps if t.status is Type.OK else ():
            if f != "r" or not shown or key in besides:
                continue
            order = orders.get(key, [])
            places = [at for v in shown for at, w in enumerate(order) if v in w.written(key)]
            before = order[: max(places, default=0)]
            if places != sorted(places) or any(v not in shown for w in before for v in w.written(key)):
                return False
    return True


def fits(
    happened: Sequence[Executed], orders: dict[str, list[Executed]], txns: Sequence[Executed], level: str, model: Model
) -> bool:
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
    happened: Sequence[Executed], orders: dict[str, list[Executed]], edges: Sequence[Edge], base: str, model: Model
) -> Iterator[Edge]:
    """A transaction reads the last of the visible writers of a key.  The first of a contradiction reads itself."""
    visible = nx.DiGraph([(a, b) for a, b, kind in edges if kind in ("wr", "order")])
    if base == "causal":
        visible = nx.transitive_closure(visible)
    for t in happened:
        for key, shown in (external_reads(t) if t.status is Type.OK else {}).items():
            order = orders.get(key, [])
            at = version_read(order, key, shown, model)
            for w in order:
                if at is not None and w is not t and visible.has_edge(w, t) and (at < 0 or w is not order[at]):
                    yield (w, order[at], "ww") if at >= 0 else (t, t, "ww")


def dependencies(happened: Sequence[Executed], orders: dict[str, list[Executed]], model: Model) -> list[Edge] | None:
    """ww, wr, rw; None where a read shows no version of these orders.  Reads of what a transaction wrote are left to
    `reads_fit`.  Every read gives a wr, also the second one of a key; only the first one gives an rw."""
    edges: list[Edge] = []
    for order in orders.values():
        edges += [(a, b, "ww") for a, b in pairwise(order)]
    for t in happened:
        if t.status is not Type.OK:
            continue
        for key, shown in external_reads(t).items():
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


def version_read(order: Sequence[Executed], key: str, shown: Any, model: Model) -> int | None:
    """Place of the writer whose version was read, -1 for the initial state, None where it is no version."""
    if shown in (None, ()):
        return -1
    for at, writer in enumerate(order):
        if model == "rw-register":
            if last_writes(writer)[key] == shown:
                return at
        elif tuple(chain.from_iterable(w.written(key) for w in order[: at + 1])) == shown:
            return at
    return None


def reads_fit(happened: Sequence[Executed], txns: Sequence[Executed], base: str, model: Model) -> bool:
    """What a level demands of the values that were read."""
    everything = {(key, v) for t in txns for f, key, v in t.steps if f != "r"}
    if base == "read-uncommitted":
        return all((k, v) in everything for t in happened if t.status is Type.OK for k, v in elements(t, model))
    return all(_reads_committed(t, happened, base, model) for t in happened if t.status is Type.OK)


def elements(t: Executed, model: Model) -> list[tuple[str, Any]]:
    read = [(key, v) for f, key, v in t.steps if f == "r" and v is not None]
    return read if model == "rw-register" else [(key, each) for key, some in read for each in some]


def _reads_committed(t: Executed, happened: Sequence[Executed], base: str, model: Model) -> bool:
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
            if any(not any(last_writes(w).get(key) == v for w in others) for v in foreign):
                return False
        elif not _final(foreign, key, t, happened) or not _begins(shown, [v for k, v in written_by(t) if k == key]):
            return False
    return base == "read-committed" or internally_consistent(t, model)


def written_by(t: Executed) -> list[tuple[str, Any]]:
    return [(key, v) for f, key, v in t.steps if f != "r"]


def _begins(shown: Sequence[Any], own: Sequence[Any]) -> bool:
    """Whether a list holds the first of these appends, in their order, and no later one without all before it."""
    part = [v for v in shown if v in own]
    return part == list(own)[: len(part)]


def _final(shown: Sequence[Any], key: str, t: Executed, happened: Sequence[Executed]) -> bool:
    """Whether a list consists of whole transactions that happened, other than its reader."""
    left = list(shown)
    while left:
        writer = next((w for w in happened if w is not t and left[0] in w.written(key)), None)
        if writer is None or left[: len(writer.written(key))] != writer.written(key):
            return False
        left = left[len(writer.written(key)) :]
    return True


def internally_consistent(t: Executed, model: Model) -> bool:
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


def distinct(events: list[Event], model: Model) -> list[list[Event]]:
    """The history once for every choice of the write that each read of a register, or each element of a list, shows.

    Every write gets a value of its own.  Returns nothing if there are too many choices.
    """
    parts = [json.loads(e.payload or "[]") for e in events]
    open_by: dict[int, int] = {}
    own: dict[tuple[int, int], int] = {}
    known: dict[tuple[str, int], list[int]] = {}
    for at, event in enumerate(events):
        if event.type is Type.INVOKE:
            open_by[event.process] = at
            for place, (f, key, value) in enumerate(parts[at]):
                if f != "r":
                    own[at, place] = len(own) + 1
                    known.setdefault((key, value), []).append(own[at, place])
        else:
            begun = open_by[event.process]
            own |= {(at, place): new for (when, place), new in own.items() if when == begun}
    reads = [
        (at, place, key, value)
        for at, event in enumerate(events)
        if event.type is Type.OK
        for place, (f, key, value) in enumerate(parts[at])
        if f == "r" and value not in (None, [])
    ]
    options = [
        [[new] for new in known.get((key, value), [])]
        if model == "rw-register"
        else [list(some) for some in product(*(known.get((key, v), []) for v in value)) if len({*some}) == len(some)]
        for _, _, key, value in reads
    ]
    if prod(map(len, options)) > CHOICES_MAX:
        return []
    found = []
    for chosen in product(*options):
        shown = {
            (at, place): some[0] if model == "rw-register" else some
            for (at, place, _, _), some in zip(reads, chosen, strict=True)
        }
        steps = [
            [
                [f, key, own.get((at, place), shown.get((at, place), value))]
                for place, (f, key, value) in enumerate(parts[at])
            ]
            for at in range(len(events))
        ]
        found.append([replace(e, payload=json.dumps(some)) for e, some in zip(events, steps, strict=True)])
    return found
