"""`ppd key`."""

import json
from pathlib import Path

import pytest

from ppd.cli.key import main
from ppd.runtime import keys

pytestmark = pytest.mark.unit


def test_a_key_is_made_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = ["--keys", str(tmp_path / "keys.json")]
    assert main(["new", "alice", "--slo", "batch", "--requests-per-min", "60", *file]) == 0
    key = capsys.readouterr().out.strip()
    assert keys.read(tmp_path / "keys.json").find(key).name == "alice"
    assert main(["list", "--json", *file]) == 0
    out = capsys.readouterr().out
    (row,) = json.loads(out)
    assert (row["name"], row["slo"], row["requests_per_min"]) == ("alice", "batch", 60)
    assert key not in out
    assert main(["list", *file]) == 0
    assert "alice" in capsys.readouterr().out
    assert main(["revoke", "alice", *file]) == 0
    assert keys.read(tmp_path / "keys.json").find(key) is None


def test_mistakes_are_said_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = ["--keys", str(tmp_path / "keys.json")]
    assert main(["list", *file]) == 2
    assert main(["revoke", "nobody", *file]) == 2
    assert main(["new", "alice", *file]) == 0
    assert main(["new", "alice", *file]) == 2
    assert main(["revoke", "nobody", *file]) == 2
    assert main(["paint"]) == 2
    said = capsys.readouterr().err
    assert "no such file" in said.lower()
    assert "already" in said
    assert "no verb 'paint'" in said
    assert main([]) == 0
