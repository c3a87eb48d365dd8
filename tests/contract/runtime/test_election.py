"""One leader at a time, another after its death, and none that believes so for longer than its lease."""

import logging

import pytest

from ppd.core.names import LEASE_TTL_S
from ppd.runtime.election import Election
from ppd.runtime.etcd import Etcd
from ppd.runtime.tasks import Supervisor
from tests.support.waiting import until

pytestmark = pytest.mark.contract
LOG = logging.getLogger("test")


class Candidate:
    def __init__(self, etcd_server, namespace, name):
        self.etcd = Etcd([etcd_server.address])
        self.election = Election(self.etcd, namespace, name)
        self.tasks = Supervisor(LOG)
        self.tasks.start("election", self.election.run)

    async def die(self):
        await self.tasks.close()
        await self.etcd.close()


@pytest.fixture
async def two(etcd_server, namespace):
    candidates = [Candidate(etcd_server, namespace, name) for name in ("one", "two")]
    yield candidates
    for candidate in candidates:
        await candidate.die()


async def test_exactly_one_leads_and_the_other_follows_its_death(two):
    await until(lambda: any(c.election.is_leader for c in two))
    first, second = sorted(two, key=lambda c: not c.election.is_leader)
    assert not second.election.is_leader
    await first.die()  # no farewell
    await until(lambda: second.election.is_leader, LEASE_TTL_S + 5)
    assert not first.election.is_leader
    assert second.election.token > first.election.token


async def test_stepping_down_is_quick(two):
    await until(lambda: any(c.election.is_leader for c in two))
    first, second = sorted(two, key=lambda c: not c.election.is_leader)
    await first.tasks.close()
    await first.election.close()
    await until(lambda: second.election.is_leader, LEASE_TTL_S / 2)


async def test_a_leader_cut_off_stops_believing_before_its_lease_can_end(two, etcd_server):
    await until(lambda: any(c.election.is_leader for c in two))
    etcd_server.pause()
    try:
        await until(lambda: not any(c.election.is_leader for c in two), LEASE_TTL_S)
    finally:
        etcd_server.resume()
    await until(lambda: sum(c.election.is_leader for c in two) == 1, 2 * LEASE_TTL_S)


async def test_etcd_restarted_the_leader_leads_on_or_is_replaced(two, etcd_server):
    await until(lambda: any(c.election.is_leader for c in two))
    etcd_server.restart()
    await until(lambda: sum(c.election.is_leader for c in two) == 1, 2 * LEASE_TTL_S)
