"""Settings of one worker: the agent and the engine beside it."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import CliSuppress

from ppd.core.hardware import load_profile
from ppd.runtime.engine_key import VLLM_VARIABLE, EngineKey
from ppd.runtime.settings import TracedSettings, secret

OWN_OUTPUT = Path("-")


class WorkerSettings(TracedSettings):
    """Flags after a bare `--` go to vLLM untouched and win over what the agent chose."""

    role: Literal["prefill", "decode", "replica"] = Field(description="prefill, decode or replica")
    engine: Literal["vllm", "sim"] = Field("vllm", description="vllm, or sim for a simulated engine")
    model: str = Field(description="what the engine loads: a folder or a name on a model hub")
    served_name: str = Field(
        "", description="the name that clients ask for; empty: the model's, of a folder its last part"
    )
    name: str = Field(
        "", pattern=r"^[A-Za-z0-9_-]{0,63}$", description="stable over restarts; empty: the role"
    )
    host: str = Field("127.0.0.1", description="where the engine listens, and others reach it")
    advertise_host: str = Field("", description="the host that others reach it by, where it differs")
    port: int = Field(0, ge=0, le=65535, description="of the engine's API; 0: a free one")
    side_channel_host: str = Field("", description="of NIXL's handshake; empty: as others reach the engine")
    side_channel_port: int = Field(0, ge=0, le=65535, description="of NIXL's handshake; 0: a free one")
    backend: Literal["cpu", "cuda"] = Field("cpu", description="what the engine runs on")
    cores: str = Field("", description="CPU cores to pin the engine to, such as 0 or 0,2-3; empty: all")
    devices: str = Field("", description="CUDA devices, such as 0 or 0,1; empty: all that are visible")
    tensor_parallel: int = Field(1, ge=1, description="devices that share one model")
    dtype: str = Field("bfloat16", description="of weights and KV")
    block_size: int = Field(0, ge=0, description="tokens in a KV block; 0: 32 on the CPU, else vLLM's choice")
    max_model_len: int = Field(0, ge=0, description="longest context in tokens; 0: the model's")
    kv_cache_gib: float = Field(1, gt=0, description="KV cache of a CPU engine, in GiB")
    pullback: bool = Field(True, description="let prefill engines pull KV back from decode engines")
    hold_s: int = Field(120, ge=1, description="how long a decode engine holds KV for a pull-back")
    pullback_min_tokens: int = Field(
        64, ge=0, description="a prefill engine that lacks fewer tokens computes them rather than pull them"
    )
    kv_poll_ms: int = Field(
        -1,
        ge=-1,
        le=1000,
        description="how long NIXL's progress thread sleeps when nothing wakes it; 0: never, a core spins for"
        " it; -1: 10 on the CPU, 0 on CUDA",
    )
    attach: str = Field("", description="URL of an engine that runs already; see workers/README.md")
    run_dir: Path | None = Field(
        None, description="where agent and connector meet (facts, reports); empty: a temporary folder"
    )
    engine_log: Path | None = Field(
        None, description="the engine's log; empty: in the run folder; -: the agent's own output"
    )
    plain_connector_on_mismatch: bool = Field(
        False, description="with a vLLM that the connector does not know, serve without KV spans"
    )
    start_s: float = Field(900, gt=0, description="how long an engine may take to start")
    probe_every_s: float = Field(5, gt=0, description="an engine that made no step for this long is probed")
    hang_s: float = Field(60, gt=0, description="an engine that answers no probe for this long is restarted")
    drain_s: float = Field(60, ge=0, description="how long streams and KV reads may take to end on SIGTERM")
    hardware: str = Field("", description="the hardware profile, such as h100-llama-3.1-8b")
    sample_ratio: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="share of KV transfers without a turn to trace; empty: as OTEL_TRACES_SAMPLER says,"
        " else all",
    )
    engine_key: EngineKey = secret("bearer token that the engine asks for; empty: none, or VLLM_API_KEY's")
    engine_args: CliSuppress[list[str]] = Field([], description="what follows `--`")

    @field_validator("attach")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("write http://host:port")
        return value.rstrip("/")

    @field_validator("cores")
    @classmethod
    def _are_cores(cls, value: str) -> str:
        if value:
            parse_cores(value)
        return value

    @model_validator(mode="after")
    def _fill(self) -> "WorkerSettings":
        if self.attach and self.role != "replica" and self.run_dir is None:
            raise ValueError("--attach needs the --run-dir that the engine's connector was given")
        if self.engine == "sim" and self.hardware:
            load_profile(self.hardware)  # its error is a ValueError that names what there is
        self.engine_key = self.engine_key or os.environ.get(VLLM_VARIABLE, "")
        self.served_name = self.served_name or _name(self.model)
        self.name = self.name or self.role
        self.advertise_host = self.advertise_host or self.host
        if self.kv_poll_ms < 0:
            self.kv_poll_ms = 10 if self.backend == "cpu" else 0
        self.side_channel_host = self.side_channel_host or self.advertise_host
        return self


def _name(model: str) -> str:
    """A hub's name as it is, as vLLM has it; of a folder its last part."""
    is_folder = model.startswith(("/", ".", "~")) or Path(model).is_dir()
    return model.rstrip("/").rpartition("/")[2] if is_folder else model


def parse_cores(text: str) -> set[int]:
    """`0,2-3` as {0, 2, 3}. Raises ValueError for anything else."""
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ValueError(f"{text!r} names no cores: write 0 or 0,2-3")
        cores.update(range(int(first), int(last or first) + 1))
    if not cores:
        raise ValueError(f"{text!r} names no core")
    return cores
