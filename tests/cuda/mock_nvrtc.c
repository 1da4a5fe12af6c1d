/* mock_nvrtc.c - an NVRTC that compiles nothing, as a shared library: for tests of host code where there is no NVRTC,
   and of its failures. Its cubin is an ELF header for the architecture asked for and the names of the kernels, which
   mock_cuda.c takes; its PTX has each kernel as a trap. Kernels follow OSCAR_KERNEL(...) or `__global__ void` there.
   A text with the word OSCAR_MOCK_SYNTAX_ERROR does not compile.

       void oscar_mock_nvrtc_set(const char *option, long long value);
           "version" 1300: 100 major + minor       "lowest" 75, "highest" 121: architectures
           "fail" 0: what each compilation returns  "builtins" 1: 0 fails as without libnvrtc-builtins
       int oscar_mock_nvrtc_compilations(void);         so far
       int oscar_mock_nvrtc_programs(void);             that live
       const char *oscar_mock_nvrtc_options(void);      of the last compilation, one a line */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define API EXPORT int

enum { INVALID_INPUT = 3, INVALID_OPTION = 5, COMPILATION = 6, INVALID_PROGRAM = 4 };
enum { NAMES = 4096 };

typedef struct program { char *text, log[1024], names[NAMES]; size_t name_bytes; int arch, compiled; } program;

static int version = 1300, lowest = 75, highest = 121, fail_with, builtins = 1, compilations, programs;
static char options_text[4096];
static const int known[] = {70, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

EXPORT void oscar_mock_nvrtc_set(const char *option, long long value)
{
    if (!strcmp(option, "version")) version = (int)value;
    else if (!strcmp(option, "lowest")) lowest = (int)value;
    else if (!strcmp(option, "highest")) highest = (int)value;
    else if (!strcmp(option, "fail")) fail_with = (int)value;
    else if (!strcmp(option, "builtins")) builtins = (int)value;
    else fprintf(stderr, "mock NVRTC: no option %s\n", option);
}

EXPORT int oscar_mock_nvrtc_compilations(void) { return compilations; }
EXPORT int oscar_mock_nvrtc_programs(void) { return programs; }
EXPORT const char *oscar_mock_nvrtc_options(void) { return options_text; }

API nvrtcVersion(int *major, int *minor)
{
    *major = version / 100;
    *minor = version % 100;
    return 0;
}

/* The architectures of this version, into list if there is one; returns how many. */
static int list_archs(int *list)
{
    int count = 0;
    size_t i;
    for (i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i] < lowest || known[i] > highest) continue;
        if (list) list[count] = known[i];
        count++;
    }
    return count;
}

API nvrtcGetNumSupportedArchs(int *count)
{
    *count = list_archs(NULL);
    return 0;
}

API nvrtcGetSupportedArchs(int *list)
{
    list_archs(list);
    return 0;
}

EXPORT const char *nvrtcGetErrorString(int result)
{
    return result == 0 ? "NVRTC_SUCCESS" : result == INVALID_OPTION ? "NVRTC_ERROR_INVALID_OPTION" :
        result == COMPILATION ? "NVRTC_ERROR_COMPILATION" : result == 7 ? "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE" :
        "NVRTC_ERROR_MOCK";
}

API nvrtcCreateProgram(void **out, const char *text, const char *name, int headers, const char *const *sources,
                       const char *const *header_names)
{
    program *p;
    (void)name;
    (void)sources;
    (void)header_names;
    if (!out || !text || headers) return INVALID_INPUT;
    p = (program *)calloc(1, sizeof *p);
    if (!p || !(p->text = (char *)malloc(strlen(text) + 1))) return 1;
    strcpy(p->text, text);
    programs++;
    *out = p;
    return 0;
}

API nvrtcDestroyProgram(void **at)
{
    program *p;
    if (!at || !*at) return INVALID_PROGRAM;
    p = (program *)*at;
    free(p->text);
    free(p);
    programs--;
    *at = NULL;
    return 0;
}

/* A kernel's name, if one starts here. */
static void add_name(program *p, const char *at)
{
    size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    if (at[n] != '(' || !n || *at == '_' || p->name_bytes + n + 1 > NAMES) return;   /* a macro's own definition */
    memcpy(p->names + p->name_bytes, at, n);
    p->names[p->name_bytes + n] = 0;
    p->name_bytes += n + 1;
}

/* Names of kernels, each with its 0. */
static void find_kernels(program *p)
{
    static const char plain[] = "__global__ void ";
    const char *at = p->text;
    p->name_bytes = 0;
    while ((at = strstr(at, "OSCAR_KERNEL(")) != NULL) {
        at = strchr(at, ')');
        if (!at) break;
        at += 1 + strspn(at + 1, " \t\n");
        add_name(p, at);
    }
    for (at = p->text; (at = strstr(at, plain)) != NULL; add_name(p, at)) at += strlen(plain);
}

static int is_known(int arch)
{
    size_t i;
    for (i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i] == arch) return arch >= lowest && arch <= highest;
    return 0;
}

static int read_options(program *p, int count, const char *const *options)
{
    int i;
    p->arch = lowest;
    options_text[0] = 0;
    for (i = 0; i < count; i++) {
        const char *value = strchr(options[i], '=');
        size_t at = strlen(options_text);
        snprintf(options_text + at, sizeof options_text - at, "%s\n", options[i]);
        if (strncmp(options[i], "--gpu-architecture=", 19) && strncmp(options[i], "-arch=", 6)) continue;
        value = strchr(value, '_');
        p->arch = value ? atoi(value + 1) : 0;
        if (is_known(p->arch)) continue;
        snprintf(p->log, sizeof p->log, "nvrtc: error: invalid value for --gpu-architecture (-arch)\n");
        return INVALID_OPTION;
    }
    return 0;
}

API nvrtcCompileProgram(void *handle, int count, const char *const *options)
{
    program *p = (program *)handle;
    int result;
    if (!p) return INVALID_PROGRAM;
    compilations++;
    p->log[0] = 0;
    result = read_options(p, count, options);
    if (!result && !builtins) {
        snprintf(p->log, sizeof p->log, "nvrtc: error: failed to open libnvrtc-builtins.so.%d.%d.\n", version / 100,
                 version % 100);
        return 7;
    }
    if (!result && (fail_with || strstr(p->text, "OSCAR_MOCK_SYNTAX_ERROR"))) {
        snprintf(p->log, sizeof p->log, "kernels.cu(1): error: identifier \"OSCAR_MOCK_SYNTAX_ERROR\" is undefined\n");
        result = fail_with ? fail_with : COMPILATION;
    }
    if (result) return result;
    find_kernels(p);
    p->compiled = 1;
    return 0;
}

API nvrtcGetProgramLogSize(void *handle, size_t *bytes)
{
    *bytes = strlen(((program *)handle)->log) + 1;
    return 0;
}

API nvrtcGetProgramLog(void *handle, char *log)
{
    strcpy(log, ((program *)handle)->log);
    return 0;
}

API nvrtcGetCUBINSize(void *handle, size_t *bytes)
{
    const program *p = (const program *)handle;
    *bytes = p->compiled ? 64 + p->name_bytes : 0;
    return p->compiled ? 0 : INVALID_PROGRAM;
}

/* An ELF header (machine 190, architecture in the flags as of CUDA 13), and the names. */
API nvrtcGetCUBIN(void *handle, char *out)
{
    const program *p = (const program *)handle;
    uint64_t sections = 64 + p->name_bytes;
    uint32_t flags = (uint32_t)p->arch << 8;
    uint16_t machine = 190, size = 64;
    if (!p->compiled) return INVALID_PROGRAM;
    memset(out, 0, 64);
    memcpy(out, "\177ELF\2\1\1\101", 8);
    memcpy(out + 18, &machine, 2);
    memcpy(out + 40, &sections, 8);
    memcpy(out + 48, &flags, 4);
    memcpy(out + 58, &size, 2);   /* of a section; there are 0 of them */
    memcpy(out + 64, p->names, p->name_bytes);
    return 0;
}

static void print_ptx(const program *p, char *out, size_t room)
{
    size_t at = 0, name = 0;
    at += (size_t)snprintf(out, room, ".version %d.%d\n.target sm_%d\n.address_size 64\n", version / 100 - 4,
                           version % 100, p->arch);
    while (name < p->name_bytes) {
        at += (size_t)snprintf(out + at, room - at, ".visible .entry %s()\n{\ntrap;\n}\n", p->names + name);
        name += strlen(p->names + name) + 1;
    }
}

API nvrtcGetPTXSize(void *handle, size_t *bytes)
{
    static char text[4 * NAMES + 4096];
    if (!((program *)handle)->compiled) return INVALID_PROGRAM;
    print_ptx((const program *)handle, text, sizeof text);
    *bytes = strlen(text) + 1;
    return 0;
}

API nvrtcGetPTX(void *handle, char *out)
{
    size_t bytes;
    int result = nvrtcGetPTXSize(handle, &bytes);
    if (!result) print_ptx((const program *)handle, out, bytes);
    return result;
}
