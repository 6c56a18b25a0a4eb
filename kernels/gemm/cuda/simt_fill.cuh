// Tiles of any operand, of any strides, one element after the other through registers: what takes the place of ks_copies
// where an operand is not a plain array or its strides are out of reach. Slow anyway, so the loop over a tile has a small
// body, which compiles fast.

#pragma once

#define KS_DEFINE_FILL(NAME, ROLE, GROUP)                                                                       \
    template <int X, int K, int Threads>                                                                        \
    struct NAME {                                                                                               \
        static constexpr int pitch = X, steps = 2;                                                              \
        const ks_args &x;                                                                                       \
        ks_at at;                                                                                               \
        float *tiles;                                                                                           \
        KS_DEVICE NAME(const ks_args &args, const ks_at &first, float *to) : x(args), at(first), tiles(to) {}   \
        KS_DEVICE void ragged(int tile, int depth) const {                                                      \
            _Pragma("unroll 1") for (int e = threadIdx.x; e < X * K; e += Threads) {                            \
                ks_at i = at;                                                                                   \
                i.GROUP += e % X, i.K += e / X;                                                                 \
                const bool exists = e / X < depth && i.GROUP < ks_extent_##GROUP(x);                            \
                tiles[tile / 4 + e] = exists ? float(ks_##ROLE(x, i)) : 0.0f;                                   \
            }                                                                                                   \
        }                                                                                                       \
        KS_DEVICE void some(int tile, int part, int) const {                                                    \
            if (part == 0) ragged(tile, K);                                                                     \
        }                                                                                                       \
        KS_DEVICE void advance(int depth) { at.K += depth; }                                                    \
    };

KS_DEFINE_FILL(ks_fill_a, A, M)
KS_DEFINE_FILL(ks_fill_b, B, N)
