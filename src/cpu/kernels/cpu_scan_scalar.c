#define FS_ISA scalar
#include "cpu_scan.h"
