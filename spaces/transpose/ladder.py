"""The rungs of transpose's ladder, the plainest template first."""

RUNGS = {"cpu": ("map", "transpose_naive", "transpose_blocked"), "cuda": ("transpose_naive", "transpose_tiled")}
