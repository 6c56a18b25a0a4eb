// The producer of 07_warp_specialized: one thread that keeps the ring of stages full.
#pragma once

#include "hopper.cuh"

// Rows of each chunk that this block loads, for itself and for those that share the tile.
constexpr int A_OUTER = KS_BOX_OUTER_A, B_OUTER = KS_BOX_OUTER_B;
constexpr int A_CHUNK = KS_BOX_INNER_A, B_CHUNK = KS_BOX_INNER_B;
constexpr bool A_BY_K = KS_INNER_A_K, B_BY_K = KS_INNER_B_K;  // is K contiguous?
static_assert(A_OUTER * CN == (A_BY_K ? BM : BK) && B_OUTER * CM == (B_BY_K ? BN : BK), "boxes of maps fit the tile");
static_assert(A_OUTER % 8 == 0 && B_OUTER % 8 == 0, "parts of a shared tile are whole patterns of the swizzle");
static_assert(A_CHUNK * 2 == KS_SWIZZLE_A && B_CHUNK * 2 == KS_SWIZZLE_B, "chunks are as wide as the swizzle");

KS_DEVICE void ks_load_box(unsigned to, const void *map, unsigned barrier, int inner, int outer, int batch, int sharers,
                           unsigned mask) {
    if (sharers == 1)
        ks_bulk_load(to, map, barrier, inner, outer, batch);
    else
        ks_bulk_load_to(to, map, barrier, inner, outer, batch, (unsigned short)mask);
}

KS_DEVICE void ks_produce(const ks_args &x, unsigned shared, const ks_tiles &tiles, ks_tile t, unsigned rank) {
    const int place = COMBINE ? 0 : int(rank);  // blocks that add up slabs share no tiles
    const int row = place % CM, column = place / CM;
    unsigned a_mask = 0, b_mask = 0;
    for (int c = 0; c < CN; c++) a_mask |= 1u << (row + CM * c);     // blocks of the same rows share A
    for (int r = 0; r < CM; r++) b_mask |= 1u << (column * CM + r);  // blocks of the same columns share B
    const bool a_batched = ks_step_A_B(x) != 0, b_batched = ks_step_B_B(x) != 0;
    ks_ring ring;
    int turn = 0;
    for (int number = blockIdx.x / CLUSTER; number < tiles.total; number += gridDim.x / CLUSTER, turn++) {
        if (turn > 0) t = tiles.at(number, rank);
        if (COMBINE && turn > 0) ks_barrier_wait_cluster(shared + FREE, (turn - 1) & 1);  // sums lie where stages were
        const int a_batch = a_batched ? t.batch : 0, b_batch = b_batched ? t.batch : 0;
        for (int step = t.first; step < t.last; step++) {
            const unsigned full = shared + FULL + 8 * ring.stage;
            const unsigned a = shared + TILES + ring.stage * STAGE_BYTES, b = a + A_BYTES;
            const int k = step * BK;
            ks_barrier_wait(shared + EMPTY + 8 * ring.stage, ring.phase ^ 1);
            ks_barrier_expect(full, STAGE_BYTES);
            if (A_BY_K) {
#pragma unroll
                for (int c = 0; c < BK / A_CHUNK; c++)
                    ks_load_box(a + (c * BM + column * A_OUTER) * KS_SWIZZLE_A, &x.map_A, full, k + c * A_CHUNK,
                                t.m + column * A_OUTER, a_batch, CN, a_mask);
            } else {
#pragma unroll
                for (int c = 0; c < BM / A_CHUNK; c++)
                    ks_load_box(a + (c * BK + column * A_OUTER) * KS_SWIZZLE_A, &x.map_A, full, t.m + c * A_CHUNK,
                                k + column * A_OUTER, a_batch, CN, a_mask);
            }
            if (B_BY_K) {
#pragma unroll
                for (int c = 0; c < BK / B_CHUNK; c++)
                    ks_load_box(b + (c * BN + row * B_OUTER) * KS_SWIZZLE_B, &x.map_B, full, k + c * B_CHUNK,
                                t.n + row * B_OUTER, b_batch, CM, b_mask);
            } else {
#pragma unroll
                for (int c = 0; c < B_WIDTH / B_CHUNK; c++)
                    ks_load_box(b + (c * BK + row * B_OUTER) * KS_SWIZZLE_B, &x.map_B, full, t.n + c * B_CHUNK,
                                k + row * B_OUTER, b_batch, CM, b_mask);
            }
            ring.next();
        }
    }
}
