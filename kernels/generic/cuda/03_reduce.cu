// generic/03_reduce: sums and maxima over any axes, one after the other, then any function of them.
//
// Computes  for each field in order: field = sum or max over k of body(arrays, earlier fields); out = f(fields, ...)
// Idea      A thread computes TM neighbours along the last axis of the output, so that where that axis is contiguous
//           and aligned the slabs of a split reduction are read in words of 16 bytes. A body that needs an earlier
//           field runs after that field is complete, so running maxima need no rescaling: each field walks over k once
//           more.
// Params    TM  elements of a thread
// Launch    any grid; block 256: threads take stretches in turn
// Shared    none
// Traffic   what the bodies read, once for each field and output.
//           Long sums are added up in pieces, so that their error does not grow with their length.
// Edges     any extents, 0 included: an empty sum is 0, an empty maximum -inf; any strides.

#include "ks_generated.h"
#include "compensated.cuh"

static_assert(KS_TM >= 1 && (KS_TM & (KS_TM - 1)) == 0, "TM is not a power of two");

constexpr int AHEAD = KS_TM <= 4 ? 8 : 4;  // steps of k
constexpr int PIECE = 128;                 // steps that are added up before they are added to the rest

#define ks_start_sum ks_acc(0)
#define ks_start_max (-KS_INFINITY)
#define ks_more_sum(a, b) ((a) + (b))
#define ks_more_max(a, b) ks_max(a, b)

// Several steps of k at a time where there are as many, so that their loads are under way together.
#define STEPS(r, name, monoid, many)                                                      \
    for (; i.K + many <= stop; i.K += many) {                                             \
        ks_acc v[many][KS_TM];                                                            \
        _Pragma("unroll") for (int k = 0; k < many; k++) {                                \
            ks_at at = i;                                                                 \
            at.K += k;                                                                    \
            ks_body_##r##_##name<KS_TM>(x, at, count, f, v[k]);                           \
        }                                                                                 \
        _Pragma("unroll") for (int k = 0; k < many; k++)                                  \
            _Pragma("unroll") for (int l = 0; l < KS_TM; l++)                             \
                f[l].name = ks_more_##monoid(f[l].name, v[k][l]);                         \
    }

#define FIELD(r, name, monoid)                                                                \
    {                                                                                         \
        const int64_t last = ks_last_K_##r(x, i);                                             \
        ks_acc whole[KS_TM], lost[KS_TM] = {};                                                \
        _Pragma("unroll") for (int l = 0; l < KS_TM; l++) whole[l] = ks_start_##monoid;       \
        for (i.K = ks_first_K_##r(x, i); i.K < last;) {                                       \
            const int64_t stop = ks_min(last, i.K + PIECE);                                   \
            _Pragma("unroll") for (int l = 0; l < KS_TM; l++) f[l].name = ks_start_##monoid;  \
            STEPS(r, name, monoid, AHEAD) STEPS(r, name, monoid, 2) STEPS(r, name, monoid, 1) \
            _Pragma("unroll") for (int l = 0; l < KS_TM; l++)                                 \
                ks_gather_##monoid(whole[l], lost[l], f[l].name);                             \
        }                                                                                     \
        _Pragma("unroll") for (int l = 0; l < KS_TM; l++) f[l].name = whole[l];               \
    }

#define ROOT(r)                                                                              \
    KS_DEVICE void reduce_##r(const ks_args &x) {                                            \
        const int64_t columns = ks_columns_##r(x), across = ks_ceil<int64_t>(columns, KS_TM); \
        const int64_t all = ks_rows_##r(x) * across, stride = int64_t(gridDim.x) * blockDim.x; \
        for (int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; t < all; t += stride) { \
            ks_at i;                                                                         \
            i.M = t / across, i.N = (t - i.M * across) * KS_TM;                              \
            const int count = int(ks_min(columns - i.N, int64_t(KS_TM)));                    \
            ks_fields f[KS_TM] = {};                                                         \
            KS_FIELDS_##r(FIELD) ks_finish_##r<KS_TM>(x, i, count, f);                       \
        }                                                                                    \
    }
KS_ROOTS(ROOT)

extern "C" __global__ void __launch_bounds__(256) generic_reduce(const __grid_constant__ ks_args x) {
    ks_allow_next_launch();
    ks_wait_for_earlier_launch();
#undef ROOT
#define ROOT(r) reduce_##r(x);
    KS_ROOTS(ROOT)
}
