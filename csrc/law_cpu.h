// One row of logits as a law: softmax(logits / temperature) over the kept logits, or a point mass.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "verify_cpu.h"

namespace metasd {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Below the smallest normal float, negative, NaN or infinite: the point mass at the largest logit.
inline bool is_greedy(float temperature) {
    return !(temperature >= std::numeric_limits<float>::min() && temperature < std::numeric_limits<float>::infinity());
}

// Negative, NaN or infinite: counts as 0 and sets a bit.
inline bool is_no_temperature(float temperature) {
    return !(temperature >= 0.0f && temperature < std::numeric_limits<float>::infinity());
}

inline std::int64_t num_tiles(std::int64_t vocab_size) { return (vocab_size + kTile - 1) / kTile; }

struct Row {
    const void* logits = nullptr;
    DType dtype = DType::kFloat32;
    std::int64_t vocab_size = 0;
    float cutoff = -std::numeric_limits<float>::infinity();

    const void* tile(std::int64_t t) const {
        const std::int64_t size = dtype == DType::kFloat32 ? 4 : 2;
        return static_cast<const char*>(logits) + t * kTile * size;
    }
    std::int32_t tile_size(std::int64_t t) const {
        const std::int64_t rest = vocab_size - t * kTile;
        return static_cast<std::int32_t>(rest < kTile ? rest : kTile);
    }
};

struct Law {
    bool is_bad = false;    // NaN or +inf seen, no support, or a temperature that is none
    bool is_point = false;  // greedy, or no support: then at id 0
    std::int64_t point = 0;
    double temperature = 1.0;
    double max = -kInfinity;  // largest kept logit
    double sum = 0.0;         // of exp((x - max) / temperature)

    float scale() const {  // bounded, so that neither 0 * inf nor inf * 0 can arise
        const double scale = 1.4426950408889634 / temperature;
        return static_cast<float>(std::fmin(std::fmax(scale, 1e-30), 1e30));
    }
    // Factor from the exponentials of a tile to probabilities.
    float factor(float tile_max) const {
        if (tile_max == -std::numeric_limits<float>::infinity()) return 0.0f;
        return static_cast<float>(std::exp2((tile_max - max) * scale()) / sum);
    }
};

// Reads a row once. `e` (tiles * kTile floats), `tile_max` and `tile_mass` (tiles floats each) are filled if they are not
// null: exponentials relative to the tile's maximum, that maximum, and the probability of the tile.
Law read_law(const Row& row, float temperature, const TileKernels& kernels, float* e, float* tile_max,
             float* tile_mass);

// Natural logarithm of the probability of an id; -inf outside the vocabulary.
double log_probability(const Law& law, const Row& row, std::int64_t id, const TileKernels& kernels);

// Probabilities of one tile to `p` (kTile floats).
void tile_probabilities(const Law& law, const Row& row, std::int64_t tile, const TileKernels& kernels, float* p);

// The first index whose cumulative mass exceeds u * total, among those with mass; the last with mass where rounding
// leaves none; -1 if nothing has mass.
std::int64_t first_above(const float* mass, std::int64_t n, double u);

}  // namespace metasd
