#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/simt/ptx/module/kernel.h"
#include "tests/simt/ptx/module/kernel_parser.h"

namespace hayloft::simt::ptx {

// A PTX file, as nvcc -ptx writes it. Kernels are parsed when they are asked for: most tests need few of them.
class Module {
 public:
  // Both throw std::runtime_error naming the file and the line: what is no PTX, or a directive that is not known.
  static Module read(const std::filesystem::path& file);
  Module(std::string name, std::string text);

  const std::string& name() const { return name_; }        // of the file, for reports
  std::vector<std::string> kernels() const;                // demangled
  Kernel kernel(const std::string& demangled_name) const;  // throws likewise; out_of_range: has none of this name

  std::string_view line(int number) const;                  // of the text, from 1, without blanks around it
  std::string place(const Instruction& instruction) const;  // file and line, and those of the source where known

 private:
  void scan();

  std::string name_;
  std::string text_;
  struct Entry {
    std::size_t begin;  // of ".entry" in the text
    int line;
  };
  std::map<std::string, Entry> entries_;  // by demangled name
  Surroundings surroundings_;
  std::map<int, std::string> source_files_;
};

}  // namespace hayloft::simt::ptx
