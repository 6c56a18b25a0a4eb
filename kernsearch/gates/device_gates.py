"""The gates in the process that owns a device: `Bench`, with the tuned shape's arrays and their comparison there.

Awkward small shapes are filled, judged and kept on the host, in an image that is copied to the device and back around
each run; that takes less time than to start the many small kernels it would take there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ..backends import Compiled
from ..device import Device
from ..errors import DeviceError, KernsearchError, Rejected
from ..namespace import to_host, to_module
from ..plan import Plan
from ..problem import Problem
from ..space import Config, InputSet, Op
from ..worker import Timing
from .bench import Bench, Case
from .correctness import agrees
from .device_arena import DeviceArena, Image
from .machine import Loaded, Machine
from .reference import Block, Reference
from .rotation import Rotation
from .stage import Operands, Stage

MIDDLE = 1 << 20  # product of sizes from which the reference of an awkward shape is computed on the device
LARGE = 1 << 26  # and from which the shape is judged there
ALIGN = 16  # bytes: rows of awkward shapes for plans that do not take any other, as those with tensor maps
SLOW_REFERENCE_FLOPS = 2e13
GLANCED = 5  # awkward shapes of a candidate that is not to be recorded
LARGER_BLOCKS = 64  # than on the host
REFERENCE_SHARE = 1 / 4  # of the device's memory that a kept reference may take
WORKSPACE_KEPT = 256 << 20  # bytes of workspace that stay for the next candidate
Beat = Callable[[float], None]  # told what may now take so many seconds; 0 when a candidate's work is over


class DeviceStage(Stage):
    """A stage whose launches the process itself starts."""

    loaded: Loaded

    @cached_property
    def launches(self) -> Any:
        return self


class DeviceRunner:
    """Runs stages. `spoiled` once a candidate did what the next one must not inherit: then this process is to end."""

    mends = False

    def __init__(self, machine: Machine, arena: DeviceArena, beat: Beat, timeout_s: float) -> None:
        self.machine, self.arena, self.beat, self.timeout_s = machine, arena, beat, timeout_s
        self.spoiled = False
        self.runs = 0

    def run(self, launches: DeviceStage, *, timeout_s: float | None = None) -> Timing:
        stage = launches
        buffers = [
            [0 if at is None else _address(*at) for at in stage.buffers(index)]
            for index in range(len(stage.call.kernels))
        ]
        scalars = tuple(stage.scalars[name] for name in stage.plan.scalars)
        layouts = [layout for layout in (stage.operands.layout, stage.layout) if layout.slots]
        for layout in layouts:
            _memory(layout).upload(layout.start, layout.end)
        with self.guard(timeout_s or self.timeout_s):
            launch = stage.loaded.launcher(stage.call)
            self.machine.synchronize()
            started = time.perf_counter()
            launch(buffers, scalars)
            self.machine.synchronize()
            seconds = time.perf_counter() - started
        for layout in layouts:
            _memory(layout).download(layout.start, layout.end)
        self.runs += 1
        return Timing([seconds], [0.0], [0.0], [0.0])

    def guard(self, limit_s: float) -> _Guard:
        """A context in which a candidate's kernels run; their errors leave it as Rejected."""
        return _Guard(self, limit_s)

    def stop(self) -> None:
        self.spoiled = True


class _Guard:
    def __init__(self, runner: DeviceRunner, limit_s: float) -> None:
        self.runner, self.limit_s = runner, limit_s

    def __enter__(self) -> None:
        self.runner.beat(self.limit_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, Rejected):
            cause = self.runner.machine.cause(error)
            if cause is not None:
                self.runner.spoiled |= cause[1]
                raise Rejected(cause[0], gate="execution") from error
        self.runner.beat(0.0)


def _memory(layout: Any) -> DeviceArena:
    return layout.arena


def _address(name: str, layout: Any) -> int:
    return _memory(layout).address(layout.slots[name].offset)


class _Fetched(Reference):
    """A reference that is computed on the device and compared with on the host."""

    def _compute(self, cut: Mapping[str, slice]) -> Block:
        block = super()._compute(cut)
        parts = ({name: to_host(a) for name, a in part.items()} for part in (block.expected, block.allowed))
        return Block(block.where, *parts)


class DeviceGates(Bench):
    """Gates and times the candidates of one problem on a device, until one spoils it (`runner.spoiled`)."""

    chunk = 1 << 26
    keep_cases_bytes = 1 << 29

    def __init__(
        self,
        op: Op,
        problem: Problem,
        device: Device,
        machine: Machine,
        beat: Beat,
        *,
        seed: int,
        run_timeout_s: float,
    ) -> None:
        self.machine = machine
        arena = DeviceArena(machine, DeviceArena(machine))
        self.runner = DeviceRunner(machine, arena, beat, run_timeout_s)
        super().__init__(
            op, problem, device, None, self.runner,
            threads=machine.threads, seed=seed, slow_reference_flops=SLOW_REFERENCE_FLOPS,
        )  # fmt: skip
        self._image = Image(machine, Image(machine))
        self._large = DeviceArena(machine, arena.beside)
        self._loaded: Loaded | None = None
        self._sealed: list[tuple[Any, int]] = []
        self._rotation: Rotation | None = None

    def ready(self) -> None:
        """Make inputs and reference of the tuned shape, before any candidate runs. Raises DeviceError when there is no
        room for them."""
        try:
            self._operands()
            reference = self._expected()
            if reference.keeps and self.op.flops(self.problem) <= self.slow_reference_flops:
                for _ in reference.blocks():
                    pass
            self._seal()
            self._rehearse()
        except MemoryError as error:
            raise DeviceError(f"{self.problem.key}: out of device memory ({error})") from error

    def _rehearse(self) -> None:
        """Fill, look at and compare the arrays as for a candidate that is right: what the array module compiles when it
        is first used is compiled now, and the first candidate does not wait for it."""
        tuned = self._operands()
        next(tuned.layout.damage(), None)
        for name, kept in tuned.inputs.items():
            kept.first_change(tuned.views[name])
        for block in self._expected().blocks(frozenset({0})):
            for name, expected in block.expected.items():
                part = tuned.views[name][block.where[name]]
                part.view(f"u{part.dtype.itemsize}")[...] = 0
                agrees(name, part, expected, self.machine.xp.full_like(expected, np.inf))
        tuned.layout.poison()

    # -- the gates

    def examine(
        self,
        plan: Plan,
        compiled: Sequence[Compiled],
        config: Config,
        *,
        thorough: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, int | float | bool]:
        self._loaded = self.machine.load(plan, compiled)
        try:
            return super().examine(plan, compiled, config, thorough=thorough, timeout_s=timeout_s)
        finally:
            if not self.runner.spoiled:
                self._loaded.close()
            self._loaded = None

    def _at_tuned_shape(
        self, plan: Plan, compiled: Sequence[Compiled], thorough: bool, timeout_s: float | None
    ) -> dict[str, int | float | bool]:
        try:
            return super()._at_tuned_shape(plan, compiled, thorough, timeout_s)
        except Rejected as refusal:
            # An earlier candidate may have written where nobody looked: then this one is not to blame.
            if not self.runner.spoiled or refusal.gate == "execution":
                self._doubt(refusal)
            raise

    def _doubt(self, refusal: Rejected) -> None:
        try:
            intact = all(_sum(array) == known for array, known in self._sealed)
        except Exception as error:
            if self.machine.cause(error) is None:  # the device does not answer any more: nothing to look at
                raise
            return
        if not intact:
            refusal.doubtful = self.runner.spoiled = True

    def _seal(self) -> None:
        """Remember what inputs and references are, so that it can be told whether somebody wrote into them."""
        tuned, reference = self._operands(), self._expected()
        held = [kept.array for kept in tuned.inputs.values()]
        if reference.known:
            for block in reference.blocks():
                held += [*block.expected.values(), *block.allowed.values()]
        self._sealed = [(array, _sum(array)) for array in held]

    # -- where it runs

    def _config(self, config: Config) -> Config:
        return {**config, "SMS": self.threads}

    def _chosen(self, count: int, thorough: bool) -> Sequence[int]:
        """While searching some spread over the list, the large ones at its end among them: a run on a device takes less
        time than a reference. Whatever is recorded has seen them all."""
        if thorough or count <= GLANCED:
            return range(count)
        return sorted({count - 1 - i * (count - 1) // (GLANCED - 1) for i in range(GLANCED)} | {count - 2})

    def _sets(self, index: int, shape: tuple[int, ...], last: bool) -> Sequence[InputSet]:
        """All sets at some shapes, the first and another one at the rest: many runs cost more than they find."""
        sets = self.op.inputs
        if prod(shape) > LARGE:
            return sets[:2]
        return sets if last or index % 6 == 4 else (sets[0], sets[1 + index % (len(sets) - 1)]) if sets[1:] else sets

    def _threads(self, index: int, last: bool) -> int:
        return self.threads

    def _awkward(
        self, case: Case, pitch: tuple[int, int], plan: Plan, compiled: Sequence[Compiled], threads: int
    ) -> Stage | None:
        small = all(isinstance(part, np.ndarray) for block in case.blocks for part in block.expected.values())
        arena = self._image if small else self._large
        for pad, shift, align in ((*pitch, 1), (1, 0, ALIGN)):
            laid = Operands(arena, 0, case.arrays, case.inputs, pad, shift, align)
            try:
                return self._stage(laid, plan, compiled, case.scalars, threads)
            except Rejected:
                continue
        return None

    def _stage(
        self, laid: Operands, plan: Plan, compiled: Sequence[Compiled], scalars: dict[str, float], threads: int
    ) -> Stage:
        arena = laid.layout.arena
        assert isinstance(arena, DeviceArena) and self._loaded is not None
        stage = DeviceStage(laid, arena.beside, 0, plan, compiled, scalars, threads)
        stage.loaded = self._loaded
        return stage

    def _here(self, array: np.ndarray, shape: tuple[int, ...]) -> Any:
        small = shape != self.problem.shape and prod(shape) <= LARGE
        return array if small else to_module(array, self.machine.xp)

    def _make_reference(self, problem: Problem, inputs: dict[str, Any], scalars: dict[str, float]) -> Reference:
        if all(isinstance(array, np.ndarray) for array in inputs.values()):
            if prod(problem.shape) <= MIDDLE:
                return super()._make_reference(problem, inputs, scalars)
            moved = {name: to_module(array, self.machine.xp) for name, array in inputs.items()}
            return _Fetched(self.op, problem, moved, scalars, large=LARGER_BLOCKS)
        budget = int(REFERENCE_SHARE * self.machine.memory_bytes()[1])
        return Reference(self.op, problem, inputs, scalars, budget_bytes=budget, large=LARGER_BLOCKS)

    def _recover(self) -> None:
        """What the next candidate must not inherit ends with this process."""

    def _tidy(self) -> None:
        beside = self.runner.arena.beside
        if beside.size > WORKSPACE_KEPT and not self.runner.spoiled:
            beside.release()

    # -- timing

    def sampler(
        self, plan: Plan, compiled: Sequence[Compiled], *, cold: bool
    ) -> tuple[Callable[[int], list[float]], Loaded]:
        """A function that times a gated candidate, seconds of a call each, and what is loaded for it. All scalars are
        1. Raises Rejected."""
        tuned = self._operands()
        copies = self.machine.copies(sum(array.nbytes for array in tuned.arrays.values())) if cold else 1
        if self._rotation is None or len(self._rotation.addresses) < copies:
            self._rotation = None
            self._rotation = Rotation(self.machine, tuned, copies)
        loaded = self.machine.load(plan, compiled)
        try:
            with self.runner.guard(self.runner.timeout_s):
                launch = self._rotation.launches(plan, loaded, copies)
                limit = self.runner.timeout_s
                replay = self.machine.timer(launch, copies, lambda seconds: self.runner.beat(limit + 100 * seconds))
        except (KernsearchError, Rejected):
            if not self.runner.spoiled:
                loaded.close()
            raise

        def sample(repeat: int) -> list[float]:
            with self.runner.guard(self.runner.timeout_s * max(1, repeat)):
                return replay(repeat)

        return sample, loaded


def _sum(array: Any) -> int:
    """A sum over the bits of an array."""
    return int(array.view(f"u{array.dtype.itemsize}").sum(dtype=np.uint64))
