"""An instant stand-in for a P and a D: fixed answers, so that all CPU that is seen is the router's.

`python -m bench.relay.engine PORT GAP_MS CHUNKS [batched]`: GAP_MS 0 sends all chunks at once; `batched`
sends those of all streams at the steps of one clock, else each stream has a clock of its own.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator

import uvloop

_TEXT = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_KV = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[1,2,3,4],"remote_engine_id":'
    b'"5a3b8a0e","remote_request_id":"chatcmpl-1","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}'
)
_BASE = b'"id":"chatcmpl-1","object":"chat.completion%b","created":1700000000,"model":"m"'
_USAGE = (
    b'"usage":{"prompt_tokens":40,"completion_tokens":64,"total_tokens":104,'
    b'"prompt_tokens_details":{"cached_tokens":0}}'
)


def _whole(kv: bytes) -> bytes:
    body = (
        b"{%b,%b" % (_BASE % b"", _USAGE)
        + b',"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}]'
        + b',"kv_transfer_params":%b}' % kv
    )
    return _TEXT % (len(body), body)


def _chunk(data: bytes) -> bytes:
    event = b"data: %b\n\n" % data
    return b"%x\r\n%b\r\n" % (len(event), event)


def _chunks(count: int) -> tuple[list[bytes], bytes]:
    """`count` chunks with a token each, and the end, with usage where it was asked for."""
    base = _BASE % b".chunk"
    chunks = []
    for i in range(count):
        finish = b'"stop"' if i == count - 1 else b"null"
        delta = b'{"index":0,"delta":{"content":" token%d"},"logprobs":null,"finish_reason":%b}' % (i, finish)
        chunks.append(_chunk(b"{%b,%b" % (base, b'"choices":[' + delta + b"]}")))
    return chunks, _chunk(b'{%b,"choices":[],%b}' % (base, _USAGE))


_PREFILLED = _whole(_KV)
_ANSWER = _whole(b"null")
_HEALTH = _TEXT % (2, b"{}")
_MODELS_BODY = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x"}]}'
_MODELS = _TEXT % (len(_MODELS_BODY), _MODELS_BODY)
_END = _chunk(b"[DONE]") + b"0\r\n\r\n"


class Steps:
    """A continuous batch: at each step every running stream gets its next chunk, as vLLM sends them."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._running: list[Callable[[], bool]] = []

    def join(self, stream: Callable[[], bool]) -> None:
        """`stream` sends its next chunk and says whether it has another."""
        self._running.append(stream)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._gap_s)
            self._running = [stream for stream in self._running if stream()]


class StandInEngine(asyncio.Protocol):
    """One connection."""

    def __init__(self, gap_s: float, chunks: tuple[list[bytes], bytes], steps: Steps | None = None) -> None:
        self._gap_s = gap_s
        self._steps = steps
        self._chunks, self._usage = chunks
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n")[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"get"):
            self._transport.write(_MODELS if b"/v1/models" in head else _HEALTH)
        elif b'"do_remote_decode":true' in body.replace(b" ", b""):
            self._transport.write(_PREFILLED)
        elif b'"stream":true' in body.replace(b" ", b""):
            usage = self._usage if b"include_usage" in body else b""
            if self._gap_s:
                self._transport.write(_STREAM)
                if self._steps:
                    self._steps.join(self._stream(usage).__next__)
                else:
                    self._next(0, usage)
            else:
                self._transport.write(_STREAM + b"".join(self._chunks) + usage + _END)
        else:
            self._transport.write(_ANSWER)

    def _stream(self, usage: bytes) -> Iterator[bool]:
        """A chunk for each step; whether another one follows."""
        for chunk in self._chunks[:-1]:
            self._transport.write(chunk)
            yield not self._transport.is_closing()
        self._transport.write(self._chunks[-1] + usage + _END)
        yield False

    def _next(self, number: int, usage: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(self._chunks[number])
        if number + 1 < len(self._chunks):
            asyncio.get_running_loop().call_later(self._gap_s, self._next, number + 1, usage)
        else:
            self._transport.write(usage + _END)


async def _main(port: int, gap_s: float, count: int, batched: bool) -> None:
    chunks = _chunks(count)
    steps = Steps(gap_s) if batched else None
    loop = asyncio.get_running_loop()
    for each in (port, port + 1):
        await loop.create_server(lambda: StandInEngine(gap_s, chunks, steps), "127.0.0.1", each, backlog=1024)
    await (steps.run() if steps else asyncio.Event().wait())


if __name__ == "__main__":
    uvloop.run(
        _main(int(sys.argv[1]), float(sys.argv[2]) / 1e3, int(sys.argv[3]), sys.argv[4:] == ["batched"])
    )
