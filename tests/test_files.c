/* test_files.c - the rotations file: round trips, foreign, damaged and hostile files, memory, disk.

       test_files              runs the tests; scratch files are made beside the program and removed
       test_files write PATH   writes the sample that safetensors_check.py reads
       test_files read PATH    reads what safetensors_check.py wrote: exit status 0 if it holds what is expected */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "test.h"

/* -- memory and log that can be watched -- */

typedef struct watch {
    int calls, fail_at;          /* fail_at: the call (from 1) that gives no memory; 0 none */
    int live, logs, warnings;
    oscar_result code;           /* of the last error */
    char text[512];              /* of the last line */
} watch;

static void *watch_alloc(void *user, size_t size, size_t align)
{
    watch *w = (watch *)user;
    unsigned char *raw;
    size_t shift;
    if (++w->calls == w->fail_at || size > (size_t)1 << 31) return NULL;
    raw = (unsigned char *)malloc(size + align);
    if (!raw) return NULL;
    shift = align - (uintptr_t)raw % align;   /* 1..128: fits the byte before the memory */
    memset(raw, (int)shift, shift);
    w->live++;
    memset(raw + shift, 0xa5, size);
    return raw + shift;
}

static void watch_free(void *user, void *memory, size_t size, size_t align)
{
    watch *w = (watch *)user;
    unsigned char *p = (unsigned char *)memory;
    (void)align;
    memset(p, 0x5a, size);
    w->live--;
    free(p - p[-1]);
}

static void watch_log(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    watch *w = (watch *)user;
    (void)line;
    w->logs++;
    if (level == OSCAR_LOG_WARNING) w->warnings++;
    else w->code = code;
    snprintf(w->text, sizeof w->text, "%s", text);
}

static oscar_hooks hooks_of(watch *w)
{
    oscar_hooks hooks = { watch_alloc, watch_free, watch_log, NULL };
    memset(w, 0, sizeof *w);
    hooks.user = w;
    return hooks;
}

/* -- samples -- */

enum { MAX_FLOATS = 400000 };
static float arena[MAX_FLOATS];
static int arena_used;

static float *floats(int count)
{
    float *f = arena + arena_used;
    arena_used += count;
    if (arena_used > MAX_FLOATS) abort();
    return f;
}

static const float *new_rotation(test_random *r, int n)
{
    double *m = (double *)malloc((size_t)(n * n) * sizeof(double));
    float *f = floats(n * n);
    int i;
    random_orthogonal(r, n, m);
    for (i = 0; i < n * n; i++) f[i] = (float)m[i];
    free(m);
    return f;
}

/* F = P S Q and B = P S^-1 Q with singular values from 1 / spread to spread. */
static void new_pair(test_random *r, int n, double spread, const float **to, const float **dual)
{
    double *p = (double *)malloc(2 * (size_t)(n * n) * sizeof(double)), *q = p + n * n;
    float *f = floats(n * n), *b = floats(n * n);
    int i, j, k;
    random_orthogonal(r, n, p);
    random_orthogonal(r, n, q);
    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++) {
            double x = 0, y = 0;
            for (k = 0; k < n; k++) {
                double s = pow(spread, 2.0 * k / (n - 1) - 1);
                x += p[i * n + k] * s * q[k * n + j];
                y += p[i * n + k] / s * q[k * n + j];
            }
            f[i * n + j] = (float)x;
            b[i * n + j] = (float)y;
        }
    free(p);
    *to = f;
    *dual = b;
}

/* A symmetric matrix: a few directions and half of the identity. */
static const float *new_metric(test_random *r, int n)
{
    double row[OSCAR__DIM_MAX];
    float *m = floats(n * n);
    int i, j, k;
    for (i = 0; i < n * n; i++) m[i] = i % (n + 1) ? 0.0f : 0.5f;
    for (k = 0; k < 3; k++) {
        for (i = 0; i < n; i++) row[i] = random_normal(r);
        for (i = 0; i < n; i++) for (j = 0; j < n; j++) m[i * n + j] += (float)(row[i] * row[j]);
    }
    return m;
}

static const float *new_mean(test_random *r, int n)
{
    float *m = floats(n);
    int i;
    for (i = 0; i < n; i++) m[i] = (float)(5 * random_normal(r));
    return m;
}

/* Five layers, two KV heads: every kind, shared and per head, with and without mean, dual, metric, 16 bits. */
enum { LAYERS = 5, HEADS = 2, DIM = 32, VDIM = 48 };
static oscar_layer sample_layers[LAYERS];
static oscar_pair sample_pairs[LAYERS][2][HEADS];

static void make_sample(void)
{
    test_random r = { 7 };
    int i, s, h;
    arena_used = 0;
    memset(sample_layers, 0, sizeof sample_layers);
    memset(sample_pairs, 0, sizeof sample_pairs);
    for (i = 0; i < LAYERS; i++) {
        oscar_layer *l = &sample_layers[i];
        l->q_heads = 2 * HEADS;
        l->kv_heads = HEADS;
        l->k_dim = DIM;
        l->v_dim = VDIM;
        for (s = 0; s < 2; s++)
            for (h = 0; h < HEADS; h++) {
                sample_pairs[i][s][h].dim = s ? VDIM : DIM;
                sample_pairs[i][s][h].norm = 1;
            }
        l->k = sample_pairs[i][0];
        l->v = sample_pairs[i][1];
    }
    /* 0: rotations and metrics per head, with mean; V Hadamard */
    for (h = 0; h < HEADS; h++) {
        sample_pairs[0][0][h].kind = OSCAR_DENSE;
        sample_pairs[0][0][h].to = new_rotation(&r, DIM);
        sample_pairs[0][0][h].mean = new_mean(&r, DIM);
        sample_pairs[0][0][h].metric = new_metric(&r, DIM);
    }
    /* 1: exact */
    sample_layers[1].k = sample_layers[1].v = NULL;
    sample_layers[1].k_bits = sample_layers[1].v_bits = 16;
    /* 2: K shared with dual and metric, means per head; V per head with dual; 4 bits */
    for (h = 0; h < HEADS; h++) {
        oscar_pair *k = &sample_pairs[2][0][h], *v = &sample_pairs[2][1][h];
        if (h) { k->to = k[-h].to; k->dual = k[-h].dual; }
        else new_pair(&r, DIM, 3, &k->to, &k->dual);
        k->metric = h ? k[-h].metric : new_metric(&r, DIM);
        k->mean = new_mean(&r, DIM);
        new_pair(&r, VDIM, 2, &v->to, &v->dual);
        k->kind = v->kind = OSCAR_DENSE;
    }
    sample_layers[2].k_bits = 4;
    sample_layers[2].k_page_mean = -1;
    /* 3: identity, CLIP, small groups, folded */
    for (h = 0; h < HEADS; h++) sample_pairs[3][0][h].kind = sample_pairs[3][1][h].kind = OSCAR_IDENTITY;
    sample_layers[3].k_fit = sample_layers[3].v_fit = OSCAR_CLIP;
    sample_layers[3].k_clip = 0.9;
    sample_layers[3].v_clip = -1;
    sample_layers[3].k_group = sample_layers[3].v_group = 16;
    sample_layers[3].v_folded = 1;
    /* 4: Hadamard with mean and metrics; V shared rotation, kept though V has 16 bits */
    for (h = 0; h < HEADS; h++) {
        sample_pairs[4][0][h].mean = new_mean(&r, DIM);
        sample_pairs[4][0][h].metric = new_metric(&r, DIM);
        sample_pairs[4][1][h].kind = OSCAR_DENSE;
        sample_pairs[4][1][h].to = h ? sample_pairs[4][1][0].to : new_rotation(&r, VDIM);
    }
    sample_layers[4].v_bits = 16;
}

static const char *const sample_metadata[] = {
    "oscar.compose", "balanced", "oscar.model", "a \"model\"\\ \x01 \n of na\xc3\xafve text \xf0\x9f\x99\x82",
    "oscar.weights", "attention", "oscar.tokens", "4096", "mine", "", NULL
};

static oscar_rotations *sample(void)
{
    oscar_rotations *r = NULL;
    make_sample();
    CHECK(oscar_rotations_create(sample_layers, LAYERS, sample_metadata, NULL, &r) == OSCAR_OK);
    return r;
}

/* -- comparing and using -- */

static unsigned char *bytes_of(const oscar_rotations *r, size_t *size)
{
    unsigned char *bytes;
    CHECK(oscar_rotations_write(r, NULL, 0, size) == OSCAR_OK);
    bytes = (unsigned char *)malloc(*size);
    CHECK(bytes && oscar_rotations_write(r, bytes, *size, size) == OSCAR_OK);
    return bytes;
}

static int same_floats(const float *a, const float *b, int count)
{
    return (!a && !b) || (a && b && !memcmp(a, b, (size_t)count * sizeof(float)));
}

static int same_pair(const oscar_pair *a, const oscar_pair *b)
{
    return a->kind == b->kind && a->dim == b->dim && same_floats(a->to, b->to, a->dim * a->dim)
           && same_floats(a->dual, b->dual, a->dim * a->dim) && same_floats(a->mean, b->mean, a->dim)
           && same_floats(a->metric, b->metric, a->dim * a->dim);
}

/* A row through every direction of a pair and into codes, so that every number of it is read. */
static double use_pair(const oscar_pair *pair)
{
    float x[OSCAR__DIM_MAX], y[OSCAR__DIM_MAX];
    unsigned char encoded[OSCAR__DIM_MAX];
    oscar_codec codec;
    double sum = 0;
    int i, direction;
    for (i = 0; i < pair->dim; i++) x[i] = (float)(i % 7) - 3;
    for (direction = 0; direction < 3; direction++) {
        CHECK(oscar_transform(pair, (oscar_direction)direction, 1, x, y) == OSCAR_OK);
        for (i = 0; i < pair->dim; i++) sum += (double)y[i];
    }
    memset(&codec, 0, sizeof codec);
    codec.metric = pair->metric;
    if (pair->metric) CHECK(oscar_encode(&codec, pair->dim, 1, x, encoded) == OSCAR_OK);
    return sum;
}

static int meta_is(const oscar_rotations *r, const char *key, const char *value)
{
    const char *text = oscar_rotations_meta(r, key);
    if (text && !strcmp(text, value)) return 1;
    printf("    %s is %s\n", key, text ? text : "absent");
    return 0;
}

static volatile double sink;   /* so that no read is optimised away */

/* Every accessor, then the file again: reading back what was written gives the same bytes. */
static void use(const oscar_rotations *r)
{
    static const char *const keys[] = { "oscar.version", "oscar.model", "oscar.k_kind", "", "none" };
    size_t size, size2;
    unsigned char *bytes, *bytes2;
    oscar_rotations *again = NULL;
    int i, h;
    for (i = 0; i < 5; i++) {
        const char *text = oscar_rotations_meta(r, keys[i]);
        if (text) sink += (double)strlen(text);
    }
    CHECK(oscar_rotations_count(r) >= 1);
    for (i = -1; i <= oscar_rotations_count(r); i++) {
        oscar_layer l;
        int inside = i >= 0 && i < oscar_rotations_count(r);
        CHECK((oscar_rotations_layer(r, i, &l) == OSCAR_OK) == inside);
        if (!inside) continue;
        CHECK(l.kv_heads > 0 || (!l.k && !l.v));
        for (h = 0; l.k && h < l.kv_heads; h++) {
            CHECK(l.k[h].dim == l.k_dim && l.k[h].norm >= 0);
            sink += use_pair(&l.k[h]) + oscar_rotations_similarity(r, i, h, l.kv_heads - 1);
        }
        for (h = 0; l.v && h < l.kv_heads; h++) {
            CHECK(l.v[h].dim == l.v_dim && !l.v[h].mean && !l.v[h].metric);
            sink += use_pair(&l.v[h]);
        }
        l.q_heads = l.kv_heads;
        if (l.kv_heads && l.k_dim && l.v_dim) CHECK(oscar_layer_resolve(&l, NULL, &l) == OSCAR_OK);
    }
    bytes = bytes_of(r, &size);
    CHECK(oscar_rotations_read(bytes, size, NULL, &again) == OSCAR_OK);
    bytes2 = bytes_of(again, &size2);
    CHECK(size == size2 && !memcmp(bytes, bytes2, size));
    free(bytes);
    free(bytes2);
    oscar_rotations_destroy(again);
}

/* A file from a JSON header and count numbers: those of values, then 0. */
static unsigned char *make_file(const char *header, int count, const float *values, int value_count, size_t *size)
{
    size_t length = strlen(header);
    unsigned char *p = (unsigned char *)malloc(8 + length + 4 * (size_t)count);
    int i;
    oscar__put64(p, length);
    memcpy(p + 8, header, length);
    for (i = 0; i < count; i++)
        oscar__put32(p + 8 + length + 4 * i, oscar__bits_of_float(i < value_count ? values[i] : 0));
    *size = 8 + length + 4 * (size_t)count;
    return p;
}

static char last_log[512];   /* what read_made was told last, and how many warnings */
static int last_warnings;

/* Reads such a file; NULL and the code if it is refused. The object must not be touched then, no memory kept. */
static oscar_rotations *read_made(const char *header, int count, const float *values, int value_count,
                                  oscar_result *code)
{
    oscar_rotations *const untouched = (oscar_rotations *)arena;
    oscar_rotations *r = untouched;
    watch w;
    oscar_hooks hooks = hooks_of(&w);
    size_t size;
    unsigned char *file = make_file(header, count, values, value_count, &size);
    *code = oscar_rotations_read(file, size, &hooks, &r);
    memcpy(last_log, w.text, sizeof last_log);
    last_warnings = w.warnings;
    CHECK_MSG((*code == OSCAR_OK) == (r != untouched), ("    %s\n", header));
    CHECK_MSG(*code == OSCAR_OK || (w.live == 0 && w.logs > 0 && w.code == *code), ("    %s\n", header));
    if (*code == OSCAR_OK) {   /* the caller destroys without these hooks' memory being watched any longer */
        oscar_rotations_destroy(r);
        CHECK(w.live == 0);
        CHECK(oscar_rotations_read(file, size, NULL, &r) == OSCAR_OK);
    }
    free(file);
    return *code == OSCAR_OK ? r : NULL;
}

static oscar_result code_of(const char *header, int count, const float *values, int value_count)
{
    oscar_result code;
    oscar_rotations *r = read_made(header, count, values, value_count, &code);
    if (r) use(r);
    oscar_rotations_destroy(r);
    return code;
}

#define VERSION "\"oscar.version\":\"1.0\""
#define META(more) "\"__metadata__\":{" VERSION more "}"
#define TEXT "{\"__metadata__\":{" VERSION ",\"a\":\""   /* a header up to the inside of a text */
#define TENSOR(name, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

/* -- tests -- */

static void test_round_trip(void)
{
    oscar_rotations *r, *r2 = NULL;
    unsigned char *bytes, *bytes2;
    size_t size, size2;
    int i, h;

    TEST("round trip: every kind, shared and per head, exact layers");
    r = sample();
    bytes = bytes_of(r, &size);
    CHECK(oscar_rotations_read(bytes, size, NULL, &r2) == OSCAR_OK);
    bytes2 = bytes_of(r2, &size2);
    CHECK(size == size2 && !memcmp(bytes, bytes2, size));
    CHECK(oscar_rotations_count(r2) == LAYERS);
    for (i = 0; i < LAYERS; i++) {
        oscar_layer a = sample_layers[i], b, c;
        CHECK(oscar_rotations_layer(r, i, &b) == OSCAR_OK);
        CHECK(oscar_rotations_layer(r2, i, &c) == OSCAR_OK);
        CHECK(c.kv_heads == HEADS && c.k_dim == DIM && c.v_dim == VDIM && c.q_heads == 0 && c.window == 0);
        CHECK(!a.k == !c.k && !a.v == !c.v);
        for (h = 0; h < HEADS; h++) {
            if (a.k) CHECK(same_pair(&a.k[h], &c.k[h]) && same_pair(&a.k[h], &b.k[h]));
            if (a.v) CHECK(same_pair(&a.v[h], &c.v[h]) && same_pair(&a.v[h], &b.v[h]));
        }
        c.q_heads = a.q_heads;
        CHECK(oscar_layer_resolve(&a, NULL, &a) == OSCAR_OK && oscar_layer_resolve(&c, NULL, &c) == OSCAR_OK);
        CHECK(a.k_bits == c.k_bits && a.v_bits == c.v_bits && a.k_fit == c.k_fit && a.v_fit == c.v_fit);
        CHECK(a.k_group == c.k_group && a.v_group == c.v_group && a.k_page_mean == c.k_page_mean);
        CHECK(a.v_folded == c.v_folded);
        CLOSE(a.k_clip, c.k_clip, 0);
        CLOSE(a.v_clip, c.v_clip, 0);
    }
    use(r2);

    TEST("round trip: matrices of all heads stored once, means per head, norm");
    {
        oscar_layer l;
        CHECK(oscar_rotations_layer(r2, 2, &l) == OSCAR_OK);
        CHECK(l.k[0].to == l.k[1].to && l.k[0].dual == l.k[1].dual && l.k[0].mean != l.k[1].mean);
        CHECK(l.k[0].metric == l.k[1].metric && l.v[0].to != l.v[1].to);
        CLOSE(l.k[0].norm, 3, 1e-4);
        CLOSE(l.k[1].norm, 3, 1e-4);
        CLOSE(l.v[1].norm, 2, 1e-4);
        CHECK(oscar_rotations_layer(r2, 0, &l) == OSCAR_OK);
        CLOSE(l.k[0].norm, 1, 0);
        CHECK(oscar_rotations_layer(r2, 1, &l) == OSCAR_OK && l.k_bits == 16 && l.v_bits == 16 && !l.k && !l.v);
    }
    {   /* header, then K0 4 matrices and 2 means, K2 3 matrices and 2 means, V2 4 matrices, K4 2 matrices and 2 means,
           V4 1 matrix */
        size_t header = (size_t)oscar__get64(bytes);
        CHECK(size == 8 + header + 4u * (9 * DIM * DIM + 6 * DIM + 5 * VDIM * VDIM));
        CHECK(header % 8 == 0);
    }

    TEST("metadata: one value, or a list where layers differ");
    CHECK(meta_is(r2, "oscar.version", "1.0"));
    CHECK(meta_is(r2, "oscar.layers", "5"));
    CHECK(meta_is(r2, "oscar.kv_heads", "2"));
    CHECK(meta_is(r2, "oscar.v_dim", "48"));
    CHECK(meta_is(r2, "oscar.k_kind", "dense,,dense,identity,hadamard"));
    CHECK(meta_is(r2, "oscar.v_kind", "hadamard,,dense,identity,dense"));
    CHECK(meta_is(r2, "oscar.k_bits", "2,16,4,2,2"));
    CHECK(meta_is(r2, "oscar.v_bits", "2,16,2,2,16"));
    CHECK(meta_is(r2, "oscar.fit_k", "unbiased,unbiased,unbiased,clip,unbiased"));
    CHECK(meta_is(r2, "oscar.clip_k", "0.96,0.96,0.96,0.9,0.96"));
    CHECK(meta_is(r2, "oscar.clip_v", "0.92,0.92,0.92,-1,0.92"));
    CHECK(meta_is(r2, "oscar.group_v", "48,48,48,16,48"));
    CHECK(meta_is(r2, "oscar.k_page_mean", "1,1,0,1,1"));
    CHECK(meta_is(r2, "oscar.v_folded", "0,0,0,1,0"));

    TEST("metadata: of the caller, kept as given");
    for (i = 0; sample_metadata[i]; i += 2)
        CHECK(meta_is(r2, sample_metadata[i], sample_metadata[i + 1]));
    CHECK(!oscar_rotations_meta(r2, "oscar.mode") && !oscar_rotations_meta(r2, "") && !oscar_rotations_meta(r2, NULL));
    free(bytes);
    free(bytes2);
    oscar_rotations_destroy(r);
    oscar_rotations_destroy(r2);
    oscar_rotations_destroy(NULL);
}

static void test_mixed_heads(void)
{
    oscar_rotations *r = NULL;
    oscar_layer l;
    test_random random = { 3 };
    watch w;
    oscar_hooks hooks = hooks_of(&w);   /* its memory is not zero */
    int j;
    TEST("a head without mean, metric or dual among heads that have them");
    make_sample();
    sample_pairs[0][0][1].mean = NULL;
    sample_pairs[0][0][1].metric = NULL;
    sample_pairs[2][1][0].to = new_rotation(&random, VDIM);
    sample_pairs[2][1][0].dual = NULL;
    CHECK(oscar_rotations_create(sample_layers, LAYERS, NULL, &hooks, &r) == OSCAR_OK);
    CHECK(oscar_rotations_layer(r, 0, &l) == OSCAR_OK);
    for (j = 0; j < DIM; j++) CLOSE(l.k[1].mean[j], 0, 0);
    for (j = 0; j < DIM * DIM; j++) CLOSE(l.k[1].metric[j], 0, 0);
    CHECK(same_floats(l.k[0].metric, sample_pairs[0][0][0].metric, DIM * DIM));
    CHECK(same_floats(l.k[0].mean, sample_pairs[0][0][0].mean, DIM));
    CHECK(oscar_rotations_layer(r, 2, &l) == OSCAR_OK);
    CHECK(same_floats(l.v[0].dual, sample_pairs[2][1][0].to, VDIM * VDIM));
    CHECK(same_floats(l.v[1].dual, sample_pairs[2][1][1].dual, VDIM * VDIM));
    CLOSE(l.v[0].norm, 1, 1e-5);
    use(r);
    oscar_rotations_destroy(r);

    TEST("one pair with a metric a head, and pairs with one metric, share what is the same");
    make_sample();
    sample_pairs[2][0][1].metric = new_metric(&random, DIM);
    sample_pairs[0][0][1].metric = sample_pairs[0][0][0].metric;
    CHECK(oscar_rotations_create(sample_layers, LAYERS, NULL, &hooks, &r) == OSCAR_OK);
    CHECK(oscar_rotations_layer(r, 2, &l) == OSCAR_OK);
    CHECK(l.k[0].to == l.k[1].to && l.k[0].metric != l.k[1].metric && same_pair(&l.k[1], &sample_pairs[2][0][1]));
    CHECK(oscar_rotations_layer(r, 0, &l) == OSCAR_OK);
    CHECK(l.k[0].to != l.k[1].to && l.k[0].metric == l.k[1].metric && same_pair(&l.k[1], &sample_pairs[0][0][1]));
    use(r);
    oscar_rotations_destroy(r);

    TEST("a list whose items are all empty is left out");
    CHECK(oscar_rotations_create(&sample_layers[1], 1, NULL, &hooks, &r) == OSCAR_OK);
    CHECK(!oscar_rotations_meta(r, "oscar.k_kind") && !oscar_rotations_meta(r, "oscar.v_kind"));
    CHECK(meta_is(r, "oscar.k_bits", "16"));
    use(r);
    oscar_rotations_destroy(r);
    CHECK(w.live == 0);
}

static void test_clip_text(void)
{
    static const double odd[] = { 0.1 + 0.2, 1.0 / 3, 1e-9, 0.123456789012345, 1 - 1e-15, 1 - 1.2e-16, 5e-324 };
    oscar_rotations *r = NULL;
    oscar_layer l, back;
    int i;
    TEST("a clip is the nearest double of its decimal text");
    memset(&l, 0, sizeof l);
    l.kv_heads = 1;
    l.k_dim = 16;
    l.k_fit = OSCAR_CLIP;
    for (i = 1; i < 1000; i++) {
        char text[16];
        snprintf(text, sizeof text, "0.%03d", i);
        l.k_clip = strtod(text, NULL);
        CHECK(oscar_rotations_create(&l, 1, NULL, NULL, &r) == OSCAR_OK);
        CHECK(oscar_rotations_layer(r, 0, &back) == OSCAR_OK);
        CLOSE(back.k_clip, l.k_clip, 0);
        while (text[strlen(text) - 1] == '0') text[strlen(text) - 1] = 0;
        CHECK(meta_is(r, "oscar.clip_k", text));
        oscar_rotations_destroy(r);
    }
    for (i = 0; i < 7; i++) {
        l.k_clip = odd[i];
        CHECK(oscar_rotations_create(&l, 1, NULL, NULL, &r) == OSCAR_OK);
        CHECK(oscar_rotations_layer(r, 0, &back) == OSCAR_OK);
        CLOSE(back.k_clip, l.k_clip, 1.1e-15);
        CHECK(back.k_clip > 0 && back.k_clip < 1);
        CLOSE(back.k_clip, strtod(oscar_rotations_meta(r, "oscar.clip_k"), NULL), 0);
        oscar_rotations_destroy(r);
    }
    TEST("numbers in metadata");
    {
        static const char *const good[] = { "0.96", "9.6e-1", "0.960", "96e-2", "1e-05", "1", "0", "-1", "1E0",
                                            "0.95999999999999996" };
        static const char *const bad[] = { " 0.96", "0.96 ", "0,96", ".5", "1.", "1e", "1e+", "nan", "inf", "0x1", "+1",
                                           "--1", "1.0.0", "2", "-2", "1e999", "99999999999999999999", "0.5f", "-" };
        char header[256];
        for (i = 0; i < 10; i++) {
            oscar_result code;
            snprintf(header, sizeof header, "{" META(",\"oscar.layers\":\"1\",\"oscar.clip_k\":\"%s\"") "}", good[i]);
            r = read_made(header, 0, NULL, 0, &code);
            CHECK_MSG(code == OSCAR_OK && !oscar_rotations_layer(r, 0, &back), ("    %s\n", good[i]));
            if (!code) CLOSE(back.k_clip, strtod(good[i], NULL), i == 9 ? 1e-15 : 0);
            oscar_rotations_destroy(r);
        }
        for (i = 0; i < 19; i++) {
            snprintf(header, sizeof header, "{" META(",\"oscar.layers\":\"1\",\"oscar.clip_k\":\"%s\"") "}", bad[i]);
            CHECK_MSG(code_of(header, 0, NULL, 0) == OSCAR_ERR_FORMAT, ("    %s\n", bad[i]));
        }
    }
}

static void test_create_refuses(void)
{
    static const char *const metadata[][4] = {
        { "oscar.version", "2.0", NULL, NULL }, { "oscar.k_bits", "4", NULL, NULL }, { "a", "1", "a", NULL },
        { "a", "\xff", NULL, NULL }, { "\xc0\x80", "", NULL, NULL }, { "a", "\xed\xa0\x80", NULL, NULL }
    };
    oscar_rotations *const untouched = (oscar_rotations *)arena;
    oscar_rotations *r = untouched;
    const char *twice[] = { "a", "1", "b", "2", "a", "3", NULL };
    oscar_layer one[1];
    watch w;
    oscar_hooks hooks = hooks_of(&w), half = { watch_alloc, NULL, NULL, NULL };
    int i;
    float *bad;
    TEST("create refuses what a file cannot hold");
    make_sample();
    CHECK(oscar_rotations_create(NULL, 1, NULL, &hooks, &r) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_rotations_create(sample_layers, 0, NULL, &hooks, &r) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_rotations_create(sample_layers, -1, NULL, &hooks, &r) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_rotations_create(sample_layers, LAYERS, NULL, &hooks, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_rotations_create(sample_layers, LAYERS, NULL, &half, &r) == OSCAR_ERR_ARGUMENT);
    for (i = 0; i < 6; i++)
        CHECK(oscar_rotations_create(sample_layers, LAYERS, metadata[i], &hooks, &r) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_rotations_create(sample_layers, LAYERS, twice, &hooks, &r) == OSCAR_ERR_ARGUMENT);

    one[0] = sample_layers[0];
    one[0].kv_heads = 0;
    CHECK(oscar_rotations_create(one, 1, NULL, &hooks, &r) == OSCAR_ERR_SHAPE);
    one[0] = sample_layers[0];
    one[0].k_dim = 48;
    CHECK(oscar_rotations_create(one, 1, NULL, &hooks, &r) == OSCAR_ERR_SHAPE);
    one[0] = sample_layers[0];
    one[0].k_bits = 3;
    CHECK(oscar_rotations_create(one, 1, NULL, &hooks, &r) == OSCAR_ERR_ARGUMENT);
    one[0] = sample_layers[0];
    one[0].k_clip = NAN;
    CHECK(oscar_rotations_create(one, 1, NULL, &hooks, &r) == OSCAR_ERR_ARGUMENT);
    one[0] = sample_layers[0];
    one[0].v = sample_layers[0].k;
    one[0].v_dim = DIM;
    CHECK(oscar_rotations_create(one, 1, NULL, &hooks, &r) == OSCAR_ERR_ARGUMENT);   /* V with a mean */
    sample_pairs[0][1][1].kind = OSCAR_IDENTITY;
    CHECK(oscar_rotations_create(sample_layers, LAYERS, NULL, &hooks, &r) == OSCAR_ERR_ARGUMENT);
    CHECK(strstr(w.text, "different kinds") != NULL);

    TEST("create refuses matrices that are no pair");
    make_sample();
    sample_pairs[2][0][0].dual = sample_pairs[2][0][1].dual = sample_pairs[2][0][0].to;
    CHECK(oscar_rotations_create(sample_layers, LAYERS, NULL, &hooks, &r) == OSCAR_ERR_ARGUMENT);
    CHECK(strstr(w.text, "layers.2.k of head 0") != NULL);
    make_sample();
    sample_pairs[2][1][1].dual = NULL;
    sample_pairs[2][1][0].dual = NULL;
    CHECK(oscar_rotations_create(sample_layers, LAYERS, NULL, &hooks, &r) == OSCAR_ERR_ARGUMENT);
    CHECK(strstr(w.text, "not orthogonal") != NULL);
    make_sample();
    bad = floats(DIM);
    memset(bad, 0, DIM * sizeof(float));
    bad[3] = NAN;
    sample_pairs[0][0][1].mean = bad;
    CHECK(oscar_rotations_create(sample_layers, LAYERS, NULL, &hooks, &r) == OSCAR_ERR_NUMERIC);
    CHECK(strstr(w.text, "layers.0.k.mean") != NULL);
    make_sample();
    bad = floats(DIM * DIM);
    memset(bad, 0, DIM * DIM * sizeof(float));
    bad[3] = INFINITY;
    sample_pairs[4][0][1].metric = bad;
    CHECK(oscar_rotations_create(sample_layers, LAYERS, NULL, &hooks, &r) == OSCAR_ERR_NUMERIC);
    CHECK(strstr(w.text, "layers.4.k.metric") != NULL);
    make_sample();
    sample_pairs[0][1][1].metric = floats(VDIM * VDIM);
    CHECK(oscar_rotations_create(sample_layers, LAYERS, NULL, &hooks, &r) == OSCAR_ERR_ARGUMENT);   /* V with one */
    CHECK(r == untouched && w.live == 0);
}

/* Finds text in a file's header. */
static int header_has(const unsigned char *file, const char *text)
{
    size_t size = (size_t)oscar__get64(file), length = strlen(text), i;
    for (i = 0; i + length <= size; i++) if (!memcmp(file + 8 + i, text, length)) return 1;
    return 0;
}

static void test_foreign_kept(void)
{
    float values[2 + 16 + 256];
    oscar_rotations *r;
    oscar_result code;
    unsigned char *bytes;
    size_t size;
    int i;
    TEST("foreign file: unknown keys and tensors, spectra and a later minor version are kept and written again");
    memset(values, 0, sizeof values);
    values[0] = 3;
    values[1] = 4;
    for (i = 0; i < 16; i++) { values[2 + i] = (float)i; values[18 + 17 * i] = 1; }
    r = read_made("{\"later\\u002ekey\" : {\"shape\":[ 2 , 1],\"data_offsets\":[0,8],\n\"dtype\":\"F32\"},"
                  TENSOR("scalar", "[]", 8, 12) "," TENSOR("none", "[0,7]", 8, 8) ","
                  TENSOR("layers.0.k.spectrum", "[1,15]", 12, 72) "}", 0, NULL, 0, &code);
    CHECK(code == OSCAR_ERR_FORMAT && !r);
    r = read_made("{\"later\\u002ekey\" : {\"shape\":[ 2 , 1],\"data_offsets\":[0,8],\n\"dtype\":\"F32\"},\t"
                  TENSOR("none", "[0,7]", 8, 8) "," TENSOR("layers.0.k.spectrum", "[1,16]", 8, 72) ","
                  TENSOR("layers.0.k.other", "[]", 1096, 1100) "," TENSOR("layers.00.k.to", "[]", 1100, 1104) ","
                  "\"__metadata__\":{\"oscar.version\":\"1.7\",\"z\":\"last\","
                  "\"a\\ud83d\\ude42\":\"\\/\\b\\t\\u00e9\"},"
                  TENSOR("layers.0.k.to", "[1,16,16]", 72, 1096) "}", 276, values, 274, &code);
    CHECK(code == OSCAR_OK);
    if (!r) return;
    CHECK(meta_is(r, "oscar.version", "1.7") && meta_is(r, "z", "last"));
    CHECK(meta_is(r, "a\xf0\x9f\x99\x82", "/\b\t\xc3\xa9"));
    use(r);
    bytes = bytes_of(r, &size);
    CHECK(size == 8 + (size_t)oscar__get64(bytes) + 276 * 4);
    CHECK(header_has(bytes, TENSOR("layers.0.k.to", "[1,16,16]", 0, 1024) ","
                            TENSOR("layers.0.k.spectrum", "[1,16]", 1024, 1088) ","
                            TENSOR("later.key", "[2,1]", 1096, 1104)) == 0);   /* order of names decides */
    CHECK(header_has(bytes, TENSOR("layers.0.k.to", "[1,16,16]", 0, 1024) ","
                            TENSOR("layers.0.k.spectrum", "[1,16]", 1024, 1088) ","
                            TENSOR("later.key", "[2,1]", 1088, 1096) ","
                            TENSOR("layers.0.k.other", "[]", 1096, 1100) ","
                            TENSOR("layers.00.k.to", "[]", 1100, 1104) "," TENSOR("none", "[0,7]", 1104, 1104) "}"));
    CHECK(header_has(bytes, "\"oscar.version\":\"1.7\",\"z\":\"last\"}"));
    bytes += size - 16;
    CLOSE(oscar__float_of_bits(oscar__get32(bytes)), 3, 0);
    CLOSE(oscar__float_of_bits(oscar__get32(bytes + 4)), 4, 0);
    free(bytes - (size - 16));
    oscar_rotations_destroy(r);
}

static void test_foreign(void)
{
    static float i16[16 * 16];
    oscar_rotations *r;
    oscar_result code;
    oscar_layer l;
    int i;
    for (i = 0; i < 16; i++) i16[17 * i] = 1;

    TEST("foreign file: shape from the tensors, kind dense where a matrix is, 16 bits where nothing is");
    r = read_made("{" TENSOR("layers.2.k.to", "[1,16,16]", 0, 1024) "," META("") "}  ", 256, i16, 256, &code);
    CHECK(code == OSCAR_OK && oscar_rotations_count(r) == 3);
    CHECK(!oscar_rotations_layer(r, 0, &l) && l.k_bits == 16 && l.v_bits == 16 && !l.k && !l.v && !l.kv_heads);
    CHECK(!oscar_rotations_layer(r, 2, &l) && l.k_bits == 0 && l.v_bits == 16 && l.kv_heads == 1 && l.k_dim == 16);
    CHECK(l.k && l.k[0].kind == OSCAR_DENSE && l.v_dim == 0 && !l.v && l.k_page_mean == 0);
    CHECK(last_warnings == 1 && strstr(last_log, "counts as 1 KV head"));
    use(r);
    oscar_rotations_destroy(r);

    TEST("foreign file: a shared matrix with oscar.kv_heads, or a mean, is one pair for all heads");
    r = read_made("{" META(",\"oscar.kv_heads\":\"3\"") "," TENSOR("layers.0.k.to", "[1,16,16]", 0, 1024) "}", 256, i16,
                  256, &code);
    CHECK(code == OSCAR_OK && !oscar_rotations_layer(r, 0, &l) && l.kv_heads == 3 && l.k[2].to == l.k[0].to);
    CHECK(last_warnings == 0);
    oscar_rotations_destroy(r);
    r = read_made("{" META("") "," TENSOR("layers.0.k.mean", "[2,16]", 1024, 1152) ","
                  TENSOR("layers.0.k.to", "[1,16,16]", 0, 1024) "}", 288, i16, 256, &code);
    CHECK(code == OSCAR_OK && !oscar_rotations_layer(r, 0, &l) && l.kv_heads == 2 && l.k[1].to == l.k[0].to);
    CHECK(l.k[1].mean == l.k[0].mean + 16);
    oscar_rotations_destroy(r);
    r = read_made("{" META("") "," TENSOR("layers.0.k.to", "[1,16,16]", 0, 1024) ","
                  TENSOR("layers.0.k.mean", "[1,16]", 1024, 1088) "}", 272, i16, 256, &code);
    CHECK(code == OSCAR_OK && last_warnings == 0);
    oscar_rotations_destroy(r);

    TEST("foreign file: Hadamard without shape has no pairs, identity needs a shape");
    r = read_made("{" META(",\"oscar.k_kind\":\"hadamard,hadamard\",\"oscar.v_kind\":\"hadamard\","
                           "\"oscar.k_bits\":\"4,2\"") "}", 0, NULL, 0, &code);
    CHECK(code == OSCAR_OK && oscar_rotations_count(r) == 2);
    CHECK(!oscar_rotations_layer(r, 0, &l) && l.k_bits == 4 && l.v_bits == 0 && !l.k && !l.v && !l.kv_heads);
    CHECK(oscar_rotations_similarity(r, 0, 0, 0) < 0);
    use(r);
    oscar_rotations_destroy(r);
    CHECK(code_of("{" META(",\"oscar.layers\":\"1\",\"oscar.k_kind\":\"identity\"") "}", 0, NULL, 0)
          == OSCAR_ERR_FORMAT);
    CHECK(code_of("{" META(",\"oscar.layers\":\"1\",\"oscar.k_kind\":\"identity\",\"oscar.kv_heads\":\"2\","
                           "\"oscar.k_dim\":\"32\"") "}", 0, NULL, 0) == OSCAR_OK);

    test_foreign_kept();
}

static void test_version(void)
{
    static const char *const versions[] = { "2.0", "0.9", "10.0", "99999999.1", "1", "", "1.", ".0", "1.x", "x",
                                            "1.0.0", " 1.0", "-1.0", "1.0 ", "999999999999.0" };
    char header[256];
    int i;
    TEST("versions: another major one is ERR_VERSION, also where the rest is not understood; none is ERR_FORMAT");
    for (i = 0; i < 15; i++) {
        snprintf(header, sizeof header, "{\"__metadata__\":{\"oscar.version\":\"%s\",\"oscar.k_kind\":\"new\"},%s}",
                 versions[i], TENSOR("layers.0.k.to", "[4]", 0, 16));
        CHECK_MSG(code_of(header, 4, NULL, 0) == (i < 4 ? OSCAR_ERR_VERSION : OSCAR_ERR_FORMAT), ("    %s\n", header));
    }
    CHECK(code_of("{\"__metadata__\":{\"oscar.layers\":\"1\"}}", 0, NULL, 0) == OSCAR_ERR_FORMAT);
    CHECK(code_of("{" TENSOR("layers.0.k.mean", "[1,16]", 0, 64) "}", 16, NULL, 0) == OSCAR_ERR_FORMAT);
    CHECK(code_of("{" META(",\"oscar.layers\":\"1\"") "}", 0, NULL, 0) == OSCAR_OK);
}

/* A small file: one layer, one head, a pair with a mean and a metric. */
static unsigned char *small_file(size_t *size)
{
    static const char *const metadata[] = { "oscar.model", "small", NULL };
    oscar_pair pair;
    oscar_layer l;
    oscar_rotations *r = NULL;
    unsigned char *bytes;
    test_random random = { 11 };
    memset(&pair, 0, sizeof pair);
    memset(&l, 0, sizeof l);
    arena_used = 0;
    pair.kind = OSCAR_DENSE;
    pair.dim = 16;
    new_pair(&random, 16, 2, &pair.to, &pair.dual);
    pair.mean = new_mean(&random, 16);
    pair.metric = new_metric(&random, 16);
    l.kv_heads = 1;
    l.k_dim = 16;
    l.k = &pair;
    CHECK(oscar_rotations_create(&l, 1, metadata, NULL, &r) == OSCAR_OK);
    bytes = bytes_of(r, size);
    oscar_rotations_destroy(r);
    return bytes;
}

static void test_damage(void)
{
    size_t size, i;
    unsigned char *file = small_file(&size), *copy;
    int accepted = 0;
    oscar_rotations *r;

    TEST("every truncation, and bytes too many, are ERR_FORMAT");
    for (i = 0; i < size; i++) {
        copy = (unsigned char *)malloc(i ? i : 1);   /* of this size, so that reading on is seen */
        memcpy(copy, file, i);
        r = NULL;
        CHECK(oscar_rotations_read(copy, i, NULL, &r) == OSCAR_ERR_FORMAT && !r);
        free(copy);
    }
    copy = (unsigned char *)malloc(size + 9);
    memcpy(copy, file, size);
    memset(copy + size, 0, 9);
    for (i = 1; i <= 9; i++) CHECK(oscar_rotations_read(copy, size + i, NULL, &r) == OSCAR_ERR_FORMAT);
    free(copy);

    TEST("every flipped byte: refused, or an object that can be used");
    for (i = 0; i < size; i++) {
        int bit;
        for (bit = 0; bit < 10; bit++) {
            unsigned char kept = file[i];
            oscar_result code;
            watch w;
            oscar_hooks hooks = hooks_of(&w);
            file[i] = bit < 8 ? (unsigned char)(kept ^ 1u << bit) : bit == 8 ? (unsigned char)~kept : 0;
            code = oscar_rotations_read(file, size, &hooks, &r);
            CHECK_MSG(code == OSCAR_OK || code == OSCAR_ERR_FORMAT || code == OSCAR_ERR_VERSION,
                      ("    byte %d: %s\n", (int)i, oscar_result_text(code)));
            if (code) CHECK(w.live == 0 && w.logs > 0);
            else {
                accepted++;
                use(r);
                oscar_rotations_destroy(r);
                CHECK(w.live == 0);
            }
            file[i] = kept;
        }
    }
    CHECK(accepted > 2000);   /* low bits of numbers, letters of values */
    free(file);
}

static void test_size(void)
{
    static const int layer_counts[] = { 1, 2, 3, 4, 5 };
    int n;
    TEST("C8.2 the size asked for is the size written; one byte short fails and the bytes behind stay");
    make_sample();
    for (n = 0; n < 5; n++) {
        oscar_rotations *r = NULL;
        watch w;
        oscar_hooks hooks = hooks_of(&w);
        size_t size = 1, size2 = 2, i;
        unsigned char *buffer;
        CHECK(oscar_rotations_create(sample_layers, layer_counts[n], NULL, &hooks, &r) == OSCAR_OK);
        CHECK(oscar_rotations_write(r, NULL, 0, &size) == OSCAR_OK);
        buffer = (unsigned char *)malloc(size + 64);
        memset(buffer, 0xc3, size + 64);
        CHECK(oscar_rotations_write(r, buffer, size - 1, &size2) == OSCAR_ERR_MEMORY && size2 == size);
        CHECK(w.code == OSCAR_ERR_MEMORY);
        for (i = 0; i < size + 64; i++) if (buffer[i] != 0xc3) break;
        CHECK(i == size + 64);
        CHECK(oscar_rotations_write(r, buffer, size, &size2) == OSCAR_OK && size2 == size);
        for (i = size; i < size + 64; i++) CHECK(buffer[i] == 0xc3);
        CHECK(8 + oscar__get64(buffer) <= size && buffer[8] == '{');
        free(buffer);
        CHECK(oscar_rotations_write(r, NULL, 0, NULL) == OSCAR_ERR_ARGUMENT);
        oscar_rotations_destroy(r);
        CHECK(w.live == 0);
    }
    CHECK(oscar_rotations_write(NULL, NULL, 0, NULL) == OSCAR_ERR_ARGUMENT);
    {
        oscar_layer hadamard;   /* a file without data ends with the header */
        oscar_rotations *r = NULL;
        size_t size;
        unsigned char *bytes;
        memset(&hadamard, 0, sizeof hadamard);
        hadamard.kv_heads = 8;
        hadamard.k_dim = 128;
        CHECK(oscar_rotations_create(&hadamard, 1, NULL, NULL, &r) == OSCAR_OK);
        bytes = bytes_of(r, &size);
        CHECK(size == 8 + oscar__get64(bytes) && size % 8 == 0);
        use(r);
        CHECK(!oscar_rotations_layer(r, 0, &hadamard) && hadamard.k && hadamard.k[7].dim == 128 && hadamard.v);
        free(bytes);
        oscar_rotations_destroy(r);
    }
}

static void test_memory(const char *path)
{
    oscar_rotations *r = sample(), *untouched = (oscar_rotations *)arena, *got;
    size_t size;
    unsigned char *bytes = bytes_of(r, &size);
    int n, what;
    oscar_rotations_destroy(r);
    TEST("memory that fails at the n-th call: ERR_MEMORY, nothing kept, outputs untouched");
    for (what = 0; what < 4; what++) {
        for (n = 1; n < 10; n++) {
            watch w;
            oscar_hooks hooks = hooks_of(&w);
            oscar_result code = OSCAR_OK;
            got = untouched;
            w.fail_at = n;
            if (what == 0) code = oscar_rotations_create(sample_layers, LAYERS, sample_metadata, &hooks, &got);
            if (what == 1) code = oscar_rotations_read(bytes, size, &hooks, &got);
            if (what == 2) {
                w.fail_at = 0;
                CHECK(oscar_rotations_read(bytes, size, &hooks, &got) == OSCAR_OK);
                w.fail_at = w.calls + n;
                code = oscar_rotations_save(got, path);
                oscar_rotations_destroy(got);
                got = untouched;
            }
            if (what == 3) code = oscar_rotations_load(path, &hooks, &got);
            if (!code) {
                if (got != untouched) { use(got); oscar_rotations_destroy(got); }
                CHECK(w.live == 0);
                break;
            }
            CHECK(code == OSCAR_ERR_MEMORY && w.code == code && got == untouched && w.live == 0);
        }
        CHECK(n == (what == 2 ? 2 : what == 3 ? 4 : 3));   /* a table and the object; a file's bytes */
    }
    remove(path);
    free(bytes);
}

#define ONE META(",\"oscar.layers\":\"1\"")
#define MEAN META(",\"oscar.k_kind\":\"hadamard\"")

/* Headers with 64 numbers behind them, and what the log says about each. None is a file. */
static const struct { const char *header, *says; } hostile[] = {
    { "", "no safetensors file" }, { "{", "no safetensors file" },
    { "}}", "must begin with {" }, { "[]", "must begin with {" }, { "null", "must begin with {" },
    { " {}", "must begin with {" }, { "{}{}", "something follows" }, { "{} x", "something follows" },
    { "{,}", "a string is expected" }, { "{ \"a\"}", "a colon is expected" }, { "{\"a\":1}", "must be an object" },
    { "{\"a\":{}}", "a string is expected" }, { "{\"a\":null}", "must be an object" },
    { "{" ONE "," ONE "}", "__metadata__ occurs twice" }, { "{" ONE ",}", "a string is expected" },
    { "{" ONE, "header must end in }" }, { "{" ONE " x}", "header must end in }" },
    { "{\"__metadata__\":null}", "__metadata__ must be an object" },
    { "{\"__metadata__\":[]}", "__metadata__ must be an object" },
    { "{\"__metadata__\":{\"a\":1}}", "a string is expected" },
    { "{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", "a string is expected" },
    { "{\"__metadata__\":{\"a\":\"b\",}}", "a string is expected" }, { "{\"__metadata__\":{\"a\"}}", "a colon" },
    { "{\"__metadata__\":{\"a\":\"b\"", "__metadata__ must end in }" },
    { "{\"__metadata__\":{\"oscar.layers\":\"1\"," VERSION "," VERSION "}," TENSOR("a", "[64]", 0, 256) "}",
      "key occurs twice" },
    { "{\"__metadata__\":{\"oscar.layers\":\"1\"}," TENSOR("a", "[64]", 0, 256) "}", "no oscar.version" },
    /* strings */
    { TEXT "\\x\"}}", "not valid" }, { TEXT "\\u12\"}}", "not valid" }, { TEXT "\\u00g0\"}}", "not valid" },
    { TEXT "\\ud800\"}}", "not valid" }, { TEXT "\\ud800\\u0041\"}}", "not valid" },
    { TEXT "\\ud800\\ue000\"}}", "not valid" }, { TEXT "\\udc00\"}}", "not valid" },
    { TEXT "\\u0000\"}}", "not valid" }, { TEXT "\n\"}}", "not valid" }, { TEXT "\x1f\"}}", "not valid" },
    { TEXT "\xff\"}}", "not valid" }, { TEXT "\x80\"}}", "not valid" }, { TEXT "\xc0\xaf\"}}", "not valid" },
    { TEXT "\xc3\"}}", "not valid" }, { TEXT "\xe0\x9f\xbf\"}}", "not valid" },
    { TEXT "\xed\xa0\x80\"}}", "not valid" }, { TEXT "\xf0\x8f\xbf\xbf\"}}", "not valid" },
    { TEXT "\xf4\x90\x80\x80\"}}", "not valid" }, { TEXT "\xf5\x80\x80\x80\"}}", "not valid" },
    { TEXT "\xe2\x82", "not valid" }, { TEXT "\\", "not valid" }, { TEXT "\\u", "not valid" },
    { TEXT "\\ud800\\", "not valid" }, { TEXT, "has no end" }, { "{\"a", "has no end" }, { "{a\":{}}", "a string" },
    { "{'__metadata__':{}}", "a string is expected" },
    { "{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "must be an object" },
    { "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":", "unknown or repeated field" },
    /* tensors */
    { "{" ONE "," TENSOR("a", "[64]", 0, 255) "}", "do not fit the shape" },
    { "{" ONE "," TENSOR("a", "[64]", 1, 257) "}", "a gap at byte 0" },
    { "{" ONE "," TENSOR("a", "[63]", 0, 252) "}", "need 252 bytes, but 256" },
    { "{" ONE "," TENSOR("a", "[65]", 0, 260) "}", "need 260 bytes, but 256" },
    { "{" ONE "," TENSOR("a", "[-64]", 0, 256) "}", "a size is negative" },
    { "{" ONE "," TENSOR("a", "[64]", -256, 0) "}", "a size is negative" },
    { "{" ONE "," TENSOR("a", "[64]", 0, -256) "}", "a size is negative" },
    { "{" ONE "," TENSOR("a", "[64]", 256, 0) "}", "do not fit the shape" },
    { "{" ONE "," TENSOR("a", "[64]", 512, 256) "}", "do not fit the shape" },
    { "{" ONE "," TENSOR("a", "[64.0]", 0, 256) "}", "must end in ]" },
    { "{" ONE "," TENSOR("a", "[6e1]", 0, 240) "}", "must end in ]" },
    { "{" ONE "," TENSOR("a", "[064]", 0, 256) "}", "leading zeros" },
    { "{" ONE "," TENSOR("a", "64", 0, 256) "}", "shape must be a list" },
    { "{" ONE "," TENSOR("a", "[64,]", 0, 256) "}", "a size is expected" },
    { "{" ONE "," TENSOR("a", "[[64]]", 0, 256) "}", "a size is expected" },
    { "{" ONE "," TENSOR("a", "[4611686018427387905,16]", 0, 256) "}", "do not fit the shape" },
    { "{" ONE "," TENSOR("a", "[4294967296,4294967296]", 0, 0) "," TENSOR("b", "[64]", 0, 256) "}", "do not fit" },
    { "{" ONE "," TENSOR("a", "[18446744073709551616]", 0, 256) "}", "a size is too large" },
    { "{" ONE "," TENSOR("a", "[64]", 0, 18446744073709551872) "}", "a size is too large" },
    { "{" ONE "," TENSOR("a", "[64]", 18446744073709551360, 0) "}", "do not fit the shape" },
    { "{" ONE "," TENSOR("a", "[32]", 0, 128) "," TENSOR("b", "[32]", 64, 192) "}", "overlap" },
    { "{" ONE "," TENSOR("a", "[64]", 0, 256) "," TENSOR("b", "[64]", 0, 256) "}", "overlap" },
    { "{" ONE "," TENSOR("a", "[16]", 0, 64) "," TENSOR("b", "[32]", 128, 256) "}", "a gap at byte 64" },
    { "{" ONE "," TENSOR("a", "[32]", 0, 128) "," TENSOR("b", "[16]", 0, 64) "," TENSOR("c", "[16]", 192, 256) "}",
      "overlap" },
    { "{" ONE "," TENSOR("a", "[32]", 0, 128) "," TENSOR("a", "[32]", 128, 256) "}", "the same name" },
    { "{" ONE ",\"a\":{\"dtype\":\"F16\",\"shape\":[128],\"data_offsets\":[0,256]}}", "dtype F32" },
    { "{" ONE ",\"a\":{\"dtype\":1,\"shape\":[64],\"data_offsets\":[0,256]}}", "a string is expected" },
    { "{" ONE ",\"a\":{\"dtype\" \"F32\",\"shape\":[64],\"data_offsets\":[0,256]}}", "a colon is expected" },
    { "{" ONE ",\"a\":{\"dtype\":\"F32\",\"shape\":[64]}}", "lacks dtype, shape" },
    { "{" ONE "," TENSOR("b", "[64]", 0, 256) ",\"a\":{\"shape\":[0],\"data_offsets\":[0,0]}}", "lacks dtype, shape" },
    { "{" ONE ",\"a\":{\"dtype\":\"F32\",\"shape\":[64],\"data_offsets\":[0,256],\"more\":1}}", "unknown or" },
    { "{" ONE ",\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[64],\"data_offsets\":[0,256]}}", "repeated" },
    { "{" ONE ",\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[64],\"data_offsets\":[0,256]}}", "repeated" },
    { "{" ONE ",\"a\":{\"dtype\":\"F32\",\"shape\":[64],\"data_offsets\":[0]}}", "a list of two sizes" },
    { "{" ONE ",\"a\":{\"dtype\":\"F32\",\"shape\":[64],\"data_offsets\":[0,256,512]}}", "a list of two sizes" },
    { "{" ONE ",\"a\":{\"dtype\":\"F32\",\"shape\":[64],\"data_offsets\":[0,256]", "a tensor must end in }" },
    { "{" ONE "," TENSOR("__metadata__", "[64]", 0, 256) "}", "__metadata__ occurs twice" },
    { "{" ONE "," TENSOR("\\u005f_metadata__", "[64]", 0, 256) "}", "__metadata__ occurs twice" },
    /* layers */
    { "{" META("") "," TENSOR("a", "[64]", 0, 256) "}", "0 layers" },
    { "{" ONE "," TENSOR("layers.0.k.to", "[64]", 0, 256) "}", "k.to has a wrong shape" },
    { "{" ONE "," TENSOR("layers.0.k.to", "[1,8,8]", 0, 256) "}", "k.to has a wrong shape" },
    { "{" ONE "," TENSOR("layers.0.k.to", "[1,2,32]", 0, 256) "}", "k.to has a wrong shape" },
    { "{" ONE "," TENSOR("layers.0.k.to", "[0,16,16]", 0, 0) "," TENSOR("a", "[64]", 0, 256) "}", "wrong shape" },
    { "{" ONE "," TENSOR("layers.0.k.mean", "[4,16]", 0, 256) "}", "no matrix and no" },
    { "{" ONE "," TENSOR("layers.0.k.spectrum", "[4,16]", 0, 256) "}", "no matrix and no" },
    { "{" ONE "," TENSOR("layers.0.k.dual", "[1,8,8]", 0, 256) "}", "wrong shape" },
    { "{" MEAN "," TENSOR("layers.0.v.mean", "[4,16]", 0, 256) "}", "only K has one" },
    { "{" MEAN "," TENSOR("layers.0.v.metric", "[1,8,8]", 0, 256) "}", "v.metric: only K has one" },
    { "{" ONE "," TENSOR("layers.0.k.metric", "[1,8,8]", 0, 256) "}", "k.metric has a wrong shape" },
    { "{" MEAN "," TENSOR("layers.0.k.metric", "[4,16]", 0, 256) "}", "k.metric has a wrong shape" },
    { "{" MEAN "," TENSOR("layers.0.k.metric", "[1,2,32]", 0, 256) "}", "k.metric has a wrong shape" },
    { "{" MEAN "," TENSOR("layers.0.k.metric", "[0,16,16]", 0, 0) "," TENSOR("a", "[64]", 0, 256) "}",
      "k.metric has a wrong shape" },
    { "{" MEAN "," TENSOR("layers.70000.k.mean", "[4,16]", 0, 256) "}", "70001 layers" },
    { "{" MEAN "," TENSOR("layers.99999999.k.mean", "[4,16]", 0, 256) "}", "100000000 layers" },
    { "{" META(",\"oscar.k_kind\":\"hadamard\",\"oscar.layers\":\"1\"") ","
      TENSOR("layers.1.k.mean", "[4,16]", 0, 256) "}", "oscar.layers is 1, but 2" },
    { "{" META(",\"oscar.k_kind\":\"hadamard\",\"oscar.kv_heads\":\"2\"") ","
      TENSOR("layers.0.k.mean", "[4,16]", 0, 256) "}", "wrong shape" },
    { "{" META(",\"oscar.k_kind\":\"hadamard\",\"oscar.kv_heads\":\"2\"") ","
      TENSOR("layers.0.k.mean", "[1,64]", 0, 256) "}", "wrong shape" },
    { "{" META(",\"oscar.k_kind\":\"hadamard\",\"oscar.k_dim\":\"32\"") ","
      TENSOR("layers.0.k.mean", "[4,16]", 0, 256) "}", "wrong shape" },
    { "{" META(",\"oscar.k_kind\":\"dense\"") "," TENSOR("layers.0.k.mean", "[4,16]", 0, 256) "}", "does not fit" },
    { "{" MEAN "," TENSOR("layers.0.k.mean", "[64]", 0, 256) "}", "wrong shape" },
    { "{" MEAN "," TENSOR("layers.0.k.mean", "[8,8]", 0, 256) "}", "wrong shape" },
    { "{" MEAN "," TENSOR("layers.0.k.mean", "[2,2,16]", 0, 256) "}", "wrong shape" },
    { "{" MEAN "," TENSOR("layers.0.k.mean", "[70000,16]", 0, 4480000) "}", "need 4480000 bytes" },
    { "{" MEAN "," TENSOR("layers.0.k.mean", "[0,16]", 0, 0) "," TENSOR("a", "[64]", 0, 256) "}", "wrong shape" },
    { "{" MEAN "," TENSOR("layers.0.k.mean", "[4,16]", 0, 256) "," TENSOR("layers.0.k.spectrum", "[0,16]", 256, 256)
      "}", "spectrum has a wrong shape" }
};

/* Metrics of three heads as a foreign file may hold them, beside shared and separate matrices. */
static void test_metric_shapes(void)
{
    static const struct { const char *header; int count; const char *says; } refused[] = {
        { "{" ONE "," TENSOR("layers.0.k.metric", "[3,16,16]", 0, 3072) "}", 768, "no matrix and no" },
        { "{" META(",\"oscar.k_kind\":\"hadamard\",\"oscar.kv_heads\":\"2\"") ","
          TENSOR("layers.0.k.metric", "[3,16,16]", 0, 3072) "}", 768, "k.metric has a wrong shape" },
        { "{" META(",\"oscar.k_kind\":\"hadamard\",\"oscar.k_dim\":\"32\"") ","
          TENSOR("layers.0.k.metric", "[3,16,16]", 0, 3072) "}", 768, "k.metric has a wrong shape" },
        { "{" ONE "," TENSOR("layers.0.k.to", "[1,16,16]", 0, 1024) ","
          TENSOR("layers.0.k.mean", "[3,16]", 1024, 1216) "," TENSOR("layers.0.k.metric", "[2,16,16]", 1216, 3264) "}",
          816, "k.metric has a wrong shape" },
        { "{" ONE "," TENSOR("layers.0.v.to", "[1,16,16]", 0, 1024) ","
          TENSOR("layers.0.v.metric", "[1,16,16]", 1024, 2048) "}", 512, "v.metric: only K has one" }
    };
    float values[816];
    oscar_rotations *r;
    oscar_result code;
    oscar_layer l;
    int i;
    memset(values, 0, sizeof values);
    for (i = 0; i < 48; i++) values[i / 16 * 256 + i % 16 * 17] = 1;
    TEST("metrics of a foreign file: [heads or 1][D][D] beside a matrix or a kind, of K only, numbers only");
    for (i = 0; i < 5; i++) {
        CHECK(code_of(refused[i].header, refused[i].count, values, 768) == OSCAR_ERR_FORMAT);
        CHECK_MSG(strstr(last_log, refused[i].says) != NULL, ("    %s\n", last_log));
    }
    r = read_made("{" MEAN "," TENSOR("layers.0.k.metric", "[3,16,16]", 0, 3072) "}", 768, values, 768, &code);
    CHECK(code == OSCAR_OK && !oscar_rotations_layer(r, 0, &l) && l.kv_heads == 3 && l.k_dim == 16);
    if (r) CHECK(l.k[0].kind == OSCAR_HADAMARD && !l.k[0].to && l.k[2].metric == l.k[0].metric + 512);
    if (r) use(r);
    oscar_rotations_destroy(r);
    r = read_made("{" META(",\"oscar.k_kind\":\"identity\",\"oscar.kv_heads\":\"3\"") ","
                  TENSOR("layers.0.k.metric", "[1,16,16]", 0, 1024) "}", 256, values, 256, &code);
    CHECK(code == OSCAR_OK && !oscar_rotations_layer(r, 0, &l) && l.kv_heads == 3 && l.k_dim == 16);
    if (r) CHECK(l.k[0].kind == OSCAR_IDENTITY && l.k[2].metric == l.k[0].metric && l.k[0].metric);
    if (r) use(r);
    oscar_rotations_destroy(r);
    r = read_made("{" ONE "," TENSOR("layers.0.k.to", "[1,16,16]", 0, 1024) ","
                  TENSOR("layers.0.k.metric", "[2,16,16]", 1024, 3072) "}", 768, values, 768, &code);
    CHECK(code == OSCAR_OK && !oscar_rotations_layer(r, 0, &l) && l.kv_heads == 2);
    if (r) CHECK(l.k[1].to == l.k[0].to && l.k[1].metric == l.k[0].metric + 256);
    if (r) use(r);
    oscar_rotations_destroy(r);
    values[700] = NAN;
    CHECK(code_of("{" MEAN "," TENSOR("layers.0.k.metric", "[3,16,16]", 0, 3072) "}", 768, values, 768)
          == OSCAR_ERR_FORMAT);
    CHECK(strstr(last_log, "NaN or infinity") != NULL);
}

static void test_hostile(void)
{
    static const char *const metadata[] = {
        "\"oscar.layers\":\"0\"", "\"oscar.layers\":\"-1\"", "\"oscar.layers\":\"1.5\"", "\"oscar.layers\":\"65537\"",
        "\"oscar.layers\":\"1e99\"", "\"oscar.layers\":\"\"", "\"oscar.layers\":\"one\"", "\"oscar.layers\":\"1,1\"",
        "\"oscar.layers\":\"2\",\"oscar.k_bits\":\"2,2,2\"", "\"oscar.layers\":\"4\",\"oscar.k_bits\":\"2,2,2\"",
        "\"oscar.k_bits\":\"2,2\",\"oscar.v_bits\":\"2,2,2\"", "\"oscar.layers\":\"1\",\"oscar.k_bits\":\"3\"",
        "\"oscar.layers\":\"1\",\"oscar.k_bits\":\"2.5\"", "\"oscar.layers\":\"1\",\"oscar.v_bits\":\"8\"",
        "\"oscar.layers\":\"1\",\"oscar.v_bits\":\"two\"", "\"oscar.layers\":\"1\",\"oscar.k_kind\":\"Dense\"",
        "\"oscar.layers\":\"1\",\"oscar.k_kind\":\"dense\"", "\"oscar.layers\":\"1\",\"oscar.fit_k\":\"minmax\"",
        "\"oscar.layers\":\"1\",\"oscar.group_k\":\"7\"", "\"oscar.layers\":\"1\",\"oscar.group_k\":\"-16\"",
        "\"oscar.layers\":\"1\",\"oscar.group_v\":\"2048\"",
        "\"oscar.layers\":\"1\",\"oscar.k_dim\":\"64\",\"oscar.group_k\":\"48\"",
        "\"oscar.layers\":\"1\",\"oscar.k_dim\":\"24\"", "\"oscar.layers\":\"1\",\"oscar.v_dim\":\"2048\"",
        "\"oscar.layers\":\"1\",\"oscar.kv_heads\":\"0\"", "\"oscar.layers\":\"1\",\"oscar.kv_heads\":\"65537\"",
        "\"oscar.layers\":\"1\",\"oscar.v_folded\":\"2\"",
        "\"oscar.layers\":\"1\",\"oscar.v_folded\":\"0.5\"", "\"oscar.layers\":\"1\",\"oscar.k_page_mean\":\"-1\"",
        "\"oscar.layers\":\"65536\",\"oscar.kv_heads\":\"65536\",\"oscar.k_dim\":\"16\",\"oscar.k_kind\":\"identity\""
    };
    float values[64];
    char text[512];
    int i;
    size_t size;
    unsigned char *file;
    oscar_rotations *r = NULL;
    memset(values, 0, sizeof values);
    TEST("hostile headers: ERR_FORMAT, for the right reason");
    for (i = 0; i < (int)(sizeof hostile / sizeof hostile[0]); i++) {
        CHECK_MSG(code_of(hostile[i].header, 64, values, 64) == OSCAR_ERR_FORMAT, ("    %s\n", hostile[i].header));
        CHECK_MSG(strstr(last_log, hostile[i].says) || (sizeof(size_t) < 8 && strstr(last_log, "size is too large")),
                  ("    %s\n    %s\n", hostile[i].header, last_log));
        (void)code_of(hostile[i].header, 0, NULL, 0);   /* nothing behind the header: reading on is seen */
    }
    CHECK(code_of("{" ONE "," TENSOR("a", "[64]", 0, 256) "}", 64, values, 64) == OSCAR_OK);   /* nothing wrong here */
    CHECK(code_of("{" MEAN "," TENSOR("layers.0.k.mean", "[4,16]", 0, 256) "}", 64, values, 64) == OSCAR_OK);
    {
        float matrices[768];   /* dual of another number of heads than to */
        memset(matrices, 0, sizeof matrices);
        for (i = 0; i < 48; i++) matrices[i / 16 * 256 + i % 16 * 17] = 1;
        CHECK(code_of("{" ONE "," TENSOR("layers.0.k.to", "[2,16,16]", 0, 2048) ","
                      TENSOR("layers.0.k.dual", "[1,16,16]", 2048, 3072) "}", 768, matrices, 768) == OSCAR_ERR_FORMAT);
        CHECK(strstr(last_log, "`to` of the same shape") != NULL);
        CHECK(code_of("{" ONE "," TENSOR("layers.0.k.to", "[3,16,16]", 0, 3072) "}", 768, matrices, 768) == OSCAR_OK);
        CHECK(code_of("{" ONE "," TENSOR("layers.0.k.dual", "[3,16,16]", 0, 3072) "}", 768, matrices, 768)
              == OSCAR_ERR_FORMAT);
        CHECK(strstr(last_log, "`to` of the same shape") != NULL);
    }
    TEST("hostile metadata: ERR_FORMAT");
    for (i = 0; i < (int)(sizeof metadata / sizeof metadata[0]); i++) {
        snprintf(text, sizeof text, "{\"__metadata__\":{" VERSION ",%s}}", metadata[i]);
        CHECK_MSG(code_of(text, 0, NULL, 0) == OSCAR_ERR_FORMAT, ("    %s\n", text));
    }
    TEST("hostile header lengths");
    file = make_file("{" META(",\"oscar.layers\":\"1\"") "}", 0, NULL, 0, &size);
    CHECK(oscar_rotations_read(file, size, NULL, &r) == OSCAR_OK);
    oscar_rotations_destroy(r);
    for (i = 0; i < 64; i++) {
        oscar__put64(file, ((uint64_t)1 << i) - (uint64_t)(i % 2));
        CHECK(oscar_rotations_read(file, size, NULL, &r) == OSCAR_ERR_FORMAT);
    }
    oscar__put64(file, UINT64_MAX - 7);
    CHECK(oscar_rotations_read(file, size, NULL, &r) == OSCAR_ERR_FORMAT);
    CHECK(oscar_rotations_read(NULL, 8, NULL, &r) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_rotations_read(file, size, NULL, NULL) == OSCAR_ERR_ARGUMENT);
    free(file);

    TEST("as many layers as there may be, of one value each, and a long list");
    CHECK(code_of("{" META(",\"oscar.layers\":\"65536\",\"oscar.k_kind\":\"hadamard\"") "}", 0, NULL, 0) == OSCAR_OK);
    {
        static char header[300000];
        int n = snprintf(header, sizeof header, "{\"__metadata__\":{" VERSION ",\"oscar.k_bits\":\"2");
        for (i = 1; i < 65536; i++) n += snprintf(header + n, sizeof header - (size_t)n, ",%s", i % 2 ? "" : "4");
        snprintf(header + n, sizeof header - (size_t)n, "\"}}");
        CHECK(code_of(header, 0, NULL, 0) == OSCAR_OK);
    }
}

static void test_numbers(void)
{
    static const uint32_t bad[] = { 0x7fc00000, 0xffc00001, 0x7f800001, 0x7f800000, 0xff800000 };
    size_t size, header, i;
    unsigned char *file = small_file(&size);
    oscar_rotations *r = NULL;
    watch w;
    oscar_hooks hooks = hooks_of(&w);
    int k;
    TEST("NaN or infinity in any place is ERR_FORMAT");
    header = 8 + (size_t)oscar__get64(file);
    for (i = header; i < size; i += 4)
        for (k = 0; k < 5; k++) {
            uint32_t kept = oscar__get32(file + i);
            oscar__put32(file + i, bad[k]);
            CHECK(oscar_rotations_read(file, size, &hooks, &r) == OSCAR_ERR_FORMAT);
            CHECK(strstr(w.text, "NaN or infinity") != NULL);
            oscar__put32(file + i, kept);
        }
    {
        float nan = oscar__float_of_bits(bad[0]);
        CHECK(code_of("{" ONE "," TENSOR("a", "[1]", 0, 4) "}", 1, &nan, 1) == OSCAR_ERR_FORMAT);
    }
    TEST("a number of F or B off by 1 % is no pair");
    for (i = header; i < header + 2 * 1024; i += 4) {
        uint32_t kept = oscar__get32(file + i);
        float x = oscar__float_of_bits(kept);
        if (fabs((double)x) < 0.3) continue;
        oscar__put32(file + i, oscar__bits_of_float(1.01f * x));
        CHECK(oscar_rotations_read(file, size, &hooks, &r) == OSCAR_ERR_FORMAT);
        CHECK(strstr(w.text, "layers.0.k of head 0") != NULL);
        oscar__put32(file + i, kept);
    }
    free(file);

    TEST("pairs of any condition are taken where float rounding is all that is wrong; F too long for a float is not");
    for (k = 1; k < 7; k++) {
        oscar_pair pair;
        oscar_layer l;
        test_random random = { 5 };
        memset(&pair, 0, sizeof pair);
        memset(&l, 0, sizeof l);
        arena_used = 0;
        pair.kind = OSCAR_DENSE;
        pair.dim = 64;
        new_pair(&random, 64, pow(10, k), &pair.to, &pair.dual);
        l.kv_heads = 1;
        l.k_dim = 64;
        l.k = &pair;
        CHECK_MSG(oscar_rotations_create(&l, 1, NULL, &hooks, &r) == OSCAR_OK, ("    %d %s\n", k, w.text));
        if (r) use(r);
        oscar_rotations_destroy(r);
        r = NULL;
    }
    {
        static float f[256], b[256];
        oscar_pair pair;
        oscar_layer l;
        memset(&pair, 0, sizeof pair);
        memset(&l, 0, sizeof l);
        for (k = 0; k < 256; k++) {   /* Sylvester's matrix times 3e38, and times 1/16 of 1/3e38: the norm is 1.2e39 */
            int both = k / 16 & k % 16, sign = both ^ both >> 2;
            sign = (sign ^ sign >> 1) & 1 ? -1 : 1;
            f[k] = (float)sign * 3e38f;
            b[k] = (float)sign * 2.0833333e-40f;
        }
        pair.kind = OSCAR_DENSE;
        pair.dim = 16;
        pair.to = f;
        pair.dual = b;
        l.kv_heads = 1;
        l.k_dim = 16;
        l.k = &pair;
        CHECK(oscar_rotations_create(&l, 1, NULL, &hooks, &r) == OSCAR_ERR_ARGUMENT);
        CHECK_MSG(strstr(w.text, "too large") != NULL, ("    %s\n", w.text));
    }
    CHECK(w.live == 0);
}

static void test_similarity(void)
{
    oscar_rotations *r = sample();
    oscar_layer l[2];
    oscar_pair pairs[2];
    test_random random = { 17 };
    double near_one, far;
    TEST("similarity of two heads");
    CLOSE(oscar_rotations_similarity(r, 2, 0, 1), 1, 1e-6);   /* shared */
    CLOSE(oscar_rotations_similarity(r, 0, 1, 1), 1, 1e-6);
    CHECK(oscar_rotations_similarity(r, 0, 0, 1) < 0.3);
    CHECK(oscar_rotations_similarity(r, 1, 0, 1) < 0 && oscar_rotations_similarity(r, 3, 0, 1) < 0);
    CHECK(oscar_rotations_similarity(r, 0, 0, 2) < 0 && oscar_rotations_similarity(r, 0, -1, 0) < 0);
    CHECK(oscar_rotations_similarity(r, 5, 0, 0) < 0 && oscar_rotations_similarity(NULL, 0, 0, 0) < 0);
    oscar_rotations_destroy(r);
    memset(l, 0, sizeof l);
    memset(pairs, 0, sizeof pairs);
    arena_used = 0;
    pairs[0].kind = pairs[1].kind = OSCAR_DENSE;
    pairs[0].dim = pairs[1].dim = 64;
    pairs[0].to = new_rotation(&random, 64);
    pairs[1].to = new_rotation(&random, 64);
    l[0].kv_heads = 2;
    l[0].k_dim = 64;
    l[0].k = pairs;
    CHECK(oscar_rotations_create(l, 1, NULL, NULL, &r) == OSCAR_OK);
    far = oscar_rotations_similarity(r, 0, 0, 1);
    near_one = oscar_rotations_similarity(r, 0, 0, 0);
    CLOSE(far, 0.8 / 8, 0.04);   /* C1.1: unrelated rotations have 0.8 / sqrt(dim) */
    CLOSE(near_one, 1, 1e-6);
    oscar_rotations_destroy(r);
}

static int exists(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}

static void test_disk(const char *path)
{
    char temporary[600];
    oscar_rotations *r = sample(), *r2 = NULL, *const untouched = (oscar_rotations *)arena;
    watch w;
    oscar_hooks hooks = hooks_of(&w);
    unsigned char *bytes, *bytes2;
    size_t size, size2;
    FILE *f;
    snprintf(temporary, sizeof temporary, "%s.tmp", path);

    TEST("save and load, also over a file that is there; nothing temporary stays");
    bytes = bytes_of(r, &size);
    CHECK(oscar_rotations_save(r, path) == OSCAR_OK && exists(path) && !exists(temporary));
    CHECK(oscar_rotations_save(r, path) == OSCAR_OK && exists(path) && !exists(temporary));
    CHECK(oscar_rotations_load(path, &hooks, &r2) == OSCAR_OK);
    bytes2 = bytes_of(r2, &size2);
    CHECK(size == size2 && !memcmp(bytes, bytes2, size));
    oscar_rotations_destroy(r2);
    CHECK(w.live == 0);

    TEST("save and load: paths that cannot be written or read are ERR_FILE, half a file ERR_FORMAT");
    oscar_rotations_destroy(r);
    CHECK(oscar_rotations_read(bytes, size, &hooks, &r) == OSCAR_OK);
    w.calls = 0;
    w.live = 0;
    CHECK(oscar_rotations_save(r, "no such folder/file") == OSCAR_ERR_FILE && w.code == OSCAR_ERR_FILE);
    CHECK(oscar_rotations_save(r, ".") == OSCAR_ERR_FILE && w.code == OSCAR_ERR_FILE && !exists("..tmp"));
    CHECK(oscar_rotations_save(r, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_rotations_save(NULL, path) == OSCAR_ERR_ARGUMENT);
    r2 = untouched;
    CHECK(oscar_rotations_load("no such file", &hooks, &r2) == OSCAR_ERR_FILE);
    CHECK(oscar_rotations_load(".", &hooks, &r2) == OSCAR_ERR_FILE);
    CHECK(oscar_rotations_load(NULL, &hooks, &r2) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_rotations_load(path, &hooks, NULL) == OSCAR_ERR_ARGUMENT);
    f = fopen(path, "wb");
    CHECK(f && fwrite(bytes, 1, size / 2, f) == size / 2 && !fclose(f));
    CHECK(oscar_rotations_load(path, &hooks, &r2) == OSCAR_ERR_FORMAT);
    f = fopen(path, "wb");
    CHECK(f && !fclose(f));
    CHECK(oscar_rotations_load(path, &hooks, &r2) == OSCAR_ERR_FILE);
    CHECK(r2 == untouched && w.live == 0);
    remove(path);
    oscar_rotations_destroy(r);
    free(bytes);
    free(bytes2);
}

/* -- with safetensors_check.py -- */

static int write_sample(const char *path)
{
    oscar_rotations *r = sample();
    oscar_result code = oscar_rotations_save(r, path);
    oscar_rotations_destroy(r);
    if (code) printf("%s: %s\n", path, oscar_result_text(code));
    return code != OSCAR_OK;
}

/* What safetensors_check.py writes: see there. */
static int read_foreign(const char *path)
{
    watch w;
    oscar_hooks hooks = hooks_of(&w);
    oscar_rotations *r = NULL;
    oscar_layer l;
    size_t size;
    unsigned char *bytes;
    TEST("a file of the safetensors package");
    CHECK_MSG(oscar_rotations_load(path, &hooks, &r) == OSCAR_OK, ("    %s\n", w.text));
    if (!r) return test_end("test_files read");
    CHECK(oscar_rotations_count(r) == 3);
    CHECK(!oscar_rotations_layer(r, 0, &l) && l.kv_heads == 2 && l.k_dim == 64 && l.v_dim == 32 && l.k_bits == 4);
    CHECK(l.k && l.k[0].kind == OSCAR_DENSE && l.k[1].dual && l.k[1].mean && l.v && l.v[1].kind == OSCAR_DENSE);
    CLOSE(l.k[1].to[0], 2, 0);    /* 2 I and I / 2 */
    CLOSE(l.k[1].dual[65], 0.5, 0);
    CLOSE(l.k[1].mean[63], 127, 0);
    CHECK(l.k[0].metric && l.k[1].metric == l.k[0].metric);
    CLOSE(l.k[1].metric[65], 3, 0);
    CLOSE(l.k[1].norm, 2, 1e-5);
    CLOSE(l.k_clip, 0.97, 0);
    CHECK(l.v[0].to == l.v[1].to);
    CLOSE(l.v[0].to[1], 1, 0);    /* channel 0 goes to channel 1 */
    CHECK(!oscar_rotations_layer(r, 1, &l) && l.k_bits == 16 && l.v_bits == 16 && !l.k && !l.v);
    CHECK(!oscar_rotations_layer(r, 2, &l) && l.k_bits == 2 && l.v_bits == 16 && !l.k && !l.v);
    CHECK(meta_is(r, "oscar.model", "na\xc3\xafve \"quoted\"\n"));
    use(r);
    bytes = bytes_of(r, &size);
    CHECK(header_has(bytes, "\"layers.0.k.spectrum\"") && header_has(bytes, "\"extra\""));
    free(bytes);
    oscar_rotations_destroy(r);
    CHECK(w.live == 0);
    return test_end("test_files read");
}

int main(int argc, char **argv)
{
    char path[512];
    if (argc == 3 && !strcmp(argv[1], "write")) return write_sample(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "read")) return read_foreign(argv[2]);
    snprintf(path, sizeof path, "%s.safetensors", argc > 0 ? argv[0] : "test_files");
    test_round_trip();
    test_mixed_heads();
    test_clip_text();
    test_create_refuses();
    test_foreign();
    test_version();
    test_damage();
    test_size();
    test_memory(path);
    test_metric_shapes();
    test_hostile();
    test_numbers();
    test_similarity();
    test_disk(path);
    return test_end("test_files");
}
