// Copies of operands whose addresses or pitches do not suit bulk or vector loads, to rows that do.
//
//   #include "ks_generated.h"
//   #include "pack.cuh"
//   #if KS_PACKED_A
//   KS_PACK_KERNEL(pack_a, A)
//   #endif
//
// or KS_PACK_KERNEL_OF_TWO(pack_both, A, B), where two are copied.
//
// Copies rows of any alignment to rows of ks_pitch_R elements (a multiple of 128 bytes, from a 256 byte boundary on);
//           the rest of each row is set to 0. Batches follow each other.
// Launch    Launch("pack_a", ("min(ceil(M * K * B, 2048) + 1, SMS * 8)", "1", "1"), "256"): any grid, block 256, before
//           the launch that reads the copy.
// Idea      A thread moves pieces of 16 bytes. Neighbouring threads read neighbouring pieces: an unaligned piece is read
//           as the aligned words that hold it and shifted into place, so that every line is fetched once.
// Traffic   reads the operand once, writes it once.
// Edges     any extents and strides; a row whose neighbours are apart is read element by element.

#pragma once

#include "kernsearch.cuh"

// 16 bytes from an address that is aligned to `Size`, the size of an element; they need not be aligned to more. Reads
// only 4 byte words that hold some of the bytes.
template <int Size>
KS_DEVICE uint4 ks_read_unaligned(const void *p) {
    const uint64_t address = reinterpret_cast<uint64_t>(p);
    if ((address & 15) == 0) return *reinterpret_cast<const uint4 *>(p);
    const unsigned *word = reinterpret_cast<const unsigned *>(address & ~uint64_t(3));
    uint4 out;
    if (Size >= 4 || (address & 3) == 0) {
        out.x = word[0], out.y = word[1], out.z = word[2], out.w = word[3];
        return out;
    }
    const unsigned shift = unsigned(address & 3) * 8;
    const unsigned a = word[0], b = word[1], c = word[2], d = word[3], e = word[4];
    out.x = __funnelshift_r(a, b, shift), out.y = __funnelshift_r(b, c, shift);
    out.z = __funnelshift_r(c, d, shift), out.w = __funnelshift_r(d, e, shift);
    return out;
}

// The pieces of one row from `first` on, `step` apart.
template <class T>
KS_DEVICE void ks_pack_row(T *to, int64_t pitch, const T *from, int64_t extent, int64_t step, int first, int threads) {
    constexpr int each = 16 / int(sizeof(T));
    typedef ks_block<T, each> block;
    for (int64_t at = int64_t(first) * each; at < pitch; at += int64_t(threads) * each) {
        block b;
        if (step == 1 && at + each <= extent) {
            b.w[0] = ks_read_unaligned<int(sizeof(T))>(from + at);
        } else {
#pragma unroll
            for (int l = 0; l < each; l++) b.v[l] = at + l < extent ? from[(at + l) * step] : T(0.0f);
        }
        *reinterpret_cast<typename block::word *>(to + at) = b.w[0];
    }
}

// The whole copy, by a grid of blocks of 256 threads: rows are shared out over groups of threads no longer than a row.
template <class T>
KS_DEVICE void ks_pack(T *to, int64_t pitch, const ks_matrix<T> &from) {
    const int64_t pieces = pitch * int64_t(sizeof(T)) / 16;
    int team = 8;  // threads of a row: a power of two, so that a warp reads whole lines
    while (team < 256 && team < pieces) team *= 2;
    const int teams = 256 / team, mine = int(threadIdx.x) / team, lane = int(threadIdx.x) % team;
    const int64_t rows = from.outer * from.batch;
    for (int64_t row = int64_t(blockIdx.x) * teams + mine; row < rows; row += int64_t(gridDim.x) * teams) {
        const int64_t batch = row / from.outer, line = row - batch * from.outer;
        const T *source = from.p + batch * from.step_batch + line * from.step_outer;
        ks_pack_row(to + row * pitch, pitch, source, from.inner, from.step_inner, lane, team);
    }
}

#define KS_PACK_KERNEL(name, R)                                                                  \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ ks_args x) { \
        ks_wait_for_earlier_launch();                                                            \
        ks_allow_next_launch();                                                                  \
        ks_pack(ks_packed_##R(x), ks_pitch_##R(x), ks_source_##R(x));                            \
    }

// Two operands, without waiting between.
#define KS_PACK_KERNEL_OF_TWO(name, R, S)                                                        \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ ks_args x) { \
        ks_wait_for_earlier_launch();                                                            \
        ks_allow_next_launch();                                                                  \
        ks_pack(ks_packed_##R(x), ks_pitch_##R(x), ks_source_##R(x));                            \
        ks_pack(ks_packed_##S(x), ks_pitch_##S(x), ks_source_##S(x));                            \
    }
