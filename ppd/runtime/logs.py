"""Log lines for people, or JSON for collectors; the id of the current trace comes along."""

import json
import logging
import sys
import time

from opentelemetry import trace

from ppd.runtime.endpoints import redacted


def _trace_id() -> str:
    context = trace.get_current_span().get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else ""


class _Json(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace_id := _trace_id():
            line["trace_id"] = trace_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return redacted(json.dumps(line, ensure_ascii=False))


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


def setup(service: str, level: str = "info", as_json: bool = False) -> logging.Logger:
    """Log to standard error; returns the service's logger."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Json(service)
        if as_json
        else _Plain(f"%(asctime)s.%(msecs)03d %(levelname)-7s {service}: %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("nats", "aetcd", "grpc", "asyncio", "opentelemetry"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    return logging.getLogger(service)
