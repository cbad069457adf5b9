// The copies of kv_swap.h where the slot lies on a GPU. The CUDA runtime is the one that the process has loaded (torch's):
// no toolkit is needed to build this, and there is one runtime and one context.
#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kv_swap.h"

namespace metasd {
namespace {

// Parts of the runtime's C interface, unchanged since CUDA 4.
using Copy2D = int (*)(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                       std::size_t height, int kind, void* stream);
using Describe = const char* (*)(int error);
constexpr int kInferKind = 4;  // cudaMemcpyDefault: by the addresses

void* loaded_runtime() {
    for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so"}) {
        if (void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return library;
    }
    return nullptr;
}

struct Runtime {
    void* const library = loaded_runtime();
    const Copy2D copy = library ? reinterpret_cast<Copy2D>(dlsym(library, "cudaMemcpy2DAsync")) : nullptr;
    const Describe describe = library ? reinterpret_cast<Describe>(dlsym(library, "cudaGetErrorString")) : nullptr;
};

}  // namespace

bool copy_tokens_cuda(const KvPages& kv, std::int64_t begin, std::int64_t end, Direction direction, void* stream) {
    static const Runtime runtime;
    if (runtime.copy == nullptr) return false;
    const std::int64_t page_bytes = kv.num_planes * kv.page_size * kv.row_bytes;
    while (begin < end) {  // one copy a page: a row of it for every plane
        const std::int64_t page = begin / kv.page_size, until = std::min(end, (page + 1) * kv.page_size);
        std::byte* in_slot = kv.slot + begin * kv.row_bytes;
        std::byte* in_page = kv.pages + kv.page_ids[static_cast<std::size_t>(page)] * page_bytes +
                             begin % kv.page_size * kv.row_bytes;
        const auto slot_pitch = static_cast<std::size_t>(kv.plane_stride);
        const auto page_pitch = static_cast<std::size_t>(kv.page_size * kv.row_bytes);
        const auto width = static_cast<std::size_t>((until - begin) * kv.row_bytes);
        const auto height = static_cast<std::size_t>(kv.num_planes);
        const int error = direction == Direction::kPark
                              ? runtime.copy(in_page, page_pitch, in_slot, slot_pitch, width, height, kInferKind, stream)
                              : runtime.copy(in_slot, slot_pitch, in_page, page_pitch, width, height, kInferKind, stream);
        if (error != 0) {
            throw std::runtime_error("copying a page of a key-value cache: " +
                                     std::string(runtime.describe ? runtime.describe(error) : "CUDA error"));
        }
        begin = until;
    }
    return true;
}

}  // namespace metasd
