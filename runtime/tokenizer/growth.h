#pragma once

#include <cstddef>
#include <string>

namespace hayloft::runtime {

// Bounds what the steps of a normalizer or a decoder may make of a text, and work through on the way: as much as the
// normal forms and byte letters of real tokenizers at their worst (22 times), and a few steps more. A file of a few
// hundred bytes can ask for any number of gigabytes.
class Growth {
 public:
  // `where` begins the message; `bytes` in `pieces` are what the first step is given. `where` outlives it.
  Growth(const std::string& where, std::size_t bytes, std::size_t pieces = 1)
      : where_(where), bytes_(bytes), most_(32 * bytes + 64 * pieces), work_(4 * most_ + 256 * pieces) {}

  std::size_t most() const { return most_; }  // bytes of the text after any step
  // A step is about to make, or has made, a text of so many bytes. Throws Error when that is too much, by itself or
  // after those before.
  void step(std::size_t bytes);

 private:
  const std::string& where_;
  std::size_t bytes_;
  std::size_t most_;
  std::size_t work_;  // left
};

}  // namespace hayloft::runtime
