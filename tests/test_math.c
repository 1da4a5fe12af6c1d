/* test_math.c - level 0 of oscar.h: eigensolver, Cholesky, Walsh-Hadamard transform, bit reversal, dense transform.

   Eigenvalues are compared with a two-sided Jacobi in long double, another method in wider arithmetic. Where long
   double is no wider than double these comparisons are skipped; where it is emulated, the large ones. */
#include "test.h"
#include "jacobi.h"

#define OSCAR_IMPLEMENTATION
#include "oscar.h"

#include <time.h>

#if LDBL_MANT_DIG == DBL_MANT_DIG
enum { REFERENCE_MAX = 0 };
#elif LDBL_MANT_DIG == 64
enum { REFERENCE_MAX = 512 };
#else
enum { REFERENCE_MAX = 64 };
#endif

/* Limits: eigenvalues relative; orthogonality max |V^T V - I|; residual max |A V - V W| over |A|, Frobenius. */
static const double LIMIT_VALUES = 1e-13, LIMIT_ORTHOGONAL = 2e-14, LIMIT_RESIDUAL = 2e-14;
enum { LIMIT_SWEEPS = 20 };

static test_random rng;

static double *doubles(size_t count)
{
    double *x = (double *)malloc((count ? count : 1) * sizeof *x);
    if (!x) abort();
    return x;
}

static float *floats(size_t count)
{
    float *x = (float *)malloc((count ? count : 1) * sizeof *x);
    if (!x) abort();
    return x;
}

/* == MATRICES == */

/* X^T X / rows with `rows` rows of normal numbers */
static void make_wishart(int n, int rows, double *a)
{
    double *x = doubles((size_t)n);
    int i, j, row;
    memset(a, 0, (size_t)n * (size_t)n * sizeof *a);
    for (row = 0; row < rows; row++) {
        for (i = 0; i < n; i++) x[i] = random_normal(&rng);
        for (i = 0; i < n; i++)
            for (j = 0; j <= i; j++) a[i * n + j] += x[i] * x[j];
    }
    for (i = 0; i < n; i++)
        for (j = 0; j <= i; j++) a[j * n + i] = a[i * n + j] = a[i * n + j] / rows;
    free(x);
}

/* a <- E a E, exactly symmetric */
static void scale_both_sides(int n, const double *e, double *a)
{
    int i, j;
    for (i = 0; i < n; i++)
        for (j = 0; j <= i; j++) a[j * n + i] = a[i * n + j] = a[i * n + j] * (e[i] * e[j]);
}

static void shuffle(int n, double *e)
{
    int i;
    for (i = n - 1; i > 0; i--) {
        int j = random_below(&rng, i + 1);
        double swap = e[i];
        e[i] = e[j];
        e[j] = swap;
    }
}

/* A covariance whose channels differ by 10^6: eigenvalues over 12 decades, no order */
static void make_graded(int n, double *a)
{
    double *e = doubles((size_t)n);
    int i;
    make_wishart(n, 4 * n, a);
    for (i = 0; i < n; i++) e[i] = pow(10, -6.0 * i / (n - 1));
    shuffle(n, e);
    scale_both_sides(n, e, a);
    free(e);
}

/* Q diag(values) Q^T with Q a product of three reflectors */
static void make_spectrum(int n, const double *values, double *a)
{
    double *u = doubles((size_t)n);
    int pass, i, j;
    memset(a, 0, (size_t)n * (size_t)n * sizeof *a);
    for (i = 0; i < n; i++) a[i * n + i] = values[i];
    for (pass = 0; pass < 3; pass++) {
        double square = 0;
        for (i = 0; i < n; i++) {
            u[i] = random_normal(&rng);
            square += u[i] * u[i];
        }
        for (i = 0; i < n; i++) {   /* rows, then columns: x <- x - 2 (x.u) u / u.u */
            double dot = 0;
            for (j = 0; j < n; j++) dot += a[i * n + j] * u[j];
            for (j = 0; j < n; j++) a[i * n + j] -= 2 * dot / square * u[j];
        }
        for (j = 0; j < n; j++) {
            double dot = 0;
            for (i = 0; i < n; i++) dot += a[i * n + j] * u[i];
            for (i = 0; i < n; i++) a[i * n + j] -= 2 * dot / square * u[i];
        }
    }
    for (i = 0; i < n; i++)
        for (j = 0; j < i; j++) a[j * n + i] = a[i * n + j];
    free(u);
}

static void make_symmetric(int n, double *a)
{
    int i, j;
    for (i = 0; i < n; i++)
        for (j = 0; j <= i; j++) a[j * n + i] = a[i * n + j] = random_normal(&rng);
}

/* == REFERENCE == */

static long double reference_dot(int n, const long double *x, const long double *y)
{
    long double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    int k;
    for (k = 0; k + 4 <= n; k += 4) {
        s0 += x[k] * y[k];
        s1 += x[k + 1] * y[k + 1];
        s2 += x[k + 2] * y[k + 2];
        s3 += x[k + 3] * y[k + 3];
    }
    for (; k < n; k++) s0 += x[k] * y[k];
    return (s0 + s1) + (s2 + s3);
}

/* b <- (U^T L)(U^T L)^T with a = L L^T and U = vectors: near diagonal, so that one or two sweeps are enough. Its
   eigenvalues are those of a to a relative error of |U^T U - I|, which is tested beside. */
static void reference_warm_start(int n, const double *a, const double *vectors, long double *b)
{
    size_t size = (size_t)n, bytes = size * size * sizeof(long double);
    long double *l = (long double *)malloc(bytes), *m = (long double *)malloc(bytes), *u = NULL, root;
    int i, j, k;
    u = (long double *)malloc(size * sizeof *u);
    if (!l || !m || !u) abort();
    memset(l, 0, bytes);
    for (i = 0; i < n; i++)   /* Cholesky; row i of l needs rows 0..i only */
        for (j = 0; j <= i; j++) {
            root = (long double)a[i * n + j] - reference_dot(j, l + (size_t)i * size, l + (size_t)j * size);
            l[i * n + j] = i == j ? sqrtl(root) : root / l[j * n + j];
        }
    for (i = 0; i < n; i++)   /* l <- l^T, so that columns are contiguous */
        for (j = 0; j < i; j++) {
            l[j * n + i] = l[i * n + j];
            l[i * n + j] = 0;
        }
    for (k = 0; k < n; k++) {
        for (i = 0; i < n; i++) u[i] = (long double)vectors[i * n + k];
        for (j = 0; j < n; j++) m[k * n + j] = reference_dot(n - j, u + j, l + (size_t)j * size + j);
    }
    for (i = 0; i < n; i++)
        for (j = 0; j <= i; j++)
            b[j * n + i] = b[i * n + j] = reference_dot(n, m + (size_t)i * size, m + (size_t)j * size);
    free(l);
    free(m);
    free(u);
}

/* Eigenvalues of a, ascending. vectors: a start, or NULL. floor_size relative to the largest entry. Returns 0, with a
   line that says so, where this platform has no reference. */
static int reference(const char *name, int n, const double *a, const double *vectors, double floor_size,
                     double *values)
{
    size_t count = (size_t)n * (size_t)n, i;
    long double *work;
    double largest = 0;
    int converged;
    if (n > REFERENCE_MAX) {
        SKIP(name, REFERENCE_MAX ? "long double is emulated here, too slow for this size"
                                 : "long double is no wider than double here");
        return 0;
    }
    work = (long double *)malloc(count * sizeof *work);
    if (!work) abort();
    for (i = 0; i < count; i++) {
        work[i] = (long double)a[i];
        if (fabs(a[i]) > largest) largest = fabs(a[i]);
    }
    if (vectors) reference_warm_start(n, a, vectors, work);
    converged = reference_jacobi(n, work, (long double)(floor_size * largest), values);
    CHECK_MSG(converged, ("    reference of %s\n", name));
    free(work);
    return converged;
}

/* == EIGENSOLVER == */

typedef struct solution {
    oscar_result result;
    int sweeps, rank, indefinite;
} solution;

/* oscar_eigh with a look inside; scratch has exactly the size asked for. */
static solution solve(int n, const double *a, double *vectors, double *values)
{
    void *scratch = malloc(oscar_eigh_scratch(n));
    oscar__eigh e;
    solution s;
    if (!scratch) abort();
    oscar__eigh_place(&e, n, a, scratch);
    s.result = oscar__eigh_solve(&e);
    if (s.result == OSCAR_OK) oscar__eigh_write(&e, vectors, values);
    s.sweeps = e.sweeps;
    s.rank = e.rank;
    s.indefinite = e.indefinite;
    free(scratch);
    return s;
}

static double relative_error(int n, const double *values, const double *expected)
{
    double worst = 0;
    int i;
    for (i = 0; i < n; i++) {
        double error = fabs(values[i] - expected[i]) / fabs(expected[i]);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

static void measure(int n, const double *a, const double *vectors, const double *values, double *orthogonal,
                    double *residual)
{
    size_t size = (size_t)n;
    double *u = doubles(size * size), square = 0;   /* u: eigenvectors as rows */
    int i, j, k;
    *orthogonal = *residual = 0;
    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++) {
            u[j * n + i] = vectors[i * n + j];
            square += a[i * n + j] * a[i * n + j];
        }
    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++) {
            const double *x = u + (size_t)i * size, *y = u + (size_t)j * size, *line = a + (size_t)i * size;
            double dot = 0, image = 0;
            for (k = 0; k < n; k++) image += line[k] * y[k];
            image = fabs(image - values[j] * y[i]);
            if (!(image <= *residual)) *residual = image;
            for (k = 0; k < n && j <= i; k++) dot += x[k] * y[k];
            if (j <= i && !(fabs(dot - (i == j)) <= *orthogonal)) *orthogonal = fabs(dot - (i == j));
        }
    if (square > 0) *residual /= sqrt(square);
    free(u);
}

/* Order and sign as promised; a tie is what rounding cannot tell apart. */
static int is_canonical(int n, const double *vectors, const double *values)
{
    int i, j;
    for (j = 0; j < n; j++) {
        double largest = 0;
        if (j && !(values[j] >= values[j - 1])) return 0;
        for (i = 0; i < n; i++) if (fabs(vectors[i * n + j]) > largest) largest = fabs(vectors[i * n + j]);
        for (i = 0; fabs(vectors[i * n + j]) < largest * (1 - 1e-8); i++) {}
        if (!(vectors[i * n + j] > 0)) return 0;
    }
    return 1;
}

/* Solves and checks everything that holds for every matrix. */
static solution solve_checked(const char *name, int n, const double *a, double *vectors, double *values)
{
    solution s = solve(n, a, vectors, values);
    double orthogonal, residual;
    CHECK_MSG(s.result == OSCAR_OK, ("    %s: %s\n", name, oscar_result_text(s.result)));
    if (s.result != OSCAR_OK) {
        memset(vectors, 0, (size_t)n * (size_t)n * sizeof *vectors);
        memset(values, 0, (size_t)n * sizeof *values);
        return s;
    }
    measure(n, a, vectors, values, &orthogonal, &residual);
    CHECK_MSG(orthogonal <= LIMIT_ORTHOGONAL, ("    %s: orthogonality %.2e\n", name, orthogonal));
    CHECK_MSG(residual <= LIMIT_RESIDUAL, ("    %s: residual %.2e\n", name, residual));
    CHECK_MSG(s.sweeps <= LIMIT_SWEEPS, ("    %s: %d sweeps\n", name, s.sweeps));
    CHECK_MSG(is_canonical(n, vectors, values), ("    %s: order or sign\n", name));
    if (getenv("TEST_VERBOSE"))
        printf("    %-16s n %3d  rank %3d  sweeps %2d  orthogonality %.1e  residual %.1e\n", name, n, s.rank, s.sweeps,
               orthogonal, residual);
    return s;
}

static void test_sizes(void)
{
    static const int sizes[] = { 2, 64, 128, 256, 512 };
    int i, n;
    TEST("C2.4 any number of rotations: n = 2 to 512");
    for (i = 0; i < 5; i++) {
        clock_t start;
        double *a, *vectors, *values;
        n = sizes[i];
        a = doubles((size_t)n * (size_t)n);
        vectors = doubles((size_t)n * (size_t)n);
        values = doubles((size_t)n);
        make_wishart(n, 4 * n, a);
        start = clock();
        CHECK(solve(n, a, vectors, values).result == OSCAR_OK);
        if (n == 128)
            printf("oscar_eigh, n = 128: %.1f ms\n", 1e3 * (double)(clock() - start) / (double)CLOCKS_PER_SEC);
        solve_checked("wishart", n, a, vectors, values);
        free(a);
        free(vectors);
        free(values);
    }
    TEST("C2.4 every n from 1 to 40, full rank and not");
    for (n = 1; n <= 40; n++) {
        double a[1600], vectors[1600], values[40];
        int rank = 1 + random_below(&rng, n);
        make_wishart(n, 4 * n, a);
        CHECK(solve_checked("wishart", n, a, vectors, values).rank == n);
        make_wishart(n, rank, a);
        solve_checked("low rank", n, a, vectors, values);
        make_symmetric(n, a);
        solve_checked("symmetric", n, a, vectors, values);
    }
}

static void test_graded(void)
{
    static const int sizes[] = { 16, 32, 64, 96, 128, 192, 256, 512 };
    int i;
    TEST("C2.7 graded1e12, eigenvalues against long double");
    for (i = 0; i < 8; i++) {
        int n = sizes[i];
        double *a = doubles((size_t)n * (size_t)n), *vectors = doubles((size_t)n * (size_t)n);
        double *values = doubles((size_t)n), *expected = doubles((size_t)n), error;
        make_graded(n, a);
        solve_checked("graded1e12", n, a, vectors, values);
        if (reference("graded1e12", n, a, n > 256 ? vectors : NULL, 0, expected)) {
            error = relative_error(n, values, expected);
            CHECK_MSG(error <= LIMIT_VALUES, ("    n %d: relative error %.2e\n", n, error));
            if (getenv("TEST_VERBOSE")) printf("    n %3d: eigenvalues to %.1e\n", n, error);
        }
        free(a);
        free(vectors);
        free(values);
        free(expected);
    }
}

static void test_scale(void)
{
    enum { N = 64 };
    static const int shifts[] = { -100, 100, 1, -33, 885, -890 };
    double *a = doubles(N * N), *vectors = doubles(N * N), *again = doubles(N * N);
    double e[N], values[N], other[N], expected[N];
    int i, k, same = 1;
    TEST("C2.7 E B E over 24 decades, and times a power of two");
    make_wishart(N, 4 * N, a);
    for (i = 0; i < N; i++) e[i] = pow(10, 6 - 12.0 * i / (N - 1));
    scale_both_sides(N, e, a);
    solve_checked("24 decades", N, a, vectors, values);
    if (reference("24 decades", N, a, NULL, 0, expected)) CHECK(relative_error(N, values, expected) <= LIMIT_VALUES);
    for (k = 0; k < 6; k++) {
        for (i = 0; i < N * N; i++) a[i] = ldexp(a[i], shifts[k] - (k ? shifts[k - 1] : 0));
        CHECK(solve(N, a, again, other).result == OSCAR_OK);
        CHECK(memcmp(vectors, again, N * N * sizeof *again) == 0);
        for (i = 0; i < N; i++) same = same && other[i] == ldexp(values[i], shifts[k]);
        CHECK(same);
    }

    TEST("C2.7 250 decades, in any order: diagonal, and D B D");
    for (i = 0; i < N; i++) e[i] = pow(10, 60 - 125.0 * i / (N - 1));
    shuffle(N, e);
    memset(a, 0, N * N * sizeof *a);
    for (i = 0; i < N; i++) a[i * N + i] = expected[i] = e[i] * e[i];
    qsort(expected, N, sizeof *expected, ascending);
    solve_checked("diagonal", N, a, vectors, values);
    CHECK(relative_error(N, values, expected) <= 1e-15);
    for (i = 0; i < N * N; i++) same = same && (vectors[i] == 0 || vectors[i] == 1);
    CHECK(same);
    make_wishart(N, 4 * N, a);
    scale_both_sides(N, e, a);
    solve_checked("250 decades", N, a, vectors, values);
    if (reference("250 decades", N, a, NULL, 0, expected)) CHECK(relative_error(N, values, expected) <= LIMIT_VALUES);
    free(a);
    free(vectors);
    free(again);
}

static void test_known_spectra(void)
{
    enum { N = 60 };
    double *a = doubles(N * N), *vectors = doubles(N * N), values[N], expected[N], h[144], hv[144];
    int i, j;

    TEST("known spectra: second differences, 2 - 2 cos(k pi / (n + 1))");
    memset(a, 0, N * N * sizeof *a);
    for (i = 0; i < N; i++) {
        a[i * N + i] = 2;
        if (i) a[i * N + i - 1] = a[(i - 1) * N + i] = -1;
        expected[i] = 4 * pow(sin((i + 1) * 3.14159265358979323846 / (2 * (N + 1))), 2);
    }
    solve_checked("differences", N, a, vectors, values);
    CHECK(relative_error(N, values, expected) <= LIMIT_VALUES);

    TEST("known spectra: repeated eigenvalues");
    for (i = 0; i < N; i++) expected[i] = i < 20 ? 0.25 : i < 45 ? 3 : i < 59 ? 3 + 1e-9 : 100;
    make_spectrum(N, expected, a);
    solve_checked("repeated", N, a, vectors, values);
    for (i = 0; i < N; i++) CLOSE(values[i], expected[i], 1e-13 * 100);

    TEST("known spectra: positive and negative, one of them 0");
    for (i = 0; i < N; i++) expected[i] = i - 20;
    make_spectrum(N, expected, a);
    CHECK(solve_checked("indefinite", N, a, vectors, values).indefinite);
    for (i = 0; i < N; i++) CLOSE(values[i], expected[i], 1e-13 * 40);

    TEST("known spectra: all negative, and minus the identity");
    for (i = 0; i < N; i++) expected[i] = -1.0 - (N - i);
    make_spectrum(N, expected, a);
    solve_checked("negative", N, a, vectors, values);
    for (i = 0; i < N; i++) CLOSE(values[i], expected[i], 1e-13 * 40);
    memset(a, 0, N * N * sizeof *a);
    for (i = 0; i < N; i++) a[i * N + i] = -1;
    solve_checked("-I", N, a, vectors, values);
    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++) CHECK(vectors[i * N + j] == (i == j));

    TEST("known spectra: Hilbert matrix of order 12");
    for (i = 0; i < 12; i++)
        for (j = 0; j < 12; j++) h[i * 12 + j] = 1.0 / (i + j + 1);
    solve_checked("hilbert", 12, h, hv, values);
    if (reference("hilbert", 12, h, NULL, 1e-19, expected))
        for (i = 0; i < 12; i++) CLOSE(values[i], expected[i], 2e-15);
    free(a);
    free(vectors);
}

static void test_singular(void)
{
    enum { N = 33 };
    double a[N * N], vectors[N * N], values[N], ones[3][N], expected[N];
    int i, j, k;
    solution s;

    TEST("C2.5 a 33 x 33 sum of three indicator products, most rows zero");
    memset(ones, 0, sizeof ones);
    for (i = 0; i < 5; i++) ones[0][2 + i] = ones[1][5 + i] = ones[2][20 + 2 * i] = 1;
    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++) {
            a[i * N + j] = 0;
            for (k = 0; k < 3; k++) a[i * N + j] += ones[k][i] * ones[k][j];
        }
    s = solve_checked("indicators", N, a, vectors, values);
    CHECK(s.rank == 3 && !s.indefinite);
    for (i = 0; i < N - 3; i++) CHECK(values[i] == 0);
    CLOSE(values[N - 3], 3, 1e-14);   /* overlap 2 of 5 and 5: 5 - 2, 5 + 2; the third alone: 5 */
    CLOSE(values[N - 2], 5, 1e-14);
    CLOSE(values[N - 1], 7, 1e-14);

    TEST("C2.5 the zero matrix gives I and zeros, the identity I and ones");
    for (k = 0; k < 2; k++) {
        memset(a, 0, sizeof a);
        for (i = 0; i < N; i++) a[i * N + i] = k;
        s = solve_checked("zero, identity", N, a, vectors, values);
        CHECK(s.rank == (k ? N : 0));
        for (i = 0; i < N; i++) {
            CHECK(values[i] == k);
            for (j = 0; j < N; j++) CHECK(vectors[i * N + j] == (i == j));
        }
    }

    TEST("C2.5 an indefinite 0/1 matrix");
    for (i = 0; i < N; i++)
        for (j = 0; j <= i; j++) a[i * N + j] = a[j * N + i] = i != j && random_below(&rng, 4) == 0;
    CHECK(solve_checked("0/1", N, a, vectors, values).indefinite);
    CHECK(values[0] < 0 && values[N - 1] > 0);
    if (reference("0/1", N, a, NULL, 1e-19, expected))
        for (i = 0; i < N; i++) CLOSE(values[i], expected[i], 1e-14 * values[N - 1]);

}

static void test_deficient(void)
{
    enum { N = 33 };
    double a[N * N], vectors[N * N], values[N], expected[N];
    int i, rank;
    solution s;

    TEST("low rank: fewer rows than channels, zero channels, equal channels");
    for (rank = 1; rank < N; rank += 5) {
        make_wishart(N, rank, a);
        for (i = 0; i < N; i++) {   /* channel 4 is dead, channel 9 repeats channel 8 */
            a[4 * N + i] = a[i * N + 4] = 0;
            a[9 * N + i] = a[8 * N + i];
        }
        for (i = 0; i < N; i++) a[i * N + 9] = a[i * N + 8];
        s = solve_checked("low rank", N, a, vectors, values);
        CHECK_MSG(s.rank == (rank < N - 2 ? rank : N - 2) && !s.indefinite, ("    rank %d of %d\n", s.rank, rank));
        for (i = 0; i < N - rank; i++) CHECK(values[i] == 0);
    }

    TEST("indefinite by a little: rank deficient with a negative eigenvalue of 1e-9");
    for (i = 0; i < N; i++) expected[i] = i == 0 ? -1e-9 : i < 10 ? 0 : i;
    make_spectrum(N, expected, a);
    CHECK(solve_checked("nearly", N, a, vectors, values).indefinite);
    for (i = 0; i < N; i++) CLOSE(values[i], expected[i], 1e-13 * N);

    TEST("indefinite where no pivot is negative: a zero on the diagonal beside something");
    memset(a, 0, sizeof a);
    for (i = 0; i < N; i++) a[i * N + i] = 1;
    a[0] = a[N + 1] = 0;
    a[1] = a[N] = 0.5;
    CHECK(solve_checked("0 beside 0.5", N, a, vectors, values).indefinite);
    CLOSE(values[0], -0.5, 1e-15);
    CLOSE(values[1], 0.5, 1e-15);
}

static void test_hard_cases(void)
{
    enum { N = 96 };
    double *a = doubles(N * N), *vectors = doubles(N * N), values[N];
    int i, j, k;

    TEST("nearly equal eigenvalues: the identity and a little more, every angle is large");
    for (k = 0; k < 4; k++) {
        make_symmetric(N, a);
        for (i = 0; i < N * N; i++) a[i] *= pow(10, -5 - 3 * k);
        for (i = 0; i < N; i++) a[i * N + i] += 1;
        solve_checked("near I", N, a, vectors, values);
    }

    TEST("small whole numbers: repeated and zero eigenvalues of both signs");
    for (k = 0; k < 300; k++) {
        int n = 1 + random_below(&rng, 14), range = 1 + random_below(&rng, 3);
        for (i = 0; i < n; i++)
            for (j = 0; j <= i; j++)
                a[i * n + j] = a[j * n + i] = random_below(&rng, 3) ? 0 : random_below(&rng, 2 * range + 1) - range;
        solve_checked("small integers", n, a, vectors, values);
    }

    TEST("blocks of channels with nothing in common, most of them dead");
    memset(a, 0, N * N * sizeof *a);
    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++)
            if (i / 8 == j / 8 && i / 8 % 3 == 0) a[i * N + j] = (i == j) + pow(10, -i / 8);
    solve_checked("blocks", N, a, vectors, values);
    for (i = 0; i < 64; i++) CHECK(values[i] == 0);
    for (i = 64; i < 92; i++) CLOSE(values[i], 1, 1e-14);
    for (i = 0; i < 4; i++) CLOSE(values[92 + i], 1 + 8 * pow(10, 3 * i - 9), 1e-13);
    free(a);
    free(vectors);
}

/* Calls oscar_eigh on a copy with one entry (and its mirror, if asked) replaced; outputs must stay untouched. */
static oscar_result refused(int n, const double *a, int i, int j, int mirror, double value)
{
    size_t count = (size_t)n * (size_t)n, k;
    double *bad = doubles(count), *vectors = doubles(count), *values = doubles((size_t)n);
    void *scratch = malloc(oscar_eigh_scratch(n));
    oscar_result result;
    if (!scratch) abort();
    memcpy(bad, a, count * sizeof *bad);
    bad[i * n + j] = value;
    if (mirror) bad[j * n + i] = value;
    for (k = 0; k < count; k++) vectors[k] = 7;
    for (k = 0; k < (size_t)n; k++) values[k] = 7;
    result = oscar_eigh(n, bad, vectors, values, scratch);
    for (k = 0; k < count && result; k++) CHECK(vectors[k] == 7);
    for (k = 0; k < (size_t)n && result; k++) CHECK(values[k] == 7);
    free(bad);
    free(vectors);
    free(values);
    free(scratch);
    return result;
}

static void test_refusals(void)
{
    enum { N = 24 };
    static const int places[][2] = { { 0, 0 }, { 0, 1 }, { N - 1, N - 1 }, { N - 1, 0 } };
    double a[N * N], vectors[N * N], values[N], scratch[8], top = 0, bad[4];
    int i, k;
    make_wishart(N, 4 * N, a);
    for (i = 0; i < N; i++) if (a[i * N + i] > top) top = a[i * N + i];

    TEST("C2.6 NaN and infinity are refused, outputs untouched");
    bad[0] = (double)NAN;
    bad[1] = (double)INFINITY;
    bad[2] = -bad[1];
    bad[3] = 2e280;
    for (k = 0; k < 4; k++)
        for (i = 0; i < 4; i++) {
            CHECK(refused(N, a, places[i][0], places[i][1], 0, bad[k]) == OSCAR_ERR_NUMERIC);
            CHECK(refused(N, a, places[i][0], places[i][1], 1, bad[k]) == OSCAR_ERR_NUMERIC);
        }
    vectors[0] = values[0] = 7;
    for (i = 0; i < 4; i++) {
        double tiny[4];
        tiny[0] = tiny[1] = tiny[2] = tiny[3] = 0;
        tiny[i] = i == 1 || i == 2 ? 0 : 1e-281;
        tiny[3] = 1e-281;
        CHECK(oscar_eigh(2, tiny, vectors, values, scratch) == OSCAR_ERR_NUMERIC && vectors[0] == 7 && values[0] == 7);
    }

    TEST("C2.9 not symmetric: 1e-3 is refused, 1e-7 accepted");
    CHECK(refused(N, a, 0, 1, 0, a[1] + 1e-3 * top) == OSCAR_ERR_ARGUMENT);
    CHECK(refused(N, a, 1, 0, 0, a[1] - 1e-3 * top) == OSCAR_ERR_ARGUMENT);
    CHECK(refused(N, a, N - 2, N - 1, 0, a[N * N - 2] + 2e-6 * top) == OSCAR_ERR_ARGUMENT);
    CHECK(refused(N, a, 0, 1, 0, a[1] + 1e-7 * top) == OSCAR_OK);
    {
        double mean[N * N], same[N * N], other[N];
        memcpy(mean, a, sizeof a);
        a[1] += 1e-7 * top;
        mean[1] = mean[N] = (a[1] + a[N]) * 0.5;
        CHECK(solve(N, a, vectors, values).result == OSCAR_OK);
        CHECK(solve(N, mean, same, other).result == OSCAR_OK);
        CHECK(memcmp(vectors, same, sizeof same) == 0 && memcmp(values, other, sizeof other) == 0);
    }

    TEST("eigh: sizes and missing arrays");
    CHECK(oscar_eigh_scratch(0) == 0 && oscar_eigh_scratch(-1) == 0 && oscar_eigh_scratch(4097) == 0);
    CHECK(oscar_eigh_scratch(1) > 0 && oscar_eigh_scratch(4096) >= (size_t)4096 * 4096 * sizeof(double));
    CHECK(oscar_eigh(0, a, vectors, values, scratch) == OSCAR_ERR_SHAPE);
    CHECK(oscar_eigh(-3, a, vectors, values, scratch) == OSCAR_ERR_SHAPE);
    CHECK(oscar_eigh(4097, a, vectors, values, scratch) == OSCAR_ERR_SHAPE);
    CHECK(oscar_eigh(2, NULL, vectors, values, scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_eigh(2, a, NULL, values, scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_eigh(2, a, vectors, NULL, scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_eigh(2, a, vectors, values, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_eigh(2, a, vectors, values, (char *)scratch + 4) == OSCAR_ERR_ARGUMENT);
}

static void test_convention(void)
{
    enum { N = 48 };
    static const double two[4] = { 0, 1, 1, 0 }, turned[4] = { 2, -1, -1, 2 };
    double a[N * N], vectors[N * N], again[N * N], values[N], other[N], mirrored[N * N];
    size_t bytes = oscar_eigh_scratch(N), k;
    unsigned char *scratch = (unsigned char *)malloc(bytes + 64);
    int i, j, n;
    if (!scratch) abort();

    TEST("C2.8 the largest component is positive, the lowest index on a tie; ascending");
    solve_checked("swap", 2, two, vectors, values);
    CLOSE(values[0], -1, 1e-15);
    CLOSE(values[1], 1, 1e-15);
    CHECK(vectors[0] > 0 && vectors[2] < 0 && vectors[1] > 0 && vectors[3] > 0);
    solve_checked("turned", 2, turned, vectors, values);
    CHECK(vectors[0] > 0 && vectors[2] > 0 && vectors[1] > 0 && vectors[3] < 0);

    TEST("C2.8 the same bits whatever scratch held and wherever it lay");
    for (n = 13; n <= N; n += N - 13) {
        if (n == N) make_graded(n, a);
        else make_symmetric(n, a);
        solve_checked("scratch", n, a, vectors, values);
        for (k = 0; k < 64; k += 8) {
            memset(scratch, (int)(k * 4 - 1) & 255, bytes + 64);
            CHECK(oscar_eigh(n, a, again, other, scratch + k) == OSCAR_OK);
            CHECK(memcmp(again, vectors, (size_t)n * (size_t)n * sizeof *again) == 0);
            CHECK(memcmp(other, values, (size_t)n * sizeof *other) == 0);
        }
    }

    TEST("C2.8 the mirrored problem has the mirrored answer: nothing depends on the order of channels but rounding");
    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++) mirrored[i * N + j] = a[(N - 1 - i) * N + N - 1 - j];
    solve_checked("mirrored", N, mirrored, again, other);
    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++) CLOSE(again[i * N + j], vectors[(N - 1 - i) * N + j], 1e-12);
    free(scratch);
}

static void test_cholesky(void)
{
    static const int sizes[] = { 1, 2, 5, 33, 64 };
    double c[64 * 64], l[64 * 64], x[64 * 7], y[64 * 7];
    int which, i, j, k;
    TEST("Cholesky: l l^T = c, zeros above; the solver of l^T y = x");
    for (which = 0; which < 5; which++) {
        int n = sizes[which], columns = which == 4 ? 7 : 1 + which;
        make_wishart(n, 4 * n, c);
        CHECK(oscar__cholesky(n, c, l) == 1);
        for (i = 0; i < n; i++)
            for (j = 0; j < n; j++) {
                double sum = 0;
                for (k = 0; k < n; k++) sum += l[i * n + k] * l[j * n + k];
                CLOSE(sum, c[i * n + j], 1e-15 * 8);
                CHECK(j <= i || l[i * n + j] == 0);
            }
        for (i = 0; i < n * columns; i++) x[i] = y[i] = random_normal(&rng);
        oscar__solve_lower_t(n, l, columns, y);
        for (i = 0; i < n; i++)
            for (j = 0; j < columns; j++) {
                double sum = 0;
                for (k = i; k < n; k++) sum += l[k * n + i] * y[k * columns + j];
                CLOSE(sum, x[i * columns + j], 1e-12);
            }
    }
    TEST("Cholesky: not positive definite, not finite");
    make_wishart(5, 20, c);
    c[4 * 5 + 4] = 0;
    CHECK(oscar__cholesky(5, c, l) == 0);
    c[0] = -1;
    CHECK(oscar__cholesky(5, c, l) == 0);
    c[0] = (double)NAN;
    CHECK(oscar__cholesky(5, c, l) == 0);
    c[0] = (double)INFINITY;
    CHECK(oscar__cholesky(5, c, l) == 0);
    memset(c, 0, 25 * sizeof *c);
    CHECK(oscar__cholesky(5, c, l) == 0);
}

/* == WALSH-HADAMARD, BIT REVERSAL, DENSE == */

/* Entry of the block-diagonal Hadamard matrix of size n: 1, -1, or 0 between blocks. */
static int hadamard(int n, int i, int j)
{
    int block = n & -n, both = i & j & (block - 1), sign = 1;
    if (i / block != j / block) return 0;
    for (; both; both &= both - 1) sign = -sign;
    return sign;
}

static void naive_fwht(int n, const float *x, double *out)
{
    int block = n & -n, i, j;
    for (j = 0; j < n; j++) {
        int start = j / block * block;
        double sum = 0;
        for (i = start; i < start + block; i++) sum += hadamard(n, i, j) * (double)x[i];
        out[j] = sum / sqrt((double)block);
    }
}

/* The largest difference of a row from its reference over the reference's root mean square. */
static double row_error(int n, const float *x, const double *expected)
{
    double worst = 0, square = 0;
    int i;
    for (i = 0; i < n; i++) {
        double error = fabs((double)x[i] - expected[i]);
        if (!(error <= worst)) worst = error;
        square += expected[i] * expected[i];
    }
    return worst / sqrt(square / n);
}

static void test_fwht_lengths(void)
{
    static const int odd[] = { 3, 5, 7, 1023, -1, -2, -128 };
    float x[8] = { 1.0f, -2.0f, 3.5f, 4.0f, 5.0f, 6.0f, 7.0f, 8.0f }, out[8];
    int i;
    TEST("C2.1 lengths that do not work are refused, the buffer untouched; 0 does nothing; 1 is the identity");
    for (i = 0; i < 7; i++) {
        out[0] = out[1] = 7.0f;
        CHECK(oscar_fwht(odd[i], 1, x, out) == OSCAR_ERR_SHAPE);
        CHECK((double)out[0] == 7 && (double)out[1] == 7);
    }
    CHECK(oscar_fwht(0, 5, x, out) == OSCAR_OK && (double)out[0] == 7);
    CHECK(oscar_fwht(8, 0, NULL, NULL) == OSCAR_OK);
    CHECK(oscar_fwht(8, 1, NULL, out) == OSCAR_ERR_ARGUMENT && oscar_fwht(8, 1, x, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fwht(1, 3, x, out) == OSCAR_OK && memcmp(out, x, 3 * sizeof *x) == 0);
}

static void test_fwht(void)
{
    static const int large[] = { 1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 320, 512, 640, 960, 1024 };
    enum { ROWS = 1000 };
    float *x = floats(ROWS * 1024), *out = floats(ROWS * 1024), *place = floats(ROWS * 1024), one[1024];
    double expected[1024], inside[1024];
    int n, i, row;
    for (i = 0; i < ROWS * 1024; i++) x[i] = (float)random_normal(&rng);

    TEST("C2.1 C2.2 every length to 1024 against the naive sum in double, in place and not");
    for (n = 2; n <= 1024; n += 2) {
        naive_fwht(n, x, expected);
        CHECK(oscar_fwht(n, 1, x, out) == OSCAR_OK);
        CHECK_MSG(row_error(n, out, expected) <= 1e-5, ("    n %d: %.2e\n", n, row_error(n, out, expected)));
        memcpy(place, x, (size_t)n * sizeof *x);
        CHECK(oscar_fwht(n, 1, place, place) == OSCAR_OK);
        CHECK(memcmp(place, out, (size_t)n * sizeof *out) == 0);
        for (i = 0; i < n; i++) inside[i] = (double)x[i];
        oscar__fwht_double(n, inside);
        for (i = 0; i < n; i++) CLOSE(inside[i], expected[i], 1e-13);
    }

    TEST("C2.2 a thousand rows are a thousand times one row");
    for (i = 0; i < 16; i++) {
        size_t bytes = (size_t)ROWS * (size_t)large[i] * sizeof *x;
        n = large[i];
        CHECK(oscar_fwht(n, ROWS, x, out) == OSCAR_OK);
        memcpy(place, x, bytes);
        CHECK(oscar_fwht(n, ROWS, place, place) == OSCAR_OK && memcmp(place, out, bytes) == 0);
        for (row = 0; row < ROWS; row++) {
            CHECK(oscar_fwht(n, 1, x + row * n, one) == OSCAR_OK);
            CHECK(memcmp(one, out + row * n, (size_t)n * sizeof *x) == 0);
            if (row % 111) continue;
            naive_fwht(n, x + row * n, expected);
            CHECK(row_error(n, out + row * n, expected) <= 1e-5);
        }
        CHECK(oscar_fwht(n, ROWS, place, place) == OSCAR_OK);
        for (row = 0; row < ROWS * n; row++) CLOSE(place[row], x[row], 5e-6);
    }

    TEST("C2.1 H at 80, 96, 192, 320 leaves products alone and is its own inverse");
    for (i = 0; i < 16; i++) {
        double before = 0, after = 0;
        n = large[i];
        for (row = 0; row < n; row++) before += (double)x[row] * (double)x[n + row];
        CHECK(oscar_fwht(n, 2, x, out) == OSCAR_OK);
        for (row = 0; row < n; row++) after += (double)out[row] * (double)out[n + row];
        CLOSE(after, before, 2e-6 * n);
    }
    free(x);
    free(out);
    free(place);
}

static void test_fwht_bits(void)
{
    static const int sizes[] = { 1, 2, 16, 48, 64, 96, 128, 256, 512, 1024 };
    float x[1024], out[1024];
    double expected[1024];
    int which, i, j;

    TEST("FWHT of whole numbers: exact butterflies, then one rounding of the product with the scale");
    for (which = 0; which < 10; which++) {
        int n = sizes[which], block = n & -n;
        float scale = oscar__fwht_scale(n);
        double nearest = 1 / sqrt((double)block);
        CHECK(fabs((double)scale - nearest) <= fabs((double)nextafterf(scale, 2.0f) - nearest));
        CHECK(fabs((double)scale - nearest) <= fabs((double)nextafterf(scale, 0.0f) - nearest));
        CHECK(oscar__pow2_divisor(n) == block);
        for (i = 0; i < n; i++) x[i] = (float)(random_below(&rng, 2001) - 1000);
        CHECK(oscar_fwht(n, 1, x, out) == OSCAR_OK);
        oscar__butterfly(n, x);
        for (i = 0; i < n; i++) {
            float product = x[i] * scale;
            CHECK(memcmp(&product, &out[i], 4) == 0);
        }
        for (i = 0; i < n; i++) {   /* column i of H from the unit vector */
            memset(out, 0, sizeof out);
            out[i] = 1;
            oscar__butterfly(n, out);
            for (j = 0; j < n; j++) CHECK((double)out[j] == hadamard(n, i, j));
        }
    }

    TEST("C2.3 a BF16 row of 256: float inside, rounded once, at most one BF16 ulp");
    for (which = 0; which < 100; which++) {
        uint16_t half[256];
        for (i = 0; i < 256; i++) x[i] = (float)(random_normal(&rng) * (i % 17 == 0 ? 50 : 1));
        oscar_convert(256, OSCAR_F32, x, OSCAR_BF16, half);
        oscar_convert(256, OSCAR_BF16, half, OSCAR_F32, x);
        naive_fwht(256, x, expected);
        CHECK(oscar_fwht(256, 1, x, x) == OSCAR_OK);
        oscar_convert(256, OSCAR_F32, x, OSCAR_BF16, half);
        oscar_convert(256, OSCAR_BF16, half, OSCAR_F32, x);
        for (i = 0; i < 256; i++) {
            int exponent;
            (void)frexp(expected[i], &exponent);
            CLOSE(x[i], expected[i], ldexp(1, exponent - 8));   /* 8 bits of significand */
        }
    }
}

static void test_bitrev(void)
{
    int bits, i, j;
    TEST("bit reversal: every index of every width to 12 bits, some of 31");
    for (bits = 0; bits <= 12; bits++)
        for (i = 0; i < 1 << bits; i++) {
            uint32_t expected = 0;
            for (j = 0; j < bits; j++) if (i >> j & 1) expected |= 1u << (bits - 1 - j);
            CHECK(oscar_bitrev((uint32_t)i, bits) == expected);
            CHECK(oscar_bitrev((uint32_t)i | 0xffff0000u, bits) == expected);
        }
    CHECK(oscar_bitrev(1, 31) == 0x40000000u && oscar_bitrev(0x7ffffffeu, 31) == 0x3fffffffu);

    TEST("H P: P of design 2.2 is a permutation, and H P stays orthogonal");
    {
        enum { N = 128 };
        int perm[N], seen[N];
        float unit[N];
        memset(seen, 0, sizeof seen);
        for (i = 0; i < N; i++) perm[oscar_bitrev((uint32_t)i, 7)] = N - 1 - i;
        for (i = 0; i < N; i++) seen[perm[i]]++;
        for (i = 0; i < N; i++) CHECK(seen[i] == 1);
        CHECK(perm[0] == 127 && perm[64] == 126 && perm[127] == 0);
        for (i = 0; i < N; i += 9) {   /* row i of H P: the row of H, columns reordered */
            memset(unit, 0, sizeof unit);
            unit[i] = 1;
            oscar__butterfly(N, unit);
            for (j = 0; j < N; j++) CHECK((double)unit[perm[j]] == hadamard(N, i, perm[j]));
        }
    }
}

static void test_rotate(void)
{
    static const int sizes[] = { 1, 2, 7, 16, 96, 128, 192 };
    float *m = floats(192 * 192), *x = floats(3 * 192), *out = floats(3 * 192);
    int which, i, j, row;
    TEST("rotate: each output is one fmaf chain from +0 over the input channels in order");
    for (which = 0; which < 7; which++) {
        int n = sizes[which];
        for (i = 0; i < n * n; i++) m[i] = (float)(random_normal(&rng) * pow(2, random_below(&rng, 20)));
        for (i = 0; i < 3 * n; i++) x[i] = (float)random_normal(&rng);
        CHECK(oscar_rotate(n, 3, m, x, out) == OSCAR_OK);
        for (row = 0; row < 3; row++)
            for (j = 0; j < n; j++) {
                float chain = 0.0f;
                for (i = 0; i < n; i++) chain = fmaf(x[row * n + i], m[i * n + j], chain);
                CHECK(memcmp(&chain, &out[row * n + j], 4) == 0);
            }
    }
    TEST("rotate: -0 times something starts at +0; shapes and missing arrays");
    x[0] = -0.0f;
    m[0] = 3.0f;
    CHECK(oscar_rotate(1, 1, m, x, out) == OSCAR_OK && !signbit(out[0]));
    out[0] = 7.0f;
    CHECK(oscar_rotate(0, 1, m, x, out) == OSCAR_ERR_SHAPE && oscar_rotate(-4, 1, m, x, out) == OSCAR_ERR_SHAPE);
    CHECK(oscar_rotate(4, 0, NULL, NULL, NULL) == OSCAR_OK);
    CHECK(oscar_rotate(4, 1, NULL, x, out) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_rotate(4, 1, m, NULL, out) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_rotate(4, 1, m, x, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK((double)out[0] == 7);
    free(m);
    free(x);
    free(out);
}

int main(void)
{
    rng.state = 20240501;
    test_sizes();
    test_graded();
    test_scale();
    test_known_spectra();
    test_singular();
    test_deficient();
    test_hard_cases();
    test_refusals();
    test_convention();
    test_cholesky();
    test_fwht_lengths();
    test_fwht();
    test_fwht_bits();
    test_bitrev();
    test_rotate();
    return test_end("test_math");
}
