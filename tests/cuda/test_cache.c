/* test_cache.c - the cache on a device against the one on the CPU (scalar), over the mock driver: bytes of all pages,
   rows of all tokens, attention; captured graphs; each driver call failing in turn.

       test_cache LIBRARY NVRTC [ROUNDS [SEED [shim]]]     libmockcuda.so, libmocknvrtc.so; link with cache_kernels.c
                                                           and -rdynamic
   Kernels are PTX of NVRTC in the interpreter where there is an NVRTC, else, and with `shim`, the text as C. */
#define OSCAR_IMPLEMENTATION
#define OSCAR_API static TEST_UNUSED
#include "tests/cuda/cache_mock.h"
#include "tests/cuda/cache_ops.h"

enum { ROUNDS = 160 };

/* == CALLS == */

static const char *const forbidden[] = {
    "cuMemAlloc", "cuMemFree", "cuMemHostAlloc", "cuMemFreeHost", "Synchronize", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2",
    "cuModule", "cuEventCreate", "cuMemGetInfo"
};

static void test_calls(void)
{
    test_random random = { 5 };
    oscar_batch batch;
    size_t from;
    int l, i, depth = 0;
    const char *at;
    TEST("C6.cache a step allocates nothing and waits for nothing");
    start(0);
    do_open_at(0);
    batch.seq = both.seq[0].device;
    batch.row = 0;
    batch.rows = 1;
    make_rows(&random, CHUNK_ROWS);
    batch.rows = 70;
    from = strlen(mock.log());
    CHECK(oscar_cuda_step(both.device, &batch, 1, 0, both.stream) == OSCAR_OK);
    for (l = 0; l < LAYERS; l++) {
        oscar_cuda_rows k, v, q, o;
        device_rows(l, &k, &v);
        device_q(l, &q, &o);
        CHECK(oscar_cuda_attend_history(both.device, l, &q, &o, device.lse, both.stream) == OSCAR_OK);
        CHECK(oscar_cuda_append(both.device, l, &k, &v, both.stream) == OSCAR_OK);
    }
    batch.rows = 1;
    for (i = 0; i < 12; i++) {
        CHECK(oscar_cuda_step(both.device, &batch, 1, 0, both.stream) == OSCAR_OK);
        for (l = 0; l < LAYERS; l++) {
            oscar_cuda_rows k, v, q, o;
            device_rows(l, &k, &v);
            device_q(l, &q, &o);
            CHECK(oscar_cuda_append(both.device, l, &k, &v, both.stream) == OSCAR_OK);
            CHECK(oscar_cuda_attend(both.device, l, &q, 0, &o, device.lse, both.stream) == OSCAR_OK);
        }
    }
    CHECK(both.device->pager->seqs[0].history == 64);
    for (i = 0; i < (int)(sizeof forbidden / sizeof *forbidden); i++)
        CHECK_MSG(!strstr(mock.log() + from, forbidden[i]), ("    %s\n", forbidden[i]));
    for (at = mock.log() + from; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        depth += !strncmp(at, "cuCtxPush", 9) - !strncmp(at, "cuCtxPop", 8);
    CHECK(depth == 0);
    stop();
}

/* Each line of the log that tells of work: whether it names the stream (1) or not (0), and a launch a kernel of the
   header. */
static void check_work(const char *log, const void *stream, int named)
{
    char line[512], name[32];
    snprintf(name, sizeof name, " %p", stream);
    while (*log) {
        size_t length = strcspn(log, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, log);
        log += length + (log[length] != 0);
        if (strncmp(line, "cuLaunch", 8) && !strstr(line, "Async") && strncmp(line, "cuEventRecord", 13)) continue;
        CHECK_MSG((strstr(line, name) != NULL) == named, ("    %s\n", line));
        if (!strncmp(line, "cuLaunch", 8)) CHECK_MSG(strstr(line, " oscar_cu_") != NULL, ("    %s\n", line));
    }
}

/* Keys come late: a copy that nobody has waited for is ahead of the step in the stream. */
static void test_stream(void)
{
    test_random random = { 6 };
    oscar_batch batch;
    size_t from, bytes = (size_t)(layer_of(0)->kv_heads * layer_of(0)->k_dim) * sizeof(float);
    int l;
    TEST("C6.8, C6.12 all work is in the caller's stream, and done by the kernels of the header");
    start(1);
    check_work(mock.log(), NULL, 0);   /* create left the default stream alone, too */
    do_open_at(0);
    memset(&batch, 0, sizeof batch);
    batch.seq = both.seq[0].device;
    batch.rows = 1;
    CHECK(open_step(&random, &batch, 1, 0, 1));
    CHECK(!cu.CtxPushCurrent(both.cuda->context));
    from = strlen(mock.log());
    rows_k[0][0] += 8;
    CHECK(!cu.MemcpyHtoDAsync(device.k[0], rows_k[0], bytes, both.stream));
    cu.CtxPopCurrent(NULL);
    for (l = 0; l < LAYERS; l++) append_both(l, &batch, 1);
    for (l = 0; l < LAYERS; l++) attend_both(l, &batch, 1);
    check_work(mock.log() + from, both.stream, 1);
    compare_caches();
    stop();
}

/* Steps of one row on the device alone, 12 of them: more than there are buffers, so that one is waited for. */
static void check_steps(oscar_batch *batch)
{
    int i, l;
    for (i = 0; i < 12; i++) {
        CHECK(oscar_cuda_step(both.device, batch, 1, 0, both.stream) == OSCAR_OK);
        for (l = 0; l < LAYERS; l++) {
            oscar_cuda_rows k, v;
            device_rows(l, &k, &v);
            CHECK(oscar_cuda_append(both.device, l, &k, &v, both.stream) == OSCAR_OK);
        }
    }
}

/* A driver that forbids more, and captures of others. */
static void test_captures(void)
{
    test_random random = { 7 };
    oscar_batch batch;
    void *other, *graph, *popped;
    TEST("C6.13 a capture is not spoilt by old drivers, nor one in another stream, and takes no step");
    start(1);
    mock.set("version", 12040);
    do_open_at(0);
    memset(&batch, 0, sizeof batch);
    batch.seq = both.seq[0].device;
    batch.rows = 1;
    make_rows(&random, CHUNK_ROWS);
    send_rows(CHUNK_ROWS);
    CHECK(oscar_cuda_step(both.device, &batch, 1, 0, both.stream) == OSCAR_OK);
    CHECK(!cu.CtxPushCurrent(both.cuda->context));
    record();
    CHECK(!cu.GraphLaunch(recorded.exec, both.stream));
    CHECK(!cu.StreamCreate(&other, 1) && !cu.StreamBeginCapture(other, 0));
    check_steps(&batch);
    CHECK_MSG(!cu.StreamEndCapture(other, &graph) && graph, ("    %s\n", mock.message()));
    CHECK(!cu.GraphDestroy(graph) && !cu.StreamDestroy(other));
    CHECK(!cu.StreamBeginCapture(both.stream, 0));
    CHECK(oscar_cuda_step(both.device, &batch, 1, 0, both.stream) == OSCAR_ERR_STATE && strstr(said.text, "captures"));
    CHECK(oscar_cuda_cache_check(both.device) == OSCAR_OK);
    CHECK(!cu.StreamEndCapture(both.stream, &graph) && !cu.GraphDestroy(graph));
    CHECK(!cu.GraphExecDestroy(recorded.exec) && !cu.GraphDestroy(recorded.graph));
    CHECK(!cu.CtxPopCurrent(&popped));
    check_steps(&batch);
    CHECK(oscar_cuda_cache_close(both.device, both.seq[0].device, both.stream) == OSCAR_OK);
    CHECK(oscar_cache_close(both.host, both.seq[0].host) == OSCAR_OK);
    both.seq[0].device = both.seq[0].host = 0;
    stop();
}

/* == FAULTS == */

/* Runs an operation with its nth driver call failing, for each n, until it comes through; it must then have done what
   it does on the CPU. */
static int each_call_fails(oscar_result (*operation)(void))
{
    int nth;
    for (nth = 1; nth < 400; nth++) {
        oscar_result result;
        void *popped;
        int calls = mock.calls(NULL);
        mock.fail(NULL, nth, MOCK_INVALID_VALUE);
        said.errors = 0;
        result = operation();
        calls = mock.calls(NULL) - calls;
        mock.fail(NULL, -1, 0);
        while (!cu.CtxPopCurrent(&popped)) {}   /* a pop that failed */
        if (result == OSCAR_OK && calls < nth) return nth;
        CHECK_MSG(result != OSCAR_OK || calls >= nth, ("    call %d\n", nth));
        CHECK_MSG(result == OSCAR_OK || said.errors, ("    call %d failed without a word\n", nth));
        CHECK_MSG(oscar_cuda_cache_check(both.device) == OSCAR_OK, ("    call %d: %s\n", nth, said.text));
        if (result == OSCAR_OK) return nth;   /* a call whose failure does not matter */
        if (test_state.failed_now) return nth;
    }
    return nth;
}

static struct { oscar_batch batch[ENTRIES]; int count, draft, layer; int64_t length; oscar_seq out; } fault;

static oscar_result fault_step(void)
{
    return oscar_cuda_step(both.device, fault.batch, fault.count, fault.draft, both.stream);
}
static oscar_result fault_append(void)
{
    oscar_cuda_rows k, v;
    device_rows(fault.layer, &k, &v);
    return oscar_cuda_append(both.device, fault.layer, &k, &v, both.stream);
}
static oscar_result fault_attend(void)
{
    oscar_cuda_rows q, o;
    device_q(fault.layer, &q, &o);
    return oscar_cuda_attend(both.device, fault.layer, &q, 0, &o, device.lse, both.stream);
}
static oscar_result fault_history(void)
{
    oscar_cuda_rows q, o;
    device_q(fault.layer, &q, &o);
    return oscar_cuda_attend_history(both.device, fault.layer, &q, &o, device.lse, both.stream);
}
static oscar_result fault_accept(void)
{
    return oscar_cuda_cache_accept(both.device, fault.batch, fault.count, both.stream);
}
static oscar_result fault_abort(void)
{
    return oscar_cuda_cache_abort(both.device, fault.batch[0].seq, both.stream);
}
static oscar_result fault_cut(void)
{
    return oscar_cuda_cache_cut(both.device, fault.batch[0].seq, fault.length, both.stream);
}
static oscar_result fault_fork(void)
{
    return oscar_cuda_cache_fork(both.device, fault.batch[0].seq, fault.length, &fault.out, both.stream);
}
static oscar_result fault_close(void)
{
    return oscar_cuda_cache_close(both.device, fault.batch[0].seq, both.stream);
}
static oscar_result fault_status(void)
{
    oscar_cuda_fault found;
    return oscar_cuda_status(both.device, 0, &found, both.stream);
}
static oscar_result fault_gather(void)
{
    return oscar_cuda_gather(both.device, 0, fault.batch[0].seq, 0, fault.length, device.k[0], device.v[0],
                             both.stream);
}

/* With faults, or plainly. */
static void fault_run(oscar_result (*operation)(void), int with)
{
    if (with) each_call_fails(operation);
    else CHECK(operation() == OSCAR_OK);
}

static void fault_rows(test_random *random, int rows, int draft, int with)
{
    int l;
    fault.batch[0].rows = rows;
    fault.draft = draft;
    fault_run(fault_step, with);
    CHECK(reserve_host(fault.batch, fault.count, draft) == OSCAR_OK);
    make_rows(random, CHUNK_ROWS);
    for (l = 0; l < LAYERS; l++) {
        oscar_view k, v;
        fault.layer = l;
        views(l, &k, &v);
        if (rows > MOST_ROWS) fault_run(fault_history, with && l);
        fault_run(fault_append, with);
        CHECK(oscar_append(both.host, l, fault.batch, fault.count, &k, &v) == OSCAR_OK);
        if (rows <= MOST_ROWS && (with || l)) fault_run(fault_attend, with && l);
    }
    compare_caches();
}

static void test_faults(void)
{
    test_random random = { 21 };
    TEST("C6.cache each call of each operation fails in turn");
    start(0);
    memset(&fault, 0, sizeof fault);
    do_open_at(0);
    fault.batch[0].seq = both.seq[0].device;
    fault.count = 1;
    fault_rows(&random, 70, 0, 1);
    fault_rows(&random, 65, 0, 0);
    fault_rows(&random, MOST_ROWS, 0, 1);
    for (fault.length = 139; fault.length < 208; fault.length += MOST_ROWS) {   /* until drafts make a page due */
        int with = fault.length == 139 || fault.length + MOST_ROWS >= 204;
        fault_rows(&random, MOST_ROWS, 1, with);
        fault_run(fault_accept, with);
        CHECK(oscar_cache_accept(both.host, both.seq[0].host, MOST_ROWS) == OSCAR_OK);
    }
    compare_caches();
    each_call_fails(fault_status);
    fault.length = 40;
    each_call_fails(fault_gather);
    fault.length = 100;
    each_call_fails(fault_fork);
    CHECK(oscar_cache_fork(both.host, both.seq[0].host, 100, &both.seq[1].host) == OSCAR_OK);
    both.seq[1].device = fault.out;
    compare_caches();
    fault.length = 90;
    each_call_fails(fault_cut);
    CHECK(oscar_cache_cut(both.host, both.seq[0].host, 90) == OSCAR_OK);
    compare_caches();
    fault.batch[0].rows = 130;
    CHECK(fault_step() == OSCAR_ERR_ARGUMENT);   /* drafts */
    fault.draft = 0;
    each_call_fails(fault_step);
    CHECK(reserve_host(fault.batch, 1, 0) == OSCAR_OK);
    send_rows(CHUNK_ROWS);   /* what was compared took their place */
    append_both(0, fault.batch, 1);
    each_call_fails(fault_abort);
    CHECK(oscar_cache_abort(both.host, both.seq[0].host) == OSCAR_OK);
    compare_caches();
    each_call_fails(fault_step);
    each_call_fails(fault_close);
    CHECK(oscar_cache_close(both.host, both.seq[0].host) == OSCAR_OK);
    both.seq[0].device = both.seq[0].host = 0;
    compare_caches();
    stop();
}

static void test_create_faults(void)
{
    oscar_cuda_cache *cache = NULL;
    oscar_cuda_footprint f;
    int nth, calls = 0;
    void *popped;
    TEST("C6.cache create: each call, each allocation fails in turn; too little memory");
    start(0);
    oscar_cuda_cache_destroy(both.device);
    both.device = NULL;
    for (nth = 1; nth < 300; nth++) {
        int memory = mock.live("memory"), host = mock.live("host"), event = mock.live("event"), made;
        int64_t bytes = said.bytes;
        oscar_result result;
        mock.fail(NULL, nth, nth % 2 ? MOCK_OUT_OF_MEMORY : MOCK_INVALID_VALUE);
        made = mock.calls(NULL);
        result = oscar_cuda_cache_create(both.cuda, &both.desc, &cache);
        made = mock.calls(NULL) - made;
        mock.fail(NULL, -1, 0);
        while (!cu.CtxPopCurrent(&popped)) {}
        calls += result != OSCAR_OK;
        if (made < nth) break;
        if (!result) oscar_cuda_cache_destroy(cache);   /* a stream that was not given back, say */
        CHECK_MSG(mock.live("memory") == memory && mock.live("host") == host && mock.live("event") == event
                  && said.bytes == bytes, ("    call %d leaks\n", nth));
    }
    CHECK(calls > 20);
    oscar_cuda_cache_destroy(cache);
    CHECK(oscar_cuda_cache_bytes(both.cuda, &both.desc, &f) == OSCAR_OK);
    CHECK(f.total == f.pages + f.windows + f.constants + f.steps + f.work && f.pages && f.windows && f.work);
    for (nth = 1; nth < 20; nth++) {
        int64_t bytes = said.bytes;
        oscar_result result;
        cache = NULL;
        said.left = nth;   /* the nth allocation fails */
        result = oscar_cuda_cache_create(both.cuda, &both.desc, &cache);
        said.left = 0;
        if (!result) break;
        CHECK(result == OSCAR_ERR_MEMORY && said.bytes == bytes);
    }
    CHECK(cache && nth > 2);
    oscar_cuda_cache_destroy(cache);
    mock.set("memory", 100000);
    CHECK(oscar_cuda_cache_create(both.cuda, &both.desc, &cache) == OSCAR_ERR_MEMORY);
    mock.set("memory", 1 << 30);
    stop();
}

int main(int argc, char **argv)
{
    int rounds = argc > 3 ? atoi(argv[3]) : ROUNDS;
    unsigned seed = argc > 4 ? (unsigned)atoi(argv[4]) : 1;
    if (argc < 3) return 2;
    oscar_isa_force(OSCAR_ISA_SCALAR);
    if (!prepare(argv[1], argv[2], argc > 5)) return test_end("test_cache");
    test_calls();
    test_stream();
    test_captures();
    test_bad_row();
    test_page_copies();
    test_same_bits();
    if (argc > 5) {   /* of the host's code: kernels as PTX would only take longer */
        test_faults();
        test_create_faults();
    }
    test_graph(rounds * 5 / 8);   /* 100 by default */
    test_random_operations(rounds, seed, 0);
    test_random_operations(rounds, seed + 1, 1);
    few_drafts = 1;
    if (prepare(argv[1], argv[2], argc > 5)) test_random_operations(rounds / 2, seed + 2, 0);
    return test_end("test_cache");
}
