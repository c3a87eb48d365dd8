"""Who may call: API keys from a file that is read again when it changes, and the operator's key."""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from controlplane.admission.quotas import Quota
from controlplane.errors import ApiError
from controlplane.telemetry import metrics
from ppd.core.names import H_ADMIN
from ppd.runtime import keys
from ppd.runtime.keys import ApiKey, KeyFileError, Keys

_LOOK_S = 1.0
_ADMIN = H_ADMIN.encode()


class Access:
    """The API keys. Without a key file everybody may call."""

    def __init__(self, path: Path | None, quota: Quota, logger: logging.Logger) -> None:
        """Raises KeyFileError."""
        self._path = path
        self._quota = quota
        self._log = logger
        self._keys: Keys | None = keys.read(path) if path else None
        self._stamp = self._look()

    @property
    def open(self) -> bool:
        """Whether no key is required."""
        return self._keys is None

    def enter(self, key: ApiKey) -> None:
        """Count a request against the key's limits, until `leave`. Raises ApiError (429)."""
        try:
            self._quota.enter(key, time.monotonic())
        except ApiError as error:
            metrics.REJECTED.labels((error.code or "").removesuffix("_limit_exceeded")).inc()
            raise

    def leave(self, key: ApiKey) -> None:
        self._quota.leave(key)

    def who(self, headers: Mapping[bytes, bytes]) -> ApiKey | None:
        """The caller's key, not counted. Raises ApiError (401)."""
        if self._keys is None:
            return None
        scheme, _, presented = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            presented = headers.get(b"x-api-key", b"")  # as Anthropic's clients send it
        key = self._keys.find(presented.strip().decode("latin-1"))
        if key is None:
            metrics.REJECTED.labels("key").inc()
            what = "this API key is not known" if presented else "an API key is needed, as a bearer token"
            raise ApiError(401, what, code="invalid_api_key")
        return key

    # --- the file ---

    def _look(self) -> tuple[int, ...]:
        try:
            seen = self._path.stat() if self._path else None
        except OSError:
            seen = None
        return (seen.st_ino, seen.st_size, seen.st_mtime_ns) if seen else ()

    def reload(self) -> None:
        """Read the file again. If that fails the error is logged, and the last good keys stay valid."""
        if self._path is None:
            return
        self._stamp = self._look()
        try:
            self._keys = keys.read(self._path)
            self._log.info("%d API keys from %s", len(self._keys), self._path)
        except KeyFileError as error:
            self._log.error("the API keys stay as they were: %s", error)

    async def run(self) -> None:
        """For a Supervisor: follow the file."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if await asyncio.to_thread(self._look) != self._stamp:
                self.reload()


def is_admin(headers: Mapping[bytes, bytes], admin_key: str) -> bool:
    """Whether the caller has the operator's key; False where no such key is set."""
    return bool(admin_key) and secrets.compare_digest(headers.get(_ADMIN, b""), admin_key.encode())
