/* pager_model.h - a plain array model of the pager, and a driver that sends one operation to both and compares.

   The model keeps for each sequence its lengths and an array of pages, each with a name of its own and the id that the
   pager gave it. History grows token by token where recent gets too long, an abort of a started step is a commit and
   a cut, a fork copies the array. It knows the public API only and shares no formula with the pager.

       model_start(&m, ...);                    a pager of m.page_count pages, MODEL_SEQS sequences
       model_do(&m, op, which, raw)             one operation on the sequence at place which; raw, any number, becomes
                                                its argument. NULL, or a sentence that says what differs
       model_end(&m)                            closes all, checks that every page is free; NULL or a sentence */
#ifndef PAGER_MODEL_H
#define PAGER_MODEL_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { MODEL_SEQS = 6, MODEL_PAGES = 24, MODEL_STALE = 8 };

typedef enum model_op {
    MODEL_OPEN, MODEL_CLOSE, MODEL_FORK, MODEL_CUT, MODEL_RESERVE, MODEL_DRAFT, MODEL_COMMIT, MODEL_ACCEPT,
    MODEL_ABORT, MODEL_ABORT_STARTED, MODEL_REOPEN, MODEL_OPS
} model_op;

typedef struct model_page { int name; uint32_t id; } model_page;

typedef struct model_seq {
    oscar_seq handle;   /* 0: not open */
    int n, h, rows;
    oscar_step step;
    int count;
    model_page pages[MODEL_PAGES];
} model_seq;

typedef struct model {
    oscar_pager *pager;
    int sink, recent, page, draft, max_tokens, page_count;
    int names, free;
    model_seq seqs[MODEL_SEQS];
    oscar_seq stale[MODEL_STALE];
    int stale_next;
} model;

/* ---- the model alone ---- */

static int model_history(const model *m, int n, int h)   /* the oldest page leaves while recent has a page too many */
{
    while (n - m->sink - h >= m->recent + m->page) h += m->page;
    return h;
}

static void model_keep(const model *m, model_seq *s)
{
    s->step = OSCAR_STEP_NONE;
    s->rows = 0;
    s->count = s->h / m->page;
}

static void model_append(const model *m, model_seq *s, int rows, oscar_moves *moves)
{
    int before = s->h;
    s->n += rows;
    s->h = model_history(m, s->n, s->h);
    memset(moves, 0, sizeof *moves);
    if (s->h > before) { moves->demote_first = before / m->page; moves->demote_count = (s->h - before) / m->page; }
    moves->length = s->n;
    moves->history = s->h;
    model_keep(m, s);
}

static void model_cut(const model *m, model_seq *s, int n, oscar_moves *moves)
{
    memset(moves, 0, sizeof *moves);
    s->n = n;
    if (n < m->sink + s->h) {
        while (s->h > 0 && m->sink + s->h > n) s->h -= m->page;
        if (n > m->sink + s->h) {
            moves->decode_page = s->pages[s->h / m->page].id;
            moves->decode_tokens = n - m->sink - s->h;
            moves->decode_position = m->sink + s->h;
        }
    }
    moves->length = n;
    moves->history = s->h;
    model_keep(m, s);
}

static oscar_result model_reserve(model *m, model_seq *s, int64_t rows, int draft, oscar_moves *moves)
{
    model_seq reached = *s;
    oscar_moves plan;
    int i;
    if (s->step != OSCAR_STEP_NONE) return OSCAR_ERR_STATE;
    if (rows < 1 || (draft && rows > m->draft)) return OSCAR_ERR_ARGUMENT;
    if (rows > m->max_tokens - s->n) return OSCAR_ERR_FULL;
    model_append(m, &reached, (int)rows, &plan);
    if (reached.count - s->count > m->free) return OSCAR_ERR_FULL;
    if (draft) { memset(&plan, 0, sizeof plan); plan.length = s->n; plan.history = s->h; }
    *moves = plan;
    for (i = s->count; i < reached.count; i++) { s->pages[i].name = ++m->names; s->pages[i].id = UINT32_MAX; }
    s->count = reached.count;
    s->rows = (int)rows;
    s->step = draft ? OSCAR_STEP_DRAFT : OSCAR_STEP_APPEND;
    return OSCAR_OK;
}

static void model_abort(model *m, model_seq *s, int started, oscar_moves *moves)
{
    int n = s->n, before = s->h;
    if (s->step == OSCAR_STEP_APPEND && started) {   /* some layers appended and cut back, the others catch up */
        model_append(m, s, s->rows, moves);
        model_cut(m, s, n, moves);
        if (s->h > before) { moves->demote_first = before / m->page; moves->demote_count = (s->h - before) / m->page; }
        return;
    }
    memset(moves, 0, sizeof *moves);
    moves->length = n;
    moves->history = before;
    model_keep(m, s);
}

/* ---- model and pager side by side ---- */

static int model_moves_equal(const oscar_moves *a, const oscar_moves *b)
{
    return a->length == b->length && a->history == b->history && a->demote_first == b->demote_first
        && a->demote_count == b->demote_count && a->decode_page == b->decode_page
        && a->decode_tokens == b->decode_tokens && a->decode_position == b->decode_position;
}

/* One sequence; takes over the ids of new pages. owner: the name of each id that was seen, 0 none. */
static const char *model_compare_seq(const model *m, model_seq *s, int *owner)
{
    oscar_seq_state got;
    int i, sink = s->n < m->sink ? s->n : m->sink;
    if (oscar_seq_get(m->pager, s->handle, &got) != OSCAR_OK) return "an open handle is not valid";
    if (got.length != s->n || got.history != s->h) return "n or h differ";
    if (got.sink != sink || got.recent != s->n - sink - s->h) return "sink or recent differ";
    if (got.step != s->step || got.step_rows != s->rows) return "the step differs";
    if (got.step_history != (s->step == OSCAR_STEP_APPEND ? s->count * m->page : s->h)) return "step_history differs";
    if (got.page_count != s->count) return "the number of pages differs";
    if (got.recent > m->recent + m->page - 1) return "recent is too long";
    for (i = 0; i < s->count; i++) {
        uint32_t id = got.pages[i];
        if (s->pages[i].id == UINT32_MAX) s->pages[i].id = id;
        if (s->pages[i].id != id || id >= (uint32_t)m->page_count) return "a page changed its id";
        if (owner[id] && owner[id] != s->pages[i].name) return "an id stands for two pages";
        owner[id] = s->pages[i].name;
    }
    return NULL;
}

static const char *model_compare(model *m)
{
    int owner[MODEL_PAGES], i;
    const char *text;
    memset(owner, 0, sizeof owner);
    if (oscar_pager_check(m->pager) != OSCAR_OK) return "check() fails";
    for (i = 0; i < MODEL_SEQS; i++)
        if (m->seqs[i].handle && (text = model_compare_seq(m, &m->seqs[i], owner)) != NULL) return text;
    for (i = m->free = 0; i < m->page_count; i++) m->free += !owner[i];
    if (oscar_pager_free_pages(m->pager) != m->free) return "free pages differ";
    for (i = 0; i < MODEL_STALE; i++)
        if (oscar_seq_can(m->pager, m->stale[i], OSCAR_CAN_SAVE, 0) != OSCAR_ERR_HANDLE) return "stale, but valid";
    return NULL;
}

/* op on the pager; the answer of can() first, where it can be asked. */
static const char *model_call(model *m, model_op op, oscar_seq handle, int64_t arg, oscar_seq *born, oscar_moves *moves,
                              oscar_result *result)
{
    static const int asks[MODEL_OPS] = { -1, -1, OSCAR_CAN_FORK, OSCAR_CAN_CUT, OSCAR_CAN_RESERVE, OSCAR_CAN_DRAFT, -1,
                                         OSCAR_CAN_ACCEPT, -1, -1, -1 };
    oscar_result can = OSCAR_RESULT_COUNT;
    if (asks[op] >= 0) can = oscar_seq_can(m->pager, handle, (oscar_op)asks[op], arg);
    switch (op) {
    case MODEL_OPEN: *result = oscar_seq_open(m->pager, born); break;
    case MODEL_CLOSE: *result = oscar_seq_close(m->pager, handle); break;
    case MODEL_FORK: *result = oscar_seq_fork(m->pager, handle, arg, born, moves); break;
    case MODEL_CUT: *result = oscar_seq_cut(m->pager, handle, arg, moves); break;
    case MODEL_RESERVE: *result = oscar_seq_reserve(m->pager, handle, arg, 0, moves); break;
    case MODEL_DRAFT: *result = oscar_seq_reserve(m->pager, handle, arg, 1, moves); break;
    case MODEL_COMMIT: *result = oscar_seq_commit(m->pager, handle); break;
    case MODEL_ACCEPT: *result = oscar_seq_accept(m->pager, handle, arg, moves); break;
    case MODEL_ABORT: *result = oscar_seq_abort(m->pager, handle, 0, moves); break;
    case MODEL_ABORT_STARTED: *result = oscar_seq_abort(m->pager, handle, 1, moves); break;
    default: return "not an operation";
    }
    return asks[op] >= 0 && can != *result ? "can() and the operation disagree" : NULL;
}

/* What the model says: the result, and on OSCAR_OK the moves and the new state. to: the place of a new sequence. */
static oscar_result model_predict(model *m, model_op op, model_seq *s, model_seq *to, int64_t arg, oscar_moves *moves)
{
    switch (op) {
    case MODEL_OPEN:
        return to ? OSCAR_OK : OSCAR_ERR_FULL;
    case MODEL_CLOSE:
        memset(s, 0, sizeof *s);
        return OSCAR_OK;
    case MODEL_FORK:
    case MODEL_CUT:
        if (s->step != OSCAR_STEP_NONE) return OSCAR_ERR_STATE;
        if (arg < 0 || arg > s->n) return OSCAR_ERR_ARGUMENT;
        if (op == MODEL_FORK && !to) return OSCAR_ERR_FULL;
        if (op == MODEL_FORK) { *to = *s; s = to; }
        model_cut(m, s, (int)arg, moves);
        return OSCAR_OK;
    case MODEL_RESERVE:
    case MODEL_DRAFT:
        return model_reserve(m, s, arg, op == MODEL_DRAFT, moves);
    case MODEL_COMMIT:
        if (s->step == OSCAR_STEP_DRAFT) s->step = OSCAR_STEP_DRAFTED;
        else if (s->step == OSCAR_STEP_APPEND) model_append(m, s, s->rows, moves);
        else return OSCAR_ERR_STATE;
        return OSCAR_OK;
    case MODEL_ACCEPT:
        if (s->step != OSCAR_STEP_DRAFTED) return OSCAR_ERR_STATE;
        if (arg < 0 || arg > s->rows) return OSCAR_ERR_ARGUMENT;
        model_append(m, s, (int)arg, moves);
        return OSCAR_OK;
    default:
        if (s->step == OSCAR_STEP_NONE) return OSCAR_ERR_STATE;
        model_abort(m, s, op == MODEL_ABORT_STARTED, moves);
        return OSCAR_OK;
    }
}

/* One operation on the sequence at place `which`, or, where none is open there, on a stale handle. */
static const char *model_single(model *m, model_op op, int which, int64_t arg)
{
    model_seq *s = &m->seqs[which], *to = NULL;
    oscar_seq handle = s->handle, born = 0;
    oscar_result expected, result = OSCAR_RESULT_COUNT;
    oscar_moves moves, want;
    const char *text;
    int i;
    for (i = 0; i < MODEL_SEQS && !to; i++) if (!m->seqs[i].handle) to = &m->seqs[i];
    memset(&moves, 0x5a, sizeof moves);
    want = moves;
    if (!handle && op != MODEL_OPEN) {
        text = model_call(m, op, m->stale[(uint64_t)arg % MODEL_STALE], arg, &born, &moves, &result);
        if (text || result != OSCAR_ERR_HANDLE) return text ? text : "a stale handle does not give ERR_HANDLE";
    } else {
        text = model_call(m, op, handle, arg, &born, &moves, &result);
        expected = model_predict(m, op, s, to, arg, &want);
        if (text || result != expected) return text ? text : "the result differs";
        if (op == MODEL_COMMIT) moves = want;   /* commit reports none */
        if (result == OSCAR_OK && op == MODEL_CLOSE) m->stale[m->stale_next++ % MODEL_STALE] = handle;
        if (result == OSCAR_OK && (op == MODEL_OPEN || op == MODEL_FORK)) to->handle = born;
        if ((born != 0) != (result == OSCAR_OK && (op == MODEL_OPEN || op == MODEL_FORK))) return "a wrong new handle";
    }
    if (!model_moves_equal(&moves, &want)) return "the moves differ";   /* on an error: untouched */
    return model_compare(m);
}

/* A sequence of n tokens, h of them in pages, made anew as a snapshot is restored: a long append, then a cut. */
static const char *model_reopen(model *m, int which)
{
    model_seq old = m->seqs[which];
    int i, to = -1, long_enough = m->sink + m->recent + old.h;
    const char *text;
    if (!old.handle) return NULL;
    for (i = 0; i < MODEL_SEQS && to < 0; i++) if (!m->seqs[i].handle) to = i;
    if ((text = model_single(m, MODEL_OPEN, which, 0)) != NULL || to < 0 || old.n == 0) return text;
    if (old.h == 0 || long_enough < old.n) long_enough = old.n;
    if ((text = model_single(m, MODEL_RESERVE, to, long_enough)) != NULL) return text;
    if (m->seqs[to].step == OSCAR_STEP_NONE) return model_single(m, MODEL_CLOSE, to, 0);   /* no pages */
    if ((text = model_single(m, MODEL_COMMIT, to, 0)) != NULL) return text;
    if ((text = model_single(m, MODEL_CUT, to, old.n)) != NULL) return text;
    return m->seqs[to].n == old.n && m->seqs[to].h == old.h ? NULL : "a reopened sequence differs";
}

/* A random or fuzzed number becomes an argument that is mostly in range. */
static int64_t model_aim(const model *m, model_op op, int which, uint32_t raw)
{
    const model_seq *s = &m->seqs[which];
    uint32_t high = raw / 16;
    switch (op) {
    case MODEL_FORK:
    case MODEL_CUT:
        return raw % 4 ? (int64_t)(high % (uint32_t)(s->n + 3)) - 1 : s->n - (int64_t)(high % 80);
    case MODEL_RESERVE:
        if (raw % 16 == 0) return high % 4 < 2 ? (int64_t)(high % 4) - 1 : INT64_MAX - (high % 4 == 2 ? 0 : s->n);
        return raw % 4 ? 1 + (int64_t)(high % 40) : (int64_t)(high % 700);
    case MODEL_DRAFT:
        return (int64_t)(raw % (uint32_t)(m->draft + 3)) - 1;
    case MODEL_ACCEPT:
        return (int64_t)(raw % (uint32_t)(s->rows + 3)) - 1;
    default:
        return raw;
    }
}

static const char *model_do(model *m, model_op op, int which, uint32_t raw)
{
    if (op == MODEL_REOPEN) return model_reopen(m, which);
    return model_single(m, op, which, model_aim(m, op, which, raw));
}

/* Counts of a desc: 0 the default, -1 none; max_tokens 0: as many as all pages hold. */
static const char *model_start(model *m, int sink, int recent, int page, int draft, int pages, int max_tokens,
                               const oscar_hooks *hooks)
{
    oscar_pager_desc desc;
    memset(&desc, 0, sizeof desc);
    memset(m, 0, sizeof *m);
    desc.max_sequences = MODEL_SEQS;
    desc.max_pages = pages;
    desc.max_tokens = max_tokens;
    desc.sink = sink;
    desc.recent = recent;
    desc.page_tokens = page;
    desc.max_draft = draft;
    if (hooks) desc.hooks = *hooks;
    m->sink = sink < 0 ? 0 : sink ? sink : 64;
    m->recent = recent < 0 ? 0 : recent ? recent : 256;
    m->page = page ? page : 64;
    m->draft = draft < 0 ? 0 : draft ? draft : 16;
    m->page_count = m->free = pages;
    m->max_tokens = max_tokens ? max_tokens : m->sink + m->recent + (pages + 1) * m->page - 1;
    return oscar_pager_create(&desc, &m->pager) == OSCAR_OK ? model_compare(m) : "create fails";
}

static const char *model_end(model *m)
{
    const char *text = NULL;
    int i;
    for (i = 0; i < MODEL_SEQS && !text; i++) if (m->seqs[i].handle) text = model_single(m, MODEL_CLOSE, i, 0);
    if (!text && oscar_pager_free_pages(m->pager) != m->page_count) text = "pages are lost";
    oscar_pager_destroy(m->pager);
    return text;
}

#endif
