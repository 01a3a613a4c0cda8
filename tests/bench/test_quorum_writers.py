"""The writers of the bench against real servers: every acknowledged write exists, and a refused one is reported."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from bench.instruments.quorum_clusters import (
    HOST,
    EtcdCluster,
    KRaft,
    KRaftWriter,
    QuorumCluster,
    WriteRefused,
    etcd_version,
    write_for,
)
from system_under_test.client import Request
from system_under_test.etcd_client import Gateway
from system_under_test.kraft.client import question
from system_under_test.kraft.wire.channel import Connection


def _with(cluster: QuorumCluster, test: Callable[[int], Awaitable[None]]) -> None:
    async def run() -> None:
        cluster.start(1)
        leader = await cluster.leader()
        await cluster.prepare(leader, 3)
        await test(leader)

    try:
        asyncio.run(run())
    finally:
        cluster.close()


async def _write(cluster: QuorumCluster, leader: int) -> tuple[int, int]:
    """Return (acknowledged writes, three at least, number of calls of the marks in each load)."""
    latencies_s: list[float] = []
    calls: set[int] = set()
    while len(latencies_s) < 3:  # a short load on a busy machine may get no acknowledgement
        marks: list[None] = []
        writers = await cluster.writers(leader, 3)
        latencies_s += await write_for(writers, 0.0, 0.3, lambda marks=marks: marks.append(None))
        for writer in writers:
            writer.close()
        calls.add(len(marks))
    assert all(latency > 0 for latency in latencies_s)
    (marked,) = calls
    return len(latencies_s), marked


def test_acknowledged_writes_are_in_the_registers_of_kraft(tmp_path: Path) -> None:
    cluster = KRaft(tmp_path, 1)

    async def test(leader: int) -> None:
        written, marks = await _write(cluster, leader)
        assert written >= 3
        assert marks == 2
        connection = Connection(HOST, cluster.port(leader), "krucible-test")
        for number in range(3):
            answer = await connection.ask(question(Request("read", f"t{number}"), 1))
            assert len(answer.results[0].configs[0].value) == 13
        connection.close()

    _with(cluster, test)


def test_a_refused_write_ends_the_load(tmp_path: Path) -> None:
    cluster = KRaft(tmp_path, 1)

    async def test(leader: int) -> None:
        _, writer = await asyncio.get_running_loop().create_connection(
            lambda: KRaftWriter("no-such-topic"), HOST, cluster.port(leader)
        )
        with pytest.raises(WriteRefused):
            await write_for([writer], 0.0, PATIENCE_S, lambda: None)
        writer.close()

    _with(cluster, test)


@pytest.mark.skipif(etcd_version() is None, reason="etcd is not installed")
def test_acknowledged_writes_are_revisions_of_etcd(tmp_path: Path) -> None:
    cluster = EtcdCluster(tmp_path, 1)

    async def test(leader: int) -> None:
        written, _ = await _write(cluster, leader)
        gateway = Gateway(f"{HOST}:{cluster.port(leader)}")
        answer = gateway.post("/v3/kv/range", {"key": base64.b64encode(b"t1").decode()})
        gateway.close()
        assert written >= 3
        assert int(answer["header"]["revision"]) - 1 >= written
        assert len(base64.b64decode(answer["kvs"][0]["value"])) == 13

    _with(cluster, test)
