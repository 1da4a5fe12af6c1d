/* Names that other headers take: the complex unit, min and max of Windows and of old engines. */
#include <complex.h>
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define near
#define far
#define small char
#define interface struct
#define IN
#define OUT
#define OSCAR_IMPLEMENTATION
#include "oscar.h"

int main(void)
{
    return oscar_version() != OSCAR_VERSION;
}
