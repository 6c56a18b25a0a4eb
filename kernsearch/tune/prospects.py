"""What there is to try for a problem on a device: variants, their spaces, their plans, and what the model expects."""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice

from .. import launch, model, registry
from ..backends import Backend
from ..candidate import Candidate, array_bytes, check_memory, lower
from ..derive import Variant, derive
from ..device import Device, lacks
from ..errors import DeviceError, Rejected, SpaceError
from ..feasible import FeasibleSpace
from ..model.ceilings import Ceilings
from ..plan import Plan
from ..problem import Problem
from ..space import Op
from .request import Request

VARIANTS = 64  # searched: where there are more, those of which the model expects most
GUESSED = 400  # random configs are tried for
GLANCES = 12  # feasible ones, by which a variant is judged before its configs are ranked
FEW = 8  # of many variants are ranked
PROMISING = 2.0  # variants whose best glance takes longer than the best of all by this are not ranked
PROPOSED = 8  # candidates of each variant that the model proposes
HOPELESS = 6.0  # candidates predicted slower than the best prediction by this are not worth their time
WORKSPACE_SHARE = 0.5  # of what the arrays take: more workspace is not tried unless the request allows it
LEAST_WORKSPACE_BYTES = 32 << 20  # allowed in any case, unless the request says less


class Prospects:
    """Variants that can run here, the best ranked first, each with its feasible space; those `named` among them.

    Raises SpaceError when there is none, DeviceError when the problem does not fit the device's memory or the device
    lacks its dtype.
    """

    def __init__(
        self, op: Op, problem: Problem, backend: Backend, device: Device, ceilings: Ceilings, request: Request,
        named: Sequence[str] = (),
    ):  # fmt: skip
        self.op, self.problem, self.backend, self.device = op, problem, backend, device
        self.sizes = {**op.sizes(problem), "THREADS": int(device.threads), "ITEMSIZE": launch.itemsize(problem.dtype)}
        self._ceilings, self._request = ceilings, request
        self._best_s: float | None = None  # of the predictions; None: nothing is left out for its prediction
        self._plans: dict[Candidate, Plan] = {}
        if reason := lacks(device, problem.dtype):
            raise DeviceError(reason)
        self._fits_memory()
        self.variants: dict[str, Variant] = {}
        self.spaces: dict[str, FeasibleSpace] = {}
        self._absent: dict[str, str] = {}
        self._seconds: dict[Candidate, float] = {}  # predictions
        self._needs_memory: dict[str, frozenset[str]] = {}  # variants that take it, and the letters that say how much
        self._needed: dict[Candidate, int] = {}  # bytes, of candidates with these letters alone
        derived = derive(problem, op, registry.templates(backend.name)).variants
        chosen = {v.name for v in model.foremost(derived, device, self.sizes, ceilings, VARIANTS)} | {
            *named,
            request.variant,
        }
        self._many = len(derived) > VARIANTS
        for variant in derived:
            if variant.name in chosen:
                self._add(variant)
            else:
                self._absent[variant.name] = f"the model expects more of the {VARIANTS} variants that are searched"
        if not self.variants:
            raise SpaceError(f"{problem.key}: no variant has a feasible config on {device.key}")

    def _add(self, variant: Variant) -> None:
        """Take a variant in, unless it cannot run here: then `why_absent` says why."""
        space = FeasibleSpace(variant.params, variant.constraints, self.device, self.sizes)
        first = next(space.iterate(), None)
        if first is None:
            self._absent[variant.name] = space.why_empty() or "no config is feasible"
            return
        try:
            plan = lower(variant, first, self.problem, self.backend, self.device)
        except Rejected as refusal:  # an operand that its maps cannot hold, whatever the config
            self._absent[variant.name] = refusal.reason
            return
        if (assumed := launch.unmet(plan, self._names(plan)[1])) is not None:
            self._absent[variant.name] = f"it assumes {assumed}"
        else:
            self.variants[variant.name], self.spaces[variant.name] = variant, space
            if plan.workspace or any(kernel.scratch != "0" for kernel in plan.kernels):
                self._needs_memory[variant.name] = self._sizing(variant)

    def _sizing(self, variant: Variant) -> frozenset[str]:
        """The letters on which workspace and scratch depend."""
        letters = frozenset(param.name for param in variant.params)
        if self.backend.host_memory:
            return letters
        texts = [*(matched.template.scratch for matched in variant.kernels), *variant.program.extents.values()]
        return letters & set(re.findall(r"[A-Z]\w*", " ".join(texts)))

    def why_absent(self, name: str) -> str:
        """Why there is no variant of that name."""
        return self._absent.get(name, "no program of this problem fits its templates")

    def _names(self, plan: Plan) -> tuple[launch.Call, dict[str, int]]:
        return launch.call_at(plan, self.problem.shape, int(self.device.threads))

    def _fits_memory(self) -> None:
        elements = check_memory(self.problem, self.device)
        limit = self._request.max_workspace
        least = max(int(WORKSPACE_SHARE * elements * self.sizes["ITEMSIZE"]), LEAST_WORKSPACE_BYTES)
        self.max_workspace = least if limit is None else limit

    def tokens(self) -> set[str]:
        """Hashes of what the kernels of all variants are made of, sources and generated headers: measurements of
        anything else say nothing about them."""
        plans = [self.plan(Candidate.of(name, next(space.iterate()))) for name, space in self.spaces.items()]
        kernels = [kernel for plan in plans for kernel in plan.kernels]
        headers = {hashlib.sha256(kernel.header.encode()).hexdigest() for kernel in kernels}
        return headers | {kernel.tokens for kernel in kernels}

    def plan(self, candidate: Candidate) -> Plan:
        """The launch plan of a candidate."""
        if candidate not in self._plans:
            variant = self.variants[candidate.variant]
            self._plans[candidate] = lower(variant, dict(candidate.config), self.problem, self.backend, self.device)
        return self._plans[candidate]

    def workspace_bytes(self, candidate: Candidate) -> int:
        """Memory that the candidate needs beside the arrays, at the problem's shape."""
        return self._names(self.plan(candidate))[0].workspace_bytes

    def unwanted(self, variant: str, config: Mapping[str, int]) -> str | None:
        """Why this run does not ask for a candidate, or None."""
        if self._request.deterministic and not self.variants[variant].deterministic:
            return "its result may differ from run to run"
        if self._best_s is not None and (ratio := self._predicted_s(variant, config) / self._best_s) > HOPELESS:
            return f"predicted {ratio:.0f} times slower than the best prediction"
        if variant in self._needs_memory:
            letters = self._needs_memory[variant]
            alike = Candidate.of(variant, {name: value for name, value in config.items() if name in letters})
            if alike not in self._needed:
                self._needed[alike] = self.workspace_bytes(Candidate.of(variant, config))
            needed = self._needed[alike]
            if needed > self.max_workspace:
                return f"it needs {needed} bytes of workspace, allowed {self.max_workspace}"
        return None

    def _predicted_s(self, variant: str, config: Mapping[str, int]) -> float:
        self.foresee(variant, [config])
        return self._seconds[Candidate.of(variant, config)]

    def predicted_s(self, candidate: Candidate) -> float:
        """Seconds that the model expects."""
        return self._predicted_s(candidate.variant, dict(candidate.config))

    def expected(self, variant: str, configs: Sequence[Mapping[str, int]]) -> list[float]:
        """Seconds that the model expects of configs of a variant."""
        self.foresee(variant, configs)
        return [self._seconds[Candidate.of(variant, config)] for config in configs]

    @cached_property
    def floor_s(self) -> float:
        """The least time that arithmetic and memory allow: the larger of operations by the dtype's peak and bytes by
        the copy rate."""
        moved = array_bytes(self.op.root(self.problem), self.sizes)
        peak = self._ceilings.peak(self.problem.dtype, int(self.device.threads))
        return max(self.op.flops(self.problem) / peak, moved / self._ceilings.copy)

    def foresee(self, variant: str, configs: Sequence[Mapping[str, int]]) -> None:
        """Predict these configs together, as `unwanted` will be asked about them one by one."""
        fresh = {c: config for config in configs if (c := Candidate.of(variant, config)) not in self._seconds}
        told = model.predict_all(self.variants[variant], list(fresh.values()), self.device, self.sizes, self._ceilings)
        self._seconds.update(zip(fresh, (p.seconds for p in told), strict=True))

    def predicted(self, spaces: Mapping[str, FeasibleSpace]) -> list[Candidate]:
        """The model's best candidates in these spaces, best first; from then on hopeless ones are unwanted, unless
        the request asks for a part of the space on purpose. Raises SpaceError when there is none."""
        found: list[tuple[float, Candidate]] = []
        for name, space in self._promising(spaces).items():
            ranked = model.rank(
                self.variants[name], space, self.device, self.sizes, self._ceilings, seed=self._request.seed
            )
            wanted = ((p.seconds, Candidate.of(name, c)) for p, c in ranked if self.unwanted(name, c) is None)
            found += islice(wanted, PROPOSED)
        if not found:
            raise SpaceError(f"{self.problem.key}: no candidate is left to search")
        found.sort()
        if not self._request.explores:
            self._best_s = found[0][0]
        return [candidate for _, candidate in found]

    def _promising(self, spaces: Mapping[str, FeasibleSpace]) -> dict[str, FeasibleSpace]:
        """Variants worth ranking: of a few random configs each, one comes near the best of all."""
        rng = random.Random(self._request.seed)
        glances: dict[str, float] = {}
        for name, space in spaces.items():
            drawn = list(islice(space.guesses(rng, GUESSED), GLANCES)) or list(islice(space.iterate(), 1))
            told = model.predict_all(self.variants[name], drawn, self.device, self.sizes, self._ceilings)
            glances[name] = min((p.seconds for p in told), default=math.inf)
        best = sorted(glances.values())[: FEW if self._many and len(glances) > FEW else None]
        limit = min(PROMISING * best[0], best[-1]) if best else math.inf
        return {name: spaces[name] for name, seconds in glances.items() if seconds <= limit}
