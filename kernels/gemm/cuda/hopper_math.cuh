// The main loop of a consumer of 07_warp_specialized: products of the stages of one tile.
//
// A stage is given back when the products after it are under way, so one group of products is always in flight.
#pragma once

#include "hopper_load.cuh"

// Descriptors of the first stage; other stages, parts and steps of 16 lie a constant further (addresses in 16 bytes).
// K contiguous: patterns of 8 rows follow each other, a step of 16 is 32 bytes within them, 64 of K fill a chunk.
// M or N contiguous: 8 steps of k make a pattern, chunks follow along M or N.
constexpr int A_ROWS = A_BY_K ? BM : BK, B_ROWS = B_BY_K ? BN : BK;  // of a chunk

KS_DEVICE unsigned long long ks_left(unsigned a, int row) {
    const unsigned at = A_BY_K ? a + row * 128 : a + row / 64 * (BK * 128);
    return ks_descriptor<KS_SWIZZLE_A>(at, A_BY_K ? 16 : BK * KS_SWIZZLE_A, 8 * KS_SWIZZLE_A);
}
KS_DEVICE unsigned long long ks_right(unsigned b) {
    return ks_descriptor<KS_SWIZZLE_B>(b, B_BY_K ? 16 : BK * KS_SWIZZLE_B, 8 * KS_SWIZZLE_B);
}
KS_DEVICE constexpr int ks_left_step(int k, int part) {
    return (A_BY_K ? k / 4 * (BM * 128) + k % 4 * 32 + part * 64 * 128 : k * 16 * 128 + part * (BK * 128)) / 16;
}
KS_DEVICE constexpr int ks_right_step(int k) {
    return (B_BY_K ? k / 4 * (BN * 128) + k % 4 * 32 : k * 16 * KS_SWIZZLE_B) / 16;
}
static_assert(KS_SWIZZLE_A == 128 && (!B_BY_K || KS_SWIZZLE_B == 128), "chunks of K, and of rows, are 64 wide");

// Tells all blocks whose copies wrote this stage that one warp of this block has read it.
KS_DEVICE void ks_release(unsigned shared, int stage, unsigned rank) {
    const unsigned empty = shared + EMPTY + 8 * stage, lane = threadIdx.x % 32;
    if (DESTINATIONS == 1) {
        if (lane == 0) ks_barrier_arrive(empty);
    } else if (lane < DESTINATIONS) {
        // the blocks of its row, then the others of its column
        const unsigned row = rank % CM, column = rank / CM;
        const unsigned other = lane < CN ? row + CM * lane : column * CM + (lane - CN + (lane - CN >= row ? 1 : 0));
        ks_barrier_arrive_at(empty, other);
    }
}

template <bool FIRST>
KS_DEVICE void ks_multiply_stage(float (&d)[PARTS][BN / 2], unsigned long long left, unsigned long long right) {
    ks_wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 16; k++) {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            ks_product<KS_TYPE_A, BN>::template add<!A_BY_K, !B_BY_K>(
                d[part], left + ks_left_step(k, part), right + ks_right_step(k), !FIRST || k > 0);
    }
    ks_wgmma_commit();
}

// Consumers that take tiles in turn wait for each other: one begins when the other has seen its last stage. The parity
// of a barrier tells whether a stage is full only to one who has followed it that far.
KS_DEVICE void ks_await_turn(unsigned shared, int consumer, int turn) {
    if (PINGPONG) ks_barrier_wait(shared + TURN + 8 * consumer, (turn / PARTIES & 1) ^ (consumer == 0));
}
KS_DEVICE void ks_end_turn(unsigned shared, int consumer) {
    if (PINGPONG && threadIdx.x % 128 == 0) ks_barrier_arrive(shared + TURN + 8 * ((consumer + 1) % PARTIES));
}

// d = the sums of tile `t`, for rows from `row` on within the tile.
KS_DEVICE void ks_consume(float (&d)[PARTS][BN / 2], unsigned shared, const ks_tile &t, int row, ks_ring &ring,
                          unsigned rank, int consumer) {
    const unsigned long long left = ks_left(shared + TILES, row), right = ks_right(shared + TILES + A_BYTES);
    ks_barrier_wait(shared + FULL + 8 * ring.stage, ring.phase);
    ks_multiply_stage<true>(d, left + ring.stage * (STAGE_BYTES / 16), right + ring.stage * (STAGE_BYTES / 16));
    int before = ring.stage;
    ring.next();
    for (int step = t.first + 1; step < t.last; step++) {
        ks_barrier_wait(shared + FULL + 8 * ring.stage, ring.phase);
        ks_multiply_stage<false>(d, left + ring.stage * (STAGE_BYTES / 16), right + ring.stage * (STAGE_BYTES / 16));
        ks_wgmma_wait<1>();
        ks_release(shared, before, rank);
        before = ring.stage;
        ring.next();
    }
    ks_end_turn(shared, consumer);
    ks_wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < PARTS; part++) ks_wgmma_pin(d[part]);
    ks_release(shared, before, rank);
}
