/* test.h - a small harness. A test program is a main that calls functions and ends with `return test_end("name");`.

       TEST("C3.2 edge values of the clip ratio");   starts a test; it ends where the next one starts
       CHECK(a == b);                                 fails the test and prints file, line and text
       CHECK_MSG(a == b, ("a %d b %d\n", a, b));      the same with a printf of your own
       CLOSE(x, y, tolerance);                        |x - y| <= tolerance, NaN fails
       SKIP("name", "reason");                        counts as skipped, printed by name

   test_end prints one line, `NAME: 12 passed, 0 failed, 1 skipped`, which the Makefile adds up, and returns the exit
   status. Set TEST_VERBOSE=1 to see each test's name. */
#ifndef TEST_H
#define TEST_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *name;
    int running, failed_now, passed, failed, skipped, shown;
} test_state;

static void test_close(void)
{
    if (!test_state.running) return;
    if (test_state.failed_now) test_state.failed++;
    else test_state.passed++;
    test_state.running = 0;
}

static void test_begin(const char *name)
{
    test_close();
    test_state.name = name;
    test_state.running = 1;
    test_state.failed_now = 0;
    test_state.shown = 0;
    if (getenv("TEST_VERBOSE")) printf("  %s\n", name);
}

/* Counts a failed check; prints the first ten of each test. Returns whether to print more. */
static int test_fail(const char *file, int line, const char *text)
{
    test_state.failed_now = 1;
    if (++test_state.shown > 10) return 0;
    printf("%s:%d: [%s] %s\n", file, line, test_state.name ? test_state.name : "?", text);
    return 1;
}

#define TEST(name) test_begin(name)
#define CHECK(condition) ((condition) ? (void)0 : (void)test_fail(__FILE__, __LINE__, #condition))
#define CHECK_MSG(condition, printf_arguments) \
    ((condition) || !test_fail(__FILE__, __LINE__, #condition) ? (void)0 : (void)printf printf_arguments)
#define CLOSE(x, y, tolerance) \
    CHECK_MSG(fabs((double)(x) - (double)(y)) <= (double)(tolerance), \
              ("    %.9g against %.9g, tolerance %.3g\n", (double)(x), (double)(y), (double)(tolerance)))

#define SKIP(what, reason) (test_state.skipped++, (void)printf("skip %s: %s\n", what, reason))

static int test_end(const char *program)
{
    test_close();
    printf("%s: %d passed, %d failed, %d skipped\n", program, test_state.passed, test_state.failed, test_state.skipped);
    fflush(stdout);
    return test_state.failed ? 1 : 0;
}

#if defined(__GNUC__) || defined(__clang__)
#  define TEST_UNUSED __attribute__((unused))
#else
#  define TEST_UNUSED
#endif

/* A seeded generator: the same numbers on every machine. */
typedef struct test_random { uint64_t state; } test_random;

TEST_UNUSED static uint32_t random_u32(test_random *r)   /* splitmix64, upper half */
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

TEST_UNUSED static int random_below(test_random *r, int n) { return (int)(random_u32(r) % (uint32_t)n); }
TEST_UNUSED static double random_unit(test_random *r) { return (random_u32(r) + 0.5) / 4294967296.0; }

TEST_UNUSED static double random_normal(test_random *r)   /* Box and Muller */
{
    double u = random_unit(r), v = random_unit(r);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Rows of a random orthogonal matrix, by Gram and Schmidt, twice. */
TEST_UNUSED static void random_orthogonal(test_random *r, int n, double *m)
{
    int i, j, k, pass;
    for (i = 0; i < n; i++) {
        double *row = m + i * n, length = 0;
        for (j = 0; j < n; j++) row[j] = random_normal(r);
        for (pass = 0; pass < 2; pass++)
            for (k = 0; k < i; k++) {
                double dot = 0;
                for (j = 0; j < n; j++) dot += row[j] * m[k * n + j];
                for (j = 0; j < n; j++) row[j] -= dot * m[k * n + j];
            }
        for (j = 0; j < n; j++) length += row[j] * row[j];
        for (j = 0; j < n; j++) row[j] /= sqrt(length);
    }
}

#endif
