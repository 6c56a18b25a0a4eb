// softmax/02_row_streamed: as 01, with a row of each thread's own, from which the output is stored around the caches.
//
// Computes  fields over each row in order; out = f(x, fields)
// Idea      What is kept of a row lies in scratch, which stays in the caches, so the output's lines need not be fetched
//           before they are written.
// Params    ROWS  rows that a thread takes at a time;  KU  vectors per turn of a loop
// Threads   take rows as they get free
// Scratch   a row for each thread
// Traffic   each row is read once and written once; lines of the output are not read.
// Edges     any extents, 0 included; any strides; the output may be the input.

#include "ks_generated.h"
#include "../../common/c/kernsearch.h"
#include "passes.h"

typedef struct {
    ks_args x;
    int64_t next;
} work;

KS_INLINE void one_row(const ks_args *x, ks_at i, ks_t *row, const int how) {
    const int64_t n = ks_columns(x);
    ks_fields f = {0};
    (void)row;
#define TERM(name, count) ks_term_##name(x, i, &f, ks_row_fetch(x, i, count, how))
#define FIELD(name, monoid) KS_PASS(name, monoid, 0, n, TERM)
    KS_EARLY_FIELDS(FIELD)
#undef FIELD
#if KS_SETTLES
#define NOTED(name, count) ks_noted(row + i.N, TERM(name, count))
#define FIELD(name, monoid) KS_PASS(name, monoid, 0, n, NOTED)
#define KEPT(count) ks_from(ks_load_all(row + i.N))
#else
#define FIELD(name, monoid) KS_PASS(name, monoid, 0, n, TERM)
#define KEPT(count) ks_row_fetch(x, i, count, how)
#endif
    KS_LAST_FIELD(FIELD)
#define PUT(count) { ks_row_put(x, i, count, how, &f, KEPT(count)); }
    KS_EACH(0, n, PUT)
}

static void rows(void *context, int64_t slot) {
    work *w = context;
    const ks_args own = w->x, *x = &own;  // which no store can change: strides stay in registers
    const int64_t all = ks_rows(x), pitch = ks_ceil(ks_columns(x) + KS_LANES, 64) * 64;
    ks_t *row = ks_align(x->scratch) + slot * pitch;
    const int contiguous = ks_row_contiguous(x);
    for (;;) {
        const int64_t first = __atomic_fetch_add(&w->next, KS_ROWS, __ATOMIC_RELAXED);
        if (first >= all) break;
        const int64_t last = ks_least(all, first + KS_ROWS);
        for (ks_at i = {.M = first}; i.M < last; i.M++) {
            if (contiguous)
                one_row(x, i, row, KS_CONTIGUOUS | KS_STREAMED);
            else
                one_row(x, i, row, 0);
        }
    }
    ks_fence_streams(KS_STREAMED);
}

void softmax_row_streamed(const ks_call *call) {
    work w = {.x = ks_unpack(call)};
    ks_parallel(call, call->threads, rows, &w);
}
