// attention/05_ring: few queries; keys and values go by shared memory, where each warp has a ring of its own.
//
// Computes  s = f(sum over d of Q[m,d] * K[k,d]);  m = max s, l = sum of exp(s - m), o[n] = sum of exp(s - m) * V[k,n];
//           out = g(m, l, o), for each batch. Rows m may be several axes: query heads that share K and V.
// Idea      As 03, but what is on its way takes no registers, so that more is: copies of 16 bytes to a warp's own part of
//           shared memory, whole rows by neighbouring lanes. A step's keys make room for later ones as soon as they were
//           used, its values after that. No barrier of the block while keys go by: nobody else reads what a warp asked for.
// Params    BM rows of a block, 8 a product; BK keys of a step of all warps; BD, BE inner depth and columns, filled up;
//           STAGES steps in shared memory, at work or on their way; SPLIT with KS_CLUSTERED: blocks of a cluster
// Knobs     SLICES warps;  AHEAD steps of keys and values that come to the second-level cache while the launch before
//           still runs: nothing is read early, so nothing stale can be
// Launch    a block for BM rows and BE columns of a batch and slab, 32 * SLICES threads; a cluster has the slabs of the
//           same rows and columns
// Shared    4 * SLICES * BM * (BE + 6) + 16, with KS_CLUSTERED 4 * BM * BE + 16 * (BM + SPLIT) more, in whole 128 bytes,
//           and 2 * STAGES * BK * (BD + BE)
// Traffic   V is read once for each BM rows of a batch, K once for these and each BE columns; the output is written once.
// Edges     any extents, 1 and more; any strides: where pieces are no whole 16 bytes, elements are moved one by one
#include "ks_generated.h"

#include "async_copy.cuh"
#include "few.cuh"
#include "swizzle.cuh"

constexpr int STAGES = KS_STAGES, KEY_BYTES = 2 * OWN * BD, STAGE = KEY_BYTES + 2 * OWN * BE;  // of a warp
constexpr int RESIDENT = BM == 8 && BD + BE <= 256 ? ks_max(1, 12 / SLICES) : 1;              // blocks of a multiprocessor

// What takes the address of a piece to that of `by` more pieces, or of the same piece `by` rows on, less the constant
// distance: whole 128 bytes, in which pieces are crossed with the last bits of the row. Of `by` the bits must be free in
// the lane's own piece or row.
KS_DEVICE constexpr int ks_crossed(int by) { return (by & 7) << 4; }

// The rows of a warp's step from `first` on to `to`, its place in the ring.
template <int Way, int Wide, class T>
KS_DEVICE void ks_ask_rows(uint8_t *to, const ks_rows_of<T> &rows, int first) {
    constexpr int pieces = Wide / 8, turns = OWN * pieces / 32;
    const int lane = threadIdx.x % 32;
    if (Way >= KS_ALL_PIECES && 32 % pieces == 0 && first + OWN <= rows.have) {  // a constant step from row to row
        constexpr int down = 32 / (pieces < 32 ? pieces : 32);                   // rows of a turn
        const int64_t step = Way == KS_CLOSE_ROWS ? int64_t(Wide) : rows.step;
        const T *from = rows.from + (first + lane / pieces) * step + lane % pieces * 8;
        const ks_shared_t at = ks_shared(to) + ks_place<pieces>(lane / pieces, lane % pieces);
#pragma unroll
        for (int n = 0; n < turns; n++, from += down * step)
            ks_copy_async<16>((at ^ ks_crossed(down * n)) + down * n * (2 * Wide), from, 16);
        return;
    }
    const ks_shared_t place = ks_shared(to);
#pragma unroll 1
    for (int n = 0; n < turns; n++) {
        const int row = (32 * n + lane) / pieces, piece = (32 * n + lane) % pieces, column = 8 * piece;
        const int at = ks_place<pieces>(row, piece);
        const T *from = rows.template row<Way>(first + row);
        if (Way == KS_ONE_BY_ONE) {
            *reinterpret_cast<uint4 *>(to + at) = ks_gather(from + column * rows.along, rows.along, rows.across - column);
        } else {
            const bool there = Way >= KS_ALL_PIECES || column < rows.across;
            ks_copy_async<16>(place + at, there ? from + column : from, there ? 16 : 0);
        }
    }
}

// Groups of copies follow each other as keys, values, keys, values: what is used next is all but the last 2 STAGES - 1.
template <int Way>
struct ks_operands {
    static constexpr int ASKED = STAGES;
    const ks_rows_of<KS_TYPE_K> &keys;
    const ks_rows_of<KS_TYPE_V> &values;
    int steps, slot = 0;  // the step at work is in that place
    uint8_t *ring;        // this warp's

    KS_DEVICE ks_operands(
        const ks_rows_of<KS_TYPE_K> &keys, const ks_rows_of<KS_TYPE_V> &values, int steps, uint8_t *rings
    ) : keys(keys), values(values), steps(steps), ring(rings + threadIdx.x / 32 * (STAGES * STAGE)) {}

    KS_DEVICE uint8_t *keys_in(int place) const { return ring + place * STAGE; }
    KS_DEVICE uint8_t *values_in(int place) const { return keys_in(place) + KEY_BYTES; }
    KS_DEVICE static int own(int step) { return step * BK + threadIdx.x / 32 * OWN; }

    KS_DEVICE void ask_keys(int step, int place) {
        if (step < steps) ks_ask_rows<Way, BD>(keys_in(place), keys, own(step));
        ks_copy_commit();
    }
    KS_DEVICE void ask_values(int step, int place) {
        if (step < steps) ks_ask_rows<Way, BE>(values_in(place), values, own(step));
        ks_copy_commit();
    }
    KS_DEVICE void begin() {
#pragma unroll 1
        for (int s = 0; s < STAGES; s++) ask_keys(s, s), ask_values(s, s);
    }
    KS_DEVICE static void arrived() {
        ks_copy_wait<2 * STAGES - 1>();
        __syncwarp();
    }
    KS_DEVICE void before_keys(int) { arrived(); }
    KS_DEVICE void after_keys(int step) {
        __syncwarp();
        ask_keys(step + STAGES, slot);
    }
    KS_DEVICE void before_values(int) { arrived(); }
    KS_DEVICE void after_values(int step) {
        __syncwarp();
        ask_values(step + STAGES, slot);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
    }

    KS_DEVICE void key(int, int u, int s, uint32_t (&a)[4]) const {
        const int lane = threadIdx.x % 32;
        const ks_shared_t at = ks_shared(keys_in(slot)) + ks_place<BD / 8>(lane % 16, lane / 16);
        ks_load_matrices(a, (at ^ ks_crossed(2 * s)) + 2 * (s & ~3) * 16 + 16 * u * (2 * BD));
    }
    KS_DEVICE void value(int, int u, int n, uint32_t (&a)[4]) const {
        const int lane = threadIdx.x % 32;
        const ks_shared_t at = ks_shared(values_in(slot)) + ks_place<BE / 8>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
        ks_load_matrices_transposed(a, (at ^ ks_crossed(2 * n)) + 2 * (n & ~3) * 16 + 16 * u * (2 * BE));
    }
    KS_DEVICE static void query(const ks_rows_of<KS_TYPE_Q> &row, uint32_t (&q)[ACROSS][4]) {
#pragma unroll
        for (int j = 0; j < ACROSS; j++)
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const int column = 32 * j + 8 * w + threadIdx.x % 4 * 2;
                q[j][w] = 0;
                if (Way == KS_ONE_BY_ONE)
                    q[j][w] = ks_gather(row.from + column * row.along, row.along, ks_min(row.across - column, 2)).x;
                else if (column < row.across)
                    q[j][w] = *reinterpret_cast<const uint32_t *>(row.from + column);
            }
    }
    // Lane 4 g + t has columns 16 n + g and 16 n + 8 + g of rows 2 t and 2 t + 1.
    KS_DEVICE void settle(const float (&o)[TILES][BE / 16][4], float *place) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int n = 0; n < BE / 16; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) place[(8 * r + 2 * t + e % 2) * PITCH + 16 * n + e / 2 * 8 + g] = o[r][n][e];
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention_ring(const __grid_constant__ ks_args x) {
    extern __shared__ __align__(128) uint8_t memory[];
    ks_attend_few<ks_operands>(x, memory);
}
