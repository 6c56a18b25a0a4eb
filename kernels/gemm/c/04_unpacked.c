// gemm/04_unpacked: a register tile that reads A and B where they are.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n])
// Idea      Packing pays when packed values are used often. Where M or N is small, or everything fits the caches, the
//           tile reads rows of B and elements of A from the arrays themselves. Only ragged edges, and operands that are
//           not plain or whose rows are not contiguous, are packed, a panel at a time.
// Params    MR NR  rows and columns of the register tile;  MC  rows of a job;  KC  depth of a pass
// Knobs     KU  steps of k per turn of the loop
// Threads   take jobs, MC rows of one output and some of its columns, as they get free; few jobs are cut, along the
//           longer side of the output first, so that what several threads read is the smaller operand
// Scratch   for each thread a panel of A, a panel of B and MC x NR sums
// Traffic   A is read ceil(N/NR) times, through the caches when MC rows of it fit there, B ceil(M/MC) times.
// Edges     any extents, 0 included; any strides.

#define KS_UNPACKED_A
#define KS_UNPACKED_B

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"
#include "../../common/c/tile.h"
#include "blocks.h"

#define MC (KS_MC / KS_MR * KS_MR)
#define KC KS_KC

_Static_assert(KS_MC >= KS_MR, "MC is smaller than MR");

typedef struct {
    ks_args x;
    int64_t down, across, rows, columns, jobs, next, deep;
    ks_t *scratch;
    int64_t size;
} work;

// sums (rows x NR, at least a tile) += A[i.M.., i.K..] B[i.K.., i.N..] for one panel of columns.
static void panel(const ks_args *x, ks_at i, int64_t rows, int64_t width, int64_t depth, ks_t *sums, ks_block_a *a,
                  ks_block_b *b, int add) {
    // a narrower tile that is just wide enough reads its panel where it is too
    const ks_columns columns = ks_columns_at(x, i, ks_tile_columns(width) == width ? KS_NR : width, b);
    if (columns.first == b) ks_pack_b(x, i, width, depth, b);
    for (int64_t r = 0; r < rows; r += KS_MR, sums += KS_MR * KS_NR, i.M += KS_MR) {
        const int64_t height = ks_least(KS_MR, rows - r);
        const ks_rows lines = ks_rows_at(x, i, height, a);
        if (lines.first == a) ks_pack_a(x, i, height, depth, a);
        ks_block_tile(width, depth, lines.first, lines.row, lines.k, columns.first, columns.k, add ? sums : NULL,
                      KS_NR, sums, KS_NR);
    }
}

static void jobs(void *context, int64_t task) {
    work *w = context;
    const ks_args *x = &w->x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), slabs = ks_extent_S(x);
    ks_t *sums = w->scratch + task * w->size, *a_room = sums + MC * KS_NR, *b_room = a_room + KS_MR * w->deep;
    ks_block_a *a = (ks_block_a *)a_room;
    ks_block_b *b = (ks_block_b *)b_room;
    for (;;) {
        const int64_t job = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);
        if (job >= w->jobs) return;
        const int64_t output = job / (w->down * w->across), place = job % (w->down * w->across);
        ks_at i = {.S = output % slabs, .B = output / slabs, .M = place % w->down * w->rows};
        const int64_t rows = ks_least(w->rows, m - i.M), left = place / w->down * w->columns;
        const int64_t right = ks_least(n, left + w->columns), first = ks_first_K(x, i), last = ks_last_K(x, i);
        for (i.N = left; i.N < right && rows > 0; i.N += KS_NR) {
            const int64_t width = ks_least(KS_NR, right - i.N);
            i.K = first;
            do {
                panel(x, i, rows, width, ks_least(KC, last - i.K), sums, a, b, i.K > first);
                i.K += KC;
            } while (i.K < last);
            ks_finish_tile(x, i, rows, width, sums);
        }
    }
}

void gemm_unpacked(const ks_call *call) {
    work w = {.x = ks_unpack(call)};
    const ks_args *x = &w.x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), outputs = ks_extent_S(x) * ks_extent_B(x);
    if (m == 0 || n == 0) return;
    const int64_t threads = ks_threads_for(call, (double)m * n * ks_extent_K(x) * ks_extent_B(x));
    w.down = ks_ceil(m, MC);
    w.across = 1;
    if (outputs * w.down < threads) {
        const int64_t more = ks_ceil(threads, outputs), panels = ks_ceil(n, KS_NR);
        if (m < n) w.across = ks_least(ks_ceil(more, w.down), panels);
        const int64_t parts = ks_ceil(more, w.across);  // of the rows
        w.down = ks_least(ks_ceil(w.down, parts) * parts, ks_ceil(m, KS_MR));
        w.across = ks_least(ks_ceil(more, w.down), panels);
    }
    w.rows = ks_part(m, w.down, KS_MR);
    w.columns = ks_part(n, w.across, KS_NR);
    w.jobs = outputs * w.down * w.across;
    w.deep = ks_least(KC, ks_extent_K(x));
    w.size = (MC * KS_NR + (KS_MR + KS_NR) * w.deep + 15) / 16 * 16;
    w.scratch = ks_align(x->scratch);
    ks_parallel(call, threads, jobs, &w);
}
