"""The objects that the project knows, one file each; `docs/models.md` shows how to write your own model."""
