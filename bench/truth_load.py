"""The same multi-turn load on running engines and on the simulated cluster; every turn's times from both."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from bench.truth_engines import EngineAnswer, Engines
from bench.truth_profile import Measured, draw
from ppd.core.engine import EngineConfig, Link
from ppd.core.names import Role, Route
from simulator.cluster import Assignment, ClusterSpec, Job, SimCluster, WorkerSpec
from simulator.conversation import Conversation
from simulator.fixed import FixedPaths
from simulator.workloads import Length, WorkloadShape, generate

CHAT = WorkloadShape(
    Length(250, 0.5, high=900), Length(90, 0.6, high=300), Length(36, 0.5, low=8, high=96), 5.0, 3, 8, 1.5
)
_ACTIVE = 1.3  # conversations in service at once, on average


class LoadTurn(msgspec.Struct, frozen=True):
    """One turn of one conversation, in seconds."""

    conversation: int
    index: int
    path: Route
    ttft_s: float
    tpot_s: float
    e2e_s: float


def path_of(conversation: int, index: int) -> Route:
    """Half of the later turns stay on D, the same ones in both runs."""
    return Route.P_D if index == 0 or (conversation + index) % 2 else Route.D_LOCAL


# --- real -----------------------------------------------------------------------------------------


async def drive(
    engines: Engines, chats: Sequence[Conversation], told: Callable[[int], None]
) -> tuple[list[LoadTurn], bool]:
    """Every turn, and whether the engines told their tokens: else an answer is in no later turn's cache."""
    began_s = time.monotonic()
    found: list[LoadTurn] = []
    honest = True

    async def hold(chat: Conversation) -> None:
        nonlocal honest
        rng = random.Random(f"truth {chat.id}")
        history: list[int] = []
        await asyncio.sleep(max(0.0, began_s + chat.start_s - time.monotonic()))
        for index, turn in enumerate(chat.turns):
            await asyncio.sleep(turn.think_s)
            history += draw(rng, turn.n_in)
            path = path_of(chat.id, index)
            if path is Route.P_D:
                answer = await engines.handed_off(history, turn.n_out)
            else:
                answer = await engines.stream(engines.decode, history, turn.n_out)
            found.append(_turn(chat.id, index, path, answer, turn.n_out))
            told(len(found))
            honest &= len(answer.tokens) == turn.n_out
            history += answer.tokens if len(answer.tokens) == turn.n_out else draw(rng, turn.n_out)

    await asyncio.gather(*map(hold, chats))
    return found, honest


def _turn(conversation: int, index: int, path: Route, answer: EngineAnswer, n_out: int) -> LoadTurn:
    tpot_s = (answer.end_s - answer.first_s) / (n_out - 1)
    return LoadTurn(conversation, index, path, answer.ttft_s, tpot_s, answer.end_s - answer.sent_s)


# --- simulated ------------------------------------------------------------------------------------


class _SameRouter(FixedPaths):
    """The paths of `path_of`."""

    def route(self, job: Job, cluster: SimCluster) -> Assignment:
        prefill, decode = cluster.workers
        path = path_of(job.conversation.id, job.index)
        return Assignment(path, decode, prefill if path is Route.P_D else None)


def cluster_of(measured: Measured) -> ClusterSpec:
    workers = (
        WorkerSpec("p", Role.PREFILL, measured.prefill, EngineConfig.for_profile(measured.prefill)),
        WorkerSpec("d", Role.DECODE, measured.decode, EngineConfig.for_profile(measured.decode)),
    )
    return ClusterSpec(
        workers=workers,
        link=Link(measured.bytes_per_s, setup_s=measured.setup_s),
        request_s=measured.request_s,
        handoff_s=measured.request_s,  # the second leg is a request too
    )


def simulate(measured: Measured, chats: Sequence[Conversation], honest: bool) -> list[LoadTurn]:
    chats = [replace(c, retokenized=not honest) for c in chats]
    jobs = SimCluster(cluster_of(measured), _SameRouter()).run(chats)
    return [
        LoadTurn(j.conversation.id, j.index, j.route.path, j.ttft_s, j.tpot_s, j.e2e_s)
        for j in jobs
        if j.route is not None and not j.failed
    ]


def load(measured: Measured, duration_s: float, per_s: float = 0.0, seed: int = 0) -> list[Conversation]:
    """Chats whose rate suits these engines, unless it is given."""
    return generate(CHAT, per_s or _suitable_per_s(measured), duration_s, seed)


def _suitable_per_s(measured: Measured) -> float:
    """So many that `_ACTIVE` are in service at once, if they did not slow each other."""
    alone = generate(CHAT, 0.01, 2000.0, 1)
    jobs = SimCluster(cluster_of(measured), _SameRouter()).run(alone)
    return _ACTIVE * len(alone) / sum(j.e2e_s for j in jobs)
