"""What pairs of workers moved of late is what the decision sees of their link."""

import pytest

from controlplane.engines.links import Links
from ppd.core.learning.link import MAX_PAIRS, UNKNOWN
from ppd.core.records import KvMoved
from tests.unit.controlplane.conftest import P_2D, running

pytestmark = pytest.mark.unit


def _moved(source: str = "p0-1", puller: str = "d0-1", **fields: object) -> KvMoved:
    given = {"bytes": 50_000_000, "transfer_s": 0.05, "direction": "p-d"} | fields
    return KvMoved(request_id="r", worker_id=puller, source_worker_id=source, **given)  # type: ignore[arg-type]


def test_each_pair_has_its_own() -> None:
    links = Links()
    for _ in range(10):
        links.report(_moved(), 1)
        links.report(_moved(puller="d1-1", transfer_s=0.5), 1)
        links.report(_moved(puller="d2-1"), 4)
        links.report(_moved(puller="d3-1", error="no route"), 1)
    assert links.cost("p0-1", "d0-1").bytes_per_s == pytest.approx(1e9, rel=0.02)
    assert links.cost("p0-1", "d1-1").bytes_per_s == pytest.approx(1e8, rel=0.02)
    assert links.cost("p0-1", "d2-1").bytes_per_s == pytest.approx(4e9, rel=0.02), "four ranks at once"
    assert links.cost("p0-1", "d3-1") is UNKNOWN
    assert links.cost("p1-1", "d0-1") is UNKNOWN


def test_pairs_are_bounded_and_the_silent_ones_go() -> None:
    links = Links()
    for n in range(MAX_PAIRS + 10):
        links.report(_moved(puller=f"d{n}"), 1)
        links.report(_moved(puller="d0"), 1)
    assert len(links) == MAX_PAIRS
    assert links.cost("p0-1", "d0") is not UNKNOWN


async def test_the_decision_is_shown_the_link_that_reports_tell_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(P_2D) as stack:
        router = stack.frontend.router
        seen: list[float] = []
        decide = router.policy.decide

        def spy(turn, view, table, weights):  # type: ignore[no-untyped-def]
            seen.append(view.link_bytes_per_s)
            return decide(turn, view, table, weights)

        monkeypatch.setattr(router.policy, "decide", spy)
        await stack.ask("one")
        for decode in ("d0-1", "d1-1"):
            for _ in range(10):
                stack.frontend.transfers.on_moved(_moved(puller=decode))
                stack.frontend.transfers.on_moved(_moved(puller=decode, direction="d-p", transfer_s=9.0))
        await stack.ask("two")
    assert seen[0] == 0
    assert seen[1] == pytest.approx(1e9, rel=0.02)
