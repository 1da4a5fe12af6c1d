/* oscar.h - version 1.0.0 - a 2-bit KV cache that keeps the model's quality. MIT or Unlicense (section 4).

   Keys and values of attention, 16 bits each in most engines, take 2.2 here: calibrate on the model's own activations,
   transform, quantise, and attend over the packed pages. It implements OSCAR (arXiv 2605.17757) and a transform that
   goes past it (BALANCED). C99, also C++11 and later; needs libc and libm only.

   Do this in ONE file, and include oscar.h plainly everywhere else:

       #define OSCAR_IMPLEMENTATION
       #include "oscar.h"

   ===================================================================================================================
   == 1 MANUAL
   ===================================================================================================================

   1.1  QUICK START
   1.2  WHAT IT DOES NOT DO
   1.3  THE PIPELINE
   1.4  BYTES
   1.5  NUMERICS, FILES, BLOBS
   1.6  MEMORY
   1.7  THREADS
   1.8  ERRORS AND LOG
   1.9  BUILD OPTIONS
   2.1  VERSION, LINKAGE
   2.2  RESULTS, LOG, MEMORY
   2.3  NUMBER TYPES, VIEWS
   2.4  ARRAYS
   2.5  TRANSFORM PAIRS, LAYERS
   2.6  CALIBRATION
   2.7  ROTATIONS
   2.8  ROWS
   2.9  PAGES
   2.10 PAGER
   2.11 CACHE
   2.12 ATTENTION
   2.13 INSTRUCTION SETS
        (stop here if you only call it)
   3.1  COMPILER, INCLUDES, ASSERTS
   3.2  SIZES, TEXT, LOG, MEMORY
   3.3  NUMBERS
   3.4  EIGENSOLVER, CHOLESKY
   3.5  WALSH-HADAMARD, BIT REVERSAL, DENSE
   3.6  TRANSFORM PAIRS, LAYERS
   3.7  CALIBRATION SUMS
   3.8  COMPOSE, REPORT
   3.9  ROTATIONS FILE
   3.10 FOLDING
   3.11 ROW CODEC
   3.12 PAGES
   3.13 ATTENTION OVER PAGES AND ROWS
   3.14 PAGER
   3.15 CACHE
   3.16 ATTENTION OVER THE CACHE
   3.17 KERNELS: AVX2
   3.18 KERNELS: AVX-512
   3.19 KERNELS: AMX
   3.20 KERNELS: NEON
   3.21 WHICH INSTRUCTION SET

   == 1.1 QUICK START

   A decode loop around a cache without calibration (2 bits behind a Hadamard transform); zeroed fields are defaults:

       oscar_layer layer = { 0 };                       // {} in C++
       layer.q_heads = 32; layer.kv_heads = 8; layer.k_dim = 128;

       oscar_cache_desc desc = { 0 };
       desc.layers = &layer; desc.layer_count = 1;      // one a layer of the model
       desc.max_sequences = 1; desc.max_pages = 2000;   // of 64 tokens
       oscar_cache *cache;
       oscar_seq seq;
       if (oscar_cache_create(&desc, &cache) || oscar_cache_open(cache, &seq)) return 1;

       // each token:
       oscar_cache_reserve(cache, seq, 1, 0);
       // each layer, q and k (both after RoPE), v and o being float [heads][dim] of this token:
       oscar_view q_view = { 0 }, k_view = { 0 }, v_view = { 0 };
       oscar_out o_out = { 0 };
       oscar_batch batch = { seq, 0, 1 };
       q_view.data = q; k_view.data = k; v_view.data = v; o_out.data = o;
       oscar_append(cache, 0, &batch, 1, &k_view, &v_view);
       oscar_attend(cache, 0, &batch, 1, &q_view, NULL, &o_out, NULL);

   Every call returns 0 (OSCAR_OK) or says in the log (desc.hooks.log) what to change; check it.

   With calibration (in the demo 0.3 to 0.7 times the error of the Hadamard transform): oscar_calib_create,
   oscar_calib_add for each layer and chunk, oscar_calib_solve, oscar_rotations_save; in the engine oscar_rotations_load
   and desc.rotations = rotations. examples/quickstart.c does all of it on real activations.

   == 1.2 WHAT IT DOES NOT DO

   - It does not run a model, read model files, or start threads.
   - It does not move the positions of stored keys (context shift): they are stored after RoPE. ERR_UNSUPPORTED.
   - It does not quantise the first 64 and the last 256 tokens (defaults): these windows stay exact. Models lean on
     them; without the first ones every method here fails.
   - It does not bring back what was quantised: after a cut, a fork at an earlier point, or an aborted long chunk,
     tokens that were in pages keep the precision of their codes, also where they are among the last 256 again.
   - It does not fall back: what cannot be done as asked is an error with a sentence in the log.

   == 1.3 THE PIPELINE

   All vectors are rows; a matrix acts from the right. For each KV head of each layer there are pairs (F, B), B = F^-T:

       k' = (k - m) F    q' = q B    so that q'.k' = q.(k - m)         v' = v F    o = o' B^T

   calibrate  sums over the model's own q, k, v (2.6) -> pairs. BALANCED makes row energy and query energy equally flat
              over the channels, with a metric M for K; OSCAR rotates with the eigenvectors of the query covariance.
              Thousands of tokens, in chunks as long as the contexts to be served, or with joint RoPE shifts.
   fold       optional: V's F into W_V and its B into W_O (oscar_fold_v, oscar_fold_o): no V transform at run time.
   append     rows enter the windows as given, rounded to the window type. When `recent` has a page of tokens to spare,
              the oldest 64 become a page of history: transformed, page mean subtracted where that helps, quantised;
              where K has a metric, its codes are then chosen for the queries (oscar_codec).
   attend     one softmax over sink, history and recent. q' serves the pages, q the windows; the parts are joined by
              log-sum-exp. Every partial result is (o normalised, lse), so parts join over threads and machines.

   Which level to use: the cache (2.11) owns memory and page tables. An engine with page tables of its own calls the
   page functions (2.9) over its own memory. A GPU storage takes the pager (2.10) and the page format.

   == 1.4 BYTES

   Normative; all little endian. D channels, P tokens a page (64), 16 tokens a tile, w = 32 / bits codes a word:

       K code of channel c, token t of a tile:  word (c / w) * 16 + t,   i = c mod w
       V code                                :  word (t / w) * D + c,    i = t mod w
       its place in the word                 :  byte i mod 4, shifted left by bits * (i / 4)

   So one 64-byte line holds 16 channels x 16 tokens, and (word >> 2j) & 0x03030303 is a plane of four codes. A page:

       for each KV head  [K codes][V codes][K scales][K minima][V scales][V minima]        from a multiple of 128 bytes
       then, with a K page mean  [Dk bytes a head][one fp16 scale a head][zeros to a multiple of 128]

   Scales and minima are fp16 [group][token]; minima only with CLIP. A 16-bit side has its rows [token][D] in the window
   type in place of codes, and no metadata. A code c is read as (c - 1.5) s, with 4 bits (c - 7.5) s, and with CLIP as
   minimum + c s. With a page mean, (byte - 127.5) times the head's page mean scale is added to channel values of K, but
   not in rows whose scales have the sign bit set; elsewhere s is the absolute value. Then x = x' B^T + m.
   oscar_page_layout gives every offset.

   == 1.5 NUMERICS, FILES, BLOBS

   Bytes (codes, scales, minima, page means) are equal on every compiler, flag and instruction set: float with fmaf in a
   prescribed order. Attention is close: |o - ref| / |ref| against double arithmetic over the same bytes is at most 1e-5
   in the scalar code. Vector kernels work in float and round queries and weights to 16 bits of the largest one of a
   group before they multiply codes: at most 1e-3, mostly below 1e-4; lse 1e-3 or 1e-4 of it. With
   OSCAR_PRECISION_LOW queries and weights are rounded to 8 bits: 1e-2 over all heads, as a root mean square, where
   logits have a deviation of 1, and about in proportion to it. The scalar code and exact rows know no such rounding.
   The rotations file is safetensors, readable by Python's library: layers.i.k.to [Hkv or 1][D][D] (F), .dual (B),
   .mean [Hkv][D], .metric [Hkv or 1][D][D], layers.i.v.to, .dual, and metadata oscar.*.
   A saved sequence: 8 bytes "OSCARSEQ", u32 version (1), u32 layers, u64 hash of the configuration, i64 tokens, i64
   tokens in pages, u64 payload bytes, u64 FNV-1a of all other bytes; payload: for each layer K rows of sink and recent
   in order, V rows of them, whole pages. It can be restored where layers, windows and pairs are the same.

   == 1.6 MEMORY

   A create call makes one allocation; oscar_cache_bytes tells its size before. Nothing on the decode path allocates. At
   D = 128 a K or V value takes 2.125 bits, K with page means 2.25; each open sequence owns its exact windows besides:
   sink + recent + page_tokens - 1 + max(1, max_draft) rows a layer.
   Stack: up to 80 KB in attention (the queries that go over the cache together).

   == 1.7 THREADS

   No globals but the choice of the instruction set (2.13), which is made once, at the first use. Distinct objects
   are independent. One cache, pager or calibration has one writer at a time; between writes any number of threads
   may read: functions that take a const object are reads, all others, the checks included, are writes. Calibrate in
   parallel with one object a thread, and merge. The library starts no threads: oscar_attend_part splits an attention
   into shares for yours, oscar_attend_join joins them. hooks are called on the thread of the call.

   == 1.8 ERRORS AND LOG

   Functions that can fail return oscar_result and write outputs only on OSCAR_OK, unless they say otherwise. hooks.log
   gets a sentence that says what to change. An append is all or nothing over its whole batch.

   == 1.9 BUILD OPTIONS

       OSCAR_IMPLEMENTATION   in one file, before the include: the code, too
       OSCAR_STATIC           everything static: a private copy in each file that also defines OSCAR_IMPLEMENTATION
       OSCAR_API              how public functions are declared (dllexport, ...), instead of extern
       OSCAR_NAMESPACE        a prefix for every public symbol, for several versions in one program
       OSCAR_MALLOC(size), OSCAR_FREE(pointer)   both or none; default malloc and free
       OSCAR_ASSERT(x)        default assert
       OSCAR_NO_STDIO         no oscar_rotations_save and _load; neither stdio nor assert
       OSCAR_NO_SIMD          scalar code only
       OSCAR_NO_AVX2, OSCAR_NO_AVX512, OSCAR_NO_AMX, OSCAR_NO_NEON   without that instruction set and those that
                              need it
       OSCAR_NO_ATOMICS       the instruction set is chosen by a plain store: call oscar_isa_force once before threads
       NDEBUG                 no asserts

   Needs IEEE arithmetic and an fmaf that rounds once: -ffast-math and its parts are refused; -ffp-contract and
   -march=native change no byte. */
/* Several copies of oscar.h in one program, say of different versions: define OSCAR_NAMESPACE as a prefix before every
   include of a copy, and each of its public functions gets that prefix in the object file, while your source keeps the
   plain name. With `#define OSCAR_NAMESPACE mine_` a call of oscar_eigh links to mine_oscar_eigh. */
#if defined(OSCAR_NAMESPACE) && !defined(OSCAR__NAME)
#define OSCAR__PASTE(prefix, name) prefix##name
#define OSCAR__PREFIX(prefix, name) OSCAR__PASTE(prefix, name)
#define OSCAR__NAME(name) OSCAR__PREFIX(OSCAR_NAMESPACE, name)
#define oscar_version OSCAR__NAME(oscar_version)
#define oscar_result_text OSCAR__NAME(oscar_result_text)
#define oscar_eigh_scratch OSCAR__NAME(oscar_eigh_scratch)
#define oscar_eigh OSCAR__NAME(oscar_eigh)
#define oscar_fwht OSCAR__NAME(oscar_fwht)
#define oscar_bitrev OSCAR__NAME(oscar_bitrev)
#define oscar_rotate OSCAR__NAME(oscar_rotate)
#define oscar_clip_threshold OSCAR__NAME(oscar_clip_threshold)
#define oscar_pack2 OSCAR__NAME(oscar_pack2)
#define oscar_unpack2 OSCAR__NAME(oscar_unpack2)
#define oscar_convert OSCAR__NAME(oscar_convert)
#define oscar_transform OSCAR__NAME(oscar_transform)
#define oscar_layer_resolve OSCAR__NAME(oscar_layer_resolve)
#define oscar_calib_create OSCAR__NAME(oscar_calib_create)
#define oscar_calib_destroy OSCAR__NAME(oscar_calib_destroy)
#define oscar_calib_add OSCAR__NAME(oscar_calib_add)
#define oscar_calib_freeze_q OSCAR__NAME(oscar_calib_freeze_q)
#define oscar_calib_merge OSCAR__NAME(oscar_calib_merge)
#define oscar_calib_save OSCAR__NAME(oscar_calib_save)
#define oscar_calib_restore OSCAR__NAME(oscar_calib_restore)
#define oscar_calib_solve OSCAR__NAME(oscar_calib_solve)
#define oscar_calib_report OSCAR__NAME(oscar_calib_report)
#define oscar_rotations_create OSCAR__NAME(oscar_rotations_create)
#define oscar_rotations_destroy OSCAR__NAME(oscar_rotations_destroy)
#define oscar_rotations_count OSCAR__NAME(oscar_rotations_count)
#define oscar_rotations_layer OSCAR__NAME(oscar_rotations_layer)
#define oscar_rotations_apply OSCAR__NAME(oscar_rotations_apply)
#define oscar_rotations_meta OSCAR__NAME(oscar_rotations_meta)
#define oscar_rotations_similarity OSCAR__NAME(oscar_rotations_similarity)
#define oscar_rotations_write OSCAR__NAME(oscar_rotations_write)
#define oscar_rotations_read OSCAR__NAME(oscar_rotations_read)
#define oscar_rotations_save OSCAR__NAME(oscar_rotations_save)
#define oscar_rotations_load OSCAR__NAME(oscar_rotations_load)
#define oscar_fold_v OSCAR__NAME(oscar_fold_v)
#define oscar_fold_o OSCAR__NAME(oscar_fold_o)
#define oscar_row_bytes OSCAR__NAME(oscar_row_bytes)
#define oscar_encode OSCAR__NAME(oscar_encode)
#define oscar_decode OSCAR__NAME(oscar_decode)
#define oscar_page_layout OSCAR__NAME(oscar_page_layout)
#define oscar_page_write OSCAR__NAME(oscar_page_write)
#define oscar_page_read OSCAR__NAME(oscar_page_read)
#define oscar_attend_pages OSCAR__NAME(oscar_attend_pages)
#define oscar_attend_rows OSCAR__NAME(oscar_attend_rows)
#define oscar_attend_join OSCAR__NAME(oscar_attend_join)
#define oscar_pager_create OSCAR__NAME(oscar_pager_create)
#define oscar_pager_destroy OSCAR__NAME(oscar_pager_destroy)
#define oscar_pager_free_pages OSCAR__NAME(oscar_pager_free_pages)
#define oscar_pager_check OSCAR__NAME(oscar_pager_check)
#define oscar_seq_open OSCAR__NAME(oscar_seq_open)
#define oscar_seq_close OSCAR__NAME(oscar_seq_close)
#define oscar_seq_get OSCAR__NAME(oscar_seq_get)
#define oscar_seq_fork OSCAR__NAME(oscar_seq_fork)
#define oscar_seq_cut OSCAR__NAME(oscar_seq_cut)
#define oscar_seq_reserve OSCAR__NAME(oscar_seq_reserve)
#define oscar_seq_commit OSCAR__NAME(oscar_seq_commit)
#define oscar_seq_accept OSCAR__NAME(oscar_seq_accept)
#define oscar_seq_abort OSCAR__NAME(oscar_seq_abort)
#define oscar_seq_can OSCAR__NAME(oscar_seq_can)
#define oscar_cache_bytes OSCAR__NAME(oscar_cache_bytes)
#define oscar_cache_create OSCAR__NAME(oscar_cache_create)
#define oscar_cache_destroy OSCAR__NAME(oscar_cache_destroy)
#define oscar_cache_stats OSCAR__NAME(oscar_cache_stats)
#define oscar_cache_check OSCAR__NAME(oscar_cache_check)
#define oscar_cache_layout OSCAR__NAME(oscar_cache_layout)
#define oscar_cache_open OSCAR__NAME(oscar_cache_open)
#define oscar_cache_close OSCAR__NAME(oscar_cache_close)
#define oscar_cache_get OSCAR__NAME(oscar_cache_get)
#define oscar_cache_fork OSCAR__NAME(oscar_cache_fork)
#define oscar_cache_cut OSCAR__NAME(oscar_cache_cut)
#define oscar_cache_reserve OSCAR__NAME(oscar_cache_reserve)
#define oscar_cache_accept OSCAR__NAME(oscar_cache_accept)
#define oscar_cache_abort OSCAR__NAME(oscar_cache_abort)
#define oscar_cache_can OSCAR__NAME(oscar_cache_can)
#define oscar_append OSCAR__NAME(oscar_append)
#define oscar_fetch OSCAR__NAME(oscar_fetch)
#define oscar_cache_save OSCAR__NAME(oscar_cache_save)
#define oscar_cache_restore OSCAR__NAME(oscar_cache_restore)
#define oscar_attend OSCAR__NAME(oscar_attend)
#define oscar_attend_part OSCAR__NAME(oscar_attend_part)
#define oscar_prefill OSCAR__NAME(oscar_prefill)
#define oscar_isa_active OSCAR__NAME(oscar_isa_active)
#define oscar_isa_force OSCAR__NAME(oscar_isa_force)
#define oscar_isa_name OSCAR__NAME(oscar_isa_name)
#endif /* OSCAR_NAMESPACE */

/* ==================================================================================================================
   == 2 API
   ================================================================================================================== */
#ifndef OSCAR_H
#define OSCAR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* == 2.1 VERSION, LINKAGE == */

#define OSCAR_VERSION_MAJOR 1
#define OSCAR_VERSION_MINOR 0
#define OSCAR_VERSION_PATCH 0
#define OSCAR_VERSION (OSCAR_VERSION_MAJOR * 10000 + OSCAR_VERSION_MINOR * 100 + OSCAR_VERSION_PATCH)

#ifndef OSCAR_API
#  if !defined(OSCAR_STATIC)
#    define OSCAR_API extern
#  elif defined(__GNUC__) || defined(__clang__)
#    define OSCAR_API static __attribute__((unused))
#  else
#    define OSCAR_API static
#  endif
#endif

/* OSCAR_VERSION of the implementation that was linked; differs from the macro if header and object do not match. */
OSCAR_API int oscar_version(void);

/* == 2.2 RESULTS, LOG, MEMORY == */

/* Every result: name, and what it says. Functions that can fail return one and write outputs only on OSCAR_OK. */
#define OSCAR_RESULTS(X) \
    X(OSCAR_OK,              "ok") \
    X(OSCAR_ERR_ARGUMENT,    "an argument is out of its range") \
    X(OSCAR_ERR_SHAPE,       "a dimension, head count, group or page size is not supported") \
    X(OSCAR_ERR_MEMORY,      "the allocator gave no memory, or a buffer is too small") \
    X(OSCAR_ERR_STATE,       "the call does not fit the state of the object") \
    X(OSCAR_ERR_HANDLE,      "the sequence handle is not valid (never opened, or closed)") \
    X(OSCAR_ERR_FULL,        "out of pages or sequences") \
    X(OSCAR_ERR_NUMERIC,     "a number is NaN, infinite or too large") \
    X(OSCAR_ERR_CONVERGE,    "the eigensolver did not converge") \
    X(OSCAR_ERR_FILE,        "a file cannot be opened, read or written") \
    X(OSCAR_ERR_FORMAT,      "a file or blob is damaged or not of this format") \
    X(OSCAR_ERR_VERSION,     "a file or blob is of another version or configuration") \
    X(OSCAR_ERR_ISA,         "this instruction set is not in this build or not on this machine") \
    X(OSCAR_ERR_UNSUPPORTED, "not possible by design") \
    X(OSCAR_ERR_NO_DRIVER,   "no CUDA driver library found") \
    X(OSCAR_ERR_NO_NVRTC,    "no NVRTC library found") \
    X(OSCAR_ERR_NO_DEVICE,   "no CUDA device found") \
    X(OSCAR_ERR_COMPILE,     "a kernel did not compile") \
    X(OSCAR_ERR_CUDA,        "a CUDA call failed")

typedef enum oscar_result {
#define OSCAR__ENUM(name, text) name,
    OSCAR_RESULTS(OSCAR__ENUM)
#undef OSCAR__ENUM
    OSCAR_RESULT_COUNT
} oscar_result;

/* A sentence for a result; never NULL, also for values out of range. */
OSCAR_API const char *oscar_result_text(oscar_result result);

typedef enum oscar_level { OSCAR_LOG_ERROR, OSCAR_LOG_WARNING, OSCAR_LOG_INFO } oscar_level;

/* Memory and log of one object. A zeroed struct or a NULL pointer means malloc/free (OSCAR_MALLOC/OSCAR_FREE where
   defined) and silence.
     alloc  returns size bytes aligned to align (a power of two, at least 64), or NULL; both or none of alloc/free
     free   gets the pointer with the same size and alignment
     log    gets one sentence without newline that says what is wrong and what to change; line is the line of oscar.h;
            valid during the call only. Called on the thread of the failing call.
     user   handed to all three */
typedef struct oscar_hooks {
    void *(*alloc)(void *user, size_t size, size_t align);
    void (*free)(void *user, void *memory, size_t size, size_t align);
    void (*log)(void *user, oscar_level level, oscar_result code, int line, const char *text);
    void *user;
} oscar_hooks;

/* == 2.3 NUMBER TYPES, VIEWS == */

/* Storage type of a number. DEFAULT means F32 in views and BF16 for windows. */
typedef enum oscar_type { OSCAR_TYPE_DEFAULT, OSCAR_F32, OSCAR_BF16, OSCAR_F16 } oscar_type;

/* Rows [token][head][dim] that the library reads. The dim values of a row are contiguous; any alignment will do.
     data          first value; NULL means absent where absence is allowed
     type          OSCAR_TYPE_DEFAULT = F32
     token_stride  values (not bytes) from a token to the next; 0 = heads * dim
     head_stride   values from a head to the next; 0 = dim
   A slice of a fused QKV buffer has token_stride (Hq + 2 Hkv) * dim; rows stored [head][token][dim] have token_stride
   dim and head_stride tokens * dim. */
typedef struct oscar_view {
    const void *data;
    oscar_type type;
    ptrdiff_t token_stride, head_stride;
} oscar_view;

/* The same for rows that the library writes. Values too large for type become its largest finite value. */
typedef struct oscar_out {
    void *data;
    oscar_type type;
    ptrdiff_t token_stride, head_stride;
} oscar_out;

/* == 2.4 ARRAYS (level 0): no objects, no allocation == */

/* Bytes of scratch that oscar_eigh needs for n x n; 0 if n is out of range (1..4096). */
OSCAR_API size_t oscar_eigh_scratch(int n);

/* Eigenvectors and eigenvalues of a real symmetric matrix, by pivoted Cholesky and one-sided Jacobi.
     n        1..4096
     a        [n][n], row-major, symmetric to 1e-6 of its largest entry (the mean of a and a^T is used)
     vectors  [n][n], eigenvectors as columns, orthogonal; the component of largest magnitude (lowest index of those
              within 2^-26 of it) is positive. May not overlap a.
     values   [n], ascending
     scratch  oscar_eigh_scratch(n) bytes, aligned to 8
   Semidefinite input keeps the relative accuracy of small eigenvalues also when rows differ by many decades (Demmel &
   Veselic 1992); indefinite input is shifted and has absolute accuracy. Scaling a by a power of two changes no bit of
   vectors. Errors: ARGUMENT (not symmetric), SHAPE, NUMERIC (NaN, infinite or beyond 1e+-280), CONVERGE (never seen).
   Nothing is written on error. */
OSCAR_API oscar_result oscar_eigh(int n, const double *a, double *vectors, double *values, void *scratch);

/* Walsh-Hadamard transform of rows, normalised (its own inverse): x H.
     n        row length: 1, or even; N = largest power of two dividing n gives a block-diagonal H with blocks of N.
              0 does nothing. Odd n > 1 is ERR_SHAPE.
     in, out  [rows][n]; may be the same array
   Butterflies with strides 1, 2, 4, ... in float, then one multiplication by the float nearest 1/sqrt(N). */
OSCAR_API oscar_result oscar_fwht(int n, size_t rows, const float *in, float *out);

/* The lowest `bits` (0..31) bits of i in reverse order. */
OSCAR_API uint32_t oscar_bitrev(uint32_t i, int bits);

/* out = x M for rows x; each output is one fmaf chain over input channels 0..n-1 that starts at +0.
     x, out  [rows][n], not overlapping     m  [n][n] row-major
   Errors: SHAPE (n < 1). */
OSCAR_API oscar_result oscar_rotate(int n, size_t rows, const float *m, const float *x, float *out);

/* The clip threshold of a row: the floor(ratio * n)-th smallest |x| (0-based, the product in double).
     ratio   <= 0 or >= 1: off, *tau = the largest |x|; NaN: ERR_ARGUMENT
     n       1..1024
   Errors: ARGUMENT, SHAPE, NUMERIC (a NaN in x). */
OSCAR_API oscar_result oscar_clip_threshold(int n, const float *x, double ratio, float *tau);

/* Codes 0..3, one a byte, to and from four a byte, low bits first. count may be odd; the rest of the last byte is 0. */
OSCAR_API void oscar_pack2(size_t count, const unsigned char *codes, unsigned char *packed);
OSCAR_API void oscar_unpack2(size_t count, const unsigned char *packed, unsigned char *codes);

/* Converts count numbers; rounds to nearest, ties to even, keeps subnormals. Values too large become infinite (NaN
   stays NaN). in and out may not overlap unless both types have the same size. */
OSCAR_API void oscar_convert(size_t count, oscar_type from, const void *in, oscar_type to, void *out);

/* == 2.5 TRANSFORM PAIRS, LAYERS == */

/* HADAMARD needs no calibration and is the default; DENSE is what calibration gives. */
typedef enum oscar_kind { OSCAR_HADAMARD, OSCAR_IDENTITY, OSCAR_DENSE } oscar_kind;

/* A transform pair (F, B) of one KV head: x' = (x - m) F is what gets quantised; B = F^-T, so that for q' = q B
   q'.k' = q.(k - m). Zeroed except for dim: the Hadamard transform. The arrays stay the owner's.
     dim   a multiple of 16 from 16 to 1024
     to    F, [dim][dim] row-major; DENSE only
     dual  B, [dim][dim]; NULL where F is orthogonal (B = F)
     mean  m, [dim], K only; NULL for none
     norm  the largest singular value of F, 0 = 1 (exact for HADAMARD, IDENTITY and orthogonal F)
     metric  M, [dim][dim], symmetric, K only: an error e of x' costs e M e^T, the mean square error of q'.x' over the
             queries. Codes of an UNBIASED K are refined with it (oscar_codec); NULL for none */
typedef struct oscar_pair {
    oscar_kind kind;
    int dim;
    const float *to, *dual, *mean;
    float norm;
    const float *metric;
} oscar_pair;

/* FORWARD: x' = (x - m) F, the bytes of the cache depend on it.  QUERY: q' = q B.  BACK: x = x' B^T + m. */
typedef enum oscar_direction { OSCAR_FORWARD, OSCAR_QUERY, OSCAR_BACK } oscar_direction;

/* Sends rows through a pair. x, out: [rows][dim]; may be the same array. Errors: ARGUMENT, SHAPE. */
OSCAR_API oscar_result oscar_transform(const oscar_pair *pair, oscar_direction direction, size_t rows,
                                       const float *x, float *out);

/* How a row becomes codes. UNBIASED: symmetric, one scale a group, <x^, x> = |x|^2. CLIP: the paper's clipped min-max,
   scale and minimum a group. */
typedef enum oscar_fit { OSCAR_UNBIASED, OSCAR_CLIP } oscar_fit;

/* One attention layer. Zeroed except for the heads and k_dim it is the recommended setting.
     field                default (0)    range
     q_heads              -              a multiple of kv_heads; query head x reads KV head x * kv_heads / q_heads
     kv_heads             -              1..65536
     k_dim, v_dim         -, k_dim       multiples of 16 from 16 to 1024
     window               none           sliding window w: query i sees keys j with i - w < j <= i; -1 none. It masks;
                                         pages behind it are kept
     k_bits, v_bits       2              2, 4, or 16 (rows stored as given, in the window type)
     k_fit, v_fit         UNBIASED
     k_clip, v_clip       0.96, 0.92     quantile of |x|, CLIP only; -1 or >= 1 off
     k_group, v_group     k_dim, v_dim   channels that share a scale; a divisor of the dimension, a multiple of 16
     k_page_mean          on             -1 off; subtract each page's own mean key where that makes a row shorter
     v_folded             0              1: V arrives transformed by v's F and o leaves transformed (oscar_fold_v)
     scale                1/sqrt(k_dim)  multiplies q.k
     softcap              none           c: logit = c tanh(x / c); -1 none
     k, v                 HADAMARD       kv_heads pairs each, or NULL; stay the owner's */
typedef struct oscar_layer {
    int q_heads, kv_heads, k_dim, v_dim;
    int window;
    int k_bits, v_bits;
    oscar_fit k_fit, v_fit;
    double k_clip, v_clip;
    int k_group, v_group;
    int k_page_mean;
    int v_folded;
    float scale, softcap;
    const oscar_pair *k, *v;
} oscar_layer;

/* in with every default filled in. window and softcap are 0 for none, clips -1 for off (always where the fit is not
   CLIP), k_page_mean 1 or -1; pairs of a 16-bit side are dropped. Resolving again changes nothing. Errors: ARGUMENT,
   SHAPE; hooks (may be NULL) gets the sentence. */
OSCAR_API oscar_result oscar_layer_resolve(const oscar_layer *in, const oscar_hooks *hooks, oscar_layer *out);

/* == 2.6 CALIBRATION (level 1): sums over activations -> transform pairs == */

/* The sums, each kv_heads * dim * dim doubles a layer. Q: q^T q. K: k^T k and the mean key. V: v^T v. S: score-weighted
   v^T v (the published OSCAR code; second pass). O: o^T o of attention outputs (what the paper writes, V^T S^T S V). */
enum { OSCAR_SUM_Q = 1, OSCAR_SUM_K = 2, OSCAR_SUM_V = 4, OSCAR_SUM_S = 8, OSCAR_SUM_O = 16 };

/* ATTENTION weighs key j of query i by p_ij (1 - p_ij), p the softmax, where the cache would have quantised j: 8 to
   13 % less KL, and far better on text of another kind. It needs chunks that start at position 0 and are longer than
   sink + recent, better twice that. PLAIN counts every token once. The weights act on the sums Q and K. */
typedef enum oscar_weights { OSCAR_WEIGHTS_ATTENTION, OSCAR_WEIGHTS_PLAIN } oscar_weights;

/* The model's rotary embedding, for joint shifts of q and k.
     dims         rotated channels, even, from channel 0; 0 = k_dim
     base         frequencies are base^(-2i/dims), i < dims/2; 0 = 10000
     frequencies  [dims/2] radians a token, instead of base; copied
     halves       0: channels 2i, 2i+1 form a pair (llama.cpp NORM); 1: channels i, i + dims/2 (NEOX, Hugging Face) */
typedef struct oscar_rope {
    int dims;
    double base;
    const double *frequencies;
    int halves;
} oscar_rope;

/* Zeroed except for layers it collects what BALANCED needs, attention-weighted.
     layers, layer_count  copied; heads, dimensions, scale, softcap, window are used, the rest goes into the result
     sums                 OSCAR_SUM_* flags; 0 = Q and K
     sink, recent         the cache's windows, for ATTENTION; 0 = 64 and 256, -1 = none
     ropes, shifts        copied; ropes: one a layer (or NULL); each chunk is counted once as given and once for each of
                          the shift_count (up to 64) offsets in positions, q and k turned alike, which leaves logits
                          unchanged and covers positions that short chunks do not reach
     shift_weight         what such a copy weighs against the chunk as given, 0 = 1, up to 1: a little is enough to
                          cover far positions, and costs little at near ones */
typedef struct oscar_calib_desc {
    const oscar_layer *layers;
    int layer_count;
    unsigned sums;
    oscar_weights weights;
    int sink, recent;
    const oscar_rope *ropes;
    const int *shifts;
    int shift_count;
    oscar_hooks hooks;
    double shift_weight;
} oscar_calib_desc;

/* A chunk of activations of one layer: q and k after RoPE, v, and attention outputs o before W_O.
     tokens   rows in each view
     q, o     [tokens][q_heads][k_dim], [tokens][q_heads][v_dim]
     k, v     [tokens][kv_heads][k_dim], [tokens][kv_heads][v_dim]
     mask     [tokens], 0 = padding (may hold anything), or NULL
   Views that the asked-for sums do not need may be absent (data NULL). The second pass (after oscar_calib_freeze_q)
   reads k and v only. */
typedef struct oscar_chunk {
    int tokens;
    oscar_view q, k, v, o;
    const unsigned char *mask;
} oscar_chunk;

typedef struct oscar_calib oscar_calib;

/* One allocation: 8 * dim * dim bytes a KV head and sum, and working space. One writer at a time. */
OSCAR_API oscar_result oscar_calib_create(const oscar_calib_desc *desc, oscar_calib **out);
OSCAR_API void oscar_calib_destroy(oscar_calib *calib);   /* NULL does nothing */

/* Adds a chunk to layer's sums. Errors: ARGUMENT (a needed view is absent, chunk too short for ATTENTION), NUMERIC (a
   valid row holds NaN or infinity; the log names token and head); the sums are then unchanged. */
OSCAR_API oscar_result oscar_calib_add(oscar_calib *calib, int layer, const oscar_chunk *chunk);

/* Ends the first pass: C_Q is fixed. With OSCAR_SUM_S the same chunks are then added a second time. ERR_STATE if a
   layer has no tokens or it was called before. */
OSCAR_API oscar_result oscar_calib_freeze_q(oscar_calib *calib);

/* Adds other's sums to calib's; both of one desc. Before freeze_q: the first-pass sums. After it in both, of equal C_Q
   (merge one into a fresh object, then freeze): the second-pass sums. other is unchanged. */
OSCAR_API oscar_result oscar_calib_merge(oscar_calib *calib, const oscar_calib *other);

/* The sums as a blob, to carry them between processes or machines: save there, create from the same desc here, restore,
   merge. save: out NULL asks for *size only; capacity too small is ERR_MEMORY and *size is set. restore replaces the
   sums of calib; ERR_VERSION if the descs differ, ERR_FORMAT if the blob is damaged (calib is then unchanged). */
OSCAR_API oscar_result oscar_calib_save(const oscar_calib *calib, void *out, size_t capacity, size_t *size);
OSCAR_API oscar_result oscar_calib_restore(oscar_calib *calib, const void *blob, size_t size);

/* How the pairs are found from the sums. U: eigenvectors of the target, H: Hadamard, P: bit reversal.
     BALANCED  K: the pair that makes row energy and query energy flat; V: HADAMARD. The recommended choice.
     OSCAR     R = U H P, the paper        HADAMARD  R = H (QuaRot)        NONE  R = I
     U, UH, HP  ablations of OSCAR */
typedef enum oscar_method {
    OSCAR_METHOD_BALANCED, OSCAR_METHOD_OSCAR, OSCAR_METHOD_HADAMARD, OSCAR_METHOD_NONE,
    OSCAR_METHOD_U, OSCAR_METHOD_UH, OSCAR_METHOD_HP
} oscar_method;

/* Which second moment OSCAR's U diagonalises. DEFAULT: C_Q for K, C_S for V. SELF: C_K (not centred), C_V. OUTPUT: C_O,
   V only. */
typedef enum oscar_target { OSCAR_TARGET_DEFAULT, OSCAR_TARGET_SELF, OSCAR_TARGET_OUTPUT } oscar_target;

/* Zeroed: BALANCED, one pair a KV head, with mean key.
     shared      1: one F a layer, from the mean over its heads (the paper); means stay per head
     k_mean      0: on for BALANCED, off for others; 1 on; -1 off
     v_balanced  1: V by BALANCED too, with Cx = C_V, Cw = I (needs OSCAR_SUM_V)
     k_metric    0: on for BALANCED, off for others; 1 on (needs OSCAR_SUM_Q); -1 off. K of UNBIASED layers gets a
                 metric, so codes are chosen for the queries, not for the length of the error: about a third less KL at
                 the same bits, for three more products of a row with a matrix when it is quantised
     eps         regularisation of BALANCED, 0 = 1e-4
     model       a name for the file (copied), or NULL */
typedef struct oscar_compose {
    oscar_method method;
    int shared;
    int k_mean;
    oscar_target k_target, v_target;
    int v_balanced;
    double eps;
    const char *model;
    int k_metric;
} oscar_compose;

typedef struct oscar_rotations oscar_rotations;

/* Finds the pairs of every layer whose K or V has 2 or 4 bits. compose NULL = zeroed. Destroy *out with
   oscar_rotations_destroy. Errors: STATE (no tokens, or a sum is missing: the log names it), NUMERIC, CONVERGE, MEMORY.
   Fewer tokens than 4 dim is a warning in the log. */
OSCAR_API oscar_result oscar_calib_solve(const oscar_calib *calib, const oscar_compose *compose,
                                         oscar_rotations **out);

/* What calibration bought, for one KV head. logit_error is the predicted |QK^ - QK|_F / |QK|_F with one scale a row,
   unbiased fit: quantisation noise of Gaussian channels with the transformed means and variances, errors of channels
   uncorrelated; over the tokens as this calibration weighs them. [method][0] 2 bits, [1] 4 bits; methods NONE,
   HADAMARD, OSCAR (no mean), BALANCED (with mean, no metric). */
typedef struct oscar_report {
    int64_t tokens;        /* valid tokens added; shifts do not count */
    int rank;              /* numerical rank of C_Q or C_K, the smaller; below dim: too few tokens */
    double condition;      /* largest over smallest eigenvalue of C_K - m^T m; HUGE_VAL where singular */
    double logit_error[4][2];
} oscar_report;
enum { OSCAR_REPORT_NONE, OSCAR_REPORT_HADAMARD, OSCAR_REPORT_OSCAR, OSCAR_REPORT_BALANCED };

/* Needs the sums Q and K. Errors: ARGUMENT, STATE (no tokens, or a sum is missing), MEMORY, NUMERIC, CONVERGE. */
OSCAR_API oscar_result oscar_calib_report(const oscar_calib *calib, int layer, int kv_head, oscar_report *out);

/* == 2.7 ROTATIONS: the result, a safetensors file; folding == */

/* Makes an object from layers with pairs (copied; equal pointers `to` of all heads of a layer are kept as one shared
   matrix). metadata: key, value, key, value, ..., NULL, added to the file; or NULL. */
OSCAR_API oscar_result oscar_rotations_create(const oscar_layer *layers, int layer_count, const char *const *metadata,
                                              const oscar_hooks *hooks, oscar_rotations **out);
OSCAR_API void oscar_rotations_destroy(oscar_rotations *rotations);   /* NULL does nothing */

/* The number of layers, and one layer's shape, codec settings and pairs (they live as long as the object). Fill
   q_heads, scale, softcap and window of the result yourself: the file does not know them. Files of other writers may
   not tell the shape: kv_heads, k_dim, v_dim are then 0. */
OSCAR_API int oscar_rotations_count(const oscar_rotations *rotations);
OSCAR_API oscar_result oscar_rotations_layer(const oscar_rotations *rotations, int layer, oscar_layer *out);

/* Fills what a layer leaves open (0) from layer `layer` of the rotations: bits, fits, clips, groups, page mean, fold,
   pairs. What it sets itself stays, so a file's CLIP or fold cannot be taken back to 0 this way: start from
   oscar_rotations_layer for that. ERR_SHAPE if heads or dimensions differ. A cache does this with desc.rotations. */
OSCAR_API oscar_result oscar_rotations_apply(const oscar_rotations *rotations, int layer, const oscar_hooks *hooks,
                                             oscar_layer *in_out);

/* A metadata value ("oscar.model", ...), or NULL. Lives as long as the object. */
OSCAR_API const char *oscar_rotations_meta(const oscar_rotations *rotations, const char *key);

/* mean |diag(R_a^T R_b)| of the normalised K matrices of two KV heads: 1 for equal ones, about 0.8 / sqrt(dim) for
   unrelated ones. -1 if there are none. */
OSCAR_API double oscar_rotations_similarity(const oscar_rotations *rotations, int layer, int head_a, int head_b);

/* The file in memory. write: out NULL asks for *size only; capacity too small is ERR_MEMORY and *size is set. read
   checks every length and number; a hostile file is ERR_FORMAT, an unknown major version ERR_VERSION. */
OSCAR_API oscar_result oscar_rotations_write(const oscar_rotations *rotations, void *out, size_t capacity,
                                             size_t *size);
OSCAR_API oscar_result oscar_rotations_read(const void *data, size_t size, const oscar_hooks *hooks,
                                            oscar_rotations **out);
#ifndef OSCAR_NO_STDIO
/* The same with a path. save writes path.tmp first and renames it. ERR_FILE if the file cannot be opened, read or
   written. */
OSCAR_API oscar_result oscar_rotations_save(const oscar_rotations *rotations, const char *path);
OSCAR_API oscar_result oscar_rotations_load(const char *path, const oscar_hooks *hooks, oscar_rotations **out);
#endif

/* Folds V's pairs into weights, in place, in double. Then V arrives as v' and attention gives o' at no run-time cost;
   set layer.v_folded. Not allowed where the model norms V or shares K and V.
     fold_v  w [kv_heads * v_dim][in_dim] (row-major as in GGUF and PyTorch: v = x w^T), bias [kv_heads * v_dim] or NULL
     fold_o  w [out_dim][q_heads * v_dim] (y = o w^T)
   Errors: ARGUMENT, SHAPE (pairs of different dim, or not a V pair: it has a mean). */
OSCAR_API oscar_result oscar_fold_v(const oscar_pair *pairs, int kv_heads, size_t in_dim, float *w, float *bias);
OSCAR_API oscar_result oscar_fold_o(const oscar_pair *pairs, int kv_heads, int q_heads, size_t out_dim, float *w);

/* == 2.8 ROWS (level 2): the row codec alone, without pages == */

/* Zeroed: UNBIASED, 2 bits, one group, fp16 metadata.
     bits   0 = 2; 2 or 4          group  0 = dim          clip  CLIP only; 0 = 0.96, -1 or >= 1 off
     metadata  OSCAR_F16 (default) or OSCAR_F32
     metric  M, [dim][dim], symmetric, or NULL; UNBIASED only. Codes and scales are then refined: twice, each code in
             turn takes the value that makes e M e^T least, e the row's error, and then scales become such that
             <x^, x> = |x|^2 under M. A row whose scale this would change by more than a factor of 2 keeps its codes */
typedef struct oscar_codec {
    oscar_fit fit;
    int bits, group;
    double clip;
    oscar_type metadata;
    const float *metric;
} oscar_codec;

/* Bytes of an encoded row: codes (dim * bits / 8; four or two a byte, low bits first), then the scales of the groups,
   then the minima of the groups (CLIP). 0 if codec and dim do not fit. codec NULL = zeroed. */
OSCAR_API size_t oscar_row_bytes(const oscar_codec *codec, int dim);

/* Rows, already transformed, to and from bytes. x [rows][dim], encoded [rows][oscar_row_bytes]. Errors: ARGUMENT,
   SHAPE, NUMERIC (a row holds NaN or infinity, or metadata overflows; rows before it are written). */
OSCAR_API oscar_result oscar_encode(const oscar_codec *codec, int dim, size_t rows, const float *x, void *encoded);
OSCAR_API oscar_result oscar_decode(const oscar_codec *codec, int dim, size_t rows, const void *encoded, float *x);

/* == 2.9 PAGES (level 3): page bytes in the caller's memory == */

/* Where everything is in a page. Offsets in bytes; k_codes .. v_min from the start of a head's part, mean and
   mean_scale from the start of the page. OSCAR_ABSENT where the page has no such array.
     layer       resolved; layer.k and layer.v point at the caller's pairs, which must outlive the layout
     scratch     bytes that oscar_page_write and oscar_page_read need */
#define OSCAR_ABSENT ((size_t)-1)
typedef struct oscar_layout {
    oscar_layer layer;
    int page_tokens;
    oscar_type window_type;
    size_t k_codes, v_codes, k_scale, k_min, v_scale, v_min;
    size_t head_bytes;
    size_t mean, mean_scale;
    size_t bytes;
    size_t scratch;
} oscar_layout;

/* page_tokens: a positive multiple of 64 up to 2^20, 0 = 64. window_type: DEFAULT = BF16. Errors: ARGUMENT, SHAPE. */
OSCAR_API oscar_result oscar_page_layout(const oscar_layer *layer, int page_tokens, oscar_type window_type,
                                         const oscar_hooks *hooks, oscar_layout *out);

/* Rounds page_tokens rows of all KV heads to the window type, transforms, quantises and writes a whole page.
     k, v     [page_tokens][kv_heads][dim]
     page     layout.bytes; 64-byte alignment is recommended
     scratch  layout.scratch bytes, aligned to 64 (else ERR_ARGUMENT)
   ERR_NUMERIC (a row, sum, scale, minimum or page mean is not finite or overflows fp16): no byte of the page is
   written. */
OSCAR_API oscar_result oscar_page_write(const oscar_layout *layout, const oscar_view *k, const oscar_view *v,
                                        void *page, void *scratch);

/* Rows first .. first + count - 1 of a page back in the space they came from (a folded V stays folded), rounded to the
   type of the outputs. k or v may be NULL. */
OSCAR_API oscar_result oscar_page_read(const oscar_layout *layout, const void *page, int first, int count,
                                       const oscar_out *k, const oscar_out *v, void *scratch);

/* How the vector kernels of attention round queries and weights before they multiply codes (manual 1.5); rows that are
   not codes, and the scalar code, do not round. DEFAULT = HIGH.
     HIGH   to 16 bits: |o - ref| / |ref| at most 1e-3, as a rule below 1e-4
     LOW    to 8 bits: 1e-2 over all heads, as a root mean square, where logits have a deviation of 1; in 0.7 of the
            time */
typedef enum oscar_precision { OSCAR_PRECISION_DEFAULT, OSCAR_PRECISION_HIGH, OSCAR_PRECISION_LOW } oscar_precision;

/* What attends. Query i of q is at position position + i in the sequence.
     q           [queries][q_heads][k_dim], plain
     head_first  KV heads head_first .. head_first + head_count - 1 are computed, head_count 0 = all from head_first on;
                 the other heads' outputs are not touched */
typedef struct oscar_attend_desc {
    const oscar_layout *layout;
    oscar_view q;
    int queries;
    int64_t position;
    int head_first, head_count;
    oscar_precision precision;
} oscar_attend_desc;

/* Pages in order. Either pages (count pointers), or pool and ids: page i is at (char *)pool + ids[i] * layout.bytes.
   position: of the first token of the first page. */
typedef struct oscar_page_list {
    const void *const *pages;
    const void *pool;
    const uint32_t *ids;
    int64_t count;
    int64_t position;
} oscar_page_list;

/* Rows as given (window rows), in order; token i is at position position + i. */
typedef struct oscar_row_span {
    oscar_view k, v;
    int64_t count;
    int64_t position;
} oscar_row_span;

/* Attention over pages, or over rows (any number of spans: a ring needs two). Every query sees the pages whole but for
   the sliding window, so give only pages that end before the first query; rows are masked causally, too.
     o    float [queries][q_heads][v_dim], normalised, in the space of the windows
     lse  float [queries][q_heads], natural log-sum-exp of the final logits; without a visible key lse = -inf, o = 0
   No allocation; reads only. Errors: ARGUMENT, SHAPE. */
OSCAR_API oscar_result oscar_attend_pages(const oscar_attend_desc *desc, const oscar_page_list *pages,
                                          float *o, float *lse);
OSCAR_API oscar_result oscar_attend_rows(const oscar_attend_desc *desc, const oscar_row_span *spans, int span_count,
                                         float *o, float *lse);

/* Joins partial results over disjoint keys into one.
     parts        pointers to `parts` arrays o [rows][heads][dim] and lse [rows][heads]
     sink_logits  [heads], the learned sink logit, added once here; or NULL
     o            [rows][heads][dim], may be one of the parts (so may lse); lse may be NULL */
OSCAR_API void oscar_attend_join(int parts, const float *const *part_o, const float *const *part_lse, int rows,
                                 int heads, int dim, const float *sink_logits, float *o, float *lse);

/* == 2.10 PAGER: which token is where; knows no bytes, so CPU and GPU storages share it == */

/* A sequence: 32-bit slot, 32-bit generation. Zero is never valid; a closed handle is not valid again before its slot
   has been opened 2^32 - 1 times more. */
typedef uint64_t oscar_seq;

/*   field          default (0)   range
     max_sequences  -             1..2^31-1, open at once
     max_pages      -             0..2^32-2, of all sequences together; a page holds page_tokens tokens of one sequence
                                  in every layer, and n tokens take floor((n - sink - recent) / page_tokens)
     max_tokens     all pages     of one sequence: sizes its page table
     sink           64            S0, first tokens that stay exact; -1 none
     recent         256           W, last tokens that stay exact; -1 none
     page_tokens    64            P, a positive multiple of 64 (a cache takes up to 2^20)
     max_draft      16            speculative tokens in flight; -1 none */
typedef struct oscar_pager_desc {
    int max_sequences;
    int64_t max_pages, max_tokens;
    int sink, recent, page_tokens, max_draft;
    oscar_hooks hooks;
} oscar_pager_desc;

/* What a storage has to do. Pages are indices into the sequence's page table.
     length, history   n and h after the operation
     demote_first      write pages demote_first .. demote_first + demote_count - 1 from recent tokens (and, with a long
                       chunk, tokens of the chunk itself). After an abort only in layers that had not appended.
     decode_page       id of a page whose first decode_tokens tokens go back to recent, at positions decode_position
                       and on; decode_tokens 0: none. After an abort only in layers that had appended. The page may be
                       released already, its bytes are good until the next reserve. */
typedef struct oscar_moves {
    int64_t length, history;
    int64_t demote_first, demote_count;
    uint32_t decode_page;
    int decode_tokens;
    int64_t decode_position;
} oscar_moves;

typedef enum oscar_step { OSCAR_STEP_NONE, OSCAR_STEP_APPEND, OSCAR_STEP_DRAFT, OSCAR_STEP_DRAFTED } oscar_step;

/* length, history: committed n and h. sink, recent: committed tokens in these regions. step: what is open; step_rows,
   its tokens; step_history, h once they are appended. pages: history / page_tokens ids, then those the step reserved
   (page_count in all); valid until the next change. */
typedef struct oscar_seq_state {
    int64_t length, history, sink, recent;
    oscar_step step;
    int64_t step_rows, step_history;
    const uint32_t *pages;
    int64_t page_count;
} oscar_seq_state;

typedef struct oscar_pager oscar_pager;

/* One allocation. Errors: ARGUMENT, SHAPE (page_tokens), MEMORY. destroy closes everything; NULL does nothing. */
OSCAR_API oscar_result oscar_pager_create(const oscar_pager_desc *desc, oscar_pager **out);
OSCAR_API void oscar_pager_destroy(oscar_pager *pager);
OSCAR_API int64_t oscar_pager_free_pages(const oscar_pager *pager);   /* what a reserve can still take */

/* Verifies every invariant: lengths, page counts, references, free list. ERR_STATE and a sentence if one is broken. */
OSCAR_API oscar_result oscar_pager_check(oscar_pager *pager);

/* open: an empty sequence, ERR_FULL if all slots are taken. close: in any state, gives every page back. get: what the
   sequence is like now. All calls below answer ERR_HANDLE to a handle that is not open. */
OSCAR_API oscar_result oscar_seq_open(oscar_pager *pager, oscar_seq *out);
OSCAR_API oscar_result oscar_seq_close(oscar_pager *pager, oscar_seq seq);
OSCAR_API oscar_result oscar_seq_get(const oscar_pager *pager, oscar_seq seq, oscar_seq_state *out);

/* A new sequence that shares the pages of seq up to length (0..n); then as a cut: what was quantised stays so.
   ERR_STATE while a step is open. */
OSCAR_API oscar_result oscar_seq_fork(oscar_pager *pager, oscar_seq seq, int64_t length, oscar_seq *out,
                                      oscar_moves *moves);

/* Shortens seq to length (0..n). Tokens of a page that is cut into go back to recent at the precision of their codes;
   nothing else changes, so the last tokens are exact again only once recent has refilled. ERR_STATE while a step is
   open, ERR_ARGUMENT if longer. */
OSCAR_API oscar_result oscar_seq_cut(oscar_pager *pager, oscar_seq seq, int64_t length, oscar_moves *moves);

/* Opens a step of `rows` (at least 1) tokens, all or nothing: ERR_FULL leaves no trace. draft: the tokens are
   speculative, at most max_draft. moves (may be NULL): what appending them will demote. */
OSCAR_API oscar_result oscar_seq_reserve(oscar_pager *pager, oscar_seq seq, int64_t rows, int draft,
                                         oscar_moves *moves);

/* The storage has written the step's rows in every layer: an append is committed, drafts become DRAFTED. */
OSCAR_API oscar_result oscar_seq_commit(oscar_pager *pager, oscar_seq seq);

/* Keeps the first `rows` (0..drafts) of DRAFTED tokens and commits them. Cannot fail for lack of pages. */
OSCAR_API oscar_result oscar_seq_accept(oscar_pager *pager, oscar_seq seq, int64_t rows, oscar_moves *moves);

/* Goes back to the length before an open step or DRAFTED tokens. Drafts, and a step that no layer has begun, leave no
   trace; pages that the begun append of a long chunk made due stay, so tokens in them stay quantised, in every layer.
   started: some layer has written rows of an append step. Cannot fail for lack of pages. ERR_STATE if no step is
   open. */
OSCAR_API oscar_result oscar_seq_abort(oscar_pager *pager, oscar_seq seq, int started, oscar_moves *moves);

/* Whether an operation would succeed now; the result is the one that it would give, without log. arg: rows for RESERVE,
   DRAFT and ACCEPT, length for CUT and FORK. SHIFT (moving the positions of stored keys) is always
   ERR_UNSUPPORTED: keys are stored after RoPE. */
typedef enum oscar_op {
    OSCAR_CAN_RESERVE, OSCAR_CAN_DRAFT, OSCAR_CAN_ACCEPT, OSCAR_CAN_CUT, OSCAR_CAN_FORK, OSCAR_CAN_SAVE, OSCAR_CAN_SHIFT
} oscar_op;
OSCAR_API oscar_result oscar_seq_can(const oscar_pager *pager, oscar_seq seq, oscar_op op, int64_t arg);

/* == 2.11 CACHE (level 4): pager, pages and windows in one allocation == */

/*   layers, layer_count  copied, and so are the pairs they point at
     rotations            or NULL; where given, layers[i] is completed as oscar_rotations_apply does. Not needed after
                          create.
     window_type          DEFAULT = BF16; type of the exact rows
     max_sequences        each costs sink + recent + page_tokens - 1 + max(1, max_draft) exact rows a layer, also unused
     precision            of attention; changes no byte of the cache
     the others           as in oscar_pager_desc */
typedef struct oscar_cache_desc {
    const oscar_layer *layers;
    int layer_count;
    const oscar_rotations *rotations;
    oscar_type window_type;
    int max_sequences;
    int64_t max_pages, max_tokens;
    int sink, recent, page_tokens, max_draft;
    oscar_hooks hooks;
    oscar_precision precision;
} oscar_cache_desc;

/* Bytes, asked for before anything is paid, and what a value costs. tokens: of one sequence, for the bits.
     total           what create allocates = pages + windows + rest
     pages, windows  max_pages pages of every layer; max_sequences sinks and rings of every layer
     rest            pairs, tables, one page of working space
     held_bits       bits a K or V value of a sequence of `tokens` tokens: pages, and the rest exact in windows
     owned_bits      the same with all window rows that an open sequence owns: tokens beyond them count as in pages
     exact_bits      the same values in the window type without a cache (16 for BF16) */
typedef struct oscar_footprint {
    size_t total, pages, windows, rest;
    double held_bits, owned_bits, exact_bits;
} oscar_footprint;

typedef struct oscar_stats {
    int64_t sequences, tokens;             /* open now */
    int64_t pages, pages_used;             /* in the pool, and referenced now */
    size_t bytes, page_bytes, window_bytes;   /* as in oscar_footprint */
} oscar_stats;

typedef struct oscar_cache oscar_cache;

/* bytes answers before create pays; pages are not touched until they are written. Errors: ARGUMENT, SHAPE, MEMORY.
   destroy closes everything; NULL does nothing. */
OSCAR_API oscar_result oscar_cache_bytes(const oscar_cache_desc *desc, int64_t tokens, oscar_footprint *out);
OSCAR_API oscar_result oscar_cache_create(const oscar_cache_desc *desc, oscar_cache **out);
OSCAR_API void oscar_cache_destroy(oscar_cache *cache);

/* stats: what is in use. check: verifies every invariant, as oscar_pager_check. layout: a layer's page layout; its
   pairs live as long as the cache. */
OSCAR_API void oscar_cache_stats(const oscar_cache *cache, oscar_stats *out);
OSCAR_API oscar_result oscar_cache_check(oscar_cache *cache);
OSCAR_API oscar_result oscar_cache_layout(const oscar_cache *cache, int layer, oscar_layout *out);

/* As the oscar_seq_ functions, with the rows moved as well. cut and fork decode at most one page a layer. */
OSCAR_API oscar_result oscar_cache_open(oscar_cache *cache, oscar_seq *out);
OSCAR_API oscar_result oscar_cache_close(oscar_cache *cache, oscar_seq seq);
OSCAR_API oscar_result oscar_cache_get(const oscar_cache *cache, oscar_seq seq, oscar_seq_state *out);
OSCAR_API oscar_result oscar_cache_fork(oscar_cache *cache, oscar_seq seq, int64_t length, oscar_seq *out);
OSCAR_API oscar_result oscar_cache_cut(oscar_cache *cache, oscar_seq seq, int64_t length);
OSCAR_API oscar_result oscar_cache_reserve(oscar_cache *cache, oscar_seq seq, int64_t rows, int draft);
OSCAR_API oscar_result oscar_cache_accept(oscar_cache *cache, oscar_seq seq, int64_t rows);
OSCAR_API oscar_result oscar_cache_abort(oscar_cache *cache, oscar_seq seq);
OSCAR_API oscar_result oscar_cache_can(const oscar_cache *cache, oscar_seq seq, oscar_op op, int64_t arg);

/* One entry of a batch: rows row .. row + rows - 1 of the views belong to seq; entries share no rows. A zero handle is
   padding: its rows are not read, its outputs are zero (lse -inf). Output rows that no entry names are not written. */
typedef struct oscar_batch {
    oscar_seq seq;
    int64_t row, rows;
} oscar_batch;

/* Writes the reserved rows of one layer; layers in any order, each once a step, by append or prefill; the last layer
   commits. rows must equal what was reserved. Rows are rounded to the window type on entry.
     k, v   [rows of the batch][kv_heads][dim]
   ERR_NUMERIC: a rounded value is not finite, or a row of a 2 or 4 bit side is longer than 32000 / norm; the log names
   sequence, row, head. On any error nothing is written in this layer for any sequence of the batch. */
OSCAR_API oscar_result oscar_append(oscar_cache *cache, int layer, const oscar_batch *batch, int count,
                                    const oscar_view *k, const oscar_view *v);

/* Tokens first .. first + count - 1 of a sequence (committed, or DRAFTED) as the cache holds them. k or v may be NULL.
   ERR_STATE while a step is open: layers that have appended are ahead of the others. */
OSCAR_API oscar_result oscar_fetch(const oscar_cache *cache, int layer, oscar_seq seq, int64_t first, int64_t count,
                                   const oscar_out *k, const oscar_out *v);

/* One sequence as a blob (format: manual 1.5). save: out NULL asks for *size only; capacity too small is ERR_MEMORY and
   *size is set; ERR_STATE while a step is open. restore opens a new sequence, all or nothing: ERR_VERSION if the cache
   has another configuration or other pairs, ERR_FORMAT if the blob is damaged, ERR_FULL without pages or a slot. */
OSCAR_API oscar_result oscar_cache_save(const oscar_cache *cache, oscar_seq seq, void *out, size_t capacity,
                                        size_t *size);
OSCAR_API oscar_result oscar_cache_restore(oscar_cache *cache, const void *blob, size_t size, oscar_seq *out);

/* == 2.12 ATTENTION (level 5) over the cache == */

/* Attention of the last `rows` tokens of each sequence of the batch over sink, history and recent tokens.
     q            [rows of the batch][q_heads][k_dim], plain
     sink_logits  [q_heads], the learned sink logit, or NULL
     o            [rows of the batch][q_heads][v_dim]
     lse          float [rows of the batch][q_heads], or NULL; includes the sink logit
   At most recent + 1 rows of a sequence (any number of drafts), so that each may see all of history; more is
   ERR_ARGUMENT: that is oscar_prefill's work. In an open step the layer must have been appended (ERR_STATE).
   The rows of a sequence and the heads of a group go over its pages together: one call for all rows is much cheaper
   than a call for each. Results do not depend on it. Reads only: many threads may attend at once between writes. */
OSCAR_API oscar_result oscar_attend(const oscar_cache *cache, int layer, const oscar_batch *batch, int count,
                                    const oscar_view *q, const float *sink_logits, const oscar_out *o, float *lse);

/* Share `part` of `parts` of the same work, for the caller's threads: partial results as float
   part_o [rows of the batch][q_heads][v_dim], part_lse [rows of the batch][q_heads], complete after
   oscar_attend_join over all parts. Shares take about the same time, for one long sequence and for many short ones; the
   windows of a KV head are not divided. */
OSCAR_API oscar_result oscar_attend_part(const oscar_cache *cache, int layer, const oscar_batch *batch, int count,
                                         const oscar_view *q, int part, int parts, float *part_o, float *part_lse);

/* Attention of a reserved chunk over the cache before it and, causally and exactly, over its own rows; then the chunk
   is appended. A prompt in one chunk is exact attention over rows rounded to the window type. Arguments as for
   oscar_append and oscar_attend; for a step of drafts ERR_STATE: append those, then attend. */
OSCAR_API oscar_result oscar_prefill(oscar_cache *cache, int layer, const oscar_batch *batch, int count,
                                     const oscar_view *q, const oscar_view *k, const oscar_view *v,
                                     const float *sink_logits, const oscar_out *o, float *lse);

/* == 2.13 INSTRUCTION SETS == */

typedef enum oscar_isa {
    OSCAR_ISA_AUTO, OSCAR_ISA_SCALAR, OSCAR_ISA_AVX2, OSCAR_ISA_AVX512, OSCAR_ISA_AMX, OSCAR_ISA_NEON, OSCAR_ISA_COUNT
} oscar_isa;

/* The best one of this machine is found at the first use. active: the one in use (never AUTO). force: for tests and
   comparisons, process-wide; AUTO returns to the best one. One that is not in this build or not on this machine is
   ERR_ISA and changes nothing; no oscar_isa at all, ERR_ARGUMENT. Bytes are the same on all of them, attention is
   within the tolerance of manual 1.5. AVX2 needs FMA and F16C, too, AVX512 BW, DQ, VL and VNNI, NEON dot products. AMX
   needs AVX512, INT8 tiles and 64-bit Linux from 5.16 on, which is asked to let the process use them: from then on the
   kernel wants alternate signal stacks to have room for 8 KB of tiles. */
OSCAR_API oscar_isa oscar_isa_active(void);
OSCAR_API oscar_result oscar_isa_force(oscar_isa isa);
OSCAR_API const char *oscar_isa_name(oscar_isa isa);

#ifdef __cplusplus
}
#endif
#endif /* OSCAR_H */
/* ==================================================================================================================
   == 3 IMPLEMENTATION
   ================================================================================================================== */
#if defined(OSCAR_IMPLEMENTATION) && !defined(OSCAR__IMPLEMENTED)
#define OSCAR__IMPLEMENTED

/* == 3.1 COMPILER, INCLUDES, ASSERTS == */

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) \
    || defined(__NO_SIGNED_ZEROS__) || defined(_M_FP_FAST) \
    || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0)
#  error "oscar.h: compile without -ffast-math and its parts; page bytes must not depend on the compiler (manual 1.5)"
#endif
#if defined(OSCAR_MALLOC) != defined(OSCAR_FREE)
#  error "oscar.h: define both OSCAR_MALLOC(size) and OSCAR_FREE(pointer), or none"
#endif

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#if !defined(OSCAR_MALLOC)
#  include <stdlib.h>
#  define OSCAR_MALLOC(size) malloc(size)
#  define OSCAR_FREE(pointer) free(pointer)
#endif
#if !defined(OSCAR_NO_STDIO)
#  include <stdio.h>
#endif
#if !defined(OSCAR_ASSERT)
#  if defined(NDEBUG) || defined(OSCAR_NO_STDIO)
#    define OSCAR_ASSERT(condition) ((void)0)
#  else
#    include <assert.h>
#    define OSCAR_ASSERT(condition) assert(condition)
#  endif
#endif

/* Functions that make bytes are not inlined into each other: a compiler that contracts a product of one with a sum of
   another into an fma would change codes (gcc does so across statements). Nor are the inner loops of attention: where
   they are, compilers lose what OSCAR__RESTRICT says and make no vectors of them. */
#if defined(__GNUC__) || defined(__clang__)
#  define OSCAR__NOINLINE __attribute__((noinline))
#elif defined(_MSC_VER)
#  define OSCAR__NOINLINE __declspec(noinline)
#else
#  define OSCAR__NOINLINE
#endif

/* Arrays that the compiler may take to be apart. */
#if defined(__GNUC__) || defined(__clang__) || defined(_MSC_VER)
#  define OSCAR__RESTRICT __restrict
#else
#  define OSCAR__RESTRICT
#endif

/* A float operation rounded to float, also where the compiler evaluates in a wider type (x87). */
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD == 0
#  define OSCAR__F32(x) (x)
#else
static float oscar__f32(float x) { volatile float stored = x; return stored; }
#  define OSCAR__F32(x) oscar__f32(x)
#endif

#if defined(__SANITIZE_ADDRESS__)
#  define OSCAR__ASAN 1
#elif defined(__has_feature)
#  if __has_feature(address_sanitizer)
#    define OSCAR__ASAN 1
#  endif
#endif
#if !defined(OSCAR__ASAN)
#  define OSCAR__ASAN 0
#endif

enum {
    OSCAR__TILE = 16,        /* tokens of a page whose codes share words */
    OSCAR__BLOCK = 64,       /* tokens that share one update of the softmax's maximum; divides every page */
    OSCAR__LANES = 16,       /* chains of a sum of products */
    OSCAR__DIM_MAX = 1024    /* head dimension */
};

OSCAR_API int oscar_version(void) { return OSCAR_VERSION; }

OSCAR_API const char *oscar_result_text(oscar_result result)
{
#define OSCAR__TEXT(name, text) text,
    static const char *const texts[] = { OSCAR_RESULTS(OSCAR__TEXT) };
#undef OSCAR__TEXT
    return (int)result >= 0 && (int)result < (int)OSCAR_RESULT_COUNT ? texts[(int)result] : "not an oscar_result";
}

/* ---- instruction sets: which there are, the table of kernels ---- */

/* One function is compiled for each instruction set in this one translation unit: a target attribute on every function
   that names a vector type (also on inline helpers), no compiler flag. Kernels of a set are in a section of their own
   (3.17 on); the sections before call them through the table that oscar__kernels_now gives. Every kernel writes what
   its scalar version writes, bit for bit, but those of attention. */
#if !defined(OSCAR_NO_SIMD) && (defined(__x86_64__) || defined(_M_X64))
#  if !defined(OSCAR_NO_AVX2)
#    define OSCAR__HAS_AVX2 1
#  endif
#  if !defined(OSCAR_NO_AVX512) && defined(OSCAR__HAS_AVX2)
#    define OSCAR__HAS_AVX512 1
#  endif
   /* AMX on Linux alone: elsewhere the state of its tiles is not given on request (Windows has a call of its own, macOS
      none), and compilers before these have no such target. */
#  if !defined(OSCAR_NO_AMX) && defined(OSCAR__HAS_AVX512) && defined(__linux__) && defined(__LP64__)
#    if (defined(__clang__) && __clang_major__ >= 11) || (!defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 11)
#      define OSCAR__HAS_AMX 1
#    endif
#  endif
#endif
/* NEON itself is part of every 64-bit ARM; products of bytes came with ARMv8.2, in gcc with version 8. */
#if !defined(OSCAR_NO_SIMD) && !defined(OSCAR_NO_NEON) \
    && (defined(_M_ARM64) || (defined(__AARCH64EL__) && (defined(__clang__) || __GNUC__ >= 8)))
#  define OSCAR__HAS_NEON 1
#endif
#if defined(OSCAR__HAS_AVX2) || defined(OSCAR__HAS_NEON)
#  define OSCAR__HAS_VECTORS 1
#endif
#if defined(OSCAR__HAS_NEON)
#  include <arm_neon.h>
#  if defined(__linux__) && !defined(__ARM_FEATURE_DOTPROD)
#    include <sys/auxv.h>
#  endif
#endif
#if defined(OSCAR__HAS_AVX2)
#  include <immintrin.h>
#  if defined(_MSC_VER)
#    include <intrin.h>
#  else
#    include <cpuid.h>
#  endif
#endif
#if defined(__GNUC__) || defined(__clang__)
#  define OSCAR__AVX2 __attribute__((target("avx2,fma,f16c")))
#  define OSCAR__AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")))
#  define OSCAR__AMX \
    __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")))
#else   /* MSVC emits any intrinsic without being asked */
#  define OSCAR__AVX2
#  define OSCAR__AVX512
#endif
/* In front of an array on the stack: it starts a cache line, so that no vector lies in two, which costs time. */
#if defined(__GNUC__) || defined(__clang__)
#  define OSCAR__LINES __attribute__((aligned(64)))
#elif defined(_MSC_VER)
#  define OSCAR__LINES __declspec(align(64))
#else
#  define OSCAR__LINES
#endif
#if defined(__GNUC__) || defined(__clang__)
#  define OSCAR__PREFETCH(p) __builtin_prefetch(p)
#elif defined(OSCAR__HAS_AVX2)
#  define OSCAR__PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
#elif defined(_M_ARM64)
#  define OSCAR__PREFETCH(p) __prefetch(p)
#else
#  define OSCAR__PREFETCH(p) ((void)0)
#endif
#if defined(__clang__)
#  define OSCAR__NEON __attribute__((target("dotprod")))
#elif defined(__GNUC__) && !defined(__ARM_FEATURE_DOTPROD)
/* What the flags turn on stays on: gcc inlines nothing into a function that was compiled for less. */
#  if defined(__ARM_FEATURE_CRYPTO)
#    define OSCAR__NEON_CRYPTO "+crypto"
#  else
#    define OSCAR__NEON_CRYPTO
#  endif
#  if defined(__ARM_FEATURE_SVE)
#    define OSCAR__NEON_MORE "+fp16+sve"
#  elif defined(__ARM_FEATURE_FP16_SCALAR_ARITHMETIC)
#    define OSCAR__NEON_MORE "+fp16"
#  else
#    define OSCAR__NEON_MORE
#  endif
#  define OSCAR__NEON __attribute__((target("arch=armv8.2-a+dotprod" OSCAR__NEON_CRYPTO OSCAR__NEON_MORE)))
#else
#  define OSCAR__NEON
#endif
#if defined(_MSC_VER)
#  define OSCAR__INLINE static __forceinline
#elif defined(__GNUC__) || defined(__clang__)
#  define OSCAR__INLINE static inline __attribute__((always_inline))
#else
#  define OSCAR__INLINE static
#endif

/* 64 tokens of one side of a KV head in a page, as codes. scale, minimum: fp16 of the first of them in group 0;
   minimum NULL: the code `centre` stands for 0. tokens: of the page, from a group's metadata to the next. ahead: bytes
   from here to what is read next, for the cache. */
typedef struct oscar__codes {
    const unsigned char *codes, *scale, *minimum;
    ptrdiff_t ahead;
    float centre;
    int bits, dim, group, tokens;
} oscar__codes;

/* What attention does in vectors, for four queries at a time (3.13): `count` is 1 to 4, arrays have room for 4. limbs:
   1 or 2, the bytes of a number that is multiplied with codes; limb: [dim / 16][4 queries][2][16], or another order of
   as many bytes that the kernels agree upon.

     widen     `rows` rows of `type` from x on, `stride` bytes apart, rounded to `round`, as out [rows][dim]; finite
               where they are rounded
     products  out[query][row] = x_query . m_row of a type, strides in bytes; ahead: as in oscar__codes
     combine   out[query][dim] += sum over rows of weight[query][row] m_row, in the order of the rows
     limbs     number `query` of x [dim] -> limb; step and sum of each group [dim / group][4]. What limb holds times
               step is close to x, and sum is exactly its sum. Not finite: step and sum are NaN
     mean      out[query] = what limb holds . bytes [dim]
     score     products of queries with 64 keys, score[query][64]. low: -centre sum, or sum where there are minima;
               start[0][4], start[1][4]: what is added in rows whose sign bit is clear, and set
     softmax   products score [query][64] -> weights exp(logit - that of top), logit = scale product, capped if cap > 0.
               Tokens first[query] .. end[query] - 1 count (both NULL: all), the others get 0. Updates top, in products
               or in capped logits, and sum; 1 if some top grew: then sums of before are to be multiplied by factor
     rescale   acc[query][dim] *= factor[query]
     weigh     weights[query][64] times the scales of group g of V -> limb, 512 bytes of four queries: [4 tiles]
               [4 queries][2][16], or an order of the set's own; one limb is unsigned. step and base [4]: the sum over
               tokens of weight times value is step limb . codes + base
     blend     acc[query][dim] += sum over 64 tokens of weight[query][64] times value. limb, step, base: what weigh made
               of group 0; they get those of the other groups

   queries: how many score and blend take at a time, 4 or OSCAR__QUERIES; limb, step, low, start and base are by fours
   all the same. begin and end, or NULL: called before and after the pages, if they have codes, for `count` queries that
   go together. */
typedef struct oscar__attend_kernels {
    void (*widen)(oscar_type type, oscar_type round, int rows, int dim, const unsigned char *x, ptrdiff_t stride,
                  float *out);
    void (*products)(oscar_type type, int count, int rows, int dim, const float *x, ptrdiff_t x_stride, const void *m,
                     ptrdiff_t m_stride, ptrdiff_t ahead, float *out, ptrdiff_t out_stride);
    void (*combine)(oscar_type type, int count, int rows, int dim, const float *weight, ptrdiff_t weight_stride,
                    const void *m, ptrdiff_t m_stride, ptrdiff_t ahead, float *out, ptrdiff_t out_stride);
    void (*limbs)(int limbs, int dim, int group, int query, const float *x, signed char *limb, float *step, float *sum);
    void (*mean)(int limbs, int dim, int group, const unsigned char *bytes, const signed char *limb, const float *step,
                 float *out);
    void (*score)(int count, int limbs, const oscar__codes *k, const signed char *limb, const float *step,
                  const float *low, const float *start, float *score);
    int (*softmax)(int count, float scale, float cap, const int *first, const int *end, float *score, float *top,
                   float *sum, float *factor);
    void (*rescale)(int count, int dim, const float *factor, float *acc);
    void (*weigh)(int count, int limbs, const oscar__codes *v, int g, const float *weight, signed char *limb,
                  float *step, float *base);
    void (*blend)(int count, int limbs, const oscar__codes *v, const float *weight, signed char *limb, float *step,
                  float *base, float *acc);
    int queries;
    void (*begin)(int count);
    void (*end)(void);
} oscar__attend_kernels;

typedef struct oscar__eigh oscar__eigh;         /* 3.4 */
typedef struct oscar__encoder oscar__encoder;   /* 3.11 */

/* What each instruction set does in its own way. The scalar versions stand in the sections of their subjects. Where n
   is a size_t it is a multiple of 16; so are n of sum_products and every dim.

     load          n numbers of a type as floats (3.3); store: floats as a type, none a NaN
     load_rounded  the same, rounded to what another type holds
     finite        whether all of x is (3.3). x: [n]
     fwht          out = H in / sqrt(N), several rows, N the largest power of two that divides n (3.5). in, out:
                   [rows][n]; out may be in
     butterfly     x = H x. x: [n]
     rotate        out = x m, several rows (3.5). x, out: [rows][n], not overlapping; m: [n][n]
     rotate_back   out = m x of one row, n a multiple of 16 (3.5). x, out: [n], not overlapping; m: [n][n]
     centre        out = x - mean (3.6). All [dim]; out may be x
     sum_products  S(x, y) (3.11). x, y: [n]
     encode        codes and metadata of the rows of an encoder, [rows][dim] (3.11)
     pack          the codes of a tile as words of a page (3.12). codes: [dim][16]; tile: dim * 2 * bits bytes
     put_halves    16 numbers as fp16, little endian, none a NaN (3.12)
     mean_sum      z, the mean of a page's rows (3.12). x: [tokens][dim]; z: [dim]
     mean_levels   levels n and their bytes for the scale s (3.12). z, n, bytes: [dim]

   Eigensolver (3.4), double: four pairs of rows (x[i], y[i]), [width], a multiple of 8. Sums may differ in rounding.

     eigh_dots       product[i] = x[i] . y[i]
     eigh_turn       (x[i], y[i]) <- (c[i] x[i] - s[i] y[i], c[i] y[i] + s[i] x[i])
     eigh_turn_dots  the same, then product[i] = x[i] . y[i + 1], i + 1 modulo 4
     eigh_angles     c and s of four pairs from product, norms and roots of rows p[i] and q[i]. 0: none is to be turned,
                     1: by so little that what was orthogonal stays so, 2: by more

   Dense matrices and calibration (3.4, 3.7, 3.8), double. Sums may differ in rounding.

     add_rows     out += sign * sum of factors[k * stride] rows[k] over k < count. rows: [count][lead], out: [width]
     add_tile     sum[i][j] += sum of a[k][i] b[k][j] over k < count, i < 8, j < 16; strides are those of rows, count is
                  a multiple of 4
     widen        out[i] = x[i]
     weigh_copy   row = x, weighted = weight x; count is a multiple of 16
     turn_halves  out = x with (x[i], x[i + count]) turned by (cosine[i], sine[i]), i < count
     exp_row      x[i] = exp(x[i] - most), most the largest x[i]; returns their sum; count is a multiple of 16. Vectors
                  take what is below exp(-708) for 0
     weigh_row    sum[i] += p (1 - p), p = x[i] / total, not less than 0; returns what was added; count likewise

   attend: kernels of attention (3.13), NULL: attention in double. */
typedef struct oscar__kernels {
    oscar_isa isa;
    void (*load)(oscar_type type, const void *in, size_t n, float *out);
    void (*store)(oscar_type type, const float *in, size_t n, void *out);
    void (*load_rounded)(oscar_type type, const void *in, oscar_type to, size_t n, float *out);
    int (*finite)(const float *x, size_t n);
    void (*fwht)(int n, size_t rows, const float *in, float *out);
    void (*butterfly)(int n, float *x);
    void (*rotate)(int n, int rows, const float *m, const float *x, float *out);
    void (*rotate_back)(int n, const float *m, const float *x, float *out);
    void (*centre)(int dim, const float *x, const float *mean, float *out);
    float (*sum_products)(int n, const float *x, const float *y);
    void (*encode)(oscar__encoder *e, const float *rows);
    void (*pack)(int is_k, int bits, int dim, const unsigned char *codes, unsigned char *tile);
    void (*put_halves)(const float *x, unsigned char *out);
    void (*mean_sum)(int tokens, int dim, const float *x, float *z);
    void (*mean_levels)(int dim, const float *z, float s, float *n, unsigned char *bytes);
    void (*eigh_dots)(size_t width, double *const *x, double *const *y, double *product);
    void (*eigh_turn)(size_t width, const double *c, const double *s, double *const *x, double *const *y);
    void (*eigh_turn_dots)(size_t width, const double *c, const double *s, double *const *x, double *const *y,
                           double *product);
    int (*eigh_angles)(oscar__eigh *e, const size_t *p, const size_t *q, const double *product, double *c,
                       double *s);
    void (*add_rows)(size_t width, size_t count, double sign, const double *factors, size_t stride, const double *rows,
                    size_t lead, double *out);
    void (*add_tile)(size_t count, const double *a, size_t a_stride, const double *b, size_t b_stride, double *sum,
                     size_t sum_stride);
    void (*widen)(size_t count, const float *x, double *out);
    void (*weigh_copy)(size_t count, double weight, const double *x, double *row, double *weighted);
    void (*turn_halves)(size_t count, const double *cosine, const double *sine, const double *x, double *out);
    double (*exp_row)(size_t count, double *x);
    double (*weigh_row)(size_t count, double total, const double *x, double *sum);
    const oscar__attend_kernels *attend;
} oscar__kernels;

static const oscar__kernels *oscar__kernels_now(void);   /* 3.21 */

/* == 3.2 SIZES, TEXT, LOG, MEMORY == */

/* Sizes saturate: one that overflowed stays OSCAR__SIZE_MAX through later sums and products, and no allocator gives
   that much. */
#define OSCAR__SIZE_MAX ((size_t)-1)

static size_t oscar__add(size_t a, size_t b) { return a > OSCAR__SIZE_MAX - b ? OSCAR__SIZE_MAX : a + b; }

static size_t oscar__mul(size_t a, size_t b)
{
    return b && a > OSCAR__SIZE_MAX / b ? OSCAR__SIZE_MAX : a * b;
}

static size_t oscar__align_up(size_t a, size_t align)   /* align: a power of two */
{
    a = oscar__add(a, align - 1);
    return a == OSCAR__SIZE_MAX ? a : a & ~(align - 1);
}

/* Text into a buffer without stdio or locale. len counts what was asked for, also beyond capacity; always ends in 0
   where capacity is not 0. */
typedef struct oscar__text { char *out; size_t capacity, len; } oscar__text;

static void oscar__put_char(oscar__text *t, char c)
{
    if (t->len + 1 < t->capacity) { t->out[t->len] = c; t->out[t->len + 1] = 0; }
    t->len++;
}

static void oscar__put_string(oscar__text *t, const char *s)
{
    for (; *s; s++) oscar__put_char(t, *s);
}

static void oscar__put_unsigned(oscar__text *t, uint64_t value)
{
    char digits[20];
    int n = 0;
    do { digits[n++] = (char)('0' + (int)(value % 10)); value /= 10; } while (value);
    while (n) oscar__put_char(t, digits[--n]);
}

static void oscar__put_integer(oscar__text *t, int64_t value)
{
    if (value < 0) oscar__put_char(t, '-');
    oscar__put_unsigned(t, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

/* value with 6 significant digits, trailing zeros removed: 0.96, 0.0001, 12, 1.5e+20, nan, inf. */
static void oscar__put_real(oscar__text *t, double value)
{
    char digit[6];
    int exponent, digits, i;
    double mantissa;
    if (value != value) { oscar__put_string(t, "nan"); return; }
    if (value < 0) { oscar__put_char(t, '-'); value = -value; }
    if (value > DBL_MAX) { oscar__put_string(t, "inf"); return; }
    if (value < DBL_MIN) { oscar__put_char(t, '0'); return; }
    exponent = (int)floor(log10(value));
    mantissa = floor(value / pow(10, exponent) * 1e5 + 0.5);
    if (mantissa >= 1e6) { mantissa /= 10; exponent++; }
    for (i = 5; i >= 0; i--) { digit[i] = (char)('0' + (int)fmod(mantissa, 10)); mantissa = floor(mantissa / 10); }
    for (digits = 6; digits > 1 && digit[digits - 1] == '0'; digits--) {}

    if (exponent < -4 || exponent > 14) {
        oscar__put_char(t, digit[0]);
        if (digits > 1) oscar__put_char(t, '.');
        for (i = 1; i < digits; i++) oscar__put_char(t, digit[i]);
        oscar__put_string(t, exponent < 0 ? "e-" : "e+");
        oscar__put_integer(t, exponent < 0 ? -exponent : exponent);
        return;
    }
    if (exponent < 0) oscar__put_string(t, "0.");
    for (i = exponent + 1; i < 0; i++) oscar__put_char(t, '0');
    for (i = 0; i < digits || i <= exponent; i++) {
        if (i == exponent + 1 && i > 0) oscar__put_char(t, '.');
        oscar__put_char(t, i < digits ? digit[i] : '0');
    }
}

/* format: %s string, %i int, %I int64_t, %z size_t, %g double; nothing else. */
static void oscar__put_format(oscar__text *t, const char *format, va_list args)
{
    for (; *format; format++) {
        if (*format != '%') { oscar__put_char(t, *format); continue; }
        switch (*++format) {
        case 's': oscar__put_string(t, va_arg(args, const char *)); break;
        case 'i': oscar__put_integer(t, va_arg(args, int)); break;
        case 'I': oscar__put_integer(t, va_arg(args, int64_t)); break;
        case 'z': oscar__put_unsigned(t, va_arg(args, size_t)); break;
        case 'g': oscar__put_real(t, va_arg(args, double)); break;
        default: OSCAR_ASSERT(0 && "unknown format"); return;
        }
    }
}

/* Sends one sentence to the log and returns code. */
static oscar_result oscar__log(const oscar_hooks *hooks, oscar_level level, oscar_result code, int line,
                               const char *format, ...)
{
    if (hooks && hooks->log) {
        char buffer[512];
        oscar__text text = { NULL, 0, 0 };
        va_list args;
        text.out = buffer;
        text.capacity = sizeof buffer;
        va_start(args, format);
        oscar__put_format(&text, format, args);
        va_end(args);
        hooks->log(hooks->user, level, code, line, buffer);
    }
    return code;
}
#define OSCAR__FAIL(hooks, code, ...) oscar__log(hooks, OSCAR_LOG_ERROR, code, __LINE__, __VA_ARGS__)
#define OSCAR__WARN(hooks, ...) ((void)oscar__log(hooks, OSCAR_LOG_WARNING, OSCAR_OK, __LINE__, __VA_ARGS__))

enum { OSCAR__ALIGN = 128 };

static oscar_result oscar__hooks_check(const oscar_hooks *hooks)
{
    if (hooks && !hooks->alloc != !hooks->free)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "hooks have only one of alloc and free: set both or none");
    return OSCAR_OK;
}

/* Memory aligned to OSCAR__ALIGN, not cleared; NULL if there is none. */
static void *oscar__alloc(const oscar_hooks *hooks, size_t size)
{
    unsigned char *raw, *memory;
    if (size == 0 || size > OSCAR__SIZE_MAX / 2) return NULL;
    if (hooks && hooks->alloc) return hooks->alloc(hooks->user, size, OSCAR__ALIGN);
    raw = (unsigned char *)OSCAR_MALLOC(size + OSCAR__ALIGN);
    if (!raw) return NULL;
    memory = raw + OSCAR__ALIGN - (uintptr_t)raw % OSCAR__ALIGN;   /* at least 1 byte before it, for the distance */
    memory[-1] = (unsigned char)(memory - raw);
    return memory;
}

static void oscar__free(const oscar_hooks *hooks, void *memory, size_t size)
{
    if (!memory) return;
    if (hooks && hooks->free) hooks->free(hooks->user, memory, size, OSCAR__ALIGN);
    else OSCAR_FREE((unsigned char *)memory - ((unsigned char *)memory)[-1]);
}

#if OSCAR__ASAN
#  ifdef __cplusplus
extern "C"
#  endif
void __asan_poison_memory_region(const volatile void *address, size_t size);
#  ifdef __cplusplus
extern "C"
#  endif
void __asan_unpoison_memory_region(const volatile void *address, size_t size);
#endif

/* Cuts one allocation into arrays. The same code runs twice: with base NULL it only counts (size), then with memory.
   Under AddressSanitizer a poisoned gap follows each array, so that running over its end is seen. */
typedef struct oscar__carver { unsigned char *base; size_t size; } oscar__carver;

static void *oscar__carve(oscar__carver *c, size_t count, size_t each)
{
    size_t start = oscar__align_up(c->size, OSCAR__ALIGN), bytes = oscar__mul(count, each);
    c->size = oscar__add(start, bytes);
#if OSCAR__ASAN
    c->size = oscar__align_up(oscar__add(c->size, OSCAR__ALIGN), OSCAR__ALIGN);
    if (c->base) __asan_poison_memory_region(c->base + start + bytes, c->size - start - bytes);
#endif
    return c->base ? c->base + start : NULL;
}

/* Gives the carved memory back whole. */
static void oscar__carver_free(const oscar_hooks *hooks, void *memory, size_t size)
{
#if OSCAR__ASAN
    if (memory) __asan_unpoison_memory_region(memory, size);
#endif
    oscar__free(hooks, memory, size);
}

/* FNV-1a, 64 bits. Start with OSCAR__FNV_START. */
#define OSCAR__FNV_START 14695981039346656037u

static uint64_t oscar__fnv(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *p = (const unsigned char *)data;
    size_t i;
    for (i = 0; i < size; i++) hash = (hash ^ p[i]) * 1099511628211u;
    return hash;
}

/* FNV-1a of a blob but for the 8 bytes at `at`, where the checksum itself stands. */
static uint64_t oscar__checksum(const unsigned char *blob, size_t size, size_t at)
{
    uint64_t hash = oscar__fnv(OSCAR__FNV_START, blob, at);
    return oscar__fnv(hash, blob + at + 8, size - at - 8);
}

/* == 3.3 NUMBERS: half floats, little-endian bytes, rows of a view == */

static float oscar__float_of_bits(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
static uint32_t oscar__bits_of_float(float f) { uint32_t bits; memcpy(&bits, &f, 4); return bits; }

static void oscar__put16(unsigned char *p, unsigned x) { p[0] = (unsigned char)x; p[1] = (unsigned char)(x >> 8); }
static uint16_t oscar__get16(const unsigned char *p) { return (uint16_t)(p[0] | p[1] << 8); }

static void oscar__put32(unsigned char *p, uint32_t x) { oscar__put16(p, x & 0xffff); oscar__put16(p + 2, x >> 16); }
static uint32_t oscar__get32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void oscar__put64(unsigned char *p, uint64_t x)
{
    oscar__put32(p, (uint32_t)x);
    oscar__put32(p + 4, (uint32_t)(x >> 32));
}
static uint64_t oscar__get64(const unsigned char *p) { return oscar__get32(p) | (uint64_t)oscar__get32(p + 4) << 32; }

static float oscar__float_of_bf16(uint16_t h) { return oscar__float_of_bits((uint32_t)h << 16); }

static uint16_t oscar__bf16_of_float(float f)
{
    uint32_t u = oscar__bits_of_float(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);   /* stays NaN: rounding up could reach inf */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float oscar__float_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31) return oscar__float_of_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent) return oscar__float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    return oscar__float_of_bits(oscar__bits_of_float((float)mantissa * 5.9604644775390625e-8f) | sign);   /* 2^-24 */
}

static uint16_t oscar__f16_of_float(float f)
{
    uint32_t u = oscar__bits_of_float(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);           /* 65520 and above */
    if (a >= 0x38800000) return (uint16_t)(sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
    if (a < 0x33000000) return (uint16_t)sign;                       /* below half of the smallest subnormal */
    {
        uint32_t shift = 126 - (a >> 23), mantissa = (a & 0x7fffff) | 0x800000, half = 1u << (shift - 1);
        return (uint16_t)(sign | (mantissa + half - 1 + (mantissa >> shift & 1)) >> shift);
    }
}

static size_t oscar__type_size(oscar_type type) { return type == OSCAR_BF16 || type == OSCAR_F16 ? 2 : 4; }

static int oscar__type_valid(oscar_type type) { return (int)type >= OSCAR_TYPE_DEFAULT && (int)type <= OSCAR_F16; }

/* Values of any type and alignment, in the machine's byte order. */
static void oscar__load(oscar_type type, const void *in, size_t count, float *out)
{
    const unsigned char *p = (const unsigned char *)in;
    size_t i;
    if (oscar__type_size(type) == 4) { memmove(out, in, count * 4); return; }
    for (i = 0; type == OSCAR_BF16 && i < count; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        out[i] = oscar__float_of_bf16(h);
    }
    for (i = 0; type == OSCAR_F16 && i < count; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        out[i] = oscar__float_of_f16(h);
    }
}

static void oscar__store(oscar_type type, const float *in, size_t count, void *out)
{
    unsigned char *p = (unsigned char *)out;
    size_t i;
    if (oscar__type_size(type) == 4) { memmove(out, in, count * 4); return; }
    for (i = 0; i < count; i++) {
        uint16_t h = type == OSCAR_BF16 ? oscar__bf16_of_float(in[i]) : oscar__f16_of_float(in[i]);
        memcpy(p + 2 * i, &h, 2);
    }
}

static float oscar__type_max(oscar_type type)
{
    return type == OSCAR_BF16 ? oscar__float_of_bits(0x7f7f0000) : type == OSCAR_F16 ? 65504.0f : FLT_MAX;
}

/* Widens numbers of `type` at the start of x to floats, from the end: x[i] covers the numbers 2i and 2i + 1. */
static void oscar__load_in_place(oscar_type type, float *x, size_t count)
{
    const unsigned char *p = (const unsigned char *)x;
    size_t i = count;
    if (oscar__type_size(type) == 4) return;
    while (i--) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        x[i] = type == OSCAR_BF16 ? oscar__float_of_bf16(h) : oscar__float_of_f16(h);
    }
}

/* Rounds in place to what `type` holds; too large becomes infinite. */
static void oscar__round_to(oscar_type type, float *x, size_t count)
{
    if (oscar__type_size(type) == 4) return;
    oscar__store(type, x, count, x);
    oscar__load_in_place(type, x, count);
}

static void oscar__load_rounded(oscar_type type, const void *in, oscar_type to, size_t count, float *out)
{
    oscar__load(type, in, count, out);
    oscar__round_to(to, out, count);
}

/* Stores x, clamped to the largest finite value of the type first. Changes x. */
static void oscar__store_saturated(oscar_type type, float *x, size_t count, void *out)
{
    float top = oscar__type_max(type);
    size_t i;
    for (i = 0; i < count; i++) x[i] = x[i] > top ? top : x[i] < -top ? -top : x[i];
    oscar__store(type, x, count, out);
}

static int oscar__finite(const float *x, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) if (!(x[i] <= FLT_MAX && x[i] >= -FLT_MAX)) return 0;
    return 1;
}

/* Bytes from the start of a view to a row, heads x dim values a token. Strides of 0 are the contiguous ones. */
static ptrdiff_t oscar__row_offset(oscar_type type, ptrdiff_t token_stride, ptrdiff_t head_stride, int heads, int dim,
                                   int64_t token, int head)
{
    if (!token_stride) token_stride = (ptrdiff_t)heads * dim;
    if (!head_stride) head_stride = dim;
    return ((ptrdiff_t)token * token_stride + head * head_stride) * (ptrdiff_t)oscar__type_size(type);
}

static const void *oscar__view_at(const oscar_view *view, int heads, int dim, int64_t token, int head)
{
    return (const unsigned char *)view->data
           + oscar__row_offset(view->type, view->token_stride, view->head_stride, heads, dim, token, head);
}

static void oscar__view_row(const oscar_view *view, int heads, int dim, int64_t token, int head, float *out)
{
    oscar__kernels_now()->load(view->type, oscar__view_at(view, heads, dim, token, head), (size_t)dim, out);
}

/* How many heads from `head` on lie together in a token of a view, as many as make OSCAR__DIM_MAX values at most. */
static int oscar__view_together(const oscar_view *view, int heads, int dim, int head)
{
    int most = OSCAR__DIM_MAX / dim;
    if (view->head_stride && view->head_stride != dim) return 1;
    return heads - head < most ? heads - head : most;
}

/* At most OSCAR__DIM_MAX numbers of one type as another, none a NaN. */
static void oscar__convert_row(oscar_type from, const void *in, oscar_type to, size_t n, void *out)
{
    float x[OSCAR__DIM_MAX];
    if (from == to || (oscar__type_size(from) == 4 && oscar__type_size(to) == 4)) {
        memcpy(out, in, n * oscar__type_size(to));
        return;
    }
    oscar__kernels_now()->load(from, in, n, x);
    oscar__kernels_now()->store(to, x, n, out);
}

/* Rounded to what `type` holds. */
static void oscar__view_row_rounded(const oscar_view *view, oscar_type type, int heads, int dim, int64_t token,
                                    int head, float *out)
{
    const void *row = oscar__view_at(view, heads, dim, token, head);
    oscar__kernels_now()->load_rounded(view->type, row, type, (size_t)dim, out);
}

static void *oscar__out_at(const oscar_out *out, int heads, int dim, int64_t token, int head)
{
    return (unsigned char *)out->data
           + oscar__row_offset(out->type, out->token_stride, out->head_stride, heads, dim, token, head);
}

static int oscar__little_endian(void)
{
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first == 1;
}

/* Copies numbers between the machine's byte order and little endian; the way back is the same. from may be to. */
static void oscar__copy_little_endian(oscar_type type, const void *from, size_t bytes, void *to)
{
    const unsigned char *p = (const unsigned char *)from;
    unsigned char *o = (unsigned char *)to;
    size_t i, each = oscar__type_size(type);
    if (oscar__little_endian()) { memmove(to, from, bytes); return; }
    for (i = 0; i < bytes; i += each) {
        if (each == 2) {
            uint16_t half = oscar__get16(p + i);
            memcpy(o + i, &half, 2);
        } else {
            uint32_t word = oscar__get32(p + i);
            memcpy(o + i, &word, 4);
        }
    }
}

OSCAR_API void oscar_convert(size_t count, oscar_type from, const void *in, oscar_type to, void *out)
{
    const unsigned char *p = (const unsigned char *)in;
    unsigned char *o = (unsigned char *)out;
    size_t i;
    OSCAR_ASSERT(oscar__type_valid(from) && oscar__type_valid(to));
    for (i = 0; i < count; i++) {
        float x;
        oscar__load(from, p + i * oscar__type_size(from), 1, &x);
        oscar__store(to, &x, 1, o + i * oscar__type_size(to));
    }
}

/* == 3.4 EIGENSOLVER, CHOLESKY == */

/* Veselic & Hari (1989), Demmel & Veselic (1992). With complete pivoting A = G^T G, G: [rank][n] (the columns of the
   Cholesky factor stored as rows). Plane rotations from the left make the rows of G orthogonal: J G = S U^T. Then
   A = U S^2 U^T, so the normalised rows are eigenvectors, their squared lengths eigenvalues, and no rotation has to be
   accumulated. Every step has an error relative to the rows it touches; that is why small eigenvalues of a graded
   matrix keep their digits.

   A pair of rows x, y with squared lengths a, b and product g turns by

       d = b - a     w = 2g     h = sqrt(d^2 + w^2)     r = sqrt(2h (h + |d|))     t = sign(d) w / (h + |d|)
       c = (h + |d|) / r     s = sign(d) w / r     x' = c x - s y     y' = c y + s x     a' = a - t g     b' = b + t g

   and by a quarter turn more, (c, s) <- (s, -c), where that leaves the longer one of both as x: rows in descending
   order need fewer rotations (de Rijk 1989). Rotations go in rounds of four disjoint pairs; turning the rows of one
   round makes the products of the next one on the way, while they are in registers. */

enum {
    OSCAR__EIGH_MAX = 4096,
    OSCAR__EIGH_LANES = 8,     /* sums of a dot product that do not wait for each other; rows are padded to it */
    OSCAR__EIGH_PAIRS = 4,     /* disjoint pairs of a round */
    OSCAR__EIGH_BLOCK = 8,     /* rows that meet those of another block; two blocks stay in 48 KiB for n <= 320 */
    OSCAR__EIGH_SWEEPS = 40    /* 4 to 10 are usual */
};

/* The largest |a_ij|: beyond, sums of entries and the unit below come near the ends of double's range. */
#define OSCAR__EIGH_LARGEST 1e280
#define OSCAR__EIGH_SMALLEST 1e-280

/* At -O2 gcc makes vectors of loops of a known length whose arrays are known to be apart, clang of plain loops. */
#if defined(__clang__)
#  define OSCAR__EIGH_CHUNK(width) (width)
#else
#  define OSCAR__EIGH_CHUNK(width) OSCAR__EIGH_LANES
#endif

/*   width    n rounded up to a multiple of OSCAR__EIGH_LANES; the padding is zero
     lead     distance of rows: one cache line more than width, else rows of 2^k values share few cache sets
     exact    a is symmetric to the last bit, so that reading down columns can be saved
     unit     power of two that brings the largest |a_ij| into [1, 2); shift is added to the diagonal after it
     rows     [n rounded up to a multiple of OSCAR__EIGH_BLOCK][lead]; those from rank on are zero
     norm, root   per row: squared length and length. root is as old as the sweep, but for exchanges: it only says what
              may wait for the next one, and the last sweep changes no row that matters
     tolerance, coarse   of |x . y| / (|x| |y|): what is orthogonal, what needs another sweep
     line     [width], a row of the matrix      order  [n] */
struct oscar__eigh {
    const double *a;
    int n, rank, sweeps, indefinite, exact;
    size_t width, lead, row_count;
    double unit, shift, tolerance, coarse;
    double *rows, *norm, *root, *line;
    int *order;
};

/* Places the arrays in scratch (NULL: only counts) and returns the bytes. */
static size_t oscar__eigh_place(oscar__eigh *e, int n, const double *a, void *scratch)
{
    enum { LINE = 64 };
    size_t size = (size_t)n, count;
    double *next;
    memset(e, 0, sizeof *e);
    e->a = a;
    e->n = n;
    e->width = oscar__align_up(size, OSCAR__EIGH_LANES);
    e->lead = e->width + LINE / sizeof(double);
    e->row_count = oscar__align_up(size, OSCAR__EIGH_BLOCK);
    count = e->row_count * e->lead + 2 * e->row_count + e->width;
    if (scratch) {
        next = (double *)scratch;
        while ((uintptr_t)next % LINE) next++;
        e->rows = next;
        e->norm = e->rows + e->row_count * e->lead;
        e->root = e->norm + e->row_count;
        e->line = e->root + e->row_count;
        e->order = (int *)(e->line + e->width);
    }
    return LINE + count * sizeof(double) + size * sizeof(int);
}

/* Row i of unit (a + a^T) / 2 + shift I. out: [width] */
static void oscar__eigh_line(const oscar__eigh *e, int i, double *out)
{
    size_t size = (size_t)e->n, row = (size_t)i, j;
    double half = 0.5 * e->unit;
    if (e->exact) for (j = 0; j < size; j++) out[j] = e->a[row * size + j] * e->unit;
    else for (j = 0; j < size; j++) out[j] = (e->a[row * size + j] + e->a[j * size + row]) * half;
    j = size;
    for (; j < e->width; j++) out[j] = 0;
    out[row] += e->shift;
}

static OSCAR__NOINLINE double oscar__eigh_dot(size_t width, const double *x, const double *y)
{
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
    size_t k;
    for (k = 0; k < width; k += OSCAR__EIGH_LANES) {
        s0 += x[k] * y[k];
        s1 += x[k + 1] * y[k + 1];
        s2 += x[k + 2] * y[k + 2];
        s3 += x[k + 3] * y[k + 3];
        s4 += x[k + 4] * y[k + 4];
        s5 += x[k + 5] * y[k + 5];
        s6 += x[k + 6] * y[k + 6];
        s7 += x[k + 7] * y[k + 7];
    }
    return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7));
}

/* y += factor x */
static OSCAR__NOINLINE void oscar__add_row(size_t width, double factor, const double *OSCAR__RESTRICT x,
                                           double *OSCAR__RESTRICT y)
{
    size_t k = 0, l;
    for (; k + OSCAR__EIGH_LANES <= width; k += OSCAR__EIGH_LANES)
        for (l = 0; l < OSCAR__EIGH_LANES; l++) y[k + l] += factor * x[k + l];
    for (; k < width; k++) y[k] += factor * x[k];
}

static void oscar__add_row_sum(size_t width, size_t count, double sign, const double *factors, size_t stride,
                           const double *rows, size_t lead, double *out)
{
    size_t k;
    for (k = 0; k < count; k++) oscar__add_row(width, sign * factors[k * stride], rows + k * lead, out);
}

/* (x, y) <- (c x - s y, c y + s x) */
static OSCAR__NOINLINE void oscar__eigh_turn_pair(size_t width, double c, double s, double *OSCAR__RESTRICT x,
                                                  double *OSCAR__RESTRICT y)
{
    size_t k, l;
    for (k = 0; k < width; k += OSCAR__EIGH_CHUNK(width))
        for (l = 0; l < OSCAR__EIGH_CHUNK(width); l++) {
            double a = x[k + l], b = y[k + l];
            x[k + l] = c * a - s * b;
            y[k + l] = c * b + s * a;
        }
}

/* -- the scalar kernels -- */

static void oscar__eigh_dots(size_t width, double *const *x, double *const *y, double *product)
{
    int i;
    for (i = 0; i < OSCAR__EIGH_PAIRS; i++) product[i] = oscar__eigh_dot(width, x[i], y[i]);
}

static void oscar__eigh_turn(size_t width, const double *c, const double *s, double *const *x, double *const *y)
{
    int i;
    for (i = 0; i < OSCAR__EIGH_PAIRS; i++) oscar__eigh_turn_pair(width, c[i], s[i], x[i], y[i]);
}

static void oscar__eigh_turn_dots(size_t width, const double *c, const double *s, double *const *x, double *const *y,
                                  double *product)
{
    int i;
    oscar__eigh_turn(width, c, s, x, y);
    for (i = 0; i < OSCAR__EIGH_PAIRS; i++)
        product[i] = oscar__eigh_dot(width, x[i], y[(i + 1) % OSCAR__EIGH_PAIRS]);
}

/* Without a branch in between, so that roots and quotients of several pairs overlap. */
static int oscar__eigh_angles(oscar__eigh *e, const size_t *p, const size_t *q, const double *product, double *c,
                              double *s)
{
    int turned = 0, i;
    for (i = 0; i < OSCAR__EIGH_PAIRS; i++) {
        double a = e->norm[p[i]], b = e->norm[q[i]], lengths = e->root[p[i]] * e->root[q[i]], g = product[i];
        double d = b - a, w = 2 * g, raise = fabs(d) + fabs(w) < 1e-140 ? 1e150 : 1;   /* or squares underflow */
        double h, sum, r, t, root;
        c[i] = 1;
        s[i] = 0;
        if (!(fabs(g) > e->tolerance * lengths)) continue;
        d *= raise;
        w *= raise;
        h = sqrt(d * d + w * w);
        sum = h + fabs(d);
        r = sqrt(2 * h * sum);
        w = d < 0 ? -w : w;
        t = w / sum;
        turned |= fabs(g) > e->coarse * lengths || fabs(t) > e->coarse ? 2 : 1;
        c[i] = sum / r;
        s[i] = w / r;
        a -= t * g;
        b += t * g;
        e->norm[p[i]] = a > b ? a : b;
        e->norm[q[i]] = a > b ? b : a;
        if (a > b) continue;
        w = c[i];
        c[i] = s[i];
        s[i] = -w;
        root = e->root[p[i]];
        e->root[p[i]] = e->root[q[i]];
        e->root[q[i]] = root;
    }
    return turned;
}

/* -- factor -- */

/* Row i of the matrix less what the first `rank` rows of G explain of it. */
static void oscar__eigh_residual(const oscar__eigh *e, int i, int rank, double *out)
{
    oscar__eigh_line(e, i, out);
    oscar__kernels_now()->add_rows(e->width, (size_t)rank, -1, e->rows + i, e->lead, e->rows, e->lead, out);
}

/* Pivoted Cholesky into rows. Returns the rank, or -1 if the matrix is not positive semidefinite. A diagonal entry of
   the Schur complement counts as exhausted when it is at the rounding level of its own a_ii, not of the largest: this
   is what grading needs. The pivot is the largest of the others. order marks the rows that have been pivots. */
static int oscar__eigh_factor(oscar__eigh *e)
{
    double *rest = e->norm, *limit = e->root;   /* Schur complement's diagonal, its rounding level */
    int n = e->n, rank, i, j;
    memset(e->rows, 0, e->row_count * e->lead * sizeof(double));
    for (i = 0; i < n; i++) {
        rest[i] = e->a[(size_t)i * (size_t)n + (size_t)i] * e->unit + e->shift;
        limit[i] = n * DBL_EPSILON * fabs(rest[i]) + DBL_MIN * 1e20;   /* below, squares would lose their digits */
        e->order[i] = 0;
    }
    for (rank = 0; rank < n; rank++) {
        double *row = e->rows + (size_t)rank * e->lead, root;
        int pivot = -1;
        for (i = 0; i < n; i++)
            if (!e->order[i] && rest[i] > limit[i] && (pivot < 0 || rest[i] > rest[pivot])) pivot = i;
        if (pivot < 0) break;
        oscar__eigh_residual(e, pivot, rank, row);
        root = sqrt(rest[pivot]);
        e->order[pivot] = 1;
        for (i = 0; i < n; i++) {
            row[i] = e->order[i] ? 0 : row[i] / root;
            rest[i] -= row[i] * row[i];
            if (!e->order[i] && rest[i] < -4 * limit[i]) return -1;   /* going on, entries could grow without end */
        }
        row[pivot] = root;
    }
    for (i = 0; i < n && rank < n; i++) {   /* of a semidefinite matrix nothing is left */
        if (e->order[i]) continue;
        oscar__eigh_residual(e, i, rank, e->line);
        for (j = 0; j < n; j++)
            if (!e->order[j] && !(fabs(e->line[j]) <= 4 * sqrt(limit[i]) * sqrt(limit[j]))) return -1;
    }
    return rank;
}

/* A shift that makes the matrix safely positive definite: the smaller one of two bounds of its most negative
   eigenvalue, Gershgorin's and the Frobenius norm, and something more for rounding. */
static double oscar__eigh_shift(oscar__eigh *e)
{
    double lowest = 0, squares = 0, bound;
    int i, j;
    e->shift = 0;
    for (i = 0; i < e->n; i++) {
        double others = 0;
        oscar__eigh_line(e, i, e->line);
        for (j = 0; j < e->n; j++) {
            squares += e->line[j] * e->line[j];
            if (j != i) others += fabs(e->line[j]);
        }
        if (e->line[i] - others < lowest) lowest = e->line[i] - others;
    }
    bound = -lowest < sqrt(squares) ? -lowest : sqrt(squares);
    return 1.125 * bound + 1e-6;
}

/* -- sweeps -- */

/* Four disjoint pairs of rows, to be turned by (c, s) if `turned` is not 0. */
typedef struct oscar__eigh_round {
    size_t p[OSCAR__EIGH_PAIRS], q[OSCAR__EIGH_PAIRS];
    double *x[OSCAR__EIGH_PAIRS], *y[OSCAR__EIGH_PAIRS];
    double product[OSCAR__EIGH_PAIRS], c[OSCAR__EIGH_PAIRS], s[OSCAR__EIGH_PAIRS];
    int turned;
} oscar__eigh_round;

static void oscar__eigh_pair(const oscar__eigh *e, oscar__eigh_round *r, int i, size_t p, size_t q)
{
    r->p[i] = p;
    r->q[i] = q;
    r->x[i] = e->rows + p * e->lead;
    r->y[i] = e->rows + q * e->lead;
}

static int oscar__eigh_find(oscar__eigh *e, const oscar__kernels *kernels, oscar__eigh_round *r)
{
    return r->turned = kernels->eigh_angles(e, r->p, r->q, r->product, r->c, r->s);
}

/* Turns the rows, then y moves on by one; all but the angles of the next round. */
static void oscar__eigh_step(const oscar__eigh *e, const oscar__kernels *kernels, oscar__eigh_round *r)
{
    size_t q = r->q[0];
    double *y = r->y[0];
    int i;
    if (r->turned) kernels->eigh_turn_dots(e->width, r->c, r->s, r->x, r->y, r->product);
    for (i = 0; i + 1 < OSCAR__EIGH_PAIRS; i++) {
        r->q[i] = r->q[i + 1];
        r->y[i] = r->y[i + 1];
    }
    r->q[i] = q;
    r->y[i] = y;
    if (!r->turned) kernels->eigh_dots(e->width, r->x, r->y, r->product);
}

/* Squares: rows x .. x + 3 with rows y .. y + 3, all 16 pairs; up to two of them, whose angles do not wait for each
   other. Returns what eigh_angles does, of all rounds. */
static int oscar__eigh_squares(oscar__eigh *e, int count, const size_t *x, const size_t *y)
{
    const oscar__kernels *kernels = oscar__kernels_now();
    oscar__eigh_round rounds[2];
    int turned = 0, round, i, k;
    for (k = 0; k < count; k++) {
        for (i = 0; i < OSCAR__EIGH_PAIRS; i++) oscar__eigh_pair(e, &rounds[k], i, x[k] + (size_t)i, y[k] + (size_t)i);
        kernels->eigh_dots(e->width, rounds[k].x, rounds[k].y, rounds[k].product);
    }
    for (round = 0; round < OSCAR__EIGH_PAIRS; round++) {
        for (k = 0; k < count; k++) turned |= oscar__eigh_find(e, kernels, &rounds[k]);
        for (k = 0; k < count; k++) {
            oscar__eigh_round *r = &rounds[k];
            if (round + 1 < OSCAR__EIGH_PAIRS) oscar__eigh_step(e, kernels, r);
            else if (r->turned) kernels->eigh_turn(e->width, r->c, r->s, r->x, r->y);
        }
    }
    return turned;
}

/* Every pair of rows of two blocks. */
static int oscar__eigh_blocks(oscar__eigh *e, size_t x, size_t y)
{
    size_t xs[2], straight[2], crossed[2];
    xs[0] = x;
    xs[1] = x + OSCAR__EIGH_PAIRS;
    straight[0] = crossed[1] = y;
    straight[1] = crossed[0] = y + OSCAR__EIGH_PAIRS;
    return oscar__eigh_squares(e, 2, xs, straight) | oscar__eigh_squares(e, 2, xs, crossed);
}

/* Every pair of rows of one block: those of either half, then a square. */
static int oscar__eigh_block(oscar__eigh *e, size_t x)
{
    static const unsigned char first[3][2] = { { 0, 2 }, { 0, 1 }, { 0, 1 } };
    static const unsigned char second[3][2] = { { 1, 3 }, { 2, 3 }, { 3, 2 } };
    const oscar__kernels *kernels = oscar__kernels_now();
    oscar__eigh_round r;
    size_t half = x + OSCAR__EIGH_PAIRS;
    int turned = 0, round, i;
    for (round = 0; round < 3; round++) {
        for (i = 0; i < OSCAR__EIGH_PAIRS; i++) {
            size_t start = i < 2 ? x : half;
            oscar__eigh_pair(e, &r, i, start + first[round][i % 2], start + second[round][i % 2]);
        }
        kernels->eigh_dots(e->width, r.x, r.y, r.product);
        turned |= oscar__eigh_find(e, kernels, &r);
        if (r.turned) kernels->eigh_turn(e->width, r.c, r.s, r.x, r.y);
    }
    return turned | oscar__eigh_squares(e, 1, &x, &half);
}

/* Sweeps over all pairs until none is left to turn. A rotation moves the cosines of the rows that it turns, with
   others, by its tangent times such cosines; where all of them were below coarse, n such products are below the
   tolerance, and the sweep that would only look is saved. Returns 0 if OSCAR__EIGH_SWEEPS are not enough. */
static int oscar__eigh_jacobi(oscar__eigh *e)
{
    size_t count = oscar__align_up((size_t)e->rank, OSCAR__EIGH_BLOCK), x, y, i;
    for (i = 0; i < e->row_count; i++) e->norm[i] = e->root[i] = 0;
    e->tolerance = sqrt((double)e->n) * DBL_EPSILON;
    e->coarse = sqrt(e->tolerance / e->n);
    for (e->sweeps = 1; e->sweeps <= OSCAR__EIGH_SWEEPS; e->sweeps++) {
        int turned = 0;
        for (i = 0; i < count; i++) {
            const double *row = e->rows + i * e->lead;
            e->norm[i] = oscar__eigh_dot(e->width, row, row);
            e->root[i] = sqrt(e->norm[i]);
        }
        for (x = 0; x < count; x += OSCAR__EIGH_BLOCK) {
            turned |= oscar__eigh_block(e, x);
            for (y = x + OSCAR__EIGH_BLOCK; y < count; y += OSCAR__EIGH_BLOCK) turned |= oscar__eigh_blocks(e, x, y);
        }
        if (turned < 2) break;
    }
    for (i = 0; i < count; i++)
        e->norm[i] = oscar__eigh_dot(e->width, e->rows + i * e->lead, e->rows + i * e->lead);
    return e->sweeps <= OSCAR__EIGH_SWEEPS;
}

static OSCAR__NOINLINE void oscar__eigh_normalise(size_t width, double length, double *row)
{
    size_t k, l;
    for (k = 0; k < width; k += OSCAR__EIGH_CHUNK(width))
        for (l = 0; l < OSCAR__EIGH_CHUNK(width); l++) row[k + l] /= length;
}

/* Normalises the rows; norm becomes the eigenvalue of unit a + shift I, 0 where nothing is left to normalise. Those
   rows are completed to an orthonormal basis: the unit vector that the others explain least, Gram-Schmidt twice. */
static void oscar__eigh_basis(oscar__eigh *e)
{
    size_t size = (size_t)e->n, none = 0, i, j, k;
    double *open = e->root;   /* the part of each unit vector that is not explained */
    for (k = 0; k < size; k++) open[k] = 1;
    for (i = 0; i < size; i++) {
        if (e->norm[i] < DBL_MIN) e->norm[i] = 0;
        if (e->norm[i] != 0) oscar__eigh_normalise(e->width, sqrt(e->norm[i]), e->rows + i * e->lead);
        else none++;
    }
    for (i = 0; i < size && none; i++)
        for (k = 0; k < size && e->norm[i] != 0; k++) open[k] -= e->rows[i * e->lead + k] * e->rows[i * e->lead + k];
    for (i = 0; i < size && none; i++) {
        double *row = e->rows + i * e->lead, length;
        size_t most = 0;
        int pass;
        if (e->norm[i] != 0) continue;
        for (k = 1; k < size; k++) if (open[k] > open[most]) most = k;
        memset(row, 0, e->width * sizeof(double));
        row[most] = 1;
        for (pass = 0; pass < 2; pass++)
            for (j = 0; j < size; j++) {
                const double *other = e->rows + j * e->lead;
                if (j < i || e->norm[j] != 0)
                    oscar__add_row(e->width, -oscar__eigh_dot(e->width, other, row), other, row);
            }
        length = sqrt(oscar__eigh_dot(e->width, row, row));
        for (k = 0; k < size; k++) row[k] /= length;
        for (k = 0; k < size; k++) open[k] -= row[k] * row[k];
    }
}

/* norm_j = u_j A u_j^T without the shift: its error is quadratic in that of the vector. */
static void oscar__eigh_quotients(oscar__eigh *e)
{
    size_t j, size = (size_t)e->n;
    int i;
    e->shift = 0;
    for (j = 0; j < size; j++) e->norm[j] = 0;
    for (i = 0; i < e->n; i++) {
        oscar__eigh_line(e, i, e->line);
        for (j = 0; j < size; j++) {
            const double *row = e->rows + j * e->lead;
            e->norm[j] += row[i] * oscar__eigh_dot(e->width, e->line, row);
        }
    }
}

/* Orders ascending (stable) and gives each vector its sign: the component of largest magnitude is positive. Magnitudes
   that differ by rounding only are a tie, else two builds could disagree; the lowest index decides. */
static void oscar__eigh_write(oscar__eigh *e, double *vectors, double *values)
{
    const double tie = 1 - 1.0 / (1 << 26);
    const size_t block = 8;
    size_t size = (size_t)e->n, i, j, k;
    for (i = 0; i < size; i++) {
        for (j = i; j > 0 && e->norm[e->order[j - 1]] > e->norm[i]; j--) e->order[j] = e->order[j - 1];
        e->order[j] = (int)i;
    }
    for (j = 0; j < size; j++) {
        double *row = e->rows + (size_t)e->order[j] * e->lead, largest = 0;
        for (i = 0; i < size; i++) largest = fabs(row[i]) > largest ? fabs(row[i]) : largest;
        for (i = 0; fabs(row[i]) < largest * tie; i++) {}
        if (row[i] < 0) for (i = 0; i < size; i++) row[i] = -row[i];
        values[j] = e->norm[e->order[j]] / e->unit;
    }
    for (j = 0; j < size; j += block)   /* so that a line of the output is written whole */
        for (i = 0; i < size; i++)
            for (k = j; k < size && k < j + block; k++)
                vectors[i * size + k] = e->rows[(size_t)e->order[k] * e->lead + i];
}

/* Looks at every entry; *largest = max |a_ij|, *exact: a = a^T. */
static oscar_result oscar__eigh_check(int n, const double *a, double *largest, int *exact)
{
    const size_t block = 8;   /* so that a line that is read down a column is used whole */
    size_t size = (size_t)n, i, j, k;
    double top = 0, most = 0;
    for (i = 0; i < size * size; i++) {
        if (!(fabs(a[i]) <= OSCAR__EIGH_LARGEST)) return OSCAR_ERR_NUMERIC;
        top = fabs(a[i]) > top ? fabs(a[i]) : top;
    }
    if (top > 0 && top < OSCAR__EIGH_SMALLEST) return OSCAR_ERR_NUMERIC;
    for (i = 0; i < size; i += block)
        for (j = 0; j < size; j++)
            for (k = i; k < size && k < i + block; k++)
                most = fabs(a[k * size + j] - a[j * size + k]) > most ? fabs(a[k * size + j] - a[j * size + k]) : most;
    if (most > 1e-6 * top) return OSCAR_ERR_ARGUMENT;
    *exact = most == 0;
    *largest = top;
    return OSCAR_OK;
}

OSCAR_API size_t oscar_eigh_scratch(int n)
{
    oscar__eigh e;
    return n < 1 || n > OSCAR__EIGH_MAX ? 0 : oscar__eigh_place(&e, n, NULL, NULL);
}

/* Leaves vectors in e.rows and eigenvalues times e.unit in e.norm. */
static oscar_result oscar__eigh_solve(oscar__eigh *e)
{
    double largest;
    int exponent;
    oscar_result result = oscar__eigh_check(e->n, e->a, &largest, &e->exact);
    if (result) return result;
    (void)frexp(largest, &exponent);
    e->unit = ldexp(1.0, largest > 0 ? 1 - exponent : 0);
    e->rank = oscar__eigh_factor(e);
    if (e->rank < 0) {
        e->indefinite = 1;
        e->shift = oscar__eigh_shift(e);
        e->rank = oscar__eigh_factor(e);
        if (e->rank < 0) return OSCAR_ERR_CONVERGE;
    }
    if (!oscar__eigh_jacobi(e)) return OSCAR_ERR_CONVERGE;
    oscar__eigh_basis(e);
    if (e->indefinite) oscar__eigh_quotients(e);
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_eigh(int n, const double *a, double *vectors, double *values, void *scratch)
{
    oscar__eigh e;
    oscar_result result;
    if (n < 1 || n > OSCAR__EIGH_MAX) return OSCAR_ERR_SHAPE;
    if (!a || !vectors || !values || !scratch || (uintptr_t)scratch % sizeof(double)) return OSCAR_ERR_ARGUMENT;
    oscar__eigh_place(&e, n, a, scratch);
    result = oscar__eigh_solve(&e);
    if (result == OSCAR_OK) oscar__eigh_write(&e, vectors, values);
    return result;
}

/* l l^T = c. c, l: [n][n], not overlapping; only the lower triangle of c is read, l has zeros above the diagonal.
   Returns 0 if c is not positive definite in this arithmetic (or not finite); l is then partly written. On the way l is
   its transpose, so that columns are rows. */
static int oscar__cholesky(int n, const double *c, double *l)
{
    size_t size = (size_t)n, i, j;
    for (i = 0; i < size; i++) {
        double *li = l + i * size, root;
        for (j = 0; j < i; j++) li[j] = 0;
        for (j = i; j < size; j++) li[j] = c[j * size + i];
        oscar__kernels_now()->add_rows(size - i, i, -1, l + i, size, l + i, size, li + i);
        if (!(li[i] > 0 && li[i] <= DBL_MAX)) return 0;
        root = sqrt(li[i]);
        li[i] = root;
        for (j = i + 1; j < size; j++) li[j] /= root;
    }
    for (i = 0; i < size; i++)
        for (j = 0; j < i; j++) {
            l[i * size + j] = l[j * size + i];
            l[j * size + i] = 0;
        }
    return 1;
}

/* Solves l^T y = x in place. l: [n][n] lower; x: [n][columns]. */
static void oscar__solve_lower_t(int n, const double *l, int columns, double *x)
{
    size_t size = (size_t)n, width = (size_t)columns, i = size, j;
    while (i--) {
        double *xi = x + i * width, diagonal = l[i * size + i];
        oscar__kernels_now()->add_rows(width, size - i - 1, -1, l + (i + 1) * size + i, size, xi + width, width, xi);
        for (j = 0; j < width; j++) xi[j] /= diagonal;
    }
}

/* == 3.5 WALSH-HADAMARD, BIT REVERSAL, DENSE == */

/* H of order 2N = | H  H |, so one pass for each stride s = 1, 2, 4, ... N/2 over the pairs (x_i, x_(i+s)) where i has
                   | H -H |  bit s clear: (a, b) -> (a + b, a - b).
   Rows whose length is N times an odd number are transformed in blocks of N. */

static int oscar__pow2_divisor(int n) { return n & -n; }

/* The float nearest 1 / sqrt(N), without a root: every row asks for it. */
static float oscar__fwht_scale(int n)
{
    float scale = 1.0f;
    int block = oscar__pow2_divisor(n);
    for (; block >= 4; block /= 4) scale *= 0.5f;
    return block == 2 ? OSCAR__F32(scale * 0.707106781f) : scale;
}

static OSCAR__NOINLINE void oscar__butterfly(int n, float *x)
{
    int block = oscar__pow2_divisor(n), stride, start, i;
    for (stride = 1; stride < block; stride *= 2)
        for (start = 0; start < n; start += 2 * stride) {
            float *low = x + start, *high = low + stride;
            for (i = 0; i < stride; i++) {
                float a = low[i], b = high[i];
                low[i] = OSCAR__F32(a + b);
                high[i] = OSCAR__F32(a - b);
            }
        }
}

static OSCAR__NOINLINE void oscar__fwht_rows(int n, size_t rows, const float *in, float *out)
{
    float scale = oscar__fwht_scale(n);
    int i;
    for (; rows; rows--, in += n, out += n) {
        if (in != out) memcpy(out, in, (size_t)n * sizeof *out);
        oscar__butterfly(n, out);
        for (i = 0; i < n; i++) out[i] = OSCAR__F32(out[i] * scale);
    }
}

static void oscar__fwht_double(int n, double *x)
{
    int block = oscar__pow2_divisor(n), stride, start, i;
    double scale = 1.0 / sqrt((double)block);
    for (stride = 1; stride < block; stride *= 2)
        for (start = 0; start < n; start += 2 * stride) {
            double *low = x + start, *high = low + stride;
            for (i = 0; i < stride; i++) {
                double a = low[i], b = high[i];
                low[i] = a + b;
                high[i] = a - b;
            }
        }
    for (i = 0; i < n; i++) x[i] *= scale;
}

/* out_j = fmaf(x_(n-1), m[n-1][j], ... fmaf(x_0, m[0][j], +0)); the loop over outputs is inside, so that it can be
   vectorised without changing a bit. x and out: [n], not overlapping; m: [n][n]. */
static OSCAR__NOINLINE void oscar__rotate_row(int n, const float *m, const float *x, float *out)
{
    int i, j;
    for (j = 0; j < n; j++) out[j] = 0.0f;
    for (i = 0; i < n; i++, m += n) {
        float xi = x[i];
        for (j = 0; j < n; j++) out[j] = fmaf(xi, m[j], out[j]);
    }
}

static OSCAR__NOINLINE void oscar__rotate_rows(int n, int rows, const float *m, const float *x, float *out)
{
    int row;
    for (row = 0; row < rows; row++, x += n, out += n) oscar__rotate_row(n, m, x, out);
}

/* out_i = fmaf(x_(n-1), m[i][n-1], ... fmaf(x_0, m[i][0], +0)). x and out: [n], not overlapping; m: [n][n]. */
static OSCAR__NOINLINE void oscar__rotate_back(int n, const float *m, const float *x, float *out)
{
    int i, j;
    for (i = 0; i < n; i++, m += n) {
        float sum = 0.0f;
        for (j = 0; j < n; j++) sum = fmaf(x[j], m[j], sum);
        out[i] = sum;
    }
}

OSCAR_API oscar_result oscar_fwht(int n, size_t rows, const float *in, float *out)
{
    if (n < 0 || (n > 1 && n % 2)) return OSCAR_ERR_SHAPE;
    if (n == 0 || rows == 0) return OSCAR_OK;
    if (!in || !out) return OSCAR_ERR_ARGUMENT;
    oscar__kernels_now()->fwht(n, rows, in, out);
    return OSCAR_OK;
}

OSCAR_API uint32_t oscar_bitrev(uint32_t i, int bits)
{
    uint32_t reversed = 0;
    OSCAR_ASSERT(bits >= 0 && bits <= 31);
    for (; bits > 0; bits--, i >>= 1) reversed = reversed << 1 | (i & 1);
    return reversed;
}

OSCAR_API oscar_result oscar_rotate(int n, size_t rows, const float *m, const float *x, float *out)
{
    if (n < 1) return OSCAR_ERR_SHAPE;
    if (rows == 0) return OSCAR_OK;
    if (!m || !x || !out) return OSCAR_ERR_ARGUMENT;
    while (rows) {
        size_t some = rows < 64 ? rows : 64;
        oscar__kernels_now()->rotate(n, (int)some, m, x, out);
        rows -= some;
        x += some * (size_t)n;
        out += some * (size_t)n;
    }
    return OSCAR_OK;
}

/* == 3.6 TRANSFORM PAIRS, LAYERS == */

/* y += factor f */
static OSCAR__NOINLINE void oscar__add_float_row(int dim, double factor, const float *OSCAR__RESTRICT f,
                                                 double *OSCAR__RESTRICT y)
{
    int j, l;
    for (j = 0; j < dim; j += OSCAR__LANES)
        for (l = 0; l < OSCAR__LANES; l++) y[j + l] += factor * (double)f[j + l];
}

static double oscar__float_row_dot(int dim, const float *f, const double *x)
{
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    int j;
    for (j = 0; j < dim; j += 4) {
        s0 += (double)f[j] * x[j];
        s1 += (double)f[j + 1] * x[j + 1];
        s2 += (double)f[j + 2] * x[j + 2];
        s3 += (double)f[j + 3] * x[j + 3];
    }
    return (s0 + s2) + (s1 + s3);
}

/* The largest singular value of f [dim][dim], to about 1e-4 from below: power iteration on f^T f. It starts from rows
   mixed with unequal weights, so that no block of channels is left out. It only limits the length of rows, with a
   factor of 2 to spare. */
static float oscar__matrix_norm(int dim, const float *f)
{
    double x[OSCAR__DIM_MAX], y[OSCAR__DIM_MAX], norm = 0, before = -1;
    int i, j, step;
    for (j = 0; j < dim; j++) x[j] = 0;
    for (i = 0; i < dim; i++) {
        double weight = 1 + i * 37 % 64 / 64.0;
        for (j = 0; j < dim; j++) x[j] += (i * 5 % 7 < 3 ? -weight : weight) * (double)f[i * dim + j];
    }
    for (step = 0; step < 500 && (step < 16 || fabs(norm - before) > 1e-6 * norm); step++) {
        double length = 0, image = 0;
        for (j = 0; j < dim; j++) length += x[j] * x[j];
        if (!(length > 0)) return 0;
        length = sqrt(length);
        for (j = 0; j < dim; j++) { x[j] /= length; y[j] = 0; }
        for (i = 0; i < dim; i++) {   /* row i of f x, and its share of f^T (f x) */
            double dot = oscar__float_row_dot(dim, f + i * dim, x);
            oscar__add_float_row(dim, dot, f + i * dim, y);
            image += dot * dot;
        }
        memcpy(x, y, (size_t)dim * sizeof(double));
        before = norm;
        norm = sqrt(image);
    }
    return (float)norm;
}

static int oscar__dim_valid(int dim) { return dim >= 16 && dim <= OSCAR__DIM_MAX && dim % 16 == 0; }

static oscar_result oscar__pair_check(const oscar_pair *pair, int dim, const oscar_hooks *hooks)
{
    if (!oscar__dim_valid(dim) || pair->dim != dim)
        return OSCAR__FAIL(hooks, OSCAR_ERR_SHAPE,
                           "a pair has dim %i where %i is expected (a multiple of 16 from 16 to 1024)", pair->dim, dim);
    if ((int)pair->kind < OSCAR_HADAMARD || (int)pair->kind > OSCAR_DENSE)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "a pair has kind %i, which is no oscar_kind", (int)pair->kind);
    if (pair->kind == OSCAR_DENSE && !pair->to)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "a DENSE pair needs its matrix `to`");
    if (pair->kind != OSCAR_DENSE && (pair->to || pair->dual))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "only a DENSE pair has matrices: set `to` and `dual` to NULL");
    if (!(pair->norm >= 0 && pair->norm <= FLT_MAX))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "a pair's norm must be finite and not negative");
    return OSCAR_OK;
}

static const float *oscar__pair_dual(const oscar_pair *pair) { return pair->dual ? pair->dual : pair->to; }

static OSCAR__NOINLINE void oscar__centre_row(int dim, const float *x, const float *mean, float *out)
{
    int i;
    for (i = 0; i < dim; i++) out[i] = OSCAR__F32(x[i] - mean[i]);
}

/* x' = (x - m) F of a few rows; decides bytes. x - m is rounded before the transform. room: [rows][dim], apart from the
   rest; out may be x. */
static OSCAR__NOINLINE void oscar__forward(const oscar_pair *pair, int rows, const float *x, float *out, float *room)
{
    const oscar__kernels *kernels = oscar__kernels_now();
    size_t dim = (size_t)pair->dim;
    int r;
    if (pair->mean || (pair->kind == OSCAR_DENSE && x == out)) {
        float *centred = pair->kind == OSCAR_DENSE ? room : out;
        for (r = 0; pair->mean && r < rows; r++)
            kernels->centre(pair->dim, x + (size_t)r * dim, pair->mean, centred + (size_t)r * dim);
        if (!pair->mean) memcpy(centred, x, (size_t)rows * dim * sizeof(float));
        x = centred;
    }
    if (pair->kind == OSCAR_DENSE) kernels->rotate(pair->dim, rows, pair->to, x, out);
    else if (pair->kind == OSCAR_HADAMARD) kernels->fwht(pair->dim, (size_t)rows, x, out);
    else if (x != out) memcpy(out, x, (size_t)rows * dim * sizeof(float));
}

/* x = x' B^T + m, in float, in the prescribed order (design 2.3, reading). */
static OSCAR__NOINLINE void oscar__back(const oscar_pair *pair, const float *x, float *out)
{
    float y[OSCAR__DIM_MAX], scale = oscar__fwht_scale(pair->dim);
    int dim = pair->dim, i;
    if (pair->kind == OSCAR_DENSE) oscar__kernels_now()->rotate_back(dim, oscar__pair_dual(pair), x, y);
    else memcpy(y, x, (size_t)dim * sizeof(float));
    if (pair->kind == OSCAR_HADAMARD) oscar__kernels_now()->butterfly(dim, y);
    for (i = 0; i < dim; i++) {
        float mean = pair->mean ? pair->mean[i] : 0.0f;
        out[i] = pair->kind == OSCAR_HADAMARD ? fmaf(y[i], scale, mean) : OSCAR__F32(y[i] + mean);
    }
}

/* The sum of the 8 chains of a product. */
static double oscar__chains_sum(const double *chain)
{
    return ((chain[0] + chain[4]) + (chain[2] + chain[6])) + ((chain[1] + chain[5]) + (chain[3] + chain[7]));
}

/* x.y in 8 chains that do not wait for each other: chain l has the channels l, l + 8, ... dim: a multiple of 16. */
static double oscar__product(int dim, const float *x, const double *y)
{
    double chain[8] = { 0 };
    int i, l;
    for (i = 0; i < dim; i += 8)
        for (l = 0; l < 8; l++) chain[l] += (double)x[i + l] * y[i + l];
    return oscar__chains_sum(chain);
}

/* q' = q B, in double. */
static void oscar__query(const oscar_pair *pair, const float *q, double *out)
{
    const float *dual = oscar__pair_dual(pair);
    int dim = pair->dim, i, j;
    if (pair->kind != OSCAR_DENSE) {
        for (i = 0; i < dim; i++) out[i] = (double)q[i];
        if (pair->kind == OSCAR_HADAMARD) oscar__fwht_double(dim, out);
        return;
    }
    for (j = 0; j < dim; j++) out[j] = 0;
    for (i = 0; i < dim; i++)
        for (j = 0; j < dim; j++) out[j] += (double)q[i] * (double)dual[i * dim + j];
}

/* o = o' B^T, in double; for attention outputs, so without a mean. May be in place. Not inlined: y would stay on the
   stack of all attention. */
static OSCAR__NOINLINE void oscar__output_back(const oscar_pair *pair, const double *o, double *out)
{
    const float *dual = oscar__pair_dual(pair);
    double y[OSCAR__DIM_MAX];
    int dim = pair->dim, i;
    memcpy(y, o, (size_t)dim * sizeof(double));
    if (pair->kind == OSCAR_HADAMARD) oscar__fwht_double(dim, y);
    for (i = 0; i < dim; i++) out[i] = pair->kind == OSCAR_DENSE ? oscar__product(dim, dual + i * dim, y) : y[i];
}

OSCAR_API oscar_result oscar_transform(const oscar_pair *pair, oscar_direction direction, size_t rows,
                                       const float *x, float *out)
{
    oscar_result result;
    size_t r;
    if (!pair || (rows && (!x || !out)) || (int)direction < OSCAR_FORWARD || (int)direction > OSCAR_BACK)
        return OSCAR_ERR_ARGUMENT;
    result = oscar__pair_check(pair, pair->dim, NULL);
    if (result) return result;
    for (r = 0; r < rows; r++) {
        const float *from = x + r * (size_t)pair->dim;
        float *to = out + r * (size_t)pair->dim;
        if (direction == OSCAR_FORWARD) {
            float room[OSCAR__DIM_MAX];
            oscar__forward(pair, 1, from, to, room);
        } else if (direction == OSCAR_BACK) oscar__back(pair, from, to);
        else {
            double query[OSCAR__DIM_MAX];
            int i;
            oscar__query(pair, from, query);
            for (i = 0; i < pair->dim; i++) to[i] = (float)query[i];
        }
    }
    return OSCAR_OK;
}

/* The pair of a head; HADAMARD where a layer has none. */
static oscar_pair oscar__pair_of(const oscar_pair *pairs, int head, int dim)
{
    oscar_pair pair;
    if (pairs) return pairs[head];
    memset(&pair, 0, sizeof pair);
    pair.dim = dim;
    return pair;
}

/* One side of a layer: fills defaults and checks. name: "k" or "v", for the log. pairs: NULL, or kv_heads to check. */
static oscar_result oscar__side_resolve(const char *name, int dim, double clip_default, int kv_heads,
                                        const oscar_pair *pairs, int *bits, oscar_fit *fit, double *clip, int *group,
                                        const oscar_hooks *hooks)
{
    int h;
    if (!*bits) *bits = 2;
    if (*bits != 2 && *bits != 4 && *bits != 16)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "layer.%s_bits is %i: give 2, 4 or 16", name, *bits);
    if ((int)*fit != OSCAR_UNBIASED && (int)*fit != OSCAR_CLIP)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "layer.%s_fit is %i, which is no oscar_fit", name, (int)*fit);
    if (*clip != *clip)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "layer.%s_clip is NaN: give a quantile, or -1 for off", name);
    if (*bits == 16) *fit = OSCAR_UNBIASED;
    if (*fit == OSCAR_UNBIASED || *clip < 0 || *clip >= 1) *clip = -1;
    else if (!(*clip > 0)) *clip = clip_default;
    if (!*group || *bits == 16) *group = dim;
    if (*group < 16 || *group % 16 || dim % *group)
        return OSCAR__FAIL(hooks, OSCAR_ERR_SHAPE,
                           "layer.%s_group is %i: give a multiple of 16 that divides the dimension %i", name, *group,
                           dim);
    for (h = 0; pairs && h < kv_heads; h++) {
        oscar_result result = oscar__pair_check(&pairs[h], dim, hooks);
        if (result) return result;
    }
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_layer_resolve(const oscar_layer *in, const oscar_hooks *hooks, oscar_layer *out)
{
    oscar_layer l;
    oscar_result result;
    int h;
    if (!in || !out)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "layer is NULL: q_heads, kv_heads and k_dim are needed");
    l = *in;
    if (!l.v_dim) l.v_dim = l.k_dim;
    if (l.kv_heads < 1 || l.kv_heads > 65536 || l.q_heads < 1 || l.q_heads % l.kv_heads)
        return OSCAR__FAIL(hooks, OSCAR_ERR_SHAPE,
                           "layer has q_heads %i, kv_heads %i: q_heads must be a positive multiple of kv_heads (1 to "
                           "65536)", l.q_heads, l.kv_heads);
    if (!oscar__dim_valid(l.k_dim) || !oscar__dim_valid(l.v_dim))
        return OSCAR__FAIL(hooks, OSCAR_ERR_SHAPE,
                           "layer has k_dim %i, v_dim %i: head dimensions must be multiples of 16 from 16 to 1024",
                           l.k_dim, l.v_dim);
    if (l.q_heads > INT32_MAX / l.k_dim || l.q_heads > INT32_MAX / l.v_dim)
        return OSCAR__FAIL(hooks, OSCAR_ERR_SHAPE, "layer.q_heads %i is too large", l.q_heads);
    if (l.k_bits == 16) l.k = NULL;
    if (l.v_bits == 16 && !l.v_folded) l.v = NULL;   /* a folded V's pairs say what the rows are */
    result = oscar__side_resolve("k", l.k_dim, 0.96, l.kv_heads, l.k, &l.k_bits, &l.k_fit, &l.k_clip,
                                 &l.k_group, hooks);
    if (result) return result;
    result = oscar__side_resolve("v", l.v_dim, 0.92, l.kv_heads, l.v, &l.v_bits, &l.v_fit, &l.v_clip,
                                 &l.v_group, hooks);
    if (result) return result;
    for (h = 0; l.v && h < l.kv_heads; h++)
        if (l.v[h].mean || l.v[h].metric)
            return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "layer.v[%i] has a %s: only K's pairs may have one", h,
                               l.v[h].mean ? "mean" : "metric");
    if (l.window < -1)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "layer.window is %i: give a positive width, or -1", l.window);
    if (!(l.scale >= 0 && l.scale <= FLT_MAX))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "layer.scale must be positive, or 0 for 1/sqrt(k_dim)");
    if (!(l.softcap >= -1 && l.softcap <= FLT_MAX) || (l.softcap < 0 && l.softcap > -1))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "layer.softcap must be positive and finite, or 0 or -1 for none");
    if (l.k_page_mean < -1 || l.k_page_mean > 1)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "layer.k_page_mean is %i: give 0 or 1 for on, -1 for off",
                           l.k_page_mean);
    if (!(l.scale > 0)) l.scale = (float)(1.0 / sqrt((double)l.k_dim));
    if (l.window < 0) l.window = 0;
    if (l.softcap < 0) l.softcap = 0;
    l.k_page_mean = l.k_page_mean < 0 || l.k_bits == 16 ? -1 : 1;
    l.v_folded = l.v_folded != 0;
    *out = l;
    return OSCAR_OK;
}

/* == 3.7 CALIBRATION SUMS == */

enum {
    OSCAR__TILE_ROWS = 8, OSCAR__TILE_COLUMNS = 16,   /* of the kernel add_tile; they divide every dim */
    OSCAR__GATHER = 32, OSCAR__GATHER_PAD = 8,        /* rows whose outer products are added together */
    OSCAR__WEIGH_QUERIES = 32                         /* whose logits are made together: keys are read once for them */
};

/* Of one KV head, w = 1 (PLAIN) or a sum of p (1 - p) (ATTENTION; in q and k only):

       q = sum w q^T q     k = sum w (k - shift)^T (k - shift)     k_first = sum w (k - shift)
       v = sum v^T v       s = sum w_t v_t^T v_t, w_t = k_t C_Q k_t^T     o = sum o^T o

   and the sums of the weights themselves. Only lower triangles are kept up to date. shift is the head's first key with
   a weight: keys lie far from zero compared with how they vary, and C_K - m^T m of raw sums would lose those digits. A
   matrix that was not asked for is NULL. */
typedef struct oscar__sums {
    double *q, *k, *v, *s, *o;
    double *k_shift, *k_first;
    double q_weight, k_weight, v_weight, s_weight, o_weight;
    int shifted;   /* k_shift is set */
} oscar__sums;

/* One layer. tokens: valid ones of the first pass, s_tokens of the second. turns: rotated pairs of channels; 0 where
   there are no shifts. */
typedef struct oscar__calib_layer {
    oscar_layer layer;
    int64_t tokens, s_tokens;
    oscar__sums *heads;
    double *frequency;
    int turns, halves;
} oscar__calib_layer;

struct oscar_calib {
    oscar_hooks hooks;
    size_t size;
    oscar__calib_layer *layers;
    int layer_count;
    unsigned sums;
    oscar_weights weights;
    int sink, recent;
    double *shifts, shift_weight;
    int shift_count;
    uint64_t fingerprint;   /* of all of desc that sums depend on */
    int frozen, warned;
    float *row;             /* working space, the largest dim of all: a row as loaded, */
    double *x, *turned;     /* as a sum takes it, and turned by a shift, */
    double *gathered;       /* OSCAR__GATHER rows, weighted ones, */
    double *cosine, *sine;  /* [shift_count][turns] */
};

/* -- scalar kernels: rows, tiles -- */

static void oscar__add_tile(size_t count, const double *a, size_t a_stride, const double *b, size_t b_stride,
                            double *sum, size_t sum_stride)
{
    size_t k, i, j;
    for (k = 0; k < count; k += 4)
        for (i = 0; i < OSCAR__TILE_ROWS; i++) {
            const double *ai = a + k * a_stride + i, *OSCAR__RESTRICT b0 = b + k * b_stride;
            const double *OSCAR__RESTRICT b1 = b0 + b_stride, *OSCAR__RESTRICT b2 = b1 + b_stride;
            const double *OSCAR__RESTRICT b3 = b2 + b_stride;
            double a0 = ai[0], a1 = ai[a_stride], a2 = ai[2 * a_stride], a3 = ai[3 * a_stride];
            double *OSCAR__RESTRICT out = sum + i * sum_stride;
            for (j = 0; j < OSCAR__TILE_COLUMNS; j++) out[j] += (a0 * b0[j] + a1 * b1[j]) + (a2 * b2[j] + a3 * b3[j]);
        }
}

static void oscar__widen(size_t count, const float *x, double *out)
{
    size_t i;
    for (i = 0; i < count; i++) out[i] = (double)x[i];
}

static void oscar__weigh_copy(size_t count, double weight, const double *x, double *row, double *weighted)
{
    size_t i;
    memcpy(row, x, count * sizeof(double));
    for (i = 0; i < count; i++) weighted[i] = weight * x[i];
}

static void oscar__turn_halves(size_t count, const double *cosine, const double *sine, const double *x, double *out)
{
    size_t i;
    for (i = 0; i < count; i++) {
        double a = x[i], b = x[i + count];
        out[i] = a * cosine[i] - b * sine[i];
        out[i + count] = a * sine[i] + b * cosine[i];
    }
}

static double oscar__exp_row(size_t count, double *x)
{
    double most = -HUGE_VAL, sum = 0;
    size_t i;
    for (i = 0; i < count; i++) if (x[i] > most) most = x[i];
    for (i = 0; i < count; i++) sum += x[i] = exp(x[i] - most);
    return sum;
}

static double oscar__weigh_row(size_t count, double total, const double *x, double *sum)
{
    double added = 0;
    size_t i;
    for (i = 0; i < count; i++) {
        double p = x[i] / total, weight = p * (1 - p);
        if (!(weight > 0)) continue;   /* p may round to above 1 */
        sum[i] += weight;
        added += weight;
    }
    return added;
}

/* -- gather -- */

/* Rows that wait for their outer products, as they are and times their weights: sum += weighted^T rows, the lower
   triangle, by tiles that stay in registers while all rows go by. Rows are a cache line more apart than dim, or those
   of 2^k values would share few cache sets. */
typedef struct oscar__gather {
    const oscar__kernels *kernels;
    size_t dim, lead, count;
    double *rows, *weighted, *sum;
} oscar__gather;

/* One tile; where it crosses the diagonal only what is on and below it. */
static void oscar__gather_tile(const oscar__gather *g, size_t i, size_t j)
{
    double tile[OSCAR__TILE_ROWS * OSCAR__TILE_COLUMNS], *sum = g->sum + i * g->dim + j;
    size_t r;
    if (j + OSCAR__TILE_COLUMNS <= i + 1) {
        g->kernels->add_tile(g->count, g->weighted + i, g->lead, g->rows + j, g->lead, sum, g->dim);
        return;
    }
    for (r = 0; r < OSCAR__TILE_ROWS; r++)
        memcpy(tile + r * OSCAR__TILE_COLUMNS, sum + r * g->dim, OSCAR__TILE_COLUMNS * sizeof(double));
    g->kernels->add_tile(g->count, g->weighted + i, g->lead, g->rows + j, g->lead, tile, OSCAR__TILE_COLUMNS);
    for (r = 0; r < OSCAR__TILE_ROWS; r++)
        memcpy(sum + r * g->dim, tile + r * OSCAR__TILE_COLUMNS, (i + r - j + 1) * sizeof(double));
}

static void oscar__gather_flush(oscar__gather *g)
{
    size_t i, j;
    if (!g->count) return;
    for (; g->count % 4; g->count++) {
        memset(g->rows + g->count * g->lead, 0, g->dim * sizeof(double));
        memset(g->weighted + g->count * g->lead, 0, g->dim * sizeof(double));
    }
    for (i = 0; i < g->dim; i += OSCAR__TILE_ROWS)
        for (j = 0; j < i + OSCAR__TILE_ROWS; j += OSCAR__TILE_COLUMNS) oscar__gather_tile(g, i, j);
    g->count = 0;
}

static oscar__gather oscar__gather_start(const oscar_calib *calib, int dim, double *sum)
{
    oscar__gather g;
    memset(&g, 0, sizeof g);
    g.kernels = oscar__kernels_now();
    g.dim = (size_t)dim;
    g.lead = g.dim + OSCAR__GATHER_PAD;
    g.rows = calib->gathered;
    g.weighted = g.rows + OSCAR__GATHER * g.lead;
    g.sum = sum;
    return g;
}

/* sum += weight x^T x, at the latest at the next flush. */
static void oscar__gather_push(oscar__gather *g, const double *x, double weight)
{
    size_t at = g->count++ * g->lead;
    g->kernels->weigh_copy(g->dim, weight, x, g->rows + at, g->weighted + at);
    if (g->count == OSCAR__GATHER) oscar__gather_flush(g);
}

/* -- create, destroy -- */

static oscar_result oscar__rope_check(const oscar_hooks *hooks, const oscar_rope *rope, int dim, int layer)
{
    int dims = rope->dims ? rope->dims : dim, i;
    if (dims < 0 || dims > dim || dims % 2)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "ropes[%i].dims is %i: give an even number up to k_dim %i", layer,
                           rope->dims, dim);
    if (!rope->frequencies && !(rope->base >= 0 && rope->base <= DBL_MAX))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "ropes[%i].base must be positive and finite (0 = 10000)", layer);
    for (i = 0; rope->frequencies && i < dims / 2; i++)
        if (!(fabs(rope->frequencies[i]) <= DBL_MAX))
            return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "ropes[%i].frequencies[%i] is not finite", layer, i);
    return OSCAR_OK;
}

static oscar_result oscar__calib_check(const oscar_calib_desc *desc)
{
    const unsigned all = OSCAR_SUM_Q | OSCAR_SUM_K | OSCAR_SUM_V | OSCAR_SUM_S | OSCAR_SUM_O;
    const oscar_hooks *hooks = &desc->hooks;
    oscar_result result = oscar__hooks_check(hooks);
    int i;
    if (result) return result;
    if (!desc->layers || desc->layer_count < 1)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "desc.layers is empty: give at least one layer");
    if (desc->sums & ~all)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "desc.sums has bits that are no OSCAR_SUM_ flag");
    if ((desc->sums & OSCAR_SUM_S) && !(desc->sums & OSCAR_SUM_Q))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "OSCAR_SUM_S weighs values with C_Q: ask for OSCAR_SUM_Q too");
    if ((int)desc->weights < OSCAR_WEIGHTS_ATTENTION || (int)desc->weights > OSCAR_WEIGHTS_PLAIN)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "desc.weights is %i, which is no oscar_weights",
                           (int)desc->weights);
    if (desc->sink < -1 || desc->recent < -1)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "desc.sink is %i, desc.recent %i: give token counts, or -1",
                           desc->sink, desc->recent);
    if (desc->shift_count < 0 || desc->shift_count > 64)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "desc.shift_count is %i: give 0 to 64", desc->shift_count);
    if (!(desc->shift_weight >= 0 && desc->shift_weight <= 1))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "desc.shift_weight is %g: give more than 0 to 1, or 0 for 1",
                           desc->shift_weight);
    if (desc->shift_count && (!desc->shifts || !desc->ropes))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "desc.shift_count needs desc.shifts and desc.ropes");
    for (i = 0; i < desc->layer_count; i++) {
        oscar_layer layer = desc->layers[i];
        layer.k = layer.v = NULL;
        result = oscar_layer_resolve(&layer, hooks, &layer);
        if (!result && desc->shift_count) result = oscar__rope_check(hooks, &desc->ropes[i], layer.k_dim, i);
        if (result) return result;
    }
    return OSCAR_OK;
}

static void oscar__calib_rope(const oscar_rope *rope, oscar__calib_layer *l)
{
    double base = rope->base > 0 ? rope->base : 10000;
    int i;
    l->halves = rope->halves != 0;
    for (i = 0; i < l->turns; i++)
        l->frequency[i] = rope->frequencies ? rope->frequencies[i] : pow(base, -(double)i / l->turns);
}

static double *oscar__carve_sum(oscar__carver *c, int asked, int dim)
{
    return asked ? (double *)oscar__carve(c, (size_t)dim * (size_t)dim, sizeof(double)) : NULL;
}

/* One layer's arrays; fills l where there is memory. */
static void oscar__calib_carve_layer(oscar__carver *c, const oscar_calib_desc *desc, unsigned sums, int index,
                                     oscar__calib_layer *l)
{
    const oscar_rope *rope = desc->shift_count ? &desc->ropes[index] : NULL;
    int h;
    l->layer = desc->layers[index];
    l->layer.k = l->layer.v = NULL;
    (void)oscar_layer_resolve(&l->layer, NULL, &l->layer);
    l->turns = rope ? (rope->dims ? rope->dims : l->layer.k_dim) / 2 : 0;
    l->frequency = (double *)oscar__carve(c, (size_t)l->turns, sizeof(double));
    if (c->base && rope) oscar__calib_rope(rope, l);
    l->heads = (oscar__sums *)oscar__carve(c, (size_t)l->layer.kv_heads, sizeof(oscar__sums));
    for (h = 0; h < l->layer.kv_heads; h++) {
        int k_dim = l->layer.k_dim, v_dim = l->layer.v_dim;
        oscar__sums s;
        memset(&s, 0, sizeof s);
        s.q = oscar__carve_sum(c, (sums & OSCAR_SUM_Q) != 0, k_dim);
        s.k = oscar__carve_sum(c, (sums & OSCAR_SUM_K) != 0, k_dim);
        s.v = oscar__carve_sum(c, (sums & OSCAR_SUM_V) != 0, v_dim);
        s.s = oscar__carve_sum(c, (sums & OSCAR_SUM_S) != 0, v_dim);
        s.o = oscar__carve_sum(c, (sums & OSCAR_SUM_O) != 0, v_dim);
        if (sums & OSCAR_SUM_K) {
            s.k_shift = (double *)oscar__carve(c, (size_t)k_dim, sizeof(double));
            s.k_first = (double *)oscar__carve(c, (size_t)k_dim, sizeof(double));
        }
        if (c->base) l->heads[h] = s;
    }
}

/* The object, which comes first in the memory, and all of its arrays. */
static void oscar__calib_carve(oscar__carver *c, const oscar_calib_desc *desc, oscar_calib *calib)
{
    size_t dim = 0, turns = 0, shifts = (size_t)desc->shift_count;
    int i;
    (void)oscar__carve(c, 1, sizeof *calib);
    calib->sums = desc->sums ? desc->sums : (unsigned)(OSCAR_SUM_Q | OSCAR_SUM_K);
    calib->layers = (oscar__calib_layer *)oscar__carve(c, (size_t)desc->layer_count, sizeof *calib->layers);
    for (i = 0; i < desc->layer_count; i++) {
        oscar__calib_layer l;
        memset(&l, 0, sizeof l);
        oscar__calib_carve_layer(c, desc, calib->sums, i, &l);
        if (c->base) calib->layers[i] = l;
        if ((size_t)l.layer.k_dim > dim) dim = (size_t)l.layer.k_dim;
        if ((size_t)l.layer.v_dim > dim) dim = (size_t)l.layer.v_dim;
        if ((size_t)l.turns > turns) turns = (size_t)l.turns;
    }
    calib->shifts = (double *)oscar__carve(c, shifts, sizeof(double));
    calib->row = (float *)oscar__carve(c, dim, sizeof(float));
    calib->x = (double *)oscar__carve(c, dim, sizeof(double));
    calib->turned = (double *)oscar__carve(c, dim, sizeof(double));
    calib->gathered = (double *)oscar__carve(c, 2 * OSCAR__GATHER * (dim + OSCAR__GATHER_PAD), sizeof(double));
    calib->cosine = (double *)oscar__carve(c, shifts * turns, sizeof(double));
    calib->sine = (double *)oscar__carve(c, shifts * turns, sizeof(double));
}

/* Hashes of numbers do not depend on the machine's byte order. */
static uint64_t oscar__hash_integer(uint64_t hash, int64_t value)
{
    unsigned char bytes[8];
    oscar__put64(bytes, (uint64_t)value);
    return oscar__fnv(hash, bytes, sizeof bytes);
}

static uint64_t oscar__hash_real(uint64_t hash, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return oscar__hash_integer(hash, (int64_t)bits);
}

static uint64_t oscar__calib_fingerprint(const oscar_calib *c)
{
    uint64_t hash = OSCAR__FNV_START;
    int i, j, attention = c->weights == OSCAR_WEIGHTS_ATTENTION;
    hash = oscar__hash_integer(hash, (int64_t)c->sums);
    hash = oscar__hash_integer(hash, (int64_t)c->weights);
    hash = oscar__hash_integer(hash, attention ? c->sink : 0);
    hash = oscar__hash_integer(hash, attention ? c->recent : 0);
    for (i = 0; i < c->shift_count; i++) hash = oscar__hash_real(hash, c->shifts[i]);
    if (c->shift_count) hash = oscar__hash_real(hash, c->shift_weight);
    for (i = 0; i < c->layer_count; i++) {
        const oscar__calib_layer *l = &c->layers[i];
        hash = oscar__hash_integer(hash, l->layer.q_heads);
        hash = oscar__hash_integer(hash, l->layer.kv_heads);
        hash = oscar__hash_integer(hash, l->layer.k_dim);
        hash = oscar__hash_integer(hash, l->layer.v_dim);
        hash = oscar__hash_integer(hash, l->layer.window);
        hash = oscar__hash_real(hash, (double)l->layer.scale);
        hash = oscar__hash_real(hash, (double)l->layer.softcap);
        hash = oscar__hash_integer(hash, l->halves);
        hash = oscar__hash_integer(hash, l->turns);
        for (j = 0; j < l->turns; j++) hash = oscar__hash_real(hash, l->frequency[j]);
    }
    return hash;
}

OSCAR_API oscar_result oscar_calib_create(const oscar_calib_desc *desc, oscar_calib **out)
{
    oscar__carver counter = { NULL, 0 }, carver = { NULL, 0 };
    oscar_calib *calib, counted;
    oscar_result result;
    int i;
    if (!desc || !out) return OSCAR__FAIL(desc ? &desc->hooks : NULL, OSCAR_ERR_ARGUMENT, "desc or out is NULL");
    result = oscar__calib_check(desc);
    if (result) return result;
    oscar__calib_carve(&counter, desc, &counted);
    carver.base = (unsigned char *)oscar__alloc(&desc->hooks, counter.size);
    if (!carver.base)
        return OSCAR__FAIL(&desc->hooks, OSCAR_ERR_MEMORY, "no memory for calibration sums (%z bytes)", counter.size);
    memset(carver.base, 0, counter.size);
    calib = (oscar_calib *)(void *)carver.base;
    oscar__calib_carve(&carver, desc, calib);
    calib->hooks = desc->hooks;
    calib->size = counter.size;
    calib->layer_count = desc->layer_count;
    calib->weights = desc->weights;
    calib->sink = desc->sink < 0 ? 0 : desc->sink ? desc->sink : 64;
    calib->recent = desc->recent < 0 ? 0 : desc->recent ? desc->recent : 256;
    calib->shift_count = desc->shift_count;
    calib->shift_weight = desc->shift_weight > 0 ? desc->shift_weight : 1;
    for (i = 0; i < desc->shift_count; i++) calib->shifts[i] = desc->shifts[i];
    calib->fingerprint = oscar__calib_fingerprint(calib);
    *out = calib;
    return OSCAR_OK;
}

OSCAR_API void oscar_calib_destroy(oscar_calib *calib)
{
    oscar_hooks hooks;
    if (!calib) return;
    hooks = calib->hooks;
    oscar__carver_free(&hooks, calib, calib->size);
}

/* -- checks of a chunk -- */

/* A view of a chunk: name for the log, and its shape. */
typedef struct oscar__input { char name; const oscar_view *view; int heads, dim; } oscar__input;

/* The views that a pass reads, in out[4]; returns how many. */
static int oscar__calib_inputs(const oscar_calib *calib, const oscar_layer *l, const oscar_chunk *chunk,
                               oscar__input *out)
{
    unsigned sums = calib->sums;
    int attention = calib->weights == OSCAR_WEIGHTS_ATTENTION && (sums & (OSCAR_SUM_Q | OSCAR_SUM_K)), n = 0, i;
    int needed[4];
    oscar__input all[4];
    memset(all, 0, sizeof all);
    all[0].name = 'q'; all[0].view = &chunk->q; all[0].heads = l->q_heads; all[0].dim = l->k_dim;
    all[1].name = 'k'; all[1].view = &chunk->k; all[1].heads = l->kv_heads; all[1].dim = l->k_dim;
    all[2].name = 'v'; all[2].view = &chunk->v; all[2].heads = l->kv_heads; all[2].dim = l->v_dim;
    all[3].name = 'o'; all[3].view = &chunk->o; all[3].heads = l->q_heads; all[3].dim = l->v_dim;
    needed[0] = !calib->frozen && (attention || (sums & OSCAR_SUM_Q));
    needed[1] = calib->frozen || attention || (sums & OSCAR_SUM_K);
    needed[2] = calib->frozen || (sums & OSCAR_SUM_V);
    needed[3] = !calib->frozen && (sums & OSCAR_SUM_O);
    for (i = 0; i < 4; i++) if (needed[i]) out[n++] = all[i];
    return n;
}

static int oscar__masked(const oscar_chunk *chunk, int token) { return chunk->mask && !chunk->mask[token]; }

/* oscar__finite for the length of a head: without a way out of the loop compilers make vectors of it. */
static int oscar__finite_row(const float *x, int dim)
{
    int i, l, bad = 0;
    for (i = 0; i < dim; i += OSCAR__LANES)
        for (l = 0; l < OSCAR__LANES; l++) bad |= !(fabsf(x[i + l]) <= FLT_MAX);
    return !bad;
}

/* Everything that can be wrong with the data, before a sum changes. *valid: tokens that are not masked. */
static oscar_result oscar__chunk_check(oscar_calib *calib, int layer, const oscar_chunk *chunk, int *valid)
{
    oscar__input inputs[4];
    int count = oscar__calib_inputs(calib, &calib->layers[layer].layer, chunk, inputs), i, t, h;
    for (*valid = 0, t = 0; t < chunk->tokens; t++) *valid += !oscar__masked(chunk, t);
    for (i = 0; i < count; i++) {
        const oscar__input *in = &inputs[i];
        char name[2] = { 0, 0 };
        name[0] = in->name;
        if (!oscar__type_valid(in->view->type))
            return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_ARGUMENT, "chunk.%s.type is %i, which is no oscar_type", name,
                               (int)in->view->type);
        if (!in->view->data && chunk->tokens)
            return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_ARGUMENT,
                               "chunk.%s is absent, but the sums asked for need it", name);
        for (t = 0; t < chunk->tokens; t++)
            for (h = 0; !oscar__masked(chunk, t) && h < in->heads; h++) {
                oscar__view_row(in->view, in->heads, in->dim, t, h, calib->row);
                if (!oscar__finite_row(calib->row, in->dim))
                    return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_NUMERIC,
                                       "layer %i: %s of token %i, head %i holds NaN or infinity: mask the token out or "
                                       "repair it", layer, name, t, h);
            }
    }
    return OSCAR_OK;
}

/* Loads a row into calib->x. */
static void oscar__calib_load(oscar_calib *calib, const oscar_view *view, int heads, int dim, int token, int head)
{
    oscar__view_row(view, heads, dim, token, head, calib->row);
    oscar__kernels_now()->widen((size_t)dim, calib->row, calib->x);
}

/* -- attention weights -- */

/* w_ij = p_ij (1 - p_ij) for sink <= j <= i - recent, p the softmax over the chunk's valid tokens, numbered without the
   masked ones. Rows of p are made OSCAR__WEIGH_QUERIES at a time; only the sums over rows and columns are kept.
     stride        rows, rounded up to whole tiles of 16 keys
     keys          one KV head, [stride / 16][dim][16]          queries  [OSCAR__WEIGH_QUERIES / 8][dim][8], scaled
     logit         [OSCAR__WEIGH_QUERIES][stride]
     key_weight    [kv_heads][stride], sum over i and the query heads     query_weight  [q_heads][rows], sum over j */
typedef struct oscar__weigh {
    int rows;
    size_t stride;
    int *token;
    double *keys, *queries, *logit, *key_weight, *query_weight;
    void *memory;   /* which all of them are in, and its size */
    size_t size;
} oscar__weigh;

static void oscar__weigh_carve(oscar__carver *c, const oscar_layer *l, int rows, oscar__weigh *w)
{
    size_t count = (size_t)rows, dim = (size_t)l->k_dim;
    w->rows = rows;
    w->stride = oscar__align_up(count, OSCAR__TILE_COLUMNS);
    w->token = (int *)oscar__carve(c, count, sizeof(int));
    w->keys = (double *)oscar__carve(c, oscar__mul(w->stride, dim), sizeof(double));
    w->queries = (double *)oscar__carve(c, OSCAR__WEIGH_QUERIES * dim, sizeof(double));
    w->logit = (double *)oscar__carve(c, oscar__mul(OSCAR__WEIGH_QUERIES, w->stride), sizeof(double));
    w->key_weight = (double *)oscar__carve(c, oscar__mul((size_t)l->kv_heads, w->stride), sizeof(double));
    w->query_weight = (double *)oscar__carve(c, oscar__mul((size_t)l->q_heads, count), sizeof(double));
}

/* Rows first .. first + count - 1 of a head into tiles of `tile` rows, [dim][tile], times scale; rows that a tile lacks
   are zero. */
static void oscar__weigh_load(oscar_calib *calib, const oscar_view *view, int heads, int dim, int head,
                              const oscar__weigh *w, int first, int count, int tile, double scale, double *out)
{
    int n, d;
    for (n = 0; n < count || n % tile; n++) {
        double *to = out + (size_t)(n / tile) * (size_t)(tile * dim) + n % tile;
        if (n < count) oscar__view_row(view, heads, dim, w->token[first + n], head, calib->row);
        for (d = 0; d < dim; d++) to[d * tile] = n < count ? scale * (double)calib->row[d] : 0;
    }
}

/* Adds row i of w to the sums over columns; returns the sum of the row. logit: of query i, [stride], is changed. */
static double oscar__weigh_query(const oscar_calib *calib, const oscar_layer *l, int i, double *logit,
                                 double *key_weight)
{
    const oscar__kernels *kernels = oscar__kernels_now();
    const size_t tile = OSCAR__TILE_COLUMNS;
    size_t from = l->window && i + 1 > l->window ? (size_t)(i + 1 - l->window) : 0, end = (size_t)i + 1;
    size_t first = from > (size_t)calib->sink ? from : (size_t)calib->sink, stop = (size_t)(i + 1 - calib->recent), j;
    double cap = (double)l->softcap, total;
    for (j = from; cap > 0 && j < end; j++) logit[j] = cap * tanh(logit[j] / cap);
    for (j = from - from % tile; j < from; j++) logit[j] = -HUGE_VAL;
    for (j = end; j % tile; j++) logit[j] = -HUGE_VAL;
    from -= from % tile;
    total = kernels->exp_row(oscar__align_up(end, tile) - from, logit + from);
    if (first >= stop) return 0;
    for (j = first - first % tile; j < first; j++) logit[j] = 0;
    for (j = stop; j % tile; j++) logit[j] = 0;
    first -= first % tile;
    return kernels->weigh_row(oscar__align_up(stop, tile) - first, total, logit + first, key_weight + first);
}

/* Queries i .. i + count - 1 of head x. Returns the sum of their weights. */
static double oscar__weigh_block(oscar_calib *calib, const oscar_layer *l, const oscar_chunk *chunk, int x, int i,
                                 int count, oscar__weigh *w)
{
    const oscar__kernels *kernels = oscar__kernels_now();
    size_t dim = (size_t)l->k_dim, end = oscar__align_up((size_t)(i + count), OSCAR__TILE_COLUMNS), from, j, r;
    double *key_weight = w->key_weight + (size_t)(x / (l->q_heads / l->kv_heads)) * w->stride, total = 0;
    from = l->window && i + 1 > l->window ? (size_t)(i + 1 - l->window) : 0;
    from -= from % OSCAR__TILE_COLUMNS;
    oscar__weigh_load(calib, &chunk->q, l->q_heads, l->k_dim, x, w, i, count, OSCAR__TILE_ROWS, (double)l->scale,
                      w->queries);
    for (r = 0; r < oscar__align_up((size_t)count, OSCAR__TILE_ROWS); r++)
        memset(w->logit + r * w->stride + from, 0, (end - from) * sizeof(double));
    for (j = from; j < end; j += OSCAR__TILE_COLUMNS)
        for (r = 0; r < (size_t)count; r += OSCAR__TILE_ROWS)
            kernels->add_tile(dim, w->queries + r * dim, OSCAR__TILE_ROWS, w->keys + j * dim, OSCAR__TILE_COLUMNS,
                              w->logit + r * w->stride + j, w->stride);
    for (r = 0; r < (size_t)count; r++) {
        double weight = oscar__weigh_query(calib, l, i + (int)r, w->logit + r * w->stride, key_weight);
        w->query_weight[(size_t)x * (size_t)w->rows + (size_t)i + r] = weight;
        total += weight;
    }
    return total;
}

/* Fills the weights; returns their sum over all heads. */
static double oscar__weigh_run(oscar_calib *calib, const oscar_layer *l, const oscar_chunk *chunk, oscar__weigh *w)
{
    int group = l->q_heads / l->kv_heads, n = 0, t, x, i;
    double total = 0;
    for (t = 0; t < chunk->tokens; t++) if (!oscar__masked(chunk, t)) w->token[n++] = t;
    memset(w->key_weight, 0, (size_t)l->kv_heads * w->stride * sizeof(double));
    memset(w->query_weight, 0, (size_t)l->q_heads * (size_t)w->rows * sizeof(double));
    for (x = 0; x < l->q_heads; x++) {
        if (x % group == 0)
            oscar__weigh_load(calib, &chunk->k, l->kv_heads, l->k_dim, x / group, w, 0, w->rows, OSCAR__TILE_COLUMNS, 1,
                              w->keys);
        for (i = calib->sink + calib->recent; i < w->rows; i += OSCAR__WEIGH_QUERIES) {
            int count = w->rows - i < OSCAR__WEIGH_QUERIES ? w->rows - i : OSCAR__WEIGH_QUERIES;
            total += oscar__weigh_block(calib, l, chunk, x, i, count, w);
        }
    }
    return total;
}

/* The weights of a chunk, in memory that the caller frees. */
static oscar_result oscar__weigh_chunk(oscar_calib *calib, int layer, const oscar_chunk *chunk, int valid,
                                       oscar__weigh *w)
{
    const oscar_layer *l = &calib->layers[layer].layer;
    int64_t least = (int64_t)calib->sink + calib->recent;
    oscar__carver counter = { NULL, 0 }, carver = { NULL, 0 };
    if (l->window && l->window <= calib->recent)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_ARGUMENT,
                           "layer %i sees only %i tokens, which the %i recent ones cover: history has no weight there; "
                           "use OSCAR_WEIGHTS_PLAIN or smaller windows", layer, l->window, calib->recent);
    if (valid <= least)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_ARGUMENT,
                           "layer %i: a chunk of %i valid tokens gives no attention weight: make chunks longer than "
                           "sink + recent = %I, better twice that", layer, valid, least);
    if (valid < 2 * least && !calib->warned) {
        calib->warned = 1;
        OSCAR__WARN(&calib->hooks, "layer %i: a chunk of %i valid tokens weighs few keys: chunks of at least "
                    "2 (sink + recent) = %I tokens are better", layer, valid, 2 * least);
    }
    oscar__weigh_carve(&counter, l, valid, w);
    carver.base = (unsigned char *)oscar__alloc(&calib->hooks, counter.size);
    if (!carver.base)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_MEMORY, "no memory for the attention weights of a chunk (%z bytes)",
                           counter.size);
    oscar__weigh_carve(&carver, l, valid, w);
    w->memory = carver.base;
    w->size = counter.size;
    if (!(oscar__weigh_run(calib, l, chunk, w) > 0))
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_ARGUMENT,
                           "layer %i: every attention weight of the chunk is 0: its softmax is one-hot throughout; "
                           "check q, k and layer.scale", layer);
    return OSCAR_OK;
}

/* -- accumulation -- */

/* Cosines and sines of the layer's shifts: a token moved by `shift` positions turns by shift * frequency. */
static void oscar__calib_angles(oscar_calib *calib, const oscar__calib_layer *l)
{
    int s, i;
    for (s = 0; s < calib->shift_count; s++)
        for (i = 0; i < l->turns; i++) {
            double angle = calib->shifts[s] * l->frequency[i];
            calib->cosine[s * l->turns + i] = cos(angle);
            calib->sine[s * l->turns + i] = sin(angle);
        }
}

/* calib->turned = calib->x after shift s. */
static void oscar__calib_turn(oscar_calib *calib, const oscar__calib_layer *l, int s)
{
    const double *cosine = calib->cosine + s * l->turns, *sine = calib->sine + s * l->turns;
    int i, turned = 2 * l->turns;
    memcpy(calib->turned + turned, calib->x + turned, (size_t)(l->layer.k_dim - turned) * sizeof(double));
    if (l->halves) {
        oscar__kernels_now()->turn_halves((size_t)l->turns, cosine, sine, calib->x, calib->turned);
        return;
    }
    for (i = 0; i < l->turns; i++) {
        double a = calib->x[2 * i], b = calib->x[2 * i + 1];
        calib->turned[2 * i] = a * cosine[i] - b * sine[i];
        calib->turned[2 * i + 1] = a * sine[i] + b * cosine[i];
    }
}

static void oscar__add_key(oscar__sums *sums, oscar__gather *g, double *key, double weight)
{
    size_t d;
    for (d = 0; d < g->dim; d++) {
        key[d] -= sums->k_shift[d];
        sums->k_first[d] += weight * key[d];
    }
    sums->k_weight += weight;
    oscar__gather_push(g, key, weight);
}

static void oscar__add_keys(oscar_calib *calib, oscar__calib_layer *l, const oscar_chunk *chunk, int head,
                            const oscar__weigh *w)
{
    oscar__sums *sums = &l->heads[head];
    int dim = l->layer.k_dim, n = 0, t, s;
    oscar__gather g = oscar__gather_start(calib, dim, sums->k);
    for (t = 0; t < chunk->tokens; t++) {
        double weight = 1;
        if (oscar__masked(chunk, t)) continue;
        if (w) weight = w->key_weight[(size_t)head * w->stride + (size_t)n];
        n++;
        if (!(weight > 0)) continue;
        oscar__calib_load(calib, &chunk->k, l->layer.kv_heads, dim, t, head);
        if (!sums->shifted) memcpy(sums->k_shift, calib->x, (size_t)dim * sizeof(double));
        sums->shifted = 1;
        for (s = 0; s < calib->shift_count; s++) {
            oscar__calib_turn(calib, l, s);
            oscar__add_key(sums, &g, calib->turned, weight * calib->shift_weight);
        }
        oscar__add_key(sums, &g, calib->x, weight);
    }
    oscar__gather_flush(&g);
}

static void oscar__add_queries(oscar_calib *calib, oscar__calib_layer *l, const oscar_chunk *chunk, int head,
                               const oscar__weigh *w)
{
    oscar__sums *sums = &l->heads[head];
    int group = l->layer.q_heads / l->layer.kv_heads, dim = l->layer.k_dim, x, t, s;
    oscar__gather g = oscar__gather_start(calib, dim, sums->q);
    for (x = head * group; x < (head + 1) * group; x++) {
        int n = 0;
        for (t = 0; t < chunk->tokens; t++) {
            double weight = 1;
            if (oscar__masked(chunk, t)) continue;
            if (w) weight = w->query_weight[(size_t)x * (size_t)w->rows + (size_t)n];
            n++;
            if (!(weight > 0)) continue;
            oscar__calib_load(calib, &chunk->q, l->layer.q_heads, dim, t, x);
            oscar__gather_push(&g, calib->x, weight);
            for (s = 0; s < calib->shift_count; s++) {
                oscar__calib_turn(calib, l, s);
                oscar__gather_push(&g, calib->turned, weight * calib->shift_weight);
            }
            sums->q_weight += weight * (1 + calib->shift_weight * calib->shift_count);
        }
    }
    oscar__gather_flush(&g);
}

/* sum += x^T x over heads first .. first + count - 1 of a view; returns the number of rows. */
static double oscar__add_plain(oscar_calib *calib, const oscar_view *view, int heads, int dim, const oscar_chunk *chunk,
                               int first, int count, double *sum)
{
    oscar__gather g = oscar__gather_start(calib, dim, sum);
    double rows = 0;
    int h, t;
    for (h = first; h < first + count; h++)
        for (t = 0; t < chunk->tokens; t++) {
            if (oscar__masked(chunk, t)) continue;
            oscar__calib_load(calib, view, heads, dim, t, h);
            oscar__gather_push(&g, calib->x, 1);
            rows++;
        }
    oscar__gather_flush(&g);
    return rows;
}

/* The second pass of one head: w_t = k_t C_Q k_t^T from the lower triangle of C_Q; above it are zeros. */
static void oscar__add_scored(oscar_calib *calib, oscar__calib_layer *l, const oscar_chunk *chunk, int head)
{
    oscar__sums *sums = &l->heads[head];
    size_t k_dim = (size_t)l->layer.k_dim, i;
    oscar__gather g = oscar__gather_start(calib, l->layer.v_dim, sums->s);
    int t;
    for (t = 0; t < chunk->tokens; t++) {
        double weight = 0;
        if (oscar__masked(chunk, t)) continue;
        oscar__calib_load(calib, &chunk->k, l->layer.kv_heads, l->layer.k_dim, t, head);
        memset(calib->turned, 0, k_dim * sizeof(double));
        g.kernels->add_rows(k_dim, k_dim, 1, calib->x, 1, sums->q, k_dim, calib->turned);
        for (i = 0; i < k_dim; i++)
            weight += calib->x[i] * (2 * calib->turned[i] - sums->q[i * (k_dim + 1)] * calib->x[i]);
        weight /= sums->q_weight;
        if (!(weight > 0)) continue;
        sums->s_weight += weight;
        oscar__calib_load(calib, &chunk->v, l->layer.kv_heads, l->layer.v_dim, t, head);
        oscar__gather_push(&g, calib->x, weight);
    }
    oscar__gather_flush(&g);
}

/* The first pass of one head. */
static void oscar__add_head(oscar_calib *calib, oscar__calib_layer *l, const oscar_chunk *chunk, int head,
                            const oscar__weigh *w)
{
    oscar__sums *sums = &l->heads[head];
    int group = l->layer.q_heads / l->layer.kv_heads;
    if (sums->q) oscar__add_queries(calib, l, chunk, head, w);
    if (sums->k) oscar__add_keys(calib, l, chunk, head, w);
    if (sums->v)
        sums->v_weight += oscar__add_plain(calib, &chunk->v, l->layer.kv_heads, l->layer.v_dim, chunk, head, 1,
                                           sums->v);
    if (sums->o)
        sums->o_weight += oscar__add_plain(calib, &chunk->o, l->layer.q_heads, l->layer.v_dim, chunk, head * group,
                                           group, sums->o);
}

OSCAR_API oscar_result oscar_calib_add(oscar_calib *calib, int layer, const oscar_chunk *chunk)
{
    oscar__weigh weigh, *w = NULL;
    oscar__calib_layer *l;
    oscar_result result;
    int valid, h;
    if (!calib || !chunk) return OSCAR__FAIL(calib ? &calib->hooks : NULL, OSCAR_ERR_ARGUMENT, "chunk is NULL");
    if (layer < 0 || layer >= calib->layer_count || chunk->tokens < 0)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_ARGUMENT, "layer is %i of %i, chunk.tokens %i", layer,
                           calib->layer_count, chunk->tokens);
    if (calib->frozen && !(calib->sums & OSCAR_SUM_S))
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_STATE,
                           "C_Q is frozen: a second pass needs OSCAR_SUM_S in desc.sums");
    result = oscar__chunk_check(calib, layer, chunk, &valid);
    if (result) return result;
    l = &calib->layers[layer];
    memset(&weigh, 0, sizeof weigh);
    if (calib->frozen && valid && !l->tokens)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_STATE, "layer %i had no tokens in the first pass", layer);
    if (!calib->frozen && calib->weights == OSCAR_WEIGHTS_ATTENTION && (calib->sums & (OSCAR_SUM_Q | OSCAR_SUM_K))) {
        w = &weigh;
        result = oscar__weigh_chunk(calib, layer, chunk, valid, w);
    }
    if (!result) {
        oscar__calib_angles(calib, l);
        for (h = 0; h < l->layer.kv_heads; h++)
            if (calib->frozen) oscar__add_scored(calib, l, chunk, h);
            else oscar__add_head(calib, l, chunk, h, w);
        if (calib->frozen) l->s_tokens += valid;
        else l->tokens += valid;
    }
    oscar__carver_free(&calib->hooks, weigh.memory, weigh.size);
    return result;
}

/* -- freeze, merge -- */

/* Whether anything is to be found for a layer. */
static int oscar__calib_wanted(const oscar_layer *layer) { return layer->k_bits != 16 || layer->v_bits != 16; }

OSCAR_API oscar_result oscar_calib_freeze_q(oscar_calib *calib)
{
    int i;
    if (!calib) return OSCAR_ERR_ARGUMENT;
    if (calib->frozen) return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_STATE, "C_Q is frozen already");
    for (i = 0; i < calib->layer_count; i++)
        if (!calib->layers[i].tokens && oscar__calib_wanted(&calib->layers[i].layer))
            return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_STATE, "layer %i has no tokens: add chunks first", i);
    calib->frozen = 1;
    return OSCAR_OK;
}

static void oscar__merge_matrix(int dim, double *sum, const double *other)
{
    size_t i;
    for (i = 0; sum && i < (size_t)dim * (size_t)dim; i++) sum[i] += other[i];
}

/* About shift a, from sums about b, with d = b - a: sum w (k - a) = first + W d,
   sum w (k - a)^T (k - a) = second + first^T d + d^T first + W d^T d. */
static void oscar__merge_keys(int dim, oscar__sums *sums, const oscar__sums *other)
{
    size_t size = (size_t)dim, i, j;
    if (!other->shifted) return;
    if (!sums->shifted) memcpy(sums->k_shift, other->k_shift, size * sizeof(double));
    sums->shifted = 1;
    for (i = 0; i < size; i++) {
        double d = other->k_shift[i] - sums->k_shift[i], first = other->k_first[i];
        for (j = 0; j <= i; j++) {
            double e = other->k_shift[j] - sums->k_shift[j];
            sums->k[i * size + j] += other->k[i * size + j]
                                     + (first * e + d * other->k_first[j] + other->k_weight * d * e);
        }
    }
    for (i = 0; i < size; i++)
        sums->k_first[i] += other->k_first[i] + other->k_weight * (other->k_shift[i] - sums->k_shift[i]);
    sums->k_weight += other->k_weight;
}

static int oscar__same_q(const oscar_calib *a, const oscar_calib *b)
{
    int i, h;
    for (i = 0; i < a->layer_count; i++) {
        size_t bytes = (size_t)a->layers[i].layer.k_dim * (size_t)a->layers[i].layer.k_dim * sizeof(double);
        for (h = 0; h < a->layers[i].layer.kv_heads; h++) {
            const oscar__sums *x = &a->layers[i].heads[h], *y = &b->layers[i].heads[h];
            if (x->q_weight < y->q_weight || x->q_weight > y->q_weight || memcmp(x->q, y->q, bytes)) return 0;
        }
    }
    return 1;
}

static void oscar__merge_head(const oscar_layer *l, int frozen, oscar__sums *sums, const oscar__sums *other)
{
    if (frozen) {
        oscar__merge_matrix(l->v_dim, sums->s, other->s);
        sums->s_weight += other->s_weight;
        return;
    }
    oscar__merge_matrix(l->k_dim, sums->q, other->q);
    oscar__merge_matrix(l->v_dim, sums->v, other->v);
    oscar__merge_matrix(l->v_dim, sums->o, other->o);
    sums->q_weight += other->q_weight;
    sums->v_weight += other->v_weight;
    sums->o_weight += other->o_weight;
    if (sums->k) oscar__merge_keys(l->k_dim, sums, other);
}

OSCAR_API oscar_result oscar_calib_merge(oscar_calib *calib, const oscar_calib *other)
{
    int i, h;
    if (!calib || !other || calib == other)
        return OSCAR__FAIL(calib ? &calib->hooks : NULL, OSCAR_ERR_ARGUMENT, "give two different objects");
    if (calib->layer_count != other->layer_count || calib->fingerprint != other->fingerprint)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_ARGUMENT,
                           "the objects differ in layers, sums, weights, windows or shifts: make both from one desc");
    if (calib->frozen != other->frozen)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_STATE, "only one of the objects is frozen: freeze both or none");
    if (calib->frozen && (!(calib->sums & OSCAR_SUM_S) || !oscar__same_q(calib, other)))
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_STATE,
                           "after oscar_calib_freeze_q only OSCAR_SUM_S can be merged, and C_Q must be equal: merge "
                           "the first pass into one object, merge that into fresh ones, then freeze");
    for (i = 0; i < calib->layer_count; i++) {
        oscar__calib_layer *l = &calib->layers[i];
        for (h = 0; h < l->layer.kv_heads; h++)
            oscar__merge_head(&l->layer, calib->frozen, &l->heads[h], &other->layers[i].heads[h]);
        if (calib->frozen) l->s_tokens += other->layers[i].s_tokens;
        else l->tokens += other->layers[i].tokens;
    }
    return OSCAR_OK;
}

/* -- save, restore -- */

/* A blob:  [magic 8][version 4][frozen 4][fingerprint 8][payload bytes 8][FNV-1a of the rest 8] payload
   payload, all doubles: for each layer tokens of both passes, and for each head the five weights, whether the shift is
   set, shift, first moment of k, and the matrices that were asked for. */
enum { OSCAR__SUMS_VERSION = 1, OSCAR__SUMS_HEADER = 40 };
static const char oscar__sums_magic[8] = { 'O', 'S', 'C', 'A', 'R', 'S', 'U', 'M' };

/* One walk over all numbers serves four ends. */
typedef enum oscar__walk_end { OSCAR__COUNT, OSCAR__SAVE, OSCAR__CHECK, OSCAR__RESTORE } oscar__walk_end;
typedef struct oscar__walk {
    oscar__walk_end end;
    unsigned char *at;   /* the payload */
    size_t count;        /* numbers so far */
    int valid;           /* CHECK: all are finite, and not negative where they must not be */
} oscar__walk;

static void oscar__walk_number(oscar__walk *w, int signed_number, double *x)
{
    unsigned char *p = w->at + (w->end == OSCAR__COUNT ? 0 : 8 * w->count);
    uint64_t bits = 0;
    double value;
    w->count++;
    if (w->end == OSCAR__COUNT) return;
    if (w->end == OSCAR__SAVE) {
        memcpy(&bits, x, 8);
        oscar__put64(p, bits);
        return;
    }
    bits = oscar__get64(p);
    memcpy(&value, &bits, 8);
    if (!(value <= DBL_MAX && value >= (signed_number ? -DBL_MAX : 0))) w->valid = 0;
    if (w->end == OSCAR__RESTORE) *x = value;
}

static void oscar__walk_array(oscar__walk *w, double *x, size_t count)
{
    size_t i;
    double ignored = 0;
    for (i = 0; i < count; i++) oscar__walk_number(w, 1, w->end == OSCAR__COUNT ? &ignored : x + i);
}

static void oscar__walk_head(oscar__walk *w, const oscar_layer *l, oscar__sums *s)
{
    size_t k_dim = (size_t)l->k_dim, v_dim = (size_t)l->v_dim;
    double shifted = s->shifted;
    oscar__walk_number(w, 0, &s->q_weight);
    oscar__walk_number(w, 0, &s->k_weight);
    oscar__walk_number(w, 0, &s->v_weight);
    oscar__walk_number(w, 0, &s->s_weight);
    oscar__walk_number(w, 0, &s->o_weight);
    oscar__walk_number(w, 0, &shifted);
    if (w->end == OSCAR__RESTORE) s->shifted = shifted > 0;
    if (s->k) {
        oscar__walk_array(w, s->k_shift, k_dim);
        oscar__walk_array(w, s->k_first, k_dim);
        oscar__walk_array(w, s->k, k_dim * k_dim);
    }
    if (s->q) oscar__walk_array(w, s->q, k_dim * k_dim);
    if (s->v) oscar__walk_array(w, s->v, v_dim * v_dim);
    if (s->s) oscar__walk_array(w, s->s, v_dim * v_dim);
    if (s->o) oscar__walk_array(w, s->o, v_dim * v_dim);
}

/* Runs over all sums; returns what CHECK found. The calibration changes with RESTORE only. */
static int oscar__walk_sums(const oscar_calib *calib, oscar__walk_end end, unsigned char *payload, size_t *bytes)
{
    oscar__walk w;
    int i, h;
    w.end = end;
    w.at = payload;
    w.count = 0;
    w.valid = 1;
    for (i = 0; i < calib->layer_count; i++) {
        oscar__calib_layer *l = &calib->layers[i];
        double tokens = (double)l->tokens, s_tokens = (double)l->s_tokens;   /* exact up to 2^53 */
        oscar__walk_number(&w, 0, &tokens);
        oscar__walk_number(&w, 0, &s_tokens);
        if (!(tokens < 9e15 && s_tokens < 9e15)) w.valid = 0;
        if (end == OSCAR__RESTORE) { l->tokens = (int64_t)tokens; l->s_tokens = (int64_t)s_tokens; }
        for (h = 0; h < l->layer.kv_heads; h++) oscar__walk_head(&w, &l->layer, &l->heads[h]);
    }
    *bytes = 8 * w.count;
    return w.valid;
}

OSCAR_API oscar_result oscar_calib_save(const oscar_calib *calib, void *out, size_t capacity, size_t *size)
{
    unsigned char *blob = (unsigned char *)out;
    size_t payload, total;
    if (!calib || !size)
        return OSCAR__FAIL(calib ? &calib->hooks : NULL, OSCAR_ERR_ARGUMENT, "there is no place for the size");
    (void)oscar__walk_sums(calib, OSCAR__COUNT, NULL, &payload);
    total = payload + OSCAR__SUMS_HEADER;
    *size = total;
    if (!out) return OSCAR_OK;
    if (capacity < total)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_MEMORY, "the sums take %z bytes, the buffer has %z", total,
                           capacity);
    memcpy(blob, oscar__sums_magic, 8);
    oscar__put32(blob + 8, OSCAR__SUMS_VERSION);
    oscar__put32(blob + 12, (uint32_t)calib->frozen);
    oscar__put64(blob + 16, calib->fingerprint);
    oscar__put64(blob + 24, payload);
    (void)oscar__walk_sums(calib, OSCAR__SAVE, blob + OSCAR__SUMS_HEADER, &payload);
    oscar__put64(blob + 32, oscar__checksum(blob, total, 32));
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_calib_restore(oscar_calib *calib, const void *data, size_t size)
{
    unsigned char *blob = (unsigned char *)(uintptr_t)data;   /* only read: CHECK and RESTORE do not write to it */
    size_t payload;
    if (!calib || !data) return OSCAR__FAIL(calib ? &calib->hooks : NULL, OSCAR_ERR_ARGUMENT, "there is no blob");
    if (size < OSCAR__SUMS_HEADER || memcmp(blob, oscar__sums_magic, 8) != 0)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_FORMAT, "these %z bytes are no saved calibration sums", size);
    if (oscar__get32(blob + 8) != OSCAR__SUMS_VERSION)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_VERSION, "the blob has version %I, this library reads %i",
                           (int64_t)oscar__get32(blob + 8), OSCAR__SUMS_VERSION);
    if (oscar__get64(blob + 16) != calib->fingerprint)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_VERSION,
                           "the sums were made from another desc: layers, sums, weights, windows, shifts must agree");
    (void)oscar__walk_sums(calib, OSCAR__COUNT, NULL, &payload);
    if (size - OSCAR__SUMS_HEADER != payload || oscar__get64(blob + 24) != payload || oscar__get32(blob + 12) > 1
        || oscar__checksum(blob, size, 32) != oscar__get64(blob + 32)
        || !oscar__walk_sums(calib, OSCAR__CHECK, blob + OSCAR__SUMS_HEADER, &payload))
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_FORMAT, "the saved sums are cut off or damaged");
    (void)oscar__walk_sums(calib, OSCAR__RESTORE, blob + OSCAR__SUMS_HEADER, &payload);
    calib->frozen = (int)oscar__get32(blob + 12);
    return OSCAR_OK;
}

/* == 3.8 COMPOSE, REPORT == */

/*     OSCAR     F = U H P, B = F                       U: eigenvectors of the target, ascending
       BALANCED  L L^T = Cx + eps tr(Cx)/D I            V diag(mu) V^T = L^T (Cw + eps tr(Cw)/D I) L
                 F = s L^-T V diag(mu^1/4) H P          s^2 sum sqrt(mu) = D
                 B = L V diag(mu^-1/4) H P / s

   Column j of H P is column perm[j] of H, perm[bitrev(i)] = D - 1 - i. D = nb N, N a power of two and nb > 1: no P;
   instead the eigenvectors are dealt to the nb blocks of H in turn, so that each block gets its share of every tier:
   rank i (0 = largest eigenvalue) becomes column (i mod nb) N + bitrev_N(i div nb). */

/* -- second moments from the sums -- */

typedef enum oscar__moment {
    OSCAR__C_Q, OSCAR__C_K, OSCAR__C_K_CENTRED, OSCAR__C_V, OSCAR__C_S, OSCAR__C_O, OSCAR__C_IDENTITY
} oscar__moment;

static unsigned oscar__moment_flag(oscar__moment moment)
{
    switch (moment) {
    case OSCAR__C_Q: return OSCAR_SUM_Q;
    case OSCAR__C_K: case OSCAR__C_K_CENTRED: return OSCAR_SUM_K;
    case OSCAR__C_V: return OSCAR_SUM_V;
    case OSCAR__C_S: return OSCAR_SUM_S;
    case OSCAR__C_O: return OSCAR_SUM_O;
    default: return 0;
    }
}

static void oscar__identity(int dim, double *m)
{
    size_t size = (size_t)dim, i;
    memset(m, 0, size * size * sizeof(double));
    for (i = 0; i < size; i++) m[i * (size + 1)] = 1;
}

/* out += share * sum / weight, both triangles. */
static void oscar__add_moment(int dim, const double *sum, double weight, double share, double *out)
{
    size_t size = (size_t)dim, i, j;
    if (!(weight > 0)) return;
    for (i = 0; i < size; i++)
        for (j = 0; j < size; j++)
            out[i * size + j] += share * (j <= i ? sum[i * size + j] : sum[j * size + i]) / weight;
}

/* out += share * x^T x */
static void oscar__add_outer(int dim, const double *x, double share, double *out)
{
    size_t size = (size_t)dim, i, j;
    for (i = 0; i < size; i++) for (j = 0; j < size; j++) out[i * size + j] += share * x[i] * x[j];
}

/* Of heads first .. first + count - 1 the mean of their moments. */
static void oscar__moment_of(const oscar__calib_layer *l, oscar__moment moment, int first, int count, double *out)
{
    int k_dim = l->layer.k_dim, v_dim = l->layer.v_dim, dim = moment <= OSCAR__C_K_CENTRED ? k_dim : v_dim, h, d;
    double share = 1.0 / count, mean[OSCAR__DIM_MAX];
    memset(out, 0, (size_t)dim * (size_t)dim * sizeof(double));
    for (h = first; h < first + count; h++) {
        const oscar__sums *s = &l->heads[h];
        switch (moment) {
        case OSCAR__C_Q: oscar__add_moment(dim, s->q, s->q_weight, share, out); break;
        case OSCAR__C_V: oscar__add_moment(dim, s->v, s->v_weight, share, out); break;
        case OSCAR__C_S: oscar__add_moment(dim, s->s, s->s_weight, share, out); break;
        case OSCAR__C_O: oscar__add_moment(dim, s->o, s->o_weight, share, out); break;
        case OSCAR__C_K: case OSCAR__C_K_CENTRED:
            oscar__add_moment(dim, s->k, s->k_weight, share, out);
            for (d = 0; d < dim; d++) mean[d] = s->k_first[d] / s->k_weight;
            oscar__add_outer(dim, mean, -share, out);
            if (moment == OSCAR__C_K_CENTRED) break;
            for (d = 0; d < dim; d++) mean[d] += s->k_shift[d];
            oscar__add_outer(dim, mean, share, out);
            break;
        default: oscar__identity(dim, out);
        }
    }
}

static void oscar__mean_key(const oscar__calib_layer *l, int head, double *mean)
{
    const oscar__sums *s = &l->heads[head];
    int d;
    for (d = 0; d < l->layer.k_dim; d++) mean[d] = s->k_shift[d] + s->k_first[d] / s->k_weight;
}

/* OSCAR_OK if the layer has the moment, of all of its heads. */
static oscar_result oscar__moment_check(const oscar_calib *calib, int layer, oscar__moment moment)
{
    static const char *const names[] = { "OSCAR_SUM_Q", "OSCAR_SUM_K", "OSCAR_SUM_V", "OSCAR_SUM_S", "OSCAR_SUM_O" };
    const oscar__calib_layer *l = &calib->layers[layer];
    unsigned flag = oscar__moment_flag(moment);
    int name = 0, h;
    if (!flag) return OSCAR_OK;
    while (flag >> name != 1) name++;
    if (!(calib->sums & flag))
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_STATE, "layer %i needs %s: add it to desc.sums", layer,
                           names[name]);
    if (moment == OSCAR__C_S && !l->s_tokens)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_STATE,
                           "layer %i has no OSCAR_SUM_S: call oscar_calib_freeze_q and add the chunks a second time",
                           layer);
    if (moment == OSCAR__C_S && l->s_tokens != l->tokens)
        OSCAR__WARN(&calib->hooks, "layer %i: %I tokens in the second pass, %I in the first: add the same chunks twice",
                    layer, l->s_tokens, l->tokens);
    for (h = 0; h < l->layer.kv_heads; h++)
        if ((moment == OSCAR__C_Q && !(l->heads[h].q_weight > 0))
            || (flag == OSCAR_SUM_K && !(l->heads[h].k_weight > 0)))
            return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_STATE,
                               "layer %i, KV head %i: all attention weights are 0, so %s is empty; use "
                               "OSCAR_WEIGHTS_PLAIN", layer, h, names[name]);
    return OSCAR_OK;
}

/* -- pairs, in double -- */

/* Matrices [dim][dim]: cx, cw go in, f, g come out (g = F^-T), others are in between. */
typedef struct oscar__compose_work {
    double *cx, *cw, *f, *g, *between, *factor, *vectors;
    double *values, *row;   /* [dim] */
    void *scratch;
} oscar__compose_work;

static void oscar__compose_carve(oscar__carver *c, int dim, oscar__compose_work *w)
{
    size_t size = (size_t)dim;
    w->cx = (double *)oscar__carve(c, size * size, sizeof(double));
    w->cw = (double *)oscar__carve(c, size * size, sizeof(double));
    w->f = (double *)oscar__carve(c, size * size, sizeof(double));
    w->g = (double *)oscar__carve(c, size * size, sizeof(double));
    w->between = (double *)oscar__carve(c, size * size, sizeof(double));
    w->factor = (double *)oscar__carve(c, size * size, sizeof(double));
    w->vectors = (double *)oscar__carve(c, size * size, sizeof(double));
    w->values = (double *)oscar__carve(c, size, sizeof(double));
    w->row = (double *)oscar__carve(c, size, sizeof(double));
    w->scratch = oscar__carve(c, oscar_eigh_scratch(dim), 1);
}

/* Rows of m through H. ordered: columns of m in ascending order of eigenvalues; adds P, or deals them to the blocks. */
static void oscar__mix(int dim, int ordered, double *m, double *row)
{
    int block = oscar__pow2_divisor(dim), blocks = dim / block, bits = 0, i, j;
    while (1 << bits < block) bits++;
    for (i = 0; i < dim; i++, m += dim) {
        if (ordered && blocks > 1) {
            memcpy(row, m, (size_t)dim * sizeof(double));
            for (j = 0; j < dim; j++)
                m[j % blocks * block + (int)oscar_bitrev((uint32_t)(j / blocks), bits)] = row[dim - 1 - j];
        }
        oscar__fwht_double(dim, m);
        if (ordered && blocks == 1) {
            memcpy(row, m, (size_t)dim * sizeof(double));
            for (j = 0; j < dim; j++) m[oscar_bitrev((uint32_t)j, bits)] = row[dim - 1 - j];
        }
    }
}

static oscar_result oscar__eigen(const oscar_hooks *hooks, int dim, const double *a, double *vectors, double *values,
                                 void *scratch)
{
    oscar_result result = oscar_eigh(dim, a, vectors, values, scratch);
    if (!result) return OSCAR_OK;
    return OSCAR__FAIL(hooks, result, "eigenvectors of a second moment: %s", oscar_result_text(result));
}

/* The orthogonal methods: w->f from the target in w->cx; leaves w->cx as it is. */
static oscar_result oscar__compose_orthogonal(const oscar_hooks *hooks, oscar_method method, int dim,
                                              oscar__compose_work *w)
{
    int eigenvectors = method == OSCAR_METHOD_OSCAR || method == OSCAR_METHOD_U || method == OSCAR_METHOD_UH;
    int mixed = method != OSCAR_METHOD_U && method != OSCAR_METHOD_NONE;
    oscar_result result = OSCAR_OK;
    if (eigenvectors) result = oscar__eigen(hooks, dim, w->cx, w->f, w->values, w->scratch);
    else oscar__identity(dim, w->f);
    if (result || !mixed) return result;
    oscar__mix(dim, method == OSCAR_METHOD_OSCAR
                    || (method == OSCAR_METHOD_HP && oscar__pow2_divisor(dim) == dim), w->f, w->row);
    return OSCAR_OK;
}

/* eps tr(c) / dim. A matrix of zeros, as a head that was pruned away gives it, counts as I. */
static double oscar__regularisation(int dim, const double *c, double eps)
{
    size_t i, size = (size_t)dim;
    double trace = 0;
    for (i = 0; i < size; i++) trace += c[i * (size + 1)];
    return trace > 0 ? eps * trace / dim : 1;
}

/* out = l^T b for lower l. */
static void oscar__lower_t_times(int dim, const double *l, const double *b, double *out)
{
    size_t size = (size_t)dim, i;
    memset(out, 0, size * size * sizeof(double));
    for (i = 0; i < size; i++)
        oscar__kernels_now()->add_rows(size, size - i, 1, l + i * size + i, size, b + i * size, size, out + i * size);
}

/* out = a b, where the entries of a right of the diagonal are not read if lower is set. */
static void oscar__times(int dim, int lower, const double *a, const double *b, double *out)
{
    size_t size = (size_t)dim, i;
    memset(out, 0, size * size * sizeof(double));
    for (i = 0; i < size; i++)
        oscar__kernels_now()->add_rows(size, lower ? i + 1 : size, 1, a + i * size, 1, b, size, out + i * size);
}

/* out = V diag(values^power) * scale, mixed. */
static void oscar__weighted_vectors(int dim, const oscar__compose_work *w, double power, double scale, double *out)
{
    size_t size = (size_t)dim, i, j;
    for (j = 0; j < size; j++) w->row[j] = pow(w->values[j], power) * scale;
    for (i = 0; i < size; i++)
        for (j = 0; j < size; j++) out[i * size + j] = w->vectors[i * size + j] * w->row[j];
    oscar__mix(dim, 1, out, w->row);
}

/* BALANCED: w->f = F and w->g = B = F^-T from w->cx and w->cw, which stay as they are. power: 1/4 for errors that are
   equally large in all directions; less where codes are refined, as refining moves errors to where they cost little. */
static oscar_result oscar__compose_balanced(const oscar_hooks *hooks, int dim, double eps, double power,
                                            oscar__compose_work *w)
{
    size_t size = (size_t)dim, i, j;
    double add_x = oscar__regularisation(dim, w->cx, eps), add_w = oscar__regularisation(dim, w->cw, eps);
    double roots = 0, scale;
    oscar_result result;
    memcpy(w->between, w->cx, size * size * sizeof(double));
    for (i = 0; i < size; i++) w->between[i * (size + 1)] += add_x;
    if (!oscar__cholesky(dim, w->between, w->factor))
        return OSCAR__FAIL(hooks, OSCAR_ERR_NUMERIC, "a second moment is not positive definite: enlarge compose.eps");

    oscar__times(dim, 0, w->cw, w->factor, w->between);
    for (i = 0; i < size * size; i++) w->between[i] += add_w * w->factor[i];
    oscar__lower_t_times(dim, w->factor, w->between, w->f);
    for (i = 0; i < size; i++)
        for (j = 0; j < i; j++)
            w->f[i * size + j] = w->f[j * size + i] = 0.5 * (w->f[i * size + j] + w->f[j * size + i]);
    result = oscar__eigen(hooks, dim, w->f, w->vectors, w->values, w->scratch);
    if (result) return result;

    /* The smallest mu may be rounding only; B = F^-T holds for any positive mu. */
    for (i = 0; i < size; i++) {
        double least = DBL_EPSILON * w->values[size - 1];
        if (!(w->values[i] > least)) w->values[i] = least;
        roots += power < 0.25 ? pow(w->values[i], 2 * power) : sqrt(w->values[i]);
    }
    if (!(roots > 0 && roots <= DBL_MAX))
        return OSCAR__FAIL(hooks, OSCAR_ERR_NUMERIC, "second moments are too small or too large for BALANCED");
    scale = sqrt(dim / roots);
    oscar__weighted_vectors(dim, w, power, scale, w->f);
    oscar__solve_lower_t(dim, w->factor, dim, w->f);
    oscar__weighted_vectors(dim, w, -power, 1 / scale, w->between);
    oscar__times(dim, 1, w->factor, w->between, w->g);
    return OSCAR_OK;
}

/* The metric of codes x' = x F for queries of second moment w->cw: B^T (Cw + eps tr / D I) B, scaled to trace D, plus
   half of the identity, so that no direction is free. w->g = B; uses w->between and w->vectors. */
static void oscar__compose_metric(int dim, double eps, oscar__compose_work *w, float *metric)
{
    size_t size = (size_t)dim, i, j;
    double add = oscar__regularisation(dim, w->cw, eps), trace = 0, *bt = w->vectors, *m = w->factor;
    oscar__times(dim, 0, w->cw, w->g, w->between);
    for (i = 0; i < size * size; i++) w->between[i] += add * w->g[i];
    for (i = 0; i < size; i++) for (j = 0; j < size; j++) bt[j * size + i] = w->g[i * size + j];
    oscar__times(dim, 0, bt, w->between, m);
    for (i = 0; i < size; i++) trace += m[i * (size + 1)];
    for (i = 0; i < size; i++)
        for (j = 0; j < size; j++)
            metric[i * size + j] = (float)(0.5 * (m[i * size + j] + m[j * size + i]) * dim / trace
                                           + (i == j ? 0.5 : 0));
}

/* -- what oscar_compose asks for -- */

/* One side of a layer. x: what the target is, or Cx of BALANCED; weight: Cw. */
typedef struct oscar__recipe {
    oscar_method method;
    oscar__moment x, weight;
    int shared, mean, metric;
    double eps;
} oscar__recipe;

static int oscar__recipe_dense(const oscar__recipe *r)
{
    return r->method != OSCAR_METHOD_HADAMARD && r->method != OSCAR_METHOD_NONE;
}

static oscar__recipe oscar__recipe_k(const oscar_compose *compose)
{
    oscar__recipe r;
    memset(&r, 0, sizeof r);
    r.method = compose->method;
    r.x = compose->k_target == OSCAR_TARGET_SELF ? OSCAR__C_K : OSCAR__C_Q;
    r.weight = OSCAR__C_IDENTITY;
    if (r.method == OSCAR_METHOD_BALANCED) { r.x = OSCAR__C_K_CENTRED; r.weight = OSCAR__C_Q; }
    if (r.method == OSCAR_METHOD_HP || !oscar__recipe_dense(&r)) r.x = OSCAR__C_IDENTITY;
    r.shared = compose->shared != 0;
    r.mean = compose->k_mean > 0 || (compose->k_mean == 0 && r.method == OSCAR_METHOD_BALANCED);
    r.metric = compose->k_metric > 0 || (compose->k_metric == 0 && r.method == OSCAR_METHOD_BALANCED);
    r.eps = compose->eps > 0 ? compose->eps : 1e-4;
    return r;
}

static oscar__recipe oscar__recipe_v(const oscar_compose *compose)
{
    oscar__recipe r = oscar__recipe_k(compose);
    r.method = compose->v_balanced ? OSCAR_METHOD_BALANCED
               : compose->method == OSCAR_METHOD_BALANCED ? OSCAR_METHOD_HADAMARD : compose->method;
    r.x = compose->v_target == OSCAR_TARGET_OUTPUT ? OSCAR__C_O
          : compose->v_target == OSCAR_TARGET_SELF ? OSCAR__C_V : OSCAR__C_S;
    r.weight = OSCAR__C_IDENTITY;
    if (r.method == OSCAR_METHOD_BALANCED) r.x = OSCAR__C_V;
    if (r.method == OSCAR_METHOD_HP || !oscar__recipe_dense(&r)) r.x = OSCAR__C_IDENTITY;
    r.mean = r.metric = 0;
    return r;
}

static oscar_result oscar__compose_check(const oscar_hooks *hooks, const oscar_compose *c)
{
    if ((int)c->method < OSCAR_METHOD_BALANCED || (int)c->method > OSCAR_METHOD_HP)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "compose.method is %i, which is no oscar_method", (int)c->method);
    if ((int)c->k_target < OSCAR_TARGET_DEFAULT || (int)c->k_target > OSCAR_TARGET_SELF)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "compose.k_target is %i: give DEFAULT or SELF", (int)c->k_target);
    if ((int)c->v_target < OSCAR_TARGET_DEFAULT || (int)c->v_target > OSCAR_TARGET_OUTPUT)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "compose.v_target is %i, which is no oscar_target",
                           (int)c->v_target);
    if (!(c->eps >= 0 && c->eps <= 1))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "compose.eps is %g: give 0 (1e-4) to 1", c->eps);
    return OSCAR_OK;
}

static oscar_result oscar__recipe_check(const oscar_calib *calib, int layer, const oscar__recipe *r)
{
    oscar_result result = oscar__moment_check(calib, layer, r->x);
    if (!result) result = oscar__moment_check(calib, layer, r->weight);
    if (!result && r->mean) result = oscar__moment_check(calib, layer, OSCAR__C_K);
    if (!result && r->metric) result = oscar__moment_check(calib, layer, OSCAR__C_Q);
    return result;
}

/* Tokens and sums of every layer that is to be solved. *tokens: the fewest that a layer has. */
static oscar_result oscar__solve_check(const oscar_calib *calib, const oscar_compose *compose, int64_t *tokens)
{
    oscar__recipe k = oscar__recipe_k(compose), v = oscar__recipe_v(compose);
    int i, few = 0, first = 0, any = 0;
    for (i = 0; i < calib->layer_count; i++) {
        const oscar__calib_layer *l = &calib->layers[i];
        int dim = l->layer.k_dim > l->layer.v_dim ? l->layer.k_dim : l->layer.v_dim;
        oscar_result result = OSCAR_OK;
        if (!oscar__calib_wanted(&l->layer)) continue;
        if (!l->tokens)
            return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_STATE, "layer %i has no tokens: add chunks first", i);
        if (l->layer.k_bits != 16) result = oscar__recipe_check(calib, i, &k);
        if (!result && l->layer.v_bits != 16) result = oscar__recipe_check(calib, i, &v);
        if (result) return result;
        if (!any || l->tokens < *tokens) *tokens = l->tokens;
        any = 1;
        if (l->tokens < 4 * (int64_t)dim && !few++) first = i;
    }
    if (few)
        OSCAR__WARN(&calib->hooks, "layer %i has only %I calibration tokens, fewer than 4 dim = %i (%i layers in all): "
                    "use thousands", first, calib->layers[first].tokens,
                    4 * (calib->layers[first].layer.k_dim > calib->layers[first].layer.v_dim
                         ? calib->layers[first].layer.k_dim : calib->layers[first].layer.v_dim), few);
    return OSCAR_OK;
}

/* -- solve -- */

/* Pairs of one side; one matrix for all heads where it is shared. NULL where there is none. */
typedef struct oscar__side { oscar_pair *pairs; float *to, *dual, *mean, *metric; } oscar__side;

static oscar__side oscar__carve_side(oscar__carver *c, const oscar__recipe *r, int heads, int dim)
{
    size_t count = r->shared ? 1 : (size_t)heads, entries = (size_t)dim * (size_t)dim;
    oscar__side side = { NULL, NULL, NULL, NULL, NULL };
    side.pairs = (oscar_pair *)oscar__carve(c, (size_t)heads, sizeof(oscar_pair));
    if (oscar__recipe_dense(r)) side.to = (float *)oscar__carve(c, oscar__mul(count, entries), sizeof(float));
    if (r->method == OSCAR_METHOD_BALANCED)
        side.dual = (float *)oscar__carve(c, oscar__mul(count, entries), sizeof(float));
    if (r->mean) side.mean = (float *)oscar__carve(c, oscar__mul((size_t)heads, (size_t)dim), sizeof(float));
    if (r->metric) side.metric = (float *)oscar__carve(c, oscar__mul(count, entries), sizeof(float));
    return side;
}

static void oscar__round_matrix(const double *m, size_t count, float *out)
{
    size_t i;
    for (i = 0; i < count; i++) out[i] = (float)m[i];
}

static void oscar__warn_empty(const oscar_calib *calib, int layer, int head, const double *c, int dim)
{
    size_t i, size = (size_t)dim;
    for (i = 0; i < size; i++) if (c[i * (size + 1)] > 0) return;
    OSCAR__WARN(&calib->hooks, "layer %i, KV head %i: a second moment is zero and counts as I: the head does not vary",
                layer, head);
}

/* The matrices of head (of all heads where shared), rounded to float; NULL where there is none to find. */
static oscar_result oscar__solve_matrices(const oscar_calib *calib, int layer, int head, const oscar__recipe *r,
                                          int dim, oscar__compose_work *w, float *to, float *dual, float *metric)
{
    const oscar__calib_layer *l = &calib->layers[layer];
    size_t entries = (size_t)dim * (size_t)dim;
    int count = r->shared ? l->layer.kv_heads : 1;
    oscar_result result;
    if (r->x != OSCAR__C_IDENTITY) oscar__moment_of(l, r->x, head, count, w->cx);
    if (r->method == OSCAR_METHOD_BALANCED) {
        oscar__moment_of(l, r->weight, head, count, w->cw);
        oscar__warn_empty(calib, layer, head, w->cx, dim);
        oscar__warn_empty(calib, layer, head, w->cw, dim);
        result = oscar__compose_balanced(&calib->hooks, dim, r->eps, r->metric ? 0.2 : 0.25, w);
    }
    else result = oscar__compose_orthogonal(&calib->hooks, r->method, dim, w);
    if (result) return result;
    if (metric) {
        if (r->method != OSCAR_METHOD_BALANCED) {
            oscar__moment_of(l, OSCAR__C_Q, head, count, w->cw);
            memcpy(w->g, w->f, entries * sizeof(double));
        }
        oscar__compose_metric(dim, r->eps, w, metric);
    }
    if (to) oscar__round_matrix(w->f, entries, to);
    if (dual) oscar__round_matrix(w->g, entries, dual);
    if ((to && !oscar__finite(to, entries)) || (dual && !oscar__finite(dual, entries))
        || (metric && !oscar__finite(metric, entries)))
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_NUMERIC,
                           "layer %i, KV head %i: the pair's entries leave the range of float; scale the rows", layer,
                           head);
    return OSCAR_OK;
}

static oscar_result oscar__solve_side(const oscar_calib *calib, int layer, const oscar__recipe *r, int dim,
                                      oscar__compose_work *w, const oscar__side *side)
{
    const oscar__calib_layer *l = &calib->layers[layer];
    size_t entries = (size_t)dim * (size_t)dim;
    int h, d;
    for (h = 0; h < l->layer.kv_heads; h++) {
        oscar_pair *pair = &side->pairs[h];
        size_t at = r->shared ? 0 : (size_t)h * entries;
        memset(pair, 0, sizeof *pair);
        pair->dim = dim;
        pair->kind = oscar__recipe_dense(r) ? OSCAR_DENSE
                     : r->method == OSCAR_METHOD_NONE ? OSCAR_IDENTITY : OSCAR_HADAMARD;
        if (side->mean) {
            float *mean = side->mean + (size_t)h * (size_t)dim;
            oscar__mean_key(l, h, w->row);
            for (d = 0; d < dim; d++) mean[d] = (float)w->row[d];
            pair->mean = mean;
        }
        if (!side->to && !side->metric) continue;
        if (side->to) pair->to = side->to + at;
        if (side->dual) pair->dual = side->dual + at;
        if (side->metric) pair->metric = side->metric + at;
        if (h == 0 || !r->shared) {
            oscar_result result = oscar__solve_matrices(calib, layer, h, r, dim, w, side->to ? side->to + at : NULL,
                                                        side->dual ? side->dual + at : NULL,
                                                        side->metric ? side->metric + at : NULL);
            if (result) return result;
        }
    }
    return OSCAR_OK;
}

/* Carves layers with their pairs, and finds them where there is memory; norms are left to oscar_rotations_create. */
static oscar_result oscar__solve_layers(const oscar_calib *calib, const oscar_compose *compose, oscar__carver *c,
                                        oscar_layer **layers)
{
    oscar__recipe k = oscar__recipe_k(compose), v = oscar__recipe_v(compose);
    oscar__compose_work work;
    int i, dim = 16;
    for (i = 0; i < calib->layer_count; i++) {
        if (calib->layers[i].layer.k_dim > dim) dim = calib->layers[i].layer.k_dim;
        if (calib->layers[i].layer.v_dim > dim) dim = calib->layers[i].layer.v_dim;
    }
    oscar__compose_carve(c, dim, &work);
    *layers = (oscar_layer *)oscar__carve(c, (size_t)calib->layer_count, sizeof **layers);
    for (i = 0; i < calib->layer_count; i++) {
        oscar_layer l = calib->layers[i].layer;
        oscar_result result = OSCAR_OK;
        if (l.k_bits != 16) {
            oscar__recipe recipe = k;
            oscar__side side;
            recipe.metric = k.metric && l.k_fit == OSCAR_UNBIASED;
            side = oscar__carve_side(c, &recipe, l.kv_heads, l.k_dim);
            if (c->base) result = oscar__solve_side(calib, i, &recipe, l.k_dim, &work, &side);
            l.k = side.pairs;
        }
        if (!result && l.v_bits != 16) {
            oscar__side side = oscar__carve_side(c, &v, l.kv_heads, l.v_dim);
            if (c->base) result = oscar__solve_side(calib, i, &v, l.v_dim, &work, &side);
            l.v = side.pairs;
        }
        if (result) return result;
        if (c->base) (*layers)[i] = l;
    }
    return OSCAR_OK;
}

/* The method, then what differs from its defaults: "balanced", "oscar shared v_target=output". */
static void oscar__compose_name(const oscar_compose *c, oscar__text *text)
{
    static const char *const names[] = { "balanced", "oscar", "hadamard", "none", "u", "uh", "hp" };
    oscar__put_string(text, names[(int)c->method]);
    if (c->shared) oscar__put_string(text, " shared");
    if (c->k_mean) oscar__put_string(text, c->k_mean > 0 ? " k_mean=1" : " k_mean=-1");
    if (c->k_target == OSCAR_TARGET_SELF) oscar__put_string(text, " k_target=self");
    if (c->v_target != OSCAR_TARGET_DEFAULT)
        oscar__put_string(text, c->v_target == OSCAR_TARGET_SELF ? " v_target=self" : " v_target=output");
    if (c->v_balanced) oscar__put_string(text, " v_balanced");
    if (c->k_metric) oscar__put_string(text, c->k_metric > 0 ? " k_metric=1" : " k_metric=-1");
    if (c->eps > 0) { oscar__put_string(text, " eps="); oscar__put_real(text, c->eps); }
}

static oscar_result oscar__solve_create(const oscar_calib *calib, const oscar_compose *compose, int64_t tokens,
                                        const oscar_layer *layers, oscar_rotations **out)
{
    char name[128], count[24];
    oscar__text name_text = { NULL, sizeof name, 0 }, count_text = { NULL, sizeof count, 0 };
    const char *metadata[9];
    name_text.out = name;
    count_text.out = count;
    oscar__compose_name(compose, &name_text);
    oscar__put_integer(&count_text, tokens);
    metadata[0] = "oscar.compose";
    metadata[1] = name;
    metadata[2] = "oscar.weights";
    metadata[3] = calib->weights == OSCAR_WEIGHTS_ATTENTION ? "attention" : "plain";
    metadata[4] = "oscar.tokens";
    metadata[5] = count;
    metadata[6] = compose->model ? "oscar.model" : NULL;
    metadata[7] = compose->model;
    metadata[8] = NULL;
    return oscar_rotations_create(layers, calib->layer_count, metadata, &calib->hooks, out);
}

OSCAR_API oscar_result oscar_calib_solve(const oscar_calib *calib, const oscar_compose *compose, oscar_rotations **out)
{
    oscar__carver counter = { NULL, 0 }, carver = { NULL, 0 };
    oscar_compose recommended;
    oscar_layer *layers;
    oscar_result result;
    int64_t tokens = 0;
    if (!calib || !out) return OSCAR__FAIL(calib ? &calib->hooks : NULL, OSCAR_ERR_ARGUMENT, "out is NULL");
    memset(&recommended, 0, sizeof recommended);
    if (!compose) compose = &recommended;
    result = oscar__compose_check(&calib->hooks, compose);
    if (!result) result = oscar__solve_check(calib, compose, &tokens);
    if (result) return result;
    (void)oscar__solve_layers(calib, compose, &counter, &layers);
    carver.base = (unsigned char *)oscar__alloc(&calib->hooks, counter.size);
    if (!carver.base)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_MEMORY, "no memory to compose pairs (%z bytes)", counter.size);
    result = oscar__solve_layers(calib, compose, &carver, &layers);
    if (!result) result = oscar__solve_create(calib, compose, tokens, layers, out);
    oscar__carver_free(&calib->hooks, carver.base, counter.size);
    return result;
}

/* -- report -- */

/* A standard normal deviate (Box and Muller) from a linear congruential generator. */
static double oscar__normal(uint64_t *state)
{
    double uniform[2];
    int i;
    for (i = 0; i < 2; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        uniform[i] = ((double)(*state >> 33) + 0.5) / 2147483648.0;
    }
    return sqrt(-2 * log(uniform[0])) * cos(6.283185307179586 * uniform[1]);
}

/* Quantisation noise, sum_j w_j (x^_j - x_j)^2 a row, through the row codec: UNBIASED, one scale a row. The mean over
   made-up rows with independent Gaussian channels, always the same ones, scaled to length sqrt(dim) for float. */
static double oscar__predict(int dim, int bits, const double *mean, const double *variance, const double *weight)
{
    const int rows = 128;
    unsigned char encoded[OSCAR__DIM_MAX];
    float x[OSCAR__DIM_MAX], decoded[OSCAR__DIM_MAX];
    uint64_t state = 1;
    oscar_codec codec;
    double total = 0, square = 0;
    int row, j;
    for (j = 0; j < dim; j++) square += (mean[j] * mean[j] + (variance[j] > 0 ? variance[j] : 0)) / dim;
    if (!(square > 0)) return 0;
    memset(&codec, 0, sizeof codec);
    codec.bits = bits;
    codec.metadata = OSCAR_F32;
    for (row = 0; row < rows; row++) {
        for (j = 0; j < dim; j++)
            x[j] = (float)((mean[j] + sqrt(variance[j] > 0 ? variance[j] : 0) * oscar__normal(&state)) / sqrt(square));
        if (oscar_encode(&codec, dim, 1, x, encoded) != OSCAR_OK) return HUGE_VAL;
        (void)oscar_decode(&codec, dim, 1, encoded, decoded);
        for (j = 0; j < dim; j++) {
            double error = (double)decoded[j] - (double)x[j];
            total += weight[j] * error * error;
        }
    }
    return square * total / rows;
}

/* out[j] = diag(m^T c m) */
static void oscar__profile(int dim, const double *c, const double *m, double *between, double *out)
{
    size_t size = (size_t)dim, i, j;
    oscar__times(dim, 0, c, m, between);
    for (j = 0; j < size; j++) out[j] = 0;
    for (i = 0; i < size * size; i++) out[i % size] += m[i] * between[i];
}

/* Predicted errors of one method at 2 and 4 bits. w->cx: C_K centred, w->cw: C_Q, key: the mean key. */
static oscar_result oscar__report_method(const oscar_hooks *hooks, int method, int dim, const double *key, double norm,
                                         oscar__compose_work *w, double *error)
{
    static const oscar_method methods[] = { OSCAR_METHOD_NONE, OSCAR_METHOD_HADAMARD, OSCAR_METHOD_OSCAR };
    double mean[OSCAR__DIM_MAX], variance[OSCAR__DIM_MAX], weight[OSCAR__DIM_MAX], *swap = w->cx;
    size_t size = (size_t)dim, i;
    int balanced = method == OSCAR_REPORT_BALANCED, bits;
    oscar_result result;
    if (balanced) result = oscar__compose_balanced(hooks, dim, 1e-4, 0.25, w);
    else {
        w->cx = w->cw;   /* OSCAR's target */
        result = oscar__compose_orthogonal(hooks, methods[method], dim, w);
        w->cx = swap;
    }
    if (result) return result;
    oscar__profile(dim, w->cx, w->f, w->between, variance);
    oscar__profile(dim, w->cw, balanced ? w->g : w->f, w->between, weight);
    for (i = 0; i < size; i++) mean[i] = 0;
    for (i = 0; !balanced && i < size * size; i++) mean[i % size] += key[i / size] * w->f[i];
    for (bits = 2; bits <= 4; bits += 2) {
        double square = oscar__predict(dim, bits, mean, variance, weight);
        error[bits / 2 - 1] = norm > 0 ? sqrt(square / norm) : 0;
    }
    return OSCAR_OK;
}

/* Eigenvalues of c above dim * eps * the largest of them (or of `floor`, what c was computed from). *condition: largest
   over smallest, HUGE_VAL where c is singular. */
static oscar_result oscar__rank(const oscar_hooks *hooks, int dim, const double *c, double floor_value,
                                oscar__compose_work *w, int *rank, double *condition)
{
    double top, least;
    int i;
    oscar_result result = oscar__eigen(hooks, dim, c, w->vectors, w->values, w->scratch);
    if (result) return result;
    top = w->values[dim - 1];
    least = dim * DBL_EPSILON * (top > floor_value ? top : floor_value);
    for (*rank = 0, i = 0; i < dim; i++) *rank += w->values[i] > least;
    *condition = *rank < dim ? HUGE_VAL : top / w->values[0];
    return OSCAR_OK;
}

static oscar_result oscar__report_fill(const oscar_calib *calib, int layer, int head, oscar__compose_work *w,
                                       oscar_report *report)
{
    const oscar__calib_layer *l = &calib->layers[layer];
    const oscar__sums *s = &l->heads[head];
    double key[OSCAR__DIM_MAX], norm = 0, offset = 0, condition;
    int dim = l->layer.k_dim, rank, method, i, j;
    oscar_result result;
    oscar__moment_of(l, OSCAR__C_K_CENTRED, head, 1, w->cx);
    oscar__moment_of(l, OSCAR__C_Q, head, 1, w->cw);
    oscar__mean_key(l, head, key);
    for (i = 0; i < dim; i++) {
        double m = s->k_first[i] / s->k_weight;
        offset += m * m;
        for (j = 0; j < dim; j++) norm += w->cw[i * dim + j] * (w->cx[i * dim + j] + key[i] * key[j]);
    }
    report->tokens = l->tokens;
    result = oscar__rank(&calib->hooks, dim, w->cw, 0, w, &rank, &condition);
    if (!result) result = oscar__rank(&calib->hooks, dim, w->cx, offset, w, &report->rank, &report->condition);
    if (result) return result;
    if (rank < report->rank) report->rank = rank;
    for (method = OSCAR_REPORT_NONE; method <= OSCAR_REPORT_BALANCED; method++) {
        result = oscar__report_method(&calib->hooks, method, dim, key, norm, w, report->logit_error[method]);
        if (result) return result;
    }
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_calib_report(const oscar_calib *calib, int layer, int kv_head, oscar_report *out)
{
    oscar__carver counter = { NULL, 0 }, carver = { NULL, 0 };
    oscar__compose_work work;
    oscar_report report;
    oscar_result result;
    if (!calib || !out) return OSCAR__FAIL(calib ? &calib->hooks : NULL, OSCAR_ERR_ARGUMENT, "out is NULL");
    if (layer < 0 || layer >= calib->layer_count || kv_head < 0 || kv_head >= calib->layers[layer].layer.kv_heads)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_ARGUMENT, "there is no layer %i with a KV head %i", layer, kv_head);
    if (!calib->layers[layer].tokens)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_STATE, "layer %i has no tokens: add chunks first", layer);
    result = oscar__moment_check(calib, layer, OSCAR__C_Q);
    if (!result) result = oscar__moment_check(calib, layer, OSCAR__C_K);
    if (result) return result;
    oscar__compose_carve(&counter, calib->layers[layer].layer.k_dim, &work);
    carver.base = (unsigned char *)oscar__alloc(&calib->hooks, counter.size);
    if (!carver.base)
        return OSCAR__FAIL(&calib->hooks, OSCAR_ERR_MEMORY, "no memory for a report (%z bytes)", counter.size);
    oscar__compose_carve(&carver, calib->layers[layer].layer.k_dim, &work);
    memset(&report, 0, sizeof report);
    result = oscar__report_fill(calib, layer, kv_head, &work, &report);
    oscar__carver_free(&calib->hooks, carver.base, counter.size);
    if (!result) *out = report;
    return result;
}

/* == 3.9 ROTATIONS FILE == */

/* A safetensors file:

       8 bytes   N, little endian
       N bytes   {"__metadata__":{"oscar.version":"1.0",...},
                  "layers.0.k.to":{"dtype":"F32","shape":[8,128,128],"data_offsets":[0,524288]},...}   and spaces
       the rest  the tensors in the order of their offsets, without gaps; F32, little endian, row-major

   Metadata are written in the order of their keys; tensors by layer and place (oscar__slots), unknown ones after them
   by name. So equal objects give equal bytes.

   One way leads to an object: metadata and a list of tensors (oscar__table), from a file or from layers, are read by an
   oscar__plan layer by layer, first to count the pairs, then, in the one allocation of the object, to bind them. */

enum {
    OSCAR__HEADER_MAX = 100000000,   /* bytes, as in the safetensors library */
    OSCAR__LAYERS_MAX = 65536,
    OSCAR__PAIRS_MAX = 1 << 18       /* of a file: a few bytes of metadata may ask for no more */
};

/* Places of a layer's tensors: side * ROLES + role. V has no mean and no metric; their places are known so that
   they can be refused. */
enum { OSCAR__TO, OSCAR__DUAL, OSCAR__MEAN, OSCAR__SPECTRUM, OSCAR__METRIC, OSCAR__ROLES,
       OSCAR__SLOTS = 2 * OSCAR__ROLES };
static const char *const oscar__slots[OSCAR__SLOTS] = {
    "k.to", "k.dual", "k.mean", "k.spectrum", "k.metric", "v.to", "v.dual", "v.mean", "v.spectrum", "v.metric"
};

/* Whether a role is a matrix [dim][dim] a head, else a row [dim]. */
static int oscar__role_is_matrix(int role) { return role != OSCAR__MEAN && role != OSCAR__SPECTRUM; }

/* Metadata with one value, or one for each layer. The first six are fields of a side: field + 0 is K's, + 1 V's. */
enum {
    OSCAR__LIST_KIND = 0, OSCAR__LIST_BITS = 2, OSCAR__LIST_FIT = 4, OSCAR__LIST_CLIP = 6, OSCAR__LIST_GROUP = 8,
    OSCAR__LIST_DIM = 10, OSCAR__LIST_HEADS = 12, OSCAR__LIST_PAGE_MEAN, OSCAR__LIST_FOLDED, OSCAR__LISTS
};
static const char *const oscar__list_keys[OSCAR__LISTS] = {
    "oscar.k_kind", "oscar.v_kind", "oscar.k_bits", "oscar.v_bits", "oscar.fit_k", "oscar.fit_v", "oscar.clip_k",
    "oscar.clip_v", "oscar.group_k", "oscar.group_v", "oscar.k_dim", "oscar.v_dim", "oscar.kv_heads",
    "oscar.k_page_mean", "oscar.v_folded"
};
static const char *const oscar__kind_words[] = { "hadamard", "identity", "dense" };   /* as oscar_kind */
static const char *const oscar__fit_words[] = { "unbiased", "clip" };                 /* as oscar_fit */
static const char *const oscar__bit_words[] = { "2", "4", "16" };

/* -- the table: metadata and tensors; texts and shapes are offsets into `text` and `sizes` -- */

enum { OSCAR__EXTRA = 0x7fffffff };   /* layer of a tensor that has no place: sorts after the others */

typedef struct oscar__tensor {
    size_t name, shape, rank;
    size_t count;         /* numbers */
    size_t begin;         /* byte in the file's data; of a file that is read */
    int layer, slot;
    float *data;          /* in an object */
} oscar__tensor;

typedef struct oscar__entry { size_t key, value; } oscar__entry;

/* Filled twice by the same code: without memory it only counts. */
typedef struct oscar__table {
    char *text;
    size_t *sizes;
    oscar__tensor *tensors;
    oscar__entry *entries;
    size_t text_count, size_count, tensor_count, entry_count;
    void *memory;
    size_t bytes;
} oscar__table;

static void oscar__table_carve(oscar__table *t, oscar__carver *c)
{
    t->text = (char *)oscar__carve(c, t->text_count, 1);
    t->sizes = (size_t *)oscar__carve(c, t->size_count, sizeof(size_t));
    t->tensors = (oscar__tensor *)oscar__carve(c, t->tensor_count, sizeof(oscar__tensor));
    t->entries = (oscar__entry *)oscar__carve(c, t->entry_count, sizeof(oscar__entry));
}

/* Memory for what was counted; the table is empty again. */
static oscar_result oscar__table_alloc(oscar__table *t, const oscar_hooks *hooks)
{
    oscar__carver carver = { NULL, 0 };
    oscar__table_carve(t, &carver);
    t->bytes = carver.size;
    t->memory = oscar__alloc(hooks, carver.size);
    if (!t->memory)
        return OSCAR__FAIL(hooks, OSCAR_ERR_MEMORY, "no memory for %z bytes of tensor names and metadata", carver.size);
    carver.base = (unsigned char *)t->memory;
    carver.size = 0;
    oscar__table_carve(t, &carver);
    t->text_count = t->size_count = t->tensor_count = t->entry_count = 0;
    return OSCAR_OK;
}

static void oscar__table_char(oscar__table *t, char c)
{
    if (t->text) t->text[t->text_count] = c;
    t->text_count++;
}

static size_t oscar__table_string(oscar__table *t, const char *s)
{
    size_t start = t->text_count;
    do oscar__table_char(t, *s); while (*s++);
    return start;
}

static void oscar__table_size(oscar__table *t, size_t size)
{
    if (t->sizes) t->sizes[t->size_count] = size;
    t->size_count++;
}

static void oscar__table_entry(oscar__table *t, size_t key, size_t value)
{
    if (t->entries) { t->entries[t->entry_count].key = key; t->entries[t->entry_count].value = value; }
    t->entry_count++;
}

/* The last `rank` sizes are the shape. */
static void oscar__table_tensor(oscar__table *t, size_t name, size_t rank, size_t count, size_t begin)
{
    if (t->tensors) {
        oscar__tensor *tensor = &t->tensors[t->tensor_count];
        memset(tensor, 0, sizeof *tensor);
        tensor->name = name;
        tensor->shape = t->size_count - rank;
        tensor->rank = rank;
        tensor->count = count;
        tensor->begin = begin;
    }
    t->tensor_count++;
}

/* The layer and place of a tensor name: layers.I.k.to, I without leading zeros. */
static void oscar__tensor_place(const char *name, int *layer, int *slot)
{
    int number = 0, digits = 0, i;
    *layer = OSCAR__EXTRA;
    *slot = 0;
    if (strncmp(name, "layers.", 7) != 0) return;
    for (name += 7; *name >= '0' && *name <= '9' && digits < 8; name++, digits++) number = number * 10 + (*name - '0');
    if (!digits || *name != '.' || (digits > 1 && name[-digits] == '0')) return;
    for (i = 0; i < OSCAR__SLOTS; i++)
        if (!strcmp(name + 1, oscar__slots[i])) { *layer = number; *slot = i; }
}

typedef int (*oscar__order)(const oscar__table *t, const void *a, const void *b);

static int oscar__compare(size_t a, size_t b) { return a < b ? -1 : a > b; }

static int oscar__order_place(const oscar__table *t, const void *a, const void *b)
{
    const oscar__tensor *x = (const oscar__tensor *)a, *y = (const oscar__tensor *)b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    if (x->slot != y->slot) return x->slot < y->slot ? -1 : 1;
    return strcmp(t->text + x->name, t->text + y->name);
}

static int oscar__order_begin(const oscar__table *t, const void *a, const void *b)
{
    const oscar__tensor *x = (const oscar__tensor *)a, *y = (const oscar__tensor *)b;
    (void)t;
    return x->begin != y->begin ? oscar__compare(x->begin, y->begin) : oscar__compare(x->count, y->count);
}

static int oscar__order_key(const oscar__table *t, const void *a, const void *b)
{
    const oscar__entry *x = (const oscar__entry *)a, *y = (const oscar__entry *)b;
    return strcmp(t->text + x->key, t->text + y->key);
}

static void oscar__swap(unsigned char *a, unsigned char *b, size_t size)
{
    for (; size--; a++, b++) { unsigned char c = *a; *a = *b; *b = c; }
}

/* Heap sort: at most 2 n log2 n comparisons whatever a file holds, no memory. */
static void oscar__sort(const oscar__table *t, void *base, size_t count, size_t each, oscar__order order)
{
    unsigned char *p = (unsigned char *)base;
    size_t start = count / 2, end = count;
    while (end > 1) {
        size_t root, child;
        if (start) start--;
        else oscar__swap(p, p + --end * each, each);
        for (root = start; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end && order(t, p + child * each, p + (child + 1) * each) < 0) child++;
            if (order(t, p + root * each, p + child * each) >= 0) break;
            oscar__swap(p + root * each, p + child * each, each);
        }
    }
}

/* Brings a filled table into the order of the file; names must differ. */
static oscar_result oscar__table_sort(oscar__table *t, oscar_result bad, const oscar_hooks *hooks)
{
    size_t i;
    for (i = 0; i < t->tensor_count; i++)
        oscar__tensor_place(t->text + t->tensors[i].name, &t->tensors[i].layer, &t->tensors[i].slot);
    oscar__sort(t, t->tensors, t->tensor_count, sizeof(oscar__tensor), oscar__order_place);
    oscar__sort(t, t->entries, t->entry_count, sizeof(oscar__entry), oscar__order_key);
    for (i = 1; i < t->tensor_count; i++)
        if (!oscar__order_place(t, &t->tensors[i - 1], &t->tensors[i]))
            return OSCAR__FAIL(hooks, bad, "rotations: two tensors have the same name");
    for (i = 1; i < t->entry_count; i++)
        if (!oscar__order_key(t, &t->entries[i - 1], &t->entries[i]))
            return OSCAR__FAIL(hooks, bad, "rotations: a metadata key occurs twice");
    return OSCAR_OK;
}

/* A metadata value of a sorted table, or NULL. */
static const char *oscar__table_meta(const oscar__table *t, const char *key)
{
    size_t low = 0, high = t->entry_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(key, t->text + t->entries[middle].key);
        if (!order) return t->text + t->entries[middle].value;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

/* -- texts and numbers -- */

/* Bytes of the UTF-8 character at p; 0 if there is none (RFC 3629: shortest form, no surrogates, up to U+10FFFF). */
static size_t oscar__utf8_length(const unsigned char *p, size_t available)
{
    size_t length = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0, i;
    if (length > available) return 0;
    for (i = 1; i < length; i++) if ((p[i] & 0xc0) != 0x80) return 0;
    if (length == 3 && ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f))) return 0;
    if (length == 4 && ((*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] > 0x8f))) return 0;
    return length;
}

static int oscar__utf8_valid(const char *s)
{
    size_t left = strlen(s), length;
    for (; left; s += length, left -= length) {
        length = oscar__utf8_length((const unsigned char *)s, left);
        if (!length) return 0;
    }
    return 1;
}

/* s as a JSON string. */
static void oscar__put_json(oscar__text *t, const char *s)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    oscar__put_char(t, '"');
    for (; *s; s++) {
        const char *escape = strchr(from, *s);
        if (escape) {
            oscar__put_char(t, '\\');
            oscar__put_char(t, to[escape - from]);
        } else if ((unsigned char)*s < 0x20) {
            oscar__put_string(t, *s < 0x10 ? "\\u000" : "\\u001");
            oscar__put_char(t, "0123456789abcdef"[*s & 15]);
        } else oscar__put_char(t, *s);
    }
    oscar__put_char(t, '"');
}

/* Part of a text: an item of a list. */
typedef struct oscar__span { const char *at; size_t length; } oscar__span;

/* Whether span is one of `count` words; then *index is its number. */
static int oscar__span_word(oscar__span span, const char *const *words, int count, int *index)
{
    int i;
    for (i = 0; i < count; i++)
        if (strlen(words[i]) == span.length && !memcmp(words[i], span.at, span.length)) { *index = i; return 1; }
    return 0;
}

/* A decimal number: 12, -1, 0.96, 1e-05. Up to 15 digits with up to 22 places give the nearest double, since an exact
   integer is divided by an exact power of ten. Independent of the locale. */
static int oscar__span_real(oscar__span span, double *value)
{
    const char *p = span.at, *end = p + span.length;
    uint64_t mantissa = 0;
    int negative = 0, exponent = 0, digits = 0, places = 0, point = 0, i;
    double scale = 1;
    if (p < end && *p == '-') { negative = 1; p++; }
    for (; p < end && ((*p >= '0' && *p <= '9') || (*p == '.' && !point && digits)); p++) {
        if (*p == '.') { point = 1; continue; }
        if (mantissa > 99999999999999999u) return 0;
        mantissa = mantissa * 10 + (uint64_t)(*p - '0');
        digits++;
        places += point;
    }
    if (!digits || (point && !places)) return 0;
    if (p < end && (*p == 'e' || *p == 'E')) {
        int minus = ++p < end && *p == '-';
        if (p < end && (*p == '-' || *p == '+')) p++;
        if (p == end) return 0;
        for (; p < end && *p >= '0' && *p <= '9' && exponent < 1000; p++) exponent = exponent * 10 + (*p - '0');
        if (minus) exponent = -exponent;
    }
    if (p != end) return 0;
    exponent -= places;
    for (i = exponent < 0 ? -exponent : exponent; i > 0 && scale <= DBL_MAX; i--) scale *= 10;
    *value = exponent < 0 ? (double)mantissa / scale : (double)mantissa * scale;
    if (negative) *value = -*value;
    return *value <= DBL_MAX && *value >= -DBL_MAX;
}

/* value, 0 < value < 1, with as few places (up to 15) as oscar__span_real needs to give it back. */
static void oscar__put_fraction(oscar__text *t, double value)
{
    double power = 1, mantissa = 0;
    int places;
    for (places = 1; places <= 15; places++) {
        power *= 10;
        mantissa = floor(value * power + 0.5);
        if (!(mantissa / power < value) && !(mantissa / power > value)) break;
    }
    if (mantissa < 1) mantissa = 1;
    if (mantissa > power - 1) mantissa = power - 1;
    oscar__put_string(t, "0.");
    for (power /= 10; power >= 1; power /= 10) oscar__put_char(t, (char)('0' + (int)fmod(floor(mantissa / power), 10)));
}

/* -- JSON: an object of objects, nothing deeper, so no recursion -- */

typedef struct oscar__json {
    const unsigned char *at, *end;
    const char *error;
    oscar__table *table;
    char word[16];   /* the last string, if it has at most 15 bytes, else empty */
} oscar__json;

static int oscar__json_fail(oscar__json *j, const char *error)
{
    if (!j->error) j->error = error;
    return 0;
}

/* Takes c if it is next, after white space. */
static int oscar__json_next(oscar__json *j, char c)
{
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\r' || *j->at == '\t')) j->at++;
    if (j->at == j->end || *j->at != (unsigned char)c) return 0;
    j->at++;
    return 1;
}

static int oscar__json_hex4(oscar__json *j, uint32_t *value)
{
    int i;
    *value = 0;
    for (i = 0; i < 4; i++, j->at++) {
        int c = j->at < j->end ? *j->at : 0;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return 0;
        *value = *value * 16 + (uint32_t)digit;
    }
    return 1;
}

/* The character of an escape, as UTF-8; returns its bytes, 0 if it is none. U+0000 would end a C string: refused. */
static size_t oscar__json_escape(oscar__json *j, unsigned char utf8[4])
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *simple;
    uint32_t c, low;
    j->at++;
    if (j->at == j->end) return 0;
    simple = *j->at ? strchr(from, *j->at) : NULL;
    if (simple) {
        j->at++;
        utf8[0] = (unsigned char)to[simple - from];
        return 1;
    }
    if (*j->at++ != 'u' || !oscar__json_hex4(j, &c) || c == 0 || (c >= 0xdc00 && c < 0xe000)) return 0;
    if (c >= 0xd800 && c < 0xdc00) {
        if (j->end - j->at < 6 || j->at[0] != '\\' || j->at[1] != 'u') return 0;
        j->at += 2;
        if (!oscar__json_hex4(j, &low) || low < 0xdc00 || low >= 0xe000) return 0;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    if (c < 0x80) { utf8[0] = (unsigned char)c; return 1; }
    {
        size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4, i;
        for (i = length; i-- > 1; c >>= 6) utf8[i] = (unsigned char)(0x80 | (c & 0x3f));
        utf8[0] = (unsigned char)((0xf00u >> length & 0xf0) | c);
        return length;
    }
}

/* A string. keep: it is appended to the table's text, with a 0 at its end. */
static int oscar__json_string(oscar__json *j, int keep)
{
    size_t total = 0, length, i;
    if (!oscar__json_next(j, '"')) return oscar__json_fail(j, "a string is expected");
    for (;;) {
        unsigned char utf8[4] = { 0, 0, 0, 0 };
        if (j->at == j->end) return oscar__json_fail(j, "a string has no end");
        if (*j->at == '"') break;
        if (*j->at == '\\') length = oscar__json_escape(j, utf8);
        else {
            length = *j->at < 0x20 ? 0 : oscar__utf8_length(j->at, (size_t)(j->end - j->at));
            memcpy(utf8, j->at, length);
            j->at += length;
        }
        if (!length) return oscar__json_fail(j, "a string is not valid (control character, escape or UTF-8)");
        for (i = 0; i < length; i++, total++) {
            if (total < sizeof j->word - 1) j->word[total] = (char)utf8[i];
            if (keep) oscar__table_char(j->table, (char)utf8[i]);
        }
    }
    j->at++;
    if (keep) oscar__table_char(j->table, 0);
    j->word[total < sizeof j->word ? total : 0] = 0;
    return 1;
}

static int oscar__json_size(oscar__json *j, size_t *value)
{
    const unsigned char *start;
    if (oscar__json_next(j, '-')) return oscar__json_fail(j, "a size is negative");
    start = j->at;
    for (*value = 0; j->at < j->end && *j->at >= '0' && *j->at <= '9'; j->at++) {
        *value = oscar__add(oscar__mul(*value, 10), (size_t)(*j->at - '0'));
        if (*value == OSCAR__SIZE_MAX) return oscar__json_fail(j, "a size is too large");
    }
    if (j->at == start) return oscar__json_fail(j, "a size is expected");
    return (*start == '0' && j->at - start > 1) ? oscar__json_fail(j, "a size has leading zeros") : 1;
}

/* [sizes], kept; *rank: how many, *count: their product. */
static int oscar__json_shape(oscar__json *j, size_t *rank, size_t *count)
{
    size_t size;
    *rank = 0;
    *count = 1;
    if (!oscar__json_next(j, '[')) return oscar__json_fail(j, "shape must be a list");
    if (oscar__json_next(j, ']')) return 1;
    do {
        if (!oscar__json_size(j, &size)) return 0;
        oscar__table_size(j->table, size);
        ++*rank;
        *count = oscar__mul(*count, size);
    } while (oscar__json_next(j, ','));
    return oscar__json_next(j, ']') ? 1 : oscar__json_fail(j, "shape must end in ]");
}

/* {"dtype":"F32","shape":[...],"data_offsets":[begin,end]}, in any order. */
static int oscar__json_tensor(oscar__json *j, size_t name)
{
    size_t rank = 0, count = 0, begin = 0, end = 0;
    unsigned seen = 0, field;
    if (!oscar__json_next(j, '{')) return oscar__json_fail(j, "a tensor must be an object");
    do {
        if (!oscar__json_string(j, 0)) return 0;
        field = !strcmp(j->word, "dtype") ? 1u : !strcmp(j->word, "shape") ? 2u
              : !strcmp(j->word, "data_offsets") ? 4u : 0u;
        if (!field || (seen & field)) return oscar__json_fail(j, "a tensor has an unknown or repeated field");
        seen |= field;
        if (!oscar__json_next(j, ':')) return oscar__json_fail(j, "a colon is expected");
        if (field == 1) {
            if (!oscar__json_string(j, 0)) return 0;
            if (strcmp(j->word, "F32")) return oscar__json_fail(j, "every tensor must have dtype F32");
        } else if (field == 2) {
            if (!oscar__json_shape(j, &rank, &count)) return 0;
        } else {
            if (!oscar__json_next(j, '[') || !oscar__json_size(j, &begin) || !oscar__json_next(j, ',')
                || !oscar__json_size(j, &end) || !oscar__json_next(j, ']'))
                return oscar__json_fail(j, "data_offsets must be a list of two sizes");
        }
    } while (oscar__json_next(j, ','));
    if (!oscar__json_next(j, '}')) return oscar__json_fail(j, "a tensor must end in }");
    if (seen != 7) return oscar__json_fail(j, "a tensor lacks dtype, shape or data_offsets");
    if (end < begin || end - begin != oscar__mul(count, 4))
        return oscar__json_fail(j, "data_offsets do not fit the shape of a tensor");
    oscar__table_tensor(j->table, name, rank, count, begin);
    return 1;
}

static int oscar__json_metadata(oscar__json *j)
{
    if (!oscar__json_next(j, '{')) return oscar__json_fail(j, "__metadata__ must be an object");
    if (oscar__json_next(j, '}')) return 1;
    do {
        size_t key = j->table->text_count, value;
        if (!oscar__json_string(j, 1)) return 0;
        if (!oscar__json_next(j, ':')) return oscar__json_fail(j, "a colon is expected");
        value = j->table->text_count;
        if (!oscar__json_string(j, 1)) return 0;
        oscar__table_entry(j->table, key, value);
    } while (oscar__json_next(j, ','));
    return oscar__json_next(j, '}') ? 1 : oscar__json_fail(j, "__metadata__ must end in }");
}

static int oscar__json_header(oscar__json *j)
{
    int metadata = 0;
    if (j->at == j->end || *j->at++ != '{') return oscar__json_fail(j, "the header must begin with {");
    if (!oscar__json_next(j, '}')) {
        do {
            size_t name = j->table->text_count;
            if (!oscar__json_string(j, 1)) return 0;
            if (!oscar__json_next(j, ':')) return oscar__json_fail(j, "a colon is expected");
            if (strcmp(j->word, "__metadata__")) {
                if (!oscar__json_tensor(j, name)) return 0;
                continue;
            }
            if (metadata++) return oscar__json_fail(j, "__metadata__ occurs twice");
            if (!oscar__json_metadata(j)) return 0;
        } while (oscar__json_next(j, ','));
        if (!oscar__json_next(j, '}')) return oscar__json_fail(j, "the header must end in }");
    }
    (void)oscar__json_next(j, ' ');   /* skips white space */
    return j->at == j->end ? 1 : oscar__json_fail(j, "something follows the header's last }");
}

/* Fills a table, or counts. */
static oscar_result oscar__table_parse(oscar__table *t, const unsigned char *header, size_t size,
                                       const oscar_hooks *hooks)
{
    oscar__json json;
    memset(&json, 0, sizeof json);
    json.at = header;
    json.end = header + size;
    json.table = t;
    if (oscar__json_header(&json)) return OSCAR_OK;
    return OSCAR__FAIL(hooks, OSCAR_ERR_FORMAT, "rotations: byte %z of the header: %s", (size_t)(json.at - header),
                       json.error);
}

/* The tensors must cover the data without gap or overlap. */
static oscar_result oscar__table_cover(oscar__table *t, size_t data_size, const oscar_hooks *hooks)
{
    size_t i, at = 0;
    oscar__sort(t, t->tensors, t->tensor_count, sizeof(oscar__tensor), oscar__order_begin);
    for (i = 0; i < t->tensor_count; i++) {
        if (t->tensors[i].begin != at)
            return OSCAR__FAIL(hooks, OSCAR_ERR_FORMAT, "rotations: tensors overlap or leave a gap at byte %z of the "
                               "data", at);
        at = oscar__add(at, oscar__mul(t->tensors[i].count, 4));
    }
    if (at != data_size)
        return OSCAR__FAIL(hooks, OSCAR_ERR_FORMAT, "rotations: the tensors need %z bytes, but %z follow the header",
                           at, data_size);
    return OSCAR_OK;
}

/* oscar.version: MAJOR.MINOR. A larger minor version has keys that are not known here, which are kept. */
static oscar_result oscar__version_check(const oscar__table *t, const oscar_hooks *hooks)
{
    const char *version = oscar__table_meta(t, "oscar.version"), *p = version;
    int major = 0, digits[2] = { 0, 0 };
    if (!version)
        return OSCAR__FAIL(hooks, OSCAR_ERR_FORMAT, "not a rotations file: its metadata have no oscar.version");
    for (; *p >= '0' && *p <= '9' && digits[0] < 8; p++, digits[0]++) major = major * 10 + (*p - '0');
    if (*p == '.') for (p++; *p >= '0' && *p <= '9' && digits[1] < 8; p++) digits[1]++;
    if (*p || !digits[0] || !digits[1])
        return OSCAR__FAIL(hooks, OSCAR_ERR_FORMAT, "rotations: oscar.version must be two numbers such as 1.0");
    if (major != 1)
        return OSCAR__FAIL(hooks, OSCAR_ERR_VERSION, "rotations: the file has version %i, this oscar.h reads version 1",
                           major);
    return OSCAR_OK;
}

/* -- the plan: what a table says, layer by layer -- */

typedef struct oscar__plan {
    const oscar__table *table;
    const oscar_hooks *hooks;
    oscar_result bad;
    int layer_count, layer;            /* layer: the next one */
    size_t tensor;                     /* its first tensor */
    const char *list[OSCAR__LISTS];    /* its item and what follows; NULL: the file has no such key */
    int single[OSCAR__LISTS];          /* one value for all layers */
} oscar__plan;

typedef struct oscar__planned {
    oscar_layer layer;
    int kind[2];                                   /* oscar_kind, -1 where the side has no pairs */
    const oscar__tensor *tensor[OSCAR__SLOTS];
} oscar__planned;

static int *oscar__layer_dim(oscar_layer *l, int side) { return side ? &l->v_dim : &l->k_dim; }
static int *oscar__layer_bits(oscar_layer *l, int side) { return side ? &l->v_bits : &l->k_bits; }

static const char *oscar__side_name(int side) { return side ? "v" : "k"; }

static oscar_result oscar__plan_start(oscar__plan *p, const oscar__table *t, oscar_result bad, const oscar_hooks *hooks)
{
    const char *text = oscar__table_meta(t, "oscar.layers");
    size_t items[OSCAR__LISTS], count = 0, i;
    double number;
    memset(p, 0, sizeof *p);
    p->table = t;
    p->bad = bad;
    p->hooks = hooks;
    for (i = 0; i < OSCAR__LISTS; i++) {
        const char *c = p->list[i] = oscar__table_meta(t, oscar__list_keys[i]);
        for (items[i] = c ? 1 : 0; c && *c; c++) items[i] += *c == ',';
        p->single[i] = items[i] == 1;
        if (items[i] > 1 && items[i] > count) count = items[i];
    }
    for (i = 0; i < t->tensor_count && t->tensors[i].layer != OSCAR__EXTRA; i++)
        if ((size_t)t->tensors[i].layer >= count) count = (size_t)t->tensors[i].layer + 1;
    if (text) {
        oscar__span span;
        span.at = text;
        span.length = strlen(text);
        if (!oscar__span_real(span, &number) || !(number >= 1 && number <= (double)OSCAR__LAYERS_MAX)
            || floor(number) < number)
            return OSCAR__FAIL(hooks, bad, "rotations: oscar.layers must be a number from 1 to %i", OSCAR__LAYERS_MAX);
        if ((size_t)number < count)
            return OSCAR__FAIL(hooks, bad, "rotations: oscar.layers is %i, but %z layers have tensors or values",
                               (int)number, count);
        count = (size_t)number;
    }
    if (count < 1 || count > OSCAR__LAYERS_MAX)
        return OSCAR__FAIL(hooks, bad, "rotations: %z layers, from 1 to %i are possible", count, OSCAR__LAYERS_MAX);
    p->layer_count = (int)count;
    for (i = 0; i < OSCAR__LISTS; i++)
        if (items[i] > 1 && items[i] != count)
            return OSCAR__FAIL(hooks, bad, "rotations: %s lists %z values for %z layers", oscar__list_keys[i], items[i],
                               count);
    return OSCAR_OK;
}

/* The item of a list for this layer; its length is 0 where the file does not tell. */
static oscar__span oscar__plan_item(const oscar__plan *p, int list)
{
    oscar__span span = { "", 0 };
    if (p->list[list]) span.at = p->list[list];
    while (span.at[span.length] && span.at[span.length] != ',') span.length++;
    return span;
}

/* *out stays as it is where the file does not tell. */
static oscar_result oscar__plan_real(const oscar__plan *p, int list, double low, double high, double *out)
{
    oscar__span span = oscar__plan_item(p, list);
    double value;
    if (!span.length) return OSCAR_OK;
    if (!oscar__span_real(span, &value) || value < low || value > high)
        return OSCAR__FAIL(p->hooks, p->bad, "rotations: %s of layer %i must be a number from %g to %g",
                           oscar__list_keys[list], p->layer, low, high);
    *out = value;
    return OSCAR_OK;
}

static oscar_result oscar__plan_int(const oscar__plan *p, int list, int low, int high, int *out)
{
    double value = *out;
    oscar_result result = oscar__plan_real(p, list, low, high, &value);
    if (result) return result;
    if (floor(value) < value)
        return OSCAR__FAIL(p->hooks, p->bad, "rotations: %s of layer %i must be a whole number", oscar__list_keys[list],
                           p->layer);
    *out = (int)value;
    return OSCAR_OK;
}

static oscar_result oscar__plan_word(const oscar__plan *p, int list, const char *const *words, int count, int *out)
{
    oscar__span span = oscar__plan_item(p, list);
    if (!span.length || oscar__span_word(span, words, count, out)) return OSCAR_OK;
    return OSCAR__FAIL(p->hooks, p->bad, "rotations: %s of layer %i is not one of %s, %s%s%s", oscar__list_keys[list],
                       p->layer, words[0], words[1], count > 2 ? ", " : "", count > 2 ? words[2] : "");
}

/* The fields that metadata tell. */
static oscar_result oscar__plan_settings(const oscar__plan *p, oscar__planned *out)
{
    oscar_layer *l = &out->layer;
    int side, fit[2] = { 0, 0 }, page_mean = -1;
    oscar_result r = oscar__plan_int(p, OSCAR__LIST_HEADS, 1, 65536, &l->kv_heads);
    for (side = 0; side < 2 && !r; side++) {
        int bits = -1;
        out->kind[side] = -1;
        r = oscar__plan_word(p, OSCAR__LIST_KIND + side, oscar__kind_words, 3, &out->kind[side]);
        if (!r) r = oscar__plan_word(p, OSCAR__LIST_FIT + side, oscar__fit_words, 2, &fit[side]);
        if (!r) r = oscar__plan_word(p, OSCAR__LIST_BITS + side, oscar__bit_words, 3, &bits);
        *oscar__layer_bits(l, side) = bits < 0 ? 0 : bits < 2 ? 2 << bits : 16;
        if (!r) r = oscar__plan_real(p, OSCAR__LIST_CLIP + side, -1, 1, side ? &l->v_clip : &l->k_clip);
        if (!r) r = oscar__plan_int(p, OSCAR__LIST_GROUP + side, 0, OSCAR__DIM_MAX, side ? &l->v_group : &l->k_group);
        if (!r) r = oscar__plan_int(p, OSCAR__LIST_DIM + side, 16, OSCAR__DIM_MAX, oscar__layer_dim(l, side));
    }
    if (!r) r = oscar__plan_int(p, OSCAR__LIST_PAGE_MEAN, 0, 1, &page_mean);
    if (!r) r = oscar__plan_int(p, OSCAR__LIST_FOLDED, 0, 1, &l->v_folded);
    l->k_fit = (oscar_fit)fit[0];
    l->v_fit = (oscar_fit)fit[1];
    l->k_page_mean = page_mean < 0 ? 0 : page_mean ? 1 : -1;
    return r;
}

/* kv_heads from the tensors, where metadata do not tell: a mean has one row a head, other tensors may be shared. */
static void oscar__plan_heads(const oscar__plan *p, oscar__planned *out)
{
    size_t heads = 0;
    int i, told = 0;
    if (out->layer.kv_heads) return;
    for (i = 0; i < OSCAR__SLOTS; i++) {
        const oscar__tensor *t = out->tensor[i];
        size_t first = t && t->rank ? p->table->sizes[t->shape] : 0;
        if (first > heads) heads = first;
        if (first && i % OSCAR__ROLES == OSCAR__MEAN) told = 1;
    }
    if (heads > 65536) return;   /* the shape check refuses it */
    out->layer.kv_heads = (int)heads;
    if (heads == 1 && !told)
        OSCAR__WARN(p->hooks, "rotations: layer %i has shared matrices and the file does not tell oscar.kv_heads: it "
                    "counts as 1 KV head", p->layer);
}

/* Every tensor must have the layer's shape: matrices [heads or 1][D][D], mean [heads][D], spectrum [heads or 1][D]. */
static oscar_result oscar__plan_shapes(const oscar__plan *p, oscar__planned *out)
{
    int i;
    oscar__plan_heads(p, out);
    for (i = 0; i < OSCAR__SLOTS; i++) {
        int side = i / OSCAR__ROLES, role = i % OSCAR__ROLES, *dim = oscar__layer_dim(&out->layer, side);
        const oscar__tensor *t = out->tensor[i], *matrix = out->tensor[side * OSCAR__ROLES + OSCAR__TO];
        const size_t *shape = t ? p->table->sizes + t->shape : NULL;
        size_t rank = oscar__role_is_matrix(role) ? 3 : 2;
        if (!t) continue;
        if (side && (role == OSCAR__MEAN || role == OSCAR__METRIC))
            return OSCAR__FAIL(p->hooks, p->bad, "rotations: layers.%i.%s: only K has one", p->layer, oscar__slots[i]);
        if (!*dim && t->rank == rank && shape[1] <= OSCAR__DIM_MAX) *dim = (int)shape[1];
        if (t->rank != rank || !oscar__dim_valid(*dim) || shape[1] != (size_t)*dim || shape[rank - 1] != (size_t)*dim
            || !shape[0] || (shape[0] != (size_t)out->layer.kv_heads && (shape[0] != 1 || role == OSCAR__MEAN)))
            return OSCAR__FAIL(p->hooks, p->bad, "rotations: layers.%i.%s has a wrong shape (%i heads, dimension %i)",
                               p->layer, oscar__slots[i], out->layer.kv_heads, *dim);
        if (role == OSCAR__DUAL && (!matrix || p->table->sizes[matrix->shape] != shape[0]))
            return OSCAR__FAIL(p->hooks, p->bad, "rotations: layers.%i.%s needs a `to` of the same shape", p->layer,
                               oscar__slots[i]);
    }
    return OSCAR_OK;
}

/* Kinds and tensors must agree. A side without both has 16 bits. */
static oscar_result oscar__plan_kinds(const oscar__plan *p, oscar__planned *out)
{
    int side;
    for (side = 0; side < 2; side++) {
        const oscar__tensor *const *t = out->tensor + OSCAR__ROLES * side;
        const char *name = oscar__side_name(side);
        if (out->kind[side] < 0 && t[OSCAR__TO]) out->kind[side] = OSCAR_DENSE;
        if (out->kind[side] < 0) {
            if (t[OSCAR__MEAN] || t[OSCAR__SPECTRUM] || t[OSCAR__METRIC])
                return OSCAR__FAIL(p->hooks, p->bad, "rotations: layers.%i.%s has tensors, but no matrix and no "
                                   "oscar.%s_kind", p->layer, name, name);
            *oscar__layer_bits(&out->layer, side) = 16;
        } else if ((out->kind[side] == OSCAR_DENSE) != (t[OSCAR__TO] != NULL)) {
            return OSCAR__FAIL(p->hooks, p->bad, "rotations: layers.%i.%s.to does not fit oscar.%s_kind: dense has a "
                               "matrix, the other kinds have none", p->layer, name, name);
        } else if (out->kind[side] == OSCAR_IDENTITY
                   && (!out->layer.kv_heads || !*oscar__layer_dim(&out->layer, side))) {
            return OSCAR__FAIL(p->hooks, p->bad, "rotations: layer %i has oscar.%s_kind identity and no shape: give "
                               "oscar.kv_heads and oscar.%s_dim", p->layer, name, name);
        }
    }
    return OSCAR_OK;
}

/* Checks the settings by the rules of oscar_layer_resolve; a shape that the file does not tell counts as a fitting
   one. */
static oscar_result oscar__plan_resolve(const oscar__plan *p, const oscar_layer *l)
{
    oscar_layer trial = *l;
    trial.q_heads = trial.kv_heads = 1;
    if (!trial.k_dim) trial.k_dim = trial.k_group ? trial.k_group : 16;
    if (!trial.v_dim) trial.v_dim = trial.v_group ? trial.v_group : 16;
    if (trial.k_bits == 16) trial.k_bits = 2;   /* a group is checked also where it is not used */
    if (trial.v_bits == 16) trial.v_bits = 2;
    if (!oscar_layer_resolve(&trial, p->hooks, &trial)) return OSCAR_OK;
    return OSCAR__FAIL(p->hooks, p->bad, "rotations: layer %i is not valid", p->layer);
}

/* Reads the next layer. */
static oscar_result oscar__plan_next(oscar__plan *p, oscar__planned *out)
{
    const oscar__table *t = p->table;
    oscar_result result;
    int i;
    memset(out, 0, sizeof *out);
    for (; p->tensor < t->tensor_count && t->tensors[p->tensor].layer == p->layer; p->tensor++)
        out->tensor[t->tensors[p->tensor].slot] = &t->tensors[p->tensor];
    result = oscar__plan_settings(p, out);
    if (!result) result = oscar__plan_shapes(p, out);
    if (!result) result = oscar__plan_kinds(p, out);
    if (!result) result = oscar__plan_resolve(p, &out->layer);
    for (i = 0; i < OSCAR__LISTS; i++) {
        oscar__span item = oscar__plan_item(p, i);
        if (p->list[i] && !p->single[i]) p->list[i] = item.at + item.length + (item.at[item.length] == ',');
    }
    p->layer++;
    return result;
}

/* Pairs of a side; none where the shape is not known, which NULL expresses (HADAMARD). */
static int oscar__planned_pairs(oscar__planned *planned, int side)
{
    return planned->kind[side] >= 0 && *oscar__layer_dim(&planned->layer, side) ? planned->layer.kv_heads : 0;
}

/* -- the object -- */

struct oscar_rotations {
    oscar_hooks hooks;
    size_t bytes;
    int layer_count;
    oscar_layer *layers;
    oscar_pair *pairs;
    oscar__table table;   /* its memory is part of the object's */
};

static oscar_rotations *oscar__rotations_carve(oscar__carver *c, const oscar__table *from, int layers, size_t pairs)
{
    oscar_rotations head, *r = (oscar_rotations *)oscar__carve(c, 1, sizeof(oscar_rotations));
    size_t i;
    memset(&head, 0, sizeof head);
    head.table = *from;
    head.layer_count = layers;
    head.layers = (oscar_layer *)oscar__carve(c, (size_t)layers, sizeof(oscar_layer));
    head.pairs = (oscar_pair *)oscar__carve(c, pairs, sizeof(oscar_pair));
    oscar__table_carve(&head.table, c);
    for (i = 0; i < from->tensor_count; i++) {
        float *data = (float *)oscar__carve(c, from->tensors[i].count, sizeof(float));
        if (!r) continue;
        head.table.tensors[i] = from->tensors[i];
        head.table.tensors[i].data = data;
    }
    if (!r) return NULL;
    memcpy(head.table.text, from->text, from->text_count);
    memcpy(head.table.sizes, from->sizes, from->size_count * sizeof(size_t));
    memcpy(head.table.entries, from->entries, from->entry_count * sizeof(oscar__entry));
    *r = head;
    return r;
}

/* How many matrices, or metrics, of a side are stored: one where all heads have the same in the same memory. */
static int oscar__pairs_stored(const oscar_pair *pairs, int heads, int metric)
{
    int h;
    for (h = 1; h < heads; h++)
        if (metric ? pairs[h].metric != pairs[0].metric
                   : pairs[h].to != pairs[0].to || pairs[h].dual != pairs[0].dual) return heads;
    return 1;
}

/* A tensor's numbers from the pairs of layers. A head without what other heads have gets what it stands for: B = F,
   m = 0, M = 0 (refines nothing). */
static void oscar__tensor_gather(const oscar_layer *layers, const oscar__tensor *t)
{
    const oscar_pair *pairs = t->slot < OSCAR__ROLES ? layers[t->layer].k : layers[t->layer].v;
    int role = t->slot % OSCAR__ROLES;
    size_t dim = (size_t)pairs[0].dim, each = oscar__role_is_matrix(role) ? dim * dim : dim, h;
    for (h = 0; h < t->count / each; h++) {
        const oscar_pair *pair = &pairs[h];
        const float *from = role == OSCAR__MEAN ? pair->mean : role == OSCAR__METRIC ? pair->metric
                          : role == OSCAR__DUAL && pair->dual ? pair->dual : pair->to;
        if (from) memcpy(t->data + h * each, from, each * sizeof(float));
        else memset(t->data + h * each, 0, each * sizeof(float));
    }
}

static void oscar__tensor_scatter(const unsigned char *bytes, const oscar__tensor *t)
{
    size_t i;
    for (i = 0; i < t->count; i++) t->data[i] = oscar__float_of_bits(oscar__get32(bytes + t->begin + 4 * i));
}

/* How far f^T b is from the identity, in units of what is accepted: 1e-3, and what rounding f and b to float explains
   where their columns are long. */
static double oscar__dual_error(int dim, const float *f, const float *b)
{
    double f_length[OSCAR__DIM_MAX], b_length[OSCAR__DIM_MAX], sum[OSCAR__DIM_MAX], worst = 0;
    int i, j, k;
    for (j = 0; j < dim; j++) f_length[j] = b_length[j] = 0;
    for (k = 0; k < dim; k++)
        for (j = 0; j < dim; j++) {
            f_length[j] += (double)f[k * dim + j] * (double)f[k * dim + j];
            b_length[j] += (double)b[k * dim + j] * (double)b[k * dim + j];
        }
    for (i = 0; i < dim; i++) {
        for (j = 0; j < dim; j++) sum[j] = i == j ? -1 : 0;
        for (k = 0; k < dim; k++) oscar__add_float_row(dim, (double)f[k * dim + i], b + k * dim, sum);
        for (j = 0; j < dim; j++) {
            double error = fabs(sum[j]) / (1e-3 + 1e-6 * sqrt(f_length[i] * b_length[j]));
            if (error > worst) worst = error;
        }
    }
    return worst;
}

/* Checks a pair's matrices and sets its norm. */
static oscar_result oscar__pair_measure(const oscar_rotations *r, oscar_result bad, int layer, int side, int head,
                                        oscar_pair *pair)
{
    double error = oscar__dual_error(pair->dim, pair->to, pair->dual ? pair->dual : pair->to);
    if (error > 1)
        return OSCAR__FAIL(&r->hooks, bad, "rotations: layers.%i.%s of head %i is %s: %g times the accepted error",
                           layer, oscar__side_name(side), head, pair->dual
                           ? "no pair, dual is not the inverse of to, transposed" : "not orthogonal and has no dual",
                           error);
    if (pair->dual) pair->norm = oscar__matrix_norm(pair->dim, pair->to);
    if (!oscar__finite(&pair->norm, 1))
        return OSCAR__FAIL(&r->hooks, bad, "rotations: layers.%i.%s.to of head %i is too large", layer,
                           oscar__side_name(side), head);
    return OSCAR_OK;
}

/* Makes the pairs of one side of a layer, at `pairs`. */
static oscar_result oscar__pairs_bind(const oscar_rotations *r, oscar_result bad, int layer, oscar__planned *planned,
                                      int side, oscar_pair *pairs)
{
    const oscar__tensor *const *t = planned->tensor + OSCAR__ROLES * side;
    int dim = *oscar__layer_dim(&planned->layer, side), heads = oscar__planned_pairs(planned, side), h;
    size_t matrix = (size_t)dim * (size_t)dim;
    int shared = t[OSCAR__TO] && r->table.sizes[t[OSCAR__TO]->shape] == 1;
    int shared_metric = t[OSCAR__METRIC] && r->table.sizes[t[OSCAR__METRIC]->shape] == 1;
    for (h = 0; h < heads; h++) {
        oscar_pair *pair = &pairs[h];
        size_t at = shared ? 0 : (size_t)h * matrix;
        memset(pair, 0, sizeof *pair);
        pair->kind = (oscar_kind)planned->kind[side];
        pair->dim = dim;
        pair->norm = shared && h ? pairs[0].norm : 1;
        if (t[OSCAR__TO]) pair->to = t[OSCAR__TO]->data + at;
        if (t[OSCAR__DUAL]) pair->dual = t[OSCAR__DUAL]->data + at;
        if (t[OSCAR__MEAN]) pair->mean = t[OSCAR__MEAN]->data + (size_t)h * (size_t)dim;
        if (t[OSCAR__METRIC]) pair->metric = t[OSCAR__METRIC]->data + (shared_metric ? 0 : (size_t)h * matrix);
        if (pair->to && !(shared && h)) {
            oscar_result result = oscar__pair_measure(r, bad, layer, side, h, pair);
            if (result) return result;
        }
    }
    return OSCAR_OK;
}

/* Fills an object whose table stands: numbers, layers, pairs. */
static oscar_result oscar__rotations_bind(oscar_rotations *r, const unsigned char *bytes, const oscar_layer *layers,
                                          oscar_result bad)
{
    const oscar__table *t = &r->table;
    oscar_pair *pairs = r->pairs;
    oscar__plan plan;
    oscar__planned planned;
    oscar_result result;
    size_t i;
    int layer, side;
    for (i = 0; i < t->tensor_count; i++) {
        if (bytes) oscar__tensor_scatter(bytes, &t->tensors[i]);
        else oscar__tensor_gather(layers, &t->tensors[i]);
        if (oscar__finite(t->tensors[i].data, t->tensors[i].count)) continue;
        if (t->tensors[i].layer == OSCAR__EXTRA)
            return OSCAR__FAIL(&r->hooks, bad, "rotations: a tensor that is not known here holds NaN or infinity");
        return OSCAR__FAIL(&r->hooks, bytes ? bad : OSCAR_ERR_NUMERIC, "rotations: layers.%i.%s holds NaN or infinity",
                           t->tensors[i].layer, oscar__slots[t->tensors[i].slot]);
    }
    result = oscar__plan_start(&plan, t, bad, NULL);   /* it was read before: whatever it has to say is said */
    for (layer = 0; layer < r->layer_count && !result; layer++) {
        result = oscar__plan_next(&plan, &planned);
        for (side = 0; side < 2 && !result; side++) {
            int heads = oscar__planned_pairs(&planned, side);
            result = oscar__pairs_bind(r, bad, layer, &planned, side, pairs);
            if (!heads) continue;
            if (side) planned.layer.v = pairs;
            else planned.layer.k = pairs;
            pairs += heads;
        }
        r->layers[layer] = planned.layer;
    }
    return result;
}

/* Makes an object from a sorted table. The numbers come from bytes (a file's data), or from layers. */
static oscar_result oscar__rotations_build(const oscar__table *table, const unsigned char *bytes,
                                           const oscar_layer *layers, oscar_result bad, const oscar_hooks *hooks,
                                           oscar_rotations **out)
{
    oscar__plan plan;
    oscar__planned planned;
    oscar__carver carver = { NULL, 0 };
    oscar_rotations *r;
    size_t pairs = 0, size;
    oscar_result result = oscar__plan_start(&plan, table, bad, hooks);
    while (!result && plan.layer < plan.layer_count) {
        result = oscar__plan_next(&plan, &planned);
        if (result) break;
        pairs += (size_t)oscar__planned_pairs(&planned, 0) + (size_t)oscar__planned_pairs(&planned, 1);
        if (pairs > OSCAR__PAIRS_MAX)
            result = OSCAR__FAIL(hooks, bad, "rotations: more than %i pairs in all layers", OSCAR__PAIRS_MAX);
    }
    if (result) return result;
    (void)oscar__rotations_carve(&carver, table, plan.layer_count, pairs);
    size = carver.size;
    carver.base = (unsigned char *)oscar__alloc(hooks, size);
    if (!carver.base) return OSCAR__FAIL(hooks, OSCAR_ERR_MEMORY, "no memory for rotations of %z bytes", size);
    carver.size = 0;
    r = oscar__rotations_carve(&carver, table, plan.layer_count, pairs);
    r->bytes = size;
    if (hooks) r->hooks = *hooks;
    result = oscar__rotations_bind(r, bytes, layers, bad);
    if (result) oscar_rotations_destroy(r);
    else *out = r;
    return result;
}

OSCAR_API void oscar_rotations_destroy(oscar_rotations *rotations)
{
    oscar_hooks hooks;
    if (!rotations) return;
    hooks = rotations->hooks;
    oscar__carver_free(&hooks, rotations, rotations->bytes);
}

/* -- from layers -- */

/* The item of a list for a layer. Defaults are written out, so that a file says what it means. UNBIASED does not use
   the clip: its default is written then, also for "off", so that a cache which sets only the fit clips as usual. */
static void oscar__put_setting(oscar__text *t, int list, const oscar_layer *l)
{
    int side = list & 1, dim = side && l->v_dim ? l->v_dim : l->k_dim;
    const oscar_pair *pairs = side ? l->v : l->k;
    int bits = side ? l->v_bits : l->k_bits, group = side ? l->v_group : l->k_group;
    double clip = side ? l->v_clip : l->k_clip;
    oscar_fit fit = side ? l->v_fit : l->k_fit;
    if (list >= OSCAR__LIST_HEADS) {
        oscar__put_integer(t, list == OSCAR__LIST_HEADS ? l->kv_heads
                              : list == OSCAR__LIST_PAGE_MEAN ? l->k_page_mean >= 0 : l->v_folded != 0);
        return;
    }
    switch (list - side) {
    case OSCAR__LIST_KIND:
        if (pairs || bits != 16) oscar__put_string(t, oscar__kind_words[pairs ? pairs[0].kind : OSCAR_HADAMARD]);
        break;
    case OSCAR__LIST_BITS: oscar__put_integer(t, bits ? bits : 2); break;
    case OSCAR__LIST_FIT: oscar__put_string(t, oscar__fit_words[fit]); break;
    case OSCAR__LIST_GROUP: oscar__put_integer(t, group ? group : dim); break;
    case OSCAR__LIST_DIM: oscar__put_integer(t, dim); break;
    default:
        if (fit == OSCAR_CLIP && (clip < 0 || clip >= 1)) oscar__put_string(t, "-1");
        else oscar__put_fraction(t, clip > 0 && clip < 1 ? clip : side ? 0.92 : 0.96);
    }
}

/* One value, or one for each layer where they differ; no entry where all are empty. */
static void oscar__table_list(oscar__table *t, int list, const oscar_layer *layers, int count)
{
    char first[32], item[32];
    size_t key = t->text_count, value;
    int i, differ = 0;
    for (i = 0; i < count; i++) {
        oscar__text text = { NULL, 0, 0 };
        text.out = i ? item : first;
        text.capacity = sizeof item;
        text.out[0] = 0;
        oscar__put_setting(&text, list, &layers[i]);
        if (i && strcmp(item, first)) differ = 1;
    }
    if (!differ && !first[0]) return;
    (void)oscar__table_string(t, oscar__list_keys[list]);
    value = t->text_count;
    for (i = 0; i < (differ ? count : 1); i++) {
        oscar__text text = { NULL, 0, 0 };
        text.out = item;
        text.capacity = sizeof item;
        item[0] = 0;
        oscar__put_setting(&text, list, &layers[i]);
        if (i) t->text_count--;   /* over the 0 of the item before */
        if (i) oscar__table_char(t, ',');
        (void)oscar__table_string(t, item);
    }
    oscar__table_entry(t, key, value);
}

static void oscar__table_number(oscar__table *t, const char *key, int number)
{
    char digits[16];
    oscar__text text = { NULL, 0, 0 };
    size_t at = oscar__table_string(t, key);
    text.out = digits;
    text.capacity = sizeof digits;
    oscar__put_integer(&text, number);
    oscar__table_entry(t, at, oscar__table_string(t, digits));
}

/* One tensor of a layer: [heads][dim] or [heads][dim][dim]. */
static void oscar__table_slot(oscar__table *t, int layer, int slot, int heads, int dim)
{
    char name[48];
    oscar__text text = { NULL, 0, 0 };
    size_t rank = oscar__role_is_matrix(slot % OSCAR__ROLES) ? 3 : 2, each = (size_t)dim, i;
    text.out = name;
    text.capacity = sizeof name;
    oscar__put_string(&text, "layers.");
    oscar__put_integer(&text, layer);
    oscar__put_char(&text, '.');
    oscar__put_string(&text, oscar__slots[slot]);
    oscar__table_size(t, (size_t)heads);
    for (i = 1; i < rank; i++) oscar__table_size(t, (size_t)dim);
    if (rank == 3) each *= (size_t)dim;
    oscar__table_tensor(t, oscar__table_string(t, name), rank, oscar__mul((size_t)heads, each), 0);
}

/* Fills a table from layers, or counts. */
static void oscar__table_describe(oscar__table *t, const oscar_layer *layers, int count, const char *const *metadata)
{
    int i, side, h;
    size_t key = oscar__table_string(t, "oscar.version");
    oscar__table_entry(t, key, oscar__table_string(t, "1.0"));
    oscar__table_number(t, "oscar.layers", count);
    for (i = 0; i < OSCAR__LISTS; i++) oscar__table_list(t, i, layers, count);
    for (; metadata && *metadata; metadata += 2) {
        key = oscar__table_string(t, metadata[0]);
        oscar__table_entry(t, key, oscar__table_string(t, metadata[1]));
    }
    for (i = 0; i < count; i++)
        for (side = 0; side < 2; side++) {
            const oscar_pair *pairs = side ? layers[i].v : layers[i].k;
            int heads = layers[i].kv_heads, slot = OSCAR__ROLES * side, duals = 0, means = 0, metrics = 0, stored;
            if (!pairs) continue;
            for (h = 0; h < heads; h++) {
                duals += pairs[h].dual != NULL;
                means += pairs[h].mean != NULL;
                metrics += pairs[h].metric != NULL;
            }
            stored = oscar__pairs_stored(pairs, heads, 0);
            if (pairs[0].kind == OSCAR_DENSE) {
                oscar__table_slot(t, i, slot + OSCAR__TO, stored, pairs[0].dim);
                if (duals) oscar__table_slot(t, i, slot + OSCAR__DUAL, stored, pairs[0].dim);
            }
            if (means) oscar__table_slot(t, i, slot + OSCAR__MEAN, heads, pairs[0].dim);
            stored = oscar__pairs_stored(pairs, heads, 1);
            if (metrics) oscar__table_slot(t, i, slot + OSCAR__METRIC, stored, pairs[0].dim);
        }
}

/* What a layer must be to stand in a file. */
static oscar_result oscar__layer_storable(const oscar_layer *l, int index, const oscar_hooks *hooks)
{
    oscar_layer trial = *l;
    oscar_result result;
    int side, h;
    trial.q_heads = l->kv_heads;   /* not in the file: heads of q, window, scale, softcap */
    trial.window = 0;
    trial.scale = trial.softcap = 0;
    if (trial.k_bits == 16) trial.k_bits = 2;   /* pairs are kept also where they are not used */
    if (trial.v_bits == 16) trial.v_bits = 2;
    result = oscar_layer_resolve(&trial, hooks, &trial);
    if (result) return OSCAR__FAIL(hooks, result, "rotations: layers[%i] is not valid", index);
    for (side = 0; side < 2; side++) {
        const oscar_pair *pairs = side ? l->v : l->k;
        for (h = 1; pairs && h < l->kv_heads; h++)
            if (pairs[h].kind != pairs[0].kind)
                return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "rotations: layers[%i].%s has pairs of different kinds: "
                                   "all heads of a side must have one kind", index, oscar__side_name(side));
    }
    return OSCAR_OK;
}

static oscar_result oscar__metadata_check(const char *const *metadata, const oscar_hooks *hooks)
{
    int i;
    for (; metadata && *metadata; metadata += 2) {
        const char *key = metadata[0];
        int taken = !strcmp(key, "oscar.version") || !strcmp(key, "oscar.layers");
        if (!metadata[1])
            return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT,
                               "rotations: metadata end after a key: give key, value, ..., NULL");
        if (!oscar__utf8_valid(key) || !oscar__utf8_valid(metadata[1]))
            return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "rotations: metadata must be UTF-8");
        for (i = 0; i < OSCAR__LISTS; i++) if (!strcmp(key, oscar__list_keys[i])) taken = 1;
        if (taken)
            return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "rotations: %s is made from the layers, leave it out", key);
    }
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_rotations_create(const oscar_layer *layers, int layer_count, const char *const *metadata,
                                              const oscar_hooks *hooks, oscar_rotations **out)
{
    oscar__table table;
    oscar_result result = oscar__hooks_check(hooks);
    int i;
    if (result) return result;
    if (!layers || !out || layer_count < 1 || layer_count > OSCAR__LAYERS_MAX)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "rotations: give 1 to %i layers and a place for the result",
                           OSCAR__LAYERS_MAX);
    for (i = 0; i < layer_count && !result; i++) result = oscar__layer_storable(&layers[i], i, hooks);
    if (!result) result = oscar__metadata_check(metadata, hooks);
    if (result) return result;
    memset(&table, 0, sizeof table);
    oscar__table_describe(&table, layers, layer_count, metadata);
    result = oscar__table_alloc(&table, hooks);
    if (result) return result;
    oscar__table_describe(&table, layers, layer_count, metadata);
    result = oscar__table_sort(&table, OSCAR_ERR_ARGUMENT, hooks);
    if (!result) result = oscar__rotations_build(&table, NULL, layers, OSCAR_ERR_ARGUMENT, hooks, out);
    oscar__carver_free(hooks, table.memory, table.bytes);
    return result;
}

/* -- accessors -- */

OSCAR_API int oscar_rotations_count(const oscar_rotations *rotations) { return rotations ? rotations->layer_count : 0; }

OSCAR_API oscar_result oscar_rotations_layer(const oscar_rotations *rotations, int layer, oscar_layer *out)
{
    if (!rotations || !out) return OSCAR_ERR_ARGUMENT;
    if (layer < 0 || layer >= rotations->layer_count)
        return OSCAR__FAIL(&rotations->hooks, OSCAR_ERR_ARGUMENT, "rotations: layer %i of %i", layer,
                           rotations->layer_count);
    *out = rotations->layers[layer];
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_rotations_apply(const oscar_rotations *rotations, int layer, const oscar_hooks *hooks,
                                             oscar_layer *in_out)
{
    oscar_layer l, r;
    oscar_result result;
    memset(&r, 0, sizeof r);
    if (!in_out) return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "there is no layer to fill in");
    if ((result = oscar_rotations_layer(rotations, layer, &r)) != OSCAR_OK) return result;
    l = *in_out;
    if (!l.v_dim) l.v_dim = l.k_dim;
    if ((r.kv_heads && r.kv_heads != l.kv_heads) || (r.k_dim && r.k_dim != l.k_dim)
        || (r.v_dim && r.v_dim != l.v_dim))
        return OSCAR__FAIL(hooks, OSCAR_ERR_SHAPE,
                           "layer %i: the rotations have %i heads of %i and %i channels, the layer %i of %i and %i: "
                           "give the rotations of this model", layer, r.kv_heads, r.k_dim, r.v_dim, l.kv_heads, l.k_dim,
                           l.v_dim);
    if (!l.k_bits) l.k_bits = r.k_bits;
    if (!l.v_bits) l.v_bits = r.v_bits;
    if (l.k_fit == OSCAR_UNBIASED) l.k_fit = r.k_fit;
    if (l.v_fit == OSCAR_UNBIASED) l.v_fit = r.v_fit;
    if (l.k_clip >= 0 && !(l.k_clip > 0)) l.k_clip = r.k_clip;
    if (l.v_clip >= 0 && !(l.v_clip > 0)) l.v_clip = r.v_clip;
    if (!l.k_group) l.k_group = r.k_group;
    if (!l.v_group) l.v_group = r.v_group;
    if (!l.k_page_mean) l.k_page_mean = r.k_page_mean;
    if (!l.v_folded) l.v_folded = r.v_folded;
    if (!l.k) l.k = r.k;
    if (!l.v) l.v = r.v;
    *in_out = l;
    return OSCAR_OK;
}

OSCAR_API const char *oscar_rotations_meta(const oscar_rotations *rotations, const char *key)
{
    return rotations && key ? oscar__table_meta(&rotations->table, key) : NULL;
}

OSCAR_API double oscar_rotations_similarity(const oscar_rotations *rotations, int layer, int head_a, int head_b)
{
    const oscar_layer *l;
    const float *a, *b;
    double total = 0;
    int dim, i, j;
    if (!rotations || layer < 0 || layer >= rotations->layer_count) return -1;
    l = &rotations->layers[layer];
    if (!l->k || head_a < 0 || head_b < 0 || head_a >= l->kv_heads || head_b >= l->kv_heads) return -1;
    a = l->k[head_a].to;
    b = l->k[head_b].to;
    dim = l->k_dim;
    if (!a || !b) return -1;
    for (j = 0; j < dim; j++) {   /* the cosine between columns j */
        double dot = 0, aa = 0, bb = 0;
        for (i = 0; i < dim; i++) {
            double x = (double)a[i * dim + j], y = (double)b[i * dim + j];
            dot += x * y;
            aa += x * x;
            bb += y * y;
        }
        if (aa > 0 && bb > 0) total += fabs(dot) / sqrt(aa) / sqrt(bb);
    }
    return total / dim;
}

/* -- to and from bytes -- */

static void oscar__put_header(oscar__text *out, const oscar__table *t)
{
    size_t i, k, at = 0;
    oscar__put_string(out, "{\"__metadata__\":{");
    for (i = 0; i < t->entry_count; i++) {
        if (i) oscar__put_char(out, ',');
        oscar__put_json(out, t->text + t->entries[i].key);
        oscar__put_char(out, ':');
        oscar__put_json(out, t->text + t->entries[i].value);
    }
    oscar__put_char(out, '}');
    for (i = 0; i < t->tensor_count; i++) {
        const oscar__tensor *tensor = &t->tensors[i];
        oscar__put_char(out, ',');
        oscar__put_json(out, t->text + tensor->name);
        oscar__put_string(out, ":{\"dtype\":\"F32\",\"shape\":[");
        for (k = 0; k < tensor->rank; k++) {
            if (k) oscar__put_char(out, ',');
            oscar__put_unsigned(out, t->sizes[tensor->shape + k]);
        }
        oscar__put_string(out, "],\"data_offsets\":[");
        oscar__put_unsigned(out, at);
        oscar__put_char(out, ',');
        at += 4 * tensor->count;
        oscar__put_unsigned(out, at);
        oscar__put_string(out, "]}");
    }
    oscar__put_char(out, '}');
}

OSCAR_API oscar_result oscar_rotations_write(const oscar_rotations *rotations, void *out, size_t capacity, size_t *size)
{
    oscar__text text = { NULL, 0, 0 };
    unsigned char *p = (unsigned char *)out;
    const oscar__table *t;
    size_t header, total, i, k;
    if (!rotations || !size) return OSCAR_ERR_ARGUMENT;
    t = &rotations->table;
    oscar__put_header(&text, t);
    header = oscar__align_up(text.len + 1, 8);   /* one space at least, which oscar__text takes for its closing 0 */
    if (header > OSCAR__HEADER_MAX)
        return OSCAR__FAIL(&rotations->hooks, OSCAR_ERR_ARGUMENT, "rotations: names and metadata need %z bytes, more "
                           "than the %i that the format allows", header, OSCAR__HEADER_MAX);
    total = 8 + header;
    for (i = 0; i < t->tensor_count; i++) total += 4 * t->tensors[i].count;
    *size = total;
    if (!out) return OSCAR_OK;
    if (capacity < total)
        return OSCAR__FAIL(&rotations->hooks, OSCAR_ERR_MEMORY, "rotations: the file needs %z bytes, the buffer has %z",
                           total, capacity);
    oscar__put64(p, header);
    text.out = (char *)p + 8;
    text.capacity = header;
    text.len = 0;
    oscar__put_header(&text, t);
    memset(p + 8 + text.len, ' ', header - text.len);
    p += 8 + header;
    for (i = 0; i < t->tensor_count; i++)
        for (k = 0; k < t->tensors[i].count; k++, p += 4) oscar__put32(p, oscar__bits_of_float(t->tensors[i].data[k]));
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_rotations_read(const void *data, size_t size, const oscar_hooks *hooks,
                                            oscar_rotations **out)
{
    const unsigned char *bytes = (const unsigned char *)data;
    oscar__table table;
    uint64_t header;
    oscar_result result = oscar__hooks_check(hooks);
    if (result) return result;
    if (!data || !out) return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "rotations: data or out is NULL");
    header = size < 8 ? 0 : oscar__get64(bytes);
    if (header < 2 || header > OSCAR__HEADER_MAX || header > size - 8)
        return OSCAR__FAIL(hooks, OSCAR_ERR_FORMAT,
                           "rotations: %z bytes are no safetensors file, or not the whole of it", size);
    memset(&table, 0, sizeof table);
    result = oscar__table_parse(&table, bytes + 8, (size_t)header, hooks);
    if (result) return result;
    result = oscar__table_alloc(&table, hooks);
    if (result) return result;
    result = oscar__table_parse(&table, bytes + 8, (size_t)header, hooks);
    if (!result) result = oscar__table_cover(&table, size - 8 - (size_t)header, hooks);
    if (!result) result = oscar__table_sort(&table, OSCAR_ERR_FORMAT, hooks);
    if (!result) result = oscar__version_check(&table, hooks);
    if (!result)
        result = oscar__rotations_build(&table, bytes + 8 + header, NULL, OSCAR_ERR_FORMAT, hooks, out);
    oscar__carver_free(hooks, table.memory, table.bytes);
    return result;
}

#if !defined(OSCAR_NO_STDIO)
static FILE *oscar__open(const char *path, const char *mode)
{
#if defined(_MSC_VER)
#  pragma warning(suppress: 4996)   /* the function it proposes is not in C99 */
#endif
    return fopen(path, mode);
}

/* Replaces `to` by `from`. */
static int oscar__replace(const char *from, const char *to)
{
#if defined(_WIN32)
    (void)remove(to);   /* rename does not replace a file there */
#endif
    return rename(from, to) == 0;
}

OSCAR_API oscar_result oscar_rotations_save(const oscar_rotations *rotations, const char *path)
{
    const oscar_hooks *hooks = rotations ? &rotations->hooks : NULL;
    unsigned char *memory;
    char *temporary;
    size_t size, length, bytes;
    FILE *file;
    int ok;
    oscar_result result;
    if (!rotations || !path) return OSCAR_ERR_ARGUMENT;
    result = oscar_rotations_write(rotations, NULL, 0, &size);
    if (result) return result;
    length = strlen(path);
    bytes = oscar__add(size, length + 5);
    memory = (unsigned char *)oscar__alloc(hooks, bytes);   /* the file, then its temporary name */
    if (!memory) return OSCAR__FAIL(hooks, OSCAR_ERR_MEMORY, "rotations: no memory for a file of %z bytes", size);
    temporary = (char *)memory + size;
    memcpy(temporary, path, length);
    memcpy(temporary + length, ".tmp", 5);
    result = oscar_rotations_write(rotations, memory, size, &size);
    file = result ? NULL : oscar__open(temporary, "wb");
    if (!result && !file)
        result = OSCAR__FAIL(hooks, OSCAR_ERR_FILE, "rotations: cannot write to %s: is the folder there and writable?",
                             temporary);
    if (file) {
        ok = fwrite(memory, 1, size, file) == size;
        ok &= fflush(file) == 0;
        ok &= fclose(file) == 0;
        ok = ok && oscar__replace(temporary, path);
        if (!ok) {
            (void)remove(temporary);
            result = OSCAR__FAIL(hooks, OSCAR_ERR_FILE, "rotations: writing %s failed: is the disk full, or the path "
                                 "a folder?", path);
        }
    }
    oscar__free(hooks, memory, bytes);
    return result;
}

/* The size of an open file of which 8 bytes can be read (a folder has none); 0 if that fails. */
static size_t oscar__file_size(FILE *file)
{
    unsigned char start[8];
    long size;
    if (fread(start, 1, 8, file) != 8 || fseek(file, 0, SEEK_END)) return 0;
    size = ftell(file);
    return size < 8 || fseek(file, 0, SEEK_SET) ? 0 : (size_t)size;
}

OSCAR_API oscar_result oscar_rotations_load(const char *path, const oscar_hooks *hooks, oscar_rotations **out)
{
    void *memory = NULL;
    size_t size;
    FILE *file;
    oscar_result result = oscar__hooks_check(hooks);
    if (result) return result;
    if (!path || !out) return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "rotations: path or out is NULL");
    file = oscar__open(path, "rb");
    if (!file) return OSCAR__FAIL(hooks, OSCAR_ERR_FILE, "rotations: cannot open %s", path);
    size = oscar__file_size(file);
    if (!size) result = OSCAR__FAIL(hooks, OSCAR_ERR_FILE, "rotations: %s cannot be read or has no 8 bytes", path);
    if (!result && !(memory = oscar__alloc(hooks, size)))
        result = OSCAR__FAIL(hooks, OSCAR_ERR_MEMORY, "rotations: no memory for the %z bytes of %s", size, path);
    if (!result && fread(memory, 1, size, file) != size)
        result = OSCAR__FAIL(hooks, OSCAR_ERR_FILE, "rotations: cannot read %s", path);
    (void)fclose(file);
    if (!result) result = oscar_rotations_read(memory, size, hooks, out);
    oscar__free(hooks, memory, size);
    return result;
}
#endif

/* == 3.10 FOLDING == */

/* v = x W^T, v' = v F = x (F^T W)^T: each column of a head's block of W, taken as a row, goes through F.
   y = o W^T with o = o' B^T: y = o' (W B)^T: each row of a query head's block of W goes through B. */

static oscar_result oscar__fold_check(const oscar_pair *pairs, int kv_heads)
{
    int h;
    for (h = 0; h < kv_heads; h++) {
        oscar_result result = oscar__pair_check(&pairs[h], pairs[0].dim, NULL);
        if (result) return result;
        if (pairs[h].mean) return OSCAR_ERR_SHAPE;
    }
    return OSCAR_OK;
}

/* The dim numbers at w, w + stride, ... as a row times the pair's matrix: m where it is DENSE. */
static void oscar__fold_row(const oscar_pair *pair, const float *m, float *w, size_t stride)
{
    double x[OSCAR__DIM_MAX], y[OSCAR__DIM_MAX];
    const double *result = x;
    size_t dim = (size_t)pair->dim, i, j;
    if (pair->kind == OSCAR_IDENTITY) return;
    for (i = 0; i < dim; i++) { x[i] = (double)w[i * stride]; y[i] = 0; }
    if (pair->kind == OSCAR_HADAMARD) oscar__fwht_double(pair->dim, x);
    else {
        for (i = 0; i < dim; i++)
            for (j = 0; j < dim; j++) y[j] += x[i] * (double)m[i * dim + j];
        result = y;
    }
    for (i = 0; i < dim; i++) w[i * stride] = (float)result[i];
}

OSCAR_API oscar_result oscar_fold_v(const oscar_pair *pairs, int kv_heads, size_t in_dim, float *w, float *bias)
{
    oscar_result result;
    size_t column;
    int h;
    if (!pairs || kv_heads < 1 || kv_heads > 65536 || !in_dim || !w) return OSCAR_ERR_ARGUMENT;
    result = oscar__fold_check(pairs, kv_heads);
    if (result) return result;
    for (h = 0; h < kv_heads; h++) {
        size_t first = (size_t)h * (size_t)pairs[h].dim;
        for (column = 0; column < in_dim; column++)
            oscar__fold_row(&pairs[h], pairs[h].to, w + first * in_dim + column, in_dim);
        if (bias) oscar__fold_row(&pairs[h], pairs[h].to, bias + first, 1);
    }
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_fold_o(const oscar_pair *pairs, int kv_heads, int q_heads, size_t out_dim, float *w)
{
    oscar_result result;
    size_t row, x, heads;
    if (!pairs || kv_heads < 1 || kv_heads > 65536 || q_heads < 1 || q_heads % kv_heads || !out_dim || !w)
        return OSCAR_ERR_ARGUMENT;
    result = oscar__fold_check(pairs, kv_heads);
    if (result) return result;
    heads = (size_t)q_heads;
    for (row = 0; row < out_dim; row++)
        for (x = 0; x < heads; x++) {
            const oscar_pair *pair = &pairs[x * (size_t)kv_heads / heads];
            oscar__fold_row(pair, pair->dual ? pair->dual : pair->to, w + (row * heads + x) * (size_t)pair->dim, 1);
        }
    return OSCAR_OK;
}

/* == 3.11 ROW CODEC == */

/* Rows of dim channels in groups; every sum, min and max is over a group, the clip threshold over the row.

     UNBIASED   x^ = u s,  u = c - 1.5 (2 bits) or c - 7.5 (4 bits)       s = S(x,x) / S(x,u): <x^, x> = |x|^2
     CLIP       x^ = lo + c s                                              s = (max - min) / 3 or 15, lo = min

   An encoded row:  [codes, 4 or 2 a byte, low bits first][scale of each group][minimum of each group, CLIP only] */

/* Steps t / r to try, from fine to coarse: the best step of a Gaussian row and its neighbours at a ratio of 1.1875. */
static const float oscar__steps[2][4] = {
    { 0.79656f, 0.945915f, 1.115184f, 1.29441f },     /* 2 bits */
    { 0.26816f, 0.31844f, 0.375424f, 0.43576f }       /* 4 bits */
};

/* u = c - centre: UNBIASED codes lie around zero. */
static float oscar__centre(int bits) { return bits == 2 ? 1.5f : 7.5f; }

/* S(x, y): 16 fmaf chains, chain l over channels l, l + 16, ..., then a tree. n: a multiple of 16. */
static OSCAR__NOINLINE float oscar__sum_products(int n, const float *x, const float *y)
{
    float lane[OSCAR__LANES];
    int i, l, step;
    for (l = 0; l < OSCAR__LANES; l++) lane[l] = 0.0f;
    for (i = 0; i < n; i += OSCAR__LANES)
        for (l = 0; l < OSCAR__LANES; l++) lane[l] = fmaf(x[i + l], y[i + l], lane[l]);
    for (step = OSCAR__LANES / 2; step; step /= 2)
        for (l = 0; l < step; l++) lane[l] = OSCAR__F32(lane[l] + lane[l + step]);
    return lane[0];
}

/* The rank-th smallest |x| (0-based), by bisection on the bits of |x|: their order is that of the values. */
static float oscar__magnitude_of_rank(int n, const float *x, int rank)
{
    uint32_t low = 0, high = 0x7f800000;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int i, count = 0;
        for (i = 0; i < n; i++) count += (oscar__bits_of_float(x[i]) & 0x7fffffff) <= middle;
        if (count > rank) high = middle;
        else low = middle + 1;
    }
    return oscar__float_of_bits(low);
}

OSCAR_API oscar_result oscar_clip_threshold(int n, const float *x, double ratio, float *tau)
{
    int i;
    if (n < 1 || n > OSCAR__DIM_MAX) return OSCAR_ERR_SHAPE;
    if (!x || !tau || ratio != ratio) return OSCAR_ERR_ARGUMENT;
    for (i = 0; i < n; i++) if (x[i] != x[i]) return OSCAR_ERR_NUMERIC;
    *tau = oscar__magnitude_of_rank(n, x, ratio > 0 && ratio < 1 ? (int)floor(ratio * n) : n - 1);
    return OSCAR_OK;
}

OSCAR_API void oscar_pack2(size_t count, const unsigned char *codes, unsigned char *packed)
{
    size_t i;
    for (i = 0; i < count; i++) {
        unsigned before = i % 4 ? packed[i / 4] : 0u;
        packed[i / 4] = (unsigned char)(before | (codes[i] & 3u) << (2 * (i % 4)));
    }
}

OSCAR_API void oscar_unpack2(size_t count, const unsigned char *packed, unsigned char *codes)
{
    size_t i;
    for (i = 0; i < count; i++) codes[i] = packed[i / 4] >> (2 * (i % 4)) & 3;
}

static void oscar__unpack4(size_t count, const unsigned char *packed, unsigned char *codes)
{
    size_t i;
    for (i = 0; i < count; i++) codes[i] = packed[i / 2] >> (4 * (i % 2)) & 15;
}

/* What the encoder does with metadata beyond the storage type. REFUSE is for rows that come from outside; SATURATE for
   rows that the cache has accepted, or decoded itself, where demotion must not fail. */
typedef enum oscar__overflow { OSCAR__REFUSE, OSCAR__SATURATE } oscar__overflow;

/* Rounds a scale or minimum to the metadata type; 0 if it overflows and must not. */
static int oscar__metadata_round(oscar_type type, oscar__overflow overflow, float *x)
{
    float limit = type == OSCAR_F32 ? FLT_MAX : 65504.0f, rounded = *x;
    if (type != OSCAR_F32) rounded = oscar__float_of_f16(oscar__f16_of_float(*x));
    if (!(rounded <= limit && rounded >= -limit)) {
        if (overflow == OSCAR__REFUSE) return 0;
        rounded = rounded > 0 ? limit : rounded < 0 ? -limit : 0.0f;
    }
    *x = rounded;
    return 1;
}

/* UNBIASED, one group: codes and the scale before rounding, which is infinite where a sum is. */
static OSCAR__NOINLINE float oscar__fit_unbiased(int n, int bits, const float *x, unsigned char *codes)
{
    const float *steps = oscar__steps[bits == 4];
    float centre = oscar__centre(bits), u[OSCAR__DIM_MAX];
    float xx = oscar__sum_products(n, x, x), r = OSCAR__F32(sqrtf(OSCAR__F32(xx / (float)n))), best = 0, best_xu = 0;
    int a, i;
    memset(codes, 0, (size_t)n);
    if (!oscar__finite(&xx, 1)) return xx;
    for (a = 0; a < 4; a++) {
        float t = OSCAR__F32(r * steps[a]), xu, uu, score;
        if (!(t > 0)) return 0;
        for (i = 0; i < n; i++) {
            if (bits == 2) u[i] = (float)((x[i] >= -t) + (x[i] >= 0) + (x[i] >= t)) - centre;
            else {
                float level = floorf(OSCAR__F32(x[i] / t)) + 0.5f;
                u[i] = level < -centre ? -centre : level > centre ? centre : level;
            }
        }
        xu = oscar__sum_products(n, x, u);
        uu = oscar__sum_products(n, u, u);
        score = OSCAR__F32(OSCAR__F32(xu * xu) / uu);
        if (a > 0 && !(score > best)) continue;
        best = score;
        best_xu = xu;
        for (i = 0; i < n; i++) codes[i] = (unsigned char)(u[i] + centre);
    }
    return best_xu > 0 ? OSCAR__F32(xx / best_xu) : 0;
}

/* ---- refining (design 2.3): codes for the queries ---- */

/* A row in the course of being refined: levels u, scales s of the groups, z = x M, gradient = (s u - x) M. */
typedef struct oscar__refined {
    float u[OSCAR__DIM_MAX], s[OSCAR__DIM_MAX / 16], z[OSCAR__DIM_MAX], reading[OSCAR__DIM_MAX];
    float gradient[OSCAR__DIM_MAX];
} oscar__refined;

/* Each channel in turn takes the level that makes e M e^T least; what it changes of the gradient is put in at once, for
   the channels after it. */
static OSCAR__NOINLINE void oscar__refine_levels(const oscar_codec *codec, int dim, oscar__refined *r)
{
    const float *m = codec->metric;
    float centre = oscar__centre(codec->bits);
    int c, j;
    for (c = 0; c < dim; c++) r->reading[c] = OSCAR__F32(r->s[c / codec->group] * r->u[c]);
    oscar__kernels_now()->rotate(dim, 1, m, r->reading, r->gradient);
    for (c = 0; c < dim; c++) r->gradient[c] = OSCAR__F32(r->gradient[c] - r->z[c]);
    for (c = 0; c < dim; c++, m += dim) {
        float scale = r->s[c / codec->group], curvature = OSCAR__F32(scale * m[c]), level, step;
        if (!(scale > 0) || !(curvature > 0)) continue;
        level = floorf(OSCAR__F32(r->u[c] - OSCAR__F32(r->gradient[c] / curvature))) + 0.5f;
        if (!(level > -centre)) level = -centre;   /* also a NaN, which the scales then show */
        if (level > centre) level = centre;
        step = OSCAR__F32(scale * (level - r->u[c]));
        if (!(step < 0) && !(step > 0)) continue;
        r->u[c] = level;
        for (j = 0; j < dim; j++) r->gradient[j] = fmaf(step, m[j], r->gradient[j]);
    }
}

/* UNBIASED with a metric: refines codes and scales of a row, or leaves them as they are. scale [dim / group]: of the
   plain fit, not rounded; 0 where a group is zero, which stays so. */
static void oscar__refine(const oscar_codec *codec, int dim, const float *x, unsigned char *codes, float *scale)
{
    oscar__refined r;
    float centre = oscar__centre(codec->bits), limit = codec->metadata == OSCAR_F32 ? FLT_MAX : 65504.0f;
    int n = codec->group, groups = dim / n, pass, g, i;
    if (!oscar__finite(scale, (size_t)groups)) return;
    for (i = 0; i < dim; i++) r.u[i] = scale[i / n] > 0 ? (float)codes[i] - centre : 0.0f;
    memcpy(r.s, scale, (size_t)groups * sizeof(float));
    oscar__kernels_now()->rotate(dim, 1, codec->metric, x, r.z);
    for (pass = 0; pass < 2; pass++) {
        oscar__refine_levels(codec, dim, &r);
        for (g = 0; g < groups; g++) {
            float xz = oscar__sum_products(n, x + g * n, r.z + g * n);
            float uz = oscar__sum_products(n, r.u + g * n, r.z + g * n);
            if (scale[g] > 0) r.s[g] = uz > 0 ? OSCAR__F32(xz / uz) : 0.0f;
        }
    }
    for (g = 0; g < groups; g++)
        if (scale[g] > 0 && !(r.s[g] >= 0.5f * scale[g] && r.s[g] <= 2 * scale[g] && r.s[g] <= limit)) return;
    for (i = 0; i < dim; i++) if (scale[i / n] > 0) codes[i] = (unsigned char)(r.u[i] + centre);
    memcpy(scale, r.s, (size_t)groups * sizeof(float));
}

/* CLIP, one group of a clamped row: codes, scale and minimum, rounded to the metadata type. 0 if they overflow. */
static OSCAR__NOINLINE int oscar__fit_clip(int n, int bits, oscar_type metadata, oscar__overflow overflow,
                                           const float *x, unsigned char *codes, float *scale, float *minimum)
{
    float lo = x[0], hi = x[0], s, t0, t1, t2;
    int i;
    for (i = 1; i < n; i++) {
        if (x[i] < lo) lo = x[i];
        if (x[i] > hi) hi = x[i];
    }
    s = OSCAR__F32(OSCAR__F32(hi - lo) / (bits == 2 ? 3.0f : 15.0f));
    lo = OSCAR__F32(lo + 0.0f);   /* -0 is stored as +0 */
    if (!oscar__metadata_round(metadata, overflow, &s) || !oscar__metadata_round(metadata, overflow, &lo)) return 0;
    *scale = s;
    *minimum = lo;
    memset(codes, 0, (size_t)n);
    if (!(s > 0)) return 1;
    t0 = OSCAR__F32(0.5f * s);
    t1 = OSCAR__F32(1.5f * s);
    t2 = OSCAR__F32(2.5f * s);
    for (i = 0; i < n; i++) {
        float y = OSCAR__F32(x[i] - lo);
        if (bits == 2) codes[i] = (unsigned char)((y >= t0) + (y >= t1) + (y >= t2));
        else {
            float level = OSCAR__F32(OSCAR__F32(y / s) + 0.5f);
            codes[i] = (unsigned char)(level < 0 ? 0 : level > 15 ? 15 : (int)level);
        }
    }
    return 1;
}

/* One row: codes [dim], one a byte; scale and minimum [dim / group], rounded to the metadata type (minimum: CLIP only).
   codec: resolved. Errors: NUMERIC. */
static oscar_result oscar__encode_row(const oscar_codec *codec, int dim, oscar__overflow overflow, const float *x,
                                      unsigned char *codes, float *scale, float *minimum)
{
    float clamped[OSCAR__DIM_MAX];
    int g, i, n = codec->group;
    if (!oscar__finite(x, (size_t)dim)) return OSCAR_ERR_NUMERIC;
    if (codec->fit == OSCAR_CLIP && codec->clip > 0) {
        float tau = oscar__magnitude_of_rank(dim, x, (int)floor(codec->clip * dim));
        for (i = 0; i < dim; i++) clamped[i] = x[i] > tau ? tau : x[i] < -tau ? -tau : x[i];
        x = clamped;
    }
    for (g = 0; g < dim / n; g++) {
        if (codec->fit == OSCAR_CLIP) {
            if (!oscar__fit_clip(n, codec->bits, codec->metadata, overflow, x + g * n, codes + g * n, scale + g,
                                 minimum + g))
                return OSCAR_ERR_NUMERIC;
        } else scale[g] = oscar__fit_unbiased(n, codec->bits, x + g * n, codes + g * n);
    }
    if (codec->fit == OSCAR_CLIP) return OSCAR_OK;
    if (codec->metric) oscar__refine(codec, dim, x, codes, scale);
    for (g = 0; g < dim / n; g++)
        if (!oscar__metadata_round(codec->metadata, overflow, scale + g)) return OSCAR_ERR_NUMERIC;
    return OSCAR_OK;
}

/* ---- tiles: 16 rows side by side ---- */

/* Subtracts the page mean from a row where that makes it shorter; *used says whether it did. Returns 0 if a sum of
   squares overflows. */
static OSCAR__NOINLINE int oscar__page_mean_subtract(int dim, const float *n, float s, float *x, int *used)
{
    float y[OSCAR__DIM_MAX], squares[2];
    int j;
    for (j = 0; j < dim; j++) y[j] = fmaf(-n[j], s, x[j]);
    squares[0] = oscar__sum_products(dim, y, y);
    squares[1] = oscar__sum_products(dim, x, x);
    *used = squares[0] < squares[1];
    if (*used) memcpy(x, y, (size_t)dim * sizeof(float));
    return oscar__finite(squares, 2);
}

/* What encoding makes of 16 rows. Bit t of kept: the page mean was not subtracted from row t; of bad: it is refused. */
typedef struct oscar__tile {
    float *scale, *minimum;      /* [groups][16], rounded to the metadata type; minimum: CLIP only */
    unsigned char *codes;        /* [dim][16] */
    unsigned kept, bad;
} oscar__tile;

enum {
    OSCAR__ENCODER_TILES = 4,
    OSCAR__ENCODER_ROWS = 64,                   /* of all its tiles */
    OSCAR__ENCODER_WORK = 6 + 4 * OSCAR__TILE   /* floats of work for a tile and channel, at most */
};

/* Up to 64 rows to encode at once. */
struct oscar__encoder {
    const oscar_codec *codec;    /* resolved */
    int dim, rows, tiles;
    oscar__overflow overflow;
    const float *mean;           /* a page mean's levels [dim], or NULL */
    float mean_scale;
    float *lanes;                /* up to four areas of [tiles][dim][16]: rows, and what comes of them */
    oscar__tile tile[OSCAR__ENCODER_TILES];
};

/* Areas of lanes that encoding needs: the rows; CLIP their magnitudes; a metric u, z and the gradient. */
static int oscar__encoder_areas(const oscar_codec *codec)
{
    return codec->fit == OSCAR_CLIP ? 2 : codec->metric ? 4 : 1;
}

/* Floats of work for a tile. */
static size_t oscar__encoder_work(const oscar_codec *codec, int dim)
{
    return (size_t)dim * (size_t)(6 + OSCAR__TILE * oscar__encoder_areas(codec));
}

static void oscar__encoder_set(oscar__encoder *e, const oscar_codec *codec, int dim, int rows,
                               oscar__overflow overflow, float *work)
{
    size_t each = (size_t)dim;   /* floats of a tile's scales, as many of its minima, four times as many of its codes */
    int k;
    memset(e, 0, sizeof *e);
    e->codec = codec;
    e->dim = dim;
    e->rows = rows;
    e->tiles = (rows + OSCAR__TILE - 1) / OSCAR__TILE;
    e->overflow = overflow;
    for (k = 0; k < e->tiles; k++, work += 6 * each) {
        e->tile[k].scale = work;
        e->tile[k].minimum = work + each;
        e->tile[k].codes = (unsigned char *)(work + 2 * each);
    }
    e->lanes = work;
}

/* Encodes row by row: what the kernels must do. */
static void oscar__encode_rows(oscar__encoder *e, const float *rows)
{
    float x[OSCAR__DIM_MAX], scale[OSCAR__DIM_MAX / 16], minimum[OSCAR__DIM_MAX / 16];
    unsigned char codes[OSCAR__DIM_MAX];
    int r, c, g;
    for (r = 0; r < e->rows; r++, rows += e->dim) {
        oscar__tile *tile = &e->tile[r / OSCAR__TILE];
        int t = r % OSCAR__TILE, used = 1;   /* without a page mean the sign bit stays clear */
        memcpy(x, rows, (size_t)e->dim * sizeof *x);
        if (e->mean && !oscar__page_mean_subtract(e->dim, e->mean, e->mean_scale, x, &used)
            && e->overflow == OSCAR__REFUSE)
            tile->bad |= 1u << t;
        else if (oscar__encode_row(e->codec, e->dim, e->overflow, x, codes, scale, minimum)) tile->bad |= 1u << t;
        if (tile->bad >> t & 1) continue;
        if (!used) tile->kept |= 1u << t;
        for (c = 0; c < e->dim; c++) tile->codes[c * OSCAR__TILE + t] = codes[c];
        for (g = 0; g < e->dim / e->codec->group; g++) {
            tile->scale[g * OSCAR__TILE + t] = scale[g];
            if (e->codec->fit == OSCAR_CLIP) tile->minimum[g * OSCAR__TILE + t] = minimum[g];
        }
    }
}

/* x^ of one code. lo is read by CLIP only. The products are exact. */
static float oscar__decode_value(oscar_fit fit, int bits, unsigned code, float scale, float minimum)
{
    if (fit == OSCAR_CLIP) return fmaf((float)code, scale, minimum);
    return ((float)code - oscar__centre(bits)) * scale;
}

/* codec with defaults. Errors: SHAPE (dim, or a group that does not divide it), ARGUMENT. */
static oscar_result oscar__codec_resolve(const oscar_codec *in, int dim, oscar_codec *out)
{
    oscar_codec c;
    memset(&c, 0, sizeof c);
    if (in) c = *in;
    if (!c.bits) c.bits = 2;
    if (!c.group) c.group = dim;
    if (c.metadata == OSCAR_TYPE_DEFAULT) c.metadata = OSCAR_F16;
    if (c.fit == OSCAR_CLIP && c.clip >= 0 && !(c.clip > 0)) c.clip = 0.96;
    if (c.clip >= 1 || c.clip < 0) c.clip = -1;
    if (!oscar__dim_valid(dim) || c.group < 16 || c.group % 16 || dim % c.group) return OSCAR_ERR_SHAPE;
    if ((c.bits != 2 && c.bits != 4) || (c.metadata != OSCAR_F16 && c.metadata != OSCAR_F32) || c.clip != c.clip
        || ((int)c.fit != OSCAR_UNBIASED && (int)c.fit != OSCAR_CLIP))
        return OSCAR_ERR_ARGUMENT;
    *out = c;
    return OSCAR_OK;
}

OSCAR_API size_t oscar_row_bytes(const oscar_codec *codec, int dim)
{
    oscar_codec c;
    if (oscar__codec_resolve(codec, dim, &c) != OSCAR_OK) return 0;
    return (size_t)(dim * c.bits / 8)
           + (size_t)(dim / c.group) * oscar__type_size(c.metadata) * (c.fit == OSCAR_CLIP ? 2 : 1);
}

/* Writes or reads one number of metadata, little endian. */
static void oscar__metadata_put(oscar_type type, unsigned char *p, float x)
{
    if (type == OSCAR_F16) oscar__put16(p, oscar__f16_of_float(x));
    else oscar__put32(p, oscar__bits_of_float(x));
}

static float oscar__metadata_get(oscar_type type, const unsigned char *p)
{
    return type == OSCAR_F16 ? oscar__float_of_f16(oscar__get16(p)) : oscar__float_of_bits(oscar__get32(p));
}

/* Codes of row t of a tile, 4 or 2 a byte, low bits first. */
static void oscar__row_codes_put(int bits, int dim, const unsigned char *codes, int t, unsigned char *out)
{
    int c;
    codes += t;
    if (bits == 2)
        for (c = 0; c < dim; c += 4, codes += 4 * OSCAR__TILE)
            *out++ = (unsigned char)(codes[0] | codes[OSCAR__TILE] << 2 | codes[2 * OSCAR__TILE] << 4
                                     | codes[3 * OSCAR__TILE] << 6);
    else
        for (c = 0; c < dim; c += 2, codes += 2 * OSCAR__TILE)
            *out++ = (unsigned char)(codes[0] | codes[OSCAR__TILE] << 4);
}

/* Row t of a tile as an encoded row. */
static void oscar__row_put(const oscar_codec *codec, int dim, const oscar__tile *tile, int t, unsigned char *out)
{
    size_t each = oscar__type_size(codec->metadata);
    int g;
    oscar__row_codes_put(codec->bits, dim, tile->codes, t, out);
    out += dim * codec->bits / 8;
    for (g = 0; g < dim / codec->group; g++, out += each)
        oscar__metadata_put(codec->metadata, out, tile->scale[g * OSCAR__TILE + t]);
    for (g = 0; codec->fit == OSCAR_CLIP && g < dim / codec->group; g++, out += each)
        oscar__metadata_put(codec->metadata, out, tile->minimum[g * OSCAR__TILE + t]);
}

/* Rows go through a tile in work on the stack; where it has no room for what the kernels need, by the scalar code. */
OSCAR_API oscar_result oscar_encode(const oscar_codec *codec, int dim, size_t rows, const float *x, void *encoded)
{
    float work[10 * OSCAR__DIM_MAX];
    unsigned char *out = (unsigned char *)encoded;
    const oscar__kernels *kernels = oscar__kernels_now();
    oscar_codec c;
    oscar__encoder e;
    oscar_result result = oscar__codec_resolve(codec, dim, &c);
    size_t bytes = oscar_row_bytes(codec, dim);
    int t;
    if (result != OSCAR_OK) return result;
    if (rows && (!x || !encoded)) return OSCAR_ERR_ARGUMENT;
    while (rows) {
        int some = rows < OSCAR__TILE ? (int)rows : (int)OSCAR__TILE;
        oscar__encoder_set(&e, &c, dim, some, OSCAR__REFUSE, work);
        if (oscar__encoder_work(&c, dim) <= sizeof work / sizeof *work) kernels->encode(&e, x);
        else oscar__encode_rows(&e, x);
        for (t = 0; t < some; t++, x += dim, out += bytes) {
            if (e.tile[0].bad >> t & 1 || !kernels->finite(x, (size_t)dim)) return OSCAR_ERR_NUMERIC;
            oscar__row_put(&c, dim, &e.tile[0], t, out);
        }
        rows -= (size_t)some;
    }
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_decode(const oscar_codec *codec, int dim, size_t rows, const void *encoded, float *x)
{
    const unsigned char *in = (const unsigned char *)encoded;
    unsigned char codes[OSCAR__DIM_MAX];
    oscar_codec c;
    oscar_result result = oscar__codec_resolve(codec, dim, &c);
    size_t row, bytes = oscar_row_bytes(codec, dim);
    if (result != OSCAR_OK) return result;
    if (rows && (!x || !encoded)) return OSCAR_ERR_ARGUMENT;
    for (row = 0; row < rows; row++, x += dim, in += bytes) {
        const unsigned char *metadata = in + dim * c.bits / 8;
        size_t each = oscar__type_size(c.metadata), groups = (size_t)(dim / c.group), g;
        int i;
        if (c.bits == 2) oscar_unpack2((size_t)dim, in, codes);
        else oscar__unpack4((size_t)dim, in, codes);
        for (g = 0; g < groups; g++) {
            float scale = oscar__metadata_get(c.metadata, metadata + g * each), minimum = 0.0f;
            if (c.fit == OSCAR_CLIP) minimum = oscar__metadata_get(c.metadata, metadata + (groups + g) * each);
            for (i = (int)g * c.group; i < ((int)g + 1) * c.group; i++)
                x[i] = oscar__decode_value(c.fit, c.bits, codes[i], scale, minimum);
        }
    }
    return OSCAR_OK;
}

/* == 3.12 PAGES == */

/* A page of P tokens, H KV heads (all offsets from oscar_page_layout, manual 1.4):

     head 0 [K codes of all tiles][V codes of all tiles][K scales][K minima][V scales][V minima]
     head 1 ...
     head H-1 ...
     [K page mean bytes: head 0 .. H-1, Dk each][page mean scales: one fp16 a head][zeros to a multiple of 128]

   A tile is 16 tokens; with w = 32 / bits codes a word the code of channel c and token t is in word
     K: (c / w) 16 + t,  i = c mod w        V: (t / w) Dv + c,  i = t mod w
   at byte i mod 4 of the word, shifted left by bits (i / 4). Arrays of metadata are [group][token], fp16. */

/* Where one code is: the byte inside a tile, and the shift inside the byte. */
typedef struct oscar__place { size_t byte; int shift; } oscar__place;

static oscar__place oscar__place_of(int bits, size_t word, int inside)
{
    oscar__place place;
    place.byte = 4 * word + (size_t)(inside % 4);
    place.shift = bits * (inside / 4);
    return place;
}

static oscar__place oscar__k_place(int bits, int channel, int token)
{
    int w = 32 / bits;
    return oscar__place_of(bits, (size_t)(channel / w) * OSCAR__TILE + (size_t)token, channel % w);
}

static oscar__place oscar__v_place(int bits, int dim, int channel, int token)
{
    int w = 32 / bits;
    return oscar__place_of(bits, (size_t)(token / w) * (size_t)dim + (size_t)channel, token % w);
}

/* One side of a layout: K or V of one head. */
typedef struct oscar__page_side {
    int is_k, dim, bits, folded, tokens;
    oscar_codec codec;
    const oscar_pair *pairs;
    size_t codes, scale, minimum;
    int page_mean;
} oscar__page_side;

static oscar__page_side oscar__page_side_of(const oscar_layout *l, int is_k)
{
    const oscar_layer *layer = &l->layer;
    oscar__page_side s;
    memset(&s, 0, sizeof s);
    s.is_k = is_k;
    s.dim = is_k ? layer->k_dim : layer->v_dim;
    s.bits = is_k ? layer->k_bits : layer->v_bits;
    s.folded = !is_k && layer->v_folded;
    s.tokens = l->page_tokens;
    s.codec.fit = is_k ? layer->k_fit : layer->v_fit;
    s.codec.bits = s.bits;
    s.codec.group = is_k ? layer->k_group : layer->v_group;
    s.codec.clip = is_k ? layer->k_clip : layer->v_clip;
    s.codec.metadata = OSCAR_F16;
    s.pairs = is_k ? layer->k : layer->v;
    s.codes = is_k ? l->k_codes : l->v_codes;
    s.scale = is_k ? l->k_scale : l->v_scale;
    s.minimum = is_k ? l->k_min : l->v_min;
    s.page_mean = is_k && layer->k_page_mean > 0;
    return s;
}

/* Appends an array of `size` bytes, or none where size is 0, and returns its offset. */
static size_t oscar__layout_add(size_t *at, size_t size)
{
    size_t offset = *at;
    if (!size) return OSCAR_ABSENT;
    *at = oscar__add(*at, size);
    return offset;
}

static size_t oscar__codes_bytes(int bits, int dim, int tokens, oscar_type window_type)
{
    size_t values = oscar__mul((size_t)dim, (size_t)tokens);
    return bits == 16 ? oscar__mul(values, oscar__type_size(window_type)) : oscar__mul(values, (size_t)bits) / 8;
}

/* Bytes of a side's array of scales, or of minima. */
static size_t oscar__metadata_bytes(int bits, int dim, int group, int tokens)
{
    return bits == 16 ? 0 : oscar__mul(2 * (size_t)(dim / group), (size_t)tokens);
}

/* Floats that oscar__page_put works in: a head's rows, and work of the encoder. */
static size_t oscar__page_floats(size_t widest, int page_tokens)
{
    return oscar__mul(widest, (size_t)page_tokens + OSCAR__ENCODER_TILES * OSCAR__ENCODER_WORK);
}

OSCAR_API oscar_result oscar_page_layout(const oscar_layer *layer, int page_tokens, oscar_type window_type,
                                         const oscar_hooks *hooks, oscar_layout *out)
{
    oscar_layout l;
    oscar_result result;
    size_t at = 0, k_meta, v_meta, widest;
    memset(&l, 0, sizeof l);
    result = oscar_layer_resolve(layer, hooks, &l.layer);
    if (result) return result;
    if (!out) return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "oscar_page_layout needs a place for the layout");
    l.page_tokens = page_tokens ? page_tokens : 64;
    l.window_type = window_type == OSCAR_TYPE_DEFAULT ? OSCAR_BF16 : window_type;
    if (l.page_tokens < 64 || l.page_tokens % 64 || l.page_tokens > 1 << 20)
        return OSCAR__FAIL(hooks, OSCAR_ERR_SHAPE, "page_tokens is %i: give a positive multiple of 64 (up to 2^20)",
                           page_tokens);
    if (!oscar__type_valid(window_type))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "window_type %i is no oscar_type", (int)window_type);

    k_meta = oscar__metadata_bytes(l.layer.k_bits, l.layer.k_dim, l.layer.k_group, l.page_tokens);
    v_meta = oscar__metadata_bytes(l.layer.v_bits, l.layer.v_dim, l.layer.v_group, l.page_tokens);
    l.k_codes = oscar__layout_add(&at, oscar__codes_bytes(l.layer.k_bits, l.layer.k_dim, l.page_tokens, l.window_type));
    l.v_codes = oscar__layout_add(&at, oscar__codes_bytes(l.layer.v_bits, l.layer.v_dim, l.page_tokens, l.window_type));
    l.k_scale = oscar__layout_add(&at, k_meta);
    l.k_min = oscar__layout_add(&at, l.layer.k_fit == OSCAR_CLIP ? k_meta : 0);
    l.v_scale = oscar__layout_add(&at, v_meta);
    l.v_min = oscar__layout_add(&at, l.layer.v_fit == OSCAR_CLIP ? v_meta : 0);
    l.head_bytes = oscar__align_up(at, 128);

    at = oscar__mul(l.head_bytes, (size_t)l.layer.kv_heads);
    l.mean = l.mean_scale = OSCAR_ABSENT;
    if (l.layer.k_page_mean > 0) {
        l.mean = oscar__layout_add(&at, oscar__mul((size_t)l.layer.kv_heads, (size_t)l.layer.k_dim));
        l.mean_scale = oscar__layout_add(&at, 2 * (size_t)l.layer.kv_heads);
    }
    l.bytes = oscar__align_up(at, 128);
    widest = (size_t)(l.layer.k_dim > l.layer.v_dim ? l.layer.k_dim : l.layer.v_dim);
    l.scratch = oscar__add(oscar__mul(oscar__page_floats(widest, l.page_tokens), sizeof(float)), l.bytes);
    if (l.scratch > OSCAR__SIZE_MAX / 4)
        return OSCAR__FAIL(hooks, OSCAR_ERR_SHAPE, "a page of this layer does not fit in memory: lower page_tokens");
    *out = l;
    return OSCAR_OK;
}

/* Whether oscar_page_layout filled it. */
static int oscar__layout_valid(const oscar_layout *l) { return l && l->bytes && l->layer.kv_heads > 0; }

/* ---- writing ---- */

/* z_j: one chain over the tokens. */
static OSCAR__NOINLINE void oscar__mean_sum(int tokens, int dim, const float *x, float *z)
{
    float share = (float)(1.0 / tokens);
    int t, j;
    for (j = 0; j < dim; j++) z[j] = 0.0f;
    for (t = 0; t < tokens; t++)
        for (j = 0; j < dim; j++) z[j] = fmaf(x[(size_t)t * (size_t)dim + (size_t)j], share, z[j]);
}

static OSCAR__NOINLINE void oscar__mean_levels(int dim, const float *z, float s, float *n, unsigned char *bytes)
{
    int j;
    for (j = 0; j < dim; j++) {
        float level = s > 0 ? OSCAR__F32(floorf(OSCAR__F32(z[j] / s)) + 0.5f) : 0.5f;
        n[j] = level < -127.5f ? -127.5f : level > 127.5f ? 127.5f : level;
        bytes[j] = (unsigned char)(n[j] + 127.5f);
    }
}

/* The page's mean row: a_j = n_j s_m, n = byte - 127.5, rounded from the mean z of the transformed rows. Writes bytes
   and scale, gives n and s_m. x: [tokens][dim]. Errors: NUMERIC. */
static OSCAR__NOINLINE oscar_result oscar__page_mean_put(int tokens, int dim, const float *x, oscar__overflow overflow,
                                                         unsigned char *bytes, unsigned char *scale, float *n, float *s)
{
    float z[OSCAR__DIM_MAX], top = 0;
    int j;
    oscar__kernels_now()->mean_sum(tokens, dim, x, z);
    if (overflow == OSCAR__REFUSE && !oscar__finite(z, (size_t)dim)) return OSCAR_ERR_NUMERIC;
    for (j = 0; j < dim; j++) top = fabsf(z[j]) > top ? fabsf(z[j]) : top;
    *s = OSCAR__F32(top / 127.5f);
    if (!oscar__metadata_round(OSCAR_F16, overflow, s)) return OSCAR_ERR_NUMERIC;
    oscar__kernels_now()->mean_levels(dim, z, *s, n, bytes);
    oscar__metadata_put(OSCAR_F16, scale, *s);
    return OSCAR_OK;
}

/* Bytes from the start of a head's part to the codes of the tile that holds a token. */
static size_t oscar__tile_at(const oscar__page_side *s, int token)
{
    return s->codes + (size_t)(token / OSCAR__TILE) * (size_t)(OSCAR__TILE * s->dim * s->bits / 8);
}

/* Codes of a tile as words. codes: [dim][16]. */
static void oscar__pack_tile(int is_k, int bits, int dim, const unsigned char *codes, unsigned char *tile)
{
    int c, t;
    memset(tile, 0, (size_t)(OSCAR__TILE * dim * bits / 8));
    for (c = 0; c < dim; c++)
        for (t = 0; t < OSCAR__TILE; t++) {
            oscar__place at = is_k ? oscar__k_place(bits, c, t) : oscar__v_place(bits, dim, c, t);
            tile[at.byte] = (unsigned char)(tile[at.byte] | codes[c * OSCAR__TILE + t] << at.shift);
        }
}

static void oscar__put_halves(const float *x, unsigned char *out)
{
    int t;
    for (t = 0; t < OSCAR__TILE; t++) oscar__put16(out + 2 * t, oscar__f16_of_float(x[t]));
}

/* Codes and metadata of a tile into a head's part. Where the page mean was not subtracted, the sign bit of the scales
   is set. first: the tile's first token. */
static void oscar__page_put_tile(const oscar__page_side *s, unsigned char *head, int first, oscar__tile *tile)
{
    const oscar__kernels *kernels = oscar__kernels_now();
    int g, t;
    kernels->pack(s->is_k, s->bits, s->dim, tile->codes, head + oscar__tile_at(s, first));
    for (g = 0; g < s->dim / s->codec.group; g++) {
        size_t at = 2 * ((size_t)g * (size_t)s->tokens + (size_t)first);
        float *scale = tile->scale + g * OSCAR__TILE;
        for (t = 0; tile->kept && t < OSCAR__TILE; t++) if (tile->kept >> t & 1) scale[t] = -scale[t];
        kernels->put_halves(scale, head + s->scale + at);
        if (s->codec.fit == OSCAR_CLIP) kernels->put_halves(tile->minimum + g * OSCAR__TILE, head + s->minimum + at);
    }
}

/* Rows in the window type, little endian, of a 16-bit side. */
static void oscar__page_put_exact(oscar_type type, const float *x, size_t count, unsigned char *out)
{
    oscar__store(type, x, count, out);
    oscar__copy_little_endian(type, out, count * oscar__type_size(type), out);
}

/* One row back. */
static void oscar__page_get_exact(oscar_type type, const unsigned char *in, size_t dim, float *out)
{
    unsigned char one[4];
    size_t i, each = oscar__type_size(type);
    if (oscar__little_endian()) { oscar__load(type, in, dim, out); return; }
    for (i = 0; i < dim; i++) {
        oscar__copy_little_endian(type, in + i * each, each, one);
        oscar__load(type, one, 1, out + i);
    }
}

/* Transforms the rows of one side of one head in place. With SATURATE a row that is not finite afterwards counts as a
   zero row; else it is an error. */
static oscar_result oscar__page_forward(const oscar__page_side *s, const oscar_pair *pair, oscar__overflow overflow,
                                        float *rows, float *work)
{
    const oscar__kernels *kernels = oscar__kernels_now();
    size_t dim = (size_t)s->dim;
    int t;
    for (t = 0; s->bits != 16 && !s->folded && t < s->tokens; t += OSCAR__ENCODER_ROWS) {
        float *x = rows + (size_t)t * dim;
        oscar__forward(pair, OSCAR__ENCODER_ROWS, x, x, work);
    }
    if (kernels->finite(rows, dim * (size_t)s->tokens)) return OSCAR_OK;
    for (t = 0; t < s->tokens; t++) {
        float *x = rows + (size_t)t * dim;
        if (kernels->finite(x, dim)) continue;
        if (overflow == OSCAR__REFUSE) return OSCAR_ERR_NUMERIC;
        memset(x, 0, dim * sizeof(float));
    }
    return OSCAR_OK;
}

/* One side of one head of a page, from rows [page_tokens][dim] already rounded to the window type, at the start of
   oscar__page_floats of them; changes all of them. Errors: NUMERIC, never with SATURATE; the part may then be half
   written. */
static oscar_result oscar__page_put(const oscar_layout *l, int is_k, int h, oscar__overflow overflow, float *rows,
                                    unsigned char *page)
{
    oscar__page_side s = oscar__page_side_of(l, is_k);
    oscar_pair pair = oscar__pair_of(s.pairs, h, s.dim);
    oscar__encoder e;
    unsigned char *head = page + (size_t)h * l->head_bytes;
    float mean[OSCAR__DIM_MAX], mean_scale = 0;
    size_t dim = (size_t)s.dim;
    float *work = rows + dim * (size_t)s.tokens;
    oscar_result result = oscar__page_forward(&s, &pair, overflow, rows, work);
    int t, k;
    if (result) return result;
    if (s.bits == 16) {
        oscar__page_put_exact(l->window_type, rows, dim * (size_t)s.tokens, head + s.codes);
        return OSCAR_OK;
    }
    if (s.page_mean)
        result = oscar__page_mean_put(s.tokens, s.dim, rows, overflow, page + l->mean + (size_t)h * dim,
                                      page + l->mean_scale + 2 * (size_t)h, mean, &mean_scale);
    if (result) return result;
    if (is_k) s.codec.metric = pair.metric;
    for (t = 0; t < s.tokens; t += OSCAR__ENCODER_ROWS) {
        oscar__encoder_set(&e, &s.codec, s.dim, OSCAR__ENCODER_ROWS, overflow, work);
        e.mean = s.page_mean ? mean : NULL;
        e.mean_scale = mean_scale;
        oscar__kernels_now()->encode(&e, rows + (size_t)t * dim);
        for (k = 0; k < e.tiles; k++) {
            if (e.tile[k].bad) return OSCAR_ERR_NUMERIC;
            oscar__page_put_tile(&s, head, t + k * OSCAR__TILE, &e.tile[k]);
        }
    }
    return OSCAR_OK;
}

/* Zeros between the last array of a page and its end. */
static void oscar__page_pad(const oscar_layout *l, unsigned char *page)
{
    size_t end = l->head_bytes * (size_t)l->layer.kv_heads;
    if (l->layer.k_page_mean > 0) end = l->mean_scale + 2 * (size_t)l->layer.kv_heads;
    memset(page + end, 0, l->bytes - end);
}

OSCAR_API oscar_result oscar_page_write(const oscar_layout *layout, const oscar_view *k, const oscar_view *v,
                                        void *page, void *scratch)
{
    int h, side, t;
    unsigned char *image = (unsigned char *)scratch;   /* the page is copied at the end: all or nothing */
    if (!oscar__layout_valid(layout) || !k || !v || !k->data || !v->data || !page || !scratch
        || (uintptr_t)scratch % 64 || !oscar__type_valid(k->type) || !oscar__type_valid(v->type))
        return OSCAR_ERR_ARGUMENT;
    for (side = 0; side < 2; side++) {
        const oscar_view *view = side ? v : k;
        int dim = side ? layout->layer.v_dim : layout->layer.k_dim;
        float *rows = (float *)(void *)(image + layout->bytes);
        for (h = 0; h < layout->layer.kv_heads; h++) {
            oscar_result result;
            for (t = 0; t < layout->page_tokens; t++) {
                float *x = rows + (size_t)t * (size_t)dim;
                oscar__view_row_rounded(view, layout->window_type, layout->layer.kv_heads, dim, t, h, x);
            }
            result = oscar__page_put(layout, !side, h, OSCAR__REFUSE, rows, image);
            if (result) return result;
        }
    }
    oscar__page_pad(layout, image);
    memcpy(page, image, layout->bytes);
    return OSCAR_OK;
}

/* ---- reading ---- */

/* 16 x 16 codes of a tile as numbers, the index that is summed over first: of K [channel][token] from `channel` on, of
   V [token][channel]. */
static OSCAR__NOINLINE void oscar__page_square(const oscar__page_side *s, const unsigned char *OSCAR__RESTRICT head,
                                               int tile, int channel, double *OSCAR__RESTRICT out)
{
    const unsigned char *p = head + oscar__tile_at(s, OSCAR__TILE * tile);
    int w = 32 / s->bits, row, plane, i;
    uint32_t mask = (1u << s->bits) - 1, word[OSCAR__TILE];
    for (row = 0; row < OSCAR__TILE; row += w) {   /* w rows share 16 words, 4 of them a plane */
        size_t first = s->is_k ? (size_t)((channel + row) / w) * OSCAR__TILE
                               : (size_t)(row / w) * (size_t)s->dim + (size_t)channel;
        for (i = 0; i < OSCAR__TILE; i++) word[i] = oscar__get32(p + 4 * (first + (size_t)i));
        for (plane = 0; plane < w / 4; plane++) {
            double *four = out + OSCAR__TILE * (row + 4 * plane);
            int shift = s->bits * plane;
            for (i = 0; i < OSCAR__TILE; i++) {
                uint32_t codes = word[i] >> shift;
                four[i] = (int)(codes & mask);
                four[16 + i] = (int)(codes >> 8 & mask);
                four[32 + i] = (int)(codes >> 16 & mask);
                four[48 + i] = (int)(codes >> 24 & mask);
            }
        }
    }
}

/* A row's scale (absolute) and minimum of group g; *negative gets the sign bit. */
static float oscar__page_scale(const oscar__page_side *s, const unsigned char *head, int g, int token, float *minimum,
                               int *negative)
{
    size_t at = 2 * ((size_t)g * (size_t)s->tokens + (size_t)token);
    uint16_t half = oscar__get16(head + s->scale + at);
    *negative = half >> 15;
    *minimum = s->codec.fit == OSCAR_CLIP ? oscar__float_of_f16(oscar__get16(head + s->minimum + at)) : 0.0f;
    return oscar__float_of_f16((uint16_t)(half & 0x7fff));
}

/* One row of a page in the space it came from, before the final rounding. out: [dim]. */
static OSCAR__NOINLINE void oscar__page_get(const oscar_layout *l, int is_k, int h, const unsigned char *page,
                                            int token, float *out)
{
    oscar__page_side s = oscar__page_side_of(l, is_k);
    oscar_pair pair = oscar__pair_of(s.pairs, h, s.dim);
    const unsigned char *head = page + (size_t)h * l->head_bytes, *tile;
    float x[OSCAR__DIM_MAX], mean_scale = 0;
    int c, g, negative = 0, t = token % OSCAR__TILE;
    if (s.bits == 16) {
        size_t row = oscar__type_size(l->window_type) * (size_t)s.dim;
        oscar__page_get_exact(l->window_type, head + s.codes + row * (size_t)token, (size_t)s.dim, out);
        return;
    }
    tile = head + oscar__tile_at(&s, token);
    if (s.page_mean) mean_scale = oscar__metadata_get(OSCAR_F16, page + l->mean_scale + 2 * (size_t)h);
    for (g = 0; g < s.dim / s.codec.group; g++) {
        float minimum, scale = oscar__page_scale(&s, head, g, token, &minimum, &negative);
        for (c = g * s.codec.group; c < (g + 1) * s.codec.group; c++) {
            oscar__place at = s.is_k ? oscar__k_place(s.bits, c, t) : oscar__v_place(s.bits, s.dim, c, t);
            unsigned code = (unsigned)(tile[at.byte] >> at.shift) & ((1u << s.bits) - 1);
            x[c] = oscar__decode_value(s.codec.fit, s.bits, code, scale, minimum);
        }
    }
    for (c = 0; s.page_mean && !negative && c < s.dim; c++)
        x[c] = fmaf((float)page[l->mean + (size_t)h * (size_t)s.dim + (size_t)c] - 127.5f, mean_scale, x[c]);
    if (s.folded) memcpy(out, x, (size_t)s.dim * sizeof(float));
    else oscar__back(&pair, x, out);
}

OSCAR_API oscar_result oscar_page_read(const oscar_layout *layout, const void *page, int first, int count,
                                       const oscar_out *k, const oscar_out *v, void *scratch)
{
    int side, h, t;
    float *row = (float *)scratch;
    if (!oscar__layout_valid(layout) || !page || !scratch || (uintptr_t)scratch % 64 || first < 0 || count < 0
        || first > layout->page_tokens
        || count > layout->page_tokens - first || (k && (!k->data || !oscar__type_valid(k->type)))
        || (v && (!v->data || !oscar__type_valid(v->type))))
        return OSCAR_ERR_ARGUMENT;
    for (side = 0; side < 2; side++) {
        const oscar_out *out = side ? v : k;
        int dim = side ? layout->layer.v_dim : layout->layer.k_dim;
        for (t = 0; out && t < count; t++)
            for (h = 0; h < layout->layer.kv_heads; h++) {
                oscar__page_get(layout, !side, h, (const unsigned char *)page, first + t, row);
                oscar__store_saturated(out->type, row, (size_t)dim,
                                       oscar__out_at(out, layout->layer.kv_heads, dim, t, h));
            }
    }
    return OSCAR_OK;
}

/* == 3.13 ATTENTION OVER PAGES AND ROWS == */

/* One query q of head x against the keys of its KV head:
     logit_t = cap(scale (q . k_t)),  cap(l) = softcap tanh(l / softcap)
     o = sum_t w_t v_t / sum_t w_t,   w_t = exp(logit_t - top),   lse = top + log sum_t w_t
   Pages hold k' and v' as codes: q . k_t = q' . k'_t + q . m and o = o' B^T. With codes c, scale s and minimum lo of a
   row (lo = -1.5 s or -7.5 s for UNBIASED), q' . k' = s (q' . c) + lo sum(q'), a group at a time; a row with its sign
   bit clear adds q' . a of its page's mean a. Scale and minimum stay outside the sums over codes. All in double. */

/* A query goes over many pages and rows, and queries of one KV head over the same ones: the heads of a group, and
   several tokens. So up to OSCAR__QUERIES of them go together, and a tile is decoded, a row converted, once for all.
   Each has its own sums and order of operations: its result does not depend on the others. */

/* Online softmax: sums of w and w v, relative to the largest logit so far. acc has dim values. lse holds after the
   end. */
typedef struct oscar__softmax {
    double top, sum, lse;
    double *acc;
    int dim;
} oscar__softmax;

static void oscar__softmax_begin(oscar__softmax *s)
{
    int i;
    s->top = s->lse = -HUGE_VAL;
    s->sum = 0;
    for (i = 0; i < s->dim; i++) s->acc[i] = 0;
}

/* The largest of `count` numbers that are no NaN, in 8 chains; -HUGE_VAL if there is none. */
static double oscar__largest(int count, const double *x)
{
    double top[8];
    int i, l;
    for (l = 0; l < 8; l++) top[l] = -HUGE_VAL;
    for (i = 0; i + 8 <= count; i += 8)
        for (l = 0; l < 8; l++) top[l] = x[i + l] > top[l] ? x[i + l] : top[l];
    for (; i < count; i++) top[0] = x[i] > top[0] ? x[i] : top[0];
    for (l = 1; l < 8; l++) top[0] = top[l] > top[0] ? top[l] : top[0];
    return top[0];
}

/* Takes in `count` logits, -HUGE_VAL where masked, and turns them into weights. Returns 0 if all are masked. A NaN
   among them makes the result NaN. */
static int oscar__softmax_block(oscar__softmax *s, int count, double *logit)
{
    double top = oscar__largest(count, logit), factor;
    int i;
    if (!(top > -HUGE_VAL)) {
        for (i = 0; i < count && logit[i] < -DBL_MAX; i++) {}
        if (i == count) return 0;
    }
    if (!(top > s->top)) top = s->top;
    factor = s->top > -HUGE_VAL ? exp(s->top - top) : 0;
    s->top = top;
    s->sum *= factor;
    for (i = 0; i < s->dim; i++) s->acc[i] *= factor;
    for (i = 0; i < count; i++) {
        logit[i] = logit[i] < -DBL_MAX ? 0 : exp(logit[i] - top);
        s->sum += logit[i];
    }
    return 1;
}

/* Normalises acc in place and sets lse; without a key o = 0 and lse = -inf. */
static void oscar__softmax_end(oscar__softmax *s)
{
    int i;
    s->lse = -HUGE_VAL;
    if (s->sum <= 0) return;
    for (i = 0; i < s->dim; i++) s->acc[i] /= s->sum;
    s->lse = s->top + log(s->sum);
}

/* Joins b into a, both ended. b->acc NULL: zeros. */
static void oscar__softmax_join(oscar__softmax *a, const oscar__softmax *b)
{
    double top = a->lse > b->lse ? a->lse : b->lse, wa, wb;
    int i;
    if (a->lse < -DBL_MAX && b->lse < -DBL_MAX) return;
    wa = a->lse < -DBL_MAX ? 0 : exp(a->lse - top);
    wb = b->lse < -DBL_MAX ? 0 : exp(b->lse - top);
    for (i = 0; i < a->dim; i++) a->acc[i] = (a->acc[i] * wa + (b->acc ? b->acc[i] : 0) * wb) / (wa + wb);
    a->lse = top + log(wa + wb);
}

enum {
    OSCAR__QUERIES = 16,      /* queries that go together, */
    OSCAR__VALUES = 2048,     /* and their channels: 2 queries of OSCAR__DIM_MAX. So the stack stays below 80 KB */
    OSCAR__ROW_VALUES = 1024  /* channels of converted rows: at least one row */
};

/* Queries of KV head `head`, in the order of their positions, and what the block of up to OSCAR__BLOCK tokens at hand
   is to them: query j sees its first tokens[j] tokens (0: none), score[j] has their products, logits, then weights. */
typedef struct oscar__queries {
    const oscar_layer *layer;
    int head, count;
    oscar_precision precision;
    int64_t position[OSCAR__QUERIES];
    float q[OSCAR__VALUES];                       /* [count][k_dim] */
    int tokens[OSCAR__QUERIES];
    double score[OSCAR__QUERIES][OSCAR__BLOCK];
} oscar__queries;

/* A partial result: the sums of each query, in acc [count][v_dim]. */
typedef struct oscar__partial {
    oscar__softmax of[OSCAR__QUERIES];
    OSCAR__LINES double acc[OSCAR__VALUES];
} oscar__partial;

static void oscar__partial_begin(const oscar__queries *q, oscar__partial *p)
{
    int j;
    for (j = 0; j < q->count; j++) {
        p->of[j].dim = q->layer->v_dim;
        p->of[j].acc = p->acc + j * q->layer->v_dim;
        oscar__softmax_begin(&p->of[j]);
    }
}

static void oscar__partial_end(const oscar__queries *q, oscar__partial *p)
{
    int j;
    for (j = 0; j < q->count; j++) oscar__softmax_end(&p->of[j]);
}

static void oscar__partial_join(const oscar__queries *q, oscar__partial *a, const oscar__partial *b)
{
    int j;
    for (j = 0; j < q->count; j++) oscar__softmax_join(&a->of[j], &b->of[j]);
}

/* How many of `left` queries go together: what fits, in blocks of about the same size. */
static int oscar__queries_next(const oscar_layer *layer, int64_t left)
{
    int dim = layer->k_dim > layer->v_dim ? layer->k_dim : layer->v_dim;
    int most = OSCAR__VALUES / dim < OSCAR__QUERIES ? OSCAR__VALUES / dim : OSCAR__QUERIES;
    int64_t blocks = (left + most - 1) / most;
    return (int)((left + blocks - 1) / blocks);
}

/* Query `index` of a KV head, counted over the tokens and in each over the heads of the group. */
typedef struct oscar__query_place { int64_t token; int head; } oscar__query_place;

static oscar__query_place oscar__query_at(const oscar_layer *layer, int head, int64_t index)
{
    int group = layer->q_heads / layer->kv_heads;
    oscar__query_place place;
    place.token = index / group;
    place.head = head * group + (int)(index % group);
    return place;
}

/* Queries first .. first + count - 1 of a KV head; row `row` of q is that of token 0, at `position`. */
static void oscar__queries_load(const oscar_layer *layer, oscar_precision precision, const oscar_view *q, int64_t row,
                                int64_t position, int head, int64_t first, int count, oscar__queries *out)
{
    int j;
    out->layer = layer;
    out->precision = precision;
    out->head = head;
    out->count = count;
    for (j = 0; j < count; j++) {
        oscar__query_place place = oscar__query_at(layer, head, first + j);
        out->position[j] = position + place.token;
        oscar__view_row(q, layer->q_heads, layer->k_dim, row + place.token, place.head, out->q + j * layer->k_dim);
    }
}

/* The first position that a query sees under the sliding window. */
static int64_t oscar__window_start(const oscar_layer *layer, int64_t position)
{
    return layer->window > 0 && position >= layer->window ? position - layer->window + 1 : 0;
}

/* Products of the block whose first token is at `position` -> logits -> weights, taken into the sums. A query that sees
   nothing in it has no tokens afterwards. */
static void oscar__queries_softmax(oscar__queries *q, int64_t position, oscar__partial *out)
{
    const oscar_layer *layer = q->layer;
    double scale = (double)layer->scale, cap = (double)layer->softcap;
    int j, t;
    for (j = 0; j < q->count; j++) {
        int64_t hidden = oscar__window_start(layer, q->position[j]) - position;
        double *score = q->score[j];
        int tokens = q->tokens[j];
        for (t = 0; t < tokens; t++) score[t] *= scale;
        for (t = 0; t < tokens && cap > 0; t++) score[t] = cap * tanh(score[t] / cap);
        for (t = 0; t < tokens && t < hidden; t++) score[t] = -HUGE_VAL;
        if (tokens && !oscar__softmax_block(&out->of[j], tokens, score)) q->tokens[j] = 0;
    }
}

/* ---- rows ---- */

/* The inner loops: 8 or 16 values at a time, two or four products a value. Compilers turn these into vectors. The order
   of additions to one value is that of the rows. */

/* sum += weight_r x_r, one row after the other. x: [rows][dim], sum: [dim]; dim a multiple of 16. */
static OSCAR__NOINLINE void oscar__add_rows(int rows, int dim, const double *OSCAR__RESTRICT weight,
                                            const double *OSCAR__RESTRICT x, double *OSCAR__RESTRICT sum)
{
    int r, c, i;
    for (r = 0; r + 4 <= rows; r += 4)
        for (c = 0; c < dim; c += 16) {
            const double *w = weight + r, *x0 = x + r * dim + c, *x1 = x0 + dim, *x2 = x1 + dim, *x3 = x2 + dim;
            for (i = 0; i < 16; i++)
                sum[c + i] = (((sum[c + i] + w[0] * x0[i]) + w[1] * x1[i]) + w[2] * x2[i]) + w[3] * x3[i];
        }
    for (; r < rows; r++)
        for (c = 0; c < dim; c += 16)
            for (i = 0; i < 16; i++) sum[c + i] += weight[r] * x[r * dim + c + i];
}

/* The same for 16 rows of 16 channels. */
static OSCAR__NOINLINE void oscar__add_square(const double *OSCAR__RESTRICT weight, const double *OSCAR__RESTRICT x,
                                              double *OSCAR__RESTRICT sum)
{
    int r, i;
    for (r = 0; r < 16; r += 4) {
        const double *row = x + 16 * r;
        double w0 = weight[r], w1 = weight[r + 1], w2 = weight[r + 2], w3 = weight[r + 3];
        for (i = 0; i < 16; i++)
            sum[i] = (((sum[i] + w0 * row[i]) + w1 * row[16 + i]) + w2 * row[32 + i]) + w3 * row[48 + i];
    }
}

/* acc += a sum of its own, from `base` on. */
static OSCAR__NOINLINE void oscar__add_square_sum(double base, const double *OSCAR__RESTRICT weight,
                                                  const double *OSCAR__RESTRICT x, double *OSCAR__RESTRICT acc)
{
    double sum[16];
    int i;
    for (i = 0; i < 16; i++) sum[i] = base;
    oscar__add_square(weight, x, sum);
    for (i = 0; i < 16; i++) acc[i] += sum[i];
}

/* score += scale dot + low group_sum, of a tile. */
static void oscar__add_scaled(const double *OSCAR__RESTRICT scale, const double *OSCAR__RESTRICT low, double group_sum,
                              const double *OSCAR__RESTRICT dot, double *OSCAR__RESTRICT score)
{
    int t;
    for (t = 0; t < OSCAR__TILE; t++) score[t] += scale[t] * dot[t] + low[t] * group_sum;
}

/* oscar__product of q with each of four rows x [4][dim]. */
static OSCAR__NOINLINE void oscar__four_products(int dim, const float *OSCAR__RESTRICT q,
                                                 const double *OSCAR__RESTRICT x, double *OSCAR__RESTRICT out)
{
    double chain[4][8] = { { 0 } };
    int c, r, l;
    for (c = 0; c < dim; c += 16)
        for (r = 0; r < 4; r++) {
            const double *row = x + r * dim + c;
            double *sum = chain[r];
            for (l = 0; l < 8; l++)
                sum[l] = (sum[l] + (double)q[c + l] * row[l]) + (double)q[c + 8 + l] * row[8 + l];
        }
    for (r = 0; r < 4; r++) out[r] = oscar__chains_sum(chain[r]);
}

/* q.x_r of rows x [rows][dim]. */
static void oscar__row_products(int rows, int dim, const float *q, const double *x, double *out)
{
    int r;
    for (r = 0; r + 4 <= rows; r += 4) oscar__four_products(dim, q, x + r * dim, out + r);
    for (; r < rows; r++) out[r] = oscar__product(dim, q, x + r * dim);
}

/* K or V rows of one KV head: of a view, rounded to `type` on reading, or `exact` of a page, in `type`; from there to
   what is read next it is `ahead` bytes. */
typedef struct oscar__rows {
    const oscar_view *view;
    int heads, head, dim;
    const unsigned char *exact;
    ptrdiff_t ahead;
    oscar_type type;
} oscar__rows;

static oscar__rows oscar__rows_of_view(const oscar_layer *layer, const oscar_view *view, int dim, int head,
                                       oscar_type round)
{
    oscar__rows rows;
    memset(&rows, 0, sizeof rows);
    rows.view = view;
    rows.heads = layer->kv_heads;
    rows.head = head;
    rows.dim = dim;
    rows.type = round;
    return rows;
}

static oscar__rows oscar__rows_of_page(const unsigned char *exact, int dim, oscar_type type)
{
    oscar__rows rows;
    memset(&rows, 0, sizeof rows);
    rows.exact = exact;
    rows.dim = dim;
    rows.type = type;
    return rows;
}

/* Rows first .. first + count - 1 as out [count][dim]. */
static void oscar__rows_read(const oscar__rows *rows, int64_t first, int count, double *out)
{
    enum { PIECE = 256 };
    float piece[PIECE];
    size_t dim = (size_t)rows->dim, each = oscar__type_size(rows->exact ? rows->type : rows->view->type), c, i, size;
    int r;
    for (r = 0; r < count; r++)
        for (c = 0; c < dim; c += size, out += size) {
            size = dim - c < (size_t)PIECE ? dim - c : (size_t)PIECE;
            if (rows->exact) {
                const unsigned char *row = rows->exact + (size_t)(first + r) * dim * each;
                oscar__page_get_exact(rows->type, row + c * each, size, piece);
            } else {
                const void *row = oscar__view_at(rows->view, rows->heads, rows->dim, first + r, rows->head);
                oscar__load(rows->view->type, (const unsigned char *)row + c * each, size, piece);
                oscar__round_to(rows->type, piece, size);
            }
            for (i = 0; i < size; i++) out[i] = (double)piece[i];
        }
}

/* Tokens of a block that any query sees. */
static int oscar__queries_tokens(const oscar__queries *q)
{
    int j, most = 0;
    for (j = 0; j < q->count; j++) most = q->tokens[j] > most ? q->tokens[j] : most;
    return most;
}

static int oscar__smaller(int a, int b) { return a < b ? a : b; }

/* The block of tokens that starts at row `first`: products q.k. */
static void oscar__rows_scores(const oscar__rows *k, int64_t first, oscar__queries *q)
{
    double rows[OSCAR__ROW_VALUES];
    int tokens = oscar__queries_tokens(q), most = OSCAR__ROW_VALUES / k->dim, at, j;
    for (at = 0; at < tokens; at += most) {
        oscar__rows_read(k, first + at, oscar__smaller(most, tokens - at), rows);
        for (j = 0; j < q->count; j++)
            oscar__row_products(oscar__smaller(most, q->tokens[j] - at), k->dim, q->q + j * k->dim, rows,
                                q->score[j] + at);
    }
}

/* The same block: acc += sum_t weight_t v_t. */
static void oscar__rows_values(const oscar__rows *v, int64_t first, const oscar__queries *q, oscar__partial *out)
{
    double rows[OSCAR__ROW_VALUES];
    int tokens = oscar__queries_tokens(q), most = OSCAR__ROW_VALUES / v->dim, at, j;
    for (at = 0; at < tokens; at += most) {
        oscar__rows_read(v, first + at, oscar__smaller(most, tokens - at), rows);
        for (j = 0; j < q->count; j++)
            oscar__add_rows(oscar__smaller(most, q->tokens[j] - at), v->dim, q->score[j] + at, rows, out->of[j].acc);
    }
}

/* The row of a span where the blocks of a query begin: the first one that it sees. */
static int64_t oscar__span_begin(const oscar_layer *layer, const oscar_row_span *span, int64_t position)
{
    int64_t start = oscar__window_start(layer, position);
    return start > span->position ? start - span->position : 0;
}

/* A span for queries first .. last of a block, whose blocks of tokens begin at the same row. */
static void oscar__attend_span(oscar_type round, const oscar_row_span *span, oscar__queries *q, int first, int last,
                               oscar__partial *out)
{
    const oscar_layer *layer = q->layer;
    oscar__rows k = oscar__rows_of_view(layer, &span->k, layer->k_dim, q->head, round);
    oscar__rows v = oscar__rows_of_view(layer, &span->v, layer->v_dim, q->head, round);
    int64_t i;
    int j;
    for (i = oscar__span_begin(layer, span, q->position[first]); i < span->count; i += OSCAR__BLOCK) {
        for (j = 0; j < q->count; j++) {
            int64_t after = q->position[j] - span->position;
            int64_t left = (after < span->count ? after + 1 : span->count) - i;
            q->tokens[j] = j < first || j > last || left < 0 ? 0 : left < OSCAR__BLOCK ? (int)left : OSCAR__BLOCK;
        }
        if (!oscar__queries_tokens(q)) return;
        oscar__rows_scores(&k, i, q);
        oscar__queries_softmax(q, span->position + i, out);
        oscar__rows_values(&v, i, q, out);
    }
}

/* ---- vectors ---- */

/* The same in float where the instruction set has kernels for it (oscar__attend_kernels), for four queries at a time
   and 64 tokens of a KV head. Products with codes are sums of integers: q', and the weights of a block times the scales
   of V, are rounded to 16 bits of the largest one of a query and group, and split into signed bytes, n = 256 high +
   low. With one limb q' is rounded to a signed byte, and weights, which are not negative, to an unsigned one: 7 bits
   would cost more than 1e-2 of the output. A product is exact for the rounded query, since the minimum, or the centre,
   multiplies the sum of the rounded numbers; of values only what differs from the middle of the codes meets rounded
   weights. The order of operations of a query does not depend on the others. */
typedef struct oscar__vectors {
    const oscar__attend_kernels *kernels;
    int limbs, count, dim;                     /* queries, and channels of V */
    float scale, cap;
    float *acc;                                /* [count, rounded up to fours][dim]; touched by kernels and memcpy */
    float top[OSCAR__QUERIES], sum[OSCAR__QUERIES], factor[OSCAR__QUERIES];
    int whole, first[OSCAR__QUERIES], end[OSCAR__QUERIES];   /* tokens of the block that a query sees; whole: all */
    int64_t last_start;                        /* from there on all queries see all of a page */
    OSCAR__LINES float score[OSCAR__QUERIES][OSCAR__BLOCK];
    float step[OSCAR__QUERIES], base[OSCAR__QUERIES];        /* of weights of the block, by fours */
    OSCAR__LINES signed char limb[OSCAR__QUERIES / 4][4 * 128];
} oscar__vectors;

/* The floats stand in the memory of the doubles that they become at the end: half of it, or all with padding. */
static void oscar__vectors_begin(const oscar__attend_kernels *kernels, const oscar__queries *q, oscar__partial *out,
                                 oscar__vectors *v)
{
    int j, padded = (q->count + 3) / 4 * 4;
    v->kernels = kernels;
    v->limbs = q->precision == OSCAR_PRECISION_LOW ? 1 : 2;
    v->count = q->count;
    v->dim = q->layer->v_dim;
    v->scale = q->layer->scale;
    v->cap = q->layer->softcap;
    v->acc = (float *)(void *)out->acc;
    memset((void *)out->acc, 0, (size_t)padded * (size_t)v->dim * sizeof(float));
    memset(v->score, 0, sizeof v->score);
    v->last_start = oscar__window_start(q->layer, q->position[q->count - 1]);
    for (j = 0; j < padded; j++) {
        v->top[j] = -HUGE_VALF;
        v->sum[j] = 0;
    }
}

/* Sets which of `tokens` tokens from `position` on each query sees, rows causally. Returns how far they see. */
static int oscar__vectors_see(oscar__vectors *v, const oscar__queries *q, int64_t position, int tokens, int causal)
{
    int j, most = 0;
    if (!causal && position >= v->last_start) {
        v->whole = 1;
        return tokens;
    }
    v->whole = tokens == OSCAR__BLOCK;
    for (j = 0; j < (v->count + 3) / 4 * 4; j++) {
        int64_t at = q->position[oscar__smaller(j, v->count - 1)];
        int64_t start = oscar__window_start(q->layer, at) - position, end = causal ? at + 1 - position : tokens;
        v->end[j] = end > tokens ? tokens : end < 0 ? 0 : (int)end;
        v->first[j] = start > v->end[j] ? v->end[j] : start < 0 ? 0 : (int)start;
        if (v->first[j] || v->end[j] < OSCAR__BLOCK) v->whole = 0;
        if (v->first[j] < v->end[j] && v->end[j] > most) most = v->end[j];
    }
    return most;
}

/* Whether one of `count` queries from `first` on sees a token of the block. */
static int oscar__vectors_any(const oscar__vectors *v, int first, int count)
{
    int j;
    if (v->whole) return 1;
    for (j = first; j < first + count; j++) if (v->first[j] < v->end[j]) return 1;
    return 0;
}

static int oscar__vectors_four(const oscar__vectors *v, int first) { return oscar__vectors_any(v, first, 4); }

/* Weights are powers of 2. */
#define OSCAR__LOG2E 1.44269504f

static int oscar__four_count(const oscar__vectors *v, int first) { return oscar__smaller(v->count - first, 4); }

/* Products -> weights, and sums of before to the new maximum. Kernels that take more than four queries need the weights
   of all, zeros where nothing is seen. */
static void oscar__vectors_softmax(oscar__vectors *v)
{
    int f;
    for (f = 0; f < v->count; f += 4) {
        int count = oscar__four_count(v, f);
        if ((v->kernels->queries > 4 || oscar__vectors_four(v, f))
            && v->kernels->softmax(count, v->scale, v->cap, v->whole ? NULL : v->first + f,
                                   v->whole ? NULL : v->end + f, v->score[f], v->top + f, v->sum + f, v->factor + f))
            v->kernels->rescale(count, v->dim, v->factor + f, v->acc + f * v->dim);
    }
}

/* Normalises, transforms back where pair is given, and makes doubles of it in place: in a pass over floats that end
   where the doubles end, the doubles never reach a float that is still to be read. */
static OSCAR__NOINLINE void oscar__vectors_end(const oscar__vectors *v, const oscar_pair *pair, oscar__partial *out)
{
    float o[OSCAR__VALUES], *back = v->acc + OSCAR__VALUES;
    const oscar__kernels *kernels = oscar__kernels_now();
    double unit = v->cap > 0 ? 1 : (double)v->scale;   /* of top */
    int dim = v->dim, values = v->count * dim, j, c, i;
    ptrdiff_t row = (ptrdiff_t)((size_t)dim * sizeof(float));
    memcpy(o, v->acc, (size_t)values * sizeof(float));
    for (j = 0; j < v->count; j++) {
        float share = v->sum[j] > 0 || v->sum[j] != v->sum[j] ? 1 / v->sum[j] : 0;
        for (c = 0; c < dim; c++) o[j * dim + c] *= share;
        out->of[j].lse = v->sum[j] <= 0 ? -HUGE_VAL : (double)v->top[j] * unit + log((double)v->sum[j]);
        if (pair && pair->kind == OSCAR_HADAMARD) kernels->fwht(dim, 1, o + j * dim, o + j * dim);
    }
    if (pair && pair->kind == OSCAR_DENSE)
        for (j = 0; j < v->count; j += 4)
            v->kernels->products(OSCAR_F32, oscar__four_count(v, j), dim, dim, o + j * dim, row,
                                 oscar__pair_dual(pair), row, 0, back + j * dim, row);
    else memcpy(back, o, (size_t)values * sizeof(float));
    for (c = 0; c < values; c += 16) {
        double wide[16];
        memcpy(o, back + c, 16 * sizeof(float));
        for (i = 0; i < 16; i++) wide[i] = (double)o[i];
        memcpy(out->acc + c, wide, sizeof wide);
    }
}

/* Rows as kernels take them. count: how many at a time. */
typedef struct oscar__vector_rows {
    const void *at;
    oscar_type type;
    ptrdiff_t stride, ahead;
    int count;
} oscar__vector_rows;

/* Rows from `first` on, at most `left`: as they are, or where they are to be rounded to another type as floats in the
   room [OSCAR__ROW_VALUES]. */
static oscar__vector_rows oscar__vectors_rows(const oscar__vectors *v, const oscar__rows *rows, int64_t first, int left,
                                              float *room)
{
    oscar_type round = rows->exact ? OSCAR_F32 : rows->type;
    oscar__vector_rows out;
    const unsigned char *at = rows->exact;
    out.type = rows->exact ? rows->type : rows->view->type;
    out.stride = (ptrdiff_t)rows->dim * (ptrdiff_t)oscar__type_size(out.type);
    out.count = left;
    if (at) at += first * out.stride;
    else {
        at = (const unsigned char *)oscar__view_at(rows->view, rows->heads, rows->dim, first, rows->head);
        if (rows->view->token_stride) out.stride = rows->view->token_stride * (ptrdiff_t)oscar__type_size(out.type);
        else out.stride *= rows->heads;
    }
    out.at = at;
    out.ahead = rows->exact ? rows->ahead : OSCAR__BLOCK * out.stride;
    if (oscar__type_size(round) == 4 || round == out.type) return out;
    out.count = oscar__smaller(left, OSCAR__ROW_VALUES / rows->dim);
    v->kernels->widen(out.type, round, out.count, rows->dim, at, out.stride, room);
    out.at = room;
    out.type = OSCAR_F32;
    out.stride = (ptrdiff_t)rows->dim * (ptrdiff_t)sizeof(float);
    out.ahead = 0;
    return out;
}

/* Products of the block that starts at row `first`, of which queries see the first `tokens`. */
static OSCAR__NOINLINE void oscar__vectors_score_rows(oscar__vectors *v, const oscar__queries *q, const oscar__rows *k,
                                                      int64_t first, int tokens)
{
    float room[OSCAR__ROW_VALUES];
    int at, f;
    ptrdiff_t row = (ptrdiff_t)((size_t)k->dim * sizeof(float));
    oscar__vector_rows r;
    for (at = 0; at < tokens; at += r.count) {
        r = oscar__vectors_rows(v, k, first + at, tokens - at, room);
        for (f = 0; f < v->count; f += 4)
            v->kernels->products(r.type, oscar__four_count(v, f), r.count, k->dim, q->q + f * k->dim, row, r.at,
                                 r.stride, r.ahead, v->score[f] + at, (ptrdiff_t)sizeof v->score[0]);
    }
}

/* acc of `count` queries from query f on += their weights times rows from .. end - 1 of the block, of which r has the
   rows from token `at` on. */
static void oscar__vectors_add(const oscar__vectors *v, const oscar__vector_rows *r, int at, int f, int count, int from,
                               int end)
{
    ptrdiff_t row = (ptrdiff_t)((size_t)v->dim * sizeof(float));
    if (from < at) from = at;
    if (end > at + r->count) end = at + r->count;
    if (from < end)
        v->kernels->combine(r->type, count, end - from, v->dim, v->score[f] + from, (ptrdiff_t)sizeof v->score[0],
                            (const unsigned char *)r->at + (from - at) * r->stride, r->stride, r->ahead,
                            v->acc + f * v->dim, row);
}

/* Each query takes in the rows that it sees and no others, since a weight of 0 times what is not finite is not 0: those
   that all four see together, what comes before and after one by one. */
static OSCAR__NOINLINE void oscar__vectors_blend_rows(oscar__vectors *v, const oscar__rows *values, int64_t first,
                                                      int tokens)
{
    float room[OSCAR__ROW_VALUES];
    int at, f, j;
    oscar__vector_rows r;
    for (at = 0; at < tokens; at += r.count) {
        r = oscar__vectors_rows(v, values, first + at, tokens - at, room);
        for (f = 0; f < v->count; f += 4) {
            int count = oscar__four_count(v, f), from = 0, end = OSCAR__BLOCK;
            for (j = f; j < f + count && !v->whole; j++) {
                if (v->first[j] > from) from = v->first[j];
                if (v->end[j] < end) end = v->end[j];
            }
            if (end < from) end = from;   /* none that all see */
            for (j = f; j < f + count && !v->whole; j++)
                oscar__vectors_add(v, &r, at, j, 1, v->first[j], oscar__smaller(from, v->end[j]));
            oscar__vectors_add(v, &r, at, f, count, from, end);
            for (j = f; j < f + count && !v->whole; j++)
                oscar__vectors_add(v, &r, at, j, 1, v->first[j] > end ? v->first[j] : end, v->end[j]);
        }
    }
}

/* oscar__attend_spans. Blocks start at multiples of 64 of a span for all queries. */
static void oscar__vectors_spans(const oscar__attend_kernels *kernels, oscar_type round, const oscar_row_span *spans,
                                 int count, const oscar__queries *q, oscar__partial *out)
{
    const oscar_layer *layer = q->layer;
    oscar__vectors v;
    int s;
    oscar__vectors_begin(kernels, q, out, &v);
    for (s = 0; s < count; s++) {
        oscar__rows k = oscar__rows_of_view(layer, &spans[s].k, layer->k_dim, q->head, round);
        oscar__rows values = oscar__rows_of_view(layer, &spans[s].v, layer->v_dim, q->head, round);
        int64_t i = oscar__span_begin(layer, &spans[s], q->position[0]) / OSCAR__BLOCK * OSCAR__BLOCK;
        for (; i < spans[s].count; i += OSCAR__BLOCK) {
            int left = spans[s].count - i < OSCAR__BLOCK ? (int)(spans[s].count - i) : OSCAR__BLOCK;
            int tokens = oscar__vectors_see(&v, q, spans[s].position + i, left, 1);
            if (!tokens) break;
            oscar__vectors_score_rows(&v, q, &k, i, tokens);
            oscar__vectors_softmax(&v);
            oscar__vectors_blend_rows(&v, &values, i, tokens);
        }
    }
    oscar__vectors_end(&v, NULL, out);
}

/* Rows of spans, masked causally. Every row is rounded to `round` first: the window type for a chunk that is about to
   enter a cache, OSCAR_F32 for rows that are to be taken as they are. */
static void oscar__attend_spans(oscar_type round, const oscar_row_span *spans, int count, oscar__queries *q,
                                oscar__partial *out)
{
    const oscar__attend_kernels *kernels = oscar__kernels_now()->attend;
    int s, first, last;
    oscar__partial_begin(q, out);
    if (kernels) {
        oscar__vectors_spans(kernels, round, spans, count, q, out);
        return;
    }
    for (s = 0; s < count; s++)
        for (first = 0; first < q->count; first = last + 1) {
            int64_t begin = oscar__span_begin(q->layer, &spans[s], q->position[first]);
            for (last = first; last + 1 < q->count; last++)
                if (oscar__span_begin(q->layer, &spans[s], q->position[last + 1]) != begin) break;
            oscar__attend_span(round, &spans[s], q, first, last, out);
        }
    oscar__partial_end(q, out);
}

/* ---- pages ---- */

/* What all pages share of queries: q' = q B as rotated [count][k_dim], q.m, and the sums of q' over the groups. And of
   the page at hand q'.a. */
typedef struct oscar__page_queries {
    double *rotated;
    double mean_product[OSCAR__QUERIES], group_sum[OSCAR__VALUES / 16], page_mean_product[OSCAR__QUERIES];
} oscar__page_queries;

static void oscar__page_queries_begin(const oscar__queries *q, double *rotated, oscar__page_queries *out)
{
    const oscar_layer *layer = q->layer;
    oscar_pair pair = oscar__pair_of(layer->k, q->head, layer->k_dim);
    int groups = layer->k_dim / layer->k_group, i, j;
    out->rotated = rotated;
    for (j = 0; j < q->count; j++) {
        const float *query = q->q + j * layer->k_dim;
        double *row = rotated + j * layer->k_dim, *sum = out->group_sum + j * groups;
        out->mean_product[j] = out->page_mean_product[j] = 0;
        if (layer->k_bits == 16) continue;
        oscar__query(&pair, query, row);
        for (i = 0; i < groups; i++) sum[i] = 0;
        for (i = 0; i < layer->k_dim; i++) {
            sum[i / layer->k_group] += row[i];
            if (pair.mean) out->mean_product[j] += (double)query[i] * (double)pair.mean[i];
        }
    }
}

/* q' . a of a page's mean row. Four queries at a time, so that the sums do not wait for each other. */
static OSCAR__NOINLINE void oscar__page_mean_products(const oscar_layout *l, const unsigned char *page,
                                                      const oscar__queries *q, oscar__page_queries *out)
{
    const unsigned char *n = page + l->mean + (size_t)q->head * (size_t)l->layer.k_dim;
    double scale = (double)oscar__metadata_get(OSCAR_F16, page + l->mean_scale + 2 * (size_t)q->head);
    int j, i, c;
    for (j = 0; j < q->count; j += 4) {
        const double *row[4];
        double sum[4] = { 0 };
        for (i = 0; i < 4; i++) row[i] = out->rotated + oscar__smaller(j + i, q->count - 1) * l->layer.k_dim;
        for (c = 0; c < l->layer.k_dim; c++)
            for (i = 0; i < 4; i++) sum[i] += row[i][c] * ((double)n[c] - 127.5);
        for (i = 0; i < 4 && j + i < q->count; i++) out->page_mean_product[j + i] = sum[i] * scale;
    }
}

/* Metadata of one group of a tile: scale (absolute), lo as the sums over codes need it, and 1 where the page mean is to
   be added. */
typedef struct oscar__tile_scales {
    double scale[OSCAR__TILE], low[OSCAR__TILE], mean[OSCAR__TILE];
} oscar__tile_scales;

static void oscar__tile_scales_get(const oscar__page_side *s, const unsigned char *head, int tile, int g,
                                   oscar__tile_scales *out)
{
    int t;
    for (t = 0; t < OSCAR__TILE; t++) {
        int negative;
        float minimum, scale = oscar__page_scale(s, head, g, tile * OSCAR__TILE + t, &minimum, &negative);
        out->mean[t] = s->page_mean && !negative;
        out->scale[t] = (double)scale;
        out->low[t] = s->codec.fit == OSCAR_CLIP ? (double)minimum : -(double)oscar__centre(s->bits) * (double)scale;
    }
}

/* q.k of a tile whose first token is token `at` of the block. */
static OSCAR__NOINLINE void oscar__tile_scores(const oscar__page_side *s, const unsigned char *head, int tile, int at,
                                               const oscar__page_queries *p, oscar__queries *q)
{
    double square[OSCAR__TILE * OSCAR__TILE], dot[OSCAR__QUERIES][OSCAR__TILE];
    int groups = s->dim / s->codec.group, g, c, j, t;
    oscar__tile_scales meta;
    for (j = 0; j < q->count; j++)
        for (t = 0; t < OSCAR__TILE; t++) q->score[j][at + t] = p->mean_product[j];
    for (g = 0; g < groups; g++) {
        for (j = 0; j < q->count; j++) memset(dot[j], 0, sizeof dot[j]);
        for (c = g * s->codec.group; c < (g + 1) * s->codec.group; c += OSCAR__TILE) {
            oscar__page_square(s, head, tile, c, square);
            for (j = 0; j < q->count; j++)
                if (q->tokens[j]) oscar__add_square(p->rotated + j * s->dim + c, square, dot[j]);
        }
        oscar__tile_scales_get(s, head, tile, g, &meta);
        for (j = 0; j < q->count; j++) {
            double *out = q->score[j] + at, group_sum = p->group_sum[j * groups + g], mean = p->page_mean_product[j];
            oscar__add_scaled(meta.scale, meta.low, group_sum, dot[j], out);
            for (t = 0; t < OSCAR__TILE && g == 0; t++) out[t] = meta.mean[t] > 0 ? out[t] + mean : out[t];
        }
    }
}

/* acc += sum_t weight_t v_t of the same tile. */
static OSCAR__NOINLINE void oscar__tile_values(const oscar__page_side *s, const unsigned char *head, int tile, int at,
                                               const oscar__queries *q, oscar__partial *out)
{
    double square[OSCAR__TILE * OSCAR__TILE], scaled[OSCAR__QUERIES][OSCAR__TILE], base[OSCAR__QUERIES];
    int g, c, j, t;
    oscar__tile_scales meta;
    for (g = 0; g < s->dim / s->codec.group; g++) {
        oscar__tile_scales_get(s, head, tile, g, &meta);
        for (j = 0; j < q->count; j++) {
            const double *weight = q->score[j] + at;
            if (!q->tokens[j]) continue;
            base[j] = 0;
            for (t = 0; t < OSCAR__TILE; t++) scaled[j][t] = weight[t] * meta.scale[t];
            for (t = 0; t < OSCAR__TILE; t++) base[j] += weight[t] * meta.low[t];
        }
        for (c = g * s->codec.group; c < (g + 1) * s->codec.group; c += OSCAR__TILE) {
            oscar__page_square(s, head, tile, c, square);
            for (j = 0; j < q->count; j++)
                if (q->tokens[j]) oscar__add_square_sum(base[j], scaled[j], square, out->of[j].acc + c);
        }
    }
}

static const unsigned char *oscar__page_at(const oscar_layout *l, const oscar_page_list *list, int64_t i)
{
    if (list->pages) return (const unsigned char *)list->pages[i];
    return (const unsigned char *)list->pool + (size_t)list->ids[i] * l->bytes;
}

/* One block of a page, from token `first` on, at `position`. */
static void oscar__attend_page_block(const oscar_layout *l, const unsigned char *page, int first, int64_t position,
                                     const oscar__page_queries *p, oscar__queries *q, oscar__partial *out)
{
    oscar__page_side k = oscar__page_side_of(l, 1), v = oscar__page_side_of(l, 0);
    const unsigned char *head = page + (size_t)q->head * l->head_bytes;
    oscar__rows k_rows = oscar__rows_of_page(head + k.codes, k.dim, l->window_type);
    oscar__rows v_rows = oscar__rows_of_page(head + v.codes, v.dim, l->window_type);
    int tile, j;
    for (j = 0; j < q->count; j++) {
        int64_t start = oscar__window_start(q->layer, q->position[j]);
        q->tokens[j] = position + OSCAR__BLOCK <= start ? 0 : OSCAR__BLOCK;
    }
    if (k.bits == 16) oscar__rows_scores(&k_rows, first, q);
    else
        for (tile = 0; tile < OSCAR__BLOCK / OSCAR__TILE; tile++)
            oscar__tile_scores(&k, head, first / OSCAR__TILE + tile, tile * OSCAR__TILE, p, q);
    oscar__queries_softmax(q, position, out);
    if (v.bits == 16) oscar__rows_values(&v_rows, first, q, out);
    else
        for (tile = 0; tile < OSCAR__BLOCK / OSCAR__TILE; tile++)
            oscar__tile_values(&v, head, first / OSCAR__TILE + tile, tile * OSCAR__TILE, q, out);
}

/* -- vectors -- */

/* What pages share of queries, by fours: limbs of q' [four][k_dim / 16][4][2][16], their steps and sums
   [four][groups][4], and the sums as the products need them; q.m, and with it q'.a of the page at hand, by start. */
typedef struct oscar__vector_queries {
    signed char *limb;
    float step[OSCAR__VALUES / 8], low[OSCAR__VALUES / 8];
    float mean_product[OSCAR__QUERIES], all[OSCAR__QUERIES], start[OSCAR__QUERIES / 4][8];
} oscar__vector_queries;

static OSCAR__NOINLINE void oscar__vector_queries_begin(const oscar__attend_kernels *kernels, int limbs,
                                                        const oscar__queries *q, signed char *limb,
                                                        oscar__vector_queries *out)
{
    const oscar_layer *layer = q->layer;
    oscar_pair pair = oscar__pair_of(layer->k, q->head, layer->k_dim);
    int dim = layer->k_dim, groups = dim / layer->k_group, f, j, g, i;
    float rotated[OSCAR__VALUES], centre = (float)oscar__centre(layer->k_bits);
    ptrdiff_t row = (ptrdiff_t)((size_t)dim * sizeof(float));
    out->limb = limb;
    memset(limb, 0, (size_t)((q->count + 3) / 4 * 4 * dim) * 2);
    memset(out->step, 0, sizeof out->step);
    memset(out->low, 0, sizeof out->low);
    if (pair.kind == OSCAR_DENSE) memset(rotated, 0, (size_t)(q->count * dim) * sizeof(float));
    else memcpy(rotated, q->q, (size_t)(q->count * dim) * sizeof(float));
    for (f = 0; f < q->count && pair.kind == OSCAR_DENSE; f += 4)
        kernels->combine(OSCAR_F32, oscar__smaller(q->count - f, 4), dim, dim, q->q + f * dim, row,
                         oscar__pair_dual(&pair), row, 0, rotated + f * dim, row);
    for (j = 0; j < q->count; j++) {
        float *step = out->step + j / 4 * 4 * groups, *low = out->low + j / 4 * 4 * groups, *x = rotated + j * dim;
        double mean = 0, all = 0;
        if (pair.kind == OSCAR_HADAMARD) oscar__kernels_now()->fwht(dim, 1, x, x);
        kernels->limbs(limbs, dim, layer->k_group, j % 4, x, limb + j / 4 * 8 * dim, step, low);
        for (g = j % 4; g < 4 * groups; g += 4) {
            all += (double)low[g];
            if (layer->k_fit != OSCAR_CLIP) low[g] *= -centre;
        }
        for (i = 0; pair.mean && i < dim; i++) mean += (double)q->q[j * dim + i] * (double)pair.mean[i];
        out->mean_product[j] = (float)mean;
        out->all[j] = (float)all;
    }
}

/* start for a page, or for all where l has no page means. */
static void oscar__vector_queries_page(const oscar__attend_kernels *kernels, int limbs, const oscar_layout *l,
                                       const unsigned char *page, const oscar__queries *q, oscar__vector_queries *out)
{
    int f, j, dim = l->layer.k_dim, groups = dim / l->layer.k_group;
    const unsigned char *mean = NULL;
    float product[4] = { 0 }, scale = 0;
    if (l->layer.k_page_mean > 0) {
        mean = page + l->mean + (size_t)q->head * (size_t)dim;
        scale = oscar__metadata_get(OSCAR_F16, page + l->mean_scale + 2 * (size_t)q->head);
    }
    for (f = 0; f < q->count; f += 4) {
        if (l->layer.k_page_mean > 0)
            kernels->mean(limbs, dim, l->layer.k_group, mean, out->limb + 2 * f * dim, out->step + f * groups, product);
        for (j = 0; j < 4; j++) {
            int query = oscar__smaller(f + j, q->count - 1);
            float *start = out->start[f / 4] + j;
            start[4] = out->mean_product[query];
            start[0] = start[4] + scale * (product[j] - 127.5f * out->all[query]);
        }
    }
}

/* A side of the pages: where its codes and metadata are in a head's part (offsets; the pointers of `codes` are set for
   each block), or its rows where it has 16 bits. */
typedef struct oscar__vector_side {
    size_t at, tile_bytes, scale, minimum;
    oscar__codes codes;
    oscar__rows rows;
} oscar__vector_side;

static oscar__vector_side oscar__vector_side_of(const oscar_layout *l, int is_k)
{
    oscar__page_side s = oscar__page_side_of(l, is_k);
    oscar__vector_side out;
    memset(&out, 0, sizeof out);
    out.at = s.codes;
    out.tile_bytes = oscar__tile_at(&s, OSCAR__TILE) - s.codes;
    out.scale = s.scale;
    out.minimum = s.codec.fit == OSCAR_CLIP ? s.minimum : OSCAR_ABSENT;
    out.codes.centre = oscar__centre(s.bits);
    out.codes.bits = s.bits;
    out.codes.dim = s.dim;
    out.codes.group = s.codec.group;
    out.codes.tokens = s.tokens;
    out.rows = oscar__rows_of_page(NULL, s.dim, l->window_type);
    return out;
}

/* The block from token `first` on of the part of a head. */
static void oscar__vector_side_at(oscar__vector_side *s, const unsigned char *head, int first, ptrdiff_t ahead)
{
    s->rows.exact = head + s->at;
    s->rows.ahead = ahead;
    s->codes.codes = head + s->at + (size_t)(first / OSCAR__TILE) * s->tile_bytes;
    s->codes.scale = s->scale == OSCAR_ABSENT ? NULL : head + s->scale + 2 * (size_t)first;   /* 16 bits: no scales */
    s->codes.minimum = s->minimum == OSCAR_ABSENT ? NULL : head + s->minimum + 2 * (size_t)first;
    s->codes.ahead = ahead;
}

/* A block of a page list: of which page and part of a head, from which token on, at which position; where the same is
   in what comes next. */
typedef struct oscar__vector_place {
    const unsigned char *page, *head;
    ptrdiff_t ahead;
    int first;
    int64_t position;
} oscar__vector_place;

/* Block n of the pages that end before page `end`; the next head starts at page `start`. */
static oscar__vector_place oscar__vector_place_of(const oscar_layout *l, const oscar_page_list *list, int head,
                                                  int64_t start, int64_t end, int64_t n)
{
    int64_t blocks = l->page_tokens / OSCAR__BLOCK, i = n / blocks;
    size_t part = (size_t)head * l->head_bytes;
    oscar__vector_place out;
    const unsigned char *next;
    out.page = oscar__page_at(l, list, i);
    out.head = next = out.page + part;
    out.first = (int)(n - i * blocks) * OSCAR__BLOCK;
    out.position = list->position + n * OSCAR__BLOCK;
    if (i + 1 < end) {
        const unsigned char *page = oscar__page_at(l, list, i + 1), *mean = page + l->mean;
        int c, row = l->layer.k_page_mean > 0 && !out.first ? l->layer.k_dim : 0;
        for (c = 0; c < row; c += 64) OSCAR__PREFETCH(mean + head * row + c);
        if (row) OSCAR__PREFETCH(page + l->mean_scale + 2 * head);
        next = page + part;
    } else if (head + 1 < l->layer.kv_heads) next = oscar__page_at(l, list, start) + part + l->head_bytes;
    out.ahead = (ptrdiff_t)((intptr_t)next - (intptr_t)out.head);
    return out;
}

/* Products of the block at a place. All queries: which of them see it is not asked before softmax. */
static void oscar__vectors_score(const oscar_layout *l, const oscar__vector_place *place, const oscar__queries *q,
                                 int is_first, oscar__vector_side *k, oscar__vector_queries *p, oscar__vectors *v)
{
    int f, groups = k->codes.dim / k->codes.group;
    oscar__vector_side_at(k, place->head, place->first, place->ahead);
    if (k->codes.bits == 16) {
        oscar__vectors_score_rows(v, q, &k->rows, place->first, OSCAR__BLOCK);
        return;
    }
    if (is_first || (l->layer.k_page_mean > 0 && !place->first))
        oscar__vector_queries_page(v->kernels, v->limbs, l, place->page, q, p);
    for (f = 0; f < v->count; f += v->kernels->queries)
        v->kernels->score(oscar__smaller(v->count - f, v->kernels->queries), v->limbs, &k->codes,
                          p->limb + 2 * f * k->codes.dim, p->step + f * groups, p->low + f * groups, p->start[f / 4],
                          v->score[f]);
}

/* Weights of the block at which values are, and their limbs for the first group. */
static void oscar__vectors_weigh(const oscar__vector_side *values, oscar__vectors *v)
{
    int f;
    oscar__vectors_softmax(v);
    for (f = 0; f < v->count && values->codes.bits != 16; f += 4)
        if (v->kernels->queries > 4 || oscar__vectors_four(v, f))
            v->kernels->weigh(oscar__four_count(v, f), v->limbs, &values->codes, 0, v->score[f], v->limb[f / 4],
                              v->step + f, v->base + f);
}

static void oscar__vectors_blend(const oscar__vector_side *values, int first, oscar__vectors *v)
{
    int f;
    if (values->codes.bits == 16) oscar__vectors_blend_rows(v, &values->rows, first, OSCAR__BLOCK);
    for (f = 0; f < v->count && values->codes.bits != 16; f += v->kernels->queries) {
        int count = oscar__smaller(v->count - f, v->kernels->queries);
        if (oscar__vectors_any(v, f, count))
            v->kernels->blend(count, v->limbs, &values->codes, v->score[f], v->limb[f / 4], v->step + f, v->base + f,
                              v->acc + f * v->dim);
    }
}

/* oscar__attend_page_list. room: double [OSCAR__VALUES], for 2 bytes [queries, rounded up to fours][k_dim] and a vector
   that reads beyond. Products of the next block come between the weights of a block, where a number waits for the one
   before, and the sums of its values; they take the place of the weights where one group has made limbs of them. */
static void oscar__vectors_pages(const oscar__attend_kernels *kernels, const oscar_layout *l,
                                 const oscar_page_list *list, int64_t first, int64_t end, const oscar__queries *q,
                                 signed char *room, oscar__partial *out)
{
    oscar_pair pair = oscar__pair_of(l->layer.v, q->head, l->layer.v_dim);
    int64_t blocks = l->page_tokens / OSCAR__BLOCK, n = first * blocks;
    int64_t hidden = (oscar__window_start(&l->layer, q->position[0]) - list->position) / OSCAR__BLOCK;
    oscar__vector_side k = oscar__vector_side_of(l, 1), values = oscar__vector_side_of(l, 0);
    int early = l->layer.v_bits != 16 && l->layer.v_group == l->layer.v_dim;
    oscar__vector_place place, next;
    oscar__vector_queries p;
    oscar__vectors v;
    int codes = l->layer.k_bits != 16 || l->layer.v_bits != 16;
    oscar__vectors_begin(kernels, q, out, &v);
    room += (OSCAR__ALIGN - (uintptr_t)room % OSCAR__ALIGN) % OSCAR__ALIGN;
    if (l->layer.k_bits != 16) oscar__vector_queries_begin(kernels, v.limbs, q, room, &p);
    if (kernels->begin && codes) kernels->begin(v.count);
    if (hidden > n) n = hidden;
    place = oscar__vector_place_of(l, list, q->head, first, end, n);
    oscar__vectors_score(l, &place, q, 1, &k, &p, &v);
    for (; n < end * blocks; n++, place = next) {
        oscar__vectors_see(&v, q, place.position, OSCAR__BLOCK, 0);
        oscar__vector_side_at(&values, place.head, place.first, place.ahead);
        oscar__vectors_weigh(&values, &v);
        next = place;
        if (n + 1 < end * blocks) next = oscar__vector_place_of(l, list, q->head, first, end, n + 1);
        if (early && n + 1 < end * blocks) oscar__vectors_score(l, &next, q, 0, &k, &p, &v);
        oscar__vectors_blend(&values, place.first, &v);
        if (!early && n + 1 < end * blocks) oscar__vectors_score(l, &next, q, 0, &k, &p, &v);
    }
    if (kernels->end && codes) kernels->end();
    oscar__vectors_end(&v, l->layer.v_bits != 16 && !l->layer.v_folded ? &pair : NULL, out);
}

/* Pages first .. first + count - 1 of the list; o in the space of the windows. rotated: working space,
   [OSCAR__VALUES]. */
static void oscar__attend_page_list(const oscar_layout *l, const oscar_page_list *list, int64_t first, int64_t count,
                                    oscar__queries *q, double *rotated, oscar__partial *out)
{
    const oscar__attend_kernels *kernels = oscar__kernels_now()->attend;
    oscar_pair pair = oscar__pair_of(l->layer.v, q->head, l->layer.v_dim);
    int64_t start = oscar__window_start(&l->layer, q->position[0]), i;   /* of the query that sees most */
    int64_t end = first + count, hidden = (start - list->position) / l->page_tokens;
    oscar__page_queries state;
    int b, j;
    oscar__partial_begin(q, out);
    if (hidden > first) first = hidden;   /* pages before the sliding window */
    if (first >= end) return;
    if (kernels) {
        oscar__vectors_pages(kernels, l, list, first, end, q, (signed char *)rotated, out);
        return;
    }
    oscar__page_queries_begin(q, rotated, &state);
    for (i = first; i < end; i++) {
        const unsigned char *page = oscar__page_at(l, list, i);
        int64_t at = list->position + i * l->page_tokens;
        if (l->layer.k_page_mean > 0) oscar__page_mean_products(l, page, q, &state);
        for (b = 0; b < l->page_tokens; b += OSCAR__BLOCK)
            if (at + b + OSCAR__BLOCK > start) oscar__attend_page_block(l, page, b, at + b, &state, q, out);
    }
    oscar__partial_end(q, out);
    for (j = 0; j < q->count && l->layer.v_bits != 16 && !l->layer.v_folded; j++)
        oscar__output_back(&pair, out->of[j].acc, out->of[j].acc);
}

static int oscar__precision_valid(oscar_precision p) { return (int)p >= 0 && (int)p <= OSCAR_PRECISION_LOW; }

static oscar_result oscar__attend_check(const oscar_attend_desc *d, const float *o, const float *lse, int *heads)
{
    int kv_heads;
    if (!d || !oscar__layout_valid(d->layout) || !o || !lse || d->queries < 0 || d->position < 0
        || !oscar__type_valid(d->q.type) || !oscar__precision_valid(d->precision)
        || (d->queries && !d->q.data))
        return OSCAR_ERR_ARGUMENT;
    kv_heads = d->layout->layer.kv_heads;
    if (d->head_first < 0 || d->head_first > kv_heads || d->head_count < 0 || d->head_count > kv_heads - d->head_first)
        return OSCAR_ERR_ARGUMENT;
    *heads = d->head_count ? d->head_count : kv_heads - d->head_first;
    return OSCAR_OK;
}

/* Runs pages, or spans where pages is NULL, for every query and head of the desc. */
static oscar_result oscar__attend_all(const oscar_attend_desc *d, const oscar_page_list *pages,
                                      const oscar_row_span *spans, int span_count, float *o, float *lse)
{
    const oscar_layer *layer;
    oscar__queries q;
    oscar__partial out;
    double rotated[OSCAR__VALUES];
    int64_t first, all;
    int heads, h, j, c;
    oscar_result result = oscar__attend_check(d, o, lse, &heads);
    if (result) return result;
    layer = &d->layout->layer;
    all = (int64_t)d->queries * (layer->q_heads / layer->kv_heads);
    for (h = d->head_first; h < d->head_first + heads; h++)
        for (first = 0; first < all; first += q.count) {
            int count = oscar__queries_next(layer, all - first);
            oscar__queries_load(layer, d->precision, &d->q, 0, d->position, h, first, count, &q);
            if (pages) oscar__attend_page_list(d->layout, pages, 0, pages->count, &q, rotated, &out);
            else oscar__attend_spans(OSCAR_F32, spans, span_count, &q, &out);
            for (j = 0; j < count; j++) {
                oscar__query_place place = oscar__query_at(layer, h, first + j);
                size_t at = (size_t)place.token * (size_t)layer->q_heads + (size_t)place.head;
                float *row = o + at * (size_t)layer->v_dim;
                for (c = 0; c < layer->v_dim; c++) row[c] = (float)out.of[j].acc[c];
                lse[at] = (float)out.of[j].lse;
            }
        }
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_attend_pages(const oscar_attend_desc *desc, const oscar_page_list *pages,
                                          float *o, float *lse)
{
    if (!pages || pages->count < 0 || pages->position < 0
        || (pages->count && !pages->pages && (!pages->pool || !pages->ids)))
        return OSCAR_ERR_ARGUMENT;
    return oscar__attend_all(desc, pages, NULL, 0, o, lse);
}

OSCAR_API oscar_result oscar_attend_rows(const oscar_attend_desc *desc, const oscar_row_span *spans, int span_count,
                                         float *o, float *lse)
{
    int s;
    if (span_count < 0 || (span_count && !spans)) return OSCAR_ERR_ARGUMENT;
    for (s = 0; s < span_count; s++)
        if (spans[s].count < 0 || spans[s].position < 0 || !oscar__type_valid(spans[s].k.type)
            || !oscar__type_valid(spans[s].v.type) || (spans[s].count && (!spans[s].k.data || !spans[s].v.data)))
            return OSCAR_ERR_ARGUMENT;
    return oscar__attend_all(desc, NULL, spans, span_count, o, lse);
}

/* One row and head of a join: o [dim] from the parts, each at row `at`. Blocks of channels are summed before they are
   stored, so o may be one of the parts. */
static void oscar__join_row(int parts, const float *const *part_o, const float *const *part_lse, size_t at, int dim,
                            double top, double sum, float *o)
{
    int c, first, p;
    for (first = 0; first < dim; first += OSCAR__BLOCK) {
        int count = dim - first < OSCAR__BLOCK ? dim - first : OSCAR__BLOCK;
        double value[OSCAR__BLOCK] = { 0 };
        for (p = 0; p < parts; p++) {
            double weight = exp((double)part_lse[p][at] - top) / sum;
            const float *from = part_o[p] + at * (size_t)dim + first;
            for (c = 0; c < count; c++) value[c] += weight * (double)from[c];
        }
        for (c = 0; c < count; c++) o[at * (size_t)dim + (size_t)(first + c)] = (float)value[c];
    }
}

OSCAR_API void oscar_attend_join(int parts, const float *const *part_o, const float *const *part_lse, int rows,
                                 int heads, int dim, const float *sink_logits, float *o, float *lse)
{
    size_t at, count = (size_t)rows * (size_t)heads;
    int p;
    OSCAR_ASSERT(parts >= 0 && rows >= 0 && heads >= 0 && dim >= 0);
    for (at = 0; at < count; at++) {
        double sink = sink_logits ? (double)sink_logits[at % (size_t)heads] : -HUGE_VAL, top = sink, sum;
        for (p = 0; p < parts; p++) if ((double)part_lse[p][at] > top) top = (double)part_lse[p][at];
        if (!(top > -HUGE_VAL)) top = 0;   /* no key anywhere: every weight below is 0 */
        sum = exp(sink - top);
        for (p = 0; p < parts; p++) sum += exp((double)part_lse[p][at] - top);
        oscar__join_row(parts, part_o, part_lse, at, dim, top, sum <= 0 ? 1 : sum, o);
        if (lse) lse[at] = (float)(sum <= 0 ? -HUGE_VAL : top + log(sum));
    }
}

/* == 3.14 PAGER == */

/* One sequence of n tokens, h of them in pages; only lengths and page ids are kept here.

       position  0            S0               S0 + h                n           n + k
                 | sink       | history        | recent              | step      |
                 | exact      | pages, P each  | exact               | reserved  |
       table                  | h / P ids      | ids that the step reserved

   History when append or accept reach n tokens: h = max(h, P floor(max(0, n - S0 - W) / P)). Every operation first
   plans: it checks, with a log, and says what would be; then it applies the plan, which cannot fail. oscar_seq_can
   plans without a log. */

typedef struct oscar__seq {
    int64_t length, history;            /* committed n and h */
    int64_t step_rows, step_history;    /* k, 0 without a step; h after an append step, else history */
    int64_t page_count;                 /* ids in pages, those of the step included */
    uint32_t *pages;
    uint32_t generation;                /* of the open handle, or of the last one */
    uint32_t next;                      /* the next free slot */
    int open;
    oscar_step step;
} oscar__seq;

/* What oscar_pager_check finds in the tables for one page. index: its place, the same in all tables that share it. */
typedef struct oscar__tally { uint32_t references, index; } oscar__tally;

struct oscar_pager {
    oscar_pager_desc desc;    /* resolved: 0 is none */
    size_t bytes;             /* of oscar_pager_create's allocation */
    int64_t table_pages;      /* room in the table of one sequence */
    int64_t free_count;
    uint32_t free_slot;       /* head of the list through oscar__seq.next */
    oscar__seq *seqs;         /* [max_sequences] */
    uint32_t *tables;         /* [max_sequences][table_pages] */
    uint32_t *references;     /* [max_pages] */
    uint32_t *free_pages;     /* [max_pages], a stack of free_count ids: what was released last is handed out first */
    oscar__tally *tally;      /* [max_pages], for oscar_pager_check */
};

#define OSCAR__NO_SLOT 0xffffffffu

/* Tokens in whole pages: P floor(max(0, tokens) / P). */
static int64_t oscar__whole_pages(const oscar_pager_desc *desc, int64_t tokens)
{
    return tokens > 0 ? tokens - tokens % desc->page_tokens : 0;
}

/* History of n tokens that were only appended. */
static int64_t oscar__history_due(const oscar_pager_desc *desc, int64_t n)
{
    return oscar__whole_pages(desc, n - desc->sink - desc->recent);
}

/* History of s once it has n tokens, without a cut. */
static int64_t oscar__history_at(const oscar_pager_desc *desc, const oscar__seq *s, int64_t n)
{
    int64_t due = oscar__history_due(desc, n);
    return due > s->history ? due : s->history;
}

/* Fills in one field of a desc where 0 is the default and -1 none. */
static oscar_result oscar__resolve_count(const oscar_hooks *hooks, const char *name, int standard, int *value)
{
    if (*value < -1)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "%s is %i: give a count, 0 for %i, or -1 for none", name, *value,
                           standard);
    *value = *value == 0 ? standard : *value == -1 ? 0 : *value;
    return OSCAR_OK;
}

/* in with its defaults filled in and its ranges checked. In *out 0 is none: it is not a desc to resolve again. */
static oscar_result oscar__pager_resolve(const oscar_pager_desc *in, oscar_pager_desc *out)
{
    oscar_pager_desc d = *in;
    const oscar_hooks *hooks = &in->hooks;
    oscar_result result;
    if ((result = oscar__hooks_check(hooks)) != OSCAR_OK) return result;
    if (d.max_sequences < 1)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "max_sequences is %i: give at least 1", d.max_sequences);
    if (d.max_pages < 0 || d.max_pages > INT64_C(0xfffffffe))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "max_pages is %I: give 0 to 4294967294", d.max_pages);
    if (d.max_tokens < 0)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "max_tokens is %I: give the tokens of the longest sequence, or 0 "
                           "for as many as all pages hold", d.max_tokens);
    if (d.page_tokens < 0 || d.page_tokens % 64)
        return OSCAR__FAIL(hooks, OSCAR_ERR_SHAPE, "page_tokens is %i: give a positive multiple of 64, or 0 for 64",
                           d.page_tokens);
    if (d.page_tokens == 0) d.page_tokens = 64;
    if ((result = oscar__resolve_count(hooks, "sink", 64, &d.sink)) != OSCAR_OK) return result;
    if ((result = oscar__resolve_count(hooks, "recent", 256, &d.recent)) != OSCAR_OK) return result;
    if ((result = oscar__resolve_count(hooks, "max_draft", 16, &d.max_draft)) != OSCAR_OK) return result;
    /* the longest that all pages allow: one more token makes one more page due. Below 2^63 for every int and page. */
    if (d.max_tokens == 0)
        d.max_tokens = d.max_pages * d.page_tokens + d.sink + d.recent + d.page_tokens - 1;
    *out = d;
    return OSCAR_OK;
}

/* Pages that one sequence can hold. History never exceeds what was due at some length up to max_tokens. */
static int64_t oscar__pager_table(const oscar_pager_desc *resolved)
{
    int64_t pages = oscar__history_due(resolved, resolved->max_tokens) / resolved->page_tokens;
    return pages < resolved->max_pages ? pages : resolved->max_pages;
}

/* Counts where carver has no memory (*out is then NULL), else places the pager and its arrays. */
static void oscar__pager_carve(oscar__carver *carver, const oscar_pager_desc *resolved, oscar_pager **out)
{
    size_t pages = (size_t)resolved->max_pages, sequences = (size_t)resolved->max_sequences;
    size_t ids = oscar__mul(sequences, (size_t)oscar__pager_table(resolved));
    oscar_pager *pager = (oscar_pager *)oscar__carve(carver, 1, sizeof(oscar_pager));
    oscar__seq *seqs = (oscar__seq *)oscar__carve(carver, sequences, sizeof(oscar__seq));
    uint32_t *tables = (uint32_t *)oscar__carve(carver, ids, sizeof(uint32_t));
    uint32_t *references = (uint32_t *)oscar__carve(carver, pages, sizeof(uint32_t));
    uint32_t *free_pages = (uint32_t *)oscar__carve(carver, pages, sizeof(uint32_t));
    oscar__tally *tally = (oscar__tally *)oscar__carve(carver, pages, sizeof(oscar__tally));
    if (pager) {
        pager->seqs = seqs;
        pager->tables = tables;
        pager->references = references;
        pager->free_pages = free_pages;
        pager->tally = tally;
    }
    *out = pager;
}

/* A carved pager without sequences and with all pages free. */
static void oscar__pager_init(oscar_pager *pager, const oscar_pager_desc *resolved)
{
    size_t i, pages = (size_t)resolved->max_pages, sequences = (size_t)resolved->max_sequences;
    pager->desc = *resolved;
    pager->bytes = 0;
    pager->table_pages = oscar__pager_table(resolved);
    pager->free_count = resolved->max_pages;
    pager->free_slot = 0;
    memset(pager->seqs, 0, sequences * sizeof(oscar__seq));
    for (i = 0; i < sequences; i++) {
        pager->seqs[i].pages = pager->tables + i * (size_t)pager->table_pages;
        pager->seqs[i].next = i + 1 < sequences ? (uint32_t)(i + 1) : OSCAR__NO_SLOT;
    }
    for (i = 0; i < pages; i++) {
        pager->references[i] = 0;
        pager->free_pages[i] = (uint32_t)(pages - 1 - i);
    }
}

OSCAR_API oscar_result oscar_pager_create(const oscar_pager_desc *desc, oscar_pager **out)
{
    oscar_pager_desc resolved;
    oscar__carver carver = { NULL, 0 };
    oscar_pager *pager;
    oscar_result result;
    size_t bytes;
    if (!desc) return OSCAR_ERR_ARGUMENT;
    if (!out) return OSCAR__FAIL(&desc->hooks, OSCAR_ERR_ARGUMENT, "oscar_pager_create has no place for the pager");
    if ((result = oscar__pager_resolve(desc, &resolved)) != OSCAR_OK) return result;
    oscar__pager_carve(&carver, &resolved, &pager);
    bytes = carver.size;
    carver.base = (unsigned char *)oscar__alloc(&resolved.hooks, bytes);
    if (!carver.base)
        return OSCAR__FAIL(&resolved.hooks, OSCAR_ERR_MEMORY, "no memory for a pager of %z bytes: lower max_sequences, "
                           "max_pages or max_tokens", bytes);
    carver.size = 0;
    oscar__pager_carve(&carver, &resolved, &pager);
    oscar__pager_init(pager, &resolved);
    pager->bytes = bytes;
    *out = pager;
    return OSCAR_OK;
}

OSCAR_API void oscar_pager_destroy(oscar_pager *pager)
{
    if (pager) {
        oscar_hooks hooks = pager->desc.hooks;
        oscar__carver_free(&hooks, pager, pager->bytes);
    }
}

OSCAR_API int64_t oscar_pager_free_pages(const oscar_pager *pager) { return pager ? pager->free_count : 0; }

/* A handle has the slot in its low and the generation in its high 32 bits. Generations are 1 to 2^32 - 1, so that no
   handle is 0; a slot uses one again after 2^32 - 1 openings. */
static int oscar__seq_slot(oscar_seq seq) { return (int)(seq & 0x7fffffffu); }

/* The slot of an open sequence, *out NULL where seq is none. hooks NULL: no log. */
static oscar_result oscar__seq_find(const oscar_pager *pager, const oscar_hooks *hooks, oscar_seq seq,
                                    oscar__seq **out)
{
    uint32_t slot = (uint32_t)seq;
    *out = NULL;
    if (!pager) return OSCAR_ERR_ARGUMENT;
    if (slot >= (uint32_t)pager->desc.max_sequences || !pager->seqs[slot].open
        || pager->seqs[slot].generation != (uint32_t)(seq >> 32))
        return OSCAR__FAIL(hooks, OSCAR_ERR_HANDLE, "the sequence of slot %I, generation %I is not open: it was closed "
                           "or never opened", (int64_t)slot, (int64_t)(seq >> 32));
    *out = &pager->seqs[slot];
    return OSCAR_OK;
}

static int oscar__slot_of(const oscar_pager *pager, const oscar__seq *s) { return (int)(s - pager->seqs); }

/* ERR_STATE while a step is open or drafts wait. */
static oscar_result oscar__seq_idle(const oscar_pager *pager, const oscar_hooks *hooks, const oscar__seq *s)
{
    if (s->step == OSCAR_STEP_NONE) return OSCAR_OK;
    if (s->step == OSCAR_STEP_DRAFTED)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "sequence of slot %i has %I drafts waiting: accept or abort them "
                           "first", oscar__slot_of(pager, s), s->step_rows);
    return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "sequence of slot %i has an open step of %I rows: append them in every "
                       "layer, or abort it first", oscar__slot_of(pager, s), s->step_rows);
}

/* Moves that only reach n and h. */
static void oscar__moves_to(oscar_moves *moves, int64_t length, int64_t history)
{
    memset(moves, 0, sizeof *moves);
    moves->length = length;
    moves->history = history;
}

static void oscar__moves_demote(const oscar_pager *pager, int64_t from, int64_t to, oscar_moves *moves)
{
    if (to > from) {
        moves->demote_first = from / pager->desc.page_tokens;
        moves->demote_count = (to - from) / pager->desc.page_tokens;
    }
}

/* The tokens behind moves->history that are still in the first page after it go back to recent. */
static void oscar__moves_decode(const oscar_pager *pager, const oscar__seq *s, oscar_moves *moves)
{
    int64_t tokens = moves->length - pager->desc.sink - moves->history;
    if (tokens > 0) {
        moves->decode_page = s->pages[moves->history / pager->desc.page_tokens];
        moves->decode_tokens = (int)tokens;
        moves->decode_position = pager->desc.sink + moves->history;
    }
}

/* Takes `count` free pages for the end of the table. There is room: h / P fits for every length up to max_tokens, and
   no table holds more than max_pages different pages. */
static void oscar__pages_take(oscar_pager *pager, oscar__seq *s, int64_t count)
{
    OSCAR_ASSERT(count <= pager->free_count && s->page_count + count <= pager->table_pages);
    for (; count > 0; count--) {
        uint32_t id = pager->free_pages[--pager->free_count];
        pager->references[id] = 1;
        s->pages[s->page_count++] = id;
    }
}

/* Drops the references of s to all but the first `keep` pages. */
static void oscar__pages_keep(oscar_pager *pager, oscar__seq *s, int64_t keep)
{
    while (s->page_count > keep) {
        uint32_t id = s->pages[--s->page_count];
        if (--pager->references[id] == 0) pager->free_pages[pager->free_count++] = id;
    }
}

/* s is at length and history of moves, without a step; pages beyond go back. */
static void oscar__seq_settle(oscar_pager *pager, oscar__seq *s, const oscar_moves *moves)
{
    s->length = moves->length;
    s->history = s->step_history = moves->history;
    s->step = OSCAR_STEP_NONE;
    s->step_rows = 0;
    oscar__pages_keep(pager, s, moves->history / pager->desc.page_tokens);
}

static oscar_result oscar__plan_open(const oscar_pager *pager, const oscar_hooks *hooks)
{
    if (pager->free_slot == OSCAR__NO_SLOT)
        return OSCAR__FAIL(hooks, OSCAR_ERR_FULL, "all %i sequences are open: close one, or raise max_sequences",
                           pager->desc.max_sequences);
    return OSCAR_OK;
}

/* Takes the free slot that oscar__plan_open found. */
static oscar__seq *oscar__seq_start(oscar_pager *pager, oscar_seq *out)
{
    uint32_t slot = pager->free_slot;
    oscar__seq *s = &pager->seqs[slot];
    pager->free_slot = s->next;
    s->length = s->history = s->step_rows = s->step_history = s->page_count = 0;
    s->step = OSCAR_STEP_NONE;
    s->open = 1;
    if (++s->generation == 0) s->generation = 1;
    *out = (oscar_seq)s->generation << 32 | slot;
    return s;
}

OSCAR_API oscar_result oscar_seq_open(oscar_pager *pager, oscar_seq *out)
{
    oscar_result result;
    if (!pager) return OSCAR_ERR_ARGUMENT;
    if (!out) return OSCAR__FAIL(&pager->desc.hooks, OSCAR_ERR_ARGUMENT, "oscar_seq_open has no place for the handle");
    if ((result = oscar__plan_open(pager, &pager->desc.hooks)) != OSCAR_OK) return result;
    oscar__seq_start(pager, out);
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_seq_close(oscar_pager *pager, oscar_seq seq)
{
    oscar__seq *s;
    oscar_result result = oscar__seq_find(pager, pager ? &pager->desc.hooks : NULL, seq, &s);
    if (result != OSCAR_OK) return result;
    oscar__pages_keep(pager, s, 0);
    s->open = 0;
    s->next = pager->free_slot;
    pager->free_slot = (uint32_t)oscar__seq_slot(seq);
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_seq_get(const oscar_pager *pager, oscar_seq seq, oscar_seq_state *out)
{
    oscar__seq *s;
    oscar_result result = oscar__seq_find(pager, pager ? &pager->desc.hooks : NULL, seq, &s);
    if (result != OSCAR_OK) return result;
    if (!out) return OSCAR__FAIL(&pager->desc.hooks, OSCAR_ERR_ARGUMENT, "oscar_seq_get has no place for the state");
    out->length = s->length;
    out->history = s->history;
    out->sink = s->length < pager->desc.sink ? s->length : pager->desc.sink;
    out->recent = s->length - out->sink - s->history;
    out->step = s->step;
    out->step_rows = s->step_rows;
    out->step_history = s->step_history;
    out->pages = s->pages;
    out->page_count = s->page_count;
    return OSCAR_OK;
}

/* Cut of s, or of a copy of s, to length. */
static oscar_result oscar__plan_cut(const oscar_pager *pager, const oscar_hooks *hooks, const oscar__seq *s,
                                    int64_t length, oscar_moves *moves)
{
    const oscar_pager_desc *d = &pager->desc;
    oscar_result result = oscar__seq_idle(pager, hooks, s);
    oscar__moves_to(moves, s->length, s->history);
    if (result != OSCAR_OK) return result;
    if (length < 0 || length > s->length)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "length %I asked for, but the sequence of slot %i has %I tokens: "
                           "give 0 to that", length, oscar__slot_of(pager, s), s->length);
    if (length >= d->sink + s->history) {
        oscar__moves_to(moves, length, s->history);
    } else {
        oscar__moves_to(moves, length, oscar__whole_pages(d, length - d->sink));
        oscar__moves_decode(pager, s, moves);
    }
    return OSCAR_OK;
}

static oscar_result oscar__plan_fork(const oscar_pager *pager, const oscar_hooks *hooks, const oscar__seq *s,
                                     int64_t length, oscar_moves *moves)
{
    oscar_result result = oscar__plan_cut(pager, hooks, s, length, moves);
    return result != OSCAR_OK ? result : oscar__plan_open(pager, hooks);
}

OSCAR_API oscar_result oscar_seq_fork(oscar_pager *pager, oscar_seq seq, int64_t length, oscar_seq *out,
                                      oscar_moves *moves)
{
    oscar__seq *s, *child;
    oscar_moves plan;
    oscar_result result = oscar__seq_find(pager, pager ? &pager->desc.hooks : NULL, seq, &s);
    if (result != OSCAR_OK) return result;
    if (!out) return OSCAR__FAIL(&pager->desc.hooks, OSCAR_ERR_ARGUMENT, "oscar_seq_fork has no place for the handle");
    if ((result = oscar__plan_fork(pager, &pager->desc.hooks, s, length, &plan)) != OSCAR_OK) return result;
    child = oscar__seq_start(pager, out);
    for (; child->page_count < plan.history / pager->desc.page_tokens; child->page_count++) {
        uint32_t id = s->pages[child->page_count];
        pager->references[id]++;
        child->pages[child->page_count] = id;
    }
    oscar__seq_settle(pager, child, &plan);
    if (moves) *moves = plan;
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_seq_cut(oscar_pager *pager, oscar_seq seq, int64_t length, oscar_moves *moves)
{
    oscar__seq *s;
    oscar_moves plan;
    oscar_result result = oscar__seq_find(pager, pager ? &pager->desc.hooks : NULL, seq, &s);
    if (result != OSCAR_OK) return result;
    if ((result = oscar__plan_cut(pager, &pager->desc.hooks, s, length, &plan)) != OSCAR_OK) return result;
    oscar__seq_settle(pager, s, &plan);
    if (moves) *moves = plan;
    return OSCAR_OK;
}

/* history: h once all rows are committed, also for drafts; pages: how many that takes from the free ones. Where both
   limits are exceeded, max_tokens is named only if it is what keeps a sequence from taking all pages. */
static oscar_result oscar__plan_reserve(const oscar_pager *pager, const oscar_hooks *hooks, const oscar__seq *s,
                                        int64_t rows, int draft, int64_t *history, int64_t *pages)
{
    const oscar_pager_desc *d = &pager->desc;
    int too_long;
    oscar_result result = oscar__seq_idle(pager, hooks, s);
    *history = s->history;
    *pages = 0;
    if (result != OSCAR_OK) return result;
    if (rows < 1)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "%I rows asked for: a step has at least 1", rows);
    if (draft && rows > d->max_draft)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "%I drafts asked for: give at most %i, or raise max_draft", rows,
                           d->max_draft);
    too_long = rows > d->max_tokens - s->length;
    *history = oscar__history_at(d, s, rows > INT64_MAX - s->length ? INT64_MAX : s->length + rows);
    *pages = *history / d->page_tokens - s->page_count;
    if (*pages > pager->free_count && (!too_long || pager->table_pages == d->max_pages))
        return OSCAR__FAIL(hooks, OSCAR_ERR_FULL, "out of pages: %I wanted for %I rows, %I of %I free: close or cut a "
                           "sequence, or raise max_pages", *pages, rows, pager->free_count, d->max_pages);
    if (too_long)
        return OSCAR__FAIL(hooks, OSCAR_ERR_FULL, "%I rows asked for, but the sequence of slot %i has %I of at most %I "
                           "tokens: cut it, or raise max_tokens", rows, oscar__slot_of(pager, s), s->length,
                           d->max_tokens);
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_seq_reserve(oscar_pager *pager, oscar_seq seq, int64_t rows, int draft,
                                         oscar_moves *moves)
{
    oscar__seq *s;
    int64_t history, pages;
    oscar_result result = oscar__seq_find(pager, pager ? &pager->desc.hooks : NULL, seq, &s);
    if (result != OSCAR_OK) return result;
    result = oscar__plan_reserve(pager, &pager->desc.hooks, s, rows, draft, &history, &pages);
    if (result != OSCAR_OK) return result;
    oscar__pages_take(pager, s, pages);
    s->step = draft ? OSCAR_STEP_DRAFT : OSCAR_STEP_APPEND;
    s->step_rows = rows;
    s->step_history = draft ? s->history : history;
    if (moves) {
        oscar__moves_to(moves, draft ? s->length : s->length + rows, s->step_history);
        oscar__moves_demote(pager, s->history, s->step_history, moves);
    }
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_seq_commit(oscar_pager *pager, oscar_seq seq)
{
    oscar__seq *s;
    oscar_moves plan;
    oscar_result result = oscar__seq_find(pager, pager ? &pager->desc.hooks : NULL, seq, &s);
    if (result != OSCAR_OK) return result;
    if (s->step == OSCAR_STEP_DRAFT) {
        s->step = OSCAR_STEP_DRAFTED;
        return OSCAR_OK;
    }
    if (s->step != OSCAR_STEP_APPEND)
        return OSCAR__FAIL(&pager->desc.hooks, OSCAR_ERR_STATE, "sequence of slot %i has no step to commit: reserve "
                           "first", oscar__slot_of(pager, s));
    oscar__moves_to(&plan, s->length + s->step_rows, s->step_history);
    oscar__seq_settle(pager, s, &plan);
    return OSCAR_OK;
}

static oscar_result oscar__plan_accept(const oscar_pager *pager, const oscar_hooks *hooks, const oscar__seq *s,
                                       int64_t rows, oscar_moves *moves)
{
    oscar__moves_to(moves, s->length, s->history);
    if (s->step != OSCAR_STEP_DRAFTED)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "sequence of slot %i has no drafts that every layer has appended: "
                           "nothing to accept", oscar__slot_of(pager, s));
    if (rows < 0 || rows > s->step_rows)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "%I drafts to accept: the sequence of slot %i has %I", rows,
                           oscar__slot_of(pager, s), s->step_rows);
    oscar__moves_to(moves, s->length + rows, oscar__history_at(&pager->desc, s, s->length + rows));
    oscar__moves_demote(pager, s->history, moves->history, moves);
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_seq_accept(oscar_pager *pager, oscar_seq seq, int64_t rows, oscar_moves *moves)
{
    oscar__seq *s;
    oscar_moves plan;
    oscar_result result = oscar__seq_find(pager, pager ? &pager->desc.hooks : NULL, seq, &s);
    if (result != OSCAR_OK) return result;
    if ((result = oscar__plan_accept(pager, &pager->desc.hooks, s, rows, &plan)) != OSCAR_OK) return result;
    oscar__seq_settle(pager, s, &plan);
    if (moves) *moves = plan;
    return OSCAR_OK;
}

/* After a started append step some layers have history step_history, the others history: all go to the largest h that
   n tokens allow, min(step_history, P floor(max(0, n - S0) / P)), which is not below history. */
OSCAR_API oscar_result oscar_seq_abort(oscar_pager *pager, oscar_seq seq, int started, oscar_moves *moves)
{
    oscar__seq *s;
    oscar_moves plan;
    oscar_result result = oscar__seq_find(pager, pager ? &pager->desc.hooks : NULL, seq, &s);
    if (result != OSCAR_OK) return result;
    if (s->step == OSCAR_STEP_NONE)
        return OSCAR__FAIL(&pager->desc.hooks, OSCAR_ERR_STATE, "sequence of slot %i has no step to abort",
                           oscar__slot_of(pager, s));
    oscar__moves_to(&plan, s->length, s->history);
    if (started && s->step_history > s->history) {
        int64_t whole = oscar__whole_pages(&pager->desc, s->length - pager->desc.sink);
        plan.history = whole < s->step_history ? whole : s->step_history;
        oscar__moves_demote(pager, s->history, plan.history, &plan);
        if (s->step_history > plan.history) oscar__moves_decode(pager, s, &plan);
    }
    oscar__seq_settle(pager, s, &plan);
    if (moves) *moves = plan;
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_seq_can(const oscar_pager *pager, oscar_seq seq, oscar_op op, int64_t arg)
{
    oscar__seq *s;
    oscar_moves moves;
    int64_t history, pages;
    oscar_result result;
    if (pager && op == OSCAR_CAN_SHIFT) return OSCAR_ERR_UNSUPPORTED;
    if ((result = oscar__seq_find(pager, NULL, seq, &s)) != OSCAR_OK) return result;
    switch (op) {
    case OSCAR_CAN_RESERVE: return oscar__plan_reserve(pager, NULL, s, arg, 0, &history, &pages);
    case OSCAR_CAN_DRAFT: return oscar__plan_reserve(pager, NULL, s, arg, 1, &history, &pages);
    case OSCAR_CAN_ACCEPT: return oscar__plan_accept(pager, NULL, s, arg, &moves);
    case OSCAR_CAN_CUT: return oscar__plan_cut(pager, NULL, s, arg, &moves);
    case OSCAR_CAN_FORK: return oscar__plan_fork(pager, NULL, s, arg, &moves);
    case OSCAR_CAN_SAVE: return oscar__seq_idle(pager, NULL, s);
    case OSCAR_CAN_SHIFT: break;
    }
    return OSCAR_ERR_ARGUMENT;
}

#define OSCAR__BROKEN(pager, ...) OSCAR__FAIL(&(pager)->desc.hooks, OSCAR_ERR_STATE, __VA_ARGS__)

/* Every slot is open or once in the list of free slots. */
static oscar_result oscar__check_slots(const oscar_pager *pager)
{
    int slots = pager->desc.max_sequences, free_slots = 0, open = 0, i;
    uint32_t slot = pager->free_slot;
    for (i = 0; i < slots; i++) open += pager->seqs[i].open != 0;
    for (; slot != OSCAR__NO_SLOT; slot = pager->seqs[slot].next) {
        if (slot >= (uint32_t)slots || pager->seqs[slot].open)
            return OSCAR__BROKEN(pager, "the list of free slots holds slot %I, which is open or none", (int64_t)slot);
        if (free_slots == slots) return OSCAR__BROKEN(pager, "the list of free slots has a circle");
        free_slots++;
    }
    if (free_slots != slots - open)
        return OSCAR__BROKEN(pager, "%i slots are open and %i free, of %i", open, free_slots, slots);
    return OSCAR_OK;
}

/* Lengths, step and table size of an open sequence. */
static oscar_result oscar__check_seq(const oscar_pager *pager, const oscar__seq *s)
{
    const oscar_pager_desc *d = &pager->desc;
    int slot = oscar__slot_of(pager, s), drafts = s->step == OSCAR_STEP_DRAFT || s->step == OSCAR_STEP_DRAFTED;
    int64_t reached;
    if (s->generation == 0) return OSCAR__BROKEN(pager, "slot %i: open with generation 0", slot);
    if (s->length < 0 || s->length > d->max_tokens)
        return OSCAR__BROKEN(pager, "slot %i: length %I is not in 0 to %I", slot, s->length, d->max_tokens);
    if (s->history < 0 || s->history % d->page_tokens)
        return OSCAR__BROKEN(pager, "slot %i: history %I is no multiple of %i", slot, s->history, d->page_tokens);
    if (s->history > 0 && s->history > s->length - d->sink)
        return OSCAR__BROKEN(pager, "slot %i: history %I is too long for %I tokens", slot, s->history, s->length);
    if (s->history < oscar__history_due(d, s->length))
        return OSCAR__BROKEN(pager, "slot %i: recent holds %I tokens, at most %I are due", slot,
                             s->length - d->sink - s->history, (int64_t)d->recent + d->page_tokens - 1);
    if ((int)s->step < (int)OSCAR_STEP_NONE || (int)s->step > (int)OSCAR_STEP_DRAFTED)
        return OSCAR__BROKEN(pager, "slot %i: step %i is none of the four", slot, (int)s->step);
    if ((s->step == OSCAR_STEP_NONE) != (s->step_rows == 0) || s->step_rows < 0
        || s->step_rows > d->max_tokens - s->length || (drafts && s->step_rows > d->max_draft))
        return OSCAR__BROKEN(pager, "slot %i: %I rows do not fit step %i", slot, s->step_rows, (int)s->step);
    reached = oscar__history_at(d, s, s->length + s->step_rows);
    if (s->step_history != (s->step == OSCAR_STEP_APPEND ? reached : s->history))
        return OSCAR__BROKEN(pager, "slot %i: history %I after step %i of %I rows is wrong", slot, s->step_history,
                             (int)s->step, s->step_rows);
    if (s->page_count > pager->table_pages)
        return OSCAR__BROKEN(pager, "slot %i: %I pages do not fit its table of %I", slot, s->page_count,
                             pager->table_pages);
    if (s->page_count != reached / d->page_tokens)
        return OSCAR__BROKEN(pager, "slot %i: the table holds %I pages, %I are due", slot, s->page_count,
                             reached / d->page_tokens);
    return OSCAR_OK;
}

/* Counts the references of a checked sequence. */
static oscar_result oscar__check_table(const oscar_pager *pager, const oscar__seq *s)
{
    int64_t i;
    for (i = 0; i < s->page_count; i++) {
        uint32_t id = s->pages[i];
        oscar__tally *tally;
        if ((int64_t)id >= pager->desc.max_pages)
            return OSCAR__BROKEN(pager, "slot %i: the table holds page %I of %I", oscar__slot_of(pager, s), (int64_t)id,
                                 pager->desc.max_pages);
        tally = &pager->tally[id];
        if (tally->references && tally->index != (uint32_t)i)
            return OSCAR__BROKEN(pager, "page %I stands at place %I of one table and %I of another", (int64_t)id,
                                 (int64_t)tally->index, i);
        tally->references++;
        tally->index = (uint32_t)i;
    }
    return OSCAR_OK;
}

/* Every page has the references that the tables hold, or is once in the free list. */
static oscar_result oscar__check_pages(const oscar_pager *pager)
{
    int64_t i, pages = pager->desc.max_pages;
    for (i = 0; i < pages; i++)
        if (pager->references[i] != pager->tally[i].references)
            return OSCAR__BROKEN(pager, "page %I counts %I references, the tables hold %I", i,
                                 (int64_t)pager->references[i], (int64_t)pager->tally[i].references);
    if (pager->free_count < 0 || pager->free_count > pages)
        return OSCAR__BROKEN(pager, "%I pages are free, of %I", pager->free_count, pages);
    for (i = 0; i < pager->free_count; i++) {
        uint32_t id = pager->free_pages[i];
        if ((int64_t)id >= pages || pager->tally[id].references)
            return OSCAR__BROKEN(pager, "the free list holds page %I, which is in use, twice in the list, or none",
                                 (int64_t)id);
        pager->tally[id].references = 1;
    }
    for (i = 0; i < pages; i++)
        if (!pager->tally[i].references) return OSCAR__BROKEN(pager, "page %I is neither in use nor free", i);
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_pager_check(oscar_pager *pager)
{
    oscar_result result;
    int i;
    if (!pager) return OSCAR_ERR_ARGUMENT;
    if ((result = oscar__check_slots(pager)) != OSCAR_OK) return result;
    memset(pager->tally, 0, (size_t)pager->desc.max_pages * sizeof(oscar__tally));
    for (i = 0; i < pager->desc.max_sequences; i++) {
        const oscar__seq *s = &pager->seqs[i];
        if (!s->open) continue;
        if ((result = oscar__check_seq(pager, s)) != OSCAR_OK) return result;
        if ((result = oscar__check_table(pager, s)) != OSCAR_OK) return result;
    }
    return oscar__check_pages(pager);
}

/* == 3.15 CACHE == */

/* One allocation: pager, layers, pairs, pools, windows. The windows of a sequence in a layer, in the window type:

     K [S0 + C][Hkv][Dk]   V [S0 + C][Hkv][Dv]      places 0 .. S0 - 1: the sink, the token at position p in place p
                                                    places S0 ..: the ring, position p in place S0 + (p - S0) mod C
   C = W + P - 1 + max(1, max_draft), so that what recent may hold, and drafts, never meet. */

typedef struct oscar__store_layer {
    oscar_layout layout;
    unsigned char *pool;         /* [max_pages][layout.bytes] */
    unsigned char *k_windows;    /* [max_sequences][S0 + C][Hkv][Dk] */
    unsigned char *v_windows;    /* [max_sequences][S0 + C][Hkv][Dv] */
    unsigned char *appended;     /* [max_sequences]: this layer has written the rows of the open step */
} oscar__store_layer;

/* What a desc costs. values: K and V values of one token in all layers; page: bytes of one page id in all layers. */
typedef struct oscar__sizes { size_t total, pages, windows, page, values, widest; } oscar__sizes;

struct oscar_cache {
    oscar_cache_desc desc;       /* resolved; layers and rotations NULL */
    oscar_pager_desc pager_desc;
    oscar__sizes sizes;
    int layer_count;
    int64_t ring;                /* C */
    uint64_t hash;               /* of everything that the meaning of a blob depends on */
    oscar_pager *pager;
    oscar__store_layer *layers;
    int *appended_layers;        /* [max_sequences] */
    float *rows;                 /* oscar__page_floats of the widest dimension, for demotion */
};

/* ---- create ---- */

/* Layer i of the desc, with what the rotations say where the desc says nothing. */
static oscar_result oscar__cache_layer(const oscar_cache_desc *d, int i, oscar_layer *out)
{
    oscar_layer layer = d->layers[i];
    if (d->rotations) {
        oscar_result result = oscar_rotations_apply(d->rotations, i, &d->hooks, &layer);
        if (result != OSCAR_OK) return result;
    }
    *out = layer;
    return OSCAR_OK;
}

static oscar_result oscar__cache_resolve(const oscar_cache_desc *in, oscar_cache_desc *d, oscar_pager_desc *pager)
{
    oscar_pager_desc p;
    oscar_result result;
    if (!in) return OSCAR_ERR_ARGUMENT;
    if ((result = oscar__hooks_check(&in->hooks)) != OSCAR_OK) return result;
    if (!in->layers || in->layer_count < 1)
        return OSCAR__FAIL(&in->hooks, OSCAR_ERR_ARGUMENT, "a cache needs layers and layer_count of at least 1");
    if (in->rotations && oscar_rotations_count(in->rotations) != in->layer_count)
        return OSCAR__FAIL(&in->hooks, OSCAR_ERR_SHAPE,
                           "layer_count is %i, the rotations have %i layers: give those of this model", in->layer_count,
                           oscar_rotations_count(in->rotations));
    if (!oscar__precision_valid(in->precision))
        return OSCAR__FAIL(&in->hooks, OSCAR_ERR_ARGUMENT, "precision is %i, which is no oscar_precision",
                           (int)in->precision);
    memset(&p, 0, sizeof p);
    p.max_sequences = in->max_sequences;
    p.max_pages = in->max_pages;
    p.max_tokens = in->max_tokens;
    p.sink = in->sink;
    p.recent = in->recent;
    p.page_tokens = in->page_tokens;
    p.max_draft = in->max_draft;
    p.hooks = in->hooks;
    if ((result = oscar__pager_resolve(&p, pager)) != OSCAR_OK) return result;
    *d = *in;
    if (d->window_type == OSCAR_TYPE_DEFAULT) d->window_type = OSCAR_BF16;
    return OSCAR_OK;
}

/* A copy of count numbers in the allocation (or counts them); that of the head before where both share them. */
static const float *oscar__carve_copy(oscar__carver *carver, const float *from, size_t count, const float *before,
                                      const float *copy_before)
{
    float *place;
    if (!from) return NULL;
    if (from == before) return copy_before;
    place = (float *)oscar__carve(carver, count, sizeof(float));
    if (place) memcpy(place, from, count * sizeof(float));
    return place;
}

/* Copies the pairs of one side into the allocation (or counts them). A matrix that neighbouring heads share is copied
   once. pairs: in, the caller's; out, the copies. */
static void oscar__cache_carve_pairs(oscar__carver *carver, int heads, const oscar_pair **pairs)
{
    const oscar_pair *from = *pairs;
    oscar_pair *to;
    int h;
    if (!from) return;
    to = (oscar_pair *)oscar__carve(carver, (size_t)heads, sizeof *to);
    for (h = 0; h < heads; h++) {
        size_t dim = (size_t)from[h].dim, matrix = dim * dim;
        static const oscar_pair none = { OSCAR_HADAMARD, 0, NULL, NULL, NULL, 0, NULL };
        const oscar_pair *before = h ? &from[h - 1] : &none, *copied = to && h ? &to[h - 1] : &none;
        oscar_pair copy = from[h];
        copy.to = oscar__carve_copy(carver, from[h].to, matrix, before->to, copied->to);
        copy.dual = oscar__carve_copy(carver, from[h].dual, matrix, before->dual, copied->dual);
        copy.metric = oscar__carve_copy(carver, from[h].metric, matrix, before->metric, copied->metric);
        copy.mean = oscar__carve_copy(carver, from[h].mean, dim, NULL, NULL);
        if (!to) continue;
        to[h] = copy;
        if (copy.dual && !(copy.norm > 0))   /* the caller left it open */
            to[h].norm = h && copy.to == to[h - 1].to ? to[h - 1].norm : oscar__matrix_norm(copy.dim, copy.to);
    }
    if (to) *pairs = to;
}

/* Every number of a side's pairs must be finite: a NaN would turn rows into zero rows without a word. */
static oscar_result oscar__pairs_finite(const oscar_hooks *hooks, const char *name, const oscar_pair *pairs, int heads)
{
    int h;
    for (h = 0; pairs && h < heads; h++) {
        size_t dim = (size_t)pairs[h].dim;
        if ((pairs[h].to && !oscar__finite(pairs[h].to, dim * dim))
            || (pairs[h].dual && !oscar__finite(pairs[h].dual, dim * dim))
            || (pairs[h].metric && !oscar__finite(pairs[h].metric, dim * dim))
            || (pairs[h].mean && !oscar__finite(pairs[h].mean, dim)))
            return OSCAR__FAIL(hooks, OSCAR_ERR_NUMERIC, "the %s pair of KV head %i holds NaN or infinity", name, h);
    }
    return OSCAR_OK;
}

static size_t oscar__window_rows(const oscar_pager_desc *p)
{
    size_t rows = oscar__add((size_t)p->sink, (size_t)p->recent);
    rows = oscar__add(rows, (size_t)p->page_tokens - 1);
    return oscar__add(rows, (size_t)(p->max_draft > 1 ? p->max_draft : 1));
}

/* One layer's arrays. Counts, or places them into *out. */
static oscar_result oscar__cache_carve_layer(oscar__carver *carver, const oscar_cache_desc *d,
                                             const oscar_pager_desc *p, int i, oscar__store_layer *out,
                                             oscar__sizes *sizes)
{
    oscar__store_layer s;
    oscar_layer layer;
    oscar_result result = oscar__cache_layer(d, i, &layer);
    size_t slots = (size_t)p->max_sequences, k_dim, v_dim, row, k_bytes, v_bytes, pages;
    if (result == OSCAR_OK) result = oscar_page_layout(&layer, p->page_tokens, d->window_type, &d->hooks, &s.layout);
    if (result == OSCAR_OK && !out)
        result = oscar__pairs_finite(&d->hooks, "K", s.layout.layer.k, s.layout.layer.kv_heads);
    if (result == OSCAR_OK && !out)
        result = oscar__pairs_finite(&d->hooks, "V", s.layout.layer.v, s.layout.layer.kv_heads);
    if (result != OSCAR_OK)
        return OSCAR__FAIL(&d->hooks, result, "the reason above concerns layer %i of the cache", i);
    oscar__cache_carve_pairs(carver, s.layout.layer.kv_heads, &s.layout.layer.k);
    oscar__cache_carve_pairs(carver, s.layout.layer.kv_heads, &s.layout.layer.v);

    k_dim = (size_t)s.layout.layer.k_dim;
    v_dim = (size_t)s.layout.layer.v_dim;
    row = oscar__mul((size_t)s.layout.layer.kv_heads, oscar__type_size(d->window_type));
    row = oscar__mul(row, oscar__mul(slots, oscar__window_rows(p)));
    k_bytes = oscar__mul(row, k_dim);
    v_bytes = oscar__mul(row, v_dim);
    pages = oscar__mul((size_t)p->max_pages, s.layout.bytes);
    s.pool = (unsigned char *)oscar__carve(carver, pages, 1);
    s.k_windows = (unsigned char *)oscar__carve(carver, k_bytes, 1);
    s.v_windows = (unsigned char *)oscar__carve(carver, v_bytes, 1);
    s.appended = (unsigned char *)oscar__carve(carver, slots, 1);
    sizes->pages = oscar__add(sizes->pages, pages);
    sizes->windows = oscar__add(sizes->windows, oscar__add(k_bytes, v_bytes));
    sizes->page = oscar__add(sizes->page, s.layout.bytes);
    sizes->values = oscar__add(sizes->values, (size_t)s.layout.layer.kv_heads * (k_dim + v_dim));
    if (k_dim > sizes->widest) sizes->widest = k_dim;
    if (v_dim > sizes->widest) sizes->widest = v_dim;
    if (out) *out = s;
    return OSCAR_OK;
}

/* The whole cache; *out is NULL where the carver only counts. */
static oscar_result oscar__cache_carve(oscar__carver *carver, const oscar_cache_desc *d, const oscar_pager_desc *p,
                                       oscar__sizes *sizes, oscar_cache **out)
{
    oscar_cache *cache = (oscar_cache *)oscar__carve(carver, 1, sizeof *cache);
    size_t layer_count = (size_t)d->layer_count, slots = (size_t)p->max_sequences;
    oscar__store_layer *layers = (oscar__store_layer *)oscar__carve(carver, layer_count, sizeof *layers);
    int *appended_layers = (int *)oscar__carve(carver, slots, sizeof(int));
    oscar_pager *pager;
    float *rows;
    int i;
    oscar__pager_carve(carver, p, &pager);
    memset(sizes, 0, sizeof *sizes);
    for (i = 0; i < d->layer_count; i++) {
        oscar_result result = oscar__cache_carve_layer(carver, d, p, i, layers ? &layers[i] : NULL, sizes);
        if (result != OSCAR_OK) return result;
    }
    rows = (float *)oscar__carve(carver, oscar__page_floats(sizes->widest, p->page_tokens), sizeof(float));
    sizes->total = carver->size;
    if (cache) {
        cache->layers = layers;
        cache->appended_layers = appended_layers;
        cache->pager = pager;
        cache->rows = rows;
        cache->sizes = *sizes;
    }
    *out = cache;
    return OSCAR_OK;
}

static uint64_t oscar__hash_floats(uint64_t hash, const float *x, size_t count)
{
    size_t i;
    for (i = 0; x && i < count; i++) hash = oscar__hash_real(hash, (double)x[i]);
    return hash;
}

static uint64_t oscar__hash_pairs(uint64_t hash, const oscar_pair *pairs, int heads, int dim)
{
    int h;
    for (h = 0; h < heads; h++) {
        oscar_pair pair = oscar__pair_of(pairs, h, dim);
        hash = oscar__hash_integer(hash, (int64_t)pair.kind);
        hash = oscar__hash_floats(hash, pair.to, (size_t)dim * (size_t)dim);
        hash = oscar__hash_integer(hash, pair.mean != NULL);
        hash = oscar__hash_floats(hash, pair.mean, (size_t)dim);
    }
    return hash;
}

/* FNV-1a 64 over the configuration: windows, window type, page tokens, and each layer's desc and pairs. */
static uint64_t oscar__cache_hash(const oscar_cache *cache)
{
    const oscar_pager_desc *p = &cache->pager_desc;
    uint64_t hash = OSCAR__FNV_START;
    int i, j;
    hash = oscar__hash_integer(hash, p->sink);
    hash = oscar__hash_integer(hash, p->recent);
    hash = oscar__hash_integer(hash, p->page_tokens);
    hash = oscar__hash_integer(hash, (int64_t)cache->desc.window_type);
    hash = oscar__hash_integer(hash, cache->layer_count);
    for (i = 0; i < cache->layer_count; i++) {
        const oscar_layer *l = &cache->layers[i].layout.layer;
        int fields[13];
        fields[0] = l->q_heads; fields[1] = l->kv_heads; fields[2] = l->k_dim; fields[3] = l->v_dim;
        fields[4] = l->window; fields[5] = l->k_bits; fields[6] = l->v_bits; fields[7] = (int)l->k_fit;
        fields[8] = (int)l->v_fit; fields[9] = l->k_group; fields[10] = l->v_group; fields[11] = l->k_page_mean;
        fields[12] = l->v_folded;
        for (j = 0; j < 13; j++) hash = oscar__hash_integer(hash, fields[j]);
        hash = oscar__hash_real(hash, l->k_clip);
        hash = oscar__hash_real(hash, l->v_clip);
        hash = oscar__hash_real(hash, (double)l->scale);
        hash = oscar__hash_real(hash, (double)l->softcap);
        hash = oscar__hash_pairs(hash, l->k, l->kv_heads, l->k_dim);
        hash = oscar__hash_pairs(hash, l->v, l->kv_heads, l->v_dim);
    }
    return hash;
}

OSCAR_API oscar_result oscar_cache_create(const oscar_cache_desc *desc, oscar_cache **out)
{
    oscar_cache_desc d;
    oscar_pager_desc p;
    oscar__sizes sizes;
    oscar_cache *cache;
    oscar__carver carver = { NULL, 0 };
    oscar_result result = oscar__cache_resolve(desc, &d, &p);
    int i;
    if (result != OSCAR_OK) return result;
    if (!out) return OSCAR__FAIL(&d.hooks, OSCAR_ERR_ARGUMENT, "oscar_cache_create has no place for the cache");
    if ((result = oscar__cache_carve(&carver, &d, &p, &sizes, &cache)) != OSCAR_OK) return result;
    carver.base = (unsigned char *)oscar__alloc(&d.hooks, carver.size);
    if (!carver.base)
        return OSCAR__FAIL(&d.hooks, OSCAR_ERR_MEMORY,
                           "no memory for a cache of %z bytes (%z of pages, %z of windows): lower max_pages or "
                           "max_sequences", carver.size, sizes.pages, sizes.windows);
    carver.size = 0;
    result = oscar__cache_carve(&carver, &d, &p, &sizes, &cache);
    OSCAR_ASSERT(result == OSCAR_OK);   /* the same calls succeeded while counting */
    cache->desc = d;
    cache->desc.layers = NULL;
    cache->desc.rotations = NULL;
    cache->pager_desc = p;
    cache->layer_count = d.layer_count;
    cache->ring = (int64_t)oscar__window_rows(&p) - p.sink;
    oscar__pager_init(cache->pager, &p);
    memset(cache->appended_layers, 0, (size_t)p.max_sequences * sizeof(int));
    for (i = 0; i < d.layer_count; i++) memset(cache->layers[i].appended, 0, (size_t)p.max_sequences);
    cache->hash = oscar__cache_hash(cache);
    *out = cache;
    return OSCAR_OK;
}

OSCAR_API void oscar_cache_destroy(oscar_cache *cache)
{
    if (cache) {
        oscar_hooks hooks = cache->desc.hooks;
        oscar__carver_free(&hooks, cache, cache->sizes.total);
    }
}

OSCAR_API oscar_result oscar_cache_bytes(const oscar_cache_desc *desc, int64_t tokens, oscar_footprint *out)
{
    oscar_cache_desc d;
    oscar_pager_desc p;
    oscar__sizes sizes;
    oscar_cache *cache;
    oscar__carver carver = { NULL, 0 };
    double exact, count, rows, value;
    oscar_result result = oscar__cache_resolve(desc, &d, &p);
    if (result != OSCAR_OK) return result;
    if (!out || tokens < 0)
        return OSCAR__FAIL(&d.hooks, OSCAR_ERR_ARGUMENT,
                           "oscar_cache_bytes needs a place for the answer, and 0 or more tokens");
    if ((result = oscar__cache_carve(&carver, &d, &p, &sizes, &cache)) != OSCAR_OK) return result;
    if (sizes.total > OSCAR__SIZE_MAX / 2)
        return OSCAR__FAIL(&d.hooks, OSCAR_ERR_MEMORY,
                           "a cache of this desc does not fit into the address space: lower max_pages or "
                           "max_sequences");
    exact = 8 * (double)oscar__type_size(d.window_type);
    value = 8 * (double)sizes.page / p.page_tokens / (double)sizes.values;   /* bits of a value in a page */
    count = tokens > 0 ? (double)tokens : 1;
    rows = count - (double)oscar__history_due(&p, tokens);
    out->total = sizes.total;
    out->pages = sizes.pages;
    out->windows = sizes.windows;
    out->rest = sizes.total - sizes.pages - sizes.windows;
    out->held_bits = (rows * exact + (count - rows) * value) / count;
    rows = (double)oscar__window_rows(&p);
    out->owned_bits = (rows * exact + (count > rows ? count - rows : 0) * value) / count;
    out->exact_bits = exact;
    return OSCAR_OK;
}

OSCAR_API void oscar_cache_stats(const oscar_cache *cache, oscar_stats *out)
{
    int i;
    memset(out, 0, sizeof *out);
    for (i = 0; i < cache->pager_desc.max_sequences; i++) {
        out->sequences += cache->pager->seqs[i].open;
        out->tokens += cache->pager->seqs[i].open ? cache->pager->seqs[i].length : 0;
    }
    out->pages = cache->pager_desc.max_pages;
    out->pages_used = out->pages - oscar_pager_free_pages(cache->pager);
    out->bytes = cache->sizes.total;
    out->page_bytes = cache->sizes.pages;
    out->window_bytes = cache->sizes.windows;
}

/* The layer, or NULL with the log's sentence. */
static oscar__store_layer *oscar__layer_at(const oscar_cache *cache, int layer)
{
    if (layer >= 0 && layer < cache->layer_count) return &cache->layers[layer];
    (void)OSCAR__FAIL(&cache->desc.hooks, OSCAR_ERR_ARGUMENT, "layer %i is out of range: the cache has %i layers",
                      layer, cache->layer_count);
    return NULL;
}

OSCAR_API oscar_result oscar_cache_layout(const oscar_cache *cache, int layer, oscar_layout *out)
{
    const oscar__store_layer *s = cache && out ? oscar__layer_at(cache, layer) : NULL;
    if (!s) return OSCAR_ERR_ARGUMENT;
    *out = s->layout;
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_cache_check(oscar_cache *cache)
{
    oscar_result result;
    int i, j;
    if (!cache) return OSCAR_ERR_ARGUMENT;
    if ((result = oscar_pager_check(cache->pager)) != OSCAR_OK) return result;
    for (i = 0; i < cache->pager_desc.max_sequences; i++) {
        const oscar__seq *s = &cache->pager->seqs[i];
        int appended = 0, open = s->open && (s->step == OSCAR_STEP_APPEND || s->step == OSCAR_STEP_DRAFT);
        for (j = 0; j < cache->layer_count; j++) appended += cache->layers[j].appended[i];
        if (appended != cache->appended_layers[i] || (appended && !open) || appended >= cache->layer_count)
            return OSCAR__FAIL(&cache->desc.hooks, OSCAR_ERR_STATE,
                               "slot %i: %i layers have appended, %i are counted, of %i", i, appended,
                               cache->appended_layers[i], cache->layer_count);
    }
    return OSCAR_OK;
}

/* ---- windows and pages of a sequence ---- */

static int64_t oscar__window_place(const oscar_cache *cache, int64_t position)
{
    int64_t sink = cache->pager_desc.sink;
    return position < sink ? position : sink + (position - sink) % cache->ring;
}

/* Bytes of a window row of all heads, K or V. */
static size_t oscar__window_bytes(const oscar_layout *l, int is_k)
{
    return oscar__type_size(l->window_type) * (size_t)l->layer.kv_heads
           * (size_t)(is_k ? l->layer.k_dim : l->layer.v_dim);
}

/* Bytes from the start of a layer's K or V windows to a row of one head. */
static size_t oscar__window_at(const oscar_cache *cache, const oscar__store_layer *s, int slot, int is_k, int h,
                               int64_t place)
{
    const oscar_layer *l = &s->layout.layer;
    size_t row = (size_t)slot * oscar__window_rows(&cache->pager_desc) + (size_t)place;
    return row * oscar__window_bytes(&s->layout, is_k)
           + (size_t)h * (size_t)(is_k ? l->k_dim : l->v_dim) * oscar__type_size(s->layout.window_type);
}

/* Where the window row of one head is that holds `position`. */
static unsigned char *oscar__window_row(const oscar_cache *cache, const oscar__store_layer *s, int slot, int is_k,
                                        int h, int64_t position)
{
    return (is_k ? s->k_windows : s->v_windows)
           + oscar__window_at(cache, s, slot, is_k, h, oscar__window_place(cache, position));
}

/* The windows of a slot from a place on, as a view. */
static oscar_view oscar__window_view(const oscar_cache *cache, const oscar__store_layer *s, int slot, int is_k,
                                     int64_t place)
{
    oscar_view view;
    memset(&view, 0, sizeof view);
    view.data = (is_k ? s->k_windows : s->v_windows) + oscar__window_at(cache, s, slot, is_k, 0, place);
    view.type = s->layout.window_type;
    return view;
}

/* Writes page `index` of the table in one layer. Rows come from the windows, and from position `fresh` on from the
   chunk's views at row chunk_row. */
static void oscar__demote(oscar_cache *cache, oscar__store_layer *s, int slot, const oscar__seq *seq, int64_t index,
                          int64_t fresh, const oscar_view *k, const oscar_view *v, int64_t chunk_row)
{
    const oscar_layer *l = &s->layout.layer;
    const oscar__kernels *kernels = oscar__kernels_now();
    unsigned char *page = s->pool + (size_t)seq->pages[index] * s->layout.bytes;
    int64_t start = cache->pager_desc.sink + index * s->layout.page_tokens, place = oscar__window_place(cache, start);
    int64_t wrap = cache->pager_desc.sink + cache->ring - place;   /* the first row that is at the ring's beginning */
    int side, h, t;
    for (side = 0; side < 2; side++) {
        int dim = side ? l->v_dim : l->k_dim;
        const unsigned char *windows = side ? s->v_windows : s->k_windows;
        for (h = 0; h < l->kv_heads; h++) {
            oscar_result result;
            for (t = 0; t < s->layout.page_tokens; t++) {
                float *x = cache->rows + (size_t)t * (size_t)dim;
                int64_t position = start + t, at = place + t - (t < wrap ? 0 : cache->ring);
                if (position < fresh) {
                    kernels->load(s->layout.window_type, windows + oscar__window_at(cache, s, slot, !side, h, at),
                                  (size_t)dim, x);
                } else {
                    oscar__view_row_rounded(side ? v : k, s->layout.window_type, l->kv_heads, dim,
                                            chunk_row + position - fresh, h, x);
                }
            }
            result = oscar__page_put(&s->layout, !side, h, OSCAR__SATURATE, cache->rows, page);
            OSCAR_ASSERT(result == OSCAR_OK);   /* saturates */
            (void)result;
        }
    }
    oscar__page_pad(&s->layout, page);
}

/* Carries out moves->demote_* in one layer, all rows from the windows. */
static void oscar__demote_moves(oscar_cache *cache, oscar__store_layer *s, int slot, const oscar_moves *moves)
{
    int64_t i;
    for (i = 0; i < moves->demote_count; i++)
        oscar__demote(cache, s, slot, &cache->pager->seqs[slot], moves->demote_first + i, INT64_MAX, NULL, NULL, 0);
}

/* Carries out moves->decode_* in one layer: rows of a page go back to the ring. */
static void oscar__decode_moves(oscar_cache *cache, oscar__store_layer *s, int slot, const oscar_moves *moves)
{
    const oscar_layer *l = &s->layout.layer;
    const unsigned char *page = s->pool + (size_t)moves->decode_page * s->layout.bytes;
    int side, h, t;
    for (side = 0; side < 2; side++)
        for (t = 0; t < moves->decode_tokens; t++)
            for (h = 0; h < l->kv_heads; h++) {
                float row[OSCAR__DIM_MAX];
                oscar__page_get(&s->layout, !side, h, page, t, row);
                oscar__store_saturated(s->layout.window_type, row, (size_t)(side ? l->v_dim : l->k_dim),
                                       oscar__window_row(cache, s, slot, !side, h, moves->decode_position + t));
            }
}

/* ---- sequences ---- */

OSCAR_API oscar_result oscar_cache_open(oscar_cache *cache, oscar_seq *out)
{
    return cache ? oscar_seq_open(cache->pager, out) : OSCAR_ERR_ARGUMENT;
}

/* Forgets which layers have appended. */
static void oscar__step_clear(oscar_cache *cache, int slot)
{
    int i;
    for (i = 0; i < cache->layer_count; i++) cache->layers[i].appended[slot] = 0;
    cache->appended_layers[slot] = 0;
}

OSCAR_API oscar_result oscar_cache_close(oscar_cache *cache, oscar_seq seq)
{
    oscar_result result = cache ? oscar_seq_close(cache->pager, seq) : OSCAR_ERR_ARGUMENT;
    if (result == OSCAR_OK) oscar__step_clear(cache, oscar__seq_slot(seq));
    return result;
}

OSCAR_API oscar_result oscar_cache_get(const oscar_cache *cache, oscar_seq seq, oscar_seq_state *out)
{
    return cache ? oscar_seq_get(cache->pager, seq, out) : OSCAR_ERR_ARGUMENT;
}

OSCAR_API oscar_result oscar_cache_can(const oscar_cache *cache, oscar_seq seq, oscar_op op, int64_t arg)
{
    return cache ? oscar_seq_can(cache->pager, seq, op, arg) : OSCAR_ERR_ARGUMENT;
}

OSCAR_API oscar_result oscar_cache_reserve(oscar_cache *cache, oscar_seq seq, int64_t rows, int draft)
{
    return cache ? oscar_seq_reserve(cache->pager, seq, rows, draft, NULL) : OSCAR_ERR_ARGUMENT;
}

OSCAR_API oscar_result oscar_cache_fork(oscar_cache *cache, oscar_seq seq, int64_t length, oscar_seq *out)
{
    oscar_moves moves;
    oscar_result result = cache ? oscar_seq_fork(cache->pager, seq, length, out, &moves) : OSCAR_ERR_ARGUMENT;
    int i, side, from, to;
    if (result != OSCAR_OK) return result;
    from = oscar__seq_slot(seq);
    to = oscar__seq_slot(*out);
    for (i = 0; i < cache->layer_count; i++) {
        oscar__store_layer *s = &cache->layers[i];
        for (side = 0; side < 2; side++) {
            size_t bytes = oscar__window_at(cache, s, 1, !side, 0, 0);   /* of one slot */
            memcpy(oscar__window_row(cache, s, to, !side, 0, 0), oscar__window_row(cache, s, from, !side, 0, 0), bytes);
        }
        oscar__decode_moves(cache, s, to, &moves);
    }
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_cache_cut(oscar_cache *cache, oscar_seq seq, int64_t length)
{
    oscar_moves moves;
    oscar_result result = cache ? oscar_seq_cut(cache->pager, seq, length, &moves) : OSCAR_ERR_ARGUMENT;
    int i;
    if (result != OSCAR_OK) return result;
    for (i = 0; i < cache->layer_count; i++)
        oscar__decode_moves(cache, &cache->layers[i], oscar__seq_slot(seq), &moves);
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_cache_accept(oscar_cache *cache, oscar_seq seq, int64_t rows)
{
    oscar_moves moves;
    oscar_result result = cache ? oscar_seq_accept(cache->pager, seq, rows, &moves) : OSCAR_ERR_ARGUMENT;
    int i;
    if (result != OSCAR_OK) return result;
    for (i = 0; i < cache->layer_count; i++)
        oscar__demote_moves(cache, &cache->layers[i], oscar__seq_slot(seq), &moves);
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_cache_abort(oscar_cache *cache, oscar_seq seq)
{
    oscar_moves moves;
    oscar__seq *s;
    oscar_result result = cache ? oscar__seq_find(cache->pager, &cache->desc.hooks, seq, &s) : OSCAR_ERR_ARGUMENT;
    int i, slot = oscar__seq_slot(seq);
    if (result != OSCAR_OK) return result;
    if ((result = oscar_seq_abort(cache->pager, seq, cache->appended_layers[slot] > 0, &moves)) != OSCAR_OK)
        return result;
    for (i = 0; i < cache->layer_count; i++) {
        oscar__store_layer *layer = &cache->layers[i];
        if (layer->appended[slot]) oscar__decode_moves(cache, layer, slot, &moves);
        else oscar__demote_moves(cache, layer, slot, &moves);
    }
    oscar__step_clear(cache, slot);
    return OSCAR_OK;
}

/* ---- append and fetch ---- */

/* Finds the sequence of a batch entry and checks that the layer may append its rows now. */
static oscar_result oscar__append_entry(const oscar_cache *cache, int layer, const oscar_batch *b)
{
    const oscar_hooks *hooks = &cache->desc.hooks;
    oscar__seq *s;
    oscar_result result = oscar__seq_find(cache->pager, hooks, b->seq, &s);
    int slot = oscar__seq_slot(b->seq);
    if (result != OSCAR_OK) return result;
    if (s->step != OSCAR_STEP_APPEND && s->step != OSCAR_STEP_DRAFT)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "slot %i has no open step: call oscar_cache_reserve first", slot);
    if (cache->layers[layer].appended[slot])
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "layer %i has already appended the rows of this step of slot %i, or "
                           "the batch names the sequence twice", layer, slot);
    if (b->row < 0 || b->rows != s->step_rows)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "slot %i: %I rows are given from row %I, but %I were reserved",
                           slot, b->rows, b->row, s->step_rows);
    return OSCAR_OK;
}

/* ERR_NUMERIC and a sentence if a row of one head, rounded, is bad: not finite, or longer than 32000 / norm, beyond
   which metadata could overflow fp16 at demotion. finite: it is known to be so. Changes x. */
static oscar_result oscar__append_row_check(const oscar_cache *cache, int layer, int is_k, int slot, int64_t row, int h,
                                            int finite, float *x)
{
    const oscar_layer *l = &cache->layers[layer].layout.layer;
    const oscar__kernels *kernels = oscar__kernels_now();
    int dim = is_k ? l->k_dim : l->v_dim;
    oscar_pair pair = oscar__pair_of(is_k ? l->k : l->v, h, dim);
    double norm = pair.norm > 0 && !(!is_k && l->v_folded) ? (double)pair.norm : 1, square, length;
    if (!finite && !kernels->finite(x, (size_t)dim))
        return OSCAR__FAIL(&cache->desc.hooks, OSCAR_ERR_NUMERIC,
                           "layer %i, slot %i, row %I of the batch, KV head %i: %s holds NaN, infinity or a number "
                           "beyond the window type: check the rows, and the view's type", layer, slot, row, h,
                           is_k ? "K" : "V");
    if ((is_k ? l->k_bits : l->v_bits) == 16) return OSCAR_OK;
    if (pair.mean) kernels->centre(dim, x, pair.mean, x);
    square = (double)kernels->sum_products(dim, x, x);
    if (square * norm * norm < 1e9) return OSCAR_OK;   /* 32000 squared is more */
    length = sqrt(square);
    if (length <= 32000 / norm) return OSCAR_OK;
    return OSCAR__FAIL(&cache->desc.hooks, OSCAR_ERR_NUMERIC,
                       "layer %i, slot %i, row %I of the batch, KV head %i: %s has length %g, and only %g can be "
                       "quantised: check the view's type, or keep this side at 16 bits", layer, slot, row, h,
                       is_k ? "K" : "V", length, 32000 / norm);
}

/* The same of all rows of one side of an entry; the first bad one is in the log. */
static oscar_result oscar__append_rows_check(const oscar_cache *cache, int layer, int is_k, const oscar_batch *b,
                                             const oscar_view *view)
{
    const oscar_layout *l = &cache->layers[layer].layout;
    int dim = is_k ? l->layer.k_dim : l->layer.v_dim, heads = l->layer.kv_heads, h, i, count;
    int64_t row;
    for (row = b->row; row < b->row + b->rows; row++)
        for (h = 0; h < heads; h += count) {
            float x[OSCAR__DIM_MAX];
            size_t values = (size_t)(count = oscar__view_together(view, heads, dim, h)) * (size_t)dim;
            int finite;
            oscar__kernels_now()->load_rounded(view->type, oscar__view_at(view, heads, dim, row, h), l->window_type,
                                               values, x);
            finite = oscar__kernels_now()->finite(x, values);
            for (i = 0; i < count; i++) {
                oscar_result result = oscar__append_row_check(cache, layer, is_k, oscar__seq_slot(b->seq), row, h + i,
                                                              finite, x + i * dim);
                if (result != OSCAR_OK) return result;
            }
        }
    return OSCAR_OK;
}

/* All checks of an append, no row written. Marks appended[] of the batch's slots, or of none on error. */
static oscar_result oscar__append_claim(oscar_cache *cache, int layer, const oscar_batch *batch, int count,
                                        const oscar_view *k, const oscar_view *v)
{
    oscar__store_layer *s = oscar__layer_at(cache, layer);
    oscar_result result = OSCAR_OK;
    int i, marked = 0;
    if (!s) return OSCAR_ERR_ARGUMENT;
    if (count < 0 || (count && !batch) || !k || !v || !k->data || !v->data || !oscar__type_valid(k->type)
        || !oscar__type_valid(v->type))
        return OSCAR__FAIL(&cache->desc.hooks, OSCAR_ERR_ARGUMENT,
                           "append needs a batch, and views k and v with data and a valid type");
    for (i = 0; i < count && result == OSCAR_OK; i++) {
        if (!batch[i].seq) continue;
        result = oscar__append_entry(cache, layer, &batch[i]);
        if (result != OSCAR_OK) break;
        s->appended[oscar__seq_slot(batch[i].seq)] = 1;   /* a second entry of the same sequence is refused */
        marked = i + 1;
        result = oscar__append_rows_check(cache, layer, 1, &batch[i], k);
        if (result == OSCAR_OK) result = oscar__append_rows_check(cache, layer, 0, &batch[i], v);
    }
    for (i = 0; result != OSCAR_OK && i < marked; i++)
        if (batch[i].seq) s->appended[oscar__seq_slot(batch[i].seq)] = 0;
    return result;
}

/* Writes the rows of one entry: pages that fall due first, while the ring still holds their rows, then the windows. */
static void oscar__append_write(oscar_cache *cache, oscar__store_layer *s, const oscar_batch *b, const oscar_view *k,
                                const oscar_view *v)
{
    const oscar_layer *l = &s->layout.layer;
    int slot = oscar__seq_slot(b->seq), side, h, count;
    const oscar__seq *seq = &cache->pager->seqs[slot];
    int64_t i, r;
    for (i = seq->history / s->layout.page_tokens; i < seq->step_history / s->layout.page_tokens; i++)
        oscar__demote(cache, s, slot, seq, i, seq->length, k, v, b->row);
    for (r = 0; r < b->rows; r++) {
        int64_t position = seq->length + r;
        if (position >= cache->pager_desc.sink && position < cache->pager_desc.sink + seq->step_history) continue;
        for (side = 0; side < 2; side++) {
            const oscar_view *view = side ? v : k;
            unsigned char *out = oscar__window_row(cache, s, slot, !side, 0, position);
            int dim = side ? l->v_dim : l->k_dim;
            for (h = 0; h < l->kv_heads; h += count) {
                size_t values = (size_t)(count = oscar__view_together(view, l->kv_heads, dim, h)) * (size_t)dim;
                oscar__convert_row(view->type, oscar__view_at(view, l->kv_heads, dim, b->row + r, h),
                                   s->layout.window_type, values, out);
                out += values * oscar__type_size(s->layout.window_type);
            }
        }
    }
}

/* Writes a checked and marked batch; the last layer commits. */
static void oscar__append_batch(oscar_cache *cache, oscar__store_layer *s, const oscar_batch *batch, int count,
                                const oscar_view *k, const oscar_view *v)
{
    int i;
    for (i = 0; i < count; i++) {
        int slot = oscar__seq_slot(batch[i].seq);
        if (!batch[i].seq) continue;
        oscar__append_write(cache, s, &batch[i], k, v);
        if (++cache->appended_layers[slot] < cache->layer_count) continue;
        oscar__step_clear(cache, slot);
        (void)oscar_seq_commit(cache->pager, batch[i].seq);   /* the step is open: it was checked */
    }
}

OSCAR_API oscar_result oscar_append(oscar_cache *cache, int layer, const oscar_batch *batch, int count,
                                    const oscar_view *k, const oscar_view *v)
{
    oscar_result result = cache ? oscar__append_claim(cache, layer, batch, count, k, v) : OSCAR_ERR_ARGUMENT;
    if (result == OSCAR_OK) oscar__append_batch(cache, &cache->layers[layer], batch, count, k, v);
    return result;
}

/* One row of one head as the cache holds it, in float before any rounding to another type. */
static void oscar__fetch_row(const oscar_cache *cache, const oscar__store_layer *s, int slot, int is_k, int h,
                             int64_t position, float *out)
{
    const oscar__seq *seq = &cache->pager->seqs[slot];
    int64_t index = position - cache->pager_desc.sink;
    if (index >= 0 && index < seq->history) {
        size_t id = seq->pages[index / s->layout.page_tokens];
        oscar__page_get(&s->layout, is_k, h, s->pool + id * s->layout.bytes, (int)(index % s->layout.page_tokens), out);
    } else {
        oscar__load(s->layout.window_type, oscar__window_row(cache, s, slot, is_k, h, position),
                    (size_t)(is_k ? s->layout.layer.k_dim : s->layout.layer.v_dim), out);
    }
}

static int oscar__out_valid(const oscar_out *out) { return !out || (out->data && oscar__type_valid(out->type)); }

OSCAR_API oscar_result oscar_fetch(const oscar_cache *cache, int layer, oscar_seq seq, int64_t first, int64_t count,
                                   const oscar_out *k, const oscar_out *v)
{
    const oscar__store_layer *s = cache ? oscar__layer_at(cache, layer) : NULL;
    const oscar_hooks *hooks = cache ? &cache->desc.hooks : NULL;
    oscar__seq *state;
    oscar_result result;
    int64_t length, i;
    int slot = oscar__seq_slot(seq), side, h;
    if (!s) return OSCAR_ERR_ARGUMENT;
    if ((result = oscar__seq_find(cache->pager, hooks, seq, &state)) != OSCAR_OK) return result;
    if (state->step == OSCAR_STEP_APPEND || state->step == OSCAR_STEP_DRAFT)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "slot %i has an open step: append it in every layer, or abort it, "
                           "before a fetch", slot);
    length = state->length + state->step_rows;
    if (first < 0 || count < 0 || first > length || count > length - first || !oscar__out_valid(k)
        || !oscar__out_valid(v))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT,
                           "fetch of %I tokens from %I: the sequence has %I, and outputs need data and a valid type",
                           count, first, length);
    for (side = 0; side < 2; side++) {
        const oscar_out *out = side ? v : k;
        const oscar_layer *l = &s->layout.layer;
        int dim = side ? l->v_dim : l->k_dim;
        for (i = 0; out && i < count; i++)
            for (h = 0; h < l->kv_heads; h++) {
                float x[OSCAR__DIM_MAX];
                oscar__fetch_row(cache, s, slot, !side, h, first + i, x);
                oscar__store_saturated(out->type, x, (size_t)dim, oscar__out_at(out, l->kv_heads, dim, i, h));
            }
    }
    return OSCAR_OK;
}

/* ---- save and restore ---- */

/* A blob (manual 1.5):  [magic 8][version 4][layers 4][hash 8][n 8][h 8][payload bytes 8][FNV-1a of the rest 8] payload
   payload, for each layer: K rows of sink and recent in order, V rows of them, pages. */
enum { OSCAR__BLOB_VERSION = 1, OSCAR__BLOB_HEADER = 56 };
static const char oscar__blob_magic[8] = { 'O', 'S', 'C', 'A', 'R', 'S', 'E', 'Q' };

/* Payload bytes of a sequence of n tokens, h of them in pages; saturates. */
static size_t oscar__blob_payload(const oscar_cache *cache, int64_t n, int64_t h)
{
    size_t sum = 0;
    int i;
    for (i = 0; i < cache->layer_count; i++) {
        const oscar_layout *l = &cache->layers[i].layout;
        size_t row = oscar__window_bytes(l, 1) + oscar__window_bytes(l, 0);
        sum = oscar__add(sum, oscar__mul((size_t)(n - h), row));
        sum = oscar__add(sum, oscar__mul((size_t)(h / l->page_tokens), l->bytes));
    }
    return sum;
}

/* The window row that stands at place i of a blob: sink and recent in order. */
static unsigned char *oscar__blob_window(const oscar_cache *cache, const oscar__store_layer *s, int slot, int is_k,
                                         int64_t i)
{
    int64_t history = cache->pager->seqs[slot].history;
    return oscar__window_row(cache, s, slot, is_k, 0, i < cache->pager_desc.sink ? i : i + history);
}

/* A layer's part of the payload; returns its end. */
static unsigned char *oscar__blob_save_layer(const oscar_cache *cache, const oscar__store_layer *s, int slot,
                                             unsigned char *blob)
{
    const oscar__seq *seq = &cache->pager->seqs[slot];
    size_t page = s->layout.bytes;
    int64_t i;
    int side;
    for (side = 0; side < 2; side++)
        for (i = 0; i < seq->length - seq->history; i++, blob += oscar__window_bytes(&s->layout, !side))
            oscar__copy_little_endian(s->layout.window_type, oscar__blob_window(cache, s, slot, !side, i),
                                      oscar__window_bytes(&s->layout, !side), blob);
    for (i = 0; i < seq->history / s->layout.page_tokens; i++, blob += page)
        memcpy(blob, s->pool + (size_t)seq->pages[i] * page, page);
    return blob;
}

static const unsigned char *oscar__blob_restore_layer(oscar_cache *cache, oscar__store_layer *s, int slot,
                                                      const unsigned char *blob)
{
    const oscar__seq *seq = &cache->pager->seqs[slot];
    size_t page = s->layout.bytes;
    int64_t i;
    int side;
    for (side = 0; side < 2; side++)
        for (i = 0; i < seq->length - seq->history; i++, blob += oscar__window_bytes(&s->layout, !side))
            oscar__copy_little_endian(s->layout.window_type, blob, oscar__window_bytes(&s->layout, !side),
                                      oscar__blob_window(cache, s, slot, !side, i));
    for (i = 0; i < seq->history / s->layout.page_tokens; i++, blob += page)
        memcpy(s->pool + (size_t)seq->pages[i] * page, blob, page);
    return blob;
}

OSCAR_API oscar_result oscar_cache_save(const oscar_cache *cache, oscar_seq seq, void *out, size_t capacity,
                                        size_t *size)
{
    unsigned char *blob = (unsigned char *)out, *end;
    oscar__seq *s;
    const oscar_hooks *hooks = cache ? &cache->desc.hooks : NULL;
    oscar_result result = cache ? oscar__seq_find(cache->pager, hooks, seq, &s) : OSCAR_ERR_ARGUMENT;
    size_t payload, total;
    int i;
    if (result == OSCAR_OK) result = oscar__seq_idle(cache->pager, hooks, s);
    if (result != OSCAR_OK) return result;
    if (!size) return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "oscar_cache_save needs a place for the size");
    payload = oscar__blob_payload(cache, s->length, s->history);
    total = oscar__add(payload, OSCAR__BLOB_HEADER);
    *size = total;
    if (!out) return OSCAR_OK;
    if (capacity < total)
        return OSCAR__FAIL(hooks, OSCAR_ERR_MEMORY, "the blob has %z bytes, the buffer %z", total, capacity);
    memcpy(blob, oscar__blob_magic, 8);
    oscar__put32(blob + 8, OSCAR__BLOB_VERSION);
    oscar__put32(blob + 12, (uint32_t)cache->layer_count);
    oscar__put64(blob + 16, cache->hash);
    oscar__put64(blob + 24, (uint64_t)s->length);
    oscar__put64(blob + 32, (uint64_t)s->history);
    oscar__put64(blob + 40, payload);
    end = blob + OSCAR__BLOB_HEADER;
    for (i = 0; i < cache->layer_count; i++)
        end = oscar__blob_save_layer(cache, &cache->layers[i], oscar__seq_slot(seq), end);
    OSCAR_ASSERT(end == blob + total);
    oscar__put64(blob + 48, oscar__checksum(blob, total, 48));
    return OSCAR_OK;
}

/* Checks everything about a blob that can be known before a sequence is opened. */
static oscar_result oscar__blob_check(const oscar_cache *cache, const unsigned char *blob, size_t size, int64_t *n,
                                      int64_t *h)
{
    const oscar_hooks *hooks = &cache->desc.hooks;
    const oscar_pager_desc *p = &cache->pager_desc;
    if (size < OSCAR__BLOB_HEADER || memcmp(blob, oscar__blob_magic, 8) != 0)
        return OSCAR__FAIL(hooks, OSCAR_ERR_FORMAT, "these %z bytes are not a saved sequence", size);
    if (oscar__get32(blob + 8) != OSCAR__BLOB_VERSION)
        return OSCAR__FAIL(hooks, OSCAR_ERR_VERSION, "the blob has version %I, this library reads %i",
                           (int64_t)oscar__get32(blob + 8), OSCAR__BLOB_VERSION);
    if (oscar__get64(blob + 16) != cache->hash || oscar__get32(blob + 12) != (uint32_t)cache->layer_count)
        return OSCAR__FAIL(hooks, OSCAR_ERR_VERSION, "the blob was saved from a cache of other layers, windows or "
                           "rotations: restore it into one of the same configuration");
    *n = (int64_t)oscar__get64(blob + 24);
    *h = (int64_t)oscar__get64(blob + 32);
    if (*n < 0 || *h < 0 || *h % p->page_tokens || *h > (*n > p->sink ? *n - p->sink : 0)
        || *h < oscar__history_due(p, *n))
        return OSCAR__FAIL(hooks, OSCAR_ERR_FORMAT, "the blob says %I tokens with %I in pages, which cannot be", *n,
                           *h);
    if (oscar__blob_payload(cache, *n, *h) != size - OSCAR__BLOB_HEADER
        || oscar__get64(blob + 40) != size - OSCAR__BLOB_HEADER)
        return OSCAR__FAIL(hooks, OSCAR_ERR_FORMAT, "the blob is cut off or too long");
    if (oscar__checksum(blob, size, 48) != oscar__get64(blob + 48))
        return OSCAR__FAIL(hooks, OSCAR_ERR_FORMAT, "the blob's checksum is wrong: it was damaged");
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_cache_restore(oscar_cache *cache, const void *blob, size_t size, oscar_seq *out)
{
    const oscar_hooks *hooks = cache ? &cache->desc.hooks : NULL;
    oscar__seq *s;
    oscar_seq seq;
    oscar_result result;
    int64_t n = 0, h = 0, pages;
    const unsigned char *payload;
    int i;
    if (!cache || !blob || !out) return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "restore needs a blob and a handle");
    payload = (const unsigned char *)blob + OSCAR__BLOB_HEADER;
    if ((result = oscar__blob_check(cache, (const unsigned char *)blob, size, &n, &h)) != OSCAR_OK) return result;
    pages = h / cache->pager_desc.page_tokens;
    if (pages > oscar_pager_free_pages(cache->pager) || pages > cache->pager->table_pages
        || n > cache->pager_desc.max_tokens)
        return OSCAR__FAIL(hooks, OSCAR_ERR_FULL, "the blob needs %I pages of %I free, and %I tokens of at most %I",
                           pages, oscar_pager_free_pages(cache->pager), n, cache->pager_desc.max_tokens);
    if ((result = oscar__plan_open(cache->pager, hooks)) != OSCAR_OK) return result;
    s = oscar__seq_start(cache->pager, &seq);
    oscar__pages_take(cache->pager, s, pages);
    s->length = n;
    s->history = s->step_history = h;
    for (i = 0; i < cache->layer_count; i++)
        payload = oscar__blob_restore_layer(cache, &cache->layers[i], oscar__seq_slot(seq), payload);
    *out = seq;
    return OSCAR_OK;
}

/* == 3.16 ATTENTION OVER THE CACHE == */

/* What one query sees of a sequence: window spans (sink, ring in one or two pieces) and pages. */
typedef struct oscar__visible {
    oscar_row_span spans[3];
    int span_count;
    int64_t window_tokens;
    oscar_page_list pages;
} oscar__visible;

/* The windows and pages of a slot that hold `length` tokens, `history` of them in pages. */
static void oscar__visible_of(const oscar_cache *cache, const oscar__store_layer *s, int slot, int64_t length,
                              int64_t history, oscar__visible *out)
{
    int64_t sink = cache->pager_desc.sink, position;
    memset(out, 0, sizeof *out);
    for (position = 0; position < length;) {
        int64_t place, count;
        if (position >= sink && position < sink + history) position = sink + history;
        if (position >= length) break;
        place = oscar__window_place(cache, position);
        count = (position < sink && sink < length ? sink : length) - position;
        if (position >= sink && count > sink + cache->ring - place) count = sink + cache->ring - place;
        out->spans[out->span_count].k = oscar__window_view(cache, s, slot, 1, place);
        out->spans[out->span_count].v = oscar__window_view(cache, s, slot, 0, place);
        out->spans[out->span_count].count = count;
        out->spans[out->span_count].position = position;
        out->span_count++;
        out->window_tokens += count;
        position += count;
    }
    out->pages.pool = s->pool;
    out->pages.ids = cache->pager->seqs[slot].pages;
    out->pages.count = history / s->layout.page_tokens;
    out->pages.position = sink;
}

/* Checks a batch entry of an attend. */
static oscar_result oscar__attend_entry(const oscar_cache *cache, int layer, const oscar_batch *b)
{
    const oscar_hooks *hooks = &cache->desc.hooks;
    oscar__seq *s;
    oscar_result result = oscar__seq_find(cache->pager, hooks, b->seq, &s);
    int slot = oscar__seq_slot(b->seq), drafts;
    int64_t length;
    if (result != OSCAR_OK) return result;
    drafts = s->step == OSCAR_STEP_DRAFT || s->step == OSCAR_STEP_DRAFTED;
    length = s->length + s->step_rows;
    if ((s->step == OSCAR_STEP_APPEND || s->step == OSCAR_STEP_DRAFT) && !cache->layers[layer].appended[slot])
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "slot %i has an open step: append to layer %i before it attends",
                           slot, layer);
    if (b->rows > length)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "slot %i has %I tokens, but %I rows attend", slot, length,
                           b->rows);
    if (b->rows > (int64_t)cache->pager_desc.recent + 1 && !(drafts && b->rows <= s->step_rows))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "slot %i: %I rows attend, but only recent + 1 = %I may, so that "
                           "each sees all of history: use oscar_prefill for a chunk", slot, b->rows,
                           (int64_t)cache->pager_desc.recent + 1);
    if (s->step_history && length - b->rows < cache->pager_desc.sink + s->step_history - 1)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT,
                           "slot %i: %I rows attend, but the first of them is older than the newest page of history",
                           slot, b->rows);
    return OSCAR_OK;
}

/* Zeros for the rows of padding. o of any type: all its types have zero as all bits 0. */
static void oscar__attend_padding(const oscar_layer *l, const oscar_batch *b, const oscar_out *o, float *lse)
{
    int64_t r;
    int x;
    for (r = b->row; r < b->row + b->rows; r++)
        for (x = 0; x < l->q_heads; x++) {
            memset(oscar__out_at(o, l->q_heads, l->v_dim, r, x), 0, (size_t)l->v_dim * oscar__type_size(o->type));
            if (lse) lse[r * l->q_heads + x] = -HUGE_VALF;
        }
}

/* A range of the work on one KV head of one sequence: pages [page_first, page_first + page_count), windows or not. */
typedef struct oscar__share { int64_t page_first, page_count; int windows; } oscar__share;

/* Rows that attend: `count` rows from `row` on of the views, at `position` and on. */
typedef struct oscar__attending {
    const oscar_view *q;
    oscar_precision precision;
    int64_t row, count, position;
    const float *sink_logits;
    const oscar_out *o;
    float *lse;
} oscar__attending;

/* Stores the results of queries first, first + 1, ... of a KV head. Adds the learned sink, one more key of value 0. */
static void oscar__attend_store(const oscar__attending *a, const oscar__queries *q, int64_t first, oscar__partial *sum)
{
    const oscar_layer *layer = q->layer;
    int j, c, i;
    for (j = 0; j < q->count; j++) {
        oscar__query_place place = oscar__query_at(layer, q->head, first + j);
        oscar__softmax *s = &sum->of[j], sink;
        int64_t row = a->row + place.token;
        unsigned char *o = (unsigned char *)oscar__out_at(a->o, layer->q_heads, layer->v_dim, row, place.head);
        memset(&sink, 0, sizeof sink);
        if (a->sink_logits) {
            sink.lse = (double)a->sink_logits[place.head];
            oscar__softmax_join(s, &sink);
        }
        for (c = 0; c < layer->v_dim; c += 16) {
            float values[16];
            for (i = 0; i < 16; i++) values[i] = (float)s->acc[c + i];
            oscar__store_saturated(a->o->type, values, 16, o + (size_t)c * oscar__type_size(a->o->type));
        }
        if (a->lse) a->lse[row * layer->q_heads + place.head] = (float)s->lse;
    }
}

/* The query heads of KV head h, for all rows: over a share, and over an own chunk (or NULL). */
static void oscar__attend_head(const oscar_layout *l, const oscar__visible *seen, const oscar__share *share,
                               const oscar_row_span *chunk, int h, const oscar__attending *a)
{
    int64_t first, all = a->count * (l->layer.q_heads / l->layer.kv_heads);
    oscar__queries q;
    oscar__partial sum, part;
    for (first = 0; first < all; first += q.count) {
        int count = oscar__queries_next(&l->layer, all - first);
        oscar__queries_load(&l->layer, a->precision, a->q, a->row, a->position, h, first, count, &q);
        oscar__attend_page_list(l, &seen->pages, share->page_first, share->page_count, &q, part.acc, &sum);
        if (share->windows) {
            oscar__attend_spans(OSCAR_F32, seen->spans, seen->span_count, &q, &part);
            oscar__partial_join(&q, &sum, &part);
        }
        if (chunk) {
            oscar__attend_spans(l->window_type, chunk, 1, &q, &part);
            oscar__partial_join(&q, &sum, &part);
        }
        oscar__attend_store(a, &q, first, &sum);
    }
}

static oscar_result oscar__attend_arguments(const oscar_cache *cache, int layer, const oscar_batch *batch, int count,
                                            const oscar_view *q, const oscar_out *o)
{
    int i;
    if (!cache) return OSCAR_ERR_ARGUMENT;
    if (!oscar__layer_at(cache, layer)) return OSCAR_ERR_ARGUMENT;
    if (count < 0 || (count && !batch) || !q || !q->data || !o || !o->data || !oscar__type_valid(q->type)
        || !oscar__type_valid(o->type))
        return OSCAR__FAIL(&cache->desc.hooks, OSCAR_ERR_ARGUMENT, "attention needs a batch, q and o with data and a "
                           "valid type");
    for (i = 0; i < count; i++)
        if (batch[i].row < 0 || batch[i].rows < 0)
            return OSCAR__FAIL(&cache->desc.hooks, OSCAR_ERR_ARGUMENT,
                               "entry %i of the batch has %I rows from row %I", i, batch[i].rows, batch[i].row);
    return OSCAR_OK;
}

/* An entry of a batch as work: KV heads one after the other, of each the pages that the first query's sliding window
   reaches, then the windows, which are one unit. Measured in tokens times rows. */
typedef struct oscar__attended {
    int64_t length;
    oscar__visible seen;
    int64_t page_first, page_count;
    int64_t page_work, head_work;
} oscar__attended;

static void oscar__attended_of(const oscar_cache *cache, int layer, const oscar_batch *b, oscar__attended *out)
{
    const oscar__store_layer *s = &cache->layers[layer];
    const oscar__seq *seq = &cache->pager->seqs[oscar__seq_slot(b->seq)];
    int64_t start, pages = seq->step_history / s->layout.page_tokens;
    out->length = seq->length + seq->step_rows;
    oscar__visible_of(cache, s, oscar__seq_slot(b->seq), out->length, seq->step_history, &out->seen);
    start = oscar__window_start(&s->layout.layer, out->length - b->rows) - cache->pager_desc.sink;
    out->page_first = start > 0 ? start / s->layout.page_tokens : 0;
    if (out->page_first > pages) out->page_first = pages;
    out->page_count = pages - out->page_first;
    out->page_work = s->layout.page_tokens * b->rows;
    out->head_work = out->page_count * out->page_work + out->seen.window_tokens * b->rows;
}

/* Pages of a head whose middle lies before `bound`, which counts from the head's first page. */
static int64_t oscar__pages_before(const oscar__attended *a, int64_t bound)
{
    if (!a->page_work || bound <= a->page_work / 2) return 0;
    if (bound > a->page_count * a->page_work) return a->page_count;
    return (bound - a->page_work / 2 + a->page_work - 1) / a->page_work;
}

/* What of a head whose work starts at `at` lies in [from, to): a unit belongs to the part that its middle is in. */
static oscar__share oscar__share_of(const oscar__attended *a, int64_t at, int64_t from, int64_t to)
{
    int64_t first = oscar__pages_before(a, from - at);
    int64_t windows = at + (a->page_count * a->page_work + a->head_work) / 2;   /* their middle */
    oscar__share share;
    share.page_first = a->page_first + first;
    share.page_count = oscar__pages_before(a, to - at) - first;
    share.windows = from <= windows && windows < to;
    return share;
}

/* One checked entry: the share of each head, for all of its rows. before: work of the batch in front of it. */
static void oscar__attend_run(const oscar_cache *cache, int layer, const oscar_batch *b, const oscar__attended *a,
                              const oscar_view *q, const float *sink_logits, int64_t before, int64_t from, int64_t to,
                              const oscar_out *o, float *lse)
{
    const oscar_layout *l = &cache->layers[layer].layout;
    oscar__attending rows;
    int h;
    rows.q = q;
    rows.precision = cache->desc.precision;
    rows.row = b->row;
    rows.count = b->rows;
    rows.position = a->length - b->rows;
    rows.sink_logits = sink_logits;
    rows.o = o;
    rows.lse = lse;
    for (h = 0; h < l->layer.kv_heads; h++) {
        oscar__share share = oscar__share_of(a, before + h * a->head_work, from, to);
        oscar__attend_head(l, &a->seen, &share, NULL, h, &rows);
    }
}

/* Checks the whole batch, then runs one part of its work. */
static oscar_result oscar__attend_batch(const oscar_cache *cache, int layer, const oscar_batch *batch, int count,
                                        const oscar_view *q, const float *sink_logits, int part, int parts,
                                        const oscar_out *o, float *lse)
{
    oscar_result result = oscar__attend_arguments(cache, layer, batch, count, q, o);
    int64_t total = 0, before = 0, from, to;
    oscar__attended a;
    int i;
    for (i = 0; result == OSCAR_OK && i < count; i++) {
        if (!batch[i].seq) continue;
        result = oscar__attend_entry(cache, layer, &batch[i]);
        if (result != OSCAR_OK) break;
        oscar__attended_of(cache, layer, &batch[i], &a);
        total += a.head_work * cache->layers[layer].layout.layer.kv_heads;
    }
    if (result != OSCAR_OK) return result;
    from = total / parts * part + total % parts * part / parts;
    to = total / parts * (part + 1) + total % parts * (part + 1) / parts;
    if (part + 1 == parts) to = INT64_MAX;   /* also windows without a token, which start at the very end */
    for (i = 0; i < count; i++) {
        if (!batch[i].seq) {
            oscar__attend_padding(&cache->layers[layer].layout.layer, &batch[i], o, lse);
            continue;
        }
        oscar__attended_of(cache, layer, &batch[i], &a);
        oscar__attend_run(cache, layer, &batch[i], &a, q, sink_logits, before, from, to, o, lse);
        before += a.head_work * cache->layers[layer].layout.layer.kv_heads;
    }
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_attend(const oscar_cache *cache, int layer, const oscar_batch *batch, int count,
                                    const oscar_view *q, const float *sink_logits, const oscar_out *o, float *lse)
{
    return oscar__attend_batch(cache, layer, batch, count, q, sink_logits, 0, 1, o, lse);
}

OSCAR_API oscar_result oscar_attend_part(const oscar_cache *cache, int layer, const oscar_batch *batch, int count,
                                         const oscar_view *q, int part, int parts, float *part_o, float *part_lse)
{
    oscar_out o;
    if (parts < 1 || part < 0 || part >= parts || !part_lse)
        return OSCAR__FAIL(cache ? &cache->desc.hooks : NULL, OSCAR_ERR_ARGUMENT,
                           "part %i of %i: give 0 <= part < parts, and part_lse", part, parts);
    memset(&o, 0, sizeof o);
    o.data = part_o;
    return oscar__attend_batch(cache, layer, batch, count, q, NULL, part, parts, &o, part_lse);
}

/* Attention of one checked entry of a prefill. */
static void oscar__prefill_entry(const oscar_cache *cache, const oscar__store_layer *s, const oscar_batch *b,
                                 const oscar_view *q, const oscar_view *k, const oscar_view *v,
                                 const float *sink_logits, const oscar_out *o, float *lse)
{
    const oscar_layer *l = &s->layout.layer;
    int slot = oscar__seq_slot(b->seq), h;
    const oscar__seq *seq = &cache->pager->seqs[slot];
    oscar__attending rows;
    oscar_row_span chunk;
    oscar__visible seen;
    oscar__share all;
    oscar__visible_of(cache, s, slot, seq->length, seq->history, &seen);
    all.page_first = 0;
    all.page_count = seen.pages.count;
    all.windows = 1;
    chunk.k = *k;
    chunk.v = *v;
    chunk.k.data = oscar__view_at(k, l->kv_heads, l->k_dim, b->row, 0);
    chunk.v.data = oscar__view_at(v, l->kv_heads, l->v_dim, b->row, 0);
    chunk.count = b->rows;
    chunk.position = seq->length;
    rows.q = q;
    rows.precision = cache->desc.precision;
    rows.row = b->row;
    rows.count = b->rows;
    rows.position = seq->length;
    rows.sink_logits = sink_logits;
    rows.o = o;
    rows.lse = lse;
    for (h = 0; h < l->kv_heads; h++) oscar__attend_head(&s->layout, &seen, &all, &chunk, h, &rows);
}

OSCAR_API oscar_result oscar_prefill(oscar_cache *cache, int layer, const oscar_batch *batch, int count,
                                     const oscar_view *q, const oscar_view *k, const oscar_view *v,
                                     const float *sink_logits, const oscar_out *o, float *lse)
{
    oscar_result result = oscar__attend_arguments(cache, layer, batch, count, q, o);
    oscar__store_layer *s;
    int i;
    for (i = 0; result == OSCAR_OK && i < count; i++) {
        oscar__seq *seq;
        if (!batch[i].seq) continue;
        result = oscar__seq_find(cache->pager, &cache->desc.hooks, batch[i].seq, &seq);
        if (result == OSCAR_OK && seq->step == OSCAR_STEP_DRAFT)
            result = OSCAR__FAIL(&cache->desc.hooks, OSCAR_ERR_STATE, "slot %i has a step of drafts: append them, then "
                                 "attend", oscar__seq_slot(batch[i].seq));
    }
    if (result == OSCAR_OK) result = oscar__append_claim(cache, layer, batch, count, k, v);
    if (result != OSCAR_OK) return result;
    s = &cache->layers[layer];
    for (i = 0; i < count; i++) {
        if (batch[i].seq) oscar__prefill_entry(cache, s, &batch[i], q, k, v, sink_logits, o, lse);
        else oscar__attend_padding(&s->layout.layer, &batch[i], o, lse);
    }
    oscar__append_batch(cache, s, batch, count, k, v);
    return OSCAR_OK;
}

/* == 3.17 KERNELS: AVX2 == */
#if defined(OSCAR__HAS_AVX2)

/* -- rows: numbers, transforms (3.3, 3.5) -- */

#define OSCAR__ALL_avx2 0xffu

/* Masks of lanes: a compare, both, either, a choice, one more where it holds, and as bits. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__less_avx2(__m256 a, __m256 b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }

OSCAR__INLINE OSCAR__AVX2 __m256 oscar__at_least_avx2(__m256 a, __m256 b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }

OSCAR__INLINE OSCAR__AVX2 __m256 oscar__above_avx2(__m256i a, __m256i b)
{
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b));
}

OSCAR__INLINE OSCAR__AVX2 __m256 oscar__both_avx2(__m256 a, __m256 b) { return _mm256_and_ps(a, b); }

OSCAR__INLINE OSCAR__AVX2 __m256 oscar__either_avx2(__m256 a, __m256 b) { return _mm256_or_ps(a, b); }

OSCAR__INLINE OSCAR__AVX2 __m256 oscar__pick_avx2(__m256 mask, __m256 yes, __m256 no)
{
    return _mm256_blendv_ps(no, yes, mask);
}

OSCAR__INLINE OSCAR__AVX2 __m256i oscar__pick_int_avx2(__m256 mask, __m256i yes, __m256i no)
{
    return _mm256_blendv_epi8(no, yes, _mm256_castps_si256(mask));
}

OSCAR__INLINE OSCAR__AVX2 __m256i oscar__add_if_avx2(__m256i x, __m256 mask)
{
    return _mm256_sub_epi32(x, _mm256_castps_si256(mask));
}

/* x + unit where the mask holds. */
OSCAR__INLINE OSCAR__AVX2 __m256i oscar__unit_if_avx2(__m256i x, __m256 mask, __m256i unit)
{
    return _mm256_add_epi32(x, _mm256_and_si256(_mm256_castps_si256(mask), unit));
}

OSCAR__INLINE OSCAR__AVX2 unsigned oscar__bits_avx2(__m256 mask) { return (unsigned)_mm256_movemask_ps(mask); }

/* 1.5 where the mask holds, else 0.5: their bits differ in two places. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__level2_avx2(__m256 mask)
{
    const __m256 more = _mm256_castsi256_ps(_mm256_set1_epi32(0x00c00000));
    return _mm256_or_ps(_mm256_set1_ps(0.5f), _mm256_and_ps(mask, more));
}

OSCAR__INLINE OSCAR__AVX2 __m256 oscar__floor_avx2(__m256 x) { return _mm256_floor_ps(x); }

OSCAR__INLINE OSCAR__AVX2 void oscar__put_codes_avx2(unsigned char *p, __m256i codes)
{
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(words, words));
}

/* Codes of four channels, a byte each, to [channel][16]. */
OSCAR__INLINE OSCAR__AVX2 void oscar__put_four_codes_avx2(unsigned char *p, __m256i codes)
{
    const __m256i bytes = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
                                           0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m256i turned = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(codes, bytes),
                                                 _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    __m128i low = _mm256_castsi256_si128(turned), high = _mm256_extracti128_si256(turned, 1);
    _mm_storel_epi64((__m128i *)(void *)p, low);
    _mm_storel_epi64((__m128i *)(void *)(p + OSCAR__TILE), _mm_unpackhi_epi64(low, low));
    _mm_storel_epi64((__m128i *)(void *)(p + 2 * OSCAR__TILE), high);
    _mm_storel_epi64((__m128i *)(void *)(p + 3 * OSCAR__TILE), _mm_unpackhi_epi64(high, high));
}

OSCAR__INLINE OSCAR__AVX2 __m256i oscar__get_codes_avx2(const unsigned char *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

OSCAR__INLINE OSCAR__AVX2 __m256 oscar__round_f16_avx2(__m256 x) { return _mm256_cvtph_ps(_mm256_cvtps_ph(x, 0)); }

OSCAR__INLINE OSCAR__AVX2 __m256 oscar__widen_f16_avx2(const unsigned char *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

OSCAR__INLINE OSCAR__AVX2 __m256 oscar__widen_bf16_avx2(const unsigned char *p)
{
    __m256i halves = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
}

OSCAR__INLINE OSCAR__AVX2 void oscar__put_f16_avx2(unsigned char *p, __m256 x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x, 0));
}

/* x: rounded. */
OSCAR__INLINE OSCAR__AVX2 void oscar__put_bf16_avx2(unsigned char *p, __m256 x)
{
    __m256i halves = _mm256_srli_epi32(_mm256_castps_si256(x), 16);
    __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    _mm_storeu_si128((__m128i *)(void *)p, packed);
}

/* Four channels of every fourth row. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__part_rows_avx2(const float *const *rows, int c)
{
    __m256 x = _mm256_castps128_ps256(_mm_loadu_ps(rows[0] + c));
    return _mm256_insertf128_ps(x, _mm_loadu_ps(rows[4] + c), 1);
}

OSCAR__INLINE OSCAR__AVX2 __m256 oscar__abs_avx2(__m256 x)
{
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
}

/* Lanes that are finite. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__finite_lanes_avx2(__m256 x)
{
    return oscar__at_least_avx2(_mm256_set1_ps(FLT_MAX), oscar__abs_avx2(x));
}

/* n: a multiple of 16. 0 x is NaN where x is not finite. */
static OSCAR__AVX2 int oscar__finite_avx2(const float *x, size_t n)
{
    const __m256 zero = _mm256_setzero_ps();
    __m256 a = zero, b = zero, c = zero, d = zero;
    size_t i = 0;
    for (; i + 4 * 8 <= n; i += 4 * 8) {
        a = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), zero, a);
        b = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 8), zero, b);
        c = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 2 * 8), zero, c);
        d = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 3 * 8), zero, d);
    }
    for (; i < n; i += 8) a = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), zero, a);
    a = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
    return oscar__bits_avx2(oscar__at_least_avx2(a, zero)) == OSCAR__ALL_avx2;
}

/* bfloat16 keeps the upper half, rounded to nearest even; a NaN only gets quiet. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__round_bf16_avx2(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256 nan = oscar__above_avx2(_mm256_castps_si256(oscar__abs_avx2(x)), _mm256_set1_epi32(0x7f800000));
    rounded = oscar__pick_int_avx2(nan, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), rounded);
    return _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32(-0x10000)));
}

static OSCAR__AVX2 void oscar__load_avx2(oscar_type type, const void *in, size_t n, float *out)
{
    const unsigned char *p = (const unsigned char *)in;
    size_t i;
    if (oscar__type_size(type) == 4) memcpy(out, in, n * sizeof *out);
    if (type == OSCAR_BF16)
        for (i = 0; i < n; i += 8) _mm256_storeu_ps(out + i, oscar__widen_bf16_avx2(p + 2 * i));
    if (type == OSCAR_F16)
        for (i = 0; i < n; i += 8) _mm256_storeu_ps(out + i, oscar__widen_f16_avx2(p + 2 * i));
}

static OSCAR__AVX2 void oscar__load_rounded_avx2(oscar_type type, const void *in, oscar_type to, size_t n, float *out)
{
    const float *x = (const float *)in;
    size_t i;
    if (oscar__type_size(to) == 4 || type == to) { oscar__load_avx2(type, in, n, out); return; }
    if (oscar__type_size(type) == 2) { oscar__load_avx2(type, in, n, out); x = out; }
    if (to == OSCAR_BF16)
        for (i = 0; i < n; i += 8) _mm256_storeu_ps(out + i, oscar__round_bf16_avx2(_mm256_loadu_ps(x + i)));
    else
        for (i = 0; i < n; i += 8) _mm256_storeu_ps(out + i, oscar__round_f16_avx2(_mm256_loadu_ps(x + i)));
}

static OSCAR__AVX2 void oscar__store_avx2(oscar_type type, const float *in, size_t n, void *out)
{
    unsigned char *p = (unsigned char *)out;
    size_t i;
    if (oscar__type_size(type) == 4) memcpy(out, in, n * sizeof *in);
    if (type == OSCAR_BF16)
        for (i = 0; i < n; i += 8) oscar__put_bf16_avx2(p + 2 * i, oscar__round_bf16_avx2(_mm256_loadu_ps(in + i)));
    if (type == OSCAR_F16)
        for (i = 0; i < n; i += 8) oscar__put_f16_avx2(p + 2 * i, _mm256_loadu_ps(in + i));
}

static OSCAR__AVX2 void oscar__centre_avx2(int dim, const float *x, const float *mean, float *out)
{
    int i;
    for (i = 0; i < dim; i += 8) _mm256_storeu_ps(out + i, _mm256_sub_ps(_mm256_loadu_ps(x + i),
                                                                         _mm256_loadu_ps(mean + i)));
}

/* S(x, y) of one row. */
static OSCAR__AVX2 float oscar__sum_products_avx2(int n, const float *x, const float *y)
{
    __m256 p = _mm256_setzero_ps(), q = p;
    __m128 p4;
    int i;
    for (i = 0; i < n; i += 16) {
        p = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i), p);
        q = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 8), _mm256_loadu_ps(y + i + 8), q);
    }
    p = _mm256_add_ps(p, q);
    p4 = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    p4 = _mm_add_ps(p4, _mm_movehl_ps(p4, p4));
    return _mm_cvtss_f32(_mm_add_ss(p4, _mm_shuffle_ps(p4, p4, 0x55)));
}

/* (a, b) -> (a + b, a - b) */
#define OSCAR__PAIR(a, b) do { __m256 pair_ = a; a = _mm256_add_ps(pair_, b); b = _mm256_sub_ps(pair_, b); } while (0)
#define OSCAR__PAIRS4(a, b, c, d) do { \
    OSCAR__PAIR(a, b); OSCAR__PAIR(c, d); OSCAR__PAIR(a, c); OSCAR__PAIR(b, d); } while (0)

/* Vector i of a result, scaled or not. */
#define OSCAR__PUT(i, v) _mm256_storeu_ps(out + (i) * 8, scaled ? _mm256_mul_ps(v, scale) : v)

/* The strides inside a vector. (a, b) -> (a + b, a - b) is one fma by +-1, which does not round twice. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__fwht_vector_avx2(const float *p)
{
    const __m256 s1 = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
    const __m256 s2 = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
    const __m256 s4 = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
    __m256 x = _mm256_loadu_ps(p);
    x = _mm256_fmadd_ps(_mm256_movehdup_ps(x), s1, _mm256_moveldup_ps(x));
    x = _mm256_fmadd_ps(x, s2, _mm256_shuffle_ps(x, x, 0x4e));
    x = _mm256_fmadd_ps(x, s4, _mm256_permute2f128_ps(x, x, 0x01));
    return x;
}

/* `count` vectors side by side, 1, 2, 4 or 8: the strides up to all of them; scaled or not. Both are constants at each
   call. in may be out. */
OSCAR__INLINE OSCAR__AVX2 void oscar__fwht_near_avx2(int count, int scaled, const float *in, float *out, __m256 scale)
{
    __m256 a, b, c, d, e, f, g, h;
    a = b = c = d = e = f = g = h = oscar__fwht_vector_avx2(in);
    if (count > 1) b = oscar__fwht_vector_avx2(in + 8);
    if (count > 2) {
        c = oscar__fwht_vector_avx2(in + 2 * 8);
        d = oscar__fwht_vector_avx2(in + 3 * 8);
    }
    if (count > 4) {
        e = oscar__fwht_vector_avx2(in + 4 * 8);
        f = oscar__fwht_vector_avx2(in + 5 * 8);
        g = oscar__fwht_vector_avx2(in + 6 * 8);
        h = oscar__fwht_vector_avx2(in + 7 * 8);
    }
    if (count == 2) OSCAR__PAIR(a, b);
    if (count > 2) OSCAR__PAIRS4(a, b, c, d);
    if (count > 4) {
        OSCAR__PAIRS4(e, f, g, h);
        OSCAR__PAIR(a, e); OSCAR__PAIR(b, f); OSCAR__PAIR(c, g); OSCAR__PAIR(d, h);
    }
    OSCAR__PUT(0, a);
    if (count > 1) OSCAR__PUT(1, b);
    if (count > 2) { OSCAR__PUT(2, c); OSCAR__PUT(3, d); }
    if (count > 4) { OSCAR__PUT(4, e); OSCAR__PUT(5, f); OSCAR__PUT(6, g); OSCAR__PUT(7, h); }
}

/* The two strides `stride` and 2 stride of a block, or (two = 0) one. two and scaled are constants at each call. */
OSCAR__INLINE OSCAR__AVX2 void oscar__fwht_far_avx2(int two, int scaled, int stride, float *x, __m256 scale)
{
    const int step = stride / 8;
    float *out = x, *end = x + stride;
    for (; out < end; out += 8) {
        __m256 a = _mm256_loadu_ps(out), b = _mm256_loadu_ps(out + stride), c = a, d = b;
        if (two) {
            c = _mm256_loadu_ps(out + 2 * stride);
            d = _mm256_loadu_ps(out + 3 * stride);
            OSCAR__PAIRS4(a, b, c, d);
            OSCAR__PUT(2 * step, c);
            OSCAR__PUT(3 * step, d);
        } else OSCAR__PAIR(a, b);
        OSCAR__PUT(0, a);
        OSCAR__PUT(step, b);
    }
}

/* A block of more than 8 vectors: 8 at a time, then one stride if their number is odd, then two at a time. Only the
   last pass scales. */
OSCAR__INLINE OSCAR__AVX2 void oscar__fwht_block_avx2(int block, const float *in, float *out, __m256 scale)
{
    int stride = 8 * 8, left = 0, i;
    for (i = stride; i < block; i *= 2) left++;
    for (i = 0; i < block; i += stride) oscar__fwht_near_avx2(8, 0, in + i, out + i, scale);
    if (left % 2) {
        if (left == 1) oscar__fwht_far_avx2(0, 1, stride, out, scale);
        else for (i = 0; i < block; i += 2 * stride) oscar__fwht_far_avx2(0, 0, stride, out + i, scale);
        stride *= 2;
    }
    for (; 4 * stride < block; stride *= 4)
        for (i = 0; i < block; i += 4 * stride) oscar__fwht_far_avx2(1, 0, stride, out + i, scale);
    if (stride < block) oscar__fwht_far_avx2(1, 1, stride, out, scale);
}

/* Rows of n, block by block: all of them lie one after the other. Blocks of less than a vector are left to the scalar
   code. */
static OSCAR__AVX2 void oscar__fwht_scaled_avx2(int n, size_t rows, float factor, const float *in, float *out)
{
    const __m256 scale = _mm256_set1_ps(factor);
    const size_t block = (size_t)oscar__pow2_divisor(n), all = rows * (size_t)n;
    size_t i;
    if (block == 8) for (i = 0; i < all; i += block) oscar__fwht_near_avx2(1, 1, in + i, out + i, scale);
    else if (block == 2 * 8) for (i = 0; i < all; i += block) oscar__fwht_near_avx2(2, 1, in + i, out + i, scale);
    else if (block == 4 * 8) for (i = 0; i < all; i += block) oscar__fwht_near_avx2(4, 1, in + i, out + i, scale);
    else if (block == 8 * 8) for (i = 0; i < all; i += block) oscar__fwht_near_avx2(8, 1, in + i, out + i, scale);
    else for (i = 0; i < all; i += block) oscar__fwht_block_avx2((int)block, in + i, out + i, scale);
}

static OSCAR__AVX2 void oscar__fwht_avx2(int n, size_t rows, const float *in, float *out)
{
    if (oscar__pow2_divisor(n) < 8) oscar__fwht_rows(n, rows, in, out);
    else oscar__fwht_scaled_avx2(n, rows, oscar__fwht_scale(n), in, out);
}

static OSCAR__AVX2 void oscar__butterfly_avx2(int n, float *x)
{
    if (oscar__pow2_divisor(n) < 8) oscar__butterfly(n, x);
    else oscar__fwht_scaled_avx2(n, 1, 1.0f, x, x);
}

#undef OSCAR__PAIR
#undef OSCAR__PAIRS4
#undef OSCAR__PUT

/* 4 rows of x by `width` vectors of columns; width is a constant at each call. Columns and rows of the sums: a, b, c,
   d are the rows. long: written out, so that the sums stay in registers. */
OSCAR__INLINE OSCAR__AVX2 void oscar__rotate_panel_avx2(int width, int n, const float *m, const float *const *x,
                                                        float *const *out)
{
    const float *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    __m256 a0 = _mm256_setzero_ps(), a1 = a0;
    __m256 b0 = a0, b1 = a0;
    __m256 c0 = a0, c1 = a0;
    __m256 d0 = a0, d1 = a0;
    int i;
    for (i = 0; i < n; i++, m += n) {
        const __m256 s0 = _mm256_set1_ps(x0[i]);
        const __m256 s1 = _mm256_set1_ps(x1[i]);
        const __m256 s2 = _mm256_set1_ps(x2[i]);
        const __m256 s3 = _mm256_set1_ps(x3[i]);
        {
            const __m256 w = _mm256_loadu_ps(m + 0);
            a0 = _mm256_fmadd_ps(s0, w, a0);
            b0 = _mm256_fmadd_ps(s1, w, b0);
            c0 = _mm256_fmadd_ps(s2, w, c0);
            d0 = _mm256_fmadd_ps(s3, w, d0);
        }
        if (width > 1) {
            const __m256 w = _mm256_loadu_ps(m + 8);
            a1 = _mm256_fmadd_ps(s0, w, a1);
            b1 = _mm256_fmadd_ps(s1, w, b1);
            c1 = _mm256_fmadd_ps(s2, w, c1);
            d1 = _mm256_fmadd_ps(s3, w, d1);
        }
    }
    _mm256_storeu_ps(out[0], a0);
    _mm256_storeu_ps(out[1], b0);
    _mm256_storeu_ps(out[2], c0);
    _mm256_storeu_ps(out[3], d0);
    if (width > 1) {
        _mm256_storeu_ps(out[0] + 8, a1);
        _mm256_storeu_ps(out[1] + 8, b1);
        _mm256_storeu_ps(out[2] + 8, c1);
        _mm256_storeu_ps(out[3] + 8, d1);
    }
}

/* All rows by a panel of columns; the last row stands in for missing ones. A function of its own: inlined, the sums did
   not all stay in registers. */
static OSCAR__NOINLINE OSCAR__AVX2 void oscar__rotate_rows_avx2(int n, int rows, int width, const float *m,
                                                                const float *x, float *out)
{
    int r, k;
    for (r = 0; r < rows; r += 4) {
        const float *from[4];
        float *to[4];
        for (k = 0; k < 4; k++) {
            size_t at = (size_t)n * (size_t)(r + k < rows ? r + k : rows - 1);
            from[k] = x + at;
            to[k] = out + at;
        }
        if (width == 2) oscar__rotate_panel_avx2(2, n, m, from, to);
        else oscar__rotate_panel_avx2(1, n, m, from, to);
    }
}

/* Panels of columns outside, so that a panel of m stays in the nearest cache. */
static OSCAR__AVX2 void oscar__rotate_avx2(int n, int rows, const float *m, const float *x, float *out)
{
    const size_t row = (size_t)n;
    int j = 0, r, i, width;
    for (; j + 8 <= n; j += width * 8) {
        width = j + 16 <= n ? 2 : 1;
        oscar__rotate_rows_avx2(n, rows, width, m + j, x, out + j);
    }
    for (; j < n; j++)   /* less than a vector is left */
        for (r = 0; r < rows; r++) {
            float sum = 0.0f;
            for (i = 0; i < n; i++) sum = fmaf(x[row * (size_t)r + (size_t)i], m[row * (size_t)i + (size_t)j], sum);
            out[row * (size_t)r + (size_t)j] = sum;
        }
}

/* -- rows: page mean (3.12) -- */

/* z_j: one chain over the tokens. dim: a multiple of 16. */
static OSCAR__AVX2 void oscar__mean_sum_avx2(int tokens, int dim, const float *x, float *z)
{
    const __m256 share = _mm256_set1_ps((float)(1.0 / tokens));
    const size_t row = (size_t)dim;
    int t, j;
    for (j = 0; j + 4 * 8 <= dim; j += 4 * 8) {
        const float *p = x + j;
        __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
        for (t = 0; t < tokens; t++, p += row) {
            a = _mm256_fmadd_ps(_mm256_loadu_ps(p), share, a);
            b = _mm256_fmadd_ps(_mm256_loadu_ps(p + 8), share, b);
            c = _mm256_fmadd_ps(_mm256_loadu_ps(p + 2 * 8), share, c);
            d = _mm256_fmadd_ps(_mm256_loadu_ps(p + 3 * 8), share, d);
        }
        _mm256_storeu_ps(z + j, a);
        _mm256_storeu_ps(z + j + 8, b);
        _mm256_storeu_ps(z + j + 2 * 8, c);
        _mm256_storeu_ps(z + j + 3 * 8, d);
    }
    for (; j < dim; j += 8) {
        const float *p = x + j;
        __m256 a = _mm256_setzero_ps();
        for (t = 0; t < tokens; t++, p += row) a = _mm256_fmadd_ps(_mm256_loadu_ps(p), share, a);
        _mm256_storeu_ps(z + j, a);
    }
}

static OSCAR__AVX2 void oscar__mean_levels_avx2(int dim, const float *z, float s, float *n, unsigned char *bytes)
{
    const __m256 top = _mm256_set1_ps(127.5f), bottom = _mm256_set1_ps(-127.5f), half = _mm256_set1_ps(0.5f);
    int j;
    for (j = 0; j < dim; j += 8) {
        __m256 level = half;
        if (s > 0) level = _mm256_add_ps(oscar__floor_avx2(_mm256_div_ps(_mm256_loadu_ps(z + j), _mm256_set1_ps(s))),
                                         half);
        level = _mm256_min_ps(top, _mm256_max_ps(bottom, level));
        _mm256_storeu_ps(n + j, level);
        oscar__put_codes_avx2(bytes + j, _mm256_cvttps_epi32(_mm256_add_ps(level, top)));
    }
}

/* -- tiles: rows side by side in the lanes of vectors, [channel][16 rows] (3.11) -- */

/* Every step is that of the scalar code for one row, for 8 rows at a time. x is always [channels][16], from the lane
   on where the 8 rows start. */

/* Four channels of 8 rows, from four vectors of four channels of every fourth row. */
#define OSCAR__TURN(a, b, d, e) do { \
    __m256 low_ = _mm256_unpacklo_ps(a, b), high_ = _mm256_unpackhi_ps(a, b); \
    __m256 more_ = _mm256_unpacklo_ps(d, e), most_ = _mm256_unpackhi_ps(d, e); \
    a = _mm256_shuffle_ps(low_, more_, 0x44); \
    b = _mm256_shuffle_ps(low_, more_, 0xee); \
    d = _mm256_shuffle_ps(high_, most_, 0x44); \
    e = _mm256_shuffle_ps(high_, most_, 0xee); } while (0)

OSCAR__INLINE OSCAR__AVX2 void oscar__turn_four_avx2(const float *const *rows, int c, float *out)
{
    __m256 a = oscar__part_rows_avx2(rows, c), b = oscar__part_rows_avx2(rows + 1, c);
    __m256 d = oscar__part_rows_avx2(rows + 2, c), e = oscar__part_rows_avx2(rows + 3, c);
    OSCAR__TURN(a, b, d, e);
    _mm256_storeu_ps(out, a);
    _mm256_storeu_ps(out + OSCAR__TILE, b);
    _mm256_storeu_ps(out + 2 * OSCAR__TILE, d);
    _mm256_storeu_ps(out + 3 * OSCAR__TILE, e);
}

/* 8 rows from `first` on; the last of all `count` rows stands in for those after it. */
static OSCAR__AVX2 void oscar__to_lanes_avx2(int dim, int first, int count, const float *rows, float *x)
{
    const float *row[8];
    int c, t;
    for (t = 0; t < 8; t++)
        row[t] = rows + (size_t)(first + t < count ? first + t : count - 1) * (size_t)dim;
    for (c = 0; c < dim; c += 4) oscar__turn_four_avx2(row, c, x + c * OSCAR__TILE);
}

/* Rows of m side by side (3.5), so that each lane has the chain of one output. */
static OSCAR__AVX2 void oscar__rotate_back_avx2(int n, const float *m, const float *x, float *out)
{
    int i, j, t;
    for (i = 0; i < n; i += 8) {
        __m256 sum = _mm256_setzero_ps();
        const float *row[8];
        for (t = 0; t < 8; t++) row[t] = m + (size_t)(i + t) * (size_t)n;
        for (j = 0; j < n; j += 4) {
            __m256 a = oscar__part_rows_avx2(row, j), b = oscar__part_rows_avx2(row + 1, j);
            __m256 d = oscar__part_rows_avx2(row + 2, j), e = oscar__part_rows_avx2(row + 3, j);
            OSCAR__TURN(a, b, d, e);
            sum = _mm256_fmadd_ps(_mm256_set1_ps(x[j]), a, sum);
            sum = _mm256_fmadd_ps(_mm256_set1_ps(x[j + 1]), b, sum);
            sum = _mm256_fmadd_ps(_mm256_set1_ps(x[j + 2]), d, sum);
            sum = _mm256_fmadd_ps(_mm256_set1_ps(x[j + 3]), e, sum);
        }
        _mm256_storeu_ps(out + i, sum);
    }
}

#undef OSCAR__TURN

/* The end of S: the tree over 16 chains. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__tree_avx2(__m256 *chain)
{
    int l, step;
    for (step = OSCAR__LANES / 2; step; step /= 2)
        for (l = 0; l < step; l++) chain[l] = _mm256_add_ps(chain[l], chain[l + step]);
    return chain[0];
}

static OSCAR__AVX2 __m256 oscar__lane_sum_avx2(int n, const float *x, const float *y)
{
    __m256 chain[OSCAR__LANES];
    int l, c;
    for (l = 0; l < OSCAR__LANES; l += 4) {
        __m256 p0 = _mm256_setzero_ps(), p1 = p0, p2 = p0, p3 = p0;
        for (c = l * OSCAR__TILE; c < n * OSCAR__TILE; c += OSCAR__LANES * OSCAR__TILE) {
            const float *a = x + c, *b = y + c;
            p0 = _mm256_fmadd_ps(_mm256_loadu_ps(a), _mm256_loadu_ps(b), p0);
            p1 = _mm256_fmadd_ps(_mm256_loadu_ps(a + OSCAR__TILE), _mm256_loadu_ps(b + OSCAR__TILE), p1);
            p2 = _mm256_fmadd_ps(_mm256_loadu_ps(a + 2 * OSCAR__TILE), _mm256_loadu_ps(b + 2 * OSCAR__TILE), p2);
            p3 = _mm256_fmadd_ps(_mm256_loadu_ps(a + 3 * OSCAR__TILE), _mm256_loadu_ps(b + 3 * OSCAR__TILE), p3);
        }
        chain[l] = p0;
        chain[l + 1] = p1;
        chain[l + 2] = p2;
        chain[l + 3] = p3;
    }
    return oscar__tree_avx2(chain);
}

/* Subtracts the page mean from the rows that it makes shorter. lane: of the tile, of the first row. */
static OSCAR__AVX2 void oscar__subtract_mean_avx2(const oscar__encoder *e, oscar__tile *tile, int lane, float *x)
{
    const __m256 s = _mm256_set1_ps(e->mean_scale);
    __m256 chain_x[OSCAR__LANES], chain_y[OSCAR__LANES], xx, yy;
    __m256 shorter;
    int l, c;
    for (l = 0; l < OSCAR__LANES; l++) {
        __m256 px = _mm256_setzero_ps(), py = px;
        for (c = l; c < e->dim; c += OSCAR__LANES) {
            __m256 one = _mm256_loadu_ps(x + c * OSCAR__TILE), y = _mm256_fnmadd_ps(_mm256_set1_ps(e->mean[c]), s, one);
            px = _mm256_fmadd_ps(one, one, px);
            py = _mm256_fmadd_ps(y, y, py);
        }
        chain_x[l] = px;
        chain_y[l] = py;
    }
    xx = oscar__tree_avx2(chain_x);
    yy = oscar__tree_avx2(chain_y);
    shorter = oscar__less_avx2(yy, xx);
    tile->kept |= (~oscar__bits_avx2(shorter) & OSCAR__ALL_avx2) << lane;
    if (e->overflow == OSCAR__REFUSE) {
        tile->bad |= (~oscar__bits_avx2(oscar__finite_lanes_avx2(xx)) & OSCAR__ALL_avx2) << lane;
        tile->bad |= (~oscar__bits_avx2(oscar__finite_lanes_avx2(yy)) & OSCAR__ALL_avx2) << lane;
    }
    for (c = 0; c < e->dim; c++) {
        __m256 one = _mm256_loadu_ps(x + c * OSCAR__TILE), y = _mm256_fnmadd_ps(_mm256_set1_ps(e->mean[c]), s, one);
        _mm256_storeu_ps(x + c * OSCAR__TILE, oscar__pick_avx2(shorter, y, one));
    }
}

/* Rounds scales or minima to the metadata type. Lanes that overflow are returned and saturated. */
static OSCAR__AVX2 __m256 oscar__metadata_round_avx2(oscar_type type, __m256 *x)
{
    const __m256 zero = _mm256_setzero_ps(), limit = _mm256_set1_ps(type == OSCAR_F32 ? FLT_MAX : 65504.0f);
    __m256 rounded = type == OSCAR_F32 ? *x : oscar__round_f16_avx2(*x), capped;
    __m256 fits = oscar__at_least_avx2(limit, oscar__abs_avx2(rounded));
    capped = oscar__pick_avx2(oscar__less_avx2(zero, rounded), limit, zero);
    capped = oscar__pick_avx2(oscar__less_avx2(rounded, zero), _mm256_sub_ps(zero, limit), capped);
    *x = oscar__pick_avx2(fits, rounded, capped);
    return fits;
}

/* Rounds row_count numbers of a tile's metadata. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__metadata_lanes_avx2(const oscar__encoder *e, oscar__tile *tile, int lane,
                                                            __m256 x)
{
    __m256 fits = oscar__metadata_round_avx2(e->codec->metadata, &x);
    if (e->overflow == OSCAR__REFUSE) tile->bad |= (~oscar__bits_avx2(fits) & OSCAR__ALL_avx2) << lane;
    return x;
}

/* How many of dim magnitudes are above `middle`. */
OSCAR__INLINE OSCAR__AVX2 __m256i oscar__count_above_avx2(int dim, const float *magnitude, __m256i middle)
{
    __m256i a = _mm256_setzero_si256(), b = a;
    int c;
    for (c = 0; c < dim; c += 2) {
        const float *p = magnitude + c * OSCAR__TILE;
        a = oscar__add_if_avx2(a, oscar__above_avx2(_mm256_castps_si256(_mm256_loadu_ps(p)), middle));
        b = oscar__add_if_avx2(b, oscar__above_avx2(_mm256_castps_si256(_mm256_loadu_ps(p + OSCAR__TILE)), middle));
    }
    return _mm256_add_epi32(a, b);
}

/* The magnitude of a rank in each row, by bisection on its bits. It starts at a guess and moves away from it in steps
   that double, and it ends early where a bound has just rank + 1 magnitudes below: the largest of them is it. */
static OSCAR__AVX2 __m256 oscar__rank_avx2(int dim, int rank, const float *magnitude, __m256i guess)
{
    const __m256i one = _mm256_set1_epi32(1), above_rank = _mm256_set1_epi32(dim - rank - 1);
    __m256i low = _mm256_setzero_si256(), high = _mm256_set1_epi32(0x7f800000), step = _mm256_set1_epi32(1 << 19);
    __m256i middle = guess, found = low;
    int c;
    while (oscar__bits_avx2(oscar__above_avx2(high, low))) {
        __m256i above = oscar__count_above_avx2(dim, magnitude, middle), centre;
        __m256 too_low = oscar__above_avx2(above, above_rank), near_enough = oscar__above_avx2(above_rank, above);
        high = oscar__pick_int_avx2(too_low, high, middle);
        low = oscar__pick_int_avx2(too_low, _mm256_add_epi32(middle, one),
                                 oscar__pick_int_avx2(near_enough, low, middle));
        centre = _mm256_add_epi32(low, _mm256_srli_epi32(_mm256_sub_epi32(high, low), 1));
        middle = oscar__pick_int_avx2(too_low, _mm256_min_epu32(centre, _mm256_add_epi32(low, step)),
                                    _mm256_max_epi32(centre, _mm256_sub_epi32(high, step)));
        step = _mm256_min_epu32(_mm256_add_epi32(step, step), _mm256_set1_epi32(1 << 30));
    }
    for (c = 0; c < dim; c++) {
        __m256i one_magnitude = _mm256_castps_si256(_mm256_loadu_ps(magnitude + c * OSCAR__TILE));
        __m256 above = oscar__above_avx2(one_magnitude, low);
        found = oscar__pick_int_avx2(above, found, _mm256_max_epi32(found, one_magnitude));
    }
    return _mm256_castsi256_ps(found);
}

/* (a, b) -> the larger, the smaller */
#define OSCAR__ORDER(a, b) do { __m256 low_ = _mm256_min_ps(a, b); a = _mm256_max_ps(a, b); b = low_; } while (0)

/* Batcher's network: 8 vectors, the largest first. */
OSCAR__INLINE OSCAR__AVX2 void oscar__sort8_avx2(__m256 *v)
{
    OSCAR__ORDER(v[0], v[1]); OSCAR__ORDER(v[2], v[3]); OSCAR__ORDER(v[4], v[5]); OSCAR__ORDER(v[6], v[7]);
    OSCAR__ORDER(v[0], v[2]); OSCAR__ORDER(v[1], v[3]); OSCAR__ORDER(v[4], v[6]); OSCAR__ORDER(v[5], v[7]);
    OSCAR__ORDER(v[1], v[2]); OSCAR__ORDER(v[5], v[6]);
    OSCAR__ORDER(v[0], v[4]); OSCAR__ORDER(v[1], v[5]); OSCAR__ORDER(v[2], v[6]); OSCAR__ORDER(v[3], v[7]);
    OSCAR__ORDER(v[2], v[4]); OSCAR__ORDER(v[3], v[5]);
    OSCAR__ORDER(v[1], v[2]); OSCAR__ORDER(v[3], v[4]); OSCAR__ORDER(v[5], v[6]);
}

/* The end of a bitonic merge: 8 vectors that fall and rise, the largest first. */
OSCAR__INLINE OSCAR__AVX2 void oscar__merge8_avx2(__m256 *v)
{
    OSCAR__ORDER(v[0], v[4]); OSCAR__ORDER(v[1], v[5]); OSCAR__ORDER(v[2], v[6]); OSCAR__ORDER(v[3], v[7]);
    OSCAR__ORDER(v[0], v[2]); OSCAR__ORDER(v[1], v[3]); OSCAR__ORDER(v[4], v[6]); OSCAR__ORDER(v[5], v[7]);
    OSCAR__ORDER(v[0], v[1]); OSCAR__ORDER(v[2], v[3]); OSCAR__ORDER(v[4], v[5]); OSCAR__ORDER(v[6], v[7]);
}

/* The magnitude of a rank from the top in each row, less than 8, or (wide) 16: 8 channels are sorted and merged with
   the largest so far. wide is a constant at each call. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__top_avx2(int wide, int dim, int rank, const float *x)
{
    __m256 best[16], v[8];
    int c;
    best[0] = best[1] = best[2] = best[3] = best[4] = best[5] = best[6] = best[7] = _mm256_setzero_ps();
    best[8] = best[9] = best[10] = best[11] = best[12] = best[13] = best[14] = best[15] = best[0];
    for (c = 0; c < dim; c += 8, x += 8 * OSCAR__TILE) {
        __m256 *last = wide ? best + 8 : best;
        v[0] = oscar__abs_avx2(_mm256_loadu_ps(x));
        v[1] = oscar__abs_avx2(_mm256_loadu_ps(x + OSCAR__TILE));
        v[2] = oscar__abs_avx2(_mm256_loadu_ps(x + 2 * OSCAR__TILE));
        v[3] = oscar__abs_avx2(_mm256_loadu_ps(x + 3 * OSCAR__TILE));
        v[4] = oscar__abs_avx2(_mm256_loadu_ps(x + 4 * OSCAR__TILE));
        v[5] = oscar__abs_avx2(_mm256_loadu_ps(x + 5 * OSCAR__TILE));
        v[6] = oscar__abs_avx2(_mm256_loadu_ps(x + 6 * OSCAR__TILE));
        v[7] = oscar__abs_avx2(_mm256_loadu_ps(x + 7 * OSCAR__TILE));
        oscar__sort8_avx2(v);
        last[0] = _mm256_max_ps(last[0], v[7]); last[1] = _mm256_max_ps(last[1], v[6]);
        last[2] = _mm256_max_ps(last[2], v[5]); last[3] = _mm256_max_ps(last[3], v[4]);
        last[4] = _mm256_max_ps(last[4], v[3]); last[5] = _mm256_max_ps(last[5], v[2]);
        last[6] = _mm256_max_ps(last[6], v[1]); last[7] = _mm256_max_ps(last[7], v[0]);
        if (wide) {
            OSCAR__ORDER(best[0], best[8]); OSCAR__ORDER(best[1], best[9]); OSCAR__ORDER(best[2], best[10]);
            OSCAR__ORDER(best[3], best[11]); OSCAR__ORDER(best[4], best[12]); OSCAR__ORDER(best[5], best[13]);
            OSCAR__ORDER(best[6], best[14]); OSCAR__ORDER(best[7], best[15]);
            oscar__merge8_avx2(best + 8);
        }
        oscar__merge8_avx2(best);
    }
    {
        float all[16 * 8];
        for (c = 0; c < 16; c++) _mm256_storeu_ps(all + c * 8, best[c]);
        return _mm256_loadu_ps(all + rank * 8);
    }
}

#undef OSCAR__ORDER

/* The magnitude of a rank in each row. guess: about where it is, and then where it was. */
static OSCAR__AVX2 __m256 oscar__threshold_avx2(int dim, int rank, const float *x, float *magnitude, __m256i *guess)
{
    __m256 tau;
    int c;
    if (dim - rank <= 8) return oscar__top_avx2(0, dim, dim - rank - 1, x);
    if (dim - rank <= 16) return oscar__top_avx2(1, dim, dim - rank - 1, x);
    for (c = 0; c < dim; c++)
        _mm256_storeu_ps(magnitude + c * OSCAR__TILE, oscar__abs_avx2(_mm256_loadu_ps(x + c * OSCAR__TILE)));
    tau = oscar__rank_avx2(dim, rank, magnitude, *guess);
    *guess = _mm256_castps_si256(tau);
    return tau;
}

/* CLIP: clamps rows to the magnitude of a rank. */
static OSCAR__AVX2 void oscar__clamp_avx2(int dim, int rank, float *x, float *magnitude, __m256i *guess)
{
    __m256 tau = oscar__threshold_avx2(dim, rank, x, magnitude, guess);
    __m256 minus = _mm256_sub_ps(_mm256_setzero_ps(), tau);
    int c;
    for (c = 0; c < dim; c++) {
        __m256 one = _mm256_min_ps(tau, _mm256_loadu_ps(x + c * OSCAR__TILE));
        _mm256_storeu_ps(x + c * OSCAR__TILE, _mm256_max_ps(minus, one));
    }
}

/* A code of 2 bits as byte k of four: how many of t0 <= t1 <= t2 are not above y, of none for a NaN. k is a constant at
   each call. */
OSCAR__INLINE OSCAR__AVX2 __m256i oscar__code2_avx2(__m256i four, int k, __m256 y, __m256 t0, __m256 t1, __m256 t2)
{
    __m256 upper = oscar__at_least_avx2(y, t1), odd = oscar__at_least_avx2(y, oscar__pick_avx2(upper, t2, t0));
    four = oscar__unit_if_avx2(four, upper, _mm256_set1_epi32(2 << 8 * k));
    return oscar__unit_if_avx2(four, odd, _mm256_set1_epi32(1 << 8 * k));
}

/* The same of 4 bits, of a level that is a whole number or is to be cut off. */
OSCAR__INLINE OSCAR__AVX2 __m256i oscar__code4_avx2(__m256i four, int k, __m256 level)
{
    return _mm256_or_si256(four, _mm256_slli_epi32(_mm256_cvttps_epi32(level), 8 * k));
}

/* CLIP, one code as byte k of four. bits and k are constants at each call. */
OSCAR__INLINE OSCAR__AVX2 __m256i oscar__clip_code_avx2(__m256i four, int bits, int k, const float *x,
                                                        __m256 lo, __m256 s, __m256 t0, __m256 t1, __m256 t2)
{
    __m256 y = _mm256_sub_ps(_mm256_loadu_ps(x + k * OSCAR__TILE), lo), level;
    if (bits == 2) return oscar__code2_avx2(four, k, y, t0, t1, t2);
    level = _mm256_add_ps(_mm256_div_ps(y, s), _mm256_set1_ps(0.5f));
    level = _mm256_min_ps(_mm256_set1_ps(15.0f), _mm256_max_ps(level, _mm256_setzero_ps()));
    return oscar__code4_avx2(four, k, level);
}

/* CLIP, codes of one group of n channels from rounded scale and minimum. bits is a constant at each call. */
OSCAR__INLINE OSCAR__AVX2 void oscar__clip_codes_avx2(int n, int bits, const float *x, __m256 s, __m256 lo,
                                                      unsigned char *codes)
{
    const __m256 positive = oscar__less_avx2(_mm256_setzero_ps(), s);
    const __m256i none = _mm256_setzero_si256();
    const __m256 half = _mm256_set1_ps(0.5f), divisor = oscar__pick_avx2(positive, s, half);
    const __m256 t0 = _mm256_mul_ps(half, s), t1 = _mm256_mul_ps(_mm256_set1_ps(1.5f), s);
    const __m256 t2 = _mm256_mul_ps(_mm256_set1_ps(2.5f), s);
    int c;
    for (c = 0; c < n; c += 4) {
        const float *at = x + c * OSCAR__TILE;
        __m256i four = oscar__clip_code_avx2(none, bits, 0, at, lo, divisor, t0, t1, t2);
        four = oscar__clip_code_avx2(four, bits, 1, at, lo, divisor, t0, t1, t2);
        four = oscar__clip_code_avx2(four, bits, 2, at, lo, divisor, t0, t1, t2);
        four = oscar__clip_code_avx2(four, bits, 3, at, lo, divisor, t0, t1, t2);
        oscar__put_four_codes_avx2(codes + c * OSCAR__TILE, oscar__pick_int_avx2(positive, four, none));
    }
}

/* CLIP, one group of n channels of clamped rows. Minimum and maximum may be a zero of either sign until 0 is added. */
static OSCAR__AVX2 void oscar__fit_clip_avx2(const oscar__encoder *e, oscar__tile *tile, int lane, int g,
                                             const float *x)
{
    const __m256 zero = _mm256_setzero_ps();
    int n = e->codec->group, c, at = g * OSCAR__TILE + lane;
    __m256 lo = _mm256_loadu_ps(x), lo1 = lo, lo2 = lo, lo3 = lo, hi = lo, hi1 = lo, hi2 = lo, hi3 = lo, s;
    for (c = 0; c < n; c += 4) {
        const float *p = x + c * OSCAR__TILE;
        __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + OSCAR__TILE);
        __m256 d = _mm256_loadu_ps(p + 2 * OSCAR__TILE), f = _mm256_loadu_ps(p + 3 * OSCAR__TILE);
        lo = _mm256_min_ps(a, lo);
        hi = _mm256_max_ps(a, hi);
        lo1 = _mm256_min_ps(b, lo1);
        hi1 = _mm256_max_ps(b, hi1);
        lo2 = _mm256_min_ps(d, lo2);
        hi2 = _mm256_max_ps(d, hi2);
        lo3 = _mm256_min_ps(f, lo3);
        hi3 = _mm256_max_ps(f, hi3);
    }
    lo = _mm256_add_ps(_mm256_min_ps(_mm256_min_ps(lo, lo1), _mm256_min_ps(lo2, lo3)), zero);
    hi = _mm256_add_ps(_mm256_max_ps(_mm256_max_ps(hi, hi1), _mm256_max_ps(hi2, hi3)), zero);
    s = _mm256_div_ps(_mm256_sub_ps(hi, lo), _mm256_set1_ps(e->codec->bits == 2 ? 3.0f : 15.0f));
    s = oscar__metadata_lanes_avx2(e, tile, lane, s);
    lo = oscar__metadata_lanes_avx2(e, tile, lane, lo);
    _mm256_storeu_ps(tile->scale + at, s);
    _mm256_storeu_ps(tile->minimum + at, lo);
    if (e->codec->bits == 2) oscar__clip_codes_avx2(n, 2, x, s, lo, tile->codes + g * n * OSCAR__TILE + lane);
    else oscar__clip_codes_avx2(n, 4, x, s, lo, tile->codes + g * n * OSCAR__TILE + lane);
}

/* UNBIASED, 2 bits: S(x, u) and S(u, u) of the four steps t. |u| is 1.5 where x >= t or x < -t, else 0.5: an integer
   compare of |x|, less one unit where x < 0. S(u, u) is exact in any order, so it is counted. */
static OSCAR__AVX2 void oscar__try_steps2_avx2(int n, const float *x, const __m256 *t, __m256 *xu, __m256 *uu)
{
    __m256 chain[4][OSCAR__LANES];
    __m256i t0 = _mm256_castps_si256(t[0]), t1 = _mm256_castps_si256(t[1]), t2 = _mm256_castps_si256(t[2]);
    __m256i t3 = _mm256_castps_si256(t[3]), one = _mm256_set1_epi32(1), many[4];
    int l, c, a;
    t0 = _mm256_sub_epi32(t0, one);
    t1 = _mm256_sub_epi32(t1, one);
    t2 = _mm256_sub_epi32(t2, one);
    t3 = _mm256_sub_epi32(t3, one);
    for (a = 0; a < 4; a++) many[a] = _mm256_setzero_si256();
    for (l = 0; l < OSCAR__LANES; l++) {
        __m256 p0 = _mm256_setzero_ps(), p1 = p0, p2 = p0, p3 = p0;
        __m256i n0 = many[0], n1 = many[1], n2 = many[2], n3 = many[3];
        for (c = l; c < n; c += OSCAR__LANES) {
            __m256 value = _mm256_loadu_ps(x + c * OSCAR__TILE), size = oscar__abs_avx2(value);
            __m256i key = _mm256_sub_epi32(_mm256_castps_si256(size), _mm256_srli_epi32(_mm256_castps_si256(value),
                                                                                        31));
            __m256 m0 = oscar__above_avx2(key, t0), m1 = oscar__above_avx2(key, t1);
            __m256 m2 = oscar__above_avx2(key, t2), m3 = oscar__above_avx2(key, t3);
            p0 = _mm256_fmadd_ps(size, oscar__level2_avx2(m0), p0);
            p1 = _mm256_fmadd_ps(size, oscar__level2_avx2(m1), p1);
            p2 = _mm256_fmadd_ps(size, oscar__level2_avx2(m2), p2);
            p3 = _mm256_fmadd_ps(size, oscar__level2_avx2(m3), p3);
            n0 = oscar__add_if_avx2(n0, m0);
            n1 = oscar__add_if_avx2(n1, m1);
            n2 = oscar__add_if_avx2(n2, m2);
            n3 = oscar__add_if_avx2(n3, m3);
        }
        chain[0][l] = p0;
        chain[1][l] = p1;
        chain[2][l] = p2;
        chain[3][l] = p3;
        many[0] = n0;
        many[1] = n1;
        many[2] = n2;
        many[3] = n3;
    }
    for (a = 0; a < 4; a++) {
        __m256i quarters = _mm256_add_epi32(_mm256_slli_epi32(many[a], 3), _mm256_set1_epi32(n));
        xu[a] = oscar__tree_avx2(chain[a]);
        uu[a] = _mm256_mul_ps(_mm256_cvtepi32_ps(quarters), _mm256_set1_ps(0.25f));
    }
}

/* The level nearest to x / t, 4 bits. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__level4_avx2(__m256 x, __m256 t)
{
    __m256 level = _mm256_add_ps(oscar__floor_avx2(_mm256_div_ps(x, t)), _mm256_set1_ps(0.5f));
    return _mm256_min_ps(_mm256_set1_ps(7.5f), _mm256_max_ps(_mm256_set1_ps(-7.5f), level));
}

/* The same for 4 bits. */
static OSCAR__AVX2 void oscar__try_steps4_avx2(int n, const float *x, const __m256 *t, __m256 *xu, __m256 *uu)
{
    __m256 chain[OSCAR__LANES];
    int a, l, c;
    for (a = 0; a < 4; a++) {
        uu[a] = _mm256_setzero_ps();
        for (l = 0; l < OSCAR__LANES; l++) {
            __m256 p = _mm256_setzero_ps();
            for (c = l; c < n; c += OSCAR__LANES) {
                __m256 value = _mm256_loadu_ps(x + c * OSCAR__TILE), u = oscar__level4_avx2(value, t[a]);
                p = _mm256_fmadd_ps(value, u, p);
                uu[a] = _mm256_fmadd_ps(u, u, uu[a]);
            }
            chain[l] = p;
        }
        xu[a] = oscar__tree_avx2(chain);
    }
}

/* UNBIASED, one code as byte k of four. bits and k are constants at each call. */
OSCAR__INLINE OSCAR__AVX2 __m256i oscar__unbiased_code_avx2(__m256i four, int bits, int k, const float *x, __m256 t)
{
    const __m256 zero = _mm256_setzero_ps();
    __m256 value = _mm256_loadu_ps(x + k * OSCAR__TILE);
    if (bits == 2) return oscar__code2_avx2(four, k, value, _mm256_sub_ps(zero, t), zero, t);
    return oscar__code4_avx2(four, k, _mm256_add_ps(oscar__level4_avx2(value, t), _mm256_set1_ps(7.5f)));
}

/* UNBIASED, codes of one group with step t, 0 in the lanes that are not active. bits is a constant at each call. */
OSCAR__INLINE OSCAR__AVX2 void oscar__unbiased_codes_avx2(int n, int bits, const float *x, __m256 t,
                                                          __m256 active, unsigned char *codes)
{
    const __m256i none = _mm256_setzero_si256();
    int c;
    for (c = 0; c < n; c += 4) {
        const float *at = x + c * OSCAR__TILE;
        __m256i four = oscar__unbiased_code_avx2(none, bits, 0, at, t);
        four = oscar__unbiased_code_avx2(four, bits, 1, at, t);
        four = oscar__unbiased_code_avx2(four, bits, 2, at, t);
        four = oscar__unbiased_code_avx2(four, bits, 3, at, t);
        oscar__put_four_codes_avx2(codes + c * OSCAR__TILE, oscar__pick_int_avx2(active, four, none));
    }
}

/* UNBIASED, one group of n channels: codes, and the scales before rounding. */
static OSCAR__AVX2 __m256 oscar__fit_unbiased_avx2(int n, int bits, const float *x, unsigned char *codes)
{
    const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1.0f);
    __m256 xx = oscar__lane_sum_avx2(n, x, x), r = _mm256_sqrt_ps(_mm256_div_ps(xx, _mm256_set1_ps((float)n)));
    __m256 t[4], xu[4], uu[4], best = zero, best_xu = zero, best_t = one, scale;
    __m256 finite = oscar__finite_lanes_avx2(xx), active, positive;
    int a;
    for (a = 0; a < 4; a++) t[a] = _mm256_mul_ps(r, _mm256_set1_ps(oscar__steps[bits == 4][a]));
    active = oscar__both_avx2(finite, oscar__less_avx2(zero, t[0]));
    for (a = 0; a < 4; a++) t[a] = oscar__pick_avx2(active, t[a], one);
    if (bits == 2) oscar__try_steps2_avx2(n, x, t, xu, uu);
    else oscar__try_steps4_avx2(n, x, t, xu, uu);
    for (a = 0; a < 4; a++) {
        __m256 score = _mm256_div_ps(_mm256_mul_ps(xu[a], xu[a]), uu[a]);
        __m256 better = oscar__less_avx2(best, score);
        best = a ? oscar__pick_avx2(better, score, best) : score;
        best_xu = a ? oscar__pick_avx2(better, xu[a], best_xu) : xu[0];
        best_t = a ? oscar__pick_avx2(better, t[a], best_t) : t[0];
    }
    if (bits == 2) oscar__unbiased_codes_avx2(n, 2, x, best_t, active, codes);
    else oscar__unbiased_codes_avx2(n, 4, x, best_t, active, codes);
    positive = oscar__both_avx2(active, oscar__less_avx2(zero, best_xu));
    scale = oscar__pick_avx2(positive, _mm256_div_ps(xx, oscar__pick_avx2(positive, best_xu, one)), zero);
    return oscar__pick_avx2(finite, scale, xx);
}

/* -- tiles: refining (3.11) -- */

/* out_j = fmaf(from_i, M[first + i][j], ...) over i = 0 .. count - 1 in order, from +0 or (add) from out_j, for j from
   `start` on; of two columns. from: [count][16]. */
static OSCAR__AVX2 void oscar__lane_product_avx2(int dim, const float *m, int first, int count, int start,
                                                 const float *from0,
                                      const float *from1, float *out0, float *out1, int add)
{
    int i, j;
    for (j = start; j < dim; j += 4) {
        const float *w = m + first * dim + j;
        float *p = out0 + j * OSCAR__TILE, *q = out1 + j * OSCAR__TILE;
        __m256 a0 = _mm256_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
        if (add) {
            a0 = _mm256_loadu_ps(p);
            a1 = _mm256_loadu_ps(p + OSCAR__TILE);
            a2 = _mm256_loadu_ps(p + 2 * OSCAR__TILE);
            a3 = _mm256_loadu_ps(p + 3 * OSCAR__TILE);
            b0 = _mm256_loadu_ps(q);
            b1 = _mm256_loadu_ps(q + OSCAR__TILE);
            b2 = _mm256_loadu_ps(q + 2 * OSCAR__TILE);
            b3 = _mm256_loadu_ps(q + 3 * OSCAR__TILE);
        }
        for (i = 0; i < count; i++, w += dim) {
            __m256 x = _mm256_loadu_ps(from0 + i * OSCAR__TILE), y = _mm256_loadu_ps(from1 + i * OSCAR__TILE);
            __m256 w0 = _mm256_set1_ps(w[0]), w1 = _mm256_set1_ps(w[1]), w2 = _mm256_set1_ps(w[2]),
                w3 = _mm256_set1_ps(w[3]);
            a0 = _mm256_fmadd_ps(x, w0, a0);
            b0 = _mm256_fmadd_ps(y, w0, b0);
            a1 = _mm256_fmadd_ps(x, w1, a1);
            b1 = _mm256_fmadd_ps(y, w1, b1);
            a2 = _mm256_fmadd_ps(x, w2, a2);
            b2 = _mm256_fmadd_ps(y, w2, b2);
            a3 = _mm256_fmadd_ps(x, w3, a3);
            b3 = _mm256_fmadd_ps(y, w3, b3);
        }
        _mm256_storeu_ps(p, a0);
        _mm256_storeu_ps(p + OSCAR__TILE, a1);
        _mm256_storeu_ps(p + 2 * OSCAR__TILE, a2);
        _mm256_storeu_ps(p + 3 * OSCAR__TILE, a3);
        _mm256_storeu_ps(q, b0);
        _mm256_storeu_ps(q + OSCAR__TILE, b1);
        _mm256_storeu_ps(q + 2 * OSCAR__TILE, b2);
        _mm256_storeu_ps(q + 3 * OSCAR__TILE, b3);
    }
}

#endif
#if defined(OSCAR__HAS_VECTORS)

/* Rows that a kernel refines at a time, as many as a vector has lanes. All but codes: [..][16], from the column's first
   lane on. x becomes the reading s u. */
typedef struct oscar__column {
    float *x, *u, *z, *gradient;
    unsigned char *codes;
    float *first, *s, *xz;       /* [groups]: scale of the plain fit, scale, S(x, z) */
    float *steps;                /* [16]: what the last 16 channels added to their readings */
} oscar__column;

/* An area of a tile: [dim][16]. */
static float *oscar__lanes_at(const oscar__encoder *e, int area, int tile)
{
    return e->lanes + (size_t)(area * e->tiles + tile) * (size_t)(e->dim * OSCAR__TILE);
}

/* The columns of an encoder, and their number. xz: 4 DIM_MAX floats; steps: 64 x 16. The minima of a tile, which only
   CLIP has, are the scales while they change. */
static int oscar__columns_of(const oscar__encoder *e, int width, float *xz, float *steps, oscar__column *column)
{
    int k, lane, count = 0;
    for (k = 0; k < e->tiles; k++)
        for (lane = 0; lane < OSCAR__TILE; lane += width) {
            oscar__column *c = &column[count++];
            c->x = oscar__lanes_at(e, 0, k) + lane;
            c->u = oscar__lanes_at(e, 1, k) + lane;
            c->z = oscar__lanes_at(e, 2, k) + lane;
            c->gradient = oscar__lanes_at(e, 3, k) + lane;
            c->codes = e->tile[k].codes + lane;
            c->first = e->tile[k].scale + lane;
            c->s = e->tile[k].minimum + lane;
            c->xz = xz + k * OSCAR__DIM_MAX + lane;
            c->steps = steps + k * OSCAR__TILE * OSCAR__LANES + lane;
        }
    return count;
}

#endif
#if defined(OSCAR__HAS_AVX2)

/* One channel of a column takes its best levels. Returns what that adds to the reading, 0 where nothing moves (which
   then changes no number that is used: at most the sign of a zero gradient). */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__refine_step_avx2(const oscar__column *r, int c, int group, float diagonal,
                                                         float limit)
{
    const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1.0f), centre = _mm256_set1_ps(limit);
    __m256 s = _mm256_loadu_ps(r->s + c / group * OSCAR__TILE), u = _mm256_loadu_ps(r->u + c * OSCAR__TILE);
    __m256 curvature = _mm256_mul_ps(s, _mm256_set1_ps(diagonal)), level, step;
    __m256 active = oscar__both_avx2(oscar__less_avx2(zero, s), oscar__less_avx2(zero, curvature)), moves;
    level = _mm256_div_ps(_mm256_loadu_ps(r->gradient + c * OSCAR__TILE), oscar__pick_avx2(active, curvature, one));
    level = _mm256_add_ps(oscar__floor_avx2(_mm256_sub_ps(u, level)), _mm256_set1_ps(0.5f));
    level = _mm256_min_ps(centre, _mm256_max_ps(level, _mm256_sub_ps(zero, centre)));   /* the lowest one for a NaN */
    step = _mm256_mul_ps(s, _mm256_sub_ps(level, u));
    moves = oscar__both_avx2(active, oscar__less_avx2(zero, oscar__abs_avx2(step)));
    _mm256_storeu_ps(r->u + c * OSCAR__TILE, oscar__pick_avx2(moves, level, u));
    return oscar__pick_avx2(moves, step, zero);
}

/* 16 channels from `first` on, of one column: their steps, which change the gradients of those of them that follow. */
static OSCAR__AVX2 void oscar__refine_sixteen_avx2(const oscar__encoder *e, oscar__column *column, int count, int first)
{
    const float *m = e->codec->metric + first * e->dim;
    float limit = oscar__centre(e->codec->bits);
    int c, j, q;
    for (c = first; c < first + OSCAR__LANES; c++, m += e->dim)
        for (q = 0; q < count; q++) {
            oscar__column *r = &column[q];
            __m256 step = oscar__refine_step_avx2(r, c, e->codec->group, m[c], limit);
            _mm256_storeu_ps(r->steps + (c - first) * OSCAR__TILE, step);
            for (j = c + 1; j < first + OSCAR__LANES; j++) {
                float *g = r->gradient + j * OSCAR__TILE;
                _mm256_storeu_ps(g, _mm256_fmadd_ps(step, _mm256_set1_ps(m[j]), _mm256_loadu_ps(g)));
            }
        }
}

/* One pass over the channels. The gradients of later channels get the steps of 16 channels at a time, in order. */
static OSCAR__AVX2 void oscar__refine_pass_avx2(const oscar__encoder *e, oscar__column *column, int count)
{
    const float *m = e->codec->metric;
    int dim = e->dim, q, c, group = e->codec->group;
    for (q = 0; q < count; q++)
        for (c = 0; c < dim; c++) {
            __m256 s = _mm256_loadu_ps(column[q].s + c / group * OSCAR__TILE);
            __m256 u = _mm256_loadu_ps(column[q].u + c * OSCAR__TILE);
            _mm256_storeu_ps(column[q].x + c * OSCAR__TILE, _mm256_mul_ps(s, u));
        }
    for (q = 0; q < count; q += 2) {
        oscar__column *a = &column[q], *b = &column[q + 1 < count ? q + 1 : q];
        oscar__lane_product_avx2(dim, m, 0, dim, 0, a->x, b->x, a->gradient, b->gradient, 0);
    }
    for (q = 0; q < count; q++)
        for (c = 0; c < dim; c++) {
            float *g = column[q].gradient + c * OSCAR__TILE;
            _mm256_storeu_ps(g, _mm256_sub_ps(_mm256_loadu_ps(g), _mm256_loadu_ps(column[q].z + c * OSCAR__TILE)));
        }
    for (c = 0; c < dim; c += OSCAR__LANES) {
        oscar__refine_sixteen_avx2(e, column, count, c);
        for (q = 0; q < count; q += 2) {
            oscar__column *a = &column[q], *b = &column[q + 1 < count ? q + 1 : q];
            oscar__lane_product_avx2(dim, m, c, OSCAR__LANES, c + OSCAR__LANES, a->steps, b->steps, a->gradient,
                                   b->gradient, 1);
        }
    }
}

/* Levels, z and S(x, z) of a column whose plain fit is done. */
static OSCAR__AVX2 void oscar__refine_start_avx2(const oscar__encoder *e, oscar__column *r)
{
    const __m256 zero = _mm256_setzero_ps(), centre = _mm256_set1_ps(oscar__centre(e->codec->bits));
    int c, g, n = e->codec->group;
    for (g = 0; g < e->dim / n; g++) {
        __m256 s = _mm256_loadu_ps(r->first + g * OSCAR__TILE);
        __m256 alive = oscar__less_avx2(zero, s);
        int at = g * n * OSCAR__TILE;
        _mm256_storeu_ps(r->s + g * OSCAR__TILE, s);
        _mm256_storeu_ps(r->xz + g * OSCAR__TILE, oscar__lane_sum_avx2(n, r->x + at, r->z + at));
        for (c = g * n; c < (g + 1) * n; c++) {
            __m256 u = _mm256_sub_ps(_mm256_cvtepi32_ps(oscar__get_codes_avx2(r->codes + c * OSCAR__TILE)), centre);
            _mm256_storeu_ps(r->u + c * OSCAR__TILE, oscar__pick_avx2(alive, u, zero));
        }
    }
}

/* The scales that keep <x^, x> under the metric. */
static OSCAR__AVX2 void oscar__refine_scales_avx2(const oscar__encoder *e, oscar__column *r)
{
    const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1.0f);
    int g, n = e->codec->group;
    for (g = 0; g < e->dim / n; g++) {
        int at = g * OSCAR__TILE;
        __m256 uz = oscar__lane_sum_avx2(n, r->u + at * n, r->z + at * n), s;
        __m256 positive = oscar__less_avx2(zero, uz), alive = oscar__less_avx2(zero, _mm256_loadu_ps(r->first + at));
        s = _mm256_div_ps(_mm256_loadu_ps(r->xz + at), oscar__pick_avx2(positive, uz, one));
        s = oscar__pick_avx2(positive, s, zero);
        _mm256_storeu_ps(r->s + at, oscar__pick_avx2(alive, s, _mm256_loadu_ps(r->s + at)));
    }
}

/* Takes the refined codes and scales of the rows where every scale is near the first one. */
static OSCAR__AVX2 void oscar__refine_end_avx2(const oscar__encoder *e, oscar__column *r)
{
    const __m256 zero = _mm256_setzero_ps(), centre = _mm256_set1_ps(oscar__centre(e->codec->bits));
    const __m256 limit = _mm256_set1_ps(e->codec->metadata == OSCAR_F32 ? FLT_MAX : 65504.0f);
    __m256 good = oscar__at_least_avx2(zero, zero);
    int c, g, n = e->codec->group;
    for (g = 0; g < e->dim / n; g++) {
        __m256 first = _mm256_loadu_ps(r->first + g * OSCAR__TILE), s = _mm256_loadu_ps(r->s + g * OSCAR__TILE);
        __m256 near_enough = oscar__both_avx2(oscar__at_least_avx2(s, _mm256_mul_ps(_mm256_set1_ps(0.5f), first)),
                                        oscar__at_least_avx2(_mm256_add_ps(first, first), s));
        near_enough = oscar__both_avx2(near_enough, oscar__at_least_avx2(limit, s));
        near_enough = oscar__either_avx2(near_enough, oscar__at_least_avx2(zero, first));
        good = oscar__both_avx2(good, oscar__both_avx2(near_enough, oscar__finite_lanes_avx2(first)));
    }
    for (g = 0; g < e->dim / n; g++) {
        float *first = r->first + g * OSCAR__TILE;
        __m256 before = _mm256_loadu_ps(first);
        __m256 taken = oscar__both_avx2(good, oscar__less_avx2(zero, before));
        for (c = g * n; c < (g + 1) * n; c++) {
            unsigned char *codes = r->codes + c * OSCAR__TILE;
            __m256i code = _mm256_cvttps_epi32(_mm256_add_ps(_mm256_loadu_ps(r->u + c * OSCAR__TILE), centre));
            oscar__put_codes_avx2(codes, oscar__pick_int_avx2(taken, code, oscar__get_codes_avx2(codes)));
        }
        _mm256_storeu_ps(first, oscar__pick_avx2(taken, _mm256_loadu_ps(r->s + g * OSCAR__TILE), before));
    }
}

static OSCAR__AVX2 void oscar__refine_tiles_avx2(oscar__encoder *e)
{
    oscar__column column[4 * OSCAR__TILE / 8];
    float xz[4 * OSCAR__DIM_MAX], steps[4 * OSCAR__TILE * OSCAR__TILE];
    int count = oscar__columns_of(e, 8, xz, steps, column), q, pass;
    for (q = 0; q < count; q += 2) {
        oscar__column *a = &column[q], *b = &column[q + 1 < count ? q + 1 : q];
        oscar__lane_product_avx2(e->dim, e->codec->metric, 0, e->dim, 0, a->x, b->x, a->z, b->z, 0);
    }
    for (q = 0; q < count; q++) oscar__refine_start_avx2(e, &column[q]);
    for (pass = 0; pass < 2; pass++) {
        oscar__refine_pass_avx2(e, column, count);
        for (q = 0; q < count; q++) oscar__refine_scales_avx2(e, &column[q]);
    }
    for (q = 0; q < count; q++) oscar__refine_end_avx2(e, &column[q]);
}

/* -- tiles: all of the row codec (3.11) -- */

/* 8 rows of a tile, up to the metric. */
static OSCAR__AVX2 void oscar__encode_lanes_avx2(const oscar__encoder *e, oscar__tile *tile, int lane, float *x,
                                                 float *spare,
                                      __m256i *guess)
{
    const oscar_codec *codec = e->codec;
    int g, n = codec->group;
    if (e->mean) oscar__subtract_mean_avx2(e, tile, lane, x);
    if (codec->fit == OSCAR_CLIP && codec->clip > 0)
        oscar__clamp_avx2(e->dim, (int)floor(codec->clip * e->dim), x, spare, guess);
    for (g = 0; g < e->dim / n; g++) {
        int at = g * n * OSCAR__TILE;
        if (codec->fit == OSCAR_CLIP) oscar__fit_clip_avx2(e, tile, lane, g, x + at);
        else _mm256_storeu_ps(tile->scale + g * OSCAR__TILE + lane,
                             oscar__fit_unbiased_avx2(n, codec->bits, x + at, tile->codes + at + lane));
    }
}

static OSCAR__AVX2 void oscar__encode_avx2(oscar__encoder *e, const float *rows)
{
    __m256i guess = _mm256_set1_epi32(0x3f800000);
    int k, lane, g;
    for (k = 0; k < e->tiles; k++)
        for (lane = 0; lane < OSCAR__TILE; lane += 8) {
            int at = e->codec->metric ? k : 0;   /* only refining needs all tiles: the nearest cache has room for one */
            float *x = oscar__lanes_at(e, 0, at) + lane;
            oscar__to_lanes_avx2(e->dim, OSCAR__TILE * k + lane, e->rows, rows, x);
            oscar__encode_lanes_avx2(e, &e->tile[k], lane, x, oscar__lanes_at(e, 1, at) + lane, &guess);
        }
    if (e->codec->fit == OSCAR_CLIP) return;
    if (e->codec->metric) oscar__refine_tiles_avx2(e);
    for (k = 0; k < e->tiles; k++)
        for (g = 0; g < e->dim / e->codec->group; g++)
            for (lane = 0; lane < OSCAR__TILE; lane += 8) {
                float *scale = e->tile[k].scale + g * OSCAR__TILE + lane;
                _mm256_storeu_ps(scale, oscar__metadata_lanes_avx2(e, &e->tile[k], lane, _mm256_loadu_ps(scale)));
            }
}

/* -- tiles: page words (3.12) -- */

/* 16 words from 4 x 16 bytes: byte b of word t is byte t of row b. */
OSCAR__INLINE OSCAR__AVX2 void oscar__put_words_avx2(unsigned char *p, __m128i b0, __m128i b1, __m128i b2, __m128i b3)
{
    __m128i low01 = _mm_unpacklo_epi8(b0, b1), high01 = _mm_unpackhi_epi8(b0, b1);
    __m128i low23 = _mm_unpacklo_epi8(b2, b3), high23 = _mm_unpackhi_epi8(b2, b3);
    _mm_storeu_si128((__m128i *)(void *)p, _mm_unpacklo_epi16(low01, low23));
    _mm_storeu_si128((__m128i *)(void *)(p + 16), _mm_unpackhi_epi16(low01, low23));
    _mm_storeu_si128((__m128i *)(void *)(p + 32), _mm_unpacklo_epi16(high01, high23));
    _mm_storeu_si128((__m128i *)(void *)(p + 48), _mm_unpackhi_epi16(high01, high23));
}

/* Codes of the channels c and c + 1. */
OSCAR__INLINE OSCAR__AVX2 __m256i oscar__two_channels_avx2(const unsigned char *codes, int c)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(codes + c * OSCAR__TILE));
}

/* Planes are shifted inside 16-bit lanes: no code leaves its byte. */
static OSCAR__AVX2 void oscar__pack_k_avx2(int bits, int dim, const unsigned char *codes, unsigned char *tile)
{
    int i, c, plane, w = 32 / bits;
    for (i = 0; i < dim; i += w, tile += 4 * OSCAR__TILE) {
        __m256i b01 = oscar__two_channels_avx2(codes, i), b23 = oscar__two_channels_avx2(codes, i + 2);
        for (plane = 1; plane < w / 4; plane++) {
            const __m128i shift = _mm_cvtsi32_si128(bits * plane);
            c = i + 4 * plane;
            b01 = _mm256_or_si256(b01, _mm256_sll_epi16(oscar__two_channels_avx2(codes, c), shift));
            b23 = _mm256_or_si256(b23, _mm256_sll_epi16(oscar__two_channels_avx2(codes, c + 2), shift));
        }
        oscar__put_words_avx2(tile, _mm256_castsi256_si128(b01), _mm256_extracti128_si256(b01, 1),
                              _mm256_castsi256_si128(b23), _mm256_extracti128_si256(b23, 1));
    }
}

/* Four channels at a time: d[j] holds their codes of the tokens 4j .. 4j + 3. */
static OSCAR__AVX2 void oscar__pack_v_avx2(int bits, int dim, const unsigned char *codes, unsigned char *tile)
{
    int c;
    for (c = 0; c < dim; c += 4) {
        const __m128i *p = (const __m128i *)(const void *)(codes + c * OSCAR__TILE);
        __m128i r0 = _mm_loadu_si128(p), r1 = _mm_loadu_si128(p + 1), r2 = _mm_loadu_si128(p + 2);
        __m128i r3 = _mm_loadu_si128(p + 3), d[4];
        __m128i low01 = _mm_unpacklo_epi32(r0, r1), high01 = _mm_unpackhi_epi32(r0, r1);
        __m128i low23 = _mm_unpacklo_epi32(r2, r3), high23 = _mm_unpackhi_epi32(r2, r3);
        d[0] = _mm_unpacklo_epi64(low01, low23);
        d[1] = _mm_unpackhi_epi64(low01, low23);
        d[2] = _mm_unpacklo_epi64(high01, high23);
        d[3] = _mm_unpackhi_epi64(high01, high23);
        if (bits == 2) {
            d[0] = _mm_or_si128(d[0], _mm_slli_epi32(d[1], 2));
            d[2] = _mm_or_si128(d[2], _mm_slli_epi32(d[3], 2));
            d[0] = _mm_or_si128(d[0], _mm_slli_epi32(d[2], 4));
        } else {
            d[0] = _mm_or_si128(d[0], _mm_slli_epi32(d[1], 4));
            d[2] = _mm_or_si128(d[2], _mm_slli_epi32(d[3], 4));
            _mm_storeu_si128((__m128i *)(void *)(tile + 4 * (dim + c)), d[2]);
        }
        _mm_storeu_si128((__m128i *)(void *)(tile + 4 * c), d[0]);
    }
}

static OSCAR__AVX2 void oscar__pack_avx2(int is_k, int bits, int dim, const unsigned char *codes, unsigned char *tile)
{
    if (is_k) oscar__pack_k_avx2(bits, dim, codes, tile);
    else oscar__pack_v_avx2(bits, dim, codes, tile);
}

/* 16 numbers as fp16, little endian as this machine is. None is a NaN. */
static OSCAR__AVX2 void oscar__put_halves_avx2(const float *x, unsigned char *p)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(_mm256_loadu_ps(x), 0));
    _mm_storeu_si128((__m128i *)(void *)(p + 16), _mm256_cvtps_ph(_mm256_loadu_ps(x + 8), 0));
}

/* -- eigensolver -- */

/* Sums of the four vectors' lanes. */
OSCAR__INLINE OSCAR__AVX2 __m256d oscar__sums_avx2(__m256d v0, __m256d v1, __m256d v2, __m256d v3)
{
    __m256d low = _mm256_add_pd(_mm256_unpacklo_pd(v0, v1), _mm256_unpackhi_pd(v0, v1));
    __m256d high = _mm256_add_pd(_mm256_unpacklo_pd(v2, v3), _mm256_unpackhi_pd(v2, v3));
    return _mm256_add_pd(_mm256_permute2f128_pd(low, high, 0x20), _mm256_permute2f128_pd(low, high, 0x31));
}

OSCAR__AVX2 static void oscar__eigh_dots_avx2(size_t width, double *const *x, double *const *y, double *product)
{
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3], *y0 = y[0], *y1 = y[1], *y2 = y[2], *y3 = y[3];
    __m256d g0 = _mm256_setzero_pd(), g1 = g0, g2 = g0, g3 = g0, h0 = g0, h1 = g0, h2 = g0, h3 = g0;
    size_t k;
    for (k = 0; k < width; k += 8) {
        g0 = _mm256_fmadd_pd(_mm256_loadu_pd(x0 + k), _mm256_loadu_pd(y0 + k), g0);
        g1 = _mm256_fmadd_pd(_mm256_loadu_pd(x1 + k), _mm256_loadu_pd(y1 + k), g1);
        g2 = _mm256_fmadd_pd(_mm256_loadu_pd(x2 + k), _mm256_loadu_pd(y2 + k), g2);
        g3 = _mm256_fmadd_pd(_mm256_loadu_pd(x3 + k), _mm256_loadu_pd(y3 + k), g3);
        h0 = _mm256_fmadd_pd(_mm256_loadu_pd(x0 + k + 4), _mm256_loadu_pd(y0 + k + 4), h0);
        h1 = _mm256_fmadd_pd(_mm256_loadu_pd(x1 + k + 4), _mm256_loadu_pd(y1 + k + 4), h1);
        h2 = _mm256_fmadd_pd(_mm256_loadu_pd(x2 + k + 4), _mm256_loadu_pd(y2 + k + 4), h2);
        h3 = _mm256_fmadd_pd(_mm256_loadu_pd(x3 + k + 4), _mm256_loadu_pd(y3 + k + 4), h3);
    }
    g0 = oscar__sums_avx2(_mm256_add_pd(g0, h0), _mm256_add_pd(g1, h1), _mm256_add_pd(g2, h2), _mm256_add_pd(g3, h3));
    _mm256_storeu_pd(product, g0);
}

/* Four components of a pair of rows; *x and *y are the turned ones, too. */
OSCAR__INLINE OSCAR__AVX2 void oscar__turn_pair_avx2(const double *c, const double *s, double *to_x, double *to_y,
                                                     __m256d *x, __m256d *y)
{
    __m256d vc = _mm256_broadcast_sd(c), vs = _mm256_broadcast_sd(s), a = _mm256_loadu_pd(to_x);
    __m256d b = _mm256_loadu_pd(to_y);
    *x = _mm256_fnmadd_pd(vs, b, _mm256_mul_pd(vc, a));
    *y = _mm256_fmadd_pd(vs, a, _mm256_mul_pd(vc, b));
    _mm256_storeu_pd(to_x, *x);
    _mm256_storeu_pd(to_y, *y);
}

OSCAR__AVX2 static void oscar__eigh_turn_avx2(size_t width, const double *c, const double *s, double *const *x,
                                              double *const *y)
{
    size_t k;
    int i;
    for (i = 0; i < OSCAR__EIGH_PAIRS; i++)
        for (k = 0; k < width; k += 4) {
            __m256d a, b;
            oscar__turn_pair_avx2(c + i, s + i, x[i] + k, y[i] + k, &a, &b);
        }
}

OSCAR__AVX2 static void oscar__eigh_turn_dots_avx2(size_t width, const double *c, const double *s, double *const *x,
                                                   double *const *y, double *product)
{
    double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3], *y0 = y[0], *y1 = y[1], *y2 = y[2], *y3 = y[3];
    __m256d g0 = _mm256_setzero_pd(), g1 = g0, g2 = g0, g3 = g0, vx, next_x, vy, first;
    size_t k;
    for (k = 0; k < width; k += 4) {
        oscar__turn_pair_avx2(c, s, x0 + k, y0 + k, &vx, &first);
        oscar__turn_pair_avx2(c + 1, s + 1, x1 + k, y1 + k, &next_x, &vy);
        g0 = _mm256_fmadd_pd(vx, vy, g0);
        oscar__turn_pair_avx2(c + 2, s + 2, x2 + k, y2 + k, &vx, &vy);
        g1 = _mm256_fmadd_pd(next_x, vy, g1);
        oscar__turn_pair_avx2(c + 3, s + 3, x3 + k, y3 + k, &next_x, &vy);
        g2 = _mm256_fmadd_pd(vx, vy, g2);
        g3 = _mm256_fmadd_pd(next_x, first, g3);
    }
    _mm256_storeu_pd(product, oscar__sums_avx2(g0, g1, g2, g3));
}

OSCAR__INLINE OSCAR__AVX2 __m256d oscar__four_avx2(const double *x, const size_t *at)
{
    return _mm256_setr_pd(x[at[0]], x[at[1]], x[at[2]], x[at[3]]);
}

OSCAR__INLINE OSCAR__AVX2 void oscar__put_four_avx2(__m256d from, double *x, const size_t *at)
{
    double four[4];
    int i;
    _mm256_storeu_pd(four, from);
    for (i = 0; i < 4; i++) x[at[i]] = four[i];
}

/* c and s of the angles, and t, from d = b - a and w = 2g. A common factor 1 / r would
   cost less, but give c and s a common error, which adds up. */
OSCAR__INLINE OSCAR__AVX2 __m256d oscar__angles_avx2(__m256d d, __m256d w, __m256d *c, __m256d *s)
{
    const __m256d minus = _mm256_set1_pd(-0.0), one = _mm256_set1_pd(1);
    __m256d length = _mm256_andnot_pd(minus, d), tiny, h, sum, r;
    tiny = _mm256_cmp_pd(_mm256_add_pd(length, _mm256_andnot_pd(minus, w)), _mm256_set1_pd(1e-140), _CMP_LT_OQ);
    r = _mm256_blendv_pd(one, _mm256_set1_pd(1e150), tiny);   /* or squares underflow */
    length = _mm256_mul_pd(length, r);
    w = _mm256_mul_pd(_mm256_xor_pd(w, _mm256_and_pd(d, minus)), r);
    h = _mm256_sqrt_pd(_mm256_fmadd_pd(length, length, _mm256_mul_pd(w, w)));
    sum = _mm256_add_pd(h, length);
    r = _mm256_sqrt_pd(_mm256_mul_pd(_mm256_add_pd(h, h), sum));
    *c = _mm256_div_pd(sum, r);
    *s = _mm256_div_pd(w, r);
    return _mm256_div_pd(w, sum);
}

OSCAR__AVX2 static int oscar__eigh_angles_avx2(oscar__eigh *e, const size_t *p, const size_t *q,
                                               const double *product, double *cosine, double *sine)
{
    const __m256d minus = _mm256_set1_pd(-0.0), one = _mm256_set1_pd(1), g = _mm256_loadu_pd(product);
    __m256d a = oscar__four_avx2(e->norm, p), b = oscar__four_avx2(e->norm, q);
    __m256d u = oscar__four_avx2(e->root, p), v = oscar__four_avx2(e->root, q), size = _mm256_andnot_pd(minus, g);
    __m256d lengths = _mm256_mul_pd(u, v), turn, swap, c, s, t, coarse;
    turn = _mm256_cmp_pd(size, _mm256_mul_pd(_mm256_set1_pd(e->tolerance), lengths), _CMP_GT_OQ);
    if (!_mm256_movemask_pd(turn)) return 0;
    t = oscar__angles_avx2(_mm256_sub_pd(b, a), _mm256_add_pd(g, g), &c, &s);
    c = _mm256_blendv_pd(one, c, turn);   /* what is not to be turned may be 0 / 0 */
    s = _mm256_and_pd(s, turn);
    t = _mm256_and_pd(t, turn);
    a = _mm256_fnmadd_pd(t, g, a);
    b = _mm256_fmadd_pd(t, g, b);
    swap = _mm256_and_pd(turn, _mm256_cmp_pd(a, b, _CMP_NGT_UQ));
    _mm256_storeu_pd(cosine, _mm256_blendv_pd(c, s, swap));
    _mm256_storeu_pd(sine, _mm256_blendv_pd(s, _mm256_xor_pd(c, minus), swap));
    oscar__put_four_avx2(_mm256_blendv_pd(a, b, swap), e->norm, p);
    oscar__put_four_avx2(_mm256_blendv_pd(b, a, swap), e->norm, q);
    oscar__put_four_avx2(_mm256_blendv_pd(u, v, swap), e->root, p);
    oscar__put_four_avx2(_mm256_blendv_pd(v, u, swap), e->root, q);
    coarse = _mm256_set1_pd(e->coarse);
    turn = _mm256_or_pd(_mm256_cmp_pd(size, _mm256_mul_pd(coarse, lengths), _CMP_GT_OQ),
                        _mm256_cmp_pd(_mm256_andnot_pd(minus, t), coarse, _CMP_GT_OQ));
    return _mm256_movemask_pd(turn) ? 2 : 1;
}

/* -- dense matrices -- */

/* 4 rows of 8 columns of a tile. */
OSCAR__INLINE OSCAR__AVX2 void oscar__tile_row_avx2(double a, __m256d b0, __m256d b1, __m256d *s0, __m256d *s1)
{
    __m256d factor = _mm256_set1_pd(a);
    *s0 = _mm256_fmadd_pd(factor, b0, *s0);
    *s1 = _mm256_fmadd_pd(factor, b1, *s1);
}

OSCAR__INLINE OSCAR__AVX2 void oscar__add_to_avx2(double *out, __m256d x)
{
    _mm256_storeu_pd(out, _mm256_add_pd(_mm256_loadu_pd(out), x));
}

OSCAR__AVX2 static void oscar__part_tile_avx2(size_t count, const double *a, size_t a_stride, const double *b,
                                              size_t b_stride, double *sum, size_t sum_stride)
{
    __m256d s00 = _mm256_setzero_pd(), s01 = s00, s10 = s00, s11 = s00, s20 = s00, s21 = s00, s30 = s00, s31 = s00;
    size_t k;
    for (k = 0; k < count; k++, a += a_stride, b += b_stride) {
        __m256d b0 = _mm256_loadu_pd(b), b1 = _mm256_loadu_pd(b + 4);
        oscar__tile_row_avx2(a[0], b0, b1, &s00, &s01);
        oscar__tile_row_avx2(a[1], b0, b1, &s10, &s11);
        oscar__tile_row_avx2(a[2], b0, b1, &s20, &s21);
        oscar__tile_row_avx2(a[3], b0, b1, &s30, &s31);
    }
    oscar__add_to_avx2(sum, s00);
    oscar__add_to_avx2(sum + 4, s01);
    oscar__add_to_avx2(sum + sum_stride, s10);
    oscar__add_to_avx2(sum + sum_stride + 4, s11);
    oscar__add_to_avx2(sum + 2 * sum_stride, s20);
    oscar__add_to_avx2(sum + 2 * sum_stride + 4, s21);
    oscar__add_to_avx2(sum + 3 * sum_stride, s30);
    oscar__add_to_avx2(sum + 3 * sum_stride + 4, s31);
}

OSCAR__AVX2 static void oscar__add_tile_avx2(size_t count, const double *a, size_t a_stride, const double *b,
                                             size_t b_stride, double *sum, size_t sum_stride)
{
    int i, j;
    for (i = 0; i < OSCAR__TILE_ROWS; i += 4)
        for (j = 0; j < OSCAR__TILE_COLUMNS; j += 8)
            oscar__part_tile_avx2(count, a + i, a_stride, b + j, b_stride, sum + (size_t)i * sum_stride + j,
                                  sum_stride);
}

OSCAR__AVX2 static void oscar__add_row_sum_avx2(size_t width, size_t count, double sign, const double *factors,
                                            size_t stride, const double *rows, size_t lead, double *out)
{
    size_t i = 0, k;
    for (; i + 16 <= width; i += 16) {
        const double *row = rows + i;
        __m256d s0 = _mm256_loadu_pd(out + i), s1 = _mm256_loadu_pd(out + i + 4);
        __m256d s2 = _mm256_loadu_pd(out + i + 8), s3 = _mm256_loadu_pd(out + i + 12);
        for (k = 0; k < count; k++, row += lead) {
            __m256d factor = _mm256_set1_pd(sign * factors[k * stride]);
            s0 = _mm256_fmadd_pd(factor, _mm256_loadu_pd(row), s0);
            s1 = _mm256_fmadd_pd(factor, _mm256_loadu_pd(row + 4), s1);
            s2 = _mm256_fmadd_pd(factor, _mm256_loadu_pd(row + 8), s2);
            s3 = _mm256_fmadd_pd(factor, _mm256_loadu_pd(row + 12), s3);
        }
        _mm256_storeu_pd(out + i, s0);
        _mm256_storeu_pd(out + i + 4, s1);
        _mm256_storeu_pd(out + i + 8, s2);
        _mm256_storeu_pd(out + i + 12, s3);
    }
    for (; i + 4 <= width; i += 4) {
        __m256d s0 = _mm256_loadu_pd(out + i);
        for (k = 0; k < count; k++)
            s0 = _mm256_fmadd_pd(_mm256_set1_pd(sign * factors[k * stride]), _mm256_loadu_pd(rows + k * lead + i), s0);
        _mm256_storeu_pd(out + i, s0);
    }
    for (; i < width; i++)
        for (k = 0; k < count; k++) out[i] += sign * factors[k * stride] * rows[k * lead + i];
}

/* -- calibration: rows -- */

OSCAR__AVX2 static void oscar__widen_avx2(size_t count, const float *x, double *out)
{
    size_t i = 0;
    for (; i + 4 <= count; i += 4) _mm256_storeu_pd(out + i, _mm256_cvtps_pd(_mm_loadu_ps(x + i)));
    oscar__widen(count - i, x + i, out + i);
}

OSCAR__AVX2 static void oscar__weigh_copy_avx2(size_t count, double weight, const double *x, double *row,
                                               double *weighted)
{
    __m256d factor = _mm256_set1_pd(weight), one;
    size_t i;
    for (i = 0; i < count; i += 4) {
        one = _mm256_loadu_pd(x + i);
        _mm256_storeu_pd(row + i, one);
        _mm256_storeu_pd(weighted + i, _mm256_mul_pd(factor, one));
    }
}

OSCAR__AVX2 static void oscar__turn_halves_avx2(size_t count, const double *cosine, const double *sine, const double *x,
                                                double *out)
{
    size_t i;
    for (i = 0; i + 4 <= count; i += 4) {
        __m256d c = _mm256_loadu_pd(cosine + i), s = _mm256_loadu_pd(sine + i);
        __m256d a = _mm256_loadu_pd(x + i), b = _mm256_loadu_pd(x + i + count);
        _mm256_storeu_pd(out + i, _mm256_fnmadd_pd(b, s, _mm256_mul_pd(a, c)));
        _mm256_storeu_pd(out + i + count, _mm256_fmadd_pd(b, c, _mm256_mul_pd(a, s)));
    }
    for (; i < count; i++) {
        out[i] = x[i] * cosine[i] - x[i + count] * sine[i];
        out[i + count] = x[i] * sine[i] + x[i + count] * cosine[i];
    }
}

#endif
#if defined(OSCAR__HAS_VECTORS)

/* 1 / 12!, ... 1 / 1!, 1 */
static const double oscar__exp_series[13] = {
    1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
    1.0 / 24, 1.0 / 6, 0.5, 1, 1
};

#endif
#if defined(OSCAR__HAS_AVX2)

/* exp(x) for x <= 0, 0 below -708: 2^n times the series of exp(r), |r| <= ln 2 / 2, up to r^12. */
OSCAR__INLINE OSCAR__AVX2 __m256d oscar__exp_avx2(__m256d x)
{
    const __m256d least = _mm256_set1_pd(-708);
    __m256d n, sum = _mm256_set1_pd(oscar__exp_series[0]), some = _mm256_cmp_pd(x, least, _CMP_GE_OQ);
    int i;
    x = _mm256_max_pd(x, least);
    n = _mm256_round_pd(_mm256_mul_pd(x, _mm256_set1_pd(1.4426950408889634)),
                                _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    x = _mm256_fnmadd_pd(n, _mm256_set1_pd(0.693147180369123816490), x);
    x = _mm256_fnmadd_pd(n, _mm256_set1_pd(1.90821492927058770002e-10), x);
    for (i = 1; i <= 12; i++) sum = _mm256_fmadd_pd(sum, x, _mm256_set1_pd(oscar__exp_series[i]));
    n = _mm256_castsi256_pd(_mm256_slli_epi64(
        _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(n)), _mm256_set1_epi64x(1023)), 52));
    return _mm256_and_pd(some, _mm256_mul_pd(sum, n));
}

/* The largest lane, or the sum of all. */
OSCAR__INLINE OSCAR__AVX2 double oscar__fold_avx2(int greatest, __m256d v)
{
    __m128d half = _mm256_castpd256_pd128(v), other = _mm256_extractf128_pd(v, 1);
    half = greatest ? _mm_max_pd(half, other) : _mm_add_pd(half, other);
    other = _mm_unpackhi_pd(half, half);
    return _mm_cvtsd_f64(greatest ? _mm_max_sd(half, other) : _mm_add_sd(half, other));
}

OSCAR__AVX2 static double oscar__exp_row_avx2(size_t count, double *x)
{
    __m256d most = _mm256_set1_pd(-HUGE_VAL), sum = _mm256_setzero_pd(), one;
    size_t i;
    for (i = 0; i < count; i += 4) most = _mm256_max_pd(most, _mm256_loadu_pd(x + i));
    most = _mm256_set1_pd(oscar__fold_avx2(1, most));
    for (i = 0; i < count; i += 4) {
        one = oscar__exp_avx2(_mm256_sub_pd(_mm256_loadu_pd(x + i), most));
        _mm256_storeu_pd(x + i, one);
        sum = _mm256_add_pd(sum, one);
    }
    return oscar__fold_avx2(0, sum);
}

OSCAR__AVX2 static double oscar__weigh_row_avx2(size_t count, double total, const double *x, double *sum)
{
    const __m256d none = _mm256_setzero_pd(), share = _mm256_set1_pd(1 / total);
    __m256d added = none, p;
    size_t i;
    for (i = 0; i < count; i += 4) {
        p = _mm256_mul_pd(_mm256_loadu_pd(x + i), share);
        p = _mm256_max_pd(_mm256_fnmadd_pd(p, p, p), none);
        _mm256_storeu_pd(sum + i, _mm256_add_pd(_mm256_loadu_pd(sum + i), p));
        added = _mm256_add_pd(added, p);
    }
    return oscar__fold_avx2(0, added);
}

/* -- attention -- */

/* The largest whole number of the limbs of a weight, and of a query. */
OSCAR__INLINE float oscar__weights_most(int limbs) { return limbs > 1 ? 32639.0f : 255.0f; }

#endif
#if defined(OSCAR__HAS_VECTORS)
OSCAR__INLINE float oscar__limbs_most(int limbs) { return limbs > 1 ? 32639.0f : 127.0f; }

/* Calls f(bits, 1, 2 or 4 queries, limbs, ...) with these three as constants. */
#define OSCAR__BY_SHAPE(f, bits, count, limbs, arguments) \
    switch (((bits) == 4 ? 6 : 0) + ((limbs) == 1 ? 3 : 0) + ((count) < 3 ? (count) - 1 : 2)) { \
    case 0: f(2, 1, 2, OSCAR__UNPACK arguments); break; \
    case 1: f(2, 2, 2, OSCAR__UNPACK arguments); break; \
    case 2: f(2, 4, 2, OSCAR__UNPACK arguments); break; \
    case 3: f(2, 1, 1, OSCAR__UNPACK arguments); break; \
    case 4: f(2, 2, 1, OSCAR__UNPACK arguments); break; \
    case 5: f(2, 4, 1, OSCAR__UNPACK arguments); break; \
    case 6: f(4, 1, 2, OSCAR__UNPACK arguments); break; \
    case 7: f(4, 2, 2, OSCAR__UNPACK arguments); break; \
    case 8: f(4, 4, 2, OSCAR__UNPACK arguments); break; \
    case 9: f(4, 1, 1, OSCAR__UNPACK arguments); break; \
    case 10: f(4, 2, 1, OSCAR__UNPACK arguments); break; \
    default: f(4, 4, 1, OSCAR__UNPACK arguments); break; \
    }
#define OSCAR__UNPACK(...) __VA_ARGS__

/* Calls f(type, 1, 2 or 4 queries, ...) with these two as constants. */
#define OSCAR__BY_TYPE(f, type, count, arguments) \
    switch (((type) == OSCAR_BF16 ? 3 : (type) == OSCAR_F16 ? 6 : 0) + ((count) < 3 ? (count) - 1 : 2)) { \
    case 0: f(OSCAR_F32, 1, OSCAR__UNPACK arguments); break; \
    case 1: f(OSCAR_F32, 2, OSCAR__UNPACK arguments); break; \
    case 2: f(OSCAR_F32, 4, OSCAR__UNPACK arguments); break; \
    case 3: f(OSCAR_BF16, 1, OSCAR__UNPACK arguments); break; \
    case 4: f(OSCAR_BF16, 2, OSCAR__UNPACK arguments); break; \
    case 5: f(OSCAR_BF16, 4, OSCAR__UNPACK arguments); break; \
    case 6: f(OSCAR_F16, 1, OSCAR__UNPACK arguments); break; \
    case 7: f(OSCAR_F16, 2, OSCAR__UNPACK arguments); break; \
    default: f(OSCAR_F16, 4, OSCAR__UNPACK arguments); break; \
    }
#endif
#if defined(OSCAR__HAS_AVX2)

/* sum += codes . four signed bytes, the same ones for all lanes, in 16 bits: products of two neighbours together, at
   most 2 * 3 * 128, or 2 * 15 * 128. gcc would take the broadcasts out of loops and keep them on the stack, and
   change the order of sums so that products wait there, too. */
OSCAR__INLINE OSCAR__AVX2 __m256i oscar__dot_avx2(__m256i sum, __m256i codes, const signed char *four)
{
#if defined(__GNUC__) || defined(__clang__)
    typedef struct { signed char byte[4]; } bytes;
    __m256i all;
    __asm__("vpbroadcastd {%3, %1|%1, %3}\n\tvpmaddubsw {%1, %2, %1|%1, %2, %1}\n\tvpaddw {%1, %0, %0|%0, %0, %1}"
            : "+x"(sum), "=&x"(all) : "x"(codes), "m"(*(const bytes *)four));
    return sum;
#else
    int32_t word;
    memcpy(&word, four, 4);
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, _mm256_set1_epi32(word)));
#endif
}

/* The same for four unsigned bytes: at most 2 * 3 * 255, or 2 * 15 * 255. Codes are the signed operand. */
OSCAR__INLINE OSCAR__AVX2 __m256i oscar__dot_weights_avx2(__m256i sum, __m256i codes, const signed char *four)
{
#if defined(__GNUC__) || defined(__clang__)
    typedef struct { signed char byte[4]; } bytes;
    __m256i all;
    __asm__("vpbroadcastd {%3, %1|%1, %3}\n\tvpmaddubsw {%2, %1, %1|%1, %1, %2}\n\tvpaddw {%1, %0, %0|%0, %0, %1}"
            : "+x"(sum), "=&x"(all) : "x"(codes), "m"(*(const bytes *)four));
    return sum;
#else
    int32_t word;
    memcpy(&word, four, 4);
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_set1_epi32(word), codes));
#endif
}

/* The sums of `count` queries, high and low limbs each, += codes . limb [query][2][16]. */
OSCAR__INLINE OSCAR__AVX2 void oscar__plane_avx2(int count, int limbs, __m256i codes, const signed char *limb,
                                                 __m256i *sum)
{
    sum[0] = oscar__dot_avx2(sum[0], codes, limb);
    if (limbs > 1) sum[1] = oscar__dot_avx2(sum[1], codes, limb + 16);
    if (count > 1) sum[2] = oscar__dot_avx2(sum[2], codes, limb + 32);
    if (count > 1 && limbs > 1) sum[3] = oscar__dot_avx2(sum[3], codes, limb + 48);
    if (count > 2) sum[4] = oscar__dot_avx2(sum[4], codes, limb + 64);
    if (count > 2 && limbs > 1) sum[5] = oscar__dot_avx2(sum[5], codes, limb + 80);
    if (count > 2) sum[6] = oscar__dot_avx2(sum[6], codes, limb + 96);
    if (count > 2 && limbs > 1) sum[7] = oscar__dot_avx2(sum[7], codes, limb + 112);
}

/* The same of V, where one limb is unsigned. */
OSCAR__INLINE OSCAR__AVX2 void oscar__plane_weights_avx2(int count, int limbs, __m256i codes, const signed char *limb,
                                                         __m256i *sum)
{
    if (limbs > 1) {
        oscar__plane_avx2(count, limbs, codes, limb, sum);
        return;
    }
    sum[0] = oscar__dot_weights_avx2(sum[0], codes, limb);
    if (count > 1) sum[2] = oscar__dot_weights_avx2(sum[2], codes, limb + 32);
    if (count > 2) sum[4] = oscar__dot_weights_avx2(sum[4], codes, limb + 64);
    if (count > 2) sum[6] = oscar__dot_weights_avx2(sum[6], codes, limb + 96);
}

/* 8 lanes of 16 codes: half a line of 2 bits at p, or halves of two lines of 4 bits at p and p + second. */
OSCAR__INLINE OSCAR__AVX2 void oscar__sixteen_avx2(int bits, int count, int limbs, const unsigned char *p,
                                                   size_t second, const signed char *limb, __m256i *sum)
{
    __m256i mask = _mm256_set1_epi8(bits == 2 ? 3 : 15);
    __m256i word = _mm256_loadu_si256((const __m256i *)(const void *)p);
    oscar__plane_avx2(count, limbs, _mm256_and_si256(word, mask), limb, sum);
    word = bits == 2 ? _mm256_srli_epi32(word, 2) : _mm256_srli_epi32(word, 4);
    oscar__plane_avx2(count, limbs, _mm256_and_si256(word, mask), limb + 4, sum);
    word = bits == 2 ? _mm256_srli_epi32(word, 2) : _mm256_loadu_si256((const __m256i *)(const void *)(p + second));
    oscar__plane_avx2(count, limbs, _mm256_and_si256(word, mask), limb + 8, sum);
    word = bits == 2 ? _mm256_srli_epi32(word, 2) : _mm256_srli_epi32(word, 4);
    oscar__plane_avx2(count, limbs, _mm256_and_si256(word, mask), limb + 12, sum);
}

/* The same of V. */
OSCAR__INLINE OSCAR__AVX2 void oscar__sixteen_weights_avx2(int bits, int count, int limbs, const unsigned char *p,
                                                           size_t second, const signed char *limb, __m256i *sum)
{
    __m256i mask = _mm256_set1_epi8(bits == 2 ? 3 : 15);
    __m256i word = _mm256_loadu_si256((const __m256i *)(const void *)p);
    oscar__plane_weights_avx2(count, limbs, _mm256_and_si256(word, mask), limb, sum);
    word = bits == 2 ? _mm256_srli_epi32(word, 2) : _mm256_srli_epi32(word, 4);
    oscar__plane_weights_avx2(count, limbs, _mm256_and_si256(word, mask), limb + 4, sum);
    word = bits == 2 ? _mm256_srli_epi32(word, 2) : _mm256_loadu_si256((const __m256i *)(const void *)(p + second));
    oscar__plane_weights_avx2(count, limbs, _mm256_and_si256(word, mask), limb + 8, sum);
    word = bits == 2 ? _mm256_srli_epi32(word, 2) : _mm256_srli_epi32(word, 4);
    oscar__plane_weights_avx2(count, limbs, _mm256_and_si256(word, mask), limb + 12, sum);
}

/* How many sixteens a sum of 16 bits holds: 8 of 2 bits (8 * 4 * 768), 2 of 4 bits (2 * 4 * 3840). */
OSCAR__INLINE int oscar__room_avx2(int bits) { return bits == 2 ? 8 : 2; }

OSCAR__INLINE OSCAR__AVX2 void oscar__zeros_avx2(__m256i *sum)
{
    sum[0] = sum[1] = sum[2] = sum[3] = sum[4] = sum[5] = sum[6] = sum[7] = _mm256_setzero_si256();
}

OSCAR__INLINE OSCAR__AVX2 __m256i oscar__wide_avx2(__m256i all, __m256i sum)
{
    return _mm256_add_epi32(all, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}

/* all += sums, which start anew. */
OSCAR__INLINE OSCAR__AVX2 void oscar__drain_avx2(int count, int limbs, __m256i *sum, __m256i *all)
{
    all[0] = oscar__wide_avx2(all[0], sum[0]);
    if (limbs > 1) all[1] = oscar__wide_avx2(all[1], sum[1]);
    if (count > 1) all[2] = oscar__wide_avx2(all[2], sum[2]);
    if (count > 1 && limbs > 1) all[3] = oscar__wide_avx2(all[3], sum[3]);
    if (count > 2) all[4] = oscar__wide_avx2(all[4], sum[4]);
    if (count > 2 && limbs > 1) all[5] = oscar__wide_avx2(all[5], sum[5]);
    if (count > 2) all[6] = oscar__wide_avx2(all[6], sum[6]);
    if (count > 2 && limbs > 1) all[7] = oscar__wide_avx2(all[7], sum[7]);
    oscar__zeros_avx2(sum);
}

/* The sums of a query from its two: exact. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__total_avx2(int limbs, const __m256i *all)
{
    return _mm256_cvtepi32_ps(limbs == 1 ? all[0] : _mm256_add_epi32(_mm256_slli_epi32(all[0], 8), all[1]));
}

/* 8 halves of metadata. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__halves_avx2(const unsigned char *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* score += scale (total step + low), or scale total step + minimum low. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__scaled_avx2(__m256 total, float step, float low, __m256 scale, int has_minimum,
                                                    __m256 minimum, __m256 score)
{
    if (!has_minimum)
        return _mm256_fmadd_ps(_mm256_fmadd_ps(total, _mm256_set1_ps(step), _mm256_set1_ps(low)), scale, score);
    score = _mm256_fmadd_ps(minimum, _mm256_set1_ps(low), score);
    return _mm256_fmadd_ps(_mm256_mul_ps(total, _mm256_set1_ps(step)), scale, score);
}

/* A group: products with its codes, sum by sum. */
OSCAR__INLINE OSCAR__AVX2 void oscar__group_avx2(int bits, int count, int limbs, int group, const unsigned char *p,
                                                 ptrdiff_t ahead, const signed char *limb, __m256i *all)
{
    __m256i sum[8];
    int c, end;
    oscar__zeros_avx2(sum);
    oscar__zeros_avx2(all);
    for (c = 0; c < group;) {
        end = c + 16 * oscar__room_avx2(bits) < group ? c + 16 * oscar__room_avx2(bits) : group;
        for (; c < end; c += 16, p += 32 * bits, limb += 128) {
            _mm_prefetch((const char *)p + ahead, _MM_HINT_T0);
            oscar__sixteen_avx2(bits, count, limbs, p, 64, limb, sum);
        }
        oscar__drain_avx2(count, limbs, sum, all);
    }
}

/* 8 tokens whose words are at p. */
OSCAR__INLINE OSCAR__AVX2 void oscar__score8_avx2(int bits, int count, int limbs, const oscar__codes *k,
                                                  const unsigned char *p, size_t metadata, const signed char *limb,
                                                  const float *step, const float *low, const float *start, float *score)
{
    const unsigned char *scales = k->scale + metadata, *minima = k->minimum ? k->minimum + metadata : NULL;
    __m256 negative = _mm256_castsi256_ps(
        _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)scales)));
    __m256 s[4], minimum = _mm256_setzero_ps();
    int at, j;
    for (j = 0; j < 4; j++)
        s[j] = _mm256_blendv_ps(_mm256_set1_ps(start[j]), _mm256_set1_ps(start[4 + j]), negative);
    for (at = 0; at < k->dim; at += k->group, step += 4, low += 4, scales += 2 * k->tokens) {
        __m256i all[8];
        __m256 scale = oscar__abs_avx2(oscar__halves_avx2(scales));
        oscar__group_avx2(bits, count, limbs, k->group, p + 2 * bits * at, k->ahead, limb + 8 * at, all);
        if (minima) { minimum = oscar__halves_avx2(minima); minima += 2 * k->tokens; }
        s[0] = oscar__scaled_avx2(oscar__total_avx2(limbs, all), step[0], low[0], scale, minima != NULL, minimum, s[0]);
        if (count > 1)
            s[1] = oscar__scaled_avx2(oscar__total_avx2(limbs, all + 2), step[1], low[1], scale, minima != NULL,
                                      minimum, s[1]);
        if (count > 2)
            s[2] = oscar__scaled_avx2(oscar__total_avx2(limbs, all + 4), step[2], low[2], scale, minima != NULL,
                                      minimum, s[2]);
        if (count > 2)
            s[3] = oscar__scaled_avx2(oscar__total_avx2(limbs, all + 6), step[3], low[3], scale, minima != NULL,
                                      minimum, s[3]);
    }
    for (j = 0; j < count; j++) _mm256_storeu_ps(score + j * OSCAR__BLOCK, s[j]);
}

OSCAR__INLINE OSCAR__AVX2 void oscar__score_avx2(int bits, int count, int limbs, const oscar__codes *k,
                                                 const signed char *limb, const float *step, const float *low,
                                                 const float *start, float *score)
{
    size_t tile_bytes = (size_t)(2 * bits * k->dim), t;
    for (t = 0; t < OSCAR__BLOCK; t += 8)
        oscar__score8_avx2(bits, count, limbs, k, k->codes + t / 16 * tile_bytes + t % 16 * 4, 2 * t, limb, step, low,
                           start, score + t);
}

static OSCAR__AVX2 void oscar__attend_score_avx2(int count, int limbs, const oscar__codes *k, const signed char *limb,
                                                 const float *step, const float *low, const float *start, float *score)
{
    OSCAR__BY_SHAPE(oscar__score_avx2, k->bits, count, limbs, (k, limb, step, low, start, score))
}

/* Reductions of four vectors at once: result q is the sum, or the largest number, of x[q]. A NaN may get lost in the
   latter. */
OSCAR__INLINE OSCAR__AVX2 __m128 oscar__sum4_avx2(const __m256 *x)
{
    __m256 a = _mm256_add_ps(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
    __m256 b = _mm256_add_ps(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
    __m256 c = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    return _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
}
OSCAR__INLINE OSCAR__AVX2 __m128 oscar__largest4_avx2(const __m256 *x)
{
    __m256 a = _mm256_max_ps(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
    __m256 b = _mm256_max_ps(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
    __m256 c = _mm256_max_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    return _mm_max_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
}

/* 8 whole numbers n -> their limbs: n = 256 high + low, low in -128 .. 127; or n itself. */
OSCAR__INLINE OSCAR__AVX2 void oscar__split_avx2(int limbs, __m256i n, signed char *limb)
{
    const __m256i byte = _mm256_set1_epi32(255);   /* signed bytes and unsigned ones alike */
    __m256i high = n, low = n, bytes;
    if (limbs > 1) {
        high = _mm256_srai_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(128)), 8);
        low = _mm256_sub_epi32(n, _mm256_slli_epi32(high, 8));
    }
    bytes = _mm256_packs_epi32(_mm256_and_si256(high, byte), _mm256_and_si256(low, byte));   /* in each half 4 and 4 */
    bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(bytes, bytes), _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
    _mm_storel_epi64((__m128i *)(void *)limb, _mm256_castsi256_si128(bytes));
    if (limbs > 1)
        _mm_storel_epi64((__m128i *)(void *)(limb + 16), _mm_srli_si128(_mm256_castsi256_si128(bytes), 8));
}

static OSCAR__AVX2 void oscar__attend_weigh_avx2(int count, int limbs, const oscar__codes *v, int g,
                                                 const float *weight, signed char *limb, float *step, float *base)
{
    const unsigned char *scales = v->scale + 2 * g * v->tokens;
    const unsigned char *minima = v->minimum ? v->minimum + 2 * g * v->tokens : NULL;
    __m256 s[8], x[4][8], most[4], sum[4], middle[4];
    __m128 top, some;
    float inverse[4];
    int j, t;
    for (t = 0; t < 8; t++) s[t] = oscar__abs_avx2(oscar__halves_avx2(scales + 16 * t));
    for (j = 0; j < 4; j++) {
        const float *row = weight + (j < count ? j : 0) * OSCAR__BLOCK;
        most[j] = sum[j] = middle[j] = _mm256_setzero_ps();
        for (t = 0; t < 8; t++) {
            x[j][t] = _mm256_mul_ps(_mm256_loadu_ps(row + 8 * t), s[t]);
            most[j] = _mm256_max_ps(most[j], x[j][t]);
            if (minima)   /* what the codes' middle stands for */
                middle[j] = _mm256_fmadd_ps(_mm256_loadu_ps(row + 8 * t),
                                            _mm256_fmadd_ps(s[t], _mm256_set1_ps(v->centre),
                                                            oscar__halves_avx2(minima + 16 * t)), middle[j]);
        }
    }
    top = oscar__largest4_avx2(most);
    some = _mm_cmp_ps(top, _mm_set1_ps(1e-34f), _CMP_GT_OQ);   /* below nothing counts, and 1 / top may overflow */
    _mm_storeu_ps(inverse, _mm_and_ps(some, _mm_div_ps(_mm_set1_ps(oscar__weights_most(limbs)), top)));
    top = _mm_and_ps(some, _mm_div_ps(top, _mm_set1_ps(oscar__weights_most(limbs))));
    _mm_storeu_ps(step, top);
    for (j = 0; j < count; j++) {
        __m256i all = _mm256_setzero_si256();
        for (t = 0; t < 8; t++) {
            __m256i n = _mm256_cvtps_epi32(_mm256_mul_ps(x[j][t], _mm256_set1_ps(inverse[j])));
            all = _mm256_add_epi32(all, n);
            oscar__split_avx2(limbs, n, limb + 128 * (t / 2) + 32 * j + 8 * (t % 2));
        }
        sum[j] = _mm256_cvtepi32_ps(all);
    }
    some = _mm_mul_ps(_mm_mul_ps(oscar__sum4_avx2(sum), _mm_set1_ps(-v->centre)), top);
    if (minima) some = _mm_add_ps(some, oscar__sum4_avx2(middle));
    _mm_storeu_ps(base, some);
}

OSCAR__INLINE OSCAR__AVX2 void oscar__blend_add_avx2(__m256 total, float step, float base, float *acc)
{
    __m256 sum = _mm256_fmadd_ps(total, _mm256_set1_ps(step), _mm256_set1_ps(base));
    _mm256_storeu_ps(acc, _mm256_add_ps(_mm256_loadu_ps(acc), sum));
}

OSCAR__INLINE OSCAR__AVX2 void oscar__blend_avx2(int bits, int count, int limbs, const oscar__codes *v,
                                                 const float *weight, signed char *limb, float *step, float *base,
                                                 float *acc)
{
    size_t row = (size_t)v->dim, tile_bytes = 2 * (size_t)bits * row;
    const unsigned char *p = v->codes;
    int g, c, tile;
    for (g = 0; g * v->group < v->dim; g++) {
        if (g) oscar__attend_weigh_avx2(count, limbs, v, g, weight, limb, step, base);
        for (c = 0; c < v->group; c += 8, p += 32, acc += 8) {
            __m256i sum[8], all[8];
            oscar__zeros_avx2(sum);
            oscar__zeros_avx2(all);
            for (tile = 0; tile < 4; tile++) {
                const unsigned char *line = p + (size_t)tile * tile_bytes;
                _mm_prefetch((const char *)line + v->ahead, _MM_HINT_T0);
                oscar__sixteen_weights_avx2(bits, count, limbs, line, 4 * row, limb + 128 * tile, sum);
                /* one limb of 4 bits: 4 * 7650 a tile; two: 4 * 3840; of 2 bits all four fit */
                if (bits == 4 && (limbs == 1 ? tile < 3 : tile == 1)) oscar__drain_avx2(count, limbs, sum, all);
            }
            oscar__drain_avx2(count, limbs, sum, all);
            oscar__blend_add_avx2(oscar__total_avx2(limbs, all), step[0], base[0], acc);
            if (count > 1) oscar__blend_add_avx2(oscar__total_avx2(limbs, all + 2), step[1], base[1], acc + row);
            if (count > 2) oscar__blend_add_avx2(oscar__total_avx2(limbs, all + 4), step[2], base[2], acc + 2 * row);
            if (count > 2) oscar__blend_add_avx2(oscar__total_avx2(limbs, all + 6), step[3], base[3], acc + 3 * row);
        }
    }
}

static OSCAR__AVX2 void oscar__attend_blend_avx2(int count, int limbs, const oscar__codes *v, const float *weight,
                                                 signed char *limb, float *step, float *base, float *acc)
{
    OSCAR__BY_SHAPE(oscar__blend_avx2, v->bits, count, limbs, (v, weight, limb, step, base, acc))
}

static OSCAR__AVX2 void oscar__attend_limbs_avx2(int limbs, int dim, int group, int query, const float *x,
                                                 signed char *limb, float *step, float *sum)
{
    const __m256 finite = _mm256_set1_ps(FLT_MAX);
    int at, c;
    for (at = 0; at < dim; at += group, step += 4, sum += 4) {
        __m256 most = _mm256_setzero_ps(), bad = most, share, four[4];
        __m256i all = _mm256_setzero_si256();
        float top, unit;
        for (c = at; c < at + group; c += 8) {
            __m256 a = oscar__abs_avx2(_mm256_loadu_ps(x + c));
            bad = _mm256_or_ps(bad, _mm256_cmp_ps(a, finite, _CMP_NLE_UQ));
            most = _mm256_max_ps(most, a);
        }
        four[0] = four[1] = four[2] = four[3] = most;
        top = _mm256_movemask_ps(bad) ? 0 : _mm_cvtss_f32(oscar__largest4_avx2(four));
        unit = _mm256_movemask_ps(bad) ? (float)NAN : top > 1e-34f ? top / oscar__limbs_most(limbs) : 0;
        share = _mm256_set1_ps(top > 1e-34f ? oscar__limbs_most(limbs) / top : 0);
        for (c = at; c < at + group; c += 8) {
            __m256i n = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + c), share));
            all = _mm256_add_epi32(all, n);
            oscar__split_avx2(limbs, n, limb + 8 * (c - c % 16) + 32 * query + c % 16);
        }
        four[0] = four[1] = four[2] = four[3] = _mm256_cvtepi32_ps(all);
        step[query] = unit;
        sum[query] = unit * _mm_cvtss_f32(oscar__sum4_avx2(four));
    }
}

static OSCAR__AVX2 void oscar__attend_mean_avx2(int limbs, int dim, int group, const unsigned char *bytes,
                                                const signed char *limb, const float *step, float *out)
{
    int at, c, j;
    out[0] = out[1] = out[2] = out[3] = 0;
    for (at = 0; at < dim; at += group, step += 4)
        for (j = 0; j < 4; j++) {
            __m256i high = _mm256_setzero_si256(), low = high;
            __m256 x[4];
            float sums[4];
            for (c = at; c < at + group; c += 16) {
                const __m128i *l = (const __m128i *)(const void *)(limb + 8 * c + 32 * j);
                __m256i n = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(bytes + c)));
                high = _mm256_add_epi32(high, _mm256_madd_epi16(n, _mm256_cvtepi8_epi16(_mm_loadu_si128(l))));
                low = _mm256_add_epi32(low, _mm256_madd_epi16(n, _mm256_cvtepi8_epi16(_mm_loadu_si128(l + 1))));
            }
            x[0] = x[2] = _mm256_cvtepi32_ps(high);
            x[1] = x[3] = _mm256_cvtepi32_ps(low);
            _mm_storeu_ps(sums, oscar__sum4_avx2(x));
            out[j] += step[j] * (limbs > 1 ? 256 * sums[0] + sums[1] : sums[0]);
        }
}

/* 2^x = 2^n p(x - n), n the nearest whole number, p of degree 5 with the least relative error on -0.5 .. 0.5 of those
   with p(0) = 1, so that 2^0 is 1: 1.5e-7 with rounding. Below -125 it is 0. NaN stays NaN. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__exp2_avx2(__m256 x)
{
    __m256 some = _mm256_cmp_ps(x, _mm256_set1_ps(-125.0f), _CMP_NLT_UQ);
    __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm256_sub_ps(x, n), p;
    p = _mm256_fmadd_ps(_mm256_set1_ps(1.326473663e-3f), f, _mm256_set1_ps(9.671516716e-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.550733581e-2f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.402224243e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.931470037e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    n = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
    p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_castps_si256(n)));
    p = _mm256_blendv_ps(p, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_and_ps(some, p);
}

/* cap tanh(x / cap); the error is a few 1e-7 of cap. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__cap_avx2(__m256 x, float cap)
{
    const __m256 one = _mm256_set1_ps(1);
    __m256 y = _mm256_div_ps(x, _mm256_set1_ps(cap)), e;
    y = _mm256_max_ps(_mm256_set1_ps(-10), _mm256_min_ps(_mm256_set1_ps(10), y));   /* in this order NaN stays */
    e = oscar__exp2_avx2(_mm256_mul_ps(y, _mm256_set1_ps(2 * OSCAR__LOG2E)));
    return _mm256_mul_ps(_mm256_set1_ps(cap), _mm256_div_ps(_mm256_sub_ps(e, one), _mm256_add_ps(e, one)));
}

/* Products of a query -> capped logits where there is a cap; -inf where masked. */
static OSCAR__AVX2 void oscar__logits_avx2(float scale, float cap, int first, int end, float *score)
{
    int t;
    for (t = 0; t < OSCAR__BLOCK; t += 8) {
        __m256 logit = _mm256_loadu_ps(score + t);
        __m256i at = _mm256_add_epi32(_mm256_set1_epi32(t), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        __m256i hidden = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), at),
                                         _mm256_cmpgt_epi32(at, _mm256_set1_epi32(end - 1)));
        if (cap > 0) logit = oscar__cap_avx2(_mm256_mul_ps(logit, _mm256_set1_ps(scale)), cap);
        _mm256_storeu_ps(score + t,
                         _mm256_blendv_ps(logit, _mm256_set1_ps(-HUGE_VALF), _mm256_castsi256_ps(hidden)));
    }
}

static OSCAR__AVX2 int oscar__attend_softmax_avx2(int count, float scale, float cap, const int *first, const int *end,
                                                  float *score, float *top, float *sum, float *factor)
{
    float unit = cap > 0 ? OSCAR__LOG2E : scale * OSCAR__LOG2E, base[4];
    __m256 x[4];
    __m128 before = _mm_loadu_ps(top), after, same, grown;
    int j, t;
    for (j = 0; j < count && (cap > 0 || first); j++)
        oscar__logits_avx2(scale, cap, first ? first[j] : 0, end ? end[j] : OSCAR__BLOCK, score + j * OSCAR__BLOCK);
    for (j = 0; j < 4; j++) {
        const float *row = score + (j < count ? j : 0) * OSCAR__BLOCK;
        x[j] = _mm256_loadu_ps(row);
        for (t = 8; t < OSCAR__BLOCK; t += 8) x[j] = _mm256_max_ps(x[j], _mm256_loadu_ps(row + t));
    }
    after = _mm_max_ps(before, oscar__largest4_avx2(x));
    same = _mm_cmp_ps(after, before, _CMP_EQ_OQ);
    _mm_storeu_ps(top, after);
    after = _mm_andnot_ps(_mm_cmp_ps(after, _mm_set1_ps(-HUGE_VALF), _CMP_EQ_OQ), after);   /* no key yet: 0 */
    _mm_storeu_ps(base, after);
    for (j = 0; j < 4; j++) {
        float *row = score + j * OSCAR__BLOCK;
        x[j] = _mm256_setzero_ps();
        for (t = 0; t < OSCAR__BLOCK && j < count; t += 8) {
            __m256 below = _mm256_sub_ps(_mm256_loadu_ps(row + t), _mm256_set1_ps(base[j]));
            __m256 weight = oscar__exp2_avx2(_mm256_mul_ps(below, _mm256_set1_ps(unit)));
            _mm256_storeu_ps(row + t, weight);
            x[j] = _mm256_add_ps(x[j], weight);
        }
    }
    grown = _mm_mul_ps(_mm_sub_ps(before, after), _mm_set1_ps(unit));
    grown = _mm256_castps256_ps128(oscar__exp2_avx2(_mm256_castps128_ps256(grown)));
    grown = _mm_blendv_ps(grown, _mm_set1_ps(1), same);
    _mm_storeu_ps(factor, grown);
    _mm_storeu_ps(sum, _mm_fmadd_ps(_mm_loadu_ps(sum), grown, oscar__sum4_avx2(x)));
    return (_mm_movemask_ps(same) & ((1 << count) - 1)) != (1 << count) - 1;
}

static OSCAR__AVX2 void oscar__attend_rescale_avx2(int count, int dim, const float *factor, float *acc)
{
    int j, c;
    for (j = 0; j < count; j++, acc += dim)
        for (c = 0; c < dim; c += 8)
            _mm256_storeu_ps(acc + c, _mm256_mul_ps(_mm256_loadu_ps(acc + c), _mm256_set1_ps(factor[j])));
}

/* 8 values of a row as floats. */
OSCAR__INLINE OSCAR__AVX2 __m256 oscar__widen8_avx2(oscar_type type, oscar_type round, const unsigned char *p)
{
    __m256 x;
    if (type == OSCAR_BF16)
        x = _mm256_castsi256_ps(_mm256_slli_epi32(
            _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16));
    else if (type == OSCAR_F16) x = oscar__halves_avx2(p);
    else x = _mm256_loadu_ps((const float *)(const void *)p);
    if (round == OSCAR_BF16 && type != OSCAR_BF16) {
        __m256i bits = _mm256_castps_si256(x);
        __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        x = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32((int)0xffff0000)));
    }
    if (round == OSCAR_F16 && type != OSCAR_F16)
        x = _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return x;
}

static OSCAR__AVX2 void oscar__attend_widen_avx2(oscar_type type, oscar_type round, int rows, int dim,
                                                 const unsigned char *x, ptrdiff_t stride, float *out)
{
    int r, c, size = (int)oscar__type_size(type);
    for (r = 0; r < rows; r++, x += stride, out += dim)
        for (c = 0; c < dim; c += 8) _mm256_storeu_ps(out + c, oscar__widen8_avx2(type, round, x + c * size));
}

/* The sums of two rows += their products with a query. */
OSCAR__INLINE OSCAR__AVX2 void oscar__two_rows_avx2(__m256 a, __m256 b, const float *x, __m256 *sum, __m256 *next)
{
    __m256 q = _mm256_loadu_ps(x);
    *sum = _mm256_fmadd_ps(a, q, *sum);
    *next = _mm256_fmadd_ps(b, q, *next);
}

/* Two rows at a time; where one is left, it goes twice and counts once. */
OSCAR__INLINE OSCAR__AVX2 void oscar__products_avx2(oscar_type type, int shape, int count, int rows, int dim,
                                                    const float *x, ptrdiff_t x_stride, const unsigned char *m,
                                                    ptrdiff_t m_stride, ptrdiff_t ahead, float *out,
                                                    ptrdiff_t out_stride)
{
    size_t one = (size_t)x_stride / sizeof(float), to = (size_t)out_stride / sizeof(float);
    const float *x1 = x + (count > 1 ? one : 0), *x2 = x + (count > 2 ? 2 * one : 0);
    const float *x3 = x + (count > 3 ? 3 * one : 0);
    int r, c, j, size = (int)oscar__type_size(type);
    for (r = 0; r < rows; r += 2, m += 2 * m_stride) {
        const unsigned char *m1 = r + 1 < rows ? m + m_stride : m;
        __m256 sum[4], next[4];
        float products[8];
        sum[0] = sum[1] = sum[2] = sum[3] = next[0] = next[1] = next[2] = next[3] = _mm256_setzero_ps();
        for (c = 0; c < dim; c += 8) {
            int at = c * size;
            __m256 a = oscar__widen8_avx2(type, OSCAR_F32, m + at), b = oscar__widen8_avx2(type, OSCAR_F32, m1 + at);
            if (at % 64 == 0) _mm_prefetch((const char *)m + at + ahead, _MM_HINT_T1);
            if (at % 64 == 0) _mm_prefetch((const char *)m1 + at + ahead, _MM_HINT_T1);
            oscar__two_rows_avx2(a, b, x + c, &sum[0], &next[0]);
            if (shape > 1) oscar__two_rows_avx2(a, b, x1 + c, &sum[1], &next[1]);
            if (shape > 2) oscar__two_rows_avx2(a, b, x2 + c, &sum[2], &next[2]);
            if (shape > 2) oscar__two_rows_avx2(a, b, x3 + c, &sum[3], &next[3]);
        }
        _mm_storeu_ps(products, oscar__sum4_avx2(sum));
        _mm_storeu_ps(products + 4, oscar__sum4_avx2(next));
        for (j = 0; j < count; j++) {
            out[(size_t)j * to + (size_t)r] = products[j];
            if (r + 1 < rows) out[(size_t)j * to + (size_t)r + 1] = products[4 + j];
        }
    }
}

static OSCAR__AVX2 void oscar__attend_products_avx2(oscar_type type, int count, int rows, int dim, const float *x,
                                                    ptrdiff_t x_stride, const void *m, ptrdiff_t m_stride,
                                                    ptrdiff_t ahead, float *out, ptrdiff_t out_stride)
{
    const unsigned char *first = (const unsigned char *)m;
    OSCAR__BY_TYPE(oscar__products_avx2, type, count,
                   (count, rows, dim, x, x_stride, first, m_stride, ahead, out, out_stride))
}

/* out += the sum over rows, for 16 channels; rows in order. */
OSCAR__INLINE OSCAR__AVX2 void oscar__combine16_avx2(oscar_type type, int shape, int count, int rows,
                                                     const float *weight, size_t one, const unsigned char *m,
                                                     ptrdiff_t m_stride, ptrdiff_t ahead, float *out, size_t to)
{
    size_t w1 = count > 1 ? one : 0, w2 = count > 2 ? 2 * one : 0, w3 = count > 3 ? 3 * one : 0;
    float *out1 = out + (count > 1 ? to : 0), *out2 = out + (count > 2 ? 2 * to : 0);
    float *out3 = out + (count > 3 ? 3 * to : 0);
    int r, size = (int)oscar__type_size(type);
    __m256 sum[4][2];
    sum[0][0] = _mm256_loadu_ps(out);
    sum[0][1] = _mm256_loadu_ps(out + 8);
    sum[1][0] = _mm256_loadu_ps(out1);
    sum[1][1] = _mm256_loadu_ps(out1 + 8);
    sum[2][0] = _mm256_loadu_ps(out2);
    sum[2][1] = _mm256_loadu_ps(out2 + 8);
    sum[3][0] = _mm256_loadu_ps(out3);
    sum[3][1] = _mm256_loadu_ps(out3 + 8);
    for (r = 0; r < rows; r++, m += m_stride, weight++) {
        __m256 a = oscar__widen8_avx2(type, OSCAR_F32, m), b = oscar__widen8_avx2(type, OSCAR_F32, m + 8 * size);
        _mm_prefetch((const char *)m + ahead, _MM_HINT_T1);
        sum[0][0] = _mm256_fmadd_ps(a, _mm256_set1_ps(weight[0]), sum[0][0]);
        sum[0][1] = _mm256_fmadd_ps(b, _mm256_set1_ps(weight[0]), sum[0][1]);
        if (shape > 1) sum[1][0] = _mm256_fmadd_ps(a, _mm256_set1_ps(weight[w1]), sum[1][0]);
        if (shape > 1) sum[1][1] = _mm256_fmadd_ps(b, _mm256_set1_ps(weight[w1]), sum[1][1]);
        if (shape > 2) sum[2][0] = _mm256_fmadd_ps(a, _mm256_set1_ps(weight[w2]), sum[2][0]);
        if (shape > 2) sum[2][1] = _mm256_fmadd_ps(b, _mm256_set1_ps(weight[w2]), sum[2][1]);
        if (shape > 2) sum[3][0] = _mm256_fmadd_ps(a, _mm256_set1_ps(weight[w3]), sum[3][0]);
        if (shape > 2) sum[3][1] = _mm256_fmadd_ps(b, _mm256_set1_ps(weight[w3]), sum[3][1]);
    }
    _mm256_storeu_ps(out, sum[0][0]);
    _mm256_storeu_ps(out + 8, sum[0][1]);
    if (shape > 1) _mm256_storeu_ps(out1, sum[1][0]);
    if (shape > 1) _mm256_storeu_ps(out1 + 8, sum[1][1]);
    if (shape > 2) _mm256_storeu_ps(out2, sum[2][0]);
    if (shape > 2) _mm256_storeu_ps(out2 + 8, sum[2][1]);
    if (shape > 2 && count > 3) _mm256_storeu_ps(out3, sum[3][0]);
    if (shape > 2 && count > 3) _mm256_storeu_ps(out3 + 8, sum[3][1]);
}

OSCAR__INLINE OSCAR__AVX2 void oscar__combine_avx2(oscar_type type, int shape, int count, int rows, int dim,
                                                   const float *weight, ptrdiff_t weight_stride,
                                                   const unsigned char *m, ptrdiff_t m_stride, ptrdiff_t ahead,
                                                   float *out, ptrdiff_t out_stride)
{
    size_t one = (size_t)weight_stride / sizeof(float), to = (size_t)out_stride / sizeof(float);
    int c, size = (int)oscar__type_size(type);
    for (c = 0; c < dim; c += 16)
        oscar__combine16_avx2(type, shape, count, rows, weight, one, m + c * size, m_stride, ahead, out + c, to);
}

static OSCAR__AVX2 void oscar__attend_combine_avx2(oscar_type type, int count, int rows, int dim, const float *weight,
                                                   ptrdiff_t weight_stride, const void *m, ptrdiff_t m_stride,
                                                   ptrdiff_t ahead, float *out, ptrdiff_t out_stride)
{
    const unsigned char *first = (const unsigned char *)m;
    OSCAR__BY_TYPE(oscar__combine_avx2, type, count,
                   (count, rows, dim, weight, weight_stride, first, m_stride, ahead, out, out_stride))
}

static const oscar__attend_kernels oscar__attend_avx2 = {
    oscar__attend_widen_avx2, oscar__attend_products_avx2, oscar__attend_combine_avx2, oscar__attend_limbs_avx2,
    oscar__attend_mean_avx2, oscar__attend_score_avx2, oscar__attend_softmax_avx2, oscar__attend_rescale_avx2,
    oscar__attend_weigh_avx2, oscar__attend_blend_avx2, 4, NULL, NULL
};

#endif /* OSCAR__HAS_AVX2 */

/* == 3.18 KERNELS: AVX-512 == */
#if defined(OSCAR__HAS_AVX512)

/* gcc's headers start some operations from a vector that is not set, and warn of it where they are inlined. */
#if defined(__GNUC__) && !defined(__clang__)
#  pragma GCC diagnostic push
#  pragma GCC diagnostic ignored "-Wuninitialized"
#  pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#  pragma GCC diagnostic ignored "-Wsign-conversion"   /* of its macros at -O0 */
#endif

/* -- rows: numbers, transforms (3.3, 3.5) -- */

#define OSCAR__ALL_avx512 0xffffu

/* Masks of lanes: a compare, both, either, a choice, one more where it holds, and as bits. */
OSCAR__INLINE OSCAR__AVX512 __mmask16 oscar__less_avx512(__m512 a, __m512 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

OSCAR__INLINE OSCAR__AVX512 __mmask16 oscar__at_least_avx512(__m512 a, __m512 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

OSCAR__INLINE OSCAR__AVX512 __mmask16 oscar__above_avx512(__m512i a, __m512i b) { return _mm512_cmpgt_epi32_mask(a,
                                                                                                                 b); }

OSCAR__INLINE OSCAR__AVX512 __mmask16 oscar__both_avx512(__mmask16 a, __mmask16 b) { return (__mmask16)(a & b); }

OSCAR__INLINE OSCAR__AVX512 __mmask16 oscar__either_avx512(__mmask16 a, __mmask16 b) { return (__mmask16)(a | b); }

OSCAR__INLINE OSCAR__AVX512 __m512 oscar__pick_avx512(__mmask16 mask, __m512 yes, __m512 no)
{
    return _mm512_mask_blend_ps(mask, no, yes);
}

OSCAR__INLINE OSCAR__AVX512 __m512i oscar__pick_int_avx512(__mmask16 mask, __m512i yes, __m512i no)
{
    return _mm512_mask_blend_epi32(mask, no, yes);
}

OSCAR__INLINE OSCAR__AVX512 __m512i oscar__add_if_avx512(__m512i x, __mmask16 mask)
{
    return _mm512_mask_add_epi32(x, mask, x, _mm512_set1_epi32(1));
}

/* x + unit where the mask holds. */
OSCAR__INLINE OSCAR__AVX512 __m512i oscar__unit_if_avx512(__m512i x, __mmask16 mask, __m512i unit)
{
    return _mm512_mask_add_epi32(x, mask, x, unit);
}

OSCAR__INLINE OSCAR__AVX512 unsigned oscar__bits_avx512(__mmask16 mask) { return (unsigned)mask; }

/* 1.5 where the mask holds, else 0.5. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__level2_avx512(__mmask16 mask)
{
    return _mm512_mask_blend_ps(mask, _mm512_set1_ps(0.5f), _mm512_set1_ps(1.5f));
}

OSCAR__INLINE OSCAR__AVX512 __m512 oscar__floor_avx512(__m512 x) { return _mm512_roundscale_ps(x, 0x09); }

OSCAR__INLINE OSCAR__AVX512 void oscar__put_codes_avx512(unsigned char *p, __m512i codes)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(codes));
}

/* Codes of four channels, a byte each, to [channel][16]. */
OSCAR__INLINE OSCAR__AVX512 void oscar__put_four_codes_avx512(unsigned char *p, __m512i codes)
{
    const __m512i bytes = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
    const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512((void *)p, _mm512_permutexvar_epi32(lanes, _mm512_shuffle_epi8(codes, bytes)));
}

OSCAR__INLINE OSCAR__AVX512 __m512i oscar__get_codes_avx512(const unsigned char *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

OSCAR__INLINE OSCAR__AVX512 __m512 oscar__round_f16_avx512(__m512 x)
{
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, 0));
}

OSCAR__INLINE OSCAR__AVX512 __m512 oscar__widen_f16_avx512(const unsigned char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

OSCAR__INLINE OSCAR__AVX512 __m512 oscar__widen_bf16_avx512(const unsigned char *p)
{
    __m512i halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
}

OSCAR__INLINE OSCAR__AVX512 void oscar__put_f16_avx512(unsigned char *p, __m512 x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x, 0));
}

/* x: rounded. */
OSCAR__INLINE OSCAR__AVX512 void oscar__put_bf16_avx512(unsigned char *p, __m512 x)
{
    __m512i halves = _mm512_srli_epi32(_mm512_castps_si512(x), 16);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(halves));
}

/* Four channels of four rows. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__part_rows_avx512(const float *r0, const float *r1, const float *r2,
                                                           const float *r3)
{
    __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(r0));
    x = _mm512_insertf32x4(x, _mm_loadu_ps(r1), 1);
    x = _mm512_insertf32x4(x, _mm_loadu_ps(r2), 2);
    return _mm512_insertf32x4(x, _mm_loadu_ps(r3), 3);
}

OSCAR__INLINE OSCAR__AVX512 __m512 oscar__abs_avx512(__m512 x)
{
    return _mm512_and_ps(x, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff)));
}

/* Lanes that are finite. */
OSCAR__INLINE OSCAR__AVX512 __mmask16 oscar__finite_lanes_avx512(__m512 x)
{
    return oscar__at_least_avx512(_mm512_set1_ps(FLT_MAX), oscar__abs_avx512(x));
}

/* n: a multiple of 16. 0 x is NaN where x is not finite. */
static OSCAR__AVX512 int oscar__finite_avx512(const float *x, size_t n)
{
    const __m512 zero = _mm512_setzero_ps();
    __m512 a = zero, b = zero, c = zero, d = zero;
    size_t i = 0;
    for (; i + 4 * 16 <= n; i += 4 * 16) {
        a = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), zero, a);
        b = _mm512_fmadd_ps(_mm512_loadu_ps(x + i + 16), zero, b);
        c = _mm512_fmadd_ps(_mm512_loadu_ps(x + i + 2 * 16), zero, c);
        d = _mm512_fmadd_ps(_mm512_loadu_ps(x + i + 3 * 16), zero, d);
    }
    for (; i < n; i += 16) a = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), zero, a);
    a = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
    return oscar__bits_avx512(oscar__at_least_avx512(a, zero)) == OSCAR__ALL_avx512;
}

/* bfloat16 keeps the upper half, rounded to nearest even; a NaN only gets quiet. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__round_bf16_avx512(__m512 x)
{
    __m512i u = _mm512_castps_si512(x), rounded = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000)), nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_add_epi32(rounded, odd, rounded, _mm512_set1_epi32(1));
    rounded = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(-0x10000)));
}

static OSCAR__AVX512 void oscar__load_avx512(oscar_type type, const void *in, size_t n, float *out)
{
    const unsigned char *p = (const unsigned char *)in;
    size_t i;
    if (oscar__type_size(type) == 4) memcpy(out, in, n * sizeof *out);
    if (type == OSCAR_BF16)
        for (i = 0; i < n; i += 16) _mm512_storeu_ps(out + i, oscar__widen_bf16_avx512(p + 2 * i));
    if (type == OSCAR_F16)
        for (i = 0; i < n; i += 16) _mm512_storeu_ps(out + i, oscar__widen_f16_avx512(p + 2 * i));
}

static OSCAR__AVX512 void oscar__load_rounded_avx512(oscar_type type, const void *in, oscar_type to, size_t n,
                                                     float *out)
{
    const float *x = (const float *)in;
    size_t i;
    if (oscar__type_size(to) == 4 || type == to) { oscar__load_avx512(type, in, n, out); return; }
    if (oscar__type_size(type) == 2) { oscar__load_avx512(type, in, n, out); x = out; }
    if (to == OSCAR_BF16)
        for (i = 0; i < n; i += 16) _mm512_storeu_ps(out + i, oscar__round_bf16_avx512(_mm512_loadu_ps(x + i)));
    else
        for (i = 0; i < n; i += 16) _mm512_storeu_ps(out + i, oscar__round_f16_avx512(_mm512_loadu_ps(x + i)));
}

static OSCAR__AVX512 void oscar__store_avx512(oscar_type type, const float *in, size_t n, void *out)
{
    unsigned char *p = (unsigned char *)out;
    size_t i;
    if (oscar__type_size(type) == 4) memcpy(out, in, n * sizeof *in);
    if (type == OSCAR_BF16)
        for (i = 0; i < n; i += 16) oscar__put_bf16_avx512(p + 2 * i,
                                                           oscar__round_bf16_avx512(_mm512_loadu_ps(in + i)));
    if (type == OSCAR_F16)
        for (i = 0; i < n; i += 16) oscar__put_f16_avx512(p + 2 * i, _mm512_loadu_ps(in + i));
}

static OSCAR__AVX512 void oscar__centre_avx512(int dim, const float *x, const float *mean, float *out)
{
    int i;
    for (i = 0; i < dim; i += 16) _mm512_storeu_ps(out + i, _mm512_sub_ps(_mm512_loadu_ps(x + i),
                                                                          _mm512_loadu_ps(mean + i)));
}

/* S(x, y) of one row. */
static OSCAR__AVX512 float oscar__sum_products_avx512(int n, const float *x, const float *y)
{
    __m512 p = _mm512_setzero_ps();
    __m256 p8;
    __m128 p4;
    int i;
    for (i = 0; i < n; i += 16) p = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i), p);
    p8 = _mm256_add_ps(_mm512_castps512_ps256(p), _mm512_extractf32x8_ps(p, 1));
    p4 = _mm_add_ps(_mm256_castps256_ps128(p8), _mm256_extractf128_ps(p8, 1));
    p4 = _mm_add_ps(p4, _mm_movehl_ps(p4, p4));
    return _mm_cvtss_f32(_mm_add_ss(p4, _mm_shuffle_ps(p4, p4, 0x55)));
}

/* (a, b) -> (a + b, a - b) */
#define OSCAR__PAIR(a, b) do { __m512 pair_ = a; a = _mm512_add_ps(pair_, b); b = _mm512_sub_ps(pair_, b); } while (0)
#define OSCAR__PAIRS4(a, b, c, d) do { \
    OSCAR__PAIR(a, b); OSCAR__PAIR(c, d); OSCAR__PAIR(a, c); OSCAR__PAIR(b, d); } while (0)

/* Vector i of a result, scaled or not. */
#define OSCAR__PUT(i, v) _mm512_storeu_ps(out + (i) * 16, scaled ? _mm512_mul_ps(v, scale) : v)

/* The strides inside a vector. (a, b) -> (a + b, a - b) is one fma by +-1, which does not round twice. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__fwht_vector_avx512(const float *p)
{
    const __m512 s1 = _mm512_setr_ps(1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
    const __m512 s2 = _mm512_setr_ps(1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1);
    const __m512 s4 = _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    const __m512 s8 = _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m512 x = _mm512_loadu_ps(p);
    x = _mm512_fmadd_ps(_mm512_movehdup_ps(x), s1, _mm512_moveldup_ps(x));
    x = _mm512_fmadd_ps(x, s2, _mm512_shuffle_ps(x, x, 0x4e));
    x = _mm512_fmadd_ps(x, s4, _mm512_shuffle_f32x4(x, x, 0xb1));
    x = _mm512_fmadd_ps(x, s8, _mm512_shuffle_f32x4(x, x, 0x4e));
    return x;
}

/* `count` vectors side by side, 1, 2, 4 or 8: the strides up to all of them; scaled or not. Both are constants at each
   call. in may be out. */
OSCAR__INLINE OSCAR__AVX512 void oscar__fwht_near_avx512(int count, int scaled, const float *in, float *out,
                                                         __m512 scale)
{
    __m512 a, b, c, d, e, f, g, h;
    a = b = c = d = e = f = g = h = oscar__fwht_vector_avx512(in);
    if (count > 1) b = oscar__fwht_vector_avx512(in + 16);
    if (count > 2) {
        c = oscar__fwht_vector_avx512(in + 2 * 16);
        d = oscar__fwht_vector_avx512(in + 3 * 16);
    }
    if (count > 4) {
        e = oscar__fwht_vector_avx512(in + 4 * 16);
        f = oscar__fwht_vector_avx512(in + 5 * 16);
        g = oscar__fwht_vector_avx512(in + 6 * 16);
        h = oscar__fwht_vector_avx512(in + 7 * 16);
    }
    if (count == 2) OSCAR__PAIR(a, b);
    if (count > 2) OSCAR__PAIRS4(a, b, c, d);
    if (count > 4) {
        OSCAR__PAIRS4(e, f, g, h);
        OSCAR__PAIR(a, e); OSCAR__PAIR(b, f); OSCAR__PAIR(c, g); OSCAR__PAIR(d, h);
    }
    OSCAR__PUT(0, a);
    if (count > 1) OSCAR__PUT(1, b);
    if (count > 2) { OSCAR__PUT(2, c); OSCAR__PUT(3, d); }
    if (count > 4) { OSCAR__PUT(4, e); OSCAR__PUT(5, f); OSCAR__PUT(6, g); OSCAR__PUT(7, h); }
}

/* The two strides `stride` and 2 stride of a block, or (two = 0) one. two and scaled are constants at each call. */
OSCAR__INLINE OSCAR__AVX512 void oscar__fwht_far_avx512(int two, int scaled, int stride, float *x, __m512 scale)
{
    const int step = stride / 16;
    float *out = x, *end = x + stride;
    for (; out < end; out += 16) {
        __m512 a = _mm512_loadu_ps(out), b = _mm512_loadu_ps(out + stride), c = a, d = b;
        if (two) {
            c = _mm512_loadu_ps(out + 2 * stride);
            d = _mm512_loadu_ps(out + 3 * stride);
            OSCAR__PAIRS4(a, b, c, d);
            OSCAR__PUT(2 * step, c);
            OSCAR__PUT(3 * step, d);
        } else OSCAR__PAIR(a, b);
        OSCAR__PUT(0, a);
        OSCAR__PUT(step, b);
    }
}

/* A block of more than 8 vectors: 8 at a time, then one stride if their number is odd, then two at a time. Only the
   last pass scales. */
OSCAR__INLINE OSCAR__AVX512 void oscar__fwht_block_avx512(int block, const float *in, float *out, __m512 scale)
{
    int stride = 8 * 16, left = 0, i;
    for (i = stride; i < block; i *= 2) left++;
    for (i = 0; i < block; i += stride) oscar__fwht_near_avx512(8, 0, in + i, out + i, scale);
    if (left % 2) {
        if (left == 1) oscar__fwht_far_avx512(0, 1, stride, out, scale);
        else for (i = 0; i < block; i += 2 * stride) oscar__fwht_far_avx512(0, 0, stride, out + i, scale);
        stride *= 2;
    }
    for (; 4 * stride < block; stride *= 4)
        for (i = 0; i < block; i += 4 * stride) oscar__fwht_far_avx512(1, 0, stride, out + i, scale);
    if (stride < block) oscar__fwht_far_avx512(1, 1, stride, out, scale);
}

/* Rows of n, block by block: all of them lie one after the other. Blocks of less than a vector are left to the scalar
   code. */
static OSCAR__AVX512 void oscar__fwht_scaled_avx512(int n, size_t rows, float factor, const float *in, float *out)
{
    const __m512 scale = _mm512_set1_ps(factor);
    const size_t block = (size_t)oscar__pow2_divisor(n), all = rows * (size_t)n;
    size_t i;
    if (block == 16) for (i = 0; i < all; i += block) oscar__fwht_near_avx512(1, 1, in + i, out + i, scale);
    else if (block == 2 * 16) for (i = 0; i < all; i += block) oscar__fwht_near_avx512(2, 1, in + i, out + i, scale);
    else if (block == 4 * 16) for (i = 0; i < all; i += block) oscar__fwht_near_avx512(4, 1, in + i, out + i, scale);
    else if (block == 8 * 16) for (i = 0; i < all; i += block) oscar__fwht_near_avx512(8, 1, in + i, out + i, scale);
    else for (i = 0; i < all; i += block) oscar__fwht_block_avx512((int)block, in + i, out + i, scale);
}

static OSCAR__AVX512 void oscar__fwht_avx512(int n, size_t rows, const float *in, float *out)
{
    if (oscar__pow2_divisor(n) < 16) oscar__fwht_rows(n, rows, in, out);
    else oscar__fwht_scaled_avx512(n, rows, oscar__fwht_scale(n), in, out);
}

static OSCAR__AVX512 void oscar__butterfly_avx512(int n, float *x)
{
    if (oscar__pow2_divisor(n) < 16) oscar__butterfly(n, x);
    else oscar__fwht_scaled_avx512(n, 1, 1.0f, x, x);
}

#undef OSCAR__PAIR
#undef OSCAR__PAIRS4
#undef OSCAR__PUT

/* 4 rows of x by `width` vectors of columns; width is a constant at each call. Columns and rows of the sums: a, b, c,
   d are the rows. long: written out, so that the sums stay in registers. */
OSCAR__INLINE OSCAR__AVX512 void oscar__rotate_panel_avx512(int width, int n, const float *m, const float *const *x,
                                                            float *const *out)
{
    const float *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    __m512 b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    __m512 c0 = a0, c1 = a0, c2 = a0, c3 = a0;
    __m512 d0 = a0, d1 = a0, d2 = a0, d3 = a0;
    int i;
    for (i = 0; i < n; i++, m += n) {
        const __m512 s0 = _mm512_set1_ps(x0[i]);
        const __m512 s1 = _mm512_set1_ps(x1[i]);
        const __m512 s2 = _mm512_set1_ps(x2[i]);
        const __m512 s3 = _mm512_set1_ps(x3[i]);
        {
            const __m512 w = _mm512_loadu_ps(m + 0);
            a0 = _mm512_fmadd_ps(s0, w, a0);
            b0 = _mm512_fmadd_ps(s1, w, b0);
            c0 = _mm512_fmadd_ps(s2, w, c0);
            d0 = _mm512_fmadd_ps(s3, w, d0);
        }
        if (width > 1) {
            const __m512 w = _mm512_loadu_ps(m + 16);
            a1 = _mm512_fmadd_ps(s0, w, a1);
            b1 = _mm512_fmadd_ps(s1, w, b1);
            c1 = _mm512_fmadd_ps(s2, w, c1);
            d1 = _mm512_fmadd_ps(s3, w, d1);
        }
        if (width > 2) {
            const __m512 w = _mm512_loadu_ps(m + 32);
            a2 = _mm512_fmadd_ps(s0, w, a2);
            b2 = _mm512_fmadd_ps(s1, w, b2);
            c2 = _mm512_fmadd_ps(s2, w, c2);
            d2 = _mm512_fmadd_ps(s3, w, d2);
        }
        if (width > 3) {
            const __m512 w = _mm512_loadu_ps(m + 48);
            a3 = _mm512_fmadd_ps(s0, w, a3);
            b3 = _mm512_fmadd_ps(s1, w, b3);
            c3 = _mm512_fmadd_ps(s2, w, c3);
            d3 = _mm512_fmadd_ps(s3, w, d3);
        }
    }
    _mm512_storeu_ps(out[0], a0);
    _mm512_storeu_ps(out[1], b0);
    _mm512_storeu_ps(out[2], c0);
    _mm512_storeu_ps(out[3], d0);
    if (width > 1) {
        _mm512_storeu_ps(out[0] + 16, a1);
        _mm512_storeu_ps(out[1] + 16, b1);
        _mm512_storeu_ps(out[2] + 16, c1);
        _mm512_storeu_ps(out[3] + 16, d1);
    }
    if (width > 2) {
        _mm512_storeu_ps(out[0] + 32, a2);
        _mm512_storeu_ps(out[1] + 32, b2);
        _mm512_storeu_ps(out[2] + 32, c2);
        _mm512_storeu_ps(out[3] + 32, d2);
    }
    if (width > 3) {
        _mm512_storeu_ps(out[0] + 48, a3);
        _mm512_storeu_ps(out[1] + 48, b3);
        _mm512_storeu_ps(out[2] + 48, c3);
        _mm512_storeu_ps(out[3] + 48, d3);
    }
}

/* All rows by a panel of columns; the last row stands in for missing ones. A function of its own: inlined, the sums did
   not all stay in registers. */
static OSCAR__NOINLINE OSCAR__AVX512 void oscar__rotate_rows_avx512(int n, int rows, int width, const float *m,
                                                                    const float *x, float *out)
{
    int r, k;
    for (r = 0; r < rows; r += 4) {
        const float *from[4];
        float *to[4];
        for (k = 0; k < 4; k++) {
            size_t at = (size_t)n * (size_t)(r + k < rows ? r + k : rows - 1);
            from[k] = x + at;
            to[k] = out + at;
        }
        if (width == 4) oscar__rotate_panel_avx512(4, n, m, from, to);
        else if (width == 2) oscar__rotate_panel_avx512(2, n, m, from, to);
        else oscar__rotate_panel_avx512(1, n, m, from, to);
    }
}

/* Panels of columns outside, so that a panel of m stays in the nearest cache. */
static OSCAR__AVX512 void oscar__rotate_avx512(int n, int rows, const float *m, const float *x, float *out)
{
    const size_t row = (size_t)n;
    int j = 0, r, i, width;
    for (; j + 16 <= n; j += width * 16) {
        width = j + 64 <= n ? 4 : j + 32 <= n ? 2 : 1;
        oscar__rotate_rows_avx512(n, rows, width, m + j, x, out + j);
    }
    for (; j < n; j++)   /* less than a vector is left */
        for (r = 0; r < rows; r++) {
            float sum = 0.0f;
            for (i = 0; i < n; i++) sum = fmaf(x[row * (size_t)r + (size_t)i], m[row * (size_t)i + (size_t)j], sum);
            out[row * (size_t)r + (size_t)j] = sum;
        }
}

/* -- rows: page mean (3.12) -- */

/* z_j: one chain over the tokens. dim: a multiple of 16. */
static OSCAR__AVX512 void oscar__mean_sum_avx512(int tokens, int dim, const float *x, float *z)
{
    const __m512 share = _mm512_set1_ps((float)(1.0 / tokens));
    const size_t row = (size_t)dim;
    int t, j;
    for (j = 0; j + 4 * 16 <= dim; j += 4 * 16) {
        const float *p = x + j;
        __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a;
        for (t = 0; t < tokens; t++, p += row) {
            a = _mm512_fmadd_ps(_mm512_loadu_ps(p), share, a);
            b = _mm512_fmadd_ps(_mm512_loadu_ps(p + 16), share, b);
            c = _mm512_fmadd_ps(_mm512_loadu_ps(p + 2 * 16), share, c);
            d = _mm512_fmadd_ps(_mm512_loadu_ps(p + 3 * 16), share, d);
        }
        _mm512_storeu_ps(z + j, a);
        _mm512_storeu_ps(z + j + 16, b);
        _mm512_storeu_ps(z + j + 2 * 16, c);
        _mm512_storeu_ps(z + j + 3 * 16, d);
    }
    for (; j < dim; j += 16) {
        const float *p = x + j;
        __m512 a = _mm512_setzero_ps();
        for (t = 0; t < tokens; t++, p += row) a = _mm512_fmadd_ps(_mm512_loadu_ps(p), share, a);
        _mm512_storeu_ps(z + j, a);
    }
}

static OSCAR__AVX512 void oscar__mean_levels_avx512(int dim, const float *z, float s, float *n, unsigned char *bytes)
{
    const __m512 top = _mm512_set1_ps(127.5f), bottom = _mm512_set1_ps(-127.5f), half = _mm512_set1_ps(0.5f);
    int j;
    for (j = 0; j < dim; j += 16) {
        __m512 level = half;
        if (s > 0) level = _mm512_add_ps(oscar__floor_avx512(_mm512_div_ps(_mm512_loadu_ps(z + j), _mm512_set1_ps(s))),
                                         half);
        level = _mm512_min_ps(top, _mm512_max_ps(bottom, level));
        _mm512_storeu_ps(n + j, level);
        oscar__put_codes_avx512(bytes + j, _mm512_cvttps_epi32(_mm512_add_ps(level, top)));
    }
}

/* -- tiles: rows side by side in the lanes of vectors, [channel][16 rows] (3.11) -- */

/* Every step is that of the scalar code for one row, for 16 rows at a time. x is always [channels][16], from the lane
   on where the 16 rows start. */

/* Four channels of 16 rows, from four vectors of four channels of every fourth row. */
#define OSCAR__TURN(a, b, d, e) do { \
    __m512 low_ = _mm512_unpacklo_ps(a, b), high_ = _mm512_unpackhi_ps(a, b); \
    __m512 more_ = _mm512_unpacklo_ps(d, e), most_ = _mm512_unpackhi_ps(d, e); \
    a = _mm512_shuffle_ps(low_, more_, 0x44); \
    b = _mm512_shuffle_ps(low_, more_, 0xee); \
    d = _mm512_shuffle_ps(high_, most_, 0x44); \
    e = _mm512_shuffle_ps(high_, most_, 0xee); } while (0)

OSCAR__INLINE OSCAR__AVX512 void oscar__turn_four_avx512(__m512 a, __m512 b, __m512 d, __m512 e, float *out)
{
    OSCAR__TURN(a, b, d, e);
    _mm512_storeu_ps(out, a);
    _mm512_storeu_ps(out + OSCAR__TILE, b);
    _mm512_storeu_ps(out + 2 * OSCAR__TILE, d);
    _mm512_storeu_ps(out + 3 * OSCAR__TILE, e);
}

/* Four channels of every fourth of 16 rows, which are `one` floats apart. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__every_fourth_avx512(const float *row, size_t one)
{
    return oscar__part_rows_avx512(row, row + 4 * one, row + 8 * one, row + 12 * one);
}

/* 16 rows from `first` on; the last of all `count` rows stands in for those after it. (16 pointers do not stay in
   registers, a distance does.) */
static OSCAR__AVX512 void oscar__to_lanes_avx512(int dim, int first, int count, const float *rows, float *x)
{
    const size_t one = (size_t)dim;
    const float *row = rows + (size_t)first * one, *end = row + one, *at[16], *const *r = at;
    int t;
    if (first + OSCAR__TILE <= count) {
        for (; row < end; row += 4, x += 4 * OSCAR__TILE)
            oscar__turn_four_avx512(oscar__every_fourth_avx512(row, one), oscar__every_fourth_avx512(row + one, one),
                                    oscar__every_fourth_avx512(row + 2 * one, one),
                                    oscar__every_fourth_avx512(row + 3 * one, one), x);
        return;
    }
    for (t = 0; t < 16; t++) at[t] = rows + (size_t)(first + t < count ? first + t : count - 1) * one;
    for (t = 0; t < dim; t += 4, x += 4 * OSCAR__TILE)
        oscar__turn_four_avx512(oscar__part_rows_avx512(r[0] + t, r[4] + t, r[8] + t, r[12] + t),
                                oscar__part_rows_avx512(r[1] + t, r[5] + t, r[9] + t, r[13] + t),
                                oscar__part_rows_avx512(r[2] + t, r[6] + t, r[10] + t, r[14] + t),
                                oscar__part_rows_avx512(r[3] + t, r[7] + t, r[11] + t, r[15] + t), x);
}

/* Rows of m side by side (3.5), so that each lane has the chain of one output. */
static OSCAR__AVX512 void oscar__rotate_back_avx512(int n, const float *m, const float *x, float *out)
{
    const size_t one = (size_t)n;
    int i, j;
    for (i = 0; i < n; i += 16, m += 16 * one) {
        __m512 sum = _mm512_setzero_ps();
        for (j = 0; j < n; j += 4) {
            const float *row = m + j;
            __m512 a = oscar__every_fourth_avx512(row, one), b = oscar__every_fourth_avx512(row + one, one);
            __m512 d = oscar__every_fourth_avx512(row + 2 * one, one);
            __m512 e = oscar__every_fourth_avx512(row + 3 * one, one);
            OSCAR__TURN(a, b, d, e);
            sum = _mm512_fmadd_ps(_mm512_set1_ps(x[j]), a, sum);
            sum = _mm512_fmadd_ps(_mm512_set1_ps(x[j + 1]), b, sum);
            sum = _mm512_fmadd_ps(_mm512_set1_ps(x[j + 2]), d, sum);
            sum = _mm512_fmadd_ps(_mm512_set1_ps(x[j + 3]), e, sum);
        }
        _mm512_storeu_ps(out + i, sum);
    }
}

#undef OSCAR__TURN

/* The end of S: the tree over 16 chains. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__tree_avx512(__m512 *chain)
{
    int l, step;
    for (step = OSCAR__LANES / 2; step; step /= 2)
        for (l = 0; l < step; l++) chain[l] = _mm512_add_ps(chain[l], chain[l + step]);
    return chain[0];
}

static OSCAR__AVX512 __m512 oscar__lane_sum_avx512(int n, const float *x, const float *y)
{
    __m512 chain[OSCAR__LANES];
    int l, c;
    for (l = 0; l < OSCAR__LANES; l += 4) {
        __m512 p0 = _mm512_setzero_ps(), p1 = p0, p2 = p0, p3 = p0;
        for (c = l * OSCAR__TILE; c < n * OSCAR__TILE; c += OSCAR__LANES * OSCAR__TILE) {
            const float *a = x + c, *b = y + c;
            p0 = _mm512_fmadd_ps(_mm512_loadu_ps(a), _mm512_loadu_ps(b), p0);
            p1 = _mm512_fmadd_ps(_mm512_loadu_ps(a + OSCAR__TILE), _mm512_loadu_ps(b + OSCAR__TILE), p1);
            p2 = _mm512_fmadd_ps(_mm512_loadu_ps(a + 2 * OSCAR__TILE), _mm512_loadu_ps(b + 2 * OSCAR__TILE), p2);
            p3 = _mm512_fmadd_ps(_mm512_loadu_ps(a + 3 * OSCAR__TILE), _mm512_loadu_ps(b + 3 * OSCAR__TILE), p3);
        }
        chain[l] = p0;
        chain[l + 1] = p1;
        chain[l + 2] = p2;
        chain[l + 3] = p3;
    }
    return oscar__tree_avx512(chain);
}

/* Subtracts the page mean from the rows that it makes shorter. lane: of the tile, of the first row. */
static OSCAR__AVX512 void oscar__subtract_mean_avx512(const oscar__encoder *e, oscar__tile *tile, int lane, float *x)
{
    const __m512 s = _mm512_set1_ps(e->mean_scale);
    __m512 chain_x[OSCAR__LANES], chain_y[OSCAR__LANES], xx, yy;
    __mmask16 shorter;
    int l, c;
    for (l = 0; l < OSCAR__LANES; l++) {
        __m512 px = _mm512_setzero_ps(), py = px;
        for (c = l; c < e->dim; c += OSCAR__LANES) {
            __m512 one = _mm512_loadu_ps(x + c * OSCAR__TILE), y = _mm512_fnmadd_ps(_mm512_set1_ps(e->mean[c]), s, one);
            px = _mm512_fmadd_ps(one, one, px);
            py = _mm512_fmadd_ps(y, y, py);
        }
        chain_x[l] = px;
        chain_y[l] = py;
    }
    xx = oscar__tree_avx512(chain_x);
    yy = oscar__tree_avx512(chain_y);
    shorter = oscar__less_avx512(yy, xx);
    tile->kept |= (~oscar__bits_avx512(shorter) & OSCAR__ALL_avx512) << lane;
    if (e->overflow == OSCAR__REFUSE) {
        tile->bad |= (~oscar__bits_avx512(oscar__finite_lanes_avx512(xx)) & OSCAR__ALL_avx512) << lane;
        tile->bad |= (~oscar__bits_avx512(oscar__finite_lanes_avx512(yy)) & OSCAR__ALL_avx512) << lane;
    }
    for (c = 0; c < e->dim; c++) {
        __m512 one = _mm512_loadu_ps(x + c * OSCAR__TILE), y = _mm512_fnmadd_ps(_mm512_set1_ps(e->mean[c]), s, one);
        _mm512_storeu_ps(x + c * OSCAR__TILE, oscar__pick_avx512(shorter, y, one));
    }
}

/* Rounds scales or minima to the metadata type. Lanes that overflow are returned and saturated. */
static OSCAR__AVX512 __mmask16 oscar__metadata_round_avx512(oscar_type type, __m512 *x)
{
    const __m512 zero = _mm512_setzero_ps(), limit = _mm512_set1_ps(type == OSCAR_F32 ? FLT_MAX : 65504.0f);
    __m512 rounded = type == OSCAR_F32 ? *x : oscar__round_f16_avx512(*x), capped;
    __mmask16 fits = oscar__at_least_avx512(limit, oscar__abs_avx512(rounded));
    capped = oscar__pick_avx512(oscar__less_avx512(zero, rounded), limit, zero);
    capped = oscar__pick_avx512(oscar__less_avx512(rounded, zero), _mm512_sub_ps(zero, limit), capped);
    *x = oscar__pick_avx512(fits, rounded, capped);
    return fits;
}

/* Rounds row_count numbers of a tile's metadata. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__metadata_lanes_avx512(const oscar__encoder *e, oscar__tile *tile, int lane,
                                                                __m512 x)
{
    __mmask16 fits = oscar__metadata_round_avx512(e->codec->metadata, &x);
    if (e->overflow == OSCAR__REFUSE) tile->bad |= (~oscar__bits_avx512(fits) & OSCAR__ALL_avx512) << lane;
    return x;
}

/* How many of dim magnitudes are above `middle`. */
OSCAR__INLINE OSCAR__AVX512 __m512i oscar__count_above_avx512(int dim, const float *magnitude, __m512i middle)
{
    __m512i a = _mm512_setzero_si512(), b = a;
    int c;
    for (c = 0; c < dim; c += 2) {
        const float *p = magnitude + c * OSCAR__TILE;
        a = oscar__add_if_avx512(a, oscar__above_avx512(_mm512_castps_si512(_mm512_loadu_ps(p)), middle));
        b = oscar__add_if_avx512(b, oscar__above_avx512(_mm512_castps_si512(_mm512_loadu_ps(p + OSCAR__TILE)), middle));
    }
    return _mm512_add_epi32(a, b);
}

/* The magnitude of a rank in each row, by bisection on its bits. It starts at a guess and moves away from it in steps
   that double, and it ends early where a bound has just rank + 1 magnitudes below: the largest of them is it. */
static OSCAR__AVX512 __m512 oscar__rank_avx512(int dim, int rank, const float *magnitude, __m512i guess)
{
    const __m512i one = _mm512_set1_epi32(1), above_rank = _mm512_set1_epi32(dim - rank - 1);
    __m512i low = _mm512_setzero_si512(), high = _mm512_set1_epi32(0x7f800000), step = _mm512_set1_epi32(1 << 19);
    __m512i middle = guess, found = low;
    int c;
    while (oscar__bits_avx512(oscar__above_avx512(high, low))) {
        __m512i above = oscar__count_above_avx512(dim, magnitude, middle), centre;
        __mmask16 too_low = oscar__above_avx512(above, above_rank), near_enough = oscar__above_avx512(above_rank,
                                                                                                      above);
        high = oscar__pick_int_avx512(too_low, high, middle);
        low = oscar__pick_int_avx512(too_low, _mm512_add_epi32(middle, one),
                                 oscar__pick_int_avx512(near_enough, low, middle));
        centre = _mm512_add_epi32(low, _mm512_srli_epi32(_mm512_sub_epi32(high, low), 1));
        middle = oscar__pick_int_avx512(too_low, _mm512_min_epu32(centre, _mm512_add_epi32(low, step)),
                                    _mm512_max_epi32(centre, _mm512_sub_epi32(high, step)));
        step = _mm512_min_epu32(_mm512_add_epi32(step, step), _mm512_set1_epi32(1 << 30));
    }
    for (c = 0; c < dim; c++) {
        __m512i one_magnitude = _mm512_castps_si512(_mm512_loadu_ps(magnitude + c * OSCAR__TILE));
        __mmask16 above = oscar__above_avx512(one_magnitude, low);
        found = oscar__pick_int_avx512(above, found, _mm512_max_epi32(found, one_magnitude));
    }
    return _mm512_castsi512_ps(found);
}

/* (a, b) -> the larger, the smaller */
#define OSCAR__ORDER(a, b) do { __m512 low_ = _mm512_min_ps(a, b); a = _mm512_max_ps(a, b); b = low_; } while (0)

/* Batcher's network: 8 vectors, the largest first. */
OSCAR__INLINE OSCAR__AVX512 void oscar__sort8_avx512(__m512 *v)
{
    OSCAR__ORDER(v[0], v[1]); OSCAR__ORDER(v[2], v[3]); OSCAR__ORDER(v[4], v[5]); OSCAR__ORDER(v[6], v[7]);
    OSCAR__ORDER(v[0], v[2]); OSCAR__ORDER(v[1], v[3]); OSCAR__ORDER(v[4], v[6]); OSCAR__ORDER(v[5], v[7]);
    OSCAR__ORDER(v[1], v[2]); OSCAR__ORDER(v[5], v[6]);
    OSCAR__ORDER(v[0], v[4]); OSCAR__ORDER(v[1], v[5]); OSCAR__ORDER(v[2], v[6]); OSCAR__ORDER(v[3], v[7]);
    OSCAR__ORDER(v[2], v[4]); OSCAR__ORDER(v[3], v[5]);
    OSCAR__ORDER(v[1], v[2]); OSCAR__ORDER(v[3], v[4]); OSCAR__ORDER(v[5], v[6]);
}

/* The end of a bitonic merge: 8 vectors that fall and rise, the largest first. */
OSCAR__INLINE OSCAR__AVX512 void oscar__merge8_avx512(__m512 *v)
{
    OSCAR__ORDER(v[0], v[4]); OSCAR__ORDER(v[1], v[5]); OSCAR__ORDER(v[2], v[6]); OSCAR__ORDER(v[3], v[7]);
    OSCAR__ORDER(v[0], v[2]); OSCAR__ORDER(v[1], v[3]); OSCAR__ORDER(v[4], v[6]); OSCAR__ORDER(v[5], v[7]);
    OSCAR__ORDER(v[0], v[1]); OSCAR__ORDER(v[2], v[3]); OSCAR__ORDER(v[4], v[5]); OSCAR__ORDER(v[6], v[7]);
}

/* The magnitude of a rank from the top in each row, less than 8, or (wide) 16: 8 channels are sorted and merged with
   the largest so far. wide is a constant at each call. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__top_avx512(int wide, int dim, int rank, const float *x)
{
    __m512 best[16], v[8];
    int c;
    best[0] = best[1] = best[2] = best[3] = best[4] = best[5] = best[6] = best[7] = _mm512_setzero_ps();
    best[8] = best[9] = best[10] = best[11] = best[12] = best[13] = best[14] = best[15] = best[0];
    for (c = 0; c < dim; c += 8, x += 8 * OSCAR__TILE) {
        __m512 *last = wide ? best + 8 : best;
        v[0] = oscar__abs_avx512(_mm512_loadu_ps(x));
        v[1] = oscar__abs_avx512(_mm512_loadu_ps(x + OSCAR__TILE));
        v[2] = oscar__abs_avx512(_mm512_loadu_ps(x + 2 * OSCAR__TILE));
        v[3] = oscar__abs_avx512(_mm512_loadu_ps(x + 3 * OSCAR__TILE));
        v[4] = oscar__abs_avx512(_mm512_loadu_ps(x + 4 * OSCAR__TILE));
        v[5] = oscar__abs_avx512(_mm512_loadu_ps(x + 5 * OSCAR__TILE));
        v[6] = oscar__abs_avx512(_mm512_loadu_ps(x + 6 * OSCAR__TILE));
        v[7] = oscar__abs_avx512(_mm512_loadu_ps(x + 7 * OSCAR__TILE));
        oscar__sort8_avx512(v);
        last[0] = _mm512_max_ps(last[0], v[7]); last[1] = _mm512_max_ps(last[1], v[6]);
        last[2] = _mm512_max_ps(last[2], v[5]); last[3] = _mm512_max_ps(last[3], v[4]);
        last[4] = _mm512_max_ps(last[4], v[3]); last[5] = _mm512_max_ps(last[5], v[2]);
        last[6] = _mm512_max_ps(last[6], v[1]); last[7] = _mm512_max_ps(last[7], v[0]);
        if (wide) {
            OSCAR__ORDER(best[0], best[8]); OSCAR__ORDER(best[1], best[9]); OSCAR__ORDER(best[2], best[10]);
            OSCAR__ORDER(best[3], best[11]); OSCAR__ORDER(best[4], best[12]); OSCAR__ORDER(best[5], best[13]);
            OSCAR__ORDER(best[6], best[14]); OSCAR__ORDER(best[7], best[15]);
            oscar__merge8_avx512(best + 8);
        }
        oscar__merge8_avx512(best);
    }
    {
        float all[16 * 16];
        for (c = 0; c < 16; c++) _mm512_storeu_ps(all + c * 16, best[c]);
        return _mm512_loadu_ps(all + rank * 16);
    }
}

#undef OSCAR__ORDER

/* The magnitude of a rank in each row. guess: about where it is, and then where it was. */
static OSCAR__AVX512 __m512 oscar__threshold_avx512(int dim, int rank, const float *x, float *magnitude, __m512i *guess)
{
    __m512 tau;
    int c;
    if (dim - rank <= 8) return oscar__top_avx512(0, dim, dim - rank - 1, x);
    if (dim - rank <= 16) return oscar__top_avx512(1, dim, dim - rank - 1, x);
    for (c = 0; c < dim; c++)
        _mm512_storeu_ps(magnitude + c * OSCAR__TILE, oscar__abs_avx512(_mm512_loadu_ps(x + c * OSCAR__TILE)));
    tau = oscar__rank_avx512(dim, rank, magnitude, *guess);
    *guess = _mm512_castps_si512(tau);
    return tau;
}

/* CLIP: clamps rows to the magnitude of a rank. */
static OSCAR__AVX512 void oscar__clamp_avx512(int dim, int rank, float *x, float *magnitude, __m512i *guess)
{
    __m512 tau = oscar__threshold_avx512(dim, rank, x, magnitude, guess);
    __m512 minus = _mm512_sub_ps(_mm512_setzero_ps(), tau);
    int c;
    for (c = 0; c < dim; c++) {
        __m512 one = _mm512_min_ps(tau, _mm512_loadu_ps(x + c * OSCAR__TILE));
        _mm512_storeu_ps(x + c * OSCAR__TILE, _mm512_max_ps(minus, one));
    }
}

/* A code of 2 bits as byte k of four: how many of t0 <= t1 <= t2 are not above y, of none for a NaN. k is a constant at
   each call. */
OSCAR__INLINE OSCAR__AVX512 __m512i oscar__code2_avx512(__m512i four, int k, __m512 y, __m512 t0, __m512 t1, __m512 t2)
{
    __mmask16 upper = oscar__at_least_avx512(y, t1), odd = oscar__at_least_avx512(y, oscar__pick_avx512(upper, t2, t0));
    four = oscar__unit_if_avx512(four, upper, _mm512_set1_epi32(2 << 8 * k));
    return oscar__unit_if_avx512(four, odd, _mm512_set1_epi32(1 << 8 * k));
}

/* The same of 4 bits, of a level that is a whole number or is to be cut off. */
OSCAR__INLINE OSCAR__AVX512 __m512i oscar__code4_avx512(__m512i four, int k, __m512 level)
{
    return _mm512_or_si512(four, _mm512_slli_epi32(_mm512_cvttps_epi32(level), 8 * (unsigned)k));
}

/* CLIP, one code as byte k of four. bits and k are constants at each call. */
OSCAR__INLINE OSCAR__AVX512 __m512i oscar__clip_code_avx512(__m512i four, int bits, int k, const float *x,
                                                            __m512 lo, __m512 s, __m512 t0, __m512 t1, __m512 t2)
{
    __m512 y = _mm512_sub_ps(_mm512_loadu_ps(x + k * OSCAR__TILE), lo), level;
    if (bits == 2) return oscar__code2_avx512(four, k, y, t0, t1, t2);
    level = _mm512_add_ps(_mm512_div_ps(y, s), _mm512_set1_ps(0.5f));
    level = _mm512_min_ps(_mm512_set1_ps(15.0f), _mm512_max_ps(level, _mm512_setzero_ps()));
    return oscar__code4_avx512(four, k, level);
}

/* CLIP, codes of one group of n channels from rounded scale and minimum. bits is a constant at each call. */
OSCAR__INLINE OSCAR__AVX512 void oscar__clip_codes_avx512(int n, int bits, const float *x, __m512 s, __m512 lo,
                                                          unsigned char *codes)
{
    const __mmask16 positive = oscar__less_avx512(_mm512_setzero_ps(), s);
    const __m512i none = _mm512_setzero_si512();
    const __m512 half = _mm512_set1_ps(0.5f), divisor = oscar__pick_avx512(positive, s, half);
    const __m512 t0 = _mm512_mul_ps(half, s), t1 = _mm512_mul_ps(_mm512_set1_ps(1.5f), s);
    const __m512 t2 = _mm512_mul_ps(_mm512_set1_ps(2.5f), s);
    int c;
    for (c = 0; c < n; c += 4) {
        const float *at = x + c * OSCAR__TILE;
        __m512i four = oscar__clip_code_avx512(none, bits, 0, at, lo, divisor, t0, t1, t2);
        four = oscar__clip_code_avx512(four, bits, 1, at, lo, divisor, t0, t1, t2);
        four = oscar__clip_code_avx512(four, bits, 2, at, lo, divisor, t0, t1, t2);
        four = oscar__clip_code_avx512(four, bits, 3, at, lo, divisor, t0, t1, t2);
        oscar__put_four_codes_avx512(codes + c * OSCAR__TILE, oscar__pick_int_avx512(positive, four, none));
    }
}

/* CLIP, one group of n channels of clamped rows. Minimum and maximum may be a zero of either sign until 0 is added. */
static OSCAR__AVX512 void oscar__fit_clip_avx512(const oscar__encoder *e, oscar__tile *tile, int lane, int g,
                                                 const float *x)
{
    const __m512 zero = _mm512_setzero_ps();
    int n = e->codec->group, c, at = g * OSCAR__TILE + lane;
    __m512 lo = _mm512_loadu_ps(x), lo1 = lo, lo2 = lo, lo3 = lo, hi = lo, hi1 = lo, hi2 = lo, hi3 = lo, s;
    for (c = 0; c < n; c += 4) {
        const float *p = x + c * OSCAR__TILE;
        __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + OSCAR__TILE);
        __m512 d = _mm512_loadu_ps(p + 2 * OSCAR__TILE), f = _mm512_loadu_ps(p + 3 * OSCAR__TILE);
        lo = _mm512_min_ps(a, lo);
        hi = _mm512_max_ps(a, hi);
        lo1 = _mm512_min_ps(b, lo1);
        hi1 = _mm512_max_ps(b, hi1);
        lo2 = _mm512_min_ps(d, lo2);
        hi2 = _mm512_max_ps(d, hi2);
        lo3 = _mm512_min_ps(f, lo3);
        hi3 = _mm512_max_ps(f, hi3);
    }
    lo = _mm512_add_ps(_mm512_min_ps(_mm512_min_ps(lo, lo1), _mm512_min_ps(lo2, lo3)), zero);
    hi = _mm512_add_ps(_mm512_max_ps(_mm512_max_ps(hi, hi1), _mm512_max_ps(hi2, hi3)), zero);
    s = _mm512_div_ps(_mm512_sub_ps(hi, lo), _mm512_set1_ps(e->codec->bits == 2 ? 3.0f : 15.0f));
    s = oscar__metadata_lanes_avx512(e, tile, lane, s);
    lo = oscar__metadata_lanes_avx512(e, tile, lane, lo);
    _mm512_storeu_ps(tile->scale + at, s);
    _mm512_storeu_ps(tile->minimum + at, lo);
    if (e->codec->bits == 2) oscar__clip_codes_avx512(n, 2, x, s, lo, tile->codes + g * n * OSCAR__TILE + lane);
    else oscar__clip_codes_avx512(n, 4, x, s, lo, tile->codes + g * n * OSCAR__TILE + lane);
}

/* UNBIASED, 2 bits: S(x, u) and S(u, u) of the four steps t. |u| is 1.5 where x >= t or x < -t, else 0.5: an integer
   compare of |x|, less one unit where x < 0. S(u, u) is exact in any order, so it is counted. */
static OSCAR__AVX512 void oscar__try_steps2_avx512(int n, const float *x, const __m512 *t, __m512 *xu, __m512 *uu)
{
    __m512 chain[4][OSCAR__LANES];
    __m512i t0 = _mm512_castps_si512(t[0]), t1 = _mm512_castps_si512(t[1]), t2 = _mm512_castps_si512(t[2]);
    __m512i t3 = _mm512_castps_si512(t[3]), one = _mm512_set1_epi32(1), many[4];
    int l, c, a;
    t0 = _mm512_sub_epi32(t0, one);
    t1 = _mm512_sub_epi32(t1, one);
    t2 = _mm512_sub_epi32(t2, one);
    t3 = _mm512_sub_epi32(t3, one);
    for (a = 0; a < 4; a++) many[a] = _mm512_setzero_si512();
    for (l = 0; l < OSCAR__LANES; l++) {
        __m512 p0 = _mm512_setzero_ps(), p1 = p0, p2 = p0, p3 = p0;
        __m512i n0 = many[0], n1 = many[1], n2 = many[2], n3 = many[3];
        for (c = l; c < n; c += OSCAR__LANES) {
            __m512 value = _mm512_loadu_ps(x + c * OSCAR__TILE), size = oscar__abs_avx512(value);
            __m512i key = _mm512_sub_epi32(_mm512_castps_si512(size), _mm512_srli_epi32(_mm512_castps_si512(value),
                                                                                        31));
            __mmask16 m0 = oscar__above_avx512(key, t0), m1 = oscar__above_avx512(key, t1);
            __mmask16 m2 = oscar__above_avx512(key, t2), m3 = oscar__above_avx512(key, t3);
            p0 = _mm512_fmadd_ps(size, oscar__level2_avx512(m0), p0);
            p1 = _mm512_fmadd_ps(size, oscar__level2_avx512(m1), p1);
            p2 = _mm512_fmadd_ps(size, oscar__level2_avx512(m2), p2);
            p3 = _mm512_fmadd_ps(size, oscar__level2_avx512(m3), p3);
            n0 = oscar__add_if_avx512(n0, m0);
            n1 = oscar__add_if_avx512(n1, m1);
            n2 = oscar__add_if_avx512(n2, m2);
            n3 = oscar__add_if_avx512(n3, m3);
        }
        chain[0][l] = p0;
        chain[1][l] = p1;
        chain[2][l] = p2;
        chain[3][l] = p3;
        many[0] = n0;
        many[1] = n1;
        many[2] = n2;
        many[3] = n3;
    }
    for (a = 0; a < 4; a++) {
        __m512i quarters = _mm512_add_epi32(_mm512_slli_epi32(many[a], 3), _mm512_set1_epi32(n));
        xu[a] = oscar__tree_avx512(chain[a]);
        uu[a] = _mm512_mul_ps(_mm512_cvtepi32_ps(quarters), _mm512_set1_ps(0.25f));
    }
}

/* The level nearest to x / t, 4 bits. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__level4_avx512(__m512 x, __m512 t)
{
    __m512 level = _mm512_add_ps(oscar__floor_avx512(_mm512_div_ps(x, t)), _mm512_set1_ps(0.5f));
    return _mm512_min_ps(_mm512_set1_ps(7.5f), _mm512_max_ps(_mm512_set1_ps(-7.5f), level));
}

/* The same for 4 bits. */
static OSCAR__AVX512 void oscar__try_steps4_avx512(int n, const float *x, const __m512 *t, __m512 *xu, __m512 *uu)
{
    __m512 chain[OSCAR__LANES];
    int a, l, c;
    for (a = 0; a < 4; a++) {
        uu[a] = _mm512_setzero_ps();
        for (l = 0; l < OSCAR__LANES; l++) {
            __m512 p = _mm512_setzero_ps();
            for (c = l; c < n; c += OSCAR__LANES) {
                __m512 value = _mm512_loadu_ps(x + c * OSCAR__TILE), u = oscar__level4_avx512(value, t[a]);
                p = _mm512_fmadd_ps(value, u, p);
                uu[a] = _mm512_fmadd_ps(u, u, uu[a]);
            }
            chain[l] = p;
        }
        xu[a] = oscar__tree_avx512(chain);
    }
}

/* UNBIASED, one code as byte k of four. bits and k are constants at each call. */
OSCAR__INLINE OSCAR__AVX512 __m512i oscar__unbiased_code_avx512(__m512i four, int bits, int k, const float *x, __m512 t)
{
    const __m512 zero = _mm512_setzero_ps();
    __m512 value = _mm512_loadu_ps(x + k * OSCAR__TILE);
    if (bits == 2) return oscar__code2_avx512(four, k, value, _mm512_sub_ps(zero, t), zero, t);
    return oscar__code4_avx512(four, k, _mm512_add_ps(oscar__level4_avx512(value, t), _mm512_set1_ps(7.5f)));
}

/* UNBIASED, codes of one group with step t, 0 in the lanes that are not active. bits is a constant at each call. */
OSCAR__INLINE OSCAR__AVX512 void oscar__unbiased_codes_avx512(int n, int bits, const float *x, __m512 t,
                                                              __mmask16 active, unsigned char *codes)
{
    const __m512i none = _mm512_setzero_si512();
    int c;
    for (c = 0; c < n; c += 4) {
        const float *at = x + c * OSCAR__TILE;
        __m512i four = oscar__unbiased_code_avx512(none, bits, 0, at, t);
        four = oscar__unbiased_code_avx512(four, bits, 1, at, t);
        four = oscar__unbiased_code_avx512(four, bits, 2, at, t);
        four = oscar__unbiased_code_avx512(four, bits, 3, at, t);
        oscar__put_four_codes_avx512(codes + c * OSCAR__TILE, oscar__pick_int_avx512(active, four, none));
    }
}

/* UNBIASED, one group of n channels: codes, and the scales before rounding. */
static OSCAR__AVX512 __m512 oscar__fit_unbiased_avx512(int n, int bits, const float *x, unsigned char *codes)
{
    const __m512 zero = _mm512_setzero_ps(), one = _mm512_set1_ps(1.0f);
    __m512 xx = oscar__lane_sum_avx512(n, x, x), r = _mm512_sqrt_ps(_mm512_div_ps(xx, _mm512_set1_ps((float)n)));
    __m512 t[4], xu[4], uu[4], best = zero, best_xu = zero, best_t = one, scale;
    __mmask16 finite = oscar__finite_lanes_avx512(xx), active, positive;
    int a;
    for (a = 0; a < 4; a++) t[a] = _mm512_mul_ps(r, _mm512_set1_ps(oscar__steps[bits == 4][a]));
    active = oscar__both_avx512(finite, oscar__less_avx512(zero, t[0]));
    for (a = 0; a < 4; a++) t[a] = oscar__pick_avx512(active, t[a], one);
    if (bits == 2) oscar__try_steps2_avx512(n, x, t, xu, uu);
    else oscar__try_steps4_avx512(n, x, t, xu, uu);
    for (a = 0; a < 4; a++) {
        __m512 score = _mm512_div_ps(_mm512_mul_ps(xu[a], xu[a]), uu[a]);
        __mmask16 better = oscar__less_avx512(best, score);
        best = a ? oscar__pick_avx512(better, score, best) : score;
        best_xu = a ? oscar__pick_avx512(better, xu[a], best_xu) : xu[0];
        best_t = a ? oscar__pick_avx512(better, t[a], best_t) : t[0];
    }
    if (bits == 2) oscar__unbiased_codes_avx512(n, 2, x, best_t, active, codes);
    else oscar__unbiased_codes_avx512(n, 4, x, best_t, active, codes);
    positive = oscar__both_avx512(active, oscar__less_avx512(zero, best_xu));
    scale = oscar__pick_avx512(positive, _mm512_div_ps(xx, oscar__pick_avx512(positive, best_xu, one)), zero);
    return oscar__pick_avx512(finite, scale, xx);
}

/* -- tiles: refining (3.11) -- */

/* out_j = fmaf(from_i, M[first + i][j], ...) over i = 0 .. count - 1 in order, from +0 or (add) from out_j, for j from
   `start` on; of two columns. from: [count][16]. */
static OSCAR__AVX512 void oscar__lane_product_avx512(int dim, const float *m, int first, int count, int start,
                                                     const float *from0,
                                      const float *from1, float *out0, float *out1, int add)
{
    int i, j;
    for (j = start; j < dim; j += 4) {
        const float *w = m + first * dim + j;
        float *p = out0 + j * OSCAR__TILE, *q = out1 + j * OSCAR__TILE;
        __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
        if (add) {
            a0 = _mm512_loadu_ps(p);
            a1 = _mm512_loadu_ps(p + OSCAR__TILE);
            a2 = _mm512_loadu_ps(p + 2 * OSCAR__TILE);
            a3 = _mm512_loadu_ps(p + 3 * OSCAR__TILE);
            b0 = _mm512_loadu_ps(q);
            b1 = _mm512_loadu_ps(q + OSCAR__TILE);
            b2 = _mm512_loadu_ps(q + 2 * OSCAR__TILE);
            b3 = _mm512_loadu_ps(q + 3 * OSCAR__TILE);
        }
        for (i = 0; i < count; i++, w += dim) {
            __m512 x = _mm512_loadu_ps(from0 + i * OSCAR__TILE), y = _mm512_loadu_ps(from1 + i * OSCAR__TILE);
            __m512 w0 = _mm512_set1_ps(w[0]), w1 = _mm512_set1_ps(w[1]), w2 = _mm512_set1_ps(w[2]),
                w3 = _mm512_set1_ps(w[3]);
            a0 = _mm512_fmadd_ps(x, w0, a0);
            b0 = _mm512_fmadd_ps(y, w0, b0);
            a1 = _mm512_fmadd_ps(x, w1, a1);
            b1 = _mm512_fmadd_ps(y, w1, b1);
            a2 = _mm512_fmadd_ps(x, w2, a2);
            b2 = _mm512_fmadd_ps(y, w2, b2);
            a3 = _mm512_fmadd_ps(x, w3, a3);
            b3 = _mm512_fmadd_ps(y, w3, b3);
        }
        _mm512_storeu_ps(p, a0);
        _mm512_storeu_ps(p + OSCAR__TILE, a1);
        _mm512_storeu_ps(p + 2 * OSCAR__TILE, a2);
        _mm512_storeu_ps(p + 3 * OSCAR__TILE, a3);
        _mm512_storeu_ps(q, b0);
        _mm512_storeu_ps(q + OSCAR__TILE, b1);
        _mm512_storeu_ps(q + 2 * OSCAR__TILE, b2);
        _mm512_storeu_ps(q + 3 * OSCAR__TILE, b3);
    }
}

/* The same of four columns. long: written out, so that the sums stay in registers. */
static OSCAR__AVX512 void oscar__lane_products_avx512(int dim, const float *m, int first, int count, int start,
                                                      const float *const *from, float *const *out, int add)
{
    int j;
    for (j = start; j < dim; j += 4) {
        const float *w = m + first * dim + j, *x0 = from[0], *x1 = from[1], *x2 = from[2], *x3 = from[3];
        const float *end = x0 + count * OSCAR__TILE;
        __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
        __m512 c0 = a0, c1 = a0, c2 = a0, c3 = a0, d0 = a0, d1 = a0, d2 = a0, d3 = a0;
        if (add) {
            a0 = _mm512_loadu_ps(out[0] + j * OSCAR__TILE);
            a1 = _mm512_loadu_ps(out[0] + j * OSCAR__TILE + OSCAR__TILE);
            a2 = _mm512_loadu_ps(out[0] + j * OSCAR__TILE + 2 * OSCAR__TILE);
            a3 = _mm512_loadu_ps(out[0] + j * OSCAR__TILE + 3 * OSCAR__TILE);
            b0 = _mm512_loadu_ps(out[1] + j * OSCAR__TILE);
            b1 = _mm512_loadu_ps(out[1] + j * OSCAR__TILE + OSCAR__TILE);
            b2 = _mm512_loadu_ps(out[1] + j * OSCAR__TILE + 2 * OSCAR__TILE);
            b3 = _mm512_loadu_ps(out[1] + j * OSCAR__TILE + 3 * OSCAR__TILE);
            c0 = _mm512_loadu_ps(out[2] + j * OSCAR__TILE);
            c1 = _mm512_loadu_ps(out[2] + j * OSCAR__TILE + OSCAR__TILE);
            c2 = _mm512_loadu_ps(out[2] + j * OSCAR__TILE + 2 * OSCAR__TILE);
            c3 = _mm512_loadu_ps(out[2] + j * OSCAR__TILE + 3 * OSCAR__TILE);
            d0 = _mm512_loadu_ps(out[3] + j * OSCAR__TILE);
            d1 = _mm512_loadu_ps(out[3] + j * OSCAR__TILE + OSCAR__TILE);
            d2 = _mm512_loadu_ps(out[3] + j * OSCAR__TILE + 2 * OSCAR__TILE);
            d3 = _mm512_loadu_ps(out[3] + j * OSCAR__TILE + 3 * OSCAR__TILE);
        }
        for (; x0 < end; x0 += OSCAR__TILE, x1 += OSCAR__TILE, x2 += OSCAR__TILE, x3 += OSCAR__TILE, w += dim) {
            const __m512 a = _mm512_loadu_ps(x0), b = _mm512_loadu_ps(x1), c = _mm512_loadu_ps(x2);
            const __m512 d = _mm512_loadu_ps(x3);
            {
                const __m512 factor = _mm512_set1_ps(w[0]);
                a0 = _mm512_fmadd_ps(a, factor, a0);
                b0 = _mm512_fmadd_ps(b, factor, b0);
                c0 = _mm512_fmadd_ps(c, factor, c0);
                d0 = _mm512_fmadd_ps(d, factor, d0);
            }
            {
                const __m512 factor = _mm512_set1_ps(w[1]);
                a1 = _mm512_fmadd_ps(a, factor, a1);
                b1 = _mm512_fmadd_ps(b, factor, b1);
                c1 = _mm512_fmadd_ps(c, factor, c1);
                d1 = _mm512_fmadd_ps(d, factor, d1);
            }
            {
                const __m512 factor = _mm512_set1_ps(w[2]);
                a2 = _mm512_fmadd_ps(a, factor, a2);
                b2 = _mm512_fmadd_ps(b, factor, b2);
                c2 = _mm512_fmadd_ps(c, factor, c2);
                d2 = _mm512_fmadd_ps(d, factor, d2);
            }
            {
                const __m512 factor = _mm512_set1_ps(w[3]);
                a3 = _mm512_fmadd_ps(a, factor, a3);
                b3 = _mm512_fmadd_ps(b, factor, b3);
                c3 = _mm512_fmadd_ps(c, factor, c3);
                d3 = _mm512_fmadd_ps(d, factor, d3);
            }
        }
        _mm512_storeu_ps(out[0] + j * OSCAR__TILE, a0);
        _mm512_storeu_ps(out[0] + j * OSCAR__TILE + OSCAR__TILE, a1);
        _mm512_storeu_ps(out[0] + j * OSCAR__TILE + 2 * OSCAR__TILE, a2);
        _mm512_storeu_ps(out[0] + j * OSCAR__TILE + 3 * OSCAR__TILE, a3);
        _mm512_storeu_ps(out[1] + j * OSCAR__TILE, b0);
        _mm512_storeu_ps(out[1] + j * OSCAR__TILE + OSCAR__TILE, b1);
        _mm512_storeu_ps(out[1] + j * OSCAR__TILE + 2 * OSCAR__TILE, b2);
        _mm512_storeu_ps(out[1] + j * OSCAR__TILE + 3 * OSCAR__TILE, b3);
        _mm512_storeu_ps(out[2] + j * OSCAR__TILE, c0);
        _mm512_storeu_ps(out[2] + j * OSCAR__TILE + OSCAR__TILE, c1);
        _mm512_storeu_ps(out[2] + j * OSCAR__TILE + 2 * OSCAR__TILE, c2);
        _mm512_storeu_ps(out[2] + j * OSCAR__TILE + 3 * OSCAR__TILE, c3);
        _mm512_storeu_ps(out[3] + j * OSCAR__TILE, d0);
        _mm512_storeu_ps(out[3] + j * OSCAR__TILE + OSCAR__TILE, d1);
        _mm512_storeu_ps(out[3] + j * OSCAR__TILE + 2 * OSCAR__TILE, d2);
        _mm512_storeu_ps(out[3] + j * OSCAR__TILE + 3 * OSCAR__TILE, d3);
    }
}

/* The same of all columns, 1 to 4. */
static OSCAR__AVX512 void oscar__column_products_avx512(int columns, int dim, const float *m, int first, int count,
                                                        int start, const float *const *from, float *const *out,
                                                        int add)
{
    int q;
    if (columns == 4) oscar__lane_products_avx512(dim, m, first, count, start, from, out, add);
    else for (q = 0; q < columns; q += 2) {
        int other = q + 1 < columns ? q + 1 : q;
        oscar__lane_product_avx512(dim, m, first, count, start, from[q], from[other], out[q], out[other], add);
    }
}

/* One channel of a column takes its best levels. Returns what that adds to the reading, 0 where nothing moves (which
   then changes no number that is used: at most the sign of a zero gradient). */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__refine_step_avx512(const oscar__column *r, int c, int group, float diagonal,
                                                             float limit)
{
    const __m512 zero = _mm512_setzero_ps(), one = _mm512_set1_ps(1.0f), centre = _mm512_set1_ps(limit);
    __m512 s = _mm512_loadu_ps(r->s + c / group * OSCAR__TILE), u = _mm512_loadu_ps(r->u + c * OSCAR__TILE);
    __m512 curvature = _mm512_mul_ps(s, _mm512_set1_ps(diagonal)), level, step;
    __mmask16 active = oscar__both_avx512(oscar__less_avx512(zero, s), oscar__less_avx512(zero, curvature)), moves;
    level = _mm512_div_ps(_mm512_loadu_ps(r->gradient + c * OSCAR__TILE), oscar__pick_avx512(active, curvature, one));
    level = _mm512_add_ps(oscar__floor_avx512(_mm512_sub_ps(u, level)), _mm512_set1_ps(0.5f));
    level = _mm512_min_ps(centre, _mm512_max_ps(level, _mm512_sub_ps(zero, centre)));   /* the lowest one for a NaN */
    step = _mm512_mul_ps(s, _mm512_sub_ps(level, u));
    moves = oscar__both_avx512(active, oscar__less_avx512(zero, oscar__abs_avx512(step)));
    _mm512_storeu_ps(r->u + c * OSCAR__TILE, oscar__pick_avx512(moves, level, u));
    return oscar__pick_avx512(moves, step, zero);
}

/* 16 channels from `first` on, of one column: their steps, which change the gradients of those of them that follow. */
static OSCAR__AVX512 void oscar__refine_sixteen_avx512(const oscar__encoder *e, oscar__column *column, int count,
                                                       int first)
{
    const float *m = e->codec->metric + first * e->dim;
    float limit = oscar__centre(e->codec->bits);
    int c, j, q;
    for (c = first; c < first + OSCAR__LANES; c++, m += e->dim)
        for (q = 0; q < count; q++) {
            oscar__column *r = &column[q];
            __m512 step = oscar__refine_step_avx512(r, c, e->codec->group, m[c], limit);
            _mm512_storeu_ps(r->steps + (c - first) * OSCAR__TILE, step);
            for (j = c + 1; j < first + OSCAR__LANES; j++) {
                float *g = r->gradient + j * OSCAR__TILE;
                _mm512_storeu_ps(g, _mm512_fmadd_ps(step, _mm512_set1_ps(m[j]), _mm512_loadu_ps(g)));
            }
        }
}

/* One pass over the channels. The gradients of later channels get the steps of 16 channels at a time, in order. */
static OSCAR__AVX512 void oscar__refine_pass_avx512(const oscar__encoder *e, oscar__column *column, int count)
{
    const float *m = e->codec->metric;
    const float *x[4], *steps[4];
    float *gradient[4];
    int dim = e->dim, q, c, group = e->codec->group;
    for (q = 0; q < count; q++) {
        x[q] = column[q].x;
        steps[q] = column[q].steps;
        gradient[q] = column[q].gradient;
    }
    for (q = 0; q < count; q++)
        for (c = 0; c < dim; c++) {
            __m512 s = _mm512_loadu_ps(column[q].s + c / group * OSCAR__TILE);
            __m512 u = _mm512_loadu_ps(column[q].u + c * OSCAR__TILE);
            _mm512_storeu_ps(column[q].x + c * OSCAR__TILE, _mm512_mul_ps(s, u));
        }
    oscar__column_products_avx512(count, dim, m, 0, dim, 0, x, gradient, 0);
    for (q = 0; q < count; q++)
        for (c = 0; c < dim; c++) {
            float *g = column[q].gradient + c * OSCAR__TILE;
            _mm512_storeu_ps(g, _mm512_sub_ps(_mm512_loadu_ps(g), _mm512_loadu_ps(column[q].z + c * OSCAR__TILE)));
        }
    for (c = 0; c < dim; c += OSCAR__LANES) {
        oscar__refine_sixteen_avx512(e, column, count, c);
        oscar__column_products_avx512(count, dim, m, c, OSCAR__LANES, c + OSCAR__LANES, steps, gradient, 1);
    }
}

/* Levels, z and S(x, z) of a column whose plain fit is done. */
static OSCAR__AVX512 void oscar__refine_start_avx512(const oscar__encoder *e, oscar__column *r)
{
    const __m512 zero = _mm512_setzero_ps(), centre = _mm512_set1_ps(oscar__centre(e->codec->bits));
    int c, g, n = e->codec->group;
    for (g = 0; g < e->dim / n; g++) {
        __m512 s = _mm512_loadu_ps(r->first + g * OSCAR__TILE);
        __mmask16 alive = oscar__less_avx512(zero, s);
        int at = g * n * OSCAR__TILE;
        _mm512_storeu_ps(r->s + g * OSCAR__TILE, s);
        _mm512_storeu_ps(r->xz + g * OSCAR__TILE, oscar__lane_sum_avx512(n, r->x + at, r->z + at));
        for (c = g * n; c < (g + 1) * n; c++) {
            __m512 u = _mm512_sub_ps(_mm512_cvtepi32_ps(oscar__get_codes_avx512(r->codes + c * OSCAR__TILE)), centre);
            _mm512_storeu_ps(r->u + c * OSCAR__TILE, oscar__pick_avx512(alive, u, zero));
        }
    }
}

/* The scales that keep <x^, x> under the metric. */
static OSCAR__AVX512 void oscar__refine_scales_avx512(const oscar__encoder *e, oscar__column *r)
{
    const __m512 zero = _mm512_setzero_ps(), one = _mm512_set1_ps(1.0f);
    int g, n = e->codec->group;
    for (g = 0; g < e->dim / n; g++) {
        int at = g * OSCAR__TILE;
        __m512 uz = oscar__lane_sum_avx512(n, r->u + at * n, r->z + at * n), s;
        __mmask16 positive = oscar__less_avx512(zero, uz), alive = oscar__less_avx512(zero,
                                                                                      _mm512_loadu_ps(r->first + at));
        s = _mm512_div_ps(_mm512_loadu_ps(r->xz + at), oscar__pick_avx512(positive, uz, one));
        s = oscar__pick_avx512(positive, s, zero);
        _mm512_storeu_ps(r->s + at, oscar__pick_avx512(alive, s, _mm512_loadu_ps(r->s + at)));
    }
}

/* Takes the refined codes and scales of the rows where every scale is near the first one. */
static OSCAR__AVX512 void oscar__refine_end_avx512(const oscar__encoder *e, oscar__column *r)
{
    const __m512 zero = _mm512_setzero_ps(), centre = _mm512_set1_ps(oscar__centre(e->codec->bits));
    const __m512 limit = _mm512_set1_ps(e->codec->metadata == OSCAR_F32 ? FLT_MAX : 65504.0f);
    __mmask16 good = oscar__at_least_avx512(zero, zero);
    int c, g, n = e->codec->group;
    for (g = 0; g < e->dim / n; g++) {
        __m512 first = _mm512_loadu_ps(r->first + g * OSCAR__TILE), s = _mm512_loadu_ps(r->s + g * OSCAR__TILE);
        __mmask16 near_enough = oscar__both_avx512(oscar__at_least_avx512(s, _mm512_mul_ps(_mm512_set1_ps(0.5f),
                                                                                           first)),
                                        oscar__at_least_avx512(_mm512_add_ps(first, first), s));
        near_enough = oscar__both_avx512(near_enough, oscar__at_least_avx512(limit, s));
        near_enough = oscar__either_avx512(near_enough, oscar__at_least_avx512(zero, first));
        good = oscar__both_avx512(good, oscar__both_avx512(near_enough, oscar__finite_lanes_avx512(first)));
    }
    for (g = 0; g < e->dim / n; g++) {
        float *first = r->first + g * OSCAR__TILE;
        __m512 before = _mm512_loadu_ps(first);
        __mmask16 taken = oscar__both_avx512(good, oscar__less_avx512(zero, before));
        for (c = g * n; c < (g + 1) * n; c++) {
            unsigned char *codes = r->codes + c * OSCAR__TILE;
            __m512i code = _mm512_cvttps_epi32(_mm512_add_ps(_mm512_loadu_ps(r->u + c * OSCAR__TILE), centre));
            oscar__put_codes_avx512(codes, oscar__pick_int_avx512(taken, code, oscar__get_codes_avx512(codes)));
        }
        _mm512_storeu_ps(first, oscar__pick_avx512(taken, _mm512_loadu_ps(r->s + g * OSCAR__TILE), before));
    }
}

static OSCAR__AVX512 void oscar__refine_tiles_avx512(oscar__encoder *e)
{
    oscar__column column[4 * OSCAR__TILE / 16];
    float xz[4 * OSCAR__DIM_MAX], steps[4 * OSCAR__TILE * OSCAR__TILE];
    const float *x[4];
    float *z[4];
    int count = oscar__columns_of(e, 16, xz, steps, column), q, pass;
    for (q = 0; q < count; q++) {
        x[q] = column[q].x;
        z[q] = column[q].z;
    }
    oscar__column_products_avx512(count, e->dim, e->codec->metric, 0, e->dim, 0, x, z, 0);
    for (q = 0; q < count; q++) oscar__refine_start_avx512(e, &column[q]);
    for (pass = 0; pass < 2; pass++) {
        oscar__refine_pass_avx512(e, column, count);
        for (q = 0; q < count; q++) oscar__refine_scales_avx512(e, &column[q]);
    }
    for (q = 0; q < count; q++) oscar__refine_end_avx512(e, &column[q]);
}

/* -- tiles: all of the row codec (3.11) -- */

/* 16 rows of a tile, up to the metric. */
static OSCAR__AVX512 void oscar__encode_lanes_avx512(const oscar__encoder *e, oscar__tile *tile, int lane, float *x,
                                                     float *spare,
                                      __m512i *guess)
{
    const oscar_codec *codec = e->codec;
    int g, n = codec->group;
    if (e->mean) oscar__subtract_mean_avx512(e, tile, lane, x);
    if (codec->fit == OSCAR_CLIP && codec->clip > 0)
        oscar__clamp_avx512(e->dim, (int)floor(codec->clip * e->dim), x, spare, guess);
    for (g = 0; g < e->dim / n; g++) {
        int at = g * n * OSCAR__TILE;
        if (codec->fit == OSCAR_CLIP) oscar__fit_clip_avx512(e, tile, lane, g, x + at);
        else _mm512_storeu_ps(tile->scale + g * OSCAR__TILE + lane,
                             oscar__fit_unbiased_avx512(n, codec->bits, x + at, tile->codes + at + lane));
    }
}

static OSCAR__AVX512 void oscar__encode_avx512(oscar__encoder *e, const float *rows)
{
    __m512i guess = _mm512_set1_epi32(0x3f800000);
    int k, lane, g;
    for (k = 0; k < e->tiles; k++)
        for (lane = 0; lane < OSCAR__TILE; lane += 16) {
            int at = e->codec->metric ? k : 0;   /* only refining needs all tiles: the nearest cache has room for one */
            float *x = oscar__lanes_at(e, 0, at) + lane;
            oscar__to_lanes_avx512(e->dim, OSCAR__TILE * k + lane, e->rows, rows, x);
            oscar__encode_lanes_avx512(e, &e->tile[k], lane, x, oscar__lanes_at(e, 1, at) + lane, &guess);
        }
    if (e->codec->fit == OSCAR_CLIP) return;
    if (e->codec->metric) oscar__refine_tiles_avx512(e);
    for (k = 0; k < e->tiles; k++)
        for (g = 0; g < e->dim / e->codec->group; g++)
            for (lane = 0; lane < OSCAR__TILE; lane += 16) {
                float *scale = e->tile[k].scale + g * OSCAR__TILE + lane;
                _mm512_storeu_ps(scale, oscar__metadata_lanes_avx512(e, &e->tile[k], lane, _mm512_loadu_ps(scale)));
            }
}

/* -- eigensolver: angles are those of AVX2 -- */

/* Sums of the four vectors' lanes. */
OSCAR__INLINE OSCAR__AVX512 __m256d oscar__sums_avx512(__m512d v0, __m512d v1, __m512d v2, __m512d v3)
{
    __m512d low = _mm512_add_pd(_mm512_unpacklo_pd(v0, v1), _mm512_unpackhi_pd(v0, v1));
    __m512d high = _mm512_add_pd(_mm512_unpacklo_pd(v2, v3), _mm512_unpackhi_pd(v2, v3));
    __m512d both = _mm512_add_pd(_mm512_shuffle_f64x2(low, high, 0x88), _mm512_shuffle_f64x2(low, high, 0xdd));
    __m256d a = _mm512_castpd512_pd256(both), b = _mm512_extractf64x4_pd(both, 1);
    return _mm256_add_pd(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31));
}

OSCAR__AVX512 static void oscar__eigh_dots_avx512(size_t width, double *const *x, double *const *y, double *product)
{
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3], *y0 = y[0], *y1 = y[1], *y2 = y[2], *y3 = y[3];
    __m512d g0 = _mm512_setzero_pd(), g1 = g0, g2 = g0, g3 = g0;
    size_t k;
    for (k = 0; k < width; k += 8) {
        g0 = _mm512_fmadd_pd(_mm512_loadu_pd(x0 + k), _mm512_loadu_pd(y0 + k), g0);
        g1 = _mm512_fmadd_pd(_mm512_loadu_pd(x1 + k), _mm512_loadu_pd(y1 + k), g1);
        g2 = _mm512_fmadd_pd(_mm512_loadu_pd(x2 + k), _mm512_loadu_pd(y2 + k), g2);
        g3 = _mm512_fmadd_pd(_mm512_loadu_pd(x3 + k), _mm512_loadu_pd(y3 + k), g3);
    }
    _mm256_storeu_pd(product, oscar__sums_avx512(g0, g1, g2, g3));
}

/* Eight components of a pair of rows; *x and *y are the turned ones, too. */
OSCAR__INLINE OSCAR__AVX512 void oscar__turn_pair_avx512(__m512d c, __m512d s, double *to_x, double *to_y, __m512d *x,
                                                         __m512d *y)
{
    __m512d a = _mm512_loadu_pd(to_x), b = _mm512_loadu_pd(to_y);
    *x = _mm512_fnmadd_pd(s, b, _mm512_mul_pd(c, a));
    *y = _mm512_fmadd_pd(s, a, _mm512_mul_pd(c, b));
    _mm512_storeu_pd(to_x, *x);
    _mm512_storeu_pd(to_y, *y);
}

OSCAR__AVX512 static void oscar__eigh_turn_avx512(size_t width, const double *c, const double *s, double *const *x,
                                                  double *const *y)
{
    size_t k;
    int i;
    for (i = 0; i < OSCAR__EIGH_PAIRS; i++) {
        __m512d vc = _mm512_set1_pd(c[i]), vs = _mm512_set1_pd(s[i]), a, b;
        for (k = 0; k < width; k += 8) oscar__turn_pair_avx512(vc, vs, x[i] + k, y[i] + k, &a, &b);
    }
}

OSCAR__AVX512 static void oscar__eigh_turn_dots_avx512(size_t width, const double *c, const double *s,
                                                       double *const *x, double *const *y, double *product)
{
    double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3], *y0 = y[0], *y1 = y[1], *y2 = y[2], *y3 = y[3];
    __m512d c0 = _mm512_set1_pd(c[0]), c1 = _mm512_set1_pd(c[1]), c2 = _mm512_set1_pd(c[2]), c3 = _mm512_set1_pd(c[3]);
    __m512d s0 = _mm512_set1_pd(s[0]), s1 = _mm512_set1_pd(s[1]), s2 = _mm512_set1_pd(s[2]), s3 = _mm512_set1_pd(s[3]);
    __m512d g0 = _mm512_setzero_pd(), g1 = g0, g2 = g0, g3 = g0, vx, next_x, vy, first;
    size_t k;
    for (k = 0; k < width; k += 8) {
        oscar__turn_pair_avx512(c0, s0, x0 + k, y0 + k, &vx, &first);
        oscar__turn_pair_avx512(c1, s1, x1 + k, y1 + k, &next_x, &vy);
        g0 = _mm512_fmadd_pd(vx, vy, g0);
        oscar__turn_pair_avx512(c2, s2, x2 + k, y2 + k, &vx, &vy);
        g1 = _mm512_fmadd_pd(next_x, vy, g1);
        oscar__turn_pair_avx512(c3, s3, x3 + k, y3 + k, &next_x, &vy);
        g2 = _mm512_fmadd_pd(vx, vy, g2);
        g3 = _mm512_fmadd_pd(next_x, first, g3);
    }
    _mm256_storeu_pd(product, oscar__sums_avx512(g0, g1, g2, g3));
}

/* -- dense matrices -- */

OSCAR__INLINE OSCAR__AVX512 void oscar__tile_row_avx512(double a, __m512d b0, __m512d b1, __m512d *s0, __m512d *s1)
{
    __m512d factor = _mm512_set1_pd(a);
    *s0 = _mm512_fmadd_pd(factor, b0, *s0);
    *s1 = _mm512_fmadd_pd(factor, b1, *s1);
}

OSCAR__INLINE OSCAR__AVX512 void oscar__add_to_avx512(double *out, __m512d s0, __m512d s1)
{
    _mm512_storeu_pd(out, _mm512_add_pd(_mm512_loadu_pd(out), s0));
    _mm512_storeu_pd(out + 8, _mm512_add_pd(_mm512_loadu_pd(out + 8), s1));
}

OSCAR__AVX512 static void oscar__add_tile_avx512(size_t count, const double *a, size_t a_stride, const double *b,
                                                 size_t b_stride, double *sum, size_t sum_stride)
{
    __m512d s00 = _mm512_setzero_pd(), s01 = s00, s10 = s00, s11 = s00, s20 = s00, s21 = s00, s30 = s00, s31 = s00;
    __m512d s40 = s00, s41 = s00, s50 = s00, s51 = s00, s60 = s00, s61 = s00, s70 = s00, s71 = s00;
    size_t k;
    for (k = 0; k < count; k++, a += a_stride, b += b_stride) {
        __m512d b0 = _mm512_loadu_pd(b), b1 = _mm512_loadu_pd(b + 8);
        oscar__tile_row_avx512(a[0], b0, b1, &s00, &s01);
        oscar__tile_row_avx512(a[1], b0, b1, &s10, &s11);
        oscar__tile_row_avx512(a[2], b0, b1, &s20, &s21);
        oscar__tile_row_avx512(a[3], b0, b1, &s30, &s31);
        oscar__tile_row_avx512(a[4], b0, b1, &s40, &s41);
        oscar__tile_row_avx512(a[5], b0, b1, &s50, &s51);
        oscar__tile_row_avx512(a[6], b0, b1, &s60, &s61);
        oscar__tile_row_avx512(a[7], b0, b1, &s70, &s71);
    }
    oscar__add_to_avx512(sum, s00, s01);
    oscar__add_to_avx512(sum + sum_stride, s10, s11);
    oscar__add_to_avx512(sum + 2 * sum_stride, s20, s21);
    oscar__add_to_avx512(sum + 3 * sum_stride, s30, s31);
    oscar__add_to_avx512(sum + 4 * sum_stride, s40, s41);
    oscar__add_to_avx512(sum + 5 * sum_stride, s50, s51);
    oscar__add_to_avx512(sum + 6 * sum_stride, s60, s61);
    oscar__add_to_avx512(sum + 7 * sum_stride, s70, s71);
}

OSCAR__AVX512 static void oscar__add_row_sum_avx512(size_t width, size_t count, double sign, const double *factors,
                                                size_t stride, const double *rows, size_t lead, double *out)
{
    size_t i = 0, k;
    for (; i + 32 <= width; i += 32) {
        const double *row = rows + i;
        __m512d s0 = _mm512_loadu_pd(out + i), s1 = _mm512_loadu_pd(out + i + 8);
        __m512d s2 = _mm512_loadu_pd(out + i + 16), s3 = _mm512_loadu_pd(out + i + 24);
        for (k = 0; k < count; k++, row += lead) {
            __m512d factor = _mm512_set1_pd(sign * factors[k * stride]);
            s0 = _mm512_fmadd_pd(factor, _mm512_loadu_pd(row), s0);
            s1 = _mm512_fmadd_pd(factor, _mm512_loadu_pd(row + 8), s1);
            s2 = _mm512_fmadd_pd(factor, _mm512_loadu_pd(row + 16), s2);
            s3 = _mm512_fmadd_pd(factor, _mm512_loadu_pd(row + 24), s3);
        }
        _mm512_storeu_pd(out + i, s0);
        _mm512_storeu_pd(out + i + 8, s1);
        _mm512_storeu_pd(out + i + 16, s2);
        _mm512_storeu_pd(out + i + 24, s3);
    }
    for (; i + 8 <= width; i += 8) {
        __m512d s0 = _mm512_loadu_pd(out + i);
        for (k = 0; k < count; k++)
            s0 = _mm512_fmadd_pd(_mm512_set1_pd(sign * factors[k * stride]), _mm512_loadu_pd(rows + k * lead + i), s0);
        _mm512_storeu_pd(out + i, s0);
    }
    for (; i < width; i++)
        for (k = 0; k < count; k++) out[i] += sign * factors[k * stride] * rows[k * lead + i];
}

/* -- calibration: rows -- */

OSCAR__AVX512 static void oscar__widen_avx512(size_t count, const float *x, double *out)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) _mm512_storeu_pd(out + i, _mm512_cvtps_pd(_mm256_loadu_ps(x + i)));
    oscar__widen(count - i, x + i, out + i);
}

OSCAR__AVX512 static void oscar__weigh_copy_avx512(size_t count, double weight, const double *x, double *row,
                                                   double *weighted)
{
    __m512d factor = _mm512_set1_pd(weight), one;
    size_t i;
    for (i = 0; i < count; i += 8) {
        one = _mm512_loadu_pd(x + i);
        _mm512_storeu_pd(row + i, one);
        _mm512_storeu_pd(weighted + i, _mm512_mul_pd(factor, one));
    }
}

OSCAR__AVX512 static void oscar__turn_halves_avx512(size_t count, const double *cosine, const double *sine,
                                                    const double *x, double *out)
{
    size_t i;
    for (i = 0; i + 8 <= count; i += 8) {
        __m512d c = _mm512_loadu_pd(cosine + i), s = _mm512_loadu_pd(sine + i);
        __m512d a = _mm512_loadu_pd(x + i), b = _mm512_loadu_pd(x + i + count);
        _mm512_storeu_pd(out + i, _mm512_fnmadd_pd(b, s, _mm512_mul_pd(a, c)));
        _mm512_storeu_pd(out + i + count, _mm512_fmadd_pd(b, c, _mm512_mul_pd(a, s)));
    }
    for (; i < count; i++) {
        out[i] = x[i] * cosine[i] - x[i + count] * sine[i];
        out[i + count] = x[i] * sine[i] + x[i + count] * cosine[i];
    }
}

/* exp(x) for x <= 0, 0 below -708: 2^n times the series of exp(r), |r| <= ln 2 / 2, up to r^12. */
OSCAR__INLINE OSCAR__AVX512 __m512d oscar__exp_avx512(__m512d x)
{
    const __m512d least = _mm512_set1_pd(-708);
    __m512d n, sum = _mm512_set1_pd(oscar__exp_series[0]);
    __mmask8 some = _mm512_cmp_pd_mask(x, least, _CMP_GE_OQ);
    int i;
    x = _mm512_max_pd(x, least);
    n = _mm512_roundscale_pd(_mm512_mul_pd(x, _mm512_set1_pd(1.4426950408889634)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    x = _mm512_fnmadd_pd(n, _mm512_set1_pd(0.693147180369123816490), x);
    x = _mm512_fnmadd_pd(n, _mm512_set1_pd(1.90821492927058770002e-10), x);
    for (i = 1; i <= 12; i++) sum = _mm512_fmadd_pd(sum, x, _mm512_set1_pd(oscar__exp_series[i]));
    return _mm512_maskz_scalef_pd(some, sum, n);
}

/* The largest lane, or the sum of all. */
OSCAR__INLINE OSCAR__AVX512 double oscar__fold_avx512(int greatest, __m512d v)
{
    __m256d half = _mm512_castpd512_pd256(v), other = _mm512_extractf64x4_pd(v, 1);
    return oscar__fold_avx2(greatest, greatest ? _mm256_max_pd(half, other) : _mm256_add_pd(half, other));
}

OSCAR__AVX512 static double oscar__exp_row_avx512(size_t count, double *x)
{
    __m512d most = _mm512_set1_pd(-HUGE_VAL), sum = _mm512_setzero_pd(), one;
    size_t i;
    for (i = 0; i < count; i += 8) most = _mm512_max_pd(most, _mm512_loadu_pd(x + i));
    most = _mm512_set1_pd(oscar__fold_avx512(1, most));
    for (i = 0; i < count; i += 8) {
        one = oscar__exp_avx512(_mm512_sub_pd(_mm512_loadu_pd(x + i), most));
        _mm512_storeu_pd(x + i, one);
        sum = _mm512_add_pd(sum, one);
    }
    return oscar__fold_avx512(0, sum);
}

OSCAR__AVX512 static double oscar__weigh_row_avx512(size_t count, double total, const double *x, double *sum)
{
    const __m512d none = _mm512_setzero_pd(), share = _mm512_set1_pd(1 / total);
    __m512d added = none, p;
    size_t i;
    for (i = 0; i < count; i += 8) {
        p = _mm512_mul_pd(_mm512_loadu_pd(x + i), share);
        p = _mm512_max_pd(_mm512_fnmadd_pd(p, p, p), none);
        _mm512_storeu_pd(sum + i, _mm512_add_pd(_mm512_loadu_pd(sum + i), p));
        added = _mm512_add_pd(added, p);
    }
    return oscar__fold_avx512(0, added);
}

/* -- attention -- */

/* sum[0] and sum[8] += codes a and b . four signed bytes, the same ones for all lanes. gcc would take the broadcasts
   out of loops and keep them on the stack. */
OSCAR__INLINE OSCAR__AVX512 void oscar__dot_avx512(__m512i a, __m512i b, const signed char *four, __m512i *sum)
{
#if defined(__GNUC__) || defined(__clang__)
    typedef struct { signed char byte[4]; } bytes;
    __m512i all;
    __asm__("vpbroadcastd {%5, %2|%2, %5}\n\tvpdpbusd {%2, %3, %0|%0, %3, %2}\n\tvpdpbusd {%2, %4, %1|%1, %4, %2}"
            : "+v"(sum[0]), "+v"(sum[8]), "=&v"(all) : "v"(a), "v"(b), "m"(*(const bytes *)four));
#else
    int32_t word;
    memcpy(&word, four, 4);
    sum[0] = _mm512_dpbusd_epi32(sum[0], a, _mm512_set1_epi32(word));
    sum[8] = _mm512_dpbusd_epi32(sum[8], b, _mm512_set1_epi32(word));
#endif
}

/* The same with four unsigned bytes: the codes are the signed operand. */
OSCAR__INLINE OSCAR__AVX512 void oscar__dot_weights_avx512(__m512i a, __m512i b, const signed char *four, __m512i *sum)
{
#if defined(__GNUC__) || defined(__clang__)
    typedef struct { signed char byte[4]; } bytes;
    __m512i all;
    __asm__("vpbroadcastd {%5, %2|%2, %5}\n\tvpdpbusd {%3, %2, %0|%0, %2, %3}\n\tvpdpbusd {%4, %2, %1|%1, %2, %4}"
            : "+v"(sum[0]), "+v"(sum[8]), "=&v"(all) : "v"(a), "v"(b), "m"(*(const bytes *)four));
#else
    int32_t word;
    memcpy(&word, four, 4);
    sum[0] = _mm512_dpbusd_epi32(sum[0], _mm512_set1_epi32(word), a);
    sum[8] = _mm512_dpbusd_epi32(sum[8], _mm512_set1_epi32(word), b);
#endif
}

/* The sums of `count` queries, high and low limbs each, += codes . limb [query][2][16], of two planes: from sum[0] and
   from sum[8] on. One limb of weights is unsigned. */
OSCAR__INLINE OSCAR__AVX512 void oscar__planes_avx512(int count, int limbs, int weights, __m512i a, __m512i b,
                                                      const signed char *limb, __m512i *sum)
{
    if (weights && limbs == 1) {
        oscar__dot_weights_avx512(a, b, limb, sum);
        if (count > 1) oscar__dot_weights_avx512(a, b, limb + 32, sum + 2);
        if (count > 2) oscar__dot_weights_avx512(a, b, limb + 64, sum + 4);
        if (count > 2) oscar__dot_weights_avx512(a, b, limb + 96, sum + 6);
        return;
    }
    oscar__dot_avx512(a, b, limb, sum);
    if (limbs > 1) oscar__dot_avx512(a, b, limb + 16, sum + 1);
    if (count > 1) oscar__dot_avx512(a, b, limb + 32, sum + 2);
    if (count > 1 && limbs > 1) oscar__dot_avx512(a, b, limb + 48, sum + 3);
    if (count > 2) oscar__dot_avx512(a, b, limb + 64, sum + 4);
    if (count > 2 && limbs > 1) oscar__dot_avx512(a, b, limb + 80, sum + 5);
    if (count > 2) oscar__dot_avx512(a, b, limb + 96, sum + 6);
    if (count > 2 && limbs > 1) oscar__dot_avx512(a, b, limb + 112, sum + 7);
}

/* Twice 16 lanes of 16 codes: lines of 2 bits at p and q, or two lines of 4 bits each, the second ones `second` bytes
   further. So a broadcast serves twice, and enough sums are under way. */
OSCAR__INLINE OSCAR__AVX512 void oscar__sixteen_avx512(int bits, int count, int limbs, int weights,
                                                       const unsigned char *p, const unsigned char *q, size_t second,
                                                       const signed char *limb, __m512i *sum)
{
    __m512i mask = _mm512_set1_epi8(bits == 2 ? 3 : 15), a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(q);
    oscar__planes_avx512(count, limbs, weights, _mm512_and_si512(a, mask), _mm512_and_si512(b, mask), limb, sum);
    a = bits == 2 ? _mm512_srli_epi32(a, 2) : _mm512_srli_epi32(a, 4);
    b = bits == 2 ? _mm512_srli_epi32(b, 2) : _mm512_srli_epi32(b, 4);
    oscar__planes_avx512(count, limbs, weights, _mm512_and_si512(a, mask), _mm512_and_si512(b, mask), limb + 4, sum);
    a = bits == 2 ? _mm512_srli_epi32(a, 2) : _mm512_loadu_si512(p + second);
    b = bits == 2 ? _mm512_srli_epi32(b, 2) : _mm512_loadu_si512(q + second);
    oscar__planes_avx512(count, limbs, weights, _mm512_and_si512(a, mask), _mm512_and_si512(b, mask), limb + 8, sum);
    a = bits == 2 ? _mm512_srli_epi32(a, 2) : _mm512_srli_epi32(a, 4);
    b = bits == 2 ? _mm512_srli_epi32(b, 2) : _mm512_srli_epi32(b, 4);
    oscar__planes_avx512(count, limbs, weights, _mm512_and_si512(a, mask), _mm512_and_si512(b, mask), limb + 12, sum);
}

OSCAR__INLINE OSCAR__AVX512 void oscar__zeros_avx512(__m512i *sum)
{
    sum[0] = sum[1] = sum[2] = sum[3] = sum[4] = sum[5] = sum[6] = sum[7] = _mm512_setzero_si512();
    sum[8] = sum[9] = sum[10] = sum[11] = sum[12] = sum[13] = sum[14] = sum[15] = _mm512_setzero_si512();
}

/* The sums of a query from its two: exact. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__total_avx512(int limbs, const __m512i *sum)
{
    return _mm512_cvtepi32_ps(limbs == 1 ? sum[0] : _mm512_add_epi32(_mm512_slli_epi32(sum[0], 8), sum[1]));
}

/* 16 halves of metadata without their sign bits. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__halves_avx512(const unsigned char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__scales_avx512(const unsigned char *p)
{
    return _mm512_abs_ps(oscar__halves_avx512(p));
}

/* score += scale (total step + low), or scale total step + minimum low. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__scaled_avx512(__m512 total, float step, float low, __m512 scale,
                                                        int has_minimum, __m512 minimum, __m512 score)
{
    if (!has_minimum)
        return _mm512_fmadd_ps(_mm512_fmadd_ps(total, _mm512_set1_ps(step), _mm512_set1_ps(low)), scale, score);
    score = _mm512_fmadd_ps(minimum, _mm512_set1_ps(low), score);
    return _mm512_fmadd_ps(_mm512_mul_ps(total, _mm512_set1_ps(step)), scale, score);
}

/* What 16 tokens have besides the products with k'. */
OSCAR__INLINE OSCAR__AVX512 void oscar__start_avx512(const unsigned char *scales, const float *start, __m512 *s)
{
    __mmask16 negative = _mm256_movepi16_mask(_mm256_loadu_si256((const __m256i *)(const void *)scales));
    s[0] = _mm512_mask_blend_ps(negative, _mm512_set1_ps(start[0]), _mm512_set1_ps(start[4]));
    s[1] = _mm512_mask_blend_ps(negative, _mm512_set1_ps(start[1]), _mm512_set1_ps(start[5]));
    s[2] = _mm512_mask_blend_ps(negative, _mm512_set1_ps(start[2]), _mm512_set1_ps(start[6]));
    s[3] = _mm512_mask_blend_ps(negative, _mm512_set1_ps(start[3]), _mm512_set1_ps(start[7]));
}

/* The products of 16 tokens with a group of channels, from their sums. */
OSCAR__INLINE OSCAR__AVX512 void oscar__score_end_avx512(int count, int limbs, const __m512i *sum, const float *step,
                                                         const float *low, const unsigned char *scales,
                                                         const unsigned char *minima, __m512 *s)
{
    __m512 scale = oscar__scales_avx512(scales), minimum = minima ? oscar__halves_avx512(minima) : scale;
    int some = minima != NULL;
    s[0] = oscar__scaled_avx512(oscar__total_avx512(limbs, sum), step[0], low[0], scale, some, minimum, s[0]);
    if (count > 1)
        s[1] = oscar__scaled_avx512(oscar__total_avx512(limbs, sum + 2), step[1], low[1], scale, some, minimum, s[1]);
    if (count > 2)
        s[2] = oscar__scaled_avx512(oscar__total_avx512(limbs, sum + 4), step[2], low[2], scale, some, minimum, s[2]);
    if (count > 2)
        s[3] = oscar__scaled_avx512(oscar__total_avx512(limbs, sum + 6), step[3], low[3], scale, some, minimum, s[3]);
}

OSCAR__INLINE OSCAR__AVX512 void oscar__score_store_avx512(int count, const __m512 *s, float *score)
{
    _mm512_storeu_ps(score, s[0]);
    if (count > 1) _mm512_storeu_ps(score + OSCAR__BLOCK, s[1]);
    if (count > 2) _mm512_storeu_ps(score + 2 * OSCAR__BLOCK, s[2]);
    if (count > 2) _mm512_storeu_ps(score + 3 * OSCAR__BLOCK, s[3]);
}

/* Two tiles at a time. */
OSCAR__INLINE OSCAR__AVX512 void oscar__score_avx512(int bits, int count, int limbs, const oscar__codes *k,
                                                     const signed char *limb, const float *step, const float *low,
                                                     const float *start, float *score)
{
    size_t tile_bytes = (size_t)(2 * bits * k->dim);
    int tile, at, c, g;
    for (tile = 0; tile < 4; tile += 2) {
        const unsigned char *p = k->codes + (size_t)tile * tile_bytes;
        const unsigned char *scales = k->scale + 32 * tile, *minima = k->minimum ? k->minimum + 32 * tile : NULL;
        const signed char *l = limb;
        __m512 s[4], t[4];
        oscar__start_avx512(scales, start, s);
        oscar__start_avx512(scales + 32, start, t);
        _mm_prefetch((const char *)scales + k->ahead, _MM_HINT_T0);
        for (at = g = 0; at < k->dim; at += k->group, g += 4, scales += 2 * k->tokens) {
            __m512i sum[16];
            oscar__zeros_avx512(sum);
            for (c = 0; c < k->group; c += 16, p += 32 * bits, l += 128) {
                _mm_prefetch((const char *)p + k->ahead, _MM_HINT_T0);
                _mm_prefetch((const char *)p + tile_bytes + k->ahead, _MM_HINT_T0);
                if (bits == 4) _mm_prefetch((const char *)p + 64 + k->ahead, _MM_HINT_T0);
                if (bits == 4) _mm_prefetch((const char *)p + tile_bytes + 64 + k->ahead, _MM_HINT_T0);
                oscar__sixteen_avx512(bits, count, limbs, 0, p, p + tile_bytes, 64, l, sum);
            }
            oscar__score_end_avx512(count, limbs, sum, step + g, low + g, scales, minima, s);
            oscar__score_end_avx512(count, limbs, sum + 8, step + g, low + g, scales + 32,
                                    minima ? minima + 32 : NULL, t);
            if (minima) minima += 2 * k->tokens;
        }
        oscar__score_store_avx512(count, s, score + 16 * tile);
        oscar__score_store_avx512(count, t, score + 16 * tile + 16);
    }
}

static OSCAR__AVX512 void oscar__attend_score_avx512(int count, int limbs, const oscar__codes *k,
                                                     const signed char *limb, const float *step, const float *low,
                                                     const float *start, float *score)
{
    OSCAR__BY_SHAPE(oscar__score_avx512, k->bits, count, limbs, (k, limb, step, low, start, score))
}

/* Reductions of four vectors at once: result q is the sum, or the largest number, of x[q]. A NaN may get lost in the
   latter. */
OSCAR__INLINE OSCAR__AVX512 __m128 oscar__sum4_avx512(const __m512 *x)
{
    __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    __m512 c = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))));
    __m256 d = _mm256_add_ps(_mm512_extractf32x8_ps(c, 0), _mm512_extractf32x8_ps(c, 1));
    return _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
}
OSCAR__INLINE OSCAR__AVX512 __m128 oscar__largest4_avx512(const __m512 *x)
{
    __m512 a = _mm512_max_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    __m512 b = _mm512_max_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    __m512 c = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))));
    __m256 d = _mm256_max_ps(_mm512_extractf32x8_ps(c, 0), _mm512_extractf32x8_ps(c, 1));
    return _mm_max_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
}

/* Whole numbers n -> their limbs: n = 256 high + low, low in -128 .. 127; or n itself. */
OSCAR__INLINE OSCAR__AVX512 void oscar__split_avx512(int limbs, __m512i n, signed char *limb)
{
    __m512i high = n;
    if (limbs > 1) {
        high = _mm512_srai_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(128)), 8);
        _mm_storeu_si128((__m128i *)(void *)(limb + 16),
                         _mm512_cvtepi32_epi8(_mm512_sub_epi32(n, _mm512_slli_epi32(high, 8))));
    }
    _mm_storeu_si128((__m128i *)(void *)limb, _mm512_cvtepi32_epi8(high));
}

/* Weights of a query times the scales s of a group, for 64 tokens, and the largest one in each lane. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__weights_avx512(const float *weight, const __m512 *s, __m512 *x)
{
    x[0] = _mm512_mul_ps(_mm512_loadu_ps(weight), s[0]);
    x[1] = _mm512_mul_ps(_mm512_loadu_ps(weight + 16), s[1]);
    x[2] = _mm512_mul_ps(_mm512_loadu_ps(weight + 32), s[2]);
    x[3] = _mm512_mul_ps(_mm512_loadu_ps(weight + 48), s[3]);
    return _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
}

/* Their limbs, [4 tiles][4 queries][2][16] from this query on, and their sums. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__weight_limbs_avx512(int limbs, const __m512 *x, float inverse,
                                                              signed char *limb)
{
    __m512 share = _mm512_set1_ps(inverse);
    __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(x[0], share));
    __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(x[1], share));
    __m512i c = _mm512_cvtps_epi32(_mm512_mul_ps(x[2], share));
    __m512i d = _mm512_cvtps_epi32(_mm512_mul_ps(x[3], share));
    oscar__split_avx512(limbs, a, limb);
    oscar__split_avx512(limbs, b, limb + 128);
    oscar__split_avx512(limbs, c, limb + 256);
    oscar__split_avx512(limbs, d, limb + 384);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d)));
}

/* sum over tokens of weight times (minimum + centre scale): what the codes' middle stands for. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__weight_middles_avx512(const float *weight, const unsigned char *minima,
                                                                const __m512 *s, float centre)
{
    __m512 sum = _mm512_setzero_ps();
    int t;
    for (t = 0; t < 4; t++) {
        __m512 middle = _mm512_fmadd_ps(s[t], _mm512_set1_ps(centre), oscar__halves_avx512(minima + 32 * t));
        sum = _mm512_fmadd_ps(_mm512_loadu_ps(weight + 16 * t), middle, sum);
    }
    return sum;
}

static OSCAR__AVX512 void oscar__attend_weigh_avx512(int count, int limbs, const oscar__codes *v, int g,
                                                     const float *weight, signed char *limb, float *step, float *base)
{
    const unsigned char *scales = v->scale + 2 * g * v->tokens;
    const unsigned char *minima = v->minimum ? v->minimum + 2 * g * v->tokens : NULL;
    __m512 s[4], x[4][4], most[4], sum[4], middle[4];
    __m128 top, some;
    float inverse[4];
    int j;
    _mm_prefetch((const char *)scales + v->ahead, _MM_HINT_T0);
    _mm_prefetch((const char *)scales + 64 + v->ahead, _MM_HINT_T0);
    s[0] = oscar__scales_avx512(scales);
    s[1] = oscar__scales_avx512(scales + 32);
    s[2] = oscar__scales_avx512(scales + 64);
    s[3] = oscar__scales_avx512(scales + 96);
    for (j = 0; j < 4; j++) most[j] = oscar__weights_avx512(weight + (j < count ? j : 0) * OSCAR__BLOCK, s, x[j]);
    top = oscar__largest4_avx512(most);
    some = _mm_cmp_ps(top, _mm_set1_ps(1e-34f), _CMP_GT_OQ);   /* below nothing counts, and 1 / top may overflow */
    _mm_storeu_ps(inverse, _mm_and_ps(some, _mm_div_ps(_mm_set1_ps(oscar__weights_most(limbs)), top)));
    top = _mm_and_ps(some, _mm_div_ps(top, _mm_set1_ps(oscar__weights_most(limbs))));
    _mm_storeu_ps(step, top);
    for (j = 0; j < 4; j++) {
        sum[j] = j < count ? oscar__weight_limbs_avx512(limbs, x[j], inverse[j], limb + 32 * j) : _mm512_setzero_ps();
        if (minima)
            middle[j] = oscar__weight_middles_avx512(weight + (j < count ? j : 0) * OSCAR__BLOCK, minima, s, v->centre);
    }
    some = _mm_mul_ps(_mm_mul_ps(oscar__sum4_avx512(sum), _mm_set1_ps(-v->centre)), top);
    if (minima) some = _mm_add_ps(some, oscar__sum4_avx512(middle));
    _mm_storeu_ps(base, some);
}

OSCAR__INLINE OSCAR__AVX512 void oscar__blend_add_avx512(__m512 total, float step, float base, float *acc)
{
    __m512 sum = _mm512_fmadd_ps(total, _mm512_set1_ps(step), _mm512_set1_ps(base));
    _mm512_storeu_ps(acc, _mm512_add_ps(_mm512_loadu_ps(acc), sum));
}

/* acc += what a set of sums of 16 channels stands for. row: of acc. */
OSCAR__INLINE OSCAR__AVX512 void oscar__blend_end_avx512(int count, int limbs, const __m512i *sum, const float *step,
                                                         const float *base, size_t row, float *acc)
{
    oscar__blend_add_avx512(oscar__total_avx512(limbs, sum), step[0], base[0], acc);
    if (count > 1) oscar__blend_add_avx512(oscar__total_avx512(limbs, sum + 2), step[1], base[1], acc + row);
    if (count > 2) oscar__blend_add_avx512(oscar__total_avx512(limbs, sum + 4), step[2], base[2], acc + 2 * row);
    if (count > 2) oscar__blend_add_avx512(oscar__total_avx512(limbs, sum + 6), step[3], base[3], acc + 3 * row);
}

/* 32 channels at a time; where 16 are left over, they go twice and count once. */
OSCAR__INLINE OSCAR__AVX512 void oscar__blend_avx512(int bits, int count, int limbs, const oscar__codes *v,
                                                     const float *weight, signed char *limb, float *step, float *base,
                                                     float *acc)
{
    size_t row = (size_t)v->dim, tile_bytes = 2 * (size_t)bits * row;
    const unsigned char *p = v->codes;
    int g, tile;
    for (g = 0; g * v->group < v->dim; g++) {
        const unsigned char *end = p + 4 * v->group;
        if (g) oscar__attend_weigh_avx512(count, limbs, v, g, weight, limb, step, base);
        while (p < end) {
            int both = p + 64 < end;
            __m512i sum[16];
            oscar__zeros_avx512(sum);
            for (tile = 0; tile < 4; tile++) {
                const unsigned char *line = p + (size_t)tile * tile_bytes;
                _mm_prefetch((const char *)line + v->ahead, _MM_HINT_T0);
                _mm_prefetch((const char *)line + 64 + v->ahead, _MM_HINT_T0);
                if (bits == 4) _mm_prefetch((const char *)line + 4 * row + v->ahead, _MM_HINT_T0);
                if (bits == 4) _mm_prefetch((const char *)line + 4 * row + 64 + v->ahead, _MM_HINT_T0);
                oscar__sixteen_avx512(bits, count, limbs, 1, line, both ? line + 64 : line, 4 * row,
                                      limb + 128 * tile, sum);
            }
            oscar__blend_end_avx512(count, limbs, sum, step, base, row, acc);
            if (both) oscar__blend_end_avx512(count, limbs, sum + 8, step, base, row, acc + 16);
            p += both ? 128 : 64;
            acc += both ? 32 : 16;
        }
    }
}

static OSCAR__AVX512 void oscar__attend_blend_avx512(int count, int limbs, const oscar__codes *v, const float *weight,
                                                     signed char *limb, float *step, float *base, float *acc)
{
    OSCAR__BY_SHAPE(oscar__blend_avx512, v->bits, count, limbs, (v, weight, limb, step, base, acc))
}

static OSCAR__AVX512 void oscar__attend_limbs_avx512(int limbs, int dim, int group, int query, const float *x,
                                                     signed char *limb, float *step, float *sum)
{
    const __m512 finite = _mm512_set1_ps(FLT_MAX);
    int at, c;
    for (at = 0; at < dim; at += group, step += 4, sum += 4) {
        __m512 most = _mm512_setzero_ps(), share, four[4];
        __m512i all = _mm512_setzero_si512();
        __mmask16 bad = 0;
        float top, unit;
        for (c = at; c < at + group; c += 16) {
            __m512 a = _mm512_abs_ps(_mm512_loadu_ps(x + c));
            bad = (__mmask16)(bad | _mm512_cmp_ps_mask(a, finite, _CMP_NLE_UQ));
            most = _mm512_max_ps(most, a);
        }
        four[0] = four[1] = four[2] = four[3] = most;
        top = _mm_cvtss_f32(oscar__largest4_avx512(four));
        unit = bad ? (float)NAN : top > 1e-34f ? top / oscar__limbs_most(limbs) : 0;
        share = _mm512_set1_ps(!bad && top > 1e-34f ? oscar__limbs_most(limbs) / top : 0);
        for (c = at; c < at + group; c += 16) {
            __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + c), share));
            all = _mm512_add_epi32(all, n);
            oscar__split_avx512(limbs, n, limb + 8 * c + 32 * query);
        }
        four[0] = four[1] = four[2] = four[3] = _mm512_cvtepi32_ps(all);
        step[query] = unit;
        sum[query] = unit * _mm_cvtss_f32(oscar__sum4_avx512(four));
    }
}

static OSCAR__AVX512 void oscar__attend_mean_avx512(int limbs, int dim, int group, const unsigned char *bytes,
                                                    const signed char *limb, const float *step, float *out)
{
    int at, c, j;
    out[0] = out[1] = out[2] = out[3] = 0;
    for (at = 0; at < dim; at += group, step += 4) {
        __m512i a = _mm512_setzero_si512(), b = a;
        int32_t sum[32];
        for (c = at; c < at + group; c += 16) {
            __m512i n = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)(bytes + c)));
            a = _mm512_dpbusd_epi32(a, n, _mm512_loadu_si512(limb + 8 * c));
            b = _mm512_dpbusd_epi32(b, n, _mm512_loadu_si512(limb + 8 * c + 64));
        }
        a = _mm512_add_epi32(a, _mm512_shuffle_epi32(a, (_MM_PERM_ENUM)0x4e));
        b = _mm512_add_epi32(b, _mm512_shuffle_epi32(b, (_MM_PERM_ENUM)0x4e));
        _mm512_storeu_si512(sum, _mm512_add_epi32(a, _mm512_shuffle_epi32(a, (_MM_PERM_ENUM)0xb1)));
        _mm512_storeu_si512(sum + 16, _mm512_add_epi32(b, _mm512_shuffle_epi32(b, (_MM_PERM_ENUM)0xb1)));
        for (j = 0; j < 4; j++)
            out[j] += step[j] * (limbs > 1 ? 256 * (float)sum[8 * j] + (float)sum[8 * j + 4] : (float)sum[8 * j]);
    }
}

/* 2^x = 2^n p(x - n), n the nearest whole number, p of degree 5 with the least relative error on -0.5 .. 0.5 of those
   with p(0) = 1, so that 2^0 is 1: 1.5e-7 with rounding. Below -100 it is 0: times a scale it would be a number that
   processors take long for. NaN stays NaN: it makes n the bits 0x80000000, of which the shift leaves nothing. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__exp2_avx512(__m512 x)
{
    __mmask16 some = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-100.0f), _CMP_NLT_UQ);
    __m512i n = _mm512_cvtps_epi32(x);
    __m512 f = _mm512_sub_ps(x, _mm512_cvtepi32_ps(n)), p;
    p = _mm512_fmadd_ps(_mm512_set1_ps(1.326473663e-3f), f, _mm512_set1_ps(9.671516716e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550733581e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402224243e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931470037e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(some, _mm512_castps_si512(p), _mm512_slli_epi32(n, 23)));
}

/* cap tanh(x / cap); the error is a few 1e-7 of cap. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__cap_avx512(__m512 x, float cap)
{
    const __m512 one = _mm512_set1_ps(1);
    __m512 y = _mm512_div_ps(x, _mm512_set1_ps(cap)), e;
    y = _mm512_min_ps(_mm512_set1_ps(10), y);   /* in this order NaN stays */
    y = _mm512_max_ps(_mm512_set1_ps(-10), y);
    e = oscar__exp2_avx512(_mm512_mul_ps(y, _mm512_set1_ps(2 * OSCAR__LOG2E)));
    return _mm512_mul_ps(_mm512_set1_ps(cap), _mm512_div_ps(_mm512_sub_ps(e, one), _mm512_add_ps(e, one)));
}

/* Lanes below n. */
OSCAR__INLINE unsigned oscar__lanes_below(int n) { return n <= 0 ? 0 : n < 16 ? (1u << n) - 1 : 0xffff; }

/* Products of a query -> capped logits where there is a cap; -inf where masked. */
static OSCAR__AVX512 void oscar__logits_avx512(float scale, float cap, int first, int end, float *score)
{
    int t;
    for (t = 0; t < OSCAR__BLOCK; t += 16) {
        __m512 logit = _mm512_loadu_ps(score + t);
        unsigned seen = oscar__lanes_below(end - t) & ~oscar__lanes_below(first - t);
        if (cap > 0) logit = oscar__cap_avx512(_mm512_mul_ps(logit, _mm512_set1_ps(scale)), cap);
        _mm512_storeu_ps(score + t, _mm512_mask_blend_ps((__mmask16)seen, _mm512_set1_ps(-HUGE_VALF), logit));
    }
}

OSCAR__INLINE OSCAR__AVX512 __m512 oscar__largest_avx512(const float *score)
{
    return _mm512_max_ps(_mm512_max_ps(_mm512_loadu_ps(score), _mm512_loadu_ps(score + 16)),
                         _mm512_max_ps(_mm512_loadu_ps(score + 32), _mm512_loadu_ps(score + 48)));
}

/* 16 weights 2^(unit (score - base)): 0 or less is the exponent, also of huge scores. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__weights16_avx512(float *score, float unit, float base)
{
    __m512 below = _mm512_sub_ps(_mm512_loadu_ps(score), _mm512_set1_ps(base));
    __m512 weight = oscar__exp2_avx512(_mm512_mul_ps(below, _mm512_set1_ps(unit)));
    _mm512_storeu_ps(score, weight);
    return weight;
}

static OSCAR__AVX512 int oscar__attend_softmax_avx512(int count, float scale, float cap, const int *first,
                                                      const int *end, float *score, float *top, float *sum,
                                                      float *factor)
{
    float unit = cap > 0 ? OSCAR__LOG2E : scale * OSCAR__LOG2E, base[4];
    __m512 x[4];
    __m128 before = _mm_loadu_ps(top), after, same, grown;
    int j;
    for (j = 0; j < count && (cap > 0 || first); j++)
        oscar__logits_avx512(scale, cap, first ? first[j] : 0, end ? end[j] : OSCAR__BLOCK, score + j * OSCAR__BLOCK);
    for (j = 0; j < 4; j++) x[j] = oscar__largest_avx512(score + (j < count ? j : 0) * OSCAR__BLOCK);
    after = _mm_max_ps(before, oscar__largest4_avx512(x));
    same = _mm_cmp_ps(after, before, _CMP_EQ_OQ);
    _mm_storeu_ps(top, after);
    after = _mm_andnot_ps(_mm_cmp_ps(after, _mm_set1_ps(-HUGE_VALF), _CMP_EQ_OQ), after);   /* no key yet: 0 */
    _mm_storeu_ps(base, after);
    for (j = 0; j < 4; j++) {
        float *row = score + j * OSCAR__BLOCK;
        x[j] = _mm512_setzero_ps();
        if (j >= count) continue;
        x[j] = _mm512_add_ps(_mm512_add_ps(oscar__weights16_avx512(row, unit, base[j]),
                                           oscar__weights16_avx512(row + 16, unit, base[j])),
                             _mm512_add_ps(oscar__weights16_avx512(row + 32, unit, base[j]),
                                           oscar__weights16_avx512(row + 48, unit, base[j])));
    }
    grown = _mm_mul_ps(_mm_sub_ps(before, after), _mm_set1_ps(unit));
    grown = _mm256_castps256_ps128(_mm512_extractf32x8_ps(oscar__exp2_avx512(_mm512_castps128_ps512(grown)), 0));
    grown = _mm_blendv_ps(grown, _mm_set1_ps(1), same);
    _mm_storeu_ps(factor, grown);
    _mm_storeu_ps(sum, _mm_fmadd_ps(_mm_loadu_ps(sum), grown, oscar__sum4_avx512(x)));
    return (_mm_movemask_ps(same) & ((1 << count) - 1)) != (1 << count) - 1;
}

static OSCAR__AVX512 void oscar__attend_rescale_avx512(int count, int dim, const float *factor, float *acc)
{
    int j, c;
    for (j = 0; j < count; j++, acc += dim)
        for (c = 0; c < dim; c += 16)
            _mm512_storeu_ps(acc + c, _mm512_mul_ps(_mm512_loadu_ps(acc + c), _mm512_set1_ps(factor[j])));
}

/* 16 values of a row as floats. */
OSCAR__INLINE OSCAR__AVX512 __m512 oscar__widen16_avx512(oscar_type type, oscar_type round, const unsigned char *p)
{
    __m512 x;
    if (type == OSCAR_BF16)
        x = _mm512_castsi512_ps(_mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16));
    else if (type == OSCAR_F16) x = oscar__halves_avx512(p);
    else x = _mm512_loadu_ps((const void *)p);
    if (round == OSCAR_BF16 && type != OSCAR_BF16) {
        __m512i bits = _mm512_castps_si512(x);
        __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        x = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000)));
    }
    if (round == OSCAR_F16 && type != OSCAR_F16)
        x = _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return x;
}

static OSCAR__AVX512 void oscar__attend_widen_avx512(oscar_type type, oscar_type round, int rows, int dim,
                                                     const unsigned char *x, ptrdiff_t stride, float *out)
{
    int r, c, size = (int)oscar__type_size(type);
    for (r = 0; r < rows; r++, x += stride, out += dim)
        for (c = 0; c < dim; c += 16)
            _mm512_storeu_ps(out + c, oscar__widen16_avx512(type, round, x + c * size));
}

/* The sums of four rows += their products with a query. */
OSCAR__INLINE OSCAR__AVX512 void oscar__four_rows_avx512(__m512 a, __m512 b, __m512 c, __m512 d, __m512 q, __m512 *sum)
{
    sum[0] = _mm512_fmadd_ps(a, q, sum[0]);
    sum[1] = _mm512_fmadd_ps(b, q, sum[1]);
    sum[2] = _mm512_fmadd_ps(c, q, sum[2]);
    sum[3] = _mm512_fmadd_ps(d, q, sum[3]);
}

/* Sums of four queries and four rows. */
OSCAR__INLINE OSCAR__AVX512 void oscar__no_sums_avx512(__m512 *sum)
{
    sum[0] = sum[1] = sum[2] = sum[3] = sum[4] = sum[5] = sum[6] = sum[7] = _mm512_setzero_ps();
    sum[8] = sum[9] = sum[10] = sum[11] = sum[12] = sum[13] = sum[14] = sum[15] = _mm512_setzero_ps();
}

/* Those of a query -> products with the rows, of which there are `left`. */
OSCAR__INLINE OSCAR__AVX512 void oscar__put_products_avx512(const __m512 *sum, int left, float *out)
{
    __m128 four = oscar__sum4_avx512(sum);
    float products[4];
    if (left >= 4) {
        _mm_storeu_ps(out, four);
        return;
    }
    _mm_storeu_ps(products, four);
    memcpy(out, products, (size_t)left * sizeof(float));
}

/* Four rows at a time; where fewer are left, the last one goes again and does not count. */
OSCAR__INLINE OSCAR__AVX512 void oscar__products_avx512(oscar_type type, int shape, int count, int rows, int dim,
                                                        const float *x, ptrdiff_t x_stride, const unsigned char *m,
                                                        ptrdiff_t m_stride, ptrdiff_t ahead, float *out,
                                                        ptrdiff_t out_stride)
{
    size_t one = (size_t)x_stride / sizeof(float), to = (size_t)out_stride / sizeof(float);
    const float *x1 = x + (count > 1 ? one : 0), *x2 = x + (count > 2 ? 2 * one : 0);
    const float *x3 = x + (count > 3 ? 3 * one : 0);
    int r, c, size = (int)oscar__type_size(type);
    for (r = 0; r < rows; r += 4, m += 4 * m_stride, out += 4) {
        const unsigned char *m1 = r + 1 < rows ? m + m_stride : m, *m2 = r + 2 < rows ? m1 + m_stride : m1;
        const unsigned char *m3 = r + 3 < rows ? m2 + m_stride : m2;
        __m512 sum[16];
        oscar__no_sums_avx512(sum);
        for (c = 0; c < dim; c += 16) {
            int at = c * size;
            __m512 a = oscar__widen16_avx512(type, OSCAR_F32, m + at), q = _mm512_loadu_ps(x + c);
            __m512 b = oscar__widen16_avx512(type, OSCAR_F32, m1 + at);
            __m512 d = oscar__widen16_avx512(type, OSCAR_F32, m2 + at);
            __m512 e = oscar__widen16_avx512(type, OSCAR_F32, m3 + at);
            if (at % 64 == 0) {
                _mm_prefetch((const char *)m + at + ahead, _MM_HINT_T1);
                _mm_prefetch((const char *)m1 + at + ahead, _MM_HINT_T1);
                _mm_prefetch((const char *)m2 + at + ahead, _MM_HINT_T1);
                _mm_prefetch((const char *)m3 + at + ahead, _MM_HINT_T1);
            }
            oscar__four_rows_avx512(a, b, d, e, q, sum);
            if (shape > 1) oscar__four_rows_avx512(a, b, d, e, _mm512_loadu_ps(x1 + c), sum + 4);
            if (shape > 2) oscar__four_rows_avx512(a, b, d, e, _mm512_loadu_ps(x2 + c), sum + 8);
            if (shape > 2) oscar__four_rows_avx512(a, b, d, e, _mm512_loadu_ps(x3 + c), sum + 12);
        }
        oscar__put_products_avx512(sum, rows - r, out);
        if (shape > 1) oscar__put_products_avx512(sum + 4, rows - r, out + to);
        if (shape > 2) oscar__put_products_avx512(sum + 8, rows - r, out + 2 * to);
        if (shape > 2 && count > 3) oscar__put_products_avx512(sum + 12, rows - r, out + 3 * to);
    }
}

static OSCAR__AVX512 void oscar__attend_products_avx512(oscar_type type, int count, int rows, int dim, const float *x,
                                                        ptrdiff_t x_stride, const void *m, ptrdiff_t m_stride,
                                                        ptrdiff_t ahead, float *out, ptrdiff_t out_stride)
{
    const unsigned char *first = (const unsigned char *)m;
    OSCAR__BY_TYPE(oscar__products_avx512, type, count,
                   (count, rows, dim, x, x_stride, first, m_stride, ahead, out, out_stride))
}

/* out += the sum over rows, for 16 wide channels; rows in order. */
OSCAR__INLINE OSCAR__AVX512 void oscar__combine16_avx512(oscar_type type, int shape, int count, int wide, int rows,
                                                         const float *weight, size_t one, const unsigned char *m,
                                                         ptrdiff_t m_stride, ptrdiff_t ahead, float *out, size_t to)
{
    size_t w1 = count > 1 ? one : 0, w2 = count > 2 ? 2 * one : 0, w3 = count > 3 ? 3 * one : 0;
    float *out1 = out + (count > 1 ? to : 0), *out2 = out + (count > 2 ? 2 * to : 0);
    float *out3 = out + (count > 3 ? 3 * to : 0);
    int r, size = (int)oscar__type_size(type), next = wide > 1 ? 16 : 0;
    __m512 sum[4][2];
    sum[0][0] = _mm512_loadu_ps(out);
    sum[0][1] = _mm512_loadu_ps(out + next);
    sum[1][0] = _mm512_loadu_ps(out1);
    sum[1][1] = _mm512_loadu_ps(out1 + next);
    sum[2][0] = _mm512_loadu_ps(out2);
    sum[2][1] = _mm512_loadu_ps(out2 + next);
    sum[3][0] = _mm512_loadu_ps(out3);
    sum[3][1] = _mm512_loadu_ps(out3 + next);
    for (r = 0; r < rows; r++, m += m_stride, weight++) {
        __m512 a = oscar__widen16_avx512(type, OSCAR_F32, m), b = a;
        _mm_prefetch((const char *)m + ahead, _MM_HINT_T1);
        if (wide > 1) b = oscar__widen16_avx512(type, OSCAR_F32, m + 16 * size);
        sum[0][0] = _mm512_fmadd_ps(a, _mm512_set1_ps(weight[0]), sum[0][0]);
        if (wide > 1) sum[0][1] = _mm512_fmadd_ps(b, _mm512_set1_ps(weight[0]), sum[0][1]);
        if (shape > 1) sum[1][0] = _mm512_fmadd_ps(a, _mm512_set1_ps(weight[w1]), sum[1][0]);
        if (shape > 1 && wide > 1) sum[1][1] = _mm512_fmadd_ps(b, _mm512_set1_ps(weight[w1]), sum[1][1]);
        if (shape > 2) sum[2][0] = _mm512_fmadd_ps(a, _mm512_set1_ps(weight[w2]), sum[2][0]);
        if (shape > 2 && wide > 1) sum[2][1] = _mm512_fmadd_ps(b, _mm512_set1_ps(weight[w2]), sum[2][1]);
        if (shape > 2) sum[3][0] = _mm512_fmadd_ps(a, _mm512_set1_ps(weight[w3]), sum[3][0]);
        if (shape > 2 && wide > 1) sum[3][1] = _mm512_fmadd_ps(b, _mm512_set1_ps(weight[w3]), sum[3][1]);
    }
    _mm512_storeu_ps(out, sum[0][0]);
    if (wide > 1) _mm512_storeu_ps(out + 16, sum[0][1]);
    if (shape > 1) _mm512_storeu_ps(out1, sum[1][0]);
    if (shape > 1 && wide > 1) _mm512_storeu_ps(out1 + 16, sum[1][1]);
    if (shape > 2) _mm512_storeu_ps(out2, sum[2][0]);
    if (shape > 2 && wide > 1) _mm512_storeu_ps(out2 + 16, sum[2][1]);
    if (shape > 2 && count > 3) _mm512_storeu_ps(out3, sum[3][0]);
    if (shape > 2 && count > 3 && wide > 1) _mm512_storeu_ps(out3 + 16, sum[3][1]);
}

OSCAR__INLINE OSCAR__AVX512 void oscar__combine_avx512(oscar_type type, int shape, int count, int rows, int dim,
                                                       const float *weight, ptrdiff_t weight_stride,
                                                       const unsigned char *m, ptrdiff_t m_stride, ptrdiff_t ahead,
                                                       float *out, ptrdiff_t out_stride)
{
    size_t one = (size_t)weight_stride / sizeof(float), to = (size_t)out_stride / sizeof(float);
    int c, size = (int)oscar__type_size(type);
    for (c = 0; c + 32 <= dim; c += 32)
        oscar__combine16_avx512(type, shape, count, 2, rows, weight, one, m + c * size, m_stride, ahead, out + c, to);
    if (c < dim)
        oscar__combine16_avx512(type, shape, count, 1, rows, weight, one, m + c * size, m_stride, ahead, out + c, to);
}

static OSCAR__AVX512 void oscar__attend_combine_avx512(oscar_type type, int count, int rows, int dim,
                                                       const float *weight, ptrdiff_t weight_stride, const void *m,
                                                       ptrdiff_t m_stride, ptrdiff_t ahead, float *out,
                                                       ptrdiff_t out_stride)
{
    const unsigned char *first = (const unsigned char *)m;
    OSCAR__BY_TYPE(oscar__combine_avx512, type, count,
                   (count, rows, dim, weight, weight_stride, first, m_stride, ahead, out, out_stride))
}

static const oscar__attend_kernels oscar__attend_avx512 = {
    oscar__attend_widen_avx512, oscar__attend_products_avx512, oscar__attend_combine_avx512, oscar__attend_limbs_avx512,
    oscar__attend_mean_avx512, oscar__attend_score_avx512, oscar__attend_softmax_avx512, oscar__attend_rescale_avx512,
    oscar__attend_weigh_avx512, oscar__attend_blend_avx512, 4, NULL, NULL
};

#if defined(__GNUC__) && !defined(__clang__)
#  pragma GCC diagnostic pop
#endif
#endif /* OSCAR__HAS_AVX512 */

/* == 3.19 KERNELS: AMX == */
#if defined(OSCAR__HAS_AMX)

#if defined(__GNUC__) && !defined(__clang__)   /* as in 3.18 */
#  pragma GCC diagnostic push
#  pragma GCC diagnostic ignored "-Wuninitialized"
#  pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#  pragma GCC diagnostic ignored "-Wsign-conversion"
#endif

/* Attention over codes by products of tiles, C += A B, for all queries of a block at once; everything else is that of
   AVX-512. A, signed: 16 rows of 64 bytes, one limb of a query each, row 2j the high and 2j + 1 the low one of query j:
   64 channels of q', or the weights of a block. B, unsigned: codes. Its row r meets bytes 4r .. 4r + 3 of rows of A, in
   16 columns: tokens of K or channels of V. So a plane of a line of a page (3.12) is a row of B as it is: four lines of
   2 bits, or eight of 4, make a tile. Both limbs are always used, they cost nothing here.

   Tiles: 0 .. 3 are C, 4 and 5 A (queries 0 .. 7 and 8 .. 15), 6 and 7 two tiles B, of 32 tokens or 32 channels; 0 is
   4 times 6, 1 is 4 times 7, 2 is 5 times 6, 3 is 5 times 7. A tile load has to wait for stores that are under way, so
   B is decoded a step ahead.

   Cycles, counted. A step has 32 x 64 codes; with 2 bits and D = G = 128 a block has four of K and four of V. For Q
   queries: a product takes as many cycles as A has rows (assumed; 16 at most), 4 Q a step; a tile load half as many as
   rows, 16 a step for B, and A again in each step of K; a store 1: 32 rows of B a step, 4 Q of C in every other step of
   K and in each of V; decoding 56 shifts and masks a step on two ports. In cycles a token and KV head:

        Q    products   tile loads   stores of B, C, scores and acc
        4    2.0        2.3          4.0 + 1.5 + 0.8
       16    8.0        3.3          4.0 + 6.0 + 3.0

   So stores come first. What a query costs besides (products from sums, softmax, limbs of weights, sums into acc) is
   the larger part from 8 queries on. */

/* The state of tiles belongs to a thread, and functions may change it as any scratch register. These are inline
   assembly because the intrinsics of compilers do not say which memory they touch. Tests put plain C in their place. */
#if !defined(OSCAR__TILE_CONFIG)
#  define OSCAR__TILE_CONFIG(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(config)) : "memory")
#  define OSCAR__TILE_RELEASE() __asm__ volatile("tilerelease" : : : "memory")
#  define OSCAR__TILE_ZERO(tile) __asm__ volatile("tilezero {%%tmm" #tile "|tmm" #tile "}" : :)
#  define OSCAR__TILE_LOAD(tile, from, stride) \
    __asm__ volatile("tileloadd {(%0,%1,1), %%tmm" #tile "|tmm" #tile ", [%0+%1*1]}" \
                     : : "r"(from), "r"((ptrdiff_t)(stride)) : "memory")
#  define OSCAR__TILE_STORE(tile, to, stride) \
    __asm__ volatile("tilestored {%%tmm" #tile ", (%0,%1,1)|[%0+%1*1], tmm" #tile "}" \
                     : : "r"(to), "r"((ptrdiff_t)(stride)) : "memory")
#  define OSCAR__TILE_DOT(c, a, b) \
    __asm__ volatile("tdpbsud {%%tmm" #b ", %%tmm" #a ", %%tmm" #c "|tmm" #c ", tmm" #a ", tmm" #b "}" : :)
#endif

/* Operand of ldtilecfg: 16 places, of which the palette has 8. A tile without rows has no columns. */
typedef struct oscar__tile_config {
    unsigned char palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    unsigned char rows[16];
} oscar__tile_config;

static OSCAR__AMX void oscar__attend_begin_amx(int count)
{
    oscar__tile_config config;
    int rows = 2 * count, tile;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (tile = 0; tile < 8; tile++) {
        int second = tile == 2 || tile == 3 || tile == 5;
        int n = tile > 5 ? 16 : second ? rows - 16 : oscar__smaller(rows, 16);
        config.rows[tile] = (unsigned char)(n > 0 ? n : 0);
        config.row_bytes[tile] = n > 0 ? 64 : 0;
    }
    OSCAR__TILE_CONFIG(&config);
}

static OSCAR__AMX void oscar__attend_end_amx(void) { OSCAR__TILE_RELEASE(); }

/* A of 2 count rows, `stride` bytes apart. */
OSCAR__INLINE OSCAR__AMX void oscar__tile_a_amx(int count, const signed char *a, int stride)
{
    OSCAR__TILE_LOAD(4, a, stride);
    if (count > 8) OSCAR__TILE_LOAD(5, a + 16 * stride, stride);
}

OSCAR__INLINE OSCAR__AMX void oscar__tile_zeros_amx(int count)
{
    OSCAR__TILE_ZERO(0);
    OSCAR__TILE_ZERO(1);
    if (count <= 8) return;
    OSCAR__TILE_ZERO(2);
    OSCAR__TILE_ZERO(3);
}

/* C += A B. b: one or two tiles B. */
OSCAR__INLINE OSCAR__AMX void oscar__tile_dots_amx(int count, int tiles, const unsigned char *b)
{
    OSCAR__TILE_LOAD(6, b, 64);
    OSCAR__TILE_DOT(0, 4, 6);
    if (count > 8) OSCAR__TILE_DOT(2, 5, 6);
    if (tiles < 2) return;
    OSCAR__TILE_LOAD(7, b + 1024, 64);
    OSCAR__TILE_DOT(1, 4, 7);
    if (count > 8) OSCAR__TILE_DOT(3, 5, 7);
}

/* C as sum [2 tiles of B][2 count, room for 32][16]. */
OSCAR__INLINE OSCAR__AMX void oscar__tile_sums_amx(int count, int tiles, int32_t *sum)
{
    OSCAR__TILE_STORE(0, sum, 64);
    if (count > 8) OSCAR__TILE_STORE(2, sum + 256, 64);
    if (tiles < 2) return;
    OSCAR__TILE_STORE(1, sum + 512, 64);
    if (count > 8) OSCAR__TILE_STORE(3, sum + 768, 64);
}

/* The sums of a query from those of its limbs [2][16]: exact. */
OSCAR__INLINE OSCAR__AMX __m512 oscar__total_amx(const int32_t *sum)
{
    __m512i high = _mm512_slli_epi32(_mm512_loadu_si512(sum), 8);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(high, _mm512_loadu_si512(sum + 16)));
}

/* The planes of a line of codes as rows of B, `step` bytes apart. */
OSCAR__INLINE OSCAR__AMX void oscar__planes_amx(int bits, const unsigned char *line, unsigned char *row, size_t step)
{
    __m512i mask = _mm512_set1_epi8(bits == 2 ? 3 : 15), word = _mm512_loadu_si512(line);
    _mm512_storeu_si512(row, _mm512_and_si512(word, mask));
    if (bits == 4) {
        _mm512_storeu_si512(row + step, _mm512_and_si512(_mm512_srli_epi32(word, 4), mask));
        return;
    }
    _mm512_storeu_si512(row + step, _mm512_and_si512(_mm512_srli_epi32(word, 2), mask));
    _mm512_storeu_si512(row + 2 * step, _mm512_and_si512(_mm512_srli_epi32(word, 4), mask));
    _mm512_storeu_si512(row + 3 * step, _mm512_and_si512(_mm512_srli_epi32(word, 6), mask));
}

/* -- keys -- */

/* A step of the products with keys: two tiles of tokens, `pair` 0 or 1 of a block, and up to 64 channels of a group,
   from its channel c on. */
typedef struct oscar__key_step { int pair, group, c; } oscar__key_step;

OSCAR__INLINE oscar__key_step oscar__key_next(const oscar__codes *k, oscar__key_step at)
{
    at.c += 64;
    if (at.c < k->group) return at;
    at.c = 0;
    at.group++;
    if (at.group * k->group < k->dim) return at;
    at.group = 0;
    at.pair++;
    return at;
}

/* Channels of a step as two tiles B. Rows beyond the group are zeros: there A has the next group, or what lies behind
   it. */
static OSCAR__AMX void oscar__key_tiles_amx(const oscar__codes *k, oscar__key_step at, unsigned char *b)
{
    size_t tile_bytes = (size_t)(2 * k->bits * k->dim), line_bytes = 64;
    int tile, c, channels = oscar__smaller(k->group - at.c, 64), each = 32 / k->bits;
    const unsigned char *p = k->codes + (size_t)(2 * at.pair) * tile_bytes
                             + (size_t)(2 * k->bits * (at.group * k->group + at.c));
    for (tile = 0; tile < 2; tile++, p += tile_bytes, b += 1024) {
        const unsigned char *line = p;
        for (c = 0; c < channels; c += each, line += line_bytes) {
            _mm_prefetch((const char *)line + k->ahead, _MM_HINT_T0);
            if (k->bits == 2) oscar__planes_amx(2, line, b + 16 * c, 64);
            else oscar__planes_amx(4, line, b + 16 * c, 64);
        }
        for (; c < 64; c += 4) _mm512_storeu_si512(b + 16 * c, _mm512_setzero_si512());
    }
}

/* 16 products of each query from the sums of a group. first: it is the first one, products begin at start. */
OSCAR__INLINE OSCAR__AMX void oscar__products16_amx(int first, int has_minimum, int count, int groups,
                                                    __mmask16 negative, __m512 scale, __m512 minimum,
                                                    const int32_t *sum, const float *step, const float *low,
                                                    const float *start, float *score)
{
    int f, j;
    for (f = 0; f < count; f += 4, step += 4 * groups, low += 4 * groups, start += 8)
        for (j = 0; j < oscar__smaller(count - f, 4); j++, sum += 32, score += OSCAR__BLOCK) {
            __m512 s;
            if (first) s = _mm512_mask_blend_ps(negative, _mm512_set1_ps(start[j]), _mm512_set1_ps(start[j + 4]));
            else s = _mm512_loadu_ps(score);
            s = oscar__scaled_avx512(oscar__total_amx(sum), step[j], low[j], scale, has_minimum, minimum, s);
            _mm512_storeu_ps(score, s);
        }
}

/* The sums of a group and two tiles of tokens -> products. */
static OSCAR__AMX void oscar__key_products_amx(int count, const oscar__codes *k, oscar__key_step at, const int32_t *sum,
                                               const float *step, const float *low, const float *start, float *score)
{
    const unsigned char *first = k->scale + 64 * at.pair;
    ptrdiff_t group = (ptrdiff_t)(2 * k->tokens * at.group) + 64 * at.pair;
    int groups = k->dim / k->group, tile;
    score += 32 * at.pair;
    step += 4 * at.group;
    low += 4 * at.group;
    _mm_prefetch((const char *)k->scale + group + k->ahead, _MM_HINT_T0);
    for (tile = 0; tile < 2; tile++, first += 32, group += 32, sum += 512, score += 16) {
        __mmask16 negative = _mm256_movepi16_mask(_mm256_loadu_si256((const __m256i *)(const void *)first));
        __m512 scale = oscar__scales_avx512(k->scale + group), minimum = _mm512_setzero_ps();
        if (k->minimum) minimum = oscar__halves_avx512(k->minimum + group);
        if (!at.group && !k->minimum)
            oscar__products16_amx(1, 0, count, groups, negative, scale, minimum, sum, step, low, start, score);
        else if (!at.group)
            oscar__products16_amx(1, 1, count, groups, negative, scale, minimum, sum, step, low, start, score);
        else if (!k->minimum)
            oscar__products16_amx(0, 0, count, groups, negative, scale, minimum, sum, step, low, start, score);
        else oscar__products16_amx(0, 1, count, groups, negative, scale, minimum, sum, step, low, start, score);
    }
}

static OSCAR__AMX void oscar__attend_score_amx(int count, int limbs, const oscar__codes *k, const signed char *limb,
                                               const float *step, const float *low, const float *start, float *score)
{
    OSCAR__LINES unsigned char b[2][2048];
    OSCAR__LINES int32_t sum[2][1024];
    oscar__key_step at = { 0, 0, 0 }, next, done = at;
    int turn, groups = 0;
    (void)limbs;
    oscar__key_tiles_amx(k, at, b[0]);
    for (turn = 0; at.pair < 2; turn ^= 1, at = next) {
        next = oscar__key_next(k, at);
        if (next.pair < 2) oscar__key_tiles_amx(k, next, b[turn ^ 1]);
        if (!at.c) oscar__tile_zeros_amx(count);
        oscar__tile_a_amx(count, limb + at.group * k->group + at.c, k->dim);
        oscar__tile_dots_amx(count, 2, b[turn]);
        if (at.c + 64 < k->group) continue;
        /* The products of a group are made after those of the next one are under way. */
        oscar__tile_sums_amx(count, 2, sum[groups & 1]);
        if (groups++) oscar__key_products_amx(count, k, done, sum[groups & 1], step, low, start, score);
        done = at;
    }
    oscar__key_products_amx(count, k, done, sum[(groups & 1) ^ 1], step, low, start, score);
}

/* Limbs of query 0 .. 3 of a four: limb [4 queries][2][dim]. */
static OSCAR__AMX void oscar__attend_limbs_amx(int limbs, int dim, int group, int query, const float *x,
                                               signed char *limb, float *step, float *sum)
{
    const __m512 finite = _mm512_set1_ps(FLT_MAX);
    signed char *high = limb + 2 * query * dim, *low = high + dim;
    int at, c;
    (void)limbs;
    for (at = 0; at < dim; at += group, step += 4, sum += 4) {
        __m512 most = _mm512_setzero_ps(), share, four[4];
        __m512i all = _mm512_setzero_si512();
        __mmask16 bad = 0;
        float top, unit;
        for (c = at; c < at + group; c += 16) {
            __m512 a = _mm512_abs_ps(_mm512_loadu_ps(x + c));
            bad = (__mmask16)(bad | _mm512_cmp_ps_mask(a, finite, _CMP_NLE_UQ));
            most = _mm512_max_ps(most, a);
        }
        four[0] = four[1] = four[2] = four[3] = most;
        top = _mm_cvtss_f32(oscar__largest4_avx512(four));
        unit = bad ? (float)NAN : top > 1e-34f ? top / oscar__limbs_most(2) : 0;
        share = _mm512_set1_ps(!bad && top > 1e-34f ? oscar__limbs_most(2) / top : 0);
        for (c = at; c < at + group; c += 16) {
            __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + c), share));
            __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(128)), 8);
            all = _mm512_add_epi32(all, n);
            _mm_storeu_si128((__m128i *)(void *)(high + c), _mm512_cvtepi32_epi8(upper));
            _mm_storeu_si128((__m128i *)(void *)(low + c), _mm512_cvtepi32_epi8(n));   /* the low byte */
        }
        four[0] = four[1] = four[2] = four[3] = _mm512_cvtepi32_ps(all);
        step[query] = unit;
        sum[query] = unit * _mm_cvtss_f32(oscar__sum4_avx512(four));
    }
}

static OSCAR__AMX void oscar__attend_mean_amx(int limbs, int dim, int group, const unsigned char *bytes,
                                              const signed char *limb, const float *step, float *out)
{
    __m512 product[4];
    int at, c, j;
    (void)limbs;
    product[0] = product[1] = product[2] = product[3] = _mm512_setzero_ps();
    for (at = 0; at < dim; at += group, step += 4) {
        __m512i high[4], low[4];
        for (j = 0; j < 4; j++) high[j] = low[j] = _mm512_setzero_si512();
        for (c = at; c < at + group; c += 64) {
            int left = at + group - c;
            __mmask64 some = left < 64 ? ((__mmask64)1 << left) - 1 : ~(__mmask64)0;
            __m512i n = _mm512_maskz_loadu_epi8(some, bytes + c);
            for (j = 0; j < 4; j++) {   /* beyond the group n is 0 */
                high[j] = _mm512_dpbusd_epi32(high[j], n, _mm512_loadu_si512(limb + 2 * j * dim + c));
                low[j] = _mm512_dpbusd_epi32(low[j], n, _mm512_loadu_si512(limb + (2 * j + 1) * dim + c));
            }
        }
        for (j = 0; j < 4; j++) {
            __m512i all = _mm512_add_epi32(_mm512_slli_epi32(high[j], 8), low[j]);
            product[j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(all), _mm512_set1_ps(step[j]), product[j]);
        }
    }
    _mm_storeu_ps(out, oscar__sum4_avx512(product));
}

/* -- values -- */

/* Weights x times 1 / step of a query -> two rows of A, tokens in the order of rows of B: 4 of each tile, the next 4 of
   each, ... Returns their sums. */
OSCAR__INLINE OSCAR__AMX __m512 oscar__weight_rows_amx(const __m512 *x, float inverse, signed char *row)
{
    const __m512i half = _mm512_set1_epi16(128);
    __m512 share = _mm512_set1_ps(inverse);
    __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(x[0], share)), b = _mm512_cvtps_epi32(_mm512_mul_ps(x[1], share));
    __m512i c = _mm512_cvtps_epi32(_mm512_mul_ps(x[2], share)), d = _mm512_cvtps_epi32(_mm512_mul_ps(x[3], share));
    __m512i ab = _mm512_packs_epi32(a, b), cd = _mm512_packs_epi32(c, d);
    __m512i high_ab = _mm512_srai_epi16(_mm512_add_epi16(ab, half), 8);
    __m512i high_cd = _mm512_srai_epi16(_mm512_add_epi16(cd, half), 8);
    ab = _mm512_sub_epi16(ab, _mm512_slli_epi16(high_ab, 8));
    cd = _mm512_sub_epi16(cd, _mm512_slli_epi16(high_cd, 8));
    _mm512_storeu_si512(row, _mm512_packs_epi16(high_ab, high_cd));
    _mm512_storeu_si512(row + 64, _mm512_packs_epi16(ab, cd));
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d)));
}

/* As rows of A: limb [4 queries][2][64]. */
static OSCAR__AMX void oscar__attend_weigh_amx(int count, int limbs, const oscar__codes *v, int g, const float *weight,
                                               signed char *limb, float *step, float *base)
{
    const unsigned char *scales = v->scale + 2 * g * v->tokens;
    const unsigned char *minima = v->minimum ? v->minimum + 2 * g * v->tokens : NULL;
    __m512 s[4], x[4][4], most[4], sum[4], middle[4];
    __m128 top, some;
    float inverse[4];
    int j;
    (void)limbs;
    _mm_prefetch((const char *)scales + v->ahead, _MM_HINT_T0);
    _mm_prefetch((const char *)scales + 64 + v->ahead, _MM_HINT_T0);
    s[0] = oscar__scales_avx512(scales);
    s[1] = oscar__scales_avx512(scales + 32);
    s[2] = oscar__scales_avx512(scales + 64);
    s[3] = oscar__scales_avx512(scales + 96);
    for (j = 0; j < 4; j++) most[j] = oscar__weights_avx512(weight + (j < count ? j : 0) * OSCAR__BLOCK, s, x[j]);
    top = oscar__largest4_avx512(most);
    some = _mm_cmp_ps(top, _mm_set1_ps(1e-34f), _CMP_GT_OQ);   /* below nothing counts, and 1 / top may overflow */
    _mm_storeu_ps(inverse, _mm_and_ps(some, _mm_div_ps(_mm_set1_ps(oscar__weights_most(2)), top)));
    top = _mm_and_ps(some, _mm_div_ps(top, _mm_set1_ps(oscar__weights_most(2))));
    _mm_storeu_ps(step, top);
    for (j = 0; j < 4; j++) {
        sum[j] = j < count ? oscar__weight_rows_amx(x[j], inverse[j], limb + 128 * j) : _mm512_setzero_ps();
        if (minima)
            middle[j] = oscar__weight_middles_avx512(weight + (j < count ? j : 0) * OSCAR__BLOCK, minima, s, v->centre);
    }
    some = _mm_mul_ps(_mm_mul_ps(oscar__sum4_avx512(sum), _mm_set1_ps(-v->centre)), top);
    if (minima) some = _mm_add_ps(some, oscar__sum4_avx512(middle));
    _mm_storeu_ps(base, some);
}

/* One or two squares of 16 channels and 64 tokens, from channel c on, as tiles B. */
static OSCAR__AMX void oscar__value_tiles_amx(const oscar__codes *v, int c, int tiles, unsigned char *b)
{
    size_t row = (size_t)v->dim, tile_bytes = 2 * (size_t)v->bits * row;
    const unsigned char *p = v->codes + 4 * c;
    int square, tile;
    for (square = 0; square < tiles; square++, p += 64, b += 1024)
        for (tile = 0; tile < 4; tile++) {
            const unsigned char *line = p + (size_t)tile * tile_bytes;
            _mm_prefetch((const char *)line + v->ahead, _MM_HINT_T0);
            if (v->bits == 2) {
                oscar__planes_amx(2, line, b + 64 * tile, 256);
                continue;
            }
            _mm_prefetch((const char *)line + 4 * row + v->ahead, _MM_HINT_T0);
            oscar__planes_amx(4, line, b + 64 * tile, 256);
            oscar__planes_amx(4, line + 4 * row, b + 512 + 64 * tile, 256);
        }
}

/* acc += step sums + base, 16 channels. */
OSCAR__INLINE OSCAR__AMX void oscar__value_sum_amx(const int32_t *sum, __m512 step, __m512 base, float *acc)
{
    __m512 all = _mm512_fmadd_ps(oscar__total_amx(sum), step, base);
    _mm512_storeu_ps(acc, _mm512_add_ps(_mm512_loadu_ps(acc), all));
}

/* The squares of a step, acc from their first channel on. */
static OSCAR__AMX void oscar__value_sums_amx(int count, int dim, int tiles, const int32_t *sum, const float *step,
                                             const float *base, float *acc)
{
    int j;
    for (j = 0; j < count; j++, acc += dim, sum += 32) {
        __m512 unit = _mm512_set1_ps(step[j]), from = _mm512_set1_ps(base[j]);
        oscar__value_sum_amx(sum, unit, from, acc);
        if (tiles > 1) oscar__value_sum_amx(sum + 512, unit, from, acc + 16);
    }
}

/* All channels of a group, from `at` on; A is in its tiles. */
static OSCAR__AMX void oscar__blend_group_amx(int count, const oscar__codes *v, int at, const float *step,
                                              const float *base, float *acc)
{
    OSCAR__LINES unsigned char b[2][2048];
    OSCAR__LINES int32_t sum[2][1024];
    int c, turn = 0, end = at + v->group, tiles = 0;
    oscar__value_tiles_amx(v, at, end - at > 16 ? 2 : 1, b[0]);
    for (c = at; c < end; c += 32, turn ^= 1) {
        if (c + 32 < end) oscar__value_tiles_amx(v, c + 32, end - c > 48 ? 2 : 1, b[turn ^ 1]);
        tiles = end - c > 16 ? 2 : 1;
        oscar__tile_zeros_amx(count);
        oscar__tile_dots_amx(count, tiles, b[turn]);
        oscar__tile_sums_amx(count, tiles, sum[turn]);
        if (c > at) oscar__value_sums_amx(count, v->dim, 2, sum[turn ^ 1], step, base, acc + c - 32);
    }
    oscar__value_sums_amx(count, v->dim, tiles, sum[turn ^ 1], step, base, acc + c - 32);
}

static OSCAR__AMX void oscar__attend_blend_amx(int count, int limbs, const oscar__codes *v, const float *weight,
                                               signed char *limb, float *step, float *base, float *acc)
{
    int g, f;
    for (g = 0; g < v->dim / v->group; g++) {
        for (f = 0; f < count && g; f += 4)
            oscar__attend_weigh_amx(oscar__smaller(count - f, 4), limbs, v, g, weight + f * OSCAR__BLOCK,
                                    limb + 128 * f, step + f, base + f);
        oscar__tile_a_amx(count, limb, 64);
        oscar__blend_group_amx(count, v, g * v->group, step, base, acc);
    }
}

static const oscar__attend_kernels oscar__attend_amx = {
    oscar__attend_widen_avx512, oscar__attend_products_avx512, oscar__attend_combine_avx512, oscar__attend_limbs_amx,
    oscar__attend_mean_amx, oscar__attend_score_amx, oscar__attend_softmax_avx512, oscar__attend_rescale_avx512,
    oscar__attend_weigh_amx, oscar__attend_blend_amx, OSCAR__QUERIES, oscar__attend_begin_amx, oscar__attend_end_amx
};

#if defined(__GNUC__) && !defined(__clang__)
#  pragma GCC diagnostic pop
#endif
#endif /* OSCAR__HAS_AMX */

/* == 3.20 KERNELS: NEON == */
#if defined(OSCAR__HAS_NEON)

/* 4 floats, 2 doubles or 16 bytes a vector; the steps are those of AVX2 (3.17). Little endian. Addresses of codes and
   rows need no alignment: they are loaded as bytes. A sum that may wrap is one of unsigned numbers. */

/* -- rows: numbers, transforms (3.3, 3.5) -- */

/* Masks of lanes: a compare, both, either, a choice, one more where it holds, and as bits. */
OSCAR__INLINE OSCAR__NEON uint32x4_t oscar__less_neon(float32x4_t a, float32x4_t b) { return vcltq_f32(a, b); }

OSCAR__INLINE OSCAR__NEON uint32x4_t oscar__at_least_neon(float32x4_t a, float32x4_t b) { return vcgeq_f32(a, b); }

OSCAR__INLINE OSCAR__NEON uint32x4_t oscar__above_neon(int32x4_t a, int32x4_t b) { return vcgtq_s32(a, b); }

OSCAR__INLINE OSCAR__NEON uint32x4_t oscar__both_neon(uint32x4_t a, uint32x4_t b) { return vandq_u32(a, b); }

OSCAR__INLINE OSCAR__NEON uint32x4_t oscar__either_neon(uint32x4_t a, uint32x4_t b) { return vorrq_u32(a, b); }

OSCAR__INLINE OSCAR__NEON float32x4_t oscar__pick_neon(uint32x4_t mask, float32x4_t yes, float32x4_t no)
{
    return vbslq_f32(mask, yes, no);
}

OSCAR__INLINE OSCAR__NEON int32x4_t oscar__pick_int_neon(uint32x4_t mask, int32x4_t yes, int32x4_t no)
{
    return vbslq_s32(mask, yes, no);
}

OSCAR__INLINE OSCAR__NEON int32x4_t oscar__add_if_neon(int32x4_t x, uint32x4_t mask)
{
    return vsubq_s32(x, vreinterpretq_s32_u32(mask));
}

/* 0, 1, 2, 3 */
OSCAR__INLINE OSCAR__NEON int32x4_t oscar__lanes_neon(void)
{
    static const int32_t lanes[4] = { 0, 1, 2, 3 };
    return vld1q_s32(lanes);
}

OSCAR__INLINE OSCAR__NEON unsigned oscar__bits_neon(uint32x4_t mask)
{
    return (unsigned)vaddvq_u32(vandq_u32(mask, vshlq_u32(vdupq_n_u32(1), oscar__lanes_neon())));
}

/* 1.5 where the mask holds, else 0.5. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__level2_neon(uint32x4_t mask)
{
    return vbslq_f32(mask, vdupq_n_f32(1.5f), vdupq_n_f32(0.5f));
}

OSCAR__INLINE OSCAR__NEON float32x4_t oscar__floor_neon(float32x4_t x) { return vrndmq_f32(x); }

OSCAR__INLINE OSCAR__NEON void oscar__put_codes_neon(unsigned char *p, int32x4_t codes)
{
    uint16x4_t words = vmovn_u32(vreinterpretq_u32_s32(codes));
    uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0);
    memcpy(p, &four, sizeof four);
}

OSCAR__INLINE OSCAR__NEON int32x4_t oscar__get_codes_neon(const unsigned char *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four))))));
}

OSCAR__INLINE OSCAR__NEON float32x4_t oscar__round_f16_neon(float32x4_t x) { return vcvt_f32_f16(vcvt_f16_f32(x)); }

/* 4 numbers from any address. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__widen_f16_neon(const unsigned char *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

OSCAR__INLINE OSCAR__NEON float32x4_t oscar__widen_bf16_neon(const unsigned char *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

OSCAR__INLINE OSCAR__NEON void oscar__put_f16_neon(unsigned char *p, float32x4_t x)
{
    vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32(x)));
}

/* x: rounded. */
OSCAR__INLINE OSCAR__NEON void oscar__put_bf16_neon(unsigned char *p, float32x4_t x)
{
    vst1_u8(p, vreinterpret_u8_u16(vshrn_n_u32(vreinterpretq_u32_f32(x), 16)));
}

OSCAR__INLINE OSCAR__NEON float32x4_t oscar__abs_neon(float32x4_t x) { return vabsq_f32(x); }

/* Lanes that are finite. */
OSCAR__INLINE OSCAR__NEON uint32x4_t oscar__finite_lanes_neon(float32x4_t x)
{
    return vcleq_f32(vabsq_f32(x), vdupq_n_f32(FLT_MAX));
}

/* n: a multiple of 16. A NaN stays in a maximum. */
static OSCAR__NEON int oscar__finite_neon(const float *x, size_t n)
{
    float32x4_t a = vdupq_n_f32(0), b = a;
    size_t i;
    for (i = 0; i < n; i += 8) {
        a = vmaxq_f32(a, vabsq_f32(vld1q_f32(x + i)));
        b = vmaxq_f32(b, vabsq_f32(vld1q_f32(x + i + 4)));
    }
    return vmaxvq_f32(vmaxq_f32(a, b)) <= FLT_MAX;
}

/* bfloat16 keeps the upper half, rounded to nearest even; a NaN only gets quiet. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__round_bf16_neon(float32x4_t x)
{
    uint32x4_t u = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    uint32x4_t number = vceqq_f32(x, x);
    rounded = vbslq_u32(number, rounded, vorrq_u32(u, vdupq_n_u32(0x400000)));
    return vreinterpretq_f32_u32(vandq_u32(rounded, vdupq_n_u32(0xffff0000u)));
}

static OSCAR__NEON void oscar__load_neon(oscar_type type, const void *in, size_t n, float *out)
{
    const unsigned char *p = (const unsigned char *)in;
    size_t i;
    if (oscar__type_size(type) == 4) memcpy(out, in, n * sizeof *out);
    if (type == OSCAR_BF16)
        for (i = 0; i < n; i += 4) vst1q_f32(out + i, oscar__widen_bf16_neon(p + 2 * i));
    if (type == OSCAR_F16)
        for (i = 0; i < n; i += 4) vst1q_f32(out + i, oscar__widen_f16_neon(p + 2 * i));
}

static OSCAR__NEON void oscar__load_rounded_neon(oscar_type type, const void *in, oscar_type to, size_t n, float *out)
{
    const float *x = (const float *)in;
    size_t i;
    if (oscar__type_size(to) == 4 || type == to) { oscar__load_neon(type, in, n, out); return; }
    if (oscar__type_size(type) == 2) { oscar__load_neon(type, in, n, out); x = out; }
    if (to == OSCAR_BF16)
        for (i = 0; i < n; i += 4) vst1q_f32(out + i, oscar__round_bf16_neon(vld1q_f32(x + i)));
    else
        for (i = 0; i < n; i += 4) vst1q_f32(out + i, oscar__round_f16_neon(vld1q_f32(x + i)));
}

static OSCAR__NEON void oscar__store_neon(oscar_type type, const float *in, size_t n, void *out)
{
    unsigned char *p = (unsigned char *)out;
    size_t i;
    if (oscar__type_size(type) == 4) memcpy(out, in, n * sizeof *in);
    if (type == OSCAR_BF16)
        for (i = 0; i < n; i += 4) oscar__put_bf16_neon(p + 2 * i, oscar__round_bf16_neon(vld1q_f32(in + i)));
    if (type == OSCAR_F16)
        for (i = 0; i < n; i += 4) oscar__put_f16_neon(p + 2 * i, vld1q_f32(in + i));
}

static OSCAR__NEON void oscar__centre_neon(int dim, const float *x, const float *mean, float *out)
{
    int i;
    for (i = 0; i < dim; i += 4) vst1q_f32(out + i, vsubq_f32(vld1q_f32(x + i), vld1q_f32(mean + i)));
}

/* S(x, y) of one row. */
static OSCAR__NEON float oscar__sum_products_neon(int n, const float *x, const float *y)
{
    float32x4_t p = vdupq_n_f32(0), q = p, r = p, s = p;
    float32x2_t two;
    int i;
    for (i = 0; i < n; i += 16) {
        p = vfmaq_f32(p, vld1q_f32(x + i), vld1q_f32(y + i));
        q = vfmaq_f32(q, vld1q_f32(x + i + 4), vld1q_f32(y + i + 4));
        r = vfmaq_f32(r, vld1q_f32(x + i + 8), vld1q_f32(y + i + 8));
        s = vfmaq_f32(s, vld1q_f32(x + i + 12), vld1q_f32(y + i + 12));
    }
    p = vaddq_f32(vaddq_f32(p, r), vaddq_f32(q, s));
    two = vadd_f32(vget_low_f32(p), vget_high_f32(p));
    return vget_lane_f32(vpadd_f32(two, two), 0);
}

/* (a, b) -> (a + b, a - b) */
#define OSCAR__PAIR(a, b) do { float32x4_t pair_ = a; a = vaddq_f32(pair_, b); b = vsubq_f32(pair_, b); } while (0)
#define OSCAR__PAIRS4(a, b, c, d) do { \
    OSCAR__PAIR(a, b); OSCAR__PAIR(c, d); OSCAR__PAIR(a, c); OSCAR__PAIR(b, d); } while (0)

/* The strides inside a vector. (a, b) -> (a + b, a - b) is one fma by +-1, which does not round twice. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__fwht_vector_neon(float32x4_t x)
{
    static const float signs[8] = { 1, -1, 1, -1, 1, 1, -1, -1 };
    x = vfmaq_f32(vrev64q_f32(x), x, vld1q_f32(signs));
    x = vfmaq_f32(vextq_f32(x, x, 2), x, vld1q_f32(signs + 4));
    return x;
}

/* `count` vectors side by side, 1, 2, 4 or 8: the strides up to all of them. count is a constant at each call. */
OSCAR__INLINE OSCAR__NEON void oscar__fwht_near_neon(int count, float *x, float32x4_t scale)
{
    float32x4_t a, b, c, d, e, f, g, h;
    a = b = c = d = e = f = g = h = oscar__fwht_vector_neon(vld1q_f32(x));
    if (count > 1) b = oscar__fwht_vector_neon(vld1q_f32(x + 4));
    if (count > 2) {
        c = oscar__fwht_vector_neon(vld1q_f32(x + 2 * 4));
        d = oscar__fwht_vector_neon(vld1q_f32(x + 3 * 4));
    }
    if (count > 4) {
        e = oscar__fwht_vector_neon(vld1q_f32(x + 4 * 4));
        f = oscar__fwht_vector_neon(vld1q_f32(x + 5 * 4));
        g = oscar__fwht_vector_neon(vld1q_f32(x + 6 * 4));
        h = oscar__fwht_vector_neon(vld1q_f32(x + 7 * 4));
    }
    if (count == 2) OSCAR__PAIR(a, b);
    if (count > 2) OSCAR__PAIRS4(a, b, c, d);
    if (count > 4) {
        OSCAR__PAIRS4(e, f, g, h);
        OSCAR__PAIR(a, e); OSCAR__PAIR(b, f); OSCAR__PAIR(c, g); OSCAR__PAIR(d, h);
    }
    vst1q_f32(x, vmulq_f32(a, scale));
    if (count > 1) vst1q_f32(x + 4, vmulq_f32(b, scale));
    if (count > 2) {
        vst1q_f32(x + 2 * 4, vmulq_f32(c, scale));
        vst1q_f32(x + 3 * 4, vmulq_f32(d, scale));
    }
    if (count > 4) {
        vst1q_f32(x + 4 * 4, vmulq_f32(e, scale));
        vst1q_f32(x + 5 * 4, vmulq_f32(f, scale));
        vst1q_f32(x + 6 * 4, vmulq_f32(g, scale));
        vst1q_f32(x + 7 * 4, vmulq_f32(h, scale));
    }
}

/* The two strides `stride` and 2 stride of a block, or (two = 0) one. */
OSCAR__INLINE OSCAR__NEON void oscar__fwht_far_neon(int two, int stride, float *x, float32x4_t scale)
{
    int i;
    for (i = 0; i < stride; i += 4) {
        float *p = x + i;
        float32x4_t a = vld1q_f32(p), b = vld1q_f32(p + stride), c = a, d = b;
        if (two) {
            c = vld1q_f32(p + 2 * stride);
            d = vld1q_f32(p + 3 * stride);
            OSCAR__PAIRS4(a, b, c, d);
            vst1q_f32(p + 2 * stride, vmulq_f32(c, scale));
            vst1q_f32(p + 3 * stride, vmulq_f32(d, scale));
        } else OSCAR__PAIR(a, b);
        vst1q_f32(p, vmulq_f32(a, scale));
        vst1q_f32(p + stride, vmulq_f32(b, scale));
    }
}

/* A block of more than 8 vectors: 8 at a time, then one stride if their number is odd, then two at a time. Only the
   last pass scales; a product with 1 is exact. */
OSCAR__INLINE OSCAR__NEON void oscar__fwht_block_neon(int block, float *x, float32x4_t scale)
{
    const float32x4_t one = vdupq_n_f32(1.0f);
    int stride = 8 * 4, left = 0, i;
    for (i = stride; i < block; i *= 2) left++;
    for (i = 0; i < block; i += stride) oscar__fwht_near_neon(8, x + i, one);
    if (left % 2) {
        for (i = 0; i < block; i += 2 * stride) oscar__fwht_far_neon(0, stride, x + i, left == 1 ? scale : one);
        stride *= 2;
    }
    for (; stride < block; stride *= 4)
        for (i = 0; i < block; i += 4 * stride)
            oscar__fwht_far_neon(1, stride, x + i, 4 * stride == block ? scale : one);
}

/* Blocks of less than a vector are left to the scalar code. */
static OSCAR__NEON void oscar__fwht_scaled_neon(int n, float factor, float *x)
{
    const float32x4_t scale = vdupq_n_f32(factor);
    int block = oscar__pow2_divisor(n), i;
    for (i = 0; i < n; i += block) {
        if (block == 4) oscar__fwht_near_neon(1, x + i, scale);
        else if (block == 2 * 4) oscar__fwht_near_neon(2, x + i, scale);
        else if (block == 4 * 4) oscar__fwht_near_neon(4, x + i, scale);
        else if (block == 8 * 4) oscar__fwht_near_neon(8, x + i, scale);
        else oscar__fwht_block_neon(block, x + i, scale);
    }
}

static OSCAR__NEON void oscar__fwht_neon(int n, size_t rows, const float *in, float *out)
{
    if (oscar__pow2_divisor(n) < 4) {
        oscar__fwht_rows(n, rows, in, out);
        return;
    }
    for (; rows; rows--, in += n, out += n) {
        if (in != out) memcpy(out, in, (size_t)n * sizeof *out);
        oscar__fwht_scaled_neon(n, oscar__fwht_scale(n), out);
    }
}

static OSCAR__NEON void oscar__butterfly_neon(int n, float *x)
{
    if (oscar__pow2_divisor(n) < 4) oscar__butterfly(n, x);
    else oscar__fwht_scaled_neon(n, 1.0f, x);
}

#undef OSCAR__PAIR
#undef OSCAR__PAIRS4

/* 4 rows of x by 4 columns. sum: [4 rows]. */
OSCAR__INLINE OSCAR__NEON void oscar__rotate_four_neon(float32x4_t w, float s0, float s1, float s2, float s3,
                                                       float32x4_t *sum)
{
    sum[0] = vfmaq_n_f32(sum[0], w, s0);
    sum[1] = vfmaq_n_f32(sum[1], w, s1);
    sum[2] = vfmaq_n_f32(sum[2], w, s2);
    sum[3] = vfmaq_n_f32(sum[3], w, s3);
}

/* Sums are written one by one: an array that a loop goes over stays in memory. */
OSCAR__INLINE OSCAR__NEON void oscar__rotate_put_neon(const float32x4_t *sum, int at, float *const *out)
{
    vst1q_f32(out[0] + at, sum[0]);
    vst1q_f32(out[1] + at, sum[1]);
    vst1q_f32(out[2] + at, sum[2]);
    vst1q_f32(out[3] + at, sum[3]);
}

/* 4 rows of x by `width` vectors of columns, 1 or 4; width is a constant at each call. */
OSCAR__INLINE OSCAR__NEON void oscar__rotate_panel_neon(int width, int n, const float *m, const float *const *x,
                                                        float *const *out)
{
    const float *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    float32x4_t a[4], b[4], c[4], d[4];
    int i;
    a[0] = a[1] = a[2] = a[3] = vdupq_n_f32(0);
    b[0] = b[1] = b[2] = b[3] = c[0] = c[1] = c[2] = c[3] = d[0] = d[1] = d[2] = d[3] = a[0];
    for (i = 0; i < n; i++, m += n) {
        float s0 = x0[i], s1 = x1[i], s2 = x2[i], s3 = x3[i];
        oscar__rotate_four_neon(vld1q_f32(m), s0, s1, s2, s3, a);
        if (width > 1) oscar__rotate_four_neon(vld1q_f32(m + 4), s0, s1, s2, s3, b);
        if (width > 1) oscar__rotate_four_neon(vld1q_f32(m + 8), s0, s1, s2, s3, c);
        if (width > 1) oscar__rotate_four_neon(vld1q_f32(m + 12), s0, s1, s2, s3, d);
    }
    oscar__rotate_put_neon(a, 0, out);
    if (width > 1) oscar__rotate_put_neon(b, 4, out);
    if (width > 1) oscar__rotate_put_neon(c, 8, out);
    if (width > 1) oscar__rotate_put_neon(d, 12, out);
}

/* Panels of columns outside, so that a panel of m stays in the nearest cache; the last row stands in for
   missing ones. */
static OSCAR__NEON void oscar__rotate_neon(int n, int rows, const float *m, const float *x, float *out)
{
    const size_t row = (size_t)n;
    int j = 0, r, k, i, width;
    for (; j + 4 <= n; j += width * 4) {
        width = j + 16 <= n ? 4 : 1;
        for (r = 0; r < rows; r += 4) {
            const float *from[4];
            float *to[4];
            for (k = 0; k < 4; k++) {
                size_t at = row * (size_t)(r + k < rows ? r + k : rows - 1);
                from[k] = x + at;
                to[k] = out + at + j;
            }
            if (width == 4) oscar__rotate_panel_neon(4, n, m + j, from, to);
            else oscar__rotate_panel_neon(1, n, m + j, from, to);
        }
    }
    for (; j < n; j++)   /* less than a vector is left */
        for (r = 0; r < rows; r++) {
            float sum = 0.0f;
            for (i = 0; i < n; i++) sum = fmaf(x[row * (size_t)r + (size_t)i], m[row * (size_t)i + (size_t)j], sum);
            out[row * (size_t)r + (size_t)j] = sum;
        }
}

/* -- rows: page mean (3.12) -- */

/* z_j: one chain over the tokens. dim: a multiple of 16. */
static OSCAR__NEON void oscar__mean_sum_neon(int tokens, int dim, const float *x, float *z)
{
    const float32x4_t share = vdupq_n_f32((float)(1.0 / tokens));
    const size_t row = (size_t)dim;
    int t, j;
    for (j = 0; j < dim; j += 16) {
        const float *p = x + j;
        float32x4_t a = vdupq_n_f32(0), b = a, c = a, d = a;
        for (t = 0; t < tokens; t++, p += row) {
            a = vfmaq_f32(a, vld1q_f32(p), share);
            b = vfmaq_f32(b, vld1q_f32(p + 4), share);
            c = vfmaq_f32(c, vld1q_f32(p + 8), share);
            d = vfmaq_f32(d, vld1q_f32(p + 12), share);
        }
        vst1q_f32(z + j, a);
        vst1q_f32(z + j + 4, b);
        vst1q_f32(z + j + 8, c);
        vst1q_f32(z + j + 12, d);
    }
}

static OSCAR__NEON void oscar__mean_levels_neon(int dim, const float *z, float s, float *n, unsigned char *bytes)
{
    const float32x4_t top = vdupq_n_f32(127.5f), bottom = vdupq_n_f32(-127.5f), half = vdupq_n_f32(0.5f);
    int j;
    for (j = 0; j < dim; j += 4) {
        float32x4_t level = half;
        if (s > 0) level = vaddq_f32(oscar__floor_neon(vdivq_f32(vld1q_f32(z + j), vdupq_n_f32(s))), half);
        level = vminq_f32(top, vmaxq_f32(bottom, level));
        vst1q_f32(n + j, level);
        oscar__put_codes_neon(bytes + j, vcvtq_s32_f32(vaddq_f32(level, top)));
    }
}

/* -- tiles: rows side by side in the lanes of vectors, [channel][16 rows] (3.11) -- */

/* Every step is that of the scalar code for one row, for 4 rows at a time. x is always [channels][16], from the lane
   on where the 4 rows start. */

/* 4 rows from `first` on; the last of all `count` rows stands in for those after it. */
static OSCAR__NEON void oscar__to_lanes_neon(int dim, int first, int count, const float *rows, float *x)
{
    const float *row[4];
    int c, t;
    for (t = 0; t < 4; t++)
        row[t] = rows + (size_t)(first + t < count ? first + t : count - 1) * (size_t)dim;
    for (c = 0; c < dim; c += 4, x += 4 * OSCAR__TILE) {
        float32x4x2_t ab = vtrnq_f32(vld1q_f32(row[0] + c), vld1q_f32(row[1] + c));
        float32x4x2_t de = vtrnq_f32(vld1q_f32(row[2] + c), vld1q_f32(row[3] + c));
        vst1q_f32(x, vcombine_f32(vget_low_f32(ab.val[0]), vget_low_f32(de.val[0])));
        vst1q_f32(x + OSCAR__TILE, vcombine_f32(vget_low_f32(ab.val[1]), vget_low_f32(de.val[1])));
        vst1q_f32(x + 2 * OSCAR__TILE, vcombine_f32(vget_high_f32(ab.val[0]), vget_high_f32(de.val[0])));
        vst1q_f32(x + 3 * OSCAR__TILE, vcombine_f32(vget_high_f32(ab.val[1]), vget_high_f32(de.val[1])));
    }
}

/* The end of S: the tree over 16 chains. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__tree_neon(float32x4_t *chain)
{
    int l, step;
    for (step = OSCAR__LANES / 2; step; step /= 2)
        for (l = 0; l < step; l++) chain[l] = vaddq_f32(chain[l], chain[l + step]);
    return chain[0];
}

static OSCAR__NEON float32x4_t oscar__lane_sum_neon(int n, const float *x, const float *y)
{
    float32x4_t chain[OSCAR__LANES];
    int l, c;
    for (l = 0; l < OSCAR__LANES; l += 4) {
        float32x4_t p0 = vdupq_n_f32(0), p1 = p0, p2 = p0, p3 = p0;
        for (c = l * OSCAR__TILE; c < n * OSCAR__TILE; c += OSCAR__LANES * OSCAR__TILE) {
            const float *a = x + c, *b = y + c;
            p0 = vfmaq_f32(p0, vld1q_f32(a), vld1q_f32(b));
            p1 = vfmaq_f32(p1, vld1q_f32(a + OSCAR__TILE), vld1q_f32(b + OSCAR__TILE));
            p2 = vfmaq_f32(p2, vld1q_f32(a + 2 * OSCAR__TILE), vld1q_f32(b + 2 * OSCAR__TILE));
            p3 = vfmaq_f32(p3, vld1q_f32(a + 3 * OSCAR__TILE), vld1q_f32(b + 3 * OSCAR__TILE));
        }
        chain[l] = p0;
        chain[l + 1] = p1;
        chain[l + 2] = p2;
        chain[l + 3] = p3;
    }
    return oscar__tree_neon(chain);
}

/* Subtracts the page mean from the rows that it makes shorter. lane: of the tile, of the first row. */
static OSCAR__NEON void oscar__subtract_mean_neon(const oscar__encoder *e, oscar__tile *tile, int lane, float *x)
{
    const float32x4_t s = vdupq_n_f32(e->mean_scale);
    float32x4_t chain_x[OSCAR__LANES], chain_y[OSCAR__LANES], xx, yy;
    uint32x4_t shorter;
    int l, c;
    for (l = 0; l < OSCAR__LANES; l++) {
        float32x4_t px = vdupq_n_f32(0), py = px;
        for (c = l; c < e->dim; c += OSCAR__LANES) {
            float32x4_t one = vld1q_f32(x + c * OSCAR__TILE), y = vfmsq_f32(one, vdupq_n_f32(e->mean[c]), s);
            px = vfmaq_f32(px, one, one);
            py = vfmaq_f32(py, y, y);
        }
        chain_x[l] = px;
        chain_y[l] = py;
    }
    xx = oscar__tree_neon(chain_x);
    yy = oscar__tree_neon(chain_y);
    shorter = oscar__less_neon(yy, xx);
    tile->kept |= (~oscar__bits_neon(shorter) & 0xfu) << lane;
    if (e->overflow == OSCAR__REFUSE) {
        tile->bad |= (~oscar__bits_neon(oscar__finite_lanes_neon(xx)) & 0xfu) << lane;
        tile->bad |= (~oscar__bits_neon(oscar__finite_lanes_neon(yy)) & 0xfu) << lane;
    }
    for (c = 0; c < e->dim; c++) {
        float32x4_t one = vld1q_f32(x + c * OSCAR__TILE), y = vfmsq_f32(one, vdupq_n_f32(e->mean[c]), s);
        vst1q_f32(x + c * OSCAR__TILE, oscar__pick_neon(shorter, y, one));
    }
}

/* Rounds scales or minima to the metadata type. Returns the lanes that fit; the others are saturated. */
static OSCAR__NEON uint32x4_t oscar__metadata_round_neon(oscar_type type, float32x4_t *x)
{
    const float32x4_t zero = vdupq_n_f32(0), limit = vdupq_n_f32(type == OSCAR_F32 ? FLT_MAX : 65504.0f);
    float32x4_t rounded = type == OSCAR_F32 ? *x : oscar__round_f16_neon(*x), capped;
    uint32x4_t fits = oscar__at_least_neon(limit, oscar__abs_neon(rounded));
    capped = oscar__pick_neon(oscar__less_neon(zero, rounded), limit, zero);
    capped = oscar__pick_neon(oscar__less_neon(rounded, zero), vsubq_f32(zero, limit), capped);
    *x = oscar__pick_neon(fits, rounded, capped);
    return fits;
}

/* The same for numbers of a tile's metadata. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__metadata_lanes_neon(const oscar__encoder *e, oscar__tile *tile, int lane,
                                                                 float32x4_t x)
{
    uint32x4_t fits = oscar__metadata_round_neon(e->codec->metadata, &x);
    if (e->overflow == OSCAR__REFUSE) tile->bad |= (~oscar__bits_neon(fits) & 0xfu) << lane;
    return x;
}

/* How many of dim magnitudes are above `middle`. */
OSCAR__INLINE OSCAR__NEON int32x4_t oscar__count_above_neon(int dim, const float *magnitude, int32x4_t middle)
{
    int32x4_t a = vdupq_n_s32(0), b = a;
    int c;
    for (c = 0; c < dim; c += 2) {
        const float *p = magnitude + c * OSCAR__TILE;
        a = oscar__add_if_neon(a, oscar__above_neon(vreinterpretq_s32_f32(vld1q_f32(p)), middle));
        b = oscar__add_if_neon(b, oscar__above_neon(vreinterpretq_s32_f32(vld1q_f32(p + OSCAR__TILE)), middle));
    }
    return vaddq_s32(a, b);
}

/* The smaller of a and b + c, of numbers without sign. */
OSCAR__INLINE OSCAR__NEON int32x4_t oscar__smaller_neon(int32x4_t a, int32x4_t b, int32x4_t c)
{
    uint32x4_t sum = vaddq_u32(vreinterpretq_u32_s32(b), vreinterpretq_u32_s32(c));
    return vreinterpretq_s32_u32(vminq_u32(vreinterpretq_u32_s32(a), sum));
}

/* The magnitude of a rank in each row, by bisection on its bits. It starts at a guess and moves away from it in steps
   that double, and it ends early where a bound has just rank + 1 magnitudes below: the largest of them is it. */
static OSCAR__NEON float32x4_t oscar__rank_neon(int dim, int rank, const float *magnitude, int32x4_t guess)
{
    const int32x4_t one = vdupq_n_s32(1), above_rank = vdupq_n_s32(dim - rank - 1);
    int32x4_t low = vdupq_n_s32(0), high = vdupq_n_s32(0x7f800000), step = vdupq_n_s32(1 << 19);
    int32x4_t middle = guess, found = low;
    int c;
    while (oscar__bits_neon(oscar__above_neon(high, low))) {
        int32x4_t above = oscar__count_above_neon(dim, magnitude, middle), centre;
        uint32x4_t too_low = oscar__above_neon(above, above_rank), near_enough = oscar__above_neon(above_rank, above);
        high = oscar__pick_int_neon(too_low, high, middle);
        low = oscar__pick_int_neon(too_low, vaddq_s32(middle, one),
                                  oscar__pick_int_neon(near_enough, low, middle));
        centre = vaddq_s32(low, vshrq_n_s32(vsubq_s32(high, low), 1));
        middle = oscar__pick_int_neon(too_low, oscar__smaller_neon(centre, low, step),
                                     vmaxq_s32(centre, vsubq_s32(high, step)));
        step = oscar__smaller_neon(vdupq_n_s32(1 << 30), step, step);
    }
    for (c = 0; c < dim; c++) {
        int32x4_t one_magnitude = vreinterpretq_s32_f32(vld1q_f32(magnitude + c * OSCAR__TILE));
        uint32x4_t above = oscar__above_neon(one_magnitude, low);
        found = oscar__pick_int_neon(above, found, vmaxq_s32(found, one_magnitude));
    }
    return vreinterpretq_f32_s32(found);
}

/* CLIP: clamps rows to the magnitude of a rank. guess: about where it is, and then where it was. */
static OSCAR__NEON void oscar__clamp_neon(int dim, int rank, float *x, float *magnitude, int32x4_t *guess)
{
    float32x4_t tau, minus;
    int c;
    for (c = 0; c < dim; c++)
        vst1q_f32(magnitude + c * OSCAR__TILE, oscar__abs_neon(vld1q_f32(x + c * OSCAR__TILE)));
    tau = oscar__rank_neon(dim, rank, magnitude, *guess);
    minus = vsubq_f32(vdupq_n_f32(0), tau);
    for (c = 0; c < dim; c++) {
        float32x4_t one = vminq_f32(tau, vld1q_f32(x + c * OSCAR__TILE));
        vst1q_f32(x + c * OSCAR__TILE, vmaxq_f32(minus, one));
    }
    *guess = vreinterpretq_s32_f32(tau);
}

/* CLIP, codes of one group of n channels from rounded scale and minimum. bits is a constant at each call. */
OSCAR__INLINE OSCAR__NEON void oscar__clip_codes_neon(int n, int bits, const float *x, float32x4_t s, float32x4_t lo,
                                                      unsigned char *codes)
{
    const uint32x4_t positive = oscar__less_neon(vdupq_n_f32(0), s);
    const int32x4_t none = vdupq_n_s32(0);
    const float32x4_t half = vdupq_n_f32(0.5f), divisor = oscar__pick_neon(positive, s, half);
    const float32x4_t t0 = vmulq_f32(half, s), t1 = vmulq_f32(vdupq_n_f32(1.5f), s);
    const float32x4_t t2 = vmulq_f32(vdupq_n_f32(2.5f), s);
    int c;
    for (c = 0; c < n; c++) {
        float32x4_t y = vsubq_f32(vld1q_f32(x + c * OSCAR__TILE), lo);
        int32x4_t code;
        if (bits == 2) {
            code = oscar__add_if_neon(none, oscar__at_least_neon(y, t0));
            code = oscar__add_if_neon(code, oscar__at_least_neon(y, t1));
            code = oscar__add_if_neon(code, oscar__at_least_neon(y, t2));
        } else {
            float32x4_t level = vaddq_f32(vdivq_f32(y, divisor), half);
            level = vminq_f32(vdupq_n_f32(15.0f), vmaxq_f32(level, vdupq_n_f32(0)));
            code = vcvtq_s32_f32(level);
        }
        oscar__put_codes_neon(codes + c * OSCAR__TILE, oscar__pick_int_neon(positive, code, none));
    }
}

/* CLIP, one group of n channels of clamped rows. Minimum and maximum may be a zero of either sign until 0 is added. */
static OSCAR__NEON void oscar__fit_clip_neon(const oscar__encoder *e, oscar__tile *tile, int lane, int g,
                                             const float *x)
{
    const float32x4_t zero = vdupq_n_f32(0);
    int n = e->codec->group, c, at = g * OSCAR__TILE + lane;
    float32x4_t lo = vld1q_f32(x), hi = lo, lo2 = lo, hi2 = lo, s;
    for (c = 0; c < n; c += 2) {
        float32x4_t a = vld1q_f32(x + c * OSCAR__TILE), b = vld1q_f32(x + (c + 1) * OSCAR__TILE);
        lo = vminq_f32(a, lo);
        hi = vmaxq_f32(a, hi);
        lo2 = vminq_f32(b, lo2);
        hi2 = vmaxq_f32(b, hi2);
    }
    lo = vaddq_f32(vminq_f32(lo, lo2), zero);
    hi = vaddq_f32(vmaxq_f32(hi, hi2), zero);
    s = vdivq_f32(vsubq_f32(hi, lo), vdupq_n_f32(e->codec->bits == 2 ? 3.0f : 15.0f));
    s = oscar__metadata_lanes_neon(e, tile, lane, s);
    lo = oscar__metadata_lanes_neon(e, tile, lane, lo);
    vst1q_f32(tile->scale + at, s);
    vst1q_f32(tile->minimum + at, lo);
    if (e->codec->bits == 2) oscar__clip_codes_neon(n, 2, x, s, lo, tile->codes + g * n * OSCAR__TILE + lane);
    else oscar__clip_codes_neon(n, 4, x, s, lo, tile->codes + g * n * OSCAR__TILE + lane);
}

/* UNBIASED, 2 bits: S(x, u) and S(u, u) of the four steps t. |u| is 1.5 where x >= t or x < -t, else 0.5: an integer
   compare of |x|, less one unit where x < 0. S(u, u) is exact in any order, so it is counted. */
static OSCAR__NEON void oscar__try_steps2_neon(int n, const float *x, const float32x4_t *t, float32x4_t *xu,
                                               float32x4_t *uu)
{
    float32x4_t chain[4][OSCAR__LANES];
    int32x4_t t0 = vreinterpretq_s32_f32(t[0]), t1 = vreinterpretq_s32_f32(t[1]), t2 = vreinterpretq_s32_f32(t[2]);
    int32x4_t t3 = vreinterpretq_s32_f32(t[3]), one = vdupq_n_s32(1), many[4];
    int l, c, a;
    t0 = vsubq_s32(t0, one);
    t1 = vsubq_s32(t1, one);
    t2 = vsubq_s32(t2, one);
    t3 = vsubq_s32(t3, one);
    for (a = 0; a < 4; a++) many[a] = vdupq_n_s32(0);
    for (l = 0; l < OSCAR__LANES; l++) {
        float32x4_t p0 = vdupq_n_f32(0), p1 = p0, p2 = p0, p3 = p0;
        int32x4_t n0 = many[0], n1 = many[1], n2 = many[2], n3 = many[3];
        for (c = l; c < n; c += OSCAR__LANES) {
            float32x4_t value = vld1q_f32(x + c * OSCAR__TILE), size = oscar__abs_neon(value);
            int32x4_t key = vsraq_n_s32(vreinterpretq_s32_f32(size), vreinterpretq_s32_f32(value), 31);
            uint32x4_t m0 = oscar__above_neon(key, t0), m1 = oscar__above_neon(key, t1);
            uint32x4_t m2 = oscar__above_neon(key, t2), m3 = oscar__above_neon(key, t3);
            p0 = vfmaq_f32(p0, size, oscar__level2_neon(m0));
            p1 = vfmaq_f32(p1, size, oscar__level2_neon(m1));
            p2 = vfmaq_f32(p2, size, oscar__level2_neon(m2));
            p3 = vfmaq_f32(p3, size, oscar__level2_neon(m3));
            n0 = oscar__add_if_neon(n0, m0);
            n1 = oscar__add_if_neon(n1, m1);
            n2 = oscar__add_if_neon(n2, m2);
            n3 = oscar__add_if_neon(n3, m3);
        }
        chain[0][l] = p0;
        chain[1][l] = p1;
        chain[2][l] = p2;
        chain[3][l] = p3;
        many[0] = n0;
        many[1] = n1;
        many[2] = n2;
        many[3] = n3;
    }
    for (a = 0; a < 4; a++) {
        int32x4_t quarters = vaddq_s32(vshlq_n_s32(many[a], 3), vdupq_n_s32(n));
        xu[a] = oscar__tree_neon(chain[a]);
        uu[a] = vmulq_f32(vcvtq_f32_s32(quarters), vdupq_n_f32(0.25f));
    }
}

/* The level nearest to x / t, 4 bits. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__level4_neon(float32x4_t x, float32x4_t t)
{
    float32x4_t level = vaddq_f32(oscar__floor_neon(vdivq_f32(x, t)), vdupq_n_f32(0.5f));
    return vminq_f32(vdupq_n_f32(7.5f), vmaxq_f32(vdupq_n_f32(-7.5f), level));
}

/* The same for 4 bits. */
static OSCAR__NEON void oscar__try_steps4_neon(int n, const float *x, const float32x4_t *t, float32x4_t *xu,
                                               float32x4_t *uu)
{
    float32x4_t chain[OSCAR__LANES];
    int a, l, c;
    for (a = 0; a < 4; a++) {
        uu[a] = vdupq_n_f32(0);
        for (l = 0; l < OSCAR__LANES; l++) {
            float32x4_t p = vdupq_n_f32(0);
            for (c = l; c < n; c += OSCAR__LANES) {
                float32x4_t value = vld1q_f32(x + c * OSCAR__TILE), u = oscar__level4_neon(value, t[a]);
                p = vfmaq_f32(p, value, u);
                uu[a] = vfmaq_f32(uu[a], u, u);
            }
            chain[l] = p;
        }
        xu[a] = oscar__tree_neon(chain);
    }
}

/* UNBIASED, codes of one group with step t, 0 in the lanes that are not active. bits is a constant at each call. */
OSCAR__INLINE OSCAR__NEON void oscar__unbiased_codes_neon(int n, int bits, const float *x, float32x4_t t,
                                                          uint32x4_t active, unsigned char *codes)
{
    const float32x4_t zero = vdupq_n_f32(0), minus = vsubq_f32(zero, t), centre = vdupq_n_f32(7.5f);
    const int32x4_t none = vdupq_n_s32(0);
    int c;
    for (c = 0; c < n; c++) {
        float32x4_t value = vld1q_f32(x + c * OSCAR__TILE);
        int32x4_t code;
        if (bits == 2) {
            code = oscar__add_if_neon(none, oscar__at_least_neon(value, minus));
            code = oscar__add_if_neon(code, oscar__at_least_neon(value, zero));
            code = oscar__add_if_neon(code, oscar__at_least_neon(value, t));
        } else code = vcvtq_s32_f32(vaddq_f32(oscar__level4_neon(value, t), centre));
        oscar__put_codes_neon(codes + c * OSCAR__TILE, oscar__pick_int_neon(active, code, none));
    }
}

/* UNBIASED, one group of n channels: codes, and the scales before rounding. */
static OSCAR__NEON float32x4_t oscar__fit_unbiased_neon(int n, int bits, const float *x, unsigned char *codes)
{
    const float32x4_t zero = vdupq_n_f32(0), one = vdupq_n_f32(1.0f);
    float32x4_t xx = oscar__lane_sum_neon(n, x, x), r = vsqrtq_f32(vdivq_f32(xx, vdupq_n_f32((float)n)));
    float32x4_t t[4], xu[4], uu[4], best = zero, best_xu = zero, best_t = one, scale;
    uint32x4_t finite = oscar__finite_lanes_neon(xx), active, positive;
    int a;
    for (a = 0; a < 4; a++) t[a] = vmulq_f32(r, vdupq_n_f32(oscar__steps[bits == 4][a]));
    active = oscar__both_neon(finite, oscar__less_neon(zero, t[0]));
    for (a = 0; a < 4; a++) t[a] = oscar__pick_neon(active, t[a], one);
    if (bits == 2) oscar__try_steps2_neon(n, x, t, xu, uu);
    else oscar__try_steps4_neon(n, x, t, xu, uu);
    for (a = 0; a < 4; a++) {
        float32x4_t score = vdivq_f32(vmulq_f32(xu[a], xu[a]), uu[a]);
        uint32x4_t better = oscar__less_neon(best, score);
        best = a ? oscar__pick_neon(better, score, best) : score;
        best_xu = a ? oscar__pick_neon(better, xu[a], best_xu) : xu[0];
        best_t = a ? oscar__pick_neon(better, t[a], best_t) : t[0];
    }
    if (bits == 2) oscar__unbiased_codes_neon(n, 2, x, best_t, active, codes);
    else oscar__unbiased_codes_neon(n, 4, x, best_t, active, codes);
    positive = oscar__both_neon(active, oscar__less_neon(zero, best_xu));
    scale = oscar__pick_neon(positive, vdivq_f32(xx, oscar__pick_neon(positive, best_xu, one)), zero);
    return oscar__pick_neon(finite, scale, xx);
}

/* -- tiles: refining (3.11) -- */

/* out_j = fmaf(from_i, M[first + i][j], ...) over i = 0 .. count - 1 in order, from +0 or (add) from out_j, for j from
   `start` on; of two columns. from: [count][16]. */
static OSCAR__NEON void oscar__lane_product_neon(int dim, const float *m, int first, int count, int start,
                                                 const float *from0, const float *from1, float *out0, float *out1,
                                                 int add)
{
    int i, j;
    for (j = start; j < dim; j += 4) {
        const float *w = m + first * dim + j;
        float *p = out0 + j * OSCAR__TILE, *q = out1 + j * OSCAR__TILE;
        float32x4_t a0 = vdupq_n_f32(0), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
        if (add) {
            a0 = vld1q_f32(p);
            a1 = vld1q_f32(p + OSCAR__TILE);
            a2 = vld1q_f32(p + 2 * OSCAR__TILE);
            a3 = vld1q_f32(p + 3 * OSCAR__TILE);
            b0 = vld1q_f32(q);
            b1 = vld1q_f32(q + OSCAR__TILE);
            b2 = vld1q_f32(q + 2 * OSCAR__TILE);
            b3 = vld1q_f32(q + 3 * OSCAR__TILE);
        }
        for (i = 0; i < count; i++, w += dim) {
            float32x4_t x = vld1q_f32(from0 + i * OSCAR__TILE), y = vld1q_f32(from1 + i * OSCAR__TILE);
            float32x4_t four = vld1q_f32(w);
            a0 = vfmaq_laneq_f32(a0, x, four, 0);
            b0 = vfmaq_laneq_f32(b0, y, four, 0);
            a1 = vfmaq_laneq_f32(a1, x, four, 1);
            b1 = vfmaq_laneq_f32(b1, y, four, 1);
            a2 = vfmaq_laneq_f32(a2, x, four, 2);
            b2 = vfmaq_laneq_f32(b2, y, four, 2);
            a3 = vfmaq_laneq_f32(a3, x, four, 3);
            b3 = vfmaq_laneq_f32(b3, y, four, 3);
        }
        vst1q_f32(p, a0);
        vst1q_f32(p + OSCAR__TILE, a1);
        vst1q_f32(p + 2 * OSCAR__TILE, a2);
        vst1q_f32(p + 3 * OSCAR__TILE, a3);
        vst1q_f32(q, b0);
        vst1q_f32(q + OSCAR__TILE, b1);
        vst1q_f32(q + 2 * OSCAR__TILE, b2);
        vst1q_f32(q + 3 * OSCAR__TILE, b3);
    }
}

/* One channel of a column takes its best levels. Returns what that adds to the reading, 0 where nothing moves (which
   then changes no number that is used: at most the sign of a zero gradient). */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__refine_step_neon(const oscar__column *r, int c, int group, float diagonal,
                                                              float limit)
{
    const float32x4_t zero = vdupq_n_f32(0), one = vdupq_n_f32(1.0f), centre = vdupq_n_f32(limit);
    float32x4_t s = vld1q_f32(r->s + c / group * OSCAR__TILE), u = vld1q_f32(r->u + c * OSCAR__TILE);
    float32x4_t curvature = vmulq_f32(s, vdupq_n_f32(diagonal)), level, step;
    uint32x4_t active = oscar__both_neon(oscar__less_neon(zero, s), oscar__less_neon(zero, curvature)), moves;
    level = vdivq_f32(vld1q_f32(r->gradient + c * OSCAR__TILE), oscar__pick_neon(active, curvature, one));
    level = vaddq_f32(oscar__floor_neon(vsubq_f32(u, level)), vdupq_n_f32(0.5f));
    level = vminq_f32(centre, vmaxnmq_f32(level, vsubq_f32(zero, centre)));   /* the lowest one for a NaN */
    step = vmulq_f32(s, vsubq_f32(level, u));
    moves = oscar__both_neon(active, oscar__less_neon(zero, oscar__abs_neon(step)));
    vst1q_f32(r->u + c * OSCAR__TILE, oscar__pick_neon(moves, level, u));
    return oscar__pick_neon(moves, step, zero);
}

/* 16 channels from `first` on, of one column: their steps, which change the gradients of those of them that follow. */
static OSCAR__NEON void oscar__refine_sixteen_neon(const oscar__encoder *e, oscar__column *column, int count, int first)
{
    const float *m = e->codec->metric + first * e->dim;
    float limit = oscar__centre(e->codec->bits);
    int c, j, q;
    for (c = first; c < first + OSCAR__LANES; c++, m += e->dim)
        for (q = 0; q < count; q++) {
            oscar__column *r = &column[q];
            float32x4_t step = oscar__refine_step_neon(r, c, e->codec->group, m[c], limit);
            vst1q_f32(r->steps + (c - first) * OSCAR__TILE, step);
            for (j = c + 1; j < first + OSCAR__LANES; j++) {
                float *g = r->gradient + j * OSCAR__TILE;
                vst1q_f32(g, vfmaq_n_f32(vld1q_f32(g), step, m[j]));
            }
        }
}

/* One pass over the channels. The gradients of later channels get the steps of 16 channels at a time, in order. */
static OSCAR__NEON void oscar__refine_pass_neon(const oscar__encoder *e, oscar__column *column, int count)
{
    const float *m = e->codec->metric;
    int dim = e->dim, q, c, group = e->codec->group;
    for (q = 0; q < count; q++)
        for (c = 0; c < dim; c++) {
            float32x4_t s = vld1q_f32(column[q].s + c / group * OSCAR__TILE);
            float32x4_t u = vld1q_f32(column[q].u + c * OSCAR__TILE);
            vst1q_f32(column[q].x + c * OSCAR__TILE, vmulq_f32(s, u));
        }
    for (q = 0; q < count; q += 2) {
        oscar__column *a = &column[q], *b = &column[q + 1 < count ? q + 1 : q];
        oscar__lane_product_neon(dim, m, 0, dim, 0, a->x, b->x, a->gradient, b->gradient, 0);
    }
    for (q = 0; q < count; q++)
        for (c = 0; c < dim; c++) {
            float *g = column[q].gradient + c * OSCAR__TILE;
            vst1q_f32(g, vsubq_f32(vld1q_f32(g), vld1q_f32(column[q].z + c * OSCAR__TILE)));
        }
    for (c = 0; c < dim; c += OSCAR__LANES) {
        oscar__refine_sixteen_neon(e, column, count, c);
        for (q = 0; q < count; q += 2) {
            oscar__column *a = &column[q], *b = &column[q + 1 < count ? q + 1 : q];
            oscar__lane_product_neon(dim, m, c, OSCAR__LANES, c + OSCAR__LANES, a->steps, b->steps, a->gradient,
                                     b->gradient, 1);
        }
    }
}

/* Levels, z and S(x, z) of a column whose plain fit is done. */
static OSCAR__NEON void oscar__refine_start_neon(const oscar__encoder *e, oscar__column *r)
{
    const float32x4_t zero = vdupq_n_f32(0), centre = vdupq_n_f32(oscar__centre(e->codec->bits));
    int c, g, n = e->codec->group;
    for (g = 0; g < e->dim / n; g++) {
        float32x4_t s = vld1q_f32(r->first + g * OSCAR__TILE);
        uint32x4_t alive = oscar__less_neon(zero, s);
        int at = g * n * OSCAR__TILE;
        vst1q_f32(r->s + g * OSCAR__TILE, s);
        vst1q_f32(r->xz + g * OSCAR__TILE, oscar__lane_sum_neon(n, r->x + at, r->z + at));
        for (c = g * n; c < (g + 1) * n; c++) {
            float32x4_t u = vsubq_f32(vcvtq_f32_s32(oscar__get_codes_neon(r->codes + c * OSCAR__TILE)), centre);
            vst1q_f32(r->u + c * OSCAR__TILE, oscar__pick_neon(alive, u, zero));
        }
    }
}

/* The scales that keep <x^, x> under the metric. */
static OSCAR__NEON void oscar__refine_scales_neon(const oscar__encoder *e, oscar__column *r)
{
    const float32x4_t zero = vdupq_n_f32(0), one = vdupq_n_f32(1.0f);
    int g, n = e->codec->group;
    for (g = 0; g < e->dim / n; g++) {
        int at = g * OSCAR__TILE;
        float32x4_t uz = oscar__lane_sum_neon(n, r->u + at * n, r->z + at * n), s;
        uint32x4_t positive = oscar__less_neon(zero, uz), alive = oscar__less_neon(zero, vld1q_f32(r->first + at));
        s = vdivq_f32(vld1q_f32(r->xz + at), oscar__pick_neon(positive, uz, one));
        s = oscar__pick_neon(positive, s, zero);
        vst1q_f32(r->s + at, oscar__pick_neon(alive, s, vld1q_f32(r->s + at)));
    }
}

/* Takes the refined codes and scales of the rows where every scale is near the first one. */
static OSCAR__NEON void oscar__refine_end_neon(const oscar__encoder *e, oscar__column *r)
{
    const float32x4_t zero = vdupq_n_f32(0), centre = vdupq_n_f32(oscar__centre(e->codec->bits));
    const float32x4_t limit = vdupq_n_f32(e->codec->metadata == OSCAR_F32 ? FLT_MAX : 65504.0f);
    uint32x4_t good = oscar__at_least_neon(zero, zero);
    int c, g, n = e->codec->group;
    for (g = 0; g < e->dim / n; g++) {
        float32x4_t first = vld1q_f32(r->first + g * OSCAR__TILE), s = vld1q_f32(r->s + g * OSCAR__TILE);
        uint32x4_t near_enough = oscar__both_neon(oscar__at_least_neon(s, vmulq_f32(vdupq_n_f32(0.5f), first)),
                                                  oscar__at_least_neon(vaddq_f32(first, first), s));
        near_enough = oscar__both_neon(near_enough, oscar__at_least_neon(limit, s));
        near_enough = oscar__either_neon(near_enough, oscar__at_least_neon(zero, first));
        good = oscar__both_neon(good, oscar__both_neon(near_enough, oscar__finite_lanes_neon(first)));
    }
    for (g = 0; g < e->dim / n; g++) {
        float *first = r->first + g * OSCAR__TILE;
        float32x4_t before = vld1q_f32(first);
        uint32x4_t taken = oscar__both_neon(good, oscar__less_neon(zero, before));
        for (c = g * n; c < (g + 1) * n; c++) {
            unsigned char *codes = r->codes + c * OSCAR__TILE;
            int32x4_t code = vcvtq_s32_f32(vaddq_f32(vld1q_f32(r->u + c * OSCAR__TILE), centre));
            oscar__put_codes_neon(codes, oscar__pick_int_neon(taken, code, oscar__get_codes_neon(codes)));
        }
        vst1q_f32(first, oscar__pick_neon(taken, vld1q_f32(r->s + g * OSCAR__TILE), before));
    }
}

static OSCAR__NEON void oscar__refine_tiles_neon(oscar__encoder *e)
{
    oscar__column column[4 * OSCAR__TILE / 4];
    float xz[4 * OSCAR__DIM_MAX], steps[4 * OSCAR__TILE * OSCAR__TILE];
    int count = oscar__columns_of(e, 4, xz, steps, column), q, pass;
    for (q = 0; q < count; q += 2) {
        oscar__column *a = &column[q], *b = &column[q + 1 < count ? q + 1 : q];
        oscar__lane_product_neon(e->dim, e->codec->metric, 0, e->dim, 0, a->x, b->x, a->z, b->z, 0);
    }
    for (q = 0; q < count; q++) oscar__refine_start_neon(e, &column[q]);
    for (pass = 0; pass < 2; pass++) {
        oscar__refine_pass_neon(e, column, count);
        for (q = 0; q < count; q++) oscar__refine_scales_neon(e, &column[q]);
    }
    for (q = 0; q < count; q++) oscar__refine_end_neon(e, &column[q]);
}

/* -- tiles: all of the row codec (3.11) -- */

/* 4 rows of a tile, up to the metric. */
static OSCAR__NEON void oscar__encode_lanes_neon(const oscar__encoder *e, oscar__tile *tile, int lane, float *x,
                                                 float *spare, int32x4_t *guess)
{
    const oscar_codec *codec = e->codec;
    int g, n = codec->group;
    if (e->mean) oscar__subtract_mean_neon(e, tile, lane, x);
    if (codec->fit == OSCAR_CLIP && codec->clip > 0)
        oscar__clamp_neon(e->dim, (int)floor(codec->clip * e->dim), x, spare, guess);
    for (g = 0; g < e->dim / n; g++) {
        int at = g * n * OSCAR__TILE;
        if (codec->fit == OSCAR_CLIP) oscar__fit_clip_neon(e, tile, lane, g, x + at);
        else vst1q_f32(tile->scale + g * OSCAR__TILE + lane,
                       oscar__fit_unbiased_neon(n, codec->bits, x + at, tile->codes + at + lane));
    }
}

static OSCAR__NEON void oscar__encode_neon(oscar__encoder *e, const float *rows)
{
    int32x4_t guess = vdupq_n_s32(0x3f800000);
    int k, lane, g;
    for (k = 0; k < e->tiles; k++)
        for (lane = 0; lane < OSCAR__TILE; lane += 4) {
            float *x = oscar__lanes_at(e, 0, k) + lane;
            oscar__to_lanes_neon(e->dim, OSCAR__TILE * k + lane, e->rows, rows, x);
            oscar__encode_lanes_neon(e, &e->tile[k], lane, x, oscar__lanes_at(e, 1, k) + lane, &guess);
        }
    if (e->codec->fit == OSCAR_CLIP) return;
    if (e->codec->metric) oscar__refine_tiles_neon(e);
    for (k = 0; k < e->tiles; k++)
        for (g = 0; g < e->dim / e->codec->group; g++)
            for (lane = 0; lane < OSCAR__TILE; lane += 4) {
                float *scale = e->tile[k].scale + g * OSCAR__TILE + lane;
                vst1q_f32(scale, oscar__metadata_lanes_neon(e, &e->tile[k], lane, vld1q_f32(scale)));
            }
}

/* -- tiles: page words (3.12) -- */

/* Codes of channel c. */
OSCAR__INLINE OSCAR__NEON uint8x16_t oscar__channel_neon(const unsigned char *codes, int c)
{
    return vld1q_u8(codes + c * OSCAR__TILE);
}

/* A store of four vectors by turns makes words of bytes: byte b of word t is byte t of vector b. */
static OSCAR__NEON void oscar__pack_k_neon(int bits, int dim, const unsigned char *codes, unsigned char *tile)
{
    int i, b, plane, w = 32 / bits;
    for (i = 0; i < dim; i += w, tile += 4 * OSCAR__TILE) {
        uint8x16x4_t words;
        for (b = 0; b < 4; b++) {
            uint8x16_t all = oscar__channel_neon(codes, i + b);
            for (plane = 1; plane < w / 4; plane++)
                all = vorrq_u8(all, vshlq_u8(oscar__channel_neon(codes, i + 4 * plane + b),
                                             vdupq_n_s8((int8_t)(bits * plane))));
            words.val[b] = all;
        }
        vst4q_u8(tile, words);
    }
}

/* Four channels at a time: their codes of the tokens 4j .. 4j + 3 are the words j of the four vectors. */
static OSCAR__NEON void oscar__pack_v_neon(int bits, int dim, const unsigned char *codes, unsigned char *tile)
{
    int c;
    for (c = 0; c < dim; c += 4) {
        uint32x4x2_t ab = vtrnq_u32(vreinterpretq_u32_u8(oscar__channel_neon(codes, c)),
                                    vreinterpretq_u32_u8(oscar__channel_neon(codes, c + 1)));
        uint32x4x2_t de = vtrnq_u32(vreinterpretq_u32_u8(oscar__channel_neon(codes, c + 2)),
                                    vreinterpretq_u32_u8(oscar__channel_neon(codes, c + 3)));
        uint32x4_t d0 = vcombine_u32(vget_low_u32(ab.val[0]), vget_low_u32(de.val[0]));
        uint32x4_t d1 = vcombine_u32(vget_low_u32(ab.val[1]), vget_low_u32(de.val[1]));
        uint32x4_t d2 = vcombine_u32(vget_high_u32(ab.val[0]), vget_high_u32(de.val[0]));
        uint32x4_t d3 = vcombine_u32(vget_high_u32(ab.val[1]), vget_high_u32(de.val[1]));
        if (bits == 2) {
            d0 = vorrq_u32(vorrq_u32(d0, vshlq_n_u32(d1, 2)), vorrq_u32(vshlq_n_u32(d2, 4), vshlq_n_u32(d3, 6)));
        } else {
            d0 = vorrq_u32(d0, vshlq_n_u32(d1, 4));
            d2 = vorrq_u32(d2, vshlq_n_u32(d3, 4));
            vst1q_u8(tile + 4 * (dim + c), vreinterpretq_u8_u32(d2));
        }
        vst1q_u8(tile + 4 * c, vreinterpretq_u8_u32(d0));
    }
}

static OSCAR__NEON void oscar__pack_neon(int is_k, int bits, int dim, const unsigned char *codes, unsigned char *tile)
{
    if (is_k) oscar__pack_k_neon(bits, dim, codes, tile);
    else oscar__pack_v_neon(bits, dim, codes, tile);
}

/* 16 numbers as fp16, little endian as this machine is. None is a NaN. */
static OSCAR__NEON void oscar__put_halves_neon(const float *x, unsigned char *p)
{
    int t;
    for (t = 0; t < OSCAR__TILE; t += 4) oscar__put_f16_neon(p + 2 * t, vld1q_f32(x + t));
}

/* -- eigensolver -- */

OSCAR__NEON static void oscar__eigh_dots_neon(size_t width, double *const *x, double *const *y, double *product)
{
    size_t k;
    int i;
    for (i = 0; i < OSCAR__EIGH_PAIRS; i += 2) {
        const double *x0 = x[i], *x1 = x[i + 1], *y0 = y[i], *y1 = y[i + 1];
        float64x2_t g0 = vdupq_n_f64(0), g1 = g0, g2 = g0, g3 = g0, h0 = g0, h1 = g0, h2 = g0, h3 = g0;
        for (k = 0; k < width; k += 8) {
            g0 = vfmaq_f64(g0, vld1q_f64(x0 + k), vld1q_f64(y0 + k));
            g1 = vfmaq_f64(g1, vld1q_f64(x0 + k + 2), vld1q_f64(y0 + k + 2));
            g2 = vfmaq_f64(g2, vld1q_f64(x0 + k + 4), vld1q_f64(y0 + k + 4));
            g3 = vfmaq_f64(g3, vld1q_f64(x0 + k + 6), vld1q_f64(y0 + k + 6));
            h0 = vfmaq_f64(h0, vld1q_f64(x1 + k), vld1q_f64(y1 + k));
            h1 = vfmaq_f64(h1, vld1q_f64(x1 + k + 2), vld1q_f64(y1 + k + 2));
            h2 = vfmaq_f64(h2, vld1q_f64(x1 + k + 4), vld1q_f64(y1 + k + 4));
            h3 = vfmaq_f64(h3, vld1q_f64(x1 + k + 6), vld1q_f64(y1 + k + 6));
        }
        g0 = vaddq_f64(vaddq_f64(g0, g1), vaddq_f64(g2, g3));
        h0 = vaddq_f64(vaddq_f64(h0, h1), vaddq_f64(h2, h3));
        vst1q_f64(product + i, vpaddq_f64(g0, h0));
    }
}

/* Two components of a pair of rows; *x and *y are the turned ones, too. */
OSCAR__INLINE OSCAR__NEON void oscar__turn_pair_neon(double c, double s, double *to_x, double *to_y, float64x2_t *x,
                                                     float64x2_t *y)
{
    float64x2_t a = vld1q_f64(to_x), b = vld1q_f64(to_y);
    *x = vfmsq_f64(vmulq_n_f64(a, c), vdupq_n_f64(s), b);
    *y = vfmaq_f64(vmulq_n_f64(b, c), vdupq_n_f64(s), a);
    vst1q_f64(to_x, *x);
    vst1q_f64(to_y, *y);
}

OSCAR__NEON static void oscar__eigh_turn_neon(size_t width, const double *c, const double *s, double *const *x,
                                              double *const *y)
{
    size_t k;
    int i;
    for (i = 0; i < OSCAR__EIGH_PAIRS; i++) {
        double cosine = c[i], sine = s[i], *to_x = x[i], *to_y = y[i];
        for (k = 0; k < width; k += 2) {
            float64x2_t a, b;
            oscar__turn_pair_neon(cosine, sine, to_x + k, to_y + k, &a, &b);
        }
    }
}

OSCAR__NEON static void oscar__eigh_turn_dots_neon(size_t width, const double *c, const double *s, double *const *x,
                                                   double *const *y, double *product)
{
    const double c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3], s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3];
    double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3], *y0 = y[0], *y1 = y[1], *y2 = y[2], *y3 = y[3];
    float64x2_t g0 = vdupq_n_f64(0), g1 = g0, g2 = g0, g3 = g0, vx, next_x, vy, first;
    size_t k;
    for (k = 0; k < width; k += 2) {
        oscar__turn_pair_neon(c0, s0, x0 + k, y0 + k, &vx, &first);
        oscar__turn_pair_neon(c1, s1, x1 + k, y1 + k, &next_x, &vy);
        g0 = vfmaq_f64(g0, vx, vy);
        oscar__turn_pair_neon(c2, s2, x2 + k, y2 + k, &vx, &vy);
        g1 = vfmaq_f64(g1, next_x, vy);
        oscar__turn_pair_neon(c3, s3, x3 + k, y3 + k, &next_x, &vy);
        g2 = vfmaq_f64(g2, vx, vy);
        g3 = vfmaq_f64(g3, next_x, first);
    }
    vst1q_f64(product, vpaddq_f64(g0, g1));
    vst1q_f64(product + 2, vpaddq_f64(g2, g3));
}

OSCAR__INLINE OSCAR__NEON float64x2_t oscar__two_neon(const double *x, const size_t *at)
{
    return vcombine_f64(vld1_f64(x + at[0]), vld1_f64(x + at[1]));
}

OSCAR__INLINE OSCAR__NEON void oscar__put_two_neon(float64x2_t from, double *x, const size_t *at)
{
    vst1_f64(x + at[0], vget_low_f64(from));
    vst1_f64(x + at[1], vget_high_f64(from));
}

/* A double with its sign, or with that of another one turned in. */
OSCAR__INLINE OSCAR__NEON uint64x2_t oscar__sign_neon(float64x2_t x)
{
    return vandq_u64(vreinterpretq_u64_f64(x), vdupq_n_u64((uint64_t)1 << 63));
}

OSCAR__INLINE OSCAR__NEON float64x2_t oscar__turn_sign_neon(float64x2_t x, uint64x2_t sign)
{
    return vreinterpretq_f64_u64(veorq_u64(vreinterpretq_u64_f64(x), sign));
}

OSCAR__INLINE OSCAR__NEON int oscar__any_neon(uint64x2_t mask)
{
    return vmaxvq_u32(vreinterpretq_u32_u64(mask)) != 0;
}

/* c and s of the angles, and t, from d = b - a and w = 2g. A common factor 1 / r would
   cost less, but give c and s a common error, which adds up. */
OSCAR__INLINE OSCAR__NEON float64x2_t oscar__angles_neon(float64x2_t d, float64x2_t w, float64x2_t *c, float64x2_t *s)
{
    const float64x2_t one = vdupq_n_f64(1);
    float64x2_t length = vabsq_f64(d), h, sum, r;
    uint64x2_t tiny = vcltq_f64(vaddq_f64(length, vabsq_f64(w)), vdupq_n_f64(1e-140));
    r = vbslq_f64(tiny, vdupq_n_f64(1e150), one);   /* or squares underflow */
    length = vmulq_f64(length, r);
    w = vmulq_f64(oscar__turn_sign_neon(w, oscar__sign_neon(d)), r);
    h = vsqrtq_f64(vfmaq_f64(vmulq_f64(w, w), length, length));
    sum = vaddq_f64(h, length);
    r = vsqrtq_f64(vmulq_f64(vaddq_f64(h, h), sum));
    *c = vdivq_f64(sum, r);
    *s = vdivq_f64(w, r);
    return vdivq_f64(w, sum);
}

/* The angles of two pairs. */
OSCAR__INLINE OSCAR__NEON int oscar__two_angles_neon(oscar__eigh *e, const size_t *p, const size_t *q,
                                                     const double *product, double *cosine, double *sine)
{
    const float64x2_t one = vdupq_n_f64(1), zero = vdupq_n_f64(0), g = vld1q_f64(product);
    const float64x2_t coarse = vdupq_n_f64(e->coarse);
    float64x2_t a = oscar__two_neon(e->norm, p), b = oscar__two_neon(e->norm, q), c, s, t;
    float64x2_t u = oscar__two_neon(e->root, p), v = oscar__two_neon(e->root, q), lengths = vmulq_f64(u, v);
    uint64x2_t turn = vcgtq_f64(vabsq_f64(g), vmulq_n_f64(lengths, e->tolerance)), swap;
    vst1q_f64(cosine, one);
    vst1q_f64(sine, zero);
    if (!oscar__any_neon(turn)) return 0;
    t = oscar__angles_neon(vsubq_f64(b, a), vaddq_f64(g, g), &c, &s);
    c = vbslq_f64(turn, c, one);   /* what is not to be turned may be 0 / 0 */
    s = vbslq_f64(turn, s, zero);
    t = vbslq_f64(turn, t, zero);
    a = vfmsq_f64(a, t, g);
    b = vfmaq_f64(b, t, g);
    swap = vbicq_u64(turn, vcgtq_f64(a, b));
    vst1q_f64(cosine, vbslq_f64(swap, s, c));
    vst1q_f64(sine, vbslq_f64(swap, vnegq_f64(c), s));
    oscar__put_two_neon(vbslq_f64(swap, b, a), e->norm, p);
    oscar__put_two_neon(vbslq_f64(swap, a, b), e->norm, q);
    oscar__put_two_neon(vbslq_f64(swap, v, u), e->root, p);
    oscar__put_two_neon(vbslq_f64(swap, u, v), e->root, q);
    turn = vorrq_u64(vcgtq_f64(vabsq_f64(g), vmulq_f64(coarse, lengths)), vcgtq_f64(vabsq_f64(t), coarse));
    return oscar__any_neon(turn) ? 2 : 1;
}

OSCAR__NEON static int oscar__eigh_angles_neon(oscar__eigh *e, const size_t *p, const size_t *q,
                                               const double *product, double *cosine, double *sine)
{
    int one = oscar__two_angles_neon(e, p, q, product, cosine, sine);
    int two = oscar__two_angles_neon(e, p + 2, q + 2, product + 2, cosine + 2, sine + 2);
    return one > two ? one : two;
}

/* -- dense matrices -- */

/* A row of 8 columns of a tile. */
OSCAR__INLINE OSCAR__NEON void oscar__tile_row_neon(double a, const float64x2_t *b, float64x2_t *s)
{
    s[0] = vfmaq_n_f64(s[0], b[0], a);
    s[1] = vfmaq_n_f64(s[1], b[1], a);
    s[2] = vfmaq_n_f64(s[2], b[2], a);
    s[3] = vfmaq_n_f64(s[3], b[3], a);
}

OSCAR__INLINE OSCAR__NEON void oscar__add_to_neon(double *out, const float64x2_t *s)
{
    vst1q_f64(out, vaddq_f64(vld1q_f64(out), s[0]));
    vst1q_f64(out + 2, vaddq_f64(vld1q_f64(out + 2), s[1]));
    vst1q_f64(out + 4, vaddq_f64(vld1q_f64(out + 4), s[2]));
    vst1q_f64(out + 6, vaddq_f64(vld1q_f64(out + 6), s[3]));
}

OSCAR__INLINE OSCAR__NEON void oscar__part_tile_neon(size_t count, const double *a, size_t a_stride, const double *b,
                                                     size_t b_stride, double *sum, size_t sum_stride)
{
    float64x2_t s0[4], s1[4], s2[4], s3[4], row[4];
    size_t k;
    s0[0] = s0[1] = s0[2] = s0[3] = s1[0] = s1[1] = s1[2] = s1[3] = vdupq_n_f64(0);
    s2[0] = s2[1] = s2[2] = s2[3] = s3[0] = s3[1] = s3[2] = s3[3] = s0[0];
    for (k = 0; k < count; k++, a += a_stride, b += b_stride) {
        row[0] = vld1q_f64(b);
        row[1] = vld1q_f64(b + 2);
        row[2] = vld1q_f64(b + 4);
        row[3] = vld1q_f64(b + 6);
        oscar__tile_row_neon(a[0], row, s0);
        oscar__tile_row_neon(a[1], row, s1);
        oscar__tile_row_neon(a[2], row, s2);
        oscar__tile_row_neon(a[3], row, s3);
    }
    oscar__add_to_neon(sum, s0);
    oscar__add_to_neon(sum + sum_stride, s1);
    oscar__add_to_neon(sum + 2 * sum_stride, s2);
    oscar__add_to_neon(sum + 3 * sum_stride, s3);
}

OSCAR__NEON static void oscar__add_tile_neon(size_t count, const double *a, size_t a_stride, const double *b,
                                             size_t b_stride, double *sum, size_t sum_stride)
{
    int i, j;
    for (i = 0; i < OSCAR__TILE_ROWS; i += 4)
        for (j = 0; j < OSCAR__TILE_COLUMNS; j += 8)
            oscar__part_tile_neon(count, a + i, a_stride, b + j, b_stride, sum + (size_t)i * sum_stride + j,
                                  sum_stride);
}

OSCAR__NEON static void oscar__add_row_sum_neon(size_t width, size_t count, double sign, const double *factors,
                                                size_t stride, const double *rows, size_t lead, double *out)
{
    size_t i = 0, k;
    for (; i + 8 <= width; i += 8) {
        const double *row = rows + i;
        float64x2_t s0 = vld1q_f64(out + i), s1 = vld1q_f64(out + i + 2);
        float64x2_t s2 = vld1q_f64(out + i + 4), s3 = vld1q_f64(out + i + 6);
        for (k = 0; k < count; k++, row += lead) {
            double factor = sign * factors[k * stride];
            s0 = vfmaq_n_f64(s0, vld1q_f64(row), factor);
            s1 = vfmaq_n_f64(s1, vld1q_f64(row + 2), factor);
            s2 = vfmaq_n_f64(s2, vld1q_f64(row + 4), factor);
            s3 = vfmaq_n_f64(s3, vld1q_f64(row + 6), factor);
        }
        vst1q_f64(out + i, s0);
        vst1q_f64(out + i + 2, s1);
        vst1q_f64(out + i + 4, s2);
        vst1q_f64(out + i + 6, s3);
    }
    for (; i < width; i++)
        for (k = 0; k < count; k++) out[i] += sign * factors[k * stride] * rows[k * lead + i];
}

/* -- calibration: rows -- */

OSCAR__NEON static void oscar__widen_neon(size_t count, const float *x, double *out)
{
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        float32x4_t four = vld1q_f32(x + i);
        vst1q_f64(out + i, vcvt_f64_f32(vget_low_f32(four)));
        vst1q_f64(out + i + 2, vcvt_high_f64_f32(four));
    }
    oscar__widen(count - i, x + i, out + i);
}

OSCAR__NEON static void oscar__weigh_copy_neon(size_t count, double weight, const double *x, double *row,
                                               double *weighted)
{
    size_t i;
    for (i = 0; i < count; i += 2) {
        float64x2_t one = vld1q_f64(x + i);
        vst1q_f64(row + i, one);
        vst1q_f64(weighted + i, vmulq_n_f64(one, weight));
    }
}

OSCAR__NEON static void oscar__turn_halves_neon(size_t count, const double *cosine, const double *sine, const double *x,
                                                double *out)
{
    size_t i;
    for (i = 0; i + 2 <= count; i += 2) {
        float64x2_t c = vld1q_f64(cosine + i), s = vld1q_f64(sine + i);
        float64x2_t a = vld1q_f64(x + i), b = vld1q_f64(x + i + count);
        vst1q_f64(out + i, vfmsq_f64(vmulq_f64(a, c), b, s));
        vst1q_f64(out + i + count, vfmaq_f64(vmulq_f64(a, s), b, c));
    }
    for (; i < count; i++) {
        out[i] = x[i] * cosine[i] - x[i + count] * sine[i];
        out[i + count] = x[i] * sine[i] + x[i + count] * cosine[i];
    }
}

/* exp(x) for x <= 0, 0 below -708: 2^n times the series of exp(r), |r| <= ln 2 / 2, up to r^12. */
OSCAR__INLINE OSCAR__NEON float64x2_t oscar__exp_neon(float64x2_t x)
{
    const float64x2_t least = vdupq_n_f64(-708);
    float64x2_t n, sum = vdupq_n_f64(oscar__exp_series[0]);
    uint64x2_t some = vcgeq_f64(x, least);
    int i;
    x = vmaxq_f64(x, least);
    n = vrndnq_f64(vmulq_n_f64(x, 1.4426950408889634));
    x = vfmsq_f64(x, n, vdupq_n_f64(0.693147180369123816490));
    x = vfmsq_f64(x, n, vdupq_n_f64(1.90821492927058770002e-10));
    for (i = 1; i <= 12; i++) sum = vfmaq_f64(vdupq_n_f64(oscar__exp_series[i]), sum, x);
    n = vreinterpretq_f64_s64(vshlq_n_s64(vaddq_s64(vcvtq_s64_f64(n), vdupq_n_s64(1023)), 52));
    return vbslq_f64(some, vmulq_f64(sum, n), vdupq_n_f64(0));
}

OSCAR__NEON static double oscar__exp_row_neon(size_t count, double *x)
{
    float64x2_t most = vdupq_n_f64(-HUGE_VAL), sum = vdupq_n_f64(0), sum2 = sum;
    size_t i;
    for (i = 0; i < count; i += 2) most = vmaxq_f64(most, vld1q_f64(x + i));
    most = vdupq_n_f64(vmaxvq_f64(most));
    for (i = 0; i < count; i += 4) {
        float64x2_t one = oscar__exp_neon(vsubq_f64(vld1q_f64(x + i), most));
        float64x2_t two = oscar__exp_neon(vsubq_f64(vld1q_f64(x + i + 2), most));
        vst1q_f64(x + i, one);
        vst1q_f64(x + i + 2, two);
        sum = vaddq_f64(sum, one);
        sum2 = vaddq_f64(sum2, two);
    }
    return vaddvq_f64(vaddq_f64(sum, sum2));
}

OSCAR__NEON static double oscar__weigh_row_neon(size_t count, double total, const double *x, double *sum)
{
    const float64x2_t none = vdupq_n_f64(0);
    const double share = 1 / total;
    float64x2_t added = none;
    size_t i;
    for (i = 0; i < count; i += 2) {
        float64x2_t p = vmulq_n_f64(vld1q_f64(x + i), share);
        p = vmaxnmq_f64(vfmsq_f64(p, p, p), none);
        vst1q_f64(sum + i, vaddq_f64(vld1q_f64(sum + i), p));
        added = vaddq_f64(added, p);
    }
    return vaddvq_f64(added);
}

/* -- attention -- */

/* sum += codes . four bytes of limbs, those of one lane, the same ones for all lanes of codes; lane is a literal. With
   signed bytes, and with bytes without sign. The last one: sum += codes . limbs, lane by lane. clang 14 declares the
   intrinsics only where a flag turns them on. */
#if defined(__clang__) && !defined(__ARM_FEATURE_DOTPROD)
#  define OSCAR__SDOT_LANE(sum, codes, limbs, lane) \
    __asm__("sdot %0.4s, %1.16b, %2.4b[" #lane "]" : "+w"(sum) : "w"(codes), "w"(limbs))
#  define OSCAR__UDOT_LANE(sum, codes, limbs, lane) \
    __asm__("udot %0.4s, %1.16b, %2.4b[" #lane "]" : "+w"(sum) : "w"(codes), "w"(limbs))
#  define OSCAR__SDOT(sum, codes, limbs) \
    __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(codes), "w"(limbs))
#else
#  define OSCAR__SDOT_LANE(sum, codes, limbs, lane) \
    ((sum) = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(codes), vreinterpretq_s8_u8(limbs), lane))
#  define OSCAR__UDOT_LANE(sum, codes, limbs, lane) \
    ((sum) = vreinterpretq_s32_u32(vdotq_laneq_u32(vreinterpretq_u32_s32(sum), codes, limbs, lane)))
#  define OSCAR__SDOT(sum, codes, limbs) \
    ((sum) = vdotq_s32(sum, vreinterpretq_s8_u8(codes), vreinterpretq_s8_u8(limbs)))
#endif

/* The largest whole number of the limbs of weights, which have no sign here. */
OSCAR__INLINE OSCAR__NEON float oscar__weight_most_neon(int limbs) { return limbs > 1 ? 65535.0f : 255.0f; }

/* Two sums of 4 lanes, those of the codes a and b, for each limb of each query; `dot` is one of the two above. */
#define OSCAR__PLANE(dot, lane) do { \
    dot(sum[0], a, l[0], lane); \
    dot(sum[1], b, l[0], lane); \
    if (limbs > 1) { dot(sum[2], a, l[1], lane); dot(sum[3], b, l[1], lane); } \
    if (count > 1) { dot(sum[4], a, l[2], lane); dot(sum[5], b, l[2], lane); } \
    if (count > 1 && limbs > 1) { dot(sum[6], a, l[3], lane); dot(sum[7], b, l[3], lane); } \
    if (count > 2) { dot(sum[8], a, l[4], lane); dot(sum[9], b, l[4], lane); } \
    if (count > 2 && limbs > 1) { dot(sum[10], a, l[5], lane); dot(sum[11], b, l[5], lane); } \
    if (count > 2) { dot(sum[12], a, l[6], lane); dot(sum[13], b, l[6], lane); } \
    if (count > 2 && limbs > 1) { dot(sum[14], a, l[7], lane); dot(sum[15], b, l[7], lane); } } while (0)

/* 8 lanes of 16 codes, half a line of 2 bits at p, or halves of two lines of 4 bits at p and p + second:
   sum [query][limb][2 vectors] += codes . limb [query][2][16]. signs: whether limbs have one. */
OSCAR__INLINE OSCAR__NEON void oscar__sixteen_neon(int signs, int bits, int count, int limbs, const unsigned char *p,
                                                   size_t second, const signed char *limb, int32x4_t *sum)
{
    const uint8x16_t mask = vdupq_n_u8(bits == 2 ? 3 : 15);
    const unsigned char *from = (const unsigned char *)limb;
    uint8x16_t word_a = vld1q_u8(p), word_b = vld1q_u8(p + 16), a, b, l[8];
    l[0] = vld1q_u8(from);
    if (limbs > 1) l[1] = vld1q_u8(from + 16);
    if (count > 1) l[2] = vld1q_u8(from + 32);
    if (count > 1 && limbs > 1) l[3] = vld1q_u8(from + 48);
    if (count > 2) l[4] = vld1q_u8(from + 64);
    if (count > 2 && limbs > 1) l[5] = vld1q_u8(from + 80);
    if (count > 2) l[6] = vld1q_u8(from + 96);
    if (count > 2 && limbs > 1) l[7] = vld1q_u8(from + 112);
    a = vandq_u8(word_a, mask);
    b = vandq_u8(word_b, mask);
    if (signs) OSCAR__PLANE(OSCAR__SDOT_LANE, 0); else OSCAR__PLANE(OSCAR__UDOT_LANE, 0);
    a = bits == 2 ? vandq_u8(vshrq_n_u8(word_a, 2), mask) : vshrq_n_u8(word_a, 4);
    b = bits == 2 ? vandq_u8(vshrq_n_u8(word_b, 2), mask) : vshrq_n_u8(word_b, 4);
    if (signs) OSCAR__PLANE(OSCAR__SDOT_LANE, 1); else OSCAR__PLANE(OSCAR__UDOT_LANE, 1);
    if (bits == 4) word_a = vld1q_u8(p + second);
    if (bits == 4) word_b = vld1q_u8(p + second + 16);
    a = vandq_u8(bits == 2 ? vshrq_n_u8(word_a, 4) : word_a, mask);
    b = vandq_u8(bits == 2 ? vshrq_n_u8(word_b, 4) : word_b, mask);
    if (signs) OSCAR__PLANE(OSCAR__SDOT_LANE, 2); else OSCAR__PLANE(OSCAR__UDOT_LANE, 2);
    a = bits == 2 ? vshrq_n_u8(word_a, 6) : vshrq_n_u8(word_a, 4);
    b = bits == 2 ? vshrq_n_u8(word_b, 6) : vshrq_n_u8(word_b, 4);
    if (signs) OSCAR__PLANE(OSCAR__SDOT_LANE, 3); else OSCAR__PLANE(OSCAR__UDOT_LANE, 3);
}

OSCAR__INLINE OSCAR__NEON void oscar__zeros_neon(int32x4_t *sum)
{
    sum[0] = sum[1] = sum[2] = sum[3] = sum[4] = sum[5] = sum[6] = sum[7] = vdupq_n_s32(0);
    sum[8] = sum[9] = sum[10] = sum[11] = sum[12] = sum[13] = sum[14] = sum[15] = vdupq_n_s32(0);
}

/* The sums of a query from its limbs: exact, less than 2^30 (1024 codes of up to 15). */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__total_neon(int limbs, const int32x4_t *sum)
{
    return vcvtq_f32_s32(limbs == 1 ? sum[0] : vaddq_s32(vshlq_n_s32(sum[0], 8), sum[2]));
}

/* 4 halves of metadata. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__halves_neon(const unsigned char *p) { return oscar__widen_f16_neon(p); }

/* Metadata of 8 tokens in a group, two vectors of each. */
typedef struct oscar__scales_neon {
    float32x4_t scale[2], minimum[2];
    int has_minimum;
} oscar__scales_neon;

/* score += scale (total step + low), or scale total step + minimum low; two vectors. */
OSCAR__INLINE OSCAR__NEON void oscar__scaled_neon(int limbs, const int32x4_t *sum, float step, float low,
                                                  const oscar__scales_neon *m, float32x4_t *score)
{
    int i;
    for (i = 0; i < 2; i++) {
        float32x4_t total = oscar__total_neon(limbs, sum + i);
        if (m->has_minimum) {
            score[i] = vfmaq_n_f32(score[i], m->minimum[i], low);
            score[i] = vfmaq_f32(score[i], vmulq_n_f32(total, step), m->scale[i]);
        } else score[i] = vfmaq_f32(score[i], vfmaq_n_f32(vdupq_n_f32(low), total, step), m->scale[i]);
    }
}

/* A group: products with its codes. */
OSCAR__INLINE OSCAR__NEON void oscar__group_neon(int bits, int count, int limbs, int group, const unsigned char *p,
                                                 ptrdiff_t ahead, const signed char *limb, int32x4_t *sum)
{
    int c;
    oscar__zeros_neon(sum);
    for (c = 0; c < group; c += 16, p += 32 * bits, limb += 128) {
        OSCAR__PREFETCH(p + ahead);
        oscar__sixteen_neon(1, bits, count, limbs, p, 64, limb, sum);
    }
}

/* 8 tokens whose words are at p. */
OSCAR__INLINE OSCAR__NEON void oscar__score8_neon(int bits, int count, int limbs, const oscar__codes *k,
                                                  const unsigned char *p, size_t metadata, const signed char *limb,
                                                  const float *step, const float *low, const float *start, float *score)
{
    const unsigned char *scales = k->scale + metadata, *minima = k->minimum ? k->minimum + metadata : NULL;
    oscar__scales_neon m;
    float32x4_t s[4][2];
    int at, j, i;
    m.has_minimum = minima != NULL;
    m.minimum[0] = m.minimum[1] = vdupq_n_f32(0);
    for (i = 0; i < 2; i++) {
        int32x4_t words = vreinterpretq_s32_f32(oscar__halves_neon(scales + 8 * i));
        uint32x4_t negative = oscar__above_neon(vdupq_n_s32(0), words);
        for (j = 0; j < 4; j++)
            s[j][i] = oscar__pick_neon(negative, vdupq_n_f32(start[4 + j]), vdupq_n_f32(start[j]));
    }
    for (at = 0; at < k->dim; at += k->group, step += 4, low += 4, scales += 2 * k->tokens) {
        int32x4_t sum[16];
        oscar__group_neon(bits, count, limbs, k->group, p + 2 * bits * at, k->ahead, limb + 8 * at, sum);
        for (i = 0; i < 2; i++) {
            m.scale[i] = oscar__abs_neon(oscar__halves_neon(scales + 8 * i));
            if (minima) m.minimum[i] = oscar__halves_neon(minima + 8 * i);
        }
        if (minima) minima += 2 * k->tokens;
        oscar__scaled_neon(limbs, sum, step[0], low[0], &m, s[0]);
        if (count > 1) oscar__scaled_neon(limbs, sum + 4, step[1], low[1], &m, s[1]);
        if (count > 2) oscar__scaled_neon(limbs, sum + 8, step[2], low[2], &m, s[2]);
        if (count > 2) oscar__scaled_neon(limbs, sum + 12, step[3], low[3], &m, s[3]);
    }
    for (j = 0; j < count; j++) {
        vst1q_f32(score + j * OSCAR__BLOCK, s[j][0]);
        vst1q_f32(score + j * OSCAR__BLOCK + 4, s[j][1]);
    }
}

OSCAR__INLINE OSCAR__NEON void oscar__score_neon(int bits, int count, int limbs, const oscar__codes *k,
                                                 const signed char *limb, const float *step, const float *low,
                                                 const float *start, float *score)
{
    size_t tile_bytes = (size_t)(2 * bits * k->dim), t;
    for (t = 0; t < OSCAR__BLOCK; t += 8)
        oscar__score8_neon(bits, count, limbs, k, k->codes + t / 16 * tile_bytes + t % 16 * 4, 2 * t, limb, step, low,
                           start, score + t);
}

static OSCAR__NEON void oscar__attend_score_neon(int count, int limbs, const oscar__codes *k, const signed char *limb,
                                                 const float *step, const float *low, const float *start, float *score)
{
    OSCAR__BY_SHAPE(oscar__score_neon, k->bits, count, limbs, (k, limb, step, low, start, score))
}

/* Reductions of four vectors at once: result q is the sum, or the largest number, of x[q]. A NaN stays in both. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__sum4_neon(const float32x4_t *x)
{
    return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]));
}
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__largest4_neon(const float32x4_t *x)
{
    return vpmaxq_f32(vpmaxq_f32(x[0], x[1]), vpmaxq_f32(x[2], x[3]));
}

/* 8 whole numbers n -> bytes of a limb. */
OSCAR__INLINE OSCAR__NEON void oscar__put_limb_neon(int32x4_t n0, int32x4_t n1, signed char *limb)
{
    vst1_s8((int8_t *)limb, vmovn_s16(vcombine_s16(vmovn_s32(n0), vmovn_s32(n1))));
}

/* 8 whole numbers n -> their limbs: n = 256 high + low, low in -128 .. 127, or 0 .. 255 without signs; or n itself. */
OSCAR__INLINE OSCAR__NEON void oscar__split_neon(int signs, int limbs, int32x4_t n0, int32x4_t n1, signed char *limb)
{
    if (limbs > 1) {
        int32x4_t h0 = signs ? vrshrq_n_s32(n0, 8) : vshrq_n_s32(n0, 8);
        int32x4_t h1 = signs ? vrshrq_n_s32(n1, 8) : vshrq_n_s32(n1, 8);
        oscar__put_limb_neon(h0, h1, limb);
        limb += 16;   /* the low byte of n is the low limb, however it is read */
    }
    oscar__put_limb_neon(n0, n1, limb);
}

/* Weights of a block times the scales of group g as limbs [4 tiles][4 queries][2][16], without sign; step and base of
   each query, so that the sum over tokens of weight times value is step (limbs . codes) + base. Only what differs from
   the middle of the codes meets rounded weights. */
static OSCAR__NEON void oscar__attend_weigh_neon(int count, int limbs, const oscar__codes *v, int g,
                                                 const float *weight, signed char *limb, float *step, float *base)
{
    const unsigned char *scales = v->scale + 2 * g * v->tokens;
    const unsigned char *minima = v->minimum ? v->minimum + 2 * g * v->tokens : NULL;
    float32x4_t scale[16], middle[16], x[16];
    int j, t;
    for (t = 0; t < 16; t++) {
        scale[t] = oscar__abs_neon(oscar__halves_neon(scales + 8 * t));
        if (minima) middle[t] = vfmaq_n_f32(oscar__halves_neon(minima + 8 * t), scale[t], v->centre);
    }
    for (j = 0; j < count; j++, weight += OSCAR__BLOCK) {
        float32x4_t most = vdupq_n_f32(0), low = most;
        int32x4_t all = vdupq_n_s32(0);
        float top, inverse;
        for (t = 0; t < 16; t++) {
            float32x4_t one = vld1q_f32(weight + 4 * t);
            x[t] = vmulq_f32(one, scale[t]);
            most = vmaxq_f32(most, x[t]);
            if (minima) low = vfmaq_f32(low, one, middle[t]);
        }
        top = vmaxvq_f32(most);   /* below 1e-34 nothing counts, and 1 / top may overflow */
        inverse = top > 1e-34f ? oscar__weight_most_neon(limbs) / top : 0;
        step[j] = top > 1e-34f ? top / oscar__weight_most_neon(limbs) : 0;
        for (t = 0; t < 16; t += 2) {
            int32x4_t n0 = vcvtnq_s32_f32(vmulq_n_f32(x[t], inverse));
            int32x4_t n1 = vcvtnq_s32_f32(vmulq_n_f32(x[t + 1], inverse));
            all = vaddq_s32(all, vaddq_s32(n0, n1));
            oscar__split_neon(0, limbs, n0, n1, limb + 128 * (t / 4) + 32 * j + 4 * (t % 4));
        }
        base[j] = vaddvq_f32(low) - (float)vaddvq_s32(all) * v->centre * step[j];
    }
}

OSCAR__INLINE OSCAR__NEON void oscar__blend_add_neon(int limbs, const int32x4_t *sum, float step, float base,
                                                     float *acc)
{
    float32x4_t a = vfmaq_n_f32(vdupq_n_f32(base), oscar__total_neon(limbs, sum), step);
    float32x4_t b = vfmaq_n_f32(vdupq_n_f32(base), oscar__total_neon(limbs, sum + 1), step);
    vst1q_f32(acc, vaddq_f32(vld1q_f32(acc), a));
    vst1q_f32(acc + 4, vaddq_f32(vld1q_f32(acc + 4), b));
}

OSCAR__INLINE OSCAR__NEON void oscar__blend_neon(int bits, int count, int limbs, const oscar__codes *v,
                                                 const float *weight, signed char *limb, float *step, float *base,
                                                 float *acc)
{
    size_t row = (size_t)v->dim, tile_bytes = 2 * (size_t)bits * row;
    const unsigned char *p = v->codes;
    int g, c, tile;
    for (g = 0; g * v->group < v->dim; g++) {
        if (g) oscar__attend_weigh_neon(count, limbs, v, g, weight, limb, step, base);
        for (c = 0; c < v->group; c += 8, p += 32, acc += 8) {
            int32x4_t sum[16];
            oscar__zeros_neon(sum);
            for (tile = 0; tile < 4; tile++) {
                const unsigned char *line = p + (size_t)tile * tile_bytes;
                OSCAR__PREFETCH(line + v->ahead);
                oscar__sixteen_neon(0, bits, count, limbs, line, 4 * row, limb + 128 * tile, sum);
            }
            oscar__blend_add_neon(limbs, sum, step[0], base[0], acc);
            if (count > 1) oscar__blend_add_neon(limbs, sum + 4, step[1], base[1], acc + row);
            if (count > 2) oscar__blend_add_neon(limbs, sum + 8, step[2], base[2], acc + 2 * row);
            if (count > 2) oscar__blend_add_neon(limbs, sum + 12, step[3], base[3], acc + 3 * row);
        }
    }
}

static OSCAR__NEON void oscar__attend_blend_neon(int count, int limbs, const oscar__codes *v, const float *weight,
                                                 signed char *limb, float *step, float *base, float *acc)
{
    OSCAR__BY_SHAPE(oscar__blend_neon, v->bits, count, limbs, (v, weight, limb, step, base, acc))
}

static OSCAR__NEON void oscar__attend_limbs_neon(int limbs, int dim, int group, int query, const float *x,
                                                 signed char *limb, float *step, float *sum)
{
    int at, c;
    for (at = 0; at < dim; at += group, step += 4, sum += 4) {
        float32x4_t most = vdupq_n_f32(0);
        int32x4_t all = vdupq_n_s32(0);
        float top, share;
        for (c = at; c < at + group; c += 4) most = vmaxq_f32(most, oscar__abs_neon(vld1q_f32(x + c)));
        top = vmaxvq_f32(most);   /* a NaN stays in it */
        share = top > 1e-34f && top <= FLT_MAX ? oscar__limbs_most(limbs) / top : 0;
        for (c = at; c < at + group; c += 8) {
            int32x4_t n0 = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + c), share));
            int32x4_t n1 = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + c + 4), share));
            all = vaddq_s32(all, vaddq_s32(n0, n1));
            oscar__split_neon(1, limbs, n0, n1, limb + 8 * (c - c % 16) + 32 * query + c % 16);
        }
        step[query] = !(top <= FLT_MAX) ? (float)NAN : top > 1e-34f ? top / oscar__limbs_most(limbs) : 0;
        sum[query] = step[query] * (float)vaddvq_s32(all);
    }
}

/* Bytes have no sign, limbs do: byte . limb = (byte - 128) . limb + 128 . limb. */
static OSCAR__NEON void oscar__attend_mean_neon(int limbs, int dim, int group, const unsigned char *bytes,
                                                const signed char *limb, const float *step, float *out)
{
    const uint8x16_t half = vdupq_n_u8(0x80), one = vdupq_n_u8(1);
    int at, c, j;
    out[0] = out[1] = out[2] = out[3] = 0;
    for (at = 0; at < dim; at += group, step += 4)
        for (j = 0; j < 4; j++) {
            int32x4_t high = vdupq_n_s32(0), low = high, high_all = high, low_all = high;
            for (c = at; c < at + group; c += 16) {
                const unsigned char *from = (const unsigned char *)limb + 8 * c + 32 * j;
                uint8x16_t n = veorq_u8(vld1q_u8(bytes + c), half), h = vld1q_u8(from), l = vld1q_u8(from + 16);
                OSCAR__SDOT(high, n, h);
                OSCAR__SDOT(high_all, one, h);
                OSCAR__SDOT(low, n, l);
                OSCAR__SDOT(low_all, one, l);
            }
            high = vaddq_s32(high, vshlq_n_s32(high_all, 7));
            low = vaddq_s32(low, vshlq_n_s32(low_all, 7));
            out[j] += step[j] * (limbs > 1 ? 256 * (float)vaddvq_s32(high) + (float)vaddvq_s32(low)
                                           : (float)vaddvq_s32(high));
        }
}

/* 2^x = 2^n p(x - n), n the nearest whole number, p of degree 5 with the least relative error on -0.5 .. 0.5 of those
   with p(0) = 1, so that 2^0 is 1: 1.5e-7 with rounding. Below -125 it is 0. NaN stays NaN: its n is 0. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__exp2_neon(float32x4_t x)
{
    uint32x4_t none = oscar__less_neon(x, vdupq_n_f32(-125.0f));
    float32x4_t n = vrndnq_f32(x), f = vsubq_f32(x, n), p;
    p = vfmaq_f32(vdupq_n_f32(9.671516716e-3f), vdupq_n_f32(1.326473663e-3f), f);
    p = vfmaq_f32(vdupq_n_f32(5.550733581e-2f), p, f);
    p = vfmaq_f32(vdupq_n_f32(2.402224243e-1f), p, f);
    p = vfmaq_f32(vdupq_n_f32(6.931470037e-1f), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, f);
    n = vreinterpretq_f32_s32(vshlq_n_s32(vcvtq_s32_f32(n), 23));
    return vreinterpretq_f32_u32(vbicq_u32(vaddq_u32(vreinterpretq_u32_f32(p), vreinterpretq_u32_f32(n)), none));
}

/* cap tanh(x / cap); the error is a few 1e-7 of cap. NaN stays. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__cap_neon(float32x4_t x, float cap)
{
    const float32x4_t one = vdupq_n_f32(1);
    float32x4_t y = vdivq_f32(x, vdupq_n_f32(cap)), e;
    y = vmaxq_f32(vdupq_n_f32(-10), vminq_f32(vdupq_n_f32(10), y));
    e = oscar__exp2_neon(vmulq_n_f32(y, 2 * OSCAR__LOG2E));
    return vmulq_n_f32(vdivq_f32(vsubq_f32(e, one), vaddq_f32(e, one)), cap);
}

/* Products of a query -> capped logits where there is a cap; -inf where masked. */
static OSCAR__NEON void oscar__logits_neon(float scale, float cap, int first, int end, float *score)
{
    int t;
    for (t = 0; t < OSCAR__BLOCK; t += 4) {
        float32x4_t logit = vld1q_f32(score + t);
        int32x4_t at = vaddq_s32(vdupq_n_s32(t), oscar__lanes_neon());
        uint32x4_t hidden = oscar__either_neon(oscar__above_neon(vdupq_n_s32(first), at),
                                               oscar__above_neon(at, vdupq_n_s32(end - 1)));
        if (cap > 0) logit = oscar__cap_neon(vmulq_n_f32(logit, scale), cap);
        vst1q_f32(score + t, oscar__pick_neon(hidden, vdupq_n_f32(-HUGE_VALF), logit));
    }
}

/* The largest number of a query's block. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__row_most_neon(const float *row)
{
    float32x4_t a = vld1q_f32(row), b = vld1q_f32(row + 4);
    int t;
    for (t = 8; t < OSCAR__BLOCK; t += 8) {
        a = vmaxq_f32(a, vld1q_f32(row + t));
        b = vmaxq_f32(b, vld1q_f32(row + t + 4));
    }
    return vmaxq_f32(a, b);
}

static OSCAR__NEON int oscar__attend_softmax_neon(int count, float scale, float cap, const int *first, const int *end,
                                                  float *score, float *top, float *sum, float *factor)
{
    float unit = cap > 0 ? OSCAR__LOG2E : scale * OSCAR__LOG2E, base[4];
    float32x4_t x[4], before = vld1q_f32(top), after, grown;
    uint32x4_t same;
    int j, t;
    for (j = 0; j < count && (cap > 0 || first); j++)
        oscar__logits_neon(scale, cap, first ? first[j] : 0, end ? end[j] : OSCAR__BLOCK, score + j * OSCAR__BLOCK);
    for (j = 0; j < 4; j++) x[j] = oscar__row_most_neon(score + (j < count ? j : 0) * OSCAR__BLOCK);
    after = vmaxq_f32(before, oscar__largest4_neon(x));
    same = vceqq_f32(after, before);
    vst1q_f32(top, after);
    after = oscar__pick_neon(vceqq_f32(after, vdupq_n_f32(-HUGE_VALF)), vdupq_n_f32(0), after);   /* no key yet: 0 */
    vst1q_f32(base, after);
    for (j = 0; j < 4; j++) {
        float *row = score + j * OSCAR__BLOCK;
        x[j] = vdupq_n_f32(0);
        for (t = 0; t < OSCAR__BLOCK && j < count; t += 4) {
            float32x4_t below = vsubq_f32(vld1q_f32(row + t), vdupq_n_f32(base[j]));
            float32x4_t weight = oscar__exp2_neon(vmulq_n_f32(below, unit));
            vst1q_f32(row + t, weight);
            x[j] = vaddq_f32(x[j], weight);
        }
    }
    grown = oscar__exp2_neon(vmulq_n_f32(vsubq_f32(before, after), unit));
    grown = oscar__pick_neon(same, vdupq_n_f32(1), grown);
    vst1q_f32(factor, grown);
    vst1q_f32(sum, vfmaq_f32(oscar__sum4_neon(x), vld1q_f32(sum), grown));
    same = oscar__either_neon(same, oscar__above_neon(oscar__lanes_neon(), vdupq_n_s32(count - 1)));
    return vminvq_u32(same) == 0;
}

static OSCAR__NEON void oscar__attend_rescale_neon(int count, int dim, const float *factor, float *acc)
{
    int j, c;
    for (j = 0; j < count; j++, acc += dim)
        for (c = 0; c < dim; c += 4) vst1q_f32(acc + c, vmulq_n_f32(vld1q_f32(acc + c), factor[j]));
}

/* 4 values of a row as floats. */
OSCAR__INLINE OSCAR__NEON float32x4_t oscar__widen4_neon(oscar_type type, oscar_type round, const unsigned char *p)
{
    float32x4_t x;
    if (type == OSCAR_BF16) x = oscar__widen_bf16_neon(p);
    else if (type == OSCAR_F16) x = oscar__widen_f16_neon(p);
    else x = vreinterpretq_f32_u8(vld1q_u8(p));
    if (round == OSCAR_BF16 && type != OSCAR_BF16) x = oscar__round_bf16_neon(x);
    if (round == OSCAR_F16 && type != OSCAR_F16) x = oscar__round_f16_neon(x);
    return x;
}

static OSCAR__NEON void oscar__attend_widen_neon(oscar_type type, oscar_type round, int rows, int dim,
                                                 const unsigned char *x, ptrdiff_t stride, float *out)
{
    int r, c, size = (int)oscar__type_size(type);
    for (r = 0; r < rows; r++, x += stride, out += dim)
        for (c = 0; c < dim; c += 4) vst1q_f32(out + c, oscar__widen4_neon(type, round, x + c * size));
}

/* The products of each row with the queries, two sums each. */
OSCAR__INLINE OSCAR__NEON void oscar__products_neon(oscar_type type, int shape, int count, int rows, int dim,
                                                    const float *x, ptrdiff_t x_stride, const unsigned char *m,
                                                    ptrdiff_t m_stride, ptrdiff_t ahead, float *out,
                                                    ptrdiff_t out_stride)
{
    size_t one = (size_t)x_stride / sizeof(float), to = (size_t)out_stride / sizeof(float);
    const float *x1 = x + (count > 1 ? one : 0), *x2 = x + (count > 2 ? 2 * one : 0);
    const float *x3 = x + (count > 3 ? 3 * one : 0);
    int r, c, j, size = (int)oscar__type_size(type);
    for (r = 0; r < rows; r++, m += m_stride, out++) {
        float32x4_t a[4], b[4];
        float products[4];
        a[0] = a[1] = a[2] = a[3] = b[0] = b[1] = b[2] = b[3] = vdupq_n_f32(0);
        for (c = 0; c < dim; c += 8) {
            int at = c * size;
            float32x4_t row0 = oscar__widen4_neon(type, OSCAR_F32, m + at);
            float32x4_t row1 = oscar__widen4_neon(type, OSCAR_F32, m + at + 4 * size);
            if (at % 64 == 0) OSCAR__PREFETCH(m + at + ahead);
            a[0] = vfmaq_f32(a[0], row0, vld1q_f32(x + c));
            b[0] = vfmaq_f32(b[0], row1, vld1q_f32(x + c + 4));
            if (shape > 1) a[1] = vfmaq_f32(a[1], row0, vld1q_f32(x1 + c));
            if (shape > 1) b[1] = vfmaq_f32(b[1], row1, vld1q_f32(x1 + c + 4));
            if (shape > 2) a[2] = vfmaq_f32(a[2], row0, vld1q_f32(x2 + c));
            if (shape > 2) b[2] = vfmaq_f32(b[2], row1, vld1q_f32(x2 + c + 4));
            if (shape > 2) a[3] = vfmaq_f32(a[3], row0, vld1q_f32(x3 + c));
            if (shape > 2) b[3] = vfmaq_f32(b[3], row1, vld1q_f32(x3 + c + 4));
        }
        for (j = 0; j < 4; j++) a[j] = vaddq_f32(a[j], b[j]);
        vst1q_f32(products, oscar__sum4_neon(a));
        for (j = 0; j < count; j++) out[(size_t)j * to] = products[j];
    }
}

static OSCAR__NEON void oscar__attend_products_neon(oscar_type type, int count, int rows, int dim, const float *x,
                                                    ptrdiff_t x_stride, const void *m, ptrdiff_t m_stride,
                                                    ptrdiff_t ahead, float *out, ptrdiff_t out_stride)
{
    const unsigned char *first = (const unsigned char *)m;
    OSCAR__BY_TYPE(oscar__products_neon, type, count,
                   (count, rows, dim, x, x_stride, first, m_stride, ahead, out, out_stride))
}

/* Four vectors of a query += weight times those of a row. */
OSCAR__INLINE OSCAR__NEON void oscar__combine_row_neon(const float32x4_t *row, float weight, float32x4_t *sum)
{
    sum[0] = vfmaq_n_f32(sum[0], row[0], weight);
    sum[1] = vfmaq_n_f32(sum[1], row[1], weight);
    sum[2] = vfmaq_n_f32(sum[2], row[2], weight);
    sum[3] = vfmaq_n_f32(sum[3], row[3], weight);
}

/* Four vectors, written out like the sums of oscar__rotate_neon. */
OSCAR__INLINE OSCAR__NEON void oscar__get_four_neon(const float *x, float32x4_t *four)
{
    four[0] = vld1q_f32(x);
    four[1] = vld1q_f32(x + 4);
    four[2] = vld1q_f32(x + 8);
    four[3] = vld1q_f32(x + 12);
}
OSCAR__INLINE OSCAR__NEON void oscar__put_four_neon(const float32x4_t *four, float *x)
{
    vst1q_f32(x, four[0]);
    vst1q_f32(x + 4, four[1]);
    vst1q_f32(x + 8, four[2]);
    vst1q_f32(x + 12, four[3]);
}

/* out += the sum over rows, for 16 channels; rows in order. */
OSCAR__INLINE OSCAR__NEON void oscar__combine16_neon(oscar_type type, int shape, int count, int rows,
                                                     const float *weight, size_t one, const unsigned char *m,
                                                     ptrdiff_t m_stride, ptrdiff_t ahead, float *out, size_t to)
{
    float32x4_t sum0[4], sum1[4], sum2[4], sum3[4], row[4];
    size_t w1 = count > 1 ? one : 0, w2 = count > 2 ? 2 * one : 0, w3 = count > 3 ? 3 * one : 0;
    size_t to1 = count > 1 ? to : 0, to2 = count > 2 ? 2 * to : 0, to3 = count > 3 ? 3 * to : 0;
    int r, size = (int)oscar__type_size(type);
    oscar__get_four_neon(out, sum0);
    if (shape > 1) oscar__get_four_neon(out + to1, sum1);
    if (shape > 2) oscar__get_four_neon(out + to2, sum2);
    if (shape > 2) oscar__get_four_neon(out + to3, sum3);
    for (r = 0; r < rows; r++, m += m_stride, weight++) {
        row[0] = oscar__widen4_neon(type, OSCAR_F32, m);
        row[1] = oscar__widen4_neon(type, OSCAR_F32, m + 4 * size);
        row[2] = oscar__widen4_neon(type, OSCAR_F32, m + 8 * size);
        row[3] = oscar__widen4_neon(type, OSCAR_F32, m + 12 * size);
        OSCAR__PREFETCH(m + ahead);
        oscar__combine_row_neon(row, weight[0], sum0);
        if (shape > 1) oscar__combine_row_neon(row, weight[w1], sum1);
        if (shape > 2) oscar__combine_row_neon(row, weight[w2], sum2);
        if (shape > 2) oscar__combine_row_neon(row, weight[w3], sum3);
    }
    oscar__put_four_neon(sum0, out);
    if (shape > 1) oscar__put_four_neon(sum1, out + to1);
    if (shape > 2) oscar__put_four_neon(sum2, out + to2);
    if (shape > 2 && count > 3) oscar__put_four_neon(sum3, out + to3);
}

OSCAR__INLINE OSCAR__NEON void oscar__combine_neon(oscar_type type, int shape, int count, int rows, int dim,
                                                   const float *weight, ptrdiff_t weight_stride,
                                                   const unsigned char *m, ptrdiff_t m_stride, ptrdiff_t ahead,
                                                   float *out, ptrdiff_t out_stride)
{
    size_t one = (size_t)weight_stride / sizeof(float), to = (size_t)out_stride / sizeof(float);
    int c, size = (int)oscar__type_size(type);
    for (c = 0; c < dim; c += 16)
        oscar__combine16_neon(type, shape, count, rows, weight, one, m + c * size, m_stride, ahead, out + c, to);
}

static OSCAR__NEON void oscar__attend_combine_neon(oscar_type type, int count, int rows, int dim, const float *weight,
                                                   ptrdiff_t weight_stride, const void *m, ptrdiff_t m_stride,
                                                   ptrdiff_t ahead, float *out, ptrdiff_t out_stride)
{
    const unsigned char *first = (const unsigned char *)m;
    OSCAR__BY_TYPE(oscar__combine_neon, type, count,
                   (count, rows, dim, weight, weight_stride, first, m_stride, ahead, out, out_stride))
}

static const oscar__attend_kernels oscar__attend_neon = {
    oscar__attend_widen_neon, oscar__attend_products_neon, oscar__attend_combine_neon, oscar__attend_limbs_neon,
    oscar__attend_mean_neon, oscar__attend_score_neon, oscar__attend_softmax_neon, oscar__attend_rescale_neon,
    oscar__attend_weigh_neon, oscar__attend_blend_neon, 4, NULL, NULL
};

#endif /* OSCAR__HAS_NEON */

/* == 3.21 WHICH INSTRUCTION SET == */

static const oscar__kernels oscar__scalar_kernels = {
    OSCAR_ISA_SCALAR,
    oscar__load, oscar__store, oscar__load_rounded, oscar__finite,
    oscar__fwht_rows, oscar__butterfly, oscar__rotate_rows, oscar__rotate_back, oscar__centre_row,
    oscar__sum_products, oscar__encode_rows, oscar__pack_tile, oscar__put_halves,
    oscar__mean_sum, oscar__mean_levels,
    oscar__eigh_dots, oscar__eigh_turn, oscar__eigh_turn_dots, oscar__eigh_angles,
    oscar__add_row_sum, oscar__add_tile, oscar__widen, oscar__weigh_copy, oscar__turn_halves,
    oscar__exp_row, oscar__weigh_row, NULL
};
#if defined(OSCAR__HAS_AVX2)
static const oscar__kernels oscar__avx2_kernels = {
    OSCAR_ISA_AVX2,
    oscar__load_avx2, oscar__store_avx2, oscar__load_rounded_avx2, oscar__finite_avx2,
    oscar__fwht_avx2, oscar__butterfly_avx2, oscar__rotate_avx2, oscar__rotate_back_avx2, oscar__centre_avx2,
    oscar__sum_products_avx2, oscar__encode_avx2, oscar__pack_avx2, oscar__put_halves_avx2,
    oscar__mean_sum_avx2, oscar__mean_levels_avx2,
    oscar__eigh_dots_avx2, oscar__eigh_turn_avx2, oscar__eigh_turn_dots_avx2, oscar__eigh_angles_avx2,
    oscar__add_row_sum_avx2, oscar__add_tile_avx2, oscar__widen_avx2, oscar__weigh_copy_avx2,
    oscar__turn_halves_avx2, oscar__exp_row_avx2, oscar__weigh_row_avx2, &oscar__attend_avx2
};
#endif
#if defined(OSCAR__HAS_AVX512)
static const oscar__kernels oscar__avx512_kernels = {
    OSCAR_ISA_AVX512,
    oscar__load_avx512, oscar__store_avx512, oscar__load_rounded_avx512, oscar__finite_avx512,
    oscar__fwht_avx512, oscar__butterfly_avx512, oscar__rotate_avx512, oscar__rotate_back_avx512, oscar__centre_avx512,
    oscar__sum_products_avx512, oscar__encode_avx512, oscar__pack_avx2, oscar__put_halves_avx2,
    oscar__mean_sum_avx512, oscar__mean_levels_avx512,
    oscar__eigh_dots_avx512, oscar__eigh_turn_avx512, oscar__eigh_turn_dots_avx512, oscar__eigh_angles_avx2,
    oscar__add_row_sum_avx512, oscar__add_tile_avx512, oscar__widen_avx512, oscar__weigh_copy_avx512,
    oscar__turn_halves_avx512, oscar__exp_row_avx512, oscar__weigh_row_avx512, &oscar__attend_avx512
};
#endif

#if defined(OSCAR__HAS_AMX)
static const oscar__kernels oscar__amx_kernels = {   /* attention alone differs from AVX-512 */
    OSCAR_ISA_AMX,
    oscar__load_avx512, oscar__store_avx512, oscar__load_rounded_avx512, oscar__finite_avx512,
    oscar__fwht_avx512, oscar__butterfly_avx512, oscar__rotate_avx512, oscar__rotate_back_avx512, oscar__centre_avx512,
    oscar__sum_products_avx512, oscar__encode_avx512, oscar__pack_avx2, oscar__put_halves_avx2,
    oscar__mean_sum_avx512, oscar__mean_levels_avx512,
    oscar__eigh_dots_avx512, oscar__eigh_turn_avx512, oscar__eigh_turn_dots_avx512, oscar__eigh_angles_avx2,
    oscar__add_row_sum_avx512, oscar__add_tile_avx512, oscar__widen_avx512, oscar__weigh_copy_avx512,
    oscar__turn_halves_avx512, oscar__exp_row_avx512, oscar__weigh_row_avx512, &oscar__attend_amx
};
#endif

#if defined(OSCAR__HAS_NEON)
static const oscar__kernels oscar__neon_kernels = {
    OSCAR_ISA_NEON,
    oscar__load_neon, oscar__store_neon, oscar__load_rounded_neon, oscar__finite_neon,
    oscar__fwht_neon, oscar__butterfly_neon, oscar__rotate_neon, oscar__rotate_back, oscar__centre_neon,
    oscar__sum_products_neon, oscar__encode_neon, oscar__pack_neon, oscar__put_halves_neon,
    oscar__mean_sum_neon, oscar__mean_levels_neon,
    oscar__eigh_dots_neon, oscar__eigh_turn_neon, oscar__eigh_turn_dots_neon, oscar__eigh_angles_neon,
    oscar__add_row_sum_neon, oscar__add_tile_neon, oscar__widen_neon, oscar__weigh_copy_neon,
    oscar__turn_halves_neon, oscar__exp_row_neon, oscar__weigh_row_neon, &oscar__attend_neon
};

#if !defined(__ARM_FEATURE_DOTPROD) && defined(__APPLE__)
#  if defined(__cplusplus)
extern "C"
#  endif
int sysctlbyname(const char *name, void *value, size_t *size, void *set, size_t set_size);
#elif !defined(__ARM_FEATURE_DOTPROD) && defined(_WIN32)
#  if defined(__cplusplus)
extern "C"
#  endif
__declspec(dllimport) int __stdcall IsProcessorFeaturePresent(unsigned long feature);
#endif

/* Whether this machine has products of bytes. */
static int oscar__dotprod(void)
{
#if defined(__ARM_FEATURE_DOTPROD)   /* this build needs them anyway */
    return 1;
#elif defined(__linux__)
    return (int)(getauxval(16) >> 20 & 1);   /* AT_HWCAP, HWCAP_ASIMDDP */
#elif defined(__APPLE__)
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &size, NULL, 0) == 0 && found;
#elif defined(_WIN32)
    return IsProcessorFeaturePresent(43) != 0;   /* PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE */
#else
    return 0;
#endif
}

#endif
#if defined(OSCAR__HAS_AVX2)

/* registers: eax, ebx, ecx, edx of a leaf; zeros where the processor has no such leaf. */
static void oscar__cpuid(unsigned leaf, unsigned subleaf, unsigned registers[4])
{
#if defined(_MSC_VER)
    int words[4] = { 0 }, i;
    __cpuid(words, 0);
    if ((unsigned)words[0] >= leaf) __cpuidex(words, (int)leaf, (int)subleaf);
    else memset(words, 0, sizeof words);
    for (i = 0; i < 4; i++) registers[i] = (unsigned)words[i];
#else
    memset(registers, 0, 4 * sizeof *registers);
    if ((unsigned)__get_cpuid_max(0, NULL) >= leaf)
        __cpuid_count(leaf, subleaf, registers[0], registers[1], registers[2], registers[3]);
#endif
}

/* The register state that the operating system saves. */
static uint64_t oscar__xgetbv(void)
{
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
#endif
}

static int oscar__all_bits(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

#endif

#if defined(OSCAR__HAS_AMX)
#if !defined(OSCAR__TILE_ALLOWED)
#  define OSCAR__TILE_ALLOWED(seven, saved) oscar__amx_allowed(seven, saved)
#endif

/* Whether the processor has tiles and the system gives this process their state: seven of cpuid, saved of xgetbv. The
   system call is arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), made directly because no standard header declares
   it; all threads, later ones too, get the permission, and asking twice does no harm. It is refused by kernels before
   5.16, and where a thread has an alternate signal stack too small for the tiles: then there is no AMX. */
static int oscar__amx_allowed(const unsigned seven[4], uint64_t saved)
{
    long result = 158;   /* arch_prctl */
    if (!oscar__all_bits(seven[3], 1u << 24 | 1u << 25) /* TILE, INT8 */ || !oscar__all_bits(saved, 3u << 17)) return 0;
    __asm__ volatile("syscall" : "+a"(result) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    return result == 0;
}
#endif

/* NULL if it is not in this build or not on this machine. */
static const oscar__kernels *oscar__kernels_of(oscar_isa isa)
{
#if defined(OSCAR__HAS_AVX2)
    unsigned one[4], seven[4];
    uint64_t saved = 0;
    int avx2, avx512;
    oscar__cpuid(1, 0, one);
    oscar__cpuid(7, 0, seven);
    if (one[2] >> 27 & 1) saved = oscar__xgetbv();   /* OSXSAVE */
    avx2 = oscar__all_bits(one[2], 1u << 12 | 1u << 29) /* FMA, F16C */ && oscar__all_bits(seven[1], 1u << 5)
           && oscar__all_bits(saved, 6);
    avx512 = avx2 && oscar__all_bits(seven[1], 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
             && oscar__all_bits(seven[2], 1u << 11) /* VNNI */ && oscar__all_bits(saved, 0xe6);
    if (isa == OSCAR_ISA_AVX2 && avx2) return &oscar__avx2_kernels;
#if defined(OSCAR__HAS_AVX512)
    if (isa == OSCAR_ISA_AVX512 && avx512) return &oscar__avx512_kernels;
#else
    (void)avx512;
#endif
#if defined(OSCAR__HAS_AMX)
    if (isa == OSCAR_ISA_AMX && avx512 && OSCAR__TILE_ALLOWED(seven, saved)) return &oscar__amx_kernels;
#endif
#endif
#if defined(OSCAR__HAS_NEON)
    if (isa == OSCAR_ISA_NEON && oscar__dotprod()) return &oscar__neon_kernels;
#endif
    return isa == OSCAR_ISA_SCALAR ? &oscar__scalar_kernels : NULL;
}

static const oscar__kernels *oscar__kernels_best(void)
{
    int isa;
    for (isa = OSCAR_ISA_COUNT - 1; isa > OSCAR_ISA_SCALAR; isa--) {
        const oscar__kernels *kernels = oscar__kernels_of((oscar_isa)isa);
        if (kernels) return kernels;
    }
    return &oscar__scalar_kernels;
}

/* The table in use, NULL before the first call. Threads that race write the same value. */
#if defined(OSCAR_NO_ATOMICS)
static const oscar__kernels *oscar__isa_kernels;
#  define OSCAR__LOAD(p) (p)
#  define OSCAR__STORE(p, value) ((p) = (value))
#elif defined(_MSC_VER)
static const oscar__kernels *volatile oscar__isa_kernels;   /* an aligned pointer is read and written whole */
#  define OSCAR__LOAD(p) (p)
#  define OSCAR__STORE(p, value) ((p) = (value))
#else
static const oscar__kernels *oscar__isa_kernels;
#  define OSCAR__LOAD(p) __atomic_load_n(&(p), __ATOMIC_RELAXED)
#  define OSCAR__STORE(p, value) __atomic_store_n(&(p), (value), __ATOMIC_RELAXED)
#endif

static const oscar__kernels *oscar__kernels_now(void)
{
    const oscar__kernels *kernels = OSCAR__LOAD(oscar__isa_kernels);
    if (!kernels) {
        kernels = oscar__kernels_best();
        OSCAR__STORE(oscar__isa_kernels, kernels);
    }
    return kernels;
}

OSCAR_API oscar_isa oscar_isa_active(void) { return oscar__kernels_now()->isa; }

OSCAR_API oscar_result oscar_isa_force(oscar_isa isa)
{
    const oscar__kernels *kernels;
    if ((int)isa < OSCAR_ISA_AUTO || (int)isa >= OSCAR_ISA_COUNT) return OSCAR_ERR_ARGUMENT;
    kernels = isa == OSCAR_ISA_AUTO ? oscar__kernels_best() : oscar__kernels_of(isa);
    if (!kernels) return OSCAR_ERR_ISA;
    OSCAR__STORE(oscar__isa_kernels, kernels);
    return OSCAR_OK;
}

OSCAR_API const char *oscar_isa_name(oscar_isa isa)
{
    static const char *const names[] = { "auto", "scalar", "AVX2", "AVX-512", "AMX", "NEON" };
    return (int)isa >= 0 && (int)isa < OSCAR_ISA_COUNT ? names[(int)isa] : "unknown";
}

#endif /* OSCAR_IMPLEMENTATION */

/* ==================================================================================================================
   == 4 LICENSE
   ==================================================================================================================

   This software is available under two licenses; choose the one you prefer.

   ALTERNATIVE A: MIT License

   Copyright (c) 2026 the oscar.h authors

   Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
   documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
   rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
   permit persons to whom the Software is furnished to do so, subject to the following conditions:

   The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
   Software.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
   WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
   COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
   OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.

   ALTERNATIVE B: Public Domain (www.unlicense.org)

   This is free and unencumbered software released into the public domain.

   Anyone is free to copy, modify, publish, use, compile, sell, or distribute this software, either in source code form
   or as a compiled binary, for any purpose, commercial or non-commercial, and by any means.

   In jurisdictions that recognize copyright laws, the author or authors of this software dedicate any and all copyright
   interest in the software to the public domain. We make this dedication for the benefit of the public at large and to
   the detriment of our heirs and successors. We intend this dedication to be an overt act of relinquishment in
   perpetuity of all present and future rights to this software under copyright law.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
   WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS BE
   LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
   OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE. */
