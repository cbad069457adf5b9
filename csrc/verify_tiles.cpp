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

// Even the function that lists the loops of a set may hold its instructions: ask the processor before calling it.
const TileKernels* tile_kernels_named(const char* name) {
#ifdef METASD_X86
    __builtin_cpu_init();  // some runtime libraries leave it to the caller
    if (std::strcmp(name, "avx512") == 0 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        static const TileKernels with_avx512 = avx512::kernels("avx512");
        return &with_avx512;
    }
    if (std::strcmp(name, "avx2") == 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        static const TileKernels with_avx2 = avx2::kernels("avx2");
        return &with_avx2;
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
