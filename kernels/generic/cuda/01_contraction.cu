// generic/01_contraction: the textbook sum of products, over any axes.
//
// Computes  out[s,b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]); each of b, m, n, k is any number of axes, of any
//           stride, and k may be cut into slabs s.
// Idea      A thread computes TN neighbours along n of one row: an element of A meets TN elements of B.
// Params    TN  columns of a thread
// Launch    any grid; block 256: threads take stretches of columns in turn
// Shared    none
// Traffic   A is read ceil(N/TN) times, B once for each row of the output; nothing is kept but by the caches.
// Edges     any extents, 0 included: K = 0 gives f(0).

#include "ks_generated.h"

static_assert(KS_TN >= 1 && (KS_TN & (KS_TN - 1)) == 0, "TN is not a power of two");

extern "C" __global__ void __launch_bounds__(256) generic_contraction(const __grid_constant__ ks_args x) {
    const int64_t columns = ks_extent_N(x), across = ks_ceil<int64_t>(columns, KS_TN);
    const int64_t m = ks_extent_M(x), b = ks_extent_B(x), all = ks_extent_S(x) * b * m * across;
    const int64_t stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; t < all; t += stride) {
        const int64_t row = t / across;
        ks_at i;
        i.S = row / m / b, i.B = row / m % b, i.M = row % m, i.N = (t - row * across) * KS_TN;
        const int count = int(ks_min(columns - i.N, int64_t(KS_TN)));
        ks_fields f[KS_TN];
#pragma unroll
        for (int l = 0; l < KS_TN; l++) f[l].KS_RESULT = 0;
        const int64_t last = ks_last_K(x, i);
        for (i.K = ks_first_K(x, i); i.K < last; i.K++) {
            ks_acc across_n[KS_TN];
            ks_fetch_B_N<KS_TN>(x, i, count, across_n);
            const ks_acc a = ks_A(x, i);
#pragma unroll
            for (int l = 0; l < KS_TN; l++) f[l].KS_RESULT += a * across_n[l];
        }
        ks_put_N<KS_TN>(x, i, count, f);
    }
}
