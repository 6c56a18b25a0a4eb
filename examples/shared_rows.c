// shared_rows: a few rows of the output share each piece of a row of B.
//
// Computes  D[m,n] = f(sum over k of A[m,k] * B[k,n])
// Idea      RM sums of one vector each stay in registers; a vector of B is read once for all of them.
// Params    RM  rows of D that share a row of B
// Threads   take RM rows each as they get free
// Scratch   none
// Traffic   B is read ceil(M/RM) times, A once for each vector of columns
// Edges     any extents, 0 included; any strides. Below the last row the last one is computed again and not stored.

#include "ks_generated.h"

static void shared(void *context, int64_t task) {
    const ks_args *x = context;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), last = ks_last_K(x, (ks_at){0});
    for (int64_t column = 0; column < n; column += KS_LANES) {
        const int64_t count = ks_least(KS_LANES, n - column);
        ks_v sums[KS_RM];
        for (int r = 0; r < KS_RM; r++) sums[r] = (ks_v){0};
        for (ks_at i = {.N = column}; i.K < last; i.K++) {
            const ks_v b = ks_B_v(x, i, count);
            for (int r = 0; r < KS_RM; r++) {
                i.M = ks_least(task * KS_RM + r, m - 1);
                sums[r] += ks_splat(ks_A(x, i)) * b;
            }
        }
        for (int r = 0; r < KS_RM && task * KS_RM + r < m; r++) {
            const ks_fields f = {.KS_RESULT = sums[r]};
            ks_finish(x, (ks_at){.M = task * KS_RM + r, .N = column}, count, &f);
        }
    }
}

void shared_rows(const ks_call *call) {
    ks_args x = ks_unpack(call);
    ks_parallel(call, ks_ceil(ks_extent_M(&x), KS_RM), shared, &x);
}
