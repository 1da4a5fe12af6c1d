/* plain_bf16_cuda.h - decode attention over BF16 pages on a GPU, what bench/cuda.c measures 2 bits against: kernels as
   text for NVRTC, for compute capability 8.0 and later.

   A page has, for each KV head, 64 rows of K, then 64 rows of V: pool [pages][KV heads][2][64][D]. A block has a split
   of one sequence's pages and one KV head, a warp 16 tokens of a page at a time, in a pipeline of its own: 16-byte
   copies to shared memory, PLAIN_STAGES tiles deep, so that no barrier of the block stands in the loop. Products are
   m16n8k16 of bf16; the query heads of the KV head are the 16 rows, zeros where there are fewer. At D = 128 that is
   about 10 instructions a token and warp, a tenth of what an H200 can issue while its memory brings the 512 bytes.

   Constants, as #define lines before the text: PLAIN_D, PLAIN_GROUP (at most 16), PLAIN_KV_HEADS, PLAIN_WARPS (4 or 2),
   PLAIN_STAGES (2 or more), PLAIN_BLOCKS (that shall fit a multiprocessor by registers). Shared memory:
   PLAIN_WARPS * PLAIN_STAGES * 64 * D bytes. Rows behind the last token of a page must be finite.

   Kernels:
       plain_decode   grid (splits, KV heads, sequences), block 32 * PLAIN_WARPS
       plain_merge    grid (query heads, sequences), block D; only where there is more than one split
       plain_read     any grid, block 256: reads 16-byte words and does nothing with them */
#ifndef OSCAR_PLAIN_BF16_CUDA_H
#define OSCAR_PLAIN_BF16_CUDA_H

#define PLAIN_CU(name, ...) \
    static const char name[] = #__VA_ARGS__ "\n"; \
    typedef char name##_is_short[sizeof(name) <= 4096 ? 1 : -1];

PLAIN_CU(plain_words,
static __device__ __forceinline__ unsigned plain_shared_at(const void *p)
{
    unsigned r;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(r) : "l"(p));
    return r;
}

static __device__ __forceinline__ void plain_copy16(unsigned to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void plain_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* All copies but those of the last PLAIN_STAGES - 2 tiles are there. */
static __device__ __forceinline__ void plain_wait(void)
{
    asm volatile("cp.async.wait_group %0;" :: "n"(PLAIN_STAGES - 2) : "memory");
}

static __device__ __forceinline__ void plain_load(unsigned from, unsigned *r)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

static __device__ __forceinline__ void plain_load_transposed(unsigned from, unsigned *r)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

static __device__ __forceinline__ void plain_mma(float *c, const unsigned *a, unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ unsigned plain_pair(float low, float high)
{
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

static __device__ __forceinline__ float plain_exp2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

static __device__ __forceinline__ float plain_max_quad(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

static __device__ __forceinline__ float plain_sum_quad(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
)

/* Rows of 2 * D bytes; 16-byte chunk c of row r lies at c ^ (r & 7), so that eight rows of one chunk are in eight
   places. from: where the K rows of the tile start; V is 128 * D bytes behind. */
PLAIN_CU(plain_tiles,
static __device__ __forceinline__ void plain_fetch(unsigned stage, const unsigned char *from, int lane)
{
    PLAIN_UNROLL
    for (int i = 0; i < PLAIN_D / 16; i++) {
        int chunk = 32 * i + lane;
        int row = chunk / (PLAIN_D / 8);
        int column = chunk % (PLAIN_D / 8);
        unsigned to = stage + row * 2 * PLAIN_D + 16 * (column ^ (row & 7));
        plain_copy16(to, from + 16 * chunk);
        plain_copy16(to + 32 * PLAIN_D, from + 128 * PLAIN_D + 16 * chunk);
    }
}

/* score: 16 heads x 16 tokens, as two tiles of C */
static __device__ __forceinline__ void plain_scores(unsigned stage, const unsigned (*q)[4], float (*score)[4], int lane)
{
    int row = (lane & 7) + 8 * (lane >> 4);
    unsigned from = stage + row * 2 * PLAIN_D;
    PLAIN_UNROLL
    for (int i = 0; i < 8; i++) score[i >> 2][i & 3] = 0.0f;
    PLAIN_UNROLL
    for (int i = 0; i < PLAIN_D / 16; i++) {
        unsigned k[4];
        plain_load(from + 16 * ((2 * i + ((lane >> 3) & 1)) ^ (row & 7)), k);
        plain_mma(score[0], q[i], k[0], k[1]);
        plain_mma(score[1], q[i], k[2], k[3]);
    }
}

static __device__ __forceinline__ void plain_values(unsigned stage, const unsigned *p, float (*o)[4], int lane)
{
    int row = lane & 15;
    unsigned from = stage + 32 * PLAIN_D + row * 2 * PLAIN_D;
    PLAIN_UNROLL
    for (int i = 0; i < PLAIN_D / 16; i++) {
        unsigned v[4];
        plain_load_transposed(from + 16 * ((2 * i + (lane >> 4)) ^ (row & 7)), v);
        plain_mma(o[2 * i], p, v[0], v[1]);
        plain_mma(o[2 * i + 1], p, v[2], v[3]);
    }
}

/* A new maximum of a row: rare once some tokens were seen. row: 0, or 1 for heads 8 and on. */
static __device__ __forceinline__ void plain_rise(float *top, float *sum, float (*o)[4], int row, float new_top,
                                                  float unit)
{
    float factor = plain_exp2((*top - new_top) * unit);
    *top = new_top;
    *sum *= factor;
    PLAIN_UNROLL
    for (int i = 0; i < PLAIN_D / 8; i++) {
        o[i][2 * row] *= factor;
        o[i][2 * row + 1] *= factor;
    }
}

/* Scores become weights, p, the A operand of the product with V. unit: scale times log2 e. */
static __device__ __forceinline__ void plain_softmax(float (*score)[4], float *top, float *sum, float (*o)[4],
                                                     unsigned *p, float unit)
{
    PLAIN_UNROLL
    for (int row = 0; row < (PLAIN_GROUP > 8 ? 2 : 1); row++) {
        float *a = score[0] + 2 * row;
        float *b = score[1] + 2 * row;
        float most = plain_max_quad(fmaxf(fmaxf(a[0], a[1]), fmaxf(b[0], b[1])));
        float base;
        if (__any_sync(0xffffffffu, most > top[row]))
            plain_rise(top + row, sum + row, o, row, fmaxf(most, top[row]), unit);
        base = top[row] * unit;
        a[0] = plain_exp2(a[0] * unit - base);
        a[1] = plain_exp2(a[1] * unit - base);
        b[0] = plain_exp2(b[0] * unit - base);
        b[1] = plain_exp2(b[1] * unit - base);
        sum[row] += (a[0] + a[1]) + (b[0] + b[1]);
        p[row] = plain_pair(a[0], a[1]);
        p[row + 2] = plain_pair(b[0], b[1]);
    }
}
)

/* The end of a block: its warps' sums are joined in shared memory, which the tiles no longer need. */
PLAIN_CU(plain_ends,
static __device__ __forceinline__ void plain_query(const unsigned short *q, unsigned (*fragment)[4], int lane)
{
    int row = lane >> 2;
    PLAIN_UNROLL
    for (int i = 0; i < PLAIN_D / 16; i++) {
        PLAIN_UNROLL
        for (int j = 0; j < 4; j++) {
            int head = row + 8 * (j & 1);
            int word = 8 * i + 4 * (j >> 1) + (lane & 3);
            fragment[i][j] = 0;
            if (8 * (j & 1) < PLAIN_GROUP && head < PLAIN_GROUP)
                fragment[i][j] = ((const unsigned *)(q + head * PLAIN_D))[word];
        }
    }
}

static __device__ __forceinline__ void plain_leave(float *shared, const float *top, const float *sum, float (*o)[4],
                                                   int warp, int lane)
{
    float *tops = shared + PLAIN_WARPS * PLAIN_GROUP * PLAIN_D;
    PLAIN_UNROLL
    for (int row = 0; row < (PLAIN_GROUP > 8 ? 2 : 1); row++) {
        int head = (lane >> 2) + 8 * row;
        float total = plain_sum_quad(sum[row]);
        float *to = shared + (warp * PLAIN_GROUP + head) * PLAIN_D + 2 * (lane & 3);
        if (head >= PLAIN_GROUP) continue;
        if ((lane & 3) == 0) {
            tops[warp * PLAIN_GROUP + head] = top[row];
            tops[(PLAIN_WARPS + warp) * PLAIN_GROUP + head] = total;
        }
        PLAIN_UNROLL
        for (int i = 0; i < PLAIN_D / 8; i++) {
            to[8 * i] = o[i][2 * row];
            to[8 * i + 1] = o[i][2 * row + 1];
        }
    }
}

static __device__ __forceinline__ void plain_join(const float *shared, int head, int channel, float unit, float *value,
                                                  float *lse)
{
    const float *tops = shared + PLAIN_WARPS * PLAIN_GROUP * PLAIN_D;
    float top = tops[head];
    float sum = 0.0f;
    *value = 0.0f;
    for (int i = 1; i < PLAIN_WARPS; i++) top = fmaxf(top, tops[i * PLAIN_GROUP + head]);
    for (int i = 0; i < PLAIN_WARPS; i++) {
        float factor = plain_exp2((tops[i * PLAIN_GROUP + head] - top) * unit);
        sum += factor * tops[(PLAIN_WARPS + i) * PLAIN_GROUP + head];
        *value += factor * shared[(i * PLAIN_GROUP + head) * PLAIN_D + channel];
    }
    *value = sum > 0.0f ? *value / sum : 0.0f;
    *lse = sum > 0.0f ? top * unit + log2f(sum) : -1e30f;
}
)

PLAIN_CU(plain_loop,
/* What a warp works on: tiles of 16 tokens of a table's pages from `first` on. ids: lane l has that of page l of each
   32. tokens, pages: of the sequence. */
typedef struct plain_task {
    const unsigned *table;
    const unsigned char *pool;
    int first; int pages; int tokens; int warp; int lane;
    unsigned stages; unsigned ids;
} plain_task;

/* Starts the copies of tile i. */
static __device__ __forceinline__ void plain_start(plain_task *t, int i)
{
    int page = i / (4 / PLAIN_WARPS);
    int tile = t->warp + PLAIN_WARPS * (i % (4 / PLAIN_WARPS));
    int mine = t->first + (page & ~31) + t->lane;
    unsigned id;
    if (i % (32 * (4 / PLAIN_WARPS)) == 0) t->ids = mine < t->pages ? t->table[mine] : 0;
    id = __shfl_sync(0xffffffffu, t->ids, page & 31);
    plain_fetch(t->stages + i % PLAIN_STAGES * 64 * PLAIN_D,
                t->pool + (size_t)id * PLAIN_KV_HEADS * 256 * PLAIN_D + tile * 32 * PLAIN_D, t->lane);
}

/* Takes tile i, which is in shared memory, into the sums of the warp. */
static __device__ __forceinline__ void plain_take(const plain_task *t, int i, const unsigned (*q)[4], float (*sums)[4],
                                                  float *top, float *sum, float unit)
{
    float score[2][4];
    unsigned p[4] = { 0, 0, 0, 0 };
    unsigned stage = t->stages + i % PLAIN_STAGES * 64 * PLAIN_D;
    int page = t->first + i / (4 / PLAIN_WARPS);
    int token = 64 * page + 16 * (t->warp + PLAIN_WARPS * (i % (4 / PLAIN_WARPS)));
    plain_scores(stage, q, score, t->lane);
    if (token + 16 > t->tokens) {
        PLAIN_UNROLL
        for (int j = 0; j < 8; j++) {
            int column = token + 8 * (j >> 2) + 2 * (t->lane & 3) + (j & 1);
            if (column >= t->tokens) score[j >> 2][j & 3] = __int_as_float(0xff800000);
        }
    }
    plain_softmax(score, top, sum, sums, p, unit);
    plain_values(stage, p, sums, t->lane);
}
)

PLAIN_CU(plain_decode_text,
extern "C" __global__ void __launch_bounds__(32 * PLAIN_WARPS, PLAIN_BLOCKS)
plain_decode(const unsigned *tables, const int *lengths, int table_stride, const unsigned char *pool,
             const unsigned short *q, float unit, float *part_o, float *part_lse, float *o)
{
    extern __shared__ __align__(128) unsigned char plain_memory[];
    size_t row = ((size_t)blockIdx.z * PLAIN_KV_HEADS + blockIdx.y) * PLAIN_GROUP;
    unsigned fragment[PLAIN_D / 16][4];
    float sums[PLAIN_D / 8][4];
    float top[2] = { -1e30f, -1e30f };
    float sum[2] = { 0.0f, 0.0f };
    plain_task t;
    int count;
    t.lane = threadIdx.x & 31;
    t.warp = threadIdx.x >> 5;
    t.table = tables + (size_t)blockIdx.z * table_stride;
    t.pool = pool + (size_t)blockIdx.y * 256 * PLAIN_D;
    t.tokens = lengths[blockIdx.z];
    t.pages = (t.tokens + 63) / 64;
    t.first = (int)((long long)t.pages * blockIdx.x / gridDim.x);
    t.stages = plain_shared_at(plain_memory) + t.warp * PLAIN_STAGES * 64 * PLAIN_D;
    t.ids = 0;
    count = ((int)((long long)t.pages * (blockIdx.x + 1) / gridDim.x) - t.first) * (4 / PLAIN_WARPS);
    plain_query(q + row * PLAIN_D, fragment, t.lane);
    PLAIN_UNROLL
    for (int i = 0; i < PLAIN_D / 2; i++) sums[i >> 2][i & 3] = 0.0f;
    PLAIN_NO_UNROLL
    for (int i = 1 - PLAIN_STAGES; i < count; i++) {
        if (i >= 0) plain_wait();
        __syncwarp();
        if (i + PLAIN_STAGES - 1 < count) plain_start(&t, i + PLAIN_STAGES - 1);
        plain_commit();
        if (i >= 0) plain_take(&t, i, fragment, sums, top, sum, unit);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    plain_leave((float *)plain_memory, top, sum, sums, t.warp, t.lane);
    __syncthreads();
    for (int i = threadIdx.x; i < PLAIN_GROUP * PLAIN_D; i += 32 * PLAIN_WARPS) {
        size_t part = (row + i / PLAIN_D) * gridDim.x + blockIdx.x;
        float value;
        float lse;
        plain_join((const float *)plain_memory, i / PLAIN_D, i % PLAIN_D, unit, &value, &lse);
        if (gridDim.x == 1) o[row * PLAIN_D + i] = value;
        else part_o[part * PLAIN_D + i % PLAIN_D] = value;
        if (gridDim.x > 1 && i % PLAIN_D == 0) part_lse[part] = lse;
    }
}
)

PLAIN_CU(plain_merge_text,
extern "C" __global__ void __launch_bounds__(PLAIN_D)
plain_merge(const float *part_o, const float *part_lse, int splits, float *o)
{
    size_t row = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    const float *lse = part_lse + row * splits;
    const float *value = part_o + row * splits * PLAIN_D + threadIdx.x;
    float top = lse[0];
    float sum = 0.0f;
    float total = 0.0f;
    for (int i = 1; i < splits; i++) top = fmaxf(top, lse[i]);
    for (int i = 0; i < splits; i++) {
        float weight = plain_exp2(lse[i] - top);
        sum += weight;
        total += weight * value[(size_t)i * PLAIN_D];
    }
    o[row * PLAIN_D + threadIdx.x] = total / sum;
}

/* Eight loads of a thread are under way at a time. The store never happens: words of the pools are not all ones. */
extern "C" __global__ void __launch_bounds__(256)
plain_read(const uint4 *words, long long count, unsigned *out)
{
    long long step = (long long)gridDim.x * 256;
    unsigned all = 0xffffffffu;
    for (long long at = (long long)blockIdx.x * 256 + threadIdx.x; at < count; at += 8 * step) {
        uint4 w[8];
        PLAIN_UNROLL
        for (int i = 0; i < 8; i++) {
            long long index = at + i * step;
            w[i] = words[index < count ? index : at];
        }
        PLAIN_UNROLL
        for (int i = 0; i < 8; i++) all &= w[i].x & w[i].y & w[i].z & w[i].w;
    }
    if (all == 0xffffffffu) *out = all;
}
)

/* In the order of the text; the constants stand before them. */
static const char *const plain_text[] = {
    "#define PLAIN_UNROLL _Pragma(\"unroll\")\n#define PLAIN_NO_UNROLL _Pragma(\"unroll 1\")\n",
    plain_words, plain_tiles, plain_ends, plain_loop, plain_decode_text, plain_merge_text
};

#endif
