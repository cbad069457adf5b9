// Top-k, top-p and min-p as one number, without a sort. The answer is the smallest value such that the mass strictly
// above it is still below the limit. It lies in one of eight intervals, told apart by one pass over the values that
// measures the mass above seven thresholds; then only the values of that interval are looked at, and so on.
#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "buffer.h"
#include "law_cpu.h"
#include "thread_pool.h"

namespace metasd {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kSmall = 1 << 14;  // logits; below, a second thread costs more than it helps
constexpr std::int64_t kFew = 64;   // values that are sorted rather than divided further
constexpr int kEvenSteps = 3;      // divisions by value; later ones halve the bits, which ends after 11 whatever comes

// Unsigned integers in the order of the floats.
std::uint32_t to_key(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

float from_key(std::uint32_t key) { return std::bit_cast<float>(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

// Values, -inf beyond n up to a block, and the mass of each (null: 1).
struct Values {
    float* x;
    float* mass;
    std::int64_t n;
};

using Thresholds = std::array<float, kThresholds>;

// Ascending, above `low` and at most `high`, so that neither the lowest nor the highest interval is empty.
Thresholds divide(float low, float high, int step) {
    Thresholds thresholds;
    const std::uint32_t least = to_key(low) + 1, most = to_key(high);
    for (std::int32_t j = 0; j < kThresholds; ++j) {
        std::uint32_t key = least + static_cast<std::uint32_t>(std::uint64_t{most - least} * (j + 1) / (kThresholds + 1));
        if (step < kEvenSteps) {
            const double share = static_cast<double>(j + 1) / (kThresholds + 1);
            key = to_key(static_cast<float>(low + (static_cast<double>(high) - low) * share));
        }
        thresholds[static_cast<std::size_t>(j)] = from_key(std::clamp(key, least, most));
    }
    return thresholds;
}

// What lies in [from, to), to the memory of `kept`, which may be that of `values`.
Values compress(const Values& values, Values kept, float from, float to, const TileKernels& kernels) {
    kept.n = kernels.compress(values.x, values.mass, values.n, from, to, kept.x, kept.mass);
    if (values.mass == nullptr) kept.mass = nullptr;
    std::fill(kept.x + kept.n, kept.x + round_up(kept.n), kMinusInf);
    return kept;
}

// smallest_within for a few values.
float smallest_of_few(const Values& values, float low, double above, double limit) {
    std::array<std::pair<float, float>, kFew> sorted;
    std::size_t n = 0;
    for (std::int64_t i = 0; i < values.n; ++i) {
        if (values.x[i] >= low) sorted[n++] = {values.x[i], values.mass == nullptr ? 1.0f : values.mass[i]};
    }
    std::sort(sorted.begin(), sorted.begin() + n, [](const auto& a, const auto& b) { return a.first > b.first; });
    float chosen = sorted[0].first;
    for (std::size_t i = 0; i < n; ++i) {
        if (sorted[i].first != chosen) {
            if (!(above < limit)) break;
            chosen = sorted[i].first;
        }
        above += sorted[i].second;
    }
    return chosen;
}

// The smallest value v in [low, high] with mass(> v) < limit, or `high` if none has; both are values, and `high` is the
// largest. `spare` is memory for as many values.
float smallest_within(Values values, Values spare, float low, float high, double limit, const TileKernels& kernels) {
    if (!(limit > 0.0)) return high;
    double above = 0.0;  // mass of the values above those that are left
    for (int step = 0; low < high; ++step) {
        if (values.n <= kFew) return smallest_of_few(values, low, above, limit);
        const Thresholds thresholds = divide(low, high, step);
        std::array<double, kThresholds> mass{};
        kernels.mass_above(values.x, values.mass, values.n, thresholds.data(), mass.data());
        std::size_t interval = 0;  // the lowest whose largest value is within
        while (interval < kThresholds && !(above + mass[interval] < limit)) ++interval;
        const float from = interval == 0 ? low : thresholds[interval - 1];
        const float to = interval == kThresholds ? std::numeric_limits<float>::infinity() : thresholds[interval];
        if (interval < kThresholds) above += mass[interval];
        values = compress(values, spare, from, to, kernels);
        high = *std::max_element(values.x, values.x + values.n);
        low = *std::min_element(values.x, values.x + values.n);
    }
    return high;
}

struct Scratch {
    Buffer<float> x, mass, spare_x, spare_mass;
};

float row_cutoff(const CutoffArguments& a, std::int64_t row, const TileKernels& kernels, Scratch& scratch) {
    const std::int64_t vocab_size = a.logits.vocab_size, tiles = num_tiles(vocab_size);
    const auto size = static_cast<std::size_t>(tiles * kTile);
    Row source{nullptr, a.logits.dtype, vocab_size};
    source.logits = static_cast<const char*>(a.logits.data) + row * a.logits.stride_request * size_of(a.logits.dtype);
    Values all{scratch.x.reserve(size), nullptr, vocab_size};
    float largest = kMinusInf;
    for (std::int64_t t = 0; t < tiles; ++t) {
        float* x = all.x + t * kTile;
        largest = std::max(largest, kernels.convert(source.tile(t), source.dtype, source.tile_size(t), kMinusInf, x));
    }
    const float temperature = a.temperature[row];
    if (largest == kMinusInf || is_greedy(temperature)) return largest;

    const Values spare{scratch.spare_x.reserve(size), scratch.spare_mass.reserve(size), 0};
    const std::int64_t top_k = a.top_k[row];
    const float top_p = a.top_p[row], min_p = a.min_p[row];
    const bool limits_number = top_k >= 1 && top_k < vocab_size;
    float cutoff = kMinusInf;
    Values left = all;
    if (limits_number || top_p < 1.0f || !(min_p > 0.0f)) cutoff = kernels.smallest(all.x, vocab_size, kMinusInf);
    if (limits_number) {
        cutoff = smallest_within(all, spare, cutoff, largest, static_cast<double>(top_k), kernels);
        left = compress(all, spare, cutoff, std::numeric_limits<float>::infinity(), kernels);
    }
    if (top_p < 1.0f) {
        left.mass = scratch.mass.reserve(size);
        const double total = kernels.weights(left.x, left.n, largest, scale_of(temperature), left.mass);
        cutoff = smallest_within(left, spare, cutoff, largest, static_cast<double>(top_p) * total, kernels);
    }
    if (!(min_p > 0.0f)) return cutoff;
    const float least = std::min(largest, largest + temperature * std::log(min_p));
    return kernels.smallest(all.x, vocab_size, std::max(cutoff, least));
}

}  // namespace

void logit_cutoff_cpu(const CutoffArguments& a, float* cutoff, std::int32_t num_threads, const TileKernels& kernels) {
    if (a.num_rows * a.logits.vocab_size <= kSmall) num_threads = 1;
    parallel_for(a.num_rows, num_threads, [&](std::int64_t row) {
        thread_local Scratch scratch;
        cutoff[row] = row_cutoff(a, row, kernels, scratch);
    });
}

}  // namespace metasd
