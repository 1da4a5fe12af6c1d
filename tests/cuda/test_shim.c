/* test_shim.c - the shim's own checks, each seen to fail and to pass, and the kernels of sample.h on the CPU.

       test_shim                 everything; under -fsanitize=thread only a few blocks
       test_shim race            a missing barrier: only ThreadSanitizer sees it (cuda.sh expects the report)
       test_shim global_race     a counter of two blocks without atomics
       test_shim overrun         a read past a shared array: AddressSanitizer
       test_shim unwritten       a branch on shared memory that was never written: MemorySanitizer */
#include "tests/cuda/shim.h"
#include "tests/test.h"
#include "sample_text.h"
#include "tests/cuda/sample_test.h"

/* -- kernels with one fault each, switched on by an argument -- */

OSCAR_KERNEL(64, 1) divergent_barrier(int fault)
{
    if (fault && threadIdx.x < 32) __syncthreads();
    else __syncthreads();
}

OSCAR_KERNEL(64, 1) barrier_after_return(int fault)
{
    if (fault && threadIdx.x == 40) return;
    __syncthreads();
}

OSCAR_KERNEL(64, 1) lane_outside_mask(int fault, unsigned *out)
{
    unsigned mask = fault && threadIdx.x == 3 ? 0xfffffff0u : 0xffffffffu;
    out[blockIdx.x * 64 + threadIdx.x] = __ballot_sync(mask, threadIdx.x & 1);
}

OSCAR_KERNEL(64, 1) masks_differ(int fault, unsigned *out)
{
    unsigned lane = threadIdx.x & 31;
    unsigned mask = fault && lane >= 30 ? 0xc0000000u : 0xffffffffu;
    if (fault && lane == 31) mask = 0xffffffffu;
    out[blockIdx.x * 64 + threadIdx.x] = __ballot_sync(mask, lane < 4);
}

OSCAR_KERNEL(64, 1) divergent_shuffle(int fault, unsigned *out)
{
    unsigned v = threadIdx.x;
    if (fault && v % 2) v = __shfl_xor_sync(0xffffffffu, v, 1);
    else v = __shfl_xor_sync(0xffffffffu, v, 1);
    out[blockIdx.x * 64 + threadIdx.x] = v;
}

OSCAR_KERNEL(64, 1) shuffle_outside_mask(int fault, unsigned *out)
{
    unsigned v = threadIdx.x;
    if ((v & 31) >= 16) return;
    out[blockIdx.x * 64 + threadIdx.x] = __shfl_xor_sync(0x0000ffffu, v, fault ? 16 : 8);
}

OSCAR_KERNEL(64, 1) missing_lane(int fault, unsigned *out)
{
    if (fault && threadIdx.x == 5) return;
    out[blockIdx.x * 64 + threadIdx.x] = __ballot_sync(0xffffffffu, 1);
}

OSCAR_KERNEL(64, 1) copy_without_wait(int fault, const unsigned *in, unsigned *out)
{
    OSCAR_SHARED(unsigned, room, 64 * 4);
    oscar__cu_copy16(oscar__cu_shared_at(room + threadIdx.x * 4), in + threadIdx.x * 4);
    oscar__cu_copy_commit();
    if (!fault) oscar__cu_copy_wait(0);
    out[blockIdx.x * 64 + threadIdx.x] = room[threadIdx.x * 4];
}

OSCAR_KERNEL(64, 1) copy_waits_for_too_little(int fault, const unsigned *in, unsigned *out)
{
    OSCAR_SHARED(unsigned, room, 64 * 4);
    oscar__cu_copy16(oscar__cu_shared_at(room + threadIdx.x * 4), in + threadIdx.x * 4);
    oscar__cu_copy_commit();
    oscar__cu_copy_wait(fault ? 1 : 0);
    out[blockIdx.x * 64 + threadIdx.x] = room[threadIdx.x * 4];
    oscar__cu_copy_wait(0);
}

OSCAR_KERNEL(64, 1) copy_off_boundary(int fault, const unsigned *in, unsigned *out)
{
    OSCAR_SHARED(unsigned, room, 64 * 4 + 4);
    oscar__cu_copy16(oscar__cu_shared_at(room + threadIdx.x * 4) + (fault ? 4 : 0), in + threadIdx.x * 4);
    oscar__cu_copy_wait(-1);
    out[blockIdx.x * 64 + threadIdx.x] = 0;
}

OSCAR_KERNEL(64, 1) load_off_boundary(int fault, const unsigned *in, unsigned *out)
{
    uint4 v = oscar__cu_reload16(in + threadIdx.x * 4 + (fault ? 1 : 0));
    out[blockIdx.x * 64 + threadIdx.x] = v.x;
}

#if !defined(SHIM_ASAN) && !defined(SHIM_TSAN) && !defined(SHIM_MSAN)
OSCAR_KERNEL(64, 1) write_past_end(int fault, unsigned *out)
{
    OSCAR_SHARED(unsigned, room, 64);
    room[threadIdx.x + (fault ? 1 : 0)] = 1;
    out[blockIdx.x * 64 + threadIdx.x] = 0;
}
#endif

OSCAR_KERNEL(64, 1) no_dynamic_memory(int fault)
{
    OSCAR_DYNAMIC(unsigned, room);
    room[threadIdx.x] = (unsigned)fault;
}

OSCAR_KERNEL(64, 1) too_much_static(int fault)
{
    OSCAR_SHARED(unsigned char, room, fault ? 49153 : 49152);
    room[threadIdx.x] = 1;
}

/* -- the same faults through void **params -- */

static unsigned fault_in[64 * 4 + 4] __attribute__((aligned(16))), fault_out[128];

#define FAULT(p) (*(int *)(p)[0])
static void thunk_divergent_barrier(void **p) { divergent_barrier(FAULT(p)); }
static void thunk_barrier_after_return(void **p) { barrier_after_return(FAULT(p)); }
static void thunk_lane_outside_mask(void **p) { lane_outside_mask(FAULT(p), fault_out); }
static void thunk_masks_differ(void **p) { masks_differ(FAULT(p), fault_out); }
static void thunk_divergent_shuffle(void **p) { divergent_shuffle(FAULT(p), fault_out); }
static void thunk_shuffle_outside_mask(void **p) { shuffle_outside_mask(FAULT(p), fault_out); }
static void thunk_missing_lane(void **p) { missing_lane(FAULT(p), fault_out); }
#if !defined(SHIM_MSAN)   /* the sanitizer stops at the use of what has not come */
static void thunk_copy_without_wait(void **p) { copy_without_wait(FAULT(p), fault_in, fault_out); }
static void thunk_copy_too_little(void **p) { copy_waits_for_too_little(FAULT(p), fault_in, fault_out); }
#endif
static void thunk_copy_off_boundary(void **p) { copy_off_boundary(FAULT(p), fault_in, fault_out); }
static void thunk_load_off_boundary(void **p) { load_off_boundary(FAULT(p), fault_in, fault_out); }
static void thunk_no_dynamic_memory(void **p) { no_dynamic_memory(FAULT(p)); }
static void thunk_too_much_static(void **p) { too_much_static(FAULT(p)); }

/* Runs the kernel without its fault, which must pass, and with it, which must be reported with `words`. */
static void check_fault(const char *name, shim_kernel kernel, size_t dynamic, size_t dynamic_of_fault,
                        const char *words)
{
    int fault;
    for (fault = 0; fault <= 1; fault++) {
        unsigned order;
        for (order = 0; order < 3; order++) {
            void *params[1];
            int result;
            params[0] = &fault;
            shim_order = order == 2 ? 77 : order;
            result = shim_launch(kernel, shim_size(2, 1, 1), shim_size(64, 1, 1), fault ? dynamic_of_fault : dynamic,
                                 params);
            CHECK_MSG(result == -fault, ("    %s, fault %d, order %u: %s\n", name, fault, order, shim_error));
            if (fault) CHECK_MSG(strstr(shim_error, words), ("    %s: %s\n", name, shim_error));
        }
    }
    shim_order = 0;
}

static void test_faults(void)
{
    TEST("the shim reports barriers, masks, deadlocks");
    check_fault("divergent barrier", thunk_divergent_barrier, 0, 0, "different barriers");
    check_fault("barrier after return", thunk_barrier_after_return, 0, 0, "have returned");
    check_fault("lane outside its mask", thunk_lane_outside_mask, 0, 0, "mask");
    check_fault("masks differ", thunk_masks_differ, 0, 0, "mask");
    check_fault("divergent shuffle", thunk_divergent_shuffle, 0, 0, "different *_sync calls");
    check_fault("shuffle from outside", thunk_shuffle_outside_mask, 0, 0, "outside the mask");
    check_fault("missing lane", thunk_missing_lane, 0, 0, "deadlock");
    TEST("the shim reports copies and shared memory");
#if !defined(SHIM_MSAN)
    check_fault("copy without wait", thunk_copy_without_wait, 0, 0, "never waited for");
#endif
    check_fault("copy off its boundary", thunk_copy_off_boundary, 0, 0, "not aligned");
    check_fault("load off its boundary", thunk_load_off_boundary, 0, 0, "not aligned");
    check_fault("no dynamic memory", thunk_no_dynamic_memory, 256, 0, "0 bytes");
    check_fault("too much static memory", thunk_too_much_static, 0, 0, "48 KB");
}

#if !defined(SHIM_ASAN) && !defined(SHIM_TSAN) && !defined(SHIM_MSAN)
static void thunk_write_past_end(void **p) { write_past_end(FAULT(p), fault_out); }
#endif

#if !defined(SHIM_MSAN)
static void test_late_copies(void)
{
    int fault, wrong[2] = {0, 0}, i;
    void *params[1];
    TEST("a copy's bytes come with its wait, not before");
    params[0] = &fault;
    for (i = 0; i < 64 * 4; i++) fault_in[i] = (unsigned)i;
    for (fault = 0; fault <= 1; fault++) {
        CHECK(!shim_launch(thunk_copy_too_little, shim_size(1, 1, 1), shim_size(64, 1, 1), 0, params));
        for (i = 0; i < 64; i++) wrong[fault] += fault_out[i] != (unsigned)(i * 4);
    }
    CHECK(wrong[0] == 0 && wrong[1] == 64);
#if !defined(SHIM_ASAN) && !defined(SHIM_TSAN) && !defined(SHIM_MSAN)
    TEST("a write past a shared array is found at the end of the block");
    check_fault("write past the end", thunk_write_past_end, 0, 0, "past the end");
#endif
}
#endif

static void test_sizes(void)
{
    int fault = 0, i;
    void *params[1];
    static const unsigned bad[] = {0, 31, 33, 1056};
    TEST("sizes of blocks: whole warps, at most 1024 threads");
    params[0] = &fault;
    for (i = 0; i < 4; i++)
        CHECK(shim_launch(thunk_divergent_barrier, shim_size(1, 1, 1), shim_size(bad[i], 1, 1), 0, params) == -1);
    CHECK(shim_launch(thunk_divergent_barrier, shim_size(0, 1, 1), shim_size(32, 1, 1), 0, params) == -1);
    CHECK(!shim_launch(thunk_divergent_barrier, shim_size(1, 1, 1), shim_size(1024, 1, 1), 0, params));
    CHECK(!shim_launch(thunk_divergent_barrier, shim_size(1, 1, 1), shim_size(8, 4, 2), 0, params));
    CHECK(shim_launch(thunk_divergent_barrier, shim_size(1, 1, 1), shim_size(32, 1, 1), 1 << 20, params) == -1);
}

/* -- atomics, and the three coordinates -- */

OSCAR_KERNEL(64, 1) atomics(unsigned *words)
{
    unsigned me = blockIdx.y * 64 + threadIdx.y * 32 + threadIdx.x, old = words[4];
    atomicAdd(&words[0], me);
    atomicMax(&words[1], me * 7 % 64);
    atomicOr(&words[2], 1u << (me & 31));
    for (;;) {
        unsigned seen = atomicCAS(&words[3], old, old + 2);
        if (seen == old) break;
        old = seen;
    }
}

static void thunk_atomics(void **p) { atomics(*(unsigned **)p[0]); }

static void test_atomics(void)
{
    unsigned words[5] = {0, 0, 0, 0, 0}, *at = words;
    void *params[1];
    TEST("atomics return what was there, and lose nothing");
    params[0] = &at;
    for (shim_order = 0; shim_order < 3; shim_order++) {
        memset(words, 0, sizeof words);
        CHECK(!shim_launch(thunk_atomics, shim_size(1, 2, 1), shim_size(32, 2, 1), 0, params));
        CHECK(words[0] == 127 * 128 / 2);
        CHECK(words[1] == 63);
        CHECK(words[2] == 0xffffffffu);
        CHECK(words[3] == 256);
    }
    shim_order = 0;
}

/* Any half to float and back, and the neighbours of each: nearest, ties to even. */
static void test_halves(void)
{
    unsigned h;
    int wrong = 0;
    TEST("half precision: all numbers, and the ties between them");
    for (h = 0; h < 0x10000; h++) {
        float f = oscar__cu_half_to_float((unsigned short)h), g = oscar__cu_half_to_float((unsigned short)(h + 1));
        if (f != f) {
            wrong += oscar__cu_float_to_half(f) != 0x7fff;
            continue;
        }
        wrong += oscar__cu_float_to_half(f) != h;
        if ((h & 0x7fff) >= 0x7bff) continue;
        wrong += oscar__cu_float_to_half((f + g) / 2) != (h & 1 ? h + 1 : h);
        wrong += oscar__cu_float_to_half(nextafterf((f + g) / 2, g)) != h + 1;
        wrong += oscar__cu_float_to_half(nextafterf((f + g) / 2, f)) != h;
    }
    CHECK_MSG(wrong == 0, ("    %d wrong\n", wrong));
    CHECK(oscar__cu_float_to_half(65519.996f) == 0x7bff && oscar__cu_float_to_half(65520.0f) == 0x7c00);
}

/* -- products of floats of 16 bits: small integers, so that all sums are exact -- */

OSCAR_KERNEL(32, 1) products(const unsigned *a, const unsigned *b, float *out, int bf16)
{
    OSCAR_SHARED(unsigned, room, 128);
    unsigned lane = threadIdx.x, g = lane / 4, q = lane % 4, i, f[4];
    float c[4] = {1, 2, 3, 4};
    oscar__cu_address at = oscar__cu_shared_at(room);
    for (i = 0; i < 4; i++) room[lane + 32 * i] = a[lane + 32 * i];   /* rows of 16 values, 8 words */
    __syncwarp();
    for (i = 0; i < 4; i++) f[i] = oscar__cu_load4(at + 4 * ((g + i % 2 * 8) * 8 + i / 2 * 4 + q));
    if (bf16) oscar__cu_mma_bf16(c, f, b[g * 8 + q], b[g * 8 + 4 + q]);
    else oscar__cu_mma_f16(c, f, b[g * 8 + q], b[g * 8 + 4 + q]);
    for (i = 0; i < 4; i++) out[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = c[i];
}

static void thunk_products(void **p)
{
    products(*(const unsigned **)p[0], *(const unsigned **)p[1], *(float **)p[2], *(int *)p[3]);
}

static unsigned short small_float(int v, int bf16)
{
    return bf16 ? (unsigned short)(__float_as_uint((float)v) >> 16) : oscar__cu_float_to_half((float)v);
}

static void test_products(void)
{
    unsigned short a[256] __attribute__((aligned(4))), b[128] __attribute__((aligned(4)));
    const void *pa = a, *pb = b;
    float out[128], *pout = out;
    int va[256], vb[128], bf16, i, k, wrong = 0;
    test_random random = {21};
    void *params[4];
    TEST("products of floats of 16 bits");
    params[0] = (void *)&pa;
    params[1] = (void *)&pb;
    params[2] = &pout;
    params[3] = &bf16;
    for (bf16 = 0; bf16 <= 1; bf16++) {
        for (i = 0; i < 256; i++) a[i] = small_float(va[i] = random_below(&random, 101) - 50, bf16);
        for (i = 0; i < 128; i++) b[i] = small_float(vb[i] = random_below(&random, 101) - 50, bf16);
        CHECK(!shim_launch(thunk_products, shim_size(1, 1, 1), shim_size(32, 1, 1), 0, params));
        for (i = 0; i < 128; i++) {
            int want = 1 + i % 2 + i / 64 * 2;
            for (k = 0; k < 16; k++) want += va[i / 8 * 16 + k] * vb[i % 8 * 16 + k];
            wrong += out[i] != (float)want;
        }
    }
    CHECK_MSG(wrong == 0, ("    %d sums differ\n", wrong));
}

/* -- the sample kernels -- */

static void launch_in_shim(const char *name, const unsigned grid[3], const unsigned block[3], size_t dynamic,
                           void **params)
{
    shim_kernel kernel = sample_thunk(name);
    int result = -1;
    if (kernel)
        result = shim_launch(kernel, shim_size(grid[0], grid[1], grid[2]), shim_size(block[0], block[1], block[2]),
                             dynamic, params);
    CHECK_MSG(result == 0, ("    %s: %s\n", name, shim_error));
}

static void test_samples(void)
{
    static const unsigned orders[] = {0, 1, 5, 1234};
    unsigned i, count = sizeof orders / sizeof orders[0];
#if defined(SHIM_TSAN)
    count = 2;
#endif
    for (i = 0; i < count; i++) {
        shim_order = orders[i];
        sample_check(launch_in_shim, "shim");
    }
    shim_order = 0;
}

/* -- faults that only a sanitizer sees -- */

OSCAR_KERNEL(64, 1) race(unsigned *out)
{
    OSCAR_SHARED(unsigned, room, 64);
    room[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = room[threadIdx.x ^ 32];
}

OSCAR_KERNEL(64, 1) global_race(unsigned *out)
{
    if (threadIdx.x == 0) out[0] = out[0] + 1;
}

OSCAR_KERNEL(64, 1) overrun(unsigned *out)
{
    OSCAR_SHARED(unsigned, room, 64);
    room[threadIdx.x] = 1;
    out[threadIdx.x] = room[threadIdx.x + 1];
}

OSCAR_KERNEL(64, 1) unwritten(unsigned *out)
{
    OSCAR_SHARED(unsigned, room, 64);
    if (threadIdx.x < 63) room[threadIdx.x] = 1;
    __syncthreads();
    if (room[63 - threadIdx.x] == 7) out[threadIdx.x] = 1;
}

static void thunk_race(void **p) { race(*(unsigned **)p[0]); }
static void thunk_global_race(void **p) { global_race(*(unsigned **)p[0]); }
static void thunk_overrun(void **p) { overrun(*(unsigned **)p[0]); }
static void thunk_unwritten(void **p) { unwritten(*(unsigned **)p[0]); }

static int run_alone(const char *name)
{
    shim_kernel kernel = !strcmp(name, "race") ? thunk_race : !strcmp(name, "global_race") ? thunk_global_race :
        !strcmp(name, "overrun") ? thunk_overrun : !strcmp(name, "unwritten") ? thunk_unwritten : NULL;
    unsigned *at = fault_out;
    void *params[1];
    if (!kernel) return 2;
    params[0] = &at;
    if (shim_launch(kernel, shim_size(2, 1, 1), shim_size(64, 1, 1), 0, params)) puts(shim_error);
    return 0;
}

int main(int count, char **arguments)
{
    if (count > 1) return run_alone(arguments[1]);
    test_faults();
#if !defined(SHIM_MSAN)
    test_late_copies();
#endif
    test_sizes();
    test_atomics();
    test_halves();
    test_products();
    test_samples();
    return test_end("test_shim");
}
