"""What would keep a first engine from starting, found before vLLM loads for a minute and fails.

Only certain obstacles count: what is not understood here is left to vLLM.
"""

import asyncio

from ppd.runtime import cuda, hub
from ppd.runtime.problem import Problem
from ppd.runtime.programs import ProgramError
from workers.settings import WorkerSettings

_TRIES = 3
_BETWEEN_TRIES_S = 2.0
# Flags of vLLM that change which model it loads, or from where.
_OTHER_SOURCE = {
    "--model",
    "--hf-token",
    "--hf-config-path",
    "--load-format",
    "--download-dir",
    "--revision",
    "--config-format",
}


async def obstacle(settings: WorkerSettings) -> Problem | None:
    """Why no engine with these settings can start on this machine; None: nothing that is known."""
    if settings.engine == "sim" or settings.attach:
        return None
    if settings.backend == "cuda" and (found := await _devices(settings)):
        return found
    flags = {arg.partition("=")[0].replace("_", "-") for arg in settings.engine_args}
    return None if flags & _OTHER_SOURCE else await _model(settings.model)


async def _devices(settings: WorkerSettings) -> Problem | None:
    try:
        seen = await cuda.look(settings.devices)
    except ProgramError as error:
        return Problem(f"the NVIDIA driver does not answer: {error}", "see `nvidia-smi` on the node")
    return cuda.problem(seen, settings.tensor_parallel, settings.devices, cuda.torch_cuda())


async def _model(model: str) -> Problem | None:
    for _ in range(_TRIES - 1):
        found = await asyncio.to_thread(hub.access, model)
        if not found.transient:
            return found.problem
        await asyncio.sleep(_BETWEEN_TRIES_S)
    return (await asyncio.to_thread(hub.access, model)).problem
