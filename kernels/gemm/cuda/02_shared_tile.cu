// gemm/02_shared_tile: stage tiles of A and B in shared memory.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]); each of b, m, n, k is any number of axes
// Idea      A block reads each value of its tiles once; 01 reads it once for each output that needs it.
// Params    BM BN  rows and columns of D per block, one to a thread;  BK  depth of a tile
// Launch    (batches * ceil(M/BM) * ceil(N/BN), slabs) blocks of BM * BN threads
// Shared    one tile of each operand, as float whatever the dtype: about 4 * BK * (BM + BN) bytes
// Traffic   A is read ceil(N/BN) times, B ceil(M/BM) times.
// Edges     any extents and strides; loads past the end give 0, stores past it are skipped.

#include "ks_generated.h"
#include "simt_stage.cuh"

#define BM KS_BM
#define BN KS_BN
#define BK KS_BK

constexpr int threads = BM * BN, pitch_a = ks_stage_pitch<BM, ks_along_k_A>, pitch_b = ks_stage_pitch<BN, ks_along_k_B>;

static_assert(threads <= 1024, "block has too many threads");

extern "C" __global__ void __launch_bounds__(threads) gemm_shared_tile(const __grid_constant__ ks_args x) {
    __shared__ ks_acc a[BK * pitch_a], b[BK * pitch_b];
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), block = blockIdx.x;
    const int64_t down = ks_ceil<int64_t>(m, BM), across = ks_ceil<int64_t>(n, BN);
    ks_at i;
    i.S = blockIdx.y, i.B = block / across / down, i.M = block / across % down * BM, i.N = block % across * BN;
    const int row = threadIdx.x / BN, column = threadIdx.x % BN;
    ks_acc sum = 0;
    const int64_t last = ks_last_K(x, i);
    for (i.K = ks_first_K(x, i); i.K < last; i.K += BK) {
        ks_stage_a<BM, BK, threads, 1>(x, i, last, a);
        ks_stage_b<BN, BK, threads, 1>(x, i, last, b);
        __syncthreads();  // the tiles are whole
#pragma unroll
        for (int k = 0; k < BK; k++) sum += a[k * pitch_a + row] * b[k * pitch_b + column];
        __syncthreads();  // nobody reads the tiles any more
    }
    i.M += row, i.N += column;
    ks_fields f;
    f.KS_RESULT = sum;
    if (i.M < m && i.N < n) ks_put(x, i, f);
}
