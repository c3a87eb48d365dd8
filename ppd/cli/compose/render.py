"""The text of a compose file with a node's engines. Equal input gives equal text."""

import json
from dataclasses import dataclass
from enum import Enum

from ppd.cli.compose import templates
from ppd.cli.compose.layout import EngineService, Node


class Kind(Enum):
    """What the engines run on; each has an image of its own."""

    GPU = "GPU"
    CPU = "CPU"
    SIM = "simulated"


_MODEL = {
    Kind.GPU: "${PPD_MODEL:-Qwen/Qwen2.5-7B-Instruct}",
    Kind.CPU: "${PPD_MODEL:-/models/ppd/models/smollm2}",
    Kind.SIM: "${PPD_MODEL:-sim}",
}
_IMAGE = {Kind.GPU: templates.GPU, Kind.CPU: templates.CPU, Kind.SIM: templates.SIM}
_ENVIRONMENT = {Kind.GPU: templates.GPU_ENVIRONMENT, Kind.CPU: templates.CPU_ENVIRONMENT, Kind.SIM: ""}


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What the engines of all nodes have in common."""

    kind: Kind
    placement: str
    model: str  # empty: PPD_MODEL, else the kind's default
    hardware: str  # the profile that simulated engines follow
    servers: str  # the address of the node with etcd and NATS; empty: there is one node
    rdma: bool
    engine_args: tuple[str, ...]


def render(wanted: NodeRequest, node: Node) -> str:
    """The file for one node."""
    with_servers = node.address == wanted.servers
    where = f" Node {node.address}." if node.address else ""
    parts = [
        f"# {wanted.placement} of {wanted.kind.value} engines.{where} Written by `ppd compose`.\n\n",
        _environment(wanted, node) + "\n",
        _worker(wanted, node, with_servers) + "\n",
        templates.HEALTHCHECK + "\n",
        "services:\n",
        templates.CPU_MODEL if wanted.kind is Kind.CPU else "",
        templates.FRONTEND if with_servers and wanted.kind is not Kind.SIM else "",
        templates.SERVERS.format(address=node.address) if with_servers and node.address else "",
        "\n".join(_service(wanted, node, engine) for engine in node.engines),
    ]
    parts.append("\nsecrets:\n")
    for name, variable in _secrets(wanted).items():
        parts.append(f"  {name}:\n    file: ${{{variable}:-./secrets/empty}}\n")
    if wanted.kind is not Kind.SIM:
        parts.append("\n" + templates.MODELS_VOLUME)
    return "".join(parts)


def targets(nodes: tuple[Node, ...]) -> str:
    """The engines of several nodes, for Prometheus: on one node it finds them by name."""
    groups = [
        {"targets": [f"{node.address}:{engine.port}"], "labels": {"worker": engine.name}}
        for node in nodes
        for engine in node.engines
    ]
    return json.dumps(groups, indent=1) + "\n"


def _environment(wanted: NodeRequest, node: Node) -> str:
    servers = wanted.servers
    shared = templates.ENVIRONMENT.format(
        etcd=f"{servers or 'etcd'}:2379",
        nats=f"nats://{servers or 'nats'}:4222",
        traces=f"http://{servers or 'jaeger'}:4317",
    )
    own_address = wanted.kind is not Kind.SIM and not node.address
    return shared + (templates.OWN_ADDRESS if own_address else "") + _ENVIRONMENT[wanted.kind]


def _secrets(wanted: NodeRequest) -> dict[str, str]:
    return templates.SECRETS | (templates.GPU_SECRETS if wanted.kind is Kind.GPU else {})


def _worker(wanted: NodeRequest, node: Node, with_servers: bool) -> str:
    """What the node's engines share. On one node each has an address of its own, on several the node's."""
    after = []
    if with_servers:
        after += ["etcd: {condition: service_healthy}", "nats: {condition: service_healthy}"]
    if wanted.kind is Kind.CPU:
        after.append("models: {condition: service_completed_successfully}")
    return "".join(
        [
            templates.WORKER.format(secrets=f"[{', '.join(_secrets(wanted))}]"),
            _IMAGE[wanted.kind],
            templates.RDMA if wanted.rdma else "",
            "  network_mode: host\n" if node.address else "  networks:\n    default: {aliases: [workers]}\n",
            "  depends_on:\n" if after else "",
            *(f"    {each}\n" for each in after),
        ]
    )


def _device(wanted: NodeRequest, engine: EngineService) -> list[str]:
    if wanted.kind is Kind.SIM:
        return ["--engine", "sim", "--hardware", wanted.hardware]
    if wanted.kind is Kind.CPU:
        return ["--backend", "cpu"]
    device = ["--backend", "cuda", "--devices", ",".join(engine.gpus)]
    return device + (["--tensor-parallel", str(len(engine.gpus))] if len(engine.gpus) > 1 else [])


def _service(wanted: NodeRequest, node: Node, engine: EngineService) -> str:
    words = [
        *("ppd", "worker", "--role", engine.role.value, "--name", engine.name),
        *("--model", wanted.model.replace("$", "$$") or _MODEL[wanted.kind]),
        *_device(wanted, engine),
        *("--host", node.address or "0.0.0.0", "--port", str(engine.port)),
    ]
    if not node.address:
        words += ["--advertise-host", engine.name]
    if wanted.kind is not Kind.SIM:
        words += ["--side-channel-port", str(engine.side_channel_port)]
    if wanted.engine_args:
        words += ["--", *(word.replace("$", "$$") for word in wanted.engine_args)]
    url = f"http://{node.address or '127.0.0.1'}:{engine.port}/health"
    return (
        f"  {engine.name}:\n"
        "    <<: *worker\n"
        f"    command: {json.dumps(words)}\n"
        "    healthcheck:\n"
        "      <<: *healthcheck\n"
        f'      test: ["CMD", "healthy", "{url}"]\n'
    )
