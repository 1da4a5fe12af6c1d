/* fuzz_rotations.c - reads a rotations file from memory; where it is taken, uses every accessor and writes it again.

       clang -g -O1 -fsanitize=fuzzer,address -DOSCAR_LIBFUZZER -I. tests/fuzz_rotations.c -lm -o fuzz_rotations
       ./fuzz_rotations -max_total_time=300 CORPUS      (a folder; it may be empty, the target has seeds of its own)

   Without libFuzzer, on files or on mutations of the seeds (more options in fuzz_main.c):

       cc -g -O1 -fsanitize=address,undefined -I. tests/fuzz_rotations.c tests/fuzz_main.c -lm -o fuzz_rotations
       ./fuzz_rotations -n 100000 */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"

#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition) ((condition) ? (void)0 : (void)(fprintf(stderr, "%d: %s\n", __LINE__, #condition), abort()))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
uint8_t *fuzz_seed(int index, size_t *size);

static volatile double sink;   /* so that no read is optimised away */

static void log_line(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    (void)user;
    (void)level;
    (void)code;
    REQUIRE(line > 0 && text[0] && strlen(text) < 512 && !strchr(text, '\n'));
}

static void use_pair(const oscar_pair *pair)
{
    float x[1024], y[1024];
    int i, direction;
    for (i = 0; i < pair->dim; i++) x[i] = (float)(i % 5 - 2);
    for (direction = 0; direction < 3; direction++) {
        REQUIRE(oscar_transform(pair, (oscar_direction)direction, 1, x, y) == OSCAR_OK);
        sink += (double)y[pair->dim - 1];
    }
}

static void use_layer(const oscar_rotations *r, int layer)
{
    oscar_layer l;
    int h, step;
    REQUIRE(oscar_rotations_layer(r, layer, &l) == OSCAR_OK);
    REQUIRE(l.kv_heads > 0 || (!l.k && !l.v));
    step = l.kv_heads > 4 ? l.kv_heads - 1 : 1;   /* first and last where there are many */
    for (h = 0; h < l.kv_heads; h += step) {
        float w[3 * 1024];
        int i;
        if (l.k) { REQUIRE(l.k[h].dim == l.k_dim); use_pair(&l.k[h]); }
        if (l.k) sink += oscar_rotations_similarity(r, layer, h, 0);
        if (!l.v) continue;
        REQUIRE(l.v[h].dim == l.v_dim);
        use_pair(&l.v[h]);
        for (i = 0; i < 3 * l.v_dim; i++) w[i] = 1;
        REQUIRE(oscar_fold_v(&l.v[h], 1, 3, w, NULL) == OSCAR_OK && oscar_fold_o(&l.v[h], 1, 1, 3, w) == OSCAR_OK);
        sink += (double)w[0];
    }
    l.q_heads = l.kv_heads;
    if (l.kv_heads && l.k_dim && l.v_dim) REQUIRE(oscar_layer_resolve(&l, NULL, &l) == OSCAR_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const keys[] = { "oscar.version", "oscar.k_kind", "oscar.model", "", "x" };
    oscar_hooks hooks = { NULL, NULL, log_line, NULL };
    oscar_rotations *r = NULL, *again = NULL;
    size_t bytes, bytes2;
    uint8_t *file, *file2;
    int i;
    if (oscar_rotations_read(data, size, &hooks, &r)) { REQUIRE(!r); return 0; }
    for (i = 0; i < 5; i++) {
        const char *value = oscar_rotations_meta(r, keys[i]);
        if (value) sink += (double)strlen(value);
    }
    for (i = 0; i < oscar_rotations_count(r); i++) use_layer(r, i);

    /* what was written is read and written again as the same bytes */
    REQUIRE(oscar_rotations_write(r, NULL, 0, &bytes) == OSCAR_OK);
    file = (uint8_t *)malloc(bytes);
    REQUIRE(file && oscar_rotations_write(r, file, bytes, &bytes) == OSCAR_OK);
    REQUIRE(oscar_rotations_read(file, bytes, &hooks, &again) == OSCAR_OK);
    REQUIRE(oscar_rotations_write(again, NULL, 0, &bytes2) == OSCAR_OK && bytes2 == bytes);
    file2 = (uint8_t *)malloc(bytes);
    REQUIRE(file2 && oscar_rotations_write(again, file2, bytes, &bytes2) == OSCAR_OK && !memcmp(file, file2, bytes));
    free(file);
    free(file2);
    oscar_rotations_destroy(again);
    oscar_rotations_destroy(r);
    return 0;
}

/* Two layers of dimension 16, below 4096 bytes, which libFuzzer starts with.
     0  K shared with dual and means, the other layer exact      1  V rotated per head      2  no tensors */
uint8_t *fuzz_seed(int index, size_t *size)
{
    static float matrix[256], mirror[256], twice[256], half[256], mean[32];
    static const char *const metadata[] = { "oscar.model", "\"x\"\n", NULL };
    oscar_pair k[2], v[2];
    oscar_layer l[2];
    oscar_rotations *r = NULL;
    uint8_t *file;
    int i;
    if (index > 2) return NULL;
    memset(k, 0, sizeof k);
    memset(v, 0, sizeof v);
    memset(l, 0, sizeof l);
    for (i = 0; i < 16; i++) { matrix[17 * i] = 1; mirror[17 * i] = -1; twice[17 * i] = 2; half[17 * i] = 0.5f; }
    for (i = 0; i < 32; i++) mean[i] = (float)i;
    for (i = 0; i < 2; i++) {
        k[i].kind = v[i].kind = OSCAR_DENSE;
        k[i].dim = v[i].dim = 16;
        k[i].to = twice;
        k[i].dual = half;
        k[i].mean = mean + 16 * i;
        v[i].to = i ? matrix : mirror;
        l[i].kv_heads = 2;
        l[i].k_dim = 16;
        l[i].k_fit = OSCAR_CLIP;
        l[i].k_clip = 0.9;
    }
    if (index == 0) { l[0].k = k; l[1].k_bits = l[1].v_bits = 16; }
    if (index == 1) l[1].v = v;
    REQUIRE(oscar_rotations_create(l, 2, metadata, NULL, &r) == OSCAR_OK);
    REQUIRE(oscar_rotations_write(r, NULL, 0, size) == OSCAR_OK);
    file = (uint8_t *)malloc(*size);
    REQUIRE(file && oscar_rotations_write(r, file, *size, size) == OSCAR_OK);
    oscar_rotations_destroy(r);
    return file;
}

#if defined(OSCAR_LIBFUZZER)
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

/* What is too short to be a file is replaced by a seed first. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    size_t bytes;
    uint8_t *file = size < 64 ? fuzz_seed((int)(seed % 3), &bytes) : NULL;
    if (file && bytes <= max_size) { memcpy(data, file, bytes); size = bytes; }
    free(file);
    return LLVMFuzzerMutate(data, size, max_size);
}
#endif
