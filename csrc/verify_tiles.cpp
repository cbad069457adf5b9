// Chooses among the instruction sets that were built and that this processor has.
#include "verify_tiles.h"

#include <cstring>
#include <initializer_list>

namespace metasd {

namespace portable {
TileKernels kernels(const char* name);
}
#ifdef METASD_X86
namespace avx2 {
TileKernels kernels(const char* name);
}
namespace avx512 {
TileKernels kernels(const char* name);
}
#endif

const TileKernels* tile_kernels_named(const char* name) {
#ifdef METASD_X86
    static const TileKernels with_avx512 = avx512::kernels("avx512");
    static const TileKernels with_avx2 = avx2::kernels("avx2");
    if (std::strcmp(name, "avx512") == 0) {
        const bool here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        return here ? &with_avx512 : nullptr;
    }
    if (std::strcmp(name, "avx2") == 0) {
        const bool here = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        return here ? &with_avx2 : nullptr;
    }
#endif
    static const TileKernels without = portable::kernels("portable");
    return std::strcmp(name, "portable") == 0 ? &without : nullptr;
}

const TileKernels& tile_kernels() {
    static const TileKernels& best = []() -> const TileKernels& {
        for (const char* name : {"avx512", "avx2"}) {
            if (const TileKernels* kernels = tile_kernels_named(name)) return *kernels;
        }
        return *tile_kernels_named("portable");
    }();
    return best;
}

}  // namespace metasd
