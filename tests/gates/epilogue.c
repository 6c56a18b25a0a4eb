// D = alpha A B + bias + beta C for any strides; T is float or double (-DT=...).
//
// sizes    M, N, K, then strides in elements: A.m A.k B.k B.n C.m C.n D.m D.n
// buffers  A, B, bias, C, D
// scalars  alpha, beta

#include "kernsearch.h"

static void rows(const ks_call *call, int weigh) {
    const int64_t *s = call->sizes;
    const T *a = call->buffers[0], *b = call->buffers[1], *bias = call->buffers[2], *c = call->buffers[3];
    T *d = call->buffers[4], alpha = (T)call->scalars[0], beta = (T)call->scalars[1];
    for (int64_t i = 0; i < s[0]; i++)
        for (int64_t j = 0; j < s[1]; j++) {
            T sum = 0;
            for (int64_t p = 0; p < s[2]; p++) sum += a[i * s[3] + p * s[4]] * b[p * s[5] + j * s[6]];
            T old = c[i * s[7] + j * s[8]];
            d[i * s[9] + j * s[10]] = alpha * sum + bias[j] + (weigh || beta != 0 ? beta * old : 0);
        }
}

void product(const ks_call *call) { rows(call, 0); }

void always_looks_at_c(const ks_call *call) { rows(call, 1); }
