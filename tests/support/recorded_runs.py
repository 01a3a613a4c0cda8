"""The recorded runs of tests/data, unpacked."""

import io
import lzma
import tarfile
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"


def unpacked(name: str, into: Path) -> Path:
    """The run folder of a recorded run, as it was before judging; `into` is created."""
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress((DATA / f"{name}.tar.xz").read_bytes()))) as archive:
        archive.extractall(into, filter="data")
    return into
