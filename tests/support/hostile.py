"""Sends odd requests to a frontend, and counts what comes back."""

import asyncio
import random
from collections import Counter
from typing import Any

import aiohttp
from yarl import URL

from tests.support.odd_requests import Odd

# What has no planner behind it says so.
_MAY_BE_503 = ("/admin/planner", "/admin/table", "/ui/data")


class Assault:
    """`statuses` are those of whole requests; `faults` what must not be."""

    def __init__(self, url: str, seed: int, document: dict[str, Any], model: str = "m") -> None:
        self.url = URL(url)
        self.statuses: Counter[int] = Counter()
        self.faults: list[str] = []
        self.connections = 0
        self._odd = Odd(document, seed, model)
        self._random = random.Random(seed)

    async def run(self, requests: int, connections: int, at_once: int = 16) -> None:
        todo = [True] * requests + [False] * connections
        self._random.shuffle(todo)
        timeout = aiohttp.ClientTimeout(60)
        async with aiohttp.ClientSession(timeout=timeout) as http:

            async def some() -> None:
                while todo:
                    await (self._request(http) if todo.pop() else self._connection())

            await asyncio.gather(*(some() for _ in range(at_once)))

    async def _request(self, http: aiohttp.ClientSession) -> None:
        made = self._odd.request()
        url = URL(str(self.url) + made.path, encoded=True)
        try:
            async with http.request(
                made.method, url, data=made.body, headers=made.headers, allow_redirects=False
            ) as response:
                text = await response.text(errors="replace")
        except ValueError:  # the library itself refuses to send it
            return
        except aiohttp.ClientError as error:
            self.faults.append(f"{error!r} for {made}")
            return
        self.statuses[response.status] += 1
        documented = response.status == 503 and made.path.startswith(_MAY_BE_503)
        if response.status >= 500 and not documented:
            self.faults.append(f"{response.status} {text[:200]} for {str(made)[:2000]}")
        if response.status >= 400 and made.method != "HEAD" and '"error"' not in text:
            self.faults.append(f"{response.status} not in OpenAI's shape: {text[:200]} for {str(made)[:300]}")
        if response.status != 431 and "x-trace-id" not in response.headers:
            self.faults.append(f"no trace id for {str(made)[:300]}")

    async def _connection(self) -> None:
        """Whole, slowly, cut off in the middle, or with the sending side closed."""
        self.connections += 1
        data, manner = self._odd.connection(), self._random.randrange(4)
        try:
            reader, writer = await asyncio.open_connection(self.url.host, self.url.port)
        except OSError as error:
            self.faults.append(f"no connection: {error!r}")
            return
        try:
            if manner == 1:
                for at in range(0, min(len(data), 400), 40):
                    writer.write(data[at : at + 40])
                    await asyncio.sleep(0.002)
            else:
                writer.write(data)
            if manner == 2:
                writer.write_eof()
            if manner == 3:
                writer.transport.abort()
                return
            async with asyncio.timeout(0.05):
                answer = await reader.read(65536)
            if answer and b"HTTP/1.1 5" in answer:
                self.faults.append(f"{answer[:200]!r} for {data[:300]!r}")
        except (TimeoutError, OSError):  # it was closed already
            pass
        finally:
            writer.transport.abort()
