"""`kernsearch graph`: the derivation graph as JSON, GraphML, DOT or SVG."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .. import backends, registry
from ..candidate import check_memory
from ..derive import Derivation, Fits, derive
from ..device import Device
from ..errors import CacheError, SpaceError
from ..problem import Problem
from ..program import graphml
from ..records import lookup
from . import graph_svg

FORMS = ("json", "graphml", "dot", "svg")


def derivation_graph(
    op: str, *, shape: Sequence[int], form: str = "json", dtype: str | None = None, device: str = "auto", **options: Any
) -> str:
    """The graph as text. Raises SpaceError for an unknown form, and DeviceError for a problem that does not fit the
    device's memory."""
    if form not in FORMS:
        raise SpaceError(f"--format {form!r}: want one of {', '.join(FORMS)}")
    backend, where = backends.resolve(device)
    problem = registry.problem(op, shape, dtype, backend=where.backend, **options)
    check_memory(problem, where)
    found = registry.op(problem.op)
    templates = registry.templates(backend.name)
    derivation = derive(problem, found, templates)
    data = as_data(derivation, Fits(templates))
    data["problem"] = problem.key
    if (winner := _winner(derivation, problem, where)) is not None:
        data["winner"] = winner
    if form == "json":
        return json.dumps(data, indent=2)
    if form == "svg":
        return graph_svg.picture(data)
    return dot(data) if form == "dot" else graphml(_flat(data))


def _winner(derivation: Derivation, problem: Problem, device: Device) -> dict[str, Any] | None:
    """The variant that would be loaded here, where it comes from, and the programs on the way to it."""
    try:
        hit = lookup.store().find(problem, device)
    except CacheError:
        return None
    variant = {v.name: v for v in derivation.variants}.get(hit.record.variant)
    if variant is None:
        return None
    path = [derivation.root.key]
    for step in variant.path:
        steps = derivation.graph.out_edges(path[-1], data=True)
        path.append(next(reached for _, reached, data in steps if data["step"] == step))
    return {"variant": variant.name, "from": "tuned" if hit.kind in ("exact", "compatible") else "not tuned here",
            "path": path, "templates": [template.name for template in variant.templates]}  # fmt: skip


def as_data(derivation: Derivation, fits: Fits) -> dict[str, Any]:
    """Nodes are programs with their kernels and the templates these fit, edges are rule applications.

    A kernel without a template makes its program a step on the way: not runnable, drawn grey.
    """
    variants: dict[str, list[str]] = {}
    for variant in derivation.variants:
        variants.setdefault(variant.partition.key, []).append(variant.name)
    nodes = []
    for key, data in derivation.graph.nodes(data=True):
        program = data["program"]
        kernels = [
            {
                "key": kernel.key,
                "computes": list(kernel.members),
                "writes": [program.arrays[place] for place in kernel.outputs],
                "reads": [program.arrays[place] for place in kernel.reads],
                "templates": [template.name for template in fits.full(program, kernel)],
            }
            for kernel in program.kernels
        ]
        nodes.append(
            {
                "key": key,
                "root": key == derivation.root.key,
                "phase": data["phase"],
                "runnable": data["runnable"],
                "kernels": kernels,
                "variants": sorted(variants.get(key, [])),
            }
        )
    edges = [
        {"from": a, "to": b, "rule": data["step"].rule, "site": data["step"].site.to_json()}
        for a, b, data in derivation.graph.edges(data=True)
    ]
    return {"nodes": nodes, "edges": edges}


def _label(node: dict[str, Any]) -> str:
    return " | ".join(
        f"{'/'.join(kernel['templates']) or 'no template'}: {' '.join(kernel['computes'])}"
        for kernel in node["kernels"]
    )


def _flat(data: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], list[tuple[str, str, dict[str, Any]]]]:
    """Nodes and edges with plain attributes, as GraphML wants them."""
    nodes = {
        node["key"]: {
            "label": _label(node),
            "root": node["root"],
            "runnable": node["runnable"],
            "phase": node["phase"],
            "variants": ", ".join(node["variants"]),
        }
        for node in data["nodes"]
    }
    edges = [(e["from"], e["to"], {"rule": e["rule"], "site": json.dumps(e["site"])}) for e in data["edges"]]
    return nodes, edges


def dot(data: dict[str, Any]) -> str:
    """Graphviz text. Runnable programs are black, steps on the way grey, the root is double."""
    lines = ["digraph derivation {", "  rankdir=LR;", '  node [shape=box, fontname="monospace"];']
    for node in data["nodes"]:
        text = "\\n".join(_quoted(part) for part in _label(node).split(" | "))
        colour = "black" if node["runnable"] else "grey"
        rim = ", peripheries=2" if node["root"] else ""
        lines.append(f'  "{node["key"]}" [label="{text}", color={colour}, fontcolor={colour}{rim}];')
    lines += [f'  "{e["from"]}" -> "{e["to"]}" [label="{_quoted(e["rule"])}"];' for e in data["edges"]]
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
