/* mock.h - how tests steer the mock driver of mock_cuda.c. Take these from the library that was loaded, with dlsym:

       void oscar_mock_reset(void);                    forgets all objects, faults, counts, the log; options as below
       void oscar_mock_set(const char *option, long long value);
           "capability" 90: 10 major + minor     "version" 13000     "devices" 1     "memory" 1 << 30 bytes a device
           "late" 0: 1 runs what is asynchronous when somebody waits for it, and not before
           "order" 0: of the threads of a kernel, as in ptx.h
           "absent" 0: 1 makes cuGetProcAddress find nothing
       void oscar_mock_fail(const char *function, int nth, int result);
           the nth call from now on (0: each) of the function ("cuMemAlloc_v2"; "kernel": the run of a kernel, reported
           where somebody waits; NULL: of any function) returns `result` and does nothing. nth -1: no fault any more
       int oscar_mock_calls(const char *function);     calls so far; NULL: of all functions
       const char *oscar_mock_log(void);               a line for each call: its name, then its arguments
       const char *oscar_mock_message(void);           what was wrong in the last error that the mock found itself
       int oscar_mock_live(const char *kind);          objects that live: "memory" "host" "module" "stream" "event"
                                                       "graph" "exec" "context" "retain"; NULL: all

   The environment can do the same for programs that know nothing of the mock, at the first call of the driver:
       OSCAR_MOCK="capability=75 memory=1000000 cuMemAlloc_v2:3=2"     (function:nth=result)

   Modules in PTX run in the PTX interpreter; of an uncompressed fatbin that part is taken which the device runs. For
   cubins the program exports (link with -rdynamic):
       int oscar_mock_kernel(const char *name, const unsigned grid[3], const unsigned block[3], size_t dynamic_bytes,
                             void **params);           0: it ran; 1: a fault (CUDA_ERROR_ILLEGAL_ADDRESS)
       int oscar_mock_parameters(const char *name, size_t *bytes);     how many parameters, and the bytes of each
   A program without the first one cannot load cubins (CUDA_ERROR_NO_BINARY_FOR_GPU); the library then takes PTX.
   Device memory can be touched only while a kernel or a copy runs; behind it lies a page that nobody can touch, and a
   write between the two is found after the kernel. It starts as 0xff. To try a driver without a function, build the
   mock with -DcuStreamIsCapturing=absent_1. */
#ifndef OSCAR_TEST_MOCK_H
#define OSCAR_TEST_MOCK_H

#include <stddef.h>

typedef struct mock_control {
    void (*reset)(void);
    void (*set)(const char *option, long long value);
    void (*fail)(const char *function, int nth, int result);
    int (*calls)(const char *function);
    const char *(*log)(void);
    const char *(*message)(void);
    int (*live)(const char *kind);
} mock_control;

enum {
    MOCK_INVALID_VALUE = 1, MOCK_OUT_OF_MEMORY = 2, MOCK_NOT_INITIALIZED = 3, MOCK_NO_DEVICE = 100,
    MOCK_INVALID_DEVICE = 101, MOCK_INVALID_IMAGE = 200, MOCK_INVALID_CONTEXT = 201, MOCK_NO_BINARY = 209,
    MOCK_INVALID_PTX = 218, MOCK_UNSUPPORTED_PTX = 222, MOCK_INVALID_HANDLE = 400, MOCK_NOT_FOUND = 500,
    MOCK_NOT_READY = 600, MOCK_ILLEGAL_ADDRESS = 700, MOCK_OUT_OF_RESOURCES = 701, MOCK_CAPTURE_UNSUPPORTED = 900,
    MOCK_CAPTURE_INVALIDATED = 901, MOCK_CAPTURE_UNMATCHED = 903, MOCK_CAPTURE_ISOLATION = 905,
    MOCK_CAPTURE_IMPLICIT = 906
};

#endif
