// The vectorised inner loops of the CPU ops: the same source compiled for several instruction sets, chosen at run time. All
// give the same bits; the sums of mass_above alone differ by rounding. No torch, no Python.
#pragma once

#include <cstdint>

namespace metasd {

// Ids in one tile of the final draw; part of the coin contract (metasd_kernels.outputs.TILE).
constexpr std::int32_t kTile = 1024;

// Loops run over blocks of 32: float arrays below hold n rounded up to blocks, and start at multiples of 64 bytes.
constexpr std::int32_t kBlock = 32;

template <typename Integer>
constexpr Integer round_up(Integer n) {
    return (n + (kBlock - 1)) / kBlock * kBlock;
}

// One pass of `mass_above` tells that many intervals and one apart.
constexpr std::int32_t kThresholds = 7;

enum class DType : std::int32_t { kBFloat16 = 0, kFloat16 = 1, kFloat32 = 2 };

struct TileStats {
    double shift;       // the largest kept logit, or what exponentials are relative to
    float sum;          // of the exponentials, exp2(x * scale - shift), over the kept logits; 0 if there are none
    bool has_unusable;  // a NaN or +inf was seen; it counts as -inf
};

// "Kept" are the logits at or above the cutoff. Logits are read as they lie in memory, n of them and none behind.
struct TileKernels {
    const char* name;

    // Exponentials of the kept logits of one tile; they go to `e` unless it is null, 0 where not kept and beyond n.
    // scale = log2(e) / temperature. The shift is chosen so that the largest has an exponent below 64.
    TileStats (*exponentials)(const void* logits, DType dtype, std::int32_t n, float cutoff, float scale, float* e);

    // Largest kept logit of one tile; -inf if there are none.
    TileStats (*maximum)(const void* logits, DType dtype, std::int32_t n, float cutoff);

    // Logits of one tile as float32 to `x`; NaN, +inf and those not kept become -inf, as what is beyond n. Returns the
    // largest. There is no -0 among them.
    float (*convert)(const void* logits, DType dtype, std::int32_t n, float cutoff, float* x);

    // Logits of one tile as float32 to `x`, as they are.
    void (*convert_raw)(const void* logits, DType dtype, std::int32_t n, float* x);

    // sum_i max(a_i - ratio * b_i, 0) over one tile; the terms go to `out` unless it is null.
    float (*excess)(const float* a, const float* b, float ratio, std::int32_t n, float* out);

    // w_i = exp2((x_i - max) * scale), for x_i of at most max. Returns their sum, right if x holds -inf beyond n.
    double (*weights)(const float* x, std::int64_t n, float max, float scale, float* w);

    // The smallest x_i that is at least `least` and not -inf; +inf if there is none. Beyond n, x holds -inf.
    float (*smallest)(const float* x, std::int64_t n, float least);

    // sums[j] += sum of mass_i (null: 1 each) over x_i >= thresholds[j], for kThresholds of them. Beyond n, x holds -inf.
    void (*mass_above)(const float* x, const float* mass, std::int64_t n, const float* thresholds, double* sums);

    // What lies in [from, to) and its mass (null: none), to memory that may be the same; returns how many. Beyond n, x
    // holds -inf, which is below `from`.
    std::int64_t (*compress)(const float* x, const float* mass, std::int64_t n, float from, float to, float* kept_x,
                             float* kept_mass);
};

// The fastest set that this processor has.
const TileKernels& tile_kernels();

// By name ("portable", "avx2", "avx512"), or null if this processor or this build lacks it; for tests.
const TileKernels* tile_kernels_named(const char* name);

}  // namespace metasd
