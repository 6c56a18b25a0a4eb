// kept: a stretch of a row with the threads that share it, fields computed from it, outputs stored.
//
// The includer gives KS_TK, elements that a thread keeps, and where: KS_SHARED 0 in registers, 1 in shared memory, as
// they were read. With KS_AHEAD the next row is on its way to shared memory meanwhile; where rows stay there, two of them
// take turns. Elements are dealt out in words of V neighbours, and each thread goes back to its own only; what does not
// fit is fetched again for each field, so that rows of any length come out right.
#pragma once

#include "across.cuh"
#include "ahead.cuh"
#include "compensated.cuh"
#include "lifted.cuh"

#ifndef KS_SHARED
#define KS_SHARED 0
#endif
#ifndef KS_AHEAD  // 1: the next row comes near while this one is worked on
#define KS_AHEAD 0
#endif

static_assert(KS_TK % KS_VEC == 0, "TK is no whole number of words");

extern __shared__ __align__(16) char ks_dynamic[];

constexpr int KS_PIECE = 32;  // words that are added up before they are added to the rest

constexpr int ks_operands = int(sizeof(ks_kept<1>) / sizeof(ks_acc));

// Blocks of a multiprocessor for which a thread has room for what it keeps and 40 registers more, 32 where terms are
// lifted and rows come by shared memory: loads of other rows are under way while one is worked on. Left alone, the
// compiler takes up to twice as many. Rows that take turns in shared memory fill it with the WAVES blocks that stay, to
// which all registers belong.
KS_DEVICE constexpr int ks_blocks_for(int threads) {
#if KS_SHARED && KS_AHEAD
    return KS_WAVES;
#endif
    constexpr int kept = (KS_SHARED ? 16 : KS_TK) * ks_operands * int(sizeof(ks_acc)) / 4;
    constexpr int apart = (KS_SHARED || KS_AHEAD) && KS_LIFT ? 32 : 40;
    const int blocks = 65536 / ((kept + apart) * threads), most = 2048 / threads;
    return blocks < 1 ? 1 : blocks > most ? most : blocks > 16 ? 16 : blocks;
}

// Elements [first, last) of a row, by `Width` threads of which this one is number `thread`.
template <int V, int Width, int Most>
struct ks_stretch {
    static constexpr bool in_words = V == KS_VEC && V > 1;
    static constexpr bool shared = KS_SHARED && in_words, ahead = KS_AHEAD && in_words;
    static constexpr bool turns = shared && ahead;  // two rows take turns: one is worked on, the next one comes
    static constexpr int words = KS_TK / V < Most ? KS_TK / V : Most;
    static constexpr int together = shared ? (V < 8 ? 4 : 2) : words;  // words of a turn: registers have no index
    ks_kept<V> kept[shared ? 1 : words];
    int64_t first, last, rest;
    int count;  // words that are kept
    int turn = 0;

    KS_DEVICE void place(int64_t from, int64_t to, int thread) {
        first = from + int64_t(thread) * V, last = to, rest = first + int64_t(words) * Width * V;
        count = int(ks_min(ks_ceil<int64_t>(ks_max(to - first, int64_t(0)), Width * V), int64_t(words)));
    }

    // Are all words there that are kept? Then nothing is tested between them. Elements are always tested.
    KS_DEVICE bool full() const { return in_words && count == words; }

    // The row i.M, all words at once. They differ by constants, which cost no registers for addresses.
    KS_DEVICE void fetch(const ks_args &x, const ks_at &i) {
        if constexpr (shared && !ahead) ask_now(x, i);
        if constexpr (shared || ahead) ks_copy_wait<0>();
        if constexpr (turns) turn ^= 1;
        if constexpr (!shared) {
            if (full())
                take<true>(x, i);
            else
                take<false>(x, i);
        }
    }

    // Lets the words of `row` come near, if it exists, for a later fetch.
    KS_DEVICE void ask(const ks_args &x, ks_at i, int64_t row) const {
        i.M = row;
        if (ahead && row < ks_rows(x)) ask_now(x, i);
    }

    KS_DEVICE void ask_now(const ks_args &x, const ks_at &i) const {
        if (full())
            ask_for<true>(x, i);
        else
            ask_for<false>(x, i);
        ks_copy_commit();
    }

    template <bool All>
    KS_DEVICE void take(const ks_args &x, ks_at i) {
#pragma unroll
        for (int k = 0; k < words; k++) {
            i.N = first + int64_t(k) * Width * V;
            if (!All && k >= count) continue;
            if constexpr (ahead)
                ks_row_fetch<V>(x, i, kept[k], ks_arrived<ks_operands>{places(k)});
            else
                ks_row_fetch<V>(x, i, kept[k], ks_direct());
        }
    }

    template <bool All>
    KS_DEVICE void ask_for(const ks_args &x, ks_at i) const {
#pragma unroll together
        for (int k = 0; k < words; k++) {
            ks_kept<V> none;
            i.N = first + int64_t(k) * Width * V;
            if (All || k < count) ks_row_fetch<V>(x, i, none, ks_asking<ks_operands>{places(k, turn ^ int(turns))});
        }
    }

    KS_DEVICE ks_places<ks_operands> places(int k) const { return places(k, turn); }
    static KS_DEVICE ks_places<ks_operands> places(int k, int turn) {
        const int step = int(blockDim.x) * KS_PLACE;
        const int word = k + (turns ? turn * words : 0);
        return {ks_dynamic + word * ks_operands * step + int(threadIdx.x) * KS_PLACE, step};
    }
};

#if KS_ONLINE
#include "online.cuh"

typedef ks_pair ks_found;  // what threads bring together

// Words in shared memory, a few at a time.
template <bool All, int V, int Width, int Most>
KS_DEVICE void ks_take_shared(const ks_args &x, ks_at i, const ks_stretch<V, Width, Most> &s, ks_state &own) {
    constexpr int64_t step = int64_t(Width) * V;
    constexpr int turn = ks_stretch<V, Width, Most>::together, all = ks_stretch<V, Width, Most>::words;
    constexpr int many = turn < all ? turn : all;
    static_assert(all % many == 0, "words of a thread are no whole number of turns");
    for (int k = 0; k < all; k += many) {
        ks_kept<V> words[many];
#pragma unroll
        for (int j = 0; j < many; j++) {
            i.N = s.first + (k + j) * step;
            if (All || k + j < s.count) ks_row_fetch<V>(x, i, words[j], ks_arrived<ks_operands>{s.places(k + j)});
        }
        i.N = s.first + k * step;
        ks_take_in<All>(x, i, step, s.count - k, words, own, false);
    }
}

// The state of this thread's elements. Words in registers settle with `kept`, their own maximum.
template <int V, int Width, int Most>
KS_DEVICE ks_state ks_own_state(const ks_args &x, ks_at i, ks_stretch<V, Width, Most> &s, ks_acc &kept) {
    typedef ks_stretch<V, Width, Most> stretch;
    constexpr int64_t step = int64_t(Width) * V;
    ks_state own;
    if constexpr (stretch::shared) {
        if (s.full())
            ks_take_shared<true>(x, i, s, own);
        else
            ks_take_shared<false>(x, i, s, own);
    } else {
        i.N = s.first;
        if (s.full())
            ks_take_in<true>(x, i, step, s.count, s.kept, own, KS_SETTLES);
        else
            ks_take_in<false>(x, i, step, s.count, s.kept, own, KS_SETTLES);
    }
    kept = own.m;
    constexpr int many = V < 4 ? 4 : 1;
#pragma unroll 1
    for (int64_t at = s.rest; at < s.last; at += many * step) {
        const int count = int(ks_min(ks_ceil<int64_t>(s.last - at, step), int64_t(many)));
        ks_kept<V> words[many];
#pragma unroll
        for (int j = 0; j < many; j++) {
            i.N = at + j * step;
            if (j < count) ks_row_fetch<V>(x, i, words[j], ks_direct());
        }
        i.N = at;
        ks_take_in<false>(x, i, step, count, words, own, false);
    }
    return own;
}
#else
typedef ks_acc ks_found;
#endif

#define KS_ADD_TERM(name, monoid, word, a, settle)                                          \
    {                                                                                       \
        ks_acc term[V];                                                                     \
        ks_term_##name<V>(x, i, f, word, term);                                             \
        _Pragma("unroll") for (int l = 0; l < V; l++) a = ks_both_##monoid(a, term[l]);     \
        if (settle) ks_row_settle<V>(word, term);                                           \
    }

#define KS_OWN_WORDS(name, monoid, a, settle, all)                                          \
    _Pragma("unroll (ks_stretch<V, Width, Most>::together)")                                \
    for (int k = 0; k < s.words; k++) {                                                     \
        i.N = s.first + int64_t(k) * Width * V;                                             \
        if (!all && k >= s.count) continue;                                                 \
        if constexpr (ks_stretch<V, Width, Most>::shared) {                                 \
            ks_kept<V> word;                                                                \
            ks_row_fetch<V>(x, i, word, ks_arrived<ks_operands>{s.places(k)});              \
            KS_ADD_TERM(name, monoid, word, a, false)                                       \
        } else {                                                                            \
            KS_ADD_TERM(name, monoid, s.kept[k], a, settle)                                 \
        }                                                                                   \
    }

// One field of the row; `settle` leaves its terms in what registers keep.
#define KS_FIELD(name, monoid, settle)                                                      \
    {                                                                                       \
        ks_acc a = ks_none_##monoid, lost = 0;                                              \
        if (s.full()) {                                                                     \
            KS_OWN_WORDS(name, monoid, a, settle, true)                                     \
        } else {                                                                            \
            KS_OWN_WORDS(name, monoid, a, settle, false)                                    \
        }                                                                                   \
        _Pragma("unroll 1") for (i.N = s.rest; i.N < s.last;) {                             \
            ks_acc part = ks_none_##monoid;                                                 \
            const int64_t stop = ks_min(s.last, i.N + int64_t(KS_PIECE) * Width * V);       \
            _Pragma("unroll 1") for (; i.N < stop; i.N += int64_t(Width) * V) {             \
                ks_kept<V> more;                                                            \
                ks_row_fetch<V>(x, i, more, ks_direct());                                   \
                KS_ADD_TERM(name, monoid, more, part, false)                                \
            }                                                                               \
            ks_gather_##monoid(a, lost, part);                                              \
        }                                                                                   \
        f.name = threads.template over<ks_monoid_##monoid>(a);                              \
    }
#define KS_EARLY_FIELD(name, monoid) KS_FIELD(name, monoid, false)
#define KS_SETTLING_FIELD(name, monoid) KS_FIELD(name, monoid, KS_SETTLES)

// The fields of a row, of which `threads` brings together what each has found. `kept` are the fields as words in
// registers want them: where more than a warp shares a row, maximum and sum are found together, so threads meet once,
// and the words have settled with a maximum of the thread's own.
template <int V, int Width, int Most, class Threads>
KS_DEVICE void ks_fields_of(
    const ks_args &x, ks_at i, ks_stretch<V, Width, Most> &s, Threads &threads, ks_fields &f, ks_fields &kept
) {
#if KS_ONLINE
    if constexpr (Width > 32) {
        ks_acc own;
        const ks_state found = ks_own_state(x, i, s, own);
        const ks_pair all = threads.template over<ks_online>(ks_pair{found.m, found.l});
        f.m = all.m, f.l = ks_lifts ? all.l * KS_LOWER : all.l;
#if KS_SETTLES
        if (ks_lifts) f.share = KS_LOWER;
        kept = f;
        kept.share = ks_lifts ? ks_exp_of_shift(own, f.m) * KS_LOWER : ks_exp_of_shift(own, f.m);
#else
        kept = f;
#endif
    } else
#endif
    {
        KS_EARLY_FIELDS(KS_EARLY_FIELD)
        KS_LAST_FIELD(KS_SETTLING_FIELD)
        kept = f;
    }
}

// Compute and store the outputs of a word that has not settled.
template <int V, class Words>
KS_DEVICE void ks_put_fresh(const ks_args &x, const ks_at &i, const ks_fields &f, Words words) {
    ks_kept<V> word;
    ks_row_fetch<V>(x, i, word, words);
    if (KS_SETTLES) {
        ks_acc term[V];
        ks_last_term<V>(x, i, f, word, term);
        ks_row_settle<V>(word, term);
    }
    ks_row_put<V>(x, i, f, word);
}

template <bool All, int V, int Width, int Most>
KS_DEVICE void ks_put_words(
    const ks_args &x, ks_at i, const ks_fields &f, const ks_fields &kept, const ks_stretch<V, Width, Most> &s
) {
#pragma unroll (ks_stretch<V, Width, Most>::together)
    for (int k = 0; k < s.words; k++) {
        i.N = s.first + int64_t(k) * Width * V;
        if (!All && k >= s.count) continue;
        if constexpr (ks_stretch<V, Width, Most>::shared)
            ks_put_fresh<V>(x, i, f, ks_arrived<ks_operands>{s.places(k)});
        else
            ks_row_put<V>(x, i, kept, s.kept[k]);
    }
}

// Compute and store the outputs of this thread's elements.
template <int V, int Width, int Most>
KS_DEVICE void ks_put_all(
    const ks_args &x, ks_at i, const ks_fields &f, const ks_fields &kept, const ks_stretch<V, Width, Most> &s
) {
    if (s.full())
        ks_put_words<true>(x, i, f, kept, s);
    else
        ks_put_words<false>(x, i, f, kept, s);
#pragma unroll 1
    for (i.N = s.rest; i.N < s.last; i.N += int64_t(Width) * V) ks_put_fresh<V>(x, i, f, ks_direct());
}
