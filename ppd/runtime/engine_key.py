"""PPD_ENGINE_KEY, the bearer token that engines ask for: agents start engines with it, and agents and
frontends send it.

It is in environments alone: command lines are in every process list.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import AfterValidator
from pydantic_settings import CliSuppress

VARIABLE = "PPD_ENGINE_KEY"
VLLM_VARIABLE = "VLLM_API_KEY"  # by which vLLM takes the key
_VLLM_FLAG = "--api-key"
_TOKEN = re.compile(r"[\x21-\x7e]*")


def _is_token(value: str) -> str:
    if not _TOKEN.fullmatch(value):
        raise ValueError("write printable ASCII without spaces")
    return value


EngineKey = CliSuppress[Annotated[str, AfterValidator(_is_token)]]


def headers(key: str) -> dict[str, str]:
    """What a request to an engine needs."""
    return {"authorization": f"Bearer {key}"} if key else {}


def engine_environment(key: str, env: Mapping[str, str]) -> dict[str, str]:
    """An engine's environment, from its agent's: the engine gets this key, and none of ours."""
    kept = {name: value for name, value in env.items() if name not in (VARIABLE, "PPD_ADMIN_KEY")}
    return kept | {VLLM_VARIABLE: key} if key else kept


def refusal(engine_args: Iterable[str]) -> str:
    """Why an engine is not started with these arguments; empty where none of them is a key."""
    if any(arg.partition("=")[0].replace("_", "-") == _VLLM_FLAG for arg in engine_args):
        return f"{_VLLM_FLAG} would be in every process list: set {VARIABLE} in the environment instead"
    return ""
