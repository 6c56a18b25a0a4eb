// ahead: the words of a row on their way to shared memory while the row before it is worked on.
//
// Each thread copies what it will keep to places of its own and takes it from there, so no barrier is needed, and the
// registers hold one row only. Arrays of which a word has fewer than 4 bytes are read when they are wanted.
#pragma once

#include "async_copy.cuh"
#include "words.cuh"

constexpr int KS_PLACE = 16;  // bytes of a word's place

// The places of a thread for one word of each operand, `step` bytes apart.
template <int Operands>
struct ks_places {
    char *at;
    int step, taken = 0;

    // Has the next array a place, if a word of it has `Bytes` bytes?
    KS_DEVICE bool left(int Bytes) const { return Bytes >= 4 && taken < Operands; }
    KS_DEVICE char *next() { return at + taken++ * step; }
};

// Asks for words, and gives zeros instead of them.
template <int Operands>
struct ks_asking {
    ks_places<Operands> places;

    template <int V, class T>
    KS_DEVICE void take(const T *p, ks_acc (&out)[V]) {
        constexpr int bytes = V * int(sizeof(T));
        if constexpr (bytes >= 4) {
            if (places.left(bytes)) ks_copy_async<bytes>(ks_shared(places.next()), p, bytes);
        }
#pragma unroll
        for (int l = 0; l < V; l++) out[l] = 0;
    }
};

// Takes words that were asked for, once the copies are complete; the others from the arrays.
template <int Operands>
struct ks_arrived {
    ks_places<Operands> places;

    template <int V, class T>
    KS_DEVICE void take(const T *p, ks_acc (&out)[V]) {
        if (places.left(V * int(sizeof(T)))) {
            ks_block<T, V> block;
            block.w[0] = *reinterpret_cast<const typename ks_block<T, V>::word *>(places.next());
#pragma unroll
            for (int l = 0; l < V; l++) out[l] = ks_to_acc(block.v[l]);
        } else {
            ks_take<V>(p, out);
        }
    }
};
