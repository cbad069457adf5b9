// Online suffix automaton over token ids, with occurrence counts: the suffix drafter's memory. No torch, no Python.
//
// Every state stands for a set of substrings ("contexts") that end at the same positions of the text; the longest has
// `length` tokens. A state's suffix link leads to the longest suffix of that one which also ends elsewhere, so
//   - the longest suffix of the text that occurred before is one link away from the last state, and
//   - the number of times a context was followed by token t is the count of the state that transition t leads to.
//
// Source: Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985. At most 2n states and 3n
// transitions for n tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace metasd {

struct SuffixDraft {
    std::vector<std::int32_t> token_ids;
    std::vector<double> probabilities;  // of each token, among the continuations seen at its place
    std::int32_t match_length = 0;      // of the longest suffix that occurred before, also where nothing is drafted
};

class SuffixAutomaton {
  public:
    // An append counts one occurrence for the contexts that end at the new token, longest first, and stops after this
    // many states. Natural text stays far below; in degenerate text ("aaaa...") the chain is as long as the text, and
    // without the cap n tokens would cost n^2. Beyond it the shorter contexts are under-counted; the long ones, which
    // drafts come from, stay exact.
    static constexpr int kMaxCountedStates = 256;
    // Keeps every index (3n transitions at most) inside int32.
    static constexpr std::size_t kMaxTokens = std::size_t{1} << 29;

    SuffixAutomaton();

    // Appends tokens; amortised O(1) each, plus the count update. Throws before it changes anything:
    // std::invalid_argument for a negative token, std::length_error for a text beyond kMaxTokens.
    void extend(std::span<const std::int32_t> tokens);

    // Tokens in the longest suffix of the text that also occurs earlier; 0 if there is none.
    std::int32_t match_length() const;

    // From that suffix, follows the most frequent continuation (ties: the most recent) for at most max_tokens tokens.
    // Where the path reaches the text's end, goes on from a shorter context; ends early where that is shorter than
    // min_match (>= 1).
    SuffixDraft draft(std::int32_t max_tokens, std::int32_t min_match) const;

    // (token, count) after the longest repeated suffix, cut to its last max_context tokens; most frequent first (ties:
    // the most recent). With max_context 0, or nothing repeated, these are the counts of all single tokens.
    std::vector<std::pair<std::int32_t, std::int32_t>> continuations(std::int32_t max_context) const;

    std::size_t size() const { return num_tokens_; }
    std::size_t num_states() const { return states_.size(); }
    std::size_t memory_bytes() const;
    void clear();

  private:
    static constexpr std::int32_t kNone = -1;

    struct State {
        std::int32_t length = 0;
        std::int32_t link = kNone;
        std::int32_t count = 0;           // occurrences in the text
        std::int32_t last_end = kNone;    // position of the latest one's last token
        std::int32_t first_edge = kNone;  // head of its list of transitions
    };

    // All transitions share one pool and one open-addressing index over (source, token). Simpler and faster than a map
    // per state: most states have one transition, the root has thousands, and no state allocates on its own.
    struct Edge {
        std::int32_t source;
        std::int32_t token;
        std::int32_t target;
        std::int32_t next;  // the source's next transition
    };

    void append(std::int32_t token);
    std::int32_t split(std::int32_t parent, std::int32_t edge);
    std::int32_t add_state(State state);
    void add_edge(std::int32_t source, std::int32_t token, std::int32_t target);
    std::int32_t find_edge(std::int32_t source, std::int32_t token) const;
    std::size_t find_slot(std::int32_t source, std::int32_t token) const;
    void grow_index();
    bool is_preferred(const Edge& a, const Edge& b) const;

    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<std::int32_t> index_;  // slot -> edge or kNone; a power of two, at most half full
    int index_shift_ = 0;              // 64 - log2(slots)
    std::int32_t last_ = 0;            // the state of the whole text; 0 is the root
    std::size_t num_tokens_ = 0;
};

}  // namespace metasd
