"""The frontend's settings."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from ppd.core.decision import DEFAULT_SLO
from ppd.core.policies import DEFAULT
from ppd.runtime.engine_key import EngineKey
from ppd.runtime.settings import CommaList, Secret, TracedSettings, secret

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


def _pairs(value: list[str]) -> list[str]:
    for pair in value:
        if not all(pair.partition("=")):
            raise ValueError(f"{pair!r}: write MODEL=FOLDER")
    return value


class FrontendSettings(TracedSettings):
    """Flags of `ppd frontend`."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on")
    policy: str = Field(DEFAULT, description="the rule that chooses a later turn's path")
    processes: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="processes that share the port, the conversations and the keys' limits"
    )
    slo: str = Field(DEFAULT_SLO, description="SLO class of requests that name none")
    tokenizer: Annotated[CommaList, AfterValidator(_pairs)] = Field(
        [], description="MODEL=FOLDER, comma-separated: counts new tokens exactly; else they are estimated"
    )

    pullback: bool = Field(
        False, description="let D hold a turn's KV, so that P can pull it back (a third path)"
    )

    connect_s: Seconds = Field(2.0, description="deadline for a connection to an engine")
    prefill_s: Seconds = Field(
        30.0,
        description="after this long a turn leaves P: at once if P does not work, else if D would be sooner",
    )
    first_byte_s: Seconds = Field(
        120.0, description="deadline for a stream's first byte, unless the engine is known to make steps"
    )
    idle_s: Seconds = Field(
        30.0, description="longest gap in an engine's stream, unless the engine is known to make steps"
    )
    suspect_s: Seconds = Field(
        10.0,
        description="after this long without a sign of life an engine gets no turns, and its streams move",
    )
    body_s: Seconds = Field(30.0, description="deadline for a request's body to arrive")
    turn_s: Seconds = Field(1800.0, description="longest a turn may take as a whole, queueing included")
    head_s: Seconds = Field(20.0, description="deadline for a request's head to arrive")
    shutdown_s: Seconds = Field(30.0, description="how long running streams may take to end on SIGTERM")

    max_body_bytes: Count = Field(16 << 20, description="largest request body")
    max_head_bytes: Count = Field(64 << 10, description="largest request line and headers")
    max_connections: Count = Field(16_384, description="clients' connections, of each process")
    max_answer_bytes: Count = Field(64 << 20, description="largest answer that is not streamed")
    max_running: Count = Field(4096, description="turns served at once")
    max_queued: Count = Field(1024, description="turns that may wait for one of those; more get 429")
    queue_s: Seconds = Field(10.0, description="longest wait in that queue before 429")
    max_sessions: Count = Field(100_000, description="conversations remembered")
    session_ttl_s: Seconds = Field(3600.0, description="an idle conversation is forgotten after this long")
    session_wait_s: Seconds = Field(
        0.1, description="longest wait for NATS where another frontend may know the conversation"
    )
    max_records: Count = Field(10_000, description="turn records kept while NATS is away")
    load_stale_s: Seconds = Field(2.0, description="a load report older than this is not trusted")

    keys: Path | None = Field(
        None, description="file of API keys (`ppd key new`); without one everybody may call"
    )
    cors_origins: CommaList = Field(
        [], description="origins whose pages may call, comma-separated; * for all; empty: none"
    )
    tls_cert: Path | None = Field(None, description="certificate chain (PEM); with it only TLS is spoken")
    tls_key: Path | None = Field(None, description="its private key; empty: in the same file")
    access_log: str = Field("", description="file for a line of JSON per request; -: standard output")
    trace_ratio: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="share of the traces begun here that are recorded; of a client's own, the client decides;"
        " empty: as OTEL_TRACES_SAMPLER says, else all",
    )
    jaeger_url: str = Field(
        "",
        pattern=r"^(https?://[^\s]+)?$",
        description="where a browser reaches Jaeger, for the links of the page /ui; empty: none",
    )

    admin_key: Secret = secret("key for the admin endpoints and for forcing a path; empty: both are off")
    engine_key: EngineKey = secret("bearer token that the engines ask for")
