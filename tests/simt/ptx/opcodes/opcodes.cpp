#include "tests/simt/ptx/opcodes/opcodes.h"

#include <stdexcept>

namespace hayloft::simt::ptx {

const OpcodeTable& opcodes() {
  static const std::vector<Opcode> all = [] {
    std::vector<Opcode> made;
    for (const auto add :
         {add_integer_opcodes, add_bit_opcodes, add_float_opcodes, add_compare_opcodes, add_convert_opcodes,
          add_move_opcodes, add_memory_opcodes, add_warp_opcodes, add_matrix_opcodes}) {
      add(made);
    }
    for (const char* name : {"bra", "bra.uni"}) made.push_back({.name = name, .form = Form::branch});
    for (const char* name : {"ret", "exit"}) made.push_back({.name = name, .form = Form::exit});
    made.push_back({.name = "bar.sync", .form = Form::block_barrier, .from = {Type::u32}});
    return made;
  }();
  static const OpcodeTable table = [] {
    OpcodeTable by_name;
    for (const Opcode& opcode : all) {
      if (!by_name.emplace(opcode.name, &opcode).second) throw std::logic_error("two opcodes named " + opcode.name);
    }
    return by_name;
  }();
  return table;
}

}  // namespace hayloft::simt::ptx
