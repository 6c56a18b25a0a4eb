// generic/03_reduce: sums and maxima over any axes, one after the other, then any function of them.
//
// Computes  for each field in order: field = sum or max over k of body(arrays, earlier fields); out = f(fields, ...)
// Idea      A vector of outputs along the last axis at a time. A body that needs an earlier field runs after that field
//           is complete, so running maxima need no rescaling: each field walks over k once more.
// Params    ROWS  rows (all axes of the output but the last) in a task
// Threads   take tasks as they get free; where there are fewer rows than threads, single vectors
// Scratch   none
// Traffic   what the bodies read, once for each field and output.
//           Long sums are added up in pieces, so that their error does not grow with their length.
// Edges     any extents, 0 included: an empty sum is 0, an empty maximum -inf; any strides.

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"
#include "../../common/c/rows.h"

#define PIECE 128  // steps that are added up before they are added to the rest

typedef struct {
    ks_args x;
    int64_t each;  // vectors in a task
} work;

#define FIELD(r, name, monoid)                                                                  \
    {                                                                                           \
        ks_v whole = ks_none_##monoid, lost = {0};                                              \
        const int64_t last = ks_last_K_##r(x, i);                                               \
        for (i.K = ks_first_K_##r(x, i); i.K < last;) {                                         \
            ks_v part = ks_none_##monoid;                                                       \
            for (const int64_t stop = ks_least(last, i.K + PIECE); i.K < stop; i.K++)           \
                part = ks_both_##monoid(part, ks_body_##r##_##name(x, i, count, &f));           \
            ks_gather_##monoid(&whole, &lost, part);                                            \
        }                                                                                       \
        f.name = whole;                                                                         \
    }

// Work is counted in vectors, over rows and columns together.
#define ROOT(r)                                                                         \
    KS_INLINE void element_##r(const ks_args *x, ks_at i, int64_t count) {              \
        ks_fields f = {0};                                                              \
        KS_FIELDS_##r(FIELD) ks_finish_##r(x, i, count, &f);                            \
    }                                                                                   \
    static void stretch_##r(void *context, int64_t task) {                              \
        const work *w = context;                                                        \
        const ks_args *x = &w->x;                                                       \
        const int64_t columns = ks_columns_##r(x), across = ks_ceil(columns, KS_LANES); \
        const int64_t last = ks_least(ks_rows_##r(x) * across, (task + 1) * w->each);   \
        for (int64_t v = task * w->each; v < last; v++) {                               \
            ks_at i = {.M = v / across, .N = v % across * KS_LANES};                    \
            if (columns - i.N >= KS_LANES)                                              \
                element_##r(x, i, KS_LANES);                                            \
            else                                                                        \
                element_##r(x, i, columns - i.N);                                       \
        }                                                                               \
    }
KS_ROOTS(ROOT)

void generic_reduce(const ks_call *call) {
    work w = {.x = ks_unpack(call)};
#undef ROOT
#define ROOT(r)                                                                                    \
    {                                                                                              \
        const int64_t rows = ks_rows_##r(&w.x), across = ks_ceil(ks_columns_##r(&w.x), KS_LANES);  \
        w.each = rows < call->threads ? 1 : KS_ROWS * across;                                      \
        if (rows * across > 0) ks_parallel(call, ks_ceil(rows * across, w.each), stretch_##r, &w); \
    }
    KS_ROOTS(ROOT)
}
