import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import StatusCode

from workers.connector.spans import Puller, emit_span
from workers.connector.transfers import Origin, Transfer, TransferBook

pytestmark = pytest.mark.unit

PARAMS = {
    "ppd_request_id": "r1",
    "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    "ppd_worker_id": "p0-1",
    "do_remote_decode": False,
}


class Ended(list[Transfer]):
    """What a book called finished."""


def _transfer(**params: object) -> Transfer:
    return Transfer(Origin.of({**PARAMS, **params}, cached_blocks=2), "engine-p", blocks=5)


def test_reads_are_summed_and_the_longest_time_taken() -> None:
    ended = Ended()
    book = TransferBook(ended.append)
    book.begin("v1", _transfer())
    transfer = book.posting("v1")
    assert transfer is not None
    for handle in (7, 8):
        book.reading(handle, transfer)
    book.measured(7, 1000, 10, 0.2)
    book.measured(8, 500, 5, 0.1)
    book.measured(99, 1, 1, 9.0)
    book.end("v1")
    book.end("v1")
    [one] = ended
    assert (one.bytes, one.descriptors, one.reads, one.transfer_s, one.error) == (1500, 15, 2, 0.2, "")
    assert len(book) == 0


def test_the_first_cause_stays() -> None:
    ended = Ended()
    book = TransferBook(ended.append)
    book.begin("v1", _transfer())
    book.blame("v1", "handshake_failed: no route")
    book.blame("v1", "transfer_failed: ERR")
    book.blame("v2", "of another")
    book.blame(None, "of none")
    book.end("v1", "declined")
    assert [t.error for t in ended] == ["handshake_failed: no route"]


def test_an_overdue_transfer_is_a_failure() -> None:
    ended = Ended()
    book = TransferBook(ended.append, overdue_s=0)
    book.begin("v1", _transfer())
    book.check_overdue()
    assert [t.error for t in ended] == ["timed out: not complete after 0 s"]


def test_the_book_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.connector.transfers._MOST", 3)
    ended = Ended()
    book = TransferBook(ended.append)
    for number in range(10):
        book.begin(str(number), _transfer())
    assert len(book) == 3
    assert len(ended) == 7


@pytest.mark.parametrize(("decode", "direction"), [(True, "d-p"), (False, "p-d")])
def test_direction(decode: bool, direction: str) -> None:
    assert Origin.of({"do_remote_decode": decode}, 0).direction == direction


def _span(transfer: Transfer):
    tracer = TracerProvider().get_tracer("test")
    return emit_span(tracer, Puller("d0-1", "engine-d", 1, "UCX"), transfer)


def test_span_is_the_turns_child_with_its_attributes() -> None:
    transfer = _transfer(do_remote_decode=True)
    transfer.posted_s, transfer.ended_s = transfer.began_s + 0.5, transfer.began_s + 2
    transfer.bytes, transfer.transfer_s = 3_000_000_000, 1.5
    span = _span(transfer)
    assert span.name == "kv.transfer"
    assert span.context.trace_id == int("a" * 32, 16)
    assert span.parent.span_id == int("b" * 16, 16)
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes["kv.direction"] == "d-p"
    assert span.attributes["kv.gb_per_s"] == 2.0
    assert span.attributes["kv.wait_s"] == pytest.approx(0.5)
    assert span.attributes["kv.cached_blocks"] == 2
    assert span.end_time - span.start_time == pytest.approx(2e9, rel=1e-6)


def test_span_of_a_failure_has_its_cause() -> None:
    transfer = _transfer(traceparent="nonsense")
    transfer.error, transfer.ended_s = "transfer_failed: ERR", transfer.began_s + 1
    span = _span(transfer)
    assert span.parent is None
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "transfer_failed: ERR")
    assert span.attributes["error.type"] == "transfer_failed"
