"""pyraft, a Raft in Python that speaks Redis' protocol: sets stored as Redis lists, which the leader replicates."""

import json

import redis

from krucible import Client, Needs, System

ASK_INFO = "exec 3<>/dev/tcp/{}/5010; echo info >&3; timeout 1 grep -m 1 -a '{{' <&3"


class PyRaft(System):
    port = 5010
    needs = Needs(wheels=("pyraft==1.0.0",))

    async def start(self, node, nodes):
        self.names = {str(other.index + 1): other.name for other in nodes}  # pyraft would treat letters as a host name
        others = ",".join(f"{other.index + 1}/{other.address}:5010" for other in nodes if other is not node)
        me = ["-i", str(node.index + 1), "-a", f"{node.address}:5010", "-e", others]
        return [*node.python, "-m", "pyraft.run_raft", *me, "-loglevel", "warning"]

    async def info(self, node):
        answer = await node.output(ASK_INFO.format(node.address))
        return json.loads(answer[answer.index("{") :]) if "{" in answer else {}

    async def status(self, node):
        info = await self.info(node)
        states = {me: info["state"] for me in [info.get("nid")] if me}
        states |= {peer: known["state"] for peer, known in info.get("peers", {}).items()}
        leaders = [self.names[each] for each, state in states.items() if state == "l"]
        return node.reports(int(info["term"]), leaders[0]) if len(leaders) == 1 else None

    async def caught_up(self, nodes):
        applied = {node.name: int((await self.info(node)).get("index", -1)) for node in nodes}
        behind = [name for name, index in applied.items() if index < max(applied.values())]
        return f"{', '.join(behind)} has not applied what others have" if behind else None


class ListClient(Client):
    def open(self, server):
        return redis.Redis(server.host, server.port, decode_responses=True, single_connection_client=True)

    def add(self, key, value):
        self.connection.rpush(key, value)

    def members(self, key):
        return [int(value) for value in self.connection.lrange(key, 0, -1)]
