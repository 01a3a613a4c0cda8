"""Where the log on a simulated disk ends if power is lost now: by its fsynced bytes, not by what its server reports."""

from __future__ import annotations

from simulation.disk import VolatileDisk
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.log import FOLDER
from system_under_test.kraft.log.segment import file_name

_SUFFIX = ".log"


class DurableLog:
    """Reads what was fsynced, segment after segment, as far as batches join.  It goes on where it was the last time."""

    def __init__(self) -> None:
        self._base = -1  # of the segment in which it was
        self._position = 0
        self._end = 0

    def begin_anew(self) -> None:
        """What was read may be another log by now."""
        self._base = -1

    def end_offset(self, disk: VolatileDisk) -> int:
        """The end of the last batch that is durable, with all before it; the first segment's base if there is none."""
        files = disk.durable_in(FOLDER)
        if self._position > len(files.get(file_name(self._base), b"")):
            self.begin_anew()
        if self._base < 0:
            bases = [int(name.removesuffix(_SUFFIX)) for name in files if name.endswith(_SUFFIX)]
            self._base, self._position = min(bases, default=0), 0
            self._end = self._base
        while (data := files.get(file_name(self._base))) is not None:
            self._read(data)
            if self._end == self._base or file_name(self._end) not in files:
                break
            self._base, self._position = self._end, 0
        return self._end

    def _read(self, data: bytearray) -> None:
        with memoryview(data) as view:
            while self._position < len(view):
                try:
                    header = codec.read_header(view, self._position)
                except codec.CorruptBatch:
                    return
                if header.base_offset != self._end:
                    return
                self._position += header.size_bytes
                self._end = header.end_offset
