"""Case studies of transpose, one module each."""

from . import padding_or_swizzle

CASES = (padding_or_swizzle.CASE,)
