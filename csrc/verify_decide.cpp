#include "verify_decide.h"

#include <algorithm>
#include <cstring>

#include "thread_pool.h"
#include "verify_read.h"

namespace metasd {
namespace {

constexpr std::int32_t kBadLogits = 1, kZeroResidual = 2, kBadToken = 4;

// Where the block of a request that is not inert ends: at the first draft row that is broken, if not before.
std::int64_t end_of_block(const VerifyState& s, std::int64_t b, std::int32_t* status) {
    std::int64_t end = 0;
    while (end < s.limits[b] && (s.at(b, end).is_draft_point || !s.at(b, end).draft.is_bad)) ++end;
    if (end < s.limits[b]) *status |= kBadLogits;
    if (end < s.layout.length(b) && s.layout.token(b, end) >= s.a.target.vocab_size) *status |= kBadToken;
    if (s.a.draft.data != nullptr && end > 0 && is_no_temperature(s.a.draft_temperature[b])) *status |= kBadLogits;
    for (std::int64_t k = 0; k <= end; ++k) *status |= s.at(b, k).target.is_bad ? kBadLogits : 0;
    return end;
}

std::int64_t accepted_by_token(const VerifyState& s, std::int64_t b, std::int64_t end) {
    std::int64_t k = 0;
    while (k < end && s.at(b, k).log_ratio > std::log(s.coins.accept(b, k))) ++k;
    return k;
}

// The last i with u_i < h_i, else 0; h_i = m_i / (m_i + 1 - s_i), and h = s where the block ends.
std::int64_t accepted_by_block(const VerifyState& s, std::int64_t b, std::int64_t end) {
    std::int64_t accepted = 0;
    for (std::int64_t i = 1; i <= end; ++i) {
        const float weight = s.weight(b, i);
        float h = weight;
        if (i < end) {
            const float m = s.at(b, i).mass, denominator = m + (1.0f - weight);
            h = denominator > 0.0f ? m / denominator : 0.0f;
        }
        if (s.coins.accept(b, i - 1) < h) accepted = i;
    }
    return accepted;
}

void report(const VerifyState& s, std::int64_t b, std::int64_t end) {
    const std::int64_t width = s.a.num_positions;
    double reach = 1.0, expected = 0.0, overlap = 0.0;
    for (std::int64_t k = 0; k < width; ++k) {
        const bool is_valid = k < end;
        const double accept = is_valid ? std::exp(std::min(s.at(b, k).log_ratio, 0.0)) : 0.0;
        s.r.accept_probability[b * width + k] = static_cast<float>(accept);
        if (!s.a.compute_tv) continue;
        const float tv = is_valid ? std::clamp(s.at(b, k).tv, 0.0f, 1.0f) : 1.0f;
        s.r.tv_distance[b * width + k] = tv;
        overlap += 1.0 - tv;
        if (s.a.is_block_rule) {
            expected += is_valid ? s.weight(b, k + 1) : 0.0f;
        } else {
            expected += reach * (1.0 - tv);
            reach *= accept;
        }
    }
    if (!s.a.compute_tv) return;
    s.r.expected_num_accepted[b] = static_cast<float>(expected);
    const double length = s.a.reward_length == nullptr ? static_cast<double>(width) : s.a.reward_length[b];
    s.r.block_divergence[b] = static_cast<float>(length > 0 ? overlap / length : 0.0);
}

// ------------------------------------------------------------------------------------------------- the final draw

// An id from max(s p - q, 0) where q is a point mass at the draft id: from s p without it; -1 if nothing is left.
std::int64_t draw_without_draft(const VerifyState& s, std::int64_t b, std::int64_t k, std::array<double, 2> coins) {
    const Law& law = s.at(b, k).target;
    const Row row = s.layout.target_row(b, k);
    const TileSums sums = s.sums_of_target(b, k);
    const std::int64_t token = s.layout.token(b, k), own = token / kTile;
    alignas(64) float e[kTile];
    tile_exponentials(law, row, own, s.kernels, row.tile_size(own), e);
    e[token % kTile] = 0.0f;
    double rest = 0.0;
    for (std::int32_t i = 0; i < row.tile_size(own); ++i) rest += e[i];
    float* tiles = s.residual_tiles(b, k);
    for (std::int64_t t = 0; t < s.target_tiles; ++t) tiles[t] = static_cast<float>(sums.weight[t] * sums.sum[t]);
    tiles[own] = static_cast<float>(sums.weight[own] * rest);
    const std::int64_t tile = first_above(tiles, s.target_tiles, coins[0]);
    if (tile < 0) return -1;
    tile_exponentials(law, row, tile, s.kernels, row.tile_size(tile), e);
    if (tile == own) e[token % kTile] = 0.0f;
    const std::int64_t id = first_above(e, row.tile_size(tile), coins[1]);
    return id < 0 ? -1 : tile * kTile + id;
}

// An id from max(s p - q, 0); -1 if nothing is left.
std::int64_t draw_from_residual(VerifyState& s, std::int64_t b, std::int64_t k, std::array<double, 2> coins) {
    Position& position = s.at(b, k);
    if (position.is_draft_point) return draw_without_draft(s, b, k, coins);
    const float weight = s.a.is_block_rule ? s.weight(b, k) : 1.0f;
    if (!position.has_residual_tiles) {  // nobody asked for TV: now the tiles are needed, for this row alone
        constexpr std::int64_t kPart = 8;
        if (is_divisible(s, b, k)) {
            parallel_for((s.target_tiles + kPart - 1) / kPart, s.num_threads, [&](std::int64_t part) {
                residual_part(s, b, k, weight, {part * kPart, (part + 1) * kPart});
            });
        } else {
            residual_all(s, b, k, weight);
        }
        end_residual(s, b, k, weight);
    }
    const std::int64_t tile = first_above(s.residual_tiles(b, k), s.target_tiles, coins[0]);
    if (tile < 0) return -1;
    alignas(64) float rest[kTile];
    residual_tile(s, b, k, weight, tile, rest);
    const std::int64_t id = first_above(rest, s.layout.target_row(b, k).tile_size(tile), coins[1]);
    return id < 0 ? -1 : tile * kTile + id;
}

// The token behind the accepted ones: recovered after a rejection, else the bonus.
std::int64_t final_token(VerifyState& s, std::int64_t b, std::int64_t k, bool is_bonus, bool* is_zero) {
    const Position& position = s.at(b, k);
    if (position.target.is_point) {
        if (!is_bonus) {
            const float weight = s.a.is_block_rule ? s.weight(b, k) : 1.0f;
            const bool is_drafted = s.layout.token(b, k) == position.target.point;
            const float q = !position.is_draft_point ? draft_probability(s, b, k, position.target.point)
                                                     : (is_drafted ? 1.0f : 0.0f);
            *is_zero = !(weight > q);
        }
        return position.target.point;
    }
    const std::array<double, 2> coins = s.coins.final(b);
    if (!is_bonus) {
        const std::int64_t id = draw_from_residual(s, b, k, coins);
        if (id >= 0) return id;
        *is_zero = true;
    }
    return draw(position.target, s.layout.target_row(b, k), s.kernels, s.sums_of_target(b, k), coins[0], coins[1]);
}

}  // namespace

void fill_weights(const VerifyState& s, std::int64_t b) {
    double log_s = 0.0;
    s.weight(b, 0) = 1.0f;
    for (std::int64_t k = 0; k < s.limits[b]; ++k) {
        if (log_s != -kInfinity) log_s = std::min(log_s + s.at(b, k).log_ratio, 0.0);
        s.weight(b, k + 1) = static_cast<float>(std::exp(log_s));
    }
}

void decide(VerifyState& s, std::int64_t b) {
    std::int64_t* ids = s.r.output_token_ids + b * s.num_rows;
    std::fill(ids, ids + s.num_rows, -1);
    std::int32_t status = 0;
    std::int64_t end = 0, accepted = 0;
    if (s.limits[b] >= 0) {
        end = end_of_block(s, b, &status);
        accepted = s.a.is_block_rule ? accepted_by_block(s, b, end) : accepted_by_token(s, b, end);
        for (std::int64_t k = 0; k < accepted; ++k) ids[k] = s.layout.token(b, k);
        bool is_zero = false;
        ids[accepted] = final_token(s, b, accepted, accepted == end, &is_zero);
        status |= is_zero ? kZeroResidual : 0;
    }
    s.r.num_accepted_tokens[b] = static_cast<std::int32_t>(accepted);
    s.r.status[b] = status;
    report(s, b, end);
}

}  // namespace metasd
