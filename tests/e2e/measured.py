"""What `ppd profile` and the planner say of a running stack."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import nats

from ppd.core.names import planner_subject
from ppd.core.records import TableSnapshot, decode
from tests.e2e.local_stack import LocalStack

# A folder that outlives the test: with a table in it, that one is taken for the fresh profile.
KEPT = Path(os.environ["PPD_TEST_PROFILE_OUT"]) if "PPD_TEST_PROFILE_OUT" in os.environ else None
BUDGET = os.environ.get("PPD_TEST_PROFILE_BUDGET", "10m")


def profile(stack: LocalStack, folder: Path, *args: str, budget: str = BUDGET) -> TableSnapshot:
    """The table of `ppd profile` in `folder`; with its output."""
    done = subprocess.run(
        stack.command("profile", "--budget", budget, "--out", str(folder), *args),
        env=stack.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return read(folder)


def kept_profile(stack: LocalStack, folder: Path) -> TableSnapshot:
    """As `profile`, but not measured again if it was kept."""
    return read(folder) if (folder / "table.json").exists() else profile(stack, folder)


def read(folder: Path) -> TableSnapshot:
    return decode((folder / "table.json").read_bytes(), TableSnapshot)


def planner_status(stack: LocalStack) -> dict[str, Any]:
    """Of the planner that leads."""

    async def ask() -> dict[str, Any]:
        client = await nats.connect(stack.state()["nats"])
        try:
            answer = await client.request(planner_subject("default", "status"), b"", timeout=5)
            found: dict[str, Any] = json.loads(answer.data)
            return found
        finally:
            await client.close()

    return asyncio.run(ask())
