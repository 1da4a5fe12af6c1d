/* shim.h - runs kernel text on the CPU: each CUDA thread is a fiber, a block's threads take turns.

       #include "tests/cuda/shim.h"
       ... the kernel text, as C99 ...
       static void thunk(void **p) { oscar_cu_x(*(float **)p[0], *(int *)p[1]); }
       if (shim_launch(thunk, shim_size(4, 2, 1), shim_size(128, 1, 1), bytes, params)) puts(shim_error);

   shim_launch returns 0, or -1 with a sentence in shim_error. shim_order says who runs first: 0 thread 0, 1 the last
   thread, another number seeds a random order. Always checked: threads of a block at different barriers, a barrier
   after some have returned, the mask of a *_sync and who arrives at it, shuffles from outside the mask, a deadlock,
   cp.async without a wait, a write past a shared array (found at the end of the block). Shared memory starts as NaN
   (0xff), and so does the destination of a cp.async until its wait.

   -fsanitize=address,undefined   finds each access outside global and shared memory, and undefined behaviour
   -fsanitize=memory (clang)      finds decisions on shared memory that was never written
   -fsanitize=thread              finds races: each CUDA thread is a fiber of the sanitizer; only __syncthreads,
                                  __syncwarp, atomics, __threadfence and the end of a launch order memory. Shuffles
                                  do not, as on a GPU. Keep such tests at a few tens of blocks.

   Names of the prelude that have a twin here; the types are those of the twins:
       OSCAR_DEVICE, OSCAR_KERNEL(threads, blocks), OSCAR_SHARED(T, name, n), OSCAR_DYNAMIC(T, name), OSCAR_UNROLL,
       OSCAR_NO_UNROLL
       oscar__cu_address                                            an address in shared memory (unsigned on a device)
       oscar__cu_address oscar__cu_shared_at(const void *p)         p + n of it is n bytes further
       uint4 oscar__cu_load16(oscar__cu_address a)                  16 bytes of shared memory; _load8: uint2, _load4:
                                                                   unsigned
       void oscar__cu_store16(oscar__cu_address a, uint4 v)
       uint4 oscar__cu_reload16(const void *p)                     16 bytes of global memory, loaded again at each use
       void oscar__cu_copy16(oscar__cu_address to, const void *from)   cp.async; oscar__cu_copy_commit() closes a group,
                                                                   oscar__cu_copy_wait(n) leaves n groups in flight
       void oscar__cu_mma_s8u8(unsigned d[4], const unsigned a[4], unsigned b0, unsigned b1, const unsigned c[4])
       void oscar__cu_mma_u8u8(the same)                           m16n8k32: A row, B column, sums of 32 bits
       void oscar__cu_mma_f16(float c[4], const unsigned a[4], unsigned b0, unsigned b1)   m16n8k16, C in place
       void oscar__cu_mma_bf16(the same)
       float oscar__cu_exp2(float), oscar__cu_log2(float)          .approx.ftz
       float oscar__cu_half_to_float(unsigned short); unsigned short oscar__cu_float_to_half(float)
       unsigned oscar__cu_max_warp(unsigned)                       the largest of a warp, in every lane
       unsigned oscar__cu_permute(unsigned a, unsigned b, unsigned selector)   prmt
       unsigned oscar__cu_again(int what)                          threadIdx.x, blockIdx.y or blockIdx.z, read again
   and of CUDA's own: threadIdx, blockIdx, blockDim, gridDim, __syncthreads, __syncwarp, __shfl_sync, __shfl_xor_sync,
   __shfl_up_sync, __shfl_down_sync, __ballot_sync, __any_sync, __all_sync, __popc, __ffs, __clz, __ldg,
   __uint_as_float, __float_as_uint, __int_as_float, __float_as_int, __fadd_rn, __fsub_rn, __fmul_rn, __fdiv_rn,
   __fsqrt_rn, __fmaf_rn, atomicAdd, atomicMax, atomicOr, atomicCAS (on unsigned), __threadfence. */
#ifndef OSCAR_TEST_SHIM_H
#define OSCAR_TEST_SHIM_H

#ifndef _GNU_SOURCE
#  define _GNU_SOURCE 1   /* MAP_ANONYMOUS, under -std=c99 too */
#endif
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* -- compilers and sanitizers -- */

#if defined(__SANITIZE_ADDRESS__)
#  define SHIM_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#  define SHIM_TSAN 1
#elif defined(__has_feature)
#  if __has_feature(address_sanitizer)
#    define SHIM_ASAN 1
#  elif __has_feature(thread_sanitizer)
#    define SHIM_TSAN 1
#  elif __has_feature(memory_sanitizer)
#    define SHIM_MSAN 1
#  endif
#endif
#if defined(SHIM_ASAN)
#  include <sanitizer/asan_interface.h>
#  include <sanitizer/common_interface_defs.h>
#elif defined(SHIM_TSAN)
#  include <sanitizer/tsan_interface.h>
#elif defined(SHIM_MSAN)
#  include <sanitizer/msan_interface.h>
#endif

/* SHIM_RAW: part of the machine, which no sanitizer may watch. SHIM_WATCHED: an access of the kernel's, done here. */
#if defined(__clang__) && defined(SHIM_TSAN)
#  define SHIM_RAW __attribute__((unused, noinline, no_sanitize("thread"), disable_sanitizer_instrumentation))
#elif defined(SHIM_TSAN)
#  define SHIM_RAW __attribute__((unused, noinline, no_sanitize("thread")))
#elif defined(SHIM_MSAN)
#  define SHIM_RAW __attribute__((unused, noinline, no_sanitize("memory")))
#else
#  define SHIM_RAW __attribute__((unused, noinline))
#endif
#define SHIM_WATCHED __attribute__((unused, noinline))
#define SHIM_UNUSED __attribute__((unused))

#if defined(SHIM_TSAN)
#  define SHIM_RELEASE(key) __tsan_release(key)
#  define SHIM_ACQUIRE(key) __tsan_acquire(key)
#else
#  define SHIM_RELEASE(key) ((void)(key))
#  define SHIM_ACQUIRE(key) ((void)(key))
#endif

/* -- state -- */

enum { SHIM_THREADS = 1024, SHIM_STACK = 256 * 1024, SHIM_GUARD = 4096, SHIM_COPIES = 128, SHIM_ARRAYS = 64 };
enum { SHIM_STATIC_LIMIT = 48 * 1024, SHIM_DYNAMIC_LIMIT = 227 * 1024, SHIM_MARGIN = 64, SHIM_MARK = 0xcd };

typedef struct shim_dim { unsigned x, y, z; } shim_dim;
typedef struct shim_site { const char *file; int line; } shim_site;   /* a call in the text: its address counts */
typedef void (*shim_kernel)(void **params);

typedef enum shim_state { SHIM_READY, SHIM_AT_WARP, SHIM_AT_BARRIER, SHIM_DONE } shim_state;

typedef enum shim_what {
    SHIM_SHUFFLE_XOR, SHIM_SHUFFLE_DOWN, SHIM_SHUFFLE_UP, SHIM_SHUFFLE_INDEX, SHIM_BALLOT, SHIM_MAXIMUM,
    SHIM_SYNC_WARP, SHIM_MMA_S8U8, SHIM_MMA_U8U8, SHIM_MMA_F16, SHIM_MMA_BF16
} shim_what;

/* A cp.async on its way. Its bytes arrive at the wait: until then the place holds NaN. */
typedef struct shim_copy { void *to; uint64_t bytes[2]; int group; const shim_site *site; } shim_copy;

#if defined(SHIM_UCONTEXT) || !(defined(__x86_64__) || defined(__aarch64__))
#  include <ucontext.h>
#  define SHIM_SWITCH_UCONTEXT 1
typedef ucontext_t shim_context;
#else
typedef void *shim_context;   /* the stack pointer; the rest lies on the stack */
#endif

typedef struct shim_thread {
    shim_context context;
    char *stack;
    void *fake, *fiber;              /* of the sanitizers */
    shim_dim index;
    unsigned number;
    shim_state state;
    shim_what what;                  /* the operation it waits for, with its mask and arguments */
    const shim_site *site;
    unsigned mask, in[10], out[4];
    int groups, copies;
    shim_copy copy[SHIM_COPIES];
} shim_thread;

typedef struct shim_array { const void *site; unsigned char *at; size_t bytes; } shim_array;

static struct {
    shim_thread thread[SHIM_THREADS], *now;
    unsigned threads, done, at_barrier;
    unsigned waiting[SHIM_THREADS / 32];              /* lanes of each warp at a *_sync */
    shim_dim block, block_size, grid_size;
    shim_context home;
    void *home_fake, *home_fiber;
    const void *home_bottom;
    size_t home_bytes;
    shim_array array[SHIM_ARRAYS];
    int arrays, failed;
    size_t dynamic_bytes, static_bytes;
    shim_kernel kernel;
    void **params;
    uint64_t random;
    char array_key, barrier_key, fence_key, end_key, warp_key[SHIM_THREADS / 32];   /* addresses TSan synchronises on */
} shim;

static unsigned shim_order SHIM_UNUSED = 0;
static char shim_error[512] SHIM_UNUSED;

#define SHIM_SITE __extension__({ static const shim_site shim_here = {__FILE__, __LINE__}; &shim_here; })

SHIM_UNUSED static shim_dim shim_size(unsigned x, unsigned y, unsigned z)
{
    shim_dim size;
    size.x = x;
    size.y = y;
    size.z = z;
    return size;
}

/* -- switching stacks -- */

#if defined(SHIM_SWITCH_UCONTEXT)
SHIM_RAW static void shim_swap(shim_context *save, shim_context *to) { swapcontext(save, to); }
#else
#  if defined(__x86_64__)
__asm__(".text\n"
        ".type shim_swap_stacks,@function\n"
        "shim_swap_stacks:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\n"
        "movq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
        "ret\n"
        ".size shim_swap_stacks,.-shim_swap_stacks\n");
enum { SHIM_SAVED = 6 };   /* words below the address to return to */
#  else
__asm__(".text\n"
        ".type shim_swap_stacks,%function\n"
        "shim_swap_stacks:\n"
        "sub sp,sp,#160\n"
        "stp x19,x20,[sp,#0]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
        "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
        "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
        "mov x9,sp\n"
        "str x9,[x0]\n"
        "mov sp,x1\n"
        "ldp x19,x20,[sp,#0]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
        "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
        "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
        "add sp,sp,#160\n"
        "ret\n"
        ".size shim_swap_stacks,.-shim_swap_stacks\n");
#  endif
#  ifdef __cplusplus
extern "C"
#  endif
void shim_swap_stacks(void **save, void *to);
SHIM_RAW static void shim_swap(shim_context *save, shim_context *to) { shim_swap_stacks(save, *to); }
#endif

/* To the scheduler. Comes back when the scheduler chooses this thread again. */
SHIM_RAW static void shim_leave(void)
{
    shim_thread *me = shim.now;
#if defined(SHIM_ASAN)
    __sanitizer_start_switch_fiber(me->state == SHIM_DONE ? NULL : &me->fake, shim.home_bottom, shim.home_bytes);
#elif defined(SHIM_TSAN)
    __tsan_switch_to_fiber(shim.home_fiber, __tsan_switch_to_fiber_no_sync);
#endif
    shim_swap(&me->context, &shim.home);
#if defined(SHIM_ASAN)
    __sanitizer_finish_switch_fiber(me->fake, NULL, NULL);
#endif
}

SHIM_RAW static void shim_enter(shim_thread *thread)
{
    shim.now = thread;
#if defined(SHIM_ASAN)
    __sanitizer_start_switch_fiber(&shim.home_fake, thread->stack, SHIM_STACK);
#elif defined(SHIM_TSAN)
    __tsan_switch_to_fiber(thread->fiber, __tsan_switch_to_fiber_no_sync);
#endif
    shim_swap(&shim.home, &thread->context);
#if defined(SHIM_ASAN)
    __sanitizer_finish_switch_fiber(shim.home_fake, NULL, NULL);
#endif
    shim.now = NULL;
}

/* The first fault ends the launch: a thread that fails does not come back. */
SHIM_RAW static void shim_fail(const char *what, const shim_site *site)
{
    if (!shim.failed)
        snprintf(shim_error, sizeof shim_error, "%s: %s:%d, block (%u, %u, %u), thread %u", what,
                 site ? site->file : "?", site ? site->line : 0, shim.block.x, shim.block.y, shim.block.z,
                 shim.now ? shim.now->number : 0);
    shim.failed = 1;
    if (!shim.now) return;
    shim.now->state = SHIM_DONE;
    shim_leave();
    abort();
}

/* -- shared memory -- */

/* One array a declaration and block, of exactly its size under a sanitizer. TSan: fresh pages, and allocated as the
   launcher, which has seen no access of a thread; else the next block would race with this one. */
SHIM_RAW static unsigned char *shim_new_array(size_t bytes)
{
    unsigned char *at;
#if defined(SHIM_TSAN)
    void *self = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(shim.home_fiber, __tsan_switch_to_fiber_no_sync);
    at = (unsigned char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) abort();
    memset(at, 0xff, bytes);
    __tsan_release(&shim.array_key);
    __tsan_switch_to_fiber(self, __tsan_switch_to_fiber_no_sync);
#elif defined(SHIM_ASAN) || defined(SHIM_MSAN)
    void *memory = NULL;
    if (posix_memalign(&memory, 16, bytes)) abort();
    at = (unsigned char *)memory;
#  if defined(SHIM_ASAN)
    memset(at, 0xff, bytes);
#  endif
#else
    void *memory = NULL;
    if (posix_memalign(&memory, 128, bytes + SHIM_MARGIN)) abort();
    at = (unsigned char *)memory;
    memset(at, 0xff, bytes);
    memset(at + bytes, SHIM_MARK, SHIM_MARGIN);
#endif
    return at;
}

SHIM_RAW static void *shim_shared(const void *site, size_t bytes)
{
    int i, dynamic = site == &shim.dynamic_bytes;
    for (i = 0; i < shim.arrays; i++)
        if (shim.array[i].site == site) break;
    if (i == shim.arrays) {
        if (i == SHIM_ARRAYS) shim_fail("more than 64 shared arrays", NULL);
        if (!bytes) shim_fail("a shared array of 0 bytes (dynamic: none were asked for at the launch)", NULL);
        if (!dynamic) shim.static_bytes += bytes;
        if (shim.static_bytes > SHIM_STATIC_LIMIT) shim_fail("more than 48 KB of static shared memory", NULL);
        shim.array[i].site = site;
        shim.array[i].bytes = bytes;
        shim.array[i].at = shim_new_array(bytes);
        shim.arrays++;
    }
    SHIM_ACQUIRE(&shim.array_key);
    return shim.array[i].at;
}

SHIM_RAW static void shim_free_arrays(void)
{
    int i;
    for (i = 0; i < shim.arrays; i++) {
        shim_array *array = &shim.array[i];
#if defined(SHIM_TSAN)
        munmap(array->at, array->bytes);
#else
#  if !defined(SHIM_ASAN) && !defined(SHIM_MSAN)
        size_t j;
        for (j = 0; j < SHIM_MARGIN; j++)
            if (array->at[array->bytes + j] != SHIM_MARK) {
                shim_fail("a write past the end of a shared array", NULL);
                break;
            }
#  endif
        free(array->at);
#endif
    }
    shim.arrays = 0;
}

#define OSCAR_DEVICE static inline __attribute__((unused))
#define OSCAR_KERNEL(threads, blocks) static __attribute__((unused)) void
#define OSCAR_SHARED(T, name, n) \
    static const char name##_site = 0; \
    T *name = (T *)shim_shared(&name##_site, sizeof(T) * (size_t)(n))
#define OSCAR_DYNAMIC(T, name) T *name = (T *)shim_shared(&shim.dynamic_bytes, shim.dynamic_bytes)
#define OSCAR_UNROLL
#define OSCAR_NO_UNROLL

#define threadIdx (shim.now->index)
#define blockIdx (shim.block)
#define blockDim (shim.block_size)
#define gridDim (shim.grid_size)

/* -- barriers -- */

/* Lets the threads go on once all that have not returned wait at one barrier. */
SHIM_RAW static void shim_try_barrier(void)
{
    const shim_site *site = NULL;
    unsigned i;
    if (!shim.at_barrier || shim.at_barrier + shim.done < shim.threads) return;
    for (i = 0; i < shim.threads; i++) {
        shim_thread *thread = &shim.thread[i];
        if (thread->state != SHIM_AT_BARRIER) continue;
        if (site && thread->site != site) shim_fail("threads of a block wait at different barriers", thread->site);
        site = thread->site;
    }
    if (shim.done) shim_fail("a barrier after some threads of the block have returned", site);
    for (i = 0; i < shim.threads; i++)
        if (shim.thread[i].state == SHIM_AT_BARRIER) shim.thread[i].state = SHIM_READY;
    shim.at_barrier = 0;
}

SHIM_RAW static void shim_sync_threads(const shim_site *site)
{
    shim_thread *me = shim.now;
    me->state = SHIM_AT_BARRIER;
    me->site = site;
    shim.at_barrier++;
    SHIM_RELEASE(&shim.barrier_key);
    shim_try_barrier();
    if (me->state != SHIM_READY) shim_leave();
    SHIM_ACQUIRE(&shim.barrier_key);
}
#define __syncthreads() shim_sync_threads(SHIM_SITE)

/* -- operations of a warp -- */

/* The layout of mma.m16n8k32 (PTX ISA): lane 4 g + q holds of A the rows g and g + 8, channels 4 q.. and 16 + 4 q..; of
   B the column g and the same channels; of C the rows g and g + 8, columns 2 q and 2 q + 1. */
SHIM_RAW static void shim_mma_lane(const shim_thread *warp, unsigned lane, int is_signed, unsigned *out)
{
    unsigned i, k;
    for (i = 0; i < 4; i++) {
        unsigned row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + (i & 1);
        uint32_t sum = warp[lane].in[6 + i];
        for (k = 0; k < 32; k++) {
            unsigned a = warp[row % 8 * 4 + k % 16 / 4].in[(row >= 8) + 2 * (k >= 16)] >> 8 * (k & 3) & 255;
            unsigned b = warp[column * 4 + k % 16 / 4].in[4 + (k >= 16)] >> 8 * (k & 3) & 255;
            sum += is_signed && a > 127 ? (a - 256) * b : a * b;
        }
        out[i] = sum;
    }
}

static inline float oscar__cu_half_to_float(unsigned short h);

SHIM_RAW static float shim_small_float(shim_what what, unsigned pair, unsigned which)
{
    unsigned bits = which ? pair >> 16 : pair & 0xffffu;
    float value;
    if (what == SHIM_MMA_F16) return oscar__cu_half_to_float((unsigned short)bits);
    bits <<= 16;
    memcpy(&value, &bits, 4);
    return value;
}

/* m16n8k16: as above with two channels a register, 2 q.. and 8 + 2 q... */
SHIM_RAW static void shim_mma_floats(const shim_thread *warp, unsigned lane, shim_what what, unsigned *out)
{
    unsigned i, k;
    for (i = 0; i < 4; i++) {
        unsigned row = lane / 4, column = lane % 4 * 2 + (i & 1);
        float sum;
        memcpy(&sum, &warp[lane].in[6 + i], 4);
        for (k = 0; k < 16; k++) {
            unsigned a = warp[row * 4 + k % 8 / 2].in[(i >= 2) + 2 * (k >= 8)];
            unsigned b = warp[column * 4 + k % 8 / 2].in[4 + (k >= 8)];
            sum += shim_small_float(what, a, k & 1) * shim_small_float(what, b, k & 1);
        }
        memcpy(&out[i], &sum, 4);
    }
}

/* The lane that a shuffle reads. Past an end of the warp a lane keeps its own value. */
SHIM_RAW static unsigned shim_source(shim_what what, unsigned lane, unsigned argument)
{
    switch (what) {
    case SHIM_SHUFFLE_XOR: return (lane ^ argument) & 31;
    case SHIM_SHUFFLE_DOWN: return lane + argument > 31 ? lane : lane + argument;
    case SHIM_SHUFFLE_UP: return lane < argument ? lane : lane - argument;
    default: return argument & 31;
    }
}

/* All lanes of the mask have arrived: the results of one operation. */
SHIM_RAW static void shim_run_warp(shim_thread *warp, shim_what what, unsigned mask)
{
    unsigned lane, from, all = 0;
    for (lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        if (what == SHIM_BALLOT && warp[lane].in[0]) all |= 1u << lane;
        if (what == SHIM_MAXIMUM && warp[lane].in[0] > all) all = warp[lane].in[0];
    }
    for (lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        switch (what) {
        case SHIM_BALLOT: case SHIM_MAXIMUM: warp[lane].out[0] = all; break;
        case SHIM_MMA_S8U8: case SHIM_MMA_U8U8:
            shim_mma_lane(warp, lane, what == SHIM_MMA_S8U8, warp[lane].out);
            break;
        case SHIM_MMA_F16: case SHIM_MMA_BF16: shim_mma_floats(warp, lane, what, warp[lane].out); break;
        case SHIM_SYNC_WARP: break;
        default:
            from = shim_source(what, lane, warp[lane].in[1]);
            if (!(mask >> from & 1)) shim_fail("a shuffle reads a lane outside the mask", warp[lane].site);
            warp[lane].out[0] = warp[from].in[0];
        }
    }
    for (lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) warp[lane].state = SHIM_READY;
}

SHIM_RAW static void shim_warp(shim_what what, unsigned mask, const shim_site *site)
{
    shim_thread *me = shim.now, *warp = shim.thread + (me->number & ~31u);
    unsigned lane, *waiting = &shim.waiting[me->number / 32];
    if (!(mask >> (me->number & 31) & 1)) shim_fail("a lane calls a *_sync whose mask leaves it out", site);
    me->state = SHIM_AT_WARP;
    me->what = what;
    me->site = site;
    me->mask = mask;
    *waiting |= 1u << (me->number & 31);
    if ((*waiting & mask) != mask) {
        shim_leave();
        return;
    }
    for (lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        if (warp[lane].site != site || warp[lane].what != what)
            shim_fail("lanes of a mask wait at different *_sync calls", site);
        if (warp[lane].mask != mask) shim_fail("lanes give different masks to one *_sync", site);
    }
    shim_run_warp(warp, what, mask);
    *waiting &= ~mask;
}

SHIM_RAW static unsigned shim_exchange(shim_what what, unsigned mask, unsigned value, unsigned argument,
                                       const shim_site *site)
{
    shim.now->in[0] = value;
    shim.now->in[1] = argument;
    shim_warp(what, mask, site);
    return shim.now->out[0];
}

/* Values of 4 bytes of any type. */
#define SHIM_SHUFFLE(what, mask, value, argument) __extension__({ \
        __typeof__(value) shim_value = (value); \
        unsigned shim_bits; \
        char shim_is_4_bytes[sizeof shim_value == 4 ? 1 : -1] SHIM_UNUSED; \
        memcpy(&shim_bits, &shim_value, 4); \
        shim_bits = shim_exchange(what, mask, shim_bits, (unsigned)(argument), SHIM_SITE); \
        memcpy(&shim_value, &shim_bits, 4); \
        shim_value; })
#define __shfl_xor_sync(mask, value, lanes) SHIM_SHUFFLE(SHIM_SHUFFLE_XOR, mask, value, lanes)
#define __shfl_down_sync(mask, value, lanes) SHIM_SHUFFLE(SHIM_SHUFFLE_DOWN, mask, value, lanes)
#define __shfl_up_sync(mask, value, lanes) SHIM_SHUFFLE(SHIM_SHUFFLE_UP, mask, value, lanes)
#define __shfl_sync(mask, value, lane) SHIM_SHUFFLE(SHIM_SHUFFLE_INDEX, mask, value, lane)
#define __ballot_sync(mask, predicate) shim_exchange(SHIM_BALLOT, mask, (predicate) != 0, 0, SHIM_SITE)
#define __any_sync(mask, predicate) (__ballot_sync(mask, predicate) != 0)
#define __all_sync(mask, predicate) (__ballot_sync(mask, predicate) == (mask))
#define oscar__cu_max_warp(value) shim_exchange(SHIM_MAXIMUM, 0xffffffffu, value, 0, SHIM_SITE)

SHIM_RAW static void shim_sync_warp(const shim_site *site)
{
    char *key = &shim.warp_key[shim.now->number / 32];
    SHIM_RELEASE(key);
    shim_warp(SHIM_SYNC_WARP, 0xffffffffu, site);
    SHIM_ACQUIRE(key);
}
#define __syncwarp() shim_sync_warp(SHIM_SITE)

SHIM_RAW static void shim_mma(shim_what what, void *d, const unsigned *a, unsigned b0, unsigned b1, const void *c,
                              const shim_site *site)
{
    unsigned *in = shim.now->in;
    memcpy(in, a, 16);
    in[4] = b0;
    in[5] = b1;
    memcpy(in + 6, c, 16);
    shim_warp(what, 0xffffffffu, site);
    memcpy(d, shim.now->out, 16);
#if defined(SHIM_MSAN)
    __msan_unpoison(d, 16);
#endif
}
#define oscar__cu_mma_s8u8(d, a, b0, b1, c) shim_mma(SHIM_MMA_S8U8, d, a, b0, b1, c, SHIM_SITE)
#define oscar__cu_mma_u8u8(d, a, b0, b1, c) shim_mma(SHIM_MMA_U8U8, d, a, b0, b1, c, SHIM_SITE)
#define oscar__cu_mma_f16(c, a, b0, b1) shim_mma(SHIM_MMA_F16, c, a, b0, b1, c, SHIM_SITE)
#define oscar__cu_mma_bf16(c, a, b0, b1) shim_mma(SHIM_MMA_BF16, c, a, b0, b1, c, SHIM_SITE)

/* -- arithmetic -- */

SHIM_UNUSED static inline float __uint_as_float(unsigned bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

SHIM_UNUSED static inline unsigned __float_as_uint(float value)
{
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}

SHIM_UNUSED static inline float __int_as_float(int bits) { return __uint_as_float((unsigned)bits); }
SHIM_UNUSED static inline int __float_as_int(float value) { return (int)__float_as_uint(value); }

/* Not inlined: else the compiler may contract a product and a sum into one rounding. */
SHIM_WATCHED static float __fadd_rn(float a, float b) { return a + b; }
SHIM_WATCHED static float __fsub_rn(float a, float b) { return a - b; }
SHIM_WATCHED static float __fmul_rn(float a, float b) { return a * b; }
SHIM_WATCHED static float __fdiv_rn(float a, float b) { return a / b; }
SHIM_WATCHED static float __fsqrt_rn(float a) { return sqrtf(a); }
SHIM_WATCHED static float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }

#define __popc(x) __builtin_popcount(x)
#define __ffs(x) __builtin_ffs((int)(x))
#define __ldg(p) (*(p))
SHIM_UNUSED static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }

/* .ftz: subnormal numbers are zeros of their sign, at both ends. */
SHIM_UNUSED static inline float shim_flush(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0, x) : x; }
SHIM_UNUSED static inline float oscar__cu_exp2(float x) { return shim_flush(exp2f(shim_flush(x))); }
SHIM_UNUSED static inline float oscar__cu_log2(float x) { return shim_flush(log2f(shim_flush(x))); }

SHIM_UNUSED static inline float oscar__cu_half_to_float(unsigned short h)
{
    unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023u;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
    return __uint_as_float(sign | __float_as_uint((float)fraction * 5.9604644775390625e-8f));
}

/* To nearest, ties to even. A NaN becomes 0x7fff, as of cvt.rn.f16.f32. */
SHIM_UNUSED static inline unsigned short oscar__cu_float_to_half(float f)
{
    unsigned bits = __float_as_uint(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);   /* from 65520 on */
    if (magnitude < 0x38800000u)   /* subnormal: the last place of 0.5 is 2^-24 */
        return (unsigned short)(sign | (__float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0.5f)) - 0x3f000000u));
    return (unsigned short)(sign | (((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10)));
}

/* Byte i of the result is the one that nibble i of the selector names; its bit 3 spreads that byte's sign. */
SHIM_UNUSED static inline unsigned oscar__cu_permute(unsigned a, unsigned b, unsigned selector)
{
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned result = 0, i;
    for (i = 0; i < 4; i++) {
        unsigned nibble = selector >> 4 * i & 15, byte = (unsigned)(bytes >> 8 * (nibble & 7)) & 255;
        if (nibble & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}

/* -- memory -- */

typedef struct __attribute__((aligned(8))) uint2 { unsigned x, y; } uint2;
typedef struct __attribute__((aligned(16))) uint4 { unsigned x, y, z, w; } uint4;
typedef struct __attribute__((aligned(8))) float2 { float x, y; } float2;
typedef struct __attribute__((aligned(16))) float4 { float x, y, z, w; } float4;
typedef unsigned char *oscar__cu_address;
#define oscar__cu_shared_at(p) ((oscar__cu_address)(p))

/* A GPU traps on a wide access off its boundary; x86 would not. */
SHIM_UNUSED static inline const void *shim_aligned(const void *p, unsigned bytes, const shim_site *site)
{
    if ((uintptr_t)p & (bytes - 1)) shim_fail("a wide access that is not aligned", site);
    return p;
}
#define oscar__cu_load16(a) (*(const uint4 *)shim_aligned(a, 16, SHIM_SITE))
#define oscar__cu_load8(a) (*(const uint2 *)shim_aligned(a, 8, SHIM_SITE))
#define oscar__cu_load4(a) (*(const unsigned *)shim_aligned(a, 4, SHIM_SITE))
#define oscar__cu_store16(a, v) ((void)(*(uint4 *)(uintptr_t)shim_aligned(a, 16, SHIM_SITE) = (v)))
#define oscar__cu_reload16(p) (*(const uint4 *)shim_aligned(p, 16, SHIM_SITE))
#define oscar__cu_again(what) ((what) == 0 ? threadIdx.x : (what) == 1 ? blockIdx.y : blockIdx.z)

SHIM_WATCHED static void shim_put(void *to, uint64_t a, uint64_t b)
{
    ((uint64_t *)to)[0] = a;
    ((uint64_t *)to)[1] = b;
}

SHIM_WATCHED static uint64_t shim_get(const void *from, int i) { return ((const uint64_t *)from)[i]; }

/* The place is poisoned at once, since the bytes may arrive at once, and filled at the wait, since they may be late. */
SHIM_RAW static void shim_copy16(void *to, const void *from, const shim_site *site)
{
    shim_thread *me = shim.now;
    shim_copy *copy = &me->copy[me->copies];
    if (((uintptr_t)to | (uintptr_t)from) & 15) shim_fail("cp.async that is not aligned to 16 bytes", site);
    if (me->copies == SHIM_COPIES) shim_fail("more than 128 cp.async of one thread in flight", site);
    me->copies++;
    copy->to = to;
    copy->site = site;
    copy->group = me->groups;
    copy->bytes[0] = shim_get(from, 0);
    copy->bytes[1] = shim_get(from, 1);
    shim_put(to, ~(uint64_t)0, ~(uint64_t)0);
#if defined(SHIM_MSAN)
    __msan_poison(to, 16);
#endif
}
#define oscar__cu_copy16(to, from) shim_copy16(to, from, SHIM_SITE)

SHIM_RAW static void oscar__cu_copy_commit(void) { shim.now->groups++; }

SHIM_RAW static void oscar__cu_copy_wait(int keep)
{
    shim_thread *me = shim.now;
    int i, left = 0;
    for (i = 0; i < me->copies; i++) {
        if (me->copy[i].group < me->groups - keep)
            shim_put(me->copy[i].to, me->copy[i].bytes[0], me->copy[i].bytes[1]);
        else
            me->copy[left++] = me->copy[i];
    }
    me->copies = left;
}

SHIM_UNUSED static unsigned atomicAdd(unsigned *p, unsigned v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
SHIM_UNUSED static unsigned atomicOr(unsigned *p, unsigned v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }

SHIM_UNUSED static unsigned atomicCAS(unsigned *p, unsigned compare, unsigned value)
{
    __atomic_compare_exchange_n(p, &compare, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}

SHIM_UNUSED static unsigned atomicMax(unsigned *p, unsigned v)
{
    unsigned old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < v && !__atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}

/* All fences order each other: no false alarm, but a race between two fenced threads can pass. */
SHIM_RAW static void __threadfence(void)
{
    SHIM_RELEASE(&shim.fence_key);
    SHIM_ACQUIRE(&shim.fence_key);
}

/* -- blocks and launches -- */

SHIM_RAW static void shim_main(void)
{
#if defined(SHIM_ASAN)
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(NULL, &bottom, &bytes);
    shim.home_bottom = bottom;
    shim.home_bytes = bytes;
#endif
    shim.kernel(shim.params);
    if (shim.now->copies) shim_fail("a thread returns with a cp.async it never waited for", shim.now->copy[0].site);
    SHIM_RELEASE(&shim.end_key);
    shim.now->state = SHIM_DONE;
    shim.done++;
    shim_leave();
    abort();
}

/* Stacks live on between blocks and launches; under TSan each block gets fresh ones, which forget what lay there. */
SHIM_RAW static void shim_new_stack(shim_thread *thread)
{
    size_t bytes = SHIM_STACK + SHIM_GUARD;
#if defined(SHIM_TSAN)
    if (thread->stack) munmap(thread->stack - SHIM_GUARD, bytes);
    thread->stack = NULL;
#endif
    if (!thread->stack) {
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory, SHIM_GUARD, PROT_NONE)) abort();
        thread->stack = (char *)memory + SHIM_GUARD;
    }
#if defined(SHIM_ASAN)
    __asan_unpoison_memory_region(thread->stack, SHIM_STACK);
#elif defined(SHIM_TSAN)
    thread->fiber = __tsan_create_fiber(0);
#endif
}

/* The first switch to the thread starts shim_main. */
SHIM_RAW static void shim_new_context(shim_thread *thread)
{
#if defined(SHIM_SWITCH_UCONTEXT)
    getcontext(&thread->context);
    thread->context.uc_stack.ss_sp = thread->stack;
    thread->context.uc_stack.ss_size = SHIM_STACK;
    thread->context.uc_link = NULL;
    makecontext(&thread->context, shim_main, 0);
#elif defined(__x86_64__)
    void **top = (void **)(void *)(thread->stack + SHIM_STACK - 64);
    int i;
    *--top = NULL;
    *--top = (void *)(uintptr_t)shim_main;
    for (i = 0; i < SHIM_SAVED; i++) *--top = NULL;
    thread->context = top;
#else
    void **top = (void **)(void *)(thread->stack + SHIM_STACK - 64 - 160);
    memset(top, 0, 160);
    top[11] = (void *)(uintptr_t)shim_main;   /* x30 */
    thread->context = top;
#endif
}

SHIM_RAW static void shim_new_thread(unsigned number)
{
    shim_thread *thread = &shim.thread[number];
    thread->number = number;
    thread->index.x = number % shim.block_size.x;
    thread->index.y = number / shim.block_size.x % shim.block_size.y;
    thread->index.z = number / shim.block_size.x / shim.block_size.y;
    thread->state = SHIM_READY;
    thread->groups = thread->copies = 0;
    thread->fake = NULL;
    shim_new_stack(thread);
    shim_new_context(thread);
}

/* Runs each thread that is ready once, in the order asked for; a random order leaves some out. Returns how many ran. */
SHIM_RAW static unsigned shim_round(void)
{
    unsigned j, ran = 0, n = shim.threads, shift = 0;
    if (shim_order > 1) {
        shim.random = shim.random * 6364136223846793005u + 1442695040888963407u;
        shift = (unsigned)(shim.random >> 33);
    }
    for (j = 0; j < n && !shim.failed; j++) {
        unsigned i = shim_order == 0 ? j : shim_order == 1 ? n - 1 - j : (j + shift) % n;
        if (shim.thread[i].state != SHIM_READY) continue;
        if (shim_order > 1 && ran && (i ^ shift) & 1 && shim.random >> (i & 31) & 1) continue;
        shim_enter(&shim.thread[i]);
        ran++;
    }
    return ran;
}

SHIM_RAW static void shim_run_block(void)
{
    unsigned i;
    shim.done = shim.at_barrier = 0;
    shim.static_bytes = 0;
    memset(shim.waiting, 0, sizeof shim.waiting);
    for (i = 0; i < shim.threads; i++) shim_new_thread(i);
    while (!shim.failed && shim.done < shim.threads) {
        unsigned ran = shim_round();
        if (!shim.failed) shim_try_barrier();
        for (i = 0; i < shim.threads && !ran; i++) ran += shim.thread[i].state == SHIM_READY;
        for (i = 0; i < shim.threads && !ran; i++)
            if (shim.thread[i].state == SHIM_AT_WARP) {
                shim_fail("deadlock: a lane of the mask never comes to the *_sync", shim.thread[i].site);
                break;
            }
    }
#if defined(SHIM_TSAN)
    for (i = 0; i < shim.threads; i++) {
        __tsan_switch_to_fiber(shim.thread[i].fiber, __tsan_switch_to_fiber_no_sync);
        __tsan_release(&shim.end_key);   /* for those that a fault stopped on their way */
        __tsan_switch_to_fiber(shim.home_fiber, __tsan_switch_to_fiber_no_sync);
        __tsan_destroy_fiber(shim.thread[i].fiber);
    }
#endif
    shim_free_arrays();
}

SHIM_RAW static int shim_launch(shim_kernel kernel, shim_dim grid, shim_dim block, size_t dynamic_bytes, void **params)
{
    shim.kernel = kernel;
    shim.params = params;
    shim.grid_size = grid;
    shim.block_size = block;
    shim.threads = block.x * block.y * block.z;
    shim.dynamic_bytes = dynamic_bytes;
    shim.random = shim_order;
    shim.failed = 0;
    shim.now = NULL;
    shim.block = shim_size(0, 0, 0);
    shim_error[0] = 0;
    if (!shim.threads || shim.threads > SHIM_THREADS || shim.threads % 32)
        shim_fail("a block of 0, of more than 1024 or of threads that fill no whole warp", NULL);
    else if (!grid.x || !grid.y || !grid.z) shim_fail("an empty grid", NULL);
    else if (dynamic_bytes > SHIM_DYNAMIC_LIMIT) shim_fail("more than 227 KB of dynamic shared memory", NULL);
    if (shim.failed) return -1;
#if defined(SHIM_TSAN)
    shim.home_fiber = __tsan_get_current_fiber();
#endif
    for (shim.block.z = 0; shim.block.z < grid.z && !shim.failed; shim.block.z++)
        for (shim.block.y = 0; shim.block.y < grid.y && !shim.failed; shim.block.y++)
            for (shim.block.x = 0; shim.block.x < grid.x && !shim.failed; shim.block.x++) shim_run_block();
    SHIM_ACQUIRE(&shim.end_key);
    return shim.failed ? -1 : 0;
}

#endif
