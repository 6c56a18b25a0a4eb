// generic/02_map: elementwise functions of arrays, over any axes.
//
// Computes  out[...] = f(in[...], ...); an array that lacks an axis is broadcast along it. Several outputs: one after
//           the other.
// Idea      A vector of elements along the last axis at a time; whatever f is, it comes from the generated header.
// Params    none
// Threads   rows (all axes but the last), in equal stretches
// Scratch   none
// Traffic   each input is read once for each output that needs it, each output written once.
// Edges     any extents, 0 included; any strides.

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"

typedef struct {
    ks_args x;
    int64_t tasks;
} work;

#define ROOT(r)                                                                                          \
    static void rows_##r(void *context, int64_t task) {                                                  \
        const work *w = context;                                                                         \
        const ks_args *x = &w->x;                                                                        \
        const int64_t count = ks_rows_##r(x), columns = ks_columns_##r(x);                               \
        const int64_t each = ks_ceil(count, w->tasks), last = ks_least(count, (task + 1) * each);        \
        const ks_fields f = {0};                                                                         \
        for (ks_at i = {.M = task * each}; i.M < last; i.M++) {                                          \
            for (i.N = 0; i.N + KS_LANES <= columns; i.N += KS_LANES) ks_finish_##r(x, i, KS_LANES, &f); \
            if (i.N < columns) ks_finish_##r(x, i, columns - i.N, &f);                                   \
        }                                                                                                \
    }
KS_ROOTS(ROOT)

void generic_map(const ks_call *call) {
    work w = {.x = ks_unpack(call), .tasks = call->threads};
#undef ROOT
#define ROOT(r) ks_parallel(call, w.tasks, rows_##r, &w);
    KS_ROOTS(ROOT)
}
