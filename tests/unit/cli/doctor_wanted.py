"""What the tests of `ppd doctor` examine a machine for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ppd.cli.doctor.wanted import Requirements
from ppd.cli.model.catalog import Model
from ppd.core.placement import parse_placement

_CPU = Requirements(
    engine="vllm",
    backend="cpu",
    placement=parse_placement("1P1D"),
    gpus=(),
    model=Model("model", "org/model"),
    host="127.0.0.1",
    ports=(8000,),
    etcd=(),
    nats=(),
    image="",
    home=Path("/nonexistent/.ppd"),
)


def wanted(placement: str = "1P1D", gpus: str = "", **more: Any) -> Requirements:
    """For engines on the CPU, on GPUs where some are named."""
    devices = tuple(gpus.split(",")) if gpus else ()
    backend = more.pop("backend", "cuda" if gpus else "cpu")
    return replace(_CPU, placement=parse_placement(placement), gpus=devices, backend=backend, **more)
