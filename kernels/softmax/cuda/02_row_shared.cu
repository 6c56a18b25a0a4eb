// softmax/02_row_shared: as 01, a row in shared memory, which holds longer ones.
//
// Computes  fields over each row in order; out = f(x, fields)
// Idea      A block reads its row once into shared memory, a few words a thread at a time, adds up or compares from
//           there, and stores. Each thread goes back to its own words only, so there is no barrier but those of fields.
// Params    KEEP  elements of a row that are kept;  WK  threads of a block;  KU  words under way
// Launch    any grid, block WK: blocks take rows in turn
// Shared    KEEP * bytes of the statistics' type * operands, and 256 bytes
// Traffic   each row is read once and written once, where it fits; what does not fit is read once more for each field.
// Edges     any extents, 0 included; any strides; the output may be the input.

#include "ks_generated.h"
#include "across.cuh"

extern __shared__ __align__(16) char ks_dynamic[];

#define KS_TERM_OF(name, monoid) ks_term_##name

template <int V>
KS_DEVICE void rows(const ks_args &x) {
    constexpr int Width = KS_WK, places = KS_KEEP / V;
    __shared__ ks_across_room room;
    ks_kept<V> *kept = reinterpret_cast<ks_kept<V> *>(ks_dynamic);
    int turn = 0;
    const int64_t all = ks_rows(x), columns = ks_columns(x);
    const int64_t words = ks_ceil<int64_t>(columns, V), held = ks_min(words, int64_t(places));
    for (int64_t row = blockIdx.x; row < all; row += gridDim.x) {
        ks_at i;
        i.M = row;
        for (int64_t w = threadIdx.x; w < held; w += KS_KU * Width) {
            ks_kept<V> some[KS_KU];
#pragma unroll
            for (int u = 0; u < KS_KU; u++) {
                const int64_t at = w + u * Width;
                i.N = (at < held ? at : w) * V;
                ks_row_fetch<V>(x, i, some[u]);
            }
#pragma unroll
            for (int u = 0; u < KS_KU; u++)
                if (w + u * Width < held) kept[w + u * Width] = some[u];
        }
        ks_fields f;
#define FIELD(name, monoid, settle)                                                     \
    {                                                                                   \
        ks_acc a = ks_none_##monoid;                                                    \
        for (int64_t w = threadIdx.x; w < words; w += Width) {                          \
            ks_kept<V> one;                                                             \
            ks_acc term[V];                                                             \
            i.N = w * V;                                                                \
            if (w < held)                                                               \
                one = kept[w];                                                          \
            else                                                                        \
                ks_row_fetch<V>(x, i, one);                                             \
            ks_term_##name<V>(x, i, f, one, term);                                      \
            _Pragma("unroll") for (int l = 0; l < V; l++) a = ks_both_##monoid(a, term[l]); \
            if (settle && w < held) {                                                   \
                ks_row_settle<V>(one, term);                                            \
                kept[w] = one;                                                          \
            }                                                                           \
        }                                                                               \
        f.name = ks_across<ks_monoid_##monoid, Width>(a, room, turn);                   \
    }
#define EARLY(name, monoid) FIELD(name, monoid, false)
#define LAST(name, monoid) FIELD(name, monoid, KS_SETTLES)
        KS_EARLY_FIELDS(EARLY)
        KS_LAST_FIELD(LAST)
        for (int64_t w = threadIdx.x; w < words; w += Width) {
            ks_kept<V> one;
            i.N = w * V;
            if (w < held) {
                one = kept[w];
            } else {
                ks_row_fetch<V>(x, i, one);
                if (KS_SETTLES) {
                    ks_acc term[V];
                    KS_LAST_FIELD(KS_TERM_OF)<V>(x, i, f, one, term);
                    ks_row_settle<V>(one, term);
                }
            }
            ks_row_put<V>(x, i, f, one);
        }
    }
}

extern "C" __global__ void __launch_bounds__(KS_WK) softmax_row_shared(const __grid_constant__ ks_args x) {
    ks_wait_for_earlier_launch();
    ks_allow_next_launch();
    if (KS_VEC > 1 && ks_row_wide<KS_VEC>(x))
        rows<KS_VEC>(x);
    else
        rows<1>(x);
}
