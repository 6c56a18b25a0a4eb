// The calling convention of every C kernel: one struct, no globals.
//
//   void <op>_<idea>(const ks_call *call);
//
// The order of buffers, sizes and scalars is the kernel plan's. A kernel runs work in parallel only through
// ks_parallel, which returns when all tasks are done, so that it needs no thread library of its own.

#ifndef KERNSEARCH_H
#define KERNSEARCH_H

#include <stddef.h>
#include <stdint.h>

typedef void (*ks_task)(void *context, int64_t index);

typedef struct ks_call {
    void *const *buffers;      // operands, values between kernels, scratch
    const int64_t *sizes;      // extents and strides, in elements
    const double *scalars;     // alpha, beta, ...
    int64_t threads;           // how many threads the call may use, at least 1
    // Run task(context, i) for i in [0, count) on up to `threads` threads; NULL: run them here, in order.
    void (*parallel)(void *pool, int64_t threads, int64_t count, ks_task task, void *context);
    void *pool;
} ks_call;

// Multiply-adds that are worth another thread: fewer are done before it has begun.
#ifndef KS_LEAST_SHARE
#define KS_LEAST_SHARE 131072
#endif

// How many threads of a call to use for so many multiply-adds.
static inline int64_t ks_threads_for(const ks_call *call, double work) {
    const double shares = work / KS_LEAST_SHARE;
    return shares >= call->threads ? call->threads : shares < 2 ? 1 : (int64_t)shares;
}

static inline void ks_parallel(const ks_call *call, int64_t count, ks_task task, void *context) {
    if (call->parallel && call->threads > 1 && count > 1) {
        call->parallel(call->pool, call->threads, count, task, context);
    } else {
        for (int64_t i = 0; i < count; i++) task(context, i);
    }
}

#endif
