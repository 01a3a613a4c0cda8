"""Life of a broker beside its data: it registers, lives, reports who is in sync, and leaves.  Pure.

    lifecycle   registration, heartbeats, controlled shutdown
    in_sync     which replicas of the partitions that it leads are in sync

Brokers keep no data of topics yet.  A replica counts as in sync while it answers its leader.  So what happens to
in-sync sets and leaders is caused by real faults, only the data is not there.
"""
