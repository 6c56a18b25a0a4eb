// softmax/02_row_cluster: a row over the blocks of a cluster, each of which keeps a slab of it.
//
// Computes  fields over each row in order; out = f(x, fields)
// Idea      Warps send what they found into the shared memory of all blocks of the cluster, each of which combines the
//           same values in the same order. A row may be SPLIT times as long as in 01.
// Params    SPLIT  blocks of a cluster, slabs of a row;  TK  elements that a thread keeps;  WK  threads of a block;
//           STREAM, AHEAD, SHARED, LIFT  as in 01
// Launch    any grid of whole clusters, block WK, cluster SPLIT: clusters take rows in turn
// Shared    16 bytes for each warp of the cluster; with AHEAD or SHARED, 16 for each word that is kept, and
//           again with both
// Traffic   each row is read once and written once, where it fits; what does not fit is read once more for each field.
// Edges     any extents, 0 included: slabs may be empty; any strides; the output may be the input.

#include "ks_generated.h"
#include "cluster_exchange.cuh"
#include "kept.cuh"

template <int V, int Most>
KS_DEVICE void rows(const ks_args &x) {
    constexpr int Width = KS_WK;
    typedef ks_in_cluster<ks_found, KS_SPLIT, Width> together;
    __shared__ typename together::room room;
    together threads{room, ks_cluster_rank()};
    threads.open();
    const int64_t all = ks_rows(x), stride = gridDim.x / KS_SPLIT;
    ks_stretch<V, Width, Most> s;
    ks_at i;
    i.S = threads.rank;
    s.place(ks_first(x, i), ks_last(x, i), threadIdx.x);
    s.ask(x, i, blockIdx.x / KS_SPLIT);
    for (i.M = blockIdx.x / KS_SPLIT; i.M < all; i.M += stride) {
        s.fetch(x, i);
        s.ask(x, i, i.M + stride);
        ks_fields f, kept;
        ks_fields_of(x, i, s, threads, f, kept);
        ks_put_all(x, i, f, kept, s);
    }
}

extern "C" __global__ void __launch_bounds__(KS_WK, ks_blocks_for(KS_WK))
    softmax_row_cluster(const __grid_constant__ ks_args x) {
    ks_wait_for_earlier_launch();
    ks_allow_next_launch();
    KS_BY_WIDTH(rows, x)
}
