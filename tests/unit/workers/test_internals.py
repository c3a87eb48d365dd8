"""The connector's own decisions, in vLLM's own scheduler for NIXL, without an engine."""

import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

pytest.importorskip("vllm")

import torch
from vllm.config import CacheConfig, KVTransferConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus

from workers.connector import internals
from workers.connector.fingerprint import marks
from workers.connector.internals import ReportingScheduler, TracingWorker, mismatch
from workers.connector.nixl import NixlConnector
from workers.connector.transfers import Origin, Transfer, TransferBook

pytestmark = pytest.mark.unit

PROMPT = list(range(100))


class FakeReporter:
    def __init__(self) -> None:
        self.got: list[Any] = []

    def put(self, item: Any) -> None:
        self.got.append(item)


def _scheduler() -> ReportingScheduler:
    """vLLM's own, by its own configuration: blocks of 16 tokens, KV both ways."""
    config = VllmConfig(
        cache_config=CacheConfig(block_size=16),
        kv_transfer_config=KVTransferConfig(
            kv_connector="NixlConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"bidirectional_kv_xfer": True, "kv_recompute_threshold": 0},
        ),
    )
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=16, dtype=torch.bfloat16)
    cache = KVCacheConfig(
        num_blocks=64, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    scheduler = ReportingScheduler(config, "engine", cache)
    scheduler.report_to(FakeReporter(), "d0-1")
    return scheduler


def _request(params: dict[str, Any], request_id: str = "v1", prompt: list[int] = PROMPT) -> Request:
    sampling = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": params})
    return Request(
        request_id=request_id, prompt_token_ids=prompt, sampling_params=sampling, pooling_params=None
    )


def _remote(tokens: list[int], pull_back: bool, **more: Any) -> dict[str, Any]:
    return {
        "do_remote_prefill": not pull_back,
        "do_remote_decode": pull_back,
        "remote_block_ids": [list(range(-(-len(tokens) // 16)))],
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "h",
        "remote_port": 1,
        "remote_num_tokens": len(tokens),
        "ppd_tokens": [list(mark) for mark in marks(tokens, [40, len(tokens)])],
        **more,
    }


def test_kv_of_the_same_tokens_is_pulled_whole() -> None:
    params = _remote(PROMPT[:70], pull_back=True)
    assert _scheduler().get_num_new_matched_tokens(_request(params), 0) == (70, True)
    assert len(params["remote_block_ids"][0]) == 5


def test_of_an_edited_history_only_the_common_prefix_is_pulled() -> None:
    held = [*PROMPT[:40], 7, 7, 7, *range(300, 330)]
    params = _remote(held, pull_back=True)
    assert _scheduler().get_num_new_matched_tokens(_request(params), 0) == (40, True)
    assert params["remote_block_ids"] == [[0, 1, 2]]


@pytest.mark.parametrize("pull_back", [True, False])
def test_kv_of_another_prompt_is_not_pulled(pull_back: bool) -> None:
    params = _remote([5, *PROMPT], pull_back=pull_back)
    assert _scheduler().get_num_new_matched_tokens(_request(params), 0) == (0, False)
    assert params["remote_block_ids"] == [list(range(7))]  # so that their source is told to free them


@pytest.mark.parametrize("pull_back", [True, False])
def test_parameters_are_used_once(pull_back: bool) -> None:
    scheduler = _scheduler()
    first = _request(_remote(PROMPT, pull_back=pull_back), "v1")
    assert scheduler.get_num_new_matched_tokens(first, 0)[0] == 100
    assert scheduler.get_num_new_matched_tokens(first, 0)[0] == 100  # asked again while it waits
    second = _request(_remote(PROMPT, pull_back=pull_back), "v2")
    assert scheduler.get_num_new_matched_tokens(second, 0) == (0, False)
    assert second.kv_transfer_params["remote_block_ids"] == []  # nobody is told of it again


def test_a_pull_that_failed_is_not_waited_for_again() -> None:
    scheduler = _scheduler()
    request = _request(_remote(PROMPT, pull_back=True))
    assert scheduler.get_num_new_matched_tokens(request, 0) == (100, True)
    request.kv_transfer_params["_remote_blocks_processed"] = True  # by update_state_after_alloc
    assert scheduler.get_num_new_matched_tokens(request, 0) == (0, False)


def test_the_memory_of_used_parameters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "_REMEMBERED", 5)
    scheduler = _scheduler()
    for number in range(50):
        params = _remote(PROMPT, pull_back=True, remote_request_id=f"r{number}")
        scheduler.get_num_new_matched_tokens(_request(params, f"v{number}"), 0)
    assert len(scheduler._users) == 5


def test_parameters_without_marks_are_vllms_own_business() -> None:
    params = _remote(PROMPT[:70], pull_back=True)
    del params["ppd_tokens"]
    assert _scheduler().get_num_new_matched_tokens(_request(params), 0) == (70, True)


def test_queued_tokens_are_those_not_computed_yet() -> None:
    scheduler = _scheduler()
    for request_id, computed in (("v1", 30), ("v2", 100)):
        request = _request({}, request_id)
        request.num_computed_tokens = computed
        scheduler._unfinished[request_id] = request
    scheduler._say_queue(1.0)
    scheduler._say_queue(2.0)
    assert [report.tokens for report in scheduler._reporter.got] == [70]


def _finish(scheduler: ReportingScheduler, request: Request) -> bool:
    """Whether its blocks are kept for a reader; by vLLM's own rule those of a full prefill are."""
    request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    request.num_computed_tokens = request.num_prompt_tokens
    return scheduler.request_finished(request, ([1, 2, 3, 4, 5, 6, 7],))[0]


@pytest.fixture
def prefiller() -> ReportingScheduler:
    """A prefill engine's scheduler, with one turn under way."""
    scheduler = _scheduler()
    scheduler.on_new_request(_request({"do_remote_decode": True, "ppd_request_id": "turn"}, "v1"))
    return scheduler


RELEASE = {"do_remote_prefill": True, "ppd_release": "turn"}


def test_a_finished_prefill_that_is_not_wanted_has_its_lease_ended(prefiller: ReportingScheduler) -> None:
    assert _finish(prefiller, _request({"do_remote_decode": True}, "v1"))
    for number in range(2):  # asked twice, it is done once
        assert not _finish(prefiller, _request(dict(RELEASE), f"r{number}"))
        assert prefiller._reqs_need_send == {"v1": 0.0}


def test_a_running_prefill_that_is_not_wanted_leaves_no_lease(prefiller: ReportingScheduler) -> None:
    assert not _finish(prefiller, _request(dict(RELEASE), "r"))
    assert not _finish(prefiller, _request({"do_remote_decode": True}, "v1"))
    assert prefiller._reqs_need_send == {}
    assert prefiller._reqs_not_processed == {"v1"}


def test_the_word_of_a_turn_that_was_not_prefilled_here_is_nothing(prefiller: ReportingScheduler) -> None:
    assert not _finish(prefiller, _request({**RELEASE, "ppd_release": "other"}, "r"))
    assert _finish(prefiller, _request({"do_remote_decode": True}, "v1"))
    assert prefiller._reqs_need_send["v1"] > time.perf_counter()  # the lease goes on


def test_failure_causes_reach_the_book(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Transfer] = []
    worker = object.__new__(TracingWorker)
    worker._book = TransferBook(ended.append)
    worker._book.begin("v1", Transfer(Origin.of({}, 0), "e", 1))
    base = internals.NixlPullConnectorWorker
    own = create_autospec(base._log_failure)  # refuses a call that vLLM's would refuse
    monkeypatch.setattr(base, "_log_failure", own)
    worker._log_failure("transfer_failed", "v1", xfer_state="ERR")
    own.assert_called_once_with(worker, "transfer_failed", "v1", xfer_state="ERR")
    worker._book.end("v1", "later")
    assert [t.error for t in ended] == ["transfer_failed: ERR"]


def _config(**own: Any) -> Any:
    extra = {"ppd": own, "bidirectional_kv_xfer": True}
    transfer = SimpleNamespace(get_from_extra_config=extra.get, kv_connector_extra_config=extra)
    return SimpleNamespace(kv_transfer_config=transfer)


def test_this_vllm_is_supported() -> None:
    assert mismatch() == ""


@pytest.mark.parametrize(("name", "value"), [("vllm_version", "0.33.1"), ("NIXL_CONNECTOR_VERSION", 15)])
def test_an_unknown_vllm_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(internals, name, value)
    with pytest.raises(RuntimeError, match=f"{value} is not .*plain-connector-on-mismatch"):
        NixlConnector(_config(), None, None)


def test_on_demand_an_unknown_vllm_gets_the_plain_connector(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(internals, "vllm_version", "0.33.1")
    monkeypatch.setattr(internals.NixlPullConnector, "__init__", lambda self, *args: made.append(args))
    with caplog.at_level("WARNING"):
        NixlConnector(_config(plain_on_mismatch=True), "role", "kv")
    ((config, *rest),) = made
    assert rest == ["role", "kv"]
    assert not config.kv_transfer_config.kv_connector_extra_config["bidirectional_kv_xfer"]
    assert "WITHOUT KV SPANS" in caplog.text
