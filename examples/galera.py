"""MariaDB 10.11 with Galera 26.4 as Debian packages them: three writable servers; sets and registers as rows.

A commit waits until the other servers have received it, but not until any server has it on disk.  A killed server asks
InnoDB for its last commit (`--wsrep-recover`).  Then the server with the newest commit starts the cluster again.
"""

import pymysql

from krucible import Client, Needs, System

INSTALL = "mariadb-install-db --no-defaults --datadir=$PWD/db --skip-test-db > /dev/null"
ACCOUNTS = "create user k@'%';\ngrant all on *.* to k@'%';\ncreate database k;\n"
SETS = "create table if not exists kept (k varchar(20), v bigint, primary key (k, v)) engine=innodb"
REGISTERS = "create table if not exists held (k varchar(20) primary key, v bigint) engine=innodb"
RECOVERED = "sed -n 's/.*WSREP: Recovered position: *//p'"
STATE = "mariadb --no-defaults -h {} -u k -N -e \"show status like 'wsrep_local_state_comment'\""


class Galera(System):
    port = 3306
    needs = Needs(debian=("mariadb-server", "galera-4", "rsync"), wheels=("PyMySQL>=1.1",), user="mysql")
    flush, sync_wait = 0, 1

    async def start(self, node, nodes):
        await node.write("accounts.sql", ACCOUNTS)
        founds = node.index == 0 and not node.starts
        options = {
            "datadir": f"{node.data_dir}/db",
            "socket": f"{node.data_dir}/socket",
            "bind-address": node.address,
            "binlog-format": "ROW",
            "innodb-autoinc-lock-mode": 2,
            "innodb-log-file-size": "16M",
            "innodb-flush-log-at-trx-commit": self.flush,
            "wsrep-on": "ON",
            "wsrep-provider": "/usr/lib/galera/libgalera_smm.so",
            "wsrep-provider-options": f"gmcast.listen_addr=tcp://{node.address}",
            "wsrep-node-address": node.address,
            "wsrep-node-name": node.name,
            "wsrep-sync-wait": self.sync_wait,
            "wsrep-cluster-address": "gcomm://" + ("" if founds else ",".join(other.address for other in nodes)),
        }
        server = "mariadbd --no-defaults " + " ".join(f"--{name}={value}" for name, value in options.items())
        if founds:
            return f"{INSTALL}; exec {server} --init-file=$PWD/accounts.sql"
        if not node.starts:
            return f"{INSTALL}; exec {server}"
        return f"exec {server} --wsrep-start-position=$({server} --wsrep-recover 2>&1 | {RECOVERED})"

    async def ready(self, nodes):
        states = {node.name: await node.output(STATE.format(node.address)) for node in nodes}
        behind = [name for name, state in states.items() if "Synced" not in state]
        return f"{', '.join(behind)} is not synced" if behind else None

    caught_up = ready


class Flushed(Galera):
    """Galera with innodb_flush_log_at_trx_commit=1, its default: a commit is on the disk of its server first."""

    flush = 1


class Unwaited(Flushed):
    """Flushed with wsrep_sync_wait=0, its default: a server answers reads before it has applied what others commit."""

    sync_wait = 0


class RowClient(Client):
    def open(self, server):
        login = {"user": "k", "database": "k", "connect_timeout": 2, "autocommit": True}
        return pymysql.connect(host=server.host, port=server.port, **login)

    def run(self, statement, *values):
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall()

    def create(self, key=None):
        self.run(SETS)
        self.run(REGISTERS)

    def add(self, key, value):
        self.run("insert into kept values (%s, %s)", key, value)

    def members(self, key):
        return [value for (value,) in self.run("select v from kept where k = %s order by v", key)]

    def write(self, key, value):
        self.run("replace into held values (%s, %s)", key, value)

    def read(self, key):
        return next((value for (value,) in self.run("select v from held where k = %s", key)), None)
