/* test_ptx.c - the PTX interpreter: single opcodes against a table of values, operations of a warp, what loading must
   refuse, what running must report; then the kernels of sample.h as NVRTC makes them, where there is an NVRTC. */
#include "tests/cuda/shim.h"
#include "tests/test.h"
#include "tests/cuda/ptx.h"
#include "tests/cuda/nvrtc.h"
#include "sample_text.h"
#include "tests/cuda/sample_test.h"
#include "tests/cuda/prelude.h"
#define OSCAR_CU(name, ...) static const char name[] = #__VA_ARGS__ "\n";
#include "tests/cuda/sample.h"

static const char header[] =
    ".version 9.0\n.target sm_90\n.address_size 64\n.file 1 \"a.cu\"\n"
    ".func (.param .b32 r) twice(.param .b32 x, .param .align 8 .b8 y[8]);\n"
    ".func (.param .b32 r) twice(.param .b32 x, .param .align 8 .b8 y[8])\n{\n.reg .b32 a, b, c;\n"
    "ld.param.u32 a, [x]; ld.param.v2.u32 {b, c}, [y]; add.u32 a, a, a; add.u32 a, a, c; st.param.b32 [r], a; ret;\n}\n"
    ".const .align 8 .b32 table[2] = {7, -1};\n.global .align 4 .b8 bytes[8] = {1, 2, 3, 4, 5, 6};\n";

/* -- single opcodes -- */

/* Registers: A B C of 64 bits, a b c their lower 32, ha hb hc their lower 16; predicate q is c != 0. The result is what
   `width` says: D (64), d (32), hd (16) or p (1). */
typedef struct opcode_case { const char *body; int width; uint64_t in[3], want; } opcode_case;

#define F(x) x   /* bits of a float, beside its value in a comment */

static const opcode_case integer_cases[] = {
    {"add.s32 d, a, b;", 32, {0xffffffff, 1, 0}, 0},
    {"add.u64 D, A, B;", 64, {0xffffffff, 1, 0}, 0x100000000u},
    {"add.s16 hd, ha, hb;", 16, {0xffff, 2, 0}, 1},
    {"sub.s32 d, a, b;", 32, {0, 1, 0}, 0xffffffff},
    {"sub.s64 D, A, -5;", 64, {0, 0, 0}, 5},
    {"mul.lo.s32 d, a, b;", 32, {0x10001, 0x10001, 0}, 0x20001},
    {"mul.hi.u32 d, a, b;", 32, {0xffffffff, 0xffffffff, 0}, 0xfffffffe},
    {"mul.hi.s32 d, a, b;", 32, {0xffffffff, 0xffffffff, 0}, 0},
    {"mul.hi.s32 d, a, b;", 32, {0x80000000, 2, 0}, 0xffffffff},
    {"mul.hi.u64 D, A, B;", 64, {~(uint64_t)0, ~(uint64_t)0, 0}, ~(uint64_t)0 - 1},
    {"mul.hi.s64 D, A, B;", 64, {~(uint64_t)0, 5, 0}, ~(uint64_t)0},
    {"mul.hi.s64 D, A, B;", 64, {(uint64_t)1 << 63, (uint64_t)1 << 63, 0}, (uint64_t)1 << 62},
    {"mul.lo.s64 D, A, B;", 64, {0x123456789u, 0x10, 0}, 0x1234567890u},
    {"mul.wide.u32 D, a, b;", 64, {0xffffffff, 0xffffffff, 0}, 0xfffffffe00000001u},
    {"mul.wide.s32 D, a, b;", 64, {0xffffffff, 7, 0}, (uint64_t)0 - 7},
    {"mul.wide.s16 d, ha, hb;", 32, {0xffff, 3, 0}, 0xfffffffd},
    {"mad.lo.s32 d, a, b, c;", 32, {3, 0xfffffffe, 10}, 4},
    {"mad.wide.s32 D, a, b, C;", 64, {0xffffffff, 4, (uint64_t)1 << 40}, ((uint64_t)1 << 40) - 4},
    {"mad.hi.u32 d, a, b, c;", 32, {0x80000000, 4, 5}, 7},
    {"div.s32 d, a, b;", 32, {0xfffffff9, 2, 0}, 0xfffffffd},
    {"rem.s32 d, a, b;", 32, {0xfffffff9, 2, 0}, 0xffffffff},
    {"div.u32 d, a, b;", 32, {0xfffffff9, 2, 0}, 0x7ffffffc},
    {"div.s32 d, a, b;", 32, {0x80000000, 0xffffffff, 0}, 0x80000000},
    {"rem.u64 D, A, B;", 64, {5000000038u, 5, 0}, 3},
    {"abs.s32 d, a;", 32, {0xfffffff6, 0, 0}, 10},
    {"neg.s32 d, a;", 32, {10, 0, 0}, 0xfffffff6},
    {"min.s32 d, a, b;", 32, {0xffffffff, 1, 0}, 0xffffffff},
    {"min.u32 d, a, b;", 32, {0xffffffff, 1, 0}, 1},
    {"max.s32 d, a, b;", 32, {0xffffffff, 1, 0}, 1},
    {"max.u32 d, a, b;", 32, {0xffffffff, 1, 0}, 0xffffffff},
    {"max.s64 D, A, B;", 64, {~(uint64_t)0, 1, 0}, 1},
    {"min.u16 hd, ha, hb;", 16, {0x10005, 6, 0}, 5},
    {"and.b32 d, a, b;", 32, {0xff00ff00, 0x0ff00ff0, 0}, 0x0f000f00},
    {"or.b64 D, A, B;", 64, {0xf0f0, 0x0f0f, 0}, 0xffff},
    {"xor.b32 d, a, -1;", 32, {0x12345678, 0, 0}, 0xedcba987},
    {"not.b32 d, a;", 32, {0, 0, 0}, 0xffffffff},
    {"not.pred p, q;", 1, {0, 0, 1}, 0},
    {"setp.ne.u32 r, a, 0; and.pred p, q, r;", 1, {1, 0, 1}, 1},
    {"setp.ne.u32 r, a, 0; xor.pred p, q, r;", 1, {1, 0, 1}, 0},
    {"shl.b32 d, a, b;", 32, {3, 31, 0}, 0x80000000},
    {"shl.b32 d, a, b;", 32, {3, 32, 0}, 0},
    {"shl.b64 D, A, b;", 64, {3, 62, 0}, (uint64_t)3 << 62},
    {"shr.u32 d, a, b;", 32, {0x80000000, 31, 0}, 1},
    {"shr.s32 d, a, b;", 32, {0x80000000, 31, 0}, 0xffffffff},
    {"shr.s32 d, a, b;", 32, {0x80000000, 200, 0}, 0xffffffff},
    {"shr.u32 d, a, b;", 32, {0x80000000, 32, 0}, 0},
    {"shr.b64 D, A, b;", 64, {(uint64_t)1 << 63, 63, 0}, 1},
    {"shf.l.wrap.b32 d, a, b, c;", 32, {0x80000000, 1, 33}, 3},
    {"shf.r.wrap.b32 d, a, b, c;", 32, {0x10, 0x3, 4}, 0x30000001},
    {"shf.l.clamp.b32 d, a, b, c;", 32, {0x12345678, 1, 40}, 0x12345678},
    {"shf.r.clamp.b32 d, a, b, c;", 32, {0x12345678, 0x55, 40}, 0x55},
    {"lop3.b32 d, a, b, c, 0xe8;", 32, {0xf0, 0xcc, 0xaa}, 0xe8},   /* of these three a table is its own result */
    {"lop3.b32 d, a, b, c, 0x1e;", 32, {0xf0, 0xcc, 0xaa}, 0x1e},
    {"lop3.b32 d, a, b, c, 0x01;", 32, {0xf0, 0xcc, 0xaa}, 0xffffff01},
    {"prmt.b32 d, a, b, 0x7610;", 32, {0x33221100, 0x77665544, 0}, 0x77661100},
    {"prmt.b32 d, a, b, 0x0123;", 32, {0x33221100, 0x77665544, 0}, 0x00112233},
    {"prmt.b32 d, a, b, 0xbf84;", 32, {0x80221100, 0x77665544, 0}, 0xff000044},
    {"bfe.u32 d, a, b, c;", 32, {0xabcd1234, 8, 12}, 0xd12},
    {"bfe.s32 d, a, b, c;", 32, {0x00000f00, 8, 4}, 0xffffffff},
    {"bfe.s32 d, a, b, c;", 32, {0x80000000, 28, 8}, 0xfffffff8},
    {"bfe.u32 d, a, b, c;", 32, {0xffffffff, 28, 8}, 0xf},
    {"bfe.u32 d, a, b, c;", 32, {0xffffffff, 5, 0}, 0},
    {"bfe.u32 d, a, b, c;", 32, {0xffffffff, 40, 8}, 0},
    {"bfe.s64 D, A, b, c;", 64, {(uint64_t)8 << 40, 40, 4}, (uint64_t)0 - 8},
    {"bfi.b32 d, a, b, c, 8;", 32, {0xffff, 0, 4}, 0xff0},
    {"bfi.b32 d, a, b, c, 8;", 32, {0xff, 0, 28}, 0xf0000000},
    {"bfi.b32 d, a, b, 40, c;", 32, {0xff, 7, 4}, 7},
    {"bfi.b32 d, a, b, 3, 0;", 32, {0xff, 7, 0}, 7},
    {"bfind.u32 d, a;", 32, {0x00010000, 0, 0}, 16},
    {"bfind.u32 d, a;", 32, {0, 0, 0}, 0xffffffff},
    {"bfind.s32 d, a;", 32, {0xfffffffe, 0, 0}, 0},
    {"bfind.shiftamt.u32 d, a;", 32, {0x00010000, 0, 0}, 15},
    {"brev.b32 d, a;", 32, {0x80000001, 0, 0}, 0x80000001},
    {"brev.b32 d, a;", 32, {2, 0, 0}, 0x40000000},
    {"clz.b32 d, a;", 32, {0, 0, 0}, 32},
    {"clz.b64 d, A;", 32, {1, 0, 0}, 63},
    {"popc.b32 d, a;", 32, {0xf00f0001, 0, 0}, 9},
    {"popc.b64 d, A;", 32, {~(uint64_t)0, 0, 0}, 64},
    {"dp4a.u32.u32 d, a, b, c;", 32, {0x01020304, 0x01010101, 5}, 15},
    {"dp4a.s32.u32 d, a, b, c;", 32, {0xff020304, 0x02010101, 5}, 12},
    {"dp4a.s32.s32 d, a, b, c;", 32, {0x000000ff, 0x000000ff, 0}, 1}
};

static const opcode_case move_cases[] = {
    {"setp.lt.s32 p, a, b;", 1, {0xffffffff, 1, 0}, 1},
    {"setp.lt.u32 p, a, b;", 1, {0xffffffff, 1, 0}, 0},
    {"setp.hs.u32 p, a, b;", 1, {0xffffffff, 1, 0}, 1},
    {"setp.ge.s64 p, A, B;", 1, {5, 5, 0}, 1},
    {"setp.eq.b16 p, ha, hb;", 1, {0x10005, 5, 0}, 1},
    {"setp.gt.s16 p, ha, -1;", 1, {0xfffe, 0, 0}, 0},
    {"setp.eq.and.s32 p, a, b, q;", 1, {1, 1, 0}, 0},
    {"setp.eq.or.s32 p, a, b, !q;", 1, {1, 2, 0}, 1},
    {"setp.lt.s32 r|p, a, b;", 1, {1, 2, 0}, 0},
    {"setp.lt.and.s32 r|p, a, b, q;", 1, {3, 2, 1}, 1},
    {"setp.lt.f32 p, a, b;", 1, {F(0xbf800000), F(0x3f800000), 0}, 1},
    {"setp.lt.f32 p, a, b;", 1, {F(0x7fc00000), F(0x3f800000), 0}, 0},
    {"setp.ltu.f32 p, a, b;", 1, {F(0x7fc00000), F(0x3f800000), 0}, 1},
    {"setp.neu.f32 p, a, b;", 1, {F(0x7fc00000), F(0x7fc00000), 0}, 1},
    {"setp.ne.f32 p, a, b;", 1, {F(0x7fc00000), F(0x7fc00000), 0}, 0},
    {"setp.nan.f32 p, a, b;", 1, {F(0x7fc00000), 0, 0}, 1},
    {"setp.num.f32 p, a, b;", 1, {F(0x7fc00000), 0, 0}, 0},
    {"setp.eq.f32 p, a, b;", 1, {0x80000000, 0, 0}, 1},
    {"setp.gt.ftz.f32 p, a, b;", 1, {1, 0, 0}, 0},
    {"setp.gt.f32 p, a, b;", 1, {1, 0, 0}, 1},
    {"setp.ge.f64 p, A, B;", 1, {0x3ff0000000000000u, 0x4000000000000000u, 0}, 0},
    {"setp.gt.f16 p, ha, hb;", 1, {0x3c01, 0x3c00, 0}, 1},
    {"setp.le.bf16 p, ha, hb;", 1, {0x3f80, 0x3f81, 0}, 1},
    {"selp.b32 d, a, b, q;", 32, {1, 2, 1}, 1},
    {"selp.b64 D, A, B, q;", 64, {1, (uint64_t)2 << 40, 0}, (uint64_t)2 << 40},
    {"selp.f32 d, 0f3F800000, 0f00000000, q;", 32, {0, 0, 1}, 0x3f800000},
    {"selp.b16 hd, ha, hb, q;", 16, {7, 8, 0}, 8},
    {"selp.u32 d, 1, 0, q;", 32, {0, 0, 1}, 1},
    {"mov.u32 d, a;", 32, {77, 0, 0}, 77},
    {"mov.b64 {d, e}, A;", 32, {0x1122334455667788u, 0, 0}, 0x55667788},
    {"mov.b64 {e, d}, A;", 32, {0x1122334455667788u, 0, 0}, 0x11223344},
    {"mov.b64 {_, d}, A;", 32, {0x1122334455667788u, 0, 0}, 0x11223344},
    {"mov.b64 D, {a, b};", 64, {1, 2, 0}, 0x200000001u},
    {"mov.b32 {hd, he}, a;", 16, {0xaaaabbbb, 0, 0}, 0xbbbb},
    {"mov.b32 d, {ha, hb};", 32, {0x1111, 0x2222, 0}, 0x22221111},
    {"mov.b64 {he, he, hd, he}, A;", 16, {0x1122334455667788u, 0, 0}, 0x3344},
    {"mov.b64 D, {ha, hb, hc, ha};", 64, {1, 2, 3}, 0x0001000300020001u},
    {"mov.pred p, q;", 1, {0, 0, 1}, 1},
    {"mov.f32 d, 0fBF800000;", 32, {0, 0, 0}, 0xbf800000},
    {"mov.f64 D, 0d3FF0000000000000;", 64, {0, 0, 0}, 0x3ff0000000000000u},
    {"mov.b32 d, 0x1FU;", 32, {0, 0, 0}, 31},
    {"mov.u32 d, %laneid;", 32, {0, 0, 0}, 31},   /* the last lane stores last */
    {"mov.u32 d, %tid.x; add.u32 d, d, %ntid.x;", 32, {0, 0, 0}, 63},
    {"mov.u32 d, %lanemask_lt;", 32, {0, 0, 0}, 0x7fffffff},
    {"mov.u32 d, %lanemask_ge;", 32, {0, 0, 0}, 0x80000000},
    {"@q mov.u32 d, 5;\n@!q mov.u32 d, 6;", 32, {0, 0, 0}, 6},
    {"mov.u32 d, 0;\nagain: add.u32 d, d, a;\nsetp.lt.u32 r, d, b;\n@r bra again;", 32, {3, 10, 0}, 12},
    {"{ .reg .b32 d; mov.u32 d, 9; }\nmov.u32 d, 4;", 32, {0, 0, 0}, 4},
    {"{ .param .b32 param0; .param .align 8 .b8 param1[8]; .param .b32 retval0; st.param.b32 [param0], a;\n"
     "st.param.v2.b32 [param1], {b, c}; call.uni (retval0), twice, (param0, param1); ld.param.b32 d, [retval0]; }\n"
     "{ .param .b32 param0; .param .align 8 .b8 param1[8]; .param .b32 retval0; st.param.b32 [param0], d;\n"
     "st.param.v2.b32 [param1], {b, c}; call.uni (retval0), twice, (param0, param1); ld.param.b32 d, [retval0]; }",
     32, {10, 1000, 3}, 49}
};

static const opcode_case float_cases[] = {
    {"add.f32 d, a, b;", 32, {F(0x3f800000), F(0x33800000), 0}, 0x3f800000},      /* 1 + 2^-24: tie to even */
    {"add.f32 d, a, b;", 32, {F(0x3f800001), F(0x33800000), 0}, 0x3f800002},
    {"add.rn.f32 d, a, b;", 32, {0x7f800000, 0xff800000, 0}, 0x7fffffff},
    {"add.ftz.f32 d, a, b;", 32, {1, 0x80000001, 0}, 0},
    {"sub.f32 d, a, b;", 32, {0x00800000, 0x00000001, 0}, 0x007fffff},
    {"sub.ftz.f32 d, a, b;", 32, {0x00800001, 0x00800000, 0}, 0},
    {"mul.f32 d, a, b;", 32, {0x3f800001, 0x3f800001, 0}, 0x3f800002},
    {"mul.f32 d, a, b;", 32, {0x00800000, 0x3f000000, 0}, 0x00400000},
    {"mul.sat.f32 d, a, b;", 32, {0x40000000, 0x40000000, 0}, 0x3f800000},
    {"fma.rn.f32 d, a, b, c;", 32, {0x3f800001, 0x3f800001, 0xbf800002}, 0x28800000},   /* 2^-46: one rounding */
    {"add.rz.f32 d, a, b;", 32, {0x3f800000, 0x33ffffff, 0}, 0x3f800000},
    {"add.rp.f32 d, a, b;", 32, {0x3f800000, 1, 0}, 0x3f800001},
    {"add.rm.f32 d, a, b;", 32, {0x3f800000, 0x80000001, 0}, 0x3f7fffff},
    {"mul.rz.f32 d, a, b;", 32, {0x3f800001, 0x3f800001, 0}, 0x3f800002},
    {"mul.rp.f32 d, a, b;", 32, {0x3f800001, 0x3f800001, 0}, 0x3f800003},
    {"fma.rm.f32 d, a, b, c;", 32, {0x3f800000, 0x3f800000, 0x80000001}, 0x3f7fffff},
    {"add.rz.f64 D, A, B;", 64, {0x3ff0000000000000u, 0x8000000000000001u, 0}, 0x3fefffffffffffffu},
    {"fma.rn.ftz.f32 d, a, b, c;", 32, {0x3f800000, 0x00000001, 0}, 0},
    {"fma.rn.f64 D, A, B, C;", 64, {0x3ff0000000000000u, 0x4000000000000000u, 0xbff0000000000000u},
     0x3ff0000000000000u},
    {"div.rn.f32 d, a, b;", 32, {0x3f800000, 0x40400000, 0}, 0x3eaaaaab},
    {"div.rn.f32 d, a, b;", 32, {0x00000003, 0x40000000, 0}, 0x00000002},         /* a tie among subnormals */
    {"div.rn.f32 d, a, b;", 32, {0x3f800000, 0x80000000, 0}, 0xff800000},
    {"div.rn.f32 d, a, b;", 32, {0, 0, 0}, 0x7fffffff},
    {"div.full.f32 d, a, b;", 32, {0x40c00000, 0x40400000, 0}, 0x40000000},
    {"rcp.rn.f32 d, a;", 32, {0x40400000, 0, 0}, 0x3eaaaaab},
    {"sqrt.rn.f32 d, a;", 32, {0x40000000, 0, 0}, 0x3fb504f3},
    {"sqrt.rn.f32 d, a;", 32, {0x80000000, 0, 0}, 0x80000000},
    {"sqrt.rn.f32 d, a;", 32, {0xbf800000, 0, 0}, 0x7fffffff},
    {"sqrt.rn.f32 d, a;", 32, {1, 0, 0}, 0x1a3504f3},
    {"sqrt.rn.f64 D, A;", 64, {0x4010000000000000u, 0, 0}, 0x4000000000000000u},
    {"rsqrt.approx.f32 d, a;", 32, {0x40800000, 0, 0}, 0x3f000000},
    {"ex2.approx.ftz.f32 d, a;", 32, {0x40400000, 0, 0}, 0x41000000},
    {"ex2.approx.ftz.f32 d, a;", 32, {0xff800000, 0, 0}, 0},
    {"ex2.approx.ftz.f32 d, a;", 32, {0xc3020000, 0, 0}, 0},                      /* 2^-130 */
    {"lg2.approx.ftz.f32 d, a;", 32, {0x41000000, 0, 0}, 0x40400000},
    {"lg2.approx.ftz.f32 d, a;", 32, {0, 0, 0}, 0xff800000},
    {"neg.f32 d, a;", 32, {0x7fc00001, 0, 0}, 0xffc00001},
    {"abs.f32 d, a;", 32, {0x80000001, 0, 0}, 1},
    {"abs.ftz.f32 d, a;", 32, {0x80000001, 0, 0}, 0},
    {"min.f32 d, a, b;", 32, {0x7fc00000, 0x3f800000, 0}, 0x3f800000},
    {"min.NaN.f32 d, a, b;", 32, {0x7fc00000, 0x3f800000, 0}, 0x7fffffff},
    {"min.f32 d, a, b;", 32, {0, 0x80000000, 0}, 0x80000000},
    {"max.f32 d, a, b;", 32, {0, 0x80000000, 0}, 0},
    {"max.f32 d, a, b;", 32, {0xff800000, 0x7fc00000, 0}, 0xff800000},
    {"max.f32 d, a, b, c;", 32, {0x3f800000, 0x40000000, 0x40400000}, 0x40400000},
    {"copysign.f32 d, a, b;", 32, {0x80000000, 0x3f800000, 0}, 0xbf800000},
    {"add.f16 hd, ha, hb;", 16, {0x3c00, 0x1000, 0}, 0x3c00},                     /* 1 + 2^-11: tie */
    {"add.rn.f16 hd, ha, hb;", 16, {0x7bff, 0x7bff, 0}, 0x7c00},
    {"mul.bf16 hd, ha, hb;", 16, {0x3f81, 0x3f81, 0}, 0x3f82},
    {"fma.rn.f16x2 d, a, b, c;", 32, {0x3c004000, 0x40004000, 0x3c003c00}, 0x42004500},
    {"max.f16x2 d, a, b;", 32, {0x3c004000, 0x40003c00, 0}, 0x40004000},
    {"neg.f16x2 d, a;", 32, {0x3c004000, 0, 0}, 0xbc00c000},
    {"add.f64 D, A, B;", 64, {0x3ff0000000000000u, 0x3ff0000000000000u, 0}, 0x4000000000000000u}
};

static const opcode_case convert_cases[] = {
    {"cvt.u32.u64 d, A;", 32, {0x1ffffffffu, 0, 0}, 0xffffffff},
    {"cvt.s64.s32 D, a;", 64, {0x80000000, 0, 0}, 0xffffffff80000000u},
    {"cvt.u64.u32 D, a;", 64, {0x80000000, 0, 0}, 0x80000000},
    {"cvt.s32.s16 d, ha;", 32, {0x8000, 0, 0}, 0xffff8000},
    {"cvt.u32.u16 d, ha;", 32, {0x8000, 0, 0}, 0x8000},
    {"cvt.s32.s8 d, a;", 32, {0x180, 0, 0}, 0xffffff80},
    {"cvt.u16.u32 hd, a;", 16, {0x12345, 0, 0}, 0x2345},
    {"cvt.sat.u8.s32 d, a;", 32, {0xffffffff, 0, 0}, 0},
    {"cvt.sat.u8.s32 d, a;", 32, {300, 0, 0}, 255},
    {"cvt.sat.s8.s32 d, a;", 32, {0xffffff00, 0, 0}, 0xffffff80},
    {"cvt.sat.s32.u32 d, a;", 32, {0xffffffff, 0, 0}, 0x7fffffff},
    {"cvt.rn.f32.s32 d, a;", 32, {0xffffffff, 0, 0}, 0xbf800000},
    {"cvt.rn.f32.u32 d, a;", 32, {0xffffffff, 0, 0}, 0x4f800000},
    {"cvt.rn.f32.u32 d, a;", 32, {0x01000001, 0, 0}, 0x4b800000},                 /* 2^24 + 1: tie to even */
    {"cvt.rn.f32.s64 d, A;", 32, {(uint64_t)0 - 2, 0, 0}, 0xc0000000},
    {"cvt.rn.f32.u64 d, A;", 32, {0x8000008000000001u, 0, 0}, 0x5f000001},        /* just over a tie: one rounding */
    {"cvt.rn.f64.s32 D, a;", 64, {3, 0, 0}, 0x4008000000000000u},
    {"cvt.rni.s32.f32 d, a;", 32, {0x40200000, 0, 0}, 2},                         /* 2.5 */
    {"cvt.rzi.s32.f32 d, a;", 32, {0xc0200000, 0, 0}, 0xfffffffe},
    {"cvt.rmi.s32.f32 d, a;", 32, {0xc0200000, 0, 0}, 0xfffffffd},
    {"cvt.rpi.s32.f32 d, a;", 32, {0x40200000, 0, 0}, 3},
    {"cvt.rzi.s32.f32 d, a;", 32, {0x7f800000, 0, 0}, 0x7fffffff},
    {"cvt.rzi.u32.f32 d, a;", 32, {0xbf800000, 0, 0}, 0},
    {"cvt.rzi.s32.f32 d, a;", 32, {0x7fc00000, 0, 0}, 0},
    {"cvt.rzi.ftz.s64.f32 D, a;", 64, {0xcf000000, 0, 0}, 0xffffffff80000000u},
    {"cvt.rzi.u64.f32 D, a;", 64, {0x5f800000, 0, 0}, ~(uint64_t)0},
    {"cvt.rni.f32.f32 d, a;", 32, {0x40200000, 0, 0}, 0x40000000},
    {"cvt.rni.f32.f32 d, a;", 32, {0xbe800000, 0, 0}, 0x80000000},
    {"cvt.rmi.f32.f32 d, a;", 32, {0xbe800000, 0, 0}, 0xbf800000},
    {"cvt.sat.f32.f32 d, a;", 32, {0x7fc00000, 0, 0}, 0},
    {"cvt.f64.f32 D, a;", 64, {0x3f800000, 0, 0}, 0x3ff0000000000000u},
    {"cvt.rn.f32.f64 d, A;", 32, {0x3ff0000010000000u, 0, 0}, 0x3f800000},
    {"cvt.f32.f16 d, ha;", 32, {0x0001, 0, 0}, 0x33800000},
    {"cvt.f32.f16 d, ha;", 32, {0xfc00, 0, 0}, 0xff800000},
    {"cvt.f32.bf16 d, ha;", 32, {0xbf80, 0, 0}, 0xbf800000},
    {"cvt.rn.f16.f32 hd, a;", 16, {0x477fefff, 0, 0}, 0x7bff},
    {"cvt.rn.f16.f32 hd, a;", 16, {0x477ff000, 0, 0}, 0x7c00},
    {"cvt.rz.f16.f32 hd, a;", 16, {0x477ff000, 0, 0}, 0x7bff},
    {"cvt.rn.f16.f32 hd, a;", 16, {0x33000000, 0, 0}, 0},                         /* 2^-25: tie to 0 */
    {"cvt.rn.f16.f32 hd, a;", 16, {0x33000001, 0, 0}, 1},
    {"cvt.rn.f16.f32 hd, a;", 16, {0xffc00000, 0, 0}, 0x7fff},
    {"cvt.rn.f16.f32 hd, a;", 16, {0x387fffff, 0, 0}, 0x0400},                    /* up to the first normal */
    {"cvt.rn.bf16.f32 hd, a;", 16, {0x3f808000, 0, 0}, 0x3f80},
    {"cvt.rn.bf16.f32 hd, a;", 16, {0x3f818000, 0, 0}, 0x3f82},
    {"cvt.rn.bf16.f32 hd, a;", 16, {0x7f7fffff, 0, 0}, 0x7f80},
    {"cvt.rz.bf16.f32 hd, a;", 16, {0x7f7fffff, 0, 0}, 0x7f7f},
    {"cvt.rn.bf16.f32 hd, a;", 16, {0x80000001, 0, 0}, 0x8000},
    {"cvt.rn.f16x2.f32 d, a, b;", 32, {0x3f800000, 0x40000000, 0}, 0x3c004000},   /* the first is the upper half */
    {"cvt.rn.bf16x2.f32 d, a, b;", 32, {0x3f800000, 0x40000000, 0}, 0x3f804000},
    {"cvt.rn.f16.s32 hd, a;", 16, {0xffffffff, 0, 0}, 0xbc00},
    {"cvt.rni.s32.f16 d, ha;", 32, {0x4100, 0, 0}, 2}
};

/* Kernel t<n> of a table: inputs from memory, the body, the result to memory. */
static void append_case(char *text, size_t room, int n, const opcode_case *c)
{
    static const char *const result[] = {
        "mov.u64 D, D;", "cvt.u64.u32 D, d;", "cvt.u64.u16 D, hd;", "selp.u64 D, 1, 0, p;"
    };
    size_t at = strlen(text);
    snprintf(text + at, room - at,
             ".visible .entry t%d(.param .u64 .ptr .align 8 in, .param .u64 out)\n{\n"
             ".reg .pred p, q, r; .reg .b16 ha, hb, hc, hd, he; .reg .b32 a, b, c, d, e; .reg .b64 A, B, C, D, I, O;\n"
             "ld.param.u64 I, [in]; cvta.to.global.u64 I, I;\n"
             "ld.global.u64 A, [I]; ld.global.nc.u64 B, [I+8]; ld.global.L1::no_allocate.u64 C, [I+16];\n"
             "cvt.u32.u64 a, A; cvt.u32.u64 b, B; cvt.u32.u64 c, C;\n"
             "cvt.u16.u64 ha, A; cvt.u16.u64 hb, B; cvt.u16.u64 hc, C; setp.ne.u32 q, c, 0;\n"
             "%s\n%s\nld.param.u64 O, [out];\nst.global.u64 [O], D;\nret;\n}\n",
             n, c->body, result[c->width == 64 ? 0 : c->width == 32 ? 1 : c->width == 16 ? 2 : 3]);
}

static int run_ptx(ptx_module *m, const char *name, unsigned threads, void **params, ptx_options *o)
{
    ptx_size grid = {1, 1, 1}, block = {1, 1, 1};
    block.x = threads;
    return ptx_launch(m, name, grid, block, 0, params, o);
}

static void run_case(ptx_module *m, int n, const opcode_case *c)
{
    uint64_t in[4], out = 0x5555;
    void *pin = in, *pout = &out, *params[2];
    ptx_options options;
    char name[16];
    memset(&options, 0, sizeof options);
    memcpy(in, c->in, sizeof c->in);
    params[0] = &pin;
    params[1] = &pout;
    snprintf(name, sizeof name, "t%d", n);
    CHECK_MSG(!run_ptx(m, name, 32, params, &options), ("    %s: %s\n", c->body, options.error));
    CHECK_MSG(out == c->want, ("    %s: %llx, not %llx\n", c->body, (unsigned long long)out,
                               (unsigned long long)c->want));
}

static void test_table(const char *name, const opcode_case *cases, size_t count)
{
    size_t room = 1000 * count + 1000, i;
    char *text = (char *)malloc(room), error[512];
    ptx_module *m;
    TEST(name);
    strcpy(text, header);
    for (i = 0; i < count; i++) append_case(text, room, (int)i, &cases[i]);
    m = ptx_load(text, error, sizeof error);
    CHECK_MSG(m != NULL, ("    %s\n", error));
    for (i = 0; i < count && m; i++) run_case(m, (int)i, &cases[i]);
    ptx_free(m);
    free(text);
}

#define TABLE(name, cases) test_table(name, cases, sizeof cases / sizeof cases[0])

/* -- a kernel whose 32 (or more) lanes load one word each and store up to 4 -- */

/* %s: the body, with registers a (the lane's word), d0 .. d3 to be stored, t (the thread), s (4 t, a shared address),
   and 4 KB of shared memory `room`. */
static const char lanes_kernel[] =
    ".visible .entry lanes(.param .u64 in, .param .u64 out)\n{\n"
    ".shared .align 16 .b8 room[4096];\n.local .align 4 .b8 own[16];\n"
    ".reg .pred p, q; .reg .b32 a, b, c, d0, d1, d2, d3, t, s; .reg .b64 I, O, T, L;\n"
    "mov.u32 t, %%tid.x; shl.b32 s, t, 2; mov.u32 d0, 0; mov.u32 d1, 0; mov.u32 d2, 0; mov.u32 d3, 0;\n"
    "ld.param.u64 I, [in]; ld.param.u64 O, [out]; mul.wide.u32 T, t, 4; add.u64 I, I, T; ld.global.u32 a, [I];\n"
    "%s\n"
    "mad.wide.u32 O, t, 16, O; st.global.v4.u32 [O], {d0, d1, d2, d3};\nret;\n}\n";

/* The result of ptx_launch; the text may also be refused: then error starts with "load: ". */
static int run_lanes(const char *body, unsigned threads, const uint32_t *in, uint32_t (*out)[4], char *error)
{
    static char text[16384];
    ptx_options options;
    ptx_module *m;
    void *params[2];
    int result = -1;
    memset(&options, 0, sizeof options);
    options.check_races = 1;
    options.limit = 1000000;
    params[0] = (void *)&in;
    params[1] = (void *)&out;
    strcpy(text, header);
    snprintf(text + strlen(text), sizeof text - strlen(text), lanes_kernel, body);
    strcpy(error, "load: ");
    m = ptx_load(text, error + 6, 500);
    if (!m) return -1;
    options.order = 0;
    result = run_ptx(m, "lanes", threads, params, &options);
    snprintf(error, sizeof options.error, "%s", options.error);
    ptx_free(m);
    return result;
}

static void lanes_pass(const char *body, unsigned threads, const uint32_t *in, uint32_t (*out)[4])
{
    char error[512];
    memset(out, 0xee, threads * sizeof *out);
    CHECK_MSG(!run_lanes(body, threads, in, out, error), ("    %s: %s\n", body, error));
}

static uint32_t lane_in[256], lane_out[256][4];

static void test_warp(void)
{
    uint32_t i, top = 0, low = 0xffffffffu, all = 0xffffffffu, any = 0, sum = 0, odd = 0;
    test_random random = {5};
    TEST("shfl, vote, redux, match of lanes");
    for (i = 0; i < 32; i++) {
        lane_in[i] = random_u32(&random);
        top = lane_in[i] > top ? lane_in[i] : top;
        low = lane_in[i] < low ? lane_in[i] : low;
        all &= lane_in[i];
        any |= lane_in[i];
        sum += lane_in[i];
        odd |= (lane_in[i] & 1) << i;
    }
    lanes_pass("shfl.sync.bfly.b32 d0|p, a, 5, 31, -1; selp.u32 d3, 1, 0, p; shfl.sync.up.b32 d1|p, a, 3, 0, -1;\n"
               "selp.u32 d2, 1, 0, p;", 32, lane_in, lane_out);
    for (i = 0; i < 32; i++) {
        CHECK(lane_out[i][0] == lane_in[i ^ 5] && lane_out[i][3] == 1);
        CHECK(lane_out[i][1] == lane_in[i < 3 ? i : i - 3] && lane_out[i][2] == (i >= 3));
    }
    lanes_pass("shfl.sync.down.b32 d0, a, 1, 0x181f, 0xffffffff; shfl.sync.idx.b32 d1, a, 9, 31, -1;\n"
               "and.b32 b, a, 1; setp.ne.u32 p, b, 0; vote.sync.ballot.b32 d2, p, -1; vote.sync.any.pred q, p, -1;\n"
               "selp.u32 d3, 1, 0, q;", 32, lane_in, lane_out);
    for (i = 0; i < 32; i++) {   /* segments of 8 lanes */
        CHECK(lane_out[i][0] == lane_in[i % 8 == 7 ? i : i + 1] && lane_out[i][1] == lane_in[9]);
        CHECK(lane_out[i][2] == odd && lane_out[i][3] == (odd != 0));
    }
    lanes_pass("redux.sync.max.u32 d0, a, -1; redux.sync.min.u32 d1, a, -1; redux.sync.and.b32 d2, a, -1;\n"
               "redux.sync.or.b32 d3, a, -1;", 32, lane_in, lane_out);
    CHECK(lane_out[7][0] == top && lane_out[7][1] == low && lane_out[7][2] == all && lane_out[7][3] == any);
    lanes_pass("redux.sync.add.u32 d0, a, -1; redux.sync.max.s32 d1, a, -1; setp.lt.u32 p, t, 4;\n"
               "@p redux.sync.add.s32 d2, 3, 15; vote.sync.all.pred q, p, -1; selp.u32 d3, 1, 0, q;",
               32, lane_in, lane_out);
    CHECK(lane_out[3][0] == sum && lane_out[3][2] == 12 && lane_out[4][2] == 0 && lane_out[3][3] == 0);
    for (low = 0x80000000u, i = 0; i < 32; i++) low = (int32_t)lane_in[i] > (int32_t)low ? lane_in[i] : low;
    CHECK(lane_out[9][1] == low);
}

/* 16-byte rows through ldmatrix, and products of integers and of halves, against plain loops. */
static void test_matrices(void)
{
    uint32_t i;
    int e, k;
    test_random random = {6};
    uint16_t halves[512];
    TEST("ldmatrix, mma");
    for (i = 0; i < 256; i++) lane_in[i] = random_u32(&random);
    memcpy(halves, lane_in, sizeof halves);
    lanes_pass("mov.u32 b, room; add.u32 b, b, s; st.shared.u32 [b], a; bar.sync 0;\n"
               "and.b32 c, t, 31; shl.b32 c, c, 4; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {d0, d1, d2, d3}, [c];\n"
               "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {d2, d3}, [c];", 256, lane_in, lane_out);
    for (i = 0; i < 32; i++) {   /* matrix i of 8 x 8 is 64 halves in a row */
        uint32_t row = i / 4, column = i % 4 * 2;
        CHECK(lane_out[i][1] == (halves[64 + row * 8 + column] | (uint32_t)halves[64 + row * 8 + column + 1] << 16));
        CHECK(lane_out[i][3] == (halves[64 + column * 8 + row] | (uint32_t)halves[64 + column * 8 + 8 + row] << 16));
    }
    lanes_pass("shfl.sync.idx.b32 b, a, 3, 31, -1;\n"
               "mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32 {d0, d1}, {a}, {b}, {t, 7};", 32, lane_in, lane_out);
    for (i = 0; i < 32; i++)
        for (e = 0; e < 2; e++) {
            int want = e ? 7 : (int)i;
            for (k = 0; k < 16; k++)
                want += (int8_t)(lane_in[i / 4 * 4 + (uint32_t)k / 4] >> 8 * (k % 4)) *
                    (int)(lane_in[3] >> 8 * (k % 4) & 255);
            CHECK((int)lane_out[i][e] == want);
        }
    lanes_pass("mov.b32 b, 0x3c003c00; mov.b32 c, 0x40004000;   // 1, 2\n"
               "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d0, d1, d2, d3},\n"
               "{b, c, b, b}, {b, b}, {d0, d0, d0, d0};",
               32, lane_in, lane_out);
    CHECK(lane_out[5][0] == 0x41800000 && lane_out[5][2] == 0x41c00000);   /* 16, and 8 x 2 + 8 */
    lanes_pass("mov.b32 b, 0x3f803f80; mov.b32 c, 0x40004000;\n"
               "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {d0, d1, d2, d3},\n"
               "{b, c, b, b}, {b, b}, {c, c, c, c};",
               32, lane_in, lane_out);
    lanes_pass("mov.b32 b, 0x3c003c00; mov.b32 c, 0x40004000;\n"
               "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {d0, d1, d2, d3}, {b, c}, {b}, {d0, d0, d0, d0};",
               32, lane_in, lane_out + 64);
    CHECK(lane_out[64][0] == 0x41000000 && lane_out[95][3] == 0x41800000);   /* 8, and 8 x 2 */
    CHECK(lane_out[5][1] == 0x41900801 || lane_out[5][1] == 0x41900800);   /* 16 + 2.0019... */
}

static void test_memory(void)
{
    uint32_t i;
    TEST("loads, stores, atomics, cp.async, generic addresses");
    for (i = 0; i < 256; i++) lane_in[i] = i * 0x01010101u;
    lanes_pass("mov.u32 b, room; add.u32 b, b, s; st.shared.u32 [b], a; bar.sync 0; xor.b32 b, b, 128;\n"
               "ld.shared.u32 d0, [b]; ld.shared.u8 d1, [b+1]; ld.shared.s8 d2, [b]; ld.shared.u16 d3, [b+2];",
               64, lane_in, lane_out);
    for (i = 0; i < 64; i++) {
        CHECK(lane_out[i][0] == lane_in[i ^ 32] && lane_out[i][1] == (i ^ 32));
        CHECK(lane_out[i][2] == (i ^ 32) && lane_out[i][3] == (i ^ 32) * 0x101);
    }
    lanes_pass("mov.u64 L, own; cvta.local.u64 L, L; st.u32 [L+4], a; ld.local.u32 d0, [own+4];\n"
               "mov.u32 b, room; cvt.u64.u32 T, b; cvta.shared.u64 T, T; mad.wide.u32 T, t, 4, T; st.u32 [T], a;\n"
               "ld.shared.u32 d1, [s]; atom.exch.b32 d2, [T], 9; ld.u32 d3, [T];", 32, lane_in, lane_out);
    for (i = 0; i < 32; i++) {
        CHECK(lane_out[i][0] == lane_in[i] && lane_out[i][1] == lane_in[i]);
        CHECK(lane_out[i][2] == lane_in[i] && lane_out[i][3] == 9);
    }
    lanes_pass("setp.eq.u32 p, t, 0; @p st.shared.u32 [room], 0; @p st.shared.f32 [room+4], 0f3F800000;\n"
               "@p st.shared.u32 [room+8], 5; @p st.shared.u32 [room+12], 0; bar.sync 0;\n"
               "atom.shared.add.u32 d0, [room], 1; red.shared.add.f32 [room+4], 0f40000000;\n"
               "atom.shared.max.s32 d1, [room+8], t; atom.shared.cas.b32 d2, [room+12], t, 77; bar.sync 0;\n"
               "ld.shared.u32 d0, [room]; ld.shared.u32 d1, [room+4]; ld.shared.u32 d2, [room+8];\n"
               "ld.shared.u32 d3, [room+12];", 64, lane_in, lane_out);
    CHECK(lane_out[9][0] == 64 && lane_out[9][1] == 0x43010000 && lane_out[9][2] == 63 && lane_out[9][3] == 77);
    lanes_pass("shl.b32 b, t, 4; ld.param.u64 I, [in]; mul.wide.u32 T, t, 16; add.u64 I, I, T;\n"
               "cp.async.cg.shared.global [b], [I], 16; cp.async.commit_group;\n"
               "cp.async.ca.shared.global [b+1024], [I], 4, 0; cp.async.commit_group;\n"
               "cp.async.wait_group 1; ld.shared.v2.u32 {d0, d1}, [b];\n"
               "cp.async.wait_all; ld.shared.u32 d2, [b+1024];", 64, lane_in, lane_out);
    for (i = 0; i < 64; i++)
        CHECK(lane_out[i][0] == lane_in[4 * i] && lane_out[i][1] == lane_in[4 * i + 1] && lane_out[i][2] == 0);
    lanes_pass("ld.const.v2.u32 {d0, d1}, [table]; mov.u64 T, bytes; cvta.global.u64 T, T; ld.u8 d2, [T+2];\n"
               "ld.global.u16 d3, [bytes+4];", 32, lane_in, lane_out);
    CHECK(lane_out[0][0] == 7 && lane_out[0][1] == 0xffffffffu && lane_out[0][2] == 3 && lane_out[0][3] == 0x605);
}

/* -- what must be refused or reported -- */

typedef struct fault_case { const char *body, *words; } fault_case;

static const fault_case load_faults[] = {
    {"frobnicate.b32 d0, a;", "unknown opcode frobnicate"},
    {"add.cc.u32 d0, a, b;", "modifier .cc"},
    {"add.rz.f16x2 d0, a, b;", "modifier .rz"},
    {"add.b32 d0, a, b;", "not with this type"},
    {"add.u32 d0, a;", "operands"},
    {"mov.u32 d0, nowhere;", "neither a register"},
    {"mov.u32 d0, %smid;", "neither a register"},
    {"bra elsewhere;", "no label elsewhere"},
    {"@z mov.u32 d0, a;", "no predicate z"},
    {"{ .reg .b32 inner; } mov.u32 d0, inner;", "neither a register"},
    {"call helper;", "no function helper"},
    {"call (d0), twice, (a);", "parameters"},
    {"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {d0}, {d0}, {d0}, {d0};", "mma"},
    {"mma.sync.aligned.m16n8k32.row.col.s32.s8.f16.s32 {d0, d1, d2, d3}, {a, a, a, a}, {a, a}, {a, a, a, a};", "types"},
    {"mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {d0, d1, d2, d3}, {a, a, a}, {a, a}, {a, a, a, a};", "operands"},
    {"cvt.rz.f32.f64 d0, I;", "rounding"},
    {"cvt.s32.f32 d0, a;", "without .r?i"},
    {"setp.s32 p, a, b;", "comparison"},
    {"ld.global.v4.u32 {d0, d1}, [I];", "operands"},
    {"atom.global.u32 d0, [I], a;", "without an operation"},
    {"bar.sync 0, 64;", "operands"},
    {".maxnreg 3;", "directive"},
    {"mov.u32 d0, a", "neither"}
};

static const fault_case run_faults[] = {
    {"st.shared.u32 [s], a; ld.shared.u32 d0, [s+4];", "never written"},
    {"st.shared.u32 [s], a; xor.b32 b, s, 128; bar.warp.sync -1; setp.lt.u32 p, t, 32;\n"
     "@p bra out; ld.shared.u32 d0, [b]; out:", "race"},
    {"st.shared.u32 [s], a; xor.b32 b, s, 4; shfl.sync.idx.b32 c, a, 0, 31, -1; ld.shared.u32 d0, [b];", "race"},
    {"st.shared.u32 [s], a; bar.sync 0; xor.b32 b, s, 128; ld.shared.u32 d0, [b]; st.shared.u32 [s], t;", "race"},
    {"atom.shared.add.u32 d0, [room], 1;", "never written"},
    {"setp.eq.u32 p, t, 0; @p st.shared.u32 [room], 0; bar.sync 0; atom.shared.add.u32 d0, [room], 1;\n"
     "ld.shared.u32 d1, [room];", "race"},
    {"st.shared.u32 [s+4000], a;", "shared memory has 4096"},
    {"ld.shared.u32 d0, [s+2];", "not aligned"},
    {"ld.global.v2.u32 {d0, d1}, [I];", "not aligned"},
    {"ld.local.u32 d0, [own];", "local memory that was never"},
    {"st.local.u32 [own+16], a;", "outside local"},
    {"setp.eq.u32 p, t, 5; @p bar.sync 0; @!p bar.sync 0;", "different barriers"},
    {"setp.eq.u32 p, t, 5; @p ret; bar.sync 0;", "have returned"},
    {"setp.eq.u32 p, t, 5; @p ret; shfl.sync.idx.b32 d0, a, 0, 31, -1;", "deadlock"},
    {"setp.eq.u32 p, t, 5; @p vote.sync.ballot.b32 d0, p, -1; @!p vote.sync.ballot.b32 d0, p, -1;", "different *_sync"},
    {"vote.sync.ballot.b32 d0, p, 1;", "not in its own mask"},
    {"setp.lt.u32 p, t, 16; @p shfl.sync.bfly.b32 d0, a, 16, 31, 0xffff;", "outside the mask"},
    {"shl.b32 b, t, 4; ld.param.u64 I, [in]; cp.async.cg.shared.global [b], [I], 16;", "in flight"},
    {"shl.b32 b, t, 4; ld.param.u64 I, [in]; cp.async.cg.shared.global [b], [I], 16; cp.async.commit_group;\n"
     "cp.async.wait_group 1; ld.shared.u32 d0, [b]; cp.async.wait_all;", "before its cp.async"},
    {"again: bra again;", "limit"},
    {"trap;", "trap"}
};

static void test_faults(void)
{
    size_t i;
    char error[512];
    static uint32_t in[256] __attribute__((aligned(16)));
    TEST("loading refuses what it does not know");
    for (i = 0; i < sizeof load_faults / sizeof load_faults[0]; i++) {
        int result = run_lanes(load_faults[i].body, 64, in, lane_out, error);
        CHECK_MSG(result && !strncmp(error, "load: ", 6) && strstr(error, load_faults[i].words),
                  ("    %s: %d %s\n", load_faults[i].body, result, error));
    }
    TEST("running reports faults, with the line");
    for (i = 0; i < sizeof run_faults / sizeof run_faults[0]; i++) {
        int result = run_lanes(run_faults[i].body, 64, in, lane_out, error);
        CHECK_MSG(result && strncmp(error, "load: ", 6) && strstr(error, run_faults[i].words) &&
                  strstr(error, "PTX line"), ("    %s: %d %s\n", run_faults[i].body, result, error));
    }
}

static int inside_lane_in(void *user, uint64_t address, size_t bytes, int write)
{
    (void)user;
    return !write && address >= (uint64_t)(uintptr_t)lane_in && address + bytes <= (uint64_t)(uintptr_t)(lane_in + 256);
}

static void test_modules(void)
{
    static char text[8192];
    char error[512];
    ptx_options options;
    ptx_module *m;
    size_t bytes[2] = {0, 0};
    uint32_t *in = lane_in, (*out)[4] = lane_out;
    void *params[2];
    params[0] = &in;
    params[1] = &out;
    memset(&options, 0, sizeof options);
    TEST("modules: parameters, limits of blocks, bounds of global memory");
    strcpy(text, header);
    snprintf(text + strlen(text), sizeof text - strlen(text), lanes_kernel, "mov.u32 d0, a;");
    m = ptx_load(text, error, sizeof error);
    CHECK(m && ptx_parameters(m, "lanes", bytes) == 2 && bytes[0] == 8 && bytes[1] == 8);
    CHECK(m && ptx_parameters(m, "other", NULL) == -1);
    CHECK(m && run_ptx(m, "other", 32, params, &options) == -1 && strstr(options.error, "no kernel other"));
    CHECK(m && run_ptx(m, "lanes", 33, params, &options) == -1 && strstr(options.error, "33 threads"));
    options.inside = inside_lane_in;
    CHECK(m && run_ptx(m, "lanes", 32, params, &options) == -1 && strstr(options.error, "outside of all"));
    ptx_free(m);
    CHECK(!ptx_load("no such thing", error, sizeof error) && strstr(error, "not PTX"));
    CHECK(!ptx_load(".version 9.0\n.entry f() { call.uni g; ret; }", error, sizeof error) &&
          strstr(error, "no function"));
    CHECK(!ptx_load(".version 9.0\n.entry f() { ret;", error, sizeof error) && strstr(error, "inside a kernel"));
    m = ptx_load(".version 9.0\n.entry f()\n.maxntid 64, 1, 1\n.minnctapersm 2\n{ ret; }", error, sizeof error);
    CHECK(m && !run_ptx(m, "f", 64, NULL, &options));
    CHECK(m && run_ptx(m, "f", 96, NULL, &options) == -1 && strstr(options.error, "made for 64"));
    ptx_free(m);
}

/* -- the sample kernels, as NVRTC compiles them -- */

static ptx_module *sample_module;
static ptx_options sample_options;
static struct { uint64_t at; size_t bytes; } sample_memory[8];   /* what the kernel that runs may touch */

static int inside_sample(void *user, uint64_t address, size_t bytes, int write)
{
    int i;
    (void)user;
    (void)write;
    for (i = 0; i < 8; i++)
        if (address >= sample_memory[i].at && address + bytes <= sample_memory[i].at + sample_memory[i].bytes) return 1;
    return 0;
}

static void launch_in_ptx(const char *name, const unsigned grid[3], const unsigned block[3], size_t dynamic,
                          void **params)
{
    const sample_entry *entry = sample_find(name);
    ptx_size g, b;
    int i;
    memset(sample_memory, 0, sizeof sample_memory);
    for (i = 0; i < 8 && entry->bytes[i]; i++) {
        if (!sample_bytes(name, i)) continue;   /* a value */
        sample_memory[i].at = *(uint64_t *)params[i];
        sample_memory[i].bytes = sample_bytes(name, i);
    }
    g.x = grid[0];
    g.y = grid[1];
    g.z = grid[2];
    b.x = block[0];
    b.y = block[1];
    b.z = block[2];
    CHECK_MSG(!ptx_launch(sample_module, name, g, b, dynamic, params, &sample_options),
              ("    %s\n", sample_options.error));
}

static void test_samples(void)
{
    static const char *const archs[] = {"compute_75", "compute_80", "compute_90", "compute_100", "compute_120"};
    static const unsigned orders[] = {0, 1, 99};
    static char text[49152];
    char error[512], name[64];
    const char *why;
    size_t i, j;
    if (!nvrtc_open()) {
        SKIP("sample kernels in the PTX interpreter", "no NVRTC");
        return;
    }
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s", sample_prelude(), sample_reduce, sample_codes, sample_product,
             sample_functions, sample_words, sample_last);
    sample_options.check_races = 1;
    sample_options.inside = inside_sample;
    for (i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        char *ptx = nvrtc_compile(text, archs[i], 0, &why);
        if (!ptx && strstr(why, "invalid value")) {
            snprintf(name, sizeof name, "sample kernels for %s", archs[i]);
            SKIP(name, "this NVRTC does not know it");
            continue;
        }
        sample_module = ptx ? ptx_load(ptx, error, sizeof error) : NULL;
        TEST("NVRTC compiles the sample kernels, the interpreter loads them");
        CHECK_MSG(sample_module, ("    %s: %s\n", archs[i], ptx ? error : why));
        snprintf(name, sizeof name, "PTX interpreter, %s", archs[i]);
        for (j = 0; j < sizeof orders / sizeof orders[0] && sample_module; j++) {
            sample_options.order = orders[j];
            sample_check(launch_in_ptx, name);
        }
        ptx_free(sample_module);
        free(ptx);
    }
}

/* `test_ptx print` prints the sample kernels as one CUDA source, for other compilers. */
int main(int count, char **arguments)
{
    if (count > 1 && !strcmp(arguments[1], "print")) {
        printf("%s%s%s%s%s%s%s", sample_prelude(), sample_reduce, sample_codes, sample_product, sample_functions,
               sample_words, sample_last);
        return 0;
    }
    TABLE("opcodes of integers", integer_cases);
    TABLE("comparisons, choices, moves, branches", move_cases);
    TABLE("opcodes of floating point", float_cases);
    TABLE("conversions", convert_cases);
    test_warp();
    test_matrices();
    test_memory();
    test_faults();
    test_modules();
    test_samples();
    return test_end("test_ptx");
}
