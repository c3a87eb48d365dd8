"""Who may see the page's data: whoever has the admin key, or, where none is set, this machine's own users."""

from collections.abc import Mapping
from ipaddress import ip_address

from controlplane.admission.keys import is_admin
from controlplane.errors import ApiError

_LOCAL_ONLY = (
    "the frontend has no admin key (PPD_ADMIN_KEY): it shows its data on its own loopback address only"
)
_PROXIES = (b"forwarded", b"x-forwarded-for", b"via")


def loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    name = host.strip("[]")
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


class Guard:
    """`listens_on`: the address that the frontend listens on."""

    def __init__(self, admin_key: str, listens_on: str) -> None:
        self._key = admin_key
        self._local = not admin_key and loopback(listens_on)

    def check(self, headers: Mapping[bytes, bytes], client: str) -> None:
        """Raises ApiError (403) for everybody who may not see the data."""
        if self._key:
            if not is_admin(headers, self._key):
                raise ApiError(403, "this needs the admin key", code="admin_key_needed")
        elif not (self._local and loopback(client) and _direct(headers)):
            raise ApiError(403, _LOCAL_ONLY, code="local_only")


def _direct(headers: Mapping[bytes, bytes]) -> bool:
    """Neither through a proxy, nor by a foreign name that was made to resolve to this machine."""
    host = headers.get(b"host", b"").decode("latin-1")
    name = host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]
    return loopback(name) and not any(each in headers for each in _PROXIES)
