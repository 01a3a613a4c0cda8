"""Clocks, disks and members of a cluster with agents, and the harness' end of the stream to an agent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from checkers.base.history import Type
from harness.agent.disk_verbs import DiskVerbs
from harness.agent.frames import Decoder, Frame, encode
from harness.agent.wall_clock import ClockVerbs
from harness.backends.agent_cluster import AgentCluster
from harness.backends.agent_link import ANSWER_S_MAX, SILENT_S, AgentClientHost, AgentLink, AgentNode
from harness.backends.backend import ClusterSpec
from harness.backends.builds import clock_library
from nemesis.cluster import CLOCK, DAMAGES, DISK, MEMBERS, CannotInject
from system_under_test.client import Request
from system_under_test.subject import Node, NodeGone

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler for the library that shifts clocks"
)


class Link:
    """A node whose agent refuses the verbs that are named."""

    def __init__(self, name: str, *refused: Any) -> None:
        self.name = name
        self._refused = refused

    async def ask(self, verb: Any, *_: Any) -> dict[str, Any]:
        if verb in self._refused:
            raise OSError(errno.ENOTSUP, "not on this node")
        return {}


def cluster(*wanted: str) -> AgentCluster:
    spec = ClusterSpec(run_id="r", servers=("n1", "n2", "n3"), clients=("c1",), seed=1, wanted=frozenset(wanted))
    return AgentCluster(spec)


@needs_compiler
def test_nodes_that_compile_the_library_at_once_all_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        libraries = [future.result() for future in [pool.submit(clock_library) for _ in range(8)]]
    assert set(libraries) == {libraries[0]}
    assert libraries[0].startswith(b"\x7fELF")


@needs_compiler
async def test_one_node_that_cannot_be_made_ready_is_not_hidden_by_later_nodes() -> None:
    made, node = cluster(CLOCK, DISK), cast(Any, SimpleNamespace(log_dir="/log", environment={}))
    for link in (Link("n1"), Link("n2", ClockVerbs.install, DiskVerbs.mount), Link("n3")):
        await made.install_clock(cast(Any, link), node)
        await made.data_folder(cast(Any, link), "/folder")
    assert made.lacks(CLOCK) == "n2: not on this node"
    assert made.lacks(DISK).startswith("n2: not on this node.  It needs /dev/fuse")


@pytest.mark.parametrize("capability", [CLOCK, DISK])
def test_what_the_run_was_not_made_with_is_lacking(capability: str) -> None:
    assert cluster().lacks(capability).startswith("the run was made without")


class Agent:
    """Notes the verbs that reach it."""

    name = "n1"

    def __init__(self) -> None:
        self.verbs: list[str] = []

    async def ask(self, verb: Any, *_: Any) -> None:
        self.verbs.append(verb.__qualname__)


def on_one_node() -> tuple[AgentCluster, Agent, Any]:
    wanted, damages = frozenset({DISK}), {"flip": r"\.log$"}
    cluster, agent = AgentCluster(ClusterSpec("r", ("n1",), (), 1, wanted, notices_damage=damages)), Agent()
    node = SimpleNamespace(alone=asyncio.Lock())
    cluster._links["n1"], cluster._nodes["n1"] = agent, node  # type: ignore[assignment]
    return cluster, agent, node


@pytest.mark.parametrize(
    "change",
    [lambda c: c.lose_power("n1", "lose", 7), lambda c: c.damage_disk("n1", "flip", 7)],
    ids=["power", "damage"],
)
def test_a_disk_changes_only_when_its_copy_is_done(change: Callable[[AgentCluster], Coroutine[Any, Any, None]]) -> None:
    async def during_a_copy() -> tuple[list[str], list[str]]:
        cluster, agent, node = on_one_node()
        async with node.alone:
            changing = asyncio.ensure_future(change(cluster))
            for _ in range(10):
                await asyncio.sleep(0)
            meanwhile = list(agent.verbs)
        await changing
        return meanwhile, agent.verbs

    meanwhile, afterwards = asyncio.run(during_a_copy())
    assert meanwhile == []
    assert len(afterwards) == 1


class Recorded:
    """Implements `Members`; a node stands for itself."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, list[Any], Any]] = []

    async def members(self, nodes: Sequence[Node]) -> frozenset[str]:
        return frozenset(map(str, nodes))

    async def remove(self, nodes: Sequence[Node], leaving: Node) -> None:
        self.orders.append(("remove", list(nodes), leaving))

    async def add(self, nodes: Sequence[Node], joining: Node, *, wiped: bool = False) -> None:
        self.orders.append(("add wiped" if wiped else "add", list(nodes), joining))


async def test_the_subject_changes_its_members_on_the_nodes_of_the_servers() -> None:
    members = Recorded()
    cluster = AgentCluster(ClusterSpec("r", ("n1", "n2"), ("c1",), 1, members=members))
    for name in ("n1", "n2", "c1"):
        cluster._links[name], cluster._nodes[name] = cast(Any, None), cast(Any, f"node {name}")
    assert cluster.lacks(MEMBERS) == ""
    assert await cluster.members() == {"node n1", "node n2"}
    await cluster.remove_member("n2")
    await cluster.add_member("n2")
    await cluster.add_member("n1", wiped=True)
    servers = ["node n1", "node n2"]
    assert members.orders == [
        ("remove", servers, "node n2"),
        ("add", servers, "node n2"),
        ("add wiped", servers, "node n1"),
    ]


async def test_without_them_every_change_is_refused_in_words() -> None:
    cluster = AgentCluster(ClusterSpec("r", ("n1", "n2"), ("c1",), 1))
    assert "cannot change while it runs" in cluster.lacks(MEMBERS)
    with pytest.raises(CannotInject, match="cannot change while it runs"):
        await cluster.remove_member("n1")


async def test_damage_that_the_subject_does_not_notice_is_refused() -> None:
    cluster = AgentCluster(ClusterSpec("r", ("n1",), ("c1",), 1, notices_damage={"flip": "*.wal"}))
    words = {how: cluster.lacks(capability) for capability, how in DAMAGES.items()}
    assert "does not promise to notice" in words["truncate"]
    assert "does not promise to notice" not in words["flip"]
    with pytest.raises(CannotInject, match="does not promise to notice"):
        await cluster.damage_disk("n1", "wipe", 1)


class Played:
    """The far end: `request` returns the next request, `say` sends a frame, `hang_up` ends the stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: AgentLink) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder()
        self._arrived: list[Frame] = []
        self.link = link

    async def request(self) -> dict[str, Any]:
        while not self._arrived:
            self._arrived += self._decoder.feed(await self._reader.read(1 << 16))
        return self._arrived.pop(0)[0]

    def say(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        self.say_raw(encode(header, body))

    def say_raw(self, data: bytes) -> None:
        self._writer.write(data)

    def hang_up(self) -> None:
        self._writer.close()


@pytest.fixture
async def far() -> AsyncIterator[Played]:
    near_end, far_end = socket.socketpair()
    near_reader, near_writer = await asyncio.open_connection(sock=near_end)
    far_reader, far_writer = await asyncio.open_connection(sock=far_end)
    link = AgentLink("n1", near_reader, near_writer, lambda _: None, lambda: "one\nagent 1.0 the last words\n")
    yield Played(far_reader, far_writer, link)
    await link.close()
    far_writer.close()
    with contextlib.suppress(ConnectionError):
        await near_writer.wait_closed()


def node(link: AgentLink) -> AgentNode:
    return AgentNode(link, address="", data_dir="/d", trace_dir="/t", log_dir="/l", python=("python3",))


async def test_answers_come_back_in_any_order(far: Played) -> None:
    calls = [asyncio.create_task(far.link.call("state", {"number": i})) for i in range(3)]
    requests = [await far.request() for _ in calls]
    for request in reversed(requests):
        far.say({"id": request["id"], "result": {"echo": request["args"]["number"]}})
    assert [(await call)[0]["echo"] for call in calls] == [0, 1, 2]


@pytest.mark.parametrize(("number", "kind"), [(13, PermissionError), (32, OSError)])
async def test_a_refusal_is_an_os_error_in_the_nodes_words(far: Played, number: int, kind: type[OSError]) -> None:
    """One that looks like a broken pipe is still a refusal."""
    call = asyncio.create_task(far.link.call("read"))
    far.say({"id": (await far.request())["id"], "errno": number, "words": "refused: /x"})
    with pytest.raises(kind, match="n1: refused: /x") as caught:
        await call
    assert not isinstance(caught.value, NodeGone)


async def test_all_who_wait_learn_that_the_agent_is_gone(far: Played) -> None:
    calls = [asyncio.create_task(far.link.call("state")) for _ in range(3)]
    await far.request()
    far.hang_up()
    for call in calls:
        with pytest.raises(NodeGone, match=r"its stream ended; it wrote: agent 1\.0 the last words"):
            await call
    with pytest.raises(NodeGone):
        await far.link.call("state")


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (encode({"id": 1, "result": {}})[:-1], "its stream ended within a frame"),
        (b"Fatal Python error: init_import_site\n", "not a frame: b'Fatal Python error"),
    ],
)
async def test_what_is_no_whole_frame_ends_the_link(far: Played, sent: bytes, words: str) -> None:
    call = asyncio.create_task(far.link.call("state"))
    await far.request()
    far.say_raw(sent)
    far.hang_up()
    with pytest.raises(NodeGone, match=words):
        await call


@pytest.mark.virtual_time
async def test_an_agent_that_goes_on_sending_is_given_time(far: Played) -> None:
    """A machine under load lets its agents wait for CPU time: what they send shows that they live."""
    call = asyncio.create_task(far.link.call("state"))
    number = (await far.request())["id"]
    for _ in range(3):
        await asyncio.sleep(SILENT_S - 1.0)
        far.say({"event": "beat"})
    await asyncio.sleep(SILENT_S - 1.0)
    far.say({"id": number, "result": {"state": "running"}})
    assert (await call)[0]["state"] == "running"


@pytest.mark.virtual_time
async def test_an_agent_that_falls_silent_or_never_answers_counts_as_gone(far: Played) -> None:
    began_s = asyncio.get_running_loop().time()
    silent, endless = (asyncio.create_task(far.link.call(verb)) for verb in ("state", "processor"))
    await asyncio.sleep(SILENT_S - 5.0)
    far.say({"event": "beat"})
    with pytest.raises(NodeGone, match=rf"no answer to state within {2 * SILENT_S - 5.0:g} s"):
        await silent
    with pytest.raises(NodeGone, match="no answer to processor"):
        await endless
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(2 * SILENT_S - 5.0, abs=0.1)
    call = asyncio.create_task(far.link.call("state"))
    while not call.done():
        far.say({"event": "beat"})
        await asyncio.sleep(SILENT_S / 2)
    with pytest.raises(NodeGone, match=rf"no answer to state within {ANSWER_S_MAX:g} s"):
        await call


async def test_an_agent_that_answers_too_late_counts_as_gone_and_its_answer_goes_nowhere(
    far: Played,
) -> None:
    with pytest.raises(NodeGone, match=r"n1: no answer to state within 0\.05 s"):
        await far.link.call("state", timeout_s=0.05)
    late = await far.request()
    call = asyncio.create_task(far.link.call("state"))
    far.say({"id": late["id"], "result": {"echo": "late"}})
    far.say({"id": (await far.request())["id"], "result": {"echo": "mine"}})
    assert (await call)[0]["echo"] == "mine"


async def test_pieces_of_two_answers_may_be_mixed(far: Played) -> None:
    calls = [asyncio.create_task(node(far.link).read(path)) for path in "ab"]
    first, second = [(await far.request())["id"] for _ in calls]
    for number, piece in ((first, b"a1"), (second, b"b1"), (first, b"a2")):
        far.say({"id": number, "more": True}, piece)
    far.say({"id": second, "result": {}}, b"b2")
    far.say({"id": first, "result": {}})
    assert [await call for call in calls] == [b"a1a2", b"b1b2"]


@pytest.mark.virtual_time
async def test_an_invoke_without_an_answer_is_info_one_second_after_its_limit(far: Played) -> None:
    began = asyncio.get_running_loop().time()
    outcome = await AgentClientHost(lambda: far.link).invoke(0, Request("write", "k", 1), 0.1)
    assert outcome.type is Type.INFO
    assert asyncio.get_running_loop().time() - began == pytest.approx(1.1)


@pytest.mark.parametrize("name", ["../outside", "/etc/outside"])
async def test_nothing_lands_outside_the_destination(far: Played, tmp_path: Path, name: str) -> None:
    import io
    import tarfile

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    call = asyncio.create_task(node(far.link).copy_out("/d", tmp_path / "inside"))
    number = (await far.request())["id"]
    far.say({"id": number, "more": True}, packed.getvalue())
    far.say({"id": number, "result": {"kind": "folder"}})
    with pytest.raises(PermissionError, match="which is no plain file or folder"):
        await call
    assert not (tmp_path / "outside").exists()
