// wgmma whose left operand lies in registers, and is what sums of another product become.
//
// Follows the PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Thread t holds of A, 64 rows
// by 16 steps of k, with row = 16 * (t / 32) + (t % 32) / 4 and pair = 2 * (t % 4):
//   a[0] (row, pair..)   a[1] (row + 8, pair..)   a[2] (row, pair + 8..)   a[3] (row + 8, pair + 8..)
// which is where sums of 64 rows lie (wgmma.cuh), each pair rounded into one register.
#pragma once

#include "wgmma.cuh"

// add<TB>(d, a, b, keep): d = A B + (keep ? d : 0), B 16 x N of type T by descriptor; TB = 1 when N is contiguous. The
// registers of A may not change until the product is waited for.
template <class T, int N> struct ks_product_of_registers;

// as KS_PRODUCT of wgmma.cuh; a0 to a3 are the numbers of A's registers
#define KS_PRODUCT_OF_REGISTERS(T, type, n, c, a0, a1, a2, a3, b, keep, tb)                                       \
    template <> struct ks_product_of_registers<T, n> {                                                            \
        template <int TB>                                                                                         \
        static __device__ __forceinline__ void add(float (&d)[n / 2], const unsigned (&a)[4],                     \
                                                   unsigned long long right, int kept) {                          \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #keep ", 0;\n"                                      \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" KS_N_##c            \
                         "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1, %" #tb ";\n}"            \
                         : KS_W_##c                                                                               \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right), "r"(kept), "n"(TB));           \
        }                                                                                                         \
    };
#define KS_PRODUCTS_OF_REGISTERS(n, c, a0, a1, a2, a3, b, keep, tb)                \
    KS_PRODUCT_OF_REGISTERS(ks_bf16, "bf16", n, c, a0, a1, a2, a3, b, keep, tb)    \
    KS_PRODUCT_OF_REGISTERS(ks_f16, "f16", n, c, a0, a1, a2, a3, b, keep, tb)
KS_PRODUCTS_OF_REGISTERS(64, 4, 32, 33, 34, 35, 36, 37, 38)
KS_PRODUCTS_OF_REGISTERS(128, 8, 64, 65, 66, 67, 68, 69, 70)
KS_PRODUCTS_OF_REGISTERS(192, 12, 96, 97, 98, 99, 100, 101, 102)
KS_PRODUCTS_OF_REGISTERS(256, 16, 128, 129, 130, 131, 132, 133, 134)
