"""KV on its way from one engine to another: it passes the sender's port, then the receiver's."""

from dataclasses import dataclass


@dataclass(slots=True)
class Port:
    """One direction of one engine's connection."""

    free_at_s: float = 0.0
    bytes: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """What every transfer of a cluster has in common."""

    bytes_per_s: float
    setup_s: float = 0.0  # latency of each transfer; others may go on meanwhile
    sender_s: float = 0.0  # each transfer holds the sender's port this long, whatever its size
    receiver_s: float = 0.0  # and the receiver's

    @property
    def fixed_s(self) -> float:
        """What a transfer takes beside the moving of its bytes, when nobody is in its way."""
        return self.setup_s + self.sender_s + self.receiver_s

    def transfer(self, source: Port, destination: Port, n_bytes: int, now_s: float) -> float:
        """When a transfer asked for at `now_s` is complete. Ports serve in the order of asking."""
        moving_s = n_bytes / self.bytes_per_s
        sent_s = _pass(source, now_s + self.setup_s, self.sender_s + moving_s, n_bytes)
        # The bytes come in while they leave: a free receiver adds only its own part.
        return _pass(destination, sent_s - moving_s, self.receiver_s + moving_s, n_bytes)


def _pass(port: Port, ready_s: float, takes_s: float, n_bytes: int) -> float:
    port.free_at_s = max(ready_s, port.free_at_s) + takes_s
    port.bytes += n_bytes
    port.busy_s += takes_s
    return port.free_at_s
