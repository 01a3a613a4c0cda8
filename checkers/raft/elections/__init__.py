"""Judges who led in each epoch, and with which votes."""
