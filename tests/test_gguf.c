/* test_gguf.c - sections 2 and 3 of examples/llm.c: GGUF files and the number formats of weights. */
#define LLM_NO_MAIN
#include "examples/llm.c"
#include "test.h"
#include "gguf_build.h"

/* Parses a copy that ends where its allocation ends. The copy stays in *memory for the caller to free. */
static int parse(const gguf_build *b, size_t size, gguf *g, unsigned char **memory)
{
    *memory = (unsigned char *)malloc(size ? size : 1);
    if (!*memory) abort();
    if (size) memcpy(*memory, b->at, size);
    return gguf_parse(*memory, size, g);
}

static int is_empty(const gguf *g)
{
    return !g->tensors && !g->keys && !g->tensor_count && !g->key_count && !gguf_tensor(g, "a");
}

/* What gguf_parse prints about a file that it refuses; "" if it takes it. */
static const char *complaint(const gguf_build *b)
{
    static char said[512];
    FILE *catcher = tmpfile();
    int saved = dup(2);
    unsigned char *memory;
    gguf g;
    size_t size;
    if (!catcher || saved < 0) abort();
    fflush(stderr);
    dup2(fileno(catcher), 2);
    llm_quiet = 0;
    if (parse(b, b->size, &g, &memory)) gguf_free(&g);
    CHECK(is_empty(&g));
    free(memory);
    llm_quiet = 1;
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(catcher);
    size = fread(said, 1, sizeof said - 1, catcher);
    said[size] = 0;
    fclose(catcher);
    return said;
}

static void build_free(gguf_build *b)
{
    free(b->at);
    memset(b, 0, sizeof *b);
}

/* The message has to contain `part`. Frees the file. */
static void refused(gguf_build *b, const char *part)
{
    const char *said = complaint(b);
    CHECK_MSG(strstr(said, part), ("    wanted: %s\n    said: %s\n", part, said));
    build_free(b);
}

/* ---- values ---- */

typedef struct number { int type; uint64_t bits; double value; } number;

static const number numbers[] = {
    { GGUF_UINT8, 200, 200 }, { GGUF_INT8, 0x80, -128 }, { GGUF_INT8, 0x7f, 127 }, { GGUF_UINT16, 0xffff, 65535 },
    { GGUF_INT16, 0x8000, -32768 }, { GGUF_INT16, 0x1234, 0x1234 }, { GGUF_UINT32, 0xffffffffu, 4294967295.0 },
    { GGUF_INT32, 0x80000000u, -2147483648.0 }, { GGUF_INT32, 0xffffffffu, -1 }, { GGUF_INT32, 77, 77 },
    { GGUF_FLOAT32, 0xc0490000u, -3.140625 }, { GGUF_BOOL, 0, 0 }, { GGUF_BOOL, 1, 1 },
    { GGUF_UINT64, 0x8000000000000000u, 9223372036854775808.0 }, { GGUF_INT64, 0xffffffffffffffffu, -1 },
    { GGUF_INT64, 0x8000000000000000u, -9223372036854775808.0 }, { GGUF_INT64, 1, 1 },
    { GGUF_FLOAT64, 0x3ff8000000000000u, 1.5 }
};

enum { NUMBERS = sizeof numbers / sizeof numbers[0] };

static void test_values(void)
{
    gguf_build b;
    unsigned char *memory;
    char name[16];
    double value;
    int i;
    gguf g;
    gguf_array list;
    memset(&b, 0, sizeof b);
    TEST("single values of every type");
    build_header(&b, 3, 0, NUMBERS);
    for (i = NUMBERS; i-- > 0; ) {
        snprintf(name, sizeof name, "n%d", i);
        build_number(&b, name, (uint32_t)numbers[i].type, numbers[i].bits);
    }
    CHECK(parse(&b, b.size, &g, &memory));
    for (i = 0; i < NUMBERS; i++) {
        snprintf(name, sizeof name, "n%d", i);
        CHECK(gguf_real(&g, name, 0, &value) && !(value < numbers[i].value) && !(value > numbers[i].value));
        CHECK(gguf_real(&g, name, 1000, &value) && !gguf_real(&g, name, -1, &value));
        CHECK(!gguf_array_of(&g, name, numbers[i].type, &list));
    }
    CHECK(!gguf_real(&g, "n", 0, &value) && !gguf_real(&g, "n00", 0, &value) && !gguf_real(&g, "", 0, &value));
    gguf_free(&g);
    CHECK(is_empty(&g));
    free(memory);
    build_free(&b);

    TEST("arrays of every type");
    build_header(&b, 2, 0, NUMBERS);
    for (i = 0; i < NUMBERS; i++) {
        snprintf(name, sizeof name, "n%d", i);
        build_array(&b, name, (uint32_t)numbers[i].type, 2);
        build_int(&b, build_value_bytes((uint32_t)numbers[i].type), 0);
        build_int(&b, build_value_bytes((uint32_t)numbers[i].type), numbers[i].bits);
    }
    CHECK(parse(&b, b.size, &g, &memory));
    for (i = 0; i < NUMBERS; i++) {
        snprintf(name, sizeof name, "n%d", i);
        CHECK(gguf_real(&g, name, 0, &value) && !(value < 0) && !(value > 0));
        CHECK(gguf_real(&g, name, 1, &value) && !(value < numbers[i].value) && !(value > numbers[i].value));
        CHECK(!gguf_real(&g, name, 2, &value) && !gguf_real(&g, name, -1, &value));
        CHECK(gguf_array_of(&g, name, numbers[i].type, &list) && list.count == 2 && list.type == numbers[i].type);
        CHECK(list.size == 2u * (unsigned)build_value_bytes((uint32_t)numbers[i].type));
        CHECK(!gguf_array_of(&g, name, GGUF_STRING, &list));
    }
    gguf_free(&g);
    free(memory);
    build_free(&b);
}

static void test_strings(void)
{
    gguf_build b;
    unsigned char *memory;
    const unsigned char *at;
    double value;
    gguf g;
    text t;
    gguf_array list;
    memset(&b, 0, sizeof b);
    TEST("strings and arrays of strings");
    build_header(&b, 3, 0, 6);
    build_string(&b, "one", "a string");
    build_string(&b, "empty", "");
    build_key(&b, "zeros", GGUF_STRING);
    build_text(&b, "\0b\0", 3);
    build_array(&b, "list", GGUF_STRING, 3);
    build_text(&b, "x", 1);
    build_text(&b, "", 0);
    build_text(&b, "\xe2\x96\x81", 3);
    build_array(&b, "none", GGUF_STRING, 0);
    build_number(&b, "number", GGUF_UINT8, 3);
    CHECK(parse(&b, b.size, &g, &memory));
    CHECK(gguf_text(&g, "one", &t) && text_is(t, "a string"));
    CHECK(gguf_text(&g, "empty", &t) && t.size == 0);
    CHECK(gguf_text(&g, "zeros", &t) && t.size == 3 && !memcmp(t.at, "\0b\0", 3));
    CHECK(!gguf_text(&g, "list", &t) && !gguf_text(&g, "number", &t) && !gguf_text(&g, "absent", &t));
    CHECK(!gguf_real(&g, "one", 0, &value) && !gguf_real(&g, "list", 0, &value));
    CHECK(gguf_array_of(&g, "list", GGUF_STRING, &list) && list.count == 3);
    at = gguf_next_text(list.data, &t);
    CHECK(text_is(t, "x"));
    at = gguf_next_text(at, &t);
    CHECK(text_is(t, ""));
    at = gguf_next_text(at, &t);
    CHECK(text_is(t, "\xe2\x96\x81") && at == list.data + list.size);
    CHECK(gguf_array_of(&g, "none", GGUF_STRING, &list) && !list.count && !list.size);
    gguf_free(&g);
    free(memory);
    build_free(&b);
}

/* ---- tensors ---- */

/* Four tensors, with 64 + 34 + 8 + some bytes of data; their first bytes are 'A', 'B', 'C', 'D'. */
static void build_sample(gguf_build *b, uint32_t version, size_t alignment)
{
    static const uint64_t matrix[] = { 4, 4 }, quantised[] = { 32 }, deep[] = { 1, 2, 1, 1 }, strange[] = { 7, 5, 3 };
    uint64_t step = (64 + alignment - 1) / alignment * alignment;
    size_t start;
    int i;
    memset(b, 0, sizeof *b);
    build_header(b, version, 4, alignment == 32 ? 2 : 3);
    build_string(b, "general.architecture", "test");
    if (alignment != 32) build_number(b, "general.alignment", GGUF_UINT32, alignment);
    build_array(b, "list", GGUF_STRING, 2);
    build_text(b, "x", 1);
    build_text(b, "yz", 2);
    build_tensor(b, "b.matrix", 2, matrix, TYPE_F32, 0);
    build_tensor(b, "b", 1, quantised, TYPE_Q8_0, step);
    build_tensor(b, "a", 4, deep, TYPE_F32, 2 * step);
    build_tensor(b, "c", 3, strange, 999, 3 * step);   /* a format that nobody knows */
    build_pad(b, alignment);
    start = b->size;
    for (i = 0; i < 4; i++) {
        while (b->size < start + (size_t)step * (size_t)i) build_int(b, 1, 0);
        build_int(b, 1, (uint64_t)('A' + i));
    }
    build_pad(b, alignment);
}

static void test_tensors(void)
{
    static const size_t alignments[] = { 8, 16, 32, 64, 4096 };
    static const int64_t matrix[] = { 4, 4, 1, 1 }, strange[] = { 7, 5, 3, 1 };
    gguf_build b;
    unsigned char *memory;
    size_t i;
    const tensor *t;
    gguf g;
    TEST("tensors, their data, and every alignment");
    for (i = 0; i < 2 * sizeof alignments / sizeof alignments[0]; i++) {
        build_sample(&b, i % 2 ? 2 : 3, alignments[i / 2]);
        if (!parse(&b, b.size, &g, &memory)) { CHECK(!"parses"); continue; }
        CHECK(g.tensor_count == 4 && g.version == (i % 2 ? 2 : 3));
        t = gguf_tensor(&g, "b.matrix");
        CHECK(t && t->type == TYPE_F32 && t->dims == 2 && !memcmp(t->shape, matrix, sizeof matrix));
        CHECK(t && t->data[0] == 'A' && (size_t)(t->data - memory) % alignments[i / 2] == 0);
        t = gguf_tensor(&g, "b");
        CHECK(t && t->type == TYPE_Q8_0 && t->dims == 1 && t->shape[0] == 32 && t->shape[1] == 1 && t->data[0] == 'B');
        t = gguf_tensor(&g, "a");
        CHECK(t && t->dims == 4 && t->shape[0] == 1 && t->shape[1] == 2 && t->shape[3] == 1 && t->data[0] == 'C');
        t = gguf_tensor(&g, "c");
        CHECK(t && !t->data && t->type == 999 && !memcmp(t->shape, strange, sizeof strange));
        CHECK(!gguf_tensor(&g, "") && !gguf_tensor(&g, "b.") && !gguf_tensor(&g, "d"));
        gguf_free(&g);
        free(memory);
        build_free(&b);
    }
}

static void test_many(void)
{
    enum { MANY = 3000 };
    static const uint64_t one[] = { 1 };
    gguf_build b;
    unsigned char *memory;
    char name[32];
    const tensor *t;
    int i;
    gguf g;
    memset(&b, 0, sizeof b);
    TEST("many tensors and keys are found by name");
    build_header(&b, 3, MANY, MANY);
    for (i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "key.%d", i * 7919 % MANY);
        build_number(&b, name, GGUF_UINT32, (uint64_t)(i * 7919 % MANY));
    }
    for (i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "blk.%d.weight", i * 7919 % MANY);
        build_tensor(&b, name, 1, one, TYPE_F32, 32 * (uint64_t)(i * 7919 % MANY));
    }
    build_pad(&b, 32);
    for (i = 0; i < MANY; i++) { build_int(&b, 4, (uint64_t)i); build_pad(&b, 32); }
    CHECK(parse(&b, b.size, &g, &memory));
    for (i = 0; i < MANY && g.tensor_count == MANY; i++) {
        double value;
        snprintf(name, sizeof name, "key.%d", i);
        CHECK(gguf_real(&g, name, 0, &value) && (int)value == i);
        snprintf(name, sizeof name, "blk.%d.weight", i);
        t = gguf_tensor(&g, name);
        CHECK(t && text_is(t->name, name) && read32(t->data) == (uint32_t)i);
    }
    gguf_free(&g);
    free(memory);
    build_free(&b);
}

/* ---- what is refused ---- */

static void test_header(void)
{
    gguf_build b;
    memset(&b, 0, sizeof b);
    TEST("other files, versions and byte orders");
    refused(&b, "no GGUF file");
    build_bytes(&b, "GGU", 3);
    refused(&b, "no GGUF file");
    build_bytes(&b, "GGML\3\0\0\0", 8);
    refused(&b, "no GGUF file");
    build_header(&b, 1, 0, 0);
    refused(&b, "version 1");
    build_header(&b, 4, 0, 0);
    refused(&b, "version 4");
    build_header(&b, 0, 0, 0);
    refused(&b, "version 0");
    build_header(&b, 0x03000000u, 0, 0);
    refused(&b, "big endian");
    build_header(&b, 3, 1, 0);
    refused(&b, "1 tensors");
    build_header(&b, 3, 0, 1);
    refused(&b, "1 keys");
    build_header(&b, 3, (uint64_t)1 << 60, 0);
    refused(&b, "1152921504606846976 tensors");
    build_header(&b, 3, 0, UINT64_MAX);
    refused(&b, "18446744073709551615 keys");
    build_header(&b, 3, 0, 0);
    CHECK(!*complaint(&b));   /* nothing in it, but a file */
    build_free(&b);
}

static void test_bad_keys(void)
{
    gguf_build b;
    int i;
    memset(&b, 0, sizeof b);
    TEST("keys that are refused, by name");
    build_header(&b, 3, 0, 1);
    build_number(&b, "some.key", 13, 0);
    refused(&b, "key some.key: there is no value type 13");
    build_header(&b, 3, 0, 1);
    build_array(&b, "some.list", 13, 0);
    refused(&b, "key some.list: there is no value type 13");
    build_header(&b, 3, 0, 1);
    build_array(&b, "some.list", GGUF_ARRAY, 1);
    refused(&b, "key some.list: arrays of arrays");
    build_header(&b, 3, 0, 2);
    build_number(&b, "first", GGUF_UINT64, 0);
    build_number(&b, "a\n\033[31mb", GGUF_UINT8, 0);
    b.size--;
    refused(&b, "key a??[31mb");
    build_header(&b, 3, 0, 2);
    build_number(&b, "twice", GGUF_UINT8, 1);
    build_number(&b, "twice", GGUF_UINT32, 1);
    refused(&b, "key twice occurs twice");
    build_header(&b, 3, 0, 1);
    for (i = 0; i < 3; i++) build_int(&b, 8, 1000);
    refused(&b, "key number 1: a string of 1000 bytes");
    build_header(&b, 3, 0, 1);
    build_text(&b, "0123456789012345678901234567890123456789012345678901234567890123456789"
               "0123456789012345678901234567890123456789", 110);
    refused(&b, "8901234567...");
    TEST("alignments that are refused");
    for (i = 0; i < 3; i++) {
        build_header(&b, 3, 0, 1);
        build_number(&b, "general.alignment", GGUF_UINT32, i == 0 ? 0 : i == 1 ? 4 : 48);
        refused(&b, "general.alignment is");
    }
    build_header(&b, 3, 0, 1);
    build_string(&b, "general.alignment", "32");
    refused(&b, "general.alignment is not one UINT32");
    build_header(&b, 3, 0, 1);
    build_array(&b, "general.alignment", GGUF_UINT32, 1);
    build_int(&b, 4, 32);
    refused(&b, "general.alignment is not one UINT32");
}

/* A file with one tensor and 64 bytes of data. */
static void refused_tensor(int dims, const uint64_t *shape, uint32_t type, uint64_t offset, const char *part)
{
    static const unsigned char zeros[64];
    gguf_build b;
    memset(&b, 0, sizeof b);
    build_header(&b, 3, 1, 0);
    build_tensor(&b, "w", dims, shape, type, offset);
    build_pad(&b, 32);
    build_bytes(&b, zeros, sizeof zeros);
    if (part) { refused(&b, part); return; }
    CHECK(!*complaint(&b));
    build_free(&b);
}

static void test_bad_tensors(void)
{
    static const uint64_t fits[] = { 4, 4, 1, 1, 1 }, zero[] = { 4, 0 }, more[] = { 17 }, rows[] = { 8, 3 };
    static const uint64_t huge[] = { 1u << 31, 1u << 31, 1u << 31, 1 }, top[] = { UINT64_MAX }, wide[] = { INT64_MAX };
    static const uint64_t wide4[] = { (uint64_t)1 << 62 }, tall[] = { 1, INT64_MAX }, block[] = { 31 }, k[] = { 128 };
    gguf_build b;
    TEST("tensors that are refused, by name");
    refused_tensor(2, fits, TYPE_F32, 0, NULL);
    refused_tensor(4, fits, TYPE_F32, 0, NULL);
    refused_tensor(0, fits, TYPE_F32, 0, "tensor w: 0 dimensions");
    refused_tensor(5, fits, TYPE_F32, 0, "tensor w: 5 dimensions");
    refused_tensor(2, zero, TYPE_F32, 0, "tensor w: dimension 1 is 0");
    refused_tensor(1, more, TYPE_F32, 0, "tensor w: its data goes past");
    refused_tensor(2, rows, TYPE_F32, 0, "tensor w: its data goes past");
    refused_tensor(2, fits, TYPE_F32, 32, "tensor w: its data goes past");
    refused_tensor(2, fits, TYPE_F32, 64, "tensor w: its data goes past");
    refused_tensor(2, fits, TYPE_F32, 96, "tensor w: its data lies behind");
    refused_tensor(2, fits, TYPE_F32, (uint64_t)1 << 63, "tensor w: its data lies behind");
    refused_tensor(2, fits, TYPE_F32, 16, "tensor w: its data is at 16, not a multiple of the file's alignment 32");
    refused_tensor(3, huge, TYPE_F32, 0, "tensor w: too many values");
    refused_tensor(1, top, TYPE_F32, 0, "tensor w: too many values");
    refused_tensor(1, wide, TYPE_F32, 0, "tensor w: rows of 9223372036854775807 values");
    refused_tensor(1, wide4, TYPE_F32, 0, "tensor w: rows of 4611686018427387904 values");
    refused_tensor(2, tall, TYPE_F32, 0, "tensor w: its data goes past");
    refused_tensor(1, block, TYPE_Q8_0, 0, "tensor w: rows of 31 values cannot be of type Q8_0");
    refused_tensor(1, k, TYPE_Q4_K, 0, "tensor w: rows of 128 values cannot be of type Q4_K");
    refused_tensor(1, fits, 10, 0, NULL);                 /* known by name only */
    refused_tensor(1, fits, 0xffffffffu, 0, NULL);
    refused_tensor(1, fits, 10, 96, "tensor w: its data lies behind");
    memset(&b, 0, sizeof b);
    build_header(&b, 3, 2, 0);
    build_tensor(&b, "w", 1, fits, TYPE_F32, 0);
    build_tensor(&b, "w", 1, fits, TYPE_F32, 0);
    build_pad(&b, 32);
    build_int(&b, 8, 0);
    build_int(&b, 8, 0);
    refused(&b, "tensor w occurs twice");
}

static void test_damage(void)
{
    static const uint64_t values[] = { 1000, 1u << 31, (uint64_t)1 << 32, (uint64_t)1 << 60, (uint64_t)1 << 61,
                                       (uint64_t)1 << 62, INT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 7, UINT64_MAX };
    gguf_build b;
    unsigned char *memory, saved[8];
    size_t size, i, last;
    int k, j;
    gguf g;
    TEST("every truncation fails, except of padding");
    build_sample(&b, 3, 32);
    last = b.size - 31;   /* the last byte that was asked for: 'D', of a tensor whose size nobody knows */
    for (size = 0; size <= b.size; size++) {
        int good = parse(&b, size, &g, &memory);
        CHECK_MSG(good == (size >= last - 1), ("    %d bytes of %d\n", (int)size, (int)b.size));
        if (good) gguf_free(&g);
        CHECK(is_empty(&g));
        free(memory);
    }
    TEST("every count and length made huge fails");
    CHECK(b.count_count == 2 + 3 + 3 + 4 + 4 + 2 + 1 + 4 + 3);
    for (k = 0; k < b.count_count; k++)
        for (i = 0; i < sizeof values / sizeof values[0]; i++) {
            int good;
            memcpy(saved, b.at + b.counts[k], 8);
            for (j = 0; j < 8; j++) b.at[b.counts[k] + (size_t)j] = (unsigned char)(values[i] >> 8 * j & 255);
            good = parse(&b, b.size, &g, &memory);
            /* the shape of the tensor without a known format is only checked for overflow */
            CHECK_MSG(!good || (k >= b.count_count - 4 && k < b.count_count - 1), ("    count %d is %llx\n", k,
                      (unsigned long long)values[i]));
            if (good) gguf_free(&g);
            free(memory);
            memcpy(b.at + b.counts[k], saved, 8);
        }
    TEST("no damage to a byte does harm");   /* for the sanitizers to see */
    for (i = 0; i < b.size; i++)
        for (j = 1; j < 256; j += 6) {
            b.at[i] ^= (unsigned char)j;
            if (parse(&b, b.size, &g, &memory)) gguf_free(&g);
            free(memory);
            b.at[i] ^= (unsigned char)j;
        }
    CHECK(!*complaint(&b));
    build_free(&b);
}

/* ---- number formats: value i of a row, read slowly from the definition, in double ---- */

static double slow_half(const unsigned char *at)
{
    int bits = at[0] + 256 * at[1], exponent = bits / 1024 % 32, fraction = bits % 1024;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    if (exponent == 31) size = fraction ? NAN : HUGE_VAL;
    return bits & 0x8000 ? -size : size;
}

static int slow_int8(unsigned byte) { return byte < 128 ? (int)byte : (int)byte - 256; }
static int slow_bit(const unsigned char *at, int i) { return at[i / 8] >> i % 8 & 1; }
static int slow_nibble(unsigned byte, int high) { return (int)(high ? byte / 16 : byte % 16); }

/* Value i of a block of 32: the low halves of 16 bytes come first. */
static int slow_code32(const unsigned char *q, int i) { return slow_nibble(q[i % 16], i >= 16); }

/* Scale (or minimum) of group g in the 12 bytes of Q4_K and Q5_K: numbers of 6 bits. */
static int slow_scale(const unsigned char *s, int g, int minimum)
{
    if (g < 4) return s[g + 4 * minimum] % 64;
    return slow_nibble(s[8 + g - 4], minimum) + s[g - 4 + 4 * minimum] / 64 * 16;
}

static double slow_k(const unsigned char *b, int i, int five)
{
    const unsigned char *q = b + (five ? 48 : 16);
    int g = i / 32, code = slow_nibble(q[i / 64 * 32 + i % 32], g % 2);
    if (five) code += 16 * (b[16 + i % 32] >> g & 1);
    return slow_half(b) * slow_scale(b + 4, g, 0) * code - slow_half(b + 2) * slow_scale(b + 4, g, 1);
}

static double slow_q6(const unsigned char *b, int i)
{
    int half = i / 128, row = i % 128 / 32, column = i % 32;
    int code = slow_nibble(b[64 * half + 32 * (row % 2) + column], row >= 2);
    code += 16 * (b[128 + 32 * half + column] >> 2 * row & 3);
    return slow_half(b + 208) * slow_int8(b[192 + i / 16]) * (code - 32);
}

static double slow_value(int type, const unsigned char *row, int64_t i)
{
    const weight_type *t = weight_type_of(type);
    const unsigned char *b = row + i / t->values * t->bytes;
    int k = (int)(i % t->values);
    float single;
    uint32_t bits;
    switch (type) {
    case TYPE_F32: case TYPE_BF16:
        bits = type == TYPE_F32 ? read32(b) : (uint32_t)(b[0] + 256 * b[1]) * 65536u;
        memcpy(&single, &bits, 4);
        return (double)single;
    case TYPE_F16: return slow_half(b);
    case TYPE_Q8_0: return slow_half(b) * slow_int8(b[2 + k]);
    case TYPE_Q4_0: return slow_half(b) * (slow_code32(b + 2, k) - 8);
    case TYPE_Q4_1: return slow_half(b) * slow_code32(b + 4, k) + slow_half(b + 2);
    case TYPE_Q5_0: return slow_half(b) * (slow_code32(b + 6, k) + 16 * slow_bit(b + 2, k) - 16);
    case TYPE_Q5_1: return slow_half(b) * (slow_code32(b + 8, k) + 16 * slow_bit(b + 4, k)) + slow_half(b + 2);
    case TYPE_Q4_K: return slow_k(b, k, 0);
    case TYPE_Q5_K: return slow_k(b, k, 1);
    default: return slow_q6(b, k);
    }
}

/* Equal bits, or both no number. */
static int same_float(float x, double wanted)
{
    float y = (float)wanted;
    return x != x ? y != y : !memcmp(&x, &y, 4);
}

typedef struct format { int type, values, bytes; uint64_t hash; } format;

/* The hashes (FNV-1a, of the floats as bytes) are those of the same rows read by the Python package gguf 0.19. */
static const format formats[] = {
    { TYPE_F32, 1, 4, 0x9f27d6ee2693b6f9u }, { TYPE_F16, 1, 2, 0x2127b50fa62698ecu },
    { TYPE_BF16, 1, 2, 0x9d4f6ce54ab092ebu }, { TYPE_Q8_0, 32, 34, 0x644036d8c0a6f703u },
    { TYPE_Q4_0, 32, 18, 0x86891b755349902au }, { TYPE_Q4_1, 32, 20, 0x342d73fb90955256u },
    { TYPE_Q5_0, 32, 22, 0x2125221386d24d52u }, { TYPE_Q5_1, 32, 24, 0x4b57403c9bf24d08u },
    { TYPE_Q4_K, 256, 144, 0x7d854e86425f00e9u }, { TYPE_Q5_K, 256, 176, 0x7be940dbffb443a5u },
    { TYPE_Q6_K, 256, 210, 0x7ff370604cf7f93bu }
};

enum { FORMATS = sizeof formats / sizeof formats[0], ROW = 2048 };

/* Random bytes in rows of 2048 values. finite: no scale, or value of the unquantised formats, is infinite or NaN. */
static void sample_row(test_random *r, const format *f, int finite, unsigned char *row)
{
    int i, size = ROW / f->values * f->bytes;
    for (i = 0; i < size; i++) row[i] = (unsigned char)(random_u32(r) >> 24);
    for (i = 0; finite && i < size; i += f->bytes) {
        row[i + (f->type == TYPE_Q6_K ? 209 : f->type == TYPE_F32 ? 3 : 1)] &= 0xbf;   /* upper byte of d */
        if (f->values > 1) row[i + 3] &= 0xbf;                                         /* of m, if there is one */
    }
}

static void test_rows(void)
{
    static float out[ROW];
    test_random r;
    int i, k, round;
    for (i = 0; i < FORMATS; i++) {
        const format *f = &formats[i];
        size_t size = (size_t)(ROW / f->values * f->bytes);
        unsigned char *row = (unsigned char *)malloc(size);
        uint64_t hash = 14695981039346656037u;
        int wrong = 0;
        TEST(type_name(f->type));
        if (!row) abort();
        r.state = 1;
        for (round = 0; round < 40; round++) {
            sample_row(&r, f, round < 8, row);
            row_floats(f->type, row, ROW, out);
            for (k = 0; k < ROW; k++) {
                uint32_t bits = bits_of_float(out[k]), b;
                wrong += !same_float(out[k], slow_value(f->type, row, k));
                for (b = 0; round < 8 && b < 32; b += 8) hash = (hash ^ (bits >> b & 255)) * 1099511628211u;
            }
        }
        CHECK_MSG(!wrong, ("    %d values of %s differ from the definition\n", wrong, type_name(f->type)));
        CHECK_MSG(hash == f->hash, ("    hash %llx\n", (unsigned long long)hash));
        free(row);
    }
    TEST("short rows, and no byte more");
    for (i = 0; i < FORMATS; i++) {
        const format *f = &formats[i];
        for (k = 1; k <= 5; k++) {
            unsigned char *row = (unsigned char *)calloc((size_t)k, (size_t)f->bytes);
            float *exact = (float *)malloc((size_t)(k * f->values) * sizeof(float));
            if (!row || !exact) abort();
            row_floats(f->type, row, k * f->values, exact);
            CHECK(same_float(exact[k * f->values - 1], slow_value(f->type, row, k * f->values - 1)));
            free(row);
            free(exact);
        }
    }
}

static void test_halves(void)
{
    static unsigned char row[2 * 65536];
    static float out[65536];
    int i, wrong = 0;
    for (i = 0; i < 65536; i++) { row[2 * i] = (unsigned char)(i & 255); row[2 * i + 1] = (unsigned char)(i >> 8); }
    TEST("every F16 and BF16 number");
    row_floats(TYPE_F16, row, 65536, out);
    for (i = 0; i < 65536; i++) wrong += !same_float(out[i], slow_half(row + 2 * i));
    for (i = 0; i < 65536; i++) wrong += !same_float(half_float((uint32_t)i), slow_half(row + 2 * i));
    row_floats(TYPE_BF16, row, 65536, out);
    for (i = 0; i < 65536; i++) wrong += bits_of_float(out[i]) != (uint32_t)i << 16;
    CHECK(!wrong);
}

static void test_types(void)
{
    int i, type, known;
    TEST("sizes and names of formats");
    for (i = 0; i < FORMATS; i++) {
        const format *f = &formats[i];
        CHECK(row_bytes(f->type, f->values) == (size_t)f->bytes);
        CHECK(row_bytes(f->type, 3 * f->values) == 3 * (size_t)f->bytes);
        CHECK(!row_bytes(f->type, 0) && !row_bytes(f->type, -f->values) && strcmp(type_name(f->type), "unknown"));
        CHECK(f->values == 1 || (!row_bytes(f->type, f->values + 1) && !row_bytes(f->type, f->values / 2)));
    }
    CHECK(!row_bytes(TYPE_F32, INT64_MAX) && !row_bytes(TYPE_F32, (int64_t)1 << 62));
    for (type = -3, known = 0; type < 60; type++) known += row_bytes(type, 256) > 0;
    CHECK(known == FORMATS);
    CHECK(!row_bytes(INT32_MAX, 256) && !row_bytes(INT32_MIN, 256) && !strcmp(type_name(INT32_MIN), "unknown"));
    CHECK(!strcmp(type_name(TYPE_BF16), "BF16") && !strcmp(type_name(TYPE_Q6_K), "Q6_K"));
    CHECK(!strcmp(type_name(39), "MXFP4") && !strcmp(type_name(35), "TQ2_0") && !strcmp(type_name(23), "IQ4_XS"));
}

int main(void)
{
    llm_quiet = 1;
    test_values();
    test_strings();
    test_tensors();
    test_many();
    test_header();
    test_bad_keys();
    test_bad_tensors();
    test_damage();
    test_rows();
    test_halves();
    test_types();
    return test_end("test_gguf");
}
