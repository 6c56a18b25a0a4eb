"""What grouped attention is compared with: the same as attention."""

from kernsearch.spaces.attention.peers import PEERS

__all__ = ["PEERS"]
