/* cuda_time.h - a part of bench/cuda.c: what is timed, and what is printed. */
#ifndef OSCAR_BENCH_CUDA_TIME_H
#define OSCAR_BENCH_CUDA_TIME_H

/* == 4 TIMES == */

/* One piece of device memory, from which each point takes what it needs. */
static struct { uint64_t at; size_t bytes, used; int full; } arena;

static void take_arena(void)
{
    size_t unused = 0, total = 0;
    GPU(memory(&unused, &total));
    arena.bytes = (size_t)(0.8 * (double)unused);
    if ((double)arena.bytes > bench.memory) arena.bytes = (size_t)bench.memory;
    if (bench.smoke) arena.bytes = (size_t)24 << 20;
    arena.bytes &= ~(size_t)4095;
    arena.at = gpu_alloc(arena.bytes);
}

/* 0, and arena.full, where it does not fit. */
static uint64_t place(size_t bytes)
{
    uint64_t at = arena.at + arena.used;
    bytes = (bytes + 255) & ~(size_t)255;
    if (bytes > arena.bytes - arena.used) arena.full = 1;
    if (arena.full) return 0;
    arena.used += bytes;
    return at;
}

static uint64_t place_copy(const void *from, size_t bytes)
{
    uint64_t at = place(bytes);
    if (at) GPU(copy_in(at, from, bytes));
    return at;
}

/* `bytes` bytes of the arena, filled with a block again and again. */
static uint64_t place_blocks(const void *block, size_t block_bytes, size_t bytes)
{
    uint64_t at = place(bytes);
    if (!at) return 0;
    GPU(copy_in(at, block, block_bytes < bytes ? block_bytes : bytes));
    gpu_repeat(at, block_bytes, bytes);
    return at;
}

/* -- one thing to time: a graph of several launches -- */

typedef struct timing { void *exec; int launches, times, splits; double sample[RUNS_MOST], us; } timing;

static int order_of(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void captured(timing *t, int launches)
{
    t->exec = gpu_captured();
    t->launches = launches;
}

static void free_timings(timing *t, int count)
{
    int i;
    for (i = 0; i < count; i++) {
        if (t[i].exec) GPU(exec_free(t[i].exec));
        t[i].exec = NULL;
    }
}

/* All of them in turn, so that the device's clock moves for all alike; the median of each, in microseconds a launch.
   A sample takes some milliseconds. */
static void time_all(timing *t, int count)
{
    int i, r, middle = bench.runs / 2;
    for (i = 0; i < count; i++) {
        double us;
        t[i].times = 1;
        if (!t[i].exec || bench.smoke) continue;
        (void)gpu_time(t[i].exec, 1);
        us = gpu_time(t[i].exec, 1);
        t[i].times = us > 3000 ? 1 : (int)(3000 / (us > 10 ? us : 10)) + 1;
    }
    for (r = 0; r < bench.runs; r++)
        for (i = 0; i < count; i++)
            if (t[i].exec) t[i].sample[r] = gpu_time(t[i].exec, t[i].times) / t[i].launches;
    for (i = 0; i < count; i++) {
        if (!t[i].exec) continue;
        qsort(t[i].sample, (size_t)bench.runs, sizeof t[i].sample[0], order_of);
        t[i].us = t[i].sample[middle];
    }
    free_timings(t, count);
}

static void figure(const char *metric, const char *name, double value, const char *unit)
{
    printf("figure cuda.%s%s%s %.4g %s\n", metric, *name ? "." : "", name, value, unit);
}

/* -- what memory gives: reads of the plain kernel, copies of the driver -- */

static void time_memory(const model *m)
{
    size_t bytes = bench.smoke ? 4096 : (arena.bytes < ((size_t)4 << 30) ? arena.bytes : (size_t)4 << 30) / 2;
    int64_t words = (int64_t)(bytes / 16);
    uint64_t out = gpu_alloc(16);
    timing t[2];
    void *arguments[3];
    memset(t, 0, sizeof t);
    GPU(fill(arena.at, 0x5a, bytes));
    arguments[0] = &arena.at;
    arguments[1] = &words;
    arguments[2] = &out;
    gpu_capture();
    gpu_launch(m->read, 8 * (unsigned)gpu.info.multiprocessors, 1, 1, 256, 0, arguments);
    captured(&t[0], 1);
    gpu_capture();
    GPU(copy_async(arena.at + bytes, arena.at, bytes, gpu.stream));
    captured(&t[1], 1);
    time_all(t, 2);
    gpu_free(out);
    bench.read = 1e6 * 16.0 * (double)words / t[0].us;
    if (bench.smoke) return;
    printf("# read %.0f GB/s by a plain kernel, copy %.0f GB/s (both directions together)\n", bench.read / 1e9,
           2e6 * (double)bytes / t[1].us / 1e9);
    figure("read_GBs", "", bench.read / 1e9, "GB/s");
    figure("copy_GBs", "", 2e-3 * (double)bytes / t[1].us, "GB/s");
    if (gpu.info.bandwidth > 0) figure("peak_GBs", "", gpu.info.bandwidth / 1e9, "GB/s");
}

/* -- a point: what lies in the arena -- */

/* Times the library's own splits, at most; and what the library takes. */
enum { OTHERS_MOST = 8, LIBRARY_SPLITS = 256 };

/* VARIANTS of the entries: without a page to write, as attention reads them; with a page for one sequence in 64, as
   where sequences of a batch are anywhere in their pages; with a page for each. */
enum { NO_PAGE, SOME_PAGES, ALL_PAGES, VARIANTS };

/* sets: of pages and windows, so many that the launches of a graph read four times what the second cache holds before
   one comes again. pages: of a sequence; some: that write one in SOME_PAGES. */
typedef struct place_of {
    const model *m;
    point p;
    int sets, some, splits;
    int64_t history;
    size_t pages, stride, plain_pages;
    double bytes, page_bytes, plain_bytes;      /* of one launch, each byte once */
    uint64_t entries[VARIANTS];
    oscar_cuda_memory memory;
    uint64_t q, o, k, v;
    plain_call plain;
    uint32_t *ids, *plain_ids;       /* of the host */
} place_of;

static size_t row_values(const model *m) { return (size_t)m->s.kv_heads * (size_t)m->s.dim; }

static void count_bytes(place_of *l)
{
    const model *m = l->m;
    double batch = l->p.batch, row = (double)row_values(m), l2 = 4.0 * gpu.info.l2_bytes, q_and_o;
    q_and_o = 2 * 4 * row * m->s.group;
    l->history = history_of(l->p.context);
    l->pages = (size_t)(l->history / PAGE);
    l->plain_pages = (size_t)((l->p.context + PAGE - 1) / PAGE);
    l->stride = (l->pages + 3) & ~(size_t)3;
    l->page_bytes = batch * ((double)l->pages * ((double)m->layout.bytes + 4) + q_and_o + sizeof(oscar_cuda_entry));
    l->bytes = l->page_bytes + batch * (double)(l->p.context - l->history) * row * 2 * 2;
    l->plain_bytes = batch * ((double)l->p.context * row * 2 * 2 + (double)l->plain_pages * 4 + q_and_o * 0.75 + 4);
    l->sets = l->page_bytes >= l2 ? 1 : (int)(l2 / l->page_bytes) + 1;
    if (l->sets > SETS_MOST) l->sets = SETS_MOST;
    if (bench.smoke) l->sets = 1;
    l->some = (l->p.batch + PAGE - 1) / PAGE;
}

/* Page ids of all tables, also in memory of the host: the pool in random order, again and again where it has fewer
   pages than there are places. */
static uint32_t *place_tables(size_t count, size_t pool, uint64_t *at)
{
    uint32_t *ids = (uint32_t *)take(count * sizeof *ids), *order = (uint32_t *)take(pool * sizeof *order);
    size_t i;
    for (i = 0; i < pool; i++) order[i] = (uint32_t)i;
    for (i = pool; i > 1; i--) {
        size_t other = (size_t)(random_word() % i);
        uint32_t id = order[i - 1];
        order[i - 1] = order[other];
        order[other] = id;
    }
    for (i = 0; i < count; i++) ids[i] = order[i % pool];
    *at = place_copy(ids, count * sizeof *ids);
    free(order);
    return ids;
}

static size_t least(double a, double b) { return (size_t)(a < b ? a : b); }

/* Numbers of which windows, rows and BF16 pages are made, again and again. */
static struct { unsigned short *bf16; float *as_float; } block;

static void make_block(void)
{
    if (block.bf16) return;
    block.as_float = (float *)take(BLOCK * sizeof(float));
    block.bf16 = random_rows(BLOCK, block.as_float);
}

static void give_arena(void)
{
    gpu_free(arena.at);
    free(block.bf16);
    free(block.as_float);
}

static uint64_t place_bf16(size_t values) { return place_blocks(block.bf16, 2 * (size_t)BLOCK, 2 * values); }
static uint64_t place_floats(size_t values) { return place_blocks(block.as_float, 4 * (size_t)BLOCK, 4 * values); }

static void place_entries(place_of *l)
{
    size_t count = (size_t)l->sets * (size_t)l->p.batch, i;
    oscar_cuda_entry *entries = (oscar_cuda_entry *)take(count * sizeof *entries);
    int variant;
    for (variant = 0; variant < VARIANTS; variant++) {
        int writers = variant == NO_PAGE ? 0 : variant == SOME_PAGES ? l->some : l->p.batch;
        for (i = 0; i < count; i++) {
            oscar_cuda_entry *e = &entries[i];
            int row = (int)(i % (size_t)l->p.batch);
            e->position = l->p.context - 1;
            e->history = l->history;
            e->write_first = (int64_t)l->pages - 1;
            e->write_count = row < writers;
            e->row = row;
            e->rows = 1;
            e->slot = (uint32_t)i;
            e->table = (int32_t)(i * l->stride);
        }
        l->entries[variant] = place_copy(entries, count * sizeof *entries);
    }
    free(entries);
}

static void place_oscar(place_of *l)
{
    const model *m = l->m;
    oscar_cuda_memory *memory = &l->memory;
    size_t slots = (size_t)l->sets * (size_t)l->p.batch, rows = (size_t)l->p.batch * row_values(m);
    size_t pool = least((double)slots * (double)l->stride, 0.35 * (double)arena.bytes / (double)m->layout.bytes);
    memory->entry_count = memory->rows = l->p.batch;
    memory->entry_rows = memory->entry_pages = 1;
    l->ids = place_tables(slots * l->stride, pool, &memory->tables);
    memory->pool = place_blocks(m->pages, KINDS * m->layout.bytes, pool * m->layout.bytes);
    place_entries(l);
    memory->window_k = place_bf16(slots * SLOT_ROWS * row_values(m));
    memory->window_v = place_bf16(slots * SLOT_ROWS * row_values(m));
    memory->status = place(32);
    if (memory->status) GPU(fill(memory->status, 0, 32));
    l->splits = oscar_cuda_splits(m->layer, l->p.batch, 1, l->history);
    memory->splits = l->splits * OTHERS_MOST < LIBRARY_SPLITS ? l->splits * OTHERS_MOST : LIBRARY_SPLITS;
    memory->work = place(oscar_cuda_work_bytes(m->layer, memory));
    l->q = place_floats(rows * (size_t)m->s.group);
    l->o = place(rows * (size_t)m->s.group * sizeof(float));
    l->k = place_floats(rows);
    l->v = place_floats(rows);
}

/* Blocks that the device has room for, over blocks of one split. */
static int plain_wave(const place_of *l)
{
    return gpu.info.multiprocessors * l->m->blocks / (l->p.batch * l->m->s.kv_heads);
}

static int plain_splits_most(const place_of *l)
{
    size_t most = least(SPLITS_MOST, 4 * ((double)plain_wave(l) + 1));
    return (int)(most < l->plain_pages ? most : l->plain_pages);
}

static void place_plain(place_of *l)
{
    const model *m = l->m;
    plain_call *c = &l->plain;
    size_t tables = (size_t)l->sets * (size_t)l->p.batch, page = row_values(m) * PAGE * 2, i;
    size_t heads = (size_t)l->p.batch * (size_t)(m->s.kv_heads * m->s.group);
    size_t pool = least((double)(tables * l->plain_pages), 0.25 * (double)arena.bytes / (double)page);
    int *lengths = (int *)take((size_t)l->p.batch * sizeof *lengths);
    for (i = 0; i < (size_t)l->p.batch; i++) lengths[i] = (int)l->p.context;
    c->batch = l->p.batch;
    c->table_stride = (int)l->plain_pages;
    l->plain_ids = place_tables(tables * l->plain_pages, pool, &c->tables);
    c->lengths = place_copy(lengths, (size_t)l->p.batch * sizeof *lengths);
    c->pool = place_bf16(pool * page);
    c->q = place_bf16(heads * (size_t)m->s.dim);
    heads *= (size_t)plain_splits_most(l);
    c->part_o = place(heads * (size_t)m->s.dim * sizeof(float));
    c->part_lse = place(heads * sizeof(float));
    c->o = l->o;
    free(lengths);
}

/* -- what is timed at a point -- */

/* OURS with the library's own splits; OTHER: whether others would have been better. PLAIN and the next ones: the BF16
   kernel in ever more splits, of which the fastest counts. */
enum { OTHERS = 5, PLAINS = 4 };
enum { OURS, PAGES_ONLY, WINDOWS, SOME, ALL, OTHER, PLAIN = OTHER + OTHERS, TIMINGS = PLAIN + PLAINS };

/* 0: not different from one that is timed already. */
static int other_splits(const place_of *l, int which)
{
    static const int factor[OTHERS] = { 0, 2, 3, 4, OTHERS_MOST };   /* 0: half */
    int splits = factor[which] ? l->splits * factor[which] : l->splits / 2;
    return splits <= LIBRARY_SPLITS && (!bench.smoke || which < 2) ? splits : 0;
}

static void capture_attend(const place_of *l, int splits, int windows, timing *t)
{
    oscar_cuda_memory memory = l->memory;
    oscar_cuda_rows q, o;
    int i;
    memset(&q, 0, sizeof q);
    o = q;
    q.data = l->q;
    o.data = l->o;
    memory.splits = splits;
    if (!windows) memory.window_k = memory.window_v = 0;
    gpu_capture();
    for (i = 0; i < l->sets; i++) {
        memory.entries = l->entries[NO_PAGE] + (uint64_t)(i * l->p.batch) * sizeof(oscar_cuda_entry);
        must(oscar_cuda_attend_pages(l->m->layer, &memory, &q, 0, &o, 0, gpu.stream), "oscar_cuda_attend_pages");
    }
    captured(t, l->sets);
}

static void capture_write(const place_of *l, int variant, timing *t)
{
    oscar_cuda_memory memory = l->memory;
    oscar_cuda_rows k, v;
    int i;
    memset(&k, 0, sizeof k);
    v = k;
    k.data = l->k;
    v.data = l->v;
    gpu_capture();
    for (i = 0; i < l->sets; i++) {
        memory.entries = l->entries[variant] + (uint64_t)(i * l->p.batch) * sizeof(oscar_cuda_entry);
        must(oscar_cuda_write_pages(l->m->layer, &memory, &k, &v, 3, gpu.stream), "oscar_cuda_write_pages");
    }
    captured(t, l->sets);
}

static void capture_plain(const place_of *l, int splits, timing *t)
{
    plain_call c = l->plain;
    int i;
    c.splits = splits;
    gpu_capture();
    for (i = 0; i < l->sets; i++) {
        c.tables = l->plain.tables + (uint64_t)i * (uint64_t)l->p.batch * l->plain_pages * 4;
        launch_plain(l->m, &c);
    }
    captured(t, l->sets);
}

static void capture_all(const place_of *l, timing *t)
{
    int splits = plain_wave(l) ? plain_wave(l) : 1, most = plain_splits_most(l), before = 0, i;
    memset(t, 0, TIMINGS * sizeof *t);
    capture_attend(l, l->splits, 1, &t[OURS]);
    capture_attend(l, l->splits, 0, &t[PAGES_ONLY]);
    for (i = 0; i < OTHERS; i++)
        if (other_splits(l, i)) capture_attend(l, other_splits(l, i), 1, &t[OTHER + i]);
    capture_write(l, NO_PAGE, &t[WINDOWS]);
    capture_write(l, SOME_PAGES, &t[SOME]);
    capture_write(l, ALL_PAGES, &t[ALL]);
    for (i = 0; i < PLAINS && before < most; i++, splits = i ? 2 * splits : splits + 1) {
        before = splits < most ? splits : most;
        capture_plain(l, before, &t[PLAIN + i]);
        t[PLAIN + i].splits = before;
    }
}

/* The number of the fastest of `count` times; 0 if none was taken. */
static int fastest(const timing *t, int count)
{
    int i, best = 0;
    for (i = 1; i < count; i++)
        if (t[i].us > 0 && (t[best].us <= 0 || t[i].us < t[best].us)) best = i;
    return best;
}

static void point_name(const place_of *l, char name[64])
{
    (void)snprintf(name, 64, "%s.b%d.%ldk", l->m->name, l->p.batch, (long)(l->p.context / 1024));
}

static void print_heading(void)
{
    static int done;
    if (done++) return;
    printf("%-22s | %26s | %20s | %20s | %6s | %21s | %9s\n", "one layer, one step", "2 bits: us, GB/s, of read",
           "pages alone", "BF16", "ratio", "writes a step, share", "all pages");
}

/* What a step writes in the mean: windows always, pages of a 64th of the sequences. */
static double mean_writes(const place_of *l, const timing *t)
{
    double pages = t[SOME].us - t[WINDOWS].us;
    return t[WINDOWS].us + (pages > 0 ? pages : 0) * l->p.batch / (64.0 * l->some);
}

static void print_figures(const place_of *l, const timing *t, const char *name, double read, double plain)
{
    double peak = gpu.info.bandwidth / 1e6;
    int other = fastest(t + OTHER, OTHERS);
    figure("us", name, t[OURS].us, "us");
    figure("step_MB", name, l->bytes / 1e6, "MB");
    figure("of_read", name, l->bytes / t[OURS].us / read, "1");
    if (peak > 0) figure("of_peak", name, l->bytes / t[OURS].us / peak, "1");
    figure("pages_of_read", name, l->page_bytes / t[PAGES_ONLY].us / read, "1");
    figure("splits", name, l->splits, "1");
    if (t[OTHER + other].us > 0) {
        figure("other_splits", name, other_splits(l, other), "1");
        figure("other_splits_us", name, t[OTHER + other].us, "us");
    }
    figure("bf16_us", name, plain, "us");
    figure("bf16_MB", name, l->plain_bytes / 1e6, "MB");
    figure("bf16_of_read", name, l->plain_bytes / plain / read, "1");
    if (peak > 0) figure("bf16_of_peak", name, l->plain_bytes / plain / peak, "1");
    figure("over_bf16", name, plain / t[OURS].us, "1");
    figure("write_us", name, mean_writes(l, t), "us");
    figure("write_share", name, mean_writes(l, t) / t[OURS].us, "1");
    figure("write_all_us", name, t[ALL].us, "us");
}

static void print_point(const place_of *l, const timing *t)
{
    double read = bench.read / 1e6;            /* bytes a microsecond */
    double plain = t[PLAIN + fastest(t + PLAIN, PLAINS)].us;
    double writes = mean_writes(l, t);
    char name[64];
    point_name(l, name);
    if (bench.smoke) {
        printf("# %s: launched\n", name);
        return;
    }
    print_heading();
    printf("%-22s | %9.1f %8.0f %6.1f%% | %11.1f %6.1f%% | %11.1f %6.1f%% | %6.2f | %11.1f %7.1f%% | %9.1f\n", name,
           t[OURS].us, l->bytes / t[OURS].us / 1e3, 100 * l->bytes / t[OURS].us / read, t[PAGES_ONLY].us,
           100 * l->page_bytes / t[PAGES_ONLY].us / read, plain, 100 * l->plain_bytes / plain / read,
           plain / t[OURS].us, writes, 100 * writes / t[OURS].us, t[ALL].us);
    printf("# %s: %d splits, %.0f bytes; BF16 in %d splits, %.0f bytes\n", name, l->splits, l->bytes,
           t[PLAIN + fastest(t + PLAIN, PLAINS)].splits, l->plain_bytes);
    print_figures(l, t, name, read, plain);
    fflush(stdout);
}

/* -- values of a point: indices beyond 32 bits, tables of thousands of pages -- */

/* Rows of a window, one after the other, as BLOCK makes them. */
static unsigned short *window_rows(const model *m, size_t slot, int64_t position, int64_t count)
{
    size_t row = row_values(m), i, j;
    unsigned short *rows = (unsigned short *)take((size_t)count * row * 2);
    for (i = 0; i < (size_t)count; i++) {
        size_t from = (slot * SLOT_ROWS + (size_t)row_of(position + (int64_t)i)) * row;
        for (j = 0; j < row; j++) rows[i * row + j] = block.bf16[(from + j) % BLOCK];
    }
    return rows;
}

static float *numbers_of_block(size_t first, size_t count)
{
    float *numbers = (float *)take(count * sizeof *numbers);
    size_t i;
    for (i = 0; i < count; i++) numbers[i] = block.as_float[(first + i) % BLOCK];
    return numbers;
}

/* The last sequence of the last set, on the host. Keys of a window are its values, too: both are the same block. */
static double last_error(const place_of *l, const float *got)
{
    const model *m = l->m;
    size_t slot = (size_t)l->sets * (size_t)l->p.batch - 1, values = row_values(m) * (size_t)m->s.group, i;
    const void **pages = (const void **)take((l->pages + 1) * sizeof *pages);
    double *want = (double *)take(values * sizeof *want), error;
    unsigned short *first = window_rows(m, slot, 0, SINK);
    unsigned short *last = window_rows(m, slot, SINK + l->history, l->p.context - SINK - l->history);
    float *q = numbers_of_block((size_t)(l->p.batch - 1) * values, values);
    host_sequence s;
    memset(&s, 0, sizeof s);
    for (i = 0; i < l->pages; i++) pages[i] = m->pages + l->ids[slot * l->stride + i] % KINDS * m->layout.bytes;
    s.tokens = l->p.context;
    s.q = q;
    s.pages.pages = pages;
    s.pages.count = (int64_t)l->pages;
    s.pages.position = SINK;
    s.first_k = s.first_v = first;
    s.last_k = s.last_v = last;
    attend_on_host(m, &s, want);
    error = largest_error(got, want, m->s.kv_heads * m->s.group, m->s.dim);
    free(pages); free(want); free(first); free(last); free(q);
    return error;
}

/* The last query head of the last sequence. Pages of BF16 repeat after BLOCK values, which are whole pages. */
static double last_plain_error(const place_of *l, const float *got)
{
    const model *m = l->m;
    size_t table = ((size_t)l->sets * (size_t)l->p.batch - 1) * l->plain_pages, values = (size_t)m->s.dim, i;
    size_t period = BLOCK / (row_values(m) * PAGE * 2), heads = (size_t)(l->p.batch * m->s.kv_heads * m->s.group);
    uint32_t *ids = (uint32_t *)take(l->plain_pages * sizeof *ids);
    float *q = numbers_of_block((heads - 1) * values, values);
    double *want = (double *)take(values * sizeof *want), error;
    for (i = 0; i < l->plain_pages; i++) ids[i] = (uint32_t)(l->plain_ids[table + i] % period);
    plain_in_double(m, block.as_float, ids, (int)l->p.context, m->s.kv_heads - 1, q, want);
    error = largest_error(got, want, 1, m->s.dim);
    free(ids); free(q); free(want);
    return error;
}

/* Launches what OURS and one of PLAIN are, and looks at the last rows. The scalar code takes seconds for the longest
   contexts, so these are looked at in the largest batch alone. */
static int check_point(const place_of *l, const timing *t, const char *name)
{
    size_t values = row_values(l->m) * (size_t)l->m->s.group, dim = (size_t)l->m->s.dim;
    uint64_t last = l->o + ((uint64_t)l->p.batch - 1) * values * sizeof(float);
    float *got = (float *)take(values * sizeof *got);
    double error = 0, plain;
    (void)gpu_time(t[PLAIN].exec, 1);
    GPU(copy_out(got, last + (values - dim) * sizeof(float), dim * sizeof *got));
    plain = last_plain_error(l, got);
    if (l->p.context <= 32768 || l->p.batch >= 256) {
        (void)gpu_time(t[OURS].exec, 1);
        GPU(copy_out(got, last, values * sizeof *got));
        error = last_error(l, got);
    }
    free(got);
    if (error <= 1e-3 && plain <= 8e-3) return 1;
    printf("WRONG cuda.%s: the last sequence differs by %.2g, with BF16 pages by %.2g\n", name, error, plain);
    bench.failed++;
    return 0;
}

static void free_point(place_of *l)
{
    free(l->ids);
    free(l->plain_ids);
}

static int place_point(place_of *l)
{
    make_block();
    arena.used = 0;
    arena.full = 0;
    count_bytes(l);
    place_oscar(l);
    place_plain(l);
    return !arena.full;
}

static void time_point(const model *m, const point *p)
{
    timing t[TIMINGS];
    place_of l;
    char name[64];
    memset(&l, 0, sizeof l);
    l.m = m;
    l.p = *p;
    point_name(&l, name);
    if (seconds_now() - bench.start > bench.seconds) {
        printf("skip cuda.%s: the time is over\n", name);
        bench.skipped++;
        return;
    }
    if (!place_point(&l)) {
        printf("skip cuda.%s: it does not fit into %.1f GB\n", name, (double)arena.bytes / 1e9);
        bench.skipped++;
    } else {
        capture_all(&l, t);
        if (check_point(&l, t, name)) {
            time_all(t, TIMINGS);
            print_point(&l, t);
            bench.timed++;
        } else free_timings(t, TIMINGS);
    }
    free_point(&l);
}

#endif
