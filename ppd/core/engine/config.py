"""What an engine's speed and memory depend on beside its hardware."""

import msgspec

from ppd.core.hardware import HardwareProfile


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the scheduler, and the few constants that no kernel table knows."""

    kv_capacity_tokens: int
    block_size_tokens: int = 16
    max_batch_tokens: int = 8192  # of one step, prefill and decode together
    max_seqs: int = 1024
    lease_s: float = 30.0  # how long blocks wait for the engine that will read them
    # Beside the kernels:
    prefill_scale: float = 1.0  # what prefill adds to a step, by the kernels' figure
    step_overhead_s: float = 0.0  # scheduling and launching one step
    seq_overhead_s: float = 0.0  # sampling and detokenizing, per sequence in a step
    prefill_overhead_s: float = 0.0  # a step with prefill in it leaves the full CUDA graph
    graph_tokens: int = 0  # a step of more tokens leaves CUDA graphs altogether (0 = none does)
    eager_s: float = 0.0  # what launching its kernels one by one adds to such a step
    eager_send_s: float = 0.0  # and what it takes at least where sending KV and launching take turns
    send_s: float = 0.0  # delay of the last step of a prefill whose KV another engine will read
    send_more_s: float = 0.0  # and longer, for each that the same step sends besides
    receive_s: float = 0.0  # KV that came from elsewhere holds the step up that first uses it

    def __post_init__(self) -> None:
        if not 1 <= self.max_seqs <= self.max_batch_tokens:
            raise ValueError("a step must have room for one token of each of max_seqs sequences")

    @classmethod
    def for_profile(cls, profile: HardwareProfile, **changes: float | bool) -> "EngineConfig":
        """The profile's own limits, with `changes`."""
        file = profile.file
        limits: dict[str, float | bool] = {
            "kv_capacity_tokens": file.kv_capacity_tokens,
            "block_size_tokens": file.block_size_tokens,
            "max_batch_tokens": file.max_batch_tokens,
            "max_seqs": min(file.max_seqs, int(changes.get("max_batch_tokens", file.max_batch_tokens))),
        }
        return msgspec.convert(limits | changes, cls)
