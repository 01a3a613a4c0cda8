"""Histories, logs and traces of any length, which no cluster has to make first."""
