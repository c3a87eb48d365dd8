"""What the page shows of the engines and models."""

from typing import Any

from controlplane.engines.cluster import Cluster
from controlplane.engines.worker import Worker
from controlplane.shared.tables import Tables


def models(cluster: Cluster, tables: Tables) -> list[dict[str, Any]]:
    """Each model that has a worker, with the placement that runs and every table there is for it."""
    listed = []
    for name, _ in cluster.by_model():
        own = sorted((t for t in tables.all().values() if t.model == name), key=lambda t: t.placement)
        listed.append(
            {
                "name": name,
                "placement": cluster.placement(name),
                "servable": cluster.servable(name),
                "tables": [{"placement": t.placement, "version": t.version} for t in own],
            }
        )
    return sorted(listed, key=lambda each: str(each["name"]))


def workers(cluster: Cluster, model: str, now_s: float, stale_s: float) -> list[dict[str, Any]]:
    """The engines of a model by name, with the load that decisions see."""
    found = [_worker(each, now_s, stale_s) for each in cluster.workers.values() if each.record.model == model]
    return sorted(found, key=lambda each: (str(each["role"]), str(each["name"])))


def _status(worker: Worker, now_s: float) -> str:
    if worker.suspected:
        return "suspect"
    return "resting" if worker.ready and worker.resting(now_s) else worker.record.status


def _worker(worker: Worker, now_s: float, stale_s: float) -> dict[str, Any]:
    record, view = worker.record, worker.view(now_s, stale_s)
    return {
        "id": worker.id,
        "name": worker.name,
        "role": record.role,
        "status": _status(worker, now_s),
        "backend": record.backend,
        "hardware": record.hardware,
        "tensor_parallel": record.tensor_parallel,
        "kv_capacity_tokens": record.kv_capacity_tokens,
        "running": view.running,
        "waiting": view.waiting,
        "kv_use": view.kv_use,
        "queued_prefill_tokens": view.queued_prefill_tokens,
        "itl_ms": view.itl_ms,
        "prefill_tokens_per_s": view.prefill_tokens_per_s,
        "stale": view.age_s > stale_s,
        "report_age_s": min(view.age_s, 1e6),
    }
