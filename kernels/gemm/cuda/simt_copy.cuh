// Tiles of float32 operands on their way to shared memory, where element (x, k) of a tile lies at k * pitch + x; x runs
// along M in A and along N in B.
//
// An operand whose rows run along x is copied 16 bytes at a time where they are aligned, else 4. One whose rows run along
// k is turned by the copy: 4 bytes at a time, 8 neighbours along k by 4 along x to a warp, which read whole sectors and,
// with rows padded to an odd multiple of 4, write 32 different banks.

#pragma once

#include "../../common/cuda/async_copy.cuh"
#include "copy_at.cuh"

// Elements between rows of shared memory for a tile of X elements along x.
template <int X, bool AlongK>
constexpr int ks_shared_pitch = AlongK && X % 8 == 0 ? X + 4 : X;

// Which elements of an X x K tile a thread copies: `count` pieces of V elements, the last perhaps in some threads only.
template <int X, int K, int Threads, int V, bool AlongK>
struct ks_pieces {
    static constexpr bool turned = AlongK && X % 4 == 0;  // 8 x 4 to a warp
    static constexpr int total = X * K / V, count = (total + Threads - 1) / Threads, last = total - (count - 1) * Threads;
    static constexpr int warps = Threads / 32, steps = K / 8;  // steps: runs of 8 along k
    static_assert(X % V == 0 && (V == 1 || !AlongK), "a piece lies along x");
    static_assert(K % 8 == 0, "BK is not a multiple of 8");
    static_assert(!AlongK || (turned ? warps % steps == 0 || steps % warps == 0 : Threads % K == 0),
                  "BK is too deep for so few threads");

    // Piece c of a thread. What depends on the thread and what on c are apart, so that the latter is constant.
    static KS_DEVICE int k(int thread, int c) {
        if constexpr (turned && warps % steps == 0) return thread / 32 % steps * 8 + thread % 8;
        if constexpr (turned) return c * warps % steps * 8 + thread / 32 * 8 + thread % 8;
        if constexpr (AlongK) return thread % K;
        return (thread + c * Threads) / (X / V);
    }
    static KS_DEVICE int x(int thread, int c) {
        if constexpr (turned && warps % steps == 0)
            return thread / 32 / steps * 4 + thread / 8 % 4 + c * (warps / ks_max(steps, 1) * 4);
        if constexpr (turned) return c * warps / steps * 4 + thread / 8 % 4;
        if constexpr (AlongK) return thread / K + c * (Threads / K);
        return (thread + c * Threads) % (X / V) * V;
    }
    static KS_DEVICE int place(int thread, int c) {  // elements into the tile
        if constexpr (AlongK) return k(thread, c) * ks_shared_pitch<X, true> + x(thread, c);
        return thread * V + c * (Threads * V);
    }
    static KS_DEVICE bool exists(int thread, int c) { return last == Threads || c < count - 1 || thread < last; }
};

// An operand in memory, as far as one block reads it.
struct ks_source {
    const float *from;     // its first element
    int64_t step_x, step_k;  // elements
    int64_t extent;        // along x, from there on
};

// Copies of one operand's tiles, one after the other along k. Elements past the end along x are copies of the last one:
// they end in sums that nobody stores.
template <int X, int K, int Threads, int V, bool AlongK>
struct ks_copies {
    typedef ks_pieces<X, K, Threads, V, AlongK> pieces;
    static constexpr int pitch = ks_shared_pitch<X, AlongK>;
    static constexpr int steps = K;  // of k that the loop over a tile has in its body

    const char *base;
    int64_t step_k;  // bytes
    float *own;      // where the thread's first piece goes in a tile at `tiles`
    ks_shared_t own_address;
    uint32_t offset[pieces::count];

    KS_DEVICE ks_copies(const ks_source &s, float *tiles)
        : base(reinterpret_cast<const char *>(s.from)), step_k(s.step_k * 4),
          own(tiles + pieces::place(threadIdx.x, 0)), own_address(ks_shared(own)) {
#pragma unroll
        for (int c = 0; c < pieces::count; c++) {
            const int64_t x = ks_min(int64_t(pieces::x(threadIdx.x, c)), s.extent - V);
            offset[c] = uint32_t((x * s.step_x + pieces::k(threadIdx.x, c) * s.step_k) * 4);
        }
    }

    // Are offsets as this struct keeps them, and, for V = 4, rows along x aligned and of whole pieces?
    static KS_DEVICE bool fit(const ks_source &s) {
        const bool near = s.step_x >= 0 && s.step_k >= 0 && s.step_x <= (1 << 20) && s.step_k <= (1 << 20) &&
                          X * s.step_x + K * s.step_k < (1 << 29);
        return near && (V == 1 || (s.step_x == 1 && s.step_k % V == 0 && s.extent % V == 0 && ks_aligned(s.from, 4 * V)));
    }

    // Part `part` of `parts` of a whole tile, to `tile` bytes after `tiles`.
    KS_DEVICE void some(int tile, int part, int parts) const {
#pragma unroll
        for (int c = 0; c < pieces::count; c++)
            if (c * parts / pieces::count == part && pieces::exists(threadIdx.x, c))
                ks_copy_at<4 * V>(own_address + tile + 4 * ahead(c), base, offset[c]);
    }

    // A tile of which only `depth` elements along k exist; the rest become 0.
    KS_DEVICE void ragged(int tile, int depth) const {
#pragma unroll
        for (int c = 0; c < pieces::count; c++) {
            if (!pieces::exists(threadIdx.x, c)) continue;
            if (pieces::k(threadIdx.x, c) < depth) {
                ks_copy_at<4 * V>(own_address + tile + 4 * ahead(c), base, offset[c]);
            } else {
#pragma unroll
                for (int v = 0; v < V; v++) own[tile / 4 + ahead(c) + v] = 0;
            }
        }
    }

    KS_DEVICE void advance(int depth) { base += depth * step_k; }

   private:
    static KS_DEVICE constexpr int ahead(int c) { return pieces::place(0, c) - pieces::place(0, 0); }
};
