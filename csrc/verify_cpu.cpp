// verify on the CPU. A task is one position of one request: it reads the target's row and the draft's row once
// and leaves what the decision needs; the decision of a request is then a few numbers and one tile.
#include "verify_cpu.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "law_cpu.h"
#include "thread_pool.h"
#include "verify_layout.h"

namespace metasd {
namespace {

constexpr std::int32_t kBadLogits = 1, kZeroResidual = 2, kBadToken = 4;
constexpr std::int64_t kSmall = 1 << 15;  // elements; below, waking a thread costs more than it helps

// What a task leaves about position k of a request. The target's law is kept for the final draw.
struct Position {
    Law target, draft;
    bool is_draft_point = true;  // drawn from a point mass at the draft id
    double log_ratio = -kInfinity;
    float tv = 1.0f;
    float mass = 0.0f;       // of the residual max(s p - q, 0)
    bool has_mass = false;   // and whether the tiles of the residual were filled
};

struct Scratch {
    std::vector<float> target, draft, dense, draft_max, target_max;
    std::vector<float> masked;  // a sparse draft row with its empty slots taken out
};

class Verifier {
  public:
    Verifier(const VerifyArguments& a, const VerifyResults& r, std::int32_t num_threads, const TileKernels& kernels)
        : a_(a), r_(r), layout_(a), coins_(a), kernels_(kernels), num_threads_(num_threads), tiles_(num_tiles(a.target.vocab_size)),
          rows_(a.num_positions + 1), positions_(static_cast<std::size_t>(a.batch_size * rows_)),
          target_mass_(static_cast<std::size_t>(a.batch_size * rows_ * tiles_)),
          residual_mass_(a.draft.data == nullptr ? 0 : target_mass_.size()),
          scratch_(static_cast<std::size_t>(num_threads)) {
        const std::int64_t elements = a.batch_size * rows_ * a.target.vocab_size;
        if (elements <= kSmall) num_threads_ = 1;
        for (std::int64_t b = 0; b < a.batch_size; ++b) {
            limit_.push_back(layout_.limit(b));
            for (std::int64_t k = 0; k <= limit_.back(); ++k) tasks_.push_back({b, k});
        }
    }

    void run() {
        for_all_tasks([this](std::int64_t b, std::int64_t k, Scratch& s) { read(b, k, 1.0f, !a_.is_block_rule, s); });
        if (a_.is_block_rule) {
            weights_.assign(static_cast<std::size_t>(a_.batch_size * rows_), 1.0f);
            for (std::int64_t b = 0; b < a_.batch_size; ++b) fill_weights(b);
            for_all_tasks([this](std::int64_t b, std::int64_t k, Scratch& s) {
                if (k < limit_[static_cast<std::size_t>(b)]) read(b, k, weight(b, k), true, s);
            });
        }
        for (std::int64_t b = 0; b < a_.batch_size; ++b) decide(b);
    }

  private:
    struct Task {
        std::int64_t b, k;
    };

    template <typename Work>
    void for_all_tasks(const Work& work) {
        parallel_for(static_cast<std::int64_t>(tasks_.size()), num_threads_, [&](std::int64_t i, std::int32_t worker) {
            const Task& task = tasks_[static_cast<std::size_t>(i)];
            work(task.b, task.k, scratch_[static_cast<std::size_t>(worker)]);
        });
    }

    std::int64_t token(std::int64_t b, std::int64_t k) const { return layout_.token(b, k); }
    Position& at(std::int64_t b, std::int64_t k) { return positions_[static_cast<std::size_t>(b * rows_ + k)]; }
    float weight(std::int64_t b, std::int64_t k) const { return weights_[static_cast<std::size_t>(b * rows_ + k)]; }
    float* target_tiles(std::int64_t b, std::int64_t k) { return &target_mass_[static_cast<std::size_t>((b * rows_ + k) * tiles_)]; }
    float* residual_tiles(std::int64_t b, std::int64_t k) { return &residual_mass_[static_cast<std::size_t>((b * rows_ + k) * tiles_)]; }

    // --------------------------------------------------------------------------------------------- one position

    // Laws of position k, and, if asked for, the residual with weight s; the row behind the block has a target only.
    void read(std::int64_t b, std::int64_t k, float s, bool wants_mass, Scratch& scratch) {
        Position& position = at(b, k);
        const bool has_draft = k < limit_[static_cast<std::size_t>(b)];
        position.is_draft_point = a_.draft.data == nullptr || is_greedy(a_.draft_temperature[b]);
        const bool is_dense = has_draft && !position.is_draft_point;
        const bool fills = is_dense && wants_mass && (a_.compute_tv || a_.is_block_rule);
        const Row row = layout_.target_row(b, k);
        if (fills) reserve(scratch);
        position.target = read_law(row, a_.temperature[b], kernels_, fills ? scratch.target.data() : nullptr,
                                   fills ? scratch.target_max.data() : nullptr, target_tiles(b, k));
        if (!has_draft) return;
        const double log_p = log_probability(position.target, row, token(b, k), kernels_);
        double log_q = 0.0;
        if (is_dense) log_q = read_draft(b, k, fills, scratch);
        position.log_ratio = log_p == -kInfinity ? -kInfinity : log_q == -kInfinity ? kInfinity : log_p - log_q;
        if (!is_dense) {
            const float p = static_cast<float>(std::exp(log_p));
            position.tv = 1.0f - p;
            position.mass = s * (1.0f - p);
            return;
        }
        if (!fills) return;
        position.mass = residual(b, k, s, scratch, residual_tiles(b, k));
        position.has_mass = true;
        if (a_.compute_tv) position.tv = s == 1.0f ? position.mass : residual(b, k, 1.0f, scratch, nullptr);
    }

    void reserve(Scratch& s) {
        const auto size = static_cast<std::size_t>(tiles_ * kTile);
        if (s.target.size() < size) {
            s.target.resize(size);
            s.target_max.resize(static_cast<std::size_t>(tiles_));
            s.dense.resize(size);
        }
        const std::int64_t draft_tiles = std::max(num_tiles(a_.draft.vocab_size), tiles_);
        if (s.draft.size() < static_cast<std::size_t>(draft_tiles * kTile)) {
            s.draft.resize(static_cast<std::size_t>(draft_tiles * kTile));
            s.draft_max.resize(static_cast<std::size_t>(draft_tiles));
        }
    }

    // The draft's law; returns log q of the draft id. With `fills` also its exponentials, over target ids.
    double read_draft(std::int64_t b, std::int64_t k, bool fills, Scratch& s) {
        Position& position = at(b, k);
        const std::int64_t* map = layout_.map_of(b, k);
        const Row row = masked(layout_.draft_row(b, k), map, s);
        position.draft = read_law(row, a_.draft_temperature[b], kernels_, fills ? s.draft.data() : nullptr,
                                  fills ? s.draft_max.data() : nullptr, nullptr);
        std::int64_t index = token(b, k);
        if (map != nullptr) {
            const std::int64_t* end = map + row.vocab_size;
            const std::int64_t* found = std::find(map, end, index);
            index = found == end ? -1 : found - map;
        }
        if (fills && map != nullptr && !position.draft.is_point) scatter(position.draft, row, map, s);
        return log_probability(position.draft, row, index, kernels_);
    }

    // A sparse row without its empty slots: those with a negative id.
    Row masked(Row row, const std::int64_t* map, Scratch& s) const {
        if (!a_.is_map_sparse || map == nullptr || std::none_of(map, map + row.vocab_size, [](auto id) { return id < 0; })) {
            return row;
        }
        s.masked.resize(static_cast<std::size_t>(num_tiles(row.vocab_size) * kTile));
        for (std::int64_t t = 0; t < num_tiles(row.vocab_size); ++t) {
            kernels_.convert_raw(row.tile(t), row.dtype, row.tile_size(t), s.masked.data() + t * kTile);
        }
        for (std::int64_t i = 0; i < row.vocab_size; ++i) {
            if (map[i] < 0) s.masked[static_cast<std::size_t>(i)] = -std::numeric_limits<float>::infinity();
        }
        row.logits = s.masked.data();
        row.dtype = DType::kFloat32;
        return row;
    }

    void scatter(const Law& law, const Row& row, const std::int64_t* map, Scratch& s) const {
        std::fill(s.dense.begin(), s.dense.end(), 0.0f);
        for (std::int64_t i = 0; i < row.vocab_size; ++i) {
            const std::int64_t id = map[i];
            if (id < 0 || id >= a_.target.vocab_size) continue;
            s.dense[static_cast<std::size_t>(id)] =
                s.draft[static_cast<std::size_t>(i)] * law.factor(s.draft_max[static_cast<std::size_t>(i / kTile)]);
        }
    }

    // Mass of max(s p - q, 0), tile by tile to `tiles` if it is not null, from what `read` left in the scratch.
    float residual(std::int64_t b, std::int64_t k, float s, Scratch& scratch, float* tiles) {
        const Position& position = at(b, k);
        if (position.draft.is_point) return 0.0f;  // a broken row: the block ends here
        if (position.target.is_point) {
            const double log_q = log_draft(b, k, position.target.point);
            const float rest = std::max(s - static_cast<float>(std::exp(log_q)), 0.0f);
            if (tiles != nullptr) {
                std::memset(tiles, 0, static_cast<std::size_t>(tiles_) * sizeof(float));
                tiles[position.target.point / kTile] = rest;
            }
            return rest;
        }
        const bool is_mapped = a_.draft_to_target != nullptr;
        const std::int64_t draft_tiles = is_mapped ? tiles_ : num_tiles(a_.draft.vocab_size);
        double total = 0.0;
        for (std::int64_t t = 0; t < tiles_; ++t) {
            const float* q = is_mapped ? scratch.dense.data() : scratch.draft.data();
            const bool has_q = t < draft_tiles;
            const float factor_q = !has_q ? 0.0f : is_mapped ? 1.0f : position.draft.factor(scratch.draft_max[static_cast<std::size_t>(t)]);
            const float factor_p = s * position.target.factor(scratch.target_max[static_cast<std::size_t>(t)]);
            const float mass = kernels_.excess(scratch.target.data() + t * kTile, factor_p, q + (has_q ? t * kTile : 0), factor_q);
            if (tiles != nullptr) tiles[t] = mass;
            total += mass;
        }
        return static_cast<float>(std::min(total, 1.0));
    }

    double log_draft(std::int64_t b, std::int64_t k, std::int64_t target_id) {
        const std::int64_t* map = layout_.map_of(b, k);
        Scratch local;
        const Row row = masked(layout_.draft_row(b, k), map, local);
        std::int64_t index = target_id;
        if (map != nullptr) {
            const std::int64_t* found = std::find(map, map + row.vocab_size, target_id);
            index = found == map + row.vocab_size ? -1 : found - map;
        }
        return log_probability(at(b, k).draft, row, index, kernels_);
    }

    // ---------------------------------------------------------------------------------------------- one request

    // s before each position of the block rule: s_0 = 1, s_i = min(s_{i-1} p / q, 1), in logs.
    void fill_weights(std::int64_t b) {
        double log_s = 0.0;
        for (std::int64_t k = 0; k < limit_[static_cast<std::size_t>(b)]; ++k) {
            const double ratio = at(b, k).log_ratio;
            if (log_s != -kInfinity) log_s = std::min(log_s + ratio, 0.0);
            weights_[static_cast<std::size_t>(b * rows_ + k + 1)] = static_cast<float>(std::exp(log_s));
        }
    }

    void decide(std::int64_t b) {
        const std::int64_t limit = limit_[static_cast<std::size_t>(b)], width = a_.num_positions;
        std::int64_t* ids = r_.output_token_ids + b * rows_;
        std::fill(ids, ids + rows_, -1);
        std::int32_t status = 0;
        std::int64_t end = std::max<std::int64_t>(limit, 0);
        for (std::int64_t k = 0; k < end; ++k) {
            if (!at(b, k).is_draft_point && at(b, k).draft.is_bad) {
                end = k;
                status |= kBadLogits;
            }
        }
        std::int64_t accepted = 0;
        if (limit >= 0) {
            if (end < layout_.length(b) && token(b, end) >= a_.target.vocab_size) status |= kBadToken;
            if (a_.draft.data != nullptr && end > 0 && is_no_temperature(a_.draft_temperature[b])) status |= kBadLogits;
            for (std::int64_t k = 0; k <= end; ++k) status |= at(b, k).target.is_bad ? kBadLogits : 0;
            accepted = a_.is_block_rule ? accepted_by_block(b, end) : accepted_by_token(b, end);
            for (std::int64_t k = 0; k < accepted; ++k) ids[k] = token(b, k);
            bool is_zero = false;
            ids[accepted] = final_token(b, accepted, accepted == end, &is_zero);
            status |= is_zero ? kZeroResidual : 0;
        }
        r_.num_accepted_tokens[b] = static_cast<std::int32_t>(accepted);
        r_.status[b] = status;
        report(b, end, width);
    }

    std::int64_t accepted_by_token(std::int64_t b, std::int64_t end) {
        std::int64_t k = 0;
        while (k < end && at(b, k).log_ratio > std::log(coins_.accept(b, k))) ++k;
        return k;
    }

    std::int64_t accepted_by_block(std::int64_t b, std::int64_t end) {
        std::int64_t accepted = 0;
        for (std::int64_t i = 1; i <= end; ++i) {
            const float s = weight(b, i);
            float h = s;
            if (i < end) {
                const float m = at(b, i).mass, denominator = m + (1.0f - s);
                h = denominator > 0.0f ? m / denominator : 0.0f;
            }
            if (coins_.accept(b, i - 1) < h) accepted = i;
        }
        return accepted;
    }

    void report(std::int64_t b, std::int64_t end, std::int64_t width) {
        double reach = 1.0, expected = 0.0, overlap = 0.0;
        for (std::int64_t k = 0; k < width; ++k) {
            const bool is_valid = k < end;
            const double accept = is_valid ? std::exp(std::min(at(b, k).log_ratio, 0.0)) : 0.0;
            r_.accept_probability[b * width + k] = static_cast<float>(accept);
            if (!a_.compute_tv) continue;
            const float tv = is_valid ? std::clamp(at(b, k).tv, 0.0f, 1.0f) : 1.0f;
            r_.tv_distance[b * width + k] = tv;
            overlap += 1.0 - tv;
            if (a_.is_block_rule) {
                expected += is_valid ? weight(b, k + 1) : 0.0f;
            } else {
                expected += reach * (1.0 - tv);
                reach *= accept;
            }
        }
        if (!a_.compute_tv) return;
        r_.expected_num_accepted[b] = static_cast<float>(expected);
        const double length = a_.reward_length == nullptr ? static_cast<double>(width) : a_.reward_length[b];
        r_.block_divergence[b] = static_cast<float>(length > 0 ? overlap / length : 0.0);
    }

    // -------------------------------------------------------------------------------------------- the final draw

    std::int64_t final_token(std::int64_t b, std::int64_t k, bool is_bonus, bool* is_zero) {
        const Position& position = at(b, k);
        const float s = a_.is_block_rule ? weight(b, k) : 1.0f;
        if (position.target.is_point) {
            if (!is_bonus) *is_zero = !(s > point_draft_probability(b, k));
            return position.target.point;
        }
        const auto [tile_coin, id_coin] = coins_.final(b);
        alignas(64) float weights[kTile];
        if (!is_bonus) {
            const float* tiles = residual_of(b, k, s);
            const std::int64_t tile = first_above(tiles, tiles_, tile_coin);
            if (tile >= 0) {
                residual_tile(b, k, s, tile, weights);
                const std::int64_t id = first_above(weights, kTile, id_coin);
                if (id >= 0) return tile * kTile + id;
            }
            *is_zero = true;
        }
        const std::int64_t tile = first_above(target_tiles(b, k), tiles_, tile_coin);
        tile_probabilities(position.target, layout_.target_row(b, k), tile, kernels_, weights);
        return tile * kTile + first_above(weights, kTile, id_coin);
    }

    float point_draft_probability(std::int64_t b, std::int64_t k) {
        const Position& position = at(b, k);
        if (position.is_draft_point) return token(b, k) == position.target.point ? 1.0f : 0.0f;
        return static_cast<float>(std::exp(log_draft(b, k, position.target.point)));
    }

    // Tile masses of the residual at the first rejection.
    const float* residual_of(std::int64_t b, std::int64_t k, float s) {
        Position& position = at(b, k);
        if (position.is_draft_point) {  // s p without the draft id
            final_tiles_.assign(target_tiles(b, k), target_tiles(b, k) + tiles_);
            const std::int64_t tile = token(b, k) / kTile;
            alignas(64) float weights[kTile];
            residual_tile(b, k, s, tile, weights);
            double mass = 0.0;
            for (float weight : weights) mass += weight;
            for (float& value : final_tiles_) value *= s;
            final_tiles_[static_cast<std::size_t>(tile)] = static_cast<float>(mass);
            return final_tiles_.data();
        }
        if (!position.has_mass) {  // nobody asked for TV: now it is needed, for this row alone
            Scratch& scratch = scratch_[0];
            reserve(scratch);
            position.target = read_law(layout_.target_row(b, k), a_.temperature[b], kernels_, scratch.target.data(),
                                       scratch.target_max.data(), target_tiles(b, k));
            read_draft(b, k, true, scratch);
            residual(b, k, s, scratch, residual_tiles(b, k));
        }
        return residual_tiles(b, k);
    }

    void residual_tile(std::int64_t b, std::int64_t k, float s, std::int64_t tile, float* weights) {
        const Position& position = at(b, k);
        tile_probabilities(position.target, layout_.target_row(b, k), tile, kernels_, weights);
        if (position.is_draft_point) {
            for (std::int32_t i = 0; i < kTile; ++i) weights[i] *= s;
            if (token(b, k) / kTile == tile) weights[token(b, k) % kTile] = 0.0f;
            return;
        }
        alignas(64) float q[kTile];
        draft_tile(b, k, tile, q);
        for (std::int32_t i = 0; i < kTile; ++i) weights[i] = std::max(s * weights[i] - q[i], 0.0f);
    }

    void draft_tile(std::int64_t b, std::int64_t k, std::int64_t tile, float* q) {
        const Law& law = at(b, k).draft;
        const std::int64_t* map = layout_.map_of(b, k);
        const Row row = masked(layout_.draft_row(b, k), map, scratch_[0]);
        if (map == nullptr) return tile_probabilities(law, row, tile, kernels_, q);
        std::memset(q, 0, kTile * sizeof(float));
        alignas(64) float listed[kTile];
        for (std::int64_t t = 0; t < num_tiles(row.vocab_size); ++t) {
            tile_probabilities(law, row, t, kernels_, listed);
            for (std::int32_t i = 0; i < row.tile_size(t); ++i) {
                const std::int64_t id = map[t * kTile + i];
                if (id >= 0 && id < a_.target.vocab_size && id / kTile == tile) q[id % kTile] = listed[i];
            }
        }
    }

    const VerifyArguments& a_;
    const VerifyResults& r_;
    const Layout layout_;
    const CoinSource coins_;
    const TileKernels& kernels_;
    std::int32_t num_threads_;
    std::int64_t tiles_, rows_;
    std::vector<Position> positions_;
    std::vector<float> target_mass_, residual_mass_, weights_, final_tiles_;
    std::vector<Scratch> scratch_;
    std::vector<std::int64_t> limit_;
    std::vector<Task> tasks_;
};

}  // namespace

void verify_cpu(const VerifyArguments& arguments, const VerifyResults& results, std::int32_t num_threads,
                const TileKernels& kernels) {
    Verifier(arguments, results, std::max(num_threads, 1), kernels).run();
}

}  // namespace metasd
