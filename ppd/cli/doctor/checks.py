"""All checks, in the order in which they run and are shown."""

from ppd.cli.doctor import clock, gpu, machine, model, servers, software, transfer
from ppd.cli.doctor.findings import Check

_S = 15.0

CHECKS: tuple[Check, ...] = (
    Check("python", "software", "it is asked for its version", software.python, _S),
    Check("packages", "software", "their versions are read", software.packages, _S),
    Check("libnuma", "software", "it is loaded", software.libnuma, _S),
    Check("engine", "software", "vLLM, torch and NIXL are imported", software.engine, software.ENGINE_S),
    Check("driver", "GPU", "the NVIDIA driver answers", gpu.driver, 60),
    Check("devices", "GPU", "the NVIDIA driver lists them", gpu.devices, 60, needs=("driver",)),
    Check("container-toolkit", "GPU", "Docker answers", gpu.container_toolkit, gpu.TOOLKIT_S),
    Check(
        "kv-transfer",
        "KV",
        "two processes have moved memory by NIXL",
        transfer.transfer,
        transfer.TRANSFER_S,
        needs=("engine", "driver", "devices"),
    ),
    Check("model", "model", "the model is found", model.access, 60),
    Check("memory", "model", "memory and weights are compared", model.memory, 90, needs=("driver",)),
    Check("disk", "machine", "the file systems answer", machine.disk, 60),
    Check("ports", "machine", "they are tried", machine.ports, _S),
    Check("open-files", "machine", "the limit is read", machine.open_files, _S),
    Check("locked-memory", "machine", "the limit is read", machine.locked_memory, _S),
    Check("clock", "machine", "clocks are compared", clock.clock, _S),
    Check("etcd", "servers", "it answers", servers.etcd, _S),
    Check("nats", "servers", "it answers", servers.nats_server, _S),
)
