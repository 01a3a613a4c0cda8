"""The metadata log on disk: record batches, segments, the epoch cache, quorum-state."""
