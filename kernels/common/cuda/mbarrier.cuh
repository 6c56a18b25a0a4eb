// mbarrier: barriers in shared memory that also count bytes on their way.
//
// Follows the PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". A barrier is 8 bytes of
// shared memory, named by its 32-bit shared address. A phase ends when all expected arrivals came and all expected
// bytes landed; phases have parity 0, 1, 0, ... Waiting for parity 1 of a fresh barrier returns at once.
#pragma once

#include "kernsearch.cuh"

KS_DEVICE unsigned ks_shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

KS_DEVICE void ks_barrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster.
KS_DEVICE void ks_barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

KS_DEVICE void ks_barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and announces `bytes` that copies will bring.
KS_DEVICE void ks_barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives at the barrier of the same place in block `rank` of the cluster. Nothing that this thread wrote is made
// visible there: that takes a fence of the whole device, which costs the better part of a microsecond (ks_barrier_tell).
KS_DEVICE void ks_barrier_arrive_at(unsigned barrier, unsigned rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(barrier), "r"(rank) : "memory");
}

// The same, and what this thread, or threads that it has met, wrote before is visible to who waits there.
KS_DEVICE void ks_barrier_tell(unsigned barrier, unsigned rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(barrier), "r"(rank) : "memory");
}

KS_DEVICE bool ks_barrier_try(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    return done;
}

// The same, seeing also what other blocks of the cluster wrote before they arrived.
KS_DEVICE bool ks_barrier_try_cluster(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    return done;
}

// With KS_WATCHDOG a wait that lasts for seconds says where and kills the launch, instead of hanging the device.
KS_DEVICE void ks_watch(unsigned barrier, unsigned parity, unsigned &turns) {
#ifdef KS_WATCHDOG
    if (++turns > (1u << 22)) {
        printf("stuck: block %d thread %d barrier at %u parity %u\n", blockIdx.x, threadIdx.x, barrier, parity);
        __trap();
    }
#else
    (void)barrier, (void)parity, (void)turns;
#endif
}

KS_DEVICE void ks_barrier_wait(unsigned barrier, unsigned parity) {
    unsigned turns = 0;
    while (!ks_barrier_try(barrier, parity)) ks_watch(barrier, parity, turns);
}

KS_DEVICE void ks_barrier_wait_cluster(unsigned barrier, unsigned parity) {
    unsigned turns = 0;
    while (!ks_barrier_try_cluster(barrier, parity)) ks_watch(barrier, parity, turns);
}
