// attention/01_async: scores, online softmax and weighted values by warps on tensor cores, keys in a ring.
//
// Computes  s = f(sum over d of Q[m,d] * K[k,d]);  m = max s, l = sum of exp(s - m), o[n] = sum of exp(s - m) * V[k,n];
//           out = g(m, l, o), for each batch. Rows m may be several axes: query heads that share K and V.
// Idea      A warp has WM rows and all columns of the output. Scores stay in registers: as they leave one product, rounded
//           weights enter the next. With few rows, SLICES warps share the keys of each tile, each with maxima and sums of
//           its own, which are put together once, at the end. Keys that a mask hides from the whole block are left out.
// Params    BM rows of a block, WM of a warp; BK keys of a tile; BD, BE inner depth and columns, filled up with zeros;
//           STAGES tiles of keys and values;  Knobs SLICES warps along the keys of a tile
// Launch    a block for BM rows of a batch and slab, 32 * BM / WM * SLICES threads
// Shared    queries 2 * BM * BD; STAGES * 2 * BK * (BD + BE), and in their place at the end 4 * SLICES * BM * (BE + 2)
// Traffic   K and V are read once for each BM rows of a batch, Q and the output once.
// Edges     any extents, 1 and more; any strides: where rows are no whole 16 bytes, elements are moved one by one
#include "ks_generated.h"

#include "async_copy.cuh"
#include "mma.cuh"
#include "state.cuh"
#include "swizzle.cuh"

constexpr int BM = KS_BM, WM = KS_WM, BK = KS_BK, BD = KS_BD, BE = KS_BE, STAGES = KS_STAGES, SLICES = KS_SLICES;
constexpr int DOWN = BM / WM, TILES = WM / 16, KEYS = BK / SLICES;  // warps along rows; 16 rows each; keys of a warp
constexpr int THREADS = 32 * DOWN * SLICES;
constexpr bool KEPT = TILES == 1;  // do queries stay in registers?
constexpr int Q_BYTES = 2 * BM * BD, K_BYTES = 2 * BK * BD, STAGE_BYTES = K_BYTES + 2 * BK * BE;
static_assert(BM % WM == 0 && WM % 16 == 0 && BK % (16 * SLICES) == 0, "tiles of whole products");
static_assert(BD % 16 == 0 && BE % 16 == 0, "depth and columns of whole products");
static_assert(sizeof(KS_TYPE_Q) == 2 && sizeof(KS_TYPE_K) == 2 && sizeof(KS_TYPE_V) == 2, "operands of two bytes");

// A tile of an operand: Rows rows of `Wide` elements, of which `have` rows of `across` elements exist; the rest become
// zeros. Where `wide`, pieces of 16 bytes lie together and aligned; a thread then goes down a column of pieces by a
// constant step, and all its copies are asked for one after the other.
template <int Rows, int Wide, class T>
KS_DEVICE void ks_fill_rows(
    ks_shared_t to, uint8_t *there, int have, int across, bool wide, int64_t along, const T *first, int64_t pitch
) {
    constexpr int pieces = Wide / 8, all = Rows * pieces;
    if (wide && THREADS % pieces == 0) {
        constexpr int step = ks_max(THREADS / pieces, 1), turns = (Rows + step - 1) / step;
        const int row = threadIdx.x / pieces, column = threadIdx.x % pieces;
        const int bytes = ks_max(0, ks_min(16, 2 * (across - 8 * column)));
        const T *from = first + row * pitch + 8 * column;
#pragma unroll
        for (int k = 0; k < turns; k++) {
            const int r = row + k * step;
            const bool there = r < have && bytes > 0;
            if (Rows % step == 0 || r < Rows)
                ks_copy_async<16>(to + ks_place<pieces>(r, column), there ? from : first, there ? bytes : 0);
            from += step * pitch;
        }
        return;
    }
#pragma unroll 1
    for (int p = threadIdx.x; p < all; p += THREADS) {
        const int row = p / pieces, column = p % pieces * 8, place = ks_place<pieces>(row, p % pieces);
        const int count = row < have ? ks_max(0, ks_min(8, across - column)) : 0;
        const T *from = count ? first + row * pitch + column * along : first;
        if (wide) {
            ks_copy_async<16>(to + place, from, 2 * count);
        } else {
#pragma unroll 1
            for (int e = 0; e < 8; e++)
                reinterpret_cast<T *>(there + place)[e] = e < count ? from[e * along] : ks_from_acc<T>(0);
        }
    }
}

// The queries, whose rows are several axes: an address of its own for each piece.
template <class Start>
KS_DEVICE void ks_fill_queries(
    ks_shared_t to, uint8_t *there, int have, int across, bool wide, int64_t along, Start start
) {
    constexpr int pieces = BD / 8;
    typedef KS_TYPE_Q T;
#pragma unroll 1
    for (int p = threadIdx.x; p < BM * pieces; p += THREADS) {
        const int row = p / pieces, column = p % pieces * 8, place = ks_place<pieces>(row, p % pieces);
        const int count = row < have ? ks_max(0, ks_min(8, across - column)) : 0;
        const T *from = start(count ? row : 0) + (count ? column * along : 0);
        if (wide) {
            ks_copy_async<16>(to + place, from, 2 * count);
        } else {
#pragma unroll 1
            for (int e = 0; e < 8; e++)
                reinterpret_cast<T *>(there + place)[e] = e < count ? from[e * along] : ks_from_acc<T>(0);
        }
    }
}

// Of a warp: sums in the layout of mma.cuh, and for each thread its two rows of each 16.
struct ks_sums {
    float o[TILES][BE / 8][4], m[TILES][2], l[TILES][2];
};

// The sums of all warps that share rows, in the order of the warps, become those of all keys: 8 neighbouring columns of a
// row by a thread, whose place in memory is computed once for all of them.
KS_DEVICE void ks_put_together(
    const ks_args &x, ks_at at, uint8_t *memory, const ks_sharpness &by, int rows, int columns, int down, int slice,
    const ks_sums &sums
) {
    float *ms = reinterpret_cast<float *>(memory), *ls = ms + BM * SLICES, *os = ls + BM * SLICES;
    const int lane = threadIdx.x % 32;
    const int64_t first = at.M;
    __syncthreads();  // nothing reads keys and values any more
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = down * WM + r * 16 + lane / 4 + 8 * h;
            if (lane % 4 == 0) ms[row * SLICES + slice] = sums.m[r][h], ls[row * SLICES + slice] = sums.l[r][h];
#pragma unroll
            for (int n = 0; n < BE / 8; n++)
                *reinterpret_cast<float2 *>(os + (slice * BM + row) * BE + 8 * n + 2 * (lane % 4)) =
                    make_float2(sums.o[r][n][2 * h], sums.o[r][n][2 * h + 1]);
        }
    __syncthreads();
#pragma unroll 1
    for (int p = threadIdx.x; p < rows * (BE / 8); p += THREADS) {
        const int row = p / (BE / 8);
        at.M = first + row, at.N = p % (BE / 8) * 8;
        if (at.N >= columns) continue;
        ks_fields f[8];
        float most = -KS_INFINITY, all = 0, o[8] = {};
#pragma unroll
        for (int s = 0; s < SLICES; s++) most = fmaxf(most, ms[row * SLICES + s]);
        const float shift = by.shift(most);
#pragma unroll
        for (int s = 0; s < SLICES; s++) {
            const float less = ks_ex2_flushed(ms[row * SLICES + s] * by.sharp - shift);
            all = fmaf(ls[row * SLICES + s], less, all);
            const float4 *part = reinterpret_cast<const float4 *>(os + (s * BM + row) * BE + at.N);
#pragma unroll
            for (int e = 0; e < 8; e += 4) {
                const float4 v = part[e / 4];
                o[e] = fmaf(v.x, less, o[e]), o[e + 1] = fmaf(v.y, less, o[e + 1]);
                o[e + 2] = fmaf(v.z, less, o[e + 2]), o[e + 3] = fmaf(v.w, less, o[e + 3]);
            }
        }
#pragma unroll
        for (int e = 0; e < 8; e++) f[e].m = by.score(most), f[e].l = all, f[e].o = o[e];
        ks_put_N<8>(x, ks_row_of(x, at), at, ks_min(8, columns - int(at.N)), f);
        if (KS_STATES && at.N == 0) ks_state(x, at, f[0]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_async(const __grid_constant__ ks_args x) {
    extern __shared__ __align__(128) uint8_t memory[];
    ks_allow_next_launch();
    const ks_shared_t shared = ks_shared(memory), stages = shared + Q_BYTES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, down = warp % DOWN, slice = warp / DOWN;
    const unsigned blocks = unsigned(ks_ceil<int64_t>(ks_extent_M(x), BM)), batches = unsigned(ks_extent_B(x));
    ks_at i;
    i.M = int64_t(blocks - 1 - blockIdx.x % blocks) * BM;  // rows that see most begin first
    i.B = blockIdx.x / blocks % batches;
    i.S = blockIdx.x / blocks / batches;
    const int rows = int(ks_min(ks_extent_M(x) - i.M, int64_t(BM)));
    ks_at high = i;
    high.M += rows - 1;
    const int64_t first = ks_first_K(x, i);
    const int64_t last = KS_SEES ? ks_min(ks_last_K(x, i), ks_most_seen(x, i, high)) : ks_last_K(x, i);
    const int64_t whole = KS_SEES ? ks_min(last, ks_least_seen(x, i, high)) : last;  // those before are seen by all rows
    const int tiles = last > first ? int((last - first + BK - 1) / BK) : 0;

    ks_wait_for_earlier_launch();
    const int depth = int(ks_extent_D(x)), columns = int(ks_extent_N(x));
    const bool wide_q = ks_wide_Q(x), wide_k = ks_wide_K(x), wide_v = ks_wide_V(x);
    ks_fill_queries(shared, memory, rows, depth, wide_q, ks_step_Q_D(x), [&](int row) {
        ks_at at = i;
        at.M += row;
        return ks_at_Q(x, at);
    });
    ks_copy_commit();
    // The batch may be several axes, whose indices take divisions: once, and not for each piece of a tile.
    const KS_TYPE_K *const keys_at = ks_at_K(x, i);
    const KS_TYPE_V *const values_at = ks_at_V(x, i);
    const int64_t step_k = ks_step_K_K(x), step_v = ks_step_V_K(x);
    auto load = [&](int tile) {
        if (tile < tiles) {
            const int to = tile % STAGES * STAGE_BYTES;
            const int64_t from = first + int64_t(tile) * BK;
            const int have = int(ks_min(last - from, int64_t(BK)));
            ks_fill_rows<BK, BD>(stages + to, memory + Q_BYTES + to, have, depth, wide_k, ks_step_K_D(x),
                                 keys_at + from * step_k, step_k);
            ks_fill_rows<BK, BE>(stages + to + K_BYTES, memory + Q_BYTES + to + K_BYTES, have, columns, wide_v,
                                 ks_step_V_N(x), values_at + from * step_v, step_v);
        }
        ks_copy_commit();
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) load(s);

    const ks_sharpness by(x);
    ks_sums sums;
#pragma unroll
    for (int r = 0; r < TILES; r++) {
        sums.m[r][0] = sums.m[r][1] = -KS_INFINITY, sums.l[r][0] = sums.l[r][1] = 0;
#pragma unroll
        for (int n = 0; n < BE / 8; n++) sums.o[r][n][0] = sums.o[r][n][1] = sums.o[r][n][2] = sums.o[r][n][3] = 0;
    }
    auto queries = [&](int r, int d, unsigned (&a)[4]) {
        ks_load_matrices(a, shared + ks_place<BD / 8>(down * WM + r * 16 + lane % 16, 2 * d + lane / 16));
    };
    unsigned kept[KEPT ? BD / 16 : 1][4];
    for (int tile = 0; tile < tiles; tile++) {
        ks_copy_wait<STAGES - 2>();
        __syncthreads();  // the tile is there for all, and all have done with the one whose place the next takes
        if (KEPT && tile == 0) {
#pragma unroll
            for (int d = 0; d < BD / 16; d++) queries(0, d, kept[d]);
        }
        load(tile + STAGES - 1);
        const ks_shared_t keys = stages + tile % STAGES * STAGE_BYTES, values = keys + K_BYTES;
        const int own = slice * KEYS;
        float s[TILES][KEYS / 8][4];
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) s[r][n][0] = s[r][n][1] = s[r][n][2] = s[r][n][3] = 0;
#pragma unroll
        for (int d = 0; d < BD / 16; d++) {
            unsigned a[TILES][4];
#pragma unroll
            for (int r = 0; r < TILES; r++) {
                if (KEPT)
#pragma unroll
                    for (int e = 0; e < 4; e++) a[r][e] = kept[d][e];
                else
                    queries(r, d, a[r]);
            }
#pragma unroll
            for (int n = 0; n < KEYS / 16; n++) {
                unsigned b[4];  // keys 0 to 7, both halves of the step, then keys 8 to 15
                const int row = own + 16 * n + lane % 8 + lane / 16 * 8;
                ks_load_matrices(b, keys + ks_place<BD / 8>(row, 2 * d + lane / 8 % 2));
#pragma unroll
                for (int r = 0; r < TILES; r++) {
                    ks_multiply<KS_TYPE_K>(s[r][2 * n], a[r], b[0], b[1]);
                    ks_multiply<KS_TYPE_K>(s[r][2 * n + 1], a[r], b[2], b[3]);
                }
            }
        }
        const int64_t from = first + int64_t(tile) * BK + own;
        const bool cut = from + KEYS > whole;
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                ks_at at = i;
                at.M += down * WM + r * 16 + lane / 4 + 8 * h;
#if !KS_SCALED
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        at.K = from + 8 * n + 2 * (lane % 4) + e;
                        if (at.K < last && at.M <= high.M) s[r][n][2 * h + e] = ks_score(x, at, s[r][n][2 * h + e]);
                    }
#endif
                if (by.turned)
#pragma unroll
                    for (int n = 0; n < KEYS / 8; n++) s[r][n][2 * h] *= -1, s[r][n][2 * h + 1] *= -1;
                if (cut) {
                    const int64_t seen = (KS_SEES ? ks_min(last, ks_sees(x, at)) : last) - from - 2 * (lane % 4);
#pragma unroll
                    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            if (8 * n + e >= seen) s[r][n][2 * h + e] = -KS_INFINITY;
                }
                float most = sums.m[r][h];
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++) most = fmaxf(most, fmaxf(s[r][n][2 * h], s[r][n][2 * h + 1]));
                most = ks_row_most(most);
                const float shift = by.shift(most), less = ks_ex2_flushed(sums.m[r][h] * by.sharp - shift);
                float sum = 0;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &w = s[r][n][2 * h + e];
                        w = ks_ex2_flushed(fmaf(w, by.sharp, -shift));
                        sum += w;
                    }
                sums.m[r][h] = most, sums.l[r][h] = fmaf(sums.l[r][h], less, sum);
#pragma unroll
                for (int n = 0; n < BE / 8; n++) sums.o[r][n][2 * h] *= less, sums.o[r][n][2 * h + 1] *= less;
            }
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            unsigned p[TILES][4];
#pragma unroll
            for (int r = 0; r < TILES; r++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    p[r][e] = ks_pair(s[r][2 * k + e / 2][e % 2 * 2], s[r][2 * k + e / 2][e % 2 * 2 + 1], KS_TYPE_V());
#pragma unroll
            for (int n = 0; n < BE / 16; n++) {
                unsigned b[4];  // 8 columns, both halves of the step, then the next 8
                ks_load_matrices_transposed(b, values + ks_place<BE / 8>(own + 16 * k + lane % 16, 2 * n + lane / 16));
#pragma unroll
                for (int r = 0; r < TILES; r++) {
                    ks_multiply<KS_TYPE_V>(sums.o[r][2 * n], p[r], b[0], b[1]);
                    ks_multiply<KS_TYPE_V>(sums.o[r][2 * n + 1], p[r], b[2], b[3]);
                }
            }
        }
    }
    ks_copy_wait<0>();
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) sums.l[r][h] = ks_row_sum(sums.l[r][h]);
    if constexpr (SLICES > 1) {
        ks_put_together(x, i, memory + Q_BYTES, by, rows, columns, down, slice, sums);
        return;
    }
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            ks_at at = i;
            at.M += down * WM + r * 16 + lane / 4 + 8 * h;
            if (at.M > high.M) continue;
            ks_fields f[2];
            f[0].m = f[1].m = by.score(sums.m[r][h]), f[0].l = f[1].l = sums.l[r][h];
            const ks_row row = ks_row_of(x, at);
#pragma unroll
            for (int n = 0; n < BE / 8; n++) {
                at.N = 8 * n + 2 * (lane % 4);
                f[0].o = sums.o[r][n][2 * h], f[1].o = sums.o[r][n][2 * h + 1];
                if (at.N < columns) ks_put_N<2>(x, row, at, ks_min(2, columns - int(at.N)), f);
            }
            at.N = 0;
            if (KS_STATES && lane % 4 == 0) ks_state(x, at, f[0]);
        }
}
