// CUDA kernels on the host, one block after the other: every thread of a block is a fiber, a barrier switches to the
// next. For kernels of CUDA cores: threadIdx, blockIdx, shared memory, __syncthreads and asynchronous copies, which
// happen no sooner than they are waited for.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <ucontext.h>
#include <vector>

#include "crt/host_defines.h"
#include <vector_functions.h>
#include <vector_types.h>

static float __int_as_float(int bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static float __fdividef(float a, float b) { return a / b; }

struct Copy {
    void *to;
    const void *from;
    int bytes, valid;
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
    std::deque<std::vector<Copy>> groups;  // committed, oldest first
    std::vector<Copy> open;
};

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static void (*fiber_body)();

static void fiber_main() {
    fiber_body();
    fibers[threadIdx.x].done = true;
    swapcontext(&fibers[threadIdx.x].context, &scheduler);
}

static void __syncthreads() { swapcontext(&fibers[threadIdx.x].context, &scheduler); }

// Run all blocks. `backwards`: threads of a block take turns from the last to the first. 1 when some threads of a block
// ended while others waited at a barrier, else 0.
static int run_grid(dim3 grid, unsigned threads, bool backwards, void (*body)()) {
    fiber_body = body;
    gridDim = grid, blockDim = dim3(threads, 1, 1);
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = make_uint3(x, y, z);
                fibers.resize(threads);
                for (unsigned t = 0; t < threads; t++) {
                    Fiber &f = fibers[t];
                    f.stack.resize(1 << 16);
                    f.done = false, f.groups.clear(), f.open.clear();
                    getcontext(&f.context);
                    f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size();
                    f.context.uc_link = &scheduler;
                    makecontext(&f.context, fiber_main, 0);
                }
                for (bool over = false; !over;) {
                    unsigned ended = 0;
                    for (unsigned turn = 0; turn < threads; turn++) {
                        const unsigned t = backwards ? threads - 1 - turn : turn;
                        threadIdx = make_uint3(t, 0, 0);
                        swapcontext(&scheduler, &fibers[t].context);
                        ended += fibers[t].done;
                    }
                    over = ended == threads;
                    if (ended && !over) return 1;
                }
            }
    return 0;
}

// -- what stands for the headers of asynchronous copies

typedef uint32_t ks_shared_t;
static char shared_anchor;  // shared arrays are static, so they are near

static ks_shared_t ks_shared(const void *p) { return ks_shared_t(uintptr_t(p) - uintptr_t(&shared_anchor)); }
static void *from_shared(ks_shared_t at) { return &shared_anchor + int32_t(at); }

static void want_aligned(const void *p, int bytes) {
    if (uintptr_t(p) % bytes) abort();
}

template <int Bytes>
static void ks_copy_async(ks_shared_t to, const void *from, int valid) {
    want_aligned(from_shared(to), Bytes), want_aligned(from, Bytes);
    fibers[threadIdx.x].open.push_back({from_shared(to), from, Bytes, valid});
}

template <int Bytes>
static void ks_copy_at(ks_shared_t to, const char *base, uint32_t offset) {
    ks_copy_async<Bytes>(to, base + offset, Bytes);
}

static void ks_copy_commit() {
    Fiber &f = fibers[threadIdx.x];
    f.groups.push_back(std::move(f.open));
    f.open.clear();
}

template <int Pending>
static void ks_copy_wait() {
    Fiber &f = fibers[threadIdx.x];
    while (int(f.groups.size()) > Pending) {
        for (const Copy &c : f.groups.front()) {
            memset(c.to, 0, c.bytes);
            memcpy(c.to, c.from, c.valid);
        }
        f.groups.pop_front();
    }
}

#include "units_on_host.h"
#include "warps_on_host.h"
