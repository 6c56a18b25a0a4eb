// softmax/01_row_kept: each row read once, all fields computed from what is kept of it, the outputs stored once.
//
// Computes  fields over each row in order (m = max x, l = sum exp(x - m)); out = f(x, fields)
// Idea      WK threads share a row: a part of a warp, a warp, or several warps that meet at a barrier, once for a
//           maximum and a sum that refers to it.
//           Words of 16 bytes where all arrays are aligned to them, single elements else. In registers the terms of
//           the last field take the row's place where the outputs want no more, so that exp is taken once; in shared
//           memory the row stays as it was read, in half the room for 16-bit elements, so more rows are under way.
// Params    BM  rows of a block, side by side;  TK  elements that a thread keeps;  WK  threads of a row, or WM rows of a
//           warp;  STREAM  cache policy;  AHEAD  1: the next row is on its way to shared memory meanwhile;
//           SHARED  1: the row is kept in shared memory;  LIFT  1: exponentials times 2^16 (lifted.cuh)
// Launch    any grid, block BM * WK: blocks take rows in turn
// Shared    256 bytes; with AHEAD or SHARED, 16 for each word that is kept, and again with both
// Traffic   each row is read once and written once, where it fits; what does not fit is read once more for each field.
// Edges     any extents, 0 included; any strides; the output may be the input.

#include "ks_generated.h"
#ifdef KS_WM
#define KS_WK (32 / KS_WM)
#endif
#include "kept.cuh"

static_assert(KS_BM * KS_WK <= 1024 && KS_BM * KS_WK % 32 == 0, "a block is no whole number of warps, at most 32");

template <int V, int Most>
KS_DEVICE void rows(const ks_args &x) {
    constexpr int Width = KS_WK;
    typedef ks_in_block<ks_found, Width> together;
    __shared__ typename together::room room;
    together threads{room};
    const int64_t all = ks_rows(x), columns = ks_columns(x), stride = int64_t(gridDim.x) * KS_BM;
    ks_stretch<V, Width, Most> s;
    ks_at i;
    i.M = int64_t(blockIdx.x) * KS_BM + threadIdx.x / Width;
    s.place(0, i.M < all ? columns : 0, threadIdx.x % Width);
    s.ask(x, i, i.M);
    for (int64_t base = int64_t(blockIdx.x) * KS_BM; base < all; base += stride) {
        i.M = base + threadIdx.x / Width;
        if (KS_BM > 1) s.place(0, i.M < all ? columns : 0, threadIdx.x % Width);
        s.fetch(x, i);
        s.ask(x, i, i.M + stride);
        ks_fields f, kept;
        ks_fields_of(x, i, s, threads, f, kept);
        ks_put_all(x, i, f, kept, s);
    }
}

extern "C" __global__ void __launch_bounds__(KS_BM * KS_WK, ks_blocks_for(KS_BM * KS_WK))
    softmax_row_kept(const __grid_constant__ ks_args x) {
    ks_wait_for_earlier_launch();
    ks_allow_next_launch();
    KS_BY_WIDTH(rows, x)
}
