// generic/01_contraction: the textbook sum of products, over any axes.
//
// Computes  out[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]); each of b, m, n, k is any number of axes, of any stride.
// Idea      One row of the output after the other, WIDTH columns at a time: for each k, one element of A meets a
//           stretch of a row of B, and the sums wait in a small array.
// Params    ROWS  rows of the output in a task
// Threads   take tasks as they get free
// Scratch   none
// Traffic   A is read ceil(N/WIDTH) times, B once for each row of the output; nothing is packed or kept.
// Edges     any extents, 0 included: K = 0 gives f(0).

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"

#define WIDTH 256  // columns at a time: their sums stay in the first level cache
#define VECTORS (WIDTH / KS_LANES)

typedef struct {
    ks_args x;
    int64_t rows;
} work;

static void row_stretch(const ks_args *x, ks_at i, int64_t columns) {
    ks_v sums[VECTORS];
    for (int64_t j = 0; j * KS_LANES < columns; j++) sums[j] = (ks_v){0};
    const int64_t start = i.N, last = ks_last_K(x, i);
    for (i.K = ks_first_K(x, i); i.K < last; i.K++) {
        i.N = start;
        int64_t j = 0, left = columns;
        for (; left >= KS_LANES; j++, left -= KS_LANES, i.N += KS_LANES)
            sums[j] += ks_A_v(x, i, KS_LANES) * ks_B_v(x, i, KS_LANES);
        if (left > 0) sums[j] += ks_A_v(x, i, left) * ks_B_v(x, i, left);
    }
    i.N = start;
    for (int64_t j = 0, left = columns; left > 0; j++, left -= KS_LANES, i.N += KS_LANES) {
        ks_fields f = {.KS_RESULT = sums[j]};
        ks_finish(x, i, ks_least(left, KS_LANES), &f);
    }
}

static void rows(void *context, int64_t task) {
    const work *w = context;
    const ks_args *x = &w->x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), b = ks_extent_B(x);
    const int64_t last = ks_least(w->rows, (task + 1) * KS_ROWS);
    for (int64_t row = task * KS_ROWS; row < last; row++) {
        for (int64_t column = 0; column < n; column += WIDTH) {
            const ks_at i = {.S = row / m / b, .B = row / m % b, .M = row % m, .N = column};
            row_stretch(x, i, ks_least(WIDTH, n - column));
        }
    }
}

void generic_contraction(const ks_call *call) {
    work w = {.x = ks_unpack(call)};
    w.rows = ks_extent_S(&w.x) * ks_extent_B(&w.x) * ks_extent_M(&w.x);
    if (w.rows > 0 && ks_extent_N(&w.x) > 0) ks_parallel(call, ks_ceil(w.rows, KS_ROWS), rows, &w);
}
