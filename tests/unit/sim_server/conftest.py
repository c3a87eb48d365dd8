"""Simulated engines in this process, on free ports, many times faster than the hardware."""

import asyncio
import contextlib
import socket

import aiohttp
import pytest
from aiohttp import web

from ppd.core.names import Role
from workers.sim.server import SimServer, build_engine
from workers.sim.settings import SimSettings

STORY = [{"role": "user", "content": "Tell me a long story about a small town. " * 30}]
FOR_P = {"do_remote_decode": True, "do_remote_prefill": False}


def content(reply):
    return reply["choices"][0]["message"]["content"]


class Running:
    """One engine and a client for it."""

    def __init__(self, server, url, session):
        self.server = server
        self.url = url
        self._session = session

    @property
    def engine(self):
        return self.server.driver.engine

    async def post(self, path, body=None, data=None, expect=200):
        async with self._session.post(self.url + path, json=body, data=data) as reply:
            assert reply.status == expect, await reply.text()
            return await reply.json() if "json" in reply.headers.get("content-type", "") else None

    async def get(self, path):
        async with self._session.get(self.url + path) as reply:
            return await (reply.json() if "json" in reply.headers["content-type"] else reply.text())

    def stream(self, body):
        return self._session.post(self.url + "/v1/chat/completions", json={**body, "stream": True})

    async def chat(self, messages, max_tokens=20, kv=None, **rest):
        body = {"model": "m", "messages": messages, "max_tokens": max_tokens, **rest}
        return await self.post("/v1/chat/completions", {**body, "kv_transfer_params": kv} if kv else body)

    async def until(self, condition):
        """Wait for something that the engine does by itself."""
        for _ in range(2000):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("it did not come about")


@pytest.fixture
async def start():
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def start_one(role=Role.REPLICA, **settings):
            sock = socket.socket()
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
            chosen = {"speed": 200.0, "hardware": "h100-llama-3.1-8b", "port": port, **settings}
            sim = SimSettings(model="m", role=role, **chosen)
            server = SimServer(sim, build_engine(sim))
            runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            await web.SockSite(runner, sock).start()
            stepping = asyncio.create_task(server.driver.run())

            async def stop():
                stepping.cancel()
                await runner.cleanup()
                await server.close()

            stack.push_async_callback(stop)
            return Running(server, f"http://127.0.0.1:{port}", session)

        yield start_one
