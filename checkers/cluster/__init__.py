"""What a metadata log says of brokers and partitions, judged from the log alone."""
