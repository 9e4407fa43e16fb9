#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/simt/ptx/module/kernel.h"

namespace hayloft::simt::ptx {

// Places the registers of a kernel while it is parsed. Names live in the scopes that braces open, and what a scope has
// declared is used again after its end.
class RegisterFile {
 public:
  explicit RegisterFile(Kernel& kernel) : kernel_(kernel), scopes_(1) {}

  void open_scope() { scopes_.emplace_back(); }
  void close_scope();
  void declare(std::string_view name, Type type);

  const Register* find(std::string_view name) const;  // null: not declared
  Register constant(std::uint64_t bits, unsigned bytes);
  Register special(Special what, unsigned bytes);

 private:
  Register allocate(unsigned bytes);  // that nothing else has
  Register reuse(unsigned bytes);     // possibly one whose scope has ended

  Kernel& kernel_;
  std::vector<std::map<std::string, Register, std::less<>>> scopes_;
  std::map<unsigned, std::vector<Register>> free_;  // by width
  std::map<std::pair<std::uint64_t, unsigned>, Register> constants_;
  std::map<std::pair<Special, unsigned>, Register> specials_;
};

}  // namespace hayloft::simt::ptx
