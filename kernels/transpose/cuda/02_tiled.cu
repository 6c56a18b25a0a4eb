// transpose/02_tiled: through a tile in shared memory.
//
// Computes  Y[n,m] = X[m,n], bit for bit
// Idea      A warp reads 32 neighbours of a row of X and writes them to a row of the tile; after a barrier it reads 32
//           elements of a column of the tile and writes them to neighbours of a row of Y. So memory sees whole lines on
//           both sides, and what is turned is turned in shared memory, whose 32 banks of 4 bytes do not like columns:
//           where rows are whole multiples of 128 bytes, a column lies in one bank.
// Params    BM BN   rows and columns of X in a tile
//           LAYOUT  0: rows one after the other;  1: a word apart, so that the next row begins one bank on;
//                   2: no longer, but words of a row exchanged: the word's number xor the row's
// Launch    a block for each tile; block 256
// Shared    BM x BN elements; a word more a row for LAYOUT 1
// Traffic   X is read once, Y written once.
// Edges     any extents, 0 included; any strides.

#include "ks_generated.h"

typedef KS_TYPE_X element;
constexpr int BM = KS_BM, BN = KS_BN, WARPS = 8;
constexpr int DOWN = BM / WARPS, ACROSS = BN / 32;           // of a thread, when the tile is filled
constexpr int UNIT = sizeof(element) < 4 ? 4 : sizeof(element);  // bytes that a thread gets from a bank, or two, at once
constexpr int EACH = UNIT / int(sizeof(element));
constexpr int UNITS = BN / EACH, BANKS = 128 / UNIT;
constexpr int PITCH = BN + (KS_LAYOUT == 1 ? EACH : 0);
static_assert(BM % 32 == 0 && BN % 32 == 0, "a tile is no whole number of warps wide and high");
static_assert(KS_LAYOUT >= 0 && KS_LAYOUT <= 2, "LAYOUT is unknown");

// Where the tile has an element of X.
KS_DEVICE int place(int row, int column) {
    if (KS_LAYOUT == 2) {
        constexpr int rows = UNITS < BANKS ? BANKS / UNITS : 1;  // that share 128 bytes
        constexpr int mask = (UNITS < BANKS ? UNITS : BANKS) - 1;
        column = (column / EACH ^ (row / rows & mask)) * EACH + column % EACH;
    }
    return row * PITCH + column;
}

extern "C" __global__ void __launch_bounds__(256) transpose_tiled(const __grid_constant__ ks_args x) {
    extern __shared__ __align__(16) char memory[];
    element *tile = reinterpret_cast<element *>(memory);
    ks_allow_next_launch();
    ks_wait_for_earlier_launch();
    const int64_t across = ks_ceil<int64_t>(ks_extent_N(x), BN);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    ks_at first;
    first.M = blockIdx.x / across * BM, first.N = blockIdx.x % across * BN;
    const int high = int(ks_min(ks_extent_M(x) - first.M, int64_t(BM)));
    const int wide = int(ks_min(ks_extent_N(x) - first.N, int64_t(BN)));

    const element *from = ks_at_X(x, first);
    element held[DOWN][ACROSS];  // all loads of a thread are under way before the first is waited for
#pragma unroll
    for (int r = 0; r < DOWN; r++)
#pragma unroll
        for (int c = 0; c < ACROSS; c++) {
            const int row = r * WARPS + warp, column = c * 32 + lane;
            if (row < high && column < wide) held[r][c] = from[row * ks_step_X_M(x) + column * ks_step_X_N(x)];
        }
#pragma unroll
    for (int r = 0; r < DOWN; r++)
#pragma unroll
        for (int c = 0; c < ACROSS; c++) tile[place(r * WARPS + warp, c * 32 + lane)] = held[r][c];
    __syncthreads();

    element *to = ks_at_out(x, first);
#pragma unroll
    for (int c = 0; c < BN / WARPS; c++)
#pragma unroll
        for (int r = 0; r < BM / 32; r++) {
            const int column = c * WARPS + warp, row = r * 32 + lane;
            if (row < high && column < wide) to[row * ks_step_out_M(x) + column * ks_step_out_N(x)] = tile[place(row, column)];
        }
}
