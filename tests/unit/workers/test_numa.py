"""On a system without libnuma an engine gets the copy in NIXL's wheel, or the error says what to install."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.engine import numa

pytestmark = pytest.mark.unit


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without libnuma."""

    def fail(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", fail)


def test_a_system_that_has_it_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    numa.check()
    assert numa.environment(tmp_path / "lib", {}) == {}
    assert not (tmp_path / "lib").exists()


@pytest.mark.usefixtures("bare")
def test_an_engine_loads_the_packaged_copy(tmp_path: Path) -> None:
    pytest.importorskip("nixl_cu13")
    numa.check()
    for _ in range(2):  # an engine that is started again finds the link there
        env = numa.environment(tmp_path / "lib", {})
    program = (
        "import ctypes; ctypes.CDLL('libnuma.so.1').numa_available; print(open('/proc/self/maps').read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | env, capture_output=True, text=True, check=True
    )
    assert "nixl_cu13.libs/libnuma" in done.stdout


@pytest.mark.usefixtures("bare")
def test_folders_that_the_user_has_searched_stay(tmp_path: Path) -> None:
    pytest.importorskip("nixl_cu13")
    env = numa.environment(tmp_path, {"LD_LIBRARY_PATH": "/opt/lib"})
    assert env == {"LD_LIBRARY_PATH": f"{tmp_path}:/opt/lib"}


@pytest.mark.usefixtures("bare")
def test_where_nothing_has_it_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numa, "_WHEELS", ("no-such-wheel",))
    for call in (numa.check, lambda: numa.environment(tmp_path, {})):
        with pytest.raises(numa.MissingLibraryError, match="apt install libnuma1"):
            call()
