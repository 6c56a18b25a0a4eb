// stmatrix: four 8x8 matrices of 16-bit elements from the registers of a warp to shared memory.
//
// Follows the PTX ISA, "Warp-level matrix store instruction: stmatrix" (sm_90). Lane 8 * i + r gives the address of row
// r of matrix i; register i of lane l holds elements (l / 4, 2 * (l % 4) + {0, 1}) of matrix i: the layout of sums of
// tensor cores.
#pragma once

#include "kernsearch.cuh"

KS_DEVICE void ks_store_matrices(unsigned to, const unsigned (&v)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// The same with every matrix transposed: row r in memory is column r of the registers.
KS_DEVICE void ks_store_matrices_transposed(unsigned to, const unsigned (&v)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
