"""What the play-off resolves: a kernel against itself must be a tie, a planted difference of 2 % must be found.

Both run the very play-off that decides what is recorded, with cold caches in a worker. The planted one is the same
kernel with 2 % more depth, and takes turns at being the incumbent.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from common import keep, wait_until_idle

from kernsearch import backends, records, registry
from kernsearch.gates import open_bench
from kernsearch.measure import Timer, playoff
from kernsearch.records import lookup

SHAPE, LONGER = (192, 192, 2000), (192, 192, 2040)  # about 1 ms, and 2 % more
RUNS = 100
TIES, FOUND = 0.99, 0.95
BUDGET_S = 25.0  # of one play-off, as in `tune`


def resolution(runs: int = RUNS, budget_s: float = BUDGET_S) -> None:
    """A/A and planted play-offs, `runs` of each, taking turns."""
    load = wait_until_idle()
    with ExitStack() as stack:
        plain, longer = (_timer(stack, shape) for shape in (SHAPE, LONGER))
        same, planted = [], []
        for number in range(runs):
            control = playoff({"one": plain, "other": plain}, budget_s=budget_s, seed=2 * number)
            same.append(_told(control, "other"))
            order = {"one": plain, "other": longer} if number % 2 else {"one": longer, "other": plain}
            found = playoff(order, budget_s=budget_s, seed=2 * number + 1)
            planted.append({**_told(found, "other"), "longer": "other" if number % 2 else "one"})
            print(f"{number + 1}: {same[-1]['verdict']}, {planted[-1]['verdict']}", flush=True)
    ties = sum(row["verdict"] == "tie" for row in same)
    right = sum(row["verdict"] == ("slower" if row["longer"] == "other" else "faster") for row in planted)
    wrong = sum(row["verdict"] == ("faster" if row["longer"] == "other" else "slower") for row in planted)
    busy = sum(row["busy"] for row in (*same, *planted))
    keep(
        "resolution",
        {
            "title": "play-offs of a kernel against itself called a tie, and of one with 2 % more depth found slower",
            "wanted": f"at least {TIES:.0%}, at least {FOUND:.0%}",
            "summary": f"{ties} of {runs} ties; {right} of {runs} found, {wrong} the wrong way round; {busy} of "
            f"{2 * runs} play-offs on a busy machine",
            "met": ties >= TIES * runs and right >= FOUND * runs,
            "same": same,
            "planted": planted,
        },
        load,
    )


def _timer(stack: ExitStack, shape: tuple[int, ...]) -> Timer:
    """The default candidate of a shape, the same kernel for both."""
    backend, device = backends.resolve("cpu")
    problem = registry.problem("gemm", shape)
    record: records.Record = lookup.store().default(problem, device).record
    bench = stack.enter_context(open_bench(registry.op("gemm"), problem, device, backend))
    return bench.timer(record.plan, [backend.compile(kernel, device) for kernel in record.plan.kernels])


def _told(result: Any, name: str) -> dict[str, Any]:
    ratio = result.ratios[name]
    verdict = "faster" if ratio.faster else "slower" if ratio.slower else "tie"
    return {"verdict": verdict, "ratio": ratio.value, "ratio_ci": list(ratio.ci), "rounds": result.rounds,
            "stopped": result.stopped, "busy": result.busy}  # fmt: skip
