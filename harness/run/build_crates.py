"""Before there are nodes: what a system needs that is built here.  Beside a compiler, nodes would be short of CPU."""

from __future__ import annotations

import asyncio
import threading

from harness.backends.builds import build_all
from harness.run.context import RunContext
from system_under_test.own.subject import SystemSubject, sha256_of


async def build_programs(run: RunContext) -> None:
    """Note their hashes in test.json.  Raises BackendUnavailable.  Cancelled: the compiler is stopped first."""
    subject = run.subject
    if not isinstance(subject, SystemSubject) or not (subject.needs.crates or subject.needs.artefacts):
        return
    stop = threading.Event()
    needs, beside = subject.needs, subject.main.parent
    building = asyncio.ensure_future(asyncio.to_thread(build_all, needs, beside, run.progress.detail, stop))
    try:
        subject.programs = await asyncio.shield(building)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([building])
        raise
    files = subject.files_under(subject.programs)
    run.note(programs={there: sha256_of(subject.main.parent / here) for there, here in files.items()})
