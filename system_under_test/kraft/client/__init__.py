"""Clients of the quorum, and how they find the active controller."""
