"""Apache Kafka itself, from its own jars: its processes, its clients, and bugs planted by configuration.

The files, in the order in which to read them:

    jars.py      which archives a run uses, and the class-data archive that makes starts cheaper
    process.py   one process of Kafka: its roles, its configuration, its command
    wire.py      one request and its answer, from a node or from a client
    system.py    the cluster: how it starts, who leads, when it has recovered
    bundled.py   brokers on the bundled controllers, and controllers of both kinds
    records.py   clients send and poll records, through librdkafka
    groups.py    consumers that subscribe
    offsets.py   clients commit and fetch the offsets of consumer groups
    client.py    one client that does all of that, and transactions
"""
