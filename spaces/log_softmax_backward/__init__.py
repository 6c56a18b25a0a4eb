"""log_softmax_backward: DX = DY - exp(Y) * rowsum(DY), the gradient of log_softmax's input."""

from __future__ import annotations

from dataclasses import replace

from kernsearch.spaces.softmax_backward import OP as BACKWARD

OP = replace(
    BACKWARD,
    name="log_softmax_backward",
    what="DX = DY - exp(Y) * rowsum(DY) along each row",
    public=(),
)
