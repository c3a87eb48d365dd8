"""Free loopback ports, and who holds a taken one."""

import errno
import random
import socket
from pathlib import Path

import psutil

HOST = "127.0.0.1"
_FIRST, _LAST = 25000, 29999


class PortError(RuntimeError):
    """No port can be had; the message says which and why."""


def _range() -> range:
    """Ports below the kernel's ephemeral ones, so that no outgoing connection sits on a service's port
    while the service restarts."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        lowest = 32768
    last = min(_LAST, lowest - 1)
    return range(_FIRST, last + 1) if last > _FIRST + 100 else range(10000, max(lowest, 11000))


def _try_listening(host: str, port: int) -> None:
    """Raises OSError. A closed connection in TIME_WAIT does not hinder it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    try:
        _try_listening(host, port)
    except OSError:
        return False
    return True


def check(host: str, port: int) -> None:
    """Raises PortError, which says what to change, if no server could listen there now."""
    try:
        _try_listening(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = f"port {port} is taken by {holder(port)}; choose another with --port"
        elif error.errno == errno.EACCES:
            why = f"this user may not listen on port {port}; choose one above 1023 with --port"
        else:
            why = f"cannot listen on {host}: {error.strerror}; give an address of this machine with --host"
        raise PortError(why) from None


def free_ports(count: int) -> list[int]:
    """`count` different free ports on the loopback address, from a random one on.

    The random start keeps stacks that are started at the same moment apart. Raises PortError if there are
    fewer free ports.
    """
    found: list[int] = []
    ports = _range()
    start = random.randrange(len(ports))
    for port in (*ports[start:], *ports[:start]):
        if len(found) == count:
            return found
        if is_free(HOST, port):
            found.append(port)
    raise PortError(f"no {count} free ports between {_range()[0]} and {_range()[-1]}")


def holder(port: int) -> str:
    """Who listens on `port`, as far as this user may see: `python (pid 4711)`, else `another process`."""
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        pass
    return "another process"
