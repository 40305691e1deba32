// Fuzzes options as texts, from the program and from the environment.
#include "base/options.h"

#include "base/status.h"
#include "fuzz.h"

namespace hvd::fuzz {
namespace {

/// Keys of the table, as the library tells them.
const std::vector<std::string>& keys() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> result;
    const std::string& text = Options::describe();
    for (size_t at = text.find("HVD_"); at != std::string::npos; at = text.find("HVD_", at + 1)) {
      std::string key;
      for (size_t i = at + 4; i < text.size() && (std::isupper(text[i]) != 0 || text[i] == '_'); ++i) {
        key += static_cast<char>(std::tolower(text[i]));
      }
      if (!key.empty()) result.push_back(key);
    }
    return result;
  }();
  return all;
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  Decisions decisions(data);
  const std::string key = decisions.coin() || keys().empty()
                              ? decisions.text(30)
                              : keys()[decisions.upto(static_cast<uint32_t>(keys().size() - 1))];
  const bool by_environment = decisions.coin();
  const auto rest = decisions.all();
  const std::string value(rest.begin(), rest.end());
  Options options([&](const std::string& name) -> std::optional<std::string> {
    if (by_environment && name.ends_with("_") == false && !name.empty()) return value;
    return std::nullopt;
  });
  try {
    if (!by_environment) options.set(key, value);
    const std::string text = options.text(key);
    // What was taken is taken again.
    Options second([](const std::string&) { return std::nullopt; });
    if (!text.empty()) {
      second.set(key, text);
      HVD_PROMISE(second.text(key) == text);
    }
  } catch (const Error& error) {
    HVD_PROMISE(error.status().code == HVD_INVALID);
    HVD_PROMISE(std::strlen(error.what()) > 0);
  }
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> result;
  const auto keyed = [&](const std::string& key, const std::string& value) {
    const auto& all = keys();
    const auto found = std::find(all.begin(), all.end(), key);
    if (found == all.end()) return;
    result.push_back(bytes_of(std::string{'\0', static_cast<char>(found - all.begin()), '\0'} + value));
  };
  keyed("init_timeout", "600");
  keyed("heartbeat_interval", "0.25");
  keyed("connect_timeout", "1e3");
  keyed("blocklist_cooldown_max", "4449444.444404");
  keyed("local", "messages");
  keyed("restart", "true");
  keyed("backend", "gloo");
  keyed("slot", "-1");
  result.push_back(bytes_of(std::string{'\1', '\3'} + "abc" + "1"));
  return result;
}

}  // namespace hvd::fuzz
