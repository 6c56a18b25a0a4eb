// Loads one box of A after the other by its map and stores it by the map of D, which lies as A does.

#include "ks_generated.h"
#include "bulk.cuh"
#include "mbarrier.cuh"

extern "C" __global__ void copy_boxes(const __grid_constant__ ks_args x) {
    __shared__ alignas(1024) KS_TYPE_A box[KS_BOX_INNER_A * KS_BOX_OUTER_A];
    __shared__ alignas(8) uint64_t filled;
    const unsigned barrier = ks_shared_address(&filled), to = ks_shared_address(box);
    if (threadIdx.x == 0) {
        ks_barrier_init(barrier, 1);
        ks_barrier_init_fence();
    }
    __syncthreads();  // the barrier is there
    const int inner = blockIdx.x * KS_BOX_INNER_A, outer = blockIdx.y * KS_BOX_OUTER_A, batch = blockIdx.z;
    if (threadIdx.x == 0) {
        ks_barrier_expect(barrier, sizeof box);
        ks_bulk_load(to, &x.map_A, barrier, inner, outer, batch);
    }
    ks_barrier_wait(barrier, 0);
    if (threadIdx.x == 0) {
        ks_bulk_store(&x.map_D, to, inner, outer, batch);
        ks_bulk_commit();
        ks_bulk_wait<0>();
    }
}
