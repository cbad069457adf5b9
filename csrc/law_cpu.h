// One row of logits as a law: softmax(logits / temperature) over the kept logits, or a point mass.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

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

// log2(e) / temperature, bounded, so that neither 0 * inf nor inf * 0 can arise.
inline float scale_of(double temperature) {
    return static_cast<float>(std::fmin(std::fmax(1.4426950408889634 / temperature, 1e-30), 1e30));
}

inline std::int64_t num_tiles(std::int64_t vocab_size) { return (vocab_size + kTile - 1) / kTile; }

inline std::int64_t size_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

struct Row {
    const void* logits = nullptr;
    DType dtype = DType::kFloat32;
    std::int64_t vocab_size = 0;
    float cutoff = -std::numeric_limits<float>::infinity();

    const void* at(std::int64_t id) const { return static_cast<const char*>(logits) + id * size_of(dtype); }
    const void* tile(std::int64_t t) const { return at(t * kTile); }
    std::int32_t tile_size(std::int64_t t) const {
        const std::int64_t rest = vocab_size - t * kTile;
        return static_cast<std::int32_t>(rest < kTile ? rest : kTile);
    }
};

struct TileRange {
    std::int64_t first, last;  // the last is not in it
};

// What reading leaves about each tile of a row, see TileStats. `finish_law` puts the tile's weight in the place of its
// shift: what makes its exponentials relative to the row's shift.
struct TileSums {
    double* weight;  // or shift
    float* sum;
};

struct Law {
    bool is_bad = false;    // NaN or +inf seen, no support, or a temperature that is none
    bool is_point = false;  // greedy, or no support: then at id 0
    std::int64_t point = 0;
    float scale = 1.0f;   // log2(e) / temperature
    double shift = 0.0;   // probability = exp2(logit * scale - shift) / sum, of the kept ones
    double sum = 0.0;

    // From the exponentials of a tile with this weight to probabilities.
    float factor(double weight) const { return static_cast<float>(weight / sum); }
};

// A law whose row has not been read.
Law start_law(float temperature);

// Reads some tiles of a row; exponentials go to `e` (kTile floats a tile, from the row's first) unless it is null.
// Returns whether a NaN or +inf was seen. Several threads may read parts of one row.
bool read_tiles(const Row& row, const Law& law, const TileKernels& kernels, TileRange range, TileSums tiles, float* e);

// The law of a row all of whose tiles were read.
void finish_law(Law* law, const Row& row, const TileKernels& kernels, TileSums tiles);

// Natural logarithm of the probability of an id; -inf outside the vocabulary.
double log_probability(const Law& law, const Row& row, std::int64_t id, const TileKernels& kernels);

// Exponentials of one tile to `e` (n floats, rounded up to blocks; 0 beyond the row); returns the factor that makes
// probabilities of them, the same as that of the tile when it was read.
float tile_exponentials(const Law& law, const Row& row, std::int64_t tile, const TileKernels& kernels, std::int32_t n,
                        float* e);

// Two-level inverse CDF, second level: the first index whose cumulative mass exceeds u * total, among those with mass;
// the last with mass where rounding leaves none; -1 if nothing has mass. Of the first level the masses are products.
std::int64_t first_above(const float* mass, std::int64_t n, double u);

// An id of a law that is no point mass, from the coins for its tile and for the id in it. Spends tiles.sum.
std::int64_t draw(const Law& law, const Row& row, const TileKernels& kernels, TileSums tiles, double tile_coin,
                  double id_coin);

}  // namespace metasd
