// gemm/03_register_tile: several outputs per thread, their sums in registers.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]); each of b, m, n, k is any number of axes
// Idea      TM + TN values from shared memory serve TM * TN multiply-adds; in 02 two serve one.
// Params    BM BN  rows and columns of D per block;  BK  depth of a tile;  TM TN  rows and columns per thread
// Launch    (batches * ceil(M/BM) * ceil(N/BN), slabs) blocks of BM/TM * BN/TN threads
// Shared    one tile of each operand, as float whatever the dtype: about 4 * BK * (BM + BN) bytes
// Traffic   A is read ceil(N/BN) times, B ceil(M/BM) times.
// Edges     any extents and strides; loads past the end give 0, stores past it are skipped.

#include "ks_generated.h"
#include "simt_stage.cuh"

#define BM KS_BM
#define BN KS_BN
#define BK KS_BK
#define TM KS_TM
#define TN KS_TN

constexpr int rows = BM / TM, columns = BN / TN, threads = rows * columns;  // threads along M, along N
constexpr int pitch_a = ks_stage_pitch<BM, ks_along_k_A>, pitch_b = ks_stage_pitch<BN, ks_along_k_B>;

static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles do not fill the block tile");
static_assert(threads <= 1024, "block has too many threads");

extern "C" __global__ void __launch_bounds__(threads) gemm_register_tile(const __grid_constant__ ks_args x) {
    __shared__ ks_acc a[BK * pitch_a], b[BK * pitch_b];
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), block = blockIdx.x;
    const int64_t down = ks_ceil<int64_t>(m, BM), across = ks_ceil<int64_t>(n, BN);
    ks_at i;
    i.S = blockIdx.y, i.B = block / across / down, i.M = block / across % down * BM, i.N = block % across * BN;
    const int row = threadIdx.x / columns, column = threadIdx.x % columns;  // a thread's outputs lie apart by these
    ks_acc sums[TM][TN] = {};
    const int64_t last = ks_last_K(x, i);
    for (i.K = ks_first_K(x, i); i.K < last; i.K += BK) {
        ks_stage_a<BM, BK, threads, 1>(x, i, last, a);
        ks_stage_b<BN, BK, threads, 1>(x, i, last, b);
        __syncthreads();  // the tiles are whole
#pragma unroll
        for (int k = 0; k < BK; k++) {
            ks_acc of_a[TM], of_b[TN];
#pragma unroll
            for (int j = 0; j < TM; j++) of_a[j] = a[k * pitch_a + row + j * rows];
#pragma unroll
            for (int j = 0; j < TN; j++) of_b[j] = b[k * pitch_b + column + j * columns];
#pragma unroll
            for (int r = 0; r < TM; r++)
#pragma unroll
                for (int c = 0; c < TN; c++) sums[r][c] += of_a[r] * of_b[c];
        }
        __syncthreads();  // nobody reads the tiles any more
    }
    const ks_at first = i;
#pragma unroll
    for (int r = 0; r < TM; r++)
#pragma unroll
        for (int c = 0; c < TN; c++) {
            i.M = first.M + row + r * rows, i.N = first.N + column + c * columns;
            ks_fields f;
            f.KS_RESULT = sums[r][c];
            if (i.M < m && i.N < n) ks_put(x, i, f);
        }
}
