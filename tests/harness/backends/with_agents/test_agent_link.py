"""The harness' end of the stream, against an agent that the test plays itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from checkers.base.history import Type
from harness.agent.frames import Decoder, Frame, encode
from harness.backends.agent_link import ANSWER_S_MAX, SILENT_S, AgentClientHost, AgentLink, AgentNode
from system_under_test.client import Request
from system_under_test.subject import NodeGone


class Played:
    """The far end: `request` returns the next request, `say` sends a frame, `hang_up` ends the stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: AgentLink) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder()
        self._arrived: list[Frame] = []
        self.link = link
        self.events: list[Mapping[str, Any]] = []

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
    events: list[Mapping[str, Any]] = []
    link = AgentLink("n1", near_reader, near_writer, events.append, lambda: "one\nagent 1.0 the last words\n")
    played = Played(far_reader, far_writer, link)
    played.events = events
    yield played
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


async def test_events_are_heard_without_a_request(far: Played) -> None:
    far.say({"event": "exit", "pid": 5})
    call = asyncio.create_task(far.link.call("state"))
    far.say({"id": (await far.request())["id"], "result": {}})
    await call
    assert far.events == [{"event": "exit", "pid": 5}]


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
