"""Hardware profiles: their files, and that a step's time rises with its work."""

import pytest

from ppd.core import hardware
from ppd.core.hardware.interpolate import Line, Surface

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", hardware.names())
def test_more_work_never_takes_less_time(name):
    profile = hardware.load_profile(name)
    prefills = [profile.step_ms([(n, 0)], 0, 0) for n in (1, 10, 100, 1000, 3000, 8192, 20000)]
    assert prefills == sorted(prefills)
    cached = [profile.step_ms([(256, c)], 0, 0) for c in (0, 100, 1000, 10000, 100000)]
    assert cached == sorted(cached)
    decodes = [profile.step_ms([], b, b * 1000) for b in (1, 2, 30, 100, 400)]
    assert decodes == sorted(decodes)
    assert profile.step_ms([(500, 0)], 32, 32000) > max(
        profile.step_ms([(500, 0)], 0, 0), profile.step_ms([], 32, 32000)
    )


def test_h100_agrees_with_the_kernel_tables_within_its_fit():
    """Figures of aiconfigurator 0.5.0 for h100_sxm and Llama-3.1-8B."""
    profile = hardware.load_profile("h100-llama-3.1-8b")
    for new, cached, ms in (
        (1024, 0, 20.5),
        (4096, 0, 85.2),
        (8192, 0, 182.2),
        (64, 960, 6.7),
        (1024, 4096, 24.7),
    ):
        assert profile.step_ms([(new, cached)], 0, 0) == pytest.approx(ms, rel=0.06)
    for batch, ms in ((1, 6.5), (32, 8.1), (200, 16.5)):
        assert profile.step_ms([], batch, batch * 1024) == pytest.approx(ms, rel=0.05)


def test_an_unknown_profile_is_refused_by_naming_the_known_ones():
    with pytest.raises(hardware.HardwareError, match=r"h100-llama-3\.1-8b"):
        hardware.load_profile("abacus")


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"name": 3}'])
def test_bytes_that_are_no_profile_are_refused(data):
    with pytest.raises(hardware.HardwareError):
        hardware.parse_profile(data)


def test_tables_are_exact_at_nodes_and_continue_beyond():
    line = Line([1, 2, 4], [10, 20, 30])
    assert [line(x) for x in (0, 1, 1.5, 2, 3, 4, 6)] == [0, 10, 15, 20, 25, 30, 40]
    surface = Surface([0, 1], [0, 2], [[0, 2], [10, 12]])
    assert [surface(0, 0), surface(1, 2), surface(0.5, 1), surface(2, 0)] == [0, 12, 6, 20]
    for bad in ([1], [1, 1], [2, 1]):
        with pytest.raises(ValueError, match="node"):
            Line(bad, [0.0] * len(bad))
