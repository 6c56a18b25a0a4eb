// softmax/03_row_cluster: a row over the blocks of a cluster, each of which keeps a slab of it in registers.
//
// Computes  fields over each row in order; out = f(x, fields)
// Idea      Blocks put what they found of a field into the shared memory of all blocks of the cluster; after a barrier
//           of the cluster each combines the SPLIT values. A row may be SPLIT times as long as in 01.
// Params    SPLIT  blocks of a cluster, slabs of a row;  TK  elements that a thread keeps;  WK  threads of a block
// Launch    any grid of whole clusters, block WK, cluster SPLIT: clusters take rows in turn
// Shared    512 bytes
// Traffic   each row is read once and written once, where it fits; what does not fit is read once more for each field.
// Edges     any extents, 0 included: slabs may be empty; any strides; the output may be the input.

#include "ks_generated.h"
#include "cluster.cuh"
#include "cluster_exchange.cuh"
#include "kept.cuh"

template <int V>
KS_DEVICE void rows(const ks_args &x) {
    constexpr int Width = KS_WK;
    __shared__ ks_across_room room;
    __shared__ ks_acc given[2][KS_SPLIT];
    int turn = 0, exchanges = 0;
    const int64_t all = ks_rows(x), stride = gridDim.x / KS_SPLIT;
    for (int64_t row = blockIdx.x / KS_SPLIT; row < all; row += stride) {
        ks_at i;
        i.M = row, i.S = ks_cluster_rank();
        ks_stretch<V, Width> s;
        s.fetch(x, i, ks_first(x, i), ks_last(x, i), threadIdx.x);
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
        ks_put_all<V, Width>(x, i, f, s);
    }
}

extern "C" __global__ void __launch_bounds__(KS_WK) softmax_row_cluster(const __grid_constant__ ks_args x) {
    ks_wait_for_earlier_launch();
    ks_allow_next_launch();
    ks_cluster_sync();  // all blocks run before one writes into another's shared memory
    if (KS_VEC > 1 && ks_row_wide<KS_VEC>(x))
        rows<KS_VEC>(x);
    else
        rows<1>(x);
}
