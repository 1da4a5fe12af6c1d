/* oscar_cuda.h as a user's one file has it: a plain include first, then the implementation, twice. With OSCAR_STATIC
   and ONE_CALL also a program in which one function is called; with CROWDED after headers that take names. */
#if defined(CROWDED)
#  define near
#  define far
#  define small char
#  define interface struct
#  define IN
#  define OUT
#  define min(a, b) ((a) < (b) ? (a) : (b))
#  define max(a, b) ((a) > (b) ? (a) : (b))
#endif
#if !defined(OSCAR_STATIC)
#  include "oscar_cuda.h"
#endif
#define OSCAR_IMPLEMENTATION
#include "oscar_cuda.h"
#include "oscar_cuda.h"

#if defined(ONE_CALL)
int main(void)
{
    return oscar_cuda_probe(NULL, NULL) != OSCAR_ERR_ARGUMENT;
}
#endif
