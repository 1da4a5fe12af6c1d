/* Calls the entries of the other units (FIRST, SECOND, THIRD); they must agree. */
#include <stdio.h>

unsigned FIRST(void);
unsigned SECOND(void);
unsigned THIRD(void);

int main(void)
{
    unsigned a = FIRST(), b = SECOND(), c = THIRD();
    if (a && a == b && a == c) return 0;
    printf("results %08x %08x %08x: they must be equal and not 0\n", a, b, c);
    return 1;
}
