"""The client of etcd where the way to it is slow, or there is nobody."""

import asyncio

import pytest

from ppd.runtime.etcd import Etcd, EtcdError
from tests.support.servers import EtcdServer, free_port

pytestmark = pytest.mark.contract


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()


@pytest.mark.parametrize("late_s", [0.0, 1.0])
async def test_a_server_that_is_slow_to_greet_is_reached(
    late_s: float, etcd_server: EtcdServer, namespace: str
) -> None:
    attempts = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        await asyncio.sleep(late_s)  # a busy machine, or a way over an ocean
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", etcd_server.port)
        await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with proxy:
        etcd = Etcd([f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"])
        await etcd.put(f"/{namespace}/key", b"value")
        assert attempts == 1
        await etcd.close()


async def test_where_nobody_listens_a_call_ends_with_an_error() -> None:
    etcd = Etcd([f"127.0.0.1:{free_port()}"])
    async with asyncio.timeout(60):
        with pytest.raises(EtcdError, match="cannot be reached for put"):
            await etcd.put("/key", b"value")
    await etcd.close()


async def test_it_is_found_soon_after_it_has_come(etcd_server: EtcdServer, namespace: str) -> None:
    """A refused attempt is followed by another one at once, and not by one after the attempt's deadline."""
    etcd_server.kill()
    etcd = Etcd([etcd_server.address])
    with pytest.raises(EtcdError):
        await etcd.put(f"/{namespace}/key", b"value")
    etcd_server.start()
    await etcd.put(f"/{namespace}/key", b"value")
    await etcd.close()
