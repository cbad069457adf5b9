// sample on the CPU: threads take rows, or parts of them where there are fewer rows than threads.
#include <algorithm>
#include <array>

#include "buffer.h"
#include "law_cpu.h"
#include "philox.h"
#include "thread_pool.h"

namespace metasd {
namespace {

constexpr std::int64_t kSmall = 1 << 15;  // logits; below, a second thread costs more than it helps
constexpr std::int64_t kPart = 8;         // tiles

Row row_of(const SampleArguments& a, std::int64_t b) {
    Row row{nullptr, a.logits.dtype, a.logits.vocab_size};
    row.logits = static_cast<const char*>(a.logits.data) + b * a.logits.stride_request * size_of(a.logits.dtype);
    if (a.cutoff != nullptr) row.cutoff = a.cutoff[b];
    return row;
}

std::int64_t draw_one(const SampleArguments& a, std::int64_t b, const TileKernels& kernels, TileSums sums) {
    const Row row = row_of(a, b);
    Law law = start_law(a.temperature[b]);
    finish_law(&law, row, kernels, sums);
    if (law.is_point) return law.point;
    std::array<double, 2> pair = coins(a.seed[b], a.offset[b], static_cast<std::uint32_t>(a.position[b]), CoinDomain::kDraft);
    if (a.uniform_samples != nullptr) pair = {a.uniform_samples[2 * b], a.uniform_samples[2 * b + 1]};
    return draw(law, row, kernels, sums, pair[0], pair[1]);
}

}  // namespace

void sample_cpu(const SampleArguments& a, std::int64_t* token_ids, std::int32_t num_threads,
                const TileKernels& kernels) {
    const std::int64_t tiles = num_tiles(a.logits.vocab_size);
    thread_local Buffer<double> weights;
    thread_local Buffer<float> sums;
    const auto size = static_cast<std::size_t>(tiles * a.batch_size);
    const TileSums all = {weights.reserve(size), sums.reserve(size)};
    const auto sums_of = [=](std::int64_t b) { return TileSums{all.weight + b * tiles, all.sum + b * tiles}; };
    if (a.batch_size * a.logits.vocab_size <= kSmall) num_threads = 1;
    const bool is_shared = a.batch_size < num_threads;
    const std::int64_t part = is_shared ? kPart : tiles, num_parts = (tiles + part - 1) / part;
    parallel_for(a.batch_size * num_parts, num_threads, [&](std::int64_t task) {
        const std::int64_t b = task / num_parts, first = task % num_parts * part;
        read_tiles(row_of(a, b), start_law(a.temperature[b]), kernels, {first, std::min(first + part, tiles)},
                   sums_of(b), nullptr);
        if (!is_shared) token_ids[b] = draw_one(a, b, kernels, sums_of(b));
    });
    if (!is_shared) return;
    for (std::int64_t b = 0; b < a.batch_size; ++b) token_ids[b] = draw_one(a, b, kernels, sums_of(b));
}

}  // namespace metasd
