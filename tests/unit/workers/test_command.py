import json
from pathlib import Path

import pytest

from ppd.runtime.settings import load
from workers.engine.command import Start, engine_argv, engine_env
from workers.settings import WorkerSettings, parse_cores

pytestmark = pytest.mark.unit

START = Start("d0-1", 9000, 9001, Path("/run/d0"))


def _settings(*args: str) -> WorkerSettings:
    return load(WorkerSettings, ["--model", "org/small", *args], "ppd worker")


def _value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


@pytest.mark.parametrize(("role", "kv_role"), [("prefill", "kv_producer"), ("decode", "kv_consumer")])
def test_role_decides_the_kv_role(role: str, kv_role: str) -> None:
    config = json.loads(_value(engine_argv(_settings("--role", role), START), "--kv-transfer-config"))
    assert config["kv_role"] == kv_role
    assert config["kv_load_failure_policy"] == "recompute"
    assert config["kv_buffer_device"] == "cpu"
    assert config["kv_connector_extra_config"]["ppd"]["worker_id"] == "d0-1"
    assert config["kv_connector_extra_config"]["bidirectional_kv_xfer"] is True


def test_a_replica_has_no_connector() -> None:
    assert "--kv-transfer-config" not in engine_argv(_settings("--role", "replica"), START)


def test_the_users_flags_come_last_and_untouched() -> None:
    settings = _settings("--role", "decode")
    settings.engine_args = ["--block-size", "16", "--seed=3"]
    argv = engine_argv(settings, START)
    assert argv[-3:] == ["--block-size", "16", "--seed=3"]


def test_cpu_blocks_are_small_and_cuda_ones_vllms_own() -> None:
    assert _value(engine_argv(_settings("--role", "decode"), START), "--block-size") == "32"
    cuda = engine_argv(_settings("--role", "decode", "--backend", "cuda"), START)
    assert "--block-size" not in cuda
    assert "--enforce-eager" not in cuda
    assert "kv_buffer_device" not in json.loads(_value(cuda, "--kv-transfer-config"))


def test_environment_keeps_what_the_user_set_but_ports() -> None:
    base = {"OMP_NUM_THREADS": "4", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5"}
    env = engine_env(_settings("--role", "decode", "--devices", "2,3"), START, base)
    assert env["OMP_NUM_THREADS"] == "4"
    assert env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "9001"
    assert env["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_a_cpu_engine_compiles_nothing_while_it_serves() -> None:
    cpu = _settings("--role", "decode", "--backend", "cpu")
    assert engine_env(cpu, START, {})["TORCHDYNAMO_DISABLE"] == "1"
    assert engine_env(cpu, START, {"TORCHDYNAMO_DISABLE": "0"})["TORCHDYNAMO_DISABLE"] == "0"
    assert "TORCHDYNAMO_DISABLE" not in engine_env(
        _settings("--role", "decode", "--backend", "cuda"), START, {}
    )


@pytest.mark.parametrize(
    ("endpoint", "flag", "protocol"),
    [
        ("http://c:4317", "http://c:4317", "grpc"),
        ("http://c:4318", "http://c:4318/v1/traces", "http/protobuf"),
        ("http://c:9/v1/traces", "http://c:9/v1/traces", "http/protobuf"),
    ],
)
def test_vllm_exports_by_the_protocol_that_the_endpoint_means(
    endpoint: str, flag: str, protocol: str
) -> None:
    settings = _settings("--role", "decode", "--otlp-endpoint", endpoint)
    assert _value(engine_argv(settings, START), "--otlp-traces-endpoint") == flag
    assert engine_env(settings, START, {}).get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") == protocol


def test_vllm_exports_as_the_standard_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://c:9",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=Bearer%20abc",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "3000",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_TRACES_SAMPLER": "traceidratio",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = _settings("--role", "decode")
    argv, env = engine_argv(settings, START), engine_env(settings, START, given)
    assert _value(argv, "--otlp-traces-endpoint") == "https://c:9"
    assert "abc" not in " ".join(argv)
    expected = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c:9",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "3",
        "OTEL_TRACES_SAMPLER": "traceidratio",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert "OTEL_EXPORTER_OTLP_COMPRESSION" not in env  # vLLM's gRPC exporter refuses "none"


@pytest.mark.parametrize("role", ["prefill", "decode", "replica"])
def test_an_engines_spans_have_a_service_of_their_role_and_an_instance(role: str) -> None:
    settings = _settings("--role", role, "--otlp-endpoint", "http://c:4317")
    env = engine_env(settings, START, {})
    assert env["OTEL_SERVICE_NAME"] == f"ppd-{role}"
    assert env["OTEL_RESOURCE_ATTRIBUTES"] == "service.instance.id=d0-1"
    chosen = engine_env(settings, START, {"OTEL_SERVICE_NAME": "mine"})
    assert chosen["OTEL_SERVICE_NAME"] == "mine"


def test_an_engine_is_not_traced_where_the_sdk_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = _settings("--role", "decode")
    assert "--otlp-traces-endpoint" not in engine_argv(settings, START)
    assert "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" not in engine_env(settings, START, given)


@pytest.mark.parametrize(
    ("model", "name"), [("org/small", "org/small"), ("/m/small/", "small"), ("./small", "small")]
)
def test_a_hubs_model_keeps_its_whole_name_and_a_folder_its_last_part(model: str, name: str) -> None:
    settings = load(WorkerSettings, ["--role", "decode", "--model", model], "ppd worker")
    assert settings.served_name == name


def test_names_are_filled_in() -> None:
    settings = _settings("--role", "decode", "--host", "::1")
    assert (settings.served_name, settings.name, settings.side_channel_host) == (
        "org/small",
        "decode",
        "::1",
    )


@pytest.mark.parametrize(
    "args",
    [
        ["--role", "both"],
        ["--role", "decode", "--attach", "http://h:1"],
        ["--role", "decode", "--attach", "h:1", "--run-dir", "/tmp"],
        ["--role", "decode", "--cores", "a"],
        ["--role", "decode", "--cores", "-1"],
        ["--role", "decode", "--port", "70000"],
        ["--role", "decode", "--kv-cache-gib", "0"],
    ],
)
def test_bad_settings_are_refused(args: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        _settings(*args)
    assert error.value.code == 2


def test_cores() -> None:
    assert parse_cores("0, 2-4") == {0, 2, 3, 4}
