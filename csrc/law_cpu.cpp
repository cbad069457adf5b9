#include "law_cpu.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace metasd {
namespace {

void make_point(Law* law, std::int64_t id) {
    law->is_point = true;
    law->point = id;
}

// The lowest id with the largest kept logit, which is the maximum of the tile.
std::int64_t first_best(const Row& row, const TileKernels& kernels, std::int64_t tile, double max) {
    alignas(64) float x[kTile];
    kernels.convert_raw(row.tile(tile), row.dtype, row.tile_size(tile), x);
    std::int64_t id = 0;
    while (x[id] != max) ++id;
    return tile * kTile + id;
}

// exp2(from - to). Shifts are integers, apart from some extreme temperatures.
double relative_weight(double from, double to) {
    const double exponent = from - to;
    if (exponent >= -1000.0 && exponent == std::floor(exponent)) {
        return std::bit_cast<double>((static_cast<std::uint64_t>(static_cast<std::int64_t>(exponent) + 1023)) << 52);
    }
    return std::exp2(exponent);
}

}  // namespace

Law start_law(float temperature) {
    Law law;
    law.is_bad = is_no_temperature(temperature);
    law.is_point = is_greedy(temperature);
    law.scale = scale_of(temperature);
    return law;
}

bool read_tiles(const Row& row, const Law& law, const TileKernels& kernels, TileRange range, TileSums tiles, float* e) {
    bool has_unusable = false;
    for (std::int64_t t = range.first; t < range.last; ++t) {
        const std::int32_t n = row.tile_size(t);
        const TileStats stats = law.is_point
                                    ? kernels.maximum(row.tile(t), row.dtype, n, row.cutoff)
                                    : kernels.exponentials(row.tile(t), row.dtype, n, row.cutoff, law.scale,
                                                           e == nullptr ? nullptr : e + t * kTile);
        tiles.weight[t] = stats.shift;
        tiles.sum[t] = stats.sum;
        has_unusable |= stats.has_unusable;
    }
    return has_unusable;
}

void finish_law(Law* law, const Row& row, const TileKernels& kernels, TileSums tiles) {
    const std::int64_t count = num_tiles(row.vocab_size);
    std::int64_t best = -1;
    for (std::int64_t t = 0; t < count; ++t) {
        const bool has_mass = law->is_point ? tiles.weight[t] > -kInfinity : tiles.sum[t] > 0.0f;
        if (has_mass && (best < 0 || tiles.weight[t] > tiles.weight[best])) best = t;
    }
    if (best < 0) {
        law->is_bad = true;
        return make_point(law, 0);
    }
    law->shift = tiles.weight[best];
    if (law->is_point) return make_point(law, first_best(row, kernels, best, law->shift));
    law->sum = 0.0;
    for (std::int64_t t = 0; t < count; ++t) {
        tiles.weight[t] = tiles.sum[t] > 0.0f ? relative_weight(tiles.weight[t], law->shift) : 0.0;
        law->sum += tiles.weight[t] * tiles.sum[t];
    }
}

double log_probability(const Law& law, const Row& row, std::int64_t id, const TileKernels& kernels) {
    if (law.is_point) return id == law.point ? 0.0 : -kInfinity;
    if (id < 0 || id >= row.vocab_size) return -kInfinity;
    // Not from the logit in double: a law with one token must give it the probability 1 exactly, whatever the rounding.
    const TileStats own = kernels.exponentials(row.at(id), row.dtype, 1, row.cutoff, law.scale, nullptr);
    if (!(own.sum > 0.0f)) return -kInfinity;
    constexpr double kLog2 = 0.69314718055994531;
    return std::log(own.sum / law.sum) + (own.shift - law.shift) * kLog2;
}

float tile_exponentials(const Law& law, const Row& row, std::int64_t tile, const TileKernels& kernels, std::int32_t n,
                        float* e) {
    const bool is_inside = tile < num_tiles(row.vocab_size);
    const std::int32_t own = is_inside ? row.tile_size(tile) : 0, filled = round_up(own);
    if (filled < n) std::memset(e + filled, 0, static_cast<std::size_t>(round_up(n) - filled) * sizeof *e);
    if (!is_inside) return 0.0f;
    const TileStats stats = kernels.exponentials(row.tile(tile), row.dtype, own, row.cutoff, law.scale, e);
    return stats.sum > 0.0f ? law.factor(relative_weight(stats.shift, law.shift)) : 0.0f;
}

std::int64_t first_above(const float* mass, std::int64_t n, double u) {
    // Sums of blocks first: one long chain of additions would take longer than reading the tile.
    constexpr std::int64_t kLanes = 8;
    const auto sum_of = [mass](std::int64_t begin, std::int64_t end) {
        double part[kLanes] = {};
        std::int64_t i = begin;
        for (; i + kLanes <= end; i += kLanes) {
            for (std::int64_t lane = 0; lane < kLanes; ++lane) part[lane] += mass[i + lane];
        }
        for (; i < end; ++i) part[0] += mass[i];
        return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    };
    double total = 0.0;
    for (std::int64_t i = 0; i < n; i += kBlock) total += sum_of(i, std::min<std::int64_t>(i + kBlock, n));
    double before = 0.0;
    for (std::int64_t begin = 0; begin < n; begin += kBlock) {
        const std::int64_t end = std::min<std::int64_t>(begin + kBlock, n);
        const double sum = sum_of(begin, end);
        if (before + sum > u * total) {
            double cumulative = before;
            for (std::int64_t i = begin; i < end; ++i) {
                cumulative += mass[i];
                if (cumulative > u * total && mass[i] > 0.0f) return i;
            }
        }
        before += sum;
    }
    for (std::int64_t i = n; i-- > 0;) {
        if (mass[i] > 0.0f) return i;
    }
    return -1;
}

std::int64_t draw(const Law& law, const Row& row, const TileKernels& kernels, TileSums tiles, double tile_coin,
                  double id_coin) {
    const std::int64_t count = num_tiles(row.vocab_size);
    for (std::int64_t t = 0; t < count; ++t) tiles.sum[t] = static_cast<float>(tiles.sum[t] * tiles.weight[t]);
    const std::int64_t tile = first_above(tiles.sum, count, tile_coin);
    alignas(64) float e[kTile];
    const std::int32_t n = row.tile_size(tile);
    tile_exponentials(law, row, tile, kernels, n, e);
    return tile * kTile + first_above(e, n, id_coin);
}

}  // namespace metasd
