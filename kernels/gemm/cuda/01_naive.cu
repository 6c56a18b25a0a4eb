// gemm/01_naive: a few rows of one column per thread, straight from memory.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]); each of b, m, n, k is any number of axes
// Idea      none: what every other rung is measured against. Neighbouring threads take neighbouring columns.
// Params    TM  rows per thread, which share the loads of B
// Launch    (batches * ceil(M / (8 * TM)) * ceil(N / 32), slabs) blocks of 256 threads, 32 columns by 8 times TM rows
// Shared    none
// Traffic   A is read N times and B ceil(M/TM) times, but for what the caches catch.
// Edges     any extents and strides, K = 0 gives f(0); rows past the end read the last one again and are not stored.

#include "ks_generated.h"

#define TM KS_TM

extern "C" __global__ void __launch_bounds__(256) gemm_naive(const __grid_constant__ ks_args x) {
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x);
    const int64_t down = ks_ceil<int64_t>(m, 8 * TM), across = ks_ceil<int64_t>(n, 32), block = blockIdx.x;
    ks_at i;
    i.S = blockIdx.y, i.B = block / across / down;
    i.N = block % across * 32 + threadIdx.x % 32;
    const int64_t first = (block / across % down * 8 + threadIdx.x / 32) * TM;
    if (i.N >= n || first >= m) return;
    ks_acc sums[TM] = {};
    const int64_t last = ks_last_K(x, i);
    for (i.K = ks_first_K(x, i); i.K < last; i.K++) {
        const ks_acc b = ks_B(x, i);
#pragma unroll
        for (int j = 0; j < TM; j++) {
            i.M = ks_min(first + j, m - 1);
            sums[j] += ks_A(x, i) * b;
        }
    }
#pragma unroll
    for (int j = 0; j < TM; j++) {
        ks_fields f;
        f.KS_RESULT = sums[j];
        i.M = first + j;
        if (i.M < m) ks_put(x, i, f);
    }
}
