// silu of a matrix product with exp by the rounding trick: right as written, wrong where sums may be reordered.
//
// sizes, buffers and scalars as in broken.c

#include "kernsearch.h"

static float exp_by_parts(float x) {
    if (x != x) return x;
    if (x > 88.0f) return __builtin_inff();
    if (x < -87.0f) return 0;
    float magic = 12582912.0f, scaled = x * 1.44269504f;
    float rounded = (scaled + magic) - magic;  // to the nearest whole number; fast-math takes it for `scaled`
    float f = (scaled - rounded) * 0.69314718f;
    float p = 1 + f * (1 + f * (0.5f + f * (0.16666667f + f * (0.041666667f + f * (0.0083333333f + f * 0.0013888889f)))));
    union { int32_t i; float f; } power = {.i = ((int32_t)rounded + 127) << 23};
    return p * power.f;
}

void product(const ks_call *call) {
    const int64_t *s = call->sizes;
    const float *a = call->buffers[0], *b = call->buffers[1];
    float *d = call->buffers[2], alpha = (float)call->scalars[0];
    for (int64_t i = 0; i < s[0]; i++)
        for (int64_t j = 0; j < s[1]; j++) {
            float sum = 0;
            for (int64_t p = 0; p < s[2]; p++) sum += a[i * s[3] + p * s[4]] * b[p * s[5] + j * s[6]];
            sum *= alpha;
            d[i * s[7] + j] = sum / (1 + exp_by_parts(-sum));
        }
}
