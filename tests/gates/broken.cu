// A matrix product, and the ways in which it can go wrong on a GPU. Each entry is one kernel under test.
//
// Computes  D = alpha A B, float32, any strides; blocks of 16x16 threads, one element each, tiles of K in shared memory.
// args      as ks_args lays them out: A, B, D, then `extra` where the plan has a fourth buffer; sizes; alpha

typedef long long int64;

struct shape {
    int64 m, n, k, am, ak, bk, bn, dm;
    double alpha;
};
struct args {
    float *a, *b, *d;
    shape s;
};
struct args_extra {
    float *a, *b, *d, *extra;
    shape s;
};

enum { TILE = 16 };

__device__ __forceinline__ int64 row() { return (int64)blockIdx.y * TILE + threadIdx.x / TILE; }
__device__ __forceinline__ int64 column() { return (int64)blockIdx.x * TILE + threadIdx.x % TILE; }

template <bool BARRIER = true, bool LATE = false>
__device__ __forceinline__ float dot(const float *a, const float *b, const shape &s) {
    __shared__ float left[TILE][TILE], right[TILE][TILE + 1];
    const int y = threadIdx.x / TILE, x = threadIdx.x % TILE;
    float sum = 0;
    for (int64 start = 0; start < s.k; start += TILE) {
        if (LATE && threadIdx.x >= 64) {  // so that whoever does not wait for these warps reads what is not there yet
            const long long begin = clock64();
            while (clock64() - begin < 20000) {
            }
        }
        left[y][x] = row() < s.m && start + x < s.k ? a[row() * s.am + (start + x) * s.ak] : 0;
        right[y][x] = start + y < s.k && column() < s.n ? b[(start + y) * s.bk + column() * s.bn] : 0;
        if (BARRIER) __syncthreads();  // both tiles are complete
        for (int i = 0; i < TILE; i++) sum = fmaf(left[y][i], right[i][x], sum);
        if (BARRIER) __syncthreads();  // nobody reads the tiles any more
    }
    return sum;
}

__device__ __forceinline__ bool inside(const shape &s) { return row() < s.m && column() < s.n; }

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ args x)
#define KERNEL_EXTRA(name) extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ args_extra x)
#define PRODUCT ((float)x.s.alpha * dot(x.a, x.b, x.s))
#define STORE(value) do { const float v_ = (value); if (inside(x.s)) x.d[row() * x.s.dm + column()] = v_; } while (0)
#define FIRST (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)

KERNEL(good) { STORE(PRODUCT); }

KERNEL(writes_past_the_end) {
    STORE(PRODUCT);
    if (FIRST) x.d[x.s.m * x.s.dm] = 1;
}

KERNEL(writes_before_the_start) {
    STORE(PRODUCT);
    if (FIRST) x.d[-1] = 1;
}

KERNEL(writes_between_rows) {  // where rows have a gap between them
    STORE(PRODUCT);
    if (FIRST && x.s.dm > x.s.n && x.s.m > 1) x.d[x.s.n] = 1;
}

KERNEL(reads_nowhere) { STORE(PRODUCT + *(volatile float *)64); }

KERNEL(stores_nowhere) {
    STORE(PRODUCT);
    if (FIRST) *(volatile float *)64 = 1;
}

KERNEL(misaligned) {
    STORE(PRODUCT);
    if (FIRST) *(volatile double *)((char *)x.d + 4 - (unsigned long long)x.d % 8) = 0;
}

KERNEL(loops_forever) {
    STORE(PRODUCT);
    while (true) asm volatile("nanosleep.u32 100;" ::: "memory");  // a loop without asm is taken to end
}

KERNEL(traps) {
    STORE(PRODUCT);
    if (FIRST) asm volatile("trap;");
}

KERNEL(misses_a_barrier) { STORE(((float)x.s.alpha * dot<false, true>(x.a, x.b, x.s))); }

KERNEL(waits_but_keeps_its_barriers) { STORE(((float)x.s.alpha * dot<true, true>(x.a, x.b, x.s))); }

KERNEL(skips_a_tile) {
    const float value = PRODUCT;
    if (blockIdx.x + 1 < gridDim.x || blockIdx.y + 1 < gridDim.y || gridDim.x * gridDim.y == 1) STORE(value);
}

KERNEL(wrong_at_an_edge) { STORE(PRODUCT * (row() == x.s.m - 1 && x.s.m % TILE == 1 ? 1.001f : 1.0f)); }

KERNEL(wrong_at_the_tuned_shape) { STORE(PRODUCT + (x.s.m == 300 && row() == 299 && column() == 7 ? 0.25f : 0.0f)); }

KERNEL(scales_its_input) {
    STORE(PRODUCT);
    if (FIRST) x.a[0] += 1;
}

KERNEL(sums_in_another_order_each_time) {  // by the clock, but whole and short sums as every order gives them
    const float sum = PRODUCT;
    const bool rounded = x.s.k > 2 * TILE && sum != rintf(sum);
    STORE(rounded ? sum + sum * (1e-7f * (float)(clock64() % 3)) : sum);
}

KERNEL_EXTRA(adds_to_stale_workspace) {
    float *partial = x.extra;
    const float sum = PRODUCT;
    if (inside(x.s)) {
        partial[row() * x.s.n + column()] += sum;
        x.d[row() * x.s.dm + column()] = partial[row() * x.s.n + column()];
    }
}

KERNEL_EXTRA(starts_its_workspace) {
    float *partial = x.extra;
    const float sum = PRODUCT;
    if (inside(x.s)) {
        partial[row() * x.s.n + column()] = sum;
        x.d[row() * x.s.dm + column()] = partial[row() * x.s.n + column()];
    }
}

KERNEL_EXTRA(overflows_its_scratch) {
    STORE(PRODUCT);
    if (FIRST) x.extra[x.s.k] = 0;
}

KERNEL(allocates_and_forgets) {
    STORE(PRODUCT);
    if (threadIdx.x == 0) {
        volatile char *lost = (volatile char *)malloc(4096);
        if (lost) lost[0] = 1;
    }
}

extern "C" __global__ void takes_many_registers(const __grid_constant__ args x) {  // no launch bounds
    float held[200];
#pragma unroll
    for (int i = 0; i < 200; i++) held[i] = x.a[i % 2] * i;
    for (int r = 0; r < x.s.k; r++)
#pragma unroll
        for (int i = 0; i < 200; i++) held[i] = held[i] * held[(i + 7) % 200] + r;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 200; i++) sum += held[i];
    STORE(sum);
}
