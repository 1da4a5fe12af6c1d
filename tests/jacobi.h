/* jacobi.h - eigenvalues in long double, what the eigensolver is measured against. */
#ifndef JACOBI_H
#define JACOBI_H

#include <float.h>
#include <math.h>
#include <stdlib.h>

static int ascending(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

/* Two-sided cyclic Jacobi on a (destroyed). An entry counts as zero below 8 ulp of sqrt(a_pp a_qq), or below floor: 0
   for definite matrices, whose small eigenvalues keep their relative accuracy. Returns 0 if it does not converge. */
static int reference_jacobi(int n, long double *a, long double floor_size, double *values)
{
    int sweep, p, q, k, turned = 1;
    for (sweep = 0; sweep < 40 && turned; sweep++) {
        turned = 0;
        for (p = 0; p < n - 1; p++)
            for (q = p + 1; q < n; q++) {
                long double *x = a + (size_t)p * (size_t)n, *y = a + (size_t)q * (size_t)n;
                long double g = x[q], xx = x[p], yy = y[q], zeta, t, c, s;
                if (fabsl(g) <= floor_size || fabsl(g) <= 8 * LDBL_EPSILON * sqrtl(fabsl(xx * yy))) continue;
                turned = 1;
                zeta = (yy - xx) / (2 * g);
                t = (zeta < 0 ? -1 : 1) / (fabsl(zeta) + sqrtl(1 + zeta * zeta));
                c = 1 / sqrtl(1 + t * t);
                s = t * c;
                for (k = 0; k < n; k++) {
                    long double u = x[k], v = y[k];
                    x[k] = c * u - s * v;
                    y[k] = s * u + c * v;
                }
                x[p] = xx - t * g;
                y[q] = yy + t * g;
                x[q] = y[p] = 0;
                for (k = 0; k < n; k++) {
                    a[(size_t)k * (size_t)n + (size_t)p] = x[k];
                    a[(size_t)k * (size_t)n + (size_t)q] = y[k];
                }
            }
    }
    for (k = 0; k < n; k++) values[k] = (double)a[(size_t)k * (size_t)n + (size_t)k];
    qsort(values, (size_t)n, sizeof *values, ascending);
    return !turned;
}

#endif
