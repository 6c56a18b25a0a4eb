// transpose/01_naive: straight from memory to memory.
//
// Computes  Y[n,m] = X[m,n], bit for bit
// Idea      none: the threads of a warp write neighbours, and each reads an element of another row. A warp's load visits
//           32 lines; what other warps of the block want of these they find in the first-level cache, if it is there yet.
// Params    BM BN  columns and rows of the output in a block
// Launch    a block for each BM x BN elements; block 256
// Shared    none
// Traffic   X is read by sectors of 32 bytes, those of a block once if the cache holds them; Y is written once.
// Edges     any extents, 0 included; any strides.

#include "ks_generated.h"

static_assert(KS_BM % 32 == 0 && KS_BM * KS_BN % 256 == 0, "a warp writes no row of 32");

extern "C" __global__ void __launch_bounds__(256) transpose_naive(const __grid_constant__ ks_args x) {
    ks_allow_next_launch();
    ks_wait_for_earlier_launch();
    const int64_t across = ks_ceil<int64_t>(ks_extent_N(x), KS_BN);
    ks_at first;
    first.M = blockIdx.x / across * KS_BM, first.N = blockIdx.x % across * KS_BN;
#pragma unroll
    for (int e = threadIdx.x; e < KS_BM * KS_BN; e += 256) {
        ks_at i = first;
        i.M += e % KS_BM, i.N += e / KS_BM;
        if (i.M < ks_extent_M(x) && i.N < ks_extent_N(x)) *ks_at_out(x, i) = *ks_at_X(x, i);
    }
}
