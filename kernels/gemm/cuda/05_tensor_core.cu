// gemm/05_tensor_core: warps multiply 16x8x16 tiles on tensor cores.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]); 16-bit operands, sums in float32.
// Idea      One mma.sync does what 64 fused multiply-adds of each lane did in 04. ldmatrix brings operands from shared
//           memory in the order that it wants, transposed where K is not the contiguous dimension, so all layouts run
//           the same code. The next tile is on its way in registers while this one is multiplied.
// Params    BM BN  rows and columns of D per block;  BK  depth of a tile;  WM WN  rows and columns per warp
// Knobs     GROUP  rows of tiles that go together;  BLOCKS  blocks of a multiprocessor that registers must suffice for
// Launch    grid ceil(M/BM) * ceil(N/BN) * batches, block 32 * (BM/WM) * (BN/WN)
// Shared    2 * BK * (BM + BN) bytes, or what the epilogue stages if that is more
// Traffic   A is read ceil(N/BN) times from global memory, B ceil(M/BM) times.
// Edges     any extents, strides and addresses; what lies past an edge counts as 0 and is not stored.

#include "ks_generated.h"
#include "mma_output.cuh"

extern __shared__ __align__(128) char ks_shared_memory[];

extern "C" __global__ void __launch_bounds__(KS_THREADS, KS_BLOCKS)
    gemm_tensor_core(const __grid_constant__ ks_args x) {
    char *shared = ks_shared_memory, *tile_b = shared + ks_source_A::bytes;
    const ks_at tile = ks_tile(x);
    const ks_operand<ks_t> from = ks_operand_A(x, tile);
    ks_source_A a(from, tile.M, threadIdx.x);
    ks_source_B b(ks_operand_B(x, tile), tile.N, threadIdx.x);
    ks_warp warp(threadIdx.x);
    ks_piece pieces_a[ks_source_A::count], pieces_b[ks_source_B::count];
    const int tiles = int(ks_ceil(ks_max(from.depth, int64_t(0)), int64_t(KS_BK)));
    for (int t = -1; t < tiles; t++) {  // at -1 there is nothing to multiply yet
        if (t >= 0) {
#pragma unroll
            for (int j = 0; j < ks_source_A::count; j++) a.store(j, pieces_a[j], shared);
#pragma unroll
            for (int j = 0; j < ks_source_B::count; j++) b.store(j, pieces_b[j], tile_b);
            __syncthreads();  // the tile is there
            a.advance();
            b.advance();
        }
        if (t + 1 < tiles) {
#pragma unroll
            for (int j = 0; j < ks_source_A::count; j++) a.load(j, pieces_a[j]);
#pragma unroll
            for (int j = 0; j < ks_source_B::count; j++) b.load(j, pieces_b[j]);
        }
        if (t < 0) continue;
#pragma unroll
        for (int step = 0; step < KS_STEPS; step++) {
            ks_fragments f;
            f.load(warp, ks_shared(shared), ks_shared(tile_b), step);
            f.multiply(warp);
        }
        __syncthreads();  // nobody reads the tile any more
    }
    ks_finish(x, tile, warp, shared);
}
