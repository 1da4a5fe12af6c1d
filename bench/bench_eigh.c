/* bench_eigh.c - oscar_eigh: time and accuracy on two kinds of D x D covariances.

       wishart   X^T X / 4D of 4D rows of normal numbers: all eigenvalues of one size
       graded    the same with channels scaled by 10^0 to 10^-6 in random order: eigenvalues over 12 decades

   Before timing: orthogonality max |V^T V - I|, residual max |A V - V W| / |A|, and eigenvalues, relative, against a
   two-sided Jacobi of this file in long double. Peers: LAPACK's dgesvj, a one-sided Jacobi, too, and dsyevd, divide and
   conquer, on the same matrices, from the library that LAPACK names in the environment, else liblapack.so.3, if there
   is one. OpenBLAS has the faster ones; give it one thread (OPENBLAS_NUM_THREADS=1). */
#include "bench.h"
#include "../tests/jacobi.h"

#include <dlfcn.h>

enum { DIM_MAX = 256, KINDS = 2, SIZES = 3, PEERS = 3 };

static const char *const KIND_NAMES[KINDS] = { "wishart", "graded" };
static const int DIMS[SIZES] = { 64, 128, 256 };

typedef void dgesvj_function(const char *joba, const char *jobu, const char *jobv, const int *m, const int *n,
                             double *a, const int *lda, double *sva, const int *mv, double *v, const int *ldv,
                             double *work, const int *lwork, int *info, size_t, size_t, size_t);

typedef void dsyevd_function(const char *jobz, const char *uplo, const int *n, double *a, const int *lda, double *w,
                             double *work, const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t);

static dgesvj_function *dgesvj;
static dsyevd_function *dsyevd;

static const char *const PEER_NAMES[PEERS] = { "oscar_eigh", "dgesvj", "dsyevd" };
enum { WORK = 1 + 6 * DIM_MAX + 2 * DIM_MAX * DIM_MAX, IWORK = 3 + 5 * DIM_MAX };

typedef struct eigh_job {
    int dim;
    const double *a;          /* [dim][dim] */
    double *vectors, *values;
    void *scratch;            /* of oscar_eigh, or work of dgesvj */
} eigh_job;

/* == MATRICES == */

static void make_covariance(int n, int graded, double *a)
{
    double x[DIM_MAX], scale[DIM_MAX];
    test_random random;
    int i, j, row;
    random.state = (uint64_t)n;
    for (i = 0; i < n; i++) scale[i] = graded ? pow(10, -6.0 * i / (n - 1)) : 1;
    for (i = n - 1; i > 0; i--) {
        double swap = scale[i];
        j = random_below(&random, i + 1);
        scale[i] = scale[j];
        scale[j] = swap;
    }
    memset(a, 0, (size_t)n * (size_t)n * sizeof *a);
    for (row = 0; row < 4 * n; row++) {
        for (i = 0; i < n; i++) x[i] = scale[i] * random_normal(&random);
        for (i = 0; i < n; i++)
            for (j = 0; j <= i; j++) a[i * n + j] += x[i] * x[j] / (4 * n);
    }
    for (i = 0; i < n; i++)
        for (j = 0; j < i; j++) a[j * n + i] = a[i * n + j];
}

/* == CHECKS == */

/* Eigenvalues of a definite matrix, ascending. */
static void reference(int n, const double *a, double *values)
{
    size_t count = (size_t)n * (size_t)n, i;
    long double *m = (long double *)bench_alloc(count * sizeof *m);
    for (i = 0; i < count; i++) m[i] = (long double)a[i];
    bench_check(reference_jacobi(n, m, 0, values), "the long double reference converges");
    bench_free(m, count * sizeof *m);
}

/* max |V^T V - I|, and max |A V - V W| over the Frobenius norm of A */
static void measure(int n, const double *a, const double *v, const double *w, double *orthogonal, double *residual)
{
    double square = 0;
    int i, j, k;
    *orthogonal = *residual = 0;
    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++) {
            double dot = i == j ? -1 : 0, image = -v[i * n + j] * w[j];
            for (k = 0; k < n; k++) {
                dot += v[k * n + i] * v[k * n + j];
                image += a[i * n + k] * v[k * n + j];
            }
            if (!(fabs(dot) <= *orthogonal)) *orthogonal = fabs(dot);
            if (!(fabs(image) <= *residual)) *residual = fabs(image);
            square += a[i * n + j] * a[i * n + j];
        }
    *residual /= sqrt(square);
}

/* Checks one matrix; returns the largest relative error of an eigenvalue, or -1 where there is no reference. */
static double check(const eigh_job *job, const char *name)
{
    double expected[DIM_MAX], orthogonal, residual, worst = -1;
    oscar__eigh look;
    int i, n = job->dim;
    bench_ok(oscar_eigh(n, job->a, job->vectors, job->values, job->scratch), "oscar_eigh");
    measure(n, job->a, job->vectors, job->values, &orthogonal, &residual);
    bench_close(orthogonal, 1e-13, OSCAR_ISA_AUTO, "orthogonality, %s, D = %d", name, n);
    bench_close(residual, 1e-13, OSCAR_ISA_AUTO, "residual, %s, D = %d", name, n);
    if (LDBL_MANT_DIG > DBL_MANT_DIG) {
        reference(n, job->a, expected);
        for (i = 0; i < n; i++) {
            double error = fabs(job->values[i] - expected[i]) / expected[i];
            if (!(error <= worst)) worst = error;
        }
        bench_close(worst, 1e-13, OSCAR_ISA_AUTO, "eigenvalues, %s, D = %d", name, n);
    }
    oscar__eigh_place(&look, n, job->a, job->scratch);   /* once more, for the number of sweeps */
    bench_ok(oscar__eigh_solve(&look), "oscar__eigh_solve");
    printf("# sweeps    %s, D = %d: %d\n", name, n, look.sweeps);
    return worst;
}

/* == CASES == */

static void run_eigh(void *argument)
{
    const eigh_job *job = (const eigh_job *)argument;
    bench_ok(oscar_eigh(job->dim, job->a, job->vectors, job->values, job->scratch), "oscar_eigh");
}

static void run_dgesvj(void *argument)   /* overwrites its matrix, so each call copies it first */
{
    const eigh_job *job = (const eigh_job *)argument;
    const int n = job->dim, lwork = 4 * DIM_MAX, mv = 0;
    int info = 0;
    memcpy(job->vectors, job->a, (size_t)n * (size_t)n * sizeof *job->a);
    dgesvj("G", "U", "N", &n, &n, job->vectors, &n, job->values, &mv, NULL, &n, (double *)job->scratch, &lwork, &info,
           1, 1, 1);
    bench_check(info == 0, "dgesvj");
}

static void run_dsyevd(void *argument)   /* likewise */
{
    const eigh_job *job = (const eigh_job *)argument;
    const int n = job->dim, lwork = WORK, liwork = IWORK;
    int info = 0;
    memcpy(job->vectors, job->a, (size_t)n * (size_t)n * sizeof *job->a);
    dsyevd("V", "L", &n, job->vectors, &n, job->values, (double *)job->scratch, &lwork,
           (int *)(void *)((double *)job->scratch + WORK), &liwork, &info, 1, 1);
    bench_check(info == 0, "dsyevd");
}

static void find_peers(void)
{
    const char *name = getenv("LAPACK") ? getenv("LAPACK") : "liblapack.so.3";
    void *library = dlopen(name, RTLD_NOW), *symbol = library ? dlsym(library, "dgesvj_") : NULL;
    memcpy(&dgesvj, &symbol, sizeof dgesvj);   /* ISO C has no cast from void * to a function pointer */
    symbol = library ? dlsym(library, "dsyevd_") : NULL;
    memcpy(&dsyevd, &symbol, sizeof dsyevd);
    printf("# LAPACK    %s\n", library ? name : "none");
}

/* Time of a peer over that of the library. */
static void figure_over(const bench_table *table, const char *peer, int dim)
{
    bench_figure(OSCAR_ISA_AUTO, bench_find(table, OSCAR_ISA_AUTO, "%s, wishart, D = %d", peer, dim)->median
                                 / bench_find(table, bench.best, "oscar_eigh, wishart, D = %d", dim)->median, "1",
                 "eigh.D%d.over_%s", dim, peer);
}

int main(int argc, char **argv)
{
    static eigh_job jobs[SIZES][KINDS][PEERS];
    static bench_table table;
    double graded_error = -1;
    int size, kind, who;
    bench_begin("bench_eigh", "", argc, argv);
    find_peers();
    for (size = 0; size < SIZES; size++)
        for (kind = 0; kind < KINDS; kind++) {
            int n = DIMS[size];
            size_t bytes = (size_t)n * (size_t)n * sizeof(double);
            double *a = (double *)bench_alloc(bytes), error;
            make_covariance(n, kind, a);
            for (who = 0; who < PEERS; who++) {
                eigh_job *job = &jobs[size][kind][who];
                bench_case c = bench_case_of(who == 0 ? run_eigh : who == 1 ? run_dgesvj : run_dsyevd, job,
                                             "%s, %s, D = %d", PEER_NAMES[who], KIND_NAMES[kind], n);
                job->dim = n;
                job->a = a;
                job->vectors = (double *)bench_alloc(bytes);
                job->values = (double *)bench_alloc((size_t)n * sizeof(double));
                job->scratch = bench_alloc(who ? WORK * sizeof(double) + IWORK * sizeof(int) : oscar_eigh_scratch(n));
                if (who == 0) bench_add_isas(&table, c);
                else if (who == 1 ? dgesvj != NULL : dsyevd != NULL) bench_add(&table, c);
            }
            error = check(&jobs[size][kind][0], KIND_NAMES[kind]);
            if (n == 128 && kind == 1) graded_error = error;
        }
    bench_time(&table, 0.05);
    bench_print(&table, 1e6, "us");

    for (size = 0; size < SIZES; size++) {
        oscar_isa isa;
        for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa))
            bench_figure(isa, 1e6 * bench_find(&table, isa, "oscar_eigh, wishart, D = %d", DIMS[size])->median, "us",
                         "eigh.D%d.us", DIMS[size]);
        if (dgesvj) figure_over(&table, "dgesvj", DIMS[size]);
        if (dsyevd) figure_over(&table, "dsyevd", DIMS[size]);
    }
    if (!dgesvj) SKIP("eigh.D128.over_dgesvj", "no LAPACK with dgesvj");
    if (!dsyevd) SKIP("eigh.D128.over_dsyevd", "no LAPACK with dsyevd");
    if (graded_error >= 0) bench_figure(OSCAR_ISA_AUTO, graded_error, "1", "eigh.graded.relerr");
    else SKIP("eigh.graded.relerr", "long double is no wider than double here");
    return 0;
}
