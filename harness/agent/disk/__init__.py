"""The disk under test: a folder that passes everything through, remembers what was not fsynced, and fails on order."""
