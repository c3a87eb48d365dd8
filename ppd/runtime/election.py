"""Leader election in etcd: the first to create the key under its lease leads until the lease is gone."""

import asyncio
import logging
import time
from collections.abc import Callable

from ppd.core.names import LEASE_TTL_S, leader_key
from ppd.runtime.etcd import Etcd, EtcdError

_RENEW_S = LEASE_TTL_S / 5
_POLL_S = 1.0
_SAFETY_S = 2.0  # stop leading this long before the lease can have ended


class Election:
    """One candidate. `is_leader` turns False by the clock before another can have been elected."""

    def __init__(
        self,
        etcd: Etcd,
        namespace: str,
        candidate_id: str,
        clock: Callable[[], float] = time.monotonic,
        logger: logging.Logger | None = None,
    ) -> None:
        self._etcd = etcd
        self._key = leader_key(namespace)
        self._id = candidate_id
        self._clock = clock
        self._log = logger or logging.getLogger(__name__)
        self._lease: int | None = None
        self._until_s = 0.0
        self.leader = ""  # the last one known
        self.token = 0  # the key's revision: grows with every election, to fence off an old leader's writes

    @property
    def is_leader(self) -> bool:
        return self._lease is not None and self._clock() < self._until_s

    async def run(self) -> None:
        """For a Supervisor: raises EtcdError on an outage, to be started again."""
        try:
            while True:
                await (self._renew() if self._lease is not None else self._stand())
                await asyncio.sleep(_RENEW_S if self._lease is not None else _POLL_S)
        except EtcdError:
            if not self.is_leader:
                self._lease = None
            raise

    async def _stand(self) -> None:
        found = await self._etcd.get(self._key)
        if found is not None:
            self.leader = found[0].decode(errors="replace")
            return
        asked_s = self._clock()
        lease = await self._etcd.grant(LEASE_TTL_S)
        if not await self._etcd.create(self._key, self._id.encode(), lease):
            await self._etcd.revoke(lease)
            return
        created = await self._etcd.get(self._key)
        if created is None or created[0] != self._id.encode():
            return
        self._lease, self._until_s = lease, asked_s + LEASE_TTL_S - _SAFETY_S
        self.leader, self.token = self._id, created[1]
        self._log.info("leading as %s (token %d)", self._id, self.token)

    async def _renew(self) -> None:
        asked_s = self._clock()
        lease = self._lease
        found = await self._etcd.get(self._key)
        if lease is None or found is None or found[1] != self.token or not await self._etcd.keepalive(lease):
            self._log.warning("no longer the leader")
            self._lease = None
            return
        self._until_s = asked_s + LEASE_TTL_S - _SAFETY_S

    async def close(self) -> None:
        """Step down now, so that another can lead at once. Stop `run` first."""
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                await self._etcd.revoke(lease)
            except EtcdError:
                self._log.warning("could not step down: the lease ends by itself")
