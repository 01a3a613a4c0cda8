"""Work with duties beside it: the duties run for as long as the work does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any


async def beside(work: Coroutine[Any, Any, None], duties: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run `work` with `duties`, which never end, beside it.  A duty that fails ends the work with its exception."""
    main, others = asyncio.create_task(work), [asyncio.create_task(duty) for duty in duties]
    try:
        await asyncio.wait([main, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            if task.done():
                task.result()
        await main
    finally:
        for task in (main, *others):
            task.cancel()
        await asyncio.gather(main, *others, return_exceptions=True)
