#include "suffix_automaton.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace metasd {

namespace {

constexpr int kInitialIndexBits = 6;

void require_at_least(const char* name, std::int32_t value, std::int32_t minimum) {
    if (value < minimum) {
        throw std::invalid_argument(std::string(name) + " must be >= " + std::to_string(minimum) + ", got " +
                                    std::to_string(value));
    }
}

}  // namespace

SuffixAutomaton::SuffixAutomaton() { clear(); }

void SuffixAutomaton::clear() {
    states_.assign(1, State{});
    edges_.clear();
    index_.assign(std::size_t{1} << kInitialIndexBits, kNone);
    index_shift_ = 64 - kInitialIndexBits;
    last_ = 0;
    num_tokens_ = 0;
}

std::size_t SuffixAutomaton::memory_bytes() const {
    return sizeof(*this) + states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) +
           index_.capacity() * sizeof(std::int32_t);
}

// ---- building ----------------------------------------------------------------------------------------------------

void SuffixAutomaton::extend(std::span<const std::int32_t> tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < 0) {
            throw std::invalid_argument("tokens must be >= 0, got " + std::to_string(tokens[i]) + " at index " +
                                        std::to_string(i));
        }
    }
    if (tokens.size() > kMaxTokens - num_tokens_) {
        throw std::length_error("the text may hold at most " + std::to_string(kMaxTokens) +
                                " tokens; clear() starts a new one");
    }
    for (std::int32_t token : tokens) append(token);
}

void SuffixAutomaton::append(std::int32_t token) {
    const std::int32_t current = add_state({.length = states_[last_].length + 1});

    // Suffixes that were never followed by this token: now they are.
    std::int32_t parent = last_;
    std::int32_t edge = kNone;
    while (parent != kNone && (edge = find_edge(parent, token)) == kNone) {
        add_edge(parent, token, current);
        parent = states_[parent].link;
    }
    // The longest suffix that was: its continuation is the longest repeated suffix of the new text.
    states_[current].link = parent == kNone ? 0 : split(parent, edge);
    last_ = current;

    const auto position = static_cast<std::int32_t>(num_tokens_++);
    std::int32_t state = current;
    for (int i = 0; i < kMaxCountedStates && state != 0; ++i, state = states_[state].link) {
        ++states_[state].count;
        states_[state].last_end = position;
    }
}

// The state whose longest context is "the longest of parent, then the edge's token". If the edge's target also holds
// longer ones, those do not end at the newest position as this one does: it moves, with all shorter ones, to a state of
// its own.
std::int32_t SuffixAutomaton::split(std::int32_t parent, std::int32_t edge) {
    const std::int32_t token = edges_[edge].token;
    const std::int32_t target = edges_[edge].target;
    const std::int32_t length = states_[parent].length + 1;
    if (states_[target].length == length) return target;

    State copy = states_[target];  // link, count and last_end were shared until now
    copy.length = length;
    copy.first_edge = kNone;
    const std::int32_t clone = add_state(copy);
    for (std::int32_t e = states_[target].first_edge; e != kNone; e = edges_[e].next) {
        add_edge(clone, edges_[e].token, edges_[e].target);
    }
    states_[target].link = clone;
    while (edge != kNone && edges_[edge].target == target) {
        edges_[edge].target = clone;
        parent = states_[parent].link;
        edge = parent == kNone ? kNone : find_edge(parent, token);
    }
    return clone;
}

std::int32_t SuffixAutomaton::add_state(State state) {
    states_.push_back(state);
    return static_cast<std::int32_t>(states_.size() - 1);
}

void SuffixAutomaton::add_edge(std::int32_t source, std::int32_t token, std::int32_t target) {
    if (2 * (edges_.size() + 1) > index_.size()) grow_index();
    const auto edge = static_cast<std::int32_t>(edges_.size());
    edges_.push_back({source, token, target, states_[source].first_edge});
    states_[source].first_edge = edge;
    index_[find_slot(source, token)] = edge;
}

std::int32_t SuffixAutomaton::find_edge(std::int32_t source, std::int32_t token) const {
    return index_[find_slot(source, token)];
}

// The slot that holds the edge, or the free one where it belongs (linear probing; edges are never removed).
std::size_t SuffixAutomaton::find_slot(std::int32_t source, std::int32_t token) const {
    const std::uint64_t key = static_cast<std::uint64_t>(source) << 32 | static_cast<std::uint32_t>(token);
    const std::uint64_t hash = (key ^ key >> 29) * 0x9E3779B97F4A7C15u;  // Fibonacci hashing: the top bits mix best
    std::size_t slot = hash >> index_shift_;
    for (; index_[slot] != kNone; slot = (slot + 1) & (index_.size() - 1)) {
        const Edge& edge = edges_[index_[slot]];
        if (edge.source == source && edge.token == token) break;
    }
    return slot;
}

void SuffixAutomaton::grow_index() {
    index_.assign(index_.size() * 2, kNone);
    --index_shift_;
    for (std::size_t e = 0; e < edges_.size(); ++e) {
        index_[find_slot(edges_[e].source, edges_[e].token)] = static_cast<std::int32_t>(e);
    }
}

// ---- asking ------------------------------------------------------------------------------------------------------

std::int32_t SuffixAutomaton::match_length() const {
    return last_ == 0 ? 0 : states_[states_[last_].link].length;
}

bool SuffixAutomaton::is_preferred(const Edge& a, const Edge& b) const {
    const State& x = states_[a.target];
    const State& y = states_[b.target];
    return x.count != y.count ? x.count > y.count : x.last_end > y.last_end;
}

SuffixDraft SuffixAutomaton::draft(std::int32_t max_tokens, std::int32_t min_match) const {
    require_at_least("max_tokens", max_tokens, 0);
    require_at_least("min_match", min_match, 1);
    SuffixDraft result;
    result.match_length = match_length();
    if (result.match_length < min_match) return result;

    std::int32_t state = states_[last_].link;
    for (std::int32_t i = 0; i < max_tokens; ++i) {
        // At the text's end nothing follows: go on from the longest shorter context that does. Periodic text thus drafts
        // its period again and again.
        while (states_[state].first_edge == kNone) state = states_[state].link;
        if (states_[state].length < min_match) break;
        // All contexts of a state have the same continuations at the same places, so the target's count is the count of
        // "context, then token", whatever longer contexts lead to the same target.
        const Edge* best = &edges_[states_[state].first_edge];
        std::int64_t total = 0;
        for (std::int32_t e = states_[state].first_edge; e != kNone; e = edges_[e].next) {
            total += states_[edges_[e].target].count;
            if (is_preferred(edges_[e], *best)) best = &edges_[e];
        }
        result.token_ids.push_back(best->token);
        result.probabilities.push_back(static_cast<double>(states_[best->target].count) / static_cast<double>(total));
        state = best->target;
    }
    return result;
}

std::vector<std::pair<std::int32_t, std::int32_t>> SuffixAutomaton::continuations(std::int32_t max_context) const {
    require_at_least("max_context", max_context, 0);
    std::int32_t state = last_ == 0 ? 0 : states_[last_].link;
    // A state holds the contexts longer than its link's longest, so stop at the one that holds the cut suffix.
    while (state != 0 && states_[states_[state].link].length >= max_context) state = states_[state].link;

    std::vector<Edge> found;
    for (std::int32_t e = states_[state].first_edge; e != kNone; e = edges_[e].next) found.push_back(edges_[e]);
    std::sort(found.begin(), found.end(), [this](const Edge& a, const Edge& b) { return is_preferred(a, b); });
    std::vector<std::pair<std::int32_t, std::int32_t>> result;
    result.reserve(found.size());
    for (const Edge& edge : found) result.emplace_back(edge.token, states_[edge.target].count);
    return result;
}

}  // namespace metasd
