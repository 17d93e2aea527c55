#define FS_ISA avx512
#include "cpu_scan.h"
