// gemm/03_split_k: each thread packs for itself; nobody waits for anybody. With or without split-K.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]), or one such sum for each slab of k.
// Idea      As 02, but the output is cut into rectangles, and a thread that takes one packs all that it needs of A and
//           B: more packing, no meeting of threads. A panel of B is packed right before it is first used, so that it
//           is still in the nearest cache then; a large B that is used by few rows never goes back to memory. With
//           slabs of k there are rectangles enough even where the output is small and k long; another kernel then adds
//           up the slabs.
// Params    MR NR  rows and columns of the register tile;  MC KC  block of A;  KC NC  block of B;  SPLIT  slabs, if any
// Knobs     KU  steps of k per turn of the loop
// Threads   take rectangles as they get free, smaller ones towards the end
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
    ks_jobs jobs;  // lines along the longer side of each output (slabs x batches)
    int64_t size;
    ks_t *packed, *partials;
} work;

// The first group of panels of B for the pass after the one at i, which goes on at `at`; it must not lie where this
// pass still works.
KS_INLINE ks_ahead next_pass(ks_at at, int64_t columns, int64_t last, int64_t each, ks_block_b *b) {
    if (at.K >= last || columns <= ks_group()) return (ks_ahead){0};
    const int64_t depth = ks_least(each, last - at.K);
    return (ks_ahead){at, ks_group(), depth, depth, b};
}

static void rectangle(const ks_args *x, ks_at i, int64_t rows, int64_t columns, ks_block_a *a, ks_block_b *b,
                      ks_t *partials) {
    const int64_t first = ks_first_K(x, i), last = ks_last_K(x, i);
    const int64_t top = i.M, bottom = i.M + rows, left = i.N, right = i.N + columns;
    const int64_t passes = first < last ? ks_ceil(last - first, KC) : 1, each = ks_ceil(last - first, passes);
    const int64_t high = ks_part(rows, ks_ceil(rows, MC), KS_MR), wide = ks_part(columns, ks_ceil(columns, NC), KS_NR);
    ks_passes p = ks_passes_into(x, (ks_at){.S = i.S, .B = i.B}, partials);
    for (i.N = left; i.N < right; i.N += wide) {
        const int64_t across = ks_least(wide, right - i.N);
        ks_ahead ahead = {0};
        for (int64_t pass = 0; pass < passes; pass++) {
            i.K = first + pass * each;
            i.M = top;
            const int64_t depth = ks_least(each, last - i.K);
            p.first = pass == 0;
            p.last = pass == passes - 1;
            if (ahead.steps == 0) ks_pack_b(x, i, ks_least(ks_group(), across), depth, b);
            for (; i.M < bottom; i.M += high) {
                const int64_t down = ks_least(high, bottom - i.M);
                ks_prepare_a(x, i, down, depth, a);
                if (i.M > top) {
                    ks_multiply_blocks(x, i, down, across, depth, a, b, &p);
                    continue;
                }
                ahead = (ks_ahead){0};
                const ks_at then = {.S = i.S, .B = i.B, .N = i.N, .K = i.K + each};
                if (rows <= high) ahead = next_pass(then, across, last, each, b);
                ks_pack_and_multiply(x, i, down, across, depth, a, b, &ahead, &p);
            }
        }
    }
}

static void rectangles(void *context, int64_t task) {
    work *w = context;
    const ks_args *x = &w->x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), slabs = ks_extent_S(x);
    ks_t *a = w->packed + task * w->size, *b = a + MC * ks_least(KC, ks_extent_K(x));
    int64_t first, lines;
    while ((lines = ks_take(&w->jobs, &first)) > 0) {
        const int64_t output = first / w->jobs.strip, place = first % w->jobs.strip;
        ks_at i = {.S = output % slabs, .B = output / slabs};
        *(m >= n ? &i.M : &i.N) = place;
        const int64_t rows = ks_least(m >= n ? lines : m, m - i.M), columns = ks_least(m >= n ? n : lines, n - i.N);
        rectangle(x, i, rows, columns, (ks_block_a *)a, (ks_block_b *)b, w->partials + i.B * m * n);
    }
}

void gemm_split_k(const ks_call *call) {
    work w = {.x = ks_unpack(call)};
    const ks_args *x = &w.x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), deep = ks_least(KC, ks_extent_K(x));
    if (m == 0 || n == 0) return;
    const int64_t outputs = ks_extent_S(x) * ks_extent_B(x), longer = m >= n ? m : n, unit = m >= n ? KS_MR : KS_NR;
    const int64_t threads = ks_threads_for(call, (double)m * n * ks_extent_K(x) * ks_extent_B(x));
    const int64_t each = ks_part(longer, ks_ceil(threads, outputs), unit);  // at most: there is work for every thread
    w.jobs = (ks_jobs){0, ks_part(longer, 1, unit), outputs, threads, unit, ks_least(m >= n ? MC : NC, each), each};
    w.size = (MC + ks_least(NC, ks_ceil(n, KS_NR) * KS_NR)) * deep;
    w.size = (w.size + 15) / 16 * 16;
    w.packed = ks_align(x->scratch);
    w.partials = ks_align(w.packed + threads * w.size);
    ks_parallel(call, threads, rectangles, &w);
}
