"""What small objects do, one file each: the state they begin in, and what each operation does to it.

`MODELS` names those that come with the project; `docs/models.md` says how to write one's own.
"""

from __future__ import annotations
