"""`kernsearch explain`: from the textbook to the winner, step by step, with what each step was predicted to buy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from .. import backends, launch, model, registry
from ..claims import Claims, claims
from ..derive import Derivation, Variant, annotation, derive
from ..errors import CacheError
from ..feasible import FeasibleSpace
from ..model import ceilings
from ..records import Record, lookup
from ..rules import all_rules
from .tables import table
from .units import duration, operations, size, spelled

_RANKED = 12  # variants listed


def explanation(
    op: str, *, shape: Sequence[int], dtype: str | None = None, device: str = "auto", **options: Any
) -> dict[str, Any]:
    """Everything that `explain` prints, as plain data."""
    backend, where = backends.resolve(device)
    found = registry.op(op)
    problem = registry.problem(op, shape, dtype, backend=where.backend, **options)
    sizes = {**found.sizes(problem), "THREADS": int(where.threads), "ITEMSIZE": launch.itemsize(problem.dtype)}
    derivation = derive(problem, found, registry.templates(backend.name))
    roof = ceilings.of(backend, where)
    told: dict[str, Any] = {
        "problem": problem.key,
        "device": where.key,
        "programs": derivation.graph.number_of_nodes(),
        "variants": len(derivation.variants),
        "flops": found.flops(problem),
    }
    ranked = []
    for variant in derivation.variants:
        space = FeasibleSpace(variant.params, variant.constraints, where, sizes)
        best = next(iter(model.rank(variant, space, where, sizes, roof)), None)
        if best is not None:
            prediction, config = best
            ranked.append({"variant": variant.name, "seconds": prediction.seconds, "bound": prediction.bound,
                           "config": config})  # fmt: skip
    told["predicted"] = sorted(ranked, key=lambda row: row["seconds"])
    try:
        hit = lookup.store().find(problem, where)
    except CacheError:
        hit = None
    record = hit.record if hit is not None and hit.kind in ("exact", "compatible") else None
    told["hit"] = hit.kind if hit is not None else "none"
    if record is None and told["predicted"]:
        first = told["predicted"][0]
        told["steps"] = _steps(derivation.variant(first["variant"]), first["config"], derivation, sizes)
    elif record is not None:
        told["winner"] = _winner(record, problem, where, derivation, sizes, roof)
        names = {v.name for v in derivation.variants}
        if record.variant in names:
            told["steps"] = _steps(derivation.variant(record.variant), record.config, derivation, sizes)
    return told


def _winner(
    record: Record, problem: Any, where: Any, derivation: Derivation, sizes: dict[str, int], roof: Any
) -> dict[str, Any]:
    evidence = record.evidence
    finalists = dict(evidence.get("finalists", {}))
    name = " ".join([record.variant, *(f"{k}={v}" for k, v in sorted(record.config.items()))])
    others = sorted((seconds, other) for other, seconds in finalists.items() if other != name)
    winner: dict[str, Any] = {
        "variant": record.variant,
        "config": record.config,
        "median_s": record.measurement.median_s if record.measurement else None,
        "default": evidence.get("default"),
        "default_median_s": record.default_measurement.median_s if record.default_measurement else None,
        "runner_up": {"name": others[0][1], "median_s": others[0][0]} if others else None,
        "tie": record.tie,
        "verdict": evidence.get("verdict"),
        "refusals": evidence.get("refusals", {}),
        "counts": record.counts,
    }
    variants = {v.name: v for v in derivation.variants}
    if record.variant in variants:
        prediction = model.predict(variants[record.variant], record.config, where, sizes, roof)
        winner["predicted_s"] = prediction.seconds
        winner["bound"] = prediction.bound
    return winner


def _steps(
    variant: Variant, config: dict[str, int], derivation: Derivation, sizes: dict[str, int]
) -> list[dict[str, Any]]:
    """Each rule step with what the program costs after it. Schedule steps come last, and share one cost."""
    pictures = {rule.name: (rule.rewrites.__doc__ or "").strip().partition("\n")[0] for rule in all_rules()}
    known = {**sizes, **config}
    rows = [_row("textbook", "the definition, a kernel for each value", claims(derivation.root, known, config), None)]
    program = derivation.root
    before = claims(program, known, config)
    for step in variant.path:
        reached = _after(derivation, program.key, step)
        after = claims(reached, known, config)
        rows.append(_row(step.rule, pictures.get(step.rule, ""), after, before))
        program, before = reached, after
    scheduled = claims(variant, known, config)
    names = {key: name for name, key in variant.program.keys.items()}
    said = ", ".join(annotation(step.site.choice, names) for step in variant.steps[len(variant.path) :])
    rows.append(_row("schedule", said, scheduled, before))
    return rows


def _after(derivation: Derivation, key: str, step: Any) -> Any:
    for _, reached, data in derivation.graph.out_edges(key, data=True):
        if data["step"] == step:
            return derivation.graph.nodes[reached]["program"]
    raise AssertionError("a path follows the edges of its graph")


def _row(rule: str, what: str, cost: Claims, before: Claims | None) -> dict[str, Any]:
    row = {"rule": rule, "what": what, "bytes": cost.bytes, "flops": cost.flops, "launches": cost.launches}
    if before is not None:
        row["saved_bytes"] = before.bytes - cost.bytes
    return row


def print_explanation(told: dict[str, Any]) -> None:
    click.echo(f"{told['problem']} on {told['device']}")
    click.echo(f"{told['programs']} programs derived, {told['variants']} variants, {operations(told['flops'])}\n")
    click.echo("the model's pick of each variant")
    table(
        ("variant", "predicted", "bound by", "config"),
        [
            (
                row["variant"],
                duration(row["seconds"]),
                row["bound"],
                spelled(row["config"]),
            )
            for row in told["predicted"][:_RANKED]
        ],
    )
    winner = told.get("winner")
    click.echo(f"\nderivation of {winner['variant'] if winner else told['predicted'][0]['variant']}")
    table(
        ("step", "memory traffic", "operations", "launches", "what"),
        [
            (row["rule"], size(row["bytes"]), operations(row["flops"]), str(row["launches"]), row["what"])
            for row in told.get("steps", ())
        ],
    )
    if winner is None:
        click.echo("\nnot measured yet: `kernsearch tune` does that")
        return
    click.echo("\nmeasured")
    rows = [("winner", duration(winner["median_s"]), winner["variant"])]
    if winner.get("predicted_s"):
        rows.append(("predicted", duration(winner["predicted_s"]), f"bound by {winner['bound']}"))
    if winner["default_median_s"]:
        rows.append(("default", duration(winner["default_median_s"]), winner["default"]["variant"]))
    if winner["runner_up"]:
        rows.append(("runner-up", duration(winner["runner_up"]["median_s"]), winner["runner_up"]["name"]))
    table(("", "time", ""), rows)
    click.echo(winner["verdict"] or "")
    if winner["refusals"]:
        click.echo("\nrefused")
        for reason, count in sorted(winner["refusals"].items(), key=lambda item: (-item[1], item[0])):
            click.echo(f"  {count:4d}  {reason}")
