// Packing blocks of the operands, and the product of two packed blocks. Needs "ks_generated.h" and "tile.h".

#ifndef KS_BLOCKS_H
#define KS_BLOCKS_H

KS_DEFINE_TILES(ks_packed_tile, 1, KS_MR)

// What a block product adds to, and whether it is the first or last along K.
typedef struct {
    ks_t *sums;  // unfinished sums of element (M = 0, N = 0)
    int64_t row_step, column_step;
    int first, last;
} ks_passes;

// One panel of MR rows from i.M on, depth values from i.K on.
static void ks_pack_rows(const ks_args *x, ks_at i, int64_t rows, int64_t depth, ks_t *out) {
    rows = ks_least(rows, KS_MR);
#if KS_PLAIN_A
    ks_pack(out, KS_MR, rows, depth, ks_at_A(x, i), ks_step_A_M(x), ks_step_A_K(x));
#else
    for (int64_t k = 0; k < depth; k++) {
        for (int64_t r = 0; r < KS_MR; r++) {
            ks_at at = {.S = i.S, .B = i.B, .M = i.M + r, .K = i.K + k};
            out[k * KS_MR + r] = r < rows ? ks_A(x, at) : 0;
        }
    }
#endif
}

// One panel of NR columns from i.N on, depth values from i.K on.
static void ks_pack_columns(const ks_args *x, ks_at i, int64_t columns, int64_t depth, ks_t *out) {
    columns = ks_least(columns, KS_NR);
#if KS_PLAIN_B
    ks_pack(out, KS_NR, columns, depth, ks_at_B(x, i), ks_step_B_N(x), ks_step_B_K(x));
#else
    for (int64_t k = 0; k < depth; k++) {
        for (int64_t c = 0; c < KS_NR; c++) {
            ks_at at = {.S = i.S, .B = i.B, .N = i.N + c, .K = i.K + k};
            out[k * KS_NR + c] = c < columns ? ks_B(x, at) : 0;
        }
    }
#endif
}

// Give a tile of sums to where it belongs: add what earlier passes left, then finish it or leave it for the next pass.
static void ks_deliver(const ks_args *x, ks_at i, int64_t rows, int64_t columns, const ks_t *tile, const ks_passes *p) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < columns; c += KS_LANES) {
            const int64_t count = ks_least(KS_LANES, columns - c);
            ks_t *kept = p->sums + (i.M + r) * p->row_step + (i.N + c) * p->column_step;
            ks_v sum = ks_load_all(tile + r * KS_NR + c);
            if (!p->first) sum += ks_load(kept, p->column_step, count);
            if (p->last) {
                ks_at at = {.S = i.S, .B = i.B, .M = i.M + r, .N = i.N + c};
                ks_fields f = {.KS_RESULT = sum};
                if (count == KS_LANES)
                    ks_finish(x, at, KS_LANES, &f);
                else
                    ks_finish(x, at, count, &f);
            } else {
                ks_store(kept, p->column_step, count, sum);
            }
        }
    }
}

// The product of a packed block of A (rows x depth) and one of B (depth x columns); i is its first row and column.
static void ks_multiply_blocks(const ks_args *x, ks_at i, int64_t rows, int64_t columns, int64_t depth, const ks_t *a,
                               const ks_t *b, const ks_passes *p) {
    ks_t tile[KS_MR * KS_NR] __attribute__((aligned(64)));
    for (int64_t c = 0; c < columns; c += KS_NR) {
        const ks_t *panel = b + c * depth;
        const int64_t width = ks_least(KS_NR, columns - c);
        for (int64_t r = 0; r < rows; r += KS_MR) {
            const int64_t height = ks_least(KS_MR, rows - r);
            ks_at at = {.S = i.S, .B = i.B, .M = i.M + r, .N = i.N + c};
            if (!p->last && width == KS_NR && height == KS_MR && p->column_step == 1) {
                ks_packed_tile(width, depth, a + r * depth, 1, KS_MR, panel, KS_NR,
                               p->sums + at.M * p->row_step + at.N, p->row_step, !p->first);
            } else {
                ks_packed_tile(width, depth, a + r * depth, 1, KS_MR, panel, KS_NR, tile, KS_NR, 0);
                ks_deliver(x, at, height, width, tile, p);
            }
        }
    }
}

#endif
