"""Explains why no order of transactions exists, where no single cycle of known dependencies shows it.

The search that proved it names the transactions on which its proof rests.  Those that the proof can do without are
dropped, one after another: a history without some transactions, and without the reads of what they wrote, has an order
if the whole history has one.  Of the few that remain, all ways to order their versions are tried here again, with a
small search of its own, and each way ends in a cycle.

Facts of the witness: "transactions", "why", "expected", "violates", "rules_out" and "assumes" as in `explain.py`;
"cases", the number of ways that were tried; "cycle" and "length" if a single cycle is the whole proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import numpy as np

from checkers.base.arrays import Int64
from checkers.base.shrinking import drop_in_pieces
from checkers.base.verdict import Witness
from checkers.kernels.transactions.columns import (
    NEVER,
    NIL_VALUE,
    READ,
    WRITE,
    Transactions,
    element_bases,
    new_findings,
)
from checkers.kernels.transactions.order_search import NO_ORDER
from checkers.transactions.anomalies import NO_ORDER_NAME, PROCESS, REALTIME, and_stronger, parts_of
from checkers.transactions.complete import WEAK, decide, known_of
from checkers.transactions.explain import TransactionNames
from checkers.transactions.read import Transcript, with_rows, with_transactions
from checkers.transactions.repeated_values import repeated_rows

ATTEMPTS_MAX = 400
"""Judgements of a part of the history that look for a smaller one."""

EXPLAINED_MAX = 14
"""The ways to order more transactions than these are too many to read."""

_STEPS_OF_ATTEMPT = 2_000_000
_SENTENCES_MAX = 40


def explain_no_order(transcript: Transcript, involved: Int64, consistency: str) -> Witness:
    """Make the witness of a history without an order.  involved: the transactions that the proof rests on."""
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

    No proof rests on such keys.  A part of the history may lack one of the two writes, and would then name a wrong
    writer.
    """
    txns = transcript.txns
    kept = ~np.isin(txns.key, np.unique(txns.key[repeated_rows(transcript)]))
    if kept.all():
        return transcript
    return replace(transcript, txns=with_rows(txns, kept, np.ones(len(txns.lists), np.bool_)))


def smallest_part(transcript: Transcript, involved: Int64, consistency: str) -> list[int]:
    """Drop transactions while what remains still has no order; all of them stay if the attempts run out."""
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
    """Return the columns of these transactions alone, without what they read of others."""
    txns = with_transactions(transcript.txns, np.array(sorted(chosen), np.int64))
    own, values = txns.kind == WRITE, (1 << 32) * txns.key.astype(np.int64)
    written = (values + txns.value)[own]
    rows = np.ones(len(txns.kind), np.bool_)
    if transcript.model == "rw-register":
        rows = own | (txns.value == NIL_VALUE) | np.isin(values + txns.value, written)
    return with_rows(txns, rows, np.isin(np.repeat(values, np.diff(txns.list_first)) + txns.lists, written))


@dataclass(frozen=True)
class _Reason:
    """An edge between events: its kind, the key or -1, and the transactions that it orders."""

    kind: str
    key: int
    source: int
    target: int


class _Proof:
    """A small search: each pair of writers of a key has one of two orders, and each choice ends in a cycle.

    cases: how many choices were followed to their end.
    """

    def __init__(self, transcript: Transcript, few: Sequence[int], consistency: str, names: TransactionNames) -> None:
        self._transcript, self._few, self._names = transcript, list(few), names
        model, self._variant = parts_of(consistency)
        self._model = model
        self._snapshots, self._overwrites = model == "snapshot-isolation", model not in WEAK
        self._lists = transcript.model == "list-append"
        self._part = replace(transcript, txns=part_of(transcript, few))
        self._writers: dict[int, list[int]] = {}
        self._readers: dict[tuple[int, int], list[int]] = {}
        self._collect()
        self.cases = 0
        self.last_cycle: list[dict[str, Any]] = []

    def sentences(self) -> Iterator[str]:
        """Return the steps of the proof in words."""
        graph = nx.DiGraph()
        for reason in self._certain():
            self._add(graph, reason)
        pairs = (
            []
            if self._model in WEAK
            else [
                (key, a, b) for key, some in self._writers.items() for at, a in enumerate(some) for b in some[at + 1 :]
            ]
        )
        yield from self._prove(graph, pairs, "")

    def _prove(self, graph: nx.DiGraph[Any], pairs: list[tuple[int, int, int]], when: str) -> Iterator[str]:
        cycle = self._cycle(graph)
        pairs = list(pairs)
        while cycle is None and pairs:
            for pair in pairs:
                key, a, b = pair
                wrong = next((c for c in ((a, b), (b, a)) if self._cycle(self._with(graph, key, *c)) is not None), None)
                if wrong is not None:
                    shown = self._cycle(self._with(graph, key, *wrong))
                    name = self._transcript.key_name(key)
                    first, second = self._names[wrong[0]], self._names[wrong[1]]
                    yield (
                        f"{when}{second} wrote {name} before {first} did, "
                        f"for else there is a cycle: {self._in_words(shown or [])}"
                    )
                    graph = self._with(graph, key, wrong[1], wrong[0])
                    pairs.remove(pair)
                    break
            else:
                key, a, b = pairs[0]
                name = self._transcript.key_name(key)
                for one, other in ((a, b), (b, a)):
                    first, second = self._names[one], self._names[other]
                    case = f"if {first} wrote {name} before {second} did: "
                    yield from self._prove(self._with(graph, key, one, other), pairs[1:], when + case)
                return
            cycle = self._cycle(graph)
        self.cases += 1
        if cycle is not None:
            self.last_cycle = [self._edge(reason) for reason in cycle]
            yield f"{when}there is a cycle: {self._in_words(cycle)}"

    def _collect(self) -> None:
        part, txns = self._part, self._part.txns
        writer: dict[tuple[int, int], int] = {}
        self._chains: list[tuple[int, list[int]]] = []
        for at, t in enumerate(self._few):
            for row in part.micro_rows(at):
                if txns.kind[row] == WRITE:
                    key = int(txns.key[row])
                    writer[key, int(txns.value[row])] = t
                    if t not in self._writers.setdefault(key, []):
                        self._writers[key].append(t)
        longest: dict[int, list[int]] = {}
        for at, t in enumerate(self._few):
            met: set[int] = set()
            for row in part.micro_rows(at):
                key = int(txns.key[row])
                if txns.kind[row] == READ and txns.status[at] == 1 and key not in met:
                    values = (
                        part.elements(row).tolist() if self._lists else [v for v in [int(txns.value[row])] if v >= 0]
                    )
                    foreign = [by for by in (writer.get((key, v), -1) for v in values) if by != t]
                    if foreign or not values or self._lists:
                        self._readers.setdefault((key, foreign[-1] if foreign else -1), []).append(t)
                    longest[key] = max(longest.get(key, []), values, key=len)
                # a list read shows the state before the transaction's own append
                if txns.kind[row] == READ or not self._lists:
                    met.add(key)
        if self._lists:
            for key, values in longest.items():
                chain = list(dict.fromkeys(writer[key, v] for v in values if (key, v) in writer))
                self._chains.append((key, chain))

    def _certain(self) -> Iterator[_Reason]:
        for (key, by), readers in self._readers.items():
            for r in readers:
                if by >= 0:
                    yield _Reason("wr", key, by, r)
                    continue
                for w in self._writers.get(key, []):
                    if w != r and self._overwrites:
                        yield _Reason("rw", key, r, w)
        for key, chain in self._chains:
            for at, one in enumerate(chain):
                for other in [*chain[at + 1 : at + 2], *(w for w in self._writers[key] if w not in chain)]:
                    yield from self._order(key, one, other)
        yield from self._sessions_and_time()
        if self._model in ("read-atomic", "causal"):
            yield from self._visible()

    def _visible(self) -> Iterator[_Reason]:
        """A visible writer commits before the one that was read."""
        seen = nx.DiGraph((r.source, r.target) for r in self._sessions_and_time())
        if self._model == "read-atomic":
            seen = nx.transitive_closure(seen)
        seen.add_edges_from((by, r) for (_, by), readers in self._readers.items() for r in readers if by >= 0)
        if self._model == "causal":
            seen = nx.transitive_closure(seen)
        for (key, by), readers in self._readers.items():
            for r in readers:
                for w in self._writers.get(key, []):
                    if w not in (by, r) and seen.has_edge(w, r):
                        yield _Reason("ww", key, w, by) if by >= 0 else _Reason("rw", key, r, w)

    def _sessions_and_time(self) -> Iterator[_Reason]:
        txns = self._transcript.txns
        for a in self._few:
            for b in self._few:
                same = txns.process[a] == txns.process[b] and a < b
                in_time = txns.completed[a] != NEVER and txns.completed[a] < txns.invoked[b]
                if self._variant == PROCESS and same:
                    yield _Reason("process", -1, a, b)
                elif self._variant == REALTIME and in_time:
                    yield _Reason("realtime", -1, a, b)

    def _order(self, key: int, one: int, other: int) -> Iterator[_Reason]:
        """Return what follows if `one` wrote the key before `other`."""
        yield _Reason("ww", key, one, other)
        for r in self._readers.get((key, one), []):
            if r != other and self._overwrites:
                yield _Reason("rw", key, r, other)

    def _with(self, graph: nx.DiGraph[Any], key: int, one: int, other: int) -> nx.DiGraph[Any]:
        more = graph.copy()
        for reason in self._order(key, one, other):
            self._add(more, reason)
        return more

    def _add(self, graph: nx.DiGraph[Any], reason: _Reason) -> None:
        if not self._snapshots:
            source, target = (reason.source, 0), (reason.target, 0)
        elif reason.kind == "rw":
            source, target = (reason.source, 0), (reason.target, 1)
        else:
            source, target = (reason.source, 1), (reason.target, 0)
        if not graph.has_edge(source, target):
            graph.add_edge(source, target, reason=reason)
        if self._snapshots:
            for t in (reason.source, reason.target):
                if not graph.has_edge((t, 0), (t, 1)):
                    graph.add_edge((t, 0), (t, 1), reason=None)

    def _cycle(self, graph: nx.DiGraph[Any]) -> list[_Reason] | None:
        """Return a shortest cycle, as its reasons, or None."""
        try:
            nodes = min(nx.simple_cycles(graph, length_bound=4), key=len, default=None) or [
                a for a, _ in nx.find_cycle(graph)
            ]
        except nx.NetworkXNoCycle:
            return None
        edges = zip(nodes, [*nodes[1:], nodes[0]], strict=True)
        return [graph.edges[edge]["reason"] for edge in edges if graph.edges[edge]["reason"] is not None]

    def _edge(self, reason: _Reason) -> dict[str, Any]:
        key = None if reason.key < 0 else self._transcript.key_name(reason.key)
        return {
            "from": self._names[reason.source],
            "to": self._names[reason.target],
            "edge": reason.kind,
            "key": key,
            "why": self._why(reason),
        }

    def _why(self, reason: _Reason) -> str:
        a, b = self._names[reason.source], self._names[reason.target]
        if reason.kind == "process":
            return f"one process ran {a} before {b}"
        if reason.kind == "realtime":
            return f"{a} completed before {b} was invoked"
        name = self._transcript.key_name(reason.key)
        if reason.kind == "wr":
            return f"{b} read what {a} wrote to {name}"
        if reason.kind == "rw":
            return f"{a} read {name} before {b} overwrote it"
        return f"{a} wrote {name} before {b} did"

    def _in_words(self, cycle: list[_Reason]) -> str:
        path = "".join(f"{self._names[r.source]} -{r.kind}-> " for r in cycle)
        return f"{path}{self._names[cycle[0].source]}" if cycle else "none"


__all__ = ["explain_no_order", "part_of", "smallest_part"]
