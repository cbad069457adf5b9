// The tile loops for one instruction set; its compiler flags stand in CMakeLists.txt.
#define METASD_TILES_NAMESPACE avx2
#define METASD_TILES_LANES 8
#define METASD_TILES_AVX2
#include "verify_tiles.inc"
