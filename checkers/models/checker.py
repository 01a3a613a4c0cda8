"""Checkers of live runs by models: one for each `KnownObject`, and checkers from a user's file.

*Known objects.*  Each known object has a checker.

The hash of a key decides the part that judges the key.  A part reads `history.parquet` one row group after another, and
keeps only the events of its own keys, so it needs memory for these keys only.  Payloads (lists, sets, strings) are
JSON.  Registers have a separate checker, which reads sealed buckets (`checkers/registers`).

Either all operations of a history have a key, or no operation has one.  Every part checks this for the whole history.

*Own checkers.*  A workload may declare a model, a function, or a complete checker by value.

    checkers = ("set", MAX_REGISTER, never_goes_back)

For a `Model` (`checkers/models/model.py`), the checker searches an order of all operations of each object.  A function
receives the operations of a run (`SeenByClients`) and yields its violations: for each violation a sentence, or a pair
of the sentence and the operations that show it.  If it yields a pair of `Validity.UNKNOWN` and a reason, it could not
decide.  A `Checker` is used unchanged.

Own checkers are the user's code, which workers of Spark do not have.  So they run in the process of the harness, with
the usual budgets.  If the code raises, the verdict is unknown, and its reason names file and line.
"""

from __future__ import annotations

import inspect
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part
from checkers.base.columns import HISTORY
from checkers.base.history import CREATE, NEMESIS, Event, Type
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict, Witness, conclude
from checkers.models.each_object import KNOWN, NOTHING_ANSWERED, ObjectsFinding, judge_each, rows_of, verdict_of
from checkers.models.known_object import KnownObject, searched
from checkers.models.model import KeyedOrNot, Model, Operation, operations_of
from checkers.models.read_own_model import checked

EVENTS_PER_PART, PARTS_MAX = 200_000, 16
"""Number of events per part, and maximum number of parts.  Parts are few because each reads the whole history."""

_NEEDS: frozenset[Any] = frozenset({"history", "model"})
BYTES_PER_EVENT = 1_200
"""Bytes of memory for an event in Python and half an operation (measured, rounded up)."""


def checker_of(known: KnownObject) -> Checker:
    """Return the checker for runs whose workload names this model."""

    def split(run: StoredRun) -> list[Part]:
        rows = pq.ParquetFile(run.history).metadata.num_rows
        count = 1 if known.whole else max(1, min(PARTS_MAX, rows // EVENTS_PER_PART))
        params = [{"model": known.name, "number": number, "count": count} for number in range(count)]
        return [Part((str(run.history),), each) for each in params]

    return Checker(known.name, known.title, known.question, split, judge, combine, _NEEDS)


def judge(part: Part, budget: Budget) -> ObjectsFinding:
    """Judge the objects of one part.

    part.params: "model" (its name), "number" (of this part) and "count" (of all parts); the last two decide its keys
    """
    path, number, count = part.paths[0], part.params["number"], part.params["count"]
    events: list[Event] = []
    keys = KeyedOrNot()
    with pq.ParquetFile(path) as file:
        for group in range(file.metadata.num_row_groups):
            table = file.read_row_group(group, HISTORY.names, use_threads=False)
            _demand_keys_or_none(table, keys)
            mine = table.filter(_mine(table, number, count))
            needed_bytes = (len(events) + len(mine)) * BYTES_PER_EVENT
            if needed_bytes > budget.size_bytes:
                reason = f"part {number} needs more than {needed_bytes} bytes, the budget is {budget.size_bytes} bytes"
                return ObjectsFinding(operations=(len(events) + len(mine)) // 2, unknown=(reason,))
            events += _events(mine)
    return judge_each(events, KNOWN[part.params["model"]], budget)


def combine(run: StoredRun, findings: Sequence[ObjectsFinding]) -> Verdict:
    return verdict_of(findings)


CHECKERS = tuple(checker_of(known) for known in KNOWN.values())


def _demand_keys_or_none(table: pa.Table, keys: KeyedOrNot) -> None:
    """Raise WrongEvent if some operations have a key and others have none.

    keys: the result for the rows before the table
    """
    clients = pc.and_(pc.greater_equal(table["process"], 0), pc.equal(table["type"], int(Type.INVOKE)))
    operations = pc.and_(clients, pc.not_equal(pc.cast(table["f"], pa.string()), CREATE))
    firsts = [
        table.filter(pc.and_(operations, mine)).slice(0, 1)
        for mine in (pc.is_valid(table["key"]), pc.is_null(table["key"]))
    ]
    for event in sorted(_events(pa.concat_tables(firsts)), key=lambda each: each.index):
        keys.invoked(event)


def _mine(table: pa.Table, number: int, count: int) -> pa.Array:
    """Return a mask of the rows that belong to clients and to this part."""
    codes = table["key"].combine_chunks()
    codes = codes if isinstance(codes, pa.DictionaryArray) else codes.dictionary_encode()
    part_of = [zlib.crc32(name.encode()) % count for name in codes.dictionary.to_pylist()]
    part_of.append(0)  # rows without a key form part 0
    at = np.asarray(codes.indices.fill_null(len(part_of) - 1))
    return pa.array((np.array(part_of)[at] == number) & (np.asarray(table["process"]) >= 0))


def _events(table: pa.Table) -> list[Event]:
    return list(map(Event.of_row, table.to_pylist()))


_END_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class SeenByClients:
    """Operations of clients in order of call, without failed operations and without set-up.

    operations: all operations
    final: the operations of the final phase, after recovery"""

    operations: tuple[Operation, ...]
    final: tuple[Operation, ...]

    @property
    def main(self) -> tuple[Operation, ...]:
        """Return the operations of the main phase."""
        return self.operations[: len(self.operations) - len(self.final)]


Found = str | tuple[str, Sequence[Operation]] | tuple[Validity, str]
Find = Callable[[SeenByClients], Iterable[Found]]


class WrongChecker(ValueError):
    """A workload declares a value that is no checker.  The caller embeds the message in a sentence."""


def own_checkers(stated: Iterable[object]) -> list[Checker]:
    """Return the checkers that a workload declares by value, without those that it declares by name.

    Raises WrongChecker.
    """
    return [own_checker_of(each) for each in stated if not isinstance(each, str)]


def own_checker_of(stated: object) -> Checker:
    """Return the checker for a declared value.  Raises WrongChecker."""
    if isinstance(stated, Checker):
        return replace(stated, in_process=True)
    if isinstance(stated, Model):
        return _of_model(stated)
    if inspect.isfunction(stated):
        return _of_function(stated)
    raise WrongChecker(f"{stated!r:.60} is no checker: state a name, a Model, a function or a Checker")


def _of_model(model: Model) -> Checker:
    known = searched(checked(model), model.name, "Is there one order of all operations that explains every answer?")

    def judge(part: Part, budget: Budget) -> ObjectsFinding:
        events = _all_events(part, budget)
        if isinstance(events, str):
            return ObjectsFinding(unknown=(events,))
        return judge_each([event for event in events if event.process != NEMESIS], known, budget)

    return Checker(model.name, model.name, known.question, _whole, judge, combine, _NEEDS, in_process=True)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The result of a checker function.

    unknown: reasons why the function could not decide
    """

    answered: int = 0
    violations: tuple[tuple[str, tuple[Mapping[str, Any], ...]], ...] = ()
    unknown: tuple[str, ...] = ()


def _of_function(find: Find) -> Checker:
    name = find.__name__.replace("_", "-")
    question = (inspect.getdoc(find) or name).splitlines()[0]

    def judge(part: Part, budget: Budget) -> _Answer:
        events = _all_events(part, budget)
        if isinstance(events, str):
            return _Answer(unknown=(events,))
        seen = _seen(events, part.params["final_ns"])
        answered = sum(operation.returned for operation in seen.operations)
        rows = rows_of(events)
        try:
            found = list(find(seen))
            unknown = tuple(each[1] for each in found if _is_unknown(each))
            wrong = [_violation(each, name) for each in found if not _is_unknown(each)]
        except Exception as problem:  # noqa: BLE001 - the user's code may raise anything
            return _Answer(answered, unknown=(f"{name} failed{_at(problem)}: {type(problem).__name__}: {problem}",))
        return _Answer(answered, tuple((words, tuple(rows(shown))) for words, shown in wrong), unknown)

    def combine(run: StoredRun, answers: Sequence[_Answer]) -> Verdict:
        (answer,) = answers
        looked_at = {"operations that were answered": answer.answered}
        unknown = list(answer.unknown)
        if not answer.answered and not unknown:
            unknown = [NOTHING_ANSWERED]
        witnesses = [Witness(name, words, events=events, facts={"why": []}) for words, events in answer.violations]
        return conclude(witnesses, looked_at, unknown)

    return Checker(name, name, question, _whole, judge, combine, _NEEDS, in_process=True)


def _whole(run: StoredRun) -> list[Part]:
    final = run.outcome.phase("final reads")
    return [Part((str(run.history),), {"final_ns": final.start_ns if final is not None else _END_NS})]


def _all_events(part: Part, budget: Budget) -> list[Event] | str:
    """Return every event of clients and of the nemesis, or a sentence if they need more than the budget."""
    with pq.ParquetFile(part.paths[0]) as file:
        needed_bytes = file.metadata.num_rows * BYTES_PER_EVENT
        if needed_bytes > budget.size_bytes:
            return f"the history needs more than {needed_bytes} bytes, the budget is {budget.size_bytes} bytes"
        rows = file.read(HISTORY.names, use_threads=False).to_pylist()
    return list(map(Event.of_row, rows))


def _seen(events: Sequence[Event], final_ns: int) -> SeenByClients:
    operations = tuple(operations_of(events))
    return SeenByClients(operations, tuple(o for o in operations if o.time_ns[0] >= final_ns))


def _is_unknown(found: object) -> TypeGuard[tuple[Validity, str]]:
    match found:
        case (Validity.UNKNOWN, str() as reason) if reason:
            return True
    return False


def _violation(found: object, name: str) -> tuple[str, tuple[Operation, ...]]:
    match found:
        case str() if found:
            return found, ()
        case (str() as words, shown) if words:
            return words, tuple(_operations(shown))
    forms = "sentences, pairs of a sentence and operations, or pairs of Validity.UNKNOWN and a reason"
    raise TypeError(f"{name} must yield {forms}, not {found!r:.60}")


def _operations(shown: object) -> Iterator[Operation]:
    for each in shown if isinstance(shown, Iterable) else (shown,):
        if not isinstance(each, Operation):
            raise TypeError(f"{each!r:.60} is no operation")
        yield each


def _at(problem: BaseException) -> str:
    frames = traceback.extract_tb(problem.__traceback__)
    return f" at {frames[-1].filename.rpartition('/')[2]} line {frames[-1].lineno}" if frames else ""
