/* fake.h - a driver and an NVRTC that do nothing but keep books, for tests of the loader. fake.c becomes a shared
   library; a test loads it, asks for fake_get, and says there how the calls shall behave. */
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>

enum { FAKE_ARCHS = 16, FAKE_STACK = 32, FAKE_TEXT = 64, FAKE_DEVICES = 2, FAKE_CONTEXTS = 2 * FAKE_DEVICES };

/* Contexts: of each device the primary one, then one of the caller. Streams belong to a context. */
typedef struct fake_context { int device; } fake_context;
typedef struct fake_stream { fake_context *context; } fake_stream;

typedef struct fake_state {
    /* what is there */
    int sm, shared_bytes, driver_version, devices, nvrtc_version;
    int archs[FAKE_ARCHS], arch_count;   /* count 0: an NVRTC that cannot be asked */
    int proc_address;                    /* 0: cuGetProcAddress knows nothing */
    unsigned answer[32];                 /* what oscar_cu_check writes */
    const char *log;                     /* NVRTC's log, or NULL */
    int compile_code, cubin_code, ptx_code, init_code;   /* of nvrtcCompileProgram, cuModuleLoadData, cuInit */
    int compile_ms;                      /* how long it takes */

    /* faults: the fail_at-th call from now on returns fail_code. A call that gives something back still does so */
    int fail_at, fail_code;
    char failed[FAKE_TEXT];              /* the call that did */

    /* books */
    int calls, compiles, launches, syncs;
    int retained, modules, memory, programs;
    void *stack[FAKE_STACK];
    int depth;
    char arch[FAKE_TEXT];                /* last option --gpu-architecture= */
    int set_attribute, set_value;        /* last cuFuncSetAttribute */
    fake_context contexts[FAKE_CONTEXTS];
    fake_stream streams[FAKE_CONTEXTS];
} fake_state;

#endif
