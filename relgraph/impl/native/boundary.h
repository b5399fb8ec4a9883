// The border to Python: no exception crosses it.
#pragma once
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <new>

namespace relgraph {

// What a function returns in the place of its number if it fails; build.py reads them.
constexpr int64_t OUT_OF_MEMORY = std::numeric_limits<int64_t>::min(), FAILED = OUT_OF_MEMORY + 1;

inline char* message() {
  static thread_local char text[256];
  return text;
}

// The number that the body returns, or how it failed; then message() says why.
template <class Body> int64_t guarded(const Body& body) {
  const auto note = [](const char* why) { std::snprintf(message(), 256, "%s", why); };
  try {
    return body();
  } catch (const std::bad_alloc& error) {
    note(error.what());
    return OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    note(error.what());
  } catch (...) {
    note("unknown exception");
  }
  return FAILED;
}

}  // namespace relgraph
