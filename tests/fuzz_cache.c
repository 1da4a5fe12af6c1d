/* fuzz_cache.c - bytes become calls on a small cache; each call is compared with the model.

       clang -g -O1 -fsanitize=fuzzer,address,undefined -I. -Itests tests/fuzz_cache.c -o fuzz_cache -lm
       ./fuzz_cache -max_len=250 corpus/
       cc -g -O1 -I. -Itests tests/fuzz_cache.c tests/fuzz_main.c -o fuzz_cache -lm && ./fuzz_cache crash-...

   The first byte chooses the configuration. Then each call is one byte and its arguments:

       0 open    1 reserve slot rows    2 draft slot rows    3 append layer which    4 prefill layer which
       5 attend layer rows    6 accept slot rows    7 abort slot    8 cut slot length    9 fork slot length
       10 close slot    11 save slot    12 restore    13 restore with one byte changed at length

   `which` has one bit a slot. A difference aborts. */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "test.h"
#include "cache_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
uint8_t *fuzz_seed(int index, size_t *size);

enum { SLOTS = 4, PAGES = 8, MOST = 250 };      /* MOST: bytes that are read, some hundred calls */

typedef struct tape { const uint8_t *data; size_t size, at; } tape;

static unsigned next(tape *t) { return t->at < t->size ? t->data[t->at++] : 0; }

typedef struct saved { unsigned char *blob; size_t size; model_seq copy; } saved;

/* A slot by number, or -1 where it is not open. */
static int slot_of(const twin *t, unsigned number)
{
    int slot = (int)(number % SLOTS);
    return t->m.seq[slot].open ? slot : -1;
}

static int waits(const model_seq *s, int layer)
{
    return s->open && (s->step == OSCAR_STEP_APPEND || s->step == OSCAR_STEP_DRAFT) && !s->appended[layer];
}

static void do_append(twin *t, tape *in, int prefill)
{
    int layer = (int)next(in) % t->m.layers, i, drafts = 0;
    unsigned which = next(in);
    uint64_t seeds[2 * MODEL_SEQS];
    twin_batch b;
    memset(&b, 0, sizeof b);
    for (i = 0; i < SLOTS; i++) if ((which >> i & 1) && waits(&t->m.seq[i], layer)) {
        twin_batch_add(t, &b, i, t->m.seq[i].rows);
        drafts = drafts || t->m.seq[i].step == OSCAR_STEP_DRAFT;
    }
    for (i = 0; i < b.count; i++) seeds[i] = which + in->at;
    if (!prefill) twin_append(t, layer, &b, seeds);
    else CHECK(twin_attention(t, layer, &b, seeds, seeds, NULL) == (drafts ? OSCAR_ERR_STATE : OSCAR_OK));
}

static void do_attend(twin *t, tape *in)
{
    int layer = (int)next(in) % t->m.layers, i;
    int64_t rows = 1 + next(in) % 16;
    uint64_t seeds[2 * MODEL_SEQS];
    twin_batch b;
    memset(&b, 0, sizeof b);
    for (i = 0; i < SLOTS; i++) {
        const model_seq *s = &t->m.seq[i];
        int64_t shown = model_shown_length(s, layer), h = model_shown_history(s, layer);
        int drafts = s->step == OSCAR_STEP_DRAFT || s->step == OSCAR_STEP_DRAFTED;
        if (!s->open || waits(s, layer) || rows > shown) continue;
        if (rows > t->m.recent + 1 && !(drafts && rows <= s->rows)) continue;
        if (h && shown - rows < t->m.sink + h - 1) continue;
        twin_batch_add(t, &b, i, rows);
    }
    for (i = 0; i < b.count; i++) seeds[i] = in->at;
    CHECK(twin_attention(t, layer, &b, seeds, NULL, NULL) == OSCAR_OK);
}

static void do_save(twin *t, int slot, saved *store)
{
    saved now;
    now.blob = twin_save(t, slot, &now.size);
    if (!now.blob) return;
    if (store->blob) { free(store->blob); model_seq_free(&t->m, &store->copy); }
    model_copy(&t->m, &t->m.seq[slot], &now.copy, 0, 0);
    *store = now;
}

static void do_call(twin *t, tape *in, saved *store)
{
    unsigned what = next(in) % 14, arg;
    int slot;
    oscar_seq handle = 0;
    if (what == 0) { twin_open(t); return; }
    if (what == 3 || what == 4) { do_append(t, in, what == 4); return; }
    if (what == 5) { do_attend(t, in); return; }
    if (what == 12) {
        if (store->blob) twin_restore(t, store->blob, store->size, &store->copy);
        return;
    }
    slot = slot_of(t, next(in));
    arg = next(in);
    if (what == 13 && store->blob) {
        size_t at = arg * 17u % store->size;
        store->blob[at] ^= 0x10;
        CHECK(oscar_cache_restore(t->cache, store->blob, store->size, &handle) != OSCAR_OK);
        store->blob[at] ^= 0x10;
    }
    if (slot < 0) return;
    switch (what) {
    case 1: twin_reserve(t, slot, (int64_t)arg - 1, 0); break;
    case 2: twin_reserve(t, slot, (int64_t)(arg % 16) - 1, 1); break;
    case 6: twin_accept(t, slot, (int64_t)(arg % 16) - 1); break;
    case 7: twin_abort(t, slot); break;
    case 8: twin_cut(t, slot, (int64_t)arg * 2 - 1); break;
    case 9: twin_fork(t, slot, (int64_t)arg * 2 - 1); break;
    case 10: twin_close(t, slot); break;
    case 11: do_save(t, slot, store); break;
    default: break;
    }
}

/* For fuzz_main.c: long chunks, drafts, forks and cuts in all four layers, in configuration `index`. */
uint8_t *fuzz_seed(int index, size_t *size)
{
    static const uint8_t calls[] = {
        0, 0, 1, 0, 110, 1, 1, 90, 3, 0, 3, 3, 1, 3, 3, 2, 3, 3, 3, 3, 5, 0, 2, 1, 0, 200, 4, 0, 1, 4, 1, 1, 7, 0, 0,
        9, 0, 60, 2, 1, 9, 3, 0, 2, 3, 1, 2, 3, 2, 2, 3, 3, 2, 5, 1, 7, 6, 1, 4, 11, 0, 0, 12, 8, 0, 40, 8, 1, 20,
        1, 2, 255, 3, 0, 4, 3, 1, 4, 3, 2, 4, 3, 3, 4, 10, 0, 0, 13, 0, 9, 5, 2, 0, 12,
    };
    uint8_t *seed = index < 6 ? (uint8_t *)malloc(sizeof calls + 1) : NULL;
    if (!seed) return NULL;
    seed[0] = (uint8_t)(index * 37 | 12);
    memcpy(seed + 1, calls, sizeof calls);
    *size = sizeof calls + 1;
    return seed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tape in;
    model_mixed x;
    oscar_cache_desc d;
    saved store;
    twin t;
    unsigned kind;
    int i;
    in.data = data;
    in.size = size < MOST ? size : MOST;
    in.at = 0;
    kind = next(&in);
    memset(&store, 0, sizeof store);
    memset(&d, 0, sizeof d);
    (void)test_end;
    test_begin("fuzz_cache");
    model_mixed_init(&x, 3);
    if (kind & 1) x.layer[0].k_page_mean = -1;
    if (kind & 2) x.layer[1].k_fit = OSCAR_UNBIASED;
    d.layers = x.layer;
    d.layer_count = 1 + (int)(kind >> 2 & 3);
    d.max_sequences = SLOTS;
    d.max_pages = PAGES;
    d.sink = kind & 16 ? -1 : 5;
    d.recent = kind & 32 ? 10 : -1;
    d.max_draft = kind & 64 ? 12 : -1;
    d.window_type = kind & 128 ? OSCAR_F16 : OSCAR_BF16;
    if (twin_create(&t, &d, kind)) {
        while (in.at < in.size) {
            do_call(&t, &in, &store);
            twin_check_cache(&t);
            for (i = 0; i < SLOTS; i++) if (t.m.seq[i].open) twin_check_state(&t, i);
            if (test_state.failed_now) abort();
        }
        twin_check_all(&t);
        free(store.blob);
        model_seq_free(&t.m, &store.copy);
        twin_destroy(&t);
    }
    model_mixed_free(&x);
    if (test_state.failed_now) abort();
    return 0;
}
