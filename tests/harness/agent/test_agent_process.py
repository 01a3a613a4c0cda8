"""A real agent over local pipes: its frames, every verb that a subject may use, and how it ends: it leaves nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_agents import LocalAgent, local_agent
from waiting import PATIENCE_S, eventually, is_alive, until

from harness.agent import files
from harness.agent.children import COMMAND_MARK, NOT_KNOWN_S, Children, oom_kills
from harness.agent.files import Lines, form
from harness.agent.frames import BODY_BYTES_MAX, BrokenStream, Decoder, Frame, encode
from harness.agent.process import LINGER, SILENCE, NodeVerbs
from harness.agent.server import ServerProcess
from system_under_test.client import Placement, Request
from system_under_test.subject import NodeGone

SLEEPER = ("sleep", "1000")


async def test_a_server_runs_is_stopped_continued_and_killed(agent: LocalAgent) -> None:
    node = agent.node
    assert await node.state() == "dead"
    pid = await node.start(SLEEPER)
    assert await node.state() == "running"
    await node.signal("STOP")
    assert await node.state() == "stopped"
    await node.signal("CONT")
    assert await node.state() == "running"
    await node.signal("KILL")
    assert not Path(f"/proc/{pid}").exists()  # reaped, not merely dead
    assert await node.state() == "dead"
    await node.signal("KILL")  # a no-op on a dead server


async def test_a_server_stands_still_from_its_line_on_until_it_is_thawed_or_signalled(
    agent: LocalAgent, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    await agent.node.start(("sh", "-c", "n=0; while :; do n=$((n+1)); echo line $n; sleep 0.02; done"), output=str(log))
    for go_on in (ServerProcess.thaw, None):
        async with asyncio.timeout(PATIENCE_S):
            while await agent.node.state() != "stopped":  # on a loaded machine it may have continued by itself
                assert await agent.link.ask(Lines.await_line, str(tmp_path), "line", 2, PATIENCE_S, True)
        await (agent.link.ask(go_on) if go_on else agent.node.signal("STOP"))
        await agent.link.ask(ServerProcess.thaw)
        assert await agent.node.state() == ("running" if go_on else "stopped"), "a pause outlasts the thaw"


async def test_a_wait_that_was_disarmed_freezes_nobody(agent: LocalAgent, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"until test -e {go}; do sleep 0.01; done; echo line; exec sleep 60"
    await agent.node.start(("sh", "-c", script), output=str(tmp_path / "server.log"))
    waiting = asyncio.ensure_future(agent.link.ask(Lines.await_line, str(tmp_path), "line", 1, PATIENCE_S, True))
    await agent.node.state()  # a later request on the same connection: the wait has begun
    await agent.link.ask(ServerProcess.thaw)
    go.touch()
    assert (await waiting)[0] == "line"
    assert await agent.node.state() == "running"


async def test_a_server_is_killed_as_soon_as_it_writes(agent: LocalAgent, tmp_path: Path) -> None:
    log, data = tmp_path / "data" / "deep" / "log", tmp_path / "data"
    log.parent.mkdir(parents=True)
    log.touch()  # otherwise the new file would already count as written
    go = tmp_path / "go"
    writes = f"until test -e {go}; do sleep 0.01; done; while :; do echo x >> {log}; sleep 0.01; done"
    await agent.node.start(("sh", "-c", writes))
    assert not await agent.link.ask(NodeVerbs.kill_at_write, str(data), 0.1)
    assert await agent.node.state() == "running", "it wrote nothing, and lives on"
    killing = asyncio.ensure_future(agent.link.ask(NodeVerbs.kill_at_write, str(data), PATIENCE_S))
    go.touch()
    assert await killing
    assert await agent.node.state() == "dead"
    assert set(log.read_text().split()) == {"x"}


async def test_a_second_server_is_refused(agent: LocalAgent) -> None:
    pid = await agent.node.start(SLEEPER)
    with pytest.raises(OSError, match=f"n1: a server is already running here .pid {pid}"):
        await agent.node.start(SLEEPER)


async def test_a_missing_program_is_refused_in_the_nodes_words(agent: LocalAgent) -> None:
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*no-such-program"):
        await agent.node.start(["/no-such-program"])
    assert await agent.node.state() == "dead"


async def test_an_unexpected_exit_is_reported_at_once(agent: LocalAgent) -> None:
    before_ns = time.monotonic_ns()
    pid = await agent.node.start(["sh", "-c", "exit 7"])
    await eventually(lambda: bool(agent.events))
    (event,) = agent.events
    assert (event["event"], event["pid"], event["status"], event["ordered"]) == ("exit", pid, 7, False)
    assert before_ns <= event["monotonic_ns"] <= time.monotonic_ns()


async def test_an_exit_reports_how_often_the_kernel_killed_for_want_of_memory_since_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [3, 5]
    monkeypatch.setattr("harness.agent.server.oom_kills", lambda: counts.pop(0))
    events: list[dict[str, Any]] = []
    children = Children()
    pid = ServerProcess(children, events.append).start(["sh", "-c", "kill -9 $$"], {}, str(tmp_path / "server.log"))
    until(lambda: not is_alive(pid))
    children.reap()
    assert [(event["status"], event["oom_kills"]) for event in events] == [(-9, 2)]


@pytest.mark.parametrize(
    ("text", "kills"), [("oom_kill_disable 9\noom_kill 4\npgfault 7\n", 4), ("pgfault 7\n", 0), (None, 0)]
)
def test_kills_for_want_of_memory_are_read_from_the_kernels_counters(
    tmp_path: Path, text: str | None, kills: int
) -> None:
    if text is not None:
        (tmp_path / "vmstat").write_text(text)
    assert oom_kills(tmp_path / "vmstat") == kills


async def test_a_kill_we_ordered_is_expected_and_one_from_elsewhere_is_not(agent: LocalAgent) -> None:
    await agent.node.start(SLEEPER)
    await agent.node.signal("KILL")
    pid = await agent.node.start(SLEEPER)
    assert (await agent.node.run(["kill", "-9", str(pid)])).status == 0
    await eventually(lambda: len(agent.events) == 2)
    assert [(event["status"], event["ordered"]) for event in agent.events] == [(-9, True), (-9, False)]


def test_a_death_before_the_order_is_unexpected(tmp_path: Path) -> None:
    """Here nothing calls `reap` between the death and the order, which a busy agent may not manage either."""
    events: list[dict[str, Any]] = []
    server = ServerProcess(Children(), events.append)
    pid = server.start(["sh", "-c", "exit 3"], {}, str(tmp_path / "server.log"))
    until(lambda: not is_alive(pid))
    server.signal("KILL")
    assert [(event["status"], event["ordered"]) for event in events] == [(3, False)]


async def test_output_and_environment(agent: LocalAgent, tmp_path: Path) -> None:
    output = str(tmp_path / "deep" / "down" / "server.log")
    for word in ("one", "two"):
        await agent.node.start(["sh", "-c", "echo $WORD; echo to stderr >&2"], env={"WORD": word}, output=output)
        written = f"{word}\nto stderr\n".encode()  # a kill after the first line may come before the second
        await eventually(lambda written=written: Path(output).read_bytes().endswith(written))  # type: ignore[misc]
        await agent.node.signal("KILL")
    assert (await agent.node.read(output)).decode().splitlines() == ["one", "to stderr", "two", "to stderr"]


async def test_run_gives_status_and_both_outputs_and_kills_what_takes_too_long(agent: LocalAgent) -> None:
    done = await agent.node.run(["sh", "-c", "echo out; echo err >&2; exit 4"])
    assert (done.status, done.stdout, done.stderr) == (4, b"out\n", b"err\n")
    with pytest.raises(OSError, match=r"did not end within 0\.2 s and was killed"):
        await agent.node.run(("sleep", "1000"), timeout_s=0.2)
    assert (await agent.node.run(["true"])).status == 0


MEET = 'touch "$0/$1"; until [ "$(ls "$0" | wc -l)" -eq 5 ]; do sleep 0.01; done; echo "$1"'


async def test_commands_run_beside_each_other(agent: LocalAgent, tmp_path: Path) -> None:
    """Each of them waits for the four others."""
    commands = [["sh", "-c", MEET, str(tmp_path), str(i)] for i in range(5)]
    done = await asyncio.gather(*(agent.node.run(command, timeout_s=PATIENCE_S) for command in commands))
    assert [int(one.stdout) for one in done] == list(range(5))


async def test_files_are_written_whole_and_read_from_an_offset(agent: LocalAgent, tmp_path: Path) -> None:
    path, long = str(tmp_path / "a" / "b" / "file"), bytes(range(256)) * 12_000  # 3 MB: many pieces
    await agent.node.write(path, long)
    assert await agent.node.read(path) == long
    await agent.node.write(path, b"0123456789")
    await agent.node.write(path, b"abcdefghij")
    assert await agent.node.read(path) == b"abcdefghij"
    assert await agent.node.read(path, 4, 3) == b"efg"
    assert await agent.node.read(path, 8) == b"ij"
    assert await agent.node.read(path, 99) == b""
    assert await agent.node.read(path + "-missing") == b""


async def test_folders_and_files_are_copied_out(agent: LocalAgent, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for name, data in {"top": b"1", "sub/deep/leaf": b"22" * 300_000, "sub/empty": b""}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    (source / "hollow").mkdir()
    (source / "link").symlink_to("/etc/passwd")
    await agent.node.copy_out(str(source), target / "tree")
    copied = {str(p.relative_to(target / "tree")): p for p in (target / "tree").rglob("*")}
    assert copied.keys() == {"top", "sub", "sub/deep", "sub/deep/leaf", "sub/empty", "hollow"}
    assert copied["sub/deep/leaf"].read_bytes() == b"22" * 300_000
    await agent.node.copy_out(str(source / "top"), target / "one-file")
    assert (target / "one-file").read_bytes() == b"1"


async def test_copying_what_is_not_there_is_refused(agent: LocalAgent, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file or folder on the node"):
        await agent.node.copy_out(str(tmp_path / "missing"), tmp_path / "target")


async def test_the_data_directory_is_copied_on_the_node_and_the_copy_removed(agent: LocalAgent, tmp_path: Path) -> None:
    node, aside = agent.node, tmp_path / "aside"
    with pytest.raises(OSError, match=r"data directory could not be copied: .*No such file"):
        node.data_dir = str(tmp_path / "missing")
        await node.copy_data(str(aside))
    node.data_dir, node.trace_dir = str(tmp_path / "data"), str(tmp_path / "trace")
    await node.write(f"{node.data_dir}/log/00.log", b"records")
    assert await node.copy_data(str(aside)) == 0
    await node.write(f"{node.trace_dir}/n1.jsonl", b"x" * 123)
    assert await node.copy_data(str(aside)) == 123
    assert (aside / "log" / "00.log").read_bytes() == b"records"
    await node.remove(str(aside))
    await node.remove(str(aside))
    assert not aside.exists()


async def test_a_file_that_grows_while_it_is_copied_does_no_harm(agent: LocalAgent, tmp_path: Path) -> None:
    grows = tmp_path / "source" / "log"
    grows.parent.mkdir()
    growing = "head -c 8000000 /dev/zero; while true; do echo 0123456789; sleep 0.001; done"
    await agent.node.start(["sh", "-c", growing], output=str(grows))
    await eventually(lambda: grows.exists() and grows.stat().st_size > 8_000_000)
    for copy in range(3):
        await agent.node.copy_out(str(grows.parent), tmp_path / f"copy{copy}")
    await agent.node.signal("KILL")
    sizes = [(tmp_path / f"copy{copy}" / "log").stat().st_size for copy in range(3)]
    assert sizes == sorted(sizes)


async def test_an_unknown_verb_is_refused(agent: LocalAgent) -> None:
    with pytest.raises(OSError, match="this agent knows no 'dance'"):
        await agent.link.call("dance")


async def test_what_was_measured_of_processors_is_a_number_of_seconds(agent: LocalAgent) -> None:
    answer = await agent.link.ask(NodeVerbs.processor)
    assert answer["steal_s"] >= 0
    assert answer.keys() == {"steal_s", "pressure_s", "waited_s", "ran_s"}
    assert answer["waited_s"] == NOT_KNOWN_S  # no server runs


async def test_ctrl_c_at_the_terminal_does_not_end_the_agent_which_says_who_it_is(agent: LocalAgent) -> None:
    agent.process.send_signal(signal.SIGINT)
    before_ns = time.monotonic_ns()
    greeting = await agent.link.ask(NodeVerbs.hello)
    assert greeting["pid"] == agent.process.pid
    assert before_ns <= greeting["monotonic_ns"] <= time.monotonic_ns()
    assert greeting["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")


async def test_commands_carry_a_mark_that_the_server_does_not_inherit(agent: LocalAgent) -> None:
    done = await agent.node.run(["sh", "-c", f"echo ${COMMAND_MARK}"])
    assert done.stdout == b"1\n"
    pid = await agent.node.start(SLEEPER)
    assert COMMAND_MARK.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to write for another user")
def test_a_file_in_the_folder_of_another_user_belongs_to_that_user(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    for path in (tmp_path / "server.conf", tmp_path / "conf" / "more" / "users.conf"):
        files.Files().write(str(path), b"port 1\n")
        files.Files().write(str(path), b"port 2\n")
        assert path.read_bytes() == b"port 2\n"
    made = {str(path.relative_to(tmp_path)): path.stat().st_uid for path in tmp_path.rglob("*")}
    assert made == dict.fromkeys(("server.conf", "conf", "conf/more", "conf/more/users.conf"), NOBODY)


async def printed_after(log: Path, pattern: str, nth: int, lines: list[bytes], verbs: Lines | None = None) -> str:
    waiting = asyncio.ensure_future((verbs or Lines()).await_line(str(log.parent), pattern, nth, PATIENCE_S))
    await asyncio.sleep(0)
    for line in lines:
        with log.open("ab", buffering=0) as file:
            file.write(line)
        await asyncio.sleep(0)
    line, seen_ns = await waiting
    assert seen_ns > 0
    return line


async def test_the_nth_line_from_now_on_is_awaited_even_if_it_is_written_in_pieces(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"leader 1\n")
    assert await printed_after(log, r"leader \d", 2, [b"lead", b"er 2\nx\nlea", b"der 3\nleader 4\n"]) == "leader 3"


async def test_a_log_that_appears_meanwhile_is_read_from_its_beginning(tmp_path: Path) -> None:
    assert await printed_after(tmp_path / "other.log", "up", 1, [b"up\n"]) == "up"


async def test_a_line_that_never_comes_ends_the_wait(tmp_path: Path) -> None:
    assert await Lines().await_line(str(tmp_path), "x", 1, 0.01) == ("", 0)


async def test_lines_are_unusual_that_were_seldom_before_the_first_wait(tmp_path: Path) -> None:
    log, verbs = tmp_path / "server.log", Lines()
    log.write_bytes(b"started\n" + b"".join(b"%d applied in %d ms\n" % (n, n) for n in range(9)))
    assert await printed_after(log, "", 1, [b"12 applied in 1 ms\nterm 7\n"], verbs) == "term 7"
    log.write_bytes(log.read_bytes() * 9)  # the first wait has learnt the usual length
    assert await printed_after(log, "", 2, [b"started\nterm 8\n"], verbs) == "term 8"


async def test_of_a_log_that_was_flooded_only_the_beginning_is_learned(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"applied\n" * 9 + b"x" * files.LEARNED_BYTES + b"\n" + b"retrying\n" * 9)
    assert await printed_after(log, "", 1, [b"applied\nretrying\n"]) == "retrying"


def test_lines_that_differ_in_numbers_and_identities_have_one_form() -> None:
    assert form(b"2026-01-02T03:04 8e9e05c52164694d at term 5") == form(b"2027-11-12T13:14 0x12 at term 12")
    assert form(b"became leader") != form(b"became follower")


headers = st.dictionaries(st.text(max_size=8), st.one_of(st.integers(), st.text(max_size=20), st.none()), max_size=4)
frames = st.tuples(headers, st.binary(max_size=300))


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(st.lists(frames, max_size=5), st.lists(st.integers(1, 40), max_size=60))
def test_frames_survive_being_cut_anywhere(sent: list[Frame], sizes: list[int]) -> None:
    stream = b"".join(encode(header, body) for header, body in sent)
    decoder = Decoder()
    received = [frame for piece in cut(stream, sizes) for frame in decoder.feed(piece)]
    assert received == sent
    assert not decoder.torn


@given(frames, st.data())
def test_a_torn_frame_is_noticed_and_not_delivered(frame: Frame, data: st.DataObject) -> None:
    whole = encode(*frame)
    kept = data.draw(st.integers(1, len(whole) - 1))
    decoder = Decoder()
    assert list(decoder.feed(whole[:kept])) == []
    assert decoder.torn


@given(st.binary(min_size=10, max_size=60).filter(lambda data: not data.startswith(b"\xabK")))
def test_a_stray_print_is_not_read_as_a_length(garbage: bytes) -> None:
    with pytest.raises(BrokenStream):
        list(Decoder().feed(garbage))


def test_frames_before_the_garbage_still_count() -> None:
    decoder = Decoder()
    received = []
    with pytest.raises(BrokenStream, match="not a frame"):
        for frame in decoder.feed(encode({"id": 1}) + b"Traceback (most recent call last)"):
            received.append(frame)
    assert received == [({"id": 1}, b"")]


def test_a_header_that_is_no_object_is_refused() -> None:
    good = encode({"id": 1})
    with pytest.raises(BrokenStream):
        list(Decoder().feed(good[:10] + b"[1, 2, 3]" + good[19:]))


def test_a_body_beyond_the_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="a frame has at most"):
        encode({}, bytes(BODY_BYTES_MAX + 1))


async def _with_family(agent: LocalAgent, tmp_path: Path) -> list[int]:
    """Starts a server with a child; their pids."""
    output = str(tmp_path / "server.log")
    pid = await agent.node.start(["sh", "-c", "sleep 1003 & echo $!; wait"], output=output)
    await eventually(lambda: Path(output).read_bytes().strip() != b"")
    return [pid, int((await agent.node.read(output)).split()[-1])]


async def _close(agent: LocalAgent) -> None:
    await agent.link.close()


async def _close_when_stopped(agent: LocalAgent) -> None:
    await agent.node.signal("STOP")
    await agent.link.close()


async def _terminate(agent: LocalAgent) -> None:
    agent.process.send_signal(signal.SIGTERM)


async def _tear_a_frame(agent: LocalAgent) -> None:
    assert agent.process.stdin is not None
    agent.process.stdin.write(encode({"id": 1, "verb": "hello"})[:-3])
    await agent.link.close()


async def _send_garbage(agent: LocalAgent) -> None:
    assert agent.process.stdin is not None
    agent.process.stdin.write(b"GET / HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize("end", [_close, _close_when_stopped, _terminate, _tear_a_frame, _send_garbage])
async def test_however_it_ends_the_server_dies_with_it(
    agent: LocalAgent, tmp_path: Path, end: Callable[[LocalAgent], Awaitable[None]]
) -> None:
    family = await _with_family(agent, tmp_path)
    await end(agent)
    assert await asyncio.wait_for(agent.process.wait(), PATIENCE_S) == 0
    await eventually(lambda: not any(is_alive(pid) for pid in family))
    with pytest.raises(NodeGone, match="n1: "):
        await agent.node.state()


async def test_when_stderr_is_as_dead_as_the_harness_the_server_dies_all_the_same(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    async with local_agent(tmp_path, stderr=write_end) as agent:
        os.close(write_end)
        os.close(read_end)
        family = await _with_family(agent, tmp_path)
        await agent.link.close()
        await eventually(lambda: not any(is_alive(pid) for pid in family))


async def test_where_agents_must_not_end_together_the_server_dies_at_once_and_the_agent_lingers(tmp_path: Path) -> None:
    async with local_agent(tmp_path, environment={LINGER: "600"}) as agent:
        family = await _with_family(agent, tmp_path)
        await agent.link.close()
        await eventually(lambda: not any(is_alive(pid) for pid in family))
        assert agent.process.returncode is None
        agent.process.kill()
    async with local_agent(tmp_path, environment={LINGER: "0.5"}) as agent:
        await agent.link.close()
        assert await asyncio.wait_for(agent.process.wait(), PATIENCE_S) == 0


async def test_a_silence_is_the_end_where_it_was_announced(tmp_path: Path) -> None:
    """The stream stays open, and nothing comes."""
    for silence_s in (2, 10, 60):
        async with local_agent(tmp_path, environment={SILENCE: str(silence_s)}) as agent:
            family = await _with_family(agent, tmp_path / str(silence_s))
            heard_all_the_time = await _hears_us_for_longer_than(silence_s, agent)
            await asyncio.wait_for(agent.process.wait(), PATIENCE_S)
            await eventually(lambda family=family: not any(map(is_alive, family)))  # type: ignore[misc]
        if heard_all_the_time:
            return
    raise AssertionError("this test was held up for half of the silence, again and again")


async def _hears_us_for_longer_than(silence_s: int, agent: LocalAgent) -> bool:
    """Whether the agent heard something all the time.  It must live that long then; else it may end, rightly."""
    loop = asyncio.get_running_loop()
    began_s = heard_s = loop.time()
    while loop.time() < began_s + 1.2 * silence_s:
        await asyncio.sleep(0.1)
        asked_s = loop.time()
        if asked_s - heard_s > silence_s / 2:
            return False
        await agent.link.ask(NodeVerbs.hello)
        heard_s = asked_s
    assert agent.process.returncode is None
    return True


async def test_a_client_that_blocks_the_loop_cannot_keep_it_alive(agent: LocalAgent, tmp_path: Path) -> None:
    """Nothing on the loop would ever see the end of the stream: the sentinel does."""
    host = agent.client_host()
    await host.open("clients_for_agent_tests", [Placement(0, "c1", True, False)], {}, {})
    stuck = asyncio.create_task(host.invoke(0, Request("block", payload=str(tmp_path)), 1000))
    await eventually((tmp_path / "began").exists)
    await agent.link.close()
    await asyncio.wait_for(agent.process.wait(), PATIENCE_S)
    await stuck
