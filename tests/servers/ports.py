"""Ports of servers that tests start."""

from __future__ import annotations

import random
import socket

_BELOW_THE_KERNEL_S = range(20_000, 32_000)
"""The kernel gives out ports above these to who binds 0, which may be between our look and the bind of the server."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nothing listens."""
    while True:
        port = random.SystemRandom().choice(_BELOW_THE_KERNEL_S)
        try:
            socket.create_server((host, port)).close()
        except OSError:
            continue
        return port
