// gemm/05_few_rows: a few rows of the output, the second operand streamed by at the pace of memory.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]), or one such sum for each slab of k.
// Idea      With few rows B is read once and nothing of it twice, so all that counts is to read it as memory likes it:
//           KR long stretches of neighbouring rows at a time. The sums of MR rows wait in the first level cache, and
//           KR rows of B go into them before they are put back. A register tile would read a narrow strip of B
//           instead, each piece of it on another page.
// Params    MC NC  rows and columns of a job;  KC  rows of B that stay near while MR rows at a time use them
//           MR  rows of the output at a time
// Knobs     KR  rows of B at a time
// Threads   take jobs as they get free; columns are cut until there is one for each thread
// Scratch   MC x NC sums for each thread
// Traffic   A is read ceil(N/NC) times, B ceil(M/MC) times; sums go through the first level cache K/KR times.
// Edges     any extents, 0 included; any strides. Rows of B that are not contiguous are gathered.

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"

_Static_assert(KS_NC % (KS_VECTOR_BYTES / sizeof(ks_t)) == 0, "NC is not a whole number of vectors");
_Static_assert(KS_MR * KS_KR + KS_MR + 1 <= KS_VECTOR_REGISTERS, "rows need more vector registers than the device has");

typedef struct {
    ks_args x;
    int64_t down, across, columns, jobs, next;
    ks_t *sums;
} work;

KS_INLINE ks_v element(const ks_args *x, ks_at i) {
#if KS_PLAIN_A
    return ks_splat_stored(*ks_at_A(x, i));
#else
    return ks_splat(ks_A(x, i));
#endif
}

// Defines name(x, i, columns, sums): sums[0:mr, 0:columns] += A[i.M.., i.K : i.K + kr] B[i.K : i.K + kr, i.N..]
#define DEFINE_ROWS(name, mr, kr)                                                                            \
static __attribute__((noinline, unused)) void name(const ks_args *x, ks_at i, int64_t columns, ks_t *sums) { \
    ks_v a[mr][kr];                                                                                          \
    KS_UNROLL(32) for (int r = 0; r < mr; r++) {                                                             \
        KS_UNROLL(32) for (int q = 0; q < kr; q++) {                                                         \
            ks_at at = i;                                                                                    \
            at.M += r, at.K += q;                                                                            \
            a[r][q] = element(x, at);                                                                        \
        }                                                                                                    \
    }                                                                                                        \
    int64_t c = 0;                                                                                           \
    if (KS_PLAIN_B && b_step(x) == 1) {                                                                      \
        const KS_TYPE_B *b = b_row(x, i);                                                                    \
        const int64_t next = b_next(x);                                                                      \
        for (; c + KS_LANES <= columns; c += KS_LANES) {                                                     \
            ks_v sum[mr];                                                                                    \
            KS_UNROLL(32) for (int r = 0; r < mr; r++) sum[r] = ks_load_all(sums + r * KS_NC + c);           \
            KS_UNROLL(32) for (int q = 0; q < kr; q++) {                                                     \
                const ks_v row = ks_load_stored(b + q * next + c);                                           \
                KS_UNROLL(32) for (int r = 0; r < mr; r++) sum[r] += a[r][q] * row;                          \
            }                                                                                                \
            KS_UNROLL(32) for (int r = 0; r < mr; r++) ks_store_all(sums + r * KS_NC + c, sum[r]);           \
        }                                                                                                    \
    }                                                                                                        \
    for (; c < columns; c += KS_LANES) {                                                                     \
        for (int q = 0; q < kr; q++) {                                                                       \
            const ks_at at = {.S = i.S, .B = i.B, .N = i.N + c, .K = i.K + q};                               \
            const ks_v row = ks_B_v(x, at, ks_least(KS_LANES, columns - c));                                 \
            KS_UNROLL(32) for (int r = 0; r < mr; r++) {                                                     \
                ks_t *sum = sums + r * KS_NC + c;                                                            \
                ks_store_all(sum, ks_load_all(sum) + a[r][q] * row);                                         \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
}

#if KS_PLAIN_B
#define b_step ks_step_B_N
#define b_next ks_step_B_K
#define b_row ks_at_B
#else
#define b_step(x) 0
#define b_next(x) 0
#define b_row(x, i) NULL
#endif

DEFINE_ROWS(rows_all, KS_MR, KS_KR)
DEFINE_ROWS(rows_end, KS_MR, 1)
DEFINE_ROWS(row_all, 1, KS_KR)
DEFINE_ROWS(row_end, 1, 1)

// The sums of a job in the order in which B is read.
static void sum_up(const ks_args *x, ks_at i, int64_t rows, int64_t columns, ks_t *sums) {
    const int64_t top = i.M, first = ks_first_K(x, i), last = ks_last_K(x, i);
    for (int64_t start = first; start < last; start += KS_KC) {
        const int64_t stop = ks_least(last, start + KS_KC);
        for (int64_t r = 0; r < rows;) {
            const int whole = rows - r >= KS_MR;
            i.M = top + r;
            i.K = start;
            ks_t *at = sums + r * KS_NC;
            for (; i.K + KS_KR <= stop; i.K += KS_KR) (whole ? rows_all : row_all)(x, i, columns, at);
            for (; i.K < stop; i.K++) (whole ? rows_end : row_end)(x, i, columns, at);
            r += whole ? KS_MR : 1;
        }
    }
}

static void jobs(void *context, int64_t task) {
    work *w = context;
    const ks_args *x = &w->x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), slabs = ks_extent_S(x);
    ks_t *sums = w->sums + task * KS_MC * KS_NC;
    for (;;) {
        const int64_t job = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);
        if (job >= w->jobs) return;
        const int64_t output = job / (w->down * w->across), place = job % (w->down * w->across);
        ks_at i = {.S = output % slabs, .B = output / slabs};
        i.M = place % w->down * KS_MC;
        i.N = place / w->down * w->columns;
        const int64_t rows = ks_least(KS_MC, m - i.M), columns = ks_least(w->columns, n - i.N);
        if (columns <= 0) continue;
        memset(sums, 0, rows * KS_NC * sizeof(ks_t));
        sum_up(x, i, rows, columns, sums);
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < columns; c += KS_LANES) {
                const ks_at at = {.S = i.S, .B = i.B, .M = i.M + r, .N = i.N + c};
                ks_fields f = {.KS_RESULT = ks_load_all(sums + r * KS_NC + c)};
                ks_finish(x, at, ks_least(KS_LANES, columns - c), &f);
            }
        }
    }
}

void gemm_few_rows(const ks_call *call) {
    work w = {.x = ks_unpack(call)};
    const ks_args *x = &w.x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), outputs = ks_extent_S(x) * ks_extent_B(x);
    if (m == 0 || n == 0) return;
    const int64_t threads = ks_threads_for(call, (double)m * n * ks_extent_K(x) * ks_extent_B(x));
    const int64_t line = KS_LINE_BYTES / (int64_t)sizeof(ks_t), lines = ks_ceil(n, line);
    w.down = ks_ceil(m, KS_MC);
    w.across = ks_ceil(n, KS_NC);
    const int64_t parts = ks_ceil(threads, outputs * w.down);  // of the columns, at least
    w.across = ks_least(ks_ceil(w.across, parts) * parts, lines);
    w.columns = ks_least(ks_ceil(lines, w.across) * line, KS_NC);
    w.across = ks_ceil(n, w.columns);
    w.jobs = outputs * w.down * w.across;
    w.sums = ks_align(x->scratch);
    ks_parallel(call, threads, jobs, &w);
}
