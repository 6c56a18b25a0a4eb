// Functions that fill the holes of kernels, on one ks_acc. NaN goes through all of them, maximum and relu included.
//
// float: largest relative error, against float64, where results are normal: that of CUDA's own expf, logf and tanhf
// (2 units in the last place), sigmoid and silu 4e-7, gelu and gelu_tanh 6e-7 for x > -2. For x < -2 that of gelu and
// gelu_tanh grows (2e-6 at -4, 7e-6 at -8), where they vanish; silu and gelu_tanh are 0 once the exponential exceeds
// 2^126. gelu goes by a polynomial and one exponential: half the instructions of erfcf. gelu_tanh goes by the units'
// own ex2 and rcp, which need no scaling where a sum of 1 and an exponential is inverted: eight instructions.
// KS_COARSE (outputs of 16 bits): exp by ex2 alone, relative error 2 + |x| units in the last place, 6e-6 at -87, and
// what is made of it; subnormal results are kept.
// double: CUDA's own functions.
//
// Not for --use_fast_math.

#pragma once

#include "kernsearch.cuh"

KS_DEVICE ks_acc ks_neg(ks_acc a) { return -a; }

#if KS_DOUBLE

KS_DEVICE double ks_abs(double a) { return fabs(a); }
KS_DEVICE double ks_sqrt(double a) { return sqrt(a); }
KS_DEVICE double ks_exp(double a) { return exp(a); }
KS_DEVICE double ks_log(double a) { return log(a); }
KS_DEVICE double ks_tanh(double a) { return tanh(a); }
KS_DEVICE double ks_erf(double a) { return erf(a); }
KS_DEVICE double ks_gelu(double a) { return 0.5 * a * erfc(a * -0.70710678118654752440); }
KS_DEVICE double ks_quotient(double a, double b) { return a / b; }
KS_DEVICE double ks_gelu_tanh(double x) {
    const double u = 0.79788456080286535588 * x * (1.0 + 0.044715 * x * x);
    return x / (1.0 + exp(-2.0 * u));
}

#else

KS_DEVICE float ks_abs(float a) { return fabsf(a); }
KS_DEVICE float ks_sqrt(float a) { return sqrtf(a); }
#if KS_COARSE
KS_DEVICE float ks_exp(float a) { return ks_ex2(a * 1.4426950409f); }
#else
KS_DEVICE float ks_exp(float a) { return expf(a); }
#endif
KS_DEVICE float ks_log(float a) { return logf(a); }
KS_DEVICE float ks_tanh(float a) { return tanhf(a); }
KS_DEVICE float ks_erf(float a) { return erff(a); }
KS_DEVICE float ks_quotient(float a, float b) { return __fdividef(a, b); }  // 0 where b exceeds 2^126

// x * Phi(x), by the smaller tail t = erfc(|x| / sqrt 2) / 2 on both sides, so that the left one does not cancel.
// exp(z * z) * erfc(z) is a polynomial in 1 / (1 + 0.4 z) for z >= 0.
KS_DEVICE float ks_gelu(float x) {
    const float z = fabsf(x) * 0.70710678f;
    const float t = ks_quotient(1.0f, fmaf(0.4f, z, 1.0f));
    float p = 4.211841186e-2f;
    p = fmaf(p, t, -0.1445510021f);
    p = fmaf(p, t, 9.278212551e-2f);
    p = fmaf(p, t, 7.784566896e-2f);
    p = fmaf(p, t, 8.678516412e-2f);
    p = fmaf(p, t, 0.1903837329f);
    p = fmaf(p, t, 0.2026610168f);
    p = fmaf(p, t, 0.2263343163f);
    p = fmaf(p, t, 0.2256406314f);
    const float tail = 0.5f * p * t * ks_exp(-0.5f * x * x);
    return x * (x > 0.0f ? 1.0f - tail : tail);
}

// x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): the exponent's coefficients hold -2 log2(e) sqrt(2 / pi).
KS_DEVICE float ks_gelu_tanh(float x) {
    return x * ks_rcp_flushed(1.0f + ks_ex2_flushed(x * fmaf(-0.1029432397f, x * x, -2.302208198f)));
}

#endif

#if !KS_DOUBLE && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800  // one instruction each (PTX ISA, "max", "min")
KS_DEVICE float ks_max(float a, float b) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}
KS_DEVICE float ks_min(float a, float b) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}
#else
KS_DEVICE ks_acc ks_max(ks_acc a, ks_acc b) { return a > b || a != a ? a : b; }
KS_DEVICE ks_acc ks_min(ks_acc a, ks_acc b) { return a < b || a != a ? a : b; }
#endif
KS_DEVICE ks_acc ks_relu(ks_acc a) { return a < ks_acc(0) ? ks_acc(0) : a; }
KS_DEVICE ks_acc ks_sigmoid(ks_acc x) { return ks_quotient(ks_acc(1), ks_acc(1) + ks_exp(-x)); }
KS_DEVICE ks_acc ks_silu(ks_acc x) { return ks_quotient(x, ks_acc(1) + ks_exp(-x)); }

// x - m, and -inf where x is -inf, whatever m is.
KS_DEVICE ks_acc ks_shift(ks_acc x, ks_acc m) { return x == -KS_INFINITY ? x : x - m; }

// exp(x - m) for a maximum m; 0 where x is -inf, unless m is NaN. The row's maximum is raised once, no element tested.
KS_DEVICE ks_acc ks_exp_of_shift(ks_acc x, ks_acc m) { return ks_exp(x - ks_max(m, -KS_LARGEST)); }

// o / l, and 0 where l is 0.
KS_DEVICE ks_acc ks_normalize(ks_acc o, ks_acc l) { return l == ks_acc(0) ? ks_acc(0) : o / l; }

// w * v, and 0 where w is 0, whatever v is.
KS_DEVICE ks_acc ks_weigh(ks_acc w, ks_acc v) { return w == ks_acc(0) ? ks_acc(0) : w * v; }

// 1 / l, and 0 where l is 0: o times it is o / l as `ks_normalize` has it, for an l that is shared by many o.
KS_DEVICE ks_acc ks_inverse(ks_acc l) { return l == ks_acc(0) ? ks_acc(0) : ks_acc(1) / l; }

// x, and -inf where w is 0, whatever x is.
KS_DEVICE ks_acc ks_where(ks_acc x, ks_acc w) { return w == ks_acc(0) ? -KS_INFINITY : x; }

// v where slack >= 0, else -inf.
KS_DEVICE ks_acc ks_mask(ks_acc v, int64_t slack) { return slack < 0 ? -KS_INFINITY : v; }
