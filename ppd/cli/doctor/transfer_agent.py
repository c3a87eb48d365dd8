"""One of the two sides of a KV transfer: a NIXL agent with memory of its own, as an engine has.

Started by `ppd.cli.doctor.transfer` with one JSON argument. It prints a line with what others need to read
from it, and reads a line with the sources to read from. Then it prints what it measured, and waits.
"""

import base64
import ctypes
import json
import mmap
import os
import sys
import time
from typing import Any

BLOCK_BYTES = 65_536  # of one layer's K and V in vLLM: 16 tokens of Llama-3.1-8B
_ROUNDS = 4
_ROUND_S = 60.0
_PRIME = 251


class HostMemory:
    """What an engine on the CPU hands out: DRAM."""

    kind = "DRAM"

    def __init__(self, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, size_bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._size = size_bytes

    def fill(self) -> None:
        self._map[:] = self._pattern()

    def is_filled(self) -> bool:
        return self._map[:] == self._pattern()

    def _pattern(self) -> bytes:
        return (bytes(range(_PRIME)) * (self._size // _PRIME + 1))[: self._size]

    def clear(self) -> None:
        self._map[:] = bytes(self._size)


class DeviceMemory:
    """What an engine on a GPU hands out: VRAM of the first device that this process sees."""

    kind = "VRAM"

    def __init__(self, size_bytes: int) -> None:
        import torch

        self._torch = torch
        self._memory = torch.zeros(size_bytes, dtype=torch.uint8, device="cuda:0")
        self.address = self._memory.data_ptr()
        torch.cuda.synchronize()

    def fill(self) -> None:
        self._memory.copy_(self._pattern())
        self._torch.cuda.synchronize()

    def is_filled(self) -> bool:
        self._torch.cuda.synchronize()
        return bool(self._torch.equal(self._memory, self._pattern()))

    def _pattern(self) -> Any:
        count = self._memory.numel()
        numbers = self._torch.arange(count, dtype=self._torch.int32, device="cuda:0")
        return (numbers % _PRIME).to(self._torch.uint8)

    def clear(self) -> None:
        self._memory.zero_()
        self._torch.cuda.synchronize()


def _blocks(address: int, size_bytes: int) -> list[tuple[int, int, int]]:
    return [(address + at, min(BLOCK_BYTES, size_bytes - at), 0) for at in range(0, size_bytes, BLOCK_BYTES)]


def _read(agent: Any, memory: Any, size_bytes: int, source: dict[str, Any]) -> dict[str, Any]:
    """Read a source's memory several times; the first round also connects, and does not count."""
    peer = agent.add_remote_agent(base64.b64decode(source["metadata"]))
    mine = agent.get_xfer_descs(_blocks(memory.address, size_bytes), mem_type=memory.kind)
    theirs = agent.get_xfer_descs(_blocks(source["address"], size_bytes), mem_type=memory.kind)
    seconds = []
    for _ in range(_ROUNDS):
        memory.clear()
        handle = agent.initialize_xfer("READ", mine, theirs, peer)
        began_s = time.perf_counter()
        state = agent.transfer(handle)
        while state == "PROC" and time.perf_counter() - began_s < _ROUND_S:
            state = agent.check_xfer_state(handle)
        seconds.append(time.perf_counter() - began_s)
        if state != "DONE":
            return {"error": f"the read ended as {state} after {seconds[-1]:.1f} s"}
        agent.release_xfer_handle(handle)
        if not memory.is_filled():
            return {"error": "what arrived is not what was sent"}
    return {"first_s": seconds[0], "gb_per_s": size_bytes / min(seconds[1:]) / 1e9}


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # NIXL and UCX print there
    asked = json.loads(sys.argv[1])
    size_bytes: int = asked["size_bytes"]
    from nixl._api import nixl_agent, nixl_agent_config

    memory = DeviceMemory(size_bytes) if asked["cuda"] else HostMemory(size_bytes)
    memory.fill()
    agent = nixl_agent(asked["name"], nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(memory.address, size_bytes, 0, "")], mem_type=memory.kind)
    metadata = base64.b64encode(agent.get_agent_metadata()).decode()
    print(json.dumps({"metadata": metadata, "address": memory.address}), file=out)
    if line := sys.stdin.readline().strip():
        results = {
            name: _read(agent, memory, size_bytes, source) for name, source in json.loads(line).items()
        }
        ctypes.CDLL(None).fflush(None)  # UCX's log, which holds the transports
        print(json.dumps(results), file=out)
        sys.stdin.readline()
    out.flush()
    os._exit(0)  # the peer may be gone: no disconnecting


if __name__ == "__main__":
    main()
