// few: attention of few queries by warps each of which has keys of its own.
//
// Both products are turned around, K Q^T and V^T P^T: keys, then columns, are the 16 rows of a step and 8 queries its
// columns, so that 8 rows fill it. How keys and values come, by registers or by shared memory, is the includer's
// `ks_operands`. At the end every warp sends its sums to whoever finishes them: the block, or, with KS_CLUSTERED, the
// blocks of a cluster, each of which gets a share of the outputs.
#pragma once

#ifndef KS_CLUSTERED
#define KS_CLUSTERED 0
#endif

#include "direct.cuh"
#include "mma.cuh"
#include "state.cuh"
#if KS_CLUSTERED
#include "cluster_words.cuh"
#endif

constexpr int BM = KS_BM, BK = KS_BK, BD = KS_BD, BE = KS_BE, SLICES = KS_SLICES, AHEAD = KS_AHEAD;
constexpr int THREADS = 32 * SLICES;
constexpr int TILES = BM / 8, OWN = BK / SLICES, GROUPS = OWN / 16;  // of 8 rows; keys of a warp's step, in groups of 16
constexpr int ACROSS = BD / 32, DOWN = BE / 64;                      // pieces of a lane along the depth, and the columns
#if KS_CLUSTERED
constexpr int BLOCKS = KS_SPLIT;
#else
constexpr int BLOCKS = 1;
#endif
constexpr int SENDERS = BLOCKS * SLICES, SHARE = BM * BE / BLOCKS;  // elements of the outputs that a block finishes
constexpr int SUMS = 4 * SENDERS * SHARE, STATES = 8 * SENDERS * BM, TOTALS = 8 * BM;  // bytes
constexpr int CHAINS = TILES * GROUPS < 4 ? 2 : 1;  // of products that do not wait for each other, of the same scores
constexpr int ROOM = (SUMS + STATES + TOTALS + 16 + 127) / 128 * 128;  // of these, and a barrier
static_assert(BM % 8 == 0 && BK % (16 * SLICES) == 0 && BD % 32 == 0 && BE % 64 == 0, "tiles of whole products");
static_assert(SHARE % 8 == 0 && (SENDERS & (SENDERS - 1)) == 0, "shares of whole pieces, warps a power of two");
static_assert(sizeof(KS_TYPE_Q) == 2 && sizeof(KS_TYPE_K) == 2 && sizeof(KS_TYPE_V) == 2, "operands of two bytes");

// Elements one by one, 0 from `count` on. Never part of a loop: it would take the registers of what is on its way there.
template <class T>
__device__ __noinline__ uint4 ks_gather(const T *from, int64_t along, int count) {
    ks_block<T, 8> b;
#pragma unroll 1
    for (int e = 0; e < 8; e++) b.v[e] = e < count ? from[e * along] : ks_from_acc<T>(0);
    return b.w[0];
}

// How the pieces of an operand are read: one by one; 8 elements at once, all there or none; all there, from rows that lie
// within 2^31 elements of the first; and from rows without a gap between them, whose addresses differ by constants.
enum ks_ways { KS_ONE_BY_ONE, KS_PIECES, KS_ALL_PIECES, KS_CLOSE_ROWS };

// Rows of an operand: row k begins at `from` + k `step`, k < have; its `across` elements are `along` apart.
template <class T>
struct ks_rows_of {
    const T *from;
    int64_t step, along;
    int have, across;

    // Row k, or the last one beyond it: what is computed of that counts for nothing.
    template <int Way>
    KS_DEVICE const T *row(int k) const {
        k = ks_min(k, have - 1);
        return Way >= KS_ALL_PIECES ? from + uint32_t(k) * uint32_t(step) : from + k * step;
    }
    // The rows from element `column` of each on.
    KS_DEVICE ks_rows_of beside(int column) const {
        return {from + column * along, step, along, have, across - column};
    }
};

// Rows [k, k + Rows) of an operand, `lines` lines each, come to the second-level cache, by the lanes of a warp.
template <int Rows, class T>
KS_DEVICE void ks_ask(const T *from, int64_t step, int have, int lines, int k, int lane) {
    for (int p = lane; p < Rows * lines; p += 32)
        if (k + p / lines < have) ks_touch_far(from + (k + p / lines) * step + p % lines * (128 / int(sizeof(T))));
}

// Of a warp: sums in the layout of mma.cuh, columns down and rows across: lane 4 g + t has columns
// 64 h + 8 g + 0..7 of rows 2 t and 2 t + 1, as o[][4 h + i][2 b + e] column 2 i + b of row 2 t + e.
struct ks_sums {
    float o[TILES][BE / 16][4], m[TILES][2], l[TILES][2];
};

// What of the keys the block works on, as places after the first of them.
struct ks_range {
    int64_t first;
    int have, whole;  // those before `whole` are seen by all rows
};

KS_DEVICE bool ks_near(int64_t step, int64_t rows) {
    return step >= 0 && step < (int64_t(1) << 31) / ks_max(rows, int64_t(1));
}

KS_DEVICE float ks_column_most(float v) {
#pragma unroll
    for (int gap = 4; gap < 32; gap *= 2) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFF, v, gap));
    return v;
}

// How keys and values come to a warp, by `Way`; each includer's own:
// begin()                           asks for those of the first steps
// key(step, u, s, a)                of step's keys 16 u.., elements 16 s.. as the left operand of a product
// value(step, u, n, a)              of step's keys 16 u.., columns 16 n.., turned, as the left operand
// before_keys, after_keys(step)     around the use of a step's keys; asks for later ones
// before_values, after_values(step)
// query(row, q)                     a row of queries as the right operands of all products with keys
// settle(o)                         sums of columns 16 n + .. come to lie as ks_sums says
template <class Operands>
KS_DEVICE void ks_attend(
    const ks_args &x, const ks_at &i, const ks_range &range, Operands &&from, const ks_sharpness &by, int rows,
    const uint32_t (&q)[TILES][ACROSS][4], ks_sums &sums
) {
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int steps = (range.have + BK - 1) / BK;
    from.begin();
    for (int step = 0; step < steps; step++) {
        float s[TILES][GROUPS][4], other[TILES][GROUPS][4];
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int u = 0; u < GROUPS; u++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[r][u][e] = other[r][u][e] = 0;
        from.before_keys(step);
#pragma unroll
        for (int d = 0; d < BD / 16; d++)
#pragma unroll
            for (int u = 0; u < GROUPS; u++) {
                uint32_t a[4];
                from.key(step, u, d, a);
#pragma unroll
                for (int r = 0; r < TILES; r++) {
                    auto &sum = CHAINS == 2 && d % 2 ? other[r][u] : s[r][u];
                    ks_multiply<KS_TYPE_K>(sum, a, q[r][d / 2][d % 2 * 2], q[r][d / 2][d % 2 * 2 + 1]);
                }
            }
        if (CHAINS == 2)
#pragma unroll
            for (int r = 0; r < TILES; r++)
#pragma unroll
                for (int u = 0; u < GROUPS; u++)
#pragma unroll
                    for (int e = 0; e < 4; e++) s[r][u][e] += other[r][u][e];
        from.after_keys(step);
        const int first = step * BK + slice * OWN;
        const bool cut = first + OWN > range.whole;
        uint32_t p[TILES][GROUPS][2];
#pragma unroll
        for (int r = 0; r < TILES; r++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                ks_at at = i;
                at.M += 8 * r + 2 * t + e;
#if !KS_SCALED
#pragma unroll
                for (int u = 0; u < GROUPS; u++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const int key = first + 16 * u + 8 * half + g;
                        at.K = range.first + key;
                        float &score = s[r][u][2 * half + e];
                        if (key < range.have && at.M < i.M + rows) score = ks_score(x, at, score);
                    }
#endif
                if (by.turned)
#pragma unroll
                    for (int u = 0; u < GROUPS; u++) s[r][u][e] *= -1, s[r][u][2 + e] *= -1;
                if (cut) {
                    const int64_t seen = KS_SEES ? ks_min(int64_t(range.have), ks_sees(x, at) - range.first) : range.have;
#pragma unroll
                    for (int u = 0; u < GROUPS; u++)
#pragma unroll
                        for (int half = 0; half < 2; half++)
                            if (first + 16 * u + 8 * half + g >= seen) s[r][u][2 * half + e] = -KS_INFINITY;
                }
                float most = s[r][0][e];
#pragma unroll
                for (int u = 0; u < GROUPS; u++) most = fmaxf(most, fmaxf(s[r][u][e], s[r][u][2 + e]));
                most = fmaxf(sums.m[r][e], ks_column_most(most));
                const float shift = by.shift(most), less = ks_ex2_flushed(sums.m[r][e] * by.sharp - shift);
                float sum = 0;
#pragma unroll
                for (int u = 0; u < GROUPS; u++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        float &w = s[r][u][2 * half + e];
                        w = ks_ex2_flushed(fmaf(w, by.sharp, -shift));
                        sum += w;
                    }
                sums.m[r][e] = most, sums.l[r][e] = fmaf(sums.l[r][e], less, sum);
#pragma unroll
                for (int n = 0; n < BE / 16; n++) sums.o[r][n][e] *= less, sums.o[r][n][2 + e] *= less;
            }
#pragma unroll
            for (int u = 0; u < GROUPS; u++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    p[r][u][half] = ks_turn(ks_pair(s[r][u][2 * half], s[r][u][2 * half + 1], KS_TYPE_V()));
        }
        from.before_values(step);
#pragma unroll
        for (int u = 0; u < GROUPS; u++)
#pragma unroll
            for (int n = 0; n < BE / 16; n++) {
                uint32_t a[4];
                from.value(step, u, n, a);
#pragma unroll
                for (int r = 0; r < TILES; r++) ks_multiply<KS_TYPE_V>(sums.o[r][n], a, p[r][u][0], p[r][u][1]);
            }
        from.after_values(step);
    }
    from.settle(sums.o);
}

// Where the sums of all warps meet: [sender][share of o], [sender][row] m (then its weight) and l, [row] m and l of all.
struct ks_room {
    float *os;
    float2 *states, *totals;

    KS_DEVICE explicit ks_room(uint8_t *memory)
        : os(reinterpret_cast<float *>(memory)), states(reinterpret_cast<float2 *>(memory + SUMS)),
          totals(reinterpret_cast<float2 *>(memory + SUMS + STATES)) {}
};

// Elements of block `rank`'s share that exist.
KS_DEVICE int ks_share_of(int rank, int rows) { return ks_max(0, ks_min(rows * BE - rank * SHARE, SHARE)); }

KS_DEVICE void ks_send(void *to, unsigned barrier, int rank, float a, float b, float c, float d) {
#if KS_CLUSTERED
    ks_cluster_send(ks_shared_address(to), barrier, rank, make_float4(a, b, c, d));
#else
    *reinterpret_cast<float4 *>(to) = make_float4(a, b, c, d);
#endif
}

// What this warp has of each row to the blocks that finish it.
KS_DEVICE void ks_send_sums(const ks_room &room, unsigned barrier, int rank, int rows, const ks_sums &sums) {
    const int lane = threadIdx.x % 32, sender = rank * SLICES + threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < TILES; r++) {
#pragma unroll
        for (int to = g; to < BLOCKS; to += 8)
            if (ks_share_of(to, rows) > 0)
                ks_send(room.states + sender * BM + 8 * r + 2 * t, barrier, to, sums.m[r][0], sums.l[r][0],
                        sums.m[r][1], sums.l[r][1]);
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int h = 0; h < DOWN; h++) {
                const int row = 8 * r + 2 * t + e, at = row * BE + 64 * h + 8 * g, to = at / SHARE;
                if (row >= rows) continue;
                float *place = room.os + sender * SHARE + at - to * SHARE;
                const auto &o = sums.o[r];
                ks_send(place, barrier, to, o[4 * h][e], o[4 * h][2 + e], o[4 * h + 1][e], o[4 * h + 1][2 + e]);
                ks_send(place + 4, barrier, to, o[4 * h + 2][e], o[4 * h + 2][2 + e], o[4 * h + 3][e], o[4 * h + 3][2 + e]);
            }
    }
}

// Lanes that add up one piece of the outputs: as many as `threads` there are for it, a power of two up to 8.
KS_DEVICE constexpr int ks_sharing(int threads) {
    int lanes = 1;
    while (lanes < 8 && 2 * lanes <= threads && 2 * lanes <= SENDERS) lanes *= 2;
    return lanes;
}

// This block's share of the outputs, from what all warps have sent. Where they go is found before that has come.
KS_DEVICE void ks_finish(
    const ks_args &x, ks_at at, const ks_room &room, const ks_sharpness &by, unsigned barrier, int rank, int rows,
    int columns
) {
    constexpr int across = SENDERS < 32 ? SENDERS : 32, beside = 32 / across;  // lanes of a row; rows of a warp
    constexpr int turns = (SHARE + BE - 1) / BE + (SHARE < BE || SHARE % BE ? 1 : 0);  // rows of a share, at most
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32, low = rank * SHARE / BE;
    constexpr int wide = SHARE > 4 * THREADS ? 8 : 4, pieces = SHARE / wide;  // columns of a lane
    constexpr int together = ks_sharing(THREADS / pieces), own = 32 / together;  // lanes of a piece; pieces of a warp
    const int64_t first = at.M, left = at.N;
    at.M = first + ks_min((rank * SHARE + wide * (slice * own + lane % own)) / BE, rows - 1);
    ks_row place = ks_row_of(x, at);
#if KS_CLUSTERED
    ks_barrier_wait(barrier, 0);
#else
    __syncthreads();
#endif
#pragma unroll
    for (int n = 0; n < (turns + beside * SLICES - 1) / (beside * SLICES); n++) {
        const int row = low + (n * SLICES + slice) * beside + lane / across, kept = ks_min(row, BM - 1);
        float most = -KS_INFINITY, sum = 0;
#pragma unroll
        for (int s = lane % across; s < SENDERS; s += across)
            if (row == kept) most = fmaxf(most, room.states[s * BM + row].x);
#pragma unroll
        for (int gap = 1; gap < across; gap *= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, gap));
        const float shift = by.shift(most);
#pragma unroll
        for (int s = lane % across; s < SENDERS; s += across) {
            if (row != kept) continue;  // the last row belongs to other lanes, which write
            float2 &state = room.states[s * BM + row];
            const float weight = ks_ex2_flushed(state.x * by.sharp - shift);
            sum = fmaf(state.y, weight, sum);
            state.x = weight;
        }
#pragma unroll
        for (int gap = 1; gap < across; gap *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, gap);
        if (row == kept && lane % across == 0) room.totals[row] = make_float2(by.score(most), sum);
    }
    __syncthreads();
#pragma unroll 1
    for (int base = 0; base < pieces; base += SLICES * own) {
        const int piece = base + slice * own + lane % own, element = rank * SHARE + wide * piece;
        const bool there = piece < pieces && element < rows * BE;
        const int row = there ? element / BE : low;
        float o[wide] = {};
        if (there)
#pragma unroll 4
            for (int s = lane / own; s < SENDERS; s += together) {
                const float weight = room.states[s * BM + row].x;
                const float4 *part = reinterpret_cast<const float4 *>(room.os + s * SHARE + wide * piece);
#pragma unroll
                for (int e = 0; e < wide; e += 4) {
                    const float4 v = part[e / 4];
                    o[e] = fmaf(v.x, weight, o[e]), o[e + 1] = fmaf(v.y, weight, o[e + 1]);
                    o[e + 2] = fmaf(v.z, weight, o[e + 2]), o[e + 3] = fmaf(v.w, weight, o[e + 3]);
                }
            }
#pragma unroll
        for (int gap = own; gap < 32; gap *= 2)
#pragma unroll
            for (int e = 0; e < wide; e++) o[e] += __shfl_xor_sync(0xFFFFFFFF, o[e], gap);
        const int column = element % BE;
        at.M = first + row, at.N = left + column;
        if (!there || lane >= own || column >= columns) continue;
        ks_fields f[wide];
#pragma unroll
        for (int e = 0; e < wide; e++) f[e].m = room.totals[row].x, f[e].l = room.totals[row].y, f[e].o = o[e];
        if (base > 0) place = ks_row_of(x, at);
        ks_put_N<wide>(x, place, at, ks_min(wide, columns - column), f);
        if (KS_STATES && at.N == 0) ks_state(x, at, f[0]);
    }
}

// The kernel, in `memory`: ROOM bytes, and after them what ks_operands takes.
template <template <int> class ks_operands>
KS_DEVICE void ks_attend_few(const ks_args &x, uint8_t *memory) {
    ks_allow_next_launch();
    const ks_room room(memory);
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const unsigned blocks = unsigned(ks_ceil<int64_t>(ks_extent_M(x), BM)), batches = unsigned(ks_extent_B(x));
    const unsigned across = unsigned(ks_ceil<int64_t>(ks_extent_N(x), BE));
    const unsigned tile = blockIdx.x / BLOCKS / across;
    ks_at i;
    i.N = int64_t(blockIdx.x / BLOCKS % across) * BE;
    i.M = int64_t(blocks - 1 - tile % blocks) * BM;  // rows that see most begin first
    i.B = tile / blocks % batches;
    const int rows = int(ks_min(ks_extent_M(x) - i.M, int64_t(BM)));
    int rank = 0;
    unsigned barrier = 0;
#if KS_CLUSTERED
    i.S = rank = int(ks_cluster_rank());
    barrier = ks_shared_address(memory + SUMS + STATES + TOTALS);
    if (threadIdx.x == 0) {
        const int own = ks_share_of(rank, rows);
        ks_barrier_init(barrier, 1);
        ks_barrier_init_fence();
        ks_barrier_expect(barrier, own > 0 ? SENDERS * (4 * own + 8 * BM) : 0);
    }
    ks_cluster_arrive();  // nobody sends before all barriers are there
#else
    i.S = tile / blocks / batches;
#endif
    ks_at high = i;
    high.M += rows - 1;
    ks_range range;
    range.first = ks_first_K(x, i);
    const int64_t last = KS_SEES ? ks_min(ks_last_K(x, i), ks_most_seen(x, i, high)) : ks_last_K(x, i);
    range.have = int(ks_max(int64_t(0), last - range.first));
    range.whole = range.have;
    if (KS_SEES) range.whole = int(ks_max(int64_t(0), ks_min(last, ks_least_seen(x, i, high)) - range.first));

    const int depth = int(ks_extent_D(x)), columns = int(ks_min(ks_extent_N(x) - i.N, int64_t(BE)));
    const int64_t step_k = ks_step_K_K(x), step_v = ks_step_V_K(x);
    const auto *const keys_at = ks_at_K(x, i) + range.first * step_k;
    const auto *const values_at = ks_at_V(x, i) + range.first * step_v;
    const bool whole = ks_wide_Q(x) && ks_wide_K(x) && ks_wide_V(x) && depth % 8 == 0 && columns % 8 == 0;
    const bool all = whole && depth == BD && columns == BE && ks_near(step_k, range.have) && ks_near(step_v, range.have);
    if (AHEAD > 0 && whole) {
        ks_ask<AHEAD * OWN>(keys_at, step_k, range.have, (depth + 63) / 64, slice * AHEAD * OWN, lane);
        ks_ask<AHEAD * OWN>(values_at, step_v, range.have, (columns + 63) / 64, slice * AHEAD * OWN, lane);
    }
    const ks_rows_of<KS_TYPE_K> keys{keys_at, step_k, ks_step_K_D(x), range.have, depth};
    const ks_rows_of<KS_TYPE_V> values{values_at, step_v, ks_step_V_N(x), range.have, columns};
    ks_rows_of<KS_TYPE_Q> queries[TILES];  // a row of each 8: where it lies takes divisions, which nothing waits for here
#pragma unroll
    for (int r = 0; r < TILES; r++) {
        ks_at at = i;
        at.M += ks_min(8 * r + g, rows - 1);
        queries[r] = {ks_at_Q(x, at), 0, ks_step_Q_D(x), 1, 8 * r + g < rows ? depth : 0};
    }
    ks_wait_for_earlier_launch();
    uint32_t q[TILES][ACROSS][4];
#pragma unroll
    for (int r = 0; r < TILES; r++) {
        if (whole)
            ks_operands<KS_PIECES>::query(queries[r], q[r]);
        else
            ks_operands<KS_ONE_BY_ONE>::query(queries[r], q[r]);
    }
    const ks_sharpness by(x);
    ks_sums sums;
#pragma unroll
    for (int r = 0; r < TILES; r++) {
        sums.m[r][0] = sums.m[r][1] = -KS_INFINITY, sums.l[r][0] = sums.l[r][1] = 0;
#pragma unroll
        for (int n = 0; n < BE / 16; n++) sums.o[r][n][0] = sums.o[r][n][1] = sums.o[r][n][2] = sums.o[r][n][3] = 0;
    }
    const int steps = (range.have + BK - 1) / BK;
    uint8_t *const apart = memory + ROOM;
    if (all && step_k == BD && step_v == BE)
        ks_attend(x, i, range, ks_operands<KS_CLOSE_ROWS>(keys, values, steps, apart), by, rows, q, sums);
    else if (all)
        ks_attend(x, i, range, ks_operands<KS_ALL_PIECES>(keys, values, steps, apart), by, rows, q, sums);
    else if (whole)
        ks_attend(x, i, range, ks_operands<KS_PIECES>(keys, values, steps, apart), by, rows, q, sums);
    else
        ks_attend(x, i, range, ks_operands<KS_ONE_BY_ONE>(keys, values, steps, apart), by, rows, q, sums);
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int gap = 4; gap < 32; gap *= 2) sums.l[r][e] += __shfl_xor_sync(0xFFFFFFFF, sums.l[r][e], gap);
#if KS_CLUSTERED
    ks_cluster_wait();
#endif
    ks_send_sums(room, barrier, rank, rows, sums);
    if (KS_CLUSTERED && ks_share_of(rank, rows) == 0) return;  // nothing is sent here
    ks_finish(x, i, room, by, barrier, rank, rows, columns);
}

