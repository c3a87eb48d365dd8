"""Every metric that dashboards and rules ask for is exported by a service, with the labels that they use."""

import importlib.util
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
DEPLOY = Path(__file__).parents[3] / "deploy" / "compose"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
_OF_A_SCRAPE = {"instance", "job", "le"}
_OF_VLLM = {"model_name", "engine", "source"}
_METRIC = re.compile(r"\b(?:ppd_[a-z0-9_]+|vllm:[a-z0-9_]+)\b")


# The registry behind a service's /metrics, in a process that imports the service alone.
_EXPORTED = """
import importlib, json, sys
from prometheus_client import REGISTRY

importlib.import_module(sys.argv[1])
print(json.dumps([
    [family.name, family.type, list(getattr(collector, "_labelnames", ()))]
    for collector in set(REGISTRY._collector_to_names) if hasattr(collector, "describe")
    for family in collector.describe()
]))
"""


@cache
def ours() -> dict[str, set[str]]:
    """Each sample that frontend and planner export, with its labels."""
    samples: dict[str, set[str]] = {}
    for service in ("controlplane.processes.serve", "planner.service"):
        done = subprocess.run(
            [sys.executable, "-c", _EXPORTED, service], check=True, capture_output=True, timeout=120
        )
        for name, kind, labels in json.loads(done.stdout):
            for suffix in _SUFFIXES.get(kind, ()):
                samples[name + suffix] = set(labels)
    return samples


def engines() -> set[str]:
    """The families that the installed vLLM declares, from its source."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vLLM is not installed")
    names: set[str] = set()
    for folder in spec.submodule_search_locations:
        for file in Path(folder).rglob("*.py"):
            names |= set(re.findall(r'"(vllm:[a-z0-9_]+)"', file.read_text(errors="ignore")))
    return names


def queries() -> list[tuple[str, str]]:
    """Where it stands, and the PromQL."""
    found = [
        (f"{file.name}: {panel['title']}", target["expr"])
        for file in DASHBOARDS
        for panel in json.loads(file.read_text())["panels"]
        for target in panel["targets"]
    ]
    rules = (DEPLOY / "prometheus" / "rules.yml").read_text()
    return found + [("rules.yml", expression) for expression in re.findall(r"expr: (.*)", rules)]


def test_there_are_three_dashboards_with_queries() -> None:
    assert [file.stem for file in DASHBOARDS] == ["overview", "planner", "workers"]
    assert len(queries()) > 60


def test_our_metrics_exist_with_the_labels_used() -> None:
    known = ours()
    for where, query in queries():
        metrics = [name for name in _METRIC.findall(query) if name.startswith("ppd_")]
        assert not set(metrics) - set(known), f"{where}: {set(metrics) - set(known)}"
        allowed = {label for name in metrics for label in known[name]} | _OF_A_SCRAPE | _OF_VLLM
        used = {
            label
            for group in re.findall(r"by \(([^)]*)\)", query)
            for label in group.replace(" ", "").split(",")
        }
        used |= set(re.findall(r"[{,](\w+)[=!]~?\"", query))
        assert used <= allowed, f"{where}: {used - allowed}"


def test_the_engines_metrics_exist() -> None:
    families = engines()
    for where, query in queries():
        for name in _METRIC.findall(query):
            if name.startswith("vllm:"):
                family = re.sub(r"_(total|sum|count|bucket)$", "", name)
                assert {family, name} & families, f"{where}: {name}"


def test_legends_name_labels_that_the_query_keeps() -> None:
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                    kept = re.findall(r"by \(([^)]*)\)", target["expr"])
                    assert all(label in group for group in kept), f"{file.name}: {panel['title']}: {label}"


def test_the_dashboards_are_what_their_script_writes(tmp_path: Path) -> None:
    script = tmp_path / "make_dashboards.py"
    script.write_text((DEPLOY / "grafana" / "make_dashboards.py").read_text())
    (tmp_path / "dashboards").mkdir()
    subprocess.run([sys.executable, str(script)], check=True, timeout=60)
    for file in DASHBOARDS:
        assert (tmp_path / "dashboards" / file.name).read_text() == file.read_text(), file.name


def test_the_docs_list_what_is_exported_and_nothing_else() -> None:
    text = (DEPLOY.parents[1] / "docs" / "metrics.md").read_text()
    listed = set(re.findall(r"^\| `(ppd_\w+)` \|", text, re.MULTILINE))
    exported = {re.sub(r"_(bucket|sum|count)$", "", name) for name in ours() if name.startswith("ppd_")}
    assert listed == exported
    assert {name for name in _METRIC.findall(text) if name.startswith("ppd_")} <= set(ours()) | listed
