/* cuda.c - decode attention and writes of 2-bit pages on a GPU, beside BF16 pages and what its memory gives.

       build/bench/cuda [options]
           --full           every shape with every batch and context; else all of the first shape and some of the others
           --seconds N      starts nothing more after that time (240)
           --runs N         samples of each time (9)
           --memory GB      most device memory to take (48)
           --driver PATH, --nvrtc PATH, --cache FOLDER     as in oscar_cuda_desc
           --spoil 1|2|3    changes what a kernel gave, pages, attention, or BF16's, so that it must be found wrong
           --smoke          tiny shapes and single launches, no figures: everything but speed is tried

   Needs no CUDA header and nothing to link. Without a GPU it says why on a line `skip`, and ends with status 0. Before
   anything is timed, each shape's values are compared with the scalar code and with double; status 1 where they differ.
   bench/README.md tells what the figures mean. */
#define OSCAR_NO_SIMD            /* what is compared with is the scalar code */
#define OSCAR_IMPLEMENTATION
#define OSCAR_API static
#if defined(__GNUC__)
#  pragma GCC diagnostic ignored "-Wunused-function"
#endif
#define _POSIX_C_SOURCE 200809L
#include "oscar_cuda.h"
#include "bench/cuda_driver.h"
#include "bench/plain_bf16_cuda.h"

#include <math.h>
#include <time.h>

enum {
    SINK = 64, RECENT = 256, DRAFT = 16, PAGE = 64, RING = RECENT + PAGE - 1 + DRAFT, SLOT_ROWS = SINK + RING,
    KINDS = 8,                       /* different pages on the device, again and again */
    BLOCK = 1 << 20,                 /* different numbers of all other things */
    SETS_MOST = 128, RUNS_MOST = 31, SPLITS_MOST = 128
};

/* dense: pairs as calibration gives them, with a mean and a metric; else the Hadamard transform */
typedef struct shape { int dim, group, kv_heads, dense; } shape;
typedef struct point { int batch; int64_t context; } point;

static struct {
    int full, smoke, runs, spoil;
    double seconds, memory;
    oscar_cuda_desc desc;
    double start, read;              /* read: bytes a second of the plain kernel */
    int failed, skipped, timed;
} bench = { 0, 0, 9, 0, 240, 48e9, { 0, NULL, NULL, NULL, NULL, 0, { 0 } }, 0, 0, 0, 0, 0 };

/* == 1 NUMBERS == */

static uint64_t random_state = 88172645463325252u;

static uint64_t random_word(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* About normal. */
static float random_normal(void)
{
    uint64_t w = random_word();
    int i, sum = 0;
    for (i = 0; i < 8; i++) sum += (int)(w >> (8 * i) & 255);
    return (float)(sum - 1020) / 209.0f;
}

static void *take(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes ? bytes : 64)) gpu_fail("the host", "no memory");
    memset(memory, 0, bytes);
    return memory;
}

/* BF16 numbers; as_float (may be NULL) gets them as they are then. */
static unsigned short *random_rows(size_t count, float *as_float)
{
    float *x = (float *)take(count * sizeof *x);
    unsigned short *rows = (unsigned short *)take(count * sizeof *rows);
    size_t i;
    for (i = 0; i < count; i++) x[i] = random_normal();
    oscar_convert(count, OSCAR_F32, x, OSCAR_BF16, rows);
    if (as_float) oscar_convert(count, OSCAR_BF16, rows, OSCAR_F32, as_float);
    free(x);
    return rows;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(oscar_result result, const char *what)
{
    if (result) gpu_fail(what, oscar_result_text(result));
}

static double largest_error(const float *got, const double *want, int rows, int dim)
{
    double worst = 0;
    int r, i;
    for (r = 0; r < rows; r++) {
        double error = 0, size = 0;
        for (i = 0; i < dim; i++) {
            double d = got[r * dim + i] - want[r * dim + i];
            error += d * d;
            size += want[r * dim + i] * want[r * dim + i];
        }
        if (!(error <= 1e30 * size)) return 1e30;   /* also a NaN */
        if (size > 0 && sqrt(error / size) > worst) worst = sqrt(error / size);
    }
    return worst;
}

/* == 2 MODELS: the kernels of a shape, ours and plain ones == */

typedef struct model {
    shape s;
    char name[32];
    oscar_pair *pairs;               /* [2][KV heads] where dense */
    float *pair_memory;
    oscar_layout layout;
    oscar_cuda_layer *layer;
    unsigned char *pages;            /* KINDS of them, random */
    void *module, *decode, *merge, *read;
    int warps, stages, blocks;       /* of the plain kernel */
    size_t shared;
} model;

/* A reflection I - 2 u u^T / |u|^2 is orthogonal and has no zeros; metric: 0.5 I + u u^T / |u|^2. */
static void make_pairs(model *m)
{
    int d = m->s.dim, i, j, h;
    float *to = (float *)take((size_t)(2 * d * d + d) * sizeof *to), *metric = to + d * d, *mean = metric + d * d;
    float u[512];
    double square = 0;
    for (i = 0; i < d; i++) {
        u[i] = random_normal();
        mean[i] = 0.1f * random_normal();
        square += (double)u[i] * u[i];
    }
    for (i = 0; i < d; i++)
        for (j = 0; j < d; j++) {
            double product = (double)u[i] * u[j] / square;
            to[i * d + j] = (float)((i == j) - 2 * product);
            metric[i * d + j] = (float)(0.5 * (i == j) + product);
        }
    m->pair_memory = to;
    m->pairs = (oscar_pair *)take((size_t)(2 * m->s.kv_heads) * sizeof *m->pairs);
    for (h = 0; h < 2 * m->s.kv_heads; h++) {
        oscar_pair *p = &m->pairs[h];
        p->kind = OSCAR_DENSE;
        p->dim = d;
        p->to = to;
        if (h >= m->s.kv_heads) continue;
        p->mean = mean;
        p->metric = metric;
    }
}

/* Tiles of the plain kernel: as many blocks on a multiprocessor as registers allow, at least two stages. */
static void choose_plain(model *m)
{
    size_t tile = (size_t)64 * (size_t)m->s.dim, room;
    for (m->warps = 4; m->warps >= 2; m->warps -= 2)
        for (m->blocks = m->s.dim <= 64 ? 4 : m->s.dim <= 128 ? 2 : 1; m->blocks; m->blocks--) {
            room = gpu.info.shared_all_bytes / (size_t)m->blocks - 1024;
            if (room > gpu.info.shared_bytes) room = gpu.info.shared_bytes;
            m->stages = (int)(room / (tile * (size_t)m->warps));
            if (m->stages > 4) m->stages = 4;
            m->shared = tile * (size_t)m->warps * (size_t)m->stages;
            if (m->stages >= 2) return;
        }
    gpu_fail("the BF16 kernel", "the device has too little shared memory for it");
}

static void make_plain(model *m)
{
    char constants[256];
    choose_plain(m);
    (void)snprintf(constants, sizeof constants, "#define PLAIN_D %d\n#define PLAIN_GROUP %d\n"
                   "#define PLAIN_KV_HEADS %d\n#define PLAIN_WARPS %d\n#define PLAIN_STAGES %d\n"
                   "#define PLAIN_BLOCKS %d\n", m->s.dim, m->s.group, m->s.kv_heads, m->warps, m->stages, m->blocks);
    m->module = gpu_compile(constants, plain_text, (int)(sizeof plain_text / sizeof plain_text[0]));
    m->decode = gpu_function(m->module, "plain_decode", m->shared);
    m->merge = gpu_function(m->module, "plain_merge", 0);
    m->read = gpu_function(m->module, "plain_read", 0);
}

/* The mock runs PTX alone, so it is given some. */
static void load_ptx(oscar_cuda *cuda, const oscar_layout *layout)
{
    size_t bytes = (size_t)8 << 20;      /* asking for them would compile, too */
    void *image = take(bytes);
    must(oscar_cuda_compile(&bench.desc, layout, NULL, 80, 1, image, bytes, &bytes), "oscar_cuda_compile");
    must(oscar_cuda_load(cuda, layout, NULL, image, bytes), "oscar_cuda_load");
    free(image);
}

static void make_pages(model *m)
{
    size_t row = (size_t)(PAGE * m->s.kv_heads * m->s.dim);
    void *scratch = take(m->layout.scratch);
    int i;
    m->pages = (unsigned char *)take(KINDS * m->layout.bytes);
    for (i = 0; i < KINDS; i++) {
        unsigned short *k_rows = random_rows(row, NULL), *v_rows = random_rows(row, NULL);
        oscar_view k, v;
        memset(&k, 0, sizeof k);
        k.type = OSCAR_BF16;
        v = k;
        k.data = k_rows;
        v.data = v_rows;
        must(oscar_page_write(&m->layout, &k, &v, m->pages + (size_t)i * m->layout.bytes, scratch), "oscar_page_write");
        free(k_rows);
        free(v_rows);
    }
    free(scratch);
}

static void make_model(oscar_cuda *cuda, const shape *s, model *m)
{
    oscar_layer layer;
    memset(m, 0, sizeof *m);
    memset(&layer, 0, sizeof layer);
    m->s = *s;
    (void)snprintf(m->name, sizeof m->name, "D%d.G%d%s", s->dim, s->group, s->dense ? ".dense" : "");
    layer.q_heads = s->kv_heads * s->group;
    layer.kv_heads = s->kv_heads;
    layer.k_dim = s->dim;
    if (s->dense) {
        make_pairs(m);
        layer.k = m->pairs;
        layer.v = m->pairs + s->kv_heads;
    }
    must(oscar_page_layout(&layer, PAGE, OSCAR_BF16, NULL, &m->layout), "oscar_page_layout");
    if (gpu.is_mock) load_ptx(cuda, &m->layout);
    must(oscar_cuda_layer_create(cuda, &m->layout, NULL, &m->layer), "oscar_cuda_layer_create");
    make_plain(m);
    make_pages(m);
}

static void free_model(model *m)
{
    oscar_cuda_layer_destroy(m->layer);
    GPU(module_unload(m->module));
    free(m->pages);
    free(m->pairs);
    free(m->pair_memory);
}

/* A launch of the plain kernels. unit: scale * log2 e. */
typedef struct plain_call {
    uint64_t tables, lengths, pool, q, part_o, part_lse, o;
    int table_stride, splits, batch;
} plain_call;

static void launch_plain(const model *m, const plain_call *call)
{
    plain_call c = *call;
    float unit = 1.44269504f / sqrtf((float)m->s.dim);
    void *decode[9], *merge[4];
    decode[0] = &c.tables; decode[1] = &c.lengths; decode[2] = &c.table_stride; decode[3] = &c.pool; decode[4] = &c.q;
    decode[5] = &unit; decode[6] = &c.part_o; decode[7] = &c.part_lse; decode[8] = &c.o;
    gpu_launch(m->decode, (unsigned)c.splits, (unsigned)m->s.kv_heads, (unsigned)c.batch, 32u * (unsigned)m->warps,
               m->shared, decode);
    merge[0] = &c.part_o; merge[1] = &c.part_lse; merge[2] = &c.splits; merge[3] = &c.o;
    if (c.splits > 1)
        gpu_launch(m->merge, (unsigned)(m->s.kv_heads * m->s.group), (unsigned)c.batch, 1, (unsigned)m->s.dim, 0,
                   merge);
}

#include "bench/cuda_check.h"
#include "bench/cuda_time.h"

/* == 5 PROGRAM == */

static const shape real_shapes[] = {
    { 128, 4, 8, 0 }, { 128, 4, 8, 1 }, { 128, 8, 8, 0 }, { 64, 8, 8, 0 }, { 256, 4, 8, 0 }, { 128, 1, 8, 0 },
    { 64, 4, 8, 0 }, { 64, 1, 8, 0 }, { 256, 8, 8, 0 }, { 256, 1, 8, 0 }
};
static const shape smoke_shapes[] = { { 128, 4, 2, 0 }, { 64, 8, 1, 1 }, { 256, 1, 1, 0 } };
static const int batches[] = { 1, 4, 16, 64, 256 };
static const int64_t contexts[] = { 4096, 32768, 131072 };
static const point few_points[] = { { 64, 32768 }, { 16, 4096 }, { 1, 131072 }, { 256, 4096 } };
static const point smoke_points[] = { { 2, 448 } };

static void run_points(const model *m, int all)
{
    size_t i, j;
    if (bench.smoke) time_point(m, &smoke_points[0]);
    else if (all) {
        for (i = 0; i < sizeof contexts / sizeof contexts[0]; i++)
            for (j = 0; j < sizeof batches / sizeof batches[0]; j++) {
                point p;
                p.batch = batches[j];
                p.context = contexts[i];
                time_point(m, &p);
            }
    } else {
        for (i = 0; i < sizeof few_points / sizeof few_points[0]; i++) time_point(m, &few_points[i]);
    }
}

static void run_shapes(oscar_cuda *cuda)
{
    const shape *shapes = bench.smoke ? smoke_shapes : real_shapes;
    size_t i, count = (bench.smoke ? sizeof smoke_shapes : sizeof real_shapes) / sizeof *shapes;
    for (i = 0; i < count; i++) {
        model m;
        if (seconds_now() - bench.start > bench.seconds) {
            printf("skip D%d.G%d: the time is over\n", shapes[i].dim, shapes[i].group);
            bench.skipped++;
            continue;
        }
        make_model(cuda, &shapes[i], &m);
        if (check_model(&m)) {
            if (i == 0) time_memory(&m);
            run_points(&m, bench.full || i == 0);
        } else bench.failed++;
        free_model(&m);
    }
}

static void listen(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    (void)user;
    (void)code;
    (void)line;
    if (level == OSCAR_LOG_ERROR) fprintf(stderr, "oscar: %s\n", text);
}

static int read_options(int argc, char **argv)
{
    int i;
    for (i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--full")) bench.full = 1;
        else if (!strcmp(argv[i], "--smoke")) bench.smoke = 1;
        else if (!value) return 0;
        else if (!strcmp(argv[i], "--seconds")) bench.seconds = atof(argv[++i]);
        else if (!strcmp(argv[i], "--runs")) bench.runs = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--spoil")) bench.spoil = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--memory")) bench.memory = 1e9 * atof(argv[++i]);
        else if (!strcmp(argv[i], "--driver")) bench.desc.driver = argv[++i];
        else if (!strcmp(argv[i], "--nvrtc")) bench.desc.nvrtc = argv[++i];
        else if (!strcmp(argv[i], "--cache")) bench.desc.cache = argv[++i];
        else return 0;
    }
    return bench.runs >= 1 && bench.runs <= RUNS_MOST;
}

static void print_facts(const oscar_cuda_info *info)
{
    printf("# gpu %s, sm_%d, %d multiprocessors, %.1f GB, L2 %.1f MB\n", info->name, info->sm, info->multiprocessors,
           (double)info->memory_bytes / 1e9, info->l2_bytes / 1e6);
    printf("# driver %d.%d, nvrtc %d.%d\n", info->driver_version / 1000, info->driver_version % 1000 / 10,
           info->nvrtc_version / 1000, info->nvrtc_version % 1000 / 10);
    if (info->bandwidth > 0)
        printf("# peak %.0f GB/s: %.0f MHz x 2 x %d bits, as the driver tells them\n", info->bandwidth / 1e9,
               info->memory_clock_khz / 1e3, info->memory_bus_bits);
    else printf("# peak not told by the driver\n");
}

int main(int argc, char **argv)
{
    oscar_cuda_info info, opened;
    oscar_cuda *cuda = NULL;
    memset(&opened, 0, sizeof opened);
    if (!read_options(argc, argv)) {
        fprintf(stderr, "cuda: options not understood; they stand at the top of bench/cuda.c\n");
        return 2;
    }
    if (oscar_cuda_probe(&bench.desc, &info)) {
        printf("skip cuda: %s\n", info.sentence);
        return 0;
    }
    if (info.sm < 80) {
        printf("skip cuda: the BF16 kernel needs compute capability 8.0, this is %d.%d\n", info.sm / 10, info.sm % 10);
        return 0;
    }
    bench.start = seconds_now();
    bench.desc.hooks.log = listen;
    must(oscar_cuda_open(&bench.desc, &cuda), "oscar_cuda_open");
    oscar_cuda_get_info(cuda, &opened);
    info.context = opened.context;
    gpu_open(&info);
    if (gpu.is_mock) bench.smoke = 1;
    if (bench.smoke) bench.runs = 1;
    print_facts(&info);
    take_arena();
    run_shapes(cuda);
    give_arena();
    gpu_close();
    oscar_cuda_close(cuda);
    printf("cuda: %d cases timed, %d with wrong values, %d skipped, %.0f s%s\n", bench.timed, bench.failed,
           bench.skipped, seconds_now() - bench.start,
           gpu.is_mock ? "; times over a driver that is a mock mean nothing" : "");
    return bench.failed != 0;
}
