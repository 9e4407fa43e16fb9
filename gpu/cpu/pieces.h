#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/backend.h"

// Decode's work in pieces: what each step attends to is cut at positions that depend on that step alone, so that
// neither threads nor other steps change a bit; and the rows that pieces of several steps have in common are found.
namespace hayloft::gpu {

inline constexpr std::int64_t kRangeRows = 2048;  // rows of a range per piece: a megabyte at d = 128
inline constexpr std::int64_t kListRows = 128;    // gathered rows per piece

// Rows for the query heads [query, query + queries) of one step, all of one KV head: positions [begin, end), or the
// entries [begin, end) of a list of positions.
struct Piece {
  std::size_t step;
  int head;
  int query;
  int queries;
  const std::int32_t* list;  // null: a range
  std::int64_t begin;
  std::int64_t end;
  std::int64_t own = 0;    // from here on the rows are attended for this piece alone; before that it shares them
  std::int64_t state = 0;  // index of its first query head's state
};

// Positions [begin, end) with which all of these pieces of ranges begin, of different steps that have them in the same
// blocks, in one tail, or in tails of one origin. `end` is that of each piece, or a multiple of kTileRows away from
// `begin`.
struct SharedRows {
  std::vector<std::size_t> pieces;  // indices; at least two, whose states follow one another in this order
  std::int64_t begin;
  std::int64_t end;
};

struct Pieces {
  std::vector<Piece> all;              // step after step, each in the order in which its states are to be merged
  std::vector<std::size_t> first_of;   // [steps + 1]: where those of a step begin in `all`
  std::vector<SharedRows> shared;      // a piece is in one of them at most
  std::vector<std::size_t> with_rest;  // those with rows of their own, own < end
  std::int64_t states = 0;             // of all pieces
};

Pieces cut_pieces(std::span<const AttendStep> steps, int query_heads);

}  // namespace hayloft::gpu
