"""Points of a profile, made by hand."""

from planner.profile.records import Flag, Point, TurnSample
from ppd.core.cells import Cell, parse_cell
from ppd.core.names import Route
from ppd.core.score import SLO_CLASSES

CLASSES = tuple(SLO_CLASSES.values())


def cell(text: str) -> Cell:
    return parse_cell(text)


def samples(
    n: int, ttft_ms: float, tpot_ms: float = 10.0, spread: float = 0.1, **fields: object
) -> list[TurnSample]:
    """`n` turns around a mean, alternately above and below."""
    return [
        TurnSample(
            turn=2,
            ttft_ms=ttft_ms * (1 + spread * (-1) ** i),
            tpot_ms=tpot_ms * (1 + spread * (-1) ** i),
            n_ctx=256,
            n_in=16,
            n_out=32,
            conversation_s=2.0,
            **fields,  # type: ignore[arg-type]
        )
        for i in range(n)
    ]


def point(
    text: str,
    path: Route,
    ttft_ms: float,
    tpot_ms: float = 10.0,
    n: int = 10,
    rate: float | None = None,
    flag: Flag | None = None,
    spread: float = 0.1,
) -> Point:
    return Point(
        cell=text,
        path=path,
        rate=rate or cell(text).qps,
        samples=tuple(samples(n, ttft_ms, tpot_ms, spread)),
        seconds=10.0,
        flag=flag,
    )


def pair(
    text: str, ttft: tuple[float, float], tpot: tuple[float, float] = (10.0, 10.0), **fields: object
) -> list[Point]:
    """One cell on P->D and on D-local."""
    return [
        point(text, path, ttft[i], tpot[i], **fields)  # type: ignore[arg-type]
        for i, path in enumerate((Route.P_D, Route.D_LOCAL))
    ]
