#pragma once

#include <array>
#include <string_view>

// Rules (GBNF) that grammars of schemas are put together from.
namespace hayloft::runtime::grammar {

// The rules of JSON itself. Of \u escapes those of halves of characters are left out.
inline constexpr std::string_view kJson = R"(ws ::= ( " " | "\n" [ \t]{0,20} )?
char ::= [^"\\\x00-\x1F\x7F] | "\\" ( ["\\/bfnrt] | "u" ( [0-9a-cA-CeEfF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} ) )
string ::= "\"" char* "\""
number ::= "-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?
boolean ::= "true" | "false"
null ::= "null"
value ::= object | array | string | number | boolean | null
object ::= "{" ws ( string ":" ws value ( "," ws string ":" ws value )* ws )? "}"
array ::= "[" ws ( value ( "," ws value )* ws )? "]"
)";

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
