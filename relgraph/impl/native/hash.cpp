// A number for the bytes of a tensor, by which a change of any of them shows.
#include <cstdint>
#include <cstring>

namespace {

constexpr int LANES = 32;  // that wait for no other, so that as many products run at once as a processor can take
constexpr uint64_t ODD = 0xD1B54A32D192ED03u;

// For a given sum no two words give the same: the order of words and each bit of them count.
inline uint64_t mixed(uint64_t sum, uint64_t word) {
  sum ^= word;
  return (sum << 29 | sum >> 35) * ODD;
}

}  // namespace

extern "C" {
uint64_t relgraph_hash(const unsigned char* data, int64_t bytes) {
  uint64_t all = mixed(ODD, uint64_t(bytes));
  if (bytes >= 8 * LANES) {
    uint64_t sums[LANES], words[LANES];
    for (int lane = 0; lane < LANES; lane++) sums[lane] = (lane + 1) * ODD;
    for (; bytes >= 8 * LANES; data += 8 * LANES, bytes -= 8 * LANES) {
      std::memcpy(words, data, sizeof words);
      for (int lane = 0; lane < LANES; lane++) sums[lane] = mixed(sums[lane], words[lane]);
    }
    for (int lane = 0; lane < LANES; lane++) all = mixed(all, sums[lane]);
  }
  for (; bytes > 0; data += 8, bytes -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, bytes < 8 ? bytes : 8);
    all = mixed(all, word);
  }
  return (all ^ all >> 32) * ODD;
}
}
