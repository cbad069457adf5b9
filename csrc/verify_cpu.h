// The ops on the CPU: one pass over the logits, threads over rows. No torch, no Python. The contract is that of
// metasd_kernels/ops; the reference backend is its definition.
#pragma once

#include <cstdint>

#include "verify_tiles.h"

namespace metasd {

// Rows of logits: of request b and position k at data + b * stride_request + k * stride_row elements.
struct Logits {
    const void* data = nullptr;
    DType dtype = DType::kFloat32;
    std::int64_t vocab_size = 0;
    std::int64_t stride_request = 0;
    std::int64_t stride_row = 0;
};

// One value for all requests, or one each.
template <typename T>
struct PerRequest {
    T value{};
    const T* rows = nullptr;

    T operator[](std::int64_t b) const { return rows == nullptr ? value : rows[b]; }
};

// Pointers may be null where the contract lets the argument be absent. Everything but the logits is contiguous. In the
// packed form `cumulative` is set, and rows are counted through: stride_request is not used.
struct VerifyArguments {
    std::int64_t batch_size = 0;
    std::int64_t num_positions = 0;  // K of the outputs
    Logits target, draft;            // draft.data null: point masses
    const std::int64_t* draft_token_ids = nullptr;
    PerRequest<float> temperature, draft_temperature;
    const float* target_cutoff = nullptr;
    const float* draft_cutoff = nullptr;
    const std::int64_t* num_draft_tokens = nullptr;
    const std::int64_t* cumulative = nullptr;
    std::int64_t num_packed = 0;  // packed draft tokens
    const std::int64_t* draft_to_target = nullptr;
    bool is_map_sparse = false;  // one list for each draft row
    const float* reward_length = nullptr;
    bool is_block_rule = false;
    PerRequest<std::int64_t> seed, offset;
    const float* uniform_samples = nullptr;  // [B, K + 2]
    bool compute_tv = true;
};

struct VerifyResults {
    std::int64_t* output_token_ids = nullptr;     // [B, K + 1]
    std::int32_t* num_accepted_tokens = nullptr;  // [B]
    float* tv_distance = nullptr;                 // [B, K]
    float* accept_probability = nullptr;          // [B, K]
    float* expected_num_accepted = nullptr;       // [B]
    float* block_divergence = nullptr;            // [B]
    std::int32_t* status = nullptr;               // [B]
};

void verify_cpu(const VerifyArguments& arguments, const VerifyResults& results, std::int32_t num_threads,
                const TileKernels& kernels);

struct SampleArguments {
    std::int64_t batch_size = 0;
    Logits logits;
    PerRequest<float> temperature;
    const float* cutoff = nullptr;
    PerRequest<std::int64_t> seed, offset, position;
    const float* uniform_samples = nullptr;  // [B, 2]
};

void sample_cpu(const SampleArguments& arguments, std::int64_t* token_ids, std::int32_t num_threads,
                const TileKernels& kernels);

struct CutoffArguments {
    std::int64_t num_rows = 0;
    Logits logits;
    PerRequest<float> temperature;
    PerRequest<std::int64_t> top_k;
    PerRequest<float> top_p, min_p;
};

void logit_cutoff_cpu(const CutoffArguments& arguments, float* cutoff, std::int32_t num_threads,
                      const TileKernels& kernels);

}  // namespace metasd
