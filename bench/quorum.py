"""Measure the cost of a write to the bundled KRaft, compared with etcd in the same run on the same disk; and the start
and the failover of both.

    python -m bench.quorum [--nodes 3 5] [--writers 1 64] [--rounds 5] [--seconds 3] [--only writes failover …]

Servers are processes on loopback; those of KRaft run on Debian's Python, as in containers.  All clusters of a size run
all the time and are loaded in turn, so a machine that becomes slower favours neither; the first one alternates.
Writers write to the leader, each to an object of its own, with one write in flight (`instruments/quorum_clusters.py`).
Acknowledged writes count; both systems fsync before they acknowledge.

A figure is the median of the rounds.  Processor time is that of all threads (`/proc/PID/stat`, in steps of 10 ms).  The
client's processor time is shown, too: if client and leader together use all processors, a rate says little.

Start: a single voter with a log of a million records, ten per batch, each the config of one of 1,000 topics; from the
start of the process to the first acknowledged write.  Failover: from SIGKILL of the leader to the first acknowledged
write.  Without etcd (Debian's etcd-server), only KRaft is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from bench.instruments.figures import Sheet, cpu_s_of, resident_mb, script
from bench.instruments.quorum_clusters import VALUE_FIRST, EtcdCluster, KRaft, QuorumCluster, etcd_version, write_for
from system_under_test.kraft.client import REGISTER
from system_under_test.kraft.log.log import FOLDER, open_log
from system_under_test.kraft.node.disk import RealDisk
from system_under_test.kraft.raft.messages import Batch
from system_under_test.kraft.records import metadata

SETTLE_S = 0.5
WRITES = ("writes", "failover", "start", "memory")

ETCD_FASTER = {1: 1 / 0.35, 64: 1 / 0.7}
"""Goals by the number of writers: maximum ratio of etcd's acknowledged writes to ours."""
LEADER_OF_ETCD = {1: 500 / 597, 64: 80 / 68}
"""Goals by the number of writers: maximum ratio of our leader's processor time for a write to that of etcd's leader.

The goals were set as 500 and 80 microseconds on a machine where etcd's leader took 597 and 68.  The kernel of
`figures.py` cannot scale them: on a machine where a quorum without logic took 1.7 times as long, the kernel took 0.96
times as long.
"""

TOPICS, MEMORY_TOPICS = 1_000, 10_000
LOG_RECORDS, BATCH_RECORDS, SEGMENT_BYTES = 1_000_000, 10, 16 << 20
START_S, SNAPSHOT_START_S = 5.0, 1.0
"""Goals in CPU seconds for a start: with the log alone, and with a snapshot of it."""
SNAPSHOT_WAIT_S = 300.0


FIGURES = (
    ("", "rate", "1/s"),
    (", latency, median", "p50_ms", "ms"),
    (", latency, p99", "p99_ms", "ms"),
    (", processor of the leader, a write", "leader_ms", "ms"),
    (", processor of the client, a write", "client_ms", "ms"),
)
"""(end of a figure's name, field of `Round`, unit)."""


@dataclass(frozen=True, slots=True)
class Round:
    """Figures of one round.  rate: acknowledged writes per second.  leader_ms, client_ms: processor time per write."""

    rate: float
    p50_ms: float
    p99_ms: float
    leader_ms: float
    client_ms: float


def main(given: argparse.Namespace, sheet: Sheet) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # otherwise its servers would outlive this process
    version = etcd_version()
    print(f"KRaft beside etcd {version}" if version else "etcd is not installed: KRaft alone")
    with tempfile.TemporaryDirectory(prefix="krucible-bench-", dir=given.folder) as name:
        folder = Path(name)
        for size in given.nodes if {"writes", "failover"} & set(given.only) else ():
            asyncio.run(compare(folder, size, given, sheet, with_etcd=version is not None))
        if "start" in given.only:
            asyncio.run(measure_start(folder, given.records, sheet))
        if "memory" in given.only:
            asyncio.run(measure_memory(folder, sheet))


# Writes


async def compare(folder: Path, size: int, given: argparse.Namespace, sheet: Sheet, *, with_etcd: bool) -> None:
    kinds: list[type[QuorumCluster]] = [KRaft, EtcdCluster] if with_etcd else [KRaft]
    clusters = []
    try:
        for kind in kinds:
            (folder / f"{kind.name}{size}").mkdir()
            clusters.append(kind(folder / f"{kind.name}{size}", size))
            for server in clusters[-1].servers:
                clusters[-1].start(server)
        for cluster in clusters:
            _progress(f"{size} nodes, waiting for the leader of {cluster.name}")
            await cluster.prepare(await cluster.leader(), max(given.writers))
        for count in given.writers if "writes" in given.only else ():
            rounds: dict[str, list[Round]] = defaultdict(list)
            for number in range(given.rounds):
                for cluster in clusters if number % 2 else reversed(clusters):
                    rounds[cluster.name].append(found := await write_round(cluster, count, given.seconds))
                    where = f"{size} nodes, {count} writers, round {number + 1} of {given.rounds}"
                    _progress(
                        f"{where}: {cluster.name} {found.rate:,.0f} writes/s, leader {found.leader_ms:.3f} ms each"
                    )
            report_writes(rounds, size, count, sheet)
        if "failover" in given.only:
            for cluster in clusters:
                _progress(f"{size} nodes, failover of {cluster.name}, {given.rounds} times")
                times_s = [await fail_over(cluster) for _ in range(given.rounds)]
                words = f"failover, SIGKILL of the leader to the first write, {cluster.name}"
                sheet.add(words, size, "nodes", statistics.median(times_s), "s")
    finally:
        for cluster in clusters:
            cluster.close()


async def write_round(cluster: QuorumCluster, count: int, seconds: float) -> Round:
    leader = await cluster.leader()
    writers = await cluster.writers(leader, count)
    readings: list[tuple[float, float, float]] = []

    def read_clocks() -> None:
        readings.append((time.monotonic(), cpu_s_of(cluster.pid(leader)), time.process_time()))

    try:
        latencies_s = await write_for(writers, SETTLE_S, seconds, read_clocks)
    finally:
        for writer in writers:
            writer.close()
    took_s, leader_s, client_s = (end - begin for begin, end in zip(*readings, strict=True))
    latencies_s.sort()
    done = len(latencies_s)
    return Round(
        done / took_s,
        latencies_s[done // 2] * 1e3,
        latencies_s[done * 99 // 100] * 1e3,
        leader_s / done * 1e3,
        client_s / done * 1e3,
    )


def report_writes(rounds: dict[str, list[Round]], size: int, count: int, sheet: Sheet) -> None:
    where = f"{count} writer{'s' if count > 1 else ''}"
    for name, found in rounds.items():
        for words, field, unit in FIGURES:
            sheet.add(
                f"{name}, {where}{words}", size, "nodes", statistics.median(getattr(r, field) for r in found), unit
            )
    if EtcdCluster.name in rounds:
        pairs = list(zip(rounds[EtcdCluster.name], rounds[KRaft.name], strict=True))
        rate = statistics.median(etcd.rate / ours.rate for etcd, ours in pairs)
        cost = statistics.median(ours.leader_ms / etcd.leader_ms for etcd, ours in pairs)
        sheet.add(f"writes of etcd for one of {KRaft.name}, {where}", size, "nodes", rate, "x", ETCD_FASTER.get(count))
        words = f"processor of {KRaft.name}'s leader for 1 of etcd's, {where}"
        sheet.add(words, size, "nodes", cost, "x", LEADER_OF_ETCD.get(count))


def _progress(line: str) -> None:
    """Print a line of progress to stderr; the standard output contains only figures."""
    print(line, file=sys.stderr, flush=True)


# Failover


async def fail_over(cluster: QuorumCluster) -> float:
    """Return the seconds from the leader's death to the first acknowledged write.  Restart the old leader
    afterwards.
    """
    old = await cluster.leader()
    rest = [server for server in cluster.servers if server != old]
    cluster.stop(old, signal.SIGKILL)
    began = time.monotonic()
    await cluster.prepare(leader := await cluster.leader(rest), 1)
    [writer] = await cluster.writers(leader, 1)
    await write_for([writer], 0.0, 0.0, lambda: None)
    took_s = time.monotonic() - began
    writer.close()
    cluster.start(old)
    await cluster.until_follows(old, await cluster.leader(rest))  # the next kill must not leave a minority
    return took_s


# Starting, and memory


async def measure_start(folder: Path, records: int, sheet: Sheet) -> None:
    """Measure the start from the log alone; then from a snapshot, with a log that begins at its end."""
    (folder / "start").mkdir()
    node = KRaft(folder / "start", 1, {"segment_bytes": SEGMENT_BYTES})
    topics = [topic_records(number) for number in range(TOPICS)]
    values: Iterator[metadata.Record] = (
        metadata.ConfigRecord(metadata.TOPIC_RESOURCE, f"t{n % TOPICS}", REGISTER, str(VALUE_FIRST + n))
        for n in itertools.count()
    )
    more = (records - 2 * TOPICS) // BATCH_RECORDS
    batches = (list(itertools.islice(values, BATCH_RECORDS)) for _ in range(more))
    _progress(f"writing a log of {records:,} records")
    write_log(node.data_dir(1), itertools.chain(topics, batches))
    try:
        _progress("starting with the log")
        sheet.add("start with a log", records, "records", await start_cpu_s(node), "s", START_S)
        node.stop(1)
        limits = {"metadata.log.max.record.bytes.between.snapshots": 1 << 16, "metadata.max.retention.bytes": 1}
        node.configure({"segment_bytes": SEGMENT_BYTES, **limits})
        _progress("starting again, to take a snapshot")
        await start_cpu_s(node)
        await until_snapshot(node.data_dir(1) / FOLDER, records)
        node.stop(1)
        node.configure({"segment_bytes": SEGMENT_BYTES})
        sheet.add("start with a snapshot", records, "records", await start_cpu_s(node), "s", SNAPSHOT_START_S)
    finally:
        node.close()


async def measure_memory(folder: Path, sheet: Sheet) -> None:
    (folder / "memory").mkdir()
    node = KRaft(folder / "memory", 1)
    for topics in (1, MEMORY_TOPICS):
        try:
            if topics > 1:
                write_log(node.data_dir(1), (topic_records(number) for number in range(1, topics)))
            await start_cpu_s(node)
            sheet.add("memory of a node", topics, "topics", resident_mb(node.pid(1)), "MB")
            node.stop(1)
        finally:
            node.close()


async def start_cpu_s(node: KRaft) -> float:
    """Return the processor seconds from the start of the process to its first acknowledged write."""
    node.start(1)
    await node.prepare(await node.leader(), 1)
    return cpu_s_of(node.pid(1))


async def until_snapshot(folder: Path, offset: int) -> None:
    """Wait until a snapshot contains nearly everything below `offset`.  Raises TimeoutError."""
    until = time.monotonic() + SNAPSHOT_WAIT_S
    while time.monotonic() < until:
        if any(int(each.name[:20]) >= offset * 0.95 for each in folder.glob("*.checkpoint")):
            return
        await asyncio.sleep(0.2)
    raise TimeoutError(f"no snapshot within {SNAPSHOT_WAIT_S:g} s in {folder}")


def topic_records(number: int) -> list[metadata.Record]:
    """Return a topic of one partition, as the controller creates it."""
    topic = UUID(int=1000 + number)
    partition = metadata.PartitionRecord(0, topic, (1,), (1,), leader=1, leader_epoch=0, partition_epoch=0)
    return [metadata.TopicRecord(f"t{number}", topic), partition]


def write_log(data_dir: Path, batches: Iterable[list[metadata.Record]]) -> None:
    """Append to the log of a node that does not run."""
    log = open_log(RealDisk(data_dir), segment_max_bytes=SEGMENT_BYTES)
    for records in batches:
        body = tuple(metadata.encode(record) for record in records)
        log.append([Batch(log.end_offset, max(1, log.last_epoch), len(body), body)], time.time_ns() // 10**6)
    log.flush()
    log.close()


if __name__ == "__main__":
    script(
        __doc__,
        main,
        nodes={"type": int, "nargs": "+", "default": [3, 5]},
        writers={"type": int, "nargs": "+", "default": [1, 64]},
        rounds={"type": int, "default": 5, "help": "number of rounds of writing, and of failovers"},
        seconds={"type": float, "default": 3.0, "help": "seconds of writing in each round"},
        records={"type": int, "default": LOG_RECORDS, "help": "number of records in the log of a start"},
        only={"nargs": "+", "choices": WRITES, "default": WRITES},
        folder={"type": Path, "help": "folder for the data, on the disk to measure"},
    )
