"""Flags win over the environment, the environment over the file; secrets come from the environment alone."""

import pytest
from pydantic import Field

from ppd.runtime.settings import Secret, ServiceSettings, TracedSettings, load, secret

pytestmark = pytest.mark.unit


class DemoSettings(ServiceSettings):
    """A service for the tests."""

    port: int = Field(8000, ge=1, le=65535, description="port")
    admin_key: Secret = secret("admin key")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "demo.toml"
    path.write_text('port = 7001\nlog_level = "debug"\netcd = ["a:1", "b:2"]\n')
    return str(path)


def test_precedence(file, monkeypatch):
    assert load(DemoSettings, [], "demo").port == 8000
    assert load(DemoSettings, ["--config", file], "demo").port == 7001
    monkeypatch.setenv("PPD_PORT", "7002")
    assert load(DemoSettings, ["--config", file], "demo").port == 7002
    both = load(DemoSettings, ["--config", file, "--port", "7003"], "demo")
    assert (both.port, both.log_level, both.etcd) == (7003, "debug", ["a:1", "b:2"])


@pytest.mark.parametrize("argv", [["--etcd", "a:1,b:2"], ["--etcd", "a:1", "--etcd", "b:2"]])
def test_lists(argv):
    assert load(DemoSettings, argv, "demo").etcd == ["a:1", "b:2"]


class FakeTraced(TracedSettings):
    """A service that exports spans."""


def test_otel_environment_is_honoured(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    assert load(FakeTraced, [], "demo").export.endpoint == "http://127.0.0.1:4317"
    given = load(FakeTraced, ["--otlp-endpoint", "http://other:4317"], "demo")
    assert given.export.endpoint == "http://other:4317"


@pytest.mark.parametrize("value", ["http://c:port", "http://user:s3cret@c:1"])
def test_an_endpoint_of_spans_that_cannot_be_used(value, monkeypatch, capsys):
    monkeypatch.setenv("PPD_ADMIN_KEY", "s3cret")
    for argv, env in ([["--otlp-endpoint", value], ""], [[], value]):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", env)
        with pytest.raises(SystemExit) as stop:
            load(FakeTraced, argv, "demo")
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" if env else "--otlp-endpoint") in line
        assert "s3cret" not in line


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--etcd", "https://h:2379", "TLS to etcd is not supported"),
        ("--etcd", "https://user:s3cret@h:2379", "write http://h:2379"),
        ("--etcd", "http://user:s3cret@h:2379", "accounts"),
        ("--etcd", "nats://h:2379", "http://host:port"),
        ("--nats", "tls://h:4222", "TLS to NATS is not supported"),
        ("--nats", "TLS://user:s3cret@h:4222", "write nats://h:4222"),
        ("--nats", "wss://h:4222", "TLS to NATS is not supported"),
        ("--nats", "nats://user:s3cret/x@h:4222", "host:port"),
        ("--nats", "nats://user:s3cret@h:port", "host:port"),
        ("--nats", "nats://user:s3,cret@h:4222", "host:port"),
        ("--nats", "h:4222,tls://user:s3cret@g:4222", "write nats://g:4222"),
        ("--nats", "h:70000", "host:port"),
    ],
)
def test_endpoints_that_cannot_be_used_are_refused_without_their_password(flag, value, said, capsys):
    with pytest.raises(SystemExit) as stop:
        load(DemoSettings, [flag, value], "demo")
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert flag in err
    assert said in err
    assert "s3" not in err.replace("--nats", "")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--etcd", "h:1"),
        ("--etcd", "http://h:1/"),
        ("--etcd", "[::1]:2379"),
        ("--nats", "nats://user:p@h:4222"),
        ("--nats", "nats://token@h:4222"),
        ("--nats", "h:4222"),
    ],
)
def test_endpoints_that_can(flag, value):
    settings = load(DemoSettings, [flag, value], "demo")
    assert getattr(settings, flag.removeprefix("--")) == [value]


def test_a_typing_error_does_not_print_a_password(capsys):
    with pytest.raises(SystemExit):
        load(DemoSettings, ["--nat", "nats://user:s3cret@h:4222"], "demo")
    assert "s3cret" not in capsys.readouterr().err


def test_secret_only_from_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PPD_ADMIN_KEY", "s3cret")
    settings = load(DemoSettings, [], "demo")
    assert settings.admin_key == "s3cret"
    assert "s3cret" not in repr(settings)
    for argv in (["--admin-key", "x"], ["--admin-key=x"]):
        with pytest.raises(SystemExit):
            load(DemoSettings, argv, "demo")
        assert "PPD_ADMIN_KEY" in capsys.readouterr().err
    path = tmp_path / "bad.toml"
    path.write_text('admin_key = "x"\n')
    with pytest.raises(SystemExit):
        load(DemoSettings, ["--config", str(path)], "demo")
    assert "PPD_ADMIN_KEY" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--port", "0"], "--port"),
        (["--port", "many"], "--port"),
        (["--log-level", "loud"], "--log-level"),
        (["--namespace", "../x"], "--namespace"),
        (["--prot", "1"], "--prot"),
        (["--config", "/nonexistent.toml"], "nonexistent"),
    ],
)
def test_bad_values_exit_with_2_and_name_the_flag(argv, said, capsys):
    with pytest.raises(SystemExit) as stop:
        load(DemoSettings, argv, "demo")
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


def test_unknown_key_in_file(tmp_path, capsys):
    path = tmp_path / "typo.toml"
    path.write_text("prot = 1\n")
    with pytest.raises(SystemExit):
        load(DemoSettings, ["--config", str(path)], "demo")
    assert "prot" in capsys.readouterr().err
