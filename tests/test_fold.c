/* test_fold.c - folding V's pairs into W_V and W_O: the folded weights give v' and take o'. */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "test.h"

enum { MAX_HEADS = 8, MAX_DIM = 96, IN = 40, OUT = 24, TOKENS = 7 };

/* F = P S Q, B = P S^-1 Q, singular values from 1/2 to 2. */
static void random_pair(test_random *r, int n, float *to, float *dual)
{
    static double p[MAX_DIM * MAX_DIM], q[MAX_DIM * MAX_DIM];
    int i, j, k;
    random_orthogonal(r, n, p);
    random_orthogonal(r, n, q);
    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++) {
            double x = 0, y = 0;
            for (k = 0; k < n; k++) {
                double s = pow(2, 2.0 * k / (n - 1) - 1);
                x += p[i * n + k] * s * q[k * n + j];
                y += p[i * n + k] / s * q[k * n + j];
            }
            to[i * n + j] = (float)x;
            dual[i * n + j] = (float)y;
        }
}

static void fill(test_random *r, float *x, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) x[i] = (float)random_normal(r);
}

/* y = x w^T + bias in double; x [rows][in], w [out][in]. */
static void linear(int rows, int in, int out, const double *x, const float *w, const float *bias, double *y)
{
    int t, i, j;
    for (t = 0; t < rows; t++)
        for (j = 0; j < out; j++) {
            double sum = bias ? (double)bias[j] : 0;
            for (i = 0; i < in; i++) sum += x[t * in + i] * (double)w[j * in + i];
            y[t * out + j] = sum;
        }
}

/* |a - b| / |b| over all of both. */
static double difference(const double *a, const double *b, size_t count)
{
    double error = 0, length = 0;
    size_t i;
    for (i = 0; i < count; i++) { error += (a[i] - b[i]) * (a[i] - b[i]); length += b[i] * b[i]; }
    return sqrt(error / length);
}

enum { ROTATION, BALANCED, HADAMARD, IDENTITY, MIXED, CASES };
static const char *const case_names[CASES] = { "rotation", "balanced", "hadamard", "identity", "mixed kinds" };

static float matrices[MAX_HEADS][2][MAX_DIM * MAX_DIM];
static oscar_pair pairs[MAX_HEADS];

static void make_pairs(test_random *r, int what, int heads, int dim)
{
    int h, i;
    memset(pairs, 0, sizeof pairs);
    for (h = 0; h < heads; h++) {
        int kind = what == MIXED ? h % 4 : what;
        pairs[h].dim = dim;
        pairs[h].kind = kind == HADAMARD ? OSCAR_HADAMARD : kind == IDENTITY ? OSCAR_IDENTITY : OSCAR_DENSE;
        if (kind == BALANCED) {
            random_pair(r, dim, matrices[h][0], matrices[h][1]);
            pairs[h].dual = matrices[h][1];
        }
        if (kind == ROTATION) {
            static double m[MAX_DIM * MAX_DIM];
            random_orthogonal(r, dim, m);
            for (i = 0; i < dim * dim; i++) matrices[h][0][i] = (float)m[i];
        }
        if (pairs[h].kind == OSCAR_DENSE) pairs[h].to = matrices[h][0];
    }
}

static void check_fold(int what, int kv_heads, int q_heads, int dim, int with_bias)
{
    static float wv[MAX_HEADS * MAX_DIM * IN], wv2[MAX_HEADS * MAX_DIM * IN], bias[MAX_HEADS * MAX_DIM];
    static float wo[OUT * MAX_HEADS * MAX_DIM], wo2[OUT * MAX_HEADS * MAX_DIM], bias2[MAX_HEADS * MAX_DIM];
    static double x[TOKENS * IN], v[TOKENS * MAX_HEADS * MAX_DIM], v2[TOKENS * MAX_HEADS * MAX_DIM];
    static double o[TOKENS * MAX_HEADS * MAX_DIM], o2[TOKENS * MAX_HEADS * MAX_DIM], y[TOKENS * OUT], y2[TOKENS * OUT];
    test_random r = { 100 };
    int v_size = kv_heads * dim, o_size = q_heads * dim, t, h, i;
    r.state += (uint64_t)(what * 64 + dim);
    make_pairs(&r, what, kv_heads, dim);
    fill(&r, wv, (size_t)(v_size * IN));
    fill(&r, bias, (size_t)v_size);
    fill(&r, wo, (size_t)(OUT * o_size));
    memcpy(wv2, wv, sizeof wv);
    memcpy(wo2, wo, sizeof wo);
    memcpy(bias2, bias, sizeof bias);
    CHECK(oscar_fold_v(pairs, kv_heads, IN, wv2, with_bias ? bias2 : NULL) == OSCAR_OK);
    CHECK(oscar_fold_o(pairs, kv_heads, q_heads, OUT, wo2) == OSCAR_OK);
    CHECK(with_bias || !memcmp(bias, bias2, sizeof bias));

    /* v' of the folded weight is v of the plain one, transformed */
    for (i = 0; i < TOKENS * IN; i++) x[i] = random_normal(&r);
    linear(TOKENS, IN, v_size, x, wv, with_bias ? bias : NULL, v);
    linear(TOKENS, IN, v_size, x, wv2, with_bias ? bias2 : NULL, v2);
    for (t = 0; t < TOKENS; t++)
        for (h = 0; h < kv_heads; h++) {
            float row[MAX_DIM], out[MAX_DIM];
            double *at = v + (t * kv_heads + h) * dim;
            for (i = 0; i < dim; i++) row[i] = (float)at[i];
            CHECK(oscar_transform(&pairs[h], OSCAR_FORWARD, 1, row, out) == OSCAR_OK);
            for (i = 0; i < dim; i++) at[i] = (double)out[i];
        }
    CLOSE(difference(v2, v, (size_t)(TOKENS * v_size)), 0, 1e-5);

    /* o' through the folded weight is o = o' B^T through the plain one */
    for (t = 0; t < TOKENS; t++)
        for (h = 0; h < q_heads; h++) {
            float row[MAX_DIM], out[MAX_DIM];
            int at = (t * q_heads + h) * dim;
            for (i = 0; i < dim; i++) o2[at + i] = (double)(row[i] = (float)random_normal(&r));
            CHECK(oscar_transform(&pairs[h * kv_heads / q_heads], OSCAR_BACK, 1, row, out) == OSCAR_OK);
            for (i = 0; i < dim; i++) o[at + i] = (double)out[i];
        }
    linear(TOKENS, o_size, OUT, o, wo, NULL, y);
    linear(TOKENS, o_size, OUT, o2, wo2, NULL, y2);
    CHECK_MSG(difference(y2, y, TOKENS * OUT) <= 1e-5,
              ("    %s, D %d, heads %d of %d: %g\n", case_names[what], dim, kv_heads, q_heads,
               difference(y2, y, TOKENS * OUT)));
}

static void test_values(void)
{
    static const int dims[] = { 64, 96, 16 };
    int what, d;
    TEST("folded weights give v' and take o': every kind, D 64, 96, 16, grouped queries, bias");
    for (what = 0; what < CASES; what++)
        for (d = 0; d < 3; d++) {
            check_fold(what, 4, 8, dims[d], 1);
            check_fold(what, 4, 4, dims[d], 0);
            check_fold(what, 1, 8, dims[d], d & 1);
        }
}

static void test_identity_is_exact(void)
{
    float w[2 * 16 * 3], copy[2 * 16 * 3];
    test_random r = { 1 };
    TEST("identity changes no bit, Hadamard twice gives the weights back");
    make_pairs(&r, IDENTITY, 2, 16);
    fill(&r, w, 96);
    memcpy(copy, w, sizeof w);
    CHECK(oscar_fold_v(pairs, 2, 3, w, NULL) == OSCAR_OK && !memcmp(w, copy, sizeof w));
    CHECK(oscar_fold_o(pairs, 2, 2, 3, w) == OSCAR_OK && !memcmp(w, copy, sizeof w));
    make_pairs(&r, HADAMARD, 2, 16);   /* 1/4 is exact, sums of 16 floats are in double */
    CHECK(oscar_fold_v(pairs, 2, 3, w, NULL) == OSCAR_OK && memcmp(w, copy, sizeof w));
    CHECK(oscar_fold_v(pairs, 2, 3, w, NULL) == OSCAR_OK);
    {
        int i;
        for (i = 0; i < 96; i++) CLOSE(w[i], copy[i], 1e-6);
    }
}

static void test_refuses(void)
{
    float w[96], mean[16] = { 0 };
    test_random r = { 2 };
    int i;
    TEST("folding refuses what does not fit, and writes nothing");
    for (i = 0; i < 96; i++) w[i] = 1;
    make_pairs(&r, HADAMARD, 2, 16);
    CHECK(oscar_fold_v(NULL, 2, 3, w, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fold_v(pairs, 0, 3, w, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fold_v(pairs, 2, 0, w, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fold_v(pairs, 2, 3, NULL, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fold_o(NULL, 2, 2, 3, w) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fold_o(pairs, 2, 3, 3, w) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fold_o(pairs, 2, 0, 3, w) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fold_o(pairs, 2, 2, 0, w) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fold_o(pairs, 2, 2, 3, NULL) == OSCAR_ERR_ARGUMENT);
    pairs[1].dim = 32;
    CHECK(oscar_fold_v(pairs, 2, 3, w, NULL) == OSCAR_ERR_SHAPE && oscar_fold_o(pairs, 2, 2, 3, w) == OSCAR_ERR_SHAPE);
    pairs[1].dim = 16;
    pairs[1].mean = mean;
    CHECK(oscar_fold_v(pairs, 2, 3, w, NULL) == OSCAR_ERR_SHAPE && oscar_fold_o(pairs, 2, 2, 3, w) == OSCAR_ERR_SHAPE);
    pairs[1].mean = NULL;
    pairs[1].kind = OSCAR_DENSE;
    CHECK(oscar_fold_v(pairs, 2, 3, w, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_fold_o(pairs, 2, 2, 3, w) == OSCAR_ERR_ARGUMENT);
    for (i = 0; i < 96; i++) CLOSE(w[i], 1, 0);
}

int main(void)
{
    test_values();
    test_identity_is_exact();
    test_refuses();
    return test_end("test_fold");
}
