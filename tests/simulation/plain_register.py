"""A replicated register on asyncio (Attiya, Bar-Noy and Dolev, 1995).  It knows nothing of Krucible.

Every server coordinates: it asks a majority for the newest value, and has a majority hold what it answers.
writes_back: whether a read does the latter.  Without it, a later read may see an older value.
"""

import asyncio
import contextlib
import json


async def ask(address, request):
    """The answer to one request.  Raises OSError, also where the server closes the connection without an answer."""
    reader, writer = await asyncio.open_connection(*address)
    with contextlib.closing(writer):
        writer.write(json.dumps(request).encode() + b"\n")
        if not (answer := await reader.readline()):
            raise ConnectionResetError("no answer")
        return json.loads(answer)


class Register:
    def __init__(self, name, addresses, writes_back=True):
        self.name = name
        self.addresses = addresses
        self.writes_back = writes_back
        self.held = [0, "", None]  # a stamp of two parts, and the value
        self.number = 0

    async def handle(self, reader, writer):
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while line := await reader.readline():
                verb, *what = json.loads(line)
                writer.write(json.dumps(await getattr(self, verb)(*what)).encode() + b"\n")

    async def show(self):
        return self.held

    async def hold(self, number, name, value):
        if (number, name) > tuple(self.held[:2]):
            self.held = [number, name, value]

    async def read(self):
        newest = max(await self.majority("show"))
        if self.writes_back:
            await self.majority("hold", *newest)
        return newest[2]

    async def write(self, value):
        newest = max(await self.majority("show"))
        self.number = max(self.number, newest[0]) + 1  # no stamp is used twice, even after a failed write
        await self.majority("hold", self.number, self.name, value)

    async def majority(self, *request):
        """What a majority answers.  Raises OSError once too many servers cannot be reached."""
        asked = [asyncio.create_task(ask(address, request)) for address in self.addresses]
        answers, left = [], len(asked)
        for done in asyncio.as_completed(asked):
            left -= 1
            with contextlib.suppress(OSError):
                answers.append(await done)
            if len(answers) > len(asked) // 2:
                return answers
            if len(answers) + left <= len(asked) // 2:
                break
        raise ConnectionError("no majority")


async def start(register, host, port):
    return await asyncio.start_server(register.handle, host, port)
