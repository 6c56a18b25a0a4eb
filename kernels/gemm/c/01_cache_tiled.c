// gemm/01_cache_tiled: reuse tiles of A and B while they are in the caches.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n])
// Idea      MC x NC sums stay in the caches while KC rows of B at a time pass by; each of those rows is used MC times
//           before it is dropped. The naive kernel used it once.
// Params    MC NC  rows and columns of a tile of sums;  KC  rows of B at a time
// Threads   take tiles of sums as they get free
// Scratch   a tile of sums for each thread
// Traffic   A is read ceil(N/NC) times from memory, B ceil(M/MC) times; sums go through the caches at every step.
// Edges     any extents, 0 included; any strides. Nothing is packed, so strided operands cost most here.

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"

_Static_assert(KS_NC % (KS_VECTOR_BYTES / sizeof(ks_t)) == 0, "NC is not a whole number of vectors");

typedef struct {
    ks_args x;
    int64_t down, across, tiles, next;
    ks_t *sums;
} work;

// sums[0:columns] += A[i.M, i.K : last] B[i.K : last, i.N : i.N + columns]
static void add_row(const ks_args *x, ks_at i, int64_t last, int64_t columns, ks_t *sums) {
    const int64_t start = i.N;
    for (; i.K < last; i.K++) {
        ks_v a = ks_splat(ks_A(x, i));
        ks_t *p = sums;
        int64_t left = columns;
        for (i.N = start; left >= KS_LANES; left -= KS_LANES, i.N += KS_LANES, p += KS_LANES)
            ks_store_all(p, ks_load_all(p) + a * ks_B_v(x, i, KS_LANES));
        if (left > 0) ks_store_all(p, ks_load_all(p) + a * ks_B_v(x, i, left));
    }
}

static void one_tile(const ks_args *x, ks_at i, int64_t rows, int64_t columns, ks_t *sums) {
    memset(sums, 0, KS_MC * KS_NC * sizeof(ks_t));
    const int64_t last = ks_last_K(x, i);
    for (i.K = ks_first_K(x, i); i.K < last; i.K += KS_KC) {
        for (int64_t r = 0; r < rows; r++) {
            ks_at at = i;
            at.M += r;
            add_row(x, at, ks_least(last, i.K + KS_KC), columns, sums + r * KS_NC);
        }
    }
    for (int64_t r = 0; r < rows; r++, i.M++) {
        for (int64_t c = 0; c < columns; c += KS_LANES) {
            ks_at at = {.S = i.S, .B = i.B, .M = i.M, .N = i.N + c};
            ks_fields f = {.KS_RESULT = ks_load_all(sums + r * KS_NC + c)};
            ks_finish(x, at, ks_least(KS_LANES, columns - c), &f);
        }
    }
}

static void tiles(void *context, int64_t task) {
    work *w = context;
    const ks_args *x = &w->x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), slabs = ks_extent_S(x);
    for (;;) {
        const int64_t tile = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);
        if (tile >= w->tiles) return;
        const int64_t batch = tile / (w->down * w->across), place = tile % (w->down * w->across);
        const int64_t row = place / w->across * KS_MC, column = place % w->across * KS_NC;
        const ks_at i = {.S = batch % slabs, .B = batch / slabs, .M = row, .N = column};
        one_tile(x, i, ks_least(KS_MC, m - i.M), ks_least(KS_NC, n - i.N), w->sums + task * KS_MC * KS_NC);
    }
}

void gemm_cache_tiled(const ks_call *call) {
    work w = {.x = ks_unpack(call)};
    w.down = ks_ceil(ks_extent_M(&w.x), KS_MC);
    w.across = ks_ceil(ks_extent_N(&w.x), KS_NC);
    w.tiles = w.down * w.across * ks_extent_B(&w.x) * ks_extent_S(&w.x);
    w.sums = ks_align(w.x.scratch);
    if (w.tiles > 0) ks_parallel(call, call->threads, tiles, &w);
}
