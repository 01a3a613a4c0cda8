"""Verify that copies of one object at several servers agree in the end."""
