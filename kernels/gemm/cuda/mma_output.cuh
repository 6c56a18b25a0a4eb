// From the sums of warps to the outputs.
//
// mma leaves pairs of neighbours with each lane. They pass shared memory, so that a lane finishes 16 bytes of a row
// and a warp stores whole lines; with SLICES that is where slices are added up, always in the same order. Outputs whose
// rows are not aligned are stored element by element, neighbours by neighbouring lanes.

#pragma once

#include "mma_tile.cuh"

constexpr int ks_least_pitch = 8;  // floats that keep rows of a staged tile in different banks

// Floats of staged tiles: one of 16 rows for each warp, or the whole block's for each slice.
constexpr int ks_staged = KS_SLICES == 1 ? KS_WARPS * 16 * (KS_WN + ks_least_pitch)
                                         : KS_SLICES * KS_BM * (KS_BN + ks_least_pitch);

#ifdef KS_ATOMIC
static_assert(sizeof(KS_TYPE_out) == 4 && KS_IDENTITY_out, "atomics add float32 sums and nothing else");

// Add V neighbours, of which `count` exist. PTX ISA, red: four of them at once from sm_90 on.
template <int V>
KS_DEVICE void ks_add(float *to, int64_t step, int count, const float (&v)[V]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (V == 4)
        if (count >= 4) {
            asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v[0]), "f"(v[1]),
                         "f"(v[2]), "f"(v[3])
                         : "memory");
            return;
        }
#endif
#pragma unroll
    for (int e = 0; e < V; e++)
        if (e < count) atomicAdd(to + e * step, v[e]);
}
#endif

constexpr int ks_wide = 16 / int(sizeof(KS_TYPE_out));  // elements of the output in 16 bytes

// Are pieces of 16 bytes of a row of the output aligned?
KS_DEVICE bool ks_aligned_rows(const ks_args &x, const ks_at &tile) {
#if KS_PLAIN_out
    ks_at i = {};
    i.S = tile.S;
    i.B = tile.B;
    return ks_step_out_N(x) == 1 && ks_aligned(ks_at_out(x, i), 16) &&
           (ks_step_out_M(x) % ks_wide == 0 || ks_extent_M(x) == 1);
#else
    return true;  // where it is not, ks_put_N finds out
#endif
}

// Finish V neighbours in a row, of which `count` exist.
template <int V>
KS_DEVICE void ks_put_sums(const ks_args &x, const ks_at &i, int count, const float (&sums)[V]) {
#ifdef KS_ATOMIC
    ks_add<V>(ks_at_out(x, i), ks_step_out_N(x), count, sums);
#else
    ks_fields f[V];
#pragma unroll
    for (int e = 0; e < V; e++) f[e].KS_RESULT = sums[e];
    ks_put_N<V>(x, i, count, f);
#endif
}

// Finish a tile of sums as below, V neighbours at a time.
template <int V, int Rows, int Columns, int Slices, int Lanes>
KS_DEVICE void ks_write_by(const ks_args &x, const ks_at &corner, const float *staged, int lane) {
    constexpr int pitch = Columns + ks_least_pitch;
    const int rows = int(ks_min(ks_extent_M(x) - corner.M, int64_t(Rows)));
    const int columns = int(ks_min(ks_extent_N(x) - corner.N, int64_t(Columns)));
#pragma unroll 1
    for (int at = lane * V; at < Rows * Columns; at += Lanes * V) {
        const int row = at / Columns, column = at % Columns;
        if (row >= rows || column >= columns) continue;
        float sums[V] = {};
#pragma unroll
        for (int s = 0; s < Slices; s++)
#pragma unroll
            for (int e = 0; e < V; e++) sums[e] += staged[(s * Rows + row) * pitch + column + e];
        ks_at i = corner;
        i.M += row;
        i.N += column;
        ks_put_sums<V>(x, i, columns - column, sums);
    }
}

// Finish Rows x Columns sums from `corner` on, staged Slices times; Lanes threads share the work.
template <int Rows, int Columns, int Slices, int Lanes>
KS_DEVICE void ks_write(const ks_args &x, const ks_at &corner, const float *staged, int lane, bool aligned) {
    if (aligned)
        ks_write_by<ks_wide, Rows, Columns, Slices, Lanes>(x, corner, staged, lane);
    else
        ks_write_by<1, Rows, Columns, Slices, Lanes>(x, corner, staged, lane);
}

// Pairs of 16 rows of a warp's tile, to rows of `pitch` floats.
KS_DEVICE void ks_stage(const ks_warp &w, int m, float *staged, int pitch) {
#pragma unroll
    for (int n = 0; n < KS_WN / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float *to = staged + (w.lane / 4 + half * 8) * pitch + n * 8 + w.lane % 4 * 2;
            *reinterpret_cast<float2 *>(to) = make_float2(w.sums[m][n][half * 2], w.sums[m][n][half * 2 + 1]);
        }
}

// All of a block's outputs. Shared memory is free: no copy is under way, and all threads have come past a barrier.
KS_DEVICE void ks_finish(const ks_args &x, const ks_at &tile, const ks_warp &w, char *shared) {
    const bool aligned = ks_aligned_rows(x, tile);
#ifdef KS_ATOMIC
    ks_wait_for_earlier_launch();  // it stores the zeros that sums are added to
#endif
    float *staged = reinterpret_cast<float *>(shared);
#if KS_SLICES == 1
    constexpr int pitch = KS_WN + ks_least_pitch;
    staged += w.number * 16 * pitch;
#pragma unroll
    for (int m = 0; m < KS_WM / 16; m++) {
        ks_stage(w, m, staged, pitch);
        __syncwarp();  // the warp's rows are there
        ks_at corner = tile;
        corner.M += w.row + m * 16;
        corner.N += w.column;
        ks_write<16, KS_WN, 1, 32>(x, corner, staged, w.lane, aligned);
        __syncwarp();  // and have been read
    }
#else
    constexpr int pitch = KS_BN + ks_least_pitch;
#pragma unroll
    for (int m = 0; m < KS_WM / 16; m++)
        ks_stage(w, m, staged + (w.slice * KS_BM + w.row + m * 16) * pitch + w.column, pitch);
    __syncthreads();  // the sums of all slices are there
    ks_write<KS_BM, KS_BN, KS_SLICES, KS_THREADS>(x, tile, staged, threadIdx.x, aligned);
#endif
}
