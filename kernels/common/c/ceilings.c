// common/ceilings: what this CPU can do at most, for the model's predictions.
//
// Entries   ks_ceiling_fma    one task a thread: `rounds` of independent multiply-adds in registers
//           ks_ceiling_read   one task a thread: read a slice of a buffer `rounds` times
//           ks_ceiling_copy   one task a thread: copy a slice to another buffer `rounds` times
//           ks_ceiling_meet   `rounds` parallel sections in which the threads only meet
// Buffers   0: one result of KS_VECTOR_BYTES a thread, 128 bytes apart (first read as a factor near 1);
//           1: source; 2: target
// Sizes     0: rounds; 1: bytes of a slice, a multiple of 8 vectors
// Defines   KS_DOUBLE 0 or 1: the type that is multiplied

#include "kernsearch.h"
#include "vector.h"

#define CHAINS 12  // enough to hide a latency of 4 to 6 cycles on two units; with x and y they fit 16 registers
#define RESULT_BYTES 128
#define PATIENCE 1000000  // a thread that never comes must not hang the others

static inline ks_v *result(const ks_call *call, int64_t index) {
    return (ks_v *)((char *)call->buffers[0] + index * RESULT_BYTES);
}

static void fma_task(void *context, int64_t index) {
    const ks_call *call = context;
    ks_v *out = result(call, index);
    const ks_v x = *out, y = x * x;
    ks_v sum[CHAINS];
    KS_UNROLL(12)
    for (int i = 0; i < CHAINS; i++) sum[i] = x + (ks_t)i;  // equal chains would be computed once
    for (int64_t round = 0; round < call->sizes[0]; round++) {
        KS_UNROLL(12)
        for (int i = 0; i < CHAINS; i++) sum[i] = sum[i] * x + y;
    }
    KS_UNROLL(12)
    for (int i = 1; i < CHAINS; i++) sum[0] += sum[i];
    *out = sum[0] * 0 + x;
}

static void read_task(void *context, int64_t index) {
    const ks_call *call = context;
    const int64_t vectors = call->sizes[1] / KS_VECTOR_BYTES;
    const ks_v *from = (const ks_v *)((const char *)call->buffers[1] + index * call->sizes[1]);
    ks_m seen[8] = {0};
    for (int64_t round = 0; round < call->sizes[0]; round++) {
        for (int64_t i = 0; i < vectors; i += 8) {
            KS_UNROLL(8)
            for (int j = 0; j < 8; j++) seen[j] |= (ks_m)from[i + j];
        }
        __asm__ volatile("" ::: "memory");  // each round reads again
    }
    KS_UNROLL(8)
    for (int j = 1; j < 8; j++) seen[0] |= seen[j];
    *result(call, index) = (ks_v)seen[0];
}

static void copy_task(void *context, int64_t index) {
    const ks_call *call = context;
    const int64_t vectors = call->sizes[1] / KS_VECTOR_BYTES;
    const ks_v *from = (const ks_v *)((const char *)call->buffers[1] + index * call->sizes[1]);
    ks_v *to = (ks_v *)((char *)call->buffers[2] + index * call->sizes[1]);
    for (int64_t round = 0; round < call->sizes[0]; round++) {
        for (int64_t i = 0; i < vectors; i++) {
            to[i] = from[i];
            __asm__ volatile("" ::: "memory");  // plain stores, not a call of memcpy
        }
    }
}

typedef struct meeting {
    _Atomic int64_t arrived;
    int64_t expected;
} meeting;

static void meet_task(void *context, int64_t index) {
    meeting *m = context;
    (void)index;
    m->arrived++;
    for (int64_t spin = 0; spin < PATIENCE && m->arrived < m->expected; spin++) {
    }
}

void ks_ceiling_fma(const ks_call *call) { ks_parallel(call, call->threads, fma_task, (void *)call); }
void ks_ceiling_read(const ks_call *call) { ks_parallel(call, call->threads, read_task, (void *)call); }
void ks_ceiling_copy(const ks_call *call) { ks_parallel(call, call->threads, copy_task, (void *)call); }

void ks_ceiling_meet(const ks_call *call) {
    for (int64_t round = 0; round < call->sizes[0]; round++) {
        meeting m = {0, call->threads};
        ks_parallel(call, call->threads, meet_task, &m);
    }
}
