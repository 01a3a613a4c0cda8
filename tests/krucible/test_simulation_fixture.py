"""The fixture `simulation`, with the server of the page: it fails under a seed, and the command replays that."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import krucible
from simulation.machine import Machine
from simulation.world import ServerFailed, World, simulate

pytest_plugins = ["pytester"]
PAGE = Path(__file__).parents[2] / "docs" / "simulate-your-own-server.md"
MISTAKE = "if count % 5:  # the mistake: now and then it answers before the disk has it\n                file.fsync()"
with_plugin = pytest.mark.skipif(
    "krucible" not in entry_points(group="pytest11").names, reason="this environment was installed without the plugin"
)


def page_of_the_reader() -> str:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@with_plugin
def test_the_server_of_the_page_fails_under_a_seed_and_the_command_replays_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_counter=page_of_the_reader())
    failed = pytester.runpytest_inprocess("test_counter.py")
    failed.assert_outcomes(failed=1)
    again = re.search(r"again: pytest (\S+) --simulation-seed (\d+)", failed.stdout.str())
    assert again is not None
    replayed = pytester.runpytest_inprocess(again[1], "--simulation-seed", again[2])
    replayed.assert_outcomes(failed=1)
    assert f"seed {again[2]}: AssertionError" in replayed.stdout.str()
    for words in ("SeedFailed: seed 1", "--simulation-seed 1"):
        assert words in PAGE.read_text()
        assert words in failed.stdout.str()


@with_plugin
def test_no_seed_is_no_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_counter=page_of_the_reader())
    refused = pytester.runpytest_inprocess("test_counter.py", "--simulation-seeds", "0")
    refused.assert_outcomes(errors=1)
    assert "--simulation-seeds must be at least 1" in refused.stdout.str()


@with_plugin
def test_the_server_of_the_page_passes_once_it_is_mended(pytester: pytest.Pytester) -> None:
    text = page_of_the_reader()
    assert MISTAKE in text
    pytester.makepyfile(test_counter=text.replace(MISTAKE, "file.fsync()"))
    pytester.runpytest_inprocess("test_counter.py").assert_outcomes(passed=1)


async def echo(machine: Machine) -> int:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line == b"break\n":
                raise ValueError("broken by a client")
            writer.write(line)
        writer.close()

    await asyncio.start_server(handle, machine.name, 80)
    await asyncio.Event().wait()
    return 0


async def ask(words: bytes, limit_s: float = 1.0) -> bytes:
    async with asyncio.timeout(limit_s):
        reader, writer = await asyncio.open_connection("a", 80)
        writer.write(words)
        answer = await reader.readline()
        writer.close()
        return answer


def test_links_are_cut_and_healed() -> None:
    async def scenario(world: World) -> float:
        world.start("a", echo)
        assert await world.run("c", ask(b"one\n")) == b"one\n"
        world.cut(["a"])
        with pytest.raises(TimeoutError):
            await world.run("c", ask(b"two\n"))
        world.heal()
        assert await world.run("c", ask(b"three\n")) == b"three\n"
        return world.time() + world.random.random()

    assert simulate(scenario, 3) == simulate(scenario, 3) != simulate(scenario, 4)


def test_faults_hold_on_the_links_of_a_host_that_comes_later() -> None:
    async def scenario(world: World) -> float:
        world.start("a", echo)
        world.impair(krucible.Impairment(delay_s=0.2))
        began_s = world.time()
        await world.run("c", ask(b"one\n"))
        took_s = world.time() - began_s
        world.cut(["a"])
        with pytest.raises(TimeoutError):
            await world.run("d", ask(b"two\n"))
        return took_s

    assert simulate(scenario, 3) > 0.4


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda world: world.kill("aa"), "no server 'aa' was started; there are: a"),
        (lambda world: world.cut(["aa"]), "no server 'aa'"),
        (lambda world: world.lose_power("a", "burn"), "a power loss is one of lose, keep, torn, reorder, not 'burn'"),
    ],
)
def test_a_fault_that_could_never_be_there_is_refused(fault: Callable[[World], object], words: str) -> None:
    async def scenario(world: World) -> None:
        world.start("a", echo)
        fault(world)

    with pytest.raises((KeyError, ValueError), match=words):
        simulate(scenario, 1)


@pytest.mark.parametrize(("problem", "fails"), [(KeyError("mine"), True), (ConnectionResetError("over"), False)])
def test_a_handler_that_raises_fails_the_scenario_unless_its_connection_is_over(
    problem: Exception, fails: bool
) -> None:
    async def serve(machine: Machine) -> int:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            raise problem

        await asyncio.start_server(handle, machine.name, 80)
        await asyncio.Event().wait()
        return 0

    async def scenario(world: World) -> None:
        world.start("a", serve)
        await world.run("c", ask(b"one\n"))

    if fails:
        with pytest.raises(ServerFailed, match=r"server a, at .* s: KeyError"):
            simulate(scenario, 1)
    else:
        simulate(scenario, 1)


def test_a_server_that_fails_fails_the_scenario() -> None:
    async def starts_on_a_full_disk(machine: Machine) -> int:
        machine.disk.capacity_bytes = 0
        machine.disk.open("file").write_at(0, b"content")
        return 0

    async def scenario(world: World) -> None:
        world.start("a", starts_on_a_full_disk)
        await asyncio.sleep(1.0)

    with pytest.raises(ServerFailed, match=r"server a, at 0\.000 s: OSError") as failed:
        simulate(scenario, 1)
    assert isinstance(failed.value.__cause__, OSError)
    assert failed.value.__cause__.errno == errno.ENOSPC
