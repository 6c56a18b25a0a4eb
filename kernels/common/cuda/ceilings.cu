// common/ceilings: what a GPU can do at most, each kernel one limit and nothing else.
//
// ks_ceiling_fma   CHAINS independent float32 multiply-adds a round in each thread; x grows to no infinity
// ks_ceiling_mma   mma.sync m16n8k16, float16 in and float32 accumulated, from registers alone (sm_80 and later)
// ks_ceiling_read  every block reads the same `count` 16-byte words, `rounds` times, past the first-level cache
// ks_ceiling_empty nothing: what a launch in a graph costs
//
// Results go to `out` only when they are a value that they never are, so that nothing is optimised away.

#define CHAINS 16

extern "C" __global__ void ks_ceiling_empty() {}

extern "C" __global__ void __launch_bounds__(256) ks_ceiling_fma(float *out, int rounds, float a, float b) {
    float x[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; i++) x[i] = threadIdx.x + i;
    for (int r = 0; r < rounds; r++)
#pragma unroll
        for (int i = 0; i < CHAINS; i++) x[i] = fmaf(x[i], a, b);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CHAINS; i++) sum += x[i];
    if (sum == -1.0f) out[threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(256) ks_ceiling_read(float *out, const uint4 *in, long long count,
                                                                   int rounds) {
    const long long step = (long long)gridDim.x * blockDim.x, first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned sum = 0;
    for (int r = 0; r < rounds; r++)
        for (long long i = first; i < count; i += 4 * step)
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (i + u * step < count) {
                    uint4 v;
                    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                                 : "l"(in + i + u * step));
                    sum += v.x ^ v.y ^ v.z ^ v.w;
                }
    if (sum == 0x12345678u) out[threadIdx.x] = sum;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// PTX ISA, "Matrix multiply-accumulate operation using mma instruction".
extern "C" __global__ void __launch_bounds__(256) ks_ceiling_mma(float *out, int rounds) {
    float d[8][4] = {};
    const unsigned a = 0x3c003c00u, b = threadIdx.x & 1 ? 0x3c003c00u : 0xbc00bc00u;  // ones, and ones of both signs
    for (int r = 0; r < rounds; r++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, "
                "{%0, %1, %2, %3};"
                : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
                : "r"(a), "r"(b));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
    if (sum == -1.0f) out[threadIdx.x] = sum;
}
#endif
