/* fake.c - libcuda and libnvrtc in one library, for tests/cuda/test_loader.c (fake.h). An image is the text itself
   behind an ELF header or a line of PTX, so kernels are found in it by their names. FAKE_LAME leaves a call out, and
   has the first version of cuGetProcAddress. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

#define API __attribute__((visibility("default")))

enum { INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201, NO_BINARY = 209, NOT_FOUND = 500 };

static fake_state fake;

API fake_state *fake_get(void);
API fake_state *fake_get(void) { return &fake; }

/* Counts a call; the code it has to return. */
static int enter(const char *name)
{
    fake.calls++;
    if (fake.fail_at <= 0 || --fake.fail_at) return 0;
    snprintf(fake.failed, sizeof fake.failed, "%s", name);
    return fake.fail_code;
}
#define ENTER() do { int code_ = enter(__func__); if (code_) return code_; } while (0)

/* == DRIVER == */

API int cuInit(unsigned flags) { ENTER(); return flags ? INVALID : fake.init_code; }
API int cuDriverGetVersion(int *version) { ENTER(); *version = fake.driver_version; return 0; }

API int cuGetErrorName(int code, const char **name)
{
    *name = code == NO_BINARY ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_FAKE";
    return 0;
}

API int cuGetErrorString(int code, const char **text) { *text = code ? "a fake failure" : "no error"; return 0; }
API int cuDeviceGetCount(int *count) { ENTER(); *count = fake.devices; return 0; }

API int cuDeviceGet(int *device, int ordinal)
{
    ENTER();
    if (ordinal < 0 || ordinal >= fake.devices) return NO_DEVICE;
    *device = ordinal;
    return 0;
}

API int cuDeviceGetName(char *name, int capacity, int device)
{
    ENTER();
    snprintf(name, (size_t)capacity, "Fake %d", device);
    return 0;
}

API int cuDeviceTotalMem_v2(size_t *bytes, int device) { ENTER(); *bytes = (size_t)(device + 1) << 30; return 0; }

API int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    ENTER();
    (void)device;
    *value = attribute == 75 ? fake.sm / 10 : attribute == 76 ? fake.sm % 10 : attribute == 16 ? 132
             : attribute == 97 ? fake.shared_bytes : attribute == 81 ? fake.shared_bytes + 1024
             : attribute == 38 ? 50 << 20 : attribute == 13 ? 1980000
             : attribute == 36 ? 2619000 : attribute == 37 ? 5120 : 0;
    return 0;
}

API int cuDevicePrimaryCtxRetain(void **context, int device)
{
    ENTER();
    fake.retained++;
    *context = &fake.contexts[device];
    return 0;
}

typedef struct fake_module { char *image; size_t size; void *context; struct fake_module *next; } fake_module;
static fake_module *modules;

static void unload(fake_module *m)
{
    fake_module **at = &modules;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    free(m->image);
    free(m);
    fake.modules--;
}

/* The last release of a primary context takes its modules along. */
API int cuDevicePrimaryCtxRelease_v2(int device)
{
    fake_module *m = modules, *next;
    fake.retained--;
    for (; m && !fake.retained; m = next) {
        next = m->next;
        if (m->context == &fake.contexts[device]) unload(m);
    }
    ENTER();
    return 0;
}

static void *current(void) { return fake.depth ? fake.stack[fake.depth - 1] : NULL; }

API int cuCtxGetCurrent(void **context) { ENTER(); *context = current(); return 0; }

API int cuCtxGetDevice(int *device)
{
    ENTER();
    if (!current()) return INVALID_CONTEXT;
    *device = ((fake_context *)current())->device;
    return 0;
}

API int cuCtxPushCurrent_v2(void *context)
{
    fake_context *c = (fake_context *)context;
    ENTER();
    if (c < fake.contexts || c >= fake.contexts + FAKE_CONTEXTS || fake.depth == FAKE_STACK) return INVALID_CONTEXT;
    fake.stack[fake.depth++] = context;
    return 0;
}

API int cuCtxPopCurrent_v2(void **context)
{
    if (!fake.depth) return INVALID_CONTEXT;
    *context = fake.stack[--fake.depth];
    ENTER();
    return 0;
}

typedef struct fake_function { char name[FAKE_TEXT]; } fake_function;
static fake_function functions[64];

/* Bytes of an image, as a driver finds them: nobody tells it. */
static size_t image_size(const unsigned char *image)
{
    uint64_t sections;
    uint16_t each, count;
    if (memcmp(image, "\177ELF", 4)) return strlen((const char *)image) + 1;
    memcpy(&sections, image + 40, 8);
    memcpy(&each, image + 58, 2);
    memcpy(&count, image + 60, 2);
    return (size_t)sections + (size_t)each * count;
}

API int cuModuleLoadData(void **module, const void *image)
{
    const unsigned char *bytes = (const unsigned char *)image;
    int is_ptx = memcmp(bytes, "\177ELF", 4) != 0, sm = bytes[7] == 0x41 ? bytes[49] : bytes[48];
    fake_module *m;
    ENTER();
    if (!current()) return INVALID_CONTEXT;
    if (is_ptx ? fake.ptx_code : fake.cubin_code) return is_ptx ? fake.ptx_code : fake.cubin_code;
    if (!is_ptx && (sm / 10 != fake.sm / 10 || sm > fake.sm)) return NO_BINARY;
    m = (fake_module *)malloc(sizeof *m);
    m->size = image_size(bytes);
    m->image = (char *)malloc(m->size);
    memcpy(m->image, image, m->size);
    m->context = current();
    m->next = modules;
    modules = m;
    fake.modules++;
    *module = m;
    return 0;
}

API int cuModuleUnload(void *module) { unload((fake_module *)module); ENTER(); return 0; }

static int holds(const fake_module *m, const char *name)
{
    size_t length = strlen(name), i;
    for (i = 0; i + length <= m->size; i++)
        if (!memcmp(m->image + i, name, length)) return 1;
    return 0;
}

API int cuModuleGetFunction(void **function, void *module, const char *name)
{
    size_t i = 0;
    ENTER();
    if (!holds((const fake_module *)module, name)) return NOT_FOUND;
    while (i < 63 && functions[i].name[0] && strcmp(functions[i].name, name) != 0) i++;
    snprintf(functions[i].name, sizeof functions[i].name, "%s", name);
    *function = &functions[i];
    return 0;
}

API int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    ENTER();
    (void)function;
    *value = attribute == 1 ? 1024 : 0;
    return 0;
}

API int cuFuncSetAttribute(void *function, int attribute, int value)
{
    ENTER();
    (void)function;
    fake.set_attribute = attribute;
    fake.set_value = value;
    return 0;
}

#if !defined(FAKE_LAME)
API int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments,
                       void **extra)
{
    uint64_t out;
    ENTER();
    (void)stream; (void)shared; (void)extra;
    fake.launches++;
    if (!current() || grid_x * grid_y * grid_z < 1 || block_x * block_y * block_z < 1) return INVALID;
    if (strcmp(((fake_function *)function)->name, "oscar_cu_check") != 0) return 0;
    memcpy(&out, arguments[0], sizeof out);
    memcpy((void *)(uintptr_t)out, fake.answer, sizeof fake.answer);
    return 0;
}
#endif

API int cuMemAlloc_v2(uint64_t *memory, size_t bytes)
{
    void *p;
    ENTER();
    p = current() ? malloc(bytes) : NULL;
    if (!p) return NO_MEMORY;
    fake.memory++;
    *memory = (uint64_t)(uintptr_t)p;
    return 0;
}

API int cuMemFree_v2(uint64_t memory) { free((void *)(uintptr_t)memory); fake.memory--; ENTER(); return 0; }

API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
    ENTER();
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream)
{
    ENTER();
    (void)stream;
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

API int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream)
{
    ENTER();
    (void)stream;
    memset((void *)(uintptr_t)to, value, bytes);
    return 0;
}

API int cuStreamCreate(void **stream, unsigned flags)
{
    ENTER();
    if (flags != 1) return 1;
    *stream = NULL;
    return 0;
}

API int cuStreamDestroy_v2(void *stream) { ENTER(); (void)stream; return 0; }

API int cuStreamSynchronize(void *stream) { ENTER(); (void)stream; fake.syncs++; return 0; }

API int cuStreamGetCtx(void *stream, void **context)
{
    ENTER();
    *context = ((fake_stream *)stream)->context;
    return 0;
}

/* Knows a few of the calls under their plain names; the others have to be found by the exported ones. */
static int find(const char *name, void **address, int version, uint64_t flags)
{
    int (*alloc)(uint64_t *, size_t) = cuMemAlloc_v2;
    int (*push)(void *) = cuCtxPushCurrent_v2;
    int known = fake.proc_address && version >= 11000 && !flags;
    *address = NULL;
    if (known && !strcmp(name, "cuMemAlloc")) memcpy(address, &alloc, sizeof alloc);
    if (known && !strcmp(name, "cuCtxPushCurrent")) memcpy(address, &push, sizeof push);
    return *address != NULL;
}

#if defined(FAKE_LAME)
API int cuGetProcAddress(const char *name, void **address, int version, uint64_t flags)
{
    return find(name, address, version, flags) ? 0 : NOT_FOUND;
}
#else
API int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status)
{
    *status = !find(name, address, version, flags);
    return 0;
}
#endif

/* == NVRTC == */

typedef struct fake_program { char *text, *image; size_t size; int is_ptx; } fake_program;

API int nvrtcVersion(int *major, int *minor)
{
    ENTER();
    *major = fake.nvrtc_version / 1000;
    *minor = fake.nvrtc_version % 1000 / 10;
    return 0;
}

API int nvrtcGetNumSupportedArchs(int *count) { ENTER(); *count = fake.arch_count; return fake.arch_count ? 0 : 5; }

API int nvrtcGetSupportedArchs(int *archs)
{
    ENTER();
    memcpy(archs, fake.archs, (size_t)fake.arch_count * sizeof *archs);
    return 0;
}

API int nvrtcCreateProgram(void **program, const char *text, const char *name, int header_count,
                           const char *const *headers, const char *const *names)
{
    fake_program *p;
    ENTER();
    (void)name; (void)headers; (void)names;
    p = (fake_program *)calloc(1, sizeof *p);
    p->text = strdup(text);
    fake.programs++;
    *program = p;
    return header_count;
}

API int nvrtcDestroyProgram(void **program)
{
    fake_program *p = (fake_program *)*program;
    free(p->text);
    free(p->image);
    free(p);
    *program = NULL;
    fake.programs--;
    ENTER();
    return 0;
}

/* The text behind a header of an ELF file for sm, or behind one of PTX. */
static void make_image(fake_program *p, int sm)
{
    size_t length = strlen(p->text);
    uint64_t end;
    p->size = 64 + length + 1;
    p->image = (char *)calloc(1, p->size);
    memcpy(p->image + 64, p->text, length);
    if (p->is_ptx) {
        memset(p->image, '/', 64);
        memcpy(p->image, ".version 8.0\n.target sm_80\n", 27);
        return;
    }
    memcpy(p->image, "\177ELF\2\1\1\x33", 8);
    p->image[18] = (char)190;
    end = p->size;
    memcpy(p->image + 40, &end, sizeof end);
    p->image[48] = (char)sm;
}

API int nvrtcCompileProgram(void *program, int option_count, const char *const *options)
{
    static const char start[] = "--gpu-architecture=";
    fake_program *p = (fake_program *)program;
    const char *digits;
    int i;
    ENTER();
    fake.compiles++;
    for (i = 0; i < option_count; i++)
        if (!strncmp(options[i], start, sizeof start - 1))
            snprintf(fake.arch, sizeof fake.arch, "%s", options[i] + sizeof start - 1);
    p->is_ptx = !strncmp(fake.arch, "compute_", 8);
    digits = strchr(fake.arch, '_');
    if (fake.compile_ms) usleep((unsigned)fake.compile_ms * 1000);
    if (fake.compile_code) return fake.compile_code;
    make_image(p, digits ? atoi(digits + 1) : 0);
    return 0;
}

static int get_size(const fake_program *p, int is_ptx, size_t *size)
{
    *size = is_ptx == p->is_ptx ? p->size : 0;
    return 0;
}

static int get(const fake_program *p, char *out) { memcpy(out, p->image, p->size); return 0; }

API int nvrtcGetPTXSize(void *program, size_t *size) { ENTER(); return get_size((fake_program *)program, 1, size); }
API int nvrtcGetPTX(void *program, char *out) { ENTER(); return get((fake_program *)program, out); }
API int nvrtcGetCUBINSize(void *program, size_t *size) { ENTER(); return get_size((fake_program *)program, 0, size); }
API int nvrtcGetCUBIN(void *program, char *out) { ENTER(); return get((fake_program *)program, out); }

API int nvrtcGetProgramLogSize(void *program, size_t *size)
{
    ENTER();
    (void)program;
    *size = fake.log ? strlen(fake.log) + 1 : 1;
    return 0;
}

API int nvrtcGetProgramLog(void *program, char *out)
{
    ENTER();
    (void)program;
    strcpy(out, fake.log ? fake.log : "");
    return 0;
}
