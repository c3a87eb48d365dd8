"""The rules of the house, as far as a machine can check them."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
SERVICES = ("controlplane", "planner", "workers", "simulator")
# The frontend's rooms, from the bottom to the top.
ROOMS = (
    *("errors", "settings", "http", "telemetry", "engines", "shared", "admission", "dialects", "turn"),
    *("upkeep", "api", "ui", "app", "processes", "main"),
)
MAX_FILE_BYTES = 15 * 1024
IMPURE = {
    "asyncio",
    "socket",
    "time",
    "random",
    "os",
    "subprocess",
    "threading",
    "fastapi",
    "aiohttp",
    "nats",
    "aetcd",
}


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert found
    return found


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


def tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def test_services_do_not_import_each_other():
    bad = [
        f"{path.relative_to(ROOT)} imports {other}"
        for service in SERVICES
        for path in sources(service)
        for other in tops(path) & set(SERVICES) - {service}
    ]
    assert not bad


def test_only_the_command_line_knows_the_services():
    bad = [
        str(path.relative_to(ROOT))
        for path in sources("ppd/core", "ppd/runtime")
        if tops(path) & set(SERVICES)
    ]
    assert not bad


def modules() -> dict[str, Path]:
    """Every module of the repository, packages under their own name."""
    found = {}
    for path in sources("ppd", "bench", "scripts", "tests", *SERVICES):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def import_graph() -> dict[str, set[str]]:
    """Which module imports which, function-level and TYPE_CHECKING imports included."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        edges: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                edges |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                # `from package import module` names a module, `from module import thing` does not.
                parts = {f"{node.module}.{alias.name}" for alias in node.names}
                edges |= parts & known.keys() or {node.module or ""}
        graph[name] = (edges & known.keys()) - {name}
    return graph


def test_no_imports_go_in_a_circle():
    try:
        TopologicalSorter(import_graph()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_the_frontends_rooms_import_one_way():
    """A room may use those before it in ROOMS, and never one that comes after it."""
    rank = {room: number for number, room in enumerate(ROOMS)}
    bad = []
    for name, edges in import_graph().items():
        if not name.startswith("controlplane."):
            continue
        room = name.split(".")[1]
        assert room in rank, f"{name}: add the room {room!r} to ROOMS"
        for other in edges:
            if other.startswith("controlplane.") and rank[other.split(".")[1]] > rank[room]:
                bad.append(f"{name} imports {other}")
    assert not bad


def test_tests_share_code_by_support_modules_and_not_by_each_other():
    bad = [
        f"{name} imports {other}"
        for name, edges in import_graph().items()
        for other in edges
        if other.startswith("tests.") and other.rpartition(".")[2].startswith("test_")
    ]
    assert not bad


def test_the_core_is_pure():
    bad = [
        f"{path.relative_to(ROOT)} imports {sorted(found)}"
        for path in sources("ppd/core")
        if (
            found := (tops(path) & IMPURE)
            | {name for name in imports(path) if name.startswith("ppd.runtime")}
        )
    ]
    assert not bad


def test_no_file_outgrows_its_room():
    everything = sources("ppd", "bench", "tests", *SERVICES)
    big = [
        f"{path.relative_to(ROOT)}: {size}"
        for path in everything
        if (size := path.stat().st_size) > MAX_FILE_BYTES
    ]
    assert not big


@pytest.mark.parametrize("module", ["ppd.core.decision", "ppd.core.names", "ppd.core.records"])
def test_the_core_imports_without_the_services_libraries(module):
    heavy = ("fastapi", "aiohttp", "nats", "aetcd", "opentelemetry")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == "[]"
