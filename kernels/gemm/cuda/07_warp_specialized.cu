// gemm/07_warp_specialized: a producer thread and consumer warpgroups, tiles moved by the copy engine, wgmma.
//
// Computes  D[M,N] = epilogue(sum over K of A[M,K] B[K,N]); bfloat16 or float16 in, float32 sums.
// Idea      One thread keeps a ring of STAGES tiles full; warpgroups multiply what is there and give it back; blocks
//           stay and take tile after tile, so a tile is stored while the next one is loaded (PINGPONG: and multiplied).
// Params    BM BN BK STAGES CONSUMERS PINGPONG CM CN GROUP ALONG BUFFERS (see hopper.cuh); SPLIT slabs, whose sums go to
//           memory, or are added up within a cluster where KS_COMBINE
// Launch    grid min(SMs, tiles) blocks, whole clusters; block 128 * (CONSUMERS + 1)
// Shared    1024 of barriers, STAGES * 2 * BK * (BM + BN), and pieces of finished tiles; sums of a tile, where a cluster
//           adds up, take the place of the stages
// Traffic   A is read N / BN times, B M / BM times, mostly from the second level cache; by CN, CM less from there
// Edges     any M, N, K >= 1: copies fill in zeros, stores are clipped; bases and pitches of A, B multiples of 16 bytes
#include "ks_generated.h"

#include "hopper_math.cuh"
#include "hopper_store.cuh"
#if KS_COMBINE
#include "hopper_combine.cuh"
#endif

#if KS_PACKED_A || KS_PACKED_B
#include "pack.cuh"
#endif
#if KS_PACKED_A && KS_PACKED_B
KS_PACK_KERNEL_OF_TWO(pack_both, A, B)
#elif KS_PACKED_A
KS_PACK_KERNEL(pack_a, A)
#elif KS_PACKED_B
KS_PACK_KERNEL(pack_b, B)
#endif

// Registers of a thread: the pool of the block goes from the producer to the consumers.
constexpr int MANY = PARTS * BN / 2;  // sums
constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : MANY >= 192 ? 24 : 40;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : MANY >= 192 ? 240 : 232;

extern "C" __global__ void __launch_bounds__(THREADS, 1) gemm_warp_specialized(const __grid_constant__ ks_args x) {
    extern __shared__ unsigned char dynamic[];
    unsigned char *base = dynamic + (1024 - ks_shared_address(dynamic) % 1024) % 1024;
    const unsigned shared = ks_shared_address(base), rank = CLUSTER > 1 ? ks_cluster_rank() : 0;
    const ks_tiles tiles(x);
    const ks_tile first = tiles.at(blockIdx.x / CLUSTER, rank);
    ks_allow_next_launch();
    if (threadIdx.x == 32) {  // maps are arguments, which no launch writes
        ks_bulk_prefetch_map(&x.map_A);
        ks_bulk_prefetch_map(&x.map_B);
#if KS_MAPPED_D
        ks_bulk_prefetch_map(&x.map_D);
#endif
    }
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            ks_barrier_init(shared + FULL + 8 * s, 1);
            // a warp each of the consumers of this stage, in all blocks that this block's copies reach
            ks_barrier_init(shared + EMPTY + 8 * s, 4 * (CONSUMERS / PARTIES) * DESTINATIONS);
        }
        ks_barrier_init(shared + READY, CONSUMERS * CLUSTER);
        ks_barrier_init(shared + FREE, CONSUMERS * CLUSTER);
        for (int c = 0; c < PARTIES; c++) ks_barrier_init(shared + TURN + 8 * c, 1);
        ks_barrier_init_fence();
    }
    if (CLUSTER > 1)
        ks_cluster_sync();
    else
        __syncthreads();

    // All above touches no memory that another launch reads or writes, so it may run beside the launches before this one.
    // From here on those are over: every thread waits, whatever it reads (operands by the copy engine, bias and C by
    // consumers) or writes (the output, partial sums). Since no block ends before they did, a later launch that waits
    // for this one has waited for them too, whether or not they let this one begin early.
    ks_wait_for_earlier_launch();

    const int group = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0);  // the same in a warp, as the compiler can see
    if (group == 0) {
        if (CONSUMERS > 1) ks_registers_less<PRODUCER_REGISTERS>();
        if (threadIdx.x < 32 && ks_elect()) ks_produce(x, shared, tiles, first, rank);
        __syncwarp();
    } else {
        if (CONSUMERS > 1) ks_registers_more<CONSUMER_REGISTERS>();
        const int consumer = group - 1, row = PINGPONG ? 0 : consumer * ROWS;
        ks_ring ring;
        int turn = 0;
        ks_tile t = first;
        for (int number = blockIdx.x / CLUSTER; number < tiles.total; number += gridDim.x / CLUSTER, turn++) {
            if (turn > 0) t = tiles.at(number, rank);
            if (PINGPONG && turn % PARTIES != consumer) {
                ring.skip(t.last - t.first);
                continue;
            }
            float d[PARTS][BN / 2];
            ks_touch_columns(x, t);
            ks_await_turn(shared, consumer, turn);
            ks_consume(d, shared, t, row, ring, rank, consumer);
            const bool last = number + int(gridDim.x) / CLUSTER >= tiles.total;
#if KS_COMBINE
            ks_combine(x, d, t, row, shared, reinterpret_cast<float *>(base + TILES), group, consumer, rank, turn, last);
#else
            ks_finish(x, d, t, row, base, group, consumer, last);
#endif
        }
        if (BULK && ks_leads()) ks_bulk_wait<0>();
    }
    if (CLUSTER > 1) ks_cluster_sync();  // no block may leave while another still writes into it or reads it
}
