// words: V neighbours of an array that lie in aligned words, moved with a cache policy.
//
// KS_STREAM, where the kernel defines it: 1 stores are the first to leave the second-level cache, 2 loads too.
// Follows the PTX ISA, "Cache Operators": ld.cs and st.cs.
#pragma once

#include "kernsearch.cuh"

#ifndef KS_STREAM
#define KS_STREAM 0
#endif

template <class W>
KS_DEVICE W ks_read_word(const W *p) { return KS_STREAM & 2 ? __ldcs(p) : *p; }

template <class W>
KS_DEVICE void ks_write_word(W *p, W v) {
    if (KS_STREAM & 1)
        __stcs(p, v);
    else
        *p = v;
}

// How far apart neighbours lie that are moved V at a time: words hold none but those side by side.
template <int V>
KS_DEVICE int64_t ks_step(int64_t stride) { return V > 1 ? 1 : stride; }

// V neighbours from p on, which is aligned to all of them.
template <int V, class T>
KS_DEVICE void ks_take(const T *p, ks_acc (&out)[V]) {
    typedef ks_block<T, V> block;
    block b;
#pragma unroll
    for (int i = 0; i < block::words; i++)
        b.w[i] = ks_read_word(reinterpret_cast<const typename block::word *>(p) + i);
#pragma unroll
    for (int i = 0; i < V; i++) out[i] = ks_to_acc(b.v[i]);
}

// Words read from the arrays themselves.
struct ks_direct {
    template <int V, class T>
    KS_DEVICE void take(const T *p, ks_acc (&out)[V]) { ks_take<V>(p, out); }
};

// The same value V times.
template <int V, class T>
KS_DEVICE void ks_take_one(const T *p, ks_acc (&out)[V]) {
    const ks_acc v = ks_to_acc(*p);
#pragma unroll
    for (int i = 0; i < V; i++) out[i] = v;
}

template <int V, class T>
KS_DEVICE void ks_give(T *p, const ks_acc (&in)[V]) {
    typedef ks_block<T, V> block;
    block b;
#pragma unroll
    for (int i = 0; i < V; i++) b.v[i] = ks_from_acc<T>(in[i]);
#pragma unroll
    for (int i = 0; i < block::words; i++)
        ks_write_word(reinterpret_cast<typename block::word *>(p) + i, b.w[i]);
}

// work<V, Most>(x) for rows (ks_generated.h), Most words at most in the registers of a thread: by whole words, by elements
// that are neighbours, of which addresses differ by constants, or by elements anywhere, which take an address each.
#define KS_BY_WIDTH(work, x)                    \
    if (KS_VEC > 1 && ks_row_wide<KS_VEC>(x))   \
        work<KS_VEC, 64>(x);                    \
    else if (ks_row_wide<1>(x))                 \
        work<1, 32>(x);                         \
    else                                        \
        work<1, 8>(x);
