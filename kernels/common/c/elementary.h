// Functions that fill the holes of kernels, on vectors. NaN goes through all of them, maximum and relu included.
//
// float: polynomials fitted for this file. Largest relative error found, against float64, where results are normal:
//     exp 9e-8   tanh 1.4e-7   erf 1.7e-7   sigmoid, silu 1.5e-7   gelu, gelu_tanh 5e-7 for x > -2
// For x < -2 that of gelu and gelu_tanh grows (1.5e-6 at -4, 6e-6 at -8), where they vanish.
// double: the C library, lane by lane.
//
// Do not compile with -ffast-math: it would remove the rounding in ks_exp.

#ifndef KS_ELEMENTARY_H
#define KS_ELEMENTARY_H

#include "vector.h"

#define KS_INFINITY ((ks_t)__builtin_inf())
#define KS_LARGEST (KS_DOUBLE ? (ks_t)1.7976931348623157e308 : (ks_t)3.4028234664e38f)

KS_INLINE ks_v ks_neg(ks_v a) { return -a; }
KS_INLINE ks_v ks_abs(ks_v a) { return (ks_v)((ks_m)a & ~(ks_m)ks_splat((ks_t)-0.0)); }

// The larger or smaller of a and b; b where either is NaN. One instruction of x86.
#if KS_VECTOR_BYTES == 32 && defined(__AVX__) && !KS_DOUBLE
KS_INLINE ks_v ks_larger(ks_v a, ks_v b) { return (ks_v)_mm256_max_ps((__m256)a, (__m256)b); }
KS_INLINE ks_v ks_smaller(ks_v a, ks_v b) { return (ks_v)_mm256_min_ps((__m256)a, (__m256)b); }
#elif KS_VECTOR_BYTES == 64 && defined(__AVX512F__) && !KS_DOUBLE
KS_INLINE ks_v ks_larger(ks_v a, ks_v b) { return (ks_v)_mm512_max_ps((__m512)a, (__m512)b); }
KS_INLINE ks_v ks_smaller(ks_v a, ks_v b) { return (ks_v)_mm512_min_ps((__m512)a, (__m512)b); }
#else
KS_INLINE ks_v ks_larger(ks_v a, ks_v b) { return ks_select((ks_m)(a > b), a, b); }
KS_INLINE ks_v ks_smaller(ks_v a, ks_v b) { return ks_select((ks_m)(a < b), a, b); }
#endif

KS_INLINE ks_v ks_max(ks_v a, ks_v b) { return ks_select((ks_m)(a != a), a, ks_larger(a, b)); }
KS_INLINE ks_v ks_min(ks_v a, ks_v b) { return ks_select((ks_m)(a != a), a, ks_smaller(a, b)); }
KS_INLINE ks_v ks_relu(ks_v a) { return (ks_v)((ks_m)a & ~(ks_m)(a < (ks_v){0})); }

// Apply a function of the C library to each lane.
#define KS_BY_LANE(function, a)                                           \
    do {                                                                  \
        for (int64_t i = 0; i < KS_LANES; i++) (a)[i] = function((a)[i]); \
    } while (0)

#if KS_DOUBLE

KS_INLINE ks_v ks_sqrt(ks_v a) { KS_BY_LANE(__builtin_sqrt, a); return a; }
KS_INLINE ks_v ks_exp(ks_v a) { KS_BY_LANE(__builtin_exp, a); return a; }
KS_INLINE ks_v ks_exp_to_44(ks_v a) { return ks_exp(a); }
KS_INLINE ks_v ks_tanh(ks_v a) { KS_BY_LANE(__builtin_tanh, a); return a; }
KS_INLINE ks_v ks_erf(ks_v a) { KS_BY_LANE(__builtin_erf, a); return a; }
KS_INLINE ks_v ks_log(ks_v a) { KS_BY_LANE(__builtin_log, a); return a; }

KS_INLINE ks_v ks_gelu(ks_v a) {
    ks_v tail = a * -0.70710678118654752440;
    KS_BY_LANE(__builtin_erfc, tail);
    return 0.5 * a * tail;
}

#else

KS_INLINE ks_v ks_sqrt(ks_v a) { KS_BY_LANE(__builtin_sqrtf, a); return a; }
KS_INLINE ks_v ks_log(ks_v a) { KS_BY_LANE(__builtin_logf, a); return a; }

// exp(r) for |r| <= ln(2) / 2.
KS_INLINE ks_v ks_exp_near_0(ks_v r) {
    ks_v p = ks_splat(1.979025689e-4f);
    p = p * r + 1.394476188e-3f;
    p = p * r + 8.333497668e-3f;
    p = p * r + 4.166629359e-2f;
    p = p * r + 0.1666666586f;
    p = p * r + 0.5f;
    return p * (r * r) + r + 1.0f;
}

// exp(x) = 2^n exp(r), n the whole number nearest to x / ln 2: adding 1.5 * 2^23 rounds, and leaves n in the low bits.
// 2^n is applied in two halves, so that results near overflow and subnormal ones come out right.
KS_INLINE ks_v ks_exp(ks_v x) {
    x = ks_larger(ks_splat(-104.0f), ks_smaller(ks_splat(89.0f), x));  // NaN stays
    const ks_v magic = ks_splat(12582912.0f);
    ks_v rounded = x * 1.44269504f + magic;
    ks_m n = (ks_m)rounded - (ks_m)magic;
    ks_v whole = rounded - magic;
    ks_v r = x - whole * 0.693359375f;  // ln 2 in two parts; the first has few bits, so this product is exact
    r = r - whole * -2.12194440e-4f;
    ks_v p = ks_exp_near_0(r);
    ks_m half = n >> 1;
    return p * (ks_v)((half + 127) << 23) * (ks_v)((n - half + 127) << 23);
}

// The same for x <= 44, as where a maximum was subtracted: 2^n is applied as 2^(n + 64) 2^-64, which takes a
// third of the instructions. The low bits of `rounded` hold n + 191, its exponent once they are shifted to their place.
KS_INLINE ks_v ks_exp_to_44(ks_v x) {
    x = ks_larger(ks_splat(-104.0f), x);  // NaN stays
    const ks_v magic = ks_splat(12582912.0f + 191.0f);
    ks_v rounded = x * 1.44269504f + magic;
    ks_v whole = rounded - magic;
    ks_v r = x - whole * 0.693359375f;
    r = r - whole * -2.12194440e-4f;
    return ks_exp_near_0(r) * (ks_v)((ks_m)rounded << 23) * 0x1p-64f;
}

// exp(z * z) * erfc(z) for z >= 0, a polynomial in 1 / (1 + 0.4 z).
KS_INLINE ks_v ks_scaled_erfc(ks_v z) {
    ks_v t = 1.0f / (1.0f + 0.4f * z);
    ks_v p = ks_splat(4.211841186e-2f);
    p = p * t - 0.1445510021f;
    p = p * t + 9.278212551e-2f;
    p = p * t + 7.784566896e-2f;
    p = p * t + 8.678516412e-2f;
    p = p * t + 0.1903837329f;
    p = p * t + 0.2026610168f;
    p = p * t + 0.2263343163f;
    p = p * t + 0.2256406314f;
    return p * t;
}

KS_INLINE ks_v ks_erf(ks_v x) {
    ks_v z = ks_abs(x), s = x * x;
    ks_v p = ks_splat(7.853794723e-5f);
    p = p * s - 8.010174602e-4f;
    p = p * s + 5.188325637e-3f;
    p = p * s - 2.685381090e-2f;
    p = p * s + 0.1128358512f;
    p = p * s - 0.3761262582f;
    p = p * s + 1.128379166f;
    ks_v far = 1.0f - ks_scaled_erfc(z) * ks_exp(-s);
    far = ks_select((ks_m)(z > 4.0f), ks_splat(1.0f), far);
    far = ks_select((ks_m)(x < 0.0f), -far, far);
    return ks_select((ks_m)(z >= 1.0f), far, p * x);
}

KS_INLINE ks_v ks_tanh(ks_v x) {
    ks_v z = ks_abs(x), s = x * x;
    ks_v p = ks_splat(-5.468191899e-3f);
    p = p * s + 2.041511732e-2f;
    p = p * s - 5.366525356e-2f;
    p = p * s + 0.1333041474f;
    p = p * s - 0.3333322925f;
    ks_v far = 1.0f - 2.0f / (ks_exp(z + z) + 1.0f);
    far = ks_select((ks_m)(x < 0.0f), -far, far);
    return ks_select((ks_m)(z >= 0.65f), far, p * s * x + x);
}

// x * Phi(x); by erfc on both sides, so that the left tail does not cancel.
KS_INLINE ks_v ks_gelu(ks_v x) {
    ks_v z = ks_abs(x) * 0.70710678f;
    ks_v tail = 0.5f * ks_scaled_erfc(z) * ks_exp(x * x * -0.5f);
    tail = ks_select((ks_m)(z > 11.0f), ks_splat(0.0f), tail);
    return x * ks_select((ks_m)(x > 0.0f), 1.0f - tail, tail);
}

#endif

KS_INLINE ks_v ks_sigmoid(ks_v x) { return (ks_t)1 / ((ks_t)1 + ks_exp(-x)); }
KS_INLINE ks_v ks_silu(ks_v x) { return x / ((ks_t)1 + ks_exp(-x)); }
KS_INLINE ks_v ks_gelu_tanh(ks_v x) {
    ks_v u = (ks_t)0.79788456080286535588 * x * ((ks_t)1 + (ks_t)0.044715 * x * x);
    return x / ((ks_t)1 + ks_exp((ks_t)-2 * u));
}

// x - m, and -inf where x is -inf, whatever m is.
KS_INLINE ks_v ks_shift(ks_v x, ks_v m) {
    return ks_select((ks_m)(x == ks_splat(-KS_INFINITY)), x, x - m);
}

// exp(x - m) for a maximum m; 0 where x is -inf, unless m is NaN.
KS_INLINE ks_v ks_exp_of_shift(ks_v x, ks_v m) { return ks_exp_to_44(x - ks_larger(ks_splat(-KS_LARGEST), m)); }

// o / l, and 0 where l is 0.
KS_INLINE ks_v ks_normalize(ks_v o, ks_v l) {
    ks_v q = o / l;
    return (ks_v)((ks_m)q & ~(ks_m)(l == (ks_v){0}));
}

// w * v, and 0 where w is 0, whatever v is.
KS_INLINE ks_v ks_weigh(ks_v w, ks_v v) {
    return (ks_v)((ks_m)(w * v) & ~(ks_m)(w == (ks_v){0}));
}

// 1 / l, and 0 where l is 0: o times it is o / l as `ks_normalize` has it, for an l that is shared by many o.
KS_INLINE ks_v ks_inverse(ks_v l) {
    return (ks_v)((ks_m)((ks_t)1 / l) & ~(ks_m)(l == (ks_v){0}));
}

// x, and -inf where w is 0, whatever x is.
KS_INLINE ks_v ks_where(ks_v x, ks_v w) {
    return ks_select((ks_m)(w == (ks_v){0}), ks_splat(-KS_INFINITY), x);
}

// v where slack + step * lane >= 0, else -inf.
KS_INLINE ks_v ks_mask(ks_v v, int64_t slack, int64_t step) {
    for (int64_t i = 0; i < KS_LANES; i++) {
        if (slack + step * i < 0) v[i] = -KS_INFINITY;
    }
    return v;
}

#endif
