// common/pool: run the tasks of a kernel on several threads.
//
// One pool a process. Its threads are made when first needed and stay; they are never pinned, block all signals and
// end with the process. The caller works too, and never waits for a thread that has not begun: a thread that wakes late
// finds the job closed. A second caller, or a task that itself runs tasks, works alone.
//
// Jobs    `state` holds the number of the job, the seats still free and the threads at work, in one word, so that
//         joining (a free seat becomes a thread at work) fails when the job has been closed in the meantime.
// Waiting threads spin for SPIN_NS, then sleep on a futex; so does a caller that waits for the last thread.
// Fork    the child has none of the threads: it starts again with an empty pool.
// Floats  kernels run with the default floating-point mode, whatever the caller's; the caller's is restored.

#define _GNU_SOURCE
#include "kernsearch.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 4096
#define STACK_BYTES (8 << 20)
#define SPIN_NS 50000
#define SPINS_PER_LOOK 32
#define SEAT ((uint64_t)1 << 16)   // state: job number << 32 | free seats << 16 | threads at work
#define AT_WORK(state) ((state) & 0xffff)
#define SEATS(state) (((state) >> 16) & 0xffff)

typedef struct ks_pool {
    // what callers write once a job
    _Alignas(128) _Atomic uint64_t state;
    _Atomic uint32_t bell;         // rung once a job: idle threads sleep on it
    ks_task task;
    void *context;
    int64_t count, threads;
    // what everybody writes while the job runs
    _Alignas(128) _Atomic int64_t next;
    _Alignas(128) _Atomic uint32_t done;  // rung by the last thread when the caller sleeps
    _Atomic uint32_t caller_sleeps, sleepers;
    _Alignas(128) _Atomic uint32_t busy;  // a caller owns the pool
    _Atomic int64_t limit;         // threads of one call, the caller included
    _Atomic int64_t cores;         // that this process may keep busy
    _Atomic int64_t made;          // threads that exist, the callers not counted
} ks_pool;

static ks_pool pool = {.limit = 1, .cores = 1};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// The floating-point mode as one number: rounding, and whether subnormals are flushed.
static inline uint64_t float_mode(void) {
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr() & 0xffc0;
#elif defined(__aarch64__)
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
#else
    return 0;
#endif
}

static inline void set_float_mode(uint64_t mode) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((uint32_t)mode);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
    (void)mode;
#endif
}

#if defined(__x86_64__)
#define DEFAULT_FLOAT_MODE 0x1f80  // all exceptions masked, round to nearest, subnormals kept
#else
#define DEFAULT_FLOAT_MODE 0
#endif

static void sleep_on(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *word, int64_t threads) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, (int)threads, NULL, NULL, 0);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// When to stop spinning: at once where threads outnumber cores, since it would keep another from working.
static int64_t spin_until(ks_pool *p) {
    return atomic_load(&p->made) < atomic_load(&p->cores) ? now_ns() + SPIN_NS : 0;
}

// Take tasks until none is left, several at a time while many are left.
static void work(ks_pool *p) {
    const ks_task task = p->task;
    void *const context = p->context;
    const int64_t count = p->count, share = 4 * p->threads;
    int64_t first = atomic_load_explicit(&p->next, memory_order_relaxed);
    while (first < count) {
        int64_t some = (count - first) / share;
        if (some < 1) some = 1;
        if (!atomic_compare_exchange_weak_explicit(&p->next, &first, first + some, memory_order_relaxed,
                                                   memory_order_relaxed)) {
            continue;
        }
        for (int64_t i = first; i < first + some; i++) task(context, i);
        first = atomic_load_explicit(&p->next, memory_order_relaxed);
    }
}

static bool join_job(ks_pool *p) {
    uint64_t state = atomic_load_explicit(&p->state, memory_order_acquire);
    while (SEATS(state) > 0) {
        if (atomic_compare_exchange_weak(&p->state, &state, state - SEAT + 1)) return true;
    }
    return false;
}

static void *thread_main(void *argument) {
    ks_pool *p = argument;
    set_float_mode(DEFAULT_FLOAT_MODE);
    for (;;) {
        const uint32_t bell = atomic_load(&p->bell);
        if (join_job(p)) {
            work(p);
            if (AT_WORK(atomic_fetch_sub(&p->state, 1)) == 1 && atomic_load(&p->caller_sleeps)) {
                atomic_fetch_add(&p->done, 1);
                wake(&p->done, 1);
            }
        }
        const int64_t until = spin_until(p);
        bool rung = false;
        do {
            for (int i = 0; i < SPINS_PER_LOOK && !rung; i++) {
                rung = atomic_load_explicit(&p->bell, memory_order_acquire) != bell;
                relax();
            }
        } while (!rung && now_ns() < until);
        if (!rung) {
            atomic_fetch_add(&p->sleepers, 1);
            sleep_on(&p->bell, bell);
            atomic_fetch_sub(&p->sleepers, 1);
        }
    }
    return NULL;
}

// Only the owner of the pool makes threads. Returns how many there are to help, at most `wanted`.
static int64_t make_threads(ks_pool *p, int64_t wanted) {
    int64_t made = atomic_load_explicit(&p->made, memory_order_relaxed);
    if (made >= wanted) return wanted;
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (pthread_t thread; made < wanted; made++) {
        if (pthread_create(&thread, &attributes, thread_main, p) != 0) break;  // then with fewer
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    atomic_store(&p->made, made);
    return made;
}

// The owner's wait for the threads that joined its job.
static void wait_for_threads(ks_pool *p) {
    const int64_t until = spin_until(p);
    while (AT_WORK(atomic_load(&p->state)) > 0) {
        for (int i = 0; i < SPINS_PER_LOOK && AT_WORK(atomic_load(&p->state)) > 0; i++) relax();
        if (now_ns() < until) continue;
        atomic_store(&p->caller_sleeps, 1);
        const uint32_t done = atomic_load(&p->done);
        if (AT_WORK(atomic_load(&p->state)) > 0) sleep_on(&p->done, done);
        atomic_store(&p->caller_sleeps, 0);
    }
}

// Run task(context, i) for i in [0, count) on up to `threads` threads, no more than the pool's limit.
void ks_pool_run(void *handle, int64_t threads, int64_t count, ks_task task, void *context) {
    ks_pool *p = handle;
    const uint64_t mode = float_mode();
    const int64_t limit = atomic_load_explicit(&p->limit, memory_order_relaxed);
    if (mode != DEFAULT_FLOAT_MODE) set_float_mode(DEFAULT_FLOAT_MODE);
    if (threads > limit) threads = limit;
    if (threads > count) threads = count;
    uint32_t free_pool = 0;
    if (threads > 1 && atomic_compare_exchange_strong(&p->busy, &free_pool, 1)) {
        const int64_t helpers = make_threads(p, threads - 1);
        p->task = task;
        p->context = context;
        p->count = count;
        p->threads = helpers + 1;
        atomic_store_explicit(&p->next, 0, memory_order_relaxed);
        const uint64_t job = (atomic_load_explicit(&p->state, memory_order_relaxed) >> 32) + 1;
        atomic_store(&p->state, job << 32 | (uint64_t)helpers * SEAT);
        atomic_fetch_add(&p->bell, 1);
        if (atomic_load(&p->sleepers) > 0) wake(&p->bell, helpers);
        work(p);
        atomic_fetch_and(&p->state, ~(uint64_t)0xffff0000);  // close: who has not joined by now never will
        wait_for_threads(p);
        atomic_store(&p->busy, 0);
    } else {
        for (int64_t i = 0; i < count; i++) task(context, i);
    }
    if (mode != DEFAULT_FLOAT_MODE) set_float_mode(mode);
}

// Call kernels one after the other, in the default floating-point mode.
void ks_launch(int64_t count, void (*const *kernels)(const ks_call *), const ks_call *const *calls) {
    const uint64_t mode = float_mode();
    if (mode != DEFAULT_FLOAT_MODE) set_float_mode(DEFAULT_FLOAT_MODE);
    for (int64_t i = 0; i < count; i++) kernels[i](calls[i]);
    if (mode != DEFAULT_FLOAT_MODE) set_float_mode(mode);
}

typedef struct meeting {
    _Atomic int64_t arrived;
    int64_t expected, until;
} meeting;

static void meet(void *context, int64_t index) {
    meeting *m = context;
    (void)index;
    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->arrived) < m->expected && now_ns() < m->until) relax();
}

// Have the threads of the next call awake, so that it does not pay for waking them: for timing. Waits at most 1 ms.
void ks_pool_rouse(void *handle, int64_t threads) {
    ks_pool *p = handle;
    const int64_t limit = atomic_load(&p->limit);
    meeting m = {.expected = threads < limit ? threads : limit, .until = now_ns() + 1000000};
    ks_pool_run(handle, m.expected, m.expected, meet, &m);
}

static void after_fork_in_child(void) {
    atomic_store(&pool.state, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.caller_sleeps, 0);
    atomic_store(&pool.busy, 0);
    atomic_store(&pool.made, 0);
}

static void set_up(void) {
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

void *ks_pool_get(void) {
    pthread_once(&once, set_up);
    return &pool;
}

// From the next job on, no call uses more than `threads` threads, the caller's included. `cores` is how many this
// process may keep busy.
void ks_pool_configure(void *handle, int64_t threads, int64_t cores) {
    ks_pool *p = handle;
    atomic_store(&p->limit, threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads);
    atomic_store(&p->cores, cores);
}
