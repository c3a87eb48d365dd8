"""Which engine runs where: nodes, GPUs and ports of a placement."""

from dataclasses import dataclass

from ppd.core.names import Role
from ppd.core.placement import Placement

ENGINE_PORT = 8100
SIDE_CHANNEL_PORT = 5600


class LayoutError(ValueError):
    """The placement does not fit the nodes and GPUs; the message says why."""


@dataclass(frozen=True, slots=True)
class EngineService:
    name: str  # `p0`, `d1`, `r0` …; unique in the cluster, and the name of its service
    role: Role
    gpus: tuple[str, ...]  # as the node counts them; empty: none is used
    port: int
    side_channel_port: int


@dataclass(frozen=True, slots=True)
class Node:
    address: str  # that others reach it by; empty: the one node of a cluster with a network of its own
    engines: tuple[EngineService, ...]


def lay_out(placement: Placement, gpus: tuple[str, ...], addresses: tuple[str, ...]) -> tuple[Node, ...]:
    """Deal the engines to the nodes in turn, so that each node gets both roles where that can be.

    `gpus` are those of every node, shared evenly by its engines; none: the engines use no GPU. Without
    `addresses` there is one node, whose engines each have an address of their own. Raises LayoutError.
    """
    for what, values in (("GPU", gpus), ("node", addresses)):
        if len(set(values)) != len(values):
            raise LayoutError(f"a {what} is named twice: {','.join(values)}")
    nodes = addresses or ("",)
    if placement.size % len(nodes):
        raise LayoutError(f"{placement.size} engines cannot be shared evenly by {len(nodes)} nodes")
    on_node = placement.size // len(nodes)
    if gpus and len(gpus) % on_node:
        raise LayoutError(f"{len(gpus)} GPUs cannot be shared evenly by the {on_node} engines of a node")
    roles = placement.roles()
    named = [(f"{role.letter.lower()}{roles[:i].count(role)}", role) for i, role in enumerate(roles)]
    return tuple(
        Node(address, _engines(named[i :: len(nodes)], gpus, own_address=not address))
        for i, address in enumerate(nodes)
    )


def _engines(
    named: list[tuple[str, Role]], gpus: tuple[str, ...], own_address: bool
) -> tuple[EngineService, ...]:
    each = len(gpus) // len(named)
    return tuple(
        EngineService(
            name, role, gpus[i * each : (i + 1) * each], ENGINE_PORT + port, SIDE_CHANNEL_PORT + port
        )
        for i, (name, role) in enumerate(named)
        for port in (0 if own_address else i,)
    )
