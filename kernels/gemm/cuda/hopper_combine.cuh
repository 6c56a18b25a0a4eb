// Adding up the slabs of a tile within a cluster, in the order of the slabs.
//
// Every block leaves its sums in its own shared memory, where the stages were; when all have, each block reads the same
// part of all of them, adds, finishes and stores that part. Only then the producers go on. One launch, no partial sums
// in memory, the same bits every time.
#pragma once

#include "hopper_store.cuh"

constexpr int WHOLE_PITCH = TURNED ? BM + 4 : BN + 8;  // floats of a line; keeps threads of a warp on different banks
constexpr int WHOLE_BYTES = 4 * WHOLE_PITCH * (TURNED ? BN : BM);
constexpr int RUN = 8;                                 // neighbours that a thread finishes together
static_assert(BM * BN / RUN % CLUSTER == 0, "every block has the same share of the tile");

KS_DEVICE void ks_leave_sums(float (&d)[PARTS][BN / 2], float *sums, int row) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, own = row + 16 * warp + lane / 4, pair = 2 * (lane % 4);
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = 64 * part + own + 8 * half, c = 8 * j + pair, at = 4 * j + 2 * half;
                if (TURNED) {
                    sums[c * WHOLE_PITCH + r] = d[part][at];
                    sums[(c + 1) * WHOLE_PITCH + r] = d[part][at + 1];
                } else {
                    *reinterpret_cast<float2 *>(sums + r * WHOLE_PITCH + c) = {d[part][at], d[part][at + 1]};
                }
            }
}

// All blocks of the cluster: this consumer has come so far.
KS_DEVICE void ks_tell_all(unsigned barrier, int name) {
    ks_sync_some(name, 128);
    if (threadIdx.x % 128 < CLUSTER) ks_barrier_tell(barrier, threadIdx.x % 128);
}

// `turn`: how many tiles came before this one; `last`: no more come.
KS_DEVICE void ks_combine(const ks_args &x, float (&d)[PARTS][BN / 2], const ks_tile &t, int row, unsigned shared,
                          float *sums, int name, int consumer, unsigned rank, int turn,
                          bool last) {
    ks_sync_some(CONSUMERS + 1, 128 * CONSUMERS);  // nothing multiplies any more: the stages are free
    ks_leave_sums(d, sums, row);
    ks_tell_all(shared + READY, name);
    ks_barrier_wait_cluster(shared + READY, turn & 1);
    constexpr int runs = BM * BN / RUN / CLUSTER, line_runs = (TURNED ? BM : BN) / RUN;
    const unsigned mine = ks_shared_address(sums);
    for (int e = consumer * 128 + threadIdx.x % 128; e < runs; e += 128 * CONSUMERS) {
        const int at = int(rank) * runs + e, line = at / line_runs, place = at % line_runs * RUN;
        const unsigned from = mine + 4 * (line * WHOLE_PITCH + place);
        float v[RUN] = {};
#pragma unroll
        for (int s = 0; s < CLUSTER; s++) {
            const unsigned there = ks_cluster_address(from, s);
#pragma unroll
            for (int q = 0; q < RUN / 4; q++) {
                const float4 w = ks_cluster_load(there + 16 * q);
                v[4 * q] += w.x, v[4 * q + 1] += w.y, v[4 * q + 2] += w.z, v[4 * q + 3] += w.w;
            }
        }
        ks_put_along<RUN>(x, t, t.m + (TURNED ? place : line), t.n + (TURNED ? line : place), v);
    }
    if (last) return;
    ks_fence_async_everywhere();  // copies write where sums were read
    ks_tell_all(shared + FREE, name);
}
