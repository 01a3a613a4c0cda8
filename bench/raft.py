"""Measure what logs and traces of a quorum cost: log matching, every other checker of Raft, and reading real log files.

    python -m bench.raft [--sizes 1000000,10000000] [--only WORDS] [--json FILE]

Five nodes.  Of each size: entries in every log, rows in every trace (four a batch of four entries: append, flush,
high watermark, applied), an election every 50,000 rows, one write of a client in every batch; nothing is wrong with
them.  Every figure is of a process of its own, after its kernels were loaded: seconds of the second judgement, and the
peak of its memory, of which the interpreter with all libraries is 0.2 GB (on Spark: of the driver).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.instruments.figures import Sheet, load
from bench.instruments.memory import peak_mb
from bench.instruments.timing import least_s
from bench.simulated.filled_table import filled
from checkers.base.columns import COPIES, HISTORY, TRACE
from checkers.base.demands import Demands
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity
from checkers.catalog import CATALOG
from checkers.judging.pipeline import judge_run
from checkers.kernels.kafka_files import chain
from checkers.spark.session import SparkJudge
from system_under_test.kraft.collected.files import log_writer, write_log
from system_under_test.kraft.collected.log_files import LogFile, read_log, scan_headers
from system_under_test.kraft.collected.trace_files import ROW_GROUP, write_trace
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE, ConfigRecord, encode

NODES = [f"n{i}" for i in range(1, 6)]
DEMANDS = Demands(servers=tuple(NODES), nodes=True, logs=True, traces=True, elections=True)
BATCH = 4
"""Entries of a batch, and trace rows of a batch on each node."""

ROWS_PER_EPOCH = 50_000

OF_RAFT = (
    "committed-never-lost",
    "high-watermark-majority",
    "leader-completeness",
    "election-safety",
    "vote-once",
    "monotonicity",
    "state-machine-safety",
    "snapshot-equals-prefix",
    "history-against-log",
)
LINES = "a trace from JSON lines"
LINES_SHARE = 10
"""Of the rows of a trace, how many are written as lines: they are long."""

GOALS = {"log matching on Spark": 0.8}
SCAN_GOAL = 1e6


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", default="1000000,10000000", help="entries and rows of each node")
    options.add_argument("--only", default="", help="figures whose names hold these words")
    options.add_argument("--json", type=Path, default=None, help="append the figures to this file")
    options.add_argument("--measure", nargs=2, metavar=("WHAT", "FOLDER"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure[0], Path(given.measure[1]))))
        return
    sheet = Sheet(given.json)
    print(f"load {load():.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="krucible-bench-") as name:
        small = Path(name) / "small"
        write_run(small, 4 * ROW_GROUP)
        for size in (int(float(text)) for text in given.sizes.split(",")):
            folder = Path(name) / str(size)
            write_run(folder, size)
            write_files(folder, size)
            for what in MEASURES:
                if given.only in what:
                    tell(sheet, what, size, folder)


def tell(sheet: Sheet, what: str, size: int, folder: Path) -> None:
    """Measure one figure in a process of its own."""
    command = [sys.executable, "-m", "bench.raft", "--measure", what, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{what}: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return
    figures = json.loads(done.stdout)
    of = "batches" if "log files" in what else "rows a node"
    if what == LINES:
        size, of = size // LINES_SHARE, "rows"
    sheet.add(what, size, of, figures["seconds"], "s", GOALS.get(what))
    if "log files" in what:
        sheet.add(what, size, of, size / figures["seconds"], "1/s", SCAN_GOAL)
        sheet.add(what, size, of, figures["bytes"] / figures["seconds"] / 1e6, "MB/s")
    sheet.add(what, size, of, figures["peak_gb"], "GB")


def measure(what: str, folder: Path) -> dict[str, float]:
    """Called in the process of its own."""
    seconds, size_bytes = MEASURES[what](folder)
    return {"seconds": seconds, "bytes": size_bytes, "peak_gb": peak_mb([os.getpid()]) / 1e3}


def judge(name: str, spark: bool = False) -> Callable[[Path], tuple[float, int]]:
    """Judge a run by one checker, after a small one."""

    def measured(folder: Path) -> tuple[float, int]:
        judge_on = SparkJudge() if spark else None
        if judge_on is not None:
            judge_on.wait_until_started()
        small = StoredRun(folder.parent / "small", DEMANDS)
        judge_run(small, [CATALOG[name]], judge_on)
        seconds = []
        for _ in range(3 if "matching" in name else 1):
            began = time.perf_counter()
            verdict = judge_run(StoredRun(folder, DEMANDS), [CATALOG[name]], judge_on)[name]
            seconds.append(time.perf_counter() - began)
            wanted = Validity.NOT_APPLICABLE if name.startswith("snapshot") else Validity.VALID
            if verdict.validity is not wanted:
                raise SystemExit(f"{name}: {verdict.validity}: {verdict.reason}")
        if judge_on is not None:
            judge_on.stop()
        return min(seconds), 0

    return measured


def read(reader: Callable[[Path], Any]) -> Callable[[Path], tuple[float, int]]:
    """Read a directory of log files."""

    def measured(folder: Path) -> tuple[float, int]:
        reader(folder / "nothing")
        size_bytes = sum(path.stat().st_size for path in (folder / "files").glob("*.log"))
        return least_s(lambda: reader(folder / "files"), 3), size_bytes

    return measured


def tabulate(folder: Path) -> tuple[float, int]:
    """A trace as nodes write it, to Parquet."""
    path = folder / "files" / "n1.jsonl"
    return least_s(lambda: write_trace(path, folder / "files" / "n1.parquet", 0)), path.stat().st_size


MEASURES: dict[str, Callable[[Path], tuple[float, int]]] = {
    "log matching in process": judge("log-matching"),
    "log matching on Spark": judge("log-matching", spark=True),
    **{name: judge(name) for name in OF_RAFT},
    "headers of log files": read(scan_headers),
    "records of log files": read(read_log),
    LINES: tabulate,
}


def write_run(folder: Path, size: int) -> None:
    """A run of five nodes, each with `size` entries in its log and about as many rows in its trace."""
    files = StoredRun(folder)
    for place in (files.log, files.trace):
        place.mkdir(parents=True)
    batches = size // BATCH
    epoch = 1 + np.arange(batches) * BATCH // ROWS_PER_EPOCH
    rng = np.random.default_rng(1)
    crc = rng.integers(0, 1 << 32, batches)
    ends = np.arange(1, batches + 1) * BATCH
    hashes = chain(0, ends - BATCH, epoch.astype(np.int32), crc)
    states = rng.integers(-(1 << 62), 1 << 62, batches)
    log = _log(epoch, crc, hashes)
    for node in NODES:
        with log_writer(files.log / f"{node}.parquet") as writer:
            write_log(writer, 0, node, log)
        last_seq = _write_trace(files.trace / f"{node}.parquet", node, (epoch, ends, hashes, states))
    voted = NODES[int(epoch[-1]) % len(NODES)]
    copies = [
        {"copy": 0, "node": node, "when": "final", "state": "running", "log_end": size, "torn_bytes": 0, "error": None}
        | {"quorum_epoch": int(epoch[-1]), "voted_for": voted, "trace_seq": last_seq}
        for node in NODES
    ]
    pq.write_table(pa.Table.from_pylist(copies, COPIES), files.copies_table)
    _write_history(files.history, batches)


def _log(epoch: np.ndarray, crc: np.ndarray, hashes: np.ndarray) -> LogFile:
    """Batches of BATCH entries, the first of each being the write of its own number to one of ten keys."""
    size = len(epoch) * BATCH
    offset = np.arange(size)
    first = offset % BATCH == 0
    keys = pa.array([f"k{i}" for i in range(10)], pa.large_string())
    return LogFile(
        offset=offset,
        epoch=np.repeat(epoch.astype(np.int32), BATCH),
        checksum=np.repeat(crc << 31, BATCH) | (offset % BATCH),
        batch_offset=offset - offset % BATCH,
        batch_hash=np.repeat(hashes, BATCH),
        key=keys.take(pa.array(offset // BATCH % 10, mask=~first)),
        value=pa.array(offset // BATCH, mask=~first),
        log_end=size,
    )


def _write_trace(path: Path, node: str, batches: tuple[np.ndarray, ...]) -> int:
    """Returns the last seq.  Node n(1 + epoch mod 5) leads an epoch; every epoch begins with a vote and a role row."""
    epoch, ends, hashes, states = batches
    names = pa.array(["start", "vote", "role", "append", "flush", "high-watermark", "applied"])
    seq = 0
    with pq.ParquetWriter(path, TRACE, compression="zstd") as writer:
        for start in range(0, len(epoch), ROWS_PER_EPOCH // BATCH):
            part = slice(start, start + ROWS_PER_EPOCH // BATCH)
            now, count = int(epoch[start]), len(epoch[part])
            leader = NODES[now % len(NODES)]
            head = [1, 2] if start else [0, 1, 2]
            event = np.concatenate([head, np.tile([3, 4, 5, 6], count)]).astype(np.int32)
            size, heads = len(event), len(head)
            offset = np.concatenate([np.full(heads, start * BATCH), np.repeat(ends[part], 4)])
            hashed = np.zeros(size, np.int64)
            hashed[heads + 2 :: 4], hashed[heads + 3 :: 4] = hashes[part], states[part]
            role = pa.array(["leader" if leader == node else "follower" if e == 2 else None for e in head])
            peers = pa.array([leader if e else None for e in head])
            rest = pa.nulls(size - heads, pa.string())
            rows = filled(
                TRACE,
                size,
                node=node,
                incarnation=0,
                seq=np.arange(seq, seq + size),
                time_ns=np.arange(seq, seq + size) * 1000,
                event=pa.DictionaryArray.from_arrays(event, names),
                epoch=now,
                offset=pa.array(offset, mask=(event == 1) | ((event == 2) & (leader != node))),
                hash=pa.array(hashed, mask=(event != 5) & (event != 6) & (event != 0)),
                peer=pa.concat_arrays([peers, rest]),
                role=pa.concat_arrays([role, rest]),
            )
            writer.write_batch(rows, row_group_size=ROW_GROUP)
            seq += size
    return seq - 1


def _write_history(path: Path, writes: int) -> None:
    """One process writes the number of every batch, one after another, and every write is acknowledged."""
    keys = pa.array([f"k{i}" for i in range(10)])
    with pq.ParquetWriter(path, HISTORY, compression="zstd") as writer:
        for start in range(0, writes, ROW_GROUP):
            value = np.repeat(np.arange(start, min(writes, start + ROW_GROUP)), 2)
            size = len(value)
            index = np.arange(2 * start, 2 * start + size)
            key, type_ = keys.take(pa.array(value % 10)), (index % 2).astype(np.int8)
            columns = {"process": 0, "type": type_, "f": "write", "key": key, "value": value, "node": "n1"}
            writer.write_batch(filled(HISTORY, size, index=index, time_ns=index * 1000, **columns))


def write_files(folder: Path, size: int) -> None:
    """A segment of `size` batches of one write each (the CRC covers no offset, so one fits all), and a trace."""
    (folder / "files").mkdir()
    record = encode(ConfigRecord(TOPIC_RESOURCE, "k1", "retention.ms", "1234567890"))
    one = np.frombuffer(codec.encode_values(0, 1, [record], 1000), np.uint8)
    with (folder / "files" / f"{0:020d}.log").open("wb") as file:
        for start in range(0, size, 1_000_000):
            raw = np.tile(one, (min(size - start, 1_000_000), 1))
            raw[:, :8] = np.arange(start, start + len(raw), dtype=">i8").view(np.uint8).reshape(-1, 8)
            file.write(raw.tobytes())
    with (folder / "files" / "n1.jsonl").open("w") as text:
        for seq in range(size // LINES_SHARE):
            text.write(
                f'{{"seq":{seq},"inc":0,"t":{seq + 1}000,"event":"high-watermark","epoch":1,"offset":{seq},"hash":7}}\n'
            )


if __name__ == "__main__":
    main()
