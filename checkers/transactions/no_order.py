"""Explains why no order of transactions exists if no single cycle of known dependencies shows it.

The search that proved it names the transactions on which its proof rests.  Transactions that the proof does not need
are dropped, one after another.  This is sound: if the whole history has an order, so has a history without some
transactions and without the reads of their writes.  A second, small search then tries all ways to order the versions of
the few remaining transactions, and shows that each way ends in a cycle.

Facts of the witness: "transactions", "why", "expected", "violates", "rules_out" and "assumes" as in `explain.py`;
"cases", the number of ways that were tried; "cycle" and "length" if a single cycle is the whole proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any, NamedTuple

import networkx as nx
import numpy as np

from checkers.base.arrays import Int64
from checkers.base.shrinking import drop_in_pieces
from checkers.base.verdict import Witness
from checkers.kernels.transactions.columns import (
    NIL_VALUE,
    WRITE,
    Transactions,
    element_bases,
    new_findings,
)
from checkers.kernels.transactions.dependencies import PROCESS, WR, WW
from checkers.kernels.transactions.order_problem import problem_of
from checkers.kernels.transactions.order_search import NO_ORDER
from checkers.transactions.anomalies import NO_ORDER_NAME, REALTIME, and_stronger, parts_of
from checkers.transactions.complete import WEAK, decide, known_of, problem_under
from checkers.transactions.explain import TransactionNames
from checkers.transactions.read import Transcript, with_rows, with_transactions
from checkers.transactions.repeated_values import repeated_rows

ATTEMPTS_MAX = 400
"""Maximum number of parts of the history that are judged to find a smaller part without an order."""

EXPLAINED_MAX = 14
"""Maximum number of transactions whose proof is written out; for more, the proof is too long to read."""

_STEPS_OF_ATTEMPT = 2_000_000
_SENTENCES_MAX = 40


def explain_no_order(transcript: Transcript, involved: Int64, consistency: str) -> Witness:
    """Make the witness of a history without an order.

    involved: the transactions on which the proof of the search rests
    """
    usable = _usable(transcript)
    few = smallest_part(usable, involved, consistency)
    names = TransactionNames(transcript, few)
    proof = _Proof(usable, few, consistency, names)
    if len(few) <= EXPLAINED_MAX:
        sentences = list(proof.sentences())
    else:
        sentences = [f"the smallest part found without an order has {len(few)} transactions, too many to explain"]
    left_out = len(sentences) - _SENTENCES_MAX
    why = sentences[:_SENTENCES_MAX] + ([f"... and {left_out} more steps"] if left_out > 0 else [])
    facts: dict[str, Any] = {
        "why": why,
        "expected": f"an order of {names.listed()} that explains every read; there is none",
        "assumes": consistency,
        "cases": proof.cases,
    }
    if len(sentences) == 1 and proof.last_cycle:
        facts |= {"cycle": proof.last_cycle, "length": len(proof.last_cycle)}
    words = f"{NO_ORDER_NAME}: no order of {names.listed()} explains what they read. {'; '.join(why)}"
    return names.witness(NO_ORDER_NAME, words, facts, and_stronger(consistency))


def _usable(transcript: Transcript) -> Transcript:
    """Return the history without the keys to which a value was written twice.

    No proof rests on such keys.  If a part of the history lacked one of the two writes, its reads would seem to show
    the other write.
    """
    txns = transcript.txns
    kept = ~np.isin(txns.key, np.unique(txns.key[repeated_rows(transcript)]))
    if kept.all():
        return transcript
    return replace(transcript, txns=with_rows(txns, kept, np.ones(len(txns.lists), np.bool_)))


def smallest_part(transcript: Transcript, involved: Int64, consistency: str) -> list[int]:
    """Drop transactions as long as the remaining history has no order, for at most ATTEMPTS_MAX attempts."""
    chosen = [int(t) for t in involved]
    if not _has_no_order(transcript, chosen, consistency):
        chosen = list(range(len(transcript.txns.status)))

    def without(piece: Sequence[int], rest: list[int]) -> list[int]:
        gone = set(piece)
        return [t for t in rest if t not in gone]

    def holds(rest: list[int]) -> bool:
        return bool(rest) and _has_no_order(transcript, rest, consistency)

    return drop_in_pieces(chosen, chosen, without, holds, attempts_most=ATTEMPTS_MAX)


def _has_no_order(transcript: Transcript, chosen: Sequence[int], consistency: str) -> bool:
    txns = part_of(transcript, chosen)
    base = element_bases(txns, int(transcript.txns.key.max()) + 1)
    known = known_of(txns, transcript.model, base, new_findings())
    return decide(txns, known, consistency, _STEPS_OF_ATTEMPT, timed=transcript.timed).outcome == NO_ORDER


def part_of(transcript: Transcript, chosen: Sequence[int]) -> Transactions:
    """Return the columns of these transactions alone, without values that other transactions wrote."""
    txns = with_transactions(transcript.txns, np.array(sorted(chosen), np.int64))
    own, values = txns.kind == WRITE, (1 << 32) * txns.key.astype(np.int64)
    written = (values + txns.value)[own]
    rows = np.ones(len(txns.kind), np.bool_)
    if transcript.model == "rw-register":
        rows = own | (txns.value == NIL_VALUE) | np.isin(values + txns.value, written)
    return with_rows(txns, rows, np.isin(np.repeat(values, np.diff(txns.list_first)) + txns.lists, written))


class _Reason(NamedTuple):
    """An edge: its kind, and the positions in the part of the two transactions that it orders."""

    kind: str
    source: int
    target: int


_KINDS = {WW: "ww", WR: "wr", PROCESS: "process"}


class _Proof:
    """A small search that tries both orders of each pair of writers of a key.  Each choice ends in a cycle.

    cases: number of choices that were followed to their end
    """

    def __init__(self, transcript: Transcript, few: Sequence[int], consistency: str, names: TransactionNames) -> None:
        self._transcript, self._names = transcript, [names[t] for t in few]
        self._model, self._variant = parts_of(consistency)
        self._overwrites = self._model not in WEAK
        self._txns = part_of(transcript, few)
        base = element_bases(self._txns, int(transcript.txns.key.max()) + 1)
        self._known = known_of(self._txns, transcript.model, base, new_findings())
        written, versions = self._known.written, self._known.versions
        shown = problem_of(self._txns, base, written, versions, np.empty(0, np.int32), readers=False)
        key_of = [*shown.write_key.tolist(), *range(len(base) - 1)]
        of = range(len(few))
        # for each transaction: the keys that it wrote, and key -> writer of the version that it read (-1 if none)
        self._wrote = [set(key_of[shown.write_first[t] : shown.write_first[t + 1]]) for t in of]
        versions_read = [shown.read_version[shown.read_first[t] : shown.read_first[t + 1]].tolist() for t in of]
        self._read = [{key_of[v]: int(shown.version_txn[v]) for v in some} for some in versions_read]
        self.cases = 0
        self.last_cycle: list[dict[str, Any]] = []

    def sentences(self) -> Iterator[str]:
        """Yield the steps of the proof in words."""
        graph = nx.DiGraph()
        for reason in self._certain():
            self._add(graph, reason)
        pairs = [(a, b) for a, b in combinations(range(len(self._names)), 2) if self._wrote[a] & self._wrote[b]]
        yield from self._prove(graph, pairs if self._overwrites else [], "")

    def _prove(self, graph: nx.DiGraph[Any], pairs: list[tuple[int, int]], when: str) -> Iterator[str]:
        cycle = self._cycle(graph)
        pairs = list(pairs)
        while cycle is None and pairs:
            tried = ((pair, order) for pair in pairs for order in permutations(pair))
            found = next((each for each in tried if self._cycle(self._with(graph, *each[1])) is not None), None)
            if found is None:
                for order in permutations(pairs[0]):
                    case = f"if {self._ordered(*order)}: "
                    yield from self._prove(self._with(graph, *order), pairs[1:], when + case)
                return
            pair, (one, other) = found
            shown = self._in_words(self._cycle(self._with(graph, one, other)) or [])
            yield f"{when}{self._ordered(other, one)}, because otherwise there is a cycle: {shown}"
            graph = self._with(graph, other, one)
            pairs.remove(pair)
            cycle = self._cycle(graph)
        self.cases += 1
        if cycle is not None:
            self.last_cycle = [self._edge(reason) for reason in cycle]
            yield f"{when}there is a cycle: {self._in_words(cycle)}"

    def _ordered(self, one: int, other: int) -> str:
        return str(self._edge(_Reason("ww", one, other))["why"])

    def _certain(self) -> Iterator[_Reason]:
        demanded = problem_under(self._txns, self._known, self._model, self._variant)
        assert demanded is not None, "the clocks of few transactions are small"
        for t, read in enumerate(self._read):
            for key, by in read.items():
                if by >= 0 and self._model != "read-uncommitted":
                    yield _Reason("wr", by, t)
                for w, wrote in enumerate(self._wrote):
                    if by < 0 and self._overwrites and key in wrote and w != t:
                        yield _Reason("rw", t, w)
            for e in range(demanded.after.first[t], demanded.after.first[t + 1]):
                yield from self._first(_KINDS[int(demanded.after.kind[e])], t, int(demanded.after.target[e]))
            if self._variant == REALTIME:
                for other in np.flatnonzero(self._txns.invoked > self._txns.completed[t]).tolist():
                    yield _Reason("realtime", t, other)

    def _first(self, kind: str, one: int, other: int) -> Iterator[_Reason]:
        """Yield the edges that follow if `one` comes before `other`.

        If both wrote a key, transactions that read the version of `one` also come before `other`.
        """
        keys = self._wrote[one] & self._wrote[other]
        yield _Reason("rw" if kind == "ww" and not keys else kind, one, other)
        for r, read in enumerate(self._read):
            if kind == "ww" and self._overwrites and r != other and any(read.get(key) == one for key in keys):
                yield _Reason("rw", r, other)

    def _with(self, graph: nx.DiGraph[Any], one: int, other: int) -> nx.DiGraph[Any]:
        more = graph.copy()
        for reason in self._first("ww", one, other):
            self._add(more, reason)
        return more

    def _add(self, graph: nx.DiGraph[Any], reason: _Reason) -> None:
        if self._model != "snapshot-isolation":
            source, target = (reason.source, 0), (reason.target, 0)
        elif reason.kind == "rw":
            source, target = (reason.source, 0), (reason.target, 1)
        else:
            source, target = (reason.source, 1), (reason.target, 0)
        if not graph.has_edge(source, target):
            graph.add_edge(source, target, reason=reason)
        if self._model == "snapshot-isolation":
            for t in (reason.source, reason.target):
                if not graph.has_edge((t, 0), (t, 1)):
                    graph.add_edge((t, 0), (t, 1), reason=None)

    def _cycle(self, graph: nx.DiGraph[Any]) -> list[_Reason] | None:
        """Return the reasons of a short cycle, or None if there is no cycle."""
        try:
            nodes = min(nx.simple_cycles(graph, length_bound=4), key=len, default=None) or [
                a for a, _ in nx.find_cycle(graph)
            ]
        except nx.NetworkXNoCycle:
            return None
        edges = zip(nodes, [*nodes[1:], nodes[0]], strict=True)
        return [graph.edges[edge]["reason"] for edge in edges if graph.edges[edge]["reason"] is not None]

    def _edge(self, reason: _Reason) -> dict[str, Any]:
        kind, source, target = reason
        a, b = self._names[source], self._names[target]
        keys = {
            "wr": {key for key, by in self._read[target].items() if by == source},
            "rw": self._read[source].keys() & self._wrote[target],
            "ww": self._wrote[source] & self._wrote[target],
        }.get(kind)
        name = self._transcript.key_name(min(keys)) if keys else None
        why = {
            "process": f"one process ran {a} before {b}",
            "realtime": f"{a} completed before {b} was invoked",
            "wr": f"{b} read what {a} wrote to {name}",
            "rw": f"{a} read {name} before {b} overwrote it",
            "ww": f"{a} wrote {name} before {b} did",
        }[kind]
        return {"from": a, "to": b, "edge": kind, "key": name, "why": why}

    def _in_words(self, cycle: list[_Reason]) -> str:
        return "".join(f"{self._names[r.source]} -{r.kind}-> " for r in cycle) + self._names[cycle[0].source]


__all__ = ["explain_no_order", "part_of", "smallest_part"]
