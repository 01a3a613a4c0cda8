"""consensual 0.2.3 from PyPI, Raft on asyncio, on virtual time: five nodes, commands and partitions.

    pip install consensual==0.2.3
    pytest examples/simulated_consensual.py --simulation-seeds 200

The package does not know Krucible.  Its interfaces to the network are a Sender and a Receiver: here asyncio streams of
JSON lines.  All nodes must apply the same commands in the same order (state machine safety; Raft, figure 3).
"""

import asyncio
import json
import logging
import random

from consensual.raft import MessageKind, Node, Receiver, ReceiverUnavailable, Sender
from yarl import URL

HOSTS = [f"198.18.0.{n}" for n in range(1, 6)]  # consensual asks DNS for names
PORT, HEARTBEAT_S, ANSWER_S, STORM_S = 9000, 1.0, 0.5, 120.0


async def ask(host, request):
    reader, writer = await asyncio.open_connection(host, PORT)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        answer = await reader.readline()
    finally:
        writer.close()
    if not answer:
        raise ConnectionResetError("no answer")
    return json.loads(answer)


class StreamSender(Sender):
    def __init__(self):
        self.urls = ()

    async def send(self, *, kind, message, url):
        try:
            async with asyncio.timeout(ANSWER_S):
                return await ask(url.host, [int(kind), message])
        except (OSError, TimeoutError):
            raise ReceiverUnavailable(url) from None


class StreamReceiver(Receiver):
    is_running = True

    def __init__(self, node):
        self.node = node

    def start(self):
        """Do nothing: the coroutine `serve` starts the receiver."""

    def stop(self):
        """Do nothing: the receiver ends with its process."""

    async def handle(self, reader, writer):
        while line := await reader.readline():
            kind, message = json.loads(line)
            if kind == "enqueue":
                answer = await self.node.enqueue("note", message)
            elif kind == "attach":
                answer = await self.node.attach_nodes([URL(url) for url in message])
            else:
                answer = await self.node.receive(kind=MessageKind(kind), message=message)
            writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()


def server(applied):
    """Run a node that appends each applied command to a list."""

    async def serve(machine):
        quiet = logging.getLogger(machine.name)
        quiet.setLevel(logging.CRITICAL)
        node = Node.from_url(
            URL(f"http://{machine.name}:{PORT}"),
            heartbeat=HEARTBEAT_S,
            logger=quiet,
            processors={"note": applied.append},
            sender=StreamSender(),
        )
        if machine.name == HOSTS[0]:
            await node.solo()
        await asyncio.start_server(StreamReceiver(node).handle, machine.name, PORT)
        await asyncio.Event().wait()

    return serve


async def until_done(host, request):
    """Repeat a call that fails while some nodes are not ready yet."""
    async with asyncio.timeout(60):
        while True:
            try:
                if await ask(host, request) is None:
                    return
            except OSError:
                pass
            await asyncio.sleep(0.5)


async def notes(first, count, chance):
    """Run a client that enqueues numbers at any node.  Most arrive; no answer proves a commit."""
    for number in range(first, first + count):
        try:
            async with asyncio.timeout(ANSWER_S):
                await ask(chance.choice(HOSTS), ["enqueue", number])
        except (OSError, TimeoutError):
            pass
        await asyncio.sleep(chance.uniform(0, 2 * STORM_S / count))


async def scenario(world):
    random.seed(world.seed)  # consensual draws its election timeouts from the module
    applied = {host: [] for host in HOSTS}
    for host in HOSTS:
        world.start(host, server(applied[host]))
    await world.run("client", until_done(HOSTS[0], ["attach", [f"http://{host}:{PORT}" for host in HOSTS[1:]]]))
    await asyncio.sleep(10)
    storm = asyncio.create_task(world.run("client", notes(0, 120, world.random)))
    while not storm.done():
        world.cut(world.random.sample(HOSTS, world.random.choice((1, 2))))
        await asyncio.sleep(world.random.uniform(1, 8))
        world.heal()
        await asyncio.sleep(world.random.uniform(0, 3))
    world.heal()
    await asyncio.sleep(20)
    longest = max(applied.values(), key=len)
    for host, commands in applied.items():
        assert commands == longest[: len(commands)], f"{host} applied {commands}, and another node {longest}"
    assert longest, "no command was applied"
    return applied


def test_all_nodes_apply_the_same_commands(simulation):
    simulation.run(scenario)
