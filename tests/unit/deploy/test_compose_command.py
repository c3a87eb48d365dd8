"""`ppd compose`: what it writes for a placement, and that the checked-in files are its own."""

import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest

from ppd.cli.compose.command import main
from ppd.cli.compose.layout import LayoutError, lay_out
from ppd.core.placement import parse_placement

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.unit
WORKERS = Path(__file__).parents[3] / "deploy" / "compose" / "workers"
ROLE = {"p": "prefill", "d": "decode", "r": "replica"}


def engines(file: Path) -> dict[str, dict[str, Any]]:
    """The services that run an engine, by name."""
    services = yaml.safe_load(file.read_text())["services"]
    return {name: service for name, service in services.items() if "worker" in service.get("command", [])}


def flag(service: dict[str, Any], name: str) -> str:
    command: list[str] = service["command"]
    return command[command.index(name) + 1]


def write(path: Path, *argv: str) -> Path:
    assert main([*argv, "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize("placement", ["1P3D", "2P2D", "3P1D", "4R", "1P2D1R", "2P1D1R"])
def test_each_gpu_is_used_once_and_roles_match(tmp_path: Path, placement: str) -> None:
    found = engines(write(tmp_path / "w.yaml", "--placement", placement, "--gpus", "0,1,2,3"))
    assert sorted(flag(service, "--devices") for service in found.values()) == ["0", "1", "2", "3"]
    assert [flag(service, "--role") for service in found.values()] == parse_placement(placement).roles()
    for name, service in found.items():
        assert flag(service, "--role") == ROLE[name[0]]
        assert flag(service, "--advertise-host") == name == flag(service, "--name")
        assert flag(service, "--port") == "8100"
        assert service["healthcheck"]["test"][-1] == "http://127.0.0.1:8100/health"
        devices = service["deploy"]["resources"]["reservations"]["devices"]
        assert devices == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
        assert (service["ipc"], service["pid"]) == ("host", "host")
        assert "ports" not in service


def test_tensor_parallel_groups_share_all_gpus(tmp_path: Path) -> None:
    found = engines(write(tmp_path / "w.yaml", "--placement", "1P1D", "--gpus", "0,1,2,3"))
    assert [flag(service, "--devices") for service in found.values()] == ["0,1", "2,3"]
    assert {flag(service, "--tensor-parallel") for service in found.values()} == {"2"}


def test_several_nodes_share_the_first_ones_servers(tmp_path: Path) -> None:
    nodes = ("10.0.0.1", "10.0.0.2")
    argv = ("--placement", "2P6D", "--gpus", "0,1,2,3", "--nodes", ",".join(nodes))
    assert main([*argv, "-o", str(tmp_path / "w.yaml")]) == 0
    seen = []
    for number, address in enumerate(nodes):
        content = yaml.safe_load((tmp_path / f"w.{number}.yaml").read_text())
        found = engines(tmp_path / f"w.{number}.yaml")
        assert sorted(flag(service, "--devices") for service in found.values()) == ["0", "1", "2", "3"]
        assert sorted(flag(service, "--role") for service in found.values()) == ["decode"] * 3 + ["prefill"]
        for service in found.values():
            assert service["network_mode"] == "host"
            assert service["environment"]["PPD_ETCD"] == "10.0.0.1:2379"
            assert service["environment"]["PPD_NATS"] == "nats://10.0.0.1:4222"
            assert "PPD_SIDE_CHANNEL_HOST" not in service["environment"]
            assert flag(service, "--host") == address
            assert ("depends_on" in service) == (number == 0)
            seen.append((address, flag(service, "--port"), flag(service, "--side-channel-port")))
        published = {name: content["services"].get(name, {}).get("ports") for name in ("etcd", "nats")}
        expected = {"etcd": ["10.0.0.1:2379:2379"], "nats": ["10.0.0.1:4222:4222"]} if number == 0 else {}
        assert {name: ports for name, ports in published.items() if ports} == expected
    for one, other in itertools.combinations(seen, 2):
        assert one[:2] != other[:2]
        assert (one[0], one[2]) != (other[0], other[2])
    targets = (tmp_path / "w.targets.json").read_text()
    assert all(f"{address}:{port}" in targets for address, port, _ in seen)


@pytest.mark.parametrize(
    ("file", "argv"),
    [
        *((f"gpu-{p}", ("--gpus", "0,1,2,3")) for p in ("1P3D", "2P2D", "3P1D", "4R", "1P2D1R", "2P1D1R")),
        *((f"cpu-{p}", ()) for p in ("1P1D", "1R")),
        *((f"sim-{p}", ("--engine", "sim")) for p in ("1P3D", "2P2D", "3P1D", "4R")),
    ],
)
def test_the_checked_in_files_are_what_the_command_writes(
    tmp_path: Path, file: str, argv: tuple[str, ...]
) -> None:
    made = write(tmp_path / "w.yaml", "--placement", file.partition("-")[2], *argv)
    assert made.read_text() == (WORKERS / f"{file}.yaml").read_text()


@pytest.mark.parametrize("argv", [("--gpus", "0,1"), (), ("--engine", "sim")], ids=["gpu", "cpu", "sim"])
def test_each_engine_gets_its_secrets_as_files(tmp_path: Path, argv: tuple[str, ...]) -> None:
    made = write(tmp_path / "w.yaml", "--placement", "1P1D", *argv)
    declared = yaml.safe_load(made.read_text())["secrets"]
    for service in engines(made).values():
        environment = service["environment"]
        for name, variable in (
            ("engine_key", "PPD_ENGINE_KEY"),
            ("otlp_headers", "OTEL_EXPORTER_OTLP_HEADERS"),
        ):
            assert name in service["secrets"]
            assert name in declared
            assert environment[f"{variable}_FILE"] == f"/run/secrets/{name}"


def test_no_other_file_lies_beside_them() -> None:
    assert len(list(WORKERS.iterdir())) == 12


def test_model_and_engine_flags_reach_every_engine_literally(tmp_path: Path) -> None:
    argv = ["--placement", "2R", "--gpus", "0,1", "--model", "org/a$b", "-o", str(tmp_path / "w.yaml")]
    assert main([*argv, "--", "--max-num-seqs", "8", "--x", '{"a": "$b"}']) == 0
    for service in engines(tmp_path / "w.yaml").values():
        assert flag(service, "--model") == "org/a$$b"
        assert service["command"][-5:] == ["--", "--max-num-seqs", "8", "--x", '{"a": "$$b"}']


def test_rdma_gives_the_device(tmp_path: Path) -> None:
    found = engines(write(tmp_path / "w.yaml", "--placement", "1P1D", "--gpus", "0,1", "--rdma"))
    assert all(service["devices"] == ["/dev/infiniband"] for service in found.values())
    assert all(service["cap_add"] == ["IPC_LOCK"] for service in found.values())


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--placement", "1P3D", "--gpus", "0,1,2"], "3 GPUs cannot be shared evenly"),
        (["--placement", "1P1D", "--gpus", "0,0"], "named twice"),
        (["--placement", "1P2D", "--nodes", "a,b", "--gpus", "0"], "cannot be shared evenly by 2 nodes"),
        (["--placement", "3X"], "is no placement"),
        (["--placement", "2R", "--nodes", "a,b", "--gpus", "0"], "name them with --output"),
    ],
)
def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str], argv: list[str], says: str) -> None:
    assert main(argv) == 2
    assert says in capsys.readouterr().err


def test_engines_are_dealt_so_that_each_node_has_both_roles() -> None:
    for node in lay_out(parse_placement("2P2D"), ("0", "1"), ("a", "b")):
        assert {engine.role.value for engine in node.engines} == {"prefill", "decode"}
    with pytest.raises(LayoutError):
        lay_out(parse_placement("1P1D"), (), ("a", "a"))


@pytest.mark.parametrize("page", ["gpu-node", "several-nodes"])
def test_the_commands_in_the_docs_work(tmp_path: Path, page: str) -> None:
    lines = (WORKERS.parents[2] / "docs" / f"{page}.md").read_text().splitlines()
    commands = [
        line.partition(" # ")[0].strip() for line in lines if line.startswith("ppd compose --placement")
    ]
    assert commands
    for command in commands:
        argv = shlex.split(command)[2:]
        argv[argv.index("-o") + 1] = str(tmp_path / "out.yaml")
        assert main(argv) == 0, command
