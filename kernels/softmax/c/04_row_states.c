// softmax/04_row_states: the fields of each row, or of each slab of it, to memory.
//
// Computes  fields over each slab of each row in order (m = max x, l = sum exp(x - m))
// Idea      A pass a field. With slabs, threads share a row, and what they found is combined by the next kernel.
// Params    ROWS  slabs of rows in a task;  VK  vectors side by side;  SPLIT  slabs of a row
// Threads   take tasks as they get free
// Scratch   none
// Traffic   each row is read once, while a slab fits a cache.
// Edges     any extents, 0 included: slabs may be empty; any strides.

#include "ks_generated.h"
#include "../../common/c/kernsearch.h"
#define KS_KU KS_VK
#include "passes.h"

KS_INLINE void one_slab(const ks_args *x, ks_at i, const int how) {
    const int64_t first = ks_first(x, i), last = ks_last(x, i);
    ks_fields f = {0};
#define TERM(name, count) ks_term_##name(x, i, &f, ks_row_fetch(x, i, count, how))
#define FIELD(name, monoid) KS_PASS(name, monoid, first, last, TERM)
    KS_EARLY_FIELDS(FIELD)
    KS_LAST_FIELD(FIELD)
    ks_row_state(x, i, &f);
}

static void slabs(void *context, int64_t task) {
    const ks_args own = *(const ks_args *)context, *x = &own;  // which no store can change: strides stay in registers
    const int64_t last = ks_least(ks_rows(x) * ks_slabs(x), (task + 1) * KS_ROWS);
    const int contiguous = ks_row_contiguous(x);
    for (int64_t slab = task * KS_ROWS; slab < last; slab++) {
        const ks_at i = {.M = slab / ks_slabs(x), .S = slab % ks_slabs(x)};
        if (contiguous)
            one_slab(x, i, KS_CONTIGUOUS);
        else
            one_slab(x, i, 0);
    }
}

void softmax_row_states(const ks_call *call) {
    ks_args x = ks_unpack(call);
    ks_parallel(call, ks_ceil(ks_rows(&x) * ks_slabs(&x), KS_ROWS), slabs, &x);
}
