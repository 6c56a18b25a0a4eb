// How an output is cut among threads, and how a tile of it is finished. Needs "ks_generated.h", "elementary.h",
// "kernsearch.h" and KS_NR.

#ifndef KS_SHARING_H
#define KS_SHARING_H

// The size of equal parts, a multiple of `unit`, for a total cut into at most `parts`.
KS_INLINE int64_t ks_part(int64_t total, int64_t parts, int64_t unit) {
    return ks_ceil(ks_ceil(total, unit), parts) * unit;
}

// Lines (rows or columns) of some strips of equal length, which threads take as they get free: many at first, fewer
// towards the end, so that all finish together. Jobs follow from what is here alone, not from who takes them.
typedef struct {
    int64_t next, strip, strips;  // lines that have been taken, of all strips; lines of a strip, a multiple of unit
    int64_t threads, unit, least, most;
} ks_jobs;

// The first line of the next job in `first`, and how many there are of one strip; 0 when all have been taken.
KS_INLINE int64_t ks_take(ks_jobs *j, int64_t *first) {
    const int64_t all = j->strip * j->strips;
    int64_t next = __atomic_load_n(&j->next, __ATOMIC_RELAXED), lines;
    do {
        if (next >= all) return 0;
        const int64_t fair = ks_ceil(all - next, 2 * j->threads * j->unit) * j->unit;
        lines = ks_least(fair > j->least ? fair : j->least, ks_least(j->most, j->strip - next % j->strip));
    } while (!__atomic_compare_exchange_n(&j->next, &next, next + lines, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    *first = next;
    return lines;
}

// Finish a tile of complete sums and store the results.
KS_INLINE void ks_finish_tile(const ks_args *x, ks_at i, int64_t rows, int64_t columns, const ks_t *tile) {
    const int64_t start = i.N;
    for (int64_t r = 0; r < rows; r++, i.M++, tile += KS_NR) {
        int64_t c = 0;
        for (; c + KS_LANES <= columns; c += KS_LANES) {
            ks_fields f = {.KS_RESULT = ks_load_all(tile + c)};
            i.N = start + c;
            ks_finish(x, i, KS_LANES, &f);
        }
        if (c < columns) {
            ks_fields f = {.KS_RESULT = ks_load_all(tile + c)};
            i.N = start + c;
            ks_finish(x, i, columns - c, &f);
        }
    }
}

#endif
