/* test_import.c - examples/import_rotation_zoo.c: RotationZoo checkpoints and GGUF rotations, right and wrong ones.

   The published files are read where they are in examples/data/rotation-zoo/, or in the folder that OSCAR_ROTATION_ZOO
   names: k_rotation_qqt_r_h_pbr.pt and v_rotation_sst_r_h_pbr.pt of Qwen3-4B-Thinking-2507. */
#define IMPORT_NO_MAIN
#include "examples/import_rotation_zoo.c"

#include "test.h"
#include "zoo_writer.h"

/* -- samples -- */

enum { N = 16, HEADS = 3, LAYERS = 4, MATRICES = LAYERS * HEADS, SIZE = N * N };

static float matrices[MATRICES][SIZE];   /* of layer i, head h: [i * HEADS + h] */

static void make_matrices(void)
{
    test_random r = { 11 };
    double m[SIZE];
    int i, j;
    for (i = 0; i < MATRICES; i++) {
        random_orthogonal(&r, N, m);
        for (j = 0; j < SIZE; j++) matrices[i][j] = (float)m[j];
    }
}

/* An archive from a finished pickle, with `storages` storages of `each` floats that follow each other in matrices. */
static buffer archive_of(buffer *pickle_bytes, number_type type, int storages, size_t each)
{
    archive a;
    int i;
    memset(&a, 0, sizeof a);
    archive_add(&a, "sample/data.pkl", pickle_bytes->bytes, pickle_bytes->size);
    archive_add(&a, "sample/byteorder", "little", 6);
    for (i = 0; i < storages; i++) {
        buffer data = { NULL, 0, 0, 0 };
        char name[32];
        put_floats(&data, type, matrices[0] + (size_t)i * each, each);
        snprintf(name, sizeof name, "sample/data/%d", i);
        archive_add(&a, name, data.bytes, data.size);
        free(data.bytes);
    }
    archive_end(&a);
    free(pickle_bytes->bytes);
    memset(pickle_bytes, 0, sizeof *pickle_bytes);
    return a.file;
}

/* A checkpoint as the RotationZoo has it. heads 0: format 1, matrices [i * HEADS]. */
static buffer sample(int heads)
{
    buffer p = { NULL, 0, 0, 0 };
    char key[LAYERS][16];
    int i;
    p_begin(&p, heads ? 2 : 1);
    for (i = 0; i < LAYERS; i++) {
        p_tensor t = p_matrix(key[i], "FloatStorage", heads, N);
        snprintf(key[i], sizeof key[i], "%d", i);
        t.count = HEADS * SIZE;
        p_layer(&p, i, &t);
    }
    p_end(&p);
    return archive_of(&p, NUMBER_F32, LAYERS, HEADS * SIZE);
}

static side *side_new(void) { return (side *)allocate(1, sizeof(side)); }

/* Reads and checks; the side, or NULL. Frees the file. */
static side *read_side(buffer *file)
{
    side *s = side_new();
    if (!checkpoint_read(file->bytes, file->size, s) || !side_check(s, "K")) { side_free(s); s = NULL; }
    free(file->bytes);
    memset(file, 0, sizeof *file);
    return s;
}

static int same_matrix(const layer_matrices *m, int head, const float *want)
{
    return m->f && m->dim == N && !memcmp(m->f + (size_t)head * SIZE, want, SIZE * sizeof(float));
}

/* Expects that the file is refused with a message that contains `word`; frees it. */
static void refused(const char *name, buffer *file, const char *word)
{
    side *s;
    TEST(name);
    import_message[0] = 0;
    s = read_side(file);
    CHECK(!s);
    CHECK_MSG(strstr(import_message, word) != NULL, ("    %s\n", import_message));
    side_free(s);
}

static options options_of(int kv_heads)
{
    options o;
    memset(&o, 0, sizeof o);
    o.kv_heads = kv_heads;
    return o;
}

/* The bytes of the rotations file. */
static buffer rotations_bytes(const oscar_rotations *r)
{
    buffer b = { NULL, 0, 0, 0 };
    CHECK(oscar_rotations_write(r, NULL, 0, &b.size) == OSCAR_OK);
    b.bytes = (unsigned char *)malloc(b.size);
    CHECK(oscar_rotations_write(r, b.bytes, b.size, &b.size) == OSCAR_OK);
    return b;
}

static int same_bytes(buffer a, buffer b)
{
    int same = a.size == b.size && !memcmp(a.bytes, b.bytes, a.size);
    free(a.bytes);
    free(b.bytes);
    return same;
}

/* -- good checkpoints -- */

static void test_format_1(void)
{
    buffer file = sample(0);
    side *k, *v;
    options o = options_of(HEADS);
    oscar_rotations *r = NULL;
    oscar_layer l;
    int i;
    TEST("format 1: one matrix a layer, shared by the heads");
    k = read_side(&file);
    file = sample(0);
    v = read_side(&file);
    CHECK(k && v && k->count == LAYERS && k->version == 1 && !strcmp(k->objective, "qqt_r_h_pbr"));
    if (!k || !v) return;
    for (i = 0; i < LAYERS; i++) CHECK(same_matrix(&k->layers[i], 0, matrices[i * HEADS]) && k->layers[i].shared);
    CHECK(side_deviation(k) < 1e-6);
    o.model = "a model";
    CHECK(make_rotations(k, v, &o, 0, &r) && oscar_rotations_count(r) == LAYERS);
    for (i = 0; i < LAYERS && r; i++) {
        CHECK(oscar_rotations_layer(r, i, &l) == OSCAR_OK && l.kv_heads == HEADS && l.k_dim == N && l.v_dim == N);
        CHECK(l.k_fit == OSCAR_CLIP && l.v_fit == OSCAR_CLIP && l.k_bits == 2 && l.v_bits == 2 && l.k_page_mean == -1);
        CHECK(l.k_clip == 0.96 && l.v_clip == 0.92 && l.k_group == N && l.v_group == N);
        CHECK(l.k[0].to == l.k[2].to && !l.k[0].dual && !l.k[0].mean && l.k[1].kind == OSCAR_DENSE);
        CHECK(!memcmp(l.v[1].to, matrices[i * HEADS], sizeof matrices[0]));
    }
    CHECK(r && !strcmp(oscar_rotations_meta(r, "oscar.model"), "a model"));
    CHECK(r && !strcmp(oscar_rotations_meta(r, "oscar.compose"), "oscar"));
    oscar_rotations_destroy(r);
    TEST("format 1 needs the number of heads");
    o.kv_heads = 0;
    CHECK(!make_rotations(k, v, &o, 0, &r) && !r && strstr(import_message, "--kv-heads"));
    side_free(k);
    side_free(v);
}

static void test_format_2(void)
{
    buffer file = sample(HEADS);
    side *k = read_side(&file);
    options o = options_of(0);
    oscar_rotations *r = NULL;
    oscar_layer l;
    int i, h;
    TEST("format 2: one matrix a head; the other side gets Hadamard");
    CHECK(k && k->count == LAYERS && k->version == 2);
    if (!k) return;
    CHECK(make_rotations(k, NULL, &o, 0, &r));
    for (i = 0; i < LAYERS && r; i++) {
        CHECK(oscar_rotations_layer(r, i, &l) == OSCAR_OK && l.kv_heads == HEADS && l.v_dim == N && l.v_bits == 2);
        CHECK(!l.v || l.v[0].kind == OSCAR_HADAMARD);
        for (h = 0; h < HEADS; h++) CHECK(!memcmp(l.k[h].to, matrices[i * HEADS + h], sizeof matrices[0]));
    }
    oscar_rotations_destroy(r);
    TEST("heads that contradict --kv-heads, and a group that does not divide");
    o.kv_heads = HEADS + 1;
    CHECK(!make_rotations(k, NULL, &o, 0, &r) && strstr(import_message, "must agree"));
    o.kv_heads = HEADS;
    o.group = 24;
    CHECK(!make_rotations(k, NULL, &o, 0, &r) && !r);
    side_free(k);
}

/* The same matrices in all the ways they may be stored: a tensor of three or four dimensions, lists, texts as keys. */
static void test_containers(void)
{
    static const char *const names[] = { "[layers][D][D]", "[layers][heads][D][D]", "a list of tensors, None between",
                                         "a dictionary of tensors with texts as keys", "a tuple in an OrderedDict" };
    int form, i, h;
    for (form = 0; form < 5; form++) {
        buffer p = { NULL, 0, 0, 0 }, file;
        p_tensor t = p_matrix("0", "FloatStorage", 0, N);
        side *s;
        TEST(names[form]);
        t.count = MATRICES * SIZE;
        p_op(&p, 0x80);
        p_op(&p, 2);
        if (form < 2) {
            t.dims = 3 + form;
            t.size[0] = LAYERS, t.stride[0] = HEADS * SIZE;
            if (form) t.size[1] = HEADS, t.stride[1] = SIZE;
            t.size[1 + form] = t.size[2 + form] = N, t.stride[1 + form] = N, t.stride[2 + form] = 1;
            p_put_tensor(&p, &t);
        } else {
            if (form == 4) { p_global(&p, "collections", "OrderedDict"); p_op(&p, ')'); p_op(&p, 'R'); }
            if (form == 4) p_text(&p, "layers");
            p_op(&p, form == 2 ? ']' : form == 3 ? '}' : '(');
            if (form < 4) p_op(&p, '(');
            for (i = 0; i < LAYERS; i++) {
                char key[2] = { (char)('0' + i), 0 };
                t.offset = i * HEADS * SIZE;
                if (form == 3) p_text(&p, key);
                if (form == 2 && i == 1) p_op(&p, 'N');
                else p_put_tensor(&p, &t);
            }
            p_op(&p, form == 2 ? 'e' : form == 3 ? 'u' : 't');
            if (form == 4) p_op(&p, 's');
        }
        p_op(&p, '.');
        file = archive_of(&p, NUMBER_F32, 1, MATRICES * SIZE);
        s = read_side(&file);
        CHECK_MSG(s && s->count == LAYERS, ("    %s\n", import_message));
        for (i = 0; i < LAYERS && s; i++)
            for (h = 0; h < (form == 1 ? HEADS : 1); h++) {
                if (form == 2 && i == 1) CHECK(!s->layers[i].f);
                else CHECK(same_matrix(&s->layers[i], h, matrices[i * HEADS + h]));
            }
        side_free(s);
    }
}

/* Instructions of protocol 4, in place of those that torch.save uses by default. */
static void test_protocol_4(void)
{
    buffer p = { NULL, 0, 0, 0 }, file;
    side *s;
    int i;
    TEST("instructions of protocol 4, shared objects");
    p_op(&p, 0x80);
    p_op(&p, 4);
    p_op(&p, 0x95);
    put_number(&p, 1000, 8);
    p_op(&p, ']');
    p_op(&p, 0x94);             /* memo 0: the list */
    p_op(&p, 0x8c);
    p_op(&p, 12);
    put_bytes(&p, "torch._utils", 12);
    p_op(&p, 0x8c);
    p_op(&p, 18);
    put_bytes(&p, "_rebuild_tensor_v2", 18);
    p_op(&p, 0x93);
    p_op(&p, '(');
    p_op(&p, '(');
    p_text(&p, "storage");
    p_global(&p, "torch", "FloatStorage");
    p_text(&p, "0");
    p_text(&p, "cuda:0");
    p_op(&p, 0x8a), p_op(&p, 2), put_number(&p, SIZE, 2);
    p_op(&p, 't');
    p_op(&p, 'Q');
    p_op(&p, 0x8a), p_op(&p, 0);   /* 0 in no bytes */
    for (i = 0; i < 2; i++) { p_int(&p, i ? N : N); p_int(&p, i ? 1 : N); p_op(&p, 0x86); }
    p_op(&p, 0x88);
    p_op(&p, '}');
    p_op(&p, '}');
    p_text(&p, "metadata");
    p_op(&p, 'G');
    put_number(&p, 0xf03f, 8);   /* 1.0, big end first */
    p_op(&p, 's');
    p_op(&p, 't');
    p_op(&p, 'R');
    p_op(&p, 0x94);             /* memo 1: the tensor */
    p_op(&p, 'a');
    p_op(&p, 'j');
    put_number(&p, 1, 4);
    p_op(&p, 'a');
    p_op(&p, '.');
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    s = read_side(&file);
    CHECK_MSG(s && s->count == 2, ("    %s\n", import_message));
    for (i = 0; i < 2 && s; i++) CHECK(same_matrix(&s->layers[i], 0, matrices[0]));
    side_free(s);
}

static void test_strides(void)
{
    buffer p = { NULL, 0, 0, 0 }, file;
    p_tensor t = p_matrix("0", "FloatStorage", 0, N);
    side *s;
    int i, j, transposed = 1;
    TEST("strides of a transposed matrix, at an offset; matrices of heads in another order");
    p_begin(&p, 1);
    t.count = MATRICES * SIZE;
    t.offset = 2 * SIZE;
    t.stride[0] = 1, t.stride[1] = N;
    p_layer(&p, 0, &t);
    t = p_matrix("0", "FloatStorage", 2, N);
    t.count = MATRICES * SIZE;
    t.stride[0] = 5 * SIZE;
    p_layer(&p, 1, &t);
    p_end(&p);
    file = archive_of(&p, NUMBER_F32, 1, MATRICES * SIZE);
    s = read_side(&file);
    CHECK_MSG(s != NULL, ("    %s\n", import_message));
    if (!s) return;
    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++) transposed &= s->layers[0].f[i * N + j] == matrices[2][j * N + i];
    CHECK(transposed && s->layers[0].shared);
    CHECK(same_matrix(&s->layers[1], 0, matrices[0]) && same_matrix(&s->layers[1], 1, matrices[5]));
    side_free(s);
}

static void test_types(void)
{
    static const char *const classes[] = { "FloatStorage", "DoubleStorage", "HalfStorage", "BFloat16Storage" };
    static const double tolerance[] = { 0, 0, 1e-3, 8e-3 };
    int type, i;
    for (type = 0; type < 4; type++) {
        buffer p = { NULL, 0, 0, 0 }, file;
        p_tensor t = p_matrix("0", classes[type], 0, N);
        side *s;
        double worst = 0;
        TEST(classes[type]);
        p_begin(&p, 1);
        p_layer(&p, 0, &t);
        p_end(&p);
        file = archive_of(&p, (number_type)type, 1, SIZE);
        s = read_side(&file);
        CHECK_MSG(s != NULL, ("    %s\n", import_message));
        if (!s) continue;
        for (i = 0; i < SIZE; i++) {
            double error = fabs((double)s->layers[0].f[i] - (double)matrices[0][i]);
            if (error > worst) worst = error;
        }
        CHECK_MSG(worst <= tolerance[type], ("    %g\n", worst));
        CHECK_MSG(s->layers[0].deviation < 1e-6, ("    %g\n", s->layers[0].deviation));
        CHECK((type >= NUMBER_F16) == (s->layers[0].stored > 1e-6));   /* made orthogonal again */
        side_free(s);
    }
}

static void test_gaps(void)
{
    buffer p = { NULL, 0, 0, 0 }, file;
    p_tensor t = p_matrix("0", "FloatStorage", 2, N);
    options o = options_of(0);
    oscar_rotations *r = NULL;
    oscar_layer l;
    side *s;
    int i;
    TEST("layers without matrices keep 16 bits");
    p_begin(&p, 2);
    p_layer(&p, 5, &t);
    p_layer(&p, 2, &t);
    p_end(&p);
    file = archive_of(&p, NUMBER_F32, 1, 2 * SIZE);
    s = read_side(&file);
    CHECK(s && s->count == 6);
    CHECK(s && make_rotations(NULL, s, &o, 8, &r) && oscar_rotations_count(r) == 8);
    for (i = 0; i < 8 && r; i++) {
        CHECK(oscar_rotations_layer(r, i, &l) == OSCAR_OK && l.kv_heads == 2 && l.k_dim == N);
        CHECK(l.v_bits == (i == 2 || i == 5 ? 2 : 16) && l.k_bits == l.v_bits);
        CHECK((l.v && l.v[0].kind == OSCAR_DENSE) == (i == 2 || i == 5));
    }
    oscar_rotations_destroy(r);
    side_free(s);
}

/* Archives of other programs: no descriptors, no padding, no zip64 record; a comment at the end. */
static void test_plain_zip(void)
{
    buffer p = { NULL, 0, 0, 0 }, data = { NULL, 0, 0, 0 };
    p_tensor t = p_matrix("0", "FloatStorage", 0, N);
    archive a;
    side *s;
    TEST("a plain archive with a comment");
    memset(&a, 0, sizeof a);
    a.plain = 1;
    p_begin(&p, 1);
    p_layer(&p, 0, &t);
    p_end(&p);
    put_floats(&data, NUMBER_F32, matrices[0], SIZE);
    archive_add(&a, "x/data.pkl", p.bytes, p.size);
    archive_add(&a, "x/data/0", data.bytes, data.size);
    archive_add(&a, "x/empty", "", 0);
    archive_end(&a);
    a.file.bytes[a.file.size - 2] = 5;
    put_bytes(&a.file, "hello", 5);
    s = read_side(&a.file);
    CHECK_MSG(s && same_matrix(&s->layers[0], 0, matrices[0]), ("    %s\n", import_message));
    side_free(s);
    free(p.bytes);
    free(data.bytes);
}

/* -- bad archives -- */

/* The n-th place of a signature in the file, from 0. */
static unsigned char *find(const buffer *b, uint32_t signature, int n)
{
    size_t i;
    for (i = 0; i + 4 <= b->size; i++) if (little(b->bytes + i, 4) == signature && n-- == 0) return b->bytes + i;
    printf("the file has no signature %08lx\n", (unsigned long)signature);
    exit(2);
}

static void set(unsigned char *at, int bytes, uint64_t number)
{
    for (; bytes > 0; bytes--, number >>= 8) *at++ = (unsigned char)number;
}

/* One field of the sample's n-th record with that signature gets another value. */
static void bad_field(const char *name, uint32_t signature, int n, int offset, int bytes, uint64_t value,
                      const char *word)
{
    buffer file = sample(0);
    set(find(&file, signature, n) + offset, bytes, value);
    refused(name, &file, word);
}

static void test_zip_refuses(void)
{
    buffer file = { NULL, 0, 0, 0 };
    put_bytes(&file, "\x80\x02}q\0 no zip, an old checkpoint", 30);
    refused("not a zip archive", &file, "not a zip");
    bad_field("encrypted", ZIP_CENTRAL, 2, 8, 2, 0x809, "encrypted");
    bad_field("strongly encrypted", ZIP_CENTRAL, 2, 8, 2, 0x841, "encrypted");
    bad_field("unknown flags", ZIP_CENTRAL, 2, 8, 2, 0x828, "flags");
    bad_field("deflated", ZIP_CENTRAL, 2, 10, 2, 8, "compressed (method 8)");
    bad_field("deflated, the header says", ZIP_LOCAL, 2, 8, 2, 8, "differ");
    bad_field("other flags in the header", ZIP_LOCAL, 2, 6, 2, 0, "differ");
    bad_field("another size in the header", ZIP_LOCAL, 2, 18, 4, 12, "differ");
    bad_field("another name in the header", ZIP_LOCAL, 2, 30, 1, 'S', "differ");
    bad_field("no header there", ZIP_LOCAL, 2, 0, 4, 1, "damaged");
    bad_field("two sizes", ZIP_CENTRAL, 2, 20, 4, 12, "two sizes");
    bad_field("a size of zip64", ZIP_CENTRAL, 2, 24, 4, ZIP_BEYOND, "zip64");
    bad_field("an offset of zip64", ZIP_CENTRAL, 2, 42, 4, ZIP_BEYOND, "zip64");
    bad_field("a number of entries of zip64", ZIP_END, 0, 8, 4, 0xffffffffu, "zip64");
    bad_field("a directory of zip64", ZIP_END, 0, 16, 4, ZIP_BEYOND, "zip64");
    bad_field("a zip64 record that says something else", ZIP_END64, 0, 48, 8, (uint64_t)5 << 32, "zip64");
    bad_field("a zip64 record elsewhere", ZIP_LOCATOR64, 0, 8, 8, (uint64_t)1 << 63, "zip64");
    bad_field("a damaged zip64 record", ZIP_END64, 0, 4, 8, 45, "zip64");
    bad_field("an offset beyond the file", ZIP_CENTRAL, 2, 42, 4, 0x7fffffff, "outside");
    bad_field("a header that reaches beyond the file", ZIP_LOCAL, 5, 28, 2, 0xffff, "room");
    bad_field("several parts", ZIP_END, 0, 4, 2, 1, "parts");
    bad_field("entries that do not fit", ZIP_END, 0, 8, 4, 0x30003000, "differ");
    bad_field("a directory elsewhere", ZIP_END, 0, 16, 4, 0, "differ");
    bad_field("a name that reaches beyond the directory", ZIP_CENTRAL, 5, 28, 2, 0xffff, "beyond");
    bad_field("no name", ZIP_CENTRAL, 2, 28, 2, 0, "no name");
    bad_field("a wrong checksum", ZIP_CENTRAL, 2, 16, 4, 1, "descriptor");
    bad_field("a wrong descriptor", ZIP_DESCRIPTOR, 2, 8, 4, 1, "descriptor");
    bad_field("damaged data", ZIP_DESCRIPTOR, 2, -1, 1, 0x99, "checksum");
    bad_field("no end record", ZIP_END, 0, 0, 4, 1, "no end record");
    bad_field("something after the end", ZIP_END, 0, 20, 2, 1, "no end record");
    bad_field("the byte order of other machines", ZIP_CENTRAL, 1, 46 + 7, 1, 'B', "differ");
}

/* Entries of an archive: two of the same name, no pickle or two, byte order, one inside another. */
static void test_zip_entries(void)
{
    buffer inner = sample(0);
    archive a;
    int i;
    for (i = 0; i < 4; i++) {
        buffer p = { NULL, 0, 0, 0 };
        memset(&a, 0, sizeof a);
        a.plain = 1;
        p_op(&p, 'N');
        p_op(&p, '.');
        archive_add(&a, i == 2 ? "x/other.pkl" : "x/data.pkl", p.bytes, p.size);
        if (i == 0) archive_add(&a, "x/data.pkl", p.bytes, p.size);
        if (i == 1) archive_add(&a, "y/data.pkl", p.bytes, p.size);
        if (i == 3) archive_add(&a, "x/byteorder", "big", 3);
        archive_end(&a);
        refused(i == 0 ? "a name twice" : i == 1 ? "two pickles" : i == 2 ? "no pickle" : "big end first", &a.file,
                i == 0 ? "twice" : i == 1 ? "two data.pkl" : i == 2 ? "no data.pkl" : "byte order");
        free(p.bytes);
    }
    memset(&a, 0, sizeof a);
    archive_add(&a, "x/data.pkl", inner.bytes, inner.size);   /* its data are an archive with headers of their own */
    archive_add(&a, "sample/byteorder", "little", 6);
    archive_end(&a);
    set(find(&a.file, ZIP_CENTRAL, 2 + LAYERS + 1) + 42, 4, (uint64_t)(find(&a.file, ZIP_LOCAL, 2) - a.file.bytes));
    refused("an entry inside another", &a.file, "x/data.pkl and sample/byteorder overlap");
    free(inner.bytes);
}

/* Two entries of the directory point at one header. */
static void test_zip_overlap(void)
{
    buffer file = sample(0);
    unsigned char *first = find(&file, ZIP_CENTRAL, 2), *second = find(&file, ZIP_CENTRAL, 3);
    memcpy(second, first, 46 + strlen("sample/data/0"));
    refused("two entries, one place", &file, "overlap");
}

/* Every cut and every changed byte: refused, or the same matrices. */
static void test_damage(void)
{
    buffer p = { NULL, 0, 0, 0 }, file;
    p_tensor t = p_matrix("0", "FloatStorage", 0, N);
    side *s;
    size_t i;
    int taken = 0;
    p_begin(&p, 1);
    p_layer(&p, 0, &t);
    p_end(&p);
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    TEST("an archive cut anywhere is refused");
    for (i = 0; i < file.size; i++) {
        buffer cut = { NULL, 0, 0, 0 };
        put_bytes(&cut, file.bytes, i);
        s = cut.bytes ? read_side(&cut) : NULL;
        CHECK_MSG(!s, ("    cut at %d\n", (int)i));
        side_free(s);
    }
    TEST("a changed byte is refused, or means nothing");
    for (i = 0; i < file.size; i++) {
        buffer changed = { NULL, 0, 0, 0 };
        put_bytes(&changed, file.bytes, file.size);
        changed.bytes[i] ^= (unsigned char)(i % 3 ? 1 << i % 8 : 0xff);
        s = read_side(&changed);
        if (!s) continue;
        taken++;
        CHECK_MSG(s->count == 1 && same_matrix(&s->layers[0], 0, matrices[0]), ("    byte %d\n", (int)i));
        side_free(s);
    }
    CHECK_MSG(taken < 400, ("    %d\n", taken));   /* padding, versions, times */
    free(file.bytes);
}

/* -- bad pickles -- */

/* A pickle of these bytes in an archive with one matrix. */
static buffer raw(const char *bytes, size_t size)
{
    buffer p = { NULL, 0, 0, 0 };
    put_bytes(&p, bytes, size);
    return archive_of(&p, NUMBER_F32, 1, SIZE);
}

static void bad_pickle(const char *name, const char *bytes, size_t size, const char *word)
{
    buffer file = raw(bytes, size);
    refused(name, &file, word);
}
#define BAD_PICKLE(name, bytes, word) bad_pickle(name, bytes, sizeof(bytes) - 1, word)

static void test_pickle_refuses(void)
{
    BAD_PICKLE("a function of the system", "\x80\x02" "cposix\nsystem\n(X\x02\0\0\0lstR.", "posix.system");
    BAD_PICKLE("eval", "\x80\x02" "c__builtin__\neval\n.", "__builtin__.eval");
    BAD_PICKLE("another name in a module that is known", "ctorch\nload\n.", "torch.load");
    BAD_PICKLE("a name of unprintable bytes", "ca\x01\x1b\nb\xff\n.", "a??.b?");
    BAD_PICKLE("another storage", "ctorch\nLongStorage\n.", "torch.LongStorage");
    BAD_PICKLE("a global from the stack", "\x8c\x02os\x8c\x06system\x93.", "os.system");
    BAD_PICKLE("a global from numbers", "K\1K\2\x93.", "no text");
    BAD_PICKLE("INST", "(iposix\nsystem\n.", "0x69");
    BAD_PICKLE("OBJ", "(o.", "0x6f");
    BAD_PICKLE("NEWOBJ", ")\x81.", "0x81");
    BAD_PICKLE("BUILD", "}}b.", "0x62");
    BAD_PICKLE("EXT1", "\x82\1.", "0x82");
    BAD_PICKLE("a persistent id as a line", "P0\n.", "0x50");
    BAD_PICKLE("protocol 6", "\x80\x06N.", "protocol 6");
    BAD_PICKLE("a call of a number", "K\1)R.", "a call of a whole number");
    BAD_PICKLE("a call of a storage class", "ctorch\nFloatStorage\n)R.", "a call of a class");
    BAD_PICKLE("a call with a list", "ccollections\nOrderedDict\n]R.", "tuple");
    BAD_PICKLE("OrderedDict with arguments", "ccollections\nOrderedDict\n]\x85R.", "arguments");
    BAD_PICKLE("a tensor from nothing", "ctorch._utils\n_rebuild_tensor_v2\n)R.", "wrong arguments");
    BAD_PICKLE("a persistent id that is a number", "K\1Q.", "no storage");
    BAD_PICKLE("a persistent id of five numbers", "(K\1K\1K\1K\1K\1tQ.", "no storage");
    BAD_PICKLE("nothing on the stack", ".", "operand");
    BAD_PICKLE("a mark as the result", "(.", "operand");
    BAD_PICKLE("no end", "}", "ends inside");
    BAD_PICKLE("no end of a text", "X\xff\xff\xff\xff" "abc.", "ends inside");
    BAD_PICKLE("no end of a global", "ctorch", "ends inside");
    BAD_PICKLE("a number of 255 bytes", "\x8a\xff.", "255 bytes");
    BAD_PICKLE("a tuple without mark", "K\1t.", "operands");
    BAD_PICKLE("a tuple of more than there is", "K\1\x87.", "operands");
    BAD_PICKLE("a mark in a tuple", "(\x85.", "mark");
    BAD_PICKLE("items without a dictionary", "](K\1K\2u.", "not there");
    BAD_PICKLE("items without anything", "(K\1K\2u.", "not there");
    BAD_PICKLE("a key without value", "}(K\1u.", "not there");
    BAD_PICKLE("an item without a list", "}K\1a.", "not there");
    BAD_PICKLE("a dictionary as a key", "}}K\1s.", "key");
    BAD_PICKLE("a memo entry that is not set", "h\5.", "not set");
    BAD_PICKLE("a memo entry without a value", "q\5.", "remember");
    BAD_PICKLE("a memo entry of 4 billion", "}r\xff\xff\xff\xff.", "memo");
    BAD_PICKLE("a list that holds itself", "]q\0h\0a.", "itself");
    BAD_PICKLE("a cycle of two", "}q\0X\1\0\0\0a]q\1h\0as.", "itself");
    BAD_PICKLE("a tensor in its own hooks", "}q\0X\1\0\0\0aNs}X\1\0\0\0bh\0s.", "no layer number");
    BAD_PICKLE("a number as the result", "K\1.", "a whole number where the layers");
    BAD_PICKLE("no layers", "}.", "no rotations");
}

/* What is large or deep, made in loops. */
static void test_pickle_bounds(void)
{
    buffer p = { NULL, 0, 0, 0 }, file;
    int i;
    for (i = 0; i < 40; i++) p_op(&p, ']');
    for (i = 0; i < 39; i++) p_op(&p, 'a');
    p_op(&p, '.');
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    refused("nested 40 levels", &file, "nested deeper");

    /* each level holds the one before twice: 2^30 branches, that must not be walked one by one */
    p_op(&p, ']');
    for (i = 0; i < 30; i++) { p_op(&p, 'q'); p_op(&p, i); p_op(&p, 'h'); p_op(&p, i); p_op(&p, 0x86); }
    p_op(&p, '.');
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    refused("2^30 branches in 150 bytes", &file, "a tuple where its rotation");

    for (i = 0; i < MAX_STACK + 1; i++) p_op(&p, '(');
    p_op(&p, '.');
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    refused("65537 marks", &file, "stack");

    p_op(&p, ')');
    for (i = 0; i < MAX_NODES / 2 + 1; i++) { p_op(&p, 'N'); p_op(&p, 0x86); }
    p_op(&p, '.');
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    refused("a million objects", &file, "objects: more than");

    p_op(&p, ']');
    p_op(&p, '(');
    for (i = 0; i < MAX_LAYERS; i++) p_op(&p, 'N');
    p_put_tensor(&p, &(p_tensor){ "0", "FloatStorage", SIZE, 0, 2, { N, N }, { N, 1 } });
    p_op(&p, 'e');
    p_op(&p, '.');
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    refused("layer 4096", &file, "at most 4096 layers");
}

/* -- bad tensors -- */

static void bad_tensor(const char *name, const p_tensor *t, const char *word)
{
    buffer p = { NULL, 0, 0, 0 }, file;
    p_begin(&p, 1);
    p_layer(&p, 0, t);
    p_end(&p);
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    refused(name, &file, word);
}

static void test_tensor_refuses(void)
{
    const p_tensor good = p_matrix("0", "FloatStorage", 0, N);
    const int64_t huge = (int64_t)1 << 62;
    buffer p = { NULL, 0, 0, 0 }, file;
    p_tensor t = good;
    t.stride[0] = N + 1;
    bad_tensor("a stride that leaves the storage", &t, "strides");
    t = good, t.stride[1] = huge;
    bad_tensor("a stride of 2^62", &t, "strides");
    t = good, t.stride[0] = -N;
    bad_tensor("a negative stride", &t, "negative");
    t = good, t.stride[0] = 0, t.stride[1] = 1;
    bad_tensor("a stride of 0", &t, "not orthogonal");
    t = good, t.size[0] = t.size[1] = 32, t.stride[0] = t.stride[1] = 0;
    bad_tensor("more numbers than the storage has", &t, "larger than its storage");
    t = good, t.size[0] = huge, t.size[1] = 4;
    bad_tensor("2^64 numbers", &t, "larger than its storage");
    t = good, t.offset = 1;
    bad_tensor("an offset that leaves the storage", &t, "outside");
    t = good, t.offset = huge;
    bad_tensor("an offset of 2^62", &t, "outside");
    t = good, t.offset = -1;
    bad_tensor("a negative offset", &t, "outside");
    t = good, t.size[0] = -N;
    bad_tensor("a negative size", &t, "negative");
    t = good, t.count = SIZE + 1;
    bad_tensor("a storage of another size", &t, "storage 0 has 1024 bytes");
    t = good, t.type = "DoubleStorage";
    bad_tensor("a storage of another type", &t, "storage 0 has 1024 bytes");
    t = good, t.key = "7";
    bad_tensor("a storage that is not there", &t, "no storage 7");
    t = good, t.key = "../../../etc/passwd";
    bad_tensor("a storage outside the archive", &t, "no storage ../../../etc/passwd");
    t = good, t.key = "0123456789012345678901234567890123456789012345678901234567890123456789";
    bad_tensor("a storage with a long name", &t, "too long");
    t = good, t.dims = 1;
    bad_tensor("a vector", &t, "1 dimensions");
    t = good, t.dims = 5, t.size[2] = t.size[3] = t.size[4] = 1;
    bad_tensor("five dimensions", &t, "5 dimensions");
    t = good, t.size[0] = 8;
    bad_tensor("a matrix that is not square", &t, "square");
    t = good, t.size[0] = t.size[1] = 8;
    bad_tensor("a matrix of 8 x 8", &t, "multiple of 16");
    t = good, t.size[0] = t.size[1] = 0;
    bad_tensor("a matrix of 0 x 0", &t, "multiple of 16");
    t = p_matrix("0", "FloatStorage", 1, N), t.size[0] = 0;
    bad_tensor("no heads", &t, "no heads");
    p_put_tensor(&p, &good);
    p_op(&p, '.');
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    refused("one matrix for all layers", &file, "[layers][D][D]");
}

/* Values and layers that make no sense. */
static void test_values_refuse(void)
{
    float keep = matrices[0][5];
    buffer p = { NULL, 0, 0, 0 }, file;
    p_tensor t = p_matrix("0", "FloatStorage", 0, N);
    matrices[0][5] = (float)NAN;
    bad_tensor("NaN", &t, "NaN");
    matrices[0][5] = HUGE_VALF;
    bad_tensor("infinity", &t, "infinity");
    matrices[0][5] = keep + 3e-4f;
    bad_tensor("a matrix that is not orthogonal", &t, "not orthogonal");
    matrices[0][5] = keep;
    p_begin(&p, 3);
    p_layer(&p, 0, &t);
    p_end(&p);
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    refused("format 3", &file, "format_version");
    p_begin(&p, 1);
    p_layer(&p, 4, &t);
    p_layer(&p, 4, &t);
    p_end(&p);
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    refused("a layer twice", &file, "layer 4 occurs twice");
    p_begin(&p, 1);
    p_text(&p, "norm");
    p_put_tensor(&p, &t);
    p_end(&p);
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    refused("a layer without a number", &file, "the key norm");
    p_begin(&p, 1);
    p_int(&p, 0);
    p_op(&p, '}');
    p_text(&p, "M_q");
    p_put_tensor(&p, &t);
    p_op(&p, 's');
    p_end(&p);
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    refused("moments, not rotations", &file, "no `rotation`");
    p_begin(&p, 1);
    p_int(&p, 1);
    p_op(&p, '}');
    p_text(&p, "layer_id");
    p_int(&p, 2);
    p_op(&p, 's');
    p_text(&p, "rotation");
    p_put_tensor(&p, &t);
    p_op(&p, 's');
    p_end(&p);
    file = archive_of(&p, NUMBER_F32, 1, SIZE);
    refused("another layer_id", &file, "another `layer_id`");
}

/* -- GGUF -- */

static int read_gguf(const unsigned char *bytes, size_t size, side **k, side **v, gguf_facts *facts)
{
    int good;
    *k = side_new();
    *v = side_new();
    good = gguf_read(bytes, size, *k, *v, facts) && (!(*k)->count || side_check(*k, "K"))
           && (!(*v)->count || side_check(*v, "V"));
    if (good) return 1;
    side_free(*k);
    side_free(*v);
    *k = *v = NULL;
    return 0;
}

/* Export, import, and the same rotations file again. */
static void round_trip(const oscar_rotations *r, const char *architecture, int64_t kv_heads)
{
    unsigned char *bytes = NULL;
    size_t size = 0;
    side *k, *v;
    gguf_facts facts;
    oscar_rotations *again = NULL;
    options o = options_of(0);
    CHECK_MSG(gguf_write(r, architecture, &bytes, &size), ("    %s\n", import_message));
    if (!bytes) return;
    CHECK_MSG(read_gguf(bytes, size, &k, &v, &facts), ("    %s\n", import_message));
    if (!k) { free(bytes); return; }
    CHECK(!strcmp(facts.architecture, architecture ? architecture : "oscar") && facts.kv_heads == kv_heads
          && facts.blocks == oscar_rotations_count(r));
    o.kv_heads = (int)facts.kv_heads;
    if (facts.name[0]) o.model = facts.name;
    if (architecture) o.architecture = architecture;
    CHECK_MSG(make_rotations(k, v, &o, facts.blocks, &again), ("    %s\n", import_message));
    if (again) CHECK(same_bytes(rotations_bytes(r), rotations_bytes(again)));
    oscar_rotations_destroy(again);
    side_free(k);
    side_free(v);
    free(bytes);
}

static void test_gguf_round_trip(void)
{
    options o = options_of(HEADS);
    oscar_rotations *r = NULL;
    buffer file;
    side *one, *many;
    file = sample(0);
    one = read_side(&file);
    file = sample(HEADS);
    many = read_side(&file);
    CHECK(one && many);
    if (!one || !many) return;
    TEST("checkpoint, GGUF, and back: shared matrices");
    CHECK(make_rotations(one, one, &o, 0, &r));
    round_trip(r, NULL, HEADS);
    oscar_rotations_destroy(r);
    TEST("checkpoint, GGUF, and back: V per head, a name, an architecture, layers of 16 bits at the end");
    o.model = "Some model \"1\"";
    o.architecture = "qwen3";
    CHECK(make_rotations(one, many, &o, LAYERS + 2, &r));
    round_trip(r, "qwen3", HEADS);
    oscar_rotations_destroy(r);
    TEST("one KV head");
    o = options_of(1);
    CHECK(make_rotations(one, one, &o, 0, &r));
    round_trip(r, NULL, 1);
    oscar_rotations_destroy(r);
    side_free(one);
    side_free(many);
}

/* Layers of two layers, with pairs that the tests change. */
static oscar_pair sample_k[2][HEADS], sample_v[2][HEADS];
static oscar_layer sample_layers[2];

static void make_layers(void)
{
    int i, h;
    memset(sample_k, 0, sizeof sample_k);
    memset(sample_v, 0, sizeof sample_v);
    memset(sample_layers, 0, sizeof sample_layers);
    for (i = 0; i < 2; i++) {
        sample_layers[i].kv_heads = HEADS - i;
        sample_layers[i].k_dim = N;
        sample_layers[i].k = sample_k[i];
        sample_layers[i].v = sample_v[i];
        for (h = 0; h < HEADS; h++) {
            sample_k[i][h].dim = sample_v[i][h].dim = N;
            sample_k[i][h].kind = OSCAR_DENSE;
            sample_k[i][h].to = matrices[i];
            sample_v[i][h].kind = i ? OSCAR_IDENTITY : OSCAR_HADAMARD;
        }
    }
}

static void test_gguf_other_layers(void)
{
    oscar_rotations *r = NULL;
    unsigned char *bytes = NULL;
    size_t size = 0;
    side *k, *v;
    gguf_facts facts;
    float unit[SIZE], want[SIZE];
    int i, j;
    TEST("layers of different heads, Hadamard and identity written out");
    make_layers();
    CHECK(oscar_rotations_create(sample_layers, 2, NULL, NULL, &r) == OSCAR_OK);
    CHECK(gguf_write(r, NULL, &bytes, &size) && read_gguf(bytes, size, &k, &v, &facts));
    if (bytes && k) {
        CHECK(facts.kv_heads == 0 && facts.blocks == 2 && k->count == 2 && v->count == 2);
        for (i = 0; i < 2; i++) {
            CHECK(k->layers[i].heads == HEADS - i && !k->layers[i].shared && v->layers[i].heads == HEADS - i);
            for (j = 0; j < HEADS - i; j++) CHECK(same_matrix(&k->layers[i], j, matrices[i]));
        }
        for (i = 0; i < SIZE; i++) unit[i] = i % (N + 1) == 0;
        CHECK(oscar_fwht(N, N, unit, want) == OSCAR_OK);
        CHECK(same_matrix(&v->layers[0], 0, want) && same_matrix(&v->layers[1], 1, unit));
        side_free(k);
        side_free(v);
    }
    free(bytes);
    oscar_rotations_destroy(r);
}

static void test_gguf_cannot(void)
{
    static float twice[SIZE], half[SIZE], mean[N];
    oscar_rotations *r = NULL;
    unsigned char *bytes = NULL;
    size_t size = 0;
    int i, h;
    TEST("a dual cannot be exported");
    make_layers();
    for (i = 0; i < SIZE; i++) { twice[i] = 2 * matrices[0][i]; half[i] = 0.5f * matrices[0][i]; }
    for (h = 0; h < HEADS - 1; h++) { sample_k[1][h].to = twice; sample_k[1][h].dual = half; }
    CHECK(oscar_rotations_create(sample_layers, 2, NULL, NULL, &r) == OSCAR_OK);
    CHECK(!gguf_write(r, NULL, &bytes, &size) && !bytes && strstr(import_message, "layer 1, K: the pairs have a dual"));
    oscar_rotations_destroy(r);
    TEST("a mean cannot be exported");
    make_layers();
    for (h = 0; h < HEADS; h++) sample_k[0][h].mean = mean;
    CHECK(oscar_rotations_create(sample_layers, 2, NULL, NULL, &r) == OSCAR_OK);
    CHECK(!gguf_write(r, NULL, &bytes, &size) && !bytes && strstr(import_message, "layer 0, K: the pairs have a mean"));
    oscar_rotations_destroy(r);
    TEST("nothing to export");
    make_layers();
    for (i = 0; i < 2; i++) {
        sample_layers[i].k = sample_layers[i].v = NULL;
        sample_layers[i].k_bits = sample_layers[i].v_bits = 16;
    }
    CHECK(oscar_rotations_create(sample_layers, 2, NULL, NULL, &r) == OSCAR_OK);
    CHECK(!gguf_write(r, NULL, &bytes, &size) && !bytes && strstr(import_message, "nothing"));
    oscar_rotations_destroy(r);
}

/* Every byte of a small export, as the format says. */
static void test_gguf_bytes(void)
{
    static const char head[] = "GGUF\3\0\0\0" "\1\0\0\0\0\0\0\0" "\6\0\0\0\0\0\0\0"
        "\x14\0\0\0\0\0\0\0general.architecture" "\x8\0\0\0" "\1\0\0\0\0\0\0\0x"
        "\x11\0\0\0\0\0\0\0general.alignment" "\4\0\0\0" "\x20\0\0\0"
        "\xd\0\0\0\0\0\0\0x.block_count" "\4\0\0\0" "\1\0\0\0"
        "\x19\0\0\0\0\0\0\0x.attention.head_count_kv" "\4\0\0\0" "\3\0\0\0"
        "\x16\0\0\0\0\0\0\0x.attention.key_length" "\4\0\0\0" "\x10\0\0\0"
        "\x18\0\0\0\0\0\0\0x.attention.value_length" "\4\0\0\0" "\x10\0\0\0"
        "\x17\0\0\0\0\0\0\0" "blk.0.attn_k_rot.weight" "\2\0\0\0" "\x10\0\0\0\0\0\0\0" "\x10\0\0\0\0\0\0\0"
        "\0\0\0\0" "\0\0\0\0\0\0\0\0";
    oscar_rotations *r = NULL;
    unsigned char *bytes = NULL;
    size_t size = 0, data = (sizeof head - 1 + 31) / 32 * 32;
    int i, transposed = 1;
    TEST("the bytes of a GGUF");
    make_layers();
    sample_layers[0].v = NULL;
    sample_layers[0].v_bits = 16;
    CHECK(oscar_rotations_create(sample_layers, 1, NULL, NULL, &r) == OSCAR_OK && gguf_write(r, "x", &bytes, &size));
    CHECK(bytes && size == data + SIZE * 4 && !memcmp(bytes, head, sizeof head - 1));
    for (i = 0; i < SIZE && bytes; i++)
        transposed &= number_at(NUMBER_F32, bytes + data + 4 * i) == matrices[0][i % N * N + i / N];
    CHECK(transposed);
    free(bytes);
    oscar_rotations_destroy(r);
}

/* A model's file: other values, arrays and tensors between; matrices of half floats. */
static void test_gguf_models(void)
{
    static const int types[] = { 0, 1, 30 };
    int i, a;
    for (i = 0; i < 3; i++) {
        number_type type = i == 0 ? NUMBER_F32 : i == 1 ? NUMBER_F16 : NUMBER_BF16;
        buffer b = { NULL, 0, 0, 0 };
        side *k, *v;
        gguf_facts facts;
        TEST(i == 0 ? "a model's GGUF, F32" : i == 1 ? "a model's GGUF, F16" : "a model's GGUF, BF16");
        g_begin(&b, 2 + i % 2, 3, 5);
        put_string(&b, "general.architecture", "qwen3");
        put_text(&b, "tokenizer.ggml.tokens");
        put_number(&b, GGUF_ARRAY, 4), put_number(&b, GGUF_STRING, 4), put_number(&b, 3, 8);
        for (a = 0; a < 3; a++) put_text(&b, "token");
        put_text(&b, "tokenizer.ggml.scores");
        put_number(&b, GGUF_ARRAY, 4), put_number(&b, 6, 4), put_number(&b, 3, 8), put_number(&b, 0, 8);
        put_number(&b, 0, 4);
        put_u32(&b, "qwen3", ".attention.head_count_kv", 2);
        put_u32(&b, "", "general.alignment", 64);
        g_tensor(&b, "blk.1.attn_k_rot.weight", 2, N, N, 1, types[i], 64);
        g_tensor(&b, "token_embd.weight", 2, 32, 1, 1, 8, 0);
        g_tensor(&b, "blk.1.attn_v_rot.weight", 3, N, N, 2, types[i], 64 + SIZE * 4);
        while (b.size % 64) put_number(&b, 0, 1);
        for (a = 0; a < 64; a++) put_number(&b, 0x55, 1);
        put_floats(&b, type, matrices[4], SIZE);
        for (a = 0; a < SIZE * (4 - number_bytes[type]); a++) put_number(&b, 0, 1);
        put_floats(&b, type, matrices[5], 2 * SIZE);
        CHECK_MSG(read_gguf(b.bytes, b.size, &k, &v, &facts), ("    %s\n", import_message));
        if (k) {
            CHECK(!strcmp(facts.architecture, "qwen3") && facts.kv_heads == 2 && !facts.blocks && !facts.name[0]);
            CHECK(k->count == 2 && v->count == 2 && !k->layers[0].f && k->layers[1].shared && v->layers[1].heads == 2);
            CLOSE(k->layers[1].f[3], matrices[4][3 * N], 4e-3);
            CLOSE(v->layers[1].f[SIZE + 3 * N + 7], matrices[6][7 * N + 3], 4e-3);
            CHECK(side_deviation(k) < 1e-6 && side_deviation(v) < 1e-6);
            side_free(k);
            side_free(v);
        }
        free(b.bytes);
    }
}

/* A GGUF with one tensor of these properties must be refused. */
static void bad_gguf(const char *name, const char *tensor, int dims, uint64_t n, uint64_t rows, uint64_t heads,
                     int type, uint64_t offset, const char *word)
{
    buffer b = { NULL, 0, 0, 0 };
    side *k, *v;
    gguf_facts facts;
    TEST(name);
    g_begin(&b, 3, 1, 0);
    g_tensor(&b, tensor, dims, n, rows, heads, type, offset);
    put_align(&b);
    put_floats(&b, NUMBER_F32, matrices[0], 4 * SIZE);
    CHECK(!read_gguf(b.bytes, b.size, &k, &v, &facts));
    CHECK_MSG(strstr(import_message, word) != NULL, ("    %s\n", import_message));
    free(b.bytes);
}

static void test_gguf_refuses(void)
{
    const char *k_rot = "blk.0.attn_k_rot.weight";
    const uint64_t huge = (uint64_t)1 << 60;
    bad_gguf("a quantised rotation", k_rot, 2, 32, 32, 1, 8, 0, "type 8");
    bad_gguf("a GGUF vector", k_rot, 1, N, 1, 1, 0, 0, "1 dimensions");
    bad_gguf("five GGUF dimensions", k_rot, 5, N, N, 1, 0, 0, "dimensions");
    bad_gguf("a GGUF matrix that is not square", k_rot, 2, N, 32, 1, 0, 0, "square");
    bad_gguf("a GGUF matrix of 8 x 8", k_rot, 2, 8, 8, 1, 0, 0, "multiple of 16");
    bad_gguf("a GGUF matrix of 2^60 rows", k_rot, 2, N, huge, 1, 0, 0, "too large");
    bad_gguf("2^60 GGUF heads", k_rot, 3, N, N, huge, 0, 0, "too large");
    bad_gguf("no GGUF heads", k_rot, 3, N, N, 0, 0, 0, "empty");
    bad_gguf("5 heads, 4 in the file", k_rot, 3, N, N, 5, 0, 0, "beyond the file");
    bad_gguf("a GGUF offset beyond the file", k_rot, 2, N, N, 1, 0, huge, "beyond the file");
    bad_gguf("a GGUF offset that is not aligned", k_rot, 2, N, N, 1, 0, 4, "aligned");
    bad_gguf("layer 5000", "blk.5000.attn_k_rot.weight", 2, N, N, 1, 0, 0, "at most 4096");
    bad_gguf("no rotations in the GGUF", "blk.0.attn_k.weight", 2, N, N, 1, 0, 0, "no rotations");
    bad_gguf("a layer that is no number", "blk.x.attn_k_rot.weight", 2, N, N, 1, 0, 0, "no rotations");
    bad_gguf("a GGUF matrix that is not orthogonal", k_rot, 2, N, N, 1, 0, 32, "not orthogonal");
}

/* Metadata that lead astray; every cut; every changed byte. */
static void test_gguf_damage(void)
{
    oscar_rotations *r = NULL;
    unsigned char *bytes = NULL, *copy;
    size_t size = 0, i;
    side *k, *v;
    gguf_facts facts;
    int form;
    for (form = 0; form < 4; form++) {
        static const char *const words[] = { "array of type 9", "array reaches", "alignment", "unknown type" };
        buffer b = { NULL, 0, 0, 0 };
        TEST(words[form]);
        g_begin(&b, 3, 0, 1);
        put_text(&b, form == 2 ? "general.alignment" : "x");
        put_number(&b, form == 2 ? GGUF_U32 : form == 3 ? 99 : GGUF_ARRAY, 4);
        put_number(&b, form == 2 ? 24 : form == 1 ? 12 : 9, 4);
        put_number(&b, ~(uint64_t)0, 8);
        CHECK(!read_gguf(b.bytes, b.size, &k, &v, &facts));
        CHECK_MSG(strstr(import_message, words[form]) != NULL, ("    %s\n", import_message));
        free(b.bytes);
    }
    make_layers();
    CHECK(oscar_rotations_create(sample_layers, 1, NULL, NULL, &r) == OSCAR_OK && gguf_write(r, NULL, &bytes, &size));
    oscar_rotations_destroy(r);
    TEST("a GGUF cut anywhere is refused");
    for (i = 0; i < size; i++) {
        copy = (unsigned char *)malloc(i ? i : 1);
        memcpy(copy, bytes, i);
        CHECK_MSG(!read_gguf(copy, i, &k, &v, &facts), ("    cut at %d\n", (int)i));
        free(copy);
    }
    TEST("a GGUF with a changed byte is refused, or has orthogonal matrices");
    copy = (unsigned char *)malloc(size);
    for (i = 0; i < size; i++) {
        memcpy(copy, bytes, size);
        copy[i] ^= (unsigned char)(i % 3 ? 1 << i % 8 : 0xff);
        if (!read_gguf(copy, size, &k, &v, &facts)) continue;
        CHECK(side_deviation(k) <= STRICT && side_deviation(v) <= STRICT);
        side_free(k);
        side_free(v);
    }
    free(copy);
    free(bytes);
}

/* -- the published files -- */

static int open_zoo(const char *name, mapped *out)
{
    const char *folder = getenv("OSCAR_ROTATION_ZOO");
    char path[1024];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "examples/data/rotation-zoo", name);
    f = fopen(path, "rb");
    if (!f) return 0;
    fclose(f);
    return map_file(path, out);
}

static void test_zoo(void)
{
    mapped files[2];
    side *sides[2];
    options o = options_of(8);
    oscar_rotations *r = NULL;
    int i, j, good = 1;
    memset(files, 0, sizeof files);
    if (!open_zoo("k_rotation_qqt_r_h_pbr.pt", &files[0]) || !open_zoo("v_rotation_sst_r_h_pbr.pt", &files[1])) {
        SKIP("the published rotations of Qwen3-4B",
             "not in examples/data/rotation-zoo; OSCAR_ROTATION_ZOO may name a folder");
        unmap_file(&files[0]);
        return;
    }
    TEST("the published rotations of Qwen3-4B");
    for (i = 0; i < 2; i++) {
        sides[i] = side_new();
        good = checkpoint_read(files[i].bytes, files[i].size, sides[i]) && side_check(sides[i], "R") && good;
        CHECK_MSG(good, ("    %s\n", import_message));
        CHECK(sides[i]->count == 36 && sides[i]->version == 1 && side_deviation(sides[i]) <= 1e-6);
        for (j = 0; j < sides[i]->count; j++)
            CHECK(sides[i]->layers[j].dim == 128 && sides[i]->layers[j].shared && sides[i]->layers[j].f);
    }
    CHECK(!strcmp(sides[0]->objective, "qqt_r_h_pbr") && !strcmp(sides[1]->objective, "sst_r_h_pbr"));
    CHECK(good && make_rotations(sides[0], sides[1], &o, 0, &r));
    if (r) round_trip(r, NULL, 8);
    oscar_rotations_destroy(r);
    for (i = 0; i < 2; i++) { side_free(sides[i]); unmap_file(&files[i]); }
}

int main(void)
{
    import_quiet = 1;
    make_matrices();
    test_format_1();
    test_format_2();
    test_containers();
    test_protocol_4();
    test_strides();
    test_types();
    test_gaps();
    test_plain_zip();
    test_zip_refuses();
    test_zip_entries();
    test_zip_overlap();
    test_damage();
    test_pickle_refuses();
    test_pickle_bounds();
    test_tensor_refuses();
    test_values_refuse();
    test_gguf_round_trip();
    test_gguf_other_layers();
    test_gguf_cannot();
    test_gguf_bytes();
    test_gguf_models();
    test_gguf_refuses();
    test_gguf_damage();
    test_zoo();
    return test_end("test_import");
}
