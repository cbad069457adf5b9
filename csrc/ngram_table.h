// Counts of an n-gram language model in flat arrays that somebody else owns (a mapped file), and its law behind a
// context. No torch, no Python.
//
// Level n holds the contexts of n tokens, sorted by a 32-bit hash; each has its continuations, the most frequent first.
// The law is interpolated from the shortest context to the longest (Witten and Bell, 1991): with c the count of a
// context and d the number of its different continuations, p_n(x) = (count(x) + d p_{n-1}(x)) / (c + d).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace metasd {

struct NgramLevel {
    std::span<const std::uint32_t> keys;    // [C], ascending
    std::span<const std::uint32_t> starts;  // [C + 1], the first continuation of each context
    std::span<const std::int32_t> ids;      // [E]
    std::span<const std::uint16_t> counts;  // [E], at least 1
};

struct NgramLaw {
    std::int32_t num_listed = 0;
    std::int32_t match_length = 0;  // tokens of the longest known context
};

class NgramTable {
  public:
    // levels[n] holds contexts of n tokens; level 0 has one context. Throws std::invalid_argument where arrays do not
    // fit together.
    explicit NgramTable(std::vector<NgramLevel> levels);

    // The law behind `context` (its last tokens count) over the listed tokens, those of the longest contexts first, at
    // most ids.size() and renormalised: writes distinct ids, the most probable first, and logarithms of their
    // probabilities. Unused slots get -1 and -inf.
    NgramLaw law(std::span<const std::int32_t> context, std::span<std::int64_t> ids, std::span<float> logits) const;

    // The same behind `context` and behind each of `token_ids`, which follow it, but the last: a row of `ids` and `logits`
    // for each of them. Returns the match lengths.
    std::vector<std::int32_t> laws(std::vector<std::int32_t> context, std::span<const std::int32_t> token_ids,
                                   std::span<std::int64_t> ids, std::span<float> logits) const;

    std::int32_t max_context() const { return static_cast<std::int32_t>(levels_.size()) - 1; }

    static std::uint32_t key(std::uint64_t state) { return static_cast<std::uint32_t>(state >> 32); }
    static std::uint64_t extend(std::uint64_t state, std::int32_t token);

  private:
    std::vector<NgramLevel> levels_;
};

}  // namespace metasd
