"""Malformed and strange requests without end: from a service's own OpenAPI document, and made by hand.

`Odd` yields the same ones for the same seed: requests, and, for what no HTTP library would send, the bytes of
whole connections.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_TEXTS = [
    "",
    "m",
    "x" * 3000,
    "\u0000",
    "\u2028\u2029",
    "😀\U0010ffff",
    "\\ud800",
    "../../etc/passwd",
    "null",
    "-1",
]
_NUMBERS = [0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 1.5e308, -0.0, 1e-320, 0.1]
# JSON that no encoder writes.
_RAW = [
    "1e999",
    "-1E+400",
    "9" * 5000,
    "0." + "1" * 2000,
    "NaN",
    "-Infinity",
    "tru",
    "01",
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\x"',
    '"\u0001"',
    "[" * 2000,
    "[" * 500 + "]" * 500,
    '{"a":' * 300 + "1" + "}" * 300,
    "[1,]",
    "{,}",
    "/**/1",
    "'m'",
]
_HEADERS = [
    ("x-request-id", "a" * 500),
    ("x-request-id", "\x7f\x80"),
    ("x-session-id", "s" * 400),
    ("x-session-id", "\xff\xfe"),
    ("x-slo-class", "no such class"),
    ("x-slo-class", "batch"),
    ("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-00"),
    ("traceparent", "garbage"),
    ("tracestate", ",".join(f"k{i}=v" for i in range(100))),
    ("x-ppd-force-route", "d-local"),
    ("x-ppd-admin-key", "guess"),
    ("authorization", "Bearer " + "x" * 300),
    ("authorization", "Basic \xff"),
    ("content-type", "text/plain"),
    ("content-type", "multipart/form-data; boundary=x"),
    ("content-encoding", "gzip"),
    ("accept", "x" * 1000),
    ("origin", "null"),
    ("cookie", "a=b; " * 200),
    ("x-forwarded-for", "127.0.0.1"),
    ("expect", "100-continue"),
    ("te", "trailers"),
    ("upgrade", "h2c"),
]
_PATHS = [
    "/",
    "//",
    "/v1",
    "/v1/",
    "/v1/chat/completions/",
    "/V1/CHAT/COMPLETIONS",
    "/v1/chat%2fcompletions",
    "/v1/%63hat/completions",
    "/v1/models/%00",
    "/v1/models/" + "x" * 2000,
    "/v1/models/%ff%fe",
    "/v1/models/../../admin/state",
    "/admin/sessions?limit=99999999999999999999",
    "/admin/decisions?path=%00",
    "/metrics?name[]=x",
    "/ui/../server.py",
    "/ui/%2e%2e/%2e%2e/etc/passwd",
    "/openapi.json?x=" + "y" * 5000,
    "/.env",
]


@dataclass
class Request:
    method: str
    path: str
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes | None = None


class _Literal(str):
    """JSON text that is put in as it is."""


def _dump(value: Any) -> str:
    """JSON, with literals and with keys that are there twice (a list of pairs in a tuple)."""
    if isinstance(value, _Literal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_dump(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "{" + ",".join(f"{json.dumps(key)}:{_dump(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


class Odd:
    """`document`: the OpenAPI document; `model`: one that is served, so that most requests get far."""

    def __init__(self, document: dict[str, Any], seed: int, model: str) -> None:
        self._random = random.Random(seed)
        self._document = document
        self._model = model
        self._operations = [
            (method.upper(), path, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]
        self._posts = [each for each in self._operations if "requestBody" in each[2]]

    def request(self) -> Request:
        """The next one."""
        pick = self._random.random()
        if pick < 0.75:
            made = self._from_schema(self._random.choice(self._posts))
        elif pick < 0.9:
            made = self._from_parameters(self._random.choice(self._operations))
        else:
            made = Request(self._random.choice(["GET", "POST", "PUT", "OPTIONS", "HEAD"]), self._pick(_PATHS))
        if self._random.random() < 0.3:
            made.headers.append(self._pick(_HEADERS))
        return made

    def _pick(self, values: list[Any]) -> Any:
        return self._random.choice(values)

    # --- from the document ---

    def _from_schema(self, operation: tuple[str, str, Any]) -> Request:
        method, path, details = operation
        schema = details["requestBody"]["content"]["application/json"]["schema"]
        value = self._value(schema, 0)
        for _ in range(self._pick([0, 1, 1, 1, 2, 3])):
            value = self._spoil(value)
        text = _dump(value)
        data = text.encode("utf-8", "surrogatepass")
        return Request(method, path, [("content-type", "application/json")], self._damage(data))

    def _from_parameters(self, operation: tuple[str, str, Any]) -> Request:
        method, path, details = operation
        for parameter in details.get("parameters", []):
            value = self._pick(["", "0", "-1", "9" * 30, "x", "%00", "%ff", "a&b=c", "1P3D", "1"])
            if parameter["in"] == "path":
                path = path.replace("{" + parameter["name"] + "}", value or "x")
            elif self._random.random() < 0.7:
                path += ("&" if "?" in path else "?") + f"{parameter['name']}={value}"
        body = self._pick([None, b"", b"{}", b"\x00" * 100, b"x" * 10_000])
        return Request(self._pick([method, method, "DELETE", "PATCH", "GET", "POST"]), path, [], body)

    def _resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in schema:
            found: dict[str, Any] = self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            return found
        return schema

    def _value(self, schema: dict[str, Any], depth: int) -> Any:
        """A value that the schema allows; the model is one that is served."""
        schema = self._resolve(schema)
        if choices := schema.get("anyOf"):
            return self._value(self._pick(choices), depth)
        kind = schema.get("type")
        if kind == "object" or "properties" in schema:
            required = schema.get("required", [])
            value = {
                name: self._model if name == "model" else self._value(inner, depth + 1)
                for name, inner in schema.get("properties", {}).items()
                if name in required or self._random.random() < 0.25
            }
            if "role" in value:
                value["role"] = self._pick(["user", "assistant", "system", "tool", "developer"])
            if (schema.get("additionalProperties") is True and self._random.random() < 0.2) or not value:
                value[self._pick(["x", "kv_transfer_params", "temperature", "", "\u0000"])] = self._odd(
                    depth + 1
                )
            return value
        if kind == "array":
            least = schema.get("minItems", 0)
            return [
                self._value(schema.get("items", {}), depth + 1) for _ in range(least + self._pick([0, 1, 3]))
            ]
        makers: dict[str | None, Callable[[], Any]] = {
            "string": lambda: self._pick(["x", "hello there", *_TEXTS]),
            "integer": lambda: self._pick([0, 1, 5, 100]),
            "number": lambda: self._pick([0, 0.5, 1, 2.0]),
            "boolean": lambda: self._pick([True, False]),
            "null": lambda: None,
        }
        return makers.get(kind, lambda: self._odd(depth))()

    # --- spoiled ---

    def _odd(self, depth: int = 0) -> Any:
        pick = self._random.random()
        if pick < 0.25:
            return self._pick(_TEXTS)
        if pick < 0.5:
            return self._pick(_NUMBERS)
        if pick < 0.6:
            return self._pick([None, True, False])
        if pick < 0.7 or depth > 4:
            return _Literal(self._pick(_RAW))
        if pick < 0.85:
            return [self._odd(depth + 1) for _ in range(self._pick([0, 1, 3]))]
        return {self._pick(["role", "content", "id", "", "x"]): self._odd(depth + 1) for _ in range(2)}

    def _spoil(self, value: Any) -> Any:
        """One place of it replaced, doubled, dropped or added."""
        if isinstance(value, dict) and value and self._random.random() < 0.85:
            key = self._pick(list(value))
            what = self._random.random()
            if what < 0.45:
                return {**value, key: self._spoil(value[key])}
            if what < 0.6:
                return {name: item for name, item in value.items() if name != key}
            if what < 0.7:
                return (*value.items(), (key, self._odd()))
            if what < 0.9:
                return {**value, key: self._odd()}
            return {**value, **{f"extra{i}": self._odd() for i in range(self._pick([1, 50]))}}
        if isinstance(value, list) and value and self._random.random() < 0.85:
            at = self._random.randrange(len(value))
            return [*value[:at], self._spoil(value[at]), *value[at + 1 :]]
        return self._odd()

    def _damage(self, data: bytes) -> bytes:
        """Now and then a few bytes that are wrong."""
        pick = self._random.random()
        at = self._random.randrange(len(data) + 1)
        if pick < 0.05:
            return data[:at]
        if pick < 0.1:
            return data[:at] + bytes([self._random.randrange(256)]) + data[at + 1 :]
        if pick < 0.12:
            return data[:at] + self._random.randbytes(20) + data[at:]
        if pick < 0.13:
            return b"\xef\xbb\xbf" + data
        if pick < 0.14:
            return data.decode("utf-8", "replace").encode("utf-16")
        return data

    # --- what no HTTP library would send ---

    def connection(self) -> bytes:
        """The bytes of one connection, which may be several requests, or none."""
        body = json.dumps({"model": self._model, "messages": [{"role": "user", "content": "x"}]}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
        length = b"content-length: %d\r\n\r\n" % len(body)
        kinds: list[bytes] = [
            b"",
            b"\r\n\r\n",
            b"\x00" * 200,
            self._random.randbytes(300),
            b"GET",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET  /  HTTP/1.1\r\n\r\n",
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
            b"FOO / HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET /live HTTP/1.1\r\n: x\r\n\r\n",
            b"GET /live HTTP/1.1\r\nx\r\n\r\n",
            b"GET /live HTTP/1.1\nhost: x\n\n",
            b"GET http://10.0.0.1/live HTTP/1.1\r\nhost: x\r\n\r\n",
            b"CONNECT 10.0.0.1:80 HTTP/1.1\r\nhost: x\r\n\r\n",
            b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET /live HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
            b"GET /live HTTP/1.1\r\n" + b"x: y\r\n" * self._pick([10, 300, 5000]) + b"\r\n",
            b"GET /live HTTP/1.1\r\nx: " + b"y" * self._pick([100, 70_000, 300_000]) + b"\r\n\r\n",
            head + b"content-length: -1\r\n\r\n" + body,
            head + b"content-length: 99999999999999999999\r\n\r\n" + body,
            head + b"content-length: 5\r\n\r\n" + body,
            head + b"content-length: %d\r\n\r\n" % (len(body) + 10) + body,
            head + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n" + body,
            head + b"transfer-encoding: chunked\r\n\r\nzz\r\n" + body,
            head + b"transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n" + body,
            head + b'transfer-encoding: chunked\r\n\r\n5;x=y\r\n{"a":\r\n0\r\nt: v\r\n\r\n',
            head + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            head + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 500 + b"0\r\n\r\n",
            head + length + body + b"GARBAGE",
            (head + length + body) * self._pick([2, 5, 20]),
            (head + length + body) * 2 + b"GARBAGE\r\n\r\n",
            b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n" * 100,
            head + b"expect: 100-continue\r\n" + length,
            head + length + body[: len(body) // 2],
        ]
        made: bytes = self._pick(kinds)
        return made
