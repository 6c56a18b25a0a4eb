// transpose/01_naive: rows of the output, one after the other.
//
// Computes  Y[n,m] = X[m,n], bit for bit
// Idea      none: the output is written as it lies, and the input is read down its columns, so that a line of it is
//           fetched for one element, and again for the next if a column is longer than the caches.
// Params    NC  rows of the output in a task
// Threads   take tasks as they get free
// Scratch   none
// Traffic   X is read once by elements, and up to once a line for each of them; Y is written once.
// Edges     any extents, 0 included; any strides.

#include "ks_generated.h"
#include "../../common/c/kernsearch.h"

static void rows(void *context, int64_t task) {
    const ks_args *x = context;
    const int64_t m = ks_extent_M(x), last = ks_least(ks_extent_N(x), (task + 1) * KS_NC);
    const int64_t apart = ks_step_X_M(x), step = ks_step_out_M(x);
    for (ks_at i = {.N = task * KS_NC}; i.N < last; i.N++) {
        const KS_TYPE_X *from = ks_at_X(x, i);
        KS_TYPE_X *to = ks_at_out(x, i);
        for (int64_t k = 0; k < m; k++) to[k * step] = from[k * apart];
    }
}

void transpose_naive(const ks_call *call) {
    ks_args x = ks_unpack(call);
    ks_parallel(call, ks_ceil(ks_extent_N(&x), KS_NC), rows, &x);
}
