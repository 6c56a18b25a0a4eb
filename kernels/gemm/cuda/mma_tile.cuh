// Tiles of A and B in shared memory, and a warp's share of their product.
//
// Letters  BM BN BK  a block's tile;  WM WN  a warp's tile of sums;  SLICES  groups of warps that take turns along BK,
//          each with sums of its own. A tile is kept as its operand lies in memory: contiguous along K, or along M or
//          N; ldmatrix transposes the latter. See swizzle.cuh for where pieces of 16 bytes lie.

#pragma once

#include "../../common/cuda/mma.cuh"
#include "mma_source.cuh"

#ifndef KS_SLICES
#define KS_SLICES 1
#endif
#ifndef KS_GROUP
#define KS_GROUP 1
#endif
#ifndef KS_BLOCKS
#define KS_BLOCKS 1
#endif

#define KS_WARPS_M (KS_BM / KS_WM)
#define KS_WARPS_N (KS_BN / KS_WN)
#define KS_WARPS (KS_WARPS_M * KS_WARPS_N)  // of one slice
#define KS_THREADS (32 * KS_WARPS * KS_SLICES)
#define KS_STEPS (KS_BK / 16 / KS_SLICES)  // of 16 along K, of one warp in one tile

static_assert(KS_BM % KS_WM == 0 && KS_BN % KS_WN == 0, "a block's tile is not a whole number of warp tiles");
static_assert(KS_WM % 16 == 0 && KS_WN % 16 == 0, "a warp tile is not a whole number of 16x16 tiles");
static_assert(KS_BK % (16 * KS_SLICES) == 0 && KS_STEPS > 0, "BK is not 16 deep for each slice");
static_assert(KS_THREADS <= 1024, "block has too many threads");
static_assert(sizeof(KS_TYPE_A) == 2 && sizeof(KS_TYPE_B) == 2, "tensor cores take 16-bit operands here");
#if !KS_PLAIN_A || !KS_PLAIN_B
#error "tensor cores read both operands from memory, without a function above"
#endif

// An operand without a contiguous dimension is kept along K; its strides then say that pieces are loose.
typedef KS_TYPE_A ks_t;
constexpr bool ks_deep_A = !KS_CONTIGUOUS_A_M, ks_deep_B = !KS_CONTIGUOUS_B_N;
typedef ks_source<ks_t, KS_BM, KS_BK, ks_deep_A, KS_THREADS> ks_source_A;
typedef ks_source<ks_t, KS_BN, KS_BK, ks_deep_B, KS_THREADS> ks_source_B;
constexpr int ks_stage_bytes = ks_source_A::bytes + ks_source_B::bytes;

// The first element of this block's tile, and its slab and batch. Tiles go in groups of GROUP rows of tiles, column by
// column, so that blocks that run together share operands in the second-level cache.
KS_DEVICE ks_at ks_tile(const ks_args &x) {
    const uint32_t down = uint32_t(ks_ceil(ks_extent_M(x), int64_t(KS_BM)));
    const uint32_t across = uint32_t(ks_ceil(ks_extent_N(x), int64_t(KS_BN)));
    const uint32_t slabs = uint32_t(ks_extent_S(x)), sum = blockIdx.x / (down * across);
    const uint32_t tile = blockIdx.x % (down * across), group = tile / (KS_GROUP * across);
    const uint32_t inside = tile % (KS_GROUP * across);
    const uint32_t rows = min(down - group * KS_GROUP, uint32_t(KS_GROUP));
    ks_at i = {};
    i.S = sum % slabs;
    i.B = sum / slabs;
    i.M = int64_t(group * KS_GROUP + inside % rows) * KS_BM;
    i.N = int64_t(inside / rows) * KS_BN;
    return i;
}

KS_DEVICE ks_operand<ks_t> ks_operand_A(const ks_args &x, const ks_at &tile) {
    ks_at i = {};
    i.S = tile.S;
    i.B = tile.B;
    i.K = ks_first_K(x, i);
    return {ks_at_A(x, i), ks_extent_M(x), ks_last_K(x, i) - i.K, i.K, ks_extent_K(x),
            ks_step_A_M(x), ks_step_A_K(x)};
}

KS_DEVICE ks_operand<ks_t> ks_operand_B(const ks_args &x, const ks_at &tile) {
    ks_at i = {};
    i.S = tile.S;
    i.B = tile.B;
    i.K = ks_first_K(x, i);
    return {ks_at_B(x, i), ks_extent_N(x), ks_last_K(x, i) - i.K, i.K, ks_extent_K(x),
            ks_step_B_N(x), ks_step_B_K(x)};
}

// 16 (along M or N) x 16 (along K) elements, from (outer, depth) of a tile on, as four 8x8 matrices. The second matrix
// is the next one along M or N for an A operand of mma (First), along K for two B operands; what one mma takes must lie
// in neighbouring registers, else the compiler moves it there.
template <int Outer, int Depth, bool Deep, bool First>
KS_DEVICE void ks_fragment(uint32_t (&r)[4], ks_shared_t tile, int outer, int depth, int lane) {
    const int second = lane / 8 % 2 * 8, third = lane / 16 * 8;
    outer += First ? second : third;
    depth += First ? third : second;
    if (Deep)
        ks_load_matrices(r, tile + ks_place<Depth / 8>(outer + lane % 8, depth / 8));
    else
        ks_load_matrices_transposed(r, tile + ks_place<Outer / 8>(depth + lane % 8, outer / 8));
}

// A warp's sums and where it stands in the block.
struct ks_warp {
    float sums[KS_WM / 16][KS_WN / 8][4];
    int lane, number, slice, row, column;

    KS_DEVICE explicit ks_warp(int thread) {
        lane = thread % 32;
        number = thread / 32;
        slice = number / KS_WARPS;
        row = number % KS_WARPS / KS_WARPS_N * KS_WM;
        column = number % KS_WARPS_N * KS_WN;
#pragma unroll
        for (int m = 0; m < KS_WM / 16; m++)
#pragma unroll
            for (int n = 0; n < KS_WN / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) sums[m][n][e] = 0;
    }
};

// What a warp holds of the operands for one step of 16.
struct ks_fragments {
    uint32_t a[KS_WM / 16][4], b[KS_WN / 16][4];

    KS_DEVICE void load(const ks_warp &w, ks_shared_t tile_a, ks_shared_t tile_b, int step) {
        const int depth = (w.slice * KS_STEPS + step) * 16;
#pragma unroll
        for (int m = 0; m < KS_WM / 16; m++)
            ks_fragment<KS_BM, KS_BK, ks_deep_A, true>(a[m], tile_a, w.row + m * 16, depth, w.lane);
#pragma unroll
        for (int n = 0; n < KS_WN / 16; n++)
            ks_fragment<KS_BN, KS_BK, ks_deep_B, false>(b[n], tile_b, w.column + n * 16, depth, w.lane);
    }

    KS_DEVICE void multiply(ks_warp &w) const {
#pragma unroll
        for (int m = 0; m < KS_WM / 16; m++)
#pragma unroll
            for (int n = 0; n < KS_WN / 16; n++) {
                ks_multiply<ks_t>(w.sums[m][2 * n], a[m], b[n][0], b[n][1]);
                ks_multiply<ks_t>(w.sums[m][2 * n + 1], a[m], b[n][2], b[n][3]);
            }
    }
};
