"""Free TCP ports."""

import socket


def free_ports(host: str, count: int) -> list[int]:
    """`count` different ports that are free on `host`. Raises OSError for a host that is not ours."""
    sockets = [socket.socket(_family(host)) for _ in range(count)]
    try:
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
