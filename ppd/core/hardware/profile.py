"""A hardware profile: its file, its checks, and the time of one step."""

from collections.abc import Iterable
from functools import lru_cache
from importlib import resources

import msgspec

from ppd.core.hardware.interpolate import Line, Surface


class HardwareError(ValueError):
    """There is no such profile, or its file cannot be used; the message says which and why."""


class LineTable(msgspec.Struct, frozen=True):
    ms: list[float]
    tokens: list[float] = []
    context: list[float] = []


class GridTable(msgspec.Struct, frozen=True):
    new: list[float]
    cached: list[float]
    ms: list[list[float]]  # [new][cached]


class ProfileFile(msgspec.Struct, frozen=True):
    """The JSON file."""

    name: str
    gpu: str
    model: str  # the name that clients ask for
    source: str
    kv_bytes_per_token: int
    kv_capacity_tokens: int
    block_size_tokens: int
    max_batch_tokens: int
    max_seqs: int
    max_model_len_tokens: int
    link_bytes_per_s: float
    linear: LineTable  # all but attention, by tokens in the step
    prefill_attention: GridTable
    decode_attention: LineTable  # by the context of all decoding sequences together
    fit_error: dict[str, float] = {}


class HardwareProfile:
    """What one step costs. Pure and cheap to ask: two table reads for a step of decodes."""

    def __init__(self, file: ProfileFile) -> None:
        """Raises HardwareError if a table cannot be used."""
        self.file = file
        try:
            self.linear_ms = Line(file.linear.tokens, file.linear.ms)
            self.decode_attention_ms = Line(file.decode_attention.context, file.decode_attention.ms)
            grid = file.prefill_attention
            self.prefill_attention_ms = Surface(grid.new, grid.cached, grid.ms)
        except ValueError as error:
            raise HardwareError(f"profile {file.name}: {error}") from error

    @property
    def name(self) -> str:
        return self.file.name

    def step_ms(self, chunks: Iterable[tuple[int, int]], batch: int, context: int) -> float:
        """One forward pass: `chunks` of (new, cached) prefill tokens beside `batch` decoding sequences.

        `context` is the number of tokens that those sequences attend to, all together. The linear layers
        see every token once, whoever it belongs to; attention is paid for each kind apart.
        """
        tokens = batch
        ms = self.decode_attention_ms(context) if batch else 0.0
        for new, cached in chunks:
            tokens += new
            ms += self.prefill_attention_ms(new, cached)
        return ms + self.linear_ms(tokens) if tokens else 0.0


def parse_profile(data: bytes) -> HardwareProfile:
    """Raises HardwareError if `data` is no profile."""
    try:
        return HardwareProfile(msgspec.json.decode(data, type=ProfileFile))
    except msgspec.DecodeError as error:
        raise HardwareError(f"not a hardware profile: {error}") from error


def names() -> list[str]:
    """The profiles that ship with this package."""
    files = resources.files(__package__ or "ppd.core.hardware").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


@lru_cache(maxsize=64)
def load_profile(name: str) -> HardwareProfile:
    """The profile of that name. Raises HardwareError, naming those that exist."""
    if name not in names():
        raise HardwareError(f"there is no hardware profile {name!r}: there are {', '.join(names())}")
    return parse_profile(
        resources.files(__package__ or "ppd.core.hardware").joinpath(f"{name}.json").read_bytes()
    )
