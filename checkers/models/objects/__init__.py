"""The objects that come with the project, one file each; `docs/models.md` says how to write one's own."""
