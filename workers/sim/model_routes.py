"""What an engine answers without making tokens: its names and adapters, token counts, stored responses."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from workers.sim import text
from workers.sim.messages import Messages
from workers.sim.names import Names
from workers.sim.request import BadRequestError, Body, parse_as, prompts_of
from workers.sim.responses import Responses
from workers.sim.shapes import ApiShape, OpenAi

_Handler = Callable[[web.Request], Awaitable[web.Response]]
_OPENAI = OpenAi(chat=True)


class _Tokens(msgspec.Struct):
    tokens: list[int]
    model: str = ""


class ModelRoutes:
    """Routes that need no step of the engine."""

    def __init__(self, names: Names, messages: Messages, responses: Responses, max_model_len: int) -> None:
        self._names = names
        self._messages = messages
        self._responses = responses
        self._max_model_len = max_model_len

    def routes(self) -> list[web.RouteDef]:
        responses = self._responses
        return [
            web.get("/v1/models", self.models),
            web.post("/v1/load_lora_adapter", self._adapters(self._names.load)),
            web.post("/v1/unload_lora_adapter", self._adapters(self._names.unload)),
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
            web.post("/v1/messages/count_tokens", self.count_tokens),
            web.get("/v1/responses/{id}", self._stored(responses.get)),
            web.delete("/v1/responses/{id}", self._stored(responses.delete)),
            web.post("/v1/responses/{id}/cancel", self._stored(responses.cancel)),
            web.get("/v1/responses/{id}/input_items", self._stored(responses.input_items)),
        ]

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self._names.listed()})

    @staticmethod
    def _adapters(change: Callable[[Any], str]) -> _Handler:
        async def handle(http: web.Request) -> web.Response:
            try:
                return web.Response(text=change(json.loads(await http.read())))
            except ValueError as error:
                return _refusal(_OPENAI, BadRequestError(str(error)))
            except BadRequestError as error:
                return _refusal(_OPENAI, error)

        return handle

    def _stored(self, act: Callable[[str], dict[str, Any]]) -> _Handler:
        async def handle(http: web.Request) -> web.Response:
            try:
                return web.json_response(act(http.match_info["id"]))
            except BadRequestError as error:
                return _refusal(self._responses, error)

        return handle

    async def tokenize(self, http: web.Request) -> web.Response:
        try:
            pieces = text.pieces(self._prompt(parse_as(await http.read(), Body)))
        except BadRequestError as error:
            return _refusal(_OPENAI, error)
        ids = [text.token_id(piece) for piece in pieces]
        return web.json_response({"count": len(ids), "max_model_len": self._max_model_len, "tokens": ids})

    async def detokenize(self, http: web.Request) -> web.Response:
        try:
            asked = parse_as(await http.read(), _Tokens)
            self._names.check(asked.model)
        except BadRequestError as error:
            return _refusal(_OPENAI, error)
        return web.json_response({"prompt": text.from_ids(asked.tokens)})

    async def count_tokens(self, http: web.Request) -> web.Response:
        try:
            count = text.count(self._prompt(self._messages.read(await http.read())))
        except BadRequestError as error:
            return _refusal(self._messages, error)
        return web.json_response({"input_tokens": count})

    def _prompt(self, body: Body) -> str:
        """Raises BadRequestError."""
        self._names.check(body.model)
        return prompts_of(body, chat=body.messages is not None)[0]


def _refusal(shape: ApiShape, error: BadRequestError) -> web.Response:
    return web.json_response(shape.error(str(error), error.status, error.kind), status=error.status)
