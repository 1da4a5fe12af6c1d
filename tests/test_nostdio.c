/* test_nostdio.c - a build without stdio, with the user's memory and assert macros: the whole way from calibration to a
   restored cache works, nothing is allocated behind the user's back, and everything is given back. */
#include <stddef.h>

static void *user_allocate(size_t size);
static void user_release(void *memory);
static void user_assert(int holds);

#define OSCAR_NO_STDIO
#define OSCAR_MALLOC(size) user_allocate(size)
#define OSCAR_FREE(pointer) user_release(pointer)
#define OSCAR_ASSERT(condition) user_assert(!!(condition))
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "test.h"

enum { HEADS = 2, Q_HEADS = 4, DIM = 32, TOKENS = 300 };

static int macro_calls, macro_live, asserts_failed;

static void *user_allocate(size_t size)
{
    macro_calls++;
    macro_live++;
    return malloc(size);
}

static void user_release(void *memory)
{
    macro_live--;
    free(memory);
}

static void user_assert(int holds) { asserts_failed += !holds; }

/* Hooks over a fixed arena: memory is taken from its start and never reused, but counted. */
typedef struct arena {
    unsigned char *memory;
    size_t size, used, live;
    int logged;
    oscar_result code;
    char text[256];
} arena;

static void *arena_allocate(void *user, size_t size, size_t align)
{
    arena *a = (arena *)user;
    size_t start = (a->used + align - 1) / align * align;
    CHECK(align >= 64 && (align & (align - 1)) == 0);
    if (size > a->size || start > a->size - size) return NULL;
    a->used = start + size;
    a->live += size;
    return a->memory + start;
}

static void arena_release(void *user, void *memory, size_t size, size_t align)
{
    arena *a = (arena *)user;
    CHECK(align >= 64);
    CHECK((unsigned char *)memory >= a->memory && (unsigned char *)memory + size <= a->memory + a->used);
    a->live -= size;
}

static void arena_log(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    arena *a = (arena *)user;
    size_t n = strlen(text) < sizeof a->text - 1 ? strlen(text) : sizeof a->text - 1;
    CHECK(line > 0 && n > 0);
    if (level != OSCAR_LOG_ERROR) return;
    a->logged++;
    a->code = code;
    memcpy(a->text, text, n);
    a->text[n] = 0;
}

static float k[TOKENS * HEADS * DIM], v[TOKENS * HEADS * DIM], q[TOKENS * Q_HEADS * DIM];

static oscar_view view_of(const float *data)
{
    oscar_view view;
    memset(&view, 0, sizeof view);
    view.data = data;
    return view;
}

static void make_layer(oscar_layer *layer)
{
    memset(layer, 0, sizeof *layer);
    layer->q_heads = Q_HEADS;
    layer->kv_heads = HEADS;
    layer->k_dim = DIM;
}

/* Calibrates on the rows above and sends the result through a file in memory. */
static oscar_rotations *calibrated(const oscar_hooks *hooks)
{
    oscar_layer layer;
    oscar_calib_desc desc;
    oscar_chunk chunk;
    oscar_calib *calib = NULL;
    oscar_rotations *solved = NULL, *read = NULL;
    size_t size = 0;
    void *file;
    make_layer(&layer);
    memset(&desc, 0, sizeof desc);
    memset(&chunk, 0, sizeof chunk);
    desc.layers = &layer;
    desc.layer_count = 1;
    desc.weights = OSCAR_WEIGHTS_PLAIN;
    if (hooks) desc.hooks = *hooks;
    chunk.tokens = TOKENS;
    chunk.q = view_of(q);
    chunk.k = view_of(k);
    chunk.v = view_of(v);
    CHECK(oscar_calib_create(&desc, &calib) == OSCAR_OK);
    CHECK(oscar_calib_add(calib, 0, &chunk) == OSCAR_OK);
    CHECK(oscar_calib_solve(calib, NULL, &solved) == OSCAR_OK);
    oscar_calib_destroy(calib);
    CHECK(oscar_rotations_write(solved, NULL, 0, &size) == OSCAR_OK);
    file = malloc(size);
    CHECK(oscar_rotations_write(solved, file, size, &size) == OSCAR_OK);
    CHECK(oscar_rotations_read(file, size, hooks, &read) == OSCAR_OK);
    free(file);
    oscar_rotations_destroy(solved);
    return read;
}

static void attend_last(const oscar_cache *cache, oscar_seq seq, float *o)
{
    oscar_batch batch;
    oscar_view qv = view_of(q);
    oscar_out out;
    memset(&batch, 0, sizeof batch);
    memset(&out, 0, sizeof out);
    batch.seq = seq;
    batch.rows = 1;
    out.data = o;
    CHECK(oscar_attend(cache, 0, &batch, 1, &qv, NULL, &out, NULL) == OSCAR_OK);
}

/* The whole way; o receives two outputs, of a cache and of the one restored from its blob. */
static void whole_way(const oscar_hooks *hooks, float o[2][Q_HEADS * DIM])
{
    oscar_rotations *rotations = calibrated(hooks);
    oscar_layer layer;
    oscar_cache_desc desc;
    oscar_cache *cache = NULL;
    oscar_batch batch;
    oscar_seq restored = 0;
    oscar_view kv = view_of(k), vv = view_of(v);
    size_t size = 0;
    void *blob;
    make_layer(&layer);
    memset(&desc, 0, sizeof desc);
    memset(&batch, 0, sizeof batch);
    desc.layers = &layer;
    desc.layer_count = 1;
    desc.rotations = rotations;
    desc.max_sequences = 2;
    desc.max_pages = 8;
    desc.sink = 4;
    desc.recent = 16;
    if (hooks) desc.hooks = *hooks;
    CHECK(oscar_cache_create(&desc, &cache) == OSCAR_OK);
    oscar_rotations_destroy(rotations);
    CHECK(oscar_cache_open(cache, &batch.seq) == OSCAR_OK);
    CHECK(oscar_cache_reserve(cache, batch.seq, TOKENS, 0) == OSCAR_OK);
    batch.rows = TOKENS;
    CHECK(oscar_append(cache, 0, &batch, 1, &kv, &vv) == OSCAR_OK);
    attend_last(cache, batch.seq, o[0]);
    CHECK(oscar_cache_save(cache, batch.seq, NULL, 0, &size) == OSCAR_OK);
    blob = malloc(size);
    CHECK(oscar_cache_save(cache, batch.seq, blob, size, &size) == OSCAR_OK);
    CHECK(oscar_cache_restore(cache, blob, size, &restored) == OSCAR_OK);
    free(blob);
    attend_last(cache, restored, o[1]);
    CHECK(oscar_cache_check(cache) == OSCAR_OK);
    oscar_cache_destroy(cache);
}

int main(void)
{
    static float plain[2][Q_HEADS * DIM], hooked[2][Q_HEADS * DIM];
    oscar_hooks hooks;
    arena a;
    unsigned char *memory;
    test_random r;
    int i;
    r.state = 1;
    for (i = 0; i < TOKENS * HEADS * DIM; i++) k[i] = (float)random_normal(&r);
    for (i = 0; i < TOKENS * HEADS * DIM; i++) v[i] = (float)random_normal(&r);
    for (i = 0; i < TOKENS * Q_HEADS * DIM; i++) q[i] = (float)random_normal(&r);

    TEST("C7.3 without hooks all memory comes from OSCAR_MALLOC and goes back to OSCAR_FREE");
    whole_way(NULL, plain);
    CHECK(macro_calls > 0);
    CHECK(macro_live == 0);
    CHECK(memcmp(plain[0], plain[1], sizeof plain[0]) == 0);

    TEST("C7.3 with hooks OSCAR_MALLOC is not called, and the results are the same");
    memset(&a, 0, sizeof a);
    memset(&hooks, 0, sizeof hooks);
    a.size = (size_t)64 << 20;
    memory = (unsigned char *)malloc(a.size + 4096);
    a.memory = memory + 4096 - (uintptr_t)memory % 4096;
    hooks.alloc = arena_allocate;
    hooks.free = arena_release;
    hooks.log = arena_log;
    hooks.user = &a;
    macro_calls = 0;
    whole_way(&hooks, hooked);
    CHECK(macro_calls == 0 && macro_live == 0);
    CHECK(a.used > 0 && a.live == 0);
    CHECK(a.logged == 0);
    CHECK(memcmp(plain, hooked, sizeof plain) == 0);

    TEST("C7.3 the log writes its sentences without stdio");
    {
        oscar_layer layer, out;
        make_layer(&layer);
        layer.k_dim = 24;
        CHECK(oscar_layer_resolve(&layer, &hooks, &out) == OSCAR_ERR_SHAPE);
        CHECK(a.logged == 1 && a.code == OSCAR_ERR_SHAPE);
        CHECK_MSG(strstr(a.text, "24") != NULL, ("    the sentence does not name the number: %s\n", a.text));
    }

    TEST("OSCAR_ASSERT of the user is the one that is called");
    CHECK(asserts_failed == 0);
    oscar_convert(0, (oscar_type)77, NULL, OSCAR_F32, NULL);
    CHECK(asserts_failed == 1);
    free(memory);
    return test_end("test_nostdio");
}
