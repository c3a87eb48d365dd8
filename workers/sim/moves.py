"""What a simulated engine tells of the KV that it pulls and holds: the connector's own reports and spans."""

from typing import Any

from ppd.core.engine import Request
from ppd.core.names import KV_HOLD, KV_REQUEST_ID, SERVICE_KV
from ppd.core.records import KvHeld
from ppd.runtime import otlp, tracing
from workers.connector.reporter import Reporter
from workers.connector.spans import Puller
from workers.connector.transfers import Origin, Transfer, TransferBook
from workers.sim.peers import Peers
from workers.sim.settings import SimSettings

KvParams = dict[str, Any]


class Moves:
    """One engine's transfers, from the start of each to its report."""

    def __init__(self, settings: SimSettings, engine_id: str, peers: Peers, block_tokens: int) -> None:
        tracer = None
        if (export := otlp.resolve(settings.otlp_endpoint)) is not None:
            tracer = tracing.setup(
                SERVICE_KV, export, settings.worker_id, settings.sample_ratio, fixed_name=True
            )
        self._settings = settings
        self._peers = peers
        self._block_tokens = block_tokens
        self._reporter = Reporter(Puller(settings.worker_id, engine_id, 0, "sim"), tracer, settings.run_dir)
        self._book = TransferBook(self._reporter.put)

    async def pull(self, params: KvParams, request: Request, bytes_per_token: int) -> bool:
        """Read what `params` name of the request's prompt; false where nothing came of it."""
        tokens, own_id = request.pulled_tokens, request.request_id
        origin = Origin.of(params, max(0, request.cached_tokens) // self._block_tokens)
        blocks = -(-tokens // self._block_tokens)
        self._book.begin(own_id, Transfer(origin, str(params["remote_engine_id"]), blocks))
        transfer = self._book.posting(own_id)
        error = "abandoned: the request ended"
        try:
            took_s, error = await self._peers.read(params, tokens, bytes_per_token)
            if transfer is not None and not error:
                transfer.bytes = tokens * bytes_per_token
                transfer.descriptors = blocks  # one for each
                transfer.reads = int(tokens > 0)
                transfer.transfer_s = took_s if tokens else 0.0
        finally:
            self._book.end(own_id, error)
        return not error

    def hold(self, params: KvParams, held: KvParams) -> None:
        """A turn's KV waits here for a pull-back, if that was asked for."""
        if params.get(KV_HOLD):
            self._reporter.put(
                KvHeld(
                    request_id=str(params.get(KV_REQUEST_ID) or ""),
                    worker_id=self._settings.worker_id,
                    tokens=held["remote_num_tokens"],
                    hold_s=self._settings.hold_s / self._settings.speed,
                    params=held,
                )
            )

    def close(self) -> None:
        """Tell what is pending, at most 2 s."""
        self._reporter.close()
        tracing.shutdown()
