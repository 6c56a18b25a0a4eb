// Kernels that show what a pool does. Sizes: count, and what each says; buffers as each says.
#define _GNU_SOURCE
#include "kernsearch.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t running, most_running;

static void count_task(void *context, int64_t index) {
    atomic_fetch_add((_Atomic int64_t *)((const ks_call *)context)->buffers[0] + index, 1);
}

// buffer 0: how often each index ran
void count(const ks_call *call) { ks_parallel(call, call->sizes[0], count_task, (void *)call); }

static void nested_task(void *context, int64_t index) {
    const ks_call *call = context;
    void *buffer = (int64_t *)call->buffers[0] + index * call->sizes[0];
    ks_call inner = *call;
    inner.buffers = &buffer;
    count(&inner);
}

// buffer 0: count x count counters; each task runs a job of its own
void nested(const ks_call *call) { ks_parallel(call, call->sizes[0], nested_task, (void *)call); }

static void meet_task(void *context, int64_t index) {
    const ks_call *call = context;
    _Atomic int64_t *arrived = call->buffers[0];
    int64_t *threads = call->buffers[1];
    threads[index] = syscall(SYS_gettid);
    atomic_fetch_add(arrived, 1);
    const time_t start = time(NULL);
    while (atomic_load(arrived) < call->sizes[0] && time(NULL) < start + 20) sched_yield();
}

// All tasks wait for each other. buffer 0: arrivals, buffer 1: the thread of each
void meet(const ks_call *call) { ks_parallel(call, call->sizes[0], meet_task, (void *)call); }

static void crowd_task(void *context, int64_t index) {
    int64_t now = atomic_fetch_add(&running, 1) + 1, most = atomic_load(&most_running);
    while (now > most && !atomic_compare_exchange_weak(&most_running, &most, now)) {}
    sched_yield();
    count_task(context, index);
    atomic_fetch_sub(&running, 1);
}

// buffer 1: the most tasks that ran at once; not for several callers at once
void crowd(const ks_call *call) {
    atomic_store(&most_running, 0);
    ks_parallel(call, call->sizes[0], crowd_task, (void *)call);
    *(int64_t *)call->buffers[1] = atomic_load(&most_running);
}

static void halve_task(void *context, int64_t index) {
    volatile float *x = (float *)((const ks_call *)context)->buffers[0] + index;
    *x = *x * 0.5f;
}

// buffer 0: floats
void halve(const ks_call *call) { ks_parallel(call, call->sizes[0], halve_task, (void *)call); }

// Flush subnormals to zero, or keep them, in this thread; says if it did so before.
int flush_subnormals(int on) {
#if defined(__x86_64__)
    const unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(on ? before | 0x8040 : before & ~0x8040u);
    return (before & 0x8040) != 0;
#elif defined(__aarch64__)
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    const uint64_t after = on ? before | (1 << 24) : before & ~(uint64_t)(1 << 24);
    __asm__ volatile("msr fpcr, %0" : : "r"(after));
    return (before & (1 << 24)) != 0;
#else
    return on;
#endif
}
