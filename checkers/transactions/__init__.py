"""Transactional histories: which anomalies they show, and which consistency models these rule out."""
