// The tile loops for one instruction set; its compiler flags stand in CMakeLists.txt.
#define METASD_TILES_NAMESPACE portable
#define METASD_TILES_LANES 4
#include "verify_tiles.inc"
