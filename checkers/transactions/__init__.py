"""Anomalies in transactional histories, and the consistency models that these anomalies rule out."""
