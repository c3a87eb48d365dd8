"""The policies, by name. One small file each, behind `ppd.core.decision.Policy`."""

from collections.abc import Callable
from typing import Any

from ppd.core.decision import Policy
from ppd.core.policies.adaptive import Adaptive
from ppd.core.policies.ppd import PpdTable

_POLICIES: dict[str, Callable[..., Policy]] = {
    "adaptive": Adaptive,
    "ppd": PpdTable,
}
NAMES = tuple(_POLICIES)
DEFAULT = "adaptive"


class UnknownPolicyError(ValueError):
    """No policy of this name, or it does not take these options; the message names what there is."""


def make(name: str, **options: Any) -> Policy:
    """The policy called `name`. Raises UnknownPolicyError."""
    if name not in _POLICIES:
        raise UnknownPolicyError(f"there is no policy {name!r}: choose from {', '.join(NAMES)}")
    try:
        return _POLICIES[name](**options)
    except TypeError as error:
        raise UnknownPolicyError(f"policy {name}: {error}") from error
