"""Loading every kernel by judging a run of a few rows: the first time on a machine this compiles them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.catalog import CATALOG
from checkers.checker import RunFiles
from checkers.columns import COPIES, HISTORY, LOG, TRACE, events_to_table
from checkers.history import Event, Type
from checkers.judge_events import judge_events
from checkers.kernels.record_batch import chain, find_configs, gather, scan
from checkers.models.registers import CAS_REGISTER
from checkers.pipeline import Verdicts, judge_run
from checkers.seal import seal
from checkers.verdict import Verdict

_STALE_READ = [
    Event(0, 0, 0, Type.INVOKE, "write", "k", 1),
    Event(1, 1, 0, Type.OK, "write", "k", 1, node="n1"),
    Event(2, 2, 0, Type.INVOKE, "cas", "k", 1, 2),
    Event(3, 3, 0, Type.OK, "cas", "k", 1, 2, node="n1"),
    Event(4, 4, 1, Type.INVOKE, "read", "k"),
    Event(5, 5, 1, Type.OK, "read", "k", 1, node="n1"),
    Event(6, 6, 1, Type.INVOKE, "write", "k", 3),
]

_VALUE_WRITTEN_TWICE = [
    Event(0, 0, 0, Type.INVOKE, "write", "k", 1),
    Event(1, 1, 0, Type.OK, "write", "k", 1, node="n1"),
    Event(2, 2, 0, Type.INVOKE, "write", "k", 1),
    Event(3, 3, 0, Type.OK, "write", "k", 1, node="n1"),
    Event(4, 4, 0, Type.INVOKE, "read", "k"),
    Event(5, 5, 0, Type.OK, "read", "k", None, node="n1"),
]

_NODES = ("n1", "n2")
_DECLARES = {"nodes": True, "logs": True, "traces": True, "elections": True, "faults": True}


def load_kernels() -> Verdicts:
    """Judge the few rows with every checker; the verdicts (a stale read among them) are the caller's to look at."""
    load_reading_kernels()
    with tempfile.TemporaryDirectory(prefix="krucible-warm-") as name:
        files = RunFiles(Path(name))
        with pa.ipc.new_stream(str(files.root / "history.arrows"), HISTORY) as stream:
            stream.write_table(events_to_table(_STALE_READ))
        seal(files.root)
        for folder in (files.log, files.trace):
            folder.mkdir(parents=True)
        for node in _NODES:
            pq.write_table(pa.Table.from_pylist(_log_rows(node), LOG), files.log / f"{node}.parquet")
            pq.write_table(pa.Table.from_pylist(_trace_rows(node), TRACE), files.trace / f"{node}.parquet")
        pq.write_table(pa.Table.from_pylist([_copy_row(node) for node in _NODES], COPIES), files.copies)
        files.outcome.write_text(json.dumps({"declares": _DECLARES}))
        return judge_run(files, list(CATALOG.values()))


def load_rare_kernels() -> list[Verdict]:
    """The searches, which few runs need and which take long to compile: for set-up.  All verdicts are invalid."""
    return [judge_events(_VALUE_WRITTEN_TWICE, model) for model in ("cas-register", CAS_REGISTER)]


def load_reading_kernels() -> None:
    """Those that read logs from their bytes."""
    nothing = np.empty(0, np.uint8)
    batches = scan(nothing, 0, 0)[0]
    chain(0, batches.base, batches.epoch, batches.crc)
    configs, _ = find_configs(nothing, batches, 0, np.frombuffer(b"config", np.uint8))
    gather(nothing, configs.name_at, configs.name_size)


def _log_rows(node: str) -> list[dict[str, Any]]:
    """Three records: the leader's own and two writes."""
    written = ((None, None), ("k", 1), ("k", 2))
    return [
        {"copy": 1, "node": node, "offset": offset, "epoch": 1, "checksum": offset, "batch_offset": offset}
        | {"batch_hash": offset + 1, "key": key, "value": value}
        for offset, (key, value) in enumerate(written)
    ]


def _trace_rows(node: str) -> list[dict[str, Any]]:
    """One election, and three records appended, flushed, committed and applied."""
    leads = node == _NODES[0]
    told: list[dict[str, Any]] = [
        {"event": "start", "epoch": 0, "offset": 0, "hash": 0},
        {"event": "vote", "epoch": 1, "peer": _NODES[0]},
        {"event": "role", "epoch": 1, "peer": _NODES[0], "role": "leader" if leads else "follower", "offset": 0},
    ]
    for event in ("append", "flush", "high-watermark", "applied"):
        told += [{"event": event, "epoch": 1, "offset": end, "hash": end} for end in (1, 2, 3)]
    return [{"node": node, "incarnation": 0, "seq": seq, "time_ns": seq} | row for seq, row in enumerate(told)]


def _copy_row(node: str) -> dict[str, Any]:
    return {"copy": 1, "node": node, "when": "final", "state": "stopped", "log_end": 3, "torn_bytes": 0} | {
        "quorum_epoch": 1,
        "voted_for": _NODES[0],
        "trace_seq": 14,
        "error": None,
    }
