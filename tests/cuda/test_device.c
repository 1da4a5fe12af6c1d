/* test_device.c - oscar_cuda.h on a GPU against the CPU's scalar code: bytes of pages and windows, rows that are read
   back, attention, the cache with its graphs, bad rows. Where there is no GPU it says why, and skips.

       cc -std=c99 -O1 -I. tests/cuda/test_device.c -o test_device -lm -ldl
       test_device [--driver PATH] [--nvrtc PATH] [--tiny] [--ptx] [--seed N] [--shapes N]

   --driver, --nvrtc  libraries; PATH may be the mock driver's (mock_cuda.c)
   --tiny             two shapes, for the mock
   --ptx              all kernels as PTX, which the driver compiles; always so with the mock. Else most are cubins of
                      the device's own architecture, the others PTX for the two older ways of the text, sm_75 and sm_80
   --shapes N         layers for pages, default 60; half of it, for attention
   Kernels are compiled by processes of their own, one a core, while the tests run. */
#ifndef _GNU_SOURCE
#  define _GNU_SOURCE 1
#endif
#define OSCAR_IMPLEMENTATION
#define OSCAR_API static TEST_UNUSED
#include "tests/cuda/cache_ops.h"
#include "tests/cuda/write_case.h"
#include "tests/cuda/attend_case.h"
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SHAPES = 1000, SPECIAL = 4, WORKERS = 16, IMAGE_BYTES = 8 << 20 };

static struct { int tiny, ptx, shapes, attends, caches, variants; unsigned seed; } option;
static oscar_cuda_info found;
static oscar_cuda *gpu;
static void *gpu_stream;

static struct { write_shape shape; unsigned seed; } page_shapes[MOST_SHAPES];

/* -- device memory -- */

static uint64_t taken[24];
static int taken_count;

/* Device memory that drop gives back, with these bytes. */
static uint64_t put(const void *bytes, size_t count)
{
    uint64_t memory = 0;
    if (taken_count == 24 || cu.MemAlloc(&memory, count ? count : 16)) {
        printf("no device memory for %ld bytes\n", (long)count);
        exit(1);
    }
    taken[taken_count++] = memory;
    if (bytes) CHECK(!cu.MemcpyHtoD(memory, bytes, count));
    return memory;
}

static void get(void *to, uint64_t from, size_t count) { CHECK(!cu.MemcpyDtoH(to, from, count)); }

static void drop(void) { while (taken_count) CHECK(!cu.MemFree(taken[--taken_count])); }

static int ran(oscar_result result)
{
    int code = cu.StreamSynchronize(gpu_stream);
    if (result) printf("    %s: %s\n", oscar_result_text(result), said.text);
    if (code) printf("    the driver says %d\n", code);
    return !result && !code;
}

/* -- pages -- */

static oscar_cuda_layer *layer_now;   /* of the case that runs */

static void write_set(const oscar__cu_plan *plan) { (void)plan; }

static oscar_cuda_rows rows_at(uint64_t data, const long long *stride)
{
    oscar_cuda_rows rows;
    rows.data = data;
    rows.token_stride = (ptrdiff_t)stride[0];
    rows.head_stride = (ptrdiff_t)stride[1];
    return rows;
}

static int write_run_step(write_case *c, int what)
{
    oscar_cuda_memory m;
    oscar_cuda_rows k, v;
    int ok;
    memset(&m, 0, sizeof m);
    m.entry_count = c->shape.entries + 1;
    m.entry_rows = c->shape.rows;
    m.entry_pages = c->most_pages;
    m.layer = WRITE_LAYER;
    m.entries = put(c->entry, (size_t)m.entry_count * sizeof *c->entry);
    m.tables = put(c->tables, sizeof c->tables);
    k = rows_at(put(c->k_rows, c->row_bytes[0]), c->stride);
    v = rows_at(put(c->v_rows, c->row_bytes[1]), c->stride + 2);
    m.window_k = put(c->windows[0][0], c->window_bytes[0]);
    m.window_v = put(c->windows[1][0], c->window_bytes[1]);
    m.pool = put(c->pool[0], c->pool_bytes);
    m.status = put(&c->status, sizeof c->status);
    arrive();
    ok = ran(oscar_cuda_write_pages(layer_now, &m, &k, &v, what, gpu_stream));
    if (ok) {
        get(c->windows[0][0], m.window_k, c->window_bytes[0]);
        get(c->windows[1][0], m.window_v, c->window_bytes[1]);
        get(c->pool[0], m.pool, c->pool_bytes);
        get(&c->status, m.status, sizeof c->status);
    }
    drop();
    return ok ? 0 : -1;
}

static int write_run_read(write_case *c, int type, int windows, oscar_cu_rows *items, int count, void *k, void *v,
                          const long long *stride, int rows)
{
    size_t each = oscar__type_size((oscar_type)type), bytes[2];
    oscar_cuda_memory m;
    oscar_cuda_rows out[2];
    uint64_t list;
    int ok;
    memset(&m, 0, sizeof m);
    bytes[0] = windows ? c->window_bytes[0] : (size_t)rows * (size_t)stride[0] * each;
    bytes[1] = windows ? c->window_bytes[1] : (size_t)rows * (size_t)stride[2] * each;
    m.pool = put(c->pool[1], c->pool_bytes);
    out[0] = rows_at(put(k, bytes[0]), stride);
    out[1] = rows_at(put(v, bytes[1]), stride + 2);
    m.window_k = windows ? out[0].data : 0;
    m.window_v = windows ? out[1].data : 0;
    list = put(items, (size_t)count * sizeof *items);
    arrive();
    ok = ran(oscar_cuda_read_pages(layer_now, &m, list, count, c->shape.page, windows, (oscar_type)type, &out[0],
                                   &out[1], gpu_stream));
    if (ok) {
        get(k, out[0].data, bytes[0]);
        get(v, out[1].data, bytes[1]);
    }
    drop();
    return ok ? 0 : -1;
}

/* Layers of all kinds that take no minutes of the CPU. */
static void make_page_shapes(void)
{
    test_random r = { option.seed };
    int most = option.tiny ? 64 : 512, i;
    for (i = 0; i < option.shapes; i++) {
        write_shape *s = &page_shapes[i].shape;
        do write_shape_random(&r, s);
        while (s->k_dim > most || s->v_dim > most || (option.tiny && s->page > 64));
        page_shapes[i].seed = random_u32(&r);
    }
}

/* Another step of the same layer: a few rows, or a prefill; entries of many lengths. */
static void vary_step(test_random *r, write_shape *s)
{
    int drafts = s->drafts > 1 ? s->drafts : 1;
    s->rows = random_below(r, 2) ? 1 + random_below(r, drafts) : random_below(r, 4 * s->page);
    s->entries = 1 + random_below(r, WRITE_ENTRIES);
    s->before = random_below(r, 4) ? s->sink + s->recent + s->page * (1 + random_below(r, 3)) - 1 : 0;
    s->before -= random_below(r, s->rows > 1 ? s->rows : 1);
    if (s->before < 0) s->before = 0;
    s->mixed = random_below(r, 4) > 0;
    s->wrong = random_below(r, 4) == 0;
}

/* -- attention -- */

static void case_set(const oscar__cu_plan *plan) { (void)plan; }

/* Sequences of a length at each edge: of the sink, of 64 tokens, of a page; with 1 to 4 rows, and padding. */
static attend_case case_lengths(void)
{
    static const int lengths[] = { 1, 63, 2, 64, 65, 3, 4, 0, 5, 75, 76, 77, 140, 141, 204, 300 };
    attend_case c = case_plain();
    int e;
    c.layer.kv_heads = 2;
    c.layer.q_heads = 8;
    c.layer.k_dim = option.tiny ? 32 : 64;
    c.drafts = 4;
    c.entries = option.tiny ? 8 : 16;
    for (e = 0; e < c.entries; e++) {
        int n = lengths[e];
        c.rows[e] = n ? 1 + e % 4 : 0;
        if (c.rows[e] > n) c.rows[e] = n;
        c.pages[e] = n > 76 ? (n - c.sink - c.window) / 64 : 0;
        c.recent[e] = n - c.sink - 64 * c.pages[e];
        if (n <= c.sink) c.total[e] = n;
    }
    return c;
}

static attend_case case_special(int which)
{
    attend_case c = case_plain();
    int e;
    if (which == 0) return case_lengths();
    c.layer.kv_heads = which == 2 ? 8 : 2;
    c.layer.q_heads = which == 2 ? 32 : 16;
    if (which == 1) {           /* 20,000 tokens */
        c.entries = c.rows[0] = c.rows[1] = c.drafts = 2;
        c.pages[0] = 312;
        c.pages[1] = 100;
        c.recent[1] = 20;
        c.splits = 7;
    } else if (which == 2) {    /* a batch of 16 of 4,096 tokens, as a model of 8 B has it */
        c.entries = 16;
        c.sink = 64;
        c.window = 256;
        c.splits = 0;
        for (e = 0; e < 16; e++) {
            c.rows[e] = 1;
            c.pages[e] = 59;
            c.recent[e] = 256;
        }
    } else {                    /* peaked, and keys that grow */
        c.spread = 1.5;
        c.rise = 0.75;
        c.pages[0] = 30;
    }
    return c;
}

static attend_case case_of(int i)
{
    attend_case c;
    uint64_t seed = (uint64_t)option.seed * 100000;
    if (!option.tiny) return i < SPECIAL ? case_special(i) : case_random(seed + (uint64_t)i);
    if (!i) return case_lengths();
    do c = case_random(seed++);
    while (c.layer.k_dim > 64 || c.layer.v_dim > 64 || c.layer.q_heads > 8 || !c.rows[0] || !c.pages[0]);
    return c;
}

/* c->o and c->lse by the device. */
static int attend_run(attend_case *c, int splits)
{
    const oscar_layer *l = &c->layout.layer;
    size_t windows = (size_t)c->entries * (size_t)(c->sink + c->ring) * (size_t)l->kv_heads * case_size(c->window_type);
    size_t rows = (size_t)c->row_count, size = case_size(c->row_type);
    oscar_cuda_memory m;
    oscar_cuda_rows q, o;
    uint64_t lse, sinks = 0;
    int ok;
    memset(&m, 0, sizeof m);
    m.entry_count = c->entries;
    m.entry_rows = c->most_rows;
    m.rows = c->row_count;
    m.splits = splits;
    m.entries = put(c->entry, (size_t)c->entries * sizeof *c->entry);
    m.tables = put(c->tables, (size_t)c->page_count * 4);
    m.pool = put(c->pool, c->page_count * c->layout.bytes);
    m.window_k = put(c->window_k, windows * (size_t)l->k_dim);
    m.window_v = put(c->window_v, windows * (size_t)l->v_dim);
    m.work = put(NULL, oscar_cuda_work_bytes(layer_now, &m));
    q.data = put(c->q, rows * (size_t)c->q_token * size);
    q.token_stride = c->q_token;
    q.head_stride = c->q_head;
    o.data = put(c->o, rows * (size_t)c->o_token * size);
    o.token_stride = c->o_token;
    o.head_stride = c->o_head;
    lse = put(NULL, rows * (size_t)l->q_heads * 4);
    if (c->sink_logits) sinks = put(c->sink_logits, (size_t)l->q_heads * 4);
    arrive();
    ok = ran(oscar_cuda_attend_pages(layer_now, &m, &q, sinks, &o, lse, gpu_stream));
    if (ok) {
        get(c->o, o.data, rows * (size_t)c->o_token * size);
        get(c->lse, lse, rows * (size_t)l->q_heads * 4);
    }
    drop();
    return ok;
}

/* Twice, which must give the same bits; then with the splits that the device itself is for. */
static void attend_check(attend_case *c, const char *name)
{
    size_t bytes = (size_t)c->row_count * (size_t)c->o_token * case_size(c->row_type);
    int64_t tokens = 0;
    void *first = malloc(bytes);
    int e, splits, rounds = option.tiny ? 1 : 2;
    if (!first) abort();
    for (e = 0; e < c->entries; e++) if (c->entry[e].history > tokens) tokens = c->entry[e].history;
    splits = oscar_cuda_splits(layer_now, c->entries, c->most_rows, tokens);
    CHECK(attend_run(c, c->splits ? c->splits : splits));
    case_compare(c, name, 1e-3);
    memcpy(first, c->o, bytes);
    if (rounds > 1) {
        CHECK(attend_run(c, c->splits ? c->splits : splits));
        CHECK_MSG(!memcmp(first, c->o, bytes), ("    %s: other bits the second time\n", name));
        if (c->splits && splits != c->splits) {
            CHECK(attend_run(c, splits));
            case_compare(c, name, 1e-3);
        }
    }
    free(first);
}

/* -- kernels, compiled by other processes -- */

static struct { char folder[64]; pid_t pid[WORKERS]; int count, done[WORKERS]; } workers;

static int job_count(void) { return option.shapes + option.attends + option.caches; }

/* Which architecture a job's kernels are for; PTX where it is not the device's. */
static int job_arch(int n)
{
    int i = n < option.shapes ? n : n - option.shapes, every = option.tiny ? 2 : 12, arch = found.sm;
    if (i % every == every / 2) arch = 80;
    if (i % every == every - 1) arch = 75;
    return n >= option.shapes + option.attends || arch > found.sm ? found.sm : arch;
}

static oscar_result job_compile_as(int n, int arch, const oscar_layout *layout, const oscar_cuda_options *options,
                                   char *out, size_t *bytes)
{
    oscar_cuda_desc desc;
    oscar_result result;
    memset(&desc, 0, sizeof desc);
    desc.nvrtc = nvrtc_path;
    desc.hooks.log = listen;
    result = oscar_cuda_compile(&desc, layout, options, arch, option.ptx || arch != found.sm, out, IMAGE_BYTES, bytes);
    /* An older architecture has less shared memory, an older NVRTC does not know a new one. */
    if (result == OSCAR_ERR_UNSUPPORTED && arch != found.sm)
        return job_compile_as(n, found.sm, layout, options, out, bytes);
    return result;
}

static oscar_result job_compile(int n, char *out, size_t *bytes)
{
    oscar_cuda_options options;
    oscar_layout layout;
    test_random random;
    if (n < option.shapes) {
        write_case *c = write_case_layout(&page_shapes[n].shape, page_shapes[n].seed, &random);
        options = write_options(&c->shape);
        return job_compile_as(n, job_arch(n), &c->layout, &options, out, bytes);
    }
    if (n < option.shapes + option.attends) {
        attend_case c = case_of(n - option.shapes);
        case_layout(&c, &random);
        options = case_options(&c);
        return job_compile_as(n, job_arch(n), &c.layout, &options, out, bytes);
    }
    n -= option.shapes + option.attends;
    few_drafts = n / LAYERS;
    make_desc();
    options = options_of();
    if (oscar_page_layout(layer_of(n % LAYERS), 0, OSCAR_BF16, NULL, &layout)) return OSCAR_ERR_SHAPE;
    return job_compile_as(option.shapes, found.sm, &layout, &options, out, bytes);
}

static void job_path(int n, const char *end, char *path) { sprintf(path, "%s/%d%s", workers.folder, n, end); }

/* Each image goes to a file, which gets its name when it is whole: the result, then the bytes or the log's words. */
static void work(int from)
{
    char path[96], part[96], *image = (char *)malloc(IMAGE_BYTES);
    int n;
    for (n = from; image && n < job_count(); n += workers.count) {
        size_t bytes = 0;
        int result = (int)job_compile(n, image, &bytes);
        FILE *f;
        job_path(n, ".part", part);
        job_path(n, "", path);
        f = fopen(part, "wb");
        if (!f) break;
        fwrite(&result, sizeof result, 1, f);
        if (result) fwrite(said.text, 1, strlen(said.text), f);
        else fwrite(image, 1, bytes, f);
        if (fclose(f) || rename(part, path)) break;
    }
    _exit(0);
}

static void start_workers(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int w;
    workers.count = cores < 1 ? 1 : cores > WORKERS ? WORKERS : (int)cores;
    strcpy(workers.folder, "/tmp/oscar_device_XXXXXX");
    if (!mkdtemp(workers.folder)) { puts("no folder for images"); exit(1); }
    fflush(stdout);
    for (w = 0; w < workers.count; w++) {
        workers.pid[w] = fork();
        if (workers.pid[w] < 0) { puts("no process to compile kernels in"); exit(1); }
        if (!workers.pid[w]) work(w);
    }
}

static void stop_workers(void)
{
    char path[96];
    int w, n;
    for (w = 0; w < workers.count; w++) if (!workers.done[w]) (void)waitpid(workers.pid[w], NULL, 0);
    for (n = 0; n < job_count(); n++) {   /* where a test gave up */
        job_path(n, "", path);
        (void)remove(path);
    }
    if (rmdir(workers.folder)) printf("%s is not empty\n", workers.folder);
}

static FILE *job_file(int n)
{
    struct timespec nap = { 0, 5000000 };
    int w = n % workers.count;
    char path[96];
    FILE *f;
    job_path(n, "", path);
    while (!(f = fopen(path, "rb"))) {
        if (workers.done[w]) return NULL;   /* and it left nothing */
        workers.done[w] = waitpid(workers.pid[w], NULL, WNOHANG) != 0;
        nanosleep(&nap, NULL);
    }
    (void)remove(path);
    return f;
}

/* The image of a job in *image, or NULL where the heads are too wide or NVRTC is older than the device, about which the
   library itself may know more; free() it. 0: it failed. */
static int job_image(int n, char **out, size_t *bytes)
{
    FILE *f = job_file(n);
    char *image = (char *)calloc(1, IMAGE_BYTES);
    int result = OSCAR_ERR_STATE;
    if (!image) abort();
    *out = NULL;
    *bytes = 0;
    if (f && fread(&result, sizeof result, 1, f) == 1) *bytes = fread(image, 1, IMAGE_BYTES - 1, f);
    if (f) fclose(f);
    if (!result && *bytes) {
        *out = image;
        return 1;
    }
    CHECK_MSG(result == OSCAR_ERR_UNSUPPORTED,
              ("    kernels %d: %s\n    %s\n", n, oscar_result_text((oscar_result)result), image));
    free(image);
    *bytes = 0;
    return result == OSCAR_ERR_UNSUPPORTED;
}

/* layer_now of a layout whose kernels are those of a job. 0: cannot be had; counted if that is a fault. */
static int open_layer(const oscar_layout *layout, const oscar_cuda_options *options, const char *image, size_t bytes)
{
    oscar_result result = oscar_cuda_load(gpu, layout, options, image, bytes);
    if (!result) result = oscar_cuda_layer_create(gpu, layout, options, &layer_now);
    CHECK_MSG(!result || result == OSCAR_ERR_UNSUPPORTED, ("    %s: %s\n", oscar_result_text(result), said.text));
    return !result;
}

static void close_layer(void)
{
    oscar_cuda_layer_destroy(layer_now);
    layer_now = NULL;
}

/* -- tests -- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void test_pages(void)
{
    test_random random = { option.seed + 1 };
    int i, variant, pages = 0, layers = 0;
    TEST("device: bytes of pages, windows and rows are the scalar code's");
    for (i = 0; i < option.shapes; i++) {
        size_t bytes;
        char *image;
        int opened = job_image(i, &image, &bytes);
        for (variant = 0; opened && variant < option.variants; variant++) {
            write_shape shape = page_shapes[i].shape;
            oscar_cuda_options options = write_options(&shape);
            write_case *c;
            char text[512];
            int e;
            if (variant) vary_step(&random, &shape);
            c = write_case_new(&shape, variant ? random_u32(&random) : page_shapes[i].seed);
            write_describe(c, text);
            opened = open_layer(&c->layout, &options, image, bytes);
            if (opened) {
                CHECK_MSG(!write_case_run(c), ("    sm_%d: %s\n", job_arch(i), text));
                for (e = 0; e < shape.entries; e++) pages += c->entry[e].write_count;
                close_layer();
            }
            write_case_free(c);
        }
        layers += opened;
        free(image);
    }
    printf("pages: %d layers, %d steps each, %d pages; %d layers are too wide\n", layers, option.variants, pages,
           option.shapes - layers);
    CHECK(layers * 2 >= option.shapes);
}

static void test_attention(void)
{
    int i, ran_count = 0;
    TEST("device: attention is the scalar code's and that of double precision");
    for (i = 0; i < option.attends; i++) {
        attend_case c = case_of(i);
        oscar_cuda_options options = case_options(&c);
        size_t bytes;
        char *image, name[48];
        int ok = job_image(option.shapes + i, &image, &bytes);
        sprintf(name, "attention %d, sm_%d", i, job_arch(option.shapes + i));
        if (ok && case_build(&c) && open_layer(&c.layout, &options, image, bytes)) {
            attend_check(&c, name);
            close_layer();
            ran_count++;
        }
        case_free(&c);
        free(image);
    }
    printf("attention: %d layers, errors at most %.3g of |o|, %.3g of lse; against double precision %.3g, %.3g\n",
           ran_count, worst.o, worst.lse, worst.exact_o, worst.exact_lse);
    CHECK(ran_count * 2 >= option.attends);
}

static const char *cuda_said(void) { return ""; }
static void cuda_fresh(void) { }
static void cuda_started(int late) { (void)late; }
static void cuda_left(int closed) { (void)closed; }

/* The kernels of both layers of the cache. */
static int take_images(void)
{
    int l, from = option.shapes + option.attends + LAYERS * few_drafts;
    make_desc();
    for (l = 0; l < LAYERS; l++) {
        free(images[l]);
        if (!job_image(from + l, &images[l], &image_bytes[l])) return 0;
    }
    return 1;
}

static void test_managed(void)
{
    int rounds = option.tiny ? 12 : option.ptx ? 80 : 400;   /* PTX: may be the mock */
    TEST("device: the kernels of a cache compile");
    if (!take_images()) return;
    test_bad_row();
    test_page_copies();
    test_same_bits();
    test_graph(option.tiny ? 6 : 100);
    test_random_operations(rounds, option.seed, 0);
    if (option.tiny) return;
    few_drafts = 1;
    TEST("device: the kernels of a cache with few drafts compile");
    if (take_images()) test_random_operations(rounds / 2, option.seed + 2, 0);
}

static int parse(int argc, char **argv)
{
    int i;
    option.shapes = 60;
    option.seed = 1;
    for (i = 1; i < argc; i++) {
        int more = i + 1 < argc;
        if (!strcmp(argv[i], "--driver") && more) cuda_path = argv[++i];
        else if (!strcmp(argv[i], "--nvrtc") && more) nvrtc_path = argv[++i];
        else if (!strcmp(argv[i], "--seed") && more) option.seed = (unsigned)atoi(argv[++i]);
        else if (!strcmp(argv[i], "--shapes") && more) option.shapes = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--tiny")) option.tiny = 1;
        else if (!strcmp(argv[i], "--ptx")) option.ptx = 1;
        else return 0;
    }
    if (option.shapes > MOST_SHAPES) option.shapes = MOST_SHAPES;
    if (option.tiny) option.shapes = 2;
    option.attends = option.tiny ? 2 : SPECIAL + option.shapes / 2;
    option.caches = option.tiny ? LAYERS : 2 * LAYERS;
    option.variants = option.tiny ? 2 : 3;
    return 1;
}

/* Pages and attention, in the device's context. */
static void with_layers(const oscar_cuda_desc *desc)
{
    double start = seconds(), middle;
    TEST("device: opens");
    CHECK_MSG(oscar_cuda_open(desc, &gpu) == OSCAR_OK, ("    %s\n", said.text));
    if (!gpu) return;
    CHECK(!cu.CtxPushCurrent(gpu->context));
    CHECK(!cu.StreamCreate(&gpu_stream, 1));
    test_pages();
    middle = seconds();
    test_attention();
    printf("pages %.1f s, attention %.1f s\n", middle - start, seconds() - middle);
    CHECK(!cu.StreamDestroy(gpu_stream));
    leave();
    oscar_cuda_close(gpu);
}

int main(int argc, char **argv)
{
    oscar_cuda_desc desc;
    double start = seconds();
    void *library;
    if (!parse(argc, argv)) {
        puts("test_device [--driver PATH] [--nvrtc PATH] [--tiny] [--ptx] [--seed N] [--shapes N]");
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    memset(&desc, 0, sizeof desc);
    desc.driver = cuda_path;
    desc.nvrtc = nvrtc_path;
    desc.hooks.log = listen;
    if (oscar_cuda_probe(&desc, &found)) {
        SKIP("the device", found.sentence);
        return test_end("test_device");
    }
    if (strstr(found.name, "Mock")) option.ptx = 1;
    printf("%s, sm_%d, %d multiprocessors; CUDA %d.%d, NVRTC %d.%d\n", found.name, found.sm, found.multiprocessors,
           found.driver_version / 1000, found.driver_version % 1000 / 10, found.nvrtc_version / 1000,
           found.nvrtc_version % 1000 / 10);
    (void)oscar_isa_force(OSCAR_ISA_SCALAR);
    make_page_shapes();
    start_workers();   /* before there is a context */
    library = dlopen(found.driver_path, RTLD_NOW | RTLD_LOCAL);
    if (!library) { puts(dlerror()); return 1; }
    find_calls(library);
    with_layers(&desc);
    test_managed();
    stop_workers();
    printf("%.1f s\n", seconds() - start);
    return test_end("test_device");
}
