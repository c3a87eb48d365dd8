"""Random ids: unique, not secret. A system call for each, as `secrets` makes, would cost more than all else
that a turn does for its ids."""

import os
import random

_source = random.Random()
os.register_at_fork(after_in_child=_source.seed)


def token_hex(n_bytes: int) -> str:
    """`n_bytes` random bytes in hexadecimal."""
    return _source.getrandbits(8 * n_bytes).to_bytes(n_bytes, "big").hex()
