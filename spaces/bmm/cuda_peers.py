"""What bmm is compared with on a GPU: what gemm is, which takes leading dimensions as they are."""

from kernsearch.spaces.gemm.cuda_peers import PEERS

__all__ = ["PEERS"]
