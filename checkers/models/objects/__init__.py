"""The bundled objects, one file each; `docs/models.md` shows how to write your own model."""
