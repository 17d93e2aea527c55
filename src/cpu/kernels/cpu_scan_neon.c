#define FS_ISA neon
#include "cpu_scan.h"
