/* One translation unit of a program that has several: ENTRY names its function, the including of oscar.h is as the
   command line says. Also compiled as C++ (unit_cpp.cpp). */
#include "oscar.h"
#include "work.h"

#ifdef __cplusplus
extern "C"
#endif
unsigned ENTRY(void);

unsigned ENTRY(void)
{
    return work();
}
