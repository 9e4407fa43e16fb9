#include "tests/simt/ptx/module/module.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "tests/simt/ptx/module/tokens.h"

namespace hayloft::simt::ptx {
namespace {

std::string demangled(std::string_view name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(std::string(name).c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : std::string(name);
}

int number(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

Module Module::read(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw std::runtime_error(fmt::format("{} cannot be read", file.string()));
  return {file.filename().string(), text.str()};
}

Module::Module(std::string name, std::string text) : name_(std::move(name)), text_(std::move(text)) {
  try {
    scan();
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(fmt::format("{}: {}", name_, error.what()));
  }
}

void Module::scan() {
  Tokens tokens(text_);
  while (!tokens.at_end()) {
    const std::string_view word = tokens.peek();
    if (word == ".version" || word == ".target" || word == ".address_size") {
      tokens.skip_line();
    } else if (word == ".visible" || word == ".weak") {
      tokens.next();
    } else if (word == ".file") {
      tokens.next();
      const int index = number(tokens.next());
      const std::string_view path = tokens.next();
      source_files_[index] = path.substr(1, path.size() - 2);
      if (path.find("/gpu/") == std::string_view::npos) surroundings_.foreign_files.insert(index);
      while (tokens.take(",")) tokens.next();
    } else if (word == ".section") {
      tokens.next();
      tokens.next();
      tokens.skip_braces();
    } else if (word == ".extern") {  // .extern .shared .align 16 .b8 NAME[];
      tokens.next();
      tokens.expect(".shared");
      std::string_view last;
      while (tokens.peek() != "[") last = tokens.next();
      surroundings_.dynamic_shared.emplace(last);
      while (!tokens.take(";")) tokens.next();
    } else if (word == ".entry") {
      const Entry entry{static_cast<std::size_t>(word.data() - text_.data()), tokens.line()};
      tokens.next();
      entries_.emplace(demangled(tokens.next()), entry);
      while (tokens.peek() != "{") tokens.next();
      tokens.skip_braces();
    } else {
      tokens.fail(fmt::format("the directive '{}' is not known here", tokens.next()));
    }
  }
}

std::vector<std::string> Module::kernels() const {
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

Kernel Module::kernel(const std::string& demangled_name) const {
  const Entry entry = entries_.at(demangled_name);
  try {
    Kernel kernel = parse_kernel(std::string_view(text_).substr(entry.begin), entry.line, surroundings_);
    kernel.name = demangled_name;
    return kernel;
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(fmt::format("{}: {}", name_, error.what()));
  }
}

std::string_view Module::line(int number) const {
  std::string_view rest = text_;
  for (; number > 1; --number) rest.remove_prefix(std::min(rest.find('\n'), rest.size() - 1) + 1);
  rest = rest.substr(0, rest.find('\n'));
  const std::size_t begin = rest.find_first_not_of(" \t");
  return begin == std::string_view::npos ? "" : rest.substr(begin, rest.find_last_not_of(" \t\r") + 1 - begin);
}

std::string Module::place(const Instruction& instruction) const {
  std::string place = fmt::format("{}:{}", name_, instruction.line);
  const auto file = source_files_.find(instruction.source_file);
  if (file == source_files_.end()) return place;
  const std::string path = std::filesystem::path(file->second).lexically_normal().string();
  const std::size_t room = path.rfind("gpu/cuda/");
  return place + fmt::format(" ({}:{})", room == std::string::npos ? path : path.substr(room), instruction.source_line);
}

}  // namespace hayloft::simt::ptx
