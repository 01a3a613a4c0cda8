"""Homes of nodes: backends that make them, cut their links and remove them, and what all backends share."""
