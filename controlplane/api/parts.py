"""The parts of a frontend that the API and the live page show."""

from dataclasses import dataclass

from controlplane.admission.gate import Gate
from controlplane.engines.cluster import Cluster
from controlplane.settings import FrontendSettings
from controlplane.shared.siblings import Siblings
from controlplane.shared.tables import Tables
from ppd.core.sessions import SessionStore
from ppd.runtime.bus import Bus
from ppd.runtime.registry import WorkerWatch


@dataclass(frozen=True)
class Parts:
    """References only: nothing here is changed through them."""

    settings: FrontendSettings
    cluster: Cluster
    watch: WorkerWatch
    bus: Bus
    tables: Tables
    sessions: SessionStore
    siblings: Siblings
    gate: Gate
