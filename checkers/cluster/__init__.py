"""Rules about what a metadata log says of brokers and partitions, judged from the log alone."""
