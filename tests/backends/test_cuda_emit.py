"""Plans and headers of CUDA kernels, and the bytes and launches that follow from them; no GPU is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernsearch.spaces.generic.templates import cuda as generic

from kernsearch import backends, launch
from kernsearch.backends.cuda import arrays, emit
from kernsearch.backends.cuda.arguments import Arguments
from kernsearch.backends.cuda.launcher import geometry_refusal, workspace_bytes
from kernsearch.backends.cuda.tensor_maps import Spec
from kernsearch.backends.expressions import leaves
from kernsearch.binding import Array, Binding, Root
from kernsearch.errors import ArrayError, Rejected
from kernsearch.launch import ArrayView
from kernsearch.plan import Buffer, Operand, Plan
from kernsearch.sizes import evaluate
from kernsearch.space import Param
from kernsearch.template import Launch, Template, TileMap, dot, hole

MN = ("m", "n")
TILE = {"BM": 128, "BN": 256, "BK": 64}
DOT = Template(
    name="dot",
    backend="cuda",
    source="generic/cuda/01_contraction.cu",
    entry="dot",
    roots=(hole("D", dot("A", "B")),),
    params=tuple(Param(letter, (value,), "") for letter, value in TILE.items()),
    launches=(Launch("dot", ("ceil(M, BM) * ceil(N, BN)", "B", "SMS"), "BM * 2", "(BM + BN) * BK * ITEMSIZE"),),
)
MAPS = (TileMap("A", "MK", ("BM", "BK"), share="2"), TileMap("B", "NK", ("BN", "BK")), TileMap("D", "MN", ("BM", "BN")))


@pytest.fixture(scope="module")
def device():
    return backends.get("cuda").compile_only("sm_90a")


def binding(value=("mul", ("scalar", "alpha"), ("acc", "acc")), **changes):
    reads = {leaf[1]: leaf[2] for leaf in leaves(value, "load")}
    own = {"A": ("m", "k"), "B": ("k", "n"), **reads, "D": MN}
    fields = {
        "template": "dot",
        "groups": {"M": ("m",), "N": ("n",), "K": ("k",)},
        "extents": {"m": "M", "n": "N", "k": "K"},
        "operands": {"A": ("load", "A", ("m", "k")), "B": ("load", "B", ("k", "n"))},
        "roots": (Root("D", MN, value),),
        "arrays": tuple(Array(name, "bfloat16", axes) for name, axes in own.items()),
        "scalars": tuple(dict.fromkeys(leaf[1] for leaf in leaves(value, "scalar"))),
        "acc": "float32",
    }
    return Binding(**{**fields, **changes})


def plan(device, of=None, config=None, template=DOT, **changes):
    return emit.kernel_plan(of or binding(), replace(template, **changes), {**TILE, **(config or {})}, device)


def in_a_plan(kernel, **workspace):
    operands = tuple(
        Operand(name, "bfloat16", axes, tuple(a.upper() for a in axes), role)
        for name, axes, role in (("A", ("m", "k"), "input"), ("B", ("k", "n"), "input"), ("D", MN, "output"))
    )
    buffers = tuple(Buffer(name, "float32", ("m",), (str(size),)) for name, size in workspace.items())
    return Plan("cuda", ("M", "N", "K"), operands, {"alpha": 1.0}, buffers, (kernel,), kernel.assumes)


def resolved(whole, m, n, k):
    views = {"A": (m, k), "B": (k, n), "D": (m, n)}
    given = {name: ArrayView(0, shape, launch.contiguous(shape), 2) for name, shape in views.items()}
    return launch.resolve(whole, given, threads=132)


def test_members_of_the_header_come_in_the_order_of_the_plan(device):
    made = plan(device, scratch="M * 4", maps=MAPS)
    assert made.buffers == ("A", "B", "D", "scratch")
    assert made.sizes == ("M", "N", "K", "A.k", "A.m", "B.k", "B.n", "D.m", "D.n")
    assert made.scalars == ("alpha",)
    members = made.header.split("struct ks_args {")[1].split("}")[0].replace("*", "").split(";")
    names = [member.split()[-1] for member in members if member.strip()]
    assert names == [
        *("p_A", "p_B", "p_D", "scratch", "e_m", "e_n", "e_k", "s_A_k", "s_A_m", "s_B_k", "s_B_n", "s_D_m", "s_D_n"),
        *("c_alpha", "map_A", "map_B", "map_D"),
    ]


def test_launches_name_sizes_of_the_call_only(device):
    (made,) = plan(device, binding(extents={"m": "M", "n": "N * 2", "k": "K"})).launches
    assert made.grid == ("ceil((M), 128) * ceil((N * 2), 256)".replace("(M)", "((M))").replace("(N * 2)", "((N * 2))"),
                         "1", str(device.sms))  # fmt: skip
    assert evaluate(made.grid[0], {"M": 129, "N": 128}) == 2
    assert evaluate(made.block, {}) == 256
    assert evaluate(made.shared, {"ITEMSIZE": 2}) == (128 + 256) * 64 * 2


def test_only_the_templates_own_letters_are_defined(device):
    assert plan(device, config={"TM": 4, "SPLIT": 2}).defines == TILE


def test_a_layout_decides_which_group_is_contiguous(device):
    header = plan(device).header
    assert "#define KS_CONTIGUOUS_A_K 1" in header and "#define KS_CONTIGUOUS_B_N 1" in header
    other = binding(
        operands={"A": ("load", "A", ("k", "m")), "B": ("load", "B", ("n", "k"))},
        arrays=(Array("A", "bfloat16", ("k", "m")), Array("B", "bfloat16", ("n", "k")), Array("D", "bfloat16", MN)),
    )
    header = plan(device, other).header
    assert "#define KS_CONTIGUOUS_A_M 1" in header and "#define KS_CONTIGUOUS_B_K 1" in header


def test_the_bare_sum_of_one_output_may_be_left_unfinished(device):
    for value, bare in ((("acc", "acc"), 1), (("mul", ("scalar", "alpha"), ("acc", "acc")), 0)):
        assert f"#define KS_IDENTITY_out {bare}" in plan(device, binding(value)).header


def test_maps_lie_along_the_contiguous_dimension_in_boxes_as_wide_as_their_swizzle(device):
    made = plan(device, maps=MAPS)
    a, b, d = made.maps
    assert (a.buffer, a.pitches, a.box) == ("A", ("A.m", "0"), (64, 64, 1))
    assert (b.buffer, b.pitches, b.box) == ("B", ("B.k", "0"), (64, 64, 1))
    assert (d.buffer, d.pitches, d.box) == ("D", ("D.m", "0"), (64, 128, 1))
    names = {"M": 5, "N": 6, "K": 7}
    assert [evaluate(e, names) for e in b.extents] == [6, 7, 1]
    for text in ("KS_BOX_INNER_A 64", "KS_BOX_OUTER_A 64", "KS_INNER_B_N 1", "KS_SWIZZLE_D 128", "KS_MAPPED_A 1"):
        assert f"#define {text}\n" in made.header


def test_a_map_over_the_callers_array_assumes_what_the_copy_engine_needs(device):
    whole = in_a_plan(plan(device, maps=MAPS))
    fine = {"M": 4, "N": 16, "K": 8, "A.k": 1, "A.m": 8, "B.n": 1, "B.k": 16, "D.n": 1, "D.m": 16}
    fine |= {f"{name}.base": 0 for name in "ABD"}
    assert launch.unmet(whole, fine) is None
    for name, odd in (("A.k", 2), ("A.m", 9), ("A.m", -8), ("A.m", 0), ("A.base", 8), ("B.k", 17), ("M", 2**31)):
        assert launch.unmet(whole, {**fine, name: odd}), name
    assert launch.unmet(whole, {**fine, "M": 1, "A.m": 9, "D.m": 9}) is None


def test_packed_operands_come_first_in_scratch_and_assume_nothing(device):
    moves = (("move", "A", "pack"), ("move", "B", "pack"))
    made = plan(device, maps=MAPS[:2], ann=moves, scratch="M * 4")
    a, b = made.maps
    names = {"M": 5, "N": 100, "K": 65}
    assert a.buffer == b.buffer == "scratch"
    assert [evaluate(text, names) for text in (a.offset, b.offset)] == [0, 1280]
    assert evaluate(a.pitches[0], names) == evaluate(b.pitches[0], names) == 128
    assert evaluate(made.scratch, names) == 1280 + 65 * 128 * 2 + 5 * 4
    assert not any("." in rule for rule in made.assumes)


def test_what_no_map_holds_is_refused(device):
    computed = binding(operands={**binding().operands, "A": ("exp", ("load", "A", ("m", "k")))})
    with pytest.raises(Rejected, match="operand A is computed"):
        plan(device, computed, maps=MAPS)
    with pytest.raises(Rejected, match="box of A is 64x512"):
        plan(device, maps=(TileMap("A", "MK", ("BM * 4", "BK")),))


def test_an_array_of_a_dtype_that_no_kernel_reads_is_refused(device):
    odd = replace(binding(), arrays=(Array("A", "int8", ("m", "k")), *binding().arrays[1:]))
    with pytest.raises(ValueError, match="array A is int8"):
        plan(device, odd)


def test_a_reduction_over_two_axes_cannot_be_cut_into_slabs(device):
    several = binding(
        groups={"M": ("m",), "N": ("n",), "K": ("k", "j")},
        extents={"m": "M", "n": "N", "k": "K", "j": "J", "s": "SPLIT"},
        slabs={"k": "s"},
    )
    with pytest.raises(ValueError, match="slabs"):
        plan(device, several, {"SPLIT": 2})


def test_templates_that_run_anything_launch_nothing_where_there_is_nothing_to_do(device):
    made = emit.kernel_plan(binding(), generic.CONTRACTION, {"TN": 4}, device)
    assert [evaluate(text, {"M": 0, "N": 9}) for text in made.launches[0].grid] == [0, 1, 1]
    assert evaluate(made.launches[0].grid[0], {"M": 1, "N": 1}) > 0
    assert evaluate(made.launches[0].grid[0], {"M": 2**20, "N": 2**20}) < 2**31


def test_arguments_are_pointers_sizes_and_scalars_and_maps_at_a_multiple_of_their_alignment(device):
    call = resolved(in_a_plan(plan(device)), 2, 3, 5)
    arguments = Arguments(call.kernels[0], call.names)
    arguments.set_addresses([11, 12, 13])
    arguments.set_scalars([0.5])
    words = memoryview(arguments.tobytes()).cast("q")
    assert list(words)[:12] == [11, 12, 13, 2, 3, 5, 1, 5, 3, 1, 3, 1]
    assert memoryview(arguments.tobytes()[96:104]).cast("d")[0] == 0.5 and arguments.size == 104
    call = resolved(in_a_plan(plan(device, maps=MAPS)), 8, 8, 8)
    mapped = Arguments(call.kernels[0], call.names)
    assert mapped.size == 128 + 3 * 128 and mapped.address % 64 == 0


def test_arguments_beyond_the_limit_of_a_launch_are_refused(device):
    many = tuple(replace(MAPS[0], role="A") for _ in range(40))
    call = resolved(in_a_plan(plan(device, maps=many)), 8, 8, 8)
    with pytest.raises(Rejected, match="bytes of arguments"):
        Arguments(call.kernels[0], call.names)


def test_workspace_holds_values_between_kernels_and_the_largest_scratch(device):
    assert workspace_bytes(resolved(in_a_plan(plan(device)), 2, 3, 5)) == 0
    call = resolved(in_a_plan(plan(device, scratch="M * 100"), P=65, Q=1), 2, 3, 5)
    assert (
        workspace_bytes(call) == 512 + 256 + 4 + 256
    )  # P, scratch, Q, each from a multiple of 256 on; where it begins


@pytest.mark.parametrize(
    ("grid", "block", "shared", "cluster", "words"),
    [
        ((1, 65536, 1), 32, 0, (1, 1, 1), "65536 blocks along y"),
        ((2**31, 1, 1), 32, 0, (1, 1, 1), "blocks along x"),
        ((3, 1, 1), 32, 0, (2, 1, 1), "whole number of clusters of 2"),
        ((1, 1, 1), 2048, 0, (1, 1, 1), "2048 threads"),
        ((1, 1, 1), 32, 1 << 20, (1, 1, 1), "bytes of shared memory"),
    ],
)
def test_a_launch_that_no_device_takes_is_refused_in_words(device, grid, block, shared, cluster, words):
    assert words in geometry_refusal(grid, block, shared, cluster, device)
    assert geometry_refusal((4, 0, 1), 128, 1024, (2, 1, 1), device) is None


def test_a_map_is_refused_before_the_driver_sees_it():
    Spec("bfloat16", (100, 1, 1), (3, 0), (64, 8, 1), 128)  # pitches along single rows mean nothing
    for changes, words in (
        ({"dtype": "int4"}, "no map holds"),
        ({"pitches": (3, 0)}, "pitch of 6 bytes"),
        ({"pitches": (-8, 0)}, "pitch of -16 bytes"),
        ({"box": (128, 8, 1)}, "box"),
        ({"box": (64, 512, 1)}, "box"),
        ({"extents": (2**31, 5, 1)}, "too many"),
    ):
        given = {"dtype": "bfloat16", "extents": (100, 5, 1), "pitches": (104, 0), "box": (64, 8, 1), "swizzle": 128}
        with pytest.raises(Rejected, match=words):
            Spec(**{**given, **changes})


def test_arrays_of_the_host_are_told_from_those_of_a_gpu():
    import numpy as np

    assert not arrays.is_on_device(np.zeros(3))
    with pytest.raises(ArrayError, match="array A is on the host"):
        arrays.common_device({"A": np.zeros(3), "B": np.zeros(3)})
