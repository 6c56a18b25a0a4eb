// gemm/06_async_pipeline: copies run stages ahead of the tensor cores. Also skinny shapes and split-K.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]), or one such sum for each slab of k, or all slabs added up
//           in memory by atomics; 16-bit operands, sums in float32.
// Idea      cp.async fills shared memory without passing registers, so a ring of STAGES tiles can be under way, and one
//           barrier a tile is enough: it says that this tile has come and that the one before has been read. An operand
//           whose pitch or address breaks the alignment of 16 bytes passes registers instead, realigned there; copies
//           of either kind are spread over the steps of a tile. With SLICES, groups of warps share the depth of a tile:
//           long tiles of few rows keep memory busy where the output is too small to occupy the device.
// Params    BM BN  rows and columns of D per block;  BK  depth of a tile;  WM WN  rows and columns per warp;
//           STAGES  tiles of the ring;  SPLIT  slabs, if any
// Knobs     SLICES  groups of warps along BK;  GROUP  rows of tiles that go together;  BLOCKS  blocks of a
//           multiprocessor that registers must suffice for
// Launch    grid ceil(M/BM) * ceil(N/BN) * batches * slabs, block 32 * (BM/WM) * (BN/WN) * SLICES;
//           before atomics a launch of gemm_clear, which stores zeros
// Shared    2 * STAGES * BK * (BM + BN) bytes, or what the epilogue stages if that is more
// Traffic   A is read ceil(N/BN) times from global memory, B ceil(M/BM) times.
// Edges     any extents, strides and addresses; what lies past an edge counts as 0 and is not stored. Slabs may be
//           ragged or empty: those are sums of nothing, 0.

#include "ks_generated.h"
#include "mma_output.cuh"

static_assert(KS_STAGES >= 2, "a ring has at least two stages");

extern __shared__ __align__(128) char ks_shared_memory[];

// Pieces [first, last) of the tile that comes next, to where it belongs; those that pass registers are only loaded.
template <bool Whole, class Source>
KS_DEVICE void ks_begin(const Source &from, int first, int last, char *tile, ks_piece *pieces) {
#pragma unroll
    for (int j = first; j < last; j++)
        if (Whole || from.whole)
            from.copy(j, ks_shared(tile));
        else
            from.load(j, pieces[j - first]);
}

// What ks_begin left in registers, to shared memory.
template <bool Whole, class Source>
KS_DEVICE void ks_end(const Source &from, int first, int last, char *tile, const ks_piece *pieces) {
    if (Whole || from.whole) return;
#pragma unroll
    for (int j = first; j < last; j++) from.store(j, pieces[j - first], tile);
}

template <bool Whole>
KS_DEVICE void ks_pipeline(ks_source_A &a, ks_source_B &b, ks_warp &warp, char *shared, int tiles) {
    // Fragments of the next step are loaded ahead, where pieces on their way or many sums do not need the registers.
    constexpr bool ahead = Whole && KS_WM * KS_WN < 64 * 64;
    constexpr int steps = KS_STEPS, every_a = (ks_source_A::count + steps - 1) / steps;
    constexpr int every_b = (ks_source_B::count + steps - 1) / steps;
    ks_piece pieces_a[every_a], pieces_b[every_b];
#pragma unroll 1
    for (int stage = 0; stage < KS_STAGES - 1; stage++) {
        char *tile_a = shared + stage * ks_stage_bytes, *tile_b = tile_a + ks_source_A::bytes;
#pragma unroll
        for (int step = 0; step < steps; step++) {
            const int a0 = step * every_a, a1 = ks_min(a0 + every_a, int(ks_source_A::count));
            const int b0 = step * every_b, b1 = ks_min(b0 + every_b, int(ks_source_B::count));
            ks_begin<Whole>(a, a0, a1, tile_a, pieces_a);
            ks_begin<Whole>(b, b0, b1, tile_b, pieces_b);
            ks_end<Whole>(a, a0, a1, tile_a, pieces_a);
            ks_end<Whole>(b, b0, b1, tile_b, pieces_b);
        }
        ks_copy_commit();
        a.advance();
        b.advance();
    }
    int read = 0, write = (KS_STAGES - 1) * ks_stage_bytes;  // bytes to the stage that is read, and to that filled
#pragma unroll 1
    for (int t = 0; t < tiles; t++) {
        ks_copy_wait<KS_STAGES - 2>();
        __syncthreads();  // this tile is there, and nobody reads the one before, whose stage is filled next
        const ks_shared_t now_a = ks_shared(shared + read), now_b = now_a + ks_source_A::bytes;
        char *tile_a = shared + write, *tile_b = tile_a + ks_source_A::bytes;
        ks_fragments f[ahead ? 2 : 1];
        if (ahead) f[0].load(warp, now_a, now_b, 0);
#pragma unroll
        for (int step = 0; step < steps; step++) {
            const int a0 = step * every_a, a1 = ks_min(a0 + every_a, int(ks_source_A::count));
            const int b0 = step * every_b, b1 = ks_min(b0 + every_b, int(ks_source_B::count));
            ks_begin<Whole>(a, a0, a1, tile_a, pieces_a);
            ks_begin<Whole>(b, b0, b1, tile_b, pieces_b);
            if (!ahead) f[0].load(warp, now_a, now_b, step);
            if (ahead && step + 1 < steps) f[(step + 1) % 2].load(warp, now_a, now_b, step + 1);
            f[ahead ? step % 2 : 0].multiply(warp);
            ks_end<Whole>(a, a0, a1, tile_a, pieces_a);
            ks_end<Whole>(b, b0, b1, tile_b, pieces_b);
        }
        ks_copy_commit();
        a.advance();
        b.advance();
        read = read + ks_stage_bytes < KS_STAGES * ks_stage_bytes ? read + ks_stage_bytes : 0;
        write = write + ks_stage_bytes < KS_STAGES * ks_stage_bytes ? write + ks_stage_bytes : 0;
    }
    ks_copy_wait<0>();
}

extern "C" __global__ void __launch_bounds__(KS_THREADS, KS_BLOCKS)
    gemm_async_pipeline(const __grid_constant__ ks_args x) {
    const ks_at tile = ks_tile(x);
    const ks_operand<ks_t> from = ks_operand_A(x, tile);
    ks_source_A a(from, tile.M, threadIdx.x);
    ks_source_B b(ks_operand_B(x, tile), tile.N, threadIdx.x);
    ks_warp warp(threadIdx.x);
    const int tiles = int(ks_ceil(ks_max(from.depth, int64_t(0)), int64_t(KS_BK)));
    ks_allow_next_launch();
#ifndef KS_ATOMIC
    ks_wait_for_earlier_launch();  // before anything is read or written; all above works on arguments alone
#endif
    if (a.whole && b.whole)
        ks_pipeline<true>(a, b, warp, ks_shared_memory, tiles);
    else
        ks_pipeline<false>(a, b, warp, ks_shared_memory, tiles);
    __syncthreads();  // nobody reads a stage any more
    ks_finish(x, tile, warp, ks_shared_memory);
}

#ifdef KS_ATOMIC
// Zeros to the whole output: what atomics are added to.
extern "C" __global__ void __launch_bounds__(256) gemm_clear(const __grid_constant__ ks_args x) {
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), count = ks_extent_B(x) * m * n;
    ks_allow_next_launch();
    for (int64_t at = blockIdx.x * int64_t(256) + threadIdx.x; at < count; at += gridDim.x * int64_t(256)) {
        ks_at i = {};
        i.B = at / (m * n);
        i.M = at % (m * n) / n;
        i.N = at % n;
        *ks_at_out(x, i) = KS_TYPE_out(0);
    }
}
#endif
