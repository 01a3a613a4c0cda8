"""A node of the bundled KRaft that measures the processor time of its handlers.

    python -m bench.instruments.measured_node FIGURES --config FILE

runs the node as `python -m system_under_test.kraft` does, and at its end writes FIGURES: JSON, kind -> [how often,
processor seconds].  A kind is the name of what arrived: the type of a request or answer of another voter, `read` or
`write` of a client, `fsync` for the end of one that went on beside the loop, `timer`.  A context variable carries the
kind into the tasks and callbacks that the handler leaves behind, so their time counts as well.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from system_under_test.kraft.__main__ import main as run_node
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.node.parts import DeadlineTimer
from system_under_test.kraft.wire import channel, frames
from system_under_test.kraft.wire.frames import decode_request_header

OTHER, ANSWER = "other", "answer"
_CLIENT_REQUESTS = {32: "read", 44: "write"}
"""Kafka's API keys: DescribeConfigs and IncrementalAlterConfigs, which clients read and write registers with."""
_KIND: ContextVar[str] = ContextVar("kind", default=OTHER)

_count: Counter[str] = Counter()
_cpu_ns: Counter[str] = Counter()


def main() -> int:
    figures = Path(sys.argv.pop(1))
    _instrument()
    status = run_node()
    figures.write_text(json.dumps({kind: [_count[kind], _cpu_ns[kind] / 1e9] for kind in _cpu_ns}))
    return status


def _instrument() -> None:
    plain_run = asyncio.Handle._run

    def run(handle: Any) -> None:
        began_ns = time.thread_time_ns()
        plain_run(handle)
        _cpu_ns[handle._context.get(_KIND, OTHER)] += time.thread_time_ns() - began_ns

    setattr(asyncio.Handle, "_run", run)  # noqa: B010 - for mypy it is a method
    plain_decode = decode_request_header

    def decode(frame: bytes) -> Any:
        header, at = plain_decode(frame)
        if header.api_key in _CLIENT_REQUESTS:
            _begins(_CLIENT_REQUESTS[header.api_key])
        return header, at

    setattr(frames, "decode_request_header", decode)  # noqa: B010 - the name that the server looks up
    _kind_of(QuorumNode, "take_raft_request", lambda node, number, request, reply: type(request).__name__)
    _kind_of(QuorumNode, "_answered", lambda node, effect, answer: type(answer).__name__)
    _kind_of(QuorumNode, "_flushed", lambda *_: "fsync")
    _kind_of(DeadlineTimer, "_rings", lambda *_: "timer")
    _kind_of(channel._Conversation, "data_received", lambda *_: ANSWER)


def _kind_of(owner: type, name: str, kind: Callable[..., str]) -> None:
    """From the call of this method on, what runs is of this kind."""
    plain = getattr(owner, name)

    def begins(*arguments: Any) -> Any:
        _begins(kind(*arguments))
        return plain(*arguments)

    setattr(owner, name, begins)


def _begins(kind: str) -> None:
    _count[kind] += 1
    _KIND.set(kind)


if __name__ == "__main__":
    sys.exit(main())
