// softmax/01_row_passes: a pass over the row for each field, and one that stores.
//
// Computes  fields over each row in order (m = max x, l = sum exp(x - m)); out = f(x, fields)
// Idea      A row stays in the caches from the first pass on. The terms of the last field wait in the output's place,
//           where it is of the accumulation's type and the output wants no more: then exp is taken once.
// Params    ROWS  rows in a task;  KU  vectors per turn of a loop
// Threads   take tasks as they get free
// Scratch   none
// Traffic   each row comes from memory once and goes there once, while it fits a cache.
// Edges     any extents, 0 included; any strides; the output may be the input.

#include "ks_generated.h"
#include "../../common/c/kernsearch.h"
#include "passes.h"

KS_INLINE void one_row(const ks_args *x, ks_at i, const int how) {
    const int64_t n = ks_columns(x);
    ks_fields f = {0};
#define TERM(name, count) ks_term_##name(x, i, &f, ks_row_fetch(x, i, count, how))
#define FIELD(name, monoid) KS_PASS(name, monoid, 0, n, TERM)
    KS_EARLY_FIELDS(FIELD)
#undef FIELD
#if KS_STASHES
#define STASHED(name, count) ks_stashed(x, i, count, how, TERM(name, count))
#define FIELD(name, monoid) KS_PASS(name, monoid, 0, n, STASHED)
#define KEPT(count) ks_row_stashed(x, i, count, how)
#else
#define FIELD(name, monoid) KS_PASS(name, monoid, 0, n, TERM)
#define KEPT(count) ks_settled(x, i, &f, ks_row_fetch(x, i, count, how))
#endif
    KS_LAST_FIELD(FIELD)
#define PUT(count) { ks_row_put(x, i, count, how, &f, KEPT(count)); }
    KS_EACH(0, n, PUT)
}

static void rows(void *context, int64_t task) {
    const ks_args own = *(const ks_args *)context, *x = &own;  // which no store can change: strides stay in registers
    const int64_t last = ks_least(ks_rows(x), (task + 1) * KS_ROWS);
    const int contiguous = ks_row_contiguous(x);
    for (ks_at i = {.M = task * KS_ROWS}; i.M < last; i.M++) {
        if (contiguous)
            one_row(x, i, KS_CONTIGUOUS);
        else
            one_row(x, i, 0);
    }
}

void softmax_row_passes(const ks_call *call) {
    ks_args x = ks_unpack(call);
    ks_parallel(call, ks_ceil(ks_rows(&x), KS_ROWS), rows, &x);
}
