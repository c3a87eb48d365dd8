"""KV between simulated engines: one HTTP call stands for one NIXL read, and takes as long."""

import time
from typing import Any

import aiohttp

READ_PATH = "/sim/kv/read"
_DEADLINE_S = 30.0


class Peers:
    """Reads the KV that other engines hold; each read has a deadline."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_DEADLINE_S), connector=aiohttp.TCPConnector(limit=0)
        )
        self.reads = 0
        self.failures = 0
        self.bytes = 0
        self.seconds = 0.0

    async def close(self) -> None:
        await self._session.close()

    async def read(self, params: dict[str, Any], tokens: int, bytes_per_token: int) -> tuple[float, str]:
        """Pull `tokens` tokens of what `params` names (0 = only free it). How long it took, and why it failed
        where it did."""
        url = f"http://{params['remote_host']}:{params['remote_port']}{READ_PATH}"
        body = {
            "request_id": params["remote_request_id"],
            "engine_id": params["remote_engine_id"],
            "tokens": tokens,
        }
        began_s, error = time.monotonic(), ""
        try:
            async with self._session.post(url, json=body) as reply:
                if reply.status != 200:
                    error = f"refused: {(await reply.text())[:200]}"
        except TimeoutError:
            error = f"timed out: not complete after {_DEADLINE_S:g} s"
        except (aiohttp.ClientError, OSError) as cause:
            error = f"unreachable: {cause}"
        took_s = time.monotonic() - began_s
        if error:
            self.failures += 1
        elif tokens:
            self.reads += 1
            self.bytes += tokens * bytes_per_token
            self.seconds += took_s
        return took_s, error


def readable(params: dict[str, Any] | None) -> bool:
    """Whether `params` name blocks that an engine holds for us."""
    needed = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")
    return bool(params) and all(params.get(key) for key in needed)  # type: ignore[union-attr]
