// softmax/03_row_online: maximum and sum in one pass over the row, then one that stores.
//
// Computes  m = max x, l = sum exp(x - m); out = f(x, m, l)
// Idea      A thread carries its own m and l along and multiplies l by exp(old m - new m) where a turn raises m; the
//           threads of a row combine theirs in the same way. The second pass finds the row in the second-level cache
//           while few rows are under way, and exp is taken twice.
// Params    BK  elements of a turn: of all threads of a row;  WK  threads of a block
// Launch    any grid, block WK: blocks take rows in turn
// Shared    256 bytes
// Traffic   each row is read twice, written once.
// Edges     any extents, 0 included; any strides; the output may be the input.

#include "ks_generated.h"
#include "online.cuh"

static_assert(KS_BK % (KS_WK * KS_VEC) == 0, "a turn is no whole number of words of each thread");

template <int V, int Most>
KS_DEVICE void rows(const ks_args &x) {
    constexpr int Width = KS_WK, words = KS_BK / (KS_WK * V);
    typedef ks_in_block<ks_pair, Width> together;
    __shared__ typename together::room room;
    together threads{room};
    const int64_t all = ks_rows(x), columns = ks_columns(x), step = int64_t(Width) * V;
    for (int64_t row = blockIdx.x; row < all; row += gridDim.x) {
        ks_at i;
        i.M = row;
        ks_state own;
        for (int64_t first = threadIdx.x * V; first < columns; first += KS_BK) {
            const int count = int(ks_min(ks_ceil<int64_t>(columns - first, step), int64_t(words)));
            ks_kept<V> kept[words];
#pragma unroll
            for (int k = 0; k < words; k++) {
                i.N = first + k * step;
                if (k < count) ks_row_fetch<V>(x, i, kept[k], ks_direct());
            }
            i.N = first;
            ks_take_in<false>(x, i, step, count, kept, own, false);
        }
        const ks_pair found = threads.template over<ks_online>(ks_pair{own.m, own.l});
        ks_fields f;
        f.m = found.m, f.l = found.l;
        for (i.N = threadIdx.x * V; i.N < columns; i.N += step) {
            ks_kept<V> kept;
            ks_row_fetch<V>(x, i, kept, ks_direct());
            if (KS_SETTLES) {
                ks_acc term[V];
                ks_term_l<V>(x, i, f, kept, term);
                ks_row_settle<V>(kept, term);
            }
            ks_row_put<V>(x, i, f, kept);
        }
    }
}

extern "C" __global__ void __launch_bounds__(KS_WK) softmax_row_online(const __grid_constant__ ks_args x) {
    ks_wait_for_earlier_launch();
    ks_allow_next_launch();
    KS_BY_WIDTH(rows, x)
}
