"""Containers of an image, each started for one command."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.fake_cuda import FakeCuda

_HERE = Path(__file__).parent


class Ran(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return (self.out + self.err).splitlines()


class Image:
    def __init__(self, name: str, driver: FakeCuda) -> None:
        self.name = name
        self._driver = driver

    def run(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        devices: int | None = None,
        network: str = "none",
        entrypoint: str | None = None,
        mounts: Mapping[Path, str] | None = None,
    ) -> Ran:
        """What a container does; with a driver that shows `devices`, or without one."""
        argv = ["docker", "run", "--rm", "--init", "--network", network]
        variables, volumes = dict(env or {}), {_HERE: "/tests", **(mounts or {})}
        if devices is not None:
            fake = self._driver.env(devices=devices)
            variables |= fake | {"LD_LIBRARY_PATH": "/driver"}
            volumes[Path(fake["LD_LIBRARY_PATH"].split(":")[0])] = "/driver"
        if entrypoint is not None:
            argv += ["--entrypoint", entrypoint]
        for name, value in variables.items():
            argv += ["--env", f"{name}={value}"]
        for source, target in volumes.items():
            argv += ["--volume", f"{source}:{target}:ro"]
        done = subprocess.run(
            [*argv, self.name, *command], capture_output=True, text=True, timeout=900, check=False
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def succeed(self, *command: str, env: Mapping[str, str] | None = None, devices: int | None = None) -> str:
        """Its output; fails the test where the command fails."""
        ran = self.run(*command, env=env, devices=devices)
        assert ran.status == 0, ran.out + ran.err[-4000:]
        return ran.out
