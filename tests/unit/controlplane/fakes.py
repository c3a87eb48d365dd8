"""FakeEngine: vLLM's HTTP surface and NIXL handshake, without a model, with scripted faults."""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.unit.controlplane import fake_dialects

_WHOLE = {"/v1/messages": fake_dialects.messages, "/v1/responses": fake_dialects.responses}
_EVENTS = {"/v1/messages": fake_dialects.messages_events, "/v1/responses": fake_dialects.responses_events}
_UTILITIES = ("/tokenize", "/detokenize", "/v1/messages/count_tokens")
_PROMPTS = ("messages", "prompt", "input")


@dataclass
class Fault:
    """What the next request meets. `after`: how many chunks are sent before."""

    # stall: the whole engine hangs; slow: it is silent for a while, but makes steps
    kind: str  # status, stall, slow, close, error-event, empty, no-kv, stop, truncate
    after: int = 0
    status: int = 500
    body: bytes = b'{"error":{"message":"scripted","type":"x","code":500}}'


@dataclass
class Seen:
    """One request as the engine got it."""

    path: str
    headers: dict[str, str]
    raw: bytes
    body: dict[str, Any]
    aborted: bool = False
    finished: bool = False
    method: str = "POST"


@dataclass
class FakeEngine:
    """Answers every turn with `words`; counts `len(prompt characters)` as tokens."""

    name: str = "fake"
    words: list[str] = field(default_factory=lambda: ["Par", "is", " it", " is", "."])
    thoughts: list[str] = field(default_factory=list)  # reasoning before the words, one token each
    per_chunk: int = 1  # tokens that each chunk of a stream says it holds
    cached: int = 0
    tokenized: int = 0  # tokens of any text, for /tokenize; 0 = as many as words
    answer_id: str = "chatcmpl-1"
    chunk_gap_s: float = 0.0
    late_end_s: float = 0.0  # between [DONE] and the end of the HTTP message
    faults: deque[Fault] = field(default_factory=deque)
    requests: list[Seen] = field(default_factory=list)
    connections: int = 0
    slow_s: float = 1.5
    deaf: bool = False  # to /tokenize
    steps: int = 0
    hanging: int = 0  # requests under way at which it hangs
    asked: int = 0  # for its metrics
    on_request: Callable[[], None] = lambda: None

    port: int = 0

    async def start(self, port: int = 0) -> "FakeEngine":
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.split("\r\n")
                headers = {n.lower(): v.strip() for n, v in (x.split(":", 1) for x in lines[1:] if ":" in x)}
                raw = await reader.readexactly(int(headers.get("content-length", 0)))
                try:
                    body = json.loads(raw) if raw else {}
                except (ValueError, RecursionError):
                    await self._json(writer, 400, b'{"error":{"message":"no such JSON"}}')
                    continue
                method, path, _ = lines[0].split(" ")
                seen = Seen(path, headers, raw, body, method=method)
                if seen.path == "/metrics":
                    self.asked += 1
                    if self.hanging:
                        await reader.read(1)
                    self.steps += 1
                    page = f'vllm:iteration_tokens_total_count{{engine="0"}} {self.steps}.0\n'
                    await self._json(writer, 200, page.encode())
                    continue
                if body.get("add_special_tokens") is False:  # /tokenize of an answer so far
                    if self.deaf:
                        raise ConnectionError
                    count = self.tokenized or next(
                        i for i in range(len(self.words) + 1) if "".join(self.words[:i]) == body["prompt"]
                    )
                    await self._json(writer, 200, json.dumps({"count": count}).encode())
                    continue
                self.requests.append(seen)
                self.on_request()
                await self._answer(seen, writer, reader)
                seen.finished = True
        except (asyncio.IncompleteReadError, ConnectionError):
            if self.requests and not self.requests[-1].finished:
                self.requests[-1].aborted = True
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        fault = self.faults.popleft() if self.faults else None
        kind = fault.kind if fault else ""
        if kind == "stall" and not fault.after:
            await self._stall(seen, reader)
        if kind == "slow" and not seen.body.get("stream"):
            await asyncio.sleep(self.slow_s)
        if kind == "close" and not fault.after:
            writer.transport.abort()
            raise ConnectionError
        if kind == "status":
            return await self._json(writer, fault.status, fault.body)
        if seen.body.get("model") == "released-before-decode":
            return await self._json(writer, 404, b'{"error":{"message":"no such model"}}')
        kv = seen.body.get("kv_transfer_params") or {}
        if kv.get("do_remote_decode"):
            return await self._prefill(seen, writer, kind)
        if str(seen.body.get("stream")).lower() in ("true", "1") or "stream=true" in seen.path:
            return await self._stream(seen, writer, reader, fault)
        if kind == "empty":
            return await self._json(writer, 200, b"")
        if kind == "truncate":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
            writer.transport.abort()
            raise ConnectionError
        return await self._json(writer, 200, json.dumps(self._whole(seen, self.words, "stop")).encode())

    async def _stall(self, seen: Seen, reader: asyncio.StreamReader) -> None:
        """Say nothing until the other side hangs up."""
        self.hanging += 1
        try:
            await reader.read(1)
        finally:
            self.hanging -= 1
        seen.aborted = True
        raise ConnectionError

    def _left(self, seen: Seen) -> list[str]:
        """The words that a continued message, or a continued prompt, does not hold yet."""
        said = ""
        if seen.body.get("continue_final_message"):
            assert seen.body["add_generation_prompt"] is False
            said = seen.body["messages"][-1]["content"]
        elif isinstance(prompt := seen.body.get("prompt"), str):
            said = prompt.partition("|")[2]
        words = list(self.words)
        while said and words:
            assert said.startswith(words[0])
            said = said.removeprefix(words.pop(0))
        return words

    def _usage(self, seen: Seen, n_out: int) -> dict[str, Any]:
        prompt = len(json.dumps(next((seen.body[name] for name in _PROMPTS if seen.body.get(name)), None)))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": n_out,
            "total_tokens": prompt + n_out,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "odd_new_field": 1,
        }

    def _whole(self, seen: Seen, words: list[str], finish: str) -> dict[str, Any]:
        if (dialect := _WHOLE.get(seen.path)) is not None:
            usage = self._usage(seen, len(words))
            return dialect(self.answer_id, seen.body["model"], words, finish, usage)
        if seen.path.startswith("/v1/responses/"):
            usage = self._usage(seen, len(words))
            answer = fake_dialects.responses(self.answer_id, "m", words, finish, usage)
            return {**answer, "method": seen.method}
        if seen.path in _UTILITIES:
            return fake_dialects.utility(seen.path, self._usage(seen, 0))
        chat = "messages" in seen.body
        text = "".join(words)
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return {
            "id": self.answer_id,
            "object": "chat.completion" if chat else "text_completion",
            "created": 1,
            "model": seen.body["model"],
            "choices": [choice],
            "usage": self._usage(seen, len(words)),
            "kv_transfer_params": None,
        }

    async def _prefill(self, seen: Seen, writer: asyncio.StreamWriter, kind: str) -> None:
        answer = self._whole(seen, self.words[:1], "stop" if kind == "stop" else "length")
        if kind not in ("no-kv", "stop"):
            answer["kv_transfer_params"] = {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_engine_id": self.name,
                "remote_block_ids": [1, 2],
                "remote_request_id": f"r{len(self.requests)}",
                "remote_host": "127.0.0.1",
                "remote_port": 1,
            }
        await self._json(writer, 200, json.dumps(answer).encode())

    async def _stream(
        self, seen: Seen, writer: asyncio.StreamWriter, reader: asyncio.StreamReader, fault: Fault | None
    ) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )

        def send(event: bytes) -> None:
            data = event + b"\n\n"
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))

        *events, last = self._events(seen)
        for number, event in enumerate(events):
            if fault and fault.after == number:
                if fault.kind == "close":
                    await writer.drain()
                    await asyncio.sleep(0.01)
                    writer.transport.abort()
                    raise ConnectionError
                if fault.kind == "stall":
                    await self._stall(seen, reader)
                if fault.kind == "slow":
                    await asyncio.sleep(self.slow_s)
                if fault.kind == "error-event":
                    send(self._error_event(seen, fault.body))
                    break
                if fault.kind in ("empty", "truncate"):
                    break
            send(event)
            await writer.drain()
            if self.chunk_gap_s:
                await asyncio.sleep(self.chunk_gap_s)
        else:
            send(last)
            if self.late_end_s:
                await asyncio.sleep(self.late_end_s)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    @staticmethod
    def _error_event(seen: Seen, body: bytes) -> bytes:
        data = json.dumps(json.loads(body), separators=(",", ":")).encode()
        return (b"event: error\n" if seen.path in _WHOLE else b"") + b"data: " + data

    def _events(self, seen: Seen) -> list[bytes]:
        """All events of a streamed answer."""
        path = "/v1/responses" if seen.path.startswith("/v1/responses/") else seen.path
        if (dialect := _EVENTS.get(path)) is not None:
            usage = self._usage(seen, len(self.words))
            return dialect(self.answer_id, seen.body.get("model", "m"), self.words, usage)
        chat = "messages" in seen.body
        base = {
            "id": self.answer_id,
            "object": "chat.completion.chunk",
            "created": 1,
            "model": seen.body["model"],
        }

        events: list[dict[str, Any]] = []
        if chat:
            events.append({**base, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        words = self._left(seen)
        parts: list[dict[str, Any]] = [{"delta": {"reasoning_content": each}} for each in self.thoughts]
        parts += [{"delta": {"content": word}} if chat else {"text": word} for word in words]
        for i, part in enumerate(parts):
            if seen.body.get("return_token_ids"):
                part["token_ids"] = [1] * self.per_chunk
            if seen.body.get("logprobs"):
                part["logprobs"] = {"content": [{"token": "x", "logprob": 0.0}] * self.per_chunk}
            finish = "stop" if i == len(parts) - 1 else None
            events.append({**base, "choices": [{"index": 0, **part, "finish_reason": finish}]})
        options = seen.body.get("stream_options") or {}
        if options.get("include_usage"):
            if options.get("continuous_usage_stats"):
                opening = len(events) - len(parts)
                events = [
                    {**each, "usage": self._usage(seen, self.per_chunk * max(0, i + 1 - opening))}
                    for i, each in enumerate(events)
                ]
            events.append({**base, "choices": [], "usage": self._usage(seen, self.per_chunk * len(parts))})
        encoded = [b"data: " + json.dumps(each, separators=(",", ":")).encode() for each in events]
        return [*encoded, b"data: [DONE]"]

    async def _json(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % (status, len(body))
        )
        writer.write(body)
        await writer.drain()
