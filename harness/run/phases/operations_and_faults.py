"""The main phase: clients invoke operations, and a nemesis plays the cards of the run, both at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from checkers.base.history import Type
from checkers.record.faults import Achieved, Card, FaultRecord
from harness.run.context import RunContext
from harness.run.phases.collection import copy_logs
from harness.run.phases.set_up import background_of
from harness.run.schedule_to_play import Dealing
from nemesis.measure import Hooks
from nemesis.play import play
from nemesis.resolve import MainPhase, PlayOptions
from nemesis.schedule_files import as_executed
from system_under_test.client import MISTAKE_IN_CODE, Placement, Request
from system_under_test.own.read_own_system import CodeMistake

LOAD_AGAIN_S = 0.1
"""Pause of a background load after a call that failed."""
BETWEEN_HEALS = "between heals"
"""`when` of the copies that are taken because a node cuts its log."""


async def operations_and_faults(run: RunContext) -> None:
    """Returns when the time is over, or once `run.ended` is set and what is under way has ended."""
    spec, began_ns = run.spec, run.recorder.now_ns()
    run.interpreter.tally.invoked = 0

    def dealt(cards: Sequence[Card]) -> None:
        run.note(schedule=tuple(cards))

    dealing = Dealing(spec, run.subject.declares, dealt)
    run.watch.seen = lambda statuses: dealing.look(statuses, run.records.values())
    run.note(schedule=tuple(dealing.schedule.cards), main_began_ns=began_ns)
    until_s = run.clock.monotonic_s() + spec.time_limit_s
    over = asyncio.Event()
    async with asyncio.TaskGroup() as beside:
        if every_s := run.subject.declares.copied_every_s:
            beside.create_task(_copy_regularly(run, began_ns, every_s, over))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    run.interpreter.run(
                        run.workload.generator,
                        lambda p: spec.rng(f"operations/{p.thread}"),
                        lambda p: spec.rng(f"pace/{p.thread}"),
                        spec.rate_hz,
                        until_s,
                        run.workload.pace,
                    )
                )
                for placement, function in background_of(run).items():
                    beside.create_task(_load(run, placement, function, over))
                if dealing.breaks_things:
                    group.create_task(_break_things(run, dealing, began_ns))
        finally:
            over.set()


async def _load(run: RunContext, placement: Placement, function: str, over: asyncio.Event) -> None:
    """Call a function of the background load again and again until this phase is over; no history records it."""
    host, request = run.hosts[placement.client_node], Request(function)
    while not over.is_set():
        outcome = await host.invoke(placement.thread, request, run.spec.op_timeout_s)
        if (outcome.error or "").startswith(MISTAKE_IN_CODE):
            raise CodeMistake(str(outcome.error).removeprefix(MISTAKE_IN_CODE))
        if outcome.type is not Type.OK:
            await run.clock.sleep(LOAD_AGAIN_S)


async def _copy_regularly(run: RunContext, began_ns: int, every_s: float, over: asyncio.Event) -> None:
    """Copy all logs whenever the last copy is so old, until this phase is over; a copy that was begun is completed."""
    while True:
        last_ns = run.copies.taken[-1].taken_ns if run.copies.taken else began_ns
        try:
            async with asyncio.timeout(every_s - (run.recorder.now_ns() - last_ns) / 1e9):
                await over.wait()
            return
        except TimeoutError:
            await copy_logs(run, BETWEEN_HEALS)


async def _break_things(run: RunContext, dealing: Dealing, began_ns: int) -> None:
    async def before_heal(record: FaultRecord) -> None:
        if run.subject.declares.logs:
            await copy_logs(run, f"before heal {record.card.number}")

    def changed(record: FaultRecord) -> None:
        _fault_changed(run, record)

    hooks = Hooks(record=changed, before_heal=before_heal)
    voters = run.subject.declares.voters(run.backend.servers)
    keys = run.workload.keys() if run.subject.declares.leaders_of_keys else ()
    now_ns, leader_of = run.recorder.now_ns, run.subject.leader_of
    writes = run.workload.writes

    def acknowledged() -> int:
        return run.recorder.acknowledged(writes)

    main = MainPhase(run.backend, run.watch.ask, now_ns, began_ns, run.ended, voters, keys, leader_of, acknowledged)
    holds = run.spec.lengthened(run.subject.declares.failover_s)
    cards, options = (
        dealing.schedule.cards,
        PlayOptions(dealing.schedule.faults, run.spec.over_budget, holds, run.spec.as_executed),
    )
    try:
        await play(cards, main, run.spec.rng("nemesis"), hooks, options, dealing.next)
    finally:
        run.watch.seen = lambda statuses: None
        run.outcome = replace(run.outcome, coverage=dealing.coverage.so_far())
        text = as_executed(tuple(run.records.values()), began_ns)
        (run.folder.root / "schedule.json").write_text(text)


def _fault_changed(run: RunContext, record: FaultRecord) -> None:
    run.records[record.card.number] = record
    run.recorder.fault_changed(record)
    if record.achieved is Achieved.SKIPPED:
        run.progress.skipped(record.card.number, record.words, record.reason, run.recorder.now_ns())
    else:
        run.progress.fault(record.card.number, record.words, record.injected_ns, record.healed_ns)
