// The tile loops for one instruction set; its compiler flags stand in CMakeLists.txt.
#define METASD_TILES_NAMESPACE avx512
#define METASD_TILES_LANES 16
#define METASD_TILES_AVX512
#include "verify_tiles.inc"
