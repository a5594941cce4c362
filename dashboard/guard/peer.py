"""The uid of the client of a loopback connection, on Linux.

A loopback connection has two sockets on this machine, and the client's socket has the uid of the process that
created it: `sock_diag` returns it at once, and where that is disabled, the tables in /proc/net contain it.
If it cannot be determined (another system, another network namespace), the result is None, and callers must
not treat None as any user.
"""

import os
import sys
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from dashboard.guard.sock_diag import established_uid

# A numeric address and a port.
Endpoint = tuple[str, int]

# A row may be missed while the table changes during a read.
_ATTEMPTS = 3
_ESTABLISHED = b"01"
_TABLES = Path("/proc/net")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


def peer_uid(client: Endpoint, server: Endpoint) -> int | None:
    """Return the uid of the client's socket of the connection `client` → `server`; None if unknown.

    Only an established socket that still belongs to a process counts: Linux reports uid 0 for a closed one,
    which would make every user who disconnects early appear as root.
    """
    from_address, to_address = _plain(client[0]), _plain(server[0])
    if from_address is None or to_address is None or not from_address.is_loopback:
        return None
    if from_address.version == to_address.version:
        uid = established_uid(from_address.packed, client[1], to_address.packed, server[1])
        if uid is not None:
            return uid
    return table_uid(client, server)


def table_uid(client: Endpoint, server: Endpoint, tables: Path = _TABLES) -> int | None:
    """Return the same uid from the socket tables in the folder `tables`."""
    from_address, to_address = _plain(client[0]), _plain(server[0])
    if from_address is None or to_address is None:
        return None
    for _ in range(_ATTEMPTS):
        for name, needle in _rows(from_address, client[1], to_address, server[1]):
            try:
                uid = _uid_in((tables / name).read_bytes(), needle)
            except OSError:
                continue
            if uid is not None:
                return uid
    return None


def own_uid(overflow_uid: Path = _OVERFLOW_UID) -> int | None:
    """Return this process's uid; None where it does not identify a user: on systems other than Linux, and if
    it is the overflow uid, under which a container shows all unmapped users."""
    uid = os.geteuid()
    try:
        return None if uid == int(overflow_uid.read_text(encoding="ascii")) else uid
    except (OSError, ValueError):
        return None


def is_loopback(host: str) -> bool:
    """Return whether a numeric address belongs to this machine's loopback, in IPv4 or IPv6 notation."""
    address = _plain(host)
    return address is not None and address.is_loopback


def _plain(host: str) -> IPv4Address | IPv6Address | None:
    """Parse an address; an IPv4-mapped IPv6 address (`::ffff:127.0.0.1`) becomes the IPv4 address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _rows(
    client: IPv4Address | IPv6Address, client_port: int, server: IPv4Address | IPv6Address, server_port: int
) -> list[tuple[str, bytes]]:
    """Return the tables to read, each with the start of the client's row after its number. An IPv6 socket may
    carry an IPv4 connection."""
    rows = []
    if isinstance(client, IPv4Address) and isinstance(server, IPv4Address):
        rows.append(("tcp", _needle(client.packed, client_port, server.packed, server_port)))
        prefix = bytes(10) + b"\xff\xff"
        client_bytes, server_bytes = prefix + client.packed, prefix + server.packed
    else:
        client_bytes, server_bytes = client.packed, server.packed
    if len(client_bytes) == len(server_bytes):
        rows.append(("tcp6", _needle(client_bytes, client_port, server_bytes, server_port)))
    return rows


def _needle(client: bytes, client_port: int, server: bytes, server_port: int) -> bytes:
    local, remote = f"{_hex(client)}:{client_port:04X}", f"{_hex(server)}:{server_port:04X}"
    return f": {local} {remote} ".encode() + _ESTABLISHED + b" "


def _hex(packed: bytes) -> str:
    """Format an address as the kernel does: words of 32 bits in the machine's byte order."""
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _uid_in(table: bytes, needle: bytes) -> int | None:
    """Return the uid in the row that starts with `needle`; it is after queues, timer and retransmits, and
    before timeout and inode."""
    at = table.find(needle)
    if at < 0:
        return None
    rest = table[at + len(needle) :].partition(b"\n")[0].split()
    if len(rest) < 6 or rest[5] == b"0":
        return None
    return int(rest[3])
