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
// Threads   take pieces as they get free, smaller ones towards the end; where there are as many outputs (slabs times
//           batches) as threads each is computed by one, from its packing on
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
    char *own;          // of each thread, `own_bytes`: a piece, a block of sums, and of each tile whether it is exact
    int64_t own_bytes;
} work;

// Rows of A, or columns of B, from i on into panels.
static __attribute__((noinline)) void pack(const work *w, ks_at i, int rows, int64_t lines, int64_t depth,
                                           ks_bf16 *out) {
    const ks_args *x = &w->x;
    if (rows)
        ks_pack_pairs(out, KS_MR, KS_AMX, lines, depth, ks_at_A(x, i), ks_step_A_M(x), ks_step_A_K(x));
    else
        ks_pack_pairs(out, KS_NR, 0, lines, depth, ks_at_B(x, i), ks_step_B_N(x), ks_step_B_K(x));
}

// Panels of an operand in one pass: where the first has this pass's values and its tail, how far panels lie apart, and
// where the first has what is read next.
typedef struct {
    const ks_bf16 *at, *tail, *soon;
    int64_t size;
} side;

// One pass over the depth of a block of sums, `some` steps of it, of rows x columns of the output from i on. `sums` are
// those of each tile, `step` apart; `exact` says which tiles are in the exact loop, where they stay to the end.
// What the next pass reads is fetched meanwhile, each part by the tiles of its row or column.
static void pass(const ks_args *x, ks_at i, int64_t rows, int64_t columns, int64_t some, side a, side b, int first,
                 int last, float *sums, int64_t step, uint8_t *exact) {
    const int64_t down = ks_ceil(rows, KS_MR), across = ks_ceil(columns, KS_NR);
    const int64_t a_lines = a.soon ? ks_ceil(2 * some * KS_MR, across * KS_LINE_BYTES) : 0;
    const int64_t b_lines = b.soon ? ks_ceil(2 * some * KS_NR, down * KS_LINE_BYTES) : 0;
    for (int64_t c = 0; c < across; c++) {
        const int64_t width = ks_least(KS_NR, columns - c * KS_NR);
        for (int64_t r = 0; r < down; r++, sums += step, exact++) {
            const int64_t height = ks_least(KS_MR, rows - r * KS_MR);
            const ks_soon soon = {(const char *)(a.soon + r * a.size) + c * a_lines * KS_LINE_BYTES,
                                  (const char *)(b.soon + c * b.size) + r * b_lines * KS_LINE_BYTES, a_lines, b_lines};
            *exact = ks_flushes(a.tail + r * a.size, b.tail + c * b.size) || (!first && *exact);
            ks_pair_tile(height, width, some, a.at + r * a.size, b.at + c * b.size, sums, !first, *exact, soon);
            const ks_at at = {.S = i.S, .B = i.B, .M = i.M + r * KS_MR, .N = i.N + c * KS_NR};
            if (last) ks_finish_tile(x, at, height, width, sums);
        }
    }
}

// Panels that hold all of the depth, in the pass from k on; `then` is what follows when this was the last.
KS_INLINE side whole_side(const ks_bf16 *panels, int64_t width, int64_t whole, int64_t k, int64_t next,
                          const ks_bf16 *then) {
    const int64_t size = width * whole + KS_TAIL;
    return (side){panels + k * width, panels + width * whole, next < whole ? panels + next * width : then, size};
}

// Lines [first, first + lines) of the larger operand, times all of the smaller one. What only one strip needs is packed
// pass by pass, and is still near when it is read.
static void piece(const work *w, ks_at i, int64_t first, int64_t lines, const ks_bf16 *smaller, char *own) {
    const ks_args *x = &w->x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), start = ks_first_K(x, i), depth = ks_last_K(x, i) - start;
    const int64_t whole = ks_whole(depth), passes = whole > KS_KC ? ks_ceil(whole, KS_KC) : 1;
    const int64_t each = ks_ceil(ks_ceil(whole, passes), KS_STEPS) * KS_STEPS;
    const int64_t step = passes > 1 ? KS_MR * KS_NR : 0;  // in one pass the sums of all tiles take the same place
    const int64_t own_width = w->by_rows ? KS_MR : KS_NR, width = w->by_rows ? KS_NR : KS_MR;
    const int64_t others = w->by_rows ? n : m, strip = w->by_rows ? NC : MC;
    const int64_t strip_size = strip / width * ks_panel_size(width, depth);
    const int by_pass = others <= strip;
    ks_bf16 *packed = (ks_bf16 *)own;
    float *sums = (float *)(packed + w->piece_size);
    uint8_t *exact = (uint8_t *)(sums + MC * NC);
    ks_at at = {.S = i.S, .B = i.B, .K = start};
    *(w->by_rows ? &at.M : &at.N) = first;
    if (!by_pass) pack(w, at, w->by_rows, lines, depth, packed);
    for (int64_t other = 0; other < others; other += strip, smaller += strip_size) {
        const int64_t count = ks_least(strip, others - other);
        *(w->by_rows ? &at.N : &at.M) = other;
        for (int64_t k = 0, more = 1; more; k += each) {
            const int64_t some = ks_least(each, whole - k);
            more = k + each < whole;
            side mine = whole_side(packed, own_width, whole, k, k + each, packed);
            if (by_pass) {
                at.K = start + k;
                pack(w, at, w->by_rows, lines, ks_least(each, depth - k), packed);
                mine = whole_side(packed, own_width, some, 0, some, NULL);
            }
            const side theirs = whole_side(smaller, width, whole, k, k + each, smaller + strip_size);
            if (w->by_rows)
                pass(x, at, lines, count, some, mine, theirs, k == 0, !more, sums, step, exact);
            else
                pass(x, at, count, lines, some, theirs, mine, k == 0, !more, sums, step, exact);
        }
    }
}

// Lines of the smaller operand into panels.
static void pack_smaller(const work *w, ks_at i, int64_t first, int64_t lines, ks_bf16 *out) {
    const int64_t width = w->by_rows ? KS_NR : KS_MR, depth = ks_last_K(&w->x, i) - ks_first_K(&w->x, i);
    ks_at at = {.S = i.S, .B = i.B, .K = ks_first_K(&w->x, i)};
    *(w->by_rows ? &at.N : &at.M) = first;
    if (lines > 0) pack(w, at, !w->by_rows, lines, depth, out + first / width * ks_panel_size(width, depth));
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
    w.own_bytes = 2 * w.piece_size + (int64_t)sizeof(float) * MC * NC + ks_ceil(MC / KS_MR * (NC / KS_NR), 64) * 64;
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
