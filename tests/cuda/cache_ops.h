/* cache_ops.h - operations on both caches of cache_case.h, and the tests that need no more of a driver than a real one
   has: random operations, captured graphs, bad rows. */
#ifndef OSCAR_TEST_CACHE_OPS_H
#define OSCAR_TEST_CACHE_OPS_H

#include "tests/cuda/cache_case.h"

/* == OPERATIONS, on both caches == */

static int pick_open(test_random *random)
{
    int i, at = random_below(random, SEQUENCES);
    for (i = 0; i < SEQUENCES; i++, at = (at + 1) % SEQUENCES)
        if (both.seq[at].device) return at;
    return -1;
}

static void do_open(test_random *random)
{
    int at = random_below(random, SEQUENCES);
    if (both.seq[at].device) return;
    CHECK(oscar_cuda_cache_open(both.device, &both.seq[at].device) == OSCAR_OK);
    CHECK(oscar_cache_open(both.host, &both.seq[at].host) == OSCAR_OK);
    CHECK(both.seq[at].device == both.seq[at].host);
}

/* A batch of distinct sequences, some of them padding; rows of `most` at most. */
static int make_batch(test_random *random, int most, oscar_batch *batch)
{
    int i, j, count = 0, entries = 1 + random_below(random, ENTRIES), row = 0;
    for (i = 0; i < entries; i++) {
        int at = pick_open(random);
        oscar_seq seq = at < 0 || random_below(random, 6) == 0 ? 0 : both.seq[at].device;
        for (j = 0; j < count; j++) if (batch[j].seq == seq) seq = 0;
        batch[count].seq = seq;
        batch[count].row = row;
        batch[count].rows = 1 + random_below(random, most);
        row += (int)batch[count].rows;
        count++;
    }
    return count;
}

static int reserve_host(const oscar_batch *batch, int count, int draft)
{
    int i;
    for (i = 0; i < count; i++) {
        oscar_result result = !batch[i].seq ? OSCAR_OK
                                            : oscar_cache_reserve(both.host, batch[i].seq, batch[i].rows, draft);
        if (!result) continue;
        while (i--) if (batch[i].seq) (void)oscar_cache_abort(both.host, batch[i].seq);
        return result;
    }
    return OSCAR_OK;
}

/* A step of both caches; 1 if it was opened. Its rows are made and lie on the device. */
static int open_step(test_random *random, const oscar_batch *batch, int count, int draft, int rows)
{
    oscar_result result = oscar_cuda_step(both.device, batch, count, draft, both.stream);
    CHECK(result == (oscar_result)reserve_host(batch, count, draft));
    if (result) return 0;
    make_rows(random, rows);
    return 1;
}

static void append_both(int layer, const oscar_batch *batch, int count)
{
    oscar_view k, v;
    oscar_cuda_rows dk, dv;
    views(layer, &k, &v);
    device_rows(layer, &dk, &dv);
    CHECK(oscar_cuda_append(both.device, layer, &dk, &dv, both.stream) == OSCAR_OK);
    CHECK(oscar_append(both.host, layer, batch, count, &k, &v) == OSCAR_OK);
}

static void attend_both(int layer, const oscar_batch *batch, int count)
{
    oscar_view q;
    oscar_out o;
    oscar_cuda_rows dq, out;
    int i;
    memset(&o, 0, sizeof o);
    memset(&q, 0, sizeof q);
    q.data = rows_q[layer];
    o.data = want_o;
    device_q(layer, &dq, &out);
    CHECK(oscar_cuda_attend(both.device, layer, &dq, device.sinks, &out, device.lse, both.stream) == OSCAR_OK);
    CHECK(oscar_attend(both.host, layer, batch, count, &q, sink_logits, &o, want_lse) == OSCAR_OK);
    fetch_from(device.o, device.lse);
    for (i = 0; i < count; i++) compare_rows(layer, (int)batch[i].row, (int)batch[i].rows, batch[i].seq == 0);
}

static void do_step(test_random *random, int draft)
{
    oscar_batch batch[ENTRIES];
    int count = make_batch(random, MOST_ROWS, batch), i, l;
    if (!open_step(random, batch, count, draft, STEP_ROWS)) return;
    for (i = 0; i < LAYERS; i++) {
        l = draft ? LAYERS - 1 - i : i;
        append_both(l, batch, count);
        if (random_below(random, 2)) attend_both(l, batch, count);
    }
    if (random_below(random, 3) == 0) attend_both(0, batch, count);   /* after the commit */
    if (!draft) return;
    for (i = 0; i < count; i++) {
        if (!batch[i].seq) continue;
        if (random_below(random, 4) == 0) {
            CHECK(oscar_cuda_cache_abort(both.device, batch[i].seq, both.stream) == OSCAR_OK);
            CHECK(oscar_cache_abort(both.host, batch[i].seq) == OSCAR_OK);
            batch[i].seq = 0;
            continue;
        }
        batch[i].rows = random_below(random, (int)batch[i].rows + 1);
        CHECK(oscar_cache_accept(both.host, batch[i].seq, batch[i].rows) == OSCAR_OK);
    }
    CHECK(oscar_cuda_cache_accept(both.device, batch, count, both.stream) == OSCAR_OK);
}

/* A prefill: the device's part over what was there before, joined with the chunk's own, against oscar_prefill. */
static void do_prefill(test_random *random)
{
    oscar_batch batch[ENTRIES];
    int count = make_batch(random, CHUNK_ROWS / ENTRIES, batch), l, i;
    if (!open_step(random, batch, count, 0, CHUNK_ROWS)) return;
    for (l = 0; l < LAYERS; l++) {
        oscar_view k, v, q;
        oscar_out o;
        oscar_cuda_rows dk, dv, dq, out;
        oscar_seq_state before[ENTRIES];
        memset(&o, 0, sizeof o);
        memset(&q, 0, sizeof q);
        views(l, &k, &v);
        device_rows(l, &dk, &dv);
        device_q(l, &dq, &out);
        q.data = rows_q[l];
        o.data = want_o;
        for (i = 0; i < count; i++)
            if (batch[i].seq) CHECK(oscar_cache_get(both.host, batch[i].seq, &before[i]) == OSCAR_OK);
        CHECK(oscar_cuda_attend_history(both.device, l, &dq, &out, device.lse, both.stream) == OSCAR_OK);
        fetch_from(device.o, device.lse);
        CHECK(oscar_cuda_append(both.device, l, &dk, &dv, both.stream) == OSCAR_OK);
        CHECK(oscar_prefill(both.host, l, batch, count, &q, &k, &v, NULL, &o, want_lse) == OSCAR_OK);
        for (i = 0; i < count; i++) {
            if (!batch[i].seq) continue;
            join_chunk(l, (int)batch[i].row, (int)batch[i].rows, before[i].length);
            compare_rows(l, (int)batch[i].row, (int)batch[i].rows, 0);
        }
    }
}

/* A step that some layers append and that is aborted, or closed, sequence by sequence. */
static void do_abandon(test_random *random)
{
    oscar_batch batch[ENTRIES];
    int count = make_batch(random, random_below(random, 2) ? MOST_ROWS : CHUNK_ROWS / ENTRIES, batch), i, l, layers;
    if (!open_step(random, batch, count, 0, CHUNK_ROWS)) return;
    layers = random_below(random, LAYERS);
    for (l = 0; l < layers; l++) append_both(l, batch, count);
    for (i = 0; i < count; i++) {
        int at;
        if (!batch[i].seq) continue;
        if (random_below(random, 3) == 0) continue;   /* stays, if others do */
        for (at = 0; both.seq[at].device != batch[i].seq; at++) {}
        if (random_below(random, 6) == 0) {
            CHECK(oscar_cuda_cache_close(both.device, batch[i].seq, both.stream) == OSCAR_OK);
            CHECK(oscar_cache_close(both.host, batch[i].seq) == OSCAR_OK);
            both.seq[at].device = both.seq[at].host = 0;
        } else {
            CHECK(oscar_cuda_cache_abort(both.device, batch[i].seq, both.stream) == OSCAR_OK);
            CHECK(oscar_cache_abort(both.host, batch[i].seq) == OSCAR_OK);
        }
        batch[i].seq = 0;
    }
    for (i = 0; i < count && !batch[i].seq; i++) {}
    if (both.device->step_open) for (l = layers; l < LAYERS; l++) append_both(l, batch, count);
}

static void do_cut(test_random *random)
{
    int at = pick_open(random);
    oscar_seq_state state;
    int64_t to;
    if (at < 0) return;
    CHECK(oscar_cache_get(both.host, both.seq[at].host, &state) == OSCAR_OK);
    to = random_below(random, (int)state.length + 1);
    if (random_below(random, 2)) to = state.length - random_below(random, (int)state.length / 4 + 1);
    CHECK(oscar_cuda_cache_cut(both.device, both.seq[at].device, to, both.stream)
          == oscar_cache_cut(both.host, both.seq[at].host, to));
}

static void do_fork(test_random *random)
{
    int at = pick_open(random), to = random_below(random, SEQUENCES);
    oscar_seq_state state;
    int64_t length;
    if (at < 0 || both.seq[to].device) return;
    CHECK(oscar_cache_get(both.host, both.seq[at].host, &state) == OSCAR_OK);
    length = random_below(random, 2) ? state.length : random_below(random, (int)state.length + 1);
    CHECK(oscar_cuda_cache_fork(both.device, both.seq[at].device, length, &both.seq[to].device, both.stream)
          == OSCAR_OK);
    CHECK(oscar_cache_fork(both.host, both.seq[at].host, length, &both.seq[to].host) == OSCAR_OK);
}

static void do_close(test_random *random)
{
    int at = pick_open(random);
    if (at < 0) return;
    CHECK(oscar_cuda_cache_close(both.device, both.seq[at].device, both.stream) == OSCAR_OK);
    CHECK(oscar_cache_close(both.host, both.seq[at].host) == OSCAR_OK);
    both.seq[at].device = both.seq[at].host = 0;
}

/* What can be done is the same on both; what a device cannot do it says. */
static void ask(test_random *random)
{
    int at = pick_open(random), i;
    if (at < 0) return;
    for (i = OSCAR_CAN_RESERVE; i <= OSCAR_CAN_FORK; i++) {
        oscar_op op = (oscar_op)i;
        int64_t arg = random_below(random, 4) ? random_below(random, 400) : random_below(random, 4000) - 10;
        CHECK(oscar_cuda_cache_can(both.device, both.seq[at].device, op, arg)
              == oscar_cache_can(both.host, both.seq[at].host, op, arg));
    }
    CHECK(oscar_cuda_cache_can(both.device, both.seq[at].device, OSCAR_CAN_SAVE, 0) == OSCAR_ERR_UNSUPPORTED);
    CHECK(oscar_cuda_cache_can(both.device, both.seq[at].device, OSCAR_CAN_SHIFT, 1) == OSCAR_ERR_UNSUPPORTED);
    CHECK(oscar_cuda_cache_can(both.device, 0, OSCAR_CAN_RESERVE, 1) == OSCAR_ERR_HANDLE);
}

static void do_any(test_random *random)
{
    int what = random_below(random, 20);
    ask(random);
    if (what < 3) do_open(random);
    else if (what < 9) do_step(random, 0);
    else if (what < 12) do_prefill(random);
    else if (what < 15) do_step(random, 1);
    else if (what < 17) do_abandon(random);
    else if (what < 18) do_cut(random);
    else if (what < 19) do_fork(random);
    else if (random_below(random, 2)) do_close(random);
}

static void test_random_operations(int rounds, unsigned seed, int late)
{
    test_random random = { seed };
    int i;
    TEST(late ? "C6.cache random operations, work done when somebody waits" : "C6.cache random operations");
    start(late);
    for (i = 0; i < rounds && !test_state.failed_now; i++) {
        do_any(&random);
        if (i % 4 == 3) compare_caches();
    }
    compare_caches();
    CHECK_MSG(!test_state.failed_now, ("    seed %u, round %d, log %s\n", seed, i, said.text));
    stop();
}

/* == GRAPHS == */

static struct { void *graph, *exec; } recorded;

/* Records append and attention of all layers. */
static void record(void)
{
    int l;
    CHECK(!cu.StreamBeginCapture(both.stream, 0));
    for (l = 0; l < LAYERS; l++) {
        oscar_cuda_rows k, v, q, o;
        device_rows(l, &k, &v);
        device_q(l, &q, &o);
        o.data = device.layer_o[l];
        CHECK(oscar_cuda_append(both.device, l, &k, &v, both.stream) == OSCAR_OK);
        CHECK(oscar_cuda_attend(both.device, l, &q, device.sinks, &o, device.layer_lse[l], both.stream) == OSCAR_OK);
    }
    CHECK(!cu.StreamEndCapture(both.stream, &recorded.graph));
    CHECK(!cu.GraphInstantiate(&recorded.exec, recorded.graph, 0));
}

/* A step of the CPU, and whether the graph's results are the same. */
static void check_replay(const oscar_batch *batch)
{
    int l, i;
    for (l = 0; l < LAYERS; l++) {
        oscar_view k, v, q;
        oscar_out o;
        memset(&q, 0, sizeof q);
        memset(&o, 0, sizeof o);
        views(l, &k, &v);
        q.data = rows_q[l];
        o.data = want_o;
        CHECK(oscar_append(both.host, l, batch, ENTRIES, &k, &v) == OSCAR_OK);
        CHECK(oscar_attend(both.host, l, batch, ENTRIES, &q, sink_logits, &o, want_lse) == OSCAR_OK);
        fetch_from(device.layer_o[l], device.layer_lse[l]);
        for (i = 0; i < ENTRIES; i++)
            compare_rows(l, (int)batch[i].row, (int)batch[i].rows, batch[i].seq == 0);
    }
}

static void cut_all(int64_t length)
{
    int i;
    for (i = 0; i < ENTRIES; i++) {
        CHECK(oscar_cuda_cache_cut(both.device, both.seq[i].device, length, both.stream) == OSCAR_OK);
        CHECK(oscar_cache_cut(both.host, both.seq[i].host, length) == OSCAR_OK);
    }
}

/* Records a step, and replays it that often at other lengths. */
static void test_graph(int replays)
{
    test_random random = { 9 };
    oscar_batch batch[ENTRIES];
    void *popped;
    int i, round = 0;
    TEST("C6.13 one capture, replayed for other steps, also of fewer entries");
    start(0);
    for (i = 0; i < ENTRIES; i++) do_open_at(i);
    while (round <= replays && !test_state.failed_now) {
        int row = 0, count = round ? 1 + random_below(&random, ENTRIES) : (int)ENTRIES;
        memset(batch, 0, sizeof batch);
        for (i = 0; i < ENTRIES; i++) {
            batch[i].rows = 1 + random_below(&random, MOST_ROWS);
            batch[i].row = row;
            row += (int)batch[i].rows;
            if (i < count && random_below(&random, 5)) batch[i].seq = both.seq[i].device;
        }
        if (!open_step(&random, batch, count, 0, STEP_ROWS)) {
            cut_all(20);
            continue;
        }
        CHECK(!cu.CtxPushCurrent(both.cuda->context));
        if (!round) record();
        CHECK(!cu.GraphLaunch(recorded.exec, both.stream));
        CHECK(!cu.CtxPopCurrent(&popped));
        if (round) CHECK(oscar_cuda_commit(both.device) == OSCAR_OK);
        CHECK(oscar_cuda_commit(both.device) == OSCAR_ERR_STATE);
        check_replay(batch);
        if (round++ % 16 == 15) compare_caches();
    }
    compare_caches();
    CHECK(!cu.CtxPushCurrent(both.cuda->context));
    CHECK(!cu.GraphExecDestroy(recorded.exec) && !cu.GraphDestroy(recorded.graph));
    CHECK(!cu.CtxPopCurrent(&popped));
    stop();
}

/* == STATUS == */

/* A step of two rows on the device alone, of which the second has a value that is none, in layer 1. */
static void append_bad(test_random *random, oscar_seq seq)
{
    oscar_batch batch;
    int l;
    batch.seq = seq;
    batch.row = 0;
    batch.rows = 2;
    CHECK(oscar_cuda_step(both.device, &batch, 1, 0, both.stream) == OSCAR_OK);
    make_rows(random, 2);
    rows_v[1][layer_of(1)->v_dim + 3] = (float)NAN;
    send_rows(2);
    for (l = 0; l < LAYERS; l++) {
        oscar_cuda_rows k, v;
        device_rows(l, &k, &v);
        CHECK(oscar_cuda_append(both.device, l, &k, &v, both.stream) == OSCAR_OK);
    }
}

static void test_bad_row(void)
{
    test_random random = { 31 };
    oscar_cuda_fault found;
    oscar_batch batch[2];
    oscar_cuda_rows k, v;
    int l, i;
    TEST("C6.cache a bad row is told, and nothing else suffers");
    start(0);
    memset(batch, 0, sizeof batch);
    for (i = 0; i < 2; i++) {
        do_open_at(i);
        batch[i].seq = both.seq[i].device;
        batch[i].row = 100 * i;
        batch[i].rows = 100;
    }
    CHECK(open_step(&random, batch, 2, 0, CHUNK_ROWS));
    for (l = 0; l < LAYERS; l++) append_both(l, batch, 2);
    CHECK(oscar_cuda_status(both.device, 0, &found, both.stream) == OSCAR_OK && !found.found);
    append_bad(&random, both.seq[1].device);
    CHECK(oscar_cuda_status(both.device, 1, &found, both.stream) == OSCAR_OK);
    CHECK_MSG(found.found && found.layer == 1 && found.kind == 2 && found.slot == 1 && found.position == 101,
              ("    %d: layer %d, kind %d, slot %d, position %d\n", found.found, found.layer, found.kind, found.slot,
               (int)found.position));
    CHECK(oscar_cuda_status(both.device, 0, &found, both.stream) == OSCAR_OK && !found.found);
    CHECK(!cu.CtxPushCurrent(both.cuda->context));
    for (i = 0; i < 2; i++) {
        oscar_seq_state state;   /* of the CPU, which has not seen the step */
        CHECK(oscar_cache_get(both.host, both.seq[i].host, &state) == OSCAR_OK && state.length == 100);
        for (l = 0; l < LAYERS; l++) compare_layer(l, both.seq[i].device, both.seq[i].host, &state);
    }
    leave();
    CHECK(oscar_cuda_cache_close(both.device, both.seq[1].device, both.stream) == OSCAR_OK);
    CHECK(oscar_cache_close(both.host, both.seq[1].host) == OSCAR_OK);
    both.seq[1].device = both.seq[1].host = 0;
    device_rows(0, &k, &v);
    CHECK(oscar_cuda_append(both.device, 0, &k, &v, both.stream) == OSCAR_ERR_STATE);
    CHECK(oscar_cuda_append(both.device, LAYERS, &k, &v, both.stream) == OSCAR_ERR_ARGUMENT);
    compare_caches();
    stop();
}

/* A page that is changed on the device, and put back from the CPU's pool. */
static void test_page_copies(void)
{
    static unsigned char changed[65536], back[65536];
    test_random random = { 43 };
    oscar_batch batch;
    oscar_seq_state state;
    int l;
    TEST("C6.cache pages to the device and back");
    start(0);
    do_open_at(0);
    memset(&batch, 0, sizeof batch);
    batch.seq = both.seq[0].device;
    batch.rows = 150;
    CHECK(open_step(&random, &batch, 1, 0, CHUNK_ROWS));
    for (l = 0; l < LAYERS; l++) append_both(l, &batch, 1);
    CHECK(oscar_cuda_cache_get(both.device, both.seq[0].device, &state) == OSCAR_OK && state.history == 128);
    memset(changed, 0x5a, sizeof changed);
    for (l = 0; l < LAYERS; l++) {
        const oscar__store_layer *host = &both.host->layers[l];
        uint32_t page = state.pages[1];
        oscar_layout layout;
        CHECK(oscar_cuda_cache_layout(both.device, l, &layout) == OSCAR_OK);
        CHECK(layout.bytes == host->layout.bytes && layout.head_bytes == host->layout.head_bytes);
        CHECK(oscar_cuda_upload(both.device, l, page, changed, both.stream) == OSCAR_OK);
        CHECK(oscar_cuda_download(both.device, l, page, back, both.stream) == OSCAR_OK);
        CHECK(!cu.CtxPushCurrent(both.cuda->context));
        CHECK(!cu.StreamSynchronize(both.stream));
        leave();
        CHECK(!memcmp(back, changed, layout.bytes));
        CHECK(oscar_cuda_upload(both.device, l, page, host->pool + page * layout.bytes, both.stream) == OSCAR_OK);
        CHECK(oscar_cuda_upload(both.device, l, PAGES, changed, both.stream) == OSCAR_ERR_ARGUMENT);
        CHECK(oscar_cuda_download(both.device, l, page, NULL, both.stream) == OSCAR_ERR_ARGUMENT);
    }
    CHECK(oscar_cuda_cache_layout(both.device, LAYERS, &both.host->layers[0].layout) == OSCAR_ERR_ARGUMENT);
    compare_caches();
    stop();
}

/* The same steps by two attentions, and by a second cache: equal bits. */
static void test_same_bits(void)
{
    static float first_o[2][LAYERS][VALUES], first_lse[2][LAYERS][VALUES / 16];
    int run, l, i;
    TEST("C6.cache the same step gives the same bits");
    for (run = 0; run < 2; run++) {
        test_random random = { 41 };
        oscar_batch batch;
        memset(&batch, 0, sizeof batch);
        start(0);
        do_open_at(0);
        batch.seq = both.seq[0].device;
        for (i = 0; i < 3; i++) {
            batch.rows = i < 2 ? 150 : MOST_ROWS;
            CHECK(open_step(&random, &batch, 1, 0, CHUNK_ROWS));
            for (l = 0; l < LAYERS; l++) append_both(l, &batch, 1);
        }
        for (l = 0; l < LAYERS; l++) {
            memset(got_o, 0, sizeof got_o);
            attend_both(l, &batch, 1);
            memcpy(first_o[run][l], got_o, sizeof got_o);
            memcpy(first_lse[run][l], got_lse, sizeof got_lse);
            attend_both(l, &batch, 1);
            i = MOST_ROWS * layer_of(l)->q_heads;
            CHECK(!memcmp(first_o[run][l], got_o, (size_t)(i * layer_of(l)->v_dim) * sizeof(float)));
            CHECK(!memcmp(first_lse[run][l], got_lse, (size_t)i * sizeof(float)));
            CHECK(!memcmp(first_o[0][l], got_o, (size_t)(i * layer_of(l)->v_dim) * sizeof(float)));
            CHECK(!memcmp(first_lse[0][l], got_lse, (size_t)i * sizeof(float)));
        }
        stop();
    }
}

#endif
