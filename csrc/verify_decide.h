// Deciding of verify: from what was read to the outputs of a request.
#pragma once

#include "verify_state.h"

namespace metasd {

// s before each position of the block rule: s_0 = 1, s_i = min(s_{i-1} p / q, 1).
void fill_weights(const VerifyState& s, std::int64_t b);

// All outputs of one request. Requests may be decided by different threads.
void decide(VerifyState& s, std::int64_t b);

}  // namespace metasd
