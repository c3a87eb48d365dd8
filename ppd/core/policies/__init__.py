"""The policies, by name. One small file each, behind `ppd.core.decision.Policy`."""

from collections.abc import Callable
from typing import Any

from ppd.core.decision import Policy
from ppd.core.policies.adaptive import Adaptive
from ppd.core.policies.ampd import Ampd
from ppd.core.policies.conserve import ConServe
from ppd.core.policies.dynamo import IslBounding, IslOrLoad, PrefillLoad
from ppd.core.policies.kairos import Kairos
from ppd.core.policies.least_ttft import LeastTtft
from ppd.core.policies.ppd import PpdTable
from ppd.core.policies.replica import Replica
from ppd.core.policies.static import Static
from ppd.core.policies.uncached import Uncached

DEFAULT = "adaptive"
_POLICIES: dict[str, Callable[..., Policy]] = {
    DEFAULT: Adaptive,
    "ppd": PpdTable,
    "static": Static,
    "replica": Replica,
    "uncached": Uncached,
    "isl_bounding": IslBounding,
    "prefill_load": PrefillLoad,
    "isl_or_load": IslOrLoad,
    "ampd": Ampd,
    "kairos": Kairos,
    "conserve": ConServe,
    "least_ttft": LeastTtft,
}
NAMES = tuple(_POLICIES)
_BY_TABLE = frozenset({DEFAULT, "ppd", "least_ttft"})


class UnknownPolicyError(ValueError):
    """No policy of this name, or it does not take these options; the message says what there is."""


def make(spec: str, **options: Any) -> Policy:
    """The policy that `spec` names: `ppd`, or with options, `static:x=0.5` or `uncached:threshold=512`.

    Options may be given as keywords too. Raises UnknownPolicyError.
    """
    name, _, text = spec.partition(":")
    if name not in _POLICIES:
        raise UnknownPolicyError(f"there is no policy {name!r}: choose from {', '.join(NAMES)}")
    try:
        return _POLICIES[name](**_options(text), **options)
    except (TypeError, ValueError) as error:
        raise UnknownPolicyError(f"policy {spec}: {error}") from error


def needs_table(spec: str) -> bool:
    """Whether the policy that `spec` names decides by a table, so that it is degraded without one."""
    return spec.partition(":")[0] in _BY_TABLE


def _options(text: str) -> dict[str, float]:
    """`x=0.5,y=3` as numbers; whole numbers are int."""
    found: dict[str, float] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is no key=value")
        found[key.strip()] = int(value) if value.strip().isdecimal() else float(value)
    return found
