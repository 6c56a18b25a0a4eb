// gemm/08_simt_pipeline: CUDA cores that never wait for memory.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]) in float32; slabs of k where the plan splits it
// Idea      Tiles of A and B come by asynchronous copies, STAGES - 1 ahead, and each step of k loads the next step's
//           fragments while it multiplies: the multiply-adds of a step wait for nothing that was asked for in it. The one
//           barrier a tile says both that the next tile is there and that the slot of the last one is free.
// Params    BM BN  rows and columns of D per block;  BK  depth of a tile;  TM TN  rows and columns per thread
//           STAGES  tiles in shared memory
// Knobs     GROUP  rows of tiles that blocks share before they move on
// Launch    one block a tile, (batches * ceil(M/BM) * ceil(N/BN), slabs); BM/TM * BN/TN threads
// Shared    4 * STAGES * BK * (pitch of A + pitch of B) bytes, pitches up to BM + 4 and BN + 4
// Registers TM * TN sums, two fragments of TM + TN, an offset for each copy
// Traffic   A is read ceil(N/BN) times, B ceil(M/BM) times, mostly from the second level cache.
// Edges     any extents and strides: the ragged tile along k comes first and is filled with zeros; past the end of M and N
//           the last row or column is read again and not stored. Rows that are not aligned are copied 4 bytes at a time;
//           strides beyond 4 GB a tile and operands that are not plain arrays go through registers.

#include "ks_generated.h"
#include "raster.cuh"
#include "simt_tile.cuh"
#include "simt_copy.cuh"
#include "simt_fill.cuh"
#include "simt_output.cuh"

#define BM KS_BM
#define BN KS_BN
#define BK KS_BK
#define TM KS_TM
#define TN KS_TN
#define STAGES KS_STAGES

typedef ks_layout<BM, BN, TM, TN> layout;
constexpr int pieces = ks_ceil(BM * BK, layout::threads) + ks_ceil(BN * BK, layout::threads);  // at most
// About what a thread needs, and how many blocks then fit: each quarter of a multiprocessor has 512 registers a lane.
constexpr int registers = TM * TN + 2 * (TM + TN) + 32 + (pieces > 16 ? pieces + 8 : 0);
constexpr int resident = ks_min(ks_max(1, ks_max(1, 512 / registers) * 4 / layout::warps), 16);

static_assert(STAGES >= 2, "a pipeline has at least two stages");
static_assert(layout::threads <= 1024, "block has too many threads");

extern __shared__ __align__(16) float ks_tiles[];

KS_DEVICE void load_row(const char *tile, int at, int lane, float (&out)[TM]) {
    layout::rows::load(reinterpret_cast<const float *>(tile) + at, lane, out);
}
KS_DEVICE void load_column(const char *tile, int at, int lane, float (&out)[TN]) {
    layout::columns::load(reinterpret_cast<const float *>(tile) + at, lane, out);
}

// The sums of a block over `depth` steps of k.
template <class CopiesA, class CopiesB>
KS_DEVICE void sum_tiles(CopiesA a, CopiesB b, int64_t depth, const layout &own, float (&sums)[TM][TN]) {
    constexpr int size = 4 * BK * (CopiesA::pitch + CopiesB::pitch);  // bytes of a slot
    static_assert(BK % 8 == 0, "BK is not a multiple of 8");
    if (depth <= 0) return;
    const int tiles = int((depth + BK - 1) / BK), first = int(depth - int64_t(tiles - 1) * BK);
    a.ragged(0, first), b.ragged(0, first);
    a.advance(first), b.advance(first);
    ks_copy_commit();
#pragma unroll
    for (int s = 1; s < STAGES - 1; s++) {
        if (s < tiles) {
            a.some(s * size, 0, 1), b.some(s * size, 0, 1);
            a.advance(BK), b.advance(BK);
        }
        ks_copy_commit();
    }
    float row[2][TM], column[2][TN];  // of A and of B: this step's and the next one's
    const char *all_a = reinterpret_cast<const char *>(ks_tiles + own.row);
    const char *all_b = reinterpret_cast<const char *>(ks_tiles + BK * CopiesA::pitch + own.column);
    int from = 0, to = (STAGES - 1) * size;  // slots that are read and filled
    ks_copy_wait<STAGES - 2>();
    __syncthreads();  // the first tile is there
    load_row(all_a, 0, own.lane_m, row[0]);
    load_column(all_b, 0, own.lane_n, column[0]);
#pragma unroll 1
    for (int ahead = STAGES - 1; ahead < tiles + STAGES - 1; ahead++) {
#pragma unroll(CopiesA::steps)
        for (int k = 0; k < BK; k++) {
            const int next = (k + 1) % BK;
            if (next == 0) {
                ks_copy_wait<STAGES - 2>();
                __syncthreads();  // the next tile is there, and all have loaded the last fragments of this one
                to = from;
                from = from == (STAGES - 1) * size ? 0 : from + size;
            }
            load_row(all_a + from, next * CopiesA::pitch, own.lane_m, row[(k + 1) % 2]);
            load_column(all_b + from, next * CopiesB::pitch, own.lane_n, column[(k + 1) % 2]);
            if (k % 4 == 0 && ahead < tiles) a.some(to, k / 4, BK / 4), b.some(to, k / 4, BK / 4);
            if (k == BK - 2) {
                ks_copy_commit();
                a.advance(BK), b.advance(BK);
            }
            layout::multiply(row[k % 2], column[k % 2], sums);
        }
    }
}

// The widest copies that the operands allow at run time.
KS_DEVICE void sum_block(const ks_args &x, const ks_at &first, int64_t depth, const layout &own, float (&sums)[TM][TN]) {
#if KS_PLAIN_A && KS_PLAIN_B
    const ks_source a = {ks_at_A(x, first), ks_step_A_M(x), ks_step_A_K(x), ks_extent_M(x) - first.M};
    const ks_source b = {ks_at_B(x, first), ks_step_B_N(x), ks_step_B_K(x), ks_extent_N(x) - first.N};
    constexpr bool turn_a = KS_CONTIGUOUS_A_K, turn_b = KS_CONTIGUOUS_B_K;
    constexpr int V_A = KS_CONTIGUOUS_A_M && BM % 4 == 0 ? 4 : 1, V_B = KS_CONTIGUOUS_B_N && BN % 4 == 0 ? 4 : 1;
    typedef ks_copies<BM, BK, layout::threads, V_A, turn_a> wide_a;
    typedef ks_copies<BN, BK, layout::threads, V_B, turn_b> wide_b;
    typedef ks_copies<BM, BK, layout::threads, 1, turn_a> narrow_a;
    typedef ks_copies<BN, BK, layout::threads, 1, turn_b> narrow_b;
    if (wide_a::fit(a) && wide_b::fit(b))
        return sum_tiles(wide_a(a, ks_tiles), wide_b(b, ks_tiles + BK * wide_a::pitch), depth, own, sums);
    if (V_A + V_B > 2 && narrow_a::fit(a) && narrow_b::fit(b))
        return sum_tiles(narrow_a(a, ks_tiles), narrow_b(b, ks_tiles + BK * narrow_a::pitch), depth, own, sums);
#endif
    typedef ks_fill_a<BM, BK, layout::threads> fill_a;
    typedef ks_fill_b<BN, BK, layout::threads> fill_b;
    sum_tiles(fill_a(x, first, ks_tiles), fill_b(x, first, ks_tiles + BK * BM), depth, own, sums);
}

extern "C" __global__ void __launch_bounds__(layout::threads, resident)
gemm_simt_pipeline(const __grid_constant__ ks_args x) {
    const int64_t down = ks_ceil<int64_t>(ks_extent_M(x), BM), across = ks_ceil<int64_t>(ks_extent_N(x), BN);
    const ks_tile_at at = ks_raster<KS_GROUP>(blockIdx.x, down, across);
    ks_at first;
    first.S = blockIdx.y, first.B = at.B, first.M = at.down * BM, first.N = at.across * BN;
    first.K = ks_first_K(x, first);
    float sums[TM][TN] = {};
    const layout own(threadIdx.x);
    ks_allow_next_launch();
    ks_wait_for_earlier_launch();  // before anything is read or written; all above works on arguments alone
    sum_block(x, first, ks_last_K(x, first) - first.K, own, sums);
    ks_put_block<BM, BN, TM, TN>(x, first, own, sums, ks_tiles);
}
