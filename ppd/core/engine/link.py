"""KV on its way from one engine to another: a transfer holds the sender's and the receiver's port."""

from dataclasses import dataclass


@dataclass(slots=True)
class Port:
    """One direction of one engine's connection."""

    free_at_s: float = 0.0
    bytes: int = 0
    busy_s: float = 0.0


@dataclass(slots=True)
class Link:
    """What every transfer of a cluster has in common."""

    bytes_per_s: float
    setup_s: float = 0.0

    def transfer(self, source: Port, destination: Port, n_bytes: int, now_s: float) -> float:
        """When a transfer asked for at `now_s` is complete. Ports serve in the order of asking."""
        duration = n_bytes / self.bytes_per_s
        start = max(now_s + self.setup_s, source.free_at_s, destination.free_at_s)
        for port in (source, destination):
            port.free_at_s = start + duration
            port.bytes += n_bytes
            port.busy_s += duration
        return start + duration
