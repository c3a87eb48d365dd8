"""Records survive the wire, ignore what they do not know, and refuse what they cannot read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core import names
from ppd.core.names import Role
from ppd.core.records import BadRecordError, WorkerRecord, decode, encode

pytestmark = pytest.mark.unit

WORKER = WorkerRecord(worker_id="d0-1", name="d0", role=Role.DECODE, model="m", url="http://127.0.0.1:1")


def test_round_trip():
    assert decode(encode(WORKER), WorkerRecord) == WORKER


def test_unknown_fields_are_ignored():
    data = msgspec.json.decode(encode(WORKER)) | {"from_the_future": [1, 2]}
    assert decode(msgspec.json.encode(data), WorkerRecord) == WORKER


def test_missing_optional_fields_take_defaults():
    data = b'{"worker_id":"d0-1","name":"d0","role":"decode","model":"m","url":"http://127.0.0.1:1"}'
    assert decode(data, WorkerRecord) == WORKER


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"{}", b"\xff\xfe", b'{"worker_id":1}', b"[" * 100_000]
)
def test_refuses(data):
    with pytest.raises(BadRecordError):
        decode(data, WorkerRecord)


def test_refuses_a_newer_meaning():
    data = msgspec.json.encode(msgspec.json.decode(encode(WORKER)) | {"v": 2})
    with pytest.raises(BadRecordError, match="version 2"):
        decode(data, WorkerRecord)


@given(st.text(), st.text())
def test_table_keys_collide_for_no_two_models(one, other):
    assert (names.table_key(one, "1P1D") == names.table_key(other, "1P1D")) == (one == other)


@given(st.text(min_size=1))
def test_subjects_are_single_safe_tokens(text):
    token = names.load_subject("default", text).removeprefix("ppd.default.load.")
    assert token.isascii()
    assert not set(token) & set(" .*>\t\r\n")
