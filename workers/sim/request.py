"""A request to the simulated engine, checked as vLLM checks it."""

from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from workers.sim import text

MAX_CHOICES = 64


class BadRequestError(Exception):
    """The client's mistake: OpenAI's error shape with this status."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class Body(msgspec.Struct):
    """The fields that are read; all others are ignored."""

    model: str = ""
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: msgspec.Raw = msgspec.Raw(b"")
    logprobs: bool | int | None = None
    request_id: str = ""
    store: bool = False  # of a response


@dataclass(slots=True)
class SimAnswer:
    """One choice: all of its tokens are known before the engine has made any."""

    index: int
    prompt: str
    tokens: list[str] = field(default_factory=list)
    finish: str = "length"


@dataclass(slots=True)
class ParsedRequest:
    body: Body
    chat: bool
    prompts: list[str]
    answers: list[SimAnswer]
    include_usage: bool


T = TypeVar("T", bound=msgspec.Struct)


def parse_as(data: bytes, kind: type[T]) -> T:
    """Raises BadRequestError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(str(error)) from error


def prompts_of(body: Body, chat: bool) -> list[str]:
    if chat:
        if not body.messages:
            raise BadRequestError("messages must be a list of one message or more")
        if body.continue_final_message and body.add_generation_prompt:
            raise BadRequestError("continue_final_message and add_generation_prompt exclude each other")
        return [text.render(body.messages, bytes(body.tools).decode(), not body.continue_final_message)]
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(p, int) for p in prompt):
            return [text.from_ids(prompt)]
        if all(isinstance(p, str) for p in prompt):
            return list(prompt)
        if all(isinstance(p, list) and p and all(isinstance(i, int) for i in p) for p in prompt):
            return [text.from_ids(p) for p in prompt]
    raise BadRequestError("prompt must be text, a list of texts, token ids, or lists of token ids")


def ask(body: Body, chat: bool, max_model_len: int, mean_tokens: float) -> ParsedRequest:
    """Raises BadRequestError where vLLM would refuse."""
    prompts = prompts_of(body, chat)
    n = 1 if body.n is None else body.n
    if not 1 <= n * len(prompts) <= MAX_CHOICES:
        raise BadRequestError(f"n must be at least 1, and at most {MAX_CHOICES} choices are made")
    if body.stream_options is not None and not body.stream:
        raise BadRequestError("Stream options can only be defined when `stream=True`.")
    limit = body.max_completion_tokens or body.max_tokens
    if limit is None:
        limit = max_model_len if chat else 16
    if limit < 1 or body.min_tokens > limit:
        raise BadRequestError(f"max_tokens is {limit} and min_tokens {body.min_tokens}: that leaves nothing")
    answers: list[SimAnswer] = []
    for prompt in prompts:
        room = max_model_len - text.count(prompt)
        if room < 1:
            raise BadRequestError(
                f"This model's maximum context length is {max_model_len} tokens. However, your request has "
                f"{text.count(prompt)} input tokens. Please reduce the length of the input messages."
            )
        mean = 0.0 if body.ignore_eos else mean_tokens
        for choice in range(n):
            answers.append(_answer(len(answers), prompt, min(limit, room), mean, choice, _stops(body.stop)))
    usage = bool((body.stream_options or {}).get("include_usage"))
    return ParsedRequest(body, chat, prompts, answers, usage)


def _stops(stop: str | list[str] | None) -> list[str]:
    return [s for s in ([stop] if isinstance(stop, str) else stop or []) if s]


def _answer(index: int, prompt: str, limit: int, mean: float, choice: int, stops: list[str]) -> SimAnswer:
    tokens, ended = text.answer(prompt, limit, mean, choice)
    whole = "".join(tokens)
    cut = min((at for s in stops if (at := whole.find(s)) >= 0), default=-1)
    if cut < 0:
        return SimAnswer(index, prompt, tokens, "stop" if ended else "length")
    kept = text.pieces(whole[:cut]) or [""]
    return SimAnswer(index, prompt, kept, "stop")
