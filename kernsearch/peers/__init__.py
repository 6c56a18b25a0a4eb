"""Comparing with other libraries, each in a process of its own."""

from .bench import bench, bench_problems
from .peer import Copy, OnDevice, Peer, Ready

__all__ = ["Copy", "OnDevice", "Peer", "Ready", "bench", "bench_problems"]
