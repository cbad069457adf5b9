// Where the rows, ids, maps and coins of a request lie, padded or packed, and how far its block may go.
#pragma once

#include <algorithm>

#include "law_cpu.h"
#include "philox.h"

namespace metasd {

class Layout {
  public:
    explicit Layout(const VerifyArguments& a) : a_(a), rows_(a.num_positions + 1) {}

    Row target_row(std::int64_t b, std::int64_t k) const {
        const std::int64_t index = a_.cumulative == nullptr ? b * rows_ + k : a_.cumulative[b] + b + k;
        Row row{address(a_.target, b, k, index), a_.target.dtype, a_.target.vocab_size};
        if (a_.target_cutoff != nullptr) row.cutoff = a_.target_cutoff[index];
        return row;
    }

    Row draft_row(std::int64_t b, std::int64_t k) const {
        const std::int64_t index = draft_index(b, k);
        Row row{address(a_.draft, b, k, index), a_.draft.dtype, a_.draft.vocab_size};
        if (a_.draft_cutoff != nullptr) row.cutoff = a_.draft_cutoff[index];
        return row;
    }

    std::int64_t token(std::int64_t b, std::int64_t k) const { return a_.draft_token_ids[draft_index(b, k)]; }

    // Target ids of the draft's ids, or null where they are the same.
    const std::int64_t* map_of(std::int64_t b, std::int64_t k) const {
        if (a_.draft_to_target == nullptr || !a_.is_map_sparse) return a_.draft_to_target;
        return a_.draft_to_target + draft_index(b, k) * a_.draft.vocab_size;
    }

    // Draft positions that the caller asks for; negative for an inert row.
    std::int64_t length(std::int64_t b) const {
        std::int64_t length = a_.num_positions;
        if (a_.cumulative != nullptr) length = a_.cumulative[b + 1] - a_.cumulative[b];
        if (a_.num_draft_tokens != nullptr) length = a_.num_draft_tokens[b];
        return std::min(length, a_.num_positions);
    }

    // Those up to the first id that is none; -1 for an inert row.
    std::int64_t limit(std::int64_t b) const {
        const std::int64_t asked = length(b);
        for (std::int64_t k = 0; k < asked; ++k) {
            if (token(b, k) < 0 || token(b, k) >= a_.target.vocab_size) return k;
        }
        return std::max<std::int64_t>(asked, -1);
    }

  private:
    std::int64_t draft_index(std::int64_t b, std::int64_t k) const {
        return a_.cumulative == nullptr ? b * a_.num_positions + k : a_.cumulative[b] + k;
    }

    const void* address(const Logits& logits, std::int64_t b, std::int64_t k, std::int64_t packed_row) const {
        const std::int64_t element = a_.cumulative == nullptr ? b * logits.stride_request + k * logits.stride_row
                                                              : packed_row * logits.stride_row;
        return static_cast<const char*>(logits.data) + element * size_of(logits.dtype);
    }

    const VerifyArguments& a_;
    std::int64_t rows_;
};

// The coins of a request, injected or from Philox.
class CoinSource {
  public:
    explicit CoinSource(const VerifyArguments& a) : a_(a), width_(a.num_positions + 2) {}

    double accept(std::int64_t b, std::int64_t k) const {
        if (a_.uniform_samples != nullptr) return a_.uniform_samples[b * width_ + k];
        return coins(a_.seed[b], a_.offset[b], static_cast<std::uint32_t>(k), CoinDomain::kAccept)[0];
    }

    // For the tile and for the id of the recovered or bonus token.
    std::array<double, 2> final(std::int64_t b) const {
        if (a_.uniform_samples == nullptr) return coins(a_.seed[b], a_.offset[b], 0, CoinDomain::kFinal);
        const float* row = a_.uniform_samples + b * width_;
        return {row[a_.num_positions], row[a_.num_positions + 1]};
    }

  private:
    const VerifyArguments& a_;
    std::int64_t width_;
};

}  // namespace metasd
