#include "verify_read.h"

#include <algorithm>
#include <cstring>

namespace metasd {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

struct Scratch {
    Buffer<float> target, draft;  // exponentials of whole rows
    Buffer<float> mapped;         // probabilities of a draft over target ids
    Buffer<float> masked;         // a sparse draft row with its empty slots taken out
};

Scratch& scratch() {
    thread_local Scratch own;
    return own;
}

bool is_dense(const Position& position) { return position.has_draft && !position.is_draft_point; }

// The draft's row; of a sparse one without its empty slots, those with a negative id. Good until this thread's next call.
Row draft_row(const VerifyState& s, std::int64_t b, std::int64_t k) {
    Row row = s.layout.draft_row(b, k);
    const std::int64_t* map = s.layout.map_of(b, k);
    if (!s.a.is_map_sparse || std::none_of(map, map + row.vocab_size, [](std::int64_t id) { return id < 0; })) return row;
    float* masked = scratch().masked.reserve(static_cast<std::size_t>(s.draft_tiles * kTile));
    for (std::int64_t t = 0; t < s.draft_tiles; ++t) {
        s.kernels.convert_raw(row.tile(t), row.dtype, row.tile_size(t), masked + t * kTile);
    }
    for (std::int64_t i = 0; i < row.vocab_size; ++i) {
        if (map[i] < 0) masked[i] = kMinusInf;
    }
    row.logits = masked;
    row.dtype = DType::kFloat32;
    return row;
}

double log_draft_probability(const VerifyState& s, std::int64_t b, std::int64_t k, std::int64_t target_id) {
    const Row row = draft_row(s, b, k);
    const std::int64_t* map = s.layout.map_of(b, k);
    std::int64_t index = target_id;
    if (map != nullptr) {
        const std::int64_t* found = std::find(map, map + row.vocab_size, target_id);
        index = found == map + row.vocab_size ? -1 : found - map;
    }
    return log_probability(s.at(b, k).draft, row, index, s.kernels);
}

// Draft probabilities over all target ids to the thread's scratch, from a row's exponentials.
const float* map_to_target(const VerifyState& s, std::int64_t b, std::int64_t k, const float* e) {
    const auto size = static_cast<std::size_t>(s.target_tiles * kTile);
    float* mapped = scratch().mapped.reserve(size);
    std::memset(mapped, 0, size * sizeof *mapped);
    const std::int64_t* map = s.layout.map_of(b, k);
    const Law& law = s.at(b, k).draft;
    const TileSums sums = s.sums_of_draft(b, k);
    for (std::int64_t i = 0; i < s.a.draft.vocab_size; ++i) {
        if (map[i] >= 0 && map[i] < s.a.target.vocab_size) mapped[map[i]] = e[i] * law.factor(sums.weight[i / kTile]);
    }
    return mapped;
}

// The same from the logits once more.
const float* map_to_target(const VerifyState& s, std::int64_t b, std::int64_t k) {
    const Row row = draft_row(s, b, k);
    float* e = scratch().draft.reserve(static_cast<std::size_t>(s.draft_tiles * kTile));
    for (std::int64_t t = 0; t < s.draft_tiles; ++t) {
        tile_exponentials(s.at(b, k).draft, row, t, s.kernels, row.tile_size(t), e + t * kTile);
    }
    return map_to_target(s, b, k, e);
}

// Exponentials or probabilities of a tile with the factor that makes the latter of the former.
struct Masses {
    const float* values;
    float factor;
};

// sum max(p - q, 0), and its terms up to a factor to `out` unless it is null.
float excess(const TileKernels& kernels, Masses p, Masses q, std::int32_t n, float* out) {
    if (!(p.factor > 0.0f)) {
        if (out != nullptr) std::memset(out, 0, static_cast<std::size_t>(round_up(n)) * sizeof *out);
        return 0.0f;
    }
    const float ratio = std::min(q.factor / p.factor, std::numeric_limits<float>::max());
    return p.factor * kernels.excess(p.values, q.values, ratio, n, out);
}

// The same for one tile of a position, from the logits, or from mapped probabilities in place of the draft's logits.
float tile_excess(const VerifyState& s, std::int64_t b, std::int64_t k, float weight, std::int64_t tile,
                  const float* mapped, float* out) {
    const Position& position = s.at(b, k);
    const Row row = s.layout.target_row(b, k);
    alignas(64) float target[kTile], draft[kTile];
    const std::int32_t n = row.tile_size(tile);
    const Masses p = {target, weight * tile_exponentials(position.target, row, tile, s.kernels, n, target)};
    Masses q = {mapped + tile * kTile, 1.0f};
    if (mapped == nullptr) {
        q = {draft, tile_exponentials(position.draft, s.layout.draft_row(b, k), tile, s.kernels, n, draft)};
    }
    return excess(s.kernels, p, q, n, out);
}

TileRange within(TileRange range, std::int64_t tiles) {
    return {std::min(range.first, tiles), std::min(range.last, tiles)};
}

}  // namespace

void begin_position(VerifyState& s, std::int64_t b, std::int64_t k) {
    Position& position = s.at(b, k);
    position = Position{};
    position.has_draft = k < s.limits[b];
    position.is_draft_point = s.a.draft.data == nullptr || is_greedy(s.a.draft_temperature[b]);
    position.target = start_law(s.a.temperature[b]);
    if (is_dense(position)) position.draft = start_law(s.a.draft_temperature[b]);
}

Flaws read_part(const VerifyState& s, std::int64_t b, std::int64_t k, TileRange range) {
    const Position& position = s.at(b, k);
    Flaws flaws;
    flaws.target = read_tiles(s.layout.target_row(b, k), position.target, s.kernels, within(range, s.target_tiles),
                              s.sums_of_target(b, k), nullptr);
    if (is_dense(position)) {
        flaws.draft = read_tiles(draft_row(s, b, k), position.draft, s.kernels, within(range, s.draft_tiles),
                                 s.sums_of_draft(b, k), nullptr);
    }
    return flaws;
}

void end_position(VerifyState& s, std::int64_t b, std::int64_t k, Flaws flaws) {
    Position& position = s.at(b, k);
    const Row row = s.layout.target_row(b, k);
    finish_law(&position.target, row, s.kernels, s.sums_of_target(b, k));
    position.target.is_bad |= flaws.target;
    if (!position.has_draft) return;
    const std::int64_t token = s.layout.token(b, k);
    const double log_p = log_probability(position.target, row, token, s.kernels);
    double log_q = 0.0;
    if (is_dense(position)) {
        finish_law(&position.draft, draft_row(s, b, k), s.kernels, s.sums_of_draft(b, k));
        position.draft.is_bad |= flaws.draft;
        log_q = log_draft_probability(s, b, k, token);
    }
    position.log_ratio = log_p == -kInfinity ? -kInfinity : log_q == -kInfinity ? kInfinity : log_p - log_q;
    if (position.is_draft_point) position.tv = 1.0f - static_cast<float>(std::exp(log_p));
    if (!has_wide_residual(position)) end_residual(s, b, k, 1.0f);
}

void read_position(VerifyState& s, std::int64_t b, std::int64_t k) {
    begin_position(s, b, k);
    Position& position = s.at(b, k);
    if (!is_dense(position) || position.target.is_point || !s.a.compute_tv) {
        return end_position(s, b, k, read_part(s, b, k, {0, std::max(s.target_tiles, s.draft_tiles)}));
    }
    const Row row = s.layout.target_row(b, k), draft = draft_row(s, b, k);
    float* e_target = scratch().target.reserve(static_cast<std::size_t>(s.target_tiles * kTile));
    float* e_draft = scratch().draft.reserve(static_cast<std::size_t>(s.draft_tiles * kTile));
    const TileSums sums = s.sums_of_target(b, k), sums_of_draft = s.sums_of_draft(b, k);
    Flaws flaws;
    flaws.target = read_tiles(row, position.target, s.kernels, {0, s.target_tiles}, sums, e_target);
    flaws.draft = read_tiles(draft, position.draft, s.kernels, {0, s.draft_tiles}, sums_of_draft, e_draft);
    end_position(s, b, k, flaws);
    if (!has_wide_residual(position)) return;

    // The draft's last tile may end before the target's.
    const std::int64_t end = round_up(s.a.draft.vocab_size);
    const std::int64_t needed = std::min(s.draft_tiles * kTile, round_up(s.a.target.vocab_size));
    if (end < needed) std::memset(e_draft + end, 0, static_cast<std::size_t>(needed - end) * sizeof *e_draft);
    const float* mapped = s.a.draft_to_target == nullptr ? nullptr : map_to_target(s, b, k, e_draft);
    float* tiles = s.residual_tiles(b, k);
    for (std::int64_t t = 0; t < s.target_tiles; ++t) {
        const Masses p = {e_target + t * kTile, position.target.factor(sums.weight[t])};
        Masses q = {p.values, 0.0f};  // beyond the draft's vocabulary
        if (mapped != nullptr) {
            q = {mapped + t * kTile, 1.0f};
        } else if (t < s.draft_tiles) {
            q = {e_draft + t * kTile, position.draft.factor(sums_of_draft.weight[t])};
        }
        tiles[t] = excess(s.kernels, p, q, row.tile_size(t), nullptr);
    }
    end_residual(s, b, k, 1.0f);
}

bool is_divisible(const VerifyState& s, std::int64_t b, std::int64_t k) {
    return s.a.draft_to_target == nullptr || k >= s.limits[b] || is_greedy(s.a.draft_temperature[b]);
}

bool has_wide_residual(const Position& position) {
    return is_dense(position) && !position.target.is_point && !position.draft.is_point;
}

void residual_part(const VerifyState& s, std::int64_t b, std::int64_t k, float weight, TileRange range) {
    if (!has_wide_residual(s.at(b, k)) || !(weight > 0.0f)) return;
    float* tiles = s.residual_tiles(b, k);
    for (std::int64_t t = range.first; t < std::min(range.last, s.target_tiles); ++t) {
        tiles[t] = tile_excess(s, b, k, weight, t, nullptr, nullptr);
    }
}

void residual_all(const VerifyState& s, std::int64_t b, std::int64_t k, float weight) {
    if (!has_wide_residual(s.at(b, k)) || !(weight > 0.0f)) return;
    const float* mapped = s.a.draft_to_target == nullptr ? nullptr : map_to_target(s, b, k);
    float* tiles = s.residual_tiles(b, k);
    for (std::int64_t t = 0; t < s.target_tiles; ++t) tiles[t] = tile_excess(s, b, k, weight, t, mapped, nullptr);
}

void end_residual(VerifyState& s, std::int64_t b, std::int64_t k, float weight) {
    Position& position = s.at(b, k);
    if (!position.has_draft) return;
    double mass = 0.0;
    if (position.is_draft_point) {
        mass = weight * position.tv;
    } else if (position.draft.is_point || !(weight > 0.0f)) {
        mass = 0.0;  // a row without a law: the block ends before it
    } else if (position.target.is_point) {
        mass = std::max(weight - draft_probability(s, b, k, position.target.point), 0.0f);
    } else {
        const float* tiles = s.residual_tiles(b, k);
        for (std::int64_t t = 0; t < s.target_tiles; ++t) mass += tiles[t];
        position.has_residual_tiles = true;
    }
    position.mass = static_cast<float>(std::min(mass, 1.0));
    if (weight == 1.0f) position.tv = position.mass;
}

void residual_tile(const VerifyState& s, std::int64_t b, std::int64_t k, float weight, std::int64_t tile, float* out) {
    if (s.a.draft_to_target == nullptr) {
        tile_excess(s, b, k, weight, tile, nullptr, out);
        return;
    }
    tile_excess(s, b, k, weight, tile, map_to_target(s, b, k), out);
}

float draft_probability(const VerifyState& s, std::int64_t b, std::int64_t k, std::int64_t target_id) {
    return static_cast<float>(std::exp(log_draft_probability(s, b, k, target_id)));
}

}  // namespace metasd
