"""Rules that must hold at the end of a scenario: every answer fits the one committed log.

The committed log gives the one order of all changes, so that linearizability needs no search.  Each operation has a
place: a write that of its change, a read that of the change whose value it saw.  The history is linearizable with that
order exactly if no operation ended before another began that stands earlier.  Where values repeat a read has no place,
and the register kernel of the checkers searches.

    lost write                 acknowledged, and not in the log
    failed write in the log    reported as certainly not done
    write in the log twice
    read of no committed value
    not linearizable           an operation stands before one that had ended when it began
    committed log cannot be read

What clients were answered besides (ids, epochs, offsets) has rules of its own (`answers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from checkers.base.history import Type
from harness.campaign.swarm.clients import Asked, History
from harness.campaign.swarm.scenario import Scenario
from harness.campaign.swarm.voter import Change, Position, Value, VoterOnMachine, elements
from harness.campaign.swarm.watch import Watch
from harness.campaign.swarm.watch_calls import wrong_numbers
from system_under_test.kraft.log.log import DamagedLog
from system_under_test.kraft.records.metadata import CorruptRecord

Places: TypeAlias = dict[tuple[str, Value], Position]

BEFORE_ALL: Position = (-1, -1)
STEPS_MAX, SIZE_MAX_BYTES = 2_000_000, 1 << 28


def judge(
    scenario: Scenario, history: History, voters: Sequence[VoterOnMachine], watch: Watch, archive: Sequence[Change]
) -> None:
    """Report to the watch what does not hold.  archive: every change at the time when it was first published as
    committed; it stands for the log of a system that takes snapshots."""
    for rule, what in wrong_numbers(history.numbers):
        watch.violated(rule, what)
    best = max(voters, key=lambda voter: voter.mark)
    if best.prefix(best.mark) is None:
        return  # the watch has found that already
    client_operations = [asked for asked in history.asked if asked.function != "create"]
    if scenario.workload == "repeated":
        _judge_repeated(client_operations, watch)
        return
    try:
        log = archive if scenario.snapshot_bytes else [*best.changes(0, best.mark)]
    except (CorruptRecord, DamagedLog) as problem:  # a bug let damage in
        watch.violated("committed log cannot be read", str(problem))
        return
    changes, states = _places(scenario, log, watch)
    placed: list[tuple[Position, Asked]] = []
    for asked in client_operations:
        if asked.function == "read":
            if asked.type is Type.OK:
                at = BEFORE_ALL if asked.got in (None, ()) else states.get((asked.key, asked.got))
                if at is None:
                    watch.violated("read of no committed value", _words(asked))
                else:
                    placed.append((at, asked))
            continue
        at = changes.get((asked.key, asked.value))
        if asked.type is Type.OK and at is None:
            watch.violated("lost write", _words(asked))
        elif asked.type is Type.FAIL and at is not None:
            watch.violated("failed write in the log", _words(asked))
        elif asked.type is Type.OK and at is not None:
            placed.append((at, asked))
    _judge_order(placed, watch)


def _places(scenario: Scenario, log: Iterable[Change], watch: Watch) -> tuple[Places, Places]:
    """The place of each element that was written, and of each state that an object was in."""
    changes: Places = {}
    states: Places = {}
    lists: dict[str, tuple[int, ...]] = {}
    for at, key, written in log:
        if scenario.workload == "register":
            value = None if written is None else int(written)
            added: Sequence[int | None] = (value,)
            states[key, value] = at
        else:
            before = lists.get(key, ())
            whole = elements(written) or () if isinstance(written, str) else (*before, written or 0)
            added = whole[len(before) :]
            lists[key] = whole
            states[key, whole] = at
        for each in added:
            if (key, each) in changes:
                watch.violated("write in the log twice", f"{key} {each}")
            changes.setdefault((key, each), at)
    return changes, states


def _judge_order(placed: list[tuple[Position, Asked]], watch: Watch) -> None:
    for key in sorted({asked.key for _, asked in placed}):
        mine = [(at, asked) for at, asked in placed if asked.key == key]
        ends = sorted(mine, key=lambda pair: pair[1].ended)
        done, newest, whose = 0, BEFORE_ALL, None
        for at, asked in sorted(mine, key=lambda pair: pair[1].began):
            while done < len(ends) and ends[done][1].ended < asked.began:
                if ends[done][0] > newest:
                    newest, whose = ends[done]
                done += 1
            if at < newest and whose is not None:
                watch.violated("not linearizable", f"{_words(asked)}, after {_words(whose)} had ended")
                return


def _judge_repeated(operations: Sequence[Asked], watch: Watch) -> None:
    import numpy as np

    from checkers.kernels.jit import python_alone
    from checkers.kernels.operations import NIL, READ, WRITE, Events, pair_events
    from checkers.kernels.registers import antichain

    keys = {key: number for number, key in enumerate(sorted({asked.key for asked in operations}))}
    events: list[tuple[int, int, int, int, int, int]] = []
    numbers = 0
    for asked in operations:  # an operation without an end retires its process
        kind = READ if asked.function == "read" else WRITE
        shown = asked.got if asked.function == "read" else asked.value
        value = NIL if shown is None or isinstance(shown, tuple) else shown
        mine = (keys[asked.key], numbers)
        events.append((asked.began, *mine, int(Type.INVOKE), kind, NIL if kind == READ else value))
        if asked.ended >= 0:
            events.append((asked.ended, *mine, int(asked.type), kind, value))
        numbers += 1
    if not events:
        return
    table = np.array(sorted(events), np.int64)
    count = len(table)
    columns = Events(
        key=table[:, 1].astype(np.int32),
        process=table[:, 2].astype(np.int32),
        type=table[:, 3].astype(np.int8),
        kind=table[:, 4].astype(np.int8),
        value=table[:, 5].copy(),
        value2=np.full(count, NIL, np.int64),
        out_of_range=np.zeros(count, np.int8),
    )

    def codes_of_keys() -> Any:
        paired = pair_events(columns, len(keys), numbers)
        chosen = np.arange(len(keys), dtype=np.int32)
        steps = np.full(len(keys), STEPS_MAX, np.int64)
        return antichain.judge_keys(paired, chosen, np.array([NIL], np.int64), steps, SIZE_MAX_BYTES)[0]

    codes = python_alone(codes_of_keys, table.nbytes)
    for key, number in keys.items():
        if codes[number] == antichain.NO_ORDER:
            watch.violated("not linearizable", f"the operations of {key} have no order")


def _words(asked: Asked) -> str:
    what = asked.value if asked.function != "read" else asked.got
    shown = what if not isinstance(what, tuple) else f"...{what[-1:]}"
    when = f"{asked.began_s:.3f} to {asked.ended_s:.3f} s"
    return f"{asked.function} {asked.key} {shown} by process {asked.process} at {asked.node}, {when}"
