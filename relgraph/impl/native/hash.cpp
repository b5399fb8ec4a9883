// A number for the bytes of a tensor, by which a change of any of them shows.
#include <cstdint>
#include <cstring>

static constexpr uint64_t LANES = 32;  // none waits for another, so that many products run at once

// For a given sum no two words give the same: the order of words and each bit of them count.
static inline uint64_t mixed(uint64_t sum, uint64_t word) {
  sum ^= word;
  return (sum << 29 | sum >> 35) * 0xD1B54A32D192ED03u;
}

extern "C" uint64_t relgraph_hash(const unsigned char* data, uint64_t bytes) {
  uint64_t sums[LANES] = {}, words[LANES], all = mixed(1, bytes);
  for (; bytes >= sizeof words; data += sizeof words, bytes -= sizeof words) {
    std::memcpy(words, data, sizeof words);
    for (uint64_t lane = 0; lane < LANES; lane++) sums[lane] = mixed(sums[lane], words[lane]);
  }
  for (const uint64_t sum : sums) all = mixed(all, sum);
  for (uint64_t at = 0; at < bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, bytes - at < 8 ? bytes - at : 8);
    all = mixed(all, word);
  }
  return mixed(all ^ all >> 32, 0);
}
