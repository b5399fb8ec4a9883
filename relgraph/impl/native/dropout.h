// Which weights are kept: random numbers by position, so that forward and backward, and any split of the work, draw the
// same.
#pragma once
#include <cstdint>

namespace relgraph {

// Philox-4x32 with ten rounds (Salmon et al. 2011): four numbers for a counter of four words and a key of two. The
// numbers take the counter's place.
inline void philox(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t low, uint32_t high) {
  for (int round = 0; round < 10; round++) {
    const uint64_t left = uint64_t(a) * 0xD2511F53u, right = uint64_t(c) * 0xCD9E8D57u;
    const uint32_t mixed = uint32_t(right >> 32) ^ b ^ low, other = uint32_t(left >> 32) ^ d ^ high;
    b = uint32_t(right);
    d = uint32_t(left);
    a = mixed;
    c = other;
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
}

// For attention over all pairs the counter is (a group of keys, query, head, batch row) and the key is the seed.
struct Keeper {
  uint64_t seed;
  uint32_t threshold;  // numbers below it are dropped
  uint32_t batch, head;

  static uint32_t threshold_of(double p) {
    const double numbers = p * 4294967296.0;
    return numbers < 4294967295.0 ? uint32_t(numbers) : 4294967295u;
  }

  // s[j] *= factor where key first_key + j is kept for this query, else 0.
  template <class T> void apply(T* s, int64_t n, int64_t query, int64_t first_key, T factor) const {
    alignas(64) uint32_t number[GROUP];
    for (int64_t group = first_key / GROUP; group * GROUP < first_key + n; group++) {
      draw(number, uint32_t(group), uint32_t(query));
      const int64_t begin = group * GROUP - first_key;  // the group's first key among the given ones
      const int64_t from = begin < 0 ? -begin : 0, to = n - begin < GROUP ? n - begin : GROUP;
      T* mine = s + begin;
#pragma omp simd
      for (int64_t k = from; k < to; k++) mine[k] = number[k] < threshold ? T(0) : mine[k] * factor;
    }
  }

 private:
  static constexpr int64_t LANES = 16, GROUP = 4 * LANES;

  // The numbers of 64 keys: lane l of word w is for key 16 w + l, so that numbers of neighbours are contiguous.
  void draw(uint32_t* out, uint32_t group, uint32_t query) const {
#pragma omp simd
    for (int64_t lane = 0; lane < LANES; lane++) {
      uint32_t a = group * uint32_t(LANES) + uint32_t(lane), b = query, c = head, d = batch;
      philox(a, b, c, d, uint32_t(seed), uint32_t(seed >> 32));
      out[lane] = a;
      out[LANES + lane] = b;
      out[2 * LANES + lane] = c;
      out[3 * LANES + lane] = d;
    }
  }
};

}  // namespace relgraph
