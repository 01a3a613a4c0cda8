"""Histories of sends and polls on a Kafka log, and the anomalies they show."""
