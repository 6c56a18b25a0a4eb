// softmax/04_row_states: the fields of each row, or of each slab of it, to memory.
//
// Computes  fields over each slab of each row in order (m = max x, l = sum exp(x - m))
// Idea      As 01 up to the fields. With slabs, blocks share a row, and the next kernel combines what they found.
// Params    TK  elements that a thread keeps;  WK  threads of a block;  SPLIT  slabs of a row
// Launch    any grid, block WK: blocks take slabs in turn
// Shared    256 bytes
// Traffic   each row is read once, where a slab fits; what does not fit is read once more for each field.
// Edges     any extents, 0 included: slabs may be empty; any strides.

#include "ks_generated.h"
#include "kept.cuh"

template <int V, int Most>
KS_DEVICE void slabs(const ks_args &x) {
    constexpr int Width = KS_WK;
    typedef ks_in_block<ks_found, Width> together;
    __shared__ typename together::room room;
    together threads{room};
    const int64_t all = ks_rows(x) * ks_slabs(x);
    for (int64_t slab = blockIdx.x; slab < all; slab += gridDim.x) {
        ks_at i;
        i.M = slab / ks_slabs(x), i.S = slab - i.M * ks_slabs(x);
        ks_stretch<V, Width, Most> s;
        s.place(ks_first(x, i), ks_last(x, i), threadIdx.x);
        s.fetch(x, i);
        ks_fields f, kept;
        ks_fields_of(x, i, s, threads, f, kept);
        if (threadIdx.x == 0) ks_row_state(x, i, f);
    }
}

extern "C" __global__ void __launch_bounds__(KS_WK, ks_blocks_for(KS_WK))
    softmax_row_states(const __grid_constant__ ks_args x) {
    ks_wait_for_earlier_launch();
    ks_allow_next_launch();
    KS_BY_WIDTH(slabs, x)
}
