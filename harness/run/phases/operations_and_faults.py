"""The main phase: clients invoke operations, and a nemesis plays the cards of the run, both at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from checkers.record.faults import Achieved, Card, FaultRecord
from harness.run.cards_of_run import Dealing
from harness.run.context import RunContext
from harness.run.phases.collection import copy_logs
from nemesis.cards.schedule_files import as_executed
from nemesis.inject import play
from nemesis.playing.records import Hooks
from nemesis.playing.resolve import MainPhase, PlayOptions


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
        if dealing.breaks_things:
            group.create_task(_break_things(run, dealing, began_ns))


async def _break_things(run: RunContext, dealing: Dealing, began_ns: int) -> None:
    async def before_heal(record: FaultRecord) -> None:
        if run.subject.declares.logs:
            await copy_logs(run, f"before heal {record.card.number}")

    def changed(record: FaultRecord) -> None:
        _fault_changed(run, record)

    hooks = Hooks(note=run.recorder.note, record=changed, before_heal=before_heal)
    main = MainPhase(run.backend, run.watch.ask, run.recorder.now_ns, began_ns, run.ended)
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
    run.write_faults()
    if record.achieved is Achieved.SKIPPED:
        run.progress.skipped(record.card.number, record.words, record.reason, run.recorder.now_ns())
    else:
        run.progress.fault(record.card.number, record.words, record.injected_ns, record.healed_ns)
