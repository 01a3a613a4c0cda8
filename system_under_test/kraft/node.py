"""Carries out what the core wants, through the ports."""
