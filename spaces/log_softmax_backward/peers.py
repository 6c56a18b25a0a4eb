"""Peers of the backward pass: those of softmax."""

from kernsearch.spaces.softmax.peers import PEERS

__all__ = ["PEERS"]
