"""Case studies of softmax, one module each."""

from . import fast_math, one_block_row, online_softmax

CASES = (online_softmax.CASE, one_block_row.CASE, fast_math.CASE)
