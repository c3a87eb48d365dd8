"""etcd as the services use it: several endpoints, a deadline on every call, one error type.

The client underneath is aetcd. It knows one address and lets a watch end with its connection, so failing
over, resuming a watch and asking for a new lease are done here and in `ppd.runtime.registry`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import aetcd
import aetcd.exceptions

from ppd.runtime.endpoints import EndpointError, check_etcd
from ppd.runtime.tasks import OutageError

T = TypeVar("T")

CALL_DEADLINE_S = 3.0

# A dead peer must be noticed although nothing is being sent, and a channel must not sleep for minutes.
_CHANNEL_OPTIONS = {
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 4_000,
    "grpc.http2.max_pings_without_data": 0,
    "grpc.initial_reconnect_backoff_ms": 200,
    "grpc.min_reconnect_backoff_ms": 3_000,  # gRPC's deadline for an attempt to connect, whatever its name
    "grpc.max_reconnect_backoff_ms": 2_000,
}


class EtcdError(OutageError):
    """etcd could not be asked, or refused; the message names the endpoint."""


class Compacted(EtcdError):
    """The revision to watch from is gone: list again."""


def _split(endpoint: str) -> tuple[str, int]:
    try:
        return check_etcd(endpoint)
    except EndpointError as error:
        raise EtcdError(str(error)) from None


class Etcd:
    """A client for one cluster. Every call raises EtcdError within its deadline if it cannot be done."""

    def __init__(self, endpoints: list[str]) -> None:
        if not endpoints:
            raise EtcdError("no etcd endpoint is configured")
        self._addresses = [_split(endpoint) for endpoint in endpoints]
        self._current = 0
        self._client: aetcd.Client | None = None

    def _new_client(self) -> aetcd.Client:
        host, port = self._addresses[self._current]
        return aetcd.Client(host, port, timeout=CALL_DEADLINE_S, options=_CHANNEL_OPTIONS)

    async def _fail_over(self, failed: aetcd.Client) -> None:
        """Turn to the next endpoint, once per failed client however many calls it failed."""
        if self._client is failed:
            self._client = None
            self._current = (self._current + 1) % len(self._addresses)
            await _close(failed)

    async def _call(
        self, what: str, do: Callable[[aetcd.Client], Awaitable[T]], tries: int | None = None
    ) -> T:
        last: BaseException | None = None
        for _ in range(tries or len(self._addresses)):
            if self._client is None:
                self._client = self._new_client()
            client, address = self._client, self._addresses[self._current]
            try:
                return await asyncio.wait_for(do(client), CALL_DEADLINE_S)
            except (
                aetcd.exceptions.ConnectionFailedError,
                aetcd.exceptions.ConnectionTimeoutError,
                OSError,
            ) as error:
                last = error
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                last = error  # another call closed the dead connection, and gRPC cancels the rest
            except aetcd.exceptions.ClientError as error:
                raise EtcdError(f"etcd {address[0]}:{address[1]} refused {what}: {error}") from error
            await self._fail_over(client)
        raise EtcdError(f"etcd {address[0]}:{address[1]} cannot be reached for {what}") from last

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """The value and its modification revision, or None."""
        found = await self._call("get", lambda c: c.get(key.encode()))
        return None if found is None else (found.value, found.mod_revision)

    async def list(self, prefix: str) -> tuple[dict[str, bytes], int]:
        """All keys under `prefix`, and the revision at which that was so."""
        found = await self._call("list", lambda c: c.get_prefix(prefix.encode()))
        return {item.key.decode(): item.value for item in found}, found.header.revision

    async def put(self, key: str, value: bytes, lease: int | None = None) -> None:
        await self._call("put", lambda c: c.put(key.encode(), value, lease))

    async def delete(self, key: str) -> None:
        await self._call("delete", lambda c: c.delete(key.encode()))

    async def create(self, key: str, value: bytes, lease: int | None = None) -> bool:
        """Put `key` unless it exists; whether it was put."""
        return await self._put_if(lambda t: t.create(key.encode()) == 0, key, value, lease)

    async def replace(self, key: str, value: bytes, mod_revision: int, lease: int | None = None) -> bool:
        """Put `key` if nobody changed it since `mod_revision`; whether it was put."""
        return await self._put_if(lambda t: t.mod(key.encode()) == mod_revision, key, value, lease)

    async def _put_if(
        self, condition: Callable[[Any], Any], key: str, value: bytes, lease: int | None
    ) -> bool:
        async def do(client: aetcd.Client) -> bool:
            done, _ = await client.transaction(
                compare=[condition(client.transactions)],
                success=[client.transactions.put(key.encode(), value, lease)],
                failure=[],
            )
            return bool(done)

        return await self._call("transaction", do, tries=1)

    async def grant(self, ttl_s: int) -> int:
        """A new lease's id."""
        return int((await self._call("lease grant", lambda c: c.lease(ttl_s))).id)

    async def keepalive(self, lease: int) -> bool:
        """Renew a lease; False if it is gone."""
        reply = await self._call("lease renewal", lambda c: c.refresh_lease(lease))
        return reply is not None and reply.TTL > 0

    async def revoke(self, lease: int) -> None:
        await self._call("lease revocation", lambda c: c.revoke_lease(lease))

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[tuple[str, bytes | None], None]:
        """Changes under `prefix` from `from_revision` on: key and new value, None for a deletion.

        Raises Compacted if that revision is gone, EtcdError when the connection is lost; the caller lists
        and watches again. Each watch has a connection of its own, so that ending it disturbs no other.
        """
        client = self._new_client()
        try:
            watch = await asyncio.wait_for(
                client.watch_prefix(prefix.encode(), start_revision=from_revision), CALL_DEADLINE_S
            )
            async for event in watch:
                deleted = event.kind == aetcd.EventKind.DELETE
                yield event.kv.key.decode(), None if deleted else event.kv.value
        except aetcd.exceptions.RevisionCompactedError as error:
            raise Compacted(str(error)) from error
        except (aetcd.exceptions.ClientError, OSError, aetcd.rpc.AioRpcError, TimeoutError) as error:
            self._current = (self._current + 1) % len(self._addresses)
            raise EtcdError(f"the watch of {prefix} ended: {error}") from error
        finally:
            await _close(client)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _close(client)


async def _close(client: aetcd.Client) -> None:
    """Close a client, which aetcd lets hang or raise when its peer is gone."""
    try:
        await asyncio.wait_for(client.close(), 1.0)
    except Exception:
        pass
