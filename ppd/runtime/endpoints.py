"""Addresses of etcd and NATS: which can be used, and how they are shown."""

import re

_ENDPOINT = re.compile(r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://)?(?P<user>[^\s/]*@)?(?P<host>[^\s/@]+)/?")
_CREDENTIALS = re.compile(r"://[^\s,]*@")
_TLS = frozenset({"https", "tls", "wss", "nats+tls"})
_PRIVATE = "Use a private network or a VPN (docs/security.md)"


class EndpointError(ValueError):
    """An address that cannot be used; the message repeats no password."""


def redacted(text: str) -> str:
    """`text` with the user and password of each URL in it replaced."""
    return _CREDENTIALS.sub("://***@", text) if "@" in text else text


def check_etcd(endpoint: str) -> tuple[str, int]:
    """Host and port of an etcd member. Raises EndpointError."""
    scheme, user, host, port = _parts(endpoint, "etcd")
    if scheme not in ("", "http"):
        raise EndpointError(f"{redacted(endpoint)!r}: etcd is spoken to at host:port, or http://host:port")
    if user:
        raise EndpointError(f"{redacted(endpoint)!r}: etcd's accounts are not supported. {_PRIVATE}")
    return host, port


def check_nats(endpoint: str) -> None:
    """Raises EndpointError for what is no address of a NATS server."""
    scheme, _, _, _ = _parts(endpoint, "NATS")
    if scheme not in ("", "nats"):
        raise EndpointError(f"{redacted(endpoint)!r}: NATS is spoken to at nats://host:port")


def _parts(endpoint: str, server: str) -> tuple[str, str, str, int]:
    """Scheme, credentials, host, port."""
    found = _ENDPOINT.fullmatch(endpoint)
    if found and found["user"] and not found["scheme"]:  # part of a password with a comma, as like as not
        found = None
    scheme = (found["scheme"] or "").lower() if found else ""
    if found and scheme in _TLS:
        plain = "http" if server == "etcd" else "nats"
        raise EndpointError(
            f"{redacted(endpoint)!r}: TLS to {server} is not supported, and all would go in plain text. "
            f"{_PRIVATE} and write {plain}://{found['host']}"
        )
    host, _, port = found["host"].rpartition(":") if found else ("", "", "")
    if found is None or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
        shown = "that" if "@" in endpoint or "://" in endpoint else repr(endpoint)  # it may hold a password
        raise EndpointError(f"{shown} is no endpoint: write host:port")
    return scheme, found["user"] or "", host, int(port)
