// softmax/03_row_online: maximum and sum in one pass over pieces of the row, then one that stores.
//
// Computes  m = max x, l = sum exp(x - m); out = f(x, m, l)
// Idea      A piece that does not move the maximum is added as it is; one that does multiplies what was added before by
//           exp(old m - new m). The row is read twice, not three times, and exp is taken twice.
// Params    ROWS  rows in a task;  KC  elements of a piece;  KU  vectors per turn of a loop
// Threads   take tasks as they get free
// Scratch   none
// Traffic   each row is read twice, written once.
// Edges     any extents, 0 included; any strides; the output may be the input.

#include "ks_generated.h"
#include "../../common/c/kernsearch.h"
#include "passes.h"

KS_INLINE void one_row(const ks_args *x, ks_at i, const int how) {
    const int64_t n = ks_columns(x);
    ks_v m = ks_splat(-KS_INFINITY), l = {0};
    ks_fields f = {0};
#define TERM(name, count) ks_term_##name(x, i, &f, ks_row_fetch(x, i, count, how))
    for (int64_t first = 0; first < n; first += KS_KC) {
        const int64_t last = ks_least(n, first + KS_KC);
        KS_PASS(m, max, first, last, TERM)
        f.m = ks_max(f.m, m);
        KS_PASS(l, sum, first, last, TERM)
        l = l * ks_exp_of_shift(m, f.m) + f.l;
        m = f.m;
    }
    f.m = m, f.l = l;
#define PUT(count) { ks_row_put(x, i, count, how, &f, ks_settled(x, i, &f, ks_row_fetch(x, i, count, how))); }
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

void softmax_row_online(const ks_call *call) {
    ks_args x = ks_unpack(call);
    ks_parallel(call, ks_ceil(ks_rows(&x), KS_ROWS), rows, &x);
}
