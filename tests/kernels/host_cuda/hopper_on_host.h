// Hopper kernels on the host: clusters of blocks one after the other, every thread of a cluster a fiber. Stands for
// mbarrier.cuh, bulk.cuh, bulk_axes.cuh, cluster.cuh, cluster_words.cuh, registers.cuh, turns.cuh, wgmma.cuh,
// wgmma_registers.cuh, stmatrix.cuh, mma.cuh, direct.cuh, shared.cuh and async_copy.cuh.
//
// What the device does by itself happens late here: a copy lands, and a store or a product reads shared memory, no
// sooner than something waits for it or nothing else can go on. So a stage that is given back too early, or a piece that
// is overwritten while it leaves, gives wrong numbers; what waits for ever is noticed and told.

#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <ucontext.h>
#include <vector>

#include "units_on_host.h"

#include "crt/host_defines.h"
#include <vector_functions.h>
#include <vector_types.h>

static float __int_as_float(int bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static float __fdividef(float a, float b) { return a / b; }
static unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned(((uint64_t(high) << 32) | low) >> (shift & 31));
}
static uint64_t __cvta_generic_to_shared(const void *) { abort(); }
#define __launch_bounds__(...)
#define __grid_constant__

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

constexpr int SHARED = 232448, SHARED_AT = 1024;  // bytes of a block; its first shared address
struct Barrier {
    int count, left, bytes;
    unsigned phase;
};
struct Meeting {
    int here = 0;
    unsigned turn = 0;
};
struct Block {
    std::vector<unsigned char> shared;
    std::map<unsigned, Barrier> barriers;
    std::map<int, Meeting> meetings;
    uint3 index;
};
struct Warp {
    unsigned v[32][4], to[32], b[32][2];
    float number[32];
    unsigned char rows[32][16];
    const unsigned *left[32];
};
struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
    std::deque<std::vector<std::function<void()>>> products, stores, copies;
    std::vector<std::function<void()>> open_products, open_stores, open_copies;
    unsigned arrived;  // which turn of the cluster's meeting
};
static std::vector<Block> blocks;
static std::vector<Warp> warps;
static std::vector<Fiber> fibers;
static std::deque<std::function<void()>> landing;
static ucontext_t scheduler;
static int current, threads_of_block;
static unsigned long moved;  // counts what happens, to notice when nothing does
static const char *trouble;
static void (*fiber_body)();

static Block &block() { return blocks[current / threads_of_block]; }
static unsigned rank_of_block() { return current / threads_of_block; }
static void enter(int fiber) {
    current = fiber;
    threadIdx = make_uint3(fiber % threads_of_block, 0, 0);
    blockIdx = block().index;
}
static void give_way() {
    const int self = current;
    swapcontext(&fibers[self].context, &scheduler);
    enter(self);
}
static void fail(const char *what) {
    if (!trouble) trouble = what;
    swapcontext(&fibers[current].context, &scheduler);
}
static void fiber_main() {
    fiber_body();
    fibers[current].done = true, moved++;
    swapcontext(&fibers[current].context, &scheduler);
}
template <class Ready> static void wait_until(Ready ready) {
    while (!ready()) give_way();
    moved++;
}
static void meet(Meeting &m, int want) {
    const unsigned turn = m.turn;
    moved++;
    if (++m.here == want)
        m.here = 0, m.turn++;
    else
        wait_until([&] { return m.turn != turn; });
}

// -- shared memory: an address holds the offset in its low 24 bits, and above, when it is of the cluster, 1 + the rank

static unsigned char *at_shared(unsigned address) {
    Block &b = address >> 24 ? blocks[(address >> 24) - 1] : block();
    return b.shared.data() + (address & 0xFFFFFF) - SHARED_AT;
}
static unsigned char *host_shared() { return block().shared.data(); }
static unsigned ks_shared_address(const void *p) {
    return unsigned(static_cast<const unsigned char *>(p) - block().shared.data()) + SHARED_AT;
}

// -- barriers

static void __syncthreads() { meet(block().meetings[0], threads_of_block); }
static void __syncwarp() { meet(block().meetings[1000 + threadIdx.x / 32], 32); }
static void ks_sync_some(int name, int threads) { meet(block().meetings[name], threads); }
static void ks_arrive_some(int name, int threads) {
    Meeting &m = block().meetings[name];
    moved++;
    if (++m.here == threads) m.here = 0, m.turn++;
}
static float __shfl_xor_sync(unsigned, float v, int gap) {
    Warp &w = warps[current / 32];
    const int lane = threadIdx.x % 32;
    w.number[lane] = v;
    __syncwarp();
    const float got = w.number[lane ^ gap];
    __syncwarp();
    return got;
}
static int __all_sync(unsigned, int holds) {
    Warp &w = warps[current / 32];
    w.number[threadIdx.x % 32] = float(holds != 0);
    __syncwarp();
    int all = 1;
    for (int lane = 0; lane < 32; lane++) all &= w.number[lane] != 0;
    __syncwarp();
    return all;
}
static void ks_cluster_arrive() {
    Meeting &m = blocks[0].meetings[999];
    fibers[current].arrived = m.turn, moved++;
    if (++m.here == int(fibers.size())) m.here = 0, m.turn++;
}
static void ks_cluster_wait() {
    wait_until([] { return blocks[0].meetings[999].turn != fibers[current].arrived; });
}
static void ks_cluster_sync() { ks_cluster_arrive(), ks_cluster_wait(); }
static bool ks_elect() { return threadIdx.x % 32 == 0; }
static int __shfl_sync(unsigned, int v, int) { return v; }  // of what is the same in a warp
static unsigned ks_cluster_rank() { return rank_of_block(); }
static unsigned ks_cluster_address(unsigned address, unsigned rank) { return address | (rank + 1) << 24; }
static float4 ks_cluster_load(unsigned address) {
    float4 v;
    memcpy(&v, at_shared(address), 16);
    return v;
}
static Barrier &barrier_at(unsigned address, unsigned rank) {
    auto found = blocks[rank].barriers.find(address);
    if (found == blocks[rank].barriers.end()) fail("a barrier that was not initialised");
    return found->second;
}
static void settle(Barrier &b) {
    if (b.left < 0) fail("more arrivals than a barrier expects");
    if (b.left == 0 && b.bytes == 0) b.left = b.count, b.phase ^= 1;
    moved++;
}
static void ks_barrier_init(unsigned barrier, unsigned arrivals) {
    block().barriers[barrier] = {int(arrivals), int(arrivals), 0, 0};
}
static void ks_barrier_init_fence() {}
static void arrive(Barrier &b) { b.left--, settle(b); }
static void ks_barrier_arrive(unsigned barrier) { arrive(barrier_at(barrier, rank_of_block())); }
static void ks_barrier_arrive_at(unsigned barrier, unsigned rank) {
    if (rank >= blocks.size()) fail("no block of this rank");
    arrive(barrier_at(barrier, rank));
}
static void ks_barrier_expect(unsigned barrier, unsigned bytes) {
    Barrier &b = barrier_at(barrier, rank_of_block());
    b.bytes += int(bytes), arrive(b);
}
static void ks_barrier_tell(unsigned barrier, unsigned rank) { ks_barrier_arrive_at(barrier, rank); }
static void ks_barrier_wait(unsigned barrier, unsigned parity) {
    Barrier &b = barrier_at(barrier, rank_of_block());
    wait_until([&] { return (b.phase & 1) != parity; });
}
static void ks_barrier_wait_cluster(unsigned barrier, unsigned parity) { ks_barrier_wait(barrier, parity); }

// A store to another block lands when it may, as a copy does.
static void ks_cluster_send(unsigned address, unsigned barrier, unsigned rank, float4 v) {
    if (rank >= blocks.size()) fail("no block of this rank");
    if (address % 16) fail("16 bytes that are not aligned");
    landing.push_back([=] {
        memcpy(blocks[rank].shared.data() + address - SHARED_AT, &v, 16);
        Barrier &b = barrier_at(barrier, rank);
        b.bytes -= 16, settle(b);
    });
}

// -- copies: a map is written by the test

struct HostMap {
    unsigned char *base;
    int64_t extents[5], pitches[4], box[5], swizzle;
};
static unsigned swizzled(unsigned address, int64_t swizzle) {
    const unsigned mask = swizzle == 128 ? 0x70 : swizzle == 64 ? 0x30 : swizzle == 32 ? 0x10 : 0;
    return address ^ (address >> 3 & mask);
}
// Calls move(shared address, global pointer or null) for each 16-bit element of a box.
template <class Move>
static void walk_box(const HostMap &m, unsigned at, int inner, int outer, std::array<int, 3> others, Move move) {
    const int64_t row = m.swizzle ? m.swizzle : 2 * m.box[0];
    unsigned char *first = m.base;
    bool there = true;
    for (int d = 0; d < 3; d++)
        first += 2 * others[d] * m.pitches[1 + d], there = there && others[d] >= 0 && others[d] < m.extents[2 + d];
    for (int64_t o = 0; o < m.box[1]; o++)
        for (int64_t i = 0; i < m.box[0]; i++) {
            const int64_t x = inner + i, y = outer + o;
            const bool inside = there && x >= 0 && x < m.extents[0] && y >= 0 && y < m.extents[1];
            move(swizzled(at + unsigned(o * row + 2 * i), m.swizzle), inside ? first + 2 * (x + y * m.pitches[0]) : nullptr);
        }
}
static void ks_bulk_prefetch_map(const void *) {}
static void load_box(unsigned to, const void *map, unsigned barrier, int inner, int outer, std::array<int, 3> others,
                     unsigned short mask) {
    const HostMap m = *static_cast<const HostMap *>(map);
    if (to % (m.swizzle ? m.swizzle * 8 : 128)) fail("a box that does not begin at a whole pattern");
    for (unsigned rank = 0; rank < 16; rank++) {
        if (!(mask >> rank & 1)) continue;
        if (rank >= blocks.size()) fail("no block of this rank");
        landing.push_back([=] {
            walk_box(m, to, inner, outer, others, [&](unsigned s, const unsigned char *g) {
                unsigned char *p = blocks[rank].shared.data() + s - SHARED_AT;
                if (g) memcpy(p, g, 2); else memset(p, 0, 2);
            });
            Barrier &b = barrier_at(barrier, rank);
            b.bytes -= int(m.box[0] * m.box[1] * 2), settle(b);
        });
    }
}
static void ks_bulk_load_to(unsigned to, const void *map, unsigned barrier, int inner, int outer, int batch, unsigned short mask) {
    load_box(to, map, barrier, inner, outer, {batch, 0, 0}, mask);
}
static void ks_bulk_load(unsigned to, const void *map, unsigned barrier, int inner, int outer, int c, int d = 0, int e = 0) {
    load_box(to, map, barrier, inner, outer, {c, d, e}, (unsigned short)(1u << rank_of_block()));
}
static void ks_bulk_store(const void *map, unsigned from, int inner, int outer, int batch) {
    const HostMap m = *static_cast<const HostMap *>(map);
    if (from % (m.swizzle ? m.swizzle * 8 : 128)) fail("a box that does not begin at a whole pattern");
    const unsigned rank = rank_of_block();
    fibers[current].open_stores.push_back([=] {
        walk_box(m, from, inner, outer, {batch, 0, 0}, [&](unsigned s, unsigned char *g) {
            if (g) memcpy(g, blocks[rank].shared.data() + s - SHARED_AT, 2);
        });
    });
}
static void ks_bulk_commit() {
    Fiber &f = fibers[current];
    f.stores.push_back(std::move(f.open_stores)), f.open_stores.clear();
}
static void run_down(std::deque<std::vector<std::function<void()>>> &groups, int pending) {
    while (int(groups.size()) > pending) {
        for (auto &one : groups.front()) one();
        groups.pop_front();
    }
}
template <int PENDING> static void ks_bulk_wait_read() { run_down(fibers[current].stores, PENDING); }
template <int PENDING> static void ks_bulk_wait() { run_down(fibers[current].stores, PENDING); }
static void ks_fence_async() {}
static void ks_fence_async_everywhere() {}
template <int SWIZZLE> static unsigned ks_swizzled(unsigned offset) { return swizzled(offset, SWIZZLE); }

template <int COUNT> static void ks_registers_less() {}
template <int COUNT> static void ks_registers_more() {}

// -- products: a descriptor is kept whole instead of packed; low 32 bits: address / 16, as the kernel adds to it

struct HostLayout {
    int swizzle, leading, stride;
};
static std::vector<HostLayout> layouts;
template <int SWIZZLE> static unsigned long long ks_descriptor(unsigned address, int leading, int stride) {
    for (size_t i = 0;; i++) {
        if (i == layouts.size()) layouts.push_back({SWIZZLE, leading, stride});
        const HostLayout &l = layouts[i];
        if (l.swizzle == SWIZZLE && l.leading == leading && l.stride == stride)
            return address >> 4 | (unsigned long long)i << 32;
    }
}
// The canonical layouts of the PTX ISA: where element (x of M or N, k) lies.
static unsigned place_of(unsigned long long descriptor, bool along, int x, int k) {
    const HostLayout &l = layouts[descriptor >> 32];
    const unsigned at = unsigned(descriptor) << 4;
    const int wide = l.swizzle / 2;  // elements of a row
    const unsigned flat = along ? at + x / wide * l.leading + x % wide * 2 + k % 8 * l.swizzle + k / 8 * l.stride
                                : at + x % 8 * l.swizzle + x / 8 * l.stride + k * 2;
    return swizzled(flat, l.swizzle);
}
template <class T> static float number_at(unsigned rank, unsigned address) {
    T v;
    memcpy(static_cast<void *>(&v), blocks[rank].shared.data() + address - SHARED_AT, 2);
    return float(v);
}
static void ks_wgmma_fence() {}
static void ks_wgmma_commit() {
    Fiber &f = fibers[current];
    f.products.push_back(std::move(f.open_products)), f.open_products.clear();
}
template <int PENDING> static void ks_wgmma_wait() {
    give_way();  // let others go wrong first
    run_down(fibers[current].products, PENDING);
    __syncwarp();
}
template <int COUNT> static void ks_wgmma_pin(float (&)[COUNT]) {}
template <class T, int N> struct ks_product {
    template <int TA, int TB>
    static void add(float (&d)[N / 2], unsigned long long left, unsigned long long right, int kept) {
        float *sums = d;
        const int t = threadIdx.x % 128;
        const unsigned rank = rank_of_block();
        fibers[current].open_products.push_back([=] {
            float a[2][16];
            for (int h = 0; h < 2; h++)
                for (int k = 0; k < 16; k++) a[h][k] = number_at<T>(rank, place_of(left, TA, 16 * (t / 32) + t % 32 / 4 + 8 * h, k));
            for (int i = 0; i < N / 2; i++) {
                const int h = i / 2 % 2, column = 8 * (i / 4) + 2 * (t % 4) + i % 2;
                float s = kept ? sums[i] : 0;
                for (int k = 0; k < 16; k++) s += a[h][k] * number_at<T>(rank, place_of(right, TB, column, k));
                sums[i] = s;
            }
        });
    }
};

// The left operand lies in the registers of the four threads of a row, which are read when the product is made.
template <class T, int N> struct ks_product_of_registers {
    template <int TB> static void add(float (&d)[N / 2], const unsigned (&a)[4], unsigned long long right, int kept) {
        Warp &w = warps[current / 32];
        const int t = threadIdx.x % 128, lane = t % 32;
        w.left[lane] = a;
        __syncwarp();
        std::array<const unsigned *, 4> row;
        for (int q = 0; q < 4; q++) row[q] = w.left[lane / 4 * 4 + q];
        __syncwarp();
        float *sums = d;
        const unsigned rank = rank_of_block();
        fibers[current].open_products.push_back([=] {
            for (int i = 0; i < N / 2; i++) {
                const int h = i / 2 % 2, column = 8 * (i / 4) + 2 * (t % 4) + i % 2;
                float s = kept ? sums[i] : 0;
                for (int k = 0; k < 16; k++) {
                    const unsigned pair = row[k % 8 / 2][k / 8 * 2 + h];
                    const uint16_t bits = uint16_t(k % 2 ? pair >> 16 : pair);
                    T v;
                    memcpy(static_cast<void *>(&v), &bits, 2);
                    s += float(v) * number_at<T>(rank, place_of(right, TB, column, k));
                }
                sums[i] = s;
            }
        });
    }
};

// -- matrices

static void store_matrices(unsigned to, const unsigned (&v)[4], bool turned) {
    Warp &w = warps[current / 32];
    const int lane = threadIdx.x % 32, i = lane / 8, r = lane % 8;
    w.to[lane] = to;
    memcpy(w.v[lane], v, 16);
    __syncwarp();
    if (to % 16) fail("a row of a matrix that is not aligned");
    for (int c = 0; c < 8; c++) {
        const int row = turned ? c : r, column = turned ? r : c;
        const unsigned pair = w.v[row * 4 + column / 2][i];
        const uint16_t bits = uint16_t(column % 2 ? pair >> 16 : pair);
        memcpy(at_shared(to) + 2 * c, &bits, 2);
    }
    __syncwarp();
}
static void ks_store_matrices(unsigned to, const unsigned (&v)[4]) { store_matrices(to, v, false); }
static void ks_store_matrices_transposed(unsigned to, const unsigned (&v)[4]) { store_matrices(to, v, true); }

// -- products of a warp

static unsigned ks_turn(unsigned word) {
    Warp &w = warps[current / 32];
    const unsigned lane = threadIdx.x % 32, row = lane / 4, pair = lane % 4 * 2, shift = row % 2 * 16;
    w.v[lane][0] = word;
    __syncwarp();
    const unsigned low = w.v[pair * 4 + row / 2][0] >> shift, high = w.v[(pair + 1) * 4 + row / 2][0] >> shift;
    __syncwarp();
    return (low & 0xFFFF) | high << 16;
}
template <class T> static float half_of(unsigned word, int half) {
    const uint16_t bits = uint16_t(word >> (16 * half));
    T v;
    memcpy(static_cast<void *>(&v), &bits, 2);
    return float(v);
}
template <class T> static void ks_multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    Warp &w = warps[current / 32];
    const int lane = threadIdx.x % 32;
    memcpy(w.v[lane], a, 16);
    w.b[lane][0] = b0, w.b[lane][1] = b1;
    __syncwarp();
    for (int e = 0; e < 4; e++) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        for (int k = 0; k < 16; k++) {
            const unsigned left = w.v[row % 8 * 4 + k % 8 / 2][k / 8 * 2 + row / 8];
            d[e] += half_of<T>(left, k % 2) * half_of<T>(w.b[column * 4 + k % 8 / 2][k / 8], k % 2);
        }
    }
    __syncwarp();
}

// Four 8x8 matrices of 16-bit elements; lane 8 i + r has the address of row r of matrix i.
static void load_matrices(unsigned (&r)[4], unsigned row, bool transposed) {
    Warp &w = warps[current / 32];
    const int lane = threadIdx.x % 32;
    if (row % 16) fail("a row of a matrix that is not aligned");
    memcpy(w.rows[lane], at_shared(row), 16);
    __syncwarp();
    for (int m = 0; m < 4; m++) {
        unsigned word = 0;
        for (int e = 0; e < 2; e++) {
            const int y = transposed ? lane % 4 * 2 + e : lane / 4, x = transposed ? lane / 4 : lane % 4 * 2 + e;
            uint16_t half;
            memcpy(&half, w.rows[m * 8 + y] + 2 * x, 2);
            word |= unsigned(half) << 16 * e;
        }
        r[m] = word;
    }
    __syncwarp();
}
static void ks_load_matrices(unsigned (&r)[4], unsigned row) { load_matrices(r, row, false); }
static void ks_load_matrices_transposed(unsigned (&r)[4], unsigned row) { load_matrices(r, row, true); }

// -- copies of a thread, which happen no sooner than they are waited for

typedef uint32_t ks_shared_t;
static ks_shared_t ks_shared(const void *p) { return ks_shared_address(p); }
template <int Bytes> static void ks_copy_async(ks_shared_t to, const void *from, int valid) {
    if (to % Bytes || uintptr_t(from) % Bytes) fail("a copy that is not aligned");
    unsigned char *place = at_shared(to);
    fibers[current].open_copies.push_back([=] { memset(place, 0, Bytes), memcpy(place, from, valid); });
}
static void ks_copy_commit() {
    Fiber &f = fibers[current];
    f.copies.push_back(std::move(f.open_copies)), f.open_copies.clear();
}
template <int Pending> static void ks_copy_wait() { run_down(fibers[current].copies, Pending); }

// -- running

static const char *run_clusters(unsigned grid, unsigned threads, unsigned cluster, void (*body)()) {
    fiber_body = body, trouble = nullptr;
    gridDim = dim3(grid, 1, 1), blockDim = dim3(threads, 1, 1), threads_of_block = int(threads);
    for (unsigned first = 0; first < grid && !trouble; first += cluster) {
        blocks = std::vector<Block>(cluster), warps = std::vector<Warp>(cluster * threads / 32);
        fibers = std::vector<Fiber>(cluster * threads);
        for (unsigned b = 0; b < cluster; b++) {
            blocks[b].shared.assign(SHARED, 0xFF);
            blocks[b].index = make_uint3(first + b, 0, 0);
        }
        for (Fiber &f : fibers) {
            f.stack.resize(1 << 16);
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size();
            f.context.uc_link = &scheduler;
            makecontext(&f.context, fiber_main, 0);
        }
        for (;;) {
            const unsigned long before = moved;
            size_t ended = 0;
            for (size_t f = 0; f < fibers.size() && !trouble; f++) {
                if (!fibers[f].done) enter(int(f)), swapcontext(&scheduler, &fibers[f].context);
                ended += fibers[f].done;
            }
            if (trouble) break;
            if (ended == fibers.size()) break;
            if (moved == before || landing.size() > 3) {  // copies land late, the newest of the oldest four first
                if (landing.empty() && moved == before) { trouble = "everything waits for ever"; break; }
                const size_t at = landing.size() > 3 ? 3 : landing.size() - 1;
                auto copy = landing[at];
                landing.erase(landing.begin() + at);
                current = 0, copy();
            }
        }
        if (!trouble && !landing.empty()) trouble = "a copy lands after its block has ended";
        for (Fiber &f : fibers)
            if (!trouble && (!f.stores.empty() || !f.open_stores.empty())) trouble = "a block ends before its stores";
        landing.clear();
    }
    return trouble;
}
