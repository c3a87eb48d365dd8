"""Which engine stores a response, so that any frontend can serve requests that name its id."""

import asyncio
import hashlib
import time
from collections import OrderedDict

from controlplane.engines.worker import Worker
from controlplane.shared.sessions import Sharing
from ppd.core.names import response_key
from ppd.core.records import SessionRecord

_MAX_RESPONSES = 65_536


class StoredResponses:
    """By response id and the name of the API key that made it: under another key it does not exist.

    Bounded in number and age, the oldest dropped first; shared with other frontends as sessions are.
    """

    def __init__(self, sharing: Sharing, ttl_s: float) -> None:
        self._sharing = sharing
        self._ttl_s = ttl_s
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()  # place -> worker, when it was used
        self._clock = asyncio.get_running_loop().time

    def __len__(self) -> int:
        return len(self._known)

    def note(self, response_id: str, key_name: str, worker: Worker) -> None:
        """Note that `worker` stores the response. An empty id is ignored."""
        if not response_id:
            return
        place = _place(response_id, key_name)
        self._keep(place, worker.id)
        record = SessionRecord(
            session_id="",
            model=worker.record.model,
            turn=0,
            boundary="",
            after="",
            decode_worker=worker.id,
            last_unix_s=time.time(),
        )
        self._sharing.put(place, record)

    async def find(self, response_id: str, key_name: str) -> str:
        """The id of the worker that stores the response; empty where none is known."""
        place = _place(response_id, key_name)
        known = self._known.get(place)
        if known is not None and self._clock() - known[1] <= self._ttl_s:
            return known[0]
        record = await self._sharing.get(place)
        if record is None:
            return ""
        self._keep(place, record.decode_worker)
        return record.decode_worker

    def _keep(self, place: str, worker_id: str) -> None:
        self._known.pop(place, None)
        self._known[place] = (worker_id, self._clock())
        if len(self._known) > _MAX_RESPONSES:
            self._known.popitem(last=False)


def _place(response_id: str, key_name: str) -> str:
    """Where the worker is shared; nobody can make up an id that leads to another key's response."""
    text = f"{len(key_name)}:{key_name}{response_id}".encode("utf-8", "surrogatepass")
    return response_key(hashlib.blake2b(text, digest_size=16).hexdigest())
