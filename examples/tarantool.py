"""Tarantool 2.6 as Debian packages it: a primary and two replicas; registers in a space with synchronous replication.

The primary acknowledges a write once a replica has it, or rolls it back after `replication_synchro_timeout`.  Until
then the primary shows the write to every reader.  2.6.0 elects no primary: the first node is always the primary.
"""

import tarantool

from krucible import Client, Needs, System

INIT = """
local primary = {index} == 0
require('socket').tcp_server('{node.address}', 3302, function(client)
    local lacks = box.space.held == nil and 'no space' or #box.space._cluster:select() < {servers} and 'servers'
    for id, peer in pairs(box.info.replication) do
        local link = primary and peer.downstream or not primary and id == 1 and peer.upstream
        local unused = id == box.info.id or not primary and id ~= 1
        if not unused and not (link and link.status == 'follow') then lacks = 'replication with ' .. id end
    end
    client:write(('%s %s\\n'):format(lacks or 'ready', box.info.vclock[1]))
end)
box.cfg{{
    listen = '{node.address}:3301', replication = not primary and 'guest@{primary}:3301' or nil,
    instance_uuid = '00000000-0000-4000-8000-00000000000{index}', read_only = not primary, wal_mode = 'fsync',
    memtx_memory = 64 * 1024 * 1024, replication_timeout = 0.5, replication_connect_timeout = 60,
    replication_synchro_quorum = 2, replication_synchro_timeout = 1,
}}
function write(key, value) box.space.held:replace{{key, value}} end
function read(key) local held = box.space.held:get(key) return held and held[2] end
if primary then
    box.once('schema', function()
        box.schema.user.grant('guest', 'super')
        box.schema.create_space('held', {{ is_sync = true }}):create_index('k', {{ parts = {{ {{1, 'string'}} }} }})
    end)
end
"""


class Registers(Client):
    """A client that reads at the primary, as the documentation of Tarantool recommends."""

    def leader(self):
        return next(iter(self.servers))

    def open(self, server):
        return tarantool.Connection(server.host, server.port, reconnect_max_attempts=1, connection_timeout=1)

    def read(self, key):
        return self.connection.call("read", key)[0]

    def write(self, key, value):
        self.connection.call("write", key, value)


class Tarantool(System):
    port = 3301
    elections = False
    client = Registers
    needs = Needs(debian=("tarantool",), wheels=("tarantool==1.3.0",))

    async def start(self, node, nodes):
        filled_in = {"index": node.index, "servers": len(nodes), "primary": nodes[0].address}
        await node.write("init.lua", INIT, node=node, **filled_in)
        return ["tarantool", "init.lua"]

    async def ready(self, nodes):
        answers = {node.name: (await node.ask(3302, "")).split() for node in nodes}
        lacking = [name for name, words in answers.items() if words[:1] != ["ready"]]
        if lacking:
            return "; ".join(f"{name} says {' '.join(answers[name]) or 'nothing'}" for name in lacking)
        return "replicas lag behind" if len({words[1] for words in answers.values()}) > 1 else None

    caught_up = ready
