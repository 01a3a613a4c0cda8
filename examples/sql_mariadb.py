"""MariaDB 10.11 through the SQL kit: one server, and all transactions SERIALIZABLE."""

import pymysql
from mariadb import MariaDB as Server

from krucible import SqlClient

SERIALIZABLE = "set session transaction isolation level serializable"


class Transactions(SqlClient):
    parameter = "%s"
    ways = ("replace", "update")  # it has no ON CONFLICT
    nothing_happened = ("OperationalError: .(1020|1205|1213)",)

    def connect(self, server):
        at = {"host": server.host, "port": server.port, "user": "k", "database": "k", "connect_timeout": 2}
        return pymysql.connect(**at, autocommit=True, init_command=SERIALIZABLE)


class MariaDB(Server):
    consistency = ""
    client = Transactions
