"""Tests find the same state however their run was started."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
_SHOW = """
import json, os, signal, urllib.request
from tests.support.environment import settle
settle()
print(json.dumps({
    "names": sorted(name for name in os.environ if name.startswith(("PPD_", "OTEL_", "COLUMNS"))),
    "bypass": bool(urllib.request.proxy_bypass("127.0.0.1")),
    "mask": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "SIGINT": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "SIGTERM": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
    "SIGHUP": signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
    "umask": os.umask(0),
}))
"""


def _as_started_by_an_odd_parent() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, signal.SIGTERM))
    os.umask(0o077)


def test_a_run_starts_from_a_known_state() -> None:
    odd = {
        "PPD_PORT": "1",
        "PPD_LOG_JSON": "true",
        "PPD_TEST_LOCK": "/tmp/lock",
        "OTEL_SDK_DISABLED": "true",
        "COLUMNS": "10",
        "http_proxy": "http://127.0.0.1:1",
    }
    shown = subprocess.run(
        [sys.executable, "-c", _SHOW],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]} | odd,
        preexec_fn=_as_started_by_an_odd_parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(shown.stdout) == {
        "names": ["PPD_TEST_LOCK"],
        "bypass": True,
        "mask": 0,
        "SIGINT": True,
        "SIGTERM": True,
        "SIGHUP": True,
        "umask": 0o022,
    }
