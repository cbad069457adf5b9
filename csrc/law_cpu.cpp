#include "law_cpu.h"

#include <cstring>

namespace metasd {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

void make_point(Law* law, std::int64_t id, float* tile_mass, std::int64_t tiles) {
    law->is_point = true;
    law->point = id;
    if (tile_mass != nullptr) {
        std::memset(tile_mass, 0, static_cast<std::size_t>(tiles) * sizeof(float));
        tile_mass[id / kTile] = 1.0f;
    }
}

}  // namespace

Law read_law(const Row& row, float temperature, const TileKernels& kernels, float* e, float* tile_max,
             float* tile_mass) {
    Law law;
    const std::int64_t tiles = num_tiles(row.vocab_size);
    law.is_bad = is_no_temperature(temperature);
    if (is_greedy(temperature)) {
        std::int64_t best = 0;
        for (std::int64_t t = 0; t < tiles; ++t) {
            std::int32_t first = 0;
            const TileStats stats = kernels.maximum(row.tile(t), row.dtype, row.tile_size(t), row.cutoff, &first);
            law.is_bad |= stats.has_unusable;
            if (stats.max > law.max) {
                law.max = stats.max;
                best = t * kTile + first;
            }
        }
        law.is_bad |= law.max == -kInfinity;
        make_point(&law, best, tile_mass, tiles);
        return law;
    }

    law.temperature = temperature;
    thread_local std::vector<float> maxima, sums;
    if (static_cast<std::int64_t>(sums.size()) < tiles) {
        maxima.resize(static_cast<std::size_t>(tiles));
        sums.resize(static_cast<std::size_t>(tiles));
    }
    float* max_of = tile_max != nullptr ? tile_max : maxima.data();
    for (std::int64_t t = 0; t < tiles; ++t) {
        const TileStats stats = kernels.exponentials(row.tile(t), row.dtype, row.tile_size(t), row.cutoff, law.scale(),
                                                     e == nullptr ? nullptr : e + t * kTile);
        law.is_bad |= stats.has_unusable;
        max_of[t] = stats.max;
        sums[static_cast<std::size_t>(t)] = stats.sum;
        if (stats.max > law.max) law.max = stats.max;
    }
    if (law.max == -kInfinity) {
        law.is_bad = true;
        make_point(&law, 0, tile_mass, tiles);
        return law;
    }
    for (std::int64_t t = 0; t < tiles; ++t) {
        if (max_of[t] == kMinusInf) continue;
        law.sum += std::exp2((max_of[t] - law.max) * law.scale()) * sums[static_cast<std::size_t>(t)];
    }
    if (tile_mass != nullptr) {
        for (std::int64_t t = 0; t < tiles; ++t) {
            tile_mass[t] = law.factor(max_of[t]) * sums[static_cast<std::size_t>(t)];
        }
    }
    return law;
}

double log_probability(const Law& law, const Row& row, std::int64_t id, const TileKernels& kernels) {
    if (law.is_point) return id == law.point ? 0.0 : -kInfinity;
    if (id < 0 || id >= row.vocab_size) return -kInfinity;
    alignas(64) float x[kTile];
    const std::int64_t size = row.dtype == DType::kFloat32 ? 4 : 2;
    kernels.convert(static_cast<const char*>(row.logits) + id * size, row.dtype, 1, row.cutoff, x);
    if (x[0] == kMinusInf) return -kInfinity;
    return (x[0] - law.max) / law.temperature - std::log(law.sum);
}

void tile_probabilities(const Law& law, const Row& row, std::int64_t tile, const TileKernels& kernels, float* p) {
    if (law.is_point || tile >= num_tiles(row.vocab_size)) {
        std::memset(p, 0, kTile * sizeof(float));
        if (law.is_point && law.point / kTile == tile) p[law.point % kTile] = 1.0f;
        return;
    }
    const TileStats stats =
        kernels.exponentials(row.tile(tile), row.dtype, row.tile_size(tile), row.cutoff, law.scale(), p);
    const float factor = law.factor(stats.max);
    for (std::int32_t i = 0; i < kTile; ++i) p[i] *= factor;
}

std::int64_t first_above(const float* mass, std::int64_t n, double u) {
    double total = 0.0, cumulative = 0.0;
    for (std::int64_t i = 0; i < n; ++i) total += mass[i];
    std::int64_t last = -1;
    for (std::int64_t i = 0; i < n; ++i) {
        if (!(mass[i] > 0.0f)) continue;
        cumulative += mass[i];
        last = i;
        if (cumulative > u * total) return i;
    }
    return last;
}

}  // namespace metasd
