/* kernels.h - the kernels of oscar_cuda.h for tests. Their text is read twice: as C, through shim.h, with the constants
   as members of oscar_test, so that one program runs every layer; and as the string for NVRTC.

       kernels_set(&plan)            the constants of a plan
       oscar__cu_launch_write(&kernels_cuda, &kernels_module, NULL, &args)
                                     the host's own functions launch; kernels_way runs what they ask for: the shim,
                                     unless it is changed
       char *text = kernels_text()   with these constants; free() it

   KERNELS in the environment names a library made of mutant.c, whose kernels are taken instead. oscar_cuda_text.h comes
   from extract.awk. */
#ifndef OSCAR_TEST_KERNELS_H
#define OSCAR_TEST_KERNELS_H

#ifndef _GNU_SOURCE
#  define _GNU_SOURCE 1
#endif
#define OSCAR_IMPLEMENTATION
#if defined(KERNELS_ALONE)   /* section 3 of oscar_cuda.h alone */
#  define OSCAR__IMPLEMENTED
#  define OSCAR__CUDA_IMPLEMENTED
#else
#  define OSCAR_STATIC
#endif
#include "oscar_cuda.h"
#include "tests/cuda/shim.h"

/* -- constants -- */

typedef struct kernels_constants {
#define KERNELS_MEMBER(name, value) int name;
    OSCAR__CU_CONSTANTS(KERNELS_MEMBER)
#undef KERNELS_MEMBER
} kernels_constants;

static kernels_constants oscar_test;

#define OSCAR_SM (oscar_test.SM)
#define OSCAR_KV_HEADS (oscar_test.KV_HEADS)
#define OSCAR_GROUP (oscar_test.GROUP)
#define OSCAR_DK (oscar_test.DK)
#define OSCAR_DV (oscar_test.DV)
#define OSCAR_K_BITS (oscar_test.K_BITS)
#define OSCAR_V_BITS (oscar_test.V_BITS)
#define OSCAR_K_CLIP (oscar_test.K_CLIP)
#define OSCAR_V_CLIP (oscar_test.V_CLIP)
#define OSCAR_K_RANK (oscar_test.K_RANK)
#define OSCAR_V_RANK (oscar_test.V_RANK)
#define OSCAR_K_GROUP (oscar_test.K_GROUP)
#define OSCAR_V_GROUP (oscar_test.V_GROUP)
#define OSCAR_K_KIND (oscar_test.K_KIND)
#define OSCAR_V_KIND (oscar_test.V_KIND)
#define OSCAR_V_FOLDED (oscar_test.V_FOLDED)
#define OSCAR_K_MEAN (oscar_test.K_MEAN)
#define OSCAR_K_PAGE_MEAN (oscar_test.K_PAGE_MEAN)
#define OSCAR_K_METRIC (oscar_test.K_METRIC)
#define OSCAR_PAGE (oscar_test.PAGE)
#define OSCAR_PAGE_BYTES (oscar_test.PAGE_BYTES)
#define OSCAR_HEAD_BYTES (oscar_test.HEAD_BYTES)
#define OSCAR_V_CODES (oscar_test.V_CODES)
#define OSCAR_K_SCALE (oscar_test.K_SCALE)
#define OSCAR_K_MINIMUM (oscar_test.K_MINIMUM)
#define OSCAR_V_SCALE (oscar_test.V_SCALE)
#define OSCAR_V_MINIMUM (oscar_test.V_MINIMUM)
#define OSCAR_MEAN (oscar_test.MEAN)
#define OSCAR_MEAN_SCALE (oscar_test.MEAN_SCALE)
#define OSCAR_SINK (oscar_test.SINK)
#define OSCAR_RECENT (oscar_test.RECENT)
#define OSCAR_RING (oscar_test.RING)
#define OSCAR_WINDOW_TYPE (oscar_test.WINDOW_TYPE)
#define OSCAR_ROW_TYPE (oscar_test.ROW_TYPE)
#define OSCAR_SLIDING (oscar_test.SLIDING)
#define OSCAR_SOFTCAP (oscar_test.SOFTCAP)
#define OSCAR_PAIRS (oscar_test.PAIRS)
#define OSCAR_TILES (oscar_test.TILES)
#define OSCAR_FOLD (oscar_test.FOLD)
#define OSCAR_WARPS (oscar_test.WARPS)
#define OSCAR_STAGES (oscar_test.STAGES)
#define OSCAR_BLOCKS (oscar_test.BLOCKS)
#define OSCAR_K_WORDS (oscar_test.K_WORDS)
#define OSCAR_K_LINES (oscar_test.K_LINES)
#define OSCAR_K_STEPS (oscar_test.K_STEPS)
#define OSCAR_K_GROUPS (oscar_test.K_GROUPS)
#define OSCAR_K_TILE (oscar_test.K_TILE)
#define OSCAR_V_GROUPS (oscar_test.V_GROUPS)
#define OSCAR_V_TILES (oscar_test.V_TILES)
#define OSCAR_V_TILE (oscar_test.V_TILE)
#define OSCAR_V_LINE (oscar_test.V_LINE)
#define OSCAR_META (oscar_test.META)
#define OSCAR_META_ARRAYS (oscar_test.META_ARRAYS)
#define OSCAR_STAGE_V (oscar_test.STAGE_V)
#define OSCAR_STAGE_META (oscar_test.STAGE_META)
#define OSCAR_STAGE_K_MIN (oscar_test.STAGE_K_MIN)
#define OSCAR_STAGE_V_SCALE (oscar_test.STAGE_V_SCALE)
#define OSCAR_STAGE_V_MIN (oscar_test.STAGE_V_MIN)
#define OSCAR_STAGE_MEAN (oscar_test.STAGE_MEAN)
#define OSCAR_STAGE_BYTES (oscar_test.STAGE_BYTES)
#define OSCAR_R_STEPS (oscar_test.R_STEPS)
#define OSCAR_FRAGMENTS (oscar_test.FRAGMENTS)
#define OSCAR_SUMS (oscar_test.SUMS)
#define OSCAR_MERGE_HEADS (oscar_test.MERGE_HEADS)

#include "oscar_cuda_text.h"

/* -- launches -- */

#define KERNELS_AT(type, i) (*(type *)p[i])

static void kernels_check(void **p) { oscar_cu_check(KERNELS_AT(unsigned *, 0)); }

static void kernels_write(void **p)
{
    oscar_cu_write(KERNELS_AT(const oscar_cu_entry *, 0), KERNELS_AT(const unsigned *, 1),
                   KERNELS_AT(const void *, 2), KERNELS_AT(const void *, 3), KERNELS_AT(long long, 4),
                   KERNELS_AT(long long, 5), KERNELS_AT(long long, 6), KERNELS_AT(long long, 7),
                   KERNELS_AT(void *, 8), KERNELS_AT(void *, 9), KERNELS_AT(unsigned char *, 10),
                   KERNELS_AT(const oscar_cu_constants *, 11), KERNELS_AT(oscar_cu_status *, 12),
                   KERNELS_AT(int, 13), KERNELS_AT(int, 14), KERNELS_AT(int, 15));
}

static void kernels_read(void **p)
{
    oscar_cu_read(KERNELS_AT(const oscar_cu_rows *, 0), KERNELS_AT(const unsigned char *, 1),
                  KERNELS_AT(void *, 2), KERNELS_AT(void *, 3), KERNELS_AT(long long, 4),
                  KERNELS_AT(long long, 5), KERNELS_AT(long long, 6), KERNELS_AT(long long, 7),
                  KERNELS_AT(int, 8), KERNELS_AT(int, 9), KERNELS_AT(const oscar_cu_constants *, 10));
}

static void kernels_query(void **p)
{
    oscar_cu_query(KERNELS_AT(const oscar_cu_entry *, 0), KERNELS_AT(int, 1), KERNELS_AT(const void *, 2),
                   KERNELS_AT(long long, 3), KERNELS_AT(long long, 4), KERNELS_AT(const float *, 5),
                   KERNELS_AT(const float *, 6), KERNELS_AT(float, 7), KERNELS_AT(uint4 *, 8),
                   KERNELS_AT(unsigned *, 9));
}

static void kernels_decode(void **p)
{
    oscar_cu_decode(KERNELS_AT(const oscar_cu_entry *, 0), KERNELS_AT(int, 1), KERNELS_AT(const unsigned *, 2),
                    KERNELS_AT(const unsigned char *, 3), KERNELS_AT(const unsigned char *, 4),
                    KERNELS_AT(const unsigned char *, 5), KERNELS_AT(const uint4 *, 6),
                    KERNELS_AT(const unsigned *, 7), KERNELS_AT(float, 8), KERNELS_AT(int, 9),
                    KERNELS_AT(float *, 10), KERNELS_AT(float *, 11));
}

static void kernels_merge(void **p)
{
    oscar_cu_merge(KERNELS_AT(const oscar_cu_entry *, 0), KERNELS_AT(int, 1), KERNELS_AT(int, 2),
                   KERNELS_AT(int, 3), KERNELS_AT(const float *, 4), KERNELS_AT(const float *, 5),
                   KERNELS_AT(const float *, 6), KERNELS_AT(const float *, 7), KERNELS_AT(void *, 8),
                   KERNELS_AT(long long, 9), KERNELS_AT(long long, 10), KERNELS_AT(float *, 11));
}

static const struct { const char *name; shim_kernel thunk; } kernels_list[] = {
    { "oscar_cu_check", kernels_check }, { "oscar_cu_write", kernels_write }, { "oscar_cu_read", kernels_read },
    { "oscar_cu_query", kernels_query }, { "oscar_cu_decode", kernels_decode }, { "oscar_cu_merge", kernels_merge }
};

/* A grid, threads of a block, dynamic shared memory. */
typedef struct kernels_grid { unsigned x, y, z, threads; size_t shared; } kernels_grid;

/* 0 if it went well. */
static int kernels_on_shim(const char *name, const kernels_grid *grid, void **params)
{
    size_t i;
    for (i = 0; i < sizeof kernels_list / sizeof *kernels_list; i++)
        if (!strcmp(kernels_list[i].name, name)) {
            if (!shim_launch(kernels_list[i].thunk, shim_size(grid->x, grid->y, grid->z),
                             shim_size(grid->threads, 1, 1), grid->shared, params))
                return 0;
            printf("%s: %s\n", name, shim_error);
            return -1;
        }
    printf("no kernel %s\n", name);
    return -1;
}

/* -- text, for NVRTC -- */

static const char *const *kernels_chunks = oscar__cu_chunks;
static size_t kernels_chunk_count = sizeof oscar__cu_chunks / sizeof *oscar__cu_chunks;

SHIM_UNUSED static char *kernels_text(void)
{
    size_t bytes = 8192, used = 0, i;
    char *text;
    for (i = 0; i < kernels_chunk_count; i++) bytes += strlen(kernels_chunks[i]);
    text = (char *)malloc(bytes);
    if (!text) abort();
#define KERNELS_LINE(name, value) \
    used += (size_t)snprintf(text + used, bytes - used, "#define OSCAR_" #name " %d\n", oscar_test.name);
    OSCAR__CU_CONSTANTS(KERNELS_LINE)
#undef KERNELS_LINE
    for (i = 0; i < kernels_chunk_count; i++) {
        size_t length = strlen(kernels_chunks[i]);
        memcpy(text + used, kernels_chunks[i], length + 1);
        used += length;
    }
    return text;
}

/* -- kernels of this program, or of a library of mutant.c -- */

#if !defined(KERNELS_ALONE)
#include <dlfcn.h>

typedef int (*kernels_runner)(const kernels_constants *c, unsigned order, const char *name, const kernels_grid *grid,
                              void **params);
typedef const char *const *(*kernels_chunk_list)(size_t *count);
static kernels_runner kernels_other;

SHIM_UNUSED static void kernels_open(void)
{
    const char *path = getenv("KERNELS");
    void *library, *symbol;
    kernels_chunk_list chunks;
    if (!path) return;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library || !(symbol = dlsym(library, "mutant_run"))) { puts(dlerror()); exit(2); }
    memcpy(&kernels_other, &symbol, sizeof symbol);
    symbol = dlsym(library, "mutant_chunks");
    memcpy(&chunks, &symbol, sizeof symbol);
    kernels_chunks = chunks(&kernels_chunk_count);
}

SHIM_UNUSED static int kernels_here(const char *name, const kernels_grid *grid, void **params)
{
    if (kernels_other) return kernels_other(&oscar_test, shim_order, name, grid, params);
    return kernels_on_shim(name, grid, params);
}

/* A pointer as device memory. */
SHIM_UNUSED static uint64_t kernels_at(const void *p) { return (uint64_t)(uintptr_t)p; }

static int (*kernels_way)(const char *name, const kernels_grid *grid, void **params) SHIM_UNUSED = kernels_here;

/* The driver's part of a launch: functions are names. */
static int OSCAR__CU_CALL kernels_driver(void *function, unsigned x, unsigned y, unsigned z, unsigned block_x,
                                         unsigned block_y, unsigned block_z, unsigned shared, void *stream,
                                         void **params, void **extra)
{
    kernels_grid grid;
    grid.x = x;
    grid.y = y;
    grid.z = z;
    grid.threads = block_x;
    grid.shared = shared;
    if (block_y != 1 || block_z != 1 || stream || extra) return 1;
    return kernels_way((const char *)function, &grid, params) ? 700 : 0;
}

static int OSCAR__CU_CALL kernels_code(int code, const char **text)
{
    *text = code == 700 ? "fault" : "invalid";
    return 0;
}

static oscar_cuda kernels_cuda;
static oscar__cu_module kernels_module;

SHIM_UNUSED static void kernels_set(const oscar__cu_plan *plan)
{
    int i;
    kernels_cuda.driver.launch = kernels_driver;
    kernels_cuda.driver.error_name = kernels_code;
    kernels_cuda.driver.error_text = kernels_code;
    kernels_module.plan = *plan;
    for (i = 0; i < OSCAR__CU_KERNEL_COUNT; i++)
        kernels_module.functions[i] = (void *)(uintptr_t)oscar__cu_kernel_names[i];
#define KERNELS_SET(name, unused) oscar_test.name = (int)plan->constants.value[OSCAR__CU_##name];
    OSCAR__CU_CONSTANTS(KERNELS_SET)
#undef KERNELS_SET
}
#endif

#endif
