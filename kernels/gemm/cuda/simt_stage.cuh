// A tile of an operand to shared memory through registers, V neighbours at a time along the side that is contiguous in
// memory. Element (x, k) of the tile goes to k * pitch + x, as ks_acc, whatever the operand's type; what lies past the
// end of the operand is 0.

#pragma once

#if KS_PLAIN_A
constexpr bool ks_along_k_A = KS_CONTIGUOUS_A_K;
#else
constexpr bool ks_along_k_A = true;
#endif
#if KS_PLAIN_B
constexpr bool ks_along_k_B = KS_CONTIGUOUS_B_K;
#else
constexpr bool ks_along_k_B = false;
#endif

// Elements between rows of shared memory: a tile that is turned on its way is padded against bank conflicts, by a piece
// of 4 so that rows stay aligned.
template <int X, bool AlongK>
constexpr int ks_stage_pitch = AlongK ? X + 4 : X;

// Elements that one load takes at most.
template <class T>
constexpr int ks_widest = 16 / int(sizeof(T));

#define KS_DEFINE_STAGE(NAME, ROLE, GROUP)                                                                     \
    template <int X, int K, int Threads, int V>                                                                \
    KS_DEVICE void NAME(const ks_args &x, const ks_at &first, int64_t last, ks_acc *tile) {                    \
        constexpr bool along_k = ks_along_k_##ROLE;                                                            \
        constexpr int pitch = ks_stage_pitch<X, along_k>, row = (along_k ? K : X) / V;                         \
        static_assert((along_k ? K : X) % V == 0, "tile is not a whole number of vectors");                    \
        const int64_t columns = ks_extent_##GROUP(x) - first.GROUP, depth = last - first.K;                    \
        _Pragma("unroll 4") for (int e = threadIdx.x; e < X * K / V; e += Threads) {                           \
            const int k = along_k ? e % row * V : e / row, at = along_k ? e / row : e % row * V;               \
            const int64_t left = along_k ? (at < columns ? depth - k : 0) : (k < depth ? columns - at : 0);    \
            ks_at i = first;                                                                                   \
            i.GROUP += at, i.K += k;                                                                           \
            ks_acc values[V];                                                                                  \
            const int count = int(ks_max(int64_t(0), ks_min(left, int64_t(V))));                               \
            if constexpr (along_k) ks_fetch_##ROLE##_K<V>(x, i, count, values);                                \
            else ks_fetch_##ROLE##_##GROUP<V>(x, i, count, values);                                            \
            _Pragma("unroll") for (int v = 0; v < V; v++)                                                      \
                tile[along_k ? (k + v) * pitch + at : k * pitch + at + v] = values[v];                         \
        }                                                                                                      \
    }

KS_DEFINE_STAGE(ks_stage_a, A, M)
KS_DEFINE_STAGE(ks_stage_b, B, N)
