"""Ports of servers that tests start."""

from __future__ import annotations

import random
import socket

_NOT_GIVEN_OUT = range(20_000, 32_000)
"""The kernel gives out ports above these, and could give away the one that we found before the server binds it."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nothing listens."""
    while True:
        port = random.SystemRandom().choice(_NOT_GIVEN_OUT)
        try:
            socket.create_server((host, port)).close()
        except OSError:
            continue
        return port
