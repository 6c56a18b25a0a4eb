"""Comparing with other libraries, each in a process of its own."""

from .bench import Peer, Ready, bench, bench_problems

__all__ = ["Peer", "Ready", "bench", "bench_problems"]
