// What one call of verify knows so far: its arguments, and what reading each position left for the decision.
#pragma once

#include "buffer.h"
#include "law_cpu.h"
#include "verify_layout.h"

namespace metasd {

// Position k of a request; the last one, behind the block, has a target only.
struct Position {
    Law target, draft;
    bool has_draft = false;
    bool is_draft_point = true;      // drawn from a point mass at the draft id
    bool has_residual_tiles = false;
    double log_ratio = -kInfinity;  // log p(x) - log q(x) of the draft id
    float mass = 0.0f;              // of the residual max(s p - q, 0)
    float tv = 1.0f;                // the same with s = 1
};

struct VerifyState {
    VerifyState(const VerifyArguments& arguments, const VerifyResults& results, const TileKernels& tile_kernels)
        : a(arguments), r(results), kernels(tile_kernels), layout(arguments), coins(arguments),
          num_rows(a.num_positions + 1), target_tiles(num_tiles(a.target.vocab_size)),
          draft_tiles(a.draft.data == nullptr ? 0 : num_tiles(a.draft.vocab_size)),
          floats_per_position(2 * target_tiles + draft_tiles) {}

    std::int64_t index(std::int64_t b, std::int64_t k) const { return b * num_rows + k; }
    Position& at(std::int64_t b, std::int64_t k) const { return positions[index(b, k)]; }
    float& weight(std::int64_t b, std::int64_t k) const { return weights[index(b, k)]; }

    // What reading left of the target's tiles and of the draft's; mass of the residual in each tile of target ids.
    TileSums sums_of_target(std::int64_t b, std::int64_t k) const {
        return {tile_weights + index(b, k) * (target_tiles + draft_tiles), floats(b, k)};
    }
    TileSums sums_of_draft(std::int64_t b, std::int64_t k) const {
        return {sums_of_target(b, k).weight + target_tiles, floats(b, k) + target_tiles};
    }
    float* residual_tiles(std::int64_t b, std::int64_t k) const { return floats(b, k) + target_tiles + draft_tiles; }
    float* floats(std::int64_t b, std::int64_t k) const { return tile_floats + index(b, k) * floats_per_position; }

    const VerifyArguments& a;
    const VerifyResults& r;
    const TileKernels& kernels;
    const Layout layout;
    const CoinSource coins;
    const std::int64_t num_rows, target_tiles, draft_tiles, floats_per_position;
    std::int32_t num_threads = 1;

    // Scratch of the caller.
    Position* positions = nullptr;  // [B, K+1]
    std::int64_t* limits = nullptr;  // [B]: where the block ends as far as its ids tell; -1 for an inert row
    float* weights = nullptr;        // [B, K+1]: s before each position of the block rule
    float* tile_floats = nullptr;    // [B, K+1, floats_per_position]
    double* tile_weights = nullptr;  // [B, K+1, target_tiles + draft_tiles]
};

}  // namespace metasd
