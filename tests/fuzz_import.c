/* fuzz_import.c - the readers of examples/import_rotation_zoo.c. What they take is exported to GGUF and read again.

       clang -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz_import.c -lm -o fuzz_import
       ./fuzz_import -max_total_time=300 CORPUS          (or: make fuzz)

   Without libFuzzer see fuzz_main.c. The first byte of an input says what the others are:

       0  a file, read as a checkpoint and as a GGUF
       1  a pickle; an archive with right checksums and two storages is made around it
       2  changes to a good archive: offset (2 bytes), what to do, new byte, ...
       3  a GGUF; the bytes that name and count it are written over by right ones */
#define IMPORT_NO_MAIN
#include "examples/import_rotation_zoo.c"

#include "tests/zoo_writer.h"

#define REQUIRE(condition) ((condition) ? (void)0 : (void)(fprintf(stderr, "%d: %s\n", __LINE__, #condition), abort()))

enum { N = 16, SIZE = N * N, MODES = 4, SEEDS = 9 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
uint8_t *fuzz_seed(int index, size_t *size);

/* Two matrices: the identity and a mirror. */
static void unit(float *f, float diagonal)
{
    int i;
    for (i = 0; i < SIZE; i++) f[i] = i % (N + 1) ? 0 : diagonal;
}

static buffer archive_around(const void *pickle_bytes, size_t size, int plain)
{
    float f[2 * SIZE];
    buffer wide = { NULL, 0, 0, 0 }, half = { NULL, 0, 0, 0 };
    archive a;
    memset(&a, 0, sizeof a);
    a.plain = plain;
    unit(f, 1);
    unit(f + SIZE, -1);
    put_floats(&wide, NUMBER_F32, f, 2 * SIZE);
    put_floats(&half, NUMBER_BF16, f, 2 * SIZE);
    archive_add(&a, "m/data.pkl", pickle_bytes, size);
    archive_add(&a, "m/byteorder", "little", 6);
    archive_add(&a, "m/data/0", wide.bytes, wide.size);
    archive_add(&a, "m/data/1", half.bytes, half.size);
    archive_end(&a);
    free(wide.bytes);
    free(half.bytes);
    return a.file;
}

/* -- what is done with what was read -- */

static void use(side *k, side *v, int heads)
{
    oscar_rotations *r = NULL, *again = NULL;
    options o;
    gguf_facts facts;
    unsigned char *bytes = NULL;
    size_t size = 0;
    side *k2, *v2;
    if ((k->count && !side_check(k, "K")) || (v->count && !side_check(v, "V"))) return;
    memset(&o, 0, sizeof o);
    o.kv_heads = heads;
    if (!make_rotations(k, v, &o, 0, &r)) { REQUIRE(!r); return; }
    k2 = (side *)allocate(1, sizeof(side));
    v2 = (side *)allocate(1, sizeof(side));
    REQUIRE(k2 && v2 && gguf_write(r, NULL, &bytes, &size) && gguf_read(bytes, size, k2, v2, &facts));
    REQUIRE((!k2->count || side_check(k2, "K")) && (!v2->count || side_check(v2, "V")));
    o.kv_heads = (int)facts.kv_heads;
    REQUIRE(make_rotations(k2, v2, &o, facts.blocks, &again));
    REQUIRE(oscar_rotations_count(r) == oscar_rotations_count(again));
    free(bytes);
    oscar_rotations_destroy(r);
    oscar_rotations_destroy(again);
    side_free(k2);
    side_free(v2);
}

/* Reads from an allocation of its size, so that reading on is seen. */
static void read_exact(const unsigned char *bytes, size_t size, int heads, int gguf)
{
    unsigned char *exact = (unsigned char *)malloc(size ? size : 1);
    side *k = (side *)allocate(1, sizeof(side)), *v = (side *)allocate(1, sizeof(side));
    gguf_facts facts;
    REQUIRE(exact && k && v);
    if (size) memcpy(exact, bytes, size);
    import_message[0] = 0;
    if (gguf ? gguf_read(exact, size, k, v, &facts) : checkpoint_read(exact, size, k)) use(k, v, heads);
    else REQUIRE(import_message[0] && !strchr(import_message, '\n'));
    free(exact);
    side_free(k);
    side_free(v);
}

/* -- inputs -- */

static void good_pickle(buffer *p, int form)
{
    p_tensor t = p_matrix(form % 2 ? "1" : "0", form % 2 ? "BFloat16Storage" : "FloatStorage", form & 2, N);
    int i;
    t.count = 2 * SIZE;
    if (form == 4) {
        p_op(p, ']');
        p_put_tensor(p, &t);
        p_op(p, 0x94);
        p_op(p, 'a');
        p_op(p, '.');
        return;
    }
    p_begin(p, form & 2 ? 2 : 1);
    for (i = 0; i < 2; i++) p_layer(p, i, &t);
    p_end(p);
}

static void changed_archive(const uint8_t *data, size_t size)
{
    buffer p = { NULL, 0, 0, 0 }, file;
    size_t i;
    good_pickle(&p, 0);
    file = archive_around(p.bytes, p.size, size & 1);
    for (i = 0; i + 4 <= size; i += 4) {
        size_t at = (size_t)little(data + i, 2) % file.size;
        if (data[i + 2] & 1) at = file.size - 1 - at % (file.size < 700 ? file.size : 700);   /* directory and ends */
        if (data[i + 2] & 2) file.bytes[at] ^= data[i + 3];
        else file.bytes[at] = data[i + 3];
        if (data[i + 2] == 0xff) file.size = at + 1;
    }
    read_exact(file.bytes, file.size, 2, 0);
    free(file.bytes);
    free(p.bytes);
}

static void made_gguf(const uint8_t *data, size_t size)
{
    unsigned char *bytes = (unsigned char *)malloc(size + 24);
    REQUIRE(bytes != NULL);
    memset(bytes, 0, 24);
    memcpy(bytes, data, size);
    memcpy(bytes, "GGUF\3\0\0\0", 8);
    memset(bytes + 9, 0, 7);
    memset(bytes + 17, 0, 7);
    read_exact(bytes, size < 24 ? 24 : size, 2, 1);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    buffer file;
    import_quiet = 1;
    if (!size) return 0;
    switch (data[0] % MODES) {
    case 0:
        read_exact(data + 1, size - 1, 3, 0);
        read_exact(data + 1, size - 1, 3, 1);
        break;
    case 1:
        file = archive_around(data + 1, size - 1, data[0] & 4);
        read_exact(file.bytes, file.size, data[0] >> 4, 0);
        free(file.bytes);
        break;
    case 2: changed_archive(data + 1, size - 1); break;
    default: made_gguf(data + 1, size - 1);
    }
    return 0;
}

/* 0-4 pickles; 5 an archive; 6 changes; 7, 8 GGUFs, the second one through mode 0. */
uint8_t *fuzz_seed(int index, size_t *size)
{
    buffer b = { NULL, 0, 0, 0 }, p = { NULL, 0, 0, 0 }, file;
    float f[SIZE];
    if (index < 0 || index >= SEEDS) return NULL;
    put_number(&b, index < 5 ? (uint64_t)(0x21 + 4 * (index & 1)) : index == 6 ? 2 : index == 7 ? 3 : 0, 1);
    if (index < 5) {
        good_pickle(&b, index);
    } else if (index == 5) {
        good_pickle(&p, 0);
        file = archive_around(p.bytes, p.size, 0);
        put_bytes(&b, file.bytes, file.size);
        free(p.bytes);
        free(file.bytes);
    } else if (index == 6) {
        put_number(&b, 0x41030010, 4);
    } else {
        buffer g = { NULL, 0, 0, 0 };
        g_begin(&g, 3, 2, 2);
        put_string(&g, "general.architecture", "a");
        put_u32(&g, "a", ".attention.head_count_kv", 2);
        g_tensor(&g, "blk.0.attn_k_rot.weight", 2, N, N, 1, 0, 0);
        g_tensor(&g, "blk.0.attn_v_rot.weight", 3, N, N, 2, 30, 0);
        put_align(&g);
        unit(f, 1);
        put_floats(&g, index == 7 ? NUMBER_F32 : NUMBER_BF16, f, SIZE);
        put_floats(&g, NUMBER_BF16, f, SIZE);
        put_bytes(&b, g.bytes, g.size);
        free(g.bytes);
    }
    *size = b.size;
    return b.bytes;
}

/* libFuzzer calls the mutator and has the function below; fuzz_main.c has neither. */
#if defined(__GNUC__) && !defined(_WIN32)
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size) __attribute__((weak));
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

/* What is too short to be a file is replaced by a seed first. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    size_t bytes = 0;
    uint8_t *file = size < 32 && seed % 4 ? fuzz_seed((int)(seed / 4 % SEEDS), &bytes) : NULL;
    if (file && bytes <= max_size) { memcpy(data, file, bytes); size = bytes; }
    free(file);
    return LLVMFuzzerMutate ? LLVMFuzzerMutate(data, size, max_size) : size;
}
#endif
