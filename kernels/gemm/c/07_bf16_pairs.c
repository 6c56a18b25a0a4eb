// gemm/07_bf16_pairs: bfloat16 on the instructions that multiply pairs of it, AVX-512 BF16 or AMX.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]), or one such sum for each slab of k.
// Idea      These instructions are so fast that memory is what costs: each element is packed once. The smaller operand
//           is packed as a whole, by all threads together; then threads take pieces of the larger one, pack them, and
//           multiply each with all of the smaller one. A piece and a strip of the smaller operand make a block of sums,
//           which waits in the second level cache while the depth passes by, KC steps at a time.
// Params    MR NR  rows and columns of the register tile;  MC NC  rows and columns of a block of sums;  KC  steps of k
//           that are added to a block at a time;  SPLIT  slabs, if any
// Knobs     KU  steps of k per turn of the loop of vectors
// Threads   take pieces as they get free, smaller ones towards the end; where there are as many outputs (slabs x batches)
//           as threads each is computed by one, from its packing on
// Scratch   the smaller operand, packed; for each thread a packed piece and a block of sums
// Traffic   A and B are read once from memory, D is written once; the caches deliver the smaller operand once for each
//           piece, a piece once for each strip.
// Edges     any extents, 0 included; any strides. Packing pads panels with 0, the results of padding are dropped.
// Numbers   sums in float32; subnormal ones are kept (pairs.h).

#if KS_AMX && !defined(KS_LEAST_SHARE)
#define KS_LEAST_SHARE 2097152  // a tile does in the same time what takes vectors of float32 sixteen times as long
#endif

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"
#include "../../common/c/pair_tile.h"
#include "sharing.h"

#define MC (KS_MC / KS_MR * KS_MR)
#define NC (KS_NC / KS_NR * KS_NR)

_Static_assert(KS_MC >= KS_MR, "MC is smaller than MR");
_Static_assert(KS_NC >= KS_NR, "NC is smaller than NR");
_Static_assert(KS_KC % 32 == 0, "KC is not a whole number of steps");
_Static_assert(KS_PLAIN_A && KS_PLAIN_B && sizeof(KS_TYPE_A) == 2 && sizeof(KS_TYPE_B) == 2, "A and B are bfloat16");

typedef struct {
    ks_args x;
    ks_at at;           // of the output that all threads work at
    int by_rows;        // pieces are rows of A, B is the smaller operand; else the other way round
    int64_t threads, outputs, next;
    ks_jobs jobs;
    int64_t smaller_size, piece_size;  // values
    ks_bf16 *smaller;
    char *own;          // of each thread, `own_bytes`: a piece, a block of sums
    int64_t own_bytes;
} work;

static __attribute__((noinline)) void pack_rows(const ks_args *x, ks_at i, int64_t rows, int64_t depth, ks_bf16 *out) {
    ks_pack_pairs(out, KS_MR, KS_AMX, rows, depth, ks_at_A(x, i), ks_step_A_M(x), ks_step_A_K(x));
}

static __attribute__((noinline)) void pack_columns(const ks_args *x, ks_at i, int64_t columns, int64_t depth,
                                                   ks_bf16 *out) {
    ks_pack_pairs(out, KS_NR, 0, columns, depth, ks_at_B(x, i), ks_step_B_N(x), ks_step_B_K(x));
}

// Rows x columns of the output from i on; `a` and `b` are their panels, `then` those of the block after it. While the
// tiles of a pass are at work, what the next pass reads is fetched: each part by the tiles of its row or column.
static void block(const ks_args *x, ks_at i, int64_t rows, int64_t columns, int64_t depth, const ks_bf16 *a,
                  const ks_bf16 *b, const ks_bf16 *a_then, const ks_bf16 *b_then, float *sums) {
    const int64_t a_size = ks_panel_size(KS_MR, depth), b_size = ks_panel_size(KS_NR, depth), whole = ks_whole(depth);
    const int64_t passes = whole > KS_KC ? ks_ceil(whole, KS_KC) : 1;
    const int64_t each = ks_ceil(ks_ceil(whole, passes), KS_STEPS) * KS_STEPS;
    const int64_t down = ks_ceil(rows, KS_MR), across = ks_ceil(columns, KS_NR);
    const int64_t a_lines = ks_ceil(2 * each * KS_MR, across * KS_LINE_BYTES);
    const int64_t b_lines = ks_ceil(2 * each * KS_NR, down * KS_LINE_BYTES);
    const int64_t next = passes > 1 ? KS_MR * KS_NR : 0;  // in one pass all tiles take the same place
    for (int64_t k = 0, more = 1; more; k += each) {
        const int64_t some = ks_least(each, whole - k);
        float *tile = sums;
        more = k + each < whole;
        const ks_bf16 *a_soon = more ? a + (k + each) * KS_MR : a_then, *b_soon = more ? b + (k + each) * KS_NR : b_then;
        for (int64_t c = 0; c < across; c++) {
            const ks_bf16 *panel = b + c * b_size;
            const int64_t width = ks_least(KS_NR, columns - c * KS_NR);
            for (int64_t r = 0; r < down; r++, tile += next) {
                const ks_bf16 *lines = a + r * a_size;
                const int64_t height = ks_least(KS_MR, rows - r * KS_MR);
                const int exact = ks_flushes(lines + KS_MR * whole, panel + KS_NR * whole);
                const ks_soon soon = {(const char *)(a_soon + r * a_size) + c * a_lines * KS_LINE_BYTES,
                                      (const char *)(b_soon + c * b_size) + r * b_lines * KS_LINE_BYTES, a_lines, b_lines};
                ks_pair_tile(height, width, some, lines + k * KS_MR, panel + k * KS_NR, tile, k > 0, exact, soon);
                const ks_at at = {.S = i.S, .B = i.B, .M = i.M + r * KS_MR, .N = i.N + c * KS_NR};
                if (!more) ks_finish_tile(x, at, height, width, tile);
            }
        }
    }
}

// Lines [first, first + lines) of the larger operand, times all of the smaller one.
static void piece(const work *w, ks_at i, int64_t first, int64_t lines, const ks_bf16 *smaller, char *own) {
    const ks_args *x = &w->x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), depth = ks_last_K(x, i) - ks_first_K(x, i);
    ks_bf16 *packed = (ks_bf16 *)own;
    float *sums = (float *)(packed + w->piece_size);
    ks_at at = {.S = i.S, .B = i.B, .K = ks_first_K(x, i)};
    if (w->by_rows) {
        at.M = first;
        pack_rows(x, at, lines, depth, packed);
        const int64_t strip = NC / KS_NR * ks_panel_size(KS_NR, depth);
        for (; at.N < n; at.N += NC, smaller += strip)
            block(x, at, lines, ks_least(NC, n - at.N), depth, packed, smaller, packed, smaller + strip, sums);
    } else {
        at.N = first;
        pack_columns(x, at, lines, depth, packed);
        const int64_t strip = MC / KS_MR * ks_panel_size(KS_MR, depth);
        for (; at.M < m; at.M += MC, smaller += strip)
            block(x, at, ks_least(MC, m - at.M), lines, depth, smaller, packed, smaller + strip, packed, sums);
    }
}

// Lines of the smaller operand into panels.
static void pack_smaller(const work *w, ks_at i, int64_t first, int64_t lines, ks_bf16 *out) {
    const ks_args *x = &w->x;
    const int64_t depth = ks_last_K(x, i) - ks_first_K(x, i);
    ks_at at = {.S = i.S, .B = i.B, .K = ks_first_K(x, i)};
    if (lines <= 0) return;
    if (w->by_rows) {
        at.N = first;
        pack_columns(x, at, lines, depth, out + first / KS_NR * ks_panel_size(KS_NR, depth));
    } else {
        at.M = first;
        pack_rows(x, at, lines, depth, out + first / KS_MR * ks_panel_size(KS_MR, depth));
    }
}

static void pack_together(void *context, int64_t task) {
    const work *w = context;
    const int64_t lines = w->by_rows ? ks_extent_N(&w->x) : ks_extent_M(&w->x);
    const int64_t each = ks_part(lines, w->threads, w->by_rows ? KS_NR : KS_MR), first = task * each;
    pack_smaller(w, w->at, first, ks_least(each, lines - first), w->smaller);
}

static void pieces(void *context, int64_t task) {
    work *w = context;
    const int64_t larger = w->by_rows ? ks_extent_M(&w->x) : ks_extent_N(&w->x);
    int64_t first, lines;
    ks_begin_tiles();
    while ((lines = ks_take(&w->jobs, &first)) > 0)
        piece(w, w->at, first, ks_least(lines, larger - first), w->smaller, w->own + task * w->own_bytes);
    ks_end_tiles();
}

static void outputs(void *context, int64_t task) {
    work *w = context;
    const ks_args *x = &w->x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), slabs = ks_extent_S(x);
    const int64_t larger = w->by_rows ? m : n, most = w->by_rows ? MC : NC;
    ks_bf16 *smaller = w->smaller + task * w->smaller_size;
    ks_begin_tiles();
    for (;;) {
        const int64_t output = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);
        if (output >= w->outputs) break;
        const ks_at i = {.S = output % slabs, .B = output / slabs};
        pack_smaller(w, i, 0, w->by_rows ? n : m, smaller);
        for (int64_t first = 0; first < larger; first += most)
            piece(w, i, first, ks_least(most, larger - first), smaller, w->own + task * w->own_bytes);
    }
    ks_end_tiles();
}

void gemm_bf16_pairs(const ks_call *call) {
    work w = {.x = ks_unpack(call)};
    const ks_args *x = &w.x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), slabs = ks_extent_S(x), deep = ks_ceil(ks_extent_K(x), slabs);
    if (m == 0 || n == 0) return;
    w.by_rows = m >= n;
    w.outputs = slabs * ks_extent_B(x);
    w.threads = ks_threads_for(call, (double)m * n * ks_extent_K(x) * ks_extent_B(x));
    const int64_t columns = ks_ceil(n, KS_NR) * ks_panel_size(KS_NR, deep);
    const int64_t rows = ks_ceil(m, KS_MR) * ks_panel_size(KS_MR, deep);
    const int alone = w.outputs >= call->threads || w.threads == 1;
    w.smaller_size = ks_ceil(w.by_rows ? columns : rows, 32) * 32;
    w.piece_size = w.by_rows ? ks_least(MC / KS_MR, ks_ceil(m, KS_MR)) * ks_panel_size(KS_MR, deep)
                             : ks_least(NC / KS_NR, ks_ceil(n, KS_NR)) * ks_panel_size(KS_NR, deep);
    w.piece_size = ks_ceil(w.piece_size, 32) * 32;
    w.own_bytes = 2 * w.piece_size + (int64_t)sizeof(float) * MC * NC;
    w.smaller = (ks_bf16 *)ks_align(x->scratch);
    w.own = (char *)(w.smaller + (alone ? w.threads : 1) * w.smaller_size);
    if (alone) {
        ks_parallel(call, ks_least(w.threads, w.outputs), outputs, &w);
        return;
    }
    const int64_t unit = w.by_rows ? KS_MR : KS_NR;
    for (int64_t output = 0; output < w.outputs; output++) {
        w.at = (ks_at){.S = output % slabs, .B = output / slabs};
        w.jobs = (ks_jobs){0, ks_part(w.by_rows ? m : n, 1, unit), 1, w.threads, unit, unit, w.by_rows ? MC : NC};
        ks_parallel(call, w.threads, pack_together, &w);
        ks_parallel(call, w.threads, pieces, &w);
    }
}
