// The vectorised inner loops of the CPU ops, over tiles of 1024 ids: the same source compiled for several instruction
// sets, chosen at run time. No torch, no Python.
#pragma once

#include <cstdint>

namespace metasd {

// Ids in one tile of the final draw; part of the coin contract (metasd_kernels.outputs.TILE).
constexpr std::int32_t kTile = 1024;

enum class DType : std::int32_t { kBFloat16 = 0, kFloat16 = 1, kFloat32 = 2 };

struct TileStats {
    float max;        // of the kept logits; -inf if there are none
    float sum;        // of exp2((x - max) * scale) over the kept logits
    bool has_unusable;  // a NaN or +inf was seen; it counts as -inf
};

struct TileKernels {
    const char* name;

    // Largest kept logit and sum of exponentials of one tile; the exponentials go to `e` (kTile floats, zero beyond n)
    // unless it is null. scale = log2(e) / temperature.
    TileStats (*exponentials)(const void* logits, DType dtype, std::int32_t n, float cutoff, float scale, float* e);

    // Largest kept logit of one tile, without exponentials; `first` is the lowest index that has it.
    TileStats (*maximum)(const void* logits, DType dtype, std::int32_t n, float cutoff, std::int32_t* first);

    // sum_i max(a_i * fa - b_i * fb, 0) over kTile elements.
    float (*excess)(const float* a, float fa, const float* b, float fb);

    // Logits as float32 to `x`, as they are.
    void (*convert_raw)(const void* logits, DType dtype, std::int32_t n, float* x);

    // Logits as float32 to `x` (kTile floats); NaN, +inf and logits below the cutoff become -inf, as what is beyond n.
    void (*convert)(const void* logits, DType dtype, std::int32_t n, float cutoff, float* x);
};

// The fastest set that this processor has.
const TileKernels& tile_kernels();

// By name ("portable", "avx2", "avx512"), or null if this processor or this build lacks it; for tests.
const TileKernels* tile_kernels_named(const char* name);

}  // namespace metasd
