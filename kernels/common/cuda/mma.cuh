// Tensor cores by warps: loading 8x8 matrices from shared memory, and D = A B + D on 16x8x16 tiles.
//
// PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions": ldmatrix, and mma.m16n8k16 with .f16 or .bf16
// operands and .f32 sums (sm_80 and later). All 32 lanes of a warp take part in each of these functions.
//
// Who holds what of a 16x8x16 step, with row = lane / 4 and pair = 2 * (lane % 4):
//   A (16x16)  a[0] (row, pair..)   a[1] (row + 8, pair..)   a[2] (row, pair + 8..)   a[3] (row + 8, pair + 8..)
//   B (16x8)   b0 k = pair.., n = row                        b1 k = pair + 8.., n = row
//   D (16x8)   d[0], d[1] (row, pair..)                      d[2], d[3] (row + 8, pair..)

#pragma once

#include "shared.cuh"

// Four 8x8 matrices of 16-bit elements; lane 8 i + r gives the address of row r (16 bytes, aligned) of matrix i.
KS_DEVICE void ks_load_matrices(uint32_t (&r)[4], ks_shared_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

// The same, each matrix transposed on the way.
KS_DEVICE void ks_load_matrices_transposed(uint32_t (&r)[4], ks_shared_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

// d += A B on a 16x8x16 tile. T is the element type of A and B.
template <class T>
KS_DEVICE void ks_multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
KS_DEVICE void ks_multiply<ks_bf16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
KS_DEVICE void ks_multiply<ks_f16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
