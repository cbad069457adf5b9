// sample on the CPU: one row a task.
#include <array>
#include <vector>

#include "law_cpu.h"
#include "philox.h"
#include "thread_pool.h"

namespace metasd {

constexpr std::int64_t kSmall = 1 << 15;  // elements; below, waking a thread costs more than it helps

void sample_cpu(const SampleArguments& a, std::int64_t* token_ids, std::int32_t num_threads,
                const TileKernels& kernels) {
    const std::int64_t tiles = num_tiles(a.logits.vocab_size);
    const std::int64_t size = a.logits.dtype == DType::kFloat32 ? 4 : 2;
    if (a.batch_size * a.logits.vocab_size <= kSmall) num_threads = 1;
    parallel_for(a.batch_size, num_threads, [&](std::int64_t b, std::int32_t) {
        Row row{static_cast<const char*>(a.logits.data) + b * a.logits.stride_request * size, a.logits.dtype,
                a.logits.vocab_size};
        if (a.cutoff != nullptr) row.cutoff = a.cutoff[b];
        std::vector<float> mass(static_cast<std::size_t>(tiles));
        const Law law = read_law(row, a.temperature[b], kernels, nullptr, nullptr, mass.data());
        if (law.is_point) {
            token_ids[b] = law.point;
            return;
        }
        std::array<double, 2> pair = coins(a.seed[b], a.offset[b], a.position, CoinDomain::kDraft);
        if (a.uniform_samples != nullptr) pair = {a.uniform_samples[2 * b], a.uniform_samples[2 * b + 1]};
        const std::int64_t tile = first_above(mass.data(), tiles, pair[0]);
        alignas(64) float p[kTile];
        tile_probabilities(law, row, tile, kernels, p);
        token_ids[b] = tile * kTile + first_above(p, kTile, pair[1]);
    });
}

}  // namespace metasd
