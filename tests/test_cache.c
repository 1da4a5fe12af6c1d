/* test_cache.c - the cache against its model: random operations, geometry, batches, errors, attention. */
#if !defined(_WIN32)
#  define _DEFAULT_SOURCE               /* MAP_ANONYMOUS */
#endif
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "test.h"
#include "cache_model.h"

#if !defined(_WIN32) && UINTPTR_MAX > 0xffffffffu
#  include <sys/mman.h>
#  define HAVE_MMAP 1
#else
#  define HAVE_MMAP 0
#endif

static oscar_layer simple_layer(int heads, int k_dim, int v_dim)
{
    oscar_layer l;
    memset(&l, 0, sizeof l);
    l.q_heads = l.kv_heads = heads;
    l.k_dim = k_dim;
    l.v_dim = v_dim;
    return l;
}

static oscar_batch entry(oscar_seq seq, int64_t row, int64_t rows)
{
    oscar_batch b;
    b.seq = seq;
    b.row = row;
    b.rows = rows;
    return b;
}

/* == RANDOM OPERATIONS == */

typedef struct saved { unsigned char *blob; size_t size; model_seq copy; } saved;

/* An open sequence at random, or -1. */
static int pick(twin *t)
{
    int i, open[MODEL_SEQS], count = 0;
    for (i = 0; i < t->m.max_sequences; i++) if (t->m.seq[i].open) open[count++] = i;
    return count ? open[random_below(&t->random, count)] : -1;
}

static int64_t random_rows(twin *t)
{
    int kind = random_below(&t->random, 10);
    return kind < 3 ? 1 : kind < 6 ? 1 + random_below(&t->random, 12) : 1 + random_below(&t->random, 150);
}

/* Rows of one random layer for some of the sequences that still owe it: appended, or prefilled. */
static void random_append(twin *t)
{
    twin_batch b;
    uint64_t seeds[2 * MODEL_SEQS];
    int layer = random_below(&t->random, t->m.layers), i, drafts = 0;
    memset(&b, 0, sizeof b);
    for (i = 0; i < t->m.max_sequences; i++) {
        const model_seq *s = &t->m.seq[i];
        int waits = s->open && (s->step == OSCAR_STEP_APPEND || s->step == OSCAR_STEP_DRAFT) && !s->appended[layer];
        if (!waits || random_below(&t->random, 4) == 0) continue;
        twin_batch_add(t, &b, i, s->rows);
        drafts = drafts || s->step == OSCAR_STEP_DRAFT;
    }
    for (i = 0; i < b.count; i++) seeds[i] = random_u32(&t->random);
    if (random_below(&t->random, 4)) CHECK(twin_append(t, layer, &b, seeds) == OSCAR_OK);
    else CHECK(twin_attention(t, layer, &b, seeds, seeds, NULL) == (drafts ? OSCAR_ERR_STATE : OSCAR_OK));
    for (i = 0; i < b.count; i++) if (b.slot[i] >= 0) twin_check_state(t, b.slot[i]);
}

/* Most rows of a sequence that oscar_attend takes for certain: each query sees all of history. */
static int64_t attend_rows(const twin *t, const model_seq *s, int layer)
{
    int64_t shown = model_shown_length(s, layer), history = model_shown_history(s, layer), rows = t->m.recent + 1;
    if (s->step == OSCAR_STEP_DRAFTED || s->step == OSCAR_STEP_DRAFT) rows = model_max(rows, s->rows);
    if (history) rows = model_min(rows, shown - t->m.sink - history + 1);
    return model_min(rows, shown);
}

static void random_attend(twin *t)
{
    twin_batch b;
    uint64_t seeds[2 * MODEL_SEQS];
    float logits[4];
    int layer = random_below(&t->random, t->m.layers), i, state = 0;
    oscar_result result;
    memset(&b, 0, sizeof b);
    for (i = 0; i < 4; i++) logits[i] = (float)random_normal(&t->random);
    for (i = 0; i < t->m.max_sequences; i++) {
        const model_seq *s = &t->m.seq[i];
        int64_t rows;
        int waits = (s->step == OSCAR_STEP_APPEND || s->step == OSCAR_STEP_DRAFT) && !s->appended[layer];
        if (!s->open || random_below(&t->random, 3) == 0) continue;
        if (waits && random_below(&t->random, 20)) continue;
        rows = attend_rows(t, s, layer);
        if (rows < 1) continue;
        state = state || waits;
        twin_batch_add(t, &b, i, 1 + random_below(&t->random, (int)model_min(rows, 9)));
    }
    for (i = 0; i < b.count; i++) seeds[i] = random_u32(&t->random);
    result = twin_attention(t, layer, &b, seeds, NULL, random_below(&t->random, 2) ? logits : NULL);
    CHECK(result == (state ? OSCAR_ERR_STATE : OSCAR_OK));
}

/* Calls that must be refused and change nothing. */
static void random_refused(twin *t)
{
    int slot = pick(t);
    const model_seq *s;
    oscar_seq handle = 0;
    oscar_view none = dense_view(NULL);
    oscar_batch b;
    if (slot < 0) return;
    s = &t->m.seq[slot];
    CHECK(oscar_cache_cut(t->cache, s->handle + ((oscar_seq)1 << 32), 0) == OSCAR_ERR_HANDLE);
    CHECK(oscar_cache_cut(t->cache, 0, 0) == OSCAR_ERR_HANDLE);
    twin_cut(t, slot, s->n + 1 + random_below(&t->random, 3));
    twin_cut(t, slot, -1);
    CHECK(twin_fork(t, slot, s->n + 1) < 0);
    CHECK(twin_reserve(t, slot, 0, 0) != OSCAR_OK);
    CHECK(twin_reserve(t, slot, t->m.max_draft + 1, 1) != OSCAR_OK);
    if (s->step != OSCAR_STEP_DRAFTED) twin_accept(t, slot, 0);
    else { twin_accept(t, slot, -1); twin_accept(t, slot, s->rows + 1); }
    if (s->step == OSCAR_STEP_NONE) {
        twin_abort(t, slot);
        b = entry(s->handle, 0, 1);
        CHECK(oscar_append(t->cache, 0, &b, 1, &none, &none) != OSCAR_OK);
    } else CHECK(oscar_cache_restore(t->cache, NULL, 0, &handle) != OSCAR_OK);
}

/* Appends what the layers of one sequence still owe. */
static void random_finish(twin *t, int slot)
{
    const model_seq *s = &t->m.seq[slot];
    int i;
    for (i = t->m.layers - 1; i >= 0 && (s->step == OSCAR_STEP_APPEND || s->step == OSCAR_STEP_DRAFT); i--) {
        uint64_t seeds[2 * MODEL_SEQS];
        twin_batch b;
        if (s->appended[i]) continue;
        b = twin_single(t, slot, s->rows);
        twin_seeds(&b, random_u32(&t->random), seeds);
        CHECK(twin_append(t, i, &b, seeds) == OSCAR_OK);
    }
}

static void random_reserve(twin *t, int slot)
{
    int drafts = t->m.max_draft ? t->m.max_draft : 1;
    if (random_below(&t->random, 3)) twin_reserve(t, slot, random_rows(t), 0);
    else twin_reserve(t, slot, 1 + random_below(&t->random, drafts), 1);
}

/* The next call of a sequence that has this step. */
static void random_step(twin *t, int slot)
{
    const model_seq *s = &t->m.seq[slot];
    int what = random_below(&t->random, 10);
    if (s->step == OSCAR_STEP_NONE) random_reserve(t, slot);
    else if (what < 2) twin_abort(t, slot);
    else if (s->step == OSCAR_STEP_DRAFTED)
        twin_accept(t, slot, what < 5 ? s->rows : random_below(&t->random, (int)s->rows + 1));
    else if (what < 6) random_append(t);
    else random_finish(t, slot);
}

/* Mostly ends the step of a sequence, so that it may be forked, cut and saved. */
static void random_idle(twin *t, int slot)
{
    if (random_below(&t->random, 8) == 0) return;
    random_finish(t, slot);
    if (t->m.seq[slot].step == OSCAR_STEP_DRAFTED) twin_accept(t, slot, t->m.seq[slot].rows);
}

static int64_t random_length(twin *t, int64_t n)
{
    if (random_below(&t->random, 2)) return random_below(&t->random, (int)n + 1);
    return model_max(0, n - random_below(&t->random, 90));
}

static void random_save(twin *t, saved *store)
{
    int slot = pick(t);
    saved now;
    if (slot < 0) return;
    random_idle(t, slot);
    now.blob = twin_save(t, slot, &now.size);
    if (!now.blob) return;
    if (store->blob) { free(store->blob); model_seq_free(&t->m, &store->copy); }
    model_copy(&t->m, &t->m.seq[slot], &now.copy, 0, 0);
    *store = now;
}

static void random_operation(twin *t, saved *store)
{
    int slot = pick(t), what = random_below(&t->random, 100), other;
    if (slot < 0 || what < 3) slot = twin_open(t);
    else if (what < 66) random_step(t, slot);
    else if (what < 74) random_attend(t);
    else if (what < 81) {
        random_idle(t, slot);
        other = twin_fork(t, slot, random_length(t, t->m.seq[slot].n));
        if (other >= 0) twin_check(t, other);
    } else if (what < 87) {
        random_idle(t, slot);
        twin_cut(t, slot, random_length(t, t->m.seq[slot].n));
    }
    else if (what < 92) { twin_close(t, slot); slot = -1; }
    else if (what < 95) random_save(t, store);
    else if (what < 98) {
        if (store->blob) slot = twin_restore(t, store->blob, store->size, &store->copy);
    } else random_refused(t);
    if (slot >= 0) twin_check(t, slot);
    twin_check_cache(t);
}

/* The mixed layers with settings that depend on the seed. */
static void random_run(uint64_t seed, int operations)
{
    static const oscar_type types[] = { OSCAR_TYPE_DEFAULT, OSCAR_F32, OSCAR_F16 };
    model_mixed x;
    oscar_cache_desc d;
    twin t;
    saved store;
    int i;
    memset(&store, 0, sizeof store);
    model_mixed_init(&x, seed);
    if (seed % 2) { x.layer[0].k_page_mean = -1; x.layer[0].k_group = 16; x.layer[1].k_page_mean = -1; }
    d = model_desc(x.layer, 1 + (int)(seed % 4), 4, 16);
    d.sink = seed % 3 == 0 ? -1 : seed % 3 == 1 ? 5 : 64;
    d.recent = seed % 5 == 0 ? -1 : seed % 5 == 1 ? 1 : 40;
    d.max_draft = seed % 7 == 0 ? -1 : seed % 7 < 3 ? 70 : 20;
    d.page_tokens = seed % 4 == 3 ? 128 : 64;
    d.window_type = types[seed % 3];
    if (twin_create(&t, &d, seed)) {
        for (i = 0; i < operations && !test_state.failed_now; i++) {
            random_operation(&t, &store);
            if (i % 50 == 0) twin_check_all(&t);
            CHECK_MSG(!test_state.failed_now, ("    seed %d operation %d\n", (int)seed, i));
        }
        twin_check_all(&t);
        for (i = 0; i < t.m.max_sequences; i++) if (t.m.seq[i].open) twin_close(&t, i);
        CHECK(t.m.pages_used == 0);
        twin_check_cache(&t);
        free(store.blob);
        model_seq_free(&t.m, &store.copy);
        twin_destroy(&t);
    }
    model_mixed_free(&x);
}

static void test_random_operations(void)
{
    uint64_t seed;
    TEST("C4.16 random operations equal the model, scalar");
    CHECK(oscar_isa_force(OSCAR_ISA_SCALAR) == OSCAR_OK);
    for (seed = 1; seed <= 20 && !test_state.failed_now; seed++) random_run(seed, 250);
    TEST("C4.16 random operations equal the model, best instruction set");
    CHECK(oscar_isa_force(OSCAR_ISA_AUTO) == OSCAR_OK);
    for (seed = 21; seed <= 24 && !test_state.failed_now; seed++) random_run(seed, 200);
    oscar_isa_force(OSCAR_ISA_SCALAR);
}

/* == GEOMETRY == */

static void test_shapes(void)
{
    static const int dims[][2] = { { 192, 128 }, { 128, 64 }, { 16, 80 } };
    oscar_layer l[2];
    oscar_cache_desc d;
    oscar_footprint both, one;
    twin t;
    size_t i;
    int layer;
    TEST("C4.1 K and V of different head size");
    for (i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        l[0] = simple_layer(2, dims[i][0], dims[i][1]);
        l[0].q_heads = 4;
        d = model_desc(l, 1, 1, 8);
        if (!twin_create(&t, &d, i)) continue;
        twin_open(&t);
        twin_prefill(&t, 0, 10, 5);
        twin_step(&t, 0, 490, 0, 5);
        twin_check(&t, 0);
        CHECK(t.m.seq[0].h == 128);
        twin_attend(&t, 0, 0, 3, 9);
        twin_destroy(&t);
    }

    TEST("C4.2 layers of different geometry in one cache");
    l[0] = simple_layer(8, 256, 0);
    l[0].window = 512;
    l[1] = simple_layer(1, 512, 0);
    d = model_desc(l, 2, 1, 24);
    if (twin_create(&t, &d, 7)) {
        twin_open(&t);
        twin_step(&t, 0, 1500, 0, 5);
        for (layer = 0; layer < 2; layer++) twin_attend(&t, 0, layer, 1, 9);
        twin_check_state(&t, 0);
        for (layer = 0; layer < 2; layer++) twin_check_rows(&t, 0, layer, 0, 1500);
        twin_destroy(&t);
    }
    CHECK(oscar_cache_bytes(&d, 1500, &both) == OSCAR_OK);
    for (layer = 0; layer < 2; layer++) {
        d.layers = l + layer;
        d.layer_count = 1;
        CHECK(oscar_cache_bytes(&d, 1500, &one) == OSCAR_OK);
        both.pages -= one.pages;
        both.windows -= one.windows;
    }
    CHECK(both.pages == 0 && both.windows == 0);
}

static void test_exact_layers(void)
{
    oscar_layer l[6];
    oscar_cache_desc d;
    oscar_footprint mixed, two;
    twin t;
    int i, x;
    TEST("C4.21 layers that stay in the window type");
    for (i = 0; i < 6; i++) l[i] = simple_layer(2, 16, 0);
    d = model_desc(l, 6, 1, 12);
    CHECK(oscar_cache_bytes(&d, 700, &two) == OSCAR_OK);
    l[0].k_bits = l[0].v_bits = l[5].k_bits = l[5].v_bits = 16;
    CHECK(oscar_cache_bytes(&d, 700, &mixed) == OSCAR_OK);
    /* 320 window tokens of 700, the others in pages; held bits are the mean over the layers */
    CHECK(mixed.held_bits > two.held_bits && mixed.pages > two.pages && mixed.windows == two.windows);
    CLOSE(mixed.held_bits, (two.held_bits * 4 + 16 * 2) / 6, 1e-9);
    if (!twin_create(&t, &d, 3)) return;
    t.plain = 1;
    twin_open(&t);
    twin_step(&t, 0, 700, 0, 77);
    twin_check(&t, 0);
    for (i = 0; i < 6; i += 5) {
        for (x = 0; x < 700; x++) {     /* bit for bit the rows that went in */
            float in[2][32];
            int h;
            for (h = 0; h < 2; h++) model_source(77, i, 0, x, h, 16, in[0] + 16 * h);
            model_round(OSCAR_BF16, in[0], 32, in[0]);
            for (h = 0; h < 2; h++) memcpy(in[1] + 16 * h, model_row(&t.m, &t.m.seq[0], i, 0, x, h), 64);
            CHECK(memcmp(in[0], in[1], sizeof in[0]) == 0);
        }
        twin_attend(&t, 0, i, 4, 5);
    }
    twin_destroy(&t);
}

/* == FULL POOLS, ASKING FIRST == */

static void test_full(void)
{
    oscar_layer l = simple_layer(1, 16, 0);
    oscar_cache_desc d = model_desc(&l, 1, 8, 2);
    model_memory memory;
    twin t;
    uint64_t sum;
    TEST("C4.9 out of pages while sequences are free, and the reverse");
    memset(&memory, 0, sizeof memory);
    d.hooks = model_memory_hooks(&memory);
    if (twin_create(&t, &d, 1)) {
        twin_open(&t);
        CHECK(twin_step(&t, 0, 511, 0, 1) == OSCAR_OK);
        sum = model_state(t.cache);
        CHECK(twin_reserve(&t, 0, 1, 0) == OSCAR_ERR_FULL);
        CHECK(memory.code == OSCAR_ERR_FULL && strstr(memory.text, "page"));
        CHECK(model_state(t.cache) == sum);
        CHECK(twin_open(&t) == 1);
        CHECK(twin_step(&t, 1, 320, 0, 2) == OSCAR_OK);
        CHECK(twin_step(&t, 1, 64, 0, 2) == OSCAR_ERR_FULL);
        CHECK(twin_reserve(&t, 0, 5, 1) == OSCAR_ERR_FULL);        /* drafts set their pages aside, too */
        twin_check_all(&t);
        twin_close(&t, 0);
        CHECK(twin_step(&t, 1, 64, 0, 2) == OSCAR_OK);
        twin_check_all(&t);
        twin_destroy(&t);
    }
    d.max_sequences = 1;
    d.max_pages = 50;
    if (twin_create(&t, &d, 1)) {
        CHECK(twin_open(&t) == 0);
        CHECK(twin_open(&t) == -1);
        CHECK(memory.code == OSCAR_ERR_FULL && strstr(memory.text, "sequence"));
        CHECK(twin_step(&t, 0, 1000, 0, 1) == OSCAR_OK);
        CHECK(twin_fork(&t, 0, 900) == -1);
        twin_check_all(&t);
        twin_destroy(&t);
    }
    CHECK(memory.bad == 0 && memory.count == 0);
}

static void test_rollback(void)
{
    oscar_layer l = simple_layer(1, 16, 0);
    oscar_cache_desc d = model_desc(&l, 1, 3, 4);
    twin t;
    uint64_t sum;
    TEST("C4.10 a reserve that does not fit leaves no trace");
    if (twin_create(&t, &d, 1)) {
        twin_open(&t);
        sum = model_state(t.cache);
        CHECK(twin_reserve(&t, 0, 320 + 5 * 64, 0) == OSCAR_ERR_FULL);
        CHECK(twin_reserve(&t, 0, (int64_t)1 << 40, 0) == OSCAR_ERR_FULL);
        CHECK(oscar_cache_reserve(t.cache, t.m.seq[0].handle, INT64_MAX, 0) == OSCAR_ERR_FULL);
        CHECK(model_state(t.cache) == sum);
        CHECK(twin_step(&t, 0, 320 + 4 * 64, 0, 1) == OSCAR_OK);
        twin_check_all(&t);
        twin_destroy(&t);
    }
    d.max_pages = 5;
    if (twin_create(&t, &d, 2)) {
        twin_open(&t);
        CHECK(twin_step(&t, 0, 320 + 2 * 64, 0, 1) == OSCAR_OK);
        twin_open(&t);
        sum = model_state(t.cache);
        CHECK(twin_step(&t, 1, 320 + 5 * 64, 0, 2) == OSCAR_ERR_FULL);
        CHECK(twin_step(&t, 0, 5 * 64, 0, 2) == OSCAR_ERR_FULL);
        CHECK(model_state(t.cache) == sum);
        CHECK(t.m.pages_used == 2);
        twin_check_all(&t);
        CHECK(twin_step(&t, 0, 100, 0, 2) == OSCAR_OK);
        CHECK(twin_step(&t, 1, 320 + 64, 0, 2) == OSCAR_OK);
        twin_check_all(&t);
        twin_destroy(&t);
    }
}

static oscar_result operate(oscar_cache *cache, oscar_seq seq, oscar_op op, int64_t arg)
{
    oscar_seq out;
    size_t size;
    switch (op) {
    case OSCAR_CAN_RESERVE: return oscar_cache_reserve(cache, seq, arg, 0);
    case OSCAR_CAN_DRAFT: return oscar_cache_reserve(cache, seq, arg, 1);
    case OSCAR_CAN_ACCEPT: return oscar_cache_accept(cache, seq, arg);
    case OSCAR_CAN_CUT: return oscar_cache_cut(cache, seq, arg);
    case OSCAR_CAN_FORK: return oscar_cache_fork(cache, seq, arg, &out);
    case OSCAR_CAN_SAVE: return oscar_cache_save(cache, seq, NULL, 0, &size);
    case OSCAR_CAN_SHIFT: break;
    }
    return OSCAR_ERR_UNSUPPORTED;
}

/* states: 0 n = 400 without a step, 1 a step of 5, 2 a step appended in one of two layers, 3 drafts not yet appended,
   4 drafts waiting, 5 closed, 6 as 0 with every sequence open, 7 as 0 with no page free. long: a table. */
static void test_asking(void)
{
    static const struct { int state; oscar_op op; int64_t arg; oscar_result expect; } table[] = {
        { 0, OSCAR_CAN_RESERVE, 1, OSCAR_OK },            { 0, OSCAR_CAN_RESERVE, 0, OSCAR_ERR_ARGUMENT },
        { 0, OSCAR_CAN_RESERVE, -1, OSCAR_ERR_ARGUMENT }, { 0, OSCAR_CAN_RESERVE, 100000, OSCAR_ERR_FULL },
        { 0, OSCAR_CAN_DRAFT, 16, OSCAR_OK },             { 0, OSCAR_CAN_DRAFT, 17, OSCAR_ERR_ARGUMENT },
        { 0, OSCAR_CAN_ACCEPT, 0, OSCAR_ERR_STATE },      { 0, OSCAR_CAN_CUT, 400, OSCAR_OK },
        { 0, OSCAR_CAN_CUT, 401, OSCAR_ERR_ARGUMENT },    { 0, OSCAR_CAN_CUT, -1, OSCAR_ERR_ARGUMENT },
        { 0, OSCAR_CAN_CUT, 0, OSCAR_OK },                { 0, OSCAR_CAN_CUT, 100, OSCAR_OK },
        { 0, OSCAR_CAN_FORK, 0, OSCAR_OK },               { 0, OSCAR_CAN_FORK, 100, OSCAR_OK },
        { 0, OSCAR_CAN_FORK, 401, OSCAR_ERR_ARGUMENT },   { 0, OSCAR_CAN_SAVE, 0, OSCAR_OK },
        { 0, OSCAR_CAN_SHIFT, 10, OSCAR_ERR_UNSUPPORTED },
        { 1, OSCAR_CAN_RESERVE, 1, OSCAR_ERR_STATE },     { 1, OSCAR_CAN_DRAFT, 1, OSCAR_ERR_STATE },
        { 1, OSCAR_CAN_ACCEPT, 1, OSCAR_ERR_STATE },      { 1, OSCAR_CAN_CUT, 10, OSCAR_ERR_STATE },
        { 1, OSCAR_CAN_FORK, 10, OSCAR_ERR_STATE },       { 1, OSCAR_CAN_SAVE, 0, OSCAR_ERR_STATE },
        { 2, OSCAR_CAN_CUT, 10, OSCAR_ERR_STATE },        { 2, OSCAR_CAN_SAVE, 0, OSCAR_ERR_STATE },
        { 3, OSCAR_CAN_ACCEPT, 1, OSCAR_ERR_STATE },      { 3, OSCAR_CAN_CUT, 10, OSCAR_ERR_STATE },
        { 4, OSCAR_CAN_ACCEPT, 5, OSCAR_OK },             { 4, OSCAR_CAN_ACCEPT, 0, OSCAR_OK },
        { 4, OSCAR_CAN_ACCEPT, 6, OSCAR_ERR_ARGUMENT },   { 4, OSCAR_CAN_ACCEPT, -1, OSCAR_ERR_ARGUMENT },
        { 4, OSCAR_CAN_RESERVE, 1, OSCAR_ERR_STATE },     { 4, OSCAR_CAN_CUT, 10, OSCAR_ERR_STATE },
        { 4, OSCAR_CAN_FORK, 10, OSCAR_ERR_STATE },       { 4, OSCAR_CAN_SAVE, 0, OSCAR_ERR_STATE },
        { 4, OSCAR_CAN_SHIFT, 1, OSCAR_ERR_UNSUPPORTED },
        { 5, OSCAR_CAN_RESERVE, 1, OSCAR_ERR_HANDLE },    { 5, OSCAR_CAN_CUT, 0, OSCAR_ERR_HANDLE },
        { 5, OSCAR_CAN_FORK, 0, OSCAR_ERR_HANDLE },       { 5, OSCAR_CAN_SAVE, 0, OSCAR_ERR_HANDLE },
        { 6, OSCAR_CAN_FORK, 10, OSCAR_ERR_FULL },        { 6, OSCAR_CAN_RESERVE, 1, OSCAR_OK },
        { 7, OSCAR_CAN_RESERVE, 64, OSCAR_ERR_FULL },     { 7, OSCAR_CAN_RESERVE, 47, OSCAR_OK },
        { 7, OSCAR_CAN_FORK, 10, OSCAR_OK },
    };
    oscar_layer l[2];
    oscar_cache_desc d;
    size_t i;
    TEST("C4.18 asking before acting");
    l[0] = l[1] = simple_layer(1, 16, 0);
    d = model_desc(l, 2, 3, 3);
    for (i = 0; i < sizeof table / sizeof table[0]; i++) {
        model_memory memory;
        twin t;
        int state = table[i].state;
        oscar_seq handle;
        oscar_result can, done;
        memset(&memory, 0, sizeof memory);
        d.hooks = model_memory_hooks(&memory);
        if (!twin_create(&t, &d, i)) return;
        t.plain = 1;
        twin_open(&t);
        twin_step(&t, 0, 400, 0, 1);
        handle = t.m.seq[0].handle;
        if (state == 1) twin_reserve(&t, 0, 5, 0);
        if (state == 2) {
            twin_batch b = twin_single(&t, 0, 5);
            uint64_t seed = 3;
            twin_reserve(&t, 0, 5, 0);
            twin_append(&t, 1, &b, &seed);
        }
        if (state == 3) twin_reserve(&t, 0, 5, 1);
        if (state == 4) twin_step(&t, 0, 5, 1, 1);
        if (state == 5) twin_close(&t, 0);
        if (state == 6) { twin_open(&t); twin_open(&t); }
        if (state == 7) { twin_open(&t); twin_step(&t, 1, 320 + 128, 0, 1); }
        memory.logs = 0;
        can = oscar_cache_can(t.cache, handle, table[i].op, table[i].arg);
        CHECK(memory.logs == 0);
        done = operate(t.cache, handle, table[i].op, table[i].arg);
        CHECK_MSG(can == table[i].expect && done == table[i].expect,
                  ("    row %d: can %s, did %s\n", (int)i, oscar_result_text(can), oscar_result_text(done)));
        CHECK(done == OSCAR_OK || done == OSCAR_ERR_UNSUPPORTED || (memory.logs == 1 && memory.code == done));
        CHECK(oscar_cache_check(t.cache) == OSCAR_OK);
        twin_destroy(&t);
    }
}

static void test_shift(void)
{
    oscar_layer l = simple_layer(1, 16, 0);
    oscar_cache_desc d = model_desc(&l, 1, 1, 4);
    twin t;
    uint64_t sum;
    TEST("C4.17 positions of stored keys cannot be shifted");
    if (!twin_create(&t, &d, 1)) return;
    twin_open(&t);
    twin_step(&t, 0, 450, 0, 1);
    sum = model_state(t.cache);
    CHECK(oscar_cache_can(t.cache, t.m.seq[0].handle, OSCAR_CAN_SHIFT, -100) == OSCAR_ERR_UNSUPPORTED);
    CHECK(oscar_cache_can(t.cache, t.m.seq[0].handle, OSCAR_CAN_SHIFT, 0) == OSCAR_ERR_UNSUPPORTED);
    CHECK(model_state(t.cache) == sum);
    twin_check(&t, 0);
    twin_destroy(&t);
}

/* == BATCHES == */

/* Rows of sequence `seed` from position `first` for one layer, in place. */
static void put_rows(const oscar_layer *l, uint64_t seed, int side, int64_t first, int rows, float *out)
{
    int heads = side == 2 ? l->q_heads : l->kv_heads, dim = side == 1 && l->v_dim ? l->v_dim : l->k_dim, i, h;
    for (i = 0; i < rows; i++) for (h = 0; h < heads; h++)
        model_source(seed, 0, side, first + i, h, dim, out + (i * heads + h) * dim);
}

/* Three sequences with histories of 0, 400 and 700 tokens; a step of 5, 1 and 0 rows in views padded to 5. */
static void ragged_run(int prefill)
{
    enum { HEADS = 2, DIM = 16, ROW = HEADS * DIM };
    static const int64_t before[3] = { 0, 400, 700 };
    static const int rows[3] = { 5, 1, 0 };
    oscar_layer l = simple_layer(HEADS, DIM, 0);
    oscar_cache_desc d = model_desc(&l, 1, 3, 12);
    float in[3][15 * ROW], o[2][15 * ROW], lse[2][15 * HEADS];      /* together, alone */
    oscar_view view[3];
    oscar_out out[2];
    twin t[2];
    oscar_batch b[3];
    int i, e, side;
    for (side = 0; side < 3; side++) {
        for (i = 0; i < 15 * ROW; i++) in[side][i] = (float)NAN;
        view[side] = dense_view(in[side]);
    }
    for (i = 0; i < 2; i++) {
        out[i] = dense_out(o[i]);
        if (!twin_create(&t[i], &d, 1)) return;
        t[i].plain = 1;
        for (e = 0; e < 3; e++) {
            twin_open(&t[i]);
            if (before[e]) twin_step(&t[i], e, before[e], 0, (uint64_t)e);
            if (rows[e]) CHECK(oscar_cache_reserve(t[i].cache, t[i].m.seq[e].handle, rows[e], 0) == OSCAR_OK);
        }
    }
    for (e = 0; e < 3; e++) {
        for (side = 0; side < 3; side++) put_rows(&l, (uint64_t)e, side, before[e], rows[e], in[side] + 5 * e * ROW);
        b[e] = entry(rows[e] ? t[0].m.seq[e].handle : 0, 5 * e, rows[e] ? rows[e] : 5);
    }
    for (e = -1; e < 2; e++) {      /* -1: the batch, then each alone */
        oscar_batch one = entry(e < 0 ? 0 : t[1].m.seq[e].handle, 5 * e, e < 0 ? 0 : rows[e]);
        oscar_batch *entries = e < 0 ? b : &one;
        oscar_cache *cache = t[e >= 0].cache;
        int count = e < 0 ? 3 : 1, x = e >= 0;
        if (prefill) {
            CHECK(oscar_prefill(cache, 0, entries, count, &view[2], &view[0], &view[1], NULL, &out[x], lse[x])
                  == OSCAR_OK);
            continue;
        }
        CHECK(oscar_append(cache, 0, entries, count, &view[0], &view[1]) == OSCAR_OK);
        CHECK(oscar_attend(cache, 0, entries, count, &view[2], NULL, &out[x], lse[x]) == OSCAR_OK);
    }
    for (e = 0; e < 3; e++) {
        int at = 5 * e, n = rows[e];
        if (n) CHECK(memcmp(o[0] + at * ROW, o[1] + at * ROW, (size_t)(n * ROW) * 4) == 0);
        if (n) CHECK(memcmp(lse[0] + at * HEADS, lse[1] + at * HEADS, (size_t)(n * HEADS) * 4) == 0);
        CHECK(twin_blobs_equal(&t[0], e, &t[1], e));
    }
    for (i = 10 * ROW; i < 15 * ROW; i++) CHECK(o[0][i] == 0);
    for (i = 10 * HEADS; i < 15 * HEADS; i++) CHECK(lse[0][i] == -HUGE_VALF);
    twin_destroy(&t[0]);
    twin_destroy(&t[1]);
}

static void test_ragged(void)
{
    TEST("C4.19 ragged and padded batches equal solo runs: append and attend");
    ragged_run(0);
    TEST("C4.19 ragged and padded batches equal solo runs: prefill");
    ragged_run(1);
}

static void test_padding(void)
{
    enum { ROW = 16 };
    oscar_layer l = simple_layer(1, ROW, 0);
    oscar_cache_desc d = model_desc(&l, 1, 3, 12);
    float k[8 * ROW], o[8 * ROW], lse[8], part_o[8 * ROW], part_lse[8];
    oscar_view view;
    oscar_out out;
    oscar_batch b[2];
    twin t;
    uint64_t sum;
    int i, part;
    TEST("C4.20 padding rows write nothing");
    for (i = 0; i < 8 * ROW; i++) { k[i] = (float)NAN; o[i] = 7; }
    view = dense_view(k);
    out = dense_out(o);
    if (!twin_create(&t, &d, 1)) return;
    twin_open(&t);
    twin_step(&t, 0, 500, 0, 1);
    sum = model_state(t.cache);
    b[0] = entry(0, 1, 3);
    b[1] = entry(0, 6, 2);
    CHECK(oscar_append(t.cache, 0, b, 2, &view, &view) == OSCAR_OK);
    CHECK(oscar_attend(t.cache, 0, b, 2, &view, NULL, &out, lse) == OSCAR_OK);
    for (i = 0; i < 8; i++) {
        int padding = (i >= 1 && i < 4) || i >= 6;
        CHECK(o[i * ROW] == (padding ? 0.0f : 7.0f) && o[i * ROW + ROW - 1] == o[i * ROW]);
        if (padding) CHECK(lse[i] == -HUGE_VALF);
    }
    for (i = 0; i < 8 * ROW; i++) o[i] = 7;
    CHECK(oscar_prefill(t.cache, 0, b, 2, &view, &view, &view, NULL, &out, lse) == OSCAR_OK);
    for (i = 0; i < 8; i++) CHECK(o[i * ROW] == (((i >= 1 && i < 4) || i >= 6) ? 0.0f : 7.0f));
    for (part = 0; part < 3; part++) {
        CHECK(oscar_attend_part(t.cache, 0, b, 2, &view, part, 3, part_o, part_lse) == OSCAR_OK);
        for (i = 0; i < 8; i++)
            if ((i >= 1 && i < 4) || i >= 6) CHECK(part_o[i * ROW] == 0 && part_lse[i] == -HUGE_VALF);
    }
    CHECK(model_state(t.cache) == sum);
    CHECK(oscar_append(t.cache, 0, b, 0, &view, &view) == OSCAR_OK);       /* an empty batch */
    twin_check_all(&t);
    twin_destroy(&t);
}

/* == MEMORY == */

static void test_scratch(void)
{
    enum { TOKENS = 32768, DIM = 64 };
    oscar_layer l = simple_layer(1, DIM, 0);
    oscar_cache_desc d = model_desc(&l, 1, 1, TOKENS / 64);
    model_memory memory;
    oscar_footprint bytes;
    oscar_cache *cache = NULL;
    oscar_seq seq = 0;
    float *rows = (float *)model_get((size_t)TOKENS * DIM, sizeof(float));
    oscar_view view = dense_view(rows);
    oscar_batch b;
    int i;
    TEST("C4.22 a long append allocates nothing and works in a few pages");
    memset(&memory, 0, sizeof memory);
    d.hooks = model_memory_hooks(&memory);
    for (i = 0; i < TOKENS * DIM; i++) rows[i] = (float)(i % 7) - (float)(i % 11) * 0.5f;
    CHECK(oscar_cache_bytes(&d, TOKENS, &bytes) == OSCAR_OK);
    CHECK(bytes.rest < (size_t)4 << 20);
    CHECK(oscar_cache_create(&d, &cache) == OSCAR_OK);
    CHECK(oscar_cache_open(cache, &seq) == OSCAR_OK);
    CHECK(oscar_cache_reserve(cache, seq, TOKENS, 0) == OSCAR_OK);
    b = entry(seq, 0, TOKENS);
    CHECK(oscar_append(cache, 0, &b, 1, &view, &view) == OSCAR_OK);
    CHECK(memory.calls == 1 && memory.bytes == bytes.total);
    CHECK(oscar_cache_check(cache) == OSCAR_OK);
    oscar_cache_destroy(cache);
    CHECK(memory.bad == 0 && memory.count == 0);
    free(rows);
}

#if HAVE_MMAP
/* Sparse memory: only what is touched is paid. */
static void *map_alloc(void *user, size_t size, size_t align)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    (void)user;
    (void)align;      /* pages of 4096 bytes */
    return p == MAP_FAILED ? NULL : p;
}

static void map_free(void *user, void *memory, size_t size, size_t align)
{
    (void)user;
    (void)align;
    munmap(memory, size);
}
#endif

static void test_offsets(void)
{
#if HAVE_MMAP
    enum { HEADS = 8, DIM = 128 };
    static const int64_t pages = 150000;      /* of 35968 bytes: 5.02 GiB */
    oscar_layer l = simple_layer(HEADS, DIM, 0);
    oscar_cache_desc d = model_desc(&l, 1, 3, pages), small;
    twin far, near;
    oscar_seq_state state = { 0 };
    int i, slot;
    TEST("C4.23 a pool above 4 GiB");
    d.hooks.alloc = map_alloc;
    d.hooks.free = map_free;
    if (oscar_cache_create(&d, &far.cache) != OSCAR_OK) {
        SKIP("C4.23 pool above 4 GiB", "no sparse mapping of 5 GiB");
        return;
    }
    oscar_cache_destroy(far.cache);
    if (!twin_create(&far, &d, 1)) return;
    small = model_desc(&l, 1, 3, 6);
    if (!twin_create(&near, &small, 1)) { twin_destroy(&far); return; }
    far.plain = near.plain = 1;
    /* one sequence holds all pages but six as an open step, without writing them */
    CHECK(oscar_cache_open(far.cache, &far.m.seq[2].handle) == OSCAR_OK);
    CHECK(oscar_cache_reserve(far.cache, far.m.seq[2].handle, 320 + (pages - 6) * 64, 0) == OSCAR_OK);
    slot = twin_open(&far);
    twin_open(&near);
    CHECK(twin_step(&far, slot, 500, 0, 3) == OSCAR_OK && twin_step(&near, 0, 500, 0, 3) == OSCAR_OK);
    CHECK(oscar_cache_get(far.cache, far.m.seq[slot].handle, &state) == OSCAR_OK);
    for (i = 0; i < (int)(state.history / 64); i++)
        CHECK((uint64_t)state.pages[i] * far.m.layout[0].bytes > (uint64_t)1 << 32);
    twin_check_rows(&far, slot, 0, 0, 500);
    twin_check_pages(&far, slot, 0);
    twin_attend(&far, slot, 0, 1, 5);
    CHECK(twin_blobs_equal(&far, slot, &near, 0));
    CHECK(twin_cut(&far, slot, 130) == OSCAR_OK);
    twin_check_rows(&far, slot, 0, 0, 130);
    twin_destroy(&far);
    twin_destroy(&near);
#else
    SKIP("C4.23 pool above 4 GiB", "needs mmap and 64-bit addresses");
#endif
}

/* == ATTENTION == */

static void test_prefill(void)
{
    model_mixed x;
    oscar_cache_desc d;
    twin t;
    int i;
    TEST("prefill of a prompt in one chunk is exact attention");
    model_mixed_init(&x, 4);
    d = model_desc(x.layer, 4, 2, 16);
    d.sink = 8;
    d.recent = 32;
    if (twin_create(&t, &d, 1)) {
        twin_open(&t);
        twin_prefill(&t, 0, 180, 1);            /* the model sees no page before the chunk: all rows are exact */
        CHECK(t.m.seq[0].h == 128);
        twin_check_all(&t);
        twin_destroy(&t);
    }
    TEST("prefill in chunks attends the cache before each chunk, then the chunk");
    if (twin_create(&t, &d, 2)) {
        twin_open(&t);
        twin_open(&t);
        twin_step(&t, 1, 200, 0, 8);
        for (i = 0; i < 8; i++) twin_prefill(&t, 0, i % 3 == 0 ? 70 : 5 * i, 1);
        twin_check_all(&t);
        CHECK(twin_cut(&t, 0, 150) == OSCAR_OK);
        twin_prefill(&t, 0, 30, 2);
        twin_check_all(&t);
        CHECK(t.worst > 0);
        twin_destroy(&t);
    }
    model_mixed_free(&x);
}

static oscar_result attend_plain(twin *t, int slot, int64_t rows)
{
    uint64_t seeds[2 * MODEL_SEQS];
    twin_batch b = twin_single(t, slot, rows);
    twin_seeds(&b, 3, seeds);
    return twin_attention(t, 0, &b, seeds, NULL, NULL);
}

/* long: one sequence through all rules. */
static void test_attend_rules(void)
{
    oscar_layer l[2];
    oscar_cache_desc d;
    uint64_t seed = 1;
    twin_batch b;
    twin t;
    TEST("how many rows may attend");
    l[0] = l[1] = simple_layer(2, 16, 0);
    d = model_desc(l, 2, 2, 16);
    d.sink = 4;
    d.recent = 10;
    d.max_draft = 40;
    if (!twin_create(&t, &d, 1)) return;
    t.plain = 1;
    twin_open(&t);
    CHECK(attend_plain(&t, 0, 1) == OSCAR_ERR_ARGUMENT);           /* no token at all */
    twin_step(&t, 0, 5, 0, 1);
    CHECK(attend_plain(&t, 0, 5) == OSCAR_OK);
    CHECK(attend_plain(&t, 0, 6) == OSCAR_ERR_ARGUMENT);
    twin_step(&t, 0, 10, 0, 1);
    CHECK(attend_plain(&t, 0, 11) == OSCAR_OK);
    CHECK(attend_plain(&t, 0, 12) == OSCAR_ERR_ARGUMENT);          /* recent + 1, though all is still exact */
    twin_step(&t, 0, 63, 0, 1);                                    /* 78 = 4 + 64 + 10: the page is due */
    CHECK(t.m.seq[0].h == 64);
    CHECK(attend_plain(&t, 0, 11) == OSCAR_OK);
    CHECK(attend_plain(&t, 0, 12) == OSCAR_ERR_ARGUMENT);
    twin_step(&t, 0, 40, 1, 2);                                    /* drafts: all of them */
    CHECK(attend_plain(&t, 0, 40) == OSCAR_OK);
    CHECK(attend_plain(&t, 0, 41) == OSCAR_ERR_ARGUMENT);
    twin_accept(&t, 0, 20);
    CHECK(attend_plain(&t, 0, 11) == OSCAR_OK);
    twin_step(&t, 0, 3, 1, 2);
    CHECK(attend_plain(&t, 0, 11) == OSCAR_OK);
    CHECK(attend_plain(&t, 0, 12) == OSCAR_ERR_ARGUMENT);
    twin_abort(&t, 0);

    TEST("a query that is older than history is refused");
    twin_step(&t, 0, 50, 0, 1);
    CHECK(t.m.seq[0].h == 128 && t.m.seq[0].n == 148);
    twin_cut(&t, 0, 134);
    CHECK(t.m.seq[0].h == 128);
    CHECK(attend_plain(&t, 0, 3) == OSCAR_OK);
    CHECK(attend_plain(&t, 0, 4) == OSCAR_ERR_ARGUMENT);
    twin_cut(&t, 0, 132);
    CHECK(t.m.seq[0].h == 128);
    CHECK(attend_plain(&t, 0, 1) == OSCAR_OK);
    CHECK(attend_plain(&t, 0, 2) == OSCAR_ERR_ARGUMENT);

    TEST("in an open step a layer attends once it has appended");
    twin_reserve(&t, 0, 4, 0);
    CHECK(attend_plain(&t, 0, 1) == OSCAR_ERR_STATE);
    b = twin_single(&t, 0, 4);
    CHECK(twin_append(&t, 1, &b, &seed) == OSCAR_OK);
    CHECK(attend_plain(&t, 0, 1) == OSCAR_ERR_STATE);
    CHECK(twin_append(&t, 0, &b, &seed) == OSCAR_OK);
    CHECK(attend_plain(&t, 0, 4) == OSCAR_OK);
    twin_reserve(&t, 0, 4, 0);
    CHECK(twin_append(&t, 0, &b, &seed) == OSCAR_OK);
    CHECK(attend_plain(&t, 0, 4) == OSCAR_OK);                     /* layer 1 has not appended */
    twin_abort(&t, 0);
    twin_check_all(&t);
    twin_destroy(&t);
}

/* long: a list of calls. */
static void test_attend_errors(void)
{
    enum { ROW = 32 };
    oscar_layer l = simple_layer(2, 16, 0);
    oscar_cache_desc d = model_desc(&l, 1, 2, 4);
    model_memory memory;
    float in[4 * ROW], o[4 * ROW], lse[8];
    oscar_view view, none, wrong;
    oscar_out out, out_none;
    oscar_batch b, two[2];
    uint64_t sum;
    twin t;
    int i;
    TEST("bad arguments are refused, nothing is written");
    memset(&memory, 0, sizeof memory);
    d.hooks = model_memory_hooks(&memory);
    for (i = 0; i < 4 * ROW; i++) in[i] = o[i] = 3;
    for (i = 0; i < 8; i++) lse[i] = 3;
    view = dense_view(in);
    none = dense_view(NULL);
    wrong = dense_view(in);
    wrong.type = (oscar_type)9;
    out = dense_out(o);
    out_none = dense_out(NULL);
    if (!twin_create(&t, &d, 1)) return;
    t.plain = 1;
    twin_open(&t);
    twin_open(&t);
    twin_step(&t, 0, 4, 0, 1);
    b = entry(t.m.seq[0].handle, 0, 2);
    two[0] = two[1] = entry(t.m.seq[1].handle, 0, 2);
    sum = model_state(t.cache);
#define REFUSED(expect, call) (memory.logs = 0, CHECK((call) == (expect)), \
        CHECK(memory.logs == 1 && memory.code == (expect) && strlen(memory.text) > 10))
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend(t.cache, 1, &b, 1, &view, NULL, &out, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend(t.cache, -1, &b, 1, &view, NULL, &out, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend(t.cache, 0, NULL, 1, &view, NULL, &out, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend(t.cache, 0, &b, -1, &view, NULL, &out, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend(t.cache, 0, &b, 1, &none, NULL, &out, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend(t.cache, 0, &b, 1, NULL, NULL, &out, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend(t.cache, 0, &b, 1, &wrong, NULL, &out, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend(t.cache, 0, &b, 1, &view, NULL, &out_none, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend_part(t.cache, 0, &b, 1, &view, 0, 0, o, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend_part(t.cache, 0, &b, 1, &view, 2, 2, o, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend_part(t.cache, 0, &b, 1, &view, -1, 2, o, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend_part(t.cache, 0, &b, 1, &view, 0, 2, NULL, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend_part(t.cache, 0, &b, 1, &view, 0, 2, o, NULL));
    b.row = -1;
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend(t.cache, 0, &b, 1, &view, NULL, &out, lse));
    b = entry(t.m.seq[0].handle, 0, -1);
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_attend(t.cache, 0, &b, 1, &view, NULL, &out, lse));
    b = entry(77, 0, 1);
    REFUSED(OSCAR_ERR_HANDLE, oscar_attend(t.cache, 0, &b, 1, &view, NULL, &out, lse));
    REFUSED(OSCAR_ERR_HANDLE, oscar_append(t.cache, 0, &b, 1, &view, &view));
    REFUSED(OSCAR_ERR_HANDLE, oscar_prefill(t.cache, 0, &b, 1, &view, &view, &view, NULL, &out, lse));
    REFUSED(OSCAR_ERR_STATE, oscar_append(t.cache, 0, two, 1, &view, &view));      /* nothing reserved */
    CHECK(model_state(t.cache) == sum);

    CHECK(oscar_cache_reserve(t.cache, two[0].seq, 2, 0) == OSCAR_OK);
    sum = model_state(t.cache);
    REFUSED(OSCAR_ERR_STATE, oscar_append(t.cache, 0, two, 2, &view, &view));      /* one sequence twice */
    REFUSED(OSCAR_ERR_STATE, oscar_prefill(t.cache, 0, two, 2, &view, &view, &view, NULL, &out, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_append(t.cache, 1, two, 1, &view, &view));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_append(t.cache, 0, two, 1, &none, &view));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_append(t.cache, 0, two, 1, &view, NULL));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_append(t.cache, 0, two, 1, &view, &wrong));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_prefill(t.cache, 0, two, 1, &none, &view, &view, NULL, &out, lse));
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_prefill(t.cache, 0, two, 1, &view, &view, &view, NULL, &out_none, lse));
    two[0].rows = 1;
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_append(t.cache, 0, two, 1, &view, &view));   /* 2 were reserved */
    two[0].rows = 3;
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_prefill(t.cache, 0, two, 1, &view, &view, &view, NULL, &out, lse));
    two[0] = entry(two[0].seq, -2, 2);
    REFUSED(OSCAR_ERR_ARGUMENT, oscar_append(t.cache, 0, two, 1, &view, &view));
    two[0] = entry(0, 0, -1);
    CHECK(oscar_append(t.cache, 0, two, 1, &view, &view) == OSCAR_OK);             /* padding is not looked at */
#undef REFUSED
    CHECK(model_state(t.cache) == sum);
    for (i = 0; i < 4 * ROW; i++) CHECK(o[i] == 3);
    for (i = 0; i < 8; i++) CHECK(lse[i] == 3);
    CHECK(oscar_cache_abort(t.cache, two[1].seq) == OSCAR_OK);
    twin_check_all(&t);
    twin_destroy(&t);
}

/* Attention of a batch in `parts` parts, joined, against the model. */
static void parts_run(twin *t, int layer, const twin_batch *b, int parts, const float *sink_logits)
{
    const oscar_layer *l = &t->m.layout[layer].layer;
    size_t rows = (size_t)b->total, heads = (size_t)l->q_heads, dim = (size_t)l->v_dim;
    float *o = (float *)model_get(rows * heads * dim * (size_t)(parts + 1), 4),
          *joined = o + rows * heads * dim * (size_t)parts;
    float *lse = (float *)model_get(rows * heads * (size_t)(parts + 1), 4),
          *joined_lse = lse + rows * heads * (size_t)parts;
    const float *part_o[8], *part_lse[8];
    uint64_t seeds[2 * MODEL_SEQS];
    int64_t first[2 * MODEL_SEQS];
    model_buffer qb;
    oscar_view q;
    float *dense;
    int e, p;
    for (e = 0; e < b->count; e++) {
        seeds[e] = (uint64_t)e;
        first[e] = b->slot[e] < 0 ? 0 : model_shown_length(&t->m.seq[b->slot[e]], layer) - b->entry[e].rows;
    }
    qb = twin_rows(t, b, layer, 2, seeds, first, &dense);
    q = model_buffer_view(&qb);
    for (p = 0; p < parts; p++) {
        float *to = o + (size_t)p * rows * heads * dim, *to_lse = lse + (size_t)p * rows * heads;
        CHECK(oscar_attend_part(t->cache, layer, b->entry, b->count, &q, p, parts, to, to_lse) == OSCAR_OK);
        part_o[p] = to;
        part_lse[p] = to_lse;
    }
    oscar_attend_join(parts, part_o, part_lse, (int)rows, (int)heads, (int)dim, sink_logits, joined, joined_lse);
    for (e = 0; e < b->count; e++) {
        size_t at = (size_t)b->entry[e].row * heads;
        if (b->slot[e] < 0) continue;
        model_compare(&t->m, &t->m.seq[b->slot[e]], layer, dense + at * (size_t)l->k_dim, first[e], b->entry[e].rows,
                      INT64_MAX, NULL, NULL, sink_logits, joined + at * dim, joined_lse + at);
    }
    free(dense); free(qb.memory); free(o); free(lse);
}

/* Every part of `parts` has something to do: a finite lse somewhere. */
static void balance_run(twin *t, int layer, const oscar_batch *b, int count, int parts)
{
    float q[16 * 16] = { 0 }, o[16 * 16], lse[16];
    oscar_view view = dense_view(q);
    int part, i;
    for (part = 0; part < parts; part++) {
        int work = 0;
        CHECK(oscar_attend_part(t->cache, layer, b, count, &view, part, parts, o, lse) == OSCAR_OK);
        for (i = 0; i < count; i++) work += lse[i] > -HUGE_VALF;
        CHECK_MSG(work > 0, ("    part %d of %d has no work\n", part, parts));
    }
}

static void test_balance(void)
{
    oscar_layer l[2];
    oscar_cache_desc d;
    oscar_batch b[16];
    twin t;
    int i;
    TEST("no part is empty: many short sequences, one long one, one long one with a sliding window");
    l[0] = l[1] = simple_layer(1, 16, 0);
    l[1].window = 1000;
    d = model_desc(l, 2, 16, 50);
    if (!twin_create(&t, &d, 1)) return;
    t.plain = 1;
    for (i = 0; i < 16; i++) {
        twin_open(&t);
        twin_step(&t, i, i ? 100 : 3000, 0, (uint64_t)i);
        b[i] = entry(t.m.seq[i].handle, i ? i - 1 : 0, 1);
    }
    balance_run(&t, 0, b + 1, 15, 4);
    balance_run(&t, 0, b, 1, 8);
    balance_run(&t, 1, b, 1, 4);
    twin_destroy(&t);
}

static void test_parts(void)
{
    static const int64_t tokens[4] = { 700, 1, 330, 130 };
    static const float logits[4] = { 0.5f, -2, 3, 1 };
    model_mixed x;
    oscar_cache_desc d;
    twin t;
    int e, layer, parts;
    TEST("attention in 1 to 7 parts, joined, is the whole; C5.4 the sink logit counts once");
    model_mixed_init(&x, 4);
    d = model_desc(x.layer, 4, 4, 40);
    d.recent = 70;
    if (twin_create(&t, &d, 1)) {
        for (e = 0; e < 4; e++) {
            twin_open(&t);
            twin_step(&t, e, tokens[e], 0, (uint64_t)e);
        }
        for (layer = 0; layer < 4; layer++) for (parts = 1; parts <= 7; parts++) {
            twin_batch b;
            memset(&b, 0, sizeof b);
            if (parts % 2) twin_batch_add(&t, &b, 0, 2);
            else for (e = 0; e < 4; e++) twin_batch_add(&t, &b, e, e == 1 ? 1 : 2);
            parts_run(&t, layer, &b, parts, parts < 4 ? NULL : logits);
        }
        twin_destroy(&t);
    }
    model_mixed_free(&x);
}

/* == BAD ROWS == */

/* Two layers of two KV heads, three sequences; one value of one row is bad. long: table, set-up, checks of one case. */
static void test_numeric(void)
{
    enum { DIM = 16, HEADS = 2, ROW = HEADS * DIM };
    static const struct { int layer, side, bf16; float value; int bad; } table[] = {
        { 0, 0, 1, 0, 0 },                      { 0, 0, 1, 32000.0f, 0 },            { 0, 0, 1, -32128.0f, 1 },
        { 0, 1, 1, 32000.0f, 0 },               { 0, 1, 1, 32256.0f, 1 },
        { 0, 0, 1, (float)NAN, 1 },             { 0, 1, 1, (float)NAN, 1 },
        { 0, 0, 1, HUGE_VALF, 1 },              { 0, 1, 1, -HUGE_VALF, 1 },
        { 0, 0, 1, 3.4e38f, 1 },                { 0, 0, 0, 32000.0f, 0 },            { 0, 0, 0, 32000.01f, 1 },
        { 0, 0, 0, 3.4e38f, 1 },                { 0, 1, 0, (float)NAN, 1 },
        { 1, 0, 1, 1e30f, 0 },                  { 1, 0, 1, 3.4e38f, 1 },             { 1, 0, 0, 3.4e38f, 0 },
        { 1, 0, 0, HUGE_VALF, 1 },              { 1, 1, 0, 7990.0f, 0 },             { 1, 1, 0, 8001.0f, 1 },
    };
    oscar_layer l[2];
    oscar_cache_desc d;
    model_pairs pairs;
    size_t i;
    TEST("bad rows are refused, and nothing is written for any sequence of the batch");
    model_dense(&pairs, HEADS, DIM, 1, 0, 5);
    pairs.pair[1].norm = 4;                     /* of head 1: the limit is 8000 */
    l[0] = l[1] = simple_layer(HEADS, DIM, 0);
    l[1].k_bits = 16;                           /* V of layer 1 has 2 bits and a dense pair */
    l[1].v = pairs.pair;
    d = model_desc(l, 2, 3, 8);
    for (i = 0; i < sizeof table / sizeof table[0]; i++) {
        model_memory memory;
        float in[2][6 * ROW], q[6 * ROW], o[6 * ROW], lse[6 * HEADS];
        oscar_view view[2], qv;
        oscar_out out;
        oscar_batch b[3];
        oscar_result result;
        uint64_t sum, seed = 1;
        twin_batch one;
        twin t;
        int e, layer = table[i].layer, other = 1 - layer, j, attempt;
        memset(&memory, 0, sizeof memory);
        memory.fill = 0xff;
        d.hooks = model_memory_hooks(&memory);
        d.window_type = table[i].bf16 ? OSCAR_BF16 : OSCAR_F32;
        if (!twin_create(&t, &d, i)) return;
        t.plain = 1;
        for (e = 0; e < 3; e++) {
            twin_open(&t);
            if (e) twin_step(&t, e, 350, 0, 1);
            twin_reserve(&t, e, e == 1 ? 2 : 1, 0);
            one = twin_single(&t, e, e == 1 ? 2 : 1);
            twin_append(&t, other, &one, &seed);
            b[e] = entry(t.m.seq[e].handle, 2 * e, e == 1 ? 2 : 1);
        }
        for (j = 0; j < 6 * ROW; j++) in[0][j] = in[1][j] = q[j] = o[j] = 0.25f;
        for (j = 0; j < 6 * HEADS; j++) lse[j] = 0.25f;
        for (j = 0; j < ROW; j++) in[table[i].side][3 * ROW + j] = 0;
        in[table[i].side][3 * ROW + DIM + 5] = table[i].value;      /* sequence 1, row 1, head 1 */
        view[0] = dense_view(in[0]);
        view[1] = dense_view(in[1]);
        qv = dense_view(q);
        out = dense_out(o);
        sum = model_state(t.cache);
        for (attempt = 0; attempt < 2 && table[i].bad; attempt++) {
            result = attempt == 0 ? oscar_append(t.cache, layer, b, 3, &view[0], &view[1])
                                  : oscar_prefill(t.cache, layer, b, 3, &qv, &view[0], &view[1], NULL, &out, lse);
            CHECK_MSG(result == OSCAR_ERR_NUMERIC && memory.code == OSCAR_ERR_NUMERIC,
                      ("    row %d: %s\n", (int)i, oscar_result_text(result)));
            CHECK_MSG(strstr(memory.text, "row 3") && strstr(memory.text, "head 1") && strstr(memory.text, "slot 1"),
                      ("    %s\n", memory.text));
            CHECK(strstr(memory.text, table[i].side ? "V" : "K") != NULL);
            CHECK(model_state(t.cache) == sum);
            for (j = 0; j < 6 * ROW; j++) CHECK(o[j] == 0.25f);
            for (j = 0; j < 6 * HEADS; j++) CHECK(lse[j] == 0.25f);
        }
        if (table[i].bad && i % 2) {            /* abort: the other layer has appended */
            for (e = 0; e < 3; e++) twin_abort(&t, e);
        } else {
            if (table[i].bad) in[table[i].side][3 * ROW + DIM + 5] = 1;
            result = oscar_append(t.cache, layer, b, 3, &view[0], &view[1]);
            CHECK_MSG(result == OSCAR_OK, ("    row %d: %s\n", (int)i, memory.text));
            for (e = 0; e < 3; e++)
                model_append(&t.m, &t.m.seq[e], layer, in[0] + 2 * e * ROW, in[1] + 2 * e * ROW);
        }
        twin_check_all(&t);
        twin_destroy(&t);
        CHECK(memory.bad == 0 && memory.count == 0);
    }
    model_pairs_free(&pairs);
}

/* == FIRST USE == */

/* Attention of the last token over 400 tokens through a cache, into o; folded: V goes in and o comes out times F. */
static void plain_run(const oscar_layer *l, const oscar_pair *fold, float *o)
{
    enum { N = 400, D = 32 };
    oscar_cache_desc d = model_desc(l, 1, 1, 8);
    oscar_cache *cache = NULL;
    oscar_seq seq = 0;
    float *k = (float *)model_get(3 * N * D, sizeof *k), *v = k + N * D, *q = v + N * D;
    oscar_view kv = dense_view(k), vv = dense_view(v), qv = dense_view(q);
    oscar_out out = dense_out(o);
    oscar_batch b;
    d.sink = 4;
    d.recent = 20;
    d.window_type = OSCAR_F32;
    put_rows(l, 1, 0, 0, N, k);
    put_rows(l, 1, 1, 0, N, v);
    put_rows(l, 1, 2, N - 1, 1, q);
    if (fold) CHECK(oscar_transform(fold, OSCAR_FORWARD, N, v, v) == OSCAR_OK);
    CHECK(oscar_cache_create(&d, &cache) == OSCAR_OK);
    CHECK(oscar_cache_open(cache, &seq) == OSCAR_OK);
    CHECK(oscar_cache_reserve(cache, seq, N, 0) == OSCAR_OK);
    b = entry(seq, 0, N);
    CHECK(oscar_append(cache, 0, &b, 1, &kv, &vv) == OSCAR_OK);
    b = entry(seq, 0, 1);
    CHECK(oscar_attend(cache, 0, &b, 1, &qv, NULL, &out, NULL) == OSCAR_OK);
    oscar_cache_destroy(cache);
    free(k);
}

static double distance(const float *a, const float *b, int n)
{
    double e = 0, s = 0;
    int i;
    for (i = 0; i < n; i++) {
        e += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return sqrt(e / s);
}

static void test_plain_rows(void)
{
    enum { D = 32 };
    oscar_layer l = simple_layer(1, D, 0);
    model_pairs k, v;
    float exact[D], plain[D], folded[D], back[D];
    TEST("C9.1 plain rows in, plain output out; or folded in and out");
    model_dense(&k, 1, D, 2, 1, 1);
    model_dense(&v, 1, D, 1.5, 0, 2);
    l.k_bits = l.v_bits = 16;
    plain_run(&l, NULL, exact);
    l.k_bits = l.v_bits = 4;
    plain_run(&l, NULL, plain);
    CHECK_MSG(distance(plain, exact, D) < 0.1, ("    Hadamard: %g\n", distance(plain, exact, D)));
    l.k = k.pair;
    l.v = v.pair;
    plain_run(&l, NULL, plain);
    CHECK_MSG(distance(plain, exact, D) < 0.1, ("    dense: %g\n", distance(plain, exact, D)));
    l.v_folded = 1;
    plain_run(&l, v.pair, folded);
    CHECK(oscar_transform(v.pair, OSCAR_BACK, 1, folded, back) == OSCAR_OK);
    CHECK_MSG(distance(back, plain, D) < 1e-3, ("    folded: %g\n", distance(back, plain, D)));
    CHECK(distance(folded, plain, D) > 0.5);
    model_pairs_free(&k);
    model_pairs_free(&v);
}

static void test_defaults(void)
{
    static const int dims[3] = { 64, 128, 256 };
    int i;
    TEST("C9.2 zeroed, explicit and NULL settings are the same");
    for (i = 0; i < 3; i++) {
        oscar_layer zero = simple_layer(1, dims[i], 0), full, resolved;
        oscar_pair pair;
        oscar_cache_desc d = model_desc(&zero, 1, 1, 4), e;
        oscar_footprint a, b;
        twin t, u;
        size_t size;
        unsigned char *blob;
        memset(&pair, 0, sizeof pair);
        pair.dim = dims[i];
        full = zero;
        full.v_dim = dims[i];
        full.k_bits = full.v_bits = 2;
        full.k_fit = full.v_fit = OSCAR_UNBIASED;
        full.k_clip = 0.96; full.v_clip = 0.92;
        full.k_group = full.v_group = dims[i];
        full.k_page_mean = 1;
        full.window = -1; full.softcap = -1;
        full.scale = (float)(1 / sqrt((double)dims[i]));
        full.k = full.v = &pair;
        CHECK(oscar_layer_resolve(&zero, NULL, &resolved) == OSCAR_OK);
        CHECK(resolved.v_dim == full.v_dim && resolved.k_bits == 2 && resolved.v_bits == 2);
        CHECK(resolved.k_group == dims[i] && resolved.v_group == dims[i] && resolved.k_page_mean != -1);
        CHECK(resolved.scale == full.scale && resolved.window == 0 && !(resolved.softcap > 0));
        zero.k_fit = zero.v_fit = OSCAR_CLIP;
        CHECK(oscar_layer_resolve(&zero, NULL, &resolved) == OSCAR_OK);
        CLOSE(resolved.k_clip, 0.96, 0);
        CLOSE(resolved.v_clip, 0.92, 0);
        zero = simple_layer(1, dims[i], 0);
        e = model_desc(&full, 1, 1, 4);
        e.window_type = OSCAR_BF16;
        e.sink = 64; e.recent = 256; e.page_tokens = 64; e.max_draft = 16;
        e.max_tokens = 320 + 4 * 64 + 63;
        CHECK(oscar_cache_bytes(&d, 1000, &a) == OSCAR_OK && oscar_cache_bytes(&e, 1000, &b) == OSCAR_OK);
        CHECK(a.pages == b.pages && a.windows == b.windows);
        CLOSE(a.held_bits, b.held_bits, 0);
        CLOSE(a.exact_bits, 16, 0);
        if (!twin_create(&t, &d, 1) || !twin_create(&u, &e, 1)) return;
        twin_open(&t);
        twin_step(&t, 0, 500, 0, 3);
        CHECK(t.m.seq[0].h == 128);
        blob = twin_save(&t, 0, &size);
        if (blob) CHECK(twin_restore(&u, blob, size, &t.m.seq[0]) == 0);     /* equal hashes */
        twin_check_all(&u);
        free(blob);
        twin_destroy(&t);
        twin_destroy(&u);
    }
}

static void test_rotations(void)
{
    model_mixed x;
    oscar_layer bare[4], one[2];
    oscar_cache_desc d, e;
    oscar_rotations *rotations = NULL;
    oscar_cache *cache = NULL;
    model_memory memory;
    twin t, u;
    size_t size;
    unsigned char *blob;
    int i;
    TEST("a cache takes pairs and codec settings from rotations, and its own where they are set");
    memset(&memory, 0, sizeof memory);
    model_mixed_init(&x, 5);
    CHECK(oscar_rotations_create(x.layer, 4, NULL, NULL, &rotations) == OSCAR_OK);
    memset(bare, 0, sizeof bare);
    for (i = 0; i < 4; i++) {              /* what the file does not know, and the shape */
        bare[i].q_heads = x.layer[i].q_heads;
        bare[i].kv_heads = x.layer[i].kv_heads;
        bare[i].k_dim = x.layer[i].k_dim;
        bare[i].v_dim = x.layer[i].v_dim;
        bare[i].window = x.layer[i].window;
        bare[i].scale = x.layer[i].scale;
        bare[i].softcap = x.layer[i].softcap;
    }
    x.layer[3].v_group = bare[3].v_group = 48;
    x.layer[0].k_page_mean = bare[0].k_page_mean = -1;
    d = model_desc(x.layer, 4, 1, 8);
    e = model_desc(bare, 4, 1, 8);
    e.rotations = rotations;
    e.hooks = model_memory_hooks(&memory);
    if (!twin_create(&t, &d, 1)) return;
    memset(&u, 0, sizeof u);
    CHECK(oscar_cache_create(&e, &u.cache) == OSCAR_OK);
    model_create(&u.m, &d);
    twin_open(&t);
    twin_step(&t, 0, 500, 0, 1);
    blob = twin_save(&t, 0, &size);
    oscar_rotations_destroy(rotations);                    /* not needed after create */
    if (blob && u.cache) {
        CHECK(twin_restore(&u, blob, size, &t.m.seq[0]) == 0);
        twin_step(&u, 0, 70, 0, 2);
        for (i = 0; i < 4; i++) twin_attend(&u, 0, i, 1, 3);
        twin_check_all(&u);
    }
    free(blob);
    twin_destroy(&t);
    twin_destroy(&u);

    TEST("rotations of another model are refused");
    one[0] = one[1] = simple_layer(2, 32, 16);
    CHECK(oscar_rotations_create(one, 1, NULL, NULL, &rotations) == OSCAR_OK);
    e = model_desc(one, 2, 1, 8);
    e.rotations = rotations;
    e.hooks = model_memory_hooks(&memory);
    CHECK(oscar_cache_create(&e, &cache) == OSCAR_ERR_SHAPE && memory.code == OSCAR_ERR_SHAPE);
    e.layer_count = 1;
    one[0].kv_heads = one[0].q_heads = 1;
    CHECK(oscar_cache_create(&e, &cache) == OSCAR_ERR_SHAPE);
    one[0] = simple_layer(2, 48, 16);
    CHECK(oscar_cache_create(&e, &cache) == OSCAR_ERR_SHAPE);
    one[0] = simple_layer(2, 32, 0);
    CHECK(oscar_cache_create(&e, &cache) == OSCAR_ERR_SHAPE && cache == NULL && memory.count == 0);
    one[0] = one[1];
    CHECK(oscar_cache_create(&e, &cache) == OSCAR_OK);
    oscar_cache_destroy(cache);
    oscar_rotations_destroy(rotations);
    model_mixed_free(&x);
}

static void test_output_types(void)
{
    static const oscar_type types[3] = { OSCAR_F32, OSCAR_BF16, OSCAR_F16 };
    enum { HEADS = 4, DIM = 16, ROWS = 3, ALL = ROWS * HEADS * DIM };
    oscar_layer l = simple_layer(2, DIM, 0);
    oscar_cache_desc d;
    float q[ALL] = { 0 }, plain[ALL], seen[ALL], expect[ALL], lse[ROWS * HEADS];
    oscar_view view = dense_view(q);
    oscar_batch b;
    twin t;
    int i, layout;
    TEST("outputs of every type and layout are the float outputs, rounded");
    l.q_heads = HEADS;
    d = model_desc(&l, 1, 1, 8);
    if (!twin_create(&t, &d, 1)) return;
    twin_open(&t);
    twin_step(&t, 0, 450, 0, 1);
    put_rows(&l, 7, 2, 0, ROWS, q);
    b = entry(t.m.seq[0].handle, 0, ROWS);
    for (i = 0; i < 3; i++) for (layout = 0; layout < 4; layout++) {
        model_buffer buffer = model_buffer_new(ROWS, HEADS, DIM, types[i], layout);
        oscar_out out = model_buffer_out(&buffer);
        int64_t row;
        CHECK(oscar_attend(t.cache, 0, &b, 1, &view, NULL, &out, lse) == OSCAR_OK);
        for (row = 0; row < ROWS; row++) model_buffer_get(&buffer, row, seen + row * HEADS * DIM);
        if (i == 0 && layout == 0) memcpy(plain, seen, sizeof plain);
        model_round(types[i], plain, ALL, expect);
        CHECK(memcmp(seen, expect, sizeof expect) == 0);
        free(buffer.memory);
    }
    twin_destroy(&t);
}

int main(void)
{
    test_random_operations();
    test_shapes();
    test_exact_layers();
    test_full();
    test_rollback();
    test_asking();
    test_shift();
    test_ragged();
    test_padding();
    test_scratch();
    test_offsets();
    test_prefill();
    test_attend_rules();
    test_attend_errors();
    test_parts();
    test_balance();
    test_numeric();
    test_plain_rows();
    test_defaults();
    test_rotations();
    test_output_types();
    return test_end("test_cache");
}
