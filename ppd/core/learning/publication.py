"""When what was learned becomes a new version of the table, and what stands in it."""

from math import log

import msgspec

from ppd.core.learning.learner import Learned, Learner
from ppd.core.learning.link import UNKNOWN, LinkCost
from ppd.core.learning.proposal import Proposal, propose
from ppd.core.learning.survival import distrusted
from ppd.core.records import TableSnapshot
from ppd.core.score import slo_classes
from ppd.core.table import Table

EXPLORE = 0.01
MAX_EXPLORE = 0.1
EVERY_S = 10.0  # a table is considered so often at most
REFRESH_S = 120.0  # moved figures without a changed verdict are published so often at most
_SHIFT = log(1.15)  # figures that moved by less are not news
_ENOUGH_WINDOWS = 20.0  # of two seconds each, before a fit over them is believed
_NAMED = 3  # verdicts that the source names


class Improved(msgspec.Struct, frozen=True):
    snapshot: TableSnapshot  # of the next version, but for the time of its making
    flips: list[str]  # "cell class" of each verdict that changed


def explore_share(usual: float, learned: Learned | None) -> float:
    """Twice the usual share for a while after drift, within the bound; 0 stays 0."""
    return min(2 * usual, MAX_EXPLORE) if learned is not None and learned.drifting else usual


def improved(learner: Learner, current: TableSnapshot, explore: float, since_s: float) -> Improved | None:
    """The version to publish in place of `current`, or None while there is no reason for one.

    Reasons: a verdict that changed on evidence; the share of exploration, `explore` by default; a class of
    idle time and KV pressure that became trusted or distrusted; that it became known what a local prefill
    costs others; and, `since_s` after the last publication,
    figures that moved. A frozen table has none.
    """
    if current.frozen:
        return None
    proposal = propose(learner, Table(current), slo_classes(current))
    share = explore_share(explore, learner.learned)
    grid = [[round(p, 3) for p in row] for row in learner.learned.survival.grid()]
    trust_moved = distrusted(grid) != distrusted(current.survival)
    moved = since_s >= REFRESH_S and proposal.shift > _SHIFT
    pause_ms = _pause_ms(learner.learned, current)
    sure = any(each.fit.n >= _ENOUGH_WINDOWS for each in learner.learned.interference.values())
    pause_known = sure and pause_ms >= 0 > current.pause_ms
    link = learner.learned.link.cost()
    if link is UNKNOWN:
        link = LinkCost(current.link_bytes_per_s, current.link_setup_ms)
    if not (proposal.flips or share != current.explore_share or trust_moved or pause_known or moved):
        return None
    return Improved(
        msgspec.structs.replace(
            current,
            version=current.version + 1,
            source=_source(proposal, trust_moved),
            cells=proposal.cells,
            explore_share=share,
            survival=grid,
            pause_ms=pause_ms,
            link_bytes_per_s=_short(link.bytes_per_s),
            link_setup_ms=_short(link.setup_ms),
        ),
        proposal.flips,
    )


def mean_pause_ms(learned: Learned) -> float:
    """By how much a locally prefilled token holds up a stream, over the decode workers; -1 = not known."""
    found = [each.pause_ms for each in learned.interference.values() if each.pause_ms > 0]
    return _short(sum(found) / len(found)) if found else -1.0


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _pause_ms(learned: Learned, current: TableSnapshot) -> float:
    """Where local prefills became too few to tell, what was known stays."""
    found = mean_pause_ms(learned)
    return found if found >= 0 else current.pause_ms


def _source(proposal: Proposal, trust_moved: bool) -> str:
    if not proposal.flips:
        return "online: survival of caches" if trust_moved else "online: figures brought up to date"
    named = ", ".join(proposal.flips[:_NAMED])
    more = f" and {len(proposal.flips) - _NAMED} more" if len(proposal.flips) > _NAMED else ""
    return f"online: {named}{more} changed"
