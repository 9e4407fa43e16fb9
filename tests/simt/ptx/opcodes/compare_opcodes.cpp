#include "tests/simt/ptx/opcodes/lane_operation.h"

// PTX ISA, "Comparison and Selection Instructions".
namespace hayloft::simt::ptx {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

template <class T>
void add_equality(std::vector<Opcode>& to, const std::string& type) {
  to.push_back(lane_opcode<bool(T, T)>("setp.eq." + type, [](T a, T b) { return a == b; }));
  to.push_back(lane_opcode<bool(T, T)>("setp.ne." + type, [](T a, T b) { return a != b; }));
}

template <class T>
void add_order(std::vector<Opcode>& to, const std::string& type) {
  to.push_back(lane_opcode<bool(T, T)>("setp.lt." + type, [](T a, T b) { return a < b; }));
  to.push_back(lane_opcode<bool(T, T)>("setp.le." + type, [](T a, T b) { return a <= b; }));
  to.push_back(lane_opcode<bool(T, T)>("setp.gt." + type, [](T a, T b) { return a > b; }));
  to.push_back(lane_opcode<bool(T, T)>("setp.ge." + type, [](T a, T b) { return a >= b; }));
}

// With a NaN all of the ordered comparisons are false, and all that end in u are true.
template <class T>
void add_unordered(std::vector<Opcode>& to, const std::string& type) {
  to.push_back(lane_opcode<bool(T, T)>("setp.equ." + type, [](T a, T b) { return !(a < b || a > b); }));
  to.push_back(lane_opcode<bool(T, T)>("setp.neu." + type, [](T a, T b) { return a != b; }));
  to.push_back(lane_opcode<bool(T, T)>("setp.ltu." + type, [](T a, T b) { return !(a >= b); }));
  to.push_back(lane_opcode<bool(T, T)>("setp.leu." + type, [](T a, T b) { return !(a > b); }));
  to.push_back(lane_opcode<bool(T, T)>("setp.gtu." + type, [](T a, T b) { return !(a <= b); }));
  to.push_back(lane_opcode<bool(T, T)>("setp.geu." + type, [](T a, T b) { return !(a < b); }));
  to.push_back(lane_opcode<bool(T, T)>("setp.num." + type, [](T a, T b) { return a == a && b == b; }));
  to.push_back(lane_opcode<bool(T, T)>("setp.nan." + type, [](T a, T b) { return a != a || b != b; }));
}

template <class T>
void add_float_comparisons(std::vector<Opcode>& to, const std::string& type) {
  to.push_back(lane_opcode<bool(T, T)>("setp.eq." + type, [](T a, T b) { return a == b; }));
  to.push_back(lane_opcode<bool(T, T)>("setp.ne." + type, [](T a, T b) { return a < b || a > b; }));
  add_order<T>(to, type);
  add_unordered<T>(to, type);
}

template <class T>
void add_integer_comparisons(std::vector<Opcode>& to, const std::string& type) {
  add_equality<T>(to, type);
  add_order<T>(to, type);
}

template <class T>
void add_selection(std::vector<Opcode>& to, const std::string& type) {
  to.push_back(lane_opcode<T(T, T, bool)>("selp." + type, [](T a, T b, bool first) { return first ? a : b; }));
}

}  // namespace

void add_compare_opcodes(std::vector<Opcode>& to) {
  add_integer_comparisons<s16>(to, "s16");
  add_integer_comparisons<u16>(to, "u16");
  add_integer_comparisons<s32>(to, "s32");
  add_integer_comparisons<u32>(to, "u32");
  add_integer_comparisons<s64>(to, "s64");
  add_integer_comparisons<u64>(to, "u64");
  add_equality<u32>(to, "b32");
  add_float_comparisons<float>(to, "f32");
  add_float_comparisons<double>(to, "f64");
  for (const char* type : {"b16", "u16", "s16"}) add_selection<u16>(to, type);
  for (const char* type : {"b32", "u32", "s32", "f32"}) add_selection<u32>(to, type);
  for (const char* type : {"b64", "u64", "s64", "f64"}) add_selection<u64>(to, type);
}

}  // namespace hayloft::simt::ptx
