"""The subject over real processes on loopback: installed, queried, killed, restarted, collected, tabulated."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from local_node import LocalNode
from waiting import PATIENCE_S

from checkers.base.history import Type
from checkers.online import NewEntries
from system_under_test.client import Outcome, Placement, Request
from system_under_test.kraft import client as of_client
from system_under_test.kraft.client import connect
from system_under_test.kraft.collected.files import LOG_FOLDER
from system_under_test.kraft.collected.log_files import read_log
from system_under_test.kraft.collected.trace_files import read_trace
from system_under_test.kraft.node import config
from system_under_test.kraft.node.assembly import CannotStart
from system_under_test.kraft.node.process import run
from system_under_test.kraft.node.trace import FILE_NAME
from system_under_test.kraft.raft import decisions
from system_under_test.kraft.subject import PORT, Hearsay, Kraft, KraftWithVoters, _behind
from system_under_test.own.subject import Subject
from system_under_test.subject import Collected, NodeStatus, NotKnown
from system_under_test.system import OwnNode


def local_node(number: int, root: Path) -> LocalNode:
    return LocalNode(f"n{number}", f"127.{os.getpid() % 250 + 2}.{os.getpid() // 250 % 250}.{number}", root)


class Running:
    """Installed and started nodes, and one client that follows the leader."""

    def __init__(self, root: Path, count: int) -> None:
        self.kraft = Subject.bundled(Kraft)
        self.nodes = [local_node(number, root) for number in range(1, count + 1)]
        peers = {node.name: f"{node.address}:{PORT}" for node in self.nodes}
        self.client = connect(Placement(0, "c1", follows=True, reads_only=False), peers, {}, {})

    async def up(self) -> None:
        await self.kraft.install(self.nodes, seed=7, bug=None)
        for node in self.nodes:
            await self.kraft.start(node)

    async def down(self) -> None:
        await self.client.close()
        for node in self.nodes:
            await node.signal("CONT")
            await node.signal("KILL")

    def named(self, name: str) -> LocalNode:
        return next(node for node in self.nodes if node.name == name)

    async def until_ok(self, request: Request, limit_s: float = PATIENCE_S) -> Outcome:
        deadline = time.monotonic() + limit_s
        while (outcome := await self.client.invoke(request, 2.0)).type is not Type.OK:
            assert time.monotonic() < deadline, outcome
            await asyncio.sleep(0.05)
        return outcome

    async def until_caught_up(self, limit_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + limit_s
        while (why := await self.kraft.caught_up(self.nodes, 1)) is not None:
            assert time.monotonic() < deadline, why
            await asyncio.sleep(0.05)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path, 3)
    try:
        await made.up()
        yield made
    finally:
        await made.down()


async def test_a_running_node_is_followed_row_by_row_and_entry_by_entry(running: Running, tmp_path: Path) -> None:
    """Followed from the middle, paused for a while: in the end every row, and the log below the largest mark."""
    await running.until_ok(Request("create", "k"))
    await running.until_ok(Request("write", "k", 1))
    lives = {node.name: running.kraft.live(node, 0) for node in running.nodes}
    rows: dict[str, list[pa.Table]] = {name: [] for name in lives}
    stable: dict[str, list[NewEntries]] = {name: [] for name in lives}

    async def look() -> None:
        for name, live in lives.items():
            await live.fetch()
            rows[name].append(live.trace())
            stable[name].append(live.entries())

    await look()
    leader = (await leader_of(running)).node
    paused = next(node for node in running.nodes if node.name != leader)
    for value in range(2, 30):
        if value == 10:
            await paused.signal("STOP")
        await running.until_ok(Request("write", "k", value))
        await look()
    await paused.signal("CONT")
    await running.until_caught_up()
    await look()
    for node in running.nodes:
        await node.signal("STOP")
        await look()
        followed = pa.concat_tables(rows[node.name], promote_options="default")
        whole = read_trace(Path(node.trace_dir) / "trace.jsonl", 0)
        assert followed["seq"].to_pylist() == whole["seq"].to_pylist()
        assert followed["hash"].to_pylist() == whole["hash"].to_pylist()
        mark = max(r["offset"] for r in whole.to_pylist() if r["event"] == "high-watermark" and r["offset"])
        log = read_log(Path(node.data_dir) / LOG_FOLDER)
        for column in ("offset", "epoch", "checksum"):
            assert np.concatenate([getattr(e, column) for e in stable[node.name]]).tolist() == list(
                getattr(log, column)[:mark]
            )
        copy = Collected(0, "final", node.name, "stopped", Path(node.data_dir))
        assert lives[node.name].tail(copy).offset.tolist() == list(range(mark, log.log_end))


async def test_what_was_acknowledged_survives_the_kill_of_the_leader_and_a_restart(
    running: Running, tmp_path: Path
) -> None:
    kraft, started_ns = running.kraft, time.monotonic_ns()
    await running.until_ok(Request("create", "k"))
    for value in range(1, 21):
        await running.until_ok(Request("write", "k", value))

    first = None
    while first is None or first.epoch != (await leader_of(running)).epoch:  # an election adds to the log
        await running.until_caught_up()
        first = await leader_of(running)
        several = await asyncio.gather(*(kraft.status(running.nodes[0]) for _ in range(5)))
    assert len({status.log_end for status in several if status}) == 1, "polls may overlap"
    await running.named(first.node).signal("KILL")
    assert await kraft.status(running.named(first.node)) is None
    await running.until_ok(Request("write", "k", 100))
    second = await leader_of(running)
    assert (second.node != first.node, second.epoch > first.epoch) == (True, True)

    await kraft.start(running.named(first.node))
    await running.until_caught_up()
    assert (await running.until_ok(Request("read", "k"))).value == 100

    await running.named(second.node).signal("TERM")
    process = running.named(second.node).process
    assert process is not None
    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    assert (await running.until_ok(Request("read", "k"))).value == 100
    await kraft.start(running.named(second.node))
    await running.until_caught_up()

    copies = await collected(running, tmp_path / "run")
    assert kraft.complaints(tmp_path / "run") == []
    kraft.tables(tmp_path / "run", copies, lambda node: started_ns)
    check_tables(tmp_path / "run" / "tables")


async def leader_of(running: Running) -> NodeStatus:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            statuses = [await running.kraft.status(node) for node in running.nodes]
            leaders = [status for status in statuses if status is not None and status.role == "leader"]
            if leaders:
                return max(leaders, key=lambda status: status.epoch)
            await asyncio.sleep(0.05)


async def collected(running: Running, run: Path) -> list[Collected]:
    copies = []
    for node in running.nodes:
        await node.signal("STOP")
        folder = run / "nodes" / node.name / "copies" / "0"
        await node.copy_out(node.data_dir, folder)
        await running.kraft.collect(node, run / "nodes" / node.name)
        size = (Path(node.trace_dir) / "trace.jsonl").stat().st_size
        copies.append(Collected(0, "final", node.name, "running", folder, size))
    return copies


def check_tables(tables: Path) -> None:
    """The independent reader finds sound logs, and the prefix hashes that the nodes traced."""
    copies = pq.read_table(tables / "copies.parquet").to_pylist()
    assert [(row["error"], row["torn_bytes"]) for row in copies] == [(None, 0)] * 3
    assert len({row["log_end"] for row in copies}) == 1
    written, traced, largest = {}, {}, []
    for copy in copies:
        log = pq.read_table(tables / "log" / f"{copy['node']}.parquet")
        end_of_batch = {row["offset"] + 1: row["batch_hash"] for row in log.to_pylist()}
        values = [v for v in log["value"].to_pylist() if v is not None]
        assert values == [*range(1, 21), 100]
        trace = pq.read_table(tables / "trace" / f"{copy['node']}.parquet")
        marks = trace.filter(pc.equal(pc.cast(trace["event"], "string"), "high-watermark")).to_pylist()
        largest.append(marks[-1]["offset"])
        assert all(end_of_batch[mark["offset"]] == mark["hash"] for mark in marks)
        assert trace["seq"].to_pylist() == list(range(len(trace)))
        applied = trace.filter(pc.equal(pc.cast(trace["event"], "string"), "applied")).to_pylist()
        for row in applied:
            assert traced.setdefault(row["offset"], row["hash"]) == row["hash"], "one state at each offset"
        written[copy["node"]] = end_of_batch[copy["log_end"]]
    assert len(set(written.values())) == 1
    assert max(largest) == copies[0]["log_end"]


async def test_a_node_that_cannot_start_says_why_in_one_sentence(tmp_path: Path) -> None:
    kraft, node = Subject.bundled(Kraft), local_node(1, tmp_path)
    with pytest.raises(ValueError, match="no planted bug 'nonsense'"):
        await kraft.install([node], seed=1, bug="nonsense")
    await kraft.install([node], seed=1, bug="stale-read")
    settings = config.load(Path(node.log_dir) / "kraft.json")
    meta = Path(node.data_dir) / "meta.properties"
    written = meta.read_text()
    for change, expected in {"node.id=2": "belongs to node 2 of cluster", "nonsense": "meta.properties holds"}.items():
        meta.write_text(written.replace("node.id=1", change))
        with pytest.raises(CannotStart, match=expected):
            await run(settings)
    meta.write_text(written)
    quorum_state = Path(node.data_dir) / "__cluster_metadata-0" / "quorum-state"
    quorum_state.write_text('{"leaderEpoch":1')
    done = await node.run(
        [*node.python, "-m", "system_under_test.kraft", "--config", f"{node.log_dir}/kraft.json"], timeout_s=PATIENCE_S
    )
    message = done.stderr.decode()
    assert (done.status, message.count("\n")) == (1, 1), message
    assert message.startswith("cannot start: quorum-state holds ")


async def test_two_nodes_never_share_a_data_directory(tmp_path: Path) -> None:
    node = local_node(1, tmp_path)
    await Subject.bundled(Kraft).install([node], seed=1, bug=None)
    with (Path(node.data_dir) / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CannotStart, match="another node is running on"):
            await run(config.load(Path(node.log_dir) / "kraft.json"))


def test_it_is_a_subject_with_every_bug_of_the_quorum() -> None:
    bugs = {**Kraft.bugs, **KraftWithVoters.bugs}
    assert bugs.keys() == decisions.BUGS.keys() | of_client.BUGS.keys()
    for bug in bugs.values():
        assert bug.shown_by, "no bug of the quorum shows without a fault"


def status(node: str, role: str, leader: str | None, end: int, epoch: int = 3, mark: int | None = 5) -> NodeStatus:
    return NodeStatus(node, epoch, role, leader, mark, end)


def test_why_nodes_have_not_caught_up() -> None:
    leads, follows = status("n1", "leader", "n1", 9), status("n2", "follower", "n1", 9)
    assert _behind([leads, follows], 9) is None
    assert _behind([follows, status("n3", "candidate", None, 9)], 9) == "no node leads epoch 3"
    assert "ends at 8" in (_behind([leads, status("n2", "follower", "n1", 8)], 9) or "")
    assert "in epoch 2" in (_behind([leads, status("n2", "leader", "n2", 9, epoch=2)], 9) or "")
    assert "committed nothing" in (_behind([status("n1", "leader", "n1", 9, mark=None), follows], 9) or "")


def test_a_trace_is_heard_in_pieces() -> None:
    rows = (
        b'{"seq":0,"inc":0,"t":1,"event":"start","epoch":0,"offset":4,"hash":0}\n'
        b'{"seq":1,"inc":0,"t":2,"event":"role","epoch":2,"role":"follower","peer":"n3"}\n'
        b'{"seq":2,"inc":0,"t":3,"event":"high-watermark","epoch":2,"offset":4,"hash":7}\n'
        b'{"seq":3,"inc":0,"t":4,"event":"append","epoch":2,"offset":6}\n'
        b'{"seq":4,"inc":1,"t":5,"event":"start","epoch":2,"offset":5,"hash":0}\n'
    )
    for size in range(1, 50):
        heard = Hearsay()
        while heard.read_bytes < len(rows):
            known = heard.read_bytes
            for reach in range(size, len(rows) + size, size):
                heard.take(rows[known : known + reach])
                if heard.read_bytes > known:
                    break
        assert (heard.rows, heard.epoch, heard.role, heard.leader) == (5, 2, "unattached", None)
        assert (heard.high_watermark, heard.largest_mark, heard.log_end) == (None, 4, 5)


ROWS = b'{"event":"role","epoch":3,"role":"leader"}\n{"event":"append","epoch":3,"offset":7}\n'
MORE = b'{"event":"append","epoch":3,"offset":8}\n'


@pytest.mark.parametrize(
    ("now", "lost"),
    [
        (ROWS, False),
        (ROWS + MORE, False),
        (ROWS + MORE[:9], False),
        (b"", True),
        (ROWS[:-9], True),
        (MORE * 4, True),
        (ROWS + b"no row\n", True),
        (ROWS + b"[]\n", True),
    ],
)
def test_a_trace_that_no_longer_goes_on_where_it_ended_is_lost(now: bytes, lost: bool) -> None:
    heard = Hearsay()
    heard.take_from(0, ROWS)
    heard.take_from(heard.wanted_from, now[heard.wanted_from :])
    assert heard.lost is lost
    assert heard.log_end == (8 if now == ROWS + MORE else 7)


def test_of_two_readers_of_a_trace_the_slower_one_changes_nothing() -> None:
    heard = Hearsay()
    start = heard.wanted_from
    heard.take_from(start, ROWS + MORE)
    heard.take_from(start, ROWS)
    assert (heard.lost, heard.rows) == (False, 3)


async def test_without_its_trace_it_is_not_known_whether_a_node_caught_up(tmp_path: Path) -> None:
    node = local_node(1, tmp_path)
    trace = Path(node.trace_dir) / FILE_NAME
    trace.write_bytes(ROWS)
    node.process = await asyncio.create_subprocess_exec("sleep", "600")
    kraft, own = Kraft(), OwnNode(node, 0)
    kraft.nodes = [own]
    try:
        assert (await kraft.status(own)) is not None
        trace.write_bytes(ROWS[:5])
        assert (await kraft.status(own)) is None
        with pytest.raises(NotKnown, match="the trace of n1 was truncated or removed"):
            await kraft.caught_up([own])
    finally:
        node.process.kill()
        await node.process.wait()


def test_complaints_are_tracebacks_and_refusals(tmp_path: Path) -> None:
    logs = {
        "n1": "WARNING wire: connection 3 closed\n",
        "n2": (
            "n2: FATAL: epoch 4: leader n1 requires a truncation to 3, below the high watermark 5\n"
            "cannot start: meta.properties holds nothing\n"
        ),
        "n3": (
            "n3: FATAL: unexpected error\nTraceback (most recent call last):\n"
            '  File "x.py", line 1, in <module>\n    1 // 0\n'
            "ZeroDivisionError: integer division or modulo by zero\nn3: cut a torn tail of 3 bytes\n"
            "Traceback (most recent call last):\n  File\nKeyError: 4\n"
        ),
    }
    for name, text in logs.items():
        folder = tmp_path / "nodes" / name
        folder.mkdir(parents=True)
        (folder / "server.log").write_text(text)
    found = Subject.bundled(Kraft).complaints(tmp_path)
    assert [(c.node, c.reason) for c in found] == [
        ("n2", "n2: FATAL: epoch 4: leader n1 requires a truncation to 3, below the high watermark 5"),
        ("n2", "cannot start: meta.properties holds nothing"),
        ("n3", "ZeroDivisionError: integer division or modulo by zero"),
        ("n3", "KeyError: 4"),
    ]
    assert "1 // 0" in found[2].excerpt
