"""Case studies of gemm, one module each."""

from . import (
    bigger_tile_short_k,
    fusion,
    hot_cache,
    multicast,
    occupancy,
    packing,
    pipeline_stages,
    register_spill,
    split_k,
    threads,
    wave_quantization,
)

CASES = tuple(
    module.CASE
    for module in (
        wave_quantization,
        register_spill,
        pipeline_stages,
        packing,
        threads,
        split_k,
        fusion,
        hot_cache,
        occupancy,
        bigger_tile_short_k,
        multicast,
    )
)
