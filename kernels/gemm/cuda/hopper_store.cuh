// Finished tiles of 07_warp_specialized to memory, in pieces of 64 rows and WIDTH columns.
//
// By the copy engine where the output has a map: pieces are rounded, laid out in shared memory as the map wants them,
// and leave while the next piece, and the next tile, are worked on. Otherwise sums go through shared memory, so that
// neighbours in memory are written by neighbouring threads, whatever the output is. Sums of 4 bytes go straight from
// registers: eight neighbours fill a sector.
#pragma once

#include "hopper.cuh"
#include "stmatrix.cuh"

constexpr int PIECE_PITCH = TURNED ? 64 + 4 : WIDTH + 8;  // floats; keeps threads of a warp on different banks
constexpr int PIECE_BYTES = BULK ? 64 * WIDTH * 2 : sizeof(KS_TYPE_out) == 4 ? 0 : 4 * PIECE_PITCH * (TURNED ? WIDTH : 64);
constexpr int UNITS = BN / WIDTH;  // pieces of 64 rows
// Does all of a block's last tile fit the stages, which nothing loads any more? Then no piece waits for another to leave.
constexpr bool SPREAD = BULK && !PINGPONG && CONSUMERS * PARTS * UNITS * PIECE_BYTES <= STAGES * STAGE_BYTES;

// Two sums, rounded to nearest even, `low` first in memory.
KS_DEVICE unsigned ks_pair(float low, float high, ks_bf16) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned *>(&v);
}
KS_DEVICE unsigned ks_pair(float low, float high, ks_f16) {
    const __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned *>(&v);
}

KS_DEVICE ks_at ks_index(const ks_tile &t, int row, int column) {
    ks_at i;
    i.S = COMBINE ? 0 : t.slab, i.B = t.batch, i.M = row, i.N = column;
    return i;
}

KS_DEVICE ks_fields ks_sum(float v) {
    ks_fields f;
    f.KS_RESULT = v;
    return f;
}

// The thread of a consumer that issues its stores.
KS_DEVICE bool ks_leads() { return threadIdx.x % 128 < 32 && ks_elect(); }

// Asks for what the tile's columns will be finished with, so that it is near once they are summed up.
KS_DEVICE void ks_touch_columns(const ks_args &x, const ks_tile &t) {
    const int count = ks_min(BN, int(ks_extent_N(x)) - t.n);
    for (int c = threadIdx.x % 128; c < count; c += 128) ks_touch_N(x, ks_index(t, t.m, t.n + c));
}

// Can 8 neighbours be stored at once?
KS_DEVICE bool ks_wide(const ks_args &x) {
#if KS_PLAIN_out
    const int64_t rows = TURNED ? ks_step_out_N(x) : ks_step_out_M(x), batches = ks_step_out_B(x);
    return (TURNED ? ks_step_out_M(x) : ks_step_out_N(x)) == 1 && ks_aligned(ks_at_out(x, ks_at{}), 16) &&
           rows % 8 == 0 && batches % 8 == 0;
#else
    return false;
#endif
}

// V neighbours along the output's contiguous dimension.
template <int V>
KS_DEVICE void ks_put_along(const ks_args &x, const ks_tile &t, int row, int column, const float *from) {
    const int64_t rows = ks_extent_M(x) - row, columns = ks_extent_N(x) - column;
    if (rows <= 0 || columns <= 0) return;
    const int count = int(ks_min(TURNED ? rows : columns, int64_t(V)));
    ks_fields f[V];
#pragma unroll
    for (int l = 0; l < V; l++) f[l] = ks_sum(from[l]);
    if (TURNED)
        ks_put_M<V>(x, ks_index(t, row, column), count, f);
    else
        ks_put_N<V>(x, ks_index(t, row, column), count, f);
}

// One piece from shared memory, by the 128 threads of a consumer.
template <int V> KS_DEVICE void ks_put_piece(const ks_args &x, const ks_tile &t, int row, int column, const float *piece) {
    constexpr int along = TURNED ? 64 : WIDTH, across = TURNED ? WIDTH : 64;
#pragma unroll 2
    for (int e = threadIdx.x % 128; e < along * across / V; e += 128) {
        const int line = e / (along / V), place = e % (along / V) * V;
        float v[V];
#pragma unroll
        for (int l = 0; l < V; l++) v[l] = piece[line * PIECE_PITCH + place + l];
        ks_put_along<V>(x, t, row + (TURNED ? place : line), column + (TURNED ? line : place), v);
    }
}

// `row`: this consumer's first row within the tile; `base`: of shared memory; `name`: its barrier; `last`: no more tiles.
KS_DEVICE void ks_finish(const ks_args &x, float (&d)[PARTS][BN / 2], const ks_tile &t, int row, unsigned char *base,
                         int name, int consumer, bool last) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, own = 16 * warp + lane / 4, pair = 2 * (lane % 4);
    const int rows = int(ks_extent_M(x)), columns = int(ks_extent_N(x)), top = t.m + row;
    const bool spread = SPREAD && last;
    if (spread) ks_sync_some(CONSUMERS + 1, 128 * CONSUMERS);  // nothing multiplies any more
    if (top >= rows || t.n >= columns) return;
    if constexpr (!BULK && sizeof(KS_TYPE_out) == 4) {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int r = top + 64 * part + own + 8 * half, c = t.n + 8 * j + pair;
                    const ks_fields f[2] = {ks_sum(d[part][4 * j + 2 * half]), ks_sum(d[part][4 * j + 2 * half + 1])};
                    if (r < rows && c < columns) ks_put_N<2>(x, ks_index(t, r, c), ks_min(columns - c, 2), f);
                }
        return;
    }
    const bool wide = ks_wide(x);
    unsigned char *pieces = spread ? base + TILES + consumer * (PARTS * UNITS * PIECE_BYTES)
                                   : base + PIECES + consumer * (BUFFERS * PIECE_BYTES);
    if (!spread) {
        if (BULK && ks_leads()) ks_bulk_wait_read<0>();
        ks_sync_some(name, 128);
    }
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            const int number = part * UNITS + unit;
            unsigned char *piece = pieces + (spread ? number : number % BUFFERS) * PIECE_BYTES;
            const int r0 = top + 64 * part, c0 = t.n + unit * WIDTH;
            if constexpr (BULK) {
#if KS_MAPPED_D
#pragma unroll
                for (int j = 0; j < WIDTH / 16; j++) {
                    unsigned v[4];
#pragma unroll
                    for (int q = 0; q < 4; q++) {  // rows 0 and 8 of columns 0, then of columns 8
                        const int at = 4 * (unit * WIDTH / 8 + 2 * j + q / 2) + 2 * (q % 2);
                        const int r = ks_min(r0 + own + 8 * (q % 2), rows - 1), c = c0 + 16 * j + 8 * (q / 2) + pair;
                        const float low = ks_value(x, ks_index(t, r, ks_min(c, columns - 1)), ks_sum(d[part][at]));
                        const float high = ks_value(x, ks_index(t, r, ks_min(c + 1, columns - 1)), ks_sum(d[part][at + 1]));
                        v[q] = ks_pair(low, high, KS_TYPE_out());
                    }
                    const int m = 16 * warp + lane / 8 % 2 * 8, n = 16 * j + lane / 16 * 8;  // this lane's matrix
                    if (TURNED) {
                        const unsigned to = ((n + lane % 8) * 64 + m) * 2;
                        ks_store_matrices_transposed(ks_shared_address(piece) + ks_swizzled<KS_SWIZZLE_D>(to), v);
                    } else {
                        const unsigned to = ((m + lane % 8) * WIDTH + n) * 2;
                        ks_store_matrices(ks_shared_address(piece) + ks_swizzled<KS_SWIZZLE_D>(to), v);
                    }
                }
                ks_fence_async();
                if (!spread && ks_leads()) ks_bulk_wait_read<(BUFFERS > 1 ? BUFFERS - 2 : 0)>();  // room for the next piece
                ks_sync_some(name, 128);
                if (ks_leads()) {
                    const int third = ks_step_out_B(x) != 0 ? t.batch : 0;
                    ks_bulk_store(&x.map_D, ks_shared_address(piece), TURNED ? r0 : c0, TURNED ? c0 : r0, third);
                    ks_bulk_commit();
                }
#endif
            } else {
                float *sums = reinterpret_cast<float *>(piece);
#pragma unroll
                for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const int at = 4 * (unit * WIDTH / 8 + j) + 2 * half, r = own + 8 * half, c = 8 * j + pair;
                        if (TURNED) {
                            sums[c * PIECE_PITCH + r] = d[part][at];
                            sums[(c + 1) * PIECE_PITCH + r] = d[part][at + 1];
                        } else {
                            *reinterpret_cast<float2 *>(sums + r * PIECE_PITCH + c) = {d[part][at], d[part][at + 1]};
                        }
                    }
                ks_sync_some(name, 128);
                if (wide)
                    ks_put_piece<8>(x, t, r0, c0, sums);
                else
                    ks_put_piece<1>(x, t, r0, c0, sums);
                if (BUFFERS == 1) ks_sync_some(name, 128);
            }
        }
    }
}
