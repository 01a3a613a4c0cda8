"""The disk under test: a folder that passes all operations through, remembers unsynced changes, and fails on order."""
