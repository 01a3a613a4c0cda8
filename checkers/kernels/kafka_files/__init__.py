"""Reads Kafka's files from their bytes alone: record batches, config records, prefix hashes."""
