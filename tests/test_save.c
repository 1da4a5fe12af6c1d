/* test_save.c - sequences as blobs: sizes, fragmented pools, other configurations, damage. */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "test.h"
#include "cache_model.h"

static oscar_layer layer_of_bits(int bits)
{
    oscar_layer l = small_layer();
    l.k_bits = l.v_bits = bits;
    return l;
}

/* == ROUND TRIPS == */

static void test_fragmented(void)
{
    static const int lengths[] = { 0, 1, 63, 64, 65, 320, 321, 383, 384, 385, 700 };
    model_mixed x;
    oscar_cache_desc d;
    twin t;
    size_t i, size;
    unsigned char *blob;
    int j, slot;
    TEST("C8.1 a sequence is restored into a fragmented pool");
    model_mixed_init(&x, 1);
    d = model_desc(x.layer, 4, 4, 20);
    if (twin_create(&t, &d, 1)) {
        t.plain = 1;
        for (i = 0; i < 3; i++) twin_open(&t);
        for (i = 0; i < 14; i++) for (j = 0; j < 3; j++) twin_step(&t, j, 50, 0, (uint64_t)j);
        twin_close(&t, 1);                    /* its pages lie between those of the others */
        blob = twin_save(&t, 2, &size);
        CHECK(blob != NULL);
        slot = blob ? twin_restore(&t, blob, size, &t.m.seq[2]) : -1;
        CHECK(slot == 1);
        if (slot == 1) {
            twin_check_all(&t);
            CHECK(twin_blobs_equal(&t, 2, &t, slot));
            for (j = 0; j < 4; j++) twin_attend(&t, slot, j, 1, 5);
            twin_step(&t, 2, 70, 0, 8);
            twin_step(&t, slot, 70, 0, 8);    /* and lives on as the original does */
            twin_check_all(&t);
            CHECK(twin_blobs_equal(&t, 2, &t, slot));
            CHECK(twin_cut(&t, slot, 100) == OSCAR_OK && twin_cut(&t, 2, 100) == OSCAR_OK);
            CHECK(twin_blobs_equal(&t, 2, &t, slot));
        }
        free(blob);
        twin_destroy(&t);
    }
    TEST("C8.1 sequences of many lengths, cut and forked ones");
    if (twin_create(&t, &d, 2)) {
        for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            twin_open(&t);
            if (lengths[i]) twin_step(&t, 0, lengths[i], 0, 3);
            if (i % 3 == 2) twin_cut(&t, 0, lengths[i] * 3 / 4);
            slot = i % 3 == 1 ? twin_fork(&t, 0, t.m.seq[0].n) : 0;
            blob = twin_save(&t, slot, &size);
            if (blob) CHECK(twin_restore(&t, blob, size, &t.m.seq[slot]) > 0);
            twin_check_all(&t);
            free(blob);
            for (j = 0; j < 4; j++) if (t.m.seq[j].open) twin_close(&t, j);
        }
        twin_destroy(&t);
    }
    model_mixed_free(&x);
}

static void test_sizes(void)
{
    static const int lengths[] = { 0, 1, 63, 64, 65, 320, 321, 383, 384, 385, 5000 };
    oscar_layer l[2];
    oscar_cache_desc d;
    twin t;
    size_t i;
    TEST("C8.2 the size asked for is the size written, and nothing behind it");
    l[0] = layer_of_bits(2);
    l[1] = layer_of_bits(4);
    d = model_desc(l, 2, 1, 80);
    for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        size_t asked = 0, written = 0, expect, j, h;
        unsigned char *blob;
        if (!twin_create(&t, &d, 1)) return;
        t.plain = 1;
        twin_open(&t);
        if (lengths[i]) twin_step(&t, 0, lengths[i], 0, 3);
        CHECK(oscar_cache_save(t.cache, t.m.seq[0].handle, NULL, 0, &asked) == OSCAR_OK);
        blob = (unsigned char *)model_get(asked + 64, 1);
        memset(blob, 0xa5, asked + 64);
        CHECK(oscar_cache_save(t.cache, t.m.seq[0].handle, blob, asked - 1, &written) == OSCAR_ERR_MEMORY);
        for (j = 0; j < asked + 64; j++) CHECK(blob[j] == 0xa5);
        CHECK(oscar_cache_save(t.cache, t.m.seq[0].handle, blob, 0, &written) == OSCAR_ERR_MEMORY);
        written = 0;
        CHECK(oscar_cache_save(t.cache, t.m.seq[0].handle, blob, asked, &written) == OSCAR_OK);
        CHECK(written == asked);
        for (j = 0; j < 64; j++) CHECK(blob[asked + j] == 0xa5);
        CHECK(blob[asked - 1] != 0xa5 || blob[asked - 2] != 0xa5 || blob[asked - 3] != 0xa5);
        h = (size_t)t.m.seq[0].h;
        expect = ((size_t)lengths[i] - h) * 2 * 2 * 16 * 2 + h / 64 * (t.m.layout[0].bytes + t.m.layout[1].bytes);
        CHECK(asked > expect && asked < expect + 200);
        free(blob);
        twin_destroy(&t);
    }
}

/* A blob at every address modulo 8, in and out. */
static void test_odd_addresses(void)
{
    static const oscar_type types[3] = { OSCAR_BF16, OSCAR_F16, OSCAR_F32 };
    oscar_layer l = layer_of_bits(2);
    oscar_cache_desc d = model_desc(&l, 1, 2, 8);
    twin t;
    int i, off;
    TEST("C7.6 blobs at odd addresses");
    for (i = 0; i < 3; i++) {
        size_t size;
        unsigned char *blob, *place;
        d.window_type = types[i];
        if (!twin_create(&t, &d, 1)) return;
        twin_open(&t);
        twin_step(&t, 0, 400, 0, 1);
        blob = twin_save(&t, 0, &size);
        place = (unsigned char *)model_get(size + 8, 1);
        for (off = 0; off < 8 && blob; off++) {
            size_t written;
            CHECK(oscar_cache_save(t.cache, t.m.seq[0].handle, place + off, size, &written) == OSCAR_OK);
            CHECK(memcmp(place + off, blob, size) == 0);
            CHECK(twin_restore(&t, place + off, size, &t.m.seq[0]) == 1);
            twin_check(&t, 1);
            twin_close(&t, 1);
        }
        free(blob);
        free(place);
        twin_destroy(&t);
    }
}

/* == WHAT IS REFUSED == */

/* Changes of the configuration that give a blob another meaning, one a case; beyond them 0. */
static int other_configuration(int i, oscar_layer *l, oscar_cache_desc *d, model_pairs *dense, model_pairs *changed)
{
    switch (i) {
    case 0: d->sink = 63; break;
    case 1: d->recent = 255; break;
    case 2: d->page_tokens = 128; break;
    case 3: d->window_type = OSCAR_F16; break;
    case 4: d->layer_count = 1; break;
    case 5: l[0].k_bits = 4; break;
    case 6: l[1].v_bits = 16; break;
    case 7: l[0].k_fit = OSCAR_CLIP; break;
    case 8: l[1].v_clip = 0.9; break;
    case 9: l[0].k_group = 16; break;
    case 10: l[0].k_page_mean = -1; break;
    case 11: l[1].v_folded = 1; break;
    case 12: l[0].scale = 0.3f; break;
    case 13: l[0].softcap = 20; break;
    case 14: l[0].window = 100; break;
    case 15: l[0].q_heads = 4; break;
    case 16: l[0].k_dim = 48; l[0].v_dim = 16; break;
    case 17: l[0].k = dense->pair; break;
    case 18: changed->to[1][7] += 1e-3f; l[1].k = changed->pair; break;
    case 19: changed->mean[0][3] += 1e-3f; l[1].k = changed->pair; break;
    case 20: changed->pair[1].mean = NULL; l[1].k = changed->pair; break;
    case 21: l[0].k_dim = 16; l[0].v_dim = 48; break;
    case 22: l[1].k = NULL; break;
    default: return 0;
    }
    return 1;
}

/* long: refused and accepted configurations share their set-up. */
static void test_configuration(void)
{
    model_pairs dense, same, changed;
    oscar_layer l[2];
    oscar_cache_desc d, e;
    twin t, u;
    unsigned char *blob;
    size_t size = 0;
    int i, seed = 4;
    TEST("a blob of another configuration is refused");
    memset(l, 0, sizeof l);
    l[0].q_heads = l[0].kv_heads = l[1].q_heads = l[1].kv_heads = 2;
    l[0].k_dim = l[1].k_dim = 32;
    l[1].v_fit = OSCAR_CLIP;
    model_dense(&dense, 2, 32, 2, 1, 4);
    l[1].k = dense.pair;
    d = model_desc(l, 2, 2, 8);
    if (!twin_create(&t, &d, 1)) return;
    twin_open(&t);
    twin_step(&t, 0, 330, 0, 1);
    twin_step(&t, 0, 63, 0, 1);
    blob = twin_save(&t, 0, &size);
    for (i = 0;; i++) {
        model_memory memory;
        oscar_layer m[2];
        oscar_seq handle = 77;
        uint64_t sum;
        int more;
        memset(&memory, 0, sizeof memory);
        memcpy(m, l, sizeof m);
        model_dense(&changed, 2, 32, 2, 1, (uint64_t)seed);
        e = d;
        e.layers = m;
        e.hooks = model_memory_hooks(&memory);
        more = other_configuration(i, m, &e, &dense, &changed);
        if (more && twin_create(&u, &e, 1)) {
            sum = model_state(u.cache);
            CHECK_MSG(oscar_cache_restore(u.cache, blob, size, &handle) == OSCAR_ERR_VERSION, ("    case %d\n", i));
            CHECK(memory.code == OSCAR_ERR_VERSION && handle == 77 && model_state(u.cache) == sum);
            twin_destroy(&u);
        }
        model_pairs_free(&changed);
        if (!more) break;
    }
    CHECK(i == 23);
    TEST("what does not change the meaning of a blob is accepted");
    model_dense(&same, 2, 32, 2, 1, (uint64_t)seed);       /* equal matrices at other addresses */
    l[1].k = same.pair;
    e = d;
    e.max_sequences = 5;
    e.max_pages = 3;
    e.max_draft = 2;
    e.max_tokens = 5000;
    if (twin_create(&u, &e, 1)) {
        CHECK(twin_restore(&u, blob, size, &t.m.seq[0]) == 0);
        twin_check_all(&u);
        twin_destroy(&u);
    }
    free(blob);
    twin_destroy(&t);
    model_pairs_free(&dense);
    model_pairs_free(&same);
}

/* A blob of n tokens of one small layer, every truncation and every single-bit change of which must be refused. */
static void damage_run(int bits, int n, int cut)
{
    oscar_layer l = layer_of_bits(bits);
    oscar_cache_desc d = model_desc(&l, 1, 3, 6);
    unsigned char *blob, *exact;
    size_t size, i;
    oscar_seq handle = 77;
    uint64_t sum;
    twin t;
    int bit;
    d.sink = 2;
    d.recent = 8;
    if (!twin_create(&t, &d, 1)) return;
    t.plain = 1;
    twin_open(&t);
    if (n) twin_step(&t, 0, n, 0, 1);
    twin_cut(&t, 0, cut);
    blob = twin_save(&t, 0, &size);
    CHECK(blob != NULL);
    sum = model_state(t.cache);
    for (i = 0; i < size; i++) {                /* flush against the end of its memory, for the sanitizer */
        exact = (unsigned char *)model_get(i, 1);
        memcpy(exact, blob, i);
        CHECK(oscar_cache_restore(t.cache, exact, i, &handle) == OSCAR_ERR_FORMAT);
        free(exact);
    }
    exact = (unsigned char *)model_get(size + 1, 1);
    memcpy(exact, blob, size);
    CHECK(oscar_cache_restore(t.cache, exact, size + 1, &handle) == OSCAR_ERR_FORMAT);
    for (i = 0; i < size; i++) for (bit = 0; bit < 8; bit++) {
        oscar_result result;
        exact[i] ^= (unsigned char)(1 << bit);
        result = oscar_cache_restore(t.cache, exact, size, &handle);
        CHECK_MSG(result == OSCAR_ERR_FORMAT || result == OSCAR_ERR_VERSION,
                  ("    byte %d bit %d of %d bytes: %s\n", (int)i, bit, (int)size, oscar_result_text(result)));
        if (result == OSCAR_OK) { oscar_cache_close(t.cache, handle); sum = model_state(t.cache); handle = 77; }
        exact[i] ^= (unsigned char)(1 << bit);
    }
    CHECK(handle == 77 && model_state(t.cache) == sum);
    CHECK(twin_restore(&t, exact, size, &t.m.seq[0]) > 0);
    twin_check_all(&t);
    free(exact);
    free(blob);
    twin_destroy(&t);
}

static void test_damage(void)
{
    TEST("damaged blobs are refused without a trace");
    damage_run(2, 80, 80);
    damage_run(4, 150, 70);
    damage_run(2, 0, 0);
    TEST("damaged blobs of an exact layer, whose pages are as long as their rows");
    damage_run(16, 75, 75);
    damage_run(16, 75, 70);
}

/* long: a list of calls. */
static void test_arguments(void)
{
    model_memory memory;
    oscar_layer l = layer_of_bits(2);
    oscar_cache_desc d = model_desc(&l, 1, 2, 6);
    unsigned char *blob;
    size_t size, asked;
    oscar_seq handle = 77;
    uint64_t sum;
    twin t;
    TEST("save and restore: arguments, state, room");
    memset(&memory, 0, sizeof memory);
    d.hooks = model_memory_hooks(&memory);
    if (!twin_create(&t, &d, 1)) return;
    twin_open(&t);
    twin_step(&t, 0, 320 + 4 * 64, 0, 1);
    blob = twin_save(&t, 0, &size);
    sum = model_state(t.cache);
    CHECK(oscar_cache_restore(t.cache, NULL, size, &handle) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_restore(t.cache, blob, size, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_restore(NULL, blob, size, &handle) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_save(t.cache, t.m.seq[0].handle, blob, size, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cache_save(t.cache, t.m.seq[0].handle + 1, blob, size, &asked) == OSCAR_ERR_HANDLE);
    memory.logs = 0;
    CHECK(twin_restore(&t, blob, size, &t.m.seq[0]) == -1);      /* 2 of 6 pages free, 4 wanted */
    CHECK(memory.code == OSCAR_ERR_FULL && strstr(memory.text, "page"));
    CHECK(model_state(t.cache) == sum);
    twin_cut(&t, 0, 60);
    twin_open(&t);
    CHECK(twin_restore(&t, blob, size, &t.m.seq[0]) == -1);      /* no sequence free; the model knows that first */
    CHECK(memory.code == OSCAR_ERR_FULL && strstr(memory.text, "sequence"));
    twin_reserve(&t, 0, 1, 0);
    CHECK(twin_save(&t, 0, &asked) == NULL);
    CHECK(memory.code == OSCAR_ERR_STATE);
    twin_abort(&t, 0);
    twin_step(&t, 0, 2, 1, 1);
    CHECK(twin_save(&t, 0, &asked) == NULL);
    twin_accept(&t, 0, 2);
    twin_check_all(&t);
    free(blob);
    twin_destroy(&t);

    TEST("a blob that is longer than max_tokens allows is refused");
    d.max_tokens = 0;
    d.max_pages = 20;
    if (!twin_create(&t, &d, 1)) return;
    twin_open(&t);
    twin_step(&t, 0, 720, 0, 1);
    twin_cut(&t, 0, 390);                     /* 5 pages, more than 390 appended tokens have */
    CHECK(t.m.seq[0].h == 320);
    blob = twin_save(&t, 0, &size);
    {
        oscar_cache_desc e = d;
        twin u;
        e.max_tokens = 400;                   /* 400 appended tokens have 1 page */
        if (twin_create(&u, &e, 1)) {
            oscar_result result;
            sum = model_state(u.cache);
            result = oscar_cache_restore(u.cache, blob, size, &handle);
            CHECK_MSG(result == OSCAR_ERR_FULL, ("    %s\n", oscar_result_text(result)));
            CHECK(model_state(u.cache) == sum && handle == 77);
            twin_destroy(&u);
        }
        e.max_tokens = 389;
        if (twin_create(&u, &e, 1)) {
            CHECK(oscar_cache_restore(u.cache, blob, size, &handle) == OSCAR_ERR_FULL);
            twin_destroy(&u);
        }
    }
    free(blob);
    twin_destroy(&t);
}

/* == HOSTILE CONTENT == */

/* Uses a restored sequence in every way. */
static void use_everything(oscar_cache *cache, oscar_seq seq)
{
    float rows[64 * 16], out[700 * 16], lse[4];
    oscar_view view;
    oscar_out o;
    oscar_seq_state s;
    oscar_seq fork;
    oscar_batch b;
    int i;
    memset(&view, 0, sizeof view);
    memset(&o, 0, sizeof o);
    for (i = 0; i < 64 * 16; i++) rows[i] = (float)(i % 5);
    view.data = rows;
    o.data = out;
    CHECK(oscar_cache_get(cache, seq, &s) == OSCAR_OK);
    CHECK(oscar_cache_check(cache) == OSCAR_OK);
    b.seq = seq;
    b.row = 0;
    b.rows = 1;
    CHECK(oscar_attend(cache, 0, &b, 1, &view, NULL, &o, lse) == OSCAR_OK);
    CHECK(oscar_fetch(cache, 0, seq, 0, s.length, &o, &o) == OSCAR_OK);
    if (oscar_cache_fork(cache, seq, s.length * 3 / 4, &fork) == OSCAR_OK) oscar_cache_close(cache, fork);
    b.rows = 64;
    for (i = 0; i < 2; i++) {                 /* demotes what the windows hold */
        CHECK(oscar_cache_reserve(cache, seq, 64, 0) == OSCAR_OK);
        CHECK(oscar_append(cache, 0, &b, 1, &view, &view) == OSCAR_OK);
    }
    CHECK(oscar_cache_check(cache) == OSCAR_OK);
    CHECK(oscar_fetch(cache, 0, seq, 0, s.length, &o, &o) == OSCAR_OK);
    CHECK(oscar_cache_cut(cache, seq, s.length / 2) == OSCAR_OK);
    CHECK(oscar_cache_close(cache, seq) == OSCAR_OK);
}

/* Blobs with a right checksum and bad numbers: refused, or harmless. */
static void hostile_run(const oscar_layer *l, oscar_type window_type, int rounds)
{
    static const unsigned halves[] = { 0x7f80, 0xff80, 0x7fc0, 0x7f7f, 0xff7f, 0x7e00, 0x7c00, 0xffff, 0x0001 };
    oscar_cache_desc d = model_desc(l, 1, 3, 12);
    unsigned char *blob, *bad;
    size_t size, at;
    test_random r = { 4 };
    twin t;
    int i;
    d.sink = 2;
    d.recent = 8;
    d.window_type = window_type;
    if (!twin_create(&t, &d, 1)) return;
    t.plain = 1;
    twin_open(&t);
    twin_step(&t, 0, 100, 0, 1);
    blob = twin_save(&t, 0, &size);
    bad = (unsigned char *)model_get(size, 1);
    for (i = 0; i < rounds; i++) {
        oscar_seq handle = 0;
        int j, changes = 1 + random_below(&r, i % 2 ? 40 : 3);
        memcpy(bad, blob, size);
        for (j = 0; j < changes; j++) {
            unsigned half = halves[random_below(&r, 9)];
            at = OSCAR__BLOB_HEADER + 2 * (size_t)random_below(&r, (int)(size - OSCAR__BLOB_HEADER) / 2);
            bad[at] = (unsigned char)half;
            bad[at + 1] = (unsigned char)(half >> 8);
        }
        model_blob_seal(bad, size);
        if (oscar_cache_restore(t.cache, bad, size, &handle) == OSCAR_OK) use_everything(t.cache, handle);
    }
    memcpy(bad, blob, size);                  /* the seal is right: an unchanged blob passes */
    model_blob_seal(bad, size);
    CHECK(memcmp(bad, blob, size) == 0);
    twin_check_all(&t);
    free(blob);
    free(bad);
    twin_destroy(&t);
}

static void test_hostile(void)
{
    oscar_layer l = layer_of_bits(2);
    model_pairs k, v;
    TEST("a blob with bad numbers and a right checksum does no harm");
    hostile_run(&l, OSCAR_BF16, 200);
    hostile_run(&l, OSCAR_F32, 100);
    l.k_bits = l.v_bits = 4;
    l.k_fit = OSCAR_CLIP;
    hostile_run(&l, OSCAR_BF16, 100);
    model_dense(&k, 1, 16, 30, 1, 3);
    model_dense(&v, 1, 16, 1, 0, 4);
    l.k = k.pair;
    l.v = v.pair;
    l.k_bits = 2;
    l.v_fit = OSCAR_CLIP;
    hostile_run(&l, OSCAR_F16, 100);
    hostile_run(&l, OSCAR_BF16, 100);
    l.k_bits = 16;
    hostile_run(&l, OSCAR_BF16, 50);
    model_pairs_free(&k);
    model_pairs_free(&v);
}

int main(void)
{
    test_fragmented();
    test_sizes();
    test_odd_addresses();
    test_configuration();
    test_damage();
    test_arguments();
    test_hostile();
    return test_end("test_save");
}
