"""Case studies of gemm, one module each."""

from . import packing, pipeline_stages, register_spill, threads, wave_quantization

CASES = (wave_quantization.CASE, register_spill.CASE, pipeline_stages.CASE, packing.CASE, threads.CASE)
