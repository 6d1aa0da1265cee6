"""Ports for processes that must be told one before they listen."""

import socket
from random import SystemRandom

DRAW = SystemRandom()


def free_port() -> int:
    """One below those that the system gives to whoever connects somewhere: nobody takes it before it is used."""
    while True:
        port = DRAW.randrange(20_000, 32_000)
        with socket.socket() as probe:
            if not _taken(probe, port):
                return port


def _taken(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        return True
    return False
