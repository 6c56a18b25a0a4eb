// How a block fetches tiles of an operand that may lie in memory in any way.
//
// A tile has rows of pieces of 8 elements (16 bytes) along the direction in which the operand is contiguous: K (Deep),
// or M or N. A thread fetches every so many rows the same piece. Three ways, the same for all threads of a call:
//   whole    pieces are aligned: cp.async, or one load of 16 bytes
//   packed   elements are neighbours but pieces are not aligned, as with an odd pitch: the two aligned 16 bytes around
//            a piece are loaded and shifted together; the operand's very first and last piece go the last way, so that
//            nothing is read that lies before its first or behind its last element
//   loose    element by element: any strides
// Elements past the end of a row or column, or of the slab, count as zero.

#pragma once

#include "../../common/cuda/async_copy.cuh"
#include "../../common/cuda/swizzle.cuh"

// A piece on its way through registers: `shift` is how many bytes of `low` come before it.
struct ks_piece {
    uint4 low, high;
    int shift;
};

// The 16 bytes from `shift` on (even, below 16) of the 32 in low and high.
KS_DEVICE uint4 ks_realigned(const ks_piece &p) {
    uint32_t w[8] = {p.low.x, p.low.y, p.low.z, p.low.w, p.high.x, p.high.y, p.high.z, p.high.w};
#pragma unroll
    for (int i = 0; i < 6; i++) w[i] = p.shift & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; i++) w[i] = p.shift & 4 ? w[i + 1] : w[i];
    const uint32_t bits = p.shift & 2 ? 16 : 0;
    return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                      __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
}

// The first `count` of 8 elements, and zeros.
KS_DEVICE uint4 ks_first(uint4 v, int count) {
    if (count >= 8) return v;
    const auto mask = [=](int from) { return count >= from + 2 ? ~0u : count == from + 1 ? 0xffffu : 0u; };
    return make_uint4(v.x & mask(0), v.y & mask(2), v.z & mask(4), v.w & mask(6));
}

template <class T>
KS_DEVICE uint32_t ks_bits(const T *p) { return __ldg(reinterpret_cast<const unsigned short *>(p)); }

// An operand as it lies in memory, at one slab and batch.
template <class T>
struct ks_operand {
    const T *at;                      // element (0, first of the slab)
    int64_t outer, depth, first, all;  // extent along M or N; elements of the slab along K, before it, and of all slabs
    int64_t outer_step, depth_step;
};

template <class T, int Outer, int Depth, bool Deep, int Threads>
struct ks_source {
    static constexpr int rows = Deep ? Outer : Depth, pieces = (Deep ? Depth : Outer) / 8;
    static constexpr int total = rows * pieces, count = (total + Threads - 1) / Threads, apart = Threads / pieces;
    static constexpr int bytes = Outer * Depth * 2;
    static_assert(pieces > 0 && Threads % pieces == 0, "threads do not share the pieces of a row evenly");
    static_assert(total < Threads || total % Threads == 0, "threads do not share the pieces of a tile evenly");

    const T *at;          // this thread's first piece of the tile that is fetched next
    int64_t left;         // elements along K from that tile's first to the slab's end
    int64_t row_step, step, next;
    const T *begin, *end;  // of what may be read in pieces around the wanted one; empty when strides are negative
    int outer;            // elements along M or N from the tile's first to the operand's end
    int row, piece;
    bool whole;

    KS_DEVICE ks_source(const ks_operand<T> &x, int64_t corner, int thread) {
        row = thread / pieces;
        piece = thread % pieces;
        row_step = Deep ? x.outer_step : x.depth_step;
        step = Deep ? x.depth_step : x.outer_step;
        next = Depth * x.depth_step;
        at = x.at + corner * x.outer_step + row * row_step + piece * 8 * step;
        left = x.depth;
        outer = int(ks_min(x.outer - corner, int64_t(Outer)));
        begin = x.at - x.first * x.depth_step;
        end = begin + (x.outer - 1) * x.outer_step + (x.all - 1) * x.depth_step + 1;
        if (row_step < 0) end = begin;
        const bool one = (Deep ? x.outer : x.all) <= 1;  // then the pitch is never used
        whole = step == 1 && ks_aligned(x.at, 16) && (one || row_step % 8 == 0);
    }

    // Elements of the tile that exist along K.
    KS_DEVICE int depth() const { return int(ks_max(ks_min(left, int64_t(Depth)), int64_t(0))); }

    KS_DEVICE bool mine() const { return total >= Threads || row < rows; }

    // Elements of piece j that exist: 0 to 8.
    KS_DEVICE int valid(int j) const {
        const int have = (Deep ? depth() : outer) - piece * 8;
        return row + j * apart < (Deep ? outer : depth()) ? ks_max(0, ks_min(have, 8)) : 0;
    }

    KS_DEVICE int place(int j) const { return ks_place<pieces>(row + j * apart, piece); }

    // Piece j straight to shared memory, asynchronously. Only for an operand that is whole.
    KS_DEVICE void copy(int j, ks_shared_t tile) const {
        if (mine()) ks_copy_async<16>(tile + place(j), at + j * apart * row_step, 2 * valid(j));
    }

    // Piece j to registers: loads only, nothing waits for them here unless the piece is at an edge.
    KS_DEVICE void load(int j, ks_piece &p) const {
        p.low = p.high = make_uint4(0, 0, 0, 0);
        p.shift = 0;
        const int have = mine() ? valid(j) : 0;
        if (have == 0) return;
        const T *from = at + j * apart * row_step;
        if (step == 1) {
            const int shift = int(reinterpret_cast<uint64_t>(from) & 15);
            const T *around = from - shift / 2;
            if (around >= begin && around + (shift == 0 ? 8 : 16) <= end) {
                p.shift = shift;
                p.low = __ldg(reinterpret_cast<const uint4 *>(around));
                if (shift != 0) p.high = __ldg(reinterpret_cast<const uint4 *>(around) + 1);
                return;
            }
        }
#pragma unroll 1  // unrolled, its eight addresses would crowd out sums
        for (int e = 0; e < 8; e += 2, from += 2 * step) {
            const uint32_t pair = (e < have ? ks_bits(from) : 0) | (e + 1 < have ? ks_bits(from + step) : 0) << 16;
            p.low = make_uint4(p.low.y, p.low.z, p.low.w, pair);
        }
    }

    // A loaded piece to shared memory.
    KS_DEVICE void store(int j, const ks_piece &p, char *tile) const {
        if (mine()) *reinterpret_cast<uint4 *>(tile + place(j)) = ks_first(whole ? p.low : ks_realigned(p), valid(j));
    }

    // On to the next tile.
    KS_DEVICE void advance() {
        at += next;
        left -= Depth;
    }
};
