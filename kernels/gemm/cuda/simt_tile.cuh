// How a tile of the output is dealt to warps, lanes and registers of CUDA cores.
//
// A thread owns TM x TN sums. Along each side a lane takes pieces of four neighbours, then the T % 4 left over, and the
// same piece of all lanes is one run in memory: one instruction loads a piece, lanes that need the same piece share the
// load, and those that do not never meet in a bank.

#pragma once

// T elements for each of L lanes along one side of a warp's tile.
template <int T, int L>
struct ks_share {
    static constexpr int fours = T / 4, rest = T % 4, extent = T * L;
    static_assert(rest < 3, "thread tile leaves three over, which no load takes");
    static_assert(T < 4 || extent % 4 == 0, "a warp's tile begins between two vectors");

    // Where element j of a lane is in the warp's tile.
    static KS_DEVICE constexpr int at(int lane, int j) {
        return j < 4 * fours ? j / 4 * (4 * L) + lane * 4 + j % 4 : fours * 4 * L + lane * rest + j - 4 * fours;
    }

    // The lane's elements of one row of shared memory.
    static KS_DEVICE void load(const float *row, int lane, float (&out)[T]) {
#pragma unroll
        for (int p = 0; p < fours; p++) {
            const float4 v = *reinterpret_cast<const float4 *>(row + at(lane, 4 * p));
            out[4 * p] = v.x, out[4 * p + 1] = v.y, out[4 * p + 2] = v.z, out[4 * p + 3] = v.w;
        }
        if constexpr (rest == 2) {
            const float2 v = *reinterpret_cast<const float2 *>(row + at(lane, 4 * fours));
            out[4 * fours] = v.x, out[4 * fours + 1] = v.y;
        } else if constexpr (rest == 1) {
            out[4 * fours] = row[at(lane, 4 * fours)];
        }
    }

    static KS_DEVICE void store(float *row, int lane, const float (&in)[T]) {
#pragma unroll
        for (int p = 0; p < fours; p++)
            *reinterpret_cast<float4 *>(row + at(lane, 4 * p)) =
                make_float4(in[4 * p], in[4 * p + 1], in[4 * p + 2], in[4 * p + 3]);
        if constexpr (rest == 2)
            *reinterpret_cast<float2 *>(row + at(lane, 4 * fours)) = make_float2(in[4 * fours], in[4 * fours + 1]);
        else if constexpr (rest == 1)
            row[at(lane, 4 * fours)] = in[4 * fours];
    }
};

// A block of BM x BN sums, TM x TN to a thread. Lanes of a warp lie 8 x 4 or 4 x 8, the longer side along the shorter
// side of the thread tile, so that a warp's tile is nearly square; where a side of the block is too short for that, they
// lie along the other.
template <int BM, int BN, int TM, int TN>
struct ks_layout {
    static constexpr int down = BM / TM, across = BN / TN, threads = down * across, warps = threads / 32;
    static constexpr int wish = TM <= TN ? 8 : 4;
    static constexpr int fits_m = down < wish ? down : wish;
    static constexpr int lanes_n = across < 32 / fits_m ? across : 32 / fits_m, lanes_m = 32 / lanes_n;
    static constexpr int warps_m = down / lanes_m, warps_n = across / lanes_n;
    static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles do not fill the block tile");
    static_assert(lanes_m * lanes_n == 32 && down % lanes_m == 0 && across % lanes_n == 0, "thread tiles do not fill whole warps");

    typedef ks_share<TM, lanes_m> rows;
    typedef ks_share<TN, lanes_n> columns;

    int lane_m, lane_n, row, column;  // of the thread in its warp; first row and column of the warp's tile

    KS_DEVICE explicit ks_layout(int thread) {
        const int lane = thread % 32, warp = thread / 32;
        // Each eight lanes that shared memory serves together form a small rectangle: more of them share a piece.
        if constexpr (lanes_m == 8 && lanes_n == 4) {
            lane_m = lane >> 1 & 7, lane_n = (lane & 1) | (lane >> 3 & 2);
        } else if constexpr (lanes_m == 4 && lanes_n == 8) {
            lane_n = lane >> 1 & 7, lane_m = (lane & 1) | (lane >> 3 & 2);
        } else {
            lane_m = lane / lanes_n, lane_n = lane % lanes_n;
        }
        row = warp / warps_n * rows::extent;
        column = warp % warps_n * columns::extent;
    }

    // sums += a column of A times a row of B, both of the block's tiles in shared memory
    static KS_DEVICE void multiply(const float (&a)[TM], const float (&b)[TN], float (&sums)[TM][TN]) {
        // Along the longer side within the shorter: an operand that stays is read from the register file once.
        constexpr bool wide = TM <= TN;
#pragma unroll
        for (int i = 0; i < (wide ? TM : TN); i++)
#pragma unroll
            for (int j = 0; j < (wide ? TN : TM); j++) {
                const int m = wide ? i : j, n = wide ? j : i;
                sums[m][n] = fmaf(a[m], b[n], sums[m][n]);
            }
    }
};
