"""In CI a skip is a failure, unless its reason is listed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.skips import ALLOWED

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
_TESTS = """
import pytest

def test_skips():
    pytest.skip("chromium is not installed")

@pytest.mark.skipif(True, reason="by a mark")
def test_is_skipped_by_a_mark():
    pass

def test_may_skip():
    pytest.skip({allowed!r})

@pytest.mark.xfail(strict=True)
def test_fails_as_expected():
    assert False
"""
_MODULE = "import pytest\n\npytest.importorskip('no_such_module')\n\ndef test_never_collected():\n    pass\n"


def outcomes(folder: Path, ci: str) -> str:
    """pytest's last line, of a run under this repository's conftest."""
    (folder / "test_tests.py").write_text(_TESTS.format(allowed=next(iter(ALLOWED))))
    (folder / "test_module.py").write_text(_MODULE)
    plugin = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c", os.devnull]
    run = [sys.executable, "-m", "pytest", "-q", *plugin, "--continue-on-collection-errors", str(folder)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "PYTEST"))}
    env = kept | {"CI": ci, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


def test_in_ci_a_skip_fails_unless_its_reason_is_listed(tmp_path: Path) -> None:
    assert outcomes(tmp_path, "true").startswith("1 failed, 1 skipped, 1 xfailed, 2 errors in")


def test_elsewhere_skips_are_skips(tmp_path: Path) -> None:
    assert outcomes(tmp_path, "").startswith("4 skipped, 1 xfailed in")
