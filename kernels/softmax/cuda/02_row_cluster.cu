// softmax/02_row_cluster: a row over the blocks of a cluster, each of which keeps a slab of it.
//
// Computes  fields over each row in order; out = f(x, fields)
// Idea      Blocks put what they found of a field into the shared memory of all blocks of the cluster; after a barrier
//           of the cluster each combines the SPLIT values. A row may be SPLIT times as long as in 01.
// Params    SPLIT  blocks of a cluster, slabs of a row;  TK  elements that a thread keeps;  WK  threads of a block;
//           STREAM, AHEAD, SHARED  as in 01
// Launch    any grid of whole clusters, block WK, cluster SPLIT: clusters take rows in turn
// Shared    512 bytes; with AHEAD or SHARED, 16 for each word that is kept
// Traffic   each row is read once and written once, where it fits; what does not fit is read once more for each field.
// Edges     any extents, 0 included: slabs may be empty; any strides; the output may be the input.

#include "ks_generated.h"
#include "cluster.cuh"
#include "cluster_exchange.cuh"
#include "kept.cuh"

template <int V, int Most>
KS_DEVICE void rows(const ks_args &x) {
    constexpr int Width = KS_WK;
    __shared__ ks_across_room room;
    __shared__ ks_acc given[2][KS_SPLIT];
    int turn = 0, exchanges = 0;
    const int64_t all = ks_rows(x), stride = gridDim.x / KS_SPLIT;
    ks_stretch<V, Width, Most> s;
    ks_at i;
    i.S = ks_cluster_rank();
    s.place(ks_first(x, i), ks_last(x, i), threadIdx.x);
    s.ask(x, i, blockIdx.x / KS_SPLIT);
    for (i.M = blockIdx.x / KS_SPLIT; i.M < all; i.M += stride) {
        s.fetch(x, i);
        s.ask(x, i, i.M + stride);
        ks_fields f;
#define FIELD(name, monoid, settle)                                                     \
    {                                                                                   \
        ks_acc a = ks_none_##monoid;                                                    \
        KS_OWN_TERMS(name, monoid, s, a, settle)                                        \
        a = ks_across<ks_monoid_##monoid, Width>(a, room, turn);                        \
        ks_acc *mine = given[exchanges++ & 1];                                          \
        if (threadIdx.x < KS_SPLIT) ks_cluster_put(mine + i.S, threadIdx.x, a);         \
        ks_cluster_exchange();                                                          \
        f.name = mine[0];                                                               \
        _Pragma("unroll") for (int b = 1; b < KS_SPLIT; b++) f.name = ks_both_##monoid(f.name, mine[b]); \
    }
#define EARLY(name, monoid) FIELD(name, monoid, false)
#define LAST(name, monoid) FIELD(name, monoid, KS_SETTLES)
        KS_EARLY_FIELDS(EARLY)
        KS_LAST_FIELD(LAST)
        ks_put_all(x, i, f, s);
    }
}

extern "C" __global__ void __launch_bounds__(KS_WK, ks_blocks_for(KS_WK))
    softmax_row_cluster(const __grid_constant__ ks_args x) {
    ks_wait_for_earlier_launch();
    ks_allow_next_launch();
    ks_cluster_sync();  // all blocks run before one writes into another's shared memory
    KS_BY_WIDTH(rows, x)
}
