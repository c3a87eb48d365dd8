import socket

import psutil
import pytest

from ppd.cli.stack import ports

pytestmark = pytest.mark.unit


def test_a_port_that_is_listened_on_is_not_free_and_its_holder_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not ports.is_free("127.0.0.1", port)
        assert ports.holder(port) == f"{psutil.Process().name()} (pid {psutil.Process().pid})"
    assert ports.is_free("127.0.0.1", port)


def test_free_ports_differ_and_are_below_those_of_outgoing_connections() -> None:
    found = ports.free_ports(20)
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        lowest = int(file.read().split()[0])
    assert len(set(found)) == 20
    assert max(found) < lowest
    assert all(ports.is_free("127.0.0.1", port) for port in found)


def test_more_ports_than_there_are_is_an_error() -> None:
    with pytest.raises(ports.PortError, match="no 70000 free ports"):
        ports.free_ports(70_000)


def test_a_taken_port_is_said_with_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ports.PortError, match=rf"port {port} is taken by .*pid.*--port"):
            ports.check("127.0.0.1", port)
    ports.check("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_this_machine_is_no_taken_port(host: str) -> None:
    with pytest.raises(ports.PortError, match=rf"cannot listen on {host}: .*--host"):
        ports.check(host, ports.free_ports(1)[0])
