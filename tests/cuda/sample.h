/* sample.h - small kernels in the form of oscar_cuda.h's, which the tests of the shim and of the PTX interpreter run.
   Include it with OSCAR_CU defined for one of the two readings: text, or code (see extract.awk). */

OSCAR_CU(sample_reduce,
/* Sum of n values by one block of 128 threads, and how many are negative. */
OSCAR_KERNEL(128, 1)
oscar_cu_sample_reduce(const float *x, int n, float *sum, unsigned *negative)
{
    OSCAR_SHARED(float, warp_sum, 4);
    int lane = threadIdx.x & 31;
    float s = 0.0f;
    OSCAR_NO_UNROLL
    for (int i = threadIdx.x; i < n; i += 128) {
        s = __fadd_rn(s, x[i]);
        if (x[i] < 0.0f) atomicAdd(negative, 1u);
    }
    OSCAR_UNROLL
    for (int m = 16; m > 0; m >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, s, m);
        s = __fadd_rn(s, other);
    }
    if (lane == 0) warp_sum[threadIdx.x >> 5] = s;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int w = 0; w < 4; w++) total = __fadd_rn(total, warp_sum[w]);
        sum[0] = total;
    }
}
)

OSCAR_CU(sample_codes,
/* Rows of 128 values to codes of 2 bits and a scale in half precision, a warp a row; 4 rows a block. Lane l holds the
   values 4 l .. 4 l + 3 and writes byte l. */
OSCAR_KERNEL(128, 2)
oscar_cu_sample_codes(const float *x, unsigned char *codes, unsigned short *scales, int rows)
{
    int lane = threadIdx.x & 31;
    int row = blockIdx.x * 4 + (threadIdx.x >> 5);
    if (row >= rows) return;
    float v[4];
    unsigned top = 0;
    OSCAR_UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = x[row * 128 + lane * 4 + i];
        unsigned magnitude = __float_as_uint(v[i]) & 0x7fffffffu;
        top = magnitude > top ? magnitude : top;
    }
    top = oscar__cu_max_warp(top);
    unsigned short half = oscar__cu_float_to_half(__fdiv_rn(__uint_as_float(top), 1.5f));
    float scale = oscar__cu_half_to_float(half);
    unsigned byte = 0;
    OSCAR_UNROLL
    for (int i = 0; i < 4; i++) {
        unsigned code = (v[i] > -scale) + (v[i] > 0.0f) + (v[i] > scale);
        byte |= code << (2 * i);
    }
    codes[row * 32 + lane] = (unsigned char)byte;
    if (lane == 0) scales[row] = half;
}
)

OSCAR_CU(sample_product,
/* C (16 x 8, int) = A (16 x 32 k, signed or unsigned bytes) B (32 k x 8, bytes; column n is contiguous) through a ring
   of 2 stages of cp.async; one warp. A step of A has 512 bytes in the order of the rows, one of B has 256. */
OSCAR_KERNEL(32, 1)
oscar_cu_sample_product(const unsigned char *a, const unsigned char *b, int *c, int steps, int is_signed)
{
    OSCAR_DYNAMIC(unsigned char, stage);
    int lane = threadIdx.x;
    int g = lane >> 2;
    int q = lane & 3;
    oscar__cu_address at = oscar__cu_shared_at(stage);
    unsigned sum[4] = {0u, 0u, 0u, 0u};
    oscar__cu_copy16(at + lane * 16, a + lane * 16);
    if (lane < 16) oscar__cu_copy16(at + 512 + lane * 16, b + lane * 16);
    oscar__cu_copy_commit();
    OSCAR_NO_UNROLL
    for (int s = 0; s < steps; s++) {
        int now = (s & 1) * 768;
        int next = 768 - now;
        if (s + 1 < steps) {
            oscar__cu_copy16(at + next + lane * 16, a + (s + 1) * 512 + lane * 16);
            if (lane < 16) oscar__cu_copy16(at + next + 512 + lane * 16, b + (s + 1) * 256 + lane * 16);
        }
        oscar__cu_copy_commit();
        oscar__cu_copy_wait(1);
        __syncwarp();
        const unsigned *pa = (const unsigned *)(const void *)(stage + now);
        const unsigned *pb = (const unsigned *)(const void *)(stage + now + 512);
        unsigned f[4];
        f[0] = pa[g * 8 + q];
        f[1] = pa[(g + 8) * 8 + q];
        f[2] = pa[g * 8 + 4 + q];
        f[3] = pa[(g + 8) * 8 + 4 + q];
        unsigned b0 = pb[g * 8 + q];
        unsigned b1 = pb[g * 8 + 4 + q];
        if (is_signed) {
            oscar__cu_mma_s8u8(sum, f, b0, b1, sum);
        } else {
            oscar__cu_mma_u8u8(sum, f, b0, b1, sum);
        }
        __syncwarp();
    }
    oscar__cu_copy_wait(0);
    OSCAR_UNROLL
    for (int i = 0; i < 4; i++) c[(g + (i >> 1) * 8) * 8 + q * 2 + (i & 1)] = (int)sum[i];
}
)

OSCAR_CU(sample_functions,
/* One of the small functions at n values; words in, words out. */
OSCAR_KERNEL(64, 1)
oscar_cu_sample_functions(const unsigned *in, unsigned *out, int n, int which)
{
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= n) return;
    unsigned x = in[i];
    float f = __uint_as_float(x);
    float g = __uint_as_float(in[n - 1 - i]);
    unsigned y = 0;
    if (which == 0) y = __float_as_uint(oscar__cu_half_to_float((unsigned short)x));
    if (which == 1) y = oscar__cu_float_to_half(f);
    if (which == 2) y = __float_as_uint(__fdiv_rn(f, g));
    if (which == 3) y = __float_as_uint(__fsqrt_rn(fabsf(f)));
    if (which == 4) y = __float_as_uint(fmaf(f, g, f));
    if (which == 5) y = oscar__cu_permute(x, in[n - 1 - i], in[i / 2]);
    if (which == 6) y = __popc(x) + 64 * __clz((int)x);
    if (which == 7) y = __float_as_uint(oscar__cu_exp2(f));
    if (which == 8) y = __float_as_uint(oscar__cu_log2(f));
    if (which == 9) y = __float_as_uint(__fsub_rn(__fmul_rn(f, g), f));
    if (which == 10) y = __float_as_uint(rintf(f));
    if (which == 11) y = __float_as_uint(tanhf(f));
    if (which == 12) y = __float_as_uint(expf(f));
    if (which == 13) y = __float_as_uint(logf(fabsf(f)));
    out[i] = y;
}
)

OSCAR_CU(sample_words,
/* Arithmetic of 64 bits, a table in local memory, a loop, a switch: no meaning, but it must be computed right. */
OSCAR_KERNEL(64, 1)
oscar_cu_sample_words(const unsigned *in, unsigned *out, int n, long long factor)
{
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= n) return;
    unsigned x = in[i];
    unsigned table[16];
    OSCAR_NO_UNROLL
    for (int k = 0; k < 16; k++) table[k] = x >> k;
    OSCAR_NO_UNROLL
    for (unsigned k = 0; k < (x & 31u); k++) table[(k * 7u + x) & 15u] += table[(k + (x >> 4)) & 15u] * 3u;
    long long product = (long long)(int)x * factor;
    long long quotient = product / ((long long)(x & 1023u) - 512);
    unsigned long long high = (unsigned long long)product >> (x & 63u);
    unsigned y = (unsigned)(quotient ^ (quotient >> 32)) + (unsigned)high;
    switch (x & 7u) {
    case 0: y += x / 7u; break;
    case 1: y += (unsigned)((int)x % 13); break;
    case 2: y += (unsigned)(unsigned short)x * 65535u; break;
    case 3: y += (unsigned)(int)(signed char)x; break;
    case 4: y ^= (unsigned)(product % 1000003); break;
    case 5: y += (unsigned)((int)x >> (x >> 27)); break;
    default: y -= x; break;
    }
    out[i] = y ^ table[y & 15u];
}
)

OSCAR_CU(sample_last,
/* The block that comes last joins what all blocks wrote: one value a block, 64 threads. */
OSCAR_KERNEL(64, 1)
oscar_cu_sample_last(float *part, unsigned *count, float *out)
{
    OSCAR_SHARED(unsigned, place, 1);
    float v = (float)(threadIdx.x + 1) * (float)(blockIdx.x + 1);
    OSCAR_UNROLL
    for (int m = 16; m > 0; m >>= 1) v = v + __shfl_xor_sync(0xffffffffu, v, m);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = v;
        __threadfence();
        place[0] = atomicAdd(count, 1u);
    }
    __syncthreads();
    if (place[0] + 1u != gridDim.x) return;
    __threadfence();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (unsigned b = 0; b < gridDim.x; b++) total = total + part[b];
        out[0] = total;
        count[0] = 0u;
    }
}
)
