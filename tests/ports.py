"""Ports for servers under test."""

import random
import socket

_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A port that is free now, and below those that the system gives to connections: it stays free while the
    server starts, and while it is dead between two starts."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
