"""Measure the time for histories of Kafka's logs: a correct broker's, and the same with one message lost.

    python -m bench.kafka [--sizes 1000000] [--json FILE]

Half of the operations send a message to some partition, half poll up to four.  Measured separately: reading a
`history.parquet` (from file to columns), and judging (from columns to the verdict); CPU time of one core.  Compiled
before the first figure; the load is printed last.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from random import Random

import pyarrow.parquet as pq

from bench.instruments.figures import Sheet, script
from checkers.base.checker import Budget
from checkers.base.columns import events_to_table
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.kafka_log.columns import from_file
from checkers.kafka_log.judge import judge_history
from checkers.sealing.history_rows import ROWS_PER_GROUP

WARM = 2000
PROCESSES, PARTITIONS, POLLED_MAX = 20, 10, 4
AMPLE = Budget(steps=2 * 10**9, size_bytes=10**11)


def main(given: argparse.Namespace, sheet: Sheet) -> None:
    measure(WARM, Sheet(None))
    for size in given.sizes:
        measure(size, sheet)


def measure(size: int, sheet: Sheet) -> None:
    for name, lost in (("valid", -1), ("lost-write", size // 2)):
        with tempfile.TemporaryDirectory(prefix="krucible-bench-") as folder:
            path = Path(folder) / "history.parquet"
            table = events_to_table(simulate(size, lost))
            pq.write_table(table, path, compression="zstd", row_group_size=ROWS_PER_GROUP)
            del table
            began = time.process_time()
            history = from_file(str(path))
            read = time.process_time()
            verdict = judge_history(history, AMPLE)
            judged = time.process_time()
        assert verdict.validity is (Validity.VALID if lost < 0 else Validity.INVALID), verdict
        assert lost < 0 or name in verdict.details["anomalies"]
        sheet.add(f"Kafka's logs, {name}, reading", size, "operations", read - began)
        sheet.add(f"Kafka's logs, {name}, judging", size, "operations", judged - read)


def simulate(size: int, lost: int) -> list[Event]:
    """One operation after another; no client ever polls the first message that is sent from operation `lost` on."""
    rng = Random(1)
    logs: list[list[int]] = [[] for _ in range(PARTITIONS)]
    position = [[0] * PARTITIONS for _ in range(PROCESSES)]
    hidden: set[int] = set()
    events: list[Event] = []

    def record(process: int, f: str, invoked: object, answered: object) -> None:
        for type_, payload in ((Type.INVOKE, invoked), (Type.OK, answered)):
            events.append(Event(len(events), 0, process, type_, f, payload=json.dumps(payload)))

    for o in range(size - 1):
        process, partition = rng.randrange(PROCESSES), rng.randrange(PARTITIONS)
        log = logs[partition]
        if rng.random() < 0.5:
            if o >= lost >= 0 and not hidden:
                hidden.add(o)
            record(process, "send", [["send", partition, o]], [["send", partition, [len(log), o]]])
            log.append(o)
        else:
            at = position[process][partition]
            end = min(len(log), at + rng.randint(1, POLLED_MAX))
            position[process][partition] = end
            messages = [[i, log[i]] for i in range(at, end) if log[i] not in hidden]
            record(process, "poll", [["poll"]], [["poll", {str(partition): messages} if messages else {}]])
    everything = {str(k): [[i, v] for i, v in enumerate(log) if v not in hidden] for k, log in enumerate(logs)}
    record(PROCESSES, "poll", [["poll"]], [["poll", everything]])
    return events


if __name__ == "__main__":
    script(__doc__, main, sizes={"type": int, "nargs": "+", "default": [1_000_000]})
