// The operator relgraph::attention_native: forward of attention in exported programs, which run without Python.
//
// It fills the kernels' struct as problem.py does, for labels by distance or written out over a dense batch of float32.
// It meets torch through its stable C++ interface, so one file serves torch 2.11 and newer. exported.py compiles it and
// gives the macros RELGRAPH_*: sizes and names that Python knows. Its suffix keeps it out of the libraries of kernels,
// which include no header of torch.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "problem.h"

extern "C" {
const char* relgraph_message();
int64_t relgraph_workspace(const relgraph::Problem*);
int64_t relgraph_forward(const relgraph::Problem*);
int64_t relgraph_gemm32_works(relgraph::Gemm32);
int64_t relgraph_blocked_works(relgraph::Blocked);
}

namespace relgraph {
namespace {

using Array = torch::stable::Tensor;  // torch's; relgraph::Tensor is the kernels'
using Given = std::optional<Array>;
using torch::headeronly::ScalarType;

// What the kernels take from torch; null where this torch has none that works.
struct Found {
  Gemm32 gemm = nullptr;
  Blocked blocked = nullptr;
  Release release = nullptr;
  Parallel parallel = nullptr;

  Found() {
    // torch is a dependency of this file, so its functions are found wherever the program has loaded them
    Dl_info here;
    static const char inside = 0;
    void* libraries = dladdr(&inside, &here) ? dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    const auto find = [&](const char* name) { return dlsym(libraries ? libraries : RTLD_DEFAULT, name); };
    for (const char* name : {RELGRAPH_GEMM32}) {
      gemm = reinterpret_cast<Gemm32>(find(name));
      if (gemm) break;
    }
    if (gemm && !relgraph_gemm32_works(gemm)) gemm = nullptr;
    blocked = reinterpret_cast<Blocked>(find(RELGRAPH_BLOCKED));
    if (blocked && !relgraph_blocked_works(blocked)) blocked = nullptr;
    release = reinterpret_cast<Release>(find(RELGRAPH_RELEASE));
    parallel = reinterpret_cast<Parallel>(find(RELGRAPH_PARALLEL));
  }
};

const Found& found() {
  static const Found known;
  return known;
}

std::string text(torch::headeronly::IntHeaderOnlyArrayRef sizes) {
  std::string all = "[";
  for (const int64_t n : sizes) all += (all.size() > 1 ? ", " : "") + std::to_string(n);
  return all + "]";
}

// Raises unless a tensor of float32 on the CPU has this shape, or the one behind a first axis of `heads`.
void check(const char* name, const Array& x, const std::vector<int64_t>& shape, int64_t heads = -1) {
  STD_TORCH_CHECK(x.is_cpu() && x.scalar_type() == ScalarType::Float, name, " must be float32 on the CPU");
  const auto sizes = x.sizes();
  const bool more = heads >= 0 && sizes.size() == shape.size() + 1 && sizes[0] == heads;
  const bool fits = (more || sizes.size() == shape.size()) && std::equal(shape.begin(), shape.end(), sizes.begin() + more);
  STD_TORCH_CHECK(fits, name, " must have shape ", text(shape), heads < 0 ? "" : " or the same per head", ", got ", text(sizes));
}

Array room(const Array& like, const std::vector<int64_t>& shape) { return torch::stable::new_empty(like, shape); }

// The struct of [batch, heads, rows, size] with dense rows; no data for no numbers.
Tensor shown(const Array& x) {
  if (x.numel() == 0) return {};
  return {x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}

// Tensors by which a struct's pointers stay valid.
class Kept {
 public:
  const Array& keep(Array x) {
    all_.push_back(std::move(x));
    return all_.back();
  }

  // [batch, heads, rows, size], copied if its rows are not dense.
  Tensor rows(const Array& x) {
    if (x.stride(3) == 1 && x.stride(2) >= x.size(3)) return shown(keep(x));
    Array dense = room(x, {x.size(0), x.size(1), x.size(2), x.size(3)});
    torch::stable::copy_(dense, x);
    return shown(keep(dense));
  }

  // A table [labels, size] or [heads, labels, size]; biases have one row.
  Tensor table(const Given& given, int64_t labels, int64_t size) {
    if (!given || given->numel() == 0) return {};
    const Array& x = keep(torch::stable::contiguous(*given));
    return {x.data_ptr(), 0, x.numel() > labels * size ? labels * size : 0, size};
  }

  void* numbers(const Array& like, int64_t count) { return keep(room(like, {count})).data_ptr(); }

 private:
  std::vector<Array> all_;
};

// The smallest and the largest of these ids.
template <class Id> std::pair<int64_t, int64_t> range(const void* data, int64_t count) {
  const Id* id = static_cast<const Id*>(data);
  Id low = id[0], high = id[0];
  for (int64_t i = 0; i < count; i++) low = std::min(low, id[i]), high = std::max(high, id[i]);
  return {low, high};
}

std::pair<int64_t, int64_t> range(const Array& ids) {
  switch (ids.scalar_type()) {
    case ScalarType::Char: return range<int8_t>(ids.data_ptr(), ids.numel());
    case ScalarType::Short: return range<int16_t>(ids.data_ptr(), ids.numel());
    case ScalarType::Int: return range<int32_t>(ids.data_ptr(), ids.numel());
    case ScalarType::Long: return range<int64_t>(ids.data_ptr(), ids.numel());
    default: STD_TORCH_CHECK(false, "ids must be signed integers");
  }
}

// One call: its struct, and what the struct points to.
class Attention {
 public:
  Attention(const Array& query, const Array& key, const Array& value) : query_(query) {
    STD_TORCH_CHECK(query.dim() == 4, "query must have four axes, got ", query.dim());
    STD_TORCH_CHECK(key.dim() == 4, "key must have four axes, got ", key.dim());
    STD_TORCH_CHECK(value.dim() == 4, "value must have four axes, got ", value.dim());
    p_.bytes = 4;
    p_.batch = query.size(0), p_.heads = query.size(1), p_.q_len = query.size(2), p_.size = query.size(3);
    p_.kv_heads = key.size(1), p_.k_len = key.size(2), p_.value_size = value.size(3);
    const bool divides = p_.kv_heads ? p_.heads % p_.kv_heads == 0 : p_.heads == 0;
    STD_TORCH_CHECK(divides, "key must have a number of heads that divides ", p_.heads, ", got ", p_.kv_heads);
    check("query", query, {p_.batch, p_.heads, p_.q_len, p_.size});
    check("key", key, {p_.batch, p_.kv_heads, p_.k_len, p_.size});
    check("value", value, {p_.batch, p_.kv_heads, p_.k_len, p_.value_size});
    p_.query = kept_.rows(query), p_.key = kept_.rows(key), p_.value = kept_.rows(value);
    cut_rows();
  }

  // Written out ids replace the lookup.
  void labels(int64_t count, const Given& ids, const std::vector<int64_t>& lookup, int64_t first, int64_t offset) {
    part_.num_labels = p_.label_rows = count;
    p_.columns = count + 1;
    p_.num_parts = 1, p_.parts = &part_;
    part_offset_ = bounded(offset);
    part_.offsets = &part_offset_;
    STD_TORCH_CHECK(!lookup.empty(), "lookup must have at least one id, got none");
    std::pair<int64_t, int64_t> ends{-1, -1};
    if (ids) {
      const std::vector<int64_t> shape{ids->dim() == 3 && ids->size(0) == 1 ? 1 : p_.batch, p_.q_len, p_.k_len};
      const bool fits = ids->dim() == 3 && std::equal(shape.begin(), shape.end(), ids->sizes().begin());
      STD_TORCH_CHECK(fits && ids->is_cpu(), "ids must have shape ", text(shape), " on the CPU, got ", text(ids->sizes()));
      const Array& dense = kept_.keep(torch::stable::contiguous(*ids));
      part_.ids = dense.data_ptr(), part_.id_bytes = int64_t(dense.element_size());
      part_.ids_step = shape[0] > 1 ? p_.q_len * p_.k_len : 0;
      if (dense.numel()) ends = range(dense);
    } else {
      lookup_.assign(lookup.begin(), lookup.end());
      part_.lookup = lookup_.data(), part_.lookup_length = int64_t(lookup_.size());
      part_.first_distance = first;
      part_.affine = goes_up();
      ends = {*std::min_element(lookup.begin(), lookup.end()), *std::max_element(lookup.begin(), lookup.end())};
    }
    STD_TORCH_CHECK(-2 <= ends.first && ends.second < count, ids ? "ids" : "lookup", " must be in [-2, ", count,
                    "), got numbers from ", ends.first, " to ", ends.second);
    part_.full = ends.first > -2;
  }

  void tables(const Given& keys, const Given& values, const Given& biases) {
    const int64_t count = part_.num_labels;
    if (keys) check("label_keys", *keys, {count, p_.size}, p_.heads);
    if (values) check("label_values", *values, {count, p_.value_size}, p_.heads);
    if (biases) check("label_biases", *biases, {count}, p_.heads);
    p_.label_keys = kept_.table(keys, count, p_.size);
    p_.label_values = kept_.table(values, count, p_.value_size);
    p_.label_biases = kept_.table(biases, 1, count);
    if (values) p_.sums = shown(kept_.keep(room(query_, {p_.batch, p_.heads, p_.q_len, p_.columns})));
    if (p_.label_keys.data && p_.columns > RELGRAPH_LONG_TABLE && part_.lookup_length) p_.sliced = part_.affine;
    const bool shared = p_.batch > 1 && !part_.ids_step && p_.label_biases.data && !p_.label_keys.data;
    if (shared && p_.k_len <= int64_t(RELGRAPH_PAIRS_PER_NUMBER * double(p_.batch * p_.size)))
      p_.pair_biases = shown(kept_.keep(room(query_, {1, p_.heads, p_.q_len, p_.k_len})));
  }

  void mask(const Given& given, bool is_causal, int64_t offset) {
    p_.causal = is_causal;
    causal_offset_ = bounded(offset);
    p_.causal_offsets = &causal_offset_;
    if (!given) return;
    const Array& x = kept_.keep(*given);
    const ScalarType type = x.scalar_type();
    const bool known = x.is_cpu() && (type == ScalarType::Bool || type == ScalarType::Float);
    STD_TORCH_CHECK(known, "mask must be bool or float32 on the CPU");
    const std::array<int64_t, 4> full{p_.batch, p_.heads, p_.q_len, p_.k_len};
    STD_TORCH_CHECK(x.dim() == 4, "mask must have four axes, got ", x.dim());
    for (int64_t axis = 0; axis < 4; axis++) {
      const int64_t n = x.size(axis);
      STD_TORCH_CHECK(n == 1 || n == full[size_t(axis)], "mask must broadcast to ",
                      text({full.data(), full.size()}), ", got shape ", text(x.sizes()));
      p_.mask_strides[axis] = n == 1 ? 0 : x.stride(axis);
    }
    p_.mask = x.data_ptr();
    p_.mask_kind = type == ScalarType::Bool ? 1 : 2;
  }

  // The output, [batch, q_len, heads, value_size], and the log-sum-exp of scores, [batch, heads, q_len].
  std::tuple<Array, Array> forward(double scale) {
    const Found& from = found();
    STD_TORCH_CHECK(from.gemm, "attention_native needs a torch whose BLAS can be called by name");
    Array output = room(query_, {p_.batch, p_.q_len, p_.heads, p_.value_size});
    Array lse = room(query_, {p_.batch, p_.heads, p_.q_len});
    if (output.numel()) p_.output = {output.data_ptr(), output.stride(0), output.stride(2), output.stride(1)};
    p_.lse = lse.data_ptr();
    p_.scale = scale;
    p_.threads = torch::stable::get_num_threads();
    p_.gemm = reinterpret_cast<void*>(from.gemm), p_.parallel = from.parallel;
    if (from.blocked && p_.q_len >= RELGRAPH_FEWEST_QUERIES) by_blocks(from);
    p_.workspace_numbers = relgraph_workspace(&p_);
    STD_TORCH_CHECK(p_.workspace_numbers >= 0, "attention_native failed: ", relgraph_message());
    p_.workspace = kept_.numbers(query_, p_.threads * p_.workspace_numbers);
    STD_TORCH_CHECK(relgraph_forward(&p_) == 0, "attention_native failed: ", relgraph_message());
    return {output, lse};
  }

 private:
  static int64_t bounded(int64_t offset) { return std::clamp<int64_t>(offset, -RELGRAPH_FARTHEST, RELGRAPH_FARTHEST); }

  // Blocks of query rows; those of a batch row are one run.
  void cut_rows() {
    p_.most_keys = std::max<int64_t>(p_.k_len, 1);
    p_.block_rows = std::clamp<int64_t>(RELGRAPH_SCORES / p_.most_keys / 2 * 2, RELGRAPH_FEWEST_ROWS, RELGRAPH_MOST_ROWS);
    if (p_.q_len <= RELGRAPH_FEWEST_ROWS) p_.block_rows = RELGRAPH_FEWEST_ROWS;
    for (int64_t b = 0; b < p_.batch; b++)
      for (int64_t row = 0; row < p_.q_len; row += p_.block_rows)
        blocks_.insert(blocks_.end(), {b, row, std::min(p_.block_rows, p_.q_len - row)});
    p_.blocks = blocks_.data();
    p_.num_blocks = int64_t(blocks_.size()) / 3;
    p_.shares = 1;
  }

  // Whether the ids between both ends go up one by one.
  bool goes_up() const {
    for (size_t s = 1; s + 1 < lookup_.size(); s++)
      if (lookup_[s] < 0 || lookup_[s] != lookup_[1] + int32_t(s - 1)) return false;
    return true;
  }

  // oneDNN's products, and for many keys room for panels.
  void by_blocks(const Found& from) {
    p_.blocked = from.blocked, p_.release = from.release;
    p_.step = RELGRAPH_STEP;
    if (p_.k_len < RELGRAPH_FEWEST_KEYS) return;
    p_.panel = std::min<int64_t>(RELGRAPH_PANEL, (p_.k_len + 63) / 64 * 64);
    p_.panels = (p_.k_len + p_.panel - 1) / p_.panel;
    const auto room_of = [&](int64_t size) {
      return kept_.numbers(query_, p_.batch * p_.kv_heads * p_.panels * p_.panel * (size + size % 2));
    };
    p_.turned_keys = room_of(p_.size), p_.value_rows = room_of(p_.value_size);
  }

  Array query_;
  Problem p_{};
  Part part_{};
  Kept kept_;
  std::vector<int64_t> blocks_;
  std::vector<int32_t> lookup_;
  int64_t part_offset_ = 0, causal_offset_ = 0;
};

std::tuple<Array, Array> attention_native(
    Array query, Array key, Array value, Given label_keys, Given label_values, Given label_biases, Given ids, Given mask,
    std::vector<int64_t> lookup, int64_t first_distance, int64_t q_offset, int64_t num_labels, bool is_causal,
    int64_t causal_offset, double scale) {
  Attention call(query, key, value);
  call.labels(num_labels, ids, lookup, first_distance, q_offset);
  call.tables(label_keys, label_values, label_biases);
  call.mask(mask, is_causal, causal_offset);
  return call.forward(scale);
}

}  // namespace
}  // namespace relgraph

STABLE_TORCH_LIBRARY_FRAGMENT(relgraph, m) {
  m.def(
      "attention_native(Tensor query, Tensor key, Tensor value, Tensor? label_keys, Tensor? label_values, "
      "Tensor? label_biases, Tensor? ids, Tensor? mask, int[] lookup, int first_distance, SymInt q_offset, "
      "int num_labels, bool is_causal, SymInt causal_offset, float scale) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(relgraph, CPU, m) { m.impl("attention_native", TORCH_BOX(&relgraph::attention_native)); }
