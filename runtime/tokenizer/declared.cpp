#include "runtime/tokenizer/declared.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/tokenizer/json.h"

namespace hayloft::runtime {
namespace {

using Tokens = std::vector<AddedToken>;

// The names that transformers knows, in its order. Any other field NAME_token with a text is one of the model's own.
constexpr std::array<std::string_view, 7> standard_names = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                            "pad_token", "cls_token", "mask_token"};

bool is_standard(std::string_view name) {
  return std::find(standard_names.begin(), standard_names.end(), name) != standard_names.end();
}

const AddedToken* find(const Tokens& tokens, std::string_view content) {
  const auto it =
      std::find_if(tokens.begin(), tokens.end(), [&](const auto& token) { return token.content == content; });
  return it == tokens.end() ? nullptr : &*it;
}

// One of the files, which need not be there.
class File {
 public:
  File(const std::filesystem::path& directory, const char* name) : name_((directory / name).string()) {
    std::error_code error;
    if (!std::filesystem::exists(name_, error)) return;
    document_ = read_json_file(name_);
    if (!document_->is_object()) return;
    const nlohmann::ordered_json written = read_ordered_json_file(name_);
    for (const auto& [key, value] : written.items()) keys_.push_back(key);
  }

  std::optional<Field> root() const { return document_ ? std::optional(Field(*document_, name_)) : std::nullopt; }
  const std::vector<std::string>& keys() const { return keys_; }  // in the file's order

 private:
  std::string name_;
  std::optional<nlohmann::json> document_;
  std::vector<std::string> keys_;
};

AddedToken read_special(const Field& field) {
  if (field.value().is_string()) return {field.text(), -1, true, false, false, false, false};
  return AddedToken::read(field, /*special=*/true);
}

// The special tokens: by name, the standard names first, and those without.
struct Specials {
  std::vector<std::pair<std::string, AddedToken>> named;
  Tokens extra;
  Tokens older_extra;  // additional_special_tokens of special_tokens_map.json, which count where there is no `extra`

  bool has_name_for(std::string_view content, bool standard_only = false) const {
    return std::any_of(named.begin(), named.end(), [&](const auto& each) {
      return each.second.content == content && (!standard_only || is_standard(each.first));
    });
  }

  // Names that were read before are overruled. is_map: of special_tokens_map.json.
  void read(const File& file, bool is_map) {
    const auto root = file.root();
    if (!root) return;
    root->object();
    for (const std::string& name : file.keys()) {
      const auto field = root->find(name);
      const bool own = name.ends_with("_token") && !is_standard(name);
      if (field && (is_standard(name) || (own && field->value().is_string()))) set(name, read_special(*field));
    }
    const auto older = root->find("additional_special_tokens");
    const auto newer = root->find("extra_special_tokens");
    if (newer && newer->value().is_object()) {
      for (const auto& [name, value] : newer->object().items()) set(name, read_special(newer->at(name)));
    } else if (newer) {
      read_list(*newer, extra);
    }
    if (older && (!newer || newer->value().empty())) read_list(*older, is_map ? older_extra : extra);
  }

  // The standard names first.
  void order() {
    const auto place = [](const auto& each) {
      return std::find(standard_names.begin(), standard_names.end(), each.first) - standard_names.begin();
    };
    std::stable_sort(named.begin(), named.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  }

 private:
  static void read_list(const Field& list, Tokens& tokens) {
    for (const Field& field : list.elements()) {
      const AddedToken token = read_special(field);
      if (!find(tokens, token.content)) tokens.push_back(token);
    }
  }

  void set(const std::string& name, AddedToken token) {
    for (auto& [known, value] : named) {
      if (known == name) return void(value = std::move(token));
    }
    named.emplace_back(name, std::move(token));
  }
};

// {"ID": {"content": ..., flags}, ...}, by id.
std::map<TokenId, AddedToken> read_decoder(const Field& decoder) {
  std::map<TokenId, AddedToken> tokens;
  for (const auto& [key, value] : decoder.object().items()) {
    TokenId id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      fail("{}: '{}' is no token id", decoder.where(), printable(key));
    }
    tokens.insert_or_assign(id, AddedToken::read(decoder.at(key), std::nullopt));
  }
  return tokens;
}

// added_tokens.json, {"CONTENT": ID, ...}, by id. Ids that tokenizer.json has too are its own.
std::map<TokenId, AddedToken> read_older(const Field& root, const Specials& specials, const Tokens& known) {
  std::map<TokenId, AddedToken> tokens;
  for (const auto& [content, id] : root.object().items()) {
    const bool special = specials.has_name_for(content, /*standard_only=*/true) || find(specials.extra, content);
    tokens.insert_or_assign(root.at(content).token_id(),
                            AddedToken{content, -1, special, false, false, false, /*normalized=*/!special});
  }
  for (const AddedToken& token : known) tokens.erase(token.id);
  return tokens;
}

// Returns whether tokenizer_config.json says it all, so that the older files are not read.
std::optional<Field> find_decoder(const File& config) {
  const auto root = config.root();
  return root ? root->find("added_tokens_decoder") : std::nullopt;
}

Specials read_specials(const File& config, const File& map) {
  Specials specials;
  specials.read(config, false);
  if (!find_decoder(config)) specials.read(map, true);
  specials.order();
  return specials;
}

}  // namespace

Tokens declared_tokens(const std::filesystem::path& directory, const Tokens& known) {
  const File config(directory, "tokenizer_config.json");
  const File map(directory, "special_tokens_map.json");
  const File older(directory, "added_tokens.json");

  if (const auto root = config.root(); root && root->value().is_object() && root->flag("split_special_tokens", false)) {
    fail("{}: split_special_tokens is true; it must be false, for special tokens are always read as such",
         root->where());
  }
  const Specials specials = read_specials(config, map);
  std::map<TokenId, AddedToken> by_id;
  if (const auto decoder = find_decoder(config)) {
    by_id = read_decoder(*decoder);
  } else if (const auto tokens = older.root()) {
    by_id = read_older(*tokens, specials, known);
  }

  Tokens declared;
  for (const auto& [id, token] : by_id) {
    const AddedToken* same = find(known, token.content);
    if (token.content.empty() || (same && same->has_flags_of(token))) continue;
    declared.push_back(token);
    declared.back().special |= specials.has_name_for(token.content);
  }
  const Tokens with_ids = declared;
  const auto add = [&](const AddedToken& token) {
    if (token.content.empty() || find(known, token.content) || find(with_ids, token.content)) return;
    const auto same = [&](const AddedToken& each) { return each.content == token.content; };
    const auto there = std::find_if(declared.begin(), declared.end(), same);
    if (there == declared.end()) {
      declared.push_back(token);
    } else {
      *there = token;  // the last one's flags count
    }
  };
  for (const auto& [name, token] : specials.named) add(token);
  for (const AddedToken& token : specials.extra.empty() ? specials.older_extra : specials.extra) add(token);
  return declared;
}

std::vector<std::pair<std::string, std::string>> special_tokens(const std::filesystem::path& directory) {
  const File config(directory, "tokenizer_config.json");
  const File map(directory, "special_tokens_map.json");
  std::vector<std::pair<std::string, std::string>> texts;
  for (const auto& [name, token] : read_specials(config, map).named) texts.emplace_back(name, token.content);
  return texts;
}

}  // namespace hayloft::runtime
