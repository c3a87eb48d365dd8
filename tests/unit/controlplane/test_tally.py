"""What is gathered and handed over is what single observations would have given."""

import random

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from controlplane.telemetry import counts
from controlplane.telemetry.counts import Distribution

pytestmark = pytest.mark.unit


def test_handed_over_it_is_the_same() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    buckets = (0.1, 0.5, 1.0)
    mine = Distribution("x_seconds", "x", ["path"], buckets=buckets, registry=ours)
    counted = Counter("y", "y", ["kind"], registry=ours)
    plain = Histogram("x_seconds", "x", ["path"], buckets=buckets, registry=theirs)
    plainly = Counter("y", "y", ["kind"], registry=theirs)
    draw = random.Random(1)
    for i in range(300):
        value = draw.choice([0.1, 0.5, 1.0, draw.random() * 1.5])
        path = draw.choice(["a", "b"])
        counts.distribution(mine, path).observe(value)
        plain.labels(path).observe(value)
        counts.counter(counted, path).add(i % 3)
        plainly.labels(path).inc(i % 3)
        if i % 70 == 0:
            counts.hand_over()
    counts.hand_over()

    def values(registry: CollectorRegistry) -> dict[str, float]:
        lines = generate_latest(registry).decode().splitlines()
        told = [line.rpartition(" ") for line in lines if line[0] != "#" and "_created" not in line]
        return {name: float(value) for name, _, value in told}

    assert values(ours) == pytest.approx(values(theirs))
    assert len(values(ours)) == 14
