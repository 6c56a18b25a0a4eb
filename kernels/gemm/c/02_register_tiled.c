// gemm/02_register_tiled: blocks, a tile of sums in registers, all threads.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]), or one such sum for each slab of k.
// Idea      MR x NR sums live in vector registers for KC steps. A block of A (MC x KC) waits in the second level
//           cache, a block of B (KC x NC) in the third, both copied into the order in which the tile reads them; the
//           next panel of B is fetched while the last one is at work. Copying pays when a block is used often; with
//           KS_UNPACKED_A or KS_UNPACKED_B the tile reads that operand where it is.
// Params    MR NR  rows and columns of the register tile;  MC KC  block of A;  KC NC  block of B
// Knobs     KU  steps of k per turn of the loop
// Threads   first pack the block of B together, then take blocks of rows as they get free, smaller ones towards the
//           end; of columns too when there are fewer rows than threads. What is computed does not depend on who takes
//           which.
// Scratch   THREADS blocks of A, a block of B; unfinished sums when K > KC and they cannot wait in D.
// Traffic   A is read ceil(N/NC) times from memory, B once; D is read and written ceil(K/KC) times; the caches deliver
//           the packed B ceil(M/MC) times, the packed A ceil(NC/NR) times.
// Edges     any extents, 0 included; any strides. Packing pads panels with 0, the results of padding are dropped.

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"
#include "../../common/c/tile.h"
#include "blocks.h"

#define MC (KS_MC / KS_MR * KS_MR)
#define NC (KS_NC / KS_NR * KS_NR)
#define KC KS_KC
#define LEAST (4 * KS_MR)  // rows of a job: a panel of B should come from the third level cache for a few tiles

_Static_assert(KS_MC >= KS_MR, "MC is smaller than MR");
_Static_assert(KS_NC >= KS_NR, "NC is smaller than NR");

typedef struct {
    ks_args x;
    ks_at at;  // the first column and k of this block of B
    int64_t threads, columns, depth;
    int64_t columns_each;  // columns of a strip of rows: there are several when there are fewer tiles than threads
    ks_jobs jobs;
    ks_passes passes;
    ks_t *a, *b;
    int64_t a_size;
} work;

static void pack_b(void *context, int64_t task) {
    const work *w = context;
    const int64_t each = ks_part(w->columns, w->threads, KS_NR), first = task * each;
    ks_at i = w->at;
    i.N += first;
    const int64_t columns = ks_least(each, w->columns - first);
    if (columns > 0) ks_prepare_b(&w->x, i, columns, w->depth, (ks_block_b *)w->b + first * w->depth);
}

static void multiply(void *context, int64_t task) {
    work *w = context;
    ks_block_a *a = (ks_block_a *)(w->a + task * w->a_size);
    int64_t first, rows;
    while ((rows = ks_take(&w->jobs, &first)) > 0) {
        ks_at i = w->at;
        i.M = first % w->jobs.strip;
        rows = ks_least(rows, ks_extent_M(&w->x) - i.M);
        const int64_t column = first / w->jobs.strip * w->columns_each;
        const int64_t columns = ks_least(w->columns_each, w->columns - column);
        if (columns <= 0) continue;
        ks_prepare_a(&w->x, i, rows, w->depth, a);
        i.N += column;
        ks_block_b *b = (ks_block_b *)w->b + column * w->depth;
        ks_multiply_blocks(&w->x, i, rows, columns, w->depth, a, b, &w->passes);
    }
}

static void set_jobs(work *w, int64_t m) {
    const int64_t panels = ks_ceil(w->columns, KS_NR), tiles = ks_ceil(m, KS_MR);
    const int64_t strips = tiles < w->threads ? ks_least(ks_ceil(w->threads, tiles), panels) : 1;
    w->columns_each = ks_part(w->columns, strips, KS_NR);
    w->jobs = (ks_jobs){0, tiles * KS_MR, strips, w->threads, KS_MR, LEAST, MC};
}

void gemm_register_tiled(const ks_call *call) {
    work w = {.x = ks_unpack(call)};
    const ks_args *x = &w.x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), slabs = ks_extent_S(x), batches = slabs * ks_extent_B(x);
    const int64_t deep = ks_least(KC, ks_extent_K(x)), high = ks_least(MC, ks_ceil(m, KS_MR) * KS_MR);
    if (m == 0 || n == 0) return;
    w.threads = ks_threads_for(call, (double)m * n * ks_extent_K(x));
    w.a = ks_align(x->scratch);
    w.a_size = (high * deep + 15) / 16 * 16;
    w.b = ks_align(w.a + w.threads * w.a_size);
    const int64_t wide = ks_part(n, ks_ceil(n, NC), KS_NR);
    for (int64_t batch = 0; batch < batches; batch++) {
        w.at = (ks_at){.S = batch % slabs, .B = batch / slabs};
        w.passes = ks_passes_into(x, w.at, ks_align(w.b + wide * deep));
        const int64_t first = ks_first_K(x, w.at), last = ks_last_K(x, w.at);
        const int64_t passes = first < last ? ks_ceil(last - first, KC) : 1, each = ks_ceil(last - first, passes);
        for (w.at.N = 0; w.at.N < n; w.at.N += wide) {
            w.columns = ks_least(wide, n - w.at.N);
            for (int64_t pass = 0; pass < passes; pass++) {
                w.at.K = first + pass * each;
                w.depth = ks_least(each, last - w.at.K);
                w.passes.first = pass == 0;
                w.passes.last = pass == passes - 1;
                set_jobs(&w, m);
                ks_parallel(call, w.threads, pack_b, &w);
                ks_parallel(call, w.threads, multiply, &w);
            }
        }
    }
}
