// What every CUDA kernel shares: element types, conversions, small arithmetic, loads and stores of neighbours.
//
//   extern "C" __global__ void __launch_bounds__(T, 1) gemm_idea(const __grid_constant__ ks_args x);
//
// ks_args comes from "ks_generated.h", which includes this file; a source includes nothing else for these names. Sums
// are kept in ks_acc: float, or double where an array is double (KS_DOUBLE, set by the generated header).

#pragma once

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef KS_DOUBLE
#define KS_DOUBLE 0
#endif
#ifndef KS_COARSE
#define KS_COARSE 0
#endif

#define KS_DEVICE __device__ __forceinline__
#define KS_INFINITY (ks_acc(__int_as_float(0x7f800000)))

#if KS_DOUBLE
typedef double ks_acc;
#define KS_LARGEST 1.7976931348623157e308
#else
typedef float ks_acc;
#define KS_LARGEST 3.4028234664e38f
#endif
typedef __half ks_f16;
typedef __nv_bfloat16 ks_bf16;

// A bulk-tensor map (PTX ISA, "Tensor copy: tensor-map"), made by the host; opaque.
struct alignas(64) ks_tensor_map {
    unsigned char opaque[128];
};

// -- whole numbers

KS_DEVICE constexpr int ks_min(int a, int b) { return a < b ? a : b; }
KS_DEVICE constexpr int ks_max(int a, int b) { return a > b ? a : b; }
KS_DEVICE constexpr int64_t ks_min(int64_t a, int64_t b) { return a < b ? a : b; }
KS_DEVICE constexpr int64_t ks_max(int64_t a, int64_t b) { return a > b ? a : b; }
template <class T>
KS_DEVICE constexpr T ks_ceil(T a, T b) { return (a + b - 1) / b; }  // number of blocks of b in a; a >= 0
template <class T>
KS_DEVICE constexpr T ks_up(T a, T b) { return (a + b - 1) / b * b; }  // a rounded up to a multiple of b; a >= 0

// -- conversions: exact to ks_acc, to nearest even from it

KS_DEVICE ks_acc ks_to_acc(float v) { return v; }
KS_DEVICE ks_acc ks_to_acc(double v) { return ks_acc(v); }
KS_DEVICE ks_acc ks_to_acc(ks_f16 v) { return __half2float(v); }
KS_DEVICE ks_acc ks_to_acc(ks_bf16 v) { return __bfloat162float(v); }
KS_DEVICE ks_acc ks_to_acc(uint8_t v) { return ks_acc(v); }

template <class T>
KS_DEVICE T ks_from_acc(ks_acc a) { return T(a); }
#if KS_DOUBLE
template <>
KS_DEVICE ks_f16 ks_from_acc<ks_f16>(double a) { return __double2half(a); }
template <>
KS_DEVICE ks_bf16 ks_from_acc<ks_bf16>(double a) { return __double2bfloat16(a); }
#else
template <>
KS_DEVICE ks_f16 ks_from_acc<ks_f16>(float a) { return __float2half_rn(a); }
template <>
KS_DEVICE ks_bf16 ks_from_acc<ks_bf16>(float a) { return __float2bfloat16_rn(a); }
#endif

// -- neighbours: V elements from p on, `step` elements apart, of which `count` exist

// An aligned piece of memory that moves in one instruction.
template <int Bytes>
struct ks_word;
template <>
struct ks_word<1> { typedef unsigned char type; };
template <>
struct ks_word<2> { typedef unsigned short type; };
template <>
struct ks_word<4> { typedef unsigned int type; };
template <>
struct ks_word<8> { typedef uint2 type; };
template <>
struct ks_word<16> { typedef uint4 type; };

// V elements as words of up to 16 bytes.
template <class T, int V>
union ks_block {
    static constexpr int bytes = V * int(sizeof(T)) < 16 ? V * int(sizeof(T)) : 16;
    static constexpr int words = V * int(sizeof(T)) / bytes;
    static_assert(V > 0 && (V & (V - 1)) == 0, "neighbours are moved by powers of two");
    typedef typename ks_word<bytes>::type word;
    word w[words];
    T v[V];
    KS_DEVICE ks_block() {}
};

KS_DEVICE bool ks_aligned(const void *p, int bytes) { return (reinterpret_cast<uint64_t>(p) & uint64_t(bytes - 1)) == 0; }

// Fill out[0..V); elements from `count` on are 0 and are not read. A step of 0 reads one element.
template <int V, class T>
KS_DEVICE void ks_fetch(const T *p, int64_t step, int count, ks_acc (&out)[V]) {
    typedef ks_block<T, V> block;
    if (V > 1 && step == 1 && count >= V && ks_aligned(p, block::bytes)) {
        block b;
#pragma unroll
        for (int i = 0; i < block::words; i++) b.w[i] = reinterpret_cast<const typename block::word *>(p)[i];
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = ks_to_acc(b.v[i]);
    } else if (V > 1 && step == 0) {
        const ks_acc v = count > 0 ? ks_to_acc(*p) : ks_acc(0);
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = v;
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = i < count ? ks_to_acc(p[i * step]) : ks_acc(0);
    }
}

// Convert and store in[0..count).
template <int V, class T>
KS_DEVICE void ks_store(T *p, int64_t step, int count, const ks_acc (&in)[V]) {
    typedef ks_block<T, V> block;
    if (V > 1 && step == 1 && count >= V && ks_aligned(p, block::bytes)) {
        block b;
#pragma unroll
        for (int i = 0; i < V; i++) b.v[i] = ks_from_acc<T>(in[i]);
#pragma unroll
        for (int i = 0; i < block::words; i++) reinterpret_cast<typename block::word *>(p)[i] = b.w[i];
    } else {
#pragma unroll
        for (int i = 0; i < V; i++)
            if (i < count) p[i * step] = ks_from_acc<T>(in[i]);
    }
}

// A matrix, or a batch of them, in the caller's memory: extents and strides in elements.
template <class T>
struct ks_matrix {
    const T *p;
    int64_t inner, outer, batch;
    int64_t step_inner, step_outer, step_batch;
};

// -- launches that overlap (PTX ISA, griddepcontrol); nothing before sm_90, where they never do
//
// A launch with `overlap` may begin when every block of the launch before it in the stream has allowed it or has ended;
// one that never allows it is simply over by then. Waiting is for that one launch alone. So each such kernel waits, in
// every block, before it ends: then "the one before is over" means that all before it are, and what it writes can
// disturb neither what they still read nor what they write.

// Wait until the launches before this one are complete and what they wrote can be read.
KS_DEVICE void ks_wait_for_earlier_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Let the next launch begin; it waits, as above, before it reads what this one writes.
KS_DEVICE void ks_allow_next_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#include "units.cuh"

#include "elementary.cuh"
