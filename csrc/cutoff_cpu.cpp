// Top-k, top-p and min-p as one number, without a sort: the answer is the smallest value such that what lies strictly
// above it is still below the limit, and it is found digit by digit of the value's bits.
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "law_cpu.h"
#include "thread_pool.h"

namespace metasd {
namespace {

constexpr int kDigitBits = 8;
constexpr std::size_t kDigits = 1 << kDigitBits;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Unsigned integers in the order of the floats.
std::uint32_t to_key(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

float from_key(std::uint32_t key) { return std::bit_cast<float>(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

// The smallest of the values v with weight(> v) < limit, where weight adds up what `weight_of` gives. Values of -inf are
// passed over; there is at least one other.
template <typename WeightOf>
float smallest_within(const std::vector<float>& x, double limit, const WeightOf& weight_of) {
    std::uint32_t prefix = 0, mask = 0;
    double above = 0.0;
    for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
        std::array<double, kDigits> weight{};
        std::array<bool, kDigits> is_present{};
        for (std::size_t i = 0; i < x.size(); ++i) {
            if (x[i] == kMinusInf) continue;
            const std::uint32_t key = to_key(x[i]);
            if ((key & mask) != prefix) continue;
            const std::size_t digit = (key >> shift) & (kDigits - 1);
            weight[digit] += weight_of(i);
            is_present[digit] = true;
        }
        std::size_t chosen = kDigits;
        double seen = above;
        for (std::size_t digit = kDigits; digit-- > 0;) {
            if (!is_present[digit]) continue;
            if (chosen < kDigits && !(seen < limit)) break;  // the largest value is within, whatever the limit
            chosen = digit;
            above = seen;
            seen += weight[digit];
        }
        prefix |= static_cast<std::uint32_t>(chosen) << shift;
        mask |= static_cast<std::uint32_t>(kDigits - 1) << shift;
    }
    return from_key(prefix);
}

float row_cutoff(const CutoffArguments& a, std::int64_t row, const TileKernels& kernels, std::vector<float>& x,
                 std::vector<float>& e) {
    const std::int64_t vocab_size = a.logits.vocab_size;
    const std::int64_t size = a.logits.dtype == DType::kFloat32 ? 4 : 2;
    const Row source{static_cast<const char*>(a.logits.data) + row * a.logits.stride_request * size, a.logits.dtype,
                     vocab_size};
    x.resize(static_cast<std::size_t>(num_tiles(vocab_size) * kTile));
    for (std::int64_t t = 0; t < num_tiles(vocab_size); ++t) {
        kernels.convert(source.tile(t), source.dtype, source.tile_size(t), kMinusInf, x.data() + t * kTile);
    }
    x.resize(static_cast<std::size_t>(vocab_size));
    float largest = kMinusInf;
    for (const float value : x) largest = std::fmax(largest, value);
    const float temperature = a.temperature[row];
    if (largest == kMinusInf || !(temperature > 0.0f)) return largest;

    float cutoff = kMinusInf;
    const std::int64_t top_k = a.top_k[row];
    if (top_k >= 1 && top_k < vocab_size) {
        cutoff = smallest_within(x, static_cast<double>(top_k), [](std::size_t) { return 1.0; });
    }
    const auto drop = [&] {
        for (float& value : x) value = value >= cutoff ? value : kMinusInf;
    };
    const float top_p = a.top_p[row];
    if (top_p < 1.0f) {
        drop();
        e.resize(x.size());
        double total = 0.0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            e[i] = x[i] == kMinusInf ? 0.0f : std::exp((x[i] - largest) / temperature);
            total += e[i];
        }
        cutoff = smallest_within(x, static_cast<double>(top_p) * total, [&](std::size_t i) { return e[i]; });
    }
    const float min_p = a.min_p[row];
    if (min_p > 0.0f) cutoff = std::fmax(cutoff, largest + temperature * std::log(min_p));
    float smallest = largest;
    for (const float value : x) {
        if (value >= cutoff && value < smallest && value > kMinusInf) smallest = value;
    }
    return smallest;
}

}  // namespace

void logit_cutoff_cpu(const CutoffArguments& a, float* cutoff, std::int32_t num_threads, const TileKernels& kernels) {
    parallel_for(a.num_rows, num_threads, [&](std::int64_t row, std::int32_t) {
        thread_local std::vector<float> x, e;
        cutoff[row] = row_cutoff(a, row, kernels, x, e);
    });
}

}  // namespace metasd
