// generic/04_spread: partial results of slabs are combined for each row, then spread over all columns of it.
//
// Computes  for each field in order: field = sum or max over the slabs of body; out[row, column] = f(fields, ...)
// Idea      A task has some columns of one row and combines that row's slabs itself: they are few.
// Params    COLUMNS  columns in a task
// Threads   take tasks as they get free
// Scratch   none
// Traffic   what the bodies read once a task, the rest once.
// Edges     any extents, 0 included; any strides.

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"

#define ks_start_sum ((ks_v){0})
#define ks_start_max ks_splat(-KS_INFINITY)
#define ks_more_sum(a, b) ((a) + (b))
#define ks_more_max(a, b) ks_max(a, b)

#define FIELD(r, name, monoid)                                         \
    f.name = ks_start_##monoid;                                        \
    for (i.K = ks_first_K_##r(x, i); i.K < ks_last_K_##r(x, i); i.K++) \
        f.name = ks_more_##monoid(f.name, ks_body_##r##_##name(x, i, KS_LANES, &f));

static void piece(void *context, int64_t task) {
    const ks_args *x = context;
    const int64_t columns = ks_columns_0(x), across = ks_ceil(columns, KS_COLUMNS);
    ks_at i = {.M = task / across, .N = task % across * KS_COLUMNS};
    const int64_t last = ks_least(columns, i.N + KS_COLUMNS);
    ks_fields f = {0};
    KS_FIELDS_0(FIELD)
    for (; i.N + KS_LANES <= last; i.N += KS_LANES) ks_finish_0(x, i, KS_LANES, &f);
    if (i.N < last) ks_finish_0(x, i, last - i.N, &f);
}

void generic_spread(const ks_call *call) {
    ks_args x = ks_unpack(call);
    const int64_t across = ks_ceil(ks_columns_0(&x), KS_COLUMNS);
    ks_parallel(call, ks_rows_0(&x) * across, piece, &x);
}
