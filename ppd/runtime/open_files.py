"""How many files and sockets this process may have open at once."""

import contextlib
import resource


def allow(wanted: int) -> int:
    """Raise the limit to `wanted`, as far as the system lets a process do that by itself; what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < reachable:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
            soft = reachable
    return wanted if soft == resource.RLIM_INFINITY else soft
