import json
from pathlib import Path

import pytest

from ppd.cli import main as ppd
from ppd.cli.doctor import command, wanted
from ppd.cli.doctor.findings import Report

pytestmark = pytest.mark.unit


def run(*argv: str) -> int:
    return ppd.run(["doctor", *argv])


def test_without_a_failure_the_exit_status_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--only", "python,packages") == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in out[:2]] == [["ok", "python"], ["ok", "packages"]]
    assert out[-1].startswith("0 failed")


def test_with_a_failure_it_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--only", "model", "--model", "/no/such/folder") == 1
    out = capsys.readouterr().out
    assert "FAILED  model  there is no /no/such/folder" in out
    assert "→ give the model's folder" in out


def test_json_holds_every_result_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--only", "python,model", "--model", "/no/such/folder", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report.keys() == set(Report.__struct_fields__)
    assert [(result["check"], result["status"]) for result in report["results"]] == [
        ("python", "ok"),
        ("model", "failed"),
    ]
    assert all(result["took_s"] >= 0 for result in report["results"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--only", "nonsense"], "--only: there is no check nonsense; there are python,"),
        (["--placement", "1P"], "--placement: '1P' cannot serve"),
        (["--port", "x"], "--port: write numbers from 1 to 65535"),
        (["--patience", "0"], "--patience: Input should be greater than 0"),
    ],
)
def test_flags_that_nobody_could_use(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = run(*flags)
    except SystemExit as end:
        status = end.code  # type: ignore[assignment]
    assert status == 2
    assert capsys.readouterr().err.startswith(f"ppd doctor: {said}")


@pytest.mark.parametrize(
    ("flags", "hardware", "cpu_build", "backend"),
    [
        ([], False, "", "cpu"),
        ([], True, "", "cuda"),
        ([], True, "0.32.0", "cpu"),
        (["--gpus", "0"], False, "0.32.0", "cuda"),
        (["--backend", "cuda"], False, "0.32.0", "cuda"),
        (["--backend", "cpu"], True, "", "cpu"),
    ],
)
def test_what_engines_would_run_on(
    flags: list[str], hardware: bool, cpu_build: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wanted, "has_nvidia_hardware", lambda: hardware)
    monkeypatch.setattr(wanted, "installed", lambda _: cpu_build)
    settings = command.load(command.DoctorSettings, flags, "ppd doctor")
    assert command.wanted_of(settings).backend == backend


def test_the_environment_of_a_worker_names_the_servers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PPD_ETCD", "a:1,b:2")
    monkeypatch.setenv("PPD_NATS", "nats://c:3")
    found = command.wanted_of(command.load(command.DoctorSettings, [], "ppd doctor"))
    assert (found.etcd, found.nats) == (("a:1", "b:2"), ("nats://c:3",))
