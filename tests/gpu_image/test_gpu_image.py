"""What can be shown of the GPU image without a GPU: packages, imports, command lines, messages."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ppd.cli.compose.command import main as ppd_compose
from tests.gpu_image.image import Image, Ran
from tests.support.fake_hub import FakeHub

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
WORKERS = ROOT / "deploy" / "compose" / "workers"
MODEL = "/tmp/model"  # as `inside.py` writes it
_OURS = {"ppd", "pip"}
# NIXL is in vLLM's own image or comes with ours; with it come its parts for each CUDA.
_NIXL = {"nixl", "nixl-cu12", "nixl-cu13"}


def packages(image: Image, python: str) -> dict[str, str]:
    """Name and version of each that an `import` would find."""
    code = (ROOT / "deploy" / "compose" / "images" / "installed").read_text()
    code = code.replace(' if name not in ("pip", "setuptools")', "")
    ran = image.run("-c", code, entrypoint=python)
    assert ran.status == 0, ran.err
    return dict(line.split("==") for line in ran.out.split())


def test_our_layer_changes_no_package_of_the_base(image: Image, base: Image) -> None:
    before, after = packages(base, "python3"), packages(image, "/opt/ppd/bin/python")
    changed = {
        name: (version, after.get(name)) for name, version in before.items() if after.get(name) != version
    }
    assert changed.keys() <= {"pip"}, changed
    with (ROOT / "pyproject.toml").open("rb") as file:
        wanted = tomllib.load(file)["project"]["dependencies"]
    direct = {re.split(r"[\[=<>~! ]", line)[0].lower().replace("_", "-") for line in wanted}
    added = after.keys() - before.keys()
    assert added <= direct | _OURS | _NIXL, added - direct - _OURS - _NIXL


def test_no_requirement_is_broken_that_the_base_keeps(image: Image, base: Image) -> None:
    def complaints(ran: Ran) -> set[str]:
        return set(ran.out.splitlines())

    before = complaints(base.run("-m", "pip", "check", entrypoint="python3"))
    after = complaints(image.run("-m", "pip", "check", entrypoint="/opt/ppd/bin/python"))
    assert not after - before - {"No broken requirements found."}


def test_it_runs_as_a_user_that_can_write_where_it_has_to(image: Image) -> None:
    script = "id -u; touch /models/x ~/x && mkdir -p ~/.cache/vllm && echo writable"
    assert image.run("sh", "-c", script).out.split() == ["65532", "writable"]


def test_vllm_nixl_and_the_connector_load_without_a_driver(image: Image) -> None:
    found = json.loads(image.succeed("python", "-m", "ppd.cli.doctor.engine_facts"))
    assert found["vllm"].startswith("0.32.0")
    assert found["torch_cuda"].split(".")[0] == "13"
    assert found["nixl"]
    errors = {key: value for key, value in found.items() if key.endswith("_error") and value}
    assert not errors


_HASHES = """
import hashlib, importlib.util, json, pathlib
root = pathlib.Path(importlib.util.find_spec("vllm").submodule_search_locations[0])
files = {str(f.relative_to(root)): hashlib.sha256(f.read_bytes()).hexdigest() for f in root.rglob("*.py")}
print(json.dumps(files))
"""


def test_what_the_other_tests_show_of_the_cpu_build_holds_for_this_one(image: Image) -> None:
    """Their Python is the same, but for version, choice of the platform, and a stand-in for Triton."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("there is no vLLM here to compare with")
    done = subprocess.run([sys.executable, "-c", _HASHES], capture_output=True, text=True, check=True)
    here, there = json.loads(done.stdout), json.loads(image.succeed("python", "-c", _HASHES))
    assert len(here) > 1000
    differing = {name for name, digest in here.items() if there.get(name) != digest}
    assert differing <= {"_version.py", "platforms/__init__.py", "utils/cpu_triton_utils.py"}


def test_two_processes_in_it_move_memory_by_nixl(image: Image) -> None:
    out = image.succeed("ppd", "doctor", "--backend", "cpu", "--only", "kv-transfer", "--json")
    (result,) = json.loads(out)["results"]
    assert result["status"] == "ok"
    assert "content verified" in result["seen"]


def commands(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Of every GPU engine in the files that come along, and in some that `ppd compose` writes."""
    files = sorted(WORKERS.glob("gpu-*.yaml"))
    for placement, gpus, rest in (
        ("1P1D", "0,1,2,3", []),
        ("1P2D1R", "3,2,1,0", ["--", "--max-num-seqs", "77"]),
    ):
        made = folder / f"{placement}.yaml"
        assert ppd_compose(["--placement", placement, "--gpus", gpus, "-o", str(made), *rest]) == 0
        files.append(made)
    for file in files:
        for name, service in yaml.safe_load(file.read_text())["services"].items():
            if "worker" in service.get("command", []):
                argv = [MODEL if word.startswith("${PPD_MODEL") else word for word in service["command"]]
                assert argv[:2] == ["ppd", "worker"]
                yield f"{file.stem}/{name}", argv[2:]


def _flag(argv: list[str], name: str, otherwise: str = "") -> str:
    return argv[argv.index(name) + 1] if name in argv else otherwise


@pytest.fixture(scope="session")
def engines(
    image: Image, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Each engine's command line, and what vLLM makes of it for CUDA; one process for all."""
    listed = dict(commands(tmp_path_factory.mktemp("workers")))
    env = {"HF_HUB_OFFLINE": "1", "PPD_SIDE_CHANNEL_HOST": "127.0.0.1"}
    out = image.succeed("python", "/tests/inside.py", json.dumps([*listed.values()]), env=env, devices=4)
    return {name: (argv, found) for (name, argv), found in zip(listed.items(), json.loads(out), strict=True)}


def test_every_command_line_makes_a_configuration_of_vllm_for_cuda(engines: dict[str, Any]) -> None:
    assert len(engines) >= 16
    for name, (argv, found) in engines.items():
        asked = {
            "served_name": ["model"],
            "host": "0.0.0.0",
            "port": int(_flag(argv, "--port")),
            "device": "cuda",
            "visible_devices": _flag(argv, "--devices"),
            "dtype": "torch.bfloat16",
            "max_model_len": 32_768,
            "tensor_parallel": int(_flag(argv, "--tensor-parallel", "1")),
            "prefix_caching": True,
        }
        assert {key: found[key] for key in asked} == asked, name
    assert engines["1P1D/p0"][1]["tensor_parallel"] == 2
    assert {found["max_num_seqs"] for name, (_, found) in engines.items() if name.startswith("1P2D1R/")} == {
        77
    }


def test_roles_and_connector_are_as_the_command_lines_ask(engines: dict[str, Any]) -> None:
    role = {"prefill": "kv_producer", "decode": "kv_consumer", "replica": None}
    for name, (argv, found) in engines.items():
        assert found["kv_role"] == role[_flag(argv, "--role")], name
        if found["kv_role"] is None:
            continue
        assert found["kv_buffer_device"] == "cuda", name
        assert found["kv_load_failure_policy"] == "recompute", name
        assert found["kv_connector"] == {
            "connector": "workers.connector.nixl.NixlConnector",
            "scheduler": "ReportingScheduler",
            "side_channel": ["127.0.0.1", int(_flag(argv, "--side-channel-port"))],
            "bidirectional": True,
            "supports_hma": True,
        }, name


def worker(image: Image, *flags: str, **more: Any) -> tuple[int, str]:
    """Exit status and the last line of an engine's container, as the compose file starts it."""
    argv = ["ppd", "worker", "--role", "prefill", "--name", "p0", "--backend", "cuda", *flags]
    env = {
        "PPD_ETCD": "127.0.0.1:9",
        "PPD_NATS": "nats://127.0.0.1:9",
        "HF_HOME": "/models",
        **more.pop("env", {}),
    }
    ran = image.run(*argv, env=env, **more)
    assert not any("Traceback" in line for line in ran.lines), ran.lines
    errors = [line for line in ran.lines if "the engine cannot be started" in line]
    assert len(errors) == 1, ran.lines
    return ran.status, errors[0]


def test_without_a_driver_it_says_what_a_node_and_a_container_need(image: Image) -> None:
    status, line = worker(image, "--model", "org/model", "--devices", "0")
    assert status == 1
    assert "no NVIDIA driver" in line
    assert "NVIDIA container toolkit and `--gpus all`" in line


def test_with_too_few_devices_it_says_which_are_named_and_seen(image: Image) -> None:
    status, line = worker(
        image, "--model", "org/model", "--devices", "1,2", "--tensor-parallel", "2", devices=2
    )
    assert status == 1
    assert "devices 1,2 are named, and the driver shows 1" in line
    assert "nvidia-smi -L" in line


def test_without_a_way_to_the_hub_it_says_so(image: Image) -> None:
    status, line = worker(image, "--model", "org/model", "--devices", "0", devices=1)
    assert status == 1
    assert "cannot be reached to load org/model" in line
    assert "HF_ENDPOINT" in line


def test_the_token_comes_from_its_file_and_a_gated_model_names_the_licence(
    image: Image, tmp_path: Path
) -> None:
    from http.server import ThreadingHTTPServer

    seen: list[str | None] = []

    class Gated(FakeHub):
        status, code = 403, "GatedRepo"

        def do_HEAD(self) -> None:
            seen.append(self.headers.get("Authorization"))
            super().do_HEAD()

    token = tmp_path / "hf-token"
    token.write_text("hf_of_the_file\n")
    token.chmod(0o444)
    with ThreadingHTTPServer(("127.0.0.1", 0), Gated) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        status, line = worker(
            image,
            *("--model", "org/model", "--devices", "0"),
            devices=1,
            network="host",
            env={"HF_ENDPOINT": endpoint, "HF_TOKEN_FILE": "/run/secrets/hf_token"},
            mounts={token: "/run/secrets/hf_token"},
        )
        server.shutdown()
    assert status == 1
    assert "org/model is gated, and this HF_TOKEN may not read it" in line
    assert seen[0] == "Bearer hf_of_the_file"
    assert "hf_of_the_file" not in line
