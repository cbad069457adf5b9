// The coins: Philox4x32-10 (Salmon et al., SC 2011), as in metasd_kernels/rng.py.
#pragma once

#include <array>
#include <cstdint>

namespace metasd {

enum class CoinDomain : std::uint32_t { kAccept = 0, kFinal = 1, kDraft = 2 };

inline std::array<std::uint32_t, 4> philox(std::uint64_t key, std::array<std::uint32_t, 4> c) {
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t a = std::uint64_t{0xD2511F53} * c[0], b = std::uint64_t{0xCD9E8D57} * c[2];
        c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
             static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    return c;
}

// Two uniform numbers in (0, 1), exact in float32.
inline std::array<double, 2> coins(std::int64_t seed, std::int64_t offset, std::uint32_t position, CoinDomain domain) {
    const auto nonce = static_cast<std::uint64_t>(offset);
    const auto words = philox(static_cast<std::uint64_t>(seed),
                              {static_cast<std::uint32_t>(nonce), static_cast<std::uint32_t>(nonce >> 32), position,
                               static_cast<std::uint32_t>(domain)});
    const auto uniform = [](std::uint32_t word) { return (static_cast<double>(word >> 9) + 0.5) * 0x1p-23; };
    return {uniform(words[0]), uniform(words[1])};
}

}  // namespace metasd
