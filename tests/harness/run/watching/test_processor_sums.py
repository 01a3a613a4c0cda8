"""What nodes measure of their processors is kept with its time; a node that measures nothing leaves no entry."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from checkers.record.outcome import ProcessorSums
from harness.backends.backend import HostHealth
from harness.run.watching import RunWatch


async def test_each_sample_is_kept_with_its_time() -> None:
    now = {"ns": 0}
    enough = asyncio.Event()

    async def health() -> HostHealth:
        now["ns"] += 5
        if now["ns"] == 15:
            enough.set()
        return HostHealth({}, {"n1": {"pressure_s": now["ns"] / 10, "waited_s": 0.1}, "c1": {}})

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    recorder: Any = SimpleNamespace(now_ns=lambda: now["ns"])
    watch = RunWatch(SimpleNamespace(), [], recorder, SimpleNamespace(sleep=sleep))  # type: ignore[arg-type]
    duty = asyncio.create_task(watch.mind_the_machine(health))
    await enough.wait()
    duty.cancel()
    await asyncio.gather(duty, return_exceptions=True)
    assert watch.processor["n1"][:2] == [
        ProcessorSums(0, pressure_s=0.5, waited_s=0.1),
        ProcessorSums(5, pressure_s=1.0, waited_s=0.1),
    ]
    assert watch.processor["c1"] == []
