// attention/03_direct: few queries; keys and values go from memory into registers as tensor cores want them.
//
// Computes  s = f(sum over d of Q[m,d] * K[k,d]);  m = max s, l = sum of exp(s - m), o[n] = sum of exp(s - m) * V[k,n];
//           out = g(m, l, o), for each batch. Rows m may be several axes: query heads that share K and V.
// Idea      Both products are turned around, K Q^T and V^T P^T: keys, then columns, are the 16 rows of a step and 8
//           queries its columns, so that 8 rows fill it. The order of d, of keys and of columns within a product is free,
//           and is chosen so that a lane's operands are 16 bytes in memory: no shared memory, no ldmatrix, no barrier
//           while keys go by. Each warp has keys of its own, of which the next step's are on their way while it
//           computes. At the end the block adds up what its warps have; with KS_CLUSTERED it sends each block of the
//           cluster what belongs to its share of the outputs, and finishes a share itself.
// Params    BM rows of a block, 8 a product; BK keys of a step of all warps; BD, BE inner depth and columns, filled up;
//           STAGES 2: the step at work and the next; SPLIT with KS_CLUSTERED: blocks of a cluster
// Knobs     SLICES warps;  AHEAD steps of keys and values that come to the second-level cache while the launch before
//           still runs: nothing is read early, so nothing stale can be
// Launch    a block for BM rows and BE columns of a batch and slab, 32 * SLICES threads; a cluster has the slabs of the
//           same rows and columns
// Shared    4 * SLICES * BM * (BE + 6) + 16, with KS_CLUSTERED 4 * BM * BE + 16 * (BM + SPLIT) more
// Traffic   V is read once for each BM rows of a batch, K once for these and each BE columns; the output is written once.
// Edges     any extents, 1 and more; any strides: where pieces are no whole 16 bytes, elements are read one by one
#include "ks_generated.h"

#include "few.cuh"

// Blocks of a multiprocessor: twelve warps have about 96 KB on their way; where a thread keeps more, what fits.
constexpr int RESIDENT = BM == 8 && OWN == 16 && BD + BE <= 256 ? ks_max(1, 12 / SLICES) : 1;
static_assert(KS_STAGES == 2, "a thread has the step at work and what is on its way");

// Elements [column, column + 8) of a row; 0 where there are none.
template <int Way, class T>
KS_DEVICE void ks_piece(uint32_t (&to)[4], const ks_rows_of<T> &of, const T *row, int column) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (Way == KS_ONE_BY_ONE)
        v = ks_gather(row + column * of.along, of.along, of.across - column);
    else if (Way >= KS_ALL_PIECES || column < of.across)
        v = ks_load_once(row + column);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

// In registers: the step at work, of which the next takes the place piece by piece. Lane 4 g + t has pieces t, t + 4, ..
// of rows g and g + 8 of each 16 keys, and of each 16 values columns 8 g.. of four rows.
template <int Way>
struct ks_operands {
    static constexpr int ASKED = 1;
    ks_rows_of<KS_TYPE_K> keys;
    ks_rows_of<KS_TYPE_V> values;
    int steps;
    uint32_t k[GROUPS][ACROSS][2][4], v[GROUPS][DOWN][4][4];

    KS_DEVICE static int g() { return threadIdx.x % 32 / 4; }
    KS_DEVICE static int t() { return threadIdx.x % 4; }
    KS_DEVICE static int own(int step) { return step * BK + threadIdx.x / 32 * OWN; }

    KS_DEVICE ks_operands(
        const ks_rows_of<KS_TYPE_K> &keys, const ks_rows_of<KS_TYPE_V> &values, int steps, uint8_t *
    ) : keys(keys.beside(8 * t())), values(values.beside(8 * g())), steps(steps) {}

    KS_DEVICE void ask_keys(int step) {
#pragma unroll
        for (int u = 0; u < GROUPS; u++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const auto *row = keys.template row<Way>(own(step) + 16 * u + g() + 8 * half);
#pragma unroll
                for (int j = 0; j < ACROSS; j++) ks_piece<Way>(k[u][j][half], keys, row, 32 * j);
            }
    }
    KS_DEVICE void ask_values(int step) {
#pragma unroll
        for (int u = 0; u < GROUPS; u++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const auto *row = values.template row<Way>(own(step) + 16 * u + 2 * t() + e % 2 + e / 2 * 8);
#pragma unroll
                for (int h = 0; h < DOWN; h++) ks_piece<Way>(v[u][h][e], values, row, 64 * h);
            }
    }
    KS_DEVICE void begin() {
        if (steps > 0) ask_keys(0), ask_values(0);
    }
    KS_DEVICE void before_keys(int) {}
    KS_DEVICE void after_keys(int step) {
        if (step + 1 < steps) ask_keys(step + 1);
    }
    KS_DEVICE void before_values(int) {}
    KS_DEVICE void after_values(int step) {
        if (step + 1 < steps) ask_values(step + 1);
    }

    KS_DEVICE void key(int, int u, int s, uint32_t (&a)[4]) const {
        const int j = s / 2, w = s % 2 * 2;
        a[0] = k[u][j][0][w], a[1] = k[u][j][1][w], a[2] = k[u][j][0][w + 1], a[3] = k[u][j][1][w + 1];
    }
    KS_DEVICE void value(int, int u, int n, uint32_t (&a)[4]) const {
        const auto &w = v[u][n / 4];  // of four keys
        a[0] = ks_low_halves(w[0][n % 4], w[1][n % 4]), a[1] = ks_high_halves(w[0][n % 4], w[1][n % 4]);
        a[2] = ks_low_halves(w[2][n % 4], w[3][n % 4]), a[3] = ks_high_halves(w[2][n % 4], w[3][n % 4]);
    }
    KS_DEVICE static void query(const ks_rows_of<KS_TYPE_Q> &row, uint32_t (&q)[ACROSS][4]) {
        const auto own = row.beside(8 * t());
#pragma unroll
        for (int j = 0; j < ACROSS; j++) ks_piece<Way>(q[j], own, own.from, 32 * j);
    }
    // Lane 4 g + t has columns 64 h + 8 g + 0..7 of rows 2 t and 2 t + 1.
    KS_DEVICE void settle(const float (&o)[TILES][BE / 16][4], float *place) const {
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int e = 0; e < 2; e++)
#pragma unroll
                for (int n = 0; n < BE / 32; n++)
                    *reinterpret_cast<float4 *>(place + (8 * r + 2 * t() + e) * PITCH + n / 2 * 64 + 8 * g() + n % 2 * 4) =
                        make_float4(o[r][2 * n][e], o[r][2 * n][2 + e], o[r][2 * n + 1][e], o[r][2 * n + 1][2 + e]);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention_direct(const __grid_constant__ ks_args x) {
    extern __shared__ __align__(128) uint8_t memory[];
    ks_attend_few<ks_operands>(x, memory);
}
