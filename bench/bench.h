/* bench.h - how the benchmarks measure: clock, warm-up, median, interleaving, threads, and what they print. Include it
   first; it brings oscar.h with its implementation, and the plain reading of the format that the tests use.

       bench_begin("bench_x", "what the arguments mean", argc, argv);      options, and the lines that start with `#`
       bench_check(ok, "what");                                             a mismatch ends the program with status 1
       bench_case c = bench_case_of(run, argument, "name %d", n);           one thing to time; fill in bytes, units
       bench_add(&table, c); bench_add_isas(&table, c);                     as it is; once for each instruction set
       bench_time(&table, seconds);                                         all of them, in turn, bench.runs times
       bench_figure(isa, value, unit, "name.D%d.ns", dim);                  `figure NAME VALUE UNIT`

   Every sample of every case is taken in turn within one loop, so a slow moment of the machine hits all of them; what
   is printed is the median. Cases name their instruction set, which is forced before each sample. */
#ifndef BENCH_H
#define BENCH_H

#define _DEFAULT_SOURCE   /* clock_gettime, mmap, madvise, getloadavg under -std=c99 */

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define OSCAR_IMPLEMENTATION
#include "oscar.h"

#if defined(__GNUC__)
#  pragma GCC diagnostic push
#  pragma GCC diagnostic ignored "-Wunused-function"
#endif
#include "../tests/test.h"
#include "../tests/reference.h"
#if defined(__GNUC__)
#  pragma GCC diagnostic pop
#endif

#define BENCH_UNUSED TEST_UNUSED

/* == 1 OPTIONS, HEADER == */

/* The compiler does not tell its flags; the Makefile does: -DBENCH_FLAGS='"-O3 ..."'. */
#if defined(BENCH_FLAGS)
#elif defined(__OPTIMIZE__)
#  define BENCH_FLAGS "not told (-DBENCH_FLAGS=...), optimised"
#else
#  define BENCH_FLAGS "not told (-DBENCH_FLAGS=...), NOT OPTIMISED"
#endif

enum { BENCH_RUNS_MAX = 101, BENCH_CASES_MAX = 64 };

static struct {
    const char *program;
    int runs, full, csv;
    oscar_isa only;           /* OSCAR_ISA_AUTO: every one that this machine has */
    char **words;             /* arguments that are no option */
    int word_count;
    oscar_isa best;           /* what AUTO takes */
} bench;

/* "AVX-512" -> "avx512", for names of figures and options. */
BENCH_UNUSED static const char *bench_isa_slug(oscar_isa isa)
{
    static char slug[OSCAR_ISA_COUNT][16];
    const char *name = oscar_isa_name(isa);
    size_t i, n = 0;
    for (i = 0; name[i] && n < 15; i++) {
        if (name[i] >= 'A' && name[i] <= 'Z') slug[isa][n++] = (char)(name[i] - 'A' + 'a');
        else if (name[i] != '-') slug[isa][n++] = name[i];
    }
    slug[isa][n] = 0;
    return slug[isa];
}

/* The next instruction set after `after` that is asked for and can be forced; OSCAR_ISA_AUTO after the last. Start with
   OSCAR_ISA_AUTO. */
BENCH_UNUSED static oscar_isa bench_next_isa(oscar_isa after)
{
    int i;
    for (i = (int)after + 1; i < OSCAR_ISA_COUNT; i++) {
        if (bench.only != OSCAR_ISA_AUTO && i != (int)bench.only) continue;
        if (oscar_isa_force((oscar_isa)i) == OSCAR_OK) return (oscar_isa)i;
    }
    (void)oscar_isa_force(OSCAR_ISA_AUTO);
    return OSCAR_ISA_AUTO;
}

BENCH_UNUSED static void bench_print_cpu(void)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256], *colon, *model = NULL;
    while (f && !model && fgets(line, sizeof line, f)) {
        colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        model = colon + 2;
        model[strcspn(model, "\n")] = 0;
    }
    if (f) fclose(f);
    printf("# cpu       %s, %ld cores\n", model ? model : "unknown", sysconf(_SC_NPROCESSORS_ONLN));
}

BENCH_UNUSED static void bench_print_header(void)
{
    double load[1] = { -1 };
    oscar_isa isa;
    printf("# program   %s: median of %d interleaved runs\n", bench.program, bench.runs);
    bench_print_cpu();
#if defined(__clang__)
    printf("# compiler  clang %s\n", __clang_version__);
#elif defined(__GNUC__)
    printf("# compiler  gcc %s\n", __VERSION__);
#endif
    printf("# flags     %s\n# isa      ", BENCH_FLAGS);
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa != OSCAR_ISA_AUTO; isa = bench_next_isa(isa))
        printf(" %s", bench_isa_slug(isa));
    if (getloadavg(load, 1) < 1) load[0] = -1;
    printf("; the library takes %s by itself\n# load      %.2f at the start\n", bench_isa_slug(bench.best), load[0]);
    if (bench.csv) printf("csv,program,case,isa,median,least,most,unit,bytes,gb_per_s,checksum\n");
}

BENCH_UNUSED static void bench_usage(const char *usage)
{
    fprintf(stderr, "usage: %s [--runs=N] [--isa=NAME] [--csv] %s\n"
            "  --runs=N    samples of each case, 7 to %d\n"
            "  --isa=NAME  scalar, avx2, avx512, amx or neon only\n"
            "  --csv       a line of comma-separated values for each case instead of a table\n",
            bench.program, usage, BENCH_RUNS_MAX);
    exit(2);
}

/* Reads the options and prints the header. usage: the program's own arguments, for the message on a wrong one. */
BENCH_UNUSED static void bench_begin(const char *program, const char *usage, int argc, char **argv)
{
    int i, isa;
    bench.program = program;
    bench.runs = 7;
    bench.best = oscar_isa_active();
    bench.words = argv;
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--full")) bench.full = 1;
        else if (!strcmp(argv[i], "--csv")) bench.csv = 1;
        else if (!strncmp(argv[i], "--runs=", 7)) bench.runs = atoi(argv[i] + 7);
        else if (!strncmp(argv[i], "--isa=", 6)) {
            for (isa = 1; isa < OSCAR_ISA_COUNT; isa++)
                if (!strcmp(argv[i] + 6, bench_isa_slug((oscar_isa)isa))) bench.only = (oscar_isa)isa;
            if (bench.only == OSCAR_ISA_AUTO) bench_usage(usage);
        } else if (argv[i][0] == '-') bench_usage(usage);
        else bench.words[bench.word_count++] = argv[i];
    }
    if (bench.runs < 7 || bench.runs > BENCH_RUNS_MAX) bench_usage(usage);
    if (bench_next_isa(OSCAR_ISA_AUTO) == OSCAR_ISA_AUTO) {
        fprintf(stderr, "%s: this build or this machine has no %s\n", program, bench_isa_slug(bench.only));
        exit(2);
    }
    (void)oscar_isa_force(OSCAR_ISA_AUTO);
    setvbuf(stdout, NULL, _IOLBF, 0);
    bench_print_header();
}

/* == 2 CHECKS, MEMORY == */

/* What a benchmark times must be right: ends the program if it is not. */
BENCH_UNUSED static void bench_check(int ok, const char *what)
{
    if (ok) return;
    printf("MISMATCH: %s\n", what);
    fprintf(stderr, "%s: wrong output, not timed: %s\n", bench.program, what);
    exit(1);
}

/* The same for an error with a limit; NaN is wrong, too. Prints both. */
BENCH_UNUSED static void bench_close(double error, double limit, oscar_isa isa, const char *format, ...)
{
    char what[128];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    printf("# check     %s", what);
    if (isa != OSCAR_ISA_AUTO) printf(", %s", bench_isa_slug(isa));
    printf(": ");
    if (limit > 0) printf("%.2e (limit %.2g)\n", error, limit);
    else printf("%s\n", error <= limit ? "equal" : "different");
    bench_check(error <= limit, what);
}

BENCH_UNUSED static void bench_ok(oscar_result result, const char *what)
{
    if (result == OSCAR_OK) return;
    printf("FAILED: %s: %s\n", what, oscar_result_text(result));
    exit(1);
}

BENCH_UNUSED static uint64_t bench_checksum(const void *data, size_t size)   /* FNV-1a */
{
    const unsigned char *p = (const unsigned char *)data;
    uint64_t h = 0xcbf29ce484222325u;
    size_t i;
    for (i = 0; i < size; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* Zeroed pages from the system, huge ones where it gives them, for everything that is timed: what is compared must not
   differ in page size. Ends the program if there is no memory. */
BENCH_UNUSED static void *bench_alloc(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "%s: no memory for %.0f MB\n", bench.program, (double)size / 1e6);
        exit(1);
    }
#if defined(MADV_HUGEPAGE)
    (void)madvise(p, size, MADV_HUGEPAGE);
#endif
    return p;
}

BENCH_UNUSED static void bench_free(void *p, size_t size) { if (p) (void)munmap(p, size); }

static size_t bench_held;    /* bytes that the library holds now */

static void *bench_hook_alloc(void *user, size_t size, size_t align)
{
    (void)user;
    (void)align;
    bench_held += size;
    return bench_alloc(size);
}

static void bench_hook_free(void *user, void *p, size_t size, size_t align)
{
    (void)user;
    (void)align;
    bench_held -= size;
    bench_free(p, size);
}

static void bench_hook_log(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    (void)user;
    (void)code;
    if (level != OSCAR_LOG_INFO) printf("# oscar.h:%d: %s\n", line, text);
}

BENCH_UNUSED static oscar_hooks bench_hooks(void)
{
    oscar_hooks hooks = { bench_hook_alloc, bench_hook_free, bench_hook_log, NULL };
    return hooks;
}

/* Standard normal numbers. */
BENCH_UNUSED static void bench_normal(uint64_t seed, size_t count, float *x)
{
    test_random random;
    size_t i;
    random.state = seed;
    for (i = 0; i < count; i++) x[i] = (float)random_normal(&random);
}

/* == 3 TIME == */

/* One thing to time.
     isa             what the library is to use; OSCAR_ISA_AUTO: no code of the library, printed as "-"
     run, argument   what is called
     prepare         or NULL; called before each sample, not timed
     calls           calls of run a sample; bench_time finds it unless it is set or there is a prepare
     bytes           read and written by one call; 0 = not told
     units           what one call does (rows, tokens), for the printed time
     out, out_size   what run writes, for the checksum; or
     sum             what computes it
   Results: seconds of one call (median, least, most), checksum. */
typedef struct bench_case {
    char name[64];
    oscar_isa isa;
    void (*run)(void *);
    void (*prepare)(void *);
    void *argument;
    int calls;
    double bytes, units;
    const void *out;
    size_t out_size;
    uint64_t (*sum)(void *);
    double median, least, most;
    uint64_t checksum;
} bench_case;

typedef struct bench_table {
    bench_case cases[BENCH_CASES_MAX];
    int count;
} bench_table;

BENCH_UNUSED static double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A case to fill in and add. */
BENCH_UNUSED static bench_case bench_case_of(void (*run)(void *), void *argument, const char *format, ...)
{
    bench_case c;
    va_list arguments;
    memset(&c, 0, sizeof c);
    va_start(arguments, format);
    (void)vsnprintf(c.name, sizeof c.name, format, arguments);
    va_end(arguments);
    c.run = run;
    c.argument = argument;
    c.units = 1;
    return c;
}

BENCH_UNUSED static void bench_add(bench_table *table, bench_case c)
{
    bench_check(table->count < BENCH_CASES_MAX, "room for a case");
    table->cases[table->count++] = c;
}

/* Adds a case of the library once for each instruction set. */
BENCH_UNUSED static void bench_add_isas(bench_table *table, bench_case c)
{
    for (c.isa = bench_next_isa(OSCAR_ISA_AUTO); c.isa != OSCAR_ISA_AUTO; c.isa = bench_next_isa(c.isa))
        bench_add(table, c);
}

/* The case of a name and instruction set that was added. */
BENCH_UNUSED static const bench_case *bench_find(const bench_table *table, oscar_isa isa, const char *format, ...)
{
    char name[64];
    va_list arguments;
    int i;
    va_start(arguments, format);
    (void)vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    for (i = 0; i < table->count; i++)
        if (table->cases[i].isa == isa && !strcmp(table->cases[i].name, name)) return &table->cases[i];
    bench_check(0, name);
    return NULL;
}

static int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double bench_sample(const bench_case *c)
{
    double start;
    int i;
    (void)oscar_isa_force(c->isa);
    if (c->prepare) c->prepare(c->argument);
    start = bench_now();
    for (i = 0; i < c->calls; i++) c->run(c->argument);
    return (bench_now() - start) / c->calls;
}

/* Warms up each case until a sample takes `seconds`, then takes bench.runs samples of all cases in turn. */
BENCH_UNUSED static void bench_time(bench_table *table, double seconds)
{
    static double samples[BENCH_CASES_MAX][BENCH_RUNS_MAX];
    int i, run;
    for (i = 0; i < table->count; i++) {
        bench_case *c = &table->cases[i];
        int found = c->calls || c->prepare;
        if (!c->calls) c->calls = 1;
        while (bench_sample(c) * c->calls < seconds && !found) c->calls *= 2;
    }
    for (run = 0; run < bench.runs; run++)
        for (i = 0; i < table->count; i++) {
            bench_case *c = &table->cases[i];
            samples[i][run] = bench_sample(c);
            if (run < bench.runs - 1) continue;
            if (c->out) c->checksum = bench_checksum(c->out, c->out_size);
            if (c->sum) c->checksum = c->sum(c->argument);
        }
    for (i = 0; i < table->count; i++) {
        bench_case *c = &table->cases[i];
        qsort(samples[i], (size_t)bench.runs, sizeof samples[i][0], bench_compare);
        c->least = samples[i][0];
        c->median = samples[i][bench.runs / 2];
        c->most = samples[i][bench.runs - 1];
    }
    (void)oscar_isa_force(OSCAR_ISA_AUTO);
}

BENCH_UNUSED static void bench_print_case(const bench_case *c, double factor, const char *unit)
{
    const char *isa = c->isa == OSCAR_ISA_AUTO ? "-" : bench_isa_slug(c->isa);
    double scale = factor / c->units, rate = c->bytes / c->median / 1e9;
    if (bench.csv) {
        printf("csv,%s,%s,%s,%.6g,%.6g,%.6g,%s,%.0f,%.4g,%016llx\n", bench.program, c->name, isa, c->median * scale,
               c->least * scale, c->most * scale, unit, c->bytes, rate, (unsigned long long)c->checksum);
        return;
    }
    printf("%-40s %-7s %12.2f %s (%.2f to %.2f)", c->name, isa, c->median * scale, unit, c->least * scale,
           c->most * scale);
    if (c->bytes > 0) printf("  %.1f B  %.2f GB/s", c->bytes / c->units, rate);
    if (c->out || c->sum) printf("  sum %08x", (unsigned)(c->checksum & 0xffffffffu));
    printf("\n");
}

/* Each case's time for one of its units, times factor (1e9: nanoseconds), with the bytes of one unit, bytes a second,
   checksum. */
BENCH_UNUSED static void bench_print(const bench_table *table, double factor, const char *unit)
{
    int i;
    for (i = 0; i < table->count; i++) bench_print_case(&table->cases[i], factor, unit);
}

/* `figure NAME VALUE UNIT`. The name stands for what the library does by itself; the other instruction sets add theirs:
   NAME.scalar. */
BENCH_UNUSED static void bench_figure(oscar_isa isa, double value, const char *unit, const char *format, ...)
{
    va_list arguments;
    printf("figure ");
    va_start(arguments, format);
    (void)vprintf(format, arguments);
    va_end(arguments);
    if (isa != OSCAR_ISA_AUTO && isa != bench.best) printf(".%s", bench_isa_slug(isa));
    printf(" %.4g %s\n", value, unit);
}

/* == 4 THREADS == */

/* Workers that wait for work: first by looking again and again, since the next layer of a decode step comes at once,
   then asleep, so that they do not disturb what one thread does meanwhile. gcc and clang only (__atomic). */
enum { BENCH_THREADS_MAX = 16, BENCH_SPINS = 20000 };

static struct {
    pthread_t threads[BENCH_THREADS_MAX];
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    int seen[BENCH_THREADS_MAX];      /* generation at which a worker starts */
    int workers, generation, done;
    int parts;
    void (*run)(void *, int part, int parts);
    void *argument;
} bench_team = { { 0 }, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, { 0 }, 0, 0, 0, 0, NULL, NULL };

static void *bench_worker(void *index)
{
    int part = (int)(intptr_t)index, seen = bench_team.seen[part], spins;
    for (;;) {
        for (spins = 0; spins < BENCH_SPINS; spins++)
            if (__atomic_load_n(&bench_team.generation, __ATOMIC_ACQUIRE) != seen) break;
        if (spins == BENCH_SPINS) {
            pthread_mutex_lock(&bench_team.mutex);
            while (__atomic_load_n(&bench_team.generation, __ATOMIC_ACQUIRE) == seen)
                pthread_cond_wait(&bench_team.wake, &bench_team.mutex);
            pthread_mutex_unlock(&bench_team.mutex);
        }
        seen++;
        if (part < bench_team.parts) bench_team.run(bench_team.argument, part, bench_team.parts);
        __atomic_add_fetch(&bench_team.done, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void bench_team_grow(int workers)
{
    while (bench_team.workers < workers) {
        int part = bench_team.workers + 1;
        bench_team.seen[part] = bench_team.generation;
        bench_check(pthread_create(&bench_team.threads[part], NULL, bench_worker, (void *)(intptr_t)part) == 0,
                    "a thread");
        bench_team.workers++;
    }
}

/* run(argument, part, parts) for every part, part 0 on this thread; returns when all are done. */
BENCH_UNUSED static void bench_parallel(int parts, void (*run)(void *, int, int), void *argument)
{
    int spins = 0;
    if (parts == 1) { run(argument, 0, 1); return; }
    bench_check(parts <= BENCH_THREADS_MAX, "threads");
    bench_team_grow(parts - 1);
    bench_team.run = run;
    bench_team.argument = argument;
    bench_team.parts = parts;
    bench_team.done = 0;
    pthread_mutex_lock(&bench_team.mutex);
    __atomic_add_fetch(&bench_team.generation, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&bench_team.wake);
    pthread_mutex_unlock(&bench_team.mutex);
    run(argument, 0, parts);
    while (__atomic_load_n(&bench_team.done, __ATOMIC_ACQUIRE) < bench_team.workers)
        if (++spins % BENCH_SPINS == 0) sched_yield();
}

#endif
