// attention/02_warp_specialized: a producer thread and consumer warpgroups, tiles moved by the copy engine, wgmma.
//
// Computes  s = f(sum over d of Q[m,d] * K[k,d]);  m = max s, l = sum of exp(s - m), o[n] = sum of exp(s - m) * V[k,n];
//           out = g(m, l, o), for each batch. Rows m may be several axes: query heads that share K and V.
// Idea      One thread keeps rings of tiles of K and V full. A consumer has 64 rows; it starts the products of the next
//           tile of scores and those of the present weights with V, and computes exponentials while the latter run
//           (OVERLAP); consumers take turns at starting products, so that one multiplies while another computes
//           exponentials (PINGPONG). Weights enter the second product from registers. Keys are walked from the last to
//           the first, so that tiles that a mask cuts come first; those that it hides from all rows are left out.
// Params    BM rows of a block, 64 a consumer; BK keys of a tile; BD, BE inner depth and columns, filled up with zeros;
//           STAGES tiles of K and of V;  Knobs OVERLAP PINGPONG, GROUP heads that go together where a mask makes
//           tiles unequal
// Launch    min(SMs, tiles) blocks of 128 * (BM / 64 + 1) threads
// Shared    1024 of barriers, queries 2 * BM * BD, STAGES * 2 * BK * (BD + BE)
// Traffic   K and V are read once for each BM rows of a head, mostly from the second level cache; Q and the output once
// Edges     any extents, 1 and more; rows of Q, K, V contiguous, bases and pitches multiples of 16 bytes
#include "ks_generated.h"

#include "bulk_axes.cuh"
#include "mbarrier.cuh"
#include "turns.cuh"
#include "wgmma_registers.cuh"

#include "state.cuh"

constexpr int BM = KS_BM, BK = KS_BK, BD = KS_BD, BE = KS_BE, STAGES = KS_STAGES, CONSUMERS = BM / 64, GROUP = KS_GROUP;
constexpr bool OVERLAP = KS_OVERLAP, PINGPONG = KS_PINGPONG && CONSUMERS > 1;
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int Q_BYTES = 2 * BM * BD, K_BYTES = 2 * BK * BD, V_BYTES = 2 * BK * BE;
static_assert(BM % 64 == 0 && BK % 16 == 0 && BD % 64 == 0 && BE % 64 == 0, "tiles of whole products");
static_assert(BK <= 256 && BE <= 256, "a product has at most 256 columns");
static_assert(sizeof(KS_TYPE_Q) == 2 && sizeof(KS_TYPE_K) == 2 && sizeof(KS_TYPE_V) == 2, "operands of two bytes");

// Shared memory: barriers, 8 bytes each, then tiles, each in chunks of 64 elements along its rows.
constexpr int Q_FULL = 0, Q_EMPTY = 8, K_FULL = 16, K_EMPTY = K_FULL + 8 * STAGES, V_FULL = K_EMPTY + 8 * STAGES;
constexpr int V_EMPTY = V_FULL + 8 * STAGES, Q_AT = 1024, K_AT = Q_AT + Q_BYTES, V_AT = K_AT + STAGES * K_BYTES;

constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 24;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 240;

// BM rows of a head, and the tiles of keys that they see; all rows see those before `whole`, which end with the keys.
struct ks_work {
    int head, row;  // of the batch's and the rows' outer axes together; first row in the last axis of rows
    int tiles, whole;
};

// The order of work. Where a mask makes it unequal, long work comes first, heads whose keys fit the second-level cache
// together go together, and blocks take turns in alternating order, so that each gets long and short work.
struct ks_order {
    int down, heads, total, outer;

    KS_DEVICE ks_order(const ks_args &x) {
        down = int((ks_run_M(x) + BM - 1) / BM);
        outer = int(ks_extent_M(x) / ks_run_M(x));
        heads = int(ks_extent_B(x)) * outer;
        total = down * heads;
    }
    KS_DEVICE int rounds() const { return (total + int(gridDim.x) - 1) / int(gridDim.x); }
    KS_DEVICE int number(int round) const {
        const int grid = gridDim.x, block = blockIdx.x;
        return round * grid + (KS_SEES && round % 2 ? grid - 1 - block : block);
    }
    KS_DEVICE ks_at at(const ks_args &x, const ks_work &w, int row) const {
        ks_at i;
        i.B = w.head / outer;
        i.M = w.head % outer * ks_run_M(x) + w.row + row;
        return i;
    }
    KS_DEVICE ks_work work(const ks_args &x, int number) const {
        ks_work w;
        int tile;
        if (KS_SEES) {
            const int first = number / (GROUP * down) * GROUP, rest = number - first * down;
            const int together = ks_min(GROUP, heads - first);
            tile = down - 1 - rest / together;
            w.head = first + rest % together;
        } else {
            tile = number % down;
            w.head = number / down;
        }
        w.row = tile * BM;
        const int rows = ks_min(BM, int(ks_run_M(x)) - w.row), keys = int(ks_extent_K(x));
        w.tiles = KS_SEES ? int(ks_sees(x, at(x, w, rows - 1)) + BK - 1) / BK : (keys + BK - 1) / BK;
        w.whole = ks_min(keys, KS_SEES ? int(ks_sees(x, at(x, w, 0))) : keys) / BK;
        return w;
    }
};

struct ks_ring {
    int stage = 0;
    unsigned phase = 0;

    KS_DEVICE void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

KS_DEVICE void ks_produce(const ks_args &x, unsigned shared, const ks_order &order) {
    ks_ring keys, values;
    unsigned q_phase = 1;
    for (int round = 0; round < order.rounds(); round++) {
        const int number = order.number(round);
        if (number >= order.total) continue;
        const ks_work w = order.work(x, number);
        if (w.tiles == 0) continue;
        const ks_at i = order.at(x, w, 0);
        const ks_place_Q q = ks_place_of_Q(x, i);  // divisions: in the loop they would take as long as the products
        const ks_place_K k = ks_place_of_K(x, i);
        const ks_place_V v = ks_place_of_V(x, i);
        ks_barrier_wait(shared + Q_EMPTY, q_phase);
        q_phase ^= 1;
        ks_barrier_expect(shared + Q_FULL, Q_BYTES);
#pragma unroll
        for (int c = 0; c < BD / 64; c++)
            KS_LOAD_Q(x, q, shared + Q_AT + c * BM * 128, shared + Q_FULL, c * 64, w.row);
        for (int n = w.tiles - 1; n >= -1; n--) {
            if (n >= 0) {
                const unsigned full = shared + K_FULL + 8 * keys.stage, to = shared + K_AT + keys.stage * K_BYTES;
                ks_barrier_wait(shared + K_EMPTY + 8 * keys.stage, keys.phase ^ 1);
                ks_barrier_expect(full, K_BYTES);
#pragma unroll
                for (int c = 0; c < BD / 64; c++) KS_LOAD_K(x, k, to + c * BK * 128, full, c * 64, n * BK);
                keys.next();
            }
            const int m = OVERLAP ? n + 1 : n;  // where products overlap, scores are wanted a tile before values
            if (m >= 0 && m < w.tiles) {
                const unsigned full = shared + V_FULL + 8 * values.stage, to = shared + V_AT + values.stage * V_BYTES;
                ks_barrier_wait(shared + V_EMPTY + 8 * values.stage, values.phase ^ 1);
                ks_barrier_expect(full, V_BYTES);
#pragma unroll
                for (int c = 0; c < BE / 64; c++) KS_LOAD_V(x, v, to + c * BK * 128, full, c * 64, m * BK);
                values.next();
            }
        }
    }
}

// Transposes 4 x 4 values among four threads that are neighbours: v[g] becomes what v[own] was of thread g.
KS_DEVICE void ks_exchange(float (&v)[4], int own) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool upper = own & bit;
#pragma unroll
        for (int g = 0; g < 4; g++)
            if (!(g & bit)) {
                float &low = v[g], &high = v[g + bit];
                const float got = __shfl_xor_sync(0xFFFFFFFF, upper ? low : high, bit);
                (upper ? low : high) = got;
            }
    }
}

// A consumer: 64 rows of each work of the block. Sums lie as wgmma.cuh says: each thread has two rows, 8 apart.
struct ks_consumer {
    const ks_args &x;
    const ks_order &order;
    const ks_sharpness by;
    unsigned shared;
    int index, thread;  // of the consumer in the block, of the thread in the consumer
    ks_ring keys, values;
    unsigned q_phase = 0;
    float o[BE / 2], m[2], l[2];
    int sees[2];             // keys that this thread's rows see, counted once for a work
    unsigned p[BK / 16][4];  // weights, rounded

    KS_DEVICE ks_consumer(const ks_args &x, const ks_order &order, unsigned shared, int index)
        : x(x), order(order), by(x), shared(shared), index(index), thread(threadIdx.x % 128) {
        if (PINGPONG && index == CONSUMERS - 1) end_turn();  // the first consumer begins
    }

    KS_DEVICE void await_turn() {
        if (PINGPONG) ks_sync_some(1 + index, 256);
    }
    KS_DEVICE void end_turn() {
        if (PINGPONG) ks_arrive_some(1 + (index + 1) % CONSUMERS, 256);
    }
    KS_DEVICE void release(int barrier) {
        if (thread % 32 == 0) ks_barrier_arrive(shared + barrier);
    }
    KS_DEVICE int row(int h) const { return index * 64 + thread / 32 * 16 + thread % 32 / 4 + 8 * h; }

    KS_DEVICE void start_scores(float (&s)[BK / 2]) {
        ks_barrier_wait(shared + K_FULL + 8 * keys.stage, keys.phase);
        // Asked for anew each time, the same in a warp: kept over the loop, descriptors of all depths would be spilled.
        const unsigned from = __shfl_sync(0xFFFFFFFF, shared + Q_AT + index * 64 * 128, 0);
        const unsigned long long q = ks_descriptor<128>(from, 16, 1024);
        const unsigned long long k = ks_descriptor<128>(shared + K_AT + keys.stage * K_BYTES, 16, 1024);
        ks_wgmma_fence();
#pragma unroll
        for (int d = 0; d < BD / 16; d++)
            ks_product<KS_TYPE_Q, BK>::template add<0, 0>(
                s, q + (d / 4 * BM * 128 + d % 4 * 32) / 16, k + (d / 4 * BK * 128 + d % 4 * 32) / 16, d > 0);
        ks_wgmma_commit();
    }

    KS_DEVICE void start_values() {
        ks_barrier_wait(shared + V_FULL + 8 * values.stage, values.phase);
        const unsigned long long v = ks_descriptor<128>(shared + V_AT + values.stage * V_BYTES, BK * 128, 1024);
        ks_wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / 16; k++)
            ks_product_of_registers<KS_TYPE_V, BE>::template add<1>(o, p[k], v + k * 16 * 128 / 16, 1);
        ks_wgmma_commit();
    }

    KS_DEVICE void scores_done() { release(K_EMPTY + 8 * keys.stage), keys.next(); }
    KS_DEVICE void values_done() {
        ks_wgmma_wait<0>();
        ks_wgmma_pin(o);
        release(V_EMPTY + 8 * values.stage), values.next();
    }

    // From inner sums to scores as exponents go by; -inf for keys that a row does not see.
    template <bool CUT> KS_DEVICE void score(float (&s)[BK / 2], const ks_work &w, int n) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
#if !KS_SCALED
            ks_at i = order.at(x, w, row(h));
            const bool inside = w.row + row(h) < ks_run_M(x);
#pragma unroll
            for (int j = 0; j < BK / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    i.K = n * BK + 8 * j + 2 * (thread % 4) + e;
                    float &one = s[4 * j + 2 * h + e];
                    if (inside && i.K < ks_extent_K(x)) one = ks_score(x, i, one);
                }
#endif
            if (by.turned)
#pragma unroll
                for (int j = 0; j < BK / 8; j++) s[4 * j + 2 * h] *= -1, s[4 * j + 2 * h + 1] *= -1;
            if (CUT) {
                const int seen = sees[h] - n * BK - 2 * (thread % 4);
#pragma unroll
                for (int j = 0; j < BK / 8; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (8 * j + e >= seen) s[4 * j + 2 * h + e] = -KS_INFINITY;
            }
        }
    }

    // Scores become weights; m and l take them in, and `less` is what earlier sums are multiplied by.
    KS_DEVICE void weigh(float (&s)[BK / 2], float (&less)[2], bool first) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float most = s[2 * h];
#pragma unroll
            for (int j = 0; j < BK / 8; j++) most = fmaxf(most, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
            most = ks_row_most(most);
            if (!first) most = fmaxf(most, m[h]);
            const float shift = by.shift(most);
            less[h] = first ? 0.0f : ks_ex2_flushed(m[h] * by.sharp - shift);
            m[h] = most;
            float sum = 0;
#pragma unroll
            for (int j = 0; j < BK / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &weight = s[4 * j + 2 * h + e];
                    weight = ks_ex2_flushed(fmaf(weight, by.sharp, -shift));
                    sum += weight;
                }
            l[h] = first ? sum : fmaf(l[h], less[h], sum);
        }
    }

    KS_DEVICE void round_weights(const float (&s)[BK / 2]) {
#pragma unroll
        for (int k = 0; k < BK / 16; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) p[k][e] = ks_pair(s[8 * k + 2 * e], s[8 * k + 2 * e + 1], KS_TYPE_V());
    }
    // Once a row's maximum has settled, its sums stay as they are.
    KS_DEVICE void rescale(const float (&less)[2]) {
        if (__all_sync(0xFFFFFFFF, less[0] == 1 && less[1] == 1)) return;
#pragma unroll
        for (int j = 0; j < BE / 2; j++) o[j] *= less[j / 2 % 2];
    }

    KS_DEVICE void first_step(const ks_work &w) {
        float s[BK / 2], less[2];
        await_turn();
        start_scores(s);
        end_turn();
        ks_wgmma_wait<0>();
        ks_wgmma_pin(s);
        scores_done();
        if (w.whole < w.tiles)
            score<true>(s, w, w.tiles - 1);
        else
            score<false>(s, w, w.tiles - 1);
        weigh(s, less, true);
        round_weights(s);
        if (OVERLAP) return;
        start_values();
        values_done();
    }

    template <bool CUT> KS_DEVICE void step(const ks_work &w, int n) {
        float s[BK / 2], less[2];
        await_turn();
        start_scores(s);
        if (OVERLAP) {
            start_values();
            end_turn();
            ks_wgmma_wait<1>();
            ks_wgmma_pin(s);
            scores_done();
            score<CUT>(s, w, n);
            weigh(s, less, false);
            // Values have landed long ago; but what stands before a loop stays before it. The assembler would move the
            // exponentials, which are to run beside the products, behind the wait for these.
            ks_wgmma_pin(s);
            ks_barrier_wait(shared + V_FULL + 8 * values.stage, values.phase);
            values_done();
            rescale(less);
            round_weights(s);
        } else {
            end_turn();
            ks_wgmma_wait<0>();
            ks_wgmma_pin(s);
            scores_done();
            score<CUT>(s, w, n);
            weigh(s, less, false);
            rescale(less);
            round_weights(s);
            start_values();
            values_done();
        }
    }

    KS_DEVICE void consume(const ks_work &w) {
#pragma unroll
        for (int j = 0; j < BE / 2; j++) o[j] = 0;
        if (w.tiles > 0) {
#pragma unroll
            for (int h = 0; h < 2; h++) sees[h] = int(KS_SEES ? ks_sees(x, order.at(x, w, row(h))) : ks_extent_K(x));
            ks_barrier_wait(shared + Q_FULL, q_phase);
            q_phase ^= 1;
            first_step(w);
            int n = w.tiles - 2;
            for (; n >= w.whole; n--) step<true>(w, n);
            for (; n >= 0; n--) step<false>(w, n);
            release(Q_EMPTY);
            if (OVERLAP) {
                start_values();
                values_done();
            }
        } else {
            m[0] = m[1] = -KS_INFINITY, l[0] = l[1] = 0;
        }
        store(w);
    }

    // Four threads of a row exchange their pairs of 32 columns, so that each stores eight that follow each other.
    KS_DEVICE void store(const ks_work &w) {
        const int columns = int(ks_extent_N(x)), own = thread % 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            ks_at i = order.at(x, w, row(h));
            const ks_row at = ks_row_of(x, i);
            const bool inside = w.row + row(h) < ks_run_M(x);
            ks_fields f[8];
            f[0].m = by.score(m[h]), f[0].l = ks_row_sum(l[h]);
#pragma unroll
            for (int e = 1; e < 8; e++) f[e].m = f[0].m, f[e].l = f[0].l;
#pragma unroll
            for (int j = 0; j < BE / 8; j += 4) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float v[4];
#pragma unroll
                    for (int g = 0; g < 4; g++) v[g] = o[4 * (j + g) + 2 * h + e];
                    ks_exchange(v, own);
#pragma unroll
                    for (int g = 0; g < 4; g++) f[2 * g + e].o = v[g];
                }
                i.N = 8 * (j + own);
                ks_put_N<8>(x, at, i, inside ? ks_max(0, ks_min(8, columns - int(i.N))) : 0, f);
            }
            i.N = 0;
            if (KS_STATES && inside && own == 0) ks_state(x, i, f[0]);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_warp_specialized(const __grid_constant__ ks_args x) {
    extern __shared__ unsigned char dynamic[];
    unsigned char *base = dynamic + (1024 - ks_shared_address(dynamic) % 1024) % 1024;
    const unsigned shared = ks_shared_address(base);
    const ks_order order(x);
    ks_allow_next_launch();
    if (threadIdx.x == 0) {
        ks_bulk_prefetch_map(&x.map_Q);
        ks_bulk_prefetch_map(&x.map_K);
        ks_bulk_prefetch_map(&x.map_V);
        ks_barrier_init(shared + Q_FULL, 1);
        ks_barrier_init(shared + Q_EMPTY, 4 * CONSUMERS);
        for (int s = 0; s < STAGES; s++) {
            ks_barrier_init(shared + K_FULL + 8 * s, 1);
            ks_barrier_init(shared + V_FULL + 8 * s, 1);
            ks_barrier_init(shared + K_EMPTY + 8 * s, 4 * CONSUMERS);
            ks_barrier_init(shared + V_EMPTY + 8 * s, 4 * CONSUMERS);
        }
        ks_barrier_init_fence();
    }
    __syncthreads();
    ks_wait_for_earlier_launch();
    const int group = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0);  // the same in a warp, as the compiler can see
    if (group == 0) {
        ks_registers_less<PRODUCER_REGISTERS>();
        if (threadIdx.x < 32 && ks_elect()) ks_produce(x, shared, order);
        __syncwarp();
    } else {
        ks_registers_more<CONSUMER_REGISTERS>();
        ks_consumer consumer(x, order, shared, group - 1);
        for (int round = 0; round < order.rounds(); round++) {
            const int number = order.number(round);
            if (number < order.total) consumer.consume(order.work(x, number));
        }
    }
}
