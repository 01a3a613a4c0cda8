"""Judges transactional histories: finds their anomalies, and the consistency models that the anomalies rule out.

    judge_transactions(events, "list-append")        from events whose payloads are micro-operations (`read.py`)
    checker.LIST_APPEND, checker.RW_REGISTER         from a run's history.parquet, in process or on Spark
    judge_columns(txns, "list-append", event_count)  from integer columns, for large histories

Theory: Adya 1999; Alvaro & Kingsbury, "Elle: Inferring Isolation Anomalies from Experimental Observations", VLDB 2020.
Reads show the versions and their writers, and the order of versions shows the dependencies between transactions.  A
cycle of dependencies is an anomaly, named by the kinds of its edges.  Every reported anomaly is certain.

*Valid* means more than that no anomaly was found: the judge found an order of all transactions that explains every
answer, and replayed this order (`complete.py`).  If no such order exists although the known dependencies form no cycle,
the anomaly is `no-order`, and its witness shows that every order of a few transactions fails.  The verdict is unknown
if the budget ends before an order is found or excluded, or if the history could not have shown any anomaly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from checkers.base.arrays import Bools, Int32
from checkers.base.checker import Budget
from checkers.base.history import Event
from checkers.base.verdict import MAX_WITNESSES, VIOLATIONS_BY_KIND, Validity, Verdict, Witness
from checkers.kernels.codes import dense_processes
from checkers.kernels.transactions import columns as kinds
from checkers.kernels.transactions import list_versions, rw_register
from checkers.kernels.transactions.columns import Edges, Findings, Transactions, element_bases, new_findings
from checkers.kernels.transactions.dependencies import Groups, build_graph, link_groups
from checkers.kernels.transactions.order_replay import keeps_real_time, keeps_sessions
from checkers.kernels.transactions.order_search import NO_ORDER, ORDER, UNDECIDED
from checkers.transactions import anomalies, complete, repeated_values
from checkers.transactions.cycles import CycleSearch, NamedCycle, find_cycles
from checkers.transactions.explain import explain_cycle, explain_finding
from checkers.transactions.read import Model, Transcript, read_transactions

__all__ = ["judge_columns", "judge_transactions", "judge_transcript"]

BYTES_PER_ITEM = 64
"""Bytes that kernels take in addition to the columns, per micro-operation and per version (measured, rounded up).

Ten million transactions with two and a half micro-operations each take 2.4 GB, which the budget of a history allows.
"""

_STEPS_PER_ROW = 2
_ELEMENTS_PER_STEP = 8
"""Number of list elements that the kernels process in one step, which is 20 to 40 ns of work.

Ten million transactions with 190 million list elements take 74 million steps.  The search for cycles gets the remaining
steps of the budget; there a step is one visited edge."""


def judge_transactions(
    events: Sequence[Event],
    model: Model,
    budget: Budget = Budget(),  # noqa: B008 (frozen)
    *,
    consistency: str = anomalies.STRICT_SERIALIZABLE,
    keep_order: bool = False,
) -> Verdict:
    """Judge a history of transactions.

    events: must follow the grammar of a history (`formats.recognise.check_grammar`)
    consistency: the required model, one of `anomalies.MODELS`.  Anomalies that it allows are listed but do not count.
        For registers, the model also decides which orders of versions are certain (`complete.py`)
    keep_order: True to add the replayed order to `details` as "order" if the verdict is valid

    `details`: {"consistency": the required model, "anomalies": {name: number}, "allowed": [names that do not count],
    "violates": [the weakest models ruled out], "ruled_out": [all models ruled out], "strongest_left": [...],
    "search": statistics of the search for an order, if there was one, "decided": a sentence, if valid}.
    Raises MalformedHistory if a payload contains no micro-operations of this model.
    """
    transcript = read_transactions(events, model)
    return judge_transcript(transcript, budget, consistency=consistency, keep_order=keep_order)


def judge_columns(
    txns: Transactions,
    model: Model,
    event_count: int,
    budget: Budget = Budget(),  # noqa: B008 (frozen)
    *,
    consistency: str = anomalies.STRICT_SERIALIZABLE,
) -> Verdict:
    """Judge columns.  Witnesses name keys and values by their numbers.

    event_count: number of events; every position is below it
    """
    transcript = Transcript(model, txns, (), (), (), event_count)
    return judge_transcript(transcript, budget, consistency=consistency)


def judge_transcript(
    transcript: Transcript,
    budget: Budget = Budget(),  # noqa: B008 (frozen)
    *,
    consistency: str = anomalies.STRICT_SERIALIZABLE,
    keep_order: bool = False,
) -> Verdict:
    """Judge transactions that were already read, as `judge_transactions` does.

    If the history has no real time and `consistency` needs it, the strong-session variant is judged instead.  Then the
    verdict is invalid or unknown, never valid.
    """
    if consistency not in anomalies.MODELS:
        raise ValueError(f"{consistency!r} is no consistency model; there are {', '.join(anomalies.MODELS)}")
    base_model, variant = anomalies.parts_of(consistency)
    if not transcript.timed and variant == anomalies.REALTIME:
        shown = anomalies.model_name(base_model, anomalies.PROCESS)
        verdict = judge_transcript(transcript, budget, consistency=shown, keep_order=keep_order)
        if verdict.validity is not Validity.VALID:
            return verdict
        reason = f"the history is {shown}, and it records no real time, so nothing shows whether it is {consistency}"
        return replace(verdict, validity=Validity.UNKNOWN, reason=reason)
    txns = transcript.txns
    key_count = int(txns.key.max()) + 1 if len(txns.key) else 0
    looked_at = {"transactions": len(txns.status), "micro-operations": len(txns.kind), "keys": key_count}
    if not (txns.status == kinds.OK).any():
        return Verdict(Validity.UNKNOWN, looked_at, "no transaction committed, so there was nothing to judge")
    base = element_bases(txns, key_count)
    needed_bytes = BYTES_PER_ITEM * (len(txns.kind) + int(base[-1]))
    if needed_bytes > budget.size_bytes:
        return _too_much(looked_at, f"judging would take {needed_bytes} bytes and the budget is {budget.size_bytes}")
    needed_steps = _STEPS_PER_ROW * len(txns.kind) + len(txns.lists) // _ELEMENTS_PER_STEP
    if needed_steps > budget.steps:
        return _too_much(looked_at, f"judging would take {needed_steps} steps and the budget is {budget.steps}")
    steps_max = budget.steps - needed_steps
    if transcript.initial:
        return _with_choices(transcript, looked_at, consistency, steps_max, keep_order, "")
    found = new_findings()
    known = complete.known_of(transcript.txns, transcript.model, base, found)
    question = _Question(transcript, known, found, consistency, steps_max)
    verdict = _conclude(question, looked_at, keep_order)
    if verdict.validity is Validity.UNKNOWN and found.times[kinds.WRITTEN_TWICE]:
        return _with_choices(transcript, looked_at, consistency, steps_max, keep_order, verdict.reason)
    return verdict


def _with_choices(
    transcript: Transcript, looked_at: dict[str, int], consistency: str, steps_max: int, keep_order: bool, reason: str
) -> Verdict:
    """Decide a history with values that were written twice (`repeated_values.py`).

    reason: the reason why the verdict is unknown without a choice of writers
    """
    left = steps_max
    model = anomalies.parts_of(consistency)[0]

    def attempt(unique: Transcript) -> repeated_values.Attempt:
        nonlocal left
        found = new_findings()
        base = element_bases(unique.txns, int(unique.txns.key.max()) + 1)
        known = complete.known_of(unique.txns, unique.model, base, found)
        if known.versions is not None:
            list_versions.link(unique.txns, base, known.versions, found)  # it also finds anomalies of single reads
        shown = [k for k, name in anomalies.KIND_NAMES.items() if found.times[k] and _counted([name], consistency)]
        if shown:
            return repeated_values.Attempt(repeated_values.FAILS, _transactions_of(found, shown[0]))
        decision = complete.decide(unique.txns, known, consistency, max(1, left), unique.begin, timed=unique.timed)
        left -= len(unique.txns.kind) + decision.figures["steps"]
        if decision.outcome == NO_ORDER:
            circles_show_all = model not in ("read-atomic", "causal")
            circle = frozenset(decision.involved.tolist()) if circles_show_all else None
            return repeated_values.Attempt(repeated_values.FAILS, circle)
        fits = decision.outcome == ORDER
        return repeated_values.Attempt(repeated_values.FITS if fits else repeated_values.OPEN)

    resolved = repeated_values.resolve(transcript, model == "read-uncommitted", attempt)
    if resolved is None or resolved.outcome == repeated_values.OPEN:
        tried = f"; {resolved.attempts} choices of their writers were tried" if resolved else ""
        return Verdict(Validity.UNKNOWN, looked_at, (reason or _two_meanings(transcript)) + tried)
    base = element_bases(resolved.transcript.txns, int(transcript.txns.key.max()) + 1)
    found = new_findings()
    known = complete.known_of(resolved.transcript.txns, transcript.model, base, found)
    question = _Question(resolved.transcript, known, found, consistency, steps_max)
    verdict = _conclude(question, looked_at, keep_order)
    if verdict.validity is not Validity.INVALID:  # one choice proves nothing about stronger models
        return replace(verdict, details={**verdict.details, **of_anomalies([], {})})
    return _no_choice_fits(verdict, resolved, consistency)


def of_anomalies(excluded: list[str], counts: dict[str, int], allowed: Sequence[str] = ()) -> dict[str, Any]:
    """Return the details about anomalies and the excluded models.

    excluded: models that the anomalies rule out
    counts: number of occurrences by anomaly
    allowed: anomalies that do not count
    """
    return {
        "anomalies": counts,
        "allowed": list(allowed),
        "violates": anomalies.weakest(excluded),
        "ruled_out": excluded,
        "strongest_left": anomalies.strongest(excluded),
    }


_TRANSACTIONS_OF = {
    kinds.UNWRITTEN_READ: (0,),
    kinds.ABORTED_READ: (0, 2),
    kinds.INTERMEDIATE_READ: (0, 2),
    kinds.INTERNAL: (0,),
    kinds.FUTURE_READ: (0,),
    kinds.LOST_UPDATE: (0, 1),
    kinds.DIRTY_UPDATE: (0, 1),
    kinds.REORDERED_APPENDS: (0,),
}
"""Kind of finding -> positions of transactions in its sample."""


def _transactions_of(found: Findings, kind: int) -> frozenset[int] | None:
    """Return the transactions that the first finding of a kind rests on.

    Returns None if it may also rest on transactions that are not in its sample.
    """
    if kind not in _TRANSACTIONS_OF:
        return None
    return frozenset(int(found.sample[kind, 0, place]) for place in _TRANSACTIONS_OF[kind])


def _two_meanings(transcript: Transcript) -> str:
    key, value = min(transcript.initial)
    shown = f"{transcript.value_name(key, value)} of key {transcript.key_name(key)}"
    return f"a read of {shown} shows either a write or the initial state"


def _no_choice_fits(verdict: Verdict, resolved: repeated_values.Resolved, consistency: str) -> Verdict:
    """Return the invalid verdict of a history in which no choice of writers has an order.

    The witness comes from the first choice.  Its anomaly becomes `no-order`, because other choices may show others.
    """
    first = verdict.witnesses[0]
    words = (
        f"values were written twice, and no choice of the writes that their reads show has an order "
        f"({resolved.attempts} choices were tried); with the likeliest choice: {first.summary}"
    )
    details = {
        **{name: value for name, value in verdict.details.items() if name != "search"},
        **of_anomalies(anomalies.and_stronger(consistency), {anomalies.NO_ORDER_NAME: 1}),
        VIOLATIONS_BY_KIND: {anomalies.NO_ORDER_NAME: 1},
    }
    witness = replace(first, kind=anomalies.NO_ORDER_NAME, summary=words)
    looked_at = {**verdict.looked_at, "violations": 1}
    return Verdict(Validity.INVALID, looked_at, "", (witness,), details)


def _too_much(looked_at: dict[str, int], reason: str) -> Verdict:
    return Verdict(Validity.UNKNOWN, looked_at, reason)


@dataclass(frozen=True)
class _Question:
    """The question if a history fulfils a model.  An order of all transactions or an anomaly answers it."""

    transcript: Transcript
    known: complete.Known
    found: Findings
    consistency: str
    steps_max: int

    def answer(self) -> tuple[CycleSearch, complete.OrderDecision | None]:
        """Return (the cycles found, the decision about an order).

        The decision is None if single reads or cycles of lists already violate the model.  Lists show nearly all
        dependencies, so the search for cycles comes first.  If there is no cycle, an order exists; if there is a cycle
        that the model forbids, no order exists.  Registers show few dependencies, so the search for an order comes
        first.
        """
        txns, lists = self.transcript.txns, self.known.versions is not None
        search = self._cycles_of_lists() if lists else None
        cycles = [cycle.name for cycle in search.cycles] if search is not None else []
        if _counted([*self._names(), *cycles], self.consistency):
            return self._and_by_longest(search) if search else self._cycles_of_registers(True), None
        if search is not None and search.order is not None and self._is_an_answer(search.order):
            return search, complete.decided_by(search.order, txns, self.known, self.consistency)
        begin, timed = self.transcript.begin, self.transcript.timed
        decision = complete.decide(txns, self.known, self.consistency, self.steps_max, begin, timed=timed)
        if search is None and decision.outcome == ORDER and self._shows_no_cycle(decision):
            return CycleSearch((), ()), decision
        return search or self._cycles_of_registers(decision.outcome != ORDER), decision

    def _is_an_answer(self, order: Int32) -> bool:
        """Return True if an order of dependencies and real time answers the question.

        In a history without real time, all transactions overlap, so the order must also respect the sessions.
        """
        if self.known.written.unusable.any():
            return False
        txns, variant = self.transcript.txns, anomalies.parts_of(self.consistency)[1]
        process, process_count = dense_processes(txns.process)
        return (
            self.transcript.timed or variant == anomalies.PLAIN or keeps_sessions(process, order, False, process_count)
        )

    def _shows_no_cycle(self, decision: complete.OrderDecision) -> bool:
        """Return True if the order is strictly serializable.

        Then registers show no cycle, not even one that only a stronger model than the required one forbids.
        """
        if self.consistency == anomalies.STRICT_SERIALIZABLE:
            return True
        is_serial = not decision.snapshots and anomalies.parts_of(self.consistency)[0] not in complete.WEAK
        return is_serial and not self.found.times.any() and keeps_real_time(self.transcript.txns, decision.order, False)

    def _names(self) -> list[str]:
        return [name for kind, name in anomalies.KIND_NAMES.items() if self.found.times[kind]]

    def _cycles_of_lists(self) -> CycleSearch:
        base, versions = self.known.base, self.known.versions
        assert versions is not None
        direct, ends = list_versions.link(self.transcript.txns, base, versions, self.found)
        return _cycles(self.transcript, direct, ends, len(base) - 1, versions.written.happened, self.steps_max)

    def _and_by_longest(self, certain: CycleSearch) -> CycleSearch:
        """Add cycles with other names that need keys whose lists contradict each other, as Elle does.

        These cycles rule out only models that the contradiction itself rules out.  Read-uncommitted allows the
        contradiction, so under read-uncommitted no such cycle is added.
        """
        base, versions = self.known.base, self.known.versions
        assert versions is not None
        longest = list_versions.by_longest_lists(versions)
        if longest is None or anomalies.parts_of(self.consistency)[0] == "read-uncommitted":
            return certain
        noted = new_findings()  # separate from `found`, which contains the anomalies of all other keys
        noted.times[kinds.INTERNAL] = self.found.times[kinds.INTERNAL]
        direct, ends = list_versions.link(self.transcript.txns, base, longest, noted)
        happened = versions.written.happened
        more = _cycles(self.transcript, direct, ends, len(base) - 1, happened, self.steps_max)
        names = {cycle.name for cycle in certain.cycles}
        added = (replace(cycle, by_longest=True) for cycle in more.cycles if cycle.name not in names)
        return replace(certain, cycles=(*certain.cycles, *added))

    def _cycles_of_registers(self, by_time: bool) -> CycleSearch:
        """Search cycles with the order of versions that reads show.

        by_time: True to search also with the order of versions that time shows, if the first search finds no violation
        """
        txns, base, written = self.transcript.txns, self.known.base, self.known.written
        direct, orders = rw_register.link(txns, base, written, self.found)
        count, happened = int(base[-1]) + len(base) - 1, written.happened
        shown = _of_reads(_cycles(self.transcript, direct, orders, count, happened, self.steps_max))
        if not by_time or _counted([*self._names(), *(cycle.name for cycle in shown.cycles)], self.consistency):
            return shown
        in_time = complete.orders_under(self.consistency, txns, base, written, orders)
        if in_time is None:
            return shown
        assuming = _cycles(self.transcript, direct, in_time, count, happened, self.steps_max)
        return _joined(shown, assuming, self.consistency)


def _of_reads(shown: CycleSearch) -> CycleSearch:
    """Rename each G0 to G1c, because reads showed the order of the versions.

    If a transaction reads one version and writes another, the written version is the later one, or else the transaction
    and the other writer form a G1c.  Read-uncommitted (PL-1) lets reads show anything, so this order does not rule out
    read-uncommitted.
    """
    cycles: dict[str, NamedCycle] = {}
    for cycle in shown.cycles:
        name = cycle.name.replace("G0", "G1c")
        if name not in cycles:
            cycles[name] = replace(cycle, name=name)
        else:
            cycles[name] = replace(cycles[name], times=cycles[name].times + cycle.times)
    unfinished = dict.fromkeys(name.replace("G0", "G1c") for name in shown.unfinished)
    return CycleSearch(tuple(cycles.values()), tuple(unfinished))


def _cycles(
    transcript: Transcript,
    direct: Edges,
    groups: Groups,
    group_count: int,
    happened: Bools,
    steps_max: int,
) -> CycleSearch:
    txns = transcript.txns
    grouped = link_groups(groups, group_count, len(txns.status))
    graph, incoming = build_graph(direct, grouped, len(txns.status) + group_count)
    return find_cycles(txns, graph, incoming, happened, transcript.event_count, steps_max)


def _joined(shown: CycleSearch, assuming: CycleSearch, consistency: str) -> CycleSearch:
    """Join the cycles that reads show with cycles that also need the order of versions under the required model.

    The names of the latter end in the variant of the required model.
    """
    variant = anomalies.parts_of(consistency)[1]
    cycles = {cycle.name: cycle for cycle in shown.cycles}
    for cycle in assuming.cycles:
        name = anomalies.under(cycle.name, variant)
        if name not in cycles and _counted([name], consistency):
            cycles[name] = replace(cycle, name=name, assumes=consistency)
    unfinished = dict.fromkeys([*shown.unfinished, *(anomalies.under(n, variant) for n in assuming.unfinished)])
    return CycleSearch(tuple(cycles.values()), tuple(unfinished))


def _counted(names: Sequence[str], consistency: str) -> list[str]:
    """Return the anomalies that the model forbids."""
    return [name for name in names if consistency in anomalies.ruled_out([name])]


def _conclude(question: _Question, looked_at: dict[str, int], keep_order: bool) -> Verdict:
    """Answer the question, and turn the answer into a verdict."""
    transcript, found, consistency = question.transcript, question.found, question.consistency
    search, decision = question.answer()
    counts = {name: int(found.times[kind]) for kind, name in anomalies.KIND_NAMES.items() if found.times[kind]}
    counts |= {cycle.name: cycle.times for cycle in search.cycles}
    shown = _counted(list(counts), consistency)
    without_order = decision is not None and decision.outcome == NO_ORDER
    if decision is not None and decision.outcome == ORDER and shown:
        raise complete.WrongOrder(f"an order was replayed, and yet there is {shown[0]}")
    if without_order and not shown:
        counts[anomalies.NO_ORDER_NAME] = 1
    names = sorted(counts, key=anomalies.WORST_FIRST.index)
    assuming = {cycle.name for cycle in search.cycles if cycle.assumes or cycle.by_longest}
    excluded = anomalies.ruled_out(name for name in names if name not in assuming)
    if assuming or without_order:
        excluded = anomalies.in_order({*excluded, *anomalies.and_stronger(consistency)})
    counted = [name for name in names if name in shown or name == anomalies.NO_ORDER_NAME]
    allowed = [name for name in names if name not in counted]
    details = {"consistency": consistency, **of_anomalies(excluded, {name: counts[name] for name in names}, allowed)}
    if decision is not None:
        details["search"] = decision.figures
    unfinished = [] if decision is not None and decision.outcome == ORDER else search.unfinished
    reason = "; ".join(_open_questions(transcript, found, _counted(unfinished, consistency), decision, bool(counted)))
    if counted:
        witnesses = _witnesses(transcript, found, search, shown)
        if decision is not None and not shown:
            from checkers.transactions.no_order import explain_no_order  # imports networkx, which few histories need

            witnesses.append(explain_no_order(transcript, decision.involved, consistency))
        by_kind = {name: counts[name] for name in counted}
        looked_at["violations"] = sum(by_kind.values())
        details[VIOLATIONS_BY_KIND] = by_kind
        return Verdict(Validity.INVALID, looked_at, reason, tuple(witnesses), details)
    reason = reason or _nothing_shown(transcript)
    if reason or decision is None:
        return Verdict(Validity.UNKNOWN, looked_at, reason, details=details)
    transactions = len(decision.order) // (2 if decision.snapshots else 1)
    details["decided"] = f"{consistency}: an order of all {transactions} transactions was replayed"
    if keep_order:
        details["order"] = _order_in_rows(transcript, decision)
    return Verdict(Validity.VALID, looked_at, details=details)


def _order_in_rows(transcript: Transcript, decision: complete.OrderDecision) -> list[dict[str, Any]]:
    """Return one row per event of the order: index of the transaction's invoke, process, and kind of event."""
    rows = []
    for event, t in zip(decision.order.tolist(), decision.transactions.tolist(), strict=True):
        invoke = transcript.rows(t)[0]
        takes_place = ("start", "commit")[event % 2] if decision.snapshots else "transaction"
        rows.append({"index": invoke["index"], "process": invoke["process"], "event": takes_place})
    return rows


def _open_questions(
    transcript: Transcript,
    found: Findings,
    unfinished: Sequence[str],
    decision: complete.OrderDecision | None,
    violated: bool,
) -> list[str]:
    questions = []
    if twice := int(found.times[kinds.WRITTEN_TWICE]):
        row = int(found.sample[kinds.WRITTEN_TWICE, 0, 2])
        _, key, value = transcript.micro_operation(row)
        questions.append(
            f"{twice} values were written twice to one key (the first: {value} to {key}), "
            "so the order of those keys' versions is unknown"
        )
    if unfinished:
        questions.append(f"the budget ended the search for smaller or other cycles ({', '.join(unfinished)})")
    if decision is not None and decision.outcome == UNDECIDED and not violated:
        steps = decision.figures["steps"]
        questions.append(f"the search for an order ended at its budget, after {steps} steps, without an answer")
    return questions


def _nothing_shown(transcript: Transcript) -> str:
    """Return the reason why the committed transactions could not show a violation; "" if they could.

    They could if one of them read, and if there was a value to read: an acknowledged write, or a value in a read.
    """
    txns = transcript.txns
    committed = np.repeat(txns.status == kinds.OK, np.diff(txns.first))
    writes = np.count_nonzero(committed & (txns.kind == kinds.WRITE))
    reads = committed & (txns.kind == kinds.READ)
    if not writes:
        in_list = transcript.model == "list-append"
        shows = np.diff(txns.list_first) > 0 if in_list else txns.value != kinds.NIL_VALUE
        if not (reads & shows).any():
            return "no write was acknowledged, and no read showed a written value, so there was nothing to judge"
    if not reads.any():
        noun = "write" if writes == 1 else "writes"
        return f"no read was answered, so nothing shows what became of {writes} acknowledged {noun}"
    return ""


def _witnesses(transcript: Transcript, found: Findings, search: CycleSearch, counted: Sequence[str]) -> list[Witness]:
    """Make one witness for each anomaly that counts, worst first."""
    cycles = {cycle.name: cycle for cycle in search.cycles}
    kind_of = {name: kind for kind, name in anomalies.KIND_NAMES.items()}
    witnesses = []
    for name in counted[:MAX_WITNESSES]:
        if name in cycles:
            witnesses.append(explain_cycle(transcript, cycles[name]))
        else:
            a, b, c = found.sample[kind_of[name], 0].tolist()
            witnesses.append(explain_finding(transcript, kind_of[name], (a, b, c)))
    return witnesses
