#include "ngram_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace metasd {
namespace {

constexpr std::size_t kMaxLevels = 16;

struct Match {
    std::size_t begin = 0, end = 0;
    double total = 0.0;
};

void check(bool is_right, std::size_t level, const char* what) {
    if (!is_right) throw std::invalid_argument("n-gram table, level " + std::to_string(level) + ": " + what);
}

}  // namespace

NgramTable::NgramTable(std::vector<NgramLevel> levels) : levels_(std::move(levels)) {
    check(!levels_.empty() && levels_.size() <= kMaxLevels, levels_.size(), "expected 1 to 16 levels");
    for (std::size_t n = 0; n < levels_.size(); ++n) {
        const NgramLevel& level = levels_[n];
        check(level.starts.size() == level.keys.size() + 1, n, "expected one start more than keys");
        check(level.ids.size() == level.counts.size(), n, "expected as many counts as ids");
        check(level.starts.front() == 0 && level.starts.back() == level.ids.size(), n,
              "expected starts from 0 to the number of ids");
        check(std::is_sorted(level.starts.begin(), level.starts.end()), n, "expected ascending starts");
        check(std::is_sorted(level.keys.begin(), level.keys.end()), n, "expected ascending keys");
        check(std::none_of(level.counts.begin(), level.counts.end(), [](auto c) { return c == 0; }), n,
              "expected counts of at least 1");
        check(std::none_of(level.ids.begin(), level.ids.end(), [](auto id) { return id < 0; }), n,
              "expected ids of at least 0");
    }
    check(levels_[0].keys.size() == 1, 0, "expected one context");
}

std::uint64_t NgramTable::extend(std::uint64_t state, std::int32_t token) {
    state = (state ^ (static_cast<std::uint64_t>(token) + 1)) * 0x9E3779B97F4A7C15ull;
    return state ^ (state >> 29);
}

NgramLaw NgramTable::law(std::span<const std::int32_t> context, std::span<std::int64_t> ids,
                         std::span<float> logits) const {
    std::array<Match, kMaxLevels> matches;
    const std::size_t longest = std::min(context.size(), levels_.size() - 1);
    std::size_t num_matches = 0;
    std::uint64_t state = 0;
    for (std::size_t n = 0; n <= longest; ++n) {
        if (n > 0) state = extend(state, context[context.size() - n]);
        const NgramLevel& level = levels_[n];
        const std::uint32_t wanted = n == 0 ? level.keys[0] : key(state);
        const auto found = std::lower_bound(level.keys.begin(), level.keys.end(), wanted);
        if (found == level.keys.end() || *found != wanted) break;  // a longer context occurred no more often
        const auto index = static_cast<std::size_t>(found - level.keys.begin());
        Match& match = matches[num_matches++];
        match.begin = level.starts[index];
        match.end = level.starts[index + 1];
        for (std::size_t i = match.begin; i < match.end; ++i) match.total += level.counts[i];
    }

    struct Listed {
        std::int32_t id;
        double mass;
    };
    thread_local std::vector<Listed> listed;
    listed.clear();
    const auto place = [](std::int32_t id) {
        return std::find_if(listed.begin(), listed.end(), [id](const Listed& each) { return each.id == id; });
    };
    for (std::size_t n = num_matches; n-- > 0;) {
        for (std::size_t i = matches[n].begin; i < matches[n].end && listed.size() < ids.size(); ++i) {
            const std::int32_t id = levels_[n].ids[i];
            if (place(id) == listed.end()) listed.push_back({id, 0.0});
        }
    }
    for (std::size_t n = 0; n < num_matches; ++n) {
        const auto kinds = static_cast<double>(matches[n].end - matches[n].begin);
        const double whole = matches[n].total + (n == 0 ? 0.0 : kinds);
        for (Listed& each : listed) each.mass *= kinds / whole;
        for (std::size_t i = matches[n].begin; i < matches[n].end; ++i) {
            const auto found = place(levels_[n].ids[i]);
            if (found != listed.end()) found->mass += levels_[n].counts[i] / whole;
        }
    }
    std::stable_sort(listed.begin(), listed.end(), [](const Listed& a, const Listed& b) { return a.mass > b.mass; });
    double total = 0.0;
    for (const Listed& each : listed) total += each.mass;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool is_used = i < listed.size() && listed[i].mass > 0.0;
        ids[i] = is_used ? listed[i].id : -1;
        logits[i] = is_used ? static_cast<float>(std::log(listed[i].mass / total)) : -std::numeric_limits<float>::infinity();
    }
    return {static_cast<std::int32_t>(listed.size()), static_cast<std::int32_t>(num_matches) - 1};
}

std::vector<std::int32_t> NgramTable::laws(std::vector<std::int32_t> context, std::span<const std::int32_t> token_ids,
                                           std::span<std::int64_t> ids, std::span<float> logits) const {
    std::vector<std::int32_t> match_lengths;
    const std::size_t width = token_ids.empty() ? 0 : ids.size() / token_ids.size();
    for (std::size_t i = 0; i < token_ids.size(); ++i) {
        const auto row = law(context, ids.subspan(i * width, width), logits.subspan(i * width, width));
        match_lengths.push_back(row.match_length);
        context.push_back(token_ids[i]);
    }
    return match_lengths;
}

}  // namespace metasd
