"""Transactional histories: which anomalies they show, and which consistency models the anomalies rule out."""
