// What warps do together, on the host: stands for mma.cuh. Threads take turns, each up to its next meeting, so that all
// threads of a block must meet equally often; what a lane brings to a meeting stays until the one after the next.

#pragma once

struct Brought {
    unsigned char row[16];
    uint32_t a[4], b[2];
};
static Brought brought[2][1024];
static unsigned meetings[1024];  // of each thread; only their parity matters

// Show the warp what this lane brings, and see what all have brought.
static const Brought *meet(const Brought &mine) {
    const unsigned t = threadIdx.x, side = meetings[t]++ & 1;
    brought[side][t] = mine;
    __syncthreads();
    return brought[side] + t / 32 * 32;
}

static void __syncwarp() { __syncthreads(); }

static void load_matrices(uint32_t (&r)[4], ks_shared_t row, bool transposed) {
    Brought mine;
    want_aligned(from_shared(row), 16);
    memcpy(mine.row, from_shared(row), 16);
    const Brought *all = meet(mine);
    const unsigned lane = threadIdx.x % 32;
    for (unsigned m = 0; m < 4; m++) {
        uint16_t pair[2];
        for (unsigned e = 0; e < 2; e++) {
            const unsigned y = transposed ? lane % 4 * 2 + e : lane / 4, x = transposed ? lane / 4 : lane % 4 * 2 + e;
            memcpy(&pair[e], all[m * 8 + y].row + 2 * x, 2);
        }
        r[m] = pair[0] | uint32_t(pair[1]) << 16;
    }
}

static void ks_load_matrices(uint32_t (&r)[4], ks_shared_t row) { load_matrices(r, row, false); }
static void ks_load_matrices_transposed(uint32_t (&r)[4], ks_shared_t row) { load_matrices(r, row, true); }

template <class T>
static float number(uint32_t word, unsigned half) {
    const uint16_t bits = uint16_t(word >> (16 * half));
    T value;
    memcpy(static_cast<void *>(&value), &bits, 2);
    return ks_to_acc(value);
}

template <class T>
static void ks_multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    Brought mine;
    memcpy(mine.a, a, sizeof a);
    mine.b[0] = b0, mine.b[1] = b1;
    const Brought *all = meet(mine);
    const unsigned lane = threadIdx.x % 32;
    for (unsigned e = 0; e < 4; e++) {
        const unsigned row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        for (unsigned k = 0; k < 16; k++) {
            const Brought &left = all[row % 8 * 4 + k % 8 / 2], &right = all[column * 4 + k % 8 / 2];
            d[e] += number<T>(left.a[k / 8 * 2 + row / 8], k % 2) * number<T>(right.b[k / 8], k % 2);
        }
    }
}

static uint32_t ks_turn(uint32_t word) {
    Brought mine;
    mine.a[0] = word;
    const Brought *all = meet(mine);
    const unsigned row = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2, shift = row % 2 * 16;
    const uint32_t low = all[pair * 4 + row / 2].a[0] >> shift, high = all[(pair + 1) * 4 + row / 2].a[0] >> shift;
    return (low & 0xFFFF) | high << 16;
}

template <class T>
static T __ldg(const T *p) {
    if (uintptr_t(p) % sizeof(T)) abort();
    return *p;
}

static uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
    return uint32_t((uint64_t(high) << 32 | low) >> (shift & 31));
}

static float atomicAdd(float *to, float value) {
    const float old = *to;
    *to += value;
    return old;
}

static uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Lanes exchange values; all threads of a block must come here equally often.
template <class T>
static T __shfl_xor_sync(unsigned, T value, int gap) {
    Brought mine;
    memcpy(mine.row, &value, sizeof value);
    const Brought *all = meet(mine);
    memcpy(&value, all[(threadIdx.x % 32) ^ gap].row, sizeof value);
    return value;
}

// Cache policies say nothing here; alignment does.
template <class T>
static T __ldcs(const T *p) { return __ldg(p); }

template <class T>
static void __stcs(T *p, T value) {
    if (uintptr_t(p) % sizeof(T)) abort();
    *p = value;
}
