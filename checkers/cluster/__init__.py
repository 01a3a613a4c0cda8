"""Rules about brokers and partitions in a metadata log, judged from the log alone."""
