"""The rungs of gemm's ladder, the plainest template first."""

RUNGS = {
    "cpu": ("contraction", "cache_tiled", "unpacked", "register_tiled"),
    "cuda": (
        "naive",
        "shared_tile",
        "register_tile",
        "vectorized",
        "simt_pipeline",
        "tensor_core",
        "async_pipeline",
        "warp_specialized",
    ),
}
