"""Whether an engine can get at a model: a folder, the hub's cache on this machine, or the hub."""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from ppd.runtime.problem import Problem

TIMEOUT_S = 10.0


class Where(StrEnum):
    FOLDER = "folder"
    CACHE = "cache"
    HUB = "hub"
    UNKNOWN = ""  # vLLM gets it in a way that is not looked at here


class Access(NamedTuple):
    where: Where
    path: str = ""  # of the folder, or of the snapshot in the cache
    weights_bytes: int = 0  # 0: unknown
    problem: Problem | None = None
    transient: bool = False  # whether the problem may pass by itself


def access(model: str, timeout_s: float = TIMEOUT_S, want_size: bool = False) -> Access:
    """Where an engine would take `model` from, and what keeps it from doing so.

    Blocks for at most about `timeout_s`, twice that with `want_size`, which also asks the hub for the
    weights' size.
    """
    folder = Path(model).expanduser()
    if folder.exists():
        return _local(folder)
    if model.startswith(("/", ".", "~")):
        return Access(Where.FOLDER, model, problem=Problem(f"there is no {model}", "give the model's folder"))
    if "://" in model or model.count("/") > 1 or os.environ.get("VLLM_USE_MODELSCOPE"):
        return Access(Where.UNKNOWN)
    return _from_hub(model, timeout_s, want_size)


def _local(folder: Path) -> Access:
    """vLLM also takes a single GGUF file."""
    if folder.is_file():
        return Access(Where.FOLDER, str(folder), folder.stat().st_size)
    if not (folder / "config.json").is_file() and not (folder / "params.json").is_file():
        return Access(
            Where.FOLDER,
            str(folder),
            problem=Problem(
                f"{folder} holds no config.json", "give the folder of a model in safetensors format"
            ),
        )
    return Access(Where.FOLDER, str(folder), _size(folder), _incomplete(folder))


def _incomplete(folder: Path) -> Problem | None:
    """Whether weights that the folder's index names are missing, as after a download that was interrupted."""
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        named = set(index["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    missing = sorted(name for name in named if not (folder / name).is_file())
    if not missing:
        return None
    return Problem(f"{folder} lacks {len(missing)} of {len(named)} files of weights", "download it again")


def _size(folder: Path) -> int:
    """Of safetensors, else of other weights: a repository may hold both."""
    for pattern in ("*.safetensors", "*.bin", "*.gguf", "*.pth"):
        if files := list(folder.glob(pattern)):
            return sum(file.stat().st_size for file in files)
    return 0


def _from_hub(model: str, timeout_s: float, want_size: bool) -> Access:
    import huggingface_hub as hub
    from huggingface_hub.errors import HFValidationError

    try:
        cached = hub.try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return Access(Where.UNKNOWN)
    if isinstance(cached, str):
        snapshot = Path(cached).parent
        if (size := _size(snapshot)) and not _incomplete(snapshot):
            return Access(Where.CACHE, str(snapshot), size)
    problem, transient = _refusal(model, timeout_s)
    size = _download_bytes(model, timeout_s) if want_size and problem is None else 0
    return Access(Where.HUB, weights_bytes=size, problem=problem, transient=transient)


def _refusal(model: str, timeout_s: float) -> tuple[Problem | None, bool]:
    """Why the hub does not give the model to this machine, and whether that may pass."""
    import huggingface_hub as hub
    from huggingface_hub import constants, errors

    has_token = hub.get_token() is not None
    page = f"{constants.ENDPOINT}/{model}"
    set_token = "set HF_TOKEN (containers: HF_TOKEN_FILE)"  # noqa: S105
    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(model, "config.json"), token=has_token, timeout=timeout_s)
    except errors.EntryNotFoundError:
        return None, False  # other formats have no config.json
    except errors.OfflineModeIsEnabled:
        return Problem(
            f"{model} is not in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set",
            "unset it, or give the model's folder",
        ), False
    except errors.GatedRepoError:
        lacks = "this HF_TOKEN may not read it" if has_token else "HF_TOKEN is not set"
        do = f"accept its licence at {page}" + ("" if has_token else f" and {set_token}")
        return Problem(f"{model} is gated, and {lacks}", do), False
    except errors.RepositoryNotFoundError:
        do = (
            "check the name and what the token may read"
            if has_token
            else f"check the name; if private, {set_token}"
        )
        return Problem(f"{constants.ENDPOINT} has no {model}, or it is private", do), False
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            return Problem(
                f"{constants.ENDPOINT} refuses this HF_TOKEN ({status})", "make a new one, or unset it"
            ), False
        return Problem(f"{constants.ENDPOINT} answers with {status}", "try again later"), True
    except Exception as error:  # the library of the connection differs between versions of the client
        cause = str(error).strip().splitlines()[:1] or [type(error).__name__]
        return Problem(
            f"{constants.ENDPOINT} cannot be reached to load {model} ({cause[0]})",
            "allow HTTPS to it, set HTTPS_PROXY, set HF_ENDPOINT to a mirror, or give the folder of a model"
            " that was downloaded elsewhere",
        ), True
    return None, False


def _download_bytes(model: str, timeout_s: float) -> int:
    """The size of the weights on the hub; 0 if it does not tell."""
    import huggingface_hub as hub

    try:
        files = hub.HfApi().model_info(model, files_metadata=True, timeout=timeout_s).siblings or []
    except Exception:
        return 0
    for ending in (".safetensors", ".bin", ".gguf"):
        if sizes := [
            file.size or 0 for file in files if file.rfilename.endswith(ending) and "/" not in file.rfilename
        ]:
            return sum(sizes)
    return 0
