"""`ppd status [--json]`."""

import asyncio

import msgspec
from pydantic import Field
from rich.console import Console

from ppd.cli import paths
from ppd.cli.stack.state import StateFile
from ppd.cli.status.collect import collect
from ppd.cli.status.render import show
from ppd.runtime.settings import ServiceSettings, load

_FRONTEND = "http://127.0.0.1:8000"


class StatusSettings(ServiceSettings):
    """Workers, table versions, sessions and the health of each part. Exit status 0: all is well, 1: not.

    Without further flags it looks at the stack that `ppd up` started in this folder.
    """

    frontend: str = Field(_FRONTEND, description="URL of the frontend")
    json_: bool = Field(False, alias="json", description="print everything as JSON")


def main(argv: list[str]) -> int:
    settings = load(StatusSettings, argv, "ppd status")
    given = settings.model_fields_set & {"etcd", "nats", "namespace", "frontend"}
    local = None if given else StateFile(paths.home()).read()
    if local is not None and local.etcd:
        settings.etcd, settings.nats = [local.etcd], [local.nats]
        settings.namespace, settings.frontend = local.namespace, local.endpoint
    report = asyncio.run(
        collect(settings.etcd, settings.nats, settings.namespace, settings.frontend.rstrip("/"), local)
    )
    if settings.json_:
        print(msgspec.json.format(msgspec.json.encode(report), indent=1).decode())
    else:
        if local is None and not given:
            print("no stack runs in this folder (`ppd up` starts one); looking at the default addresses\n")
        show(report, Console(soft_wrap=True))
    return 0 if report.ok else 1
