"""Compose, Prometheus and Jaeger files: by the real programs where installed, and by content."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.unit
DEPLOY = Path(__file__).parents[3] / "deploy" / "compose"


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text())
    return content


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_its_files() -> None:
    folder = DEPLOY / "prometheus"
    done = subprocess.run(
        ["promtool", "check", "config", str(folder / "prometheus.yml")], capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_jaeger_takes_its_file() -> None:
    """By its schema, of which a mistyped name, a value of another kind or a missing part is no instance."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = json.loads((Path(__file__).parent / "jaeger.schema.json").read_text())
    config = read("jaeger/config.yaml")
    jsonschema.validate(config, schema)
    config["processors"]["tail_sampling"]["policies"][0]["latncy"] = {}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config, schema)


def test_jaegers_pipeline_uses_what_is_defined_and_nothing_else() -> None:
    config = read("jaeger/config.yaml")
    pipeline = config["service"]["pipelines"]["traces"]
    assert set(pipeline["receivers"]) == set(config["receivers"])
    assert set(pipeline["processors"]) == set(config["processors"])
    assert set(pipeline["exporters"]) == set(config["exporters"])
    assert set(config["service"]["extensions"]) == set(config["extensions"])
    backends = set(config["extensions"]["jaeger_storage"]["backends"])
    assert config["exporters"]["jaeger_storage_exporter"]["trace_storage"] in backends
    assert set(config["extensions"]["jaeger_query"]["storage"].values()) <= backends


def test_errors_and_slow_turns_are_kept_whatever_the_share_is() -> None:
    policies = read("jaeger/config.yaml")["processors"]["tail_sampling"]["policies"]
    kinds = {policy["type"]: policy for policy in policies}
    assert kinds["status_code"]["status_code"]["status_codes"] == ["ERROR"]
    assert "threshold_ms" in kinds["latency"]["latency"]
    assert "probabilistic" in kinds
    counted = {policy["numeric_attribute"]["key"] for policy in policies if "numeric_attribute" in policy}
    assert counted == {"ppd.retries", "ppd.migrations"}


@pytest.mark.parametrize("name", ["compose.yaml", "compose.observe.yaml"])
def test_each_long_lived_service_is_guarded(name: str) -> None:
    for service, wanted in read(name)["services"].items():
        if "image" not in wanted or service == "volumes":
            continue
        assert wanted["restart"] == "unless-stopped", service
        assert wanted["cap_drop"] == ["ALL"], service
        assert "healthcheck" in wanted, service
        assert "mem_limit" in wanted, service
        for port in wanted.get("ports", []):
            assert "BIND:-127.0.0.1}:" in port, f"{service} publishes {port}"


@pytest.mark.parametrize("name", ["compose.yaml", "compose.observe.yaml"])
def test_images_are_pinned(name: str) -> None:
    for service, wanted in read(name)["services"].items():
        if "image" in wanted:
            tag = wanted["image"].rsplit(":", 1)[1].rstrip("}")
            assert tag[0].isdigit() or tag[0] == "v", f"{service}: {wanted['image']}"
            assert "latest" not in tag


def test_every_setting_of_the_example_is_used() -> None:
    text = "".join(file.read_text() for file in [*DEPLOY.glob("*.yaml"), *DEPLOY.glob("workers/*.yaml")])
    for line in (DEPLOY / ".env.example").read_text().splitlines():
        name = line.lstrip("# ").partition("=")[0]
        if "=" in line and name.isupper() and not name.startswith("COMPOSE_"):
            assert f"${{{name}" in text or f"{name}:" in text or name == "PPD_PLACEMENT", name
