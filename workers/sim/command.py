"""The command line that starts a simulated engine for a role."""

import sys
from pathlib import Path

from workers.settings import WorkerSettings


def sim_argv(settings: WorkerSettings, worker_id: str, port: int, run_dir: Path) -> list[str]:
    """`workers.sim.server` with the agent's settings; the flags that the user gave come last."""
    flags: dict[str, object] = {
        "--model": settings.served_name,
        "--role": settings.role,
        "--host": settings.host,
        "--advertise-host": settings.advertise_host,
        "--port": port,
        "--hold-s": settings.hold_s,
        "--run-dir": run_dir,
        "--worker-id": worker_id,
    }
    if settings.sample_ratio is not None:
        flags["--sample-ratio"] = settings.sample_ratio
    if settings.hardware:
        flags["--hardware"] = settings.hardware
    if settings.max_model_len:
        flags["--max-model-len"] = settings.max_model_len
    if settings.block_size:
        flags["--block-size"] = settings.block_size
    argv = [sys.executable, "-m", "workers.sim.server"]
    for flag, value in flags.items():
        argv += [flag, str(value)]
    argv.append("--pullback" if settings.pullback else "--no-pullback")
    return argv + settings.engine_args
