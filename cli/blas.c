/* blas.c - a BLAS, if one is installed: loaded at run time, never needed. */
#include "machine.h"

#include <dlfcn.h>
#include <string.h>

int load_blas(blas *found) {
    static const char *const names[] = {"OpenBLAS", "BLIS"};
    static const char *const files[] = {"libopenblas.so.0", "libblis.so.4"};
    int n = 0;
    for (int i = 0; i < 2; i++) {
        void *library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
        void *symbol = library ? dlsym(library, "cblas_sgemm") : NULL;
        if (!symbol) continue;
        found[n].name = names[i];
        memcpy(&found[n].sgemm, &symbol, sizeof symbol); /* ISO C has no cast from an object pointer to a function's */
        n++;
    }
    return n;
}
