import json

import pytest

from ppd.cli.doctor import software
from ppd.cli.doctor.findings import Status
from ppd.runtime.programs import Done, ProgramError
from tests.unit.cli.doctor_wanted import wanted

pytestmark = pytest.mark.unit

GOOD = {"vllm": "0.32.0", "torch": "2.13.0", "torch_cuda": "13.0", "nixl": "1.5.1"}


class FakeInterpreter:
    """Prints these facts, after what libraries print."""

    def __init__(self, **facts: object) -> None:
        self._out = f"noise\n{json.dumps(facts)}\n"

    async def __call__(self, argv: list[str], deadline_s: float) -> Done:
        assert argv[1:] == ["-m", "ppd.cli.doctor.engine_facts"]
        return Done(0, self._out, "")


@pytest.mark.parametrize(
    ("version", "status"), [((3, 11, 7), Status.OK), ((3, 12, 0), Status.OK), ((3, 10, 1), Status.FAILED)]
)
async def test_python(version: tuple[int, int, int], status: Status) -> None:
    found = await software.python(wanted(), version)
    assert found.status is status
    assert ".".join(map(str, version)) in found.seen


async def test_packages_that_are_missing_or_of_another_version_are_named() -> None:
    versions = {"present": "1.5", "old": "1.0", "ppd": "9"}
    requires = ["present>=1,<2", "old>=2", "missing", 'other; extra == "test"', "absent; python_version<'3'"]
    found = await software.packages(wanted(), lambda name: versions.get(name, ""), requires)
    assert found.status is Status.FAILED
    assert found.seen == "old is 1.0, not >=2; missing is missing"


async def test_what_is_installed_here_is_what_the_project_asks_for() -> None:
    found = await software.packages(wanted())
    assert found.status is Status.OK, found.seen


async def test_an_engine_that_loads_is_described() -> None:
    found = await software.engine(wanted(gpus="0,1"), FakeInterpreter(**GOOD))
    assert found.status is Status.OK
    assert found.seen == "vLLM 0.32.0, torch 2.13.0 for CUDA 13.0, NIXL 1.5.1, KV connector loads"
    assert found.details["engine"]["torch_cuda"] == "13.0"


@pytest.mark.parametrize(
    ("facts", "seen", "do"),
    [
        ({"vllm_error": "vLLM is not installed"}, "vLLM is not installed", "ppd[engine-gpu]"),
        ({"torch_cuda": ""}, "a build without CUDA", "ppd[engine-gpu]"),
        ({"nixl_error": "ImportError: nixl-cu13"}, "NIXL: ImportError: nixl-cu13", "one version"),
        ({"connector_error": "vLLM 1 is not supported"}, "vLLM 1 is not", "--plain-connector-on-mismatch"),
    ],
)
async def test_each_part_that_does_not_load_fails_with_a_remedy(
    facts: dict[str, str], seen: str, do: str
) -> None:
    found = await software.engine(wanted(gpus="0,1"), FakeInterpreter(**GOOD | facts))
    assert found.status is Status.FAILED
    assert seen in found.seen
    assert do in found.do


async def test_an_interpreter_that_dies_or_hangs_is_a_failure() -> None:
    async def dies(argv: list[str], deadline_s: float) -> Done:
        return Done(-11, "", "Fatal: no room\n")

    async def hangs(argv: list[str], deadline_s: float) -> Done:
        raise ProgramError("python did not end within 240 s")

    for run, cause in ((dies, "Fatal: no room"), (hangs, "did not end within 240 s")):
        found = await software.engine(wanted(), run)
        assert found.status is Status.FAILED
        assert cause in found.seen


async def test_simulated_engines_need_none_of_it() -> None:
    sim = wanted(engine="sim")
    assert (await software.engine(sim)).status is Status.NOT_APPLICABLE
    assert (await software.libnuma(sim)).status is Status.NOT_APPLICABLE


async def test_libnuma_is_for_engines_on_the_cpu() -> None:
    assert (await software.libnuma(wanted(), lambda _: True)).status is Status.OK
    assert (await software.libnuma(wanted(gpus="0"), lambda _: False)).status is Status.NOT_APPLICABLE
    missing = await software.libnuma(wanted(), lambda _: False)
    assert missing.status is Status.FAILED
    assert "libnuma1" in missing.do
