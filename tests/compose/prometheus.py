"""A real Prometheus on this machine, that scrapes the stack's containers by their addresses."""

import json
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.compose.stack import Stack, get, until

PORT = 27002
_JOBS = {
    "frontend": (8000, ("frontend",)),
    "planner": (8010, ("planner-a", "planner-b")),
    "engine": (8100, ("p0", "d0", "d1", "d2")),
}
INSTALLED = shutil.which("prometheus") is not None


def address(stack: Stack, service: str) -> str:
    networks = stack.inspect(service)["NetworkSettings"]["Networks"]
    return str(next(iter(networks.values()))["IPAddress"])


@contextmanager
def scraping(stack: Stack, folder: Path) -> Iterator[str]:
    """Its URL. The jobs are named as in deploy/compose/prometheus; only the way to the targets differs."""
    jobs = [
        {
            "job_name": job,
            "static_configs": [{"targets": [f"{address(stack, service)}:{port}" for service in services]}],
        }
        for job, (port, services) in _JOBS.items()
    ]
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    argv = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{PORT}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{PORT}"
        until(
            "all targets are scraped",
            lambda: len(ask(url, "up == 1")) == sum(len(s) for _, s in _JOBS.values()),
        )
        yield url
    finally:
        process.terminate()
        process.wait(30)


def ask(url: str, query: str) -> list[object]:
    """The series that a query gives. AssertionError where Prometheus refuses it."""
    status, answer = get(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    if status in (0, 503):  # not up yet
        return []
    assert status == 200, f"{query}: {answer}"
    series: list[object] = answer["data"]["result"]
    return series


def dashboard_queries(folder: Path) -> dict[str, str]:
    """`dashboard: panel: n` and its PromQL, rates over a short window, as the test has no more."""
    return {
        f"{file.stem}: {panel['title']}: {target['refId']}": re.sub(
            r"\[(1m|5m|1h)\]", "[30s]", target["expr"]
        )
        for file in sorted((folder / "grafana" / "dashboards").glob("*.json"))
        for panel in json.loads(file.read_text())["panels"]
        for target in panel["targets"]
    }
