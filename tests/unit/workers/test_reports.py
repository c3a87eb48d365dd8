import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core.pairing import why_not
from ppd.core.records import BadRecordError, KvHeld, KvMoved, WorkerRecord
from workers.facts import read_facts
from workers.peers import PeerCheck
from workers.reports import QueuedTokens, pack, unpack

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "report",
    [
        KvMoved(request_id="r", worker_id="d", bytes=5, error="é"),
        KvHeld(request_id="r", worker_id="d", params={"remote_block_ids": [[1, 2]]}),
        QueuedTokens(0),
        QueuedTokens(123),
    ],
)
def test_a_report_survives_the_way(report) -> None:
    assert unpack(pack(report)) == report


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_or_a_report(data: bytes) -> None:
    try:
        assert isinstance(unpack(data), KvMoved | KvHeld | QueuedTokens)
    except BadRecordError:
        pass


def test_facts_that_are_none_and_facts_that_are_broken(tmp_path) -> None:
    assert read_facts(tmp_path) is None
    (tmp_path / "facts.json").write_text("{")
    with pytest.raises(ValueError, match=r"facts\.json"):
        read_facts(tmp_path)


def _worker(name: str, role: str, **fields) -> WorkerRecord:
    return WorkerRecord(worker_id=f"{name}-1", name=name, role=role, model="m", url="", **fields)


def test_pairing_names_both_sides_and_every_difference() -> None:
    p = _worker("p0", "prefill", block_size_tokens=16, dtype="float16")
    d = _worker("d0", "decode", block_size_tokens=32, dtype="float16", kv_layout="HND")
    why = why_not(p, d)
    for part in ("prefill p0-1", "decode d0-1", "block size tokens 16 and 32", "kv layout '' and 'HND'"):
        assert part in why
    assert "dtype" not in why
    assert why_not(p, p) == ""


def test_an_unlike_peer_is_said_once(caplog) -> None:
    import logging

    check = PeerCheck("d0", logging.getLogger("t"))
    d = WorkerRecord(worker_id="d0-1", name="d0", role="decode", model="m", url="", block_size_tokens=32)
    from ppd.core.records import decode, encode

    def stored(record: WorkerRecord) -> WorkerRecord:
        return decode(encode(record), WorkerRecord)

    p = _worker("p0", "prefill", block_size_tokens=16)
    for _ in range(3):
        check.look({"a": stored(d), "b": stored(p)})
    assert caplog.text.count("cannot exchange KV") == 1
    check.look({"a": stored(d), "b": stored(_worker("p1", "prefill", block_size_tokens=32))})
    assert caplog.text.count("cannot exchange KV") == 1
