// few: attention of few queries by warps each of which has keys of its own.
//
// Both products are turned around, K Q^T and V^T P^T: keys, then columns, are the 16 rows of a step and 8 queries its
// columns, so that 8 rows fill it. How keys and values come, by registers or by shared memory, is the includer's
// `ks_operands`. At the end the block adds up what its warps have. With KS_CLUSTERED it sends that to the blocks of its
// cluster, to each what belongs to its share of the outputs: one sender a block, as words to another block are slow.
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
constexpr int PITCH = BE + 4;  // of sums in shared memory: no two lanes in one bank
constexpr int SHARE = BM * BE / BLOCKS, PART = SHARE < BE ? SHARE : BE;  // elements of the outputs that a block finishes,
constexpr int ROWS = SHARE / PART;                                       // parts of rows
constexpr int SUMS = 4 * SLICES * BM * PITCH, STATES = 8 * SLICES * BM;  // bytes: what the block's warps have,
constexpr int MET_SUMS = KS_CLUSTERED * 4 * BLOCKS * SHARE;              // and what the cluster's blocks have of its share
constexpr int MET_STATES = KS_CLUSTERED * 16 * BLOCKS * ROWS, BARRIER = SUMS + STATES + MET_SUMS + MET_STATES;
constexpr int CHAINS = TILES * GROUPS < 4 ? 2 : 1;  // of products that do not wait for each other, of the same scores
constexpr int ROOM = (BARRIER + 16 + 127) / 128 * 128;
static_assert(BM % 8 == 0 && BK % (16 * SLICES) == 0 && BD % 32 == 0 && BE % 64 == 0, "tiles of whole products");
static_assert(BM % BLOCKS == 0 || BLOCKS % BM == 0, "a share is whole rows, or a part of one");
static_assert(PART % 8 == 0 && (SLICES & (SLICES - 1)) == 0, "shares of whole pieces, warps a power of two");
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

// Of a warp, columns down and rows across, in the layout of mma.cuh: lane 4 g + t has rows 2 t and 2 t + 1 of each 8.
// Which columns it has is known to the includer's `settle`.
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
// begin()                           asks for those of the first ASKED steps
// key(step, u, s, a)                of step's keys 16 u.., elements 16 s.. as the left operand of a product
// value(step, u, n, a)              of step's keys 16 u.., columns 16 n.., turned, as the left operand
// before_keys, after_keys(step)     around the use of a step's keys; asks for later ones
// before_values, after_values(step)
// query(row, q)                     a row of queries as the right operands of all products with keys
// settle(o, place)                  the warp's sums to shared memory, a row each PITCH
template <class Operands>
KS_DEVICE void ks_attend(
    const ks_args &x, const ks_at &i, const ks_range &range, Operands &&from,
    const ks_rows_of<KS_TYPE_Q> (&queries)[TILES], const ks_sharpness &by, int rows, ks_sums &sums, float *place
) {
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int steps = (range.have + BK - 1) / BK;
    ks_wait_for_earlier_launch();
    from.begin();
    uint32_t q[TILES][ACROSS][4];
#pragma unroll
    for (int r = 0; r < TILES; r++) from.query(queries[r], q[r]);
    for (int step = 0; step < steps; step++) {
        if (step + from.ASKED >= steps) ks_allow_next_launch();  // all is on its way: no sooner, for it would ask as well
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
    from.settle(sums.o, place);
}

// Where sums meet: of the block's warps, [slice][row][PITCH] and m and l of [slice][row]; and of the cluster's blocks
// what belongs to this one's share, [block][SHARE] and m and l of [block][ROWS].
struct ks_room {
    float *os, *met;
    float2 *states;
    float4 *met_states;

    KS_DEVICE explicit ks_room(uint8_t *memory)
        : os(reinterpret_cast<float *>(memory)), met(reinterpret_cast<float *>(memory + SUMS + STATES)),
          states(reinterpret_cast<float2 *>(memory + SUMS)),
          met_states(reinterpret_cast<float4 *>(memory + SUMS + STATES + MET_SUMS)) {}
};

// Elements of block `rank`'s share that exist.
KS_DEVICE int ks_share_of(int rank, int rows) { return ks_max(0, ks_min(rows * BE - rank * SHARE, SHARE)); }

// Lanes that add up one piece of the outputs, of `senders`: as many as `threads` there are for it, a power of two up to 8.
KS_DEVICE constexpr int ks_sharing(int threads, int senders) {
    int lanes = 1;
    while (lanes < 8 && 2 * lanes <= threads && 2 * lanes <= senders) lanes *= 2;
    return lanes;
}

// Adds up what SENDERS have of `elements` outputs, at most MOST, WIDE neighbours at once: `part(s, e)` is where s's sums
// from element e on lie, `state(s, e)` its m and l; `take(e, m, l, o)` is given the whole.
template <int SENDERS, int MOST, int WIDE, class Part, class State, class Take>
KS_DEVICE void ks_meet(int elements, const ks_sharpness &by, Part &&part, State &&state, Take &&take) {
    constexpr int together = ks_sharing(THREADS * WIDE / MOST, SENDERS), own = 32 / together;  // lanes of a piece; pieces
    const int lane = threadIdx.x % 32, first = (int(threadIdx.x) / 32 * own + lane % own) * WIDE;
#pragma unroll 4
    for (int n = 0; n < (MOST + SLICES * own * WIDE - 1) / (SLICES * own * WIDE); n++) {
        const int e = first + n * SLICES * own * WIDE;
        const bool there = e < elements;
        float most = -KS_INFINITY, sum = 0, o[WIDE] = {};
        if (there)
#pragma unroll
            for (int s = lane / own; s < SENDERS; s += together) most = fmaxf(most, state(s, e).x);
#pragma unroll
        for (int gap = own; gap < 32; gap *= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, gap));
        const float shift = by.shift(most);
        if (there)
#pragma unroll
            for (int s = lane / own; s < SENDERS; s += together) {
                const float2 known = state(s, e);
                const float weight = ks_ex2_flushed(known.x * by.sharp - shift);
                sum = fmaf(known.y, weight, sum);
#pragma unroll
                for (int w = 0; w < WIDE; w += 4) {
                    const float4 v = *reinterpret_cast<const float4 *>(part(s, e) + w);
                    o[w] = fmaf(v.x, weight, o[w]), o[w + 1] = fmaf(v.y, weight, o[w + 1]);
                    o[w + 2] = fmaf(v.z, weight, o[w + 2]), o[w + 3] = fmaf(v.w, weight, o[w + 3]);
                }
            }
#pragma unroll
        for (int gap = own; gap < 32; gap *= 2) {
            sum += __shfl_xor_sync(0xFFFFFFFF, sum, gap);
#pragma unroll
            for (int w = 0; w < WIDE; w++) o[w] += __shfl_xor_sync(0xFFFFFFFF, o[w], gap);
        }
        if (there && lane < own) take(e, most, sum, o);
    }
}

// Outputs from element `skip` of the tile on, as ks_meet gives them. Where they go is found before they have come.
struct ks_finish {
    const ks_args &x;
    const ks_sharpness &by;
    int64_t first, left;
    int columns, skip, row;
    ks_at at;
    ks_row place;

    KS_DEVICE ks_finish(const ks_args &x, const ks_sharpness &by, const ks_at &i, int rows, int columns, int skip, int near)
        : x(x), by(by), first(i.M), left(i.N), columns(columns), skip(skip), row(ks_min((skip + near) / BE, rows - 1)), at(i) {
        at.M = first + row;
        place = ks_row_of(x, at);
    }
    template <int WIDE>
    KS_DEVICE void operator()(int e, float most, float sum, const float (&o)[WIDE]) {
        const int its = (skip + e) / BE, column = (skip + e) % BE;
        if (column >= columns) return;
        at.M = first + its, at.N = left;
        if (its != row) place = ks_row_of(x, at), row = its;
        at.N += column;
        ks_fields f[WIDE];
#pragma unroll
        for (int w = 0; w < WIDE; w++) f[w].m = by.score(most), f[w].l = sum, f[w].o = o[w];
        ks_put_N<WIDE>(x, place, at, ks_min(WIDE, columns - column), f);
        if (KS_STATES && at.N == 0) ks_state(x, at, f[0]);
    }
};

// The kernel, in `memory`: ROOM bytes, and after them what ks_operands takes.
template <template <int> class ks_operands>
KS_DEVICE void ks_attend_few(const ks_args &x, uint8_t *memory) {
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
#if KS_CLUSTERED
    const int rank = int(ks_cluster_rank());
    i.S = rank;
    const unsigned barrier = ks_shared_address(memory + BARRIER);
    if (threadIdx.x == 0) {
        const int share = ks_share_of(rank, rows);
        ks_barrier_init(barrier, 1);
        ks_barrier_init_fence();
        ks_barrier_expect(barrier, BLOCKS * (4 * share + 16 * (share / PART)));
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
    float *const place = room.os + slice * BM * PITCH;
    if (all && step_k == BD && step_v == BE)
        ks_attend(x, i, range, ks_operands<KS_CLOSE_ROWS>(keys, values, steps, apart), queries, by, rows, sums, place);
    else if (all)
        ks_attend(x, i, range, ks_operands<KS_ALL_PIECES>(keys, values, steps, apart), queries, by, rows, sums, place);
    else if (whole)
        ks_attend(x, i, range, ks_operands<KS_PIECES>(keys, values, steps, apart), queries, by, rows, sums, place);
    else
        ks_attend(x, i, range, ks_operands<KS_ONE_BY_ONE>(keys, values, steps, apart), queries, by, rows, sums, place);
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int gap = 4; gap < 32; gap *= 2) sums.l[r][e] += __shfl_xor_sync(0xFFFFFFFF, sums.l[r][e], gap);
            if (g == 0) room.states[slice * BM + 8 * r + 2 * t + e] = make_float2(sums.m[r][e], sums.l[r][e]);
        }
    const auto part = [&](int s, int e) { return room.os + (s * BM + e / BE) * PITCH + e % BE; };
    const auto state = [&](int s, int e) { return room.states[s * BM + e / BE]; };
#if KS_CLUSTERED
    constexpr int wide = SHARE > 4 * THREADS ? 8 : 4;
    const int share = ks_share_of(rank, rows);
    ks_finish finish(x, by, i, rows, columns, rank * SHARE, ks_min(int(threadIdx.x) * wide, SHARE - 1));
    ks_cluster_wait();
    __syncthreads();
    ks_meet<SLICES, BM * BE, 4>(rows * BE, by, part, state, [&](int e, float most, float sum, const float (&o)[4]) {
        const int to = e / SHARE, its = e % SHARE;
        const auto send = [&](void *place, float4 v) { ks_cluster_send(ks_shared_address(place), barrier, to, v); };
        send(room.met + rank * SHARE + its, make_float4(o[0], o[1], o[2], o[3]));
        if (its % PART == 0) send(room.met_states + rank * ROWS + its / PART, make_float4(most, sum, 0, 0));
    });
    if (share == 0) return;  // nothing is sent here
    ks_barrier_wait(barrier, 0);
    ks_meet<BLOCKS, SHARE, wide>(
        share, by, [&](int s, int e) { return room.met + s * SHARE + e; },
        [&](int s, int e) {
            const float4 v = room.met_states[s * ROWS + e / PART];
            return make_float2(v.x, v.y);
        },
        finish
    );
#else
    constexpr int wide = BM * BE > 4 * THREADS ? 8 : 4;
    ks_finish finish(x, by, i, rows, columns, 0, int(threadIdx.x) * wide);
    __syncthreads();
    ks_meet<SLICES, BM * BE, wide>(rows * BE, by, part, state, finish);
#endif
}
