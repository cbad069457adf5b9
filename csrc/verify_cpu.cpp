// verify on the CPU: which thread reads what. Reading positions is the work; deciding is a few numbers and one tile.
#include "verify_cpu.h"

#include <algorithm>

#include "thread_pool.h"
#include "verify_decide.h"
#include "verify_read.h"

namespace metasd {
namespace {

constexpr std::int64_t kSmall = 1 << 15;  // target logits; below, a second thread costs more than it helps
constexpr std::int64_t kPart = 8;         // tiles in a part of a shared position: some microseconds of work

struct Place {
    std::int64_t b, k;
};

// Memory of the calling thread; what its helpers need for themselves is theirs.
struct Scratch {
    Buffer<Position> positions;
    Buffer<std::int64_t> limits;
    Buffer<float> weights, tile_floats;
    Buffer<double> tile_weights;
    Buffer<Place> places;
    Buffer<Flaws> flaws;
};

class Verifier {
  public:
    Verifier(const VerifyArguments& a, const VerifyResults& r, std::int32_t num_threads, const TileKernels& kernels,
             Scratch& scratch)
        : s_(a, r, kernels), scratch_(scratch), num_parts_((std::max(s_.target_tiles, s_.draft_tiles) + kPart - 1) / kPart) {
        const auto num_positions = static_cast<std::size_t>(a.batch_size * s_.num_rows);
        s_.positions = scratch.positions.reserve(num_positions);
        s_.limits = scratch.limits.reserve(static_cast<std::size_t>(a.batch_size));
        s_.weights = scratch.weights.reserve(a.is_block_rule ? num_positions : 0);
        s_.tile_floats = scratch.tile_floats.reserve(num_positions * static_cast<std::size_t>(s_.floats_per_position));
        s_.tile_weights = scratch.tile_weights.reserve(
            num_positions * static_cast<std::size_t>(s_.target_tiles + s_.draft_tiles));
        places_ = scratch.places.reserve(num_positions);
        for (std::int64_t b = 0; b < a.batch_size; ++b) s_.limits[b] = s_.layout.limit(b);
        list_places();
        s_.num_threads = num_places_ * a.target.vocab_size > kSmall ? num_threads : 1;
    }

    void run() {
        read();
        if (s_.a.is_block_rule) weigh();
        parallel_for(s_.a.batch_size, s_.num_threads, [this](std::int64_t b) { decide(s_, b); });
    }

  private:
    // Positions up to the end of each block: first those with a draft, the longer work, then those behind the blocks.
    void list_places() {
        for (std::int64_t b = 0; b < s_.a.batch_size; ++b) {
            for (std::int64_t k = 0; k < s_.limits[b]; ++k) places_[num_places_++] = {b, k};
        }
        num_drafts_ = num_places_;
        for (std::int64_t b = 0; b < s_.a.batch_size; ++b) {
            if (s_.limits[b] >= 0) places_[num_places_++] = {b, s_.limits[b]};
        }
    }

    // How many of the last positions all threads should share, so that none is idle at the end. Sharing a residual
    // costs twice the exponentials, since no cache holds them for all threads.
    std::int64_t num_to_share() const {
        const std::int64_t rest = num_places_ % s_.num_threads;
        if (s_.num_threads == 1 || num_parts_ == 1) return 0;
        for (std::int64_t i = num_places_ - rest; i < num_places_; ++i) {
            if (!is_divisible(s_, places_[i].b, places_[i].k)) return 0;
        }
        const bool is_costly = rest > num_places_ - num_drafts_ && s_.a.draft.data != nullptr && s_.a.compute_tv;
        return rest * (is_costly ? 2 : 1) <= s_.num_threads ? rest : 0;
    }

    static TileRange range_of(std::int64_t part) { return {part * kPart, (part + 1) * kPart}; }

    void read() {
        const std::int64_t num_shared = num_to_share(), num_whole = num_places_ - num_shared;
        const Place* shared = places_ + num_whole;
        Flaws* flaws = scratch_.flaws.reserve(static_cast<std::size_t>(num_shared * num_parts_));
        for (std::int64_t i = 0; i < num_shared; ++i) begin_position(s_, shared[i].b, shared[i].k);
        parallel_for(num_whole + num_shared * num_parts_, s_.num_threads, [=, this](std::int64_t task) {
            if (task < num_whole) return read_position(s_, places_[task].b, places_[task].k);
            const std::int64_t part = task - num_whole;
            const Place place = shared[part / num_parts_];
            flaws[part] = read_part(s_, place.b, place.k, range_of(part % num_parts_));
        });
        for (std::int64_t i = 0; i < num_shared; ++i) {
            Flaws all;
            for (std::int64_t part = i * num_parts_; part < (i + 1) * num_parts_; ++part) {
                all.target |= flaws[part].target;
                all.draft |= flaws[part].draft;
            }
            end_position(s_, shared[i].b, shared[i].k, all);
        }
        if (s_.a.compute_tv) fill_residuals(shared, num_shared);
    }

    float weight(Place place) const { return s_.a.is_block_rule && is_weighed_ ? s_.weight(place.b, place.k) : 1.0f; }

    void fill_residuals(const Place* places, std::int64_t count) {
        parallel_for(count * num_parts_, s_.num_threads, [=, this](std::int64_t task) {
            const Place place = places[task / num_parts_];
            const std::int64_t part = task % num_parts_;
            if (is_divisible(s_, place.b, place.k)) {
                residual_part(s_, place.b, place.k, weight(place), range_of(part));
            } else if (part == 0) {
                residual_all(s_, place.b, place.k, weight(place));
            }
        });
        for (std::int64_t i = 0; i < count; ++i) end_residual(s_, places[i].b, places[i].k, weight(places[i]));
    }

    // The block rule's residuals, whose weights hang on the ratios of all earlier positions.
    void weigh() {
        for (std::int64_t b = 0; b < s_.a.batch_size; ++b) fill_weights(s_, b);
        is_weighed_ = true;
        std::int64_t count = 0;  // the list of places was read: the front of it is free for those left to do
        for (std::int64_t i = 0; i < num_drafts_; ++i) {
            const Place place = places_[i];
            const Position& position = s_.at(place.b, place.k);
            const bool is_done = weight(place) == 1.0f && (position.has_residual_tiles || !has_wide_residual(position));
            if (place.k > 0 && !is_done) places_[count++] = place;
        }
        fill_residuals(places_, count);
    }

    VerifyState s_;
    Scratch& scratch_;
    Place* places_ = nullptr;
    std::int64_t num_places_ = 0, num_drafts_ = 0;
    std::int64_t num_parts_;
    bool is_weighed_ = false;
};

}  // namespace

void verify_cpu(const VerifyArguments& arguments, const VerifyResults& results, std::int32_t num_threads,
                const TileKernels& kernels) {
    thread_local Scratch scratch;
    Verifier(arguments, results, std::max(num_threads, 1), kernels, scratch).run();
}

}  // namespace metasd
