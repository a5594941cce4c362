"""Test who is at the other end: real sockets of this process and of another local user."""

import os
import socket
import struct
from pathlib import Path

import pytest

from dashboard.guard.peer import is_loopback, own_uid, peer_uid, table_uid
from dashboard.guard.sock_diag import established_uid
from tests.guard_factories import NOBODY, connection, needs_root, relay

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's tables of sockets")

WAYS = [
    (socket.AF_INET, "127.0.0.1", None),
    (socket.AF_INET, "127.0.0.5", None),
    (socket.AF_INET6, "::1", None),
    # A server of IPv6 that IPv4 reaches.
    (socket.AF_INET6, "::", "127.0.0.1"),
]


@pytest.mark.parametrize("read_uid", [peer_uid, table_uid])
@pytest.mark.parametrize(("family", "address", "client"), WAYS)
def test_a_connection_of_this_process_has_its_uid(
    family: socket.AddressFamily, address: str, client: str | None, read_uid: object
) -> None:
    with connection(family, address, client) as (_, ends):
        assert callable(read_uid)
        assert read_uid(ends.client, ends.server) == os.geteuid()


def test_the_kernel_is_queried_directly_if_it_answers() -> None:
    with connection(socket.AF_INET, "127.0.0.1") as (_, ends):
        packed = [socket.inet_aton(end[0]) for end in (ends.client, ends.server)]
        uid = established_uid(packed[0], ends.client[1], packed[1], ends.server[1])
        assert uid == os.geteuid()
        assert established_uid(packed[0], ends.client[1], packed[1], ends.server[1] ^ 1) is None


@needs_root
@pytest.mark.parametrize(("family", "address", "client"), WAYS)
def test_a_connection_of_another_user_has_theirs(
    family: socket.AddressFamily, address: str, client: str | None
) -> None:
    with socket.socket(family) as server:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((address, 0))
        server.listen()
        server.settimeout(30)
        with (
            relay(server.getsockname()[1], NOBODY, client or address) as port,
            socket.create_connection(("127.0.0.1", port)),
        ):
            accepted = server.accept()[0]
            with accepted:
                ends = accepted.getpeername()[:2], accepted.getsockname()[:2]
                assert peer_uid(*ends) == table_uid(*ends) == NOBODY


@pytest.mark.parametrize("is_aborted", [False, True])
def test_who_hung_up_is_nobody(is_aborted: bool) -> None:
    """Linux shows uid 0 for a socket without a process: root's dashboard would take it for root's own."""
    with connection(socket.AF_INET, "127.0.0.1") as (near, ends):
        if is_aborted:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        near.close()
        assert peer_uid(ends.client, ends.server) is None
        assert table_uid(ends.client, ends.server) is None


def test_a_row_without_a_process_counts_for_nothing(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st ...\n"
    local, remote = "0100007F:C001", "0100007F:2135"
    row = "   0: {} {} {} 00000000:00000000 00:00000000 00000000  1000        0 {} 1 0000000000000000 20 4\n"
    for state, inode, uid in (("01", 4711, 1000), ("01", 0, None), ("05", 4711, None), ("06", 0, None)):
        (tmp_path / "tcp").write_text(head + row.format(local, remote, state, inode), encoding="ascii")
        assert table_uid(("127.0.0.1", 0xC001), ("127.0.0.1", 0x2135), tmp_path) == uid
    assert table_uid(("127.0.0.1", 0xC002), ("127.0.0.1", 0x2135), tmp_path) is None


@pytest.mark.parametrize("client", [("192.0.2.1", 1), ("", 0), ("example", 1), ("127.0.0.1", 0)])
def test_what_is_no_connection_over_loopback_is_nobodys(client: tuple[str, int]) -> None:
    assert peer_uid(client, ("127.0.0.1", 8501)) is None


def test_loopback_in_any_notation() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "", "localhost")))


def test_the_uid_that_stands_for_everybody_unknown_is_not_trusted(tmp_path: Path) -> None:
    overflow = tmp_path / "overflowuid"
    overflow.write_text("65534\n", encoding="ascii")
    assert own_uid(overflow) == (None if os.geteuid() == 65534 else os.geteuid())
    overflow.write_text(f"{os.geteuid()}\n", encoding="ascii")
    assert own_uid(overflow) is None
    assert own_uid(tmp_path / "missing") is None
