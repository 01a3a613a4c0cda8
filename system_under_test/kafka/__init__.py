"""Apache Kafka itself, run from its own jars: its processes, its clients, and bugs planted by configuration.

The files, in the order in which to read them:

    process.py   the archives of a run, and one process: its roles, its configuration, its command
    wire.py      one request and its answer, from a node or from a client
    system.py    the cluster: how it starts, who leads, when it has recovered
    bundled.py   brokers on the bundled controllers, and controllers of both kinds
    records.py   operations of clients through librdkafka: send, poll, subscribe, transactions
    client.py    the whole client: it also changes topics, and commits and fetches offsets of groups
"""
