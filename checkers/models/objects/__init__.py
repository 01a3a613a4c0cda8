"""The bundled objects, a file for each or for a few of one kind; `docs/models.md` shows how to write your own model."""
