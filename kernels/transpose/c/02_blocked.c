// transpose/02_blocked: squares a cache line wide, read and written by whole lines.
//
// Computes  Y[n,m] = X[m,n], bit for bit
// Idea      A line of the input is read once and whole, a line of the output is written once and whole: nothing is asked
//           of the caches, which cannot hold lines that lie a power of two apart. A square of lines is copied into one
//           buffer, turned into another by squares of 16 bytes in registers, and copied out. There each round
//           interleaves the rows of the upper half with those of the lower; after log2(width) rounds all have changed
//           places. Lines may be stored around the caches, so that they need not be fetched first.
// Params    NC MC  rows and columns of the output in a tile
//           STREAM  1: whole aligned lines are stored around the caches, where the machine can
// Threads   take rows of tiles as they get free, NC rows of the output each
// Scratch   none
// Traffic   X is read once, Y written once; without STREAM its lines are read too.
// Edges     any extents, 0 included; any strides. What is not contiguous, and the rim of less than a square, goes
//           element by element within its tile.

#include "ks_generated.h"
#include "../../common/c/kernsearch.h"

#define WIDE ((int)(16 / sizeof(element)))  // of a square in registers
#define LINE ((int)(64 / sizeof(element)))  // of a square of lines

typedef KS_TYPE_X element;
typedef element line __attribute__((vector_size(16)));

// The first halves of two lines interleaved, and the second halves.
#define LOW_ks_bf16(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH_ks_bf16(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#if KS_DOUBLE
#define LOW_ks_t(a, b) __builtin_shufflevector(a, b, 0, 2)
#define HIGH_ks_t(a, b) __builtin_shufflevector(a, b, 1, 3)
#else
#define LOW_ks_t(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH_ks_t(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif
#define OF(half, type) half##type
#define HALF(half, type) OF(half, type)
#define LOW HALF(LOW_, KS_TYPE_X)
#define HIGH HALF(HIGH_, KS_TYPE_X)

// to[n, m] = from[m, n] for a square in registers; rows are LINE elements long.
KS_INLINE void turn(element *to, const element *from) {
    line t[WIDE], u[WIDE];
    KS_UNROLL(8)
    for (int r = 0; r < WIDE; r++) memcpy(&t[r], from + r * LINE, sizeof t[r]);
    KS_UNROLL(3)
    for (int round = 1; round < WIDE; round *= 2) {
        KS_UNROLL(4)
        for (int r = 0; r < WIDE / 2; r++) {
            u[2 * r] = LOW(t[r], t[r + WIDE / 2]);
            u[2 * r + 1] = HIGH(t[r], t[r + WIDE / 2]);
        }
        memcpy(t, u, sizeof t);
    }
    KS_UNROLL(8)
    for (int r = 0; r < WIDE; r++) memcpy(to + r * LINE, &t[r], sizeof t[r]);
}

KS_INLINE void put(element *to, const element *from, int streamed) {
#if defined(__x86_64__)
    if (streamed) {
        KS_UNROLL(4)
        for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)to + i, ((const __m128i *)from)[i]);
        return;
    }
#endif
    (void)streamed;
    memcpy(to, from, 64);
}

// A square of lines.
KS_INLINE void square(element *to, int64_t to_row, const element *from, int64_t from_row, int streamed) {
    element in[LINE * LINE] __attribute__((aligned(64))), out[LINE * LINE] __attribute__((aligned(64)));
    for (int r = 0; r < LINE; r++) memcpy(in + r * LINE, from + r * from_row, 64);
    for (int r = 0; r < LINE; r += WIDE) {
        for (int c = 0; c < LINE; c += WIDE) turn(out + c * LINE + r, in + r * LINE + c);
    }
    for (int r = 0; r < LINE; r++) put(to + r * to_row, out + r * LINE, streamed);
}

// Elements [m, m_end) x [n, n_end), one by one.
static __attribute__((noinline)) void rim(const ks_args *x, int64_t m, int64_t m_end, int64_t n, int64_t n_end) {
    const int64_t apart = ks_step_X_M(x), step = ks_step_out_M(x);
    for (ks_at i = {.M = m, .N = n}; i.N < n_end; i.N++) {
        const element *from = ks_at_X(x, i);
        element *to = ks_at_out(x, i);
        for (int64_t k = 0; k < m_end - m; k++) to[k * step] = from[k * apart];
    }
}

KS_INLINE void tile(const ks_args *x, int64_t m, int64_t m_end, int64_t n, int64_t n_end, int streamed) {
    const int64_t from_row = ks_step_X_M(x), to_row = ks_step_out_N(x);
    const int64_t m_whole = m_end - (m_end - m) % LINE, n_whole = n_end - (n_end - n) % LINE;
    for (ks_at i = {.M = m}; i.M < m_whole; i.M += LINE) {
        for (i.N = n; i.N < n_whole; i.N += LINE) square(ks_at_out(x, i), to_row, ks_at_X(x, i), from_row, streamed);
    }
    if (m_whole < m_end) rim(x, m_whole, m_end, n, n_end);
    if (n_whole < n_end) rim(x, m, m_whole, n_whole, n_end);
}

static void rows(void *context, int64_t task) {
    const ks_args own = *(const ks_args *)context, *x = &own;  // which no store can change
    const int64_t n = task * KS_NC, n_end = ks_least(ks_extent_N(x), n + KS_NC), all = ks_extent_M(x);
    const int contiguous = ks_step_X_N(x) == 1 && ks_step_out_M(x) == 1;
    const int64_t pitch = ks_step_out_N(x) * (int64_t)sizeof(element);
    const uintptr_t places = (uintptr_t)ks_at_out(x, ((ks_at){0})) | (uintptr_t)pitch;  // of rows
    for (int64_t m = 0; m < all; m += KS_MC) {
        const int64_t m_end = ks_least(all, m + KS_MC);
        if (!contiguous)
            rim(x, m, m_end, n, n_end);
        else if (KS_STREAM && places % 64 == 0)
            tile(x, m, m_end, n, n_end, 1);
        else
            tile(x, m, m_end, n, n_end, 0);
    }
#if KS_STREAM && defined(__x86_64__)
    _mm_sfence();
#endif
}

_Static_assert(KS_MC % 32 == 0 && KS_NC % 32 == 0, "tiles are not made of squares of lines");

void transpose_blocked(const ks_call *call) {
    ks_args x = ks_unpack(call);
    ks_parallel(call, ks_ceil(ks_extent_N(&x), KS_NC), rows, &x);
}
