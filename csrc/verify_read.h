// Reading of verify: from rows of logits to laws, log ratios and residuals.
#pragma once

#include "verify_state.h"

namespace metasd {

// Reads one position with one thread: its laws, and with TV the residual for s = 1. Each logit comes from memory once:
// the exponentials wait in a cache of the processor until both laws are known.
void read_position(VerifyState& s, std::int64_t b, std::int64_t k);

// The same in parts, so that several threads can share a position: begin; read each part, on any thread; end. Parts are
// ranges of tiles that together cover [0, num_parts_tiles). The residual is then left to residual_part.
struct Flaws {
    bool target = false, draft = false;  // a NaN or +inf was seen
};
void begin_position(VerifyState& s, std::int64_t b, std::int64_t k);
Flaws read_part(const VerifyState& s, std::int64_t b, std::int64_t k, TileRange range);
void end_position(VerifyState& s, std::int64_t b, std::int64_t k, Flaws flaws);

// Whether reading and residual can be done in parts: not where the draft's ids have to be mapped.
bool is_divisible(const VerifyState& s, std::int64_t b, std::int64_t k);

// Whether a position that was read has a residual max(weight p - q, 0) that is no matter of one id.
bool has_wide_residual(const Position& position);

// The residual from the logits once more, for another weight or where it was left out: its mass in each tile of a range,
// or all of it; then the sum of the tiles. Nothing to do in the parts where the residual is not wide.
void residual_part(const VerifyState& s, std::int64_t b, std::int64_t k, float weight, TileRange range);
void residual_all(const VerifyState& s, std::int64_t b, std::int64_t k, float weight);
void end_residual(VerifyState& s, std::int64_t b, std::int64_t k, float weight);

// One tile of the residual to `out`, up to a factor.
void residual_tile(const VerifyState& s, std::int64_t b, std::int64_t k, float weight, std::int64_t tile, float* out);

// Probability that the draft's law gives to a target id.
float draft_probability(const VerifyState& s, std::int64_t b, std::int64_t k, std::int64_t target_id);

}  // namespace metasd
