// Blocks of a matrix product: packing them, multiplying two of them, delivering sums. Needs "ks_generated.h",
// "elementary.h" and "tile.h". A block is rows (or columns) x depth, cut into panels as wide as the register tile.
//
// KS_UNPACKED_A, KS_UNPACKED_B: the tile reads that operand where it is. What cannot be read so, the last panel if it
// is ragged and operands that are more than an array, is packed all the same; of B what is not contiguous along n too.

#ifndef KS_BLOCKS_H
#define KS_BLOCKS_H

#include "sharing.h"

#if KS_DOUBLE
#define ks_pack_stored ks_pack
#else
#define ks_pack_stored(out, width, lines, depth, from, line_step, k_step) \
    _Generic((from), ks_bf16 *: ks_pack_bf16, default: ks_pack)(out, width, lines, depth, from, line_step, k_step)
#endif

// What panels hold: packed ones what is summed, those that stand in for the array itself what the array holds.
#if defined(KS_UNPACKED_A) && KS_PLAIN_A
#define KS_DIRECT_A 1
#define KS_A_STEPS a_row, a_k
typedef KS_TYPE_A ks_block_a;
KS_DEFINE_PACK(ks_panel_of_a, KS_TYPE_A, KS_TYPE_A, , sizeof(KS_TYPE_A) == 4)
#else
#define KS_DIRECT_A 0
#define KS_A_STEPS 1, KS_MR
#define ks_panel_of_a ks_pack_stored
typedef ks_t ks_block_a;
#endif
#if defined(KS_UNPACKED_B) && KS_PLAIN_B
#define KS_DIRECT_B(x) (ks_step_B_N(x) == 1)
typedef KS_TYPE_B ks_block_b;
KS_DEFINE_PACK(ks_panel_of_b, KS_TYPE_B, KS_TYPE_B, , sizeof(KS_TYPE_B) == 4)
#else
#define KS_DIRECT_B(x) 0
#define ks_panel_of_b ks_pack_stored
typedef ks_t ks_block_b;
#endif

#define KS_DEFINE_BLOCK_TILES(name, steps) KS_DEFINE_TILES(name, ks_block_a, ks_block_b, steps)
KS_DEFINE_BLOCK_TILES(ks_block_tile, KS_A_STEPS)

// Pack rows [i.M, i.M + rows) and depth values of k from i.K on; the last panel is filled up with 0.
static __attribute__((noinline, unused)) void ks_pack_a(const ks_args *x, ks_at i, int64_t rows, int64_t depth,
                                                        ks_block_a *out) {
#if KS_PLAIN_A
    ks_panel_of_a(out, KS_MR, rows, depth, ks_at_A(x, i), ks_step_A_M(x), ks_step_A_K(x));
#else
    for (int64_t first = 0; first < rows; first += KS_MR, out += KS_MR * depth) {
        ks_at at = {.S = i.S, .B = i.B, .K = i.K};
        for (int64_t k = 0; k < depth; k++, at.K++) {
            for (int64_t j = 0; j < KS_MR; j++) {
                at.M = i.M + first + j;
                out[k * KS_MR + j] = first + j < rows ? ks_A(x, at) : 0;
            }
        }
    }
#endif
}

// Pack columns [i.N, i.N + columns) and depth values of k from i.K on; the last panel is filled up with 0.
static __attribute__((noinline, unused)) void ks_pack_b(const ks_args *x, ks_at i, int64_t columns, int64_t depth,
                                                        ks_block_b *out) {
#if KS_PLAIN_B
    ks_panel_of_b(out, KS_NR, columns, depth, ks_at_B(x, i), ks_step_B_N(x), ks_step_B_K(x));
#else
    for (int64_t first = 0; first < columns; first += KS_NR, out += KS_NR * depth) {
        ks_at at = {.S = i.S, .B = i.B, .K = i.K};
        for (int64_t k = 0; k < depth; k++, at.K++) {
            for (int64_t j = 0; j < KS_NR; j++) {
                at.N = i.N + first + j;
                out[k * KS_NR + j] = first + j < columns ? ks_B(x, at) : 0;
            }
        }
    }
#endif
}

// As `ks_pack_a` and `ks_pack_b`, but of an operand that is read where it is only the last panel, if it is ragged.
KS_INLINE void ks_prepare_a(const ks_args *x, ks_at i, int64_t rows, int64_t depth, ks_block_a *out) {
    const int64_t whole = KS_DIRECT_A ? rows / KS_MR * KS_MR : 0;
    i.M += whole;
    ks_pack_a(x, i, rows - whole, depth, out + whole * depth);
}

KS_INLINE void ks_prepare_b(const ks_args *x, ks_at i, int64_t columns, int64_t depth, ks_block_b *out) {
    const int64_t whole = KS_DIRECT_B(x) ? columns / KS_NR * KS_NR : 0;
    i.N += whole;
    ks_pack_b(x, i, columns - whole, depth, out + whole * depth);
}

// A panel as the tile reads it: its first element, and how far apart its lines and steps of k lie.
typedef struct {
    const ks_block_a *first;
    int64_t row, k;
} ks_rows;

typedef struct {
    const ks_block_b *first;
    int64_t k;
} ks_columns;

KS_INLINE ks_rows ks_rows_at(const ks_args *x, ks_at i, int64_t rows, const ks_block_a *packed) {
#if KS_DIRECT_A
    if (rows == KS_MR) return (ks_rows){ks_at_A(x, i), ks_step_A_M(x), ks_step_A_K(x)};
#endif
    (void)x, (void)i, (void)rows;
    return (ks_rows){packed, 1, KS_MR};
}

KS_INLINE ks_columns ks_columns_at(const ks_args *x, ks_at i, int64_t columns, const ks_block_b *packed) {
#if defined(KS_UNPACKED_B) && KS_PLAIN_B
    if (columns == KS_NR && KS_DIRECT_B(x)) return (ks_columns){ks_at_B(x, i), ks_step_B_K(x)};
#endif
    (void)x, (void)i, (void)columns;
    return (ks_columns){packed, KS_NR};
}

// Where sums wait between passes over K, and which pass this is.
typedef struct {
    ks_t *sums;  // of element (M = 0, N = 0)
    int64_t row_step, column_step;
    int first, last;
} ks_passes;

// Sums wait in the output, unless that is not allowed: then in `scratch`, M x N.
KS_INLINE ks_passes ks_passes_into(const ks_args *x, ks_at i, ks_t *scratch) {
#if KS_PARTIALS
    (void)i;
    return (ks_passes){.sums = scratch, .row_step = ks_extent_N(x), .column_step = 1};
#else
    (void)scratch;
    return (ks_passes){.sums = ks_at_out(x, i), .row_step = ks_step_out_M(x), .column_step = ks_step_out_N(x)};
#endif
}

// Add what earlier passes left to a tile, then finish it, or leave it for the next pass.
static __attribute__((noinline, unused)) void ks_deliver(const ks_args *x, ks_at i, int64_t rows, int64_t columns,
                                                         ks_t *tile, const ks_passes *p) {
    for (int64_t r = 0; r < rows && !(p->first && p->last); r++) {
        ks_t *kept = p->sums + (i.M + r) * p->row_step + i.N * p->column_step, *sum = tile + r * KS_NR;
        for (int64_t c = 0; c < columns; c += KS_LANES, kept += KS_LANES * p->column_step, sum += KS_LANES) {
            const int64_t count = ks_least(KS_LANES, columns - c);
            if (!p->first) ks_store_all(sum, ks_load_all(sum) + ks_load(kept, p->column_step, count));
            if (!p->last) ks_store(kept, p->column_step, count, ks_load_all(sum));
        }
    }
    if (p->last) ks_finish_tile(x, i, rows, columns, tile);
}

// Have the tile's place in the caches by the time its sums are ready.
KS_INLINE void ks_expect(ks_at i, int64_t rows, int64_t columns, const ks_passes *p) {
    if (p->column_step != 1) return;
    for (int64_t r = 0; r < rows; r++) {
        const ks_t *row = p->sums + (i.M + r) * p->row_step + i.N;
        for (int64_t c = 0; c < columns; c += KS_LINE_BYTES / (int64_t)sizeof(ks_t)) __builtin_prefetch(row + c, 1);
    }
}

// A panel of B or some, where they go, and how much of them is there: of `steps` of k (of packed ones: lines).
typedef struct {
    ks_at at;
    int64_t columns, depth, steps;
    ks_block_b *to;
} ks_ahead;

// Panels as many as are read well from memory at a time.
KS_INLINE int64_t ks_group(void) { return ks_ceil(KS_PACKED_BYTES / (int64_t)sizeof(ks_block_b), KS_NR) * KS_NR; }

#if KS_PLAIN_B && !defined(KS_UNPACKED_B)
#define KS_PACKS_AHEAD 1

// Pack steps [first, last) of k, and have as many after these in the second level cache before long: few enough that
// rows a power of two apart do not take each other's place there.
KS_INLINE void ks_pack_ahead(const ks_args *x, const ks_ahead *n, int64_t first, int64_t last) {
    const int64_t step = ks_step_B_K(x), more = ks_least(n->depth, 2 * last - first);
    const int64_t whole = n->columns / KS_NR * KS_NR, line = KS_LINE_BYTES / (int64_t)sizeof(KS_TYPE_B);
    const KS_TYPE_B *from = ks_at_B(x, n->at) + first * step, *soon = from + (last - first) * step;
    for (int64_t k = first; k < last; k++, from += step) {
        ks_t *to = n->to + k * KS_NR;
        for (int64_t c = 0; c < whole; c += KS_NR, to += KS_NR * n->depth)
            KS_UNROLL(32) for (int j = 0; j < KS_NV; j++)
                ks_store_all(to + j * KS_LANES, ks_load_stored(from + c + j * KS_LANES));
        for (int64_t j = 0; j < KS_NR && whole < n->columns; j++)
            to[j] = whole + j < n->columns ? ks_widen(from[whole + j]) : 0;
    }
    for (int64_t k = last; k < more; k++, soon += step) {
        for (int64_t c = 0; c < n->columns; c += line) __builtin_prefetch(soon + c, 0, 2);
        __builtin_prefetch(soon + n->columns - 1, 0, 2);
    }
}
#else
#define KS_PACKS_AHEAD 0
KS_INLINE void ks_pack_ahead(const ks_args *x, const ks_ahead *n, int64_t first, int64_t last) {
    (void)x, (void)n, (void)first, (void)last;
}
#endif

// Can panels of B be packed step by step? Where they are contiguous along k they cannot.
KS_INLINE int ks_packs_ahead(const ks_args *x) { return KS_PACKS_AHEAD && ks_step_B_N(x) == 1; }

// Have lines [first, last) of a packed panel in the second level cache before long.
KS_INLINE void ks_fetch(const ks_block_b *from, int64_t first, int64_t last) {
    const char *at = (const char *)from + first * KS_LINE_BYTES;
    for (; first < last; first++, at += KS_LINE_BYTES) __builtin_prefetch(at, 0, 2);
}

// One panel of B times a block of A. Each tile does its share, steps from `done` on, of what comes next.
KS_INLINE void ks_multiply_panel(const ks_args *x, ks_at at, int64_t rows, int64_t width, int64_t depth,
                                 const ks_block_a *a, ks_columns panel, const ks_ahead *next, int64_t done,
                                 int64_t share, int packing, const ks_passes *p) {
    ks_t tile[KS_MR * KS_NR] __attribute__((aligned(64)));
    for (int64_t r = 0; r < rows; r += KS_MR, at.M += KS_MR, done += share) {
        const int64_t height = ks_least(KS_MR, rows - r), until = ks_least(next->steps, done + share);
        const ks_rows row = ks_rows_at(x, at, height, a + r * depth);
        ks_expect(at, height, width, p);
        if (packing && done < until) ks_pack_ahead(x, next, done, until);
        if (!packing) ks_fetch(next->to, done, until);
        ks_t *sums = p->sums + at.M * p->row_step + at.N * p->column_step;
        if (width < KS_NR || height < KS_MR || p->column_step != 1) {
            ks_block_tile(width, depth, row.first, row.row, row.k, panel.first, panel.k, NULL, 0, tile, KS_NR);
            ks_deliver(x, at, height, width, tile, p);
            continue;
        }
        ks_block_tile(width, depth, row.first, row.row, row.k, panel.first, panel.k, p->first ? NULL : sums,
                      p->row_step, p->last ? tile : sums, p->last ? KS_NR : p->row_step);
        if (p->last) ks_finish_tile(x, at, KS_MR, KS_NR, tile);
    }
}

// The product of a block of A (rows x depth) and a packed one of B (depth x columns); i is its first row, column and k.
// While the tiles of a panel are at work the next one is fetched from the third level cache.
static __attribute__((unused)) void ks_multiply_blocks(const ks_args *x, ks_at i, int64_t rows, int64_t columns,
                                                       int64_t depth, const ks_block_a *a, ks_block_b *b,
                                                       const ks_passes *p) {
    const int64_t line = KS_LINE_BYTES / (int64_t)sizeof(ks_block_b);
    for (int64_t c = 0; c < columns; c += KS_NR, i.N += KS_NR) {
        const int64_t width = ks_least(KS_NR, columns - c);
        ks_block_b *packed = b + c * depth;
        const ks_columns panel = ks_columns_at(x, i, width, packed);
        const int more = c + KS_NR < columns && panel.first == packed;
        const ks_ahead next = {.steps = more ? ks_ceil(KS_NR * depth, line) : 0, .to = packed + KS_NR * depth};
        const int64_t share = ks_ceil(next.steps, ks_ceil(rows, KS_MR));
        ks_multiply_panel(x, i, rows, width, depth, a, panel, &next, 0, share, 0, p);
    }
}

// As `ks_multiply_blocks`, of a block of B that is not packed yet, but for its first group of panels. While the tiles of
// a group are at work the next group is packed: at the end the one that `then` describes, if any.
static __attribute__((unused)) void ks_pack_and_multiply(const ks_args *x, ks_at i, int64_t rows, int64_t columns,
                                                         int64_t depth, const ks_block_a *a, ks_block_b *b,
                                                         const ks_ahead *then, const ks_passes *p) {
    const int64_t tiles = ks_ceil(rows, KS_MR), some = ks_group();
    for (int64_t c = 0; c < columns;) {
        const int64_t after = ks_least(columns, c + some);
        ks_ahead next = *then;
        if (after < columns) next = (ks_ahead){i, ks_least(some, columns - after), depth, depth, b + after * depth};
        if (after < columns) next.at.N += after - c;
        const int stepwise = ks_packs_ahead(x);
        if (!stepwise && next.steps > 0) ks_pack_b(x, next.at, next.columns, next.depth, next.to), next.steps = 0;
        const int64_t share = ks_ceil(next.steps, tiles * ks_ceil(after - c, KS_NR));
        for (int64_t done = 0; c < after; c += KS_NR, i.N += KS_NR, done += tiles * share) {
            const int64_t width = ks_least(KS_NR, columns - c);
            const ks_columns panel = ks_columns_at(x, i, width, b + c * depth);
            ks_multiply_panel(x, i, rows, width, depth, a, panel, &next, done, share, stepwise, p);
        }
    }
}

#endif
