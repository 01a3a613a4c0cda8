"""Asks the bundled KRaft over Kafka's protocol: one process, one attempt per request."""
