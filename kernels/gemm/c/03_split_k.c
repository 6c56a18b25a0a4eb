// gemm/03_split_k: each thread packs for itself; nobody waits for anybody. Also split-K.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]), or one such sum for each slab of k.
// Idea      As 02, but the output is cut into rectangles, and a thread that takes one packs all that it needs of A and
//           B: more packing, no meeting of threads. With slabs of k there are rectangles enough even where the output
//           is small and k long; another kernel then adds up the slabs.
// Params    MR NR  rows and columns of the register tile;  MC KC  block of A;  KC NC  block of B;  SPLIT  slabs, if any
// Knobs     KU  steps of k per turn of the loop
// Threads   take rectangles as they get free: one for each thread and output, or one for each slab if these are enough
// Scratch   for each thread a block of A and one of B; unfinished sums when K > KC and they cannot wait in the output.
// Traffic   as 02, and where an output is cut for several threads, along its longer side, each of them reads all of the
//           operand of the other side.
// Edges     any extents, 0 included; any strides. Slabs may be ragged or empty: those are sums of nothing, 0.

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"
#include "../../common/c/tile.h"
#include "blocks.h"

#define MC (KS_MC / KS_MR * KS_MR)
#define NC (KS_NC / KS_NR * KS_NR)
#define KC KS_KC

_Static_assert(KS_MC >= KS_MR, "MC is smaller than MR");
_Static_assert(KS_NC >= KS_NR, "NC is smaller than NR");

typedef struct {
    ks_args x;
    int64_t outputs, jobs;  // sums (slabs x batches), rectangles of each
    int64_t next, rows, columns, size;
    ks_t *packed, *partials;
} work;

static void rectangle(const ks_args *x, ks_at i, int64_t rows, int64_t columns, ks_block_a *a, ks_block_b *b,
                      ks_t *partials) {
    const int64_t first = ks_first_K(x, i), last = ks_last_K(x, i);
    const int64_t top = i.M, bottom = i.M + rows, left = i.N, right = i.N + columns;
    const int64_t passes = first < last ? ks_ceil(last - first, KC) : 1, each = ks_ceil(last - first, passes);
    const int64_t high = ks_part(rows, ks_ceil(rows, MC), KS_MR), wide = ks_part(columns, ks_ceil(columns, NC), KS_NR);
    ks_passes p = ks_passes_into(x, (ks_at){.S = i.S, .B = i.B}, partials);
    for (i.N = left; i.N < right; i.N += wide) {
        const int64_t across = ks_least(wide, right - i.N);
        for (int64_t pass = 0; pass < passes; pass++) {
            i.K = first + pass * each;
            i.M = top;
            const int64_t depth = ks_least(each, last - i.K);
            p.first = pass == 0;
            p.last = pass == passes - 1;
            for (; i.M < bottom; i.M += high) {
                const int64_t down = ks_least(high, bottom - i.M);
                ks_prepare_a(x, i, down, depth, a);
                ks_multiply_blocks(x, i, down, across, depth, a, b, i.M == top, &p);
            }
        }
    }
}

static void rectangles(void *context, int64_t task) {
    work *w = context;
    const ks_args *x = &w->x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), slabs = ks_extent_S(x);
    ks_t *a = w->packed + task * w->size, *b = a + MC * ks_least(KC, ks_extent_K(x));
    for (;;) {
        const int64_t job = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED), output = job / w->jobs;
        if (output >= w->outputs) return;
        ks_at i = {.S = output % slabs, .B = output / slabs};
        i.M = w->rows < m ? job % w->jobs * w->rows : 0;
        i.N = w->rows < m ? 0 : job % w->jobs * w->columns;
        const int64_t rows = ks_least(w->rows, m - i.M), columns = ks_least(w->columns, n - i.N);
        ks_t *partials = w->partials + i.B * m * n;
        if (rows > 0 && columns > 0) rectangle(x, i, rows, columns, (ks_block_a *)a, (ks_block_b *)b, partials);
    }
}

void gemm_split_k(const ks_call *call) {
    work w = {.x = ks_unpack(call)};
    const ks_args *x = &w.x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), deep = ks_least(KC, ks_extent_K(x));
    if (m == 0 || n == 0) return;
    w.outputs = ks_extent_S(x) * ks_extent_B(x);
    const int64_t threads = ks_threads_for(call, (double)m * n * ks_extent_K(x) * ks_extent_B(x));
    w.jobs = w.outputs >= threads ? 1 : ks_ceil(threads, w.outputs);
    w.rows = m >= n ? ks_part(m, w.jobs, KS_MR) : m;
    w.columns = m >= n ? n : ks_part(n, w.jobs, KS_NR);
    w.size = (MC + ks_least(NC, ks_ceil(n, KS_NR) * KS_NR)) * deep;
    w.size = (w.size + 15) / 16 * 16;
    w.packed = ks_align(x->scratch);
    w.partials = ks_align(w.packed + threads * w.size);
    ks_parallel(call, threads, rectangles, &w);
}
