"""Histories of sends and polls on a Kafka log, and their anomalies."""
