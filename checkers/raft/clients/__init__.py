"""Answers to clients, compared with the logs."""
