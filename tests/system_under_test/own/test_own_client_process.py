"""A client of one's own in its process: what an exception proves, and what becomes of a call that never returns."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import termios
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from waiting import PATIENCE_S, eventually, until

from checkers.base.history import Type
from system_under_test.client import CANNOT_BE_MADE, MISTAKE_IN_CODE, Outcome, Placement, Request
from system_under_test.own import one_client_process
from system_under_test.own.one_client_process import OwnClient, connect

READ, WRITE = Request("read", "k"), Request("write", "k", 5)
BRIEF_S = 1.0
"""For a call that never returns: long enough for a busy machine to begin it."""
ROOT = Path(__file__).parents[3]
SYSTEM = """
import asyncio, os, time
from krucible import Client, System

class Mine(System):
    async def start(self, node, nodes): ...

class Refused(Exception): ...
"""

Make = Callable[..., OwnClient]


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Makes a client of a class body; all are closed at the end."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))))
    made: list[OwnClient] = []

    def one(
        body: str, *, follows: bool = True, thread: int = 0, functions: dict[str, str] | None = None, member: str = ""
    ) -> OwnClient:
        files = {"mine.py": SYSTEM + "\nclass It(Client):\n" + textwrap.indent(textwrap.dedent(body), "    ")}
        config: dict[str, object] = {"files": files, "main": "mine.py", "client": "krucible_own_system:It"}
        config["functions"] = functions or {"read": "read", "write": "write"}
        config["through_members"] = bool(member)
        peers = {"n1": "127.0.0.1:1", "n2": "127.0.0.1:2"}
        placement = Placement(thread, "c1", follows=follows, reads_only=False, member=member)
        made.append(connect(placement, peers, config, {}))
        return made[-1]

    yield one
    for client in made:
        await client.close()


async def ask(client: OwnClient, request: Request, timeout_s: float = PATIENCE_S) -> Outcome:
    return await client.invoke(request, timeout_s)


@pytest.fixture
async def let_time_end(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the host's clock past PATIENCE_S, the limit of what is asked.  The client's process still has time."""
    loop, real, ahead_s = asyncio.get_running_loop(), time.monotonic, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + ahead_s[0])

    def jump() -> None:
        ahead_s[0] += PATIENCE_S + one_client_process.GRACE_S + 0.1

    return jump


LED = """
def leader(self): return "n1"
def open(self, server): self.server = server
def read(self, key): return int(self.server.node[1:])
"""


@pytest.mark.parametrize(("follows", "asked"), [(True, 1), (False, 2)])
async def test_a_client_that_stays_reads_through_its_member_where_servers_forward(
    follows: bool, asked: int, make: Make
) -> None:
    client = make(LED, follows=follows, member="n2")
    for _ in range(2):
        assert await ask(client, Request("read", "k1")) == Outcome(Type.OK, value=asked, node=f"n{asked}")


async def test_blocking_and_async_methods_answer(make: Make) -> None:
    for word in ("", "async "):
        client = make(f"""
            held = {{}}
            {word}def open(self, server): self.where = server.host + ":" + str(server.port)
            {word}def read(self, key): return self.held.get(key)
            {word}def write(self, key, value): self.held[key] = value; print("a stray print")
        """)
        assert await ask(client, READ) == Outcome(Type.OK, None, node="n1")
        assert await ask(client, WRITE) == Outcome(Type.OK, 5, node="n1")
        assert await ask(client, READ) == Outcome(Type.OK, 5, node="n1")


async def test_what_an_exception_proves_depends_on_where_it_is_raised(make: Make) -> None:
    client = make("""
        refused = (Refused,)
        def read(self, key): raise OSError("torn")
        def write(self, key, value):
            raise Refused("not leader") if value == 1 else OSError("torn")
    """)
    read, refused, unknown = [await ask(client, r) for r in (READ, Request("write", "k", 1), Request("write", "k", 2))]
    assert (read.type, read.error) == (Type.FAIL, "OSError: torn (mine.py line 13)")
    assert (refused.type, refused.error) == (Type.FAIL, "refused: Refused: not leader (mine.py line 15)")
    assert (unknown.type, unknown.error, unknown.node) == (Type.INFO, "OSError: torn (mine.py line 15)", "n1")
    never = make("""
        def open(self, server): raise OSError("no route")
        def read(self, key): ...
        def write(self, key, value): ...
    """)
    outcome = await ask(never, WRITE)
    assert (outcome.type, outcome.error) == (Type.FAIL, "not sent: OSError: no route (mine.py line 12)")


@pytest.mark.parametrize(
    ("word", "wait"), [("", "time.sleep(1000)"), ("async ", "await __import__('asyncio').sleep(1000)")]
)
@pytest.mark.parametrize(
    ("end", "error"),
    [("raise Refused('busy') from problem", "Refused: busy (mine.py line 18)"), ("return None", "timeout")],
)
async def test_a_refusal_or_a_return_after_the_time_limit_proves_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, word: str, wait: str, end: str, error: str
) -> None:
    monkeypatch.setattr(one_client_process, "GRACE_S", PATIENCE_S)
    client = make(f"""
        refused = (Refused,)
        {word}def read(self, key): return 1
        {word}def write(self, key, value):
            try:
                {wait}
            except BaseException as problem:
                {end}
    """)
    assert (await ask(client, READ)).type is Type.OK, "it is there"
    outcome = await ask(client, WRITE, BRIEF_S)
    assert (outcome.type, outcome.error) == (Type.INFO, error)


@pytest.mark.parametrize("word", ["", "async "])
async def test_what_open_returns_is_the_connection_and_is_closed(make: Make, word: str) -> None:
    client = make(f"""
        closed = 0
        {word}def open(self, server):
            class Connection:
                held = 7
                {word}def close(it): type(self).closed += 1
            return Connection()
        {word}def read(self, key): return self.connection.held + self.closed
        {word}def write(self, key, value): raise OSError("torn")
    """)
    assert (await ask(client, READ)).value == 7
    assert (await ask(client, WRITE)).error == "OSError: torn (mine.py line 19)"
    assert (await ask(client, READ)).value == 8, "after an exception it is closed, and another one opened"


KEPT = "self.connection = 9"  # instead of being returned


@pytest.mark.parametrize(
    ("opens", "read", "value"),
    [
        (KEPT, "return self.connection", 9),
        ("...", f"{KEPT}; return 9", 9),
        ("...", "return self.held.connection", 9),
        ("...", "return len(os.read(0, 1000))", 0),  # stdin is not the next request
        ("...", "return os.getpgrp()", os.getpgrp()),  # the group that a pause of the clients stops
    ],
)
async def test_what_a_client_without_a_connection_reads(make: Make, opens: str, read: str, value: int) -> None:
    client = make(f"""
        class held: connection = 9
        def open(self, server): {opens}
        def close(self): self.connection
        def read(self, key): {read}
        def write(self, key, value): ...
    """)
    assert (await ask(client, READ)).value == value


async def test_a_connection_that_open_does_not_return_is_a_mistake(make: Make) -> None:
    client = make("""
        def open(self, server): held = [9]
        def close(self): ...
        def read(self, key): return self.connection.pop()
        def write(self, key, value): ...
    """)
    words = "mine.py line 12: TypeError: open() returned None, and methods use self.connection: return the connection"
    assert (await ask(client, READ)).error == MISTAKE_IN_CODE + words


async def test_a_call_that_blocks_is_interrupted_and_the_next_one_connects_anew(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_client_process, "GRACE_S", PATIENCE_S)
    client = make("""
        opened = 0
        def open(self, server): type(self).opened += 1
        def read(self, key): return self.opened
        def write(self, key, value): time.sleep(1000)
    """)
    assert (await ask(client, READ)).value == 1
    process = client._process
    outcome = await ask(client, WRITE, BRIEF_S)
    assert (outcome.type, outcome.error, outcome.node) == (Type.INFO, "timeout", "n1")
    assert (await ask(client, READ)).value == 2
    assert client._process is process, "a call that can be interrupted costs no process"


async def test_a_process_that_cannot_be_interrupted_is_killed(
    make: Make, tmp_path: Path, let_time_end: Callable[[], None]
) -> None:
    computes = tmp_path / "computes"
    client = make(f"""
        def read(self, key): return os.getpid()
        def write(self, key, value):
            import signal
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            open({str(computes)!r}, "w").close()
            while True: pass
    """)
    before = (await ask(client, READ)).value
    asking = asyncio.ensure_future(ask(client, WRITE))
    await eventually(computes.exists)
    let_time_end()
    outcome = await asking
    assert (outcome.type, outcome.error) == (Type.INFO, "timeout")
    assert (await ask(client, READ)).value != before


async def test_a_process_that_dies_in_a_write_leaves_it_unknown(make: Make) -> None:
    client = make("""
        def read(self, key): return 1
        def write(self, key, value): os._exit(3)
    """)
    outcome = await ask(client, WRITE)
    assert outcome.type is Type.INFO
    assert "died" in (outcome.error or "")
    assert (await ask(client, READ)).value == 1


async def test_a_client_that_cannot_be_made_sends_nothing(make: Make) -> None:
    client = make("""
        def __init__(self, who, servers):
            import no_such_library
        def read(self, key): ...
        def write(self, key, value): ...
    """)
    outcome = await ask(client, WRITE)
    assert outcome.type is Type.FAIL
    wrong = "mine.py line 13: ModuleNotFoundError: No module named 'no_such_library'; name its library in needs.wheels"
    assert outcome.error == MISTAKE_IN_CODE + wrong


async def test_a_client_that_is_slow_to_start_sends_nothing_and_is_ready_later(make: Make) -> None:
    client = make("""
        def read(self, key): return 1
        def write(self, key, value): ...
    """)
    outcome = await ask(client, WRITE, 0.0)
    assert (outcome.type, outcome.error) == (Type.FAIL, "not sent: the client is still starting")
    assert (await ask(client, READ)).value == 1


async def test_one_follows_the_leader_and_one_stays_until_it_is_refused(make: Make, tmp_path: Path) -> None:
    body = f"""
        refused = (Refused,)
        def leader(self): return open({str(tmp_path / "leader")!r}).read()
        def read(self, key): return 1
        def write(self, key, value): raise Refused("deposed")
    """
    (tmp_path / "leader").write_text("n1")
    follows, stays = make(body, follows=True), make(body, follows=False)
    assert [(await ask(c, READ)).node for c in (follows, stays)] == ["n1", "n1"]
    (tmp_path / "leader").write_text("n2")
    async with asyncio.timeout(PATIENCE_S):
        while (await ask(follows, READ)).node != "n2":  # noqa: ASYNC110 - it looks twice a second
            await asyncio.sleep(0.05)
    assert (await ask(stays, READ)).node == "n1"
    assert (await ask(stays, WRITE)).node == "n1"
    assert (await ask(stays, READ)).node == "n2"


@pytest.mark.parametrize(
    ("write", "words"),
    [
        ("def write(self, key, value): raise SystemExit('no licence')", "SystemExit: no licence"),
        ("def write(self, key, value): raise BaseException('odd')", "BaseException: odd"),
        ("def write(self, key, value): assert key is None", "AssertionError (mine.py line 14)"),
        ("def write(self, key, value): return False", "write returned False (bool), where None is expected"),
        ("def write(self, key, value): return OSError('torn')", "write returned OSError('torn') (OSError)"),
        ("def write(self, key, value): asyncio.sleep(0)", "coroutine 'sleep' was never awaited: write `await`"),
        ("async def write(self, key, value): asyncio.sleep(0)", "coroutine 'sleep' was never awaited: write `await`"),
        ("async def write(self, key, value): return asyncio.sleep(0)", "wait for the result of the call"),
        ("def write(self, key, value): return Future()", "wait for the result of the call"),
    ],
)
async def test_a_write_that_may_not_have_happened_is_of_unknown_outcome(make: Make, write: str, words: str) -> None:
    client = make(f"""
        from concurrent.futures import Future
        def read(self, key): return os.getpid()
        {write.replace("Future()", "self.Future()")}
    """)
    before = (await ask(client, READ)).value
    outcome = await ask(client, WRITE)
    assert outcome.type is Type.INFO
    assert words in (outcome.error or "")
    assert (await ask(client, READ)).value == before, "the process of the client goes on"


async def test_a_leader_that_is_no_name_of_a_server_is_quoted(make: Make) -> None:
    client = make("""
        def leader(self): return ["10.0.0.1"]
        def read(self, key): return 1
        def write(self, key, value): ...
    """)
    outcome = await ask(client, WRITE)
    wrong = "leader returned ['10.0.0.1'], which is no server's name: one of n1, n2"
    assert (outcome.type, outcome.error) == (Type.FAIL, f"not sent: ValueError: {wrong}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("refused = ('READONLY',)", "mine.py: It.refused must be a tuple of classes of exceptions"),
        ("import no_such_library", "mine.py line 12 cannot be run: ModuleNotFoundError: No module named"),
    ],
)
async def test_a_client_that_can_never_be_made_says_so(make: Make, line: str, words: str) -> None:
    client = make(f"""
        {line}
        def read(self, key): ...
        def write(self, key, value): ...
    """)
    assert (await ask(client, WRITE)).error.startswith(f"not sent: {CANNOT_BE_MADE}{words}")  # type: ignore[union-attr]


async def test_an_exception_that_cannot_be_printed_ends_no_client(make: Make) -> None:
    client = make("""
        class Strange(Exception):
            def __str__(self): raise RuntimeError("no words")
        def read(self, key): raise self.Strange()
        def write(self, key, value): raise self.Strange()
    """)
    for request, type_, line in ((READ, Type.FAIL, 14), (WRITE, Type.INFO, 15)):
        outcome = await ask(client, request)
        assert (outcome.type, outcome.error) == (
            type_,
            f"Strange: it cannot be printed (RuntimeError) (mine.py line {line})",
        )


@pytest.mark.parametrize("answers", [False, True])
async def test_a_host_that_was_stopped_past_the_limit_still_hears_what_was_sent(
    make: Make, tmp_path: Path, let_time_end: Callable[[], None], answers: bool
) -> None:
    """It stands still until the time is over, as under a pause of the clients.  The write took place meanwhile."""
    written, may_answer = tmp_path / "written", tmp_path / "may-answer"
    client = make(f"""
        def read(self, key): ...
        def write(self, key, value):
            open({str(written)!r}, "w").close()
            while not os.path.exists({str(may_answer)!r}): time.sleep(0.01)
    """)
    assert (await ask(client, READ)).type is Type.OK
    asking = asyncio.ensure_future(ask(client, WRITE))
    for _ in range(3):  # it writes the request, and reads nothing yet
        await asyncio.sleep(0)
    until(written.exists)
    if answers:
        without_answer = unread_bytes(client)  # 0 if the loop has already noticed that the request was sent
        may_answer.touch()
        until(lambda: unread_bytes(client) > without_answer)
    let_time_end()
    outcome = await asking
    assert outcome.type is (Type.OK if answers else Type.INFO), outcome
    assert outcome.node == "n1"


def unread_bytes(client: OwnClient) -> int:
    """How much the process has answered and the host has not read."""
    answered = client._process._popen.stdout
    assert answered is not None
    return int.from_bytes(fcntl.ioctl(answered, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def read(self, key): return memebers[key]", "mine.py line 11: NameError: name 'memebers' is not defined"),
        ("def read(self, key): return self.conection.get(key)", "mine.py line 11: AttributeError: 'It' object has no"),
        ("def read(self, key): return len(5)", "mine.py line 11: TypeError: object of type 'int' has no len()"),
        ("def read(self, key): import no_such_library", "mine.py line 11: ModuleNotFoundError: No module named"),
        ("def read(self): return 1", "mine.py line 11: TypeError: It.read() takes 1 positional argument but 2"),
        ("def open(self, server): nothing_here()\ndef read(self, key): ...", "mine.py line 11: NameError"),
        ("async def read(self, key): nothing_here()", "mine.py line 11: NameError"),
        ("def read(self, key): raise SystemExit('no licence')", "mine.py line 11: SystemExit: no licence"),
        ("def __init__(self, *given): nothing_here()\ndef read(self, key): ...", "mine.py line 11: NameError"),
    ],
)
async def test_a_mistake_in_the_code_of_the_client_is_named_with_file_and_line(
    make: Make, body: str, words: str
) -> None:
    outcome = await ask(make(body), READ)
    assert outcome.type is Type.FAIL
    assert str(outcome.error).startswith(MISTAKE_IN_CODE + words)


@pytest.mark.parametrize(
    "body",
    [
        "def read(self, key): return None[0]",  # a row that the system has lost
        "def read(self, key): return {}[key]",
        "def read(self, key): return int('no number')",
        "def read(self, key): return __import__('json').loads(5)",  # a library raises it
    ],
)
async def test_what_may_depend_on_an_answer_is_no_mistake(make: Make, body: str) -> None:
    outcome = await ask(make(body), READ)
    assert outcome.type is Type.FAIL
    assert MISTAKE_IN_CODE not in str(outcome.error)


async def test_a_client_may_state_afterwards_who_answered_or_that_it_routes_by_itself(make: Make) -> None:
    client = make("""
        routes_by_itself = True
        def read(self, key):
            self.answered = "n2"
            return 1
        def write(self, key, value): ...
    """)
    assert [(await ask(client, request)).node for request in (READ, WRITE)] == ["n2", ""]


async def test_what_was_harmless_so_far_has_changed_nothing(make: Make) -> None:
    client = make("""
        def read(self, key): ...
        def write(self, key, value):
            self.harmless = True
            if value == 1: raise OSError("torn")
            self.harmless = False
            raise OSError("torn")
    """)
    types = [(await ask(client, Request("write", "k", value))).type for value in (1, 2, 1)]
    assert types == [Type.FAIL, Type.INFO, Type.FAIL]


async def test_each_key_may_have_a_leader_of_its_own(make: Make) -> None:
    client = make("""
        def leader(self, key): return {"a": "n1", "b": "n2"}[key]
        def read(self, key): return 1
    """)
    assert [(await ask(client, Request("read", key))).node for key in "abba"] == ["n1", "n2", "n2", "n1"]


async def test_a_client_that_stays_leaves_a_server_that_was_deposed(make: Make, tmp_path: Path) -> None:
    client = make(
        f"""
        def leader(self): return "n2" if os.path.exists({str(tmp_path / "moved")!r}) else "n1"
        def deposed(self): return self.leader() == "n2"
        def read(self, key): return 1
    """,
        follows=False,
    )
    assert (await ask(client, READ)).node == "n1"
    (tmp_path / "moved").touch()
    async with asyncio.timeout(PATIENCE_S):
        while (await ask(client, READ)).node != "n2":  # noqa: ASYNC110 - it looks twice a second
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [("b'7'", True), ("'7'", True), ("[7]", True), ("2**64", False), ("json.loads('null')", False)],
)
async def test_only_an_answer_of_the_wrong_type_is_a_mistake_of_its_method(
    make: Make, answer: str, mistake: bool
) -> None:
    client = make(f"def total(self, key): import json; return {answer}", functions={"read": "total"})
    outcome = await ask(client, READ)
    assert outcome.type is Type.FAIL and "where a whole number is expected" in (outcome.error or "")
    assert (outcome.error or "").startswith(f"{MISTAKE_IN_CODE}mine.py line 11: total returned") == mistake
