import json
import string

import pytest
import textbook
from explored import AWKWARD, derivation, differs, one_kernel
from ladders import RUNGS

from kernsearch import registry
from kernsearch.derive import replay
from kernsearch.program import is_dag_with_root
from kernsearch.rules import PHASES, Step, all_rules
from kernsearch.rules.schedule import KINDS, symbols
from kernsearch.template.matcher import Matcher

OPS = [*textbook.ROOTS]
BOUNDS = {"gemm": 20, "softmax": 40, "attention": 300}


def names(op: str, backend: str = "cuda") -> set[str]:
    return {variant.name for variant in derivation(op, backend).variants}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", ["cuda", "cpu"])
def test_derivations_are_bounded_dags_with_one_root_that_runs(op, backend):
    derived = derivation(op, backend)
    assert is_dag_with_root(derived.graph, derived.root.key)
    assert len(derived.graph) < BOUNDS.get(op, 60)
    assert derived.graph.nodes[derived.root.key]["runnable"]
    assert all(program.legal for program in derived.programs())


@pytest.mark.parametrize("rung", RUNGS)
def test_every_rung_of_gemm_has_its_epilogue_fused_and_apart(rung):
    assert {rung, f"{rung}+map"} <= names("gemm")


def test_gemm_splits_its_depth_in_two_kernels_or_by_atomics():
    assert {"split_k+combine", "split_k+combine+map", "split_k_atomic+map"} <= names("gemm")
    assert "split_k_atomic" not in names("gemm")  # an epilogue needs the whole sum
    derived = derivation("gemm")
    assert not derived.variant("split_k_atomic+map").deterministic
    assert derived.variant("split_k+combine").deterministic


def test_gemm_on_the_cpu_has_its_ladder():
    ladder = {"contraction", "cache_tiled", "register_tiled", "unpacked"}
    assert ladder | {f"{name}+map" for name in ladder} <= names("gemm", "cpu")
    assert {"split_k+combine", "split_k+combine+map"} <= names("gemm", "cpu")


def test_softmax_has_all_its_ways():
    assert {
        "reduce+reduce+map",  # three passes
        "online+map",
        "on_chip",
        "cluster_row",
        "split_row+combine+map",
    } <= names("softmax")


def test_attention_is_unfused_or_flash_or_flash_over_slabs_of_keys():
    assert {"mma+on_chip+mma", "wgmma+on_chip+wgmma", "flash", "flash_split+combine"} <= names("attention")
    flash = derivation("attention").variant("flash")
    assert [step.rule for step in flash.path].count("merge_reductions") == 2
    assert one_kernel(flash.partition)
    assert flash.partition.traffic(AWKWARD) == sum(
        flash.partition.elements(place, AWKWARD) for place in (("Q", "Q"), ("K", "K"), ("V", "V"), ("o_divided",) * 2)
    )


@pytest.mark.parametrize("op", ["gemm", "softmax", "attention"])
def test_the_length_of_a_variant_is_that_of_its_schedule(op):
    derived = derivation(op)
    for variant in derived.variants[::7]:
        assert derived.length(variant) == len(variant.steps) - len(variant.path)


@pytest.mark.parametrize("op", ["gemm", "softmax", "attention", "moments"])
def test_what_is_seen_of_a_kernel_rules_out_no_template_that_matches(op):
    """A look at the kinds of reductions comes before matching; it must never say no where matching says yes."""
    seen = set()
    for program in derivation(op).programs():
        for kernel in program.kernels:
            if kernel.key in seen:
                continue
            seen.add(kernel.key)
            for template in registry.templates("cuda"):
                roots = template._roots_for(kernel)
                kinds = template._kinds[min(len(roots), len(template.roots)) - 1]
                if not kinds.all_of(program, kernel):
                    assert next(Matcher(program, kernel).match(roots), None) is None, template.name
                if len(kernel.anchors) > template._kinds[-1].count:
                    nearly = Matcher(program, kernel, unsplit=True).match(template.roots, some_roots=True)
                    assert next(nearly, None) is None, template.name


def test_flash_groups_query_heads_with_queries():
    (flash,) = derivation("attention").variant("flash").kernels
    assert flash.found.groups["M"] == ("g", "q")
    assert flash.found.groups["B"] == ("b", "h")


def test_attention_with_its_normalizer_is_one_kernel_too():
    from ladders import ALL

    from kernsearch.derive import explore

    derived = explore(textbook.attention(normalizer=True), ALL, AWKWARD)
    assert one_kernel(derived.variant("flash_normalizer").partition)
    assert len(derived.graph) < BOUNDS["attention"]
    for program in derived.programs():
        assert not differs(derived.root, program, {**AWKWARD, "OFF": -2})


@pytest.mark.parametrize(
    ("op", "variants"),
    [
        ("product_softmax", {"mma+on_chip", "mma+online+map", "row_softmax", "split_k+combine+on_chip"}),
        ("norm_product", {"row_norm", "naive+mma"}),
        ("moments", {"row_moments", "two_sums+map+map"}),
    ],
)
def test_an_op_held_out_while_the_rules_were_made_derives_its_variants(op, variants):
    assert variants <= names(op)


def test_at_least_five_rules_fire_on_two_ops_or_more():
    fired: dict[str, set[str]] = {rule.name: set() for rule in all_rules()}
    for op in OPS:
        for *_, data in derivation(op).graph.edges(data=True):
            fired[data["step"].rule].add(op)
    assert all(fired.values())
    assert sum(len(ops) >= 2 for ops in fired.values()) >= 5


def _has_slab(program):
    return bool(program.slabs)


def _computes_twice(program):
    return len(set(program.keys.values())) < len(program.keys)


def _maps_in_one_kernel(program):
    return len(program.kernels) == 2 and any(kernel.is_map and len(kernel.members) > 2 for kernel in program.kernels)


def _no_score_in_memory(program):
    return not any({"q", "k"} <= set(program.at(place).axes) for place in program.materialised)


def _operand_computed_inside(program):
    return any(
        program.nodes[member].op == "map" and member in program.ancestors[anchor]
        for kernel in program.kernels
        for anchor in kernel.anchors
        for member in kernel.members
    )


@pytest.mark.parametrize(
    ("rule", "op", "has"),
    [
        ("merge_reductions", "softmax", one_kernel),
        ("defer_division", "attention", one_kernel),
        ("row_correction", "nested", _no_score_in_memory),
        ("fuse_maps", "gemm", _maps_in_one_kernel),
        ("fuse_prologues", "norm_product", _operand_computed_inside),
        ("fuse_epilogues", "gemm", one_kernel),
        ("fuse", "attention", one_kernel),
        ("fuse_siblings", "moments", one_kernel),
        ("clone_producer", "softmax", _computes_twice),
        ("split_reduction", "gemm", _has_slab),
    ],
)
def test_without_a_rule_programs_are_lost(rule, op, has):
    assert any(map(has, derivation(op).programs()))
    assert not any(map(has, derivation(op, without=rule).programs()))


def test_the_ablations_cover_every_rule():
    (mark,) = test_without_a_rule_programs_are_lost.pytestmark
    assert {case[0] for case in mark.args[1]} == {rule.name for rule in all_rules()}


@pytest.mark.parametrize("op", OPS)
def test_rank_falls_on_every_fusion_step(op):
    graph = derivation(op).graph
    phases = {rule.name: rule.phase for rule in all_rules()}
    steps = [(a, b) for a, b, data in graph.edges(data=True) if phases[data["step"].rule] == "fusion"]
    assert steps or op == "nested"
    for before, after in steps:
        assert graph.nodes[after]["program"].rank < graph.nodes[before]["program"].rank


@pytest.mark.parametrize("op", OPS)
def test_phases_come_in_order_on_every_path(op):
    derived = derivation(op)
    phases = {rule.name: PHASES.index(rule.phase) for rule in all_rules()}
    for program in derived.programs():
        order = [phases[step.rule] for step in derived.path(program.key)]
        assert order == sorted(order)


@pytest.mark.parametrize("op", OPS)
def test_the_steps_to_a_program_survive_json_and_lead_to_its_key(op):
    derived = derivation(op)
    for program in derived.programs():
        text = json.dumps([step.to_json() for step in derived.path(program.key)])
        assert replay(derived.root, [Step.from_json(step) for step in json.loads(text)]).key == program.key


@pytest.mark.parametrize("case", ["gemm cpu", "gemm cuda", "softmax cuda", "attention cuda"])
def test_the_steps_to_a_variant_lead_to_its_scheduled_program(case):
    derived = derivation(*case.split())
    for variant in derived.variants[:40]:
        assert variant.steps
        steps = [Step.from_json(step.to_json()) for step in variant.steps]
        assert replay(derived.root, steps).key == variant.program.key


@pytest.mark.parametrize("op", OPS)
def test_every_edge_can_be_replayed_from_its_site(op):
    graph = derivation(op).graph
    for before, after, data in graph.edges(data=True):
        assert replay(graph.nodes[before]["program"], [data["step"]]).key == after


@pytest.mark.parametrize("op", OPS)
def test_a_site_holds_keys_axes_and_choices_and_no_names(op):
    derived = derivation(op)
    for *_, data in derived.graph.edges(data=True):
        site = data["step"].site
        for key in (*site.values, *site.kernels):
            assert len(key) == 16 and set(key) <= set(string.hexdigits)
        assert set(site.axes) <= set(derived.root.extents)
        assert site.choice in ("", "shallow", "deep", "second_kernel", "atomic", "cluster")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", ["cuda", "cpu"])
def test_annotations_of_a_kernel_name_one_template(op, backend):
    for key, trie in derivation(op, backend).tries.items():
        leaves: dict[frozenset, str] = {}
        for steps, name in trie.leaves():
            assert leaves.setdefault(frozenset(steps), name) == name, (key, steps)


@pytest.mark.parametrize("op", OPS)
def test_schedules_stay_few_because_their_steps_have_one_order(op):
    assert sum(trie.states() for trie in derivation(op).tries.values()) < 2000


def test_names_of_variants_are_unique():
    for op in OPS:
        variants = [variant.name for variant in derivation(op).variants]
        assert len(set(variants)) == len(variants)


def test_a_parameter_exists_iff_a_step_introduced_its_symbol_or_it_is_a_knob():
    for template in registry.templates("cpu"):
        assert {p.name for p in template.params} == set(template.symbols), template.name
    for op in OPS:
        for variant in derivation(op, "cpu").variants[:50]:
            knobs = {knob.name for template in variant.templates for knob in template.knobs}
            introduced = set(symbols(step.site.choice for step in variant.steps if step.rule in KINDS))
            introduced |= {variant.program.extents[slab] for slab in variant.program.slabs}
            assert {p.name for p in variant.params} == set(variant.symbols) | knobs == introduced | knobs
            assert not knobs & introduced


def test_variants_that_move_fewer_bytes_come_first():
    traffic = [v.partition.traffic({**AWKWARD, "SPLIT": 4}) for v in derivation("softmax").variants]
    assert traffic[0] == min(traffic)
    assert names("softmax") and derivation("softmax").variants[-1].path == ()


def test_without_its_rule_a_real_template_is_a_file_that_nothing_derives():
    assert any("SPLIT" in variant.symbols for variant in derivation("gemm", "cpu").variants)
    for variant in derivation("gemm", "cpu", without="split_reduction").variants:
        assert "split_k" not in variant.name and "SPLIT" not in {p.name for p in variant.params}
