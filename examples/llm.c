/* llm.c - a language model with a 2-bit KV cache, in one file on oscar.h.

       cc -O3 -march=native -ffp-contract=fast -I. examples/llm.c -o llm -lm -pthread        (or: make llm)
       llm generate MODEL "Once upon a time" --rotations FILE       (--gpu: the cache on an NVIDIA GPU)

   MODEL is a GGUF file of a llama, qwen2, qwen3 or gemma3 model (`make models` fetches two small ones). The file is a
   complete engine: it reads the model, its tokenizer and its quantised weights, runs prompts in chunks and decodes
   token by token. What it is for: to show where an engine calls oscar.h (sections 7, 10 and 11), and to measure what a
   cache does to a model: `calibrate` finds the transforms, `ppl` prints perplexity, KL divergence and agreement,
   `needle` retrieval. `llm --help` lists commands and options.

    1 MESSAGES, MEMORY, FILES        5 THREADS, MATRIX PRODUCTS      9 OPTIONS, CACHE SETTINGS
    2 GGUF                           6 MODEL                        10 CALIBRATION
    3 NUMBER FORMATS OF WEIGHTS      7 FORWARD PASS                 11 A CACHE FOR THE WHOLE MODEL: GENERATION
    4 TOKENIZER                      8 SCORES                       12 COMMANDS

   POSIX (mmap, pthreads) and the vectors of gcc and clang. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#define OSCAR_IMPLEMENTATION
#include "oscar_cuda.h"
#include "examples/device.h"

/* == 1 MESSAGES, MEMORY, FILES ==================================================================================== */

static int llm_quiet;   /* fuzzing reads thousands of bad files */

/* Prints a message and returns 0, so that a function that fails can say `return complain(...)`. */
static int complain(const char *format, ...)
{
    va_list args;
    if (llm_quiet) return 0;
    fflush(stdout);
    flockfile(stderr);   /* one thread at a time */
    fputs("llm: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    funlockfile(stderr);
    return 0;
}

/* Cleared memory, or NULL after a message. */
static void *allocate(size_t count, size_t each)
{
    void *memory = NULL;
    if (!count || !each) count = each = 1;
    if (count <= (size_t)-1 / each) memory = calloc(count, each);
    if (!memory) complain("no memory for %lu x %lu bytes", (unsigned long)count, (unsigned long)each);
    return memory;
}

/* Bytes inside a file or buffer, not ended by a 0. */
typedef struct text { const char *at; size_t size; } text;

static text text_of(const char *s)
{
    text t;
    t.at = s;
    t.size = strlen(s);
    return t;
}

static int text_is(text t, const char *s) { return t.size == strlen(s) && !memcmp(t.at, s, t.size); }

/* A file as memory: mapped, so that weights are read as they are used and shared between runs. */
typedef struct mapped { const unsigned char *bytes; size_t size; } mapped;

static int map_file(const char *path, mapped *out)
{
    struct stat info;
    void *memory;
    int file = open(path, O_RDONLY);
    out->bytes = NULL;
    out->size = 0;
    if (file < 0) return complain("cannot open %s: %s", path, strerror(errno));
    if (fstat(file, &info) || !S_ISREG(info.st_mode) || info.st_size <= 0) {
        close(file);
        return complain("%s is empty or not a regular file", path);
    }
    memory = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (memory == MAP_FAILED) return complain("cannot map %s: %s", path, strerror(errno));
    out->bytes = (const unsigned char *)memory;
    out->size = (size_t)info.st_size;
    return 1;
}

static void unmap_file(mapped *m)
{
    if (m->bytes) munmap((void *)(uintptr_t)m->bytes, m->size);
    m->bytes = NULL;
}

/* == 2 GGUF ======================================================================================================= */

/* A model file, all little endian:

       "GGUF"  u32 version (2 or 3)  u64 tensors  u64 keys
       for each key      string name, u32 type, value
       for each tensor   string name, u32 dims, u64 shape[dims] (row length first), u32 number format, u64 offset
       zeros to a multiple of general.alignment (32 where that key is absent), then the data that offsets count from

   A string is u64 size and its bytes. A value of type GGUF_ARRAY is u32 element type, u64 count, elements. Nothing is
   aligned before the data. Every length, count and offset is checked here, against the bytes that are left, before it
   is used or memory is asked for; what the functions after gguf_parse hand out lies inside the file. */

enum {
    GGUF_UINT8, GGUF_INT8, GGUF_UINT16, GGUF_INT16, GGUF_UINT32, GGUF_INT32, GGUF_FLOAT32, GGUF_BOOL, GGUF_STRING,
    GGUF_ARRAY, GGUF_UINT64, GGUF_INT64, GGUF_FLOAT64, GGUF_TYPES
};

/* shape[0] is the length of a row, unused dimensions are 1. The data lies at a multiple of 8 bytes from the file's
   start; it is NULL where type is not one that section 3 reads (row_bytes gives 0 then), so only its use fails. */
typedef struct tensor { text name; int type; int dims; int64_t shape[4]; const unsigned char *data; } tensor;

/* Elements in the file, unaligned. */
typedef struct gguf_array { int type; int64_t count; const unsigned char *data; size_t size; } gguf_array;

typedef struct gguf_key { text name; int is_array; gguf_array value; } gguf_key;   /* a single value: count is 1 */

/* Both lists are in the order of their names (bytes compared). Everything points into the caller's bytes. */
typedef struct gguf {
    tensor *tensors;
    gguf_key *keys;
    int tensor_count, key_count;
    int version;
} gguf;

static size_t row_bytes(int type, int64_t n);   /* section 3 */
static const char *type_name(int type);
static int type_is_known(int type);

/* ---- reading bytes ---- */

static uint32_t read16(const unsigned char *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }
static uint32_t read32(const unsigned char *at) { return read16(at) | read16(at + 2) << 16; }
static uint64_t read64(const unsigned char *at) { return read32(at) | (uint64_t)read32(at + 4) << 32; }

/* What is left of the file, and a name for the part that is being read, for messages. */
typedef struct gguf_reader { const unsigned char *at; size_t left; char part[96]; } gguf_reader;

/* The reader is at a key or tensor: its number, and when that is known its name, cut and free of control characters. */
static void name_part(gguf_reader *r, const char *kind, int64_t number, const text *name)
{
    size_t i, size;
    if (!name) { snprintf(r->part, sizeof r->part, "%s number %ld", kind, (long)number + 1); return; }
    size = (size_t)snprintf(r->part, sizeof r->part, "%s ", kind);
    for (i = 0; i < name->size && size < sizeof r->part - 4; i++) {
        char c = name->at[i];
        r->part[size++] = c > ' ' && c < 127 ? c : '?';
    }
    strcpy(r->part + size, i < name->size ? "..." : "");
}

/* The next bytes, or NULL after a message. */
static const unsigned char *take(gguf_reader *r, size_t bytes)
{
    const unsigned char *at = r->at;
    if (bytes > r->left) { complain("the file ends within %s", r->part); return NULL; }
    r->at += bytes;
    r->left -= bytes;
    return at;
}

static int take32(gguf_reader *r, uint32_t *out)
{
    const unsigned char *at = take(r, 4);
    *out = at ? read32(at) : 0;
    return at != NULL;
}

static int take64(gguf_reader *r, uint64_t *out)
{
    const unsigned char *at = take(r, 8);
    *out = at ? read64(at) : 0;
    return at != NULL;
}

static int take_text(gguf_reader *r, text *out)
{
    uint64_t size;
    if (!take64(r, &size)) return 0;
    if (size > r->left)
        return complain("%s: a string of %llu bytes, more than the file has left", r->part, (unsigned long long)size);
    out->at = (const char *)take(r, (size_t)size);
    out->size = (size_t)size;
    return 1;
}

/* ---- keys ---- */

/* Bytes of a value of each type; of a string at least. 0: an array. */
static size_t gguf_value_bytes(int type)
{
    static const unsigned char bytes[GGUF_TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8 };
    return bytes[type];
}

/* Checks `count` values, so that they can be walked without checks later. */
static int take_values(gguf_reader *r, uint32_t type, uint64_t count, gguf_array *out)
{
    const unsigned char *start = r->at;
    uint64_t i;
    text t;
    if (type >= GGUF_TYPES) return complain("%s: there is no value type %lu", r->part, (unsigned long)type);
    if (type == GGUF_ARRAY) return complain("%s: arrays of arrays are not read", r->part);
    if (count > r->left / gguf_value_bytes((int)type))
        return complain("%s: %llu values, more than the file has left", r->part, (unsigned long long)count);
    if (type != GGUF_STRING) take(r, (size_t)count * gguf_value_bytes((int)type));
    else for (i = 0; i < count; i++) if (!take_text(r, &t)) return 0;
    out->type = (int)type;
    out->count = (int64_t)count;
    out->data = start;
    out->size = (size_t)(r->at - start);
    return 1;
}

static int take_key(gguf_reader *r, int64_t number, gguf_key *out)
{
    uint32_t type;
    uint64_t count = 1;
    name_part(r, "key", number, NULL);
    if (!take_text(r, &out->name)) return 0;
    name_part(r, "key", number, &out->name);
    if (!take32(r, &type)) return 0;
    out->is_array = type == GGUF_ARRAY;
    if (out->is_array && !(take32(r, &type) && take64(r, &count))) return 0;
    return take_values(r, type, count, &out->value);
}

/* ---- tensors ---- */

/* Everything but the data, whose place in the file is known only behind the last tensor. */
static int take_tensor(gguf_reader *r, int64_t number, tensor *out, uint64_t *offset)
{
    uint32_t dims, type;
    int64_t values = 1;
    int i;
    name_part(r, "tensor", number, NULL);
    if (!take_text(r, &out->name)) return 0;
    name_part(r, "tensor", number, &out->name);
    if (!take32(r, &dims)) return 0;
    if (dims < 1 || dims > 4) return complain("%s: %lu dimensions, not 1 to 4", r->part, (unsigned long)dims);
    out->dims = (int)dims;
    for (i = 0; i < 4; i++) {
        uint64_t n = 1;
        if (i < out->dims && !take64(r, &n)) return 0;
        if (!n) return complain("%s: dimension %d is 0", r->part, i);
        if (n > (uint64_t)(INT64_MAX / values)) return complain("%s: too many values for any memory", r->part);
        out->shape[i] = (int64_t)n;
        values *= (int64_t)n;
    }
    if (!take32(r, &type) || !take64(r, offset)) return 0;
    out->type = type <= INT32_MAX ? (int)type : -1;
    return 1;
}

/* Finds the data of a tensor in the file's last part. */
static int place_tensor(gguf_reader *r, tensor *t, uint64_t offset, uint32_t alignment)
{
    uint64_t rows = (uint64_t)(t->shape[1] * t->shape[2] * t->shape[3]);
    size_t bytes = row_bytes(t->type, t->shape[0]);
    name_part(r, "tensor", 0, &t->name);
    if (offset % alignment)
        return complain("%s: its data is at %llu, not a multiple of the file's alignment %lu", r->part,
                        (unsigned long long)offset, (unsigned long)alignment);
    if (offset > r->left) return complain("%s: its data lies behind the end of the file", r->part);
    if (!type_is_known(t->type)) return 1;
    if (!bytes)
        return complain("%s: rows of %lld values cannot be of type %s", r->part, (long long)t->shape[0],
                        type_name(t->type));
    if (rows > (r->left - (size_t)offset) / bytes)
        return complain("%s: its data goes past the end of the file", r->part);
    t->data = r->at + offset;
    return 1;
}

/* ---- parsing ---- */

/* Orders texts, and structs that start with one. */
static int compare_texts(const void *a, const void *b)
{
    const text *x = (const text *)a, *y = (const text *)b;
    size_t both = x->size < y->size ? x->size : y->size;
    int order = both ? memcmp(x->at, y->at, both) : 0;
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

/* Sorts structs that start with their name, no two of which may be equal. */
static int sort_by_name(gguf_reader *r, const char *kind, void *list, int count, size_t each)
{
    const char *at = (const char *)list;
    int i;
    qsort(list, (size_t)count, each, compare_texts);
    for (i = 1; i < count; i++, at += each)
        if (!compare_texts(at, at + each)) {
            name_part(r, kind, 0, (const text *)(const void *)at);
            return complain("%s occurs twice", r->part);
        }
    return 1;
}

static void *find_by_name(const char *name, const void *list, int count, size_t each)
{
    text t = text_of(name);
    return count ? bsearch(&t, list, (size_t)count, each, compare_texts) : NULL;
}

static const gguf_key *gguf_find(const gguf *g, const char *key)
{
    return (const gguf_key *)find_by_name(key, g->keys, g->key_count, sizeof *g->keys);
}

/* A multiple of 8 by the format, so that F32 data in a mapped file is aligned. */
static int gguf_alignment(const gguf *g, uint32_t *out)
{
    const gguf_key *key = gguf_find(g, "general.alignment");
    *out = 32;
    if (!key) return 1;
    if (key->is_array || key->value.type != GGUF_UINT32) return complain("key general.alignment is not one UINT32");
    *out = read32(key->value.data);
    if (*out < 8 || (*out & (*out - 1)))
        return complain("key general.alignment is %lu, not a power of two from 8 on", (unsigned long)*out);
    return 1;
}

/* The first 24 bytes. The least sizes of a key (12 bytes and a value) and of a tensor bound their numbers, so that the
   lists take at most about five times the bytes that the file has. */
static int take_header(gguf_reader *r, gguf *out)
{
    uint32_t version;
    uint64_t tensors, keys;
    snprintf(r->part, sizeof r->part, "its header");
    if (r->left < 4 || memcmp(r->at, "GGUF", 4)) return complain("this is no GGUF file: it does not start with GGUF");
    take(r, 4);
    if (!take32(r, &version)) return 0;
    if (version && !(version & 0xffff)) return complain("this GGUF file is big endian, only little endian is read");
    if (version == 1) return complain("this GGUF file is of version 1, an old layout; convert the model again");
    if (version != 2 && version != 3)
        return complain("this GGUF file is of version %lu, only 2 and 3 are read", (unsigned long)version);
    out->version = (int)version;
    if (!take64(r, &tensors) || !take64(r, &keys)) return 0;
    if (tensors > r->left / 32 || tensors > INT32_MAX)
        return complain("the header counts %llu tensors, more than fit in the file", (unsigned long long)tensors);
    if (keys > r->left / 13 || keys > INT32_MAX)
        return complain("the header counts %llu keys, more than fit in the file", (unsigned long long)keys);
    out->tensor_count = (int)tensors;
    out->key_count = (int)keys;
    return 1;
}

/* The lists in `out`, which take_header counted; offsets: room for one of each tensor. */
static int take_lists(gguf_reader *r, const unsigned char *bytes, gguf *out, uint64_t *offsets)
{
    uint32_t alignment;
    size_t padding;
    int i;
    for (i = 0; i < out->key_count; i++) if (!take_key(r, i, &out->keys[i])) return 0;
    if (!sort_by_name(r, "key", out->keys, out->key_count, sizeof *out->keys)) return 0;
    if (!gguf_alignment(out, &alignment)) return 0;
    for (i = 0; i < out->tensor_count; i++) if (!take_tensor(r, i, &out->tensors[i], &offsets[i])) return 0;
    padding = (size_t)-(r->at - bytes) & (alignment - 1);
    if (padding > r->left) padding = r->left;   /* a file without data may end before it */
    r->at += padding;
    r->left -= padding;
    for (i = 0; i < out->tensor_count; i++) if (!place_tensor(r, &out->tensors[i], offsets[i], alignment)) return 0;
    return sort_by_name(r, "tensor", out->tensors, out->tensor_count, sizeof *out->tensors);
}

static void gguf_free(gguf *g)
{
    free(g->tensors);
    free(g->keys);
    memset(g, 0, sizeof *g);
}

/* Reads the lists of a file that is in memory, and stays there as long as *out is used. Empty after failure. */
static int gguf_parse(const unsigned char *bytes, size_t size, gguf *out)
{
    gguf_reader r;
    uint64_t *offsets;
    int good;
    memset(out, 0, sizeof *out);
    r.at = bytes;
    r.left = size;
    if (!take_header(&r, out)) { memset(out, 0, sizeof *out); return 0; }
    out->tensors = (tensor *)allocate((size_t)out->tensor_count, sizeof *out->tensors);
    out->keys = (gguf_key *)allocate((size_t)out->key_count, sizeof *out->keys);
    offsets = (uint64_t *)allocate((size_t)out->tensor_count, sizeof *offsets);
    good = out->tensors && out->keys && offsets && take_lists(&r, bytes, out, offsets);
    free(offsets);
    if (!good) gguf_free(out);
    return good;
}

/* ---- what is in the file ---- */

/* A number, exact up to 2^53: element i of an array, or a single value for every i. No message where there is none. */
static int gguf_real(const gguf *g, const char *key, int64_t i, double *out)
{
    const gguf_key *k = gguf_find(g, key);
    const unsigned char *at;
    uint32_t bits32;
    uint64_t bits64;
    float single;
    if (!k || k->value.type == GGUF_STRING || i < 0 || (k->is_array && i >= k->value.count)) return 0;
    at = k->value.data + (k->is_array ? (size_t)i : 0) * gguf_value_bytes(k->value.type);
    switch (k->value.type) {
    case GGUF_UINT8: *out = at[0]; break;
    case GGUF_INT8: *out = (int)(at[0] ^ 128u) - 128; break;
    case GGUF_UINT16: *out = read16(at); break;
    case GGUF_INT16: *out = (int)(read16(at) ^ 0x8000u) - 0x8000; break;
    case GGUF_UINT32: *out = read32(at); break;
    case GGUF_INT32: *out = (double)read32(at) - (at[3] & 128 ? 4294967296.0 : 0); break;
    case GGUF_FLOAT32: bits32 = read32(at); memcpy(&single, &bits32, 4); *out = (double)single; break;
    case GGUF_BOOL: *out = at[0] != 0; break;
    case GGUF_UINT64: *out = (double)read64(at); break;
    case GGUF_INT64: bits64 = read64(at); *out = at[7] & 128 ? -(double)(~bits64 + 1) : (double)bits64; break;
    default: bits64 = read64(at); memcpy(out, &bits64, 8);   /* GGUF_FLOAT64 */
    }
    return 1;
}

/* Walks the strings of a string array: `at` is its data at first, then what was returned. */
static const unsigned char *gguf_next_text(const unsigned char *at, text *out)
{
    out->size = (size_t)read64(at);
    out->at = (const char *)at + 8;
    return at + 8 + out->size;
}

/* 1 if the key is there and a string. */
static int gguf_text(const gguf *g, const char *key, text *out)
{
    const gguf_key *k = gguf_find(g, key);
    if (!k || k->is_array || k->value.type != GGUF_STRING) return 0;
    gguf_next_text(k->value.data, out);
    return 1;
}

/* 1 if the key is there and an array with elements of that type; otherwise *out is empty. */
static int gguf_array_of(const gguf *g, const char *key, int type, gguf_array *out)
{
    const gguf_key *k = gguf_find(g, key);
    memset(out, 0, sizeof *out);
    if (!k || !k->is_array || k->value.type != type) return 0;
    *out = k->value;
    return 1;
}

/* A tensor, or NULL if it is absent. Its data is NULL, too, if section 3 does not read its number format. */
static const tensor *gguf_tensor(const gguf *g, const char *name)
{
    return (const tensor *)find_by_name(name, g->tensors, g->tensor_count, sizeof *g->tensors);
}

/* == 3 NUMBER FORMATS OF WEIGHTS ================================================================================== */

/* Formats of quantised weights are blocks of 32 or 256 values with scales in F16 (d, minimum m). In byte order:

       Q8_0  d, 32 x int8               x = d q
       Q4_0  d, 16 bytes                x = d (q - 8)      byte j: value j in the low half, j + 16 in the high one
       Q4_1  d, m, 16 bytes             x = d q + m        the same
       Q5_0  d, u32 h, 16 bytes         x = d (q - 16)     the same, and bit i of h is the fifth bit of value i
       Q5_1  d, m, u32 h, 16 bytes      x = d q + m        the same
       Q4_K  d, m, 12 bytes s, 128 bytes                x = d S q - m M: S, M of 6 bits in s for each 32 values
       Q5_K  d, m, 12 bytes s, 32 bytes h, 128 bytes    the same; h has the fifth bits
       Q6_K  128 bytes, 64 bytes h, 16 x int8 S, d      x = d S (q - 32): S for each 16 values, h: the upper two bits

   Every product here has at most 24 bits and is exact in float, so at most one rounding happens, in the sum of Q4_1,
   Q5_1, Q4_K and Q5_K: the results are the same whether or not a compiler fuses multiplication and addition.

   The inner loops have 16 or 32 independent steps over bytes next to each other, of which compilers make vector code
   (0.1 to 0.3 ns a value with gcc 12 -O3 -march=native on a Xeon with AVX-512). */

/* Before a short loop: unrolled completely, as compilers tend to, it would no longer be a loop to make vectors of. */
#if defined(__clang__)
#  define KEEP_LOOP _Pragma("clang loop unroll(disable)")
#elif defined(__GNUC__)
#  define KEEP_LOOP _Pragma("GCC unroll 1")
#else
#  define KEEP_LOOP
#endif

enum {
    TYPE_F32 = 0, TYPE_F16 = 1, TYPE_Q4_0 = 2, TYPE_Q4_1 = 3, TYPE_Q5_0 = 6, TYPE_Q5_1 = 7, TYPE_Q8_0 = 8,
    TYPE_Q4_K = 12, TYPE_Q5_K = 13, TYPE_Q6_K = 14, TYPE_BF16 = 30, TYPE_COUNT = 40
};

static float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static uint32_t bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* F16 has 5 bits of exponent with bias 15, float 8 with bias 127. Masks, since gcc makes no vector code of conditions
   here; and no subnormal floats, which are slow on some processors: a subnormal half, m 2^-24, is
   2^-14 (1 + m / 1024) - 2^-14. */
static float half_float(uint32_t half)
{
    uint32_t magnitude = (half & 0x7fff) << 13, normal = magnitude + (112u << 23);
    uint32_t subnormal = bits_of_float(float_of_bits(magnitude + (113u << 23)) - float_of_bits(113u << 23));
    uint32_t is_subnormal = 0u - (magnitude < 1u << 23), is_huge = 0u - (magnitude >= 31u << 23);   /* infinity, NaN */
    uint32_t bits = (subnormal & is_subnormal) | (normal & ~is_subnormal);
    bits += is_huge & (112u << 23);   /* exponent 255 */
    return float_of_bits(bits | (half & 0x8000) << 16);
}

/* ---- single values ---- */

static void floats_f32(const unsigned char *row, int64_t n, float *restrict out)
{
    int64_t i;
    for (i = 0; i < n; i++) out[i] = float_of_bits(read32(row + 4 * i));
}

static void floats_f16(const unsigned char *row, int64_t n, float *restrict out)
{
    int64_t i;
    for (i = 0; i < n; i++) out[i] = half_float(read16(row + 2 * i));
}

static void floats_bf16(const unsigned char *row, int64_t n, float *restrict out)
{
    int64_t i;
    for (i = 0; i < n; i++) out[i] = float_of_bits(read16(row + 2 * i) << 16);
}

/* ---- blocks of 32 values ---- */

static int signed_byte(unsigned char byte) { return (byte ^ 128) - 128; }

static void floats_q8_0(const unsigned char *b, int64_t blocks, float *restrict out)
{
    int j;
    for (; blocks--; b += 34, out += 32) {
        float d = half_float(read16(b));
        for (j = 0; j < 32; j++) out[j] = d * (float)signed_byte(b[2 + j]);
    }
}

static void floats_q4_0(const unsigned char *b, int64_t blocks, float *restrict out)
{
    int j;
    for (; blocks--; b += 18, out += 32) {
        float d = half_float(read16(b));
        KEEP_LOOP
        for (j = 0; j < 16; j++) {
            out[j] = d * (float)((b[2 + j] & 15) - 8);
            out[j + 16] = d * (float)((b[2 + j] >> 4) - 8);
        }
    }
}

static void floats_q4_1(const unsigned char *b, int64_t blocks, float *restrict out)
{
    int j;
    for (; blocks--; b += 20, out += 32) {
        float d = half_float(read16(b)), m = half_float(read16(b + 2));
        KEEP_LOOP
        for (j = 0; j < 16; j++) {
            out[j] = d * (float)(b[4 + j] & 15) + m;
            out[j + 16] = d * (float)(b[4 + j] >> 4) + m;
        }
    }
}

static void floats_q5_0(const unsigned char *b, int64_t blocks, float *restrict out)
{
    int j;
    for (; blocks--; b += 22, out += 32) {
        float d = half_float(read16(b));
        uint32_t h = read32(b + 2);
        for (j = 0; j < 16; j++) {
            out[j] = d * (float)((int)((b[6 + j] & 15) | (h >> j & 1) << 4) - 16);
            out[j + 16] = d * (float)((int)(b[6 + j] >> 4 | (h >> (j + 16) & 1) << 4) - 16);
        }
    }
}

static void floats_q5_1(const unsigned char *b, int64_t blocks, float *restrict out)
{
    int j;
    for (; blocks--; b += 24, out += 32) {
        float d = half_float(read16(b)), m = half_float(read16(b + 2));
        uint32_t h = read32(b + 4);
        for (j = 0; j < 16; j++) {
            out[j] = d * (float)(int)((b[8 + j] & 15) | (h >> j & 1) << 4) + m;
            out[j + 16] = d * (float)(int)(b[8 + j] >> 4 | (h >> (j + 16) & 1) << 4) + m;
        }
    }
}

/* ---- blocks of 256 values ---- */

/* Scales and minima of Q4_K and Q5_K, for 8 groups of 32 values each. The low 6 bits of bytes 0 to 3 are S of groups 0
   to 3, those of bytes 4 to 7 are M. Bytes 8 to 11 have the low four bits of groups 4 to 7, S in the low half, M in the
   high half; their upper two bits are on top of bytes 0 to 3 (S) and 4 to 7 (M). */
static void k_scales(const unsigned char *b, float *restrict scale, float *restrict minimum)
{
    float d = half_float(read16(b)), m = half_float(read16(b + 2));
    const unsigned char *s = b + 4;
    int j;
    for (j = 0; j < 4; j++) {
        scale[j] = d * (float)(s[j] & 63);
        minimum[j] = m * (float)(s[j + 4] & 63);
        scale[j + 4] = d * (float)((s[j + 8] & 15) | s[j] >> 6 << 4);
        minimum[j + 4] = m * (float)(s[j + 8] >> 4 | s[j + 4] >> 6 << 4);
    }
}

/* 32 bytes of the 128 hold two groups: the first in their low halves. */
static void floats_q4_k(const unsigned char *b, int64_t blocks, float *restrict out)
{
    float scale[8], minimum[8];
    int group, j;
    for (; blocks--; b += 144, out += 256) {
        k_scales(b, scale, minimum);
        for (group = 0; group < 8; group += 2) {
            const unsigned char *q = b + 16 + 16 * group;
            float *restrict o = out + 32 * group;
            float d0 = scale[group], m0 = minimum[group], d1 = scale[group + 1], m1 = minimum[group + 1];
            for (j = 0; j < 32; j++) {
                o[j] = d0 * (float)(q[j] & 15) - m0;
                o[j + 32] = d1 * (float)(q[j] >> 4) - m1;
            }
        }
    }
}

/* The same, and bit `group` of byte j of h belongs to value j of the group. */
static void floats_q5_k(const unsigned char *b, int64_t blocks, float *restrict out)
{
    float scale[8], minimum[8];
    int group, j;
    for (; blocks--; b += 176, out += 256) {
        const unsigned char *h = b + 16;
        k_scales(b, scale, minimum);
        for (group = 0; group < 8; group += 2) {
            const unsigned char *q = b + 48 + 16 * group;
            float *restrict o = out + 32 * group;
            float d0 = scale[group], m0 = minimum[group], d1 = scale[group + 1], m1 = minimum[group + 1];
            for (j = 0; j < 32; j++) {
                o[j] = d0 * (float)((q[j] & 15) | (h[j] >> group & 1) << 4) - m0;
                o[j + 32] = d1 * (float)(q[j] >> 4 | (h[j] >> group >> 1 & 1) << 4) - m1;
            }
        }
    }
}

/* Two halves of 128 values: 64 bytes of low bits, 32 bytes of h, 8 scales each. Byte j of h has the upper bits of four
   values, j, j + 32, j + 64, j + 96; the low halves of the 64 bytes belong to the first 64 values. Here in quarters of
   16 such columns, which have one scale in each of the four rows. */
static void floats_q6_k(const unsigned char *b, int64_t blocks, float *restrict out)
{
    int quarter, j;
    for (; blocks--; b += 210, out += 256) {
        float d = half_float(read16(b + 208));
        for (quarter = 0; quarter < 4; quarter++) {
            int half = quarter >> 1, side = quarter & 1;
            const unsigned char *q = b + 64 * half + 16 * side, *h = b + 128 + 32 * half + 16 * side;
            const unsigned char *s = b + 192 + 8 * half + side;
            float s0 = d * (float)signed_byte(s[0]), s1 = d * (float)signed_byte(s[2]);
            float s2 = d * (float)signed_byte(s[4]), s3 = d * (float)signed_byte(s[6]);
            float *restrict o = out + 128 * half + 16 * side;
            for (j = 0; j < 16; j++) {
                o[j] = s0 * (float)(((q[j] & 15) | (h[j] & 3) << 4) - 32);
                o[j + 32] = s1 * (float)(((q[j + 32] & 15) | (h[j] >> 2 & 3) << 4) - 32);
                o[j + 64] = s2 * (float)((q[j] >> 4 | (h[j] >> 4 & 3) << 4) - 32);
                o[j + 96] = s3 * (float)((q[j + 32] >> 4 | h[j] >> 6 << 4) - 32);
            }
        }
    }
}

/* ---- the formats by number ---- */

/* floats is NULL where a number has a name, for messages, but is not read. */
typedef struct weight_type {
    const char *name;
    int values, bytes;   /* of a block */
    void (*floats)(const unsigned char *blocks, int64_t count, float *restrict out);
} weight_type;

static const weight_type *weight_type_of(int type)
{
    static const weight_type types[TYPE_COUNT] = {
        { "F32", 1, 4, floats_f32 }, { "F16", 1, 2, floats_f16 }, { "Q4_0", 32, 18, floats_q4_0 },
        { "Q4_1", 32, 20, floats_q4_1 }, { "Q4_2", 0, 0, NULL }, { "Q4_3", 0, 0, NULL },
        { "Q5_0", 32, 22, floats_q5_0 }, { "Q5_1", 32, 24, floats_q5_1 }, { "Q8_0", 32, 34, floats_q8_0 },
        { "Q8_1", 0, 0, NULL }, { "Q2_K", 0, 0, NULL }, { "Q3_K", 0, 0, NULL },
        { "Q4_K", 256, 144, floats_q4_k }, { "Q5_K", 256, 176, floats_q5_k }, { "Q6_K", 256, 210, floats_q6_k },
        { "Q8_K", 0, 0, NULL }, { "IQ2_XXS", 0, 0, NULL }, { "IQ2_XS", 0, 0, NULL }, { "IQ3_XXS", 0, 0, NULL },
        { "IQ1_S", 0, 0, NULL }, { "IQ4_NL", 0, 0, NULL }, { "IQ3_S", 0, 0, NULL }, { "IQ2_S", 0, 0, NULL },
        { "IQ4_XS", 0, 0, NULL }, { "I8", 0, 0, NULL }, { "I16", 0, 0, NULL }, { "I32", 0, 0, NULL },
        { "I64", 0, 0, NULL }, { "F64", 0, 0, NULL }, { "IQ1_M", 0, 0, NULL }, { "BF16", 1, 2, floats_bf16 },
        { NULL, 0, 0, NULL }, { NULL, 0, 0, NULL }, { NULL, 0, 0, NULL }, { "TQ1_0", 0, 0, NULL },
        { "TQ2_0", 0, 0, NULL }, { NULL, 0, 0, NULL }, { NULL, 0, 0, NULL }, { NULL, 0, 0, NULL },
        { "MXFP4", 0, 0, NULL }
    };
    return type >= 0 && type < TYPE_COUNT ? &types[type] : NULL;
}

static const char *type_name(int type)
{
    const weight_type *t = weight_type_of(type);
    return t && t->name ? t->name : "unknown";
}

static int type_is_known(int type)
{
    const weight_type *t = weight_type_of(type);
    return t && t->floats;
}

/* Bytes of a row of n values; 0 if the type is not read here or n is no positive multiple of its block. */
static size_t row_bytes(int type, int64_t n)
{
    const weight_type *t = weight_type_of(type);
    if (!t || !t->floats || n <= 0 || n % t->values) return 0;
    if ((uint64_t)(n / t->values) > (size_t)-1 / (size_t)t->bytes) return 0;
    return (size_t)(n / t->values) * (size_t)t->bytes;
}

/* A row as floats. The caller has made sure that row_bytes is not 0. */
static void row_floats(int type, const unsigned char *row, int64_t n, float *out)
{
    const weight_type *t = weight_type_of(type);
    t->floats(row, n / t->values, out);
}

/* Row r of a weight as floats. */
static void tensor_row(const tensor *t, int64_t r, float *out)
{
    row_floats(t->type, t->data + (size_t)r * row_bytes(t->type, t->shape[0]), t->shape[0], out);
}

/* == 4 TOKENIZER ================================================================================================== */

/* Text to ids and back, with the vocabulary in the model file. Two kinds (tokenizer.ggml.model):

   "gpt2"   The text is cut into words, by the rule that tokenizer.ggml.pre names. In each word every byte is a token
            at first; then the two neighbours that stand first in the list of merges become one, until none do. The file
            spells bytes as printable characters (a space is U+0120).
   "llama"  SentencePiece. Every character is a token at first; then the two neighbours whose union is the piece of the
            highest score become one. The file spells a space as U+2581. A character that is no piece becomes the
            tokens <0x00> to <0xFF> of its bytes, or the unknown token.

   Both spellings are undone when the vocabulary is read, so pieces are what appears in text. Control tokens are looked
   for in text on request only, user-defined ones always; among those that start at one place the longest counts. Not
   done: Unicode normalisation (some models want NFC, which nearly all text is in). */

enum { TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5, TOKEN_BYTE = 6 };   /* GGUF's numbers */
enum { LONGEST_PIECE = 65535 };   /* in bytes; those of real models are below 1000 */

/* How "gpt2" vocabularies cut text into words.
   newer: the patterns since GPT-4: contractions in either case, any character may lead a word, line ends stay apart.
   digits: at most so many in a word; 0: any number. In the older pattern 1 also cuts the text at each digit first.
   whole_words: a word that is a piece is taken as it is, even where merges would not lead to it. */
typedef struct word_rule { const char *name; int newer, digits, whole_words; } word_rule;

static const word_rule word_rules[] = {
    { "default", 0, 0, 0 }, { "gpt-2", 0, 0, 0 }, { "olmo", 0, 0, 0 }, { "phi-2", 0, 0, 0 }, { "mpt", 0, 0, 0 },
    { "smollm", 0, 1, 0 }, { "starcoder", 0, 1, 0 }, { "refact", 0, 1, 0 }, { "command-r", 0, 1, 0 },
    { "llama-bpe", 1, 3, 1 }, { "llama3", 1, 3, 1 }, { "llama-v3", 1, 3, 1 }, { "falcon3", 1, 3, 1 },
    { "dbrx", 1, 3, 0 }, { "smaug-bpe", 1, 3, 0 },
    { "qwen2", 1, 1, 0 }, { "deepseek-r1-qwen", 1, 1, 0 }, { "stablelm2", 1, 1, 0 }
};

typedef struct token_piece { text name; int type; float score; } token_piece;
typedef struct hashed_id { uint32_t hash; int id; } hashed_id;
typedef struct merge { int left, right, id, rank; } merge;   /* rank: from 1, in the order of the file; 0: empty slot */
typedef struct marker { text name; int id; } marker;

/* Tokens that are matched whole, in the order of their bytes; first[c]: where those that start with byte c begin. */
typedef struct marker_list { marker *at; int first[257]; } marker_list;

/* Tables have 2^n slots, at least half of them empty; mask is their number less 1. */
typedef struct tokenizer {
    int count, bos, eos, add_bos;   /* an id of -1: the model has none */
    int unknown, scored, space_prefix;
    const word_rule *rule;
    token_piece *pieces;
    char *bytes;                    /* what the pieces point to */
    hashed_id *names;               /* the pieces that text can become, by their bytes */
    merge *merges;                  /* by the ids that they join */
    uint32_t names_mask, merges_mask;
    int byte_ids[256];
    marker_list control, user;
    unsigned char *classes;         /* of code points below CLASS_CODES, for rules about words */
    unsigned char joins[8192];      /* bit 256 a + b: some piece has byte a before byte b */
} tokenizer;

/* ---- characters ---- */

enum { CLASS_OTHER, CLASS_SPACE, CLASS_LETTER, CLASS_NUMBER, CLASS_END };
enum { CLASS_CODES = 0x323b0 };   /* there are no letters, numbers or spaces from here on */

/* Letters (categories L*) and numbers (N*) of Unicode 16.0: by turns, how many code points are not and are of them. */
static const uint16_t letter_runs[] = {
    65, 26, 6, 26, 47, 1, 10, 1, 4, 1, 5, 23, 1, 31, 1, 458, 4, 12, 14, 5, 7, 1, 1, 1, 129, 5, 1, 2, 2, 4, 1, 1, 6, 1,
    1, 3, 1, 1, 1, 20, 1, 83, 1, 139, 8, 166, 1, 38, 2, 1, 6, 41, 71, 27, 4, 4, 45, 43, 35, 2, 1, 99, 1, 1, 15, 2, 7, 2,
    10, 3, 2, 1, 16, 1, 1, 30, 29, 89, 11, 1, 24, 33, 9, 2, 4, 1, 5, 22, 4, 1, 9, 1, 3, 1, 23, 25, 7, 11, 5, 24, 1, 6,
    17, 42, 58, 54, 3, 1, 18, 1, 7, 10, 15, 16, 4, 8, 2, 2, 2, 22, 1, 7, 1, 1, 3, 4, 3, 1, 16, 1, 13, 2, 1, 3, 14, 2,
    10, 1, 8, 6, 4, 2, 2, 22, 1, 7, 1, 2, 1, 2, 1, 2, 31, 4, 1, 1, 19, 3, 16, 9, 1, 3, 1, 22, 1, 7, 1, 2, 1, 5, 3, 1,
    18, 1, 15, 2, 23, 1, 11, 8, 2, 2, 2, 22, 1, 7, 1, 2, 1, 5, 3, 1, 30, 2, 1, 3, 15, 1, 17, 1, 1, 6, 3, 3, 1, 4, 3, 2,
    1, 1, 1, 2, 3, 2, 3, 3, 3, 12, 22, 1, 52, 8, 1, 3, 1, 23, 1, 16, 3, 1, 26, 3, 2, 1, 2, 2, 30, 1, 4, 8, 1, 3, 1, 23,
    1, 10, 1, 5, 3, 1, 31, 2, 1, 2, 15, 2, 17, 9, 1, 3, 1, 41, 2, 1, 16, 1, 5, 3, 8, 3, 24, 6, 5, 18, 3, 24, 1, 9, 1, 1,
    2, 7, 58, 48, 1, 2, 12, 7, 58, 2, 1, 1, 1, 5, 1, 24, 1, 1, 1, 10, 1, 2, 9, 1, 2, 5, 1, 1, 21, 4, 32, 1, 63, 8, 1,
    36, 27, 5, 115, 43, 20, 1, 16, 6, 4, 4, 3, 1, 3, 2, 7, 3, 4, 13, 12, 1, 17, 38, 1, 1, 5, 1, 2, 43, 1, 333, 1, 4, 2,
    7, 1, 1, 1, 4, 2, 41, 1, 4, 2, 33, 1, 4, 2, 7, 1, 1, 1, 4, 2, 15, 1, 57, 1, 4, 2, 67, 37, 16, 16, 86, 2, 6, 3, 620,
    2, 17, 1, 26, 5, 75, 6, 8, 7, 18, 13, 19, 14, 18, 14, 13, 1, 3, 15, 52, 35, 1, 4, 1, 67, 89, 7, 5, 2, 34, 1, 1, 5,
    70, 10, 31, 49, 30, 2, 5, 11, 44, 4, 26, 54, 23, 9, 53, 82, 1, 93, 47, 17, 8, 54, 30, 13, 2, 10, 44, 26, 36, 41, 3,
    10, 36, 2, 11, 5, 43, 2, 3, 41, 4, 1, 6, 1, 2, 3, 1, 5, 192, 64, 278, 2, 6, 2, 38, 2, 6, 2, 8, 1, 1, 1, 1, 1, 1, 1,
    31, 2, 53, 1, 7, 1, 1, 3, 3, 1, 7, 3, 4, 2, 6, 4, 13, 5, 3, 1, 7, 116, 1, 13, 1, 16, 13, 101, 1, 4, 1, 2, 10, 1, 1,
    3, 5, 6, 1, 1, 1, 1, 1, 1, 4, 1, 11, 2, 4, 5, 5, 4, 1, 52, 2, 2683, 229, 6, 4, 3, 2, 12, 38, 1, 1, 5, 1, 2, 56, 7,
    1, 16, 23, 9, 7, 1, 7, 1, 7, 1, 7, 1, 7, 1, 7, 1, 7, 1, 7, 80, 1, 469, 2, 42, 5, 5, 2, 4, 86, 6, 3, 1, 90, 1, 4, 5,
    43, 1, 94, 17, 32, 48, 16, 512, 6592, 64, 22157, 67, 46, 2, 269, 3, 16, 10, 2, 20, 47, 16, 31, 2, 70, 49, 9, 2, 103,
    2, 67, 2, 2, 1, 1, 1, 8, 21, 16, 1, 3, 1, 4, 1, 23, 29, 52, 14, 50, 62, 6, 3, 1, 1, 2, 11, 28, 10, 23, 25, 29, 7,
    47, 28, 1, 16, 5, 1, 10, 10, 5, 1, 41, 23, 3, 1, 8, 20, 23, 3, 1, 3, 50, 1, 1, 3, 2, 2, 5, 2, 1, 1, 1, 24, 3, 2, 11,
    7, 3, 12, 6, 2, 6, 2, 6, 9, 7, 1, 7, 1, 43, 1, 14, 6, 115, 29, 11172, 12, 23, 4, 49, 8452, 366, 2, 106, 38, 7, 12,
    5, 5, 1, 1, 10, 1, 13, 1, 5, 1, 1, 1, 2, 1, 2, 1, 108, 33, 363, 18, 64, 2, 54, 40, 12, 116, 5, 1, 135, 36, 26, 6,
    26, 11, 89, 3, 6, 2, 6, 2, 6, 2, 3, 35, 12, 1, 26, 1, 19, 1, 2, 1, 15, 2, 14, 34, 123, 389, 29, 3, 49, 47, 32, 13,
    20, 1, 8, 6, 38, 10, 30, 2, 36, 4, 8, 48, 158, 18, 36, 4, 36, 4, 40, 8, 52, 12, 11, 1, 15, 1, 7, 1, 2, 1, 11, 1, 15,
    1, 7, 1, 2, 3, 52, 12, 311, 9, 22, 10, 8, 24, 6, 1, 42, 1, 9, 69, 6, 2, 1, 1, 44, 1, 2, 3, 1, 2, 23, 10, 23, 9, 31,
    65, 19, 1, 2, 10, 22, 10, 26, 70, 56, 6, 2, 64, 1, 15, 4, 1, 3, 1, 29, 42, 29, 3, 29, 35, 8, 1, 28, 27, 54, 10, 22,
    10, 19, 13, 18, 110, 73, 55, 51, 13, 51, 13, 36, 38, 28, 9, 23, 250, 42, 6, 2, 16, 3, 59, 29, 10, 1, 8, 22, 42, 18,
    46, 21, 27, 23, 12, 53, 57, 2, 2, 1, 13, 45, 32, 25, 26, 36, 29, 1, 2, 1, 8, 35, 3, 1, 12, 48, 14, 4, 21, 1, 1, 1,
    35, 18, 1, 25, 19, 2, 63, 7, 1, 1, 1, 4, 1, 15, 1, 10, 7, 47, 38, 8, 2, 2, 2, 22, 1, 7, 1, 2, 1, 5, 3, 1, 18, 1, 12,
    5, 30, 10, 1, 1, 2, 1, 1, 38, 1, 1, 25, 1, 1, 1, 44, 53, 18, 4, 20, 3, 30, 48, 20, 2, 1, 1, 184, 47, 41, 4, 36, 48,
    20, 1, 59, 43, 13, 1, 71, 27, 37, 7, 185, 44, 116, 64, 31, 8, 2, 1, 2, 8, 1, 2, 1, 24, 15, 1, 1, 1, 94, 8, 2, 39,
    16, 1, 1, 1, 28, 1, 10, 40, 7, 1, 21, 1, 11, 46, 19, 1, 18, 73, 199, 33, 31, 9, 1, 37, 17, 1, 49, 30, 112, 7, 1, 2,
    1, 38, 21, 1, 25, 6, 1, 2, 1, 32, 14, 1, 327, 19, 15, 1, 1, 13, 1, 34, 124, 1, 79, 922, 230, 196, 2636, 97, 15,
    1072, 17, 6, 25, 3995, 5, 583, 6841, 30, 1762, 569, 7, 31, 17, 79, 17, 30, 18, 48, 16, 4, 31, 21, 5, 19, 432, 45,
    211, 64, 128, 75, 5, 1, 66, 13, 64, 2, 1, 1, 28, 6136, 8, 1238, 41, 10, 8935, 4, 1, 7, 1, 2, 1, 291, 15, 1, 29, 3,
    2, 1, 14, 4, 8, 396, 2308, 107, 5, 13, 3, 9, 7, 10, 5990, 85, 1, 71, 1, 2, 2, 1, 2, 2, 2, 4, 1, 12, 1, 1, 1, 7, 1,
    65, 1, 4, 2, 8, 1, 7, 1, 28, 1, 4, 1, 5, 1, 1, 3, 7, 1, 340, 2, 25, 1, 25, 1, 31, 1, 25, 1, 31, 1, 25, 1, 31, 1, 25,
    1, 31, 1, 25, 1, 8, 1844, 31, 6, 6, 261, 62, 146, 45, 10, 7, 16, 1, 321, 30, 18, 44, 484, 28, 228, 30, 2, 1, 495, 7,
    1, 4, 1, 2, 1, 15, 1, 197, 59, 68, 7, 1, 1204, 4, 1, 27, 1, 2, 1, 1, 2, 1, 1, 10, 1, 4, 1, 1, 1, 1, 6, 1, 4, 1, 1,
    1, 1, 1, 1, 3, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 1, 1, 2, 4, 1, 7, 1, 4, 1, 4, 1, 1, 1, 10, 1, 17, 5,
    3, 1, 5, 1, 17, 4420, 42720, 32, 4154, 6, 222, 2, 5762, 14, 7473, 15, 622, 2466, 542, 1506, 4939, 5, 4192
};
static const uint16_t number_runs[] = {
    48, 10, 120, 2, 5, 1, 2, 3, 1441, 10, 134, 10, 198, 10, 412, 10, 118, 10, 4, 6, 108, 10, 118, 10, 118, 10, 2, 6,
    110, 13, 115, 10, 8, 7, 103, 10, 104, 7, 7, 19, 109, 10, 96, 10, 118, 10, 70, 20, 268, 10, 70, 10, 719, 20, 881, 3,
    239, 10, 6, 10, 22, 10, 300, 10, 128, 11, 165, 10, 6, 10, 182, 10, 86, 10, 134, 10, 6, 10, 1046, 1, 3, 6, 6, 10,
    198, 51, 2, 5, 726, 60, 78, 22, 630, 30, 1385, 1, 777, 1, 25, 9, 14, 3, 343, 4, 138, 10, 30, 8, 1, 15, 32, 10, 39,
    15, 29536, 10, 188, 10, 320, 6, 154, 10, 38, 10, 198, 10, 22, 10, 86, 10, 406, 10, 21270, 10, 493, 45, 12, 57, 17,
    2, 341, 27, 36, 4, 29, 1, 8, 1, 134, 5, 202, 10, 942, 8, 25, 7, 39, 9, 75, 5, 22, 6, 160, 2, 2, 16, 2, 46, 64, 9,
    52, 2, 30, 3, 75, 5, 104, 8, 24, 8, 41, 7, 330, 6, 48, 10, 6, 10, 278, 31, 158, 10, 42, 4, 112, 7, 134, 30, 128, 10,
    60, 10, 144, 10, 7, 20, 251, 10, 342, 10, 118, 10, 374, 10, 102, 10, 6, 20, 76, 12, 420, 19, 93, 10, 662, 10, 86,
    29, 227, 10, 70, 10, 422, 10, 102, 21, 1067, 111, 15553, 10, 2342, 10, 86, 10, 134, 10, 1, 7, 526, 10, 262, 23,
    24153, 10, 1478, 20, 12, 20, 108, 25, 1109, 50, 2368, 10, 422, 10, 502, 10, 247, 10, 716, 9, 128, 10, 791, 59, 1, 3,
    1, 4, 76, 45, 1, 15, 962, 13, 2787, 10
};

static text text_part(text s, size_t from, size_t to)
{
    text part;
    part.at = s.at + from;
    part.size = to - from;
    return part;
}

/* The bytes of the UTF-8 character at s, and its code point. Where there is no valid one: 1, and a code point that is
   in no class, so that bytes of all kinds come back from tokens as they were. */
static int utf8_read(const char *s, size_t left, uint32_t *code)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    unsigned lead = (unsigned char)s[0];
    int i, size = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    *code = lead;
    if (size == 1) return 1;
    if (size && (size_t)size <= left) {
        uint32_t c = lead & (0x7fu >> size);
        for (i = 1; i < size && ((unsigned char)s[i] & 0xc0) == 0x80; i++) c = c << 6 | ((unsigned char)s[i] & 0x3f);
        *code = c;
        if (i == size && c >= least[size] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff)) return size;
    }
    *code = UINT32_MAX;
    return 1;
}

static int classes_create(tokenizer *t)
{
    static const uint16_t spaces[] = { 9, 5, 18, 1, 100, 1, 26, 1, 5599, 1, 2431, 11, 29, 2, 5, 1, 47, 1, 4000, 1 };
    static const struct { const uint16_t *runs; size_t count; } lists[] = {
        { spaces, sizeof spaces / sizeof *spaces }, { letter_runs, sizeof letter_runs / sizeof *letter_runs },
        { number_runs, sizeof number_runs / sizeof *number_runs }
    };
    size_t list, i;
    t->classes = (unsigned char *)allocate(CLASS_CODES, 1);
    if (!t->classes) return 0;
    for (list = 0; list < 3; list++) {
        unsigned char *at = t->classes;
        for (i = 0; i < lists[list].count; i += 2) {
            at += lists[list].runs[i];
            memset(at, (int)list + CLASS_SPACE, lists[list].runs[i + 1]);
            at += lists[list].runs[i + 1];
        }
    }
    return 1;
}

/* The class of the character at s.at[i], and its bytes. */
static int class_at(const tokenizer *t, text s, size_t i, int *size)
{
    uint32_t code;
    *size = 0;
    if (i >= s.size) return CLASS_END;
    *size = utf8_read(s.at + i, s.size - i, &code);
    return code < CLASS_CODES ? t->classes[code] : CLASS_OTHER;
}

/* ---- words ---- */

static int is_newline(char c) { return c == '\n' || c == '\r'; }

/* The end of the characters of one class from i on; `most` of them unless that is 0. */
static size_t skip_class(const tokenizer *t, text s, size_t i, int kind, int most)
{
    int size, n = 0;
    while (class_at(t, s, i, &size) == kind && (!most || n++ < most)) i += (size_t)size;
    return i;
}

/* Bytes of 's 't 'm 'd 're 've 'll at i, or 0. The long s U+017F is an s without regard to case. */
static size_t contraction(text s, size_t i, int any_case)
{
    char a, b;
    if (s.at[i] != '\'' || i + 1 >= s.size) return 0;
    a = s.at[i + 1];
    b = i + 2 < s.size ? s.at[i + 2] : 0;
    if (any_case && a == '\xc5' && b == '\xbf') return 3;
    if (any_case && a >= 'A' && a <= 'Z') a = (char)(a + 32);
    if (any_case && b >= 'A' && b <= 'Z') b = (char)(b + 32);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* White space from i on. In newer rules up to the last line end; otherwise all but its last character, which leads the
   next word, if there is one. */
static size_t space_end(const tokenizer *t, text s, size_t i)
{
    size_t end = i, last = i, line = i;
    int size, next;
    while ((next = class_at(t, s, end, &size)) == CLASS_SPACE) {
        last = end;
        end += (size_t)size;
        if (is_newline(s.at[last])) line = end;
    }
    if (t->rule->newer && line > i) return line;
    if (next == CLASS_END || (next == CLASS_NUMBER && !t->rule->newer && t->rule->digits)) return end;
    return last > i ? last : end;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ as GPT-2 has it; where digits stand
   alone, they end the text before them. */
static size_t older_word_end(const tokenizer *t, text s, size_t i)
{
    int size, alone = t->rule->digits;
    size_t start = s.at[i] == ' ' ? i + 1 : i;
    int kind = class_at(t, s, start, &size);
    if (alone && kind == CLASS_NUMBER) return start == i ? i + (size_t)size : start;
    return kind == CLASS_SPACE || kind == CLASS_END ? space_end(t, s, i) : skip_class(t, s, start, kind, 0);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
   as Llama 3 has it; Qwen 2 has single digits. */
static size_t newer_word_end(const tokenizer *t, text s, size_t i)
{
    int size, next_size, kind = class_at(t, s, i, &size);
    size_t start = i + (size_t)size;
    if (kind == CLASS_NUMBER) return skip_class(t, s, i, kind, t->rule->digits);
    if (kind == CLASS_LETTER || (!is_newline(s.at[i]) && class_at(t, s, start, &next_size) == CLASS_LETTER))
        return skip_class(t, s, start, CLASS_LETTER, 0);
    if (s.at[i] != ' ') start = i;
    if (class_at(t, s, start, &size) != CLASS_OTHER) return space_end(t, s, i);
    start = skip_class(t, s, start, CLASS_OTHER, 0);
    while (start < s.size && is_newline(s.at[start])) start++;
    return start;
}

/* The end of the word that starts at i < s.size. */
static size_t word_end(const tokenizer *t, text s, size_t i)
{
    size_t size = contraction(s, i, t->rule->newer);
    if (size) return i + size;
    return t->rule->newer ? newer_word_end(t, s, i) : older_word_end(t, s, i);
}

/* ---- reading the vocabulary ---- */

static uint32_t hash_text(text s)
{
    uint32_t hash = 2166136261u;   /* FNV-1a, then mixed, as the low bits choose the slot */
    size_t i;
    for (i = 0; i < s.size; i++) hash = (hash ^ (unsigned char)s.at[i]) * 16777619u;
    hash = (hash ^ hash >> 15) * 0x85ebca6bu;
    return hash ^ hash >> 13;
}

static uint32_t hash_pair(int left, int right)
{
    uint32_t hash = ((uint32_t)left * 0x9e3779b1u ^ (uint32_t)right) * 0x85ebca6bu;
    return hash ^ hash >> 15;
}

/* The mask of a table for `count` entries. */
static uint32_t table_mask(int64_t count)
{
    uint32_t slots = 4;
    while (slots < 2 * (uint64_t)count) slots *= 2;
    return slots - 1;
}

/* The slot of a name: where it is, or the empty one (id -1) where it would be. */
static hashed_id *name_slot(const tokenizer *t, text name, uint32_t hash)
{
    uint32_t i = hash & t->names_mask;
    for (; t->names[i].id >= 0; i = (i + 1) & t->names_mask)
        if (t->names[i].hash == hash) {
            text other = t->pieces[t->names[i].id].name;
            if (other.size == name.size && !memcmp(other.at, name.at, name.size)) break;
        }
    return &t->names[i];
}

/* The id of a piece that text can become, or -1. */
static int piece_id(const tokenizer *t, text name)
{
    if (!name.size || name.size > LONGEST_PIECE) return -1;
    return name_slot(t, name, hash_text(name))->id;
}

/* The slot of a merge, or the empty one where it would be. */
static merge *merge_slot(const tokenizer *t, int left, int right)
{
    uint32_t i = hash_pair(left, right) & t->merges_mask;
    while (t->merges[i].rank && (t->merges[i].left != left || t->merges[i].right != right))
        i = (i + 1) & t->merges_mask;
    return &t->merges[i];
}

/* Writes U+2581 as a space; never longer than s. Returns the size. */
static size_t undo_spaces(text s, char *out)
{
    size_t i, n = 0;
    for (i = 0; i < s.size; i++) {
        int is_space = s.size - i >= 3 && !memcmp(s.at + i, "\xe2\x96\x81", 3);
        out[n++] = is_space ? ' ' : s.at[i];
        if (is_space) i += 2;
    }
    return n;
}

/* Byte of a code point in GPT-2's alphabet, or -1. Printable bytes stand for themselves, the others follow from 256. */
static int alphabet_byte(uint32_t code)
{
    if (code < 256) return (code > 32 && code < 127) || (code > 160 && code != 173) ? (int)code : -1;
    code -= 256;
    return code < 33 ? (int)code : code < 67 ? (int)code + 94 : code == 67 ? 173 : -1;
}

/* Writes GPT-2's alphabet as bytes; never longer than s. Returns the size. */
static size_t undo_alphabet(text s, char *out)
{
    size_t i, n = 0;
    for (i = 0; i < s.size; ) {
        uint32_t code;
        int size = utf8_read(s.at + i, s.size - i, &code), byte = alphabet_byte(code);
        if (byte >= 0) out[n++] = (char)byte;
        else while (size) { out[n++] = s.at[i]; i++; size--; }
        i += (size_t)size;
    }
    return n;
}

/* The value of a token spelled <0x00> to <0xFF>, or -1. */
static int byte_of_name(text name)
{
    int i, value = 0;
    if (name.size != 6 || memcmp(name.at, "<0x", 3) || name.at[5] != '>') return -1;
    for (i = 3; i < 5; i++) {
        char c = name.at[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10
                  : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Writes the text of piece `id`, spelled `name` in the file, to out, where name.size bytes fit. */
static void piece_create(tokenizer *t, int id, text name, int has_types, char *out)
{
    token_piece *p = &t->pieces[id];
    int byte = t->scored && (p->type == TOKEN_BYTE || !has_types) ? byte_of_name(name) : -1;
    p->name.at = out;
    if (byte >= 0) {
        p->type = TOKEN_BYTE;
        p->name.size = 1;
        out[0] = (char)byte;
        if (t->byte_ids[byte] < 0) t->byte_ids[byte] = id;
    } else if (p->type == TOKEN_CONTROL || p->type == TOKEN_UNKNOWN || (p->type == TOKEN_USER && !t->scored)) {
        p->name.size = name.size;
        if (name.size) memcpy(out, name.at, name.size);
    } else p->name.size = t->scored ? undo_spaces(name, out) : undo_alphabet(name, out);
}

static int pieces_create(const gguf *g, tokenizer *t)
{
    gguf_array names, types = { 0, 0, NULL, 0 }, scores = { 0, 0, NULL, 0 };
    const unsigned char *at;
    char *out;
    text name;
    int id, has_types = gguf_array_of(g, "tokenizer.ggml.token_type", GGUF_INT32, &types);
    int has_scores = gguf_array_of(g, "tokenizer.ggml.scores", GGUF_FLOAT32, &scores);
    if (!gguf_array_of(g, "tokenizer.ggml.tokens", GGUF_STRING, &names) || !names.count)
        return complain("the file has no list of tokens");
    if (names.count > 100000000) return complain("the file lists %lld tokens", (long long)names.count);
    if (has_types && types.count != names.count)
        return complain("%lld tokens with %lld types", (long long)names.count, (long long)types.count);
    if (t->scored && !has_scores) return complain("the file has no scores of its tokens");
    if (t->scored && scores.count != names.count)
        return complain("%lld tokens with %lld scores", (long long)names.count, (long long)scores.count);
    t->count = (int)names.count;
    t->pieces = (token_piece *)allocate((size_t)t->count, sizeof *t->pieces);
    t->bytes = out = (char *)allocate(names.size, 1);
    if (!t->pieces || !t->bytes) return 0;
    for (id = 0, at = names.data; id < t->count; id++) {
        token_piece *p = &t->pieces[id];
        uint32_t bits;
        at = gguf_next_text(at, &name);
        if (name.size > LONGEST_PIECE) return complain("token %d is %lu bytes long", id, (unsigned long)name.size);
        if (has_types) p->type = (int)(read32(types.data + 4 * (size_t)id) & 0xffff);
        if (t->scored) {
            bits = read32(scores.data + 4 * (size_t)id);
            memcpy(&p->score, &bits, 4);
            if (p->score != p->score) p->score = 0;   /* NaN has no place in an order */
        }
        piece_create(t, id, name, has_types, out);
        out += p->name.size;
    }
    return 1;
}

/* Can ordinary text become this piece? */
static int is_text_piece(const tokenizer *t, const token_piece *p)
{
    return p->name.size && p->type != TOKEN_UNKNOWN && p->type != TOKEN_CONTROL && p->type != TOKEN_UNUSED
        && !(t->scored && p->type == TOKEN_BYTE);
}

static int names_create(tokenizer *t)
{
    int id;
    uint32_t i;
    t->names_mask = table_mask(t->count);
    t->names = (hashed_id *)allocate((size_t)t->names_mask + 1, sizeof *t->names);
    if (!t->names) return 0;
    for (i = 0; i <= t->names_mask; i++) t->names[i].id = -1;
    for (id = 0; id < t->count; id++) {
        const token_piece *p = &t->pieces[id];
        uint32_t hash = hash_text(p->name);
        hashed_id *slot;
        size_t k;
        if (!is_text_piece(t, p)) continue;
        for (k = 1; k < p->name.size; k++) {
            unsigned pair = (unsigned char)p->name.at[k - 1] * 256u + (unsigned char)p->name.at[k];
            t->joins[pair / 8] |= (unsigned char)(1u << pair % 8);
        }
        slot = name_slot(t, p->name, hash);
        if (slot->id >= 0) continue;   /* of equal pieces the first counts */
        slot->id = id;
        slot->hash = hash;
    }
    return 1;
}

/* Reads "left right" into the table; merges of or into something that is no piece can never apply and are left out. */
static void merge_add(tokenizer *t, text pair, char *room, int rank)
{
    const char *space;
    text name;
    int left, right, id;
    merge *slot;
    size_t left_size;
    if (pair.size < 3 || pair.size > 2 * LONGEST_PIECE) return;
    space = (const char *)memchr(pair.at + 1, ' ', pair.size - 1);
    if (!space) return;
    name.at = room;
    left_size = name.size = undo_alphabet(text_part(pair, 0, (size_t)(space - pair.at)), room);
    left = piece_id(t, name);
    name.at = room + left_size;
    name.size = undo_alphabet(text_part(pair, (size_t)(space - pair.at) + 1, pair.size), room + left_size);
    right = piece_id(t, name);
    name.at = room;
    name.size += left_size;
    id = piece_id(t, name);
    if (left < 0 || right < 0 || id < 0) return;
    slot = merge_slot(t, left, right);
    if (slot->rank) return;
    slot->left = left;
    slot->right = right;
    slot->id = id;
    slot->rank = rank;
}

static int merges_create(const gguf *g, tokenizer *t)
{
    gguf_array list;
    const unsigned char *at;
    char *room;
    text pair;
    int i;
    if (!gguf_array_of(g, "tokenizer.ggml.merges", GGUF_STRING, &list))
        return complain("the file has no list of merges");
    if (list.count > 100000000) return complain("the file lists %lld merges", (long long)list.count);
    t->merges_mask = table_mask(list.count);
    t->merges = (merge *)allocate((size_t)t->merges_mask + 1, sizeof *t->merges);
    room = (char *)allocate(2 * LONGEST_PIECE, 1);
    for (i = 0, at = list.data; t->merges && room && i < (int)list.count; i++) {
        at = gguf_next_text(at, &pair);
        merge_add(t, pair, room, i + 1);
    }
    free(room);
    return t->merges && room;
}

/* ---- tokens that are matched whole ---- */

static int compare_markers(const void *a, const void *b)
{
    const marker *x = (const marker *)a, *y = (const marker *)b;
    int order = compare_texts(&x->name, &y->name);
    return order ? order : x->id - y->id;
}

static int markers_create(const tokenizer *t, int type, marker_list *out)
{
    int id, i, n = 0, kept = 0, c;
    for (id = 0; id < t->count; id++) n += t->pieces[id].type == type && t->pieces[id].name.size;
    out->at = (marker *)allocate((size_t)n, sizeof *out->at);
    if (!out->at) return 0;
    for (id = n = 0; id < t->count; id++)
        if (t->pieces[id].type == type && t->pieces[id].name.size) {
            out->at[n].name = t->pieces[id].name;
            out->at[n++].id = id;
        }
    qsort(out->at, (size_t)n, sizeof *out->at, compare_markers);
    for (i = 0; i < n; i++)
        if (!kept || compare_texts(&out->at[i].name, &out->at[kept - 1].name)) out->at[kept++] = out->at[i];
    for (i = 0; i < kept; i++) out->first[(unsigned char)out->at[i].name.at[0] + 1]++;
    for (c = 0; c < 256; c++) out->first[c + 1] += out->first[c];
    return 1;
}

/* Among the markers from low to high, which share their first `depth` bytes: the first whose next byte is at least c.
   One that ends there comes before all bytes. */
static int marker_bound(const marker *list, int low, int high, size_t depth, int c)
{
    while (low < high) {
        int middle = low + (high - low) / 2;
        text name = list[middle].name;
        if (name.size > depth && (unsigned char)name.at[depth] >= c) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* The id of the longest marker that s (not empty) starts with, and its size; or -1. */
static int marker_find(const marker_list *list, text s, size_t *size)
{
    int c = (unsigned char)s.at[0], low = list->first[c], high = list->first[c + 1], best = -1;
    size_t depth;
    for (depth = 1; low < high; depth++) {
        if (list->at[low].name.size == depth) {
            best = list->at[low++].id;
            *size = depth;
        }
        if (depth == s.size) break;
        c = (unsigned char)s.at[depth];
        low = marker_bound(list->at, low, high, depth, c);
        high = marker_bound(list->at, low, high, depth, c + 1);
    }
    return best;
}

/* ---- creating ---- */

static void tokenizer_free(tokenizer *t)
{
    free(t->pieces);
    free(t->bytes);
    free(t->names);
    free(t->merges);
    free(t->control.at);
    free(t->user.at);
    free(t->classes);
    memset(t, 0, sizeof *t);
}

/* A text from the file for a message: cut, and without control characters. Returns out. */
static const char *printable(text s, char out[32])
{
    size_t i;
    for (i = 0; i < s.size && i < 31; i++) out[i] = (char)(s.at[i] >= 32 && s.at[i] < 127 ? s.at[i] : '?');
    out[i] = 0;
    return out;
}

/* The kind of vocabulary, and its rule about words. */
static int choose_rule(const gguf *g, tokenizer *t)
{
    size_t i;
    char name[32];
    text model, pre = text_of("default");
    if (!gguf_text(g, "tokenizer.ggml.model", &model)) return complain("the file does not name its tokenizer");
    t->scored = text_is(model, "llama");
    t->rule = &word_rules[0];
    if (t->scored) return 1;
    if (!text_is(model, "gpt2"))
        return complain("tokenizer '%s' is neither llama nor gpt2", printable(model, name));
    gguf_text(g, "tokenizer.ggml.pre", &pre);
    for (i = 0; i < sizeof word_rules / sizeof *word_rules; i++)
        if (text_is(pre, word_rules[i].name)) {
            t->rule = &word_rules[i];
            return 1;
        }
    return complain("no rule to cut text into words is known for '%s'", printable(pre, name));
}

/* An id that the file gives; -1 if there is none or it is none of a token. */
static int special_id(const gguf *g, const tokenizer *t, const char *key)
{
    double value;
    return gguf_real(g, key, 0, &value) && value >= 0 && value < t->count ? (int)value : -1;
}

/* The order matters: names point to pieces, merges and single bytes are looked up by name. */
static int tokenizer_fill(const gguf *g, tokenizer *t)
{
    int i;
    double flag;
    if (!choose_rule(g, t) || !pieces_create(g, t) || !names_create(t)) return 0;
    if (!markers_create(t, TOKEN_CONTROL, &t->control) || !markers_create(t, TOKEN_USER, &t->user)) return 0;
    if (!t->scored) {
        if (!merges_create(g, t) || !classes_create(t)) return 0;
        for (i = 0; i < 256; i++) {
            char c = (char)i;
            text name;
            name.at = &c;
            name.size = 1;
            t->byte_ids[i] = piece_id(t, name);
        }
    }
    t->bos = special_id(g, t, "tokenizer.ggml.bos_token_id");
    t->eos = special_id(g, t, "tokenizer.ggml.eos_token_id");
    t->unknown = special_id(g, t, "tokenizer.ggml.unknown_token_id");
    t->add_bos = t->scored || t->rule->whole_words;   /* where the file says nothing */
    if (gguf_real(g, "tokenizer.ggml.add_bos_token", 0, &flag)) t->add_bos = flag != 0;
    if (t->bos < 0) t->add_bos = 0;
    t->space_prefix = t->scored;
    if (t->scored && gguf_real(g, "tokenizer.ggml.add_space_prefix", 0, &flag)) t->space_prefix = flag != 0;
    return 1;
}

/* Reads the vocabulary; the file is not needed afterwards. *out is empty after failure. */
static int tokenizer_create(const gguf *g, tokenizer *out)
{
    int i;
    memset(out, 0, sizeof *out);
    for (i = 0; i < 256; i++) out->byte_ids[i] = -1;
    if (tokenizer_fill(g, out)) return 1;
    tokenizer_free(out);
    return 0;
}

/* ---- text to ids ---- */

/* A token in the making: bytes at, size of the text; id -1: no token yet; size 0: joined to the one before it. */
typedef struct symbol { int at, size, id, previous, next; } symbol;

/* Two neighbours that can become one: the left of them, and what they give. */
typedef struct bond { double score; int left, size, id; } bond;

typedef struct encoder {
    const tokenizer *t;
    symbol *symbols;
    bond *heap;               /* the best on top: the highest score, then the leftmost */
    int room, bonds;          /* for so many symbols, and three times as many bonds */
    int32_t *ids;
    int count, capacity;
} encoder;

static int emit(encoder *e, int id)
{
    if (e->count == e->capacity) {
        int capacity = e->capacity < 1 << 29 ? 2 * e->capacity + 64 : 0;
        int32_t *ids = capacity ? (int32_t *)realloc(e->ids, (size_t)capacity * sizeof *ids) : NULL;
        if (!ids) return complain("no memory for %d tokens", e->count);
        e->ids = ids;
        e->capacity = capacity;
    }
    e->ids[e->count++] = id;
    return 1;
}

/* A character that is no token becomes its bytes; if one of them is no token, it and its like before it become one
   unknown token; without that, nothing. */
static int emit_symbol(encoder *e, text s, const symbol *y)
{
    const tokenizer *t = e->t;
    int i, known = 1;
    if (y->id >= 0) return emit(e, y->id);
    for (i = 0; i < y->size; i++) known &= t->byte_ids[(unsigned char)s.at[y->at + i]] >= 0;
    if (!known && e->count && e->ids[e->count - 1] == t->unknown) return 1;
    if (!known) return t->unknown < 0 || emit(e, t->unknown);
    for (i = 0; i < y->size; i++) if (!emit(e, t->byte_ids[(unsigned char)s.at[y->at + i]])) return 0;
    return 1;
}

static int bond_before(const bond *a, const bond *b)
{
    return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static void bond_push(encoder *e, bond b)
{
    int i = e->bonds++;
    for (; i && bond_before(&b, &e->heap[(i - 1) / 2]); i = (i - 1) / 2) e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = b;
}

static bond bond_pop(encoder *e)
{
    bond top = e->heap[0], last = e->heap[--e->bonds];
    int i = 0, child;
    while ((child = 2 * i + 1) < e->bonds) {
        if (child + 1 < e->bonds && bond_before(&e->heap[child + 1], &e->heap[child])) child++;
        if (!bond_before(&e->heap[child], &last)) break;
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = last;
    return top;
}

/* Queues the symbol and its right neighbour, if they make a token. */
static void bond_consider(encoder *e, text s, int left)
{
    const symbol *a = &e->symbols[left], *b;
    bond found;
    if (a->next < 0) return;
    b = &e->symbols[a->next];
    found.left = left;
    found.size = a->size + b->size;
    if (e->t->scored) {
        found.id = piece_id(e->t, text_part(s, (size_t)a->at, (size_t)a->at + (size_t)found.size));
        if (found.id < 0) return;
        found.score = (double)e->t->pieces[found.id].score;
    } else {
        const merge *m = merge_slot(e->t, a->id, b->id);
        if (!m->rank) return;
        found.id = m->id;
        found.score = -(double)m->rank;
    }
    bond_push(e, found);
}

/* Joins the first n symbols as far as they go, and puts out what they become. */
static int encode_symbols(encoder *e, text s, int n)
{
    int i;
    e->bonds = 0;
    for (i = 0; i < n; i++) {
        e->symbols[i].previous = i - 1;
        e->symbols[i].next = i + 1 < n ? i + 1 : -1;
    }
    for (i = 0; i < n; i++) bond_consider(e, s, i);
    while (e->bonds) {
        bond b = bond_pop(e);
        symbol *left = &e->symbols[b.left], *right;
        if (!left->size || left->next < 0) continue;
        right = &e->symbols[left->next];
        if (left->size + right->size != b.size) continue;   /* one of them has grown since */
        left->size = b.size;
        left->id = b.id;
        left->next = right->next;
        right->size = 0;
        if (left->next >= 0) e->symbols[left->next].previous = b.left;
        if (left->previous >= 0) bond_consider(e, s, left->previous);
        bond_consider(e, s, b.left);
    }
    for (i = n ? 0 : -1; i >= 0; i = e->symbols[i].next) if (!emit_symbol(e, s, &e->symbols[i])) return 0;
    return 1;
}

/* Each join takes one symbol away and queues two bonds at most: with those at the start less than 3 n. */
static int encoder_reserve(encoder *e, size_t n)
{
    if (n <= (size_t)e->room) return 1;
    free(e->symbols);
    free(e->heap);
    n += n / 2;
    e->room = 0;
    e->symbols = (symbol *)allocate(n, sizeof *e->symbols);
    e->heap = (bond *)allocate(3 * n, sizeof *e->heap);
    if (!e->symbols || !e->heap) return 0;
    e->room = (int)n;
    return 1;
}

/* Text between markers, with merges: word by word, byte by byte. Bytes that have no token (SmolLM2 lacks 21 that do not
   occur in usual text) are dropped, as by the tokenizer that such models were trained with. */
static int encode_words(encoder *e, text s)
{
    size_t i, end, k;
    for (i = 0; i < s.size; i = end) {
        text word;
        int whole, n = 0;
        end = word_end(e->t, s, i);
        word = text_part(s, i, end);
        whole = e->t->rule->whole_words ? piece_id(e->t, word) : -1;
        if (whole >= 0) {
            if (!emit(e, whole)) return 0;
            continue;
        }
        if (!encoder_reserve(e, word.size)) return 0;
        for (k = 0; k < word.size; k++) {
            symbol *y = &e->symbols[n];
            y->at = (int)k;
            y->size = 1;
            y->id = e->t->byte_ids[(unsigned char)word.at[k]];
            n += y->id >= 0;
        }
        if (!encode_symbols(e, word, n)) return 0;
    }
    return 1;
}

/* Text between markers, with scores: by characters. Where no piece has the two bytes at both sides of a border,
   nothing can be joined across it; mostly words come out, which keep the queue short. */
static int encode_characters(encoder *e, text s)
{
    size_t i, k, end;
    uint32_t code;
    for (i = 0; i < s.size; i = end) {
        unsigned pair = 0;
        text run;
        int n = 0;
        for (end = i; end < s.size && (end == i || e->t->joins[pair / 8] >> pair % 8 & 1); ) {
            end += (size_t)utf8_read(s.at + end, s.size - end, &code);
            if (end < s.size) pair = (unsigned char)s.at[end - 1] * 256u + (unsigned char)s.at[end];
        }
        run = text_part(s, i, end);
        if (!encoder_reserve(e, run.size)) return 0;
        for (k = 0; k < run.size; n++) {
            symbol *y = &e->symbols[n];
            y->at = (int)k;
            y->size = utf8_read(run.at + k, run.size - k, &code);
            k += (size_t)y->size;
            y->id = piece_id(e->t, text_part(run, (size_t)y->at, k));
        }
        if (!encode_symbols(e, run, n)) return 0;
    }
    return 1;
}

/* The ids of the markers in s, and what `between` makes of the text around them. */
static int encode_marked(encoder *e, const marker_list *list, text s, int (*between)(encoder *, text))
{
    size_t i = 0, start = 0, size = 0;
    while (i < s.size) {
        int id = marker_find(list, text_part(s, i, s.size), &size);
        if (id < 0) { i++; continue; }
        if (!between(e, text_part(s, start, i)) || !emit(e, id)) return 0;
        start = i += size;
    }
    return between(e, text_part(s, start, s.size));
}

/* Text without control tokens. With scores a space may be put before it, so that its first word is one like others. */
static int encode_plain(encoder *e, text s)
{
    char *copy;
    int good;
    if (!s.size) return 1;
    if (!e->t->scored) return encode_marked(e, &e->t->user, s, encode_words);
    copy = (char *)allocate(s.size + 1, 1);
    if (!copy) return 0;
    copy[0] = ' ';
    s.size = undo_spaces(s, copy + e->t->space_prefix) + (size_t)e->t->space_prefix;
    s.at = copy;
    good = encode_marked(e, &e->t->user, s, encode_characters);
    free(copy);
    return good;
}

/* The ids of a text, without BOS, in memory that the caller frees. parse_special 1: control tokens that are spelled in
   the text (<|im_start|>) become their ids; otherwise they are text like any other. */
static int tokenizer_encode(const tokenizer *t, text input, int parse_special, int32_t **ids, int *count)
{
    encoder e;
    int good;
    *ids = NULL;
    *count = 0;
    if (input.size > 500000000) return complain("a text of %lu bytes is too long", (unsigned long)input.size);
    memset(&e, 0, sizeof e);
    e.t = t;
    e.capacity = (int)(input.size / 4) + 16;
    e.ids = (int32_t *)allocate((size_t)e.capacity, sizeof *e.ids);
    good = e.ids && (parse_special ? encode_marked(&e, &t->control, input, encode_plain) : encode_plain(&e, input));
    free(e.symbols);
    free(e.heap);
    if (!good) { free(e.ids); return 0; }
    *ids = e.ids;
    *count = e.count;
    return 1;
}

/* ---- ids to text ---- */

/* The bytes of one token as they stand in text; none for control tokens, the unknown token and ids out of range. Writes
   as many as fit and returns how many there are. A character may be spread over several tokens. */
static int tokenizer_piece(const tokenizer *t, int id, char *out, int capacity)
{
    const token_piece *p;
    int size;
    if (id < 0 || id >= t->count) return 0;
    p = &t->pieces[id];
    if (p->type == TOKEN_CONTROL || p->type == TOKEN_UNKNOWN) return 0;
    size = (int)p->name.size;
    if (size && capacity > 0) memcpy(out, p->name.at, (size_t)(size < capacity ? size : capacity));
    return size;
}

/* == 5 THREADS, MATRIX PRODUCTS ====================================================================================

   A pool of threads that share a range of work, and y = x W^T with W in any weight format. Weights stay in their file
   format: a tile of rows becomes floats just before it is used, once for all tokens. */

typedef void (*job)(void *context, int64_t first, int64_t last);   /* does first .. last - 1 */

typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t start, done;
    pthread_t *thread;
    int threads;                /* workers besides the caller */
    job work;
    void *context;
    int64_t next, count, step;  /* what is left, handed out step by step */
    int busy, round, quit;
} pool;

/* Takes shares of the present work until there is none. Called with the lock held. */
static void pool_share(pool *p)
{
    while (p->next < p->count) {
        int64_t first = p->next, last = first + p->step < p->count ? first + p->step : p->count;
        p->next = last;
        pthread_mutex_unlock(&p->lock);
        p->work(p->context, first, last);
        pthread_mutex_lock(&p->lock);
    }
}

static void *pool_worker(void *argument)
{
    pool *p = (pool *)argument;
    int round = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->round == round && !p->quit) pthread_cond_wait(&p->start, &p->lock);
        if (p->quit) break;
        round = p->round;
        pool_share(p);
        if (--p->busy == 0) pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* work over 0 .. count - 1, at least `step` at a time, on all threads; returns when all of it is done. */
static void pool_run(pool *p, int64_t count, int64_t step, job work, void *context)
{
    if (!p->threads || count <= step) {
        if (count > 0) work(context, 0, count);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->work = work;
    p->context = context;
    p->next = 0;
    p->count = count;
    p->step = step;
    p->busy = p->threads;
    p->round++;
    pthread_cond_broadcast(&p->start);
    pool_share(p);
    while (p->busy) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static void pool_destroy(pool *p)
{
    int i;
    pthread_mutex_lock(&p->lock);
    p->quit = 1;
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->lock);
    for (i = 0; i < p->threads; i++) pthread_join(p->thread[i], NULL);
    free(p->thread);
    pthread_cond_destroy(&p->start);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
}

/* threads: in all, the caller's included. With fewer than asked for it goes on, as each share can be done by any. */
static int pool_create(pool *p, int threads)
{
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->start, NULL);
    pthread_cond_init(&p->done, NULL);
    p->thread = (pthread_t *)allocate((size_t)threads, sizeof *p->thread);
    if (!p->thread) return 0;
    while (p->threads + 1 < threads && !pthread_create(&p->thread[p->threads], NULL, pool_worker, p)) p->threads++;
    return 1;
}

/* LANES floats as one value: vectors of gcc and clang, on machines without such wide registers several of them. */
enum { LANES = 16, TILE_ROWS = 4, TILE_TOKENS = 4, BLOCK_ROWS = 32 };
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define LANES_AT(p) (*(const lanes *)(const void *)(p))

/* The sum of all lanes, in a fixed tree. */
static float lanes_sum(const lanes *v)
{
    float x[LANES];
    int half, i;
    memcpy(x, v, sizeof x);
    for (half = LANES / 2; half; half /= 2)
        for (i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

/* out[t][r] = x_t . w_r for constant numbers of tokens and rows of n values; rows of out are `stride` apart. Always
   inlined, so that the sums stay in registers. Each is summed in the same order whatever the tile, so what a token gets
   does not depend on how many others there are. */
static inline __attribute__((always_inline)) void tile_product(int tokens, int rows, int64_t n, const float *x,
                                                               const float *w, float *out, int64_t stride)
{
    lanes sum[TILE_TOKENS][TILE_ROWS];
    int64_t k;
    int t, r;
    for (t = 0; t < tokens; t++) for (r = 0; r < rows; r++) sum[t][r] = (lanes){ 0 };
    for (k = 0; k + LANES <= n; k += LANES)
        for (r = 0; r < rows; r++)
            for (t = 0; t < tokens; t++) sum[t][r] += LANES_AT(w + r * n + k) * LANES_AT(x + t * n + k);
    for (t = 0; t < tokens; t++)
        for (r = 0; r < rows; r++) {
            float total = lanes_sum(&sum[t][r]);
            int64_t i;
            for (i = k; i < n; i++) total += x[t * n + i] * w[r * n + i];
            out[t * stride + r] = total;
        }
}

static float dot(const float *a, const float *b, int64_t n)
{
    float out;
    tile_product(1, 1, n, a, b, &out, 0);
    return out;
}

typedef struct matrix_product {
    const tensor *w;
    const float *bias, *x;
    int64_t tokens;
    float *y;
    int failed;     /* a thread found no memory; written under no lock: any nonzero value will do */
} matrix_product;

/* All tokens with `count` rows of W that are floats by now; y points at the first row's result. */
static void product_rows(const matrix_product *p, int64_t count, const float *w, float *y)
{
    int64_t n = p->w->shape[0], rows = p->w->shape[1], t = 0, r;
    for (; t + TILE_TOKENS <= p->tokens; t += TILE_TOKENS) {
        for (r = 0; r + TILE_ROWS <= count; r += TILE_ROWS)
            tile_product(TILE_TOKENS, TILE_ROWS, n, p->x + t * n, w + r * n, y + t * rows + r, rows);
        for (; r < count; r++) tile_product(TILE_TOKENS, 1, n, p->x + t * n, w + r * n, y + t * rows + r, rows);
    }
    for (; t < p->tokens; t++) {
        for (r = 0; r + TILE_ROWS <= count; r += TILE_ROWS)
            tile_product(1, TILE_ROWS, n, p->x + t * n, w + r * n, y + t * rows + r, rows);
        for (; r < count; r++) tile_product(1, 1, n, p->x + t * n, w + r * n, y + t * rows + r, rows);
    }
}

static void product_job(void *context, int64_t first, int64_t last)
{
    matrix_product *p = (matrix_product *)context;
    int64_t n = p->w->shape[0], rows = p->w->shape[1], r, i, t;
    float *w = (float *)allocate((size_t)n * BLOCK_ROWS, sizeof *w);
    if (!w) { p->failed = 1; return; }
    for (r = first; r < last; r += BLOCK_ROWS) {
        int64_t count = last - r < BLOCK_ROWS ? last - r : BLOCK_ROWS;
        for (i = 0; i < count; i++) tensor_row(p->w, r + i, w + i * n);
        product_rows(p, count, w, p->y + r);
        for (t = 0; p->bias && t < p->tokens; t++)
            for (i = 0; i < count; i++) p->y[t * rows + r + i] += p->bias[r + i];
    }
    free(w);
}

/* y = x W^T + bias. x [tokens][W's row length], y [tokens][W's rows]; bias may be NULL. */
static int multiply(pool *threads, const tensor *w, const float *bias, const float *x, int64_t tokens, float *y)
{
    matrix_product p;
    int64_t step = w->shape[1] / (8 * (threads->threads + 1)) / BLOCK_ROWS * BLOCK_ROWS;
    p.w = w;
    p.bias = bias;
    p.x = x;
    p.tokens = tokens;
    p.y = y;
    p.failed = 0;
    pool_run(threads, w->shape[1], step < BLOCK_ROWS ? BLOCK_ROWS : step, product_job, &p);
    return !p.failed;
}

/* == 6 MODEL =======================================================================================================

   Names and shapes of the decoder-only transformers that this program runs: llama, qwen2, qwen3, gemma3. */

typedef struct layer_weights {
    const tensor *attn_norm, *q, *k, *v, *o, *ffn_norm, *gate, *up, *down;
    const tensor *q_norm, *k_norm, *attn_post_norm, *ffn_post_norm;    /* or NULL */
    const float *q_bias, *k_bias, *v_bias, *o_bias;                    /* or NULL */
    int window;            /* sliding window in tokens, 0 = none */
    double *frequencies;   /* [rope_dims / 2] radians a token */
} layer_weights;

typedef struct model {
    mapped file;
    gguf data;
    text arch, name;
    int layers, width, q_heads, kv_heads, k_dim, v_dim, hidden, vocabulary, context;
    int gemma, rope_dims, rope_halves;
    float eps, embedding_scale, attention_scale, attention_softcap, final_softcap;
    const tensor *embedding, *output_norm, *output;
    layer_weights *layer;
    tensor *folded;        /* [2 * layers] V and O weights with the V transform folded in; NULL if not */
    float **bias_memory;   /* [4 * layers] biases as floats */
} model;

/* A number of the model by its key without the architecture's name; given_value where there is none. */
static double model_real(const model *m, const char *key, double given_value)
{
    char full[128];
    double value;
    snprintf(full, sizeof full, "%.*s.%s", (int)m->arch.size, m->arch.at, key);
    return gguf_real(&m->data, full, 0, &value) ? value : given_value;
}

static int model_int(const model *m, const char *key, int given_value, int low, int high, int *out)
{
    double value = model_real(m, key, given_value);
    if (!(value >= low && value <= high) || value != floor(value))
        return complain("%.*s.%s is %g: it must be a whole number from %d to %d", (int)m->arch.size, m->arch.at, key,
                        value, low, high);
    *out = (int)value;
    return 1;
}

/* A weight of `rows` rows of n values; needed: 0 allows that it is absent (*out NULL). A vector has rows 1. */
static int model_tensor(const model *m, int layer, const char *name, int64_t n, int64_t rows, int needed,
                        const tensor **out)
{
    char full[64];
    const tensor *t;
    if (layer >= 0) snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    else snprintf(full, sizeof full, "%s", name);
    *out = t = gguf_tensor(&m->data, full);
    if (!t) return needed ? complain("the model has no tensor %s", full) : 1;
    if (t->shape[0] != n || t->shape[1] != rows || t->shape[2] != 1 || t->shape[3] != 1)
        return complain("tensor %s is %lld x %lld; %lld x %lld fits the model's metadata", full, (long long)t->shape[0],
                        (long long)t->shape[1], (long long)n, (long long)rows);
    if (!t->data || !row_bytes(t->type, n))
        return complain("tensor %s has type %s, which llm does not read", full, type_name(t->type));
    if (rows == 1 && t->type != TYPE_F32)
        return complain("tensor %s is a vector of type %s, not F32", full, type_name(t->type));
    return 1;
}

static int model_bias(model *m, int layer, int which, const char *name, int64_t n, const float **out)
{
    const tensor *t;
    float **memory = &m->bias_memory[4 * layer + which];
    *out = NULL;
    if (!model_tensor(m, layer, name, n, 1, 0, &t)) return 0;
    if (!t) return 1;
    *memory = (float *)allocate((size_t)n, sizeof **memory);
    if (!*memory) return 0;
    tensor_row(t, 0, *memory);
    *out = *memory;
    return 1;
}

static int model_layer_weights(model *m, int i)
{
    layer_weights *w = &m->layer[i];
    int64_t width = m->width, q = (int64_t)m->q_heads * m->k_dim, k = (int64_t)m->kv_heads * m->k_dim;
    int64_t v = (int64_t)m->kv_heads * m->v_dim, o = (int64_t)m->q_heads * m->v_dim;
    int norms = text_is(m->arch, "qwen3") || m->gemma;
    return model_tensor(m, i, "attn_norm.weight", width, 1, 1, &w->attn_norm)
        && model_tensor(m, i, "attn_q.weight", width, q, 1, &w->q)
        && model_tensor(m, i, "attn_k.weight", width, k, 1, &w->k)
        && model_tensor(m, i, "attn_v.weight", width, v, 1, &w->v)
        && model_tensor(m, i, "attn_output.weight", o, width, 1, &w->o)
        && model_tensor(m, i, "ffn_norm.weight", width, 1, 1, &w->ffn_norm)
        && model_tensor(m, i, "ffn_gate.weight", width, m->hidden, 1, &w->gate)
        && model_tensor(m, i, "ffn_up.weight", width, m->hidden, 1, &w->up)
        && model_tensor(m, i, "ffn_down.weight", m->hidden, width, 1, &w->down)
        && model_tensor(m, i, "attn_q_norm.weight", m->k_dim, 1, norms, &w->q_norm)
        && model_tensor(m, i, "attn_k_norm.weight", m->k_dim, 1, norms, &w->k_norm)
        && model_tensor(m, i, "post_attention_norm.weight", width, 1, m->gemma, &w->attn_post_norm)
        && model_tensor(m, i, "post_ffw_norm.weight", width, 1, m->gemma, &w->ffn_post_norm)
        && model_bias(m, i, 0, "attn_q.bias", q, &w->q_bias) && model_bias(m, i, 1, "attn_k.bias", k, &w->k_bias)
        && model_bias(m, i, 2, "attn_v.bias", v, &w->v_bias)
        && model_bias(m, i, 3, "attn_output.bias", width, &w->o_bias);
}

/* Gemma 3: five layers with a sliding window and RoPE base 10,000, then one global layer; newer files tell the pattern
   and the local base. Others: a window where the metadata has one applies to all layers only if the architecture does
   that, which none of the four does. */
static int model_layer_kind(model *m, int i, double *base, double *factor)
{
    gguf_array each;
    double local = 0;
    int pattern, window;
    *base = model_real(m, "rope.freq_base", 10000);
    *factor = 1;
    m->layer[i].window = 0;
    if (m->gemma) {
        char key[64];
        snprintf(key, sizeof key, "%.*s.attention.sliding_window_pattern", (int)m->arch.size, m->arch.at);
        if (!model_int(m, "attention.sliding_window", 0, 0, 1 << 30, &window)) return 0;
        if (gguf_array_of(&m->data, key, GGUF_BOOL, &each)) {
            if (!gguf_real(&m->data, key, i, &local)) return complain("%s has too few layers", key);
        } else {
            if (!gguf_real(&m->data, key, 0, &local) || !(local >= 1 && local < 1e6)) local = 6;
            pattern = (int)local;
            local = (i + 1) % pattern != 0;
        }
        if (local > 0) {
            m->layer[i].window = window;
            *base = model_real(m, "rope.freq_base_swa", 10000);
            return 1;
        }
    }
    *factor = model_real(m, "rope.scaling.factor", 1);
    return 1;
}

static int model_rope(model *m, int i)
{
    layer_weights *w = &m->layer[i];
    const tensor *factors;
    text scaling;
    char key[64];
    double base, factor;
    int j, half = m->rope_dims / 2;
    if (!model_layer_kind(m, i, &base, &factor)) return 0;
    snprintf(key, sizeof key, "%.*s.rope.scaling.type", (int)m->arch.size, m->arch.at);
    if (factor > 1 && gguf_text(&m->data, key, &scaling) && !text_is(scaling, "linear") && !text_is(scaling, "none"))
        return complain("RoPE scaling of type %.*s is not known to llm", (int)scaling.size, scaling.at);
    if (gguf_text(&m->data, key, &scaling) && text_is(scaling, "none")) factor = 1;
    if (!(base > 0 && base < 1e12) || !(factor > 0 && factor < 1e6))
        return complain("RoPE base %g or scaling factor %g is out of range", base, factor);
    if (!model_tensor(m, -1, "rope_freqs.weight", half, 1, 0, &factors)) return 0;
    w->frequencies = (double *)allocate((size_t)half, sizeof *w->frequencies);
    if (!w->frequencies) return 0;
    for (j = 0; j < half; j++) {
        float divide = 1;
        if (factors) memcpy(&divide, factors->data + 4 * j, 4);
        w->frequencies[j] = pow(base, -2.0 * j / m->rope_dims) / factor / (double)divide;
    }
    return 1;
}

static int model_shape(model *m)
{
    double heads;
    if (!model_int(m, "block_count", 0, 1, 1024, &m->layers)
        || !model_int(m, "embedding_length", 0, 1, 1 << 17, &m->width)
        || !model_int(m, "attention.head_count", 0, 1, 1024, &m->q_heads)
        || !model_int(m, "attention.head_count_kv", m->q_heads, 1, 1024, &m->kv_heads)
        || !model_int(m, "attention.key_length", m->width / m->q_heads, 16, 1024, &m->k_dim)
        || !model_int(m, "attention.value_length", m->k_dim, 16, 1024, &m->v_dim)
        || !model_int(m, "feed_forward_length", 0, 1, 1 << 20, &m->hidden)
        || !model_int(m, "context_length", 2048, 1, 1 << 30, &m->context)
        || !model_int(m, "rope.dimension_count", m->k_dim, 2, m->k_dim, &m->rope_dims))
        return 0;
    if (m->q_heads % m->kv_heads || m->k_dim % 16 || m->v_dim % 16 || m->rope_dims % 2)
        return complain("%d query heads, %d KV heads, head sizes %d and %d, %d rotated channels: not supported",
                        m->q_heads, m->kv_heads, m->k_dim, m->v_dim, m->rope_dims);
    m->eps = (float)model_real(m, "attention.layer_norm_rms_epsilon", 1e-5);
    m->attention_softcap = (float)model_real(m, "attn_logit_softcapping", 0);
    m->final_softcap = (float)model_real(m, "final_logit_softcapping", 0);
    m->embedding_scale = m->gemma ? (float)sqrt((double)m->width) : 1;
    /* The 27B model of the Gemma 3 family, known by its depth, scales by the width a head. */
    heads = m->gemma && m->layers == 62 ? (double)m->width / m->q_heads : (double)m->k_dim;
    m->attention_scale = (float)(1 / sqrt(heads));
    return 1;
}

static int model_load_layers(model *m)
{
    int i;
    m->layer = (layer_weights *)allocate((size_t)m->layers, sizeof *m->layer);
    m->bias_memory = (float **)allocate((size_t)m->layers * 4, sizeof *m->bias_memory);
    if (!m->layer || !m->bias_memory) return 0;
    for (i = 0; i < m->layers; i++)
        if (!model_layer_weights(m, i) || !model_rope(m, i)) return 0;
    return 1;
}

/* Everything from a parsed file. */
static int model_read(model *m)
{
    const tensor *embedding;
    if (!gguf_text(&m->data, "general.architecture", &m->arch)) return complain("the file names no architecture");
    if (!gguf_text(&m->data, "general.name", &m->name)) m->name = m->arch;
    m->gemma = text_is(m->arch, "gemma3");
    if (!m->gemma && !text_is(m->arch, "llama") && !text_is(m->arch, "qwen2") && !text_is(m->arch, "qwen3"))
        return complain("architecture %.*s is not known to llm (llama, qwen2, qwen3 and gemma3 are)", (int)m->arch.size,
                        m->arch.at);
    m->rope_halves = !text_is(m->arch, "llama");
    if (!model_shape(m)) return 0;
    embedding = gguf_tensor(&m->data, "token_embd.weight");
    if (!embedding) return complain("the model has no tensor token_embd.weight");
    if (embedding->shape[1] < 2 || embedding->shape[1] > 1 << 24)
        return complain("the vocabulary has %lld tokens", (long long)embedding->shape[1]);
    m->vocabulary = (int)embedding->shape[1];
    return model_tensor(m, -1, "token_embd.weight", m->width, m->vocabulary, 1, &m->embedding)
        && model_tensor(m, -1, "output_norm.weight", m->width, 1, 1, &m->output_norm)
        && model_tensor(m, -1, "output.weight", m->width, m->vocabulary, 0, &m->output) && model_load_layers(m);
}

static void model_free(model *m)
{
    int i;
    for (i = 0; i < m->layers; i++) {
        if (m->layer) free(m->layer[i].frequencies);
    }
    for (i = 0; m->folded && i < 2 * m->layers; i++) free((void *)(uintptr_t)m->folded[i].data);
    for (i = 0; m->bias_memory && i < 4 * m->layers; i++) free(m->bias_memory[i]);
    free(m->layer);
    free(m->folded);
    free(m->bias_memory);
    gguf_free(&m->data);
    unmap_file(&m->file);
    memset(m, 0, sizeof *m);
}

static int model_open(const char *path, model *m)
{
    memset(m, 0, sizeof *m);
    if (map_file(path, &m->file) && gguf_parse(m->file.bytes, m->file.size, &m->data) && model_read(m)) {
        if (!m->output) m->output = m->embedding;   /* tied */
        return 1;
    }
    model_free(m);
    return complain("%s cannot be used", path);
}

/* Values of a token in q, k, v and the attention's output. */
typedef struct row_sizes { size_t q, k, v, o; } row_sizes;

static row_sizes row_sizes_of(const model *m)
{
    row_sizes row;
    row.q = (size_t)m->q_heads * (size_t)m->k_dim;
    row.k = (size_t)m->kv_heads * (size_t)m->k_dim;
    row.v = (size_t)m->kv_heads * (size_t)m->v_dim;
    row.o = (size_t)m->q_heads * (size_t)m->v_dim;
    return row;
}

/* == 7 FORWARD PASS ================================================================================================ */

typedef struct engine {
    model m;
    pool threads;
    oscar_hooks hooks;    /* the library's sentences go to stderr */
    const float *kept_rows;   /* rows of forward whose logits are kept, and these; see keep_logits */
    float *kept;
    int64_t kept_count;
} engine;

static void print_log(void *user, oscar_level level, oscar_result code, int line, const char *sentence)
{
    (void)user;
    if (level == OSCAR_LOG_ERROR) complain("oscar.h:%d: %s: %s", line, oscar_result_text(code), sentence);
    else complain("note: %s", sentence);
}

/* threads: 0 = one a processor. */
static int engine_open(const char *path, int threads, engine *e)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    memset(e, 0, sizeof *e);
    e->hooks.log = print_log;
    if (!model_open(path, &e->m)) return 0;
    if (pool_create(&e->threads, threads > 0 ? threads : cores > 0 && cores < 256 ? (int)cores : 1)) return 1;
    model_free(&e->m);
    return 0;
}

static void engine_close(engine *e)
{
    free(e->kept);
    pool_destroy(&e->threads);
    model_free(&e->m);
}

static int must(oscar_result result, const char *what)
{
    return result == OSCAR_OK || complain("%s: %s", what, oscar_result_text(result));
}

/* ---- norms, RoPE, feed-forward ------------------------------------------------------------------------------- */

/* Rows of n values: x / sqrt(mean x^2 + eps) * w. In place where y = x. */
static void rms_norm(const model *m, const tensor *w, int64_t rows, int64_t n, const float *x, float *y)
{
    const float *weight = (const float *)(const void *)w->data;   /* GGUF aligns tensors; model_tensor checked F32 */
    int64_t r, i;
    for (r = 0; r < rows; r++, x += n, y += n) {
        float scale = 1 / sqrtf(dot(x, x, n) / (float)n + m->eps);
        for (i = 0; i < n; i++) y[i] = x[i] * scale * weight[i];
    }
}

/* Turns pairs of channels by position * frequency: channels (2i, 2i + 1), or (i, i + dims / 2) where rope_halves. */
static void rope(const model *m, const layer_weights *w, int64_t tokens, int64_t position, int heads, float *x)
{
    float cosine[512], sine[512];
    int64_t t;
    int half = m->rope_dims / 2, h, i;
    for (t = 0; t < tokens; t++) {
        for (i = 0; i < half; i++) {
            double angle = (double)(position + t) * w->frequencies[i];
            cosine[i] = (float)cos(angle);
            sine[i] = (float)sin(angle);
        }
        for (h = 0; h < heads; h++, x += m->k_dim)
            for (i = 0; i < half; i++) {
                float *a = m->rope_halves ? x + i : x + 2 * i, *b = m->rope_halves ? x + i + half : x + 2 * i + 1;
                float a0 = *a;
                *a = a0 * cosine[i] - *b * sine[i];
                *b = a0 * sine[i] + *b * cosine[i];
            }
    }
}

/* e^x to 2e-7 of itself; 0 below -87. Plain arithmetic, so compilers turn loops over it into vectors. */
static float fast_exp(float x)
{
    float n, r, p;
    int32_t bits;
    if (x < -87) x = -87;
    if (x > 88) x = 88;
    n = x * 1.44269504f + 12582912.0f;      /* 1.5 * 2^23: rounds to an integer in the low bits */
    memcpy(&bits, &n, 4);
    n -= 12582912.0f;
    r = x - n * 0.693145752f - n * 1.42860677e-6f;
    p = 1 + r * (1 + r * (0.5f + r * (0.166666672f + r * (0.0416664764f + r * (0.00833336078f + r * 0.00139304355f)))));
    bits = (int32_t)(((uint32_t)bits << 23) + 0x3f800000u);
    memcpy(&n, &bits, 4);
    return p * n;
}

typedef struct gate_work { const model *m; float *gate; const float *up; } gate_work;

/* gate = act(gate) * up: SiLU, in Gemma the tanh form of GELU, written with exp: (1 + tanh z) / 2 = 1 / (1 + e^-2z). */
static void gate_job(void *context, int64_t first, int64_t last)
{
    const gate_work *w = (const gate_work *)context;
    int64_t n = w->m->hidden, i;
    for (i = first * n; i < last * n; i++) {
        float g = w->gate[i], z = w->m->gemma ? 1.5957691216f * (g + 0.044715f * g * g * g) : g;
        w->gate[i] = g / (1 + fast_exp(-z)) * w->up[i];
    }
}

/* ---- layers -------------------------------------------------------------------------------------------------- */

/* What a layer's attention sees: q and k after RoPE, v; o is to be filled. Tokens are at position, position + 1, ...
     q  [tokens][q_heads][k_dim]      k  [tokens][kv_heads][k_dim]
     o  [tokens][q_heads][v_dim]      v  [tokens][kv_heads][v_dim] */
typedef struct attention_input {
    int layer;
    int64_t tokens, position;
    const float *q, *k, *v;
    float *o;
} attention_input;

typedef int (*attention)(void *self, const attention_input *in);

typedef struct buffers { float *h, *q, *k, *v, *o, *gate, *up; } buffers;

static int buffers_create(const model *m, size_t tokens, buffers *b)
{
    row_sizes row = row_sizes_of(m);
    size_t sum = 2 * (size_t)m->hidden + (size_t)m->width + row.q + row.k + row.v + row.o;
    b->h = (float *)allocate(tokens, sum * sizeof(float));
    if (!b->h) return 0;
    b->q = b->h + tokens * (size_t)m->width;
    b->k = b->q + tokens * row.q;
    b->v = b->k + tokens * row.k;
    b->o = b->v + tokens * row.v;
    b->gate = b->o + tokens * row.o;
    b->up = b->gate + tokens * (size_t)m->hidden;
    return 1;
}

/* x += y, after y's norm where there is one. */
static void add_rows(const model *m, const tensor *norm, int64_t tokens, float *y, float *x)
{
    int64_t i, n = tokens * m->width;
    if (norm) rms_norm(m, norm, tokens, m->width, y, y);
    for (i = 0; i < n; i++) x[i] += y[i];
}

/* q, k and v of a layer as attention takes them. */
static int layer_project(engine *e, const layer_weights *w, int64_t tokens, int64_t position, const float *x,
                         const buffers *b)
{
    const model *m = &e->m;
    rms_norm(m, w->attn_norm, tokens, m->width, x, b->h);
    if (!multiply(&e->threads, w->q, w->q_bias, b->h, tokens, b->q)
        || !multiply(&e->threads, w->k, w->k_bias, b->h, tokens, b->k)
        || !multiply(&e->threads, w->v, w->v_bias, b->h, tokens, b->v))
        return 0;
    if (w->q_norm) rms_norm(m, w->q_norm, tokens * m->q_heads, m->k_dim, b->q, b->q);
    if (w->k_norm) rms_norm(m, w->k_norm, tokens * m->kv_heads, m->k_dim, b->k, b->k);
    rope(m, w, tokens, position, m->q_heads, b->q);
    rope(m, w, tokens, position, m->kv_heads, b->k);
    return 1;
}

static int layer_feed_forward(engine *e, const layer_weights *w, int64_t tokens, const buffers *b, float *x)
{
    const model *m = &e->m;
    gate_work work;
    rms_norm(m, w->ffn_norm, tokens, m->width, x, b->h);
    if (!multiply(&e->threads, w->gate, NULL, b->h, tokens, b->gate)
        || !multiply(&e->threads, w->up, NULL, b->h, tokens, b->up))
        return 0;
    work.m = m;
    work.gate = b->gate;
    work.up = b->up;
    pool_run(&e->threads, tokens, 16, gate_job, &work);
    if (!multiply(&e->threads, w->down, NULL, b->gate, tokens, b->h)) return 0;
    add_rows(m, w->ffn_post_norm, tokens, b->h, x);
    return 1;
}

/* Layer i over x [tokens][width], in place. */
static int layer_forward(engine *e, int i, int64_t tokens, int64_t position, attention attend, void *self,
                         const buffers *b, float *x)
{
    const layer_weights *w = &e->m.layer[i];
    attention_input in;
    in.layer = i;
    in.tokens = tokens;
    in.position = position;
    in.q = b->q;
    in.k = b->k;
    in.v = b->v;
    in.o = b->o;
    if (!layer_project(e, w, tokens, position, x, b) || !attend(self, &in)
        || !multiply(&e->threads, w->o, w->o_bias, b->o, tokens, b->h))
        return 0;
    add_rows(&e->m, w->attn_post_norm, tokens, b->h, x);
    return layer_feed_forward(e, w, tokens, b, x);
}

static int embed(const model *m, const int32_t *ids, int64_t tokens, float *x)
{
    int64_t t, i;
    for (t = 0; t < tokens; t++, x += m->width) {
        if (ids[t] < 0 || ids[t] >= m->vocabulary) return complain("token id %d is not in the vocabulary", (int)ids[t]);
        tensor_row(m->embedding, ids[t], x);
        for (i = 0; i < m->width; i++) x[i] *= m->embedding_scale;
    }
    return 1;
}

/* Layers first .. last - 1 over x [tokens][width], in place. */
static int forward_layers(engine *e, int first, int last, int64_t tokens, int64_t position, attention attend,
                          void *self, float *x)
{
    buffers b;
    int i, ok = 1;
    if (!buffers_create(&e->m, (size_t)tokens, &b)) return 0;
    for (i = first; ok && i < last; i++) ok = layer_forward(e, i, tokens, position, attend, self, &b, x);
    free(b.h);
    return ok;
}

/* The whole model: x [tokens][width] gets the normed rows that the output matrix turns into logits. */
static int forward(engine *e, const int32_t *ids, int64_t tokens, int64_t position, attention attend, void *self,
                   float *x)
{
    if (!embed(&e->m, ids, tokens, x) || !forward_layers(e, 0, e->m.layers, tokens, position, attend, self, x))
        return 0;
    rms_norm(&e->m, e->m.output_norm, tokens, e->m.width, x, x);
    return 1;
}

/* Logits [rows][vocabulary] of rows that forward returned. */
static int logits_of(engine *e, const float *x, int64_t rows, float *logits)
{
    int64_t i, n = rows * e->m.vocabulary;
    if (!multiply(&e->threads, e->m.output, NULL, x, rows, logits)) return 0;
    if (e->m.final_softcap > 0)
        for (i = 0; i < n; i++) logits[i] = e->m.final_softcap * tanhf(logits[i] / e->m.final_softcap);
    return 1;
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

/* Layer i as the library describes layers; the cache's settings stay at their defaults. */
static oscar_layer layer_of(const model *m, int i)
{
    oscar_layer l;
    memset(&l, 0, sizeof l);
    l.q_heads = m->q_heads;
    l.kv_heads = m->kv_heads;
    l.k_dim = m->k_dim;
    l.v_dim = m->v_dim;
    l.window = m->layer[i].window;
    l.scale = m->attention_scale;
    l.softcap = m->attention_softcap;
    return l;
}

static oscar_view view_of(const float *rows)
{
    oscar_view v;
    memset(&v, 0, sizeof v);
    v.data = rows;
    return v;
}

/* Exact causal attention over the chunk alone, without a cache: what the model was trained with. */
typedef struct exact_attention {
    engine *e;
    oscar_layout layout;
    const attention_input *in;
    float *lse;
    int failed;
} exact_attention;

static void exact_job(void *context, int64_t first, int64_t last)
{
    exact_attention *x = (exact_attention *)context;
    const attention_input *in = x->in;
    const model *m = &x->e->m;
    row_sizes row = row_sizes_of(m);
    oscar_attend_desc desc;
    oscar_row_span span;
    float *own = x->lse ? NULL : (float *)allocate((size_t)(last - first), (size_t)m->q_heads * sizeof(float));
    float *lse = x->lse ? x->lse + first * m->q_heads : own;
    memset(&desc, 0, sizeof desc);
    memset(&span, 0, sizeof span);
    desc.layout = &x->layout;
    desc.q = view_of(in->q + (size_t)first * row.q);
    desc.queries = (int)(last - first);
    desc.position = first;
    span.k = view_of(in->k);
    span.v = view_of(in->v);
    span.count = last;
    if (!lse || !must(oscar_attend_rows(&desc, &span, 1, in->o + (size_t)first * row.o, lse), "attention"))
        x->failed = 1;
    free(own);
}

/* The chunk over itself, wherever it stands: RoPE is in q and k. lse [tokens][q_heads] may be NULL. */
static int attend_chunk(exact_attention *x, const attention_input *in, float *lse)
{
    oscar_layer layer = layer_of(&x->e->m, in->layer);
    layer.k_bits = layer.v_bits = 16;
    if (!must(oscar_page_layout(&layer, 0, OSCAR_F32, &x->e->hooks, &x->layout), "layer")) return 0;
    x->in = in;
    x->lse = lse;
    x->failed = 0;
    pool_run(&x->e->threads, in->tokens, 64, exact_job, x);
    return !x->failed;
}

static int attend_exact(void *self, const attention_input *in)
{
    if (in->position) return complain("exact attention takes a whole context at once");
    return attend_chunk((exact_attention *)self, in, NULL);
}

/* Attention of the last `rows` tokens of a sequence in a cache, shared by the threads. */
typedef struct shared_attention {
    const oscar_cache *cache;
    int layer, parts;
    oscar_batch batch;
    oscar_view q;
    size_t heads, dim;    /* query heads, values a head */
    float *o, *lse;       /* [parts][rows][heads][dim], [parts][rows][heads] */
    int failed;
} shared_attention;

static void shared_job(void *context, int64_t first, int64_t last)
{
    shared_attention *s = (shared_attention *)context;
    size_t rows = (size_t)s->batch.rows;
    int64_t part;
    for (part = first; part < last; part++) {
        float *o = s->o + (size_t)part * rows * s->heads * s->dim, *lse = s->lse + (size_t)part * rows * s->heads;
        if (!must(oscar_attend_part(s->cache, s->layer, &s->batch, 1, &s->q, (int)part, s->parts, o, lse), "attention"))
            s->failed = 1;
    }
}

static int attend_cache(engine *e, const oscar_cache *cache, int layer, oscar_seq seq, int64_t rows, const float *q,
                        float *o)
{
    enum { PARTS_MAX = 64 };
    const float *part_o[PARTS_MAX], *part_lse[PARTS_MAX];
    shared_attention s;
    size_t values;
    int i;
    memset(&s, 0, sizeof s);
    s.cache = cache;
    s.layer = layer;
    s.parts = e->threads.threads + 1 < PARTS_MAX ? e->threads.threads + 1 : PARTS_MAX;
    s.batch.seq = seq;
    s.batch.rows = rows;
    s.q = view_of(q);
    s.heads = (size_t)e->m.q_heads;
    s.dim = (size_t)e->m.v_dim;
    values = (size_t)rows * s.heads;
    s.o = (float *)allocate((size_t)s.parts * values, (s.dim + 1) * sizeof(float));
    if (!s.o) return 0;
    s.lse = s.o + (size_t)s.parts * values * s.dim;
    pool_run(&e->threads, s.parts, 1, shared_job, &s);
    for (i = 0; i < s.parts; i++) {
        part_o[i] = s.o + (size_t)i * values * s.dim;
        part_lse[i] = s.lse + (size_t)i * values;
    }
    oscar_attend_join(s.parts, part_o, part_lse, (int)rows, (int)s.heads, (int)s.dim, NULL, o, NULL);
    free(s.o);
    return !s.failed;
}

/* Decode attention over a chunk that starts a sequence, layer by layer: each token attends as it would in a decode loop
   with a cache that holds all tokens up to it, so errors of the cache feed forward as they do in generation. Tokens
   between two demotions see the same pages, so they are appended and attend together: the same bytes and outputs as
   one by one. */
typedef struct cached_attention {
    engine *e;
    const oscar_layer *settings;     /* [layers] codec settings and pairs; the rest is the model's */
    oscar_type window_type;
    int sink, recent;                /* as in oscar_cache_desc: 0 = default, -1 = none */
} cached_attention;

static oscar_layer settled_layer(const engine *e, const oscar_layer *settings, int i)
{
    oscar_layer model = layer_of(&e->m, i), layer = settings[i];
    layer.q_heads = model.q_heads;
    layer.kv_heads = model.kv_heads;
    layer.k_dim = model.k_dim;
    layer.v_dim = model.v_dim;
    layer.window = model.window;
    layer.scale = model.scale;
    layer.softcap = model.softcap;
    return layer;
}

/* Tokens of a window as oscar_cache_desc gives it: 0 = default, -1 = none. */
static int window_tokens(int given, int otherwise) { return given ? given > 0 ? given : 0 : otherwise; }

/* How many tokens can be appended at once to n: up to the next demotion, and as many as attend takes. */
static int64_t run_of_tokens(const cached_attention *c, int64_t n, int64_t tokens)
{
    enum { PAGE = 64 };
    int64_t sink = window_tokens(c->sink, 64), recent = window_tokens(c->recent, 256), run, most;
    run = n + 1 < sink + recent + PAGE ? sink + recent + PAGE - 1 - n : PAGE - (n + 1 - sink - recent) % PAGE;
    most = recent + 1 < PAGE ? recent + 1 : PAGE;
    if (run > most) run = most;
    return run < tokens - n ? run : tokens - n;
}

static int cached_run(const cached_attention *c, oscar_cache *cache, oscar_seq seq, const attention_input *in)
{
    row_sizes row = row_sizes_of(&c->e->m);
    int64_t n = 0;
    while (n < in->tokens) {
        oscar_view k_view = view_of(in->k + (size_t)n * row.k), v_view = view_of(in->v + (size_t)n * row.v);
        oscar_batch batch;
        batch.seq = seq;
        batch.row = 0;
        batch.rows = run_of_tokens(c, n, in->tokens);
        if (!must(oscar_cache_reserve(cache, seq, batch.rows, 0), "reserve")
            || !must(oscar_append(cache, 0, &batch, 1, &k_view, &v_view), "append")
            || !attend_cache(c->e, cache, 0, seq, batch.rows, in->q + (size_t)n * row.q, in->o + (size_t)n * row.o))
            return 0;
        n += batch.rows;
    }
    return 1;
}

/* A cache for sequences of up to `tokens` tokens. */
static oscar_cache_desc cache_desc_of(const engine *e, const oscar_layer *layers, int count, int64_t tokens,
                                      int sequences, int sink, int recent)
{
    oscar_cache_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.layers = layers;
    desc.layer_count = count;
    desc.max_sequences = sequences;
    desc.max_tokens = tokens;
    desc.max_pages = tokens / 64 + sequences;
    desc.sink = sink;
    desc.recent = recent;
    desc.hooks = e->hooks;
    return desc;
}

static int attend_cached(void *self, const attention_input *in)
{
    const cached_attention *c = (const cached_attention *)self;
    oscar_layer layer = settled_layer(c->e, c->settings, in->layer);
    oscar_cache_desc desc = cache_desc_of(c->e, &layer, 1, in->tokens, 1, c->sink, c->recent);
    oscar_cache *cache = NULL;
    oscar_seq seq;
    int ok;
    if (in->position) return complain("the chunk must start a sequence");
    desc.window_type = c->window_type;
    ok = must(oscar_cache_create(&desc, &cache), "cache") && must(oscar_cache_open(cache, &seq), "open")
         && cached_run(c, cache, seq, in);
    oscar_cache_destroy(cache);
    return ok;
}

/* == 8 SCORES ====================================================================================================== */

/* Sums over positions: negative log-likelihood of the next token, KL divergence from the exact model in nats, and how
   often both would choose the same token. */
typedef struct score { double nll, kl; int64_t top1, tokens; } score;

/* Where the largest of n numbers is; the first of equal ones. */
static int64_t largest_of(const float *x, int64_t n)
{
    int64_t i, best = 0;
    for (i = 0; i < n; i++) if (x[i] > x[best]) best = i;
    return best;
}

/* log sum e^x, and where the largest is. */
static double log_sum_exp(const float *x, int64_t n, int64_t *best)
{
    double sum = 0;
    float top;
    int64_t i, j;
    *best = largest_of(x, n);
    top = x[*best];
    for (i = 0; i < n; i += 1024) {
        float part[LANES] = { 0 };
        int64_t end = i + 1024 < n ? i + 1024 : n;
        for (j = i; j + LANES <= end; j += LANES) {
            int l;
            for (l = 0; l < LANES; l++) part[l] += fast_exp(x[j + l] - top);
        }
        for (; j < end; j++) part[0] += fast_exp(x[j] - top);
        for (j = 0; j < LANES; j++) sum += (double)part[j];
    }
    return (double)top + log(sum);
}

/* sum p (log p - log q), p and q the softmax of a and b. */
static double divergence(const float *a, double a_lse, const float *b, double b_lse, int64_t n)
{
    double sum = 0, shift = b_lse - a_lse;
    int64_t i, j;
    for (i = 0; i < n; i += 1024) {
        float weight = 0, part[LANES] = { 0 }, total[LANES] = { 0 };
        int64_t end = i + 1024 < n ? i + 1024 : n;
        int l;
        for (j = i; j + LANES <= end; j += LANES)
            for (l = 0; l < LANES; l++) {
                float p = fast_exp(a[j + l] - (float)a_lse);
                part[l] += p * (a[j + l] - b[j + l]);
                total[l] += p;
            }
        for (; j < end; j++) {
            float p = fast_exp(a[j] - (float)a_lse);
            part[0] += p * (a[j] - b[j]);
            total[0] += p;
        }
        for (l = 0; l < LANES; l++) { sum += (double)part[l]; weight += total[l]; }
        sum += shift * (double)weight;
    }
    return sum;
}

typedef struct score_work {
    const float *exact, *other;   /* logits [rows][vocabulary]; other NULL: the exact model alone */
    const int32_t *next;          /* the token after each row */
    int64_t vocabulary;
    double *nll, *kl;             /* of each row */
    char *same;
} score_work;

static void score_job(void *context, int64_t first, int64_t last)
{
    const score_work *w = (const score_work *)context;
    int64_t r, best, other_best;
    for (r = first; r < last; r++) {
        const float *exact = w->exact + r * w->vocabulary, *row = exact;
        double lse = log_sum_exp(exact, w->vocabulary, &best), other;
        w->kl[r] = 0;
        w->same[r] = 1;
        other = lse;
        if (w->other) {
            row = w->other + r * w->vocabulary;
            other = log_sum_exp(row, w->vocabulary, &other_best);
            w->kl[r] = divergence(exact, lse, row, other, w->vocabulary);
            w->same[r] = best == other_best;
        }
        w->nll[r] = other - (double)row[w->next[r]];
    }
}

/* Works out the logits of rows that forward returned once, for many comparisons with them; as long as the rows live.
   rows NULL forgets them. */
static int keep_logits(engine *e, const float *rows, int64_t count)
{
    free(e->kept);
    e->kept = NULL;
    e->kept_rows = rows;
    e->kept_count = rows ? count : 0;
    if (!rows) return 1;
    e->kept = (float *)allocate((size_t)count, (size_t)e->m.vocabulary * sizeof *e->kept);
    if (e->kept && logits_of(e, rows, count, e->kept)) return 1;
    e->kept_count = 0;
    return 0;
}

/* Kept logits of `count` rows, or NULL. */
static const float *kept_logits(const engine *e, const float *rows, int64_t count)
{
    const float *end = e->kept_count ? e->kept_rows + e->kept_count * e->m.width : NULL;
    if (!end || rows < e->kept_rows || rows + count * e->m.width > end) return NULL;
    return e->kept + (rows - e->kept_rows) / e->m.width * e->m.vocabulary;
}

enum { SCORE_ROWS = 64 };

/* Adds rows from .. tokens - 2 of a chunk to s. exact, other: what forward returned (other NULL: the exact model);
   nll: of each row, [tokens], or NULL. */
static int score_chunk(engine *e, const int32_t *ids, int64_t tokens, int64_t from, const float *exact,
                       const float *other, score *s, float *nll)
{
    double row_nll[SCORE_ROWS], row_kl[SCORE_ROWS];
    char same[SCORE_ROWS];
    int64_t vocabulary = e->m.vocabulary, r, i;
    float *logits = (float *)allocate((size_t)vocabulary * SCORE_ROWS, (other ? 2 : 1) * sizeof *logits);
    score_work work;
    int ok = logits != NULL;
    work.other = other ? logits + vocabulary * SCORE_ROWS : NULL;
    work.vocabulary = vocabulary;
    work.nll = row_nll;
    work.kl = row_kl;
    work.same = same;
    for (r = from; ok && r < tokens - 1; r += SCORE_ROWS) {
        int64_t rows = tokens - 1 - r < SCORE_ROWS ? tokens - 1 - r : SCORE_ROWS;
        const float *kept = kept_logits(e, exact + r * e->m.width, rows);
        work.next = ids + r + 1;
        work.exact = kept ? kept : logits;
        ok = (kept || logits_of(e, exact + r * e->m.width, rows, logits))
             && (!other || logits_of(e, other + r * e->m.width, rows, logits + vocabulary * SCORE_ROWS));
        if (!ok) break;
        pool_run(&e->threads, rows, 1, score_job, &work);
        for (i = 0; i < rows; i++) {
            s->nll += row_nll[i];
            s->kl += row_kl[i];
            s->top1 += same[i];
            s->tokens++;
            if (nll) nll[r + i] = (float)row_nll[i];
        }
    }
    free(logits);
    return ok;
}

/* == 9 OPTIONS, CACHE SETTINGS ===================================================================================== */

typedef struct options {
    const char *command, *model, *text, *prompt, *out, *rotations, *method, *fit, *weights, *shifts, *page_mean;
    const char *lengths, *metric, *driver;
    double bits, clip_k, clip_v, temperature, shift_weight;
    int tokens, chunk, chunks, sink, recent, group, k_bits, v_bits, threads, layer, fold, chat, seed, gpu;
} options;

/* Tokens that stay exact in a long context. */
static int windows_of(const options *o) { return window_tokens(o->sink, 64) + window_tokens(o->recent, 256); }

/* The first position that is scored: behind the windows, or all where the chunk has no more than them. */
static int first_scored(const options *o, int tokens)
{
    return tokens <= windows_of(o) + 1 ? 0 : windows_of(o);
}

/* Tokens of a context. */
static int chunk_of(const engine *e, const options *o)
{
    return o->chunk ? o->chunk : e->m.context < 2048 ? e->m.context : 2048;
}

/* How the command line names a transform, and the codec that goes with it unless options say otherwise: BALANCED has
   the unbiased fit and page means, the others are the published ones with clipping. */
typedef struct method {
    const char *name;
    oscar_method compose;
    int shared;
    oscar_fit fit;
    const char *weights;
} method;

static const method methods[] = {
    { "balanced", OSCAR_METHOD_BALANCED, 0, OSCAR_UNBIASED, "attention" },
    { "oscar", OSCAR_METHOD_OSCAR, 0, OSCAR_CLIP, "plain" },
    { "oscar-layer", OSCAR_METHOD_OSCAR, 1, OSCAR_CLIP, "plain" },
    { "hadamard", OSCAR_METHOD_HADAMARD, 0, OSCAR_CLIP, "plain" },
    { "none", OSCAR_METHOD_NONE, 0, OSCAR_CLIP, "plain" },
    { "exact", OSCAR_METHOD_NONE, 0, OSCAR_UNBIASED, "plain" },    /* 16 bits, no cache effects */
};

static const method *method_of(const char *name)
{
    size_t i;
    for (i = 0; i < sizeof methods / sizeof *methods; i++) if (!strcmp(methods[i].name, name)) return &methods[i];
    complain("method %s is not known: balanced, oscar, oscar-layer, hadamard, none or exact", name);
    return NULL;
}

/* What the command line says about the codec, put over what a layer has. */
static int settle_codec(const options *o, oscar_layer *l)
{
    if (o->fit) {
        int clip = !strcmp(o->fit, "clip");
        if (!clip && strcmp(o->fit, "unbiased")) return complain("--fit is unbiased or clip, not %s", o->fit);
        l->k_fit = l->v_fit = clip ? OSCAR_CLIP : OSCAR_UNBIASED;
        l->k_clip = l->v_clip = 0;
    }
    if (o->clip_k != 0) l->k_clip = o->clip_k;
    if (o->clip_v != 0) l->v_clip = o->clip_v;
    if (o->group) l->k_group = l->v_group = o->group;
    if (o->k_bits) l->k_bits = o->k_bits;
    if (o->v_bits) l->v_bits = o->v_bits;
    if (o->page_mean) {
        if (strcmp(o->page_mean, "on") && strcmp(o->page_mean, "off"))
            return complain("--page-mean is on or off, not %s", o->page_mean);
        l->k_page_mean = strcmp(o->page_mean, "on") ? -1 : 1;
    }
    return 1;
}

/* Pairs and codec of one layer without a rotations file. */
static void settle_plain(const model *m, const method *how, oscar_pair *pairs, oscar_layer *l)
{
    int h;
    l->k_fit = l->v_fit = how->fit;
    l->k_page_mean = how->fit == OSCAR_CLIP ? -1 : 0;
    for (h = 0; h < 2 * m->kv_heads; h++) {
        memset(&pairs[h], 0, sizeof pairs[h]);
        pairs[h].kind = how->compose == OSCAR_METHOD_NONE ? OSCAR_IDENTITY : OSCAR_HADAMARD;
        pairs[h].dim = h < m->kv_heads ? m->k_dim : m->v_dim;
    }
    l->k = pairs;
    l->v = pairs + m->kv_heads;
}

/* The settings of all layers, and what they point at. */
typedef struct settings {
    oscar_layer *layers;
    oscar_pair *pairs;
    oscar_rotations *rotations;
} settings;

static void settings_free(settings *s)
{
    free(s->layers);
    free(s->pairs);
    oscar_rotations_destroy(s->rotations);
    memset(s, 0, sizeof *s);
}

static int settings_of_file(const engine *e, const options *o, settings *s)
{
    const char *compose;
    int i;
    if (!must(oscar_rotations_load(o->rotations, &e->hooks, &s->rotations), o->rotations)) return 0;
    i = oscar_rotations_count(s->rotations);
    if (i != e->m.layers) return complain("%s has %d layers, the model %d", o->rotations, i, e->m.layers);
    compose = oscar_rotations_meta(s->rotations, "oscar.compose");
    if (o->method && compose && strncmp(compose, o->method, strcspn(o->method, "-")))
        return complain("%s holds %s, not %s: calibrate --method %s makes that", o->rotations, compose, o->method,
                        o->method);
    for (i = 0; i < e->m.layers; i++) {
        oscar_layer *l = &s->layers[i];
        if (!must(oscar_rotations_layer(s->rotations, i, l), "layer of the rotations file") || !settle_codec(o, l))
            return 0;
        if (l->kv_heads != e->m.kv_heads || l->k_dim != e->m.k_dim || l->v_dim != e->m.v_dim)
            return complain("%s is for %d KV heads of %d and %d channels, the model has %d of %d and %d", o->rotations,
                            l->kv_heads, l->k_dim, l->v_dim, e->m.kv_heads, e->m.k_dim, e->m.v_dim);
    }
    return 1;
}

/* From --rotations, else from --method alone, which only hadamard and none allow (default hadamard). */
static int settings_create(const engine *e, const options *o, settings *s)
{
    const method *how = method_of(o->method ? o->method : "hadamard");
    int i, ok = how != NULL;
    memset(s, 0, sizeof *s);
    if (!ok) return 0;
    s->layers = (oscar_layer *)allocate((size_t)e->m.layers, sizeof *s->layers);
    s->pairs = (oscar_pair *)allocate((size_t)e->m.layers * (size_t)e->m.kv_heads, 2 * sizeof *s->pairs);
    if (!s->layers || !s->pairs) ok = 0;
    else if (!strcmp(how->name, "exact"))
        for (i = 0; i < e->m.layers; i++) s->layers[i].k_bits = s->layers[i].v_bits = 16;
    else if (o->rotations) ok = settings_of_file(e, o, s);
    else if (how->compose != OSCAR_METHOD_HADAMARD && how->compose != OSCAR_METHOD_NONE)
        ok = complain("method %s needs --rotations FILE: llm calibrate MODEL TEXT -o FILE --method %s makes one",
                      how->name, how->name);
    else
        for (i = 0; ok && i < e->m.layers; i++) {
            settle_plain(&e->m, how, s->pairs + 2 * i * e->m.kv_heads, &s->layers[i]);
            ok = settle_codec(o, &s->layers[i]);
        }
    if (!ok) settings_free(s);
    return ok;
}

/* A weight as floats of our own, [rows][n]; its memory belongs to the tensor. */
static int tensor_unpack(const tensor *from, tensor *out)
{
    int64_t n = from->shape[0], rows = from->shape[1], r;
    float *values = (float *)allocate((size_t)rows, (size_t)n * sizeof *values);
    if (!values) return 0;
    for (r = 0; r < rows; r++) tensor_row(from, r, values + r * n);
    *out = *from;
    out->type = TYPE_F32;
    out->data = (const unsigned char *)values;
    return 1;
}

static int fold_layer(engine *e, int i, const oscar_layer *l)
{
    model *m = &e->m;
    layer_weights *w = &m->layer[i];
    tensor *v = &m->folded[2 * i], *o = v + 1;
    float *bias = m->bias_memory[4 * i + 2];
    if (!tensor_unpack(w->v, v) || !tensor_unpack(w->o, o)) return 0;
    w->v = v;
    w->o = o;
    return must(oscar_fold_v(l->v, m->kv_heads, (size_t)m->width, (float *)(uintptr_t)v->data, bias), "fold V")
        && must(oscar_fold_o(l->v, m->kv_heads, m->q_heads, (size_t)m->width, (float *)(uintptr_t)o->data), "fold O");
}

/* Puts V's transform of every layer into W_V and W_O, and says so in the settings: v then arrives transformed and the
   attention's output leaves transformed, at no cost a token. The model can no more be used with other settings. */
static int model_fold(engine *e, settings *s)
{
    int i;
    e->m.folded = (tensor *)allocate((size_t)e->m.layers, 2 * sizeof *e->m.folded);
    if (!e->m.folded) return 0;
    for (i = 0; i < e->m.layers; i++) {
        if (s->layers[i].v_bits == 16) continue;
        if (!fold_layer(e, i, &s->layers[i])) return 0;
        s->layers[i].v_folded = 1;
    }
    return 1;
}

/* Bits a K or V value takes in pages, metadata included, windows not. */
static int settings_bits(const engine *e, const oscar_layer *layers, double *bits)
{
    double sum = 0;
    int i;
    for (i = 0; i < e->m.layers; i++) {
        oscar_layer layer = settled_layer(e, layers, i);
        oscar_layout layout;
        if (!must(oscar_page_layout(&layer, 0, OSCAR_BF16, &e->hooks, &layout), "layer")) return 0;
        sum += 8.0 * (double)layout.bytes
               / ((double)layout.page_tokens * layout.layer.kv_heads * (layout.layer.k_dim + layout.layer.v_dim));
    }
    *bits = sum / e->m.layers;
    return 1;
}

/* == 10 CALIBRATION ================================================================================================ */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int progress_quiet;   /* set by a program that has its own */

/* One line on a terminal that is written over, on anything else a line now and then. */
static void progress(const char *what, int done, int of)
{
    static double last;
    double now = seconds();
    if (llm_quiet || progress_quiet || (done < of && now - last < (isatty(2) ? 0.2 : 10))) return;
    last = now;
    fflush(stdout);
    fprintf(stderr, "%s%s %d of %d%s", isatty(2) ? "\r" : "", what, done, of, isatty(2) && done < of ? "  " : "\n");
}

/* Token ids of a text in chunks of equal length, [chunks][tokens]; each starts with the BOS token where the model has
   one (in place of its first token). `chunks` 0: as many as the text gives. whole: tokens of the text. */
typedef struct corpus { int32_t *ids; int chunks, tokens, whole; } corpus;

static int corpus_read(const engine *e, const char *path, int skip, int chunks, int tokens, corpus *out)
{
    tokenizer t;
    mapped file;
    text input;
    int32_t *ids = NULL;
    int count = 0, bos = -1, i, ok;
    memset(out, 0, sizeof *out);
    if (!map_file(path, &file)) return 0;
    input.at = (const char *)file.bytes;
    input.size = file.size;
    ok = tokenizer_create(&e->m.data, &t);
    if (ok) {
        ok = tokenizer_encode(&t, input, 0, &ids, &count);
        bos = t.add_bos ? t.bos : -1;
        tokenizer_free(&t);
    }
    unmap_file(&file);
    if (!ok) return 0;
    out->whole = count;
    count = count > skip ? count - skip : 0;
    if (!chunks) chunks = count / tokens;
    if (!chunks || count / tokens < chunks) {
        free(ids);
        return complain("%s has %d tokens after the first %d, too few for %d chunk(s) of %d: give a longer text, or "
                        "smaller --chunk or --tokens", path, count, skip, chunks ? chunks : 1, tokens);
    }
    memmove(ids, ids + skip, (size_t)chunks * (size_t)tokens * sizeof *ids);
    for (i = 0; bos >= 0 && i < chunks; i++) ids[(int64_t)i * tokens] = bos;
    out->ids = ids;
    out->chunks = chunks;
    out->tokens = tokens;
    return 1;
}

/* Activations of the present layer, all chunks: q, k after RoPE, v, [chunks][tokens][heads][dim]. */
typedef struct capture {
    exact_attention exact;
    float *q, *k, *v;
    row_sizes row;
    int chunk;
} capture;

static int attend_captured(void *self, const attention_input *in)
{
    capture *c = (capture *)self;
    size_t n = (size_t)in->tokens, at = (size_t)c->chunk * n;
    memcpy(c->q + at * c->row.q, in->q, n * c->row.q * sizeof(float));
    memcpy(c->k + at * c->row.k, in->k, n * c->row.k * sizeof(float));
    memcpy(c->v + at * c->row.v, in->v, n * c->row.v * sizeof(float));
    return attend_exact(&c->exact, in);
}

static int capture_create(engine *e, const corpus *c, capture *out)
{
    size_t tokens = (size_t)c->chunks * (size_t)c->tokens;
    memset(out, 0, sizeof *out);
    out->exact.e = e;
    out->row = row_sizes_of(&e->m);
    out->q = (float *)allocate(tokens, (out->row.q + out->row.k + out->row.v) * sizeof(float));
    if (!out->q) return 0;
    out->k = out->q + tokens * out->row.q;
    out->v = out->k + tokens * out->row.k;
    return 1;
}

enum { SHIFTS_MAX = 64 };

typedef struct calibration {
    engine *e;
    const options *o;
    const method *how;
    corpus text;
    capture rows;
    float *x;                      /* [chunks][tokens][width] between layers */
    int shifts[SHIFTS_MAX], shift_count;
    oscar_rotations **solved;      /* [layers], of one layer each */
    oscar_calib *sums[64];         /* of the present layer, one a share of the chunks */
    int shares, failed;
} calibration;

static oscar_chunk chunk_rows(const calibration *c, int chunk)
{
    oscar_chunk rows;
    size_t at = (size_t)chunk * (size_t)c->text.tokens;
    memset(&rows, 0, sizeof rows);
    rows.tokens = c->text.tokens;
    rows.q = view_of(c->rows.q + at * c->rows.row.q);
    rows.k = view_of(c->rows.k + at * c->rows.row.k);
    rows.v = view_of(c->rows.v + at * c->rows.row.v);
    return rows;
}

static void sums_job(void *context, int64_t first, int64_t last)
{
    calibration *c = (calibration *)context;
    int64_t share;
    int chunk;
    for (share = first; share < last; share++)
        for (chunk = (int)share; chunk < c->text.chunks; chunk += c->shares) {
            oscar_chunk rows = chunk_rows(c, chunk);
            if (!must(oscar_calib_add(c->sums[share], 0, &rows), "calibration")) c->failed = 1;
        }
}

static int sums_create(calibration *c, int layer)
{
    oscar_calib_desc desc;
    oscar_layer l = layer_of(&c->e->m, layer);
    oscar_rope rope_of;
    int i;
    l.k_fit = l.v_fit = c->how->fit;
    l.k_page_mean = c->how->fit == OSCAR_CLIP ? -1 : 0;
    if (!settle_codec(c->o, &l)) return 0;
    if (c->o->weights && strcmp(c->o->weights, "plain") && strcmp(c->o->weights, "attention"))
        return complain("--weights is attention or plain, not %s", c->o->weights);
    memset(&rope_of, 0, sizeof rope_of);
    rope_of.dims = c->e->m.rope_dims;
    rope_of.frequencies = c->e->m.layer[layer].frequencies;
    rope_of.halves = c->e->m.rope_halves;
    memset(&desc, 0, sizeof desc);
    desc.layers = &l;
    desc.layer_count = 1;
    desc.sums = OSCAR_SUM_Q | OSCAR_SUM_K | (c->how->compose == OSCAR_METHOD_OSCAR ? (unsigned)OSCAR_SUM_S : 0);
    desc.weights = strcmp(c->o->weights ? c->o->weights : c->how->weights, "plain") ? OSCAR_WEIGHTS_ATTENTION
                                                                                   : OSCAR_WEIGHTS_PLAIN;
    desc.sink = c->o->sink;
    desc.recent = c->o->recent;
    desc.ropes = &rope_of;
    desc.shifts = c->shifts;
    desc.shift_count = c->shift_count;
    desc.shift_weight = c->o->shift_weight > 0 ? c->o->shift_weight : 0.1;
    desc.hooks = c->e->hooks;
    for (i = 0; i < c->shares; i++) if (!must(oscar_calib_create(&desc, &c->sums[i]), "calibration")) return 0;
    return 1;
}

/* Second pass for the score-weighted sum of the values, which needs the queries' sum of all chunks first. */
static int sums_second_pass(calibration *c)
{
    int chunk;
    if (!must(oscar_calib_freeze_q(c->sums[0]), "calibration")) return 0;
    for (chunk = 0; chunk < c->text.chunks; chunk++) {
        oscar_chunk rows = chunk_rows(c, chunk);
        if (!must(oscar_calib_add(c->sums[0], 0, &rows), "calibration")) return 0;
    }
    return 1;
}

static int layer_solve(calibration *c, int layer)
{
    oscar_compose compose;
    int i;
    memset(&compose, 0, sizeof compose);
    compose.method = c->how->compose;
    compose.shared = c->how->shared;
    compose.k_metric = c->o->metric && !strcmp(c->o->metric, "off") ? -1 : 0;
    if (!sums_create(c, layer)) return 0;
    pool_run(&c->e->threads, c->shares, 1, sums_job, c);
    if (c->failed) return 0;
    for (i = 1; i < c->shares; i++) if (!must(oscar_calib_merge(c->sums[0], c->sums[i]), "calibration")) return 0;
    if (c->how->compose == OSCAR_METHOD_OSCAR && !sums_second_pass(c)) return 0;
    return must(oscar_calib_solve(c->sums[0], &compose, &c->solved[layer]), "solve");
}

/* The layer for all chunks, then its pairs from what was captured. */
static int layer_calibrate(calibration *c, int layer)
{
    size_t values = (size_t)c->text.tokens * (size_t)c->e->m.width;
    buffers b;
    int chunk, i, ok;
    if (!buffers_create(&c->e->m, (size_t)c->text.tokens, &b)) return 0;
    for (chunk = 0, ok = 1; ok && chunk < c->text.chunks; chunk++) {
        c->rows.chunk = chunk;
        ok = layer_forward(c->e, layer, c->text.tokens, 0, attend_captured, &c->rows, &b,
                           c->x + (size_t)chunk * values);
        progress("calibrating: chunks of layers", layer * c->text.chunks + chunk + 1, c->e->m.layers * c->text.chunks);
    }
    free(b.h);
    ok = ok && layer_solve(c, layer);
    for (i = 0; i < c->shares; i++) { oscar_calib_destroy(c->sums[i]); c->sums[i] = NULL; }
    return ok;
}

/* Offsets in positions for the joint RoPE shift: "none", a list such as 512,2048, or NULL for the default. */
static int shifts_parse(calibration *c)
{
    const char *at = c->o->shifts;
    int shift;
    if (!at) {
        /* From half a chunk on, two an octave: 1/2, 1, 3/2, 2, 3, 4, 6, 8, ... chunks, up to the model's context. Long
           contexts are covered, and the positions that all contexts have weigh most. */
        int half = c->text.tokens / 2, step;
        for (step = 1; half && c->shift_count < SHIFTS_MAX;) {
            shift = half * step;
            if (shift > c->e->m.context - c->text.tokens) break;
            c->shifts[c->shift_count++] = shift;
            step = step < 4 ? step + 1 : step % 3 ? step / 2 * 3 : step / 3 * 4;
        }
        return 1;
    }
    if (!strcmp(at, "none")) return 1;
    while (*at) {
        char *end;
        long value = strtol(at, &end, 10);
        if (end == at || value < 1 || value > 1 << 30 || (*end && *end != ',') || c->shift_count == SHIFTS_MAX)
            return complain("--shifts is none or up to %d positions such as 512,2048, not %s", (int)SHIFTS_MAX,
                            c->o->shifts);
        c->shifts[c->shift_count++] = (int)value;
        at = *end ? end + 1 : end;
    }
    return 1;
}

static void calibration_free(calibration *c)
{
    int i;
    for (i = 0; c->solved && i < c->e->m.layers; i++) oscar_rotations_destroy(c->solved[i]);
    free(c->solved);
    free(c->x);
    free(c->rows.q);
    free(c->text.ids);
}

/* The pairs of every layer, from the text's own activations. */
static int calibrate(engine *e, const options *o, const char *path, calibration *c)
{
    int chunk = chunk_of(e, o);
    int tokens = o->tokens ? o->tokens : 16384, i;
    memset(c, 0, sizeof *c);
    c->e = e;
    c->o = o;
    c->how = method_of(o->method ? o->method : "balanced");
    c->shares = e->threads.threads + 1 < 64 ? e->threads.threads + 1 : 64;
    if (tokens < chunk) chunk = tokens;
    if (o->metric && strcmp(o->metric, "on") && strcmp(o->metric, "off"))
        return complain("--metric is on or off, not %s", o->metric);
    if (o->metric && !strcmp(o->metric, "on") && o->method && strcmp(o->method, "balanced"))
        return complain("--metric on needs --method balanced: %s has no metric", o->method);
    if (!c->how || !corpus_read(e, path, 0, tokens / chunk, chunk, &c->text) || !shifts_parse(c)
        || !capture_create(e, &c->text, &c->rows))
        return 0;
    tokens = c->text.chunks * c->text.tokens;
    c->x = (float *)allocate((size_t)tokens, (size_t)e->m.width * sizeof(float));
    c->solved = (oscar_rotations **)allocate((size_t)e->m.layers, sizeof *c->solved);
    if (!c->x || !c->solved || !embed(&e->m, c->text.ids, tokens, c->x)) return 0;
    for (i = 0; i < e->m.layers; i++) if (!layer_calibrate(c, i)) return 0;
    return 1;
}

/* ---- bits by budget ------------------------------------------------------------------------------------------ */

/* One layer through the cache, all others exact. */
typedef struct one_cached { cached_attention cached; exact_attention exact; int layer; } one_cached;

static int attend_one_cached(void *self, const attention_input *in)
{
    one_cached *o = (one_cached *)self;
    return in->layer == o->layer ? attend_cached(&o->cached, in) : attend_exact(&o->exact, in);
}

typedef struct loss_work {
    engine *e;
    one_cached attend;
    const int32_t *ids;
    int64_t tokens, from;
    float *x;            /* [layers][tokens][width], before each layer */
    float *y, *exact;    /* [tokens][width], one run, and the exact one */
} loss_work;

static int loss_exact(loss_work *w)
{
    const model *m = &w->e->m;
    size_t values = (size_t)w->tokens * (size_t)m->width;
    int i;
    w->attend.layer = -1;
    if (!embed(m, w->ids, w->tokens, w->exact)) return 0;
    for (i = 0; i < m->layers; i++) {
        memcpy(w->x + (size_t)i * values, w->exact, values * sizeof(float));
        if (!forward_layers(w->e, i, i + 1, w->tokens, 0, attend_one_cached, &w->attend, w->exact)) return 0;
    }
    rms_norm(m, m->output_norm, w->tokens, m->width, w->exact, w->exact);
    return 1;
}

static int loss_of_layer(loss_work *w, int layer, double *kl)
{
    const model *m = &w->e->m;
    size_t values = (size_t)w->tokens * (size_t)m->width;
    score s = { 0, 0, 0, 0 };
    w->attend.layer = layer;
    memcpy(w->y, w->x + (size_t)layer * values, values * sizeof(float));
    if (!forward_layers(w->e, layer, m->layers, w->tokens, 0, attend_one_cached, &w->attend, w->y)) return 0;
    rms_norm(m, m->output_norm, w->tokens, m->width, w->y, w->y);
    if (!score_chunk(w->e, w->ids, w->tokens, w->from, w->exact, w->y, &s, NULL)) return 0;
    *kl += s.kl / (double)s.tokens;
    return 1;
}

/* What each layer's cache costs by itself: kl [layers] gets the mean KL divergence of a model in which it is the only
   one with a cache. */
static int measure_losses(engine *e, const options *o, const oscar_layer *layers, const corpus *text, double *kl)
{
    size_t values = (size_t)text->tokens * (size_t)e->m.width;
    loss_work w;
    int chunk, i, ok;
    memset(&w, 0, sizeof w);
    w.e = w.attend.cached.e = w.attend.exact.e = e;
    w.attend.cached.settings = layers;
    w.attend.cached.sink = o->sink;
    w.attend.cached.recent = o->recent;
    w.tokens = text->tokens;
    w.from = first_scored(o, text->tokens);
    w.x = (float *)allocate((size_t)e->m.layers + 2, values * sizeof(float));
    if (!w.x) return 0;
    w.y = w.x + (size_t)e->m.layers * values;
    w.exact = w.y + values;
    for (i = 0; i < e->m.layers; i++) kl[i] = 0;
    for (chunk = 0, ok = 1; ok && chunk < text->chunks; chunk++) {
        w.ids = text->ids + (int64_t)chunk * text->tokens;
        ok = loss_exact(&w);
        for (i = 0; ok && i < e->m.layers; i++) {
            ok = loss_of_layer(&w, i, &kl[i]);
            progress("measuring the loss of layers", chunk * e->m.layers + i + 1, text->chunks * e->m.layers);
        }
    }
    free(w.x);
    return ok;
}

/* Gives 4-bit keys to the layers that lose most, as many as the budget of bits a value allows. */
static int spend_bits(engine *e, const double *kl, double budget, oscar_layer *layers)
{
    double bits;
    int i, worst;
    if (!settings_bits(e, layers, &bits)) return 0;
    if (bits > budget) return complain("--bits %g is below the %.3f bits of 2-bit keys and values", budget, bits);
    for (;;) {
        for (i = 0, worst = -1; i < e->m.layers; i++)
            if (layers[i].k_bits == 2 && (worst < 0 || kl[i] > kl[worst])) worst = i;
        if (worst < 0) break;
        layers[worst].k_bits = 4;
        if (!settings_bits(e, layers, &bits)) return 0;
        if (bits > budget) { layers[worst].k_bits = 2; break; }
    }
    return 1;
}

static int layers_of(const calibration *c, oscar_layer *layers)
{
    int i;
    for (i = 0; i < c->e->m.layers; i++)
        if (!must(oscar_rotations_layer(c->solved[i], 0, &layers[i]), "layer")) return 0;
    return 1;
}

/* The layers' keys within --bits. The loss is measured on the text behind the calibration's part, or, where the text
   ends there, on its last chunk. */
static int calibration_budget(const calibration *c, const char *path, oscar_layer *layers)
{
    corpus text;
    double *kl = (double *)allocate((size_t)c->e->m.layers, sizeof *kl);
    int skip = c->text.chunks * c->text.tokens, i, ok;
    if (!kl) return 0;
    if (c->text.whole - skip < c->text.tokens) skip -= c->text.tokens;
    ok = corpus_read(c->e, path, skip, 1, c->text.tokens, &text)
         && measure_losses(c->e, c->o, layers, &text, kl) && spend_bits(c->e, kl, c->o->bits, layers);
    for (i = 0; ok && i < c->e->m.layers; i++)
        if (layers[i].k_bits == 4) printf("layer %d alone loses %.5f nat: its keys get 4 bits\n", i, kl[i]);
    free(text.ids);
    free(kl);
    return ok;
}

static int calibration_save(const calibration *c, const oscar_layer *layers, const char *path)
{
    char name[128], tokens[32];
    const char *metadata[9];
    oscar_rotations *rotations;
    int n = 0, ok;
    snprintf(name, sizeof name, "%.*s", (int)(c->e->m.name.size < 120 ? c->e->m.name.size : 120), c->e->m.name.at);
    snprintf(tokens, sizeof tokens, "%d", c->text.chunks * c->text.tokens);
    metadata[n++] = "oscar.compose";
    metadata[n++] = oscar_rotations_meta(c->solved[0], "oscar.compose");
    metadata[n++] = "oscar.weights";
    metadata[n++] = oscar_rotations_meta(c->solved[0], "oscar.weights");
    metadata[n++] = "oscar.tokens";
    metadata[n++] = tokens;
    metadata[n++] = "oscar.model";
    metadata[n++] = name;
    metadata[n] = NULL;
    if (!must(oscar_rotations_create(layers, c->e->m.layers, metadata, &c->e->hooks, &rotations), "rotations"))
        return 0;
    ok = must(oscar_rotations_save(rotations, path), path);
    oscar_rotations_destroy(rotations);
    return ok;
}

/* == 11 A CACHE FOR THE WHOLE MODEL: GENERATION ==================================================================== */

/* A cache on a GPU, and memory there for rows on their way: q, k, v, o and lse of up to `chunk` tokens. The rest of the
   model runs on the CPU, so this shows calls, not speed. */
typedef struct gpu_cache {
    oscar_cuda *cuda;
    oscar_cuda_cache *cache;
    uint64_t q, k, v, o, lse;
} gpu_cache;

/* All layers in one cache, as an engine that serves has it: on the CPU, or on a GPU. */
typedef struct served {
    engine *e;
    oscar_cache *cache;
    gpu_cache gpu;
    oscar_seq seq;
} served;

/* The settled layers of a model; free them. */
static oscar_layer *settled_layers(const engine *e, const oscar_layer *settings)
{
    oscar_layer *layers = (oscar_layer *)allocate((size_t)e->m.layers, sizeof *layers);
    int i;
    for (i = 0; layers && i < e->m.layers; i++) layers[i] = settled_layer(e, settings, i);
    return layers;
}

/* ---- on a GPU ------------------------------------------------------------------------------------------------ */

static void gpu_close(gpu_cache *g)
{
    oscar_cuda_cache_destroy(g->cache);
    if (g->q) (void)device_calls.free(g->q);
    if (g->cuda) (void)device_calls.pop(NULL);
    oscar_cuda_close(g->cuda);
    memset(g, 0, sizeof *g);
}

/* The object's context stays current until gpu_close. */
static int gpu_open(engine *e, const oscar_cache_desc *desc, int chunk, const char *driver, gpu_cache *g)
{
    row_sizes row = row_sizes_of(&e->m);
    size_t rows = (size_t)chunk;
    oscar_cuda_desc device;
    oscar_cuda_cache_desc d;
    oscar_cuda_info info;
    oscar_cuda *cuda = NULL;
    memset(&device, 0, sizeof device);
    memset(&d, 0, sizeof d);
    device.hooks = e->hooks;
    device.driver = driver;
    if (!must(oscar_cuda_open(&device, &cuda), "GPU")) return 0;
    oscar_cuda_get_info(cuda, &info);
    if (!device_find(info.driver_path) || device_calls.push(info.context)) {
        oscar_cuda_close(cuda);
        return complain("the GPU's driver, %s, cannot be used", info.driver_path);
    }
    g->cuda = cuda;
    d.cache = *desc;
    d.max_chunk = chunk;
    if (!must(oscar_cuda_cache_create(cuda, &d, &g->cache), "cache on the GPU")) return 0;
    if (device_calls.alloc(&g->q, rows * (row.q + row.k + row.v + row.o + (size_t)e->m.q_heads) * sizeof(float)))
        return complain("no memory on the GPU for rows of %d tokens", chunk);
    g->k = g->q + rows * row.q * sizeof(float);
    g->v = g->k + rows * row.k * sizeof(float);
    g->o = g->v + rows * row.v * sizeof(float);
    g->lse = g->o + rows * row.o * sizeof(float);
    fprintf(stderr, "cache on %s\n", info.name);
    return 1;
}

static oscar_cuda_rows gpu_rows(uint64_t data)
{
    oscar_cuda_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.data = data;
    return rows;
}

/* Joins o and lse of a chunk over what was before it, from the GPU, with the chunk over itself. */
static int gpu_join(served *s, const attention_input *in)
{
    row_sizes row = row_sizes_of(&s->e->m);
    size_t rows = (size_t)in->tokens, heads = (size_t)s->e->m.q_heads;
    float *before = (float *)allocate(rows * (row.o + 2 * heads), sizeof(float));
    float *lse = before + rows * row.o, *own_lse = lse + rows * heads;
    const float *o[2], *sums[2];
    exact_attention exact;
    int ok;
    if (!before) return 0;
    exact.e = s->e;
    ok = attend_chunk(&exact, in, own_lse);
    if (ok && (device_calls.to_host(before, s->gpu.o, rows * row.o * sizeof(float))
               || device_calls.to_host(lse, s->gpu.lse, rows * heads * sizeof(float))))
        ok = complain("the GPU failed");
    o[0] = before;
    o[1] = in->o;
    sums[0] = lse;
    sums[1] = own_lse;
    if (ok) oscar_attend_join(2, o, sums, (int)rows, (int)heads, s->e->m.v_dim, NULL, in->o, NULL);
    free(before);
    return ok;
}

static int attend_on_gpu(served *s, const attention_input *in)
{
    gpu_cache *g = &s->gpu;
    row_sizes row = row_sizes_of(&s->e->m);
    size_t size = (size_t)in->tokens * sizeof(float);
    oscar_cuda_rows q = gpu_rows(g->q), k = gpu_rows(g->k), v = gpu_rows(g->v), o = gpu_rows(g->o);
    if (device_calls.to_device(g->q, in->q, size * row.q) || device_calls.to_device(g->k, in->k, size * row.k)
        || device_calls.to_device(g->v, in->v, size * row.v)) return complain("the GPU failed");
    if (in->tokens > 1)
        return must(oscar_cuda_attend_history(g->cache, in->layer, &q, &o, g->lse, NULL), "attention to the cache")
            && must(oscar_cuda_append(g->cache, in->layer, &k, &v, NULL), "append") && gpu_join(s, in);
    return must(oscar_cuda_append(g->cache, in->layer, &k, &v, NULL), "append")
        && must(oscar_cuda_attend(g->cache, in->layer, &q, 0, &o, 0, NULL), "attention")
        && (!device_calls.to_host(in->o, g->o, size * row.o) || complain("the GPU failed"));
}

/* ---- on either ----------------------------------------------------------------------------------------------- */

static void served_close(served *s)
{
    oscar_cache_destroy(s->cache);
    s->cache = NULL;
    gpu_close(&s->gpu);
}

/* chunk: tokens that are fed at a time. */
static int served_open(engine *e, const oscar_layer *settings, int64_t tokens, int sequences, int chunk,
                       const options *o, served *s)
{
    oscar_layer *layers = settled_layers(e, settings);
    oscar_cache_desc desc = cache_desc_of(e, layers, e->m.layers, tokens, sequences, o->sink, o->recent);
    int ok;
    memset(s, 0, sizeof *s);
    s->e = e;
    if (!layers) return 0;
    if (o->gpu)
        ok = gpu_open(e, &desc, chunk, o->driver, &s->gpu)
             && must(oscar_cuda_cache_open(s->gpu.cache, &s->seq), "open");
    else ok = must(oscar_cache_create(&desc, &s->cache), "cache") && must(oscar_cache_open(s->cache, &s->seq), "open");
    free(layers);
    if (!ok) served_close(s);
    return ok;
}

static int served_length(const served *s, int64_t *tokens)
{
    oscar_seq_state state = { 0 };
    if (!must(s->gpu.cache ? oscar_cuda_cache_get(s->gpu.cache, s->seq, &state)
                           : oscar_cache_get(s->cache, s->seq, &state), "sequence")) return 0;
    *tokens = state.length;
    return 1;
}

static int served_reserve(served *s, int64_t tokens)
{
    oscar_batch batch;
    batch.seq = s->seq;
    batch.row = 0;
    batch.rows = tokens;
    return must(s->gpu.cache ? oscar_cuda_step(s->gpu.cache, &batch, 1, 0, NULL)
                             : oscar_cache_reserve(s->cache, s->seq, tokens, 0), "reserve");
}

static int served_fork(served *s, int64_t length, oscar_seq *out)
{
    return must(s->gpu.cache ? oscar_cuda_cache_fork(s->gpu.cache, s->seq, length, out, NULL)
                             : oscar_cache_fork(s->cache, s->seq, length, out), "fork");
}

static void served_end(served *s)
{
    if (s->gpu.cache) oscar_cuda_cache_close(s->gpu.cache, s->seq, NULL);
    else oscar_cache_close(s->cache, s->seq);
}

/* A chunk attends exactly to itself and to the cache before it; one token attends to the cache, itself included. */
static int attend_served(void *self, const attention_input *in)
{
    served *s = (served *)self;
    oscar_view q = view_of(in->q), k = view_of(in->k), v = view_of(in->v);
    oscar_out o;
    oscar_batch batch;
    if (s->gpu.cache) return attend_on_gpu(s, in);
    batch.seq = s->seq;
    batch.row = 0;
    batch.rows = in->tokens;
    memset(&o, 0, sizeof o);
    o.data = in->o;
    if (in->tokens > 1)
        return must(oscar_prefill(s->cache, in->layer, &batch, 1, &q, &k, &v, NULL, &o, NULL), "prefill");
    return must(oscar_append(s->cache, in->layer, &batch, 1, &k, &v), "append")
        && attend_cache(s->e, s->cache, in->layer, s->seq, 1, in->q, in->o);
}

/* tokens through the model into the cache, `chunk` at a time; x [tokens][width] gets the rows for logits. */
static int served_feed(served *s, const int32_t *ids, int64_t tokens, int64_t chunk, float *x)
{
    int64_t at, n, length;
    if (!served_length(s, &length)) return 0;
    for (at = 0; at < tokens; at += n) {
        n = tokens - at < chunk ? tokens - at : chunk;
        if (!served_reserve(s, n)
            || !forward(s->e, ids + at, n, length + at, attend_served, s, x + at * s->e->m.width))
            return 0;
        if (n > 1) progress("prompt: tokens", (int)(at + n), (int)tokens);
    }
    return 1;
}

/* The most likely token, or, at a temperature above 0, one drawn from the softmax. */
static int32_t choose_token(const float *logits, int64_t n, double temperature, uint64_t *random)
{
    int64_t i, best = largest_of(logits, n);
    double sum = 0, left;
    if (temperature <= 0) return (int32_t)best;
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    left = (double)(*random >> 11) / 9007199254740992.0;
    for (i = 0; i < n; i++) sum += exp(((double)logits[i] - (double)logits[best]) / temperature);
    for (i = 0; i < n - 1; i++) {
        left -= exp(((double)logits[i] - (double)logits[best]) / temperature) / sum;
        if (left < 0) break;
    }
    return (int32_t)i;
}

/* The prompt's ids, wrapped in the turn markers of the model's chat form where asked for and known. */
static int prompt_ids(const engine *e, const tokenizer *t, const options *o, int32_t **ids, int *count)
{
    static const char *const forms[2][2] = { { "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n" },
                                             { "<start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n" } };
    const char *const *form = forms[e->m.gemma];
    size_t size = strlen(o->prompt) + 80;
    char *whole = (char *)allocate(size, 1);
    int32_t *found = NULL;
    int ok;
    if (!whole) return 0;
    snprintf(whole, size, "%s%s%s", o->chat ? form[0] : "", o->prompt, o->chat ? form[1] : "");
    ok = tokenizer_encode(t, text_of(whole), o->chat, &found, count);
    free(whole);
    if (!ok) return 0;
    *ids = (int32_t *)allocate((size_t)*count + 1, sizeof **ids);
    if (*ids) {
        int first = t->add_bos && t->bos >= 0;
        if (first) **ids = t->bos;
        memcpy(*ids + first, found, (size_t)*count * sizeof **ids);
        *count += first;
    }
    free(found);
    if (*ids && !*count) return complain("the prompt is empty");
    return *ids != NULL;
}

static void print_footprint(const engine *e, const oscar_layer *settings, const options *o, int64_t tokens)
{
    oscar_layer *layers = settled_layers(e, settings);
    oscar_cache_desc desc = cache_desc_of(e, layers, e->m.layers, tokens, 1, o->sink, o->recent);
    row_sizes row = row_sizes_of(&e->m);
    double exact = 2 * (double)e->m.layers * (double)(row.k + row.v) * (double)tokens;
    oscar_footprint now;
    if (layers && must(oscar_cache_bytes(&desc, tokens, &now), "cache"))
        printf("cache for %lld tokens: %.2f MB owned, %.2f bits a value held; BF16 %.2f MB\n", (long long)tokens,
               1e-6 * (double)now.total, now.held_bits, 1e-6 * exact);
    free(layers);
}

/* Streams tokens after the prompt until the model ends its text or there are o->tokens. */
static int generate_text(served *s, const tokenizer *t, const options *o, int32_t next, float *x, float *logits)
{
    char piece[512];
    uint64_t random = (uint64_t)o->seed;
    double start = seconds();
    int made = 0, limit = o->tokens ? o->tokens : 128;
    for (; made < limit && next != t->eos; made++) {
        int n = tokenizer_piece(t, next, piece, (int)sizeof piece);
        fwrite(piece, 1, (size_t)n, stdout);
        fflush(stdout);
        if (!served_feed(s, &next, 1, 1, x) || !logits_of(s->e, x, 1, logits)) return 0;
        next = choose_token(logits, s->e->m.vocabulary, o->temperature, &random);
    }
    start = seconds() - start;
    printf("\n\n%d tokens at %.1f tokens/s\n", made, made / start);
    printf("figure llm.generate.tokens_per_s %.4g tokens/s\n", made / start);
    return 1;
}

static int command_generate(engine *e, const options *o)
{
    tokenizer t;
    settings set;
    served s;
    int32_t *ids = NULL;
    float *x = NULL, *logits = NULL;
    double start = seconds();
    int count = 0, ok, chunk = o->chunk ? o->chunk : 512, limit = o->tokens ? o->tokens : 128;
    if (!settings_create(e, o, &set)) return 0;
    if (!tokenizer_create(&e->m.data, &t)) { settings_free(&set); return 0; }
    memset(&s, 0, sizeof s);
    ok = (!o->fold || model_fold(e, &set)) && prompt_ids(e, &t, o, &ids, &count)
         && served_open(e, set.layers, count + limit, 1, chunk, o, &s);
    if (ok) {
        x = (float *)allocate((size_t)count, (size_t)e->m.width * sizeof *x);
        logits = (float *)allocate((size_t)e->m.vocabulary, sizeof *logits);
        ok = x && logits && served_feed(&s, ids, count, chunk, x)
             && logits_of(e, x + (int64_t)(count - 1) * e->m.width, 1, logits);
    }
    if (ok) {
        uint64_t random = (uint64_t)o->seed;
        fprintf(stderr, "%d tokens of prompt at %.1f tokens/s\n", count, count / (seconds() - start));
        ok = generate_text(&s, &t, o, choose_token(logits, e->m.vocabulary, o->temperature, &random), x, logits);
        print_footprint(e, set.layers, o, count + limit);
        print_footprint(e, set.layers, o, 2048);
        print_footprint(e, set.layers, o, 8192);
    }
    free(ids);
    free(x);
    free(logits);
    served_close(&s);
    settings_free(&set);
    tokenizer_free(&t);
    return ok;
}

/* == 12 COMMANDS =================================================================================================== */

static int command_calibrate(engine *e, const options *o)
{
    calibration c;
    double start = seconds(), bits = 0;
    oscar_layer *layers = (oscar_layer *)allocate((size_t)e->m.layers, sizeof *layers);
    int ok = layers && calibrate(e, o, o->text, &c);
    if (layers) {
        ok = ok && layers_of(&c, layers) && (o->bits <= 0 || calibration_budget(&c, o->text, layers))
             && settings_bits(e, layers, &bits) && calibration_save(&c, layers, o->out);
        if (ok) printf("%s: %d layers, %d tokens, %.3f bits a value, %.0f s\n", o->out, e->m.layers,
                       c.text.chunks * c.text.tokens, bits, seconds() - start);
        calibration_free(&c);
    }
    free(layers);
    return ok;
}

/* Exact rows of every chunk, [chunks][tokens][width], for comparisons. */
static float *exact_rows(engine *e, const corpus *c)
{
    size_t values = (size_t)c->tokens * (size_t)e->m.width;
    float *x = (float *)allocate((size_t)c->chunks, values * sizeof *x);
    exact_attention exact;
    int i;
    memset(&exact, 0, sizeof exact);
    exact.e = e;
    for (i = 0; x && i < c->chunks; i++) {
        if (!forward(e, c->ids + (int64_t)i * c->tokens, c->tokens, 0, attend_exact, &exact, x + (size_t)i * values)) {
            free(x);
            return NULL;
        }
        progress("exact: chunk", i + 1, c->chunks);
    }
    return x;
}

/* A method over a corpus, decode attention throughout, against the exact rows. */
static int evaluate(engine *e, const corpus *c, const float *exact, attention attend, void *self, int from, score *s)
{
    size_t values = (size_t)c->tokens * (size_t)e->m.width;
    float *x = (float *)allocate(values, sizeof *x);
    int i, ok = x != NULL;
    memset(s, 0, sizeof *s);
    for (i = 0; ok && i < c->chunks; i++) {
        const int32_t *ids = c->ids + (int64_t)i * c->tokens;
        ok = forward(e, ids, c->tokens, 0, attend, self, x)
             && score_chunk(e, ids, c->tokens, from, exact + (size_t)i * values, x, s, NULL);
        progress("with the cache: chunk", i + 1, c->chunks);
    }
    free(x);
    return ok;
}

static void print_score(const char *name, const score *s, double bits)
{
    double n = (double)s->tokens;
    printf("%-12s ppl %9.4f   KL %.5f   top-1 %.2f %%   %.3f bits a value\n", name, exp(s->nll / n), s->kl / n,
           100 * (double)s->top1 / n, bits);
    printf("figure llm.ppl.%s %.6g 1\nfigure llm.kl.%s %.4g nat\nfigure llm.top1.%s %.4g 1\n", name, exp(s->nll / n),
           name, s->kl / n, name, (double)s->top1 / n);
}

static int command_ppl(engine *e, const options *o)
{
    int chunk = chunk_of(e, o), from = first_scored(o, chunk), i, ok;
    cached_attention cached;
    settings set;
    corpus text;
    score s, plain;
    float *exact;
    double bits = 0;
    if (!settings_create(e, o, &set)) return 0;
    if (!corpus_read(e, o->text, 0, o->chunks ? o->chunks : 2, chunk, &text)) { settings_free(&set); return 0; }
    memset(&cached, 0, sizeof cached);
    memset(&plain, 0, sizeof plain);
    cached.e = e;
    cached.settings = set.layers;
    cached.sink = o->sink;
    cached.recent = o->recent;
    ok = settings_bits(e, set.layers, &bits);   /* before the long work: it knows what the settings cannot be */
    exact = ok ? exact_rows(e, &text) : NULL;
    ok = exact != NULL;
    if (ok && 4.0 * text.chunks * chunk * e->m.vocabulary <= 1e9)   /* twice needed, where a gigabyte holds them */
        ok = keep_logits(e, exact, (int64_t)text.chunks * chunk);
    for (i = 0; ok && i < text.chunks; i++)
        ok = score_chunk(e, text.ids + (int64_t)i * text.tokens, text.tokens, from,
                         exact + (size_t)i * (size_t)text.tokens * (size_t)e->m.width, NULL, &plain, NULL);
    if (ok) print_score("exact", &plain, 16);
    if (ok && !(o->method && !strcmp(o->method, "exact"))) {
        ok = (!o->fold || model_fold(e, &set)) && evaluate(e, &text, exact, attend_cached, &cached, from, &s);
        if (ok) print_score(o->method ? o->method : o->rotations ? "rotations" : "hadamard", &s, bits);
    }
    keep_logits(e, NULL, 0);
    free(exact);
    free(text.ids);
    settings_free(&set);
    return ok;
}

/* ---- one sequence, different chunks -------------------------------------------------------------------------- */

static int compare_chunks(engine *e, const oscar_layer *layers, const options *o, const corpus *text, const char *name)
{
    static const int pieces[3] = { 0, 128, 1 };   /* tokens at once, 0 = all */
    size_t values = (size_t)text->tokens * (size_t)e->m.width;
    float *x = (float *)allocate(3, values * sizeof *x);
    int i, ok = x != NULL;
    for (i = 0; ok && i < 3; i++) {
        served s;
        score sum = { 0, 0, 0, 0 };
        ok = served_open(e, layers, text->tokens, 1, text->tokens, o, &s)
             && served_feed(&s, text->ids, text->tokens, pieces[i] ? pieces[i] : text->tokens, x + (size_t)i * values)
             && score_chunk(e, text->ids, text->tokens, 0, x, x + (size_t)i * values, &sum, NULL);
        served_close(&s);
        if (ok && i) {
            double kl = sum.kl / (double)sum.tokens;
            printf("%-8s %s: KL from the prompt in one chunk %.3g\n", name,
                   i == 1 ? "chunks of 128" : "one by one   ", kl);
            printf("figure llm.chunking.%s.%d %.4g nat\n", name, pieces[i], kl);
        }
    }
    free(x);
    return ok;
}

static int command_chunks(engine *e, const options *o)
{
    int chunk = o->chunk ? o->chunk : 512, ok;
    settings set, exact;
    options plain = *o;
    corpus text;
    plain.method = "exact";
    if (!settings_create(e, o, &set)) return 0;
    if (!settings_create(e, &plain, &exact)) { settings_free(&set); return 0; }
    ok = corpus_read(e, o->text, 0, 1, chunk, &text)
         && compare_chunks(e, exact.layers, o, &text, "bf16") && compare_chunks(e, set.layers, o, &text, "int2");
    free(text.ids);
    settings_free(&set);
    settings_free(&exact);
    return ok;
}

/* ---- activations to a file ----------------------------------------------------------------------------------- */

static void dump_entry(FILE *f, const char *comma, int layer, char which, int tokens, int heads, int dim, size_t *at)
{
    size_t bytes = (size_t)tokens * (size_t)heads * (size_t)dim * 4;
    fprintf(f, "%s\"layers.%d.%c\":{\"dtype\":\"F32\",\"shape\":[%d,%d,%d],\"data_offsets\":[%lu,%lu]}", comma, layer,
            which, tokens, heads, dim, (unsigned long)*at, (unsigned long)(*at + bytes));
    *at += bytes;
}

/* The safetensors header; with a size of 0 it is written to count its bytes. */
static void dump_header(FILE *f, const model *m, int first, int last, int tokens)
{
    size_t at = 0;
    int i;
    fputs("{", f);
    for (i = first; i < last; i++) {
        dump_entry(f, i > first ? "," : "", i, 'q', tokens, m->q_heads, m->k_dim, &at);
        dump_entry(f, ",", i, 'k', tokens, m->kv_heads, m->k_dim, &at);
        dump_entry(f, ",", i, 'v', tokens, m->kv_heads, m->v_dim, &at);
    }
    fputs("}", f);
}

static int dump_write(FILE *f, engine *e, const corpus *text, int first, int last)
{
    size_t tokens = (size_t)text->tokens;
    unsigned char size[8] = { 0 };
    capture c;
    float *x = (float *)allocate(tokens, (size_t)e->m.width * sizeof *x);
    long end;
    int i, ok = x && capture_create(e, text, &c);
    if (x && !ok) free(c.q);
    if (!ok) { free(x); return 0; }
    fwrite(size, 1, 8, f);
    dump_header(f, &e->m, first, last, text->tokens);
    while ((end = ftell(f)) % 8) fputc(' ', f);
    for (i = 0; i < 4; i++) size[i] = (unsigned char)((unsigned long)(end - 8) >> 8 * i);
    fseek(f, 0, SEEK_SET);
    fwrite(size, 1, 8, f);
    fseek(f, end, SEEK_SET);
    ok = embed(&e->m, text->ids, text->tokens, x);
    for (i = 0; ok && i < last; i++) {
        ok = forward_layers(e, i, i + 1, text->tokens, 0, attend_captured, &c, x);
        if (ok && i >= first)   /* q, k and v lie behind each other, as in the header */
            ok = fwrite(c.q, sizeof(float), tokens * (c.row.q + c.row.k + c.row.v), f)
                     == tokens * (c.row.q + c.row.k + c.row.v)
                 || complain("the file cannot be written: %s", strerror(errno));
        progress("dump: layer", i + 1, last);
    }
    free(c.q);
    free(x);
    return ok;
}

static int command_dump(engine *e, const options *o)
{
    int first = o->layer >= 0 ? o->layer : 0, last = o->layer >= 0 ? o->layer + 1 : e->m.layers, ok;
    corpus text;
    FILE *f;
    if (last > e->m.layers) return complain("--layer %d: the model has %d layers", o->layer, e->m.layers);
    if (!corpus_read(e, o->text, 0, 1, o->tokens ? o->tokens : 512, &text)) return 0;
    f = fopen(o->out, "wb");
    if (!f) { free(text.ids); return complain("cannot write %s: %s", o->out, strerror(errno)); }
    ok = dump_write(f, e, &text, first, last);
    if (fclose(f) && ok) ok = complain("%s cannot be written: %s", o->out, strerror(errno));
    if (!ok) remove(o->out);
    else printf("%s: q, k and v of %d layers, %d tokens\n", o->out, last - first, text.tokens);
    free(text.ids);
    return ok;
}

/* ---- retrieval ----------------------------------------------------------------------------------------------- */

/* Prose with ten sentences "The code of the NAME is NUMBER." at depths of 5 %, 15 %, ... The context enters the
   cache once; each question goes to a fork of the sequence, so it reads the quantised history. */

enum { NEEDLE_ASKED = 10 };

/* The prose where the command line names no text. */
static const char needle_prose[] =
    "The grass is green and the sky is blue. A bus stops in front of the library every hour. Most people here "
    "work in the harbour or on one of the farms. In winter the days are short, and snow covers the hills. Bread "
    "is baked in the morning and sold until noon. The old church was repaired after the storm. Children learn "
    "to swim in the lake. A letter takes three days to arrive. Rain fell all night, and the streets are still "
    "wet. The museum shows paintings of ships and of the sea. Nobody remembers who planted the trees along the "
    "road. At the corner a man sells apples and pears. The train to the coast leaves in the evening. Music "
    "could be heard from the open windows. ";

static void needle_name(int i, char *out, size_t size)
{
    static const char *const names[NEEDLE_ASKED] = { "red river", "old castle", "silver train", "quiet garden",
        "brave lion", "wooden bridge", "golden piano", "hidden valley", "cold island", "tall tower" };
    snprintf(out, size, "%s", names[i]);
}

static int needle_number(int i) { return 1000 + (int)((uint32_t)(i + 1) * 2654435761u >> 8) % 9000; }

typedef struct needle { const engine *e; const tokenizer *t; int32_t *ids; int count; } needle;

static int needle_encode(const needle *n, text sentence, int32_t **ids, int *count)
{
    return tokenizer_encode(n->t, sentence, 0, ids, count);
}

static int needle_fact(const needle *n, int i, int32_t **ids, int *count)
{
    char name[64], sentence[128];
    needle_name(i, name, sizeof name);
    snprintf(sentence, sizeof sentence, " The code of the %s is %d.", name, needle_number(i));
    return needle_encode(n, text_of(sentence), ids, count);
}

/* The next sentence or line of *prose, which comes round again when it ends. */
static text needle_sentence(text prose, size_t *at)
{
    text s;
    size_t end;
    if (*at >= prose.size) *at = 0;
    for (end = *at + 1; end < prose.size; end++)
        if (prose.at[end - 1] == '\n' || (prose.at[end] == ' ' && prose.at[end - 1] == '.' && end - *at > 20)) break;
    s.at = prose.at + *at;
    s.size = end - *at;
    *at = end;
    return s;
}

static void needle_append(needle *n, int32_t *ids, int count)
{
    memcpy(n->ids + n->count, ids, (size_t)count * sizeof *ids);
    n->count += count;
    free(ids);
}

/* At most `tokens` tokens, all facts among them. The caller frees n->ids, also after a failure. */
static int needle_create(const engine *e, const tokenizer *t, text prose, int tokens, needle *n)
{
    int32_t *facts[NEEDLE_ASKED] = { NULL }, *ids;
    int size[NEEDLE_ASKED], room = tokens, used = 0, placed = 0, count, i, ok = 1;
    size_t at = 0;
    memset(n, 0, sizeof *n);
    n->e = e;
    n->t = t;
    n->ids = (int32_t *)allocate((size_t)tokens, sizeof *n->ids);
    if (!n->ids) return 0;
    if (t->add_bos && t->bos >= 0) { n->ids[n->count++] = t->bos; room--; }
    for (i = 0; i < NEEDLE_ASKED && ok; i++) {
        ok = needle_fact(n, i, &facts[i], &size[i]);
        if (ok) room -= size[i];
    }
    if (ok && room < tokens / 4)
        ok = complain("--lengths: %d tokens are too short for %d facts in prose", tokens, (int)NEEDLE_ASKED);
    while (ok) {
        ok = needle_encode(n, needle_sentence(prose, &at), &ids, &count);
        if (ok && !count && !used && at >= prose.size) ok = complain("the text has no sentence to hide facts in");
        if (!ok) break;
        while (placed < NEEDLE_ASKED && used + count > (2 * placed + 1) * (int64_t)room / (2 * NEEDLE_ASKED)) {
            needle_append(n, facts[placed], size[placed]);
            facts[placed++] = NULL;
        }
        if (used + count > room) { free(ids); break; }
        used += count;
        needle_append(n, ids, count);
    }
    for (i = 0; i < NEEDLE_ASKED; i++) free(facts[i]);
    return ok;
}

typedef struct needle_result { int right, asked; double nll; char marks[NEEDLE_ASKED + 1]; } needle_result;

/* Asks for one fact: the mean negative log-likelihood of its digits, and whether each is the most likely token. */
static int needle_ask(const needle *n, served *context, int fact, float *x, float *logits, needle_result *r)
{
    served fork = *context;
    char name[64], question[192], answer[16];
    int32_t *ids = NULL, *digits = NULL;
    int count, answer_count = 0, i, ok, right = 1;
    double nll = 0;
    needle_name(fact, name, sizeof name);
    snprintf(question, sizeof question, "\n\nQuestion: What is the code of the %s?\nAnswer: The code of the %s is",
             name, name);
    snprintf(answer, sizeof answer, " %d", needle_number(fact));
    ok = needle_encode(n, text_of(question), &ids, &count) && needle_encode(n, text_of(answer), &digits, &answer_count)
         && served_fork(context, n->count, &fork.seq);
    if (ok) {
        for (i = 0; ok && i < count; i++) ok = served_feed(&fork, ids + i, 1, 1, x);
        for (i = 0; ok && i < answer_count; i++) {
            int64_t best;
            double lse;
            ok = logits_of(fork.e, x, 1, logits);
            lse = log_sum_exp(logits, fork.e->m.vocabulary, &best);
            nll += lse - (double)logits[digits[i]];
            if (best != digits[i]) right = 0;
            if (ok && i + 1 < answer_count) ok = served_feed(&fork, digits + i, 1, 1, x);
        }
        served_end(&fork);
    }
    r->asked++;
    r->right += right;
    r->nll += nll / (answer_count ? answer_count : 1);
    free(ids);
    free(digits);
    return ok;
}

/* All questions over one context with one kind of cache. marks: + or - for each of them. */
static int needle_answers(engine *e, const needle *n, const oscar_layer *layers, const options *o, needle_result *r)
{
    float *x = (float *)allocate((size_t)n->count, (size_t)e->m.width * sizeof *x);
    float *logits = (float *)allocate((size_t)e->m.vocabulary, sizeof *logits);
    served s;
    int i, ok, chunk = o->chunk ? o->chunk : n->count;
    memset(r, 0, sizeof *r);
    memset(&s, 0, sizeof s);
    ok = x && logits && served_open(e, layers, n->count + 128, 2, chunk, o, &s)
         && served_feed(&s, n->ids, n->count, chunk, x);
    for (i = 0; ok && i < NEEDLE_ASKED; i++) {
        int before = r->right;
        ok = needle_ask(n, &s, i, x, logits, r);
        r->marks[i] = r->right > before ? '+' : '-';
    }
    served_close(&s);
    free(x);
    free(logits);
    return ok;
}

static int needle_run(engine *e, const needle *n, const oscar_layer *layers, const options *o, const char *name)
{
    needle_result r;
    if (!needle_answers(e, n, layers, o, &r)) return 0;
    printf("%6d tokens  %-14s %2d of %d right  %s  %.3f nat a digit\n", n->count, name, r.right, r.asked, r.marks,
           r.nll / r.asked);
    printf("figure llm.needle.%d.%s.nll %.4g nat\n", n->count > 100 ? (n->count + 50) / 100 * 100 : n->count, name,
           r.nll / r.asked);
    fflush(stdout);
    return 1;
}

/* Exact, then --method or each of the files of --rotations (a list with commas), for each of --lengths. */
static int needle_methods(engine *e, const needle *n, const options *o)
{
    char list[1024], *at = list;
    options one = *o;
    settings set;
    int ok;
    one.method = "exact";
    if (!settings_create(e, &one, &set)) return 0;
    ok = needle_run(e, n, set.layers, o, "bf16");
    settings_free(&set);
    snprintf(list, sizeof list, "%s", o->rotations ? o->rotations : "");
    one = *o;
    do {
        char *end = strchr(at, ',');
        const char *name;
        if (end) *end = 0;
        one.rotations = *at ? at : NULL;
        if (!ok || !settings_create(e, &one, &set)) return 0;
        name = set.rotations ? oscar_rotations_meta(set.rotations, "oscar.compose") : o->method;
        ok = needle_run(e, n, set.layers, o, name ? name : "hadamard");
        settings_free(&set);
        at = end ? end + 1 : NULL;
    } while (ok && at);
    return ok;
}

/* The prose of a file, or the built-in one; *file stays mapped as long as the text is used. */
static int needle_text(const char *path, mapped *file, text *prose)
{
    file->bytes = NULL;
    *prose = text_of(needle_prose);
    if (!path) return 1;
    if (!map_file(path, file)) return 0;
    prose->at = (const char *)file->bytes;
    prose->size = file->size;
    return 1;
}

static int command_needle(engine *e, const options *o)
{
    const char *at = o->lengths ? o->lengths : "512,1024,2048,4096";
    tokenizer t;
    mapped file;
    text prose;
    int ok;
    if (!tokenizer_create(&e->m.data, &t)) return 0;
    ok = needle_text(o->text, &file, &prose);
    while (ok && *at) {
        char *end;
        long length = strtol(at, &end, 10);
        needle n;
        if (end == at || length < 64 || length > 1 << 20 || (*end && *end != ',')) {
            ok = complain("--lengths is a list of token counts such as 512,2048, not %s", o->lengths);
            break;
        }
        ok = needle_create(e, &t, prose, (int)length, &n) && needle_methods(e, &n, o);
        free(n.ids);
        at = *end ? end + 1 : end;
    }
    if (file.bytes) unmap_file(&file);
    tokenizer_free(&t);
    return ok;
}

/* ---- command line -------------------------------------------------------------------------------------------- */

typedef struct command {
    const char *name, *arguments;
    int needs_text, needs_out, served;    /* a third argument, -o; runs with a cache for the whole model */
    int (*run)(engine *e, const options *o);
    const char *help;
} command;

static const command commands[] = {
    { "calibrate", "MODEL TEXT -o FILE", 1, 1, 0, command_calibrate,
      "finds the transforms on a text; --method --tokens --chunk --weights --shifts --bits" },
    { "ppl", "MODEL TEXT", 1, 0, 0, command_ppl,
      "perplexity, KL divergence and top-1 agreement with the cache, decode attention; --method --rotations --chunks" },
    { "generate", "MODEL PROMPT", 1, 0, 1, command_generate,
      "streams text, prints tokens/s and the cache's bytes; --chat --temperature --seed --tokens --fold" },
    { "needle", "MODEL [TEXT]", 0, 0, 1, command_needle,
      "retrieval of facts hidden in prose, TEXT's or built-in; --lengths --rotations A,B" },
    { "chunks", "MODEL TEXT", 1, 0, 1, command_chunks, "the same tokens in one chunk, in several, and one by one" },
    { "dump", "MODEL TEXT -o FILE", 1, 1, 0, command_dump, "q, k, v as safetensors; --tokens --layer" },
};

/* kind: an i(nteger from 0), n(umber from -1), d(ouble), s(tring) follows; f(lag): nothing does. */
typedef struct option { const char *name; size_t at; char kind; const char *help; } option;
#define OPTION(name, field, kind, help) { name, offsetof(options, field), kind, help }

static const option option_list[] = {
    OPTION("-o", out, 's', "FILE to write"),
    OPTION("--method", method, 's', "balanced, oscar, oscar-layer, hadamard, none, exact"),
    OPTION("--rotations", rotations, 's', "FILE that calibrate wrote"),
    OPTION("--weights", weights, 's', "attention or plain: what calibration counts"),
    OPTION("--shifts", shifts, 's', "none, or joint RoPE shifts in tokens: 2048,4096"),
    OPTION("--bits", bits, 'd', "bits a value that calibrate may spend: layers that lose most get 4-bit keys"),
    OPTION("--shift-weight", shift_weight, 'd', "what a shifted copy counts against the chunk (0.1)"),
    OPTION("--metric", metric, 's', "on or off: codes of keys chosen for the queries (on with balanced)"),
    OPTION("--tokens", tokens, 'i', "calibrate 16384, generate 128, dump 512"),
    OPTION("--chunk", chunk, 'i', "tokens of a context (2048); generate: of a prompt chunk (512)"),
    OPTION("--chunks", chunks, 'i', "contexts that ppl runs (2)"),
    OPTION("--sink", sink, 'n', "first tokens that stay exact (64), -1 none"),
    OPTION("--recent", recent, 'n', "last tokens that stay exact (256), -1 none"),
    OPTION("--k-bits", k_bits, 'i', "2, 4 or 16"),
    OPTION("--v-bits", v_bits, 'i', "2, 4 or 16"),
    OPTION("--group", group, 'i', "channels that share a scale (the head size)"),
    OPTION("--fit", fit, 's', "unbiased or clip"),
    OPTION("--clip-k", clip_k, 'd', "quantile of |k| for clip (0.96), -1 off"),
    OPTION("--clip-v", clip_v, 'd', "quantile of |v| for clip (0.92), -1 off"),
    OPTION("--page-mean", page_mean, 's', "on or off"),
    OPTION("--fold", fold, 'f', "V's transform into the weights"),
    OPTION("--lengths", lengths, 's', "contexts of needle (512,1024,2048,4096)"),
    OPTION("--layer", layer, 'n', "dump this layer only"),
    OPTION("--chat", chat, 'f', "the prompt as a turn of a chat"),
    OPTION("--temperature", temperature, 'd', "0: the most likely token (default)"),
    OPTION("--seed", seed, 'i', "of the random choice"),
    OPTION("--threads", threads, 'i', "all processors"),
    OPTION("--gpu", gpu, 'f', "generate, needle, chunks: the cache on an NVIDIA GPU"),
    OPTION("--driver", driver, 's', "with --gpu: path of the CUDA driver"),
};
enum { OPTION_COUNT = (int)(sizeof option_list / sizeof *option_list),
       COMMAND_COUNT = (int)(sizeof commands / sizeof *commands) };

static void print_help(void)
{
    int i;
    puts("llm - a language model with a 2-bit KV cache: one file on oscar.h\n");
    for (i = 0; i < COMMAND_COUNT; i++)
        printf("  llm %s %s\n      %s\n", commands[i].name, commands[i].arguments, commands[i].help);
    puts("\nMODEL is a GGUF file: llama, qwen2, qwen3 or gemma3. Options:");
    for (i = 0; i < OPTION_COUNT; i++) printf("  %-14s %s\n", option_list[i].name, option_list[i].help);
}

static int option_set(const option *p, options *o, const char *value)
{
    char *field = (char *)o + p->at, *end = NULL;
    if (p->kind == 's') { *(const char **)(void *)field = value; return 1; }
    if (p->kind == 'd') *(double *)(void *)field = strtod(value, &end);
    else {
        long number = strtol(value, &end, 10);
        if (number < (p->kind == 'n' ? -1 : 0) || number > 1 << 24) end = NULL;
        *(int *)(void *)field = (int)number;
    }
    if (p->kind == 'd' && isnan(*(double *)(void *)field)) end = NULL;
    return (end && end != value && !*end) || complain("%s takes a number, not %s", p->name, value);
}

/* Options anywhere; what is left are the command's arguments. */
static int options_parse(int count, char **words, options *o)
{
    const char *plain[4] = { 0 };
    int n = 0, i, j;
    memset(o, 0, sizeof *o);
    o->layer = -1;
    for (i = 1; i < count; i++) {
        for (j = 0; j < OPTION_COUNT && strcmp(words[i], option_list[j].name); j++) {}
        if (j < OPTION_COUNT && option_list[j].kind == 'f') *(int *)(void *)((char *)o + option_list[j].at) = 1;
        else if (j < OPTION_COUNT) {
            if (++i == count) return complain("%s needs a value", option_list[j].name);
            if (!option_set(&option_list[j], o, words[i])) return 0;
        } else if (words[i][0] == '-' && words[i][1])
            return complain("there is no option %s; llm --help lists them", words[i]);
        else if (n < 3) plain[n++] = words[i];
        else return complain("%s is one argument too many; quote a prompt", words[i]);
    }
    o->command = plain[0];
    o->model = plain[1];
    o->text = o->prompt = plain[2];
    return 1;
}

static int run_command(const options *o)
{
    engine e;
    const command *c = commands;
    int ok;
    if (!o->command) return complain("which command? llm --help lists them");
    while (c < commands + COMMAND_COUNT && strcmp(o->command, c->name)) c++;
    if (c == commands + COMMAND_COUNT) return complain("there is no command %s; llm --help lists them", o->command);
    if (!o->model || (c->needs_text && !o->text) || (c->needs_out && !o->out))
        return complain("usage: llm %s %s", c->name, c->arguments);
    if (o->gpu && !c->served) return complain("llm %s has no cache that could be on a GPU", c->name);
    if (!engine_open(o->model, o->threads, &e)) return 0;
    ok = c->run(&e, o);
    engine_close(&e);
    return ok;
}

#ifndef LLM_NO_MAIN
int main(int count, char **words)
{
    options o;
    if (count < 2 || !strcmp(words[1], "--help") || !strcmp(words[1], "-h")) { print_help(); return count < 2; }
    return options_parse(count, words, &o) && run_command(&o) ? 0 : 1;
}
#endif
