// wgmma: matrix products by a warpgroup of 128 threads, operands in shared memory, sums in registers.
//
// Follows the PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions" (wgmma.mma_async, matrix
// descriptors, wgmma.fence, commit_group, wait_group).
//
// Sums of a 64 x N tile: thread t holds in d[4 * j + 2 * h + e] row 16 * (t / 32) + (t % 32) / 4 + 8 * h and column
// 8 * j + 2 * (t % 4) + e.
#pragma once

#include "kernsearch.cuh"

// Layouts of an operand, in rows of SWIZZLE bytes (128, 64 or 32) along the contiguous dimension, 16-byte pieces of a
// row exchanged as the tensor map's swizzle of that width does; eight rows make one pattern.
//   K contiguous    rows of the operand are the rows; `stride` = bytes from one pattern to the next; `leading` unused
//   K not           steps of k are the rows; `stride` = bytes from one pattern (8 steps) to the next,
//                   `leading` = bytes from SWIZZLE / 2 elements along M or N to the next such
template <int SWIZZLE> KS_DEVICE unsigned long long ks_descriptor(unsigned address, int leading, int stride) {
    static_assert(SWIZZLE == 128 || SWIZZLE == 64 || SWIZZLE == 32, "want a swizzle of 128, 64 or 32 bytes");
    constexpr unsigned long long layout = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : 3;
    return (unsigned long long)(address >> 4 & 0x3FFF) | (unsigned long long)(leading >> 4 & 0x3FFF) << 16 |
           (unsigned long long)(stride >> 4 & 0x3FFF) << 32 | layout << 62;
}

// Before the first product, and after other instructions touched the sums.
KS_DEVICE void ks_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

KS_DEVICE void ks_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most PENDING groups of products are not done.
template <int PENDING> KS_DEVICE void ks_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from reading sums before a wait that stands above.
template <int COUNT> KS_DEVICE void ks_wgmma_pin(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Product<T, N>::add<TA, TB>(d, a, b, keep): d = A B + (keep ? d : 0), A 64 x 16 and B 16 x N of type T by descriptor;
// TA, TB = 1 when M, N is contiguous instead of K.
template <class T, int N> struct ks_product;

#define KS_W8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define KS_W_1 KS_W8(0)
#define KS_W_2 KS_W_1, KS_W8(8)
#define KS_W_3 KS_W_2, KS_W8(16)
#define KS_W_4 KS_W_3, KS_W8(24)
#define KS_W_5 KS_W_4, KS_W8(32)
#define KS_W_6 KS_W_5, KS_W8(40)
#define KS_W_7 KS_W_6, KS_W8(48)
#define KS_W_8 KS_W_7, KS_W8(56)
#define KS_W_9 KS_W_8, KS_W8(64)
#define KS_W_10 KS_W_9, KS_W8(72)
#define KS_W_11 KS_W_10, KS_W8(80)
#define KS_W_12 KS_W_11, KS_W8(88)
#define KS_W_13 KS_W_12, KS_W8(96)
#define KS_W_14 KS_W_13, KS_W8(104)
#define KS_W_15 KS_W_14, KS_W8(112)
#define KS_W_16 KS_W_15, KS_W8(120)

#define KS_N_1 "%0,%1,%2,%3,%4,%5,%6,%7"
#define KS_N_2 KS_N_1 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define KS_N_3 KS_N_2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define KS_N_4 KS_N_3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define KS_N_5 KS_N_4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define KS_N_6 KS_N_5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define KS_N_7 KS_N_6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define KS_N_8 KS_N_7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define KS_N_9 KS_N_8 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define KS_N_10 KS_N_9 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define KS_N_11 KS_N_10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define KS_N_12 KS_N_11 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define KS_N_13 KS_N_12 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define KS_N_14 KS_N_13 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define KS_N_15 KS_N_14 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define KS_N_16 KS_N_15 ",%120,%121,%122,%123,%124,%125,%126,%127"

// n columns, c = n / 16; a b keep ta tb are the numbers of the inputs, which follow the 8 * c sums
#define KS_PRODUCT(T, type, n, c, a, b, keep, ta, tb)                                                             \
    template <> struct ks_product<T, n> {                                                                         \
        template <int TA, int TB>                                                                                 \
        static __device__ __forceinline__ void add(float (&d)[n / 2], unsigned long long left,                    \
                                                   unsigned long long right, int kept) {                          \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #keep ", 0;\n"                                      \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" KS_N_##c            \
                         "}, %" #a ", %" #b ", p, 1, 1, %" #ta ", %" #tb ";\n}"                                   \
                         : KS_W_##c                                                                               \
                         : "l"(left), "l"(right), "r"(kept), "n"(TA), "n"(TB));                                   \
        }                                                                                                         \
    };
#define KS_PRODUCTS(n, c, a, b, keep, ta, tb)                 \
    KS_PRODUCT(ks_bf16, "bf16", n, c, a, b, keep, ta, tb)     \
    KS_PRODUCT(ks_f16, "f16", n, c, a, b, keep, ta, tb)
KS_PRODUCTS(16, 1, 8, 9, 10, 11, 12)
KS_PRODUCTS(32, 2, 16, 17, 18, 19, 20)
KS_PRODUCTS(48, 3, 24, 25, 26, 27, 28)
KS_PRODUCTS(64, 4, 32, 33, 34, 35, 36)
KS_PRODUCTS(80, 5, 40, 41, 42, 43, 44)
KS_PRODUCTS(96, 6, 48, 49, 50, 51, 52)
KS_PRODUCTS(112, 7, 56, 57, 58, 59, 60)
KS_PRODUCTS(128, 8, 64, 65, 66, 67, 68)
KS_PRODUCTS(144, 9, 72, 73, 74, 75, 76)
KS_PRODUCTS(160, 10, 80, 81, 82, 83, 84)
KS_PRODUCTS(176, 11, 88, 89, 90, 91, 92)
KS_PRODUCTS(192, 12, 96, 97, 98, 99, 100)
KS_PRODUCTS(208, 13, 104, 105, 106, 107, 108)
KS_PRODUCTS(224, 14, 112, 113, 114, 115, 116)
KS_PRODUCTS(240, 15, 120, 121, 122, 123, 124)
KS_PRODUCTS(256, 16, 128, 129, 130, 131, 132)
