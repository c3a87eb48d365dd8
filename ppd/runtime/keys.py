"""The file of API keys: who may call the frontend, under which SLO class and within which limits.

A key is `sk-ppd-{id}-{secret}` with 256 random bits of secret. The file holds the SHA-256 of the whole key
only: with that many random bits a slow hash would protect nothing more, and would cost every request.
"""

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

PREFIX = "sk-ppd-"
MAX_KEYS = 4096
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$"
SLO = r"^[A-Za-z0-9_-]{0,64}$"

_Limit = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
_KEY = re.compile(rf"{PREFIX}([0-9]{{1,4}})-[A-Za-z0-9_-]{{43}}", re.ASCII)


class KeyFileError(ValueError):
    """The file cannot be read or written, or is none; the message says why."""


class ApiKey(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One key. A limit of 0 is none."""

    id: Annotated[int, msgspec.Meta(ge=1, le=MAX_KEYS)]  # part of the key; unique in the file
    name: Annotated[str, msgspec.Meta(pattern=NAME)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    slo: Annotated[str, msgspec.Meta(pattern=SLO)] = ""  # empty: the request's own, else the operator's
    requests_per_min: _Limit = 0
    max_concurrent: _Limit = 0
    max_tokens: _Limit = 0  # that one answer may have
    created: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: Annotated[list[ApiKey], msgspec.Meta(max_length=MAX_KEYS)] = []


class Keys:
    """The keys of one file, found by what a client sent."""

    def __init__(self, keys: list[ApiKey]) -> None:
        """Raises KeyFileError where an id or a name is there twice."""
        self._by_id = {key.id: key for key in keys}
        if len(self._by_id) != len(keys) or len({key.name for key in keys}) != len(keys):
            raise KeyFileError("each id and each name may be there once only")

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._by_id.values())

    def find(self, presented: str) -> ApiKey | None:
        """The key that this is; the comparison takes as long whatever was sent."""
        match = _KEY.fullmatch(presented)
        known = self._by_id.get(int(match[1])) if match else None
        expected = known.sha256 if known else "0" * 64
        return known if hmac.compare_digest(digest(presented), expected) else None


def digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def read(path: Path) -> Keys:
    """Raises KeyFileError."""
    try:
        return Keys(msgspec.json.decode(path.read_bytes(), type=_File).keys)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError, KeyFileError) as error:
        raise KeyFileError(f"{path} is no file of API keys: {error}") from error


@contextlib.contextmanager
def editing(path: Path) -> Iterator[list[ApiKey]]:
    """The file's keys, to be changed in place; written back at the end, whole or not at all.

    A file that does not exist is made, readable by its owner alone. Raises KeyFileError.
    """
    folder = -1
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(folder, fcntl.LOCK_EX)  # the file itself is replaced, so that it cannot carry the lock
        keys = list(read(path)) if path.exists() else []
        yield keys
        Keys(keys)
        _write(path, keys)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror or error}") from error
    finally:
        if folder >= 0:
            os.close(folder)


def _write(path: Path, keys: list[ApiKey]) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            if path.exists():
                before = path.stat()
                os.fchmod(file.fileno(), before.st_mode & 0o777)
                with contextlib.suppress(PermissionError):  # a frontend of another user goes on reading it
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
            file.write(msgspec.json.format(msgspec.json.encode(_File(keys)), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def add(keys: list[ApiKey], name: str, created: str, **limits: str | int) -> str:
    """Append a new key and return it: it is shown this once, and cannot be read from the file.

    Raises KeyFileError for a name that is taken, or no name.
    """
    if any(key.name == name for key in keys):
        raise KeyFileError(f"there is a key named {name!r} already")
    taken = {key.id for key in keys}
    number = next((n for n in range(1, MAX_KEYS + 1) if n not in taken), None)
    if number is None:
        raise KeyFileError(f"there are {MAX_KEYS} keys already")
    key = f"{PREFIX}{number}-{secrets.token_urlsafe(32)}"
    fields = {"id": number, "name": name, "sha256": digest(key), "created": created, **limits}
    try:
        keys.append(msgspec.convert(fields, ApiKey))
    except msgspec.ValidationError as error:
        raise KeyFileError(str(error)) from None
    return key
