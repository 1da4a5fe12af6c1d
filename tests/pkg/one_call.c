/* A static copy of which one function is called. */
#define OSCAR_STATIC
#define OSCAR_IMPLEMENTATION
#include "oscar.h"

int main(void)
{
    return oscar_bitrev(6, 3) != 3;
}
