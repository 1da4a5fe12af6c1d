/* ptx.h - runs PTX text, thread by thread, as NVRTC makes it of kernels in C. Loading refuses what it does not know:
   opcodes, modifiers, types, undeclared registers. Running reports, with the line of the PTX and of the
   kernel (-lineinfo): accesses outside shared, local, parameter or global memory, misalignment, races and reads of
   unwritten bytes in shared and local memory, barriers and *_sync that not all reach, cp.async never waited for, an
   endless loop. Approximate functions and tensor sums are exact here; memory order across blocks is not modelled. */
#ifndef OSCAR_TEST_PTX_H
#define OSCAR_TEST_PTX_H

#include <stddef.h>
#include <stdint.h>

typedef struct ptx_module ptx_module;
typedef struct ptx_size { unsigned x, y, z; } ptx_size;

typedef struct ptx_options {
    unsigned order;                  /* of the threads: 0 forward, 1 backward, else the seed of a random order */
    int check_races;
    /* Whether global memory holds these bytes; NULL: no check. Variables of the module are known without it. */
    int (*inside)(void *user, uint64_t address, size_t bytes, int write);
    void *user;
    unsigned long long limit;        /* of instructions; 0: 4e9 */
    unsigned long long executed;     /* result */
    char error[512];                 /* result */
} ptx_options;

/* NULL, and a sentence in error, if the text holds anything unknown. */
ptx_module *ptx_load(const char *text, char *error, size_t error_bytes);
void ptx_free(ptx_module *module);

/* The number of parameters, -1 if there is no such kernel; bytes may be NULL, else it gets the size of each. */
int ptx_parameters(const ptx_module *module, const char *kernel, size_t *bytes);

/* params as of cuLaunchKernel. Returns 0, or -1 with a sentence in options->error. */
int ptx_launch(ptx_module *module, const char *kernel, ptx_size grid, ptx_size block, size_t dynamic_bytes,
               void **params, ptx_options *options);

#endif
