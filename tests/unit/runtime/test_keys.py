"""The file of API keys."""

import os
import threading
from pathlib import Path

import pytest

from ppd.runtime import keys
from ppd.runtime.keys import KeyFileError

pytestmark = pytest.mark.unit


def made(path: Path, name: str, **limits: str | int) -> str:
    with keys.editing(path) as listed:
        return keys.add(listed, name, "2026-01-01T00:00:00Z", **limits)


def test_a_key_is_found_by_itself_alone_and_the_file_does_not_hold_it(tmp_path: Path):
    path = tmp_path / "keys.json"
    one, two = made(path, "one", slo="batch", requests_per_min=5), made(path, "two")
    known = keys.read(path)
    found = known.find(one)
    assert found is not None
    assert (found.name, found.slo, found.requests_per_min, found.max_tokens) == ("one", "batch", 5, 0)
    assert known.find(two).name == "two"
    secret = one.removeprefix(f"{keys.PREFIX}1-")
    text = path.read_text()
    assert one not in text
    assert secret[:12] not in text
    assert path.stat().st_mode & 0o077 == 0
    swapped = two.replace("-2-", "-1-")
    for wrong in ("", "x", one[:-1], one + "x", one.upper(), one.replace("-1-", "-9-"), swapped, "\ud800"):
        assert known.find(wrong) is None, wrong


def test_names_are_unique_and_a_failed_edit_changes_nothing(tmp_path: Path):
    path = tmp_path / "keys.json"
    made(path, "one")
    before = path.read_bytes()
    for name, limits in (("one", {}), ("a b", {}), ("x", {"slo": "no spaces please"})):
        with pytest.raises(KeyFileError):
            made(path, name, **limits)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["keys.json"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"keys": [{"name": "x"}]}',
        b'{"keys": [], "more": 1}',
        b'{"keys": [{"id": 1, "name": "x", "sha256": "abc"}]}',
        b'{"keys": [{"id": 1, "name": "x", "sha256": "%b"}, {"id": 1, "name": "y", "sha256": "%b"}]}'
        % (b"0" * 64, b"0" * 64),
    ],
)
def test_what_is_no_file_of_keys_is_refused(tmp_path: Path, text: bytes):
    path = tmp_path / "keys.json"
    path.write_bytes(text)
    with pytest.raises(KeyFileError, match=r"keys\.json"):
        keys.read(path)


def test_a_hash_of_zeros_opens_nothing(tmp_path: Path):
    path = tmp_path / "keys.json"
    path.write_bytes(b'{"keys": [{"id": 1, "name": "x", "sha256": "%b"}]}' % (b"0" * 64))
    assert keys.read(path).find("sk-ppd-2-" + "A" * 43) is None


def test_editors_at_once_lose_no_key(tmp_path: Path):
    path = tmp_path / "keys.json"
    threads = [threading.Thread(target=made, args=(path, f"k{i}")) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = list(keys.read(path))
    assert {key.name for key in known} == {f"k{i}" for i in range(20)}
    assert {key.id for key in known} == set(range(1, 21))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_who_may_read_the_file_stays_so_over_a_change(tmp_path: Path):
    path = tmp_path / "keys.json"
    made(path, "one")
    os.chown(path, 65532, 65532)
    path.chmod(0o440)
    made(path, "two")
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (65532, 65532, 0o440)
