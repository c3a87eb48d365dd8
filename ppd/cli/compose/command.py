"""`ppd compose`: writes the compose file of a placement's engines."""

import sys
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field

from ppd.cli.compose.layout import LayoutError, lay_out
from ppd.cli.compose.render import Kind, NodeRequest, render, targets
from ppd.core.hardware import HardwareError, load_profile
from ppd.core.placement import PlacementError, parse_placement
from ppd.runtime.settings import CommaList, CommandSettings, load


class ComposeSettings(CommandSettings):
    """Write the compose file of a placement's engines, to be used with those in deploy/compose.

    Flags after a bare `--` go to every engine untouched.
    """

    placement: str = Field("1P3D", description="engines: n prefill, m decode, k replica, such as 1P3D or 4R")
    gpus: CommaList = Field(
        [], description="CUDA devices of each node, shared evenly by its engines, such as 0,1,2,3; none: CPU"
    )
    model: str = Field("", description="what the engines load; empty: PPD_MODEL, else a default")
    engine: Literal["vllm", "sim"] = Field("vllm", description="vllm, or sim for simulated engines")
    hardware: str = Field("h100-llama-3.1-8b", description="the profile that simulated engines follow")
    nodes: CommaList = Field(
        [], description="addresses of several nodes that share etcd and NATS on the first; none: one node"
    )
    rdma: bool = Field(False, description="give the engines the node's /dev/infiniband, for KV over RDMA")
    output: str = Field(
        "-",
        validation_alias=AliasChoices("output", "o"),
        description="the file to write; with --nodes one per node, the node's number put before the ending",
    )


def _kind(settings: ComposeSettings) -> Kind:
    if settings.engine == "sim":
        return Kind.SIM
    return Kind.GPU if settings.gpus else Kind.CPU


def main(argv: list[str]) -> int:
    cut = argv.index("--") if "--" in argv else len(argv)
    settings = load(ComposeSettings, argv[:cut], "ppd compose")
    try:
        placement = parse_placement(settings.placement)
        nodes = lay_out(placement, tuple(settings.gpus), tuple(settings.nodes))
        if settings.engine == "sim":
            load_profile(settings.hardware)
    except (PlacementError, LayoutError, HardwareError) as error:
        print(f"ppd compose: {error}", file=sys.stderr)
        return 2
    if len(nodes) > 1 and settings.output == "-":
        print("ppd compose: several nodes are several files: name them with --output", file=sys.stderr)
        return 2
    wanted = NodeRequest(
        kind=_kind(settings),
        placement=str(placement),
        model=settings.model,
        hardware=settings.hardware,
        servers=nodes[0].address,
        rdma=settings.rdma,
        engine_args=tuple(argv[cut + 1 :]),
    )
    files = {_name(settings.output, i, len(nodes)): render(wanted, node) for i, node in enumerate(nodes)}
    if len(nodes) > 1:
        files[str(Path(settings.output).with_suffix(".targets.json"))] = targets(nodes)
    for name, text in files.items():
        if settings.output == "-":
            print(text, end="")
            continue
        try:
            Path(name).write_text(text)
        except OSError as error:
            print(f"ppd compose: {name}: {error.strerror}", file=sys.stderr)
            return 1
        print(f"wrote {name}")
    return 0


def _name(output: str, index: int, nodes: int) -> str:
    path = Path(output)
    return output if nodes == 1 else str(path.with_name(f"{path.stem}.{index}{path.suffix}"))
