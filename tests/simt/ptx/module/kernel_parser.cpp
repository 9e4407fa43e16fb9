#include "tests/simt/ptx/module/kernel_parser.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "tests/simt/ptx/module/statement.h"
#include "tests/simt/ptx/module/tokens.h"
#include "tests/simt/ptx/register_file.h"

namespace hayloft::simt::ptx {
namespace {

const std::map<std::string_view, Special> special_registers{
    {"%tid.x", Special::tid_x},       {"%tid.y", Special::tid_y},       {"%tid.z", Special::tid_z},
    {"%ctaid.x", Special::ctaid_x},   {"%ctaid.y", Special::ctaid_y},   {"%ctaid.z", Special::ctaid_z},
    {"%ntid.x", Special::ntid_x},     {"%ntid.y", Special::ntid_y},     {"%ntid.z", Special::ntid_z},
    {"%nctaid.x", Special::nctaid_x}, {"%nctaid.y", Special::nctaid_y}, {"%nctaid.z", Special::nctaid_z},
    {"%laneid", Special::laneid},
};

std::size_t aligned(std::size_t offset, std::size_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

class KernelParser {
 public:
  KernelParser(std::string_view text, int line, const Surroundings& surroundings)
      : tokens_(text, line), surroundings_(surroundings), registers_(kernel_) {}

  Kernel parse() {
    tokens_.expect(".entry");
    tokens_.next();  // the mangled name
    if (tokens_.take("(")) parameters();
    while (tokens_.peek() != "{") limit();
    body();
    for (const auto& [instruction, label] : branches_) {
      const auto found = labels_.find(label);
      Instruction& branch = kernel_.code[instruction];
      if (found == labels_.end()) {
        throw std::runtime_error(fmt::format("line {}: a branch to {}, which is nowhere", branch.line, label));
      }
      branch.target = found->second;
    }
    return std::move(kernel_);
  }

 private:
  struct Variable {
    std::string name;
    std::size_t bytes = 0;
    std::size_t alignment = 0;
  };

  void parameters();
  void limit();
  void body();
  void directive();
  void location();
  void declare_registers();
  void instruction(std::string_view opcode, const std::optional<std::pair<Register, bool>>& guard, int line);

  Variable variable();
  std::uint64_t count() { return number(tokens_, read_value(tokens_)); }

  const Opcode& opcode(std::string_view name) const;
  static std::string variant_of_mov(std::string_view name, Statement& read);
  void operands(Instruction& made, const Opcode& opcode, const Statement& read);
  Operands operands(const Opcode& opcode, const std::vector<Value>& values, const std::vector<Type>& types);
  Register resolve(const Value& value, unsigned bytes);
  Type type(std::string_view word) const;

  Tokens tokens_;
  const Surroundings& surroundings_;
  Kernel kernel_;
  RegisterFile registers_;
  std::map<std::string, std::size_t, std::less<>> symbols_;  // offsets of parameters and of static shared memory
  std::map<std::string, unsigned, std::less<>> labels_;
  std::vector<std::pair<std::size_t, std::string>> branches_;  // instruction and label
  int source_file_ = 0;
  int source_line_ = 0;
};

Type KernelParser::type(std::string_view word) const {
  for (const auto& [name, type] : type_names) {
    if (word.size() == name.size() + 1 && word.substr(1) == name) return type;
  }
  tokens_.fail(fmt::format("the type '{}' is not known here", word));
}

// [.align N] .TYPE NAME[COUNT], without what comes before and behind.
KernelParser::Variable KernelParser::variable() {
  Variable made;
  if (tokens_.take(".align")) made.alignment = count();
  const unsigned element = bytes(type(tokens_.next()));
  if (made.alignment == 0) made.alignment = element;
  made.name = tokens_.next();
  made.bytes = element;
  if (tokens_.take("[")) {
    made.bytes *= count();
    tokens_.expect("]");
  }
  return made;
}

void KernelParser::parameters() {
  while (!tokens_.take(")")) {
    tokens_.expect(".param");
    const Variable found = variable();
    const std::size_t offset = aligned(kernel_.parameter_bytes, found.alignment);
    kernel_.parameters.push_back({found.name, found.bytes, offset});
    kernel_.parameter_bytes = offset + found.bytes;
    symbols_[found.name] = offset;
    tokens_.take(",");
  }
}

// Reads what __launch_bounds__ leaves behind the parameters.
void KernelParser::limit() {
  const std::string_view word = tokens_.next();
  if (word != ".maxntid" && word != ".minnctapersm") tokens_.fail(fmt::format("'{}' is not known here", word));
  std::uint64_t product = count();
  while (tokens_.take(",")) product *= count();
  if (word == ".maxntid") kernel_.most_threads = static_cast<unsigned>(product);
}

void KernelParser::body() {
  tokens_.expect("{");
  for (int depth = 1; depth > 0;) {
    if (tokens_.take("{")) {
      ++depth;
      registers_.open_scope();
    } else if (tokens_.take("}")) {
      if (--depth > 0) registers_.close_scope();
    } else if (tokens_.take(";")) {
    } else if (tokens_.peek().starts_with('.')) {
      directive();
    } else {
      const int line = tokens_.line();
      std::optional<std::pair<Register, bool>> guard;
      if (tokens_.take("@")) {
        const bool negated = tokens_.take("!");
        guard = {resolve(read_value(tokens_), bytes(Type::pred)), negated};
      }
      const std::string_view word = tokens_.next();
      if (!guard && tokens_.take(":")) {
        if (!labels_.emplace(word, kernel_.code.size()).second) tokens_.fail(fmt::format("two labels {}", word));
      } else {
        instruction(word, guard, line);
      }
    }
  }
  const Instruction end{.opcode = opcodes().at("exit")};
  kernel_.code.push_back(end);
}

void KernelParser::directive() {
  const std::string_view word = tokens_.peek();
  if (word == ".loc") {
    location();
  } else if (word == ".pragma") {  // how to compile it
    tokens_.skip_line();
  } else if (word == ".reg") {
    declare_registers();
  } else if (word == ".shared") {
    tokens_.next();
    const Variable found = variable();
    const std::size_t offset = aligned(kernel_.static_shared_bytes, found.alignment);
    symbols_[found.name] = offset;
    kernel_.static_shared_bytes = offset + found.bytes;
    tokens_.expect(";");
  } else {
    tokens_.fail(fmt::format("the directive '{}' is not known here", tokens_.next()));
  }
}

// .loc FILE LINE COLUMN, and where that was inlined.
void KernelParser::location() {
  tokens_.next();
  const auto file = static_cast<int>(count());
  const auto line = static_cast<int>(count());
  if (surroundings_.foreign_files.count(file) == 0) {
    source_file_ = file;
    source_line_ = line;
  }
  tokens_.skip_line();
}

// .reg .TYPE NAME, NAME<COUNT>;
void KernelParser::declare_registers() {
  tokens_.next();
  const Type of = type(tokens_.next());
  do {
    const std::string_view name = tokens_.next();
    if (tokens_.take("<")) {
      const std::uint64_t number = count();
      for (std::uint64_t i = 0; i < number; ++i) registers_.declare(fmt::format("{}{}", name, i), of);
      tokens_.expect(">");
    } else {
      registers_.declare(name, of);
    }
  } while (tokens_.take(","));
  tokens_.expect(";");
}

// The register of this name, or one that holds this constant in so many bytes.
Register KernelParser::resolve(const Value& value, unsigned bytes) {
  if (const Register* declared = registers_.find(value)) return *declared;
  if (const auto found = special_registers.find(value); found != special_registers.end()) {
    return registers_.special(found->second, bytes);
  }
  if (surroundings_.dynamic_shared.count(value) > 0) return registers_.special(Special::dynamic_shared, bytes);
  if (const auto found = symbols_.find(value); found != symbols_.end()) {
    return registers_.constant(found->second, bytes);
  }
  return registers_.constant(number(tokens_, value), bytes);
}

const Opcode& KernelParser::opcode(std::string_view name) const {
  const auto found = opcodes().find(name);
  if (found == opcodes().end()) tokens_.fail(fmt::format("the opcode '{}' is not known here", name));
  return *found->second;
}

// The entry of the table: lists and the clock have their own.
std::string KernelParser::variant_of_mov(std::string_view name, Statement& read) {
  std::string variant(name);
  if (read.list_to) variant += " unpack";
  if (read.list_from) variant += " pack";
  if (read.from[0] == "%globaltimer") {
    variant += " %globaltimer";
    read.from.clear();
  }
  return variant;
}

Operands KernelParser::operands(const Opcode& opcode, const std::vector<Value>& values,
                                const std::vector<Type>& types) {
  if (values.size() != types.size() && !(opcode.second_optional && &types == &opcode.to && values.size() == 1)) {
    tokens_.fail(fmt::format("{} operands where {} takes {}", values.size(), opcode.name, types.size()));
  }
  Operands made;
  for (; made.count < values.size(); ++made.count) {
    const Value& value = values[made.count];
    const unsigned wanted = bytes(types[made.count]);
    const Register found = resolve(value, wanted);
    if (found.bytes != wanted && !(opcode.any_width && wanted > 0 && found.bytes > wanted)) {
      tokens_.fail(fmt::format("{} of {} bytes where {} takes {}", value, found.bytes, opcode.name, wanted));
    }
    made.of[made.count] = found;
  }
  return made;
}

void KernelParser::operands(Instruction& made, const Opcode& opcode, const Statement& read) {
  made.opcode = &opcode;
  made.to = operands(opcode, read.to, opcode.to);
  made.from = operands(opcode, read.from, opcode.from);
  if (opcode.whole_warp) made.from.of[made.from.count++] = registers_.constant(~Mask{0}, sizeof(Mask));
  if (!read.address) return;
  made.base = resolve(read.address->base, 8);
  made.offset = read.address->offset;
}

void KernelParser::instruction(std::string_view name, const std::optional<std::pair<Register, bool>>& guard, int line) {
  Instruction made;
  made.line = line;
  made.source_file = source_file_;
  made.source_line = source_line_;
  if (guard) {
    made.guarded = true;
    made.guard = guard->first.offset;
    made.negated = guard->second;
  }
  if (name.starts_with("mov.")) {
    Statement read = read_statement(tokens_, Form::lanes, true);
    const Opcode& variant = opcode(variant_of_mov(name, read));
    operands(made, variant, read);
  } else {
    const Opcode& known = opcode(name);
    switch (known.form) {
      case Form::branch:
        branches_.emplace_back(kernel_.code.size(), tokens_.next());
        [[fallthrough]];
      case Form::exit:
        tokens_.expect(";");
        made.opcode = &known;
        break;
      default:
        operands(made, known, read_statement(tokens_, known.form, !known.to.empty()));
    }
  }
  kernel_.code.push_back(made);
}

}  // namespace

Kernel parse_kernel(std::string_view text, int line, const Surroundings& surroundings) {
  return KernelParser(text, line, surroundings).parse();
}

}  // namespace hayloft::simt::ptx
