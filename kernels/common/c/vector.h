// Vectors of the accumulation type, through GCC and Clang vector extensions.
//
// The includer has defined KS_DOUBLE (0 or 1), the device has given KS_VECTOR_BYTES. One vector holds KS_LANES values.
// Loads and stores take an element stride, so that one code path serves contiguous, strided and broadcast arrays; they
// touch `count` elements and nothing else.

#ifndef KS_VECTOR_H
#define KS_VECTOR_H

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef KS_VECTOR_BYTES
#define KS_VECTOR_BYTES 16
#endif

#if KS_DOUBLE
typedef double ks_t;
typedef int64_t ks_bits;
#else
typedef float ks_t;
typedef int32_t ks_bits;
#endif

#define KS_LANES ((int64_t)(KS_VECTOR_BYTES / sizeof(ks_t)))
#define KS_INLINE static inline __attribute__((always_inline, unused))
#define KS_STRING(x) #x
#define KS_PRAGMA(x) _Pragma(KS_STRING(x))
#define KS_UNROLL(n) KS_PRAGMA(GCC unroll n)

typedef ks_t ks_v __attribute__((vector_size(KS_VECTOR_BYTES)));
typedef ks_bits ks_m __attribute__((vector_size(KS_VECTOR_BYTES)));  // a mask: each lane all ones or all zeros

KS_INLINE int64_t ks_least(int64_t a, int64_t b) { return a < b ? a : b; }
KS_INLINE int64_t ks_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }  // slabs of b in a

KS_INLINE ks_t *ks_align(void *p) { return (ks_t *)(((uintptr_t)p + 63) & ~(uintptr_t)63); }

KS_INLINE ks_v ks_splat(ks_t a) { return a - (ks_v){0}; }  // x - 0 is x, also for -0

// Where the mask is set a, else b.
#if KS_VECTOR_BYTES == 32 && defined(__AVX__) && !KS_DOUBLE
KS_INLINE ks_v ks_select(ks_m mask, ks_v a, ks_v b) {
    return (ks_v)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
}
#else
KS_INLINE ks_v ks_select(ks_m mask, ks_v a, ks_v b) { return (ks_v)(((ks_m)a & mask) | ((ks_m)b & ~mask)); }
#endif

KS_INLINE ks_v ks_load_all(const ks_t *p) {
    ks_v v;
    memcpy(&v, p, sizeof v);
    return v;
}

KS_INLINE void ks_store_all(ks_t *p, ks_v v) { memcpy(p, &v, sizeof v); }

// Lanes past `count` are 0.
KS_INLINE ks_v ks_load(const ks_t *p, int64_t stride, int64_t count) {
    if (stride == 1 && count >= KS_LANES) return ks_load_all(p);
    ks_v v = {0};
    for (int64_t i = 0; i < KS_LANES; i++) {
        if (i < count) v[i] = p[i * stride];
    }
    return v;
}

KS_INLINE void ks_store(ks_t *p, int64_t stride, int64_t count, ks_v v) {
    if (stride == 1 && count >= KS_LANES) {
        ks_store_all(p, v);
        return;
    }
    for (int64_t i = 0; i < KS_LANES; i++) {
        if (i < count) p[i * stride] = v[i];
    }
}

// -- other element types: converted exactly when loaded, to nearest even when stored

typedef uint16_t ks_bf16;

KS_INLINE ks_t ks_value_u8(uint8_t v) { return (ks_t)v; }

KS_INLINE ks_v ks_load_u8(const uint8_t *p, int64_t stride, int64_t count) {
    ks_v v = {0};
    if (stride == 1 && count >= KS_LANES) {
        uint8_t block[KS_VECTOR_BYTES / sizeof(ks_t)];
        memcpy(block, p, sizeof block);
        for (int64_t i = 0; i < KS_LANES; i++) v[i] = (ks_t)block[i];
        return v;
    }
    for (int64_t i = 0; i < KS_LANES; i++) {
        if (i < count) v[i] = (ks_t)p[i * stride];
    }
    return v;
}

#if !KS_DOUBLE

typedef uint16_t ks_half_v __attribute__((vector_size(KS_VECTOR_BYTES / 2)));
typedef uint32_t ks_word_v __attribute__((vector_size(KS_VECTOR_BYTES)));

KS_INLINE float ks_value_bf16(ks_bf16 v) {
    const uint32_t bits = (uint32_t)v << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

KS_INLINE ks_v ks_load_bf16(const ks_bf16 *p, int64_t stride, int64_t count) {
    ks_half_v half = {0};
    if (stride == 1 && count >= KS_LANES) {
        memcpy(&half, p, sizeof half);
    } else {
        for (int64_t i = 0; i < KS_LANES; i++) {
            if (i < count) half[i] = p[i * stride];
        }
    }
    return (ks_v)(__builtin_convertvector(half, ks_word_v) << 16);
}

KS_INLINE void ks_store_bf16(ks_bf16 *p, int64_t stride, int64_t count, ks_v v) {
    const ks_word_v bits = (ks_word_v)v, strange = (ks_word_v)(v != v);
    const ks_word_v near = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, quiet = (bits >> 16) | 0x40;
    const ks_half_v half = __builtin_convertvector((quiet & strange) | (near & ~strange), ks_half_v);
    if (stride == 1 && count >= KS_LANES) {
        memcpy(p, &half, sizeof half);
        return;
    }
    for (int64_t i = 0; i < KS_LANES; i++) {
        if (i < count) p[i * stride] = half[i];
    }
}

#endif

#endif
