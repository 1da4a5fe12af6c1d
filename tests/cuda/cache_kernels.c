/* cache_kernels.c - the kernels of test_cache where there is no NVRTC: the mock driver runs the text through the shim.
   Layers are told apart by an argument that differs (cache_case.h). */
#define KERNELS_ALONE
#include "tests/cuda/kernels.h"

enum { CACHE_CONSTANTS = sizeof(kernels_constants) / sizeof(int) };

static kernels_constants cache_layers[2];

void cache_kernels_set(int layer, const int64_t *values);
int oscar_mock_kernel(const char *name, const unsigned grid[3], const unsigned block[3], size_t dynamic, void **params);
int oscar_mock_parameters(const char *name, size_t *bytes);

/* The constants of a layer, in the order of their list. */
void cache_kernels_set(int layer, const int64_t *values)
{
    int *to = (int *)(void *)&cache_layers[layer];
    int i;
    for (i = 0; i < CACHE_CONSTANTS; i++) to[i] = (int)values[i];
}

/* Layer 1 has no matrices, a soft cap, and 32 values a token. */
static int cache_layer(const char *name, void **p)
{
    if (!strcmp(name, "oscar_cu_write")) return *(int *)p[13];
    if (!strcmp(name, "oscar_cu_read")) return *(int64_t *)p[4] == 32;
    if (!strcmp(name, "oscar_cu_query")) return *(uint64_t *)p[5] == 0;
    if (!strcmp(name, "oscar_cu_decode")) return *(float *)p[8] > 0;
    if (!strcmp(name, "oscar_cu_merge")) return *(uint64_t *)p[6] == 0;
    return 0;
}

int oscar_mock_kernel(const char *name, const unsigned grid[3], const unsigned block[3], size_t dynamic, void **params)
{
    kernels_grid g;
    g.x = grid[0];
    g.y = grid[1];
    g.z = grid[2];
    g.threads = block[0];
    g.shared = dynamic;
    oscar_test = cache_layers[cache_layer(name, params)];
    return kernels_on_shim(name, &g, params) != 0;
}

int oscar_mock_parameters(const char *name, size_t *bytes)
{
    static const struct { const char *name, *sizes; } lists[] = {
        { "oscar_cu_check", "8" }, { "oscar_cu_write", "8888888888888444" }, { "oscar_cu_read", "88888888448" },
        { "oscar_cu_query", "8488888488" }, { "oscar_cu_decode", "848888884488" }, { "oscar_cu_merge", "844488888888" }
    };
    size_t i, j;
    for (i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (strcmp(lists[i].name, name)) continue;
        for (j = 0; lists[i].sizes[j]; j++) bytes[j] = (size_t)(lists[i].sizes[j] - '0');
        return (int)j;
    }
    return -1;
}
