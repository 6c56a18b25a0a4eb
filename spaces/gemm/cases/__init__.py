"""Case studies of gemm, one module each."""

from . import pipeline_stages, register_spill, wave_quantization

CASES = (wave_quantization.CASE, register_spill.CASE, pipeline_stages.CASE)
