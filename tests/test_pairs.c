/* test_pairs.c - transform pairs and layers: their norm, what is refused, how rotations complete a layer, and metrics
   in caches. */

#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "test.h"

/* The last sentence of the log. */
static char last_text[512];

static void keep_log(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    (void)user;
    (void)level;
    (void)code;
    (void)line;
    snprintf(last_text, sizeof last_text, "%s", text);
}

static oscar_hooks logging(void)
{
    oscar_hooks hooks;
    memset(&hooks, 0, sizeof hooks);
    hooks.log = keep_log;
    last_text[0] = 0;
    return hooks;
}

static oscar_layer plain_layer(int q_heads, int kv_heads, int dim)
{
    oscar_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.q_heads = q_heads;
    layer.kv_heads = kv_heads;
    layer.k_dim = dim;
    return layer;
}

static oscar_cache_desc plain_desc(const oscar_layer *layers, int count)
{
    oscar_cache_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.layers = layers;
    desc.layer_count = count;
    desc.max_sequences = 1;
    desc.max_pages = 2;
    desc.hooks = logging();
    return desc;
}

/* ---- the norm ---- */

/* Two blocks of channels that do not mix; the second holds the larger singular value. */
static void test_norm_of_blocks(void)
{
    float f[32 * 32];
    int i, j;
    double coupling;
    TEST("the norm is the largest singular value, also where blocks of channels do not mix");
    for (coupling = 0; coupling < 2e-4; coupling += 1e-4) {
        for (i = 0; i < 32; i++)
            for (j = 0; j < 32; j++)
                f[i * 32 + j] = i < 16 && j < 16 ? (i == j ? 10.0f : 0.0f)
                              : i >= 16 && j >= 16 ? 2.5f : (float)coupling;   /* 16 x 16 entries of 2.5: norm 40 */
        CLOSE(oscar__matrix_norm(32, f), 40, 0.01);
    }
    for (i = 0; i < 32 * 32; i++) f[i] = 0;
    CLOSE(oscar__matrix_norm(32, f), 0, 0);
}

static void test_norm_of_random(void)
{
    enum { D = 48 };
    static double gram[D * D], vectors[D * D], values[D];
    static float f[D * D];
    test_random r = { 5 };
    int trial, i, j, k;
    void *scratch = malloc(oscar_eigh_scratch(D));
    TEST("the norm agrees with the eigenvalues of F^T F to 1e-3, from below");
    for (trial = 0; trial < 20; trial++) {
        for (i = 0; i < D * D; i++) f[i] = (float)(random_normal(&r) * exp(random_normal(&r)));
        for (i = 0; i < D; i++)
            for (j = 0; j < D; j++)
                for (gram[i * D + j] = 0, k = 0; k < D; k++)
                    gram[i * D + j] += (double)f[k * D + i] * (double)f[k * D + j];
        CHECK(oscar_eigh(D, gram, vectors, values, scratch) == OSCAR_OK);
        CLOSE(oscar__matrix_norm(D, f) / sqrt(values[D - 1]), 1, 1e-3);
        CHECK(oscar__matrix_norm(D, f) <= (float)sqrt(values[D - 1]) * 1.00001f);
    }
    free(scratch);
}

/* ---- transforms ---- */

static void test_directions(void)
{
    enum { D = 32, ROWS = 5 };
    static float f[D * D], dual[D * D], mean[D], k[ROWS * D], q[ROWS * D], forward[ROWS * D], query[ROWS * D];
    static float back[ROWS * D];
    test_random r = { 6 };
    oscar_pair pair;
    int row, i, j;
    TEST("q'.k' = q.(k - m), and back undoes forward, also in place");
    memset(&pair, 0, sizeof pair);
    for (i = 0; i < D * D; i++) f[i] = dual[i] = 0;
    for (i = 0; i < D; i++) {   /* F = diag(s) times a permutation, B = F^-T */
        float s = (float)exp(random_normal(&r));
        f[i * D + (i * 7 + 3) % D] = s;
        dual[i * D + (i * 7 + 3) % D] = 1 / s;
        mean[i] = (float)random_normal(&r);
    }
    for (i = 0; i < ROWS * D; i++) { k[i] = (float)random_normal(&r); q[i] = (float)random_normal(&r); }
    pair.dim = D;
    for (j = 0; j < 3; j++) {
        pair.kind = j == 0 ? OSCAR_DENSE : j == 1 ? OSCAR_HADAMARD : OSCAR_IDENTITY;
        pair.to = j == 0 ? f : NULL;
        pair.dual = j == 0 ? dual : NULL;
        pair.mean = mean;
        CHECK(oscar_transform(&pair, OSCAR_FORWARD, ROWS, k, forward) == OSCAR_OK);
        CHECK(oscar_transform(&pair, OSCAR_QUERY, ROWS, q, query) == OSCAR_OK);
        memcpy(back, forward, sizeof back);
        CHECK(oscar_transform(&pair, OSCAR_BACK, ROWS, back, back) == OSCAR_OK);
        for (row = 0; row < ROWS; row++) {
            double product = 0, want = 0;
            for (i = 0; i < D; i++) {
                product += (double)query[row * D + i] * (double)forward[row * D + i];
                want += (double)q[row * D + i] * ((double)k[row * D + i] - (double)mean[i]);
                CLOSE(back[row * D + i], k[row * D + i], 1e-5);
            }
            CLOSE(product, want, 1e-4);
        }
    }
    pair.dim = 24;
    CHECK(oscar_transform(&pair, OSCAR_FORWARD, 1, k, forward) == OSCAR_ERR_SHAPE);
    pair.dim = D;
    CHECK(oscar_transform(&pair, (oscar_direction)3, 1, k, forward) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_transform(NULL, OSCAR_FORWARD, 1, k, forward) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_transform(&pair, OSCAR_FORWARD, 1, NULL, forward) == OSCAR_ERR_ARGUMENT);
}

/* ---- layers ---- */

/* A layer that must be refused: what is wrong, and a word that the log must hold. */
typedef struct bad_layer { oscar_layer layer; oscar_result result; const char *word; } bad_layer;

static int bad_layers(bad_layer *out, oscar_pair *pairs)
{
    int n = 0;
    oscar_layer plain = plain_layer(4, 2, 64);
#define BAD(field, value, code, text) \
    (out[n].layer = plain, out[n].layer.field = value, out[n].result = code, out[n].word = text, n++)
    BAD(q_heads, 3, OSCAR_ERR_SHAPE, "q_heads");
    BAD(kv_heads, 0, OSCAR_ERR_SHAPE, "kv_heads");
    BAD(k_dim, 100, OSCAR_ERR_SHAPE, "k_dim");
    BAD(v_dim, 1040, OSCAR_ERR_SHAPE, "v_dim");
    BAD(window, -2, OSCAR_ERR_ARGUMENT, "window");
    BAD(k_bits, 3, OSCAR_ERR_ARGUMENT, "k_bits");
    BAD(v_bits, 8, OSCAR_ERR_ARGUMENT, "v_bits");
    BAD(k_fit, (oscar_fit)2, OSCAR_ERR_ARGUMENT, "k_fit");
    BAD(k_clip, NAN, OSCAR_ERR_ARGUMENT, "k_clip");
    BAD(v_group, 24, OSCAR_ERR_SHAPE, "v_group");
    BAD(k_group, 128, OSCAR_ERR_SHAPE, "k_group");
    BAD(k_page_mean, 5, OSCAR_ERR_ARGUMENT, "k_page_mean");
    BAD(scale, -1.0f, OSCAR_ERR_ARGUMENT, "scale");
    BAD(softcap, -3.0f, OSCAR_ERR_ARGUMENT, "softcap");
    BAD(softcap, NAN, OSCAR_ERR_ARGUMENT, "softcap");
    BAD(k, pairs, OSCAR_ERR_SHAPE, "dim");            /* pairs[0] has another dimension */
    BAD(v, pairs + 1, OSCAR_ERR_ARGUMENT, "mean");    /* V with a mean */
    BAD(v, pairs + 3, OSCAR_ERR_ARGUMENT, "metric");  /* V with a metric */
#undef BAD
    return n;
}

static void test_refused_layers(void)
{
    static float mean[64], metric[64 * 64];
    oscar_pair pairs[5];
    bad_layer bad[32];
    int i, n;
    memset(pairs, 0, sizeof pairs);
    pairs[0].dim = 32;
    pairs[1].dim = pairs[2].dim = pairs[3].dim = pairs[4].dim = 64;
    pairs[1].mean = mean;
    pairs[4].metric = metric;                         /* of the second head */
    n = bad_layers(bad, pairs);
    TEST("C4.3 layers that do not fit are refused with a sentence that names the field, by resolve, layout and cache");
    for (i = 0; i < n; i++) {
        oscar_hooks hooks = logging();
        oscar_layer out, before;
        oscar_layout layout;
        oscar_cache_desc desc;
        oscar_cache *cache = NULL;
        memset(&before, 0x55, sizeof before);
        out = before;
        CHECK_MSG(oscar_layer_resolve(&bad[i].layer, &hooks, &out) == bad[i].result && strstr(last_text, bad[i].word),
                  ("    %s: \"%s\"\n", bad[i].word, last_text));
        CHECK(!memcmp(&out, &before, sizeof out));
        CHECK(oscar_page_layout(&bad[i].layer, 0, OSCAR_BF16, NULL, &layout) == bad[i].result);
        desc = plain_desc(&bad[i].layer, 1);
        CHECK(oscar_cache_create(&desc, &cache) == bad[i].result && !cache);
    }
}

static void test_resolve_twice(void)
{
    oscar_layer layer = plain_layer(4, 2, 64), once, twice;
    int i;
    TEST("C9.2 resolving fills the documented defaults, and again changes nothing");
    for (i = 0; i < 4; i++) {
        layer.k_fit = i & 1 ? OSCAR_CLIP : OSCAR_UNBIASED;
        layer.window = i & 2 ? 100 : -1;
        layer.v_bits = i & 2 ? 16 : 0;
        memset(&once, 0, sizeof once);
        CHECK(oscar_layer_resolve(&layer, NULL, &once) == OSCAR_OK);
        CHECK(once.v_dim == 64 && once.k_bits == 2 && once.k_group == 64 && once.k_page_mean == 1);
        CHECK(once.window == (i & 2 ? 100 : 0) && once.v_bits == (i & 2 ? 16 : 2) && !(once.softcap > 0));
        CLOSE(once.scale, 0.125, 0);
        CLOSE(once.k_clip, i & 1 ? 0.96 : -1, 0);
        twice = once;
        CHECK(oscar_layer_resolve(&once, NULL, &twice) == OSCAR_OK && !memcmp(&once, &twice, sizeof once));
    }
}

/* ---- what a cache refuses about pairs ---- */

static void test_bad_pairs(void)
{
    static float f[64 * 64];
    oscar_layer layer = plain_layer(2, 1, 64);
    oscar_pair pair;
    oscar_cache_desc desc;
    oscar_cache *cache = NULL;
    int i;
    TEST("a pair with NaN, or of another dimension for a folded V of 16 bits, is refused at create");
    memset(&pair, 0, sizeof pair);
    for (i = 0; i < 64 * 64; i++) f[i] = i % 65 ? 0.0f : 1.0f;
    pair.kind = OSCAR_DENSE;
    pair.dim = 64;
    pair.to = f;
    layer.k = &pair;
    desc = plain_desc(&layer, 1);
    CHECK(oscar_cache_create(&desc, &cache) == OSCAR_OK);
    oscar_cache_destroy(cache);
    f[77] = NAN;
    CHECK(oscar_cache_create(&desc, &cache) == OSCAR_ERR_NUMERIC);
    f[77] = HUGE_VALF;
    CHECK(oscar_cache_create(&desc, &cache) == OSCAR_ERR_NUMERIC);
    f[77] = NAN;
    pair.kind = OSCAR_HADAMARD;
    pair.to = NULL;
    pair.metric = f;
    CHECK(oscar_cache_create(&desc, &cache) == OSCAR_ERR_NUMERIC);
    f[77] = 0;
    pair.metric = NULL;
    pair.kind = OSCAR_DENSE;
    pair.to = f;
    layer = plain_layer(2, 1, 64);
    layer.v_dim = 128;
    layer.v_bits = 16;
    layer.v_folded = 1;
    layer.v = &pair;
    CHECK(oscar_cache_create(&desc, &cache) == OSCAR_ERR_SHAPE);
}

/* The sum of windows and pages of a huge desc must not wrap. */
static void test_huge(void)
{
    oscar_layer layer = plain_layer(8, 8, 1024);
    oscar_cache_desc desc = plain_desc(&layer, 1);
    oscar_footprint footprint;
    oscar_cache *cache;
    TEST("sizes that overflow are ERR_MEMORY, in the query as in create");
    desc.max_sequences = 2147483647;
    desc.max_pages = (int64_t)1 << 31;
    desc.sink = desc.recent = 2147483647;
    desc.max_tokens = 1;
    CHECK(oscar_cache_bytes(&desc, 1000, &footprint) == OSCAR_ERR_MEMORY);
    CHECK(oscar_cache_create(&desc, &cache) == OSCAR_ERR_MEMORY);
    CHECK(strlen(last_text) > 0);
}

/* ---- rotations complete a layer ---- */

static void test_apply(void)
{
    oscar_layer made = plain_layer(2, 2, 32), layer = plain_layer(4, 2, 32);
    oscar_rotations *rotations = NULL;
    oscar_hooks hooks = logging();
    TEST("rotations fill what a layer leaves open, and nothing else");
    made.k_bits = 4;
    made.v_fit = OSCAR_CLIP;
    made.v_clip = 0.9;
    made.k_group = 16;
    made.k_page_mean = -1;
    CHECK(oscar_rotations_create(&made, 1, NULL, NULL, &rotations) == OSCAR_OK);
    layer.v_clip = 0.8;
    layer.window = 7;
    CHECK(oscar_rotations_apply(rotations, 0, &hooks, &layer) == OSCAR_OK);
    CHECK(layer.k_bits == 4 && layer.v_bits == 2 && layer.v_fit == OSCAR_CLIP && layer.k_group == 16);
    CHECK(layer.k_page_mean == -1 && layer.q_heads == 4 && layer.window == 7);
    CLOSE(layer.v_clip, 0.8, 0);
    layer = plain_layer(4, 4, 32);
    CHECK(oscar_rotations_apply(rotations, 0, &hooks, &layer) == OSCAR_ERR_SHAPE && strstr(last_text, "this model"));
    CHECK(layer.k_bits == 0);   /* nothing was written */
    CHECK(oscar_rotations_apply(rotations, 1, &hooks, &layer) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_rotations_apply(rotations, 0, &hooks, NULL) == OSCAR_ERR_ARGUMENT);
    oscar_rotations_destroy(rotations);
}

/* ---- metrics ---- */

enum { METRIC_DIM = 32, METRIC_HEADS = 2 };

static oscar_cache *metric_cache(const oscar_layer *layer, const oscar_rotations *rotations)
{
    oscar_cache_desc desc = plain_desc(layer, 1);
    oscar_cache *cache = NULL;
    desc.sink = desc.recent = -1;
    desc.rotations = rotations;
    CHECK(oscar_cache_create(&desc, &cache) == OSCAR_OK);
    if (!cache) exit(2);
    return cache;
}

static oscar_view metric_rows(void)
{
    static float rows[64 * METRIC_HEADS * METRIC_DIM];
    test_random r = { 9 };
    oscar_view view;
    int i;
    for (i = 0; i < 64 * METRIC_HEADS * METRIC_DIM; i++) rows[i] = (float)random_normal(&r);
    memset(&view, 0, sizeof view);
    view.data = rows;
    return view;
}

/* Appends a page of keys and saves it: size bytes, which end with the page as it is. */
static unsigned char *metric_page(oscar_cache *cache, size_t *size)
{
    oscar_batch batch = { 0, 0, 64 };
    oscar_view view = metric_rows();
    unsigned char *blob;
    CHECK(oscar_cache_open(cache, &batch.seq) == OSCAR_OK);
    CHECK(oscar_cache_reserve(cache, batch.seq, 64, 0) == OSCAR_OK);
    CHECK(oscar_append(cache, 0, &batch, 1, &view, &view) == OSCAR_OK);
    CHECK(oscar_cache_save(cache, batch.seq, NULL, 0, size) == OSCAR_OK);
    blob = (unsigned char *)malloc(*size);
    CHECK(oscar_cache_save(cache, batch.seq, blob, *size, size) == OSCAR_OK);
    return blob;
}

static void test_metric(void)
{
    enum { D = METRIC_DIM, HASH = 16 };
    static float metric[METRIC_HEADS][D * D];
    test_random r = { 8 };
    oscar_layer plain = plain_layer(2, METRIC_HEADS, D), layer = plain, applied;
    oscar_pair pairs[METRIC_HEADS];
    oscar_rotations *rotations = NULL;
    oscar_cache *with, *from_file, *without;
    oscar_layout layout;
    oscar_view rows = metric_rows();
    unsigned char *blob[3], *page;
    void *scratch;
    oscar_seq seq = 0;
    size_t size[3];
    int h, i, j;
    memset(pairs, 0, sizeof pairs);
    for (h = 0; h < METRIC_HEADS; h++) {
        double a[D];
        for (i = 0; i < D; i++) a[i] = random_normal(&r);
        for (i = 0; i < D; i++)
            for (j = 0; j < D; j++) metric[h][i * D + j] = (float)(a[i] * a[j] + (i == j ? 0.5 : 0));
        pairs[h].dim = D;
        pairs[h].metric = metric[h];
    }
    layer.k = pairs;

    CHECK(oscar_page_layout(&layer, 0, OSCAR_BF16, NULL, &layout) == OSCAR_OK);
    page = (unsigned char *)malloc(layout.bytes);
    scratch = oscar__alloc(NULL, layout.scratch);
    CHECK(oscar_page_write(&layout, &rows, &rows, page, scratch) == OSCAR_OK);
    oscar__free(NULL, scratch, layout.scratch);

    TEST("a cache keeps its own copy of the metrics, each head's; rotations bring them into a layer");
    CHECK(oscar_rotations_create(&layer, 1, NULL, NULL, &rotations) == OSCAR_OK);
    applied = plain;
    CHECK(oscar_rotations_apply(rotations, 0, NULL, &applied) == OSCAR_OK && applied.k && applied.k[1].metric);
    CHECK(!memcmp(applied.k[1].metric, metric[1], sizeof metric[1]) && applied.k[0].kind == OSCAR_HADAMARD);
    with = metric_cache(&layer, NULL);
    from_file = metric_cache(&plain, rotations);
    without = metric_cache(&plain, NULL);
    oscar_rotations_destroy(rotations);
    memset(metric, 0, sizeof metric);          /* the caches have theirs */
    memset(pairs, 0xff, sizeof pairs);
    blob[0] = metric_page(with, &size[0]);
    blob[1] = metric_page(from_file, &size[1]);
    blob[2] = metric_page(without, &size[2]);
    CHECK(size[0] == size[1] && !memcmp(blob[0], blob[1], size[0]));
    CHECK(!memcmp(blob[0] + size[0] - layout.bytes, page, layout.bytes));
    free(page);

    TEST("a metric decides bytes, and not how they are read: the configuration is the same");
    CHECK(size[0] == size[2] && memcmp(blob[0], blob[2], size[0]));
    CHECK(!memcmp(blob[0], blob[2], HASH + 8));
    CHECK(oscar_cache_restore(without, blob[0], size[0], &seq) == OSCAR_ERR_FULL);   /* one sequence at a time */
    oscar_cache_destroy(without);
    without = metric_cache(&plain, NULL);
    CHECK(oscar_cache_restore(without, blob[0], size[0], &seq) == OSCAR_OK);
    free(blob[2]);
    blob[2] = (unsigned char *)malloc(size[0]);
    CHECK(oscar_cache_save(without, seq, blob[2], size[0], &size[2]) == OSCAR_OK);
    CHECK(size[2] == size[0] && !memcmp(blob[0], blob[2], size[0]));
    for (i = 0; i < 3; i++) free(blob[i]);
    oscar_cache_destroy(with);
    oscar_cache_destroy(from_file);
    oscar_cache_destroy(without);
}

/* ---- misuse of the page level ---- */

static void test_empty_layout(void)
{
    static float rows[64], lse[4];
    uint32_t id = 0;
    oscar_layout layout;
    oscar_attend_desc desc;
    oscar_page_list list;
    oscar_view view;
    oscar_out out;
    TEST("a layout that oscar_page_layout did not fill is refused everywhere");
    memset(&layout, 0, sizeof layout);
    memset(&desc, 0, sizeof desc);
    memset(&list, 0, sizeof list);
    memset(&view, 0, sizeof view);
    memset(&out, 0, sizeof out);
    desc.layout = &layout;
    desc.q.data = view.data = out.data = rows;
    desc.queries = 1;
    list.pool = rows;
    list.ids = &id;
    list.count = 1;
    CHECK(oscar_attend_pages(&desc, &list, rows, lse) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_attend_rows(&desc, NULL, 0, rows, lse) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_page_write(&layout, &view, &view, rows, rows) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_page_read(&layout, rows, 0, 1, &out, &out, rows) == OSCAR_ERR_ARGUMENT);
}

static void test_nan_query(void)
{
    float q[64], k[64], v[64], o[64], lse;
    oscar_layer layer = plain_layer(1, 1, 64);
    oscar_layout layout;
    oscar_attend_desc desc;
    oscar_row_span span;
    const float *parts[2], *lses[2];
    float nothing[64], nothing_lse = -HUGE_VALF;
    int i;
    TEST("a NaN query gives NaN, also through a join, instead of no attention at all");
    memset(&desc, 0, sizeof desc);
    memset(&span, 0, sizeof span);
    for (i = 0; i < 64; i++) { q[i] = k[i] = v[i] = 1; nothing[i] = 0; }
    q[3] = NAN;
    CHECK(oscar_page_layout(&layer, 0, OSCAR_BF16, NULL, &layout) == OSCAR_OK);
    desc.layout = &layout;
    desc.q.data = q;
    desc.queries = 1;
    span.k.data = k;
    span.v.data = v;
    span.count = 1;
    CHECK(oscar_attend_rows(&desc, &span, 1, o, &lse) == OSCAR_OK);
    CHECK(o[0] != o[0] && lse != lse);
    parts[0] = nothing;
    parts[1] = o;
    lses[0] = &nothing_lse;
    lses[1] = &lse;
    oscar_attend_join(2, parts, lses, 1, 1, 64, NULL, o, &lse);
    CHECK(o[0] != o[0] && lse != lse);
}

int main(void)
{
    test_norm_of_blocks();
    test_norm_of_random();
    test_directions();
    test_refused_layers();
    test_resolve_twice();
    test_bad_pairs();
    test_huge();
    test_apply();
    test_metric();
    test_empty_layout();
    test_nan_query();
    return test_end("test_pairs");
}
