// gemm/04_vectorized: sixteen bytes at a time, from memory to shared memory to registers and back.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]); each of b, m, n, k is any number of axes; slabs of k where
//           the plan splits it
// Idea      As 03 with a quarter of the load and store instructions, or fewer for narrow types; the threads of a warp
//           lie so that they share what they load.
// Params    BM BN  rows and columns of D per block;  BK  depth of a tile;  TM TN  rows and columns per thread
// Launch    (batches * ceil(M/BM) * ceil(N/BN), slabs) blocks of BM/TM * BN/TN threads
// Shared    one tile of each operand, as float whatever the dtype: about 4 * BK * (BM + BN) bytes
// Traffic   A is read ceil(N/BN) times, B ceil(M/BM) times.
// Edges     any extents and strides; rows that are not aligned are loaded one element at a time; loads past the end give
//           0, stores past it are skipped.

#include "ks_generated.h"
#include "simt_tile.cuh"
#include "simt_stage.cuh"
#include "simt_output.cuh"

#define BM KS_BM
#define BN KS_BN
#define BK KS_BK
#define TM KS_TM
#define TN KS_TN

typedef ks_layout<BM, BN, TM, TN> layout;
constexpr int pitch_a = ks_stage_pitch<BM, ks_along_k_A>, pitch_b = ks_stage_pitch<BN, ks_along_k_B>;
constexpr int V_A = ks_min(ks_widest<KS_TYPE_A>, ks_along_k_A ? BK : BM);
constexpr int V_B = ks_min(ks_widest<KS_TYPE_B>, ks_along_k_B ? BK : BN);
constexpr int size = ks_max(BK * (pitch_a + pitch_b), layout::down * BN);  // the tiles, later a slice of the output

static_assert(layout::threads <= 1024, "block has too many threads");

extern "C" __global__ void __launch_bounds__(layout::threads) gemm_vectorized(const __grid_constant__ ks_args x) {
    __shared__ __align__(16) float tiles[size];
    float *a = tiles, *b = tiles + BK * pitch_a;
    const int64_t down = ks_ceil<int64_t>(ks_extent_M(x), BM), across = ks_ceil<int64_t>(ks_extent_N(x), BN);
    const int64_t block = blockIdx.x;
    ks_at i;
    i.S = blockIdx.y, i.B = block / across / down, i.M = block / across % down * BM, i.N = block % across * BN;
    const layout own(threadIdx.x);
    float sums[TM][TN] = {};
    const int64_t last = ks_last_K(x, i);
    for (i.K = ks_first_K(x, i); i.K < last; i.K += BK) {
        ks_stage_a<BM, BK, layout::threads, V_A>(x, i, last, a);
        ks_stage_b<BN, BK, layout::threads, V_B>(x, i, last, b);
        __syncthreads();  // the tiles are whole
#pragma unroll
        for (int k = 0; k < BK; k++) {
            float row[TM], column[TN];
            layout::rows::load(a + k * pitch_a + own.row, own.lane_m, row);
            layout::columns::load(b + k * pitch_b + own.column, own.lane_n, column);
            layout::multiply(row, column, sums);
        }
        __syncthreads();  // nobody reads the tiles any more
    }
    ks_put_block<BM, BN, TM, TN>(x, i, own, sums, tiles);
}
