"""The newest version of each table, in etcd: so that versions go on from there if NATS loses its data.

A frontend never goes back to an older version by itself. One that outlived the bucket would refuse tables
that begin at 1 again.
"""

import logging

from ppd.core.names import table_version_key
from ppd.runtime.etcd import Etcd, EtcdError

_TRIES = 5


class NewestVersions:
    """NewestVersions only rise, whoever sets them."""

    def __init__(self, etcd: Etcd, namespace: str, logger: logging.Logger) -> None:
        self._etcd = etcd
        self._namespace = namespace
        self._log = logger

    async def newest(self, key: str) -> int:
        """0 if there was none. Raises EtcdError."""
        return (await self._find(key))[0]

    async def _find(self, key: str) -> tuple[int, int | None]:
        """The version, and the revision to replace it by; None where there is nothing."""
        found = await self._etcd.get(table_version_key(self._namespace, key))
        if found is None:
            return 0, None
        text, revision = found
        return int(text) if text.isdigit() else 0, revision

    async def rise(self, key: str, version: int) -> None:
        """Before `version` is published. Without etcd it is published all the same: no tables for want of a
        mark would be the greater harm."""
        name, value = table_version_key(self._namespace, key), str(version).encode()
        try:
            for _ in range(_TRIES):
                newest, revision = await self._find(key)
                if newest >= version:
                    return
                if revision is None:
                    done = await self._etcd.create(name, value)
                else:
                    done = await self._etcd.replace(name, value, revision)
                if done:
                    return
        except EtcdError as error:
            self._log.warning("version %d of %s is not marked in etcd: %s", version, key, error)
