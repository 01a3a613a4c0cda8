"""The objects that come with the project, one file each; `docs/models.md` shows how to write your own."""
