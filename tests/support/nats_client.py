"""What nats-py's client leaves to its callers."""

import contextlib

import nats.errors
from nats.aio.client import Client


async def settled(client: Client, deadline_s: float = 20) -> None:
    """Return once the server has taken all that `client` subscribed and published before.

    Its `flush()` does not promise that: the PING overtakes what waits in the client's buffer (`_send_ping`,
    nats-py 2.16). A request goes the way of all else, and the server answers one that nobody listens to.
    """
    with contextlib.suppress(nats.errors.NoRespondersError):
        await client.request(client.new_inbox(), timeout=deadline_s)
