"""`kernsearch.softmax_backward`, which lives with the forward pass."""

from kernsearch.spaces.softmax.public import softmax_backward

__all__ = ["softmax_backward"]
