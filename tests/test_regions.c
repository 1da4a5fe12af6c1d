/* test_regions.c - sink, history and recent: boundaries, drafts, cuts, forks, and attention over the three together. */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "test.h"
#include "cache_model.h"

static int twin_make(twin *t, const oscar_cache_desc *d)
{
    if (!twin_create(t, d, 1)) return 0;
    t->plain = 1;
    return 1;
}

/* The last row of a sequence attends; o [v_dim] and lse, of the first head of layer 0. */
static float last_output(const twin *t, int slot, uint64_t seed, float *o)
{
    const oscar_layer *l = &t->m.layout[0].layer;
    float *q = (float *)model_get((size_t)l->q_heads * (size_t)(l->k_dim + l->v_dim + 1), sizeof(float));
    float *all = q + l->q_heads * l->k_dim, *lse = all + l->q_heads * l->v_dim, first;
    oscar_view view = dense_view(q);
    oscar_out out = dense_out(all);
    oscar_batch b;
    int h;
    b.seq = t->m.seq[slot].handle;
    b.row = 0;
    b.rows = 1;
    for (h = 0; h < l->q_heads; h++) model_source(seed, 0, 2, 0, h, l->k_dim, q + h * l->k_dim);
    CHECK(oscar_attend(t->cache, 0, &b, 1, &view, NULL, &out, lse) == OSCAR_OK);
    memcpy(o, all, (size_t)l->v_dim * sizeof(float));
    first = lse[0];
    free(q);
    return first;
}

/* == WINDOWS STAY EXACT == */

/* Keys of tokens 3 and 1990 have one large channel each, all history keys are zero; V is random. Then every code and V
   scale in history is overwritten. */
static void test_exact_windows(void)
{
    enum { N = 2000, D = 16 };
    static const int target[2] = { 3, 1990 };
    oscar_layer l = small_layer();
    oscar_cache_desc d = model_desc(&l, 1, 1, 40);
    float *k = (float *)model_get(2 * N * D, sizeof *k), *v = k + N * D;
    twin t;
    int i, c;
    TEST("C4.4 first and last tokens do not depend on the bytes of history");
    for (i = 0; i < N; i++) {
        for (c = 0; c < D; c++) k[i * D + c] = 0;
        model_source(1, 0, 1, i, 0, D, v + i * D);
    }
    for (i = 0; i < 2; i++) k[target[i] * D + i] = 20;
    if (twin_make(&t, &d)) {
        oscar_view kv = dense_view(k), vv = dense_view(v);
        oscar_seq_state state = { 0 };
        oscar_batch b;
        test_random r = { 9 };
        const oscar_layout *layout = &t.cache->layers[0].layout;
        twin_open(&t);
        b.seq = t.m.seq[0].handle;
        b.row = 0;
        b.rows = N;
        CHECK(oscar_cache_reserve(t.cache, b.seq, N, 0) == OSCAR_OK);
        CHECK(oscar_append(t.cache, 0, &b, 1, &kv, &vv) == OSCAR_OK);
        CHECK(oscar_cache_get(t.cache, b.seq, &state) == OSCAR_OK);
        CHECK(state.history == 1664);
        for (i = 0; i < (int)(state.history / 64); i++) {
            unsigned char *page = model_pool_page(t.cache, 0, state.pages[i]);
            for (c = 0; c < (int)layout->k_scale; c++) page[c] = (unsigned char)random_u32(&r);
            for (c = 0; c < 64; c++) {                /* V scales up to 1000 */
                page[layout->v_scale + 2 * (size_t)c] = (unsigned char)random_u32(&r);
                page[layout->v_scale + 2 * (size_t)c + 1] = 0x63;
            }
        }
        for (i = 0; i < 2; i++) {
            float q[D], o[D], lse;
            oscar_view qv = dense_view(q);
            oscar_out out = dense_out(o);
            float seen[D];
            for (c = 0; c < D; c++) q[c] = 0;
            q[i] = 20;                                /* logit 100, history's 0 */
            b.rows = 1;
            CHECK(oscar_attend(t.cache, 0, &b, 1, &qv, NULL, &out, &lse) == OSCAR_OK);
            model_round(OSCAR_BF16, v + target[i] * D, D, seen);
            for (c = 0; c < D; c++) CLOSE(o[c], seen[c], fabs((double)seen[c]) / 256 + 1e-6);
            CLOSE(lse, 100, 1e-4);
        }
        twin_destroy(&t);
    }
    free(k);
}

static void test_first_token(void)
{
    oscar_layer l = small_layer();
    oscar_cache_desc d = model_desc(&l, 1, 1, 20);
    twin t;
    int i;
    TEST("C4.4 a sink of one token keeps it for ever");
    d.sink = 1;
    d.recent = 8;
    if (!twin_make(&t, &d)) return;
    twin_open(&t);
    for (i = 0; i < 300; i++) {
        float in[16], row[16];
        oscar_out k = dense_out(row);
        twin_step(&t, 0, i < 2 ? 1 : 1 + i % 4, 0, 5);
        model_source(5, 0, 0, 0, 0, 16, in);
        model_round(OSCAR_BF16, in, 16, in);
        CHECK(oscar_fetch(t.cache, 0, t.m.seq[0].handle, 0, 1, &k, NULL) == OSCAR_OK);
        CHECK(memcmp(in, row, sizeof row) == 0);
    }
    CHECK(t.m.seq[0].h > 600);
    twin_check_all(&t);
    twin_destroy(&t);
}

/* == BOUNDARIES == */

static void test_chunking(void)
{
    static const int chunks[6][4] = { { 600 }, { 200, 200, 200 }, { 1 }, { 1, 599 }, { 320, 64, 216 }, { 383, 217 } };
    model_mixed x;
    oscar_cache_desc d;
    twin t;
    int i, j, layer;
    float first_o[16], o[16], first_lse = 0, lse;
    TEST("C4.5 boundaries, bytes and later outputs do not depend on the chunks");
    model_mixed_init(&x, 6);
    d = model_desc(x.layer, 4, 6, 30);
    if (twin_make(&t, &d)) {
        for (i = 0; i < 6; i++) {
            twin_open(&t);
            for (j = 0; t.m.seq[i].n < 600; j++) twin_step(&t, i, chunks[i][j < 4 && chunks[i][j] ? j : 0], 0, 7);
            CHECK(t.m.seq[i].h == 256 && t.m.seq[i].n == 600);
            twin_check(&t, i);
            if (i) CHECK(twin_blobs_equal(&t, 0, &t, i));
            lse = last_output(&t, i, 3, o);
            if (i == 0) { memcpy(first_o, o, sizeof o); first_lse = lse; }
            CHECK(memcmp(o, first_o, sizeof o) == 0 && memcmp(&lse, &first_lse, sizeof lse) == 0);
        }
        for (layer = 0; layer < 4; layer++) twin_attend(&t, 3, layer, 1, 4);
        twin_destroy(&t);
    }
    model_mixed_free(&x);
}

/* What the length alone must give after appends. */
static void check_formula(twin *t, int slot)
{
    oscar_seq_state s = { 0 };
    oscar_stats stats;
    int64_t due;
    CHECK(oscar_cache_get(t->cache, t->m.seq[slot].handle, &s) == OSCAR_OK);
    due = s.length > 320 ? (s.length - 320) / 64 * 64 : 0;
    CHECK(s.history == due);
    CHECK(s.sink == (s.length < 64 ? s.length : 64));
    CHECK(s.recent <= 256 + 63);
    CHECK(s.history + s.recent + s.sink == s.length);
    oscar_cache_stats(t->cache, &stats);
    CHECK(stats.pages_used == s.history / 64 && s.page_count == s.history / 64);
}

static void test_growth(void)
{
    static const int sizes[9] = { 1, 2, 3, 7, 8, 255, 256, 257, 1000 };
    oscar_layer l = small_layer();
    oscar_cache_desc d = model_desc(&l, 1, 1, 80);
    test_random r = { 3 };
    oscar_footprint bytes, more;
    oscar_layout layout;
    twin t;
    int i;
    TEST("C4.6 5000 tokens one by one: recent never grows");
    if (!twin_make(&t, &d)) return;
    twin_open(&t);
    for (i = 0; i < 5000; i++) {
        twin_step(&t, 0, 1, 0, 5);
        check_formula(&t, 0);
        if (i % 500 == 499) twin_check_all(&t);
    }
    twin_close(&t, 0);
    TEST("C4.6 chunks of many sizes");
    twin_open(&t);
    while (t.m.seq[0].n < 4000) {
        twin_step(&t, 0, sizes[random_below(&r, 9)], 0, 5);
        check_formula(&t, 0);
        twin_check_all(&t);
    }
    TEST("C4.6 bytes follow the regions");
    CHECK(oscar_cache_layout(t.cache, 0, &layout) == OSCAR_OK);
    for (i = 1; i <= 5000; i += 13) {
        double h = i > 320 ? (i - 320) / 64 : 0, values = 2.0 * 16 * i;
        CHECK(oscar_cache_bytes(&d, i, &bytes) == OSCAR_OK);
        CLOSE(bytes.held_bits, 8 * (h * (double)layout.bytes + (i - 64 * h) * 2 * 16 * 2) / values, 1e-9);
        CHECK(bytes.pages == 80 * layout.bytes);
    }
    CHECK(oscar_cache_bytes(&d, 300, &bytes) == OSCAR_OK && oscar_cache_bytes(&d, 5000, &more) == OSCAR_OK);
    CLOSE(bytes.held_bits, 16, 1e-12);
    CHECK(more.held_bits < bytes.held_bits && more.owned_bits > more.held_bits && more.total == bytes.total);
    twin_destroy(&t);
}

/* == DRAFTS == */

static void drafts_run(int n)
{
    model_mixed x;
    oscar_cache_desc d;
    twin t;
    float a[16], b[16], lse_a, lse_b;
    int slot, i;
    model_mixed_init(&x, 8);
    d = model_desc(x.layer, 4, 4, 60);
    if (twin_make(&t, &d)) {
        for (slot = 0; slot < 4; slot++) {
            twin_open(&t);
            twin_step(&t, slot, n, 0, 1);
        }
        twin_step(&t, 0, 8, 1, 1);                   /* of 8 drafts the first 3 are right */
        CHECK(t.m.seq[0].step == OSCAR_STEP_DRAFTED && t.m.seq[0].h == t.m.seq[1].h);
        twin_check(&t, 0);
        for (i = 0; i < 4; i++) twin_attend(&t, 0, i, 8, 3);
        CHECK(twin_accept(&t, 0, 3) == OSCAR_OK);
        twin_step(&t, 1, 3, 0, 1);
        twin_step(&t, 2, 8, 0, 1);
        CHECK(twin_cut(&t, 2, n + 3) == OSCAR_OK);
        twin_step(&t, 3, 16, 1, 2);                  /* rejected as a whole, twice */
        CHECK(twin_accept(&t, 3, 0) == OSCAR_OK);
        twin_step(&t, 3, 16, 1, 3);
        CHECK(twin_abort(&t, 3) == OSCAR_OK);
        twin_step(&t, 3, 3, 0, 1);
        twin_check_all(&t);
        CHECK(twin_blobs_equal(&t, 0, &t, 1));
        CHECK(twin_blobs_equal(&t, 3, &t, 1));
        lse_a = last_output(&t, 0, 3, a);
        lse_b = last_output(&t, 1, 3, b);
        CHECK(memcmp(a, b, sizeof a) == 0 && memcmp(&lse_a, &lse_b, sizeof lse_a) == 0);
        for (i = 0; i < 4; i++) twin_attend(&t, 2, i, 1, 3);
        for (slot = 0; slot < 4; slot++) twin_step(&t, slot, 200, 0, 1);
        twin_check_all(&t);
        CHECK(twin_blobs_equal(&t, 0, &t, 1) && twin_blobs_equal(&t, 3, &t, 1));
        twin_destroy(&t);
    }
    model_mixed_free(&x);
}

static void test_drafts(void)
{
    TEST("C4.11 accepted drafts are appended tokens, rejected ones leave no trace: at 1000 tokens");
    drafts_run(1000);
    TEST("C4.11 one token before a page is due");
    drafts_run(1023);
    TEST("C4.11 three tokens before a page is due");
    drafts_run(1021);
    TEST("C4.11 drafts across the end of the sink");
    drafts_run(60);
}

/* == ABORTED STEPS == */

/* n tokens, then a step of `rows` in which the first `done` of three layers append before it is aborted. */
static void abort_run(const oscar_cache_desc *d, int n, int rows, int done)
{
    uint64_t seed = 5;
    twin t;
    int layer;
    if (!twin_make(&t, d)) return;
    twin_open(&t);
    if (n) twin_step(&t, 0, n, 0, 1);
    CHECK(twin_reserve(&t, 0, rows, 0) == OSCAR_OK);
    for (layer = 0; layer < done; layer++) {
        twin_batch b = twin_single(&t, 0, rows);
        CHECK(twin_append(&t, 2 - layer, &b, &seed) == OSCAR_OK);
        twin_check(&t, 0);
        twin_attend(&t, 0, 2 - layer, 1, 3);
    }
    CHECK(twin_abort(&t, 0) == OSCAR_OK);
    CHECK(t.m.seq[0].n == n);
    twin_check_all(&t);
    for (layer = 0; layer < 3 && n; layer++) twin_attend(&t, 0, layer, 1, 3);
    twin_step(&t, 0, rows, 0, 6);
    twin_check_all(&t);
    twin_destroy(&t);
}

static void test_aborts(void)
{
    static const int before[6] = { 0, 1, 100, 330, 400, 450 }, rows[5] = { 1, 64, 130, 300, 700 };
    oscar_layer l[3];
    oscar_cache_desc d;
    int i, j, done;
    TEST("an aborted step leaves n tokens in every layer, whoever had appended");
    l[0] = l[1] = l[2] = small_layer();
    l[1].k_bits = 4;
    l[2].v_bits = 16;
    d = model_desc(l, 3, 1, 20);
    for (i = 0; i < 6; i++) for (j = 0; j < 5; j++)
        for (done = 0; done < 3; done++) abort_run(&d, before[i], rows[j], done);
    d.sink = -1;
    d.recent = 20;
    for (i = 0; i < 5; i++) for (j = 0; j < 4; j++) abort_run(&d, before[i], rows[j], 1);
}

/* == CUTS == */

static void test_cuts(void)
{
    static const int lengths[11] = { 100, 319, 320, 321, 383, 384, 385, 447, 448, 449, 5000 };
    model_mixed x;
    oscar_cache_desc d;
    twin t;
    int i, j;
    TEST("C4.12 cut and the question agree, and every layer is cut");
    model_mixed_init(&x, 12);
    d = model_desc(x.layer, 4, 2, 160);
    if (twin_make(&t, &d)) {
        for (i = 0; i < 11; i++) {
            int n = lengths[i], steps[12], count = 0;
            steps[count++] = n + 1; steps[count++] = n; steps[count++] = n - 1; steps[count++] = n - 3;
            steps[count++] = n - 64; steps[count++] = n - 65; steps[count++] = 321; steps[count++] = 320;
            steps[count++] = 65; steps[count++] = 64; steps[count++] = 63; steps[count++] = 0;
            twin_open(&t);
            twin_step(&t, 0, n, 0, 1);
            for (j = 0; j < count; j++) {
                uint64_t sum = model_state(t.cache);
                oscar_result result;
                if (steps[j] < 0) continue;
                result = twin_cut(&t, 0, steps[j]);   /* compares with oscar_cache_can and the model */
                if (result != OSCAR_OK) CHECK(model_state(t.cache) == sum);
                if (n < 1000 || j < 5) twin_check(&t, 0);
                twin_check_cache(&t);
                if (n < 1000 && result == OSCAR_OK && t.m.seq[0].n > 0) twin_attend(&t, 0, j % 4, 1, 2);
            }
            CHECK(t.m.seq[0].n == 0);
            twin_step(&t, 0, 400, 0, 2);
            twin_check(&t, 0);
            twin_close(&t, 0);
        }
        twin_destroy(&t);
    }
    model_mixed_free(&x);
}

/* Bytes of the windows that a cut by `back` of n tokens changes; pool: bytes of history. */
static size_t cut_changes(int n, int back, size_t *pool)
{
    oscar_layer l = small_layer();
    oscar_cache_desc d = model_desc(&l, 1, 1, n / 64);
    oscar_cache *cache = NULL;
    oscar_seq seq = 0;
    oscar_batch b;
    float *rows = (float *)model_get((size_t)n * 16, sizeof *rows);
    oscar_view view = dense_view(rows);
    oscar_stats stats;
    size_t changed = 0, windows, i, bytes;
    unsigned char *before, *now;
    int side, j;
    for (j = 0; j < n * 16; j++) rows[j] = (float)((j * 7 + j / 16) % 23) - 11;
    *pool = 0;
    CHECK(oscar_cache_create(&d, &cache) == OSCAR_OK);
    CHECK(oscar_cache_open(cache, &seq) == OSCAR_OK);
    CHECK(oscar_cache_reserve(cache, seq, n, 0) == OSCAR_OK);
    b.seq = seq;
    b.row = 0;
    b.rows = n;
    CHECK(oscar_append(cache, 0, &b, 1, &view, &view) == OSCAR_OK);
    oscar_cache_stats(cache, &stats);
    bytes = stats.page_bytes + stats.window_bytes;
    before = (unsigned char *)model_get(bytes, 1);
    memcpy(before, cache->layers[0].pool, stats.page_bytes);
    now = model_windows(cache, 0, 0, &windows);
    memcpy(before + stats.page_bytes, now, windows);
    now = model_windows(cache, 0, 1, &windows);
    memcpy(before + stats.page_bytes + windows, now, windows);
    CHECK(oscar_cache_cut(cache, seq, n - back) == OSCAR_OK);
    for (i = 0; i < stats.page_bytes; i++) *pool += before[i] != cache->layers[0].pool[i];
    for (side = 0; side < 2; side++) {
        now = model_windows(cache, 0, side, &windows);
        for (i = 0; i < windows; i++) changed += now[i] != before[stats.page_bytes + (size_t)side * windows + i];
    }
    oscar_cache_destroy(cache);
    free(rows);
    free(before);
    return changed;
}

static void test_cut_cost(void)
{
    size_t pool, changed, most = 60 * 2 * 16 * 2;      /* 60 rows of K and V come back, of 16 BF16 values */
    TEST("C4.13 a cut writes no byte of history, and as little in a long sequence as in a short one");
    CHECK(cut_changes(1024, 3, &pool) == 0 && pool == 0);
    CHECK(cut_changes(65536, 3, &pool) == 0 && pool == 0);
    changed = cut_changes(1024, 260, &pool);
    CHECK(pool == 0 && changed > 0 && changed <= most);
    changed = cut_changes(65536, 260, &pool);
    CHECK(pool == 0 && changed > 0 && changed <= most);
}

/* With F = 0.1 I rows of 65504 are accepted into F16 windows, and 2 bits decode one large value among halves of it to
   1.36 times the value: beyond F16. */
static void test_overflow(void)
{
    enum { D = 16, N = 220 };
    float to[D * D] = { 0 }, dual[D * D] = { 0 }, rows[N * D];
    oscar_pair pair;
    oscar_layer l = small_layer();
    oscar_cache_desc d = model_desc(&l, 1, 1, 8);
    oscar_view view;
    oscar_batch b;
    twin t;
    int i, round;
    TEST("rows that decode beyond the window type become its largest value");
    memset(&pair, 0, sizeof pair);
    for (i = 0; i < D; i++) { to[i * D + i] = 0.1f; dual[i * D + i] = 10; }
    for (i = 0; i < N * D; i++) rows[i] = i % D == i / D % D ? 65504.0f : i % 3 ? 32752.0f : -32752.0f;
    pair.kind = OSCAR_DENSE;
    pair.dim = D;
    pair.to = to;
    pair.dual = dual;
    pair.norm = 0.1001f;
    l.k = l.v = &pair;
    l.k_page_mean = -1;
    d.sink = 3;
    d.recent = 5;
    d.window_type = OSCAR_F16;
    if (!twin_make(&t, &d)) return;
    view = dense_view(rows);
    twin_open(&t);
    b.seq = t.m.seq[0].handle;
    b.row = 0;
    for (round = 0; round < 2; round++) {
        b.rows = round ? 64 : N;
        CHECK(twin_reserve(&t, 0, b.rows, 0) == OSCAR_OK);
        CHECK(oscar_append(t.cache, 0, &b, 1, &view, &view) == OSCAR_OK);
        model_append(&t.m, &t.m.seq[0], 0, rows, rows);
        twin_check_all(&t);
        CHECK(twin_cut(&t, 0, 100) == OSCAR_OK);
        twin_check_all(&t);
        for (i = 3 + 64; i < 100; i++)
            CHECK(model_row(&t.m, &t.m.seq[0], 0, 0, i, 0)[i % D] == 65504.0f);
    }
    twin_check_rows(&t, 0, 0, 0, 100);
    t.plain = 0;                                     /* and fetched in every type */
    for (i = 0; i < 9; i++) twin_check_rows(&t, 0, 0, 0, 100);
    twin_destroy(&t);
}

/* == FORKS == */

static void forks_run(int at)
{
    model_mixed x;
    oscar_cache_desc d;
    twin t;
    int i;
    model_mixed_init(&x, 4);
    d = model_desc(x.layer, 4, 4, 70);
    if (twin_make(&t, &d)) {
        twin_open(&t);                               /* 0: the parent; 1: the child; 2, 3: never shared */
        twin_step(&t, 0, at, 0, 1);
        CHECK(twin_fork(&t, 0, at) == 1);
        CHECK(t.m.pages_used == (at - 320) / 64);
        for (i = 2; i < 4; i++) {
            twin_open(&t);
            twin_step(&t, i, at, 0, 1);
        }
        for (i = 0; i < 120; i++) {
            twin_step(&t, 0, 5, 0, 1);
            twin_step(&t, 1, 5, 0, 2);
        }
        for (i = 0; i < 3; i++) twin_step(&t, 2, 200, 0, 1);
        twin_step(&t, 3, 600, 0, 2);
        twin_check_all(&t);
        CHECK(twin_blobs_equal(&t, 0, &t, 2));
        CHECK(twin_blobs_equal(&t, 1, &t, 3));
        CHECK(!twin_blobs_equal(&t, 0, &t, 1));
        CHECK(twin_cut(&t, 1, 90) == OSCAR_OK);      /* back into the shared page */
        CHECK(twin_cut(&t, 3, 90) == OSCAR_OK);
        CHECK(twin_blobs_equal(&t, 1, &t, 3));
        for (i = 1; i < 4; i += 2) twin_step(&t, i, 400, 0, 5);
        twin_check_all(&t);
        CHECK(twin_blobs_equal(&t, 1, &t, 3));
        CHECK(twin_blobs_equal(&t, 0, &t, 2));
        twin_destroy(&t);
    }
    model_mixed_free(&x);
}

/* A fork at every kind of length equals a fork of everything that is cut to it; the parent stays as it is. */
static void test_fork_lengths(void)
{
    static const int at[10] = { 500, 499, 384, 300, 200, 129, 128, 127, 64, 0 };
    model_mixed x;
    oscar_cache_desc d;
    twin t;
    int i, layer;
    TEST("a fork below the end equals fork then cut");
    model_mixed_init(&x, 4);
    d = model_desc(x.layer, 4, 3, 12);
    if (twin_make(&t, &d)) {
        twin_open(&t);
        twin_step(&t, 0, 500, 0, 1);
        for (i = 0; i < 10; i++) {
            CHECK(twin_fork(&t, 0, at[i]) == 1);
            CHECK(twin_fork(&t, 0, 500) == 2);
            CHECK(twin_cut(&t, 2, at[i]) == OSCAR_OK);
            twin_check_all(&t);
            CHECK(twin_blobs_equal(&t, 1, &t, 2));
            twin_step(&t, 1, 300, 0, 3);
            for (layer = 0; layer < 4; layer++) twin_attend(&t, 1, layer, 1, 3);
            twin_check_all(&t);
            twin_close(&t, 1);
            twin_close(&t, 2);
        }
        twin_destroy(&t);
    }
    model_mixed_free(&x);
}

static void test_forks(void)
{
    oscar_layer l = small_layer();
    oscar_cache_desc d = model_desc(&l, 1, 4, 9);
    unsigned char *before, *after;
    size_t size, size_after;
    twin t;
    int i;
    TEST("C4.14 sequences that share pages do not see each other: forked at 400");
    forks_run(400);
    TEST("C4.14 forked at 460");
    forks_run(460);
    TEST("C4.15 shared pages outlive the sequence that wrote them");
    if (!twin_make(&t, &d)) return;
    twin_open(&t);
    twin_step(&t, 0, 460, 0, 1);
    CHECK(twin_fork(&t, 0, 460) == 1);
    CHECK(t.m.pages_used == 2);
    before = twin_save(&t, 1, &size);
    twin_close(&t, 0);
    CHECK(t.m.pages_used == 2);
    model_poison_free(t.cache, 0xff);
    for (i = 0; i < 3; i++) if (twin_open(&t) >= 0) {
        int slot = i ? i + 1 : 0;
        twin_step(&t, slot, 320 + (i < 2 ? 3 : 1) * 64, 0, 10 + (uint64_t)i);
    }
    CHECK(t.m.pages_used == 9);
    after = twin_save(&t, 1, &size_after);
    CHECK(before && after && size == size_after && memcmp(before, after, size) == 0);
    twin_check_all(&t);
    free(before);
    free(after);
    twin_destroy(&t);
}

/* == ATTENTION OVER THE REGIONS == */

/* Two caches, one in memory of zeros, one in memory of 0xff (NaN), pages poisoned again after each free. */
static void test_poison(void)
{
    oscar_layer l[2];
    oscar_cache_desc d;
    model_memory memory[2];
    twin t[2];
    int i, n, layer;
    TEST("C5.1 what was never written does not matter");
    l[0] = l[1] = small_layer();
    l[1].window = 100;
    d = model_desc(l, 2, 2, 8);
    for (i = 0; i < 2; i++) {
        memset(&memory[i], 0, sizeof memory[i]);
        memory[i].fill = i ? 0xff : 0;
        d.hooks = model_memory_hooks(&memory[i]);
        if (!twin_make(&t[i], &d)) return;
        twin_open(&t[i]);
    }
    for (n = 1; n <= 700; n++) {
        float o[2][16], lse[2];
        for (i = 0; i < 2; i++) {
            CHECK(twin_step(&t[i], 0, 1, 0, 1) == OSCAR_OK);
            lse[i] = last_output(&t[i], 0, 5, o[i]);
        }
        CHECK(lse[1] == lse[1] && memcmp(o[0], o[1], sizeof o[0]) == 0 && memcmp(&lse[0], &lse[1], 4) == 0);
        if (n % 50 == 0) for (layer = 0; layer < 2; layer++) twin_attend(&t[1], 0, layer, 1, 2);
        if (n % 90 == 0) {                           /* pages come back with another owner's bytes */
            for (i = 0; i < 2; i++) {
                twin_open(&t[i]);
                twin_step(&t[i], 1, 350, 0, 4);
                twin_close(&t[i], 1);
                model_poison_free(t[i].cache, i ? 0xff : 0);
                CHECK(twin_cut(&t[i], 0, n - 20) == OSCAR_OK);
                model_poison_free(t[i].cache, i ? 0xff : 0);
                CHECK(twin_step(&t[i], 0, 20, 0, 1) == OSCAR_OK);
            }
        }
    }
    CHECK(twin_blobs_equal(&t[0], 0, &t[1], 0));
    for (i = 0; i < 2; i++) {
        twin_check_all(&t[i]);
        twin_destroy(&t[i]);
        CHECK(memory[i].bad == 0 && memory[i].count == 0);
    }
}

static void test_empty_parts(void)
{
    static const int lengths[14] = { 1, 63, 64, 65, 319, 320, 321, 322, 383, 384, 385, 447, 448, 449 };
    model_mixed x;
    oscar_cache_desc d;
    float o[16] = { 0 }, lse;
    oscar_view none = dense_view(o);
    oscar_out out = dense_out(o);
    oscar_batch b;
    twin t;
    int i, layer;
    TEST("C5.2 regions that are empty");
    model_mixed_init(&x, 2);
    d = model_desc(x.layer, 4, 1, 20);
    if (twin_make(&t, &d)) {
        for (i = 0; i < 14; i++) {
            twin_open(&t);
            if (lengths[i] < 100) twin_prefill(&t, 0, lengths[i], 1);
            else twin_step(&t, 0, lengths[i], 0, 1);
            for (layer = 0; layer < 4; layer++) twin_attend(&t, 0, layer, 1, 2);
            lse = last_output(&t, 0, 5, o);
            CHECK(lse - lse == 0 && o[0] - o[0] == 0);
            twin_close(&t, 0);
        }
        twin_open(&t);                               /* no token at all: no rows to attend, or an error */
        b.seq = t.m.seq[0].handle;
        b.row = 0;
        b.rows = 0;
        CHECK(oscar_attend(t.cache, 0, &b, 1, &none, NULL, &out, NULL) == OSCAR_OK);
        b.rows = 1;
        CHECK(oscar_attend(t.cache, 0, &b, 1, &none, NULL, &out, NULL) == OSCAR_ERR_ARGUMENT);
        twin_destroy(&t);
    }
    model_mixed_free(&x);
}

static void test_partial(void)
{
    static const int pages[2] = { 64, 128 };
    oscar_layer l[2];
    oscar_cache_desc d;
    model_memory memory;
    twin t;
    int i, k, off, layer;
    TEST("C5.3 one token more or less than whole pages, poison behind every window");
    l[0] = l[1] = small_layer();
    l[1].kv_heads = l[1].q_heads = 2;
    l[1].k_bits = 4;
    for (i = 0; i < 2; i++) {
        d = model_desc(l, 2, 1, 8);
        d.page_tokens = pages[i];
        memset(&memory, 0, sizeof memory);
        memory.fill = 0xff;
        d.hooks = model_memory_hooks(&memory);
        for (k = 0; k < 4; k++) for (off = -1; off <= 1; off++) {
            int n = 320 + k * pages[i] + off;
            if (!twin_make(&t, &d)) return;
            twin_open(&t);
            twin_step(&t, 0, n, 0, 1);
            CHECK(t.m.seq[0].h == (k - (off < 0 && k > 0)) * pages[i]);
            for (layer = 0; layer < 2; layer++) twin_attend(&t, 0, layer, off < 0 ? 257 : 1, 2);
            twin_check_all(&t);
            twin_destroy(&t);
        }
    }
}

static void test_sink_logit(void)
{
    static const float logits[4] = { 2, -3, 0, 40 };
    model_mixed x;
    oscar_cache_desc d;
    twin t;
    int layer;
    TEST("C5.4 the learned sink logit is one more key of value 0");
    model_mixed_init(&x, 2);
    d = model_desc(x.layer, 4, 2, 20);
    if (twin_make(&t, &d)) {
        uint64_t seeds[2] = { 1, 2 };
        twin_batch b;
        twin_open(&t);
        twin_open(&t);
        CHECK(twin_reserve(&t, 0, 40, 0) == OSCAR_OK);      /* prefill of an empty sequence */
        for (layer = 0; layer < 4; layer++) {
            b = twin_single(&t, 0, 40);
            CHECK(twin_attention(&t, layer, &b, seeds, seeds, logits) == OSCAR_OK);
        }
        twin_step(&t, 1, 500, 0, 1);
        for (layer = 0; layer < 4; layer++) {
            memset(&b, 0, sizeof b);
            twin_batch_add(&t, &b, 0, 3);
            twin_batch_add(&t, &b, 1, 2);
            CHECK(twin_attention(&t, layer, &b, seeds, NULL, logits) == OSCAR_OK);
        }
        twin_destroy(&t);
    }
    model_mixed_free(&x);
}

static void test_many(void)
{
    static const int lengths[8] = { 0, 1, 2000, 64, 777, 321, 1200, 384 };
    oscar_layer l = small_layer();
    oscar_cache_desc d = model_desc(&l, 1, 8, 90);
    float q[8 * 64], o[8 * 64], alone[8 * 64], lse[8], lse_alone[8];
    oscar_view view;
    oscar_out out, out_alone;
    oscar_batch b[8];
    twin t;
    int i, j;
    TEST("C5.8 eight sequences of mixed lengths equal their solo runs");
    l.k_dim = 64;
    for (i = 0; i < 8; i++) model_source(1, 0, 2, i, 0, 64, q + i * 64);
    view = dense_view(q);
    out = dense_out(o);
    out_alone = dense_out(alone);
    if (!twin_make(&t, &d)) return;
    for (i = 0; i < 8; i++) {
        twin_open(&t);
        if (lengths[i]) twin_step(&t, i, lengths[i], 0, (uint64_t)i);
        b[i].seq = t.m.seq[i].handle;
        b[i].row = i;
        b[i].rows = lengths[i] ? 1 : 0;
    }
    for (i = 0; i < 8 * 64; i++) o[i] = alone[i] = 7;
    CHECK(oscar_attend(t.cache, 0, b, 8, &view, NULL, &out, lse) == OSCAR_OK);
    for (i = 1; i < 8; i++) {
        CHECK(oscar_attend(t.cache, 0, &b[i], 1, &view, NULL, &out_alone, lse_alone) == OSCAR_OK);
        CHECK(lse[i] == lse_alone[i]);
        model_compare(&t.m, &t.m.seq[i], 0, q + i * 64, lengths[i] - 1, 1, INT64_MAX, NULL, NULL, NULL, o + i * 64,
                      lse + i);
    }
    CHECK(memcmp(o, alone, sizeof o) == 0);
    for (j = 0; j < 64; j++) CHECK(o[j] == 7);
    twin_destroy(&t);
}

/* 2,000 decode steps; the next q, k and v are made from the output. */
static void test_loop(void)
{
    enum { STEPS = 2000, D = 32 };
    oscar_layer l = small_layer();
    oscar_cache_desc d;
    test_random r = { 5 };
    double early = 0, late = 0;
    float k[D] = { 0 }, v[D] = { 0 }, q[D] = { 0 }, o[D], lse;
    oscar_view kv = dense_view(k), vv = dense_view(v), qv = dense_view(q);
    oscar_out out = dense_out(o);
    oscar_batch b;
    twin t;
    int i, c;
    TEST("C5.9 a closed loop of 2000 decode steps");
    l.k_dim = D;
    d = model_desc(&l, 1, 1, 40);
    if (!twin_make(&t, &d)) return;
    twin_open(&t);
    b.seq = t.m.seq[0].handle;
    b.row = 0;
    b.rows = 1;
    for (c = 0; c < D; c++) o[c] = (float)random_normal(&r);
    for (i = 0; i < STEPS; i++) {
        model_seq *s = &t.m.seq[0];
        double norm = 1e-6, error;
        for (c = 0; c < D; c++) norm += (double)o[c] * (double)o[c] / D;
        for (c = 0; c < D; c++) {
            double x = (double)o[c] / sqrt(norm), y = (double)o[(c + 5) % D] / sqrt(norm);
            k[c] = (float)(0.7 * x - 0.5 * y + random_normal(&r));
            v[c] = (float)(tanh(y) + 0.5 * random_normal(&r));
            q[c] = (float)(1.5 * y + 0.3 * random_normal(&r));
        }
        CHECK(oscar_cache_reserve(t.cache, b.seq, 1, 0) == OSCAR_OK);
        CHECK(model_reserve(&t.m, s, 1, 0) == OSCAR_OK);
        CHECK(oscar_append(t.cache, 0, &b, 1, &kv, &vv) == OSCAR_OK);
        model_append(&t.m, s, 0, k, v);
        CHECK(oscar_attend(t.cache, 0, &b, 1, &qv, NULL, &out, &lse) == OSCAR_OK);
        error = model_compare(&t.m, s, 0, q, i, 1, INT64_MAX, NULL, NULL, NULL, o, &lse);
        if (i < 500) early = fmax(early, error);
        if (i >= STEPS - 500) late = fmax(late, error);
    }
    CHECK_MSG(late <= 20 * early + 1e-7, ("    early %g late %g\n", early, late));
    twin_check_all(&t);
    twin_destroy(&t);
}

int main(void)
{
    CHECK(oscar_isa_force(OSCAR_ISA_SCALAR) == OSCAR_OK);
    test_exact_windows();
    test_first_token();
    test_chunking();
    test_growth();
    test_drafts();
    test_aborts();
    test_cuts();
    test_cut_cost();
    test_overflow();
    test_forks();
    test_fork_lengths();
    test_poison();
    test_empty_parts();
    test_partial();
    test_sink_logit();
    test_many();
    test_loop();
    return test_end("test_regions");
}
