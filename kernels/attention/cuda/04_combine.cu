// attention/04_combine: the states of slabs brought together, many of them read at once.
//
// Computes  m = max over s of m_s;  l, o = sum over s of l_s, o_s, each carried from m_s to m;  out = f(m, l, o)
// Idea      LANES neighbouring threads share TM neighbours of the output, and deal out the slabs: as many loads are under
//           way, and a field takes one trip to memory and a few shuffles, where a thread that walks along the slabs by
//           itself takes as many trips as it has steps.
// Params    TM  neighbours of the output of a thread;  Knobs  LANES  threads that share them, a power of two up to 32
// Launch    any grid; block 256: groups of threads take stretches in turn
// Shared    none
// Traffic   what the bodies read, once for each field and output
// Edges     any extents and strides; one slab at least. Each field takes one turn at least, so that what a row's several
//           axes take to be told apart, divisions, is computed once for all turns of all fields.
#include "ks_generated.h"

static_assert(KS_LANES >= 1 && KS_LANES <= 32 && (KS_LANES & (KS_LANES - 1)) == 0, "LANES is no power of two up to 32");

constexpr int TM = KS_TM, LANES = KS_LANES, THREADS = 256, TOGETHER = 4;  // slabs of a lane whose loads go together

#define ks_start_sum ks_acc(0)
#define ks_start_max (-KS_INFINITY)
#define ks_more_sum(a, b) ((a) + (b))
#define ks_more_max(a, b) ks_max(a, b)

#define FIELD(r, name, monoid)                                                                          \
    {                                                                                                   \
        const int64_t last = ks_last_K_##r(x, i);                                                       \
        ks_acc own[TM];                                                                                 \
        _Pragma("unroll") for (int l = 0; l < TM; l++) own[l] = ks_start_##monoid;                      \
        int64_t from = ks_first_K_##r(x, i); /* the same in all lanes */                                \
        do {                                                                                            \
            ks_acc v[TOGETHER][TM];                                                                     \
            _Pragma("unroll") for (int k = 0; k < TOGETHER; k++) {                                      \
                ks_at at = i;                                                                           \
                at.K = ks_min(from + k * LANES + lane, last - 1);                                       \
                ks_body_##r##_##name<TM>(x, at, count, f, v[k]);                                        \
            }                                                                                           \
            _Pragma("unroll") for (int k = 0; k < TOGETHER; k++)                                        \
                if (from + k * LANES + lane < last)                                                     \
                    _Pragma("unroll") for (int l = 0; l < TM; l++)                                      \
                        own[l] = ks_more_##monoid(own[l], v[k][l]);                                     \
            from += TOGETHER * LANES;                                                                   \
        } while (from < last);                                                                          \
        _Pragma("unroll") for (int gap = 1; gap < LANES; gap *= 2)                                      \
            _Pragma("unroll") for (int l = 0; l < TM; l++)                                              \
                own[l] = ks_more_##monoid(own[l], __shfl_xor_sync(0xFFFFFFFF, own[l], gap));            \
        _Pragma("unroll") for (int l = 0; l < TM; l++) f[l].name = own[l];                              \
    }

#define ROOT(r)                                                                                         \
    KS_DEVICE void combine_##r(const ks_args &x) {                                                      \
        const int64_t columns = ks_columns_##r(x), across = ks_ceil<int64_t>(columns, TM);              \
        const int64_t all = ks_rows_##r(x) * across;                                                    \
        const int lane = threadIdx.x % LANES;                                                           \
        for (int64_t first = int64_t(blockIdx.x) * (THREADS / LANES); first < all;                      \
             first += int64_t(gridDim.x) * (THREADS / LANES)) {                                         \
            const int64_t stretch = first + threadIdx.x / LANES, t = ks_min(stretch, all - 1);          \
            ks_at i;                                                                                    \
            i.M = t / across, i.N = (t - i.M * across) * TM;                                            \
            const int count = int(ks_min(columns - i.N, int64_t(TM)));                                  \
            ks_fields f[TM] = {};                                                                       \
            KS_FIELDS_##r(FIELD) if (stretch == t && lane == 0) ks_finish_##r<TM>(x, i, count, f);      \
        }                                                                                               \
    }
KS_ROOTS(ROOT)

extern "C" __global__ void __launch_bounds__(THREADS) attention_combine(const __grid_constant__ ks_args x) {
    ks_allow_next_launch();
    ks_wait_for_earlier_launch();
#undef ROOT
#define ROOT(r) combine_##r(x);
    KS_ROOTS(ROOT)
}
