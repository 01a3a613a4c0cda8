"""ZEO 5.2.2, the server of ZODB: accounts as persistent objects; each client holds its own cache.

Promised in ZODB's documentation: a transaction sees the database as of the time at which it began (snapshot isolation),
and a conflicting commit is refused.  A client may begin at an older state than other clients have seen, unless it asks
the server first (`server_sync`).
"""

import transaction
import ZEO
from persistent.mapping import PersistentMapping
from ZODB.POSException import ConflictError

from krucible import Client, Needs, System


class Accounts(Client):
    refused = (ConflictError,)
    server_sync = False

    def open(self, server):
        self.database = ZEO.DB((server.host, server.port), wait_timeout=2, server_sync=self.server_sync)
        self.transactions = transaction.TransactionManager()
        return self.database.open(self.transactions)

    def close(self):
        self.transactions.abort()
        self.database.close()

    def open_account(self, account, balance):
        with self.transactions:
            self.connection.root().setdefault(account, PersistentMapping(balance=balance))

    def balances(self):
        with self.transactions:
            return {name: held["balance"] for name, held in self.connection.root().items()}

    def transfer(self, source, target, amount):
        with self.transactions:
            given, taken = self.connection.root()[target], self.connection.root()[source]
            if taken["balance"] < amount:
                return False
            taken["balance"] -= amount
            given["balance"] += amount
            return True


class SyncedAccounts(Accounts):
    server_sync = True


class Zeo(System):
    port = 8100
    elections = False
    needs = Needs(wheels=["ZEO==5.2.2", "ZODB==5.6.0"])
    client = Accounts

    async def start(self, node, nodes):
        return [*node.python, "-m", "ZEO.runzeo", "-a", f"{node.address}:{self.port}", "-f", "Data.fs"]


class Zeo523(Zeo):
    """`bank` demands that a read shows all earlier acknowledged transfers, so clients ask the server first."""

    needs = Needs(wheels=["ZEO==5.2.3", "ZODB==5.6.0"])
    client = SyncedAccounts
