"""Redis 7.0 as Debian packages it, with a Sentinel beside each server."""

import redis

from krucible import Client, Needs, System

PORT, SENTINEL, NAME = 6379, 26379, "mymaster"
ROLE = f"redis-cli -h {{0}} -p {PORT} role; redis-cli -h {{0}} -p {SENTINEL} sentinel master {NAME}"


class Redis(System):
    port = PORT
    needs = Needs(debian=("redis-server", "redis-sentinel"), wheels=("redis>=5,<6", "async-timeout>=4"))

    async def start(self, node, nodes):
        self.names = {other.address: other.name for other in nodes}
        if node.starts == 0:
            common = f"bind {node.address}\nprotected-mode no\ndir {node.data_dir}\n"
            replica = f"replicaof {nodes[0].address} {PORT}\n" if node.index else ""
            watch = f"sentinel monitor {NAME} {nodes[0].address} {PORT} {len(nodes) // 2 + 1}\nsentinel down-after-milliseconds {NAME} 2000\n"
            await node.write("redis.conf", f"{common}port {PORT}\nappendonly yes\n{replica}")
            await node.write("sentinel.conf", f"{common}port {SENTINEL}\n{watch}")
        return {"redis": "exec redis-server redis.conf", "sentinel": "exec redis-sentinel sentinel.conf"}

    async def status(self, node):
        words = (await node.output(ROLE.format(node.address))).split("\n")
        if "config-epoch" not in words:
            return None
        fields = dict(zip(words[words.index("name") :: 2], words[words.index("name") + 1 :: 2], strict=False))
        if int(fields["num-slaves"]) < len(self.names) - 1:  # a Sentinel asks for replicas every ten seconds
            return None
        primary = self.names.get(fields["ip"])
        leader = None if primary == node.name and words[0] != "master" else primary
        return node.reports(int(fields["config-epoch"]), leader)


class RedisClient(Client):
    refused = (redis.ReadOnlyError,)

    def leader(self):
        found, patience = [], {"socket_timeout": 0.3, "socket_connect_timeout": 0.3}
        for server in self.servers.values():
            try:
                seen = redis.Redis(server.host, SENTINEL, **patience).sentinel_master(NAME)
                found.append((int(seen["config-epoch"]), seen["ip"]))
            except (redis.RedisError, OSError):
                continue
        return next(server.node for server in self.servers.values() if server.host == max(found)[1])

    def open(self, server):
        connection = redis.Redis(server.host, PORT, single_connection_client=True)
        connection.ping()
        return connection

    def add(self, key, value):
        self.connection.sadd(key, value)

    def members(self, key):
        return sorted(map(int, self.connection.smembers(key)))
