// A matrix product, and the ways in which it can go wrong. Each function is one kernel under test.
//
// sizes    M, N, K, then strides in elements: A.m A.k B.k B.n D.m
// buffers  A, B, D, then what the plan of that kernel adds
// scalars  alpha

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernsearch.h"

typedef struct {
    const ks_call *call;
    const float *a, *b;
    float *d;
    int64_t m, n, k, am, ak, bk, bn, dm;
    float alpha;
} args;

enum { TILE = 8 };

static args read_args(const ks_call *call) {
    const int64_t *s = call->sizes;
    return (args){call, call->buffers[0], call->buffers[1], call->buffers[2], s[0], s[1], s[2],
                  s[3], s[4], s[5], s[6], s[7], (float)call->scalars[0]};
}

static float dot(const args *x, int64_t i, int64_t j, int64_t depth) {
    float sum = 0;
    for (int64_t p = 0; p < depth; p++) sum += x->a[i * x->am + p * x->ak] * x->b[p * x->bk + j * x->bn];
    return sum;
}

static void rows(void *context, int64_t tile) {
    const args *x = context;
    for (int64_t i = tile * TILE; i < x->m && i < (tile + 1) * TILE; i++)
        for (int64_t j = 0; j < x->n; j++) x->d[i * x->dm + j] = x->alpha * dot(x, i, j, x->k);
}

static int64_t tiles(const args *x) { return (x->m + TILE - 1) / TILE; }

static args product(const ks_call *call) {
    args x = read_args(call);
    ks_parallel(call, tiles(&x), rows, &x);
    return x;
}

void good(const ks_call *call) { product(call); }

void talkative(const ks_call *call) {
    product(call);
    printf("{\"id\": 1}\n");
    fflush(stdout);
}

// -- wrong values

void wrong_at_one_edge(const ks_call *call) {
    args x = product(call);
    if (x.n > TILE) x.d[(x.m - 1) * x.dm + x.n - 1] *= 1.001f;
}

void skips_a_tile(const ks_call *call) {
    args x = read_args(call);
    ks_parallel(call, x.m / TILE, rows, &x);
}

void forgets_the_end_of_k(const ks_call *call) {
    args x = read_args(call);
    x.k = x.k / TILE * TILE;
    ks_parallel(call, tiles(&x), rows, &x);
}

void forgets_alpha(const ks_call *call) {
    args x = read_args(call);
    x.alpha = 1;
    ks_parallel(call, tiles(&x), rows, &x);
}

void swaps_two_columns(const ks_call *call) {
    args x = product(call);
    if (x.n < 2) return;
    float first = x.d[0];
    x.d[0] = x.d[1];
    x.d[1] = first;
}

void rounds_to_half(const ks_call *call) {
    args x = product(call);
    for (int64_t i = 0; i < x.m; i++)
        for (int64_t j = 0; j < x.n; j++) {
            uint32_t bits;
            memcpy(&bits, &x.d[i * x.dm + j], 4);
            bits &= 0xffffe000u;
            memcpy(&x.d[i * x.dm + j], &bits, 4);
        }
}

void knows_one_shape_only(const ks_call *call) {
    args x = read_args(call);
    if (x.m == 61 && x.n == 45 && x.k == 70) product(call);
}

void wrong_at_the_tuned_shape(const ks_call *call) {
    args x = product(call);
    if (x.m == 61 && x.n == 45 && x.k == 70) x.d[30 * x.dm + 20] += 0.01f;
}

void loses_nan(const ks_call *call) {
    args x = product(call);
    for (int64_t i = 0; i < x.m; i++)
        for (int64_t j = 0; j < x.n; j++) x.d[i * x.dm + j] = isnan(x.d[i * x.dm + j]) ? 0 : x.d[i * x.dm + j];
}

void flushes_subnormals(const ks_call *call) {
    args x = product(call);
    for (int64_t i = 0; i < x.m; i++)
        for (int64_t j = 0; j < x.n; j++)
            if (fabsf(x.d[i * x.dm + j]) < 1.17549435e-38f) x.d[i * x.dm + j] = 0;
}

// -- what was never written

void adds_to_the_output(const ks_call *call) {
    args x = read_args(call);
    for (int64_t i = 0; i < x.m; i++)
        for (int64_t j = 0; j < x.n; j++) x.d[i * x.dm + j] += x.alpha * dot(&x, i, j, x.k);
}

void adds_to_stale_workspace(const ks_call *call) {  // buffers: P of shape (M, N)
    args x = read_args(call);
    float *p = call->buffers[3];
    for (int64_t i = 0; i < x.m * x.n; i++) p[i] += x.alpha * dot(&x, i / x.n, i % x.n, x.k);
    for (int64_t i = 0; i < x.m * x.n; i++) x.d[i / x.n * x.dm + i % x.n] = p[i];
}

void pads_with_scratch(const ks_call *call) {  // buffers: scratch of K rounded up to TILE
    args x = read_args(call);
    float *row = call->buffers[3];
    int64_t padded = (x.k + TILE - 1) / TILE * TILE;
    for (int64_t i = 0; i < x.m; i++) {
        for (int64_t p = 0; p < x.k; p++) row[p] = x.a[i * x.am + p * x.ak];
        for (int64_t j = 0; j < x.n; j++) {
            float sum = 0;
            for (int64_t p = 0; p < padded; p++) sum += row[p] * (p < x.k ? x.b[p * x.bk + j * x.bn] : 0);
            x.d[i * x.dm + j] = x.alpha * sum;
        }
    }
}

// -- outside its arrays

void writes_past_the_end(const ks_call *call) {
    args x = product(call);
    x.d[(x.m - 1) * x.dm + x.n + (x.m > 1 ? x.dm - x.n : 0)] = 0;
}

void writes_before_the_start(const ks_call *call) {
    args x = product(call);
    x.d[-1] = 0;
}

void writes_between_rows(const ks_call *call) {
    args x = product(call);
    for (int64_t i = 0; i + 1 < x.m; i++)
        if (x.dm > x.n) x.d[i * x.dm + x.n] = 0;
}

void overflows_its_scratch(const ks_call *call) {  // buffers: scratch of K rounded up to TILE
    args x = product(call);
    float *row = call->buffers[3];
    for (int64_t p = 0; p <= (x.k + TILE - 1) / TILE * TILE; p++) row[p] = 0;
}

void reads_past_the_end(const ks_call *call) {
    args x = product(call);
    float sum = 0;
    for (int64_t p = 0; p < TILE; p++) sum += 0 * x.a[(x.m - 1) * x.am + (x.k - 1) * x.ak + p + 1];
    x.d[(x.m - 1) * x.dm + x.n - 1] += sum;
}

void scales_its_input(const ks_call *call) {
    args x = read_args(call);
    float *a = (float *)x.a;
    for (int64_t i = 0; i < x.m; i++)
        for (int64_t p = 0; p < x.k; p++) a[i * x.am + p * x.ak] *= x.alpha;
    x.alpha = 1;
    ks_parallel(call, tiles(&x), rows, &x);
}

void scribbles_far_away(const ks_call *call) {
    args x = product(call);
    memset((char *)x.d - 20480, 1, 4096);
}

void ruins_the_neighbours_and_aborts(const ks_call *call) {
    args x = product(call);
    memset((char *)x.a - 60000, 1, 55000);
    abort();
}

// -- between threads

typedef struct {
    args x;
    int64_t parts;
    int arrived;
} shared;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Adds its part of every sum to D without asking who else does. The first task is slow between reading and writing:
// it goes on when another has written, so that the race is lost whenever two threads work at all.
static void part_of_k(void *context, int64_t part) {
    shared *s = context;
    args x = s->x;
    int64_t step = (x.k + s->parts - 1) / s->parts, end = (part + 1) * step < x.k ? (part + 1) * step : x.k;
    for (int64_t i = 0; i < x.m; i++)
        for (int64_t j = 0; j < x.n; j++) {
            float *d = &x.d[i * x.dm + j], before = *(volatile float *)d, sum = 0;
            for (int64_t p = part * step; p < end; p++) sum += x.a[i * x.am + p * x.ak] * x.b[p * x.bk + j * x.bn];
            double late = seconds() + 0.01;
            while (part == 0 && i + j == 0 && !__atomic_load_n(&s->arrived, __ATOMIC_SEQ_CST) && seconds() < late)
                sched_yield();
            *d = before + x.alpha * sum;
            __atomic_fetch_add(&s->arrived, part > 0, __ATOMIC_SEQ_CST);
        }
}

void races(const ks_call *call) {
    shared s = {.x = read_args(call), .parts = 4};
    for (int64_t i = 0; i < s.x.m; i++)
        for (int64_t j = 0; j < s.x.n; j++) s.x.d[i * s.x.dm + j] = 0;
    ks_parallel(call, s.parts, part_of_k, &s);
}

void sums_in_another_order_each_time(const ks_call *call) {
    static int64_t calls;
    args x = read_args(call);
    int64_t turn = calls++ % 2 ? x.k / 2 : 0;
    for (int64_t i = 0; i < x.m; i++)
        for (int64_t j = 0; j < x.n; j++) {
            float sum = 0;
            for (int64_t q = 0; q < x.k; q++) {
                int64_t p = (q + turn) % x.k;
                sum += x.a[i * x.am + p * x.ak] * x.b[p * x.bk + j * x.bn];
            }
            x.d[i * x.dm + j] = x.alpha * sum;
        }
}

static void meet(void *context, int64_t index) {
    shared *s = context;
    (void)index;
    __atomic_fetch_add(&s->arrived, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&s->arrived, __ATOMIC_SEQ_CST) < s->parts) sched_yield();
}

void waits_for_threads_that_never_come(const ks_call *call) {
    args x = product(call);
    shared s = {.x = x, .parts = 64};
    ks_parallel(call, s.parts, meet, &s);
}

// -- crashes

void segfaults(const ks_call *call) {
    (void)call;
    *(volatile int *)16 = 1;
}

void loops_forever(const ks_call *call) {
    (void)call;
    for (;;) __asm__ volatile("");
}

void sleeps(const ks_call *call) {
    (void)call;
    struct timespec long_time = {.tv_sec = 1000};
    nanosleep(&long_time, NULL);
}

void aborts(const ks_call *call) {
    (void)call;
    abort();
}

void eats_memory(const ks_call *call) {
    (void)call;
    for (;;) {
        char *more = malloc(1 << 20);
        if (more) memset(more, 1, 1 << 20);
    }
}

void leaves(const ks_call *call) {
    product(call);
    exit(0);
}

void closes_all_files(const ks_call *call) {
    product(call);
    for (int fd = 0; fd < 256; fd++) close(fd);
}
