"""The rungs of softmax's ladder, the plainest template first."""

RUNGS = {
    "cpu": ("row_online", "row_passes", "row_streamed"),
    "cuda": ("row_online", "shared_row", "block_row", "warp_rows", "cluster_row"),
}
