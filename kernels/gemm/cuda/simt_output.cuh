// From sums in registers to the output, through shared memory: rows are finished and stored whole, by one loop.

#pragma once

// All sums of a block. `first` is the block's first element; `shared` holds BN * BM / TM floats that nobody uses any more
// once all threads are here.
template <int BM, int BN, int TM, int TN>
KS_DEVICE void ks_put_block(const ks_args &x, const ks_at &first, const ks_layout<BM, BN, TM, TN> &own,
                            const float (&sums)[TM][TN], float *shared) {
    typedef ks_layout<BM, BN, TM, TN> layout;
    constexpr int V = BN % 4 == 0 ? 4 : 1;
    const int64_t m = ks_extent_M(x), n = ks_extent_N(x);
    const int slice = (own.row / TM + own.lane_m) * BN + own.column;
#pragma unroll
    for (int j = 0; j < TM; j++) {
        __syncthreads();  // the slice before this one, or what else was in its place, has been read
        layout::columns::store(shared + slice, own.lane_n, sums[j]);
        __syncthreads();  // the slice is whole
#pragma unroll 1
        for (int e = threadIdx.x * V; e < layout::down * BN; e += layout::threads * V) {
            const int lane = e / BN;  // along M, over all warps
            ks_at i = first;
            i.M += lane / layout::lanes_m * layout::rows::extent + layout::rows::at(lane % layout::lanes_m, j);
            i.N += e % BN;
            if (i.M >= m || i.N >= n) continue;
            ks_fields f[V];
#pragma unroll
            for (int c = 0; c < V; c++) f[c].KS_RESULT = shared[e + c];
            ks_put_N<V>(x, i, int(ks_min(int64_t(V), n - i.N)), f);
        }
    }
}
