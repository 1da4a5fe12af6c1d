/* test_hooks.c - allocator and log of the objects: contexts, sizes, alignment, failing calls, figures of memory, and
   what the log says about bad descs. */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "test.h"
#include "cache_model.h"

/* == CONTEXTS == */

static void test_contexts(void)
{
    model_memory memory[2];
    oscar_cache_desc d[2];
    oscar_footprint bytes[2];
    oscar_stats stats;
    model_mixed x;
    twin t[2];
    int i, j;
    TEST("C7.4 two caches in two arenas: one allocation each, sizes and alignment");
    model_mixed_init(&x, 1);
    for (i = 0; i < 2; i++) {
        memset(&memory[i], 0, sizeof memory[i]);
        memory[i].fill = 0xff;
        d[i] = model_desc(x.layer, i ? 2 : 4, 3, i ? 9 : 12);
        d[i].hooks = model_memory_hooks(&memory[i]);
        CHECK(oscar_cache_bytes(&d[i], 1000, &bytes[i]) == OSCAR_OK);
        CHECK(memory[i].calls == 0);
        if (!twin_create(&t[i], &d[i], (uint64_t)i)) return;
        CHECK(memory[i].calls == 1 && memory[i].count == 1);
        CHECK(memory[i].bytes == bytes[i].total);
        CHECK(bytes[i].total == bytes[i].pages + bytes[i].windows + bytes[i].rest);
        oscar_cache_stats(t[i].cache, &stats);
        CHECK(stats.bytes == bytes[i].total && stats.page_bytes == bytes[i].pages);
        CHECK(stats.window_bytes == bytes[i].windows && stats.pages == d[i].max_pages && stats.pages_used == 0);
    }
    for (j = 0; j < 3; j++) for (i = 0; i < 2; i++) twin_open(&t[i]);
    for (j = 0; j < 8; j++) for (i = 0; i < 2; i++) {
        twin_step(&t[i], j % 2, 70, 0, (uint64_t)j);
        twin_attend(&t[i], j % 2, j % 2, 1, 3);
    }
    for (i = 0; i < 2; i++) {
        twin_cut(&t[i], 0, 100);
        twin_check_all(&t[i]);
        CHECK(memory[i].calls == 1 && memory[i].logs == 0);      /* nothing else allocates, nothing is said */
    }
    twin_destroy(&t[0]);
    CHECK(memory[0].count == 0 && memory[0].bytes == 0 && memory[0].bad == 0);
    CHECK(memory[1].count == 1);
    twin_check_all(&t[1]);
    twin_destroy(&t[1]);
    CHECK(memory[1].count == 0 && memory[1].bad == 0);
    oscar_cache_destroy(NULL);
    model_mixed_free(&x);
}

/* The layers' pairs are copied: the caller's may change or go. */
static void test_copies(void)
{
    model_mixed x, y;
    oscar_cache_desc d;
    twin t;
    int i;
    TEST("layers and pairs are copied at create");
    model_mixed_init(&x, 1);
    model_mixed_init(&y, 1);
    d = model_desc(y.layer, 4, 1, 12);
    if (twin_create(&t, &d, 1)) {
        model_destroy(&t.m);
        d.layers = x.layer;
        model_create(&t.m, &d);               /* the model keeps pairs of its own */
        for (i = 0; i < 2; i++) memset(y.k1.to[i], 0, 16 * 16 * 4);
        for (i = 0; i < 2; i++) memset(y.k1.dual[i], 0xff, 16 * 16 * 4);
        for (i = 0; i < 2; i++) memset(y.k1.mean[i], 0xff, 16 * 4);
        memset(y.v3.to[0], 0xff, 48 * 48 * 4);
        memset(y.layer, 0xff, sizeof y.layer);
        memset(y.k1.pair, 0xff, sizeof y.k1.pair);
        twin_open(&t);
        twin_step(&t, 0, 500, 0, 1);
        for (i = 0; i < 4; i++) twin_attend(&t, 0, i, 1, 2);
        twin_cut(&t, 0, 200);
        twin_check_all(&t);
        twin_destroy(&t);
    }
    model_mixed_free(&x);
    model_mixed_free(&y);
}

/* == FAILING ALLOCATIONS == */

/* Everything that allocates, once. Returns the first error; all objects are gone at the end.
   long: one life. */
static oscar_result life(const oscar_hooks *hooks)
{
    enum { DIM = 16, TOKENS = 100 };
    float rows[TOKENS * DIM];
    oscar_layer l = small_layer();
    oscar_calib_desc cd;
    oscar_calib *calib = NULL, *other = NULL;
    oscar_rotations *rotations = NULL, *again = NULL, *made = NULL;
    oscar_cache *cache = NULL;
    oscar_pager *pager = NULL;
    oscar_cache_desc d = model_desc(&l, 1, 2, 4);
    oscar_pager_desc pd;
    oscar_chunk chunk;
    oscar_result result;
    unsigned char *file = NULL;
    size_t size = 0;
    int i;
    for (i = 0; i < TOKENS; i++) model_source(1, 0, 0, i, 0, DIM, rows + i * DIM);
    memset(&cd, 0, sizeof cd);
    memset(&pd, 0, sizeof pd);
    memset(&chunk, 0, sizeof chunk);
    cd.layers = &l;
    cd.layer_count = 1;
    cd.sums = OSCAR_SUM_Q | OSCAR_SUM_K;
    cd.weights = OSCAR_WEIGHTS_PLAIN;
    cd.hooks = *hooks;
    d.hooks = *hooks;
    pd.max_sequences = 2;
    pd.max_pages = 4;
    pd.hooks = *hooks;
    chunk.tokens = TOKENS;
    chunk.q.data = chunk.k.data = rows;
    result = oscar_calib_create(&cd, &calib);
    if (result == OSCAR_OK) result = oscar_calib_create(&cd, &other);
    if (result == OSCAR_OK) result = oscar_calib_add(calib, 0, &chunk);
    if (result == OSCAR_OK) result = oscar_calib_add(other, 0, &chunk);
    if (result == OSCAR_OK) result = oscar_calib_merge(calib, other);
    if (result == OSCAR_OK) result = oscar_calib_freeze_q(calib);
    if (result == OSCAR_OK) result = oscar_calib_solve(calib, NULL, &rotations);
    if (result == OSCAR_OK) result = oscar_rotations_write(rotations, NULL, 0, &size);
    if (result == OSCAR_OK) {
        file = (unsigned char *)model_get(size, 1);
        result = oscar_rotations_write(rotations, file, size, &size);
    }
    if (result == OSCAR_OK) result = oscar_rotations_read(file, size, hooks, &again);
    if (result == OSCAR_OK) result = oscar_rotations_create(&l, 1, NULL, hooks, &made);
    d.rotations = again;
    if (result == OSCAR_OK) result = oscar_pager_create(&pd, &pager);
    if (result == OSCAR_OK) result = oscar_cache_create(&d, &cache);
    if (result == OSCAR_OK) {
        oscar_seq seq;
        oscar_batch b;
        oscar_view view;
        memset(&view, 0, sizeof view);
        view.data = rows;
        result = oscar_cache_open(cache, &seq);
        if (result == OSCAR_OK) result = oscar_cache_reserve(cache, seq, TOKENS, 0);
        b.seq = seq;
        b.row = 0;
        b.rows = TOKENS;
        if (result == OSCAR_OK) result = oscar_append(cache, 0, &b, 1, &view, &view);
    }
    oscar_cache_destroy(cache);
    oscar_pager_destroy(pager);
    oscar_rotations_destroy(made);
    oscar_rotations_destroy(again);
    oscar_rotations_destroy(rotations);
    oscar_calib_destroy(other);
    oscar_calib_destroy(calib);
    free(file);
    return result;
}

static void test_failing(void)
{
    model_memory memory;
    oscar_hooks hooks = model_memory_hooks(&memory);
    int64_t total, n;
    TEST("C4.10 C7.4 the n-th allocation fails, for all n of a whole life");
    memset(&memory, 0, sizeof memory);
    memory.fill = 0xff;
    CHECK(life(&hooks) == OSCAR_OK);
    CHECK(memory.count == 0 && memory.bad == 0);
    total = memory.calls;
    CHECK(total >= 6 && total < 500);
    for (n = 1; n <= total; n++) {
        oscar_result result;
        memset(&memory, 0, sizeof memory);
        memory.fill = 0xff;
        memory.fail_at = n;
        result = life(&hooks);
        CHECK_MSG(result == OSCAR_ERR_MEMORY, ("    call %d: %s\n", (int)n, oscar_result_text(result)));
        CHECK_MSG(memory.code == OSCAR_ERR_MEMORY && memory.logs > 0, ("    call %d: no sentence\n", (int)n));
        CHECK_MSG(memory.count == 0 && memory.bad == 0, ("    call %d: %d blocks leak\n", (int)n, memory.count));
    }
    TEST("C4.10 create without memory leaves the output alone");
    {
        oscar_layer l = small_layer();
        oscar_cache_desc d = model_desc(&l, 1, 2, 4);
        oscar_cache *cache = (oscar_cache *)(void *)&memory;
        memset(&memory, 0, sizeof memory);
        memory.fail_at = 1;
        d.hooks = hooks;
        CHECK(oscar_cache_create(&d, &cache) == OSCAR_ERR_MEMORY);
        CHECK(cache == (oscar_cache *)(void *)&memory);
        memory.fail_at = 0;
        d.max_pages = 0xfffffffe;                 /* 2^32 pages: no memory, no overflow */
        CHECK(oscar_cache_create(&d, &cache) == OSCAR_ERR_MEMORY);
        CHECK(cache == (oscar_cache *)(void *)&memory && memory.count == 0);
        d.max_sequences = 0x7fffffff;
        d.sink = d.recent = 0x7fffffff;
        CHECK(oscar_cache_create(&d, &cache) == OSCAR_ERR_MEMORY);
        CHECK(memory.count == 0);
    }
}

/* == FIGURES OF MEMORY == */

/* long: the figures of one case. */
static void test_figures(void)
{
    static const struct { int dim, row_bytes; double held, owned; } expect[2] = {
        { 128, 36, 2.2836, 2.2903 }, { 64, 20, 2.5330, 2.5396 },
    };
    int i;
    for (i = 0; i < 2; i++) {
        oscar_layer l = small_layer();
        oscar_codec codec;
        oscar_cache_desc d;
        oscar_footprint f;
        oscar_layout layout;
        model_memory memory;
        oscar_cache *cache = NULL;
        double per_page;
        TEST(i ? "C10.3 bits a value: D = 64" : "C10.3 bits a value: D = 128");
        memset(&memory, 0, sizeof memory);
        memset(&codec, 0, sizeof codec);
        codec.fit = OSCAR_CLIP;
        codec.group = expect[i].dim;
        CHECK(oscar_row_bytes(&codec, expect[i].dim) == (size_t)expect[i].row_bytes);
        l.q_heads = l.kv_heads = 8;
        l.k_dim = l.k_group = l.v_group = expect[i].dim;
        l.k_fit = l.v_fit = OSCAR_CLIP;
        l.k_page_mean = -1;
        d = model_desc(&l, 1, 1, 2043);
        d.max_draft = -1;
        d.hooks = model_memory_hooks(&memory);
        CHECK(oscar_cache_bytes(&d, 131072, &f) == OSCAR_OK);
        CLOSE(f.held_bits, expect[i].held, 5.1e-5);
        CLOSE(f.owned_bits, expect[i].owned, 5.1e-5);
        CLOSE(f.exact_bits, 16, 0);
        CHECK(oscar_cache_create(&d, &cache) == OSCAR_OK);
        CHECK(memory.bytes == f.total && f.total == f.pages + f.windows + f.rest);
        CHECK(oscar_cache_layout(cache, 0, &layout) == OSCAR_OK);
        per_page = 2.0 * expect[i].dim * 8 * 64;
        CLOSE(8 * (double)layout.bytes / per_page, 8.0 * expect[i].row_bytes / expect[i].dim, 1e-12);
        CHECK(f.pages == 2043 * layout.bytes);
        CHECK(f.windows == (size_t)384 * 2 * 8 * (size_t)expect[i].dim * 2);      /* 64 + 256 + 64 rows owned */
        oscar_cache_destroy(cache);
        CHECK(memory.count == 0 && memory.bad == 0);
    }
    TEST("C10.3 the recommended settings at 131072 tokens");
    {
        oscar_layer l = small_layer();
        oscar_cache_desc d = model_desc(&l, 1, 1, 2043);
        oscar_footprint f;
        l.q_heads = l.kv_heads = 4;
        l.k_dim = 128;
        CHECK(oscar_cache_bytes(&d, 131072, &f) == OSCAR_OK);
        CLOSE(f.held_bits, 2.24, 0.005);          /* with page means; 2.16 without */
        l.k_page_mean = -1;
        CHECK(oscar_cache_bytes(&d, 131072, &f) == OSCAR_OK);
        CLOSE(f.held_bits, 2.16, 0.005);
        CHECK(oscar_cache_bytes(&d, 0, &f) == OSCAR_OK);
        CHECK(f.held_bits - f.held_bits == 0 && f.owned_bits - f.owned_bits == 0);
        CHECK(oscar_cache_bytes(&d, -1, &f) == OSCAR_ERR_ARGUMENT);
        CHECK(oscar_cache_bytes(&d, 1000, NULL) == OSCAR_ERR_ARGUMENT);
        CHECK(oscar_cache_bytes(NULL, 1000, &f) == OSCAR_ERR_ARGUMENT);
    }
}

/* == WHAT THE LOG SAYS == */

/* Spoils one thing; gives the result and a word that the log must have. Beyond the last: 0. */
static int spoil(int i, oscar_layer *l, oscar_cache_desc *d, oscar_pair *pair, oscar_result *expect, const char **word)
{
    *expect = OSCAR_ERR_SHAPE;
    switch (i) {
    case 0: l->k_dim = 100; *word = "k_dim"; break;
    case 1: l->k_dim = 0; *word = "k_dim"; break;
    case 2: l->k_dim = -4; *word = "k_dim"; break;
    case 3: l->k_dim = 1 << 20; *word = "k_dim"; break;
    case 4: l->v_dim = 8; *word = "v_dim"; break;
    case 5: l->kv_heads = 0; *word = "kv_heads"; break;
    case 6: l->q_heads = 33; l->kv_heads = 2; *word = "q_heads"; break;
    case 7: l->q_heads = 3; l->kv_heads = 2; *word = "q_heads"; break;
    case 8: l->q_heads = 1; l->kv_heads = 2; *word = "q_heads"; break;
    case 9: l->q_heads = 0; *word = "q_heads"; break;
    case 10: l->k_bits = 3; *word = "k_bits"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 11: l->v_bits = 8; *word = "v_bits"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 12: l->k_group = 24; *word = "k_group"; break;
    case 13: l->v_group = 48; *word = "v_group"; break;
    case 14: l->window = -2; *word = "window"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 15: l->softcap = (float)NAN; *word = "softcap"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 16: l->scale = (float)NAN; *word = "scale"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 17: l->k_clip = NAN; l->k_fit = OSCAR_CLIP; *word = "k_clip"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 18: l->k_fit = (oscar_fit)7; *word = "k_fit"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 19: pair->kind = OSCAR_DENSE; pair->dim = 32; l->k = pair; *word = "to"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 20: pair->dim = 16; l->v = pair; *word = "dim"; break;
    case 21: pair->dim = 32; pair->norm = -1; l->k = pair; *word = "norm"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 22: d->layer_count = 0; *word = "layer"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 23: d->layers = NULL; *word = "layer"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 24: d->max_sequences = 0; *word = "max_sequences"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 25: d->max_pages = -1; *word = "max_pages"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 26: d->max_pages = (int64_t)1 << 33; *word = "max_pages"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 27: d->max_tokens = -1; *word = "max_tokens"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 28: d->sink = -2; *word = "sink"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 29: d->recent = -2; *word = "recent"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 30: d->max_draft = -2; *word = "max_draft"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 31: d->page_tokens = 96; *word = "page_tokens"; break;
    case 32: d->page_tokens = -64; *word = "page_tokens"; break;
    case 33: d->window_type = (oscar_type)9; *word = "window_type"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 34: d->hooks.free = NULL; *word = "free"; *expect = OSCAR_ERR_ARGUMENT; break;
    case 35: d->hooks.alloc = NULL; *word = "alloc"; *expect = OSCAR_ERR_ARGUMENT; break;
    default: return 0;
    }
    return 1;
}

static void test_sentences(void)
{
    int i, j, which;
    TEST("C5.5 C4.3 every bad desc gets its code and a sentence that names the field");
    for (i = 0;; i++) {
        for (which = 0; which < 2; which++) {     /* create, then bytes */
            model_memory memory;
            oscar_layer l = small_layer();
            oscar_pair pair[2];
            oscar_cache_desc d;
            oscar_cache *cache = (oscar_cache *)(void *)&l;
            oscar_footprint f;
            oscar_result expect = OSCAR_OK, result;
            const char *word = "";
            memset(&memory, 0, sizeof memory);
            memset(pair, 0, sizeof pair);
            l.k_dim = 32;
            pair[1].dim = 32;
            d = model_desc(&l, 1, 2, 4);
            d.hooks = model_memory_hooks(&memory);
            if (!spoil(i, &l, &d, pair, &expect, &word)) { CHECK(i == 36); return; }
            f.total = 77;
            result = which ? oscar_cache_bytes(&d, 100, &f) : oscar_cache_create(&d, &cache);
            CHECK_MSG(result == expect, ("    case %d: %s\n", i, oscar_result_text(result)));
            CHECK_MSG(memory.logs > 0 && memory.code == result && memory.level == OSCAR_LOG_ERROR && memory.line > 0,
                      ("    case %d: %d logs\n", i, memory.logs));
            CHECK_MSG(strstr(memory.all, word) != NULL, ("    case %d: \"%s\"\n", i, memory.all));
            for (j = 0; memory.all[j]; j++) CHECK(memory.all[j] != '%');
            CHECK(memory.calls == 0 && f.total == 77 && cache == (oscar_cache *)(void *)&l);
        }
    }
}

static void test_null(void)
{
    oscar_layer l = small_layer();
    oscar_cache_desc d = model_desc(&l, 1, 1, 1);
    oscar_cache *cache = NULL;
    oscar_layout layout;
    oscar_seq seq;
    oscar_seq_state state;
    TEST("NULL objects and outputs are refused");
    CHECK(oscar_cache_create(NULL, &cache) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_create(&d, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_open(NULL, &seq) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_close(NULL, 1) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_get(NULL, 1, &state) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_fork(NULL, 1, 0, &seq) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_cut(NULL, 1, 0) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_reserve(NULL, 1, 1, 0) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_accept(NULL, 1, 1) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_abort(NULL, 1) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_can(NULL, 1, OSCAR_CAN_CUT, 1) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_check(NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_layout(NULL, 0, &layout) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_append(NULL, 0, NULL, 0, NULL, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fetch(NULL, 0, 1, 0, 1, NULL, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_attend(NULL, 0, NULL, 0, NULL, NULL, NULL, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_attend_part(NULL, 0, NULL, 0, NULL, 0, 1, NULL, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_prefill(NULL, 0, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL) == OSCAR_ERR_ARGUMENT);
    if (oscar_cache_create(&d, &cache) != OSCAR_OK) { CHECK(0); return; }
    CHECK(oscar_cache_open(cache, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_open(cache, &seq) == OSCAR_OK);
    CHECK(oscar_cache_get(cache, seq, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_fork(cache, seq, 0, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_layout(cache, 1, &layout) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_layout(cache, 0, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_can(cache, seq, (oscar_op)99, 0) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fetch(cache, 0, seq, 0, 1, NULL, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fetch(cache, 1, seq, 0, 0, NULL, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fetch(cache, 0, seq, -1, 0, NULL, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fetch(cache, 0, seq + 1, 0, 0, NULL, NULL) == OSCAR_ERR_HANDLE);
    CHECK(oscar_fetch(cache, 0, seq, 0, 0, NULL, NULL) == OSCAR_OK);
    CHECK(oscar_cache_check(cache) == OSCAR_OK);
    oscar_cache_destroy(cache);
}

int main(void)
{
    test_contexts();
    test_copies();
    test_failing();
    test_figures();
    test_sentences();
    test_null();
    return test_end("test_hooks");
}
