// gemm/06_dots: sums along the vectors, for operands that are contiguous along k.
//
// Computes  D[b,m,n] = f(sum over k of A[b,m,k] * B[b,k,n]), or one such sum for each slab of k.
// Idea      A matrix times a vector, and a few rows times a matrix that is stored transposed: a row of A and a column
//           of B lie in memory as they are, so vectors of both are multiplied and added along k, and the lanes are
//           added up once at the end. Each operand is read once, in long stretches, and nothing is packed.
// Params    MR NR  rows and columns at a time, each pair with sums of its own;  KR  depth of a step, some vectors
//           MC  rows of a job
// Threads   take jobs, MC rows and some columns, as they get free; few jobs are cut, along the longer side first
// Scratch   none
// Traffic   A is read ceil(N/NR) times, B ceil(M/MR) times, mostly from the caches.
// Edges     any extents, 0 included; any strides. What is not contiguous along k is gathered, which is slow.

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"

#define KV ((int)(KS_KR / KS_LANES))  // vectors of a step

_Static_assert(KS_KR % (KS_VECTOR_BYTES / sizeof(ks_t)) == 0, "KR is not a whole number of vectors");
_Static_assert(KS_MC >= KS_MR, "MC is smaller than MR");
_Static_assert(KS_MR * KS_NR * (KS_KR * sizeof(ks_t) / KS_VECTOR_BYTES) + KS_NR + 1 <= KS_VECTOR_REGISTERS,
               "sums need more vector registers than the device has");

typedef struct {
    ks_args x;
    int64_t down, across, rows, columns, jobs, next;
} work;

// `count` values of an operand along k, from one index on; lanes past them are 0.
#define DEFINE_ALONG(role)                                              \
KS_INLINE ks_v along_##role(const ks_args *x, ks_at i, int64_t count) { \
    ks_v v = {0};                                                       \
    for (int64_t l = 0; l < count; l++, i.K++) v[l] = ks_##role(x, i);  \
    return v;                                                           \
}

DEFINE_ALONG(A)
DEFINE_ALONG(B)

#if KS_PLAIN_A && KS_PLAIN_B
#define CONTIGUOUS(x) (ks_step_A_K(x) == 1 && ks_step_B_K(x) == 1)
#define ROW(x, i) ks_at_A(x, i)
#define COLUMN(x, i) ks_at_B(x, i)
#else
#define CONTIGUOUS(x) 0
#define ROW(x, i) ((KS_TYPE_A *)NULL)
#define COLUMN(x, i) ((KS_TYPE_B *)NULL)
#endif

// Defines name(x, i, out): out[0:mr, 0:nr] = sums from row i.M, column i.N on; a row of `out` is KS_NR long.
#define DEFINE_DOTS(name, mr, nr)                                                                               \
static __attribute__((noinline, unused)) void name(const ks_args *x, ks_at i, ks_t *out) {                      \
    const int64_t first = ks_first_K(x, i), last = ks_last_K(x, i);                                             \
    ks_v sum[mr][nr][KV];                                                                                       \
    memset(sum, 0, sizeof sum);                                                                                 \
    const KS_TYPE_A *a[mr];                                                                                     \
    const KS_TYPE_B *b[nr];                                                                                     \
    for (int r = 0; r < mr; r++) a[r] = ROW(x, ((ks_at){.S = i.S, .B = i.B, .M = i.M + r}));                    \
    for (int c = 0; c < nr; c++) b[c] = COLUMN(x, ((ks_at){.S = i.S, .B = i.B, .N = i.N + c}));                 \
    int64_t k = first;                                                                                          \
    if (CONTIGUOUS(x)) {                                                                                        \
        for (; k + KS_KR <= last; k += KS_KR) {                                                                 \
            KS_UNROLL(32) for (int v = 0; v < KV; v++) {                                                        \
                ks_v column[nr];                                                                                \
                KS_UNROLL(32) for (int c = 0; c < nr; c++) column[c] = ks_load_stored(b[c] + k + v * KS_LANES); \
                KS_UNROLL(32) for (int r = 0; r < mr; r++) {                                                    \
                    const ks_v row = ks_load_stored(a[r] + k + v * KS_LANES);                                   \
                    KS_UNROLL(32) for (int c = 0; c < nr; c++) sum[r][c][v] += row * column[c];                 \
                }                                                                                               \
            }                                                                                                   \
        }                                                                                                       \
    }                                                                                                           \
    for (; k < last; k += KS_LANES) {                                                                           \
        const int64_t count = ks_least(KS_LANES, last - k);                                                     \
        ks_v column[nr];                                                                                        \
        KS_UNROLL(32) for (int c = 0; c < nr; c++)                                                              \
            column[c] = along_B(x, (ks_at){.S = i.S, .B = i.B, .N = i.N + c, .K = k}, count);                   \
        KS_UNROLL(32) for (int r = 0; r < mr; r++) {                                                            \
            const ks_v row = along_A(x, (ks_at){.S = i.S, .B = i.B, .M = i.M + r, .K = k}, count);              \
            KS_UNROLL(32) for (int c = 0; c < nr; c++) sum[r][c][0] += row * column[c];                         \
        }                                                                                                       \
    }                                                                                                           \
    KS_UNROLL(32) for (int r = 0; r < mr; r++) {                                                                \
        KS_UNROLL(32) for (int c = 0; c < nr; c++) {                                                            \
            ks_v all = sum[r][c][0];                                                                            \
            KS_UNROLL(32) for (int v = 1; v < KV; v++) all += sum[r][c][v];                                     \
            ks_t total = 0;                                                                                     \
            KS_UNROLL(32) for (int64_t l = 0; l < KS_LANES; l++) total += all[l];                               \
            out[r * KS_NR + c] = total;                                                                         \
        }                                                                                                       \
    }                                                                                                           \
}

DEFINE_DOTS(dots_all, KS_MR, KS_NR)
DEFINE_DOTS(dots_column, KS_MR, 1)
DEFINE_DOTS(dots_row, 1, KS_NR)
DEFINE_DOTS(dots_one, 1, 1)

// The sums of some rows (KS_MR or 1) and columns (KS_NR or 1), finished and stored.
static void tile(const ks_args *x, ks_at i, int64_t rows, int64_t columns) {
    ks_t out[KS_MR * KS_NR + KS_LANES];
    if (rows == KS_MR)
        (columns == KS_NR ? dots_all : dots_column)(x, i, out);
    else
        (columns == KS_NR ? dots_row : dots_one)(x, i, out);
    const int64_t start = i.N;
    for (int64_t r = 0; r < rows; r++, i.M++) {
        for (int64_t c = 0; c < columns; c += KS_LANES) {
            ks_fields f = {.KS_RESULT = ks_load(out + r * KS_NR + c, 1, ks_least(KS_LANES, columns - c))};
            i.N = start + c;
            ks_finish(x, i, ks_least(KS_LANES, columns - c), &f);
        }
    }
}

static void jobs(void *context, int64_t task) {
    work *w = context;
    const ks_args *x = &w->x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), slabs = ks_extent_S(x);
    (void)task;
    for (;;) {
        const int64_t job = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);
        if (job >= w->jobs) return;
        const int64_t output = job / (w->down * w->across), place = job % (w->down * w->across);
        ks_at i = {.S = output % slabs, .B = output / slabs};
        const int64_t top = place % w->down * w->rows, bottom = ks_least(m, top + w->rows);
        const int64_t left = place / w->down * w->columns, right = ks_least(n, left + w->columns);
        for (i.M = top; i.M < bottom;) {
            const int64_t rows = bottom - i.M >= KS_MR ? KS_MR : 1;
            for (i.N = left; i.N < right;) {
                const int64_t columns = right - i.N >= KS_NR ? KS_NR : 1;
                tile(x, i, rows, columns);
                i.N += columns;
            }
            i.M += rows;
        }
    }
}

void gemm_dots(const ks_call *call) {
    work w = {.x = ks_unpack(call)};
    const ks_args *x = &w.x;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x), outputs = ks_extent_S(x) * ks_extent_B(x);
    if (m == 0 || n == 0) return;
    const int64_t threads = ks_threads_for(call, (double)m * n * ks_extent_K(x) * ks_extent_B(x));
    const int64_t wanted = ks_ceil(threads, outputs);
    w.down = ks_ceil(m, KS_MC);
    w.down = ks_least(ks_ceil(w.down, wanted) * wanted, ks_ceil(m, KS_MR));
    w.across = w.down < wanted ? ks_least(ks_ceil(wanted, w.down), ks_ceil(n, KS_NR)) : 1;
    w.rows = ks_ceil(ks_ceil(m, KS_MR), w.down) * KS_MR;
    w.columns = ks_ceil(ks_ceil(n, KS_NR), w.across) * KS_NR;
    w.jobs = outputs * w.down * w.across;
    ks_parallel(call, threads, jobs, &w);
}
