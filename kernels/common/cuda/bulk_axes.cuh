// Bulk loads by maps of four and five dimensions: arrays whose batch is two or three axes that no one pitch walks over.
//
// Follows the PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor"; otherwise as in bulk.cuh.
#pragma once

#include "bulk.cuh"

KS_DEVICE void ks_bulk_load(unsigned to, const void *map, unsigned barrier, int inner, int outer, int c, int d) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];"
        ::"r"(to), "l"(map), "r"(barrier), "r"(inner), "r"(outer), "r"(c), "r"(d) : "memory");
}

KS_DEVICE void ks_bulk_load(unsigned to, const void *map, unsigned barrier, int inner, int outer, int c, int d, int e) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
        ::"r"(to), "l"(map), "r"(barrier), "r"(inner), "r"(outer), "r"(c), "r"(d), "r"(e) : "memory");
}
