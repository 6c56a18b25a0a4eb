// Which tile of which output a block computes.

#pragma once

struct ks_tile_at {
    int64_t B, down, across;  // batch, row of tiles, column of tiles
};

// Blocks follow one another down GROUP rows of tiles before they move on to the next column, so that those that run at
// the same time share rows of A and columns of B in the second level cache. `block` counts tiles of all batches.
template <int Group>
KS_DEVICE ks_tile_at ks_raster(int64_t block, int64_t down, int64_t across) {
    const int64_t batch = block / (down * across), tile = block % (down * across);
    const int64_t group = tile / (Group * across), within = tile % (Group * across);
    const int64_t rows = ks_min(int64_t(Group), down - group * Group);
    return {batch, group * Group + within % rows, within / rows};
}
