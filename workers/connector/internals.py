"""All that touches vLLM's internals: what may move with a vLLM version is named here and nowhere else.

Written against the NIXL pull connector of the versions in SUPPORTED; `mismatch()` is asked at start.
"""

import os
import time
from typing import Any

import msgspec
from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector, NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
    NIXL_CONNECTOR_VERSION,
    NixlAgentMetadata,
    NixlHandshakePayload,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

from ppd.core.names import KV_HOLD, KV_RELEASE, KV_REQUEST_ID
from ppd.core.records import KvHeld
from workers.connector.fingerprint import marks, matching_prefix, steps
from workers.connector.reporter import Reporter
from workers.connector.transfers import WORKER_ID, Origin, Transfer, TransferBook
from workers.reports import QueuedTokens

SUPPORTED = ("0.32.",)
SUPPORTED_PROTOCOL = 14
TOKENS = "ppd_tokens"  # in kv_transfer_params: marks of the tokens whose KV they name

_ORIGINS = "ppd_origins"  # on NixlConnectorMetadata: from scheduler to workers, with each step
_QUEUE_EVERY_S = 0.25
_REMEMBERED = 10_000

__all__ = [
    "KVConnectorRole",
    "NixlBaseConnector",
    "NixlPullConnector",
    "ReportingScheduler",
    "TracingWorker",
    "mismatch",
    "registered_kv",
]


def mismatch() -> str:
    """Why this vLLM is not one that the connector was written for; empty if it is."""
    if not vllm_version.startswith(SUPPORTED):
        known = ", ".join(f"{version}x" for version in SUPPORTED)
        return f"vLLM {vllm_version} is not supported by this KV connector (it knows {known})"
    if NIXL_CONNECTOR_VERSION != SUPPORTED_PROTOCOL:
        return f"vLLM's NIXL protocol {NIXL_CONNECTOR_VERSION} is not the known one ({SUPPORTED_PROTOCOL})"
    return ""


def registered_kv(metadata: dict[tuple[int, int], Any]) -> dict[str, Any]:
    """What the ranks registered with NIXL: block size, bytes a token over all ranks, capacity, layout.

    `metadata` is what vLLM hands to `set_xfer_handshake_metadata_pp_aware`, keyed by (pp rank, tp rank).
    """
    payloads = [payload for payload in metadata.values() if isinstance(payload, NixlHandshakePayload)]
    ranks = [msgspec.msgpack.decode(p.agent_metadata_bytes, type=NixlAgentMetadata) for p in payloads]
    first = ranks[0]
    return {
        "engine_id": first.engine_id,
        "kv_layout": first.kv_cache_layout,
        "block_size_tokens": first.block_size * first.physical_blocks_per_logical_kv_block,
        "kv_capacity_tokens": first.num_blocks * first.block_size,
        "kv_bytes_per_token": sum(sum(rank.block_lens) for rank in ranks) // first.block_size,
        "compatibility": payloads[0].compatibility_hash,
    }


class ReportingScheduler(NixlPullConnectorScheduler):
    """The scheduler's half: passes a turn's origin on to the workers, checks tokens, holds KV when asked."""

    def report_to(self, reporter: Reporter, worker_id: str) -> None:
        self._reporter = reporter
        self._worker_id = worker_id
        self._unfinished: dict[str, Any] = {}
        self._users: dict[tuple[Any, Any], str] = {}  # of remote blocks: single use
        self._prefills: dict[str, str] = {}  # recently prefilled turns: the turn's id -> vLLM's request id
        self._unwanted: set[str] = set()  # of the unfinished
        self._queue_said = 0
        self._queue_said_s = 0.0

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        self._unfinished[request.request_id] = request
        params = request.kv_transfer_params or {}
        if params.get("do_remote_decode") and (turn := params.get(KV_REQUEST_ID)):
            self._prefills[str(turn)] = request.request_id
            if len(self._prefills) > _REMEMBERED:
                del self._prefills[next(iter(self._prefills))]

    def _release(self, turn: str) -> None:
        """Nobody will read what was prefilled for this turn: free it now, or when it is finished."""
        request_id = self._prefills.pop(turn, "")
        if request_id in self._unfinished:
            self._unwanted.add(request_id)
        elif request_id:
            self._reqs_need_send[request_id] = 0.0  # its lease is over; workers pass over what was read

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        params = request.kv_transfer_params
        if not params or not params.get("remote_request_id"):
            return super().get_num_new_matched_tokens(request, num_computed_tokens)
        if params.get("_remote_blocks_processed"):
            # The pull was tried and failed, or the request was preempted: vLLM would wait for a second pull
            # of a prefill engine, which is never posted.
            return 0, False
        if self._used_before(request, params):
            params["remote_block_ids"] = []  # nothing to read, and nobody to tell
            return 0, False
        if TOKENS in params:
            self._keep_what_matches(request, params, params.pop(TOKENS))
        if params.get("_ppd_refused"):
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def _used_before(self, request: Any, params: dict[str, Any]) -> bool:
        """Whether another request had these parameters: their blocks may hold other tokens by now."""
        reference = (params.get("remote_engine_id"), params["remote_request_id"])
        user = self._users.setdefault(reference, request.request_id)
        if len(self._users) > _REMEMBERED:
            del self._users[next(iter(self._users))]
        return bool(user != request.request_id)

    def _keep_what_matches(self, request: Any, params: dict[str, Any], marks: object) -> None:
        """Narrow the parameters to the prefix of remote KV that is this prompt's."""
        prompt = request.prompt_token_ids or []
        same = matching_prefix(prompt, marks)
        if params.get("do_remote_prefill"):
            params["_ppd_refused"] = same < self._get_remote_prefill_token_count(len(prompt))
        elif same < (params.get("remote_num_tokens") or 0):
            groups = params.get("remote_block_ids") or []
            # Groups of other kinds than full attention hold no plain list of the prompt's blocks.
            params["_ppd_refused"] = same == 0 or len(groups) != 1
            if not params["_ppd_refused"]:
                params["remote_num_tokens"] = same
                params["remote_block_ids"] = [list(groups[0][: -(-same // self.block_size)])]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        params = request.kv_transfer_params
        if params and params.get(KV_HOLD):
            self._reqs_in_batch.add(request.request_id)  # else a worker would take its lease for a lost one

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        origins = {
            request_id: Origin.of(request.kv_transfer_params or {}, sum(cached))
            for request_id, (request, _, cached, _) in self._reqs_need_recv.items()
            if cached  # empty where an aborted request only tells its source to free
        }
        meta = super().build_connector_meta(scheduler_output)
        if origins:
            setattr(meta, _ORIGINS, origins)
        now_s = time.monotonic()
        if now_s - self._queue_said_s > _QUEUE_EVERY_S:
            self._say_queue(now_s)
        return meta

    def _say_queue(self, now_s: float) -> None:
        queued = sum(max(0, r.num_prompt_tokens - r.num_computed_tokens) for r in self._unfinished.values())
        self._queue_said_s = now_s
        if queued != self._queue_said:
            self._queue_said = queued
            self._reporter.put(QueuedTokens(queued))

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        self._unfinished.pop(request.request_id, None)
        if not self._unfinished:
            self._say_queue(time.monotonic())
        params = request.kv_transfer_params
        if params and KV_RELEASE in params:  # vLLM made this request of one that was refused
            self._release(str(params[KV_RELEASE]))
            return False, None
        if request.request_id in self._unwanted:
            self._unwanted.discard(request.request_id)
            self._reqs_not_processed.add(request.request_id)
            return False, None
        decodes = bool(params) and not params.get("do_remote_decode") and not params.get("do_remote_prefill")
        if decodes and not params.get(KV_HOLD):
            self._stop_heartbeat(request.request_id)
            self._reqs_not_processed.add(request.request_id)
            return False, None
        delay, reply = super().request_finished(request, block_ids)
        if reply:
            self._sign(request, reply)
            if decodes and delay:
                self._reporter.put(self._held(params, reply))
        return delay, reply

    def _sign(self, request: Any, reply: dict[str, Any]) -> None:
        where = steps(request.num_prompt_tokens, reply["remote_num_tokens"], self.block_size)
        reply[TOKENS] = marks(request.all_token_ids, where)
        reply[WORKER_ID] = self._worker_id

    def _held(self, params: dict[str, Any], reply: dict[str, Any]) -> KvHeld:
        return KvHeld(
            request_id=str(params.get(KV_REQUEST_ID) or ""),
            worker_id=self._worker_id,
            tokens=reply["remote_num_tokens"],
            hold_s=float(self.decoder_kv_blocks_ttl),
            params=dict(reply),
        )


class TracingWorker(NixlPullConnectorWorker):
    """A rank's half: follows each pull from the hand-off's start to its completion."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # On CPUs vLLM's own moves this process to the last core of each NUMA node, out of the cores that it
        # was given: all engines of a host would then compute on that one core.
        cores = os.sched_getaffinity(0)
        super().__init__(*args, **kwargs)
        os.sched_setaffinity(0, cores)

    def follow_in(self, book: TransferBook) -> None:
        self._book = book
        telemetry = self.nixl_wrapper.get_xfer_telemetry

        def measured(handle: int) -> Any:
            result = telemetry(handle)
            if result is not None:
                book.measured(handle, result.totalBytes, result.descCount, result.xferDuration / 1e6)
            return result

        self.nixl_wrapper.get_xfer_telemetry = measured

    def start_load_kv(self, metadata: Any) -> None:
        origins = getattr(metadata, _ORIGINS, None)
        if origins:
            for request_id, origin in origins.items():
                meta = metadata.reqs_to_recv[request_id]
                blocks = sum(len(group) for group in meta.local_block_ids)
                self._book.begin(request_id, Transfer(origin, meta.remote.engine_id, blocks))
        super().start_load_kv(metadata)

    def _read_blocks(self, *args: Any, **named: Any) -> bool:
        request_id: str = named["request_id"]
        transfer = self._book.posting(request_id)
        posted = super()._read_blocks(*args, **named)
        if transfer is not None:
            transfer.post_s = time.perf_counter() - transfer.posted_s
            for handle in self._recving_transfers.get(request_id, ()):
                self._book.reading(handle, transfer)
            if not named["awaiting_kvs"]:  # all of it was cached here: only the source was told
                self._book.end(request_id)
        return posted

    def get_transfer_results(self) -> Any:
        results = super().get_transfer_results()
        for request_id in results.finished_recving:
            failed = request_id in results.failed_recving
            self._book.end(request_id, "declined: the source engine is set aside" if failed else "")
        if self._book:
            self._book.check_overdue()
        return results

    def _is_turn2_read_expired(self, meta: Any) -> bool:
        expired = super()._is_turn2_read_expired(meta)
        if expired:
            self._book.blame(self._request_of(meta), "expired: the source no longer holds the blocks")
        return expired

    def _request_of(self, meta: Any) -> str | None:
        return next((key for key, value in self._recving_metadata.items() if value is meta), None)

    def _log_failure(self, failure_type: str, req_id: str | None, *args: Any, **context: Any) -> None:
        cause = context.get("error") or context.get("xfer_state") or context.get("msg") or ""
        self._book.blame(req_id, f"{failure_type}: {cause}")
        super()._log_failure(failure_type, req_id, *args, **context)
