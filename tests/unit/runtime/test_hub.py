"""Model access, with the real client of the hub against a server that answers as the hub does."""

import json
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

hub_client = pytest.importorskip("huggingface_hub")
from huggingface_hub import constants  # noqa: E402

from ppd.runtime import hub  # noqa: E402
from ppd.runtime.hub import Access, Where  # noqa: E402
from tests.support.fake_hub import FakeHub  # noqa: E402

pytestmark = pytest.mark.unit

MODEL = "org/model"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_USE_MODELSCOPE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeHub]]:
    class Handler(FakeHub):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        url = f"http://127.0.0.1:{listening.server_address[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield Handler
        listening.shutdown()
        thread.join()


def _problem(found: Access) -> str:
    assert found.problem is not None
    return str(found.problem)


def test_a_model_that_the_hub_gives(server: type[FakeHub]) -> None:
    assert hub.access(MODEL) == Access(Where.HUB)


def test_its_size_is_that_of_the_safetensors_at_the_top(
    server: type[FakeHub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        hub_client, "HfApi", lambda: hub_client.hf_api.HfApi(endpoint=constants.ENDPOINT), raising=True
    )
    assert hub.access(MODEL, want_size=True).weights_bytes == 7_000


def test_a_gated_model_without_a_token_names_licence_and_token(server: type[FakeHub]) -> None:
    server.status, server.code = 401, "GatedRepo"
    text = _problem(hub.access(MODEL))
    assert "is gated, and HF_TOKEN is not set" in text
    assert f"accept its licence at {constants.ENDPOINT}/{MODEL} and set HF_TOKEN" in text


def test_a_gated_model_with_a_token_names_the_licence_and_not_the_token_itself(
    server: type[FakeHub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")
    server.status, server.code = 403, "GatedRepo"
    text = _problem(hub.access(MODEL))
    assert "this HF_TOKEN may not read it" in text
    assert "hf_secretsecret" not in text


def test_a_name_that_the_hub_does_not_know(server: type[FakeHub]) -> None:
    server.status, server.code = 404, "RepoNotFound"
    assert f"has no {MODEL}, or it is private; check the name" in _problem(hub.access(MODEL))


def test_a_token_that_the_hub_refuses(server: type[FakeHub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    server.status, server.message = 401, "Invalid credentials in Authorization header"
    assert "refuses this HF_TOKEN (401)" in _problem(hub.access(MODEL))


def test_a_hub_that_fails_may_be_asked_again(server: type[FakeHub]) -> None:
    server.status = 503
    found = hub.access(MODEL)
    assert "answers with 503" in _problem(found)
    assert found.transient


def test_a_repository_in_another_format_is_left_to_the_engine(server: type[FakeHub]) -> None:
    server.status, server.code = 404, "EntryNotFound"
    assert hub.access(MODEL).problem is None


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    found = hub.access(MODEL)
    assert "http://127.0.0.1:9 cannot be reached" in _problem(found)
    assert "HF_ENDPOINT" in _problem(found)
    assert found.transient


def test_offline_without_the_model_is_said_with_the_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert f"not in the cache {cache}, and HF_HUB_OFFLINE is set" in _problem(hub.access(MODEL))


def _download(cache: Path, files: dict[str, bytes]) -> None:
    snapshot = cache / "models--org--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    for name, content in files.items():
        (snapshot / name).write_bytes(content)


_INDEX = json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}).encode()


def test_a_model_in_the_cache_needs_no_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    _download(cache, {"config.json": b"{}", "a.safetensors": b"12345"})
    found = hub.access(MODEL)
    assert (found.where, found.weights_bytes, found.problem) == (Where.CACHE, 5, None)


def test_a_download_that_was_interrupted_is_not_taken_for_whole(server: type[FakeHub], cache: Path) -> None:
    _download(cache, {"config.json": b"{}", "model.safetensors.index.json": _INDEX, "a.safetensors": b"1"})
    assert hub.access(MODEL).where is Where.HUB


def test_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert "holds no config.json" in _problem(hub.access(str(folder)))
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_bytes(_INDEX)
    (folder / "a.safetensors").write_bytes(b"123")
    assert "lacks 1 of 2 files of weights" in _problem(hub.access(str(folder)))
    (folder / "b.safetensors").write_bytes(b"45")
    assert hub.access(str(folder)) == Access(Where.FOLDER, str(folder), 5)


def test_a_path_that_does_not_exist() -> None:
    assert "there is no /no/such/model" in _problem(hub.access("/no/such/model"))


@pytest.mark.parametrize("model", ["s3://bucket/model", "org/model:Q4_K_M", "a/b/c"])
def test_what_only_the_engine_understands_is_left_to_it(model: str) -> None:
    assert hub.access(model) == Access(Where.UNKNOWN)
