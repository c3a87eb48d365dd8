import subprocess
import sys
from pathlib import Path

import pytest

from ppd.cli.model import catalog, convert

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_packaged_model_is_in_the_cache_and_prepared_once_it_is_whole(tmp_path: Path) -> None:
    model = catalog.find("smollm2")
    folder = tmp_path / "cache" / "ppd" / "models" / "smollm2"
    assert (model.served_name, model.source) == ("smollm2", str(folder))
    assert not model.prepared
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    assert model.prepared


def test_a_folder_is_served_under_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").touch()
    assert catalog.find(f"{folder}/") == catalog.Model("my-model", str(folder))


def test_a_name_on_a_hub_goes_to_the_engine_as_it_is() -> None:
    assert catalog.find("org/name") == catalog.Model("org/name", "org/name")


@pytest.mark.parametrize("name", ["smolm2", "/no/such/folder", "./here", "a/b/c", ""])
def test_what_cannot_be_a_model_is_refused(name: str) -> None:
    with pytest.raises(catalog.ModelError):
        catalog.find(name)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(catalog.ModelError, match=r"holds no config\.json"):
        catalog.find(str(tmp_path))


def test_a_package_that_is_missing_is_named_with_its_extra(tmp_path: Path) -> None:
    with pytest.raises(catalog.ModelError, match=r"no_such_package is missing: pip install 'ppd\[some\]'"):
        convert.convert(catalog.Packaged("no_such_package", "some"), tmp_path / "m")


def test_what_a_killed_conversion_left_is_removed_by_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    left = folder / ".smollm2-abcd"
    left.mkdir(parents=True)
    (left / "model.safetensors").touch()
    with convert._alone(folder):
        assert not left.exists()


def test_a_new_folder_replaces_an_old_one(tmp_path: Path) -> None:
    work, target = tmp_path / ".m-1", tmp_path / "m"
    for folder in (work, target):
        folder.mkdir()
        (folder / "which").write_text(folder.name)
    convert._put_in_place(work, target)
    assert (target / "which").read_text() == ".m-1"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".m")] == []


@pytest.mark.parametrize("args", [["prepare", "--bogus"], ["bogus"]])
def test_wrong_arguments_end_with_2(args: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ppd.cli.main", "model", *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr


def test_a_cache_that_cannot_be_written_is_said_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("sys.argv", ["convert", catalog.DEFAULT])
    assert convert.main() == 1
    assert "set XDG_CACHE_HOME to a folder that can be written" in capsys.readouterr().err
