/* bench_eigh.c - oscar_eigh: time and accuracy on two kinds of D x D covariances.

       wishart   X^T X / 4D of 4D rows of normal numbers: all eigenvalues of one size
       graded    the same with channels scaled by 10^0 to 10^-6 in random order: eigenvalues over 12 decades

   Before timing: orthogonality max |V^T V - I|, residual max |A V - V W| / |A|, and eigenvalues, relative, against a
   two-sided Jacobi of this file in long double. Peers on the same matrices, from liblapack.so.3 or from the OpenBLAS
   that the environment's BENCH_LAPACK names, if there is one: dgesvj, LAPACK's one-sided Jacobi, and dsyevd, its divide
   and conquer, which is faster and loses small eigenvalues. */
#include "bench.h"
#include "../tests/jacobi.h"

#include <dlfcn.h>

enum { DIM_MAX = 256, KINDS = 2, SIZES = 3, OURS = 0, DGESVJ = 1, DSYEVD = 2, SOLVERS = 3 };

static const char *const KIND_NAMES[KINDS] = { "wishart", "graded" };
static const int DIMS[SIZES] = { 64, 128, 256 };

typedef void dgesvj_function(const char *joba, const char *jobu, const char *jobv, const int *m, const int *n,
                             double *a, const int *lda, double *sva, const int *mv, double *v, const int *ldv,
                             double *work, const int *lwork, int *info, size_t, size_t, size_t);

typedef void dsyevd_function(const char *jobz, const char *uplo, const int *n, double *a, const int *lda, double *w,
                             double *work, const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t);

static const char *const SOLVER_NAMES[SOLVERS] = { "oscar_eigh", "dgesvj", "dsyevd" };

static dgesvj_function *dgesvj;
static dsyevd_function *dsyevd;

/* Of dsyevd, for the largest dimension; dgesvj needs less. */
enum { WORK = 1 + 6 * DIM_MAX + 2 * DIM_MAX * DIM_MAX, INTEGER_WORK = 3 + 5 * DIM_MAX };

typedef struct eigh_job {
    int dim;
    const double *a;          /* [dim][dim] */
    double *vectors, *values;
    void *scratch;            /* of oscar_eigh, or work of LAPACK */
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

static void run_dsyevd(void *argument)
{
    static int integers[INTEGER_WORK];
    const eigh_job *job = (const eigh_job *)argument;
    const int n = job->dim, lwork = WORK, liwork = INTEGER_WORK;
    int info = 0;
    memcpy(job->vectors, job->a, (size_t)n * (size_t)n * sizeof *job->a);
    dsyevd("V", "L", &n, job->vectors, &n, job->values, (double *)job->scratch, &lwork, integers, &liwork, &info, 1, 1);
    bench_check(info == 0, "dsyevd");
}

static void (*const RUN[SOLVERS])(void *) = { run_eigh, run_dgesvj, run_dsyevd };

static void find_lapack(void)
{
    const char *name = getenv("BENCH_LAPACK");
    void *library = dlopen(name ? name : "liblapack.so.3", RTLD_NOW), *symbol;
    if (name && !library) printf("# peer      %s\n", dlerror());
    if (!library) return;
    printf("# peer      LAPACK of %s\n", name ? "OpenBLAS" : "liblapack.so.3");
    symbol = dlsym(library, "dgesvj_");
    memcpy(&dgesvj, &symbol, sizeof dgesvj);   /* ISO C has no cast from void * to a function pointer */
    symbol = dlsym(library, "dsyevd_");
    memcpy(&dsyevd, &symbol, sizeof dsyevd);
}

static int have(int solver) { return solver == OURS || (solver == DGESVJ ? dgesvj != NULL : dsyevd != NULL); }

static const bench_case *find(const bench_table *table, int solver, int kind, int dim)
{
    return bench_find(table, solver ? OSCAR_ISA_AUTO : bench.best, "%s, %s, D = %d", SOLVER_NAMES[solver],
                      KIND_NAMES[kind], dim);
}

/* Ratios on well-conditioned matrices; on graded ones with `graded` in the name. */
static void print_figures(const bench_table *table)
{
    int size, kind, who;
    for (size = 0; size < SIZES; size++)
        bench_figure(OSCAR_ISA_AUTO, 1e6 * find(table, OURS, 0, DIMS[size])->median, "us", "eigh.D%d.us", DIMS[size]);
    for (who = DGESVJ; who < SOLVERS; who++) {
        if (!have(who)) SKIP(SOLVER_NAMES[who], "no LAPACK with it");
        for (size = 0; size < SIZES && have(who); size++)
            for (kind = 0; kind < KINDS; kind++)
                bench_figure(OSCAR_ISA_AUTO, find(table, who, kind, DIMS[size])->median
                                             / find(table, OURS, kind, DIMS[size])->median, "1", "eigh.D%d.%sover_%s%s",
                             DIMS[size], kind ? "graded." : "", getenv("BENCH_LAPACK") ? "openblas_" : "",
                             SOLVER_NAMES[who]);
    }
}

int main(int argc, char **argv)
{
    static eigh_job jobs[SIZES][KINDS][SOLVERS];
    static bench_table table;
    double graded_error = -1;
    int size, kind, who;
    bench_begin("bench_eigh", "", argc, argv);
    find_lapack();
    for (size = 0; size < SIZES; size++)
        for (kind = 0; kind < KINDS; kind++) {
            int n = DIMS[size];
            size_t bytes = (size_t)n * (size_t)n * sizeof(double);
            double *a = (double *)bench_alloc(bytes), error;
            make_covariance(n, kind, a);
            for (who = 0; who < SOLVERS; who++) {
                eigh_job *job = &jobs[size][kind][who];
                bench_case c = bench_case_of(RUN[who], job, "%s, %s, D = %d", SOLVER_NAMES[who], KIND_NAMES[kind],
                                             n);
                job->dim = n;
                job->a = a;
                job->vectors = (double *)bench_alloc(bytes);
                job->values = (double *)bench_alloc((size_t)n * sizeof(double));
                job->scratch = bench_alloc(who ? WORK * sizeof(double) : oscar_eigh_scratch(n));
                c.isa = who ? OSCAR_ISA_AUTO : bench.best;
                if (have(who)) bench_add(&table, c);
            }
            error = check(&jobs[size][kind][0], KIND_NAMES[kind]);
            if (n == 128 && kind == 1) graded_error = error;
        }
    bench_time(&table, 0.05);
    bench_print(&table, 1e6, "us");
    print_figures(&table);
    if (graded_error >= 0) bench_figure(OSCAR_ISA_AUTO, graded_error, "1", "eigh.graded.relerr");
    else SKIP("eigh.graded.relerr", "long double is no wider than double here");
    return 0;
}
