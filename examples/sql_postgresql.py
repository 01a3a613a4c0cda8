"""PostgreSQL 15 through the SQL kit: one server, and all transactions SERIALIZABLE."""

import psycopg
from postgresql import PostgreSQL as Server

from krucible import SqlClient


class Transactions(SqlClient):
    parameter = "%s"
    begin = "begin isolation level serializable"
    nothing_happened = ("^40001 ", "^40P01 ")

    def connect(self, server):
        return psycopg.connect(host=server.host, user="postgres", connect_timeout=2, autocommit=True)


class PostgreSQL(Server):
    client = Transactions
