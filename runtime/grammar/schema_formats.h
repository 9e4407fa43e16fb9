#pragma once

#include <array>
#include <string_view>

namespace hayloft::runtime::grammar {

// The "format" of a string in a JSON schema, and the rule (GBNF) of the texts between its quotes.
struct Format {
  std::string_view name, rule;
};
// Times have only offsets that there are, as validators want them.
inline constexpr std::array<Format, 8> kFormats{{
    {"date", R"([0-9]{3} [1-9] "-" ( "0" [1-9] | "1" [0-2] ) "-" ( "0" [1-9] | "1" [0-9] | "2" [0-8] ))"},
    {"time",
     R"(( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] ":" [0-5] [0-9] ( "." [0-9]{1,6} )? ( "Z" | [-+] ( "0" [0-9] | "1" [01] ) ":" [0-5] [0-9] ))"},
    {"date-time",
     R"([0-9]{3} [1-9] "-" ( "0" [1-9] | "1" [0-2] ) "-" ( "0" [1-9] | "1" [0-9] | "2" [0-8] ) "T" ( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] ":" [0-5] [0-9] ( "." [0-9]{1,6} )? ( "Z" | [-+] ( "0" [0-9] | "1" [01] ) ":" [0-5] [0-9] ))"},
    {"uuid", R"([0-9a-f]{8} "-" [0-9a-f]{4} "-" [0-9a-f]{4} "-" [0-9a-f]{4} "-" [0-9a-f]{12})"},
    {"email",
     R"([a-zA-Z0-9] [a-zA-Z0-9_+-]{0,30} ( "." [a-zA-Z0-9_+-]{1,30} )? "@" [a-zA-Z0-9] ( [a-zA-Z0-9-]{0,30} [a-zA-Z0-9] )? ( "." [a-zA-Z]{2,12} ){1,2})"},
    {"hostname", R"([a-z0-9] ( [a-z0-9-]{0,30} [a-z0-9] )? ( "." [a-z] ( [a-z0-9-]{0,30} [a-z0-9] )? ){0,3})"},
    {"ipv4",
     R"(( "25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9] [0-9] | [0-9] ) ( "." ( "25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9] [0-9] | [0-9] ) ){3})"},
    {"ipv6", R"([0-9a-f]{1,4} ( ":" [0-9a-f]{1,4} ){7})"},
}};

}  // namespace hayloft::runtime::grammar
