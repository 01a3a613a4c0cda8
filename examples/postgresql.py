"""PostgreSQL 15 as Debian packages it: one primary, and synchronous hot standbys, without failover.

Without standbys all transactions are SERIALIZABLE.  Hot standbys do not support this, so with standbys all transactions
are REPEATABLE READ, which is snapshot isolation in PostgreSQL.  Clients that only read use a standby.  Half of the
other clients commit without waiting for a standby, and half wait until all standbys have applied the commit.

The primary shows a commit only when the commit's wait is over, a standby shows it at once.  The second standby applies
commits late, so that the waits are long enough to be observed on a slow machine.

A client that is cut off in the middle of a transaction keeps its row locks.  The server releases the locks after 2 s.
"""

import psycopg

from krucible import Client, Needs, System

LATE = "-c recovery_min_apply_delay=200ms"
IDLE = "-c idle_in_transaction_session_timeout=2s"
HBA = r"host all all all trust\nhost replication all all trust\n"
FIRST = f"initdb -D . -A trust -U postgres && printf '{HBA}' >> pg_hba.conf && sync pg_hba.conf"
COPY = "until pg_basebackup -c fast -h {} -U postgres -D . -R; do sleep 0.3; done"
TABLE = "create table if not exists kept (k text primary key, v jsonb not null)"
UPSERT = "insert into kept values (%s, {}) on conflict (k) do update set v = {}excluded.v"
APPEND, WRITE = UPSERT.format("jsonb_build_array(%s::bigint)", "kept.v || "), UPSERT.format("to_jsonb(%s::bigint)", "")
OPEN = "insert into kept values (%s, to_jsonb(%s::bigint)) on conflict do nothing"
TAKE = "update kept set v = to_jsonb(v::bigint - %s) where k = %s and v::bigint >= %s"
GIVE = "update kept set v = to_jsonb(v::bigint + %s) where k = %s"


class PostgreSQL(System):
    port = 5432
    needs = Needs(debian=("postgresql-15",), wheels=("psycopg[binary]>=3.2",), user="postgres")
    elections = False

    async def start(self, node, nodes):
        self.primary = nodes[0].name
        make = COPY.format(nodes[0].address) if node.index else FIRST
        options = f"-c listen_addresses={node.address} -c max_connections=50 -k /tmp {IDLE} {LATE * (node.index == 2)}"
        if node.index == 0 and len(nodes) > 1:
            options += f" -c synchronous_standby_names='{len(nodes) - 1} (*)'"
        prepare = f"mkdir -p pg; chmod 700 pg; cd pg; test -f PG_VERSION || {{ {make}; }}"
        return f"export PATH=/usr/lib/postgresql/15/bin:$PATH; {prepare}; exec postgres -D . {options}"

    async def status(self, node):
        return node.reports(1, self.primary) if await node.state() == "running" else None


class Transactions(Client):
    refused = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)

    def leader(self):
        primary, *standbys = self.servers
        return standbys[self.who.thread % len(standbys)] if standbys and self.who.reads_only else primary

    def open(self, server):
        level = "serializable" if len(self.servers) == 1 else r"repeatable\ read"
        commit = "local" if self.who.thread % 2 else "remote_apply"
        options = f"-c default_transaction_isolation={level} -c synchronous_commit={commit}"
        return psycopg.connect(host=server.host, user="postgres", connect_timeout=2, options=options, autocommit=True)

    def create(self, key=None):
        self.connection.execute(TABLE)

    def transact_lists(self, steps):
        with self.connection.transaction():
            return [[f, key, self.step(f, key, value)] for f, key, value in steps]

    transact_registers = transact_lists

    def step(self, f, key, value):
        if f == "r":
            found = self.connection.execute("select v from kept where k = %s", (key,)).fetchone()
            return found[0] if found else None
        self.connection.execute(APPEND if f == "append" else WRITE, (key, value))
        return value

    def open_account(self, account, balance):
        self.create()
        self.connection.execute(OPEN, (account, balance))

    def transfer(self, source, target, amount):
        with self.connection.transaction():
            enough = self.connection.execute(TAKE, (amount, source, amount)).rowcount == 1
            if enough:
                self.connection.execute(GIVE, (amount, target))
            return enough

    def balances(self):
        return dict(self.connection.execute("select k, v::bigint from kept").fetchall())
