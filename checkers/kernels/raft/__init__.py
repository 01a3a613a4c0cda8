"""Comparisons of logs, marks and traces."""
