"""The bundled objects, one file per object or kind of object; `docs/models.md` shows how to write your own model."""
