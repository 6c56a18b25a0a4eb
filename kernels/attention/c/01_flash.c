// attention/01_flash: scores, online softmax and weighted values in one pass over the keys.
//
// Computes  s = f(sum over d of Q[m,d] * K[k,d]);  m = max s, l = sum of exp(s - m), o[n] = sum of exp(s - m) * V[k,n];
//           out = g(m, l, o), for each batch. Rows m may be several axes: query heads that share K and V.
// Idea      Scores are computed turned around, keys down and WIDE queries across, so that a vector holds a score of each
//           of its queries: maxima and sums need no step across lanes, and what exp leaves is laid out as the left operand
//           of the second product. State and sums of a block of queries stay in the caches for all keys; when a maximum
//           moves, they are multiplied by exp(old - new). Keys that a mask hides from a whole block are left out.
// Params    MC  queries of a job;  KC  keys between two looks at the maxima;  MR NR  register tile: MR keys x NR queries
//           of scores, MR queries x NR columns of the output
// Knobs     KU  steps per turn of the inner loops
// Threads   take jobs, MC queries of one batch and slab, as they get free, those that see most keys first
// Scratch   for each thread: MC queries packed, their sums and state, scores, and K and V where they cannot be read as
//           they are
// Traffic   K and V are read once for each MC queries of a batch, Q and the output once.
// Edges     any extents, 0 included; any strides. Ragged tiles of keys and columns are packed and filled up with 0.

#include "ks_generated.h"
#include "../../common/c/elementary.h"
#include "../../common/c/kernsearch.h"
#include "../../common/c/tile.h"

#define KC KS_KC
#define WIDE (KS_NR % KS_MR == 0 ? KS_NR : 3 * KS_NR)  // a whole number of both tiles
#define MC (KS_MC / WIDE > 0 ? KS_MC / WIDE * WIDE : WIDE)

_Static_assert(WIDE % KS_MR == 0, "three tiles of NR queries are no whole number of MR");

#if defined(KS_PACKED) || !KS_SAME_V
#define DIRECT_V 0
#else
#define DIRECT_V 1
#endif
#if KS_SAME_K && !defined(KS_PACKED)
#define DIRECT_K 1
#define K_STEPS a_row, a_k
#else
#define DIRECT_K 0
#define K_STEPS 1, KS_MR
#endif

#define DEFINE_TILES(name, steps) KS_DEFINE_TILES(name, ks_t, ks_t, steps)
DEFINE_TILES(score_tile, K_STEPS)
KS_DEFINE_TILES(value_tile, ks_t, ks_t, 1, WIDE)

typedef struct {
    ks_args x;
    int64_t blocks, jobs, next;  // blocks of queries of a batch
    int64_t high, pitch;         // queries of a job, elements between rows of sums
    ks_t *scratch;
    int64_t size;
} work;

// What a thread works on. `high` queries: packed by panels of NR, their sums o, maxima m, sums l, and how many keys
// each sees; keys and values of a block; and scores of WIDE queries, keys down.
typedef struct {
    const ks_args *x;
    ks_at at;
    int64_t rows, pitch;
    ks_t *q, *o, *m, *l, *scores, *k, *v;
    int64_t *sees;
} state;

// A block of keys and of values as tiles read them. Edges are a ragged last tile of keys and a last panel of columns
// that cannot be read where they are, if not NULL. Column c of the values begins at v + c * v_step for whole panels.
typedef struct {
    const ks_t *k, *k_edge, *v, *v_edge;
    int64_t first, keys, k_row, k_step, k_tile, v_row, v_step;
} block;

static void pack_queries(const state *s) {
    const int64_t depth = ks_extent_D(s->x), wide = ks_ceil(s->rows, KS_NR) * KS_NR;
    ks_at i = s->at;
    for (int64_t r = 0; r < wide; r++) {
        ks_t *to = s->q + r / KS_NR * KS_NR * depth + r % KS_NR;
        i.M = s->at.M + r;
        if (r >= s->rows) {
            for (int64_t d = 0; d < depth; d++) to[d * KS_NR] = 0;
            continue;
        }
#if KS_PLAIN_Q
        i.D = 0;
        const int64_t step = ks_step_Q_D(s->x);
        for (int64_t d = 0; d < depth; d++) to[d * KS_NR] = ks_widen(ks_at_Q(s->x, i)[d * step]);
#else
        for (i.D = 0; i.D < depth; i.D++) to[i.D * KS_NR] = ks_Q(s->x, i);
#endif
    }
}

#if KS_DOUBLE
#define pack_plain ks_pack
#else
#define pack_plain(out, width, lines, depth, from, line_step, k_step) \
    _Generic((from), ks_bf16 *: ks_pack_bf16, default: ks_pack)(out, width, lines, depth, from, line_step, k_step)
#endif

// Keys [i.K, i.K + keys) in panels of MR, filled up with 0.
static __attribute__((unused)) void pack_keys(const ks_args *x, ks_at i, int64_t keys, ks_t *to) {
    const int64_t depth = ks_extent_D(x);
#if KS_PLAIN_K
    pack_plain(to, KS_MR, keys, depth, ks_at_K(x, i), ks_step_K_K(x), ks_step_K_D(x));
#else
    const int64_t first = i.K;
    for (int64_t p = 0; p < keys; p += KS_MR, to += KS_MR * depth) {
        for (i.D = 0; i.D < depth; i.D++) {
            for (int64_t r = 0; r < KS_MR; r++) {
                i.K = first + p + r;
                to[i.D * KS_MR + r] = p + r < keys ? ks_K(x, i) : 0;
            }
        }
    }
#endif
}

// Columns [i.N, i.N + columns) of values [i.K, i.K + keys) in panels of NR, filled up with 0.
static void pack_values(const ks_args *x, ks_at i, int64_t keys, int64_t columns, ks_t *to) {
#if KS_PLAIN_V
    pack_plain(to, KS_NR, columns, keys, ks_at_V(x, i), ks_step_V_N(x), ks_step_V_K(x));
#else
    const int64_t first = i.K, left = i.N;
    for (int64_t p = 0; p < columns; p += KS_NR, to += KS_NR * keys) {
        for (int64_t k = 0; k < keys; k++) {
            i.K = first + k;
            for (int64_t c = 0; c < KS_NR; c++) {
                i.N = left + p + c;
                to[k * KS_NR + c] = p + c < columns ? ks_V(x, i) : 0;
            }
        }
    }
#endif
}

static block get_block(const state *s, int64_t first, int64_t keys) {
    const ks_args *x = s->x;
    const int64_t depth = ks_extent_D(x), columns = ks_extent_N(x), ragged = keys % KS_MR;
    ks_at i = s->at;
    i.K = first, i.N = 0, i.D = 0;
    block b = {.first = first, .keys = keys, .k = s->k, .k_row = 1, .k_step = KS_MR, .k_tile = KS_MR * depth};
    b.v = s->v, b.v_row = KS_NR, b.v_step = keys;
#if DIRECT_K
    b.k = ks_at_K(x, i), b.k_row = ks_step_K_K(x), b.k_step = ks_step_K_D(x), b.k_tile = KS_MR * b.k_row;
    if (ragged) {  // rows of a ragged tile as the others lie, in scratch
        ks_at last = i;
        last.K += keys - ragged;
        for (int64_t d = 0; d < depth; d++) {
            last.D = d;
            for (int64_t r = 0; r < KS_MR; r++) s->k[r * depth + d] = r < ragged ? ks_at_K(x, last)[r * b.k_row] : 0;
        }
    }
    b.k_edge = s->k;
#else
    (void)ragged;
    pack_keys(x, i, keys, s->k);
#endif
#if DIRECT_V
    const int64_t whole = columns / KS_NR * KS_NR, over = columns - whole;
    if (ks_step_V_N(x) == 1) {
        b.v = ks_at_V(x, i), b.v_row = ks_step_V_K(x), b.v_step = 1;
        if (over && ks_tile_columns(over) != over) {  // the tile would read past the end of rows
            i.N = whole;
            pack_values(x, i, keys, over, s->v);
            b.v_edge = s->v;
        }
        return b;
    }
#endif
    pack_values(x, i, keys, columns, s->v);
    return b;
}

// Scores of queries [q, q + rows), rows <= WIDE, with the first `keys` of a block: keys down, queries across.
static void get_scores(const state *s, const block *b, int64_t q, int64_t rows, int64_t keys) {
    const int64_t depth = ks_extent_D(s->x);
    const ks_t *queries = s->q + q * depth;
#if DIRECT_K  // rows that lie apart are better read once, packed keys again for each panel of queries
    const ks_t *key = b->k;
    ks_t *to = s->scores;
    for (int64_t k = 0; k < keys; k += KS_MR, key += b->k_tile, to += KS_MR * WIDE) {
        const int edge = b->keys - k < KS_MR;
        const ks_t *from = edge ? b->k_edge : key;
        const int64_t row = edge ? depth : b->k_row, step = edge ? 1 : b->k_step;
        for (int64_t c = 0; c < rows; c += KS_NR)
            score_tile(ks_least(KS_NR, rows - c), depth, from, row, step, queries + c * depth, KS_NR, NULL, 0, to + c,
                       WIDE);
    }
#else
    for (int64_t c = 0; c < rows; c += KS_NR, queries += KS_NR * depth) {
        const ks_t *key = b->k;
        ks_t *to = s->scores + c;
        for (int64_t k = 0; k < keys; k += KS_MR, key += b->k_tile, to += KS_MR * WIDE)
            score_tile(ks_least(KS_NR, rows - c), depth, key, 1, KS_MR, queries, KS_NR, NULL, 0, to, WIDE);
    }
#endif
}

// From scores to weights exp(s - m), in place, for one vector of queries; state and sums are carried on. Where a mask
// hides something scores are kept between the two passes over them, else they are made of the sums twice.
KS_INLINE void weigh(const state *s, int64_t q, int64_t first, int64_t keys, const int masked) {
    ks_t *column = s->scores + q % WIDE, *at = column;
    const int64_t count = s->rows - q;
    const ks_v before = ks_load_all(s->m + q);
    ks_v top = before, sum = {0};
    ks_at i = s->at;
    i.M += q, i.K = first;
    KS_UNROLL(4) for (int64_t k = 0; k < keys; k++, i.K++, at += WIDE) {
        ks_v x = ks_load_all(at);
        x = masked ? ks_score(s->x, i, count, x) : ks_score_seen(s->x, i, count, x);
        top = ks_larger(x, top);
        if (masked) ks_store_all(at, x);
    }
    const ks_v by = ks_larger(ks_splat(-KS_LARGEST), top);
    at = column, i.K = first;
    KS_UNROLL(2) for (int64_t k = 0; k < keys; k++, i.K++, at += WIDE) {
        ks_v x = ks_load_all(at);
        if (!masked) x = ks_score_seen(s->x, i, count, x);
        x = ks_exp_to_44(x - by);
        sum += x;
        ks_store_all(at, x);
    }
    const ks_v carried = ks_exp_of_shift(before, top);
    ks_store_all(s->m + q, top);
    ks_store_all(s->l + q, ks_load_all(s->l + q) * carried + sum);
    for (int64_t r = 0; r < KS_LANES && r < count; r++) {
        if (carried[r] == 1) continue;
        ks_t *row = s->o + (q + r) * s->pitch;
        for (int64_t c = 0; c < s->pitch; c += KS_LANES) ks_store_all(row + c, ks_load_all(row + c) * carried[r]);
    }
}

// sums of queries [q, q + rows) += weights x values of a block
static void add_values(const state *s, const block *b, int64_t q, int64_t rows, int64_t keys) {
    const int64_t columns = ks_extent_N(s->x);
    for (int64_t c = 0; c < columns; c += KS_NR) {
        const int64_t wide = ks_least(KS_NR, columns - c);
        const int edge = wide < KS_NR && b->v_edge;
        const ks_t *values = edge ? b->v_edge : b->v + c * b->v_step;
        for (int64_t r = 0; r < rows; r += KS_MR) {
            ks_t *sums = s->o + (q + r) * s->pitch + c;
            value_tile(wide, keys, s->scores + r, 1, WIDE, values, edge ? KS_NR : b->v_row, sums, s->pitch, sums,
                       s->pitch);
        }
    }
}

// The keys of a block meet WIDE queries; those that none of the queries sees are left out.
static void meet(const state *s, const block *b, int64_t q) {
    const int64_t rows = ks_least(WIDE, s->rows - q);
    int64_t keys = b->keys;
    int masked = 0;
#if KS_SEES
    int64_t most = 0, least = b->first + keys;
    for (int64_t r = q; r < q + rows; r++) {
        most = most > s->sees[r] ? most : s->sees[r];
        least = ks_least(least, s->sees[r]);
    }
    masked = least < b->first + keys;
    keys = ks_least(keys, most - b->first);
    if (keys <= 0) return;
#endif
    get_scores(s, b, q, rows, keys);
    for (int64_t v = q; v < q + rows; v += KS_LANES) {
        if (masked)
            weigh(s, v, b->first, keys, 1);
        else
            weigh(s, v, b->first, keys, 0);
    }
    add_values(s, b, q, rows, keys);
}

static void put(const state *s) {
    const int64_t columns = ks_extent_N(s->x);
    for (int64_t q = 0; q < s->rows; q += KS_LANES) {
        ks_fields f = {.m = ks_load_all(s->m + q), .l = ks_load_all(s->l + q)};
        ks_at i = s->at;
        i.M += q;
        if (KS_STATES) ks_state(s->x, i, s->rows - q, &f);
        const ks_fields all = f;
        for (int64_t r = 0; r < KS_LANES && q + r < s->rows; r++, i.M++) {
            f.m = ks_splat(all.m[r]), f.l = ks_splat(all.l[r]);
            for (i.N = 0; i.N < columns; i.N += KS_LANES) {
                f.o = ks_load_all(s->o + (q + r) * s->pitch + i.N);
                if (columns - i.N >= KS_LANES)
                    ks_finish(s->x, i, KS_LANES, &f);
                else
                    ks_finish(s->x, i, columns - i.N, &f);
            }
        }
    }
}

// One job: some queries of a batch, with all the keys of a slab that any of them sees.
static void attend(state *s) {
    const ks_args *x = s->x;
    int64_t last = ks_last_K(x, s->at);
    for (int64_t r = 0; r < ks_ceil(s->rows, KS_LANES) * KS_LANES; r++) s->m[r] = -KS_INFINITY, s->l[r] = 0;
    memset(s->o, 0, (size_t)(s->rows * s->pitch) * sizeof(ks_t));
#if KS_SEES
    int64_t most = 0;
    ks_at i = s->at;
    for (int64_t r = 0; r < s->rows; r++, i.M++) {
        s->sees[r] = ks_sees(x, i);
        most = most > s->sees[r] ? most : s->sees[r];
    }
    last = ks_least(last, most);
#endif
    pack_queries(s);
    for (int64_t k = ks_first_K(x, s->at); k < last; k += KC) {
        const block b = get_block(s, k, ks_least(KC, last - k));
        for (int64_t q = 0; q < s->rows; q += WIDE) meet(s, &b, q);
    }
    put(s);
}

static void jobs(void *context, int64_t task) {
    work *w = context;
    const ks_args *x = &w->x;
    const int64_t slabs = ks_extent_S(x), outputs = slabs * ks_extent_B(x), high = ks_ceil(w->high, WIDE) * WIDE;
    const int64_t depth = ks_extent_D(x), keys = ks_ceil(KC, KS_MR) * KS_MR;
    state s = {.x = x, .pitch = w->pitch, .q = w->scratch + task * w->size};
    s.o = s.q + high * depth;
    s.m = s.o + high * w->pitch;
    s.l = s.m + high;
    s.scores = s.l + high;
    s.k = s.scores + keys * WIDE;
    s.v = s.k + keys * depth;
    s.sees = (int64_t *)(((uintptr_t)(s.v + KC * w->pitch) + 7) & ~(uintptr_t)7);
    for (;;) {
        const int64_t job = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);
        if (job >= w->jobs) return;
        const int64_t part = w->blocks - 1 - job / outputs;  // the last queries see most
        s.at = (ks_at){.S = job % outputs % slabs, .B = job % outputs / slabs, .M = part * w->high};
        s.rows = ks_least(w->high, ks_extent_M(x) - s.at.M);
        if (s.rows > 0) attend(&s);
    }
}

void attention_flash(const ks_call *call) {
    work w = {.x = ks_unpack(call)};
    const ks_args *x = &w.x;
    const int64_t m = ks_extent_M(x), outputs = ks_extent_S(x) * ks_extent_B(x), depth = ks_extent_D(x);
    if (m == 0 || outputs == 0) return;
    const double pairs = (double)m * ks_extent_B(x) * ks_extent_K(x);
    const int64_t threads = ks_threads_for(call, pairs * (depth + ks_extent_N(x)));
    // Jobs a few times as many as threads, unless that makes them smaller than a tile.
    const int64_t wanted = ks_ceil(4 * threads, outputs), fair = ks_ceil(ks_ceil(m, wanted), KS_NR) * KS_NR;
    w.high = ks_least(MC, fair);
    w.blocks = ks_ceil(m, w.high);
    w.jobs = w.blocks * outputs;
    w.pitch = ks_ceil(ks_extent_N(x), KS_NR) * KS_NR;
    const int64_t high = ks_ceil(w.high, WIDE) * WIDE, keys = ks_ceil(KC, KS_MR) * KS_MR;
    w.size = high * (depth + w.pitch + 2) + keys * (WIDE + depth) + KC * w.pitch + high * 8 / (int64_t)sizeof(ks_t) + 16;
    w.size = ks_ceil(w.size, 16) * 16;
    w.scratch = ks_align(x->scratch);
    ks_parallel(call, threads, jobs, &w);
}
