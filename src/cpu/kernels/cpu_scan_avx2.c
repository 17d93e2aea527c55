#define FS_ISA avx2
#include "cpu_scan.h"
