// turns: parts of a block that wait for each other in a circle.
//
// Follows the PTX ISA, "Parallel Synchronization and Communication Instructions: bar" (bar.sync, bar.arrive).
#pragma once

#include "registers.cuh"

// Comes to barrier `name` (1 .. 15) of `threads` threads without waiting there: those that do go on once all have come.
KS_DEVICE void ks_arrive_some(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
