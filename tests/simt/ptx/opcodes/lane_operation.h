#pragma once

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/simt/ptx/warp.h"

// Opcodes that every lane carries out for itself, from a function of its values: of bool for predicates, of float and
// double, and of integers whose signedness the function chooses.
namespace hayloft::simt::ptx {

template <class T>
constexpr Type type_of() {
  if constexpr (std::is_same_v<T, bool>) {
    return Type::pred;
  } else if constexpr (std::is_same_v<T, float>) {
    return Type::f32;
  } else if constexpr (std::is_same_v<T, double>) {
    return Type::f64;
  } else if constexpr (sizeof(T) == 2) {
    return std::is_signed_v<T> ? Type::s16 : Type::u16;
  } else if constexpr (sizeof(T) == 4) {
    return std::is_signed_v<T> ? Type::s32 : Type::u32;
  } else {
    return std::is_signed_v<T> ? Type::s64 : Type::u64;
  }
}

template <class T>
class Source {
 public:
  Source(Warp& warp, Register of) : values_(warp.lanes<T>(of)) {}
  T operator[](unsigned lane) const { return values_[lane]; }

 private:
  const T* values_;
};
template <>
class Source<bool> {
 public:
  Source(Warp& warp, Register of) : bits_(warp.predicate(of.offset)) {}
  bool operator[](unsigned lane) const { return (bits_ >> lane & 1) != 0; }

 private:
  Mask bits_;
};

template <class Function, class Out, class... In, std::size_t... I>
void run_lanes(Warp& warp, const Instruction& in, Mask lanes, std::index_sequence<I...>) {
  const std::tuple<Source<In>...> from{Source<In>(warp, in.from[I])...};
  const auto one = [&](unsigned lane) -> Out { return Function{}(std::get<I>(from)[lane]...); };
  if constexpr (std::is_same_v<Out, bool>) {
    Mask bits = 0;
    for_each_lane(lanes, [&](unsigned lane) { bits |= Mask{one(lane)} << lane; });
    Mask& to = warp.predicate(in.to[0].offset);
    to = (to & ~lanes) | bits;
  } else {
    Out* const to = warp.lanes<Out>(in.to[0]);
    if (lanes == ~Mask{0}) {
      // The destination may be a source as well, lane by lane.
#pragma GCC ivdep
      for (unsigned lane = 0; lane < kLanes; ++lane) to[lane] = one(lane);
    } else {
      for_each_lane(lanes, [&](unsigned lane) { to[lane] = one(lane); });
    }
  }
}

template <class Function, class Out, class... In>
void run_lanes(Warp& warp, const Instruction& in, Mask lanes) {
  run_lanes<Function, Out, In...>(warp, in, lanes, std::index_sequence_for<In...>{});
}

// Describes a captureless function by its signature.
template <class Signature>
struct LaneOpcode;
template <class Out, class... In>
struct LaneOpcode<Out(In...)> {
  template <class Function>
  static Opcode make(std::string name, Function) {
    return {.name = std::move(name),
            .to = {type_of<Out>()},
            .from = {type_of<In>()...},
            .run = run_lanes<Function, Out, In...>};
  }
};
template <class Signature, class Function>
Opcode lane_opcode(std::string name, Function function) {
  return LaneOpcode<Signature>::make(std::move(name), function);
}

}  // namespace hayloft::simt::ptx
