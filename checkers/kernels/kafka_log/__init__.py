"""Sends and polls of a Kafka log as columns."""
