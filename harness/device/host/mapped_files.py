"""The parts of this process's address space that are files (Linux)."""

import re
from bisect import bisect
from pathlib import Path

# In /proc/self/maps: begin, end, permissions, offset, device, inode and, of a file, its name. Memory shared
# between processes has one, too; the heap and stacks have one in brackets.
_FILE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ +[^\s\[]", re.MULTILINE)


class MappedFiles:
    """The mappings of files, as of now; none where the system does not list them."""

    def __init__(self, maps: Path = Path("/proc/self/maps")) -> None:
        try:
            text = maps.read_bytes()
        except OSError:
            text = b""
        # In the order of addresses, without overlaps.
        self._ranges = [(int(begin, 16), int(end, 16)) for begin, end in _FILE.findall(text)]

    def contains(self, address: int) -> bool:
        """Return whether a file is mapped at `address`."""
        place = bisect(self._ranges, address, key=lambda mapping: mapping[0]) - 1
        return place >= 0 and address < self._ranges[place][1]
