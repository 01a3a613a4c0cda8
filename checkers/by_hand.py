"""Judges a single history, which does not belong to a run: a file of any format, or events of any source, by a model.

The exact question for each model:

    register, cas-register   is there one order of all operations of a key that explains every answer?
    kv, queue, counter,      the same question for strings, a first-in-first-out queue, a sum, a lock
    mutex
    set, append-log          the same question, decided without a search: answers show the order up to ties
    unique-ids               was no id handed out twice?
    FILE.py                  the same question for your own model (`checkers/models/read_own_model.py`)

Two questions come first: does a queue conserve its values, and is every read of a counter within its bounds?  Both are
decided for histories of any size; if the answer is no, no order can explain the history.  The order of a queue is also
decided for any size if no value is enqueued twice.

*Files.*  A file is a task, in process or in a Spark worker: the worker gets a path and an `Ask`, opens the file itself,
and returns a small `FileVerdict`.  The same function runs in both places, so a file has the same verdict everywhere.

A file is read before a model is imported.  So an unreadable file is rejected without loading kernels (numba) or tables
(pyarrow).

If a user names no model, the functions of the operations suggest possible models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np

from checkers.base.checker import Budget, Judged, Part, Task
from checkers.base.history import NEMESIS, Event, MalformedHistory, Type
from checkers.base.values import encode, parse
from checkers.base.verdict import Validity, Verdict
from checkers.formats.read_once import Pieces, cobra_logs, history_in, read_pieces, session_format
from checkers.formats.recognise import ReadHistory, read_history
from checkers.kernels.jit import SMALL_BYTES, python_alone
from checkers.models.model import ForeignEvent, Model, WrongEvent, demand_values
from checkers.models.read_own_model import BadModel, model_of

if TYPE_CHECKING:
    from checkers.models.known_object import KnownObject
    from checkers.transactions.read import Transcript


_BY_FUNCTIONS: tuple[tuple[frozenset[str], tuple[str, ...]], ...] = (
    (frozenset({"read", "write"}), ("register",)),
    (frozenset({"read", "write", "cas"}), ("cas-register",)),
    (frozenset({"get", "put", "append"}), ("kv",)),
    (frozenset({"add", "read"}), ("set", "counter")),
    (frozenset({"add", "inc", "dec", "read"}), ("counter",)),
    (frozenset({"enqueue", "dequeue", "drain"}), ("queue", "at-least-once-queue")),
    (frozenset({"push", "pop"}), ("stack",)),
    (frozenset({"insert", "extract-min"}), ("priority-queue",)),
    (frozenset({"acquire", "release"}), ("mutex", "semaphore:N")),
    (frozenset({"acquire", "release", "write"}), ("fenced-lock",)),
    (frozenset({"generate"}), ("unique-ids",)),
    (frozenset({"append", "read"}), ("append-log",)),
    (frozenset({"transfer", "read"}), ("bank",)),
    (frozenset({"send", "poll", "assign", "subscribe", "txn"}), ("kafka",)),
)
"""(functions, names of the models with these functions).  The first entry with all functions of a history is the hint.
"""

_BY_STEPS = {"append": "list-append", "w": "rw-register", "write": "multi-register"}
"""Name of a micro-operation that writes -> model of transactions with this micro-operation."""


def likely_models(events: Iterable[Event]) -> tuple[str, ...]:
    """Return names of models, the most likely first; empty if no model has these operations."""
    invoked = [e for e in events if e.type is Type.INVOKE and e.process != NEMESIS]
    functions = {e.f for e in invoked}
    if functions == {"txn"}:
        steps = {str(step[0]) for e in invoked for step in _steps(e) if isinstance(step, list) and step}
        return tuple(name for step, name in _BY_STEPS.items() if step in steps)
    return next((names for known, names in _BY_FUNCTIONS if functions and functions <= known), ())


def _steps(event: Event) -> list[object]:
    steps = json.loads(event.payload) if event.payload is not None else None
    return steps if isinstance(steps, list) else []


REGISTERS = ("register", "cas-register")

MULTI_REGISTER = "multi-register"
"""Model of several registers that one operation reads or writes: strictly serializable transactions over registers."""

KAFKA, KAFKA_READ_TO_END = "kafka", "kafka-read-to-end"
TRANSACTIONS: tuple[Literal["list-append"], Literal["rw-register"]] = ("list-append", "rw-register")

DID_NOT_HAPPEN = "did-not-happen"
"""Default meaning of a failed cas (`checkers.registers.judge_keys`)."""

STRICT_SERIALIZABLE, STRONG_SESSION_SERIALIZABLE = "strict-serializable", "strong-session-serializable"
"""Default consistency of transactions (`checkers.transactions.anomalies`).

The second one is for histories that record sessions but no real time.
"""


ALL, COUNT = -1, -2
GROUPS_TO_JUDGE = "groups to judge"


@dataclass(frozen=True, slots=True)
class Ask:
    """Options for judging a file.

    model: one of `names()`, or the path of a Python file whose text is `source`; "" if the file's format decides
    keyed: True if a value [k v] in EDN or in a log is a key and its value
    failed_cas: meaning of a failed cas
    consistency: consistency of transactions; "" for the default
    allow: for Kafka's logs, names of anomalies that do not count; None for `allowed_anomalies`
    order: True if the details of a valid verdict contain the order of all transactions
    levels: True if transactions are also judged at every level
    settings: (name, value) of facts about the object (`checkers.models.each_object.SETTINGS`)
    group: the group of independent transactions to judge (`checkers.transactions.groups`).  ALL: judge every group, one
        after another.  COUNT: if there is only one group, judge it; otherwise return only the number of groups.
    """

    model: str
    source: str = ""
    keyed: bool = False
    failed_cas: str = DID_NOT_HAPPEN
    consistency: str = ""
    allow: tuple[str, ...] | None = None
    order: bool = False
    levels: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    group: int = ALL


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """Verdict on a file.

    error: reason why the file or the user's own model could not be used, or ""; with a reason the verdict is unknown
    model: the model that the file's format determined; "" if the user named the model
    """

    verdict: Verdict
    error: str = ""
    model: str = ""

    @property
    def groups_to_judge(self) -> int:
        """Return the number of groups of independent transactions if the file was not judged yet; otherwise 0."""
        return int(self.verdict.details.get(GROUPS_TO_JUDGE, 0))


def names() -> tuple[str, ...]:
    """Return the names of all models."""
    return (*_object_names(), MULTI_REGISTER, *TRANSACTIONS, KAFKA, KAFKA_READ_TO_END)


def _object_names() -> tuple[str, ...]:
    from checkers.models.each_object import KNOWN, SEMAPHORE

    return (*REGISTERS, *KNOWN, SEMAPHORE)


def task_of(path: Path, ask: Ask, budget: Budget) -> Task:
    """Return the task that judges one file."""
    return Task(judge, Part((str(path),), asdict(ask)), budget)


def judge(part: Part, budget: Budget) -> FileVerdict:
    """Judge the file of a part.  Never raises because of the file's content or a user's model."""
    ask = Ask(**part.params)
    try:
        path = Path(part.paths[0])
        if path.is_dir() and cobra_logs(path):
            return _judge_content(path, None, ask, budget)
        content = read_pieces(path if not path.is_dir() else history_in(path) or path)
    except (MalformedHistory, OSError, MemoryError) as problem:
        return _refused(_words_of(problem))
    size_bytes, contents = len(content.first), [content]
    del content  # frees the memory of a large file before judging

    def work() -> FileVerdict:
        return _judge_content(path, contents[0] if size_bytes <= SMALL_BYTES else contents.pop(), ask, budget)

    return python_alone(work, size_bytes)


def _judge_content(path: Path, content: Pieces | None, ask: Ask, budget: Budget) -> FileVerdict:
    """Judge a file.

    content: content of the file; None if `path` is a folder of Cobra's logs
    """
    try:
        if content is None or session_format(content.first) is not None:
            return _judge_sessions(path, content, ask, budget)
        if not ask.model:
            return _refused(_without_model(content))
        history = read_history(content, keyed=ask.keyed)
        del content
        _demand_values(history, ask)
        if not ask.keyed and not ask.source:
            _demand_no_tuples(history)
        verdict = _with_unread_objects(_judge_history(history, ask, budget))
    except WrongEvent as wrong:
        words = f"{history.place_of(wrong.index)}: {wrong.words}"
        foreign = isinstance(wrong, ForeignEvent)
        return FileVerdict(Verdict(Validity.UNKNOWN, reason=words)) if foreign else _refused(words)
    except (MalformedHistory, BadModel, OSError, MemoryError, RecursionError) as problem:
        return _refused(_words_of(problem))
    if verdict.validity is Validity.NOT_APPLICABLE:  # a file does not pass if nothing in it was judged
        verdict = Verdict(Validity.UNKNOWN, verdict.looked_at, verdict.reason)
    return FileVerdict(verdict)


def _judge_sessions(path: Path, pieces: Pieces | None, ask: Ask, budget: Budget) -> FileVerdict:
    """Judge a history in sessions: the content of a file, or a folder of Cobra's logs if `pieces` is None."""
    from checkers.formats.session_files import SIZE_FACTOR, read_cobra_folder, read_session_history
    from checkers.transactions.read_sessions import model_of as model_of_sessions
    from checkers.transactions.read_sessions import transcript_of

    content = pieces.whole() if pieces is not None else b""
    size_bytes = len(content) if content else sum(log.stat().st_size for log in cobra_logs(path))
    if size_bytes * SIZE_FACTOR > budget.size_bytes:
        words = f"reading {size_bytes} bytes takes {size_bytes * SIZE_FACTOR}, and the budget is {budget.size_bytes}"
        return FileVerdict(Verdict(Validity.UNKNOWN, reason=words))
    sessions = read_session_history(content) if content else read_cobra_folder(path)
    model = model_of_sessions(sessions)
    if ask.model not in ("", model):
        return _refused(f"line 1: a history of {model} in the format {sessions.format}, not of {ask.model:.60}")
    return FileVerdict(_judge_transcript(transcript_of(sessions), ask, budget), model=model)


def _without_model(content: Pieces) -> str:
    """Return the message for a history whose format does not determine the model."""
    likely = likely_models(read_history(content).events)
    hint = f", perhaps {' or '.join(likely)}" if likely else ""
    return f"line 1: its format does not determine the model: give --model NAME{hint}"


def _with_unread_objects(verdict: Verdict) -> Verdict:
    """Return a verdict on only the objects that were read, if the others make the verdict on a file unknown.

    The workload of a run must read every object, so the verdict on a run stays unknown.
    """
    unread, objects = (int(verdict.looked_at.get(name, 0)) for name in ("unseen_keys", "keys"))
    if verdict.validity is not Validity.UNKNOWN or not 0 < unread < objects:
        return verdict
    words = f"{unread} of {objects} keys {'was' if unread == 1 else 'were'} never read ({verdict.reason})"
    return Verdict(Validity.VALID, verdict.looked_at, details={**verdict.details, "decided": words})


def _demand_values(history: ReadHistory, ask: Ask) -> None:
    """Raise WrongEvent if a value that the model needs is missing; for a user's own model, if no row has a value."""
    if not history.without_value:
        return
    if ask.source:
        if len(history.without_value) == len(history.events):
            words = "no operation of this history has a :value, so every value would be nil; name the values :value"
            raise WrongEvent(history.events[0].index, words)
        return
    given, answered = _needed_values(ask.model)
    demand_values(history.events, history.without_value, given, answered)


def _demand_no_tuples(history: ReadHistory) -> None:
    """Raise WrongEvent if all values are [key value], as Jepsen's `independent` writes them.

    In such a history some read was invoked with [key nil].  The operations of no built-in model all have this form.
    """
    columns = history.columns
    rows = np.flatnonzero((columns.rows.type == Type.INVOKE) & (columns.rows.process != NEMESIS))
    if (columns.rows.key[rows] >= 0).any() or not columns.has_payload[rows].all():
        return
    without_value = None
    for row in rows.tolist():
        payload = columns.payload(row) or ""
        value = json.loads(payload)
        if not isinstance(value, list) or len(value) != 2:
            return
        if value[1] is None and without_value is None:
            without_value = row
    if without_value is not None:
        (event,) = columns.events([without_value])
        words = f"{event.f} of {event.payload:.40} looks like [key value]: use --keyed"
        raise WrongEvent(event.index, words)


def judge_as(events: Sequence[Event], ask: Ask, budget: Budget) -> Verdict:
    """Judge the events of a history from any source.  Raises the same exceptions as `_judge_history`."""
    from checkers.formats.rows import columns_of

    return _judge_history(ReadHistory(columns_of(events), "row"), ask, budget)


def _judge_history(history: ReadHistory, ask: Ask, budget: Budget) -> Verdict:
    """Judge a history; transactions and registers are judged from columns, without making an event for each row.

    Raises BadModel if a user's model fails, MalformedHistory if values do not fit the model.
    """
    if ask.model in TRANSACTIONS:
        from checkers.transactions.read import read_history as transcript_of_history

        return _judge_transcript(transcript_of_history(history.columns, ask.model), ask, budget)
    if ask.model in REGISTERS:
        from checkers.registers.judge_history import judge_registers

        return judge_registers(history.columns, ask.model, budget, ask.failed_cas)
    if ask.model == MULTI_REGISTER:
        from checkers.transactions.read import read_transactions

        steps = [replace(e, payload=_as_steps(e)) if e.process != NEMESIS else e for e in history.events]
        ask = replace(ask, consistency=STRICT_SERIALIZABLE)
        return _judge_transcript(read_transactions(steps, "rw-register"), ask, budget)
    if ask.model in (KAFKA, KAFKA_READ_TO_END):
        from checkers.kafka_log.judge import judge_kafka_log

        read_to_end = ask.model == KAFKA_READ_TO_END
        return judge_kafka_log(history.events, budget, allow=ask.allow, read_to_end=read_to_end)
    model = model_of(ask.source, ask.model) if ask.source else ask.model
    return judge_events(history.events, model, budget, ask.failed_cas, dict(ask.settings))


def _as_steps(event: Event) -> str | None:
    """Return the payload of an event with r and w in place of read and write, as transactions have them."""
    value = parse(event.payload) if event.payload is not None else None
    if not isinstance(value, list):
        return event.payload
    short = {"read": "r", "write": "w"}
    return encode(
        [[short.get(s[0], s[0]), *s[1:]] if isinstance(s, list) and s and isinstance(s[0], str) else s for s in value]
    )


def _judge_transcript(transcript: Transcript, ask: Ask, budget: Budget) -> Verdict:
    from checkers.transactions.anomalies import MODELS
    from checkers.transactions.groups import group_count, groups_of, judge_by_groups, judge_group

    consistency = ask.consistency or (STRICT_SERIALIZABLE if transcript.timed else STRONG_SESSION_SERIALIZABLE)
    if ask.group != ALL and not ask.levels:
        groups = groups_of(transcript, consistency)
        count, group = group_count(groups), max(0, ask.group)
        if ask.group == COUNT and count > 1:
            return Verdict(Validity.UNKNOWN, reason="it was not judged yet", details={GROUPS_TO_JUDGE: count})
        return judge_group(transcript, groups, group, budget, consistency=consistency, keep_order=ask.order)
    verdict = judge_by_groups(transcript, budget, consistency=consistency, keep_order=ask.order)
    if not ask.levels:
        return verdict
    rows = []
    for level in MODELS:
        each = judge_by_groups(transcript, budget, consistency=level)
        words = each.witnesses[0].summary if each.witnesses else each.reason or each.details["decided"]
        rows.append({"level": level, "verdict": str(each.validity), "why": words})
    return replace(verdict, details={**verdict.details, "levels": rows})


def joined_verdict(of_groups: Sequence[FileVerdict]) -> FileVerdict:
    """Return the verdict on a file from the verdicts on its groups of transactions."""
    from checkers.transactions.groups import joined

    error = next((each.error for each in of_groups if each.error), "")
    return replace(of_groups[0], verdict=joined([each.verdict for each in of_groups]), error=error)


def verdict_of(judged: Judged) -> FileVerdict:
    """Return the verdict of a finished task; it is unknown if the judge failed or its worker died."""
    if judged.finding is None:
        return FileVerdict(Verdict(Validity.UNKNOWN, reason=f"it could not be judged: {judged.failure}"))
    found: FileVerdict = judged.finding
    return found


def _words_of(problem: Exception) -> str:
    """Return the reason why a file could not be read, in one clause."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    if isinstance(problem, MemoryError | RecursionError):
        return "out of memory" if isinstance(problem, MemoryError) else "nested too deeply"
    return str(problem)


def _refused(words: str) -> FileVerdict:
    return FileVerdict(Verdict(Validity.UNKNOWN, reason=words), words)


def judge_events(
    events: Sequence[Event],
    model: str | Model,
    budget: Budget | None = None,
    failed_cas: str = "did-not-happen",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Verdict:
    """Return the verdict on one history.

    model: the name of a known object, or a model
    failed_cas: meaning of a failed cas for registers, `did-not-happen` or `observed`
    settings: facts about the object (`SETTINGS`)
    Raises ValueError for an unknown name, WrongEvent if an event contradicts another event or the model.
    """
    budget = budget or Budget()
    if isinstance(model, str) and model in REGISTERS:
        from checkers.formats.rows import columns_of
        from checkers.registers.judge_history import judge_registers

        return judge_registers(columns_of(events), model, budget, failed_cas)
    from checkers.models import each_object
    from checkers.models.known_object import searched

    known = each_object.known_object(model, settings) if isinstance(model, str) else searched(model, exact=False)
    if known is None:
        raise ValueError(f"there is no model {model!r}; there are {', '.join(_object_names())}")
    found_empty = {e.index for e in events if _found_empty(e, known)}
    if settings.get("empty") == "observed":
        events = [_as_empty(e) if e.index in found_empty else e for e in events]
    verdict = each_object.verdict_of([each_object.judge_each(events, known, budget)])
    if not found_empty or settings.get("empty") or verdict.validity is not Validity.VALID:
        return verdict
    take = " or ".join(sorted(known.observers)) if known.container else ""
    ignored = f"answers of {take} that failed with :empty and were not counted: {len(found_empty)}"
    ignored = f"{ignored}; --set empty=observed reads each as an empty {known.name}"
    decided = "; ".join([*filter(None, [verdict.details.get("decided")]), ignored])
    return replace(verdict, details={**verdict.details, "decided": decided})


_EMPTY = re.compile(r"\W*empty\W*")
"""Error that reports an empty container: `:empty`, "empty", `[:empty]`."""


def _found_empty(event: Event, known: KnownObject) -> bool:
    """Return True if an operation failed because the container was empty."""
    takes = known.observers if known.container and known.empty_shows else ()
    return event.type is Type.FAIL and event.f in takes and _EMPTY.fullmatch(event.error or "") is not None


def _as_empty(event: Event) -> Event:
    """Turn a failure into an ok answer: nil for a dequeue or pop, an empty list for a drain."""
    return replace(event, type=Type.OK, value=None, payload="[]" if event.f == "drain" else None)


def _needed_values(model: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return (functions of a model that need a value in their invoke, functions that need a value in their answer)."""
    if model in REGISTERS:
        return frozenset({"write", "cas"}), frozenset({"read"})
    from checkers.models.each_object import known_object

    if (known := known_object(model)) is not None:
        return known.given, known.answered
    return frozenset(), frozenset({"send", "poll", "txn"})
