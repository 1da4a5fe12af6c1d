/* mutant.c - the kernels alone as a library, so that a changed text needs no compilation of oscar.h:
       gcc -shared -fPIC -Imutant -I. tests/cuda/mutant.c -o mutant.so && KERNELS=./mutant.so test_write
   The folder mutant has an oscar_cuda.h and its oscar_cuda_text.h. */
#define KERNELS_ALONE
#include "tests/cuda/kernels.h"

int mutant_run(const kernels_constants *c, unsigned order, const char *name, const kernels_grid *grid, void **params);
const char *const *mutant_chunks(size_t *count);

int mutant_run(const kernels_constants *c, unsigned order, const char *name, const kernels_grid *grid, void **params)
{
    oscar_test = *c;
    shim_order = order;
    return kernels_on_shim(name, grid, params);
}

const char *const *mutant_chunks(size_t *count)
{
    *count = kernels_chunk_count;
    return kernels_chunks;
}
