/* test_pager.c - sequences, page ids, references, and what moves when; no bytes. Random operations run against the
   array model of pager_model.h. The case ids of the storage (C4.8, C4.11, ...) are tested here as far as lengths, page
   ids and results go. */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "pager_model.h"
#include "test.h"

/* ---- hooks that count, fail on purpose and keep the last sentence ---- */

typedef struct probe {
    int allocs, frees, fail_at, logs;
    size_t live;
    oscar_level level;
    oscar_result code;
    char text[512];
} probe;

static void *probe_alloc(void *user, size_t size, size_t align)
{
    probe *p = (probe *)user;
    unsigned char *raw;
    size_t gap;
    if (++p->allocs == p->fail_at) return NULL;
    if (align < 64 || (align & (align - 1)) || !(raw = (unsigned char *)malloc(size + 2 * align))) return NULL;
    gap = align + (align - (uintptr_t)raw % align);
    memcpy(raw + gap - sizeof raw, &raw, sizeof raw);
    memset(raw + gap, 0xa5, size);
    p->live += size;
    return raw + gap;
}

static void probe_free(void *user, void *memory, size_t size, size_t align)
{
    probe *p = (probe *)user;
    unsigned char *raw;
    memcpy(&raw, (unsigned char *)memory - sizeof raw, sizeof raw);
    (void)align;
    p->frees++;
    p->live -= size;
    free(raw);
}

static void probe_log(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    probe *p = (probe *)user;
    p->logs++;
    p->level = level;
    p->code = code;
    strncpy(p->text, text, sizeof p->text - 1);
    CHECK(line > 0 && strlen(text) > 10 && !strchr(text, '\n'));
}

static oscar_pager_desc probe_desc(probe *p, int sequences, int64_t pages)
{
    oscar_pager_desc desc;
    memset(&desc, 0, sizeof desc);
    memset(p, 0, sizeof *p);
    desc.max_sequences = sequences;
    desc.max_pages = pages;
    desc.hooks.alloc = probe_alloc;
    desc.hooks.free = probe_free;
    desc.hooks.log = probe_log;
    desc.hooks.user = p;
    return desc;
}

static oscar_pager *make(probe *p, int sequences, int64_t pages)
{
    oscar_pager_desc desc = probe_desc(p, sequences, pages);
    oscar_pager *pager = NULL;
    CHECK(oscar_pager_create(&desc, &pager) == OSCAR_OK && pager);
    return pager;
}

/* Whether code is what was expected and came with a sentence that holds word. Forgets the sentence. */
static int said(probe *p, oscar_result code, oscar_result expected, const char *word)
{
    int right = code == expected && p->logs == 1 && p->code == expected && p->level == OSCAR_LOG_ERROR
                && strstr(p->text, word);
    if (!right) printf("    code %d, %d sentences: %s\n", (int)code, p->logs, p->text);
    p->logs = 0;
    p->text[0] = 0;
    return right;
}

static oscar_seq open_seq(oscar_pager *pager)
{
    oscar_seq seq = 0;
    CHECK(oscar_seq_open(pager, &seq) == OSCAR_OK && seq != 0);
    return seq;
}

static oscar_seq_state state_of(const oscar_pager *pager, oscar_seq seq)
{
    oscar_seq_state state;
    memset(&state, 0, sizeof state);
    CHECK(oscar_seq_get(pager, seq, &state) == OSCAR_OK);
    return state;
}

static oscar_result append(oscar_pager *pager, oscar_seq seq, int64_t rows)
{
    oscar_result result = oscar_seq_reserve(pager, seq, rows, 0, NULL);
    return result == OSCAR_OK ? oscar_seq_commit(pager, seq) : result;
}

static int is_at(const oscar_pager *pager, oscar_seq seq, int64_t n, int64_t h)
{
    oscar_seq_state s = state_of(pager, seq);
    return s.length == n && s.history == h && s.page_count * 64 == h && s.step == OSCAR_STEP_NONE;
}

static int moves_are(const oscar_moves *m, int64_t n, int64_t h, int64_t first, int64_t count, int tokens,
                     int64_t position)
{
    return m->length == n && m->history == h && m->demote_first == first && m->demote_count == count
        && m->decode_tokens == tokens && m->decode_position == position;
}

static int64_t due(int64_t n) { return n < 320 ? 0 : (n - 320) / 64 * 64; }   /* S0 = 64, W = 256, P = 64 */

/* ---- create ---- */

static void test_defaults(void)
{
    oscar_pager_desc zero, given, resolved;
    oscar_pager *a = NULL, *b = NULL;
    oscar_seq sa, sb;
    probe p;
    int i;

    TEST("C9.2 zeroed fields of the desc are the documented defaults");
    zero = probe_desc(&p, 3, 10);
    CHECK(oscar__pager_resolve(&zero, &resolved) == OSCAR_OK);
    CHECK(resolved.sink == 64 && resolved.recent == 256 && resolved.page_tokens == 64 && resolved.max_draft == 16);
    CHECK(resolved.max_tokens == 64 + 256 + 10 * 64 + 63 && resolved.max_sequences == 3 && resolved.max_pages == 10);
    given = zero;
    given.sink = 64;
    given.recent = 256;
    given.page_tokens = 64;
    given.max_draft = 16;
    given.max_tokens = 1023;
    CHECK(oscar_pager_create(&zero, &a) == OSCAR_OK);
    CHECK(oscar_pager_create(&given, &b) == OSCAR_OK);
    CHECK(p.allocs == 2);
    sa = open_seq(a);
    sb = open_seq(b);
    for (i = 0; i < 1100; i++) {
        oscar_seq_state x, y;
        oscar_result result = append(a, sa, 1);
        CHECK(result == append(b, sb, 1) && result == (i < 1023 ? OSCAR_OK : OSCAR_ERR_FULL));
        x = state_of(a, sa);
        y = state_of(b, sb);
        CHECK(x.length == y.length && x.history == y.history && x.recent == y.recent);
    }
    CHECK(oscar_seq_cut(a, sa, 0, NULL) == OSCAR_OK);
    CHECK(oscar_seq_can(a, sa, OSCAR_CAN_DRAFT, 16) == OSCAR_OK);
    CHECK(oscar_seq_can(a, sa, OSCAR_CAN_DRAFT, 17) == OSCAR_ERR_ARGUMENT);
    oscar_pager_destroy(a);
    oscar_pager_destroy(b);
    CHECK(p.frees == 2 && p.live == 0);

    TEST("-1 is none, NULL hooks are malloc and silence");
    memset(&given, 0, sizeof given);
    given.max_sequences = 1;
    given.max_pages = 2;
    given.sink = given.recent = given.max_draft = -1;
    CHECK(oscar__pager_resolve(&given, &resolved) == OSCAR_OK);
    CHECK(resolved.sink == 0 && resolved.recent == 0 && resolved.max_draft == 0 && resolved.max_tokens == 191);
    CHECK(oscar_pager_create(&given, &a) == OSCAR_OK);
    sa = open_seq(a);
    CHECK(append(a, sa, 63) == OSCAR_OK && is_at(a, sa, 63, 0));
    CHECK(append(a, sa, 1) == OSCAR_OK && is_at(a, sa, 64, 64));
    CHECK(oscar_seq_reserve(a, sa, 1, 1, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_seq_reserve(a, sa, 128, 0, NULL) == OSCAR_ERR_FULL);
    oscar_pager_destroy(a);
    oscar_pager_destroy(NULL);
}

static void refuse(oscar_pager_desc desc, probe *p, oscar_result code, const char *word)
{
    oscar_pager *out = (oscar_pager *)(void *)p;
    CHECK(said(p, oscar_pager_create(&desc, &out), code, word));
    CHECK(out == (oscar_pager *)(void *)p && p->allocs == p->frees);
}

static void test_ranges(void)
{
    oscar_pager_desc good, desc;
    oscar_pager *out = NULL;
    oscar__carver carver = { NULL, 0 };
    probe p;

    TEST("values out of range are refused with a sentence, and nothing is written");
    good = probe_desc(&p, 1, 1);
    desc = good; desc.max_sequences = 0; refuse(desc, &p, OSCAR_ERR_ARGUMENT, "max_sequences");
    desc = good; desc.max_sequences = -1; refuse(desc, &p, OSCAR_ERR_ARGUMENT, "max_sequences");
    desc = good; desc.max_pages = -1; refuse(desc, &p, OSCAR_ERR_ARGUMENT, "max_pages");
    desc = good; desc.max_pages = INT64_C(0xffffffff); refuse(desc, &p, OSCAR_ERR_ARGUMENT, "max_pages");
    desc = good; desc.max_tokens = -1; refuse(desc, &p, OSCAR_ERR_ARGUMENT, "max_tokens");
    desc = good; desc.sink = -2; refuse(desc, &p, OSCAR_ERR_ARGUMENT, "sink");
    desc = good; desc.recent = -2; refuse(desc, &p, OSCAR_ERR_ARGUMENT, "recent");
    desc = good; desc.max_draft = -2; refuse(desc, &p, OSCAR_ERR_ARGUMENT, "max_draft");
    desc = good; desc.page_tokens = -64; refuse(desc, &p, OSCAR_ERR_SHAPE, "page_tokens");
    desc = good; desc.page_tokens = 32; refuse(desc, &p, OSCAR_ERR_SHAPE, "page_tokens");
    desc = good; desc.hooks.free = NULL; refuse(desc, &p, OSCAR_ERR_ARGUMENT, "both or none");
    CHECK(said(&p, oscar_pager_create(&good, NULL), OSCAR_ERR_ARGUMENT, "place"));
    CHECK(oscar_pager_create(NULL, &out) == OSCAR_ERR_ARGUMENT && out == NULL);

    TEST("the largest values resolve without overflow, and only memory refuses them");
    desc = good;
    desc.max_sequences = desc.sink = desc.recent = desc.max_draft = INT32_MAX;
    desc.page_tokens = INT32_MAX - 63;
    desc.max_pages = INT64_C(0xfffffffe);
    CHECK(oscar__pager_resolve(&desc, &desc) == OSCAR_OK);
    CHECK(desc.max_tokens == INT64_C(0xfffffffe) * 2147483584 + INT64_C(2147483647) * 2 + 2147483583);
    CHECK(oscar__pager_table(&desc) == INT64_C(0xfffffffe));
    oscar__pager_carve(&carver, &desc, &out);
    CHECK(out == NULL && carver.size > (size_t)1 << (sizeof(size_t) > 4 ? 62 : 30));
    desc = good;
    desc.max_sequences = INT32_MAX;
    desc.max_pages = INT64_C(0xfffffffe);
    p.fail_at = 1;
    CHECK(said(&p, oscar_pager_create(&desc, &out), OSCAR_ERR_MEMORY, "max_sequences") && out == NULL);

    TEST("NULL objects and places give an error");
    {
        oscar_pager *pager = make(&p, 1, 1);
        oscar_seq seq = open_seq(pager), born = 0;
        oscar_seq_state state;
        CHECK(said(&p, oscar_seq_open(pager, NULL), OSCAR_ERR_ARGUMENT, "place"));
        CHECK(said(&p, oscar_seq_get(pager, seq, NULL), OSCAR_ERR_ARGUMENT, "place"));
        CHECK(said(&p, oscar_seq_fork(pager, seq, 0, NULL, NULL), OSCAR_ERR_ARGUMENT, "place"));
        CHECK(oscar_seq_open(NULL, &born) == OSCAR_ERR_ARGUMENT && oscar_seq_close(NULL, seq) == OSCAR_ERR_ARGUMENT);
        CHECK(oscar_seq_get(NULL, seq, &state) == OSCAR_ERR_ARGUMENT);
        CHECK(oscar_seq_fork(NULL, seq, 0, &born, NULL) == OSCAR_ERR_ARGUMENT && born == 0);
        CHECK(oscar_seq_cut(NULL, seq, 0, NULL) == OSCAR_ERR_ARGUMENT);
        CHECK(oscar_seq_reserve(NULL, seq, 1, 0, NULL) == OSCAR_ERR_ARGUMENT);
        CHECK(oscar_seq_commit(NULL, seq) == OSCAR_ERR_ARGUMENT);
        CHECK(oscar_seq_accept(NULL, seq, 0, NULL) == OSCAR_ERR_ARGUMENT);
        CHECK(oscar_seq_abort(NULL, seq, 0, NULL) == OSCAR_ERR_ARGUMENT);
        CHECK(oscar_seq_can(NULL, seq, OSCAR_CAN_SHIFT, 0) == OSCAR_ERR_ARGUMENT);
        CHECK(oscar_seq_can(pager, seq, (oscar_op)7, 0) == OSCAR_ERR_ARGUMENT);
        CHECK(oscar_pager_check(NULL) == OSCAR_ERR_ARGUMENT && oscar_pager_free_pages(NULL) == 0 && p.logs == 0);
        oscar_pager_destroy(pager);
    }
}

static void test_memory(void)
{
    oscar_pager *pager;
    oscar_pager_desc desc;
    probe p;
    int n;

    TEST("C4.10 the N-th allocation fails: nothing is left, and the next create works");
    desc = probe_desc(&p, 4, 30);
    for (n = 1; n <= 50; n++) {
        oscar_result result;
        p.allocs = p.frees = p.logs = 0;
        p.fail_at = n;
        pager = NULL;
        result = oscar_pager_create(&desc, &pager);
        CHECK(result == (n == 1 ? OSCAR_ERR_MEMORY : OSCAR_OK) && (pager != NULL) == (n != 1));
        CHECK(p.allocs == 1 && (n != 1 || (p.live == 0 && said(&p, result, OSCAR_ERR_MEMORY, "bytes"))));
        if (pager) CHECK(append(pager, open_seq(pager), 500) == OSCAR_OK && p.allocs == 1);
        oscar_pager_destroy(pager);
        CHECK(p.live == 0 && p.frees == p.allocs - (n == 1));
    }

    TEST("a pager carved out of a larger allocation, as a cache does");
    {
        oscar_pager_desc resolved;
        oscar__carver carver = { NULL, 0 };
        void *memory, *other;
        size_t size;
        desc = probe_desc(&p, 2, 5);
        CHECK(oscar__pager_resolve(&desc, &resolved) == OSCAR_OK);
        CHECK(oscar__carve(&carver, 3, 5) == NULL);
        oscar__pager_carve(&carver, &resolved, &pager);
        CHECK(pager == NULL);
        oscar__carve(&carver, 7, 1);
        size = carver.size;
        memory = oscar__alloc(&desc.hooks, size);
        carver.base = (unsigned char *)memory;
        carver.size = 0;
        memset(oscar__carve(&carver, 3, 5), 1, 15);
        oscar__pager_carve(&carver, &resolved, &pager);
        other = oscar__carve(&carver, 7, 1);
        memset(other, 2, 7);
        CHECK(carver.size == size && (unsigned char *)pager > (unsigned char *)memory);
        oscar__pager_init(pager, &resolved);
        CHECK(oscar_pager_check(pager) == OSCAR_OK && oscar_pager_free_pages(pager) == 5);
        {
            oscar_seq seq = open_seq(pager);
            oscar__seq *slot;
            CHECK(oscar__seq_slot(seq) == 0 && oscar__seq_slot(open_seq(pager)) == 1);
            CHECK(oscar__seq_find(pager, NULL, seq, &slot) == OSCAR_OK && slot == pager->seqs);
            CHECK(append(pager, seq, 320 + 5 * 64 + 63) == OSCAR_OK && slot->page_count == 5);
            CHECK(oscar_pager_check(pager) == OSCAR_OK);
        }
        oscar__carver_free(&desc.hooks, memory, size);
        CHECK(p.live == 0);
    }
}

/* ---- handles ---- */

static void test_handles(void)
{
    oscar_pager *pager;
    oscar_seq a, b, c, born = 99;
    oscar_seq_state state;
    oscar_moves moves;
    probe p;
    int i;

    TEST("stale, foreign and zero handles are ERR_HANDLE everywhere and change nothing");
    pager = make(&p, 2, 4);
    a = open_seq(pager);
    CHECK(append(pager, a, 400) == OSCAR_OK && oscar_pager_free_pages(pager) == 3);
    CHECK(oscar_seq_close(pager, a) == OSCAR_OK && oscar_pager_free_pages(pager) == 4);
    b = open_seq(pager);
    CHECK(b != a && oscar__seq_slot(a) == oscar__seq_slot(b));   /* the slot again, another generation */
    for (i = 0; i < 5; i++) {
        oscar_seq bad = i == 0 ? a : i == 1 ? 0 : i == 2 ? b + 1 : i == 3 ? b | (oscar_seq)0x80000000u : ~(oscar_seq)0;
        int op;
        memset(&moves, 7, sizeof moves);
        CHECK(said(&p, oscar_seq_close(pager, bad), OSCAR_ERR_HANDLE, "not open"));
        CHECK(said(&p, oscar_seq_get(pager, bad, &state), OSCAR_ERR_HANDLE, "not open"));
        CHECK(said(&p, oscar_seq_fork(pager, bad, 0, &born, &moves), OSCAR_ERR_HANDLE, "not open") && born == 99);
        CHECK(said(&p, oscar_seq_cut(pager, bad, 0, &moves), OSCAR_ERR_HANDLE, "not open"));
        CHECK(said(&p, oscar_seq_reserve(pager, bad, 1, 0, &moves), OSCAR_ERR_HANDLE, "not open"));
        CHECK(said(&p, oscar_seq_commit(pager, bad), OSCAR_ERR_HANDLE, "not open"));
        CHECK(said(&p, oscar_seq_accept(pager, bad, 0, &moves), OSCAR_ERR_HANDLE, "not open"));
        CHECK(said(&p, oscar_seq_abort(pager, bad, 0, &moves), OSCAR_ERR_HANDLE, "not open"));
        for (op = OSCAR_CAN_RESERVE; op <= OSCAR_CAN_SAVE; op++)
            CHECK(oscar_seq_can(pager, bad, (oscar_op)op, 1) == OSCAR_ERR_HANDLE);
        CHECK(p.logs == 0 && moves.length == INT64_C(0x0707070707070707));
    }
    CHECK(is_at(pager, b, 0, 0) && oscar_pager_check(pager) == OSCAR_OK);

    TEST("C4.9 no slot is ERR_FULL that names max_sequences; a closed one is enough");
    c = open_seq(pager);
    CHECK(append(pager, c, 100) == OSCAR_OK);
    CHECK(said(&p, oscar_seq_open(pager, &born), OSCAR_ERR_FULL, "max_sequences") && born == 99);
    CHECK(said(&p, oscar_seq_fork(pager, c, 50, &born, NULL), OSCAR_ERR_FULL, "max_sequences") && born == 99);
    CHECK(oscar_seq_can(pager, c, OSCAR_CAN_FORK, 50) == OSCAR_ERR_FULL && p.logs == 0);
    CHECK(is_at(pager, c, 100, 0) && oscar_seq_close(pager, b) == OSCAR_OK);
    CHECK(oscar_seq_fork(pager, c, 50, &born, NULL) == OSCAR_OK && is_at(pager, born, 50, 0));
    oscar_pager_destroy(pager);

    TEST("the generation wraps past zero, and no handle is zero");
    pager = make(&p, 1, 0);
    pager->seqs[0].generation = 0xfffffffeu;
    a = open_seq(pager);
    CHECK(a == ((oscar_seq)0xffffffffu << 32) && oscar_seq_close(pager, a) == OSCAR_OK);
    b = open_seq(pager);
    CHECK(b == (oscar_seq)1 << 32 && oscar_pager_check(pager) == OSCAR_OK);
    CHECK(oscar_seq_get(pager, a, &state) == OSCAR_ERR_HANDLE && is_at(pager, b, 0, 0));
    oscar_pager_destroy(pager);
}

/* ---- boundaries ---- */

static void test_boundaries(void)
{
    static const int chunks[9] = { 1, 2, 3, 7, 8, 255, 256, 257, 1000 };
    test_random r = { 46 };
    oscar_pager *pager;
    oscar_moves moves;
    probe p;
    int i, run;

    TEST("C4.6 regions follow the formula after every chunk, and recent never exceeds W + P - 1");
    pager = make(&p, 4, 200);
    for (run = 0; run < 4; run++) {   /* one by one, then chunks in random order */
        oscar_seq seq = open_seq(pager);
        int64_t n = 0, h = 0;
        while (n < 5000) {
            int64_t k = run == 0 ? 1 : chunks[random_below(&r, 9)];
            oscar_seq_state s;
            CHECK(oscar_seq_reserve(pager, seq, k, 0, &moves) == OSCAR_OK);
            n += k;
            CHECK(moves.length == n && moves.history == due(n));
            CHECK(moves.demote_count == (due(n) - h) / 64 && moves.demote_first == (due(n) > h ? h / 64 : 0));
            s = state_of(pager, seq);
            CHECK(s.length == n - k && s.history == h && s.step_history == due(n) && s.page_count == due(n) / 64);
            CHECK(s.step == OSCAR_STEP_APPEND && s.step_rows == k && oscar_seq_commit(pager, seq) == OSCAR_OK);
            h = due(n);
            s = state_of(pager, seq);
            CHECK(s.length == n && s.history == h && s.step_rows == 0 && s.step_history == h);
            CHECK(s.sink == (n < 64 ? n : 64) && s.sink + s.recent + s.history == n);
            CHECK(s.recent <= 256 + 63 && (h == 0 || s.recent >= 256));
        }
        CHECK(oscar_seq_close(pager, seq) == OSCAR_OK && oscar_pager_check(pager) == OSCAR_OK);
    }
    oscar_pager_destroy(pager);

    TEST("C4.7 prompts of 0 to 700 tokens, then 300 more: no page is lost or free twice");
    pager = make(&p, 1, 16);
    for (i = 0; i <= 700; i++) {
        oscar_seq seq = open_seq(pager);
        int k, right = 1;
        if (i) CHECK(append(pager, seq, i) == OSCAR_OK);
        for (k = 1; k <= 300; k++) {
            right &= append(pager, seq, 1) == OSCAR_OK && is_at(pager, seq, i + k, due(i + k));
            right &= oscar_pager_free_pages(pager) == 16 - due(i + k) / 64;
            if (k % 16 == 0) right &= oscar_pager_check(pager) == OSCAR_OK;
        }
        CHECK(right && oscar_seq_close(pager, seq) == OSCAR_OK);
        CHECK(oscar_pager_free_pages(pager) == 16 && oscar_pager_check(pager) == OSCAR_OK);
    }
    oscar_pager_destroy(pager);
}

static int all_different(const uint32_t *ids, int64_t count)
{
    int64_t i, j;
    for (i = 0; i < count; i++) for (j = 0; j < i; j++) if (ids[i] == ids[j]) return 0;
    return 1;
}

static void test_reuse(void)
{
    int page, pages;
    TEST("C4.8 cut by 1 to 300 and append again: pages in use are h / P, none is handed out twice");
    for (page = 64; page <= 128; page += 64) {
        for (pages = 1; pages <= 9; pages++) {
            oscar_pager_desc desc;
            oscar_pager *pager;
            oscar_seq seq, other;
            probe p;
            int by;
            desc = probe_desc(&p, 2, 24);
            desc.page_tokens = page;
            CHECK(oscar_pager_create(&desc, &pager) == OSCAR_OK);
            other = open_seq(pager);
            CHECK(append(pager, other, 320 + 2 * page) == OSCAR_OK);
            for (by = 1; by <= 300; by++) {
                int64_t n = 320 + pages * page + by % page, cut = n - by;
                oscar_seq_state s;
                seq = open_seq(pager);
                CHECK(append(pager, seq, n) == OSCAR_OK && oscar_seq_cut(pager, seq, cut, NULL) == OSCAR_OK);
                s = state_of(pager, seq);
                CHECK(s.length == cut && s.history <= (cut > 64 ? cut - 64 : 0) && s.page_count == s.history / page);
                CHECK(24 - oscar_pager_free_pages(pager) == 2 + s.history / page);
                CHECK(oscar_seq_reserve(pager, seq, by + 2 * page, 0, NULL) == OSCAR_OK);
                s = state_of(pager, seq);
                CHECK(24 - oscar_pager_free_pages(pager) == 2 + s.step_history / page);
                CHECK(s.page_count == pages + 2 && all_different(s.pages, s.page_count));
                CHECK(oscar_pager_check(pager) == OSCAR_OK && oscar_seq_commit(pager, seq) == OSCAR_OK);
                CHECK(oscar_seq_close(pager, seq) == OSCAR_OK && oscar_pager_free_pages(pager) == 22);
            }
            CHECK(oscar_pager_check(pager) == OSCAR_OK);
            oscar_pager_destroy(pager);
        }
    }
}

/* ---- running out ---- */

static void test_full(void)
{
    oscar_pager *pager;
    oscar_pager_desc desc;
    oscar_moves moves;
    oscar_seq a, b;
    probe p;

    TEST("C4.9 out of pages with slots free: ERR_FULL names max_pages, the sequence is as before, a close helps");
    pager = make(&p, 8, 2);
    a = open_seq(pager);
    b = open_seq(pager);
    CHECK(append(pager, a, 384) == OSCAR_OK && append(pager, b, 400) == OSCAR_OK && oscar_pager_free_pages(pager) == 0);
    CHECK(append(pager, a, 63) == OSCAR_OK);
    memset(&moves, 7, sizeof moves);
    CHECK(oscar_seq_can(pager, a, OSCAR_CAN_RESERVE, 1) == OSCAR_ERR_FULL && p.logs == 0);
    CHECK(said(&p, oscar_seq_reserve(pager, a, 1, 0, &moves), OSCAR_ERR_FULL, "max_pages"));
    CHECK(moves.length == INT64_C(0x0707070707070707) && is_at(pager, a, 447, 64));
    CHECK(oscar_pager_check(pager) == OSCAR_OK && oscar_seq_close(pager, b) == OSCAR_OK);
    CHECK(append(pager, a, 1) == OSCAR_OK && is_at(pager, a, 448, 128));
    oscar_pager_destroy(pager);

    TEST("C4.9 out of max_tokens with pages free: ERR_FULL names max_tokens");
    desc = probe_desc(&p, 1, 50);
    desc.max_tokens = 500;
    CHECK(oscar_pager_create(&desc, &pager) == OSCAR_OK);
    a = open_seq(pager);
    CHECK(append(pager, a, 490) == OSCAR_OK && pager->table_pages == 2);
    CHECK(said(&p, oscar_seq_reserve(pager, a, 11, 0, NULL), OSCAR_ERR_FULL, "max_tokens"));
    CHECK(said(&p, oscar_seq_reserve(pager, a, 11, 1, NULL), OSCAR_ERR_FULL, "max_tokens"));
    CHECK(append(pager, a, 10) == OSCAR_OK && is_at(pager, a, 500, 128));
    CHECK(said(&p, oscar_seq_reserve(pager, a, INT64_MAX, 0, NULL), OSCAR_ERR_FULL, "max_tokens"));
    CHECK(said(&p, oscar_seq_reserve(pager, a, INT64_MIN, 0, NULL), OSCAR_ERR_ARGUMENT, "at least 1"));
    CHECK(said(&p, oscar_seq_cut(pager, a, INT64_MIN, NULL), OSCAR_ERR_ARGUMENT, "0 to that"));
    CHECK(said(&p, oscar_seq_cut(pager, a, INT64_MAX, NULL), OSCAR_ERR_ARGUMENT, "0 to that"));
    oscar_pager_destroy(pager);

    TEST("rows up to INT64_MAX where max_tokens is INT64_MAX: only pages run out");
    desc.max_tokens = INT64_MAX;
    CHECK(oscar_pager_create(&desc, &pager) == OSCAR_OK && pager->table_pages == 50);
    a = open_seq(pager);
    CHECK(said(&p, oscar_seq_reserve(pager, a, INT64_MAX, 0, NULL), OSCAR_ERR_FULL, "max_pages"));
    CHECK(append(pager, a, 320 + 51 * 64 - 1) == OSCAR_OK && oscar_pager_free_pages(pager) == 0);
    CHECK(said(&p, oscar_seq_reserve(pager, a, INT64_MAX - 3583, 0, NULL), OSCAR_ERR_FULL, "max_pages"));
    CHECK(said(&p, oscar_seq_reserve(pager, a, INT64_MAX, 0, NULL), OSCAR_ERR_FULL, "max_pages"));
    CHECK(said(&p, oscar_seq_reserve(pager, a, INT64_MAX - 3582, 0, NULL), OSCAR_ERR_FULL, "max_pages"));
    CHECK(oscar_pager_check(pager) == OSCAR_OK);
    oscar_pager_destroy(pager);

    TEST("C4.10 a pool of 4 pages, 5 wanted; 3 free, 5 wanted: nothing changes, less works");
    pager = make(&p, 2, 4);
    a = open_seq(pager);
    CHECK(said(&p, oscar_seq_reserve(pager, a, 320 + 5 * 64, 0, NULL), OSCAR_ERR_FULL, "pages: 5 wanted"));
    CHECK(is_at(pager, a, 0, 0) && oscar_pager_free_pages(pager) == 4 && oscar_pager_check(pager) == OSCAR_OK);
    CHECK(append(pager, a, 390) == OSCAR_OK && oscar_pager_free_pages(pager) == 3);
    b = open_seq(pager);
    CHECK(said(&p, oscar_seq_reserve(pager, b, 700, 0, NULL), OSCAR_ERR_FULL, "5 wanted for 700 rows, 3 of 4"));
    CHECK(oscar_pager_free_pages(pager) == 3 && is_at(pager, a, 390, 64) && is_at(pager, b, 0, 0));
    CHECK(append(pager, b, 320 + 3 * 64 + 63) == OSCAR_OK && oscar_pager_free_pages(pager) == 0);
    CHECK(oscar_pager_check(pager) == OSCAR_OK);
    oscar_pager_destroy(pager);
}

/* ---- drafts, abort ---- */

static void test_drafts(void)
{
    oscar_pager *pager;
    oscar_moves moves;
    probe p;
    int i;

    TEST("C4.11 8 drafts of which 3 are accepted equal 3 tokens; 8 appended and cut have the same length");
    for (i = 0; i < 2; i++) {
        int64_t n = i ? 1023 : 1000;   /* 1024 makes a page due */
        oscar_seq draft, twin, third;
        oscar_seq_state s, t;
        pager = make(&p, 3, 60);
        draft = open_seq(pager);
        twin = open_seq(pager);
        third = open_seq(pager);
        CHECK(append(pager, draft, n) == OSCAR_OK && append(pager, twin, n) == OSCAR_OK);
        CHECK(append(pager, third, n) == OSCAR_OK && oscar_pager_free_pages(pager) == 30);
        CHECK(oscar_seq_reserve(pager, draft, 8, 1, &moves) == OSCAR_OK && moves_are(&moves, n, 640, 0, 0, 0, 0));
        s = state_of(pager, draft);
        CHECK(s.length == n && s.history == 640 && s.step == OSCAR_STEP_DRAFT && s.step_rows == 8);
        CHECK(s.step_history == 640 && s.page_count == 10 + i && oscar_pager_free_pages(pager) == 30 - i);
        CHECK(said(&p, oscar_seq_accept(pager, draft, 3, NULL), OSCAR_ERR_STATE, "nothing to accept"));
        CHECK(oscar_seq_can(pager, draft, OSCAR_CAN_ACCEPT, 3) == OSCAR_ERR_STATE && p.logs == 0);
        CHECK(oscar_seq_commit(pager, draft) == OSCAR_OK);
        s = state_of(pager, draft);
        CHECK(s.step == OSCAR_STEP_DRAFTED && s.length == n && s.history == 640 && s.step_rows == 8);
        CHECK(said(&p, oscar_seq_commit(pager, draft), OSCAR_ERR_STATE, "no step"));
        CHECK(said(&p, oscar_seq_reserve(pager, draft, 1, 0, NULL), OSCAR_ERR_STATE, "drafts waiting"));
        CHECK(said(&p, oscar_seq_accept(pager, draft, 9, NULL), OSCAR_ERR_ARGUMENT, "has 8"));
        CHECK(said(&p, oscar_seq_accept(pager, draft, -1, NULL), OSCAR_ERR_ARGUMENT, "has 8"));
        CHECK(oscar_seq_accept(pager, draft, 3, &moves) == OSCAR_OK);
        CHECK(moves_are(&moves, n + 3, 640 + 64 * i, i ? 10 : 0, i, 0, 0));
        CHECK(append(pager, twin, 3) == OSCAR_OK && oscar_pager_free_pages(pager) == 30 - 2 * i);
        CHECK(append(pager, third, 8) == OSCAR_OK && oscar_seq_cut(pager, third, n + 3, &moves) == OSCAR_OK);
        s = state_of(pager, draft);
        t = state_of(pager, twin);
        CHECK(s.length == t.length && s.history == t.history && s.sink == t.sink && s.recent == t.recent);
        CHECK(s.step == t.step && s.page_count == t.page_count);
        CHECK(state_of(pager, third).length == n + 3 && oscar_pager_check(pager) == OSCAR_OK);
        oscar_pager_destroy(pager);
    }

    TEST("accept gives back the pages that all drafts would have needed, accept of none leaves no trace");
    pager = make(&p, 1, 2);
    {
        oscar_seq seq = open_seq(pager);
        CHECK(append(pager, seq, 383) == OSCAR_OK);
        CHECK(oscar_seq_reserve(pager, seq, 16, 1, NULL) == OSCAR_OK && oscar_pager_free_pages(pager) == 1);
        CHECK(oscar_seq_commit(pager, seq) == OSCAR_OK && oscar_seq_accept(pager, seq, 0, &moves) == OSCAR_OK);
        CHECK(moves_are(&moves, 383, 0, 0, 0, 0, 0) && is_at(pager, seq, 383, 0) && oscar_pager_free_pages(pager) == 2);
        CHECK(oscar_seq_reserve(pager, seq, 16, 1, NULL) == OSCAR_OK && oscar_seq_commit(pager, seq) == OSCAR_OK);
        CHECK(oscar_seq_accept(pager, seq, 1, &moves) == OSCAR_OK && moves_are(&moves, 384, 64, 0, 1, 0, 0));
        CHECK(is_at(pager, seq, 384, 64) && oscar_pager_free_pages(pager) == 1);
        CHECK(said(&p, oscar_seq_reserve(pager, seq, 17, 1, NULL), OSCAR_ERR_ARGUMENT, "max_draft"));
        CHECK(said(&p, oscar_seq_reserve(pager, seq, 0, 1, NULL), OSCAR_ERR_ARGUMENT, "at least 1"));
        CHECK(append(pager, seq, 127) == OSCAR_OK && oscar_pager_free_pages(pager) == 0);
        CHECK(said(&p, oscar_seq_reserve(pager, seq, 1, 1, NULL), OSCAR_ERR_FULL, "max_pages"));
        CHECK(oscar_pager_check(pager) == OSCAR_OK);
    }
    oscar_pager_destroy(pager);
}

/* n tokens appended, a step of k (draft 0 or 1, committed or not), then abort: what it must give. */
typedef struct abort_row {
    int n, cut, k, draft, commit, started;
    int64_t h, first, count;
    int tokens;
    int64_t position;
} abort_row;

static void test_abort(void)
{
    static const abort_row rows[] = {
        /*  n    cut   k  draft commit started   h  first count tokens position */
        {  100, 100,  50,  0, 0, 0,     0, 0, 0,  0,   0 },
        {  400, 400,   1,  0, 0, 1,    64, 0, 0,  0,   0 },   /* no page due */
        {  400, 400, 500,  0, 0, 0,    64, 0, 0,  0,   0 },   /* not started: no trace */
        {  447, 447,   1,  0, 0, 1,   128, 1, 1,  0,   0 },   /* h_step = 128 fits into n: kept */
        {  400, 400, 500,  0, 0, 1,   320, 1, 4, 16, 384 },   /* h_step = 576; 320 = 64 floor(336 / 64) */
        {  384, 384, 900,  0, 0, 1,   320, 1, 4,  0,   0 },   /* no token behind the last whole page */
        {   10,  10, 900,  0, 0, 1,     0, 0, 0,  0,   0 },   /* all of it in the sink */
        {   70,  70, 900,  0, 0, 1,     0, 0, 0,  6,  64 },
        {    0,   0, 900,  0, 0, 1,     0, 0, 0,  0,   0 },
        {  447, 447,   8,  1, 0, 1,    64, 0, 0,  0,   0 },   /* drafts: no trace, started or not */
        {  447, 447,   8,  1, 1, 1,    64, 0, 0,  0,   0 },
        {  447, 447,   8,  1, 1, 0,    64, 0, 0,  0,   0 },
        {  900, 650, 300,  0, 0, 1,   576, 0, 0,  0,   0 },   /* after a cut h = 576 is above the formula's 320 */
        {  900, 650, 500,  0, 0, 1,   576, 0, 0, 10, 640 },   /* h_step = 768 */
        {  900, 650, 310,  0, 0, 1,   576, 0, 0, 10, 640 },   /* h_step = 640 */
    };
    size_t i;
    TEST("abort: no trace before the first append and of drafts, else h = min(h_step, max(h, whole pages of n))");
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const abort_row *row = &rows[i];
        oscar_pager *pager;
        oscar_moves moves;
        oscar_seq_state s;
        oscar_seq seq;
        uint32_t ids[32];
        int64_t free_before;
        probe p;
        pager = make(&p, 1, 24);
        seq = open_seq(pager);
        if (row->n) CHECK(append(pager, seq, row->n) == OSCAR_OK);
        CHECK(oscar_seq_cut(pager, seq, row->cut, NULL) == OSCAR_OK);
        free_before = 24 - state_of(pager, seq).history / 64;
        CHECK(oscar_pager_free_pages(pager) == free_before);
        CHECK(said(&p, oscar_seq_abort(pager, seq, row->started, &moves), OSCAR_ERR_STATE, "no step to abort"));
        CHECK(oscar_seq_reserve(pager, seq, row->k, row->draft, NULL) == OSCAR_OK);
        if (row->commit) CHECK(oscar_seq_commit(pager, seq) == OSCAR_OK);
        s = state_of(pager, seq);
        memcpy(ids, s.pages, (size_t)s.page_count * sizeof ids[0]);
        CHECK(oscar_seq_abort(pager, seq, row->started, &moves) == OSCAR_OK);
        CHECK_MSG(moves_are(&moves, row->cut, row->h, row->first, row->count, row->tokens, row->position),
                  ("    row %d: n %d h %d first %d count %d tokens %d position %d\n", (int)i, (int)moves.length,
                   (int)moves.history, (int)moves.demote_first, (int)moves.demote_count, moves.decode_tokens,
                   (int)moves.decode_position));
        CHECK(moves.decode_page == (row->tokens ? ids[row->h / 64] : 0));
        CHECK(is_at(pager, seq, row->cut, row->h) && oscar_pager_free_pages(pager) == 24 - row->h / 64);
        s = state_of(pager, seq);
        CHECK(memcmp(s.pages, ids, (size_t)s.page_count * sizeof ids[0]) == 0);
        CHECK(oscar_pager_check(pager) == OSCAR_OK && oscar_seq_reserve(pager, seq, 1, 0, NULL) == OSCAR_OK);
        CHECK(oscar_seq_abort(pager, seq, 0, NULL) == OSCAR_OK);
        oscar_pager_destroy(pager);
    }
}

/* ---- cut, fork, can ---- */

static void test_cut(void)
{
    static const int lengths[] = { 100, 319, 320, 321, 383, 384, 385, 447, 448, 449, 5000 };
    size_t i;
    TEST("C4.12 can and cut agree for every target length, and do what design 4.2 says");
    for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        int64_t n = lengths[i], to;
        oscar_pager *pager;
        oscar_seq seq, copy;
        oscar_seq_state s;
        oscar_moves moves;
        probe p;
        pager = make(&p, 2, 80);
        seq = open_seq(pager);
        CHECK(append(pager, seq, n) == OSCAR_OK);
        for (to = -2; to <= n + 2; to++) {
            int valid = to >= 0 && to <= n;
            int64_t h = due(n), back = 0;
            oscar_result can, result;
            CHECK(oscar_seq_fork(pager, seq, n, &copy, NULL) == OSCAR_OK);
            can = oscar_seq_can(pager, copy, OSCAR_CAN_CUT, to);
            result = oscar_seq_cut(pager, copy, to, &moves);
            CHECK(can == result && result == (valid ? OSCAR_OK : OSCAR_ERR_ARGUMENT));
            if (valid) {
                if (to < 64 + h) {
                    h = to < 64 ? 0 : (to - 64) / 64 * 64;
                    back = to < 64 ? 0 : (to - 64) % 64;
                }
                CHECK(moves_are(&moves, to, h, 0, 0, (int)back, back ? 64 + h : 0));
                s = state_of(pager, seq);
                CHECK(moves.decode_page == (back ? s.pages[h / 64] : 0) && is_at(pager, copy, to, h));
            } else {
                CHECK(is_at(pager, copy, n, h));
            }
            CHECK(oscar_pager_free_pages(pager) == 80 - due(n) / 64 && oscar_seq_close(pager, copy) == OSCAR_OK);
        }
        CHECK(oscar_seq_cut(pager, seq, n / 2, &moves) == OSCAR_OK && oscar_pager_check(pager) == OSCAR_OK);
        CHECK(oscar_pager_free_pages(pager) == 80 - moves.history / 64);
        oscar_pager_destroy(pager);
    }

    TEST("a page that a cut released keeps its id until the next reserve, which hands it out first");
    {
        oscar_pager *pager;
        oscar_seq seq;
        oscar_moves moves;
        uint32_t first, second;
        probe p;
        pager = make(&p, 1, 9);
        seq = open_seq(pager);
        CHECK(append(pager, seq, 448) == OSCAR_OK);
        first = state_of(pager, seq).pages[0];
        second = state_of(pager, seq).pages[1];
        CHECK(oscar_seq_cut(pager, seq, 100, &moves) == OSCAR_OK && moves.decode_page == first);
        CHECK(moves_are(&moves, 100, 0, 0, 0, 36, 64) && oscar_pager_free_pages(pager) == 9);
        CHECK(oscar_seq_reserve(pager, seq, 348, 0, NULL) == OSCAR_OK);
        CHECK(state_of(pager, seq).pages[0] == first && state_of(pager, seq).pages[1] == second);
        oscar_pager_destroy(pager);
    }
}

static void test_fork(void)
{
    oscar_pager *pager;
    oscar_seq a, b, c;
    oscar_seq_state sa, sb;
    oscar_moves moves;
    probe p;

    TEST("fork shares pages, counts them, and needs no free one");
    pager = make(&p, 4, 4);
    a = open_seq(pager);
    CHECK(append(pager, a, 320 + 4 * 64 + 10) == OSCAR_OK && oscar_pager_free_pages(pager) == 0);
    CHECK(oscar_seq_fork(pager, a, 586, &b, &moves) == OSCAR_OK && moves_are(&moves, 586, 256, 0, 0, 0, 0));
    sa = state_of(pager, a);
    sb = state_of(pager, b);
    CHECK(sb.page_count == 4 && memcmp(sa.pages, sb.pages, 4 * sizeof sa.pages[0]) == 0 && sa.pages != sb.pages);
    CHECK(oscar_seq_fork(pager, a, 200, &c, &moves) == OSCAR_OK && moves_are(&moves, 200, 128, 0, 0, 8, 192));
    CHECK(moves.decode_page == sa.pages[2] && is_at(pager, c, 200, 128) && is_at(pager, a, 586, 256));
    CHECK(pager->references[sa.pages[0]] == 3 && pager->references[sa.pages[1]] == 3);
    CHECK(pager->references[sa.pages[2]] == 2 && pager->references[sa.pages[3]] == 2);
    CHECK(oscar_pager_check(pager) == OSCAR_OK);

    TEST("a shared page outlives the sequence that made it, and is free when the last one leaves it");
    CHECK(oscar_seq_close(pager, a) == OSCAR_OK && oscar_pager_free_pages(pager) == 0);
    CHECK(oscar_seq_cut(pager, b, 210, NULL) == OSCAR_OK && oscar_pager_free_pages(pager) == 2);
    CHECK(append(pager, b, 300) == OSCAR_OK && is_at(pager, b, 510, 128) && oscar_pager_free_pages(pager) == 2);
    CHECK(append(pager, c, 320) == OSCAR_OK && is_at(pager, c, 520, 192) && oscar_pager_free_pages(pager) == 1);
    CHECK(append(pager, b, 2) == OSCAR_OK && is_at(pager, b, 512, 192) && oscar_pager_free_pages(pager) == 0);
    sb = state_of(pager, b);
    sa = state_of(pager, c);
    CHECK(sa.pages[0] == sb.pages[0] && sa.pages[1] == sb.pages[1] && sa.pages[2] != sb.pages[2]);
    CHECK(oscar_seq_close(pager, b) == OSCAR_OK && oscar_pager_free_pages(pager) == 1);
    CHECK(oscar_seq_close(pager, c) == OSCAR_OK && oscar_pager_free_pages(pager) == 4);
    CHECK(oscar_pager_check(pager) == OSCAR_OK);
    oscar_pager_destroy(pager);
}

static void test_close_any(void)
{
    static const char *const names[4] = { "none", "append", "draft", "drafted" };
    int step;
    TEST("close in any step gives everything back, reserved pages too");
    for (step = 0; step < 4; step++) {
        oscar_pager *pager;
        oscar_seq seq;
        probe p;
        pager = make(&p, 1, 6);
        seq = open_seq(pager);
        CHECK(append(pager, seq, 447) == OSCAR_OK);
        if (step) CHECK(oscar_seq_reserve(pager, seq, 16, step > 1, NULL) == OSCAR_OK);
        if (step == 3) CHECK(oscar_seq_commit(pager, seq) == OSCAR_OK);
        CHECK(oscar_pager_free_pages(pager) == (step ? 4 : 5) && oscar_pager_check(pager) == OSCAR_OK);
        CHECK_MSG(oscar_seq_close(pager, seq) == OSCAR_OK && oscar_pager_free_pages(pager) == 6,
                  ("    step %s\n", names[step]));
        CHECK(oscar_pager_check(pager) == OSCAR_OK && is_at(pager, open_seq(pager), 0, 0));
        oscar_pager_destroy(pager);
    }
}

/* A sequence of 447 tokens in each of the four steps (0 none, 1 append, 2 draft, 3 drafted), one more page is free;
   `slots` free. */
typedef struct can_row {
    int step, slots;
    oscar_op op;
    int64_t arg;
    oscar_result expected;
} can_row;

static oscar_result act(oscar_pager *pager, oscar_seq seq, oscar_op op, int64_t arg)
{
    oscar_seq born;
    switch (op) {
    case OSCAR_CAN_RESERVE: return oscar_seq_reserve(pager, seq, arg, 0, NULL);
    case OSCAR_CAN_DRAFT: return oscar_seq_reserve(pager, seq, arg, 1, NULL);
    case OSCAR_CAN_ACCEPT: return oscar_seq_accept(pager, seq, arg, NULL);
    case OSCAR_CAN_CUT: return oscar_seq_cut(pager, seq, arg, NULL);
    default: return oscar_seq_fork(pager, seq, arg, &born, NULL);
    }
}

static void test_can(void)
{
    static const can_row rows[] = {
        { 0, 0, OSCAR_CAN_RESERVE, 0, OSCAR_ERR_ARGUMENT }, { 0, 0, OSCAR_CAN_RESERVE, 1, OSCAR_OK },
        { 0, 0, OSCAR_CAN_RESERVE, 64, OSCAR_OK }, { 0, 0, OSCAR_CAN_RESERVE, 65, OSCAR_ERR_FULL },
        { 1, 0, OSCAR_CAN_RESERVE, 1, OSCAR_ERR_STATE }, { 2, 0, OSCAR_CAN_RESERVE, 1, OSCAR_ERR_STATE },
        { 3, 0, OSCAR_CAN_RESERVE, 1, OSCAR_ERR_STATE },
        { 0, 0, OSCAR_CAN_DRAFT, 16, OSCAR_OK }, { 0, 0, OSCAR_CAN_DRAFT, 17, OSCAR_ERR_ARGUMENT },
        { 0, 0, OSCAR_CAN_DRAFT, -1, OSCAR_ERR_ARGUMENT }, { 2, 0, OSCAR_CAN_DRAFT, 1, OSCAR_ERR_STATE },
        { 0, 0, OSCAR_CAN_ACCEPT, 0, OSCAR_ERR_STATE }, { 1, 0, OSCAR_CAN_ACCEPT, 0, OSCAR_ERR_STATE },
        { 2, 0, OSCAR_CAN_ACCEPT, 0, OSCAR_ERR_STATE }, { 3, 0, OSCAR_CAN_ACCEPT, 0, OSCAR_OK },
        { 3, 0, OSCAR_CAN_ACCEPT, 8, OSCAR_OK }, { 3, 0, OSCAR_CAN_ACCEPT, 9, OSCAR_ERR_ARGUMENT },
        { 3, 0, OSCAR_CAN_ACCEPT, -1, OSCAR_ERR_ARGUMENT },
        { 0, 0, OSCAR_CAN_CUT, 447, OSCAR_OK }, { 0, 0, OSCAR_CAN_CUT, 0, OSCAR_OK },
        { 0, 0, OSCAR_CAN_CUT, 448, OSCAR_ERR_ARGUMENT }, { 0, 0, OSCAR_CAN_CUT, -1, OSCAR_ERR_ARGUMENT },
        { 1, 0, OSCAR_CAN_CUT, 0, OSCAR_ERR_STATE }, { 2, 0, OSCAR_CAN_CUT, 0, OSCAR_ERR_STATE },
        { 3, 0, OSCAR_CAN_CUT, 447, OSCAR_ERR_STATE },
        { 0, 1, OSCAR_CAN_FORK, 447, OSCAR_OK }, { 0, 1, OSCAR_CAN_FORK, 0, OSCAR_OK },
        { 0, 0, OSCAR_CAN_FORK, 447, OSCAR_ERR_FULL }, { 0, 1, OSCAR_CAN_FORK, 448, OSCAR_ERR_ARGUMENT },
        { 1, 1, OSCAR_CAN_FORK, 0, OSCAR_ERR_STATE }, { 3, 1, OSCAR_CAN_FORK, 0, OSCAR_ERR_STATE },
    };
    size_t i;
    TEST("C4.18 can gives what the operation gives, row by row, without log and without a change");
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const can_row *row = &rows[i];
        oscar_pager *pager;
        oscar_seq seq;
        oscar_seq_state before, after;
        oscar_result can, result;
        probe p;
        pager = make(&p, 1 + row->slots, 2);
        seq = open_seq(pager);
        CHECK(append(pager, seq, 447) == OSCAR_OK);
        if (row->step) CHECK(oscar_seq_reserve(pager, seq, 8, row->step > 1, NULL) == OSCAR_OK);
        if (row->step == 3) CHECK(oscar_seq_commit(pager, seq) == OSCAR_OK);
        before = state_of(pager, seq);
        can = oscar_seq_can(pager, seq, row->op, row->arg);
        CHECK(p.logs == 0 && oscar_pager_check(pager) == OSCAR_OK);
        result = act(pager, seq, row->op, row->arg);
        CHECK_MSG(can == row->expected && result == row->expected,
                  ("    row %d: can %d, result %d\n", (int)i, (int)can, (int)result));
        CHECK(p.logs == (result != OSCAR_OK));
        after = state_of(pager, seq);
        if (result != OSCAR_OK) CHECK(before.length == after.length && before.step == after.step
                                      && before.history == after.history && before.page_count == after.page_count);
        CHECK(oscar_pager_check(pager) == OSCAR_OK);
        oscar_pager_destroy(pager);
    }

    TEST("C4.17 C4.18 save needs no open step; a shift of positions is unsupported and changes nothing");
    for (i = 0; i < 4; i++) {
        oscar_pager *pager;
        oscar_seq seq;
        probe p;
        pager = make(&p, 1, 2);
        seq = open_seq(pager);
        CHECK(append(pager, seq, 447) == OSCAR_OK);
        if (i) CHECK(oscar_seq_reserve(pager, seq, 8, i > 1, NULL) == OSCAR_OK);
        if (i == 3) CHECK(oscar_seq_commit(pager, seq) == OSCAR_OK);
        CHECK(oscar_seq_can(pager, seq, OSCAR_CAN_SAVE, 0) == (i ? OSCAR_ERR_STATE : OSCAR_OK));
        CHECK(oscar_seq_can(pager, seq, OSCAR_CAN_SHIFT, 10) == OSCAR_ERR_UNSUPPORTED);
        CHECK(oscar_seq_can(pager, seq, OSCAR_CAN_SHIFT, -10) == OSCAR_ERR_UNSUPPORTED && p.logs == 0);
        CHECK(state_of(pager, seq).length == 447 && (int)state_of(pager, seq).step == (int)i);
        CHECK(oscar_pager_check(pager) == OSCAR_OK);
        oscar_pager_destroy(pager);
    }
}

/* ---- check ---- */

/* A pager with two pages in a, one of them shared with b, and drafts in c that reserved one. */
static oscar_pager *make_busy(probe *p, oscar_seq *a, oscar_seq *b, oscar_seq *c)
{
    oscar_pager_desc desc = probe_desc(p, 5, 9);
    oscar_pager *pager = NULL;
    desc.max_tokens = 2000;
    CHECK(oscar_pager_create(&desc, &pager) == OSCAR_OK);
    *a = open_seq(pager);
    CHECK(append(pager, *a, 450) == OSCAR_OK && oscar_seq_fork(pager, *a, 140, b, NULL) == OSCAR_OK);
    *c = open_seq(pager);
    CHECK(append(pager, *c, 383) == OSCAR_OK && oscar_seq_reserve(pager, *c, 2, 1, NULL) == OSCAR_OK);
    CHECK(oscar_pager_check(pager) == OSCAR_OK && p->logs == 0);
    return pager;
}

/* Changes one thing; returns a word that check's sentence must hold, NULL after the last. */
static const char *damage(oscar_pager *pager, int which)
{
    oscar__seq *a = &pager->seqs[0], *b = &pager->seqs[1], *c = &pager->seqs[2];
    switch (which) {
    case 0: pager->references[a->pages[0]]++; return "references";
    case 1: pager->references[a->pages[1]]--; return "references";
    case 2: pager->free_pages[0] = pager->free_pages[1]; return "free list";
    case 3: pager->free_pages[0] = a->pages[0]; return "free list";
    case 4: pager->free_pages[0] = 9; return "free list";
    case 5: pager->free_count--; return "neither in use nor free";
    case 6: pager->free_count = -1; return "are free";
    case 7: pager->free_count = 10; return "are free";
    case 8: a->pages[1] = 9; return "page 9 of 9";
    case 9: a->pages[1] = a->pages[0]; pager->references[a->pages[0]]++; return "place";
    case 10: a->length = -1; return "length";
    case 11: a->length = pager->desc.max_tokens + 1; return "length";
    case 12: a->history = 65; return "multiple";
    case 13: a->history = -64; return "multiple";
    case 14: b->history = 128; return "too long";
    case 15: a->history = 64; return "recent holds";
    case 16: a->step_rows = 1; return "rows";
    case 17: c->step_rows = 0; return "rows";
    case 18: c->step_rows = 17; return "rows";
    case 19: c->step_rows = -1; return "rows";
    case 20: a->step = OSCAR_STEP_APPEND; a->step_rows = INT64_MAX; return "rows";
    case 21: a->step = (oscar_step)4; return "none of the four";
    case 22: c->step_history = 64; return "after step";
    case 23: c->step = OSCAR_STEP_APPEND; return "after step";
    case 24: a->page_count = 1; return "due";
    case 25: c->page_count = 0; return "due";
    case 26: a->generation = 0; return "generation";
    case 27: pager->seqs[3].open = 1; return "slot";
    case 28: a->open = 0; return "free, of";
    case 29: pager->free_slot = OSCAR__NO_SLOT; return "free, of";
    case 30: pager->seqs[4].next = 3; return "circle";
    case 31: pager->seqs[4].next = 5; return "slot 5";
    case 32: b->pages[0] = c->pages[0]; return "references";
    case 33: a->step = (oscar_step)-1; return "none of the four";
    case 34: a->length = 960; a->history = a->step_history = 640; a->page_count = 10; return "table of 9";
    default: return NULL;
    }
}

static void test_check(void)
{
    int which;
    TEST("check finds each broken invariant and names it");
    for (which = 0; ; which++) {
        oscar_seq a, b, c;
        oscar_pager *pager;
        const char *word;
        probe p;
        pager = make_busy(&p, &a, &b, &c);
        word = damage(pager, which);
        if (word) CHECK_MSG(said(&p, oscar_pager_check(pager), OSCAR_ERR_STATE, word), ("    damage %d\n", which));
        oscar_pager_destroy(pager);
        if (!word) break;
    }
    CHECK(which == 35);
}

/* ---- the model ---- */

static void test_model(void)
{
    static const int sinks[4] = { -1, 0, 1, 100 }, recents[4] = { -1, 1, 64, 130 }, drafts[4] = { -1, 1, 0, 150 };
    /* open, close, fork, cut, reserve, draft, commit, accept, abort, abort started, reopen */
    static const int weights[MODEL_OPS] = { 6, 3, 6, 10, 24, 10, 26, 10, 3, 6, 1 };
    int seed, total = 0, i;
    for (i = 0; i < MODEL_OPS; i++) total += weights[i];

    TEST("C4.16 10^5 random operations x 20 seeds equal a plain array model, check() after each");
    for (seed = 0; seed < 20; seed++) {
        test_random r = { 0 };
        const char *text;
        model m;
        int done = 0, op = 0, which = 0;
        r.state = (uint64_t)(1000 + seed);
        text = model_start(&m, sinks[seed % 4], recents[(seed / 2 + seed / 4) % 4], 64 * (1 + seed % 3 / 2),
                           drafts[(seed + seed / 4) % 4], seed == 7 ? 0 : 3 + seed % 5 * 5, seed % 3 == 1 ? 900 : 0,
                           NULL);
        for (; done < 100000 && !text; done++) {
            int pick = random_below(&r, total);
            for (op = 0; pick >= weights[op]; op++) pick -= weights[op];
            which = random_below(&r, MODEL_SEQS);
            text = model_do(&m, (model_op)op, which, random_u32(&r) % 65536);
        }
        CHECK_MSG(!text, ("    seed %d, operation %d (kind %d, place %d): %s\n", seed, done, op, which, text));
        if (!text) CHECK((text = model_end(&m)) == NULL);
    }
}

int main(void)
{
    test_defaults();
    test_ranges();
    test_memory();
    test_handles();
    test_boundaries();
    test_reuse();
    test_full();
    test_drafts();
    test_abort();
    test_cut();
    test_fork();
    test_close_any();
    test_can();
    test_check();
    test_model();
    return test_end("test_pager");
}
