// Includes itself twice, as deep as the compiler lets it: about 2^200 files.
#if __INCLUDE_LEVEL__ < 150
#include "endless.c"
#include "endless.c"
#endif
