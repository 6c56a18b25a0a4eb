// generic/04_spread: partial results of slabs are combined for each row, then spread over all columns of it.
//
// Computes  for each field in order: field = sum or max over the slabs of body; out[row, column] = f(fields, ...)
// Idea      A thread combines the slabs of its row itself, as they are few, and goes on with TN neighbours at a time.
// Params    BN  columns of a block;  TN  neighbours of a thread
// Launch    any grid, block 256: blocks take pieces of rows in turn
// Shared    none
// Traffic   what the bodies read once a thread, from the caches; the rest once.
// Edges     any extents, 0 included; any strides.

#include "ks_generated.h"

static_assert(KS_BN % (256 * KS_TN) == 0, "a block's columns are no whole number of turns");

#define ks_start_sum ks_acc(0)
#define ks_start_max (-KS_INFINITY)
#define ks_more_sum(a, b) ((a) + (b))
#define ks_more_max(a, b) ks_max(a, b)

#define FIELD(r, name, monoid)                                                           \
    {                                                                                    \
        ks_acc a = ks_start_##monoid;                                                    \
        for (i.K = ks_first_K_##r(x, i); i.K < ks_last_K_##r(x, i); i.K++) {             \
            ks_acc v[1];                                                                 \
            ks_body_##r##_##name<1>(x, i, 1, one, v);                                    \
            a = ks_more_##monoid(a, v[0]);                                               \
        }                                                                                \
        one[0].name = a;                                                                 \
    }

extern "C" __global__ void __launch_bounds__(256) generic_spread(const __grid_constant__ ks_args x) {
    ks_wait_for_earlier_launch();
    ks_allow_next_launch();
    const int64_t columns = ks_columns_0(x), across = ks_ceil<int64_t>(columns, KS_BN), all = ks_rows_0(x) * across;
    for (int64_t piece = blockIdx.x; piece < all; piece += gridDim.x) {
        ks_at i;
        i.M = piece / across;
        const int64_t first = (piece - i.M * across) * KS_BN;
        i.N = first;
        ks_fields one[1] = {};
        KS_FIELDS_0(FIELD)
        ks_fields f[KS_TN];
#pragma unroll
        for (int l = 0; l < KS_TN; l++) f[l] = one[0];
#pragma unroll 4
        for (int at = threadIdx.x * KS_TN; at < KS_BN; at += 256 * KS_TN) {
            i.N = first + at;
            if (i.N < columns) ks_finish_0<KS_TN>(x, i, int(ks_min(columns - i.N, int64_t(KS_TN))), f);
        }
    }
}
