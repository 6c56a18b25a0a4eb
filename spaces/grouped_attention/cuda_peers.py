"""What grouped attention is compared with on a GPU: the same as attention."""

from kernsearch.spaces.attention.cuda_peers import PEERS

__all__ = ["PEERS"]
