import dataclasses
from pathlib import Path

import pytest

from ppd.cli.model import catalog
from ppd.cli.model.catalog import Model
from ppd.cli.stack import plan
from ppd.cli.stack.spec import PlanError, Spec
from ppd.core.names import Role
from ppd.core.placement import parse_placement
from workers.engine import numa

pytestmark = pytest.mark.unit


def _spec(placement: str = "1P1D", gpus: tuple[str, ...] = (), engine_args: tuple[str, ...] = ()) -> Spec:
    return Spec(
        placement=parse_placement(placement),
        model=Model("m", "org/m"),
        host="127.0.0.1",
        port=8000,
        engine="vllm",
        hardware="",
        gpus=gpus,
        namespace="default",
        engine_args=engine_args,
        policy="",
    )


def _engine_args(spec: Spec, folder: Path) -> list[str]:
    argv = _workers(spec, folder)[0].argv
    return list(argv[argv.index("--") + 1 :]) if "--" in argv else []


def _workers(spec: Spec, folder: Path) -> list[plan.Member]:
    made = plan.make(spec, folder, folder / "logs")
    return [member for member in made.members if member.kind == plan.Kind.WORKER]


def _flag(member: plan.Member, name: str) -> str:
    return member.argv[member.argv.index(name) + 1]


@pytest.mark.parametrize(
    ("engines", "cores", "expected"),
    [
        (2, [0, 1], ["0", "1"]),
        (2, [0, 1, 2, 3], ["0,1", "2,3"]),
        (2, [4, 5, 6], ["4", "5"]),
        (3, [0, 1], ["0", "1", "0"]),
        (1, [0, 1], ["0,1"]),
    ],
)
def test_engines_share_the_cores(engines: int, cores: list[int], expected: list[str]) -> None:
    assert plan.core_sets(engines, cores) == expected


def test_names_are_numbered_per_role() -> None:
    roles = [Role.PREFILL, Role.DECODE, Role.DECODE, Role.REPLICA]
    assert plan.worker_names(roles) == ["p0", "d0", "d1", "r0"]


def test_start_order_is_servers_planner_workers_frontend(tmp_path: Path) -> None:
    members = plan.make(_spec("1P2D"), tmp_path, tmp_path).members
    assert [member.name for member in members] == ["etcd", "nats", "planner", "p0", "d0", "d1", "frontend"]
    assert [member.kind for member in members] == sorted(member.kind for member in members)


def test_all_services_are_given_the_same_servers(tmp_path: Path) -> None:
    made = plan.make(_spec(), tmp_path, tmp_path)
    services = [member for member in made.members if member.kind > plan.Kind.NATS]
    assert {(_flag(m, "--etcd"), _flag(m, "--nats")) for m in services} == {(made.etcd, made.nats)}


def test_gpus_are_shared_evenly_each_used_once(tmp_path: Path) -> None:
    workers = _workers(_spec("1P1D", gpus=("0", "1", "2", "3")), tmp_path)
    assert [_flag(worker, "--devices") for worker in workers] == ["0,1", "2,3"]
    assert {_flag(worker, "--tensor-parallel") for worker in workers} == {"2"}


def test_gpus_that_cannot_be_shared_evenly_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="3 GPUs cannot be shared evenly by the 2 engines of 1P1D"):
        plan.make(_spec(gpus=("0", "1", "2")), tmp_path, tmp_path)


def test_a_packaged_models_flags_come_before_the_users(tmp_path: Path) -> None:
    known = catalog.find(catalog.DEFAULT)
    spec = dataclasses.replace(_spec(engine_args=("--tool-call-parser", "x")), model=known)
    args = _engine_args(spec, tmp_path)
    assert "--enable-auto-tool-choice" in args
    assert args[-2:] == ["--tool-call-parser", "x"]
    assert _engine_args(dataclasses.replace(spec, engine="sim", engine_args=()), tmp_path) == []


@pytest.mark.parametrize("gpus", [("0", "0"), ("0", "x"), ("0", "1", "2")])
def test_gpus_that_cannot_be_are_seen_before_anything_starts(
    gpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan.importlib.util, "find_spec", lambda name: name)
    with pytest.raises(PlanError, match=r"GPUs|CUDA device"):
        plan.check(_spec(gpus=gpus))
    plan.check(_spec(gpus=("GPU-5f1a-2", "MIG-0b1c/3/0")))


def test_so_is_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PlanError, match="vLLM is not installed here: `make install`"):
        plan.check(_spec())


def test_so_is_a_library_that_cpu_engines_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise numa.MissingLibraryError

    monkeypatch.setattr(plan.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(numa, "check", fail)
    with pytest.raises(PlanError, match=r"libnuma\.so\.1.* apt install libnuma1"):
        plan.check(_spec())
    plan.check(_spec(gpus=("0", "1")))
    plan.check(dataclasses.replace(_spec(), engine="sim"))


def test_engine_flags_reach_every_worker_behind_a_bare_dash(tmp_path: Path) -> None:
    for worker in _workers(_spec(engine_args=("--max-model-len", "2048")), tmp_path):
        assert worker.argv[-3:] == ("--", "--max-model-len", "2048")
