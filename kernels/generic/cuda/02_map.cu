// generic/02_map: elementwise functions of arrays, over any axes.
//
// Computes  out[...] = f(in[...], ...); an array that lacks an axis is broadcast along it. Several outputs: one after
//           the other.
// Idea      A thread computes TM neighbours along the last axis of the output: where memory is contiguous and aligned
//           they move in words of 16 bytes. Whatever f is, it comes from the generated header.
// Params    TM  elements of a thread
// Launch    any grid; block 256: threads take stretches in turn
// Shared    none
// Traffic   each input is read once for each output that needs it, each output written once.
// Edges     any extents, 0 included; any strides.

#include "ks_generated.h"

static_assert(KS_TM >= 1 && (KS_TM & (KS_TM - 1)) == 0, "TM is not a power of two");

#define ROOT(r)                                                                            \
    KS_DEVICE void map_##r(const ks_args &x) {                                             \
        const int64_t columns = ks_columns_##r(x), across = ks_ceil<int64_t>(columns, KS_TM); \
        const int64_t all = ks_rows_##r(x) * across, stride = int64_t(gridDim.x) * blockDim.x; \
        const ks_fields f[KS_TM] = {};                                                     \
        for (int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; t < all; t += stride) { \
            ks_at i;                                                                       \
            i.M = t / across, i.N = (t - i.M * across) * KS_TM;                            \
            ks_finish_##r<KS_TM>(x, i, int(ks_min(columns - i.N, int64_t(KS_TM))), f);     \
        }                                                                                  \
    }
KS_ROOTS(ROOT)

extern "C" __global__ void __launch_bounds__(256) generic_map(const __grid_constant__ ks_args x) {
    ks_allow_next_launch();
    ks_wait_for_earlier_launch();
#undef ROOT
#define ROOT(r) map_##r(x);
    KS_ROOTS(ROOT)
}
