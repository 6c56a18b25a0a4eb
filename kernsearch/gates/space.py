"""The space gate: a config must lie in the domains of its parameters and keep every constraint."""

from __future__ import annotations

from collections.abc import Iterable

from ..device import Device
from ..errors import Rejected
from ..space import Config, Constraint, Param, Sizes


def space(
    params: Iterable[Param], constraints: Iterable[Constraint], config: Config, device: Device, sizes: Sizes
) -> None:
    """Raise Rejected with the reason a person reads, if a config is not feasible."""
    known = {param.name: param for param in params}
    for name in sorted(known.keys() | config.keys()):
        if name not in config:
            raise Rejected(f"{name} has no value", gate="space")
        if name not in known:
            raise Rejected(f"{name} is not a parameter of this variant", gate="space")
        if config[name] not in known[name].values:
            allowed = ", ".join(map(str, known[name].values))
            raise Rejected(f"{name}={config[name]} is not one of {allowed}", gate="space")
    for constraint in constraints:
        if not constraint.holds(config, device, sizes):
            raise Rejected(constraint.reason, gate="space")
