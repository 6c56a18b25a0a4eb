"""Peers of the backward pass on a GPU: those of softmax."""

from kernsearch.spaces.softmax.cuda_peers import PEERS

__all__ = ["PEERS"]
