"""One kernel instead of two saves a trip through memory, and ties the second half to how the first is shared out."""

from __future__ import annotations

from kernsearch.cases.case import Arm, Case, Comparison
from kernsearch.device import Device

SHORT, LONG = (1024, 1024, 64), (512, 512, 2048)
ON_CUDA_SHORT, ON_CUDA_LONG = (8192, 8192, 256), (2048, 2048, 8192)
ROW = (1, 1 << 20)  # of softmax
EPILOGUE = {"epilogue": "bias,gelu_tanh"}
FUSED = {"cpu": "register_tiled", "cuda": "async_pipeline"}
ONE_BLOCK = {"cpu": ("row_passes",), "cuda": ("shared_row", "row_online")}
APART = ("row_slabs+spread", "row_slabs+combine+map")


def _shapes(device: Device) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    return (SHORT, LONG) if device.backend == "cpu" else (ON_CUDA_SHORT, ON_CUDA_LONG)


def _label(shape: tuple[int, ...], way: str) -> str:
    return f"{'x'.join(map(str, shape))}, {way}"


def arms(device: Device) -> tuple[Arm, ...]:
    found, fused = [], FUSED[device.backend]
    for shape in _shapes(device):
        first = _label(shape, "epilogue fused")
        found.append(Arm(first, shape, (fused,), options=EPILOGUE))
        apart = _label(shape, "epilogue apart")
        found.append(Arm(apart, shape, (f"{fused}+map",), options=EPILOGUE, like=first))
    for way, variant in (("softmax fused", ONE_BLOCK[device.backend]), ("softmax in slabs", APART)):
        found.append(Arm(_label(ROW, way), ROW, variant, dtype="float32", op="softmax"))
    return tuple(found)


def comparisons(device: Device) -> tuple[Comparison, ...]:
    found = [
        Comparison(f"bias and gelu fused instead of apart, {'x'.join(map(str, shape))}",
                   _label(shape, "epilogue apart"), _label(shape, "epilogue fused"))
        for shape in _shapes(device)
    ]  # fmt: skip
    said = "softmax of one long row fused instead of in slabs"
    return (*found, Comparison(said, _label(ROW, "softmax in slabs"), _label(ROW, "softmax fused")))


CASE = Case(
    name="fusion",
    op="gemm",
    claim="steps in one kernel read and write memory once, so fused is always faster",
    mechanism="after a long K an epilogue of its own costs little; and a softmax in one kernel keeps a row with one "
    "core or block, so that the others are idle where there is one row",
    backends=("cpu", "cuda"),
    arms=arms,
    comparisons=comparisons,
)
