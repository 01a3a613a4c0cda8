"""MariaDB 10.11 as Debian packages it: one server, and transactions at its default isolation, REPEATABLE READ."""

import pymysql

from krucible import Client, Needs, System

PREPARE = "test -d db || mariadb-install-db --no-defaults --datadir=$PWD/db --skip-test-db > /dev/null"
ACCOUNTS = "create user if not exists k@'%';\ngrant all on *.* to k@'%';\ncreate database if not exists k;\n"
TABLE = "create table if not exists k.kept (k varchar(20) primary key, v mediumtext not null) engine=innodb"
APPEND = "insert into kept values (%s, %s) on duplicate key update v = concat(v, ',', values(v))"
ROLLED_BACK = (1020, 1205, 1213)
"""Error codes: a record has changed since it was read, a wait for a lock timed out, a deadlock."""


class MariaDB(System):
    port = 3306
    consistency = "snapshot-isolation"
    needs = Needs(debian=("mariadb-server",), wheels=("PyMySQL>=1.1",), user="mysql")
    options = "--innodb-snapshot-isolation=OFF"

    async def start(self, node, nodes):
        await node.write("accounts.sql", ACCOUNTS)
        server = f"mariadbd --no-defaults --datadir=$PWD/db --socket=$PWD/socket --bind-address={node.address}"
        return f"{PREPARE}; exec {server} --init-file=$PWD/accounts.sql {self.options}"


class SnapshotIsolation(MariaDB):
    """MariaDB 10.11 with innodb_snapshot_isolation: a transaction that would overwrite a newer version fails."""

    options = "--innodb-snapshot-isolation=ON"


class RolledBack(Exception):
    """The server rolled the transaction back, so it had no effect."""


class Transactions(Client):
    refused = (RolledBack,)

    def open(self, server):
        return pymysql.connect(host=server.host, port=server.port, user="k", database="k", connect_timeout=2)

    def create(self, key=None):
        self.run(TABLE)

    def run(self, statement, *values):
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchone()

    def transact_lists(self, steps):
        try:
            self.connection.begin()
            answer = [[f, key, self.step(f, key, value)] for f, key, value in steps]
        except pymysql.err.OperationalError as problem:
            raise RolledBack(*problem.args) if problem.args[0] in ROLLED_BACK else problem from None
        self.connection.commit()
        return answer

    def step(self, f, key, value):
        if f == "r":
            found = self.run("select v from kept where k = %s", key)
            return [int(part) for part in found[0].split(",")] if found else None
        self.run(APPEND, key, str(value))
        return value
