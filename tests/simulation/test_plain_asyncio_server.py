"""A server that was not written for the simulator runs on it as it runs on a kernel: one file, plain asyncio."""

from __future__ import annotations

import asyncio
import gc
import os
import socket

import pytest
from plain_register import Register, ask, start

from simulation import loop
from simulation.network import Impairment
from simulation.world import World, simulate

HOSTS = ("a", "b", "c")
PORT = 7000
SEEDS = range(60)
STORM_S, PATIENCE_S = 20.0, 1.5


class WentBack(AssertionError):
    """A read saw an older value than a read that had ended before it began."""


async def answer(host: str, *request: object) -> object:
    """None where there was no answer in time."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await ask((host, PORT), request)
    except (OSError, TimeoutError):
        return None


async def scenario(world: World, writes_back: bool = True) -> int:
    """One client writes 1, 2, 3 ... at one server; two read in turn anywhere, and must not see values go back."""
    addresses = [(host, PORT) for host in HOSTS]

    for host in HOSTS:
        register = Register(host, addresses, writes_back)
        world.start(host, serving(register))

    async def writes() -> None:
        value = 0
        while world.time() < STORM_S:  # without a time-out: an abandoned write may take effect later
            value += 1
            await ask(("a", PORT), ["write", value])
            await asyncio.sleep(0.1)

    async def reads() -> int:
        seen = count = 0
        while world.time() < STORM_S:
            found = await answer(world.random.choice(HOSTS), "read")
            if isinstance(found, int):
                if found < seen:
                    raise WentBack(f"{found} after {seen} at {world.time():.3f} s")
                seen, count = found, count + 1
            await asyncio.sleep(0.03)
        return count

    storm = [asyncio.create_task(world.run("writer", writes())), asyncio.create_task(world.run("reader", reads()))]
    while not storm[1].done():
        links = [(one, other) for one in HOSTS for other in HOSTS if one != other]
        world.network.cut(world.random.sample(links, world.random.randint(0, 2)))
        world.impair(Impairment(loss=world.random.choice((0.0, 0.1))))
        await asyncio.sleep(world.random.uniform(0.05, 1))
    world.heal()
    await storm[0]
    return await storm[1]


def serving(register: Register):  # type: ignore[no-untyped-def]
    async def serve(machine):  # type: ignore[no-untyped-def]
        await start(register, machine.name, PORT)
        await asyncio.Event().wait()

    return serve


@pytest.mark.parametrize("seed", range(10))
def test_reads_of_the_whole_register_never_go_back(seed: int) -> None:
    assert simulate(scenario, seed) > 50


def test_reads_that_write_nothing_back_are_caught_and_their_seed_shows_it_again() -> None:
    def fails(seed: int) -> str:
        try:
            simulate(lambda world: scenario(world, writes_back=False), seed)
        except WentBack as found:
            return str(found)
        return ""

    seed, found = next((seed, words) for seed in SEEDS if (words := fails(seed)))
    assert fails(seed) == found


def test_a_seed_shows_the_same_whenever_python_would_collect_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that nobody holds any more closes its connection when it is collected."""
    monkeypatch.setattr(loop, "COLLECTED_AFTER", 3_000)
    before = gc.get_threshold()
    found = []
    try:
        for threshold in (100, 10_000):
            gc.set_threshold(threshold)
            found.append(simulate(scenario, 0))
    finally:
        gc.set_threshold(*before)
    assert found[0] == found[1]


async def test_the_same_server_answers_on_a_kernel() -> None:
    ours = f"127.{os.getpid() % 250 + 2}.{os.getpid() // 250 % 250}"  # no other test uses this address
    with socket.socket() as free:
        free.bind((f"{ours}.1", 0))
        port = free.getsockname()[1]
    addresses = [(f"{ours}.{n}", port) for n in (1, 2, 3)]
    servers = [await start(Register(host, addresses), host, port) for host, _ in addresses]
    try:
        await ask(addresses[0], ["write", 7])
        assert [await ask(address, ["read"]) for address in addresses] == [7, 7, 7]
    finally:
        for server in servers:
            server.close()
