"""The parts of the address space that are files."""

import ctypes
import mmap
from pathlib import Path

from harness.device.host.mapped_files import MappedFiles

_SIZE = 4 * mmap.PAGESIZE


def address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def test_a_mapped_file_is_distinguished_from_private_memory(tmp_path: Path) -> None:
    (tmp_path / "weights with a space").write_bytes(bytes(_SIZE))
    with (tmp_path / "weights with a space").open("r+b") as file:
        for access in mmap.ACCESS_COPY, mmap.ACCESS_WRITE:
            mapped = mmap.mmap(file.fileno(), _SIZE, access=access)
            own = mmap.mmap(-1, _SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            files = MappedFiles()
            assert files.contains(address(mapped))
            assert files.contains(address(mapped) + _SIZE - 1)
            assert not files.contains(address(own))


def test_the_heap_is_no_file() -> None:
    small = ctypes.create_string_buffer(64)
    assert not MappedFiles().contains(ctypes.addressof(small))


def test_nothing_is_a_file_where_the_system_lists_no_mappings(tmp_path: Path) -> None:
    assert not MappedFiles(tmp_path / "missing").contains(1 << 40)
