// Keys<format> of every column format that has a key for each token. Included once per SIMD target by foreach_target.h;
// the guards are those of the files.
#include "index/scan/columns/keys_f16-inl.h"
#include "index/scan/columns/keys_int4-inl.h"
#include "index/scan/columns/keys_int8-inl.h"
