"""Measure the time to judge objects: registers with repeated values, and a key-value store of strings.

    python -m bench.objects registers [--operations 5000000] [--grid] [--operations-max 10000] [--limit-s 5]
    python -m bench.objects strings [--histories 10] [--json FILE]

CPU time of one core.  Kernels are compiled before anything is measured.  Report how busy the machine was: the load is
printed last.

*Registers.*  Large single keys, and with --grid a grid of hard histories; short measurements are the minimum of several
runs.  A hard history has one register.  It is correct by construction, or has one late answer that is certainly wrong.
`VIOLATIONS` explains why each answer is wrong; no search is needed.

*Strings.*  From events to the verdict on all keys; no value is reused from the previous run.  For each history the
minimum of five runs counts; the median and the maximum over all histories are reported.  In a wrong history, one late
get lacks one value; its figure includes the witness.

The histories resemble the largest one of Porcupine, `test_data/kv/c50-ok.txt` of MIT's lab of a replicated store: 50
clients and ten keys in three rounds.  Half of the operations are appends, one in twenty is a put, the others are gets.
A value contains its client and the number of the client's operation.  Each round counts anew, so some values are
appended to a key twice.  Some clients get one answer after another, and others wait for most of a round.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from random import Random

import numpy as np

from bench.instruments.figures import BenchFigure, Sheet, goal_here, least_s, script
from checkers.base.arrays import Int8, Int32, Int64
from checkers.base.history import Event, Type
from checkers.base.values import forget_decoded
from checkers.base.verdict import Validity
from checkers.by_hand import judge_events
from checkers.kernels import register_antichain as antichain
from checkers.kernels import register_unique_values as register
from checkers.kernels.jit import kernel
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, READ, WRITE
from checkers.kernels.register_unique_values import Key

START = np.array([NIL], np.int64)
STEPS, SIZE_BYTES = 10**11, 2 * 10**9
STEPS_OF_A_CELL = 40_000_000
NAMES = {antichain.LINEARIZABLE: "valid", antichain.NO_ORDER: "invalid"}


def registers(given: argparse.Namespace, sheet: Sheet) -> None:
    big_keys(given.operations, sheet)
    if given.grid:
        for observed in (False, True):
            grid(given.operations_max, given.limit_s, observed, sheet)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    sheet.add("registers, peak memory", given.operations, "operations", peak_mb, "MB", 2000)


def big_keys(operations: int, sheet: Sheet) -> None:
    """Measure one key: unique values by zones and by search, then few values, valid and with one late violation."""
    for clients in (5, 10):
        size = operations // 10
        key, positions = correct_key(size, clients, 0, 0, 1)
        scratch = register.new_scratch(size, positions)
        zones = least_s(partial(register.judge_key, key, positions, scratch), 4)
        search = least_s(partial(judged, key, positions), 4)
        what = f"one key, unique values, {clients} clients"
        sheet.add(f"{what}, by zones", size, "operations", zones)
        sheet.add(f"{what}, by search", size, "operations", search)
        sheet.add(f"{what}, search / zones", size, "operations", search / zones, "times")
    for clients, open_ in ((5, 0), (5, 10), (10, 0), (30, 0)):
        size = operations if clients == 5 and not open_ else operations // 10
        correct = correct_key(size, clients, 5, open_, 2)
        wrong = VIOLATIONS["taken twice"](*correct, np.random.default_rng(2))
        for verdict, (key, positions) in (("valid", correct), ("invalid", wrong)):
            cell = judged(key, positions)
            assert cell.verdict == verdict
            what = f"one key, values 0-4, {clients} clients, {open_} open, {verdict}"
            sheet.add(what, size, "operations", cell.seconds, goal=3.0 if size == 5_000_000 else None)
            sheet.add(what, size, "operations", cell.size_bytes / 1e6, "MB", 2000)


def grid(operations_max: int, limit_s: float, observed: bool, sheet: Sheet) -> None:
    """Measure operations x clients x open operations x kind of violation, with five seeds per cell; the worst counts.

    observed: True if a failed cas proves another value; False if it only did not happen
    """
    reading = "observed" if observed else "did not happen"
    print(f"\nA cas that failed: {reading}")
    print(f"{'ops':>6} {'clients':>7} {'open':>4}  {'history':<18} {'seconds':>9} {'steps':>11} {'MB':>7}")
    undecided = 0
    sizes = [size for size in (100, 1000, 10_000) if size <= operations_max]
    for operations, clients, open_ in product(sizes, (5, 10, 30, 100), (0, 5, 10, 30)):
        for name, spoil in {"valid": None, **VIOLATIONS, "another answer": another_answer}.items():
            cells = []
            for seed in range(5):
                key, positions = correct_key(operations, clients, 5, min(open_, operations // 10), seed, observed)
                if spoil is not None:
                    key, positions = spoil(key, positions, np.random.default_rng(seed))
                cells.append(judged(key, positions, STEPS_OF_A_CELL))
            worst = max(cell.seconds for cell in cells)
            steps, size = max(cell.steps for cell in cells), max(cell.size_bytes for cell in cells)
            verdicts = {cell.verdict for cell in cells}
            late = worst > limit_s or "no verdict" in verdicts
            undecided += late
            if name != "another answer":
                assert verdicts <= {"valid" if name == "valid" else "invalid", "no verdict"}, (operations, clients)
            line = f"{operations:>6} {clients:>7} {open_:>4}  {name:<18} {worst:9.4f} {steps:>11} {size / 1e6:7.1f}"
            line += "  <- not decided in time: " + ", ".join(sorted(verdicts)) if late else ""
            figure = f"grid, failed cas {reading}, {clients} clients, {open_} open, {name}"
            sheet.keep(BenchFigure(figure, operations, "operations", worst, "s", goal_here(limit_s, "s")), line)
    sheet.add(f"grid, failed cas {reading}, cells not decided", operations_max, "operations", undecided, "", 0)


@dataclass(frozen=True)
class GridCell:
    """Outcome for one history."""

    verdict: str
    seconds: float
    steps: int
    size_bytes: int


def judged(key: Key, positions: int, steps_max: int = STEPS) -> GridCell:
    began = time.process_time()
    code, _, steps, size = antichain.measure_key(key, positions, START, steps_max, SIZE_BYTES)
    return GridCell(NAMES.get(int(code), "no verdict"), time.process_time() - began, int(steps), int(size))


_NEW, _OTHER = 777, 778
"""Values that are written once each, for violations that need such values."""


def correct_key(
    operations: int, clients: int, domain: int, open_: int, seed: int, observed: bool = False
) -> tuple[Key, int]:
    """Return a history of a register, correct by construction, and its number of positions.

    domain: number of values; 0 for unique values, and then a cas expects the current value
    open_: number of mutators that never return
    observed: True to keep a failed cas as an observation, False to omit it
    """
    kind, a, b, call, ret, positions = _simulated(operations, clients, domain, open_, seed)
    kept = np.ones(len(kind), np.bool_) if observed else kind != MISMATCH
    b[kind == MISMATCH] = NIL
    return Key(kind[kept], a[kept], b[kept], call[kept], ret[kept]), positions


@kernel
def _simulated(
    operations: int, clients: int, domain: int, open_: int, seed: int
) -> tuple[Int8, Int64, Int64, Int32, Int32, int]:
    """Simulate equal numbers of reads, writes and cas; a cas that does not match is a MISMATCH."""
    np.random.seed(seed)
    kind, call, ret = np.empty(operations, np.int8), np.empty(operations, np.int32), np.full(operations, OPEN, np.int32)
    a, b = np.empty(operations, np.int64), np.full(operations, NIL, np.int64)
    current, effective = np.full(clients, -1, np.int64), np.zeros(clients, np.bool_)
    register_holds = np.int64(NIL)
    invoked = done = position = left_open = 0
    while done < operations:
        c = np.random.randint(clients)
        op = current[c]
        if op < 0:
            if invoked == operations:
                continue
            op = invoked
            invoked += 1
            kind[op] = np.random.randint(3)
            a[op] = np.random.randint(domain) if domain else op
            if kind[op] == CAS:
                b[op] = np.random.randint(domain) if domain else op
                if not domain:
                    a[op] = register_holds
            call[op] = position
            position += 1
            current[c] = op
            effective[c] = False
        elif not effective[c]:
            effective[c] = True
            if kind[op] == READ:
                a[op] = register_holds
            elif kind[op] == WRITE:
                register_holds = a[op]
            elif register_holds == a[op] and a[op] != b[op]:
                register_holds = b[op]
            elif register_holds == a[op]:
                kind[op] = READ
            else:
                kind[op] = MISMATCH
        else:
            crash = left_open < open_ and op > (left_open + 1) * operations // (open_ + 1)
            if crash and (kind[op] == WRITE or kind[op] == CAS):
                left_open += 1
            else:
                ret[op] = position
                position += 1
            current[c] = -1
            done += 1
    return kind, a, b, call, ret, position


def late_read(answer: int, key: Key, positions: int, rng: np.random.Generator) -> tuple[Key, int]:
    """Add a late read that returns a value that the register certainly does not have then."""
    return _answered(key, rng, answer), positions


def taken_twice(key: Key, positions: int, rng: np.random.Generator) -> tuple[Key, int]:
    """Add a value that is written once, but removed by two cas."""
    at = _late(positions, rng)
    more = [(WRITE, _NEW, NIL, at, at + 9), (CAS, _NEW, 0, at + 3, at + 20), (CAS, _NEW, 1, at + 5, at + 25)]
    return _with(key, positions, more)


def came_back(key: Key, positions: int, rng: np.random.Generator) -> tuple[Key, int]:
    """Add two concurrent writes of new values, and later reads, one after another, that return the first value, the
    second, and the first again.
    """
    at = _late(positions, rng)
    more = [(WRITE, _NEW, NIL, at, at + 40), (WRITE, _OTHER, NIL, at + 1, at + 41)]
    more += [(READ, v, NIL, at + a, at + b) for v, a, b in ((_NEW, 5, 9), (_OTHER, 12, 20), (_NEW, 25, 30))]
    return _with(key, positions, more)


def changed_too_often(key: Key, positions: int, rng: np.random.Generator) -> tuple[Key, int]:
    """Add reads of one client after all other operations.  They return more changes of the value than there are open
    operations.
    """
    times = int((key.ret == OPEN).sum()) + 2
    more = [(READ, n % 2, NIL, positions + 2 * n, positions + 2 * n + 1) for n in range(times)]
    return _with(key, positions, more)


VIOLATIONS: dict[str, Callable[[Key, int, np.random.Generator], tuple[Key, int]]] = {
    "never written": partial(late_read, 999),
    "long gone": partial(late_read, NIL),  # no client writes nil, and the first write that returned had overwritten it
    "taken twice": taken_twice,
    "came back": came_back,
    "changed too often": changed_too_often,
}


def another_answer(key: Key, positions: int, rng: np.random.Generator) -> tuple[Key, int]:
    """Add a late read that returns another value of the domain; only a search can decide whether it is wrong."""
    at = int(rng.choice(_late_reads(key)))
    return _answered(key, rng, int((key.a[at] + 1 + rng.integers(4)) % 5), at), positions


def _late(positions: int, rng: np.random.Generator) -> int:
    return int(positions * rng.uniform(0.85, 0.95))


def _late_reads(key: Key) -> Int64:
    reads = np.flatnonzero((key.kind == READ) & (key.ret != OPEN))
    return reads[int(len(reads) * 0.85) : int(len(reads) * 0.95) + 1]


def _answered(key: Key, rng: np.random.Generator, value: int, at: int | None = None) -> Key:
    a = key.a.copy()
    a[int(rng.choice(_late_reads(key))) if at is None else at] = value
    return key._replace(a=a)


def _with(key: Key, positions: int, more: Sequence[tuple[int, int, int, int, int]]) -> tuple[Key, int]:
    """Add operations (kind, a, b, call, ret) of new clients; their events come before events at the same positions."""
    kind, a, b, call, ret = (np.array(column, np.int64) for column in zip(*more, strict=True))
    kinds = np.concatenate([kind, key.kind]).astype(np.int8)
    calls, rets = np.concatenate([call, key.call]), np.concatenate([ret, key.ret]).astype(np.int64)
    ends = np.flatnonzero(rets != OPEN)
    order = np.argsort(np.concatenate([calls, rets[ends]]), kind="stable")
    new = np.empty(len(order), np.int32)
    new[order] = np.arange(len(order), dtype=np.int32)
    new_ret = np.full(len(rets), OPEN, np.int32)
    new_ret[ends] = new[len(calls) :]
    by_call = np.argsort(new[: len(calls)])
    changed = Key(kinds, np.concatenate([a, key.a]), np.concatenate([b, key.b]), new[: len(calls)], new_ret)
    return Key._make(column[by_call] for column in changed), len(order)


# Strings

EVENTS = 3424
GOAL_S = 0.02
RUNS = 5


def strings(given: argparse.Namespace, sheet: Sheet) -> None:
    histories = [string_history(Random(seed), EVENTS // 2) for seed in range(given.histories)]
    steps = [int(judge_events(events, "kv").looked_at["steps"]) for events in histories]
    valid = _seconds(histories, Validity.VALID)
    wrong = _seconds([_without_a_value(events) for events in histories], Validity.INVALID)
    sheet.add("kv, 50 clients, ten keys, median", EVENTS, "events", statistics.median(valid), "s", GOAL_S)
    sheet.add("kv, 50 clients, ten keys, largest", EVENTS, "events", max(valid), "s", GOAL_S)
    sheet.add("kv, 50 clients, ten keys, most steps", EVENTS, "events", max(steps), "steps")
    sheet.add("kv, one value is missing, with its witness, median", EVENTS, "events", statistics.median(wrong), "s")


def _seconds(histories: Sequence[Sequence[Event]], expected: Validity) -> list[float]:
    """Return the seconds of each history.  All histories are measured once before any is measured again, so a burst of
    load cannot affect all runs of one history.
    """
    least = [float("inf")] * len(histories)
    for _ in range(RUNS):
        for at, events in enumerate(histories):
            forget_decoded()
            began = time.process_time()
            verdict = judge_events(events, "kv")
            least[at] = min(least[at], time.process_time() - began)
            assert verdict.validity is expected, verdict.reason
    return least


def _without_a_value(events: Sequence[Event]) -> list[Event]:
    """Return the history without the second value in the last get that returns three values."""
    changed = list(events)
    for at in range(len(events) - 1, -1, -1):
        shown = json.loads(events[at].payload or '""')
        if events[at].f == "get" and events[at].type is Type.OK and shown.count("y") > 2:
            first, _, rest = shown.partition("y")
            changed[at] = replace(events[at], payload=json.dumps(first + "y" + rest.partition("y")[2]))
            return changed
    raise AssertionError("no get shows three values")


ROUNDS = 3
APPENDS, PUTS_OF_THE_REST = 0.5, 0.1


@dataclass
class _Waiting:
    """An operation without an answer yet.  applied: True if it took effect.  answer: of a get that took effect."""

    f: str
    key: str
    value: str | None
    applied: bool = False
    answer: str = ""


def string_history(rng: Random, operations: int = 1712, clients: int = 50, keys: int = 10) -> list[Event]:
    """Return a linearizable history, which has two events per operation."""
    store = dict.fromkeys(map(str, range(keys)), "")
    events: list[Event] = []
    for number in range(ROUNDS):
        left = operations * (number + 1) // ROUNDS - len(events) // 2
        _round(rng, store, events, left, clients)
    return events


def _round(rng: Random, store: dict[str, str], events: list[Event], operations: int, clients: int) -> None:
    speed = [rng.random() ** 3 for _ in range(clients)]
    counters = [0] * clients
    waiting: dict[int, _Waiting] = {}

    def invoke(client: int) -> None:
        key, chance = rng.choice(list(store)), rng.random()
        f = "append" if chance < APPENDS else "put" if chance < APPENDS + (1 - APPENDS) * PUTS_OF_THE_REST else "get"
        value = None if f == "get" else f"x {client} {counters[client]} y"
        counters[client] += f != "get"
        waiting[client] = _Waiting(f, key, value)
        events.append(_event(events, client, Type.INVOKE, waiting[client], value))

    for client in rng.sample(range(clients), clients):
        invoke(client)
    begun = clients
    while waiting:
        open_ = list(waiting)
        for client in rng.choices(open_, [0.01 + speed[c] for c in open_], k=2):
            _apply(store, waiting[client])
        [client] = rng.choices(open_, [0.01 + speed[c] for c in open_])
        _apply(store, waiting[client])
        done = waiting.pop(client)
        events.append(_event(events, client, Type.OK, done, done.answer if done.f == "get" else done.value))
        if begun < operations:
            begun += 1
            invoke(client)


def _apply(store: dict[str, str], waiting: _Waiting) -> None:
    if waiting.applied:
        return
    waiting.applied = True
    waiting.answer = store[waiting.key]
    if waiting.f != "get":
        store[waiting.key] = (store[waiting.key] if waiting.f == "append" else "") + (waiting.value or "")


def _event(events: list[Event], client: int, type_: Type, of: _Waiting, value: str | None) -> Event:
    at = len(events)
    return Event(at, at, client, type_, of.f, key=of.key, payload=None if value is None else json.dumps(value))


if __name__ == "__main__":
    script(
        __doc__,
        {"registers": registers, "strings": strings},
        operations={"type": int, "default": 5_000_000, "help": "of a big register"},
        grid={"action": "store_true", "help": "the grid of hard histories (minutes)"},
        operations_max={"type": int, "default": 10_000, "help": "maximum operations of a cell of the grid"},
        limit_s={"type": float, "default": 5.0, "help": "maximum seconds of a cell of the grid"},
        histories={"type": int, "default": 10, "help": "of strings"},
    )
