#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace hayloft {

// For integers of more than 64 bits, which a JSON value cannot hold: refused, or kept as a binary value of their
// digits.
enum class LongIntegers : std::uint8_t { refused, kept };

// Parses JSON with the members of every object in the order of the text, for what is passed on to a model, a file or a
// client. Of members with one name the value of the last counts, in the place of the first, as in Python. Takes time in
// proportion to the text, however many members an object has (nlohmann's own parser of ordered objects compares each
// name with all before it). Throws Error without a name in front: "not valid JSON at byte 7 of 12", nested too deep.
nlohmann::ordered_json parse_ordered_json(std::string_view text, LongIntegers long_integers = LongIntegers::refused,
                                          int most_depth = 200);

// Returns JSON of one line, long integers that were kept as their digits; what is no UTF-8 becomes U+FFFD.
std::string text_of_json(const nlohmann::ordered_json& json);

// Returns the part that a JSON pointer after "#" names, as a $ref has it: "#/$defs/a~1b%20c" is "a/b c" of "$defs" (RFC
// 6901, 6). Null where there is none.
const nlohmann::ordered_json* part_of_json(const nlohmann::ordered_json& whole, std::string_view fragment);

}  // namespace hayloft
