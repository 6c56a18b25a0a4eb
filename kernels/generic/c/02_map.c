// generic/02_map: elementwise functions of arrays, over any axes.
//
// Computes  out[...] = f(in[...], ...); an array that lacks an axis is broadcast along it. Several outputs: one after
//           the other.
// Idea      A vector of elements along the last axis at a time; whatever f is, it comes from the generated header.
// Params    ROWS  rows (all axes but the last) in a task
// Threads   take tasks as they get free
// Scratch   none
// Traffic   each input is read once for each output that needs it, each output written once.
// Edges     any extents, 0 included; any strides.

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"

#define ROOT(r)                                                                                           \
    static void rows_##r(void *context, int64_t task) {                                                   \
        const ks_args *x = context;                                                                       \
        const int64_t columns = ks_columns_##r(x), last = ks_least(ks_rows_##r(x), (task + 1) * KS_ROWS); \
        const ks_fields f = {0};                                                                          \
        for (ks_at i = {.M = task * KS_ROWS}; i.M < last; i.M++) {                                        \
            for (i.N = 0; i.N + KS_LANES <= columns; i.N += KS_LANES) ks_finish_##r(x, i, KS_LANES, &f);  \
            if (i.N < columns) ks_finish_##r(x, i, columns - i.N, &f);                                    \
        }                                                                                                 \
    }
KS_ROOTS(ROOT)

void generic_map(const ks_call *call) {
    ks_args x = ks_unpack(call);
#undef ROOT
#define ROOT(r) ks_parallel(call, ks_ceil(ks_rows_##r(&x), KS_ROWS), rows_##r, &x);
    KS_ROOTS(ROOT)
}
