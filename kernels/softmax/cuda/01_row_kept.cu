// softmax/01_row_kept: each row read once into registers, all fields computed there, the outputs stored once.
//
// Computes  fields over each row in order (m = max x, l = sum exp(x - m)); out = f(x, fields)
// Idea      WK threads share a row: a part of a warp, a warp, or several warps that meet at a barrier for each field.
//           Words of 16 bytes where all arrays are aligned to them, single elements else. The terms of the last field
//           take the row's place where the outputs want no more, so that exp is taken once.
// Params    BM  rows of a block, side by side;  TK  elements that a thread keeps;  WK  threads of a row, or WM rows of a
//           warp;  STREAM  cache policy
// Launch    any grid, block BM * WK: blocks take rows in turn
// Shared    256 bytes
// Traffic   each row is read once and written once, where it fits; what does not fit is read once more for each field.
// Edges     any extents, 0 included; any strides; the output may be the input.

#include "ks_generated.h"
#ifdef KS_WM
#define KS_WK (32 / KS_WM)
#endif
#include "kept.cuh"

static_assert(KS_BM * KS_WK <= 1024 && KS_BM * KS_WK % 32 == 0, "a block is no whole number of warps, at most 32");

template <int V>
KS_DEVICE void rows(const ks_args &x) {
    constexpr int Width = KS_WK;
    __shared__ ks_across_room room;
    int turn = 0;
    const int64_t all = ks_rows(x), columns = ks_columns(x), stride = int64_t(gridDim.x) * KS_BM;
    for (int64_t base = int64_t(blockIdx.x) * KS_BM; base < all; base += stride) {
        ks_at i;
        i.M = base + threadIdx.x / Width;
        const int64_t last = i.M < all ? columns : 0;
        ks_stretch<V, Width> s;
        s.fetch(x, i, 0, last, threadIdx.x % Width);
        ks_fields f;
#define FIELD(name, monoid, settle)                                                     \
    {                                                                                   \
        ks_acc a = ks_none_##monoid;                                                    \
        KS_OWN_TERMS(name, monoid, s, a, settle)                                        \
        f.name = ks_across<ks_monoid_##monoid, Width>(a, room, turn);                   \
    }
#define EARLY(name, monoid) FIELD(name, monoid, false)
#define LAST(name, monoid) FIELD(name, monoid, KS_SETTLES)
        KS_EARLY_FIELDS(EARLY)
        KS_LAST_FIELD(LAST)
        ks_put_all<V, Width>(x, i, f, s);
    }
}

extern "C" __global__ void __launch_bounds__(KS_BM * KS_WK) softmax_row_kept(const __grid_constant__ ks_args x) {
    ks_wait_for_earlier_launch();
    ks_allow_next_launch();
    if (KS_VEC > 1 && ks_row_wide<KS_VEC>(x))
        rows<KS_VEC>(x);
    else
        rows<1>(x);
}
